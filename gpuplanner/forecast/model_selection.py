"""Choice of the forecast model at every origin, and tables of folds and scores.

What is chosen is a mean of the candidates' quantiles, weighed by what each lost so far. Series of a source share a
belief: a prior is weighed once against all of them, each of which counts a quarter; the record of a series itself moves
its own weights as it grows. A few origins therefore say little; a candidate that no origin has tried weighs nothing,
and where jobs are known neither do yardsticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest, mae, pinball, smape
from gpuplanner.forecast.quantile_calibration import MIDDLE, mean_at, quantiles_at
from gpuplanner.forecast.statistical_models import (
    CANDIDATES,
    HOUR_OF_DAY,
    LEVELS,
    NAIVE,
    NEED_JOBS,
    REVERTING,
    RUN_OFF,
    RUN_OFF_REVERTING,
    Known,
    between,
    say_alone,
    say_known,
    weighed,
)

PRIOR = {
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
"""Pinball loss relative to the naive forecast that a candidate is believed to reach before it was tried here. Public
traces stand behind it, see ``docs/results/forecast.md``."""
PRIOR_SEASONS, OWN_SHARE, OWN_SEASONS = 10.0, 0.25, 96.0
"""How many seasons the prior counts for, as what share of a season one of a single series counts beside it, and after
how many seasons a series' own record counts as much as that of all: an origin from which a week was forecast says more
than one of a day, and series of one source err together."""
HALF_LIFE = 20.0
"""Origins after which a loss counts half."""
WORST, FLOOR = 3.0, 0.05
"""Relative losses are told apart within these bounds: one odd series does not judge a candidate for all."""
SHARPNESS, UPPER, LEAST_WEIGHT = 40.0, 7.0, 0.02
"""A candidate that loses 1 % more weighs so many per cent less, in the quantiles above the median fewer: few slots say
who is right there, and a mean of several errs less. What weighs less than the least weighs nothing."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Candidates with quantiles, what each weighed, and the forecast that came of it.

    Parameters
    ----------
    test : Backtest
    price : float or None
        Price of a unit short, in prices of a unit planned, at which plans are costed; it decides nothing: the loss
        over all quantiles chooses best for the point forecast and for the cost of planning alike.
    quantiles : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon, n_levels)
        What each candidate said at each origin, calibrated by what was known then.
    means : dict of str to numpy.ndarray, each of shape (n_series, n_origins, horizon)
        Means of the same, which energy and money are counted with; the point forecast is the median.
    weights : numpy.ndarray, shape (n_models, n_series, n_origins + 1)
        Of the candidates, in the order of `quantiles`, at each origin; the last column is for the future.
    upper : numpy.ndarray, of the same shape
        The same of the quantiles above the median.
    said : numpy.ndarray, shape (n_series, n_origins, horizon, n_levels)
        What was said at each origin: the weighted mean of the candidates' quantiles.
    first : int
        The first origin that is judged; those before it only calibrate.
    """

    test: Backtest
    price: float | None
    quantiles: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    weights: np.ndarray
    upper: np.ndarray
    said: np.ndarray
    first: int

    @property
    def said_mean(self) -> np.ndarray:
        """Mean of what was said, shape (n_series, n_origins, horizon)."""
        return _mixed(self.means, self.weights[:, :, :-1])

    @property
    def chosen(self) -> np.ndarray:
        """Candidate that weighs most for the future of each series, shape (n_series,)."""
        return np.asarray(np.array(list(self.quantiles), dtype=object)[self.weights[:, :, -1].argmax(axis=0)])

    def weight_of(self, model: str) -> np.ndarray:
        """What a candidate weighs for the future of each series, shape (n_series,)."""
        return np.asarray(self.weights[list(self.quantiles).index(model), :, -1])


def judge(test: Backtest, *, price: float | None = None, first: int = 0) -> Judged:
    """Calibrate and weigh the candidates at every origin of a backtest.

    Parameters
    ----------
    test : Backtest
    price : float, optional
        Price of a unit short, in prices of a unit planned, above 1, for the cost of what was said.
    first : int
        Origins that only calibrate.

    Returns
    -------
    Judged
    """
    shape = test.actual.shape
    quantiles = {model: np.full((*shape, len(LEVELS)), np.nan) for model in test.predicted}
    weights, upper = np.zeros((2, len(quantiles), shape[0], shape[1] + 1))
    for place in range(shape[1] + 1):
        known = test.known_at(place)
        weights[:, :, place], upper[:, :, place] = _weights_at(test, quantiles, known, place)
        for model, calibrated in quantiles.items() if place < shape[1] else ():
            calibrated[:, place] = quantiles_at(test, model, place, known, calibrated)
    means = {
        model: mean_at(test.predicted[model], test.said(model), calibrated, test.cap[:, None, None])
        for model, calibrated in quantiles.items()
    }
    said = _mixed(quantiles, _of_levels(weights, upper)[:, :, :-1, None])
    said = np.maximum.accumulate(said, axis=-1)
    return Judged(test, price, quantiles, means, weights, upper, said, first)


def _of_levels(weights: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Weights by level, along a last axis."""
    return np.where(np.array(LEVELS) > 0.5, upper[..., None], weights[..., None])


