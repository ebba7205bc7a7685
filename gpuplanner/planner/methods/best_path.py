"""Several plans make a better one: the cheapest path through all their states, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.fluid import Fluid

_KEPT = 200


def cheapest_path(fluid: Fluid, plans: Sequence[Counts], states: Sequence[Counts] = ()) -> Counts:
    """Choose a state for each slot among all states of given plans, at the least total cost.

    A state is a vector of counts. A state found for one slot often suits another: demand comes back every
    day. In each slot the states of the plans themselves and the cheapest others take part, so that the
    result is never dearer than the best of the plans. Dynamic programming over slots.
    """
    pool = np.unique(np.concatenate([*plans, *states]), axis=0)
    value = np.zeros(0)
    taking: list[Counts] = []
    origins: list[Counts] = []
    for slot in range(fluid.problem.n_slots):
        own = np.array([plan[slot] for plan in plans])
        now, costs = _candidates(fluid, slot, pool, own)
        if slot:
            total = value[:, None] + fluid.ways.costs(taking[-1], now)
            if not fluid.may_change[slot]:
                total[(taking[-1][:, None] != now[None]).any(axis=2)] = np.inf
        elif fluid.initial is not None:
            total = fluid.ways.costs(fluid.initial[None], now)
        else:
            total = np.zeros((1, len(now)))
        origin = total.argmin(axis=0)
        value = total[origin, np.arange(len(now))] + costs
        taking.append(now)
        origins.append(origin)
    chosen = int(value.argmin())
    path = []
    for now, origin in zip(reversed(taking), reversed(origins), strict=True):
        path.append(now[chosen])
        chosen = int(origin[chosen])
    return np.array(path[::-1])


def _candidates(fluid: Fluid, slot: int, pool: Counts, own: Counts) -> tuple[Counts, Floats]:
    """States that may be taken in a slot, with their costs."""
    others = pool[fluid.allowed(slot, pool)]
    cheapest = np.argsort(fluid.slot_costs(slot, others), kind="stable")[:_KEPT]
    states = np.unique(np.concatenate([own, others[cheapest]]), axis=0)
    return states, fluid.slot_costs(slot, states)
