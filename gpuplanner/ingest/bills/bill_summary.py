"""Cost and GPU-hours of a bill by month, tenant and instance type."""

from __future__ import annotations

import functools
import json
from typing import Literal

import polars as pl

from gpuplanner.core.schemas import DECIMAL
from gpuplanner.hardware.catalog import facts

GPU_HOUR_UNITS = r"(?i)^gpu[- ]?hours?$"
"""Unit of lines that count GPUs themselves."""

GPU_WORDS = (
    r"(?i)\b(?:gpus?|nvidia|tesla|instinct|accelerators?|[abhlv]\d00x?|gb[23]00|l40s?|l4|t4|mi\d\d\dx?)\b"
    r"|(?:^|[\s:.])(?:p[2-9]|g[3-9])[a-z]*\.[a-z0-9-]+"
)
"""What speaks of GPUs in a line of a bill: the words, names of GPU models, and the families of AWS."""
HOUR_UNITS = r"(?i)^(\d+ )?(?:h|hrs?|hours?)$"
"""Unit of lines that count hours of an instance; Microsoft prices blocks such as ``100 Hours``."""

MANAGED = "ml."
"""What SageMaker adds to the name of an instance type: it is the same instance."""
MARKET = r" (?:spot|low priority)$"
"""What Microsoft adds to the name of a meter for spare capacity; it is the same instance."""


@functools.cache
def instance_types() -> pl.DataFrame:
    """GPUs of each instance type of the catalogue; parts of boards where an instance has a vGPU.

    Examples
    --------
    >>> instance_types().filter(key="p5.48xlarge")["gpu_count"].item()
    8.0
    """
    key = instance_key(pl.col("instance_type")).alias("key")
    gpus = (pl.col("gpus") * pl.col("board_share")).alias("gpu_count")
    types = facts("instance_types").select(key, "gpu_model", gpus)
    prices = facts("gpu_prices").select(key, "gpu_model", pl.col("gpu_count").cast(pl.Float64))
    return pl.concat([prices, types]).unique("key", keep="first").sort("key")


def instance_key(name: pl.Expr) -> pl.Expr:
    """Name of an instance type without what providers vary: case, blanks, the words Standard and ml., spot meters.

    Examples
    --------
    >>> names = pl.Series(["ND96isr H100 v5 Spot", "Standard_ND96isr_H100_v5"])
    >>> pl.select(key=instance_key(pl.lit(names)))["key"].unique().to_list()
    ['nd96isr_h100_v5']
    """
    plain = name.str.to_lowercase().str.replace(MARKET, "").str.replace_all(" ", "_", literal=True)
    return plain.str.strip_prefix("standard_").str.strip_prefix(MANAGED)


def gpu_lines(charges: pl.DataFrame) -> pl.DataFrame:
    """Say of each charge line which GPUs it is for and how many GPU-hours it counts.

    Only usage holds GPUs: a fee, a tax or a credit for a GPU instance moves the cost, not the hours. An instance
    type that the catalogue does not have is never guessed at; see :func:`unknown_types`.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        `charges` with ``gpu_model`` and ``gpu_count`` (null where no GPU is known), ``hours`` of the instance
        (null where the unit is none of time), ``gpu_hours`` [GPU h] held, and ``unused_gpu_hours`` [GPU h] of a
        commitment that were paid and not used; both null where not known.

    Examples
    --------
    >>> from decimal import Decimal
    >>> line = {"x_InstanceType": "p5.48xlarge", "PricingUnit": "Hrs", "PricingQuantity": Decimal("2.5")}
    >>> line |= {"ChargeCategory": "Usage", "CommitmentDiscountStatus": None}
    >>> gpu_lines(pl.DataFrame([line], schema_overrides={"CommitmentDiscountStatus": pl.String}))["gpu_hours"].item()
    20.0
    """
    unit, quantity = pl.col("PricingUnit"), pl.col("PricingQuantity").cast(pl.Float64)
    block = unit.str.extract(HOUR_UNITS).str.strip_chars().cast(pl.Float64).fill_null(1.0)
    keyed = charges.with_columns(key=instance_key(pl.col("x_InstanceType")))
    known = keyed.join(instance_types(), on="key", how="left", maintain_order="left")
    counted = known.with_columns(hours=pl.when(unit.str.contains(HOUR_UNITS)).then(quantity * block))
    of_gpus = pl.col("hours") * pl.col("gpu_count")
    held = pl.when(unit.str.contains(GPU_HOUR_UNITS)).then(quantity).otherwise(of_gpus)
    held = pl.when(pl.col("ChargeCategory") == "Usage").then(held)
    unused = (pl.col("CommitmentDiscountStatus") == "Unused").fill_null(False)
    hours = {"gpu_hours": pl.when(~unused).then(held), "unused_gpu_hours": pl.when(unused).then(held)}
    return counted.with_columns(**hours).drop("key")


