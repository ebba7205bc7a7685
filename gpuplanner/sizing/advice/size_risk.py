"""The size that past runs of equal requests needed, and the risk that a later run needs more."""

from __future__ import annotations

import math

import polars as pl

from gpuplanner.hardware.gpu import as_board
from gpuplanner.sizing.requests import SIZES, sizes

FULL_STATES = ("COMPLETED", "TIMEOUT")
"""Runs that reached their end or their limit. What failed or was cancelled may have stopped before its peak: it
counts as a lower bound of the need, never as evidence that little was needed."""
CONFIDENCE_PERCENT = 95
"""Confidence of the largest share of later runs that may need more than the recommended size."""


def size_risks(jobs: pl.DataFrame) -> pl.DataFrame:
    """Find the largest size that a run of each group needed, and how surely it is enough for later runs.

    A request of one GPU or instance needs a profile, a request of several needs as many GPUs as worked. The observed
    risk is the share of full runs that would have failed with the largest need of all other runs. A risk of 0 over few
    runs proves little: the largest of n runs covers less than 1 - p of all that are alike with probability (1 - p)^n,
    whatever their distribution; ``size_risk_at_most`` is the p where that falls to 5 %, for many runs the "rule of
    three", 3 / n.

    Parameters
    ----------
    jobs : polars.DataFrame
        Runs with ``group``, ``board``, ``state``, ``run_s`` [s], ``instances``, ``rank_needed``,
        ``memory_peak_gib`` [GiB] and ``gpus_active``.

    Returns
    -------
    polars.DataFrame
        ``group``, ``needed`` and ``share_hint`` (profile, and its share of a GPU), ``rank``, ``active`` (GPUs that
        worked), ``size_runs`` (full runs counted), ``size_risk`` and ``size_risk_at_most`` [0-1], and
        ``size_risk_hours`` (run time of the runs that would have failed) [h].

    References
    ----------
    Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12(1), 1941. Hanley,
    Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249(13), 1983.

    Examples
    --------
    >>> runs = pl.DataFrame({"group": 0, "board": "H100-80GB-SXM5", "state": "COMPLETED", "run_s": 3600.0,
    ...     "instances": 1, "rank_needed": [0, 0, 1], "memory_peak_gib": [8.0, 8.0, 15.0], "gpus_active": None})
    >>> size_risks(runs).select("needed", "size_runs", pl.col("size_risk").round(3)).row(0)
    ('1g.20gb', 3, 0.333)
    """
    several = pl.col("instances") > 1
    need = (
        pl.when(several).then("gpus_active").when(pl.col("memory_peak_gib").is_not_null()).then("rank_needed")
    )
    runs = jobs.with_columns(need=need.cast(pl.Int32)).filter(pl.col("need").is_not_null())

    by_group = runs.group_by("group").agg(
        pl.col("board", "instances").first(),
        largest=pl.col("need").max(),
        runs_at_largest=(pl.col("need") == pl.col("need").max()).sum(),
        second=pl.col("need").filter(pl.col("need") < pl.col("need").max()).max(),
    )
    alone = (pl.col("need") == pl.col("largest")) & (pl.col("runs_at_largest") == 1)
    profiles = _profile_ranks(jobs)
    full = (
        runs.join(by_group.drop("board", "instances"), on="group")
        .with_columns(need_of_others=pl.when(alone).then("second").otherwise("largest"))
        .filter(pl.col("state").is_in(FULL_STATES) & pl.col("need_of_others").is_not_null())
        .join(profiles, left_on=["board", "need_of_others"], right_on=["board", "rank"], how="left")
    )
    failed = (
        pl.when(several)
        .then(pl.col("need") > pl.col("need_of_others"))
        .otherwise(pl.col("memory_peak_gib") > pl.col("memory_gib"))
    )
    risks = full.group_by("group").agg(
        size_runs=pl.len(),
        size_risk=failed.mean(),
        size_risk_hours=pl.col("run_s").filter(failed).sum() / 3600,
    )

    at_most = 1 - (math.log(1 - CONFIDENCE_PERCENT / 100) / pl.col("size_runs")).exp()
    single = by_group.with_columns(
        rank=pl.when(~several).then("largest"), active=pl.when(several).then("largest")
    )
    return (
        single.join(profiles, on=["board", "rank"], how="left")
        .join(risks, on="group", how="left")
        .select(
            "group", "rank", "active", "size_runs", "size_risk", "size_risk_hours",
            needed="profile", share_hint="share", size_risk_at_most=at_most,
        )
    )  # fmt: skip


def _profile_ranks(jobs: pl.DataFrame) -> pl.DataFrame:
    """The :func:`sizes` of all boards behind their names, those that have a rank."""
    boards = jobs["board"].drop_nulls().unique().sort()
    tables = [sizes(as_board(name)).select(pl.lit(name).alias("board"), *SIZES) for name in boards]
    return (
        pl.concat([pl.DataFrame(schema={"board": pl.String, **SIZES}), *tables])
        .filter(pl.col("rank").is_not_null())
        .unique(["board", "rank"], keep="first", maintain_order=True)
    )
