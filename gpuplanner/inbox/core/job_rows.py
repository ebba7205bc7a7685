"""Last step of every reader of jobs: order, duplicates, the schema, the quality report and the provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import TraceFormatError, file_name, message
from gpuplanner.inbox.core.dataset import Dataset, gpu_hours
from gpuplanner.inbox.core.findings import (
    JOB_CHECKS,
    UNSORTED,
    Check,
    Finding,
    gap_findings,
    of_files,
    reject_findings,
    report,
    run_checks,
)
from gpuplanner.inbox.core.lines.rows import HEADER_AGAIN, Rows
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.merge_jobs import KEY, SUPERSEDED
from gpuplanner.inbox.core.quarantine import believed, quarantine_facts, quarantine_findings, with_quarantine
from gpuplanner.inbox.core.shares import resolve_jobs
from gpuplanner.inbox.core.times import iso
from gpuplanner.schemas import Jobs, conform, filter_rows


def file_findings(rows: Rows, harmless: Sequence[str] = ()) -> list[Finding]:
    """What the rejects, and the files themselves, make one doubt."""
    faults = reject_findings(rows.rejects, rows.count, [HEADER_AGAIN, *harmless])
    return [*faults, *of_files(rows.file_names(), [file.ends_open for file in rows.files], rows.blank)]


def sorted_rejects(rows: Rows) -> pl.DataFrame:
    """The reject table in the order of the files."""
    return rows.rejects.sort("file", "row", maintain_order=True)


def provenance(
    rows: Rows,
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
        "rows_kept": rows.good.height,
        "rows_rejected": rows.rejects.height,
        "span_start": iso(span[0]),
        "span_end": iso(span[1]),
        "time_zone": time_zone,
        "origin": iso(origin),
        "notes": [*notes, *unused],
        "gpuplanner": __version__,
    }


def require_some(rows: Rows, source: str, what: str = "job") -> None:
    """Refuse files of which no row is left."""
    if not rows.good.is_empty():
        return
    reasons = rows.rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    got = "; ".join(f"{reason} in {count} row(s)" for reason, count in reasons)
    text = message(
        f"{source}: {', '.join(rows.file_names()[:5])}",
        f"at least one readable {what}",
        f"{rows.count} rows and none of them: {got}" if rows.count else "no rows below the header",
        "Is this the right source?",
    )
    raise TraceFormatError(text)


ORDER_FAULTS = {
    "start before submission": pl.col("start_time") < pl.col("submit_time"),
    "end before start": pl.col("end_time") < pl.col("start_time"),
    "end before submission": pl.col("end_time") < pl.col("submit_time"),
}


def assemble(
    rows: Rows,
    *,
    source: str,
    time_zone: str | None = None,
    origin: datetime | None = None,
    last_seen: pl.Expr | None = None,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
    harmless: Sequence[str] = (),
    inventory: pl.DataFrame | None = None,
    boards: Mapping[str, str] | None = None,
    more_files: Sequence[TextFile] = (),
) -> Dataset:
    """Make a trace of rows that have the columns of ``schemas.Jobs``."""
    instants = [pl.col("submit_time", "start_time", "end_time").max()]
    seen = pl.max_horizontal(*instants, *([] if last_seen is None else [last_seen.max()]))
    rows = _without_duplicates(rows.reject(ORDER_FAULTS), seen)
    counted, inventory, findings = resolve_jobs(rows.good, inventory, boards)
    rows, jobs = satisfying_schema(replace(rows, good=counted), Jobs, source)
    require_some(rows, source)
    jobs = with_quarantine(jobs, inventory)
    sound = rows.good.filter(jobs["quarantined"].is_null())
    until: datetime = sound.select(seen).item()
    findings += run_checks(sound, [UNSORTED, *JOB_CHECKS, *checks])
    findings += [*file_findings(rows, [SUPERSEDED, *harmless]), *quarantine_findings(jobs, until)]
    jobs = jobs.sort("submit_time", maintain_order=True)
    told = believed(jobs)
    findings += gap_findings(told["submit_time"])
    known = provenance(
        rows,
        source=source,
        span=(told["submit_time"][0], until),
        time_zone=time_zone,
        origin=origin,
        notes=notes,
        more_files=more_files,
    )
    known |= {"gpu_hours": gpu_hours(told, until), **quarantine_facts(jobs, until)}
    found = Dataset({"jobs": jobs}, sorted_rejects(rows), report(findings), known)
    return found.with_tables(inventory=inventory)


def _without_duplicates(rows: Rows, seen: pl.Expr) -> Rows:
    """Keep one row of each job attempt: the first in a file, and of several files that of the latest export.

    Just as :func:`~.core.merge_jobs.merge` does it, so that files read at once or one by one give the same
    jobs.
    """
    if rows.good.select(pl.struct(KEY).n_unique()).item() == rows.good.height:
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
