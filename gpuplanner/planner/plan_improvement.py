"""Improvement of plans: cheapest path through known states, interval-by-interval pass, windows solved again.

One integer program over the whole horizon is too slow at medium size. Started from a good plan and with the window
bounds as valid inequalities, it solves small problems and raises the lower bound of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.core.errors import MissingDependencyError
from gpuplanner.planner.interval_milp import (
    SlotModel,
    WindowBound,
    add_fleet_rows,
    add_on_columns,
    add_partitioned_gpu_limits,
    add_transition_columns,
    build_slot_model,
    column_values_of_plan,
    solve_window,
)
from gpuplanner.planner.linear_programs_and_search_limits import RELATIVE_COST_TOLERANCE, SearchEffort, relative_gap
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_explanation import arrange_counts_in_columns
from gpuplanner.planner.plan_problem import Counts, Floats

_MAX_CANDIDATE_STATES_PER_INTERVAL = 200
"""States from other plans that are tried in each interval."""
_MAX_IDLE_LAYOUT_BRANCH_NODES = 50
"""Branch-and-bound nodes for the layouts of idle GPUs."""

_RETURNING_GPU_LAYOUT_PRICE_FRACTION = 0.3
"""Fraction of the price of a layout charged to a GPU that is powered on again while idle layouts are still undecided,
as some idle GPUs will have kept theirs.
"""


def shortest_path(
    state_costs: Sequence[Floats] | Floats, entry_costs: Floats, transition_costs: Callable[[int], Floats]
) -> list[int]:
    """Return the position of the state of each interval on the path of least cost, by dynamic programming.

    With f_t the cost of a state in interval t and r_t that of a transition into it,

        V_t(x) = f_t(x) + min over x' of ( V_{t-1}(x') + r_t(x', x) ).

    Parameters
    ----------
    state_costs : sequence of ndarray of float, each of shape (n_states,)
        f_t: cost of each state, by interval.
    entry_costs : ndarray of float, shape (n_states,)
        Cost of entering each state of the first interval.
    transition_costs : callable
        From an interval t to r_t, shape (n_states before, n_states); infinite where a change is forbidden.

    Examples
    --------
    >>> shortest_path([np.zeros(2), np.array([1.0, 0.0])], np.array([0.0, 5.0]), lambda slot: 2.0 - 2.0 * np.eye(2))
    [0, 0]
    """
    path_costs = entry_costs + state_costs[0]
    origins = []
    for slot, slot_costs in enumerate(state_costs[1:], 1):
        total = path_costs[:, None] + transition_costs(slot)
        origins.append(total.argmin(axis=0))
        path_costs = total.min(axis=0) + slot_costs

    # Trace the cheapest path back from the last interval.
    chosen = [int(path_costs.argmin())]
    for origin in reversed(origins):
        chosen.append(int(origin[chosen[-1]]))
    return chosen[::-1]


def cheapest_path(arrays: PlanArrays, plans: Sequence[Counts], states: Sequence[Counts] = ()) -> Counts:
    """Choose the GPU counts of each interval from those of all given plans, at the least total cost.

    A state is a row of counts. A state of one interval often suits another: demand returns every day. In each interval
    the states of the plans and the cheapest others take part, so that the result never costs more than the best plan.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    plans : sequence of ndarray of int, each of shape (n_slots, n_columns)
        Plans to combine.
    states : sequence of ndarray of int, each of shape (n, n_columns)
        Further states (rows of counts) to choose from.
    """
    pool = np.unique(np.concatenate([*plans, *states]), axis=0)
    planned = np.stack(plans, axis=1)
    candidates = [_candidate_states(arrays, slot, pool, slot_states) for slot, slot_states in enumerate(planned)]
    first_states = candidates[0][0]
    entry_costs = arrays.entry_costs(first_states)

    def transition_costs(slot: int) -> Floats:
        before, after = candidates[slot - 1][0], candidates[slot][0]
        costs = arrays.transitions.pairwise_costs(before, after)
        if not arrays.may_change[slot]:
            costs[(before[:, None] != after[None]).any(axis=2)] = np.inf
        return costs

    path = shortest_path([costs for _, costs in candidates], entry_costs, transition_costs)
    return np.array([slot_states[at] for (slot_states, _), at in zip(candidates, path, strict=True)])


def _candidate_states(arrays: PlanArrays, slot: int, pool: Counts, planned_states: Counts) -> tuple[Counts, Floats]:
    """Return the GPU counts (states) that may be chosen in an interval, with their costs.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    slot : int
        Interval.
    pool : ndarray of int, shape (n, n_columns)
        States of all plans.
    planned_states : ndarray of int, shape (n_plans, n_columns)
        States of the plans in the interval.
    """
    allowed_states = pool[arrays.keeps_limits(slot, pool)]
    cheapest = np.argsort(arrays.slot_costs(slot, allowed_states), kind="stable")[:_MAX_CANDIDATE_STATES_PER_INTERVAL]
    states = np.unique(np.concatenate([planned_states, allowed_states[cheapest]]), axis=0)
    return states, arrays.slot_costs(slot, states)


def optimize_idle_layouts(arrays: PlanArrays, counts: Counts, effort: SearchEffort) -> Counts:
    """Choose the layouts of idle GPUs at the least cost of transitions, with the powered-on GPUs fixed.

    What remains is a flow on the tree of GPU states (see :class:`StateTransitions`). Its linear program has
    whole-number solutions (network matrix), unless whole nodes reboot.
    """
    if not arrays.keeps_idle_layouts or effort.is_spent():
        return counts
    n_on = len(arrays.layouts)
    is_seen_column = counts.any(axis=0) if arrays.initial is None else counts.any(axis=0) | (arrays.initial > 0)
    # Layouts that no GPU has need not be kept, and the costs of draining and waking are fixed.
    is_seen_layout = np.bincount(arrays.layout_of_column, weights=is_seen_column, minlength=n_on) > 0
    is_free = is_seen_layout[arrays.layout_of_column] & ~arrays.is_on
    idle_arrays = replace(arrays, transitions=arrays.transitions.select(arrays.transitions.far_side @ is_free > 0))
    model = SlotModel(idle_arrays, range(len(counts)))
    add_on_columns(model)
    for on, slot_counts in zip(model.on_columns, counts, strict=True):
        fixed = np.where(arrays.is_on, slot_counts, 0)
        model.linear.narrow_bounds(on[~is_free], fixed[~is_free], fixed[~is_free])
    add_fleet_rows(model)
    add_partitioned_gpu_limits(model)
    add_transition_columns(model, arrays.initial, None)
    answer = solve(model.linear, effort, gap=0.2 * effort.gap_target, nodes=_MAX_IDLE_LAYOUT_BRANCH_NODES)
    if answer.values is None:
        return counts
    solved = model.counts(answer.values)
    return min(solved, counts, key=arrays.total_cost)


def keep_idle_layouts(arrays: PlanArrays, neighbour: Counts | None, slot_counts: Counts) -> Counts:
    """Let GPUs with a layout in a neighbouring interval that have no work in this one idle with it, within limits.

    Takes and returns counts by column, shape (n_columns,); `neighbour` None: the counts stay as they are.
    """
    if neighbour is None or not arrays.keeps_idle_layouts:
        return slot_counts
    n_on = len(arrays.layouts)
    layouts = arrays.layout_of_column[n_on:]
    idle_counts = (neighbour[layouts] + neighbour[n_on:] - slot_counts[layouts]).clip(0)
    n_partitioned = int(slot_counts[:n_on][arrays.is_partitioned[:n_on]].sum())
    n_with_power = arrays.problem.max_gpus_with_layout - int(slot_counts[:n_on].sum())
    max_idle = min(n_with_power, arrays.problem.max_partitioned_with_layout - n_partitioned)
    while idle_counts.sum() > max_idle:
        idle_counts[idle_counts.argmax()] -= 1
    return np.concatenate([slot_counts[:n_on], idle_counts])


def cheapest_path_with_idle_gpus(
    arrays: PlanArrays, plans: list[Counts], states: list[Counts], effort: SearchEffort
) -> Counts:
    """Return the cheapest path through GPU counts (states), with the best layouts of idle GPUs along it.

    States of single intervals say nothing about idle GPUs. So the path is that of powered-on GPUs at a fraction of the
    price of taking a layout.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    plans : sequence of ndarray of int
        Plans.
    states : list of ndarray of int
        Further states (rows of counts) to choose from.
    effort : SearchEffort
        Time and work limits of the search.
    """
    if not arrays.keeps_idle_layouts:
        return cheapest_path(arrays, plans, states)
    transitions = arrays.transitions
    price_factors = np.where(
        (transitions.far_side[:, ~arrays.is_on] > 0).any(axis=1), _RETURNING_GPU_LAYOUT_PRICE_FRACTION, 1.0
    )
    costs = {name: getattr(transitions, name) * price_factors for name in ("cost_to_far", "cost_to_near")}
    rough_arrays = replace(arrays, transitions=replace(transitions, **costs))
    path = cheapest_path(rough_arrays, *([counts * arrays.is_on for counts in group] for group in (plans, states)))
    return _add_idle_layouts_along(arrays, path, effort)


def without_idle_states(arrays: PlanArrays) -> PlanArrays:
    """Return the arrays of the same problem in which GPUs that are not needed are released instead of idle."""
    return PlanArrays.from_problem(replace(arrays.problem, prices=None, parked=None), arrays.layouts)


def restrict_to_powered_on(arrays: PlanArrays) -> PlanArrays:
    """Restrict the arrays to the columns of busy GPUs; the cost of their cheapest plan is a lower bound of all plans.

    Of the transitions only those between busy and idle remain: waking and draining.
    """
    is_on = arrays.is_on
    transitions = arrays.transitions.select(arrays.transitions.far_side @ ~is_on == 0)
    column_fields = {name: getattr(arrays, name)[is_on] for name in ("layout_of_column", "is_partitioned", "pinned")}
    return replace(
        arrays,
        problem=replace(arrays.problem, prices=None, parked=None),
        coverage=arrays.coverage[:, is_on],
        transitions=replace(transitions, far_side=transitions.far_side[:, is_on]),
        initial=None if arrays.initial is None else arrays.initial[is_on],
        **column_fields,
    )


def add_idle_layouts(
    arrays: PlanArrays, released_arrays: PlanArrays, counts: Counts | None, effort: SearchEffort
) -> Counts | None:
    """Convert a plan of :func:`without_idle_states` to the full columns, with the best layouts of idle GPUs.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    released_arrays : PlanArrays
        Arrays of :func:`without_idle_states`.
    counts : ndarray of int, optional
        Plan with these arrays; None gives None.
    effort : SearchEffort
        Time and work limits of the search.
    """
    if counts is None:
        return None
    return _add_idle_layouts_along(arrays, arrange_counts_in_columns(arrays, released_arrays.layouts, counts), effort)


def _add_idle_layouts_along(arrays: PlanArrays, path: Counts, effort: SearchEffort) -> Counts:
    """Add the best layouts of idle GPUs to a path of powered-on GPUs."""
    with_idle = path.copy()
    for slot in range(len(path)):
        with_idle[slot] = keep_idle_layouts(arrays, with_idle[slot - 1] if slot else arrays.initial, path[slot])
    return optimize_idle_layouts(arrays, with_idle, effort)


_WINDOW_GAP_OF_TARGET_FRACTION = 0.2
"""Fraction of the target gap at which the model of a window stops."""
_MAX_SWEEP_BRANCH_NODES = 200
"""Most branch-and-bound nodes of the model of one interval in the interval-by-interval pass."""


def round_fractional_counts(arrays: PlanArrays, guide: Floats) -> Counts:
    """Round each interval of a fractional solution to whole GPUs, up, to the nearest or down, whichever costs least."""
    counts = np.tile(arrays.pinned, (len(guide), 1))
    for slot, fractions in enumerate(guide):
        candidates = [
            np.ceil(fractions - RELATIVE_COST_TOLERANCE),
            np.rint(fractions),
            np.floor(fractions + RELATIVE_COST_TOLERANCE),
        ]
        feasible = np.maximum(np.array(candidates, dtype=np.int64), arrays.pinned)
        feasible = feasible[arrays.keeps_limits(slot, feasible)]
        if len(feasible):
            counts[slot] = feasible[arrays.slot_costs(slot, feasible).argmin()]
    return counts


def trivial_plans(arrays: PlanArrays) -> list[Counts]:
    """Return plans that need no search: initial layouts where allowed, all GPUs full, and pinned layouts only.

    The last one meets every limit that can be met. Idle GPUs keep their initial layout.
    """
    n_slots, pinned = arrays.problem.n_slots, arrays.pinned
    first_counts = pinned if arrays.initial is None else arrays.initial
    pinned_only = keep_idle_layouts(arrays, first_counts, pinned)
    filled = keep_idle_layouts(arrays, first_counts, _fill_with_full_gpus(arrays))
    plans = [np.tile(pinned_only, (n_slots, 1)) for _ in range(3)]
    for plan, state in zip(plans, (np.maximum(first_counts, pinned), filled), strict=False):
        is_allowed = [bool(arrays.keeps_limits(slot, state[None])[0]) for slot in range(n_slots)]
        plan[is_allowed] = state
    return plans


def _fill_with_full_gpus(arrays: PlanArrays) -> Counts:
    """Add full GPUs to the pinned layouts, as many as may be powered on in every interval."""
    counts = arrays.pinned.copy()
    n_free = int(arrays.max_gpus_on.min() - counts.sum())
    counts[np.flatnonzero(arrays.is_on & ~arrays.is_partitioned)] += max(0, n_free)
    return counts


def plan_slot_by_slot(
    arrays: PlanArrays, fallback: Counts | None, guide: Floats | None, effort: SearchEffort, *, backward: bool = False
) -> Counts:
    """Decide interval by interval in whole GPUs, each at the least cost next to the one decided before.

    One interval alone does not see later demand; the fractional solution `guide` has seen the whole horizon. An
    interval may deviate from it by one GPU of each layout beyond rounding. Without an answer of the solver an interval
    is that of `fallback`, or is decided by exchanges.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    fallback : ndarray of int, shape (n_slots, n_columns), optional
        Plan to keep where the solver has no answer.
    guide : ndarray of float, shape (n_slots, n_columns), optional
        Solution of the relaxation.
    effort : SearchEffort
        Time and work limits of the search.
    backward : bool
        Start with the last interval.
    """
    counts = np.tile(arrays.pinned, (arrays.problem.n_slots, 1)) if fallback is None else fallback.copy()
    last = len(counts) - 1
    for slot in range(last, -1, -1) if backward else range(last + 1):
        before = None if backward and slot else arrays.counts_before(counts, slot)
        after = counts[slot + 1] if backward and slot < last else None
        model = build_slot_model(arrays, range(slot, slot + 1), before=before, after=after)
        if guide is not None:
            low, high = (
                np.floor(guide[slot] + RELATIVE_COST_TOLERANCE) - 1,
                np.ceil(guide[slot] - RELATIVE_COST_TOLERANCE) + 1,
            )
            model.linear.narrow_bounds(model.on_columns[0], low, high)
        answer = solve_window(
            model, effort, gap=_WINDOW_GAP_OF_TARGET_FRACTION * effort.gap_target, nodes=_MAX_SWEEP_BRANCH_NODES
        )
        if answer is not None or fallback is None:
            slot_counts = _decide_by_exchange(arrays, slot, before) if answer is None else model.counts(answer[0])[0]
            counts[slot] = keep_idle_layouts(arrays, after if backward else before, slot_counts)
    return optimize_idle_layouts(arrays, counts, effort)


def _decide_by_exchange(arrays: PlanArrays, slot: int, before: Counts | None) -> Counts:
    """Decide the counts of an interval without a solver, by the exchange of GPUs that saves most, until none does.

    GPUs of a layout are powered on, powered down or given another layout, 1, 2, 4 or more at a time.
    """
    n_layouts, idle_layouts = len(arrays.layouts), arrays.layout_of_column[len(arrays.layouts) :]
    unit_counts = np.eye(n_layouts + 1, dtype=np.int64)[:, 1:]
    exchanges = (unit_counts[:, None] - unit_counts[None]).reshape(-1, n_layouts)
    sizes = 2 ** np.arange(int(arrays.max_gpus_on[slot]).bit_length() + 1)
    steps = np.pad((sizes[:, None, None] * exchanges).reshape(-1, n_layouts), ((0, 0), (0, len(idle_layouts))))

    def neighbour_costs(states: Counts) -> Floats:
        slot_costs = arrays.slot_costs(slot, states)
        if before is None:
            return slot_costs
        idle_counts = (before[idle_layouts] + before[n_layouts:] - states[:, idle_layouts]).clip(0)
        costs: Floats = (
            slot_costs
            + arrays.transitions.pairwise_costs(before[None], np.hstack([states[:, :n_layouts], idle_counts]))[0]
        )
        return costs

    current = arrays.pinned if before is None else np.maximum(before * arrays.is_on, arrays.pinned)
    current = current if arrays.keeps_limits(slot, current[None])[0] else arrays.pinned
    while True:
        neighbours = np.vstack([current, current + steps])
        neighbours = neighbours[arrays.keeps_limits(slot, neighbours)]
        costs = neighbour_costs(neighbours)
        best = int(costs.argmin())
        if costs[best] >= costs[0] - RELATIVE_COST_TOLERANCE:
            return current
        current = neighbours[best]


def plan_greedily(arrays: PlanArrays, effort: SearchEffort) -> Counts:
    """Decide interval by interval, each at the least cost of its own and of the transition into it.

    A baseline. It releases a GPU as soon as one interval does without it, repartitions it in the next, and never
    prepares for later demand: other methods save that cost. Without a solver, or without time for one, exchanges of
    GPUs decide.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> arrays = PlanArrays.from_problem(problem)
    >>> effort = SearchEffort.begin()
    >>> plan_greedily(arrays, effort).ravel().tolist()  # two idle hours would cost less than a cut
    [2, 0, 0, 2]
    """
    try:
        return plan_slot_by_slot(arrays, None, None, effort)
    except MissingDependencyError:
        return plan_slot_by_slot(arrays, None, None, replace(effort, deadline=0.0))


_IMPROVEMENT_WINDOW_INTERVALS = 4
"""Length of the windows that are solved again [intervals]."""
_MAX_IMPROVEMENT_BRANCH_NODES = 200
"""Branch-and-bound nodes of the model of a window."""


def solve_whole_horizon(
    arrays: PlanArrays, counts: Counts, window_bounds: Sequence[WindowBound], effort: SearchEffort
) -> tuple[Counts | None, float | None]:
    """Solve all intervals as one integer program, starting from a plan; return counts and lower bound.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    counts : ndarray of int, shape (n_slots, n_columns)
        Counts of a plan.
    window_bounds : sequence of WindowBound
        Lower bounds of windows of intervals, added as valid inequalities.
    effort : SearchEffort
        Time and work limits of the search.
    """
    model = build_slot_model(arrays, range(len(counts)), before=arrays.initial, window_bounds=window_bounds)
    start = column_values_of_plan(model, counts, arrays.initial, None)
    answer = solve(model.linear, effort, gap=effort.gap_target, start=start, nodes=_MAX_IMPROVEMENT_BRANCH_NODES)
    return None if answer.values is None else model.counts(answer.values), answer.bound


def solve_static(arrays: PlanArrays, effort: SearchEffort) -> tuple[Counts | None, float | None]:
    """Choose one row of counts for all intervals; return counts and lower bound of all plans without change.

    Powered-on GPUs keep their layout, so that the only transitions are those from the initial layouts.
    """
    n_slots = arrays.problem.n_slots
    model = build_slot_model(arrays, range(n_slots), before=arrays.initial, constant=True)
    answer = solve(model.linear, effort, gap=effort.gap_target)
    counts = None if answer.values is None else np.array(model.counts(answer.values))
    return counts, answer.bound


def improve_by_windows(
    arrays: PlanArrays, counts: Counts, window_bounds: Sequence[WindowBound], bound: float, effort: SearchEffort
) -> Iterator[Counts]:
    """Yield better and better plans until the gap is reached, no window helps, or the effort is spent.

    Windows cover the horizon twice, the second time shifted by half a window, as long as that helps (fix and optimize).

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    counts : ndarray of int, shape (n_slots, n_columns)
        Plan to start from.
    window_bounds : sequence of WindowBound
        Window bounds, added to the models as valid inequalities.
    bound : float
        Lower bound of all plans. [GPU h]
    effort : SearchEffort
        Time and work limits of the search.
    """
    counts = counts.copy()
    cost = arrays.total_cost(counts)
    helped = True
    while helped:
        helped = False
        for window in _overlapping_windows(arrays.problem.n_slots):
            if relative_gap(cost, bound) <= effort.gap_target or effort.is_spent():
                return
            saved = _reoptimize_window(arrays, counts, window, window_bounds, effort)
            if saved > RELATIVE_COST_TOLERANCE * max(1.0, cost):
                helped = True
                cost -= saved
                yield counts.copy()


def _overlapping_windows(n_slots: int) -> Iterator[range]:
    """Yield windows (ranges of intervals) that cover the horizon twice, the second time shifted by half a window."""
    for first in (0, -(_IMPROVEMENT_WINDOW_INTERVALS // 2)):
        for start in range(first, n_slots, _IMPROVEMENT_WINDOW_INTERVALS):
            window = range(max(start, 0), min(start + _IMPROVEMENT_WINDOW_INTERVALS, n_slots))
            if len(window):
                yield window


def _reoptimize_window(
    arrays: PlanArrays, counts: Counts, window: range, window_bounds: Sequence[WindowBound], effort: SearchEffort
) -> float:
    """Solve one window again; write a cheaper answer into `counts` and return the saving [GPU h].

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    counts : ndarray of int, shape (n_slots, n_columns)
        Counts of a plan.
    window : range
        Intervals.
    window_bounds : sequence of WindowBound
        Lower bounds of windows of intervals, added as valid inequalities.
    effort : SearchEffort
        Time and work limits of the search.
    """
    inside = slice(window.start, window.stop)
    before = arrays.counts_before(counts, window.start)
    after = counts[window.stop] if window.stop < len(counts) else None
    model = build_slot_model(arrays, window, before=before, after=after, window_bounds=window_bounds)
    gap, start = (
        _WINDOW_GAP_OF_TARGET_FRACTION * effort.gap_target,
        column_values_of_plan(model, counts[inside], before, after),
    )
    answer = solve(model.linear, effort, gap=gap, start=start, nodes=_MAX_IMPROVEMENT_BRANCH_NODES)
    if answer.values is None:
        return 0.0

    def window_cost(slots: Counts) -> float:
        leaving = 0.0 if after is None else arrays.transitions.transition_cost(slots[-1], after)
        return arrays.plan_cost(slots, start=window.start, before=before) + leaving

    solved = model.counts(answer.values)
    saved = window_cost(counts[inside]) - window_cost(solved)
    if saved > 0:
        counts[inside] = solved
    return max(saved, 0.0)
