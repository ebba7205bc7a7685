"""The walk from a scenario to a study, and what the doors need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name

if TYPE_CHECKING:
    from gpuplanner.study.evaluation import evaluate
    from gpuplanner.study.handover.calendar import export_plan
    from gpuplanner.study.handover.read_back import verify_any
    from gpuplanner.study.past.description import describe
    from gpuplanner.study.past.history import load_trace
    from gpuplanner.study.study import Study, open_study

# Sizing a job needs none of the walk, and shall not wait until all of it is loaded.
_HOME = {
    "Study": "study",
    "describe": "past.description",
    "evaluate": "evaluation",
    "export_plan": "handover.calendar",
    "load_trace": "past.history",
    "open_study": "study",
    "verify_any": "handover.read_back",
}

__all__ = [
    "Study",
    "describe",
    "evaluate",
    "export_plan",
    "load_trace",
    "open_study",
    "verify_any",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, _HOME, name)
