"""Whether the simulator waits as the cluster did: jobs at their submission on today's nodes, and what kept the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.metrics.agreement import NEAR_S, agreement, wait_quantiles
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.arena import Arena
from gpuplanner.study.decision.asked import AS_TODAY
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.decision.explained import (
    CONTRADICTED,
    EXPLAINED,
    ON_AVERAGE,
    OVER,
    REPRODUCES,
    UNCHECKED,
    UNDER,
    UNSEEN,
    UNTOLD,
    USUAL,
    Replayed,
    Thresholds,
    judge,
    outcome,
    range_of,
    replayed,
)
from gpuplanner.study.decision.types import ASSUMED, QUEUE
from gpuplanner.units import SECONDS_PER_HOUR, SECONDS_PER_MINUTE

SENTENCES = {
    REPRODUCES: "The simulator reproduces the waits here",
    OVER: "The simulator overestimates the waits here",
    UNDER: "The simulator underestimates the waits here",
    ON_AVERAGE: "The simulator is right on average here, but not job by job",
    UNTOLD: "Too few jobs, or too few that waited, to judge the simulator here",
    UNSEEN: "No waits were observed, so the simulator cannot be checked here; simulated only",
}
"""What each verdict says."""

OUTCOMES = {
    EXPLAINED: "the mean wait of every size of job is as observed",
    CONTRADICTED: "the mean wait of some size of job is not as observed: service is counted from observed starts",
    UNCHECKED: "no waits were observed, or too few",
}
"""What a calibration means for a decision on the same data."""
CIRCULAR = (
    " The trace is synthetic, so its waits are a simulator's own: no evidence of how real ones are met."
)

BY_COUNT, BY_PLACE, LATENCY = "too few free", "free, but not together", "scheduler latency"
BY_ORDER, ELSEWHERE = "behind others in the queue", "fitted, and waited all the same"
CAUSES = {
    BY_COUNT: "fewer slices were free than it asked for",
    BY_PLACE: "enough were free, on nodes where they did not fit together",
    LATENCY: "until the scheduler looked again: the same for every job",
    BY_ORDER: "it would have fitted, and the replay makes it wait its turn as well",
    ELSEWHERE: "a limit, a quota, a priority, a reservation or a dependency: the source does not say which",
}
"""What a wait is made of: only the last is not explained by fleet and queue."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Simulated beside observed waits.

    Parameters
    ----------
    facts : mapping
        Source, jobs compared, fleet, queue, and where they come from.
    verdict : str
        A key of :data:`SENTENCES`, of all jobs.
    outcome : str
        A key of :data:`OUTCOMES`: every size of job by itself.
    sentence : str
        The verdict with its figures, and what the waits are made of.
    overall : mapping
        :func:`gpuplanner.metrics.agreement.agreement` of all jobs, the range of the simulated mean over replays, and
        completion times, from submission to the end.
    groups : mapping of str to polars.DataFrame
        The same by ``size`` (with the range, and a verdict), ``tenant`` and ``hour`` of submission.
    quantiles : polars.DataFrame
        :func:`gpuplanner.metrics.agreement.wait_quantiles`.
    causes : polars.DataFrame
        ``cause`` (of :data:`CAUSES`), ``share`` of all waiting, ``hours``, ``jobs`` that it kept longer than the
        decision lets them wait, and its ``meaning``.
    left_out : polars.DataFrame
        ``reason`` and ``jobs`` that were not judged.
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
    causes: pl.DataFrame
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
            "causes": self.causes.to_dicts(),
            "left_out": self.left_out.to_dicts(),
        }


