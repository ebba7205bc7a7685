"""Readers of further schedulers: a file each, which is found by itself, and those of other installed packages.

``CONTRIBUTING.md``, "Where to add a reader", has one to begin with.
"""

from __future__ import annotations

import importlib
import pkgutil

from gpuplanner.core.execution import READERS, plugged
from gpuplanner.ingest.source_definition import Source


def sources(taken: frozenset[str] = frozenset()) -> tuple[Source, ...]:
    """The ``SOURCE`` of each file of this folder, by the names of the files, and what is plugged in as a reader.

    Examples
    --------
    >>> all(isinstance(source, Source) for source in sources())
    True
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    ours = tuple(importlib.import_module(f"{__name__}.{name}").SOURCE for name in names)
    return ours + tuple(plugged(READERS, Source, taken | {one.name for one in ours}).values())
