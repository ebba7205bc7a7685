"""Summary of bills: cost and GPU-hours by month, tenant and instance type."""

from __future__ import annotations

import functools
import json
from typing import Literal

import polars as pl

from gpuplanner.core.schemas import MONEY_DTYPE
from gpuplanner.hardware.catalog import facts

GPU_HOUR_UNIT_PATTERN = r"(?i)^gpu[- ]?hours?$"
"""``PricingUnit`` of charge lines whose quantity is in GPU-hours."""

GPU_TEXT_PATTERN = (
    r"(?i)\b(?:gpus?|nvidia|tesla|instinct|accelerators?|[abhlv]\d00x?|gb[23]00|l40s?|l4|t4|mi\d\d\dx?)\b"
    r"|(?:^|[\s:.])(?:p[2-9]|g[3-9])[a-z]*\.[a-z0-9-]+"
)
"""Text in a bill that names GPUs: the word, GPU models, and the instance families of AWS."""
HOUR_UNIT_PATTERN = r"(?i)^(\d+ )?(?:h|hrs?|hours?)$"
"""``PricingUnit`` of charge lines whose quantity is in instance hours; Microsoft prices blocks such as ``100 Hours``.
"""

SAGEMAKER_INSTANCE_TYPE_PREFIX = "ml."
"""Prefix of the instance types of AWS SageMaker, as in ``ml.p5.48xlarge``."""
SPOT_METER_SUFFIX_PATTERN = r" (?:spot|low priority)$"
"""Suffix of Microsoft's meter names for spot capacity of the same instance type."""


@functools.cache
def read_instance_types() -> pl.DataFrame:
    """Read the catalogue's instance types with GPUs: ``key`` (normalised name), ``gpu_model``, ``gpu_count`` [GPUs].

    The count is a fraction where an instance has a vGPU.

    Examples
    --------
    >>> read_instance_types().filter(key="p5.48xlarge")["gpu_count"].item()
    8.0
    """
    key = normalise_instance_type(pl.col("instance_type")).alias("key")
    gpus = (pl.col("gpus") * pl.col("board_share")).alias("gpu_count")
    types = facts("instance_types").select(key, "gpu_model", gpus)
    prices = facts("gpu_prices").select(key, "gpu_model", pl.col("gpu_count").cast(pl.Float64))
    return pl.concat([prices, types]).unique("key", keep="first").sort("key")


def normalise_instance_type(name: pl.Expr) -> pl.Expr:
    """Expression for an instance type name in the spelling of the catalogue.

    It unifies case and blanks, and drops the words Standard and ml. and the suffix of spot meters.

    Examples
    --------
    >>> names = pl.Series(["ND96isr H100 v5 Spot", "Standard_ND96isr_H100_v5"])
    >>> pl.select(key=normalise_instance_type(pl.lit(names)))["key"].unique().to_list()
    ['nd96isr_h100_v5']
    """
    plain = name.str.to_lowercase().str.replace(SPOT_METER_SUFFIX_PATTERN, "").str.replace_all(" ", "_", literal=True)
    return plain.str.strip_prefix("standard_").str.strip_prefix(SAGEMAKER_INSTANCE_TYPE_PREFIX)


