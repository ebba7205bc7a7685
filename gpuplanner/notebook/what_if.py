"""The what-if panel."""

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
from gpuplanner.core.execution import import_optional
from gpuplanner.core.output_places import allow_overwriting_within
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario, require_scenario
from gpuplanner.core.scenario_fields import Setting, Slider, settings_of
from gpuplanner.core.units import MISSING_VALUE_TEXT, day_text, figure_text
from gpuplanner.decision.comparison_record import (
    Comparison,
    PolicyRow,
    compare_policies,
    format_wait_target,
    frontier_frame,
)
from gpuplanner.decision.decision_types import find_usd_per_kwh
from gpuplanner.decision.policy_comparison import MEANINGS, SHORT_NAMES
from gpuplanner.decision.study import Study
from gpuplanner.decision.study_pipeline import estimate_coarsely
from gpuplanner.notebook.views import (
    BackgroundPanel,
    button,
    control_look,
    dropdown,
    slider,
    table_html,
    watch,
    written,
)
from gpuplanner.report.change_bundle import hand_over
from gpuplanner.usage.job_history import history

if TYPE_CHECKING:
    from gpuplanner.decision.policy_simulation import Trial


LOOK = """<style>
.gpuplanner-answer img { max-width: 100%; height: auto; }
.gpuplanner-answer .stale { opacity: .45; }
.gpuplanner-answer table { border-collapse: collapse; margin: .6em 0; }
.gpuplanner-answer :is(th, td) { padding: .2em .5em; text-align: right; vertical-align: top; }
.gpuplanner-answer td { overflow-wrap: anywhere; min-width: 6em; }
.gpuplanner-answer tbody th { text-align: left; font-weight: normal; }
.gpuplanner-answer tbody tr:nth-child(odd) { background: rgba(128, 128, 128, .08); }
</style>"""


@dataclass(frozen=True)
class PanelAnswer:
    """What was found for a scenario, and how it is looked at.

    - ``scenario``: As it was asked.
    - ``found``: All ways, and the decision.
    - ``policy``: Whose figures are shown; None: the recommended way's.
    - ``picture``: From :func:`frontier_html`.
    """

    scenario: Scenario
    found: Comparison
    policy: str | None = None
    picture: str = ""

    @property
    def row(self) -> PolicyRow | None:
        """The figures of the way that is shown; None if it was not compared."""
        return self.found.find_row(self.policy or self.found.winner)


def frontier_html(found: Comparison, pinned: Comparison) -> str:
    """The frontier, with the ways of the pinned answer as outlines."""
    frame = frontier_frame(found, None if pinned == found else pinned)
    return _picture(tuple(frame.iter_rows()), tuple(frame.schema.items()), found.minutes, found.winner)


@functools.lru_cache(maxsize=16)
def _picture(
    points: tuple[tuple[object, ...], ...],
    columns: tuple[tuple[str, pl.DataType], ...],
    minutes: float,
    winner: str,
) -> str:
    """Draw points of a frontier; prices and owners move none, so that nothing is drawn anew for them."""
    frame = pl.DataFrame(points, schema=dict(columns), orient="row")
    return plots.picture_html(plots.plot_frontier(frame, limit=minutes, best=winner, names=SHORT_NAMES))


def answer_html(answer: PanelAnswer, pinned: PanelAnswer, *, stale: bool = False) -> str:
    """The decision, the frontier, and the figures beside those of the answer that is pinned.

    A picture that is ``stale`` is pale: it is still that of the answer before.
    """
    columns = {"answer": _figures(answer)}
    if (old := _figures(pinned)) != columns["answer"]:
        columns = {"pinned": old, "what if": _figures(answer)}
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    rows = ([name, *(figures.get(name, MISSING_VALUE_TEXT) for figures in columns.values())] for name in names)
    one, kind = answer.found.decision, "stale" * stale
    steps = "".join(f"<li>{escape(step.text)}</li>" for step in one.next_steps)
    to_do = f"<details><summary>Next steps</summary><ol>{steps}</ol></details>" if steps else ""
    sure, worth = " ".join(one.confidence), escape(one.financial_impact.basis).replace("\n", "<br>")
    return (
        f"{LOOK}<div class='gpuplanner-answer'><p><b>{escape(one.sentence)}</b></p>"
        f"<p>{escape(format_wait_target(answer.found))}</p><div class='{kind}'>{answer.picture}</div>"
        f"{table_html(['', *columns], rows)}{to_do}"
        f"<p>{escape(sure)}</p><p>{worth}</p></div>"
    )


