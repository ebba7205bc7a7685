"""Views of layouts and the panel of limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.execution import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units import MISSING_VALUE_TEXT
from gpuplanner.decision.layout_planning import PlannedProblem, plan_view
from gpuplanner.forecast.demand_outlook import OUTLOOK_STAGE_BY_VIEW
from gpuplanner.hardware.layout_enumeration import make_placement_table
from gpuplanner.notebook.views import BackgroundPanel, View, button, dropdown, files_button, slider, table_html, watch
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_explanation import dearest_instances
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_variants import compare_plans, price_of_limits, with_limit
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import still
from gpuplanner.report.layout_schedule_files import hand_over_plan
from gpuplanner.report.policy_and_layout_charts import MAX_GPUS
from gpuplanner.sizing.request_lines import recommend_sharing
from gpuplanner.usage.job_history import history
from gpuplanner.usage.rightsizing import requested_and_used


@dataclass(frozen=True)
class LimitControl:
    """One limit and the range of its slider.

    - ``argument``: Of :func:`gpuplanner.planner.plan_variants.with_limit`.
    - ``label``: With its unit.
    - ``help``: What it means; shown when the pointer rests on it and read by screen readers.
    - ``span``: From a problem to the lowest value, the highest one, and the one as the problem stands.
    """

    argument: str
    label: str
    help: str
    span: Callable[[PlanProblem], tuple[int, int, int]]


def _switches(problem: PlanProblem) -> tuple[int, int, int]:
    most = math.ceil(24 / problem.interval_hours)  # once in every slot is as good as no limit
    allowed = problem.limits.switches_per_day
    return 0, most, most if allowed is None else min(allowed, most)


LIMITS = (
    LimitControl(
        "gpus", "GPUs in the fleet", "Price of fewer or more GPUs",
        lambda problem: (1, problem.gpus + 2 * problem.gpus_per_node, problem.gpus),
    ),
    LimitControl(
        "whole_nodes_kept", "Nodes with MIG disabled", "First nodes, whose GPUs are never partitioned",
        lambda problem: (0, problem.gpus // problem.gpus_per_node, problem.limits.whole_nodes_kept),
    ),
    LimitControl(
        "switches_per_day", "Layout changes per GPU and day", "Maximum number of layout changes of a GPU per day",
        _switches,
    ),
)  # fmt: skip
LOOK: dict[str, Any] = {"style": {"description_width": "18em"}, "layout": {"width": "38em"}}
"""How wide the controls are, and their labels."""
_HEADINGS = ("", "cost", "lower bound", "price of the limit", "at least", "at most")


class LimitsPanel(BackgroundPanel[tuple[LimitControl, int], pl.DataFrame]):
    """Choose a limit and its value, and see the cost before and after and the price of the limit.

    Parameters
    ----------
    problem : PlanProblem
        As it stands; the panel prices one limit at a time against it.
    base : Plan, optional
        Its plan, if there is one already; else it is planned with the first question.
    **how
        Limits of each search, as for :func:`gpuplanner.planner.layout_plan`.

    Attributes
    ----------
    choice : ipywidgets.Dropdown
        Which limit.
    sliders : dict
        ipywidgets controls by argument of ``with_limit``; the one of the chosen limit is shown.
    prices : polars.DataFrame or None
        Newest answer, see :func:`gpuplanner.planner.plan_variants.price_of_limits`.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> panel = LimitsPanel(problem, gap_target=0)
    >>> panel.sliders["gpus"].value = 1
    >>> panel.ask().result()["extra"].round(3).to_list()
    [0.0, 7.521]
    """

    def __init__(self, problem: PlanProblem, *, base: Plan | None = None, **how: Any) -> None:  # noqa: ANN401
        super().__init__(self._priced, price_html, working="Planning with this limit ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.problem = problem
        self._base = base
        self._how = how
        options = [(limit.label, limit) for limit in LIMITS]
        self.choice = dropdown(options, LIMITS[0], "Limit", tooltip="Limit to price", **LOOK)
        self.sliders = {limit.argument: _slider(limit, problem) for limit in LIMITS}
        self.code = widgets.HTML()
        self.button = button("Plan", "Plan with the chosen limit", self.ask)
        watch([self.choice, *self.sliders.values()], self._changed)
        controls = [self.choice, *self.sliders.values(), self.button]
        self.panel = widgets.VBox([*controls, self.code, self.status, self.answer])
        self._say()

    @property
    def question(self) -> tuple[LimitControl, int]:
        """The chosen limit and its value."""
        limit: LimitControl = self.choice.value
        return limit, self.sliders[limit.argument].value

    @property
    def prices(self) -> pl.DataFrame | None:
        """Newest answer."""
        return self.newest

    def _priced(self, question: tuple[LimitControl, int]) -> pl.DataFrame:
        limit, value = question
        variants = {}
        if value != limit.span(self.problem)[2]:
            variants[f"{limit.label}: {value}"] = with_limit(self.problem, **{limit.argument: value})
        if self._base is None:
            self._base = plan(self.problem, **self._how)
        return price_of_limits(self.problem, variants, base_plan=self._base, **self._how)

    def _changed(self) -> None:
        self._say()
        self.ask_soon()

    def _say(self) -> None:
        """Show the slider of the chosen limit alone, and the question in code."""
        limit, value = self.question
        for argument, control in self.sliders.items():
            control.layout.display = None if argument == limit.argument else "none"
        self.code.value = f"<code>found.limits({escape(limit.argument)}={value})</code>"


def price_html(prices: pl.DataFrame) -> str:
    """Cost before and after, the price of each limit with its range, and what binds.

    Parameters
    ----------
    prices : polars.DataFrame
        From :func:`gpuplanner.planner.plan_variants.price_of_limits`: the problem as it stands, then its variants.
    """
    rows = list(prices.iter_rows(named=True))
    cells = (
        [row["variant"], *(_number(row[name], "") for name in ("objective", "bound"))]
        + [_number(row[name], "+") for name in ("extra", "extra_low", "extra_high")]
        for row in rows
    )
    texts = ((escape(row["variant"]), escape(row["explanation"])) for row in rows[1:] or rows)
    said = "".join(f"<p><b>{name}.</b> {text}</p>" for name, text in texts)
    caption = "Prices of limits [GPU h]; the true price is between 'at least' and 'at most' (proven)"
    return table_html(_HEADINGS, cells, caption=caption) + said


def _number(value: float | None, sign: str) -> str:
    return MISSING_VALUE_TEXT if value is None else format(round(value, 1) + 0.0, f"{sign},.1f").replace("-", "−")


def _slider(limit: LimitControl, problem: PlanProblem) -> Any:  # noqa: ANN401 - an ipywidgets control
    """A slider set to the problem as it stands; a drag ends in one change."""
    low, high, now = limit.span(problem)
    return slider(now, low, high, 1, limit.label, limit.help, **LOOK)


VIEW = "rightsized"
SHARED = ("job_class", "gpus", "jobs", "mode", "profile", "together", "slow_at_most", "why", "with_whom")
_KINDS = {
    "objective": "cost [GPU h]",
    "bound": "lower bound [GPU h]",
    "distinct": "layout mixes in use",
}


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """A fleet with its demand, and the plan that is free to change; its parts show themselves.

    - ``scenario``, ``planned``: What was asked, and the problem with its plan.
    """

    scenario: Scenario
    planned: PlannedProblem

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
            "lower bound": _hours(self.plan.bound),
            "fleet": f"{self.problem.gpus:,} x {self.problem.gpu_model.name}",
        }
        return still(page.section("The plan", page.answers(facts, caption="The plan")))._repr_html_()

    def asked(self) -> View:
        """The fleet, and what is asked of it: instances wanted by profile, with their forecast."""
        one, wanted = self.problem, OUTLOOK_STAGE_BY_VIEW[VIEW](self.scenario)
        facts = {
            "fleet": f"{one.gpus:,} x {one.gpu_model.name}, {one.gpus_per_node} a node",
            "horizon": f"{one.n_slots:,} × {one.interval_hours:g} h from {one.slot_start:%Y-%m-%d %H:%M} UTC",
            "teams": f"{len(one.tenants):,}",
            "requested profiles": ", ".join(one.profiles),
            "demand covered": f"p{100 * self.scenario.quantile:g} of the forecast",
        }
        chart = page.figure(
            plots.plot_demand(wanted.demand, wanted.to_cover),
            title="Demand for MIG instances, with the forecast",
            alt=f"Rightsized requests by profile; the plan covers the quantile {self.scenario.quantile:g}.",
        )
        shown = page.section("Demand", page.answers(facts, caption="Fleet and demand"), chart)
        return View(shown, wanted.demand)

    def in_use(self) -> View:
        """What the free plan cuts GPUs into, on the memory slices of the board."""
        gpu_model = self.problem.gpu_model
        table = make_placement_table(gpu_model, self.plan.layouts)
        cut = table["layout"].n_unique()
        chart = page.figure(
            plots.plot_board(table, memory_slices=gpu_model.memory_slices),
            title="Layouts in use",
            alt=f"{cut} layouts on the {gpu_model.memory_slices} memory slices of {gpu_model.name}; no full GPUs.",
            numbers=table,
        )
        return View(page.section("The layouts in use", chart), table)

    def sharing(self) -> View:
        """Who may share a GPU, and how."""
        known = history(self.scenario)
        table = recommend_sharing(requested_and_used(known.jobs, samples=known.trace.samples)).select(SHARED)
        caption = "GPU sharing by job class"
        return View(page.section("GPU sharing", page.table(table, caption=caption)), table)

    @cached_property
    def _kinds(self) -> pl.DataFrame:
        known = {"auto": self.plan}
        return compare_plans(self.problem, calendars=(2, 4), reused_plans=known, work_limit=self.scenario.work_limit)

    def kinds(self) -> View:
        """One layout for good, a few in turn, and free to change, beside the cost that no plan undercuts."""
        table = self._kinds
        best = table.drop_nulls("objective").sort("objective", maintain_order=True)
        said = "No plan was found."
        if not best.is_empty():
            cost, bound = _hours(best["objective"][0]), _hours(best["bound"][0])
            said = f"{best['method'][0]} costs least, {cost}; the lower bound of all plans is {bound}."
        title = "Cost of each plan, and the lower bound"
        chart = page.figure(plots.plot_bounds(table), title=title, alt=said)
        rows = page.table(table, caption="Plans for the same demand", headings=_KINDS, formats={"gap": ".2%"})
        return View(page.section("Static, calendar or unrestricted", chart, rows), table)

    def calendar(self) -> View:
        """Each GPU over time, where it is cut anew, and what one instance more would be worth."""
        cuts = self.planned.layout_plan
        gpus = cuts.select("node", "gpu").unique().sort("node", "gpu")
        names = [f"{node} · {gpu}" for node, gpu in gpus.rows()]
        few = cuts.filter(pl.format("{} · {}", "node", "gpu").is_in(names[:MAX_GPUS]))
        left = f" The first {MAX_GPUS} of {len(names):,} GPUs are shown." if len(names) > MAX_GPUS else ""
        chart = page.figure(
            plots.plot_layout_calendar(few),
            title="Layout of each GPU over time",
            alt=f"{self.plan.changes:,} layout changes; a mark shows where a GPU is repartitioned.{left}",
        )
        worth = dearest_instances(self.plan, self.problem, count=8)
        rows = page.table(worth, caption="Value of one more instance, highest first")
        return View(page.section("The calendar", page.paragraph(self.plan.explanation), chart, rows), cuts)

    def limits(self, **limit: Any) -> View:  # noqa: ANN401 - of with_limit
        """What limits cost; ``gpus``, ``whole_nodes_kept`` or ``switches_per_day`` prices that one alone."""
        nodes, size = self.problem.gpus // self.problem.gpus_per_node, self.problem.gpus_per_node
        asked = {
            "one node fewer": {"gpus": self.problem.gpus - size},
            "one node more": {"gpus": self.problem.gpus + size},
            "MIG disabled on all nodes but one": {"whole_nodes_kept": nodes - 1},
            "one layout change per GPU and day": {"switches_per_day": 1},
        }
        if nodes < 2:
            del asked["one node fewer"]
        if limit:
            asked = {", ".join(f"{name}={value}" for name, value in limit.items()): limit}
        variants = {name: with_limit(self.problem, **one) for name, one in asked.items()}
        found = price_of_limits(self.problem, variants, base_plan=self.plan, work_limit=self.scenario.work_limit)
        return View(page.section("Prices of limits", price_html(found)), found)

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
        The fleet, its data, and how far the search may go (``horizon_intervals``, ``work_limit``).

    Returns
    -------
    PlannedLayouts
        ``asked()``, ``in_use()``, ``recommend_sharing()``, ``kinds()``, ``calendar()``, ``limits()``: a view each;
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
    gpuplanner.core.errors.TraceFormatError: ...
    """
    return PlannedLayouts(scenario, plan_view(scenario, VIEW, "auto"))
