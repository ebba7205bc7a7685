"""Microsoft Azure cost details: what Cost Management exports, for Enterprise Agreements and Customer Agreements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.bills.charges import BILL, assemble_bill
from gpuplanner.inbox.bills.delivery import delivered
from gpuplanner.inbox.bills.focus import DETAIL
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.source import columns_of, looks
from gpuplanner.inbox.core.source_checks import source_check

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
    >>> names = [name for name, field in COLUMN_MAP.items() if not field.optional] + ["BillingCurrencyCode"]
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
        pl.when("no_period").then(edge).otherwise(name).alias(name)
        for name, edge in zip(PERIOD, month, strict=True)
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
        raise TraceFormatError(message("azure", "an export of actual or of amortised cost", got, todo))
    check = source_check("azure: no period", pl.col("no_period"))
    notes = ["amortised cost" if spread else "actual cost"]
    return assemble_bill(rows, delivery, source="azure", checks=[check], notes=notes)


def _day(name: str) -> pl.Expr:
    """A day as American or ISO text, with or without a time behind it."""
    text = pl.col(name).str.slice(0, 10)
    forms = ("%m/%d/%Y", "%Y-%m-%d")
    return pl.coalesce(
        text.str.to_datetime(one, time_unit="us", time_zone="UTC", strict=False) for one in forms
    )
