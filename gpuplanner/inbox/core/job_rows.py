"""Last step of every reader of jobs: order, duplicates, the schema, the quality report and the provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import OTHER_SOURCE, TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import (Dataset, gpu_hours)
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import (
    JOB_CHECKS,
    UNSORTED,
    Check,
    Finding,
    combined,
    gap_findings,
    of_files,
    reject_findings,
    report,
    run_checks,
)
from gpuplanner.inbox.core.lines.rows import HEADER_AGAIN, Rows
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.long_rows import PART_ROWS, LongRows
from gpuplanner.inbox.core.merge_jobs import KEY, SUPERSEDED
from gpuplanner.inbox.core.months import write_parts
from gpuplanner.inbox.core.quarantine import (
    HELD_ON_NODES,
    believed,
    outgrown_nodes,
    quarantine_facts,
    quarantine_findings,
    quarantine_of,
    require_believed,
    with_past_nodes,
)
from gpuplanner.inbox.core.shares import Counting
from gpuplanner.inbox.core.times import iso
from gpuplanner.schemas.domain import Jobs
from gpuplanner.schemas.check import conform, filter_rows

UNRESOLVED = "unresolved_gpus"
"""Column of rows on their way to jobs: GPUs, about, of a job whose number of GPUs is not known."""


def file_findings(rows: Rows | LongRows, harmless: Sequence[str] = ()) -> list[Finding]:
    """What the rejects, and the files themselves, make one doubt."""
    faults = reject_findings(rows.reasons, rows.count, [HEADER_AGAIN, *harmless])
    return [*faults, *of_files(rows.file_names(), [file.ends_open for file in rows.files], rows.blank)]


def provenance(
    rows: Rows | LongRows,
    *,
    source: str,
    span: tuple[datetime | None, datetime | None],
    time_zone: str | None = None,
    origin: datetime | None = None,
    notes: Sequence[str] = (),
    more_files: Sequence[TextFile] = (),
) -> dict[str, Any]:
    """Where the rows came from and how many there were; ready for JSON."""
    unused = [f"columns not read: {', '.join(name[:40] for name in rows.unused)}"] if rows.unused else []
    named = zip(rows.file_names(), rows.files, strict=True)
    return {
        "source": source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in [*named, *((file_name(file.path), file) for file in more_files)]
        ],
        "rows_in": rows.count,
        "rows_kept": rows.height,
        "rows_rejected": rows.reasons["rows"].sum(),
        "span_start": iso(span[0]),
        "span_end": iso(span[1]),
        "time_zone": time_zone,
        "origin": iso(origin),
        "notes": [*notes, *unused],
        "gpuplanner": __version__,
    }


def require_some(rows: Rows | LongRows, source: str, what: str = "job") -> None:
    """Refuse files of which no row is left."""
    if rows.height:
        return
    reasons = rows.reasons.sort("rows", descending=True, maintain_order=True).head(5).iter_rows()
    got = "; ".join(f"{reason} in {count} row(s)" for reason, count, *_ in reasons)
    text = message(
        f"{source}: {', '.join(rows.file_names()[:5])}",
        f"at least one readable {what}",
        f"{rows.count} rows and none of them: {got}" if rows.count else "no rows below the header",
        OTHER_SOURCE,
    )
    raise TraceFormatError(text)


ORDER_FAULTS = {
    "start before submission": pl.col("start_time") < pl.col("submit_time"),
    "end before start": pl.col("end_time") < pl.col("start_time"),
    "end before submission": pl.col("end_time") < pl.col("submit_time"),
}


def assemble(
    rows: Rows | LongRows,
    *,
    source: str,
    time_zone: str | None = None,
    origin: datetime | None = None,
    last_seen: pl.Expr | None = None,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    harmless: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    inventory: pl.DataFrame | None = None,
    boards: Mapping[str, str] | None = None,
    any_device: bool = False,
    more_files: Sequence[TextFile] = (),
    into: Path | None = None,
) -> Dataset:
    """Make a trace of rows that have the columns of ``schemas.Jobs``.

    `findings` are those of the reader itself; `any_device` as :func:`~.core.shares.resolve_jobs` takes it. Long rows
    hold no attempt twice. With a folder ``into``, jobs and rejects are written there, and what is given back has
    neither.
    """
    instants = [pl.col("submit_time", "start_time", "end_time").max()]
    seen = pl.max_horizontal(*instants, *([] if last_seen is None else [last_seen.max()]))
    if isinstance(rows, Rows):
        long = LongRows.of([_without_duplicates(rows.reject(ORDER_FAULTS), seen)])
    else:
        long = rows.then(lambda part: part.reject(ORDER_FAULTS)).settle()
    counting = Counting.of(long.good, inventory, boards, any_device=any_device)
    looked_at = {name for check in checks for name in check.condition.meta.root_names()}
    looked_at |= set() if last_seen is None else set(last_seen.meta.root_names())
    looked_at |= {UNRESOLVED} & set(rows.good.columns) if isinstance(rows, Rows) else set()

    def as_jobs(part: Rows) -> Rows:
        counted = replace(part, good=counting.count(part.good))
        sound, jobs = satisfying_schema(counted, Jobs, source)
        more = sorted(looked_at - set(jobs.columns))
        return replace(sound, good=jobs.hstack(sound.good.select(more)).with_row_index("place", long.height))

    long.then(as_jobs).settle()
    require_some(long, source)
    marks = quarantine_of(long.good, counting.inventory)
    require_believed(marks["quarantined"], long.height, source)
    checked, marked, until, hours = _check_jobs(long, marks, seen, [*JOB_CHECKS, *checks])
    found = [*counting.findings, *checked, *findings, *file_findings(long, [SUPERSEDED, *harmless])]
    found += quarantine_findings(marked, until)
    inventory = counting.inventory
    if inventory is not None:
        held_on_nodes = pl.concat(long.good.tables(HELD_ON_NODES)).join(marks, on="place", how="left")
        found += outgrown_nodes(held_on_nodes, inventory)
        inventory = with_past_nodes(believed(held_on_nodes), inventory)
    told = hours.drop_nulls()
    found += gap_findings(pl.concat([told["first"], told["last"]]).sort())
    held: list[float] = []
    unresolved: list[float] = []

    def ordered() -> Iterator[pl.DataFrame]:
        for part in long.good.in_order("submit_time", _bounds(hours), ["place"]):
            marked_part = _marked(part, marks)
            jobs = marked_part.select(*Jobs.columns())
            unresolved.append(unresolved_gpu_hours(believed(marked_part), until))
            held.append(gpu_hours(believed(jobs), until))
            yield jobs

    tables, rejects = _written(ordered, long, into)
    known = provenance(
        long,
        source=source,
        span=(told["first"].min(), until),  # type: ignore[arg-type]
        time_zone=time_zone,
        origin=origin,
        notes=notes,
        more_files=more_files,
    )
    in_order = marked.sort("submit_time", maintain_order=True)
    known |= {"gpu_hours": sum(held), **quarantine_facts(in_order, until)}
    known["unresolved_gpu_hours"] = sum(unresolved)
    return Dataset(tables, rejects, report(found), known).with_tables(inventory=inventory)


def unresolved_gpu_hours(jobs: pl.DataFrame, until: datetime) -> float:
    """GPU-hours, about, of jobs whose number of GPUs is not known; one GPU each where the reader has no estimate."""
    unknown = jobs.filter(pl.col("gpus").is_null())
    estimate = pl.col(UNRESOLVED).fill_null(1.0) if UNRESOLVED in jobs.columns else pl.lit(1.0)
    return gpu_hours(unknown.with_columns(gpus=estimate), until) if unknown.height else 0.0


def _check_jobs(
    long: LongRows, marks: pl.DataFrame, seen: pl.Expr, checks: Sequence[Check]
) -> tuple[list[Finding], pl.DataFrame, datetime, pl.DataFrame]:
    """Findings, the jobs in quarantine, the end of the observation, and the hours of all jobs.

    Hours: ``hour``, ``rows`` submitted in it, the ``first`` and ``last`` of those believed.
    """
    findings: list[Finding] = []
    marked, hours, until = [], [], []
    latest = pl.lit(None, pl.Datetime("us", "UTC"))
    for table in long.good.tables():
        part = _marked(table, marks)
        sound = believed(part)
        before = pl.max_horizontal(pl.col("submit_time").cum_max(), latest)
        unsorted = replace(UNSORTED, condition=pl.col("submit_time") < before)
        findings += run_checks(sound, [unsorted, *checks])
        marked.append(part.filter(pl.col("quarantined").is_not_null()))
        true = pl.col("submit_time").filter(pl.col("quarantined").is_null())
        hours.append(
            part.group_by(hour=pl.col("submit_time").dt.truncate("1h")).agg(
                rows=pl.len(), first=true.min(), last=true.max()
            )
        )
        if sound.height:
            until.append(sound.select(seen).item())
            latest = pl.lit(sound.select(before.max()).item(), pl.Datetime("us", "UTC"))
    by_hour = (
        pl.concat(hours)
        .group_by("hour")
        .agg(pl.col("rows").sum(), pl.col("first").min(), pl.col("last").max())
        .sort("hour")
    )
    return combined(findings), pl.concat(marked), max(until), by_hour


def _marked(part: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    if marks.is_empty():
        return part
    return part.drop("quarantined").join(marks, on="place", how="left", maintain_order="left")


def _bounds(hours: pl.DataFrame) -> list[datetime]:
    """Hours that part the jobs, in the order of their submission, into as many as may be in memory."""
    part = (hours["rows"].cum_sum() - 1) // PART_ROWS
    return hours.filter((part.diff() > 0).fill_null(value=False))["hour"].to_list()


def _written(
    ordered: Callable[[], Iterator[pl.DataFrame]], long: LongRows, into: Path | None
) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
    """Jobs and rejects in order: in memory, or in files of a folder."""
    if into is None:
        rejects = pl.concat(long.rejects.tables()).sort("file", "row", maintain_order=True)
        return {"jobs": pl.concat(ordered(), rechunk=True)}, rejects
    types = pl.Schema({name: column.dtype for name, column in Jobs.columns().items()})
    write_parts(ordered, types, into / "jobs.parquet")
    long.good.clear()
    bounds = list(range(PART_ROWS, long.last_reject + 1, PART_ROWS))
    write_parts(lambda: long.rejects.in_order("row", bounds), REJECTS, into / "rejects.parquet")
    long.rejects.clear()
    return {}, pl.DataFrame(schema=REJECTS)


def _without_duplicates(rows: Rows, seen: pl.Expr) -> Rows:
    """Keep one row of each job attempt: the first in a file, and of several files that of the latest export.

    Just as :func:`~.core.merge_jobs.merge` does it, so that files read at once or one by one give the same
    jobs.
    """
    ids_differ = rows.good["job_id"].n_unique() == rows.good.height  # quicker to see than pairs
    if ids_differ or rows.good.select(pl.struct(KEY).n_unique()).item() == rows.good.height:
        return rows
    again = ~pl.struct("file", *KEY).is_first_distinct()
    rows = rows.reject({"the same job and attempt as an earlier row": again})
    ends = rows.good.group_by("file").agg(until=seen)
    names = rows.file_names()
    exports = sorted(ends.iter_rows(), key=lambda export: (export[1], names[export[0]]))
    rank = pl.col("file").replace_strict({file: place for place, (file, _) in enumerate(exports)})
    return rows.reject({SUPERSEDED: rank < rank.max().over(KEY)})


def satisfying_schema(rows: Rows, schema: type[dy.Schema], source: str) -> tuple[Rows, pl.DataFrame]:
    """Reject what the readers' own checks left and the table does not allow; give the table too."""
    table = conform(rows.good, schema, where=source)
    if schema.is_valid(table):
        return rows, table
    table, bad = filter_rows(table, schema)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    faults = {
        str(reason): number.is_in(part["row_number"].implode())
        for (reason,), part in bad.partition_by("reason", as_dict=True, maintain_order=True).items()
    }
    return rows.reject(faults), table
