"""The controls: each is one field of the scenario, with label, unit, range and explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.scenario import Scenario


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
        Range.
    default : float
        Shown where the scenario leaves the choice to the data or the catalogue.
    help : str
        What it means; shown when the pointer rests on it and read by screen readers.
    """

    field: str
    label: str
    low: float
    high: float
    step: float
    default: float
    help: str


CONTROLS = (
    Control("arrival_scale", "Arrivals (× today)", 0.5, 2.0, 0.1, 1.0, "What if there were so many times the jobs?"),
    Control(
        "over_request_share", "Jobs that ask for too much (share)", 0.0, 1.0, 0.05, 1.0,
        "Of the jobs that could do with less, how many go on asking for the larger slice; 1 is as in the trace",
    ),
    Control(
        "reconfigure_minutes", "Layout change (minutes)", 0.0, 30.0, 0.5, 1.0,
        "Time for which a GPU is out of service when it is cut anew",
    ),
    Control(
        "quantile", "Demand covered (quantile)", 0.5, 0.95, 0.05, 0.9,
        "The plan covers this quantile of the demand forecast",
    ),
    Control("price_usd_per_gpu_hour", "Price (per GPU-hour)", 0.5, 15.0, 0.1, 5.0, "What one GPU-hour costs"),
)  # fmt: skip


def slider(control: Control, scenario: Scenario) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the slider of a control, set to the scenario's value.

    ``continuous_update`` is off: a drag ends in one change, and the arrow keys step through the range.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    value = getattr(scenario, control.field)
    return widgets.FloatSlider(
        value=min(max(value or control.default, control.low), control.high),
        min=control.low,
        max=control.high,
        step=control.step,
        description=control.label,
        tooltip=control.help,
        continuous_update=False,
        readout_format=".2f",
        style={"description_width": "18em"},
        layout={"width": "38em"},
    )
