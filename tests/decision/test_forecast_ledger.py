"""The ledger of forecasts: what was said stands, what came is filled in, and errors are those of a count by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.savings_track_record import (
    LEDGER_SCHEMA,
    price_forecast_errors,
    read_ledger,
    score_forecasts,
    update_forecast_ledger,
)
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.planner.plan_problem import DEFAULT_UNMET_DEMAND_PRICE
from gpuplanner.report.cost_and_forecast_sections import render_forecast_record

EMPTY = pl.DataFrame(schema=LEDGER_SCHEMA)


def a_week_later(study):
    """A study whose demand goes on for a week as twice what was forecast, and whose forecast follows that."""
    tables = dict(study.tables)
    told = tables["forecast"].filter(pl.col("unique_id").str.starts_with("all/"))
    kinds = tables["demand"].select("unique_id", "tenant", "profile").unique()
    came = told.select("unique_id", "ds", y=2 * pl.col("q50")).join(kinds, on="unique_id")
    tables["demand"] = pl.concat([tables["demand"], came], how="diagonal_relaxed").sort("unique_id", "ds")
    week = timedelta(days=7)
    tables["forecast"] = tables["forecast"].with_columns(pl.col("ds", "cutoff") + week)
    return replace(study, tables=tables)


def test_a_later_report_fills_in_what_came_and_what_was_said_stands(study, tmp_path):
    first = update_forecast_ledger(EMPTY, study)
    assert first.height > 0
    assert first["y"].null_count() == first.height
    assert score_forecasts(first).is_empty()
    assert "a later report shows" in render_forecast_record(first)
    assert update_forecast_ledger(first, study).equals(first)  # the same month again

    path = tmp_path / "forecasts.parquet"
    first.write_parquet(path)
    both = update_forecast_ledger(read_ledger(path), a_week_later(study))
    assert both.select(*LEDGER_SCHEMA).filter(pl.col("cutoff") == first["cutoff"][0]).drop("y").equals(first.drop("y"))
    row = score_forecasts(both).row(0, named=True)
    assert score_forecasts(both).height == 1  # of the second forecast nothing has come
    y, median = 2 * first["q50"].to_numpy(), first["q50"].to_numpy()
    planned, last = first["planned"].to_numpy(), first["last_value"].to_numpy()
    price = DEFAULT_UNMET_DEMAND_PRICE
    assert row["mae"] == pytest.approx(np.abs(y - median).mean())
    assert row["naive_mae"] == pytest.approx(np.abs(y - last).mean())
    assert row["cost"] == pytest.approx((planned + price * np.maximum(y - planned, 0)).sum() / y.sum())
    assert row["naive_cost"] == pytest.approx((last + price * np.maximum(y - last, 0)).sum() / y.sum())
    assert f"{row['cost']:.2f} per instance" in render_forecast_record(both)


def test_what_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(ScenarioError, match="a ledger of forecasts"):
        read_ledger(path)


def test_what_came_before_the_recent_past_is_counted_from_the_jobs(study):
    """A month of 31 days forecasts slots that lie before the 28 days of the next report."""
    demand = study.tables["demand"].sort("ds")
    early = demand["ds"].unique().sort()[:24]
    told = update_forecast_ledger(EMPTY, study).sort("ds").group_by("unique_id", maintain_order=True).head(24)
    told = told.with_columns(ds=pl.Series(early.to_list() * told["unique_id"].n_unique(), dtype=told["ds"].dtype))
    later = replace(study, tables={**study.tables, "demand": demand.filter(pl.col("ds") > early[-1])})
    found = update_forecast_ledger(told, later).filter(pl.col("ds").is_in(early.to_list()))
    came = demand.select("unique_id", "ds", came="y")
    both = found.join(came, on=["unique_id", "ds"], how="left").with_columns(pl.col("came").fill_null(0.0))
    assert both.height == 24 * told["unique_id"].n_unique()
    assert both["y"].to_list() == pytest.approx(both["came"].to_list())
    assert both["y"].sum() > 0


def test_what_a_wrong_forecast_costs_is_counted_by_hand():
    """Slots of 4 h at 2 USD: three GPUs too many, and two instances of 1/7 too few, each at five times its price."""
    noon = datetime(2026, 2, 1, 12, tzinfo=UTC)
    row = {
        "cutoff": noon,
        "ds": noon,
        "model": "x",
        "q05": 0.0,
        "q50": 0.0,
        "q95": 0.0,
        "last_value": 0.0,
        "price": 5.0,
    }
    ledger = pl.DataFrame(
        [row | {"unique_id": name, "planned": planned, "y": came}
         for name, planned, came in (("all/gpu", 10.0, 7.0), ("all/1g.10gb", 0.0, 2.0), ("all/2g.20gb", 9.0, None))],
        schema=LEDGER_SCHEMA,
    )  # fmt: skip
    gpu_model = load_gpu_model("H100-80GB-SXM5")
    [found] = price_forecast_errors(ledger, Scenario(interval_hours=4), gpu_model, 2.0).rows(named=True)
    assert found["over_gpu_hours"] == pytest.approx(3 * 4)
    assert found["short_gpu_hours"] == pytest.approx(2 / 7 * 4)
    assert found["cost"] == pytest.approx(2.0 * (3 * 4 + (5 - 1) * 2 / 7 * 4))
