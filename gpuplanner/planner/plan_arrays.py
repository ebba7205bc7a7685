"""The planning problem as arrays: substitution, transition costs and cost of unmet demand.

State variables are counts: x[t, c] GPUs in interval t and column c, one column for each layout of powered-on GPUs and,
where idle GPUs keep their layout, one for each MIG layout of idle GPUs. All other GPUs are idle and full. No array
grows with the size of the fleet.

A plan x costs

    sum over t of   f_t(x[t])  +  r(x[t - 1], x[t]),

f_t being GPU-hours and unmet demand of interval t, r the cost of the transition between two intervals.

Unmet demand: pooled demand d needs R = ceil(d) instances. With k of them missing, max(0, d - (R - k)) of the demand is
unmet, taken from the lowest tier first. Its cost is convex and piecewise linear in k with breaks at whole numbers
only, so that a few linear steps give it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.layout_enumeration import list_pareto_counts, list_profile_counts
from gpuplanner.hardware.mig_layouts import format_layout, parse_layout
from gpuplanner.planner.plan_problem import (
    SERVICE_TIERS,
    Counts,
    Floats,
    PlanProblem,
    can_serve,
    find_up_sets,
    incidence_rows,
)


@dataclass(frozen=True, eq=False)
class StateTransitions:
    """Edges of the tree of GPU states, with the price of moving GPUs over each.

    Each edge divides the states in two sides. GPUs cross an edge by as many as the far side gains or loses, so that the
    cost of a transition from counts x to counts y is

        r(x, y) = sum over edges e of  price_e * ceil(| s_e . (y - x) | / b_e),

    s_e being the 0/1 row of the far side, b_e the batch, price_e that of the direction. This r is a metric: a detour
    over a third state never costs less.

    - ``far_side``, shape (n_edges, n_columns): Whether GPUs of a column lie on the far side of the edge.
    - ``cost_to_far``, ``cost_to_near``, shape (n_edges,): Price of one batch that moves to the far side, or back. [GPU
      h]
    - ``batch_gpus``, shape (n_edges,): GPUs of a batch: those of a node where the node reboots, else 1.
    - ``takes_layout``, shape (n_edges, 2): Whether a GPU that moves to the far side, or back, takes a new layout.
    - ``names``: Name of each edge in models, to the far side and back.
    """

    far_side: Counts
    cost_to_far: Floats
    cost_to_near: Floats
    batch_gpus: Counts
    takes_layout: NDArray[np.bool_]
    names: tuple[tuple[str, str], ...]

    def pairwise_costs(self, before: Counts, after: Counts) -> Floats:
        """Return the cost of the transition from each row to each other, shape (n_before, n_after) [GPU h]."""
        costs = np.zeros((len(before), len(after)))
        for edge, (cost_to_far, cost_to_near, batch_gpus) in enumerate(
            zip(self.cost_to_far, self.cost_to_near, self.batch_gpus.tolist(), strict=True)
        ):
            n_to_far = (after @ self.far_side[edge])[None, :] - (before @ self.far_side[edge])[:, None]
            for price, gpus in ((cost_to_far, n_to_far), (cost_to_near, -n_to_far)):
                if price:
                    costs += price * (gpus.clip(0) if batch_gpus == 1 else -(-gpus.clip(0) // batch_gpus))
        return costs

    def transition_cost(self, before: Counts | None, after: Counts) -> float:
        """Return the cost of the transition between two intervals; 0 if the counts of the first are unknown [GPU h]."""
        if before is None:
            return 0.0
        n_to_far = self.far_side @ (after - before)
        batches = -(-np.abs(n_to_far) // self.batch_gpus)
        return float(np.where(n_to_far > 0, self.cost_to_far, self.cost_to_near) @ batches)

    def count_new_layouts(self, before: Counts | None, after: Counts) -> int:
        """Count the GPUs that take a new layout between two intervals; 0 if the counts of the first are unknown."""
        if before is None:
            return 0
        n_to_far = self.far_side @ (after - before)
        return int(np.stack([n_to_far, -n_to_far], axis=1).clip(0)[self.takes_layout].sum())

    @property
    def layout_cost_by_column(self) -> Floats:
        """Price of one more GPU that takes the layout of a column, shape (n_columns,); 0 for a full GPU [GPU h]."""
        return np.where(self.takes_layout[:, 0], self.cost_to_far, 0.0) @ self.far_side

    @property
    def costs_by_column(self) -> Floats:
        """Price of one GPU more, and of one less, in each column, shape (2, n_columns) [GPU h].

        Only for transitions in which the far side of every edge is a single column.
        """
        return np.stack([self.cost_to_far, self.cost_to_near]) @ self.far_side

    def select(self, is_kept: NDArray[np.bool_]) -> Self:
        """Select edges by a mask of shape (n_edges,)."""
        names = tuple(name for name, keep_edge in zip(self.names, is_kept.tolist(), strict=True) if keep_edge)
        array_names = ("far_side", "cost_to_far", "cost_to_near", "batch_gpus", "takes_layout")
        selected = {name: getattr(self, name)[is_kept] for name in array_names}
        return replace(self, names=names, **selected)

    def with_min_layout_cost(self, min_price: float) -> Self:
        """Raise the price of taking a layout to at least `min_price` [GPU h]."""
        edge_costs = np.stack([self.cost_to_far, self.cost_to_near])
        cost_to_far, cost_to_near = np.where(self.takes_layout.T, np.maximum(edge_costs, min_price), edge_costs)
        return replace(self, cost_to_far=cost_to_far, cost_to_near=cost_to_near)


def build_state_transitions(problem: PlanProblem, layouts: Sequence[str], layout_of_column: Counts) -> StateTransitions:
    """Build the edges of the tree of GPU states of a planning problem.

    Without state prices, each MIG layout has one edge: taking the layout. With them, a busy GPU is linked to the idle
    state with its layout (drain, wake), an idle GPU with a MIG layout to the partitioned state without one (create and
    remove instances), and that to the full GPU (MIG mode, node reboot); see
    :mod:`gpuplanner.planner.fleet_limits_and_prices`.

    Parameters
    ----------
    problem : PlanProblem
        Prices and GPU model.
    layouts : sequence of str
        Layout texts.
    layout_of_column : ndarray of int, shape (n_columns,)
        Layout of each column of counts.
    """
    prices, gpu_model = problem.prices, problem.gpu_model
    columns = np.arange(len(layout_of_column))
    is_partitioned = np.array([layouts[i] != FULL_GPU for i in layout_of_column], dtype=bool)
    # Whether a GPU that moves to the far side, or back, takes a new layout.
    takes_up = (True, False)
    gives_up = (False, True)
    neither = (False, False)
    rows: list[tuple[NDArray[np.bool_], float, float, int, tuple[bool, bool], tuple[str, str]]] = []
    if prices is None:
        price = problem.change_gpu_hours
        rows = [(columns == i, price, 0.0, 1, takes_up, ("cut", "")) for i in columns[is_partitioned].tolist()]
    else:
        for i, text in enumerate(layouts):
            drain_cost = prices.drain_cost(gpu_model, text)
            rows.append((columns == i, prices.wake, drain_cost, 1, neither, ("wake", "drain")))
        for i in columns[: len(layouts)][is_partitioned[: len(layouts)]].tolist():
            take_cost, strip_cost = prices.layout_cost(layouts[i]), prices.removal_cost(layouts[i])
            rows.append((layout_of_column == i, take_cost, strip_cost, 1, takes_up, ("dress", "strip")))
        mode_off_cost = prices.mode + prices.layout_cost(FULL_GPU)
        rows.append((is_partitioned, prices.mode, mode_off_cost, 1, gives_up, ("mode_on", "mode_off")))
        gpus_per_node = problem.gpus_per_node
        rows.append((is_partitioned, prices.reboot, prices.reboot, gpus_per_node, neither, ("reboot_on", "reboot_off")))
    rows = [row for row in rows if (row[1] or row[2] or any(row[4])) and row[0].any()]
    return StateTransitions(
        far_side=np.array([row[0] for row in rows], dtype=np.int64).reshape(len(rows), len(layout_of_column)),
        cost_to_far=np.array([row[1] for row in rows]),
        cost_to_near=np.array([row[2] for row in rows]),
        batch_gpus=np.array([row[3] for row in rows], dtype=np.int64),
        takes_layout=np.array([row[4] for row in rows], dtype=bool).reshape(len(rows), 2),
        names=tuple(row[5] for row in rows),
    )


@dataclass(frozen=True)
class ShortageSteps:
    """Cost of missing instances in one interval as linear steps; the steps of a profile rise in price.

    - ``profile``, shape (n_steps,): Profile of each step, by position.
    - ``width``, shape (n_steps,): Instances in the step.
    - ``cost``, shape (n_steps,): Price of each missing instance of the step, for the interval. [GPU h]
    """

    profile: Counts
    width: Counts
    cost: Floats


def group_tenants_by_shortage_order(problem: PlanProblem) -> list[list[int]]:
    """Group tenants in the order in which their demand goes unmet: lowest tier first, then lowest price.

    Within a group unmet demand is shared in proportion to demand.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b", "c"], ["1g.6gb"], np.ones((3, 1, 1)),
    ...     tiers=["guaranteed", "best_effort", "guaranteed"],
    ... )
    >>> group_tenants_by_shortage_order(problem)
    [[1], [0, 2]]
    """
    ranks = [-SERVICE_TIERS.index(tier) for tier in problem.tiers]
    keys = list(zip(ranks, problem.unmet_price, strict=True))
    return [[i for i, key in enumerate(keys) if key == group_key] for group_key in sorted(set(keys))]


def build_shortage_steps(problem: PlanProblem) -> list[ShortageSteps]:
    """Build the cost steps of missing instances for every interval of a problem."""
    groups = group_tenants_by_shortage_order(problem)
    prices = np.array([problem.unmet_price[group[0]] for group in groups])
    demand = np.array([problem.admitted_demand[group].sum(axis=0) for group in groups])
    demand = demand.reshape(len(groups), *problem.demand.shape[1:])
    weights = problem.shares * problem.interval_hours
    required = problem.required_instances
    return [_build_slot_steps(demand[:, :, t], required[:, t], prices, weights) for t in range(problem.n_slots)]


def _build_slot_steps(demand: Floats, required: Counts, prices: Floats, weights: Floats) -> ShortageSteps:
    """Build the cost steps of one interval from demand, shape (n_groups, n_profiles), and instances required.

    Parameters
    ----------
    demand : ndarray of float, shape (n_groups, n_profiles)
        Demand by group, in order of shortage. [instances]
    required : ndarray of int, shape (n_profiles,)
        Instances that meet the demand.
    prices : ndarray of float, shape (n_groups,)
        Price of unmet demand of each group. [GPU h]
    weights : ndarray of float, shape (n_profiles,)
        GPU-hours of one instance in the interval. [GPU h]
    """
    steps: list[tuple[int, int, float]] = []
    for profile, n_required in enumerate(required.tolist()):
        if n_required:
            profile_steps = _build_profile_steps(demand[:, profile], n_required, prices * weights[profile])
            steps += [(profile, width, cost) for width, cost in profile_steps]
    profiles, widths, costs = zip(*steps, strict=True) if steps else ((), (), ())
    instances = np.array(widths, dtype=np.int64)
    return ShortageSteps(np.array(profiles, dtype=np.int64), instances, np.array(costs))


def _build_profile_steps(demand: Floats, n_required: int, prices: Floats) -> list[tuple[int, float]]:
    """Return width [instances] and price of each cost step of one profile, for demand by group in order of shortage.

    The cost of k missing instances is the piecewise linear function of max(0, k - surplus) with breaks where the demand
    of one group ends; instances are whole, so it is read at whole numbers next to each break.
    """
    breaks = np.concatenate([[0.0], np.cumsum(demand)])
    costs = np.concatenate([[0.0], np.cumsum(demand * prices)])
    surplus = max(0.0, n_required - float(breaks[-1]))
    candidates = np.concatenate([np.floor(breaks + surplus), np.ceil(breaks + surplus), [0.0, 1.0, n_required]])
    n_missing = np.unique(candidates.clip(0, n_required))
    shortage_costs = np.interp((n_missing - surplus).clip(0), breaks, costs)
    widths = np.diff(n_missing)
    slopes = np.diff(shortage_costs) / widths
    merged: list[tuple[int, float]] = []
    for width, slope in zip(widths.astype(int).tolist(), slopes.tolist(), strict=True):
        if merged and np.isclose(merged[-1][1], slope, rtol=1e-9, atol=1e-12):
            merged[-1] = (merged[-1][0] + width, merged[-1][1])
        else:
            merged.append((width, slope))
    return merged


def split_unmet_demand(problem: PlanProblem, missing: Counts) -> Floats:
    """Split the demand that missing instances leave unmet among tenants, shape (n_tenants, n_profiles, n_slots).

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     "A30", 1, 1, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a", "b"], ["1g.6gb"], [[[1.5]], [[0.8]]],
    ...     tiers=["standard", "best_effort"],
    ... )
    >>> split_unmet_demand(problem, np.array([[2]])).ravel().round(3).tolist()
    [0.5, 0.8]
    """
    n_served = problem.required_instances - missing
    unmet_left = np.where(missing > 0, problem.pooled_demand - n_served, 0.0).clip(0.0)
    unmet = np.zeros_like(problem.admitted_demand)
    for group in group_tenants_by_shortage_order(problem):
        demand = problem.admitted_demand[group]
        total = demand.sum(axis=0)
        group_unmet = np.minimum(unmet_left, total)
        unmet[group] = demand * np.divide(group_unmet, total, out=np.zeros_like(total), where=total > 0)
        unmet_left = unmet_left - group_unmet
    return unmet


@dataclass(frozen=True, eq=False)
class PlanArrays:
    """Arrays of a :class:`PlanProblem`: columns of counts, coverage, costs and limits.

    - ``problem``: The planning problem.
    - ``layouts``: Layouts that an optimal plan may need: those that no other layout dominates, those of the initial
      state, and pinned ones.
    - ``layout_of_column``, shape (n_columns,): Layout of each column of counts: first powered-on GPUs, one column for
      each layout, then idle GPUs, one for each MIG layout.
    - ``is_partitioned``, shape (n_columns,): Whether a GPU in the column is MIG-partitioned.
    - ``request_sets``, shape (n_sets, n_profiles): Rows of 0 and 1: sets of requests of Hall's condition.
    - ``coverage``, shape (n_sets, n_columns): Instances on one GPU of each column that can serve the set.
    - ``shortage_steps``: Cost of missing instances, by interval.
    - ``on_cost``, ``idle_cost``: Price of one powered-on GPU for one interval above that of an idle one, and of the
      whole fleet if every GPU were idle. [GPU h]
    - ``transitions``: Prices of transitions between counts.
    - ``max_gpus_on``, shape (n_slots,): Most GPUs that may be powered on.
    - ``max_partitioned``, shape (n_slots,): Most partitioned GPUs; below 0 where limits contradict each other.
    - ``pinned``, shape (n_columns,): GPUs that must have a layout in every interval.
    - ``initial``, shape (n_columns,): Counts before the first interval; None if unknown.
    """

    problem: PlanProblem
    layouts: tuple[str, ...]
    layout_of_column: Counts
    is_partitioned: NDArray[np.bool_]
    request_sets: Counts
    coverage: Counts
    shortage_steps: list[ShortageSteps]
    on_cost: float
    idle_cost: float
    transitions: StateTransitions
    max_gpus_on: Counts
    max_partitioned: Counts
    pinned: Counts
    initial: Counts | None

    @classmethod
    def from_problem(cls, problem: PlanProblem, layouts: Sequence[str] | None = None) -> PlanArrays:
        """Build the arrays of a problem, with given layouts or with those that an optimal plan may need.

        Examples
        --------
        >>> from datetime import UTC, datetime
        >>> names = ["1g.5gb", "3g.20gb", "4g.20gb"]
        >>> problem = PlanProblem(
        ...     "A100-40GB", 8, 8, datetime(2026, 1, 1, tzinfo=UTC), 1, ["a"], names, np.ones((1, 3, 2))
        ... )
        >>> PlanArrays.from_problem(problem).layouts
        ('4g.20gb:1,3g.20gb:1', '4g.20gb:1,1g.5gb:3', '3g.20gb:1,1g.5gb:4', '1g.5gb:7')
        """
        initial = dict(problem.initial or {})
        parked = dict(problem.parked or {})
        pinned = problem.limits.pinned
        required_layouts = {*initial, *pinned, *parked, *(layouts or ())}
        layouts = list(dict.fromkeys([*(layouts or _list_candidate_layouts(problem)), *initial, *pinned, *parked]))
        layout_instances = [parse_layout(layout) for layout in layouts]
        supply = tuple(dict.fromkeys(name for instances in layout_instances for name in instances))

        # Coverage: instances of each layout that can serve each set of requests (Hall's condition).
        requested = np.flatnonzero(problem.required_instances.any(axis=1)).tolist()
        served_sets = find_up_sets(problem.gpu_model, tuple(problem.profiles[p] for p in requested), supply)
        instances_per_gpu = np.zeros((len(supply), len(layouts)), dtype=np.int64)
        for layout, instances in enumerate(layout_instances):
            instances_per_gpu[[supply.index(name) for name in instances], layout] = list(instances.values())
        cover = incidence_rows([servers for _, servers in served_sets], len(supply)) @ instances_per_gpu

        # Layouts that another one dominates are left out, unless the problem names them.
        merits = _layout_merits(problem, layouts, cover)
        is_useful = [bool(cover[:, i].any()) and not _is_dominated(merits, i) for i in range(len(layouts))]
        kept = [i for i, text in enumerate(layouts) if text in required_layouts or is_useful[i]]
        texts = tuple(layouts[i] for i in kept)

        # Columns of counts: powered-on GPUs by layout, then idle GPUs by MIG layout.
        is_partitioned = np.array([text != FULL_GPU for text in texts], dtype=bool)
        idle_layouts = np.flatnonzero(is_partitioned) if problem.prices is not None else np.zeros(0, dtype=np.int64)
        layout_of_column = np.concatenate([np.arange(len(texts)), idle_layouts]).astype(np.int64)

        def columns(on: Mapping[str, int], idle: Mapping[str, int]) -> Counts:
            on_counts = [on.get(text, 0) for text in texts]
            return np.array(on_counts + [idle.get(texts[i], 0) for i in idle_layouts], dtype=np.int64)

        request_rows = [[requested[p] for p in requests] for requests, _ in served_sets]
        parked_price = 0.0 if problem.prices is None else problem.prices.parked_price
        return cls(
            problem=problem,
            layouts=texts,
            layout_of_column=layout_of_column,
            is_partitioned=is_partitioned[layout_of_column],
            request_sets=incidence_rows(request_rows, len(problem.profiles)),
            coverage=np.pad(cover[:, kept], ((0, 0), (0, len(idle_layouts)))),
            shortage_steps=build_shortage_steps(problem),
            on_cost=(problem.on_price - parked_price) * problem.interval_hours,
            idle_cost=parked_price * problem.interval_hours * problem.gpus,
            transitions=build_state_transitions(problem, texts, layout_of_column),
            max_gpus_on=problem.max_gpus_on,
            max_partitioned=problem.max_partitioned_gpus,
            pinned=columns(pinned, {}),
            initial=None if problem.initial is None else columns(initial, parked),
        )

    @property
    def is_on(self) -> NDArray[np.bool_]:
        """Whether a column counts powered-on GPUs, shape (n_columns,)."""
        return np.arange(len(self.layout_of_column)) < len(self.layouts)

    @property
    def max_useful_gpus(self) -> Counts:
        """Most GPUs in each column that requests can use in an interval, shape (n_slots, n_columns)."""
        rows = [self.request_sets[:, steps.profile] @ steps.width for steps in self.shortage_steps]
        n_asked = np.array(rows, dtype=np.int64).reshape(len(self.shortage_steps), len(self.request_sets))
        n_needed = np.where(self.coverage > 0, -(-n_asked[:, :, None] // self.coverage.clip(1)), 0)
        max_useful: Counts = n_needed.max(axis=1, initial=0)
        return max_useful

    @property
    def may_change(self) -> NDArray[np.bool_]:
        """Whether counts may change at the start of an interval, shape (n_slots,)."""
        slots = self.problem.limits.change_slots
        number = np.arange(self.problem.n_slots)
        return np.ones(len(number), bool) if slots is None else np.isin(number, slots)

    @property
    def keeps_idle_layouts(self) -> bool:
        """Whether GPUs that are not needed stay idle with their layout (else they are released)."""
        return self.problem.prices is not None

    def split_on_and_idle(self, counts: Counts) -> tuple[Counts, Counts]:
        """Split counts into powered-on and idle GPUs by layout, shape (n_slots, n_layouts) each."""
        on = counts[:, : len(self.layouts)]
        parked = np.zeros_like(on)
        parked[:, self.layout_of_column[len(self.layouts) :]] = counts[:, len(self.layouts) :]
        return on, parked

    def keeps_limits(self, slot: int, states: Counts) -> NDArray[np.bool_]:
        """Whether each row of counts, shape (n, n_columns), is within the limits of an interval."""
        on = states[:, : len(self.layouts)]
        partitioned = on[:, self.is_partitioned[: len(self.layouts)]]
        is_within_fleet = (on.sum(axis=1) <= self.max_gpus_on[slot]) & (
            partitioned.sum(axis=1) <= self.max_partitioned[slot]
        )
        is_allowed: NDArray[np.bool_] = is_within_fleet & (states >= self.pinned).all(axis=1)
        if self.keeps_idle_layouts:
            is_allowed &= states.sum(axis=1) <= self.problem.max_gpus_with_layout
            is_allowed &= states[:, self.is_partitioned].sum(axis=1) <= self.problem.max_partitioned_with_layout
        return is_allowed

    def with_single_instance(self, profile: int) -> PlanArrays:
        """Append a column of counts for single instances of one profile (by position), which cost nothing."""
        names = self.problem.profiles
        serving = [can_serve(self.problem.gpu_model, names[profile], name) for name in names]
        column = (self.request_sets @ np.array(serving, dtype=np.int64) > 0).astype(np.int64)
        coverage = np.column_stack([self.coverage, column])
        return replace(self, coverage=coverage, layout_of_column=np.append(self.layout_of_column, 0))

    def count_missing_instances(self, slot: int, counts: Counts) -> Counts:
        """Return the missing instances of each profile, shape (n_profiles,), at the least cost of unmet demand.

        Serving the requests of the highest price first is exact (greedy algorithm), because the vectors of requests
        that can be served together form a polymatroid.

        References
        ----------
        Edmonds, Submodular functions, matroids, and certain polyhedra, 1970.
        """
        n_missing = self.problem.required_instances[:, slot].copy()
        for profile, served, _ in self._serve_requests(slot, counts[None]):
            n_missing[profile] -= served[0]
        return n_missing

    def slot_costs(self, slot: int, counts: Counts) -> Floats:
        """Return the cost of one interval with each row of counts, shape (n,): GPU-hours and unmet demand [GPU h]."""
        steps = self.shortage_steps[slot]
        on = counts[:, : len(self.layouts)].sum(axis=1)
        costs: Floats = self.on_cost * on + (self.idle_cost + float(steps.width @ steps.cost))
        for _, served, price in self._serve_requests(slot, counts):
            costs -= served * price
        return costs

    def _serve_requests(self, slot: int, counts: Counts) -> Iterator[tuple[int, Counts, float]]:
        """Yield the steps of shortage cost, highest price first: profile, instances served by each row, price."""
        steps = self.shortage_steps[slot]
        n_free = self.coverage @ counts.T
        for step in np.argsort(-steps.cost, kind="stable").tolist():
            profile = int(steps.profile[step])
            sets = self.request_sets[:, profile] > 0
            served = np.minimum(steps.width[step], n_free[sets].min(axis=0))
            n_free[sets] -= served
            yield profile, served, float(steps.cost[step])

    def count_drained_gpus(self, before: Counts | None, after: Counts) -> int:
        """Count the GPUs drained between two intervals; 0 if the counts of the first are unknown."""
        return 0 if before is None else int((before - after)[: len(self.layouts)].clip(0).sum())

    def count_layout_changes(self, before: Counts | None, after: Counts) -> int:
        """Count the GPUs that take a layout, or lose one and stay on, between two intervals; 0 if the first is unknown.

        A released GPU returns as a full GPU, so full GPUs are taken from those without a MIG layout as long as there
        are any.
        """
        if before is None:
            return 0
        n_losing_layout = (
            0
            if self.keeps_idle_layouts
            else int(after[~self.is_partitioned].sum() + before[self.is_partitioned].sum()) - self.problem.gpus
        )
        return self.transitions.count_new_layouts(before, after) + max(0, n_losing_layout)

    def plan_cost(self, counts: Counts, *, start: int = 0, before: Counts | None = None) -> float:
        """Return the cost of consecutive intervals with the transitions into the first and between them [GPU h].

        Parameters
        ----------
        counts : ndarray of int, shape (n, n_columns)
            Counts of consecutive intervals.
        start : int
            Position of the first interval.
        before : ndarray of int, shape (n_columns,), optional
            Counts before the first interval; None: entering it is free.
        """
        total = 0.0
        previous = before
        for slot, slot_counts in enumerate(counts, start):
            total += float(self.slot_costs(slot, slot_counts[None])[0])
            total += self.transitions.transition_cost(previous, slot_counts)
            previous = slot_counts
        return total

    def entry_costs(self, states: Counts) -> Floats:
        """Return the cost of the transition from the initial counts to each row of counts; 0 if unknown [GPU h]."""
        if self.initial is None:
            return np.zeros(len(states))
        costs: Floats = self.transitions.pairwise_costs(self.initial[None], states)[0]
        return costs

    def total_cost(self, counts: Counts) -> float:
        """Return the cost of a plan of all intervals, with the transition from the initial counts [GPU h]."""
        return self.plan_cost(counts, before=self.initial)

    def counts_before(self, counts: Counts, slot: int) -> Counts | None:
        """Return the counts of the interval before `slot`; the initial ones before the first."""
        return counts[slot - 1] if slot else self.initial


def _list_candidate_layouts(problem: PlanProblem) -> list[str]:
    """List layout texts: maximal layouts of the requested profiles, the full GPU if requested, then all others.

    Where the price of taking, removing or draining depends on the layout, a layout with fewer or other instances than
    requested may be cheaper.
    """
    n_required = problem.required_instances.max(axis=1)
    requested = [profile for profile, n in zip(problem.profiles, n_required, strict=True) if n]
    slices = [profile for profile in requested if profile != FULL_GPU]
    counts = list_pareto_counts(problem.gpu_model, slices) if slices else []
    all_layouts = list_profile_counts(problem.gpu_model) if slices and problem.prices is not None else []
    whole = [FULL_GPU] if FULL_GPU in requested else []
    return [*map(format_layout, counts), *whole, *map(format_layout, all_layouts)]


def _layout_merits(problem: PlanProblem, layouts: Sequence[str], cover: Counts) -> Floats:
    """Return what each layout serves and saves, shape (n_merits, n_layouts): more is better in every row.

    `cover`, shape (n_sets, n_layouts), are the instances of each layout that can serve each set of requests.

    A layout that another one dominates in all rows is not needed. Replace it by the other one everywhere, busy or idle.
    The plan serves as much, at the same price of hours and within the same limits (both are partitioned, or no layout
    serves what a full GPU does). The edges of the two layouts in the tree of states merge: with x and y GPUs on their
    way, (x + y)+ <= x+ + y+, and each costs no more than before, as waking costs the same for all layouts, and
    draining, taking and removing cost no more for the other one. So the plan costs no more. Initial and pinned layouts
    are kept.

    A layout that serves nothing is not needed either: a GPU can idle with the layout that it had before or has after.
    """
    if problem.prices is None:
        return cover.astype(np.float64)
    prices, gpu_model = problem.prices, problem.gpu_model
    drain_merits = [-prices.drain_cost(gpu_model, text) for text in layouts]
    removal_merits = [-prices.removal_cost(text) for text in layouts]
    return np.vstack([cover, drain_merits, removal_merits])


def _is_dominated(merits: Floats, layout: int) -> bool:
    """Whether another layout has the merits of this one and more, or the same merits and an earlier position."""
    layout_merits = merits[:, layout]
    is_as_good = (merits >= layout_merits[:, None]).all(axis=0)
    is_equal = (merits == layout_merits[:, None]).all(axis=0)
    return bool((is_as_good & ~is_equal).any() or is_equal[:layout].any())
