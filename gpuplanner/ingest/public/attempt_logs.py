"""Public traces with attempts: Philly, Helios logs in JSON, Alibaba PAI, MIT Supercloud."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.hardware.catalog import facts
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Records, Rows
from gpuplanner.ingest.job_table import assemble
from gpuplanner.ingest.public.job_lists import IN_PARTS, PHILLY_ZONE, JobTrace, plain, told_apart, with_states
from gpuplanner.ingest.quality_report import source_check
from gpuplanner.ingest.row_reader import is_json, read_items, read_rows
from gpuplanner.ingest.slurm.accounting_fields import UNSET, with_resources
from gpuplanner.ingest.source_definition import columns_of, looks, matches
from gpuplanner.ingest.source_fields import FIRST_INSTANT, INSTANT, Dialect, Field, source_columns
from gpuplanner.ingest.text_files import TextFile, head

ODD = "not a job as the source documents it"
EARLIER, RAN = pl.col("again").is_not_null(), pl.col("start_time").is_not_null()

PHILLY_LOG = JobTrace(
    "philly",
    source_columns("philly_log"),
    zone=PHILLY_ZONE,
    states={"Pass": "COMPLETED", "Killed": "CANCELLED", "Failed": "FAILED"},
    steps=[
        {
            "state": pl.when(EARLIER)
            .then(pl.lit("FAILED"))
            .when(RAN & pl.col("end_time").is_null())
            .then(pl.lit("RUNNING"))
            .otherwise("state")
        }
    ],
    checks=[
        source_check("philly: another attempt", EARLIER),
        source_check("philly: never scheduled", pl.col("gpus").is_null()),
    ],
)
"""`vc`: virtual cluster; `ip`: servers; `again`: not empty for an attempt that was followed by another."""

ARRIVALS, RUNS = "trace", "exp"
"""Beginnings of the names of the two files of MISO: nothing inside tells them apart."""

MISO = JobTrace(
    "miso",
    source_columns("miso"),
    steps=[{"tenant": pl.lit("miso"), "gpus": pl.lit(None, pl.Float64)}],
    notes=["the row of a reject is the number of its job in the files"],
)
"""Number of the job; seconds from the start of the experiment; seconds of run time (Li et al., SoCC 2022)."""


def is_philly_log(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like ``cluster_job_log``."""
    text = "\n".join(lines)
    return is_json(lines) and all(f'"{name}"' in text for name in ("jobid", "vc", "attempts"))


