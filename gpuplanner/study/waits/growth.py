"""How fast the submitted work grows, how much more load the GPUs carry, and when they are exhausted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from typing import TypeAlias

import numpy as np

from gpuplanner.simulate.slices.world import Floats
from gpuplanner.study.waits.curve import DAYS_A_WEEK, INTERVAL
from gpuplanner.study.waits.readings import SURE, WaitModel, WaitTarget
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

MIN_WEEKS = 6
"""With fewer whole weeks the growth cannot be told from the noise of a week."""
GROWTH_DRAWS = 4000
LOAD_DRAWS = 10
LOAD_STEP = 2**0.25
MAX_LOAD = 4.0
"""Loads are looked at up to so many times today's, and down to its inverse."""
HALVINGS = 3
"""How often the step of the load at which the target breaks is halved: to 2 % of the load."""
HORIZON_WEEKS = 52
MIN_PROBABILITY = 0.5
"""An exhaustion that is less likely within the horizon gets no date."""

Day: TypeAlias = date


@dataclass(frozen=True)
class WeeklyGrowth:
    """Growth of the submitted work a week.

    - ``weeks``: Whole weeks of the record.
    - ``value``, ``low``, ``high``: Growth and its 80 % interval; 0.05 for 5 % a week. None where there is a reason.
    - ``reason``: Why there is none.
    """

    weeks: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    slopes: Floats = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)

    @property
    def slope(self) -> float:
        """Growth of the logarithm a week, 0 where the interval does not exclude none."""
        return math.log1p(self.value or 0.0) if (self.low or 0.0) * (self.high or 0.0) > 0 else 0.0


@dataclass(frozen=True)
class Headroom:
    """Factor of load at which the wait target breaks, and its 80 % interval over drawn records."""

    factor: float
    low: float
    high: float
    factors: Floats = field(repr=False, compare=False)


@dataclass(frozen=True)
class Exhaustion:
    """When the growing load breaks the wait target, or why no date is given.

    - ``date``: Day by which it does as likely as not.
    - ``probability``: Chance that it does within a year after the record.
    - ``order_by``: Day on which more GPUs have to be ordered.
    - ``reason``: Why there is no date.
    """

    date: Day | None = None
    probability: float | None = None
    order_by: Day | None = None
    reason: str | None = None


def weekly_work(model: WaitModel) -> Floats:
    """GPU-hours of the jobs that were submitted in each whole week of the record, oldest first."""
    asked, waits = model.asked, model.waits
    hours = asked.gpus() * asked.jobs["run_s"].to_numpy() / SECONDS_PER_HOUR
    week_s = DAYS_A_WEEK * SECONDS_PER_DAY
    weeks = int(asked.seen_s / week_s + 1e-9)
    back = np.ceil((asked.seen_s - (waits.arrival_s - waits.delay_s)) / week_s).astype(np.int64) - 1
    counted = waits.judged & (back >= 0) & (back < weeks)
    return np.bincount(weeks - 1 - back[counted], hours[counted], weeks).astype(np.float64)


def fit_growth_per_week(work: Floats) -> WeeklyGrowth:
    """Fit a line to the logarithm of the weekly work; the interval is that of least squares.

    Examples
    --------
    >>> growth = fit_growth_per_week(100 * 1.05 ** np.arange(8) * np.array([1.01, 0.99] * 4))
    >>> round(growth.value, 2), 0.03 < growth.low < growth.high < 0.07
    (0.05, True)
    >>> fit_growth_per_week(np.ones(3)).reason
    '3 whole weeks are observed, 6 are needed'
    """
    weeks = len(work)
    if weeks < MIN_WEEKS:
        return WeeklyGrowth(weeks, reason=f"{weeks} whole weeks are observed, {MIN_WEEKS} are needed")
    if not (work > 0).all():
        return WeeklyGrowth(weeks, reason="in a whole week no work was submitted")
    week, logs = np.arange(weeks) - (weeks - 1) / 2, np.log(work)
    slope = float(week @ logs / (week @ week))
    left = logs - logs.mean() - slope * week
    error = math.sqrt(float(left @ left) / (weeks - 2) / float(week @ week))
    slopes = slope + error * np.random.default_rng(3).standard_t(weeks - 2, GROWTH_DRAWS)
    low, high = np.expm1(np.quantile(slopes, INTERVAL)).tolist()
    return WeeklyGrowth(weeks, math.expm1(slope), low, high, slopes=slopes)


