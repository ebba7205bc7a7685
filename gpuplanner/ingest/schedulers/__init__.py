"""Readers of further schedulers: each module here is found automatically, and so are readers of installed packages.

``docs/where_to_change.md``, "Example: a reader", has one to begin with.
"""

from __future__ import annotations

import importlib
import pkgutil

from gpuplanner.core.libraries_plugins_and_workers import READER_ENTRY_POINT_GROUP, load_plugins
from gpuplanner.ingest.source_definition import Source


def sources(taken: frozenset[str] = frozenset()) -> tuple[Source, ...]:
    """Return the sources of further schedulers: ``SOURCE`` of each module here, and the readers of installed packages.

    Parameters
    ----------
    taken : frozenset of str
        Names of other sources, which readers of installed packages may not use.

    Returns
    -------
    tuple of Source

    Examples
    --------
    >>> all(isinstance(source, Source) for source in sources())
    True
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    own_sources = tuple(importlib.import_module(f"{__name__}.{name}").SOURCE for name in names)
    taken_names = taken | {source.name for source in own_sources}
    return own_sources + tuple(load_plugins(READER_ENTRY_POINT_GROUP, Source, taken_names).values())
