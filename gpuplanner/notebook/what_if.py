"""What-if panel: controls of a fleet at the left, the answer for their settings at the right."""

from __future__ import annotations

import contextlib
import functools
import math
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.libraries_plugins_and_workers import import_optional, report_steps_to
from gpuplanner.core.output_manifests_and_overwrite_checks import allow_overwriting_within
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import Setting, Slider, settings_of
from gpuplanner.core.units_and_number_formats import HOURS_PER_WEEK, MISSING_VALUE_TEXT, percent_text, wait_text
from gpuplanner.cost.period_costs import find_price
from gpuplanner.decision.comparison_record import (
    Comparison,
    PolicyRow,
    compare_policies,
    load_comparison,
    reprice_comparison,
)
from gpuplanner.decision.decision_types import TODAY, has_interval
from gpuplanner.decision.fleet_size_decision import UNSTATED_FLEET, simulate_fleet_waits
from gpuplanner.decision.policy_comparison import SHORT_NAMES
from gpuplanner.notebook.cluster import StudySource, make_scenario
from gpuplanner.notebook.views_and_panels import BackgroundPanel, button, on_change, write_and_link
from gpuplanner.notebook.what_if_answer import (
    PanelAnswer,
    answer_html,
    answer_waits,
    estimate_answer,
    exact_answer,
    headline,
    looks_ahead,
    recorded_waits_html,
    simulate_with_able_actuator,
    style_html,
)
from gpuplanner.report.bundle_export import write_handover_folder
from gpuplanner.usage.planning_history import history

if TYPE_CHECKING:
    from gpuplanner.decision.policy_simulation import PolicyRun
    from gpuplanner.usage.study_fleet import PlannedFleet

CONTROLLED_SETTINGS = {row.name: row for row in settings_of(Scenario).values() if row.control is not None}
"""Settings (fields of the scenario) that have a control in the panel, by name."""
CONTROL_ORDER = ("gpus", "arrival_scale", "growth_per_week", "max_added_wait_minutes", "price_per_gpu_hour",
                 "actuator", "mig_layout")  # fmt: skip
"""Fields with a control, from top to bottom."""
PRICE_FIELD = "price_per_gpu_hour"
"""Field whose change only multiplies."""
FLEET_RANGE = (0.5, 1.5)
"""Range of the control of the fleet size, over today's fleet."""
SLIDER_UNITS = {"gpus": "GPUs", "arrival_scale": "× recorded", "max_added_wait_minutes": "min"}
"""Unit of each slider whose number can be typed, by field; the growth is typed in the scenario, since it is a share."""
LOOK_AHEAD_DELAY_S = 2.0
"""Time after an answer until the policies of other actuators are simulated [s]."""


