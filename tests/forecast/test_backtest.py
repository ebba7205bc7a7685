"""Rolling origins: where they lie, and that nothing of the future is seen."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.forecast.backtest import backtest


@pytest.mark.parametrize(
    ("slots", "horizon", "windows", "expected", "step"),
    [
        (672, 168, 8, tuple(range(336, 505, 24)), 24),  # four weeks: a day apart
        (2600, 168, 4, (1928, 2096, 2264, 2432), 168),  # long: a horizon apart
        (672, 24, 4, (432, 504, 576, 648), 72),  # short horizon: three days apart
        (60, 24, 4, (36,), 1),  # hardly any history: one origin, at half of it
    ],
)
def test_origins(make_demand, slots, horizon, windows, expected, step):
    test = backtest(make_demand({"a/gpu": np.full(slots, 2.0)}), horizon=horizon, windows=windows)
    assert test.origins == expected
    assert test.step == step


def test_forecasts_do_not_change_with_what_comes_later(make_demand, daily_wave):
    values = daily_wave(1, 400)
    changed = values.copy()
    changed[-48:] = 77.0
    one = backtest(make_demand({"a/gpu": values}), horizon=24, windows=4, step=24)
    other = backtest(make_demand({"a/gpu": changed}), horizon=24, windows=4, step=24)
    for model in one.models[0]:
        np.testing.assert_array_equal(one.predicted[model][:, :3], other.predicted[model][:, :3])
    np.testing.assert_array_equal(one.scale[:, :3], other.scale[:, :3])
    assert (one.predicted["Naive"][:, 3] != other.predicted["Naive"][:, 3]).all()


def test_a_series_that_begins_late_is_judged_only_since_then(make_demand):
    demand = make_demand({"a/gpu": np.arange(120.0) % 7, "b/gpu": np.arange(120.0) % 5})
    late = demand.filter((demand["unique_id"] == "a/gpu") | (demand["y"].cum_count() > 190))
    test = backtest(late, horizon=24, windows=4, step=24)
    assert test.origins == (48, 72, 96)
    assert np.isnan(test.predicted["Naive"][1, 0]).all()
    assert not np.isnan(test.predicted["Naive"][1, 2]).any()


@pytest.mark.long
def test_processes_change_nothing(make_demand, daily_wave):
    demand = make_demand({f"t{number}/gpu": daily_wave(number, 300) for number in range(5)})
    told = []
    options = {"horizon": 24, "windows": 3, "models": ("Naive", "WeeklyMean", "Median", "HourOfDay")}
    one = backtest(demand, **options)
    two = backtest(demand, **options, workers=2, progress=lambda done, total: told.append((done, total)))
    for model, said in one.predicted.items():
        assert said.tobytes() == two.predicted[model].tobytes()
        assert one.raw_quantiles(model).tobytes() == two.raw_quantiles(model).tobytes()
    assert told == [(done, 5) for done in range(1, 6)]


def test_a_dask_scheduler_changes_nothing(make_demand, daily_wave):
    dask = pytest.importorskip("distributed", reason="the extra 'scale' is not installed")
    demand = make_demand({f"t{number}/gpu": daily_wave(number, 300) for number in range(3)})
    told = []
    options = {"horizon": 24, "windows": 3, "models": ("Naive", "WeeklyMean", "HourOfDay")}
    one = backtest(demand, **options)
    with dask.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
        two = backtest(
            demand, **options, workers=local.scheduler_address,
            progress=lambda done, total: told.append((done, total)),
        )  # fmt: skip
    for model, said in one.predicted.items():
        assert said.tobytes() == two.predicted[model].tobytes()
    assert told == [(done, 3) for done in range(1, 4)]