def _weights_at(
    test: Backtest, quantiles: dict[str, np.ndarray], known: np.ndarray, place: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the candidates at an origin, each (n_models, n_series), from the folds whose outcome was known."""
    loss = np.array([realised(known[:, :place], each[:, :place], None) for each in quantiles.values()])
    seen = ~np.isnan(loss).all(axis=3)
    folds = np.where(seen, np.nansum(loss, axis=3), 0.0)
    faded = seen * 0.5 ** (np.arange(place)[::-1] / HALF_LIFE)
    seasons = faded.sum(axis=2) * max(test.horizon / test.grid.season, 1.0)
    models = list(quantiles)
    record = records((folds * faded).sum(axis=2), seasons, test.full[place], models)
    free = np.isin(models, weighed(models, with_jobs=RUN_OFF in models))
    usable = test.allowed[place] & (seen.any(axis=(1, 2)) & free)[:, None]
    return weigh(record, usable), weigh(record, usable, UPPER)


def records(loss: np.ndarray, seasons: np.ndarray, full: np.ndarray, models: Sequence[str]) -> np.ndarray:
    """Loss that each candidate is believed to have beside the naive forecast, in logarithms.

    Of what each lost in all (the naive forecast first) and over how many seasons, both of shape (n_models, n_series);
    series of the rule "full" make the common record, the others do not.

    Examples
    --------
    One series that says little, many that say it together, and one of them that says otherwise:

    >>> lost = np.array([[1.0] * 40, [0.5] * 39 + [1.0]])
    >>> names = ["Naive", "AutoETS"]
    >>> np.exp(records(lost[:, :1], np.full((2, 1), 8.0), np.ones(1, dtype=bool), names)).round(2).tolist()
    [[1.0], [0.85]]
    >>> np.exp(records(lost, np.full((2, 40), 8.0), np.ones(40, dtype=bool), names))[1, [0, -1]].round(2).tolist()
    [0.54, 0.57]
    """
    naive = loss[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(naive > 0, loss / naive, np.where(loss > 0, WORST, 1.0))
    own = np.where(seasons > 0, np.log(np.clip(ratio, FLOOR, WORST)), 0.0)
    prior = np.log([PRIOR[model] for model in models])
    count = OWN_SHARE * seasons * full
    common = (PRIOR_SEASONS * prior + (count * own).sum(axis=1)) / (PRIOR_SEASONS + count.sum(axis=1))
    return np.asarray((OWN_SEASONS * common[:, None] + seasons * own) / (OWN_SEASONS + seasons))


def weigh(record: np.ndarray, usable: np.ndarray, sharpness: float = SHARPNESS) -> np.ndarray:
    """Weights from records in logarithms, shape (n_models, n_series); the first candidate stands in for none.

    Examples
    --------
    >>> record, usable = np.log([[1.0], [0.8], [0.8], [0.5]]), np.array([[True], [True], [True], [False]])
    >>> weigh(record, usable).ravel().tolist()
    [0.0, 0.5, 0.5, 0.0]
    """
    best = np.where(usable, record, np.inf).min(axis=0)
    best = np.where(np.isfinite(best), best, 0.0)
    raw = np.where(usable, np.exp(-sharpness * np.where(usable, record - best, 0.0)), 0.0)
    share = raw / np.maximum(raw.sum(axis=0), 1e-300)
    kept = np.where(share >= LEAST_WEIGHT, share, 0.0)
    total = kept.sum(axis=0)
    kept[0, total == 0] = 1.0
    return np.asarray(kept / kept.sum(axis=0))


def _mixed(values: dict[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Weighted mean of arrays by candidate; where the naive forecast says nothing, nothing is said."""
    rest = values[NAIVE].ndim - weights.ndim + 1
    found = np.zeros_like(values[NAIVE])
    for each, weight in zip(values.values(), weights, strict=True):
        spread = weight.reshape(*weight.shape, *([1] * rest))
        found += np.where(spread > 0, spread * each, 0.0)
    return np.where(np.isnan(values[NAIVE]), np.nan, found)


def ahead(judged: Judged, *, known: Known | None = None, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Forecast what is still to come: mean (n_series, horizon) and quantiles (n_series, horizon, n_levels)."""
    test, weights = judged.test, judged.weights[:, :, -1]
    shares = _of_levels(weights, judged.upper[:, :, -1])
    grid, end = test.grid, len(test.origins)
    history = test.seen[end] if test.seen else grid.values
    outcome = test.known_at(end)
    mean = np.zeros((len(grid.ids), test.horizon))
    levels = np.zeros((*mean.shape, len(LEVELS)))
    share_of = dict(zip(judged.quantiles, shares, strict=True))
    with_paths = np.flatnonzero(sum(share_of[model].sum(axis=1) for model in NEED_JOBS if model in share_of))
    drawn = levels[:0, ..., 0], levels[:0]
    if known is not None and len(with_paths):
        ids = [grid.ids[row] for row in with_paths]
        drawn = say_known(known, ids, grid.values.shape[1], test.gap, test.horizon, seed)
    for (model, share), weight in zip(share_of.items(), weights, strict=True):
        rows = np.flatnonzero(share.any(axis=1))
        if not len(rows):
            continue
        if model in NEED_JOBS:
            at = np.searchsorted(with_paths, rows)
            said = drawn[0][at], drawn[1][at]
        if model != RUN_OFF:
            name = REVERTING if model == RUN_OFF_REVERTING else model
            pasts = [history[row][~np.isnan(history[row])] for row in rows]
            ahead_of = (test.gap, test.horizon, grid.season, grid.week)
            alone = [say_alone(past, name, *ahead_of) for past in pasts]
            own = np.array([one[0] for one in alone]), np.array([one[1] for one in alone])
            said = between(said, own[0]) if model == RUN_OFF_REVERTING else own
        every = np.zeros((len(grid.ids), *said[1].shape[1:]))
        every[rows] = said[1]
        calibrated = quantiles_at(test, model, end, outcome, judged.quantiles[model], every)[rows]
        levels[rows] += share[rows, None] * calibrated
        mean[rows] += weight[rows, None] * mean_at(*said, calibrated, test.cap[rows, None])
    return mean, np.maximum.accumulate(levels, axis=-1)


def plan_at(quantiles: np.ndarray, price: float) -> np.ndarray:
    """What to plan for: the quantile 1 - 1 / price, on straight lines between those that are stored.

    Examples
    --------
    >>> plan_at(np.arange(7.0), 5.0).round(3).item()
    4.333
    """
    level = 1 - 1 / price
    above = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
    weight = np.clip((level - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1]), 0.0, 1.0)
    low, high = quantiles[..., above - 1], quantiles[..., above]
    return np.asarray(low + weight * (high - low))


def realised(actual: np.ndarray, quantiles: np.ndarray, price: float | None) -> np.ndarray:
    """What a slot cost, in prices of a unit planned; without a price the pinball loss, mean over the levels.

    Parameters
    ----------
    actual : numpy.ndarray, shape (...)
    quantiles : numpy.ndarray, shape (..., n_levels)
    price : float or None

    Examples
    --------
    >>> realised(np.array(10.0), np.full(7, 8.0), 5.0).item()
    18.0
    """
    if price is None:
        short = actual[..., None] - quantiles
        levels = np.array(LEVELS)
        return np.asarray(np.maximum(levels * short, (levels - 1) * short).mean(axis=-1))
    plan = plan_at(quantiles, price)
    return np.asarray(plan + price * np.maximum(actual - plan, 0.0))


CHOSEN = "chosen"
_RATIOS = dict.fromkeys(("value", "chosen", "ratio"), pl.Float64)
FIXED = dict.fromkeys(("use", "measure", "best"), pl.String) | _RATIOS
NAMES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)


def fold_table(judged: Judged) -> pl.DataFrame:
    """Every forecast of every judged fold, slot by slot, and what came.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, cutoff, ds, y, mean, q05 ... q95``, and ``scale``, the unit of MASE at that origin; the
        rows of model ``"chosen"`` are what was said then, the weighted candidates. Sorted by the first four.
    """
    test, grid = judged.test, judged.test.grid
    places = range(judged.first, len(test.origins))
    parts = []
    for model, (mean, quantiles) in _with_chosen(judged).items():
        for row, uid in enumerate(grid.ids):
            for place in places:
                if np.isnan(mean[row, place]).any():
                    continue
                origin = test.origins[place]
                columns = {
                    "unique_id": uid,
                    "model": model,
                    "cutoff": grid.time(origin),
                    "ds": [grid.time(origin + test.gap + slot) for slot in range(test.horizon)],
                    "y": test.actual[row, place],
                    "mean": mean[row, place],
                    **{name: quantiles[row, place, :, at] for at, name in enumerate(NAMES)},
                    "scale": test.scale[row, place],
                }
                parts.append(pl.DataFrame(columns))
    return pl.concat(parts).sort("unique_id", "model", "cutoff", "ds")


def fold_scores(judged: Judged) -> pl.DataFrame:
    """Score of every candidate on the judged folds of every series.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, rule, cutoffs``; ``mase`` of the median and ``pinball`` (twice the mean loss over the
        seven quantiles), both in units of the seasonal naive error before each origin; ``coverage_90``;
        ``realised_cost`` (of planning at the quantile of the price, per unit needed; null without a price or
        need); ``cpu_s`` of one forecast; ``weight`` in the forecast of the future; ``chosen`` (whether it weighs most
        there). Model ``"chosen"`` is what was said at each origin.
    """
    test = judged.test
    part = slice(judged.first, None)
    rows = []
    for model, (mean, quantiles) in _with_chosen(judged).items():
        for row, uid in enumerate(test.grid.ids):
            seen = ~np.isnan(mean[row, part, 0])
            actual, levels = test.actual[row, part][seen], quantiles[row, part][seen]
            scale = test.scale[row, part][seen]
            needed = actual.sum()
            priced = judged.price is not None and needed > 0
            cost = realised(actual, levels, judged.price)
            used = sum(test.cpu_s.values()) if model == CHOSEN else test.cpu_s[model]
            rows.append(
                {
                    "unique_id": uid,
                    "model": model,
                    "rule": test.rules[row],
                    "cutoffs": int(seen.sum()),
                    "mase": _mean(np.abs(actual - levels[..., MIDDLE]).mean(axis=1) / scale),
                    "pinball": _mean(2 * realised(actual, levels, None).mean(axis=1) / scale),
                    "coverage_90": _mean((actual >= levels[..., 0]) & (actual <= levels[..., -1])),
                    "realised_cost": float(cost.sum() / needed) if priced else None,
                    "cpu_s": used / (len(test.grid.ids) * len(test.origins)),
                    "weight": None if model == CHOSEN else float(judged.weight_of(model)[row]),
                    "chosen": model == judged.chosen[row],
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def score(test: Backtest, *, judged: Judged | None = None) -> pl.DataFrame:
    """Score table of a backtest: every candidate of every series, the naive forecast always among them.

    Quantiles at an origin are calibrated by earlier origins alone.

    Parameters
    ----------
    test : Backtest
        From :func:`backtest`.
    judged : Judged, optional
        Of this backtest; made without a price if not given.

    Returns
    -------
    polars.DataFrame
        ``unique_id``, ``model``, ``rule``, ``windows`` (origins), ``mase`` (mean over the origins at which it is
        defined; null if at none), ``smape`` [0-2], ``mae`` [instances]; and over the origins behind the first,
        which nothing calibrates: ``pinball`` (mean over the quantiles, [instances]), ``coverage_50``,
        ``coverage_80``, ``coverage_90`` [0-1], ``realised_cost`` (with a price: what a slot cost); in the order
        of the series, and within them from simple to elaborate.
    """
    made = judged or judge(test)
    rows = [
        {"unique_id": uid, "model": model, "rule": test.rules[row]}
        | series_record(made, row, made.quantiles[model][row])
        for row, uid in enumerate(test.grid.ids)
        for model in CANDIDATES
        if model in made.quantiles and model in test.models[row]
    ]
    order = pl.col("model").cast(pl.Enum(CANDIDATES)).to_physical()
    return pl.DataFrame(rows, infer_schema_length=None).sort("unique_id", order)


def series_record(judged: Judged, row: int, levels: np.ndarray) -> dict[str, float | int | None]:
    """Origins and measures of quantiles that were said of a series, shape (n_origins, horizon, n_levels)."""
    test = judged.test
    seen = ~np.isnan(levels[:, 0, 0])
    late = seen & (np.cumsum(seen) > 1) if seen.sum() > 1 else seen
    actual, middle = test.actual[row, seen], levels[seen][..., MIDDLE]
    told, said = test.actual[row, late], levels[late]
    losses = [pinball(told, said[..., at], level) for at, level in enumerate(LEVELS) if len(told)]
    found: dict[str, float | int | None] = {
        "windows": int(seen.sum()),
        "mase": _mean(np.abs(actual - middle).mean(axis=1) / test.scale[row, seen]),
        "smape": smape(actual, middle) if len(actual) else None,
        "mae": mae(actual, middle) if len(actual) else None,
        "pinball": float(np.mean(losses)) if len(told) else None,
    }
    for percent, low, high in ((50, 0.25, 0.75), (80, 0.10, 0.90), (90, 0.05, 0.95)):
        inside = (told >= said[..., LEVELS.index(low)]) & (told <= said[..., LEVELS.index(high)])
        found[f"coverage_{percent}"] = _mean(inside)
    if judged.price is not None:
        found["realised_cost"] = _mean(realised(told, said, judged.price))
    return found


def mean_scores(scores: pl.DataFrame) -> pl.DataFrame:
    """The same by candidate, mean over the series that have it."""
    values = ("cutoffs", "mase", "pinball", "coverage_90", "realised_cost", "cpu_s", "weight", "chosen")
    means = pl.col(values).mean()
    return scores.group_by("model", maintain_order=True).agg(pl.len().alias("series"), means)


USES = {
    "mase": "point forecast",
    "pinball": "all quantiles",
    "realised_cost": "planning at the quantile of the price",
}


def best_fixed(mean: pl.DataFrame) -> pl.DataFrame:
    """What was chosen beside the candidate that would have been best for all series at every origin, by use.

    Which one that is, nobody knew before; below 1 a ratio says that choosing gained more than any of them.

    Parameters
    ----------
    mean : polars.DataFrame
        From :func:`mean_scores`.

    Returns
    -------
    polars.DataFrame
        ``use`` and ``measure``, ``best`` (the candidate) with its ``value``, ``chosen`` and ``ratio``; uses that
        nothing was measured for are left out.

    Examples
    --------
    >>> mean = pl.DataFrame({"model": ["Naive", "RunOff", "chosen"], "mase": [1.0, 0.8, 0.9], "pinball": [2.0, 1, 1],
    ...     "realised_cost": [None, None, None]})
    >>> best_fixed(mean).select("measure", "best", pl.col("ratio").round(3)).rows()
    [('mase', 'RunOff', 1.125), ('pinball', 'RunOff', 1.0)]
    """
    rows = []
    for measure, use in USES.items():
        told = dict(mean.select("model", measure).drop_nulls().iter_rows())
        mine = told.pop(CHOSEN, None)
        if mine is not None and told:
            best = min(told, key=told.__getitem__)
            ratio = mine / told[best] if told[best] > 0 else None
            rows.append((use, measure, best, told[best], mine, ratio))
    return pl.DataFrame(rows, schema=FIXED, orient="row")


def _with_chosen(judged: Judged) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and quantiles of every candidate, and of what was said with them."""
    found = {model: (judged.means[model], judged.quantiles[model]) for model in judged.quantiles}
    return found | {CHOSEN: (judged.said_mean, judged.said)}


def _mean(values: np.ndarray) -> float | None:
    flat = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(flat.mean()) if flat.size else None
