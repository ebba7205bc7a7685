"""Cost details of Azure: both schemas, actual and amortised cost, sums of a count by hand."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.bills.azure_and_gcp_bills import FIELD_BY_AZURE_COLUMN, read_azure
from gpuplanner.ingest.bills.bill_summary import add_gpu_hours
from gpuplanner.ingest.source_registry import detect_source

File = Callable[..., Path]
BOARD = json.dumps({"ServiceType": "Standard_ND96isr_H100_v5", "VMName": "n1"})
# A day of two ND96isr_H100_v5: on demand, spot, a refund, a fee of a reservation and tax.
ACTUAL = [
    {"ChargeType": "Usage", "Quantity": "24", "Cost": "2359.68", "Tags": '"team": "vision","cost center": "7"'},
    {"ChargeType": "Usage", "Quantity": "10", "Cost": "393.28", "PricingModel": "Spot"},
    {"ChargeType": "Usage", "Quantity": "24", "Cost": "0", "PricingModel": "Reservation", "ReservationId": "r-1"},
    {"ChargeType": "Purchase", "Quantity": "1", "Cost": "50000.05", "ReservationId": "r-1", "Unit": "1"},
    {"ChargeType": "Refund", "Quantity": "-1", "Cost": "-98.32"},
    {"ChargeType": "Tax", "Cost": "0.0000001", "Unit": ""},
]  # fmt: skip
AMORTISED = [
    {"ChargeType": "Usage", "Quantity": "24", "Cost": "1500.5", "PricingModel": "Reservation", "ReservationId": "r-1"},
    {"ChargeType": "UnusedReservation", "Quantity": "3", "Cost": "187.5", "PricingModel": "Reservation",
     "ReservationId": "r-1"},
]  # fmt: skip


def details(lines: list[dict[str, str]], *, mca: bool = False) -> str:
    """A file as it is exported: Enterprise Agreements with American dates, Customer Agreements in camel case."""
    absent = "BillingCurrencyCode" if mca else "BillingCurrency"
    names = [
        name for name in FIELD_BY_AZURE_COLUMN if name not in (absent, *(() if mca else ("PaygCostInBillingCurrency",)))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name[0].lower() + name[1:] if mca else name for name in names])
    first, last, day = ("2025-09-01", "2025-09-30", "2025-09-02") if mca else ("09/01/2025", "09/30/2025", "09/02/2025")
    for line in lines:
        values = {
            "BillingPeriodStartDate": first, "BillingPeriodEndDate": last, "Date": day, "BillingAccountId": "1234",
            "SubscriptionId": "s-1", "SubscriptionName": "research", "BillingCurrency": "USD",
            "BillingCurrencyCode": "USD", "CostInBillingCurrency": line["Cost"], "PayGPrice": "98.32",
            "UnitOfMeasure": line.get("Unit", "1 Hour"), "MeterCategory": "Virtual Machines",
            "MeterName": "ND96isr H100 v5", "AdditionalInfo": BOARD, "ResourceLocation": "eastus",
            "PricingModel": "OnDemand",
        } | line  # fmt: skip
        writer.writerow([values.get(name, "") for name in names])
    return out.getvalue()


@pytest.mark.parametrize("mca", [False, True])
def test_actual_cost_by_hand(file: File, mca: bool):
    path = file(details(ACTUAL, mca=mca))
    assert detect_source(path) == "azure"
    found = read_azure([path])
    assert found.rejects.is_empty()
    assert found.provenance["notes"] == ["actual cost"]
    billed = Decimal("2359.68") + Decimal("393.28") + Decimal("50000.05") - Decimal("98.32") + Decimal("1e-7")
    assert Decimal(found.provenance["totals"]["BilledCost_USD"]) == billed
    lines = add_gpu_hours(found.table)
    assert lines["gpu_hours"].sum() == 8 * (24 + 10 + 24)
    assert lines["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]
    one = lines.row(0, named=True)
    assert one["Tags"] == '{"cost center":"7","team":"vision"}'
    assert one["ListCost"] == 24 * Decimal("98.32")
    assert (one["BillingPeriodEnd"], one["ChargePeriodEnd"]) == (
        datetime(2025, 10, 1, tzinfo=UTC), datetime(2025, 9, 3, tzinfo=UTC)
    )  # fmt: skip
    assert lines["PricingCategory"].to_list()[:3] == ["Standard", "Dynamic", "Committed"]
    assert lines.filter(ChargeCategory="Adjustment")["ChargeClass"].to_list() == ["Correction"]


def test_amortised_cost_parts_used_from_unused_hours(file: File):
    found = read_azure([file(details(AMORTISED))])
    assert found.provenance["notes"] == ["amortised cost"]
    lines = add_gpu_hours(found.table)
    assert (lines["gpu_hours"].sum(), lines["unused_gpu_hours"].sum()) == (192.0, 24.0)
    assert lines["CommitmentDiscountStatus"].to_list() == ["Used", "Unused"]


def test_actual_and_amortised_cost_together_are_refused(file: File):
    with pytest.raises(TraceFormatError, match="actual or of amortised cost"):
        read_azure([file(details(ACTUAL[3:4] + AMORTISED))])
