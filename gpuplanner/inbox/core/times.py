"""Instants: local wall-clock times to UTC, seconds from an origin, and what is unclear about them."""

from __future__ import annotations

import functools
import operator
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.names import nearest

INSTANT = pl.Datetime("us", "UTC")
MAX_SECONDS = 100 * 365.25 * 86400
"""Longest time span that is believed: 100 years."""

MAX_DAYS = 50_000
"""Longest span of dates that is tabled by day: 137 years."""

FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
LAST_INSTANT = datetime(2100, 1, 1, tzinfo=UTC)
"""Times outside these two are faults of a source, not dates."""

AMBIGUOUS = "ambiguous"
"""Column that :func:`to_utc` adds: the row has a time that the clock showed twice."""


def seconds(expression: pl.Expr) -> pl.Expr:
    """Seconds as a duration, to the microsecond.

    Examples
    --------
    >>> pl.select(seconds(pl.lit(1.5))).item()
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    return (expression * 1e6).round().cast(pl.Int64).cast(pl.Duration("us"))


def iso(instant: datetime | None) -> str | None:
    """Print an instant in UTC, the same way everywhere.

    Examples
    --------
    >>> iso(datetime(2025, 9, 26, 7, 19, tzinfo=UTC))
    '2025-09-26T07:19:00Z'
    """
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def known_zone(name: str) -> str:
    """Return the name of a time zone, or an offset of whole hours such as ``+02:00``, if there is such a one.

    Examples
    --------
    >>> known_zone("Europe/Oslo")
    'Europe/Oslo'
    """
    try:
        if name:
            pl.Series([FIRST_INSTANT.replace(tzinfo=None)]).dt.replace_time_zone(name)
            return name
    except pl.exceptions.ComputeError:
        pass
    near = nearest(name, sorted(zoneinfo.available_timezones())) or ["Europe/Oslo", "UTC"]
    text = message(
        f"time zone {name!r}", "a name of the time zone database", repr(name), f"Try {examples(near)}."
    )
    raise TraceFormatError(text)


def known_origin(origin: datetime | str) -> datetime:
    """Return the instant from which a source counts its seconds, in UTC.

    Examples
    --------
    >>> known_origin("2023-01-01T00:00:00+08:00").isoformat()
    '2022-12-31T16:00:00+00:00'
    """
    expected, todo = "a date and time with its offset from UTC", "Write it like 2023-01-01T00:00:00Z."
    try:
        instant = datetime.fromisoformat(origin) if isinstance(origin, str) else origin
    except ValueError as error:
        raise TraceFormatError(message("origin", expected, repr(origin), todo)) from error
    if instant.tzinfo is None or not FIRST_INSTANT <= instant < LAST_INSTANT:
        raise TraceFormatError(message("origin", expected, repr(str(origin)), todo))
    return instant.astimezone(UTC)


def to_utc(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Turn naive local times into UTC instants.

    When clocks go back, an hour is shown twice. Such a time is read as the earliest instant that is not
    before the other times of its row named earlier in `columns`, and the row is marked in the column
    ``ambiguous``. A time that the clock skipped becomes null.

    Examples
    --------
    >>> first, last = datetime(2025, 10, 26, 2, 50), datetime(2025, 10, 26, 2, 10)
    >>> night = to_utc(pl.DataFrame({"start": [first], "end": [last]}), ["start", "end"], "Europe/Oslo")
    >>> (night["end"] - night["start"]).to_list()
    [datetime.timedelta(seconds=1200)]
    """
    read = frame.with_columns(*(_by_day(frame[name], tz) for name in columns), pl.lit(False).alias(AMBIGUOUS))
    unread = [read[name].is_null() != frame[name].is_null() for name in columns]
    rows = functools.reduce(operator.or_, unread).arg_true()
    if rows.is_empty():
        return read
    exact = _by_clock(frame[rows], columns, tz)
    return read.with_columns(read[name].clone().scatter(rows, exact[name]) for name in (*columns, AMBIGUOUS))


def _by_day(naive: pl.Series, tz: str) -> pl.Series:
    """Instants on days whose two midnights have the same offset: quick. Null on days with a clock change.

    No zone changes its clocks twice within a day.
    """
    days = naive.dt.epoch("d")
    first, last = days.min(), days.max()
    if not (isinstance(first, int) and isinstance(last, int) and last - first < MAX_DAYS):
        return pl.Series(naive.name, [None], INSTANT).new_from_index(0, len(naive))
    midnights = pl.int_range(first, last + 2, dtype=pl.Int32, eager=True).cast(pl.Date).cast(naive.dtype)
    offsets = midnights - _zoned(midnights, tz, "null").dt.replace_time_zone(None)
    steady = offsets.to_frame("offset").select(
        pl.when(pl.col("offset") == pl.col("offset").shift(-1)).then(pl.col("offset"))
    )
    return (naive - steady.to_series().gather(days - first)).dt.replace_time_zone("UTC")


def _by_clock(frame: pl.DataFrame, columns: Sequence[str], tz: str) -> pl.DataFrame:
    """Instants on any day: every hour that is shown twice is looked at."""
    read = frame.with_columns(pl.lit(False).alias(AMBIGUOUS))
    for position, name in enumerate(columns):
        first, last = _zoned(frame[name], tz, "earliest"), _zoned(frame[name], tz, "latest")
        before = pl.max_horizontal(columns[:position]) if position else pl.lit(None, INSTANT)
        read = read.with_columns(
            pl.when(first < before).then(last).otherwise(first).alias(name),
            pl.col(AMBIGUOUS) | (first != last).fill_null(False),
        )
    return read


def _zoned(naive: pl.Series, tz: str, which: Literal["earliest", "latest", "null"]) -> pl.Series:
    return naive.dt.replace_time_zone(tz, ambiguous=which, non_existent="null").dt.convert_time_zone("UTC")
