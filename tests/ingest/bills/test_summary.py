"""GPU-hours and cost of a bill: by hand, and reconciled to the last digit."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import TABLES
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.bills.bill_summary import (
    add_gpu_hours,
    add_tenants,
    compare_costs,
    find_unknown_types,
    read_instance_types,
    sum_costs,
    summarise_bill,
)
from tests.examples import examples

SEPTEMBER, OCTOBER, AUGUST = (datetime(2025, month, 1, tzinfo=UTC) for month in (9, 10, 8))

LINE: dict[str, Any] = {
    "BillingPeriodStart": SEPTEMBER,
    "BillingPeriodEnd": OCTOBER,
    "ChargePeriodStart": SEPTEMBER,
    "ChargePeriodEnd": OCTOBER,
    "BillingAccountId": "1",
    "SubAccountId": "2",
    "SubAccountName": None,
    "ChargeCategory": "Usage",
    "ServiceCategory": "Compute",
    "x_InstanceType": "p5.48xlarge",
    "PricingQuantity": Decimal(1),
    "PricingUnit": "Hrs",
    "CommitmentDiscountStatus": None,
    "BilledCost": Decimal("55.04"),
    "EffectiveCost": Decimal("55.04"),
    "ListCost": None,
    "BillingCurrency": "USD",
    "Tags": '{"team":"vision"}',
}


def charges(*changes: dict[str, Any]) -> pl.DataFrame:
    schema = {name: column.dtype for name, column in TABLES["charges"].columns().items()}
    rows = [dict.fromkeys(schema) | LINE | change for change in changes]
    return check_table(pl.DataFrame(rows, schema=schema), TABLES["charges"], source="charges")


@pytest.mark.parametrize(
    ("change", "held", "unused"),
    [
        ({}, 8.0, None),
        ({"PricingQuantity": Decimal("2.25"), "x_InstanceType": "p4d.24xlarge"}, 18.0, None),
        ({"x_InstanceType": "ND96isr H100 v5 Spot", "PricingUnit": "1 Hour"}, 8.0, None),
        ({"x_InstanceType": "Standard_NC6s_v3", "PricingUnit": "100 Hours"}, 100.0, None),
        ({"PricingUnit": "GPU-Hours", "x_InstanceType": None}, 1.0, None),
        ({"PricingQuantity": Decimal("-0.5")}, -4.0, None),
        ({"CommitmentDiscountStatus": "Unused"}, None, 8.0),
        ({"CommitmentDiscountStatus": "Used"}, 8.0, None),
        ({"ChargeCategory": "Purchase"}, None, None),
        ({"PricingUnit": "GB-Mo"}, None, None),
        ({"PricingQuantity": None}, None, None),
        ({"x_InstanceType": "m5.large"}, None, None),
    ],
)
def test_gpu_hours_of_one_line(change: dict[str, Any], held: float | None, unused: float | None):
    line = add_gpu_hours(charges(change)).row(0, named=True)
    assert (line["gpu_hours"], line["unused_gpu_hours"]) == (held, unused)


def test_every_type_of_the_catalogue_is_known_once():
    prices = facts("gpu_prices").select("instance_type", "gpu_model", "gpu_count").unique()
    assert read_instance_types()["key"].is_unique().all()
    lines = add_gpu_hours(charges(*({"x_InstanceType": name} for name in prices["instance_type"])))
    assert lines["gpu_hours"].to_list() == [float(count) for count in prices["gpu_count"]]
    assert lines["gpu_model"].to_list() == prices["gpu_model"].to_list()


def test_unknown_types_are_reported_dearest_first_and_never_guessed():
    bill = charges(
        {},
        {"x_InstanceType": "p9.48xlarge", "BilledCost": Decimal(90), "PricingQuantity": Decimal(2)},
        {"x_InstanceType": "p9.48xlarge", "BilledCost": Decimal(9), "PricingUnit": "Quantity"},
        {"x_InstanceType": "m5.large", "BilledCost": Decimal("0.1"), "PricingUnit": "Quantity"},
        {"x_InstanceType": "m5.large", "BilledCost": Decimal(5), "BillingCurrency": "EUR"},
        {"x_InstanceType": "LRS Data", "ServiceCategory": "Storage"},
        {"x_InstanceType": "p9.48xlarge", "ChargeCategory": "Tax"},
        {"x_InstanceType": None, "ChargeDescription": "GPU-hours of a cluster", "PricingUnit": "GPU-Hours"},
    )
    assert find_unknown_types(bill).rows() == [
        ("m5.large", "EUR", 1, 1.0, Decimal(5)),
        ("p9.48xlarge", "USD", 2, 2.0, Decimal(99)),
        ("m5.large", "USD", 1, None, Decimal("0.1")),
    ]
    assert summarise_bill(bill)["gpu_hours"].sum() == 9.0


def test_a_month_by_tenant_and_type():
    bill = charges(
        {},
        {"PricingQuantity": Decimal(3), "BilledCost": Decimal("165.12")},
        {"Tags": '{"team":"speech"}', "x_InstanceType": "g5.xlarge", "BilledCost": Decimal("1.006")},
        {"Tags": None, "ChargeCategory": "Tax", "BilledCost": Decimal("18.5"), "x_InstanceType": None},
        {"BillingCurrency": "EUR", "BilledCost": Decimal(7)},
        {"ChargePeriodStart": AUGUST, "ChargePeriodEnd": SEPTEMBER, "BilledCost": Decimal("-5")},
    )
    columns = ["month", "tenant", "BillingCurrency", "ChargeCategory", "x_InstanceType", "gpu_hours", "BilledCost"]
    assert summarise_bill(bill, tag="team").select(columns).rows() == [
        ("2025-09", "speech", "USD", "Usage", "g5.xlarge", 1.0, Decimal("1.006")),
        ("2025-09", "untagged", "USD", "Tax", None, 0.0, Decimal("18.5")),
        ("2025-09", "vision", "EUR", "Usage", "p5.48xlarge", 8.0, Decimal(7)),
        ("2025-09", "vision", "USD", "Usage", "p5.48xlarge", 40.0, Decimal("215.16")),
    ]
    by_charge = summarise_bill(bill, tag="team", period="charge")
    assert by_charge.filter(month="2025-08")["BilledCost"].to_list() == [Decimal(-5)]
    assert sum_costs(bill)["BilledCost"].to_list() == [Decimal(7), Decimal("234.666")]


def test_tenants_without_a_tag_are_the_accounts():
    bill = charges({}, {"SubAccountName": "lab"}, {"SubAccountId": None})
    assert add_tenants(bill)["tenant"].to_list() == ["2", "lab", "1"]


amounts = st.decimals(-(10**7), 10**7, places=18).map(lambda value: value.normalize())


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "BilledCost": amounts,
                "EffectiveCost": amounts,
                "ListCost": st.none() | amounts,
                "BillingCurrency": st.sampled_from(["USD", "EUR", "CNY"]),
                "ChargeCategory": st.sampled_from(["Usage", "Purchase", "Tax", "Credit", "Adjustment"]),
                "x_InstanceType": st.sampled_from([None, "p5.48xlarge", "m5.large", "g5.xlarge"]),
                "Tags": st.sampled_from([None, "{}", '{"team":"a"}', '{"team":"b"}']),
                "ChargePeriodStart": st.sampled_from([AUGUST, SEPTEMBER]),
            }
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([None, "team"]),
    st.sampled_from(["billing", "charge"]),
)
def test_every_summary_reconciles_to_the_last_digit(lines: list[dict[str, Any]], tag: str | None, period: Any):
    bill = charges(*lines)
    parts = summarise_bill(bill, tag=tag, period=period)
    assert parts["lines"].sum() == len(lines)
    for cost in ("BilledCost", "EffectiveCost", "ListCost"):
        by_hand: dict[str, Decimal] = {}
        for line in lines:
            currency = line["BillingCurrency"]
            by_hand[currency] = by_hand.get(currency, Decimal(0)) + (line[cost] or Decimal(0))
        assert dict(parts.group_by("BillingCurrency").agg(pl.col(cost).sum()).iter_rows()) == by_hand
        assert not any(compare_costs(parts, bill)[cost])


def test_a_lost_line_shows_in_the_difference():
    bill = charges({}, {"BillingCurrency": "EUR", "BilledCost": Decimal("0.01")})
    missing = compare_costs(summarise_bill(bill.head(1)), bill)
    assert missing["BillingCurrency", "BilledCost"].rows() == [("EUR", Decimal("-0.01")), ("USD", Decimal(0))]
