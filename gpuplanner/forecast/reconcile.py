"""Make the forecasts of tenants add up to the forecast of their pool."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.forecast.models import LEVELS
from gpuplanner.schemas import Forecast, check

VALUES = ("mean", *(f"q{round(100 * level):02d}" for level in LEVELS))


def reconcile_to_pool(tenants: pl.DataFrame, pool: pl.DataFrame) -> pl.DataFrame:
    """Share the pool's forecast out to its tenants, top down.

    The quantiles of tenants do not add up: their peaks do not meet, so the 95 % quantile of the pool lies
    below the sum of theirs. Each tenant gets, of every quantile of the pool, the share that its mean has in
    the sum of all means in that slot; so the sums are the pool's, and the quantiles stay in order.

    Parameters
    ----------
    tenants, pool : polars.DataFrame
        Tables ``schemas.Forecast``; ``unique_id`` is ``tenant/profile`` and ``all/profile``.

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
        text = message(
            "reconcile_to_pool",
            "tenants and pool with the same profiles and slots",
            f"{alone.height} rows of one side only, in {examples(series)}",
            "Forecast both from the same demand with the same horizon.",
        )
        raise SchemaError(text)
    total, members = pl.col("mean").sum().over(keys), pl.len().over(keys)
    share = pl.when(total > 0).then(pl.col("mean") / total).otherwise(1 / members)
    shared = (
        below.sort("unique_id", "ds")
        .with_columns(share=share)
        .join(above, on=keys, how="left", suffix="_pool", maintain_order="left")
        .with_columns((pl.col("share") * pl.col(f"{name}_pool")).alias(name) for name in VALUES)
    )
    return check(shared, Forecast, where="reconciled forecast")


def reconcile_mint(forecast: pl.DataFrame, whole: str, errors: dict[str, np.ndarray]) -> pl.DataFrame:
    """Make forecasts of a pool and its members add up with the least trace of the error covariance (MinT).

    The means move to the nearest ones that add up, nearest in units of the errors made so far: a series that was
    often wrong moves most. Every quantile of a series moves as its mean does, and none below zero.

    Parameters
    ----------
    forecast : polars.DataFrame
        Table ``schemas.Forecast``.
    whole : str
        Series that is the sum of all others.
    errors : dict of str to numpy.ndarray, each of shape (n,)
        Past errors of each series' mean, at the same slots; NaN where one was not forecast.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Forecast`` with the same rows. The means add up but where one would have fallen below zero.

    Raises
    ------
    SchemaError
        If the pool is missing or has no members, or a series has no errors.

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
    >>> reconcile_mint(table, "all/gpu", errors)["mean"].round(1).to_list()
    [2.0, 6.0, 4.0]
    """
    table = check(forecast, Forecast, where="forecast").sort("unique_id", "ds")
    ids = table["unique_id"].unique(maintain_order=True).to_list()
    members = [uid for uid in ids if uid != whole]
    if whole not in ids or not members or set(ids) - set(errors):
        text = message(
            "reconcile_mint",
            f"{whole!r}, its members, and past errors of each",
            f"series {examples(ids)}, errors of {len(errors)}",
            "Forecast all of them from the same demand.",
        )
        raise SchemaError(text)
    summing = np.array([[uid in (whole, one) for one in members] for uid in ids], dtype=np.float64).T
    weight = np.linalg.inv(_shrunk_covariance(np.array([errors[uid] for uid in ids])))
    base = table["mean"].to_numpy().reshape(len(ids), -1)
    inner = summing @ weight @ summing.T
    moved = summing.T @ np.linalg.solve(inner, summing @ weight @ base) - base
    step = pl.Series("step", moved.ravel())
    return check(
        table.with_columns(pl.max_horizontal(pl.col(name) + step, 0.0).alias(name) for name in VALUES),
        Forecast,
        where="reconciled forecast",
    )


def _shrunk_covariance(errors: np.ndarray) -> np.ndarray:
    """Covariance of errors, shape (n_series, n_series), its correlations drawn towards none.

    By how much: the variance of the correlations over the sum of their squares (Schaefer, Strimmer, 2005).
    """
    seen = errors[:, ~np.isnan(errors).any(axis=0)]
    series, count = seen.shape
    if count < 3:
        return np.eye(series)
    scale = np.maximum(seen.std(axis=1), 1e-6 * max(float(np.abs(seen).max()), 1.0))
    unit = (seen - seen.mean(axis=1, keepdims=True)) / scale[:, None]
    correlation = unit @ unit.T / count
    spread = ((unit**2) @ (unit**2).T / count - correlation**2) / count
    apart = ~np.eye(series, dtype=bool)
    share = min(spread[apart].sum() / max((correlation[apart] ** 2).sum(), 1e-12), 1.0)
    mixed = np.where(apart, (1 - share) * correlation, 1.0)
    return np.asarray(scale[:, None] * mixed * scale)
