"""Bills in FOCUS: three versions, every kind of charge, exact sums."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.ingest.bills.aws_and_focus_bills import read_focus
from gpuplanner.ingest.bills.bill_files_and_charge_lines import normalise_tags
from gpuplanner.ingest.source_registry import detect_source

File = Callable[..., Path]

# Columns as the specification lists them, with what each version added.
FIRST = """
AvailabilityZone BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart
ChargeCategory ChargeClass ChargeDescription ChargeFrequency ChargePeriodEnd ChargePeriodStart
CommitmentDiscountCategory CommitmentDiscountId CommitmentDiscountName CommitmentDiscountStatus
CommitmentDiscountType ConsumedQuantity ConsumedUnit ContractedCost ContractedUnitPrice EffectiveCost
InvoiceIssuerName ListCost ListUnitPrice PricingCategory PricingQuantity PricingUnit ProviderName PublisherName
RegionId RegionName ResourceId ResourceName ResourceType ServiceCategory ServiceName SkuId SkuPriceId SubAccountId
SubAccountName Tags
"""
ADDED_IN_11 = """
CapacityReservationId CapacityReservationStatus CommitmentDiscountQuantity CommitmentDiscountUnit ServiceSubcategory
SkuMeter SkuPriceDetails
"""
ADDED_IN_12 = """
BillingAccountType InvoiceId PricingCurrency PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost
PricingCurrencyListUnitPrice SubAccountType
"""
V10 = FIRST.split()
V11 = [*V10, *ADDED_IN_11.split()]
V12 = [*V11, *ADDED_IN_12.split()]
VERSIONS = {"1.0": V10, "1.1": V11, "1.2": V12}

USAGE = {
    "BillingPeriodStart": "2025-09-01T00:00:00Z",
    "BillingPeriodEnd": "2025-10-01T00:00:00.000Z",
    "ChargePeriodStart": "2025-09-03 05:00:00 UTC",
    "ChargePeriodEnd": "2025-09-03T08:00:00+02:00",
    "BillingAccountId": "1234",
    "BillingCurrency": "USD",
    "ChargeCategory": "Usage",
    "ProviderName": "AWS",
    "ServiceCategory": "Compute",
    "ServiceName": "Amazon Elastic Compute Cloud",
    "PricingQuantity": "1.5",
    "PricingUnit": "Hours",
    "BilledCost": "82.56",
    "EffectiveCost": "82.56",
    "ListCost": "147.48",
    "SubAccountId": "5678",
    "SubAccountName": "research",
    "SkuPriceDetails": '{"InstanceType": "p5.48xlarge", "CoreCount": 192}',
    "Tags": '{"team": "vision", "env": "prod"}',
}


def bill(version: str, *rows: dict[str, str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, VERSIONS[version], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(USAGE | row for row in rows)
    return out.getvalue()


MONTH = {
    "usage": {},
    "covered": {
        "BilledCost": "0",
        "EffectiveCost": "41.2800000001",
        "PricingCategory": "Committed",
        "CommitmentDiscountId": "sp-1",
        "CommitmentDiscountStatus": "Used",
    },
    "unused": {
        "BilledCost": "0",
        "EffectiveCost": "10.01",
        "CommitmentDiscountId": "sp-1",
        "CommitmentDiscountStatus": "Unused",
    },
    "purchase": {
        "ChargeCategory": "Purchase",
        "BilledCost": "100",
        "EffectiveCost": "0",
        "PricingUnit": "NULL",
        "Tags": "",
    },
    "tax": {"ChargeCategory": "Tax", "BilledCost": "18.256", "EffectiveCost": "18.256", "ListCost": "", "Tags": ""},
    "credit": {"ChargeCategory": "Credit", "BilledCost": "-50", "EffectiveCost": "-5E+1", "ListCost": "0"},
    "refund": {
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction",
        "BilledCost": "-0.000000000000000001",
        "EffectiveCost": "-0.01",
        "PricingQuantity": "-0.5",
        "ChargePeriodStart": "2025-08-31T00:00:00Z",
        "ChargePeriodEnd": "2025-09-01T00:00:00Z",
    },
    "euro": {"BillingCurrency": "EUR", "BilledCost": "7", "EffectiveCost": "7", "ListCost": "7"},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_known_by_its_columns(file: File, version: str):
    path = file(bill(version, *MONTH.values()))
    reading = read_focus([path])
    assert detect_source(path) == "focus"
    assert reading.provenance["notes"][0] == f"FOCUS {version}"
    assert reading.summary()["rows_in"] == reading.table.height == 8


def test_totals_are_exact_and_never_cross_currencies(file: File):
    facts = read_focus([file(bill("1.2", *MONTH.values()))]).summary()
    # 82.56 + 0 + 0 + 100 + 18.256 - 50 - 1e-18, by hand
    assert facts["BilledCost_USD"] == "150.815999999999999999"
    assert facts["BilledCost_EUR"] == "7"
    # 82.56 + 41.2800000001 + 10.01 + 0 + 18.256 - 50 - 0.01
    assert facts["EffectiveCost_USD"] == "102.0960000001"
    assert facts["ListCost_USD"] == "737.4"  # five lines at 147.48, none of the tax
    assert not any(name.endswith("Cost") for name in facts)


def test_the_report_names_what_a_bill_can_mislead_about(file: File):
    text = bill("1.2", *MONTH.values(), MONTH["usage"])
    quality = dict(read_focus([file(text)]).quality["check", "rows"].iter_rows())
    assert quality["lines in several currencies"] == 9
    assert quality["equal to an earlier row in every field"] == 1
    assert quality["charged for another time than the billing period"] == 1
    assert quality["correction of an earlier bill"] == 1
    assert quality["list cost not in the bill"] == 1


def test_times_instance_types_and_tags_are_read_as_they_stand(file: File):
    reading = read_focus([file(bill("1.1", {}))])
    row = reading.table.row(0, named=True)
    assert (row["ChargePeriodEnd"] - row["ChargePeriodStart"]).total_seconds() == 3600  # 06:00 UTC
    assert row["x_InstanceType"] == "p5.48xlarge"
    assert row["Tags"] == '{"env":"prod","team":"vision"}'
    assert row["PricingQuantity"] == Decimal("1.5")
    meter = read_focus([file(bill("1.1", {"SkuPriceDetails": "", "SkuMeter": "ND96isr H100 v5"}))])
    assert meter.table["x_InstanceType"].item() == "ND96isr H100 v5"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"BillingCurrency": "usd"}, "currency: not three capital letters"),
        ({"BilledCost": "1,5"}, "BilledCost: not a number"),
        ({"BilledCost": ""}, "BilledCost: missing"),
        ({"ChargeCategory": "Gift"}, "ChargeCategory: not one of Usage, Purchase, Tax, Credit, Adjustment"),
        ({"BillingPeriodEnd": "2025-09-01T00:00:00Z"}, "billing period: its end is not after its start"),
        ({"ChargePeriodEnd": "2025-09-04 noon"}, "ChargePeriodEnd: not a time"),
        ({"Tags": '{"a": 1, "a": 2}'}, "Tags: not pairs of a name and a text, each name once"),
    ],
)
def test_faulty_lines_are_rejected_and_counted_as_left_out(file: File, change: dict[str, str], reason: str):
    reading = read_focus([file(bill("1.0", {}, change))])
    assert reading.rejects["row", "reason"].rows() == [(3, reason)]
    assert reading.summary()["BilledCost_USD"] == "82.56"
    assert reading.quality.row(0, named=True)["effect"] == "left out of every figure"


def test_the_versions_have_as_many_columns_as_the_specification():
    assert [len(VERSIONS[version]) for version in ("1.0", "1.1", "1.2")] == [43, 50, 57]


def test_tags_come_as_an_object_or_as_a_list_of_pairs():
    assert normalise_tags('[{"key": "b", "value": "2"}, {"key": "a", "value": null}]') == '{"a":"","b":"2"}'
    assert normalise_tags("{}") == normalise_tags("[]") == "{}"
    for bad in (
        "",
        "5",
        "[5]",
        '["ab"]',
        '[{"key": "a"}]',
        '{"a": {"b": 1}}',
        '{"a": [1]}',
        '[{"key": 1, "value": 2}]',
    ):
        assert normalise_tags(bad) is None


@given(st.text(max_size=30))
def test_any_text_is_tags_or_none(text: str):
    tidy = normalise_tags(text)
    assert tidy is None or normalise_tags(tidy) == tidy
