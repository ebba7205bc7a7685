"""Transcripts of nvidia-smi commands, each under a heading: the parts that ``--query-gpu`` printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.telemetry.pages import Hints, path_of, read_pages, together
from gpuplanner.telemetry.result import Telemetry
from gpuplanner.telemetry.smi_query import parse_query, query_telemetry
from gpuplanner.traces.reader import Rows

SOURCE = "smi-transcript"
HEADING = "# $ nvidia-smi --query-gpu=..."
QUERY = r"^# \$ nvidia-smi --query-gpu="
RULE = "#" * 20


def read_smi_transcript(paths: Sequence[str | Path], hints: Hints | None = None) -> Telemetry:
    """Read the CSV that stands under each ``# $ nvidia-smi --query-gpu=...`` heading of a transcript.

    Rows of the other commands are not telemetry of the GPUs over time and are not counted.

    Parameters
    ----------
    paths : sequence of str or Path
        Text files, plain or gzip, one per node.
    hints : Hints, optional
        Zone of the times; node.

    Returns
    -------
    Telemetry
        One sample per row of the queries.

    Raises
    ------
    TraceFormatError
        If a file cannot be read or holds no such query.
    """
    hints = hints or Hints()
    rows = read_pages(paths, lambda page: _parse(page, hints), source=SOURCE)
    return query_telemetry(rows, SOURCE, hints)


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
    return together(page.files, [parse_query(part, hints) for part in parts])
