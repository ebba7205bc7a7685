"""How far a record of jobs is complete: logs that list a job when it has ended thin out before they stop."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import polars as pl

MISSING = 0.1
"""Share of the demand that may be missing at the end of what is called complete."""


def complete_until(jobs: pl.DataFrame, end: datetime) -> datetime:
    """First instant from which more than a tenth of the demand is of jobs that are not in the record.

    A record that holds a job that still runs lists jobs as they begin, and is complete to its end. One that holds
    only ended jobs lacks those that ended later. Of the GPU-hours of its jobs, the share that lies more than x
    hours behind their start is what is missing x hours before its end.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``start_time``, ``end_time`` and ``gpus``.
    end : datetime
        End of the record.

    Returns
    -------
    datetime
        `end` itself, or a full hour before it, at most half of the record before.

    Examples
    --------
    >>> from datetime import UTC
    >>> days = [datetime(2026, 2, day, tzinfo=UTC) for day in range(1, 21)]
    >>> jobs = pl.DataFrame({"start_time": days, "end_time": [day + timedelta(hours=20) for day in days], "gpus": 1.0})
    >>> complete_until(jobs, datetime(2026, 2, 21, tzinfo=UTC))
    datetime.datetime(2026, 2, 20, 6, 0, tzinfo=datetime.timezone.utc)
    """
    if jobs["end_time"].null_count() or jobs.is_empty():
        return end
    begun = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0)
    hours = (begun["end_time"] - begun["start_time"]).dt.total_microseconds().to_numpy() / 3.6e9
    gpus = begun["gpus"].to_numpy()
    total = float((gpus * hours).sum())
    if total == 0:
        return end
    longest = (end - begun.select(pl.col("start_time").min()).item()) / timedelta(hours=2)
    low, high = 0.0, longest
    for _ in range(50):
        middle = (low + high) / 2
        left = float((gpus * np.maximum(hours - middle, 0.0)).sum())
        low, high = (middle, high) if left > MISSING * total else (low, middle)
    cut = end - timedelta(hours=high)
    return cut.replace(minute=0, second=0, microsecond=0)