@looks(is_philly_log)
def read_philly_log(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    """Read the Philly job log, ``cluster_job_log``: a row of the trace is one scheduling attempt.

    The status is that of the job, so it is given to the last attempt; those before it failed. A last attempt
    without an end still ran when the snapshot was taken. A job without attempts was never scheduled.

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
    records, files = Records(PHILLY_LOG.columns), []
    for number, path in enumerate(paths):
        file, items = read_items(path, ())
        files.append(file)
        for item in items:
            attempts = None if item.fault else _attempts(item.value)
            if attempts is None:
                records.reject(number, item.place, item.raw, item.fault or ODD)
            for attempt in attempts or ():
                records.add(number, item.place, item.raw, attempt)
    return PHILLY_LOG.of(records.rows(files), tz=tz)


def _attempts(job: Any) -> list[dict[str, str | None]] | None:  # noqa: ANN401 - anything that JSON can hold
    """Text of each column for each attempt of a job; None if it is not built as documented."""
    try:
        shared = {name: _text(job[name]) for name in ("jobid", "vc", "user", "status")}
        submitted, tries = _text(job["submitted_time"]), list(_tries(job["attempts"]))
    except (KeyError, TypeError, AttributeError):
        return None
    if not tries:
        return [shared | {"attempt": "1", "submitted_time": submitted}]
    ends = [submitted, *(attempt["end_time"] for attempt in tries)]
    attempts = []
    for number, attempt in enumerate(tries, 1):
        place = {"attempt": str(number), "submitted_time": ends[number - 1] or submitted}
        attempts.append(shared | attempt | place | {"again": "yes" if number < len(tries) else None})
    return attempts


def _tries(attempts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str | None]]:
    for attempt in attempts:
        places = [(place["ip"], place["gpus"]) for place in attempt["detail"]]
        if not all(isinstance(ip, str) and isinstance(gpus, list) for ip, gpus in places):
            raise TypeError
        yield {
            "start_time": _text(attempt["start_time"]),
            "end_time": _text(attempt["end_time"]),
            "gpus": str(sum(len(gpus) for _, gpus in places)) if places else None,
            "nodes": str(len({ip for ip, _ in places})) if places else None,
            "ip": ",".join(dict.fromkeys(ip for ip, _ in places)) or None,
        }


def _text(value: Any) -> str | None:  # noqa: ANN401 - anything that JSON can hold
    """A text; the source writes what is missing as null or "None"."""
    if value is None or value == "None":
        return None
    if not isinstance(value, str):
        raise TypeError
    return value


@looks(matches(r'\A\s*\{\s*"0"\s*:\s*\d'))
def read_miso(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    """Read the arrivals and the run times of the same jobs, a file each.

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
    parts = {
        role: [Path(path) for path in paths if Path(path).name.startswith(f"{role}_")] for role in (ARRIVALS, RUNS)
    }
    if [len(each) for each in parts.values()] != [1, 1] or len(paths) != 2:
        got = examples([str(path) for path in paths]) or "no files"
        expected = f"one {ARRIVALS}_*.json and one {RUNS}_*.json"
        raise TraceFormatError("miso", expected, got, "Give both together.")
    (first, arrivals), (second, runs) = (_seconds(part[0]) for part in parts.values())
    records = Records(MISO.columns)
    for place, job in enumerate(dict.fromkeys([*arrivals, *runs]), 1):
        row = {"job": job, "arrival": arrivals.get(job), "run": runs.get(job)}
        records.add(0 if job in arrivals else 1, place, f"{job}: {row['arrival']}, {row['run']}", row)
    return MISO.of(records.rows([first, second]), origin=origin)


def _seconds(path: Path) -> tuple[TextFile, dict[str, str | None]]:
    """Text of the seconds of each job."""
    file, items = read_items(path, ())
    values = [item.value for item in items]
    if len(values) != 1 or not isinstance(values[0], dict):
        expected, todo = "one object of job numbers and seconds", "Is it the right file?"
        raise TraceFormatError(str(path), expected, "something else", todo)
    return file, {job: None if value is None else str(value) for job, value in values[0].items()}


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
    checks=[source_check("pai: no submission", pl.col("no_submission")), IN_PARTS],
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
        expected, todo = "pai_task_table, which holds the GPUs", "Give it with the other tables."
        got = examples([str(path) for path in paths]) or "no files"
        raise TraceFormatError("pai", expected, got, todo)
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
        first = first.select("job_name", "user", "submit_s")
        known = tasks.join(first, on="job_name", how="left", maintain_order="left")
    submit_s = pl.coalesce("submit_s", "start_s")
    return known.with_columns(no_submission=pl.col("submit_s").is_null(), submit_s=submit_s)


def _placed(tasks: pl.DataFrame, instances: Rows | None) -> pl.DataFrame:
    """Tasks with the machines that their instances ran on."""
    if instances is None:
        return tasks
    task, machine = ["job_name", "task_name"], pl.col("machine").unique().sort()
    by_task = instances.good.drop_nulls("machine").group_by(task)
    machines = by_task.agg(nodes=machine.len(), node_list=machine.str.join(","))
    return tasks.join(machines, on=task, how="left", maintain_order="left")


COLUMN_MAP = source_columns("supercloud")
"""Times in epoch seconds, 0 for none; `timelimit` in minutes. `mem_req` is not read: with bit 63 set it is
MB per CPU and no longer exact. `gres_used` is always empty. The table has no account: the user is the tenant."""

SLURM_RESOURCES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
TRES_CODES = {str(code): name for code, name in enumerate(SLURM_RESOURCES, 1)}
TRES_CODES |= {"1001": "gres/gpu:tesla", "1002": "gres/gpu:volta"}
"""Code of a resource → its name. Below 1000 Slurm's own, from there those of this cluster."""

CHECKS = (
    source_check("supercloud: shared id", pl.col("twin") > 0),
    source_check("supercloud: rounded user", pl.col("id_user").is_not_null()),
    source_check("supercloud: suspended", pl.col("suspended_s") > 0),
)


@looks(columns_of(COLUMN_MAP))
def read_supercloud(paths: Sequence[str | Path]) -> Dataset:
    r"""Read job tables of MIT Supercloud.

    The ids of the source were rounded and collide: a job is named after its id, task of an array, user and submission
    [epoch s], none of which change while it lives.

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
    rows = read_rows(paths, COLUMN_MAP, source="supercloud")
    known = facts("slurm_states").drop_nulls("number").select(pl.col("number").cast(pl.Float64), "ours")
    words = dict(known.iter_rows())
    number = pl.col("state_number")
    rows = rows.reject({"state: not a number of a state of Slurm": ~number.is_in(list(words))})
    rows = _with_names_of_resources(rows)
    user = _whole("id_user")
    parts_of_id = (_whole("id_job"), "_" + _whole("array_task"), "-" + user, "-" + plain("submit_s"))
    jobs = rows.good.with_columns(
        job_id=pl.concat_str(*parts_of_id, ignore_nulls=True),
        attempt=pl.lit(1),
        account=user,
        user=user,
        node_list=pl.col("node_list").str.replace_all(r"[\[\]' ]", ""),
        state=number.replace_strict(words, return_dtype=pl.String),
        limit_min=_whole("limit_min"),
        limit=pl.lit(None, pl.String),
        **{f"{name}_time": _instant(f"{name}_s") for name in ("submit", "start", "end")},
    )
    rows = replace(rows, good=jobs).reject({"time_submit: missing": pl.col("submit_time").is_null()})
    rows = with_resources(rows)
    return assemble(replace(rows, good=told_apart(rows.good)), source="supercloud", checks=CHECKS)


def _with_names_of_resources(rows: Rows) -> Rows:
    """Resources as sacct prints them: 1=20,1002=2 → cpu=20,gres/gpu:volta=2. Each text is read once."""
    names = ("alloc_tres", "req_tres")
    texts = pl.concat([rows.good[name] for name in names]).drop_nulls().unique().to_list()
    named = {text: _named(text) for text in texts}
    faulty = [text for text, words in named.items() if words is None]
    is_faulty = pl.any_horizontal(pl.col(names).is_in(faulty))
    rows = rows.reject({"tres: not a list of code=count with known codes": is_faulty})
    return rows.with_columns(pl.col(names).replace_strict(named, return_dtype=pl.String))


def _named(text: str) -> str | None:
    """One TRES text with names for its codes; None if it is none, or has a code that may be a GPU."""
    pairs = [item.partition("=") for item in text.split(",")]
    if any(code not in TRES_CODES or not (count.isascii() and count.isdigit()) for code, _, count in pairs):
        return None
    return ",".join(f"{TRES_CODES[code]}={count}" for code, _, count in pairs)


def _whole(name: str) -> pl.Expr:
    """Text of a whole number; null where Slurm's number for "not set" or "without limit" stands."""
    value = pl.col(name)
    is_set = ~value.is_in([float(mark) for mark in UNSET])
    return pl.when(is_set).then(value.cast(pl.Int64, strict=False)).cast(pl.String)


def _instant(name: str) -> pl.Expr:
    """Epoch seconds; 0 stands for no time."""
    return (pl.when(pl.col(name) > 0).then(pl.col(name) * 1e6)).cast(pl.Int64).cast(INSTANT)
