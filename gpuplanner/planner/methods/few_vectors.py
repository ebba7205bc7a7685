"""Which of few vectors of counts to use when: paths through subsets of a pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import TOLERANCE


@dataclass(frozen=True, eq=False)
class VectorPool:
    """Vectors of counts with all that plans made of them cost.

    Plans are positions of vectors, shape (n_slots,); subsets are positions too.

    Parameters
    ----------
    vectors : ndarray of int, shape (n, n_layouts)
        GPUs by layout, all different.
    costs : ndarray of float, shape (n_slots, n)
        Cost of each slot under each vector; infinite where the vector breaks a limit.
    entering : ndarray of float, shape (n,)
        Cost of coming to each vector before the first slot.
    changes : ndarray of float, shape (n, n)
        Cost of coming from each vector to each other.
    may_change : ndarray of bool, shape (n_slots,)
        Whether one vector may follow on another as a slot begins.
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
        costs = np.array(
            [np.where(fluid.allowed(t, vectors), fluid.slot_costs(t, vectors), np.inf) for t in slots]
        )
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
        value = (self.entering + self.costs[0])[subset]
        origins = []
        stay = np.arange(len(subset))
        for costs, may_change in zip(self.costs[1:, subset], self.may_change[1:], strict=True):
            total = value[:, None] + changes
            origins.append(total.argmin(axis=0) if may_change else stay)
            value = (total.min(axis=0) if may_change else value) + costs
        chosen = [int(value.argmin())]
        for origin in reversed(origins):
            chosen.append(int(origin[chosen[-1]]))
        return subset[chosen[::-1]]

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