def measure_headroom(model: WaitModel, target: WaitTarget, growth: WeeklyGrowth) -> Headroom | None:
    """Find the load at which a size of job misses the target; None where none meets it under any load.

    Jobs are left out or repeated, in drawn records of the load of the middle of the record: growth that is shown is
    taken out. Sizes that miss the target under the least load as well are not looked at.
    """
    fleet, seen_s = model.asked.fleet, model.asked.seen_s
    weeks = (model.waits.arrival_s - seen_s / 2) / (DAYS_A_WEEK * SECONDS_PER_DAY)
    level = np.exp(-growth.slope * weeks)

    def waits(load: float, number: int) -> Floats:
        return model.draw(fleet, number, load=load * level)

    least = np.array([waits(1 / MAX_LOAD, number) for number in range(LOAD_DRAWS)])
    sizes = (least <= target.target_s).mean(axis=0) >= SURE
    if not sizes.any():
        return None

    @cache
    def meets(load: float, number: int) -> bool:
        return bool((waits(load, number)[sizes] <= target.target_s).all())

    factors = []
    for number in range(LOAD_DRAWS):
        low = high = 1.0
        met = meets(1.0, number)
        while low > 1 / MAX_LOAD and high < MAX_LOAD and meets(high if met else low, number) == met:
            low, high = (high, high * LOAD_STEP) if met else (low / LOAD_STEP, low)
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if meets(middle, number) else (low, middle)
        factors.append(low)
    spread = np.array(factors)
    low, high = np.quantile(spread, INTERVAL).tolist()
    return Headroom(float(np.median(spread)), low, high, spread)


def date_exhaustion(
    growth: WeeklyGrowth, headroom: Headroom | None, end: date, seen_days: float, lead_days: int
) -> Exhaustion:
    """Date when the load of the middle of the record has grown by the headroom.

    Parameters
    ----------
    growth : WeeklyGrowth
        Growth of the submitted work.
    headroom : Headroom, optional
        Load that the GPUs carry, as a factor of that of the middle of the record.
    end : date
        Last day of the record.
    seen_days : float
        Length of the record [days].
    lead_days : int
        Days from the order of GPUs to their first job.

    Examples
    --------
    >>> growth = fit_growth_per_week(100 * 1.05 ** np.arange(8) * np.array([1.01, 0.99] * 4))
    >>> headroom = Headroom(1.5, 1.4, 1.6, np.array([1.4, 1.5, 1.6]))
    >>> found = date_exhaustion(growth, headroom, date(2026, 6, 1), 56, 28)
    >>> found.date, found.order_by, found.probability
    (datetime.date(2026, 7, 3), datetime.date(2026, 6, 5), 1.0)
    """
    if growth.value is None:
        return Exhaustion(reason=growth.reason)
    if headroom is None:
        return Exhaustion(reason="no size of job meets the wait target under any load")
    if growth.slope <= 0:
        return Exhaustion(
            reason=f"the submitted work grows by {growth.low:+.1%} to {growth.high:+.1%} a week"
        )
    factors = np.random.default_rng(4).choice(headroom.factors, len(growth.slopes))
    logs = np.log(factors)
    weeks = np.where(
        growth.slopes > 0, logs / np.maximum(growth.slopes, 1e-9), np.where(logs > 0, np.inf, 0.0)
    )
    weeks = np.maximum(weeks - seen_days / 2 / DAYS_A_WEEK, 0.0)
    probability = float((weeks <= HORIZON_WEEKS).mean())
    if probability < MIN_PROBABILITY:
        return Exhaustion(probability=probability, reason=f"{probability:.0%} likely within a year")
    day = end + timedelta(days=round(float(np.median(weeks)) * DAYS_A_WEEK))
    return Exhaustion(day, probability, day - timedelta(days=lead_days))
