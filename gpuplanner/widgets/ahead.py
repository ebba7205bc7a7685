"""The panel of what is ahead: horizon, gap, price of being short and capacity, and what they decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.widgets.background import BackgroundPanel


@dataclass(frozen=True)
class AheadQuestion:
    """What is asked of a forecast, by calendar, decision and controls alike.

    Attributes
    ----------
    horizon, gap : int
        Slots that are looked at, and slots that it takes to act.
    price : float
        Of a GPU-hour short, in GPU-hours planned.
    capacity : float
        GPUs that there are.

    Examples
    --------
    >>> AheadQuestion(price=8.0)
    AheadQuestion(horizon=48, gap=6, price=8.0, capacity=64.0)
    """

    horizon: int = 48
    gap: int = 6
    price: float = 5.0
    capacity: float = 64.0


class AheadPanel(BackgroundPanel[AheadQuestion, str]):
    """Controls of a forecast, and what they decide: the quantile, and the calendar of GPUs to plan.

    Parameters
    ----------
    start : AheadQuestion
        Where the controls begin.
    draw : callable
        From what is asked to markup; runs in the background.

    Attributes
    ----------
    controls : dict
        ipywidgets controls by field of the question.

    Examples
    --------
    >>> panel = AheadPanel(AheadQuestion(48, 6, 5.0, 64.0), lambda asked: f"<p>{asked.price:g}</p>")
    >>> panel.controls["price"].value = 8.0
    >>> panel.ask().result()
    '<p>8</p>'
    """

    at_once = True

    def __init__(self, start: AheadQuestion, draw: Callable[[AheadQuestion], str]) -> None:
        super().__init__(draw, "<div class='gpuplanner-answer'>{}</div>".format, working="Looking ahead ...")
        widgets = import_optional("ipywidgets", extra="notebook")
        look = {"style": {"description_width": "18em"}, "layout": {"width": "100%", "max_width": "44em"}}

        def slider(name: str, label: str, low: float, high: float, step: float, help_: str) -> Any:  # noqa: ANN401
            value = getattr(start, name)
            kind = widgets.IntSlider if isinstance(value, int) else widgets.FloatSlider
            return kind(
                value=value, min=min(low, value), max=max(high, value), step=step, description=label,
                tooltip=help_, continuous_update=False, **look,
            )  # fmt: skip

        self.controls = {
            "horizon": slider("horizon", "Slots looked at", 6, 336, 6, "How far ahead is planned"),
            "gap": slider("gap", "Slots that it takes to act", 0, 72, 1, "From a decision to its effect"),
            "price": slider(
                "price", "A GPU-hour short costs", 1.0, 30.0, 0.5, "In GPU-hours that are planned and not needed"
            ),
            "capacity": slider("capacity", "GPUs that there are", 1.0, 2 * start.capacity, 1.0, "The fleet"),
        }  # fmt: skip
        for control in self.controls.values():
            control.observe(lambda _: self.ask_soon(), names="value")
        self.panel = widgets.VBox([*self.controls.values(), self.status, self.answer])

    @property
    def question(self) -> AheadQuestion:
        """What the controls ask as they stand."""
        return AheadQuestion(**{name: control.value for name, control in self.controls.items()})
