"""A reading: rows of a source that are no jobs, with everything needed to trust or doubt them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner.inbox.core.findings import Check, Finding, report, run_checks
from gpuplanner.inbox.core.job_rows import satisfying_schema
from gpuplanner.inbox.core.provenance import file_findings, provenance, require_some, sorted_rejects
from gpuplanner.inbox.core.rows import Rows
from gpuplanner.schemas import TABLES, check

READING_SUMMARY = ("source", "table", "rows_in", "rows_kept", "rows_rejected", "span_start", "span_end")


@dataclass(frozen=True, eq=False)
class Reading:
    """Rows read from a source that is no list of jobs.

    Attributes
    ----------
    table : polars.DataFrame
        Table ``schemas.TABLES[kind]``, in its own order.
    rejects : polars.DataFrame
        Rows that cannot be read: ``file``, ``row`` (line number), ``reason``, ``raw``.
    quality : polars.DataFrame
        ``check``, ``severity``, ``rows``, ``effect``, ``example``; gravest first.
    provenance : mapping
        Where the rows came from and what was counted, with the name of the table and its ``totals``; ready
        for JSON.
    """

    table: pl.DataFrame
    rejects: pl.DataFrame
    quality: pl.DataFrame
    provenance: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """Name of the table in ``schemas.TABLES``."""
        return str(self.provenance["table"])

    def summary(self) -> dict[str, Any]:
        """The facts to show first: source, table, row counts, span in UTC and totals."""
        return {key: self.provenance[key] for key in READING_SUMMARY} | dict(self.provenance["totals"])

    def __repr__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.summary().items())
        return f"Reading({facts})"


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
) -> Reading:
    """Make a reading of rows that have the columns of a table.

    Parameters
    ----------
    rows : Rows
        Good rows with the columns of ``schemas.TABLES[kind]``; those that may be null may be absent.
    kind : str
        Name of the table.
    source : str
        Name of the source.
    order : sequence of str
        Columns to sort by.
    key : sequence of str
        Columns that no two rows may share; the later row is rejected.
    what : str
        What a row is, for messages.
    shape : callable, optional
        Turns the good rows of the files into the rows of the table, where they are not the same.
    checks : sequence of Check
        Conditions for the quality report.
    findings : sequence of Finding
        Further lines of the quality report.
    totals : mapping of str to polars.Expr, optional
        Figures over the whole table, by name.
    span : sequence of str
        Columns of instants whose first and last are the span.
    time_zone : str, optional
        Zone in which naive times were read.
    notes : sequence of str
        What a reader of the provenance must know.

    Returns
    -------
    Reading
        With rows in = rows kept + rows rejected.

    Raises
    ------
    TraceFormatError
        If no row is left.
    """
    if key:
        again = ~pl.struct(*key).is_first_distinct()
        rows = rows.reject({f"the same {' and '.join(key)} as an earlier row": again})
    if shape is None:
        rows, table = satisfying_schema(rows, TABLES[kind], source)
    else:
        table = check(shape(rows.good), TABLES[kind], where=source)
    require_some(rows, source, what)
    found = [*run_checks(rows.good, checks, of="line"), *findings, *file_findings(rows)]
    known = provenance(rows, source=source, span=_span(table, span), time_zone=time_zone, notes=notes)
    known["table"] = kind
    known["table_rows"] = table.height
    known["totals"] = table.select(**totals).row(0, named=True) if totals else {}
    ordered = table.sort(*order, maintain_order=True)
    return Reading(ordered, sorted_rejects(rows), report(found), known)


def _span(table: pl.DataFrame, names: Sequence[str]) -> tuple[datetime | None, datetime | None]:
    if not names:
        return None, None
    first, last = pl.min_horizontal(pl.col(*names).min()), pl.max_horizontal(pl.col(*names).max())
    start, end = table.select(first.alias("first"), last.alias("last")).row(0)
    return start, end