def _figures(answer: PanelAnswer) -> dict[str, str]:
    """Figures by what they are called; those of the decision first, then those of the way that is shown."""
    found, row = answer.found, answer.row
    one, ends = found.decision, found.exhaustion.date
    wait = MISSING_VALUE_TEXT
    if one.longest_waiting is not None:
        wait = _between(
            one.longest_waiting.recommended_p95_minutes,
            one.longest_waiting.low,
            one.longest_waiting.high,
        )
    cells = {
        "action": one.action.replace("_", " "),
        "peak GPUs": f"{one.gpus:,} of {one.fleet_gpus:,}",
        "capacity freed [GPU h a week]": _between(one.saving.value, one.saving.low, one.saving.high),
        "financial impact [USD a week]": figure_text(one.financial_impact.usd_per_week, ",.0f"),
        "p95 queue wait, job size with the longest [min]": wait,
        "capacity exhausted": MISSING_VALUE_TEXT if ends is None else day_text(ends),
    }
    if row is None:
        return cells | {"policy": f"{SHORT_NAMES.get(answer.policy or found.winner, answer.policy)} (not compared)"}
    cells |= {
        "policy": SHORT_NAMES.get(row.policy, row.policy),
        "within the maximum added wait": "yes" if row.meets_target else row.reason or "no",
        "provisioned [GPU h a week]": figure_text(row.gpu_hours, ",.0f"),
        "added wait p95, worst job size [min]": figure_text(row.added_wait_p95_minutes, ",.1f"),
        "jobs delayed [%]": figure_text(None if row.delayed_share is None else 100 * row.delayed_share, ",.0f"),
        "longest wait [min]": figure_text(row.longest_added_wait_minutes, ",.0f"),
    }
    for part in one.service:
        wait = f"{part.recommended_p95_minutes:,.1f} (limit {part.limit_minutes:,.1f})"
        cells[f"p95 wait on {part.size} [min]"] = wait
    return cells


def _between(mean: float | None, low: float | None, high: float | None) -> str:
    """A mean with its interval, if there is one."""
    if mean is None:
        return MISSING_VALUE_TEXT
    varies = low is not None and high is not None and low != high
    return f"{mean:,.0f} ({low:,.0f} to {high:,.0f})" if varies else f"{mean:,.0f}"


CONTROL_LOOK = control_look("13em", "44em")
"""How wide the controls are, and their labels."""
PICTURE_S, REST_S = 0.05, 2.0
"""The picture of a coarse answer is drawn once the hand rests for so long; what may be asked next is answered then."""
AHEAD_MOST_JOBS = 50_000
"""With more jobs nothing is played before somebody asks for it."""
CONTROLS = tuple(row for row in settings_of(Scenario).values() if row.control is not None)
"""Fields of the scenario that people move in a notebook."""
RECOMMENDED = "recommended policy"
UNSAID = ""
"""What a drop-down holds in place of None, for which it would show nothing at all."""


def start_values(scenario: Scenario) -> dict[str, Any]:
    """Where the controls begin, by field of the scenario; what it leaves to the catalogue is filled in."""
    stated = {row.name: getattr(scenario, row.name) for row in CONTROLS}
    values = {name: UNSAID if value is None else value for name, value in stated.items()}
    return values | {"price_usd_per_kwh": find_usd_per_kwh(scenario)}


def fleet_words(scenario: Scenario) -> str:
    """The fleet in words, empty where the data cannot be read: the first answer says why."""
    try:
        fleet = history(scenario).fleet
    except GpuPlannerError:
        return ""
    return f"{fleet.gpus:,} {fleet.name or 'GPUs'}"


