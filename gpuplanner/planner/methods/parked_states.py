"""The optimum where GPUs are parked, and the fleet is small enough to list its states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.problem import Counts, Floats
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort

# Values of all slots together, which are kept until the way back: half a GiB.
_MOST_VALUES = 2**26

_LARGEST_KEY = 2**62


def parked_counts(fluid: Fluid, effort: Effort, max_states: int) -> Counts | None:
    r"""Counts of an optimal plan, or None where there are too many states.

    .. math:: V_t(x) = f_t(x) + \min_{x'} \bigl( V_{t-1}(x') + r(x', x) \bigr)

    over all states. GPUs go from state to state over the edges of a tree, and the cost :math:`r` is a sum over its
    edges, so the cheapest way leads first up the tree, to what the two states have in common, and then down. One
    pass over the edges in each direction, a distance transform, finds the minimum for all :math:`x` at once: the
    work of a slot grows with the number of states times that of edges, not with the square of the number of states.
    """
    places = states_by_place(fluid, min(max_states, _MOST_VALUES // max(1, fluid.problem.n_slots)))
    if places is None:
        return None
    counts = places.states[places.real, :-1]
    on, which = np.unique(np.where(fluid.used, counts, 0), axis=0, return_inverse=True)
    steps = 2 * sum(len(crossing.above) for crossing in places.crossings) + len(places.states)
    values: list[Floats] = []
    for slot in range(fluid.problem.n_slots):
        if effort.spent():
            return None
        effort.spend(steps)
        costs = np.where(fluid.allowed(slot, counts), fluid.slot_costs(slot, on)[which], np.inf)
        if slot:
            costs += cheapest_arrivals(places, values[-1])
        elif fluid.initial is not None:
            costs += fluid.ways.costs(fluid.initial[None], counts)[0]
        values.append(costs)
    path = [int(values[-1].argmin())]
    for value in reversed(values[:-1]):
        path.append(int((value + fluid.ways.costs(counts, counts[path[-1]][None])[:, 0]).argmin()))
    return counts[path[::-1]]


class Crossing(NamedTuple):
    """So many GPUs over an edge: rows of the states with them below it and above it, and the cost of each way."""

    below: Counts
    above: Counts
    down: float
    up: float


@dataclass(frozen=True, eq=False)
class PlacedStates:
    """States of the fleet by place of the tree, and the ways between them.

    - ``states``, shape (n, n_columns + 1): GPUs in each column of counts, and last those that are cut and have no
      layout: nobody leaves a GPU there, but all that change their layout come through. What is in no place is parked
      and not cut: the root.
    - ``real``: Rows of the states without a GPU in the last place.
    - ``crossings``: Over every edge, the lowest edges first.
    """

    states: Counts
    real: Counts
    crossings: list[Crossing]


def cheapest_arrivals(places: PlacedStates, values: Floats) -> Floats:
    """Least cost of coming to each real state, from real states with these values."""
    cost = np.full(len(places.states), np.inf)
    cost[places.real] = values
    for below, above, _, up in places.crossings:
        cost[above] = np.minimum(cost[above], cost[below] + up)
    for below, above, down, _ in reversed(places.crossings):
        cost[below] = np.minimum(cost[below], cost[above] + down)
    return cost[places.real]


def states_by_place(fluid: Fluid, max_states: int) -> PlacedStates | None:
    """All states, or None if there are too many.

    More GPUs on with a layout than it can ever have work for are never needed: parking them sends no more over any
    edge of the tree.
    """
    gpus, fewest = fluid.problem.gpus, np.append(fluid.pinned, 0)
    first = fluid.pinned if fluid.initial is None else np.maximum(fluid.pinned, fluid.initial)
    needed = np.where(fluid.used, np.maximum(fluid.useful.max(axis=0), first), gpus)
    widths = np.append(needed, gpus).clip(fewest, gpus) - fewest + 1
    steps = key_steps(widths)
    if steps is None:
        return None
    levels = [np.zeros(1, dtype=np.int64)]
    for _ in range(fluid.problem.gpus_held - int(fewest.sum())):
        room = levels[-1][:, None] // steps % widths < widths - 1
        levels.append(np.unique((levels[-1][:, None] + steps)[room]))
        if sum(map(len, levels)) > max_states:
            return None
    keys = np.sort(np.concatenate(levels))
    states = keys[:, None] // steps % widths
    crossings = [
        crossing
        for place, above, edges in _edges(fluid)
        for crossing in _over(
            keys, states[:, place], edges, steps[place] - (0 if above is None else steps[above])
        )
    ]
    return PlacedStates(states + fewest, np.flatnonzero(states[:, -1] == 0), crossings)


def key_steps(widths: Counts) -> Counts | None:
    """What one GPU more in each place adds to the number of a state, by the values that places can have.

    None where numbers would not fit.

    Examples
    --------
    >>> key_steps(np.array([3, 2, 4])).tolist()
    [1, 3, 6]
    """
    steps = [1]
    for width in widths.tolist():
        steps.append(steps[-1] * width)
    return np.array(steps[:-1], dtype=np.int64) if steps[-1] < _LARGEST_KEY else None


_Prices = list[tuple[float, float, int]]
"""Of edges between the same places: to come, to go, and the GPUs of a batch of both."""


def _edges(fluid: Fluid) -> Iterator[tuple[int, int | None, _Prices]]:
    """Place below each edge and the one above it (None: the root), the lowest first."""
    owner, used, ways = fluid.owner, fluid.used, fluid.ways
    priced: dict[bytes, _Prices] = defaultdict(list)
    for row, come, go, batch in zip(ways.beyond, ways.come, ways.go, ways.batch.tolist(), strict=True):
        priced[row.tobytes()].append((float(come), float(go), batch))

    def of(beyond: NDArray[np.bool_]) -> _Prices:
        return priced.pop(beyond.astype(np.int64).tobytes(), [])

    columns, cut = np.arange(len(owner)), len(owner)
    parked = {int(owner[i]): i for i in np.flatnonzero(~used).tolist()}
    for column in np.flatnonzero(used).tolist():
        yield column, parked.get(column), of(columns == column)
    for layout, column in parked.items():
        yield column, cut, of(owner == layout)
    yield cut, None, of(fluid.cut)
    assert not priced, "an edge that is none of the tree"


def _over(keys: Counts, held: Counts, edges: _Prices, step: int) -> Iterator[Crossing]:
    """One GPU over an edge, two, and so on, as nodes that reboot have one price for several; `step` is a GPU's key."""
    for gpus in range(1, int(held.max(initial=0)) + 1):
        below = np.flatnonzero(held >= gpus)
        above = np.searchsorted(keys, keys[below] - gpus * step)
        down, up = (sum(edge[way] * -(-gpus // edge[2]) for edge in edges) for way in (0, 1))
        yield Crossing(below, above, down, up)
