"""Charge lines by tenant that add up to the cost of the installed GPU-hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner.core.output_column_headings import replace_codes_by_text
from gpuplanner.core.schema_checks import add_absent_columns, check_table
from gpuplanner.core.schemas import MONEY_DECIMAL_PLACES, MONEY_DTYPE, Costs
from gpuplanner.core.units_and_number_formats import UNALLOCATED_TEAM, round_money, split_amount, split_table
from gpuplanner.cost.energy_and_carbon import AMOUNT_DECIMALS
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL

INVOICER_NAME = "own fleet"
"""Name of the invoicer in all charge lines."""
INVOICER_COLUMNS = ("BillingAccountId", "BillingAccountName", "ProviderName", "PublisherName", "InvoiceIssuerName")
"""FOCUS columns of a charge line that name the invoicer, all with the same text."""
CENTS_DTYPE = pl.Decimal(18, 2)
"""Polars type of amounts of money with two decimals."""
OWN_RATE, LIST_PRICE, BILL = "own rate", "list price", "bill"
"""Basis of the cost of a charge line: the rates of the user, public list prices, or an imported bill."""
NOT_STATED = "not stated"
"""Ownership of GPU-hours for which neither scenario nor inventory states one."""
CATEGORY_OF_OWNERSHIP = {"reserved": "Committed", "spot": "Dynamic", "owned": "Other"}
"""FOCUS pricing category by the first word of the ownership; all others are Standard."""
FOOTPRINT_COLUMNS = {
    "energy_kwh": "x_EnergyKwh", "location_kg": "x_CarbonKg", "market_kg": "x_CarbonMarketKg",
    "embodied_kg": "x_CarbonEmbodiedKg",
}  # fmt: skip
"""FOCUS column of a charge line by column of energy [kWh] or carbon [kg CO2e] of the GPU-hours."""


@dataclass(frozen=True)
class Rate:
    """Rate at which an installed GPU-hour is charged.

    - ``price``: Price of a GPU-hour [currency per GPU-hour].
    - ``per_kwh``: Price of electricity, if it is paid in addition, as for owned GPUs [currency per kWh].
    - ``listed``: List price [currency per GPU-hour]; None if the catalogue has none.
    - ``parts``: Components of the price of an owned GPU [currency per GPU-hour].
    - ``basis``: :data:`OWN_RATE` or :data:`LIST_PRICE`.
    - ``rows``: Rows of the price book behind the rate.
    """

    price: GpuHourPrice
    per_kwh: float = 0.0
    listed: float | None = None
    parts: Mapping[str, float] | None = None
    basis: str = OWN_RATE
    rows: tuple[Any, ...] = ()


def showback(
    hours: pl.DataFrame, rates: Mapping[tuple[str | None, str], Rate], *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Make charge lines by tenant whose sum is the cost of the installed GPU-hours, to the cent.

    The total is computed first and rounded once; tenants, then their lines, share it in proportion to their cost by
    the largest-remainder rule, so that no cent is lost, and buckets sum to their rounded cost as well. Unallocated
    GPU-hours have lines of their own.

    Parameters
    ----------
    hours : polars.DataFrame
        ``tenant`` (``-``: unallocated), ``gpu_model``, ``bucket``, ``ownership``, ``gpu_hours``, and, where known, the
        columns of :data:`FOOTPRINT_COLUMNS`.
    rates : mapping
        Rate of a GPU-hour by ``gpu_model`` and ``ownership``, all in one currency. Hours without a rate get no line.
    start, end : datetime
        Charge period, taken as the billing period as well.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Costs``, the largest tenant first, unallocated GPU-hours last.

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
    hours = add_absent_columns(hours, dict.fromkeys(FOOTPRINT_COLUMNS, pl.Float64()))
    has_rate = [key in rates for key in hours.select("gpu_model", "ownership").iter_rows()]
    lines = _order_lines(hours.filter(pl.Series(has_rate, dtype=pl.Boolean)))
    line_rates = [rates[key] for key in lines.select("gpu_model", "ownership").iter_rows()]
    quantity = _round_parts(lines["gpu_hours"])
    costs = _line_costs(lines, quantity, line_rates)
    listed = [None if rate.listed is None else _round_list_price(rate.listed) for rate in line_rates]
    at_list = [
        cost if price is None else Decimal(repr(price)) * Decimal(repr(amount))
        for cost, price, amount in zip(costs, listed, quantity, strict=True)
    ]
    cost, basis = pl.Series(costs, dtype=CENTS_DTYPE), pl.Series([rate.basis for rate in line_rates], dtype=pl.String)
    category = pl.col("ownership").str.extract("^([a-z]*)").replace_strict(CATEGORY_OF_OWNERSHIP, default="Standard")
    table = lines.select(
        **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), pl.lit(start)),
        **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), pl.lit(end)),
        **dict.fromkeys(INVOICER_COLUMNS, pl.lit(INVOICER_NAME)),
        SubAccountId="name",
        SubAccountName="name",
        ChargeCategory=pl.lit("Usage"),
        ChargeClass=pl.lit(None, pl.String),
        ChargeDescription=pl.format("GPU-hours of installed GPUs: {}", replace_codes_by_text(lines)["bucket"]),
        ServiceCategory=pl.lit("Compute"),
        ServiceName=pl.lit("GPU cluster"),
        PricingCategory=category,
        PricingQuantity=quantity,
        PricingUnit=pl.lit("GPU-Hours"),
        ListUnitPrice=pl.Series(listed, dtype=pl.Float64),
        ListCost=pl.Series(at_list, dtype=MONEY_DTYPE),
        **dict.fromkeys(("EffectiveCost", "ContractedCost"), cost),
        BilledCost=pl.lit(Decimal("0.00"), CENTS_DTYPE),  # only a bill states what is invoiced
        BillingCurrency=pl.Series([rate.price.currency for rate in line_rates], dtype=pl.String),
        x_GpuModel="gpu_model",
        x_Bucket=pl.col("bucket").cast(pl.String),
        x_Ownership="ownership",
        x_PriceBasis=basis,
        **{column: _round_parts(lines[name]) for name, column in FOOTPRINT_COLUMNS.items()},
    )  # fmt: skip
    return check_table(table, Costs, source="showback")


def find_charged_price(
    costs: pl.DataFrame, rates: Mapping[tuple[str | None, str], Rate]
) -> tuple[GpuHourPrice | None, dict[str, float]]:
    """Find the mean price of a GPU-hour of charge lines, electricity included, and its components.

    Parameters
    ----------
    costs : polars.DataFrame
        Charge lines, table ``schemas.Costs``.
    rates : mapping
        Rate by GPU model of the lines and ownership.

    Returns
    -------
    price : GpuHourPrice or None
        Price that makes the cost of the lines with their GPU-hours; None without lines.
    components : dict of str to float
        Parts that sum to it: depreciation, yearly costs and electricity of owned GPUs, and the price of each other
        ownership by its name; empty if the price has one part alone. [currency per GPU-hour]

    Examples
    --------
    >>> line = {"x_GpuModel": "T4", "x_Ownership": "owned", "PricingQuantity": 4.0, "x_EnergyKwh": 2.0}
    >>> costs = pl.DataFrame(line | {"EffectiveCost": 5.0})
    >>> rate = Rate(GpuHourPrice(1.0, 1.0, 1.0, "USD", "invoice", "2025-01-01"), per_kwh=0.5)
    >>> price, components = find_charged_price(costs, {("T4", "owned"): rate})
    >>> price.value, components
    (1.25, {'owned': 1.0, 'electricity': 0.25})
    """
    amounts = pl.col("PricingQuantity", "x_EnergyKwh", "EffectiveCost").sum()
    sums = costs.group_by("x_GpuModel", "x_Ownership", maintain_order=True).agg(amounts).rows()
    lines = [(rates[label, kind], kind, hours, kwh) for label, kind, hours, kwh, _ in sums]
    prices = list(dict.fromkeys(rate.price for rate, *_ in lines))
    total_hours = sum(hours for *_, hours, _ in lines)
    electricity = sum(rate.per_kwh * kwh for rate, *_, kwh in lines)
    if len(prices) <= 1 and not electricity:
        return (prices[0], dict(lines[0][0].parts or {})) if lines else (None, {})
    parts: dict[str, float] = {}
    low = high = electricity
    for rate, kind, hours, _ in lines:
        for name, part in (rate.parts or {kind: rate.price.value}).items():
            parts[name] = parts.get(name, 0.0) + part * hours
        low, high = low + rate.price.low * hours, high + rate.price.high * hours
    parts |= {"electricity": electricity} if electricity else {}
    cost = float(sum(cost for *_, cost in sums))
    rounding = cost / (sum(parts.values()) or 1.0)  # the cost is rounded to the cent
    low, high = (rounding * end / total_hours for end in (low, high))
    source = "; ".join(dict.fromkeys(price.source for price in prices))
    source = f"{'mean by GPU-hours: ' * (len(prices) > 1)}{source}{', with electricity' * (electricity > 0)}"
    date = max(price.date for price in prices)
    price = GpuHourPrice(cost / total_hours, low, high, prices[0].currency, source, date)
    return price, {name: rounding * part / total_hours for name, part in parts.items() if len(parts) > 1}


def split_cost(total: Decimal, weights: pl.DataFrame, *, by: str, weight: str) -> pl.DataFrame:
    """Split an amount of money by a weight, to the cent, so that the parts sum to it.

    Parameters
    ----------
    total : decimal.Decimal
        Amount, rounded to cents.
    weights : polars.DataFrame
        Rows with the columns `by` and `weight`.
    by : str
        Column of the groups.
    weight : str
        Column to split by.

    Returns
    -------
    polars.DataFrame
        Columns `by`, `weight` and ``cost``, the largest weight first.
    """
    parts = weights.group_by(by).agg(pl.col(weight).sum()).sort(weight, by, descending=[True, False])
    return parts.with_columns(cost=pl.Series(split_amount(total, parts[weight].to_list()), dtype=CENTS_DTYPE))


def _order_lines(hours: pl.DataFrame) -> pl.DataFrame:
    """Add the tenant's printed name, and sort charge lines by the GPU-hours of the tenant, the largest first.

    Unallocated GPU-hours are last; lines of a tenant are sorted by GPU model, ownership and ledger bucket. A
    tenant with the printed name of the unallocated GPU-hours gets a suffix.
    """
    shown_name = (
        pl.when(pl.col("tenant") == UNALLOCATED_TENANT_LABEL).then(pl.lit(UNALLOCATED_TEAM))
        .when(pl.col("tenant") == UNALLOCATED_TEAM).then(pl.lit(f"{UNALLOCATED_TEAM} (tenant)"))
        .otherwise("tenant")
    )  # fmt: skip
    return (
        hours.with_columns(name=shown_name, last=pl.col("tenant") == UNALLOCATED_TENANT_LABEL)
        .with_columns(most=pl.col("gpu_hours").sum().over("name"))
        .sort(
            "last", "most", "name", "gpu_model", "ownership", pl.col("bucket").cast(pl.String),
            descending=[False, True, *[False] * 4],
        )
    )  # fmt: skip


def _line_costs(lines: pl.DataFrame, quantity: pl.Series, rates: Sequence[Rate]) -> list[Decimal]:
    """Round the costs of charge lines to the cent such that lines, tenants and buckets sum to their rounded costs.

    Parameters
    ----------
    lines : polars.DataFrame
        Charge lines: ``name``, ``gpu_model``, ``ownership``, ``bucket``, ``energy_kwh``.
    quantity : polars.Series
        Their GPU-hours, rounded. [GPU h]
    rates : sequence of Rate
        Their rates.
    """
    amounts = [
        hours * rate.price.value + (energy or 0.0) * rate.per_kwh
        for hours, energy, rate in zip(quantity, lines["energy_kwh"], rates, strict=True)
    ]
    sums = lines.select("name", cost=pl.Series(amounts, dtype=pl.Float64)).group_by("name", maintain_order=True).sum()
    totals = dict(zip(sums["name"], split_amount(round_money(math.fsum(amounts)), sums["cost"].to_list()), strict=True))
    places = zip(lines["name"], lines.select("gpu_model", "ownership", "bucket").rows(), strict=True)
    return [*split_table(totals, dict(zip(places, amounts, strict=True))).values()]


def _round_list_price(price: float) -> float:
    """Round a list price such that its product with a quantity of GPU-hours is exact in the type of money.

    An exchange rate gives a price any number of digits.

    Examples
    --------
    >>> _round_list_price(12.29 * 0.92), _round_list_price(12.29 / 1.08)
    (11.3068, 11.3796296296)
    """
    return round(float(f"{price:.12g}"), MONEY_DECIMAL_PLACES - AMOUNT_DECIMALS)


def _round_parts(values: pl.Series) -> pl.Series:
    """Round parts to six decimals such that they sum to the rounded total; nulls stay null."""
    known_values = [float(value) for value in values.drop_nulls()]
    parts = iter(split_amount(round_money(math.fsum(known_values), AMOUNT_DECIMALS), known_values))
    return pl.Series([None if value is None else float(next(parts)) for value in values], dtype=pl.Float64)
