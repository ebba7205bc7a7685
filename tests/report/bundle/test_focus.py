"""FOCUS 1.2: every mandatory column, the rules of the specification, and what breaks them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import VerificationError
from gpuplanner.cost.showback import Rate, showback
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice
from gpuplanner.ingest.bills.aws_and_focus_bills import read_focus
from gpuplanner.report.focus_files_and_workbooks import MANDATORY_FOCUS_COLUMNS, check_focus, to_focus_text, write_focus

BEGIN, END = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def costs() -> pl.DataFrame:
    hours = pl.DataFrame(
        {
            "tenant": ["=cmd", "b", "-"],
            "gpu_model": "H100-80GB-SXM5",
            "bucket": ["used", "allocated_idle", "unallocated"],
            "ownership": ["owned", "reserved_1y", "spot"],
            "gpu_hours": [1 / 3, 2.5, 7.0],
        }
    )
    rate = Rate(GpuHourPrice(2.0, 2.0, 2.0, "EUR", "own price", "as given"), listed=12.29)
    rates = {("H100-80GB-SXM5", kind): rate for kind in ("owned", "reserved_1y", "spot")}
    return showback(hours, rates, start=BEGIN, end=END)


def test_a_written_file_keeps_the_rules_and_is_read_back(costs: pl.DataFrame, tmp_path: Path):
    path = write_focus(tmp_path / "bill.csv", costs)
    again = pl.read_csv(path, infer_schema=False)
    assert check_focus(again) == []
    assert set(MANDATORY_FOCUS_COLUMNS) <= set(again.columns)
    assert again["BillingPeriodStart"][0] == "2026-02-01T00:00:00Z"
    assert again["PricingCategory"].to_list() == ["Committed", "Other", "Dynamic"]
    assert "'=cmd" in again["SubAccountName"].to_list()
    read = read_focus([path])
    assert read.rejects.is_empty()
    assert read.summary()["EffectiveCost_EUR"] == "19.67"
    assert read.table["EffectiveCost"].sum() == costs["EffectiveCost"].sum()


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("ServiceCategory", "Computing", "not an allowed value"),
        ("ChargeCategory", None, "must not be null"),
        ("BilledCost", "1,50", "not in the form"),
        ("ChargePeriodStart", "2026-02-01 00:00:00", "not in the form"),
        ("BillingPeriodEnd", "2026-01-01T00:00:00Z", "not after BillingPeriodStart"),
        ("BillingCurrency", "Euro", "not in the form"),
        ("ListCost", "1.00", "differs from ListUnitPrice times PricingQuantity"),
    ],
)
def test_what_breaks_a_rule_is_named(costs: pl.DataFrame, column: str, value: str | None, rule: str):
    wrong = to_focus_text(costs).with_columns(pl.lit(value).alias(column))
    assert any(fault.startswith(column) and rule in fault for fault in check_focus(wrong))
    assert check_focus(to_focus_text(costs)) == []


def test_columns_that_are_absent_or_not_of_focus_are_named(costs: pl.DataFrame):
    faults = check_focus(to_focus_text(costs).drop("PublisherName").rename({"x_Bucket": "bucket_of_hours"}))
    assert [fault.partition(":")[0] for fault in faults] == ["PublisherName", "bucket_of_hours"]


def test_a_file_that_breaks_a_rule_is_not_written(costs: pl.DataFrame, tmp_path: Path):
    with pytest.raises(VerificationError, match="FOCUS"):
        write_focus(tmp_path / "bill.csv", costs.with_columns(ServiceCategory=pl.lit("?")))
    assert not (tmp_path / "bill.csv").exists()
