"""Whether the replay explains the waits that were seen: every size of job by itself, on today's nodes and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.metrics.agreement import agreement
from gpuplanner.study.decision.arena import Arena
from gpuplanner.study.decision.asked import AS_TODAY
from gpuplanner.study.decision.types import ASSUMED, QUEUE

REPRODUCES, OVER, UNDER = "reproduces", "overestimates", "underestimates"
ON_AVERAGE, UNTOLD, UNSEEN = "right on average only", "too few to judge", "no waits observed"
EXPLAINED, CONTRADICTED, UNCHECKED = "explained", "contradicted", "cannot be checked"
AT_ONCE_S = 60.0
"""Who started within this without any lack of room shows how long the scheduler takes [s]."""


@dataclass(frozen=True)
class Thresholds:
    """When waits count as reproduced.

    - ``least_jobs``: Fewer jobs say nothing.
    - ``least_waited``: Fewer jobs that waited over 10 minutes say nothing about waiting.
    - ``mean_factor``: Between the two mean waits, both with a minute added, at most.
    - ``within_10min``: Share of all jobs explained within 10 minutes, at least.
    - ``waited_within_1h``: Share of the jobs that waited explained within an hour, at least.
    """

    least_jobs: int = 100
    least_waited: int = 20
    mean_factor: float = 1.25
    within_10min: float = 0.8
    waited_within_1h: float = 0.5


@dataclass(frozen=True)
class WaitFigures:
    """Simulated beside observed waits of some jobs.

    The measures of :func:`gpuplanner.metrics.agreement.agreement`, and the least and the largest simulated mean of any
    replay.
    """

    jobs: int
    waited: int
    observed_mean_s: float
    observed_p50_s: float
    observed_p95_s: float
    simulated_mean_s: float
    simulated_p50_s: float
    simulated_p95_s: float
    median_error_s: float
    mean_absolute_error_s: float
    skill: float | None
    typical_factor: float
    within_10min: float
    within_1h: float
    waited_within_1h: float | None
    simulated_low_s: float
    simulated_high_s: float

    @classmethod
    def of(cls, measures: pl.DataFrame, late_s: NDArray[np.float64]) -> WaitFigures:
        """From one row of measures and the waits in each replay of the same jobs, of shape (n_draws, n_jobs)."""
        means = late_s.mean(axis=1)
        ends = (float(means.min()), float(means.max()))
        return cls(**measures.row(0, named=True), simulated_low_s=ends[0], simulated_high_s=ends[1])


@dataclass(frozen=True)
class SizeJudged:
    """The jobs of one size class: how their waits agree, and the verdict on that."""

    size: str
    figures: WaitFigures
    verdict: str


@dataclass(frozen=True, eq=False)
class Replayed:
    """Jobs that came at their submission, on today's fleet.

    - ``compared``: Jobs that were seen to start and start in every replay.
    - ``waited_s``, shape (n_jobs,): Seen from submission to start.
    - ``latency_s``: What every job waits for the scheduler.
    - ``late_s``, shape (n_draws, n_jobs): Waits in each replay, the latency included.
    - ``sizes``: One for each size class that was compared.
    """

    compared: NDArray[np.bool_]
    waited_s: NDArray[np.float64]
    latency_s: float
    late_s: NDArray[np.float64]
    sizes: tuple[SizeJudged, ...]


def bases(arena: Arena) -> tuple[Arena, Arena | None, str | None]:
    """The arena that a decision is made in, the one of the other base, and why the queue does not lead.

    The queue is a base where the replay explains the waits of jobs, and no size of them is contradicted. It leads where
    every size in which somebody waited is reproduced job by job.
    """
    if arena.base == ASSUMED or arena.played_waits_s is not None:
        return arena, None, None
    queue = replace(arena, base=QUEUE)
    found = replayed(queue)
    if outcome([one.figures for one in found.sizes]) != EXPLAINED:
        return arena, None, None
    open_ones = [
        f"{one.size} ({one.verdict})"
        for one in found.sizes
        if one.verdict != REPRODUCES and (one.figures.waited or one.figures.within_10min < USUAL.within_10min)
    ]
    if not open_ones:
        return queue, arena, None
    return arena, queue, f"the replay does not explain every size: {', '.join(open_ones)}"


USUAL = Thresholds()


def replayed(arena: Arena, thresholds: Thresholds = USUAL) -> Replayed:
    """Hold the waits of today's fleet in an arena of base ``queue`` beside those that were seen."""
    waited = np.maximum(arena.asked.start_s - arena.asked.views[AS_TODAY].requests.submit_s, 0.0)
    compared = arena.judged & np.isfinite(arena.today.late_s).all(axis=0)
    kept = np.maximum(waited - arena.back.by_count_s - arena.back.by_place_s, 0.0)
    at_once = compared & (arena.back.by_count_s + arena.back.by_place_s == 0.0) & (waited <= AT_ONCE_S)
    latency = float(np.median(kept[at_once])) if at_once.any() else 0.0
    late = arena.today.late_s + latency
    jobs = pl.DataFrame(
        {
            "size": pl.Series([arena.classes[number] for number in arena.size], dtype=pl.Enum(arena.classes)),
            "observed_s": waited,
            "simulated_s": late[0],
        }
    ).filter(compared)
    sizes = []
    for row in agreement(jobs, by="size").iter_slices(1) if compared.any() else ():
        size = row["size"].item()
        mine = compared & (arena.size == arena.classes.index(size))
        figures = WaitFigures.of(row.drop("size"), late[:, mine])
        sizes.append(SizeJudged(size, figures, judge(figures, thresholds)))
    return Replayed(compared, waited, latency, late, tuple(sizes))


def judge(figures: WaitFigures, thresholds: Thresholds) -> str:
    """The verdict on waits of some jobs: one of the words above, ``REPRODUCES`` and so on."""
    if not figures.observed_mean_s:
        return UNSEEN
    if figures.jobs < thresholds.least_jobs:
        return UNTOLD
    observed = figures.observed_mean_s + 60.0
    if figures.simulated_low_s + 60.0 > thresholds.mean_factor * observed:
        return OVER
    if observed > thresholds.mean_factor * (figures.simulated_high_s + 60.0):
        return UNDER
    if figures.waited < thresholds.least_waited:
        return UNTOLD
    near = figures.within_10min >= thresholds.within_10min
    soon = figures.waited_within_1h is not None and figures.waited_within_1h >= thresholds.waited_within_1h
    return REPRODUCES if near and soon else ON_AVERAGE


def outcome(sizes: Sequence[WaitFigures], thresholds: Thresholds = USUAL) -> str:
    """What the figures of each size mean for a decision: a key of :data:`OUTCOMES`.

    Few jobs prove no simulator right; but where it is wrong about those that there are, it does not explain them.
    Where nobody waited for 10 minutes, a simulator in which nobody waits is not contradicted.
    """
    for one in sizes:
        told = judge(replace(one, jobs=max(one.jobs, thresholds.least_jobs)), thresholds)
        if told == OVER or (told == UNDER and one.waited):
            return CONTRADICTED
    verdicts = {judge(one, thresholds) for one in sizes}
    return EXPLAINED if verdicts & {REPRODUCES, ON_AVERAGE} else UNCHECKED
