"""Hours of the week in which jobs may start: nights and weekends for batch."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from gpuplanner.scenario import windows_of

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
OPEN_AFTER = timedelta(weeks=4)
"""So long after what was seen, hours no longer end: who still waits then starts."""
_PART = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))?)?\s*([\d:-]+)?")


def week_hours_of(text: str) -> list[tuple[int, int, int]] | None:
    """Day of the week, minute of that day and length in minutes of all hours; None if the text is something else.

    Examples
    --------
    >>> week_hours_of("fri-sat 22:30-01:00, sun"), week_hours_of("nights")
    ([(4, 1350, 150), (5, 1350, 150), (6, 0, 1440)], None)
    """
    found = []
    for part in text.lower().split(","):
        hit = _PART.fullmatch(part.strip())
        if hit is None or not any(hit.groups()):
            return None
        first, last, times = hit[1], hit[2] or hit[1], hit[3]
        spans = [(0, 24 * 60)] if times is None else windows_of(times)
        if spans is None or (first is not None and not {first, last} <= set(DAYS)):
            return None
        begin, count = (
            (0, 7) if first is None else (DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7 + 1)
        )
        found += [
            ((begin + day) % 7, minute, minutes)
            for day in range(count)
            for minute, minutes in spans
            if minutes
        ]
    return found or None


def openings(text: str, tz: str, zero: datetime, seen_s: float) -> tuple[float, ...]:
    """When hours begin and end, in turn, in seconds from an instant on; where they meet they are one.

    The last have no end: they begin some weeks after what was seen.

    Examples
    --------
    >>> from datetime import UTC
    >>> found = openings("20:00-06:00", "Europe/Berlin", datetime(2026, 3, 27, tzinfo=UTC), 4 * 86_400.0)
    >>> [(begin / 3600, end / 3600) for begin, end in zip(found[:6:2], found[1:6:2])]  # the clocks go on in the second
    [(-5.0, 5.0), (19.0, 29.0), (43.0, 52.0)]
    """
    zone, spells = ZoneInfo(tz), []
    local = zero.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for day in range(-1, int(seen_s // 86_400) + OPEN_AFTER.days + 8):
        today = local + timedelta(days=day)
        for weekday, minute, minutes in week_hours_of(text) or ():
            if today.weekday() == weekday:
                begin = today + timedelta(minutes=minute)
                ends = (begin, begin + timedelta(minutes=minutes))
                spells.append(tuple((one.replace(tzinfo=zone) - zero).total_seconds() for one in ends))
    found: list[list[float]] = []
    for begin_s, end_s in sorted(spells):
        if found and begin_s <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end_s)
        else:
            found.append([begin_s, end_s])
    return tuple(instant for spell in found for instant in spell)[:-1]
