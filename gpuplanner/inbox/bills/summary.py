"""Cost and GPU-hours of a bill by month, tenant and instance type; sums are the bill's, to the last digit."""

from __future__ import annotations

from typing import Literal

import polars as pl

from gpuplanner.inbox.bills.gpu_lines import gpu_lines
from gpuplanner.inbox.bills.tenants import with_tenants
from gpuplanner.schemas.columns import DECIMAL

COSTS = ("BilledCost", "EffectiveCost", "ListCost")

Period = Literal["billing", "charge"]
"""``billing``: the month in which a line is invoiced; ``charge``: the month of what is charged."""


def summarise(charges: pl.DataFrame, *, tag: str | None = None, period: Period = "billing") -> pl.DataFrame:
    """Cost and GPU-hours by month, tenant, instance type and charge category, each currency on its own.

    Every line of the bill is in exactly one row, GPUs or not, so that the costs of each currency sum to the bill.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.
    tag : str, optional
        Key of the tag that names tenants, see :func:`gpuplanner.inbox.bills.with_tenants`.
    period : {"billing", "charge"}
        Which period a month is of. Months are those of UTC, in which bills are made.

    Returns
    -------
    polars.DataFrame
        ``month``, ``tenant``, ``BillingCurrency``, ``ChargeCategory``, ``gpu_model`` and ``x_InstanceType`` (null
        for lines that are for no known GPU), ``lines``, ``gpu_hours`` and ``unused_gpu_hours`` [GPU h], and the
        exact ``BilledCost``, ``EffectiveCost`` and ``ListCost`` (lines without a list cost add nothing).
    """
    start = pl.col("BillingPeriodStart" if period == "billing" else "ChargePeriodStart")
    lines = with_tenants(gpu_lines(charges), tag).with_columns(
        month=start.dt.strftime("%Y-%m"),
        x_InstanceType=pl.when(pl.col("gpu_count").is_not_null()).then("x_InstanceType"),
    )
    keys = ["month", "tenant", "BillingCurrency", "ChargeCategory", "gpu_model", "x_InstanceType"]
    return (
        lines.group_by(keys)
        .agg(
            lines=pl.len(),
            gpu_hours=pl.col("gpu_hours").sum(),
            unused_gpu_hours=pl.col("unused_gpu_hours").sum(),
            **_sums(),
        )
        .sort(keys, nulls_last=True)
    )


def totals(charges: pl.DataFrame) -> pl.DataFrame:
    """Exact costs of each currency.

    Parameters
    ----------
    charges : polars.DataFrame
        Charge lines, or a summary of them.

    Returns
    -------
    polars.DataFrame
        ``BillingCurrency`` and the three costs, in the order of the currencies.

    Examples
    --------
    >>> from decimal import Decimal
    >>> lines = {"BillingCurrency": ["EUR", "EUR"], **{cost: [Decimal("0.1"), Decimal("0.2")] for cost in COSTS}}
    >>> totals(pl.DataFrame(lines))["BilledCost"].item() == Decimal("0.3")
    True
    """
    return charges.group_by("BillingCurrency").agg(**_sums()).sort("BillingCurrency")


def difference(parts: pl.DataFrame, charges: pl.DataFrame) -> pl.DataFrame:
    """By how much the costs of a summary miss those of its bill: zeros, or something was lost.

    Parameters
    ----------
    parts : polars.DataFrame
        A summary.
    charges : polars.DataFrame
        The lines that it was made of.

    Returns
    -------
    polars.DataFrame
        ``BillingCurrency`` and the three costs, parts - charges; a currency that either lacks counts as zero
        there.
    """
    negative = totals(charges).with_columns(-pl.col(*COSTS))
    return totals(pl.concat([totals(parts), negative]))


def _sums() -> dict[str, pl.Expr]:
    return {cost: pl.col(cost).cast(DECIMAL).sum() for cost in COSTS}
