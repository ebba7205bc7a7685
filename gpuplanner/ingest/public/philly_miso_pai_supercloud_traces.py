"""Readers of public traces of several files or with attempts: Philly's job log, MISO, Alibaba PAI, MIT Supercloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import RecordCollector, Rows, raise_fault
from gpuplanner.ingest.public.job_lists import (
    GPU_FRACTION_CHECK,
    PHILLY_ZONE,
    JobTrace,
    format_number,
    map_source_states,
    number_shared_ids,
)
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.slurm.accounting_fields import SLURM_UNSET_NUMBERS, parse_resources
from gpuplanner.ingest.source_definition import has_required_columns, matches_pattern, register_sniffer
from gpuplanner.ingest.source_fields import FIRST_INSTANT, UTC_TIME_DTYPE, Dialect, Field, source_columns, source_values
from gpuplanner.ingest.table_assembly import assemble_jobs
from gpuplanner.ingest.text_files import TextFile, read_head
from gpuplanner.ingest.typed_row_reader import looks_like_json, read_item_records, read_items, read_rows

HAS_LATER_ATTEMPT_EXPR = pl.col("again").is_not_null()
"""Whether another scheduling attempt of the same Philly job followed this one."""
PHILLY_LOG_TRACE = JobTrace(
    "philly",
    source_columns("philly_log"),
    zone=PHILLY_ZONE,
    states=source_values("philly status"),
    steps=[
        {
            "state": pl.when(HAS_LATER_ATTEMPT_EXPR)
            .then(pl.lit("FAILED"))
            .when(pl.col("start_time").is_not_null() & pl.col("end_time").is_null())
            .then(pl.lit("RUNNING"))
            .otherwise("state")
        }
    ],
    checks=[
        source_check("philly: another attempt", HAS_LATER_ATTEMPT_EXPR),
        source_check("philly: never scheduled", pl.col("gpus").is_null()),
    ],
)
"""How ``cluster_job_log`` of the Philly trace becomes a job table. `vc`: virtual cluster; `ip`: servers; `again`: not
empty for an attempt that was followed by another."""

MISO_ARRIVAL_FILE_PREFIX = "trace"
"""Prefix of the name of MISO's file of arrival times; its content looks like that of the run times."""
MISO_RUN_TIME_FILE_PREFIX = "exp"
"""Prefix of the name of MISO's file of run times; its content looks like that of the arrival times."""

MISO_TRACE = JobTrace(
    "miso",
    source_columns("miso"),
    steps=[{"tenant": pl.lit("miso"), "gpus": pl.lit(None, pl.Float64)}],
    notes=["the row of a reject is the number of its job in the files"],
)
"""How the MISO trace becomes a job table: number of the job, submission in seconds from the start of the experiment,
and run time in seconds (Li et al., SoCC 2022)."""


