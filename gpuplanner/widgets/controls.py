"""The controls: each is one field of the scenario, with label, unit, range and explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuplanner._optional import import_optional
from gpuplanner.errors import GpuPlannerError
from gpuplanner.knobs import Knob, Slider, knobs_of
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.worth import usd_per_kwh_of
from gpuplanner.study.past.history import history

LABELS, WIDTH = "13em", "44em"


CONTROLS = tuple(row for row in knobs_of(Scenario).values() if row.control is not None)
"""Fields of the scenario that people move in a notebook."""


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
        values = {row.name: getattr(scenario, row.name) for row in CONTROLS}
        values["price_usd_per_kwh"] = usd_per_kwh_of(scenario)
        try:
            fleet = history(scenario).fleet
        except GpuPlannerError:
            return cls(values, "")
        return cls(values, f"{fleet.gpus:,} {fleet.name or 'GPUs'}")


def control_of(row: Knob, starts: Starts) -> Any:  # noqa: ANN401 - an ipywidgets control
    """Make the control of a field, set to where the answer begins.

    ``continuous_update`` is off: a drag ends in one change, the arrow keys step through the range, and a start that is
    no multiple of the step stays what it is.
    """
    widgets = import_optional("ipywidgets", extra="notebook")
    value, asked = starts.values[row.name], row.control
    look = {
        "description": row.label,
        "tooltip": row.brief,
        "style": {"description_width": LABELS},
        "layout": {"width": "100%", "max_width": WIDTH},
    }
    if not isinstance(asked, Slider):
        usual = [("as the data say", None)] if row.none else []
        options = [] if row.rule is None else [(name, name) for name in row.rule.options()]
        return widgets.Dropdown(options=usual + options, value=value, **look)
    whole = float not in row.kinds
    return (widgets.IntSlider if whole else widgets.FloatSlider)(
        value=value,
        min=min(asked.low, value),
        max=max(asked.high, value),
        step=asked.step,
        continuous_update=False,
        readout_format="d" if whole else f".{asked.decimals}f",
        **look,
    )
