"""A plan in one sweep, each slot knowing the one decided before it: with a guide that looked ahead, or greedily."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuplanner.errors import MissingDependencyError
from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.methods.best_path import kept_on, parked_best
from gpuplanner.planner.program.families import build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.slot_floors import best_in_window
from gpuplanner.solving.effort import TOLERANCE, Effort

_SHARE_OF_GAP = 0.2
_SWEEP_NODES = 200


def rounded(fluid: Fluid, guide: Floats) -> Counts:
    """Each slot of a guide in whole GPUs, rounded in the way that costs least: a plan at no cost of time."""
    counts = np.tile(fluid.pinned, (len(guide), 1))
    for slot, row in enumerate(guide):
        near = [np.ceil(row - TOLERANCE), np.rint(row), np.floor(row + TOLERANCE)]
        tried = np.maximum(np.array(near, dtype=np.int64), fluid.pinned)
        tried = tried[fluid.allowed(slot, tried)]
        if len(tried):
            counts[slot] = tried[fluid.slot_costs(slot, tried).argmin()]
    return counts


def standing(fluid: Fluid) -> list[Counts]:
    """Plans that nobody has to search for, the last of which keeps every limit that can be kept.

    GPUs as they are at first, wherever there is room; as many whole ones as may be on; those alone that must stay.
    What is not on is parked as it was.
    """
    n_slots, pinned = fluid.problem.n_slots, fluid.pinned
    first = pinned if fluid.initial is None else fluid.initial
    alone, whole = (kept_on(fluid, first, now) for now in (pinned, _whole_ones(fluid)))
    plans = [np.tile(alone, (n_slots, 1)) for _ in range(3)]
    for plan, state in zip(plans, (np.maximum(first, pinned), whole), strict=False):
        there = [bool(fluid.allowed(slot, state[None])[0]) for slot in range(n_slots)]
        plan[there] = state
    return plans


def _whole_ones(fluid: Fluid) -> Counts:
    """GPUs that must stay, and beside them as many whole ones as may be on in every slot."""
    counts = fluid.pinned.copy()
    counts[np.flatnonzero(fluid.used & ~fluid.cut)] += max(0, int(fluid.gpus.min() - counts.sum()))
    return counts


def sweep(
    fluid: Fluid, fallback: Counts | None, guide: Floats | None, effort: Effort, *, backward: bool = False
) -> Counts:
    """Decide slot after slot in whole GPUs, each as cheap as can be beside the one decided before.

    A slot by itself does not see what comes; the guide, made of fractions, has seen the whole horizon. A slot
    may leave it by one GPU a layout beyond rounding. Where the solver has no answer a slot is as in the fallback;
    without one it is decided by exchanges.
    """
    counts = np.tile(fluid.pinned, (fluid.problem.n_slots, 1)) if fallback is None else fallback.copy()
    last = len(counts) - 1
    for slot in range(last, -1, -1) if backward else range(last + 1):
        before = None if backward and slot else fluid.before(counts, slot)
        after = counts[slot + 1] if backward and slot < last else None
        model = build(fluid, range(slot, slot + 1), before=before, after=after)
        if guide is not None:
            low, high = np.floor(guide[slot] + TOLERANCE) - 1, np.ceil(guide[slot] - TOLERANCE) + 1
            model.linear.narrow(model.on[0], low, high)
        answer = best_in_window(model, effort, gap=_SHARE_OF_GAP * effort.gap_target, nodes=_SWEEP_NODES)
        if answer is not None or fallback is None:
            now = _exchanged(fluid, slot, before) if answer is None else model.counts(answer[0])[0]
            counts[slot] = kept_on(fluid, after if backward else before, now)
    return parked_best(fluid, counts, effort)


def _exchanged(fluid: Fluid, slot: int, before: Counts | None) -> Counts:
    """Counts of a slot without a solver: the exchange of GPUs that saves most, again and again until none does.

    GPUs of a layout are put on, taken off or get another one, 1, 2, 4 or more at a time.
    """
    n, parked = len(fluid.layouts), fluid.owner[len(fluid.layouts) :]
    ends = np.eye(n + 1, dtype=np.int64)[:, 1:]
    ways = (ends[:, None] - ends[None]).reshape(-1, n)
    sizes = 2 ** np.arange(int(fluid.gpus[slot]).bit_length() + 1)
    steps = np.pad((sizes[:, None, None] * ways).reshape(-1, n), ((0, 0), (0, len(parked))))

    def cost(states: Counts) -> Floats:
        own = fluid.slot_costs(slot, states)
        if before is None:
            return own
        kept = (before[parked] + before[n:] - states[:, parked]).clip(0)
        costs: Floats = own + fluid.ways.costs(before[None], np.hstack([states[:, :n], kept]))[0]
        return costs

    now = fluid.pinned if before is None else np.maximum(before * fluid.used, fluid.pinned)
    now = now if fluid.allowed(slot, now[None])[0] else fluid.pinned
    while True:
        near = np.vstack([now, now + steps])
        near = near[fluid.allowed(slot, near)]
        costs = cost(near)
        best = int(costs.argmin())
        if costs[best] >= costs[0] - TOLERANCE:
            return now
        now = near[best]


def greedy_counts(fluid: Fluid, effort: Effort) -> Counts:
    """Decide slot after slot, each at the least cost of its own and of the change into it.

    A baseline. It gives back a GPU as soon as a slot does without it, cuts it anew in the next, and never
    cuts for a need that grows later: what that costs, the other methods save. Without a solver, or without time for
    one, exchanges of GPUs decide, which come near that.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.contract.problem import PlanProblem
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin()
    >>> greedy_counts(fluid, effort).ravel().tolist()  # two idle hours would cost less than a cut
    [2, 0, 0, 2]
    """
    try:
        return sweep(fluid, None, None, effort)
    except MissingDependencyError:
        return sweep(fluid, None, None, replace(effort, deadline=0.0))
