"""Forecasts of what is wanted, from every origin in the past and of what is still to come."""

from __future__ import annotations

import polars as pl

from gpuplanner.forecast.candidates import CANDIDATES, weighed
from gpuplanner.forecast.record import CHOSEN, fold_scores
from gpuplanner.forecast.models import RULES
from gpuplanner.forecast.judge import Judged, judge
from gpuplanner.forecast.reconcile import add_up, reconcile_mint, reconcile_to_pool
from gpuplanner.forecast.result import ahead_table, weights_in_words
from gpuplanner.forecast.backtest import backtest
from gpuplanner.study.future.demand_at_hand import wanted
from gpuplanner.study.future.gpus_wanted import Wanted
from gpuplanner.workers import TasksDone, Workers

__all__ = ["Wanted", "ahead_of", "rolling", "wanted"]

MOSTLY = 0.4
"""Share of the folds that only calibrate: 8 of 20."""


def rolling(
    source: Wanted,
    *,
    horizon: int,
    gap: int,
    folds: int,
    models: tuple[str, ...],
    price: float | None,
    with_known: bool = True,
    seed: int = 1,
    workers: Workers = 1,
    progress: TasksDone | None = None,
) -> Judged:
    """Forecast from origins in the last half of the data; the first two fifths of them only calibrate."""
    test = backtest(
        source.demand,
        horizon=horizon,
        gap=gap,
        windows=folds,
        known=source.known if with_known else None,
        models=models,
        caps=source.caps,
        walk=True,
        seed=seed,
        workers=workers,
        progress=progress,
    )
    return judge(test, price=price, first=int(MOSTLY * len(test.origins)))


def ahead_of(
    source: Wanted,
    *,
    horizon: int,
    gap: int,
    price: float | None,
    models: tuple[str, ...] = CANDIDATES,
    with_known: bool = True,
    sums: str = "mint",
    seed: int = 1,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forecast the future of a source: the choice for each series, and table ``schemas.Forecast``.

    Series that are sums of others are their sums: `sums` ``"mint"`` moves all by their past errors
    (:func:`gpuplanner.forecast.reconcile_mint`), ``"top"`` shares the forecast of the whole out
    (:func:`gpuplanner.forecast.reconcile_to_pool`), ``"none"`` leaves every series as it was forecast by itself.
    """
    judged = rolling(
        source,
        horizon=horizon,
        gap=gap,
        folds=8,
        models=weighed(models, with_jobs=with_known and source.known is not None),
        price=price,
        with_known=with_known,
        seed=seed,
    )
    scores = fold_scores(judged)
    table = ahead_table(judged, known=source.known if with_known else None, seed=seed)
    if sums != "none" and source.sums:
        table = _added_up(table, judged, source, sums)
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    more = source.on_top(horizon, gap)[[source.ids.index(uid) for uid in ids]].ravel()
    values = ("mean", *(name for name in table.columns if name.startswith("q")))
    table = table.with_columns(pl.col(values) + pl.Series("more", more))
    record = scores.filter(pl.col("model") == CHOSEN).select("unique_id", "folds", "mase", "coverage_90")
    naive = scores.filter(pl.col("model") == "Naive").select("unique_id", naive_mase="mase")
    words = pl.DataFrame({"unique_id": judged.test.grid.ids, "weights": weights_in_words(judged)})
    choice = (
        scores.filter("chosen")
        .join(words, on="unique_id", maintain_order="left")
        .select("unique_id", "model", "weights", "rule", reason=pl.col("rule").replace_strict(RULES))
        .join(record, on="unique_id", maintain_order="left")
        .join(naive, on="unique_id", maintain_order="left")
    )
    return choice, table


def _added_up(table: pl.DataFrame, judged: Judged, source: Wanted, sums: str) -> pl.DataFrame:
    if sums == "mint":
        test = judged.test
        errors = (test.actual - judged.said_mean).reshape(len(test.grid.ids), -1)
        return reconcile_mint(table, source.sums, dict(zip(test.grid.ids, errors, strict=True)))
    pool = table.filter(unique_id=source.whole)
    leaves = table.filter(pl.col("unique_id").is_in(source.sums[source.whole]))
    shared = reconcile_to_pool(leaves, pool)
    return pl.concat([shared, add_up(shared, table, source.sums)]).sort("unique_id", "ds")