def add_gpu_hours(charges: pl.DataFrame) -> pl.DataFrame:
    """Add GPU model, GPU count and GPU-hours to charge lines.

    Only usage has GPU-hours: a fee, a tax or a credit for a GPU instance changes the cost, not the hours. An instance
    type that the catalogue lacks is never guessed; see :func:`find_unknown_types`.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        `charges` with ``gpu_model`` and ``gpu_count`` (null without a known GPU), ``hours`` of the instance [h] (null
        where the unit is none of time), allocated ``gpu_hours`` [GPU h], and ``unused_gpu_hours`` [GPU h] of a
        commitment that were paid and not used; both null where unknown.

    Examples
    --------
    >>> from decimal import Decimal
    >>> line = {"x_InstanceType": "p5.48xlarge", "PricingUnit": "Hrs", "PricingQuantity": Decimal("2.5")}
    >>> line |= {"ChargeCategory": "Usage", "CommitmentDiscountStatus": None}
    >>> charges = pl.DataFrame([line], schema_overrides={"CommitmentDiscountStatus": pl.String})
    >>> add_gpu_hours(charges)["gpu_hours"].item()
    20.0
    """
    unit, quantity = pl.col("PricingUnit"), pl.col("PricingQuantity").cast(pl.Float64)
    hours_per_unit = unit.str.extract(HOUR_UNIT_PATTERN).str.strip_chars().cast(pl.Float64).fill_null(1.0)
    keyed_lines = charges.with_columns(key=normalise_instance_type(pl.col("x_InstanceType")))
    typed_lines = keyed_lines.join(read_instance_types(), on="key", how="left", maintain_order="left")
    line_hours = pl.when(unit.str.contains(HOUR_UNIT_PATTERN)).then(quantity * hours_per_unit)
    counted_lines = typed_lines.with_columns(hours=line_hours)
    instance_gpu_hours = pl.col("hours") * pl.col("gpu_count")
    line_gpu_hours = pl.when(unit.str.contains(GPU_HOUR_UNIT_PATTERN)).then(quantity).otherwise(instance_gpu_hours)
    line_gpu_hours = pl.when(pl.col("ChargeCategory") == "Usage").then(line_gpu_hours)
    is_unused = (pl.col("CommitmentDiscountStatus") == "Unused").fill_null(False)
    used, unused = (pl.when(condition).then(line_gpu_hours) for condition in (~is_unused, is_unused))
    return counted_lines.with_columns(gpu_hours=used, unused_gpu_hours=unused).drop("key")


def mentions_gpus() -> pl.Expr:
    """Expression for whether the instance type, unit or description of a charge line mentions GPUs.

    Examples
    --------
    >>> lines = pl.DataFrame({"x_InstanceType": ["ml.g9.xlarge", "m5.large"], "PricingUnit": "Hrs"})
    >>> lines.with_columns(ChargeDescription=pl.lit("x")).select(mentions_gpus()).to_series().to_list()
    [True, False]
    """
    columns = ("x_InstanceType", "PricingUnit", "ChargeDescription")
    texts = pl.concat_str(columns, separator=" ", ignore_nulls=True)
    return texts.str.contains(GPU_TEXT_PATTERN).fill_null(value=False)


