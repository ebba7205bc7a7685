"""AWS Cost and Usage Reports, and bills in FOCUS."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.bills.charge_lines import BILL, assemble_bill, delivered, headers
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.row_reader import read_rows
from gpuplanner.ingest.source_definition import columns_of, header_has, looks
from gpuplanner.ingest.source_fields import Field, source_columns

CUR_COLUMNS = source_columns("cur")
"""Legacy names; :func:`cur2_name` gives those of CUR 2.0."""

TAG = re.compile(r"^(?:resourceTags/|resource_tags_)")
"""What the names of columns of tags begin with in the legacy report, as CSV and as Parquet."""
TAGS = "resource_tags"
"""Column of CUR 2.0 that holds all tags of a line."""
TAG_OWNER = re.compile(r"^(?:user:|user_)")
"""Tags that users made carry this in front."""

CATEGORIES = {
    **dict.fromkeys(("Usage", "DiscountedUsage", "SavingsPlanCoveredUsage", "SavingsPlanNegation"), "Usage"),
    **dict.fromkeys(("Fee", "RIFee", "SavingsPlanRecurringFee", "SavingsPlanUpfrontFee"), "Purchase"),
    "Tax": "Tax",
    "Credit": "Credit",
    **dict.fromkeys(
        (
            *("Refund", "Discount", "BundledDiscount", "EdpDiscount", "PrivateRateDiscount"),
            *("RiVolumeDiscount", "SppDiscount", "DistributorDiscount"),
        ),
        "Adjustment",
    ),
}
"""Type of a line → FOCUS charge category. A negation takes back the on-demand price of what a savings plan covered:
it stands with the usage, so that the two cancel out there."""

_LINE = pl.col("line_type")


def _zero(name: str) -> pl.Expr:
    return pl.col(name).fill_null(0)


EFFECTIVE_COST = (
    pl.when(_LINE == "SavingsPlanCoveredUsage")
    .then(pl.coalesce("planned", "BilledCost"))
    .when(_LINE == "DiscountedUsage")
    .then(pl.coalesce("reserved", "BilledCost"))
    .when(_LINE == "SavingsPlanRecurringFee")
    .then(_zero("committed") - _zero("used"))
    .when(_LINE == "RIFee")
    .then(_zero("unused_upfront") + _zero("unused_recurring"))
    .when(
        _LINE.is_in(["SavingsPlanNegation", "SavingsPlanUpfrontFee"])
        | ((_LINE == "Fee") & pl.col("reservation").is_not_null())
    )
    .then(pl.col("BilledCost") - pl.col("BilledCost"))
    .otherwise("BilledCost")
)
"""Amortised cost: usage under a commitment carries its share, and fees keep what was not used [1]_.

References
----------
.. [1] AWS Well-Architected Labs, CUR Query Library: ``amortized_cost`` of the global queries.
"""

IS_COVERED = _LINE.is_in(["DiscountedUsage", "SavingsPlanCoveredUsage"])
CHECK = source_check("aws: no effective cost", IS_COVERED & pl.coalesce("planned", "reserved").is_null())


def cur2_name(legacy: str) -> str:
    """Name of a legacy column in CUR 2.0.

    Examples
    --------
    >>> cur2_name("lineItem/UsageAmount"), cur2_name("reservation/ReservationARN")
    ('line_item_usage_amount', 'reservation_reservation_a_r_n')
    """
    return "_".join(re.sub(r"(?<!^)(?=[A-Z])", "_", part).lower() for part in legacy.split("/"))


def looks_like_cur(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like a report, legacy or CUR 2.0."""
    needed = [name for name, field in CUR_COLUMNS.items() if not field.optional]
    return header_has(needed)(lines) or header_has(map(cur2_name, needed))(lines)


@looks(looks_like_cur)
def read_cur(paths: Sequence[str | Path]) -> Dataset:
    r"""Read AWS Cost and Usage Reports, all legacy or all CUR 2.0.

    References
    ----------
    .. [1] AWS, Cost and Usage Reports user guide: data dictionary; AWS Data Exports user guide: CUR 2.0 table
       dictionary.

    Examples
    --------
    >>> import tempfile
    >>> names = [name for name, field in CUR_COLUMNS.items() if not field.optional]
    >>> month = "2025-09-01T00:00:00Z,2025-10-01T00:00:00Z"
    >>> line = f"{month},1,2,Usage,{month},AmazonEC2,BoxUsage:p5.48xlarge,1,USD,55.04"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cur.csv"
    ...     _ = path.write_text(",".join(names) + "\n" + line + "\n")
    ...     read_cur([path]).table["x_InstanceType", "EffectiveCost"].row(0)[0]
    'p5.48xlarge'
    """
    delivery = delivered(paths)
    names = list(dict.fromkeys(name for found in headers(delivery.files).values() for name in found))
    slashes = any("/" in name for name in names)
    tags = [name for name in names if TAG.match(name)]
    columns = {name if slashes else cur2_name(name): field for name, field in CUR_COLUMNS.items()}
    columns |= {name: Field(f"tag:{name}", nullable=True, optional=True) for name in [*tags, TAGS]}
    rows = read_rows(delivery.files, columns, source="cur", dialect=BILL)
    rows = rows.reject({f"LineItemType: not one of {', '.join(CATEGORIES)}": ~_LINE.is_in(list(CATEGORIES))})
    own_type = pl.col("usage_type").str.extract(r":([a-z][a-z0-9-]*\.[a-z0-9-]+)$")
    rows = rows.with_columns(
        ProviderName=pl.lit("AWS"),
        ChargeCategory=_LINE.replace_strict(CATEGORIES),
        ChargeClass=pl.when(_LINE == "Refund").then(pl.lit("Correction")),
        ServiceCategory=pl.when(pl.col("ServiceName") == "AmazonEC2").then(pl.lit("Compute")),
        x_InstanceType=pl.coalesce("x_InstanceType", own_type),
        PricingCategory=pl.when(IS_COVERED)
        .then(pl.lit("Committed"))
        .when(pl.col("usage_type").str.contains("SpotUsage"))
        .then(pl.lit("Dynamic"))
        .when(_LINE == "Usage")
        .then(pl.lit("Standard")),
        PricingQuantity=pl.when(_LINE != "SavingsPlanNegation").then("quantity"),
        PricingUnit=pl.coalesce("PricingUnit", pl.when(own_type.is_not_null()).then(pl.lit("Hrs"))),
        CommitmentDiscountId=pl.coalesce("savings_plan", "reservation"),
        CommitmentDiscountStatus=pl.when(IS_COVERED).then(pl.lit("Used")),
        EffectiveCost=EFFECTIVE_COST,
        Tags=pl.coalesce(f"tag:{TAGS}", _tags(tags)),
    )
    kind = "legacy report" if slashes or tags else "CUR 2.0"
    return assemble_bill(rows, delivery, source="cur", checks=[CHECK], notes=[kind], tag_owner=TAG_OWNER)


