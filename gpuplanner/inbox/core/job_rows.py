"""Last step of every reader: order, duplicates, the schema, the quality report and the provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import dataframely as dy
import polars as pl

from gpuplanner.inbox.core.dataset import Dataset, gpu_hours
from gpuplanner.inbox.core.findings import (
    JOB_CHECKS,
    UNSORTED,
    Check,
    gap_findings,
    report,
    run_checks,
)
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.merge_jobs import KEY, SUPERSEDED
from gpuplanner.inbox.core.provenance import file_findings, provenance, require_some, sorted_rejects
from gpuplanner.inbox.core.quarantine import believed, quarantine_facts, quarantine_findings, with_quarantine
from gpuplanner.inbox.core.shares import resolve_jobs
from gpuplanner.schemas import Jobs, conform, filter_rows

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
