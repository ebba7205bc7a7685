"""Jobs whose need changes on the way: a chain of phases, each with a profile and a run time."""

from __future__ import annotations

import dataframely as dy
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.hardware import GpuModel, as_board
from gpuplanner.schemas import WHOLE_GPU, check
from gpuplanner.sizing import smallest_serving

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


def hold_largest(phases: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Let every job ask for its largest need in all of its phases, as a policy does that knows no phases.

    Parameters
    ----------
    phases : polars.DataFrame
        ``job_id``, ``profile``, ``run_s``, and what else a phase has.
    board : GpuModel or str
        The board.

    Returns
    -------
    polars.DataFrame
        The same rows, with the smallest profile of the board that holds all needs of the job, or with whole GPUs
        if a phase needs them. A job whose phases all ask for the same keeps its instance throughout.

    Raises
    ------
    SchemaError
        If the phases are not as described.
    GeometryError
        If a profile is not one of the board.

    Examples
    --------
    >>> phases = pl.DataFrame({"job_id": ["a", "a", "b"], "profile": ["1g.20gb", "2g.20gb", "1g.10gb"],
    ...     "run_s": 60.0})
    >>> hold_largest(phases, "H100-80GB-SXM5")["profile"].to_list()
    ['2g.20gb', '2g.20gb', '1g.10gb']
    """
    board = as_board(board)
    chain = check(phases, Phases, where="phases of jobs")
    chain = chain.with_columns(
        needs=pl.col("profile").unique().sort().over("job_id", mapping_strategy="join")
    )
    held = {tuple(names): smallest_serving(board, names) for names in chain["needs"].unique().to_list()}
    most = pl.col("gpus").max().over("job_id")
    return chain.with_columns(
        profile=pl.Series("profile", [held[tuple(names)] for names in chain["needs"].to_list()], pl.String),
        gpus=most,
    ).drop("needs")
