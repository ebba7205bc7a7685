"""Slurm accounting: ``sacct`` as text and JSON, and limits of associations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import OTHER_FILE, TraceFormatError, examples
from gpuplanner.core.schema_checks import conform, empty
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.hardware.catalog import export_command
from gpuplanner.hardware.gpu_model_names import parse_device
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Record, Records, Rows, refuse
from gpuplanner.ingest.job_table import assemble, assemble_reading
from gpuplanner.ingest.large_tables import LongRows
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME, RUN_S, Check, Finding
from gpuplanner.ingest.row_reader import is_json, read_items, read_row_blocks, read_rows
from gpuplanner.ingest.slurm.accounting_fields import (
    NO_VALUE,
    SEEN_AGAIN,
    TYPED_GPU,
    UNSET,
    attempts_of,
    derived_times,
    duration_s,
    known_fields,
    looks_like_slurm,
    of_cluster,
    several_clusters,
    step_use,
    with_our_states,
    with_resources,
    with_times,
    with_use,
)
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import header_has, looks
from gpuplanner.ingest.source_fields import MAX_SECONDS, Dialect, Field, known_zone, seconds
from gpuplanner.ingest.text_files import MAX_BYTES, MAX_STREAM_BYTES, FileBlocks, head

COLUMNS = {
    "Account": Field("tenant"),
    "User": Field("user", nullable=True),
    "Share": Field("share", nullable=True),
    "GrpTRES": Field("tres", nullable=True),
    "Par Name": Field("cohort", nullable=True, optional=True),
}
ROOT = "root"
LISTING = Dialect(separator="|", quotes=False)


@looks(header_has(("Account", "User", "Share", "GrpTRES"), "|"))
def read_slurm_associations(paths: Sequence[str | Path]) -> Dataset:
    r"""Read what accounts may hold at most and what share they have: GrpTRES is a ceiling, so nothing is borrowed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "assoc.txt"
    ...     _ = path.write_text("Account|Par Name|User|Share|GrpTRES\nads|web||40|gres/gpu:a100=16\nads||bob|1|\n")
    ...     table = read_slurm_associations([path]).tables["queue_quotas"]
    ...     table.select("tenant", "cohort", "gpu_model", "nominal", "borrow", "weight").rows()
    [('ads', 'web', 'a100', 16.0, 0.0, 40.0)]
    """
    rows = read_rows(paths, COLUMNS, source="slurm-associations", dialect=LISTING)
    limited = pl.col("tres").fill_null("").str.contains(r"gres/gpu(?::[^=,]+)?=\d")
    shared = pl.col("share").str.contains(r"^[1-9]\d*$").fill_null(value=False)
    skipped = {
        "root stands for the whole cluster, not for a team": pl.col("tenant") == ROOT,
        "of a user: accounts are the teams": pl.col("user").is_not_null(),
        "neither a number of GPUs nor a share": ~limited & ~shared,
    }
    rows = rows.reject(skipped)
    if "cohort" not in rows.good.columns:
        rows = rows.with_columns(cohort=pl.lit(None, pl.String))

    def quotas(good: pl.DataFrame) -> pl.DataFrame:
        found = [row for one in good.iter_rows(named=True) for row in _rows(one)]
        table = pl.DataFrame(found, infer_schema_length=None) if found else empty(QueueQuotas)
        return conform(table, QueueQuotas, where="slurm-associations")

    return assemble_reading(
        rows, "queue_quotas", source="slurm-associations", order=("tenant", "resource"), shape=quotas,
        what="account with a limit or a share", span=(), harmless=tuple(skipped),
    )  # fmt: skip


def _rows(one: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each type of GPU that is limited; of all types together where none is named."""
    parent, share = one["cohort"], one["share"] or ""
    known = {
        "tenant": one["tenant"], "cohort": None if parent == ROOT else parent, "flavor": None, "lend": None,
        "weight": float(share) if share.isdigit() else None,
    }  # fmt: skip
    amounts = dict(item.split("=", 1) for item in (one["tres"] or "").split(",") if "=" in item)
    typed = {name: TYPED_GPU.fullmatch(name) for name in amounts}
    some = {match[1]: float(amounts[name]) for name, match in typed.items() if match}
    if not some:
        whole = float(amounts["gres/gpu"]) if "gres/gpu" in amounts else None
        return [known | {"resource": "gres/gpu", "nominal": whole, "borrow": None if whole is None else 0.0}]
    devices = {word: parse_device(word) for word in some}
    return [
        known
        | {
            "resource": f"gres/gpu:{word}",
            "gpu_model": devices[word].gpu_model,
            "profile": devices[word].profile,
        }
        | {"nominal": number, "borrow": 0.0}
        for word, number in some.items()
    ]


