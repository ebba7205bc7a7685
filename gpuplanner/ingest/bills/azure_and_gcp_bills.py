"""Readers of Azure cost details and Google Cloud billing exports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schemas import MONEY_DTYPE
from gpuplanner.ingest.bills.aws_and_focus_bills import PRICE_DETAIL_INSTANCE_TYPE_PATTERN
from gpuplanner.ingest.bills.bill_files_and_charge_lines import BILL_DIALECT, assemble_bill, select_delivered_files
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Record, raise_fault
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.source_definition import has_header_columns, has_required_columns, register_sniffer
from gpuplanner.ingest.source_fields import Field, source_columns, source_values
from gpuplanner.ingest.typed_row_reader import read_item_records, read_rows

AZURE_PERIOD_COLUMNS = ("BillingPeriodStartDate", "BillingPeriodEndDate")
"""Columns of Azure cost details with the first and last day of the billing period."""
AZURE_DATE_COLUMNS = (*AZURE_PERIOD_COLUMNS, "Date")
"""Columns of Azure cost details that hold a day."""
FIELD_BY_AZURE_COLUMN = source_columns("azure")
"""Column of Azure cost details → how it is parsed. Names are those of the Enterprise Agreement schema (2024-08-01); the
Customer Agreement schema (2023-12-01-preview) has them in camel case, and ``billingCurrency`` and
``paygCostInBillingCurrency`` of its own [1]_.
"""

UNUSED_COMMITMENT_CHARGE_TYPES = ("UnusedReservation", "UnusedSavingsPlan")
"""Values of the Azure column ``ChargeType`` for the unused part of a reservation or savings plan."""
CATEGORY_BY_CHARGE_TYPE = source_values("azure charge type")
"""Value of the Azure column ``ChargeType`` → FOCUS charge category."""
PRICING_CATEGORY_BY_PRICING_MODEL = source_values("azure pricing model")
"""Azure pricing model, such as ``OnDemand`` → FOCUS pricing category."""
COMMITMENT_PRICING_MODELS = ("Reservation", "SavingsPlan")
"""Azure pricing models of usage under a commitment."""


@register_sniffer(has_required_columns(FIELD_BY_AZURE_COLUMN))
def read_azure(paths: Sequence[str | Path]) -> Dataset:
    r"""Read cost details of Azure, either actual or amortised cost: an export has one of the two.

    References
    ----------
    .. [1] Microsoft, Cost Management dataset schema: "Enterprise Agreement cost and usage details file schema" and
       "Microsoft Customer Agreement cost and usage details file schema"; "Understand cost details fields".

    Examples
    --------
    >>> import tempfile
    >>> names = [name for name, field in FIELD_BY_AZURE_COLUMN.items() if not field.optional] + ["BillingCurrencyCode"]
    >>> line = "09/01/2025,09/30/2025,09/02/2025,1234,5678,Usage,98.32,1,1 Hour,Virtual Machines,ND96isr H100 v5,USD"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "part_0.csv"
    ...     _ = path.write_text(",".join(names) + "\n" + line + "\n")
    ...     read_azure([path]).table["x_InstanceType", "ChargePeriodEnd"].row(0)
    ('ND96isr H100 v5', datetime.datetime(2025, 9, 3, 0, 0, tzinfo=zoneinfo.ZoneInfo(key='UTC')))
    """
    delivery = select_delivered_files(paths)
    parquet = all(path.suffix == ".parquet" for path in delivery.files)
    dates = {
        name: Field(name, "instant" if parquet else "text", name in AZURE_PERIOD_COLUMNS) for name in AZURE_DATE_COLUMNS
    }
    dialect = replace(BILL_DIALECT, any_of=(("BillingCurrencyCode", "BillingCurrency"),))
    rows = read_rows(delivery.files, {**FIELD_BY_AZURE_COLUMN, **dates}, source="azure", dialect=dialect)
    is_blank = {name: pl.col(name).is_null() for name in AZURE_PERIOD_COLUMNS}
    rows = rows.with_columns(no_period=pl.any_horizontal(is_blank.values()))
    if not parquet:
        rows = rows.with_columns(_parse_day(name).alias(name) for name in AZURE_DATE_COLUMNS)
    # An export without the period is of the months of its days.
    month = (pl.col("Date").dt.month_start(), pl.col("Date").dt.month_end())
    rows = rows.with_columns(
        pl.when("no_period").then(edge).otherwise(name).alias(name)
        for name, edge in zip(AZURE_PERIOD_COLUMNS, month, strict=True)
    )
    kind, model = pl.col("charge_type"), pl.col("model")
    rows = rows.reject(
        {
            **{f"{name}: not a day as MM/DD/YYYY or YYYY-MM-DD": pl.col(name).is_null() for name in AZURE_DATE_COLUMNS},
            f"ChargeType: not one of {', '.join(CATEGORY_BY_CHARGE_TYPE)}": ~kind.is_in(list(CATEGORY_BY_CHARGE_TYPE)),
        }
    )
    day = pl.duration(days=1)
    unused = kind.is_in(UNUSED_COMMITMENT_CHARGE_TYPES)
    tags = pl.col("Tags").str.strip_chars()
    rows = rows.with_columns(
        BillingPeriodStart="BillingPeriodStartDate",
        # Both ends of a period are days of it.
        BillingPeriodEnd=pl.col("BillingPeriodEndDate") + day,
        ChargePeriodStart="Date",
        ChargePeriodEnd=pl.col("Date") + day,
        ProviderName=pl.lit("Microsoft"),
        BillingCurrency=pl.coalesce("currency_code", "currency"),
        ChargeCategory=kind.replace_strict(CATEGORY_BY_CHARGE_TYPE),
        ChargeClass=pl.when(kind == "Refund").then(pl.lit("Correction")),
        ServiceCategory=pl.when(pl.col("ServiceName") == "Virtual Machines").then(pl.lit("Compute")),
        x_InstanceType=pl.coalesce(pl.col("info").str.extract(PRICE_DETAIL_INSTANCE_TYPE_PATTERN), "meter"),
        PricingCategory=model.replace_strict(PRICING_CATEGORY_BY_PRICING_MODEL, default=None, return_dtype=pl.String),
        CommitmentDiscountId=pl.coalesce("reservation", "benefit"),
        CommitmentDiscountStatus=pl.when(unused).then(pl.lit("Unused"))
        .when(model.is_in(COMMITMENT_PRICING_MODELS) & (kind == "Usage")).then(pl.lit("Used")),
        EffectiveCost="BilledCost",
        ListCost=pl.coalesce("payg_cost", pl.col("payg_price") * pl.col("PricingQuantity")),
        # Older files leave the braces out.
        Tags=pl.when(tags.str.starts_with("{")).then(tags).when(tags != "").then("{" + tags + "}"),
    )  # fmt: skip
    is_used_commitment = model.is_in(COMMITMENT_PRICING_MODELS) & (kind == "Usage") & (pl.col("BilledCost") != 0)
    is_purchase = (kind == "Purchase") & pl.col("CommitmentDiscountId").is_not_null()
    has_spread_costs, has_purchases = rows.good.select(
        (unused | is_used_commitment).any(), is_purchase.any().alias("bought")
    ).row(0)
    if has_spread_costs and has_purchases:
        got = "commitments bought, and their cost spread over use"
        todo = "Read one of them: both hold the same charges."
        raise TraceFormatError("azure", "an export of actual or of amortised cost", got, todo)
    check = source_check("azure: no period", pl.col("no_period"))
    notes = ["amortised cost" if has_spread_costs else "actual cost"]
    return assemble_bill(rows, delivery, source="azure", checks=[check], notes=notes)


def _parse_day(name: str) -> pl.Expr:
    """Expression that parses a column of days in American or ISO format, with or without a time after it."""
    text = pl.col(name).str.slice(0, 10)
    parse_options: dict[str, Any] = {"time_unit": "us", "time_zone": "UTC", "strict": False}
    return pl.coalesce(text.str.to_datetime(day_format, **parse_options) for day_format in ("%m/%d/%Y", "%Y-%m-%d"))


FIELD_BY_GCP_COLUMN = source_columns("gcp")
"""Column of a Google Cloud billing export (standard or detailed table) → how it is parsed; records and lists are JSON
[1]_."""

CATEGORY_BY_COST_TYPE = {"regular": "Usage", "tax": "Tax", "adjustment": "Adjustment", "rounding_error": "Adjustment"}
"""Value of ``cost_type`` in a Google Cloud billing export → FOCUS charge category; the fee of a commitment is a
purchase."""
COMMITMENT_FEE_DESCRIPTION_PATTERN = r"(?i)^commitment\b"
"""SKU description of the fee of a commitment in a Google Cloud billing export."""
GPU_SKU_PATTERN = r"(?i)\bgpu\b"
"""SKU description of a charge for GPUs in a Google Cloud billing export."""
CPU_CORE_SKU_PATTERN = r"(?i)\bcore\b"
"""SKU description of a charge for CPU cores in a Google Cloud billing export."""
SPOT_SKU_PATTERN = r"(?i)\b(?:spot|preemptible)\b"
"""SKU description of a charge for spot capacity in a Google Cloud billing export."""
GCP_MACHINE_TYPE_LABEL_KEY = "compute.googleapis.com/machine_spec"
"""Key of the system label of Google Cloud that holds the machine type."""


def looks_like_gcp(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like a Google Cloud billing export: CSV header or JSON object."""
    needed = [name for name, field in FIELD_BY_GCP_COLUMN.items() if not field.optional]
    if has_header_columns(needed)(lines):
        return True
    return lines[0].lstrip().startswith("{") and all(f'"{name}"' in lines[0] for name in needed[:6])


