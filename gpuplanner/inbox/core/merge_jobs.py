"""Several traces of one source as one: where two exports tell of the same job, the later export is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset, gpu_hours)
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import JOB_CHECKS, Finding, combined, gap_findings, report, run_checks
from gpuplanner.inbox.core.quarantine import (
    QUARANTINED,
    RULES,
    believed,
    quarantine_facts,
    quarantine_findings,
    with_quarantine,
)

SUPERSEDED = "told again by a later export"
"""Reason of a row that gives way; its place in the file is not kept, its job is in ``raw``."""

KEY = ("job_id", "attempt")


def merge(traces: Sequence[Dataset]) -> Dataset:
    """Put traces of one source together; the order in which they are given changes nothing.

    An export is later if its observation ends later; of two that end together, the one whose file comes later
    by name. A job attempt that several tell of is taken from the latest of them, and the other rows are
    rejected with the reason :data:`SUPERSEDED`, so that still every row is kept or accounted for. Inventory,
    quotas and closed nodes are those of the latest export that has any.
    """
    parts = sorted(
        traces, key=lambda part: (datetime.fromisoformat(part.provenance["span_end"]), _names(part))
    )
    _require_alike(parts)
    # In one piece: pl.format of polars 2.1 ends in a panic where a filter empties the first of several pieces.
    rows = pl.concat([part.jobs.with_columns(part=pl.lit(n)) for n, part in enumerate(parts)], rechunk=True)
    last = pl.col("part") == pl.col("part").max().over(KEY)
    jobs, told_before = rows.filter(last), rows.filter(~last)
    inventory = _latest([part.inventory for part in parts])
    jobs = with_quarantine(jobs.drop("part").sort("submit_time", *KEY), inventory)
    files = dict(enumerate(_names(part) for part in parts))
    superseded = told_before.select(
        file=pl.col("part").replace_strict(files, return_dtype=pl.String),
        row=pl.lit(None, pl.Int64),
        reason=pl.lit(SUPERSEDED),
        raw=pl.format("job {}, attempt {}", "job_id", "attempt"),
    )
    rejects = pl.concat([*(part.rejects for part in parts), superseded.cast(REJECTS)])
    rejects = rejects.sort("file", "row", "raw", nulls_last=True, maintain_order=True)
    return Dataset(
        {"jobs": jobs}, rejects, _quality(parts, jobs, superseded), _provenance(parts, jobs, rejects.height)
    ).with_tables(
        inventory=inventory,
        queue_quotas=_latest([part.quotas for part in parts]),
        out_of_service=_latest([part.tables.get("out_of_service") for part in parts]),
        job_names=_all_of([part.tables.get("job_names") for part in parts]),
    )


def _names(part: Dataset) -> str:
    return ", ".join(file["name"] for file in part.provenance["files"])


def _require_alike(parts: Sequence[Dataset]) -> None:
    kinds = {(part.provenance["source"], part.provenance["time_zone"]) for part in parts}
    if len(kinds) != 1:
        got = "; ".join(sorted(f"{source} in zone {zone}" for source, zone in kinds)) or "none"
        todo = "Keep each in a folder of its own."
        raise TraceFormatError(message("traces to merge", "traces of one source and zone", got, todo))


def _latest(tables: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    return next((table for table in reversed(tables) if table is not None), None)


def _all_of(tables: Sequence[pl.DataFrame | None]) -> pl.DataFrame | None:
    """Rows of all tables, the later ones first, so that they count where two say something else."""
    known = [table for table in reversed(tables) if table is not None]
    return pl.concat(known).unique("name", keep="first", maintain_order=True) if known else None


def _quality(parts: Sequence[Dataset], jobs: pl.DataFrame, superseded: pl.DataFrame) -> pl.DataFrame:
    """Findings on the merged jobs, and those that only the files could tell."""
    told, until = believed(jobs), max(datetime.fromisoformat(part.provenance["span_end"]) for part in parts)
    found = run_checks(told, JOB_CHECKS) + gap_findings(told["submit_time"])
    found += quarantine_findings(jobs, until)
    if superseded.height:
        effect = "none: the latest row of each job counts"
        found.append(
            Finding(f"rejected: {SUPERSEDED}", "info", superseded.height, effect, superseded["raw"].min())  # type: ignore[arg-type]
        )
    remade = {check.check for check in JOB_CHECKS}
    remade |= {each.check for part in parts for each in gap_findings(part.jobs["submit_time"])}
    remade |= {QUARANTINED + rule for rule in RULES}
    before = (Finding(*row) for part in parts for row in part.quality.iter_rows())
    return report([*found, *combined(each for each in before if each.check not in remade)])


def _provenance(parts: Sequence[Dataset], jobs: pl.DataFrame, rejected: int) -> dict[str, Any]:
    facts: list[Mapping[str, Any]] = [part.provenance for part in parts]
    return {
        **facts[-1],
        "files": sorted((file for each in facts for file in each["files"]), key=lambda file: file["name"]),
        "rows_in": sum(each["rows_in"] for each in facts),
        "rows_kept": jobs.height,
        "rows_rejected": rejected,
        "span_start": min((each["span_start"] for each in facts), key=datetime.fromisoformat),
        "notes": list(dict.fromkeys(note for each in facts for note in each["notes"])),
        "gpu_hours": gpu_hours(believed(jobs), datetime.fromisoformat(facts[-1]["span_end"])),
        "unresolved_gpu_hours": sum(each.get("unresolved_gpu_hours", 0.0) for each in facts),
        "gpuplanner": __version__,
        **quarantine_facts(jobs, datetime.fromisoformat(facts[-1]["span_end"])),
    }