LISTS = ("jobs", "data", "attributes", "slurm_jobs")
REPAIRED = "start repaired"
"""Column that marks jobs whose stated start is the time at which they became eligible."""

LIVE = "shown by squeue"
"""Column that marks jobs of ``squeue --json``, which shows what waits and runs at one moment."""

SACCT_TEXTS = {
    **{"Account": "account", "User": "user", "QOS": "qos", "JobName": "name"},
    **{"Partition": "partition", "NodeList": "nodes", "Cluster": "cluster"},
}
SONAR_TEXTS = {
    **{"Submit": "submit_time", "Start": "start_time", "End": "end_time", "ReqTRES": "requested_resources"},
    **{"Account": "account", "User": "user_name", "JobName": "job_name", "Partition": "partition"},
}
SQUEUE_TEXTS = {
    **{"Account": "account", "User": "user_name", "QOS": "qos", "JobName": "name", "Partition": "partition"},
    **{"NodeList": "nodes", "AllocTRES": "tres_alloc_str", "ReqTRES": "tres_req_str", "Cluster": "cluster"},
}
SQUEUE_TIMES = {name: f"{name.lower()}_time" for name in ("Submit", "Eligible", "Start", "End")}
"""Column of sacct → where its text, or its time, stands."""
HAS_NO_END = ("RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING")
"""States in which squeue shows as the end the time at which the limit of the job is reached."""

SPAN = ("time.start", "time.eligible", "time.end", "time.elapsed", "time.suspended")


def read_slurm_json(paths: Sequence[str | Path], columns: Mapping[str, Field]) -> Rows:
    """Read JSON into the fields that the text form of sacct has."""
    records, files = Records(columns), []
    for number, path in enumerate(paths):
        file, items = read_items(path, LISTS)
        files.append(file)
        listed = 0
        for item in items:
            listed += 1
            job = item.value
            if item.fault or not isinstance(job, dict) or "job_id" not in job:
                reason = item.fault or "not a job: no object with a job_id"
                records.reject(number, item.place, item.raw, reason)
                continue
            try:
                live = "tres_req_str" in job
                record = _squeue(job) if live else _sonar(job) if "job_state" in job else _sacct(job)
            except ValueError as error:
                records.reject(number, item.place, item.raw, str(error))
            else:
                records.add(number, item.place, item.raw, record)
        if not listed:
            raise TraceFormatError(str(path), "a list of jobs", "none", OTHER_FILE)
    return records.rows(files)


def _sacct(job: Mapping[str, Any]) -> Record:
    """Fields of a job as data_parser and the older openapi plugins of slurmdbd print it.

    The plugins up to dbv0.0.39 print the time at which a job became eligible as its start. Where the two
    are equal and the elapsed time tells otherwise, the elapsed time is right: it leaves out only the time
    suspended. For a job that still runs, its running steps tell when sacct was run.

    References
    ----------
    SchedMD/slurm: src/plugins/openapi/dbv0.0.37/parse.c (``parse_job``) and src/plugins/data_parser.
    """
    start, eligible, end, elapsed, suspended = (_number(job, where) for where in SPAN)
    told = None
    if start is not None and start == eligible and elapsed is not None:
        seen = end or _seen(job)
        told = None if seen is None else seen - elapsed - (suspended or 0)
    repaired = told is not None and start is not None and told > start + 1
    return {
        "JobID": _job_id(job),
        "State": _state(_at(job, "state.current", job.get("state"))),
        "Submit": _plain(_number(job, "time.submission") or None),
        "Eligible": _plain(eligible or None),
        "Start": _plain(told if repaired else start or None),
        "End": _plain(end or None),
        "AllocTRES": _tres(job, "tres.allocated"),
        "ReqTRES": _tres(job, "tres.requested"),
        **{column: _text(job.get(name)) for column, name in SACCT_TEXTS.items()},
        "ElapsedRaw": _plain(elapsed),
        "TimelimitRaw": _plain(_number(job, "time.limit")),
        REPAIRED: "yes" if repaired else None,
    }


