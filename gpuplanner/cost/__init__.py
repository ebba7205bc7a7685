"""Energy, carbon and money, each figure with its source and date."""

from gpuplanner.cost.energy import (
    CarbonFactor,
    PowerModel,
    carbon_factor,
    carbon_kg,
    facility_kwh,
    gpu_kwh,
    power_model,
)
from gpuplanner.cost.showback import Price, gpu_hour_price, showback

__all__ = [
    "CarbonFactor",
    "PowerModel",
    "Price",
    "carbon_factor",
    "carbon_kg",
    "facility_kwh",
    "gpu_hour_price",
    "gpu_kwh",
    "power_model",
    "showback",
]
