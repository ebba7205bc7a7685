"""Views of the size of a job, and the panel that sizes one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_column_headings import read_table_headings
from gpuplanner.core.scenario import Scenario
from gpuplanner.notebook.cluster import Cluster
from gpuplanner.notebook.section_panels import SectionPanel, number_field
from gpuplanner.notebook.views_and_panels import View, control_style, dropdown, on_change, or_card
from gpuplanner.report import html_page as page
from gpuplanner.report.html_page import HtmlSection
from gpuplanner.sizing.job_plans import (
    SIZING_TASKS,
    SizingRequest,
    parse_gpu_counts,
    resolve_gpu_words,
    resolve_request,
)
from gpuplanner.sizing.job_size import JobSizing, size_job, tabulate_candidates, tabulate_memory_components
from gpuplanner.sizing.learned_memory import shipped_peak_model
from gpuplanner.sizing.model_architecture import load_presets
from gpuplanner.usage.planning_history import gpus_by_model, gpus_by_model_of_dataset

SIZE_FIX = 'gp.size(model, task="qlora", seq=2048, on="H200-141GB=8 H100-80GB-SXM5=64")'
"""Python code that leads to an answer where no plan fits."""
MAX_COST_ROWS = 12
"""Maximum number of plans in the table by cost; ``.df`` has all."""
SIZING_PLAN_COLUMNS = ("predicted_gib", "upper_gib", "gpu_gib", "p_oom", "tokens_per_s", "hours", "price", "energy_kwh")
"""Columns that the table of plans for a job shows after the plan, where they have values."""
SIZING_REASON_HEADINGS = read_table_headings("size reasons")
"""Labels of the reasons and commands of a plan for a job, by field."""
_SIZING_FORMATS = {"p_oom": ".1%", "tokens_per_s": ",.0f", "factor": ".2f"}
"""Formats of the tables on the size of a job, by column."""
_SIZING_HEADINGS = read_table_headings("job sizes")
"""Headings of the tables on the size of a job, by column."""


@dataclass(frozen=True, eq=False)
class SizedJob:
    """Ranked plans (GPU model, MIG profile, GPUs) for a job, with a method that shows each part in a notebook.

    - ``request``: Job and available GPUs.
    """

    request: SizingRequest

    @cached_property
    def sizing(self) -> JobSizing:
        """Plans and assumptions."""
        return size_job(self.request)

    def _repr_html_(self) -> str:
        return self.costs()._repr_html_()

    @or_card("Cost against run time", SIZE_FIX)
    def costs(self) -> View:
        """Show cost against run time with the Pareto front, and the plans by their cost at the deadline."""
        table, request = tabulate_candidates(self.sizing, self.request), self.request
        has_hours = table["hours"].count() > 0
        speed, label = ("hours", "run time [h]") if has_hours else ("tokens_per_s", "tokens/s")
        unit = "cost [USD]" if has_hours else "cost an hour [USD]"
        deadline = request.deadline_h if has_hours else None
        drawn = table.drop_nulls("cost").with_columns(speed=speed)
        in_time = table.filter("meets_deadline").drop("meets_deadline")
        until = "" if deadline is None else f" within {deadline:g} h"
        best = in_time.row(0, named=True) if in_time.height and in_time["cost"][0] is not None else None
        answer = f"No plan{until} has a price." if best is None else (
            f"Cheapest{until}: {best['plan']}, {best['cost']:,.2f} USD{'' if has_hours else ' an hour'}."
        )  # fmt: skip
        dropped = ["gpu_model", "profile"] + ([] if has_hours else ["hours"])
        names = {"cost": unit, "pareto": "Pareto front"}
        return View(
            page.section(
                "Cost against run time",
                page.note(answer if in_time.height else f"No plan{until}; the fastest is the leftmost."),
                page.figure(
                    plots.plot_cost_against_time(drawn, label=label, unit=unit, deadline=deadline),
                    title="Cost against run time" if has_hours else "Cost against speed",
                    alt="Ringed plans are the Pareto front: no other plan is both cheaper and faster.",
                ),
                page.table(
                    in_time.drop(dropped), caption=f"Plans{until}, the cheapest first", formats=_SIZING_FORMATS,
                    headings=_SIZING_HEADINGS | names, max_rows=MAX_COST_ROWS,
                ),
            ),
            table,
        )  # fmt: skip

    @or_card("Plans", SIZE_FIX)
    def plans(self) -> View:
        """Show the plans, the reasons for the first three, and the assumptions."""
        table = self.sizing.plan_table()
        best = self.sizing.plans[0]
        note = page.note(f"{self.sizing.note or 'Best'}: {best.name}, {best.why}.")
        rows = page.table(
            table.select(
                pl.Series("plan", [plan.name for plan in self.sizing.plans]),
                *(name for name in SIZING_PLAN_COLUMNS if name in table.columns and table[name].count()),
            ),
            caption=f"{self.request.task} {self.sizing.model.name}, the best plan first",
            formats=_SIZING_FORMATS,
            headings=_SIZING_HEADINGS,
        )
        reasons = []
        for plan in self.sizing.plans[:3]:
            facts = {
                words: getattr(plan, name) for name, words in SIZING_REASON_HEADINGS.items() if getattr(plan, name)
            }
            reasons.append(page.value_table(facts, caption=f"Plan {plan.rank}: {plan.name}"))
        assumed = page.paragraph(f"Assumed: {'; '.join(self.sizing.assumed) or 'nothing'}.")
        return View(page.section("Plans", note, rows, *reasons, assumed), table)

    @or_card("Slices", SIZE_FIX)
    def slices(self) -> View:
        """Show all MIG profiles of the available GPU models, those that fit first."""
        table = self.sizing.slice_table()
        table = table.sort("fits", descending=True, maintain_order=True) if table.height else table
        columns = pl.all().exclude("tokens_per_s_low", "tokens_per_s_high", "recompute", "micro_batch", "concurrency")
        shown = page.table(table.select(columns), caption="Slices", formats=_SIZING_FORMATS, headings=_SIZING_HEADINGS)
        if table.is_empty():
            shown = page.paragraph("Name the available GPU models with on= to list their slices.")
        return View(page.section("Slices", shown), table)

    @or_card("Memory components", SIZE_FIX)
    def memory(self) -> View:
        """Show the memory components of each plan."""
        table = tabulate_memory_components(self.sizing.plans)
        best = self.sizing.plans[0]
        chart = page.figure(
            plots.plot_memory_stack(table),
            title="Memory components of each plan",
            alt=f"Plan 1 needs {best.predicted_gib:.1f} GiB of {best.gpu_gib:.1f} (p95 {best.upper_gib:.1f}). The thin "
            "mark is the p95, the grey mark the GPU memory.",
            numbers=table,
        )
        return View(page.section("Memory components", chart), table)

    @or_card("Upper bound of the memory", SIZE_FIX)
    def bounds(self) -> View:
        """Show the p95 of the memory of the best plan, by how much is known about the training tool."""
        peak_model, best = shipped_peak_model(), self.sizing.plans[0]
        logs = {
            "plan 1": math.log(best.upper_gib / best.predicted_gib),
            "tool with five measured runs": peak_model.few,
            "tool without measured runs, one GPU": peak_model.unseen,
            "unknown tool": peak_model.generic,
        }
        rows = [(name, math.exp(log), best.predicted_gib * math.exp(log)) for name, log in logs.items()]
        table = pl.DataFrame(rows, schema=["evidence", "factor", "upper_gib"], orient="row")
        caption = f"p95 of the memory, {best.predicted_gib:.1f} GiB expected"
        shown = page.table(table, caption=caption, formats=_SIZING_FORMATS, headings=_SIZING_HEADINGS)
        return View(page.section("Upper bound of the memory", shown), table)

    @or_card("Defaults of the tool", SIZE_FIX)
    def tool(self) -> View:
        """Show the defaults of the training tool, with sources."""
        table = pl.DataFrame([asdict(fact) for fact in self.sizing.tool_does], schema=["fact", "value", "source"])
        return View(page.section("Defaults of the tool", page.table(table, caption="Defaults of the tool")), table)

    def controls(self) -> SizePanel:
        """Make the panel with fields of model, task, lengths, deadline and GPUs."""
        return SizePanel(self.request)


class SizePanel(SectionPanel[SizingRequest, SizedJob]):
    """Panel to size a job: model, task, lengths, deadline and GPUs; cost against run time and slices follow.

    Parameters
    ----------
    request : SizingRequest
        Initial settings of the controls.

    Attributes
    ----------
    model : ipywidgets.Combobox
        Preset, path of a config.json, or a spec.
    task : ipywidgets.Dropdown
        Task.
    seq, tokens, deadline : NumberField
        Sequence length [tokens], tokens [billions] and deadline [h]; 0: none.
    gpu_models : ipywidgets.Text
        Available GPUs, such as ``H100-80GB-SXM5=64 A30``.

    Examples
    --------
    >>> panel = SizePanel(SizingRequest("gpt2", "train", 1024, tokens=1e9, deadline_h=24.0, boards={"A100-80GB": 8}))
    >>> panel.deadline.control.value = 48.0
    >>> panel.ask().result().request.deadline_h
    48.0
    """

    at_once = True

    def __init__(self, request: SizingRequest) -> None:
        super().__init__(SizedJob, self._render, working="Sizing the job ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        style = control_style("13em", "26em")
        self._request = request
        self.model = widgets.Combobox(
            value=request.model, options=list(load_presets()), description="Model", continuous_update=False, **style
        )
        self.task = dropdown(SIZING_TASKS, request.task, "Task", tooltip="Training or serving", **style)
        self.seq = number_field(request.seq, 1, 10_000_000, "Sequence (tokens)", "Tokens per sequence", **style)
        billions = (request.tokens or 0.0) / 1e9
        self.tokens = number_field(billions, 0.0, 1e6, "Tokens (billions)", "To train on; 0: not known", **style)
        hours = float(request.deadline_h or 0.0)
        self.deadline = number_field(hours, 0.0, 1e5, "Deadline (h)", "Maximum run time; 0: none", **style)
        counts = (request.boards or {}).items()
        words = " ".join(name if count is None else f"{name}={count}" for name, count in counts)
        self.gpu_models = widgets.Text(
            value=words, description="GPU models", placeholder="all with a price", continuous_update=False, **style
        )
        self.code = widgets.HTML()
        fields = [
            self.model, self.task, self.seq.control, self.tokens.control, self.deadline.control, self.gpu_models,
        ]  # fmt: skip
        self.fields = [self.seq, self.tokens, self.deadline]
        on_change(fields, self.ask_soon)
        grid = widgets.GridBox(fields, layout={"grid_template_columns": "repeat(auto-fill, minmax(27em, 1fr))"})
        self.panel = widgets.VBox([grid, self.code, self.status, self.answer.box])

    @property
    def question(self) -> SizingRequest:
        """Request of the controls."""
        words = self.gpu_models.value.split()
        return replace(
            self._request, model=self.model.value.strip(), task=self.task.value, seq=self.seq.value,
            tokens=1e9 * self.tokens.value or None, deadline_h=self.deadline.value or None,
            boards=parse_gpu_counts(words) if words else None,
        )  # fmt: skip

    def find_faults(self) -> list[tuple[Any, str]]:
        """List the fields outside their range, GPU models that cannot be read, and a model that is not known."""
        faults = super().find_faults()
        try:
            resolve_gpu_words(parse_gpu_counts(self.gpu_models.value.split()))
        except GpuPlannerError as error:
            faults.append((self.gpu_models, str(error)))
        if not faults:
            try:
                resolve_request(self.question)
            except GpuPlannerError as error:
                faults.append((self.model, str(error)))
        return faults

    def _render(self, job: SizedJob) -> HtmlSection:
        """Render cost against run time, and the slices."""
        return HtmlSection(job.costs().section + job.slices().section)

    def _show_answer(self, number: int, newest: SizedJob | None, answer: str, status: str) -> None:
        """Show the newest answer, and the line of code that does the same."""
        super()._show_answer(number, newest, answer, status)
        if newest is not None:
            request = newest.request
            settings = {"task": request.task, "seq": request.seq, "tokens": request.tokens}
            settings |= {"deadline_h": request.deadline_h, "on": self.gpu_models.value or None}
            shown = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
            self.code.value = f"<code>{escape(f'gp.size({request.model!r}, {shown})')}</code>"


def size(
    model: str,
    *,
    task: str = "train",
    seq: int = 4096,
    tool: str | None = None,
    tokens: float | None = None,
    deadline_h: float | None = None,
    on: Cluster | Scenario | Mapping[str, int | None] | str | None = None,
) -> SizedJob:
    """Estimate memory, run time and cost of a job before it runs, and rank plans for it.

    Parameters
    ----------
    model : str
        Preset, path of a config.json, or a spec such as ``"layers=32 hidden=4096"``.
    task : str
        ``"train"``, ``"dpo"``, ``"lora"``, ``"qlora"`` or ``"serve"``.
    seq : int
        Sequence length; serving: prompt and answer. [tokens]
    tool : str, optional
        Training tool, such as ``"torchtitan"``.
    tokens : float, optional
        Tokens to train on, or to generate.
    deadline_h : float, optional
        Maximum run time. [h]
    on : Cluster, Scenario, Mapping or str, optional
        Available GPUs: those of a dataset or a scenario, number of GPUs by GPU model, or a text such as
        ``"H100-80GB-SXM5=64 A30"``; default: all models with a data sheet and a price.

    Returns
    -------
    SizedJob
        ``costs()``, ``plans()``, ``slices()``, ``memory()``, ``bounds()``, ``tool()``: a view each; ``controls()``.

    Raises
    ------
    GpuPlannerError
        If the model or a GPU model is not known; the message has the remedy. If no plan fits, the views are cards.

    Examples
    --------
    >>> found = size("gpt2", seq=1024, tokens=1e9, deadline_h=24, on="A100-80GB=8")
    >>> found.plans().df.select("gpu_model", "gpus").row(0)
    ('A100-80GB', 1)
    """
    if isinstance(on, Cluster):
        gpu_counts: Mapping[str, int | None] | None = gpus_by_model_of_dataset(
            on.inbox.trace, on.inbox.gpu_model, source=on.data
        )
    elif isinstance(on, Scenario):
        gpu_counts = gpus_by_model(on)
    else:
        gpu_counts = parse_gpu_counts(on.split()) if isinstance(on, str) else on
    request = SizingRequest(model, task, seq, tool, tokens, deadline_h, gpu_counts)
    resolve_request(request)  # a model or a GPU model that is not known is an error at once
    return SizedJob(request)
