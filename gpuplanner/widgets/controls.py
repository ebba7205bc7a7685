"""The controls: each is one field of the scenario, with label, unit, range and explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.hardware import MADE_BY
from gpuplanner.hardware.abilities import OWNERSHIPS
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.worth import usd_per_kwh_of
from gpuplanner.study.past.history import history

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


@dataclass(frozen=True)
class DropDown:
    """One drop-down.

    Attributes
    ----------
    field : str
        Field of the scenario.
    label : str
        What is chosen.
    options : tuple of (str, str or None)
        Words and values.
    help : str
        What it means.
    """

    field: str
    label: str
    options: tuple[tuple[str, str | None], ...]
    help: str


CONTROLS = (
    Control(
        "wait_minutes", "Your limit (minutes)", 0, 120, 1,
        "How much later than today jobs of every size may start",
    ),
    Control(
        "wait_quantile", "Share within the limit", 0.5, 0.99, 0.01,
        "This share of the jobs of each size keeps the limit",
    ),
    Control(
        "horizon_days", "Peaks ahead (days)", 7, 180, 7,
        "How far ahead peaks are looked at before anything is given back or bought",
    ),
    Control(
        "purchase_lead_days", "Order to delivery (days)", 0, 365, 5, "How long it takes until ordered GPUs take jobs",
    ),
    Control(
        "price_usd_per_kwh", "Electricity (USD per kWh)", 0.0, 1.0, 0.01, "What a kWh costs the owner of the GPUs",
    ),
)  # fmt: skip
CHOICES = (
    DropDown(
        "path", "Who changes the fleet", tuple((name, name) for name in MADE_BY),
        "What can be done depends on it: who cuts, and who brings nodes",
    ),
    DropDown(
        "ownership", "Who pays for the GPUs", (("as the data say", None), *((name, name) for name in OWNERSHIPS)),
        "What a saving is worth depends on it",
    ),
)  # fmt: skip
_WHOLE = ("horizon_days", "purchase_lead_days")


@dataclass(frozen=True)
class Starts:
    """Where the controls begin.

    Attributes
    ----------
    values : dict
        By field of the scenario; what it leaves to the catalogue is filled in.
    fleet : str
        The fleet in words, empty where the data cannot be read: the first answer says why.
    """

    values: dict[str, Any]
    fleet: str

    @classmethod
    def of(cls, scenario: Scenario) -> Starts:
        """Read the fleet, and what the scenario leaves open."""
        values = {one.field: getattr(scenario, one.field) for one in (*CONTROLS, *CHOICES)}
        values["price_usd_per_kwh"] = usd_per_kwh_of(scenario)
        try:
            fleet = history(scenario).fleet
        except GpuPlannerError:
            return cls(values, "")
        return cls(values, f"{fleet.gpus:,} {fleet.name or 'GPUs'}")


def slider(control: Control, starts: Starts) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the slider of a control, set to where the answer begins.

    ``continuous_update`` is off: a drag ends in one change, the arrow keys step through the range, and a start that is
    no multiple of the step stays what it is.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    value = starts.values[control.field]
    whole = control.field in _WHOLE
    decimals = 1 if control.field == "wait_minutes" else 3 if control.field == "price_usd_per_kwh" else 2
    return (widgets.IntSlider if whole else widgets.FloatSlider)(
        value=value,
        min=min(control.low, value),
        max=max(control.high, value),
        step=control.step,
        description=control.label,
        tooltip=control.help,
        continuous_update=False,
        readout_format="d" if whole else f".{decimals}f",
        style={"description_width": LABELS},
        layout={"width": "100%", "max_width": WIDTH},
    )


def drop_down(choice: DropDown, starts: Starts) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the drop-down of a choice, set to where the answer begins."""
    widgets = import_optional("ipywidgets", extra="notebook")
    return widgets.Dropdown(
        options=list(choice.options),
        value=starts.values[choice.field],
        description=choice.label,
        tooltip=choice.help,
        style={"description_width": LABELS},
        layout={"width": "100%", "max_width": WIDTH},
    )
