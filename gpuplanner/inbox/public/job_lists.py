"""Job lists with submission and run time in seconds, one row a job, and nothing about the queue.

Microsoft's ITP clusters [1]_, Alibaba's spot GPU cluster [2]_, and what simulators of clusters read.

References
----------
.. [1] Gu et al., ElasticFlow, ASPLOS 2023: training jobs of 2021.
.. [2] Duan et al., GFS, ASPLOS 2026; alibaba/clusterdata, cluster-trace-v2026-spot-gpu, README: columns of
   ``job_info_df.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import file_name
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import NO_QUEUE
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.times import MAX_SECONDS, seconds
from gpuplanner.inbox.public.clocks import Clock
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB


def _columns(submit: str, gpus: str) -> dict[str, Field]:
    """Columns of a list: submission, in seconds after second 0; run time [s]; GPUs."""
    return {
        "job_id": Field("job_id"),
        submit: Field("submit_s", "number", high=MAX_SECONDS),
        "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
        gpus: Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    }


ITP_COLUMNS = _columns("submission_time", "num_gpu")
ITP_ORIGIN = datetime(2021, 3, 4, tzinfo=UTC)
"""First day of the collection; the source does not give the hour or the zone."""

SIMULATOR_COLUMNS = _columns("submit_time", "num_gpus")

SPOT_COLUMNS = {
    "job_name": Field("job_id"),
    "organization": Field("tenant"),
    "gpu_model": Field("gpu_model", nullable=True),
    "gpu_request": Field("gpus_per_worker", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "worker_num": Field("workers", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "submit_time": Field("submit_s", "number", high=MAX_SECONDS),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "job_type": Field("job_type", nullable=True),
}
"""`organization`: cost organisation; `gpu_request`: GPUs of one worker; `submit_time`: seconds after the first
job; `job_type`: ``HP`` or ``Spot``."""

TIERS = {"HP": "guaranteed", "Spot": "best_effort"}


def read_itp(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read ITP job tables, one file per cluster; the name of the file is the tenant.

    Columns `job_id`, `submission_time`, `duration`, `num_gpu`; see :data:`ITP_COLUMNS`. Queueing is not in
    the source: the start is set to the submission.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    origin : datetime or str, optional
        Instant of second 0; :data:`ITP_ORIGIN` if not given.

    Returns
    -------
    Dataset
        One row per job.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster01.csv"
    ...     _ = path.write_text("job_id,submission_time,duration,num_gpu\n965d744f,1932025,2429,64\n")
    ...     read_itp([path]).jobs["tenant", "submit_time"].row(0)
    ('cluster01', datetime.datetime(2021, 3, 26, 8, 40, 25, tzinfo=zoneinfo.ZoneInfo(key='UTC')))
    """
    return read_list(
        paths,
        ITP_COLUMNS,
        Clock.of(origin, known=ITP_ORIGIN),
        source="itp",
        notes=[
            "the source kept jobs of about 600 s and longer only: arrival rates are not those of the queue"
        ],
    )


def read_spot(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read the job list; its node list is read as source ``nodes``.

    Examples
    --------
    >>> import tempfile
    >>> header = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "job_info_df.csv"
    ...     _ = path.write_text(header + "\n437260,57,A100-SXM4-80GB,15,1,16,9589663,3600,Spot\n")
    ...     read_spot([path]).jobs["gpus", "tier"].row(0)
    (16.0, 'best_effort')
    """
    fills = {
        "tenant": pl.col("tenant"),
        "gpus": pl.col("gpus_per_worker") * pl.col("workers"),
        "tier": pl.col("job_type").replace_strict(TIERS, default=pl.col("job_type")),
    }
    return read_list(paths, SPOT_COLUMNS, Clock.of(origin), source="spot", fills=fills)


def read_simulator(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read a simulator's job list; the name of the file is the tenant.

    Columns `job_id`, `submit_time`, `duration`, `num_gpus`; see :data:`SIMULATOR_COLUMNS`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "jobs.csv"
    ...     _ = path.write_text("job_id,submit_time,duration,num_gpus\n0,201,3600,8\n")
    ...     read_simulator([path]).summary()["gpu_hours"]
    8.0
    """
    return read_list(paths, SIMULATOR_COLUMNS, Clock.of(origin), source="simulator")


def read_list(
    paths: Sequence[str | Path],
    columns: Mapping[str, Field],
    clock: Clock,
    *,
    source: str,
    fills: Mapping[str, pl.Expr] | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """Read job lists; queueing is not in them, so the start is set to the submission."""
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
