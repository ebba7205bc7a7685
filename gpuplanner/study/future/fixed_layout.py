"""What a schedule of layouts wins over the best layout that never changes, both replayed on the same weeks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.plain import rounded
from gpuplanner.scenario import Scenario
from gpuplanner.study.cache import stage
from gpuplanner.study.decision.types import DECIMALS
from gpuplanner.study.future.drains import RehearsedWeek, played_weeks
from gpuplanner.study.future.plans import Planned, planned_calendar, planned_for
from gpuplanner.units import HOURS_PER_WEEK, SECONDS_PER_HOUR, SECONDS_PER_MINUTE

WAIT_PERCENTILE = 0.95
JOB_SIZES = (1, 4, 8)
"""GPUs of a job on full GPUs up to which it is of the same size."""


@dataclass(frozen=True)
class OverFixed:
    """A schedule of layouts against the best fixed layout.

    - ``gpu_hours_saved_per_week``: GPU-hours that it provisions less.
    - ``added_p95_minutes``: The largest rise of the p95 queue wait over job sizes.
    - ``weeks``: Drawn weeks on which both were replayed.
    """

    gpu_hours_saved_per_week: float
    added_p95_minutes: float
    weeks: int

    @property
    def sentence(self) -> str:
        """The comparison in words.

        Examples
        --------
        >>> OverFixed(120.0, 4.0, 8).sentence
        'Over the best fixed layout the schedule frees 120 GPU-hours a week, and adds 4 min to the p95 queue wait.'
        """
        saved, added = self.gpu_hours_saved_per_week, self.added_p95_minutes
        hours = f"{'frees' if saved >= 0 else 'takes'} {abs(saved):,.0f} GPU-hours a week"
        wait = f"{'adds' if added >= 0 else 'takes'} {abs(added):,.0f} min {'to' if added >= 0 else 'off'} the p95"
        return f"Over the best fixed layout the schedule {hours}, and {wait} queue wait."


def compare_with_fixed(
    schedule: Iterable[RehearsedWeek], fixed: Iterable[RehearsedWeek], until_s: float
) -> OverFixed:
    """Compare replays of a schedule with replays of a fixed layout on the same weeks.

    Parameters
    ----------
    schedule, fixed : iterable of RehearsedWeek
        One for each week.
    until_s : float
        End of a week, at which a job that has not started waits no longer [s].
    """
    weeks, fixed_weeks = ([_week(one, until_s) for one in some] for some in (schedule, fixed))
    hours, fixed_hours = (np.mean([one for one, _ in some]) for some in (weeks, fixed_weeks))
    wait_s = [
        pl.concat([waits for _, waits in some]).group_by("size").agg(pl.col("wait_s").median())
        for some in (weeks, fixed_weeks)
    ]
    added = wait_s[0].join(wait_s[1], on="size", suffix="_fixed")
    added_s = added.select((pl.col("wait_s") - pl.col("wait_s_fixed")).max()).item() or 0.0
    per_week = HOURS_PER_WEEK * SECONDS_PER_HOUR / until_s
    saved = per_week * float(fixed_hours - hours)
    return rounded(OverFixed(saved, added_s / SECONDS_PER_MINUTE, len(weeks)), DECIMALS)


def _week(week: RehearsedWeek, until_s: float) -> tuple[float, pl.DataFrame]:
    """GPU-hours provisioned, and the p95 queue wait of each job size [s]."""
    asked = week.requests
    start_s = np.minimum(np.nan_to_num(week.outcome.start_s, nan=until_s), until_s)
    names = np.array(week.fleet.profiles)[asked.profile]
    size = np.where(asked.profile == 0, np.searchsorted(JOB_SIZES, asked.total).astype(str), names)
    waits = pl.DataFrame({"size": size, "submit_s": asked.ready_s, "wait_s": start_s - asked.ready_s})
    judged = waits.filter(pl.col("submit_s").is_between(0.0, until_s))
    p95 = judged.group_by("size").agg(pl.col("wait_s").quantile(WAIT_PERCENTILE, "higher"))
    return week.gpu_hours_on(until_s), p95


def over_fixed(scenario: Scenario, planned: Planned) -> OverFixed | None:
    """Replay a plan and the best layout that never changes; None where either is not found."""
    fixed = planned_for(planned.problem, scenario, "static") if planned.plan.found else planned
    if not fixed.plan.found:
        return None
    problem = planned.problem
    schedule, static = (played_weeks(scenario, one.layout_plan, problem) for one in (planned, fixed))
    until_s = problem.n_slots * problem.slot_hours * SECONDS_PER_HOUR
    return compare_with_fixed(schedule, static, until_s)


@stage
def plan_over_fixed(scenario: Scenario) -> OverFixed | None:
    """The plan of a study against the best fixed layout."""
    return over_fixed(scenario, planned_calendar(scenario))
