"""Demand series added up over tenants and summed up by week."""

from __future__ import annotations

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.schemas import Demand, conform

POOL = "all"
"""Name of the tenant that stands for all of them."""


def pool(demand: pl.DataFrame) -> pl.DataFrame:
    """Add up the tenants: one series per profile, of tenant ``"all"``.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Demand``, sorted by ``unique_id`` (``all/profile``) and ``ds``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> ds = datetime(2026, 2, 2, tzinfo=UTC)
    >>> tenants = pl.DataFrame({"unique_id": ["a/gpu", "b/gpu"], "tenant": ["a", "b"]})
    >>> demand = tenants.with_columns(ds=pl.lit(ds), y=pl.lit(1.5), profile=pl.lit("gpu"))
    >>> pool(demand).select("unique_id", "y").rows()
    [('all/gpu', 3.0)]
    """
    total = (
        conform(demand, Demand, where="demand")
        .sort("profile", "ds", "unique_id")  # the order in which floats are added is part of the result
        .group_by("profile", "ds", maintain_order=True)
        .agg(pl.col("y").sum())
        .with_columns(unique_id=pl.format(POOL + "/{}", "profile"), tenant=pl.lit(POOL))
    )
    return conform(total.sort("unique_id", "ds"), Demand, where="demand")


def weekly(demand: pl.DataFrame, *, quantile: float = 0.95) -> pl.DataFrame:
    """Mean, peak and quantile of the slots of each week, for each profile over all tenants.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.
    quantile : float
        Share of the slots of a week that lie at or below the column ``quantile``, between 0 and 1.

    Returns
    -------
    polars.DataFrame, shape (n_weeks * n_profiles, 6)
        ``week`` (Monday 00:00 UTC), ``profile``, ``slots`` (number of slots seen: fewer in a week that the
        grid cuts), ``mean``, ``peak``, ``quantile`` [instances]; sorted by week and profile.

    Raises
    ------
    SchemaError
        If `quantile` is not between 0 and 1.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> monday = datetime(2026, 2, 2, tzinfo=UTC)
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "y": [1.0, 3.0]})
    >>> weekly(demand.with_columns(ds=pl.Series([monday, monday.replace(hour=1)])))["mean"].to_list()
    [2.0]
    """
    if not 0 <= quantile <= 1:
        text = message("weekly: quantile", "a number from 0 to 1", repr(quantile), "Use for example 0.95.")
        raise SchemaError(text)
    y = pl.col("y")
    return (
        pool(demand)
        .group_by(pl.col("ds").dt.truncate("1w").alias("week"), "profile", maintain_order=True)
        .agg(
            slots=pl.len(),
            mean=y.mean(),
            peak=y.max(),
            quantile=y.quantile(quantile, interpolation="equiprobable"),
        )
        .sort("week", "profile")
    )
