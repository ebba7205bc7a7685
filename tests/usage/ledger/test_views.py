"""Sums of a ledger."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import GPU_TIME_BUCKETS, Ledger
from gpuplanner.usage.gpu_hour_ledger import (
    UNUSED_BUCKETS,
    hours_by_bucket,
    hours_by_tenant,
    reconcile_ledger,
    unused_share,
)


@pytest.fixture
def ledger(window):
    rows = [
        ("a", "used", 5.0),
        ("a", "allocated_idle", 1.0),
        ("a", "no_telemetry", 2.0),
        ("b", "no_telemetry", 4.0),
        ("-", "unallocated", 6.0),
        ("-", "fragmented", 2.0),
    ]
    table = pl.DataFrame(rows, schema=["tenant", "bucket", "gpu_hours"], orient="row")
    return conform(table.with_columns(hour=window["start"]), Ledger, source="ledger")


def test_buckets_stand_in_order_and_sum_to_one(ledger):
    table = hours_by_bucket(ledger)
    assert table["bucket"].to_list() == list(GPU_TIME_BUCKETS)
    assert table["gpu_hours"].to_list() == [5.0, 6.0, 1.0, 6.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert table["share"].sum() == pytest.approx(1.0)


def test_tenants_show_idleness_of_what_was_observed(ledger):
    assert hours_by_tenant(ledger).rows() == [
        ("a", 8.0, 5.0, 2.0, 1.0, pytest.approx(1 / 6)),
        ("b", 4.0, None, 4.0, None, None),
    ]


def test_use_that_nothing_measured_is_unknown_and_not_zero(ledger):
    unmeasured = ledger.filter(~pl.col("bucket").cast(pl.String).is_in(["used", "allocated_idle"]))
    hours = dict(hours_by_bucket(unmeasured).select(pl.col("bucket").cast(pl.String), "gpu_hours").iter_rows())
    assert hours["used"] is hours["allocated_idle"] is None
    assert hours["no_telemetry"] == 6.0
    assert unused_share(unmeasured)["allocated_idle"] == 0.0


def test_dark_share_by_part(ledger):
    shares = unused_share(ledger)
    assert list(shares) == [*UNUSED_BUCKETS, "unused"]
    assert shares["unused"] == pytest.approx(9 / 20)
    assert shares["allocated_idle"] == pytest.approx(1 / 20)


@pytest.mark.parametrize(
    ("installed", "difference", "balanced"),
    [(20.0, 0.0, True), (20.0 * (1 + 5e-10), -1e-8, True), (19.0, 1.0, False), (0.0, 20.0, False)],
)
def test_reconcile_tells_the_difference(ledger, installed, difference, balanced):
    found = reconcile_ledger(ledger, installed)
    assert found["difference_gpu_hours"] == pytest.approx(difference, abs=1e-12)
    assert found["balanced"] is balanced
