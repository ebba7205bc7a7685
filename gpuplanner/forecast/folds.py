"""Past forecasts as tables: every judged fold, and the score of every candidate that can be computed again from it."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.forecast.candidates import Known
from gpuplanner.forecast.intervals import LEVELS
from gpuplanner.forecast.judge import MIDDLE, Judged, ahead, realised
from gpuplanner.schemas import Forecast, check

CHOSEN = "chosen"
NAMES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)


def fold_table(judged: Judged) -> pl.DataFrame:
    """Every forecast of every judged fold, slot by slot, and what came.

    Returns
    -------
    polars.DataFrame
        ``unique_id, model, cutoff, ds, y, mean, q05 ... q95``, and ``scale``, the unit of MASE at that origin; the
        rows of model ``"chosen"`` repeat those of the candidate that was chosen then. Sorted by the first four.
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
        need); ``cpu_s`` of one forecast; ``chosen`` (whether it is the choice for the future). Model ``"chosen"``
        is what was chosen at each origin.
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
                    "chosen": model == judged.chosen[row, -1],
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def mean_scores(scores: pl.DataFrame) -> pl.DataFrame:
    """The same by candidate, mean over the series that have it."""
    values = ("folds", "mase", "pinball", "coverage_90", "realised_cost", "cpu_s", "chosen")
    return scores.group_by("model", maintain_order=True).agg(
        pl.len().alias("series"), *(pl.col(name).mean() for name in values)
    )


def ahead_table(judged: Judged, *, known: Known | None = None, seed: int = 1) -> pl.DataFrame:
    """Forecast what is still to come with the candidate chosen for each series.

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
                "model": judged.chosen[row, -1],
                "mean": mean[row],
                **{name: quantiles[row, :, at] for at, name in enumerate(NAMES)},
                "cutoff": grid.time(end),
            }
        )
        for row, uid in enumerate(grid.ids)
    ]
    return check(pl.concat(parts), Forecast, where="forecast")


def _with_chosen(judged: Judged) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and quantiles of every candidate, and of what was chosen."""
    test = judged.test
    found = {model: (test.predicted[model], judged.quantiles[model]) for model in judged.quantiles}
    return found | {CHOSEN: (judged.of_chosen(test.predicted), judged.of_chosen(judged.quantiles))}


def _mean(values: np.ndarray) -> float | None:
    flat = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(flat.mean()) if flat.size else None
