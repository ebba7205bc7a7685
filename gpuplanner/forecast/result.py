"""A forecast with its record: every judged fold, the score of every candidate, and the choice for each series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import backtest
from gpuplanner.forecast.candidates import CANDIDATES, Known, weighed
from gpuplanner.forecast.judge import Judged, ahead, judge
from gpuplanner.forecast.models import NAIVE, RULES
from gpuplanner.forecast.record import NAMES, score, series_record
from gpuplanner.schemas.domain import Forecast
from gpuplanner.schemas.check import check


@dataclass(frozen=True)
class ForecastResult:
    """A forecast with its past error.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``: what the candidates say, weighed for each series; sorted by ``unique_id``, ``ds``.
    scores : polars.DataFrame
        All models on all series (see :func:`gpuplanner.forecast.score`).
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
    test = backtest(
        demand, horizon=horizon, windows=windows, step=step, known=known, models=models, seed=seed
    )
    judged = judge(test, price=price)
    scores = score(test, judged=judged)
    return ForecastResult(
        forecast=ahead_table(judged, known=known, seed=seed),
        scores=scores,
        choice=_choice(judged, scores),
    )


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
        told.append(
            ", ".join(f"{names[one]} {weights[one]:.0%}".replace("%", " %") for one in order if weights[one])
        )
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
    parts = [
        pl.DataFrame(
            {
                "unique_id": uid,
                "ds": [grid.time(end + test.gap + slot) for slot in range(test.horizon)],
                "model": judged.chosen[row],
                "mean": mean[row],
                **{name: quantiles[row, :, at] for at, name in enumerate(NAMES)},
                "cutoff": grid.time(end),
            }
        )
        for row, uid in enumerate(grid.ids)
    ]
    return check(pl.concat(parts), Forecast, where="forecast")
