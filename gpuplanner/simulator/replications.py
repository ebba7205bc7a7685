"""Bootstrapped weeks and confidence intervals over replications."""

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
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import SECONDS_PER_DAY
from gpuplanner.usage.job_history import VIEWS, History, history


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Parameters
    ----------
    mean : float
        Mean of the values.
    low, high : float or None
        Bounds of the interval; None where a single value says nothing about spread.
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
    """What a policy changes against a baseline, replication by replication.

    Parameters
    ----------
    difference : Interval
        Value minus baseline.
    ratio : float or None
        Mean value over mean baseline; None where the latter is 0.
    """

    difference: Interval
    ratio: float | None


def mean_interval(values: Sequence[float] | NDArray[np.float64], *, level: float = 0.95) -> Interval:
    """Student's t interval for the mean of independent values.

    Parameters
    ----------
    values : array of float, shape (n,)
        One value per replication.
    level : float
        Confidence level between 0 and 1.

    Returns
    -------
    Interval
        Of width 0 where all values are equal.

    Raises
    ------
    SchemaError
        If there are no values, or one is missing or infinite.

    Examples
    --------
    >>> found = mean_interval([10.0, 12.0, 14.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (12.0, 7.032, 16.968)
    """
    sample = _finite(values)
    n, mean = len(sample), float(np.mean(sample))
    if n == 1:
        return Interval(mean, None, None, n, level)
    half = student_t((1 + level) / 2, n - 1) * float(np.std(sample, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, level)


def paired(
    baseline: Sequence[float] | NDArray[np.float64],
    values: Sequence[float] | NDArray[np.float64],
    *,
    level: float = 0.95,
) -> PairedChange:
    """Compare two policies that served the same jobs in every replication.

    The interval is that of the differences. With common random numbers it is far narrower than those of the
    two means, because what was a hard week for one policy was a hard week for the other.

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
    >>> found = paired([100.0, 140.0, 120.0], [50.0, 88.0, 66.0])
    >>> found.difference.mean, round(found.difference.low, 3), round(found.ratio, 3)
    (-52.0, -56.968, 0.567)
    """
    before, after = _finite(baseline), _finite(values)
    if len(before) != len(after):
        expected = "as many values as baseline values"
        todo = "Run both policies on the same replications."
        raise SchemaError("paired values", expected, f"{len(before)} and {len(after)}", todo)
    reference = float(np.mean(before))
    ratio = float(np.mean(after)) / reference if reference else None
    return PairedChange(mean_interval(after - before, level=level), ratio)


def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution.

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
    wanted = abs(2 * probability - 1)
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, degrees) < wanted else (low, middle)
    return math.copysign(math.tan(low) * math.sqrt(degrees), probability - 0.5) if wanted else 0.0


