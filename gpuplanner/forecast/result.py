"""A forecast with its record: every judged fold, the score of every candidate, and the choice for each series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.forecast.backtest import Backtest, backtest
from gpuplanner.forecast.calibrate import MIDDLE
from gpuplanner.forecast.candidates import CANDIDATES, Known
from gpuplanner.forecast.judge import Judged, ahead, judge, realised
from gpuplanner.forecast.models import LEVELS, NAIVE, RULES
from gpuplanner.forecast.scores import mae, pinball, smape
from gpuplanner.schemas import Forecast, check

INTERVALS = ((50, 0.25, 0.75), (80, 0.10, 0.90), (90, 0.05, 0.95))
CHOSEN = "chosen"
FIXED = dict.fromkeys(("use", "measure", "best"), pl.String) | dict.fromkeys(
    ("value", "chosen", "ratio"), pl.Float64
)
NAMES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)


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
    test = backtest(
        demand, horizon=horizon, windows=windows, step=step, known=known, models=CANDIDATES, seed=seed
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
    rows = [_record(judged, row, judged.said[row]) for row in range(len(test.grid.ids))]
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
        One for each series, in their order: ``RunOff 70 %, Median 30 %``.

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
        | _record(made, row, made.quantiles[model][row])
        for row, uid in enumerate(test.grid.ids)
        for model in CANDIDATES
        if model in made.quantiles and model in test.models[row]
    ]
    order = pl.col("model").cast(pl.Enum(CANDIDATES)).to_physical()
    return pl.DataFrame(rows, infer_schema_length=None).sort("unique_id", order)


def _record(judged: Judged, row: int, levels: np.ndarray) -> dict[str, float | int | None]:
    """Origins and measures of quantiles that were said of a series, shape (n_origins, horizon, n_levels)."""
    test = judged.test
    seen = ~np.isnan(levels[:, 0, 0])
    late = seen & (np.cumsum(seen) > 1) if seen.sum() > 1 else seen
    measures = _measures(
        test.actual[row, seen], levels[seen], test.scale[row, seen], late[seen], judged.price
    )
    return {"windows": int(seen.sum())} | measures


def _measures(
    actual: np.ndarray, levels: np.ndarray, scale: np.ndarray, late: np.ndarray, price: float | None
) -> dict[str, float | None]:
    """Measures over origins of one series; `late` are those that others calibrate."""
    middle, told, said = levels[..., MIDDLE], actual[late], levels[late]
    found = {
        "mase": _mean(np.abs(actual - middle).mean(axis=1) / scale),
        "smape": smape(actual, middle) if len(actual) else None,
        "mae": mae(actual, middle) if len(actual) else None,
        "pinball": float(np.mean([pinball(told, said[..., at], level) for at, level in enumerate(LEVELS)]))
        if len(told)
        else None,
    }
    for percent, low, high in INTERVALS:
        inside = (told >= said[..., LEVELS.index(low)]) & (told <= said[..., LEVELS.index(high)])
        found[f"coverage_{percent}"] = _mean(inside)
    return found | ({} if price is None else {"realised_cost": _mean(realised(told, said, price))})


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
            rows.append(
                {
                    "use": use,
                    "measure": measure,
                    "best": best,
                    "value": told[best],
                    "chosen": mine,
                    "ratio": ratio,
                }
            )
    return pl.DataFrame(rows, schema=FIXED)


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


def _with_chosen(judged: Judged) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and quantiles of every candidate, and of what was said with them."""
    found = {model: (judged.means[model], judged.quantiles[model]) for model in judged.quantiles}
    return found | {CHOSEN: (judged.said_mean, judged.said)}


def _mean(values: np.ndarray) -> float | None:
    flat = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(flat.mean()) if flat.size else None
