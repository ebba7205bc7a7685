"""Compile the functions of this room with numba, and keep the machine code for as long as its source lasts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpuplanner._optional import import_optional

Function = TypeVar("Function", bound=Callable[..., object])


def entry(function: Function) -> Function:
    """Compile a function that Python calls, at its first call.

    The machine code is kept beside the source, else in ``NUMBA_CACHE_DIR`` or the user's cache folder, and in
    memory alone where none of them can be written. By itself numba notices a change only of the file that a
    function stands in, not of those that it calls into; so the source of the whole room is part of the key.
    """
    dispatcher = import_optional("numba", extra="simulate").njit()(function)
    try:
        dispatcher._cache = _cache_class()(function)
    except RuntimeError:
        return dispatcher  # type: ignore[no-any-return]
    return dispatcher  # type: ignore[no-any-return]


def part(function: Function) -> Function:
    """Compile a function that only other compiled functions call."""
    return import_optional("numba", extra="simulate").njit()(function)  # type: ignore[no-any-return]


@functools.cache
def _cache_class() -> type[Any]:
    """Numba's cache, with the source of this room in its key."""
    base = import_optional("numba.core.caching", extra="simulate").FunctionCache
    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source.update(path.read_bytes())

    def index_key(self: Any, *arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - numba's own types
        return (*base._index_key(self, *arguments), source.hexdigest())

    return type("RoomCache", (base,), {"_index_key": index_key})
