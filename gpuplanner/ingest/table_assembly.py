"""The job table: sorting, duplicates, schema checks, and merging of exports of one source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import NAME_SOURCE_FIX, TraceFormatError, printable_file_name
from gpuplanner.core.schema_checks import check_table, conform, filter_rows
from gpuplanner.core.schemas import TABLES, Jobs
from gpuplanner.ingest.chunked_tables import (
    JOINED_PIECE_REASON,
    ORDERED_CHUNK_ROWS,
    ChunkedRows,
    join_run_pieces,
    write_chunks,
)
from gpuplanner.ingest.dataset import Dataset, gpu_hours
from gpuplanner.ingest.delimited_rows import REJECT_TABLE_SCHEMA, REPEATED_HEADER_REASON, Rows, unique_file_names
from gpuplanner.ingest.implausible_jobs_and_past_nodes import (
    NODE_INFERENCE_COLUMNS,
    QUARANTINE_PREFIX,
    QUARANTINE_REASONS,
    add_past_nodes,
    drop_quarantined,
    find_past_fleet_changes,
    find_quarantined_jobs,
    mark_quarantine,
    quarantine_facts,
    quarantine_findings,
    require_unquarantined,
)
from gpuplanner.ingest.job_gpu_counting import DeviceCounter
from gpuplanner.ingest.node_dump_history import merge_dated_inventories, merge_node_histories
from gpuplanner.ingest.quality_report import (
    JOB_LIST_CHECKS,
    UNSORTED_JOBS_CHECK,
    Check,
    Finding,
    add_unresolved_hours,
    build_quality_report,
    combine_findings,
    find_submission_gaps,
    open_end_and_blank_line_findings,
    reject_findings,
    run_checks,
)
from gpuplanner.ingest.source_fields import format_utc
from gpuplanner.ingest.text_files import TextFile

SUPERSEDED_REASON = "repeated by a later export"
"""Reason of a rejected row that a later export repeats; its line number is lost, its job is in ``raw``."""

ATTEMPT_KEY_COLUMNS = ("job_id", "attempt")
"""Columns of the job table that identify one scheduling attempt of a job."""


def merge_job_exports(exports: Sequence[Dataset]) -> Dataset:
    """Merge exports of one list of jobs; their order in `exports` does not matter.

    The export whose observation ends later is the later one; on a tie, the one whose file name sorts later. A job
    attempt that several exports have is taken from the latest of them, or joined of the pieces that they have of it;
    the other rows are rejected with a reason, so that every row is kept or accounted for. Inventory, quotas and
    out-of-service times are those of the latest export that has any.
    """
    ordered = sorted(
        exports, key=lambda export: (datetime.fromisoformat(export.provenance["span_end"]), _file_names_of(export))
    )
    _require_same_source(ordered)
    # In one piece: pl.format of polars 2.1 ends in a panic where a filter empties the first of several pieces.
    rows = pl.concat(
        [export.jobs.with_columns(part=pl.lit(number)) for number, export in enumerate(ordered)], rechunk=True
    )
    is_repeated = pl.len().over(ATTEMPT_KEY_COLUMNS) > 1
    repeated = join_run_pieces(rows.filter(is_repeated), ATTEMPT_KEY_COLUMNS)
    last_part = pl.col("part").filter(~pl.col("is_piece")).max().over(ATTEMPT_KEY_COLUMNS)
    is_latest = ~pl.col("is_piece") & (pl.col("part") == last_part)
    jobs = pl.concat([rows.filter(~is_repeated), repeated.filter(is_latest).drop("is_piece")], rechunk=True)
    older_rows = repeated.filter(~is_latest)
    dated = merge_dated_inventories([export.tables for export in ordered])
    inventory = dated["inventory"] if dated else _latest_table([export.inventory for export in ordered])
    jobs = mark_quarantine(jobs.drop("part").sort("submit_time", *ATTEMPT_KEY_COLUMNS), inventory)
    names_by_number = dict(enumerate(_file_names_of(export) for export in ordered))
    superseded = older_rows.select(
        file=pl.col("part").replace_strict(names_by_number, return_dtype=pl.String),
        row=pl.lit(None, pl.Int64),
        reason=pl.when("is_piece").then(pl.lit(JOINED_PIECE_REASON)).otherwise(pl.lit(SUPERSEDED_REASON)),
        raw=pl.format("job {}, attempt {}", "job_id", "attempt"),
    )
    rejects = pl.concat([*(export.rejects for export in ordered), superseded.cast(REJECT_TABLE_SCHEMA)])
    rejects = rejects.sort("file", "row", "raw", nulls_last=True, maintain_order=True)
    return Dataset(
        {"jobs": jobs},
        rejects,
        _merge_quality(ordered, jobs, superseded),
        _merge_provenance(ordered, jobs, rejects.height),
    ).with_tables(
        inventory=inventory,
        queue_quotas=_latest_table([export.quotas for export in ordered]),
        **merge_node_histories([export.tables for export in ordered]),
        job_names=_merge_job_names([export.tables.get("job_names") for export in ordered]),
    )


def _file_names_of(dataset: Dataset) -> str:
    """Join the names of the files that a dataset was read from."""
    return ", ".join(file["name"] for file in dataset.provenance["files"])


def _require_same_source(exports: Sequence[Dataset]) -> None:
    """Refuse exports of different sources or time zones."""
    kinds = {(export.provenance["source"], export.provenance["time_zone"]) for export in exports}
    if len(kinds) != 1:
        got = "; ".join(sorted(f"{source} in zone {zone}" for source, zone in kinds)) or "none"
        todo = "Keep each in a folder of its own."
        raise TraceFormatError("traces to merge", "traces of one source and zone", got, todo)


def _latest_table(tables: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Return the last table that is not None, of tables from the earliest to the latest export."""
    return next((table for table in reversed(tables) if table is not None), None)


