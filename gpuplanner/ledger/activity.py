"""Held GPU-time by tenant: used, held idle, or not observed."""

from __future__ import annotations

import numpy as np
import polars as pl

from gpuplanner.ledger.pools import Window
from gpuplanner.schemas import Samples, conform, empty

USED_FROM = 0.05
"""SM activity from which a GPU counts as used; below it, as held idle."""
BUCKETS_HELD = ("used", "held_idle", "unobserved")


def held_hours(jobs: pl.DataFrame, samples: pl.DataFrame | None, window: Window) -> pl.DataFrame:
    """Part the GPU-time that jobs held by what was seen of it.

    A minute of a job with samples is used or held idle as its devices were; the part of its GPUs without a
    sample in that minute, and every minute without any, is as the mean activity of the job's record says; if
    there is none, the time is unobserved.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs`` with ``board``; jobs that started.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``, at least one a minute where anything is to be seen.
    window : Window
        Time of the ledger.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``board``, ``hour`` (number), ``bucket``, ``gpu_hours``.
    """
    record = (
        pl.when(pl.col("sm_activity").is_null())
        .then(pl.lit("unobserved"))
        .when(pl.col("sm_activity") >= USED_FROM)
        .then(pl.lit("used"))
        .otherwise(pl.lit("held_idle"))
    )
    keys = ["tenant", "board"]
    owners = jobs.select(keys).unique().sort(keys).with_row_index("owner")
    held = (
        jobs.with_row_index("row")
        .select(
            "row",
            "job_id",
            "gpus",
            *keys,
            begin="start_time",
            until=pl.col("end_time").fill_null(window.end),
            record=record,
        )
        .join(owners, on=keys, nulls_equal=True, maintain_order="left")
    )
    seen = _seen_minutes(held, samples)
    hours = {
        bucket: _sums(held.filter(record=bucket), "gpus", owners.height, window)
        - _sums(seen.filter(record=bucket), "gpus_seen", owners.height, window)
        for bucket in BUCKETS_HELD
    }
    hours["used"] += _sums(seen, "gpus_used", owners.height, window)
    hours["held_idle"] += _sums(seen, "gpus_idle", owners.height, window)
    return pl.concat(_rows(owners.select(keys), bucket, gpu_hours) for bucket, gpu_hours in hours.items())


def _rows(owners: pl.DataFrame, bucket: str, gpu_hours: np.ndarray) -> pl.DataFrame:
    """One row for each owner and hour with time in the bucket."""
    owner, hour = np.nonzero(gpu_hours > 0)
    return owners[owner].with_columns(
        hour=pl.Series(hour), bucket=pl.lit(bucket), gpu_hours=pl.Series(gpu_hours[owner, hour])
    )


def _seen_minutes(held: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Minutes of jobs with samples: how many of the job's GPUs were seen, and seen working."""
    table = conform(samples, Samples, where="samples") if samples is not None else empty(Samples)
    devices = (
        table.filter(pl.col("sm_activity").is_not_null())
        .group_by("job_id", pl.col("time").dt.truncate("1m").alias("minute"), "node", "gpu", "instance")
        .agg(busy=pl.col("sm_activity").mean() >= USED_FROM)
        .group_by("job_id", "minute")
        .agg(devices=pl.len(), busy=pl.col("busy").sum())
    )
    share_busy = pl.col("busy") / pl.col("devices")
    return (
        held.join(devices, on="job_id")
        .with_columns(
            begin=pl.max_horizontal("begin", "minute"),
            until=pl.min_horizontal("until", pl.col("minute") + pl.duration(minutes=1)),
            gpus_seen=pl.min_horizontal("gpus", "devices"),
        )
        .filter(pl.col("begin") < pl.col("until"))
        .with_columns(
            gpus_used=pl.col("gpus_seen") * share_busy, gpus_idle=pl.col("gpus_seen") * (1 - share_busy)
        )
        .sort("row", "minute")  # floats are added in a fixed order
    )


def _sums(table: pl.DataFrame, weight: str, owners: int, window: Window) -> np.ndarray:
    """GPU-hours by owner and hour."""
    return window.spans(table, "begin", "until", weight).by_hour(
        window.hours, group=table["owner"].to_numpy(), groups=owners
    )