def control_of(row: Setting, value: Any) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the control of a field, set to where the answer begins.

    ``continuous_update`` is off: a drag ends in one change, the arrow keys step through the range, and a start that is
    no multiple of the step stays what it is.
    """
    asked = row.control
    if not isinstance(asked, Slider):
        usual = [("as in the data", UNSAID)] if row.none else []
        options = [] if row.rule is None else [(name, name) for name in row.rule.options()]
        return dropdown(usual + options, value, row.label, tooltip=row.summary, **CONTROL_LOOK)
    whole = float not in row.kinds
    look = CONTROL_LOOK | {"readout_format": "d" if whole else f".{asked.decimals}f"}
    start = value if whole else float(value)
    return slider(start, asked.low, asked.high, asked.step, row.label, row.summary, **look)


class WhatIf(BackgroundPanel[Scenario, PanelAnswer]):
    """Controls, the answer beside the one that is pinned, and the same question in code.

    Ways to run the fleet are tuned in a thread of their own, so that the kernel stays free; a question that nobody
    waits for any more is dropped. What was asked once is kept on disk.

    Parameters
    ----------
    scenario : Scenario
        Where the controls start; its answer is pinned first.

    Attributes
    ----------
    controls : dict
        ipywidgets sliders and drop-downs by field of the scenario.
    policy : ipywidgets.Dropdown
        Which way's figures are shown.
    pinned : PanelAnswer or None
        What stands beside the newest answer.
    """

    at_once = True

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._found, self._html, working="Reading the jobs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self.pinned: PanelAnswer | None = None
        self._starts = start_values(scenario)
        self.controls = {row.name: control_of(row, self._starts[row.name]) for row in CONTROLS}
        self._stands, self._before, self._going_back = self._values(), list[dict[str, Any]](), False
        ways = [
            (RECOMMENDED, UNSAID),
            *((f"{SHORT_NAMES[name]}: {MEANINGS[name]}", name) for name in MEANINGS),
        ]
        tooltip = "Policy whose figures the table shows"
        self.policy = dropdown(ways, UNSAID, "Policy shown", tooltip=tooltip, **CONTROL_LOOK)
        self.code = widgets.HTML()
        self.button = button("Evaluate", "Compute the answer for the controls", self.ask)
        self.pin = button("Pin this answer", "Keep this answer beside new ones", self._pin)
        self.reset = button("Reset", "Reset every control to its start", self._reset)
        self.undo = button("Undo", "Undo the last change of a control", self._undo)
        self.keep = button("Save", "Write the scenario as a YAML file", self._keep)
        self.files = button("Write the files", "Write the change bundle and workbook of this answer", self.write)
        self.written = widgets.HTML()
        watch(self.controls.values(), self._changed)
        watch([self.policy], self._redraw)
        buttons = [self.button, self.undo, self.pin, self.reset, self.keep, self.files]
        row = widgets.HBox(buttons, layout={"flex_flow": "row wrap"})
        fleet = widgets.HTML(f"<b>{escape(fleet_words(scenario))}</b>")
        controls = [fleet, *self.controls.values(), self.policy, row]
        self.panel = widgets.VBox([*controls, self.written, self.code, self.status, self.answer])
        self._say_code()

    @property
    def scenario(self) -> Scenario:
        """The scenario as the controls stand; a control at its start leaves its field alone."""
        moved = (row for row in CONTROLS if self.controls[row.name].value != self._starts[row.name])
        return replace(self.base, **{row.name: self._stated(row) for row in moved})

    def _stated(self, row: Setting) -> Any:  # noqa: ANN401 - a value of the scenario
        """What a control says: steps that a browser adds up end in digits that nobody set."""
        value = self.controls[row.name].value
        if isinstance(row.control, Slider):
            return round(value, row.control.decimals) if isinstance(value, float) else value
        return None if value == UNSAID else value

    @property
    def question(self) -> Scenario:
        """The scenario as the controls stand."""
        return self.scenario

    def _found(self, asked: Scenario) -> PanelAnswer:
        """Compare in the worker, the scenario of the start first if that was never done."""
        names: list[str] = []
        tried = 0

        def told(policy: str, _: Trial) -> None:
            nonlocal tried
            tried += 1
            names.extend([policy] if policy not in names else [])
            self.tell(f"Simulating policy {len(names)}, {SHORT_NAMES.get(policy, policy)}: {tried} settings ...")

        if self.pinned is None:
            self.pinned = PanelAnswer(self.base, compare_policies(self.base, told))
        before = self.pinned
        found = compare_policies(asked, told)
        return PanelAnswer(asked, found, self.policy.value or None, frontier_html(found, before.found))

    def _html(self, answer: PanelAnswer) -> str:
        return answer_html(answer, self.pinned or answer)

    def _redraw(self) -> None:
        """Show the newest answer by the way that is chosen now; nothing is tuned for it."""
        if self.newest is not None:
            self.newest = replace(self.newest, policy=self.policy.value or None)
            self.answer.value = self._html(self.newest)

    def _arrived(self, number: int, newest: PanelAnswer | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, status)
        self._redraw()  # another way may have been chosen meanwhile
        if newest is not None and number == self._asked:
            asked = newest.scenario
            self._soon("ahead", REST_S, lambda: self._worker.submit(self._look_ahead, number, asked))

    def _look_ahead(self, number: int, stands: Scenario) -> None:
        """Answer in the worker what the lists offer beside what stands, until somebody asks for something."""

        def told(policy: str, _: Trial) -> None:
            if number != self._asked:
                raise CancelledError

        others = [(row, name) for row in CONTROLS if row.rule and not isinstance(row.control, Slider)
                  for name in row.rule.options() if name != getattr(stands, row.name)]  # fmt: skip
        if history(stands).jobs.height > AHEAD_MOST_JOBS:
            return
        with contextlib.suppress(CancelledError, GpuPlannerError):
            for place, (row, name) in enumerate(others, 1):
                if number != self._asked:
                    return
                said = f"Done. Preparing {place} of {len(others)}: {row.label}, {name} ..."
                self._in_kernel(self._told, number, said)
                compare_policies(stands.but(**{row.name: name}), told)
            self._in_kernel(self._told, number, "Done.")

    def _changed(self) -> None:
        self._say_code()
        if not self._going_back:
            self._before.append(self._stands)
        self._stands = self._values()
        self.ask_soon()
        self._show_coarse()

    def _values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    def _show_coarse(self) -> None:
        """Say at once what is known already, beside the picture as it was; picture and exact answer follow."""
        known = self.newest or self.pinned
        if known is None:
            return
        before = self.pinned or known
        found = estimate_coarsely(known.found, known.scenario, self.scenario)
        shown = PanelAnswer(self.scenario, found, self.policy.value or None, known.picture)
        self.answer.value = answer_html(shown, before, stale=True)
        self._soon("picture", PICTURE_S, lambda: self._show_picture(shown, before))

    def _show_picture(self, shown: PanelAnswer, before: PanelAnswer) -> None:
        """Draw the picture of a coarse answer, unless the exact one is there or another is asked for."""
        answered = self.newest is not None and self.newest.scenario == shown.scenario
        if shown.scenario == self.scenario and not answered:
            picture = frontier_html(shown.found, before.found)
            drawn = replace(shown, picture=picture, policy=self.policy.value or None)
            self.answer.value = answer_html(drawn, before)

    def _undo(self) -> None:
        """Set the controls back to where they stood before the last change."""
        if not self._before:
            return
        self._going_back = True
        try:
            for name, value in self._before.pop().items():
                self.controls[name].value = value
        finally:
            self._going_back = False
        self.ask_soon()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the scenario as the controls stand, as YAML; ``whatif(Scenario.from_yaml(path))`` begins there."""
        text = self.scenario.to_yaml()
        with allow_overwriting_within(overwrite):
            return write_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))

    def _pin(self) -> None:
        if self.newest is not None:
            self.pinned = self.newest
            self.ask()

    def write(self, out: str | Path | None = None) -> None:
        """Write pack and workbook of the answer that is shown, and say where they lie."""
        answer = self.newest or self.pinned
        if answer is None:
            self.written.value = "There is no answer yet."
            return
        place = out or Path("build") / f"export-{self.base.name}"
        self.written.value = written(lambda: hand_over(answer.scenario, answer.found, place))

    def _keep(self) -> None:
        place = Path("build") / f"what-if-{self.base.name.replace(' ', '-')}.yaml"
        self.written.value = written(lambda: self.save(place))

    def _reset(self) -> None:
        for name, control in self.controls.items():
            control.value = self._starts[name]
        self.policy.value = UNSAID
        self.ask()

    def _say_code(self) -> None:
        changed = self.base.diff(self.question)
        arguments = ", ".join(f"{name}={new!r}" for name, (_, new) in changed.items())
        asked = f"scenario.but({escape(arguments)})" if arguments else "scenario"
        self.code.value = f"<code>gp.decide({asked})</code>"


def whatif(scenario: Scenario | Study | None = None) -> WhatIf:
    """Make the what-if panel of a scenario.

    Parameters
    ----------
    scenario : Scenario or Study, optional
        Where the controls begin; default: the shipped sample.

    Returns
    -------
    WhatIf
        Shows itself in a notebook.

    Examples
    --------
    >>> panel = whatif(Scenario())
    >>> panel.controls["max_added_wait_minutes"].value = 30
    >>> panel.scenario.max_added_wait_minutes, round(panel.controls["price_usd_per_kwh"].value, 3)
    (30.0, 0.122)
    """
    begin = scenario.scenario if isinstance(scenario, Study) else scenario or Scenario()
    require_scenario(begin)
    return WhatIf(begin)
