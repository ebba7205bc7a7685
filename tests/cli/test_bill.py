"""``gpuplanner bill``: from an export to sums that meet it."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from gpuplanner.cli.application import Exit

COLUMNS = (
    "identity/LineItemId,bill/BillingPeriodStartDate,bill/BillingPeriodEndDate,bill/PayerAccountId,"
    "lineItem/UsageAccountId,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/LineItemType,"
    "lineItem/ProductCode,lineItem/UsageType,lineItem/UsageAmount,lineItem/CurrencyCode,lineItem/UnblendedCost,pricing/unit,"
    "product/instanceType,product/ProductName,pricing/publicOnDemandCost,resourceTags/user:team"
)
MONTH = "2025-09-01T00:00:00Z,2025-10-01T00:00:00Z"
USED = "2025-09-03T00:00:00Z,2025-09-03T02:00:00Z"


@pytest.fixture
def bill(tmp_path, command):
    lines = [
        f"a,{MONTH},1,2,{USED},Usage,AmazonEC2,BoxUsage,2,USD,110.08,Hrs,p5.48xlarge,EC2,110.08,vision",
        f"b,{MONTH},1,2,{USED},Usage,AmazonEC2,BoxUsage,2,USD,3.33,Hrs,u9.unknown,EC2,3.33,",
        f"c,{MONTH},1,2,{USED},Tax,AmazonEC2,,1,USD,0.07,,,EC2,,",
    ]
    path = tmp_path / "cur.csv"
    path.write_text("\n".join([COLUMNS, *lines]) + "\n")
    code, out, err = command("ingest", "auto", str(path), "-o", str(tmp_path / "bill"), "--json")
    assert code == 0, err
    assert json.loads(out)["rows_kept"] == 3
    return tmp_path / "bill"


def test_sums_meet_the_bill_and_unknown_types_are_named(command, bill):
    code, out, _ = command("bill", str(bill), "--tag", "team", "--json")
    assert code == 0
    found = json.loads(out)
    gpu = next(row for row in found["summary"] if row["x_InstanceType"] == "p5.48xlarge")
    assert (gpu["tenant"], gpu["gpu_hours"], Decimal(gpu["BilledCost"])) == ("vision", 16.0, Decimal("110.08"))
    assert [Decimal(row["BilledCost"]) for row in found["totals"]] == [Decimal("113.48")]
    assert sum(Decimal(row["BilledCost"]) for row in found["summary"]) == Decimal("113.48")
    assert [row["x_InstanceType"] for row in found["unknown instance types"]] == ["u9.unknown"]
    assert "p5.48xlarge" in command("bill", str(bill))[1]


def test_what_is_no_bill_is_refused(command, bill, tmp_path):
    nodes = tmp_path / "spot.csv"
    nodes.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n")
    code, _, err = command("ingest", "auto", str(nodes), "--tz", "UTC", "-o", str(tmp_path / "requests"))
    assert code == 0, err
    code, _, err = command("bill", str(tmp_path / "requests"))
    assert code == Exit.BAD_INPUT
    assert "expected the charges of a bill; got requests" in err