def calibrate(scenario: Scenario, *, thresholds: Thresholds = USUAL) -> Calibration:
    """Serve the jobs again as they came, on the nodes and layouts that ``compare`` plays, and hold the waits together.

    Examples
    --------
    >>> found = calibrate(Scenario())
    >>> found.outcome, found.verdict, found.facts["fleet"]
    ('explained', 'reproduces', 'from the inventory')
    >>> found.causes["share"].sum() > 0.999, found.causes["cause"][1]
    (True, 'free, but not together')
    """
    known, asked, arena, _ = opened(scenario, QUEUE)
    replay = replayed(arena, thresholds)
    waited, compared = replay.waited_s, replay.compared
    if not compared.any():
        text = message("calibration", "jobs that came and started", "none", "Use a trace with start times.")
        raise ScenarioError(text)
    causes = _causes(arena, replay)
    jobs = asked.jobs.select(
        "tenant",
        name="job_id",
        size=pl.Series([arena.classes[number] for number in arena.size], dtype=pl.Enum(arena.classes)),
        hour=pl.col("submit_time").dt.convert_time_zone(scenario.tz).dt.hour(),
        gpus="gpus",
        observed_s=pl.Series(waited),
        simulated_s=pl.Series(replay.late_s[0]),
    ).filter(compared)
    by_size = pl.DataFrame(replay.sizes, infer_schema_length=None)
    overall = agreement(jobs).row(0, named=True) | range_of(replay.late_s[:, compared])
    run_s = float(asked.views[AS_TODAY].requests.run_s[compared].mean())
    overall |= {
        f"{side}_completion_mean_s": overall[f"{side}_mean_s"] + run_s for side in ("observed", "simulated")
    }
    verdict, source = judge(overall, thresholds), str(known.trace.provenance["source"])
    return Calibration(
        facts={
            "source": source, "jobs_compared": jobs.height, "fleet_gpus": asked.nodes.total,
            "fleet": known.fleet.note, "nodes": len(asked.nodes.gpus), "inferred": asked.nodes.inferred,
            "board": known.fleet.name, "queue": scenario.queue, "base": asked.base, "latency_s": replay.latency_s,
        },
        verdict=verdict,
        outcome=UNCHECKED if asked.base == ASSUMED else outcome(replay.sizes, thresholds),
        sentence=sentence(verdict, overall, causes) + (CIRCULAR if source == "synthetic" else ""),
        overall=overall,
        groups={"tenant": agreement(jobs, by="tenant"), "size": by_size, "hour": agreement(jobs, by="hour")},
        quantiles=wait_quantiles(jobs),
        causes=causes,
        left_out=_left_out(arena, compared),
        jobs=jobs,
    )  # fmt: skip


def sentence(verdict: str, overall: Mapping[str, Any], causes: pl.DataFrame) -> str:
    """A verdict with its figures, and what the waits are made of."""
    seen, ours = (overall[f"{side}_mean_s"] / 60.0 for side in ("observed", "simulated"))
    waited = (
        f", and {overall['waited_within_1h']:.0%} of the {overall['waited']:,} that waited over "
        f"{NEAR_S / 60:.0f} min within 1 h"
        if overall["waited"]
        else ""
    )
    text = (
        f"{SENTENCES[verdict]}: mean {ours:,.1f} min against {seen:,.1f} min observed; "
        f"{overall['within_10min']:.0%} of {overall['jobs']:,} jobs within 10 min{waited}."
    )
    parts = [f"{row['share']:.0%} {row['cause']}" for row in causes.to_dicts() if row["share"] >= 0.005]
    return f"{text} Of the waiting, {', '.join(parts)}." if parts else text


def _causes(arena: Arena, replay: Replayed) -> pl.DataFrame:
    """The waiting of the jobs by cause."""
    which = replay.compared
    count, place, total = arena.back.by_count_s[which], arena.back.by_place_s[which], replay.waited_s[which]
    kept = np.maximum(total - count - place, 0.0)
    latency = np.minimum(kept, replay.latency_s)
    turn = np.clip(arena.today.late_s[0, which] - count - place, 0.0, kept - latency)
    parts = np.array([count, place, latency, turn, kept - latency - turn])
    seconds = parts.sum(axis=1)
    over = arena.minutes * SECONDS_PER_MINUTE
    return pl.DataFrame(
        {
            "cause": list(CAUSES), "share": seconds / max(total.sum(), 1e-9), "hours": seconds / SECONDS_PER_HOUR,
            "jobs": (parts > over).sum(axis=1), "meaning": list(CAUSES.values()),
        }
    )  # fmt: skip


def _left_out(arena: Arena, compared: NDArray[np.bool_]) -> pl.DataFrame:
    """Jobs that are not judged, by the first reason that holds."""
    begun, submit = ~np.isnan(arena.asked.start_s), arena.asked.views[AS_TODAY].requests.submit_s
    reason = np.where(submit < 0, "came before the record begins", "larger than the fleet")
    reason = np.where(begun, reason, "never started")[~compared]
    return (
        pl.DataFrame({"reason": reason}, schema={"reason": pl.String})
        .group_by("reason")
        .len("jobs")
        .sort("reason")
    )
