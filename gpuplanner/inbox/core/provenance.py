"""What a reader can say about its files whatever they hold: provenance, file faults, nothing left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import TraceFormatError, examples, file_name, message
from gpuplanner.inbox.core.findings import Finding, reject_findings
from gpuplanner.inbox.core.lines.rows import HEADER_AGAIN, Rows
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import iso


def file_findings(rows: Rows, harmless: Sequence[str] = ()) -> list[Finding]:
    """What the rejects, and the files themselves, make one doubt."""
    findings = reject_findings(rows.rejects, rows.count, [HEADER_AGAIN, *harmless])
    if rows.blank:
        findings.append(Finding("blank lines", "info", rows.blank, "none: not counted as rows", ""))
    names = [name for name, file in zip(rows.file_names(), rows.files, strict=True) if file.ends_open]
    if names:
        effect = "the last row may be cut short: compare with the source"
        findings.append(Finding("last line without a line end", "info", len(names), effect, examples(names)))
    return findings


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
