"""Search for a layout plan: lower bound, methods, and plans within limits on changes.

Counts do not show which GPU is repartitioned, so limits on changes are checked on numbered GPUs. A plan that breaks
one is searched again with a higher price of changes (a penalty, found by bisection), until the cheapest path through
the known states meets the limit; its cost is then counted at the true prices. The lower bound without the limit
remains a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuplanner.core.errors import MissingDependencyError, ScenarioError
from gpuplanner.core.scenario import SearchLimits
from gpuplanner.planner.alternating_layout_plans import solve_calendar
from gpuplanner.planner.dynamic_program import solve_dynamic_program
from gpuplanner.planner.fleet_limits_and_prices import is_count
from gpuplanner.planner.interval_milp import WindowBound, bound_without_solver, solve_relaxation, solve_window_bounds
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort, relative_gap
from gpuplanner.planner.numbered_gpus import count_node_reboots, count_numbered_changes
from gpuplanner.planner.plan_arrays import PlanArrays, split_unmet_demand
from gpuplanner.planner.plan_explanation import explain_conflict, explain_plan
from gpuplanner.planner.plan_improvement import (
    add_idle_layouts,
    cheapest_path,
    cheapest_path_with_idle_gpus,
    improve_by_windows,
    optimize_idle_layouts,
    plan_greedily,
    plan_slot_by_slot,
    restrict_to_powered_on,
    round_fractional_counts,
    solve_static,
    solve_whole_horizon,
    trivial_plans,
    without_idle_states,
)
from gpuplanner.planner.plan_problem import Counts, PlanProblem

_WINDOW_BOUND_EFFORT_FRACTION = 0.7
"""Fraction of the remaining effort for the bounds of windows of one width."""

_MAX_BOUND_WINDOW_INTERVALS = 4
"""Widest window whose bound is computed [intervals]; wider ones cost more than they add."""

_MAX_ONE_MODEL_VARIABLES = 600
"""Integer variables (intervals times columns) up to which the whole horizon is one model."""

_MAX_EXACT_STATES = 30_000
"""States of the fleet up to which the dynamic program over all of them is fastest."""

_MAX_EXACT_SLOT_STATES = 5_000_000
"""States of all intervals together up to which powered-on GPUs are planned exactly before idle layouts are added."""

_FIRST_BOUND_PARTS = 4
"""Linear programs into which a week is divided for the first lower bound; wider windows use fewer, longer ones."""


@dataclass(frozen=True)
class Incumbent:
    """Best plan and best lower bound found so far (incumbent of branch and bound).

    - ``counts``, shape (n_slots, n_columns): Best plan; None until one is found.
    - ``cost``: Its cost. [GPU h]
    - ``bound``: Lower bound on the cost of all plans. [GPU h]
    - ``preliminary``: Whether the next stage of the search is short and certain to improve it.
    """

    counts: Counts | None = None
    cost: float = float("inf")
    bound: float = 0.0
    preliminary: bool = False

    def with_counts(self, arrays: PlanArrays, counts: Counts | None) -> Incumbent:
        """Replace the plan if `counts` costs less."""
        if counts is None:
            return self
        cost = arrays.total_cost(counts)
        return replace(self, counts=counts, cost=cost) if cost < self.cost else self

    def with_bound(self, bound: float | None) -> Incumbent:
        """Replace the lower bound if `bound` is higher."""
        return self if bound is None else replace(self, bound=max(self.bound, bound))

    @property
    def best_counts(self) -> Counts:
        """Counts of the best plan; there must be one."""
        assert self.counts is not None
        return self.counts

    @property
    def optimality_gap(self) -> float:
        """(cost - bound) / cost; infinite without a plan."""
        return float("inf") if self.counts is None else relative_gap(self.cost, self.bound)


Incumbents = Iterator[Incumbent]
"""Best plan and bound at each stage of a search, never worse than the one before."""


def search_automatically(arrays: PlanArrays, cache: SearchCache, effort: SearchEffort) -> Incumbents:
    """Solve exactly if states of the fleet, or of its powered-on GPUs, are few enough; else search in rounds."""
    exact_answer = solve_dynamic_program(arrays, effort.with_fraction(0.5), max_states=_MAX_EXACT_STATES)
    if exact_answer is not None:
        counts, bound = exact_answer
        yield Incumbent().with_counts(arrays, counts).with_bound(bound)
        return

    # Powered-on GPUs alone: their optimum is a lower bound, and idle layouts are added to it.
    incumbent = Incumbent()
    if arrays.keeps_idle_layouts and arrays.on_cost >= 0:
        on_arrays = restrict_to_powered_on(arrays)
        max_states = min(_MAX_EXACT_STATES, _MAX_EXACT_SLOT_STATES // arrays.problem.n_slots)
        exact_answer = solve_dynamic_program(on_arrays, effort.with_fraction(0.5), max_states=max_states)
    if exact_answer is not None:
        counts, bound = exact_answer
        with_idle = add_idle_layouts(arrays, on_arrays, counts, effort)
        incumbent = incumbent.with_counts(arrays, with_idle).with_bound(bound)
        if incumbent.optimality_gap > 0:
            incumbent = incumbent.with_counts(arrays, plan_greedily(arrays, effort.without_limits()))
        yield incumbent
    yield from search_in_rounds(arrays, cache, effort, incumbent)


def search_in_rounds(
    arrays: PlanArrays, cache: SearchCache, effort: SearchEffort, incumbent: Incumbent | None = None
) -> Incumbents:
    """Yield ever better plans and lower bounds: greedy, then rounds with wider and wider windows, then one whole model.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    cache : SearchCache
        Fleet states and window bounds found so far; extended.
    effort : SearchEffort
        Time and work limits of the search.
    incumbent : Incumbent, optional
        Best plan and bound so far.
    """
    # The greedy plan is made without limits, so that there is always one.
    plans = [plan_greedily(arrays, effort.without_limits()), *trivial_plans(arrays)]
    first_relaxation = solve_relaxation(arrays, (), effort, parts=_FIRST_BOUND_PARTS)
    incumbent = (incumbent or Incumbent()).with_bound(bound_without_solver(arrays)).with_bound(first_relaxation.bound)
    if incumbent.counts is not None:
        plans.append(incumbent.counts)
    if first_relaxation.guide is not None:
        plans.append(round_fractional_counts(arrays, first_relaxation.guide))
    for counts in plans:
        incumbent = incumbent.with_counts(arrays, counts)
    yield incumbent
    if arrays.problem.limits.switches_per_day is not None:
        cache.static_plan, _ = solve_static(arrays, effort.with_fraction(0.3))
    window_bounds, window_states = cache.window_bounds, cache.window_states
    n_slots = arrays.problem.n_slots
    is_small = n_slots * len(arrays.layout_of_column) <= _MAX_ONE_MODEL_VARIABLES
    for width in range(1, 1 + (1 if is_small else min(_MAX_BOUND_WINDOW_INTERVALS, n_slots))):
        # The rest of the effort must suffice for the linear program with the window bounds.
        solved = solve_window_bounds(arrays, width, window_bounds, effort.with_fraction(_WINDOW_BOUND_EFFORT_FRACTION))
        window_bounds += solved.bounds
        window_states.append(solved.states)
        if width == 1:
            incumbent = incumbent.with_bound(sum(window.cost for window in window_bounds))
            if solved.complete:
                plans.append(optimize_idle_layouts(arrays, solved.states, effort))
        relaxation = solve_relaxation(arrays, window_bounds, effort, parts=max(1, _FIRST_BOUND_PARTS // width))
        incumbent = incumbent.with_bound(relaxation.bound)
        if relaxation.guide is not None:
            plans.append(round_fractional_counts(arrays, relaxation.guide))
            incumbent = incumbent.with_counts(arrays, plans[-1])
        yield incumbent
        if not solved.complete:
            break
        for backward in (False, True):
            guide = relaxation.guide
            plans.append(plan_slot_by_slot(arrays, incumbent.best_counts, guide, effort, backward=backward))
            known_plans = [*plans, incumbent.best_counts]
            counts = cheapest_path_with_idle_gpus(arrays, known_plans, window_states, effort)
            incumbent = incumbent.with_counts(arrays, counts)
            yield incumbent
        if width > 1:
            for counts in improve_by_windows(arrays, incumbent.best_counts, window_bounds, incumbent.bound, effort):
                incumbent = incumbent.with_counts(arrays, counts)
                yield incumbent
    if incumbent.counts is not None and not effort.is_spent():
        best, proven = solve_whole_horizon(arrays, incumbent.counts, window_bounds, effort)
        yield incumbent.with_counts(arrays, best).with_bound(proven)


def search_exactly(arrays: PlanArrays, cache: SearchCache, effort: SearchEffort) -> Incumbents:
    """Solve the dynamic program over all states of the fleet (GPUs with each layout), for small fleets."""
    exact_answer = solve_dynamic_program(arrays, effort)
    if exact_answer is None and effort.is_spent():
        incumbent = Incumbent().with_bound(bound_without_solver(arrays))
        yield incumbent.with_counts(arrays, plan_greedily(arrays, effort.without_limits()))
        return
    if exact_answer is None:
        expected = "a fleet small enough to try every state"
        got = f"{arrays.problem.gpus} GPUs and {len(arrays.layouts)} layouts"
        raise ScenarioError("plan: method dp", expected, got, "Choose the method 'auto'.")
    counts, bound = exact_answer
    yield Incumbent().with_counts(arrays, counts).with_bound(bound)


def search_greedily(arrays: PlanArrays, cache: SearchCache, effort: SearchEffort) -> Incumbents:
    """Plan interval by interval without lookahead; the lower bound is that of all plans."""
    incumbent = Incumbent().with_bound(bound_without_solver(arrays))
    incumbent = incumbent.with_counts(arrays, plan_greedily(arrays, effort.without_limits()))
    yield replace(incumbent, preliminary=True)
    try:
        incumbent = incumbent.with_bound(solve_relaxation(arrays, (), effort).bound)
        yield from _tighten_by_window_bounds(arrays, incumbent, cache, effort)
    except MissingDependencyError:
        yield incumbent


def search_calendar(arrays: PlanArrays, cache: SearchCache, effort: SearchEffort) -> Incumbents:
    """Plan with few different rows of counts (GPUs with each layout); the lower bound is that of all plans."""
    relaxation = solve_relaxation(arrays, (), effort)
    incumbent = Incumbent().with_bound(bound_without_solver(arrays)).with_bound(relaxation.bound)
    if arrays.keeps_idle_layouts:
        # Different idle layouts make many vectors of the same powered-on GPUs: plan without them first.
        released_arrays = without_idle_states(arrays)
        counts = solve_calendar(released_arrays, cache.calendars, effort)
        incumbent = incumbent.with_counts(arrays, add_idle_layouts(arrays, released_arrays, counts, effort))
    incumbent = incumbent.with_counts(arrays, solve_calendar(arrays, cache.calendars, effort))
    yield from _tighten_by_window_bounds(arrays, incumbent, cache, effort)


def _tighten_by_window_bounds(
    arrays: PlanArrays, incumbent: Incumbent, cache: SearchCache, effort: SearchEffort
) -> Incumbents:
    """Raise the lower bound by the least cost of each interval alone, and by a linear program with these costs.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    incumbent : Incumbent
        Best plan and bound so far.
    cache : SearchCache
        Fleet states and window bounds found so far; extended.
    effort : SearchEffort
        Time and work limits of the search.
    """
    solved = solve_window_bounds(arrays, 1, (), effort.with_fraction(_WINDOW_BOUND_EFFORT_FRACTION))
    cache.window_bounds += solved.bounds
    cache.window_states.append(solved.states)
    relaxation = solve_relaxation(arrays, solved.bounds, effort)
    yield incumbent.with_bound(sum(floor.cost for floor in solved.bounds)).with_bound(relaxation.bound)


def search_static(arrays: PlanArrays, cache: SearchCache, effort: SearchEffort) -> Incumbents:
    """Plan the same GPUs with each layout for all intervals; the lower bound is that of all such plans."""
    counts, bound = solve_static(arrays, effort)
    yield Incumbent().with_counts(arrays, counts).with_bound(bound)


SEARCH_FUNCTION_BY_METHOD = {
    "auto": search_automatically,
    "milp": search_in_rounds,
    "dp": search_exactly,
    "greedy": search_greedily,
    "calendar": search_calendar,
    "static": search_static,
}
"""Search function of each method; it yields better and better incumbents."""


@dataclass
class SearchCache:
    """Settings of a search, and what it has learned besides its incumbent.

    - ``calendars``: Most different sets of layout counts in a plan, for the method ``"calendar"``.
    - ``window_bounds``: Least costs of windows of intervals.
    - ``window_states``, shape (n, n_columns): Optimal counts of single windows.
    - ``static_plan``, shape (n_slots, n_columns): Best plan without change, if it was computed.
    """

    calendars: int = 2
    window_bounds: list[WindowBound] = field(default_factory=list)
    window_states: list[Counts] = field(default_factory=list)
    static_plan: Counts | None = None


_MAX_CHANGE_PRICE_FACTOR = 2.0**12
"""Largest factor on the price of a change when changes are limited."""
_CHANGE_PRICE_BISECTION_STEPS = 5
"""Bisection steps for the factor on the price of a change."""


def meets_change_limits(arrays: PlanArrays, counts: Counts) -> bool:
    """Whether numbered GPUs can follow the counts within the limits on layout changes of GPUs, of nodes and in time."""
    problem, limits = arrays.problem, arrays.problem.limits
    change_slots = 1 + np.flatnonzero((counts[1:] != counts[:-1]).any(axis=1))
    if limits.change_slots is not None and not np.isin(change_slots, limits.change_slots).all():
        return False
    allowed = (limits.switches_per_day, limits.node_changes_per_day, limits.most_changes)
    if allowed == (None,) * 3:
        return True
    switches, nodes = count_numbered_changes(problem, arrays.layouts, *arrays.split_on_and_idle(counts))
    days = np.array([problem.day_of_slot(slot) for slot in range(len(counts))])
    max_node_changes = max(int(nodes[days == day].sum(axis=0).max()) for day in np.unique(days))
    measured = (switches, max_node_changes, int(nodes.sum()))
    return all(maximum is None or figure <= maximum for figure, maximum in zip(measured, allowed, strict=True))


def reduce_changes(
    arrays: PlanArrays,
    counts: Counts,
    cache: SearchCache,
    bound: float,
    effort: SearchEffort,
    *,
    own_states_only: bool = False,
) -> Counts | None:
    """Find the cheapest plan that meets the limits on changes, by raising the price of a change.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    counts : ndarray of int, shape (n_slots, n_columns)
        Plan that breaks a limit.
    cache : SearchCache
        Known states, window bounds and static plan.
    bound : float
        Lower bound, to stop the improvement. [GPU h]
    effort : SearchEffort
        Time and work limits of the search.
    own_states_only : bool
        Use only rows of counts that occur in the plan, as the method ``"calendar"`` has to.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns), or None
        None if no known plan meets the limits.
    """
    static_plan = cache.static_plan if cache.static_plan is not None else solve_static(arrays, effort)[0]
    unchanging = trivial_plans(arrays) + ([] if static_plan is None else [static_plan])
    # A search may end before it knows any states; those of the plan itself are always there.
    state_pools = [np.unique(counts, axis=0), *([] if own_states_only else cache.window_states)]
    if own_states_only:
        slots = range(len(counts))
        states = [row for row in state_pools[0] if all(arrays.keeps_limits(t, row[None])[0] for t in slots)]
        constant_plans = [np.tile(row, (len(counts), 1)) for row in states]
        unchanging = constant_plans + [candidate for candidate in unchanging if (candidate == candidate[0]).all()]
    plans = unchanging if own_states_only or arrays.problem.limits.change_slots is not None else [counts, *unchanging]

    # Double the price of a change until the cheapest path meets the limits; then bisect the last factor.
    price = max(float(arrays.transitions.layout_cost_by_column.max(initial=0)), 0.01 * arrays.on_cost)
    low_factor, high_factor = 1.0, 2.0
    path = None
    while high_factor <= _MAX_CHANGE_PRICE_FACTOR and path is None:
        path = _path_at_change_price(arrays, price * high_factor, plans, state_pools)
        low_factor, high_factor = (low_factor, high_factor) if path is not None else (high_factor, 2 * high_factor)
    if path is None:
        feasible = [candidate for candidate in unchanging if meets_change_limits(arrays, candidate)]
        return min(feasible, key=arrays.total_cost) if feasible else None
    best = path
    for _ in range(_CHANGE_PRICE_BISECTION_STEPS):
        middle_factor = (low_factor * high_factor) ** 0.5
        path = _path_at_change_price(arrays, price * middle_factor, [*plans, best], state_pools)
        if path is None:
            low_factor = middle_factor
        else:
            high_factor = middle_factor
            best = min(best, path, key=arrays.total_cost)
    costly_arrays = replace(arrays, transitions=arrays.transitions.with_min_layout_cost(price * high_factor))
    if own_states_only:
        return best
    for candidate_counts in improve_by_windows(costly_arrays, best, cache.window_bounds, bound, effort):
        is_cheaper = arrays.total_cost(candidate_counts) < arrays.total_cost(best)
        if is_cheaper and meets_change_limits(arrays, candidate_counts):
            best = candidate_counts
    return best


def _path_at_change_price(
    arrays: PlanArrays, min_layout_cost: float, plans: Sequence[Counts], states: Sequence[Counts]
) -> Counts | None:
    """Return the plan of least cost if taking a layout costs at least `min_layout_cost`; None if it breaks a limit.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    min_layout_cost : float
        Least price of taking a layout. [GPU h]
    plans : sequence of ndarray of int
        Plans.
    states : sequence of ndarray of int
        Further states.
    """
    costly_arrays = replace(arrays, transitions=arrays.transitions.with_min_layout_cost(min_layout_cost))
    path = cheapest_path(costly_arrays, plans, [*states, *map(np.asarray, plans)])
    return path if meets_change_limits(arrays, path) else None


PLAN_METHODS = tuple(SEARCH_FUNCTION_BY_METHOD)
"""``auto``: exact if the fleet is small enough, else ``milp``. ``milp``: rounds of lower bound and plan, free to
change in every interval. ``dp``: dynamic program over all states, small fleets only. ``greedy``: interval by
interval without lookahead. ``calendar``: few different days. ``static``: no change at all.
"""

_PLAN_COST_DECIMALS = 9
"""Decimals of cost, bound and gap in a plan."""


DEFAULT_OPTIMALITY_GAP_TARGET = 0.005
"""Default relative optimality gap at which a search stops."""


class SearchArguments(SearchLimits, total=False):
    """Arguments of :func:`plan` that other searches pass on."""

    method: str
    calendars: int


def plan(
    problem: PlanProblem,
    *,
    method: str = "auto",
    calendars: int = 2,
    time_limit_s: float | None = None,
    gap_target: float = DEFAULT_OPTIMALITY_GAP_TARGET,
    seed: int = 0,
    solver: str = "highs",
    work_limit: int | None = None,
) -> Plan:
    """Choose how many GPUs to power on with which layout in every interval, with a lower bound on the cost.

    The search starts from a greedy plan. If few GPUs are powered on and others idle, the optimal plan of the powered-on
    GPUs alone is a lower bound, and often a plan to which idle layouts add no cost. Then come rounds: the optimum of
    each interval (later, of each few intervals) in whole GPUs is a valid inequality of a linear program over all
    intervals, whose solution is a lower bound and is rounded to a plan; a pass through the intervals, forward or
    backward, rounds it again, knowing the neighbour; the cheapest path through all known states, and windows of
    intervals that are solved again, improve the plan. At the end the whole horizon is one integer program. The search
    stops when the gap is reached. The same problem and seed give the same plan on every machine, however busy it is,
    unless a time limit ends the search. There is a lower bound whenever it ends; with ``work_limit``, ``auto`` never
    costs more than ``greedy``.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet, prices and limits.
    method : {"auto", "milp", "dp", "greedy", "calendar", "static"}
        See :data:`PLAN_METHODS`.
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
        Also if there is none to find; see ``Plan.status`` and ``Plan.require``. Ctrl-C returns the best plan so far, if
        there is one.

    Raises
    ------
    ScenarioError
        If an argument is invalid.
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
    effort = SearchEffort.begin(
        gap_target=gap_target, time_limit_s=time_limit_s, seed=seed, solver=solver, work_limit=work_limit
    )
    return plan_within_effort(problem, method, calendars, effort)


