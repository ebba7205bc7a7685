"""The calm plan, few sets of layouts that take turns, beside the free one: what each costs as planned and as played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from gpuplanner.export.changes import (held_by, layout_changes_of)
from gpuplanner.export.states import checked_plan
from gpuplanner.plain import rounded
from gpuplanner.planner.contract.problem import UNMET_PRICE
from gpuplanner.planner.numbered.assign import layouts_before
from gpuplanner.scenario import Scenario
from gpuplanner.study.cache import stage
from gpuplanner.study.decision.types import DECIMALS
from gpuplanner.study.future.drains import played_weeks
from gpuplanner.study.future.plans import Planned, planned_calendar, planned_for
from gpuplanner.units import SECONDS_PER_HOUR, counted

CALM, FREE = "calm", "free"
"""Few sets of layouts take turns; any number of them."""


@dataclass(frozen=True)
class Played:
    """A plan on weeks that are drawn, its changes made as the path makes them; means of the weeks [GPU h].

    - ``cost``: GPUs on and parked, and what jobs waited for, each at its price in the plan.
    - ``gpu_hours``: Of GPUs that are on.
    - ``waited_gpu_hours``: Of jobs between submission and start.
    - ``weeks``: That were played.
    """

    cost: float
    gpu_hours: float
    waited_gpu_hours: float
    weeks: int


@dataclass(frozen=True)
class PlanChoice:
    """One of the plans to choose from.

    - ``name``, ``method``: :data:`CALM` or :data:`FREE`, and the method that finds it.
    - ``taken``: Whether it is the one that is handed over.
    - ``objective``, ``bound``, ``gap``, ``unmet_gpu_hours``: As of the plan [GPU h].
    - ``changes``, ``departures``, ``reboots``: As of the plan: GPUs that are cut, that leave a layout, and reboots.
    - ``change_times``, ``files``: Times at which something is cut anew, and files to apply, one for all times that do
      the same; None where nodes have no names.
    - ``played``: None where there are no jobs to play.
    """

    name: str
    method: str
    taken: bool
    objective: float
    bound: float
    gap: float
    unmet_gpu_hours: float
    changes: int
    departures: int
    reboots: int
    change_times: int | None
    files: int | None
    played: Played | None = None

    @classmethod
    def of(cls, name: str, method: str, planned: Planned, played: Played | None = None) -> PlanChoice:
        """A plan that was found; the calm one is taken where both are made."""
        plan, problem = planned.plan.require(), planned.problem
        assert plan.objective is not None
        assert plan.bound is not None
        assert plan.gap is not None
        times = files = None
        if problem.nodes is not None and problem.board.profiles:
            frame = checked_plan(planned.layout_plan, problem.board)
            changes = layout_changes_of(frame, initial=held_by(layouts_before(plan, problem)))
            times, files = len({time for one in changes for time in one.times}), len(changes)
        found = cls(
            name, method, name == CALM, plan.objective, plan.bound, plan.gap, plan.unmet_gpu_hours, plan.changes,
            plan.departures, plan.reboots, times, files, played,
        )  # fmt: skip
        return rounded(found, DECIMALS)

    @property
    def words(self) -> str:
        """The plan in one sentence without its end."""
        text = f"the {self.name} plan costs {self.objective:,.5g}"
        if self.played is not None:
            text += f", and {self.played.cost:,.5g} played"
        cut = counted(self.changes, "cut")
        if self.files is not None and self.change_times is not None:
            cut += f" at {counted(self.change_times, 'time')} by {counted(self.files, 'file')}"
        return f"{text}, with {cut}"


def choices(
    planned: Planned, free: Planned, method: str, scenario: Scenario | None = None
) -> tuple[PlanChoice, ...]:
    """The calm plan and the free one beside it, played where there is a scenario.

    A calm plan that costs no more than the free one that was found is free enough: both are then the same.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.contract.problem import PlanProblem
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["7g.40gb"], [[[1, 2, 0]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> calm = Planned(problem, plan(problem, method="calendar", calendars=1))
    >>> for one in choices(calm, Planned(problem, plan(problem)), "auto"):
    ...     print(one.name, one.method, one.objective, one.unmet_gpu_hours, one.played)
    calm calendar 6.0 0.0 None
    free auto 3.1 0.0 None
    """
    calm_price, free_price = (one.plan.require().objective or 0.0 for one in (planned, free))
    if calm_price <= free_price:
        free = planned
    calm_played = None if scenario is None else play(scenario, planned)
    free_played = calm_played if free is planned or scenario is None else play(scenario, free)
    calm = PlanChoice.of(CALM, "calendar", planned, calm_played)
    return calm, PlanChoice.of(FREE, method, free, free_played)


def play(scenario: Scenario, planned: Planned) -> Played:
    """What comes of a plan on drawn weeks: nodes are kept free for changes, and waiting has a price."""
    problem = planned.problem
    until_s = problem.n_slots * problem.slot_hours * SECONDS_PER_HOUR
    parked_price = 0.0 if problem.prices is None else problem.prices.parked_price
    installed = problem.gpus * problem.n_slots * problem.slot_hours
    weeks = []
    for week in played_weeks(scenario, planned.layout_plan, problem):
        on = week.gpu_hours_on(until_s)
        requests = week.requests
        start_s = np.minimum(np.nan_to_num(week.outcome.start_s, nan=until_s), until_s)
        gpus = week.fleet.weights[requests.profile] * requests.total
        waited = float(gpus @ np.maximum(start_s - requests.ready_s, 0.0)) / SECONDS_PER_HOUR
        cost = problem.on_price * on + parked_price * (installed - on) + UNMET_PRICE * waited
        weeks.append((cost, on, waited))
    cost, on, waited = np.mean(weeks, axis=0).tolist()
    return Played(cost, on, waited, len(weeks))


def calm_and_free(scenario: Scenario, planned: Planned) -> tuple[PlanChoice, ...]:
    """The calm plan of a scenario and the free one; nothing beside a plan that is free already, or was not found."""
    if planned.plan.method != "calendar" or not planned.plan.found:
        return ()
    free = planned_for(planned.problem, scenario, "milp")
    return choices(planned, free, "milp", scenario) if free.plan.found else ()


@stage
def plan_choices(scenario: Scenario) -> tuple[PlanChoice, ...]:
    """The plan of a study, with the free one beside it; see :func:`calm_and_free`."""
    return calm_and_free(scenario, planned_calendar(scenario))


def choice_table(found: Sequence[PlanChoice]) -> pl.DataFrame:
    """A row for each plan, what was played in columns of its own; what nothing is known of is left out."""
    rows = []
    names = [each.name for each in fields(PlanChoice) if each.name not in ("taken", "played")]
    for one in found:
        row = {name: getattr(one, name) for name in names}
        if one.played is not None:
            row |= {f"played_{each.name}": getattr(one.played, each.name) for each in fields(one.played)}
        stated = {name: value for name, value in row.items() if value is not None}
        rows.append({"plan": stated.pop("name")} | stated)
    return pl.DataFrame(rows)


def choice_sentence(found: Sequence[PlanChoice]) -> str:
    """What is taken, what the other plan would cost, and how to take that."""
    calm, free = found
    if free.objective >= calm.objective:
        return f"{_begin(calm.words)}: no plan that changes more often was found to cost less."
    text = f"{_begin(calm.words)}; {free.words}: --method {free.method} takes it."
    if calm.played is None:
        return text
    return (
        f"{text} Played: on {counted(calm.played.weeks, 'drawn week')}, with waiting at the price of unmet demand and "
        "nodes kept free for changes as the path does it."
    )


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]
