"""Readings of single metrics to one row per device and time, and of each device and time only one."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.core.times import seconds
from gpuplanner.inbox.telemetry.metrics import QUANTITIES

DEVICE_KEY = ("node", "gpu", "instance")
FACTS = ("profile", "board", "job_id")
PLACE = ("file", "line", "raw")

AGAIN = "the same reading again"
CONTRADICTION = "another value for the same device and time as an earlier row"


def without_repeats(rows: Rows, key: tuple[str, ...], values: tuple[str, ...]) -> Rows:
    """Keep the first row of each key.

    Parameters
    ----------
    rows : Rows
        Rows in the order of their files.
    key : tuple of str
        Columns that name a reading: device, time and, in the long form, metric.
    values : tuple of str
        Columns that tell a repetition, which is harmless, from a contradiction.
    """
    good = rows.good
    later = ~pl.struct(key).is_first_distinct()
    if good.select(later.any()).item() is not True:
        return rows
    same = pl.struct(values) == pl.struct(values).first().over(key)
    return rows.reject({AGAIN: later & same, CONTRADICTION: later & ~same})


def join_readings(rows: Rows, *, within_s: float = 0.0) -> tuple[Rows, pl.DataFrame]:
    """Bring the readings of different metrics of a device together.

    Parameters
    ----------
    rows : Rows
        With ``time``, device, ``metric``, ``quantity`` and ``value``.
    within_s : float
        A collector may read the metrics of one round one after the other. Readings of a device follow each
        other into one row while they are not further apart than this and no metric comes twice; where one
        does, the source samples faster than that, and only readings of one instant belong together.

    Returns
    -------
    rows : Rows
        Without repeats.
    wide : polars.DataFrame
        One row per device and time (the first of its readings): device, place of the first reading, facts, all
        quantities.
    """
    rows = without_repeats(rows, ("time", *DEVICE_KEY, "metric"), ("value",))
    good = rows.good.with_columns(sample_time=pl.col("time"))
    if within_s:
        apart = pl.col("time").diff().over(DEVICE_KEY) > seconds(pl.lit(within_s))
        good = good.sort("time", maintain_order=True).with_columns(
            run=apart.fill_null(False).cum_sum().over(DEVICE_KEY)
        )
        run = (*DEVICE_KEY, "run")
        once = pl.col("metric").n_unique().over(run) == pl.len().over(run)
        good = good.with_columns(
            sample_time=pl.when(once).then(pl.col("time").min().over(run)).otherwise("time")
        )
    of_quantity = {
        quantity: pl.col("value").filter(pl.col("quantity") == quantity).drop_nulls().first()
        for quantity in QUANTITIES
    }
    wide = (
        good.group_by("sample_time", *DEVICE_KEY, maintain_order=True)
        .agg(pl.col(PLACE).first(), *(pl.col(name).drop_nulls().first() for name in FACTS), **of_quantity)
        .rename({"sample_time": "time"})
    )
    return rows, wide
