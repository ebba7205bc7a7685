"""Time limits from past runs: one that a stated share of later runs keeps, and how it did on later runs so far."""

from __future__ import annotations

import bisect
import heapq
import math

import numpy as np
import polars as pl

from gpuplanner.sizing.advice.size_risk import FULL_STATES

COVERED_PERCENT = 95
"""Share of later runs that a time limit is to cover."""
MARGIN = 0.75
"""Share by which a limit exceeds the run that it rests on: later runs are not always like earlier ones, and of those
that began lately only the short ones have ended. The smallest multiple of a quarter with which at most 5 % of later
runs outlast the limit on Philly and on ITP; on MIT Supercloud, where it was not chosen, 3.6 % do (9.9 % without)."""


def runs_needed(percent: int = COVERED_PERCENT) -> int:
    """Fewest runs from which a limit can be told: below, even the longest of them covers a smaller share.

    Examples
    --------
    >>> runs_needed(), runs_needed(90)
    (19, 9)
    """
    return next(n for n in range(1, 1000) if _place(n, percent) <= n)


def limit_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Limit that covers most later runs of each group, and how often runs outlasted what those before them gave.

    The next of n + 1 runs that are alike is longer than the k-th shortest of the first n with probability
    (n + 1 - k) / (n + 1), whatever their distribution. The limit rests on the smallest k for which that is at most
    5 %; a run that its limit stopped counts as endless. Each run that began when enough others had ended is held
    against the limit that those others gave then, so that nothing later than it is used.

    References
    ----------
    Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12(1), 1941.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> hours = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=number) for number in range(21)]
    >>> runs = pl.DataFrame({"group": 0, "state": "COMPLETED", "start_time": hours, "run_s": [600.0] * 20 + [3000.0]})
    >>> limit_risks(runs).select("run_p95_s", "limit", "later_runs", "risk_time_out").row(0)
    (600.0, 5280.0, 2, 0.5)
    """
    full = jobs.filter(pl.col("state").is_in(FULL_STATES) & pl.col("run_s").is_not_null()).sort("start_time")
    rows = []
    for (group,), runs in full.group_by("group", maintain_order=True):
        held_s = runs["run_s"].to_numpy()
        needed_s = np.where(runs["state"] == "TIMEOUT", math.inf, held_s)
        ordered = np.sort(needed_s).tolist()
        percentile = ordered[-(-COVERED_PERCENT * len(ordered) // 100) - 1]
        failed = _outlasting(runs["start_time"].dt.epoch("us").to_numpy() / 1e6, held_s, needed_s)
        risk = sum(failed) / len(failed) if failed else None
        rows.append((group, len(ordered), percentile, _limit(ordered), len(failed), risk))
    schema = pl.Schema(
        {
            "group": jobs.schema["group"],
            "limit_runs": pl.Int64(),
            "run_p95_s": pl.Float64(),
            "limit": pl.Float64(),
            "later_runs": pl.Int64(),
            "risk_time_out": pl.Float64(),
        }
    )
    return pl.DataFrame(rows, schema=schema, orient="row")


def _place(runs: int, percent: int = COVERED_PERCENT) -> int:
    """Place in order of length, from 1, of the run that covers the share; beyond the last if none does."""
    return -(-percent * (runs + 1) // 100)


def _limit(ordered: list[float]) -> float | None:
    """Limit from the lengths of runs in order."""
    place = _place(len(ordered))
    if place > len(ordered):
        return None
    limit_s = (1 + MARGIN) * ordered[place - 1]
    # Slurm keeps time limits in minutes.
    return limit_s if math.isinf(limit_s) else math.ceil(limit_s / 60.0 - 1e-9) * 60.0


def _outlasting(start_s: np.ndarray, held_s: np.ndarray, needed_s: np.ndarray) -> list[bool]:
    """Whether each run, in order of start, was longer than the limit from those that had ended; those with a limit."""
    ended: list[float] = []
    running: list[tuple[float, float]] = []
    failed = []
    for start, held, needed in zip(start_s.tolist(), held_s.tolist(), needed_s.tolist(), strict=True):
        while running and running[0][0] <= start:
            bisect.insort(ended, heapq.heappop(running)[1])
        limit = _limit(ended)
        if limit is not None:
            failed.append(needed > limit)
        heapq.heappush(running, (start + held, needed))
    return failed
