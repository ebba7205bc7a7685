"""The mixed-integer program of a plan over intervals, and the lower bound from its relaxation.

Variables, all whole numbers from 0:

- ``on[t, c]``: GPUs in interval t and column c (layouts of powered-on GPUs, then of idle GPUs);
- ``short[t, k]``: missing instances in cost step k of interval t, at most the width of the step;
- ``cut[t, e]``: batches of GPUs that cross edge e of the tree of states on entering interval t.

Minimize  sum on_cost on + sum step_cost short + sum edge_cost cut  subject to

- coverage (Hall's condition), for each set S of requests:  sum coverage[S, c] on[t, c] + short of S >= required of S;
- fleet:  sum of powered-on GPUs <= GPUs in service and with rack power;
- full GPUs:  sum of partitioned GPUs <= GPUs that may be partitioned;
- change, for each edge:  batch cut[t, e] >= far side of on[t] - far side of on[t - 1]  (and the reverse);
- window bounds:  cost of a window >= its optimum in whole GPUs (valid inequalities).

``short`` and ``cut`` would be whole numbers without being declared so; declaring it makes the solver several times
faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.linear_programs_and_search_limits import (
    RELATIVE_COST_TOLERANCE,
    Columns,
    LinearModel,
    SearchEffort,
)
from gpuplanner.planner.milp_solvers import branch_and_bound, solve
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import Counts, Floats


@dataclass(frozen=True)
class WindowBound:
    """Lower bound of consecutive intervals in any plan, with the transitions between them.

    - ``slots``: Positions of the intervals of the window.
    - ``cost``: Optimum of the window by itself. [GPU h]
    """

    slots: range
    cost: float


@dataclass
class SlotModel:
    """Integer program of consecutive intervals, with the positions of its columns.

    - ``arrays``: Arrays of the problem.
    - ``slots``: Intervals covered.
    - ``linear``: Columns and rows.
    - ``on_columns``, ``shortage_columns``: Columns of counts and of missing instances, by interval.
    - ``idle_columns``: Column fixed to 1, by interval: cost of a fleet that is all idle, where idling has a price.
    - ``change_columns``: Columns of GPUs that cross edges, by interval entered; free entries are left out.
    - ``edge_directions``: Edge, and 1 (to its far side) or -1 (back), of each change column of an interval.
    """

    arrays: PlanArrays
    slots: range
    linear: LinearModel = field(default_factory=LinearModel)
    on_columns: list[Columns] = field(default_factory=list)
    shortage_columns: list[Columns] = field(default_factory=list)
    idle_columns: dict[int, int] = field(default_factory=dict)
    change_columns: dict[int, Columns] = field(default_factory=dict)
    edge_directions: list[tuple[int, int]] = field(default_factory=list)

    def counts(self, values: Floats) -> Counts:
        """Convert column values to counts, shape (n_slots, n_columns)."""
        return np.rint([values[columns] for columns in self.on_columns]).astype(np.int64)


def build_slot_model(
    arrays: PlanArrays,
    slots: range,
    *,
    before: Counts | None = None,
    after: Counts | None = None,
    window_bounds: Sequence[WindowBound] = (),
    constant: bool = False,
) -> SlotModel:
    """Build the integer program of a range of intervals.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    slots : range
        Intervals.
    before, after : ndarray of int, shape (n_columns,), optional
        Fixed counts before and after the range; None: entering or leaving it is free.
    window_bounds : sequence of WindowBound
        Lower bounds of windows of intervals, added as valid inequalities; those outside the range are left out.
    constant : bool
        Use the same counts in all intervals.
    """
    model = SlotModel(arrays, slots)
    add_on_columns(model, constant=constant)
    add_shortage_columns(model)
    add_coverage_rows(model)
    add_fleet_rows(model)
    add_partitioned_gpu_limits(model)
    add_transition_columns(model, before, after, constant=constant)
    add_window_bound_rows(model, window_bounds)
    return model


def add_on_columns(model: SlotModel, *, constant: bool = False) -> None:
    """Add columns for GPUs by interval and layout: powered-on GPUs, then idle ones."""
    arrays = model.arrays
    n_columns = len(arrays.layout_of_column)
    costs = arrays.on_cost * arrays.is_on * (len(model.slots) if constant else 1)
    for slot in model.slots:
        if constant and model.on_columns:
            model.on_columns.append(model.on_columns[0])
            continue
        names = [f"on_{'all' if constant else slot}_{layout}" for layout in range(n_columns)]
        high = np.where(arrays.is_partitioned, arrays.max_partitioned[slot], arrays.max_gpus_on[slot])
        high = np.where(arrays.is_on, high, arrays.problem.max_partitioned_with_layout)
        columns = model.linear.add_columns(names, cost=costs, high=high)
        model.linear.narrow_bounds(columns, arrays.pinned, high)
        model.on_columns.append(columns)
    for slot in model.slots if arrays.idle_cost else ():
        column = model.linear.add_columns([f"idle_{slot}"], cost=[arrays.idle_cost], high=[1.0])
        model.linear.narrow_bounds(column, [1.0], [1.0])
        model.idle_columns[slot] = int(column[0])


def add_shortage_columns(model: SlotModel) -> None:
    """Add columns for missing instances, by interval and step of their piecewise linear cost."""
    for slot in model.slots:
        steps = model.arrays.shortage_steps[slot]
        names = [f"short_{slot}_{step}" for step in range(len(steps.cost))]
        model.shortage_columns.append(model.linear.add_columns(names, cost=steps.cost, high=steps.width))


def add_coverage_rows(model: SlotModel) -> None:
    """Add Hall's condition: instances that can serve a set of requests, plus missing ones, cover the required ones."""
    arrays = model.arrays
    required = arrays.request_sets @ arrays.problem.required_instances
    for slot, on, short in zip(model.slots, model.on_columns, model.shortage_columns, strict=True):
        in_set = arrays.request_sets[:, arrays.shortage_steps[slot].profile]
        for index, (instances, missing) in enumerate(zip(arrays.coverage, in_set, strict=True)):
            if n_required := required[index, slot]:
                name = f"coverage_{slot}_{index}"
                model.linear.add_row(name, [*on, *short], [*instances, *missing], ">=", n_required)


