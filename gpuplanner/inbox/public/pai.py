"""Alibaba PAI: tasks of machine learning jobs with GPU shares, 2020 (Weng et al., USENIX NSDI 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.source import looks
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.core.times import FIRST_INSTANT
from gpuplanner.inbox.public.job_tables import IN_PARTS
from gpuplanner.inbox.public.trace import JobTrace, with_states

TABLES = {
    "job": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "task": (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
    "instance": (
        *("job_name", "task_name", "inst_name", "worker_name", "inst_id"),
        *("status", "start_time", "end_time", "machine"),
    ),
}
"""Columns of the three tables, whose files have no header line; each has another number of them."""

JOB_COLUMNS = source_columns("pai_job")
TASK_COLUMNS = source_columns("pai_task")
INSTANCE_COLUMNS = source_columns("pai_instance")
"""Times in seconds; `plan_gpu`: % of one GPU that each instance asks for; `start_time` of a job: submission."""

STATES = {"Terminated": "COMPLETED", "Failed": "FAILED", "Running": "RUNNING", "Waiting": "PENDING"}
SHARE = pl.col("percent") / 100
NO_GPU = pl.when(pl.col("gpu_model") == "CPU").then(SHARE.fill_null(0.0)).otherwise(SHARE)

TASKS = JobTrace(
    "pai",
    TASK_COLUMNS,
    origin=FIRST_INSTANT,
    steps=[
        {
            "job_id": pl.concat_str("job_name", "task_name", separator="/"),
            "tenant": pl.col("user").fill_null("pai"),
            "gpus": NO_GPU * pl.col("workers"),
        }
    ],
    checks=[
        source_check("pai: no submission", pl.col("no_submission")),
        IN_PARTS,
    ],
)
SHIFTED = source_check("pai: shifted dates", pl.lit(value=True))


def table_of(lines: Sequence[str]) -> str | None:
    """Which of the three tables a file is, from its first lines; None if it is none.

    Examples
    --------
    >>> table_of(["4f05,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC"])
    'task'
    """
    for name, columns in TABLES.items():
        fields = lines[0].split(",") if lines else []
        status = columns.index("status")
        if len(fields) == len(columns) and (fields[status] in STATES or tuple(fields) == columns):
            return name
    return None


@looks(lambda lines: table_of(lines) is not None)
def read_pai(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read PAI tables: the task table, and better with the job table and the instance table.

    A task is a row of the trace, named job/task, since each has GPUs, times and a state of its own. The job
    table gives the user and the submission, the instance table the machines.

    References
    ----------
    .. [1] alibaba/clusterdata, cluster-trace-gpu-v2020, README: data files in the trace.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pai_task_table.csv"
    ...     _ = path.write_text("4f05,worker,4.0,Terminated,3600.0,7200.0,600.0,29.3,50.0,T4\n")
    ...     read_pai([path]).jobs["job_id", "gpus", "gpu_model"].row(0)
    ('4f05/worker', 2.0, 'T4')
    """
    parts = _by_table(paths)
    rows = with_states(_read("task", parts["task"], TASK_COLUMNS), STATES)
    side = {
        "job": _read("job", parts["job"], JOB_COLUMNS) if parts["job"] else None,
        "instance": _read("instance", parts["instance"], INSTANCE_COLUMNS) if parts["instance"] else None,
    }
    tasks = _placed(_submitted(rows.good, side["job"]), side["instance"])
    rows = replace(rows, good=tasks)
    rows = rows.reject({"start_time: missing, and the submission is not known": pl.col("submit_s").is_null()})
    read = {name: table for name, table in side.items() if table is not None}
    return TASKS.of(
        rows,
        origin=origin,
        checks=[SHIFTED] if origin is None else [],
        notes=[
            f"pai_{name}_table: {table.count} rows, {table.rejects.height} of them unreadable"
            for name, table in read.items()
        ],
        more_files=[file for table in read.values() for file in table.files],
    )


def _by_table(paths: Sequence[str | Path]) -> dict[str, list[str | Path]]:
    parts: dict[str, list[str | Path]] = {name: [] for name in TABLES}
    for path in paths:
        lines = head(path)
        parts[table_of(lines) or "task"].append(path)
    if not parts["task"]:
        text = message(
            "pai",
            "pai_task_table, which holds the GPUs",
            examples([str(path) for path in paths]) or "no files",
            "Give it with the other tables.",
        )
        raise TraceFormatError(text)
    return parts


def _read(table: str, paths: Sequence[str | Path], columns: Mapping[str, Field]) -> Rows:
    names = TABLES[table]
    headless = Dialect(
        names=lambda lines: None if lines[0].split(",")[0] == names[0] else names,
        hint=f"The columns are those of pai_{table}_table: {', '.join(names)}.",
    )
    return read_rows(paths, columns, source=f"pai_{table}_table", dialect=headless)


def _submitted(tasks: pl.DataFrame, jobs: Rows | None) -> pl.DataFrame:
    """Tasks with the user and submission of their job; the start, where the job is not known."""
    if jobs is None:
        known = tasks.with_columns(user=pl.lit(None, pl.String), submit_s=pl.lit(None, pl.Float64))
    else:
        first = jobs.good.unique("job_name", keep="first", maintain_order=True)
        known = tasks.join(
            first.select("job_name", "user", "submit_s"), on="job_name", how="left", maintain_order="left"
        )
    return known.with_columns(
        no_submission=pl.col("submit_s").is_null(), submit_s=pl.coalesce("submit_s", "start_s")
    )


def _placed(tasks: pl.DataFrame, instances: Rows | None) -> pl.DataFrame:
    """Tasks with the machines that their instances ran on."""
    if instances is None:
        return tasks
    machines = (
        instances.good.drop_nulls("machine")
        .group_by("job_name", "task_name")
        .agg(pl.col("machine").unique().sort())
        .select(
            "job_name",
            "task_name",
            nodes=pl.col("machine").list.len(),
            node_list=pl.col("machine").list.join(","),
        )
    )
    return tasks.join(machines, on=["job_name", "task_name"], how="left", maintain_order="left")
