"""Charge lines by tenant that add up to the cost of the installed GPU-hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import polars as pl

from gpuplanner.core.column_headings import cells_in_words
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import MONEY_DTYPE, Costs
from gpuplanner.core.units import UNALLOCATED_TEAM, round_money, split_amount
from gpuplanner.cost.energy_and_carbon import FINE
from gpuplanner.hardware.power_and_carbon import GpuHourPrice

NOBODY = "-"
FLEET = "own fleet"
NAMES = ("BillingAccountId", "BillingAccountName", "ProviderName", "PublisherName", "InvoiceIssuerName")
"""Columns that name who bills: the fleet itself."""
CENTS = pl.Decimal(18, 2)
OWN_RATE, LIST_PRICE, BILL = "own rate", "list price", "bill"
"""What the cost of a charge line rests on."""
NOT_STATED = "not stated"
"""Ownership where neither scenario nor inventory says one."""
CATEGORIES = {"reserved": "Committed", "spot": "Dynamic", "owned": "Other"}
"""FOCUS pricing category by ownership, by the first word of it; all else is Standard."""
INVOICED = ("on_demand", "spot", "reserved")
"""Ownerships whose GPU-hours a provider invoices."""
FOOTPRINT = {
    "energy_kwh": "x_EnergyKwh", "location_kg": "x_CarbonKg", "market_kg": "x_CarbonMarketKg",
    "embodied_kg": "x_CarbonEmbodiedKg",
}  # fmt: skip


@dataclass(frozen=True)
class Rate:
    """What a GPU-hour that is installed costs: its price, electricity on top of it, and the list price.

    ``per_kwh`` [currency per kWh] is paid beside the price, as an owner does; ``listed`` is None
    where no list has the GPU model; ``parts`` are the components of the price of an owned GPU; ``basis`` is
    :data:`OWN_RATE` or :data:`LIST_PRICE`.
    """

    price: GpuHourPrice
    per_kwh: float = 0.0
    listed: float | None = None
    parts: Mapping[str, float] | None = None
    basis: str = OWN_RATE


def showback(
    hours: pl.DataFrame, rates: Mapping[tuple[str | None, str], Rate], *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Charge lines whose sum is the price of the installed GPU-time, to the cent.

    The total is made first and rounded once; lines share it by what they cost, with the largest-remainder rule, so
    that no cent is lost. Time that nobody held is in lines of its own, never spread silently.

    Parameters
    ----------
    hours : polars.DataFrame
        ``tenant`` (``-``: nobody), ``gpu_model``, ``bucket``, ``ownership``, ``gpu_hours``, and, where known, the
        columns of :data:`FOOTPRINT`.
    rates : mapping
        What a GPU-hour costs, by ``gpu_model`` and ``ownership``; all in one currency. Hours without a rate are no
        line.
    start, end : datetime
        Billing period.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Costs``, the largest tenant first, ``nobody`` last.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 1, tzinfo=UTC)
    >>> rows = {"tenant": ["a", "-"], "gpu_model": "X", "bucket": ["used", "unallocated"], "gpu_hours": [2.0, 1.0]}
    >>> rate = Rate(GpuHourPrice(1.0, 1.0, 1.0, "USD", "own price", "as given"))
    >>> rows = pl.DataFrame(rows).with_columns(ownership=pl.lit("owned"))
    >>> lines = showback(rows, {("X", "owned"): rate}, start=day, end=day)
    >>> lines.select("SubAccountName", pl.col("EffectiveCost").cast(pl.String)).rows()
    [('a', '2.00'), ('__unallocated__', '1.00')]
    """
    absent = (name for name in FOOTPRINT if name not in hours.columns)
    hours = hours.with_columns(pl.lit(None, pl.Float64).alias(name) for name in absent)
    priced = [key in rates for key in hours.select("gpu_model", "ownership").iter_rows()]
    lines = _ordered(hours.filter(pl.Series(priced, dtype=pl.Boolean)))
    mine = [rates[key] for key in lines.select("gpu_model", "ownership").iter_rows()]
    quantity = _fine(lines["gpu_hours"])
    costs = _costs(quantity, lines["energy_kwh"], mine)
    listed = [None if rate.listed is None else Decimal(repr(rate.listed)) for rate in mine]
    at_list = [
        cost if price is None else price * Decimal(repr(amount))
        for cost, price, amount in zip(costs, listed, quantity, strict=True)
    ]
    cost, basis = pl.Series(costs, dtype=CENTS), pl.Series([rate.basis for rate in mine], dtype=pl.String)
    # Nobody invoices owned GPUs, nor a list price.
    billed = pl.when(pl.col("ownership").is_in(INVOICED) & (basis == OWN_RATE)).then(cost)
    table = lines.select(
        **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), pl.lit(start)),
        **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), pl.lit(end)),
        **dict.fromkeys(NAMES, pl.lit(FLEET)),
        SubAccountId="name",
        SubAccountName="name",
        ChargeCategory=pl.lit("Usage"),
        ChargeClass=pl.lit(None, pl.String),
        ChargeDescription=pl.format("GPU-hours of installed GPUs: {}", cells_in_words(lines)["bucket"]),
        ServiceCategory=pl.lit("Compute"),
        ServiceName=pl.lit("GPU cluster"),
        PricingCategory=pl.col("ownership").str.extract("^([a-z]*)").replace_strict(CATEGORIES, default="Standard"),
        PricingQuantity=quantity,
        PricingUnit=pl.lit("GPU-Hours"),
        ListUnitPrice=pl.Series([rate.listed for rate in mine], dtype=pl.Float64),
        ListCost=pl.Series(at_list, dtype=MONEY_DTYPE),
        EffectiveCost=cost,
        **dict.fromkeys(("ContractedCost", "BilledCost"), billed.otherwise(Decimal("0.00")).cast(CENTS)),
        BillingCurrency=pl.Series([rate.price.currency for rate in mine], dtype=pl.String),
        x_GpuModel="gpu_model",
        x_Bucket=pl.col("bucket").cast(pl.String),
        x_Ownership="ownership",
        x_PriceBasis=basis,
        **{ours: _fine(lines[name]) for name, ours in FOOTPRINT.items()},
    )  # fmt: skip
    return check_table(table, Costs, source="showback")


