"""Error measures worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.forecast.backtest import mae, pinball, seasonal_scale, smape

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(np.array)


def test_hand_worked_case():
    actual, predicted = np.array([4.0, 0.0, 6.0]), np.array([2.0, 0.0, 6.0])
    assert mae(actual, predicted) == pytest.approx(2 / 3)
    assert smape(actual, predicted) == pytest.approx((2 * 2 / 6) / 3)
    assert pinball(actual, predicted, 0.9) == pytest.approx(0.9 * 2 / 3)


def test_mase_of_the_seasonal_naive_forecast_on_its_own_history_is_one():
    history = np.array([1.0, 5.0, 2.0, 7.0, 0.0, 4.0])
    assert mae(history[2:], history[:-2]) / seasonal_scale(history, season=2) == pytest.approx(1.0)


@pytest.mark.parametrize("history", [np.array([3.0, 3.0, 3.0]), np.array([1.0, 2.0, 1.0, 2.0]), np.array([1.0])])
def test_mase_is_not_defined_where_the_history_repeats_itself_or_is_too_short(history):
    assert math.isnan(seasonal_scale(history, 2))


@settings(deadline=None)
@given(actual=VALUES, level=st.floats(0.01, 0.99), shift=st.floats(-10, 10))
def test_pinball_is_never_negative_and_zero_for_a_perfect_forecast(actual, level, shift):
    assert pinball(actual, actual, level) == 0
    assert pinball(actual, actual + shift, level) >= 0
    assert smape(actual, actual + abs(shift)) <= 2
