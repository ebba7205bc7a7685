"""Last step of every reader: order, duplicates, the schema, the quality report and the provenance."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from datetime import datetime

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.schemas import Jobs, conform, filter_rows
from gpuplanner.traces.quality import (
    JOB_CHECKS,
    UNSORTED,
    Check,
    Finding,
    gap_findings,
    reject_findings,
    report,
    run_checks,
)
from gpuplanner.traces.reader import HEADER_AGAIN, Rows
from gpuplanner.traces.textfile import TextFile
from gpuplanner.traces.times import iso
from gpuplanner.traces.trace import Trace, gpu_hours

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
    ids_made: bool = False,
    inventory: pl.DataFrame | None = None,
    more_files: Sequence[TextFile] = (),
) -> Trace:
    """Make a trace of rows that have the columns of ``schemas.Jobs``.

    Parameters
    ----------
    rows : Rows
        Good rows with the columns of ``schemas.Jobs`` (those that may be null may be absent).
    source : str
        Name of the source.
    time_zone : str, optional
        Zone in which naive times were read.
    origin : datetime, optional
        Instant from which seconds were counted.
    last_seen : polars.Expr, optional
        Instants at which rows were observed, where that is later than their own times; the observation
        ends at the last of all.
    checks : sequence of Check
        Conditions of this source for the quality report, beyond those on all jobs.
    notes : sequence of str
        What a reader of the provenance must know.
    harmless : sequence of str
        Reject reasons that are no faults.
    ids_made : bool
        The reader made the job ids itself, each different, so that none need be compared.
    inventory : polars.DataFrame, optional
        Table ``schemas.Inventory``.
    more_files : sequence of TextFile
        Files read beside those of the jobs.

    Returns
    -------
    Trace
        With rows in = rows kept + rows rejected.

    Raises
    ------
    TraceFormatError
        If no row is left.
    """
    rows = rows.reject(ORDER_FAULTS)
    if not ids_made:
        rows = _without_duplicates(rows)
    rows, jobs = _satisfying_schema(rows, source)
    if jobs.is_empty():
        raise TraceFormatError(_nothing_left(rows, source))
    findings = run_checks(rows.good, [UNSORTED, *JOB_CHECKS, *checks])
    jobs = jobs.sort("submit_time", maintain_order=True)
    instants = [pl.col("submit_time", "start_time", "end_time").max()]
    until: datetime = rows.good.select(
        pl.max_horizontal(*instants, *([] if last_seen is None else [last_seen.max()]))
    ).item()
    findings += reject_findings(rows.rejects, rows.count, [HEADER_AGAIN, *harmless])
    findings += gap_findings(jobs["submit_time"])
    findings += _file_findings(rows)
    unused = [f"columns not read: {', '.join(name[:40] for name in rows.unused)}"] if rows.unused else []
    rejects = rows.rejects.sort("file", "row", maintain_order=True)
    provenance = {
        "source": source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in [
                *zip(rows.file_names(), rows.files, strict=True),
                *((file.path.name, file) for file in more_files),
            ]
        ],
        "rows_in": rows.count,
        "rows_kept": jobs.height,
        "rows_rejected": rejects.height,
        "span_start": iso(jobs["submit_time"][0]),
        "span_end": iso(until),
        "gpu_hours": gpu_hours(jobs, until),
        "time_zone": time_zone,
        "origin": iso(origin),
        "notes": [*notes, *unused],
        "gpuplanner": importlib.metadata.version("gpuplanner"),
    }
    return Trace(jobs, rejects, report(findings), provenance, inventory)


def _without_duplicates(rows: Rows) -> Rows:
    """Keep the first row of each job attempt."""
    if rows.good["job_id"].n_unique() == rows.good.height:
        return rows
    again = ~pl.struct("job_id", "attempt").is_first_distinct()
    return rows.reject({"the same job and attempt as an earlier row": again})


def _satisfying_schema(rows: Rows, source: str) -> tuple[Rows, pl.DataFrame]:
    """Reject what the readers' own checks left and the table does not allow; give the jobs too."""
    jobs = conform(rows.good, Jobs, where=source)
    if Jobs.is_valid(jobs):
        return rows, jobs
    jobs, bad = filter_rows(jobs, Jobs)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    faults = {
        str(reason): number.is_in(part["row_number"].implode())
        for (reason,), part in bad.partition_by("reason", as_dict=True, maintain_order=True).items()
    }
    return rows.reject(faults), jobs


def _file_findings(rows: Rows) -> list[Finding]:
    """What the files themselves make one doubt."""
    findings = []
    if rows.blank:
        findings.append(Finding("blank lines", "info", rows.blank, "none: not counted as rows", ""))
    names = [name for name, file in zip(rows.file_names(), rows.files, strict=True) if file.ends_open]
    if names:
        effect = "the last row may be cut short: compare with the source"
        findings.append(Finding("last line without a line end", "info", len(names), effect, examples(names)))
    return findings


def _nothing_left(rows: Rows, source: str) -> str:
    reasons = rows.rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    got = "; ".join(f"{reason} in {count} row(s)" for reason, count in reasons)
    return message(
        f"{source}: {', '.join(rows.file_names()[:5])}",
        "at least one readable job",
        f"{rows.count} rows and none of them: {got}" if rows.count else "no rows below the header",
        "Is this the right source?",
    )
