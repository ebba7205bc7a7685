"""A plan in one sweep, each slot knowing the one decided before it: with a guide that looked ahead, or greedily."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.methods.best_path import kept_on, parked_best
from gpuplanner.planner.program.families import build
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.slot_floors import best_in_window
from gpuplanner.solving.effort import TOLERANCE, Effort

_SHARE_OF_GAP = 0.2
_NODES = 200


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


def sweep(
    fluid: Fluid, fallback: Counts, guide: Floats | None, effort: Effort, *, backward: bool = False
) -> Counts:
    """Decide slot after slot in whole GPUs, each as cheap as can be beside the one decided before.

    A slot by itself does not see what comes; the guide, made of fractions, has seen the whole horizon. A slot
    may leave it by one GPU a layout beyond rounding.
    """
    counts = fallback.copy()
    last = len(counts) - 1
    for slot in range(last, -1, -1) if backward else range(last + 1):
        before = None if backward and slot else fluid.before(counts, slot)
        after = counts[slot + 1] if backward and slot < last else None
        model = build(fluid, range(slot, slot + 1), before=before, after=after)
        if guide is not None:
            low, high = np.floor(guide[slot] + TOLERANCE) - 1, np.ceil(guide[slot] - TOLERANCE) + 1
            model.linear.narrow(model.on[0], low, high)
        answer = best_in_window(model, effort, gap=_SHARE_OF_GAP * effort.gap_target, nodes=_NODES)
        if answer is not None:
            counts[slot] = kept_on(fluid, after if backward else before, model.counts(answer[0])[0])
    return parked_best(fluid, counts, effort)


def greedy_counts(fluid: Fluid, effort: Effort) -> Counts:
    """Decide slot after slot, each at the least cost of its own and of the change into it.

    A baseline. It gives back a GPU as soon as a slot does without it, cuts it anew in the next, and never
    cuts for a need that grows later: what that costs, the other methods save.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import PlanProblem
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin(gap_target=0, time_limit_s=10, seed=0, solver="highs")
    >>> greedy_counts(fluid, effort).ravel().tolist()  # two idle hours would cost less than a cut
    [2, 0, 0, 2]
    """
    least = np.tile(fluid.pinned, (fluid.problem.n_slots, 1))
    return sweep(fluid, least, None, effort)
