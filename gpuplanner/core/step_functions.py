"""Exact time integrals of step functions given by intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples

TICK = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_TICKS = 3_600_000_000
"""Microseconds in an hour; all instants in here are whole microseconds, so nothing is rounded."""
MINUTE_TICKS = HOUR_TICKS // 60
QUARTER_HOUR_TICKS = HOUR_TICKS // 4
BLOCK = 1 << 17
"""Intervals that are summed at a time: what is worked out on the way stays in the cache."""


def slot_sums(
    begin: np.ndarray,
    end: np.ndarray,
    weight: np.ndarray,
    group: np.ndarray,
    *,
    groups: int,
    slots: int,
    slot_ticks: int,
) -> np.ndarray:
    """Sum weight x overlap of intervals with the slots of a grid, by group.

    Each interval is two events; a cumulative sum turns them into the whole slots between them, so the cost
    is the number of intervals plus the number of cells, however long the intervals are.

    Examples
    --------
    >>> begin, end, two, row = np.array([5]), np.array([25]), np.array([2]), np.array([0])
    >>> slot_sums(begin, end, two, row, groups=1, slots=3, slot_ticks=10)
    array([[10, 20, 10]])
    """
    exact = np.issubdtype(weight.dtype, np.integer)
    weight = weight.astype(np.int64 if exact else np.float64, copy=False)
    # An end on the last edge falls into a slot behind the grid, and its whole slots begin one further.
    width = slots + 2
    part = np.zeros(groups * width, dtype=weight.dtype)
    whole = np.zeros(groups * width, dtype=weight.dtype)
    for sign in (1, -1):
        for first in range(0, len(weight), BLOCK):
            rows = slice(first, first + BLOCK)
            instant = np.clip(begin[rows], 0, slots * slot_ticks)
            if sign < 0:
                instant = np.clip(end[rows], instant, slots * slot_ticks)
            slot = instant // slot_ticks
            cell = group[rows].astype(np.int64) * width + slot
            np.add.at(part, cell, sign * weight[rows] * ((slot + 1) * slot_ticks - instant))
            np.add.at(whole, cell + 1, sign * weight[rows])
    whole_slots = np.cumsum(whole.reshape(groups, width), axis=1) * slot_ticks
    sums: np.ndarray = part.reshape(groups, width) + whole_slots
    return sums[:, :slots]


def ticks(times: pl.Series, origin: datetime) -> np.ndarray:
    """Microseconds from an origin to each instant; there must be no null.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> ticks(pl.Series([day + timedelta(hours=1)]), day)
    array([3600000000])
    """
    return times.dt.timestamp("us").to_numpy().astype(np.int64) - (origin - EPOCH) // TICK


def untimed() -> pl.Expr:
    """Whether it is not known until when a job of table ``schemas.Jobs`` held, or asked for, its GPUs.

    Without an end, a job that runs holds its GPUs to this day and one that is pending waits for them. Any other
    is over, the source does not say since when: to count it up to the end would invent GPU-hours.

    Examples
    --------
    >>> jobs = {"state": ["RUNNING", "PENDING", "FAILED"], "start_time": [1, None, 1], "end_time": None}
    >>> pl.DataFrame(jobs).select(untimed()).to_series().to_list()
    [False, False, True]
    """
    runs = (pl.col("state") == "RUNNING") & pl.col("start_time").is_not_null()
    return pl.col("end_time").is_null() & ~runs & (pl.col("state") != "PENDING")


def waiting_since() -> pl.Expr:
    """When a job of table ``schemas.Jobs`` began to wait for GPUs.

    A job that depends on others, or is to begin later, is submitted before it is eligible; until then it waits for no
    GPU. Where it is not known when it became eligible, it waits from its submission.

    Examples
    --------
    >>> jobs = {"submit_time": [1, 1, 1], "eligible_time": [3, None, 9], "start_time": [5, 5, 5]}
    >>> pl.DataFrame(jobs).select(waiting_since()).to_series().to_list()
    [3, 1, 5]
    """
    eligible = pl.min_horizontal("eligible_time", "start_time")
    known = pl.col("eligible_time").is_not_null()
    return pl.when(known).then(pl.max_horizontal("submit_time", eligible)).otherwise("submit_time")


def require_zone(*instants: datetime | None, where: str) -> None:
    """Refuse instants without a time zone; None is none.

    Examples
    --------
    >>> require_zone(datetime(2026, 2, 2, tzinfo=UTC), None, where="demand")
    """
    naive = [str(instant) for instant in instants if instant is not None and instant.tzinfo is None]
    if naive:
        expected = "instants with a time zone"
        raise SchemaError(f"{where}: start and end", expected, examples(naive), "Add tzinfo=UTC.")


def slot_count(start: datetime, end: datetime, interval_hours: float, *, where: str) -> int:
    """Number of slots from `start` to `end`, after checking that they form a grid.

    Examples
    --------
    >>> from datetime import UTC
    >>> slot_count(datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC), 1.0, where="demand")
    24
    """
    require_zone(start, end, where=where)
    length, step = (end - start) // TICK, slot_ticks(interval_hours, where=where)
    if (start - EPOCH) // TICK % QUARTER_HOUR_TICKS or length <= 0 or length % step:
        expected = f"start on a quarter of an hour and whole intervals of {interval_hours:g} h to the end"
        todo = "Move start or end to the boundary of an interval."
        raise SchemaError(f"{where}: start and end", expected, f"{start} and {end}", todo)
    return length // step


def slot_ticks(interval_hours: float, *, where: str) -> int:
    """Length of a slot in microseconds; slots of a day or less must divide it, longer ones be whole days.

    Examples
    --------
    >>> slot_ticks(0.25, where="demand")
    900000000
    """
    step = round(interval_hours * HOUR_TICKS)
    day = 24 * HOUR_TICKS
    if step <= 0 or step % MINUTE_TICKS or ((day % step) and (step % day)):
        expected = "whole minutes that divide a day, or whole days"
        todo = "Use for example 0.25, 1, 6, 24 or 168."
        raise SchemaError(f"{where}: interval_hours", expected, f"{interval_hours!r}", todo)
    return step
