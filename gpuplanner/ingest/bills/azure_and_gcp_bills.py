"""Azure cost details and Google Cloud billing exports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schemas import DECIMAL
from gpuplanner.ingest.bills.aws_and_focus_bills import DETAIL
from gpuplanner.ingest.bills.charge_lines import BILL, assemble_bill, delivered
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Records, Rows
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.row_reader import read_items, read_rows
from gpuplanner.ingest.source_definition import columns_of, header_has, looks
from gpuplanner.ingest.source_fields import Field, source_columns

PERIOD = ("BillingPeriodStartDate", "BillingPeriodEndDate")
DATES = (*PERIOD, "Date")
AZURE_COLUMNS = source_columns("azure")
"""Names of the Enterprise Agreement schema (2024-08-01); the Customer Agreement schema (2023-12-01-preview) has them in
camel case, and ``billingCurrency`` and ``paygCostInBillingCurrency`` of its own [1]_."""

UNUSED = ("UnusedReservation", "UnusedSavingsPlan")
AZURE_CATEGORIES = {
    **dict.fromkeys(("Usage", *UNUSED), "Usage"),
    "Purchase": "Purchase",
    "Tax": "Tax",
    "Credit": "Credit",
    **dict.fromkeys(("Refund", "Adjustment", "RoundingAdjustment", "RoundAdjustment"), "Adjustment"),
}
"""``ChargeType`` → FOCUS charge category."""
PRICING = {"OnDemand": "Standard", "Reservation": "Committed", "SavingsPlan": "Committed", "Spot": "Dynamic"}
COMMITTED = ("Reservation", "SavingsPlan")


@looks(columns_of(AZURE_COLUMNS))
def read_azure(paths: Sequence[str | Path]) -> Dataset:
    r"""Read cost details of Azure, either actual or amortised cost: an export holds one of the two.

    References
    ----------
    .. [1] Microsoft, Cost Management dataset schema: "Enterprise Agreement cost and usage details file schema" and
       "Microsoft Customer Agreement cost and usage details file schema"; "Understand cost details fields".

    Examples
    --------
    >>> import tempfile
    >>> names = [name for name, field in AZURE_COLUMNS.items() if not field.optional] + ["BillingCurrencyCode"]
    >>> line = "09/01/2025,09/30/2025,09/02/2025,1234,5678,Usage,98.32,1,1 Hour,Virtual Machines,ND96isr H100 v5,USD"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "part_0.csv"
    ...     _ = path.write_text(",".join(names) + "\n" + line + "\n")
    ...     read_azure([path]).table["x_InstanceType", "ChargePeriodEnd"].row(0)
    ('ND96isr H100 v5', datetime.datetime(2025, 9, 3, 0, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC')))
    """
    delivery = delivered(paths)
    parquet = all(path.suffix == ".parquet" for path in delivery.files)
    dates = {name: Field(name, "instant" if parquet else "text", name in PERIOD) for name in DATES}
    dialect = replace(BILL, any_of=(("BillingCurrencyCode", "BillingCurrency"),))
    rows = read_rows(delivery.files, {**AZURE_COLUMNS, **dates}, source="azure", dialect=dialect)
    blank = {name: pl.col(name).is_null() for name in PERIOD}
    rows = rows.with_columns(no_period=pl.any_horizontal(blank.values()))
    if not parquet:
        rows = rows.with_columns(_day(name).alias(name) for name in DATES)
    # An export without the period is of the months of its days.
    month = (pl.col("Date").dt.month_start(), pl.col("Date").dt.month_end())
    rows = rows.with_columns(
        pl.when("no_period").then(edge).otherwise(name).alias(name) for name, edge in zip(PERIOD, month, strict=True)
    )
    kind, model = pl.col("charge_type"), pl.col("model")
    rows = rows.reject(
        {
            **{f"{name}: not a day as MM/DD/YYYY or YYYY-MM-DD": pl.col(name).is_null() for name in DATES},
            f"ChargeType: not one of {', '.join(AZURE_CATEGORIES)}": ~kind.is_in(list(AZURE_CATEGORIES)),
        }
    )
    day = pl.duration(days=1)
    unused = kind.is_in(UNUSED)
    tags = pl.col("Tags").str.strip_chars()
    rows = rows.with_columns(
        BillingPeriodStart="BillingPeriodStartDate",
        # Both ends of a period are days of it.
        BillingPeriodEnd=pl.col("BillingPeriodEndDate") + day,
        ChargePeriodStart="Date",
        ChargePeriodEnd=pl.col("Date") + day,
        ProviderName=pl.lit("Microsoft"),
        BillingCurrency=pl.coalesce("currency_code", "currency"),
        ChargeCategory=kind.replace_strict(AZURE_CATEGORIES),
        ChargeClass=pl.when(kind == "Refund").then(pl.lit("Correction")),
        ServiceCategory=pl.when(pl.col("ServiceName") == "Virtual Machines").then(pl.lit("Compute")),
        x_InstanceType=pl.coalesce(pl.col("info").str.extract(DETAIL), "meter"),
        PricingCategory=model.replace_strict(PRICING, default=None, return_dtype=pl.String),
        CommitmentDiscountId=pl.coalesce("reservation", "benefit"),
        CommitmentDiscountStatus=pl.when(unused).then(pl.lit("Unused"))
        .when(model.is_in(COMMITTED) & (kind == "Usage")).then(pl.lit("Used")),
        EffectiveCost="BilledCost",
        ListCost=pl.coalesce("payg_cost", pl.col("payg_price") * pl.col("PricingQuantity")),
        # Older files leave the braces out.
        Tags=pl.when(tags.str.starts_with("{")).then(tags).when(tags != "").then("{" + tags + "}"),
    )  # fmt: skip
    used = model.is_in(COMMITTED) & (kind == "Usage") & (pl.col("BilledCost") != 0)
    committed = (kind == "Purchase") & pl.col("CommitmentDiscountId").is_not_null()
    spread, bought = rows.good.select((unused | used).any(), committed.any().alias("bought")).row(0)
    if spread and bought:
        got = "commitments bought, and their cost spread over use"
        todo = "Read one of them: both hold the same charges."
        raise TraceFormatError("azure", "an export of actual or of amortised cost", got, todo)
    check = source_check("azure: no period", pl.col("no_period"))
    notes = ["amortised cost" if spread else "actual cost"]
    return assemble_bill(rows, delivery, source="azure", checks=[check], notes=notes)


def _day(name: str) -> pl.Expr:
    """A day as American or ISO text, with or without a time behind it."""
    text = pl.col(name).str.slice(0, 10)
    how: dict[str, Any] = {"time_unit": "us", "time_zone": "UTC", "strict": False}
    return pl.coalesce(text.str.to_datetime(form, **how) for form in ("%m/%d/%Y", "%Y-%m-%d"))


GCP_COLUMNS = source_columns("gcp")
"""Columns of the standard and the detailed table; records and lists stand as JSON [1]_."""

GCP_CATEGORIES = {
    "regular": "Usage",
    "tax": "Tax",
    "adjustment": "Adjustment",
    "rounding_error": "Adjustment",
}
"""``cost_type`` → FOCUS charge category; the fee of a commitment is a purchase."""
FEE = r"(?i)^commitment\b"
GPU = r"(?i)\bgpu\b"
CORE = r"(?i)\bcore\b"
SPARE = r"(?i)\b(?:spot|preemptible)\b"
MACHINE = "compute.googleapis.com/machine_spec"
NOT_A_LINE = "not a charge line: no object with a billing_account_id"


def looks_like_gcp(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like an export: names of columns, or an object of them."""
    needed = [name for name, field in GCP_COLUMNS.items() if not field.optional]
    if header_has(needed)(lines):
        return True
    return lines[0].lstrip().startswith("{") and all(f'"{name}"' in lines[0] for name in needed[:6])


@looks(looks_like_gcp)
def read_gcp(paths: Sequence[str | Path]) -> Dataset:
    r"""Read billing exports of Google Cloud. What is billed is the cost with the credits of its line.

    A machine with GPUs is charged part by part: its GPUs, its cores and its memory each have a line. GPU-hours are
    those of the lines of GPUs; the type of the machine stands on all of its lines.

    References
    ----------
    .. [1] Google Cloud, Cloud Billing: "Structure of Standard data export" and "Structure of Detailed data export".

    Examples
    --------
    >>> import tempfile
    >>> line = {"billing_account_id": "01-A", "invoice": {"month": "202509"}, "currency": "USD", "cost": 11.06,
    ...         "usage_start_time": "2025-09-02 10:00:00 UTC", "usage_end_time": "2025-09-02 11:00:00 UTC",
    ...         "service": {"description": "Compute Engine"}, "cost_type": "regular",
    ...         "sku": {"id": "1", "description": "A3 High H100 GPU"}, "credits": [{"amount": -1.06}],
    ...         "usage": {"amount_in_pricing_units": 8, "pricing_unit": "hour"}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "export.json"
    ...     _ = path.write_text(json.dumps(line) + "\n")
    ...     read_gcp([path]).table.select("PricingUnit", pl.col("BilledCost").cast(pl.Float64)).row(0)
    ('GPU-Hours', 10.0)
    """
    delivery = delivered(paths)
    if all(path.suffix == ".parquet" for path in delivery.files):
        rows = read_rows(delivery.files, GCP_COLUMNS, source="gcp", dialect=BILL)
    else:
        rows = _from_json(delivery.files)
    month, cost_type = _of("invoice", "month"), pl.col("cost_type")
    start = (month + "01").str.to_datetime("%Y%m%d", time_unit="us", time_zone="UTC", strict=False)
    rows = rows.with_columns(
        BillingPeriodStart=start,
        given=pl.col("credits").map_elements(_sum, return_dtype=pl.String).cast(DECIMAL, strict=False),
        what=_of("sku", "description"),
        machine=pl.col("system_labels").map_elements(_machine, return_dtype=pl.String),
    )
    rows = rows.reject(
        {
            "invoice.month: not a month as YYYYMM": pl.col("BillingPeriodStart").is_null(),
            f"cost_type: not one of {', '.join(GCP_CATEGORIES)}": ~cost_type.is_in(list(GCP_CATEGORIES)),
            "credits: not a list of amounts": pl.col("credits").is_not_null() & pl.col("given").is_null(),
        }
    )
    what, unit = pl.col("what"), _of("usage", "pricing_unit")
    fee = what.str.contains(FEE).fill_null(value=False)
    billed = pl.col("cost") + pl.col("given").fill_null(0)
    rows = rows.with_columns(
        BillingPeriodEnd=pl.col("BillingPeriodStart").dt.offset_by("1mo"),
        ProviderName=pl.lit("Google Cloud"),
        SubAccountId=_of("project", "id"),
        SubAccountName=_of("project", "name"),
        ChargeCategory=pl.when(fee).then(pl.lit("Purchase")).otherwise(
            cost_type.replace_strict(GCP_CATEGORIES)),
        ChargeClass=pl.when(cost_type == "adjustment").then(pl.lit("Correction")),
        ChargeDescription="what",
        ServiceName=_of("service", "description"),
        ServiceCategory=pl.when(_of("service", "description") == "Compute Engine").then(pl.lit("Compute")),
        SkuId=_of("sku", "id"),
        RegionId=_of("location", "region"),
        ResourceId=pl.coalesce(_of("resource", "global_name"), _of("resource", "name")),
        x_InstanceType="machine",
        PricingCategory=pl.when(fee).then(pl.lit("Committed")).when(what.str.contains(SPARE)).then(pl.lit("Dynamic"))
        .otherwise(pl.lit("Standard")),
        PricingQuantity=_of("usage", "amount_in_pricing_units").cast(DECIMAL, strict=False),
        PricingUnit=pl.when(unit == "hour", what.str.contains(GPU)).then(pl.lit("GPU-Hours"))
        .when(unit == "hour", what.str.contains(CORE)).then(pl.lit("Core-Hours")).otherwise(unit),
        CommitmentDiscountId=pl.lit(None, pl.String),
        CommitmentDiscountStatus=pl.lit(None, pl.String),
        BilledCost=billed,
        EffectiveCost=billed,
        Tags=pl.when(pl.col("labels") != "[]").then("labels"),
    )  # fmt: skip
    return assemble_bill(rows, delivery, source="gcp", notes=["cost with credits"])


def _from_json(paths: Sequence[Path]) -> Rows:
    """Lines of JSON as rows: what is nested stays as JSON."""
    records, files = Records(GCP_COLUMNS), []
    for number, path in enumerate(paths):
        file, items = read_items(path, ())
        files.append(file)
        for item in items:
            line = item.value
            if item.fault or not isinstance(line, dict) or "billing_account_id" not in line:
                records.reject(number, item.place, item.raw, item.fault or NOT_A_LINE)
                continue
            texts = {name: _text(line.get(name)) for name in GCP_COLUMNS}
            records.add(number, item.place, item.raw, texts)
    return records.rows(files)


def _text(value: Any) -> str | None:  # noqa: ANN401 - anything JSON holds
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=True)


def _of(column: str, key: str) -> pl.Expr:
    """A member of a record."""
    return pl.col(column).str.json_path_match(f"$.{key}")


def _sum(text: str) -> str | None:
    """The exact sum of the credits of a line; None where they are no list of amounts."""
    try:
        found = json.loads(text, parse_float=Decimal)
        return str(sum((Decimal(one["amount"]) for one in found), Decimal()))
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return None


def _machine(text: str) -> str | None:
    """The type of the machine by the labels that Google sets."""
    try:
        labels: Sequence[Mapping[str, str]] = json.loads(text)
        return next((one["value"] for one in labels if one["key"] == MACHINE), None)
    except (ValueError, TypeError, KeyError):
        return None
