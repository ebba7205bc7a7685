"""Layouts over time: how many GPUs are on, cut how, in every slot, with a proven bound.

``plan`` never leaves one big integer program to a solver: see :mod:`gpuplanner.planner.search` for the steps.
``verify`` checks any plan again without sharing code with the methods.
"""

from gpuplanner.planner.assign import assign
from gpuplanner.planner.plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.problem import PlanProblem
from gpuplanner.planner.problem_check import TIERS
from gpuplanner.planner.search import METHODS, plan
from gpuplanner.planner.verify import verify

__all__ = [
    "METHODS",
    "TIERS",
    "Plan",
    "PlanProblem",
    "assign",
    "plan",
    "plan_from_json",
    "plan_to_json",
    "verify",
]
