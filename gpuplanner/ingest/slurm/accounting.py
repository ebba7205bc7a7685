"""Readers of Slurm accounting: ``sacct`` output as text or JSON, and the limits of associations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schema_checks import conform, make_empty_table
from gpuplanner.core.schemas import QueueQuotas
from gpuplanner.hardware.catalog import export_command
from gpuplanner.hardware.gpu_model_names import parse_device_name
from gpuplanner.ingest.chunked_tables import JOINED_PIECE_REASON, ChunkedRows
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.delimited_rows import Record, Rows, raise_fault
from gpuplanner.ingest.quality_report import AMBIGUOUS_TIME_CHECK, RUN_S_EXPR, source_check, source_finding
from gpuplanner.ingest.slurm.accounting_fields import (
    DUPLICATE_SUBMISSION_REASON,
    SLURM_NULL_TEXTS,
    SLURM_UNSET_NUMBERS,
    TYPED_GPU_TRES_PATTERN,
    derive_missing_times,
    detect_fields,
    join_gpu_use,
    looks_like_sacct,
    map_states,
    number_attempts,
    parse_duration_s,
    parse_resources,
    parse_times,
    read_step_use,
    with_cluster_prefix,
)
from gpuplanner.ingest.slurm.node_records import read_inventory
from gpuplanner.ingest.source_definition import has_header_columns, register_sniffer
from gpuplanner.ingest.source_fields import (
    Dialect,
    seconds_to_duration,
    source_columns,
    source_values,
    validate_time_zone,
)
from gpuplanner.ingest.table_assembly import assemble_jobs, assemble_table
from gpuplanner.ingest.text_files import MAX_STREAM_BYTES, MAX_TEXT_BYTES, FileBlocks, read_head
from gpuplanner.ingest.typed_row_reader import looks_like_json, read_item_records, read_row_blocks, read_rows

FIELD_BY_ASSOCIATION_COLUMN = source_columns("slurm_associations")
"""Column of ``sacctmgr show associations`` → field that it is read into."""

ROOT_ACCOUNT = "root"
"""Account at the top of every Slurm association tree."""

PIPE_DIALECT = Dialect(separator="|", quotes=False)
"""Format of ``--parsable2``: fields between vertical bars, without quotation marks."""


@register_sniffer(has_header_columns(("Account", "User", "Share", "GrpTRES"), "|"))
def read_slurm_associations(paths: Sequence[str | Path]) -> Dataset:
    r"""Read the GPU limits (GrpTRES) and fair shares of Slurm accounts into the table of quotas.

    GrpTRES is a hard limit, so an account with one borrows nothing.

    Parameters
    ----------
    paths : sequence of str or Path
        Output of ``sacctmgr --parsable2 show associations``.

    Returns
    -------
    Dataset
        With the table ``queue_quotas``. [GPUs]

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
    rows = read_rows(paths, FIELD_BY_ASSOCIATION_COLUMN, source="slurm-associations", dialect=PIPE_DIALECT)
    has_gpu_limit = pl.col("tres").fill_null("").str.contains(r"gres/gpu(?::[^=,]+)?=\d")
    has_share = pl.col("share").str.contains(r"^[1-9]\d*$").fill_null(value=False)
    skipped = {
        "root stands for the whole cluster, not for a team": pl.col("tenant") == ROOT_ACCOUNT,
        "of a user: accounts are the teams": pl.col("user").is_not_null(),
        "neither a number of GPUs nor a share": ~has_gpu_limit & ~has_share,
    }
    rows = rows.reject(skipped)
    if "cohort" not in rows.good.columns:
        rows = rows.with_columns(cohort=pl.lit(None, pl.String))

    def make_quotas(good: pl.DataFrame) -> pl.DataFrame:
        """Make the table of quotas from the good rows."""
        quotas = [row for association in good.iter_rows(named=True) for row in _quota_rows(association)]
        table = pl.DataFrame(quotas, infer_schema_length=None) if quotas else make_empty_table(QueueQuotas)
        return conform(table, QueueQuotas, source="slurm-associations")

    return assemble_table(
        rows, "queue_quotas", source="slurm-associations", sort_columns=("tenant", "resource"), reshape=make_quotas,
        row_word="account with a limit or a share", span_columns=(), harmless_reasons=tuple(skipped),
    )  # fmt: skip


