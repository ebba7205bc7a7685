"""From the arrays of a run to tables."""

from __future__ import annotations

import dataframely as dy
import numpy as np
import polars as pl

from gpuplanner.schemas import Outcomes, conform
from gpuplanner.simulate.build import Terms
from gpuplanner.simulate.fleet import Fleet
from gpuplanner.simulate.slices.world import NONE, RECONFIGURING, STATES, World

ENDINGS = ("finished", "next phase")


class Spells(dy.Schema):
    """One spell: a job waits, and then holds the same GPUs without a break. Every job has at least one."""

    job_id = dy.String(nullable=False)
    tenant = dy.String(nullable=False)
    since_s = dy.Float64(nullable=False)
    """It waited from then on: its submission, or the end of its spell before."""
    start_s = dy.Float64(nullable=True)
    """It held GPUs from then on; null if it never got any more."""
    end_s = dy.Float64(nullable=True)
    profile = dy.String(nullable=False)
    """What it asked for."""
    served_on = dy.String(nullable=True)
    gpus = dy.Int32(nullable=False)
    """What it held; what it asked for if it never got any more."""
    node = dy.Int32(nullable=True)
    """The first one."""
    gpu = dy.Int32(nullable=True)
    lost_s = dy.Float64(nullable=False)
    """Time of the spell which was for nothing that lasts: overhead, checkpoints, work done again, slow-downs."""
    ended = dy.Enum(ENDINGS, nullable=True)
    """Why it ended."""


def phase_spells(
    kept: pl.DataFrame, left_out: pl.DataFrame, world: World, terms: Terms, fleet: Fleet
) -> pl.DataFrame:
    """Every phase that the run came to, with what became of it, by job and phase."""
    work = world.jobs
    gpu = pl.Series(work.gpu)
    started = gpu != NONE
    served = dict(enumerate(terms.profiles))
    come = (work.before == NONE) | ~np.isnan(work.end[work.before])
    finished, next_phase = (pl.lit(ending, pl.Enum(ENDINGS)) for ending in ("finished", "next phase"))
    found = kept.select(
        "row",
        "phase",
        "job_id",
        "tenant",
        "profile",
        "gpus",
        since_s=pl.when(pl.col("phase") == 0).then("submit_s").otherwise(pl.Series(work.submit)),
        start_s=pl.Series(work.start).fill_nan(None),
        end_s=pl.Series(work.end).fill_nan(None),
        served_on=pl.Series(work.served).replace_strict(served, default=None, return_dtype=pl.String),
        node=pl.when(started).then(gpu // fleet.gpus_per_node),
        gpu=pl.when(started).then(gpu % fleet.gpus_per_node),
        lost_s=pl.Series(work.lost),
        ended=pl.when(started).then(
            pl.when(pl.Series(work.then == NONE)).then(finished).otherwise(next_phase)
        ),
    )
    if not come.all():
        found = found.filter(come)
    if left_out.height:
        never = left_out.select(
            "row", "phase", "job_id", "tenant", "profile", "gpus", since_s="submit_s", lost_s=0.0
        )
        found = pl.concat([found, never], how="diagonal")
    found = found.sort("row", "phase")
    return conform(found, Spells, where="spells").with_columns(found["row", "phase"])


def outcomes_of(jobs: pl.DataFrame, spells: pl.DataFrame, policy: str, replication: int) -> pl.DataFrame:
    """Put the phases of every job together, in the order of the jobs."""
    start, queued_s = pl.col("start_s"), pl.col("start_s") - pl.col("since_s")
    if (spells["phase"] > 0).any():
        whole = spells.group_by("row", maintain_order=True).agg(
            pl.col("start_s", "served_on", "node", "gpu").first(),
            pl.col("end_s").last(),
            lost_gpu_s=(pl.col("lost_s") * pl.col("gpus")).sum(),
            queued_s=queued_s.sum(),
        )
    else:
        whole = spells.select(
            "row", "start_s", "served_on", "node", "gpu", "end_s", lost_gpu_s=pl.lit(0.0), queued_s=queued_s
        )
    table = jobs.join(whole, on="row", how="left", maintain_order="left").with_columns(
        submit=pl.col("submit_s"),
        first_start=start,
        end="end_s",
        policy=pl.lit(policy),
        replication=pl.lit(replication),
        preemptions=pl.lit(0),
        queued_s=pl.when(start.is_not_null()).then("queued_s"),
        wait_s=start - pl.col("submit_s"),
        jct_s=pl.col("end_s") - pl.col("submit_s"),
    )
    return conform(table, Outcomes, where="outcomes").with_columns(table["queued_s"])


def states_of(log: np.ndarray, end_s: float, terms: Terms, fleet: Fleet) -> pl.DataFrame:
    """Turn changes into rows that last until the next change of the same GPU."""
    texts = {NONE: "off", **dict(enumerate(terms.layouts))}
    layout = pl.col("layout")
    return (
        pl.DataFrame(
            {"number": log["gpu"], "start_s": log["at"], "layout": log["layout"], "state": log["state"]}
        )
        .sort("number", maintain_order=True)
        .with_columns(end_s=pl.col("start_s").shift(-1).over("number").fill_null(end_s))
        .filter((pl.col("end_s") > pl.col("start_s")) | (pl.col("state") == RECONFIGURING))
        .select(
            node=(pl.col("number") // fleet.gpus_per_node).cast(pl.Int32),
            gpu=(pl.col("number") % fleet.gpus_per_node).cast(pl.Int32),
            start_s="start_s",
            end_s="end_s",
            layout=layout.replace_strict(texts, return_dtype=pl.String),
            state=pl.col("state").replace_strict(dict(enumerate(STATES)), return_dtype=pl.String),
        )
    )
