"""Conformal quantiles: finite-sample ranks, order, and coverage on fresh draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.forecast.intervals import (
    LEVELS,
    calibrate,
    conformal_quantiles,
    left_out_quantiles,
    scaled_errors,
    widen,
)


def test_ranks_for_nineteen_errors():
    # (19 + 1) x level is whole for every level: 1, 2, 5, 10, 15, 18, 19
    assert conformal_quantiles(np.arange(1.0, 20.0)).tolist() == [1, 2, 5, 10, 15, 18, 19]


def test_ranks_move_away_from_the_middle():
    # 11 x level = 0.55, 1.1, 2.75, 5.5, 8.25, 9.9, 10.45; below 1 and above 10 the extremes stand in
    assert conformal_quantiles(np.arange(1.0, 11.0)).tolist() == [1, 1, 2, 5.5, 9, 10, 10]


def test_no_errors_no_width():
    assert conformal_quantiles(np.full(5, np.nan)).tolist() == [0.0] * len(LEVELS)


@pytest.mark.parametrize("n", [19, 40, 100])
def test_a_new_error_lies_below_its_level_at_least_as_often_as_promised(n):
    draws = np.random.default_rng(7).standard_t(3, size=(4000, n + 1))
    high = np.array([conformal_quantiles(row[:n])[-1] for row in draws])
    hit = (draws[:, n] <= high).mean()
    noise = 4 * np.sqrt(0.05 * 0.95 / 4000)
    assert 0.95 - noise <= hit <= 0.95 + 1 / (n + 1) + noise


@settings(deadline=None)
@given(
    errors=st.lists(st.floats(-50, 50), min_size=1, max_size=40).map(np.array),
    mean=st.floats(0, 20),
    spread=st.floats(0, 5),
)
def test_quantiles_are_ordered_and_not_negative(errors, mean, spread):
    offsets = calibrate(errors.reshape(1, -1, 1), bucket=1)
    quantiles = widen(np.array([mean]), offsets, np.asarray(spread))
    assert (np.diff(quantiles) >= 0).all()
    assert (quantiles >= 0).all()


def test_each_day_of_the_horizon_has_its_own_pool():
    errors = np.concatenate([np.zeros((2, 5, 24)), np.full((2, 5, 12), 3.0)], axis=2)
    offsets = calibrate(errors, bucket=24)
    assert offsets.shape == (36, len(LEVELS))
    assert (offsets[:24] == 0).all()
    assert (offsets[24:] == 3).all()


def test_series_without_spread_do_not_enter_the_pool():
    errors = scaled_errors(np.array([[[9.0]], [[2.0]]]), np.ones((2, 1, 1)), np.array([[0.0], [0.5]]))
    assert calibrate(errors, bucket=1)[0].tolist() == [2.0] * len(LEVELS)


def test_the_origin_judged_is_left_out():
    errors = np.zeros((1, 3, 1))
    errors[0, 1] = 100.0
    quantiles = left_out_quantiles(np.zeros((1, 3, 1)), errors, np.ones((1, 3)), bucket=1)
    assert quantiles[0, 1].max() == 0
    assert quantiles[0, 0].max() == 100
