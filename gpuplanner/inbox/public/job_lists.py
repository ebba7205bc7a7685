"""Job lists with submission and run time in seconds, one row a job, and nothing about the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.fields import Field
from gpuplanner.inbox.core.findings import NO_QUEUE
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.origin_clock import Clock
from gpuplanner.inbox.core.rows import Rows, read_rows
from gpuplanner.inbox.core.times import seconds


def read_list(
    paths: Sequence[str | Path],
    columns: Mapping[str, Field],
    clock: Clock,
    *,
    source: str,
    fills: Mapping[str, pl.Expr] | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """Read job lists; queueing is not in them, so the start is set to the submission.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    columns : mapping of str to Field
        Must give `job_id`, `submit_s`, `run_s` and, if `fills` does not, `gpus`.
    clock : Clock
        What second 0 is.
    source : str
        Name of the source.
    fills : mapping of str to polars.Expr, optional
        Further columns of ``schemas.Jobs``; the tenant is the name of the file unless one is given.
    notes : sequence of str
        What a reader of the provenance must know.

    Returns
    -------
    Dataset
        One row per job.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.
    """
    return list_trace(
        read_rows(paths, columns, source=source), clock, source=source, fills=fills, notes=notes
    )


def list_trace(
    rows: Rows,
    clock: Clock,
    *,
    source: str,
    fills: Mapping[str, pl.Expr] | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """Make a trace of rows with `job_id`, `submit_s` and `run_s`; see :func:`read_list`."""
    stems = {number: file_name(file.path).split(".")[0] for number, file in enumerate(rows.files)}
    known = {
        "attempt": pl.lit(1),
        "tenant": pl.col("file").replace_strict(stems, return_dtype=pl.String),
        "submit_time": clock.at("submit_s"),
        "start_time": clock.at("submit_s"),
        "end_time": clock.at("submit_s") + seconds(pl.col("run_s")),
        "state": pl.lit("UNKNOWN"),
    }
    jobs = rows.good.with_columns(**(known | dict(fills or {})))
    return assemble(
        replace(rows, good=jobs),
        source=source,
        origin=clock.zero,
        checks=[NO_QUEUE, *clock.checks],
        notes=[*clock.notes, *notes],
    )
