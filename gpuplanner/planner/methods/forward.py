"""A good plan in one sweep: slot after slot, each knowing the slot decided before it."""

from __future__ import annotations

import numpy as np

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.methods.parking import kept_on, parked_best
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
