"""Growth of the submitted work, headroom of the GPUs, and the exhaustion date."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cache

import numpy as np
import polars as pl

from gpuplanner.core.units import SECONDS_PER_DAY, count_text, percent_text
from gpuplanner.decision.decision_types import Exhaustion, Headroom, WeeklyGrowth
from gpuplanner.decision.policy_simulation import gpu_hours
from gpuplanner.decision.wait_curve import CURVE_INTERVAL, DAYS_PER_WEEK, MIN_SHARE_WITHIN_LIMIT, WaitModel, WaitTarget
from gpuplanner.simulator.simulated_fleet import NodeFleet
from gpuplanner.simulator.simulation_state import Floats

MIN_WEEKS = 6
"""With fewer whole weeks the growth cannot be told from the noise of a week."""
LOAD_DRAWS = 10
LOAD_STEP = 2**0.25
MAX_LOAD = 4.0
"""Loads are looked at up to so many times today's, and down to its inverse."""


@dataclass(frozen=True, eq=False)
class FittedGrowth:
    """Growth of the submitted work a week, with draws of its logarithm; none where there is a reason."""

    weekly: WeeklyGrowth
    slopes: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def slope(self) -> float:
        """Growth of the logarithm a week, 0 where the interval does not exclude none."""
        one = self.weekly
        return math.log1p(one.value or 0.0) if (one.low or 0.0) * (one.high or 0.0) > 0 else 0.0

    def load_after(self, days: float, *, at_least: bool = False) -> float:
        """How many times the work there is so many days later, by growth that is shown, or by its lower end."""
        slope = math.log1p(self.weekly.low or 0.0) if at_least and self.slope else self.slope
        return math.exp(max(slope, 0.0) * days / DAYS_PER_WEEK)


@dataclass(frozen=True, eq=False)
class MeasuredHeadroom:
    """Factor of load at which the wait target breaks, and the factors of drawn records."""

    headroom: Headroom
    factors: Floats


