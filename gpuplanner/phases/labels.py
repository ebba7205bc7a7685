"""What a short dip looks like: a checkpoint, an evaluation, the edge of a data epoch, or none of them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from gpuplanner.phases.pace import Pace

CHECKPOINT, EVALUATION, EPOCH, UNEXPLAINED = "checkpoint", "evaluation", "data-epoch edge", "unexplained"
SPIKE_LABELS = (CHECKPOINT, EVALUATION, EPOCH, UNEXPLAINED)
"""What a dip looks like.

evaluation
    Memory changes as well: other weights or batches are held while the model is tested.
checkpoint
    Memory stays; traffic to the host rises, or the dip amounts to more than a minute of full stop.
data-epoch edge
    Memory stays and the dip amounts to at most a minute of full stop: the loader begins anew.
unexplained
    Memory stays, and the dip keeps no pace.

A checkpoint that stalls for less than a minute and an edge look the same unless both occur (then the checkpoints are
the longer ones), or the traffic to the host was read; the evidence says so.
"""
MEMORY_CHANGE = 0.05
"""Share by which memory must change for a dip to look like an evaluation."""
TRAFFIC_RISE = 0.5
"""Share by which PCIe traffic must rise for a dip to look like a checkpoint being copied to the host."""
SHORT_S = 60.0
"""Longest data-epoch edge: 5 to 60 seconds of a loader that begins anew."""


def label_spikes(dips: pl.DataFrame, paces: Sequence[Pace]) -> tuple[pl.DataFrame, dict[str, Pace]]:
    """Label the dips of one job, with the evidence.

    Examples
    --------
    >>> row = {"depth": 0.5, "lost_s": 200.0, "memory_change": -0.3, "traffic_change": None}
    >>> table, _ = label_spikes(pl.DataFrame([row]), [])
    >>> table.select("label", "evidence").row(0)
    ('evaluation', 'memory -30 %; 200 s of full stop; alone or irregular')
    """
    train, rhythm = [0] * dips.height, ["alone or irregular"] * dips.height
    for number, pace in enumerate(paces, start=1):
        for member in pace.members:
            train[member] = number
            rhythm[member] = f"one of {len(pace.members)} about {pace.period_s / 60:.3g} min apart"
    changes = (pl.col("memory_change").abs() >= MEMORY_CHANGE).fill_null(False)
    rises = (pl.col("traffic_change") >= TRAFFIC_RISE).fill_null(False)
    regular = pl.col("train") > 0
    trained = dips.with_columns(
        train=pl.Series(train, dtype=pl.Int8), rhythm=pl.Series(rhythm, dtype=pl.String), changes=changes
    )
    # What an evaluation loses says nothing about the checkpoints that keep the same pace.
    usual_lost_s = pl.col("lost_s").filter(~pl.col("changes")).median().over("train")
    long = pl.when(regular).then(usual_lost_s).otherwise("lost_s") > _border_s(trained)
    label = (
        pl.when("changes")
        .then(pl.lit(EVALUATION))
        .when(rises | long)
        .then(pl.lit(CHECKPOINT))
        .when(regular)
        .then(pl.lit(EPOCH))
        .otherwise(pl.lit(UNEXPLAINED))
    )
    table = (
        trained.with_columns(label=label)
        .with_columns(evidence=_evidence(rises, several=len(paces) > 1))
        .drop("changes")
    )
    named: dict[str, Pace] = {}
    for number, pace in enumerate(paces, start=1):
        labels = table.filter(train=number)["label"]
        plain = labels.filter(labels != EVALUATION)
        named.setdefault((plain if len(plain) else labels).mode().sort()[0], pace)
    return table.drop("train", "rhythm"), named


def _border_s(trained: pl.DataFrame) -> float:
    """Longest edge of a data epoch: of two paces with dips of about a minute, the shorter dips are the edges."""
    plain = trained.filter(~pl.col("changes") & (pl.col("train") > 0))
    usual_s = plain.group_by("train").agg(pl.col("lost_s").median())["lost_s"].sort().to_list()
    if len(usual_s) > 1 and usual_s[0] <= 2 * SHORT_S and (usual_s[-1] <= SHORT_S or usual_s[0] > SHORT_S):
        return float(usual_s[0])
    return SHORT_S


def _evidence(rises: pl.Expr, *, several: bool) -> pl.Expr:
    def share(name: str, words: str) -> pl.Expr:
        percent = (100 * pl.col(name)).round(0).cast(pl.Int64)
        sign = pl.when(percent > 0).then(pl.lit("+")).otherwise(pl.lit(""))
        return (
            pl.when(pl.col(name).is_null())
            .then(pl.lit(f"{words} not read"))
            .otherwise(pl.concat_str(pl.lit(f"{words} "), sign, percent, pl.lit(" %")))
        )

    alike = pl.col("label").is_in([CHECKPOINT, EPOCH]) & (pl.col("lost_s") <= 2 * SHORT_S) & ~rises
    return pl.concat_str(
        share("memory_change", "memory"),
        pl.when(pl.col("traffic_change").is_not_null()).then(share("traffic_change", "PCIe traffic")),
        pl.format("{} s of full stop", pl.col("lost_s").round(0).cast(pl.Int64)),
        pl.col("rhythm"),
        pl.when(alike & pl.lit(not several)).then(pl.lit("a checkpoint and an epoch edge look alike here")),
        separator="; ",
        ignore_nulls=True,
    )
