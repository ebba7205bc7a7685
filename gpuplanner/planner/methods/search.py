"""From problem to plan: rounds of bound, sweep, path and windows, then everything at once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypedDict

import numpy as np

from gpuplanner.planner.contract.plain_values import is_count, refuse
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.methods.forward import standing
from gpuplanner.planner.methods.stages import METHOD_STAGES, Learned, State
from gpuplanner.planner.methods.switches import calmed, keeps_changes
from gpuplanner.planner.numbered.assign import node_reboots
from gpuplanner.planner.program.explain import explain, explain_limits
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.shortage import unmet_by_tenant
from gpuplanner.solving.effort import Effort

METHODS = tuple(METHOD_STAGES)
"""``auto``: exact where the fleet is small enough, else ``milp``. ``milp``: rounds of bound and plan, free to
change in every slot. ``dp``: dynamic programming over all states, small fleets only. ``greedy``: slot after
slot without looking ahead. ``calendar``: few different days. ``static``: no change at all."""

_DECIMALS = 9


GAP_TARGET = 0.005
"""Gap at which a search stops, where nobody says another."""


class SearchLimits(TypedDict, total=False):
    """How hard a plan is searched for: arguments of :func:`plan`."""

    time_limit_s: float | None
    gap_target: float
    seed: int
    solver: str
    work_limit: int | None


class SearchArguments(SearchLimits, total=False):
    """How a plan is searched for: arguments of :func:`plan` that other searches hand on."""

    method: str
    calendars: int


def plan(
    problem: PlanProblem,
    *,
    method: str = "auto",
    calendars: int = 2,
    time_limit_s: float | None = None,
    gap_target: float = GAP_TARGET,
    seed: int = 0,
    solver: str = "highs",
    work_limit: int | None = None,
) -> Plan:
    """Choose how many GPUs are on with which layout in every slot, with a bound on how good that is.

    First the greedy plan is there. Where few GPUs are on, and the others parked, the best plan of those on by
    themselves is a bound, and often a plan that nothing parked makes dearer. Then, in rounds: each slot's (later,
    each few slots') own optimum in whole GPUs is a floor of a linear program over all slots, which gives a bound
    and is rounded to a plan; a sweep through the slots, forward or backward, rounds it again, knowing the slot
    before; the cheapest path through all states seen so far, and windows of slots solved anew, make the plan
    better. Last, the whole horizon is one model.
    The search ends when the gap is reached. The same problem and seed give the same plan, whatever the machine
    and however busy it is, unless a time limit ends it. Whenever it is stopped there is a bound; by
    ``work_limit``, ``auto`` is never dearer than ``greedy``.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet, prices and limits.
    method : {"auto", "milp", "dp", "greedy", "calendar", "static"}
        See :data:`METHODS`.
    calendars : int
        Most different vectors of counts over the horizon, for the method ``"calendar"``.
    time_limit_s : float, optional
        No new step is begun after this time [s]: where it ends depends on the machine.
    gap_target : float
        Relative gap at which to stop; 0 asks for the optimum.
    seed : int
        Seed of the solver.
    solver : {"highs", "cbc"}
        Solver.
    work_limit : int, optional
        No new step is begun after so many units of work, each a million elementary steps and some 15 ms of one
        processor: a limit that gives the same plan on every machine. 2000 if neither limit is given.

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
    ...     "A100-40GB", 4, 4, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[day]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> best = plan(problem, gap_target=0)
    >>> best.status, best.objective, best.changes, best.layouts
    ('optimal', 32.1, 2, ('3g.20gb:2',))
    """
    effort = Effort.begin(
        gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit
    )
    return planned_within(problem, method, calendars, effort)


def planned_within(problem: PlanProblem, method: str, calendars: int, effort: Effort) -> Plan:
    """A plan within limits that a search may share with others; see :func:`plan`."""
    if method not in METHODS:
        refuse("plan: method", f"one of {', '.join(METHODS)}", repr(method), "Choose one.")
    if not is_count(calendars, 1):
        refuse("plan: calendars", "a whole number of at least 1", repr(calendars))
    began = time.perf_counter()
    fault = explain_limits(problem)
    if fault is not None:
        return replace(
            _no_plan(problem, method, "infeasible", "proof", fault), seconds=time.perf_counter() - began
        )
    fluid = Fluid.of(problem)
    state, stopped_by = _search(fluid, method, calendars, effort)
    if state.counts is None:
        text = "No plan that was found keeps the limits on changes: allow more of them, or more time."
        found = _no_plan(problem, method, "unknown", stopped_by, text)
    else:
        found = _plan_of(fluid, state, method, stopped_by)
        found = replace(found, explanation=explain(found, problem, effort))
    return replace(found, seconds=time.perf_counter() - began)


def _search(fluid: Fluid, method: str, calendars: int, effort: Effort) -> tuple[State, str]:
    limited = fluid.problem.limits.of_changes
    known, state = Learned(calendars), State()
    stopped_by = None
    try:
        for state in METHOD_STAGES[method](fluid, known, effort):
            if state.gap <= effort.gap_target and not state.preliminary:
                stopped_by = "proof"
                break
            # The second half of the time is for finding out what limits on changes cost.
            late = limited and state.bound > 0 and effort.left() < 0.5
            if late and state.counts is not None and not keeps_changes(fluid, state.counts):
                break
        if state.counts is None:
            constant = (one for one in standing(fluid) if (one == one[0]).all())
            state = state.better(fluid, min(constant, key=lambda one: fluid.cost(one, before=fluid.initial)))
        if limited and not keeps_changes(fluid, state.plan):
            counts = calmed(fluid, state.plan, known, state.bound, effort, few=method == "calendar")
            state = replace(state, counts=None, cost=float("inf")).better(fluid, counts)
            stopped_by = "proof" if state.gap <= effort.gap_target else None
    except KeyboardInterrupt:
        if state.counts is None or not keeps_changes(fluid, state.counts):
            raise
        return state, "user"
    return state, stopped_by or effort.why_spent() or "passes"


def _plan_of(fluid: Fluid, state: State, method: str, stopped_by: str) -> Plan:
    """The state as a plan; layouts that no GPU ever has are left out."""
    problem, counts = fluid.problem, state.plan
    on, parked = fluid.split(counts)
    used = np.flatnonzero(on.any(axis=0) | parked.any(axis=0))
    # How GPUs are numbered may turn on the layouts that are named: reboots are those of the plan as it is handed on.
    layouts, on, parked = tuple(fluid.layouts[i] for i in used), on[:, used], parked[:, used]
    missing = np.array([fluid.missing(t, row) for t, row in enumerate(counts)]).T
    unmet = unmet_by_tenant(problem, missing)
    pairs = list(zip([fluid.initial, *counts], counts, strict=False))
    return Plan(
        method=method,
        status="optimal" if state.gap == 0 else "feasible",
        stopped_by=stopped_by,
        objective=round(state.cost, _DECIMALS),
        bound=round(min(state.bound, state.cost), _DECIMALS),
        gap=round(state.gap, _DECIMALS),
        layouts=layouts,
        counts=on,
        parked=parked,
        unmet=unmet,
        changes=sum(fluid.changes(before, now) for before, now in pairs),
        departures=sum(fluid.departures(before, now) for before, now in pairs),
        reboots=node_reboots(problem, layouts, on, parked),
        gpu_hours_on=float(on.sum()) * problem.slot_hours,
        unmet_gpu_hours=float((unmet.sum(axis=(0, 2)) * problem.shares).sum() * problem.slot_hours),
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
        departures=0,
        reboots=0,
        gpu_hours_on=0.0,
        unmet_gpu_hours=0.0,
        explanation=explanation,
    )
