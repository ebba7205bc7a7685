"""Leaving one out: how often the hint that a group's other runs give would have failed each of its runs."""

from __future__ import annotations

import polars as pl

from gpuplanner.hardware import as_board
from gpuplanner.memory.requests import sizes

FULL_STATES = ("COMPLETED", "TIMEOUT")
"""Runs that reached their end or their limit. What failed or was cancelled may have stopped before its peak: it
counts as a lower bound of the need, never as evidence that little was needed."""
COVERED_PERCENT = 95
"""Share of past runs that a time limit covers."""
LIMIT_STEP_S = 60.0
"""Slurm keeps time limits in minutes."""


def profile_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Largest profile that a run of each group needed, and how often that of the others was too small.

    Parameters
    ----------
    jobs : polars.DataFrame
        From :func:`~gpuplanner.memory.history.asked_and_used`, with ``group``.

    Returns
    -------
    polars.DataFrame
        ``group``, ``size_runs`` (full runs held against the others), ``risk_out_of_memory``, ``risk_too_small``
        [0-1], ``out_of_memory_hours`` [h, run time of those that failed], ``needed`` (profile), ``rank`` and
        ``share_hint`` of it.

    Examples
    --------
    >>> runs = pl.DataFrame({"group": 0, "board": "H100-80GB-SXM5", "state": "COMPLETED", "run_s": 3600.0,
    ...     "rank_needed": [0, 0, 1], "memory_peak_gib": [8.0, 8.0, 15.0]})
    >>> profile_risks(runs).select("needed", "size_runs", pl.col("risk_out_of_memory").round(3)).row(0)
    ('1g.20gb', 3, 0.333)
    """
    measured = jobs.filter(pl.col("rank_needed").is_not_null() & pl.col("memory_peak_gib").is_not_null())
    held_out = _without_own(measured, "rank_needed").filter(pl.col("state").is_in(FULL_STATES))
    judged = held_out.join(_ranks(jobs), left_on=["board", "others"], right_on=["board", "rank"])
    failed = pl.col("memory_peak_gib") > pl.col("memory_gib")
    risks = judged.group_by("group").agg(
        size_runs=pl.len(),
        risk_out_of_memory=failed.mean(),
        risk_too_small=(pl.col("rank_needed") > pl.col("others")).mean(),
        out_of_memory_hours=(pl.col("run_s").filter(failed).sum() / 3600),
    )
    tops = measured.group_by("group").agg(pl.col("board").first(), rank=pl.col("rank_needed").max())
    known = tops.join(_ranks(jobs), on=["board", "rank"]).rename({"profile": "needed", "share": "share_hint"})
    return risks.join(known.drop("board", "memory_gib"), on="group", how="full", coalesce=True)


def count_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Most GPUs that worked in a run of each group, and how often more worked than in the others.

    Parameters
    ----------
    jobs : polars.DataFrame
        As for :func:`profile_risks`.

    Returns
    -------
    polars.DataFrame
        ``group``, ``active_runs``, ``risk_too_few`` [0-1], ``too_few_hours`` [h], ``active`` [GPUs].

    Examples
    --------
    >>> runs = pl.DataFrame({"group": 0, "state": "COMPLETED", "run_s": 3600.0, "instances": 8,
    ...     "gpus_active": [2, 2, 2, 4]})
    >>> count_risks(runs).select("active", "active_runs", "risk_too_few").row(0)
    (4, 4, 0.25)
    """
    sampled = jobs.filter(pl.col("gpus_active").is_not_null() & (pl.col("instances") > 1))
    held_out = _without_own(sampled, "gpus_active").filter(pl.col("state").is_in(FULL_STATES))
    failed = pl.col("gpus_active") > pl.col("others")
    return (
        held_out.filter(pl.col("others").is_not_null())
        .group_by("group")
        .agg(
            active_runs=pl.len(),
            risk_too_few=failed.mean(),
            too_few_hours=(pl.col("run_s").filter(failed).sum() / 3600),
        )
        .join(
            sampled.group_by("group").agg(active=pl.col("gpus_active").max()),
            on="group",
            how="full",
            coalesce=True,
        )
    )


def limit_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Limit that covers most runs of each group, and how often a run outlasts the limit that the others give.

    Parameters
    ----------
    jobs : polars.DataFrame
        As for :func:`profile_risks`.

    Returns
    -------
    polars.DataFrame
        ``group``, ``limit_runs``, ``run_p95_s``, ``limit`` (the same in whole minutes) [s, infinite where too many
        runs were stopped by their limit] and ``risk_time_out`` [0-1, null for a run alone].

    Examples
    --------
    >>> runs = pl.DataFrame({"group": 0, "state": "COMPLETED", "run_s": [600.0] * 9 + [6000.0]})
    >>> limit_risks(runs).select("limit", "risk_time_out").row(0)
    (6000.0, 0.1)
    """
    endless = pl.lit(float("inf"))
    ended = jobs.filter(pl.col("state").is_in(FULL_STATES) & pl.col("run_s").is_not_null()).select(
        "group", run=pl.when(pl.col("state") == "TIMEOUT").then(endless).otherwise("run_s")
    )
    # Leaving out a run at or below this place moves it one up; one above it leaves it and is then too long.
    others = _covering(pl.len() - 1)
    return ended.group_by("group").agg(
        limit_runs=pl.len(),
        run_p95_s=_covering(pl.len()),
        limit=_in_steps(_covering(pl.len())),
        risk_time_out=pl.when(pl.len() > 1).then((pl.col("run") > _in_steps(others)).mean()),
    )


def _covering(runs: pl.Expr) -> pl.Expr:
    """The run, in order of length, that is long enough for the covered share of so many."""
    place = (runs.cast(pl.Int64) * COVERED_PERCENT + 99) // 100
    return pl.col("run").sort().get(pl.max_horizontal(place - 1, 0))


def _in_steps(seconds: pl.Expr) -> pl.Expr:
    return (seconds / LIMIT_STEP_S).ceil() * LIMIT_STEP_S


def _without_own(jobs: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add ``others``: the largest value among the other jobs of the group, null for a job alone."""
    value = pl.col(name)
    tops = jobs.group_by("group").agg(
        top=value.max(), at_top=(value == value.max()).sum(), second=value.filter(value < value.max()).max()
    )
    alone = (pl.col(name) == pl.col("top")) & (pl.col("at_top") == 1)
    return (
        jobs.join(tops, on="group", maintain_order="left")
        .with_columns(others=pl.when(alone).then("second").otherwise("top"))
        .drop("top", "at_top", "second")
    )


def _ranks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Sizes of the boards in order: ``board``, ``rank``, ``profile``, ``memory_gib``, ``share``."""
    tables = [
        sizes(as_board(name)).select(pl.lit(name).alias("board"), "rank", "profile", "memory_gib", "share")
        for name in jobs["board"].drop_nulls().unique().sort()
    ]
    schema = {
        "board": pl.String,
        "rank": pl.Int32,
        "profile": pl.String,
        "memory_gib": pl.Float64,
        "share": pl.Float64,
    }
    return (
        pl.concat([pl.DataFrame(schema=schema), *tables])
        .filter(pl.col("rank").is_not_null())
        .unique(["board", "rank"], keep="first", maintain_order=True)
    )
