"""Several plans make a better one: the cheapest path through all their states, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuplanner.planner.changes import change_costs
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts, Floats

_KEPT = 100


def cheapest_path(fluid: Fluid, plans: Sequence[Counts], choices: Sequence[Counts] = ()) -> Counts:
    """Choose for each slot what GPUs have and which are on, among all that is known, at the least total cost.

    What is on in one slot often suits another: demand comes back every day. And GPUs that have their layouts
    may be on with them or not, at no cost of change. So in each slot the layouts that GPUs have in some plan
    are paired with the best choice of GPUs on that they allow. In each slot the plans themselves and the cheapest
    others take part, so that the result is never dearer than the best of the plans. Dynamic programming over
    slots.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    plans : sequence of ndarray of int, shape (n_slots, n_columns)
        Plans that keep every limit.
    choices : sequence of ndarray of int, shape (n, n_layouts)
        Further choices of GPUs on.

    Returns
    -------
    ndarray of int, shape (n_slots, n_columns)
        A plan that keeps every limit.
    """
    known = np.concatenate([*(fluid.on(one) for one in plans), *choices])
    known, held = (
        np.unique(known, axis=0),
        np.unique(np.concatenate([fluid.held(one) for one in plans]), axis=0),
    )
    value = np.zeros(0)
    taking: list[Counts] = []
    origins: list[Counts] = []
    for slot in range(fluid.problem.n_slots):
        now, costs = _candidates(fluid, slot, np.array([one[slot] for one in plans]), known, held)
        if slot:
            total = value[:, None] + change_costs(fluid, taking[-1], now)
        elif fluid.initial is not None:
            total = change_costs(fluid, fluid.initial[None], now)
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


def best_on(fluid: Fluid, slot: int, choices: Counts, held: Counts) -> tuple[Floats, Counts]:
    """Find what is best to have on in a slot, given what GPUs have.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    slot : int
        The slot.
    choices : ndarray of int, shape (n, n_layouts)
        GPUs on by layout, to choose from.
    held : ndarray of int, shape (m, n_cut)
        GPUs that have each layout with instances.

    Returns
    -------
    costs : ndarray of float, shape (m,)
        Cost of the slot; infinite where no choice is possible.
    on : ndarray of int, shape (m, n_layouts)
        The choice.
    """
    cut, whole = choices[:, fluid.cut], choices[:, ~fluid.cut].sum(axis=1)
    able = fluid.allowed(slot, fluid.state(choices, cut))
    costs = np.where(able, fluid.slot_costs(slot, choices), np.inf)
    left = fluid.problem.gpus - held.sum(axis=1)[:, None]
    fits = (cut[None] <= held[:, None]).all(axis=2) & (whole <= left)
    if slot == 0 and fluid.initial is None:
        fits = (cut[None] == held[:, None]).all(axis=2) & (whole <= left)
    within = np.where(fits, costs, np.inf)
    best = within.argmin(axis=1)
    return within[np.arange(len(held)), best], choices[best]


def _candidates(fluid: Fluid, slot: int, own: Counts, choices: Counts, held: Counts) -> tuple[Counts, Floats]:
    """States that may be taken in a slot, with their costs."""
    able = choices[fluid.allowed(slot, fluid.state(choices, choices[:, fluid.cut]))]
    cheapest = np.argsort(fluid.slot_costs(slot, able), kind="stable")[:_KEPT]
    states = own
    if len(cheapest):
        costs, on = best_on(fluid, slot, able[cheapest], held)
        states = np.concatenate([own, fluid.state(on, held)[np.isfinite(costs)]])
    states = np.unique(states, axis=0)
    return states, fluid.slot_costs(slot, states)
