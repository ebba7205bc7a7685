"""Who pays for the installed GPU-time: the price of a GPU-hour, and one charge line per tenant, all of it covered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from gpuplanner.catalog import gpu_price
from gpuplanner.errors import ScenarioError, message
from gpuplanner.schemas import Costs, check
from gpuplanner.units import money, split_exactly

NOBODY = "-"
UNALLOCATED = "Unallocated"
FLEET = "own fleet"


@dataclass(frozen=True)
class Price:
    """One GPU-hour with its range, currency, source and date."""

    value: float
    low: float
    high: float
    currency: str
    source: str
    date: str


def gpu_hour_price(board: str, *, own: float = 0.0, currency: str = "USD") -> Price:
    """Price of one GPU-hour of a board.

    Parameters
    ----------
    board : str
        Board of the catalogue.
    own : float
        The user's own price; 0 takes the catalogue's on-demand list prices.
    currency : str
        ISO 4217 code of ``own``.

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
    listed = gpu_price(board)
    if listed.currency != currency:
        text = message(
            "currency",
            f"{listed.currency}, the currency of the list prices",
            currency,
            "Set price_usd_per_gpu_hour to your own price in that currency.",
        )
        raise ScenarioError(text)
    return Price(
        listed.value,
        listed.low,
        listed.high,
        currency,
        f"median of {listed.rows} on-demand list prices: {listed.source}",
        listed.date,
    )


def showback(
    ledger: pl.DataFrame,
    price: Price,
    *,
    start: datetime,
    end: datetime,
    energy_kwh: float | None,
    carbon_kg: float | None,
) -> pl.DataFrame:
    """Charge lines whose sum is the price of the installed GPU-time, to the cent.

    The total is made first and rounded once; lines share it by GPU-hours with the largest-remainder rule, so
    that no cent is lost. Time that nobody held is a line of its own, never spread silently.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    price : Price
        Of one GPU-hour.
    start, end : datetime
        Billing period.
    energy_kwh, carbon_kg : float or None
        Facility energy [kWh] and operational carbon [kg CO2e] of the period, split like the hours; None where
        the power of the board is not known.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Costs``, largest line first, ``Unallocated`` last.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 1, tzinfo=UTC)
    >>> rows = {"tenant": ["a", "-"], "gpu_hours": [2.0, 1.0], "hour": [day, day]}
    >>> price = Price(1.0, 1.0, 1.0, "USD", "own price", "as given")
    >>> lines = showback(pl.DataFrame(rows), price, start=day, end=day, energy_kwh=3.0, carbon_kg=0.0)
    >>> [str(cost) for cost in lines["EffectiveCost"]]
    ['2.00', '1.00']
    """
    name = pl.when(pl.col("tenant") == NOBODY).then(pl.lit(UNALLOCATED)).otherwise("tenant")
    lines = (
        ledger.group_by(SubAccountName=name)
        .agg(PricingQuantity=pl.col("gpu_hours").sum())
        .with_columns(last=pl.col("SubAccountName") == UNALLOCATED)
        .sort("last", "PricingQuantity", "SubAccountName", descending=[False, True, False])
    )
    hours = lines["PricingQuantity"]
    total_hours = float(hours.sum())
    costs = split_exactly(money(total_hours * price.value), hours.to_list())
    cost = pl.Series(costs, dtype=pl.Decimal(18, 2))
    share = pl.col("PricingQuantity") / (total_hours if total_hours > 0 else 1.0)
    table = lines.with_columns(
        BillingPeriodStart=pl.lit(start),
        BillingPeriodEnd=pl.lit(end),
        ChargePeriodStart=pl.lit(start),
        ChargePeriodEnd=pl.lit(end),
        BillingAccountId=pl.lit(FLEET),
        ChargeCategory=pl.lit("Usage"),
        ChargeDescription=pl.lit("GPU-hours of installed GPUs"),
        ServiceCategory=pl.lit("Compute"),
        ServiceName=pl.lit("GPU cluster"),
        ProviderName=pl.lit(FLEET),
        PricingUnit=pl.lit("GPU-Hours"),
        ListUnitPrice=pl.lit(price.value),
        ListCost=cost,
        EffectiveCost=cost,
        BilledCost=cost,
        BillingCurrency=pl.lit(price.currency),
        x_EnergyKwh=share * pl.lit(energy_kwh, pl.Float64),
        x_CarbonKg=share * pl.lit(carbon_kg, pl.Float64),
    )
    return check(table, Costs, where="showback")
