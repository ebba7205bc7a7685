"""Several plans make a better one: the cheapest path through all their states, and what parked GPUs keep along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.families import (
    SlotModel,
    add_changes,
    add_fleet,
    add_on_columns,
    add_whole_kept,
)
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.realised_cost import counts_in
from gpuplanner.solving.effort import Effort
from gpuplanner.solving.solver import solve

_KEPT = 200
_PATH_NODES = 50

# Part of the price of a layout that a GPU which comes back pays, as some find one that was kept for them.
_SHARE_TAKEN_UP = 0.3


def shortest_path(
    costs: Sequence[Floats] | Floats, entering: Floats, between: Callable[[int], Floats]
) -> list[int]:
    """Position of the state of each slot that together cost least: dynamic programming over slots.

    States cost `costs` by slot, and coming to those of the first one costs `entering`; `between` says for another slot
    what it costs to come from each state of the slot before to each of its own, infinite where that is forbidden.

    Examples
    --------
    >>> shortest_path([np.zeros(2), np.array([1.0, 0.0])], np.array([0.0, 5.0]), lambda slot: 2.0 - 2.0 * np.eye(2))
    [0, 0]
    """
    value, origins = entering + costs[0], []
    for slot, own in enumerate(costs[1:], 1):
        total = value[:, None] + between(slot)
        origins.append(total.argmin(axis=0))
        value = total.min(axis=0) + own
    chosen = [int(value.argmin())]
    for origin in reversed(origins):
        chosen.append(int(origin[chosen[-1]]))
    return chosen[::-1]


def cheapest_path(fluid: Fluid, plans: Sequence[Counts], states: Sequence[Counts] = ()) -> Counts:
    """Choose a state for each slot among all states of given plans, at the least total cost.

    A state is a vector of counts. A state found for one slot often suits another: demand comes back every
    day. In each slot the states of the plans themselves and the cheapest others take part, so that the
    result is never dearer than the best of the plans.
    """
    pool = np.unique(np.concatenate([*plans, *states]), axis=0)
    held = [
        _candidates(fluid, slot, pool, np.array([plan[slot] for plan in plans]))
        for slot in range(fluid.problem.n_slots)
    ]
    first = held[0][0]
    entering = (
        np.zeros(len(first)) if fluid.initial is None else fluid.ways.costs(fluid.initial[None], first)[0]
    )

    def between(slot: int) -> Floats:
        before, now = held[slot - 1][0], held[slot][0]
        costs = fluid.ways.costs(before, now)
        if not fluid.may_change[slot]:
            costs[(before[:, None] != now[None]).any(axis=2)] = np.inf
        return costs

    path = shortest_path([costs for _, costs in held], entering, between)
    return np.array([own[at] for (own, _), at in zip(held, path, strict=True)])


def _candidates(fluid: Fluid, slot: int, pool: Counts, own: Counts) -> tuple[Counts, Floats]:
    """States that may be taken in a slot, with their costs."""
    others = pool[fluid.allowed(slot, pool)]
    cheapest = np.argsort(fluid.slot_costs(slot, others), kind="stable")[:_KEPT]
    states = np.unique(np.concatenate([own, others[cheapest]]), axis=0)
    return states, fluid.slot_costs(slot, states)


def parked_best(fluid: Fluid, counts: Counts, effort: Effort) -> Counts:
    """Choose anew what parked GPUs keep, with the GPUs on as they are, at the least cost of changes.

    With the GPUs on fixed, what is left is a flow on the tree of states, which fractions solve in whole numbers
    unless whole nodes reboot for it.
    """
    if not fluid.parks or effort.spent():
        return counts
    n_on = len(fluid.layouts)
    there = counts.any(axis=0) if fluid.initial is None else counts.any(axis=0) | (fluid.initial > 0)
    # Layouts that no GPU has are kept for nothing, and what emptying and waking cost is known already.
    ever = np.bincount(fluid.owner, weights=there, minlength=n_on) > 0
    free = ever[fluid.owner] & ~fluid.used
    lean = replace(fluid, ways=fluid.ways.some(fluid.ways.beyond @ free > 0))
    model = SlotModel(lean, range(len(counts)))
    add_on_columns(model)
    for on, now in zip(model.on, counts, strict=True):
        fixed = np.where(fluid.used, now, 0)
        model.linear.narrow(on[~free], fixed[~free], fixed[~free])
    add_fleet(model)
    add_whole_kept(model)
    add_changes(model, fluid.initial, None)
    answer = solve(model.linear, effort, gap=0.2 * effort.gap_target, nodes=_PATH_NODES)
    if answer.values is None:
        return counts
    found = model.counts(answer.values)
    return min(found, counts, key=lambda one: fluid.cost(one, before=fluid.initial))


def kept_on(fluid: Fluid, near: Counts | None, now: Counts) -> Counts:
    """Counts of a slot whose parked GPUs keep what they had in the slot next to it, as far as there is room."""
    if near is None or not fluid.parks:
        return now
    n_on = len(fluid.layouts)
    beside = fluid.owner[n_on:]
    kept = (near[beside] + near[n_on:] - now[beside]).clip(0)
    cut = int(now[:n_on][fluid.cut[:n_on]].sum())
    room = min(fluid.problem.gpus_held - int(now[:n_on].sum()), fluid.problem.gpus_held_cut - cut)
    while kept.sum() > room:
        kept[kept.argmax()] -= 1
    return np.concatenate([now[:n_on], kept])


def cheapest_way(fluid: Fluid, plans: list[Counts], states: list[Counts], effort: Effort) -> Counts:
    """The cheapest path through states, and what parked GPUs keep along it.

    States of single slots say nothing of what is parked. So the path is that of the GPUs on, at a part of the price
    of taking up a layout.
    """
    if not fluid.parks:
        return cheapest_path(fluid, plans, states)
    ways = fluid.ways
    between = np.where((ways.beyond[:, ~fluid.used] > 0).any(axis=1), _SHARE_TAKEN_UP, 1.0)
    rough = replace(fluid, ways=replace(ways, come=ways.come * between, go=ways.go * between))
    path = cheapest_path(rough, *([one * fluid.used for one in some] for some in (plans, states)))
    return _parked_along(fluid, path, effort)


def released_twin(fluid: Fluid) -> Fluid:
    """The same with GPUs released where they are not needed, and the same layouts."""
    return Fluid.of(replace(fluid.problem, prices=None, parked=None), fluid.layouts)


def on_alone(fluid: Fluid) -> Fluid:
    """The GPUs on by themselves, woken and emptied: no plan with parked ones costs less than the best of theirs."""
    on, ways = fluid.used, fluid.ways.some(fluid.ways.beyond @ ~fluid.used == 0)
    arrays = {name: getattr(fluid, name)[on] for name in ("owner", "cut", "pinned")}
    return replace(
        fluid,
        problem=replace(fluid.problem, prices=None, parked=None),
        cover=fluid.cover[:, on],
        ways=replace(ways, beyond=ways.beyond[:, on]),
        initial=None if fluid.initial is None else fluid.initial[on],
        **arrays,
    )


def parked_since(fluid: Fluid, twin: Fluid, counts: Counts | None, effort: Effort) -> Counts | None:
    """A plan of :func:`released_twin` with the best that parked GPUs keep under it."""
    if counts is None:
        return None
    return _parked_along(fluid, counts_in(fluid, twin.layouts, counts), effort)


def _parked_along(fluid: Fluid, path: Counts, effort: Effort) -> Counts:
    """The best that parked GPUs keep while the GPUs on are those of a path."""
    lazily = path.copy()
    for slot in range(len(path)):
        lazily[slot] = kept_on(fluid, lazily[slot - 1] if slot else fluid.initial, path[slot])
    return parked_best(fluid, lazily, effort)
