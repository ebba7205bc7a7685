"""What-if panel: controls of a scenario, with the recommendation for their settings."""

from __future__ import annotations

import contextlib
import functools
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from gpuplanner import report as plots
from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.libraries_plugins_and_workers import import_optional
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import Setting, Slider, settings_of
from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT, day_text, figure_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    PolicyRow,
    compare_policies,
    format_wait_target,
    frontier_frame,
)
from gpuplanner.decision.decision_types import find_usd_per_kwh
from gpuplanner.decision.policy_comparison import MEANINGS, SHORT_NAMES
from gpuplanner.decision.study_pipeline import estimate_coarsely
from gpuplanner.notebook.cluster import StudySource, make_scenario
from gpuplanner.notebook.views_and_panels import (
    BackgroundPanel,
    button,
    control_style,
    dropdown,
    on_change,
    slider,
    table_html,
    write_and_link,
)
from gpuplanner.report.change_bundle import write_handover_folder
from gpuplanner.usage.study_history import history

if TYPE_CHECKING:
    from gpuplanner.decision.policy_simulation_and_data_correction import PolicyRun


ANSWER_STYLE_SHEET = """<style>
.gpuplanner-answer img { max-width: 100%; height: auto; }
.gpuplanner-answer .stale { opacity: .45; }
.gpuplanner-answer table { border-collapse: collapse; margin: .6em 0; }
.gpuplanner-answer :is(th, td) { padding: .2em .5em; text-align: right; vertical-align: top; }
.gpuplanner-answer td { overflow-wrap: anywhere; min-width: 6em; }
.gpuplanner-answer tbody th { text-align: left; font-weight: normal; }
.gpuplanner-answer tbody tr:nth-child(odd) { background: rgba(128, 128, 128, .08); }
</style>"""
"""Style element of the panel's answers."""


@dataclass(frozen=True)
class PanelAnswer:
    """Result that the what-if panel shows for a scenario.

    - ``scenario``: Settings of the controls.
    - ``comparison``: Policies and decision.
    - ``policy``: Policy whose figures are shown; None: the recommended one.
    - ``picture``: HTML of :func:`frontier_html`.
    """

    scenario: Scenario
    comparison: Comparison
    policy: str | None = None
    picture: str = ""

    @property
    def row(self) -> PolicyRow | None:
        """Row of the shown policy in the comparison; None if it was not compared."""
        return self.comparison.find_row(self.policy or self.comparison.winner)


def frontier_html(comparison: Comparison, pinned_comparison: Comparison) -> str:
    """Render the chart of policies by GPU-hours and added wait as HTML, with those of the pinned answer as outlines."""
    frame = frontier_frame(comparison, None if pinned_comparison == comparison else pinned_comparison)
    return _draw_frontier(tuple(frame.iter_rows()), tuple(frame.schema.items()), comparison.minutes, comparison.winner)


@functools.lru_cache(maxsize=16)
def _draw_frontier(
    points: tuple[tuple[object, ...], ...],
    columns: tuple[tuple[str, pl.DataType], ...],
    minutes: float,
    winner: str,
) -> str:
    """Draw the chart of policies from hashable points; cached, since prices and ownership do not change it.

    Parameters
    ----------
    points : tuple of tuple
        Rows of the frontier table.
    columns : tuple of tuple of str and polars.DataType
        Its schema.
    minutes : float
        Maximum added wait. [min]
    winner : str
        Recommended policy.
    """
    frame = pl.DataFrame(points, schema=dict(columns), orient="row")
    return plots.chart_to_html(plots.plot_frontier(frame, limit=minutes, best=winner, names=SHORT_NAMES))


