"""Our own tables of money, read back as FOCUS: the same amounts, the same GPU-hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.output_writing import write_csv_safe
from gpuplanner.core.units_and_number_formats import money_text
from gpuplanner.cost.showback import Rate, showback
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.ingest.bills.aws_and_focus_bills import read_cur, read_focus
from gpuplanner.ingest.bills.bill_summary import add_gpu_hours, summarise_bill
from gpuplanner.ingest.source_registry import detect_source, read
from gpuplanner.report.focus_files_and_workbooks import write_focus

File = Callable[..., Path]

CUR = """bill/BillingPeriodStartDate,bill/BillingPeriodEndDate,bill/PayerAccountId,lineItem/UsageAccountId,\
lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/LineItemType,lineItem/ProductCode,lineItem/UsageType,\
lineItem/UsageAmount,lineItem/CurrencyCode,lineItem/UnblendedCost,pricing/unit,product/instanceType,\
product/ProductName,pricing/publicOnDemandCost,resourceTags/user:team
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,1,2,2025-09-03T00:00:00Z,2025-09-03T02:00:00Z,Usage,AmazonEC2,BoxUsage,2,USD,\
110.080000000000000001,Hrs,p5.48xlarge,EC2,110.08,vision
2025-09-01T00:00:00Z,2025-10-01T00:00:00Z,1,2,2025-09-03T00:00:00Z,2025-09-03T02:00:00Z,Tax,AmazonEC2,,1,USD,0.07,,,EC2,,
"""
"""Two hours of eight H100, and a tax."""

MONTH = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def charges(file: File) -> pl.DataFrame:
    return read_cur([file(CUR, "cur.csv")]).table


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_of_charges_is_read_back_with_its_gpu_hours(charges: pl.DataFrame, tmp_path: Path, form: str):
    path = tmp_path / f"charges.{form}"
    if form == "csv":
        write_csv_safe(path, charges)
    else:
        charges.write_parquet(path)
    assert detect_source(path) == "focus"
    again = read_focus([path])
    assert again.rejects.is_empty()
    assert again.table.equals(charges)
    assert add_gpu_hours(again.table)["gpu_hours"].sum() == 2 * 8
    assert summarise_bill(again.table).equals(summarise_bill(charges))


def test_the_costs_of_a_month_are_read_back_from_csv(tmp_path: Path):
    """Whole GPU-hours, as the ledger has them, so that nothing hides in the rounding of a cell."""
    hours = pl.DataFrame(
        {
            "tenant": ["=ads", "vision", "-"],
            "gpu_model": "H100-80GB-SXM5",
            "bucket": ["used", "used", "unallocated"],
            "ownership": "owned",
            "gpu_hours": [100.0, 70.25, 29.75],
        }
    )
    price = GpuHourPrice(2.5, 2.5, 2.5, "USD", "own price", "as given")
    costs = showback(hours, {("H100-80GB-SXM5", "owned"): Rate(price)}, start=MONTH[0], end=MONTH[1])
    write_csv_safe(tmp_path / "costs.csv", costs)
    write_focus(tmp_path / "focus.csv", costs)
    for name, unallocated in (("costs.csv", "__unallocated__"), ("focus.csv", "Unallocated")):
        reading: Any = read("auto", tmp_path / name)
        assert reading.summary()["source"] == "focus"
        assert reading.rejects.is_empty()
        assert reading.summary()["EffectiveCost_USD"] == "500"  # 200 GPU-hours at 2.50
        hours = add_gpu_hours(reading.table).select("SubAccountName", "gpu_hours").rows()
        assert hours == [("'=ads", 100.0), ("vision", 70.25), (unallocated, 29.75)]


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        ("12", "USD", "12.00"),
        ("1E+6", "EUR", "1,000,000.00"),
        ("98.5", "JPY", "98"),  # half to even
        ("-0.004", "USD", "0.00"),
        ("999999999999.995000000000000001", "XXX", "1,000,000,000,000.00"),
    ],
)
def test_money_is_printed_with_the_decimals_of_its_currency(amount: str, currency: str, text: str):
    assert money_text(Decimal(amount), currency) == text
