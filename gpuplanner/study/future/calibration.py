"""Whether the simulator waits as the cluster did: jobs at their submission on today's nodes, and what kept the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.metrics.agreement import NEAR_S, agreement, wait_quantiles
from gpuplanner.plain import to_plain
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
    WaitFigures,
    judge,
    outcome,
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


@dataclass(frozen=True)
class Compared:
    """What was compared: jobs of a source, served again by a fleet of so many GPUs and nodes, and whence it is known.

    ``base`` is what service is counted from, ``latency_s`` what the scheduler takes.
    """

    source: str
    jobs_compared: int
    fleet_gpus: float
    fleet: str
    nodes: int
    inferred: bool
    board: str | None
    queue: str
    base: str
    latency_s: float


@dataclass(frozen=True)
class Overall(WaitFigures):
    """All jobs together, with completion times, from submission to the end."""

    observed_completion_mean_s: float
    simulated_completion_mean_s: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """Simulated beside observed waits.

    - ``facts``: Source, jobs compared, fleet, queue, and where they come from.
    - ``verdict``: A key of :data:`SENTENCES`, of all jobs.
    - ``outcome``: A key of :data:`OUTCOMES`: every size of job by itself.
    - ``sentence``: The verdict with its figures, and what the waits are made of.
    - ``overall``: How the waits of all jobs agree.
    - ``groups``: The same by ``size`` (with the range, and a verdict), ``tenant`` and ``hour`` of submission.
    - ``quantiles``: :func:`gpuplanner.metrics.agreement.wait_quantiles`.
    - ``causes``: ``cause`` (of :data:`CAUSES`), ``share`` of all waiting, ``hours``, ``jobs`` that it kept longer
      than the decision lets them wait, and its ``meaning``.
    - ``left_out``: ``reason`` and ``jobs`` that were not judged.
    - ``jobs``: ``name, tenant, size, hour, gpus, observed_s, simulated_s`` of every job.
    """

    facts: Compared
    verdict: str
    outcome: str
    sentence: str
    overall: Overall
    groups: Mapping[str, pl.DataFrame]
    quantiles: pl.DataFrame
    causes: pl.DataFrame
    left_out: pl.DataFrame
    jobs: pl.DataFrame

    def to_dict(self) -> dict[str, Any]:
        """All but the jobs, ready for JSON."""
        told = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("jobs", "groups")
        }
        told |= {f"by_{name}": group for name, group in self.groups.items()}
        plain: dict[str, Any] = to_plain(told)
        return plain


def calibrate(scenario: Scenario, *, thresholds: Thresholds = USUAL) -> Calibration:
    """Serve the jobs again as they came, on the nodes and layouts that ``compare`` plays, and hold the waits together.

    Examples
    --------
    >>> found = calibrate(Scenario())
    >>> found.outcome, found.verdict, found.facts.fleet
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
    sizes = [{"size": one.size, **asdict(one.figures), "verdict": one.verdict} for one in replay.sizes]
    figures = WaitFigures.of(agreement(jobs), replay.late_s[:, compared])
    run_s = float(asked.views[AS_TODAY].requests.run_s[compared].mean())
    seen, ours = figures.observed_mean_s + run_s, figures.simulated_mean_s + run_s
    verdict, source = judge(figures, thresholds), known.trace.stated.source
    explained = outcome([one.figures for one in replay.sizes], thresholds)
    return Calibration(
        facts=Compared(
            source, jobs.height, asked.nodes.total, known.fleet.note, len(asked.nodes.gpus), asked.nodes.inferred,
            known.fleet.name, arena.queue, asked.base, replay.latency_s,
        ),
        verdict=verdict,
        outcome=UNCHECKED if asked.base == ASSUMED else explained,
        sentence=sentence(verdict, figures, causes) + (CIRCULAR if source == "synthetic" else ""),
        overall=Overall(**asdict(figures), observed_completion_mean_s=seen, simulated_completion_mean_s=ours),
        groups={
            "tenant": agreement(jobs, by="tenant"), "size": pl.DataFrame(sizes, infer_schema_length=None),
            "hour": agreement(jobs, by="hour"),
        },
        quantiles=wait_quantiles(jobs),
        causes=causes,
        left_out=_left_out(arena, compared),
        jobs=jobs,
    )  # fmt: skip


def sentence(verdict: str, figures: WaitFigures, causes: pl.DataFrame) -> str:
    """A verdict with its figures, and what the waits are made of."""
    waited = (
        f", and {figures.waited_within_1h:.0%} of the {figures.waited:,} that waited over "
        f"{NEAR_S / 60:.0f} min within 1 h"
        if figures.waited
        else ""
    )
    ours, seen = figures.simulated_mean_s / 60.0, figures.observed_mean_s / 60.0
    text = (
        f"{SENTENCES[verdict]}: mean {ours:,.1f} min against {seen:,.1f} min observed; "
        f"{figures.within_10min:.0%} of {figures.jobs:,} jobs within 10 min{waited}."
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
