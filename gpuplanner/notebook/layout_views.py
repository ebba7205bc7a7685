"""Views of layouts, and the panel that edits their demand and limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import count_text
from gpuplanner.decision.layout_planning import PlannedProblem, make_plan_problem, plan_problem_for
from gpuplanner.forecast.rolling_demand_forecast import OUTLOOK_STAGE_BY_VIEW
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.hardware.layout_enumeration import make_placement_table
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout, resolve_counts
from gpuplanner.notebook.cluster import StudySource, make_scenario
from gpuplanner.notebook.section_panels import SectionPanel, number_field
from gpuplanner.notebook.views_and_panels import View, control_style, files_button, on_change, or_card
from gpuplanner.planner.fleet_plans_and_comparisons import compare_plans, price_of_limits, with_limit
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_explanation import dearest_instances
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.report.layout_schedule_files import write_plan_handover
from gpuplanner.report.policy_and_layout_charts import MAX_CALENDAR_ROWS
from gpuplanner.sizing.request_lines_and_gpu_sharing import recommend_sharing
from gpuplanner.usage.planning_history import history, load_dataset
from gpuplanner.usage.rightsizing import requested_and_used


def render_limit_prices(prices: pl.DataFrame) -> HtmlSection:
    """Render the costs of a plan and its variants, and the price of each limit with its proven range.

    Parameters
    ----------
    prices : polars.DataFrame
        Table of :func:`gpuplanner.planner.fleet_plans_and_comparisons.price_of_limits`: the problem, then its variants.
    """
    caption = "Prices of limits [GPU h]; the true price is between 'at least' and 'at most' (proven)"
    signed = dict.fromkeys(("extra", "extra_low", "extra_high"), "+,.1f")
    formats = {"objective": ",.1f", "bound": ",.1f"} | signed
    rows = page.table(prices.drop("explanation"), caption=caption, headings=_PRICE_HEADINGS, formats=formats)
    texts = prices.select("variant", "explanation").rows()[1:] or prices.select("variant", "explanation").rows()
    return page.section("Prices of limits", rows, *(page.paragraph(f"{name}: {text}") for name, text in texts))


_PRICE_HEADINGS = read_table_headings("limit prices")
"""Headings of the table of prices of limits, by column."""


MIG_FIX = 'gp.layouts(data, gpu_model="A100-80GB")  # a GPU model with MIG'
"""Python code that leads to an answer about layouts."""
LAYOUT_DEMAND_VIEW = "rightsized"
"""Demand that layouts are planned for: rightsized requests."""
_GPU_SHARING_HEADINGS = read_table_headings("GPU sharing")
"""Headings of the table of GPU sharing that differ from the column names."""
GPU_SHARING_COLUMNS = ("job_class", "gpus", "jobs", "mode", "profile", *_GPU_SHARING_HEADINGS)
"""Columns that the table of GPU sharing by job class shows."""
_PLAN_HEADINGS = read_table_headings("layout plans")
"""Headings of the plan comparison and of the values of instances that differ from the column names."""


@dataclass(frozen=True, eq=False)
class PlannedLayouts:
    """A fleet with its demand and its unrestricted layout plan, with a method that shows each part in a notebook.

    - ``scenario``: Fleet, data and limits of the search.
    - ``given``: Problem and plan; None: those of the scenario, planned when they are first shown.
    """

    scenario: Scenario
    given: PlannedProblem | None = None

    @cached_property
    def planned_problem(self) -> PlannedProblem:
        """Problem and plan."""
        return self.given or plan_problem_for(self.problem, self.scenario, "auto")

    @cached_property
    def problem(self) -> PlanProblem:
        """Planning problem: fleet, demand, prices and limits; it is known before the plan."""
        return self.given.problem if self.given else make_plan_problem(self.scenario, LAYOUT_DEMAND_VIEW)

    @property
    def plan(self) -> Plan:
        """Unrestricted plan, which may change layouts in every interval."""
        return self.planned_problem.plan

    @or_card("The plan", MIG_FIX)
    def overview(self) -> View:
        """Show status, cost, lower bound and fleet of the plan."""
        facts = {
            "plan": f"{self.plan.status}: {self.plan.explanation}",
            "cost": _gpu_hours_text(self.plan.objective),
            "lower bound": _gpu_hours_text(self.plan.bound),
            "fleet": f"{self.problem.gpus:,} × {self.problem.gpu_model.name}",
        }
        table = pl.DataFrame({"name": list(facts), "value": list(facts.values())})
        return View(page.section("The plan", page.value_table(facts, caption="The plan")), table)

    def _repr_html_(self) -> str:
        return self.overview()._repr_html_()

    @or_card("Demand", MIG_FIX)
    def asked(self) -> View:
        """Show the fleet and the demand for MIG instances by profile, with its forecast."""
        problem, outlook = self.problem, OUTLOOK_STAGE_BY_VIEW[LAYOUT_DEMAND_VIEW](self.scenario)
        begin = problem.slot_start
        facts = {
            "fleet": f"{problem.gpus:,} × {problem.gpu_model.name}, {problem.gpus_per_node} a node",
            "horizon": f"{problem.n_slots:,} × {problem.interval_hours:g} h from {begin:%Y-%m-%d %H:%M} UTC",
            "teams": f"{len(problem.tenants):,}",
            "requested profiles": ", ".join(problem.profiles),
            "demand covered": f"p{100 * self.scenario.quantile:g} of the forecast",
        }
        chart = page.figure(
            plots.plot_demand(outlook.demand, outlook.to_cover),
            title="Demand for MIG instances, with the forecast",
            alt=f"Rightsized requests by profile; the plan covers the quantile {self.scenario.quantile:g}. Dashed "
            "upright lines: the level changed; rings: unusual days.",
        )
        return View(page.section("Demand", page.value_table(facts, caption="Fleet and demand"), chart), outlook.demand)

    @or_card("The layouts in use", MIG_FIX)
    def in_use(self) -> View:
        """Show the GPUs with each layout over time, and the layouts on the memory slices of the GPU model."""
        gpu_model, counts = self.problem.gpu_model, self.layout_counts
        gpus = pl.col("gpus")
        sums = counts.group_by("layout", maintain_order=True).agg(
            mean_gpus=gpus.mean(), least_gpus=gpus.min(), most_gpus=gpus.max()
        )
        table = sums.filter(pl.col("most_gpus") > 0).sort("mean_gpus", "layout", descending=[True, False])
        placements = make_placement_table(gpu_model, table["layout"].to_list())
        number = placements["layout"].n_unique()
        headings = {"mean_gpus": "GPUs, mean", "least_gpus": "at least", "most_gpus": "at most"}
        return View(
            page.section(
                "The layouts in use",
                page.figure(
                    plots.plot_layout_counts(counts),
                    title="GPUs with each layout over time",
                    alt=f"{self.plan.changes:,} layout changes in {self.problem.n_slots:,} intervals.",
                ),
                page.table(table, caption="GPUs with each layout", headings=headings, formats={"mean_gpus": ",.1f"}),
                page.figure(
                    plots.plot_placements(placements, memory_slices=gpu_model.memory_slices),
                    title="Layouts in use",
                    alt=f"{number} layouts on the {gpu_model.memory_slices} memory slices of {gpu_model.name}. Full "
                    "GPUs (gpu) have no instances.",
                ),
            ),
            table,
        )

    @property
    def layout_counts(self) -> pl.DataFrame:
        """Table ``slot_start, layout, gpus`` of the plan."""
        layout_plan = self.plan.require()
        names = list(layout_plan.layouts)
        times = pl.Series(self.problem.slot_times[: self.problem.n_slots])
        wide = pl.DataFrame(layout_plan.counts, schema=names).with_columns(slot_start=times)
        return wide.unpivot(names, index="slot_start", variable_name="layout", value_name="gpus")

    @or_card("GPU sharing", MIG_FIX)
    def sharing(self) -> View:
        """Show which job classes may share a GPU, and by which mode."""
        job_history = history(self.scenario)
        requests = requested_and_used(job_history.jobs, samples=job_history.trace.samples)
        table = recommend_sharing(requests).select(GPU_SHARING_COLUMNS)
        shown = page.table(table, caption="GPU sharing by job class", headings=_GPU_SHARING_HEADINGS)
        return View(page.section("GPU sharing", shown), table)

    @cached_property
    def _plan_comparison(self) -> pl.DataFrame:
        """Tabulate cost and lower bound of the static, few-changes and unrestricted plans."""
        plans = {"auto": self.plan}
        return compare_plans(self.problem, calendars=(2, 4), reused_plans=plans, work_limit=self.scenario.work_limit)

    @or_card("Static, calendar or unrestricted", MIG_FIX)
    def kinds(self) -> View:
        """Show the costs of static, few-changes and unrestricted plans, and their lower bound."""
        table = self._plan_comparison
        shown = table.with_columns(pl.col("method").replace("auto", "unrestricted"))
        best = shown.drop_nulls("objective").sort("objective", maintain_order=True)
        sentence = "No plan was found."
        if not best.is_empty():
            cost, bound = _gpu_hours_text(best["objective"][0]), _gpu_hours_text(best["bound"][0])
            sentence = f"{best['method'][0]} costs least, {cost}; the lower bound of all plans is {bound}."
        title = "Cost of each plan, and the lower bound"
        chart = page.figure(plots.plot_bounds(shown), title=title, alt=sentence)
        rows = page.table(shown, caption="Plans for the same demand", headings=_PLAN_HEADINGS, formats={"gap": ".2%"})
        return View(page.section("Static, calendar or unrestricted", chart, rows), table)

    @or_card("The calendar", MIG_FIX)
    def calendar(self) -> View:
        """Show the layout of each GPU over time, and the value of one more instance by profile."""
        layout_rows = self.planned_problem.layout_plan
        gpus = layout_rows.select("node", "gpu").unique().sort("node", "gpu")
        names = [f"{node} · {gpu}" for node, gpu in gpus.rows()]
        shown_rows = layout_rows.filter(pl.format("{} · {}", "node", "gpu").is_in(names[:MAX_CALENDAR_ROWS]))
        left_out_text = ""
        if len(names) > MAX_CALENDAR_ROWS:
            left_out_text = f" The first {MAX_CALENDAR_ROWS} of {len(names):,} GPUs are shown."
        chart = page.figure(
            plots.plot_layout_calendar(shown_rows),
            title="Layout of each GPU over time",
            alt=f"{self.plan.changes:,} layout changes; a mark shows where a GPU is repartitioned.{left_out_text}",
        )
        instance_values = dearest_instances(self.plan, self.problem, count=8)
        caption = "Value of one more instance, highest first"
        rows = page.table(instance_values, caption=caption, headings=_PLAN_HEADINGS)
        return View(page.section("The calendar", page.paragraph(self.plan.explanation), chart, rows), layout_rows)

    @or_card("Prices of limits", MIG_FIX)
    def limits(self, **limit: Any) -> View:  # noqa: ANN401 - of with_limit
        """Show the prices of limits; ``gpus``, ``whole_nodes_kept`` or ``switches_per_day`` prices that value alone."""
        nodes, node_gpus = self.problem.gpus // self.problem.gpus_per_node, self.problem.gpus_per_node
        changes = {"one node fewer": {"gpus": self.problem.gpus - node_gpus}} if nodes > 1 else {}
        changes |= {
            "one node more": {"gpus": self.problem.gpus + node_gpus},
            "MIG disabled on all nodes but one": {"whole_nodes_kept": nodes - 1},
            "one layout change per GPU and day": {"switches_per_day": 1},
        }
        if limit:
            changes = {", ".join(f"{name}={value}" for name, value in limit.items()): limit}
        variants = {name: with_limit(self.problem, **change) for name, change in changes.items()}
        prices = price_of_limits(self.problem, variants, base_plan=self.plan, work_limit=self.scenario.work_limit)
        return View(render_limit_prices(prices), prices)

    @or_card("Layouts", MIG_FIX)
    def controls(self, folder: str | Path = "build/plan-files") -> LayoutPanel:
        """Make the panel with fields of demand and limits; its button writes the files of the plan that is shown."""
        return LayoutPanel(self, folder)

    def export(self, folder: str | Path) -> Path:
        """Write the configuration files of the plan and a workbook; return the page with the steps."""
        return write_plan_handover(self.planned_problem, folder, scenario=self.scenario)


@dataclass(frozen=True)
class LayoutQuestion:
    """Demand and limits of a layout plan.

    - ``peaks``: Peak demand by profile. [instances]
    - ``gpus``: GPUs of the fleet.
    - ``whole_nodes_kept``: Nodes whose GPUs are never partitioned.
    - ``switches_per_day``: Maximum layout changes per GPU and day.
    """

    peaks: Mapping[str, float]
    gpus: int
    whole_nodes_kept: int
    switches_per_day: int


class LayoutPanel(SectionPanel[LayoutQuestion, PlannedLayouts]):
    """Panel to edit demand and limits of a layout plan; the layouts, and the files of its button, follow.

    Parameters
    ----------
    base_layouts : PlannedLayouts
        Plan with the present demand and limits.
    folder : str or Path
        Folder into which the button writes the files of the plan that is shown.

    Attributes
    ----------
    demand : dict
        Number field of the peak demand by profile; the demand of all hours is scaled with it.
    limits : dict
        Number field by limit: ``gpus``, ``whole_nodes_kept``, ``switches_per_day``.

    Examples
    --------
    >>> start = datetime(2026, 11, 2, tzinfo=UTC)
    >>> problem = PlanProblem("A100-40GB", 3, 3, start, 1, ["ads"], ["3g.20gb"], [[[2, 4]]])
    >>> base = PlannedLayouts(Scenario(), PlannedProblem(problem, plan(problem, gap_target=0)))
    >>> panel = LayoutPanel(base)
    >>> panel.demand["3g.20gb"].control.value = 6.0
    >>> panel.ask().result().in_use().df["most_gpus"].max()
    3
    """

    def __init__(self, base_layouts: PlannedLayouts, folder: str | Path = "build/plan-files") -> None:
        super().__init__(self._plan, self._render, working="Planning the layouts ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base, problem = base_layouts, base_layouts.problem
        peaks = problem.demand.sum(axis=0).max(axis=-1)
        self._peaks = {name: round(float(peak), 1) for name, peak in zip(problem.profiles, peaks, strict=True)}
        style = control_style("17em", "26em")
        self.demand = {
            name: number_field(peak, 0.0, 1e5, f"{name} at the peak (instances)", "Scales all hours", **style)
            for name, peak in self._peaks.items()
        }
        max_switches = math.ceil(24 / problem.interval_hours)  # one change in every interval is no limit
        switches = problem.limits.switches_per_day
        n_nodes = problem.gpus // problem.gpus_per_node
        ranges = {
            "gpus": (problem.gpus, 1, 100 * problem.gpus, "GPUs in the fleet"),
            "whole_nodes_kept": (problem.limits.whole_nodes_kept, 0, n_nodes, "Nodes with MIG disabled"),
            "switches_per_day": (
                max_switches if switches is None else min(switches, max_switches), 0, max_switches,
                "Layout changes per GPU and day",
            ),
        }  # fmt: skip
        self.limits = {name: number_field(*row, "Limit of the plan", **style) for name, row in ranges.items()}
        self.fields = [*self.demand.values(), *self.limits.values()]
        fields = [field.control for field in self.fields]
        on_change(fields, self.ask_soon)
        tooltip = f"Write change scripts, timers and a workbook of the plan below into {folder}"
        self.files = files_button(lambda: self.shown_layouts.export(folder), "Write the files of this plan", tooltip)
        grid = widgets.GridBox(fields, layout={"grid_template_columns": "repeat(auto-fill, minmax(27em, 1fr))"})
        self.panel = widgets.VBox([grid, self.files, self.status, self.answer.box])
        self.answer.value = self._render(base_layouts)
        self.status.value = "The plan of the data. Change a number to plan again."

    @property
    def shown_layouts(self) -> PlannedLayouts:
        """Plan on the screen, whose files the button writes."""
        return self.newest or self.base

    @property
    def question(self) -> LayoutQuestion:
        """Demand and limits of the controls."""
        peaks = {name: float(field.value) for name, field in self.demand.items()}
        return LayoutQuestion(peaks, **{name: field.value for name, field in self.limits.items()})

    def _plan(self, question: LayoutQuestion) -> PlannedLayouts:
        """Plan the layouts for the demand and the limits of the controls."""
        problem = self.base.problem
        demand = problem.demand.copy()
        for row, (name, peak) in enumerate(question.peaks.items()):
            if peak != self._peaks[name]:
                before = demand[:, row].sum(axis=0).max()
                demand[:, row] = demand[:, row] * (peak / before) if before else peak / len(demand)
        problem = replace(problem, demand=demand)
        limits = {name: getattr(question, name) for name, field in self.limits.items()}
        changed = {name: value for name, value in limits.items() if value != self._present(name)}
        problem = with_limit(problem, **changed)
        return PlannedLayouts(self.base.scenario, plan_problem_for(problem, self.base.scenario, "auto"))

    def _present(self, name: str) -> int | None:
        """Return the present value of a limit; None for any number of layout changes."""
        if name == "switches_per_day" and self.base.problem.limits.switches_per_day is None:
            return int(self.limits[name].high)
        value: int | None = getattr(self.base.problem if name == "gpus" else self.base.problem.limits, name)
        return value

    def _render(self, layouts: PlannedLayouts) -> HtmlSection:
        """Render a plan: cost against the plan of the data, explanation, layouts over time."""
        cost, before = layouts.plan.objective, self.base.plan.objective
        change = "" if cost is None or before is None else f" ({cost - before:+,.1f} against the plan of the data)"
        unmet = f"{layouts.plan.unmet_gpu_hours:,.1f} GPU-hours of demand unserved"
        text = f"Cost {_gpu_hours_text(cost)}{change}; lower bound {_gpu_hours_text(layouts.plan.bound)}; {unmet}."
        return HtmlSection(page.paragraph(f"{text} {layouts.plan.explanation}") + layouts.in_use().section)


IDLE_SLICE = "idle compute slice"
"""Name of a compute slice of a partitioned GPU that belongs to no instance."""


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
        Number of GPUs, with `demand`; else the fleet of the plan, as in a :class:`Scenario`. [GPU]
    demand : mapping of str to int, optional
        MIG instances that must fit, by profile; ``"gpu"`` is a full GPU.
    **changes
        Fields of a :class:`Scenario`, such as ``horizon_intervals=168`` and ``work_limit=700``.

    Returns
    -------
    PlannedLayouts or View
        ``asked()``, ``in_use()``, ``sharing()``, ``kinds()``, ``calendar()``, ``limits()``: a view each;
        ``controls()``, ``export()``, ``problem``, ``plan``. With `demand`, the view of the layouts
        (``df``: ``layout``, ``off`` for GPUs that are not needed; ``gpus``; ``left_over``, the instances of these GPUs
        that the demand does not need, and their compute slices that no instance has).

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used, or the demand does not fit; the message says what to do.

    Examples
    --------
    >>> layouts("A100-80GB", gpus=4, demand={"3g.40gb": 4, "1g.10gb": 6}).df.rows()
    [('3g.40gb:2', 1, 'idle compute slice'), ('3g.40gb:1,1g.10gb:4', 2, '2 × 1g.10gb'), ('off', 1, 'full GPU')]
    """
    if demand is not None:
        return _show_layouts(str(data), gpus, demand)
    scenario = make_scenario(data, changes if gpus is None else {"gpus": gpus, **changes})
    load_dataset(scenario.data, columns=("submit_time",))  # a folder that is no dataset is an error at once
    return PlannedLayouts(scenario)


