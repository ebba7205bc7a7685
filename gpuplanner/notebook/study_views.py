"""Views of a study and of a comparison."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import polars as pl

from gpuplanner import decision
from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import (
    Comparison,
    compare_policies,
    make_policy_table,
    make_wait_curve_table,
    make_wait_table,
)
from gpuplanner.decision.decision_types import WAIT_TOLERANCE_MINUTES, Decision
from gpuplanner.decision.explained_waits import make_cause_table
from gpuplanner.decision.fleet_size_decision import P95_WAIT, UNSTATED_FLEET
from gpuplanner.decision.gpu_model_decisions import ComparedFleet, make_decision_table
from gpuplanner.decision.quota_and_placement_comparison import (
    compare_placements,
    compare_stated_rules,
    states_sharing_rules,
)
from gpuplanner.decision.quota_recommendation import advise_quotas
from gpuplanner.decision.recommendation import simulate_fleet_sizes
from gpuplanner.decision.requested_to_recommended_gpus import reconcile_gpus
from gpuplanner.decision.study import Study, arrange_decisions, tabulate_decisions
from gpuplanner.decision.team_fairness import assess_fairness
from gpuplanner.notebook.cluster import Cluster, StudySource, make_scenario
from gpuplanner.notebook.quota_panel import SharingPanel
from gpuplanner.notebook.service_panel import ServicePanel
from gpuplanner.notebook.views_and_panels import View, answer_or_card, or_card
from gpuplanner.notebook.what_if import WhatIf
from gpuplanner.notebook.what_if_answer import simulate_with_able_actuator
from gpuplanner.report import html_page as page
from gpuplanner.report import monthly_sections
from gpuplanner.report.bundle_export import write_handover_folder
from gpuplanner.report.first_screen import describe_fleet, render_first_screen, teams_table, wait_curve_figure
from gpuplanner.report.fleet_drawing import draw_fleet
from gpuplanner.report.focus_files_and_workbooks import write_study_workbook
from gpuplanner.report.html_page import HtmlSection, to_still_text
from gpuplanner.report.metric_formulas import value_text
from gpuplanner.report.number_formats_and_glossary import escape_html
from gpuplanner.report.policy_and_team_sections import (
    render_placement_section,
    render_policy_section,
    render_team_section,
    render_wait_section,
)
from gpuplanner.report.report_rendering import REPORT_SECTIONS, render_fleet_recommendation
from gpuplanner.usage.planning_history import split_into_pools


@dataclass(frozen=True, kw_only=True)
class DecisionCard(Decision):
    """A decision that a notebook shows as the first screen of the report.

    - ``comparison``: Policies behind the decision.

    Examples
    --------
    >>> from gpuplanner.decision.decision_text import make_empty_decision
    >>> found = Comparison(make_empty_decision(Scenario(), "no job states when it ran"), 10.0)
    >>> card = DecisionCard.from_comparison(found)
    >>> card.action, "Missing data" in card._repr_html_()
    ('none', True)
    """

    comparison: Comparison

    @classmethod
    def from_comparison(cls, comparison: Comparison) -> Self:
        """Make the card of the decision of a comparison."""
        decision = comparison.decision
        return cls(**{field.name: getattr(decision, field.name) for field in fields(Decision)}, comparison=comparison)

    def _repr_html_(self) -> str:
        body = f"<h3>{escape_html(self.sentence)}</h3>{render_first_screen(self.comparison)}"
        return to_still_text(page.section("Recommendation", body))._repr_html_()


@dataclass(frozen=True, eq=False, repr=False)
class StudyView:
    """A scenario with its recommendation, and a view for each question about it.

    Policies are compared at once; forecast, plan, ledger and costs are computed when they are first asked for.

    - ``scenario``: Cluster, data, limits and prices.
    - ``comparison``: Policies and decision.
    - ``stored``: The study as read from its folder; None: computed when needed.
    - ``panel_note``: Note of the what-if panel that it was made from, which shows once that has other settings.
    """

    scenario: Scenario
    comparison: Comparison
    stored: Study | None = None
    panel_note: str = ""

    def _view(self, section: str, table: pl.DataFrame) -> View:
        """Make a view below the note of the panel whose settings the study has."""
        return View(HtmlSection(self.panel_note + section), table)

    def __repr__(self) -> str:
        return textwrap.shorten(f"StudyView({self.scenario.name}: {self.decision.sentence})", 190)

    def _repr_html_(self) -> str:
        return self.panel_note + self.decision._repr_html_()

    @property
    def decision(self) -> DecisionCard:
        """Recommendation, as a card."""
        return DecisionCard.from_comparison(self.comparison)

    @cached_property
    def results(self) -> Study:
        """All tables of the study, with the layout plan; computed when first asked for."""
        return self.stored or decision.evaluate(self.scenario)

    def policies(self, *, other_actuators: bool = False) -> View:
        """Show all operating policies: GPU-hours, added wait, and whether they meet the limit.

        Parameters
        ----------
        other_actuators : bool
            Simulate policies that the actuator cannot apply with one that can, as the what-if panel does; grey.
        """
        comparison = self.comparison
        if other_actuators:
            base = self.scenario.but(**UNSTATED_FLEET)
            policies = tuple(simulate_with_able_actuator(base, row) for row in comparison.policies)
            comparison = replace(comparison, policies=policies)
        return self._view(render_policy_section(comparison), make_policy_table(comparison))

    def waits(self, by: str = "job_size") -> View:
        """Show the p95 queue waits by job size, with their intervals, and the hours of waiting by cause.

        Parameters
        ----------
        by : str
            ``"job_size"``, or ``"team"`` for the hours of waiting by cause alone.

        Returns
        -------
        View
            ``df``: the rows that are shown; at another demand than the recorded one nothing was observed (null).
        """
        group = resolve_name(by, ["job_size", "team"], subject="group", error=ScenarioError)
        summary = self.comparison.waits
        table = make_cause_table(getattr(summary.causes, group) if summary else ())
        if group == "job_size" and self.decision.service:
            waits = make_wait_table(self.comparison)
            table = waits.join(table.drop("jobs"), left_on="size", right_on="name", how="left", maintain_order="left")
        return self._view(render_wait_section(self.comparison, [group]), table)

    def wait_curve(self, *, gpus: Sequence[int] = ()) -> View:
        """Show the p95 queue wait against the number of GPUs, by job size; `gpus` as of :func:`wait_curve`."""
        for size in gpus if isinstance(gpus, Sequence) else (None,):
            if not isinstance(size, int) or size <= 0:
                got, todo = str(gpus if size is None else size), "Fix gpus=, such as gpus=[56, 64]."
                raise ScenarioError("gpus", "a list of numbers of GPUs above 0", got, todo)

        def simulate() -> View:
            comparison = self.comparison
            if gpus:
                points = simulate_fleet_sizes(self.scenario.without_prices(), tuple(sorted(set(gpus))))
                comparison = replace(comparison, wait_curve=points)
            return self._view(wait_curve_figure(comparison), make_wait_curve_table(comparison))

        return answer_or_card("Queue wait by number of GPUs", simulate)

    @or_card("From requested to recommended GPUs")
    def reconciliation(self) -> View:
        """Show how the recommended GPUs follow from the requested ones: each step with its GPUs and its reason."""
        table = reconcile_gpus(self.scenario, self.comparison)
        caption = "From requested to recommended GPUs"
        return self._view(page.section(caption, page.table(table, caption=caption, formats={"gpus": ",.1f"})), table)

    def forecast(self) -> View:
        """Show requested and allocated GPUs, their growth, and the forecast of the plan."""
        shown = monthly_sections.capacity(self.results) + monthly_sections.demand(self.results)
        return self._view(shown, self.results.tables.get("forecast", pl.DataFrame()))

    def fleet(self) -> View:
        """Show the target layout of the fleet, to scale."""
        rows = [(layout.layout, layout.gpus, list(layout.nodes)) for layout in self.decision.layouts]
        schema = {"layout": pl.String(), "gpus": pl.Int64(), "nodes": pl.List(pl.String)}
        table = pl.DataFrame(rows, schema=schema, orient="row")
        words = page.note(describe_fleet(self.decision))
        return self._view(page.section("Target layout", draw_fleet(self.decision), words), table)

    def teams(self) -> View:
        """Show the allocated GPU-hours by team, and the installed GPU-hours by bucket."""
        caption = f"By team, {monthly_sections.describe_period(self.results)}"
        shown = page.table(teams_table(self.decision), caption=caption)
        section = page.section("By team", shown) + monthly_sections.ledger(self.results)
        return self._view(section, self.results.tables["ledger_tenants"])

    def costs(self) -> View:
        """Show the cost of the period by team, with energy and carbon."""
        return self._view(monthly_sections.costs(self.results), self.results.tables["costs"])

    def section(self, name: str) -> HtmlSection:
        """Return a section of the monthly report, as the page has it.

        Parameters
        ----------
        name : str
            ``"summary"``, ``"capacity"``, ``"ledger"``, ``"comparison"``, ``"teams"``, ``"rightsizing"``, ``"costs"``,
            ``"demand"``, ``"numbers"``, ``"layouts"``, ``"quality"`` or ``"method"``.
        """
        section_name = resolve_name(name, list(REPORT_SECTIONS), subject="section", error=ScenarioError)
        return REPORT_SECTIONS[section_name](self.results)

    def services(self) -> ServicePanel | View:
        """Make the panel with the replicas of the inference services of the scenario; without any, a card."""
        fix = 'gp.decide(data, services="services.yaml").services()'
        return answer_or_card("Inference services", lambda: ServicePanel(self.scenario), fix)

    def gpu_models(self) -> View:
        """Show the decision for each GPU model of the fleet, with their sum; ``gpu_model=`` decides for one alone."""
        pools = split_into_pools(self.scenario).pools
        several = len(pools) > 1  # else it is the fleet of this study
        comparisons = {name: compare_policies(pool) if several else self.comparison for name, pool in pools.items()}
        fleet = ComparedFleet(comparisons)
        return self._view(render_fleet_recommendation(fleet), make_decision_table(fleet.decisions))

    def fair_share(self, *, advise: bool = False) -> View:
        """Show quota, allocated, lent and borrowed GPU-hours and queue waits of each team.

        Parameters
        ----------
        advise : bool
            Also recommend quotas.

        Returns
        -------
        View
            Tables by team, and the effect of the quotas and preemption rules that the scenario states.
        """
        team_fairness = assess_fairness(self.scenario)
        advice = advise_quotas(self.scenario) if advise else None
        rules_comparison = compare_stated_rules(self.scenario) if states_sharing_rules(self.scenario) else None
        return self._view(render_team_section(team_fairness, advice, rules_comparison), team_fairness.teams)

    def rules(self) -> SharingPanel:
        """Make the panel that simulates quotas, fair share and preemption on the same weeks."""
        return SharingPanel(self.scenario)

    def placements(self, slowdowns: str) -> View:
        """Show the GPU-hours that jobs on several nodes lose by placement.

        Parameters
        ----------
        slowdowns : str
            Slowdown factors within a rack and beyond, such as ``"1.1,1.3"``.
        """
        table = compare_placements(self.scenario.but(gang_slowdowns=slowdowns))
        return self._view(render_placement_section(table), table)

    def whatif(self) -> WhatIf:
        """Make the what-if panel of this scenario."""
        return WhatIf(self.scenario, self.comparison)

    def but(self, **changes: Any) -> StudyView:  # noqa: ANN401 - fields of a scenario
        """Decide for the scenario with other field values; what does not depend on them is reused."""
        return replace(decide(self.scenario, **changes), panel_note=self.panel_note)

    def export(self, folder: str | Path) -> Path:
        """Write the change bundle of the decision and a workbook; return the page with the steps."""
        return write_handover_folder(self.scenario, self.comparison, folder)

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tables as an Excel workbook with the totals of the page."""
        with allow_overwriting_within(overwrite):
            return write_study_workbook(path, self.results)

    def save(self, folder: str | Path) -> Path:
        """Write the study as a folder, which :func:`open_study` reads."""
        return self.results.save(folder)


