"""Make the forecasts of tenants add up to the forecast of their pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.forecast.models import LEVELS
from gpuplanner.schemas.domain import Forecast
from gpuplanner.schemas.check import check

FEWEST = 3
"""Errors of a series, or at the same slots, below which their covariance is not measured."""
VALUES = ("mean", *(f"q{round(100 * level):02d}" for level in LEVELS))


def reconcile_to_pool(
    tenants: pl.DataFrame, pool: pl.DataFrame, *, own_quantiles: bool = False
) -> pl.DataFrame:
    """Share the pool's forecast out to its tenants, top down.

    The quantiles of tenants do not add up: their peaks do not meet, so the 95 % quantile of the pool lies
    below the sum of theirs. Each tenant gets, of every quantile of the pool, the share that its mean has in
    the sum of all means in that slot; so the sums are the pool's, and the quantiles stay in order.

    Parameters
    ----------
    tenants, pool : polars.DataFrame
        Tables ``schemas.Forecast``; ``unique_id`` is ``tenant/profile`` and ``all/profile``.
    own_quantiles : bool
        Share out the mean alone: the quantiles of a tenant grow or shrink as its mean does, and hold what they say of
        it; they do not add up.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the tenants, sorted by ``unique_id`` and ``ds``. Where every mean is
        zero, the tenants get equal shares.

    Raises
    ------
    SchemaError
        If a profile and slot of the tenants is missing in the pool, or the other way round.

    References
    ----------
    Hyndman, Athanasopoulos, "Forecasting: Principles and Practice", 3rd edition, section 11.2 (top-down
    approaches, forecast proportions), https://otexts.com/fpp3.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean, high):
    ...     low = dict.fromkeys(VALUES[:-1], mean)
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **low, "q95": high, "cutoff": now}
    >>> tenants = pl.DataFrame([made("a/gpu", 1.0, 4.0), made("b/gpu", 3.0, 6.0)])
    >>> pool = pl.DataFrame([made("all/gpu", 4.0, 8.0)])
    >>> reconcile_to_pool(tenants, pool)["q95"].to_list()
    [2.0, 6.0]
    """
    profile = pl.col("unique_id").str.split("/").list.last()
    below = check(tenants, Forecast, where="forecast of tenants").with_columns(profile=profile)
    above = check(pool, Forecast, where="forecast of the pool").select("ds", *VALUES, profile=profile)
    keys = ["profile", "ds"]
    alone = pl.concat(
        [
            below.join(above, on=keys, how="anti").select("unique_id", "ds"),
            above.join(below, on=keys, how="anti").select(unique_id=pl.format("all/{}", "profile"), ds="ds"),
        ]
    )
    if alone.height:
        series = alone["unique_id"].unique().sort().to_list()
        expected = "tenants and pool with the same profiles and slots"
        got = f"{alone.height} rows of one side only, in {examples(series)}"
        todo = "Forecast both from the same demand with the same horizon."
        raise SchemaError(message("reconcile_to_pool", expected, got, todo))
    total, members = pl.col("mean").sum().over(keys), pl.len().over(keys)
    share = pl.when(total > 0).then(pl.col("mean") / total).otherwise(1 / members)
    shared = (
        below.sort("unique_id", "ds")
        .with_columns(share=share)
        .join(above, on=keys, how="left", suffix="_pool", maintain_order="left")
        .with_columns(old="mean")
        .with_columns(
            (pl.col("share") * pl.col(f"{name}_pool")).alias(name)
            for name in VALUES
            if not own_quantiles or name == "mean"
        )
    )
    if own_quantiles:
        grown = pl.when(pl.col("old") > 0).then(pl.col("mean") / pl.col("old"))
        shared = shared.with_columns(
            pl.coalesce(grown * pl.col(name), pl.col(name) + pl.col("mean")).alias(name)
            for name in VALUES[1:]
        )
    return check(shared, Forecast, where="reconciled forecast")


def reconcile_mint(
    forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]], errors: Mapping[str, np.ndarray]
) -> pl.DataFrame:
    """Make forecasts of sums and their parts add up with the least trace of the error covariance (MinT).

    The means move to the nearest ones that add up, nearest in units of the errors made so far: a series that was
    often wrong moves most, and none below zero. Quantiles above the mean of a series move as far as it does, those
    below it in proportion: what may be nothing at all may be so still.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``.
    sums : mapping of str to sequence of str
        Series that are sums, with the series that each is the sum of; none of these is a sum itself.
    errors : mapping of str to numpy.ndarray, each of shape (n,)
        Past errors of each series' mean, at the same slots; NaN where one was not forecast.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` with the same rows; the mean of every sum is the sum of the means of its parts.

    Raises
    ------
    SchemaError
        If a sum or a part of one is missing, or a series has no errors.

    References
    ----------
    Wickramasuriya, Athanasopoulos, Hyndman, "Optimal forecast reconciliation for hierarchical and grouped time
    series through trace minimization", Journal of the American Statistical Association 114(526), 2019, equation
    (11) with the shrinkage of section 2.4, doi 10.1080/01621459.2018.1448825.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean):
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **dict.fromkeys(VALUES, mean), "cutoff": now}
    >>> table = pl.DataFrame([made("a/gpu", 1.0), made("all/gpu", 7.0), made("b/gpu", 3.0)])
    >>> alike = np.hstack([np.eye(3), -np.eye(3)])  # wrong as often, and each for itself
    >>> errors = dict(zip(["a/gpu", "all/gpu", "b/gpu"], alike, strict=True))
    >>> reconcile_mint(table, {"all/gpu": ["a/gpu", "b/gpu"]}, errors)["mean"].round(1).to_list()
    [2.0, 6.0, 4.0]
    """
    table = check(forecast, Forecast, where="forecast").sort("unique_id", "ds")
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    needed = {*sums, *(part for parts in sums.values() for part in parts)}
    if not all(sums.values()) or not sums or needed - set(ids) or set(ids) - set(errors):
        expected = f"{examples(sorted(needed))}, each sum with its parts, and past errors of every series"
        got = f"series {examples(ids)}, errors of {len(errors)}"
        todo = "Forecast all of them from the same demand."
        raise SchemaError(message("reconcile_mint", expected, got, todo))
    leaves = [uid for uid in ids if uid not in sums]
    summing = np.array(
        [[uid == leaf or leaf in sums.get(uid, ()) for uid in ids] for leaf in leaves], dtype=float
    )
    base = table["mean"].to_numpy().reshape(len(ids), -1)
    weight = np.linalg.inv(_shrunk_covariance(np.array([errors[uid] for uid in ids]), base.mean(axis=1)))
    found = np.linalg.solve(summing @ weight @ summing.T, summing @ weight @ base)
    at = [ids.index(leaf) for leaf in leaves]
    step = np.zeros(base.shape)
    step[at] = np.maximum(found, 0.0) - base[at]
    moved = table.with_columns(_moved(pl.Series("step", step.ravel()))).filter(
        pl.col("unique_id").is_in(leaves)
    )
    return pl.concat([moved, add_up(moved, table, sums)]).sort("unique_id", "ds")


def add_up(parts: pl.DataFrame, forecast: pl.DataFrame, sums: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Rows of series that are sums, their means the sums of those of their parts.

    Quantiles do not add up: peaks do not meet. Those above the mean keep their distance to it, those below their share
    of it.

    Parameters
    ----------
    parts, forecast : polars.DataFrame
        Tables ``schemas.Forecast``: the parts as they are now, and the sums as they were forecast.
    sums : mapping of str to sequence of str
        Series that are sums, with their parts.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` of the sums alone, sorted by ``unique_id`` and ``ds``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> now = datetime(2026, 2, 2, tzinfo=UTC)
    >>> def made(uid, mean):
    ...     return {"unique_id": uid, "ds": now, "model": "Naive", **dict.fromkeys(VALUES, mean), "cutoff": now}
    >>> parts = pl.DataFrame([made("a/gpu", 1.0), made("b/gpu", 3.0)])
    >>> add_up(parts, pl.DataFrame([made("all/gpu", 7.0)]), {"all/gpu": ["a/gpu", "b/gpu"]})["mean"].to_list()
    [4.0]
    """
    added = pl.concat(
        parts.filter(pl.col("unique_id").is_in(list(members)))
        .group_by("ds", maintain_order=True)
        .agg(total=pl.col("mean").sum())
        .with_columns(unique_id=pl.lit(whole))
        for whole, members in sums.items()
    )
    rows = forecast.filter(pl.col("unique_id").is_in(list(sums))).join(
        added, on=["unique_id", "ds"], how="left", maintain_order="left"
    )
    moved = rows.with_columns(_moved(pl.col("total") - pl.col("mean"))).with_columns(mean="total")
    return check(moved.sort("unique_id", "ds"), Forecast, where="reconciled forecast")


