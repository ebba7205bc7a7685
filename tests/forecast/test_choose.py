"""The choice among models by their records."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gpuplanner.forecast import MODELS, backtest, choose, score


def make_scores(mase, rule="full"):
    """Scores of series by model: {series: {model: mase}}."""
    rows = [
        {"unique_id": uid, "model": model, "rule": rule, "mase": value, "mae": value}
        for uid, by_model in mase.items()
        for model, value in by_model.items()
    ]
    return pl.DataFrame(rows, schema_overrides={"mase": pl.Float64, "mae": pl.Float64})


def chosen(scores):
    return dict(choose(scores).iter_rows())


def test_best_record_wins_and_ties_go_to_the_simpler():
    assert chosen(make_scores({"a": {"Naive": 2.0, "Median": 1.0, "AutoETS": 1.5}})) == {"a": "Median"}
    assert chosen(make_scores({"a": {"Naive": 1.0, "Median": 1.0, "AutoETS": 1.0}})) == {"a": "Naive"}


def test_the_record_on_other_series_counts_for_more_than_the_own():
    others = {f"s{number}": {"Naive": 1.0, "Median": 0.7} for number in range(9)}
    slightly_worse = {"odd": {"Naive": 1.0, "Median": 1.1}}
    much_worse = {"odd": {"Naive": 1.0, "Median": 2.9}}
    assert chosen(make_scores(others | slightly_worse))["odd"] == "Median"
    assert chosen(make_scores(others | much_worse))["odd"] == "Naive"


def test_one_hopeless_series_does_not_judge_for_all():
    others = {f"s{number}": {"Naive": 1.0, "Median": 0.6} for number in range(6)}
    hopeless = {"odd": {"Naive": 0.01, "Median": 50.0}}
    assert chosen(make_scores(others | hopeless))["s0"] == "Median"


def test_a_perfect_naive_forecast_is_kept():
    assert chosen(make_scores({"a": {"Naive": 0.0, "Median": 0.2}}, rule="intermittent")) == {"a": "Naive"}


def test_without_any_backtest_the_naive_forecast_is_kept():
    assert chosen(make_scores({"a": {"Naive": None, "Median": None}})) == {"a": "Naive"}


@pytest.fixture(scope="module")
def scores(make_demand, daily_wave):
    demand = make_demand(
        {"wave/gpu": daily_wave(1, 500), "flat/gpu": np.full(500, 3.0), "zero/gpu": np.zeros(500)}
    )
    return score(backtest(demand, horizon=24, windows=5))


def test_naive_is_always_in_the_table_and_models_stand_in_order(scores):
    by_series = {key[0]: part["model"].to_list() for key, part in scores.group_by("unique_id")}
    wave = by_series.pop("wave/gpu")
    assert wave == [model for model in MODELS if model in wave]
    assert {"Naive", "WeeklyMean", "Median", "AutoETS"} <= set(wave)
    assert by_series == {"flat/gpu": ["Naive"], "zero/gpu": ["Naive"]}


def test_a_wave_is_better_forecast_by_its_season(scores):
    wave = dict(scores.filter(unique_id="wave/gpu").select("model", "mase").iter_rows())
    assert wave["AutoETS"] < wave["SeasonalNaive"] < wave["Naive"]
    assert wave["SeasonalNaive"] == pytest.approx(1.0, abs=0.15)


def test_a_constant_has_no_scale_but_no_error_either(scores):
    flat = scores.filter(unique_id="flat/gpu").row(0, named=True)
    assert flat["mase"] is None
    assert (flat["mae"], flat["pinball"], flat["coverage_90"], flat["windows"]) == (0, 0, 1, 5)