def plan_within_effort(problem: PlanProblem, method: str, calendars: int, effort: SearchEffort) -> Plan:
    """Plan within the limits of an effort that other searches may share; see :func:`plan`.

    Parameters
    ----------
    problem : PlanProblem
        Demand, fleet, prices and limits.
    method : str
        One of :data:`PLAN_METHODS`.
    calendars : int
        Most different sets of layout counts in a plan, for the method ``"calendar"``.
    effort : SearchEffort
        Time and work limits of the search.
    """
    if method not in PLAN_METHODS:
        raise ScenarioError("plan: method", f"one of {', '.join(PLAN_METHODS)}", repr(method), "Choose another.")
    if not is_count(calendars, 1):
        raise ScenarioError("plan: calendars", "a whole number from 1", repr(calendars), "Give --calendars 2.")
    started = time.perf_counter()
    conflict = explain_conflict(problem)
    if conflict is not None:
        result = _plan_without_counts(problem, method, "infeasible", "proof", conflict)
        return replace(result, seconds=time.perf_counter() - started)
    arrays = PlanArrays.from_problem(problem)
    state, stopped_by = _run_method(arrays, method, calendars, effort)
    if state.counts is None:
        text = "No plan that was found keeps the limits on changes: allow more of them, or more time."
        result = _plan_without_counts(problem, method, "unknown", stopped_by, text)
    else:
        result = _plan_from_incumbent(arrays, state, method, stopped_by)
        result = replace(result, explanation=explain_plan(result, problem, effort))
    return replace(result, seconds=time.perf_counter() - started)


