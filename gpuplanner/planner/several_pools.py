"""Several pools at once: GPUs of different models, planned one by one; what all of them cost, and their files.

A request that names a profile of one pool, as a Slurm ``gres`` type or a node selector does, is served there, and
quotas are counted by tenant and pool, as Kueue counts them by flavor. So a fleet is the sum of its pools: the sum of
their bounds is a bound, and the sum of best plans is a best plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from gpuplanner.errors import ScenarioError, examples
from gpuplanner.files.text import read_text, to_json
from gpuplanner.planner.contract.plain_values import refuse
from gpuplanner.planner.contract.plan import FORMAT as PLAN_FORMAT
from gpuplanner.planner.contract.plan import LARGEST_FILE, Plan, plan_from_plain
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.search import GAP_TARGET, SearchArguments, planned_within
from gpuplanner.planner.verification.plans import verify
from gpuplanner.solving.effort import WORK_LIMIT, Effort, relative_gap
from gpuplanner.strict_json import load_json

FORMAT = "gpuplanner.fleet-plan/3"

_EXPECTED = "a JSON object: a problem, a plan file, or 'pools' with a problem for each name"


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """Plans of all pools, and their sums.

    Parameters
    ----------
    plans : mapping of str to Plan
        By pool.
    seconds : float
        Time that the search took [s].
    """

    plans: Mapping[str, Plan]
    seconds: float

    @property
    def found(self) -> bool:
        """Whether there are counts to act on in every pool."""
        return all(plan.found for plan in self.plans.values())

    @property
    def objective(self) -> float | None:
        """Cost of all pools; None unless every pool has a plan."""
        return sum(plan.objective or 0.0 for plan in self.plans.values()) if self.found else None

    @property
    def bound(self) -> float | None:
        """What no fleet plan undercuts; None unless every pool has a plan."""
        return sum(plan.bound or 0.0 for plan in self.plans.values()) if self.found else None

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective; None unless every pool has a plan."""
        if self.objective is None or self.bound is None:
            return None
        return relative_gap(self.objective, self.bound)

    @property
    def status(self) -> str:
        """The weakest status of a pool; see ``Plan.status``."""
        order = ("infeasible", "unknown", "feasible", "optimal")
        return min((plan.status for plan in self.plans.values()), key=order.index)

    @property
    def explanation(self) -> str:
        """Every pool in words."""
        return "\n".join(f"{name}: {plan.explanation}" for name, plan in self.plans.items())


def plan_fleet(pools: Mapping[str, PlanProblem], **how: Unpack[SearchArguments]) -> FleetPlan:
    """Plan every pool of a fleet, one after the other, each with an equal part of the work, or time, that is left.

    Parameters
    ----------
    pools : mapping of str to PlanProblem
        By name, over the same slots.
    **how
        Arguments of :func:`~gpuplanner.planner.plan`; its limits are those of all pools together, and without any,
        each pool adds the work of one.

    Returns
    -------
    FleetPlan

    Raises
    ------
    ScenarioError
        If there is no pool, pools have other slots, or an argument makes no sense.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hours = {"slot_start": datetime(2026, 11, 2, tzinfo=UTC), "slot_hours": 1, "tenants": ["ads"]}
    >>> hours["change_gpu_hours"] = 0.05
    >>> pools = {
    ...     "old": PlanProblem("A100-40GB", 4, 4, profiles=["3g.20gb"], demand=[[[1, 2, 4]]], **hours),
    ...     "new": PlanProblem("H100-80GB-SXM5", 4, 4, profiles=["gpu"], demand=[[[1, 1, 2]]], **hours),
    ... }
    >>> found = plan_fleet(pools, gap_target=0)
    >>> found.status, found.objective, verify_fleet(found, pools)
    ('optimal', 8.05, [])
    """
    _check(pools)
    began = time.perf_counter()
    limits: dict[str, Any] = {"gap_target": GAP_TARGET, **how}
    method, calendars = limits.pop("method", "auto"), limits.pop("calendars", 2)
    if limits.get("time_limit_s") is None and limits.get("work_limit") is None:
        limits["work_limit"] = WORK_LIMIT * len(pools)
    effort = Effort.begin(**limits)

    plans = {}
    for place, (name, problem) in enumerate(pools.items()):
        part = effort.share(1 / (len(pools) - place))
        plans[name] = planned_within(problem, method, calendars, part)
    return FleetPlan(plans, time.perf_counter() - began)


