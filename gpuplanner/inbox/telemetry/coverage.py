"""How much of the time was seen: usual interval, gaps, and observed GPU-time by node and day."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.telemetry.readers.metrics import GAP_FACTOR
from gpuplanner.inbox.telemetry.seen import seen_of

GPU = ("node", "gpu")


def steps(samples: pl.DataFrame) -> pl.DataFrame:
    """Time between successive instants at which a GPU was seen.

    A GPU counts once, whether it was sampled whole, by instance or both.
    """
    return (
        samples.select(*GPU, begin="time")
        .unique()
        .sort(*GPU, "begin")
        .with_columns(end=pl.col("begin").shift(-1).over(GPU))
        .drop_nulls("end")
        .with_columns(step_s=(pl.col("end") - pl.col("begin")).dt.total_microseconds() / 1e6)
        .with_columns(usual_s=pl.col("step_s").median().over(GPU))
        .with_columns(gap=pl.col("step_s") > GAP_FACTOR * pl.col("usual_s"))
    )


def observed_gpu_hours(samples: pl.DataFrame) -> float:
    """GPU-hours between samples that follow each other without a gap [GPU h].

    Nothing is added before the first or after the last sample: a single reading observes no time.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=m) for m in (0, 20, 40, 160, 180)]
    >>> observed_gpu_hours(pl.DataFrame({"time": times, "node": "n1", "gpu": 0}))
    1.0
    """
    return seen_of(samples).observed_gpu_hours()


def coverage(samples: pl.DataFrame) -> pl.DataFrame:
    """Observed share of each node and UTC day.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.

    Returns
    -------
    polars.DataFrame
        ``node``, ``day``, ``gpus`` (seen on the node on any day), ``samples``, ``observed_gpu_h``,
        ``expected_gpu_h`` (those GPUs over the part of the day that lies within the node's first and last
        sample) and ``covered`` (0-1; null where nothing was to be expected), sorted by node and day.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> times = [datetime(2026, 1, 1, 23, tzinfo=UTC) + timedelta(minutes=m) for m in range(0, 121, 20)]
    >>> coverage(pl.DataFrame({"time": times, "node": "n1", "gpu": 0}))["observed_gpu_h"].to_list()
    [1.0, 1.0]
    """
    return seen_of(samples).coverage()
