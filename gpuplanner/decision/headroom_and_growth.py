"""Growth of the submitted work, headroom of the GPUs, and the exhaustion date."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cache

import numpy as np
import polars as pl

from gpuplanner.core.libraries_plugins_and_workers import report_step
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, count_text, percent_text
from gpuplanner.decision.decision_types import Exhaustion, Headroom, WeeklyGrowth
from gpuplanner.decision.policy_simulation import sum_gpu_hours
from gpuplanner.decision.wait_curve import CURVE_INTERVAL, DAYS_PER_WEEK, MIN_SHARE_WITHIN_LIMIT, WaitModel, WaitTarget
from gpuplanner.simulator.simulation_inputs import NodeFleet
from gpuplanner.simulator.simulation_state import Floats

MIN_FITTED_WEEKS = 6
"""Fewest whole weeks for an estimate of growth."""
N_LOAD_DRAWS = 10
"""Number of resampled weeks in which the headroom is measured."""
LOAD_STEP_FACTOR = 2**0.25
"""Ratio of one tried load to the one before in the search for the headroom."""
MAX_LOAD_FACTOR = 4.0
"""Largest tried load in the search for the headroom, over today's load; the smallest one is its inverse."""


@dataclass(frozen=True, eq=False)
class FittedGrowth:
    """Weekly growth of the submitted work, and random draws ``slopes`` of its logarithm; none if it is not known."""

    weekly: WeeklyGrowth
    slopes: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def slope(self) -> float:
        """Growth of the logarithm a week; 0 if the interval includes no growth."""
        return self.weekly.log_slope

    def load_factor_after(self, days: float, *, at_least: bool = False) -> float:
        """Return the submitted work after a number of days, as a factor of today's.

        It follows significant growth; with ``at_least`` the lower end of its interval.
        """
        slope = math.log1p(self.weekly.low or 0.0) if at_least and self.slope else self.slope
        return math.exp(max(slope, 0.0) * days / DAYS_PER_WEEK)


@dataclass(frozen=True, eq=False)
class MeasuredHeadroom:
    """Headroom of the observed record, and the load factors of resampled weeks."""

    headroom: Headroom
    factors: Floats


