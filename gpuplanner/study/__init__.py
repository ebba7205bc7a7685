"""The walk from a scenario to a study, and what the doors need of it."""

from gpuplanner.study.comparison import policy_frame, savings_steps
from gpuplanner.study.evaluate import evaluate
from gpuplanner.study.handover import export_plan, verify_any
from gpuplanner.study.past.description import describe
from gpuplanner.study.past.history import load_trace
from gpuplanner.study.study import Study, open_study

__all__ = [
    "Study",
    "describe",
    "evaluate",
    "export_plan",
    "load_trace",
    "open_study",
    "policy_frame",
    "savings_steps",
    "verify_any",
]
