"""Layouts over time: how many GPUs are on, cut how, in every slot, with a proven bound.

``plan`` never leaves one big integer program to a solver: see :mod:`gpuplanner.planner.search` for the steps.
``verify`` checks any plan again without sharing code with the methods.
"""

from gpuplanner.planner.assign import assign
from gpuplanner.planner.fleet import FleetPlan, fleet_from_json, fleet_to_json, plan_fleet, verify_fleet
from gpuplanner.planner.lazy import lazy
from gpuplanner.planner.limits import Limits, Quota
from gpuplanner.planner.online import Online, roll
from gpuplanner.planner.plan import Plan, plan_from_json, plan_to_json
from gpuplanner.planner.prices import instance_prices
from gpuplanner.planner.problem import PlanProblem
from gpuplanner.planner.problem_check import TIERS
from gpuplanner.planner.problem_file import read_problems
from gpuplanner.planner.robust import RobustPlans, robust
from gpuplanner.planner.search import METHODS, plan
from gpuplanner.planner.service_demands import read_service_demands
from gpuplanner.planner.service_plan import ServicePlan
from gpuplanner.planner.service_profiles import read_service_profiles
from gpuplanner.planner.service_verify import verify_services
from gpuplanner.planner.services import plan_services
from gpuplanner.planner.transition import transition
from gpuplanner.planner.verify import verify

__all__ = [
    "METHODS",
    "TIERS",
    "FleetPlan",
    "Limits",
    "Online",
    "Plan",
    "PlanProblem",
    "Quota",
    "RobustPlans",
    "ServicePlan",
    "assign",
    "fleet_from_json",
    "fleet_to_json",
    "instance_prices",
    "lazy",
    "plan",
    "plan_fleet",
    "plan_from_json",
    "plan_services",
    "plan_to_json",
    "read_problems",
    "read_service_demands",
    "read_service_profiles",
    "robust",
    "roll",
    "transition",
    "verify",
    "verify_fleet",
    "verify_services",
]