def _run_method(arrays: PlanArrays, method: str, calendars: int, effort: SearchEffort) -> tuple[Incumbent, str]:
    """Run a search method until the gap or a limit is reached; return the incumbent and the reason for the stop.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    method : str
        One of :data:`PLAN_METHODS`.
    calendars : int
        Most different sets of layout counts in a plan, for the method ``"calendar"``.
    effort : SearchEffort
        Time and work limits of the search.
    """
    limits_changes = arrays.problem.limits.limits_changes
    cache, incumbent = SearchCache(calendars), Incumbent()
    stopped_by = None
    try:
        for incumbent in SEARCH_FUNCTION_BY_METHOD[method](arrays, cache, effort):
            if incumbent.optimality_gap <= effort.gap_target and not incumbent.preliminary:
                stopped_by = "proof"
                break
            # The second half of the effort is for a plan that meets the limits on changes.
            is_second_half = limits_changes and incumbent.bound > 0 and effort.remaining_fraction() < 0.5
            if is_second_half and incumbent.counts is not None and not meets_change_limits(arrays, incumbent.counts):
                break
        if incumbent.counts is None:
            constant_plans = (counts for counts in trivial_plans(arrays) if (counts == counts[0]).all())
            incumbent = incumbent.with_counts(arrays, min(constant_plans, key=arrays.total_cost))
        if limits_changes and not meets_change_limits(arrays, incumbent.best_counts):
            own_only = method == "calendar"
            bound = incumbent.bound
            counts = reduce_changes(arrays, incumbent.best_counts, cache, bound, effort, own_states_only=own_only)
            incumbent = replace(incumbent, counts=None, cost=float("inf")).with_counts(arrays, counts)
            stopped_by = "proof" if incumbent.optimality_gap <= effort.gap_target else None
    except KeyboardInterrupt:
        if incumbent.counts is None or not meets_change_limits(arrays, incumbent.counts):
            raise
        return incumbent, "user"
    return incumbent, stopped_by or effort.reached_limit() or "passes"


