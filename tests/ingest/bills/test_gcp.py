"""Billing exports of Google Cloud: a machine is charged part by part, and credits belong to their lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.ingest.bills.azure_and_gcp_bills import read_gcp
from gpuplanner.ingest.bills.bill_summary import add_gpu_hours
from gpuplanner.ingest.source_registry import detect_source

File = Callable[..., Path]
MACHINE = [{"key": "compute.googleapis.com/machine_spec", "value": "a3-highgpu-8g"}]


def a_line(what: str, hours: float, cost: float, unit: str = "hour", **more: Any) -> dict[str, Any]:
    return {
        "billing_account_id": "01-A", "invoice": {"month": "202509"}, "currency": "USD", "cost": cost,
        "usage_start_time": "2025-09-02 10:00:00 UTC", "usage_end_time": "2025-09-02 11:00:00 UTC",
        "service": {"id": "6F81", "description": "Compute Engine"}, "sku": {"id": what[:4], "description": what},
        "cost_type": "regular", "project": {"id": "p-1", "name": "research"}, "location": {"region": "us-central1"},
        "labels": [{"key": "team", "value": "vision"}], "system_labels": MACHINE, "credits": [],
        "usage": {"amount": hours * 3600, "unit": "seconds", "amount_in_pricing_units": hours, "pricing_unit": unit},
    } | more  # fmt: skip


# Two hours of a machine with eight GPUs, in parts; a spot GPU; a commitment's fee; tax and a correction.
LINES = [
    a_line("A3 High Instance H100 GPU running in Americas", 16.0, 156.8, credits=[{"name": "CUD", "amount": -56.8}]),
    a_line("A3 High Instance Core running in Americas", 416.0, 10.400001),
    a_line("A3 High Instance Ram running in Americas", 3744.0, 8.2, "gibibyte hour"),
    a_line("Spot Preemptible A3 High H100 GPU running in Americas", 8.0, 25.0, labels=[]),
    a_line("Commitment v1: A3 High H100 GPU in Americas for 1 Year", 24.0, 100.0),
    a_line("Tax", 0.0, 0.000012, cost_type="tax", system_labels=[]),
    a_line("Correction of August", 0.0, -3.5, cost_type="adjustment", system_labels=[]),
]  # fmt: skip
BILLED = Decimal("156.8") - Decimal("56.8") + Decimal("10.400001") + Decimal("8.2") + 25 + 100
BILLED += Decimal("0.000012") - Decimal("3.5")


def check(found: Any) -> None:
    assert found.rejects.is_empty()
    assert Decimal(found.provenance["totals"]["BilledCost_USD"]) == BILLED
    lines = add_gpu_hours(found.table)
    assert lines["gpu_hours"].sum() == 24.0  # neither cores nor the fee count as GPUs
    assert lines.filter(pl.col("gpu_hours") > 0)["gpu_model"].unique().to_list() == ["H100-80GB-SXM5"]
    assert lines["PricingUnit"].to_list()[:3] == ["GPU-Hours", "Core-Hours", "gibibyte hour"]
    assert lines["ChargeCategory"].to_list()[3:] == ["Usage", "Purchase", "Tax", "Adjustment"]
    assert lines["PricingCategory"].to_list()[3] == "Dynamic"
    assert lines["Tags"].to_list()[2:4] == ['{"team":"vision"}', None]


def test_lines_of_json(file: File):
    path = file("".join(json.dumps(line) + "\n" for line in LINES))
    assert detect_source(path) == "gcp"
    check(read_gcp([path]))


def test_the_same_as_parquet(tmp_path: Path):
    path = tmp_path / "export.parquet"
    instant = pl.col("usage_start_time", "usage_end_time").str.to_datetime("%Y-%m-%d %H:%M:%S UTC", time_zone="UTC")
    pl.DataFrame(LINES, infer_schema_length=None).with_columns(instant).write_parquet(path)
    assert detect_source(path) == "gcp"
    check(read_gcp([path]))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"invoice": {"month": "September"}}, "not a month"),
        ({"cost_type": "gift"}, "cost_type: not one of"),
        ({"credits": [{"name": "CUD"}]}, "not a list of amounts"),
        ({"cost": "=1+1"}, "not a number"),
        ({"billing_account_id": None}, "missing"),
    ],
)
def test_a_line_with_a_fault_is_rejected_and_the_others_stay(file: File, fault: dict[str, Any], why: str):
    found = read_gcp([file("".join(json.dumps(line) + "\n" for line in (LINES[0] | fault, LINES[1])))])
    assert found.table.height == 1
    assert why in found.rejects["reason"].item()
