"""Slots as one model: all of them, all of them alike, or a few at a time with those around them as they are.

Alone, one big model is hopeless at middle sizes. Begun from a good plan and with the floors of slots in it,
it closes small problems and tightens the bound of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuplanner.planner.contract.problem import Counts
from gpuplanner.planner.program.families import Floor, build, start_values
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import TOLERANCE, Effort, relative_gap
from gpuplanner.solving.solver import solve

_WINDOW_NODES = 20_000
_WIDTH = 4

_SHARE_OF_GAP = 0.2

_WINDOW_NODES = 200


def solve_whole(
    fluid: Fluid, counts: Counts, floors: Sequence[Floor], effort: Effort
) -> tuple[Counts | None, float | None]:
    """Solve all slots together, beginning from a plan."""
    model = build(fluid, range(len(counts)), before=fluid.initial, floors=floors)
    start = start_values(model, counts, fluid.initial, None)
    answer = solve(model.linear, effort, gap=effort.gap_target, start=start, nodes=_WINDOW_NODES)
    return None if answer.values is None else model.counts(answer.values), answer.bound


def static_counts(fluid: Fluid, effort: Effort) -> tuple[Counts | None, float | None]:
    """Choose counts once, for all slots together.

    Every GPU that is on stays on, cut as it is, so that the only changes are those from the initial layouts.
    """
    n_slots = fluid.problem.n_slots
    model = build(fluid, range(n_slots), before=fluid.initial, constant=True)
    answer = solve(model.linear, effort, gap=effort.gap_target)
    counts = None if answer.values is None else np.array(model.counts(answer.values))
    return counts, answer.bound


def improved(
    fluid: Fluid, counts: Counts, floors: Sequence[Floor], bound: float, effort: Effort
) -> Iterator[Counts]:
    """Yield better and better plans until the gap is reached, no window helps, or the time is up.

    Windows cover the horizon twice, the second time shifted by half a window, again and again while that
    helps.
    """
    counts = counts.copy()
    cost = fluid.cost(counts, before=fluid.initial)
    helped = True
    while helped:
        helped = False
        for window in _windows(fluid.problem.n_slots):
            if relative_gap(cost, bound) <= effort.gap_target or effort.spent():
                return
            saved = _resolve(fluid, counts, window, floors, effort)
            if saved > TOLERANCE * max(1.0, cost):
                helped = True
                cost -= saved
                yield counts.copy()


def _windows(n_slots: int) -> Iterator[range]:
    for first in (0, -(_WIDTH // 2)):
        for start in range(first, n_slots, _WIDTH):
            window = range(max(start, 0), min(start + _WIDTH, n_slots))
            if len(window):
                yield window


def _resolve(fluid: Fluid, counts: Counts, window: range, floors: Sequence[Floor], effort: Effort) -> float:
    """Solve one window; put the answer into the counts if it is cheaper, and say by how much."""
    inside = slice(window.start, window.stop)
    before = fluid.before(counts, window.start)
    after = counts[window.stop] if window.stop < len(counts) else None
    model = build(fluid, window, before=before, after=after, floors=floors)
    answer = solve(
        model.linear,
        effort,
        gap=_SHARE_OF_GAP * effort.gap_target,
        start=start_values(model, counts[inside], before, after),
        nodes=_WINDOW_NODES,
    )
    if answer.values is None:
        return 0.0

    def cost(slots: Counts) -> float:
        leaving = 0.0 if after is None else fluid.ways.cost(slots[-1], after)
        return fluid.cost(slots, start=window.start, before=before) + leaving

    found = model.counts(answer.values)
    saved = cost(counts[inside]) - cost(found)
    if saved > 0:
        counts[inside] = found
    return max(saved, 0.0)
