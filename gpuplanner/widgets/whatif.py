"""The what-if panel: move a control, and see the same jobs under every policy again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from html import escape
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.scenario import Scenario
from gpuplanner.study import Study, evaluate
from gpuplanner.widgets.controls import CONTROLS, slider

DEBOUNCE_S = 0.4
"""Changes that follow each other faster are answered once."""


class WhatIf:
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
        widgets = import_optional("ipywidgets", extra="notebook")
        self.base = scenario
        self.study: Study | None = None
        self._show = show
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="what-if")
        self._timer: asyncio.TimerHandle | None = None
        self._pending: Future[Study] | None = None
        self._asked = 0
        self._moved: set[str] = set()
        self.sliders = {control.field: slider(control, scenario) for control in CONTROLS}
        self.status = widgets.HTML("Move a control, or press the button.")
        self.code = widgets.HTML()
        self.answer = widgets.HTML()
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

    def ask(self) -> Future[Study]:
        """Evaluate the scenario in the background and show the answer when it is there.

        Returns
        -------
        concurrent.futures.Future
            The study; in a plain Python session, wait for its result.
        """
        self._asked += 1
        self.status.value = "Computing: plans and simulations ..."
        if self._pending is not None:
            self._pending.cancel()  # a question that has not begun is not worth answering any more
        self._pending = self._worker.submit(self._answer, self._asked, self.scenario, _running_loop())
        return self._pending

    def _answer(self, number: int, scenario: Scenario, loop: asyncio.AbstractEventLoop | None) -> Study:
        """Evaluate and draw in the worker; hand the finished text to the kernel's own thread."""
        try:
            study = evaluate(scenario)
            self._deliver(loop, number, study, self._show(study), "Done.")
        except Exception as error:
            kind = "" if isinstance(error, GpuPlannerError) else f"{type(error).__name__}: "
            text = f"<b>No answer.</b> {escape(kind + str(error))}"
            self._deliver(loop, number, self.study, self.answer.value, text)
            raise
        return study

    def _deliver(self, loop: asyncio.AbstractEventLoop | None, *arrival: Any) -> None:  # noqa: ANN401
        if loop is None:
            self._arrived(*arrival)
        else:
            loop.call_soon_threadsafe(self._arrived, *arrival)

    def _arrived(self, number: int, study: Study | None, answer: str, status: str) -> None:
        if number == self._asked:  # else a newer question is under way
            self.study, self.answer.value, self.status.value = study, answer, status

    def _changed(self, name: str) -> None:
        self._moved.add(name)
        self._say_code()
        loop = _running_loop()
        if loop is None:
            return  # no notebook: the caller asks
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(DEBOUNCE_S, self.ask)

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

    def _repr_mimebundle_(self, **arguments: Any) -> Any:  # noqa: ANN401 - what ipywidgets returns
        return self.panel._repr_mimebundle_(**arguments)


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


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