def _plan_from_incumbent(arrays: PlanArrays, incumbent: Incumbent, method: str, stopped_by: str) -> Plan:
    """Convert an incumbent to a plan; layouts that no GPU ever has are left out.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    incumbent : Incumbent
        Best plan and bound so far.
    method : str
        Method of the search.
    stopped_by : str
        Reason for the stop.
    """
    problem, counts = arrays.problem, incumbent.best_counts
    on, parked = arrays.split_on_and_idle(counts)
    used_layouts = np.flatnonzero(on.any(axis=0) | parked.any(axis=0))
    # The numbering of GPUs may depend on the layouts listed: reboots are those of the plan that is returned.
    layouts = tuple(arrays.layouts[i] for i in used_layouts)
    on = on[:, used_layouts]
    parked = parked[:, used_layouts]
    missing = np.array([arrays.count_missing_instances(t, row) for t, row in enumerate(counts)]).T
    unmet = split_unmet_demand(problem, missing)
    pairs = list(zip([arrays.initial, *counts], counts, strict=False))
    return Plan(
        method=method,
        status="optimal" if incumbent.optimality_gap == 0 else "feasible",
        stopped_by=stopped_by,
        objective=round(incumbent.cost, _PLAN_COST_DECIMALS),
        bound=round(min(incumbent.bound, incumbent.cost), _PLAN_COST_DECIMALS),
        gap=round(incumbent.optimality_gap, _PLAN_COST_DECIMALS),
        layouts=layouts,
        counts=on,
        parked=parked,
        unmet=unmet,
        changes=sum(arrays.count_layout_changes(before, after) for before, after in pairs),
        drained_gpus=sum(arrays.count_drained_gpus(before, after) for before, after in pairs),
        reboots=count_node_reboots(problem, layouts, on, parked),
        gpu_hours_on=float(on.sum()) * problem.interval_hours,
        unmet_gpu_hours=float((unmet.sum(axis=(0, 2)) * problem.shares).sum() * problem.interval_hours),
    )


def _plan_without_counts(problem: PlanProblem, method: str, status: str, stopped_by: str, explanation: str) -> Plan:
    """Build a plan that reports why there is none.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    method : str
        Method of the search.
    status : str
        Status.
    stopped_by : str
        Reason for the stop.
    explanation : str
        Text.
    """
    figures: dict[str, Any] = dict.fromkeys(("objective", "bound", "gap"))
    figures |= dict.fromkeys(("changes", "drained_gpus", "reboots"), 0)
    figures |= dict.fromkeys(("gpu_hours_on", "unmet_gpu_hours"), 0.0)
    return Plan(
        method=method,
        status=status,
        stopped_by=stopped_by,
        layouts=(),
        counts=np.zeros((0, 0), dtype=np.int64),
        unmet=np.zeros((len(problem.tenants), len(problem.profiles), 0)),
        explanation=explanation,
        **figures,
    )