def _quota_rows(association: dict[str, Any]) -> list[dict[str, Any]]:
    """Make a row of the table of quotas for each GPU type in the GrpTRES of an association, or one for all types."""
    parent = association["cohort"]
    share = association["share"] or ""
    cohort = None if parent == ROOT_ACCOUNT else parent
    weight = float(share) if share.isdigit() else None
    account = {"tenant": association["tenant"], "cohort": cohort, "flavor": None, "lend": None, "weight": weight}

    tres_items = (association["tres"] or "").split(",")
    amounts = dict(item.split("=", 1) for item in tres_items if "=" in item)
    matches = {name: TYPED_GPU_TRES_PATTERN.fullmatch(name) for name in amounts}
    gpus_by_type = {match[1]: float(amounts[name]) for name, match in matches.items() if match}

    if not gpus_by_type:
        gpus = float(amounts["gres/gpu"]) if "gres/gpu" in amounts else None
        return [account | {"resource": "gres/gpu", "nominal": gpus, "borrow": None if gpus is None else 0.0}]

    rows = []
    for gpu_type, gpus in gpus_by_type.items():
        device = parse_device_name(gpu_type)
        resource = {"resource": f"gres/gpu:{gpu_type}", "gpu_model": device.gpu_model, "profile": device.profile}
        rows.append(account | resource | {"nominal": gpus, "borrow": 0.0})
    return rows


JOB_LIST_JSON_KEYS = ("jobs", "data", "attributes", "slurm_jobs")
"""Keys of a JSON document that hold its list of jobs."""

START_REPAIRED_COLUMN = "start repaired"
"""Column that marks jobs in sacct JSON whose stated start was the time at which they became eligible."""

FROM_SQUEUE_COLUMN = "shown by squeue"
"""Column that marks jobs of ``squeue --json``, which shows the jobs that are pending or running at one moment."""

SACCT_JSON_KEY_BY_FIELD = source_values("sacct json")
"""Field of sacct's text output → key of that text in a job of ``sacct --json``."""

SONAR_JSON_KEY_BY_FIELD = source_values("sonar json")
"""Field of sacct's text output → key of that text in a job of NordicHPC Sonar."""

SQUEUE_JSON_KEY_BY_FIELD = source_values("squeue json")
"""Field of sacct's text output → key of that text in a job of ``squeue --json``."""

SQUEUE_JSON_KEY_BY_TIME_FIELD = {name: f"{name.lower()}_time" for name in ("Submit", "Eligible", "Start", "End")}
"""Time field of sacct's text output → key of that time [epoch s] in a job of ``squeue --json``."""

UNFINISHED_SLURM_STATES = ("RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING")
"""States in which squeue prints, as the end of a job, the time at which it reaches its time limit."""

SACCT_JSON_TIME_PATHS = ("time.start", "time.eligible", "time.end", "time.elapsed", "time.suspended")
"""Paths of the times of a job or step in sacct's JSON: three instants [epoch s] and two durations [s]."""


def _parse_json_job(job: Any) -> list[Record]:  # noqa: ANN401 - what JSON can hold
    """Parse a job in JSON to sacct fields, by the program that wrote it: squeue, Sonar or sacct."""
    if not isinstance(job, dict) or "job_id" not in job:
        raise_fault("not a job: no object with a job_id")
    if "tres_req_str" in job:
        return [_parse_squeue_job(job)]
    if "job_state" in job:
        return [_parse_sonar_job(job)]
    record = _parse_sacct_job(job)
    return [record, *_parse_step_use(job, record)]


