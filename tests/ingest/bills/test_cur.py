"""AWS Cost and Usage Reports: the legacy columns and those of CUR 2.0."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from gpuplanner.ingest.bills.aws_and_focus_bills import FIELD_BY_CUR_COLUMN, read_cur, to_cur2_name
from gpuplanner.ingest.source_registry import detect_source

File = Callable[..., Path]

# A month of one p5.48xlarge node pool, as the report's columns tell it: on demand, under a reservation, under a
# savings plan (with its negation), the fees of both, spot, tax, credit and refund.
LINES: list[dict[str, str]] = [
    {"type": "Usage", "amount": "10", "cost": "550.40", "list": "983.2"},
    {"type": "DiscountedUsage", "amount": "20", "cost": "0", "reserved": "500.1", "arn": "ri-1", "list": "1966.4"},
    {"type": "RIFee", "amount": "720", "cost": "900", "upfront": "30.5", "recurring": "9.5", "arn": "ri-1"},
    {"type": "Fee", "amount": "1", "cost": "4000", "arn": "ri-1"},
    {"type": "SavingsPlanCoveredUsage", "amount": "5", "cost": "275.2", "planned": "150.25", "plan": "sp-1"},
    {"type": "SavingsPlanNegation", "amount": "5", "cost": "-275.2", "plan": "sp-1"},
    {"type": "SavingsPlanRecurringFee", "cost": "200", "committed": "200", "used": "150.25", "plan": "sp-1"},
    {"type": "Usage", "amount": "3", "cost": "30.03", "usage": "USE1-SpotUsage:p5.48xlarge"},
    {"type": "Tax", "cost": "123.4567890123", "usage": ""},
    {"type": "Credit", "cost": "-100", "usage": ""},
    {"type": "Refund", "cost": "-0.0000000001", "usage": ""},
    {"type": "Usage", "amount": "8", "cost": "0.8", "usage": "USE1-BoxUsage:m5.large", "currency": "CNY"},
]
BILLED_USD = Decimal("550.40") + 900 + 4000 + 200 + Decimal("30.03") + Decimal("123.4567890122") - 100
EFFECTIVE_USD = sum(
    map(Decimal, ("550.40", "500.1", "40", "0", "150.25", "0", "49.75", "30.03", "123.4567890122", "-100"))
)


def report(lines: list[dict[str, str]], *, legacy: bool) -> str:
    names = list(FIELD_BY_CUR_COLUMN)
    tags = ["resourceTags/user:team", "resourceTags/aws:createdBy"] if legacy else ["resource_tags"]
    header = [name if legacy else to_cur2_name(name) for name in names] + tags
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for line in lines:
        values = {
            "bill/BillingPeriodStartDate": "2025-09-01T00:00:00.000Z",
            "bill/BillingPeriodEndDate": "2025-10-01T00:00:00.000Z",
            "bill/PayerAccountId": "111122223333",
            "lineItem/UsageAccountId": "444455556666",
            "lineItem/LineItemType": line["type"],
            "lineItem/UsageStartDate": "2025-09-03T00:00:00.000Z",
            "lineItem/UsageEndDate": "2025-09-04T00:00:00.000Z",
            "lineItem/ProductCode": "AmazonEC2",
            "lineItem/UsageType": line.get("usage", "USE1-BoxUsage:p5.48xlarge"),
            "lineItem/UsageAmount": line.get("amount", ""),
            "lineItem/CurrencyCode": line.get("currency", "USD"),
            "lineItem/UnblendedCost": line["cost"],
            "pricing/publicOnDemandCost": line.get("list", ""),
            "reservation/ReservationARN": line.get("arn", ""),
            "reservation/EffectiveCost": line.get("reserved", ""),
            "reservation/UnusedAmortizedUpfrontFeeForBillingPeriod": line.get("upfront", ""),
            "reservation/UnusedRecurringFee": line.get("recurring", ""),
            "savingsPlan/SavingsPlanARN": line.get("plan", ""),
            "savingsPlan/SavingsPlanEffectiveCost": line.get("planned", ""),
            "savingsPlan/TotalCommitmentToDate": line.get("committed", ""),
            "savingsPlan/UsedCommitment": line.get("used", ""),
        }
        team = line.get("team", "vision")
        tagged = [team, "root"] if legacy else [json.dumps({"user_team": team, "aws:createdBy": "root"})]
        writer.writerow([values.get(name, "") for name in names] + tagged)
    return out.getvalue()


@pytest.fixture(params=[True, False], ids=["legacy", "CUR 2.0"])
def legacy(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_a_month_by_hand(file: File, legacy: bool):
    path = file(report(LINES, legacy=legacy))
    reading = read_cur([path])
    facts = reading.summary()
    assert detect_source(path) == "cur"
    assert (facts["rows_in"], facts["rows_kept"]) == (12, 12)
    assert Decimal(facts["BilledCost_USD"]) == BILLED_USD == Decimal("5703.8867890122")
    assert Decimal(facts["EffectiveCost_USD"]) == EFFECTIVE_USD == Decimal("1343.9867890122")
    assert facts["BilledCost_CNY"] == "0.8"
    assert reading.provenance["notes"][0] == ("legacy report" if legacy else "CUR 2.0")


def test_times_without_an_offset_are_utc_as_athena_writes_them(file: File, legacy: bool):
    text = report(LINES, legacy=legacy)
    naive = text.replace("T00:00:00.000Z", " 00:00:00.000")
    assert naive != text
    assert read_cur([file(naive, "naive.csv")]).table.equals(read_cur([file(text)]).table)


def test_both_reports_give_the_same_charges(file: File):
    tables = [read_cur([file(report(LINES, legacy=each), f"{each}.csv")]).table for each in (True, False)]
    assert tables[0].equals(tables[1])
    assert json.loads(tables[0]["Tags"][0]) == {"team": "vision", "aws:createdBy": "root"}


def test_lines_become_focus_charges(file: File, legacy: bool):
    table = read_cur([file(report(LINES, legacy=legacy))]).table
    columns = ["ChargeCategory", "PricingCategory", "CommitmentDiscountStatus", "CommitmentDiscountId"]
    assert table.select(columns).rows() == [
        ("Usage", "Standard", None, None),
        ("Usage", "Committed", "Used", "ri-1"),
        ("Purchase", None, None, "ri-1"),
        ("Purchase", None, None, "ri-1"),
        ("Usage", "Committed", "Used", "sp-1"),
        ("Usage", None, None, "sp-1"),
        ("Purchase", None, None, "sp-1"),
        ("Usage", "Dynamic", None, None),
        ("Tax", None, None, None),
        ("Credit", None, None, None),
        ("Adjustment", None, None, None),
        ("Usage", "Standard", None, None),
    ]
    assert table["ChargeClass"].to_list().count("Correction") == 1
    assert table["PricingQuantity"][5] is None  # a negation takes back money, not hours
    assert table["x_InstanceType"].drop_nulls().unique().sort().to_list() == ["m5.large", "p5.48xlarge"]


def test_covered_usage_without_its_effective_cost_is_reported(file: File, legacy: bool):
    line = {"type": "DiscountedUsage", "amount": "20", "cost": "7"}
    reading = read_cur([file(report([line], legacy=legacy))])
    assert reading.summary()["EffectiveCost_USD"] == "7"
    assert "covered usage without its effective cost" in reading.quality["check"].to_list()
