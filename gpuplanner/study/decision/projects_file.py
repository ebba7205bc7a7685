"""Projects and the calendar as a file says them, read strictly: what is wrong is named with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from gpuplanner.catalog import find_any_board
from gpuplanner.errors import GpuPlannerError, ScenarioError, message
from gpuplanner.files import read_yaml
from gpuplanner.names import nearest

KINDS = ("release", "freeze")
PROJECT = ("name", "team", "gpus", "jobs", "board", "from", "to", "chance")
JOBS = ("count", "gpus", "hours")
CALENDAR = ("kind", "name", "from", "to", "factor")
TODO = "Correct the file."


@dataclass(frozen=True)
class JobsADay:
    """So many jobs a day, each with so many GPUs for so many hours."""

    count: float
    gpus: int
    hours: float


@dataclass(frozen=True)
class Project:
    """Work that will come: GPUs that it holds all the time, or jobs a day; ISO dates, the last day included."""

    name: str
    team: str
    gpus: int | None
    jobs: JobsADay | None
    board: str | None
    begin: str
    end: str | None
    chance: float

    @property
    def at_once(self) -> int:
        """GPUs that it holds at once: as stated, else what its jobs hold on average, in whole jobs."""
        if self.jobs is None:
            return self.gpus or 0
        return math.ceil(self.jobs.count * self.jobs.hours / 24 - 1e-9) * self.jobs.gpus


@dataclass(frozen=True)
class CalendarEntry:
    """Days on which demand is so many times what it is on others."""

    kind: str
    name: str
    begin: str
    end: str
    factor: float


@dataclass(frozen=True)
class Announced:
    """All that a file of projects says."""

    projects: tuple[Project, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()


def read_projects(path: str | Path) -> Announced:
    r"""Read ``projects.yaml``: a list ``projects``, and a list ``calendar`` of releases and freezes.

    A project has ``name``, ``team``, ``from`` (a day, or a month as ``YYYY-MM``), and either ``gpus`` or ``jobs`` (a
    day: ``count``, ``gpus``, ``hours`` of each); it may have ``to``, ``board`` and ``chance`` (1). An entry of the
    calendar has ``kind`` (release or freeze), ``from``, ``to``, and ``factor`` on demand; it may have ``name``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "projects.yaml"
    ...     _ = file.write_text("projects:\n- {name: x, team: nlp, gpus: 64, from: 2026-03, chance: 0.7}\n")
    ...     read_projects(file).projects[0].begin
    '2026-03-01'
    """
    text = Path(path).name
    top = _keys(read_yaml(path), ("projects", "calendar"), f"{text}, the file", 1)
    rows, days = (_list(top, key, text) for key in ("projects", "calendar"))
    projects = tuple(_project(one, text, at) for one, at in rows)
    twice = [one.name for one in projects if sum(one.name == each.name for each in projects) > 1]
    if twice:
        raise _fault(text, 1, "projects of different names", repr(twice[0]))
    return Announced(projects, tuple(_entry(one, text, at) for one, at in days))


def _project(given: Any, file: str, line: int) -> Project:  # noqa: ANN401 - of a file
    values = _keys(given, PROJECT, f"{file}, project", line, needed=("name", "team", "from"))
    lines = values.lines
    if ("gpus" in values) == ("jobs" in values):
        raise _fault(
            file,
            line,
            "either gpus or jobs",
            f"{values['name']!r} with {'both' if 'gpus' in values else 'none'}",
        )
    jobs = None
    if "jobs" in values:
        inner = _keys(values["jobs"], JOBS, f"{file}, jobs", lines["jobs"], needed=JOBS)
        count, gpus, hours = (_number(inner, key, file, 1e-9, 1e6, whole=key == "gpus") for key in JOBS)
        jobs = JobsADay(count, int(gpus), hours)
    board = values.get("board")
    if board is not None:
        try:
            board = find_any_board(str(board))
        except GpuPlannerError as error:
            raise _fault(file, lines["board"], "a board of the catalogue", f"{board!r}: {error}") from None
    begin, end = _dates(values, file)
    return Project(
        name=str(values["name"]), team=str(values["team"]), jobs=jobs, board=board, begin=begin, end=end,
        gpus=int(_number(values, "gpus", file, 1, 1e6, whole=True)) if "gpus" in values else None,
        chance=_number(values, "chance", file, 0, 1) if "chance" in values else 1.0,
    )  # fmt: skip


def _entry(given: Any, file: str, line: int) -> CalendarEntry:  # noqa: ANN401 - of a file
    values = _keys(given, CALENDAR, f"{file}, calendar", line, needed=("kind", "from", "to", "factor"))
    kind = values["kind"]
    if kind not in KINDS:
        near = nearest(str(kind), KINDS)[:1] or list(KINDS)
        raise _fault(
            file, values.lines["kind"], f"kind {' or '.join(KINDS)}", f"{kind!r} (did you mean {near[0]!r}?)"
        )
    begin, end = _dates(values, file)
    assert end is not None
    return CalendarEntry(
        kind, str(values.get("name", kind)), begin, end, _number(values, "factor", file, 0, 100)
    )


def _list(top: Mapping[str, Any], key: str, file: str) -> list[tuple[Any, int]]:
    found = top.get(key) or []
    if not isinstance(found, list):
        raise _fault(file, top.lines[key], f"a list of {key}", repr(found))  # type: ignore[attr-defined]
    return [(one, min(getattr(one, "lines", {"": 1}).values(), default=1)) for one in found]


def _keys(given: Any, known: Sequence[str], where: str, line: int, needed: Sequence[str] = ()) -> Any:  # noqa: ANN401
    if not isinstance(given, dict):
        raise _fault(where, line, f"keys {', '.join(known)}", repr(given))
    for key, value in given.items():
        if key not in known:
            near = nearest(str(key), known)[:1]
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            at = given.lines[key]  # type: ignore[attr-defined]
            raise _fault(where, at, f"keys {', '.join(known)}", f"unknown {key!r}: {value!r}{hint}")
    absent = [key for key in needed if given.get(key) is None]
    if absent:
        raise _fault(where, line, f"key {absent[0]}", f"only {', '.join(map(str, given))}")
    return given


def _number(values: Any, key: str, file: str, low: float, high: float, *, whole: bool = False) -> float:  # noqa: ANN401
    value = values[key]
    sound = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not sound or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise _fault(file, values.lines[key], f"{key}, {kind} from {low:g} to {high:g}", repr(value))
    return float(value)


def _dates(values: Any, file: str) -> tuple[str, str | None]:  # noqa: ANN401
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
            raise _fault(file, values.lines[key], f"{key} as YYYY-MM-DD or YYYY-MM", repr(value)) from None
        found.append(day.isoformat())
    begin, end = found
    assert begin is not None
    if end is not None and end < begin:
        raise _fault(file, values.lines["to"], f"to at or after {begin}", end)
    return begin, end


def _fault(where: str, line: int, expected: str, got: str) -> ScenarioError:
    return ScenarioError(message(f"{where}, line {line}", expected, got, TODO))
