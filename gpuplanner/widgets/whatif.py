"""The what-if panel: move a control, and see the same jobs under every policy again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario
from gpuplanner.study import Study, evaluate
from gpuplanner.widgets.background import BackgroundPanel
from gpuplanner.widgets.controls import CONTROLS, slider


class WhatIf(BackgroundPanel[Scenario, Study]):
    """Controls, an answer, and the same scenario in code.

    The study is evaluated in a thread of its own, so that the kernel stays free; only the newest question is
    answered. Stages that a control does not touch are not computed again.

    Parameters
    ----------
    scenario : Scenario
        Where the controls start; also the baseline that the answer is compared with.
    show : callable
        From a study to HTML.

    Attributes
    ----------
    sliders : dict
        ipywidgets controls by field of the scenario.
    scenario : Scenario
        As the controls stand.
    study : Study or None
        Newest answer.
    """

    def __init__(self, scenario: Scenario, show: Callable[[Study], str]) -> None:
        super().__init__(evaluate, show, working="Computing: plans and simulations ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self._moved: set[str] = set()
        self.sliders = {control.field: slider(control, scenario) for control in CONTROLS}
        self.code = widgets.HTML()
        self.button = widgets.Button(description="Evaluate", tooltip="Evaluate the scenario as it stands")
        self.reset = widgets.Button(description="Back to the start", tooltip="Set every control back")
        self.button.on_click(lambda _: self.ask())
        self.reset.on_click(lambda _: self._reset())
        for name, control in self.sliders.items():
            control.observe(lambda change, name=name: self._changed(name), names="value")
        self.panel = widgets.VBox(
            [
                *self.sliders.values(),
                widgets.HBox([self.button, self.reset]),
                self.code,
                self.status,
                self.answer,
            ]
        )
        self._say_code()

    @property
    def scenario(self) -> Scenario:
        """The scenario as the controls stand; a control that was never moved leaves its field alone."""
        return replace(self.base, **{name: self.sliders[name].value for name in sorted(self._moved)})

    @property
    def question(self) -> Scenario:
        """The scenario as the controls stand."""
        return self.scenario

    @property
    def study(self) -> Study | None:
        """Newest answer."""
        return self.newest

    def _changed(self, name: str) -> None:
        self._moved.add(name)
        self._say_code()
        self.ask_soon()

    def _reset(self) -> None:
        for control in CONTROLS:
            fresh = slider(control, self.base)
            self.sliders[control.field].value = fresh.value
        self._moved.clear()
        self._say_code()
        self.ask()

    def _say_code(self) -> None:
        changed = self.base.diff(self.scenario)
        arguments = ", ".join(f"{name}={new!r}" for name, (_, new) in changed.items())
        self.code.value = (
            f"<code>evaluate(replace(scenario{', ' if arguments else ''}{escape(arguments)}))</code>"
        )


def whatif(scenario: Scenario | None = None) -> WhatIf:
    """Make the what-if panel of a scenario.

    Parameters
    ----------
    scenario : Scenario, optional
        Default: the shipped sample, with few replications so that answers come quickly.

    Returns
    -------
    WhatIf
        Shows itself in a notebook.

    Examples
    --------
    >>> panel = whatif(Scenario(replications=2))
    >>> panel.sliders["quantile"].value = 0.75
    >>> panel.scenario.quantile
    0.75
    """
    from gpuplanner.widgets.answer import answer_html

    return WhatIf(scenario or Scenario(replications=5, gap_target=0.01), answer_html)
