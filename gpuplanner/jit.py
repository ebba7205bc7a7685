"""Compile functions with numba, and keep the machine code on disk for as long as their room's source lasts."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner._optional import import_optional

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])


def compiled_entry(function: Function, **options: object) -> Function:
    """Compile a function that Python calls: at its first call, once for all. Other threads go on while it runs.

    The machine code is kept beside the source, else in ``NUMBA_CACHE_DIR`` or the user's cache folder, and in
    memory alone where none of them can be written. By itself numba notices a change only of the file that a
    function stands in, not of those that it calls into; so the source of its whole room is part of the key: all
    files below the folder of the package, or beside the file of a function from elsewhere.
    """
    dispatcher = _njit()(function, nogil=True, **options)
    try:
        dispatcher._cache = _cache_class(_room(Path(function.__code__.co_filename)))(function)
    except RuntimeError:
        return dispatcher  # type: ignore[no-any-return]
    return dispatcher  # type: ignore[no-any-return]


def part(function: Function, **options: object) -> Function:
    """Compile a function that only other compiled functions call."""
    return _njit()(function, **options)  # type: ignore[no-any-return]


def _njit() -> Any:  # noqa: ANN401 - a decorator of numba
    return import_optional("numba", extra="simulate").njit


def _room(source: Path) -> Path:
    """The room of a file of this package: kernels call into other folders of it; else the folder of the file."""
    package = Path(__file__).parent
    below = source.relative_to(package).parts if source.is_relative_to(package) else ()
    return package / below[0] if len(below) > 1 else source.parent


@functools.cache
def _cache_class(room: Path) -> type[Any]:
    """Numba's cache, with the source of the room in its key."""
    base = import_optional("numba.core.caching", extra="simulate").FunctionCache
    source = hashlib.sha256(Path(__file__).read_bytes())  # how is compiled stands here
    of_package = room.parent == Path(__file__).parent
    for path in sorted(room.rglob("*.py") if of_package else room.glob("*.py")):
        source.update(path.read_bytes())

    def load_overload(self: Any, *arguments: Any) -> Any:  # noqa: ANN401 - numba's own types
        try:
            kept = base.load_overload(self, *arguments)
        except (
            AttributeError,
            ImportError,
        ):  # its index names a class that the source calls otherwise by now
            self.flush()
            kept = None
        if kept is None:
            log.warning(
                "compiling part of gpuplanner.%s; it is kept, so this takes some seconds once",
                room.name,
            )
        return kept

    def index_key(self: Any, *arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - numba's own types
        return (*base._index_key(self, *arguments), source.hexdigest())

    return type("RoomCache", (base,), {"_index_key": index_key, "load_overload": load_overload})
