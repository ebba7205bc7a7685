"""Quantiles and choice at each origin: from earlier origins alone, capped, and with the coverage that they promise."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.model_selection import (
    evaluate_backtest,
    fold_scores,
    fold_table,
    forecast_future,
    mean_scores,
    planned_quantile,
    realised_cost,
)
from gpuplanner.forecast.statistical_models import QUANTILE_LEVELS

CHEAP = ("Naive", "SeasonalNaive", "WeeklyMean", "HourOfDay")


def judged_of(demand, *, price=5.0, first=4, **options):
    options = {"horizon": 24, "gap": 6, "windows": 10, "models": CHEAP, "walk": True} | options
    return evaluate_backtest(backtest(demand, **options), price=price, first=first)


@pytest.fixture(scope="module")
def waves(make_demand, daily_wave):
    return judged_of(make_demand({f"t{number}/gpu": daily_wave(number, 900) for number in range(6)}), windows=20)


def test_nothing_that_came_later_changes_what_was_said(make_demand, daily_wave):
    values = {f"t{number}/gpu": daily_wave(number, 700) for number in range(3)}
    one = judged_of(make_demand(values))
    for place in (3, 6, 9):
        origin = one.test.origins[place]
        noise = {uid: np.concatenate([row[:origin], 50 * row[origin:][::-1] + 3]) for uid, row in values.items()}
        other = judged_of(make_demand(noise))
        upto = slice(None, place + 1)
        assert (one.weights[..., upto] == other.weights[..., upto]).all()
        assert one.mixture[:, upto].tobytes() == other.mixture[:, upto].tobytes()
        for model, quantiles in one.quantiles.items():
            assert quantiles[:, upto].tobytes() == other.quantiles[model][:, upto].tobytes()


def test_intervals_hold_what_they_promise_on_waves(waves):
    table = fold_scores(waves).filter(model="chosen")
    assert table["coverage_90"].mean() == pytest.approx(0.9, abs=0.05)
    naive = list(waves.quantiles).index("Naive")
    assert (waves.weights[naive, :, 8:] == 0).all()


def test_above_the_median_more_candidates_are_heard(waves):
    each = np.stack(list(waves.quantiles.values()))
    levels, later = np.array(QUANTILE_LEVELS) > 0.5, slice(waves.first, None)
    for weights, part in ((waves.weights, ~levels), (waves.upper, levels)):
        mixed = np.einsum("msohl,mso->sohl", each[..., part], weights[:, :, :-1])
        assert waves.mixture[:, later][..., part] == pytest.approx(mixed[:, later], rel=0.02)
    assert (waves.upper.max(axis=0) <= waves.weights.max(axis=0) + 1e-9).all()
    assert ((waves.upper > 0).sum(axis=0) > (waves.weights > 0).sum(axis=0)).any()
    assert (np.diff(waves.mixture[:, later], axis=-1) >= 0).all()


def test_all_scores_can_be_computed_again_from_the_folds(waves):
    scores = fold_scores(waves).sort("unique_id", "model")
    folds = fold_table(waves)
    names = [name for name in folds.columns if name[0] == "q"]
    for row in scores.iter_rows(named=True):
        part = folds.filter(unique_id=row["unique_id"], model=row["model"])
        y, levels, scale = part["y"].to_numpy(), part.select(names).to_numpy(), part["scale"].to_numpy()
        assert row["mase"] == pytest.approx((np.abs(y - levels[:, 3]) / scale).mean())
        assert row["pinball"] == pytest.approx((2 * realised_cost(y, levels, None) / scale).mean())
        assert row["coverage_90"] == pytest.approx(((y >= levels[:, 0]) & (y <= levels[:, 6])).mean())
        assert row["realised_cost"] == pytest.approx(realised_cost(y, levels, 5.0).sum() / y.sum())
    assert mean_scores(scores).filter(model="chosen")["cutoffs"].item() == 16


def test_a_quiet_beginning_does_not_blow_up_the_quantiles(make_demand):
    rng = np.random.default_rng(1)
    quiet = np.concatenate([np.zeros(500), np.linspace(0, 40, 300), 40 + rng.normal(0, 3, 100)])
    busy = 40 + rng.normal(0, 3, 900)
    judged = judged_of(make_demand({"a/gpu": np.maximum(quiet, 0), "b/gpu": busy}), caps={"b/gpu": 45.0})
    for quantiles in judged.quantiles.values():
        for place, origin in enumerate(judged.test.origins):
            assert np.nanmax(quantiles[0, place]) <= 4 * quiet[:origin].max() + 1e-9
            assert np.nanmax(quantiles[1, place]) <= 45
            assert (np.diff(quantiles[:, place], axis=-1) >= 0).all()


def test_what_is_planned_costs_least_where_demand_is_normal():
    """Newsvendor: with a unit at 1 and a unit short at p the best plan is the quantile 1 - 1 / p."""
    law = NormalDist(100, 15)
    levels = np.array([law.inv_cdf(level) for level in (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)])
    draws = np.random.default_rng(2).normal(100, 15, 400_000)
    for price in (4.0, 10.0):
        best = law.inv_cdf(1 - 1 / price)
        assert planned_quantile(levels, price) == pytest.approx(best, rel=0.01)
        cost = realised_cost(draws, np.broadcast_to(levels, (len(draws), 7)), price).mean()
        standard = NormalDist().pdf(NormalDist().inv_cdf(1 - 1 / price))
        assert cost == pytest.approx(100 + price * 15 * standard, rel=0.005)  # mean + price x sigma x density


class RunsOn:
    """Jobs that never end: what runs at an origin is what will run."""

    def __init__(self, values):
        self.values = values

    def demand_before(self, series, origin):
        return np.stack([self.values[uid][:origin] for uid in series])

    def draws(self, series, origin, steps, seed):
        now = np.array([self.values[uid][origin - 1] for uid in series])
        return np.broadcast_to(now[:, None, None], (len(series), 9, steps))


def test_what_is_ahead_is_drawn_from_the_end_of_the_history(make_demand):
    """Demand goes up by steps that only the jobs explain: two days before the end it was less than half."""
    values = {f"t{number}/gpu": np.repeat([2.0, 3, 2, 3, 4, 5, 6, 8, 9, 20], 24) for number in range(3)}
    known = RunsOn(values)
    judged = judged_of(make_demand(values), known_jobs=known, models=("HourOfDay", "RunOff"), gap=0, windows=8)
    assert (judged.weight_of("RunOff") > 0.5).all()
    mean, levels = forecast_future(judged, known_jobs=known)
    assert (levels[..., 3] > 15).all()
    assert (mean > 15).all()
