"""Last step of every reader of telemetry: devices and times, limits, repeats, ladder, quality, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from gpuplanner._version import __version__
from gpuplanner.errors import OTHER_SOURCE, TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.reject_columns import REJECTS
from gpuplanner.inbox.core.findings import Finding, of_files, report
from gpuplanner.inbox.core.lines.rows import Rows, names_of
from gpuplanner.inbox.core.lines.text_blocks import FileBlocks, texts_of_lines
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import iso
from gpuplanner.inbox.telemetry.gathering import Gathering
from gpuplanner.inbox.telemetry.hold_times import with_until
from gpuplanner.inbox.telemetry.joining import AGAIN, CONTRADICTION, Joiner
from gpuplanner.inbox.telemetry.readers.metrics import Metric
from gpuplanner.inbox.telemetry.sample_findings import clock_went_back, of_seen, overlaps, rejected
from gpuplanner.inbox.telemetry.sample_spans import SampleSpans, Way, files_of, texts_of

SHOWN_NAMES = 30


@dataclass
class Story:
    """What a reader says of its files beside their rows.

    - ``source``: Name of the source.
    - ``time_zone``: Zone in which naive times were read.
    - ``notes``: What a reader of the provenance must know.
    - ``more``: Findings of this source.
    - ``processes``: Table ``schemas.Processes``; then rows are processes, of which a device and time may have
      several.
    - ``empty_is_fine``: No rows are an answer.
    """

    source: str
    time_zone: str | None = None
    notes: Sequence[str] = ()
    more: Sequence[Finding] = ()
    processes: pl.DataFrame | None = None
    empty_is_fine: bool = False


def telemetry_of(rows: Rows, story: Story, metrics: dict[str, Metric] | None = None) -> Dataset:
    """Telemetry of a source with one row per device and time or, of `metrics`, per device, time and metric."""
    gathered = Gathering(metrics)
    gathered.add(rows)
    return finish(gathered, rows.files, story)


def finish(
    gathered: Gathering,
    files: Sequence[TextFile],
    story: Story,
    *,
    within_s: float = 0.0,
    way: Way | None = None,
    again: FileBlocks | None = None,
) -> Dataset:
    """Telemetry of all rows that were gathered."""
    way = way or Way()
    names = names_of(files)
    where = f"{story.source}: {', '.join(names[:5])}"
    gathered.signs.refuse_mixed(where)
    rejects = pl.concat([pl.DataFrame(schema=REJECTS), *gathered.rejects])
    if not gathered.good and not (story.empty_is_fine and rejects.is_empty()):
        raise TraceFormatError(_nothing_left(gathered.count, rejects, where))
    joiner = Joiner(gathered, within_s, story.processes is not None, way.window_rows)
    spans = SampleSpans(joiner, way)
    samples = with_until(spans.take())
    seen = spans.seen.settle()
    days = seen.coverage()
    came_twice = _came_twice(joiner, names, again)
    rejects = pl.concat([rejects, came_twice.drop("id")])
    gone = came_twice["id"].to_numpy()
    first, last = seen.span()
    unused = [name[:40] for name in (*gathered.unused, *sorted(gathered.other_metrics))]
    more_names = f" and {len(unused) - SHOWN_NAMES} more" if len(unused) > SHOWN_NAMES else ""
    provenance = {
        "source": story.source,
        "files": [
            {"name": name, "sha256": file.sha256, "bytes": file.bytes}
            for name, file in zip(names, files, strict=True)
        ],
        "rows_in": gathered.count,
        "rows_kept": gathered.good - came_twice.height,
        "rows_rejected": rejects.height,
        "samples": seen.samples,
        "span_start": iso(first),
        "span_end": iso(last),
        "gpu_hours": seen.observed_gpu_hours(),
        "boards": spans.boards(),
        "time_zone": story.time_zone,
        "notes": [
            *story.notes,
            *([f"not read: {', '.join(unused[:SHOWN_NAMES])}{more_names}"] if unused else []),
        ],
        "gpuplanner": __version__,
    }
    falls, file, line = gathered.falls(gone)
    found = [
        *rejected(rejects, gathered.count),
        *of_seen(seen, days),
        *overlaps(gathered.spans_without(gone), gathered.devices.rows, names),
        *clock_went_back(falls, f"{names[file]}, line {line}"),
        *of_files(names, [file.ends_open for file in files], gathered.blank),
        *story.more,
    ]
    tables = {"coverage": days} if way.into is not None else {"samples": samples, "coverage": days}
    if story.processes is not None:
        tables["processes"] = story.processes.unique(maintain_order=True)
    ordered = rejects.sort("file", "row", maintain_order=True)
    told = spans.told(names) if gathered.keeps_text and way.into is None else None
    return Dataset(tables, ordered, report(found), provenance, told=told)


def _came_twice(joiner: Joiner, names: list[str], again: FileBlocks | None) -> pl.DataFrame:
    """Rows that came twice, for the reject table, with their numbers, by which they are ordered."""
    gathered = joiner.gathered
    parts = [
        pl.DataFrame(
            {
                "id": places[0],
                "row": places[1],
                "reason": pl.Series([reason] * places.shape[1], dtype=pl.String),
            }
        )
        for reason, found in ((AGAIN, joiner.again), (CONTRADICTION, joiner.contradicting))
        for places in found
    ]
    schema = {"id": pl.Int64, "row": pl.Int64, "reason": pl.String}
    rows = pl.concat([pl.DataFrame(schema=schema), *parts]).sort("id")
    ids = rows["id"].to_numpy()
    numbers = gathered.file_of(ids) if len(ids) else ids
    if gathered.keeps_text or again is None:
        raw = texts_of(gathered, ids)
    else:
        raw = _read_again(again, rows.select("row", number=pl.Series(numbers, dtype=pl.Int64)))
    found = rows.with_columns(file=files_of(gathered, ids, names), raw=raw)
    return found.select("id", *(pl.col(name).cast(dtype) for name, dtype in REJECTS.items()))


def _read_again(blocks: FileBlocks, rows: pl.DataFrame) -> pl.Series:
    """Texts of lines, by number of file and line."""
    wanted: dict[int, set[int]] = {}
    for row, number in rows.select("row", "number").iter_rows():
        wanted.setdefault(number, set()).add(row)
    texts = texts_of_lines(blocks, wanted)
    return pl.Series([texts[number, row] for row, number in rows.iter_rows()], dtype=pl.String)


def _nothing_left(count: int, rejects: pl.DataFrame, where: str) -> str:
    reasons = rejects["reason"].value_counts(sort=True).head(5).iter_rows()
    got = "; ".join(f"{reason} in {rows} row(s)" for reason, rows in reasons)
    return message(
        where,
        "at least one readable sample",
        f"{count} rows and none of them: {got}" if count else "no rows",
        OTHER_SOURCE,
    )
