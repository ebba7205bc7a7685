"""Say how many GPUs are needed, cut how, for whom, by when, how sure that is, and what it saves.

The names below are loaded when they are first used, so that ``import gpuplanner`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuplanner._optional import late_name
from gpuplanner._version import __version__
from gpuplanner.knobs import CATALOGUES

if TYPE_CHECKING:
    from gpuplanner.catalog.loader import facts
    from gpuplanner.hardware.gpu import load_gpu_model
    from gpuplanner.hardware.feasibility import prove
    from gpuplanner.inbox.store import open_dataset
    from gpuplanner.inbox.registry import read
    from gpuplanner.planner.contract.plan import Plan
    from gpuplanner.planner.contract.problem import PlanProblem
    from gpuplanner.planner.methods.search import plan
    from gpuplanner.planner.verification.plans import verify
    from gpuplanner.scenario import Scenario
    from gpuplanner.study.study import Study
    from gpuplanner.widgets.ahead import AheadQuestion
    from gpuplanner.views.view import View
    from gpuplanner.views.forward import ahead, costs
    from gpuplanner.views.study import compare, decide, evaluate, open_study
    from gpuplanner.views.trace import explore
    from gpuplanner.views.planned import layouts
    from gpuplanner.views.sized import size
    from gpuplanner.views.claims import twenty_jobs
    from gpuplanner.widgets.whatif import whatif

_HOME = {
    "AheadQuestion": "views",
    "Plan": "planner",
    "PlanProblem": "planner",
    "Scenario": "scenario",
    "Study": "study",
    "View": "views",
    "ahead": "views",
    "compare": "views",
    "costs": "views",
    "decide": "views",
    "evaluate": "views",
    "explore": "views",
    "facts": "catalog",
    "layouts": "views",
    "load_gpu_model": "hardware",
    "open_dataset": "inbox",
    "open_study": "views",
    "plan": "planner",
    "prove": "hardware",
    "read": "inbox",
    "size": "views",
    "twenty_jobs": "views",
    "verify": "planner",
    "whatif": "widgets",
}

__all__ = [
    "AheadQuestion",
    "Plan",
    "PlanProblem",
    "Scenario",
    "Study",
    "View",
    "__version__",
    "ahead",
    "compare",
    "costs",
    "decide",
    "evaluate",
    "explore",
    "facts",
    "layouts",
    "load_gpu_model",
    "open_dataset",
    "open_study",
    "plan",
    "prove",
    "read",
    "size",
    "twenty_jobs",
    "verify",
    "whatif",
]


def _find_board(text: str) -> str:
    from gpuplanner.catalog.loader import find_any_board

    return find_any_board(text)


def _find_currency(code: str) -> str:
    from gpuplanner.catalog.loader import facts

    return code if code == "USD" or code in facts("currencies")["code"] else ""


# What a scenario names is looked up in the catalogue, of which the scenario itself knows nothing.
CATALOGUES.update(board=_find_board, currency=_find_currency)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the room exports under that name
    return late_name(__name__, _HOME, name)


def __dir__() -> list[str]:
    return __all__
