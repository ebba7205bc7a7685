"""The quantile to plan at and the date of running out: against closed forms."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from gpuplanner.errors import SchemaError
from gpuplanner.forecast.decide import cost_curve, peak_walks, representatives, run_out


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


def test_a_walk_without_drift_runs_out_as_the_reflection_principle_says():
    """P(a driftless walk has passed a level by n) is near twice P(it is above it at n)."""
    rng = np.random.default_rng(2)
    peaks = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, 400)))
    table = run_out(peaks, 1.25 * peaks[-1], weeks=52, growth=0.0, paths=20_000)
    last = table.row(-1, named=True)
    spread = np.diff(np.log(peaks)).std(ddof=1) * np.sqrt(52)
    assert last["over"] == pytest.approx(1 - NormalDist().cdf(np.log(1.25) / spread), abs=1e-9)
    # A walk in steps passes the level a little later than the limit of the principle.
    shifted = np.log(1.25) + 0.5826 * spread / np.sqrt(52)
    assert last["run_out_by"] == pytest.approx(2 * (1 - NormalDist().cdf(shifted / spread)), abs=0.01)


def test_growth_brings_the_date_forward_and_lead_time_marks_what_is_too_late():
    peaks = 100 * np.exp(np.random.default_rng(3).normal(0, 0.05, 30))
    slow, fast = (run_out(peaks, 150.0, growth=growth, lead_weeks=10) for growth in (0.0, 1.0))
    assert (fast["run_out_by"].to_numpy()[5:] >= slow["run_out_by"].to_numpy()[5:]).all()
    assert fast["order_now"].sum() == 10
    with pytest.raises(SchemaError, match="three weeks"):
        run_out(np.array([1.0, 0.0, 2.0]), 10.0)
    with pytest.raises(SchemaError, match="above 1"):
        cost_curve(np.ones((2, 2)), 1.0)


def test_few_paths_stand_for_all_and_keep_their_mean():
    rng = np.random.default_rng(4)
    paths = np.concatenate([10 + rng.normal(0, 1, (150, 3, 24)), 30 + rng.normal(0, 1, (50, 3, 24))])
    numbers, weights = representatives(paths, 20)
    assert len(numbers) == len(set(numbers)) == 20
    assert weights.sum() == pytest.approx(1)
    assert weights[numbers >= 150].sum() == pytest.approx(0.25)
    assert np.tensordot(weights, paths[numbers], axes=1).mean() == pytest.approx(paths.mean(), rel=0.02)


def test_walks_of_the_peak_are_those_that_the_run_out_counts():
    peaks = 100 * np.exp(np.cumsum(np.random.default_rng(4).normal(0.01, 0.05, 60)))
    walks = peak_walks(peaks, weeks=26, paths=3000, seed=2)
    table = run_out(peaks, 2 * peaks[-1], weeks=26, paths=3000, seed=2)
    assert table["q95"].to_list() == pytest.approx(np.quantile(walks, 0.95, axis=0).tolist())
    assert table["run_out_by"][-1] == pytest.approx((walks.max(axis=1) > 2 * peaks[-1]).mean())
