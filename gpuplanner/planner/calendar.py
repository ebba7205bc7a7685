"""A calendar: few vectors of counts, such as one for the day and one for the night, used again and again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuplanner.planner.effort import TOLERANCE, Effort
from gpuplanner.planner.families import SlotModel, build
from gpuplanner.planner.few import Pool
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.held import settled
from gpuplanner.planner.problem import Counts, Floats
from gpuplanner.planner.slots import window_floors
from gpuplanner.planner.solver import solve
from gpuplanner.planner.tied import tied

_NODES = 50
_DAY_H, _WEEK_H = 24.0, 168.0


def calendar_states(fluid: Fluid, distinct: int, effort: Effort) -> Counts | None:
    """Plan with at most so many different vectors of counts over the whole horizon.

    Vectors are chosen from a pool that begins with the best of each slot. A start is either the best plan
    with one vector less and the one of the pool that saves most, or the best vector of the pool for each group
    of slots: by hour of the day, by hour of the week, by load. Vectors are exchanged for others of the pool as
    long as that helps, each time with the cheapest path through them, by dynamic programming. From the best
    start on, two steps take turns, and neither ever makes the plan dearer: with the groups of slots given, one
    integer program finds the best vectors of all groups at once, changes between groups included; with the
    vectors given, the cheapest path finds the best vector for every slot. So a calendar with more vectors
    never costs more (unless the time runs out first), and one with a single vector is the static plan.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    distinct : int
        Most different vectors, at least 1.
    effort : Effort
        Limits of the search.

    Returns
    -------
    ndarray of int or None, shape (n_slots, n_columns)
        A plan. No proof that no other calendar is cheaper goes with it, only the bound of all plans.
        None if not even one vector for all slots was found in time.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 1, 3, 2, 1, 1]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> [calendar_states(fluid, distinct, effort)[:, 0].tolist() for distinct in (1, 2, 3)]
    [[3, 3, 3, 3, 3, 3], [1, 1, 3, 3, 1, 1], [1, 1, 3, 2, 1, 1]]
    """
    model = build(fluid, range(fluid.problem.n_slots), before=fluid.initial)
    best = _tied(model, np.zeros(len(model.slots), dtype=np.int64), None, effort)
    if best is None or distinct == 1:
        return best
    floors = window_floors(fluid, 1, (), effort)
    on = fluid.on(best)
    pool = Pool.of(fluid, on if floors is None else np.concatenate([on, floors.choices]))
    for size in range(2, distinct + 1):
        starts = [pool.wider(pool.places(fluid.on(best))), *map(pool.grouped, _groupings(fluid, size))]
        start = min(map(pool.exchanged, starts), key=pool.cost)
        better, pool = _improved(model, pool, settled(fluid, pool.vectors[start], effort), effort)
        best = min(best, better, key=lambda states: _cost(fluid, states))
    return best


def _improved(model: SlotModel, pool: Pool, states: Counts, effort: Effort) -> tuple[Counts, Pool]:
    """Settle groups, exchange vectors, and so on until nothing is cheaper; and the pool with all vectors seen."""
    fluid = model.fluid
    while True:
        found = _tied(model, _groups(fluid.on(states)), states, effort)
        states = states if found is None else found
        pool = Pool.of(fluid, np.concatenate([pool.vectors, fluid.on(states)]))
        exchanged = pool.vectors[pool.exchanged(pool.places(fluid.on(states)))]
        if effort.spent() or (exchanged == fluid.on(states)).all():
            return states, pool
        other = settled(fluid, exchanged, effort)
        if _cost(fluid, other) >= _cost(fluid, states) - TOLERANCE:
            return states, pool
        states = other


def _tied(model: SlotModel, group: Counts, states: Counts | None, effort: Effort) -> Counts | None:
    """Best vectors for the groups, best groups for the vectors, and so on until nothing improves."""
    fluid = model.fluid
    while not effort.spent():
        folded = tied(model, group)
        answer = solve(folded.linear, effort, gap=effort.gap_target, nodes=_NODES)
        if answer.values is None:
            return states
        chosen = fluid.on(model.states(folded.spread(answer.values)))
        held = Pool.of(fluid, chosen)
        paths = [chosen, held.vectors[held.path(np.arange(len(held.vectors)))]]
        found = min((settled(fluid, on, effort) for on in paths), key=lambda states: _cost(fluid, states))
        if states is not None and _cost(fluid, found) >= _cost(fluid, states) - TOLERANCE:
            return states
        if (fluid.on(found) == chosen).all():
            return found
        states, group = found, _groups(fluid.on(found))
    return states


def _cost(fluid: Fluid, states: Counts) -> float:
    return fluid.cost(states, before=fluid.initial)


def _groups(counts: Counts) -> Counts:
    """Group of each slot: slots with the same counts belong together."""
    group: Counts = np.unique(counts, axis=0, return_inverse=True)[1].ravel()
    return group


def _groupings(fluid: Fluid, size: int) -> Iterator[Counts]:
    """Groups of slots of about equal load: by hour of the day, by hour of the week, and slot by slot.

    The load of a slot is what it would cost to serve nothing.
    """
    slots = np.arange(fluid.problem.n_slots)
    load = np.array([fluid.slot_costs(slot, fluid.pinned[None])[0] for slot in slots.tolist()])
    for period_h in (_DAY_H, _WEEK_H):
        hours = fluid.problem.slot_hours
        place = np.floor(slots * hours % period_h / hours + TOLERANCE).astype(np.int64)
        if place.max() < len(load) - 1:
            usual = np.bincount(place, weights=load) / np.bincount(place).clip(1)
            yield _levels(usual[place], size)
    yield _levels(load, size)


def _levels(load: Floats, size: int) -> Counts:
    """Levels of equal width between least and highest load."""
    spread = float(np.ptp(load))
    shares = (load - load.min()) / spread if spread else np.zeros(len(load))
    levels: Counts = np.floor(size * shares).astype(np.int64).clip(0, size - 1)
    return levels