def is_philly_log(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file look like ``cluster_job_log``."""
    text = "\n".join(lines)
    return looks_like_json(lines) and all(f'"{name}"' in text for name in ("jobid", "vc", "attempts"))


@register_sniffer(is_philly_log)
def read_philly_log(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    """Read the Philly job log, ``cluster_job_log``, with one row for each scheduling attempt.

    The status is that of the job, so it is the state of the last attempt; those before it failed. A last attempt
    without an end still ran when the snapshot was taken. A job without attempts was never scheduled.

    Parameters
    ----------
    paths : sequence of str or Path
        JSON files.
    tz : str, optional
        Time zone of the times. Default: that of the cluster.

    Returns
    -------
    Dataset

    References
    ----------
    .. [1] Jeon et al., USENIX ATC 2019; msr-fiddle/philly-traces, README: schema of ``cluster_job_log``.

    Examples
    --------
    >>> import json, tempfile
    >>> place = [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]
    >>> tries = [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 02:12:09", "detail": place}]
    >>> job = {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "attempts": tries}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster_job_log"
    ...     _ = path.write_text(json.dumps([job | {"submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"}]))
    ...     read_philly_log([path]).jobs["gpus", "state", "node_list"].row(0)
    (2.0, 'COMPLETED', 'm47')
    """
    if not paths:
        raise TraceFormatError("philly", "at least one file", "none", "Give at least one file.")
    return PHILLY_LOG_TRACE.make_dataset(read_item_records(paths, PHILLY_LOG_TRACE.columns, _parse_attempts), tz=tz)


def _parse_attempts(job: Any) -> list[dict[str, str | None]]:  # noqa: ANN401 - anything that JSON can hold
    """Parse a job of the Philly log into the fields of its attempts; refuse it if it has another structure."""
    try:
        job_fields = {name: _parse_philly_text(job[name]) for name in ("jobid", "vc", "user", "status")}
        submit_time = _parse_philly_text(job["submitted_time"])
        parsed_attempts = [_parse_attempt(attempt) for attempt in job["attempts"]]
    except (KeyError, TypeError, AttributeError):
        raise_fault("not a job as the source documents it")
    if not parsed_attempts:
        return [job_fields | {"attempt": "1", "submitted_time": submit_time}]
    # A later attempt was submitted when the one before it ended.
    submit_times = [submit_time, *(attempt["end_time"] for attempt in parsed_attempts)]
    for number, attempt in enumerate(parsed_attempts, 1):
        attempt |= job_fields | {"attempt": str(number), "submitted_time": submit_times[number - 1] or submit_time}
        attempt["again"] = "yes" if number < len(parsed_attempts) else None
    return parsed_attempts


def _parse_attempt(attempt: Mapping[str, Any]) -> dict[str, str | None]:
    """Parse times, GPUs and servers of a scheduling attempt of a Philly job."""
    servers = [(server["ip"], server["gpus"]) for server in attempt["detail"]]
    if not all(isinstance(ip, str) and isinstance(gpus, list) for ip, gpus in servers):
        raise TypeError
    return {
        "start_time": _parse_philly_text(attempt["start_time"]),
        "end_time": _parse_philly_text(attempt["end_time"]),
        "gpus": str(sum(len(gpus) for _, gpus in servers)) if servers else None,
        "nodes": str(len({ip for ip, _ in servers})) if servers else None,
        "ip": ",".join(dict.fromkeys(ip for ip, _ in servers)) or None,
    }


def _parse_philly_text(value: Any) -> str | None:  # noqa: ANN401 - anything that JSON can hold
    """Return a text of the Philly log; None for null and "None", with which it writes missing values."""
    if value is None or value == "None":
        return None
    if not isinstance(value, str):
        raise TypeError
    return value


@register_sniffer(matches_pattern(r'\A\s*\{\s*"0"\s*:\s*\d'))
def read_miso(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    """Read the MISO trace: arrivals and run times of the same jobs, in one file each.

    Parameters
    ----------
    paths : sequence of str or Path
        Files ``trace_*.json`` and ``exp_*.json``.
    origin : datetime or str, optional
        Time of second 0.

    Returns
    -------
    Dataset

    Raises
    ------
    TraceFormatError
        If it is not one file of each.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder) / "trace_1.json", Path(folder) / "exp_1.json"]
    ...     _ = paths[0].write_text('{"0": 120}'), paths[1].write_text('{"0": 346}')
    ...     trace = read_miso(paths)
    >>> (trace.jobs["end_time"] - trace.jobs["start_time"]).item().total_seconds()
    346.0
    """
    arrival_paths = [Path(path) for path in paths if Path(path).name.startswith(f"{MISO_ARRIVAL_FILE_PREFIX}_")]
    run_paths = [Path(path) for path in paths if Path(path).name.startswith(f"{MISO_RUN_TIME_FILE_PREFIX}_")]
    if len(paths) != 2 or len(arrival_paths) != 1 or len(run_paths) != 1:
        got = examples([str(path) for path in paths]) or "no files"
        expected = f"one {MISO_ARRIVAL_FILE_PREFIX}_*.json and one {MISO_RUN_TIME_FILE_PREFIX}_*.json"
        raise TraceFormatError("miso", expected, got, "Give both together.")
    arrival_file, arrivals = _read_seconds(arrival_paths[0])
    run_file, run_times = _read_seconds(run_paths[0])
    records = RecordCollector(MISO_TRACE.columns)
    for job_number, job in enumerate(dict.fromkeys([*arrivals, *run_times]), 1):
        row = {"job": job, "arrival": arrivals.get(job), "run": run_times.get(job)}
        records.add_record(0 if job in arrivals else 1, job_number, f"{job}: {row['arrival']}, {row['run']}", row)
    return MISO_TRACE.make_dataset(records.rows([arrival_file, run_file]), origin=origin)


def _read_seconds(path: Path) -> tuple[TextFile, dict[str, str | None]]:
    """Read a JSON file of MISO, with the seconds of each job as text by job number."""
    file, items = read_items(path, ())
    values = [item.value for item in items]
    if len(values) != 1 or not isinstance(values[0], dict):
        expected, todo = "one object of job numbers and seconds", "Is it the right file?"
        raise TraceFormatError(str(path), expected, "something else", todo)
    return file, {job: None if value is None else str(value) for job, value in values[0].items()}


PAI_COLUMNS_BY_TABLE = {
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
"""Table of the Alibaba PAI trace (job, task, instance) → its columns, since the files have no header line; each table
has another number of them."""

FIELD_BY_PAI_JOB_COLUMN = source_columns("pai_job")
"""Column of PAI's job table → how it is parsed; `start_time` is the submission [s]."""
FIELD_BY_PAI_TASK_COLUMN = source_columns("pai_task")
"""Column of PAI's task table → how it is parsed; `plan_gpu` is the % of one GPU that each instance requests."""
FIELD_BY_PAI_INSTANCE_COLUMN = source_columns("pai_instance")
"""Column of PAI's instance table → how it is parsed; times are in seconds."""

