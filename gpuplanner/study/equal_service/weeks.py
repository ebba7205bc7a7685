"""The weeks that policies are tuned on, and the later ones that they are judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import ScenarioError, message
from gpuplanner.metrics import mean_interval
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import bootstrap_days
from gpuplanner.study.equal_service.size_classes import FEWEST_JOBS, SIZE_CLASSES, size_class
from gpuplanner.study.future.workload import past_jobs, scaled_arrivals, workload
from gpuplanner.study.past.history import VIEWS, History, history
from gpuplanner.study.stages import stage
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

Span: TypeAlias = tuple[datetime, datetime]

WEEK_DAYS = 7
WARM_UP_DAYS = 2
"""Days that are played before a week is measured, so that it does not begin with an empty fleet."""
WEEK_HOURS = WEEK_DAYS * 24
TUNING_WEEKS = 8
"""Weeks drawn for tuning: enough that a setting is not chosen for the luck of one."""
MOST_HELD_BACK_DAYS = 14
SURE = 0.8
"""Level of two-sided intervals whose upper end must hold the target: nine of ten weeks to come ask for less."""
MOST_ALIKE = 0.6
"""Autocorrelation of days that is believed at most: few days say little about it."""


@dataclass(frozen=True, eq=False)
class Week:
    """Jobs of one week, in the form that the simulator reads, as every view asks for them.

    Attributes
    ----------
    asked : mapping of str to polars.DataFrame
        Jobs by view; a job on several instances has a row for each.
    owners : mapping of str to array of int
        For each of those rows, the number of its job.
    submit_s : array of float, shape (n_jobs,)
        When the jobs come [s from the start of the run].
    size : array of int, shape (n_jobs,)
        Number of their class in :data:`~gpuplanner.study.equal_service.size_classes.SIZE_CLASSES`.
    begin_s, end_s : float
        What is measured; days before it warm the fleet up.
    """

    asked: Mapping[str, pl.DataFrame]
    owners: Mapping[str, NDArray[np.int64]]
    submit_s: NDArray[np.float64]
    size: NDArray[np.int64]
    begin_s: float
    end_s: float

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Jobs that come within what is measured."""
        inside: NDArray[np.bool_] = (self.submit_s >= self.begin_s) & (self.submit_s < self.end_s)
        return inside

    def only(self, view: str, which: pl.Expr) -> Week:
        """The same week with some of the jobs of one view, and no other view."""
        rows = self.asked[view].with_row_index("row").filter(which)
        kept = rows["row"].to_numpy()
        return replace(self, asked={view: rows.drop("row")}, owners={view: self.owners[view][kept]})


@dataclass(frozen=True, eq=False)
class Weeks:
    """What is known of a fleet's weeks, parted in time.

    Attributes
    ----------
    usual, tuning : tuple of Week
        Weeks drawn day by day from before ``split``, and the same with more jobs, see ``heavier``.
    judged : tuple of Week
        Weeks drawn from after it.
    held_back : tuple of Week
        The weeks after ``split`` as they were, oldest first.
    begin, split, end : datetime
        The past that is drawn from, and the instant that parts it.
    heavier : float
        Factor on the jobs of the tuning weeks, see :func:`heavy_week`.
    """

    tuning: tuple[Week, ...]
    judged: tuple[Week, ...]
    usual: tuple[Week, ...]
    held_back: tuple[Week, ...]
    begin: datetime
    split: datetime
    end: datetime
    heavier: float

    def jobs_by_class(self) -> NDArray[np.int64]:
        """Judged jobs of each class, over all drawn weeks."""
        return sum(
            (np.bincount(week.size[week.judged], minlength=len(SIZE_CLASSES)) for week in self.judged),
            np.zeros(len(SIZE_CLASSES), np.int64),
        )


