"""Tenants that add up to their pool."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.quantile_calibration_and_reconciliation import (
    FORECAST_VALUE_COLUMNS,
    _shrunk_covariance,
    reconcile_mint,
    reconcile_to_pool,
)

NOW = pl.Series([0]).cast(pl.Datetime("us", "UTC"))[0]


def make_forecast(values):
    """Rows of series and eight numbers: mean, then the quantiles ascending."""
    return pl.DataFrame(
        [
            {"unique_id": uid, "ds": NOW, "model": "Naive", "cutoff": NOW}
            | dict(zip(FORECAST_VALUE_COLUMNS, map(float, numbers), strict=True))
            for uid, numbers in values.items()
        ]
    )


NUMBERS = st.tuples(st.floats(0, 100), st.lists(st.floats(0, 200), min_size=7, max_size=7).map(sorted)).map(
    lambda pair: (pair[0], *pair[1])
)


@settings(deadline=None)
@given(tenants=st.lists(NUMBERS, min_size=1, max_size=5), pool=NUMBERS)
def test_sums_are_those_of_the_pool_and_quantiles_stay_in_order(tenants, pool):
    below = make_forecast({f"t{number}/gpu": values for number, values in enumerate(tenants)})
    shared = check_table(reconcile_to_pool(below, make_forecast({"all/gpu": pool})), Forecast, source="shared")
    np.testing.assert_allclose(shared.select(FORECAST_VALUE_COLUMNS).sum().row(0), pool, rtol=1e-9, atol=1e-9)


def test_each_profile_has_its_own_pool_and_shares_follow_the_means():
    below = make_forecast({"a/gpu": [1, 1, 1, 1, 1, 2, 3, 9], "b/gpu": [3] * 8, "b/1g.10gb": [5] * 8})
    pool = make_forecast({"all/gpu": [4, 1, 2, 3, 4, 5, 6, 8], "all/1g.10gb": [7] * 8})
    shared = reconcile_to_pool(below, pool)
    assert shared.select("unique_id", "mean", "q95").rows() == [
        ("a/gpu", 1.0, 2.0),
        ("b/1g.10gb", 7.0, 7.0),
        ("b/gpu", 3.0, 6.0),
    ]


def minimum_trace(base, covariance, whole):
    """MinT by its other closed form: the constraint that the pool is the sum, and what breaks it given back."""
    rule = np.array([-1.0 if number == whole else 1.0 for number in range(len(base))])[None]
    gain = covariance @ rule.T @ np.linalg.inv(rule @ covariance @ rule.T)
    return base - gain @ (rule @ base)


@pytest.mark.parametrize("series", [2, 3, 7])
def test_least_trace_agrees_with_its_other_closed_form(series):
    rng = np.random.default_rng(series)
    ids = [f"t{number}/gpu" for number in range(series - 1)] + ["all/gpu"]
    said = rng.uniform(50, 90, series - 1)
    means = {uid: [value] * 8 for uid, value in zip(ids, [*said, said.sum() + 9], strict=True)}
    noise = np.linalg.cholesky(np.eye(series) + 0.5) @ rng.normal(size=(series, 200))
    errors = dict(zip(ids, noise * rng.uniform(1, 5, (series, 1)), strict=True))
    sums = {"all/gpu": ids[:-1]}
    table = reconcile_mint(make_forecast(means), sums, errors)
    ordered = table["unique_id"].to_list()
    base = np.array([means[uid][0] for uid in ordered])
    covariance = _shrunk_covariance(np.array([errors[uid] for uid in ordered]), base)
    expected = minimum_trace(base, covariance, ordered.index("all/gpu"))
    np.testing.assert_allclose(table["mean"].to_numpy(), expected)
    assert table.filter(unique_id="all/gpu")["mean"].item() == pytest.approx(
        table.filter(pl.col("unique_id") != "all/gpu")["mean"].sum()
    )
    again = reconcile_mint(table, sums, errors)
    np.testing.assert_allclose(
        again.select(FORECAST_VALUE_COLUMNS).to_numpy(), table.select(FORECAST_VALUE_COLUMNS).to_numpy()
    )


def test_correlations_of_few_errors_are_drawn_towards_none_and_variances_kept():
    rng = np.random.default_rng(3)
    noise = np.linalg.cholesky([[4.0, 1.8], [1.8, 1.0]]) @ rng.normal(size=(2, 4000))
    few, many = (_shrunk_covariance(part, np.ones(2)) for part in (noise[:, :12], noise))
    assert abs(few[0, 1]) < abs(np.cov(noise[:, :12])[0, 1])
    np.testing.assert_allclose(many, np.cov(noise), rtol=0.01)


def test_sums_at_every_level_are_the_sums_of_their_parts_and_none_is_below_zero():
    rng = np.random.default_rng(5)
    leaves = ["a/x/gpu", "a/y/gpu", "b/gpu", "new/gpu"]
    sums = {"a/gpu": leaves[:2], "all/gpu": leaves}
    means = {"a/x/gpu": 0.1, "a/y/gpu": 5.0, "b/gpu": 8.0, "new/gpu": 2.0, "a/gpu": 3.0, "all/gpu": 9.0}
    errors = {uid: rng.normal(0, 1 + mean, 40) for uid, mean in means.items()}
    errors["new/gpu"] = np.full(40, np.nan)  # begun after the last origin
    table = reconcile_mint(make_forecast({uid: [mean] * 8 for uid, mean in means.items()}), sums, errors)
    found = dict(table.select("unique_id", "mean").iter_rows())
    assert min(found.values()) >= 0
    for whole, parts in sums.items():
        assert found[whole] == pytest.approx(sum(found[part] for part in parts), rel=1e-12)
    assert found["a/x/gpu"] < found["a/y/gpu"]
    assert 0.5 < found["new/gpu"] <= 2.0


def test_what_may_be_nothing_may_be_so_still_where_the_mean_moves_up():
    forecast = make_forecast({"all/gpu": [8.0] * 8, "a/gpu": [2.0, *[0.0] * 3, *[4.0] * 4]})
    alike = {uid: np.array([1.0, -1.0]) for uid in ("all/gpu", "a/gpu")}
    moved = reconcile_mint(forecast, {"all/gpu": ["a/gpu"]}, alike).filter(unique_id="a/gpu")
    mean, low, high = moved.select("mean", "q05", "q95").row(0)
    assert mean > 2.0
    assert low == 0.0
    assert high - mean == pytest.approx(4.0 - 2.0)


def test_shares_of_the_pool_keep_the_spread_of_each_tenant():
    below = make_forecast({"a/gpu": [2, 1, 1, 1, 2, 3, 4, 5], "b/gpu": [6] * 8, "c/gpu": [0] * 8})
    pool = make_forecast({"all/gpu": [4, 1, 2, 3, 4, 5, 6, 7]})
    shared = reconcile_to_pool(below, pool, own_quantiles=True)
    assert shared["mean"].to_list() == [1.0, 3.0, 0.0]
    assert shared.row(0)[4:11] == (0.5, 0.5, 0.5, 1.0, 1.5, 2.0, 2.5)
