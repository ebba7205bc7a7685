"""The what-if panel: move a control, and see what to do then, beside what was found before."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.policies import MEANINGS, SHORT
from gpuplanner.study.decision.record import compared
from gpuplanner.widgets.answer import PanelAnswer, answer_html, frontier_html
from gpuplanner.widgets.background import BackgroundPanel
from gpuplanner.widgets.controls import CONTROLS, LABELS, WIDTH, Starts, control_of

if TYPE_CHECKING:
    from gpuplanner.study.decision.arena import Trial

RECOMMENDED = "the recommended one"


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

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._found, self._html, working="Reading the jobs ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self.pinned: PanelAnswer | None = None
        self._starts = Starts.of(scenario)
        self.controls = {row.name: control_of(row, self._starts) for row in CONTROLS}
        self.policy = widgets.Dropdown(
            options=[(RECOMMENDED, None), *((f"{SHORT[name]}: {MEANINGS[name]}", name) for name in MEANINGS)],
            description="Way shown", tooltip="Whose figures stand in the table",
            style={"description_width": LABELS}, layout={"width": "100%", "max_width": WIDTH},
        )  # fmt: skip
        self.code = widgets.HTML()
        self.button = widgets.Button(description="Evaluate", tooltip="Answer the question as it stands")
        self.pin = widgets.Button(description="Pin this answer", tooltip="Keep it beside the answers to come")
        self.reset = widgets.Button(description="Back to the start", tooltip="Set every control back")
        self.button.on_click(lambda _: self.ask())
        self.pin.on_click(lambda _: self._pin())
        self.reset.on_click(lambda _: self._reset())
        for control in self.controls.values():
            control.observe(lambda _: self._changed(), names="value")
        self.policy.observe(lambda _: self._redraw(), names="value")
        buttons = widgets.HBox([self.button, self.pin, self.reset], layout={"flex_flow": "row wrap"})
        fleet = widgets.HTML(f"<b>{escape(self._starts.fleet)}</b>")
        controls = [fleet, *self.controls.values(), self.policy, buttons, self.code, self.status]
        self.panel = widgets.VBox([*controls, self.answer])
        self._say_code()

    @property
    def scenario(self) -> Scenario:
        """The scenario as the controls stand; a control at its start leaves its field alone."""
        starts = self._starts.values
        moved = {name: one.value for name, one in self.controls.items() if one.value != starts[name]}
        return replace(self.base, **moved)

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
            self.tell(f"Tuning {SHORT.get(policy, policy)}, way {len(names)}: {tried} settings played ...")

        if self.pinned is None:
            self.pinned = PanelAnswer(self.base, compared(self.base, told))
        before = self.pinned
        found = compared(asked, told)
        return PanelAnswer(asked, found, self.policy.value, frontier_html(found, before.found))

    def _html(self, answer: PanelAnswer) -> str:
        return answer_html(answer, self.pinned or answer)

    def _redraw(self) -> None:
        """Show the newest answer by the way that is chosen now; nothing is tuned for it."""
        if self.newest is not None:
            self.newest = replace(self.newest, policy=self.policy.value)
            self.answer.value = self._html(self.newest)

    def _arrived(self, number: int, newest: PanelAnswer | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, status)
        self._redraw()  # another way may have been chosen meanwhile

    def _changed(self) -> None:
        self._say_code()
        self.ask_soon()

    def _pin(self) -> None:
        if self.newest is not None:
            self.pinned = self.newest
            self.ask()

    def _reset(self) -> None:
        for name, control in self.controls.items():
            control.value = self._starts.values[name]
        self.policy.value = None
        self.ask()

    def _say_code(self) -> None:
        changed = self.base.diff(self.question)
        arguments = "".join(f", {name}={new!r}" for name, (_, new) in changed.items())
        self.code.value = f"<code>comparison(replace(scenario{escape(arguments)}))</code>"

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        if self.newest is None and self._pending is None:
            self.ask()
        return super()._repr_mimebundle_(**arguments)


def whatif(scenario: Scenario | None = None) -> WhatIf:
    """Make the what-if panel of a scenario.

    Parameters
    ----------
    scenario : Scenario, optional
        Default: the shipped sample.

    Returns
    -------
    WhatIf
        Shows itself in a notebook.

    Examples
    --------
    >>> panel = whatif(Scenario())
    >>> panel.controls["wait_minutes"].value = 30
    >>> panel.scenario.wait_minutes, round(panel.controls["price_usd_per_kwh"].value, 3)
    (30.0, 0.122)
    """
    return WhatIf(scenario or Scenario())