def answer_html(answer: PanelAnswer, pinned_answer: PanelAnswer, *, stale: bool = False) -> str:
    """Render an answer as HTML: decision, chart of policies, and a table of numbers beside those of the pinned answer.

    Parameters
    ----------
    answer, pinned_answer : PanelAnswer
        Shown and pinned answer.
    stale : bool
        Draw the chart pale, since it is that of the answer before.
    """
    columns = {"answer": _answer_figures(answer)}
    if (pinned_figures := _answer_figures(pinned_answer)) != columns["answer"]:
        columns = {"pinned": pinned_figures, "what if": _answer_figures(answer)}
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    rows = ([name, *(figures.get(name, MISSING_VALUE_TEXT) for figures in columns.values())] for name in names)
    decision, css_class = answer.comparison.decision, "stale" * stale
    steps = "".join(f"<li>{escape(step.text)}</li>" for step in decision.next_steps)
    next_steps = f"<details><summary>Next steps</summary><ol>{steps}</ol></details>" if steps else ""
    confidence, impact = " ".join(decision.confidence), escape(decision.financial_impact.basis).replace("\n", "<br>")
    return (
        f"{ANSWER_STYLE_SHEET}<div class='gpuplanner-answer'><p><b>{escape(decision.sentence)}</b></p>"
        f"<p>{escape(format_wait_target(answer.comparison))}</p><div class='{css_class}'>{answer.picture}</div>"
        f"{table_html(['', *columns], rows)}{next_steps}"
        f"<p>{escape(confidence)}</p><p>{impact}</p></div>"
    )


def _answer_figures(answer: PanelAnswer) -> dict[str, str]:
    """Format the numbers of an answer as texts by label: of the decision, then of the shown policy."""
    comparison, row = answer.comparison, answer.row
    decision, exhaustion_date = comparison.decision, comparison.exhaustion.date
    wait, saving = MISSING_VALUE_TEXT, decision.saving
    if (longest := decision.longest_waiting) is not None:
        wait = _format_mean_with_interval(longest.recommended_p95_minutes, longest.low, longest.high)
    cells = {
        "action": decision.action.replace("_", " "),
        "peak GPUs": f"{decision.gpus:,} of {decision.fleet_gpus:,}",
        "capacity freed [GPU h a week]": _format_mean_with_interval(saving.value, saving.low, saving.high),
        "financial impact [USD a week]": figure_text(decision.financial_impact.usd_per_week, ",.0f"),
        "p95 queue wait, job size with the longest [min]": wait,
        "capacity exhausted": MISSING_VALUE_TEXT if exhaustion_date is None else day_text(exhaustion_date),
    }
    if row is None:
        return cells | {
            "policy": f"{SHORT_NAMES.get(answer.policy or comparison.winner, answer.policy)} (not compared)"
        }
    cells |= {
        "policy": SHORT_NAMES.get(row.policy, row.policy),
        "within the maximum added wait": "yes" if row.meets_target else row.reason or "no",
        "provisioned [GPU h a week]": figure_text(row.gpu_hours, ",.0f"),
        "added wait p95, worst job size [min]": figure_text(row.added_wait_p95_minutes, ",.1f"),
        "jobs delayed [%]": figure_text(None if row.delayed_share is None else 100 * row.delayed_share, ",.0f"),
        "longest wait [min]": figure_text(row.longest_added_wait_minutes, ",.0f"),
    }
    for service in decision.service:
        wait = f"{service.recommended_p95_minutes:,.1f} (limit {service.limit_minutes:,.1f})"
        cells[f"p95 wait on {service.size} [min]"] = wait
    return cells


def _format_mean_with_interval(mean: float | None, low: float | None, high: float | None) -> str:
    """Format a mean with its interval, if it has one; a dash if the mean is not known."""
    if mean is None:
        return MISSING_VALUE_TEXT
    varies = low is not None and high is not None and low != high
    return f"{mean:,.0f} ({low:,.0f} to {high:,.0f})" if varies else f"{mean:,.0f}"


WHAT_IF_CONTROL_STYLE = control_style("13em", "44em")
"""Arguments of ipywidgets for the widths of controls and labels."""
PICTURE_DELAY_S = 0.05
"""Time after the last change of a control until a chart of estimated values is drawn [s]."""
LOOK_AHEAD_DELAY_S = 2.0
"""Time after an answer until the other options of the drop-downs are simulated ahead of time [s]."""
MAX_LOOK_AHEAD_JOBS = 50_000
"""Largest number of jobs with which alternatives are simulated ahead of time."""
CONTROLLED_SETTINGS = tuple(row for row in settings_of(Scenario).values() if row.control is not None)
"""Settings (fields of the scenario) that have a control in the panel."""
RECOMMENDED_LABEL = "recommended policy"
"""Choice of the policy drop-down for the recommended policy."""
NO_CHOICE_VALUE = ""
"""Value of a drop-down for None, which JupyterLab would show as blank."""


