"""Make new weeks from old days: a seeded bootstrap of arrival days, the same for every policy."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.errors import refuse
from gpuplanner.units import SECONDS_PER_DAY

SATURDAY = 6
MEASURED, WARM_UP = 0, 1


def bootstrap_days(
    jobs: pl.DataFrame,
    *,
    days: int,
    seed: int,
    replication: int,
    warmup_days: int = 0,
    start_weekday: int = 1,
) -> pl.DataFrame:
    """Draw a day of the history for every day to simulate, and copy its arrivals.

    Working days are drawn from working days and weekends from weekends, with replacement, so that the daily
    course, bursts within a day and the mix of jobs stay as they were; what carries over from one day to the
    next does not. History days without arrivals, between the first and the last one, count as days. Cut off
    days that were recorded in part.

    A draw depends on ``seed``, ``replication`` and the day alone: every policy sees the same jobs (common
    random numbers), and neither a longer run nor a longer warm-up changes the days that both have.

    Parameters
    ----------
    jobs : polars.DataFrame
        History with ``submit_time`` (UTC) and ``job_id``; further columns are kept.
    days : int
        Days to measure.
    seed, replication : int
        Not below 0.
    warmup_days : int
        Days before those, so that the measurement does not begin with an empty fleet. The run starts with
        them: measure from ``warmup_days * 86400`` s on.
    start_weekday : int
        ISO weekday (Monday is 1) of the first measured day.

    Returns
    -------
    polars.DataFrame
        The columns of `jobs` with ``submit_s`` [s from the start of the run] in place of ``submit_time``,
        sorted by it. Ids carry ``#<day>``, where the first measured day is 0 and warm-up days are negative.

    Raises
    ------
    ScenarioError
        If a number is out of range, or a kind of day that is needed is not in the history.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> history = pl.DataFrame({"job_id": ["a", "b"],
    ...     "submit_time": [datetime(2026, 2, 2, 9, tzinfo=UTC), datetime(2026, 2, 3, 12, tzinfo=UTC)]})
    >>> bootstrap_days(history, days=3, seed=1, replication=0).rows()
    [('b#0', 43200.0), ('b#1', 129600.0), ('a#2', 205200.0)]
    """
    _check(jobs, days, seed, replication, warmup_days, start_weekday)
    history = jobs.with_columns(history_day=pl.col("submit_time").dt.date()).with_row_index("row")
    day = pl.col("history_day")
    every_day = history.select(pl.date_range(day.min(), day.max())).to_series()
    number = np.arange(-warmup_days, days)
    wanted = (start_weekday - 1 + number) % 7 + 1 >= SATURDAY
    drawn = _draw(every_day, wanted, _uniform(seed, replication, days, warmup_days))
    calendar = pl.DataFrame({"day": number, "history_day": every_day.gather(drawn)})
    in_day = pl.col("submit_time") - pl.col("history_day").cast(pl.Datetime("us", "UTC"))
    return (
        calendar.join(history, on="history_day")
        .with_columns(
            submit_s=(pl.col("day") + warmup_days) * SECONDS_PER_DAY + in_day.dt.total_microseconds() / 1e6,
            job_id=pl.format("{}#{}", "job_id", "day"),
        )
        .sort("submit_s", "day", "row")
        .drop("row", "day", "history_day", "submit_time")
    )


def _draw(history: pl.Series, wanted: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """For every day to simulate the place of a history day of its kind, which is weekend where wanted."""
    weekend = history.dt.weekday().to_numpy() >= SATURDAY
    drawn = np.empty(len(wanted), np.int64)
    for name, kind in (("working", False), ("weekend", True)):
        days, pool = wanted == kind, np.flatnonzero(weekend == kind)
        if days.any() and not len(pool):
            refuse(
                "bootstrap of arrival days",
                f"a {name} day in the history",
                f"none between {history[0]} and {history[-1]}",
                "Give a longer history, or simulate fewer days.",
            )
        if days.any():
            drawn[days] = pool[(uniform[days] * len(pool)).astype(np.int64)]
    return drawn


def _uniform(seed: int, replication: int, days: int, warmup_days: int) -> np.ndarray:
    """One number in [0, 1) for each day, warm-up days first; each kind is a sequence counted from day 0."""
    measured, warm_up = (
        np.random.default_rng([seed, replication, kind]).random(count)
        for kind, count in ((MEASURED, days), (WARM_UP, warmup_days))
    )
    return np.concatenate([warm_up[::-1], measured])


def _check(
    jobs: pl.DataFrame, days: int, seed: int, replication: int, warmup_days: int, start_weekday: int
) -> None:
    """Refuse numbers out of range and a history without jobs."""
    numbers = f"days={days}, seed={seed}, replication={replication}, warmup_days={warmup_days}"
    sound = days >= 1 and min(seed, replication, warmup_days) >= 0 and 1 <= start_weekday <= 7
    if not (sound and jobs.height):
        refuse(
            "bootstrap of arrival days",
            "a history with jobs, days above 0, seed, replication and warmup_days not below 0, and "
            "start_weekday from 1 (Monday) to 7",
            f"{jobs.height} jobs, {numbers}, start_weekday={start_weekday}",
            "Change them.",
        )
