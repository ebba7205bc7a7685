"""The quantile to plan at and the date of running out: against closed forms."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from gpuplanner.forecast.demand_forecast import choose_representatives, cost_curve


@pytest.mark.parametrize("price", [2.5, 5.0, 10.0])
def test_the_newsvendor_quantile_of_normal_demand(price):
    law = NormalDist(200, 30)
    draws = np.random.default_rng(1).normal(200, 30, (100_000, 2))
    curve = cost_curve(draws, price)
    best = curve.filter("best").row(0, named=True)
    fractile = 1 - 1 / price
    assert best["quantile"] == pytest.approx(fractile)
    assert best["cost"] == pytest.approx(curve["cost"].min(), rel=1e-3)
    assert best["planned"] == pytest.approx(law.inv_cdf(fractile), rel=0.005)
    density = NormalDist().pdf(NormalDist().inv_cdf(fractile))
    assert best["cost"] == pytest.approx(200 + price * 30 * density, rel=0.005)


def test_few_paths_stand_for_all_and_keep_their_mean():
    rng = np.random.default_rng(4)
    paths = np.concatenate([10 + rng.normal(0, 1, (150, 3, 24)), 30 + rng.normal(0, 1, (50, 3, 24))])
    numbers, weights = choose_representatives(paths, 20)
    assert len(numbers) == len(set(numbers)) == 20
    assert weights.sum() == pytest.approx(1)
    assert weights[numbers >= 150].sum() == pytest.approx(0.25)
    assert np.tensordot(weights, paths[numbers], axes=1).mean() == pytest.approx(paths.mean(), rel=0.02)
