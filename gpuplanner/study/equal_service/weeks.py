"""The weeks that policies are tuned on, and the later ones that they are judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.demand.hazards import fit_hazards, width_class
from gpuplanner.errors import ScenarioError, message
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import bootstrap_days
from gpuplanner.study.equal_service.size_classes import FEWEST_JOBS, SIZE_CLASSES, classed
from gpuplanner.study.equal_service.spread import daily_gpu_hours, heavy_week, seconds_from
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
COLUMNS = {"class": "job_class"}
"""Columns of jobs whose name is not what a scenario calls them."""


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
        Number of their class in :attr:`Weeks.classes`.
    begin_s, end_s : float
        What is measured; days before it warm the fleet up.
    active : mapping of str to array of float
        For each of those rows its SM activity in whole GPUs; NaN if nobody measured it.
    """

    asked: Mapping[str, pl.DataFrame]
    owners: Mapping[str, NDArray[np.int64]]
    submit_s: NDArray[np.float64]
    size: NDArray[np.int64]
    begin_s: float
    end_s: float
    active: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def judged(self) -> NDArray[np.bool_]:
        """Jobs that come within what is measured."""
        inside: NDArray[np.bool_] = (self.submit_s >= self.begin_s) & (self.submit_s < self.end_s)
        return inside

    def only(self, view: str, which: pl.Expr) -> Week:
        """The same week with some of the jobs of one view, and no other view."""
        rows = self.asked[view].with_row_index("row").filter(which)
        kept = rows["row"].to_numpy()
        return replace(
            self, asked={view: rows.drop("row")}, owners={view: self.owners[view][kept]}, active={}
        )


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
    classes : tuple of str
        Names of the classes of jobs.
    """

    tuning: tuple[Week, ...]
    judged: tuple[Week, ...]
    usual: tuple[Week, ...]
    held_back: tuple[Week, ...]
    begin: datetime
    split: datetime
    end: datetime
    heavier: float
    classes: tuple[str, ...] = SIZE_CLASSES

    def jobs_by_class(self) -> NDArray[np.int64]:
        """Judged jobs of each class, over all drawn weeks."""
        return sum(
            (np.bincount(week.size[week.judged], minlength=len(self.classes)) for week in self.judged),
            np.zeros(len(self.classes), np.int64),
        )


@stage("arrival_scale", "replications", "seed", "wait_by", after=(history,))
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
    past = drawn_past(known, scenario.wait_by)
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
    then = as_known(past, split, scenario.seed)
    heavier = heavy_week(daily_gpu_hours(then, begin, split, pl.col("instances_whole")))
    stressed = replace(scenario, arrival_scale=scenario.arrival_scale * heavier)
    return Weeks(
        tuning=tuple(
            _drawn(then, (begin, split), stressed, known, number, 0) for number in range(TUNING_WEEKS)
        ),
        judged=tuple(
            _drawn(past, (split, end), scenario, known, number, 1) for number in range(scenario.replications)
        ),
        usual=usual_weeks(scenario, known, begin, split),
        held_back=tuple(
            _as_it_was(past, scenario, split + timedelta(days=first))
            for first in range(0, (end - split).days - WEEK_DAYS + 1, WEEK_DAYS)
        ),
        begin=begin,
        split=split,
        end=end,
        heavier=heavier,
        classes=_classes(known, scenario.wait_by)[1],
    )


def usual_weeks(scenario: Scenario, known: History, begin: datetime, split: datetime) -> tuple[Week, ...]:
    """Weeks drawn day by day from a part of the past, with its jobs as `known` reads them."""
    past = as_known(drawn_past(known, scenario.wait_by), split, scenario.seed)
    return tuple(_drawn(past, (begin, split), scenario, known, number, 0) for number in range(TUNING_WEEKS))


def grown_weeks(
    scenario: Scenario, known: History, drawn: Weeks, factor: float, count: int
) -> tuple[Week, ...]:
    """Weeks drawn from the days that are judged, with so many times the jobs."""
    grown = replace(scenario, arrival_scale=scenario.arrival_scale * factor)
    past = drawn_past(known, scenario.wait_by)
    return tuple(_drawn(past, (drawn.split, drawn.end), grown, known, number, 1) for number in range(count))


def drawn_past(known: History, by: str = "size") -> pl.DataFrame:
    """Jobs of the past with the number of their class in column ``size``."""
    return past_jobs(known).with_columns(size=_classes(known, by)[0])


def _classes(known: History, by: str) -> tuple[pl.Series, tuple[str, ...]]:
    kept = known.views["requested"].filter(pl.col("run_s").is_not_null())
    asked = kept.select(
        "tenant", "tier", "job_class", profile_requested="profile", instances_requested="instances"
    )
    return classed(asked, COLUMNS.get(by, by))


def as_known(past: pl.DataFrame, at: datetime, seed: int) -> pl.DataFrame:
    """Jobs that came before an instant, as they were known then: those not done by then run on for a drawn time."""
    jobs = past.filter(pl.col("submit_time") < at)
    seen_h = -seconds_from(at, "submit_time") / SECONDS_PER_HOUR
    ran_h, whole_h = jobs.select(seen_h, pl.col("run_s") / SECONDS_PER_HOUR).to_numpy().T
    ended = whole_h <= ran_h
    kind = width_class(jobs["instances_whole"].fill_null(1).to_numpy())
    law = fit_hazards(np.minimum(ran_h, whole_h), ended, [kind])
    rng = np.random.default_rng([seed, 13])
    drawn_s = SECONDS_PER_HOUR * (ran_h + law.remaining(kind, ran_h, rng.exponential(size=len(kind))))
    guess = pl.Series(np.where(ended, jobs["run_s"].to_numpy(), drawn_s))
    return jobs.with_columns(run_s=guess, limit_s=pl.max_horizontal("limit_s", guess))


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
        .with_columns(submit_s=seconds_from(first, "submit_time"))
        .sort("submit_s", maintain_order=True)
    )
    return _week(scaled_arrivals(_with_open(past, first, jobs), scenario, 0))


def _with_open(past: pl.DataFrame, at: datetime, jobs: pl.DataFrame) -> pl.DataFrame:
    """Put the jobs before others that had come before an instant and were not done, with the rest of their time."""
    age = -seconds_from(at, "submit_time")
    begun = past.filter((age > 0) & (pl.col("run_s") > age)).with_columns(
        job_id=pl.format("{}#open", "key"),
        submit_s=pl.lit(0.0),
        run_s=pl.col("run_s") - age,
        limit_s=(pl.col("limit_s") - age).clip(1.0),
    )
    columns = [name for name in jobs.columns if name in begun.columns]
    return pl.concat([begun.select(columns), jobs.select(columns)])


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
        active={
            view: rows["active_gpus"].cast(pl.Float64).fill_null(np.nan).to_numpy()
            for view, rows in asked.items()
        },
    )


def _between(past: pl.DataFrame, begin: datetime, end: datetime) -> pl.DataFrame:
    return past.filter((pl.col("submit_time") >= begin) & (pl.col("submit_time") < end))


def _midnight_from(time: datetime) -> datetime:
    floor = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return floor if floor == time else floor + timedelta(days=1)
