"""Replications of a simulation: bootstrapped arrival days, and confidence intervals over replications."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError, SchemaError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY
from gpuplanner.usage.planning_history import REQUEST_VIEWS, History, history


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean with its confidence interval.

    Parameters
    ----------
    mean : float
        Mean of the values.
    low, high : float or None
        Bounds of the interval; None for a single value.
    replications : int
        Number of values.
    level : float
        Confidence level, such as 0.95.
    """

    mean: float
    low: float | None
    high: float | None
    replications: int
    level: float


@dataclass(frozen=True)
class PairedChange:
    """Paired difference of a policy against a baseline over the same replications.

    Parameters
    ----------
    difference : ConfidenceInterval
        Value minus baseline.
    ratio : float or None
        Mean value over mean baseline; None where the latter is 0.
    """

    difference: ConfidenceInterval
    ratio: float | None


def mean_interval(values: Sequence[float] | NDArray[np.float64], *, level: float = 0.95) -> ConfidenceInterval:
    """Compute Student's t interval for the mean of independent values.

    Parameters
    ----------
    values : array of float, shape (n,)
        One value per replication.
    level : float
        Confidence level between 0 and 1.

    Returns
    -------
    ConfidenceInterval
        Of width 0 where all values are equal.

    Raises
    ------
    SchemaError
        If there are no values, or one is missing or infinite.

    Examples
    --------
    >>> interval = mean_interval([10.0, 12.0, 14.0])
    >>> interval.mean, round(interval.low, 3), round(interval.high, 3)
    (12.0, 7.032, 16.968)
    """
    sample = _finite_sample(values)
    n, mean = len(sample), float(np.mean(sample))
    if n == 1:
        return ConfidenceInterval(mean, None, None, n, level)
    half_width = student_t((1 + level) / 2, n - 1) * float(np.std(sample, ddof=1)) / math.sqrt(n)
    return ConfidenceInterval(mean, mean - half_width, mean + half_width, n, level)


def compare_paired(
    baseline: Sequence[float] | NDArray[np.float64],
    values: Sequence[float] | NDArray[np.float64],
    *,
    level: float = 0.95,
) -> PairedChange:
    """Compare two policies that served the same jobs in every replication.

    The interval is that of the differences. With common random numbers it is far narrower than those of the two means,
    because a hard week for one policy is a hard week for the other.

    Parameters
    ----------
    baseline, values : array of float, shape (n,)
        One value per replication, in the same order.
    level : float
        Confidence level between 0 and 1.

    Raises
    ------
    SchemaError
        If the lengths differ, there are no values, or one is missing or infinite.

    Examples
    --------
    >>> change = compare_paired([100.0, 140.0, 120.0], [50.0, 88.0, 66.0])
    >>> change.difference.mean, round(change.difference.low, 3), round(change.ratio, 3)
    (-52.0, -56.968, 0.567)
    """
    before, after = _finite_sample(baseline), _finite_sample(values)
    if len(before) != len(after):
        expected = "as many values as baseline values"
        todo = "Run both policies on the same replications."
        raise SchemaError("paired values", expected, f"{len(before)} and {len(after)}", todo)
    reference = float(np.mean(before))
    ratio = float(np.mean(after)) / reference if reference else None
    return PairedChange(mean_interval(after - before, level=level), ratio)


def student_t(probability: float, degrees: int) -> float:
    """Compute a quantile of Student's t distribution.

    The distribution function for whole degrees of freedom is a finite sum of powers of a cosine [1]_; it is
    inverted by bisection over the angle, to the precision of a float.

    Parameters
    ----------
    probability : float
        Between 0 and 1.
    degrees : int
        Degrees of freedom, at least 1.

    References
    ----------
    .. [1] M. Abramowitz, I. Stegun (eds.), "Handbook of Mathematical Functions", 1964, 26.7.3 and 26.7.4.

    Examples
    --------
    >>> round(student_t(0.975, 9), 3), round(student_t(0.95, 1), 3), student_t(0.5, 4)
    (2.262, 6.314, 0.0)
    """
    if not (0 < probability < 1 and degrees >= 1):
        expected = "a probability between 0 and 1 and at least 1 degree of freedom"
        todo = "Give a level between 0 and 1 and at least two values."
        raise SchemaError("Student's t quantile", expected, f"{probability} and {degrees}", todo)
    central = abs(2 * probability - 1)
    if not central:
        return 0.0
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _central_probability(middle, degrees) < central:
            low = middle
        else:
            high = middle
    return math.copysign(math.tan(low) * math.sqrt(degrees), probability - 0.5)


