"""Make the forecasts of tenants add up to the forecast of their pool."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.forecast.intervals import LEVELS
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