STATE_BY_PAI_STATUS = source_values("pai status")
"""Status of a PAI task → state in the job table."""
PAI_REQUESTED_GPUS_EXPR = pl.col("percent") / 100
"""GPUs that one instance of a PAI task requests; the source has % of a GPU."""
PAI_TASK_INSTANCE_GPUS_EXPR = (
    pl.when(pl.col("gpu_model") == "CPU")
    .then(PAI_REQUESTED_GPUS_EXPR.fill_null(0.0))
    .otherwise(PAI_REQUESTED_GPUS_EXPR)
)
"""GPUs of one instance of a PAI task; 0 for an instance on CPU nodes that requests none."""

PAI_TASKS_TRACE = JobTrace(
    "pai",
    FIELD_BY_PAI_TASK_COLUMN,
    origin=FIRST_INSTANT,
    steps=[
        {
            "job_id": pl.concat_str("job_name", "task_name", separator="/"),
            "tenant": pl.col("user").fill_null("pai"),
            "gpus": PAI_TASK_INSTANCE_GPUS_EXPR * pl.col("workers"),
        }
    ],
    checks=[source_check("pai: no submission", pl.col("no_submission")), GPU_FRACTION_CHECK],
)
"""How PAI's task table becomes a job table: a task is a job, named ``job/task``."""


def detect_pai_table(lines: Sequence[str]) -> str | None:
    """Detect which of the three PAI tables a file is, from its first lines; None if it is none.

    Examples
    --------
    >>> detect_pai_table(["4f05,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC"])
    'task'
    """
    for name, columns in PAI_COLUMNS_BY_TABLE.items():
        fields = lines[0].split(",") if lines else []
        status = columns.index("status")
        if len(fields) == len(columns) and (fields[status] in STATE_BY_PAI_STATUS or tuple(fields) == columns):
            return name
    return None


