"""The lab: what research and published claims need and no daily command runs. The core works without this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name

if TYPE_CHECKING:
    from gpuplanner.lab.claims.twenty_jobs.shown import twenty_jobs

_HOME = {"twenty_jobs": "claims.twenty_jobs.shown"}

__all__ = ["twenty_jobs"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, _HOME, name)
