"""Rules for odd series, models with known answers, and what stands in where a model fails."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.forecast import statistical_models as models
from gpuplanner.forecast.statistical_models import (
    DESCRIPTION_BY_SERIES_RULE,
    SERIES_MODELS,
    predict_series,
    series_rule,
    usable_models,
)

HOURLY = {"season": 24, "week": 168}


def spike(slots):
    values = np.zeros(slots)
    values[slots // 2] = 8.0
    return values


@pytest.mark.parametrize(
    ("history", "rule"),
    [
        (np.arange(47.0), "short"),
        (np.zeros(400), "constant"),
        (np.concatenate([np.arange(100.0), np.full(672, 3.0)]), "constant"),
        (spike(400), "intermittent"),
        (np.arange(400.0), "full"),
    ],
)
def test_rules(history, rule):
    assert series_rule(history, **HOURLY) == rule
    assert rule in DESCRIPTION_BY_SERIES_RULE


@pytest.mark.parametrize(
    ("rule", "length", "season", "week", "expected"),
    [
        ("full", 336, 24, 168, SERIES_MODELS),
        ("full", 335, 24, 168, ("Naive", "SeasonalNaive", "Reverting", "Median", "AutoETS")),
        ("full", 100, 7, 7, ("Naive", "SeasonalNaive", "Reverting", "Median", "AutoETS")),
        ("full", 100, 1, 1, ("Naive", "Reverting", "Median", "AutoETS")),
        ("intermittent", 400, 24, 168, ("Naive", "SeasonalNaive", "WeeklyNaive", "WeeklyMean", "Reverting", "Median")),
        ("constant", 400, 24, 168, ("Naive",)),
    ],
)
def test_models_of_a_series(rule, length, season, week, expected):
    assert usable_models(rule, length=length, season=season, week=week) == expected


def test_departures_return_to_the_mean_day_as_they_did_before():
    rng = np.random.default_rng(3)
    day = 40 + 20 * np.sin(np.arange(24) * 2 * np.pi / 24)
    departure = np.zeros(56 * 24)
    for slot in range(1, len(departure)):
        departure[slot] = 0.9 * departure[slot - 1] + rng.normal()
    departure[-1] = 10.0
    found = predict_series(np.tile(day, 56) + departure, "Reverting", 48, **HOURLY) - np.tile(day, 2)
    assert found[0] == pytest.approx(9.0, abs=0.8)
    assert found[11] == pytest.approx(10 * 0.9**12, abs=1.0)
    assert abs(found[47]) < 2.0


def test_after_a_few_days_a_departure_is_taken_to_stay():
    history = np.repeat([3.0, 9.0], 36)
    assert (predict_series(history, "Reverting", 24, **HOURLY)[[0, -1]] > [8.0, 6.0]).all()


def test_exponential_smoothing_finds_the_day(daily_wave):
    history = daily_wave(3, 672)
    truth = 10 * (1 + 0.6 * np.sin(np.arange(672, 696) * 2 * np.pi / 24))
    assert np.abs(predict_series(history, "AutoETS", 24, **HOURLY) - truth).mean() < 1.0


@pytest.mark.parametrize("answer", [np.array([np.nan, 1.0]), np.array([1.0, 1e9])], ids=["nan", "runaway"])
def test_last_value_stands_in_for_a_model_that_fails(monkeypatch, daily_wave, answer):
    monkeypatch.setattr(models, "_fit_and_predict", lambda part, history, horizon: answer)
    history = daily_wave(4, 400)
    assert (predict_series(history, "AutoETS", 2, **HOURLY) == history[-1]).all()


@settings(deadline=None, max_examples=15)
@given(
    values=st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.5, 40.0]), min_size=2, max_size=60),
    length=st.integers(2, 400),
    model=st.sampled_from(SERIES_MODELS),
)
def test_no_series_breaks_a_model(values, length, model):
    history = np.resize(np.array(values), length)
    answer = predict_series(history, model, 26, **HOURLY)
    assert answer.shape == (26,)
    assert np.isfinite(answer).all()
    assert answer.max() <= 2 * history.max()


def test_importing_the_room_does_not_load_statsforecast():
    code = "import sys, gpuplanner.forecast; print('statsforecast' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