def _show_layouts(gpu_model: str, gpus: int | None, demand: Mapping[str, int]) -> View:
    """Show the layouts of GPUs of a model that serve a fixed demand for MIG instances."""
    if gpus is None or gpus < 1:
        raise ScenarioError("gpus", "the number of GPUs, 1 or more", str(gpus), "Give gpus=, such as gpus=4.")
    model = load_gpu_model(gpu_model)
    needed = [[[count] for count in demand.values()]]
    problem = PlanProblem(model.name, gpus, gpus, datetime(2000, 1, 1, tzinfo=UTC), 1.0, ["all"], list(demand), needed)
    layout_plan = plan(problem, gap_target=0)
    missing = {
        name: round(count) for name, count in zip(demand, layout_plan.unmet[0, :, 0], strict=True) if count > 0.5
    }
    if missing:
        excess = "; ".join(f"{count} × {name}" for name, count in missing.items())
        expected = f"instances that fit on {gpus} × {model.name}"
        enough = gpus + sum(missing.values())  # a GPU for each missing instance
        larger = plan(replace(problem, gpus=enough, gpus_per_node=enough), gap_target=0)
        gpus_by_layout = zip(larger.layouts, larger.counts[0].tolist(), strict=True)
        n_needed = sum(count for layout, count in gpus_by_layout if layout != UNUSED_LAYOUT)
        raise ScenarioError("demand", expected, f"{excess} too many", f"It needs {n_needed} GPUs: gpus={n_needed}.")
    counts = dict(zip(layout_plan.layouts, layout_plan.counts[0].tolist(), strict=True))
    counts = {layout: count for layout, count in counts.items() if count and layout != UNUSED_LAYOUT}
    counts |= {UNUSED_LAYOUT: gpus - sum(counts.values())} if gpus > sum(counts.values()) else {}
    left_counts = _find_left_over(model, counts, demand)
    left_over = [_instances_text(unused) for unused in left_counts]
    table = pl.DataFrame({"layout": list(counts), "gpus": list(counts.values()), "left_over": left_over})
    texts = [_instances_text(parse_layout(layout)) or "not needed" for layout in counts]
    labels = {
        layout: f"{count_text(counts[layout], 'GPU')}: {text}"
        + (f" (left over: {left})" if left and layout != UNUSED_LAYOUT else "")
        for layout, text, left in zip(counts, texts, left_over, strict=True)
    }
    placements = make_placement_table(model, counts)
    undivided = [
        (layout, "full GPU", 0, model.memory_slices) for layout in (FULL_GPU, UNUSED_LAYOUT) if layout in counts
    ]
    placements = pl.concat([placements, pl.DataFrame(undivided, schema=placements.schema, orient="row")])
    # Drawn light: as many of the last instances as every GPU of the layout has left over.
    unused = {
        (layout, name): number // counts[layout]
        for layout, left in zip(counts, left_counts, strict=True)
        for name, number in left.items()
    }
    keys = placements.select("layout", profile=pl.col("profile").replace("full GPU", FULL_GPU)).rows()
    n_unused = pl.Series([unused.get(key, 0) for key in keys], dtype=pl.Int64)
    rank = pl.col("start").rank("ordinal", descending=True).over("layout", "profile")
    placements = placements.with_columns(is_left_over=rank <= n_unused)
    chart = page.figure(
        plots.plot_placements(
            placements.with_columns(pl.col("layout").replace(labels)), memory_slices=model.memory_slices
        ),
        title=f"Layouts of {gpus} × {model.name}",
        alt=f"{'; '.join(labels.values())}. Light: not needed.",
        numbers=table.with_columns(layout=pl.Series(texts)),
    )
    return View(page.section("Layouts", chart), table)


