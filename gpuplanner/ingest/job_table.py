"""The job table: order, duplicates, schema, and merging of exports of one source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl

from gpuplanner._version import __version__
from gpuplanner.core.errors import OTHER_SOURCE, TraceFormatError, file_name
from gpuplanner.core.schema_checks import check, conform, filter_rows
from gpuplanner.core.schemas import TABLES, Jobs
from gpuplanner.ingest.dataset import Dataset, gpu_hours
from gpuplanner.ingest.delimited_rows import HEADER_AGAIN, REJECTS, Rows, names_of
from gpuplanner.ingest.gpu_shares import Counting
from gpuplanner.ingest.large_tables import PART_ROWS, LongRows, write_parts
from gpuplanner.ingest.quality_report import (
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
from gpuplanner.ingest.quarantine import (
    HELD_ON_NODES,
    QUARANTINED,
    RULES,
    believed,
    outgrown_nodes,
    quarantine_facts,
    quarantine_findings,
    quarantine_of,
    require_believed,
    with_past_nodes,
    with_quarantine,
)
from gpuplanner.ingest.source_fields import iso
from gpuplanner.ingest.text_files import TextFile

SUPERSEDED = "repeated by a later export"
"""Reason of a row that gives way; its place in the file is not kept, its job is in ``raw``."""

KEY = ("job_id", "attempt")


def merge(traces: Sequence[Dataset]) -> Dataset:
    """Put traces of one source together; the order in which they are given changes nothing.

    An export is later if its observation ends later; of two that end together, the one whose file comes later
    by name. A job attempt that several tell of is taken from the latest of them, and the other rows are
    rejected with the reason :data:`SUPERSEDED`, so that still every row is kept or accounted for. Inventory,
    quotas and closed nodes are those of the latest export that has any.
    """
    parts = sorted(traces, key=lambda part: (datetime.fromisoformat(part.provenance["span_end"]), _names(part)))
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
        raise TraceFormatError("traces to merge", "traces of one source and zone", got, todo)


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
        first = str(superseded["raw"].min())
        found.append(Finding(f"rejected: {SUPERSEDED}", "info", superseded.height, effect, first))
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


UNRESOLVED = "unresolved_gpus"
"""Column of rows on their way to jobs: GPUs, about, of a job whose number of GPUs is not known."""


def file_findings(rows: Rows | LongRows, harmless: Sequence[str] = ()) -> list[Finding]:
    """What the rejects, and the files themselves, make one doubt."""
    faults = reject_findings(rows.reasons, rows.count, [HEADER_AGAIN, *harmless])
    return [*faults, *of_files(names_of(rows.files), [file.ends_open for file in rows.files], rows.blank)]


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
    named = [*zip(names_of(rows.files), rows.files, strict=True)]
    named += [(file_name(file.path), file) for file in more_files]
    return {
        "source": source,
        "files": [{"name": name, "sha256": file.sha256, "bytes": file.bytes} for name, file in named],
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
    got = f"{rows.count} rows and none of them: {got}" if rows.count else "no rows below the header"
    where = f"{source}: {', '.join(names_of(rows.files)[:5])}"
    raise TraceFormatError(where, f"at least one readable {what}", got, OTHER_SOURCE)


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

    `findings` are those of the reader itself; `any_device` as ``gpu_shares.resolve_jobs`` takes it. Long rows
    hold no attempt twice. With a folder ``into``, jobs and rejects are written there, and what is given back has
    neither.
    """
    latest = pl.max_horizontal(pl.col("submit_time", "start_time", "end_time").max())
    seen = latest if last_seen is None else pl.max_horizontal(latest, last_seen.max())
    if isinstance(rows, Rows):
        long = LongRows()
        long.add(_without_duplicates(rows.reject(ORDER_FAULTS), seen))
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

    def marked_part(part: Rows) -> Rows:
        known = part.good.drop("quarantined")
        return replace(part, good=known.join(marks, on="place", how="left", maintain_order="left"))

    if marks.height:
        long.then(marked_part).settle()
    checked, marked, until, hours = _check_jobs(long, seen, [*JOB_CHECKS, *checks])
    found = [*counting.findings, *checked, *findings, *file_findings(long, [SUPERSEDED, *harmless])]
    found += quarantine_findings(marked, until)
    inventory = counting.inventory
    if inventory is not None:
        held_on_nodes = pl.concat(long.good.tables(HELD_ON_NODES))
        found += outgrown_nodes(held_on_nodes, inventory)
        inventory = with_past_nodes(believed(held_on_nodes), inventory)
    told = hours.drop_nulls()
    found += gap_findings(pl.concat([told["first"], told["last"]]).sort())
    held: list[float] = []
    unresolved: list[float] = []

    def ordered() -> Iterator[pl.DataFrame]:
        for part in long.good.in_order("submit_time", _bounds(hours), ["place"]):
            jobs = part.select(*Jobs.columns())
            unresolved.append(unresolved_gpu_hours(believed(part), until))
            held.append(gpu_hours(believed(jobs), until))
            yield jobs

    if into is None:
        rejects = pl.concat(long.rejects.tables()).sort("file", "row", maintain_order=True)
        tables = {"jobs": pl.concat(ordered(), rechunk=True)}
    else:
        rejects, tables = pl.DataFrame(schema=REJECTS), {}
        types = pl.Schema({name: column.dtype for name, column in Jobs.columns().items()})
        write_parts(ordered, types, into / "jobs.parquet")
        long.good.clear()
        bounds = list(range(PART_ROWS, long.last_reject + 1, PART_ROWS))
        write_parts(lambda: long.rejects.in_order("row", bounds), REJECTS, into / "rejects.parquet")
        long.rejects.clear()
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
    long: LongRows, seen: pl.Expr, checks: Sequence[Check]
) -> tuple[list[Finding], pl.DataFrame, datetime, pl.DataFrame]:
    """Findings, the jobs in quarantine, the end of the observation, and the hours of all jobs.

    Hours: ``hour``, ``rows`` submitted in it, the ``first`` and ``last`` of those believed.
    """
    findings: list[Finding] = []
    marked, hours, until = [], [], []
    latest = pl.lit(None, pl.Datetime("us", "UTC"))
    for part in long.good.tables():
        sound = believed(part)
        before = pl.max_horizontal(pl.col("submit_time").cum_max(), latest)
        unsorted = replace(UNSORTED, condition=pl.col("submit_time") < before)
        findings += run_checks(sound, [unsorted, *checks])
        marked.append(part.filter(pl.col("quarantined").is_not_null()))
        true = pl.col("submit_time").filter(pl.col("quarantined").is_null())
        submitted = part.group_by(hour=pl.col("submit_time").dt.truncate("1h"))
        hours.append(submitted.agg(rows=pl.len(), first=true.min(), last=true.max()))
        if sound.height:
            until.append(sound.select(seen).item())
            latest = pl.lit(sound.select(before.max()).item(), pl.Datetime("us", "UTC"))
    by_hour = pl.concat(hours).group_by("hour")
    summed = by_hour.agg(pl.col("rows").sum(), pl.col("first").min(), pl.col("last").max())
    return combined(findings), pl.concat(marked), max(until), summed.sort("hour")


