"""Energy, carbon and money, each figure with its source and date."""

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name
from gpuplanner.cost.energy import CarbonFactor, PowerModel, carbon_factor, facility_kwh, gpu_kwh, power_model
from gpuplanner.cost.footprint import Facility, RangedAmount, by_state, footprint, total_of
from gpuplanner.cost.showback import (Rate, allocated, showback)
from gpuplanner.hardware.list_prices import Price, gpu_hour_price

if TYPE_CHECKING:
    from gpuplanner.cost.measured import measured_energy

__all__ = [
    "CarbonFactor",
    "Facility",
    "PowerModel",
    "Price",
    "RangedAmount",
    "Rate",
    "allocated",
    "by_state",
    "carbon_factor",
    "facility_kwh",
    "footprint",
    "gpu_hour_price",
    "gpu_kwh",
    "measured_energy",
    "power_model",
    "showback",
    "total_of",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, {"measured_energy": "measured"}, name)  # it loads the readers of telemetry
