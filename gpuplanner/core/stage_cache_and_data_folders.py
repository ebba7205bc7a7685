"""Cache of stage results in memory and on disk, and the folders of bundled data.

A result on disk is keyed by the scenario fields that were read for it, the content of the input files, and the code.
Unreadable entries are computed again; when the cache exceeds its size limit, the oldest entries are deleted.
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
from gpuplanner.core.libraries_plugins_and_workers import list_plugin_versions
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import FILE_PATH_FIELDS, Scenario, require_scenario
from gpuplanner.core.serialization import sha256, sha256_of_all, to_json

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
"""Folder of the package ``gpuplanner``."""


def sample_folder() -> Path:
    """Return the folder of the bundled sample dataset.

    Examples
    --------
    >>> (sample_folder() / "jobs.parquet").exists()
    True
    """
    return _first_existing_folder(PACKAGE_FOLDER / "_bundled" / "sample", PACKAGE_FOLDER.parent / "data" / "sample")


def data_folder(data: str) -> Path:
    """Return the folder that a scenario or command names; ``"sample"`` is the bundled dataset.

    Examples
    --------
    >>> data_folder("sample") == sample_folder(), str(data_folder("cluster"))
    (True, 'cluster')
    """
    return sample_folder() if data == "sample" else Path(data)


def notebook_folder() -> Path:
    """Return the folder of the bundled notebooks."""
    return _first_existing_folder(PACKAGE_FOLDER / "_bundled" / "notebooks", PACKAGE_FOLDER.parent / "notebooks")


def claims_folder() -> Path:
    """Return the folder with the stored results of ``benchmarks/claims``, which tests claims on GPU clusters."""
    return _first_existing_folder(
        PACKAGE_FOLDER / "_bundled" / "claims", PACKAGE_FOLDER.parent / "benchmarks" / "claims" / "results"
    )


def _first_existing_folder(installed: Path, checkout: Path) -> Path:
    """Return the folder `installed` with the package if it exists, else that of a source checkout."""
    return installed if installed.is_dir() else checkout


def input_hashes(data: str, *other_files: str | None) -> dict[str, str]:
    """Hash every table of a dataset and other named files, by file name."""
    paths = [
        *sorted(data_folder(data).glob("*.parquet")),
        *(Path(other_file) for other_file in other_files if other_file is not None),
    ]
    return {path.name: sha256(path) for path in paths}


Result = TypeVar("Result")
"""Type of the result of a stage."""
StageArguments = ParamSpec("StageArguments")
"""Types of the arguments of a stage after the scenario."""
MAX_RESULTS_IN_MEMORY_PER_STAGE = 12
"""Number of results of a stage that are kept in memory, enough to move sliders of a notebook back and forth."""
MAX_DISK_CACHE_BYTES = 2 << 30
"""Total size of cached results on disk above which the oldest are deleted. [B]"""
READ_FIELDS_FILE_NAME = "reads.json"
"""File next to cached results on disk with the lists of scenario fields that were read to compute them."""
SCENARIO_FIELD_NAMES = frozenset(row.name for row in fields(Scenario))
"""Names of all scenario fields."""


def cache_folder() -> Path:
    """Return the cache folder: ``GPUPLANNER_CACHE``, else ``gpuplanner`` in the user's cache folder."""
    stated_folder = os.environ.get("GPUPLANNER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(stated_folder) if stated_folder else Path(base) / "gpuplanner"


def content_key(scenario: Scenario, inputs: Mapping[str, str]) -> str:
    """Return the name of a cached result: a hash of its scenario, input files and code."""
    digest = hashlib.sha256(scenario.to_yaml().encode())
    digest.update(to_json(dict(inputs)).encode())
    digest.update(code_hash().encode())
    return digest.hexdigest()[:32]


@functools.cache
def code_hash() -> str:
    """Hash the code and the catalogue facts that results depend on."""
    files = sorted(PACKAGE_FOLDER.rglob("*.py")) + sorted((PACKAGE_FOLDER / "hardware" / "facts").glob("*.csv"))
    return sha256_of_all(files) + list_plugin_versions()


@dataclass
class FieldReads:
    """Record of the scenario fields that a stage has read.

    After the stage has ended, reading a further field is an error.
    """

    scenario: Scenario
    names: set[str] = field(default_factory=set)
    over: bool = False

    def record_reads(self, names: frozenset[str] | set[str]) -> None:
        """Record that fields were read; raise ``RuntimeError`` for a new field after the stage has ended."""
        if self.over and not names <= self.names:
            raise RuntimeError(f"a result that was kept reads {sorted(names - self.names)}, which its stage did not")
        self.names |= names


class WatchedScenario(Scenario):
    """A scenario that records which of its fields are read; otherwise it behaves like any scenario."""

    @classmethod
    def watch_reads(cls, reads: FieldReads, scenario: Scenario, stated: frozenset[str] = frozenset()) -> Self:
        """Watch a scenario.

        Parameters
        ----------
        reads : FieldReads
            Record of the fields read.
        scenario : Scenario
            Scenario that provides the values.
        stated : frozenset of str
            Fields that were replaced after the stage was called, and so are not recorded.
        """
        watched = object.__new__(cls)
        object.__setattr__(watched, "_watch", (reads, scenario, stated))
        return watched

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - of whatever type the field is
        """Record the field; copies and comparisons read all fields, and their results are plain scenarios."""
        if name == "__class__":
            return Scenario
        if name in SCENARIO_FIELD_NAMES or name == "__dict__":
            reads, scenario, stated = object.__getattribute__(self, "_watch")
            reads.record_reads(({name} if name in SCENARIO_FIELD_NAMES else SCENARIO_FIELD_NAMES) - stated)
            return getattr(scenario, name)
        return object.__getattribute__(self, name)

    def but(self, **changes: Any) -> Scenario:  # noqa: ANN401 - as the fields
        """Return a watched copy with other values; the replaced values do not count as read."""
        reads, scenario, stated = object.__getattribute__(self, "_watch")
        return type(self).watch_reads(reads, scenario.but(**changes), stated | changes.keys())


@dataclass(frozen=True)
class DiskStore(Generic[Result]):
    """A folder of the disk cache, with functions that convert a result to bytes and back."""

    folder: str
    to_bytes: Callable[[Result], bytes]
    from_bytes: Callable[[bytes], Result]


@dataclass(frozen=True)
class CachedResult(Generic[Result]):
    """A result with the values of the scenario fields read for it, and the data stamp (:func:`_data_stamp`) of then."""

    read: Mapping[str, object]
    stamp: tuple[int, int] | None
    result: Result

    def is_valid_for(self, scenario: Scenario, stamp: tuple[int, int] | None) -> bool:
        """Whether a scenario has the same values in the fields read and, if they name data, the same data `stamp`."""
        has_same_values = all(_field_value(scenario, name) == value for name, value in self.read.items())
        return has_same_values and ("data" not in self.read or stamp == self.stamp)

    def is_stale(self, scenario: Scenario, stamp: tuple[int, int] | None) -> bool:
        """Whether the dataset was rewritten since (another `stamp`), so that the result cannot be used again."""
        return self.read.get("data") == scenario.data and self.stamp != stamp


DIGEST_BYTES = 32
"""Length of the SHA-256 before the content of a result on disk, by which a damaged file is recognized. [B]"""


STAGES: list[CachedStage[..., Any]] = []
"""All cached stages."""


class CachedStage(Generic[StageArguments, Result]):
    """A function of a scenario whose result is cached by the scenario fields that it reads.

    A changed price does not compute the plan again, and a changed quantile does not compute the forecast again. Fields
    are recorded as they are read, including those read by stages that it calls; with equal values it takes the same
    path and reads the same fields. Other arguments, such as a progress callback, must not change the result, and
    callers must not modify it.

    Examples
    --------
    >>> double = CachedStage(lambda scenario: 2 * scenario.seed)
    >>> double(Scenario(seed=3, quantile=0.5)), double(Scenario(seed=3, quantile=0.8))
    (6, 6)
    >>> double.computed
    1
    """

    def __init__(
        self, function: Callable[Concatenate[Scenario, StageArguments], Result], store: DiskStore[Result] | None = None
    ) -> None:
        """Wrap a function, optionally with a store on disk."""
        self.computed = 0
        self._function = function
        self._shelf = store
        self._name = function.__name__
        self._kept: list[CachedResult[Result]] = []
        self._lock, self._computing = threading.Lock(), threading.RLock()
        functools.update_wrapper(self, function)
        STAGES.append(self)

    def __call__(
        self, scenario: Scenario, *arguments: StageArguments.args, **keyword_arguments: StageArguments.kwargs
    ) -> Result:
        """Compute the result, or return the cached one for equal values of the fields read."""
        reads, plain_scenario, stated = _unwrap_watched_scenario(scenario)
        stamp = _data_stamp(plain_scenario.data)
        cached = self._find_cached(plain_scenario, stamp)
        # A thread that needs a result which another one computes waits for it: a panel, and the next cell.
        with self._computing if cached is None else contextlib.nullcontext():
            cached = cached or self._find_cached(plain_scenario, stamp)
            if cached is None:
                own_reads = FieldReads(plain_scenario)
                try:
                    result = self._compute_or_load(plain_scenario, own_reads, *arguments, **keyword_arguments)
                finally:
                    own_reads.over = True
                    reads.record_reads(own_reads.names - stated)
                values = {name: _field_value(plain_scenario, name) for name in own_reads.names}
                cached = CachedResult(values, stamp, result)
            with self._lock:
                kept = (old for old in self._kept if old is not cached and not old.is_stale(plain_scenario, stamp))
                self._kept = [cached, *kept][:MAX_RESULTS_IN_MEMORY_PER_STAGE]
        reads.record_reads(cached.read.keys() - stated)
        return cached.result

    def is_known(self, scenario: Scenario) -> bool:
        """Whether the result is in memory or on disk."""
        if self._find_cached(scenario, _data_stamp(scenario.data)) is not None:
            return True
        folders = [] if self._shelf is None else [self._results_folder(scenario.data)]
        files = (_result_file(folder, scenario, names) for folder in folders for names in _read_field_lists(folder))
        return any(file.is_file() for file in files)

    def forget(self) -> None:
        """Clear the results in memory."""
        with self._lock:
            self._kept.clear()

    def _find_cached(self, scenario: Scenario, stamp: tuple[int, int] | None) -> CachedResult[Result] | None:
        """Find a result in memory that is valid for a scenario."""
        with self._lock:
            return next((entry for entry in self._kept if entry.is_valid_for(scenario, stamp)), None)

    def _compute_or_load(
        self,
        plain_scenario: Scenario,
        reads: FieldReads,
        *arguments: StageArguments.args,
        **keyword_arguments: StageArguments.kwargs,
    ) -> Result:
        """Compute the result, or load it from the store on disk if the fields that it read have equal values."""
        watched = WatchedScenario.watch_reads(reads, plain_scenario)
        if self._shelf is None:
            self.computed += 1
            return self._function(watched, *arguments, **keyword_arguments)
        store, results_folder = self._shelf, self._results_folder(watched.data)
        known_field_lists = _read_field_lists(results_folder)
        for names in known_field_lists:
            content = _read_result(_result_file(results_folder, plain_scenario, names))
            if content is not None:
                reads.record_reads(set(names))
                return store.from_bytes(content)
        self.computed += 1
        content = store.to_bytes(self._function(watched, *arguments, **keyword_arguments))
        names = sorted(reads.names)
        with contextlib.suppress(OutputError):
            digest = hashlib.sha256(content).digest()
            _write_cache_file(_result_file(results_folder, plain_scenario, names), digest + content)
            if names not in known_field_lists:
                _write_cache_file(results_folder / READ_FIELDS_FILE_NAME, to_json([*known_field_lists, names]).encode())
            trim_disk_cache()
        # Read back, so that a result is the same object whether it was made or kept.
        return store.from_bytes(content)

    def _results_folder(self, data: str) -> Path:
        """Return the folder of a stage's results on disk for the present input files of the dataset `data` and code."""
        assert self._shelf is not None
        named = to_json([input_hashes(data), code_hash()]).encode()
        return cache_folder() / self._shelf.folder / self._name / hashlib.sha256(named).hexdigest()[:32]


def _unwrap_watched_scenario(scenario: Scenario) -> tuple[FieldReads, Scenario, frozenset[str]]:
    """Return the record of reads, the plain scenario, and the replaced fields of a possibly watched scenario."""
    if type(scenario) is WatchedScenario:
        watch: tuple[FieldReads, Scenario, frozenset[str]] = object.__getattribute__(scenario, "_watch")
        return watch
    require_scenario(scenario)
    return FieldReads(scenario), scenario, frozenset()


def _read_field_lists(results_folder: Path) -> list[list[str]]:
    """Read the lists of fields that results in a folder depend on."""
    try:
        field_lists: list[list[str]] = json.loads((results_folder / READ_FIELDS_FILE_NAME).read_text(encoding="utf-8"))
        return [names for names in field_lists if names and SCENARIO_FIELD_NAMES.issuperset(names)]
    except (OSError, ValueError, TypeError):
        return []


def _field_value(scenario: Scenario, name: str) -> object:
    """Return the value of a field; for a field that names a file, its content hash as well."""
    value = getattr(scenario, name)
    if name not in FILE_PATH_FIELDS or value is None or not Path(value).is_file():
        return value
    return [value, sha256(value)]


def _result_file(results_folder: Path, scenario: Scenario, names: list[str]) -> Path:
    """Return the path of a stage result on disk, whose name is a hash of the values of the scenario fields `names`."""
    values = to_json({name: _field_value(scenario, name) for name in names})
    return results_folder / f"{hashlib.sha256(values.encode()).hexdigest()[:32]}.result"


def _read_result(path: Path) -> bytes | None:
    """Read the content of a result; None if the file is missing or damaged, so that it is computed again."""
    try:
        written = path.read_bytes()
    except OSError:
        return None
    content = written[DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == written[:DIGEST_BYTES] else None


def _write_cache_file(path: Path, content: bytes) -> None:
    """Write a file of the cache atomically."""
    write_atomically(path, lambda target: target.write_bytes(content), protect_foreign=False)


def trim_disk_cache() -> None:
    """Delete the oldest results on disk until they are within :data:`MAX_DISK_CACHE_BYTES`."""
    files = []
    for path in cache_folder().rglob("*.result"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((stat.st_mtime_ns, stat.st_size, path))
    excess = sum(size for _, size, _ in files) - MAX_DISK_CACHE_BYTES
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= size


def _data_stamp(data: str) -> tuple[int, int] | None:
    """Return modification time and inode of a dataset's provenance file; both change when the dataset is rewritten."""
    try:
        stat = (Path(data) / "provenance.json").stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def stage(function: Callable[Concatenate[Scenario, StageArguments], Result]) -> CachedStage[StageArguments, Result]:
    """Make a cached stage from a function of a scenario; its results are kept in memory only."""
    return CachedStage(function)


def forget_results_in_memory() -> None:
    """Clear the results of all stages in memory; those on disk stay."""
    for cached_stage in STAGES:
        cached_stage.forget()


def disk_stage(
    folder: str, to_bytes: Callable[[Result], bytes], from_bytes: Callable[[bytes], Result]
) -> Callable[[Callable[Concatenate[Scenario, StageArguments], Result]], CachedStage[StageArguments, Result]]:
    """Make a decorator for stages whose results are also stored on disk.

    Parameters
    ----------
    folder : str
        Folder below the cache folder.
    to_bytes, from_bytes : callable
        Convert a result to bytes and back.
    """
    return lambda function: CachedStage(function, DiskStore(folder, to_bytes, from_bytes))