@register_sniffer(looks_like_gcp)
def read_gcp(paths: Sequence[str | Path]) -> Dataset:
    r"""Read billing exports of Google Cloud. The billed cost is the cost with the credits of its line.

    A machine with GPUs is charged part by part: its GPUs, cores and memory have a line each. GPU-hours are those of the
    GPU lines; the machine type is in all of its lines.

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
    delivery = select_delivered_files(paths)
    if all(path.suffix == ".parquet" for path in delivery.files):
        rows = read_rows(delivery.files, FIELD_BY_GCP_COLUMN, source="gcp", dialect=BILL_DIALECT)
    else:
        rows = read_item_records(delivery.files, FIELD_BY_GCP_COLUMN, _parse_charge_line)
    month, cost_type = _json_member("invoice", "month"), pl.col("cost_type")
    start = (month + "01").str.to_datetime("%Y%m%d", time_unit="us", time_zone="UTC", strict=False)
    rows = rows.with_columns(
        BillingPeriodStart=start,
        given=pl.col("credits").map_elements(_sum_credits, return_dtype=pl.String).cast(MONEY_DTYPE, strict=False),
        what=_json_member("sku", "description"),
        machine=pl.col("system_labels").map_elements(_find_machine_type, return_dtype=pl.String),
    )
    rows = rows.reject(
        {
            "invoice.month: not a month as YYYYMM": pl.col("BillingPeriodStart").is_null(),
            f"cost_type: not one of {', '.join(CATEGORY_BY_COST_TYPE)}": ~cost_type.is_in(list(CATEGORY_BY_COST_TYPE)),
            "credits: not a list of amounts": pl.col("credits").is_not_null() & pl.col("given").is_null(),
        }
    )
    sku_text, unit = pl.col("what"), _json_member("usage", "pricing_unit")
    is_fee = sku_text.str.contains(COMMITMENT_FEE_DESCRIPTION_PATTERN).fill_null(value=False)
    billed = pl.col("cost") + pl.col("given").fill_null(0)
    rows = rows.with_columns(
        BillingPeriodEnd=pl.col("BillingPeriodStart").dt.offset_by("1mo"),
        ProviderName=pl.lit("Google Cloud"),
        SubAccountId=_json_member("project", "id"),
        SubAccountName=_json_member("project", "name"),
        ChargeCategory=pl.when(is_fee).then(pl.lit("Purchase")).otherwise(
            cost_type.replace_strict(CATEGORY_BY_COST_TYPE)),
        ChargeClass=pl.when(cost_type == "adjustment").then(pl.lit("Correction")),
        ChargeDescription="what",
        ServiceName=_json_member("service", "description"),
        ServiceCategory=pl.when(_json_member("service", "description") == "Compute Engine").then(pl.lit("Compute")),
        SkuId=_json_member("sku", "id"),
        RegionId=_json_member("location", "region"),
        ResourceId=pl.coalesce(_json_member("resource", "global_name"), _json_member("resource", "name")),
        x_InstanceType="machine",
        PricingCategory=pl.when(is_fee).then(pl.lit("Committed")).when(sku_text.str.contains(SPOT_SKU_PATTERN)).then(pl.lit("Dynamic"))
        .otherwise(pl.lit("Standard")),
        PricingQuantity=_json_member("usage", "amount_in_pricing_units").cast(MONEY_DTYPE, strict=False),
        PricingUnit=pl.when(unit == "hour", sku_text.str.contains(GPU_SKU_PATTERN)).then(pl.lit("GPU-Hours"))
        .when(unit == "hour", sku_text.str.contains(CPU_CORE_SKU_PATTERN)).then(pl.lit("Core-Hours")).otherwise(unit),
        CommitmentDiscountId=pl.lit(None, pl.String),
        CommitmentDiscountStatus=pl.lit(None, pl.String),
        BilledCost=billed,
        EffectiveCost=billed,
        Tags=pl.when(pl.col("labels") != "[]").then("labels"),
    )  # fmt: skip
    return assemble_bill(rows, delivery, source="gcp", notes=["cost with credits"])


def _parse_charge_line(line: Any) -> list[Record]:  # noqa: ANN401 - anything JSON holds
    """Parse a JSON line of a Google Cloud billing export to the texts of its fields; nested values stay JSON."""
    if not isinstance(line, dict) or "billing_account_id" not in line:
        raise_fault("not a charge line: no object with a billing_account_id")
    return [{name: _to_cell_text(line.get(name)) for name in FIELD_BY_GCP_COLUMN}]


def _to_cell_text(value: Any) -> str | None:  # noqa: ANN401 - anything JSON holds
    """Format a JSON value as the text that a CSV cell would have."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=True)


def _json_member(column: str, key: str) -> pl.Expr:
    """Expression for the value of a key in a column of JSON objects."""
    return pl.col(column).str.json_path_match(f"$.{key}")


def _sum_credits(text: str) -> str | None:
    """Sum the credits of a Google Cloud charge line exactly, from JSON; None where they are no list of amounts."""
    try:
        credits = json.loads(text, parse_float=Decimal)
        return str(sum((Decimal(credit["amount"]) for credit in credits), Decimal()))
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return None


def _find_machine_type(text: str) -> str | None:
    """Find the machine type in the system labels (JSON) of a Google Cloud charge line; None without it."""
    try:
        labels: Sequence[Mapping[str, str]] = json.loads(text)
        return next((label["value"] for label in labels if label["key"] == GCP_MACHINE_TYPE_LABEL_KEY), None)
    except (ValueError, TypeError, KeyError):
        return None