def _find_left_over(
    gpu_model: GpuModel, gpus_by_layout: Mapping[str, int], demand: Mapping[str, int]
) -> list[dict[str, int]]:
    """Count the instances of each layout's GPUs that a demand does not need, and compute slices of no instance.

    A larger instance may serve a smaller one.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of all GPUs.
    gpus_by_layout : mapping of str to int
        GPUs with each layout. [GPU]
    demand : mapping of str to int
        Instances that are needed, by profile.
    """
    instances = [
        {name: number * count for name, number in (parse_layout(layout) or {FULL_GPU: 1}).items()}
        for layout, count in gpus_by_layout.items()
    ]
    left: Counter[str] = sum(map(Counter, instances), Counter())
    left.subtract(resolve_counts(gpu_model, demand))
    sizes = {profile.name: (profile.memory_slices, profile.compute_slices) for profile in gpu_model.profiles}
    for name in sorted((name for name in sizes if left[name] < 0), key=lambda name: sizes[name], reverse=True):
        for larger in sorted((profile for profile in sizes if left[profile] > 0), key=lambda profile: sizes[profile]):
            if all(size >= needed for size, needed in zip(sizes[larger], sizes[name], strict=True)):
                used = min(left[larger], -left[name])
                left[larger], left[name] = left[larger] - used, left[name] + used
    left_counts = []
    for gpus, counts in reversed([*zip(gpus_by_layout.values(), instances, strict=True)]):
        unused = {name: min(count, left[name]) for name, count in counts.items() if left[name] > 0}
        left.subtract(unused)
        used = sum(sizes[name][1] * count for name, count in counts.items() if name in sizes)
        idle_slices = gpus * gpu_model.compute_slices * (used > 0) - used  # only a partitioned GPU has any
        left_counts.append(unused | ({IDLE_SLICE: idle_slices} if idle_slices else {}))
    return left_counts[::-1]


def _instances_text(counts: Mapping[str, int]) -> str:
    """Format numbers of instances by profile.

    Examples
    --------
    >>> _instances_text({"3g.40gb": 1, "1g.10gb": 4})
    '3g.40gb + 4 × 1g.10gb'
    """
    names = {name: "full GPU" if name == FULL_GPU else name for name in counts}
    return " + ".join(names[name] if count == 1 else f"{count} × {names[name]}" for name, count in counts.items())
