"""Readers of AWS Cost and Usage Reports, and of bills in FOCUS."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.bills.bill_files_and_charge_lines import (
    BILL_DIALECT,
    assemble_bill,
    read_headers,
    select_delivered_files,
)
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.source_definition import has_header_columns, has_required_columns, register_sniffer
from gpuplanner.ingest.source_fields import Field, source_columns, source_values
from gpuplanner.ingest.typed_row_reader import read_rows

FIELD_BY_CUR_COLUMN = source_columns("cur")
"""Column of the legacy AWS Cost and Usage Report (CUR) → how it is parsed; :func:`to_cur2_name` gives its name in CUR
2.0."""

CUR_TAG_COLUMN_PREFIX_PATTERN = re.compile(r"^(?:resourceTags/|resource_tags_)")
"""Prefix of tag columns in the legacy AWS report, as CSV and as Parquet."""
CUR2_TAG_COLUMN = "resource_tags"
"""Column of CUR 2.0 (AWS) with all tags of a line."""
USER_TAG_PREFIX_PATTERN = re.compile(r"^(?:user:|user_)")
"""Prefix that AWS puts before the keys of tags that users created."""

CATEGORY_BY_LINE_TYPE = source_values("aws line type")
"""Type of a line of the AWS report, such as ``Usage`` → FOCUS charge category. A negation reverses the on-demand price
of what a savings plan covered: it is usage too, so that the two cancel out."""

_LINE_TYPE_EXPR = pl.col("line_type")
"""Type of a line of the AWS report, such as ``Usage`` or ``RIFee``."""


def _fill_zero(name: str) -> pl.Expr:
    """Expression for a column of amounts [billing currency] with 0 for missing values."""
    return pl.col(name).fill_null(0)


EFFECTIVE_COST_EXPR = (
    pl.when(_LINE_TYPE_EXPR == "SavingsPlanCoveredUsage")
    .then(pl.coalesce("planned", "BilledCost"))
    .when(_LINE_TYPE_EXPR == "DiscountedUsage")
    .then(pl.coalesce("reserved", "BilledCost"))
    .when(_LINE_TYPE_EXPR == "SavingsPlanRecurringFee")
    .then(_fill_zero("committed") - _fill_zero("used"))
    .when(_LINE_TYPE_EXPR == "RIFee")
    .then(_fill_zero("unused_upfront") + _fill_zero("unused_recurring"))
    .when(
        _LINE_TYPE_EXPR.is_in(["SavingsPlanNegation", "SavingsPlanUpfrontFee"])
        | ((_LINE_TYPE_EXPR == "Fee") & pl.col("reservation").is_not_null())
    )
    .then(pl.col("BilledCost") - pl.col("BilledCost"))
    .otherwise("BilledCost")
)
"""Amortised (effective) cost of a line of the AWS report [billing currency]: usage that a savings plan or reserved
instance covers carries its share of the fee of that commitment, and the lines of fees carry the unused rest [1]_.

References
----------
.. [1] AWS Well-Architected Labs, CUR Query Library: ``amortized_cost`` of the global queries.
"""

IS_COVERED_BY_COMMITMENT_EXPR = _LINE_TYPE_EXPR.is_in(["DiscountedUsage", "SavingsPlanCoveredUsage"])
"""Whether a line is usage that a reserved instance or savings plan covers."""
NO_EFFECTIVE_COST_CHECK = source_check(
    "aws: no effective cost", IS_COVERED_BY_COMMITMENT_EXPR & pl.coalesce("planned", "reserved").is_null()
)
"""Check that finds covered usage of which the report lacks the effective cost."""


def to_cur2_name(legacy: str) -> str:
    """Convert the name of a column of the legacy AWS report to its name in CUR 2.0.

    Examples
    --------
    >>> to_cur2_name("lineItem/UsageAmount"), to_cur2_name("reservation/ReservationARN")
    ('line_item_usage_amount', 'reservation_reservation_a_r_n')
    """
    return "_".join(re.sub(r"(?<!^)(?=[A-Z])", "_", part).lower() for part in legacy.split("/"))


def looks_like_cur(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like an AWS Cost and Usage Report, legacy or CUR 2.0."""
    needed = [name for name, field in FIELD_BY_CUR_COLUMN.items() if not field.optional]
    return has_header_columns(needed)(lines) or has_header_columns(map(to_cur2_name, needed))(lines)