def _parse_sacct_job(job: Mapping[str, Any]) -> Record:
    """Parse a job that slurmdbd printed as JSON, by data_parser or by one of the older openapi plugins.

    The plugins up to dbv0.0.39 print the time at which a job became eligible as its start. Where the two
    are equal and the elapsed time contradicts them, the elapsed time is right: it leaves out only the time
    suspended. For a job that still runs, its running steps show when sacct was run.

    References
    ----------
    SchedMD/slurm: src/plugins/openapi/dbv0.0.37/parse.c (``parse_job``) and src/plugins/data_parser.
    """
    start, eligible, end, elapsed, suspended = (_integer_at(job, path) for path in SACCT_JSON_TIME_PATHS)
    start_by_elapsed = None
    if start is not None and start == eligible and elapsed is not None:
        observed = end or _export_time(job)
        start_by_elapsed = None if observed is None else observed - elapsed - (suspended or 0)
    is_repaired = start_by_elapsed is not None and start is not None and start_by_elapsed > start + 1
    return {
        "JobID": _format_job_id(job),
        "State": _base_state(_value_at(job, "state.current", job.get("state"))),
        "Submit": _format_integer(_integer_at(job, "time.submission") or None),
        "Eligible": _format_integer(eligible or None),
        "Start": _format_integer(start_by_elapsed if is_repaired else start or None),
        "End": _format_integer(end or None),
        "AllocTRES": _format_tres(job, "tres.allocated"),
        "ReqTRES": _format_tres(job, "tres.requested"),
        **{column: _text_or_none(job.get(name)) for column, name in SACCT_JSON_KEY_BY_FIELD.items()},
        "WCKey": _text_or_none(_value_at(job, "wckey.wckey")),
        "ElapsedRaw": _format_integer(elapsed),
        "TimelimitRaw": _format_integer(_integer_at(job, "time.limit")),
        START_REPAIRED_COLUMN: "yes" if is_repaired else None,
    }


