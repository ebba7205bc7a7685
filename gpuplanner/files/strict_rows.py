"""Rows of a YAML file that a person wrote, read strictly: what is wrong is named with its line and the nearest name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from gpuplanner.errors import ScenarioError, message
from gpuplanner.names import nearest

REMEDY = "Correct the file."


def list_of(top: Any, key: str, file: str) -> list[tuple[Any, int]]:  # noqa: ANN401 - of a file
    """The items of a list, each with the line that it begins in; none where the key is absent."""
    found = top.get(key) or []
    if not isinstance(found, list):
        raise fault(file, top.lines[key], f"a list of {key}", repr(found))
    return [(one, min(getattr(one, "lines", {"": 1}).values(), default=1)) for one in found]


def keys_of(given: Any, known: Sequence[str], where: str, line: int, needed: Sequence[str] = ()) -> Any:  # noqa: ANN401
    """A mapping of known keys that has all that are needed; values that are null count as absent."""
    if not isinstance(given, dict):
        raise fault(where, line, f"keys {', '.join(known)}", repr(given))
    for key, value in given.items():
        if key not in known:
            near = nearest(str(key), known)[:1]
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            at = given.lines[key]  # type: ignore[attr-defined]
            raise fault(where, at, f"keys {', '.join(known)}", f"unknown {key!r}: {value!r}{hint}")
    absent = [key for key in needed if given.get(key) is None]
    if absent:
        raise fault(where, line, f"key {absent[0]}", f"only {', '.join(map(str, given))}")
    return given


def number_of(values: Any, key: str, file: str, low: float, high: float, *, whole: bool = False) -> float:  # noqa: ANN401
    """A number between two bounds, which are allowed."""
    value = values[key]
    sound = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not sound or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise fault(file, values.lines[key], f"{key}, {kind} from {low:g} to {high:g}", repr(value))
    return float(value)


def word_of(values: Any, key: str, file: str, words: Sequence[str]) -> str:  # noqa: ANN401
    """One of a few words."""
    value = values[key]
    if value not in words:
        near = nearest(str(value), words)[:1] or list(words)
        got = f"{value!r} (did you mean {near[0]!r}?)"
        raise fault(file, values.lines[key], f"{key} {' or '.join(words)}", got)
    return str(value)


def days_of(values: Any, file: str) -> tuple[str, str | None]:  # noqa: ANN401
    """ISO days of ``from`` and ``to``, of a month its first and its last."""
    found: list[str | None] = []
    for key in ("from", "to"):
        value = values.get(key)
        if value is None:
            found.append(None)
            continue
        try:
            month = re.fullmatch(r"(\d{4})-(\d\d)", str(value))
            day = date(int(month[1]), int(month[2]), 1) if month else date.fromisoformat(str(value)[:10])
            if month and key == "to":
                day = (day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        except ValueError:
            raise fault(file, values.lines[key], f"{key} as YYYY-MM-DD or YYYY-MM", repr(value)) from None
        found.append(day.isoformat())
    begin, end = found
    assert begin is not None
    if end is not None and end < begin:
        raise fault(file, values.lines["to"], f"to at or after {begin}", end)
    return begin, end


def fault(where: str, line: int, expected: str, got: str) -> ScenarioError:
    """What is wrong in a line of a file."""
    return ScenarioError(message(f"{where}, line {line}", expected, got, REMEDY))