@stage("arrival_scale", "replications", "seed", after=(history,))
def weeks(scenario: Scenario) -> Weeks:
    """Part the recent past in an earlier part to tune on and a later one to judge on, and draw weeks from both.

    The later part is the last half of the history, and at most two weeks. Days are drawn as
    :func:`gpuplanner.simulate.bootstrap_days` does, working days and weekends apart.

    Raises
    ------
    ScenarioError
        If either part would be shorter than a week.
    """
    known = history(scenario)
    past = past_jobs(known).with_columns(size=size_class("profile_requested", "instances_requested"))
    come = past.filter(pl.col("submit_time") >= known.recent)["submit_time"].to_list()
    first = min(come, default=known.plan_start).replace(hour=0, minute=0, second=0, microsecond=0)
    begin = max(_midnight_from(known.recent), first)
    end = known.plan_start.replace(hour=0, minute=0, second=0)
    days = max((end - begin).days, 0)
    split = end - timedelta(days=min(days // 2, MOST_HELD_BACK_DAYS))
    earlier, later = _between(past, begin, split), _between(past, split, end)
    if days < 2 * WEEK_DAYS or min(earlier.height, later.height) < FEWEST_JOBS:
        text = message(
            f"scenario, data {scenario.data!r}",
            f"at least {2 * WEEK_DAYS} whole days of history with {FEWEST_JOBS} jobs in each half: policies are tuned "
            "on the earlier one and judged on the later one",
            f"{days} days from {begin:%Y-%m-%d} to {end:%Y-%m-%d}, {earlier.height} and {later.height} jobs",
            "Choose a later month, more history_days, or a longer trace; 'simulate' plays policies as they are.",
        )
        raise ScenarioError(text)
    heavier = heavy_week(_daily_gpu_hours(past, begin, split))
    stressed = replace(scenario, arrival_scale=scenario.arrival_scale * heavier)
    return Weeks(
        tuning=tuple(
            _drawn(past, (begin, split), stressed, known, number, 0) for number in range(TUNING_WEEKS)
        ),
        judged=tuple(
            _drawn(past, (split, end), scenario, known, number, 1) for number in range(scenario.replications)
        ),
        usual=tuple(
            _drawn(past, (begin, split), scenario, known, number, 0) for number in range(TUNING_WEEKS)
        ),
        held_back=tuple(
            _as_it_was(past, scenario, split + timedelta(days=first))
            for first in range(0, (end - split).days - WEEK_DAYS + 1, WEEK_DAYS)
        ),
        begin=begin,
        split=split,
        end=end,
        heavier=heavier,
    )


def heavy_week(daily: NDArray[np.float64], *, level: float = SURE) -> float:
    """How much more than the mean of the days seen a week to come may ask for, at a level of confidence.

    The upper end of a prediction interval: a mean of seven days to come around a mean of the days that were seen,
    by Student's t, wider where neighbouring days are alike (first autocorrelation).

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
    mean = float(daily.mean())
    if len(daily) < 2 or mean <= 0:
        return 1.0
    apart = daily - mean
    alike = float((apart[1:] * apart[:-1]).sum() / max((apart**2).sum(), 1e-12))
    alike = min(max(alike, 0.0), MOST_ALIKE)
    high = mean_interval(daily, level=level).high or mean
    spread = (high - mean) * np.sqrt((1 + alike) / (1 - alike) * (len(daily) / WEEK_DAYS + 1))
    return float(min(1.0 + spread / mean, 2.0))


def _daily_gpu_hours(past: pl.DataFrame, begin: datetime, end: datetime) -> NDArray[np.float64]:
    """GPU-hours that jobs would hold on each day if they started when they came."""
    come = past.select(_seconds_from(begin, "submit_time")).to_series().to_numpy()
    gone = come + past["run_s"].to_numpy()
    gpus = past["instances_whole"].fill_null(0).to_numpy()
    days = np.arange((end - begin).days) * SECONDS_PER_DAY
    held = [
        np.clip(np.minimum(gone, day + SECONDS_PER_DAY) - np.maximum(come, day), 0.0, None) @ gpus
        for day in days
    ]
    return np.array(held) / SECONDS_PER_HOUR


def _drawn(
    past: pl.DataFrame, span: Span, scenario: Scenario, known: History, number: int, stream: int
) -> Week:
    """Days drawn from a part of the past, begun with the jobs that ran at one of its midnights."""
    seed = 2 * scenario.seed + stream
    jobs = bootstrap_days(
        _between(past, *span).rename({"key": "job_id"}).drop("start_time", "end_time", "state"),
        days=WEEK_DAYS,
        seed=seed,
        replication=number,
        warmup_days=WARM_UP_DAYS,
        start_weekday=known.plan_start.isoweekday(),
    )
    midnight = span[0] + timedelta(
        days=int(np.random.default_rng([seed, number, 11]).integers((span[1] - span[0]).days))
    )
    return _week(scaled_arrivals(_with_open(past, midnight, jobs), scenario, number))


def _as_it_was(past: pl.DataFrame, scenario: Scenario, start: datetime) -> Week:
    """One week as it was, after the days before it."""
    first = start - timedelta(days=WARM_UP_DAYS)
    jobs = (
        _between(past, first, start + timedelta(days=WEEK_DAYS))
        .rename({"key": "job_id"})
        .with_columns(submit_s=_seconds_from(first, "submit_time"))
        .sort("submit_s", maintain_order=True)
    )
    return _week(scaled_arrivals(_with_open(past, first, jobs), scenario, 0))


def _with_open(past: pl.DataFrame, at: datetime, jobs: pl.DataFrame) -> pl.DataFrame:
    """Put the jobs before others that had come before an instant and were not done, with the rest of their time."""
    age = -_seconds_from(at, "submit_time")
    begun = past.filter((age > 0) & (pl.col("run_s") > age)).with_columns(
        job_id=pl.format("{}#open", "key"),
        submit_s=pl.lit(0.0),
        run_s=pl.col("run_s") - age,
        limit_s=(pl.col("limit_s") - age).clip(1.0),
    )
    columns = [name for name in jobs.columns if name in begun.columns]
    return pl.concat([begun.select(columns), jobs.select(columns)])


def _seconds_from(instant: datetime, column: str) -> pl.Expr:
    return (pl.col(column) - pl.lit(instant)).dt.total_microseconds() / 1e6


def _week(jobs: pl.DataFrame) -> Week:
    numbered = jobs.with_row_index("owner")
    asked = {view: workload(numbered, view, keep=("owner",)) for view in VIEWS}
    begin_s = WARM_UP_DAYS * SECONDS_PER_DAY
    return Week(
        asked={view: rows.drop("active_gpus", "owner") for view, rows in asked.items()},
        owners={view: rows["owner"].to_numpy().astype(np.int64) for view, rows in asked.items()},
        submit_s=jobs["submit_s"].to_numpy(),
        size=jobs["size"].fill_null(1).to_numpy(),
        begin_s=begin_s,
        end_s=begin_s + WEEK_HOURS * SECONDS_PER_HOUR,
    )


def _between(past: pl.DataFrame, begin: datetime, end: datetime) -> pl.DataFrame:
    return past.filter((pl.col("submit_time") >= begin) & (pl.col("submit_time") < end))


def _midnight_from(time: datetime) -> datetime:
    floor = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return floor if floor == time else floor + timedelta(days=1)