def _list_steps(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the steps of a job in sacct's JSON."""
    steps = job.get("steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _parse_step_use(job: Mapping[str, Any], record: Record) -> Iterator[Record]:
    """Yield the GPU use that Slurm measured for the steps of a job, which JSON calls their requested TRES."""
    for number, step in enumerate(_list_steps(job)):
        used = _format_tres({"tres.requested": _value_at(step, "tres.requested")}, "tres.requested.total")
        if "gres/gpuutil=" in (used or ""):
            use = {"TRESUsageInTot": used, "ElapsedRaw": _format_integer(_integer_at(step, "time.elapsed"))}
            yield {**record, "JobID": f"{record['JobID']}.{number}", **use}


def _parse_sonar_job(job: Mapping[str, Any]) -> Record:
    """Parse a job that NordicHPC Sonar wrote as JSON; its time limits are in s, plus 2 (0: not set, 1: unlimited)."""
    limit = _integer_at(job, "time_limit")
    elapsed = _integer_at(job, "sacct.ElapsedRaw")
    nodes = job.get("nodes") or []
    if not (isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)):
        raise_fault("nodes: not a list of names")
    step = _text_or_none(job.get("job_step"))
    return {
        "JobID": _format_job_id(job) + (f".{step}" if step else ""),
        "State": _base_state(job.get("job_state")),
        **{column: _text_or_none(job.get(name)) for column, name in SONAR_JSON_KEY_BY_FIELD.items()},
        "AllocTRES": _text_or_none(_value_at(job, "sacct.AllocTRES")) or _text_or_none(job.get("allocated_resources")),
        "NodeList": ",".join(nodes),
        "ElapsedRaw": _format_integer(elapsed),
        "TimelimitRaw": None if limit is None or limit < 2 else repr((limit - 2) / 60),
    }


def _parse_squeue_job(job: Mapping[str, Any]) -> Record:
    """Parse a job that ``squeue --json`` or ``scontrol show jobs --json`` printed, from Slurm 22.05 on.

    References
    ----------
    SchedMD/slurm: src/plugins/data_parser/v0.0.40/parsers.c, JOB_INFO.
    """
    if not isinstance(job.get("job_state"), list):
        raise_fault("squeue of Slurm before 22.05")
    state = _base_state(job["job_state"])
    times = {column: _integer_at(job, name) or None for column, name in SQUEUE_JSON_KEY_BY_TIME_FIELD.items()}
    times |= {"End": None} if state in UNFINISHED_SLURM_STATES else {}
    return {
        "JobID": _format_job_id(job),
        "State": state,
        **{column: _format_integer(time) for column, time in times.items()},
        **{column: _text_or_none(job.get(name)) for column, name in SQUEUE_JSON_KEY_BY_FIELD.items()},
        "TimelimitRaw": _format_integer(_integer_at(job, "time_limit")),
        FROM_SQUEUE_COLUMN: "yes",
    }


def _format_job_id(job: Mapping[str, Any]) -> str:
    """Format the job id as sacct prints it: 7, array task 7_3, pending tasks 7_[3-9], heterogeneous component 7+1."""
    job_id = _integer_at(job, "job_id")
    if job_id is None:
        raise_fault("job_id: missing")
    array_id = _integer_at(job, "array.job_id", "array_job_id")
    task_id = _integer_at(job, "array.task_id", "array_task_id")
    pending_tasks = _text_or_none(_value_at(job, "array.task", job.get("array_task_string")))
    if array_id and task_id is not None:
        return f"{array_id}_{task_id}"
    if pending_tasks:
        return f"{array_id or job_id}_[{pending_tasks}]"
    leader_id = _integer_at(job, "het.job_id", "het_job_id")
    offset = _integer_at(job, "het.job_offset", "het_job_offset")
    return f"{leader_id}+{offset or 0}" if leader_id else str(job_id)


def _export_time(job: Mapping[str, Any]) -> int | None:
    """Return when sacct was run [epoch s], from the first running step of a job; None if it has none."""
    for step in _list_steps(job):
        step_times = {"steps.time": step.get("time")}
        start, _, end, elapsed, suspended = (_integer_at(step_times, f"steps.{path}") for path in SACCT_JSON_TIME_PATHS)
        if start and elapsed is not None and not end:
            return start + elapsed + (suspended or 0)
    return None


def _format_tres(job: Mapping[str, Any], path: str) -> str | None:
    """Format the TRES list at a path as sacct does, ``gres/gpu:a100=2,node=1``; None if there is no list."""
    listed = _value_at(job, path)
    if listed is None or listed == []:
        return None
    if not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
        raise_fault(f"{path}: not a list of objects")
    items = []
    for item in listed:
        kind = _text_or_none(item.get("type"))
        name = _text_or_none(item.get("name"))
        count = _parse_integer(item.get("count"), f"{path}.count")
        if kind is None or count is None or "," in (name or ""):
            continue
        items.append(f"{kind}/{name}={count}" if name else f"{kind}={count}")
    return ",".join(items) or None


def _base_state(state: object) -> str | None:
    """Return the base state of a job; newer versions of Slurm print a list of it and its flags."""
    if isinstance(state, list):
        state = state[0] if state else None
    return _text_or_none(state)


def _integer_at(job: Mapping[str, Any], path: str, fallback_key: str = "") -> int | None:
    """Return the whole number at a path of a job, or else at the key that older versions of Slurm use."""
    return _parse_integer(_value_at(job, path, job.get(fallback_key) if fallback_key else None), path)


def _parse_integer(value: object, path: str) -> int | None:
    """Parse a whole number, plain or as ``{"set": true, "infinite": false, "number": 5}``; None if it is not set."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise_fault(f"{path}: not a whole number")
    return None if value in SLURM_UNSET_NUMBERS else value


def _format_integer(number: int | None) -> str | None:
    """Format a whole number as text; None stays None."""
    return None if number is None else str(number)


def _text_or_none(value: object) -> str | None:
    """Return the value of a JSON field if it is text and not empty, else None."""
    return value if isinstance(value, str) and value else None


def _value_at(job: Mapping[str, Any], path: str, default: object = None) -> Any:  # noqa: ANN401 - what JSON can hold
    """Return the value of a job at a path such as ``time.start``, or the default where the job lacks the path."""
    parent_key, _, key = path.rpartition(".")
    parent = job.get(parent_key) if parent_key else job
    return parent.get(key, default) if isinstance(parent, dict) else default


FIELD_BY_SACCT_COLUMN = source_columns("sacct")
"""Field of sacct → column that it is read into; Account is the tenant, QOS the tier, WCKey the project."""

PARSED_TEXT_COLUMNS = (
    *("slurm_state", "submit", "eligible", "start", "end", "elapsed"),
    *("tres_used", "tres_used_mean", "tasks"),
)
"""Text columns of sacct rows that are dropped once they are parsed."""

REQUIRED_FIELD_GROUPS = (
    ("JobID", "JobIDRaw"),
    ("Submit", "Eligible", "Start"),
    ("Start", "End"),
    ("End", "ElapsedRaw", "Elapsed"),
    ("AllocTRES", "ReqTRES"),
)
"""Groups of sacct fields; a file needs one field of each group, from which the others are derived."""

SACCT_DIALECT = Dialect(
    separator="|",
    quotes=False,
    names=detect_fields,
    free_tail=frozenset({"jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline"}),
    any_of=REQUIRED_FIELD_GROUPS,
    hint=f"JobID, State, Submit, Start, End and AllocTRES are needed: run {export_command('sacct')}.",
)
"""Format of sacct's text output, with or without header line."""

JOB_STEP_REASON = "step of a job: its GPUs are counted on the job row"
"""Reject reason of the rows of job steps."""

SACCT_CHECKS = (
    AMBIGUOUS_TIME_CHECK,
    source_check("slurm: start repaired", pl.col("repaired").is_not_null()),
    source_check("slurm: one moment", pl.col("live").is_not_null(), command=export_command("sacct")),
    source_check(
        "slurm: typed and untyped GPUs", (pl.col("types") > 0) & pl.col("alloc_tres").str.contains(r"(?:^|,)gres/gpu=")
    ),
    source_check("slurm: other typed GPUs", (pl.col("types") > 0) & (pl.col("typed") != pl.col("untyped"))),
    source_check("slurm: several GPU models", pl.col("gpu_model").str.contains("|", literal=True)),
    source_check("slurm: array of waiting tasks", pl.col("job_id").str.contains("[", literal=True)),
    source_check("slurm: measured use", pl.col("sm_activity").is_not_null()),
    source_check("slurm: no account", pl.col("account").is_null()),
    source_check("slurm: other elapsed time", (RUN_S_EXPR - pl.col("elapsed_s")).abs() > 1.0),
)
"""Checks of the quality report on jobs of Slurm accounting."""


@register_sniffer(looks_like_sacct)
def read_slurm(
    paths: Sequence[str | Path],
    *,
    tz: str | None = None,
    nodes: str | Path | None = None,
    columns: Sequence[str] | None = None,
    boards: Mapping[str, str] | None = None,
    into: Path | None = None,
) -> Dataset:
    r"""Read the jobs of Slurm accounting (sacct), as text or JSON.

    The fields may come in any order, as long as a job's id, state, times and GPUs follow from them (see
    :data:`REQUIRED_FIELD_GROUPS`). Put JobName last: it may contain the separator. Steps of jobs go to the reject
    table. A requeued job has one row per submission; these become its attempts.

    Parameters
    ----------
    paths : sequence of str or Path
        Files of one form: all text, or all JSON.
    tz : str, optional
        Time zone in which sacct ran. Needed unless times carry an offset or are epoch seconds, as in JSON or with
        ``SLURM_TIME_FORMAT=%s``.
    nodes : str or Path, optional
        Node list of the cluster; it becomes the inventory.
    columns : sequence of str, optional
        Names of the fields of text without header line; those of Sonar and Open XDMoD are detected.
    boards : mapping of str to str, optional
        GPU type in Slurm → GPU model.
    into : Path, optional
        Folder for the tables of jobs and rejects of files that are larger than the memory.

    Returns
    -------
    Dataset
        Jobs, with the inventory if `nodes` is given.

    Raises
    ------
    TraceFormatError
        If JSON and text are mixed, a field is missing, or times need a zone.

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
    zone = None if tz is None else validate_time_zone(tz)
    stated_times = set[str]()
    clusters = set[str]()
    step_use_frames: list[pl.DataFrame] = []
    job_name_frames: list[pl.DataFrame] = []
    time_columns = {name: FIELD_BY_SACCT_COLUMN[name].name for name in ("Submit", "Start", "End")}

    def prepare_rows(rows: Rows) -> Rows:
        """Parse states and times of a block, and note the fields, clusters and step use that it has."""
        stated_times.update(name for name, column in time_columns.items() if not rows.good[column].is_null().all())
        rows = rows.with_columns(job_id=pl.coalesce("job_id", "job_id_raw"))
        clusters.update(rows.good["cluster"].drop_nulls().unique())
        step_use_frames.extend(read_step_use(rows.good))
        rows = rows.reject({JOB_STEP_REASON: pl.col("job_id").str.contains(".", literal=True)})
        rows = rows.reject({"JobID: missing": pl.col("job_id").is_null()})
        elapsed = pl.coalesce("elapsed_s", parse_duration_s(pl.col("elapsed")))
        rows = map_states(parse_times(rows.with_columns(elapsed_s=elapsed), zone))
        # A job that is pending, or never had a node, has no start.
        was_started = (pl.col("state") != "PENDING") & (pl.col("node_list") != "None assigned").fill_null(True)
        rows = rows.with_columns(
            start_time=pl.when(was_started).then("start_time"),
            node_list=pl.when(~pl.col("node_list").is_in(SLURM_NULL_TEXTS)).then("node_list"),
            # Slurm marks the default key of a user with a star.
            project=pl.col("project").str.strip_prefix("*").replace("", None),
        )
        return replace(rows, good=rows.good.drop(*PARSED_TEXT_COLUMNS))

    def with_requests(rows: Rows) -> Rows:
        """Add derived times and requested resources, once all blocks have shown which fields are missing."""
        names = [with_cluster_prefix("job_id").alias("job_id")] if len(clusters) > 1 else []
        for column in (*names, *derived_columns):
            rows = rows.with_columns(column)
        return parse_resources(rows.reject({"Submit: missing": pl.col("submit_time").is_null()}))

    json_paths = [str(path) for path in paths if looks_like_json(read_head(path))]
    text_paths = [str(path) for path in paths if str(path) not in json_paths]
    if json_paths and text_paths:
        got = f"JSON in {examples(json_paths)} and text in {examples(text_paths)}"
        raise TraceFormatError("slurm", "files of one form", got, "Read each form on its own.")
    rows = ChunkedRows(None if json_paths else into)
    if json_paths:
        json_rows = read_item_records(paths, FIELD_BY_SACCT_COLUMN, _parse_json_job, JOB_LIST_JSON_KEYS)
        rows.add_rows(prepare_rows(json_rows))
    else:
        dialect = SACCT_DIALECT if columns is None else replace(SACCT_DIALECT, names=lambda _: columns)
        blocks = FileBlocks(paths, limit=MAX_TEXT_BYTES if into is None else MAX_STREAM_BYTES)
        for block_rows in read_row_blocks(blocks, FIELD_BY_SACCT_COLUMN, source="slurm", dialect=dialect):
            rows.add_rows(prepare_rows(block_rows) if block_rows.good.width else block_rows)
        rows.files = tuple(blocks.files)
    derived_columns, time_checks = derive_missing_times(time_columns.keys() - stated_times)
    attempts = number_attempts(rows.queue_steps(with_requests))
    add_use = partial(
        join_gpu_use,
        attempts=attempts,
        step_use_frames=step_use_frames,
        has_several_clusters=len(clusters) > 1,
        job_name_frames=job_name_frames,
    )
    rows.queue_steps(add_use)

    inventory, node_file, findings = (None, None, []) if nodes is None else read_inventory(nodes, boards)
    if len(clusters) > 1:
        findings.append(source_finding("slurm: several clusters", len(clusters), examples(sorted(clusters))))
    if unread_steps := sum(steps["percent"].null_count() for steps in step_use_frames):
        command = export_command("sacct")
        findings.append(source_finding("slurm: use a task", unread_steps, "TRESUsageInAve", command=command))
    last_observed = pl.col("start_time") + seconds_to_duration(pl.col("elapsed_s"))
    trace = assemble_jobs(
        rows,
        source="slurm",
        time_zone=zone,
        last_seen=pl.when(pl.col("end_time").is_null()).then(last_observed),
        checks=[*SACCT_CHECKS, *time_checks],
        findings_of_reader=findings,
        harmless_reasons=[JOB_STEP_REASON, DUPLICATE_SUBMISSION_REASON, JOINED_PIECE_REASON],
        inventory=inventory,
        boards=boards,
        any_device=True,
        extra_files=[] if node_file is None else [node_file],
        output_folder=into,
    )
    names = pl.concat(job_name_frames).unique("name", maintain_order=True).sort("name")
    return trace.with_tables(job_names=names if names.height else None)
