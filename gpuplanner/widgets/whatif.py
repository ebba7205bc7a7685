"""The what-if panel: move a control, and see what holds the target for least, beside what was found before."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import MEANINGS
from gpuplanner.study.equal_service.promise import promise, promise_of
from gpuplanner.widgets.answer import Answer, answer_html, frontier_html
from gpuplanner.widgets.background import BackgroundPanel
from gpuplanner.widgets.controls import CONTROLS, LABELS, PRICE, WIDTH, Starts, slider

if TYPE_CHECKING:
    from gpuplanner.study.equal_service.tuning import Trial

FEW = "static_whole,whole_on_off,static_mig,autoscaled_pools"
"""Policies that are tuned within seconds; others are tuned when they are chosen."""
CHEAPEST = "the cheapest that holds the target"


class WhatIf(BackgroundPanel[Scenario, Answer]):
    """Controls, the answer beside the one that is pinned, and the same question in code.

    Policies are tuned in a thread of their own, so that the kernel stays free; a question that nobody waits for any
    more is dropped. What was tuned once is kept on disk. A price only multiplies: the answer is drawn anew at once.

    Parameters
    ----------
    scenario : Scenario
        Where the controls start; its answer is pinned first.

    Attributes
    ----------
    sliders : dict
        ipywidgets controls by field of the scenario.
    policy : ipywidgets.Dropdown
        Which policy's figures are shown.
    pinned : Answer or None
        What stands beside the newest answer.
    """

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(self._promised, self._html, working="Reading the weeks ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self.pinned: Answer | None = None
        self._starts = Starts.of(scenario)
        self.sliders = {one.field: slider(one, self._starts, scenario.currency) for one in CONTROLS}
        self.policy = widgets.Dropdown(
            options=[(CHEAPEST, None), *((f"{name}: {MEANINGS[name]}", name) for name in self._starts.policies)],
            description="Policy shown", tooltip="Whose figures stand in the table; one not tuned yet is tuned then",
            style={"description_width": LABELS}, layout={"width": "100%", "max_width": WIDTH},
        )  # fmt: skip
        self.code = widgets.HTML()
        self.button = widgets.Button(description="Evaluate", tooltip="Answer the question as it stands")
        self.pin = widgets.Button(description="Pin this answer", tooltip="Keep it beside the answers to come")
        self.reset = widgets.Button(description="Back to the start", tooltip="Set every control back")
        self.button.on_click(lambda _: self.ask())
        self.pin.on_click(lambda _: self._pin())
        self.reset.on_click(lambda _: self._reset())
        for name, control in self.sliders.items():
            control.observe(lambda _, name=name: self._changed(name), names="value")
        self.policy.observe(lambda _: self._chosen(), names="value")
        buttons = widgets.HBox([self.button, self.pin, self.reset], layout={"flex_flow": "row wrap"})
        controls = [*self.sliders.values(), self.policy, buttons, self.code, self.status]
        self.panel = widgets.VBox([*controls, self.answer])
        self._say_code()

    @property
    def scenario(self) -> Scenario:
        """The scenario as the controls stand; a control at its start leaves its field alone."""
        starts = self._starts.values
        moved = {name: one.value for name, one in self.sliders.items() if one.value != starts[name]}
        if "nodes" in moved:
            moved["gpus_per_node"] = self._starts.node_size
        return replace(self.base, **moved)

    @property
    def question(self) -> Scenario:
        """The scenario as the controls stand, with the policy that is shown among those that are tuned."""
        asked, name = self.scenario, self.policy.value
        listed = [one.strip() for one in (asked.policies or "").split(",")]
        if name is None or asked.policies is None or name in listed:
            return asked
        return replace(asked, policies=f"{asked.policies},{name}")

    def _promised(self, asked: Scenario) -> Answer:
        """Tune in the worker, the scenario of the start first if that was never done."""
        names: list[str] = []
        tried = 0

        def told(policy: str, _: Trial) -> None:
            nonlocal tried
            tried += 1
            names.extend([policy] if policy not in names else [])
            self.tell(f"Tuning {policy}, policy {len(names)}: {tried} settings played ...")

        if self.pinned is None:
            self.pinned = Answer(self.base, promise_of(self.base, told), self._starts.values[PRICE])
        before = self.pinned
        same = asked.projected(promise.fields) == before.scenario.projected(promise.fields)
        found = before.found if same else promise_of(asked, told)
        return self._looked_at(Answer(asked, found, 0.0, picture=frontier_html(found, before.found)))

    def _looked_at(self, answer: Answer) -> Answer:
        """An answer by the price and the policy that are chosen now."""
        return replace(answer, price=self.sliders[PRICE].value, policy=self.policy.value)

    def _html(self, answer: Answer) -> str:
        return answer_html(answer, self.pinned or answer)

    def _redraw(self) -> None:
        """Show the newest answer by the price and the policy that are chosen now; nothing is tuned for it."""
        if self.newest is not None:
            self.newest = self._looked_at(self.newest)
            self.answer.value = self._html(self.newest)

    def _arrived(self, number: int, newest: Answer | None, answer: str, status: str) -> None:
        super()._arrived(number, newest, answer, status)
        self._redraw()  # the price may have moved meanwhile

    def _changed(self, name: str) -> None:
        self._say_code()
        if name == PRICE:
            self._redraw()
        else:
            self.ask_soon()

    def _chosen(self) -> None:
        """Show a policy that was tuned at once; tune another one first."""
        self._redraw()
        self._say_code()
        if self.newest is None or self.newest.row is None:
            self.ask_soon()

    def _pin(self) -> None:
        if self.newest is not None:
            self.pinned = self.newest
            self.ask()

    def _reset(self) -> None:
        for name, control in self.sliders.items():
            control.value = self._starts.values[name]
        self.policy.value = None
        self.ask()

    def _say_code(self) -> None:
        changed = self.base.diff(self.question)
        arguments = "".join(f", {name}={new!r}" for name, (_, new) in changed.items())
        self.code.value = f"<code>promise(replace(scenario{escape(arguments)}))</code>"

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        if self.newest is None and self._pending is None:
            self.ask()
        return super()._repr_mimebundle_(**arguments)


def whatif(scenario: Scenario | None = None) -> WhatIf:
    """Make the what-if panel of a scenario.

    Parameters
    ----------
    scenario : Scenario, optional
        Default: the shipped sample, with few weeks and policies so that answers come quickly.

    Returns
    -------
    WhatIf
        Shows itself in a notebook.

    Examples
    --------
    >>> panel = whatif(Scenario(replications=2))
    >>> panel.sliders["arrival_scale"].value = 1.5
    >>> panel.scenario.arrival_scale, round(panel.sliders["price_usd_per_gpu_hour"].value, 2)
    (1.5, 12.29)
    """
    return WhatIf(scenario or Scenario(replications=5, policies=FEW))
