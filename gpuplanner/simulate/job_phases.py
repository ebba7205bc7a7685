"""Jobs whose need changes on the way: a chain of phases, each with a profile and a run time."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.schemas import WHOLE_GPU, check

OF_A_PHASE = ("profile", "run_s", "gpus", "sms_needed", "limit_s")


class Phases(dy.Schema):
    """One phase of a job; the phases of a job come in the order of the rows."""

    job_id = dy.String(nullable=False)
    profile = dy.String(nullable=False)
    run_s = dy.Float64(nullable=False, min=0.0)
    gpus = dy.Int32(nullable=True, min=1)
    """Null: 1."""
    sms_needed = dy.Float64(nullable=True, min=0.0)
    limit_s = dy.Float64(nullable=True, min=0.0)

    @dy.rule()
    def one_instance_per_job(cls) -> pl.Expr:
        """A job on a MIG instance holds one."""
        return (pl.col("profile") == WHOLE_GPU) | (pl.col("gpus").fill_null(1) == 1)


def in_phases(jobs: pl.DataFrame, phases: pl.DataFrame | None) -> pl.DataFrame:
    """One row for every phase of every job."""
    rows = jobs.with_row_index("row").with_columns(phase=pl.lit(0, pl.Int64))
    if phases is None:
        return rows
    chain = check(phases, Phases, where="phases of jobs").with_columns(pl.col("gpus").fill_null(1))
    unknown = chain.join(jobs, on="job_id", how="anti")["job_id"].unique(maintain_order=True)
    if len(unknown):
        text = message(
            "phases of jobs",
            "phases of jobs to simulate",
            f"{len(unknown)} other job_ids: {examples(unknown.to_list())}",
            "Drop them, or add the jobs.",
        )
        raise SchemaError(text)
    chain = chain.with_columns(phase=pl.int_range(pl.len()).over("job_id"))
    chained = chain.select("job_id", "phase", *OF_A_PHASE).join(
        rows.drop("phase", *OF_A_PHASE), on="job_id", maintain_order="left"
    )
    alone = rows.join(chain, on="job_id", how="anti", maintain_order="left")
    return pl.concat([alone, chained.select(alone.columns)])