@register_sniffer(looks_like_cur)
def read_cur(paths: Sequence[str | Path]) -> Dataset:
    r"""Read AWS Cost and Usage Reports, all legacy or all CUR 2.0.

    References
    ----------
    .. [1] AWS, Cost and Usage Reports user guide: data dictionary; AWS Data Exports user guide: CUR 2.0 table
       dictionary.

    Examples
    --------
    >>> import tempfile
    >>> names = [name for name, field in FIELD_BY_CUR_COLUMN.items() if not field.optional]
    >>> month = "2025-09-01T00:00:00Z,2025-10-01T00:00:00Z"
    >>> line = f"{month},1,2,Usage,{month},AmazonEC2,BoxUsage:p5.48xlarge,1,USD,55.04"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cur.csv"
    ...     _ = path.write_text(",".join(names) + "\n" + line + "\n")
    ...     read_cur([path]).table["x_InstanceType", "EffectiveCost"].row(0)[0]
    'p5.48xlarge'
    """
    delivery = select_delivered_files(paths)
    names = list(dict.fromkeys(name for file_columns in read_headers(delivery.files).values() for name in file_columns))
    is_legacy = any("/" in name for name in names)
    tags = [name for name in names if CUR_TAG_COLUMN_PREFIX_PATTERN.match(name)]
    columns = {name if is_legacy else to_cur2_name(name): field for name, field in FIELD_BY_CUR_COLUMN.items()}
    columns |= {name: Field(f"tag:{name}", nullable=True, optional=True) for name in [*tags, CUR2_TAG_COLUMN]}
    rows = read_rows(delivery.files, columns, source="cur", dialect=BILL_DIALECT)
    is_known = _LINE_TYPE_EXPR.is_in(list(CATEGORY_BY_LINE_TYPE))
    rows = rows.reject({f"LineItemType: not one of {', '.join(CATEGORY_BY_LINE_TYPE)}": ~is_known})
    usage_instance_type = pl.col("usage_type").str.extract(r":([a-z][a-z0-9-]*\.[a-z0-9-]+)$")
    rows = rows.with_columns(
        ProviderName=pl.lit("AWS"),
        ChargeCategory=_LINE_TYPE_EXPR.replace_strict(CATEGORY_BY_LINE_TYPE),
        ChargeClass=pl.when(_LINE_TYPE_EXPR == "Refund").then(pl.lit("Correction")),
        ServiceCategory=pl.when(pl.col("ServiceName") == "AmazonEC2").then(pl.lit("Compute")),
        x_InstanceType=pl.coalesce("x_InstanceType", usage_instance_type),
        PricingCategory=pl.when(IS_COVERED_BY_COMMITMENT_EXPR)
        .then(pl.lit("Committed"))
        .when(pl.col("usage_type").str.contains("SpotUsage"))
        .then(pl.lit("Dynamic"))
        .when(_LINE_TYPE_EXPR == "Usage")
        .then(pl.lit("Standard")),
        PricingQuantity=pl.when(_LINE_TYPE_EXPR != "SavingsPlanNegation").then("quantity"),
        PricingUnit=pl.coalesce("PricingUnit", pl.when(usage_instance_type.is_not_null()).then(pl.lit("Hrs"))),
        CommitmentDiscountId=pl.coalesce("savings_plan", "reservation"),
        CommitmentDiscountStatus=pl.when(IS_COVERED_BY_COMMITMENT_EXPR).then(pl.lit("Used")),
        EffectiveCost=EFFECTIVE_COST_EXPR,
        Tags=pl.coalesce(f"tag:{CUR2_TAG_COLUMN}", _collect_tags(tags)),
    )
    kind = "legacy report" if is_legacy or tags else "CUR 2.0"
    return assemble_bill(
        rows, delivery, source="cur", checks=[NO_EFFECTIVE_COST_CHECK], notes=[kind], tag_owner=USER_TAG_PREFIX_PATTERN
    )


def _collect_tags(columns: Sequence[str]) -> pl.Expr:
    """Expression for the tags of a line of the legacy report as a JSON object; null where it has none."""
    if not columns:
        return pl.lit(None, pl.String)
    tag_columns = [pl.col(f"tag:{name}").alias(CUR_TAG_COLUMN_PREFIX_PATTERN.sub("", name)) for name in columns]
    return pl.struct(tag_columns).map_elements(_tags_to_json, return_dtype=pl.String)


def _tags_to_json(tags: dict[str, str | None]) -> str | None:
    """Format tags as a JSON object; None without any."""
    present_tags = {name: value for name, value in tags.items() if value is not None}
    return json.dumps(present_tags) if present_tags else None


FIELD_BY_FOCUS_COLUMN = source_columns("focus")
"""FOCUS column → how it is parsed; those that are read, of the 43 of version 1.0 (57 of 1.2). ``x_`` columns are those
of AWS and Microsoft, and our own ``x_InstanceType``."""

