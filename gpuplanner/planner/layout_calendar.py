"""Plans that alternate between few vectors of layout counts.

Which of few vectors to use when is a path through subsets of a pool; which vectors, a model of all slots in which those
that share their counts are folded into one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.linear_model import TOLERANCE, Columns, Effort, LinearModel
from gpuplanner.planner.linear_program import SlotModel, build, start_values, window_floors
from gpuplanner.planner.milp_solver import solve
from gpuplanner.planner.plan_arrays import Fluid
from gpuplanner.planner.plan_improvement import shortest_path
from gpuplanner.planner.plan_problem import Counts, Floats

_NODES = 50
_DAY_H, _WEEK_H = 24.0, 168.0


def calendar_counts(fluid: Fluid, distinct: int, effort: Effort) -> Counts | None:
    """Plan with at most so many different vectors of counts over the whole horizon.

    Vectors are chosen from a pool that begins with the best of each slot. A start is either the best plan
    with one vector less and the one of the pool that saves most, or the best vector of the pool for each group
    of slots: by hour of the day, by hour of the week, by load. Vectors are exchanged for others of the pool as
    long as that helps, each time with the cheapest path through them, by dynamic programming. From the best
    start on, two steps take turns, and neither ever makes the plan dearer: with the groups of slots given, one
    integer program finds the best vectors of all groups at once, changes between groups included; with the
    vectors given, the cheapest path finds the best vector for every slot. So a calendar with more vectors
    never costs more (unless the time runs out first), and one with a single vector is the static plan.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 1, 3, 2, 1, 1]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin()
    >>> [calendar_counts(fluid, distinct, effort).ravel().tolist() for distinct in (1, 2, 3)]
    [[3, 3, 3, 3, 3, 3], [1, 1, 3, 3, 1, 1], [1, 1, 3, 2, 1, 1]]
    """
    model = build(fluid, range(fluid.problem.n_slots), before=fluid.initial)
    best = _settled(model, np.zeros(len(model.slots), dtype=np.int64), None, effort)
    if best is None or distinct == 1:
        return best
    floors = window_floors(fluid, 1, (), effort)
    pool = VectorPool.of(fluid, np.concatenate([best, floors.states]))
    for size in range(2, distinct + 1):
        starts = [pool.wider(pool.places(best)), *map(pool.grouped, _groupings(fluid, size))]
        start = min(map(pool.exchanged, starts), key=pool.cost)
        best, pool = _improved(model, pool, pool.vectors[start], effort)
    return best


def _improved(model: SlotModel, pool: VectorPool, counts: Counts, effort: Effort) -> tuple[Counts, VectorPool]:
    """Settle, exchange vectors, and so on until nothing is cheaper; and the pool with all vectors seen."""
    fluid = model.fluid
    while True:
        settled = _settled(model, _groups(counts), counts, effort)
        counts = counts if settled is None else settled
        pool = VectorPool.of(fluid, np.concatenate([pool.vectors, counts]))
        exchanged = pool.vectors[pool.exchanged(pool.places(counts))]
        if effort.spent() or _cost(fluid, exchanged) >= _cost(fluid, counts) - TOLERANCE:
            return counts, pool
        counts = exchanged


def _settled(model: SlotModel, group: Counts, counts: Counts | None, effort: Effort) -> Counts | None:
    """Best vectors for the groups, best groups for the vectors, and so on until nothing improves."""
    fluid = model.fluid
    while not effort.spent():
        folded = tied(model, group)
        start = None if counts is None else folded.gathered(start_values(model, counts, fluid.initial, None))
        answer = solve(folded.linear, effort, gap=effort.gap_target, start=start, nodes=_NODES)
        if answer.values is None:
            return counts
        chosen = model.counts(answer.values[folded.place])
        held = VectorPool.of(fluid, chosen)
        found = held.vectors[held.path(np.arange(len(held.vectors)))]
        if counts is not None and _cost(fluid, found) >= _cost(fluid, counts) - TOLERANCE:
            return counts
        if (found == chosen).all():
            return found
        counts, group = found, _groups(found)
    return counts


def _cost(fluid: Fluid, counts: Counts) -> float:
    return fluid.cost(counts, before=fluid.initial)


def _groups(counts: Counts) -> Counts:
    """Group of each slot: slots with the same counts belong together."""
    return np.unique(counts, axis=0, return_inverse=True)[1].ravel()


def _groupings(fluid: Fluid, size: int) -> Iterator[Counts]:
    """Groups of slots of about equal load: by hour of the day, by hour of the week, and slot by slot.

    The load of a slot is what it would cost to serve nothing.
    """
    slots = np.arange(fluid.problem.n_slots)
    load = np.array([fluid.slot_costs(slot, fluid.pinned[None])[0] for slot in slots.tolist()])
    for period_h in (_DAY_H, _WEEK_H):
        hours = fluid.problem.interval_hours
        place = np.floor(slots * hours % period_h / hours + TOLERANCE).astype(np.int64)
        if place.max() < len(load) - 1:
            usual = np.bincount(place, weights=load) / np.bincount(place).clip(1)
            yield _levels(usual[place], size)
    yield _levels(load, size)


def _levels(load: Floats, size: int) -> Counts:
    """Levels of equal width between least and highest load."""
    spread = float(np.ptp(load))
    shares = (load - load.min()) / spread if spread else np.zeros(len(load))
    return np.floor(size * shares).astype(np.int64).clip(0, size - 1)


@dataclass(frozen=True, eq=False)
class VectorPool:
    """Vectors of counts with all that plans made of them cost.

    Plans are positions of vectors, shape (n_slots,); subsets are positions too.

    - ``vectors``, shape (n, n_layouts): GPUs by layout, all different.
    - ``costs``, shape (n_slots, n): Cost of each slot under each vector; infinite where the vector breaks a limit.
    - ``entering``, shape (n,): Cost of coming to each vector before the first slot.
    - ``changes``, shape (n, n): Cost of coming from each vector to each other.
    - ``may_change``, shape (n_slots,): Whether one vector may follow on another as a slot begins.
    """

    vectors: Counts
    costs: Floats
    entering: Floats
    changes: Floats
    may_change: NDArray[np.bool_]

    @classmethod
    def of(cls, fluid: Fluid, vectors: Counts) -> VectorPool:
        """Price vectors; of equal ones, one is kept."""
        vectors = np.unique(vectors, axis=0)
        slots = range(fluid.problem.n_slots)
        may_hold = np.array([fluid.allowed(slot, vectors) for slot in slots])
        costs = np.where(may_hold, [fluid.slot_costs(slot, vectors) for slot in slots], np.inf)
        entering = np.zeros(len(vectors))
        if fluid.initial is not None:
            entering = fluid.ways.costs(fluid.initial[None], vectors)[0]
        return cls(vectors, costs, entering, fluid.ways.costs(vectors, vectors), fluid.may_change)

    def places(self, counts: Counts) -> Counts:
        """Positions of the vectors of a plan, shape (n_slots,)."""
        place = {tuple(vector): index for index, vector in enumerate(self.vectors.tolist())}
        return np.array([place[tuple(row)] for row in counts.tolist()])

    def cost(self, plan: Counts) -> float:
        """Cost of a plan."""
        own = self.costs[np.arange(len(plan)), plan].sum()
        return float(self.entering[plan[0]] + own + self.changes[plan[:-1], plan[1:]].sum())

    def path(self, subset: Counts) -> Counts:
        """The cheapest plan with the vectors of a subset."""
        changes = self.changes[np.ix_(subset, subset)]
        stay = np.where(np.eye(len(subset), dtype=bool), changes, np.inf)

        def between(slot: int) -> Floats:
            return changes if self.may_change[slot] else stay

        return subset[shortest_path(self.costs[:, subset], self.entering[subset], between)]

    def least_costs(self, subsets: Counts) -> Floats:
        """Cost of the cheapest plan with each of several subsets, shape (n_subsets, size)."""
        changes = self.changes[subsets[:, :, None], subsets[:, None, :]]
        value = (self.entering + self.costs[0])[subsets]
        for costs, may_change in zip(self.costs[1:], self.may_change[1:], strict=True):
            moved = (value[:, :, None] + changes).min(axis=1) if may_change else value
            value = moved + costs[subsets]
        least: Floats = value.min(axis=1)
        return least

    def grouped(self, group: Counts) -> Counts:
        """The cheapest plan with the best vector for each group of slots."""
        best = [self.costs[group == one].sum(axis=0).argmin() for one in np.unique(group)]
        return self.path(np.unique(best))

    def wider(self, plan: Counts) -> Counts:
        """The cheapest plan with the vectors of a plan and one more."""
        held = np.unique(plan)
        subsets = np.column_stack([np.tile(held, (len(self.vectors), 1)), np.arange(len(self.vectors))])
        return self.path(np.unique(subsets[self.least_costs(subsets).argmin()]))

    def exchanged(self, plan: Counts) -> Counts:
        """The plan with one vector after another exchanged, as long as that saves anything."""
        while True:
            held = np.unique(plan)
            subsets = np.tile(held, (len(held), len(self.vectors), 1))
            each = np.arange(len(held))
            subsets[each, :, each] = np.arange(len(self.vectors))
            choices = subsets.reshape(-1, len(held))
            costs = self.least_costs(choices)
            if costs.min() >= self.cost(plan) - TOLERANCE:
                return plan
            plan = self.path(np.unique(choices[costs.argmin()]))


@dataclass(frozen=True)
class TiedModel:
    """A model whose slots share counts by group.

    - ``linear``: Its columns and rows.
    - ``place``: Column of the folded model for each column of the model of all slots.
    """

    linear: LinearModel
    place: Columns

    def gathered(self, values: Floats) -> Floats:
        """Column values of the folded model from those of the model of all slots."""
        folded = np.zeros(len(self.linear.names))
        folded[self.place] = values
        return folded


def tied(model: SlotModel, group: Counts) -> TiedModel:
    """Fold a model: slots of one group have the same counts.

    Columns that must be equal become one, with their costs added up and the closest of their bounds: GPUs on
    in the slots of a group, and cuts between slots of the same two groups. Of rows that then have the same
    left-hand side, the strictest stays. Whatever rows the model has, they keep their meaning.
    """
    place = np.arange(len(model.linear.names))
    leader: dict[int | tuple[int, int], Columns] = {}
    for member, on in zip(group.tolist(), model.on, strict=True):
        place[on] = leader.setdefault(member, on)
    for slot, cut in model.cut.items():
        index = slot - model.slots.start
        if 0 < index < len(group):
            pair = (int(group[index - 1]), int(group[index]))
            place[cut] = leader.setdefault(pair, cut)
    kept, place = np.unique(place, return_inverse=True)
    old = model.linear
    low, high, cost = np.full(len(kept), -np.inf), np.full(len(kept), np.inf), np.zeros(len(kept))
    np.add.at(cost, place, old.cost)
    np.maximum.at(low, place, old.low)
    np.minimum.at(high, place, old.high)
    folded = LinearModel([old.names[column] for column in kept], cost.tolist(), low.tolist(), high.tolist())
    _fold_rows(old, folded, place.tolist())
    return TiedModel(folded, place)


def _fold_rows(old: LinearModel, folded: LinearModel, place: list[int]) -> None:
    """Add the rows of a model, each left-hand side once."""
    seen: dict[tuple[object, ...], int] = {}
    for row in old.rows:
        terms: dict[int, float] = {}
        for column, coefficient in zip(row.columns, row.coefficients, strict=True):
            terms[place[column]] = terms.get(place[column], 0.0) + coefficient
        terms = {column: terms[column] for column in sorted(terms) if terms[column]}
        key = (row.sense, *terms.items())
        if key not in seen:
            seen[key] = len(folded.rows)
            folded.add_row(row.name, terms.keys(), terms.values(), row.sense, row.rhs)
        else:
            strictest = max if row.sense == ">=" else min
            same = folded.rows[seen[key]]
            rhs = strictest(same.rhs, row.rhs)
            folded.rows[seen[key]] = type(same)(same.name, same.columns, same.coefficients, same.sense, rhs)