def verify_fleet(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> list[str]:
    """Say everything that is wrong with the plans of a fleet, pool by pool.

    Parameters
    ----------
    fleet : FleetPlan
        The plans.
    pools : mapping of str to PlanProblem
        The problems.

    Returns
    -------
    list of str
        Faults; empty if all is right.
    """
    if set(fleet.plans) != set(pools):
        return [f"pools: the plan has {sorted(fleet.plans)}, the fleet {sorted(pools)}"]
    return [f"{name}: {fault}" for name, plan in fleet.plans.items() for fault in verify(plan, pools[name])]


def fleet_to_json(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> str:
    """Print the plans with their problems; the same input gives the same bytes."""
    parts = {
        name: {"plan": plan.to_dict(), "problem": pools[name].to_dict()} for name, plan in fleet.plans.items()
    }
    return to_json({"format": FORMAT, "pools": parts})


def fleet_from_json(text: str) -> dict[str, tuple[Plan, PlanProblem]]:
    """Read what :func:`fleet_to_json` printed, or the one pool of ``plan_to_json``.

    Raises
    ------
    ScenarioError
        If the text is neither.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    values = load_json(text, where="plan file", error=ScenarioError)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found, problem = plan_from_plain(values)
        return {problem.board.name: (found, problem)}
    pools = values.get("pools")
    if set(values) != {"format", "pools"} or not isinstance(pools, dict):
        refuse("fleet plan file", "'format' and 'pools'", examples(sorted(values)), "Plan again.")
    plans = {
        name: plan_from_plain({"format": PLAN_FORMAT, **pool} if isinstance(pool, dict) else pool)
        for name, pool in pools.items()
    }
    _check({name: problem for name, (_, problem) in plans.items()})
    return plans


def _check(pools: Mapping[str, PlanProblem]) -> None:
    slots = {(p.slot_start, p.slot_hours, p.n_slots) for p in pools.values()}
    if len(slots) != 1:
        got = "no pool" if not pools else f"{len(slots)} different ones"
        refuse("fleet", "pools over the same slots", got, "Give all pools the same slots.")


def read_problems(path: str | Path) -> dict[str, PlanProblem]:
    """Read the problem of a file, or of each pool of a fleet.

    Parameters
    ----------
    path : str or Path
        JSON: the values of ``PlanProblem.to_dict`` (what has a default may be left out, and a board may be
        named instead of described), a file that ``plan_to_json`` or ``fleet_to_json`` wrote, or an object
        with ``pools``: a problem for each name.

    Returns
    -------
    dict of str to PlanProblem
        By pool; a single pool bears the name of its board.

    Raises
    ------
    ScenarioError
        If the file is none of these, or a value makes no sense.
    GeometryError
        If it names a board, profile or layout that does not exist.
    """
    text = read_text(path, error=ScenarioError, what="problem", limit_bytes=LARGEST_FILE)
    values = load_json(text, where=str(path), error=ScenarioError)
    if not isinstance(values, dict):
        refuse(str(path), _EXPECTED, type(values).__name__, "Check the file.")
    pools = values.get("pools")
    if pools is None:
        found = PlanProblem.from_dict(_problem(values))
        return {found.board.name: found}
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        refuse(str(path), _EXPECTED, "'pools' of another kind")
    return {str(name): PlanProblem.from_dict(_problem(pool)) for name, pool in pools.items()}


def _problem(values: dict[str, Any]) -> dict[str, Any]:
    inner = values.get("problem")
    return inner if isinstance(inner, dict) else values
