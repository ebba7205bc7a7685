"""Whether the replay explains the waits that were seen: every size of job by itself, on today's nodes and layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
class Replayed:
    """Jobs that came at their submission, on today's fleet.

    Attributes
    ----------
    compared : array of bool
        Jobs that were seen to start and start in every replay.
    waited_s : array of float, shape (n_jobs,)
        Seen from submission to start.
    latency_s : float
        What every job waits for the scheduler.
    late_s : array of float, shape (n_draws, n_jobs)
        Waits in each replay, the latency included.
    sizes : list of dict
        For each size class the figures of :func:`gpuplanner.metrics.agreement.agreement`, with ``simulated_low_s``,
        ``simulated_high_s`` over replays and the ``verdict``.
    """

    compared: NDArray[np.bool_]
    waited_s: NDArray[np.float64]
    latency_s: float
    late_s: NDArray[np.float64]
    sizes: list[dict[str, Any]]


def bases(arena: Arena) -> tuple[Arena, Arena | None, str | None]:
    """The arena that a decision is made in, the one of the other base, and why the queue does not lead.

    The queue is a base where the replay explains the waits of jobs, and no size of them is contradicted. It leads where
    every size in which somebody waited is reproduced job by job.
    """
    if arena.base == ASSUMED or arena.played_waits_s is not None:
        return arena, None, None
    queue = replace(arena, base=QUEUE)
    found = replayed(queue)
    if outcome(found.sizes) != EXPLAINED:
        return arena, None, None
    open_ones = [
        f"{row['size']} ({row['verdict']})"
        for row in found.sizes
        if row["verdict"] != REPRODUCES and (row["waited"] or row["within_10min"] < USUAL.within_10min)
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
    for row in agreement(jobs, by="size").to_dicts() if compared.any() else ():
        mine = compared & (arena.size == arena.classes.index(row["size"]))
        figures = row | range_of(late[:, mine])
        sizes.append(figures | {"verdict": judge(figures, thresholds)})
    return Replayed(compared, waited, latency, late, sizes)


def range_of(late_s: NDArray[np.float64]) -> dict[str, float]:
    """The least and the largest mean wait of any replay."""
    means = late_s.mean(axis=1)
    return {"simulated_low_s": float(means.min()), "simulated_high_s": float(means.max())}


def judge(row: Mapping[str, Any], thresholds: Thresholds) -> str:
    """Give the verdict on figures of :func:`~gpuplanner.metrics.agreement.agreement`, and their range over replays.

    Examples
    --------
    >>> figures = {"jobs": 500, "waited": 90, "observed_mean_s": 600.0, "simulated_mean_s": 1200.0}
    >>> judge(figures, Thresholds())
    'overestimates'
    """
    if not row["observed_mean_s"]:
        return UNSEEN
    if row["jobs"] < thresholds.least_jobs:
        return UNTOLD
    mean, observed = row["simulated_mean_s"], row["observed_mean_s"] + 60.0
    low, high = (60.0 + row.get(f"simulated_{end}_s", mean) for end in ("low", "high"))
    if low > thresholds.mean_factor * observed:
        return OVER
    if observed > thresholds.mean_factor * high:
        return UNDER
    if row["waited"] < thresholds.least_waited:
        return UNTOLD
    near = row["within_10min"] >= thresholds.within_10min
    return REPRODUCES if near and row["waited_within_1h"] >= thresholds.waited_within_1h else ON_AVERAGE


def outcome(rows: Sequence[Mapping[str, Any]], thresholds: Thresholds = USUAL) -> str:
    """What the figures of each size mean for a decision: a key of :data:`OUTCOMES`.

    Few jobs prove no simulator right; but where it is wrong about those that there are, it does not explain them.
    Where nobody waited for 10 minutes, a simulator in which nobody waits is not contradicted.

    Examples
    --------
    >>> days = {"jobs": 65, "waited": 12, "observed_mean_s": 43_000.0, "simulated_mean_s": 0.0}
    >>> judge(days, Thresholds()), outcome([days])
    ('too few to judge', 'contradicted')
    """
    told = [judge({**row, "jobs": max(row["jobs"], thresholds.least_jobs)}, thresholds) for row in rows]
    if any(
        found == OVER or (found == UNDER and row["waited"]) for found, row in zip(told, rows, strict=True)
    ):
        return CONTRADICTED
    verdicts = {judge(row, thresholds) for row in rows}
    return EXPLAINED if verdicts & {REPRODUCES, ON_AVERAGE} else UNCHECKED
