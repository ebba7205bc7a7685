"""Classes of jobs without names: what others of the same size, duration and hour are."""

from __future__ import annotations

import polars as pl

from gpuplanner.inbox.core.times import known_zone

SIZES = (0.99, 1.99, 7.99, 31.99)
LENGTHS_S = (600.0, 3600.0, 14_400.0, 86_400.0)
HOURS = (8, 20)
CELL = ("size", "length", "hours")
FEWEST, SURE = 5, 0.5
"""Jobs of known class that a cell must have, and the share of them that must be of one class."""


def class_by_shape(jobs: pl.DataFrame, known: pl.Series, *, tz: str = "UTC") -> pl.DataFrame:
    """Give each job without a class that of most jobs of its size, duration and hour, if more than half are of it.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``gpus, submit_time`` and ``run_s`` [s].
    known : polars.Series
        Class of each where it is known, by the source or by a rule, else null.
    tz : str
        Zone of the hours.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 2)
        In the order of `jobs`: ``job_class``, null where it stays undecided, and ``confidence``, the share of those
        like it that are of this class [0-1]; null where the class was known.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"gpus": [1.0] * 7 + [8.0], "run_s": 120.0})
    >>> jobs = jobs.with_columns(submit_time=datetime(2026, 2, 2, tzinfo=UTC))
    >>> known = pl.Series(["evaluation"] * 5 + ["interactive", None, None])
    >>> class_by_shape(jobs, known).tail(2).rows()
    [('evaluation', 0.8333333333333334), (None, None)]
    """
    hour = pl.col("submit_time").dt.convert_time_zone(known_zone(tz)).dt.hour()
    table = jobs.select(
        size=pl.sum_horizontal(pl.col("gpus") > edge for edge in SIZES),
        length=pl.sum_horizontal(pl.col("run_s") > edge for edge in LENGTHS_S),
        hours=hour.is_between(*HOURS, closed="left"),
    ).with_columns(known=known)
    counts = (
        table.drop_nulls("known")
        .group_by(*CELL, "known")
        .len()
        .sort("len", "known", descending=[True, False])
    )
    total = pl.col("len").sum()
    best = (
        counts.group_by(CELL, maintain_order=True)
        .agg(like=pl.col("known").first(), confidence=pl.col("len").first() / total, jobs=total)
        .filter(pl.col("jobs") >= FEWEST, pl.col("confidence") > SURE)
    )
    return table.join(best, on=CELL, how="left", nulls_equal=True, maintain_order="left").select(
        job_class=pl.coalesce("known", "like"),
        confidence=pl.when(pl.col("known").is_null()).then("confidence"),
    )
