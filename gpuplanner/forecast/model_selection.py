"""Weights of the forecast models at every cutoff, and tables of forecasts and scores.

The forecast is the mean of the models' quantiles, weighted by their pinball loss at past cutoffs. A prior of each
model's loss is combined once with the losses of all series of a source together, each of which counts a quarter; the
losses of a series itself move its own weights as they grow in number. A few cutoffs therefore change the weights
little. A model that no cutoff has tried gets no weight, and where jobs are known neither do the slowest models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest, mae, pinball, smape
from gpuplanner.forecast.quantile_calibration_and_reconciliation import (
    MEDIAN_INDEX,
    calibrate_quantiles,
    calibrated_mean,
)
from gpuplanner.forecast.statistical_models import (
    CANDIDATE_MODELS,
    HOUR_OF_DAY,
    MODELS_THAT_NEED_JOBS,
    NAIVE,
    QUANTILE_LEVELS,
    REVERTING,
    RUN_OFF,
    RUN_OFF_REVERTING,
    KnownJobs,
    forecast_from_jobs,
    forecast_univariate,
    mean_with_reverting,
    weighable_candidates,
)

PRIOR_RELATIVE_LOSS_BY_MODEL = {
    NAIVE: 1.0,
    "SeasonalNaive": 1.15,
    "WeeklyNaive": 1.3,
    "WeeklyMean": 1.2,
    REVERTING: 0.95,
    "Median": 0.95,
    "AutoETS": 1.0,
    HOUR_OF_DAY: 1.1,
    RUN_OFF: 0.75,
    RUN_OFF_REVERTING: 0.8,
}
"""Prior of a model's pinball loss relative to that of the naive forecast, before any cutoff of the data; measured on
public traces, see ``docs/results/forecast.md``."""
PRIOR_SEASONS, SERIES_SEASON_WEIGHT, EQUAL_WEIGHT_SEASONS = 10.0, 0.25, 96.0
"""Seasons of evaluated forecasts that the prior counts as; weight of a season of one series in the pooled record; and
number of seasons after which a series' own record counts as much as the pooled one. Counted in seasons because a cutoff
with a week's forecast says more than one with a day's; below 1 because errors of series of one source are
correlated."""
LOSS_HALF_LIFE_CUTOFFS = 20.0
"""Number of later cutoffs after which the loss at a cutoff counts half."""
MAX_RELATIVE_LOSS, MIN_RELATIVE_LOSS = 3.0, 0.05
"""Largest and smallest relative loss of a model that is told from more extreme ones, so that a single unusual series
does not decide the weight of a model for all."""
WEIGHT_SHARPNESS, UPPER_WEIGHT_SHARPNESS, MIN_MODEL_WEIGHT = 40.0, 7.0, 0.02
"""Decrease of a model's weight, in per cent, for 1 % more loss: for quantiles up to the median, and for those above it,
where few intervals separate the models; and the smallest weight, below which a model gets none."""


@dataclass(frozen=True, eq=False)
class EvaluatedBacktest:
    """Backtest with calibrated quantiles of each model, model weights, and the weighted mean of the models.

    Parameters
    ----------
    test : Backtest
        Forecasts and actual values.
    price : float or None
        Cost of a GPU-hour of unmet demand relative to a planned one, for the cost in the scores; it does not affect
        the weights, which follow from the loss over all quantiles.
    quantiles : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon, n_levels)
        Quantiles of each model at each cutoff, calibrated with the actual values known at that cutoff.
    means : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon)
        Calibrated means of each model, for energy and cost; the point forecast is the median.
    weights : numpy.ndarray, shape (n_models, n_series, n_origins + 1)
        Weights of the models, in the order of `quantiles`, at each cutoff; the last column is for the future.
    upper : numpy.ndarray, of the same shape
        Weights of the models for the quantiles above the median.
    mixture : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        Forecast at each cutoff: the weighted mean of the models' quantiles.
    first : int
        Index of the first cutoff that is evaluated; earlier ones only calibrate.
    """

    test: Backtest
    price: float | None
    quantiles: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    weights: np.ndarray
    upper: np.ndarray
    mixture: np.ndarray
    first: int

    @property
    def mixture_mean(self) -> np.ndarray:
        """Mean of the weighted forecast, shape (n_series, n_origins, horizon)."""
        return _mix_candidates(self.means, self.weights[:, :, :-1])

    @property
    def main_model(self) -> np.ndarray:
        """Name of the model with the largest weight in the forecast of the future, shape (n_series,)."""
        return np.asarray(np.array(list(self.quantiles), dtype=object)[self.weights[:, :, -1].argmax(axis=0)])

    def weight_of(self, model: str) -> np.ndarray:
        """Return a model's weight in the forecast of the future of each series, shape (n_series,)."""
        return np.asarray(self.weights[list(self.quantiles).index(model), :, -1])