def looks_like_gpus() -> pl.Expr:
    """Whether the instance type, the unit or the description of a charge line speaks of GPUs.

    Examples
    --------
    >>> lines = pl.DataFrame({"x_InstanceType": ["ml.g9.xlarge", "m5.large"], "PricingUnit": "Hrs"})
    >>> lines.with_columns(ChargeDescription=pl.lit("x")).select(looks_like_gpus()).to_series().to_list()
    [True, False]
    """
    columns = ("x_InstanceType", "PricingUnit", "ChargeDescription")
    texts = pl.concat_str(columns, separator=" ", ignore_nulls=True)
    return texts.str.contains(GPU_WORDS).fill_null(value=False)


def unknown_types(charges: pl.DataFrame) -> pl.DataFrame:
    """Instance types that the catalogue does not have: if one holds GPUs, its hours are missing everywhere.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        ``x_InstanceType``, ``BillingCurrency``, ``lines``, ``hours`` (null where no unit is one of time) and
        ``BilledCost`` (exact), of usage in the service category Compute, or of which instance type, unit or
        description speak of GPUs; dearest first within a currency.
    """
    computes = (pl.col("ServiceCategory") == "Compute") & pl.col("x_InstanceType").is_not_null()
    lines = gpu_lines(charges).filter(
        pl.col("ChargeCategory") == "Usage",
        computes.fill_null(value=False) | looks_like_gpus(),
        pl.col("gpu_count").is_null(),
    )
    lines = lines.with_columns(pl.coalesce("x_InstanceType", "ChargeDescription", "SkuId"))
    return (
        lines.group_by("x_InstanceType", "BillingCurrency")
        .agg(
            lines=pl.len(),
            hours=pl.when(pl.col("hours").is_not_null().any()).then(pl.col("hours").sum()),
            BilledCost=pl.col("BilledCost").sum(),
        )
        .sort("BillingCurrency", "BilledCost", "x_InstanceType", descending=[False, True, False])
    )


UNTAGGED = "untagged"
"""Tenant of lines without the tag that names tenants: shown, never spread over the others."""


def tag_pairs(charges: pl.DataFrame) -> pl.DataFrame:
    """Tags as pairs, one a row.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        ``charge`` (0-based row of `charges`), ``key``, ``value``.

    Examples
    --------
    >>> tag_pairs(pl.DataFrame({"Tags": ['{"app":"x","team":"a"}', None]})).rows()
    [(0, 'app', 'x'), (0, 'team', 'a')]
    """
    pairs = [
        (number, key, value)
        for number, text in enumerate(charges["Tags"])
        if text is not None
        for key, value in json.loads(text).items()
    ]
    schema = {"charge": pl.UInt32, "key": pl.String, "value": pl.String}
    return pl.DataFrame(pairs, schema=schema, orient="row")


def with_tenants(charges: pl.DataFrame, tag: str | None = None) -> pl.DataFrame:
    """Name the tenant of each charge line.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.
    tag : str, optional
        Key of the tag that names tenants (case matters); :data:`UNTAGGED` where a line has none. Without it,
        the tenant is the name of the sub-account, else its id, else the billing account.

    Returns
    -------
    polars.DataFrame
        `charges` with ``tenant``.

    Examples
    --------
    >>> with_tenants(pl.DataFrame({"Tags": ['{"team":"a"}', '{"Team":"b"}']}), "team")["tenant"].to_list()
    ['a', 'untagged']
    """
    if tag is None:
        return charges.with_columns(tenant=pl.coalesce("SubAccountName", "SubAccountId", "BillingAccountId"))
    named = tag_pairs(charges).filter(pl.col("key") == tag, pl.col("value") != "")
    named = named.select("charge", tenant="value")
    lines = charges.with_row_index("charge")
    joined = lines.join(named, on="charge", how="left", maintain_order="left")
    return joined.with_columns(pl.col("tenant").fill_null(UNTAGGED)).drop("charge")


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
        Key of the tag that names tenants, see :func:`gpuplanner.ingest.bills.bill_summary.with_tenants`.
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
    hours = pl.col("gpu_hours", "unused_gpu_hours").sum()
    summary = lines.group_by(keys).agg(pl.len().alias("lines"), hours, **_sums())
    return summary.sort(keys, nulls_last=True)


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
