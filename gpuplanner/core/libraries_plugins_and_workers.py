"""Optional libraries, plugins, numba compilation, worker processes and progress reports.

Compiled functions allocate nothing, so numba's memory management is off: reference counting would take two thirds of
the time.

The result of a task depends on the task alone: the number of workers, the order in which tasks end, and a worker that
dies change only the run time.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import logging
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuplanner.core.errors import GpuPlannerWarning, MissingDependencyError, WorkerError, format_message

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def import_optional(name: str, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Import a library that belongs to an extra of the package.

    Parameters
    ----------
    name : str
        Dotted name of the module.
    extra : str
        Extra of gpuplanner that installs it.

    Returns
    -------
    module

    Raises
    ------
    MissingDependencyError
        If it cannot be imported; the message has the command that installs the extra.

    Examples
    --------
    >>> import_optional("json", extra="plot").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = f"{name} is not installed; this feature needs it."
        todo = f"Install the extra: pip install 'gpuplanner[{extra}]' ({error})"
        raise MissingDependencyError(f"{problem} {todo}") from error


def public_names(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Read the public names of a package from the stub next to its ``__init__.py``, to import each on first use.

    Parameters
    ----------
    package : str
        Dotted name of the package, for the error of an unknown attribute.
    file : str
        Path of its ``__init__.py``.

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
    defining_modules = {name.asname: (str(node.module), name.name) for node in imports for name in node.names}
    names = sorted(str(name) for name in defining_modules)

    def load(name: str) -> Any:  # noqa: ANN401 - whatever has that name
        """Import a public name of the package when it is first used."""
        if name not in defining_modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, defined_name = defining_modules[name]
        return getattr(importlib.import_module(module), defined_name)

    return names, load, lambda: names


_progress_bar: ContextVar[Any] = ContextVar("progress_bar", default=None)
"""Progress bar of this context; None: none is shown."""
MIN_PROGRESS_BAR_INPUT_BYTES = 64 << 20
"""Size of the input from which a progress bar is shown. [B]"""


def report_bytes_read(done: int, total: int) -> None:
    """Show that `done` of `total` bytes were read, if the input is large and this context has a progress bar."""
    bar = _progress_bar.get()
    if bar is not None and total >= MIN_PROGRESS_BAR_INPUT_BYTES:
        bar.length, bar.label = total, "reading" if done < total else "sorting"
        bar.update(done - bar.pos)


@contextmanager
def show_progress_bar(*, quiet: bool = False) -> Iterator[None]:
    """Show the progress of reading on stderr, if it is a terminal and the input is large."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    bar = importlib.import_module("typer").progressbar(length=1, file=sys.stderr)
    token = _progress_bar.set(bar)
    try:
        yield
    finally:
        _progress_bar.reset(token)
        if bar.pos:
            bar.render_finish()


_step_listener: ContextVar[Callable[[str], object] | None] = ContextVar("step_listener", default=None)
"""Function that gets the steps of a long computation in this thread; None: they are not reported."""


@contextmanager
def report_steps_to(listener: Callable[[str], object]) -> Iterator[None]:
    """Call a function with each step of the computations within; it may end them by an exception."""
    token = _step_listener.set(listener)
    try:
        yield
    finally:
        _step_listener.reset(token)


def report_step(text: str) -> None:
    """Report a step of a long computation, such as "wait curve, fleet 3 of 12", to the function that gets steps.

    Examples
    --------
    >>> steps = []
    >>> with report_steps_to(steps.append):
    ...     report_step("wait curve, fleet 3 of 12")
    >>> steps
    ['wait curve, fleet 3 of 12']
    """
    if (listener := _step_listener.get()) is not None:
        listener(text)


log = logging.getLogger(__name__)
"""Logger of this module."""

Function = TypeVar("Function", bound=Callable[..., object])
"""Type of a function that is compiled, and of the compiled function."""


def compile_entry(function: Function, **options: object) -> Function:
    """Compile a function that Python code calls with numba, at its first call, without blocking other threads.

    Machine code is cached next to the source, else in ``NUMBA_CACHE_DIR`` or the user's cache folder, and only in
    memory if none of them is writable. Numba itself detects changes only in the file of the function, not in functions
    that it calls. The source of its whole package is therefore part of the cache key: all files below the folder of the
    package, or, for a function of another package, the files in the same folder.
    """
    dispatcher = _njit()(function, nogil=True, **options)
    with suppress(RuntimeError):
        dispatcher._cache = _make_cache_class(_hashed_source_folder(Path(function.__code__.co_filename)))(function)
    return dispatcher  # type: ignore[no-any-return]


def compile_helper(function: Function, **options: object) -> Function:
    """Compile a function with numba that is called only by other compiled functions."""
    return _njit()(function, **options)  # type: ignore[no-any-return]


def _njit() -> Any:  # noqa: ANN401 - a decorator of numba
    """Return numba's ``njit`` decorator."""
    return import_optional("numba", extra="simulate").njit


