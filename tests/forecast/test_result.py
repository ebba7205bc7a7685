"""The whole forecast: table, determinism, coverage, odd series, and the public Philly trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.backtest import mae, seasonal_scale
from gpuplanner.forecast.demand_forecast import forecast_demand
from gpuplanner.usage.requested_demand import demand_series


@pytest.fixture(scope="module")
def result(make_demand, daily_wave):
    series = {f"t{number}/gpu": daily_wave(number, 504) for number in range(5)}
    spike = np.zeros(504)
    spike[300] = 8.0
    odd = {"flat/gpu": np.full(504, 3.0), "zero/gpu": np.zeros(504), "spike/gpu": spike}
    return forecast_demand(make_demand(series | odd), horizon=48, windows=4)


def test_table_holds_every_series_and_slot(result):
    forecast = check_table(result.forecast, Forecast, source="forecast")
    assert forecast.equals(forecast.sort("unique_id", "ds"))
    assert forecast["unique_id"].n_unique() == 8
    ds = forecast.filter(unique_id="t0/gpu")["ds"]
    assert ds.len() == 48
    assert ds[0] == forecast["cutoff"][0]
    assert ds.diff().drop_nulls().unique().to_list() == [timedelta(hours=1)]
    assert str(ds.dtype) == "Datetime(time_unit='us', time_zone='UTC')"


def test_chosen_model_beats_naive_on_waves_and_its_error_is_told(result):
    waves = result.choice.filter(rule="full")
    assert (waves["mase"] < 0.6 * waves["naive_mase"]).all()
    assert waves["windows"].to_list() == [4] * 5


def test_measured_coverage_is_near_what_is_promised(result):
    waves = result.scores.filter(pl.col("rule") == "full", pl.col("model") == "Reverting")
    for name, level in (("coverage_50", 0.5), ("coverage_80", 0.8), ("coverage_90", 0.9)):
        assert waves[name].mean() == pytest.approx(level, abs=0.1)


def test_same_demand_same_forecast_in_any_order(make_demand, daily_wave):
    demand = make_demand({"a/gpu": daily_wave(1, 200), "b/gpu": daily_wave(2, 200)})
    one = forecast_demand(demand, horizon=24, windows=2)
    other = forecast_demand(demand.sample(fraction=1, shuffle=True, seed=3), horizon=24, windows=2)
    assert one.forecast.equals(other.forecast)
    assert one.scores.equals(other.scores)


@pytest.mark.parametrize("slots", [4, 30, 80])
def test_short_histories_get_a_forecast(make_demand, slots):
    result = forecast_demand(make_demand({"a/gpu": np.arange(slots) % 5}), horizon=2)
    assert result.forecast.height == 2
    assert result.choice["rule"].item() == ("short" if slots < 48 else "full")


def test_no_forecast_without_a_past_error(make_demand):
    with pytest.raises(SchemaError, match="Shorten the horizon"):
        forecast_demand(make_demand({"a/gpu": np.arange(20.0)}), horizon=19)


@pytest.mark.long
@pytest.mark.data
@pytest.mark.slow
def test_philly_a_week_ahead(philly_jobs):
    demand = demand_series(philly_jobs, end=datetime(2017, 12, 22, 7, tzinfo=UTC))
    hours = demand["ds"].unique().sort()
    chosen, naive, covered = [], [], []
    for weeks_back in range(3):
        until = len(hours) - 168 - 144 * weeks_back
        train = demand.filter(pl.col("ds") < hours[until])
        result = forecast_demand(train, horizon=168)
        for uid in result.choice.filter(rule="full")["unique_id"]:
            history = train.filter(unique_id=uid)["y"].to_numpy()
            actual = demand.filter(unique_id=uid)["y"].to_numpy()[until : until + 168]
            said = result.forecast.filter(unique_id=uid)
            chosen.append(mae(actual, said["q50"].to_numpy()) / seasonal_scale(history, 24))
            naive.append(mae(actual, np.full(168, history[-1])) / seasonal_scale(history, 24))
            low, high = (said[name].to_numpy() for name in ("q05", "q95"))
            covered.append(((actual >= low) & (actual <= high)).mean())
    assert np.mean(chosen) < np.mean(naive)
    assert 0.80 <= np.mean(covered) <= 0.99  # three weeks of six series are a noisy measure of 90 %
