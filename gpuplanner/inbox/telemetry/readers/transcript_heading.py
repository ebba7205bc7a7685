"""The instant that a transcript states in its heading, and the offset from UTC that its local times then show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.times import known_zone, to_utc

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
        todo = "State their zone with tz, for example tz='Asia/Kolkata'."
        raise TraceFormatError(message(where, "times with their zone", f"{first}, which shows {name}", todo))
    return name if offset else "UTC"


def _name(offset: timedelta) -> str:
    minutes = round(offset / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
