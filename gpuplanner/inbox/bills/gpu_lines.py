"""Which charge lines are for GPUs, how many, and for how long."""

from __future__ import annotations

import functools

import polars as pl

from gpuplanner.catalog import facts

GPU_HOUR_UNITS = r"(?i)^gpu[- ]?hours?$"
"""Unit of lines that count GPUs themselves."""

HOUR_UNITS = r"(?i)^(\d+ )?(?:h|hrs?|hours?)$"
"""Unit of lines that count hours of an instance; Microsoft prices blocks such as ``100 Hours``."""

MARKET = r" (?:spot|low priority)$"
"""What Microsoft adds to the name of a meter for spare capacity; it is the same instance."""


@functools.cache
def instance_types() -> pl.DataFrame:
    """GPUs of each instance type of the catalogue.

    Examples
    --------
    >>> instance_types().filter(key="p5.48xlarge")["gpu_count"].item()
    8
    """
    prices = facts("gpu_prices").select(
        key=instance_key(pl.col("instance_type")),
        gpu_model=pl.col("gpu_model"),
        gpu_count=pl.col("gpu_count"),
    )
    return prices.unique().sort("key")


def instance_key(name: pl.Expr) -> pl.Expr:
    """Name of an instance type without what providers vary: case, blanks, the word Standard, spot meters.

    Examples
    --------
    >>> names = pl.Series(["ND96isr H100 v5 Spot", "Standard_ND96isr_H100_v5"])
    >>> pl.select(key=instance_key(pl.lit(names)))["key"].unique().to_list()
    ['nd96isr_h100_v5']
    """
    plain = name.str.to_lowercase().str.replace(MARKET, "").str.replace_all(" ", "_", literal=True)
    return plain.str.strip_prefix("standard_")


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
    counted = known.with_columns(
        hours=pl.when(unit.str.contains(HOUR_UNITS)).then(quantity * block),
    )
    held = (
        pl.when(unit.str.contains(GPU_HOUR_UNITS))
        .then(quantity)
        .otherwise(pl.col("hours") * pl.col("gpu_count"))
    )
    usage = pl.col("ChargeCategory") == "Usage"
    unused = (pl.col("CommitmentDiscountStatus") == "Unused").fill_null(False)
    return counted.with_columns(
        gpu_hours=pl.when(usage & ~unused).then(held), unused_gpu_hours=pl.when(usage & unused).then(held)
    ).drop("key")


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
        ``BilledCost`` (exact), of usage in the service category Compute; dearest first within a currency.
    """
    lines = gpu_lines(charges).filter(
        (pl.col("ChargeCategory") == "Usage")
        & (pl.col("ServiceCategory") == "Compute")
        & pl.col("x_InstanceType").is_not_null()
        & pl.col("gpu_count").is_null()
    )
    return (
        lines.group_by("x_InstanceType", "BillingCurrency")
        .agg(
            lines=pl.len(),
            hours=pl.when(pl.col("hours").is_not_null().any()).then(pl.col("hours").sum()),
            BilledCost=pl.col("BilledCost").sum(),
        )
        .sort("BillingCurrency", "BilledCost", "x_InstanceType", descending=[False, True, False])
    )
