"""Transcripts of nvidia-smi commands, each under a heading: the parts that ``--query-gpu`` printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Finding
from gpuplanner.inbox.core.lines.rows import Rows, together
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.telemetry.readers.pages import Hints, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.readers.smi_query import parse_query, query_telemetry
from gpuplanner.inbox.telemetry.readers.transcript_heading import stated_instant, zone_of

SOURCE = "smi-transcript"
HEADING = "# $ nvidia-smi --query-gpu=..."
QUERY = r"^# \$ nvidia-smi --query-gpu="
COMMAND = "# $ "
RULE = "#" * 20
STAMP = r"(?:^|,)\s*(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)(?:\.\d+)?\s*(?:,|$)"
"""A time as nvidia-smi prints it, in whichever column it stands."""


@reads(matches(r"\A#{20,}"))
def read_smi_transcript(paths: Sequence[str | Path], hints: Hints) -> Dataset:
    """Read the CSV that stands under each ``# $ nvidia-smi --query-gpu=...`` heading of a transcript.

    Rows of the other commands are not telemetry of the GPUs over time and are not counted. nvidia-smi prints local
    times; where the transcript begins with an instant that has a zone, as ``collected_at: 2026-06-22T21:04:17Z``,
    the first row tells their offset.
    """
    rows = read_pages(paths, lambda page: _parse(page, hints), source=SOURCE)
    taken = rows.good.filter(pl.lit(hints.tz is None) & pl.col("zone").is_not_null())
    zones = taken["zone"].unique().sort().to_list()
    if not zones:
        return query_telemetry(rows, SOURCE, hints)
    example = f"{rows.file_names()[taken['file'][0]]}: {taken['zone'][0]}"
    effect = "local times were read in the offset that the instant in the heading of their file shows"
    assumed = Finding("zone taken from the heading", "info", taken.height, effect, example)
    return query_telemetry(rows, SOURCE, replace(hints, tz=", ".join(zones)), [assumed])


def _parse(page: Rows, hints: Hints) -> Rows:
    """Every part of the transcript that is a query of GPUs."""
    raw = pl.col("raw")
    lines = page.good.with_columns(
        part=raw.str.starts_with(RULE).cum_sum(),
        query=raw.str.contains(QUERY).any().over(raw.str.starts_with(RULE).cum_sum()),
    )
    numbers = lines.filter("query")["part"].unique().sort().to_list()
    parts = [
        replace(page, good=part.select(page.good.columns), count=part.height, blank=0)
        for number in numbers
        if (part := lines.filter(pl.col("part") == number + 1, ~raw.str.starts_with(RULE))).height
    ]
    if not parts:
        got = "no output under such a heading"
        todo = "Is this the right source?"
        raise TraceFormatError(message(str(path_of(page)), f"a heading {HEADING!r}", got, todo))
    here = replace(hints, tz=_zone(page, parts, hints))
    rows = together(page.files, [parse_query(part, here) for part in parts])
    return replace(rows, good=rows.good.with_columns(zone=pl.lit(here.tz, pl.String)))


def _zone(page: Rows, parts: Sequence[Rows], hints: Hints) -> str | None:
    """Zone of the times of all parts: that of the hints, or the one that the heading shows."""
    raw = page.good["raw"]
    stated = stated_instant(raw.head(raw.str.starts_with(COMMAND).arg_max() or 0))
    stamps = [part.good["raw"].str.extract(STAMP).drop_nulls() for part in parts]
    local = pl.concat(stamps).str.to_datetime("%Y/%m/%d %H:%M:%S", strict=False)
    return hints.tz if stated is None else zone_of(stated, local, hints.tz, str(path_of(page)))
