"""Results of stages that are kept in memory and on disk, and the data that the package ships.

On disk there is one folder and one key: the fields of the scenario that were read, the content of the input files, and
the code that made the result. Entries that cannot be read are ignored and written again; when the folder grows beyond
its limit, those that were written first are removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from gpuplanner.core.errors import OutputError
from gpuplanner.core.execution import plugged_in
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import FILES, Scenario, require_scenario
from gpuplanner.core.serialization import sha256, sha256_of_all, to_json

PACKAGE = Path(__file__).resolve().parent.parent


def sample_folder() -> Path:
    """Folder of the shipped sample.

    Examples
    --------
    >>> (sample_folder() / "jobs.parquet").exists()
    True
    """
    return _first(PACKAGE / "_bundled" / "sample", PACKAGE.parent / "data" / "sample")


def data_folder(data: str) -> Path:
    """Folder that a scenario or a command names; ``"sample"`` is the shipped one.

    Examples
    --------
    >>> data_folder("sample") == sample_folder(), str(data_folder("cluster"))
    (True, 'cluster')
    """
    return sample_folder() if data == "sample" else Path(data)


def notebook_folder() -> Path:
    """Folder of the shipped notebooks."""
    return _first(PACKAGE / "_bundled" / "notebooks", PACKAGE.parent / "notebooks")


def claims_folder() -> Path:
    """Folder of the stored results of ``benchmarks/claims``."""
    return _first(PACKAGE / "_bundled" / "claims", PACKAGE.parent / "benchmarks" / "claims" / "results")


def _first(installed: Path, checkout: Path) -> Path:
    return installed if installed.is_dir() else checkout


def input_hashes(data: str, *more: str | None) -> dict[str, str]:
    """Hash of every table of a dataset and of other files that are named, by the name of the file."""
    paths = [*sorted(data_folder(data).glob("*.parquet")), *(Path(one) for one in more if one is not None)]
    return {path.name: sha256(path) for path in paths}


Result = TypeVar("Result")
Aside = ParamSpec("Aside")
RESULTS_PER_STAGE = 12
"""Results kept in memory per stage: enough for a session of moving sliders back and forth."""
MAX_DISK_BYTES = 2 << 30
"""Size of the results on disk beyond which the oldest are removed. [B]"""
READ_FIELDS_FILE = "reads.json"
"""Beside the results on disk: which fields were read for them, as lists of names."""
FIELDS = frozenset(one.name for one in fields(Scenario))


def cache_folder() -> Path:
    """Where studies and forecasts are kept: ``GPUPLANNER_CACHE``, else ``gpuplanner`` in the user's cache folder."""
    own = os.environ.get("GPUPLANNER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "gpuplanner"


def content_key(scenario: Scenario, inputs: Mapping[str, str]) -> str:
    """Name under which a result is kept: its scenario, its input files and the code that made it."""
    digest = hashlib.sha256(scenario.to_yaml().encode())
    digest.update(to_json(dict(inputs)).encode())
    digest.update(code_hash().encode())
    return digest.hexdigest()[:32]


@functools.cache
def code_hash() -> str:
    """Hash of the code and the facts that make results."""
    files = sorted(PACKAGE.rglob("*.py")) + sorted((PACKAGE / "hardware" / "facts").glob("*.csv"))
    return sha256_of_all(files) + plugged_in()


@dataclass
class Reads:
    """What was read of a scenario while a stage ran; afterwards nothing else may be."""

    scenario: Scenario
    names: set[str] = field(default_factory=set)
    over: bool = False

    def note(self, names: frozenset[str] | set[str]) -> None:
        """Write down what was read; once the stage is over, whoever kept the scenario must do with that."""
        if self.over and not names <= self.names:
            more = sorted(names - self.names)
            raise RuntimeError(f"a result that was kept reads {more}, which its stage did not")
        self.names |= names


class WatchedScenario(Scenario):
    """A scenario that tells what is read of it: to whom it is handed it looks like any other."""

    @classmethod
    def of(cls, reads: Reads, scenario: Scenario, stated: frozenset[str] = frozenset()) -> Self:
        """Watch a scenario whose fields in `stated` do not come from the one that the stage was asked for."""
        made = object.__new__(cls)
        object.__setattr__(made, "_watch", (reads, scenario, stated))
        return made

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - of whatever type the field is
        """Note the field; copies and comparisons read them all, and what they make is a plain scenario."""
        if name == "__class__":
            return Scenario
        if name in FIELDS or name == "__dict__":
            reads, scenario, stated = object.__getattribute__(self, "_watch")
            reads.note(({name} if name in FIELDS else FIELDS) - stated)
            return getattr(scenario, name)
        return object.__getattribute__(self, name)

    def but(self, **changes: Any) -> Scenario:  # noqa: ANN401 - as the fields
        """The scenario with other values, watched further: the values that are replaced were not read."""
        reads, scenario, stated = object.__getattribute__(self, "_watch")
        return type(self).of(reads, scenario.but(**changes), stated | changes.keys())


@dataclass(frozen=True)
class Shelf(Generic[Result]):
    """A folder of the cache on disk, and how a result becomes bytes and comes back."""

    folder: str
    to_bytes: Callable[[Result], bytes]
    from_bytes: Callable[[bytes], Result]


@dataclass(frozen=True)
class Remembered(Generic[Result]):
    """A result with the fields that were read for it, and their values."""

    read: Mapping[str, object]
    stamp: tuple[int, int] | None
    result: Result

    def answers(self, scenario: Scenario, stamp: tuple[int, int] | None) -> bool:
        """Whether a scenario has the same values in these fields, and the data are the same."""
        same = all(_value_read(scenario, name) == value for name, value in self.read.items())
        return same and ("data" not in self.read or stamp == self.stamp)

    def is_stale(self, scenario: Scenario, stamp: tuple[int, int] | None) -> bool:
        """Whether it was made of what these data were before they were written anew: nobody can ask for it again."""
        return self.read.get("data") == scenario.data and self.stamp != stamp


UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError)
"""Errors of an entry on disk that is damaged: it is made again."""


