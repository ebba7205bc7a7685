"""From problem to plan: rounds of bound, sweep, path and windows, then everything at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.bound import lower_bound
from gpuplanner.planner.effort import Effort, relative_gap
from gpuplanner.planner.explain import explain, explain_limits
from gpuplanner.planner.families import Floor
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.forward import sweep
from gpuplanner.planner.paths import cheapest_path
from gpuplanner.planner.plan import Plan
from gpuplanner.planner.problem import Counts, PlanProblem
from gpuplanner.planner.shortage import unmet_by_tenant
from gpuplanner.planner.slots import window_floors
from gpuplanner.planner.static import static_counts
from gpuplanner.planner.whole import solve_whole
from gpuplanner.planner.windows import improved

METHODS = ("milp", "static")

# Floors of wider windows cost more than they tell.
_WIDEST_FLOOR = 4

# Up to this many numbers of GPUs (slots times layouts), the whole horizon as one model is the shortest way.
_SMALL = 600

_DECIMALS = 9


@dataclass(frozen=True)
class _State:
    """The best plan and the best bound so far."""

    counts: Counts | None = None
    cost: float = float("inf")
    bound: float = 0.0

    def better(self, fluid: Fluid, counts: Counts | None) -> _State:
        """With a plan, if it is cheaper than the one held."""
        if counts is None:
            return self
        cost = fluid.cost(counts, before=fluid.initial)
        return replace(self, counts=counts, cost=cost) if cost < self.cost else self

    def tighter(self, bound: float | None) -> _State:
        """With a bound, if it is higher than the one held."""
        return self if bound is None else replace(self, bound=max(self.bound, bound))

    @property
    def plan(self) -> Counts:
        """The plan, once there is one."""
        assert self.counts is not None
        return self.counts

    @property
    def gap(self) -> float:
        """Relative gap; infinite without a plan."""
        return float("inf") if self.counts is None else relative_gap(self.cost, self.bound)


def plan(
    problem: PlanProblem,
    *,
    method: str = "milp",
    time_limit_s: float = 10.0,
    gap_target: float = 0.005,
    seed: int = 0,
    solver: str = "highs",
) -> Plan:
    """Choose how many GPUs are on with which layout in every slot, with a proof of how good that is.

    In rounds: each slot's (later, each few slots') own optimum in whole GPUs is a floor; a linear program over
    all slots with these floors gives the bound; a sweep through the slots, forward or backward, rounds it to a
    plan; the cheapest path through all states seen so far, and windows of slots solved anew, make it better.
    Last, the whole horizon is one model. The search ends when the gap is reached. The same problem and seed
    give the same plan, whatever the machine, unless the time runs out first.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet, prices and limits.
    method : {"milp", "static"}
        Free to change in every slot, or the best vector of counts for all slots.
    time_limit_s : float
        No new step is begun after this time [s].
    gap_target : float
        Relative gap at which to stop; 0 asks for the optimum.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Solver.

    Returns
    -------
    Plan
        Also when there is none to find; see ``Plan.status`` and ``Plan.require``. Ctrl-C returns the best
        plan so far, if there is one.

    Raises
    ------
    ScenarioError
        If an argument makes no sense.
    MissingDependencyError
        If the solver is not installed.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = 1 + np.arange(24) % 12 // 4
    >>> problem = PlanProblem(
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[day]]
    ... )
    >>> best = plan(problem, gap_target=0)
    >>> best.status, best.objective, best.changes, best.layouts
    ('optimal', 32.1, 2, ('3g.20gb:2',))
    """
    if method not in METHODS:
        text = message("plan: method", f"one of {', '.join(METHODS)}", repr(method), "Choose one.")
        raise ScenarioError(text)
    effort = Effort.begin(gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver)
    began = time.perf_counter()
    fault = explain_limits(problem)
    if fault is not None:
        return replace(
            _no_plan(problem, method, "infeasible", "proof", fault), seconds=time.perf_counter() - began
        )
    fluid = Fluid.of(problem)
    state, stopped_by = _search(fluid, method, effort)
    if state.counts is None:
        text = "The time was up, or the solver failed, before any plan was found. Allow more time."
        found = _no_plan(problem, method, "unknown", stopped_by, text)
    else:
        found = _plan_of(fluid, state, method, stopped_by)
        found = replace(found, explanation=explain(found, problem, effort))
    return replace(found, seconds=time.perf_counter() - began)


def _search(fluid: Fluid, method: str, effort: Effort) -> tuple[_State, str]:
    state = _State()
    stages = _dynamic if method == "milp" else _static
    try:
        for state in stages(fluid, effort):
            if state.gap <= effort.gap_target:
                return state, "proof"
    except KeyboardInterrupt:
        if state.counts is None:
            raise
        return state, "user"
    return state, "time_limit" if effort.spent() else "passes"


def _dynamic(fluid: Fluid, effort: Effort) -> Iterator[_State]:
    """Rounds of bound and plan, each with floors of wider windows, then everything at once."""
    state = _State()
    floors: list[Floor] = []
    states: list[Counts] = []
    plans: list[Counts] = []
    n_slots = fluid.problem.n_slots
    widest = 1 if n_slots * len(fluid.layouts) <= _SMALL else min(_WIDEST_FLOOR, n_slots)
    for width in range(1, 1 + widest):
        found = window_floors(fluid, width, floors, effort)
        if found is None:
            break
        floors += found.floors
        states.append(found.states)
        if width == 1:
            plans.append(found.states)
            state = state.tighter(sum(floor.cost for floor in floors)).better(fluid, found.states)
            yield state
        bound, guide = lower_bound(fluid, floors, effort)
        state = state.tighter(bound)
        yield state
        plans.append(sweep(fluid, state.plan, guide, effort, backward=width % 2 == 0))
        state = state.better(fluid, plans[-1])
        yield state
        state = state.better(fluid, cheapest_path(fluid, [*plans, state.plan], states))
        yield state
        if width > 1:
            for counts in improved(fluid, state.plan, floors, state.bound, effort):
                state = state.better(fluid, counts)
                yield state
    if state.counts is not None and not effort.spent():
        best, proven = solve_whole(fluid, state.counts, floors, effort)
        yield state.better(fluid, best).tighter(proven)


def _static(fluid: Fluid, effort: Effort) -> Iterator[_State]:
    counts, bound = static_counts(fluid, effort)
    yield _State().better(fluid, counts).tighter(bound)


def _plan_of(fluid: Fluid, state: _State, method: str, stopped_by: str) -> Plan:
    """The state as a plan; layouts that no GPU ever has are left out."""
    problem, counts = fluid.problem, state.plan
    used = np.flatnonzero(counts.any(axis=0))
    missing = np.array([fluid.missing(t, row) for t, row in enumerate(counts)]).T
    unmet = unmet_by_tenant(problem, missing)
    pairs = zip(counts, [fluid.initial, *counts], strict=False)
    return Plan(
        method=method,
        status="optimal" if state.gap == 0 else "feasible",
        stopped_by=stopped_by,
        objective=round(state.cost, _DECIMALS),
        bound=round(min(state.bound, state.cost), _DECIMALS),
        gap=round(state.gap, _DECIMALS),
        layouts=tuple(fluid.layouts[i] for i in used),
        counts=counts[:, used],
        unmet=unmet,
        changes=sum(fluid.cuts(before, now) for now, before in pairs),
        gpu_hours_on=float(counts.sum()) * problem.slot_hours,
        unmet_gpu_hours=float((unmet.sum(axis=(0, 2)) * problem.shares).sum() * problem.slot_hours),
        explanation="",
    )


def _no_plan(problem: PlanProblem, method: str, status: str, stopped_by: str, explanation: str) -> Plan:
    return Plan(
        method=method,
        status=status,
        stopped_by=stopped_by,
        objective=None,
        bound=None,
        gap=None,
        layouts=(),
        counts=np.zeros((0, 0), dtype=np.int64),
        unmet=np.zeros((len(problem.tenants), len(problem.profiles), 0)),
        changes=0,
        gpu_hours_on=0.0,
        unmet_gpu_hours=0.0,
        explanation=explanation,
    )