def _within(angle: float, degrees: int) -> float:
    """Probability that a t variable lies between -t and t, where t = sqrt(degrees) tan(angle)."""
    odd = degrees % 2
    cosine_squared = math.cos(angle) ** 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine_squared * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _finite(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The values as an array, after refusing what no mean can be taken of."""
    sample = np.array(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        got = f"{sample.size} values, {int((~np.isfinite(sample)).sum())} of them missing"
        todo = "Leave out measures that a replication does not have."
        raise SchemaError("values of replications", "at least one number, all finite", got, todo)
    return sample


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
            got = f"none between {history[0]} and {history[-1]}"
            todo = "Give a longer history, or simulate fewer days."
            raise ScenarioError("bootstrap of arrival days", f"a {name} day in the history", got, todo)
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


def _check(jobs: pl.DataFrame, days: int, seed: int, replication: int, warmup_days: int, start_weekday: int) -> None:
    """Refuse numbers out of range and a history without jobs."""
    numbers = f"days={days}, seed={seed}, replication={replication}, warmup_days={warmup_days}"
    sound = days >= 1 and min(seed, replication, warmup_days) >= 0 and 1 <= start_weekday <= 7
    if not (sound and jobs.height):
        expected = (
            "a history with jobs, days above 0, seed, replication and warmup_days not below 0, and "
            "start_weekday from 1 (Monday) to 7"
        )
        got = f"{jobs.height} jobs, {numbers}, start_weekday={start_weekday}"
        raise ScenarioError("bootstrap of arrival days", expected, got, "Change them.")


LIMIT_FACTOR = 2.0
"""Run-time limit over run time where the source has no limits: people request twice the run time they need."""
SPARE_SLOTS = 2
"""Slots that a forecast needs beside as many as it tells."""


def past_jobs(known: History) -> pl.DataFrame:
    """Jobs of the recent past, once, with what each view asks for."""
    same = ("key", "tenant", "submit_time", "start_time", "end_time")
    limit_s = pl.max_horizontal(pl.col("time_limit_s"), "run_s").fill_null(LIMIT_FACTOR * pl.col("run_s"))
    base = known.views["whole"].select(*same, pl.col("state").cast(pl.String), "run_s", limit_s=limit_s)
    asked = {"profile": "profile", "instances": "instances", "sms": "sms_needed"}
    asks = []
    for view in VIEWS:
        columns = [pl.col(name).alias(f"{asks_for}_{view}") for asks_for, name in asked.items()]
        asks.append(known.views[view].select(columns))
    return pl.concat([base, *asks], how="horizontal").filter(pl.col("run_s").is_not_null())


def replicate(scenario: Scenario, known: History, past: pl.DataFrame, replication: int) -> pl.DataFrame:
    """Jobs of one replication, the same for every policy.

    Jobs that run or wait when the plan begins come first, with the rest of their run time; the days of the
    horizon are drawn from past days of the same kind.
    """
    days = int(np.ceil(scenario.horizon_intervals * scenario.interval_hours / 24))
    open_jobs = past.filter(pl.col("end_time").is_null() & pl.col("state").is_in(["RUNNING", "PENDING"]))
    age_s = (pl.lit(known.plan_start) - pl.col("start_time")).dt.total_microseconds() / 1e6
    carried = open_jobs.with_columns(
        job_id="key",
        submit_s=pl.when(pl.col("state") == "RUNNING").then(-2.0).otherwise(-1.0),
        run_s=(pl.col("run_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
        limit_s=(pl.col("limit_s") - age_s.fill_null(0.0)).clip(lower_bound=1.0),
    ).sort("submit_s", "start_time", "submit_time", "key")
    drawn = bootstrap_days(
        days_to_draw(known, past).rename({"key": "job_id"}).drop("start_time", "end_time", "state"),
        days=days,
        seed=scenario.seed,
        replication=replication,
        start_weekday=known.plan_start.isoweekday(),
    )
    horizon_s = scenario.horizon_intervals * scenario.slot_s
    arrivals = scaled_arrivals(drawn.filter(pl.col("submit_s") < horizon_s), scenario, replication)
    columns = [name for name in arrivals.columns if name in carried.columns]
    return pl.concat([carried.select(columns), arrivals.select(columns)])


def days_to_draw(known: History, past: pl.DataFrame) -> pl.DataFrame:
    """Jobs of the whole days of the recent past, from which days of the horizon are drawn."""
    # Days that either end of the recent past cuts are left out.
    first_midnight = pl.lit(known.recent).dt.offset_by("-1us").dt.truncate("1d").dt.offset_by("1d")
    last_midnight = pl.lit(known.plan_start).dt.truncate("1d")
    submit_time = pl.col("submit_time")
    whole_days = past.filter(submit_time >= first_midnight, submit_time < last_midnight)
    return whole_days if whole_days.height else past.filter(pl.col("submit_time") >= known.recent)


def workload(jobs: pl.DataFrame, view: str) -> pl.DataFrame:
    """The jobs as one view asks for them, in the form that the simulator reads.

    A request for several slices runs as that many single slices: the simulator's jobs hold one instance.
    """
    asked = jobs.with_columns(
        profile=f"profile_{view}", instances=f"instances_{view}", sms_needed=f"sms_{view}"
    ).filter(pl.col("profile").is_not_null() & (pl.col("instances") > 0))
    whole = pl.col("profile") == WHOLE_GPU
    several = pl.col("instances") > 1
    exploded = (
        asked.with_columns(copy=pl.when(whole).then(1).otherwise("instances"))
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


def scaled_arrivals(jobs: pl.DataFrame, scenario: Scenario, replication: int) -> pl.DataFrame:
    """Thin or multiply arrivals by the scenario's factor; copies come a little later than the original."""
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


def too_short(scenario: Scenario) -> str | None:
    """Why no plan can be made of so short a past, in words; None where it is long enough.

    Examples
    --------
    >>> too_short(Scenario(month="2026-02"))
    >>> too_short(Scenario(month="2026-02", history_days=3))
    'the history has 72 hours, and a forecast of 168 hours needs at least 170'
    """
    known = history(scenario)
    seen = (known.plan_start - known.recent) / timedelta(hours=1)
    ahead = scenario.horizon_intervals * scenario.interval_hours
    needed = ahead + SPARE_SLOTS * scenario.interval_hours
    if seen < needed:
        return f"the history has {seen:g} hours, and a forecast of {ahead:g} hours needs at least {needed:g}"
    return _missing_days(known, ahead)


def _missing_days(known: History, ahead_h: float) -> str | None:
    """Working days are drawn from working days, days of weekends from such."""
    past = days_to_draw(known, past_jobs(known))
    if past.is_empty():
        return "no job was submitted in the history"
    submit_day = pl.col("submit_time").dt.date()
    seen = past.select(pl.date_range(submit_day.min(), submit_day.max()))
    kinds = set((seen.to_series().dt.weekday() >= SATURDAY).to_list())
    days = -(-int(ahead_h) // 24)
    coming = {(known.plan_start + timedelta(days=day)).isoweekday() >= SATURDAY for day in range(days)}
    for weekend, name in ((False, "working day"), (True, "day of a weekend")):
        if weekend in coming - kinds:
            return f"the history has no {name}, and the horizon has"
    return None
