"""How much more, or less, a week to come may ask for than the days that were seen."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.metrics import mean_interval
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

WEEK_DAYS = 7
SURE = 0.8
"""Level of two-sided intervals whose upper end must hold the target: nine of ten weeks to come ask for less."""
MOST_ALIKE = 0.6
"""Autocorrelation of days that is believed at most: few days say little about it."""


def heavy_week(daily: NDArray[np.float64], *, level: float = SURE) -> float:
    """How much more than the mean of the days seen a week to come may ask for, at a level of confidence.

    Parameters
    ----------
    daily : array of float, shape (n_days,)
        GPU-hours asked for on each day.
    level : float
        Two-sided level of the interval.

    Returns
    -------
    float
        Factor on the mean, at least 1 and at most 2.

    Examples
    --------
    >>> heavy_week(np.full(14, 300.0))
    1.0
    >>> round(heavy_week(np.array([300.0, 400.0] * 7)), 3)
    1.093
    """
    return min(1.0 + week_spread(daily, level=level), 2.0)


def week_spread(daily: NDArray[np.float64], *, level: float) -> float:
    """Half width of a prediction interval for a week to come, over the mean of the days seen.

    A mean of seven days to come around a mean of the days that were seen, by Student's t, wider where neighbouring
    days are alike (first autocorrelation).

    Parameters
    ----------
    daily : array of float, shape (n_days,)
        GPU-hours asked for on each day.
    level : float
        Two-sided level.

    Examples
    --------
    >>> round(week_spread(np.array([300.0, 400.0] * 7), level=0.9), 3)
    0.122
    """
    mean = float(daily.mean())
    if len(daily) < 2 or mean <= 0:
        return 0.0
    apart = daily - mean
    alike = float((apart[1:] * apart[:-1]).sum() / max((apart**2).sum(), 1e-12))
    alike = min(max(alike, 0.0), MOST_ALIKE)
    high = mean_interval(daily, level=level).high or mean
    return float((high - mean) / mean * np.sqrt((1 + alike) / (1 - alike) * (len(daily) / WEEK_DAYS + 1)))


def past_misses(daily: NDArray[np.float64], days: int) -> NDArray[np.float64]:
    """By how much the week after each past day missed the mean of the days before it.

    Parameters
    ----------
    daily : array of float, shape (n_days,)
        GPU-hours asked for on each day.
    days : int
        Days that a mean is taken of, at most; at least a week is needed.

    Returns
    -------
    array of float
        Week over mean, less 1, for every day that has a week before and after it.

    Examples
    --------
    >>> past_misses(np.array([100.0] * 7 + [150.0] * 7), 14).tolist()
    [0.5]
    """
    found = [
        daily[at : at + WEEK_DAYS].mean() / daily[max(at - days, 0) : at].mean() - 1.0
        for at in range(WEEK_DAYS, len(daily) - WEEK_DAYS + 1)
        if daily[max(at - days, 0) : at].sum() > 0
    ]
    return np.array(found)


def settled(daily: NDArray[np.float64]) -> NDArray[np.float64]:
    """The days from the first week on that asks for at least half of what the middle week does.

    A trace that begins thin says how it was filled, not how demand changes: against its first days any later week is
    many times more.

    Parameters
    ----------
    daily : array of float, shape (n_days,)
        GPU-hours asked for on each day; fewer than a week of them are kept as they are.

    Examples
    --------
    >>> settled(np.array([1.0] * 7 + [100.0] * 14)).tolist() == [1.0] * 3 + [100.0] * 14
    True
    """
    if len(daily) < WEEK_DAYS:
        return daily
    weeks = np.convolve(daily, np.full(WEEK_DAYS, 1 / WEEK_DAYS), "valid")
    return daily[int(np.argmax(weeks >= np.median(weeks) / 2)) :]


def daily_gpu_hours(past: pl.DataFrame, begin: datetime, end: datetime, gpus: pl.Expr) -> NDArray[np.float64]:
    """GPU-hours that jobs would hold on each day if they started when they came."""
    rows = past.select(come=seconds_from(begin, "submit_time"), run="run_s", gpus=gpus.fill_null(0))
    come, gone = rows["come"].to_numpy(), (rows["come"] + rows["run"]).to_numpy()
    days = np.arange((end - begin).days) * SECONDS_PER_DAY
    held = [
        np.clip(np.minimum(gone, day + SECONDS_PER_DAY) - np.maximum(come, day), 0.0, None)
        @ rows["gpus"].to_numpy()
        for day in days
    ]
    return np.array(held) / SECONDS_PER_HOUR


def seconds_from(instant: datetime, column: str) -> pl.Expr:
    """Time of a column since an instant [s]."""
    return (pl.col(column) - pl.lit(instant)).dt.total_microseconds() / 1e6