def add_fleet_rows(model: SlotModel) -> None:
    """Add rows: powered-on GPUs are at most those in service, and GPUs with a layout at most those with power."""
    arrays = model.arrays
    for slot, on in zip(model.slots, model.on_columns, strict=True):
        model.linear.add_row(f"fleet_{slot}", on, arrays.is_on.astype(float), "<=", arrays.max_gpus_on[slot])
        if arrays.keeps_idle_layouts:
            model.linear.add_row(f"parked_{slot}", on, np.ones(len(on)), "<=", arrays.problem.max_gpus_with_layout)


def add_partitioned_gpu_limits(model: SlotModel) -> None:
    """Add rows that limit the GPUs partitioned by MIG, powered on and idle, in each interval."""
    arrays = model.arrays
    if not arrays.is_partitioned.any():
        return
    for slot, on in zip(model.slots, model.on_columns, strict=True):
        if arrays.max_partitioned[slot] < arrays.max_gpus_on[slot]:
            is_partitioned = (arrays.is_partitioned & arrays.is_on).astype(float)
            model.linear.add_row(f"whole_{slot}", on, is_partitioned, "<=", arrays.max_partitioned[slot])
        max_partitioned = arrays.problem.max_partitioned_with_layout
        if arrays.keeps_idle_layouts and max_partitioned < arrays.problem.max_gpus_with_layout:
            model.linear.add_row(f"whole_parked_{slot}", on, arrays.is_partitioned.astype(float), "<=", max_partitioned)