def initial_values(scenario: Scenario) -> dict[str, Any]:
    """Return the initial values of the controls by field of the scenario, with catalogue values for unset fields."""
    stated = {setting.name: getattr(scenario, setting.name) for setting in CONTROLLED_SETTINGS}
    values = {name: NO_CHOICE_VALUE if value is None else value for name, value in stated.items()}
    return values | {"price_usd_per_kwh": find_usd_per_kwh(scenario)}


def describe_fleet(scenario: Scenario) -> str:
    """Return number and model of the GPUs as text; empty if the data cannot be read, which the first answer reports."""
    try:
        fleet = history(scenario).fleet
    except GpuPlannerError:
        return ""
    return f"{fleet.gpus:,} {fleet.name or 'GPUs'}"


def make_control(setting: Setting, value: Any) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the control of a field of the scenario, set to a value.

    ``continuous_update`` is off: a drag ends in one change, the arrow keys step through the range, and an initial value
    that is no multiple of the step is kept.
    """
    control = setting.control
    if not isinstance(control, Slider):
        default_options = [("as in the data", NO_CHOICE_VALUE)] if setting.none else []
        options = [] if setting.rule is None else [(name, name) for name in setting.rule.options()]
        return dropdown(
            default_options + options, value, setting.label, tooltip=setting.summary, **WHAT_IF_CONTROL_STYLE
        )
    is_whole = float not in setting.kinds
    look = WHAT_IF_CONTROL_STYLE | {"readout_format": "d" if is_whole else f".{control.decimals}f"}
    value_shown = value if is_whole else float(value)
    return slider(value_shown, control.low, control.high, control.step, setting.label, setting.summary, **look)


class WhatIf(BackgroundPanel[Scenario, PanelAnswer]):
    """Panel with controls of a scenario, its answer beside a pinned one, and the code that gives the same answer.

    Policies are simulated in a thread of their own, so that the kernel stays free; outdated questions are cancelled.
    Answers are cached on disk.

    Parameters
    ----------
    scenario : Scenario
        Initial settings of the controls; its answer is pinned first.

    Attributes
    ----------
    controls : dict
        ipywidgets sliders and drop-downs by field of the scenario.
    policy : ipywidgets.Dropdown
        Policy whose figures are shown.
    pinned : PanelAnswer or None
        Answer that is shown beside the newest one.
    """

    at_once = True

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._answer_scenario, self._html, working="Reading the jobs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self.pinned: PanelAnswer | None = None
        self._initial = initial_values(scenario)
        self.controls = {row.name: make_control(row, self._initial[row.name]) for row in CONTROLLED_SETTINGS}
        self._control_values = self._read_controls()
        self._undo_stack: list[dict[str, Any]] = []
        self._is_undoing = False
        policy_options = [(f"{SHORT_NAMES[name]}: {MEANINGS[name]}", name) for name in MEANINGS]
        policy_options.insert(0, (RECOMMENDED_LABEL, NO_CHOICE_VALUE))
        tooltip = "Policy whose figures the table shows"
        self.policy = dropdown(
            policy_options, NO_CHOICE_VALUE, "Policy shown", tooltip=tooltip, **WHAT_IF_CONTROL_STYLE
        )
        self.code = widgets.HTML()
        self.button = button("Evaluate", "Compute the answer for the controls", self.ask)
        self.pin = button("Pin this answer", "Keep this answer beside new ones", self._pin)
        self.reset = button("Reset", "Reset every control to its start", self._reset)
        self.undo = button("Undo", "Undo the last change of a control", self._undo)
        self.keep = button("Save", "Write the scenario as a YAML file", self._save_scenario)
        self.files = button("Write the files", "Write the change bundle and workbook of this answer", self.write)
        self.written = widgets.HTML()
        on_change(self.controls.values(), self._on_change)
        on_change([self.policy], self._redraw)
        buttons = [self.button, self.undo, self.pin, self.reset, self.keep, self.files]
        setting = widgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        fleet = widgets.HTML(f"<b>{escape(describe_fleet(scenario))}</b>")
        controls = [fleet, *self.controls.values(), self.policy, setting]
        self.panel = widgets.VBox([*controls, self.written, self.code, self.status, self.answer])
        self._show_code()

    @property
    def scenario(self) -> Scenario:
        """Scenario with the settings of the controls; a control at its initial value leaves its field unset."""
        moved_settings = (
            setting
            for setting in CONTROLLED_SETTINGS
            if self.controls[setting.name].value != self._initial[setting.name]
        )
        return replace(self.base, **{setting.name: self._control_value(setting) for setting in moved_settings})

    def _control_value(self, setting: Setting) -> Any:  # noqa: ANN401 - a value of the scenario
        """Return the value of a control for its field, rounded, since a browser adds up steps with rounding errors."""
        value = self.controls[setting.name].value
        if isinstance(setting.control, Slider):
            return round(value, setting.control.decimals) if isinstance(value, float) else value
        return None if value == NO_CHOICE_VALUE else value

    @property
    def question(self) -> Scenario:
        """Scenario with the settings of the controls."""
        return self.scenario

    def _answer_scenario(self, scenario: Scenario) -> PanelAnswer:
        """Compare policies in the worker, for the initial scenario first if nothing is pinned."""
        names: list[str] = []
        n_settings = 0

        def report_progress(policy: str, run: PolicyRun) -> None:
            nonlocal n_settings
            n_settings += 1
            names.extend([policy] if policy not in names else [])
            label = SHORT_NAMES.get(policy, policy)
            self.report_progress(f"Simulating policy {len(names)}, {label}: {n_settings} settings ...")

        if self.pinned is None:
            self.pinned = PanelAnswer(self.base, compare_policies(self.base, report_progress))
        pinned_answer = self.pinned
        comparison = compare_policies(scenario, report_progress)
        picture = frontier_html(comparison, pinned_answer.comparison)
        return PanelAnswer(scenario, comparison, self.policy.value or None, picture)

    def _html(self, answer: PanelAnswer) -> str:
        """Render an answer beside the pinned one as HTML."""
        return answer_html(answer, self.pinned or answer)

    def _redraw(self) -> None:
        """Show the newest answer with the figures of the chosen policy, without a simulation."""
        if self.newest is not None:
            self.newest = replace(self.newest, policy=self.policy.value or None)
            self.answer.value = self._html(self.newest)

    def _show_answer(self, number: int, newest: PanelAnswer | None, answer: str, status: str) -> None:
        """Show the newest answer, and simulate alternatives ahead of time after a delay."""
        super()._show_answer(number, newest, answer, status)
        self._redraw()  # another policy may have been chosen meanwhile
        if newest is not None and number == self._n_asked:
            look_ahead = functools.partial(self._worker.submit, self._look_ahead, number, newest.scenario)
            self._call_later("ahead", LOOK_AHEAD_DELAY_S, look_ahead)

    def _look_ahead(self, number: int, scenario: Scenario) -> None:
        """Simulate the other options of the drop-downs in the worker ahead of time, until there is a new question."""

        def stop_if_stale(policy: str, run: PolicyRun) -> None:
            if number != self._n_asked:
                raise CancelledError

        listed = [(row, row.rule) for row in CONTROLLED_SETTINGS if row.rule and not isinstance(row.control, Slider)]
        alternatives = [(setting, name) for setting, rule in listed
                        for name in rule.options() if name != getattr(scenario, setting.name)]  # fmt: skip
        if history(scenario).jobs.height > MAX_LOOK_AHEAD_JOBS:
            return
        with contextlib.suppress(CancelledError, GpuPlannerError):
            for position, (setting, name) in enumerate(alternatives, 1):
                if number != self._n_asked:
                    return
                status = f"Done. Preparing {position} of {len(alternatives)}: {setting.label}, {name} ..."
                self._call_in_kernel(self._show_status, number, status)
                compare_policies(scenario.but(**{setting.name: name}), stop_if_stale)
            self._call_in_kernel(self._show_status, number, "Done.")

    def _on_change(self) -> None:
        """Show code and a coarse answer after a change of a control, and compute the exact answer."""
        self._show_code()
        if not self._is_undoing:
            self._undo_stack.append(self._control_values)
        self._control_values = self._read_controls()
        self.ask_soon()
        self._show_coarse()

    def _read_controls(self) -> dict[str, Any]:
        """Return the values of the controls by field of the scenario."""
        return {name: control.value for name, control in self.controls.items()}

    def _show_coarse(self) -> None:
        """Show an answer estimated without simulation, with the old chart; new chart and exact answer follow."""
        shown_answer = self.newest or self.pinned
        if shown_answer is None:
            return
        pinned_answer = self.pinned or shown_answer
        comparison = estimate_coarsely(shown_answer.comparison, shown_answer.scenario, self.scenario)
        coarse_answer = PanelAnswer(self.scenario, comparison, self.policy.value or None, shown_answer.picture)
        self.answer.value = answer_html(coarse_answer, pinned_answer, stale=True)
        self._call_later("picture", PICTURE_DELAY_S, lambda: self._show_picture(coarse_answer, pinned_answer))

    def _show_picture(self, coarse_answer: PanelAnswer, pinned_answer: PanelAnswer) -> None:
        """Draw the chart of an estimated answer, unless the exact answer is shown or the controls have changed."""
        is_answered = self.newest is not None and self.newest.scenario == coarse_answer.scenario
        if coarse_answer.scenario == self.scenario and not is_answered:
            picture = frontier_html(coarse_answer.comparison, pinned_answer.comparison)
            answer = replace(coarse_answer, picture=picture, policy=self.policy.value or None)
            self.answer.value = answer_html(answer, pinned_answer)

    def _undo(self) -> None:
        """Set the controls back to their values before the last change."""
        if not self._undo_stack:
            return
        self._is_undoing = True
        try:
            for name, value in self._undo_stack.pop().items():
                self.controls[name].value = value
        finally:
            self._is_undoing = False
        self.ask_soon()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the scenario of the controls as YAML, from which ``whatif(Scenario.from_yaml(path))`` starts again."""
        text = self.scenario.to_yaml()
        with allow_overwriting_within(overwrite):
            return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))

    def _pin(self) -> None:
        """Pin the newest answer, so that later answers are shown beside it."""
        if self.newest is not None:
            self.pinned = self.newest
            self.ask()

    def write(self, out: str | Path | None = None) -> None:
        """Write change bundle and workbook of the shown answer, and show links to them."""
        answer = self.newest or self.pinned
        if answer is None:
            self.written.value = "There is no answer yet."
            return
        folder = out or Path("build") / f"export-{self.base.name}"
        self.written.value = write_and_link(lambda: write_handover_folder(answer.scenario, answer.comparison, folder))

    def _save_scenario(self) -> None:
        """Write the scenario of the controls to a YAML file in ``build``, and show a link to it."""
        path = Path("build") / f"what-if-{self.base.name.replace(' ', '-')}.yaml"
        self.written.value = write_and_link(lambda: self.save(path))

    def _reset(self) -> None:
        """Set all controls back to their initial values, and compute the answer."""
        for name, control in self.controls.items():
            control.value = self._initial[name]
        self.policy.value = NO_CHOICE_VALUE
        self.ask()

    def _show_code(self) -> None:
        """Show the line of code that gives the answer for the controls."""
        changed = self.base.diff(self.question)
        arguments = ", ".join(f"{name}={new!r}" for name, (_, new) in changed.items())
        call = f"scenario.but({escape(arguments)})" if arguments else "scenario"
        self.code.value = f"<code>gp.decide({call})</code>"


def whatif(data: StudySource = "sample", **changes: Any) -> WhatIf:  # noqa: ANN401 - fields of a scenario
    """Make the what-if panel of a cluster.

    Parameters
    ----------
    data : str, Path, Cluster, Scenario or Study
        Name or folder of a dataset, a cluster, a scenario, or a study: the initial settings of the controls.
    **changes
        Fields of a :class:`Scenario`.

    Returns
    -------
    WhatIf
        The panel.

    Examples
    --------
    >>> panel = whatif(Scenario())
    >>> panel.controls["max_added_wait_minutes"].value = 30
    >>> panel.scenario.max_added_wait_minutes, round(panel.controls["price_usd_per_kwh"].value, 3)
    (30.0, 0.122)
    """
    return WhatIf(make_scenario(data, changes))
