"""Projects and the calendar as a file says them, read strictly: what is wrong is named with its line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplanner.catalog.loader import find_any_board
from gpuplanner.errors import GpuPlannerError
from gpuplanner.files.text import read_yaml
from gpuplanner.files.strict_rows import days_of, fault, keys_of, list_of, number_of, word_of

KINDS = ("release", "freeze")
PROJECT = ("name", "team", "gpus", "jobs", "board", "from", "to", "chance")
JOBS = ("count", "gpus", "hours")
CALENDAR = ("kind", "name", "from", "to", "factor")


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
    top = keys_of(read_yaml(path), ("projects", "calendar"), f"{text}, the file", 1)
    rows, days = (list_of(top, key, text) for key in ("projects", "calendar"))
    projects = tuple(_project(one, text, at) for one, at in rows)
    twice = [one.name for one in projects if sum(one.name == each.name for each in projects) > 1]
    if twice:
        raise fault(text, 1, "projects of different names", repr(twice[0]))
    return Announced(projects, tuple(_entry(one, text, at) for one, at in days))


def _project(given: Any, file: str, line: int) -> Project:  # noqa: ANN401 - of a file
    values = keys_of(given, PROJECT, f"{file}, project", line, needed=("name", "team", "from"))
    lines = values.lines
    if ("gpus" in values) == ("jobs" in values):
        got = f"{values['name']!r} with {'both' if 'gpus' in values else 'none'}"
        raise fault(file, line, "either gpus or jobs", got)
    jobs = None
    if "jobs" in values:
        inner = keys_of(values["jobs"], JOBS, f"{file}, jobs", lines["jobs"], needed=JOBS)
        count, gpus, hours = (number_of(inner, key, file, 1e-9, 1e6, whole=key == "gpus") for key in JOBS)
        jobs = JobsADay(count, int(gpus), hours)
    board = values.get("board")
    if board is not None:
        try:
            board = find_any_board(str(board))
        except GpuPlannerError as error:
            raise fault(file, lines["board"], "a board of the catalogue", f"{board!r}: {error}") from None
    begin, end = days_of(values, file)
    return Project(
        name=str(values["name"]), team=str(values["team"]), jobs=jobs, board=board, begin=begin, end=end,
        gpus=int(number_of(values, "gpus", file, 1, 1e6, whole=True)) if "gpus" in values else None,
        chance=number_of(values, "chance", file, 0, 1) if "chance" in values else 1.0,
    )  # fmt: skip


def _entry(given: Any, file: str, line: int) -> CalendarEntry:  # noqa: ANN401 - of a file
    values = keys_of(given, CALENDAR, f"{file}, calendar", line, needed=("kind", "from", "to", "factor"))
    kind = word_of(values, "kind", file, KINDS)
    begin, end = days_of(values, file)
    assert end is not None
    factor = number_of(values, "factor", file, 0, 100)
    return CalendarEntry(kind, str(values.get("name", kind)), begin, end, factor)
