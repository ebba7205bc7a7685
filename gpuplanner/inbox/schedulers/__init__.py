"""Readers of further schedulers: a file each, which is found by itself.

``CONTRIBUTING.md``, "Where to add a reader", has one to begin with.
"""

from __future__ import annotations

import importlib
import pkgutil

from gpuplanner.inbox.core.source import Source


def sources() -> tuple[Source, ...]:
    """The ``SOURCE`` of each file of this folder, by the names of the files.

    Examples
    --------
    >>> all(isinstance(source, Source) for source in sources())
    True
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").SOURCE for name in names)
