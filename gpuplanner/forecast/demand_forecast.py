"""Forecasts with the scores of every candidate, and sample paths for decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.model_selection import (
    QUANTILE_COLUMNS,
    EvaluatedBacktest,
    evaluate_backtest,
    forecast_future,
    score_backtest,
    score_series,
)
from gpuplanner.forecast.statistical_models import (
    CANDIDATE_MODELS,
    DESCRIPTION_BY_SERIES_RULE,
    NAIVE,
    KnownJobs,
    weighable_candidates,
)

COST_CURVE_QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.60, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.975, 0.99)
"""Quantiles of demand for which :func:`cost_curve` computes the cost of planning."""


def cost_curve(paths: np.ndarray, price: float) -> pl.DataFrame:
    """Compute the mean cost of planning for each quantile of demand, by sample paths (newsvendor).

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, n_slots)
        Demand [GPUs].
    price : float
        Cost of a GPU-hour of unmet demand relative to a planned GPU-hour, above 1. [ratio]

    Returns
    -------
    polars.DataFrame
        ``quantile``, ``planned`` and ``short`` (mean GPUs planned, and mean unmet demand), ``cost`` (of both, relative
        to a planned GPU-hour), ``best``: whether it is 1 - 1 / price, the quantile that costs least.

    References
    ----------
    Arrow, Harris, Marschak, "Optimal inventory policy", Econometrica 19(3), 1951 (the newsvendor's critical fractile).

    Examples
    --------
    >>> draws = np.random.default_rng(1).normal(100, 10, (2000, 1))
    >>> cost_curve(draws, 5.0).sort("cost")["quantile"][0]
    0.8
    """
    if not price > 1:
        raise SchemaError("cost curve: price", "above 1, else no plan pays off", f"{price}", "Raise it.")
    best = 1 - 1 / price
    levels = sorted({*COST_CURVE_QUANTILES, round(best, 6)})
    plans = np.quantile(paths, levels, axis=0)
    short = np.array([np.maximum(paths - plan, 0.0).mean() for plan in plans])
    planned = plans.mean(axis=1)
    table = pl.DataFrame({"quantile": levels, "planned": planned, "short": short})
    cost = pl.col("planned") + price * pl.col("short")
    return table.with_columns(cost=cost, best=(pl.col("quantile") - best).abs() < 1e-6)


def choose_representatives(paths: np.ndarray, max_paths: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose a few sample paths of demand that represent all, with the share of paths that each represents.

    Greedy forward selection: each step adds the path that most reduces the distance of the other paths to their nearest
    chosen path.

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, ...)
        Sample paths of one series, or of several series together.
    max_paths : int
        Number of paths to keep, at least 1.

    Returns
    -------
    numbers : numpy.ndarray of int, shape (k,)
        Indices of the chosen paths, in the order in which they were chosen.
    weights : numpy.ndarray, shape (k,)
        Share of all paths whose nearest chosen path it is; the shares add up to 1.

    References
    ----------
    Heitsch, Romisch, "Scenario reduction algorithms in stochastic programming", Computational Optimization and
    Applications 24, 2003 (fast forward selection), doi 10.1023/A:1021805924152.

    Examples
    --------
    >>> numbers, weights = choose_representatives(np.array([[0.0], [0.1], [9.0], [0.2]]), 2)
    >>> numbers.tolist(), weights.tolist()
    ([1, 2], [0.75, 0.25])
    """
    flat = paths.reshape(len(paths), -1)
    distances = np.array([np.abs(flat - path).sum(axis=1) for path in flat])
    nearest = np.full(len(flat), np.inf)
    numbers: list[int] = []
    for _ in range(min(max_paths, len(flat))):
        number = int(np.minimum(nearest, distances).sum(axis=1).argmin())
        if number in numbers:
            break
        numbers.append(number)
        nearest = np.minimum(nearest, distances[number])
    home = distances[numbers].argmin(axis=0)
    return np.array(numbers), np.bincount(home, minlength=len(numbers)) / len(flat)


@dataclass(frozen=True)
class ForecastResult:
    """A forecast with the scores of all models and the choice for each series.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``: the weighted mean of the models' forecasts of each series; sorted by ``unique_id``,
        ``ds``.
    scores : polars.DataFrame
        Scores of all models on all series (see :func:`gpuplanner.forecast.model_selection.score_backtest`).
    choice : polars.DataFrame
        One row per series: ``unique_id``, ``model`` (the one with the largest weight), ``weights`` (those of all
        models, as text), ``rule``
        (how the series was treated), ``reason`` (that rule as text), ``windows``, ``step_slots`` (intervals between
        cutoffs), ``filled_slots`` (gaps filled with the last value), and ``mase``, ``naive_mase`` and ``coverage_90``
        of the forecasts at past cutoffs.
    """

    forecast: pl.DataFrame
    scores: pl.DataFrame
    choice: pl.DataFrame


def forecast_demand(
    demand: pl.DataFrame,
    *,
    horizon: int,
    windows: int = 8,
    step: int | None = None,
    known_jobs: KnownJobs | None = None,
    price: float | None = None,
    seed: int = 1,
) -> ForecastResult:
    """Forecast every series with the models that scored best, with calibrated quantiles.

    The same demand, jobs and seed give the same forecast.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid, in any order. For planning, demand counted from when jobs requested GPUs
        (``clock="wanted"``).
    horizon : int
        Intervals to forecast.
    windows, step : int, optional
        Cutoffs of the backtest and intervals between them (see :func:`gpuplanner.forecast.backtest`).
    known_jobs : KnownJobs, optional
        Jobs from which the series were computed.
    price : float, optional
        Cost of a GPU-hour of unmet demand relative to a planned one, for the cost in the scores. [ratio]
    seed : int
        Seed of the sample paths.

    Returns
    -------
    ForecastResult
        Forecast, score table and choice.

    Raises
    ------
    SchemaError
        If the history is not longer than the horizon by two intervals, or is not on one grid.
    MissingDependencyError
        If statsforecast is not installed.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> ds = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(96)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": 2.0})
    >>> result = forecast_demand(demand, horizon=2)
    >>> result.forecast.select("model", "mean", "q05", "q95").rows()
    [('Naive', 2.0, 2.0, 2.0), ('Naive', 2.0, 2.0, 2.0)]
    >>> result.choice["rule"].to_list()
    ['constant']
    """
    models = weighable_candidates(CANDIDATE_MODELS, with_jobs=known_jobs is not None)
    test = backtest(
        demand, horizon=horizon, windows=windows, step=step, known_jobs=known_jobs, models=models, seed=seed
    )
    judged = evaluate_backtest(test, price=price)
    scores = score_backtest(test, evaluated_backtest=judged)
    forecast = tabulate_ahead(judged, known_jobs=known_jobs, seed=seed)
    return ForecastResult(forecast, scores, _choice(judged, scores))


def _choice(backtest: EvaluatedBacktest, scores: pl.DataFrame) -> pl.DataFrame:
    """Tabulate the model choice of each series: the table ``choice`` of :class:`ForecastResult`."""
    test = backtest.test
    rows = [score_series(backtest, row, backtest.mixture[row]) for row in range(len(test.grid.ids))]
    naive = scores.filter(model=NAIVE).select("unique_id", naive_mase="mase")
    return (
        pl.DataFrame(
            {
                "unique_id": test.grid.ids,
                "model": backtest.main_model,
                "weights": describe_weights(backtest),
                "rule": test.rules,
                "reason": [DESCRIPTION_BY_SERIES_RULE[rule] for rule in test.rules],
                "windows": [row["windows"] for row in rows],
                "step_slots": test.step,
                "filled_slots": test.grid.filled,
                "mase": [row["mase"] for row in rows],
                "coverage_90": [row["coverage_90"] for row in rows],
            },
            schema_overrides={"model": pl.String, "mase": pl.Float64, "coverage_90": pl.Float64},
        )
        .join(naive, on="unique_id", how="left", maintain_order="left")
        .select(pl.exclude("coverage_90"), "coverage_90")
    )


def describe_weights(backtest: EvaluatedBacktest) -> list[str]:
    """Describe the weights of the models in the forecast of each series, the largest first.

    Parameters
    ----------
    backtest : EvaluatedBacktest

    Returns
    -------
    list of str
        One text for each series, in the order of the grid: ``RunOff 70 %, Naive 30 %``.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> ds = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(96)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": 2.0})
    >>> describe_weights(evaluate_backtest(backtest(demand, horizon=24, windows=4)))
    ['Naive 100 %']
    """
    names = list(backtest.quantiles)
    texts = []
    for weights in backtest.weights[:, :, -1].T:
        order = np.argsort(-weights, kind="stable")
        parts = (f"{names[index]} {100 * weights[index]:.0f} %" for index in order if weights[index])
        texts.append(", ".join(parts))
    return texts


def tabulate_ahead(backtest: EvaluatedBacktest, *, known_jobs: KnownJobs | None = None, seed: int = 1) -> pl.DataFrame:
    """Forecast the intervals after the end of the history with the weighted models of each series, as a table.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast``, sorted by ``unique_id`` and ``ds``.
    """
    test, grid = backtest.test, backtest.test.grid
    mean, quantiles = forecast_future(backtest, known_jobs=known_jobs, seed=seed)
    end = grid.values.shape[1]
    ds = [grid.time(end + test.gap + slot) for slot in range(test.horizon)]
    parts = []
    for row, uid in enumerate(grid.ids):
        names = {"unique_id": uid, "ds": ds, "model": backtest.main_model[row], "mean": mean[row]}
        levels = {name: quantiles[row, :, at] for at, name in enumerate(QUANTILE_COLUMNS)}
        parts.append(pl.DataFrame({**names, **levels, "cutoff": grid.time(end)}))
    return check_table(pl.concat(parts), Forecast, source="forecast")