def find_unknown_types(charges: pl.DataFrame) -> pl.DataFrame:
    """Find usage of GPUs, or of instance types that the catalogue lacks, whose GPU-hours are not known.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.

    Returns
    -------
    polars.DataFrame
        ``x_InstanceType`` (else the description or SKU of the line), ``BillingCurrency``, ``lines``, ``hours`` [h]
        (null where no unit is one of time) and ``BilledCost`` (exact), of usage in the service category Compute, or
        whose instance type, unit or description mentions GPUs; most expensive first within a currency.
    """
    is_compute = (pl.col("ServiceCategory") == "Compute") & pl.col("x_InstanceType").is_not_null()
    lines = add_gpu_hours(charges).filter(
        pl.col("ChargeCategory") == "Usage",
        is_compute.fill_null(value=False) | mentions_gpus(),
        pl.col("gpu_count").is_null(),
        pl.coalesce("gpu_hours", "unused_gpu_hours").is_null(),
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


UNTAGGED_TENANT = "untagged"
"""Tenant of charge lines without the tag that names tenants: shown, never spread over the others."""


def list_tag_pairs(charges: pl.DataFrame) -> pl.DataFrame:
    """List the tags of charge lines as pairs, one per row.

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
    >>> list_tag_pairs(pl.DataFrame({"Tags": ['{"app":"x","team":"a"}', None]})).rows()
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


def add_tenants(charges: pl.DataFrame, tag: str | None = None) -> pl.DataFrame:
    """Add the tenant of each charge line.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.
    tag : str, optional
        Key of the tag that names tenants (case matters); :data:`UNTAGGED_TENANT` where a line lacks it. Without it, the
        tenant is the name of the sub-account, else its id, else the billing account.

    Returns
    -------
    polars.DataFrame
        `charges` with ``tenant``.

    Examples
    --------
    >>> add_tenants(pl.DataFrame({"Tags": ['{"team":"a"}', '{"Team":"b"}']}), "team")["tenant"].to_list()
    ['a', 'untagged']
    """
    if tag is None:
        return charges.with_columns(tenant=pl.coalesce("SubAccountName", "SubAccountId", "BillingAccountId"))
    tenant_tags = list_tag_pairs(charges).filter(pl.col("key") == tag, pl.col("value") != "")
    tenant_tags = tenant_tags.select("charge", tenant="value")
    lines = charges.with_row_index("charge")
    joined = lines.join(tenant_tags, on="charge", how="left", maintain_order="left")
    return joined.with_columns(pl.col("tenant").fill_null(UNTAGGED_TENANT)).drop("charge")


COST_COLUMNS = ("BilledCost", "EffectiveCost", "ListCost")
"""FOCUS columns of billed, effective and list cost, in the billing currency."""

Period = Literal["billing", "charge"]
"""Which month a charge line belongs to: ``billing``, that in which it is invoiced, or ``charge``, that of the charged
use."""


def summarise_bill(charges: pl.DataFrame, *, tag: str | None = None, period: Period = "billing") -> pl.DataFrame:
    """Sum cost and GPU-hours by month, tenant, instance type and charge category, separately for each currency.

    Every line of the bill is in exactly one row, with or without GPUs, so that the costs of each currency sum to the
    bill.

    Parameters
    ----------
    charges : polars.DataFrame
        Table ``schemas.TABLES["charges"]``.
    tag : str, optional
        Key of the tag that names tenants, see :func:`gpuplanner.ingest.bills.bill_summary.add_tenants`.
    period : {"billing", "charge"}
        Period that gives the month, in UTC as bills are.

    Returns
    -------
    polars.DataFrame
        ``month``, ``tenant``, ``BillingCurrency``, ``ChargeCategory``, ``gpu_model`` and ``x_InstanceType`` (null for
        lines without a known GPU), ``lines``, ``gpu_hours`` and ``unused_gpu_hours`` [GPU h], and the exact
        ``BilledCost``, ``EffectiveCost`` and ``ListCost`` (lines without a list cost add nothing).
    """
    start = pl.col("BillingPeriodStart" if period == "billing" else "ChargePeriodStart")
    lines = add_tenants(add_gpu_hours(charges), tag).with_columns(
        month=start.dt.strftime("%Y-%m"),
        x_InstanceType=pl.when(pl.col("gpu_count").is_not_null()).then("x_InstanceType"),
    )
    keys = ["month", "tenant", "BillingCurrency", "ChargeCategory", "gpu_model", "x_InstanceType"]
    hours = pl.col("gpu_hours", "unused_gpu_hours").sum()
    summary = lines.group_by(keys, maintain_order=True).agg(pl.len().alias("lines"), hours, **_cost_sums())
    return summary.sort(keys, nulls_last=True)


def sum_costs(charges: pl.DataFrame) -> pl.DataFrame:
    """Sum the costs of each currency exactly.

    Parameters
    ----------
    charges : polars.DataFrame
        Charge lines, or a summary of them.

    Returns
    -------
    polars.DataFrame
        ``BillingCurrency`` and the three costs, sorted by currency.

    Examples
    --------
    >>> from decimal import Decimal
    >>> lines = {"BillingCurrency": ["EUR", "EUR"], **{cost: [Decimal("0.1"), Decimal("0.2")] for cost in COST_COLUMNS}}
    >>> sum_costs(pl.DataFrame(lines))["BilledCost"].item() == Decimal("0.3")
    True
    """
    return charges.group_by("BillingCurrency").agg(**_cost_sums()).sort("BillingCurrency")


def compare_costs(summary: pl.DataFrame, charges: pl.DataFrame) -> pl.DataFrame:
    """Compute the difference between the costs of a summary and of its bill: zeros unless something was lost.

    Parameters
    ----------
    summary : polars.DataFrame
        A summary.
    charges : polars.DataFrame
        The lines that it was made of.

    Returns
    -------
    polars.DataFrame
        ``BillingCurrency`` and the three costs, summary - charges; a currency that either lacks counts as zero there.
    """
    negative = sum_costs(charges).with_columns(-pl.col(*COST_COLUMNS))
    return sum_costs(pl.concat([sum_costs(summary), negative]))


def _cost_sums() -> dict[str, pl.Expr]:
    """Expressions that sum the columns :data:`COST_COLUMNS` exactly."""
    return {cost: pl.col(cost).cast(MONEY_DTYPE).sum() for cost in COST_COLUMNS}