def sum_weekly_work(jobs: pl.DataFrame, record_start: datetime, record_end: datetime) -> Floats:
    """Sum the GPU-hours that jobs would have run in each whole week had none waited, oldest week first.

    A job of many weeks counts in each of them. Weeks begin after the first end of a job: before it a record may state
    only jobs that ran on.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``submit_time, run_s, gpus`` of each job.
    record_start, record_end : datetime
        Begin and end of the record; weeks are counted back from the end.

    Examples
    --------
    >>> end = datetime(2026, 6, 15)
    >>> submit = [datetime(2026, 6, 9), datetime(2026, 6, 7, 23), datetime(2026, 5, 31)]
    >>> jobs = pl.DataFrame({"submit_time": submit, "run_s": 7200.0, "gpus": [1, 2, 4]})
    >>> sum_weekly_work(jobs, datetime(2026, 5, 31), end).tolist()
    [2.0, 4.0]
    """
    submit = (pl.col("submit_time") - record_start).dt.total_microseconds() / 1e6
    timed_jobs = jobs.select("gpus", "run_s", submit_s=submit).drop_nulls("run_s")
    submit_s, run_s = timed_jobs["submit_s"].to_numpy(), timed_jobs["run_s"].to_numpy()
    record_s, week_s = (record_end - record_start).total_seconds(), DAYS_PER_WEEK * SECONDS_PER_DAY
    first_end_s = max(float((submit_s + run_s).min(initial=record_s)), 0.0)
    n_weeks = int((record_s - first_end_s) // week_s)
    edges = [record_s - number * week_s for number in range(n_weeks, -1, -1)]
    return sum_gpu_hours(submit_s, submit_s + run_s, timed_jobs["gpus"].to_numpy(), edges)


def fit_growth_per_week(weekly_gpu_hours: Floats) -> FittedGrowth:
    """Fit a line to the logarithm of the weekly GPU-hours; the interval is that of least squares.

    Examples
    --------
    >>> growth = fit_growth_per_week(100 * 1.05 ** np.arange(8) * np.array([1.01, 0.99] * 4))
    >>> round(growth.weekly.value, 2), 0.03 < growth.weekly.low < growth.weekly.high < 0.07
    (0.05, True)
    >>> fit_growth_per_week(np.ones(3)).weekly.reason
    '3 whole weeks since the first job ended, 6 needed'
    """
    n_weeks = len(weekly_gpu_hours)
    if n_weeks < MIN_FITTED_WEEKS:
        reason = f"{count_text(n_weeks, 'whole week')} since the first job ended, {MIN_FITTED_WEEKS} needed"
        return FittedGrowth(WeeklyGrowth(reason=reason))
    if not (weekly_gpu_hours > 0).all():
        return FittedGrowth(WeeklyGrowth(reason="in a whole week no work was submitted"))
    week, logs = np.arange(n_weeks) - (n_weeks - 1) / 2, np.log(weekly_gpu_hours)
    slope = float(week @ logs / (week @ week))
    residuals = logs - logs.mean() - slope * week
    slope_error = math.sqrt(float(residuals @ residuals) / (n_weeks - 2) / float(week @ week))
    slopes = slope + slope_error * np.random.default_rng(3).standard_t(n_weeks - 2, 4000)
    low, high = np.expm1(np.quantile(slopes, CURVE_INTERVAL)).tolist()
    return FittedGrowth(WeeklyGrowth(math.expm1(slope), low, high), slopes)


def state_growth(share_per_week: float) -> FittedGrowth:
    """Return a growth that the planner states, such as 0.02 for 2 % a week, without an interval.

    Examples
    --------
    >>> round(state_growth(0.02).load_factor_after(7), 3)
    1.02
    """
    weekly = WeeklyGrowth(share_per_week, share_per_week, share_per_week)
    return FittedGrowth(weekly, np.full(4000, math.log1p(share_per_week)))


def measure_headroom(
    model: WaitModel, fleet: NodeFleet, target: WaitTarget, growth: FittedGrowth
) -> MeasuredHeadroom | None:
    """Find the load at which a job size misses the wait target; None if none meets it under any load.

    The load is a factor of the load in the middle of the record, without its growth. Jobs are left out or repeated, in
    the record and in resampled weeks; these show how accurate the factor is. Job sizes that miss the target at the
    smallest load do not count, and limits of tenants and unexplained delays are left out: more GPUs end neither.

    Parameters
    ----------
    model : WaitModel
        Observed jobs and nodes, and how jobs start.
    fleet : NodeFleet
        Nodes to measure.
    target : WaitTarget
        Target of the p95 queue wait.
    growth : FittedGrowth
        Weekly growth of the submitted work.
    """
    model = model.without_limits()
    weeks = (model.waits.arrival_s - model.inputs.observed_s / 2) / (DAYS_PER_WEEK * SECONDS_PER_DAY)
    growth_factors = np.exp(-growth.slope * weeks)

    def waits(load: float, row: int) -> Floats:
        """Return the p95 wait of each job size at a load [s]."""
        return model.percentiles(fleet, row, load=load * growth_factors)

    waits_at_least_load = np.array([waits(1 / MAX_LOAD_FACTOR, row) for row in range(1 + N_LOAD_DRAWS)])
    reachable_sizes = (waits_at_least_load <= target.target_s).mean(axis=0) >= MIN_SHARE_WITHIN_LIMIT
    if not reachable_sizes.any():
        return None

    @cache
    def meets(load: float, row: int) -> bool:
        """Whether all reachable job sizes meet the target at a load."""
        return bool((waits(load, row)[reachable_sizes] <= target.target_s).all())

    factors = []
    for row in range(1 + N_LOAD_DRAWS):
        report_step(f"months to exhaustion, week {1 + row} of {1 + N_LOAD_DRAWS}")
        low = high = 1.0
        meets_now = meets(1.0, row)
        while (
            low > 1 / MAX_LOAD_FACTOR and high < MAX_LOAD_FACTOR and meets(high if meets_now else low, row) == meets_now
        ):
            low, high = (high, high * LOAD_STEP_FACTOR) if meets_now else (low / LOAD_STEP_FACTOR, low)
        # The step is halved to 2 % of the load.
        for _ in range(3):
            mid_load = math.sqrt(low * high)
            low, high = (mid_load, high) if meets(mid_load, row) else (low, mid_load)
        factors.append(low)
    record_factor, *drawn_factors = factors
    factor_draws = record_factor * np.array(drawn_factors) / np.median(drawn_factors)
    low, high = np.quantile(factor_draws, CURVE_INTERVAL).tolist()
    return MeasuredHeadroom(Headroom(record_factor, low, high), factor_draws)


def draw_weeks_to_exhaustion(growth: FittedGrowth, headroom: MeasuredHeadroom, record_days: float) -> Floats:
    """Draw the weeks from the end of the record until growth uses the headroom; infinity: never."""
    factors = np.random.default_rng(4).choice(headroom.factors, len(growth.slopes))
    log_factors = np.log(factors)
    without_growth = np.where(log_factors > 0, np.inf, 0.0)
    weeks = np.where(growth.slopes > 0, log_factors / np.maximum(growth.slopes, 1e-9), without_growth)
    return np.maximum(weeks - record_days / 2 / DAYS_PER_WEEK, 0.0)


def date_exhaustion(
    growth: FittedGrowth, headroom: MeasuredHeadroom | None, last_day: date, record_days: float, lead_days: int
) -> Exhaustion:
    """Compute the date by which growth uses the headroom.

    Parameters
    ----------
    growth : FittedGrowth
        Weekly growth of the submitted work.
    headroom : MeasuredHeadroom, optional
        Load that the GPUs carry, as a factor of the load in the middle of the record.
    last_day : date
        Last day of the record.
    record_days : float
        Length of the record. [days]
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
    if headroom is None:
        return Exhaustion(reason="a job size misses the wait target already")
    if growth.slope <= 0 and headroom.headroom.factor < 1:
        return Exhaustion(reason="a job size misses the wait target already")
    if growth.slope <= 0:
        shrinks = weekly.high is not None and weekly.high < 0
        reason = "the submitted work shrinks" if shrinks else "no growth of the submitted work is measurable"
        return Exhaustion(reason=reason)
    weeks = draw_weeks_to_exhaustion(growth, headroom, record_days)
    probability = float((weeks <= 52).mean())
    if probability < 0.5:
        return Exhaustion(probability=probability, reason=f"{percent_text(probability)} likely within a year")
    day = last_day + timedelta(days=round(float(np.median(weeks)) * DAYS_PER_WEEK))
    return Exhaustion(day.isoformat(), probability, (day - timedelta(days=lead_days)).isoformat())
