"""Power of GPUs by a two-state law, of the facility, and list prices of GPU-hours.

A GPU without resident work draws its idle power. A GPU with work draws ``base + slope * u``, where ``u`` is
the share of its SMs that are active, capped at the board's rating. The usual straight line from idle to
rating over "utilisation" is far off: on one fleet of A100s it would give 285 W where the published mean is
191 W (Hu et al., NSDI 2024, https://arxiv.org/abs/2403.07648).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.errors import ScenarioError, resolve
from gpuplanner.core.units import kwh_from_watt_hours
from gpuplanner.hardware.catalog import board_spec, facts, find_any_board, gpu_price, parameter

HOURS_PER_YEAR = 8766.0


@dataclass(frozen=True)
class PowerModel:
    """Two-state power law of one board.

    Attributes
    ----------
    gpu_model : str
        Name in the catalogue.
    idle_w, base_w, slope_w, tdp_w : float
        Power [W] without work, with work at vanishing load, added at full load, and the rating.
    source : str
        Where the figures come from.
    """

    gpu_model: str
    idle_w: float
    base_w: float
    slope_w: float
    tdp_w: float
    source: str

    def busy_w(self, activity: float) -> float:
        """Power [W] of a GPU with work at SM activity 0-1, never above its rating."""
        return min(self.base_w + self.slope_w * activity, self.tdp_w)


@functools.cache
def power_model(gpu_model: str, *, side: str = "value") -> PowerModel:
    """Power law of a board from its rating and the catalogue's coefficients.

    The idle power is a fraction of the rating: single idle readings in data sheets differ by a factor of two
    for one and the same board.

    Parameters
    ----------
    gpu_model : str
        Board of the catalogue.
    side : {"value", "low", "high"}
        Which end of the ranges of the coefficients.

    Returns
    -------
    PowerModel

    Raises
    ------
    ScenarioError
        If the data sheet of the board states no rating.
    GeometryError
        If the catalogue has no such board, or no data sheet of it.

    Examples
    --------
    >>> law = power_model("H100-80GB-SXM5")
    >>> round(law.idle_w), round(law.busy_w(0.5))
    (70, 536)
    """
    name = find_any_board(gpu_model)
    spec = board_spec(name)
    tdp_w = spec.tdp_w
    if tdp_w is None:
        todo = "Add the rating to gpu_specs.csv with its source."
        raise ScenarioError(f"power of {name}", "a tdp_w in gpu_specs", "none", todo)
    names = ("idle_fraction", "active_base_fraction", "active_slope_fraction")
    idle, base, slope = map(parameter, names)
    idle_w, base_w, slope_w = (getattr(fraction, side) * tdp_w for fraction in (idle, base, slope))
    source = f"rating: {spec.source}; law: {base.source} ({base.date})"
    return PowerModel(name, idle_w, base_w, slope_w, tdp_w, source)


def gpu_kwh(law: PowerModel, *, powered_gpu_hours: float, resident_gpu_hours: float, active_gpu_hours: float) -> float:
    """Energy of the GPUs alone.

    Parameters
    ----------
    law : PowerModel
        Of the board.
    powered_gpu_hours : float
        GPU-hours [GPU h] switched on.
    resident_gpu_hours : float
        Of these, with at least one job on the GPU.
    active_gpu_hours : float
        Integral of SM activity over resident time [GPU h]: at most ``resident_gpu_hours``.

    Returns
    -------
    float
        Energy [kWh].

    Raises
    ------
    ScenarioError
        If the three do not nest.

    Examples
    --------
    >>> law = power_model("H100-80GB-SXM5")
    >>> gpu_kwh(law, powered_gpu_hours=10, resident_gpu_hours=6, active_gpu_hours=3)
    3.493
    """
    slack = 1e-6 * max(powered_gpu_hours, 1.0)
    if not -slack <= active_gpu_hours <= resident_gpu_hours + slack <= powered_gpu_hours + 2 * slack:
        expected = "active <= resident <= powered GPU-hours"
        got = f"{active_gpu_hours:.6g}, {resident_gpu_hours:.6g}, {powered_gpu_hours:.6g}"
        raise ScenarioError("energy", expected, got, "Use figures of one run and one window.")
    idle_wh = law.idle_w * max(powered_gpu_hours - resident_gpu_hours, 0.0)
    mean_activity = active_gpu_hours / resident_gpu_hours if resident_gpu_hours > 0 else 0.0
    return kwh_from_watt_hours(idle_wh + law.busy_w(mean_activity) * resident_gpu_hours)


def facility_kwh(gpu_energy_kwh: float, *, host_factor: float, pue: float) -> float:
    """Energy at the meter of the building: GPUs, their servers, and cooling and losses around them.

    Parameters
    ----------
    gpu_energy_kwh : float
        Energy of the GPUs alone [kWh].
    host_factor : float
        Server energy over GPU energy.
    pue : float
        Facility energy over equipment energy.

    Returns
    -------
    float
        Energy [kWh].

    Examples
    --------
    >>> round(facility_kwh(100.0, host_factor=1.5, pue=1.2), 6)
    180.0
    """
    return gpu_energy_kwh * host_factor * pue


@dataclass(frozen=True)
class CarbonFactor:
    """Grid intensity of one region with its method and source."""

    region: str
    gco2e_per_kwh: float
    method: str
    source: str
    year: str


@functools.cache
def carbon_factor(region: str) -> CarbonFactor:
    """Grid carbon intensity of one region.

    Parameters
    ----------
    region : str
        A ``region`` of the table, optionally with its scope in front: ``"gcp:europe-west4"``. The three
        scopes use different methods and must not be mixed in one comparison.

    Returns
    -------
    CarbonFactor

    Raises
    ------
    ScenarioError
        If no region, or regions of several scopes, match.

    Examples
    --------
    >>> carbon_factor("gcp:europe-west4").gco2e_per_kwh
    208.81
    """
    table = facts("carbon_intensity").with_columns(key=pl.concat_str("scope", "region", separator=":"))
    keys = table["key"].to_list()
    matches = [key for key in keys if key.partition(":")[2] == region]
    wanted = matches[0] if len(matches) == 1 else region
    known = resolve(wanted, matches or keys, what="carbon region", error=ScenarioError)
    columns = ("key", "gco2e_per_kwh", "method", "source", "year")
    return CarbonFactor(*table.filter(key=known).select(columns).row(0))


@dataclass(frozen=True)
class Price:
    """One GPU-hour with its range, currency, source and date."""

    value: float
    low: float
    high: float
    currency: str
    source: str
    date: str


def gpu_hour_price(gpu_model: str, *, own: float = 0.0, currency: str = "USD", term: str = "on_demand") -> Price:
    """Price of one GPU-hour of a board.

    Parameters
    ----------
    gpu_model : str
        Board of the catalogue.
    own : float
        The user's own price; 0 takes the catalogue's list prices.
    currency : str
        ISO 4217 code of ``own``.
    term : {"on_demand", "spot"}
        Kind of purchase of the list prices.

    Returns
    -------
    Price

    Raises
    ------
    ScenarioError
        If the catalogue's prices are in another currency: nothing is converted without a dated rate.

    Examples
    --------
    >>> gpu_hour_price("H100-80GB-SXM5", own=2.5).source
    'own price'
    """
    if own > 0:
        return Price(own, own, own, currency, "own price", "as given")
    listed = gpu_price(gpu_model, term=term)
    if listed.currency != currency:
        expected = f"{listed.currency}, the currency of the list prices"
        todo = "Set price_usd_per_gpu_hour to your own price in that currency."
        raise ScenarioError("currency", expected, currency, todo)
    source = f"median of {listed.rows} {term.replace('_', '-')} list prices: {listed.source}"
    return Price(listed.value, listed.low, listed.high, currency, source, listed.date)