def _bounds(hours: pl.DataFrame) -> list[datetime]:
    """Hours that part the jobs, in the order of their submission, into as many as may be in memory."""
    part = (hours["rows"].cum_sum() - 1) // PART_ROWS
    return hours.filter((part.diff() > 0).fill_null(value=False))["hour"].to_list()


def _without_duplicates(rows: Rows, seen: pl.Expr) -> Rows:
    """Keep one row of each job attempt: the first in a file, and of several files that of the latest export.

    Just as :func:`merge` does it, so that files read at once or one by one give the same
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


KEYS = {
    "inventory": ("node",),
    "requests": ("service", "time"),
    "occupancy": ("pool", "resource", "time"),
    "quotas": ("pool", "day"),
    "gauges": ("subject", "metric", "kind", "time"),
    "step_times": ("job", "worker"),
    "distributions": ("series",),
    "job_states": ("job_id",),
    "out_of_service": ("node", "start_time"),
    "queue_quotas": ("tenant", "flavor", "resource"),
    "charges": ("ProviderName", "BillingAccountId", "BillingPeriodStart"),
}
"""Columns of which a second word about the same values would contradict the first: a bill is that of a period."""

NO_SUM = ("models", "series", "pools", "jobs", "containers", "steps", "mean_step_time", "mean_value")
"""Totals that do not add up over files: they are left out once there are several."""


def merge_tables(old: Dataset, new: Dataset, table: pl.DataFrame) -> Dataset:
    """Lay new rows beside those that a source gave before."""
    kind = new.kind
    key = list(KEYS[kind])
    again = new.table.select(key).join(table.select(key), on=key, how="semi", nulls_equal=True)
    if again.height:
        words = ", ".join(f"{name} {value}" for name, value in again.row(0, named=True).items())
        where, got = f"{kind} of {new.provenance['source']}", f"{again.height} row(s) more, such as {words}"
        todo = "Import all files of the source again with --replace."
        raise TraceFormatError(where, "rows of which nothing is there yet", got, todo)
    rows = pl.concat([table, new.table]).sort(key, maintain_order=True)
    before, now = old.provenance, new.provenance
    first, more = before["totals"], now["totals"]
    summed = [name for name in {**more, **first} if name not in NO_SUM]
    facts = {
        **now,
        **{name: before[name] + now[name] for name in ("files", "rows_in", "rows_kept", "rows_rejected")},
        "table_rows": rows.height,
        "span_start": _extreme(min, before["span_start"], now["span_start"]),
        "span_end": _extreme(max, before["span_end"], now["span_end"]),
        "notes": list(dict.fromkeys([*before["notes"], *now["notes"]])),
        "totals": {name: _sum(first.get(name), more.get(name)) for name in summed},
    }
    found = combined(Finding(*row) for each in (old, new) for row in each.quality.iter_rows())
    return Dataset({kind: rows}, pl.concat([old.rejects, new.rejects]), report(found), facts)


def _sum(old: Any, new: Any) -> Any:  # noqa: ANN401 - a number, or exact digits as text
    if old is None or new is None:
        return new if old is None else old
    return str(Decimal(old) + Decimal(new)) if isinstance(old, str) else old + new


def _extreme(choose: Callable[..., str | None], *instants: str | None) -> str | None:
    return choose(filter(None, instants), key=datetime.fromisoformat, default=None)


def assemble_reading(
    rows: Rows,
    kind: str,
    *,
    source: str,
    order: Sequence[str],
    key: Sequence[str] = (),
    what: str = "row",
    shape: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    checks: Sequence[Check] = (),
    findings: Sequence[Finding] = (),
    totals: Mapping[str, pl.Expr] | None = None,
    span: Sequence[str] = ("time",),
    time_zone: str | None = None,
    notes: Sequence[str] = (),
    harmless: Sequence[str] = (),
) -> Dataset:
    """Make a dataset of rows that have the columns of a table; rows of `harmless` reasons are skipped, not faulty."""
    if key:
        again = ~pl.struct(*key).is_first_distinct()
        rows = rows.reject({f"the same {' and '.join(key)} as an earlier row": again})
    if shape is None:
        rows, table = satisfying_schema(rows, TABLES[kind], source)
    else:
        table = check(shape(rows.good), TABLES[kind], where=source)
    require_some(rows, source, what)
    found = [*run_checks(rows.good, checks, of="line"), *findings, *file_findings(rows, harmless)]
    known = provenance(rows, source=source, span=_span(table, span), time_zone=time_zone, notes=notes)
    known["table"] = kind
    known["table_rows"] = table.height
    known["totals"] = table.select(**totals).row(0, named=True) if totals else {}
    ordered = table.sort(*order, maintain_order=True)
    rejects = rows.rejects.sort("file", "row", maintain_order=True)
    return Dataset({kind: ordered}, rejects, report(found), known)


def assemble_nodes(
    rows: Rows,
    nodes: pl.DataFrame,
    findings: Sequence[Finding],
    *,
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """Make a dataset of an inventory whose boards are known."""
    return assemble_reading(
        replace(rows, good=nodes, count=nodes.height + rows.rejects.height),
        "inventory",
        source="nodes",
        order=["node"],
        what="node",
        checks=checks,
        findings=findings,
        totals={
            "gpus": pl.col("gpus").cast(pl.Int64).sum(),
            "models": pl.col("gpu_model").drop_nulls().n_unique(),
        },
        span=(),
        notes=notes,
    )


def _span(table: pl.DataFrame, names: Sequence[str]) -> tuple[datetime | None, datetime | None]:
    if not names:
        return None, None
    first, last = pl.min_horizontal(pl.col(*names).min()), pl.max_horizontal(pl.col(*names).max())
    start, end = table.select(first.alias("first"), last.alias("last")).row(0)
    return start, end
