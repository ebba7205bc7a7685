"""Make a plan better: solve a few slots at a time anew, with the slots around them as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuplanner.planner.effort import TOLERANCE, Effort, relative_gap
from gpuplanner.planner.families import Floor, build, start_values
from gpuplanner.planner.fluid import Fluid
from gpuplanner.planner.problem import Counts
from gpuplanner.planner.solver import solve

_WIDTH = 4
_SHARE_OF_GAP = 0.2
_NODES = 200


def improved(
    fluid: Fluid, states: Counts, floors: Sequence[Floor], bound: float, effort: Effort
) -> Iterator[Counts]:
    """Yield better and better plans until the gap is reached, no window helps, or the time is up.

    Windows cover the horizon twice, the second time shifted by half a window, again and again while that
    helps.

    Parameters
    ----------
    fluid : Fluid
        The arrays.
    states : ndarray of int, shape (n_slots, n_columns)
        The plan to begin with; it is not changed.
    floors : sequence of Floor
        Least costs of slots.
    bound : float
        Cost that no plan undercuts.
    effort : Effort
        Limits of the search.

    Yields
    ------
    ndarray of int, shape (n_slots, n_columns)
        A plan cheaper than the one before.
    """
    states = states.copy()
    cost = fluid.cost(states, before=fluid.initial)
    helped = True
    while helped:
        helped = False
        for window in _windows(fluid.problem.n_slots):
            if relative_gap(cost, bound) <= effort.gap_target or effort.spent():
                return
            saved = _resolve(fluid, states, window, floors, effort)
            if saved > TOLERANCE * max(1.0, cost):
                helped = True
                cost -= saved
                yield states.copy()


def _windows(n_slots: int) -> Iterator[range]:
    for first in (0, -(_WIDTH // 2)):
        for start in range(first, n_slots, _WIDTH):
            window = range(max(start, 0), min(start + _WIDTH, n_slots))
            if len(window):
                yield window


def _resolve(fluid: Fluid, states: Counts, window: range, floors: Sequence[Floor], effort: Effort) -> float:
    """Solve one window; put the answer into the plan if it is cheaper, and say by how much."""
    inside = slice(window.start, window.stop)
    before = fluid.before(states, window.start)
    after = states[window.stop] if window.stop < len(states) else None
    model = build(fluid, window, before=before, after=after, floors=floors)
    answer = solve(
        model.linear,
        effort,
        gap=_SHARE_OF_GAP * effort.gap_target,
        start=start_values(model, states[inside], before, after),
        nodes=_NODES,
    )
    if answer.values is None:
        return 0.0

    def cost(slots: Counts) -> float:
        leaving = 0.0 if after is None else fluid.change_price(slots[-1], after)
        return fluid.cost(slots, start=window.start, before=before) + leaving

    found = model.states(answer.values)
    saved = cost(states[inside]) - cost(found)
    if saved > 0:
        states[inside] = found
    return max(saved, 0.0)
