"""Which of few vectors of counts to use when: paths through subsets of a pool.

What GPUs keep while they are not on depends on the whole path. Here it is guessed, well enough to choose vectors
by: if the fleet can have all that a subset asks for at once, each layout is taken up once and kept; else a change is
priced by what grows from one vector to the next, as if nothing else were kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.effort import TOLERANCE
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts, Floats


@dataclass(frozen=True, eq=False)
class Pool:
    """Vectors of counts with all that plans made of them cost.

    Plans are positions of vectors, shape (n_slots,); subsets are positions too.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    vectors : ndarray of int, shape (n, n_layouts)
        GPUs on by layout, all different.
    costs : ndarray of float, shape (n_slots, n)
        Cost of each slot under each vector; infinite where the vector breaks a limit.
    """

    fluid: Fluid
    vectors: Counts
    costs: Floats

    @classmethod
    def of(cls, fluid: Fluid, vectors: Counts) -> Pool:
        """Price vectors; of equal ones, one is kept."""
        vectors = np.unique(vectors, axis=0)
        alone = fluid.state(vectors, vectors[:, fluid.cut])
        slots = range(fluid.problem.n_slots)
        costs = np.array(
            [np.where(fluid.allowed(t, alone), fluid.slot_costs(t, vectors), np.inf) for t in slots]
        )
        return cls(fluid, vectors, costs)

    def places(self, counts: Counts) -> Counts:
        """Positions of the vectors of a plan, shape (n_slots,)."""
        place = {tuple(vector): index for index, vector in enumerate(self.vectors.tolist())}
        return np.array([place[tuple(row)] for row in counts.tolist()])

    def cost(self, plan: Counts) -> float:
        """Cost of a plan."""
        held, place = np.unique(plan, return_inverse=True)
        entering, changes = self._prices(held[None])
        own = self.costs[np.arange(len(plan)), plan].sum()
        return float(entering[0, place[0]] + own + changes[0][place[:-1], place[1:]].sum())

    def path(self, subset: Counts) -> Counts:
        """The cheapest plan with the vectors of a subset."""
        entering, changes = (prices[0] for prices in self._prices(subset[None]))
        value = entering + self.costs[0, subset]
        origins = []
        for costs in self.costs[1:, subset]:
            total = value[:, None] + changes
            origins.append(total.argmin(axis=0))
            value = total.min(axis=0) + costs
        chosen = [int(value.argmin())]
        for origin in reversed(origins):
            chosen.append(int(origin[chosen[-1]]))
        return subset[chosen[::-1]]

    def least_costs(self, subsets: Counts) -> Floats:
        """Cost of the cheapest plan with each of several subsets, shape (n_subsets, size)."""
        entering, changes = self._prices(subsets)
        value = entering + self.costs[0][subsets]
        for costs in self.costs[1:]:
            value = (value[:, :, None] + changes).min(axis=1) + costs[subsets]
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

    def _prices(self, subsets: Counts) -> tuple[Floats, Floats]:
        """Cost of coming to each vector at first, and from each to each other, in each of several subsets."""
        fluid, price = self.fluid, self.fluid.change_cost
        cut = self.vectors[:, fluid.cut][subsets]
        whole = self.vectors[:, ~fluid.cut].sum(axis=1)[subsets]
        every = cut.max(axis=1)
        room = np.minimum(fluid.most_cut, fluid.problem.gpus - whole.max(axis=1))
        fits = every.sum(axis=1) <= room
        first = cut if fluid.initial is None else fluid.held(fluid.initial)
        at_once = np.broadcast_to((every[:, None] - first).clip(0).sum(axis=2), subsets.shape)
        one_by_one = (cut - first).clip(0).sum(axis=2)
        entering = price * np.where(fits[:, None], at_once, one_by_one)
        grown = (cut[:, None, :] - cut[:, :, None]).clip(0).sum(axis=3)
        return entering, price * np.where(fits[:, None, None], 0, grown)
