"""Views of layouts and the panel of limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT
from gpuplanner.decision.layout_planning import PlannedProblem, plan_view
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.hardware.layout_enumeration import make_placement_table
from gpuplanner.notebook.cluster import StudySource, make_scenario
from gpuplanner.notebook.views_and_panels import (
    BackgroundPanel,
    View,
    button,
    dropdown,
    files_button,
    on_change,
    slider,
    table_html,
)
from gpuplanner.planner.fleet_plans_and_comparisons import compare_plans, price_of_limits, with_limit
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_explanation import dearest_instances
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import to_still_text
from gpuplanner.report.layout_schedule_files import write_plan_handover
from gpuplanner.report.policy_and_layout_charts import MAX_CALENDAR_ROWS
from gpuplanner.sizing.request_lines_and_gpu_sharing import recommend_sharing
from gpuplanner.usage.rightsizing import requested_and_used
from gpuplanner.usage.study_history import history


@dataclass(frozen=True)
class LimitControl:
    """A limit of a layout plan that a slider changes, with the range of the slider.

    - ``argument``: Argument of :func:`gpuplanner.planner.fleet_plans_and_comparisons.with_limit`.
    - ``label``: Label of the slider, with its unit.
    - ``help``: Tooltip.
    - ``span``: Function from a problem to the lowest, the highest and the current value.
    """

    argument: str
    label: str
    help: str
    span: Callable[[PlanProblem], tuple[int, int, int]]


def _switches_slider_range(problem: PlanProblem) -> tuple[int, int, int]:
    """Return lowest, highest and current number of layout changes per GPU and day."""
    max_switches = math.ceil(24 / problem.interval_hours)  # one change in every interval is no limit
    limit = problem.limits.switches_per_day
    return 0, max_switches, max_switches if limit is None else min(limit, max_switches)


LIMIT_CONTROLS = (
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
        _switches_slider_range,
    ),
)  # fmt: skip
"""Limits that the panel can change: fleet size, nodes with MIG disabled, layout changes per day."""
LIMIT_CONTROL_STYLE: dict[str, Any] = {"style": {"description_width": "18em"}, "layout": {"width": "38em"}}
"""Arguments of ipywidgets for the widths of controls and labels."""
_PRICE_HEADINGS = ("", "cost", "lower bound", "price of the limit", "at least", "at most")
"""Headings of the table of prices of limits."""


class LimitsPanel(BackgroundPanel[tuple[LimitControl, int], pl.DataFrame]):
    """Panel that shows the cost of a layout plan under another limit, and how much the limit costs [GPU h].

    Parameters
    ----------
    problem : PlanProblem
        Problem with its current limits; one limit at a time is changed.
    base : Plan, optional
        Plan of the problem; default: computed with the first answer.
    **search_limits
        Limits of each search, as for :func:`gpuplanner.planner.layout_plan`.

    Attributes
    ----------
    choice : ipywidgets.Dropdown
        Limit to change.
    sliders : dict
        ipywidgets controls by argument of ``with_limit``; the one of the chosen limit is shown.
    prices : polars.DataFrame or None
        Latest answer, see :func:`gpuplanner.planner.fleet_plans_and_comparisons.price_of_limits`.

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

    def __init__(self, problem: PlanProblem, *, base: Plan | None = None, **search_limits: Any) -> None:  # noqa: ANN401
        super().__init__(self._price_limit, price_html, working="Planning with this limit ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.problem = problem
        self._base = base
        self._how = search_limits
        options = [(limit.label, limit) for limit in LIMIT_CONTROLS]
        self.choice = dropdown(options, LIMIT_CONTROLS[0], "Limit", tooltip="Limit to price", **LIMIT_CONTROL_STYLE)
        self.sliders = {limit.argument: _limit_slider(limit, problem) for limit in LIMIT_CONTROLS}
        self.code = widgets.HTML()
        self.button = button("Plan", "Plan with the chosen limit", self.ask)
        on_change([self.choice, *self.sliders.values()], self._on_change)
        controls = [self.choice, *self.sliders.values(), self.button]
        self.panel = widgets.VBox([*controls, self.code, self.status, self.answer])
        self._show_code()

    @property
    def question(self) -> tuple[LimitControl, int]:
        """The chosen limit and the value of its slider."""
        limit: LimitControl = self.choice.value
        return limit, self.sliders[limit.argument].value

    @property
    def prices(self) -> pl.DataFrame | None:
        """Table of the latest prices of limits; None before the first answer."""
        return self.newest

    def _price_limit(self, question: tuple[LimitControl, int]) -> pl.DataFrame:
        """Plan with the chosen limit at its new value, and tabulate the cost beside that of the current plan."""
        limit, value = question
        variants = {}
        if value != limit.span(self.problem)[2]:
            variants[f"{limit.label}: {value}"] = with_limit(self.problem, **{limit.argument: value})
        if self._base is None:
            self._base = plan(self.problem, **self._how)
        return price_of_limits(self.problem, variants, base_plan=self._base, **self._how)

    def _on_change(self) -> None:
        """Update the shown slider and code after a change of a control, and compute the new answer."""
        self._show_code()
        self.ask_soon()

    def _show_code(self) -> None:
        """Show only the slider of the chosen limit, and the line of code that does the same."""
        limit, value = self.question
        for argument, control in self.sliders.items():
            control.layout.display = None if argument == limit.argument else "none"
        self.code.value = f"<code>found.limits({escape(limit.argument)}={value})</code>"


def price_html(prices: pl.DataFrame) -> str:
    """Render the costs of a plan and its variants, and the price of each limit with its proven range, as HTML.

    Parameters
    ----------
    prices : polars.DataFrame
        Table of :func:`gpuplanner.planner.fleet_plans_and_comparisons.price_of_limits`: the problem, then its variants.
    """
    rows = list(prices.iter_rows(named=True))
    cells = (
        [row["variant"], *(_format_gpu_hours_with_sign(row[name], "") for name in ("objective", "bound"))]
        + [_format_gpu_hours_with_sign(row[name], "+") for name in ("extra", "extra_low", "extra_high")]
        for row in rows
    )
    explanation_texts = ((escape(row["variant"]), escape(row["explanation"])) for row in rows[1:] or rows)
    explanations = "".join(f"<p><b>{name}.</b> {text}</p>" for name, text in explanation_texts)
    caption = "Prices of limits [GPU h]; the true price is between 'at least' and 'at most' (proven)"
    return table_html(_PRICE_HEADINGS, cells, caption=caption) + explanations


def _format_gpu_hours_with_sign(value: float | None, sign: str) -> str:
    """Format GPU-hours with one decimal; `sign` is ``"+"`` to mark increases, or empty. A dash for None."""
    return MISSING_VALUE_TEXT if value is None else format(round(value, 1) + 0.0, f"{sign},.1f").replace("-", "−")


def _limit_slider(limit: LimitControl, problem: PlanProblem) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the slider of a limit, set to its value in the problem."""
    low, high, now = limit.span(problem)
    return slider(now, low, high, 1, limit.label, limit.help, **LIMIT_CONTROL_STYLE)


LAYOUT_DEMAND_VIEW = "rightsized"
"""Demand that layouts are planned for: rightsized requests."""
GPU_SHARING_COLUMNS = ("job_class", "gpus", "jobs", "mode", "profile", "together", "slow_at_most", "why", "with_whom")
"""Columns that the table of GPU sharing by job class shows."""
_PLAN_HEADINGS = {
    "objective": "cost [GPU h]",
    "bound": "lower bound [GPU h]",
    "distinct": "layout mixes in use",
}
"""Headings of the plan comparison that differ from the column names."""


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """A fleet with its demand and its unrestricted layout plan, with a method that shows each part in a notebook.

    - ``scenario``: Fleet, data and limits of the search.
    - ``planned``: Problem and plan.
    """

    scenario: Scenario
    planned: PlannedProblem

    @property
    def problem(self) -> PlanProblem:
        """Planning problem: fleet, demand, prices and limits."""
        return self.planned.problem

    @property
    def plan(self) -> Plan:
        """Unrestricted plan, which may change layouts in every interval."""
        return self.planned.plan

    def _repr_html_(self) -> str:
        facts = {
            "plan": f"{self.plan.status}: {self.plan.explanation}",
            "cost": _gpu_hours_text(self.plan.objective),
            "lower bound": _gpu_hours_text(self.plan.bound),
            "fleet": f"{self.problem.gpus:,} x {self.problem.gpu_model.name}",
        }
        return to_still_text(page.section("The plan", page.value_table(facts, caption="The plan")))._repr_html_()

    def asked(self) -> View:
        """Show the fleet and the demand for MIG instances by profile, with its forecast."""
        problem, outlook = self.problem, OUTLOOK_STAGE_BY_VIEW[LAYOUT_DEMAND_VIEW](self.scenario)
        begin = problem.slot_start
        facts = {
            "fleet": f"{problem.gpus:,} x {problem.gpu_model.name}, {problem.gpus_per_node} a node",
            "horizon": f"{problem.n_slots:,} × {problem.interval_hours:g} h from {begin:%Y-%m-%d %H:%M} UTC",
            "teams": f"{len(problem.tenants):,}",
            "requested profiles": ", ".join(problem.profiles),
            "demand covered": f"p{100 * self.scenario.quantile:g} of the forecast",
        }
        chart = page.figure(
            plots.plot_demand(outlook.demand, outlook.to_cover),
            title="Demand for MIG instances, with the forecast",
            alt=f"Rightsized requests by profile; the plan covers the quantile {self.scenario.quantile:g}.",
        )
        shown = page.section("Demand", page.value_table(facts, caption="Fleet and demand"), chart)
        return View(shown, outlook.demand)

    def in_use(self) -> View:
        """Show the MIG layouts of the unrestricted plan on the memory slices of the GPU model."""
        gpu_model = self.problem.gpu_model
        table = make_placement_table(gpu_model, self.plan.layouts)
        number = table["layout"].n_unique()
        chart = page.figure(
            plots.plot_placements(table, memory_slices=gpu_model.memory_slices),
            title="Layouts in use",
            alt=f"{number} layouts on the {gpu_model.memory_slices} memory slices of {gpu_model.name}; no full GPUs.",
            numbers=table,
        )
        return View(page.section("The layouts in use", chart), table)

    def sharing(self) -> View:
        """Show which job classes may share a GPU, and by which mode."""
        job_history = history(self.scenario)
        requests = requested_and_used(job_history.jobs, samples=job_history.trace.samples)
        table = recommend_sharing(requests).select(GPU_SHARING_COLUMNS)
        caption = "GPU sharing by job class"
        return View(page.section("GPU sharing", page.table(table, caption=caption)), table)

    @cached_property
    def _plan_comparison(self) -> pl.DataFrame:
        """Tabulate cost and lower bound of the static, few-changes and unrestricted plans."""
        plans = {"auto": self.plan}
        return compare_plans(self.problem, calendars=(2, 4), reused_plans=plans, work_limit=self.scenario.work_limit)

    def kinds(self) -> View:
        """Show the costs of static, few-changes and unrestricted plans, and their lower bound."""
        table = self._plan_comparison
        best = table.drop_nulls("objective").sort("objective", maintain_order=True)
        sentence = "No plan was found."
        if not best.is_empty():
            cost, bound = _gpu_hours_text(best["objective"][0]), _gpu_hours_text(best["bound"][0])
            sentence = f"{best['method'][0]} costs least, {cost}; the lower bound of all plans is {bound}."
        title = "Cost of each plan, and the lower bound"
        chart = page.figure(plots.plot_bounds(table), title=title, alt=sentence)
        rows = page.table(table, caption="Plans for the same demand", headings=_PLAN_HEADINGS, formats={"gap": ".2%"})
        return View(page.section("Static, calendar or unrestricted", chart, rows), table)

    def calendar(self) -> View:
        """Show the layout of each GPU over time, and the value of one more instance by profile."""
        layout_rows = self.planned.layout_plan
        gpus = layout_rows.select("node", "gpu").unique().sort("node", "gpu")
        names = [f"{node} · {gpu}" for node, gpu in gpus.rows()]
        shown_rows = layout_rows.filter(pl.format("{} · {}", "node", "gpu").is_in(names[:MAX_CALENDAR_ROWS]))
        left_out_text = (
            f" The first {MAX_CALENDAR_ROWS} of {len(names):,} GPUs are shown."
            if len(names) > MAX_CALENDAR_ROWS
            else ""
        )
        chart = page.figure(
            plots.plot_layout_calendar(shown_rows),
            title="Layout of each GPU over time",
            alt=f"{self.plan.changes:,} layout changes; a mark shows where a GPU is repartitioned.{left_out_text}",
        )
        instance_values = dearest_instances(self.plan, self.problem, count=8)
        rows = page.table(instance_values, caption="Value of one more instance, highest first")
        return View(page.section("The calendar", page.paragraph(self.plan.explanation), chart, rows), layout_rows)

    def limits(self, **limit: Any) -> View:  # noqa: ANN401 - of with_limit
        """Show the prices of limits; ``gpus``, ``whole_nodes_kept`` or ``switches_per_day`` prices that value alone."""
        nodes, node_gpus = self.problem.gpus // self.problem.gpus_per_node, self.problem.gpus_per_node
        changes = {
            "one node fewer": {"gpus": self.problem.gpus - node_gpus},
            "one node more": {"gpus": self.problem.gpus + node_gpus},
            "MIG disabled on all nodes but one": {"whole_nodes_kept": nodes - 1},
            "one layout change per GPU and day": {"switches_per_day": 1},
        }
        if nodes < 2:
            del changes["one node fewer"]
        if limit:
            changes = {", ".join(f"{name}={value}" for name, value in limit.items()): limit}
        variants = {name: with_limit(self.problem, **change) for name, change in changes.items()}
        prices = price_of_limits(self.problem, variants, base_plan=self.plan, work_limit=self.scenario.work_limit)
        return View(page.section("Prices of limits", price_html(prices)), prices)

    def controls(self) -> LimitsPanel:
        """Make the panel with sliders of the limits, which computes the price of each in the background."""
        return LimitsPanel(self.problem, base=self.plan, work_limit=self.scenario.work_limit)

    def button(self, folder: str | Path) -> Any:  # noqa: ANN401 - of ipywidgets
        """Make a button that runs :meth:`export` and links the written files."""
        return files_button(lambda: self.export(folder))

    def export(self, folder: str | Path) -> Path:
        """Write the configuration files of the plan and a workbook; return the page with the steps."""
        return write_plan_handover(self.planned, folder, scenario=self.scenario)


def _gpu_hours_text(value: float | None) -> str:
    """Format GPU-hours such as ``12.5 GPU-hours``, or ``not known``."""
    return "not known" if value is None else f"{value:,.1f} GPU-hours"


def layouts(
    data: StudySource,
    *,
    gpus: int | None = None,
    demand: Mapping[str, int] | None = None,
    **changes: Any,  # noqa: ANN401
) -> PlannedLayouts | View:
    """Plan the MIG layouts of a cluster over time, or the layouts of some GPUs for a fixed demand.

    Parameters
    ----------
    data : str, Path, Cluster or Scenario
        Name or folder of a dataset, a cluster, or a scenario; with `demand`, a GPU model such as ``"A100-80GB"``.
    gpus : int, optional
        Number of GPUs, with `demand`. [GPU]
    demand : mapping of str to int, optional
        MIG instances that must fit, by profile; ``"gpu"`` is a full GPU.
    **changes
        Fields of a :class:`Scenario`, such as ``horizon_intervals=168`` and ``work_limit=700``.

    Returns
    -------
    PlannedLayouts or View
        ``asked()``, ``in_use()``, ``sharing()``, ``kinds()``, ``calendar()``, ``limits()``: a view each;
        ``controls()``, ``button()``, ``export()``, ``problem``, ``plan``. With `demand`, the view of the layouts
        (``df``: ``layout, gpus``).

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used, or the demand does not fit; the message says what to do.

    Examples
    --------
    >>> layouts("A100-80GB", gpus=4, demand={"3g.40gb": 4, "1g.10gb": 6}).df.rows()
    [('3g.40gb:2', 1), ('3g.40gb:1,1g.10gb:4', 2)]
    """
    if demand is not None:
        return _show_layouts(str(data), gpus, demand)
    scenario = make_scenario(data, changes)
    return PlannedLayouts(scenario, plan_view(scenario, LAYOUT_DEMAND_VIEW, "auto"))


def _show_layouts(gpu_model: str, gpus: int | None, demand: Mapping[str, int]) -> View:
    """Show the layouts of GPUs of a model that serve a fixed demand for MIG instances."""
    if gpus is None or gpus < 1:
        raise ScenarioError("gpus", "the number of GPUs, 1 or more", str(gpus), "Give gpus=, such as gpus=4.")
    model = load_gpu_model(gpu_model)
    counts = [[[count] for count in demand.values()]]
    problem = PlanProblem(model.name, gpus, gpus, datetime(2000, 1, 1, tzinfo=UTC), 1.0, ["all"], list(demand), counts)
    layout_plan = plan(problem, gap_target=0)
    missing = {
        name: round(count) for name, count in zip(demand, layout_plan.unmet[0, :, 0], strict=True) if count > 0.5
    }
    if missing:
        needed = "; ".join(f"{count} × {name}" for name, count in missing.items())
        raise ScenarioError(
            "demand", f"instances that fit on {gpus} × {model.name}", f"{needed} too many", "Raise gpus=."
        )
    counts_by_layout = {"layout": list(layout_plan.layouts), "gpus": layout_plan.counts[0].tolist()}
    table = pl.DataFrame(counts_by_layout).filter(pl.col("gpus") > 0)
    placements = make_placement_table(model, table["layout"].to_list())
    alt = "; ".join(f"{count} × {layout}" for layout, count in table.rows())
    chart = page.figure(
        plots.plot_placements(placements, memory_slices=model.memory_slices),
        title=f"Layouts of {gpus} × {model.name}",
        alt=f"{alt}. Full GPUs are not drawn.",
        numbers=table,
    )
    return View(page.section("Layouts", chart), table)