NEW_COLUMNS_BY_FOCUS_VERSION = {
    "1.2": {"InvoiceId", "BillingAccountType", "SubAccountType", "PricingCurrency"},
    "1.1": {"SkuMeter", "SkuPriceDetails", "ServiceSubcategory", "CapacityReservationId"},
}
"""Version of FOCUS → columns that it introduced."""

PRICE_DETAIL_INSTANCE_TYPE_PATTERN = r'"(?:InstanceType|ServiceType|MachineType)"\s*:\s*"([^"]+)"'
"""Instance type in the FOCUS column ``SkuPriceDetails``, which is JSON."""
OCI_SHAPE_PATTERN = r"^((?:BM|VM)\.[A-Za-z0-9.]+)$"
"""Shape (instance type) of Oracle Cloud Infrastructure, such as ``BM.GPU.H100.8``."""
USAGE_TYPE_INSTANCE_PATTERN = r":((?:ml\.)?[a-z][a-z0-9-]*\.[a-z0-9-]+)$"
"""Instance type at the end of an AWS usage type, such as ``BoxUsage:p5.48xlarge``."""

INSTANCE_TYPE_EXPR = pl.coalesce(
    pl.col("x_InstanceType"),
    pl.col("SkuPriceDetails").str.extract(PRICE_DETAIL_INSTANCE_TYPE_PATTERN),
    pl.col("x_SkuDetails").str.extract(PRICE_DETAIL_INSTANCE_TYPE_PATTERN),
    pl.col("x_UsageType").str.extract(USAGE_TYPE_INSTANCE_PATTERN),
    pl.col("ResourceType").str.extract(OCI_SHAPE_PATTERN),
    pl.col("SkuMeter"),
    pl.col("x_SkuMeterName"),
)
"""Instance type of a line in FOCUS: from a column of its own (our charge tables), the price details (AWS, Microsoft),
the end of the usage type (AWS), the resource type (OCI), or the meter name (Microsoft)."""
ZONELESS_TIME_PATTERN = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[\",;]|$)"
"""A time without its offset in a line; by the standard all are UTC, and AWS omits the ``Z`` [1]_.

References
----------
.. [1] FinOps Foundation, FOCUS 1.0, Date/Time Format; AWS Data Exports, FOCUS 1.0 with AWS columns.
"""


@register_sniffer(has_required_columns(FIELD_BY_FOCUS_COLUMN))
def read_focus(paths: Sequence[str | Path]) -> Dataset:
    r"""Read bills in FOCUS.

    References
    ----------
    .. [1] FinOps Foundation, FinOps Open Cost and Usage Specification, versions 1.0 (2024), 1.1 (2024) and 1.2
       (2025): columns and their allowed values.

    Examples
    --------
    >>> import tempfile
    >>> month = "2025-09-01T00:00:00Z,2025-10-01T00:00:00Z"
    >>> line = f"{month},{month},1234,USD,Usage,98.32,98.32,98.32,Compute,Virtual Machines,1,Hours"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "bill.csv"
    ...     _ = path.write_text(",".join(list(FIELD_BY_FOCUS_COLUMN)[:14]) + "\n" + line + "\n")
    ...     read_focus([path]).summary()["BilledCost_USD"]
    '98.32'
    """
    delivery = select_delivered_files(paths)
    versions = {detect_focus_version(names): path for path, names in read_headers(delivery.files).items()}
    if len(versions) > 1:
        got = "; ".join(f"{path.name}: {version}" for version, path in sorted(versions.items()))
        todo = "Read each version on its own: exports of two versions may hold the same charges."
        raise TraceFormatError("focus", "files of one version", got, todo)
    rows = read_rows(delivery.files, FIELD_BY_FOCUS_COLUMN, source="focus", dialect=BILL_DIALECT)
    rows = rows.with_columns(x_InstanceType=INSTANCE_TYPE_EXPR)
    notes = [f"FOCUS {version}" for version in versions]
    zoneless = source_check("focus: no zone", pl.col("raw").str.contains(ZONELESS_TIME_PATTERN))
    return assemble_bill(rows, delivery, source="focus", checks=[zoneless], notes=notes)


def detect_focus_version(names: Collection[str]) -> str:
    """Detect the version of FOCUS by the columns that each introduced, in any letter case.

    Examples
    --------
    >>> detect_focus_version({"BilledCost", "SkuMeter"}), detect_focus_version({"BilledCost"})
    ('1.1', '1.0')
    """
    lower_names = {name.casefold() for name in names}
    lower_marks = (
        (version, {mark.casefold() for mark in lower_marks})
        for version, lower_marks in NEW_COLUMNS_BY_FOCUS_VERSION.items()
    )
    return next((version for version, version_marks in lower_marks if version_marks & lower_names), "1.0")
