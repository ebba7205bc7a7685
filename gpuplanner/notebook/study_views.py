"""Views of a study, a comparison and the size of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from gpuplanner import decision
from gpuplanner import report as plots
from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.output_places import allow_overwriting_within
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import Comparison, compare_policies, make_policy_table, make_wait_curve_table
from gpuplanner.decision.decision_types import Decision
from gpuplanner.decision.explained_waits import make_cause_table
from gpuplanner.decision.pool_decisions import ComparedFleet
from gpuplanner.decision.quota_comparison import compare_placements, compare_stated_rules, states_sharing_rules
from gpuplanner.decision.quota_recommendation import advise_quotas
from gpuplanner.decision.study import Study
from gpuplanner.decision.team_fairness import assess_fairness
from gpuplanner.notebook.cluster_views import SeenTrace
from gpuplanner.notebook.usage_panels import ALL_BOARDS, BoardsPanel, SharingPanel
from gpuplanner.notebook.views import View
from gpuplanner.notebook.what_if import WhatIf, whatif
from gpuplanner.report import html_page as page
from gpuplanner.report import monthly_sections
from gpuplanner.report.change_bundle import hand_over
from gpuplanner.report.figure_formats import safe
from gpuplanner.report.finance_exports import write_study_workbook
from gpuplanner.report.first_screen import curve_figure, first_screen, fleet_picture, fleet_words, teams_table
from gpuplanner.report.formulas import value_text
from gpuplanner.report.html_page import Section, still
from gpuplanner.report.policy_and_team_sections import decided, placements, teams, waits_section, ways
from gpuplanner.report.report_rendering import decided_fleet
from gpuplanner.sizing.job_plans import SizingRequest, parse_gpu_counts
from gpuplanner.sizing.job_size import JobSizing, size_job, stack_components
from gpuplanner.sizing.learned_memory import shipped_peak_model
from gpuplanner.usage.job_history import gpus_by_model, gpus_by_model_of_dataset, split_into_pools

PLAN = (
    "rank", "gpu_model", "profile", "gpus", "predicted_gib", "upper_gib", "gpu_gib", "p_oom", "tokens_per_s", "hours",
    "price", "energy_kwh",
)  # fmt: skip
REASONS = {
    "why": "reason",
    "next_smaller": "next smaller plan",
    "launch": "launch command",
    "request": "request line",
}
_FORMATS = {
    "p_oom": ".1%",
    "tokens_per_s": ",.0f",
    "tokens_per_s_low": ",.0f",
    "tokens_per_s_high": ",.0f",
    "slowdown": ".1%",
    "factor": ".2f",
}
_HEADINGS = {
    "predicted_gib": "memory expected [GiB]",
    "upper_gib": "memory p95 [GiB]",
    "gpu_gib": "GPU memory [GiB]",
    "p_oom": "out-of-memory risk [%]",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_low": "tokens/s low",
    "tokens_per_s_high": "tokens/s high",
}


@dataclass(frozen=True, eq=False)
class SizedJob:
    """Plans for a job, the best first; its parts show themselves.

    - ``wish``, ``found``: What was asked, and the plans with what was taken for granted.
    """

    wish: SizingRequest
    found: JobSizing

    def _repr_html_(self) -> str:
        return still(self.plans().section)._repr_html_()

    def plans(self) -> View:
        """The plans, why the first ones are so, and what was assumed."""
        table = self.found.plan_table()
        best = self.found.plans[0]
        place = f"{best.gpus} x {best.gpu_model} {best.profile.replace('gpu', '')}".rstrip()
        said = page.note(f"{self.found.note or 'Best'}: {place}, {best.why}.")
        rows = page.table(
            table.select(name for name in PLAN if name in table.columns and table[name].count()),
            caption=f"{self.wish.task} {self.found.model.name}, the best plan first",
            formats=_FORMATS,
            headings=_HEADINGS,
        )
        reasons = []
        for one in self.found.plans[:3]:
            facts = {words: getattr(one, name) for name, words in REASONS.items() if getattr(one, name)}
            reasons.append(page.answers(facts, caption=f"Plan {one.rank}: {one.gpus} x {one.gpu_model}"))
        assumed = page.paragraph(f"Assumed: {'; '.join(self.found.assumed) or 'nothing'}.")
        return View(page.section("Plans", said, rows, *reasons, assumed), table)

    def slices(self) -> View:
        """Every slice of the boards at hand, also those that the job does not fit."""
        table = self.found.slice_table()
        shown = page.table(table, caption="Slices", formats=_FORMATS, headings=_HEADINGS)
        if table.is_empty():
            shown = page.paragraph("Name the available GPU models with on= to list their slices.")
        return View(page.section("Slices", shown), table)

    def memory(self) -> View:
        """What fills the memory of each plan that is explained."""
        table = stack_components(self.found.plans)
        best = self.found.plans[0]
        chart = page.figure(
            plots.plot_memory_stack(table),
            title="Memory components of each plan",
            alt=f"Plan 1 needs {best.predicted_gib:.1f} GiB of {best.gpu_gib:.1f} (p95 {best.upper_gib:.1f}). The thin "
            "mark is the p95, the grey mark the GPU memory.",
            numbers=table,
        )
        return View(page.section("Memory components", chart), table)

    def bounds(self) -> View:
        """How wide the bound of the best plan is, by what is known of the tool."""
        known, best = shipped_peak_model(), self.found.plans[0]
        logs = {
            "tool with five measured runs": known.few,
            "tool without measured runs": known.unseen,
            "unknown tool": known.generic,
        }
        rows = [(name, math.exp(log), best.predicted_gib * math.exp(log)) for name, log in logs.items()]
        table = pl.DataFrame(rows, schema=["evidence", "factor", "upper_gib"], orient="row")
        caption = f"p95 of the memory, {best.predicted_gib:.1f} GiB expected"
        shown = page.table(table, caption=caption, formats=_FORMATS, headings=_HEADINGS)
        return View(page.section("Upper bound of the memory", shown), table)

    def tool(self) -> View:
        """What the tool does unasked, with sources."""
        facts = [asdict(one) for one in self.found.tool_does]
        table = pl.DataFrame(facts, schema=["fact", "value", "source"])
        shown = page.table(table, caption="Defaults of the tool")
        return View(page.section("Defaults of the tool", shown), table)


def size(
    model: str,
    *,
    task: str = "train",
    seq: int = 4096,
    tool: str | None = None,
    tokens: float | None = None,
    deadline_h: float | None = None,
    on: SeenTrace | Scenario | Mapping[str, int | None] | str | None = None,
) -> SizedJob:
    """Size a job before it runs: memory with a bound that says how sure it is, time, money, and where it runs best.

    Parameters
    ----------
    model : str
        Preset, path of a config.json, or a spec such as ``"layers=32 hidden=4096"``.
    task : str
        ``"train"``, ``"dpo"``, ``"lora"``, ``"qlora"`` or ``"serve"``.
    seq : int
        Tokens of a sequence; serving: of prompt and answer.
    tool : str, optional
        Training tool, as far as its documentation is known.
    tokens : float, optional
        To train on, or to generate.
    deadline_h : float, optional
        Hours until it is done.
    on : SeenTrace, Scenario, Mapping or str, optional
        Boards at hand: those of a trace or of a scenario's fleet, board → GPUs, or words such as
        ``"H100-80GB-SXM5=64 A30"``; default: all with a data sheet and a price.

    Returns
    -------
    SizedJob
        ``plans()``, ``slices()``, ``memory()``, ``bounds()``, ``tool()``: a view each.

    Raises
    ------
    GpuPlannerError
        If the model, a word or a board is not known, or nothing fits; the message says what to do.

    Examples
    --------
    >>> found = size("gpt2", seq=1024, tokens=1e9, deadline_h=24, on="A100-80GB=8")
    >>> found.plans().frame().select("gpu_model", "gpus").row(0)
    ('A100-80GB', 1)
    """
    if isinstance(on, SeenTrace):
        boards: Mapping[str, int | None] | None = gpus_by_model_of_dataset(
            on.box.trace, on.box.gpu_model, source=on.name
        )
    elif isinstance(on, Scenario):
        boards = gpus_by_model(on)
    else:
        boards = parse_gpu_counts(on.split()) if isinstance(on, str) else on
    wish = SizingRequest(model, task, seq, tool, tokens, deadline_h, boards)
    return SizedJob(wish, size_job(wish))


@dataclass(frozen=True, kw_only=True)
class DecisionCard(Decision):
    """A decision that shows itself as the first screen of the page.

    Examples
    --------
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> found = Comparison(make_empty_decision(Scenario(), "no job states when it ran"), 0.95, 10.0)
    >>> card = DecisionCard.of(found)
    >>> card.action, "Missing data" in card._repr_html_()
    ('none', True)
    """

    found: Comparison

    @classmethod
    def of(cls, found: Comparison) -> Self:
        """The decision of a comparison, as a card."""
        one = found.decision
        return cls(**{field.name: getattr(one, field.name) for field in fields(Decision)}, found=found)

    def _repr_html_(self) -> str:
        body = f"<h3>{safe(self.sentence)}</h3>{first_screen(self.found)}"
        return still(page.section("Recommendation", body))._repr_html_()


@dataclass(frozen=True, eq=False)
class Decided:
    """A comparison of ways to run a fleet whose parts show themselves.

    - ``scenario``, ``found``: What was asked, and all ways with the decision.
    """

    scenario: Scenario
    found: Comparison

    @property
    def decision(self) -> DecisionCard:
        """What to do, as a card."""
        return DecisionCard.of(self.found)

    def _repr_html_(self) -> str:
        return still(decided(self.found))._repr_html_()

    def ways(self) -> View:
        """Every way to run the fleet."""
        return View(ways(self.found), make_policy_table(self.found))

    def boards(self) -> BoardsPanel[Comparison | ComparedFleet]:
        """A drop-down of the fleet's GPU models: the decision on one of them, or on all."""
        fleet = split_into_pools(self.scenario)

        def found(name: str) -> Comparison | ComparedFleet:
            if name == ALL_BOARDS:
                return ComparedFleet({gpu_model: compare_policies(own) for gpu_model, own in fleet.pools.items()})
            return compare_policies(fleet.pools[name])

        def shown(one: Comparison | ComparedFleet) -> str:
            section = decided(one) if isinstance(one, Comparison) else decided_fleet(one)
            return still(section)._repr_html_()

        return BoardsPanel(fleet.pools, found, shown)

    def on(self, scenario: Scenario) -> Decided:
        """The same for another board of the fleet, as :meth:`boards` has it chosen."""
        return self if scenario == self.scenario else decide(scenario)

    def sharing(self, *, ahead: bool = False) -> View:
        """What every team was due, got, lent, borrowed and is owed, why its jobs waited, and what rules change."""
        found = assess_fairness(self.scenario)
        advice = advise_quotas(self.scenario) if ahead else None
        tried = compare_stated_rules(self.scenario) if states_sharing_rules(self.scenario) else None
        return View(teams(found, advice, tried), found.teams)

    def rules(self) -> SharingPanel:
        """Controls of quotas, fair share and preemption, played on the same weeks."""
        return SharingPanel(self.scenario)

    def placements(self, slowdowns: str) -> View:
        """GPU-hours that jobs on several nodes lose, by placement; slow-downs within a rack and beyond: ``1.1,1.3``."""
        table = compare_placements(self.scenario.but(gang_slowdowns=slowdowns))
        return View(placements(table), table)

    def whatif(self) -> WhatIf:
        """Controls that begin at this answer."""
        return whatif(self.scenario)

    def export(self, folder: str | Path) -> Path:
        """Write what carries the decision out, with a workbook, and give the page that says where to begin."""
        return hand_over(self.scenario, self.found, folder)


