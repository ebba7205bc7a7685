"""Whether the simulator waits as the cluster did: its own arrivals and run times, served again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl

from gpuplanner.errors import ScenarioError, message
from gpuplanner.inbox import Dataset
from gpuplanner.metrics.agreement import NEAR_S, agreement, wait_quantiles
from gpuplanner.simulate import Rules
from gpuplanner.study.future.fleet_fit import candidates, replay
from gpuplanner.study.past.observed import observe, obstacles, peak_gpus

SIZES = {"part of a GPU": 1.0, "1 GPU": 2.0, "2-7 GPUs": 8.0, "8 GPUs": 9.0, "over 8 GPUs": math.inf}
"""Classes of jobs, and the number of GPUs that they stay below."""

REPRODUCES, OVER, UNDER = "reproduces", "overestimates", "underestimates"
ON_AVERAGE, UNTOLD, UNSEEN = "right on average only", "too few to judge", "no waits observed"
SENTENCES = {
    REPRODUCES: "The simulator reproduces the waits here",
    OVER: "The simulator overestimates the waits here",
    UNDER: "The simulator underestimates the waits here",
    ON_AVERAGE: "The simulator is right on average here, but not job by job",
    UNTOLD: "Too few jobs, or too few that waited, to judge the simulator here",
    UNSEEN: "No waits were observed, so the simulator cannot be checked here; simulated only",
}
"""What each verdict says."""

EXPLAINED, CONTRADICTED, UNCHECKED = "explained", "contradicted", "cannot be checked"
OUTCOMES = {
    EXPLAINED: "the mean wait is as observed: a saving in simulation may be headlined",
    CONTRADICTED: "the mean wait is not as observed: no saving is headlined",
    UNCHECKED: "no waits were observed, or too few: figures are given, marked 'simulated only'",
}
"""What a calibration means for a study of the same data."""
CIRCULAR = (
    " The trace is synthetic, so its waits are a simulator's own: no evidence of how real ones are met."
)


@dataclass(frozen=True)
class Thresholds:
    """When waits count as reproduced.

    Parameters
    ----------
    least_jobs : int
        Fewer jobs say nothing.
    least_waited : int
        Fewer jobs that waited over 10 minutes say nothing about waiting.
    mean_factor : float
        Between the two mean waits, both with a minute added, at most.
    within_10min : float
        Share of all jobs explained within 10 minutes, at least.
    waited_within_1h : float
        Share of the jobs that waited explained within an hour, at least.
    """

    least_jobs: int = 100
    least_waited: int = 20
    mean_factor: float = 1.25
    within_10min: float = 0.8
    waited_within_1h: float = 0.5


@dataclass(frozen=True, eq=False)
class Calibration:
    """Simulated beside observed waits.

    Parameters
    ----------
    facts : mapping
        Source, jobs compared, fleet, rules, and where they come from.
    verdict : str
        A key of :data:`SENTENCES`.
    outcome : str
        A key of :data:`OUTCOMES`.
    sentence : str
        The verdict with its figures.
    overall : mapping
        :func:`gpuplanner.metrics.agreement.agreement` of all jobs.
    groups : mapping of str to polars.DataFrame
        The same by ``tenant``, ``size`` and ``hour`` of submission.
    quantiles : polars.DataFrame
        :func:`gpuplanner.metrics.agreement.wait_quantiles`.
    candidates : polars.DataFrame
        Fleets and queues tried, best first; ``used`` marks the one of the verdict.
    obstacles, left_out : polars.DataFrame
        What a queue over one pool cannot explain; jobs that were not replayed.
    jobs : polars.DataFrame
        ``name, tenant, size, hour, gpus, observed_s, simulated_s`` of every job.
    """

    facts: Mapping[str, Any]
    verdict: str
    outcome: str
    sentence: str
    overall: Mapping[str, Any]
    groups: Mapping[str, pl.DataFrame]
    quantiles: pl.DataFrame
    candidates: pl.DataFrame
    obstacles: pl.DataFrame
    left_out: pl.DataFrame
    jobs: pl.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """All but the jobs, ready for JSON."""
        return {
            "outcome": self.outcome,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "facts": dict(self.facts),
            "overall": dict(self.overall),
            **{f"by_{name}": group.to_dicts() for name, group in self.groups.items()},
            "quantiles": self.quantiles.to_dicts(),
            "candidates": self.candidates.to_dicts(),
            "obstacles": self.obstacles.to_dicts(),
            "left_out": self.left_out.to_dicts(),
        }


def calibrate(
    trace: Dataset,
    *,
    gpus: int | None = None,
    rules: Rules | None = None,
    tz: str = "UTC",
    thresholds: Thresholds = Thresholds(),
) -> Calibration:
    """Serve the jobs of a trace again, and compare the waits with those observed.

    Parameters
    ----------
    trace : Dataset
        With start times.
    gpus : int, optional
        GPUs of the fleet; else the inventory, else what was held at most.
    rules : Rules, optional
        Rules of the queue that stop nobody; else EASY backfill where most jobs have limits, and otherwise a
        queue in which all that fits passes.
    tz : str
        Zone of the hours of the day.
    thresholds : Thresholds
        When waits count as reproduced.

    Returns
    -------
    Calibration

    Raises
    ------
    ScenarioError
        If no job can be replayed, the fleet has no GPU, or the zone is unknown.

    Examples
    --------
    >>> from gpuplanner.study.past.history import load_trace
    >>> found = calibrate(load_trace("sample"))
    >>> found.outcome, found.verdict, found.facts["fleet"]
    ('explained', 'reproduces', 'from the inventory: 8 nodes of 8')
    >>> found.sentence.endswith("no evidence of how real ones are met.")
    True
    """
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError):
        text = message(
            "calibration: zone", "a name of the IANA database", repr(tz), "Give it like 'Europe/Oslo'."
        )
        raise ScenarioError(text) from None
    observed = observe(trace, gpus=gpus)
    limits = float(observed.jobs["limit_known"].mean())  # type: ignore[arg-type]
    chosen = rules or Rules(queue="easy" if limits > 0.5 else "pass")
    waits = replay(observed, chosen)
    jobs = _described(observed.jobs, waits, tz)
    overall = agreement(jobs).row(0, named=True)
    verdict = judge(overall, thresholds)
    facts = {
        "source": trace.provenance["source"],
        "jobs_compared": jobs.height,
        "fleet_gpus": observed.gpus,
        "fleet": observed.fleet_note,
        "most_gpus_held": peak_gpus(observed.jobs) / observed.parts,
        "nodes": observed.nodes,
        "parts_of_a_gpu": observed.parts,
        "queue": chosen.queue,
        "order": chosen.order,
        "rules": "as given" if rules else f"chosen: {limits:.0%} of the jobs have a run-time limit",
    }
    return Calibration(
        facts=facts,
        verdict=verdict,
        outcome=outcome(overall, thresholds),
        sentence=sentence(verdict, overall) + (CIRCULAR if facts["source"] == "synthetic" else ""),
        overall=overall,
        groups={by: agreement(jobs, by=by) for by in ("tenant", "size", "hour")},
        quantiles=wait_quantiles(jobs),
        candidates=candidates(observed, chosen),
        obstacles=obstacles(observed, trace),
        left_out=observed.left_out,
        jobs=jobs,
    )


def judge(overall: Mapping[str, Any], thresholds: Thresholds) -> str:
    """Give the verdict on figures of :func:`~gpuplanner.metrics.agreement.agreement`.

    Examples
    --------
    >>> figures = {"jobs": 500, "waited": 90, "observed_mean_s": 600.0, "simulated_mean_s": 1200.0}
    >>> judge(figures, Thresholds())
    'overestimates'
    """
    simulated, observed = (overall[f"{side}_mean_s"] + 60.0 for side in ("simulated", "observed"))
    if not overall["observed_mean_s"]:
        return UNSEEN
    if overall["jobs"] < thresholds.least_jobs:
        return UNTOLD
    if simulated > thresholds.mean_factor * observed:
        return OVER
    if observed > thresholds.mean_factor * simulated:
        return UNDER
    if overall["waited"] < thresholds.least_waited:
        return UNTOLD
    near = overall["within_10min"] >= thresholds.within_10min
    return REPRODUCES if near and overall["waited_within_1h"] >= thresholds.waited_within_1h else ON_AVERAGE


def outcome(overall: Mapping[str, Any], thresholds: Thresholds = Thresholds()) -> str:
    """What the same figures mean for a study: a key of :data:`OUTCOMES`.

    Few jobs prove no simulator right; but where it is wrong about those that there are, nothing may rest on it.
    Where nobody waited for 10 minutes, a simulator in which nobody waits is not contradicted.

    Examples
    --------
    >>> fox = {"jobs": 65, "waited": 12, "observed_mean_s": 43_000.0, "simulated_mean_s": 0.0}
    >>> judge(fox, Thresholds()), outcome(fox)
    ('too few to judge', 'contradicted')
    """
    verdict = judge(overall, thresholds)
    told = judge({**overall, "jobs": max(overall["jobs"], thresholds.least_jobs)}, thresholds)
    if told == OVER or (told == UNDER and overall["waited"]):
        return CONTRADICTED
    return EXPLAINED if verdict in (REPRODUCES, ON_AVERAGE) else UNCHECKED


def size_class(gpus: pl.Series) -> pl.Series:
    """Class of each job by the GPUs that it asks for; classes sort by size.

    Examples
    --------
    >>> size_class(pl.Series([0.5, 1.0, 8.0, 16.0])).to_list()
    ['part of a GPU', '1 GPU', '8 GPUs', 'over 8 GPUs']
    """
    rank = np.searchsorted(list(SIZES.values()), gpus.to_numpy(), "right")
    names = list(SIZES)
    return pl.Series([names[place] for place in rank], dtype=pl.Enum(names))


def _described(jobs: pl.DataFrame, waits: pl.Series, tz: str) -> pl.DataFrame:
    return jobs.select(
        "name",
        "tenant",
        size=size_class(jobs["asked_gpus"]),
        hour=pl.col("submit_time").dt.convert_time_zone(tz).dt.hour(),
        gpus="asked_gpus",
        observed_s="observed_s",
        simulated_s=waits,
    )


def sentence(verdict: str, overall: Mapping[str, Any], *, lead: str = "") -> str:
    """A verdict, or `lead` in its place, with its figures."""
    seen, ours = (overall[f"{side}_mean_s"] / 60.0 for side in ("observed", "simulated"))
    waited = (
        f", and {overall['waited_within_1h']:.0%} of the {overall['waited']:,} that waited over "
        f"{NEAR_S / 60:.0f} min within 1 h"
        if overall["waited"]
        else ""
    )
    return (
        f"{lead or SENTENCES[verdict]}: mean {ours:,.1f} min against {seen:,.1f} min observed; "
        f"{overall['within_10min']:.0%} of {overall['jobs']:,} jobs within 10 min{waited}."
    )
