"""Objects that draw themselves, for notebooks and scripts: what ``import gpuplanner`` offers of the walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name

if TYPE_CHECKING:
    from gpuplanner.views.claims import twenty_jobs
    from gpuplanner.views.forward import ahead, costs
    from gpuplanner.views.planned import layouts
    from gpuplanner.views.sized import size
    from gpuplanner.views.study import compare, decide, evaluate, open_study
    from gpuplanner.views.trace import explore
    from gpuplanner.views.view import View
    from gpuplanner.widgets.ahead import AheadQuestion

_HOME = {
    "AheadQuestion": "forward",
    "View": "view",
    "ahead": "forward",
    "compare": "study",
    "costs": "forward",
    "decide": "study",
    "evaluate": "study",
    "explore": "trace",
    "layouts": "planned",
    "open_study": "study",
    "size": "sized",
    "twenty_jobs": "claims",
}

__all__ = [
    "AheadQuestion",
    "View",
    "ahead",
    "compare",
    "costs",
    "decide",
    "evaluate",
    "explore",
    "layouts",
    "open_study",
    "size",
    "twenty_jobs",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module exports under that name
    return late_name(__name__, _HOME, name)