class ShownStudy(Study):
    """A study whose parts show themselves; what it says is what the study says.

    Examples
    --------
    >>> answer = evaluate(Scenario(month="2026-02", policies="fewer_nodes"))  # doctest: +SKIP
    >>> answer.ways().frame().height  # doctest: +SKIP
    2
    """

    @classmethod
    def of(cls, study: Study) -> Self:
        """The same study, with views."""
        return cls(**{field.name: getattr(study, field.name) for field in fields(Study)})

    @property
    def decision(self) -> DecisionCard:
        """What to do, as a card."""
        return DecisionCard.of(self.comparison)

    def _repr_html_(self) -> str:
        return self.decision._repr_html_()

    def ways(self) -> View:
        """Every way to run the fleet."""
        return View(ways(self.comparison), make_policy_table(self.comparison))

    def waits(self) -> View:
        """What kept jobs waiting, by job size and team."""
        found = self.comparison.waits
        return View(waits_section(self.comparison), make_cause_table(found.causes.team if found else ()))

    def wait_curve(self) -> View:
        """p95 queue wait against the number of GPUs, by job size."""
        return View(Section(curve_figure(self.comparison)), make_wait_curve_table(self.comparison))

    def forecast(self) -> View:
        """How much was requested and how it grows; and the forecast behind a plan, where there is one."""
        shown = Section(monthly_sections.capacity(self) + monthly_sections.demand(self))
        return View(shown, make_wait_curve_table(self.comparison))

    def fleet(self) -> View:
        """The fleet as it is decided, to scale."""
        rows = [(one.layout, one.gpus, list(one.nodes)) for one in self.decision.layouts]
        schema = {"layout": pl.String(), "gpus": pl.Int64(), "nodes": pl.List(pl.String)}
        table = pl.DataFrame(rows, schema=schema, orient="row")
        words = page.note(fleet_words(self.decision))
        return View(page.section("Target layout", fleet_picture(self.decision), words), table)

    def teams(self) -> View:
        """Who held what, and where the hours went."""
        shown = page.table(teams_table(self.decision), caption=f"By team, {monthly_sections.period(self)}")
        section = Section(page.section("By team", shown) + monthly_sections.ledger(self))
        return View(section, self.tables["ledger_tenants"])

    def money(self) -> View:
        """What the period cost, for whom, with energy and carbon."""
        return View(monthly_sections.costs(self), self.tables["costs"])

    def but(self, **changes: Any) -> ShownStudy:  # noqa: ANN401 - fields of a scenario
        """The study of the same scenario with other values; what can be reused is."""
        return evaluate(replace(self.scenario, **changes))

    def export(self, folder: str | Path) -> Path:
        """Write what carries the decision out, with a workbook, and give the page that says where to begin."""
        return hand_over(self.scenario, self.comparison, folder)

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tables as a workbook whose totals are those of the page."""
        with allow_overwriting_within(overwrite):
            return write_study_workbook(path, self)


def decide(scenario: Scenario) -> Decided:
    """Compare ways to run the fleet, and decide: without plan and ledger, in seconds.

    Parameters
    ----------
    scenario : Scenario
        What to compare, on what data.

    Returns
    -------
    Decided
        ``decision``, ``ways()``, ``boards()``, ``whatif()``, ``export()``.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used.

    Examples
    --------
    >>> decide(Scenario(data="nowhere"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: ...
    """
    return Decided(scenario, compare_policies(scenario))


def evaluate(scenario: Scenario, *, cache: bool = True) -> ShownStudy:
    """Walk from data to decision, and get what shows itself.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        See :func:`gpuplanner.decision.study_pipeline.evaluate`.

    Returns
    -------
    ShownStudy
        The study: ``decision``, ``ways()``, ``forecast()``, ``fleet()``, ``teams()``, ``money()``,
        ``but()``, ``export()``, ``to_excel()``, ``save()``.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used; the message says what to do.

    Examples
    --------
    >>> evaluate(Scenario(data="nowhere"))
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.TraceFormatError: ...
    """
    return ShownStudy.of(decision.evaluate(scenario, cache=cache))


def open_study(directory: str | Path) -> ShownStudy:
    """Open a folder that a study was saved to, or that of a report.

    Parameters
    ----------
    directory : str or Path
        The folder.

    Returns
    -------
    ShownStudy
        As :func:`evaluate` gives it.

    Raises
    ------
    ScenarioError
        If it is no such folder.

    Examples
    --------
    >>> open_study("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: nowhere: ...
    """
    return ShownStudy.of(decision.open_study(directory))


def compare(*studies: Study | Decided | Comparison | Scenario) -> View:
    """Hold decisions side by side: what each does, saves and adds, with ranges.

    Parameters
    ----------
    *studies : Study, Decided, Comparison or Scenario
        Two or more of them; a scenario is compared first.

    Returns
    -------
    View
        A row a figure, a column a decision.

    Raises
    ------
    ScenarioError
        If there are fewer than two.

    Examples
    --------
    >>> compare(Scenario())
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: compare: expected two or more decisions; got 1. Pass another one.
    """
    if len(studies) < 2:
        raise ScenarioError("compare", "two or more decisions", str(len(studies)), "Pass another one.")
    found = [_comparison_of(one) for one in studies]
    names = [f"{number}: {one.decision.sentence.split('.')[0]}" for number, one in enumerate(found, start=1)]
    columns = {name: _figures(one) for name, one in zip(names, found, strict=True)}
    figures = list(next(iter(columns.values())))
    frame = pl.DataFrame({"figure": figures} | {name: list(one.values()) for name, one in columns.items()})
    return View(page.section("Side by side", page.table(frame, caption="Decisions side by side")), frame)


def _comparison_of(one: Study | Decided | Comparison | Scenario) -> Comparison:
    """The comparison behind a decision; that of a scenario is made first."""
    if isinstance(one, Scenario):
        return compare_policies(one)
    if isinstance(one, Study):
        return one.comparison
    return one.found if isinstance(one, Decided) else one


def _figures(found: Comparison) -> Mapping[str, str]:
    """The figures of a decision in words, for a column."""
    one, saving = found.decision, found.decision.saving
    span = "" if saving.low is None else f" ({value_text(saving.low)} to {value_text(saving.high)})"
    wait = None if one.longest_waiting is None else one.longest_waiting.recommended_p95_minutes
    return {
        "action": one.action.replace("_", " "),
        "peak GPUs": f"{one.gpus:,} of {one.fleet_gpus:,}",
        "capacity freed, GPU-hours a week": value_text(saving.value) + span,
        "financial impact, USD a week": value_text(one.financial_impact.usd_per_week),
        "p95 queue wait of the size that waits longest, min": value_text(wait),
        "capacity exhausted": value_text(found.exhaustion.date),
    }
