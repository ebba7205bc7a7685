"""Transcripts of nvidia-smi commands, each under a heading: the parts that ``--query-gpu`` printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from gpuplanner.errors import OTHER_SOURCE, TraceFormatError, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.rows import Rows, together
from gpuplanner.inbox.core.source import matches
from gpuplanner.inbox.core.source_checks import source_finding
from gpuplanner.inbox.core.times import known_zone, to_utc
from gpuplanner.inbox.telemetry.readers.pages import Hints, path_of, read_pages, reads
from gpuplanner.inbox.telemetry.readers.smi_csv import parse_query, query_telemetry

INSTANT = re.compile(r"^#?\s*\w+:\s+(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))\s*$")
WITHIN = timedelta(minutes=5)
"""Longest time that may pass from the heading to the first row."""
HALF_HOUR = timedelta(minutes=30)
FURTHEST = timedelta(hours=14)
"""No zone is further from UTC; none but UTC itself is nearer to it than an hour."""
ONE_OFFSET = timedelta(days=1)
"""Times this close to the heading are read in its offset: later, clocks may have been changed."""


def stated_instant(lines: Iterable[str]) -> datetime | None:
    """The instant in a line such as ``collected_at: 2026-06-22T21:04:17Z``; None if there is not exactly one.

    Examples
    --------
    >>> stated_instant(["# a heading", "collected_at:   2026-06-22T21:04:17Z", "os: windows"]).isoformat()
    '2026-06-22T21:04:17+00:00'
    """
    found = {match[1] for line in lines if (match := INSTANT.match(line))}
    try:
        return datetime.fromisoformat(found.pop()) if len(found) == 1 else None
    except ValueError:
        return None


def shown_offset(stated: datetime, local: datetime) -> timedelta | None:
    """Offset from UTC of a clock that showed `local` just after an instant; None if no offset fits.

    Examples
    --------
    >>> str(shown_offset(datetime.fromisoformat("2026-06-22T21:04:17Z"), datetime(2026, 6, 22, 23, 4, 18)))
    '2:00:00'
    """
    apart = local - stated.astimezone(UTC).replace(tzinfo=None)
    offset = HALF_HOUR * round(apart / HALF_HOUR)
    possible = not offset or timedelta(hours=1) <= abs(offset) <= FURTHEST
    return offset if possible and abs(apart - offset) <= WITHIN else None


def zone_of(stated: datetime, local: pl.Series, tz: str | None, where: str) -> str | None:
    """Zone of local times under a heading: the one given, if it does not contradict, else that of the heading.

    Examples
    --------
    >>> stated = datetime.fromisoformat("2026-06-22T21:04:17Z")
    >>> zone_of(stated, pl.Series([datetime(2026, 6, 22, 23, 4, 18)]), None, "n1.txt")
    '+02:00'
    """
    first, last = local.min(), local.max()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return tz
    offset = shown_offset(stated, first)
    if offset is None:
        return tz
    name = _name(offset)
    if tz is not None:
        instant, shown_twice = to_utc(pl.DataFrame({"local": [first]}), ["local"], known_zone(tz)).row(0)
        if instant is None or shown_twice or abs(first - instant.replace(tzinfo=None) - offset) <= WITHIN:
            return tz
        got = f"{first} in {tz}, which is {instant:%Y-%m-%d %H:%M:%S} UTC"
        todo = f"The times show the offset {name}: state such a zone or none. If the heading is wrong, take it out."
        raise TraceFormatError(message(where, f"times that fit the heading, {stated}", got, todo))
    if last - first > ONE_OFFSET:
        return None
    if offset % timedelta(hours=1):
        todo = "State their zone, for example tz='Asia/Kolkata' (--tz Asia/Kolkata)."
        raise TraceFormatError(message(where, "times with their zone", f"{first}, which shows {name}", todo))
    return name if offset else "UTC"


def _name(offset: timedelta) -> str:
    minutes = round(offset / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


TRANSCRIPT_SOURCE = "smi-transcript"
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
    rows = read_pages(paths, lambda page: _parse(page, hints), source=TRANSCRIPT_SOURCE)
    taken = rows.good.filter(pl.lit(hints.tz is None) & pl.col("zone").is_not_null())
    zones = taken["zone"].unique().sort().to_list()
    if not zones:
        return query_telemetry(rows, TRANSCRIPT_SOURCE, hints)
    example = f"{rows.file_names()[taken['file'][0]]}: {taken['zone'][0]}"
    assumed = source_finding("rows: zone of the heading", taken.height, example)
    return query_telemetry(rows, TRANSCRIPT_SOURCE, replace(hints, tz=", ".join(zones)), [assumed])


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
        todo = OTHER_SOURCE
        raise TraceFormatError(message(str(path_of(page)), f"a heading {HEADING!r}", got, todo))
    here = replace(hints, tz=_zone(page, parts, hints))
    rows = together(page.files, [parse_query(part, here) for part in parts])
    return rows.with_columns(zone=pl.lit(here.tz, pl.String))


def _zone(page: Rows, parts: Sequence[Rows], hints: Hints) -> str | None:
    """Zone of the times of all parts: that of the hints, or the one that the heading shows."""
    raw = page.good["raw"]
    stated = stated_instant(raw.head(raw.str.starts_with(COMMAND).arg_max() or 0))
    stamps = [part.good["raw"].str.extract(STAMP).drop_nulls() for part in parts]
    local = pl.concat(stamps).str.to_datetime("%Y/%m/%d %H:%M:%S", strict=False)
    return hints.tz if stated is None else zone_of(stated, local, hints.tz, str(path_of(page)))