def evaluate_backtest(backtest: Backtest, *, price: float | None = None, first: int = 0) -> EvaluatedBacktest:
    """Calibrate and weight the models at every cutoff of a backtest.

    Parameters
    ----------
    backtest : Backtest
        Forecasts and actual values at all cutoffs.
    price : float, optional
        Cost of a GPU-hour of unmet demand relative to a planned one, above 1, for the cost in the scores.
    first : int
        Number of first cutoffs that only calibrate.

    Returns
    -------
    EvaluatedBacktest
        Calibrated quantiles, weights and weighted forecast.
    """
    shape = backtest.actual.shape
    quantiles = {model: np.full((*shape, len(QUANTILE_LEVELS)), np.nan) for model in backtest.predicted}
    weights, upper = np.zeros((2, len(quantiles), shape[0], shape[1] + 1))
    for cutoff_index in range(shape[1] + 1):
        known_values = backtest.known_at(cutoff_index)
        weights_then = _weights_at(backtest, quantiles, known_values, cutoff_index)
        weights[:, :, cutoff_index], upper[:, :, cutoff_index] = weights_then
        for model, calibrated in quantiles.items() if cutoff_index < shape[1] else ():
            calibrated[:, cutoff_index] = calibrate_quantiles(backtest, model, cutoff_index, known_values, calibrated)
    means = {
        model: calibrated_mean(
            backtest.predicted[model], backtest.raw_quantiles(model), calibrated, backtest.cap[:, None, None]
        )
        for model, calibrated in quantiles.items()
    }
    mixture = _mix_candidates(quantiles, _weights_by_level(weights, upper)[:, :, :-1, None])
    mixture = np.maximum.accumulate(mixture, axis=-1)
    return EvaluatedBacktest(backtest, price, quantiles, means, weights, upper, mixture, first)


