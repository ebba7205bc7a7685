"""Forecasts with the scores of every candidate, and sample paths for decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import Forecast
from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.model_selection import NAMES, Judged, ahead, judge, score, series_record
from gpuplanner.forecast.statistical_models import CANDIDATES, NAIVE, RULES, Known, weighed

QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.60, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.975, 0.99)


def cost_curve(paths: np.ndarray, price: float) -> pl.DataFrame:
    """What planning at each quantile costs on average over sample paths, slot by slot.

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, n_slots)
        Demand [GPUs].
    price : float
        Price of a GPU-hour short, in prices of a GPU-hour planned, above 1.

    Returns
    -------
    polars.DataFrame
        ``quantile``, ``planned`` and ``short`` (mean GPUs planned for and lacking), ``cost`` (of both, in prices of a
        GPU-hour), ``best``: whether it is 1 - 1 / price, the quantile that costs least.

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
        expected = "above 1, else no plan pays off"
        raise SchemaError("cost curve: price", expected, f"{price}", "Raise it.")
    best = 1 - 1 / price
    levels = sorted({*QUANTILES, round(best, 6)})
    plans = np.quantile(paths, levels, axis=0)
    short = np.array([np.maximum(paths - plan, 0.0).mean() for plan in plans])
    planned = plans.mean(axis=1)
    table = pl.DataFrame({"quantile": levels, "planned": planned, "short": short})
    cost = pl.col("planned") + price * pl.col("short")
    return table.with_columns(cost=cost, best=(pl.col("quantile") - best).abs() < 1e-6)


def representatives(paths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """A few paths that stand for all, and how many of all each stands for.

    One after the other, that path is taken which brings the others nearest to a path that was taken.

    Parameters
    ----------
    paths : numpy.ndarray, shape (n_paths, ...)
        Of one or of several series together.
    most : int
        Paths to keep, at least 1.

    Returns
    -------
    numbers : numpy.ndarray of int, shape (k,)
        Of the paths that were taken, in the order of taking.
    weights : numpy.ndarray, shape (k,)
        Share of all paths that each is nearest to; they add up to 1.

    References
    ----------
    Heitsch, Romisch, "Scenario reduction algorithms in stochastic programming", Computational Optimization and
    Applications 24, 2003 (fast forward selection), doi 10.1023/A:1021805924152.

    Examples
    --------
    >>> numbers, weights = representatives(np.array([[0.0], [0.1], [9.0], [0.2]]), 2)
    >>> numbers.tolist(), weights.tolist()
    ([1, 2], [0.75, 0.25])
    """
    flat = paths.reshape(len(paths), -1)
    apart = np.array([np.abs(flat - one).sum(axis=1) for one in flat])
    nearest = np.full(len(flat), np.inf)
    numbers: list[int] = []
    for _ in range(min(most, len(flat))):
        number = int(np.minimum(nearest, apart).sum(axis=1).argmin())
        if number in numbers:
            break
        numbers.append(number)
        nearest = np.minimum(nearest, apart[number])
    home = apart[numbers].argmin(axis=0)
    return np.array(numbers), np.bincount(home, minlength=len(numbers)) / len(flat)


@dataclass(frozen=True)
class ForecastResult:
    """A forecast with its past error.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``: what the candidates say, weighed for each series; sorted by ``unique_id``, ``ds``.
    scores : polars.DataFrame
        All models on all series (see :func:`gpuplanner.forecast.model_selection.score`).
    choice : polars.DataFrame
        One row per series: ``unique_id``, ``model`` (that weighs most), ``weights`` (of all, in words), ``rule`` (how
        the series was treated), ``reason`` (that rule in words), ``windows``, ``step_slots`` (slots between origins),
        ``filled_slots`` (gaps carried on), and ``mase``, ``naive_mase`` and ``coverage_90`` of what was said.
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
    known: Known | None = None,
    price: float | None = None,
    seed: int = 1,
) -> ForecastResult:
    """Forecast every series with the candidates that did best, with quantiles whose coverage was measured.

    The same demand, jobs and seed give the same forecast.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid, in any order. For planning, history of the clock "wanted".
    horizon : int
        Slots to forecast.
    windows, step : int, optional
        Origins of the backtest and slots between them (see :func:`gpuplanner.forecast.backtest`).
    known : Known, optional
        What is known of the jobs behind the series.
    price : float, optional
        Price of a unit short, in prices of a unit planned, for the cost in the scores.
    seed : int
        Of sample paths.

    Returns
    -------
    ForecastResult
        Forecast, score table and choice.

    Raises
    ------
    SchemaError
        If the history is not longer than the horizon by two slots, or is not on one grid.
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
    models = weighed(CANDIDATES, with_jobs=known is not None)
    test = backtest(demand, horizon=horizon, windows=windows, step=step, known=known, models=models, seed=seed)
    judged = judge(test, price=price)
    scores = score(test, judged=judged)
    forecast = ahead_table(judged, known=known, seed=seed)
    return ForecastResult(forecast, scores, _choice(judged, scores))


def _choice(judged: Judged, scores: pl.DataFrame) -> pl.DataFrame:
    test = judged.test
    rows = [series_record(judged, row, judged.said[row]) for row in range(len(test.grid.ids))]
    naive = scores.filter(model=NAIVE).select("unique_id", naive_mase="mase")
    return (
        pl.DataFrame(
            {
                "unique_id": test.grid.ids,
                "model": judged.chosen,
                "weights": weights_in_words(judged),
                "rule": test.rules,
                "reason": [RULES[rule] for rule in test.rules],
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


def weights_in_words(judged: Judged) -> list[str]:
    """What each series is forecast with, the heaviest candidate first.

    Parameters
    ----------
    judged : Judged

    Returns
    -------
    list of str
        One for each series, in their order: ``RunOff 70 %, Naive 30 %``.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> ds = [datetime(2026, 2, 2, tzinfo=UTC) + timedelta(hours=hour) for hour in range(96)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": ds, "y": 2.0})
    >>> weights_in_words(judge(backtest(demand, horizon=24, windows=4)))
    ['Naive 100 %']
    """
    names = list(judged.quantiles)
    told = []
    for weights in judged.weights[:, :, -1].T:
        order = np.argsort(-weights, kind="stable")
        parts = (f"{names[one]} {100 * weights[one]:.0f} %" for one in order if weights[one])
        told.append(", ".join(parts))
    return told


def ahead_table(judged: Judged, *, known: Known | None = None, seed: int = 1) -> pl.DataFrame:
    """Forecast what is still to come with the candidates as they weigh for each series.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast``, sorted by ``unique_id`` and ``ds``.
    """
    test, grid = judged.test, judged.test.grid
    mean, quantiles = ahead(judged, known=known, seed=seed)
    end = grid.values.shape[1]
    ds = [grid.time(end + test.gap + slot) for slot in range(test.horizon)]
    parts = []
    for row, uid in enumerate(grid.ids):
        names = {"unique_id": uid, "ds": ds, "model": judged.chosen[row], "mean": mean[row]}
        levels = {name: quantiles[row, :, at] for at, name in enumerate(NAMES)}
        parts.append(pl.DataFrame({**names, **levels, "cutoff": grid.time(end)}))
    return check(pl.concat(parts), Forecast, where="forecast")