class Stage(Generic[Aside, Result]):
    """A function of a scenario that is computed anew only if a field changes that it read.

    Moving a price does not plan again, and moving a quantile does not forecast again. Fields are noted as they are
    read, those of the stages that it calls included; as equal values lead it the same way, it reads the same fields
    again. What it is told beside the scenario, such as whom to tell how far it is, must not change its result, which
    nobody may change either.

    Examples
    --------
    >>> double = Stage(lambda scenario: 2 * scenario.seed)
    >>> double(Scenario(seed=3, quantile=0.5)), double(Scenario(seed=3, quantile=0.8))
    (6, 6)
    >>> double.computed
    1
    """

    def __init__(
        self, function: Callable[Concatenate[Scenario, Aside], Result], shelf: Shelf[Result] | None = None
    ) -> None:
        self.computed = 0
        self._function = function
        self._shelf = shelf
        self._name = function.__name__
        self._kept: list[Remembered[Result]] = []
        self._lock = threading.Lock()
        functools.update_wrapper(self, function)

    def __call__(self, scenario: Scenario, *aside: Aside.args, **asides: Aside.kwargs) -> Result:
        """Compute, or give back what was computed for the same values of the same fields."""
        reads, plain, stated = _watch_of(scenario)
        stamp = _stamp(plain.data)
        found = self._found(plain, stamp)
        if found is None:
            mine = Reads(plain)
            try:
                result = self._made(plain, mine, *aside, **asides)
            finally:
                mine.over = True
                reads.note(mine.names - stated)
            found = Remembered({name: _value_read(plain, name) for name in mine.names}, stamp, result)
        with self._lock:
            others = (one for one in self._kept if one is not found and not one.is_stale(plain, stamp))
            self._kept = [found, *others][:RESULTS_PER_STAGE]
        reads.note(found.read.keys() - stated)
        return found.result

    def forget(self) -> None:
        """Compute anew the next time, whatever is asked."""
        with self._lock:
            self._kept.clear()

    def _found(self, scenario: Scenario, stamp: tuple[int, int] | None) -> Remembered[Result] | None:
        with self._lock:
            return next((one for one in self._kept if one.answers(scenario, stamp)), None)

    def _made(self, plain: Scenario, reads: Reads, *aside: Aside.args, **asides: Aside.kwargs) -> Result:
        """Computed, or read from the shelf, where results lie by the values of the fields that were read."""
        watched = WatchedScenario.of(reads, plain)
        if self._shelf is None:
            self.computed += 1
            return self._function(watched, *aside, **asides)
        shelf, home = self._shelf, self._home(watched.data)
        known = _known_reads(home)
        for names in known:
            with contextlib.suppress(*UNREADABLE):
                found = shelf.from_bytes(_result_file(home, plain, names).read_bytes())
                reads.note(set(names))
                return found
        self.computed += 1
        content = shelf.to_bytes(self._function(watched, *aside, **asides))
        names = sorted(reads.names)
        with contextlib.suppress(OutputError):
            _write(_result_file(home, plain, names), content)
            if names not in known:
                _write(home / READ_FIELDS_FILE, to_json([*known, names]).encode())
            trim_disk()
        # Read back, so that a result is the same object whether it was made or kept.
        return shelf.from_bytes(content)

    def _home(self, data: str) -> Path:
        """Folder of all results of some input files, made by this code."""
        assert self._shelf is not None
        named = to_json([input_hashes(data), code_hash()]).encode()
        home = cache_folder() / self._shelf.folder / self._name
        return home / hashlib.sha256(named).hexdigest()[:32]