def _central_probability(angle: float, degrees: int) -> float:
    """Compute the probability that a t variable lies between -t and t, where t = sqrt(degrees) tan(angle)."""
    odd = degrees % 2
    cosine_squared = math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine_squared * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _finite_sample(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert the values of replications to an array; raise if there are none, or one is not finite."""
    sample = np.array(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        got = f"{sample.size} values, {int((~np.isfinite(sample)).sum())} of them missing"
        todo = "Leave out measures that a replication does not have."
        raise SchemaError("values of replications", "at least one number, all finite", got, todo)
    return sample


SATURDAY_ISO_WEEKDAY = 6
"""ISO weekday; Monday is 1."""
DRAWN_DAYS_STREAM = 0
"""Number that seeds the random stream of drawn days."""


def bootstrap_days(
    jobs: pl.DataFrame, *, days: int, seed: int, replication: int, start_weekday: int = 1
) -> pl.DataFrame:
    """Draw a day of the history for every day to simulate, and copy its arrivals (day bootstrap).

    Working days are drawn from working days and weekends from weekends, with replacement. The daily course, bursts
    within a day and the mix of jobs are kept; dependence between days is not. History days without arrivals, between
    the first and the last one, count as days. Remove days that were recorded in part before the call.

    A draw depends on ``seed``, ``replication`` and the day alone: every policy gets the same jobs (common random
    numbers), and a longer run does not change the days that both have.

    Parameters
    ----------
    jobs : polars.DataFrame
        History with ``submit_time`` (UTC) and ``job_id``; further columns are kept.
    days : int
        Days to draw.
    seed, replication : int
        Seed and number of the replication, not below 0.
    start_weekday : int
        ISO weekday (Monday is 1) of the first day.

    Returns
    -------
    polars.DataFrame
        The columns of `jobs` with ``submit_s`` [s from the start of the run] in place of ``submit_time``,
        sorted by it. Ids carry ``#<day>``, from 0.

    Raises
    ------
    ScenarioError
        If a number is out of range, or the history has no working day or no weekend where one is needed.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> history = pl.DataFrame({"job_id": ["a", "b"],
    ...     "submit_time": [datetime(2026, 2, 2, 9, tzinfo=UTC), datetime(2026, 2, 3, 12, tzinfo=UTC)]})
    >>> bootstrap_days(history, days=3, seed=1, replication=0).rows()
    [('b#0', 43200.0), ('b#1', 129600.0), ('a#2', 205200.0)]
    """
    _check_bootstrap(jobs, days, seed, replication, start_weekday)
    history = jobs.with_columns(history_day=pl.col("submit_time").dt.date()).with_row_index("row")
    day = pl.col("history_day")
    every_day = history.select(pl.date_range(day.min(), day.max())).to_series()
    number = np.arange(days)
    is_weekend = (start_weekday - 1 + number) % 7 + 1 >= SATURDAY_ISO_WEEKDAY
    draws = np.random.default_rng([seed, replication, DRAWN_DAYS_STREAM]).random(days)
    drawn_days = _draw_history_days(every_day, is_weekend, draws)
    calendar = pl.DataFrame({"day": number, "history_day": every_day.gather(drawn_days)})
    time_of_day = pl.col("submit_time") - pl.col("history_day").cast(pl.Datetime("us", "UTC"))
    return (
        calendar.join(history, on="history_day")
        .with_columns(
            submit_s=pl.col("day") * SECONDS_PER_DAY + time_of_day.dt.total_microseconds() / 1e6,
            job_id=pl.format("{}#{}", "job_id", "day"),
        )
        .sort("submit_s", "day", "row")
        .drop("row", "day", "history_day", "submit_time")
    )


def _draw_history_days(history: pl.Series, is_weekend: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw a history day of the same kind, working day or weekend, for every day to simulate.

    Parameters
    ----------
    history : polars.Series of date
        Days of the history.
    is_weekend : array of bool, shape (n_days,)
        Whether each day to simulate is a Saturday or Sunday.
    uniform : array of float, shape (n_days,)
        Uniform random numbers, one for each day. [0-1)

    Returns
    -------
    array of int, shape (n_days,)
        Positions in `history`.
    """
    is_history_weekend = history.dt.weekday().to_numpy() >= SATURDAY_ISO_WEEKDAY
    positions = np.empty(len(is_weekend), np.int64)
    for name, kind in (("working", False), ("weekend", True)):
        days = is_weekend == kind
        candidates = np.flatnonzero(is_history_weekend == kind)
        if days.any() and not len(candidates):
            got = f"none between {history[0]} and {history[-1]}"
            todo = "Give a longer history, or simulate fewer days."
            raise ScenarioError("bootstrap of arrival days", f"a {name} day in the history", got, todo)
        if days.any():
            positions[days] = candidates[(uniform[days] * len(candidates)).astype(np.int64)]
    return positions


def _check_bootstrap(jobs: pl.DataFrame, days: int, seed: int, replication: int, start_weekday: int) -> None:
    """Raise if an argument of :func:`bootstrap_days` is out of range, or the history has no jobs."""
    if not (days >= 1 and min(seed, replication) >= 0 and 1 <= start_weekday <= 7 and jobs.height):
        expected = "jobs, days above 0, seed and replication not below 0, and start_weekday from 1 (Monday) to 7"
        got = f"{jobs.height} jobs, {days=}, {seed=}, {replication=}, {start_weekday=}"
        raise ScenarioError("bootstrap of arrival days", expected, got, "Change them.")


ASSUMED_TIME_LIMIT_TO_RUN_TIME_RATIO = 2.0
"""Time limit over run time where the source has no limits: users request twice the run time they need."""
MIN_HISTORY_BEYOND_HORIZON_INTERVALS = 2
"""Intervals of history that a forecast needs on top of as many as its horizon."""


def past_jobs(job_history: History) -> pl.DataFrame:
    """Select past jobs that have a run time, with their requests as full GPUs, as requested, and rightsized.

    Returns
    -------
    polars.DataFrame
        One row a job; ``profile_*``, ``instances_*`` and ``sms_*`` for each of ``REQUEST_VIEWS``.
    """
    key, times = pl.format("{}/{}", "job_id", "attempt"), ("submit_time", "start_time", "end_time")
    limit_s = pl.max_horizontal(pl.col("time_limit_s"), "run_s").fill_null(
        ASSUMED_TIME_LIMIT_TO_RUN_TIME_RATIO * pl.col("run_s")
    )
    base = job_history.views["whole"].select(
        key.alias("key"), "tenant", *times, pl.col("state").cast(pl.String), "run_s", limit_s=limit_s
    )
    request_columns = {"profile": "profile", "instances": "instances", "sms": "sms_needed"}
    requests = []
    for view in REQUEST_VIEWS:
        columns = [pl.col(name).alias(f"{prefix}_{view}") for prefix, name in request_columns.items()]
        requests.append(job_history.views[view].select(columns))
    return pl.concat([base, *requests], how="horizontal").filter(pl.col("run_s").is_not_null())


def draw_replication(scenario: Scenario, job_history: History, past: pl.DataFrame, replication: int) -> pl.DataFrame:
    """Draw the jobs of one replication, the same for every policy.

    Jobs that run or wait when the plan begins come first, with their remaining run time; the days of the horizon are
    drawn from past days of the same kind.

    Parameters
    ----------
    scenario : Scenario
        Horizon, seed and arrival scale.
    job_history : History
        Jobs and nodes of the observed period.
    past : polars.DataFrame
        Past jobs with a run time, from :func:`past_jobs`.
    replication : int
        Number of the replication.

    Returns
    -------
    polars.DataFrame
        Jobs with ``submit_s`` from the begin of the plan; below 0 for jobs that run (-2) or wait (-1). [s]
    """
    days = int(np.ceil(scenario.horizon_intervals * scenario.interval_hours / 24))
    open_jobs = past.filter(pl.col("end_time").is_null() & pl.col("state").is_in(["RUNNING", "PENDING"]))
    age_s = (pl.lit(job_history.plan_start) - pl.col("start_time")).dt.total_microseconds() / 1e6
    carried = open_jobs.with_columns(
        job_id="key",
        submit_s=pl.when(pl.col("state") == "RUNNING").then(-2.0).otherwise(-1.0),
        run_s=(pl.col("run_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
        limit_s=(pl.col("limit_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
    ).sort("submit_s", "start_time", "submit_time", "key")
    drawn = bootstrap_days(
        complete_days(job_history, past).rename({"key": "job_id"}).drop("start_time", "end_time", "state"),
        days=days,
        seed=scenario.seed,
        replication=replication,
        start_weekday=job_history.plan_start.isoweekday(),
    )
    horizon_s = scenario.horizon_intervals * scenario.interval_s
    arrivals = scale_arrivals(drawn.filter(pl.col("submit_s") < horizon_s), scenario, replication)
    columns = [name for name in arrivals.columns if name in carried.columns]
    return pl.concat([carried.select(columns), arrivals.select(columns)])


def complete_days(job_history: History, past: pl.DataFrame) -> pl.DataFrame:
    """Select the past jobs of complete days, from which days of the horizon are drawn; all jobs if there is none."""
    # The recent past may begin and end within a day: these two days are left out.
    first_midnight = pl.lit(job_history.recent).dt.offset_by("-1us").dt.truncate("1d").dt.offset_by("1d")
    last_midnight = pl.lit(job_history.plan_start).dt.truncate("1d")
    submit_time = pl.col("submit_time")
    whole_days = past.filter(submit_time >= first_midnight, submit_time < last_midnight)
    return whole_days if whole_days.height else past.filter(submit_time >= job_history.recent)


def to_simulator_jobs(jobs: pl.DataFrame, view: str) -> pl.DataFrame:
    """Convert jobs to the simulator's columns, with their requests as ``whole``, ``requested`` or ``rightsized``.

    A request for several slices becomes that many jobs of one slice: a job of the simulator has one instance.
    """
    requests = jobs.with_columns(
        profile=f"profile_{view}", instances=f"instances_{view}", sms_needed=f"sms_{view}"
    ).filter(pl.col("profile").is_not_null() & (pl.col("instances") > 0))
    whole = pl.col("profile") == FULL_GPU
    several = pl.col("instances") > 1
    exploded = (
        requests.with_columns(copy=pl.when(whole).then(1).otherwise("instances"))
        .with_columns(copy=pl.int_ranges(1, pl.col("copy") + 1))
        .explode("copy")
        .with_columns(
            gpus=pl.when(whole).then("instances").otherwise(1).cast(pl.Int32),
            job_id=pl.when(whole | ~several).then("job_id").otherwise(pl.format("{}.{}", "job_id", "copy")),
        )
    )
    return exploded.select(
        "job_id", "tenant", "submit_s", "run_s", "gpus", "profile", "sms_needed", "limit_s"
    )  # fmt: skip


def scale_arrivals(jobs: pl.DataFrame, scenario: Scenario, replication: int) -> pl.DataFrame:
    """Drop or copy jobs at random by the scenario's arrival scale; each copy arrives 60 s after the one before."""
    if scenario.arrival_scale == 1:
        return jobs
    rng = np.random.default_rng([scenario.seed, replication, 7])
    copies = np.floor(scenario.arrival_scale + rng.random(jobs.height)).astype(np.int64)
    counted = jobs.with_columns(copy=pl.int_ranges(0, pl.Series(copies)))
    repeated = counted.explode("copy", empty_as_null=False)
    first = pl.col("copy") == 0
    return (
        repeated.with_columns(
            submit_s=pl.when(first).then("submit_s").otherwise(pl.col("submit_s") + 60.0 * pl.col("copy")),
            job_id=pl.when(first).then("job_id").otherwise(pl.format("{}+{}", "job_id", "copy")),
        )
        .sort("submit_s", maintain_order=True)
        .drop("copy")
    )


def explain_short_history(scenario: Scenario) -> str | None:
    """Explain why the history is too short for a plan; None where it is long enough.

    Examples
    --------
    >>> explain_short_history(Scenario(month="2026-02"))
    >>> explain_short_history(Scenario(month="2026-02", history_days=3))
    'the history has 72 hours, and a forecast of 168 hours needs at least 170'
    """
    job_history = history(scenario)
    history_h = (job_history.plan_start - job_history.recent) / timedelta(hours=1)
    horizon_h = scenario.horizon_intervals * scenario.interval_hours
    needed_h = horizon_h + MIN_HISTORY_BEYOND_HORIZON_INTERVALS * scenario.interval_hours
    if history_h < needed_h:
        return f"the history has {history_h:g} hours, and a forecast of {horizon_h:g} hours needs at least {needed_h:g}"
    return _explain_missing_days(job_history, horizon_h)


def _explain_missing_days(job_history: History, horizon_h: float) -> str | None:
    """Explain which days cannot be drawn: the history has no working day or no weekend, and the horizon has one."""
    past = complete_days(job_history, past_jobs(job_history))
    if past.is_empty():
        return "no job was submitted in the history"
    submit_day = pl.col("submit_time").dt.date()
    past_days = past.select(pl.date_range(submit_day.min(), submit_day.max()))
    past_kinds = set((past_days.to_series().dt.weekday() >= SATURDAY_ISO_WEEKDAY).to_list())
    days = -(-int(horizon_h) // 24)
    first_day = job_history.plan_start
    horizon_kinds = {(first_day + timedelta(days=day)).isoweekday() >= SATURDAY_ISO_WEEKDAY for day in range(days)}
    for is_weekend, name in ((False, "working day"), (True, "day of a weekend")):
        if is_weekend in horizon_kinds - past_kinds:
            return f"the history has no {name}, and the horizon has"
    return None
