"""Corrected quantiles: coverage by series, lead and drift, and a mean that goes with them."""

from __future__ import annotations

import numpy as np
import pytest

from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.model_selection import CHOSEN_MODEL_NAME, evaluate_backtest, fold_table
from gpuplanner.forecast.quantile_calibration_and_reconciliation import _quantile_shifts, calibrated_mean

CHEAP = ("Naive", "SeasonalNaive", "WeeklyMean", "HourOfDay")
OPTIONS = {"horizon": 24, "gap": 6, "windows": 24, "models": CHEAP, "walk": True}


def judged_of(make_demand, values, **options):
    demand = make_demand({f"t{number}/gpu": row for number, row in enumerate(values)})
    return evaluate_backtest(backtest(demand, **(OPTIONS | options)), first=10)


def inside(judged, model):
    """Whether what came lies in the 90 % interval, shape (n_series, judged origins, horizon)."""
    said, actual = judged.quantiles[model][:, judged.first :], judged.test.actual[:, judged.first :]
    return (actual >= said[..., 0]) & (actual <= said[..., -1])


def walks(seed, *, series=8, slots=2400, step=1.0, level=300.0):
    rng = np.random.default_rng(seed)
    return np.maximum(level + rng.normal(0, step, (series, slots)).cumsum(axis=1), 0)


@pytest.mark.long
def test_intervals_of_a_random_walk_hold_at_every_lead(make_demand):
    judged = judged_of(make_demand, walks(1), horizon=72, gap=0, windows=30)
    covered = inside(judged, "Naive").mean(axis=(0, 1))
    for part in (slice(0, 6), slice(6, 24), slice(24, 48), slice(48, 72)):
        assert 0.84 < covered[part].mean() < 0.98
    width = np.diff(judged.quantiles["Naive"][:, -1][..., [0, -1]]).mean(axis=(0, 2))
    assert width[60] > 1.5 * width[2]


def test_a_series_that_errs_beside_the_others_gets_a_width_of_its_own(make_demand, daily_wave):
    """All vary by the day alike; one of them is what it was yesterday but for a little, the others are not."""
    rng = np.random.default_rng(2)
    calm = 10 * (1 + 0.6 * np.sin(np.arange(2400) * 2 * np.pi / 24)) + rng.normal(0, 0.2, 2400)
    judged = judged_of(make_demand, [calm, *(daily_wave(number, 2400) for number in range(5))])
    width = np.diff(judged.quantiles["SeasonalNaive"][..., [0, -1]])[..., 0].mean(axis=2)
    assert width[0, -1] < 0.7 * width[1:, -1].mean()
    assert width[0, -1] < 0.7 * width[0, 2]
    covered = inside(judged, "SeasonalNaive").mean(axis=(1, 2))
    assert (covered > 0.8).all()


def test_errors_of_another_time_are_forgotten(make_demand):
    """Three times the noise since a quarter of the origins."""
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 1, (8, 2400)) * np.where(np.arange(2400) > 1500, 3.0, 1.0)
    covered = inside(judged_of(make_demand, 50 + noise), "WeeklyMean")
    assert 0.87 < covered[:, -8:].mean() < 0.97


def test_the_mean_of_a_forecast_follows_its_quantiles(make_demand):
    """A day that begins at nine, forecast at eight: the last value is nothing, and what comes is not."""
    hour = np.arange(1200) % 24
    rng = np.random.default_rng(4)
    values = rng.poisson(np.where((hour >= 1) & (hour < 10), 12.0, 0.0), (6, 1200)).astype(float)
    judged = judged_of(make_demand, values, gap=0, step=24, walk=False, horizon=24, windows=12)
    test = judged.test
    assert (test.predicted["Naive"] == 0).all()
    said = judged.means["Naive"][:, judged.first :].mean()
    assert said == pytest.approx(test.actual[:, judged.first :].mean(), rel=0.4)
    assert (judged.means["Naive"][:, judged.first :] <= judged.quantiles["Naive"][:, judged.first :, :, -1]).all()
    folds = fold_table(judged).filter(model=CHOSEN_MODEL_NAME)
    assert folds["mean"].mean() == pytest.approx(folds["y"].mean(), rel=0.1)


def test_means_of_skewed_demand_are_nearer_than_medians(make_demand):
    rng = np.random.default_rng(5)
    values = rng.lognormal(0.0, 1.2, (8, 2400))
    judged = judged_of(make_demand, values)
    came = judged.test.actual[:, judged.first :].mean()
    mean, middle = (
        part[:, judged.first :].mean() for part in (judged.means["HourOfDay"], judged.quantiles["HourOfDay"][..., 3])
    )
    assert abs(mean - came) < 0.15 * came
    assert middle < 0.7 * came


def test_a_quota_holds_quantiles_and_mean(make_demand):
    rng = np.random.default_rng(6)
    values = 8.0 * np.repeat(rng.random((4, 40)) < np.linspace(0.2, 1.0, 40), 30, axis=1)
    demand = make_demand({f"t{number}/gpu": row for number, row in enumerate(values)})
    judged = evaluate_backtest(
        backtest(demand, **OPTIONS, caps={f"t{number}/gpu": 8.0 for number in range(4)}), first=10
    )
    for model in CHEAP:
        assert np.nanmax(judged.quantiles[model]) <= 8
        assert np.nanmax(judged.means[model]) <= 8
    said = np.array([0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0])
    assert calibrated_mean(np.array(7.0), said, np.full(7, 8.0), 8.0) == 8
    assert calibrated_mean(np.array(7.0), said, np.full(7, 8.0)) > 8


def test_few_errors_on_one_side_say_nothing_of_the_other_side():
    errors, sure = np.ones((1, 8, 24, 7)), np.ones(8)
    ends = {
        apart: _quantile_shifts(errors, sure, np.ones(1, dtype=bool), apart)[0, 0, [0, -1]] for apart in (0.01, 1.0)
    }
    assert ends[1.0] == pytest.approx([1.0, 1.0], abs=0.02)  # eight days: what comes lies above what is said
    assert ends[0.01] == pytest.approx([-1.0, 1.0], abs=0.2)  # one day, seen from hour to hour
