"""Last step of every reader whose rows are no jobs: order, repeats, the schema, the quality report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.findings import Check, Finding, combined, report, run_checks
from gpuplanner.inbox.core.job_rows import file_findings, provenance, require_some, satisfying_schema
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.schemas.domain import TABLES
from gpuplanner.schemas.check import check

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
        text = message(
            f"{kind} of {new.provenance['source']}",
            "rows of which nothing is there yet",
            f"{again.height} row(s) more, such as {words}",
            "Read the source anew from all its files, with --replace.",
        )
        raise TraceFormatError(text)
    rows = pl.concat([table, new.table]).sort(key, maintain_order=True)
    before, now = old.provenance, new.provenance
    totals = {
        name: _sum(value, now["totals"].get(name))
        for name, value in before["totals"].items()
        if name not in NO_SUM
    }
    facts = {
        **now,
        **{name: before[name] + now[name] for name in ("files", "rows_in", "rows_kept", "rows_rejected")},
        "table_rows": rows.height,
        "span_start": _extreme(min, before["span_start"], now["span_start"]),
        "span_end": _extreme(max, before["span_end"], now["span_end"]),
        "notes": list(dict.fromkeys([*before["notes"], *now["notes"]])),
        "totals": {name: value for name, value in now["totals"].items() if name not in NO_SUM} | totals,
    }
    found = combined(Finding(*row) for each in (old, new) for row in each.quality.iter_rows())
    return Dataset({kind: rows}, pl.concat([old.rejects, new.rejects]), report(found), facts)


def _sum(old: Any, new: Any) -> Any:  # noqa: ANN401 - a number, or exact digits as text
    if old is None or new is None:
        return new if old is None else old
    return str(Decimal(old) + Decimal(new)) if isinstance(old, str) else old + new


def _extreme(choose: Callable[..., str], *instants: str | None) -> str | None:
    known = [instant for instant in instants if instant is not None]
    return choose(known, key=datetime.fromisoformat) if known else None


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
