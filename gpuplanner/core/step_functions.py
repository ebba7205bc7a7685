"""Exact time integrals of step functions over a grid of intervals, and checks of such grids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples

ONE_MICROSECOND = timedelta(microseconds=1)
"""Time resolution of all sums: one microsecond."""
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Time 0 of Unix time: 1 January 1970, UTC."""
US_PER_HOUR = 3_600_000_000
"""Microseconds in an hour; all times are whole microseconds, so nothing is rounded."""
US_PER_MINUTE = US_PER_HOUR // 60
"""Microseconds in a minute."""
US_PER_QUARTER_HOUR = US_PER_HOUR // 4
"""Microseconds in 15 minutes."""
SUM_BLOCK_ROWS = 1 << 17
"""Time spans (rows) that are summed at a time, so that intermediate arrays stay in the CPU cache."""


def sum_overlap_by_interval(
    begin: np.ndarray,
    end: np.ndarray,
    weight: np.ndarray,
    group: np.ndarray,
    *,
    n_groups: int,
    n_intervals: int,
    interval_ticks: int,
) -> np.ndarray:
    """Sum weight times overlap of time spans with the intervals of a grid, by group.

    Each span is two events; a cumulative sum fills the intervals between them, so the cost is the number of spans plus
    the number of grid cells, however long the spans are.

    Parameters
    ----------
    begin, end : numpy.ndarray, shape (n_spans,)
        Begin and end of each span, from the origin of the grid. [µs]
    weight : numpy.ndarray, shape (n_spans,)
        Height of the step function during the span; integers are summed exactly.
    group : numpy.ndarray, shape (n_spans,)
        Index of the group of each span.
    n_groups, n_intervals : int
        Shape of the result.
    interval_ticks : int
        Length of an interval. [µs]

    Returns
    -------
    numpy.ndarray, shape (n_groups, n_intervals)
        Sums of weight times time. [weight x µs]

    Examples
    --------
    >>> begin, end, two, row = np.array([5]), np.array([25]), np.array([2]), np.array([0])
    >>> sum_overlap_by_interval(begin, end, two, row, n_groups=1, n_intervals=3, interval_ticks=10)
    array([[10, 20, 10]])
    """
    exact = np.issubdtype(weight.dtype, np.integer)
    weight = weight.astype(np.int64 if exact else np.float64, copy=False)
    # An end on the last edge falls into a slot behind the grid, and its whole slots begin one further.
    width = n_intervals + 2
    partial = np.zeros(n_groups * width, dtype=weight.dtype)
    full = np.zeros(n_groups * width, dtype=weight.dtype)
    for sign in (1, -1):
        for first in range(0, len(weight), SUM_BLOCK_ROWS):
            rows = slice(first, first + SUM_BLOCK_ROWS)
            instant = np.clip(begin[rows], 0, n_intervals * interval_ticks)
            if sign < 0:
                instant = np.clip(end[rows], instant, n_intervals * interval_ticks)
            interval = instant // interval_ticks
            cell = group[rows].astype(np.int64) * width + interval
            np.add.at(partial, cell, sign * weight[rows] * ((interval + 1) * interval_ticks - instant))
            np.add.at(full, cell + 1, sign * weight[rows])
    full_intervals = np.cumsum(full.reshape(n_groups, width), axis=1) * interval_ticks
    sums: np.ndarray = partial.reshape(n_groups, width) + full_intervals
    return sums[:, :n_intervals]


def ticks_since(times: pl.Series, origin: datetime) -> np.ndarray:
    """Return the microseconds from an origin to each time; there must be no null.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> ticks_since(pl.Series([day + timedelta(hours=1)]), day)
    array([3600000000])
    """
    return times.dt.timestamp("us").to_numpy().astype(np.int64) - (origin - UNIX_EPOCH) // ONE_MICROSECOND


def has_unknown_end() -> pl.Expr:
    """Whether a row of table ``schemas.Jobs`` lacks an end although the job is over.

    A running job without an end still has its GPUs, and a pending one still waits. Any other job without an end is over
    since an unknown time: counting it up to the end of the data would invent GPU-hours.

    Examples
    --------
    >>> jobs = {"state": ["RUNNING", "PENDING", "FAILED"], "start_time": [1, None, 1], "end_time": None}
    >>> pl.DataFrame(jobs).select(has_unknown_end()).to_series().to_list()
    [False, False, True]
    """
    runs = (pl.col("state") == "RUNNING") & pl.col("start_time").is_not_null()
    return pl.col("end_time").is_null() & ~runs & (pl.col("state") != "PENDING")


def waiting_since() -> pl.Expr:
    """Time from which a row of table ``schemas.Jobs`` waits for GPUs.

    A job with a dependency or a begin time is submitted before it is eligible, and until then does not wait for GPUs.
    Without an eligible time it waits from its submission.

    Examples
    --------
    >>> jobs = {"submit_time": [1, 1, 1], "eligible_time": [3, None, 9], "start_time": [5, 5, 5]}
    >>> pl.DataFrame(jobs).select(waiting_since()).to_series().to_list()
    [3, 1, 5]
    """
    eligible = pl.min_horizontal("eligible_time", "start_time")
    is_known = pl.col("eligible_time").is_not_null()
    return pl.when(is_known).then(pl.max_horizontal("submit_time", eligible)).otherwise("submit_time")


def require_time_zone(*instants: datetime | None, source: str) -> None:
    """Raise :class:`SchemaError` for times without a time zone; None is ignored.

    Examples
    --------
    >>> require_time_zone(datetime(2026, 2, 2, tzinfo=UTC), None, source="demand")
    """
    naive = [str(instant) for instant in instants if instant is not None and instant.tzinfo is None]
    if naive:
        raise SchemaError(f"{source}: start and end", "instants with a time zone", examples(naive), "Add tzinfo=UTC.")


def count_intervals(start: datetime, end: datetime, interval_hours: float, *, source: str) -> int:
    """Count the intervals from `start` to `end`, after checking that they form a grid.

    Parameters
    ----------
    start, end : datetime
        Bounds of the grid, with a time zone.
    interval_hours : float
        Length of an interval. [h]
    source : str
        Origin of the grid, for the message.

    Examples
    --------
    >>> from datetime import UTC
    >>> count_intervals(datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC), 1.0, source="demand")
    24
    """
    require_time_zone(start, end, source=source)
    length, step = (end - start) // ONE_MICROSECOND, interval_ticks(interval_hours, source=source)
    if (start - UNIX_EPOCH) // ONE_MICROSECOND % US_PER_QUARTER_HOUR or length <= 0 or length % step:
        expected = f"start on a quarter of an hour and whole intervals of {interval_hours:g} h to the end"
        todo = "Move start or end to the boundary of an interval."
        raise SchemaError(f"{source}: start and end", expected, f"{start} and {end}", todo)
    return length // step


def interval_ticks(interval_hours: float, *, source: str) -> int:
    """Return the length of an interval [µs]; up to a day it must divide a day, above it be whole days.

    Examples
    --------
    >>> interval_ticks(0.25, source="demand")
    900000000
    """
    step = round(interval_hours * US_PER_HOUR)
    day = 24 * US_PER_HOUR
    if step <= 0 or step % US_PER_MINUTE or ((day % step) and (step % day)):
        expected = "whole minutes that divide a day, or whole days"
        todo = "Use for example 0.25, 1, 6, 24 or 168."
        raise SchemaError(f"{source}: interval_hours", expected, f"{interval_hours!r}", todo)
    return step
