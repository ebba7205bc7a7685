"""Optional libraries, plug-ins, compiled functions, worker processes and progress lines.

Compiled functions allocate nothing, so numba's memory management is off: counting references to the tables would take
two thirds of the time.

The answer of a worker depends on its task alone: the number of workers, the order in which they end, and a worker that
dies change nothing but the time.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import logging
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner.core.errors import GpuPlannerWarning, MissingDependencyError, WorkerError, message


def import_optional(name: str, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Import a library that belongs to an extra.

    Examples
    --------
    >>> import_optional("json", extra="plot").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"{name} is not installed; this feature needs it."
        todo = f"Install the extra: pip install 'gpuplanner[{extra}]' ({error})"
        raise MissingDependencyError(f"{what} {todo}") from error


def public_names(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Public names of a package from the stub beside its ``__init__.py``; each is loaded when it is first used.

    Returns
    -------
    tuple
        ``__all__``, ``__getattr__`` and ``__dir__`` of the package.

    Examples
    --------
    >>> import gpuplanner.hardware
    >>> names, load, _ = public_names("gpuplanner.hardware", gpuplanner.hardware.__file__)
    >>> load("load_gpu_model")("a30").name
    'A30-24GB'
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {name.asname: (str(node.module), name.name) for node in imports for name in node.names}
    names = sorted(str(name) for name in homes)

    def load(name: str) -> Any:  # noqa: ANN401 - whatever has that name
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, defined = homes[name]
        return getattr(importlib.import_module(module), defined)

    return names, load, lambda: names


BytesRead = Callable[[int, int], object]
"""Is told how many bytes of how many were read."""

_WATCHER: ContextVar[BytesRead | None] = ContextVar("watcher", default=None)
FROM_BYTES = 64 << 20
"""Less is read before anyone wonders."""

WIDTH = 30


def tell_progress(done: int, total: int) -> None:
    """Say that so many bytes of all were read, to whoever watches."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(done, total)


@contextmanager
def watched_by(watcher: BytesRead | None) -> Iterator[None]:
    """Let somebody be told of all that is read inside.

    Examples
    --------
    >>> seen = []
    >>> with watched_by(lambda done, total: seen.append((done, total))):
    ...     tell_progress(1, 2)
    >>> tell_progress(2, 2)
    >>> seen
    [(1, 2)]
    """
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[None]:
    """Show on stderr how far reading has come, if that is a terminal and there is much to read."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    shown = ""

    def show(done: int, total: int) -> None:
        nonlocal shown
        line = bar(done, total)
        if total >= FROM_BYTES and line != shown:
            sys.stderr.write("\r" + line)
            sys.stderr.flush()
            shown = line

    try:
        with watched_by(show):
            yield
    finally:
        if shown:
            sys.stderr.write("\r" + " " * len(shown) + "\r")
            sys.stderr.flush()


def bar(done: int, total: int) -> str:
    """A bar and a percentage; once all is read, what comes then.

    Examples
    --------
    >>> bar(1, 2)
    'reading [###############---------------]  50 %'
    """
    share = done / total if total else 1.0
    full = int(WIDTH * share)
    word = "reading" if done < total else "sorting"
    return f"{word} [{'#' * full}{'-' * (WIDTH - full)}] {share:4.0%}".replace("%", " %")


log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])


def compiled_entry(function: Function, **options: object) -> Function:
    """Compile a function that Python calls: at its first call, once for all. Other threads go on while it runs.

    The machine code is kept beside the source, else in ``NUMBA_CACHE_DIR`` or the user's cache folder, and in
    memory alone where none of them can be written. By itself numba notices a change only of the file that a
    function stands in, not of those that it calls into; so the source of its whole package is part of the key: all
    files below the folder of the package, or beside the file of a function from elsewhere.
    """
    dispatcher = _njit()(function, nogil=True, **options)
    with suppress(RuntimeError):
        dispatcher._cache = _cache_class(_source_folder(Path(function.__code__.co_filename)))(function)
    return dispatcher  # type: ignore[no-any-return]


def part(function: Function, **options: object) -> Function:
    """Compile a function that only other compiled functions call."""
    return _njit()(function, **options)  # type: ignore[no-any-return]


def _njit() -> Any:  # noqa: ANN401 - a decorator of numba
    return import_optional("numba", extra="simulate").njit


def _source_folder(source: Path) -> Path:
    """Folder whose source is part of the key: the package of a module of gpuplanner, else the folder of the file."""
    package = Path(__file__).parent.parent
    below = source.relative_to(package).parts if source.is_relative_to(package) else ()
    return package / below[0] if len(below) > 1 else source.parent


@functools.cache
def note_compilation(package: str) -> None:
    """Log once for each package that its code is compiled."""
    log.warning("compiling gpuplanner.%s, once for this installation (gpuplanner compile does it in advance)", package)


@functools.cache
def _cache_class(folder: Path) -> type[Any]:
    """Numba's cache, with the source of a folder in its key."""
    base = import_optional("numba.core.caching", extra="simulate").FunctionCache
    source = hashlib.sha256(Path(__file__).read_bytes())  # how is compiled stands here
    of_package = folder.parent == Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py") if of_package else folder.glob("*.py")):
        source.update(path.read_bytes())

    def load_overload(self: Any, *arguments: Any) -> Any:  # noqa: ANN401 - numba's own types
        try:
            kept = base.load_overload(self, *arguments)
        except (AttributeError, ImportError):
            # Its index names a class that the source calls otherwise by now.
            self.flush()
            kept = None
        if kept is None:
            note_compilation(folder.name)
        return kept

    def index_key(self: Any, *arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - numba's own types
        return (*base._index_key(self, *arguments), source.hexdigest())

    return type("RoomCache", (base,), {"_index_key": index_key, "load_overload": load_overload})


READERS, POLICIES, EXPORTERS = "gpuplanner.readers", "gpuplanner.policies", "gpuplanner.exporters"
"""Groups of entry points, by what they hold."""
Kind = TypeVar("Kind")


@functools.cache
def _found(group: str) -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=group), key=lambda one: (one.name, one.value)))