def _merge_job_names(tables: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Merge tables of job names; where two differ, the later one wins."""
    newest_first = [table for table in reversed(tables) if table is not None]
    return pl.concat(newest_first).unique("name", keep="first", maintain_order=True) if newest_first else None


def _merge_quality(exports: Sequence[Dataset], jobs: pl.DataFrame, superseded: pl.DataFrame) -> pl.DataFrame:
    """Merge the quality reports of exports: checks of jobs are run again, findings on files are kept."""
    trusted = drop_quarantined(jobs)
    until = max(datetime.fromisoformat(export.provenance["span_end"]) for export in exports)
    findings = run_checks(trusted, JOB_LIST_CHECKS) + find_submission_gaps(trusted["submit_time"])
    findings += quarantine_findings(jobs, until)
    for (reason,), older_rows in superseded.group_by("reason", maintain_order=True):
        effect = "none: each job counts once, as the latest of its rows"
        findings.append(Finding(f"rejected: {reason}", "info", older_rows.height, effect, str(older_rows["raw"].min())))
    renewed_checks = {check.check for check in JOB_LIST_CHECKS}
    renewed_checks |= {
        finding.check for export in exports for finding in find_submission_gaps(export.jobs["submit_time"])
    }
    renewed_checks |= {QUARANTINE_PREFIX + rule for rule in QUARANTINE_REASONS}
    earlier = (Finding(*row) for export in exports for row in export.quality.iter_rows())
    return build_quality_report(
        [*findings, *combine_findings(finding for finding in earlier if finding.check not in renewed_checks)]
    )


def _merge_provenance(exports: Sequence[Dataset], jobs: pl.DataFrame, rejected_rows: int) -> dict[str, Any]:
    """Merge the provenance of exports; counts and spans cover all of them."""
    all_facts: list[Mapping[str, Any]] = [export.provenance for export in exports]
    return {
        **all_facts[-1],
        "files": sorted((file for facts in all_facts for file in facts["files"]), key=lambda file: file["name"]),
        "rows_in": sum(facts["rows_in"] for facts in all_facts),
        "rows_kept": jobs.height,
        "rows_rejected": rejected_rows,
        "span_start": min((facts["span_start"] for facts in all_facts), key=datetime.fromisoformat),
        "notes": list(dict.fromkeys(note for facts in all_facts for note in facts["notes"])),
        "gpu_hours": gpu_hours(drop_quarantined(jobs), datetime.fromisoformat(all_facts[-1]["span_end"])),
        "unresolved_gpu_hours": sum(facts.get("unresolved_gpu_hours", 0.0) for facts in all_facts),
        "gpuplanner": __version__,
        **quarantine_facts(jobs, datetime.fromisoformat(all_facts[-1]["span_end"])),
    }


UNRESOLVED_GPUS_COLUMN = "unresolved_gpus"
"""Intermediate column: estimated GPUs of a job whose number of GPUs is unknown."""


def file_findings(rows: Rows | ChunkedRows, harmless_reasons: Sequence[str] = ()) -> list[Finding]:
    """Report rejected rows, blank lines and truncated files as findings."""
    faults = reject_findings(rows.reasons, rows.count, [REPEATED_HEADER_REASON, *harmless_reasons])
    ends_open = [file.ends_open for file in rows.files]
    return [*faults, *open_end_and_blank_line_findings(unique_file_names(rows.files), ends_open, rows.blank)]


def build_provenance(
    rows: Rows | ChunkedRows,
    *,
    source: str,
    span: tuple[datetime | None, datetime | None],
    time_zone: str | None = None,
    origin: datetime | None = None,
    notes: Sequence[str] = (),
    extra_files: Sequence[TextFile] = (),
) -> dict[str, Any]:
    """Build the provenance of rows that were read; ready for JSON.

    Parameters
    ----------
    rows : Rows or ChunkedRows
        Rows as read.
    source : str
        Name of the source.
    span : tuple of datetime
        First and last instant of the observation; None where unknown.
    time_zone : str, optional
        Zone of the naive times of the files.
    origin : datetime, optional
        Instant from which the source counts seconds.
    notes : sequence of str
        Remarks of the reader.
    extra_files : sequence of TextFile
        Files that were read beside those of the rows.

    Returns
    -------
    dict
        Source, files with hashes, row counts, span and notes.
    """
    unused_note = [f"columns not read: {', '.join(name[:40] for name in rows.unused)}"] if rows.unused else []
    named_files = [*zip(unique_file_names(rows.files), rows.files, strict=True)]
    named_files += [(printable_file_name(file.path), file) for file in extra_files]
    return {
        "source": source,
        "files": [{"name": name, "sha256": file.sha256, "bytes": file.bytes} for name, file in named_files],
        "rows_in": rows.count,
        "rows_kept": rows.height,
        "rows_rejected": rows.reasons["rows"].sum(),
        "span_start": format_utc(span[0]),
        "span_end": format_utc(span[1]),
        "time_zone": time_zone,
        "origin": format_utc(origin),
        "notes": [*notes, *unused_note],
        "gpuplanner": __version__,
    }


def require_rows(rows: Rows | ChunkedRows, source: str, row_word: str = "job") -> None:
    """Refuse files without any accepted row, and list the most frequent reasons."""
    if rows.height:
        return
    reasons = rows.reasons.sort("rows", descending=True, maintain_order=True).head(5).iter_rows()
    description = "; ".join(f"{reason} in {count} row(s)" for reason, count, *_ in reasons)
    description = f"{rows.count} rows and none of them: {description}" if rows.count else "no rows below the header"
    location = f"{source}: {', '.join(unique_file_names(rows.files)[:5])}"
    raise TraceFormatError(location, f"at least one readable {row_word}", description, NAME_SOURCE_FIX)


CONDITION_BY_TIME_ORDER_REASON = {
    "start before submission": pl.col("start_time") < pl.col("submit_time"),
    "end before start": pl.col("end_time") < pl.col("start_time"),
    "end before submission": pl.col("end_time") < pl.col("submit_time"),
}
"""Reject reason → condition of job rows whose times are in the wrong order."""


def assemble_jobs(
    rows: Rows | ChunkedRows,
    *,
    source: str,
    time_zone: str | None = None,
    origin: datetime | None = None,
    last_seen: pl.Expr | None = None,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    harmless_reasons: Sequence[str] = (),
    findings_of_reader: Sequence[Finding] = (),
    inventory: pl.DataFrame | None = None,
    boards: Mapping[str, str] | None = None,
    any_device: bool = False,
    extra_files: Sequence[TextFile] = (),
    output_folder: Path | None = None,
) -> Dataset:
    """Build the dataset of a list of jobs from rows with the columns of ``schemas.Jobs``.

    Parameters
    ----------
    rows : Rows or ChunkedRows
        Rows with parsed columns; chunked rows have no attempt twice.
    source : str
        Name of the source.
    time_zone : str, optional
        Zone of the naive times of the files.
    origin : datetime, optional
        Instant from which the source counts seconds.
    last_seen : polars.Expr, optional
        Instants at which a job was last observed, where they may be later than its times.
    checks : sequence of Check
        Checks of the reader, beside those of all jobs.
    notes : sequence of str
        Remarks for the provenance.
    harmless_reasons : sequence of str
        Reject reasons that are no faults.
    findings_of_reader : sequence of Finding
        Findings of the reader.
    inventory : polars.DataFrame, optional
        Nodes, table ``schemas.Inventory``.
    boards : mapping of str to str, optional
        Word of the source → GPU model, as the user stated it.
    any_device : bool
        GPUs without a type may be full GPUs or MIG instances, as Slurm counts them.
    extra_files : sequence of TextFile
        Files that were read beside those of the rows, such as a node list.
    output_folder : Path, optional
        Folder to which jobs and rejects are written instead of being returned.

    Returns
    -------
    Dataset
        Jobs sorted by submission with rejects, quality report and provenance.
    """
    latest = pl.max_horizontal(pl.col("submit_time", "start_time", "end_time").max())
    observation_end = latest if last_seen is None else pl.max_horizontal(latest, last_seen.max())
    if isinstance(rows, Rows):
        chunks = ChunkedRows()
        chunks.add_rows(_drop_duplicate_attempts(rows.reject(CONDITION_BY_TIME_ORDER_REASON), observation_end))
    else:
        chunks = rows.queue_steps(lambda chunk: chunk.reject(CONDITION_BY_TIME_ORDER_REASON)).apply_steps()
    counting = DeviceCounter.from_jobs(chunks.good, inventory, boards, any_device=any_device)
    extra_columns = {name for check in checks for name in check.condition.meta.root_names()}
    extra_columns |= set() if last_seen is None else set(last_seen.meta.root_names())
    extra_columns |= {UNRESOLVED_GPUS_COLUMN} & set(rows.good.columns) if isinstance(rows, Rows) else set()

    def as_jobs(rows: Rows) -> Rows:
        """Count the GPUs of a chunk of rows and convert it to jobs; rows that violate the schema are rejected."""
        counted_rows = replace(rows, good=counting.count_gpus(rows.good))
        sound_rows, jobs = reject_schema_violations(counted_rows, Jobs, source)
        present_extras = sorted(extra_columns - set(jobs.columns))
        return replace(
            sound_rows, good=jobs.hstack(sound_rows.good.select(present_extras)).with_row_index("place", chunks.height)
        )

    chunks.queue_steps(as_jobs).apply_steps()
    require_rows(chunks, source)
    quarantine_marks = find_quarantined_jobs(chunks.good, counting.inventory)
    require_unquarantined(quarantine_marks["quarantined"], chunks.height, source)

    def marked_part(rows: Rows) -> Rows:
        """Replace the quarantine marks of a chunk by those that the rules gave after all jobs were read."""
        unmarked_rows = rows.good.drop("quarantined")
        return replace(rows, good=unmarked_rows.join(quarantine_marks, on="place", how="left", maintain_order="left"))

    if quarantine_marks.height:
        chunks.queue_steps(marked_part).apply_steps()
    check_findings, quarantined_jobs, until, hours = _check_jobs(chunks, observation_end, [*JOB_LIST_CHECKS, *checks])
    findings = [
        *counting.findings,
        *check_findings,
        *findings_of_reader,
        *file_findings(chunks, [SUPERSEDED_REASON, *harmless_reasons]),
    ]
    findings += quarantine_findings(quarantined_jobs, until)
    inventory = counting.inventory
    if inventory is not None:
        node_allocations = pl.concat(chunks.good.tables(NODE_INFERENCE_COLUMNS))
        findings += find_past_fleet_changes(node_allocations, inventory)
        inventory = add_past_nodes(drop_quarantined(node_allocations), inventory)
    filled_hours = hours.drop_nulls()
    findings += find_submission_gaps(pl.concat([filled_hours["first"], filled_hours["last"]]).sort())
    allocated_gpu_hours: list[float] = []
    unresolved_hours: list[float] = []

    def iterate_ordered_jobs() -> Iterator[pl.DataFrame]:
        """Yield the jobs in order of submission, a chunk at a time, and add up their GPU-hours."""
        for chunk in chunks.good.iterate_ordered("submit_time", _chunk_bounds(hours), ["place"]):
            jobs = chunk.select(*Jobs.columns())
            unresolved_hours.append(unresolved_gpu_hours(drop_quarantined(chunk), until))
            allocated_gpu_hours.append(gpu_hours(drop_quarantined(jobs), until))
            yield jobs

    if output_folder is None:
        rejects = pl.concat(chunks.rejects.tables()).sort("file", "row", maintain_order=True)
        tables = {"jobs": pl.concat(iterate_ordered_jobs(), rechunk=True)}
    else:
        rejects, tables = pl.DataFrame(schema=REJECT_TABLE_SCHEMA), {}
        types = pl.Schema({name: column.dtype for name, column in Jobs.columns().items()})
        write_chunks(iterate_ordered_jobs, types, output_folder / "jobs.parquet")
        chunks.good.clear()
        bounds = list(range(ORDERED_CHUNK_ROWS, chunks.last_reject + 1, ORDERED_CHUNK_ROWS))
        iterate_rejects = partial(chunks.rejects.iterate_ordered, "row", bounds)
        write_chunks(iterate_rejects, REJECT_TABLE_SCHEMA, output_folder / "rejects.parquet")
        chunks.rejects.clear()
    facts = build_provenance(
        chunks,
        source=source,
        span=(filled_hours["first"].min(), until),  # type: ignore[arg-type]
        time_zone=time_zone,
        origin=origin,
        notes=notes,
        extra_files=extra_files,
    )
    ordered_quarantine = quarantined_jobs.sort("submit_time", maintain_order=True)
    facts |= {"gpu_hours": sum(allocated_gpu_hours), **quarantine_facts(ordered_quarantine, until)}
    facts["unresolved_gpu_hours"] = sum(unresolved_hours)
    quality = add_unresolved_hours(build_quality_report(findings), facts["unresolved_gpu_hours"])
    return Dataset(tables, rejects, quality, facts).with_tables(inventory=inventory)


def unresolved_gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """Estimate the GPU-hours of jobs whose number of GPUs is unknown; one GPU each without an estimate [GPU h]."""
    unknown = jobs.filter(pl.col("gpus").is_null())
    estimate = pl.col(UNRESOLVED_GPUS_COLUMN).fill_null(1.0) if UNRESOLVED_GPUS_COLUMN in jobs.columns else pl.lit(1.0)
    return gpu_hours(unknown.with_columns(gpus=estimate), until) if unknown.height else 0.0


def _check_jobs(
    chunked_rows: ChunkedRows, observation_end: pl.Expr, checks: Sequence[Check]
) -> tuple[list[Finding], pl.DataFrame, datetime, pl.DataFrame]:
    """Run checks on chunked jobs: findings, jobs in quarantine, end of the observation, and submissions by hour.

    Parameters
    ----------
    chunked_rows : ChunkedRows
        Jobs with column ``quarantined``.
    observation_end : polars.Expr
        Last instant that a chunk of jobs shows.
    checks : sequence of Check
        Checks to run.

    Returns
    -------
    tuple of list of Finding, polars.DataFrame, datetime and polars.DataFrame
        Findings, jobs in quarantine, end of the observation [UTC], and by ``hour`` the ``rows`` submitted with the
        ``first`` and ``last`` submission outside quarantine.
    """
    findings: list[Finding] = []
    quarantined, hours, chunk_ends = [], [], []
    latest = pl.lit(None, pl.Datetime("us", "UTC"))
    for chunk in chunked_rows.good.tables():
        trusted_jobs = drop_quarantined(chunk)
        latest_before = pl.max_horizontal(pl.col("submit_time").cum_max(), latest)
        unsorted = replace(UNSORTED_JOBS_CHECK, condition=pl.col("submit_time") < latest_before)
        findings += run_checks(trusted_jobs, [unsorted, *checks])
        quarantined.append(chunk.filter(pl.col("quarantined").is_not_null()))
        trusted_submit_time = pl.col("submit_time").filter(pl.col("quarantined").is_null())
        submitted = chunk.group_by(hour=pl.col("submit_time").dt.truncate("1h"))
        hours.append(submitted.agg(rows=pl.len(), first=trusted_submit_time.min(), last=trusted_submit_time.max()))
        if trusted_jobs.height:
            chunk_ends.append(trusted_jobs.select(observation_end).item())
            latest = pl.lit(trusted_jobs.select(latest_before.max()).item(), pl.Datetime("us", "UTC"))
    by_hour = pl.concat(hours).group_by("hour")
    hour_totals = by_hour.agg(pl.col("rows").sum(), pl.col("first").min(), pl.col("last").max())
    return combine_findings(findings), pl.concat(quarantined), max(chunk_ends), hour_totals.sort("hour")


def _chunk_bounds(submissions: pl.DataFrame) -> list[datetime]:
    """Return the hours at which to split jobs by submission into chunks of about :data:`ORDERED_CHUNK_ROWS` rows.

    `submissions` has the number of submitted ``rows`` of each ``hour``, ascending.
    """
    chunk_number = (submissions["rows"].cum_sum() - 1) // ORDERED_CHUNK_ROWS
    return submissions.filter((chunk_number.diff() > 0).fill_null(value=False))["hour"].to_list()


def _drop_duplicate_attempts(rows: Rows, observation_end: pl.Expr) -> Rows:
    """Keep one row of each job attempt: the first within a file, and of several files that of the latest export.

    It follows the same rules as :func:`merge_job_exports`, so that files read together or one by one give the same
    jobs.
    """
    ids_differ = rows.good["job_id"].n_unique() == rows.good.height  # quicker to see than pairs
    if ids_differ or rows.good.select(pl.struct(ATTEMPT_KEY_COLUMNS).n_unique()).item() == rows.good.height:
        return rows
    is_repeated = ~pl.struct("file", *ATTEMPT_KEY_COLUMNS).is_first_distinct()
    rows = rows.reject({"the same job and attempt as an earlier row": is_repeated})
    export_ends = rows.good.group_by("file").agg(until=observation_end)
    names = rows.file_names()
    exports = sorted(export_ends.iter_rows(), key=lambda export: (export[1], names[export[0]]))
    rank = pl.col("file").replace_strict({file: position for position, (file, _) in enumerate(exports)})
    return rows.reject({SUPERSEDED_REASON: rank < rank.max().over(ATTEMPT_KEY_COLUMNS)})


def reject_schema_violations(rows: Rows, schema: type[dy.Schema], source: str) -> tuple[Rows, pl.DataFrame]:
    """Reject rows that violate a table schema; return the remaining rows and the valid table."""
    table = conform(rows.good, schema, source=source)
    if schema.is_valid(table):
        return rows, table
    table, faulty_rows = filter_rows(table, schema)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    faults = {
        str(reason): number.is_in(rows_of_reason["row_number"].implode())
        for (reason,), rows_of_reason in faulty_rows.partition_by("reason", as_dict=True, maintain_order=True).items()
    }
    return rows.reject(faults), table


UNIQUE_COLUMNS_BY_TABLE = {
    "inventory": ("node",),
    "requests": ("service", "time"),
    "occupancy": ("pool", "resource", "time"),
    "quotas": ("pool", "day"),
    "gauges": ("subject", "metric", "kind", "time"),
    "distributions": ("series",),
    "out_of_service": ("node", "start_time"),
    "queue_quotas": ("tenant", "flavor", "resource"),
    "charges": ("ProviderName", "BillingAccountId", "BillingPeriodStart"),
}
"""Table → columns whose combined values may occur once only; for bills, once per billing period."""

UNSUMMABLE_TOTALS = ("models", "series", "pools", "jobs", "containers", "steps", "mean_value")
"""Totals in the provenance that do not add up over files, such as the number of GPU models; left out once there are
several files."""


def merge_tables(old_dataset: Dataset, new_dataset: Dataset, table: pl.DataFrame) -> Dataset:
    """Append new rows of a source to its table; refuse rows with a key that is already there.

    Parameters
    ----------
    old_dataset : Dataset
        Rejects, quality report and provenance of the source so far.
    new_dataset : Dataset
        New rows of the same table.
    table : polars.DataFrame
        Rows of the source so far.

    Returns
    -------
    Dataset
        All rows, sorted by their key.

    Raises
    ------
    TraceFormatError
        If a key of :data:`UNIQUE_COLUMNS_BY_TABLE` is already there.
    """
    kind = new_dataset.kind
    key = list(UNIQUE_COLUMNS_BY_TABLE[kind])
    repeated = new_dataset.table.select(key).join(table.select(key), on=key, how="semi", nulls_equal=True)
    dated_tables = merge_dated_inventories([{**old_dataset.tables, kind: table}, new_dataset.tables])
    if repeated.height and dated_tables is None:
        key_text = ", ".join(f"{name} {value}" for name, value in repeated.row(0, named=True).items())
        location = f"{kind} of {new_dataset.provenance['source']}"
        description = f"{repeated.height} row(s) more, such as {key_text}"
        todo = "Import all files of the source again with --replace."
        if kind == "inventory":
            todo = f"Put the dates of both lists into their names, such as nodes-2026-11-02.txt. {todo}"
        raise TraceFormatError(location, "rows of which nothing is there yet", description, todo)
    rows = dated_tables["inventory"] if dated_tables else None
    if rows is None:
        rows = pl.concat([table, new_dataset.table]).sort(key, maintain_order=True)
    old_facts, new_facts = old_dataset.provenance, new_dataset.provenance
    old_totals, new_totals = old_facts["totals"], new_facts["totals"]
    summed_names = [name for name in {**new_totals, **old_totals} if name not in UNSUMMABLE_TOTALS]
    facts = {
        **new_facts,
        **{name: old_facts[name] + new_facts[name] for name in ("files", "rows_in", "rows_kept", "rows_rejected")},
        "table_rows": rows.height,
        "span_start": _extreme_time(min, old_facts["span_start"], new_facts["span_start"]),
        "span_end": _extreme_time(max, old_facts["span_end"], new_facts["span_end"]),
        "notes": sorted({*old_facts["notes"], *new_facts["notes"]}),
        "totals": {name: _add_totals(old_totals.get(name), new_totals.get(name)) for name in summed_names},
    }
    facts["files"] = sorted(facts["files"], key=lambda file: (file["name"], file["sha256"]))
    if dated_tables is not None:  # a node of both dumps is one node
        facts["totals"] = {"gpus": int(rows["gpus"].sum()), "models": rows["gpu_model"].drop_nulls().n_unique()}
    findings = combine_findings(
        Finding(*row) for dataset in (old_dataset, new_dataset) for row in dataset.quality.iter_rows()
    )
    rejects = pl.concat([old_dataset.rejects, new_dataset.rejects])
    return Dataset({kind: rows}, rejects, build_quality_report(findings), facts).with_tables(**dated_tables or {})


def _add_totals(old: Any, new: Any) -> Any:  # noqa: ANN401 - a number, or exact digits as text
    """Add two totals of the provenance: numbers, or decimals as text; None counts as absent."""
    if old is None or new is None:
        return new if old is None else old
    return str(Decimal(old) + Decimal(new)) if isinstance(old, str) else old + new


def _extreme_time(choose: Callable[..., str | None], *instants: str | None) -> str | None:
    """Choose the earliest (``min``) or latest (``max``) of some ISO 8601 texts; None values are ignored."""
    return choose(filter(None, instants), key=datetime.fromisoformat, default=None)


def assemble_table(
    rows: Rows,
    kind: str,
    *,
    source: str,
    sort_columns: Sequence[str],
    key_columns: Sequence[str] = (),
    row_word: str = "row",
    reshape: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    checks: Sequence[Check] = (),
    findings: Sequence[Finding] = (),
    totals: Mapping[str, pl.Expr] | None = None,
    span_columns: Sequence[str] = ("time",),
    time_zone: str | None = None,
    notes: Sequence[str] = (),
    harmless_reasons: Sequence[str] = (),
) -> Dataset:
    """Build a dataset of one table from rows that have its columns.

    Parameters
    ----------
    rows : Rows
        Rows with parsed columns.
    kind : str
        Table of ``schemas.TABLES``.
    source : str
        Name of the source.
    sort_columns : sequence of str
        Columns to sort by.
    key_columns : sequence of str
        Columns that identify a row; later duplicates are rejected.
    row_word : str
        Noun for a row in messages.
    reshape : callable, optional
        Function from the accepted rows to the table, where they are not the table itself.
    checks : sequence of Check
        Checks to run on the rows.
    findings : sequence of Finding
        Findings of the reader.
    totals : mapping of str to polars.Expr, optional
        Totals for the provenance.
    span_columns : sequence of str
        Time columns that give the observed span.
    time_zone : str, optional
        Zone of the naive times of the files.
    notes : sequence of str
        Remarks for the provenance.
    harmless_reasons : sequence of str
        Reject reasons that mark rows as skipped, not faulty.

    Returns
    -------
    Dataset
        The table with rejects, quality report and provenance.
    """
    if key_columns:
        is_repeated = ~pl.struct(*key_columns).is_first_distinct()
        rows = rows.reject({f"the same {' and '.join(key_columns)} as an earlier row": is_repeated})
    if reshape is None:
        rows, table = reject_schema_violations(rows, TABLES[kind], source)
    else:
        table = check_table(reshape(rows.good), TABLES[kind], source=source)
    require_rows(rows, source, row_word)
    all_findings = [*run_checks(rows.good, checks, id_column="line"), *findings, *file_findings(rows, harmless_reasons)]
    span = _table_span(table, span_columns)
    facts = build_provenance(rows, source=source, span=span, time_zone=time_zone, notes=notes)
    facts["table"] = kind
    facts["table_rows"] = table.height
    facts["totals"] = table.select(**totals).row(0, named=True) if totals else {}
    ordered_table = table.sort(*sort_columns, maintain_order=True)
    rejects = rows.rejects.sort("file", "row", maintain_order=True)
    return Dataset({kind: ordered_table}, rejects, build_quality_report(all_findings), facts)


def assemble_nodes(
    rows: Rows,
    nodes: pl.DataFrame,
    findings: Sequence[Finding],
    *,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """Build the dataset of a node list whose GPU models are resolved.

    Parameters
    ----------
    rows : Rows
        Rows of the node list as read.
    nodes : polars.DataFrame
        Nodes with their GPU models, table ``schemas.Inventory``.
    findings : sequence of Finding
        Findings of the reader.
    checks : sequence of Check
        Checks to run on the nodes.
    notes : sequence of str
        Remarks for the provenance.

    Returns
    -------
    Dataset
        Table ``inventory``.
    """
    return assemble_table(
        replace(rows, good=nodes, count=nodes.height + rows.rejects.height),
        "inventory",
        source="nodes",
        sort_columns=["node"],
        row_word="node",
        checks=checks,
        findings=findings,
        totals={"gpus": pl.col("gpus").cast(pl.Int64).sum(), "models": pl.col("gpu_model").drop_nulls().n_unique()},
        span_columns=(),
        notes=notes,
    )


def _table_span(table: pl.DataFrame, names: Sequence[str]) -> tuple[datetime | None, datetime | None]:
    """Return the earliest and latest instant in the time columns `names` of a table [UTC]; None without columns."""
    if not names:
        return None, None
    first, last = pl.min_horizontal(pl.col(*names).min()), pl.max_horizontal(pl.col(*names).max())
    start, end = table.select(first.alias("first"), last.alias("last")).row(0)
    return start, end