def weekly_work(jobs: pl.DataFrame, begin: datetime, end: datetime) -> Floats:
    """GPU-hours that jobs would have run in each whole week of a record had none waited, oldest first.

    A job of many weeks counts in each of them. Before the first job ended a record may state only those that ran on:
    its weeks begin there.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``submit_time, run_s, gpus`` of each job.
    begin, end : datetime
        Ends of the record; weeks are counted back from the second.

    Examples
    --------
    >>> end = datetime(2026, 6, 15)
    >>> submit = [datetime(2026, 6, 9), datetime(2026, 6, 7, 23), datetime(2026, 5, 31)]
    >>> jobs = pl.DataFrame({"submit_time": submit, "run_s": 7200.0, "gpus": [1, 2, 4]})
    >>> weekly_work(jobs, datetime(2026, 5, 31), end).tolist()
    [2.0, 4.0]
    """
    submit = (pl.col("submit_time") - begin).dt.total_microseconds() / 1e6
    known = jobs.filter(pl.col("run_s").is_not_null()).select("gpus", "run_s", submit_s=submit)
    submit_s, run_s = known["submit_s"].to_numpy(), known["run_s"].to_numpy()
    seen_s, week_s = (end - begin).total_seconds(), DAYS_PER_WEEK * SECONDS_PER_DAY
    first_s = max(float((submit_s + run_s).min(initial=seen_s)), 0.0)
    weeks = int((seen_s - first_s) // week_s)
    edges = [seen_s - number * week_s for number in range(weeks, -1, -1)]
    return gpu_hours(submit_s, submit_s + run_s, known["gpus"].to_numpy(), edges)


def fit_growth_per_week(work: Floats) -> FittedGrowth:
    """Fit a line to the logarithm of the weekly work; the interval is that of least squares.

    Examples
    --------
    >>> growth = fit_growth_per_week(100 * 1.05 ** np.arange(8) * np.array([1.01, 0.99] * 4))
    >>> round(growth.weekly.value, 2), 0.03 < growth.weekly.low < growth.weekly.high < 0.07
    (0.05, True)
    >>> fit_growth_per_week(np.ones(3)).weekly.reason
    '3 whole weeks (Mon-Sun) of jobs observed, 6 needed'
    """
    weeks = len(work)
    if weeks < MIN_WEEKS:
        reason = f"{count_text(weeks, 'whole week')} (Mon-Sun) of jobs observed, {MIN_WEEKS} needed"
        return FittedGrowth(WeeklyGrowth(reason=reason))
    if not (work > 0).all():
        return FittedGrowth(WeeklyGrowth(reason="in a whole week no work was submitted"))
    week, logs = np.arange(weeks) - (weeks - 1) / 2, np.log(work)
    slope = float(week @ logs / (week @ week))
    left = logs - logs.mean() - slope * week
    error = math.sqrt(float(left @ left) / (weeks - 2) / float(week @ week))
    slopes = slope + error * np.random.default_rng(3).standard_t(weeks - 2, 4000)
    low, high = np.expm1(np.quantile(slopes, CURVE_INTERVAL)).tolist()
    return FittedGrowth(WeeklyGrowth(math.expm1(slope), low, high), slopes)


def measure_headroom(
    model: WaitModel, fleet: NodeFleet, target: WaitTarget, growth: FittedGrowth
) -> MeasuredHeadroom | None:
    """Find the load at which a size of job misses the target; None where none meets it under any load.

    Jobs are left out or repeated, in the record and in drawn ones, of the load of its middle: growth that is shown is
    taken out. Drawn records say how far the factor of the record may be off; they break earlier than it, as a rule.
    Sizes that miss the target under the least load as well are not looked at. Limits of tenants, and delays that
    nothing explains, are left out: more GPUs end neither.
    """
    model = model.without_limits()
    weeks = (model.waits.arrival_s - model.inputs.observed_s / 2) / (DAYS_PER_WEEK * SECONDS_PER_DAY)
    level = np.exp(-growth.slope * weeks)

    def waits(load: float, row: int) -> Floats:
        return model.percentiles(fleet, row, load=load * level)

    least = np.array([waits(1 / MAX_LOAD, row) for row in range(1 + LOAD_DRAWS)])
    sizes = (least <= target.target_s).mean(axis=0) >= MIN_SHARE_WITHIN_LIMIT
    if not sizes.any():
        return None

    @cache
    def meets(load: float, row: int) -> bool:
        return bool((waits(load, row)[sizes] <= target.target_s).all())

    factors = []
    for row in range(1 + LOAD_DRAWS):
        low = high = 1.0
        met = meets(1.0, row)
        while low > 1 / MAX_LOAD and high < MAX_LOAD and meets(high if met else low, row) == met:
            low, high = (high, high * LOAD_STEP) if met else (low / LOAD_STEP, low)
        # The step is halved to 2 % of the load.
        for _ in range(3):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if meets(middle, row) else (low, middle)
        factors.append(low)
    own, *drawn = factors
    spread = own * np.array(drawn) / np.median(drawn)
    low, high = np.quantile(spread, CURVE_INTERVAL).tolist()
    return MeasuredHeadroom(Headroom(own, low, high), spread)


def weeks_to_exhaustion(growth: FittedGrowth, measured: MeasuredHeadroom, seen_days: float) -> Floats:
    """Weeks after the record until the load of its middle has grown by the headroom, in each draw; infinite: never."""
    factors = np.random.default_rng(4).choice(measured.factors, len(growth.slopes))
    logs = np.log(factors)
    without_growth = np.where(logs > 0, np.inf, 0.0)
    weeks = np.where(growth.slopes > 0, logs / np.maximum(growth.slopes, 1e-9), without_growth)
    return np.maximum(weeks - seen_days / 2 / DAYS_PER_WEEK, 0.0)


def date_exhaustion(
    growth: FittedGrowth, measured: MeasuredHeadroom | None, end: date, seen_days: float, lead_days: int
) -> Exhaustion:
    """Date when the load of the middle of the record has grown by the headroom.

    Parameters
    ----------
    growth : FittedGrowth
        Growth of the submitted work.
    measured : MeasuredHeadroom, optional
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
    >>> measured = MeasuredHeadroom(Headroom(1.5, 1.4, 1.6), np.array([1.4, 1.5, 1.6]))
    >>> found = date_exhaustion(growth, measured, date(2026, 6, 1), 56, 28)
    >>> found.date, found.order_by, found.probability
    ('2026-07-03', '2026-06-05', 1.0)
    """
    weekly = growth.weekly
    if weekly.value is None:
        return Exhaustion(reason=weekly.reason)
    if measured is None:
        return Exhaustion(reason="no job size meets the wait target under any load")
    if growth.slope <= 0 and measured.headroom.factor < 1:
        return Exhaustion(reason="at today's load a job size misses the wait target already")
    if growth.slope <= 0:
        shrinks = weekly.high is not None and weekly.high < 0
        reason = "the submitted work shrinks" if shrinks else "no growth of the submitted work is measurable"
        return Exhaustion(reason=reason)
    weeks = weeks_to_exhaustion(growth, measured, seen_days)
    probability = float((weeks <= 52).mean())
    if probability < 0.5:
        return Exhaustion(probability=probability, reason=f"{percent_text(probability)} likely within a year")
    day = end + timedelta(days=round(float(np.median(weeks)) * DAYS_PER_WEEK))
    return Exhaustion(day.isoformat(), probability, (day - timedelta(days=lead_days)).isoformat())