def decide(data: StudySource | WhatIf = "sample", **changes: Any) -> StudyView:  # noqa: ANN401 - fields of a scenario
    """Compare operating policies of a cluster and recommend what to change.

    Parameters
    ----------
    data : str, Path, Cluster, Scenario or WhatIf
        Name or folder of a dataset, a cluster, a scenario, or a what-if panel: its settings. Views of such a study
        carry a note once the panel has others.
    **changes
        Fields of a :class:`Scenario`; the most used:

        - ``gpus=56``: a fleet of that size, in whole nodes; the headline names a job size that misses its limit [GPU]
        - ``arrival_scale=1.3``: jobs against the record; ``growth_per_week=0.01``: per week ahead [1]
        - ``max_added_wait_minutes=5``: limit of the p95 queue wait above today's [min]
        - ``price_per_gpu_hour=2.40`` [currency per GPU-hour], ``currency="EUR"``, ``price_book="prices.yaml"``
        - ``ownership="owned"``, ``"reserved"`` or ``"rented"``; ``actuator="slurm"``: what repartitions and stops GPUs
        - ``month="2026-02"``, ``history_days=28``: record that counts [days]; ``gpu_model="A100-80GB"``
        - ``quotas="quotas.yaml"``, ``policies="static"``: rules to keep, and policies to compare

        ``gp.Scenario?`` lists all of them.

    Returns
    -------
    StudyView
        ``decision``, and a view for each of ``policies()``, ``waits()``, ``wait_curve()``, ``forecast()``,
        ``fleet()``, ``teams()``, ``costs()``, ``fair_share()``; ``but()``, ``whatif()``, ``export()``.

    Raises
    ------
    GpuPlannerError
        If the data or the scenario cannot be used; the message says what to do.

    Examples
    --------
    >>> study = decide("sample", gpus=56)
    >>> print(study.decision.sentence)
    56 GPUs miss the wait limit for jobs on 5+ GPUs. p95 queue wait over the limit of 30 min: ...
    >>> study.but(arrival_scale=0.5).decision.gpus
    56
    """
    if isinstance(data, WhatIf):
        study = decide(data.scenario, **changes)
        return replace(study, panel_note=data.note_settings(study.decision.gpus))
    scenario = make_scenario(data, changes)
    return StudyView(scenario, compare_policies(scenario))


