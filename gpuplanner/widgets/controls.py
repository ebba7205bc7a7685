"""The controls: each is one field of the scenario, with label, unit, range and explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import PERFORMED_BY, UNCUT
from gpuplanner.study.future.money import price_of
from gpuplanner.study.past.history import history

PRICE = "price_usd_per_gpu_hour"
LABELS, WIDTH = "13em", "44em"


@dataclass(frozen=True)
class Control:
    """One slider.

    Attributes
    ----------
    field : str
        Field of the scenario.
    label : str
        With its unit.
    low, high, step : float
        Range; a scenario outside of it widens it.
    help : str
        What it means; shown when the pointer rests on it and read by screen readers.
    """

    field: str
    label: str
    low: float
    high: float
    step: float
    help: str


CONTROLS = (
    Control("nodes", "Nodes", 1, 16, 1, "How many nodes the fleet has; those that are there stay cut as they are"),
    Control("arrival_scale", "Arrivals (× today)", 0.5, 2.0, 0.1, "What if there were so many times the jobs?"),
    Control(
        "wait_minutes", "May wait (minutes)", 1, 120, 1,
        "How long jobs of each size may wait; where they wait longer today, today's wait counts",
    ),
    Control(
        "wait_quantile", "Share that starts in time", 0.5, 0.99, 0.01,
        "This share of the jobs of each size waits no longer than that",
    ),
    Control(PRICE, "Price (per GPU-hour)", 0, 15, 0.1, "What one GPU-hour costs; 0: nothing is said of money"),
)  # fmt: skip


@dataclass(frozen=True)
class Starts:
    """What a scenario leaves to the data and the catalogue: where the controls begin, and what they may say.

    Attributes
    ----------
    values : dict
        By field of the scenario.
    node_size : int
        GPUs of a node.
    policies : tuple of str
        Those that the path can perform on the board.
    """

    values: dict[str, float]
    node_size: int
    policies: tuple[str, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> Starts:
        """Read the fleet and its price; where the data cannot be read, the scenario's own values."""
        values = {control.field: getattr(scenario, control.field) for control in CONTROLS}
        able = PERFORMED_BY[scenario.path]
        try:
            fleet = history(scenario).fleet
            price = price_of(scenario, fleet)
        except GpuPlannerError:  # the first answer says what is wrong
            return cls(values, scenario.gpus_per_node, able)
        values["nodes"] = max(fleet.gpus // fleet.node_size, 1)
        values[PRICE] = 0.0 if price is None else price.value
        return cls(
            values,
            fleet.node_size,
            able if fleet.can_be_cut else tuple(name for name in able if name in UNCUT),
        )


def slider(control: Control, starts: Starts, currency: str) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the slider of a control, set to where the answer begins.

    ``continuous_update`` is off: a drag ends in one change, the arrow keys step through the range, and a start that is
    no multiple of the step, such as a list price, stays what it is.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    value = starts.values[control.field]
    count = control.field == "nodes"
    decimals = 1 if control.field == "wait_minutes" else 2
    label = {
        "nodes": f"Nodes of {starts.node_size} GPUs",
        PRICE: f"Price ({currency} per GPU-hour)",
    }.get(control.field, control.label)
    return (widgets.IntSlider if count else widgets.FloatSlider)(
        value=value,
        min=min(control.low, value),
        max=max(control.high, 2 * value) if control.field in ("nodes", PRICE) else max(control.high, value),
        step=control.step,
        description=label,
        tooltip=control.help,
        continuous_update=False,
        readout_format="d" if count else f".{decimals}f",
        style={"description_width": LABELS},
        layout={"width": "100%", "max_width": WIDTH},
    )