def _sonar(job: Mapping[str, Any]) -> Record:
    """Fields of a job as NordicHPC Sonar writes it: limits in s, plus 2 (0: not set, 1: without limit)."""
    limit, elapsed = _number(job, "time_limit"), _number(job, "sacct.ElapsedRaw")
    nodes = job.get("nodes") or []
    if not (isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)):
        refuse("nodes: not a list of names")
    step = _text(job.get("job_step"))
    return {
        "JobID": _job_id(job) + (f".{step}" if step else ""),
        "State": _state(job.get("job_state")),
        **{column: _text(job.get(name)) for column, name in SONAR_TEXTS.items()},
        "AllocTRES": _text(_at(job, "sacct.AllocTRES")) or _text(job.get("allocated_resources")),
        "NodeList": ",".join(nodes),
        "ElapsedRaw": _plain(elapsed),
        "TimelimitRaw": None if limit is None or limit < 2 else repr((limit - 2) / 60),
    }


def _squeue(job: Mapping[str, Any]) -> Record:
    """Fields of a job as ``squeue --json`` or ``scontrol show jobs --json`` shows it, from Slurm 22.05 on.

    References
    ----------
    SchedMD/slurm: src/plugins/data_parser/v0.0.40/parsers.c, JOB_INFO.
    """
    if not isinstance(job.get("job_state"), list):
        refuse("squeue of Slurm before 22.05")
    state = _state(job["job_state"])
    times = {column: _number(job, name) or None for column, name in SQUEUE_TIMES.items()}
    times |= {"End": None} if state in HAS_NO_END else {}
    return {
        "JobID": _job_id(job),
        "State": state,
        **{column: _plain(time) for column, time in times.items()},
        **{column: _text(job.get(name)) for column, name in SQUEUE_TEXTS.items()},
        "TimelimitRaw": _plain(_number(job, "time_limit")),
        LIVE: "yes",
    }


def _job_id(job: Mapping[str, Any]) -> str:
    """The id that sacct prints as text: 7, 7_3 for a task of an array, 7_[3-9] for waiting ones, 7+1."""
    own = _number(job, "job_id")
    if own is None:
        refuse("job_id: missing")
    group = _number(job, "array.job_id", "array_job_id")
    task = _number(job, "array.task_id", "array_task_id")
    waiting = _text(_at(job, "array.task", job.get("array_task_string")))
    if group and task is not None:
        return f"{group}_{task}"
    if waiting:
        return f"{group or own}_[{waiting}]"
    leader = _number(job, "het.job_id", "het_job_id")
    offset = _number(job, "het.job_offset", "het_job_offset")
    return f"{leader}+{offset or 0}" if leader else str(own)


def _seen(job: Mapping[str, Any]) -> int | None:
    """When a job that still runs was observed, from its first running step."""
    steps = job.get("steps")
    for step in steps if isinstance(steps, list) else ():
        told = {"steps.time": step.get("time") if isinstance(step, dict) else None}
        start, _, end, elapsed, suspended = (_number(told, f"steps.{where}") for where in SPAN)
        if start and elapsed is not None and not end:
            return start + elapsed + (suspended or 0)
    return None


def _tres(job: Mapping[str, Any], where: str) -> str | None:
    """GPUs and nodes of a TRES list as sacct's text: ``gres/gpu:a100=2,node=1``; None if there is no list."""
    listed = _at(job, where)
    if listed is None or listed == []:
        return None
    if not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
        refuse(f"{where}: not a list of objects")
    items = []
    for item in listed:
        kind, name = _text(item.get("type")), _text(item.get("name"))
        count = _whole(item.get("count"), f"{where}.count")
        if kind is None or count is None or "," in (name or ""):
            continue
        items.append(f"{kind}/{name}={count}" if name else f"{kind}={count}")
    return ",".join(items) or None


