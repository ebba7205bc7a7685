"""Plans that alternate between few vectors of layout counts.

When to use which vector is a cheapest path through a subset of a pool. Which vectors are best is an integer program
of all intervals, in which intervals with the same counts are folded into one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.interval_milp import SlotModel, build_slot_model, column_values_of_plan, solve_window_bounds
from gpuplanner.planner.linear_programs_and_search_limits import (
    RELATIVE_COST_TOLERANCE,
    Columns,
    LinearModel,
    SearchEffort,
)
from gpuplanner.planner.milp_solvers import solve
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_improvement import shortest_path
from gpuplanner.planner.plan_problem import Counts, Floats

_MAX_CALENDAR_BRANCH_NODES = 50
"""Most branch-and-bound nodes of the model in which intervals with equal counts are merged."""
_DAY_H, _WEEK_H = 24.0, 168.0
"""Periods of demand by which intervals are grouped [h]."""


def solve_calendar(arrays: PlanArrays, max_vectors: int, effort: SearchEffort) -> Counts | None:
    """Plan with at most `max_vectors` different vectors of counts (GPUs with each layout) over the whole horizon.

    Vectors come from a pool that starts with the optimum of each interval. A start is either the best plan with one
    vector less, plus the vector of the pool that saves most, or the best vector of the pool for each group of
    intervals: by hour of the day, by hour of the week, by load. Vectors are exchanged for others of the pool as long as
    that helps, each time with the cheapest path through them, by dynamic programming. From the best start on, two steps
    alternate, and neither ever raises the cost: with the groups of intervals fixed, one integer program finds the best
    vectors of all groups, transitions between groups included; with the vectors fixed, the cheapest path finds the best
    vector for every interval. So a calendar with more vectors never costs more (unless the effort is spent first), and
    one with a single vector is the static plan.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    max_vectors : int
        Most different vectors of counts.
    effort : SearchEffort
        Time and work limits of the search.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns), or None
        None if the effort was spent before a plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 1, 3, 2, 1, 1]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> arrays = PlanArrays.from_problem(problem)
    >>> effort = SearchEffort.begin()
    >>> [solve_calendar(arrays, distinct, effort).ravel().tolist() for distinct in (1, 2, 3)]
    [[3, 3, 3, 3, 3, 3], [1, 1, 3, 3, 1, 1], [1, 1, 3, 2, 1, 1]]
    """
    model = build_slot_model(arrays, range(arrays.problem.n_slots), before=arrays.initial)
    best = _optimize_vectors_and_groups(model, np.zeros(len(model.slots), dtype=np.int64), None, effort)
    if best is None or max_vectors == 1:
        return best
    floors = solve_window_bounds(arrays, 1, (), effort)
    pool = CountVectorPool.from_vectors(arrays, np.concatenate([best, floors.states]))
    for size in range(2, max_vectors + 1):
        groups = _propose_slot_groups(arrays, size)
        starts = [pool.add_best_vector(pool.positions_of_plan(best)), *map(pool.plan_of_groups, groups)]
        start = min(map(pool.exchange_vectors, starts), key=pool.cost_of_positions)
        best, pool = _improve_vectors(model, pool, pool.vectors[start], effort)
    return best


def _improve_vectors(
    model: SlotModel, pool: CountVectorPool, counts: Counts, effort: SearchEffort
) -> tuple[Counts, CountVectorPool]:
    """Improve the count vectors of a plan, by integer program and by exchange with others, until no cost is saved.

    Returns the counts of the improved plan, shape (n_slots, n_columns), and the pool with all vectors found on the way.

    Parameters
    ----------
    model : SlotModel
        Integer program of all intervals.
    pool : CountVectorPool
        Candidate vectors (GPUs with each layout) and their costs.
    counts : ndarray of int, shape (n_slots, n_columns)
        Counts of a plan.
    effort : SearchEffort
        Time and work limits of the search.
    """
    arrays = model.arrays
    while True:
        settled_counts = _optimize_vectors_and_groups(model, _group_equal_slots(counts), counts, effort)
        counts = counts if settled_counts is None else settled_counts
        pool = CountVectorPool.from_vectors(arrays, np.concatenate([pool.vectors, counts]))
        exchanged = pool.vectors[pool.exchange_vectors(pool.positions_of_plan(counts))]
        if effort.is_spent() or arrays.total_cost(exchanged) >= arrays.total_cost(counts) - RELATIVE_COST_TOLERANCE:
            return counts, pool
        counts = exchanged


def _optimize_vectors_and_groups(
    model: SlotModel, group: Counts, counts: Counts | None, effort: SearchEffort
) -> Counts | None:
    """Optimize the vectors of the groups, then the groups of the vectors, and so on until nothing improves.

    Parameters
    ----------
    model : SlotModel
        Integer program of all intervals.
    group : ndarray of int, shape (n_slots,)
        Group of each interval.
    counts : ndarray of int, shape (n_slots, n_columns), optional
        Plan to start from.
    effort : SearchEffort
        Time and work limits of the search.
    """
    arrays = model.arrays
    while not effort.is_spent():
        folded_model = fold_slots(model, group)
        start = None
        if counts is not None:
            start = folded_model.fold_values(column_values_of_plan(model, counts, arrays.initial, None))
        answer = solve(
            folded_model.linear, effort, gap=effort.gap_target, start=start, nodes=_MAX_CALENDAR_BRANCH_NODES
        )
        if answer.values is None:
            return counts
        solved = model.counts(answer.values[folded_model.folded_column])
        pool = CountVectorPool.from_vectors(arrays, solved)
        solution = pool.vectors[pool.cheapest_plan(np.arange(len(pool.vectors)))]
        if counts is not None and arrays.total_cost(solution) >= arrays.total_cost(counts) - RELATIVE_COST_TOLERANCE:
            return counts
        if (solution == solved).all():
            return solution
        counts, group = solution, _group_equal_slots(solution)
    return counts


def _group_equal_slots(counts: Counts) -> Counts:
    """Return the group of each interval: intervals with the same counts share one."""
    return np.unique(counts, axis=0, return_inverse=True)[1].ravel()


def _propose_slot_groups(arrays: PlanArrays, n_levels: int) -> Iterator[Counts]:
    """Yield groupings of the intervals by load level, as the level (0 to `n_levels` - 1) of each, shape (n_slots,).

    The load of an interval is the cost of serving nothing in it [GPU h]. The first grouping is by the mean load of the
    same time of day, the next by that of the same time of week, the last by the load of the interval itself.
    """
    slots = np.arange(arrays.problem.n_slots)
    load = np.array([arrays.slot_costs(slot, arrays.pinned[None])[0] for slot in slots.tolist()])
    for period_h in (_DAY_H, _WEEK_H):
        hours = arrays.problem.interval_hours
        position = np.floor(slots * hours % period_h / hours + RELATIVE_COST_TOLERANCE).astype(np.int64)
        if position.max() < len(load) - 1:
            mean_load = np.bincount(position, weights=load) / np.bincount(position).clip(1)
            yield _split_into_load_levels(mean_load[position], n_levels)
    yield _split_into_load_levels(load, n_levels)


def _split_into_load_levels(load: Floats, n_levels: int) -> Counts:
    """Return the load level of each interval, 0 to `n_levels` - 1, of equal widths from least to highest load."""
    spread = float(np.ptp(load))
    shares = (load - load.min()) / spread if spread else np.zeros(len(load))
    return np.floor(n_levels * shares).astype(np.int64).clip(0, n_levels - 1)


@dataclass(frozen=True, eq=False)
class CountVectorPool:
    """Candidate vectors of layout counts, with the costs of all plans made of them.

    Plans are positions of vectors, shape (n_slots,); subsets are positions too. All costs are in GPU h.

    - ``vectors``, shape (n, n_columns): Counts, all different.
    - ``costs``, shape (n_slots, n): Cost of each interval under each vector; infinite where the vector breaks a limit.
    - ``entry_costs``, shape (n,): Cost of the transition from the initial counts to each vector.
    - ``changes``, shape (n, n): Cost of the transition from each vector to each other.
    - ``may_change``, shape (n_slots,): Whether the vector may change at the start of an interval.
    """

    vectors: Counts
    costs: Floats
    entry_costs: Floats
    changes: Floats
    may_change: NDArray[np.bool_]

    @classmethod
    def from_vectors(cls, arrays: PlanArrays, vectors: Counts) -> CountVectorPool:
        """Compute the costs of vectors; duplicates are dropped."""
        vectors = np.unique(vectors, axis=0)
        slots = range(arrays.problem.n_slots)
        is_allowed = np.array([arrays.keeps_limits(slot, vectors) for slot in slots])
        costs = np.where(is_allowed, [arrays.slot_costs(slot, vectors) for slot in slots], np.inf)
        entry_costs = arrays.entry_costs(vectors)
        return cls(vectors, costs, entry_costs, arrays.transitions.pairwise_costs(vectors, vectors), arrays.may_change)

    def positions_of_plan(self, counts: Counts) -> Counts:
        """Return the position in `vectors` of the vector of each interval of a plan, shape (n_slots,)."""
        position_of = {tuple(vector): index for index, vector in enumerate(self.vectors.tolist())}
        return np.array([position_of[tuple(row)] for row in counts.tolist()])

    def cost_of_positions(self, plan: Counts) -> float:
        """Return the cost of a plan that is given by positions of vectors [GPU h]."""
        slot_costs = self.costs[np.arange(len(plan)), plan].sum()
        return float(self.entry_costs[plan[0]] + slot_costs + self.changes[plan[:-1], plan[1:]].sum())

    def cheapest_plan(self, subset: Counts) -> Counts:
        """Return the cheapest plan that uses only a subset of the vectors, given by their positions."""
        changes = self.changes[np.ix_(subset, subset)]
        staying_costs = np.where(np.eye(len(subset), dtype=bool), changes, np.inf)

        def transition_costs(slot: int) -> Floats:
            return changes if self.may_change[slot] else staying_costs

        return subset[shortest_path(self.costs[:, subset], self.entry_costs[subset], transition_costs)]

    def least_costs(self, subsets: Counts) -> Floats:
        """Return the cost of the cheapest plan with each subset of vectors, a row of their positions [GPU h]."""
        changes = self.changes[subsets[:, :, None], subsets[:, None, :]]
        value = (self.entry_costs + self.costs[0])[subsets]
        for costs, may_change in zip(self.costs[1:], self.may_change[1:], strict=True):
            moved = (value[:, :, None] + changes).min(axis=1) if may_change else value
            value = moved + costs[subsets]
        least: Floats = value.min(axis=1)
        return least

    def plan_of_groups(self, group: Counts) -> Counts:
        """Return the cheapest plan with the vectors that are best, changes aside, for each group of intervals."""
        best = [self.costs[group == number].sum(axis=0).argmin() for number in np.unique(group)]
        return self.cheapest_plan(np.unique(best))

    def add_best_vector(self, plan: Counts) -> Counts:
        """Return the cheapest plan with the vectors of a plan and the one of the pool that saves most in addition."""
        used = np.unique(plan)
        subsets = np.column_stack([np.tile(used, (len(self.vectors), 1)), np.arange(len(self.vectors))])
        return self.cheapest_plan(np.unique(subsets[self.least_costs(subsets).argmin()]))

    def exchange_vectors(self, plan: Counts) -> Counts:
        """Exchange the vectors of a plan for others of the pool, one at a time, as long as that saves cost."""
        while True:
            used = np.unique(plan)
            subsets = np.tile(used, (len(used), len(self.vectors), 1))
            index = np.arange(len(used))
            subsets[index, :, index] = np.arange(len(self.vectors))
            choices = subsets.reshape(-1, len(used))
            costs = self.least_costs(choices)
            if costs.min() >= self.cost_of_positions(plan) - RELATIVE_COST_TOLERANCE:
                return plan
            plan = self.cheapest_plan(np.unique(choices[costs.argmin()]))


@dataclass(frozen=True)
class MergedSlotModel:
    """Integer program in which the intervals of a group have the same GPUs with each layout.

    - ``linear``: Its columns and rows.
    - ``folded_column``: Its column for each column of the model of all intervals.
    """

    linear: LinearModel
    folded_column: Columns

    def fold_values(self, values: Floats) -> Floats:
        """Convert column values of the model of all intervals to those of the folded model."""
        folded_values = np.zeros(len(self.linear.names))
        folded_values[self.folded_column] = values
        return folded_values


def fold_slots(model: SlotModel, group: Counts) -> MergedSlotModel:
    """Merge the columns of intervals of the same group, which are to have the same GPUs with each layout.

    Columns that must be equal become one, with the sum of their costs and the closest of their limits: GPUs in the
    intervals of a group, and changes between intervals of the same two groups. Of rows with the same left-hand side,
    the strictest is kept. All rows keep their meaning.
    """
    folded_column = np.arange(len(model.linear.names))
    leading_columns: dict[int | tuple[int, int], Columns] = {}
    for member, on in zip(group.tolist(), model.on_columns, strict=True):
        folded_column[on] = leading_columns.setdefault(member, on)
    for slot, cut in model.change_columns.items():
        index = slot - model.slots.start
        if 0 < index < len(group):
            pair = (int(group[index - 1]), int(group[index]))
            folded_column[cut] = leading_columns.setdefault(pair, cut)
    kept, folded_column = np.unique(folded_column, return_inverse=True)
    source_model = model.linear
    low, high, cost = (np.full(len(kept), -np.inf), np.full(len(kept), np.inf), np.zeros(len(kept)))
    np.add.at(cost, folded_column, source_model.cost)
    np.maximum.at(low, folded_column, source_model.low)
    np.minimum.at(high, folded_column, source_model.high)
    folded_model = LinearModel(
        [source_model.names[column] for column in kept], cost.tolist(), low.tolist(), high.tolist()
    )
    _fold_rows(source_model, folded_model, folded_column.tolist())
    return MergedSlotModel(folded_model, folded_column)


def _fold_rows(source_model: LinearModel, folded_model: LinearModel, folded_column: list[int]) -> None:
    """Add the rows of a model to its folded one; of rows with equal left-hand sides only the strictest."""
    row_of_key: dict[tuple[object, ...], int] = {}
    for row in source_model.rows:
        terms: dict[int, float] = {}
        for column, coefficient in zip(row.columns, row.coefficients, strict=True):
            terms[folded_column[column]] = terms.get(folded_column[column], 0.0) + coefficient
        terms = {column: terms[column] for column in sorted(terms) if terms[column]}
        key = (row.sense, *terms.items())
        if key not in row_of_key:
            row_of_key[key] = len(folded_model.rows)
            folded_model.add_row(row.name, terms.keys(), terms.values(), row.sense, row.rhs)
        else:
            strictest = max if row.sense == ">=" else min
            kept_row = folded_model.rows[row_of_key[key]]
            rhs = strictest(kept_row.rhs, row.rhs)
            folded_model.rows[row_of_key[key]] = type(kept_row)(
                kept_row.name, kept_row.columns, kept_row.coefficients, kept_row.sense, rhs
            )
