"""Layouts over time: how many GPUs are on, cut how, in every slot, with a lower bound.

``plan`` never leaves one big integer program to a solver: see :mod:`gpuplanner.planner.methods.search` for the steps.
``verify`` checks any plan again without sharing code with the methods.
"""

from gpuplanner.planner.contract.limits import Limits, Quota
from gpuplanner.planner.contract.plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.contract.problem import UNMET_PRICE, PlanProblem
from gpuplanner.planner.contract.problem_check import TIERS
from gpuplanner.planner.contract.state_prices import StatePrices
from gpuplanner.planner.methods.search import METHODS, plan
from gpuplanner.planner.numbered.assign import assign, layout_changes
from gpuplanner.planner.program.realised_cost import instance_prices
from gpuplanner.planner.several_pools import (
    FleetPlan,
    fleet_from_json,
    fleet_to_json,
    plan_fleet,
    read_problems,
    verify_fleet,
)
from gpuplanner.planner.verification.plans import verify

__all__ = [
    "METHODS",
    "TIERS",
    "UNMET_PRICE",
    "FleetPlan",
    "Limits",
    "Plan",
    "PlanProblem",
    "Quota",
    "StatePrices",
    "assign",
    "fleet_from_json",
    "fleet_to_json",
    "instance_prices",
    "layout_changes",
    "plan",
    "plan_fleet",
    "plan_from_json",
    "plan_to_json",
    "read_problems",
    "verify",
    "verify_fleet",
]