def _state(stated: object) -> str | None:
    """The base state: newer versions print a list of it and its flags."""
    if isinstance(stated, list):
        stated = stated[0] if stated else None
    return _text(stated)


def _number(job: Mapping[str, Any], where: str, else_at: str = "") -> int | None:
    """A whole number of a job, which older versions have elsewhere."""
    return _whole(_at(job, where, job.get(else_at) if else_at else None), where)


def _whole(value: object, where: str) -> int | None:
    """A whole number, plain or as ``{"set": true, "infinite": false, "number": 5}``; None if it is not set."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        refuse(f"{where}: not a whole number")
    return None if value in UNSET else value


def _plain(number: int | None) -> str | None:
    return None if number is None else str(number)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _at(job: Mapping[str, Any], path: str, default: object = None) -> Any:  # noqa: ANN401 - what JSON can hold
    """What stands in a job at a path such as ``time.start``; the default where it has no such place."""
    above, _, name = path.rpartition(".")
    place = job.get(above) if above else job
    return place.get(name, default) if isinstance(place, dict) else default


COLUMN_MAP = {
    "JobID": Field("job_id", nullable=True, optional=True),
    "JobIDRaw": Field("job_id_raw", nullable=True, optional=True),
    "State": Field("slurm_state"),
    "Submit": Field("submit", nullable=True, optional=True),
    "Eligible": Field("eligible", nullable=True, optional=True),
    "Start": Field("start", nullable=True, optional=True),
    "End": Field("end", nullable=True, optional=True),
    "AllocTRES": Field("alloc_tres", nullable=True, optional=True),
    "ReqTRES": Field("req_tres", nullable=True, optional=True),
    "Account": Field("account", nullable=True, optional=True),
    "User": Field("user", nullable=True, optional=True),
    "QOS": Field("tier", nullable=True, optional=True),
    "JobName": Field("job_name", nullable=True, optional=True),
    "Partition": Field("partition", nullable=True, optional=True),
    "NodeList": Field("node_list", nullable=True, optional=True),
    "ElapsedRaw": Field("elapsed_s", "number", nullable=True, optional=True, high=MAX_SECONDS),
    "Elapsed": Field("elapsed", nullable=True, optional=True),
    "TimelimitRaw": Field("limit_min", nullable=True, optional=True),
    "Timelimit": Field("limit", nullable=True, optional=True),
    "Cluster": Field("cluster", nullable=True, optional=True),
    "TRESUsageInTot": Field("tres_used", nullable=True, optional=True),
    "AdminComment": Field("admin_comment", nullable=True, optional=True),
    REPAIRED: Field("repaired", nullable=True, optional=True),
    LIVE: Field("live", nullable=True, optional=True),
}
"""Fields of sacct that are read; the others are not. Account is the tenant, QOS the tier."""

TEXTS = ("slurm_state", "submit", "eligible", "start", "end", "elapsed", "tres_used")
"""Fields that are not looked at again once they are read."""

NEEDED = (
    ("JobID", "JobIDRaw"),
    ("Submit", "Eligible", "Start"),
    ("Start", "End"),
    ("End", "ElapsedRaw", "Elapsed"),
    ("AllocTRES", "ReqTRES"),
)
"""Of each group, a field list has at least one: what is left out must follow from the rest."""

SACCT = Dialect(
    separator="|",
    quotes=False,
    names=known_fields,
    free_tail=frozenset({"jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline"}),
    any_of=NEEDED,
    hint=f"JobID, State, Submit, Start, End and AllocTRES are needed: run {export_command('sacct')}.",
)

STEP = "step of a job: its GPUs are counted on the job row"

CHECKS = (
    AMBIGUOUS_TIME,
    Check(
        "the stated start is the time at which the job became eligible",
        "warning",
        "a fault of Slurm's JSON up to 23.02: the start was taken from the elapsed time",
        pl.col("repaired").is_not_null(),
    ),
    Check(
        "jobs of one moment, as squeue shows them",
        "warning",
        f"what ran before is missing: for the past run {export_command('sacct')}",
        pl.col("live").is_not_null(),
    ),
    Check(
        "typed and untyped GPUs of a job both given",
        "info",
        "none: the untyped count was taken, they were not added",
        (pl.col("types") > 0) & pl.col("alloc_tres").str.contains(r"(?:^|,)gres/gpu="),
    ),
    Check(
        "typed and untyped GPUs of a job differ",
        "warning",
        "GPU-hours follow the untyped count",
        (pl.col("types") > 0) & (pl.col("typed") != pl.col("untyped")),
    ),
    Check(
        "several GPU models in one job",
        "warning",
        "they are joined by '|'; figures by GPU model leave such jobs out",
        pl.col("gpu_model").str.contains("|", literal=True),
    ),
    Check(
        "array of waiting tasks on one row",
        "warning",
        "the row counts as one job: waiting demand is too low",
        pl.col("job_id").str.contains("[", literal=True),
    ),
    Check(
        "use of GPUs measured by Slurm or jobstats",
        "info",
        "none: it counts as measured where there is no telemetry",
        pl.col("sm_activity").is_not_null(),
    ),
    Check("no account", "warning", "put on tenant 'unknown'", pl.col("account").is_null()),
    Check(
        "elapsed time is not end - start",
        "warning",
        "the job was suspended or the time zone is wrong: GPU-hours follow start and end",
        (RUN_S - pl.col("elapsed_s")).abs() > 1.0,
    ),
)


@looks(looks_like_slurm)
def read_slurm(
    paths: Sequence[str | Path],
    *,
    tz: str | None = None,
    nodes: str | Path | None = None,
    columns: Sequence[str] | None = None,
    boards: Mapping[str, str] | None = None,
    into: Path | None = None,
) -> Dataset:
    r"""Read sacct output, as text or JSON.

    Any list of fields will do from which a job's id, state, times and GPUs follow, in any order (see
    :data:`NEEDED`). Put JobName last: it may contain the separator. Steps of jobs go to the reject table. A
    requeued job has one row per submission; these become its attempts. The zone is needed unless times carry an offset
    or are epoch seconds, as in JSON or with ``SLURM_TIME_FORMAT=%s``; `columns` name the fields of text without header
    line, of which the lists of Sonar and Open XDMoD are known; `boards`: type of a GPU in Slurm → board. With a
    folder `into`, text may be longer than the memory: jobs and rejects are written there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text(
    ...         "JobID|State|Submit|Start|End|AllocTRES\n"
    ...         "7|COMPLETED|2025-09-01T08:00:00|2025-09-01T09:00:00|2025-09-01T11:30:00|gres/gpu=2\n"
    ...         "7.batch|COMPLETED|2025-09-01T09:00:00|2025-09-01T09:00:00|2025-09-01T11:30:00|gres/gpu=2\n"
    ...     )
    ...     trace = read_slurm([path], tz="Europe/Oslo")
    >>> trace.jobs.height, trace.rejects.height, trace.provenance["gpu_hours"]
    (1, 1, 5.0)
    """
    zone = None if tz is None else known_zone(tz)
    given = set[str]()
    clusters = set[str]()
    used: list[pl.DataFrame] = []
    times = {name: COLUMN_MAP[name].name for name in ("Submit", "Start", "End")}

    def read(rows: Rows) -> Rows:
        given.update(name for name, column in times.items() if not rows.good[column].is_null().all())
        rows = rows.with_columns(job_id=pl.coalesce("job_id", "job_id_raw"))
        clusters.update(rows.good["cluster"].drop_nulls().unique())
        used.extend(step_use(rows.good))
        rows = rows.reject({STEP: pl.col("job_id").str.contains(".", literal=True)})
        rows = rows.reject({"JobID: missing": pl.col("job_id").is_null()})
        elapsed = pl.coalesce("elapsed_s", duration_s(pl.col("elapsed")))
        rows = with_our_states(with_times(rows.with_columns(elapsed_s=elapsed), zone))
        # A job that waits, or never had a node, has no start.
        placed = (pl.col("state") != "PENDING") & (pl.col("node_list") != "None assigned").fill_null(True)
        rows = rows.with_columns(
            start_time=pl.when(placed).then("start_time"),
            node_list=pl.when(~pl.col("node_list").is_in(NO_VALUE)).then("node_list"),
        )
        return replace(rows, good=rows.good.drop(*TEXTS))

    def with_requests(rows: Rows) -> Rows:
        names = [of_cluster("job_id").alias("job_id")] if len(clusters) > 1 else []
        for column in (*names, *derived):
            rows = rows.with_columns(column)
        return with_resources(rows.reject({"Submit: missing": pl.col("submit_time").is_null()}))

    named: list[pl.DataFrame] = []

    json = [str(path) for path in paths if is_json(head(path))]
    text = [str(path) for path in paths if str(path) not in json]
    if json and text:
        got = f"JSON in {examples(json)} and text in {examples(text)}"
        raise TraceFormatError("slurm", "files of one form", got, "Read each form on its own.")
    rows = LongRows(None if json else into)
    if json:
        rows.add(read(read_slurm_json(paths, COLUMN_MAP)))
    else:
        dialect = SACCT if columns is None else replace(SACCT, names=lambda _: columns)
        blocks = FileBlocks(paths, limit=MAX_BYTES if into is None else MAX_STREAM_BYTES)
        for part in read_row_blocks(blocks, COLUMN_MAP, source="slurm", dialect=dialect):
            rows.add(read(part) if part.good.width else part)
        rows.files = tuple(blocks.files)
    derived, time_checks = derived_times(times.keys() - given)
    attempts = attempts_of(rows.then(with_requests))
    rows.then(partial(with_use, attempts=attempts, used=used, several=len(clusters) > 1, named=named))
    inventory, node_file = (None, None) if nodes is None else read_inventory(nodes, boards)
    seen_running = pl.col("start_time") + seconds(pl.col("elapsed_s"))
    trace = assemble(
        rows,
        source="slurm",
        time_zone=zone,
        last_seen=pl.when(pl.col("end_time").is_null()).then(seen_running),
        checks=[*CHECKS, *time_checks],
        findings=[several_clusters(clusters)] if len(clusters) > 1 else [],
        harmless=[STEP, SEEN_AGAIN],
        inventory=inventory,
        boards=boards,
        any_device=True,
        more_files=[] if node_file is None else [node_file],
        into=into,
    )
    names = pl.concat(named).unique("name", maintain_order=True).sort("name")
    return trace.with_tables(job_names=names if names.height else None)


NAMED = ("JobID", "State")
TIMES = ("Submit", "Eligible", "Start", "End")
STATE_COLUMNS = {
    "JobID": Field("job_id"),
    "State": Field("slurm_state"),
    "Account": Field("tenant", nullable=True, optional=True),
    "JobName": Field("job_name", nullable=True, optional=True),
    "Partition": Field("partition", nullable=True, optional=True),
    "AllocCPUS": Field("cpus", "number", nullable=True, optional=True, high=2**31 - 1),
    "ExitCode": Field("exit_code", nullable=True, optional=True),
}
NO_TIMES = f"no times and no GPUs: to read it as jobs run {export_command('sacct')}"


@looks(lambda lines: header_has(NAMED, "|")(lines) and not any(header_has([n], "|")(lines) for n in TIMES))
def read_slurm_states(paths: Sequence[str | Path]) -> Dataset:
    r"""Read sacct output that has no times, such as that of a plain ``sacct --parsable2``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "sacct.txt"
    ...     _ = path.write_text("JobID|Account|State\n7|vision|COMPLETED\n7.batch|vision|COMPLETED\n")
    ...     read_slurm_states([path]).table.select("job_id", "tenant", "state").rows()
    [('7', 'vision', 'COMPLETED')]
    """
    rows = read_rows(paths, STATE_COLUMNS, source="slurm-states", dialect=LISTING)
    rows = rows.reject({"step of a job": pl.col("job_id").str.contains(".", literal=True)})
    rows = with_our_states(rows)
    return assemble_reading(
        rows,
        "job_states",
        source="slurm-states",
        order=["job_id"],
        what="job",
        findings=[Finding("no times", "warning", rows.good.height, NO_TIMES, "")],
        totals={
            f"jobs_{name.lower()}": (pl.col("state") == name).sum()
            for name in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "RUNNING", "PENDING")
        },
        span=(),
        notes=[NO_TIMES],
    )