def allocated(total: Decimal, weights: pl.DataFrame, *, by: str, weight: str) -> pl.DataFrame:
    """An amount that was rounded once, split by `weight` so that the parts sum to it: ``by, weight, cost``."""
    parts = weights.group_by(by).agg(pl.col(weight).sum()).sort(weight, by, descending=[True, False])
    return parts.with_columns(cost=pl.Series(split_amount(total, parts[weight].to_list()), dtype=CENTS))


def _ordered(hours: pl.DataFrame) -> pl.DataFrame:
    """Lines with the names that they are shown under; a tenant that is called nobody is told from nobody."""
    shown = (
        pl.when(pl.col("tenant") == NOBODY).then(pl.lit(UNALLOCATED_TEAM))
        .when(pl.col("tenant") == UNALLOCATED_TEAM).then(pl.lit(f"{UNALLOCATED_TEAM} (tenant)"))
        .otherwise("tenant")
    )  # fmt: skip
    return (
        hours.with_columns(name=shown, last=pl.col("tenant") == NOBODY)
        .with_columns(most=pl.col("gpu_hours").sum().over("name"))
        .sort(
            "last", "most", "name", "gpu_model", "ownership", pl.col("bucket").cast(pl.String),
            descending=[False, True, *[False] * 4],
        )
    )  # fmt: skip


def _costs(quantity: pl.Series, kwh: pl.Series, rates: Sequence[Rate]) -> list[Decimal]:
    amounts = [
        hours * rate.price.value + (energy or 0.0) * rate.per_kwh
        for hours, energy, rate in zip(quantity, kwh, rates, strict=True)
    ]
    return split_amount(round_money(math.fsum(amounts)), amounts)


def _fine(values: pl.Series) -> pl.Series:
    """Values to six decimals whose sum is the rounded sum; what is not known stays so."""
    known = [float(value) for value in values.drop_nulls()]
    parts = iter(split_amount(round_money(math.fsum(known), FINE), known))
    return pl.Series([None if value is None else float(next(parts)) for value in values], dtype=pl.Float64)
