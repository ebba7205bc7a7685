"""Score every model on the backtests, choose one for each series."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.intervals import LEVELS, left_out_quantiles, scaled_errors
from gpuplanner.forecast.models import MODELS, NAIVE
from gpuplanner.forecast.scores import coverage, mae, pinball, smape

OWN_WEIGHT = 0.25
"""Weight of a series' own record in the choice; the rest is the record of the model on all series. A handful
of backtests is a noisy judge: on the Philly trace, choosing by the own record alone did worse than keeping
the naive forecast everywhere."""
WORST = 3.0
"""Relative records are cut off here, so that one odd series does not judge a model for all."""
INTERVALS = ((50, 0.25, 0.75), (80, 0.10, 0.90), (90, 0.05, 0.95))


def score(test: Backtest) -> pl.DataFrame:
    """Score table of a backtest: every model of every series, the naive forecast always among them.

    Quantiles are calibrated without the origin on which they are judged.

    Parameters
    ----------
    test : Backtest
        From :func:`backtest`.

    Returns
    -------
    polars.DataFrame
        ``unique_id``, ``model``, ``rule``, ``windows`` (origins judged), ``mase`` (mean over the origins at
        which it is defined; null if at none), ``smape`` [0-2], ``mae`` [instances], ``pinball`` (mean over
        the quantiles, [instances]), ``coverage_50``, ``coverage_80``, ``coverage_90`` [0-1]; in the order of
        the series, and within them from simple to elaborate.
    """
    rows = []
    for model in MODELS:
        mean = test.predicted[model]
        errors = scaled_errors(test.actual, mean, test.spread)
        quantiles = left_out_quantiles(mean, errors, test.spread, test.grid.season)
        rows += [
            {"unique_id": uid, "model": model, "rule": test.rules[row]}
            | _scores(test, row, mean[row], quantiles[row])
            for row, uid in enumerate(test.grid.ids)
            if model in test.models[row]
        ]
    order = pl.col("model").cast(pl.Enum(MODELS)).to_physical()
    return pl.DataFrame(rows, infer_schema_length=None).sort("unique_id", order)


def choose(scores: pl.DataFrame) -> pl.DataFrame:
    """Choose a model for each series by its record relative to the naive forecast.

    The record of a model is its mean MASE divided by that of the naive forecast on the same origins (by MAE
    where MASE is not defined). A quarter of it is the series' own, the rest the mean over all series of the
    rule "full" that use the model. The best record wins; of equal ones, the simpler model.

    Parameters
    ----------
    scores : polars.DataFrame
        From :func:`score`.

    Returns
    -------
    polars.DataFrame
        ``unique_id`` and ``model``, one row per series.

    Examples
    --------
    >>> scores = pl.DataFrame({"unique_id": ["a", "a"], "model": ["Naive", "Median"], "rule": "full"})
    >>> choose(scores.with_columns(mase=pl.Series([2.0, 1.0]), mae=pl.Series([4.0, 2.0]))).rows()
    [('a', 'Median')]
    """
    error = pl.coalesce("mase", "mae")
    naive = error.filter(pl.col("model") == NAIVE).first().over("unique_id")
    own = pl.when(naive > 0).then(error / naive).when(error > 0).then(WORST).otherwise(1.0)
    common = pl.col("own").filter(pl.col("rule") == "full").mean().over("model")
    record = OWN_WEIGHT * pl.col("own") + (1 - OWN_WEIGHT) * common.fill_null(pl.col("own"))
    return (
        scores.with_columns(own=own.clip(upper_bound=WORST))
        .with_columns(record=record)
        .filter(pl.col("record") == pl.col("record").min().over("unique_id"))
        .group_by("unique_id", maintain_order=True)
        .agg(pl.col("model").first())
    )


def _scores(
    test: Backtest, row: int, mean: np.ndarray, quantiles: np.ndarray
) -> dict[str, float | int | None]:
    """Measures of one model on one series over the origins at which the series had begun."""
    seen = ~np.isnan(mean[:, 0])
    names = ("mase", "smape", "mae", "pinball", *(f"coverage_{percent}" for percent, _, _ in INTERVALS))
    if not seen.any():
        return {"windows": 0} | dict.fromkeys(names)
    actual, mean, quantiles = test.actual[row, seen], mean[seen], quantiles[seen]
    scaled = np.abs(actual - mean).mean(axis=1) / test.scale[row, seen]
    scaled = scaled[~np.isnan(scaled)]
    return {
        "windows": int(seen.sum()),
        "mase": float(scaled.mean()) if len(scaled) else None,
        "smape": smape(actual, mean),
        "mae": mae(actual, mean),
        "pinball": float(
            np.mean([pinball(actual, quantiles[..., at], level) for at, level in enumerate(LEVELS)])
        ),
    } | {
        f"coverage_{percent}": coverage(
            actual, quantiles[..., LEVELS.index(low)], quantiles[..., LEVELS.index(high)]
        )
        for percent, low, high in INTERVALS
    }