@register_sniffer(lambda lines: detect_pai_table(lines) is not None)
def read_pai(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read PAI tables: the task table, and better with the job table and the instance table.

    A task is a job of the dataset, named job/task, since each has GPUs, times and a state of its own. The job
    table gives the user and the submission, the instance table the machines.

    Parameters
    ----------
    paths : sequence of str or Path
        Tables without header lines, in any order.
    origin : datetime or str, optional
        Time of second 0.

    Returns
    -------
    Dataset

    Raises
    ------
    TraceFormatError
        If there is no task table.

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
    paths_by_table = _group_by_table(paths)
    task_rows = _read_pai_table("task", paths_by_table["task"], FIELD_BY_PAI_TASK_COLUMN)
    rows = map_source_states(task_rows, STATE_BY_PAI_STATUS)
    side_columns = {"job": FIELD_BY_PAI_JOB_COLUMN, "instance": FIELD_BY_PAI_INSTANCE_COLUMN}
    given = {name: columns for name, columns in side_columns.items() if paths_by_table[name]}
    read_tables = {name: _read_pai_table(name, paths_by_table[name], columns) for name, columns in given.items()}
    tasks = _add_instance_machines(_add_job_submissions(rows.good, read_tables.get("job")), read_tables.get("instance"))
    rows = replace(rows, good=tasks)
    rows = rows.reject({"start_time: missing, and the submission is not known": pl.col("submit_s").is_null()})
    return PAI_TASKS_TRACE.make_dataset(
        rows,
        origin=origin,
        checks=[source_check("pai: shifted dates", pl.lit(value=True))] if origin is None else [],
        notes=[
            f"pai_{name}_table: {table.count} rows, {table.rejects.height} of them unreadable"
            for name, table in read_tables.items()
        ],
        more_files=[file for table in read_tables.values() for file in table.files],
    )


def _group_by_table(paths: Sequence[str | Path]) -> dict[str, list[str | Path]]:
    """Group paths by the PAI table (job, task, instance) that they hold; refuse them without the task table."""
    paths_by_table: dict[str, list[str | Path]] = {name: [] for name in PAI_COLUMNS_BY_TABLE}
    for path in paths:
        lines = read_head(path)
        paths_by_table[detect_pai_table(lines) or "task"].append(path)
    if not paths_by_table["task"]:
        expected, todo = "pai_task_table, which holds the GPUs", "Give it with the other tables."
        got = examples([str(path) for path in paths]) or "no files"
        raise TraceFormatError("pai", expected, got, todo)
    return paths_by_table


def _read_pai_table(table: str, paths: Sequence[str | Path], columns: Mapping[str, Field]) -> Rows:
    """Read the files of one PAI table, with or without header lines."""
    names = PAI_COLUMNS_BY_TABLE[table]
    dialect = Dialect(
        names=lambda lines: None if lines[0].split(",")[0] == names[0] else names,
        hint=f"The columns are those of pai_{table}_table: {', '.join(names)}.",
    )
    return read_rows(paths, columns, source=f"pai_{table}_table", dialect=dialect)


def _add_job_submissions(tasks: pl.DataFrame, jobs: Rows | None) -> pl.DataFrame:
    """Add user and submission time of the PAI job to each task; the start of the task if its job is missing."""
    if jobs is None:
        with_jobs = tasks.with_columns(user=pl.lit(None, pl.String), submit_s=pl.lit(None, pl.Float64))
    else:
        submissions = jobs.good.unique("job_name", keep="first", maintain_order=True)
        submissions = submissions.select("job_name", "user", "submit_s")
        with_jobs = tasks.join(submissions, on="job_name", how="left", maintain_order="left")
    submit_s = pl.coalesce("submit_s", "start_s")
    return with_jobs.with_columns(no_submission=pl.col("submit_s").is_null(), submit_s=submit_s)


def _add_instance_machines(tasks: pl.DataFrame, instances: Rows | None) -> pl.DataFrame:
    """Add to each PAI task the machines on which its instances ran."""
    if instances is None:
        return tasks
    task, machine = ["job_name", "task_name"], pl.col("machine").unique().sort()
    by_task = instances.good.drop_nulls("machine").group_by(task)
    machines = by_task.agg(nodes=machine.len(), node_list=machine.str.join(","))
    return tasks.join(machines, on=task, how="left", maintain_order="left")


FIELD_BY_SUPERCLOUD_COLUMN = source_columns("supercloud")
"""Column of the MIT Supercloud job table → how it is parsed. Times in epoch seconds, 0 for none; `timelimit` in
minutes. `mem_req` is not read: with bit 63 set it is MB per CPU and no longer exact. `gres_used` is always empty.
The table has no account: the user is the tenant."""

TRES_NAMES_IN_CODE_ORDER = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
"""Slurm's names of trackable resources (TRES) with codes 1 to 8."""
TRES_NAME_BY_CODE = {
    **{str(code): name for code, name in enumerate(TRES_NAMES_IN_CODE_ORDER, 1)},
    **{"1001": "gres/gpu:tesla", "1002": "gres/gpu:volta"},
}
"""Code of a trackable resource (TRES) → its name: below 1000 those of Slurm, from there those of MIT Supercloud."""

SUPERCLOUD_CHECKS = (
    source_check("supercloud: shared id", pl.col("twin") > 0),
    source_check("supercloud: rounded user", pl.col("id_user").is_not_null()),
    source_check("supercloud: suspended", pl.col("suspended_s") > 0),
)
"""Checks of the quality report for job tables of MIT Supercloud."""


@register_sniffer(has_required_columns(FIELD_BY_SUPERCLOUD_COLUMN))
def read_supercloud(paths: Sequence[str | Path]) -> Dataset:
    r"""Read job tables of MIT Supercloud.

    The ids of the source were rounded and collide: a job is named after its id, array task, user and submission
    [epoch s], none of which change from one export to the next.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files.

    Returns
    -------
    Dataset

    References
    ----------
    Samsi et al., *The MIT Supercloud Dataset*, HPEC 2021.

    Examples
    --------
    >>> import tempfile
    >>> header = "id_job,state,time_submit,time_start,time_end,tres_alloc"
    >>> row = '8.0e12,3,1609535912,1609535920,1609543120,"1=20,2=170000,4=1,5=20,1002=2"'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "slurm-log.csv"
    ...     _ = path.write_text(f"{header}\n{row}\n{row}\n")
    ...     trace = read_supercloud([path])
    >>> trace.jobs["job_id", "gpus", "gpu_model"].rows()
    [('8000000000000-1609535912', 2.0, 'volta'), ('8000000000000-1609535912#2', 2.0, 'volta')]
    >>> trace.summary()["gpu_hours"]
    8.0
    """
    rows = read_rows(paths, FIELD_BY_SUPERCLOUD_COLUMN, source="supercloud")
    numbered_states = facts("slurm_states").drop_nulls("number").select(pl.col("number").cast(pl.Float64), "ours")
    state_by_number = dict(numbered_states.iter_rows())
    number = pl.col("state_number")
    rows = rows.reject({"state: not a number of a state of Slurm": ~number.is_in(list(state_by_number))})
    rows = _with_resource_names(rows)
    user = _integer_text("id_user")
    task = "_" + _integer_text("array_task")
    job_id_parts = (_integer_text("id_job"), task, "-" + user, "-" + format_number("submit_s"))
    jobs = rows.good.with_columns(
        job_id=pl.concat_str(*job_id_parts, ignore_nulls=True),
        attempt=pl.lit(1),
        account=user,
        user=user,
        node_list=pl.col("node_list").str.replace_all(r"[\[\]' ]", ""),
        state=number.replace_strict(state_by_number, return_dtype=pl.String),
        limit_min=_integer_text("limit_min"),
        limit=pl.lit(None, pl.String),
        **{f"{name}_time": _epoch_to_time(f"{name}_s") for name in ("submit", "start", "end")},
    )
    rows = replace(rows, good=jobs).reject({"time_submit: missing": pl.col("submit_time").is_null()})
    rows = parse_resources(rows)
    rows = replace(rows, good=number_shared_ids(rows.good))
    return assemble_jobs(rows, source="supercloud", checks=SUPERCLOUD_CHECKS)


def _with_resource_names(rows: Rows) -> Rows:
    """Write resources in Slurm's names: ``1=20,1002=2`` becomes ``cpu=20,gres/gpu:volta=2``.

    Each different text is converted once.
    """
    names = ("alloc_tres", "req_tres")
    texts = pl.concat([rows.good[name] for name in names]).drop_nulls().unique().to_list()
    renamed = {text: _name_tres_codes(text) for text in texts}
    unreadable = [text for text, new_text in renamed.items() if new_text is None]
    is_faulty = pl.any_horizontal(pl.col(names).is_in(unreadable))
    rows = rows.reject({"tres: not a list of code=count with known codes": is_faulty})
    return rows.with_columns(pl.col(names).replace_strict(renamed, return_dtype=pl.String))


def _name_tres_codes(text: str) -> str | None:
    """Replace the codes in a TRES text by names; None if it is no TRES text, or has an unknown code."""
    pairs = [item.partition("=") for item in text.split(",")]
    if any(code not in TRES_NAME_BY_CODE or not (count.isascii() and count.isdigit()) for code, _, count in pairs):
        return None
    return ",".join(f"{TRES_NAME_BY_CODE[code]}={count}" for code, _, count in pairs)


def _integer_text(column: str) -> pl.Expr:
    """Format a column of whole numbers as text; null for Slurm's numbers for "not set" and "unlimited"."""
    value = pl.col(column)
    is_set = ~value.is_in([float(mark) for mark in SLURM_UNSET_NUMBERS])
    return pl.when(is_set).then(value.cast(pl.Int64, strict=False)).cast(pl.String)


def _epoch_to_time(column: str) -> pl.Expr:
    """Convert a column of epoch seconds to times; null for 0, which means no time."""
    return (pl.when(pl.col(column) > 0).then(pl.col(column) * 1e6)).cast(pl.Int64).cast(UTC_TIME_DTYPE)