def _watch_of(scenario: Scenario) -> tuple[Reads, Scenario, frozenset[str]]:
    """Who watches a scenario, if anybody does, the scenario itself, and which of its fields are not watched."""
    if type(scenario) is WatchedScenario:
        watch: tuple[Reads, Scenario, frozenset[str]] = object.__getattribute__(scenario, "_watch")
        return watch
    require_scenario(scenario)
    return Reads(scenario), scenario, frozenset()


def _known_reads(home: Path) -> list[list[str]]:
    try:
        known: list[list[str]] = json.loads((home / READ_FIELDS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [names for names in known if FIELDS.issuperset(names)]


def _value_read(scenario: Scenario, name: str) -> object:
    """Value of a field; of one that names a file beside the data, its content as well."""
    value = getattr(scenario, name)
    if name not in FILES or value is None or not Path(value).is_file():
        return value
    return [value, sha256(value)]


def _result_file(home: Path, scenario: Scenario, names: list[str]) -> Path:
    values = to_json({name: _value_read(scenario, name) for name in names})
    return home / f"{hashlib.sha256(values.encode()).hexdigest()[:32]}.result"


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda place: place.write_bytes(content), guarded=False)


def trim_disk() -> None:
    """Remove the results on disk that were written first, until the rest is within the limit."""
    files = []
    for path in cache_folder().rglob("*.result"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((stat.st_mtime_ns, stat.st_size, path))
    excess = sum(size for _, size, _ in files) - MAX_DISK_BYTES
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= size


def _stamp(data: str) -> tuple[int, int] | None:
    """Changes when the trace on disk is written anew, so that nothing stale is given back."""
    try:
        stat = (Path(data) / "provenance.json").stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def stage(function: Callable[Concatenate[Scenario, Aside], Result]) -> Stage[Aside, Result]:
    """Make a stage of a function."""
    return Stage(function)


def shelved(
    folder: str, to_bytes: Callable[[Result], bytes], from_bytes: Callable[[bytes], Result]
) -> Callable[[Callable[Concatenate[Scenario, Aside], Result]], Stage[Aside, Result]]:
    """Make a stage of a function whose results stay in a folder of the cache, between runs."""
    return lambda function: Stage(function, Shelf(folder, to_bytes, from_bytes))
