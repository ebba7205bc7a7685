"""Forecasts of what is wanted, from every origin in the past and of what is still to come."""

from __future__ import annotations

import polars as pl

from gpuplanner.demand import POOL
from gpuplanner.forecast import (
    CANDIDATES,
    CHOSEN,
    RULES,
    Judged,
    Progress,
    ahead_table,
    backtest,
    fold_scores,
    judge,
    reconcile_mint,
    reconcile_to_pool,
)
from gpuplanner.study.future.gpus_wanted import Wanted, wanted

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
    workers: int | str = 1,
    progress: Progress | None = None,
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
    sums: str | None = None,
    seed: int = 1,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forecast the future of a source: the choice for each series, and table ``schemas.Forecast``.

    `sums` makes forecasts add up that do not by themselves: ``"top"`` shares the pool's out
    (:func:`gpuplanner.forecast.reconcile_to_pool`), ``"mint"`` moves all by their past errors
    (:func:`gpuplanner.forecast.reconcile_mint`).
    """
    judged = rolling(
        source,
        horizon=horizon,
        gap=gap,
        folds=8,
        models=models,
        price=price,
        with_known=with_known,
        seed=seed,
    )
    scores = fold_scores(judged)
    table = ahead_table(judged, known=source.known if with_known else None, seed=seed)
    if sums is not None:
        table = _added_up(table, judged, source.whole, sums)
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    more = source.on_top(horizon, gap)[[source.ids.index(uid) for uid in ids]].ravel()
    values = ("mean", *(name for name in table.columns if name.startswith("q")))
    table = table.with_columns(pl.col(values) + pl.Series("more", more))
    record = scores.filter(pl.col("model") == CHOSEN).select("unique_id", "folds", "mase", "coverage_90")
    naive = scores.filter(pl.col("model") == "Naive").select("unique_id", naive_mase="mase")
    choice = (
        scores.filter("chosen")
        .select("unique_id", "model", "rule", reason=pl.col("rule").replace_strict(RULES))
        .join(record, on="unique_id", maintain_order="left")
        .join(naive, on="unique_id", maintain_order="left")
    )
    return choice, table


def _added_up(table: pl.DataFrame, judged: Judged, whole: str, sums: str) -> pl.DataFrame:
    of_whole = pl.col("unique_id") == whole
    if not whole.startswith(f"{POOL}/"):
        return table  # nothing is the sum of anything
    if sums == "top":
        pool = table.filter(of_whole)
        return pl.concat([pool, reconcile_to_pool(table.filter(~of_whole), pool)]).sort("unique_id", "ds")
    test = judged.test
    errors = (test.actual - judged.of_chosen(judged.means)).reshape(len(test.grid.ids), -1)
    return reconcile_mint(table, whole, dict(zip(test.grid.ids, errors, strict=True)))