def add_transition_columns(
    model: SlotModel, before: Counts | None, after: Counts | None, *, constant: bool = False
) -> None:
    """Add columns and rows for GPUs that cross an edge of the tree of GPU states: into, within and out of a range.

    Parameters
    ----------
    model : SlotModel
        Model with its columns of counts.
    before, after : ndarray of int, shape (n_columns,), optional
        Fixed counts before and after the range; None: entering or leaving it is free.
    constant : bool
        Whether all intervals have the same counts.
    """
    arrays, transitions = model.arrays, model.arrays.transitions
    edge_costs = zip(transitions.cost_to_far.tolist(), transitions.cost_to_near.tolist(), strict=True)
    prices = [price for costs in edge_costs for price in costs]
    model.edge_directions = [(position // 2, 1 - position % 2 * 2) for position, price in enumerate(prices) if price]
    if not model.edge_directions:
        return
    paid = [price for price in prices if price]
    far_columns = [np.flatnonzero(row_name) for row_name in transitions.far_side]
    names = [(transitions.names[edge][sign < 0], int(far_columns[edge][0])) for edge, sign in model.edge_directions]
    sides: list[Columns | Counts | None] = [before, *(model.on_columns[:1] if constant else model.on_columns), after]
    fixed = {0, len(sides) - 1}
    batches = transitions.batch_gpus.tolist()
    for index in range(1, len(sides)):
        earlier, later = sides[index - 1], sides[index]
        if earlier is None or later is None:
            continue
        slot = model.slots.start + index - 1
        labels = [f"{name}_{slot}_{position}" for name, position in names]
        columns = model.linear.add_columns(labels, cost=paid, high=[arrays.problem.gpus] * len(paid))
        model.change_columns[slot] = columns
        for (edge, sign), (name, far_column), column in zip(
            model.edge_directions, names, columns.tolist(), strict=True
        ):
            terms: dict[int, float] = {column: float(batches[edge])}
            rhs = 0.0
            for side, towards, position in ((later, -sign, index), (earlier, sign, index - 1)):
                if position in fixed:
                    rhs -= towards * float(side[far_columns[edge]].sum())
                else:
                    terms |= dict.fromkeys(side[far_columns[edge]].tolist(), float(towards))
            row_name = f"{'change' if name == 'cut' else name}_{slot}_{far_column}"
            model.linear.add_row(row_name, terms.keys(), terms.values(), ">=", rhs)


def add_window_bound_rows(model: SlotModel, window_bounds: Sequence[WindowBound]) -> None:
    """Add valid inequalities: a window costs at least its optimum in whole GPUs. Fractional solutions violate them."""
    linear = model.linear
    start, stop = model.slots.start, model.slots.stop
    for bound in [bound for bound in window_bounds if start <= bound.slots.start and bound.slots.stop <= stop]:
        first, last = bound.slots.start - start, bound.slots.stop - start
        columns = [*model.on_columns[first:last], *model.shortage_columns[first:last]]
        columns += [model.change_columns[slot] for slot in bound.slots[1:] if slot in model.change_columns]
        columns += [np.array([model.idle_columns[slot]]) for slot in bound.slots if slot in model.idle_columns]
        window_columns = np.concatenate(columns)
        costs = [linear.cost[column] for column in window_columns]
        linear.add_row(f"floor_{bound.slots.start}_{len(bound.slots)}", window_columns, costs, ">=", bound.cost)


def list_integer_sums(model: SlotModel) -> dict[str, Columns]:
    """List sums of columns that are whole numbers in every plan, by name, to branch on first.

    They are powered-on GPUs, missing instances of each set of requests and of each profile, and GPUs that cross the
    edges of the tree of states, by the name of the edge; interval by interval.
    """
    arrays = model.arrays
    sums: dict[str, Columns] = {}
    edge_labels = [arrays.transitions.names[edge][sign < 0] for edge, sign in model.edge_directions]
    for slot, on, short in zip(model.slots, model.on_columns, model.shortage_columns, strict=True):
        sums[f"on_{slot}"] = on[arrays.is_on]
        profile = arrays.shortage_steps[slot].profile
        for index, is_asked in enumerate(arrays.request_sets[:, profile]):
            sums[f"lacking_{slot}_{index}"] = short[is_asked > 0]
        for index in np.unique(profile).tolist():
            sums[f"missing_{slot}_{index}"] = short[profile == index]
        for edge_label in dict.fromkeys(edge_labels if slot in model.change_columns else ()):
            sums[f"{edge_label}_{slot}"] = model.change_columns[slot][[label == edge_label for label in edge_labels]]
    return {name: columns for name, columns in sums.items() if len(columns)}


def column_values_of_plan(model: SlotModel, counts: Counts, before: Counts | None, after: Counts | None) -> Floats:
    """Convert the counts of a plan to column values, as a start for the solver.

    Parameters
    ----------
    model : SlotModel
        The model.
    counts : ndarray of int, shape (n_slots, n_columns)
        Counts of its intervals.
    before, after : ndarray of int, shape (n_columns,), optional
        Counts before and after.

    Returns
    -------
    ndarray of float, shape (n_model_columns,)
    """
    arrays = model.arrays
    values: NDArray[np.float64] = np.zeros(len(model.linear.names))
    values[list(model.idle_columns.values())] = 1.0
    for slot, on, short, slot_counts in zip(model.slots, model.on_columns, model.shortage_columns, counts, strict=True):
        values[on] = slot_counts
        steps = arrays.shortage_steps[slot]
        n_missing = arrays.count_missing_instances(slot, slot_counts)
        for step, column in enumerate(short.tolist()):
            n_in_step = min(int(steps.width[step]), int(n_missing[steps.profile[step]]))
            values[column] = n_in_step
            n_missing[steps.profile[step]] -= n_in_step
    sides = itertools.pairwise([before, *counts, after])
    for slot, (earlier, later) in enumerate(sides, model.slots.start):
        if slot in model.change_columns and earlier is not None and later is not None:
            n_to_far = arrays.transitions.far_side @ (later - earlier)
            for (edge, sign), column in zip(model.edge_directions, model.change_columns[slot].tolist(), strict=True):
                values[column] = -(-max(0, sign * int(n_to_far[edge])) // int(arrays.transitions.batch_gpus[edge]))
    return values


_MAX_INTERVALS_PER_PROGRAM = 168
"""Intervals of one linear program; longer horizons are divided."""


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Solution of the linear program over all intervals.

    - ``bound``: Lower bound on the cost of all plans; 0 if the program was not solved in time. [GPU h]
    - ``guide``, shape (n_slots, n_columns): Fractional GPUs of the optimum.
    """

    bound: float
    guide: Floats | None = None


def bound_without_solver(arrays: PlanArrays) -> float:
    """Compute a lower bound on the cost of all plans without a solver [GPU h].

    It sums over intervals what the most expensive set of requests costs by itself: each of its instances is missing, at
    the price of unmet demand, or takes at least its fraction of the GPU that holds most of them.
    """
    total = arrays.idle_cost * arrays.problem.n_slots
    max_instances = arrays.coverage.max(axis=1, initial=0)
    gpu_share_cost = np.where(max_instances > 0, arrays.on_cost / max_instances.clip(1), np.inf)
    for steps in arrays.shortage_steps:
        n_asked = arrays.request_sets[:, steps.profile] * steps.width
        set_costs = (n_asked * np.minimum(steps.cost, gpu_share_cost[:, None])).sum(axis=1)
        total += float(set_costs.max(initial=0.0))
    return total * (1 - RELATIVE_COST_TOLERANCE) if arrays.on_cost >= 0 else 0.0


def solve_relaxation(
    arrays: PlanArrays, window_bounds: Sequence[WindowBound], effort: SearchEffort, *, parts: int = 1
) -> Relaxation:
    """Solve the linear relaxation over all intervals for a lower bound.

    The window bounds bring back part of what fractional GPUs lose. A horizon of many intervals is divided into weeks,
    as the time of a program grows nearly with the square of its size: transitions from one part to the next are then
    free, so that the sum of all bounds is a bound.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    window_bounds : sequence of WindowBound
        Lower bounds of windows of intervals, added as valid inequalities.
    effort : SearchEffort
        Time and work limits of the search.
    parts : int
        Linear programs that a week is divided into if idle GPUs keep layouts, which doubles the columns.
    """
    n_slots = arrays.problem.n_slots
    width = _MAX_INTERVALS_PER_PROGRAM // parts if arrays.keeps_idle_layouts else _MAX_INTERVALS_PER_PROGRAM
    if n_slots <= (width if width < _MAX_INTERVALS_PER_PROGRAM else 2 * width):
        width = n_slots
    bound = 0.0
    guides: list[Floats] = []
    for start in range(0, n_slots, width):
        part = range(start, min(start + width, n_slots))
        model = build_slot_model(arrays, part, before=None if start else arrays.initial, window_bounds=window_bounds)
        answer = solve(model.linear, effort, relaxed=True)
        if answer.bound is None or answer.values is None:
            return Relaxation(0.0)
        bound += answer.bound
        guides += [answer.values[columns] for columns in model.on_columns]
    return Relaxation(max(0.0, bound), np.array(guides))


_MAX_WINDOW_BRANCH_NODES = 300
"""Branch-and-bound nodes of the model of a window."""


@dataclass(frozen=True)
class WindowBounds:
    """Lower bounds of all windows of one width, with the counts that reach them: from :func:`solve_window_bounds`.

    - ``bounds``: One for each window, as far as the effort sufficed.
    - ``states``, shape (n_bounds * width, n_columns): Counts in each interval of each window that reach its bound, or
      nearly.
    - ``complete``: Whether every window has its bound.
    """

    bounds: list[WindowBound]
    states: Counts
    complete: bool


def solve_window_bounds(
    arrays: PlanArrays, width: int, known_bounds: Sequence[WindowBound], effort: SearchEffort
) -> WindowBounds:
    """Compute the least cost of every window of consecutive intervals, each a small model; equal ones are solved once.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    width : int
        Length of a window. [intervals]
    known_bounds : sequence of WindowBound
        Lower bounds of narrower windows, added as valid inequalities.
    effort : SearchEffort
        Time and work limits of the search.
    """
    solved: dict[tuple[bytes, ...], tuple[float, Counts]] = {}
    bounds: list[WindowBound] = []
    states = [np.zeros((0, len(arrays.layout_of_column)), dtype=np.int64)]
    last_start = arrays.problem.n_slots - width
    for start in range(last_start + 1):
        window = range(start, start + width)
        key = tuple(part for slot in window for part in _slot_fingerprint(arrays, slot))
        if key not in solved:
            model = build_slot_model(arrays, window, window_bounds=known_bounds)
            # Bounds of single intervals need a small gap: all later bounds build on them.
            gap = effort.gap_target * (0.05 if width == 1 else 0.2)
            answer = solve_window(model, effort, gap=gap, nodes=_MAX_WINDOW_BRANCH_NODES)
            if answer is None:
                break
            values, bound = answer
            solved[key] = (max(0.0, bound), model.counts(values))
        cost, counts = solved[key]
        bounds.append(WindowBound(window, cost))
        states.append(counts)
    return WindowBounds(bounds, np.concatenate(states), complete=len(bounds) > last_start)


def solve_window(model: SlotModel, effort: SearchEffort, *, gap: float, nodes: int) -> tuple[Floats, float] | None:
    """Solve the model of a few intervals; return column values and lower bound [GPU h], or None if limits end it first.

    HiGHS: own branch and bound on its linear programs; if that finds no answer, and with CBC, the solver's.

    Parameters
    ----------
    model : SlotModel
        Model of a few intervals.
    effort : SearchEffort
        Time and work limits of the search.
    gap : float
        Relative gap at which to stop. [0-1]
    nodes : int
        Most branch-and-bound nodes.
    """
    branched = None
    if effort.solver == "highs":
        columns = np.concatenate(model.on_columns)
        branched = branch_and_bound(model.linear, list_integer_sums(model), columns, effort, gap=gap, nodes=nodes)
    if branched is not None and branched.values is not None:
        return branched.values, branched.bound
    answer = solve(model.linear, effort, gap=gap, nodes=nodes)
    if answer.values is None:
        return None
    return answer.values, branched.bound if branched is not None else answer.bound or 0.0


def _slot_fingerprint(arrays: PlanArrays, slot: int) -> tuple[bytes, ...]:
    """Return bytes of all data that the model of one interval depends on."""
    steps = arrays.shortage_steps[slot]
    limits = (arrays.max_gpus_on[slot], arrays.max_partitioned[slot])
    key_arrays = (arrays.problem.required_instances[:, slot], steps.profile, steps.width, steps.cost, *limits)
    return tuple(array.tobytes() for array in key_arrays)
