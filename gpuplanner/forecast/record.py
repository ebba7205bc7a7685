"""What every candidate and the choice reached: tables of folds and of scores."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest
from gpuplanner.forecast.calibrate import MIDDLE
from gpuplanner.forecast.candidates import CANDIDATES
from gpuplanner.forecast.judge import Judged, judge, realised
from gpuplanner.forecast.models import LEVELS
from gpuplanner.forecast.scores import mae, pinball, smape

CHOSEN = "chosen"
FIXED = dict.fromkeys(("use", "measure", "best"), pl.String) | dict.fromkeys(
    ("value", "chosen", "ratio"), pl.Float64
)
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
                columns = {name: quantiles[row, place, :, at] for at, name in enumerate(NAMES)}
                parts.append(
                    pl.DataFrame(
                        {
                            "unique_id": uid,
                            "model": model,
                            "cutoff": grid.time(origin),
                            "ds": [grid.time(origin + test.gap + slot) for slot in range(test.horizon)],
                            "y": test.actual[row, place],
                            "mean": mean[row, place],
                            **columns,
                            "scale": test.scale[row, place],
                        }
                    )
                )
    return pl.concat(parts).sort("unique_id", "model", "cutoff", "ds")


def fold_scores(judged: Judged) -> pl.DataFrame:
    """Score of every candidate on the judged folds of every series.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, rule, folds``; ``mase`` of the median and ``pinball`` (twice the mean loss over the
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
            used = sum(test.cpu_s.values()) if model == CHOSEN else test.cpu_s[model]
            rows.append(
                {
                    "unique_id": uid,
                    "model": model,
                    "rule": test.rules[row],
                    "folds": int(seen.sum()),
                    "mase": _mean(np.abs(actual - levels[..., MIDDLE]).mean(axis=1) / scale),
                    "pinball": _mean(2 * realised(actual, levels, None).mean(axis=1) / scale),
                    "coverage_90": _mean((actual >= levels[..., 0]) & (actual <= levels[..., -1])),
                    "realised_cost": float(realised(actual, levels, judged.price).sum() / needed)
                    if priced
                    else None,
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
    found: dict[str, float | int | None] = {
        "windows": int(seen.sum()),
        "mase": _mean(np.abs(actual - middle).mean(axis=1) / test.scale[row, seen]),
        "smape": smape(actual, middle) if len(actual) else None,
        "mae": mae(actual, middle) if len(actual) else None,
        "pinball": float(np.mean([pinball(told, said[..., at], level) for at, level in enumerate(LEVELS)]))
        if len(told)
        else None,
    }
    for percent, low, high in ((50, 0.25, 0.75), (80, 0.10, 0.90), (90, 0.05, 0.95)):
        inside = (told >= said[..., LEVELS.index(low)]) & (told <= said[..., LEVELS.index(high)])
        found[f"coverage_{percent}"] = _mean(inside)
    if judged.price is not None:
        found["realised_cost"] = _mean(realised(told, said, judged.price))
    return found


def mean_scores(scores: pl.DataFrame) -> pl.DataFrame:
    """The same by candidate, mean over the series that have it."""
    values = ("folds", "mase", "pinball", "coverage_90", "realised_cost", "cpu_s", "weight", "chosen")
    return scores.group_by("model", maintain_order=True).agg(
        pl.len().alias("series"), *(pl.col(name).mean() for name in values)
    )


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