def _hashed_source_folder(source: Path) -> Path:
    """Return the folder whose source is part of the numba cache key: package of gpuplanner, else the file's folder."""
    package = Path(__file__).parent.parent
    below = source.relative_to(package).parts if source.is_relative_to(package) else ()
    return package / below[0] if len(below) > 1 else source.parent


@functools.cache
def note_compilation(package: str) -> None:
    """Log once for each package that its code is being compiled."""
    log.warning("compiling gpuplanner.%s, once for this installation (gpuplanner compile does it in advance)", package)


@functools.cache
def _make_cache_class(folder: Path) -> type[Any]:
    """Make a subclass of numba's function cache that has the source of a folder in its key."""
    numba_cache = import_optional("numba.core.caching", extra="simulate").FunctionCache
    source_digest = hashlib.sha256(Path(__file__).read_bytes())  # this file decides how functions are compiled
    is_package = folder.parent == Path(__file__).parent.parent
    for path in sorted(folder.rglob("*.py") if is_package else folder.glob("*.py")):
        source_digest.update(path.read_bytes())

    def load_overload(self: Any, *arguments: Any) -> Any:  # noqa: ANN401 - numba's own types
        """Load a compiled function from disk, or None; an index that cannot be read is discarded."""
        try:
            cached = numba_cache.load_overload(self, *arguments)
        except Exception:  # of any kind, as pickle raises them
            # A damaged file, or one that names a class that has been renamed in the source since.
            self.flush()
            cached = None
        if cached is None:
            note_compilation(folder.name)
        return cached

    def index_key(self: Any, *arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - numba's own types
        """Return numba's key of a compiled function, extended by the hash of the source files."""
        return (*numba_cache._index_key(self, *arguments), source_digest.hexdigest())

    return type("SourceKeyedCache", (numba_cache,), {"_index_key": index_key, "load_overload": load_overload})


FIGURE_LIBRARIES = ("numpy", "polars", "scipy", "numba", "highspy", "pulp", "statsforecast")
"""Libraries whose version may change a figure."""


@functools.cache
def list_library_versions() -> Mapping[str, str]:
    """List the versions of Python and of the libraries that figures depend on; those not installed are left out.

    Examples
    --------
    >>> sorted(set(list_library_versions()) & {"Python", "polars"})
    ['Python', 'polars']
    """
    from importlib.metadata import PackageNotFoundError, version

    versions = {"Python": platform.python_version()}
    for name in FIGURE_LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


READER_ENTRY_POINT_GROUP = "gpuplanner.readers"
"""Entry point group in which other packages provide readers of data sources."""
POLICY_ENTRY_POINT_GROUP = "gpuplanner.policies"
"""Entry point group in which other packages provide operating policies."""
EXPORTER_ENTRY_POINT_GROUP = "gpuplanner.exporters"
"""Entry point group in which other packages provide exporters of configuration files."""
PluginType = TypeVar("PluginType")
"""Class of the objects that a group of entry points provides."""


@functools.cache
def _entry_points_of_group(group: str) -> tuple[EntryPoint, ...]:
    """List the installed entry points of a group, by name."""
    from importlib.metadata import entry_points  # a tenth of a second, which no command without plugins needs

    return tuple(sorted(entry_points(group=group), key=lambda point: (point.name, point.value)))


def load_plugins(
    group: str, plugin_type: type[PluginType], reserved_names: frozenset[str] = frozenset()
) -> dict[str, PluginType]:
    """Load the objects that installed packages provide in an entry point group.

    An entry point that cannot be loaded, has another type or has a reserved name is left out with a warning that names
    it: a broken package never stops gpuplanner.

    Parameters
    ----------
    group : str
        Entry point group, such as ``"gpuplanner.readers"``.
    plugin_type : type
        Class that the objects must have.
    reserved_names : frozenset of str
        Names that plugins may not use.

    Returns
    -------
    dict
        Plugins by name, sorted by name.

    Examples
    --------
    >>> load_plugins("gpuplanner.nothing", str)
    {}
    """
    plugins: dict[str, PluginType] = {}
    for point in _entry_points_of_group(group):
        try:
            loaded = point.load()
        except Exception as error:
            _warn_of_ignored_plugin(point, "a module that can be imported", f"{type(error).__name__}: {error}")
            continue
        if not isinstance(loaded, plugin_type):
            _warn_of_ignored_plugin(point, f"a {plugin_type.__name__}", f"a {type(loaded).__name__}")
        elif point.name in reserved_names or point.name in plugins:
            _warn_of_ignored_plugin(point, "a name that nothing else has", "one that is taken")
        else:
            plugins[point.name] = loaded
    return plugins


def list_plugin_versions() -> str:
    """Format name, object and version of all installed plugins, for cache keys; empty without plugins.

    Examples
    --------
    >>> list_plugin_versions()
    ''
    """
    groups = (READER_ENTRY_POINT_GROUP, POLICY_ENTRY_POINT_GROUP, EXPORTER_ENTRY_POINT_GROUP)
    points = [point for group in groups for point in _entry_points_of_group(group)]
    return " ".join(f"{point.name}={point.value} {point.dist.version if point.dist else ''}" for point in points)


def _warn_of_ignored_plugin(point: EntryPoint, expected: str, got: str) -> None:
    """Warn that an entry point is ignored, and why."""
    subject = f"entry point {point.name!r} of {point.group} ({point.value})"
    todo = "The plugin is ignored; fix or remove its package."
    warnings.warn(format_message(subject, expected, got, todo), GpuPlannerWarning, stacklevel=3)


def compile_event_loop_entry(function: Function) -> Function:
    """Compile a function of the simulator's event loop that Python code calls, at its first call."""
    return compile_entry(function, no_cfunc_wrapper=True, _nrt=False)


def compile_inlined(function: Function) -> Function:
    """Compile a function of the simulator's event loop and inline it into the compiled functions that call it.

    Passing the simulation state costs more than most calls do, hence the inlining.
    """
    return compile_helper(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True, _nrt=False)


def compile_not_inlined(function: Function) -> Function:
    """Compile a function of the simulator's event loop without inlining: for large functions with several callers."""
    return compile_helper(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)


TaskProgress = Callable[[int, int], None]
"""Callback that gets the number of finished tasks and of all tasks."""
Workers = int | str
"""Number of processes, or the address of a Dask scheduler such as ``tcp://host:8786`` (extra ``scale``)."""
MAX_WORKER_DEATHS_IN_A_ROW = 3
"""Number of worker deaths in a row, without a result in between, after which the task is assumed to cause them."""


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    *,
    workers: Workers = 1,
    progress: TaskProgress | None = None,
) -> Iterator[tuple[int, Any]]:
    """Run a function on every task and yield results in the order in which tasks end.

    If the caller stops iterating, tasks that have not begun are cancelled.

    Parameters
    ----------
    function : callable
        Function to run; in worker processes it must be picklable.
    tasks : sequence of tuple
        Arguments of each call.
    workers : int or str
        Number of processes, 1 for this process, or the address of a Dask scheduler.
    progress : callable, optional
        Gets the number of finished tasks and of all tasks.

    Yields
    ------
    tuple of int and object
        Index of the task, and its result.

    Raises
    ------
    WorkerError
        If workers die repeatedly or the scheduler cannot be reached.

    Examples
    --------
    >>> list(run_tasks(pow, [(2, 3), (3, 2)]))
    [(0, 8), (1, 9)]
    """
    if isinstance(workers, str):
        results = _run_on_dask(function, tasks, workers)
    elif workers <= 1 or len(tasks) < 2:
        results = ((number, function(*task)) for number, task in enumerate(tasks))
    else:
        results = _run_on_processes(function, tasks, workers)
    for done, (number, result) in enumerate(results, 1):
        yield number, result
        if progress:
            progress(done, len(tasks))


