"""What other installed packages add: readers, ways to run a fleet and exporters, found by entry point."""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from gpuplanner.errors import GpuPlannerWarning, message

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
    return " ".join(
        f"{point.name}={point.value} {point.dist.version if point.dist else ''}"
        for group in (READERS, POLICIES, EXPORTERS)
        for point in _found(group)
    )


def _left_out(point: EntryPoint, expected: str, got: str) -> None:
    where = f"entry point {point.name!r} of {point.group} ({point.value})"
    mend = "It is left out; mend or remove the package that brings it."
    warnings.warn(message(where, expected, got, mend), GpuPlannerWarning, stacklevel=3)