def open_study(directory: str | Path) -> StudyView:
    """Open the study of a folder that a study was saved to, or of a report folder.

    Parameters
    ----------
    directory : str or Path
        The folder.

    Returns
    -------
    StudyView
        The study, as of :func:`decide`.

    Raises
    ------
    ScenarioError
        If the folder holds no study.

    Examples
    --------
    >>> open_study("nowhere")
    Traceback (most recent call last):
        ...
    gpuplanner.core.errors.ScenarioError: nowhere: ...
    """
    study = decision.open_study(directory)
    return StudyView(study.scenario, study.comparison, study)


def wait_curve(data: StudySource = "sample", *, gpus: Sequence[int] = (), **changes: Any) -> View:  # noqa: ANN401 - fields of a scenario
    """Show the p95 queue wait against the number of GPUs, by job size, with today's and the recommended layout.

    Parameters
    ----------
    data : str, Path, Cluster or Scenario
        Name or folder of a dataset, a cluster, or a scenario.
    gpus : sequence of int
        Fleet sizes, rounded to whole nodes; default: half to twice the GPUs of today. [GPU]
    **changes
        Fields of a :class:`Scenario`.

    Returns
    -------
    View
        ``df``: ``layout, gpus, job_size, p95_minutes, low, high, mean_minutes, allocation_rate, gpu_hours``.

    Raises
    ------
    ScenarioError
        If a fleet size is not positive. Data that do not support a simulation of waits give a card with the reason.

    Examples
    --------
    >>> points = wait_curve("sample", gpus=[56, 64]).df.filter(layout="today", job_size="5+ GPUs")
    >>> [(gpus, round(minutes)) for gpus, minutes in points.select("gpus", "p95_minutes").rows()]
    [(56, 2129), (64, 527)]
    """
    return decide(data, **changes).wait_curve(gpus=gpus)