def _run_on_dask(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], address: str
) -> Iterator[tuple[int, Any]]:
    """Run the tasks on the workers of a Dask scheduler; yield the index and the result of each."""
    dask = import_optional("distributed", extra="scale")
    try:
        with dask.Client(address) as client:
            # A task is run again after the loss of its worker; pure=False rules out results of earlier runs.
            futures = [client.submit(function, *task, pure=False) for task in tasks]
            task_numbers = {future.key: number for number, future in enumerate(futures)}
            try:
                for future in dask.as_completed(futures):
                    yield task_numbers[future.key], future.result()
            finally:
                client.cancel(futures)
    except (OSError, dask.KilledWorker) as error:
        todo = "Is the scheduler up, and do its workers have memory and this version of gpuplanner?"
        got = f"{type(error).__name__}: {str(error)[:300]}"
        raise WorkerError(f"workers at {address}", "a scheduler and workers that stay", got, todo) from error


def _run_on_processes(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[int, Any]]:
    """Run the tasks in worker processes; yield the index and the result of each."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    remaining = dict(enumerate(tasks))
    deaths = 0
    # Spawned, not forked: a forked child would lack the threads that libraries have started.
    spawn_context = multiprocessing.get_context("spawn")
    while remaining:
        processes = ProcessPoolExecutor(min(workers, len(remaining)), mp_context=spawn_context)
        try:
            running = {processes.submit(function, *task): number for number, task in remaining.items()}
            for future in as_completed(running):
                result = future.result()
                deaths = 0
                number = running.pop(future)
                del remaining[number]
                yield number, result
        except BrokenProcessPool as error:
            deaths += 1
            if deaths == MAX_WORKER_DEATHS_IN_A_ROW:
                got = f"{deaths} times in a row a process that ended, with {len(remaining):,} of {len(tasks):,} left"
                todo = "If memory was short, use fewer processes (--workers)."
                raise WorkerError("workers", "processes that stay", got, todo) from error
        finally:
            processes.shutdown(cancel_futures=True)
