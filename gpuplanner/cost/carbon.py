"""Carbon of energy used and of the boards themselves."""

from __future__ import annotations

from dataclasses import dataclass

from gpuplanner.catalog import carbon_intensity, parameter
from gpuplanner.units import GRAMS_PER_KILOGRAM

HOURS_PER_YEAR = 8766.0


@dataclass(frozen=True)
class CarbonFactor:
    """Grid intensity of one region with its method and source."""

    region: str
    gco2e_per_kwh: float
    method: str
    source: str
    year: str


def carbon_factor(region: str) -> CarbonFactor:
    """Look up a region, ``scope:region``.

    Examples
    --------
    >>> carbon_factor("gcp:europe-west4").gco2e_per_kwh
    208.81
    """
    row = carbon_intensity(region)
    return CarbonFactor(row["key"], row["gco2e_per_kwh"], row["method"], row["source"], row["year"])


def carbon_kg(energy_kwh: float, factor: CarbonFactor, *, gpu_hours: float = 0.0) -> dict[str, float]:
    """Operational and embodied carbon, kept apart.

    Parameters
    ----------
    energy_kwh : float
        Facility energy [kWh].
    factor : CarbonFactor
        Grid intensity.
    gpu_hours : float
        GPU-hours [GPU h] in service, to which the making of the boards is spread evenly over their life.

    Returns
    -------
    dict
        ``operational_kg`` and ``embodied_kg`` [kg CO2e].

    Examples
    --------
    >>> carbon_kg(1000.0, carbon_factor("gcp:europe-west4"))["operational_kg"]
    208.81
    """
    lifetime_h = parameter("lifetime_years").value * HOURS_PER_YEAR
    return {
        "operational_kg": energy_kwh * factor.gco2e_per_kwh / GRAMS_PER_KILOGRAM,
        "embodied_kg": gpu_hours * parameter("embodied_kg_per_gpu").value / lifetime_h,
    }