def compare(*studies: Study | StudyView | Scenario | Cluster | str | Path, by: str = "study") -> View:
    """Show decisions side by side: GPUs, capacity freed, financial impact and queue wait, with paired intervals.

    Parameters
    ----------
    *studies : StudyView, Scenario, Cluster, str or Path
        Two or more: studies, folders of saved ones, or a scenario, a cluster, a name or a folder of a dataset, whose
        policies are compared first.
    by : str
        ``"study"``: a column for each. ``"job_size"``: the p95 queue wait of every job size.

    Returns
    -------
    View
        ``df``: one row for each, called by what differs, and numbers: ``meets_wait_limits`` (``yes``, or the job sizes
        that miss theirs), ``gpus``, ``gpu_hours_per_week``, ``capacity_cost_per_week`` in ``currency``,
        ``freed_gpu_hours_per_week`` with its 90 % interval, ``usd_per_week``; ``p95_wait_minutes`` of the size that
        waits longest, ``p95_wait_low``, ``p95_wait_high``: its 80 % interval; ``p95_difference_minutes``, ``_low``,
        ``_high``: its difference to the first on the same jobs with the same random draws, with the interval of that;
        ``completion_difference_minutes`` likewise; ``makespan_difference_minutes``. Null where the jobs are not the
        same. By job size: ``study``, the columns of ``study.waits()`` and the difference of the p95 queue wait.

    Raises
    ------
    ScenarioError
        If fewer than two are given, or the group is unknown.

    Examples
    --------
    >>> study = decide("sample")
    >>> compare(study, study.but(gpus=56)).df.select("study", "gpus", "meets_wait_limits").rows()
    [('64 GPUs', 64, 'yes'), ('56 GPUs', 56, 'no: 5+ GPUs')]
    """
    if len(studies) < 2:
        raise ScenarioError("compare", "two or more decisions", str(len(studies)), "Pass another one.")
    group = resolve_name(by, ["study", "job_size"], subject="group", error=ScenarioError)
    views = [_open_or_decide(study) for study in studies]
    note = next(filter(None, (getattr(view, "panel_note", "") for view in views)), "")
    frame, differences = tabulate_decisions([(view.scenario, view.comparison) for view in views])
    if group == "study":
        table = page.table(arrange_decisions(frame, value_text), caption="Decisions side by side")
        tables = f'<div class="compared">{table}</div>'
        words = page.note('Queue wait of every job size: gp.compare(…, by="job_size").')
        return View(HtmlSection(note + page.section("Side by side", tables, words)), frame)
    labelled = zip(frame["study"], views, strict=True)
    by_size = pl.concat(
        make_wait_table(view.comparison).select(pl.lit(label).alias("study"), pl.all()) for label, view in labelled
    ).join(
        differences.filter(measure=P95_WAIT).drop("measure"), left_on=["study", "size"],
        right_on=["study", "job_size"], how="left", suffix="_difference", maintain_order="left",
    )  # fmt: skip
    is_late = pl.col("recommended_p95_minutes") > pl.col("limit_minutes") + WAIT_TOLERANCE_MINUTES
    late = pl.when(is_late).then(pl.lit(", over limit")).otherwise(pl.lit(""))
    wait, low, high = (pl.col(name).round(1) for name in ("recommended_p95_minutes", "low", "high"))
    interval = pl.format(" ({} to {})", low, high).fill_null("")
    texts = by_size.with_columns(text=pl.format("{}{}{}", wait, interval, late))
    caption = "p95 queue wait by job size [min], with the 80 % interval of resampled weeks"
    table = page.table(texts.pivot("study", index="size", values="text"), caption=caption)
    return View(HtmlSection(note + page.section("Side by side", table)), by_size)


def _open_or_decide(study: Study | StudyView | Scenario | Cluster | str | Path) -> Study | StudyView:
    """Return a study, open the folder of a saved one, or decide for anything else."""
    if isinstance(study, StudyView | Study):
        return study
    is_saved = isinstance(study, str | Path) and (Path(study) / "study.json").is_file()
    return open_study(study) if is_saved else decide(study)  # type: ignore[arg-type]
