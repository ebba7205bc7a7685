"""Charts: a frame goes in, an Altair chart comes out. No file is written and no statistics are made here.

What the room offers stands in ``__init__.pyi`` alone; a name is loaded when it is first used, so that
``import gpuplanner.plot`` does not load Altair.
"""

from __future__ import annotations

from typing import Any

from gpuplanner._optional import import_optional, late_name, names_of_stub

_HOMES = names_of_stub(__file__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    if name in _HOMES:
        import_optional("altair", extra="plot")
    return late_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