def _weights_by_level(weights: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Add a last axis of quantile levels to weights: `weights` up to the median, `upper` above it."""
    return np.where(np.array(QUANTILE_LEVELS) > 0.5, upper[..., None], weights[..., None])


def _weights_at(
    backtest: Backtest, quantiles: dict[str, np.ndarray], known_values: np.ndarray, cutoff_index: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the weights of the models at a cutoff from the actual values known then.

    Returns two arrays of shape (n_models, n_series): the weights up to the median, and above it.

    Parameters
    ----------
    backtest : Backtest
        Forecasts and actual values at all cutoffs.
    quantiles : dict of str to numpy.ndarray
        Calibrated quantiles of each model.
    known_values : numpy.ndarray, shape (n_series, n_origins, horizon)
        Actual values as far as they were known at the cutoff, NaN elsewhere.
    cutoff_index : int
        Number of the cutoff; the number of cutoffs: the end of the history.
    """
    loss = np.array(
        [realised_cost(known_values[:, :cutoff_index], levels[:, :cutoff_index], None) for levels in quantiles.values()]
    )
    is_evaluated = ~np.isnan(loss).all(axis=3)
    folds = np.where(is_evaluated, np.nansum(loss, axis=3), 0.0)
    faded = is_evaluated * 0.5 ** (np.arange(cutoff_index)[::-1] / LOSS_HALF_LIFE_CUTOFFS)
    seasons = faded.sum(axis=2) * max(backtest.horizon / backtest.grid.season, 1.0)
    models = list(quantiles)
    record = relative_losses((folds * faded).sum(axis=2), seasons, backtest.full[cutoff_index], models)
    free = np.isin(models, weighable_candidates(models, with_jobs=RUN_OFF in models))
    usable = backtest.allowed[cutoff_index] & (is_evaluated.any(axis=(1, 2)) & free)[:, None]
    return weights_from_records(record, usable), weights_from_records(record, usable, UPPER_WEIGHT_SHARPNESS)


def relative_losses(loss: np.ndarray, seasons: np.ndarray, full: np.ndarray, models: Sequence[str]) -> np.ndarray:
    """Estimate the log loss of each model relative to the naive forecast, by empirical Bayes.

    The loss ratio of a series is averaged with the ratio pooled over the series of the rule "full", and that with the
    prior :data:`PRIOR_RELATIVE_LOSS_BY_MODEL`. The result has the shape (n_models, n_series).

    Parameters
    ----------
    loss : numpy.ndarray, shape (n_models, n_series)
        Total pinball loss of each model, the naive forecast first.
    seasons : numpy.ndarray, shape (n_models, n_series)
        Number of forecast seasons over which the loss was summed.
    full : numpy.ndarray of bool, shape (n_series,)
        Whether a series has the rule "full" and so counts in the pooled ratio.
    models : sequence of str
        Names of the models.

    Examples
    --------
    One series that says little, many that say it together, and one of them that says otherwise:

    >>> lost = np.array([[1.0] * 40, [0.5] * 39 + [1.0]])
    >>> names = ["Naive", "AutoETS"]
    >>> np.exp(relative_losses(lost[:, :1], np.full((2, 1), 8.0), np.ones(1, dtype=bool), names)).round(2).tolist()
    [[1.0], [0.85]]
    >>> records = relative_losses(lost, np.full((2, 40), 8.0), np.ones(40, dtype=bool), names)
    >>> np.exp(records)[1, [0, -1]].round(2).tolist()
    [0.54, 0.57]
    """
    naive = loss[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(naive > 0, loss / naive, np.where(loss > 0, MAX_RELATIVE_LOSS, 1.0))
    log_ratio = np.where(seasons > 0, np.log(np.clip(ratio, MIN_RELATIVE_LOSS, MAX_RELATIVE_LOSS)), 0.0)
    prior = np.log([PRIOR_RELATIVE_LOSS_BY_MODEL[model] for model in models])
    count = SERIES_SEASON_WEIGHT * seasons * full
    common = (PRIOR_SEASONS * prior + (count * log_ratio).sum(axis=1)) / (PRIOR_SEASONS + count.sum(axis=1))
    return np.asarray((EQUAL_WEIGHT_SEASONS * common[:, None] + seasons * log_ratio) / (EQUAL_WEIGHT_SEASONS + seasons))


def weights_from_records(record: np.ndarray, usable: np.ndarray, sharpness: float = WEIGHT_SHARPNESS) -> np.ndarray:
    """Compute the weight of each model from its loss; where no model is usable, the first one gets all the weight.

    `record` are logarithms of losses relative to the naive forecast, `usable` marks models that may get a weight, both
    of shape (n_models, n_series), as is the result; `sharpness` is the per cent less weight for 1 % more loss.


    Examples
    --------
    >>> record, usable = np.log([[1.0], [0.8], [0.8], [0.5]]), np.array([[True], [True], [True], [False]])
    >>> weights_from_records(record, usable).ravel().tolist()
    [0.0, 0.5, 0.5, 0.0]
    """
    best = np.where(usable, record, np.inf).min(axis=0)
    best = np.where(np.isfinite(best), best, 0.0)
    raw = np.where(usable, np.exp(-sharpness * np.where(usable, record - best, 0.0)), 0.0)
    share = raw / np.maximum(raw.sum(axis=0), 1e-300)
    kept = np.where(share >= MIN_MODEL_WEIGHT, share, 0.0)
    total = kept.sum(axis=0)
    kept[0, total == 0] = 1.0
    return np.asarray(kept / kept.sum(axis=0))


def _mix_candidates(values: dict[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Compute the weighted mean of the models' arrays; NaN where the naive forecast is NaN."""
    extra_axes = values[NAIVE].ndim - weights.ndim + 1
    mixture = np.zeros_like(values[NAIVE])
    for candidate, weight in zip(values.values(), weights, strict=True):
        spread = weight.reshape(*weight.shape, *([1] * extra_axes))
        mixture += np.where(spread > 0, spread * candidate, 0.0)
    return np.where(np.isnan(values[NAIVE]), np.nan, mixture)


def forecast_future(
    backtest: EvaluatedBacktest, *, known_jobs: KnownJobs | None = None, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Forecast after the end of the history, with the last weights of the backtest.

    Returns
    -------
    means : array of float, shape (n_series, horizon)
    quantiles : array of float, shape (n_series, horizon, n_levels)
    """
    test, weights = backtest.test, backtest.weights[:, :, -1]
    shares = _weights_by_level(weights, backtest.upper[:, :, -1])
    grid, end = test.grid, len(test.origins)
    history = test.history_then[end] if test.history_then else grid.values
    outcome = test.known_at(end)
    mean = np.zeros((len(grid.ids), test.horizon))
    levels = np.zeros((*mean.shape, len(QUANTILE_LEVELS)))
    share_of = dict(zip(backtest.quantiles, shares, strict=True))
    with_paths = np.flatnonzero(
        sum(share_of[model].sum(axis=1) for model in MODELS_THAT_NEED_JOBS if model in share_of)
    )
    drawn = levels[:0, ..., 0], levels[:0]
    if known_jobs is not None and len(with_paths):
        ids = [grid.ids[row] for row in with_paths]
        drawn = forecast_from_jobs(known_jobs, ids, grid.values.shape[1], test.gap, test.horizon, seed)
    for (model, share), weight in zip(share_of.items(), weights, strict=True):
        rows = np.flatnonzero(share.any(axis=1))
        if not len(rows):
            continue
        if model in MODELS_THAT_NEED_JOBS:
            at = np.searchsorted(with_paths, rows)
            answer = drawn[0][at], drawn[1][at]
        if model != RUN_OFF:
            name = REVERTING if model == RUN_OFF_REVERTING else model
            pasts = [history[row][~np.isnan(history[row])] for row in rows]
            ahead_of = (test.gap, test.horizon, grid.season, grid.week)
            univariate = [forecast_univariate(past, name, *ahead_of) for past in pasts]
            series_answer = (
                np.array([member[0] for member in univariate]),
                np.array([member[1] for member in univariate]),
            )
            answer = mean_with_reverting(answer, series_answer[0]) if model == RUN_OFF_REVERTING else series_answer
        every = np.zeros((len(grid.ids), *answer[1].shape[1:]))
        every[rows] = answer[1]
        calibrated = calibrate_quantiles(test, model, end, outcome, backtest.quantiles[model], every)[rows]
        levels[rows] += share[rows, None] * calibrated
        mean[rows] += weight[rows, None] * calibrated_mean(*answer, calibrated, test.cap[rows, None])
    return mean, np.maximum.accumulate(levels, axis=-1)


def planned_quantile(quantiles: np.ndarray, price: float) -> np.ndarray:
    """Interpolate quantiles of demand at 1 - 1 / price, the level at which planning has the lowest mean cost.

    `quantiles` has the shape (..., n_levels); `price` is that of a GPU-hour of unmet demand over a planned one.


    Examples
    --------
    >>> planned_quantile(np.arange(7.0), 5.0).round(3).item()
    4.333
    """
    level = 1 - 1 / price
    above = int(np.clip(np.searchsorted(QUANTILE_LEVELS, level), 1, len(QUANTILE_LEVELS) - 1))
    distance = QUANTILE_LEVELS[above] - QUANTILE_LEVELS[above - 1]
    weight = np.clip((level - QUANTILE_LEVELS[above - 1]) / distance, 0.0, 1.0)
    low, high = quantiles[..., above - 1], quantiles[..., above]
    return np.asarray(low + weight * (high - low))


def realised_cost(actual: np.ndarray, quantiles: np.ndarray, price: float | None) -> np.ndarray:
    """Compute the hourly cost of planning for a quantile [planned GPU-hours]; without a price, mean pinball loss.

    Parameters
    ----------
    actual : numpy.ndarray, shape (...)
        Actual demand. [GPUs]
    quantiles : numpy.ndarray, shape (..., n_levels)
        Forecast quantiles of demand at :data:`QUANTILE_LEVELS`. [GPUs]
    price : float or None
        Cost of a GPU-hour of unmet demand relative to a planned one, above 1. [ratio]

    Examples
    --------
    >>> realised_cost(np.array(10.0), np.full(7, 8.0), 5.0).item()
    18.0
    """
    if price is None:
        short = actual[..., None] - quantiles
        levels = np.array(QUANTILE_LEVELS)
        return np.asarray(np.maximum(levels * short, (levels - 1) * short).mean(axis=-1))
    plan = planned_quantile(quantiles, price)
    return np.asarray(plan + price * np.maximum(actual - plan, 0.0))


CHOSEN_MODEL_NAME = "chosen"
"""Model name of the weighted forecast in tables of forecasts and scores."""
_RATIO_SCHEMA = dict.fromkeys(("value", "chosen", "ratio"), pl.Float64)
"""Numeric columns of :data:`BEST_FIXED_MODEL_SCHEMA`: values of the best single model and of the weighted forecast, and
their ratio."""
BEST_FIXED_MODEL_SCHEMA = dict.fromkeys(("use", "measure", "best"), pl.String) | _RATIO_SCHEMA
"""Columns and types of the table of :func:`compare_best_fixed`."""
QUANTILE_COLUMNS = tuple(f"q{round(100 * level):02d}" for level in QUANTILE_LEVELS)
"""Columns of the quantiles in table ``schemas.Forecast``: ``q05`` to ``q95``."""


def fold_table(backtest: EvaluatedBacktest) -> pl.DataFrame:
    """Tabulate every forecast of every evaluated cutoff, interval by interval, with the actual value.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, cutoff, ds, y, mean, q05 ... q95``, and ``scale``, the unit of MASE at that cutoff; the rows
        of model ``"chosen"`` are the weighted forecast at that
        cutoff. Sorted by the first four columns.
    """
    test, grid = backtest.test, backtest.test.grid
    cutoff_indices = range(backtest.first, len(test.origins))
    parts = []
    for model, (mean, quantiles) in _with_chosen(backtest).items():
        for row, uid in enumerate(grid.ids):
            for cutoff_index in cutoff_indices:
                if np.isnan(mean[row, cutoff_index]).any():
                    continue
                origin = test.origins[cutoff_index]
                columns = {
                    "unique_id": uid,
                    "model": model,
                    "cutoff": grid.time(origin),
                    "ds": [grid.time(origin + test.gap + slot) for slot in range(test.horizon)],
                    "y": test.actual[row, cutoff_index],
                    "mean": mean[row, cutoff_index],
                    **{name: quantiles[row, cutoff_index, :, at] for at, name in enumerate(QUANTILE_COLUMNS)},
                    "scale": test.scale[row, cutoff_index],
                }
                parts.append(pl.DataFrame(columns))
    return pl.concat(parts).sort("unique_id", "model", "cutoff", "ds")


def fold_scores(backtest: EvaluatedBacktest) -> pl.DataFrame:
    """Score every model on the evaluated cutoffs of every series.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, rule, cutoffs``; ``mase`` of the median and ``pinball`` (twice the mean loss over the
        seven quantiles), both in units of the seasonal naive error before each cutoff; ``coverage_90``;
        ``realised_cost`` (of planning at the quantile of the price, per unit of demand; null without a price or
        demand); ``cpu_s`` of one forecast; ``weight`` in the forecast of the future; ``chosen`` (whether it has the
        largest weight there). Model ``"chosen"`` is the weighted forecast at each cutoff.
    """
    test = backtest.test
    part = slice(backtest.first, None)
    rows = []
    for model, (mean, quantiles) in _with_chosen(backtest).items():
        for row, uid in enumerate(test.grid.ids):
            is_forecast = ~np.isnan(mean[row, part, 0])
            actual, levels = test.actual[row, part][is_forecast], quantiles[row, part][is_forecast]
            scale = test.scale[row, part][is_forecast]
            needed = actual.sum()
            priced = backtest.price is not None and needed > 0
            cost = realised_cost(actual, levels, backtest.price)
            used = sum(test.cpu_s.values()) if model == CHOSEN_MODEL_NAME else test.cpu_s[model]
            rows.append(
                {
                    "unique_id": uid,
                    "model": model,
                    "rule": test.rules[row],
                    "cutoffs": int(is_forecast.sum()),
                    "mase": _mean(np.abs(actual - levels[..., MEDIAN_INDEX]).mean(axis=1) / scale),
                    "pinball": _mean(2 * realised_cost(actual, levels, None).mean(axis=1) / scale),
                    "coverage_90": _mean((actual >= levels[..., 0]) & (actual <= levels[..., -1])),
                    "realised_cost": float(cost.sum() / needed) if priced else None,
                    "cpu_s": used / (len(test.grid.ids) * len(test.origins)),
                    "weight": None if model == CHOSEN_MODEL_NAME else float(backtest.weight_of(model)[row]),
                    "chosen": model == backtest.main_model[row],
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def score_backtest(backtest: Backtest, *, evaluated_backtest: EvaluatedBacktest | None = None) -> pl.DataFrame:
    """Tabulate the scores of a backtest: every model of every series, the naive forecast included.

    Quantiles at a cutoff are calibrated by earlier cutoffs alone.

    Parameters
    ----------
    backtest : Backtest
        Result of :func:`backtest`.
    evaluated_backtest : EvaluatedBacktest, optional
        The same backtest after :func:`evaluate_backtest`; None: evaluated here, without the price of unmet demand.

    Returns
    -------
    polars.DataFrame
        ``unique_id``, ``model``, ``rule`` (of the series: a key of ``DESCRIPTION_BY_SERIES_RULE``), ``windows``
        (cutoffs), ``mase`` (mean over the cutoffs at which it is defined; null if at none), ``smape`` [0-2], ``mae``
        [instances]; and over the cutoffs after the first, which has no earlier errors to calibrate with: ``pinball``
        (mean over the quantiles, [instances]), ``coverage_50``, ``coverage_80``, ``coverage_90`` [0-1],
        ``realised_cost`` (with a price: mean cost of an interval); in the order of the series, and within them from
        simple to elaborate.
    """
    made = evaluated_backtest or evaluate_backtest(backtest)
    rows = [
        {"unique_id": uid, "model": model, "rule": backtest.rules[row]}
        | score_series(made, row, made.quantiles[model][row])
        for row, uid in enumerate(backtest.grid.ids)
        for model in CANDIDATE_MODELS
        if model in made.quantiles and model in backtest.models[row]
    ]
    order = pl.col("model").cast(pl.Enum(CANDIDATE_MODELS)).to_physical()
    return pl.DataFrame(rows, infer_schema_length=None).sort("unique_id", order)


def score_series(backtest: EvaluatedBacktest, row: int, levels: np.ndarray) -> dict[str, float | int | None]:
    """Compute the error measures of the forecasts of one series, by the column names of :func:`score_backtest`.

    `row` is the index of the series, `levels` its quantiles at each cutoff, shape (n_origins, horizon, n_levels).
    """
    test = backtest.test
    is_forecast = ~np.isnan(levels[:, 0, 0])
    late = is_forecast & (np.cumsum(is_forecast) > 1) if is_forecast.sum() > 1 else is_forecast
    actual, middle = test.actual[row, is_forecast], levels[is_forecast][..., MEDIAN_INDEX]
    late_actual, late_levels = test.actual[row, late], levels[late]
    losses = [
        pinball(late_actual, late_levels[..., at], level)
        for at, level in enumerate(QUANTILE_LEVELS)
        if len(late_actual)
    ]
    measures: dict[str, float | int | None] = {
        "windows": int(is_forecast.sum()),
        "mase": _mean(np.abs(actual - middle).mean(axis=1) / test.scale[row, is_forecast]),
        "smape": smape(actual, middle) if len(actual) else None,
        "mae": mae(actual, middle) if len(actual) else None,
        "pinball": float(np.mean(losses)) if len(late_actual) else None,
    }
    for percent, low, high in ((50, 0.25, 0.75), (80, 0.10, 0.90), (90, 0.05, 0.95)):
        inside = (late_actual >= late_levels[..., QUANTILE_LEVELS.index(low)]) & (
            late_actual <= late_levels[..., QUANTILE_LEVELS.index(high)]
        )
        measures[f"coverage_{percent}"] = _mean(inside)
    if backtest.price is not None:
        measures["realised_cost"] = _mean(realised_cost(late_actual, late_levels, backtest.price))
    return measures


def mean_scores(scores: pl.DataFrame) -> pl.DataFrame:
    """Average the scores of each model over the series that it was scored on."""
    values = ("cutoffs", "mase", "pinball", "coverage_90", "realised_cost", "cpu_s", "weight", "chosen")
    return scores.group_by("model", maintain_order=True).agg(pl.len().alias("series"), pl.col(values).mean())


FORECAST_USE_BY_ERROR_MEASURE = {
    "mase": "point forecast",
    "pinball": "all quantiles",
    "realised_cost": "planning at the quantile of the price",
}
"""Use of a forecast that an error measure stands for, by the column of the measure."""


def compare_best_fixed(mean: pl.DataFrame) -> pl.DataFrame:
    """Compare the weighted forecast with the best single model in hindsight, for each use of a forecast.

    A ratio below 1 means that the weighted forecast has a lower error than every single model.

    Parameters
    ----------
    mean : polars.DataFrame
        Table of :func:`mean_scores`.

    Returns
    -------
    polars.DataFrame
        ``use``, ``measure``, ``best`` (name of the best model), its ``value``, ``chosen`` (value of the weighted
        forecast) and ``ratio``; uses without a measured value are left out.

    Examples
    --------
    >>> mean = pl.DataFrame({"model": ["Naive", "RunOff", "chosen"], "mase": [1.0, 0.8, 0.9], "pinball": [2.0, 1, 1],
    ...     "realised_cost": [None, None, None]})
    >>> compare_best_fixed(mean).select("measure", "best", pl.col("ratio").round(3)).rows()
    [('mase', 'RunOff', 1.125), ('pinball', 'RunOff', 1.0)]
    """
    rows = []
    for measure, use in FORECAST_USE_BY_ERROR_MEASURE.items():
        value_by_model = dict(mean.select("model", measure).drop_nulls().iter_rows())
        chosen_value = value_by_model.pop(CHOSEN_MODEL_NAME, None)
        if chosen_value is not None and value_by_model:
            best = min(value_by_model, key=value_by_model.__getitem__)
            ratio = chosen_value / value_by_model[best] if value_by_model[best] > 0 else None
            rows.append((use, measure, best, value_by_model[best], chosen_value, ratio))
    return pl.DataFrame(rows, schema=BEST_FIXED_MODEL_SCHEMA, orient="row")


def _with_chosen(backtest: EvaluatedBacktest) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Collect mean and quantiles at every cutoff by model name, the weighted forecast as ``chosen``."""
    candidates = {model: (backtest.means[model], backtest.quantiles[model]) for model in backtest.quantiles}
    return candidates | {CHOSEN_MODEL_NAME: (backtest.mixture_mean, backtest.mixture)}


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the values that are not NaN; None without such a value."""
    flat = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(flat.mean()) if flat.size else None
