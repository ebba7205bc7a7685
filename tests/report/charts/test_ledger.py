"""Ledger charts: what is encoded adds up to what came in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from gpuplanner import report as plots


def rows(spec: dict) -> pl.DataFrame:
    (values,) = spec["datasets"].values()
    return pl.DataFrame(values, infer_schema_length=None)


def test_bars_partition_the_installed_hours(ledger):
    drawn = rows(plots.chart_spec(plots.plot_ledger(ledger)))
    assert drawn["gpu_hours"].sum() == pytest.approx(ledger["gpu_hours"].sum())
    assert set(drawn["installed"]) == {16.0}


def test_days_begin_at_local_midnight_and_summer_time_has_its_25_hours():
    start = datetime(2026, 10, 20, 22, tzinfo=UTC)  # midnight in Berlin, summer time ends on the 25th
    hours = [start + timedelta(hours=hour) for hour in range(24 * 8 + 1)]
    frame = pl.DataFrame({"hour": hours, "bucket": "used", "gpu_hours": 1.0})
    drawn = rows(plots.chart_spec(plots.plot_ledger(frame, tz="Europe/Berlin")))
    assert drawn["gpu_hours"].to_list() == [24.0] * 4 + [25.0] + [24.0] * 3
    assert drawn["start"][0] == "2026-10-21T00:00:00Z"


def test_nobody_is_no_tenant_and_small_tenants_are_added_up(ledger):
    drawn = rows(plots.chart_spec(plots.plot_ledger_tenants(ledger, top=2)))
    assert set(drawn["part"]) == {"used", "allocated_idle"}
    assert drawn.filter(name="2 others")["gpu_hours"].sum() == pytest.approx(2 * 72 * 3.0)
    assert drawn["gpu_hours"].sum() == pytest.approx(4 * 72 * 3.0)
