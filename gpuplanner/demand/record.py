"""What a record shows of itself: until when it is complete, and on which days its level changed."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np
import polars as pl

MISSING = 0.1
"""Share of the demand that may be missing at the end of what is called complete."""
SHORTEST_DAYS = 3
"""A level lasts at least as long; less is a peak."""
PENALTY = 4.0
"""Of one more level, in squares of the noise of a day times the logarithm of the days: 3 would find chance levels in
noise that lasts from one day into the next."""
WEEKS = 3
"""From so many weeks on the usual difference of each day of the week is taken out first."""


def complete_until(jobs: pl.DataFrame, end: datetime) -> datetime:
    """First instant from which more than a tenth of the demand is of jobs that are not in the record.

    A record that holds a job that still runs lists jobs as they begin, and is complete to its end. One that holds
    only ended jobs lacks those that ended later. Of the GPU-hours of its jobs, the share that lies more than x
    hours behind their start is what is missing x hours before its end.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``start_time``, ``end_time`` and ``gpus``.
    end : datetime
        End of the record.

    Returns
    -------
    datetime
        `end` itself, or a full hour before it, at most half of the record before.

    Examples
    --------
    >>> from datetime import UTC
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in range(1, 21)]
    >>> jobs = pl.DataFrame({"start_time": days, "end_time": [day + timedelta(hours=20) for day in days], "gpus": 1.0})
    >>> complete_until(jobs, datetime(2026, 2, 21, tzinfo=UTC))
    datetime.datetime(2026, 2, 20, 6, 0, tzinfo=datetime.timezone.utc)
    """
    if jobs["end_time"].null_count() or jobs.is_empty():
        return end
    begun = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0)
    hours = (begun["end_time"] - begun["start_time"]).dt.total_microseconds().to_numpy() / 3.6e9
    gpus = begun["gpus"].to_numpy()
    total = float((gpus * hours).sum())
    if total == 0:
        return end
    longest = (end - begun.select(pl.col("start_time").min()).item()) / timedelta(hours=2)
    low, high = 0.0, longest
    for _ in range(50):
        middle = (low + high) / 2
        left = float((gpus * np.maximum(hours - middle, 0.0)).sum())
        low, high = (middle, high) if left > MISSING * total else (low, middle)
    cut = end - timedelta(hours=high)
    return cut.replace(minute=0, second=0, microsecond=0)


def change_points(demand: pl.DataFrame) -> pl.DataFrame:
    """Days on which the level of a series changed.

    Parameters
    ----------
    demand : polars.DataFrame
        ``ds`` and ``y`` of one series.

    Returns
    -------
    polars.DataFrame
        ``ds`` (the first day of a new level) and ``before``, ``after``: the mean of the levels on both sides.

    References
    ----------
    Killick, Fearnhead, Eckley, "Optimal detection of changepoints with a linear computational cost", Journal of the
    American Statistical Association 107(500), 2012, doi 10.1080/01621459.2012.737745.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> day = [datetime(2026, 2, 1, tzinfo=UTC) + timedelta(days=number) for number in range(20)]
    >>> level = [5.0, 6.0] * 5 + [15.0, 16.0] * 5
    >>> change_points(pl.DataFrame({"ds": day, "y": level}))["ds"].dt.day().to_list()
    [11]
    """
    days = demand.sort("ds").group_by_dynamic("ds", every="1d").agg(pl.col("y").mean())
    means = days["y"].to_numpy()
    cuts = _pelt(_without_week(means))
    edges = [0, *cuts, len(means)]
    level = [float(means[low:high].mean()) for low, high in pairwise(edges) if high > low]
    return pl.DataFrame(
        {"ds": days["ds"].gather(cuts), "before": level[: len(cuts)], "after": level[1 : len(cuts) + 1]},
        schema_overrides={"before": pl.Float64, "after": pl.Float64},
    )


def _without_week(means: np.ndarray) -> np.ndarray:
    """Daily means without what is usual on each day of the week."""
    if len(means) < 7 * WEEKS:
        return means
    around = np.array([np.median(means[max(day - 3, 0) : day + 4]) for day in range(len(means))])
    usual = [np.median((means - around)[day::7]) for day in range(7)]
    return np.asarray(means - np.resize(usual, len(means)))


def _pelt(values: np.ndarray) -> list[int]:
    """Where the mean changes, each level as long as :data:`SHORTEST_DAYS` at least."""
    count = len(values)
    if count < 2 * SHORTEST_DAYS:
        return []
    noise = np.median(np.abs(np.diff(values))) / (0.6745 * np.sqrt(2))  # 0.6745: the quartile of a normal
    noise = max(float(noise), 1e-3 * float(np.abs(values).max()), 1e-12)
    first = np.concatenate([[0.0], np.cumsum(values / noise)])
    second = np.concatenate([[0.0], np.cumsum((values / noise) ** 2)])

    def cost(low: np.ndarray, high: int) -> np.ndarray:
        total = first[high] - first[low]
        return np.asarray(second[high] - second[low] - total**2 / (high - low))

    penalty = PENALTY * np.log(count)
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    last = np.zeros(count + 1, dtype=np.int64)
    open_at = np.array([0])
    for high in range(SHORTEST_DAYS, count + 1):
        whole = best[open_at] + cost(open_at, high)
        best[high], last[high] = whole.min() + penalty, open_at[whole.argmin()]
        open_at = np.append(open_at[whole <= best[high]], high - SHORTEST_DAYS + 1)
    cuts, high = [], count
    while (high := int(last[high])) > 0:
        cuts.append(high)
    return cuts[::-1]