def _tags(columns: Sequence[str]) -> pl.Expr:
    """Tags of the legacy report, a column each, as a JSON object; null where a line has none."""
    if not columns:
        return pl.lit(None, pl.String)
    each = [pl.col(f"tag:{name}").alias(TAG.sub("", name)) for name in columns]
    return pl.struct(each).map_elements(_object, return_dtype=pl.String)


def _object(tags: dict[str, str | None]) -> str | None:
    given = {name: value for name, value in tags.items() if value is not None}
    return json.dumps(given) if given else None


FOCUS_COLUMNS = source_columns("focus")
"""What is read of the 43 columns of version 1.0 (57 of 1.2); ``x_`` columns are those of AWS and Microsoft, and our
own ``x_InstanceType``."""

VERSION_MARKS = {
    "1.2": {"InvoiceId", "BillingAccountType", "SubAccountType", "PricingCurrency"},
    "1.1": {"SkuMeter", "SkuPriceDetails", "ServiceSubcategory", "CapacityReservationId"},
}
"""Columns that came with a version."""

DETAIL = r'"(?:InstanceType|ServiceType|MachineType)"\s*:\s*"([^"]+)"'
SHAPE = r"^((?:BM|VM)\.[A-Za-z0-9.]+)$"
USAGE = r":((?:ml\.)?[a-z][a-z0-9-]*\.[a-z0-9-]+)$"

INSTANCE_TYPE = pl.coalesce(
    pl.col("x_InstanceType"),
    pl.col("SkuPriceDetails").str.extract(DETAIL),
    pl.col("x_SkuDetails").str.extract(DETAIL),
    pl.col("x_UsageType").str.extract(USAGE),
    pl.col("ResourceType").str.extract(SHAPE),
    pl.col("SkuMeter"),
    pl.col("x_SkuMeterName"),
)
"""Where the instance type stands: in a column of its own (our tables of charges), in the details of the price (AWS,
Microsoft), at the end of the usage type (AWS), in the type of the resource (OCI), in the name of the meter
(Microsoft)."""
ZONELESS = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[\",;]|$)"
"""A time without its offset in a line; by the standard all are UTC, and AWS leaves the ``Z`` out [1]_.

References
----------
.. [1] FinOps Foundation, FOCUS 1.0, Date/Time Format; AWS Data Exports, FOCUS 1.0 with AWS columns.
"""


@looks(columns_of(FOCUS_COLUMNS))
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
    ...     _ = path.write_text(",".join(list(FOCUS_COLUMNS)[:14]) + "\n" + line + "\n")
    ...     read_focus([path]).summary()["BilledCost_USD"]
    '98.32'
    """
    delivery = delivered(paths)
    versions = {version_of(names): path for path, names in headers(delivery.files).items()}
    if len(versions) > 1:
        got = "; ".join(f"{path.name}: {version}" for version, path in sorted(versions.items()))
        todo = "Read each version on its own: exports of two versions may hold the same charges."
        raise TraceFormatError("focus", "files of one version", got, todo)
    rows = read_rows(delivery.files, FOCUS_COLUMNS, source="focus", dialect=BILL)
    rows = rows.with_columns(x_InstanceType=INSTANCE_TYPE)
    notes = [f"FOCUS {version}" for version in versions]
    zoneless = source_check("focus: no zone", pl.col("raw").str.contains(ZONELESS))
    return assemble_bill(rows, delivery, source="focus", checks=[zoneless], notes=notes)


def version_of(names: Collection[str]) -> str:
    """Version of FOCUS by the columns that came with each, whatever the case of their letters.

    Examples
    --------
    >>> version_of({"BilledCost", "SkuMeter"}), version_of({"BilledCost"})
    ('1.1', '1.0')
    """
    folded = {name.casefold() for name in names}
    marks = ((version, {mark.casefold() for mark in marks}) for version, marks in VERSION_MARKS.items())
    return next((version for version, each in marks if each & folded), "1.0")
