"""Forecast demand: backtest, choose, fit once more, add intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest, backtest
from gpuplanner.forecast.choose import choose, score
from gpuplanner.forecast.intervals import LEVELS, calibrate, scaled_errors, widen
from gpuplanner.forecast.models import HISTORY_WEEKS, MODELS, RULES, predict
from gpuplanner.schemas import Forecast, check


@dataclass(frozen=True)
class ForecastResult:
    """A forecast with its past error.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``: the chosen model of each series, sorted by ``unique_id`` and ``ds``.
    scores : polars.DataFrame
        All models on all series (see :func:`gpuplanner.forecast.score`).
    choice : polars.DataFrame
        One row per series: ``unique_id``, ``model``, ``rule`` (how the series was treated), ``reason`` (that
        rule in words), ``windows``, ``step_slots`` (slots between origins), ``filled_slots`` (gaps carried
        on), and the chosen model's ``mase``, ``naive_mase`` and ``coverage_90``.
    """

    forecast: pl.DataFrame
    scores: pl.DataFrame
    choice: pl.DataFrame


def forecast_demand(
    demand: pl.DataFrame, *, horizon: int, windows: int = 8, step: int | None = None
) -> ForecastResult:
    """Forecast every series with the model that did best on it, with quantiles whose coverage was measured.

    Nothing is drawn at random: the same demand gives the same forecast.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand`` on one grid, in any order. For planning, history of the clock "wanted".
    horizon : int
        Slots to forecast.
    windows, step : int, optional
        Origins of the backtest and slots between them (see :func:`gpuplanner.forecast.backtest`).

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
    test = backtest(demand, horizon=horizon, windows=windows, step=step)
    scores = score(test)
    chosen = choose(scores)["model"].to_list()
    offsets = {
        model: calibrate(scaled_errors(test.actual, test.predicted[model], test.spread), test.grid.season)
        for model in MODELS
        if model in chosen
    }
    grid = test.grid
    parts = []
    for uid, model, values in zip(grid.ids, chosen, grid.values, strict=True):
        history = values[~np.isnan(values)]
        mean = predict(history, model, horizon, season=grid.season, week=grid.week)
        spread = np.asarray(history[-HISTORY_WEEKS * grid.week :].std())
        quantiles = widen(mean, offsets[model], spread)
        parts.append(_rows(test, uid, model, mean, quantiles))
    return ForecastResult(
        forecast=check(pl.concat(parts), Forecast, where="forecast"),
        scores=scores,
        choice=_choice(test, scores, chosen),
    )


def _rows(test: Backtest, uid: str, model: str, mean: np.ndarray, quantiles: np.ndarray) -> pl.DataFrame:
    end = test.grid.values.shape[1]
    return pl.DataFrame(
        {
            "unique_id": uid,
            "ds": [test.grid.time(end + ahead) for ahead in range(test.horizon)],
            "model": model,
            "mean": mean,
            **{f"q{round(100 * level):02d}": quantiles[:, at] for at, level in enumerate(LEVELS)},
            "cutoff": test.grid.time(end),
        }
    )


def _choice(test: Backtest, scores: pl.DataFrame, chosen: list[str]) -> pl.DataFrame:
    naive = scores.filter(model="Naive").select("unique_id", naive_mase="mase")
    table = pl.DataFrame(
        {
            "unique_id": test.grid.ids,
            "model": chosen,
            "rule": test.rules,
            "reason": [RULES[rule] for rule in test.rules],
            "step_slots": test.step,
            "filled_slots": test.grid.filled,
        }
    )
    record = scores.select("unique_id", "model", "windows", "mase", "coverage_90")
    return (
        table.join(record, on=["unique_id", "model"], how="left", maintain_order="left")
        .join(naive, on="unique_id", how="left", maintain_order="left")
        .select(
            "unique_id",
            "model",
            "rule",
            "reason",
            "windows",
            "step_slots",
            "filled_slots",
            "mase",
            "naive_mase",
            "coverage_90",
        )
    )
