"""Slurm accounting: text of ``sacct --parsable2``, with or without a header line, or ``sacct --json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.catalog.loader import export_command
from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, RUN_S, Check, Finding
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Dialect, Field
from gpuplanner.inbox.core.lines.json_items import is_json
from gpuplanner.inbox.core.lines.reading import read_row_blocks, read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks
from gpuplanner.inbox.core.lines.text_file import MAX_BYTES, MAX_STREAM_BYTES, head
from gpuplanner.inbox.core.long_rows import LongRows
from gpuplanner.inbox.core.source import header_has, looks
from gpuplanner.inbox.core.table_rows import assemble_reading
from gpuplanner.inbox.core.times import MAX_SECONDS, known_zone, seconds
from gpuplanner.inbox.slurm.accounting_rows import (
    SEEN_AGAIN,
    derived_times,
    with_attempts,
    with_our_states,
    with_resources,
    with_times,
)
from gpuplanner.inbox.slurm.fields import NO_VALUE, duration_s, known_fields, looks_like_slurm
from gpuplanner.inbox.slurm.inventory import read_inventory
from gpuplanner.inbox.slurm.measured_use import of_cluster, several_clusters, step_use, with_use
from gpuplanner.inbox.slurm.sacct_json import LIVE, REPAIRED, read_slurm_json

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
        "several boards in one job",
        "warning",
        "they are joined by '|'; figures per board leave such jobs out",
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

    def with_measured_use(rows: Rows) -> Rows:
        # Tasks of arrays are known by their own number where a prolog names the job to telemetry.
        names = rows.good.select(name="job_id_raw", job_id="job_id")
        named.append(names.filter(pl.col("name") != pl.col("job_id")))
        return with_use(rows, used, several=len(clusters) > 1)

    rows = _read(paths, columns, read, into)
    derived, time_checks = derived_times(times.keys() - given)
    rows = with_attempts(rows.then(with_requests)).then(with_measured_use)
    inventory, node_file = (None, None) if nodes is None else read_inventory(nodes, boards)
    trace = assemble(
        rows,
        source="slurm",
        time_zone=zone,
        last_seen=pl.when(pl.col("end_time").is_null()).then(
            pl.col("start_time") + seconds(pl.col("elapsed_s"))
        ),
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


def _read(
    paths: Sequence[str | Path],
    columns: Sequence[str] | None,
    step: Callable[[Rows], Rows],
    room: Path | None,
) -> LongRows:
    """The fields of sacct, taken through a step, from files that are all JSON or all text."""
    json = [str(path) for path in paths if is_json(head(path))]
    text = [str(path) for path in paths if str(path) not in json]
    if json and text:
        got = f"JSON in {examples(json)} and text in {examples(text)}"
        raise TraceFormatError(message("slurm", "files of one form", got, "Read each form on its own."))
    if json:
        return LongRows.of([step(read_slurm_json(paths, COLUMN_MAP))])
    dialect = SACCT if columns is None else replace(SACCT, names=lambda _: columns)
    blocks = FileBlocks(paths, limit=MAX_BYTES if room is None else MAX_STREAM_BYTES, tables=dialect.tables)
    parts = read_row_blocks(blocks, COLUMN_MAP, source="slurm", dialect=dialect)
    found = LongRows.of((step(part) if part.good.width else part for part in parts), room)
    found.files = tuple(blocks.files)
    return found


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
LISTING = Dialect(separator="|", quotes=False)
STEP_OF_A_JOB = "step of a job"
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
    rows = rows.reject({STEP_OF_A_JOB: pl.col("job_id").str.contains(".", literal=True)})
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
