"""Exact plans of small fleets by dynamic programming."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.linear_model import Effort
from gpuplanner.planner.plan_arrays import Fluid, Ways
from gpuplanner.planner.plan_problem import Counts, Floats

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
    crossings: list[Crossing] = []
    for place, above, edges in _edges(fluid):
        step = steps[place] - (0 if above is None else steps[above])
        crossings += _over(keys, states[:, place], edges, step)
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


MAX_STATES = 100_000
"""States up to which a week of hours takes seconds, and less than 1 GiB of memory."""

# Steps of a state that is tried in a slot, for each layout, in the measure of gpuplanner.planner.
_TRIED = 4
# Costs are sums of few products: what differs by less is equal.
_TIE = 1e-12


def dynamic_counts(fluid: Fluid, effort: Effort, *, max_states: int = MAX_STATES) -> tuple[Counts, float] | None:
    r"""Find an optimal plan, or say that there are too many states.

    .. math:: V_t(x) = f_t(x) + \min_{x'} \bigl( V_{t-1}(x') + r(x', x) \bigr)

    over the states that :func:`~gpuplanner.planner.dynamic_program.undominated` leaves. The cost of a change
    :math:`r` is a sum over layouts of what each grows, or shrinks, by. So the way from :math:`x'` to
    :math:`x` may lead, one GPU at a time, first down to their common part and then up, at the same cost; and
    as with a state all smaller ones are listed, it never leaves the list. Two passes over the list, a distance
    transform, find the minimum for all :math:`x` at once: the work of a slot grows with the number of states
    times that of layouts, not with the square of the number of states.

    References
    ----------
    Felzenszwalb and Huttenlocher, Distance transforms of sampled functions, Theory of Computing 8 (2012),
    for the two passes.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_problem import PlanProblem
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[2, 0, 0, 2]]],
    ...     change_gpu_hours=2.5,
    ... )
    >>> fluid = Fluid.of(problem)
    >>> effort = Effort.begin()
    >>> counts, bound = dynamic_counts(fluid, effort)
    >>> counts.ravel().tolist(), bound
    ([2, 2, 2, 2], 8.0)
    """
    if fluid.parks:
        parked = parked_counts(fluid, effort, max_states)
        return None if parked is None else (parked, fluid.cost(parked, before=fluid.initial))
    lattice = undominated(fluid, max_states, effort)
    if lattice is None:
        return None
    values: list[Floats] = []
    for slot, (own, costs) in enumerate(zip(lattice.own, lattice.costs, strict=True)):
        if effort.spent():
            return None
        effort.spend(_TRIED * lattice.states.size)
        if slot:
            entering = _cheapest_arrivals(lattice, lattice.own[slot - 1], values[-1], fluid.ways)
            values.append(entering[own] + costs)
        elif fluid.initial is None:
            values.append(costs)
        else:
            values.append(fluid.ways.costs(fluid.initial[None], lattice.states[own])[0] + costs)
    counts = _backtrack(fluid, lattice, values)
    return counts, fluid.cost(counts, before=fluid.initial)


def _cheapest_arrivals(lattice: Lattice, own: Counts, values: Floats, ways: Ways) -> Floats:
    """Least cost of coming to each state of the lattice, from own states with these values."""
    cost = np.full(len(lattice.states), np.inf)
    cost[own] = values
    up, down = (prices.tolist() for prices in ways.of_columns)
    for level in reversed(lattice.levels):
        for below, price in zip(lattice.below[:, level], down, strict=True):
            there = below >= 0
            less = below[there]
            cost[less] = np.minimum(cost[less], cost[level][there] + price)
    for level in lattice.levels:
        best = cost[level]
        for below, price in zip(lattice.below[:, level], up, strict=True):
            np.minimum(best, np.where(below >= 0, cost[below], np.inf) + price, out=best)
    return cost


def _backtrack(fluid: Fluid, lattice: Lattice, values: list[Floats]) -> Counts:
    """The states that the last value was reached by."""
    path = [lattice.states[lattice.own[-1][values[-1].argmin()]]]
    for own, value in zip(reversed(lattice.own[:-1]), reversed(values[:-1]), strict=True):
        states = lattice.states[own]
        path.append(states[(value + fluid.ways.costs(states, path[-1][None])[:, 0]).argmin()])
    return np.array(path[::-1])


@dataclass(frozen=True, eq=False)
class Lattice:
    """States of a horizon: with a state, every state that has fewer GPUs of some layout is there as well.

    - ``states``, shape (n, n_layouts): GPUs by layout, by number of GPUs.
    - ``levels``: Rows of the states with equal numbers of GPUs, fewest first.
    - ``below``, shape (n_layouts, n): Row of the state with one GPU less of the layout; -1 where that is no state.
    - ``own``: Rows of the states that each slot may need, ascending.
    - ``costs``: What the slot costs in each of them.
    """

    states: Counts
    levels: list[slice]
    below: Counts
    own: list[Counts]
    costs: list[Floats]


def undominated(fluid: Fluid, max_states: int, effort: Effort) -> Lattice | None:
    r"""List the states that some optimal plan keeps to.

    Let :math:`f_t(x)` be the cost of slot :math:`t` in state :math:`x`, :math:`a_l` the cost of one GPU with
    layout :math:`l` for a slot, :math:`c_l` that of taking the layout up, and
    :math:`r(x, y) = \sum_l c_l (y_l - x_l)^+`. (Where it is emptying that costs, by
    :math:`(x_l - y_l)^+`, all of this holds with time reversed; where both do, with the sum of the two as
    :math:`c_l` and one :math:`u_l` for all slots.) Take, of the optimal plans, one with the fewest GPUs on, summed
    over slots. None of its states is in one of three classes, as in each case another plan costs no more and
    has fewer GPUs on:

    1. *A GPU that does not earn its keep*: :math:`f_t(x) \ge f_t(x - e_l) + c_l`. Leave it off in this slot
       alone. Entering the slot costs no more, and leaving it at most :math:`c_l` more.
    2. *More GPUs than could ever serve*: :math:`x_l > u_{lt}`. Let :math:`m_{lt}` GPUs of layout :math:`l`
       alone serve all that the layout can serve in slot :math:`t`, so that more of them change no shortage.
       Put :math:`u_{lt} = \max_{s \ge t} m_{ls}`, and, if the state before the first slot is known,
       no more than :math:`\max(x_{l,-1}, \max_{s \le t} m_{ls})`; :math:`u_{lt} = m_{lt}` if
       :math:`c_l = 0`. Cap every slot at :math:`u`. For each :math:`k`, the slots in which at least :math:`k`
       GPUs have the layout are then those of the plan before that lie in one interval of time: one that ends
       early, or that begins late where at first fewer than :math:`k` had it. So the number of times that
       the :math:`k`-th GPU takes the layout up, which is what changes cost, does not grow.
    3. *So many GPUs that starting over is cheaper*: :math:`|x| > |y|` and
       :math:`\sum_l (a_l - c_l) x_l \ge f_t(y) + \sum_l c_l y_l` for some state :math:`y` of the slot. Be in
       :math:`y` instead: with the triangle inequality, entering costs at most :math:`\sum_l c_l y_l` more and
       leaving :math:`\sum_l c_l x_l`, while :math:`f_t(x) \ge \sum_l a_l x_l`. Used where no :math:`a_l` is
       below :math:`c_l`.

    What is served is worth the largest weight of a matching of requests to instances. As a function of the
    instances it is submodular (weighted rank of a transversal matroid), so that with fewer GPUs around, a GPU
    earns no less. Hence what is left after all three is closed downwards, and is built level by level from the
    empty fleet: a state is tried only if it is left with each of its GPUs taken away.

    References
    ----------
    Schrijver, Combinatorial Optimization, Springer 2003: chapters 39 (transversal matroids) and 44 (submodular
    functions).
    """
    growth = _Growth(fluid, max_states)
    while growth.more():
        tried = growth.tried
        if effort.spent() or not growth.grow():
            return None
        effort.spend(_TRIED * (growth.tried - tried))
    return growth.lattice()


class _Growth:
    """States level by level; a level has one GPU more than the one before."""

    def __init__(self, fluid: Fluid, max_states: int) -> None:
        self.fluid = fluid
        self.max_states, self.tried = max_states, 0
        self.prices = fluid.ways.of_columns.sum(axis=0)
        self.slots = range(fluid.problem.n_slots)
        self.caps = _caps(fluid)
        self.busiest_first = np.argsort(-self.caps.sum(axis=1), kind="stable").tolist()
        self.weights = fluid.on_cost - self.prices
        self.cheap = np.tile(fluid.pinned.astype(np.int64), (len(self.slots), 1))
        self.descending = [slot for slot in self.slots if (self.weights >= 0).all()]
        self.enough = np.full(len(self.slots), np.inf)
        self.widths = self.caps.max(axis=0) - fluid.pinned + 1
        steps = key_steps(self.widths)
        self.fits = steps is not None
        self.radix = np.zeros(len(fluid.owner), dtype=np.int64) if steps is None else steps
        first = fluid.pinned[None].astype(np.int64)
        costs = np.full((len(self.slots), 1), np.inf)
        for slot in self.slots:
            if fluid.allowed(slot, first)[0]:
                costs[slot] = fluid.slot_costs(slot, first)
        self.states = [first]
        self.keys = [np.zeros(1, dtype=np.int64)]
        self.costs = [costs]
        self.below = [np.full((len(self.radix), 1), -1)]

    def more(self) -> bool:
        """Whether the last level has states to build on."""
        return len(self.keys[-1]) > 0 and len(self.radix) > 0

    def grow(self) -> bool:
        """Add a level; say whether the number of states is within the limit."""
        if not self.fits:
            return False
        self._descend()
        parents, keys, costs = self.states[-1], self.keys[-1], self.costs[-1]
        room = parents < self.caps.max(axis=0)
        children = np.unique(np.concatenate([keys[room[:, i]] + step for i, step in enumerate(self.radix)]))
        states = children[:, None] // self.radix % self.widths + self.fluid.pinned
        present = states > self.fluid.pinned
        places = np.full((len(self.radix), len(children)), -1)
        whole = np.ones(len(children), dtype=bool)
        for layout, step in enumerate(self.radix.tolist()):
            wanted = children[present[:, layout]] - step
            found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
            there = keys[found] == wanted
            places[layout, present[:, layout]] = np.where(there, found, -1)
            whole[np.flatnonzero(present[:, layout])[~there]] = False
        states, places, children = states[whole], places[:, whole], children[whole]
        own = np.full((len(self.slots), len(children)), np.inf)
        open_below = np.ones(own.shape, dtype=bool)
        for place in places:
            there = place >= 0
            open_below[:, there] &= np.isfinite(costs[:, place[there]])
        held = sum(map(len, self.keys))
        kept = np.zeros(len(children), dtype=bool)
        for slot in self.busiest_first:
            tried = np.flatnonzero(open_below[slot])
            self.tried += tried.size * len(self.radix)
            own[slot, tried] = self._costs(slot, states[tried], places[:, tried], costs[slot])
            kept |= np.isfinite(own[slot])
            if held + np.count_nonzero(kept) > self.max_states:
                return False
        first = sum(map(len, self.keys[:-1]))
        self.states.append(states[kept])
        self.keys.append(children[kept])
        self.costs.append(own[:, kept])
        self.below.append(np.where(places >= 0, places + first, -1)[:, kept])
        return True

    def lattice(self) -> Lattice | None:
        """All levels together; None if some slot has no state at all."""
        ends = np.cumsum([0, *map(len, self.keys)]).tolist()
        own, costs = [], []
        for slot in self.slots:
            rows = [level[slot] for level in self.costs]
            found = [np.flatnonzero(np.isfinite(row)) for row in rows]
            own.append(np.concatenate([at + first for at, first in zip(found, ends[:-1], strict=True)]))
            costs.append(np.concatenate([row[at] for row, at in zip(rows, found, strict=True)]))
        if not all(map(len, own)):
            return None
        levels = [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]
        below = np.concatenate(self.below, axis=1)
        return Lattice(np.concatenate(self.states), levels, below, own, costs)

    def _costs(self, slot: int, states: Counts, places: Counts, before: Floats) -> Floats:
        """Costs of states in a slot, all states below being left; infinite where a rule or limit forbids them."""
        costs = np.full(len(states), np.inf)
        within = np.ones(len(states), dtype=bool)
        for count, cap in zip(states.T, self.caps[slot].tolist(), strict=True):
            within &= count <= cap
        within &= (states @ self.weights < self.enough[slot]) & self.fluid.allowed(slot, states)
        kept = np.flatnonzero(within)
        found = self.fluid.slot_costs(slot, states[kept])
        tie = _TIE * np.maximum(1.0, found)
        needed = np.ones(len(kept), dtype=bool)
        for place, price in zip(places[:, kept], self.prices.tolist(), strict=True):
            needed &= (place < 0) | (found < before[place] + price - tie)
        costs[kept[needed]] = found[needed]
        return costs

    def _descend(self) -> None:
        """Give each slot's cheap state the GPU that saves most; it has fewer than the states of the next level.

        With it, find the weight of states from which on starting over is cheaper: rule 3.
        """
        for slot in list(self.descending):
            state = self.cheap[slot]
            near = np.concatenate([state[None], state + np.eye(len(state), dtype=np.int64)])
            near = near[self.fluid.allowed(slot, near)]
            if not len(near):
                self.descending.remove(slot)
                continue
            costs = self.fluid.slot_costs(slot, near)
            self.enough[slot] = min(self.enough[slot], float(costs[0] + self.prices @ state))
            if not costs.argmin():
                self.descending.remove(slot)
            self.cheap[slot] = near[costs.argmin()]


def _caps(fluid: Fluid) -> Counts:
    """Most GPUs with each layout that may be of use, shape (n_slots, n_layouts): rule 2."""
    now = fluid.useful
    ahead, so_far = np.maximum.accumulate(now[::-1])[::-1], np.maximum.accumulate(now)
    if fluid.initial is not None:
        so_far = np.maximum(so_far, fluid.initial)
        ahead = np.minimum(ahead, so_far)
    up, down = fluid.ways.of_columns > 0
    caps: Counts = np.where(down, np.where(up, so_far[-1], so_far), np.where(up, ahead, now))
    return np.maximum(caps, fluid.pinned)
