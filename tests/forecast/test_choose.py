"""What candidates weigh: by records that series share, tried before trusted, and never without their parts."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.model_selection import (
    compare_best_fixed,
    evaluate_backtest,
    fold_scores,
    mean_scores,
    relative_losses,
    score_backtest,
)
from gpuplanner.forecast.statistical_models import SERIES_MODELS

NAMES = ("Naive", "WeeklyMean", "AutoETS")


def record(loss, seasons=8.0, full=True):
    """Records of candidates, from what each lost: a row a candidate, a column a series."""
    loss = np.asarray(loss, dtype=float)
    return relative_losses(loss, np.full(loss.shape, seasons), np.full(loss.shape[1], full), NAMES[: len(loss)])


def test_evidence_of_many_series_outweighs_a_prior_that_one_cannot():
    lost = [[1.0], [0.75]]
    alone, together = record(lost), record(np.repeat(lost, 60, axis=1))
    assert alone[1, 0] > alone[0, 0]  # it is believed to do worse, and two days say little
    assert (together[1] < together[0] - 0.1).all()


def test_a_series_of_its_own_kind_is_told_apart_when_it_has_shown_so_for_long():
    lost = np.repeat([[1.0], [0.7]], 30, axis=1)
    lost[1, -1] = 2.9
    early, late = record(lost, seasons=4.0), record(lost, seasons=400.0)
    assert early[1, -1] < 0 < late[1, -1]
    assert late[1, 0] < 0


def test_one_hopeless_series_does_not_judge_for_all():
    lost = np.repeat([[1.0], [0.6]], 20, axis=1)
    lost[:, -1] = 0.01, 50.0
    assert record(lost, seasons=30.0)[1, 0] < np.log(0.8)


def test_series_that_are_mostly_zero_make_no_common_record():
    lost = np.repeat([[1.0], [0.5]], 40, axis=1)
    assert record(lost, full=False)[1, 0] > record(lost)[1, 0]


def test_what_no_origin_has_tried_weighs_nothing(make_demand, daily_wave):
    demand = make_demand({"a/gpu": daily_wave(1, 300)})
    judged = evaluate_backtest(backtest(demand, horizon=48, windows=2, step=48, models=("SeasonalNaive", "HourOfDay")))
    assert judged.weights[0, 0, 0] == 1.0  # nothing is known before the first origin: the last value is said
    assert (judged.weights[1:, 0, 1:].sum(axis=0) > 0.5).all()
    np.testing.assert_array_equal(judged.mixture[0, 0, :, 3], judged.quantiles["Naive"][0, 0, :, 3])


@pytest.fixture(scope="module")
def waves(make_demand, daily_wave):
    demand = make_demand({"wave/gpu": daily_wave(1, 500), "flat/gpu": np.full(500, 3.0), "zero/gpu": np.zeros(500)})
    return backtest(demand, horizon=24, windows=5)


@pytest.fixture(scope="module")
def scores(waves):
    return score_backtest(waves)


def test_naive_is_always_in_the_table_and_models_stand_in_order(scores):
    by_series = {key[0]: part["model"].to_list() for key, part in scores.group_by("unique_id")}
    wave = by_series.pop("wave/gpu")
    assert wave == [model for model in SERIES_MODELS if model in wave]
    assert {"Naive", "WeeklyMean", "Median", "AutoETS"} <= set(wave)
    assert by_series == {"flat/gpu": ["Naive"], "zero/gpu": ["Naive"]}


def test_a_wave_is_better_forecast_by_its_season(scores):
    wave = dict(scores.filter(unique_id="wave/gpu").select("model", "mase").iter_rows())
    assert wave["AutoETS"] < wave["SeasonalNaive"] < wave["Naive"]
    assert wave["SeasonalNaive"] == pytest.approx(1.0, abs=0.15)


def test_what_was_said_stands_beside_the_candidate_that_was_best_throughout(waves):
    mean = mean_scores(fold_scores(evaluate_backtest(waves, price=5.0, first=2)))
    table = {row["measure"]: row for row in compare_best_fixed(mean).iter_rows(named=True)}
    assert set(table) == {"mase", "pinball", "realised_cost"}
    for measure, row in table.items():
        values = dict(mean.select("model", measure).iter_rows())
        assert row["chosen"] == values.pop("chosen")
        assert row["value"] == values[row["best"]] == min(values.values())
        assert row["ratio"] == row["chosen"] / row["value"]
