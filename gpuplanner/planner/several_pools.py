"""Several pools at once: boards of different models, planned together and answered for together; and their files.

A request that names a profile of one pool, as a Slurm ``gres`` type or a node selector does, is served there, and
quotas are counted by tenant and pool, as Kueue counts them by flavour. So a fleet is the sum of its pools: the sum of
their bounds is a bound, and the sum of best plans is a best plan. Demand that several pools may serve makes them one
problem: a linear program over all pools bounds it, and sends demand, slot by slot, to pools that are then planned as
ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from gpuplanner.errors import ScenarioError, examples, message
from gpuplanner.files import read_text, to_json
from gpuplanner.planner.contract.movable import Movable, Transfer, after_moves, checked_movable
from gpuplanner.planner.contract.plan import FORMAT as PLAN_FORMAT
from gpuplanner.planner.contract.plan import LARGEST_FILE, Plan, plan_from_plain
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.search import GAP_TARGET, SearchArguments, SearchLimits, planned_within
from gpuplanner.planner.program.joint import Joint, joint_bound, joint_floors, solved_jointly, swept
from gpuplanner.planner.together import TogetherProof
from gpuplanner.planner.verification.moves import move_faults
from gpuplanner.planner.verification.plans import verify
from gpuplanner.solving.effort import TOLERANCE, WORK_LIMIT, Effort, relative_gap
from gpuplanner.strict_json import load_json

FORMAT = "gpuplanner.fleet-plan/2"

# First every pool gets this part of its time; what easy pools leave goes to the widest gap.
_FIRST_SHARE = 0.4
_OF_POOLS = 0.5
_EXPECTED = "a JSON object: a problem, a plan file, or 'pools' with a problem for each name"


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """Plans of all pools with the proof of their sum.

    Parameters
    ----------
    plans : mapping of str to Plan
        By pool, each of the demand that the pool was given.
    seconds : float
        Time that the search took [s].
    moves : tuple of Transfer
        Demand that was sent from its own pool to another one.
    least : float, optional
        What no plans undercut, however demand is parted; None where none may move: the bounds of the pools add up.
    proof : TogetherProof, optional
        Why, for files.
    """

    plans: Mapping[str, Plan]
    seconds: float
    moves: tuple[Transfer, ...] = ()
    least: float | None = None
    proof: TogetherProof | None = None

    @property
    def found(self) -> bool:
        """Whether there are counts to act on in every pool."""
        return all(found.found for found in self.plans.values())

    @property
    def objective(self) -> float | None:
        """Cost of all pools; None unless every pool has a plan."""
        return sum(found.objective or 0.0 for found in self.plans.values()) if self.found else None

    @property
    def bound(self) -> float | None:
        """What no fleet plan undercuts; None unless every pool has a plan."""
        if self.objective is None or self.least is None:
            return sum(found.bound or 0.0 for found in self.plans.values()) if self.found else None
        return min(self.least, self.objective)

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
        weakest = min((found.status for found in self.plans.values()), key=order.index)
        return weakest if self.least is None or not self.found else "feasible" if self.gap else "optimal"

    @property
    def explanation(self) -> str:
        """Every pool in words."""
        return "\n".join(f"{name}: {found.explanation}" for name, found in self.plans.items())


def plan_fleet(
    pools: Mapping[str, PlanProblem], movable: Sequence[Movable] = (), **how: Unpack[SearchArguments]
) -> FleetPlan:
    """Plan every pool of a fleet.

    Pools are planned one after the other with a part of the work, or time, each; what is left then goes to the
    pools that are furthest from proof, widest absolute gap first. Demand that may move is first sent to where all pools
    together cost least, slot by slot; where that saves nothing it stays.

    Parameters
    ----------
    pools : mapping of str to PlanProblem
        By name, over the same slots.
    movable : sequence of Movable
        Demand that other pools may serve as well.
    **how
        Arguments of :func:`~gpuplanner.planner.plan`; its limits are those of all pools together, and without any,
        each pool adds the work of one. Sending demand has as much again.

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

    With a slice on each board, one GPU of either serves both:

    >>> pools["new"] = PlanProblem("H100-80GB-SXM5", 4, 4, profiles=["3g.40gb"], demand=[[[1, 1, 1]]], **hours)
    >>> movable = [Movable("new", "3g.40gb", 1.0, {("old", "3g.20gb"): 1.0})]
    >>> plan_fleet(pools, gap_target=0).objective, plan_fleet(pools, movable, gap_target=0).objective
    (7.05, 6.1)
    """
    began = time.perf_counter()
    apart = _each(pools, **how)
    if not movable or not apart.found:
        return apart
    found = best_routed(
        pools, movable, lambda given: _each(given, **_finer(how)), apart, **_limits(pools, how)
    )
    return replace(found, seconds=time.perf_counter() - began)


def best_routed(
    pools: Mapping[str, PlanProblem],
    movable: Sequence[Movable],
    plan_each: Callable[[Mapping[str, PlanProblem]], FleetPlan],
    apart: FleetPlan,
    **limits: Unpack[SearchLimits],
) -> FleetPlan:
    """Send demand where all pools together cost least, plan them, and keep the cheapest; `apart` is without moves."""
    checked_movable(pools, movable)
    asked: dict[str, Any] = {"gap_target": GAP_TARGET, **limits}
    effort = Effort.begin(**asked)
    joint = Joint.of(pools, movable)
    best = replace(apart, least=0.0)

    def better(least: float, moves: Sequence[Transfer]) -> FleetPlan:
        held = replace(best, least=max(best.least or 0.0, least))
        if not moves:
            return held
        found = plan_each(after_moves(pools, moves))
        cheaper = found.objective is not None and found.objective < (best.objective or 0.0) - TOLERANCE
        return replace(found, moves=tuple(moves), least=held.least) if cheaper else held

    small = solved_jointly(joint, effort.share(0.5))
    if small is not None:
        best = better(*small)
    floors: dict[int, float] = {}
    for with_floors in (False, True):
        if ((best.gap or 0.0) <= effort.gap_target and best.least) or effort.spent():
            break
        if with_floors:
            floors = joint_floors(joint, effort.share(0.7))
        least, guides = joint_bound(joint, floors, effort)
        best = better(least, swept(joint, guides, effort) if guides else ())
    return best


def _finer(how: SearchArguments) -> SearchArguments:
    """Pools are planned more finely than all of them need be: sending demand has a part in the gap."""
    found = how.copy()
    found["gap_target"] = _OF_POOLS * how.get("gap_target", GAP_TARGET)
    return found


def _limits(pools: Mapping[str, PlanProblem], how: SearchArguments) -> dict[str, Any]:
    """What of the arguments of a search limits it."""
    found = {name: value for name, value in how.items() if name not in ("method", "calendars")}
    if found.get("time_limit_s") is None and found.get("work_limit") is None:
        found["work_limit"] = WORK_LIMIT * len(pools)
    return {"gap_target": GAP_TARGET, **found}


def _each(pools: Mapping[str, PlanProblem], **how: Unpack[SearchArguments]) -> FleetPlan:
    """Plans of pools that share no demand."""
    _check(pools)
    began = time.perf_counter()
    method, calendars = how.get("method", "auto"), how.get("calendars", 2)
    effort = Effort.begin(**_limits(pools, how))
    plans: dict[str, Plan] = {}
    for place, (name, problem) in enumerate(pools.items()):
        part = _FIRST_SHARE if place + 1 < len(pools) else 1.0
        plans[name] = planned_within(problem, method, calendars, effort.share(part / (len(pools) - place)))
    for name in sorted(plans, key=lambda one: -_distance(plans[one])):
        if plans[name].stopped_by in ("time_limit", "work_limit") and effort.left() > 1 / (2 * len(pools)):
            again = planned_within(pools[name], method, calendars, effort)
            plans[name] = min(plans[name], again, key=_distance)
    return FleetPlan(plans, time.perf_counter() - began)


def verify_fleet(
    fleet: FleetPlan, pools: Mapping[str, PlanProblem], movable: Sequence[Movable] = ()
) -> list[str]:
    """Say everything that is wrong with a fleet plan: with what was sent where, and pool by pool.

    Parameters
    ----------
    fleet : FleetPlan
        The plans.
    pools : mapping of str to PlanProblem
        The problems, as they were before anything was sent.
    movable : sequence of Movable
        Demand that other pools may serve as well.

    Returns
    -------
    list of str
        Faults; empty if all is right.
    """
    if set(fleet.plans) != set(pools):
        return [f"pools: the plan has {sorted(fleet.plans)}, the fleet {sorted(pools)}"]
    given = after_moves(pools, fleet.moves)
    faults = move_faults(fleet.moves, pools, movable, given)
    return faults + [
        f"{name}: {fault}" for name, found in fleet.plans.items() for fault in verify(found, given[name])
    ]


def fleet_to_json(fleet: FleetPlan, pools: Mapping[str, PlanProblem]) -> str:
    """Print the plans with their problems; the same input gives the same bytes."""
    parts = {
        name: {"plan": found.to_dict(), "problem": pools[name].to_dict()}
        for name, found in fleet.plans.items()
    }
    together = {} if fleet.proof is None else {"together": fleet.proof.to_dict()}
    return to_json({"format": FORMAT, "pools": parts, **together})


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
    if set(values) - {"together"} != {"format", "pools"} or not isinstance(pools, dict):
        text = message(
            "fleet plan file", "'format', 'pools', 'together'", examples(sorted(values)), "Plan again."
        )
        raise ScenarioError(text)
    plans = {
        name: plan_from_plain({"format": PLAN_FORMAT, **pool} if isinstance(pool, dict) else pool)
        for name, pool in pools.items()
    }
    _check({name: problem for name, (_, problem) in plans.items()})
    return plans


def proof_from_json(text: str) -> TogetherProof | None:
    """The proof that a file of :func:`fleet_to_json` has of the bound of all pools; None where it has none."""
    values = load_json(text, where="plan file", error=ScenarioError)
    together = values.get("together") if isinstance(values, dict) else None
    return None if together is None else TogetherProof.from_dict(together)


def _distance(found: Plan) -> float:
    """Cost that may lie between a plan and the best one."""
    if found.objective is None or found.bound is None:
        return float("inf") if found.status == "unknown" else 0.0
    return found.objective - found.bound


def _check(pools: Mapping[str, PlanProblem]) -> None:
    slots = {(p.slot_start, p.slot_hours, p.n_slots) for p in pools.values()}
    if len(slots) != 1:
        got = "no pool" if not pools else f"{len(slots)} different ones"
        text = message("fleet", "pools over the same slots", got, "Give all pools the same slots.")
        raise ScenarioError(text)


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
        raise ScenarioError(message(str(path), _EXPECTED, type(values).__name__, "Check the file."))
    pools = values.get("pools")
    if pools is None:
        found = PlanProblem.from_dict(_problem(values))
        return {found.board.name: found}
    if not isinstance(pools, dict) or not all(isinstance(pool, dict) for pool in pools.values()):
        raise ScenarioError(message(str(path), _EXPECTED, "'pools' of another kind", "Mend it."))
    return {str(name): PlanProblem.from_dict(_problem(pool)) for name, pool in pools.items()}


def _problem(values: dict[str, Any]) -> dict[str, Any]:
    inner = values.get("problem")
    return inner if isinstance(inner, dict) else values
