"""Forecast demand: backtest, choose, fit once more, add intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest, backtest
from gpuplanner.forecast.candidates import CANDIDATES, Known
from gpuplanner.forecast.choose import choose
from gpuplanner.forecast.folds import ahead_table, score
from gpuplanner.forecast.judge import judge
from gpuplanner.forecast.models import RULES


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
    demand: pl.DataFrame,
    *,
    horizon: int,
    windows: int = 8,
    step: int | None = None,
    known: Known | None = None,
    price: float | None = None,
    seed: int = 1,
) -> ForecastResult:
    """Forecast every series with the model that did best on it, with quantiles whose coverage was measured.

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
        Price of a unit short, in prices of a unit planned; without one pinball loss decides.
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
    test = backtest(
        demand, horizon=horizon, windows=windows, step=step, known=known, models=CANDIDATES, seed=seed
    )
    judged = judge(test, price=price)
    scores = score(test, judged=judged)
    seasons = max(horizon / test.grid.season, 1.0)
    chosen = choose(scores, seasons=seasons)["model"].to_list()
    last = np.concatenate([judged.chosen[:, :-1], np.array(chosen, dtype=object)[:, None]], axis=1)
    return ForecastResult(
        forecast=ahead_table(replace(judged, chosen=last), known=known, seed=seed),
        scores=scores,
        choice=_choice(test, scores, chosen),
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
