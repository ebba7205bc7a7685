"""Score every model on the backtests, choose one for each series."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.candidates import CANDIDATES
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
    table = scores.with_columns(error=pl.coalesce("mase", "mae"))
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    models = [model for model in CANDIDATES if (table["model"] == model).any()]
    place = {uid: number for number, uid in enumerate(ids)}
    error = np.full((len(models), len(ids)), np.nan)
    usable, full = np.zeros(error.shape, dtype=bool), np.zeros(len(ids), dtype=bool)
    for uid, model, rule, value in table.select("unique_id", "model", "rule", "error").iter_rows():
        at = models.index(model), place[uid]
        error[at], usable[at] = np.nan if value is None else value, True
        full[place[uid]] = rule == "full"
    naive = error[models.index(NAIVE)] if NAIVE in models else np.full(len(ids), np.nan)
    chosen = pick(relative(error, naive), full, shut_out=~usable)
    return pl.DataFrame({"unique_id": ids, "model": [models[one] for one in chosen]})


def relative(error: np.ndarray, naive: np.ndarray) -> np.ndarray:
    """Records relative to the naive forecast, cut off at :data:`WORST`.

    Parameters
    ----------
    error : numpy.ndarray, shape (n_models, n_series)
        Mean error or cost; NaN where there is none.
    naive : numpy.ndarray, shape (n_series,)
        Of the naive forecast.

    Examples
    --------
    >>> relative(np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([2.0, 0.0])).tolist()
    [[1.0, 1.0], [0.5, 3.0]]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(
            naive > 0, error / naive, np.where(error > 0, WORST, np.where(error == 0, 1.0, np.nan))
        )
    return np.minimum(ratio, WORST)


def pick(own: np.ndarray, full: np.ndarray, *, shut_out: np.ndarray) -> np.ndarray:
    """Number of the model with the best record, own and common; of equal ones the first.

    Parameters
    ----------
    own : numpy.ndarray, shape (n_models, n_series)
        Records relative to the naive forecast; NaN where there is none.
    full : numpy.ndarray of bool, shape (n_series,)
        Series whose records make the common one.
    shut_out : numpy.ndarray of bool, shape (n_models, n_series)
        Models that are not to be chosen.

    Examples
    --------
    >>> none = np.zeros((2, 1), dtype=bool)
    >>> pick(np.array([[1.0], [0.5]]), np.array([True]), shut_out=none).tolist()
    [1]
    """
    seen = ~np.isnan(own) & full
    count = seen.sum(axis=1)
    common = np.where(count > 0, np.where(seen, own, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)[:, None]
    record = OWN_WEIGHT * own + (1 - OWN_WEIGHT) * np.where(np.isnan(common), own, common)
    record = np.where(shut_out | np.isnan(record), np.inf, record)
    return np.asarray(record.argmin(axis=0))


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
