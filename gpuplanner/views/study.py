"""The walk for notebooks and scripts: a study, and a comparison, whose parts show themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import polars as pl

from gpuplanner import study as walk
from gpuplanner.errors import ScenarioError, message
from gpuplanner.files.ours import overwriting
from gpuplanner.report import appendix
from gpuplanner.report import page
from gpuplanner.report import tearsheet
from gpuplanner.report.figures import headline
from gpuplanner.report.first_screen import curve_figure, first_screen, fleet_words, teams_table
from gpuplanner.report.fleet import fleet_picture
from gpuplanner.report.formulas import value_text
from gpuplanner.report.pools import decided_fleet
from gpuplanner.report.section import Section, still
from gpuplanner.report.teams import placements, teams
from gpuplanner.report.ways import decided, waits_section, ways
from gpuplanner.report.words import safe
from gpuplanner.scenario import Scenario
from gpuplanner.study.study import Study
from gpuplanner.study.decision.frames import curve_table, policy_table
from gpuplanner.study.decision.record import Comparison, compared
from gpuplanner.study.decision.types import Decision
from gpuplanner.study.fleet_decision import FleetCompared
from gpuplanner.study.handover.decision_pack import hand_over
from gpuplanner.study.handover.workbooks import write_study_workbook
from gpuplanner.study.past.pools import pools_of
from gpuplanner.study.tenants.advice import quota_advice
from gpuplanner.study.tenants.fairness import fairness
from gpuplanner.study.tenants.node_distance import placement_table
from gpuplanner.study.tenants.tried import is_asked, rules_tried
from gpuplanner.study.waits.summary import cause_table
from gpuplanner.views.view import View
from gpuplanner.widgets.boards import ALL_BOARDS, BoardsPanel
from gpuplanner.widgets.rules import SharingPanel
from gpuplanner.widgets.whatif import WhatIf, whatif


@dataclass(frozen=True, kw_only=True)
class DecisionCard(Decision):
    """A decision that shows itself as the first screen of the page.

    Examples
    --------
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> found = Comparison(no_decision(Scenario(), "no job states when it ran"), 0.95, 10.0)
    >>> card = DecisionCard.of(found)
    >>> card.action, "not known" in card._repr_html_()
    ('none', True)
    """

    found: Comparison

    @classmethod
    def of(cls, found: Comparison) -> Self:
        """The decision of a comparison, as a card."""
        one = found.decision
        return cls(**{field.name: getattr(one, field.name) for field in fields(Decision)}, found=found)

    def _repr_html_(self) -> str:
        body = f"<h3>{safe(headline(self))}</h3>{first_screen(self.found)}"
        return still(page.section("The decision", body))._repr_html_()


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
        return View(ways(self.found), policy_table(self.found))

    def boards(self) -> BoardsPanel[Comparison | FleetCompared]:
        """A drop-down of the fleet's GPU models: the decision on one of them, or on all."""
        fleet = pools_of(self.scenario)

        def found(name: str) -> Comparison | FleetCompared:
            if name == ALL_BOARDS:
                return FleetCompared({board: compared(own) for board, own in fleet.pools.items()})
            return compared(fleet.pools[name])

        def shown(one: Comparison | FleetCompared) -> str:
            if isinstance(one, Comparison):
                return still(decided(one))._repr_html_()
            return still(decided_fleet(one))._repr_html_()

        return BoardsPanel(fleet.pools, found, shown)

    def on(self, scenario: Scenario) -> Decided:
        """The same for another board of the fleet, as :meth:`boards` has it chosen."""
        return self if scenario == self.scenario else decide(scenario)

    def sharing(self, *, ahead: bool = False) -> View:
        """What every team was due, got, lent, borrowed and is owed, why its jobs waited, and what rules change."""
        found = fairness(self.scenario)
        advice = quota_advice(self.scenario) if ahead else None
        tried = rules_tried(self.scenario) if is_asked(self.scenario) else None
        return View(teams(found, advice, tried), found.teams)

    def rules(self) -> SharingPanel:
        """Controls of quotas, fair share and preemption, played on the same weeks."""
        return SharingPanel(self.scenario)

    def placements(self, slowdowns: str) -> View:
        """GPU-hours that jobs on several nodes lose, by placement; slow-downs within a rack and beyond: ``1.1,1.3``."""
        table = placement_table(self.scenario.but(gang_slowdowns=slowdowns))
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
    >>> answer = evaluate(Scenario(month="2026-02", policies="static_whole"))  # doctest: +SKIP
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
        return View(ways(self.comparison), policy_table(self.comparison))

    def waits(self) -> View:
        """What kept jobs waiting, by job size and team."""
        found = self.comparison.waits
        return View(waits_section(self.comparison), cause_table(found.causes.team if found else ()))

    def wait_curve(self) -> View:
        """p95 queue wait against the number of GPUs, by job size."""
        return View(Section(curve_figure(self.comparison)), curve_table(self.comparison))

    def forecast(self) -> View:
        """How much was requested and how it grows; and the forecast behind a plan, where there is one."""
        shown = Section(tearsheet.capacity(self) + appendix.demand(self))
        return View(shown, curve_table(self.comparison))

    def fleet(self) -> View:
        """The fleet as it is decided, to scale."""
        rows = [(one.layout, one.gpus, list(one.nodes)) for one in self.decision.layouts]
        schema: dict[str, pl.DataType] = {
            "layout": pl.String(),
            "gpus": pl.Int64(),
            "nodes": pl.List(pl.String),
        }
        section = page.section(
            "The fleet", fleet_picture(self.decision), page.note(fleet_words(self.decision))
        )
        return View(section, pl.DataFrame(rows, schema=schema, orient="row"))

    def teams(self) -> View:
        """Who held what, and where the hours went."""
        shown = page.table(teams_table(self.decision), caption=f"By team, {tearsheet.period(self)}")
        return View(
            Section(page.section("By team", shown) + tearsheet.ledger(self)), self.tables["ledger_tenants"]
        )

    def money(self) -> View:
        """What the period cost, for whom, with energy and carbon."""
        return View(tearsheet.costs(self), self.tables["costs"])

    def but(self, **changes: Any) -> ShownStudy:  # noqa: ANN401 - fields of a scenario
        """The study of the same scenario with other values; what can be reused is."""
        return evaluate(replace(self.scenario, **changes))

    def export(self, folder: str | Path) -> Path:
        """Write what carries the decision out, with a workbook, and give the page that says where to begin."""
        return hand_over(self.scenario, self.comparison, folder)

    def to_excel(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tables as a workbook whose totals are those of the page."""
        with overwriting(overwrite):
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
    gpuplanner.errors.TraceFormatError: ...
    """
    return Decided(scenario, compared(scenario))


def evaluate(scenario: Scenario, *, cache: bool = True) -> ShownStudy:
    """Walk from data to decision, and get what shows itself.

    Parameters
    ----------
    scenario : Scenario
        What to plan, on what data.
    cache : bool
        See :func:`gpuplanner.study.evaluate`.

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
    gpuplanner.errors.TraceFormatError: ...
    """
    return ShownStudy.of(walk.evaluate(scenario, cache=cache))


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
    gpuplanner.errors.ScenarioError: nowhere: ...
    """
    return ShownStudy.of(walk.open_study(directory))


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
    gpuplanner.errors.ScenarioError: compare: expected two or more decisions; got 1. Give another.
    """
    if len(studies) < 2:
        text = message("compare", "two or more decisions", str(len(studies)), "Give another.")
        raise ScenarioError(text)
    found = [
        one.comparison
        if isinstance(one, Study)
        else one.found
        if isinstance(one, Decided)
        else compared(one)
        if isinstance(one, Scenario)
        else one
        for one in studies
    ]
    names = [f"{number}: {headline(one.decision).split('.')[0]}" for number, one in enumerate(found, start=1)]
    columns = {name: _figures(one) for name, one in zip(names, found, strict=True)}
    figures = list(next(iter(columns.values())))
    frame = pl.DataFrame({"figure": figures} | {name: list(one.values()) for name, one in columns.items()})
    return View(page.section("Side by side", page.table(frame, caption="Decisions side by side")), frame)


def _figures(found: Comparison) -> Mapping[str, str]:
    """The figures of a decision in words, for a column."""
    one, saving = found.decision, found.decision.saving
    low, high = (value_text(value) for value in (saving.low, saving.high))
    return {
        "what to do": one.action.replace("_", " "),
        "GPUs on at once, at most": f"{one.gpus:,} of {one.fleet_gpus:,}",
        "saved, GPU-hours a week": value_text(saving.value)
        + ("" if saving.low is None else f" ({low} to {high})"),
        "worth, USD a week": value_text(one.worth.usd_per_week),
        "p95 queue wait of the size that waits longest, min": value_text(
            None if one.latest is None else one.latest.recommended_p95_minutes
        ),
        "capacity exhausted": value_text(found.exhaustion.date),
    }