class WhatIf(BackgroundPanel[Scenario, PanelAnswer]):
    """Panel with controls of a fleet, and waits, costs and policies for their settings.

    A change is answered at once by an estimate from the wait curve; the exact answer is simulated in a thread of its
    own, and outdated questions are cancelled. Answers are cached on disk.

    Parameters
    ----------
    scenario : Scenario
        Initial settings of the controls.
    comparison : Comparison, optional
        Its comparison, if it is known.

    Attributes
    ----------
    controls : dict
        ipywidgets controls by field of the scenario.
    pins : list of PanelAnswer
        Answers that are listed below the controls; the first is today's fleet.
    """

    at_once = True
    outdated = ""  # the estimate is shown at once

    def __init__(self, scenario: Scenario, comparison: Comparison | None = None) -> None:
        super().__init__(self._answer_scenario, answer_html, working="Simulating ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base, self.start = scenario, comparison
        self._note_class = f"of-{name_settings(scenario)}"  # of the notes in views of its settings
        self.fleet: PlannedFleet | None = None
        with contextlib.suppress(GpuPlannerError):  # the first answer reports data that cannot be read
            self.fleet = history(scenario).fleet
        self.pins: list[PanelAnswer] = []
        self._other_rows: dict[float, dict[str, PolicyRow]] = {}  # by demand
        self._undo_stack: list[dict[str, Any]] = []
        self._is_setting = False
        self._began_s = 0.0
        self._warned_answer: PanelAnswer | None = None
        self.code, self.pinned, self.written, self.state = (widgets.HTML() for _ in range(4))
        self.labels: dict[str, Any] = {name: widgets.HTML() for name in CONTROL_ORDER}
        self.notes: dict[str, Any] = {name: widgets.HTML() for name in CONTROL_ORDER}
        self.controls: dict[str, Any] = {name: self._make_control(CONTROLLED_SETTINGS[name]) for name in CONTROL_ORDER}
        self._initial = self._read_controls()
        self._asked_values = dict(self._initial)
        self.pin = button("Pin", "List this answer below the controls", self._pin)
        self.undo = button("Undo", "Undo the last change of a control", self._undo)
        self.recommended = button("Set to recommended", "Set the fleet size to the recommendation", self._recommend)
        self.cancel = button("Cancel", "Return to the last exact answer", self._cancel)
        self.keep = button("Save scenario", "Write the scenario as a YAML file", self._save_scenario)
        self.files = button(
            "Export bundle", "Write change bundle and workbook of this answer", self._export, button_style="primary"
        )
        on_change(self.controls.values(), self._on_change)
        groups = [
            widgets.VBox([self.labels[name], control, self.notes[name]], layout={"margin": "0 0 5px 0"})
            for name, control in self.controls.items()
        ]
        name = "" if self.fleet is None else f"{self.fleet.gpus:,} {self.fleet.name or 'GPUs'}"
        title = widgets.HTML(f"{style_html()}<b>{escape(name)}</b>")
        left = widgets.VBox([title, *groups, self.code, self.pinned], layout={"width": "240px", "flex": "0 0 240px"})
        left.add_class("gw-controls")
        buttons = widgets.HBox(
            [self.pin, self.undo, self.recommended, self.cancel, self.keep, self.files],
            layout={"flex_flow": "row wrap", "margin": "4px 0 0 0"},
        )
        layout = {"flex": "1 1 420px", "min_width": "0"}
        right = widgets.VBox([self.answer, self.state, self.status, buttons, self.written], layout=layout)
        right.add_class("gw-answer")
        self.panel = widgets.HBox([left, right], layout={"flex_flow": "row wrap"})
        self.panel.add_class("gpuplanner-what-if")
        self._enable(exact=False)
        if comparison is not None:
            self._begin(comparison)
            self._show_exact(exact_answer(scenario, comparison, comparison))
        elif self.fleet is not None:
            self.answer.value = recorded_waits_html(scenario)
            self._show_labels()

    def _make_control(self, setting: Setting) -> Any:  # noqa: ANN401 - an ipywidgets control
        """Make the control of a field of the scenario; the style sheet puts the number of a slider beside its label."""
        widgets = import_optional("ipywidgets", extra="notebook")
        value, layout = getattr(self.base, setting.name), {"width": "100%"}
        if setting.name == PRICE_FIELD:
            price = None if self.fleet is None else find_price(self.base, self.fleet)
            text = "" if price is None else f"{price.value:g}"
            return widgets.Text(value=text, continuous_update=False, layout=layout)
        if setting.name == "mig_layout":
            options = [("recommended", "recommended"), ("today", "today")]
            style = {"button_width": "112px"}
            return widgets.ToggleButtons(options=options, value=value, layout=layout, style=style)
        control = setting.control
        if not isinstance(control, Slider):
            return widgets.Dropdown(
                options=[*setting.rule.options()] if setting.rule else [], value=value, layout=layout
            )
        kind = widgets.IntSlider if setting.name == "gpus" else widgets.FloatSlider
        gpus = self.base.gpus or (8 if self.fleet is None else self.fleet.gpus)
        value = {"gpus": gpus, "growth_per_week": self.base.growth_per_week or 0.0}.get(setting.name, value)
        return kind(
            # The nodes are not known yet, and a browser moves a value that lies between two steps.
            value=value, min=min(control.low, value), max=max(control.high, value), tooltip=setting.summary,
            step=1 if kind is widgets.IntSlider else control.step, readout=setting.name in SLIDER_UNITS,
            readout_format="d" if kind is widgets.IntSlider else f".{control.decimals}f", layout={"width": "auto"},
        )  # fmt: skip

    def _begin(self, comparison: Comparison) -> None:
        """Set the controls to the first comparison: the fleet size starts at the recommendation."""
        self.start, decision = comparison, comparison.decision
        if not decision.fleet_gpus or self.fleet is None:
            return
        node = self.fleet.node_size
        low, high = (node * round(share * decision.fleet_gpus / node) for share in FLEET_RANGE)
        slider, self._is_setting = self.controls["gpus"], True
        slider.min, slider.max = 0, max(high, decision.gpus)  # neither end is ever above the other
        # A browser moves a value that lies between two steps, which would change the question.
        slider.min, slider.step = max(min(low, decision.gpus), node), math.gcd(node, decision.gpus, decision.fleet_gpus)
        self._assign({"gpus": decision.gpus})
        self._initial = self._asked_values = self._read_controls()
        waits = {row.size: row.today_p95_minutes for row in decision.service}
        self.pins = [PanelAnswer(self.base.but(gpus=decision.fleet_gpus), comparison, comparison, waits)]
        self._show_notes(comparison, self.fleet)

    def _show_notes(self, comparison: Comparison, fleet: PlannedFleet, recommended: str = "") -> None:
        """Show the notes of the controls, and the recommended number of GPUs, or "…" while it is not known."""
        decision = comparison.decision
        recommended = recommended or ("none" if decision.action == "none" else f"{decision.gpus:,}")
        self.recommended.description = f"Set to recommended ({recommended})"
        self.notes_of_controls = self._describe_controls(comparison, fleet, recommended)
        self._show_labels()

    def _describe_controls(
        self, comparison: Comparison, fleet: PlannedFleet, recommended: str
    ) -> Mapping[str, tuple[str, ...]]:
        """Return the notes below the controls: lower end, note, upper end."""
        decision, slider = comparison.decision, self.controls["gpus"]
        growth = comparison.growth_per_week
        measured = "not measured" if growth.value is None else f"measured {percent_text(growth.value, '+.1f')}"
        price = find_price(self.base if self.newest is None else self.newest.scenario, fleet)
        basis = "state a price" if price is None else f"{price.currency} a GPU-hour ({price.source.partition(':')[0]})"
        return {
            "gpus": (
                f"{slider.min:,}",
                f"{recommended} recommended · {decision.fleet_gpus:,} today",
                f"{slider.max:,}",
            ),
            "arrival_scale": ("× 0.5", "of the recorded · exact only", "× 2.0"),
            "growth_per_week": ("−2 %", f"{measured} · exact only", "+5 %"),
            "max_added_wait_minutes": (f"limit: wait today + {{value}} min, at most {comparison.target_minutes:g}",),
            PRICE_FIELD: (basis,),
            "actuator": ("from the data · exact only",),
        }

    @property
    def scenario(self) -> Scenario:
        """Scenario with the settings of the controls; a control at its initial value leaves its field unset."""
        values = self._read_controls()
        changed = {name: value for name, value in values.items() if value != self._initial[name]}
        if PRICE_FIELD in changed:
            changed[PRICE_FIELD] = float(changed[PRICE_FIELD])
        # The other controls hold for the fleet size that is shown.
        if {"arrival_scale", "growth_per_week", "max_added_wait_minutes", "mig_layout"} & changed.keys():
            changed["gpus"] = values["gpus"]
        return self.base.but(**changed)

    question = scenario

    def _read_controls(self) -> dict[str, Any]:
        """Return the values of the controls by field, rounded, since a browser adds up steps with rounding errors."""
        values = {name: control.value for name, control in self.controls.items()}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}

    def _answer_scenario(self, scenario: Scenario) -> PanelAnswer:
        """Compare policies in the worker, for the initial scenario first."""
        names: list[str] = []

        def report_progress(policy: str, run: PolicyRun) -> None:
            names.extend([policy] if policy not in names else [])
            self.report_progress(f"Simulating policy {len(names)}, {SHORT_NAMES.get(policy, policy)} ...")

        self._began_s = time.monotonic()
        with report_steps_to(lambda text: self.report_progress(f"Simulating {text} ...")):
            start = self.start or compare_policies(self.base, report_progress)
            if self.start is None:
                self._call_in_kernel(self._begin, start)
                return exact_answer(self.base, start, start)
            is_new_demand = scenario.arrival_scale != start.decision.arrival_scale
            is_known = not (is_new_demand and scenario.gpus) or load_comparison.is_known(scenario.without_prices())
            if not is_known and (waits := simulate_fleet_waits(scenario)):
                self._call_in_kernel(self._show_waits, self._running, answer_waits(scenario, waits, start))
            comparison = compare_policies(scenario, report_progress)
            if is_new_demand:
                start = compare_policies(scenario.but(**UNSTATED_FLEET), report_progress)
        return replace(exact_answer(scenario, comparison, start), other_rows=self._rows_at(scenario))

    def _show_waits(self, number: int, answer: PanelAnswer) -> None:
        """Show the simulated waits of a fleet at another demand, while the rest of its answer is simulated."""
        if number == self._n_asked:
            self.answer.value = answer_html(answer)
            seconds = time.monotonic() - self._began_s
            self._show_state(f"<b>● Exact waits</b> in {seconds:.1f} s; recommendation, curve and policies follow")

    def _rows_at(self, scenario: Scenario) -> dict[str, PolicyRow]:
        """Return the rows of policies of other actuators that are known at the demand of a scenario, by policy."""
        return self._other_rows.setdefault(scenario.arrival_scale, {})

    def _show_answer(self, number: int, newest: PanelAnswer | None, answer: str, status: str) -> None:
        """Show the newest exact answer, and simulate the policies of other actuators after a delay."""
        if number != self._n_asked:
            return
        if newest is None or newest is self.newest:  # an error: the last exact answer stays
            self.status.value = f"<span class='gw-fault'>{status}</span>"
            self.cancel.disabled = self.newest is None
            return
        self._show_exact(newest, f"simulated in {time.monotonic() - self._began_s:.1f} s")
        self._look_ahead_later()

    def _show_exact(self, answer: PanelAnswer, note: str = "") -> None:
        """Show an exact answer."""
        self.newest, self.answer.value, self.status.value = answer, answer_html(answer), ""
        if self.fleet is not None and answer.start.wait_curve:
            self._show_notes(answer.start, self.fleet)
        if answer.scenario.gpus is None:  # the recommendation, which depends on the actuator
            self._assign({"gpus": answer.gpus})
            self._initial["gpus"] = answer.gpus
            self._show_labels()
        self._show_state("<b>● Exact</b>" + (f" · {note}" if note else ""))
        self._enable(exact=bool(answer.start.wait_curve))
        self._show_pins(answer)

    def _show_state(self, text: str) -> None:
        """Show whether the answer is exact, with the data."""
        self.state.value = f"<div class='gw-status'><span>{text}</span><span>{escape(self.base.name)}</span></div>"

    def _enable(self, *, exact: bool) -> None:
        """Enable the buttons that need an exact answer, or those that need an estimate."""
        self.files.disabled = not exact
        self.pin.disabled = self.start is None
        self.undo.disabled = not self._undo_stack
        self.cancel.disabled = exact or self.newest is None
        # The recommendation for a demand is known once that is simulated.
        gpus = None if self.newest is None or not exact else self.newest.start.decision.gpus
        self.recommended.disabled = gpus is None or self.controls["gpus"].value == gpus
        for control in self.controls.values():
            control.disabled = self.start is None or not self.start.wait_curve

    def _look_ahead_later(self) -> None:
        """Simulate the policies of other actuators once the kernel has been idle for some time."""
        number = self._n_asked
        self._call_later("ahead", LOOK_AHEAD_DELAY_S, lambda: self._worker.submit(self._look_ahead, number))

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        if self.newest is not None:
            self._look_ahead_later()
        return super()._repr_mimebundle_(**arguments)

    def _look_ahead(self, number: int) -> None:
        """Simulate the policies that the actuator cannot apply in the worker, until there is a new question."""

        def stop_if_stale(policy: str, run: PolicyRun) -> None:
            if number != self._n_asked:
                raise CancelledError

        if self.newest is None or self.fleet is None or not looks_ahead(self.base):
            return
        base = self.base.but(arrival_scale=self.newest.scenario.arrival_scale)
        known_rows = self._rows_at(base)
        for row in self.newest.start.rows:
            if row.performable or row.policy in known_rows:
                continue
            name = SHORT_NAMES.get(row.policy, row.policy)
            self._call_in_kernel(self._show_status, number, f"Simulating policy {name} with another actuator ...")
            with contextlib.suppress(CancelledError):
                known_rows[row.policy] = simulate_with_able_actuator(base, row, stop_if_stale)
                self._call_in_kernel(self._add_rows, number)
            self._call_in_kernel(self._show_status, number, "")

    def _add_rows(self, number: int) -> None:
        """Show the policies of other actuators in the exact answer."""
        if self.newest is not None:
            self.newest = replace(self.newest, other_rows=dict(self._rows_at(self.newest.scenario)))
            if number == self._n_asked and not self.files.disabled:
                self.answer.value = answer_html(self.newest)

    def _on_change(self) -> None:
        """Show an estimate after a change of a control, and compute the exact answer."""
        if self._is_setting or self.start is None:
            return
        self._show_labels()
        self.written.value = ""  # of the answer before
        if (scenario := self._valid_scenario()) is None or self.newest is None:
            return
        self._n_asked += 1  # what runs is outdated
        shown = self.newest.scenario
        if scenario.but(**{PRICE_FIELD: getattr(shown, PRICE_FIELD)}) == shown:
            comparison = reprice_comparison(scenario, self.newest.comparison)
            self._show_exact(replace(self.newest, scenario=scenario, comparison=comparison))
            return
        if self._read_controls() != self._asked_values:
            self._undo_stack.append(dict(self._asked_values))
            self._asked_values = self._read_controls()
        estimate = replace(estimate_answer(scenario, self.newest.start), other_rows=self._rows_at(scenario))
        self.answer.value = answer_html(estimate)
        kind = "<b>≈ Estimate</b> read from the wait curve" if estimate.service else "<b>…</b> no estimate"
        self._show_state(f"{kind}; the exact answer follows")
        if scenario.arrival_scale != shown.arrival_scale and self.fleet is not None:
            self._show_notes(self.newest.start, self.fleet, "…")
        self._enable(exact=False)
        self._show_pins()
        self.ask_soon()

    def _valid_scenario(self) -> Scenario | None:
        """Return the scenario of the controls; None if a value is not valid, which is then marked at its control."""
        self.controls[PRICE_FIELD].remove_class("gw-faulty")
        try:
            price_text = self.controls[PRICE_FIELD].value
            # An unchanged field holds the price of the data, or nothing where none is known.
            if price_text != self._initial[PRICE_FIELD] and not 0 < float(price_text) < math.inf:
                raise ValueError
            return self.scenario
        except (ValueError, GpuPlannerError):
            self.controls[PRICE_FIELD].add_class("gw-faulty")
            text = f"expected a price above 0; got {self.controls[PRICE_FIELD].value!r}. Type for example 2.50."
            self.notes[PRICE_FIELD].value = f"<span class='gw-fault'>{escape(text)}</span>"
            return None

    def _show_labels(self) -> None:
        """Show label, value and note of each control, and the line of code that gives the same answer."""
        notes = getattr(self, "notes_of_controls", {})
        for name, control in self.controls.items():
            unit = f" <small>[{SLIDER_UNITS[name]}]</small>" if name in SLIDER_UNITS else ""
            value = percent_text(control.value, ".1f") if name == "growth_per_week" else ""
            words = getattr(CONTROLLED_SETTINGS[name].control, "label", name)
            self.labels[name].value = f"<div class='gw-label'><span>{words}{unit}</span><b>{value}</b></div>"
            typed = f"{control.value:g}" if name in SLIDER_UNITS else ""
            parts = "".join(f"<span>{escape(part.replace('{value}', typed))}</span>" for part in notes.get(name, ()))
            self.notes[name].value = f"<div class='gw-note'>{parts}</div>"
        with contextlib.suppress(ValueError, GpuPlannerError):
            changed = {name: new for name, (_, new) in self._data_scenario.diff(self.scenario).items()}
            arguments = "".join(f", {name}={value!r}" for name, value in changed.items())
            outdated_notes = f".{self._note_class}:not(.{name_settings(self.scenario)})"
            self.code.value = (
                f"<style>{outdated_notes} {{ display: block !important }}</style>"
                "<div class='gw-note'>The same in Python</div>"
                f"<code>gp.decide({escape(f'{self.base.data!r}{arguments}')})</code>"
            )

    def note_settings(self, gpus: int) -> str:
        """Render a note above a view of the settings of the panel; hidden until the panel has other settings.

        Whether it shows is a rule of style in the panel, so that an exported page needs no kernel.
        """
        scenario = self.scenario
        made = f"Made at {gpus:,} GPUs, demand × {scenario.arrival_scale:.2f}, {scenario.mig_layout} layout"
        return (
            f"<p class='{self._note_class} {name_settings(scenario)}' style='display: none; margin: 0 0 6px; "
            f"padding: 4px 8px; border-left: 4px solid #b24a00'><b>{made}.</b> The panel has other settings now: "
            "run the cell with <code>gp.decide(panel)</code> again, then this one.</p>"
        )

    @functools.cached_property
    def _data_scenario(self) -> Scenario:
        """Scenario of the data alone, kept since it reads them, and each move of a control needs it."""
        return make_scenario(self.base.data, {})

    def _show_pins(self, exact_answer: PanelAnswer | None = None) -> None:
        """Show the pins, and the exact answer if there is one: GPUs, p95 wait, job sizes over limit, and cost."""
        if self.start is None or not self.pins:
            return
        size = self.start.decision.longest_waiting
        price = None if self.newest is None or self.fleet is None else find_price(self.newest.scenario, self.fleet)
        rows, answers = [], self.pins if exact_answer is None else [*self.pins, exact_answer]
        for number, answer in enumerate(answers):
            waits = next((row for row in answer.comparison.decision.service if size and row.size == size.size), None)
            p95 = MISSING_VALUE_TEXT
            if waits is not None and (wait := answer.waits.get(waits.size)) is not None:
                ends = (waits.today_low, waits.today_high) if number == 0 else (waits.low, waits.high)
                interval = "–".join(map(wait_text, ends)) if has_interval(wait, *ends) else "no interval"
                p95 = f"{wait_text(wait)}<br>{interval}"
            cost = MISSING_VALUE_TEXT if price is None else f"{answer.gpus * HOURS_PER_WEEK * price.value:,.0f}"
            is_today = number == 0 or answer.comparison.winner == TODAY or answer.scenario.mig_layout == TODAY
            layout = "today" if is_today else "recommended"
            name = chr(ord("A") + number) if number < len(self.pins) else "<b>Now</b>"
            fleet = f"{name}: {answer.gpus:,} GPUs<br>{layout}<br>× {answer.scenario.arrival_scale:.2f}"
            missed = f"<span title='{escape(answer.missed_text)}'>{len(answer.sizes_over_limit)}</span>"
            rows.append(f"<tr><th>{fleet}</th>{''.join(f'<td>{cell}</td>' for cell in (p95, missed, cost))}</tr>")
        p95 = f"p95, {escape(size.size) if size else ''} (80 %)"
        titles = ("fleet, layout, demand", p95, "sizes over limit", f"{price.currency if price else 'cost'} a week")
        head = f"<thead><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr></thead>"
        self.pinned.value = f"<table class='gw-pins'>{head}<tbody>{''.join(rows)}</tbody></table>"

    def _pin(self) -> None:
        """List the newest exact answer below the controls."""
        if self.newest is not None:
            self.pins.append(self.newest)
            self._show_pins(self.newest)

    def _assign(self, values: Mapping[str, Any]) -> None:
        """Set controls to values without asking anything."""
        self._is_setting = True
        for name, value in values.items():
            self.controls[name].value = value
        self._is_setting = False

    def _undo(self) -> None:
        """Set the controls back to their values before the last change."""
        if self._undo_stack:
            values = self._undo_stack.pop()
            self._asked_values = dict(values)
            self._assign(values)
            self._on_change()

    def _recommend(self) -> None:
        """Set the fleet size to the recommendation."""
        if self.newest is not None:
            slider, gpus = self.controls["gpus"], self.newest.start.decision.gpus
            slider.max, slider.value = max(slider.max, gpus), gpus

    def _cancel(self) -> None:
        """Return to the last exact answer and its settings; what is being simulated is outdated."""
        if self.newest is None:
            return
        self._n_asked += 1
        if "ask" in self._timers:
            self._timers["ask"].cancel()
        shown, initial = self.newest.scenario, dict(self._initial)
        fields = {name: new for name, (_, new) in self.base.diff(shown).items() if name in initial}
        values = initial | {"gpus": self.newest.gpus} | fields
        values[PRICE_FIELD] = f"{fields[PRICE_FIELD]:g}" if PRICE_FIELD in fields else initial[PRICE_FIELD]
        self._assign(values)
        self._asked_values = self._read_controls()
        self._show_labels()
        self._show_exact(self.newest)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the scenario of the controls as YAML, from which ``whatif(Scenario.from_yaml(path))`` starts again."""
        text = self.scenario.to_yaml()
        with allow_overwriting_within(overwrite):
            return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))

    def _export(self) -> None:
        """Write the files; those of a fleet that misses a wait limit only when the button is pressed again."""
        answer = self.newest
        if answer is None or not answer.sizes_over_limit or answer is self._warned_answer:
            self.write()
            return
        self._warned_answer = answer
        text = f"{headline(answer)[0]} Press again to write the bundle anyway."
        self.written.value = f"<span class='gw-fault'>{escape(text)}</span>"

    def write(self, out: str | Path | None = None) -> None:
        """Write change bundle and workbook of the shown answer, and show links to them."""
        answer = self.newest
        if answer is None or self.files.disabled:
            self.written.value = "There is no exact answer yet."
            return
        folder = out or Path("build") / f"export-{self.base.name.replace(' ', '-')}-{answer.gpus}-gpus"
        self.written.value = write_and_link(
            lambda: write_handover_folder(answer.scenario, answer.comparison, folder),
            files_to_apply=answer.scenario.actuator,
        )

    def _save_scenario(self) -> None:
        """Write the scenario of the controls to a YAML file in ``build``, and show a link to it."""
        path = Path("build") / f"what-if-{self.base.name.replace(' ', '-')}.yaml"
        self.written.value = write_and_link(lambda: self.save(path))


def name_settings(scenario: Scenario) -> str:
    """Name the settings of a scenario in HTML: equal for equal ones."""
    return f"set-{zlib.crc32(repr(scenario).encode()):08x}"


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
    >>> panel.controls["max_added_wait_minutes"].value, panel.scenario == Scenario()
    (10.0, True)
    """
    comparison = getattr(data, "comparison", None) if not changes else None
    return WhatIf(make_scenario(data, changes), comparison)
