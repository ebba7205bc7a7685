"""The one saving of a decision: promised from the days that a way was tuned on, with an interval for a week to come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuplanner.metrics.intervals import student_t

WEEK_DAYS = 7
LEVEL = 0.9
MOST_ALIKE = 0.6
"""Autocorrelation of days that is believed at most: few days say little about it."""


def promised(daily_saved: NDArray[np.float64], most: float) -> tuple[float, float, float]:
    """What a week to come saves, with an interval: the mean of seven days around the mean of those seen.

    Student's t over days, wider where neighbouring days are alike, and where past weeks missed the days before them by
    more than that.

    Examples
    --------
    >>> value, low, high = promised(np.array([100.0, 120.0] * 7), 5000.0)
    >>> round(value), round(low), round(high)
    (770, 710, 830)
    """
    mean = float(daily_saved.mean())
    value = WEEK_DAYS * mean
    half = WEEK_DAYS * max(by_draw(daily_saved), by_misses(daily_saved))
    return value, max(value - half, 0.0), min(value + half, most)


def by_draw(daily: NDArray[np.float64]) -> float:
    """Half width for the mean of a week to come by the spread of days alone."""
    days = len(daily)
    if days < 2:
        return float(abs(daily).max(initial=0.0))
    apart = daily - daily.mean()
    alike = float((apart[1:] @ apart[:-1]) / max(apart @ apart, 1e-12))
    alike = min(max(alike, 0.0), MOST_ALIKE)
    spread = float(np.sqrt(apart @ apart / (days - 1))) * np.sqrt((1 + alike) / (1 - alike))
    return float(student_t((1 + LEVEL) / 2, days - 1) * spread * np.sqrt(1 / WEEK_DAYS + 1 / days))


def by_misses(daily: NDArray[np.float64]) -> float:
    """Half width by what past weeks missed the mean of all days before them; 0 with fewer than three weeks."""
    missed: Sequence[float] = [
        float(daily[at : at + WEEK_DAYS].mean() - daily[:at].mean())
        for at in range(WEEK_DAYS, len(daily) - WEEK_DAYS + 1, WEEK_DAYS)
    ]
    if len(missed) < 2:
        return 0.0
    # Few weeks: their spread by Student's t around no miss, as a quantile of so few says nothing.
    return float(student_t((1 + LEVEL) / 2, len(missed)) * np.sqrt(np.mean(np.square(missed))))