def _moved(step: pl.Series | pl.Expr) -> list[pl.Expr]:
    shares = {name: (pl.col(name) / pl.col("mean")).fill_nan(1.0).clip(upper_bound=1.0) for name in VALUES}
    return [pl.max_horizontal(pl.col(name) + share * step, 0.0).alias(name) for name, share in shares.items()]


def _shrunk_covariance(errors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Covariance of errors, shape (n_series, n_series), its correlations drawn towards none.

    By how much: the variance of the correlations over the sum of their squares (Schaefer, Strimmer, 2005). A series
    with few errors, as one that has just begun, is taken to vary as counts of its mean do.
    """
    known = ~np.isnan(errors)
    few = known.sum(axis=1) < FEWEST
    size = np.sqrt(np.nansum(errors**2, axis=1) / np.maximum(known.sum(axis=1), 1))
    scale = np.where(few, np.sqrt(np.maximum(mean, 0.0)), size)
    scale = np.maximum(scale, 1e-6 * max(float(scale.max()), 1.0))
    seen = errors[:, known[~few].all(axis=0)][~few]
    mixed = np.eye(len(errors))
    if seen.shape[1] >= FEWEST and len(seen) > 1:
        unit = (seen - seen.mean(axis=1, keepdims=True)) / np.maximum(seen.std(axis=1, keepdims=True), 1e-12)
        correlation = unit @ unit.T / seen.shape[1]
        spread = ((unit**2) @ (unit**2).T / seen.shape[1] - correlation**2) / seen.shape[1]
        apart = ~np.eye(len(seen), dtype=bool)
        share = min(spread[apart].sum() / max((correlation[apart] ** 2).sum(), 1e-12), 1.0)
        mixed[np.ix_(~few, ~few)] = np.where(apart, (1 - share) * correlation, 1.0)
    return np.asarray(scale[:, None] * mixed * scale)
