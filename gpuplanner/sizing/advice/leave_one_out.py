"""Leaving one out: how often the hint that a group's other runs give would have failed each of its runs."""

from __future__ import annotations

import math

import polars as pl

from gpuplanner.hardware import as_board
from gpuplanner.sizing.requests import sizes

FULL_STATES = ("COMPLETED", "TIMEOUT")
"""Runs that reached their end or their limit. What failed or was cancelled may have stopped before its peak: it
counts as a lower bound of the need, never as evidence that little was needed."""
CONFIDENCE_PERCENT = 95
"""How sure the largest share of later runs is that a hint may fail."""


def most_beyond(runs: pl.Expr) -> pl.Expr:
    """Largest share of later runs that need more than every one of so many before them [0-1; null for none].

    The largest of n runs covers less than 1 - p of all that are alike with probability (1 - p)^n, whatever their
    distribution; p is where that falls to 5 %. For many runs it is the "rule of three", 3 / n.

    References
    ----------
    Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12(1), 1941. Hanley,
    Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249(13), 1983.

    Examples
    --------
    >>> pl.DataFrame({"runs": [0, 5, 59]}).select(most_beyond(pl.col("runs")).round(3)).to_series().to_list()
    [None, 0.451, 0.05]
    """
    return pl.when(runs > 0).then(1 - (math.log(1 - CONFIDENCE_PERCENT / 100) / runs).exp())


def profile_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Largest profile that a run of each group needed, and how often that of the others was too small.

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
