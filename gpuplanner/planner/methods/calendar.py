"""A calendar: few vectors of counts, such as one for the day and one for the night, used again and again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.methods.few_vectors import VectorPool
from gpuplanner.planner.program.families import SlotModel, build, start_values
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.folded_slots import tied
from gpuplanner.planner.program.slot_floors import window_floors
from gpuplanner.solving.effort import TOLERANCE, Effort
from gpuplanner.solving.solver import solve

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
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1, 1, 3, 2, 1, 1]]],
    ...     change_gpu_hours=0.1,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
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


def _improved(
    model: SlotModel, pool: VectorPool, counts: Counts, effort: Effort
) -> tuple[Counts, VectorPool]:
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
        chosen = model.counts(folded.spread(answer.values))
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
