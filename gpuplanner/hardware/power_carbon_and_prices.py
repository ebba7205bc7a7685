"""Power of GPUs by a two-state law, energy of the facility, carbon factors, and prices of GPU-hours.

A GPU without jobs draws its idle power. A GPU with jobs draws ``base + slope * u``, where ``u`` is the fraction of its
SMs that are active, capped at its rated power. A straight line from idle to rated power over "utilisation" is far off:
on one cluster of A100s it gives 285 W where the published mean is 191 W (Hu et al., NSDI 2024,
https://arxiv.org/abs/2403.07648).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve_name
from gpuplanner.core.units_and_number_formats import kwh_from_watt_hours
from gpuplanner.hardware.catalog import facts, find_data_sheet, find_parameter, list_prices, resolve_gpu_model

HOURS_PER_YEAR = 8766.0
"""Hours of a mean year of 365.25 days."""


@dataclass(frozen=True)
class GpuPowerModel:
    """Two-state power law of a GPU model.

    Attributes
    ----------
    gpu_model : str
        Name in the catalogue.
    idle_w, base_w, slope_w, tdp_w : float
        Power without jobs, with jobs at SM activity 0, added at SM activity 1, and rated. [W]
    source : str
        Source of the figures.
    """

    gpu_model: str
    idle_w: float
    base_w: float
    slope_w: float
    tdp_w: float
    source: str

    def busy_w(self, activity: float) -> float:
        """Return the power [W] of a GPU with jobs at SM activity 0-1, at most the rated power."""
        return min(self.base_w + self.slope_w * activity, self.tdp_w)


@functools.cache
def make_power_model(gpu_model: str, *, range_end: str = "value") -> GpuPowerModel:
    """Make the power law of a GPU model from its rated power and the coefficients of the catalogue.

    Idle power is a fraction of rated power: idle readings in data sheets differ by a factor of two for the same model.

    Parameters
    ----------
    gpu_model : str
        GPU model of the catalogue.
    range_end : {"value", "low", "high"}
        Value of each coefficient to use: the typical one, or the low or high end of its range.

    Returns
    -------
    GpuPowerModel

    Raises
    ------
    ScenarioError
        If the data sheet of the model states no rated power.
    GeometryError
        If the catalogue has no such model, or no data sheet of it.

    Examples
    --------
    >>> law = make_power_model("H100-80GB-SXM5")
    >>> round(law.idle_w), round(law.busy_w(0.5))
    (70, 536)
    """
    name = resolve_gpu_model(gpu_model)
    spec = find_data_sheet(name)
    tdp_w = spec.tdp_w
    if tdp_w is None:
        todo = "Add the rating to gpu_specs.csv with its source."
        raise ScenarioError(f"power of {name}", "a tdp_w in gpu_specs", "none", todo)
    idle, base, slope = map(find_parameter, ("idle_fraction", "active_base_fraction", "active_slope_fraction"))
    idle_w, base_w, slope_w = (getattr(fraction, range_end) * tdp_w for fraction in (idle, base, slope))
    source = f"rating: {spec.source}; law: {base.source} ({base.date})"
    return GpuPowerModel(name, idle_w, base_w, slope_w, tdp_w, source)


def compute_gpu_kwh(
    power_model: GpuPowerModel, *, powered_gpu_hours: float, resident_gpu_hours: float, active_gpu_hours: float
) -> float:
    """Compute the energy of the GPUs alone.

    Parameters
    ----------
    power_model : GpuPowerModel
        Power law of the GPU model.
    powered_gpu_hours : float
        Powered-on GPU-hours. [GPU h]
    resident_gpu_hours : float
        Of these, GPU-hours with at least one job on the GPU. [GPU h]
    active_gpu_hours : float
        Integral of SM activity over resident time, at most ``resident_gpu_hours``. [GPU h]

    Returns
    -------
    float
        Energy [kWh].

    Raises
    ------
    ScenarioError
        If active <= resident <= powered does not hold.

    Examples
    --------
    >>> law = make_power_model("H100-80GB-SXM5")
    >>> compute_gpu_kwh(law, powered_gpu_hours=10, resident_gpu_hours=6, active_gpu_hours=3)
    3.493
    """
    slack = 1e-6 * max(powered_gpu_hours, 1.0)
    if not -slack <= active_gpu_hours <= resident_gpu_hours + slack <= powered_gpu_hours + 2 * slack:
        expected = "active <= resident <= powered GPU-hours"
        got = f"{active_gpu_hours:.6g}, {resident_gpu_hours:.6g}, {powered_gpu_hours:.6g}"
        raise ScenarioError("energy", expected, got, "Use figures of one run and one window.")
    idle_wh = power_model.idle_w * max(powered_gpu_hours - resident_gpu_hours, 0.0)
    mean_activity = active_gpu_hours / resident_gpu_hours if resident_gpu_hours > 0 else 0.0
    return kwh_from_watt_hours(idle_wh + power_model.busy_w(mean_activity) * resident_gpu_hours)


def compute_facility_kwh(gpu_energy_kwh: float, *, host_factor: float, pue: float) -> float:
    """Compute the facility energy: GPUs, their servers, cooling and losses.

    Parameters
    ----------
    gpu_energy_kwh : float
        Energy of the GPUs alone. [kWh]
    host_factor : float
        Server energy over GPU energy. [ratio]
    pue : float
        Power usage effectiveness: facility energy over IT energy. [ratio]

    Returns
    -------
    float
        Energy [kWh].

    Examples
    --------
    >>> round(compute_facility_kwh(100.0, host_factor=1.5, pue=1.2), 6)
    180.0
    """
    return gpu_energy_kwh * host_factor * pue


@dataclass(frozen=True)
class GridCarbonIntensity:
    """Carbon intensity of the electricity grid in one region [g CO2e/kWh], with method and source."""

    region: str
    gco2e_per_kwh: float
    method: str
    source: str
    year: str


@functools.cache
def find_carbon_factor(region: str) -> GridCarbonIntensity:
    """Find the carbon intensity of the grid in one region.

    Parameters
    ----------
    region : str
        A ``region`` of the table, optionally after its scope: ``"gcp:europe-west4"``. The three scopes use different
        methods and must not be mixed in one comparison.

    Returns
    -------
    GridCarbonIntensity

    Raises
    ------
    ScenarioError
        If no region, or regions of several scopes, match.

    Examples
    --------
    >>> find_carbon_factor("gcp:europe-west4").gco2e_per_kwh
    208.81
    """
    table = facts("carbon_intensity").with_columns(key=pl.concat_str("scope", "region", separator=":"))
    keys = table["key"].to_list()
    matches = [key for key in keys if key.partition(":")[2] == region]
    candidate = matches[0] if len(matches) == 1 else region
    full_key = resolve_name(candidate, matches or keys, subject="carbon region", error=ScenarioError)
    columns = ("key", "gco2e_per_kwh", "method", "source", "year")
    return GridCarbonIntensity(*table.filter(key=full_key).select(columns).row(0))


@dataclass(frozen=True)
class GpuHourPrice:
    """Price of one GPU-hour with its range [currency per GPU-hour], currency, source and date."""

    value: float
    low: float
    high: float
    currency: str
    source: str
    date: str


@functools.cache
def find_gpu_hour_price(
    gpu_model: str, *, own_price: float = 0.0, currency: str = "USD", term: str = "on_demand"
) -> GpuHourPrice:
    """Find the price of one GPU-hour: the user's own, else the median list price.

    The list price of an instance is divided by its GPUs, so host CPU and disk are included.

    Parameters
    ----------
    gpu_model : str
        GPU model of the catalogue.
    own_price : float
        The user's own price; 0: the list prices of the catalogue. [currency per GPU h]
    currency : str
        ISO 4217 code of ``own_price``.
    term : {"on_demand", "spot"}
        Type of purchase of the list prices.

    Returns
    -------
    GpuHourPrice

    Raises
    ------
    ScenarioError
        If there is no list price, or one in another currency only: nothing is converted without a dated rate.

    Examples
    --------
    >>> find_gpu_hour_price("H100-80GB-SXM5", own_price=2.5).source
    'your rate per GPU-hour'
    """
    if own_price > 0:
        return GpuHourPrice(own_price, own_price, own_price, currency, "your rate per GPU-hour", "as given")
    name = resolve_gpu_model(gpu_model)
    rows = list_prices(name, term)
    if rows.is_empty():
        expected = "at least one row in gpu_prices"
        todo = "Set price_per_gpu_hour in the scenario."
        raise ScenarioError(f"price of {name} ({term})", expected, "none", todo)
    if rows["currency"][0] != currency:
        expected = f"{rows['currency'][0]}, the currency of the list prices"
        todo = (
            "Give a price book (--price-book prices.yaml) with prices in that currency or an exchange rate; "
            "gpuplanner catalog example prices prints one. Or set price_per_gpu_hour to your price in it."
        )
        raise ScenarioError("currency", expected, currency, todo)
    prices = rows["price_per_gpu_hour"]
    median, low, high = (float(statistic) for statistic in (prices.median(), prices.min(), prices.max()))  # type: ignore[arg-type]
    sources = "; ".join(rows["source"].unique().sort())
    source = f"median of {rows.height} {term.replace('_', '-')} list prices: {sources}"
    distance = (prices - median).abs()
    dates = rows.filter(distance == distance.min())["date"].sort().cast(pl.String)  # of the offers that decide
    return GpuHourPrice(median, low, high, currency, source, " to ".join(dict.fromkeys(dates[[0, -1]])))
