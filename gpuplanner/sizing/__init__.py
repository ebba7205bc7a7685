"""Sizes: what jobs ask for and what they need, as profiles of a board."""

from __future__ import annotations

from typing import Any

from gpuplanner._optional import late_name, names_of_stub

# A row is predicted without boards, requests and traces, and shall not wait until all of it is loaded.
_HOMES = names_of_stub(__file__)
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, _HOMES, name)