def plugged(group: str, kind: type[Kind], taken: frozenset[str] = frozenset()) -> dict[str, Kind]:
    """Objects of a kind that installed packages offer in a group, by name, in the order of the names.

    What cannot be loaded, is of another kind or has a name that is taken is left out with a warning that names it: a
    broken package of somebody else stops nothing.

    Examples
    --------
    >>> plugged("gpuplanner.nothing", str)
    {}
    """
    found: dict[str, Kind] = {}
    for point in _found(group):
        try:
            loaded = point.load()
        except Exception as error:
            _left_out(point, "a module that can be imported", f"{type(error).__name__}: {error}")
            continue
        if not isinstance(loaded, kind):
            _left_out(point, f"a {kind.__name__}", f"a {type(loaded).__name__}")
        elif point.name in taken or point.name in found:
            _left_out(point, "a name that nothing else has", "one that is taken")
        else:
            found[point.name] = loaded
    return found


def plugged_in() -> str:
    """Name and version of all that is plugged in, for keys of what is kept; empty where nothing is.

    Examples
    --------
    >>> plugged_in()
    ''
    """
    points = [point for group in (READERS, POLICIES, EXPORTERS) for point in _found(group)]
    return " ".join(f"{one.name}={one.value} {one.dist.version if one.dist else ''}" for one in points)


def _left_out(point: EntryPoint, expected: str, got: str) -> None:
    where = f"entry point {point.name!r} of {point.group} ({point.value})"
    todo = "The plugin is ignored; fix or remove its package."
    warnings.warn(message(where, expected, got, todo), GpuPlannerWarning, stacklevel=3)


def event_loop_entry(function: Function) -> Function:
    """Compile a function that Python calls: at its first call, once for all."""
    return compiled_entry(function, no_cfunc_wrapper=True, _nrt=False)


def compiled(function: Function) -> Function:
    """Compile a function that only other compiled functions call, into the function that calls it.

    Passing the whole world costs more than most calls do, hence the inlining.
    """
    return part(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True, _nrt=False)


def called(function: Function) -> Function:
    """Compile a function that stays one of its own: large, called from several places, and not often."""
    return part(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)


TasksDone = Callable[[int, int], None]
"""Is told how many of how many tasks are done."""
Workers = int | str
"""Processes, or the address of a Dask scheduler such as ``tcp://host:8786`` (extra ``scale``)."""
MOST_LOST = 3
"""So often in a row, with no answer in between, workers may die before the task is taken to be what kills them."""


def in_turn(
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    workers: Workers = 1,
    progress: TasksDone | None = None,
) -> Iterator[tuple[int, Any]]:
    """Run a function on every task, and give back the number of the task with what it said, as they end.

    Whoever stops asking ends the rest: what is not begun is never begun.

    Examples
    --------
    >>> list(in_turn(pow, [(2, 3), (3, 2)]))
    [(0, 8), (1, 9)]
    """
    if isinstance(workers, str):
        answers = _on_dask(work, tasks, workers)
    elif workers <= 1 or len(tasks) < 2:
        answers = ((number, work(*task)) for number, task in enumerate(tasks))
    else:
        answers = _on_processes(work, tasks, workers)
    for done, (number, answer) in enumerate(answers, 1):
        yield number, answer
        if progress:
            progress(done, len(tasks))


def _on_dask(work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], address: str) -> Iterator[tuple[int, Any]]:
    dask = import_optional("distributed", extra="scale")
    try:
        with dask.Client(address) as client:
            # Each task is work to be done again where a worker was lost, never an answer from before.
            futures = [client.submit(work, *task, pure=False) for task in tasks]
            places = {future.key: number for number, future in enumerate(futures)}
            try:
                for future in dask.as_completed(futures):
                    yield places[future.key], future.result()
            finally:
                client.cancel(futures)
    except (OSError, dask.KilledWorker) as error:
        todo = "Is the scheduler up, and do its workers have memory and this version of gpuplanner?"
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise WorkerError(f"workers at {address}", "a scheduler and workers that stay", got, todo) from error


def _on_processes(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    left, lost = dict(enumerate(tasks)), 0
    # Begun anew and not forked: libraries hold threads, of which a forked child would have none.
    fresh = multiprocessing.get_context("spawn")
    while left:
        processes = ProcessPoolExecutor(min(workers, len(left)), mp_context=fresh)
        try:
            running = {processes.submit(work, *task): number for number, task in left.items()}
            for future in as_completed(running):
                answer, lost = future.result(), 0
                number = running.pop(future)
                del left[number]
                yield number, answer
        except BrokenProcessPool as error:
            lost += 1
            if lost == MOST_LOST:
                got = f"{lost} times in a row a process that ended, with {len(left):,} of {len(tasks):,} left"
                todo = "If memory was short, use fewer processes (--workers)."
                raise WorkerError("workers", "processes that stay", got, todo) from error
        finally:
            processes.shutdown(cancel_futures=True)
