"""The layouts that a fleet needs, for notebooks and scripts: what is asked of it, plans of three kinds, and limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import plot
from gpuplanner.hardware.enumerate import placement_table
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.program.realised_cost import dearest_instances
from gpuplanner.planner.variants import compare_plans, price_of_limits, with_limit
from gpuplanner.plot.layout import MAX_GPUS
from gpuplanner.report import page
from gpuplanner.report.section import still
from gpuplanner.scenario import Scenario
from gpuplanner.sizing.past_use import asked_and_used
from gpuplanner.sizing.shared_gpus import sharing
from gpuplanner.study.future.outlook import OUTLOOKS
from gpuplanner.study.future.plans import Planned, plan_view
from gpuplanner.study.handover.calendar import hand_over_plan
from gpuplanner.study.past.history import history
from gpuplanner.views.view import View
from gpuplanner.widgets.limits import LimitsPanel, price_html
from gpuplanner.widgets.written import files_button

VIEW = "rightsized"
DEAREST = 8
"""Instances whose worth is shown."""
SHARED = ("job_class", "gpus", "jobs", "mode", "profile", "together", "slow_at_most", "why", "with_whom")
_KINDS = {
    "objective": "cost [GPU h]",
    "bound": "no plan costs less [GPU h]",
    "distinct": "vectors of counts in use",
}


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """A fleet with its demand, and the plan that is free to change; its parts show themselves.

    - ``scenario``, ``planned``: What was asked, and the problem with its plan.
    """

    scenario: Scenario
    planned: Planned

    @property
    def problem(self) -> PlanProblem:
        """Fleet, demand, prices and limits."""
        return self.planned.problem

    @property
    def plan(self) -> Plan:
        """The plan that is free to change."""
        return self.planned.plan

    def _repr_html_(self) -> str:
        facts = {
            "plan": f"{self.plan.status}: {self.plan.explanation}",
            "cost": _hours(self.plan.objective),
            "no plan costs less than": _hours(self.plan.bound),
            "fleet": f"{self.problem.gpus:,} x {self.problem.board.name}",
        }
        return still(page.section("The plan", page.answers(facts, caption="The plan")))._repr_html_()

    def asked(self) -> View:
        """The fleet, and what is asked of it: instances wanted by profile, with their forecast."""
        one, wanted = self.problem, OUTLOOKS[VIEW](self.scenario)
        facts = {
            "fleet": f"{one.gpus:,} x {one.board.name}, {one.gpus_per_node} a node",
            "horizon": f"{one.n_slots:,} slots of {one.slot_hours:g} h from {one.slot_start:%Y-%m-%d %H:%M} UTC",
            "tenants": f"{len(one.tenants):,}",
            "profiles asked for": ", ".join(one.profiles),
            "demand covered": f"with a probability of {self.scenario.quantile:.0%}",
        }
        chart = page.figure(
            plot.plot_demand(wanted.demand, wanted.to_cover),
            title="Instances wanted, with the forecast",
            alt=f"Requests right-sized, profile by profile; the plan covers the quantile {self.scenario.quantile:g}.",
        )
        shown = page.section("What is asked", page.answers(facts, caption="Fleet and demand"), chart)
        return View(shown, wanted.demand)

    def in_use(self) -> View:
        """What the free plan cuts GPUs into, on the memory slices of the board."""
        board = self.problem.board
        table = placement_table(board, self.plan.layouts)
        cut = table["layout"].n_unique()
        chart = page.figure(
            plot.plot_board(table, memory_slices=board.memory_slices),
            title="Layouts in use",
            alt=f"{cut} layouts on the {board.memory_slices} memory slices of {board.name}; whole GPUs are not drawn.",
            numbers=table,
        )
        return View(page.section("The layouts in use", chart), table)

    def sharing(self) -> View:
        """Who may share a GPU, and how."""
        known = history(self.scenario)
        table = sharing(asked_and_used(known.jobs, samples=known.trace.samples)).select(SHARED)
        caption = "How jobs of each class may share a GPU"
        return View(page.section("Who may share", page.table(table, caption=caption)), table)

    @cached_property
    def _kinds(self) -> pl.DataFrame:
        known = {"auto": self.plan}
        return compare_plans(self.problem, calendars=(2, 4), known=known, work_limit=self.scenario.work_limit)

    def kinds(self) -> View:
        """One layout for good, a few in turn, and free to change, beside the cost that no plan undercuts."""
        table = self._kinds
        best = table.drop_nulls("objective").sort("objective", maintain_order=True)
        said = (
            "No plan was found."
            if best.is_empty()
            else f"{best['method'][0]} costs least, {_hours(best['objective'][0])}; no plan of any kind costs less "
            f"than {_hours(best['bound'][0])}."
        )
        chart = page.figure(
            plot.plot_bounds(table), title="Cost of each plan, and what no plan undercuts", alt=said
        )
        rows = page.table(table, caption="Plans of the same problem", headings=_KINDS, formats={"gap": ".2%"})
        return View(page.section("Static, calendar or free", chart, rows), table)

    def calendar(self) -> View:
        """Each GPU over time, where it is cut anew, and what one instance more would be worth."""
        cuts = self.planned.layout_plan
        names = [
            f"{node} · {gpu}" for node, gpu in cuts.select("node", "gpu").unique().sort("node", "gpu").rows()
        ]
        few = cuts.filter(pl.format("{} · {}", "node", "gpu").is_in(names[:MAX_GPUS]))
        left = f" The first {MAX_GPUS} of {len(names):,} GPUs are drawn." if len(names) > MAX_GPUS else ""
        chart = page.figure(
            plot.plot_layout_calendar(few),
            title="Layout of each GPU over time",
            alt=f"{self.plan.changes:,} changes; a mark shows where a GPU is cut anew.{left}",
        )
        worth = dearest_instances(self.plan, self.problem, count=DEAREST)
        rows = page.table(worth, caption="Worth of one more instance, dearest first")
        return View(page.section("The calendar", page.paragraph(self.plan.explanation), chart, rows), cuts)

    def limits(self, **limit: Any) -> View:  # noqa: ANN401 - of with_limit
        """What limits cost; ``gpus``, ``whole_nodes_kept`` or ``switches_per_day`` prices that one alone."""
        nodes = self.problem.gpus // self.problem.gpus_per_node
        asked = (
            {", ".join(f"{name}={value}" for name, value in limit.items()): limit}
            if limit
            else {
                "one node fewer": {"gpus": self.problem.gpus - self.problem.gpus_per_node},
                "one node more": {"gpus": self.problem.gpus + self.problem.gpus_per_node},
                "all nodes but one kept whole": {"whole_nodes_kept": nodes - 1},
                "one cut of each GPU a day": {"switches_per_day": 1},
            }
        )
        if not limit and nodes < 2:
            del asked["one node fewer"]
        variants = {name: with_limit(self.problem, **one) for name, one in asked.items()}
        found = price_of_limits(self.problem, variants, base=self.plan, work_limit=self.scenario.work_limit)
        return View(page.section("What limits cost", price_html(found)), found)

    def controls(self) -> LimitsPanel:
        """The same for any value, planned in the background."""
        return LimitsPanel(self.problem, base=self.plan, work_limit=self.scenario.work_limit)

    def button(self, folder: str | Path) -> Any:  # noqa: ANN401 - of ipywidgets
        """A button that does what :meth:`export` does, and links what was written."""
        return files_button(lambda: self.export(folder))

    def export(self, folder: str | Path) -> Path:
        """Write what operators apply for the plan, with a workbook, and give the page that says where to begin."""
        return hand_over_plan(self.planned, folder, scenario=self.scenario)


def _hours(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.1f} GPU-hours"


def layouts(scenario: Scenario) -> PlannedLayouts:
    """Plan which layouts a fleet needs over the horizon, free to change wherever that pays.

    Parameters
    ----------
    scenario : Scenario
        The fleet, its data, and how far the search may go (``horizon_slots``, ``work_limit``).

    Returns
    -------
    PlannedLayouts
        ``asked()``, ``in_use()``, ``sharing()``, ``kinds()``, ``calendar()``, ``limits()``: a view each;
        ``controls()``, ``button()``, ``export()``, ``problem``, ``plan``.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used; the message says what to do.

    Examples
    --------
    >>> layouts(Scenario(data="nowhere"))
    Traceback (most recent call last):
        ...
    gpuplanner.errors.TraceFormatError: ...
    """
    return PlannedLayouts(scenario, plan_view(scenario, VIEW, "auto"))
