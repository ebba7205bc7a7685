"""Exact plans of small fleets by dynamic programming over states of the fleet.

A state x is a vector of counts: GPUs in each column. With f_t(x) the cost of interval t in state x and r(x', x) the
cost of the transition,

    V_t(x) = f_t(x) + min over x' of ( V_{t-1}(x') + r(x', x) ),     optimum = min over x of V_T(x).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.plan_arrays import PlanArrays, StateTransitions
from gpuplanner.planner.plan_problem import Counts, Floats

_MAX_STORED_VALUES = 2**26
"""Values V_t(x) of all intervals that are kept for the traceback: half a GiB."""

_MAX_STATE_KEY = 2**62
"""Largest key (mixed-radix number) of a fleet state that fits into 64 bits."""


def plan_with_idle_states(arrays: PlanArrays, effort: SearchEffort, max_states: int) -> Counts | None:
    r"""Return the counts of an optimal plan with idle GPUs, or None if there are too many states.

    .. math:: V_t(x) = f_t(x) + \min_{x'} \bigl( V_{t-1}(x') + r(x', x) \bigr)

    GPUs move from state to state over the edges of a tree, and the cost :math:`r` is a sum over edges, so the cheapest
    transition leads first up the tree, to the common part of the two states, and then down. One pass over the edges in
    each direction, a distance transform, finds the minimum for all :math:`x` at once: the work of an interval grows
    with states times edges, not with the square of the states.
    """
    tree_states = list_tree_states(arrays, min(max_states, _MAX_STORED_VALUES // max(1, arrays.problem.n_slots)))
    if tree_states is None:
        return None
    counts = tree_states.states[tree_states.real, :-1]
    on, on_index = np.unique(np.where(arrays.is_on, counts, 0), axis=0, return_inverse=True)
    steps = 2 * sum(len(crossing.above) for crossing in tree_states.crossings) + len(tree_states.states)
    values: list[Floats] = []
    for slot in range(arrays.problem.n_slots):
        if effort.is_spent():
            return None
        effort.count_steps(steps)
        costs = np.where(arrays.keeps_limits(slot, counts), arrays.slot_costs(slot, on)[on_index], np.inf)
        if slot:
            costs += arrival_costs_on_tree(tree_states, values[-1])
        else:
            costs += arrays.entry_costs(counts)
        values.append(costs)
    path = [int(values[-1].argmin())]
    for costs_so_far in reversed(values[:-1]):
        path.append(
            int((costs_so_far + arrays.transitions.pairwise_costs(counts, counts[path[-1]][None])[:, 0]).argmin())
        )
    return counts[path[::-1]]


class EdgeCrossing(NamedTuple):
    """States that differ by a number of GPUs on two sides of an edge, and the price of moving them each way.

    - ``below``, ``above``, shape (n,): Rows of the states with these GPUs below the edge, and above it.
    - ``down``, ``up``: Price of moving them down, and up. [GPU h]
    """

    below: Counts
    above: Counts
    down: float
    up: float


@dataclass(frozen=True, eq=False)
class TreeStates:
    """All states of the fleet on the tree of GPU states (:class:`StateTransitions`), and the transitions among them.

    - ``states``, shape (n, n_columns + 1): GPUs in each column, and last those partitioned without a layout, through
      which every change of layout leads. All other GPUs are idle and full: the root of the tree.
    - ``real``: Rows of the states without a GPU in the last column; only they can last.
    - ``crossings``: Transitions over each edge, the lowest edges first.
    """

    states: Counts
    real: Counts
    crossings: list[EdgeCrossing]


def arrival_costs_on_tree(tree_states: TreeStates, values: Floats) -> Floats:
    """Return the least cost of each lasting fleet state x, min over x' of V(x') + r(x', x), on the tree [GPU h]."""
    arrival_cost = np.full(len(tree_states.states), np.inf)
    arrival_cost[tree_states.real] = values
    for below, above, _, up in tree_states.crossings:
        arrival_cost[above] = np.minimum(arrival_cost[above], arrival_cost[below] + up)
    for below, above, down, _ in reversed(tree_states.crossings):
        arrival_cost[below] = np.minimum(arrival_cost[below], arrival_cost[above] + down)
    return arrival_cost[tree_states.real]


def list_tree_states(arrays: PlanArrays, max_states: int) -> TreeStates | None:
    """List all states of the fleet and its moves on the tree of layout changes (:class:`TreeStates`).

    None if there are more than `max_states` states.

    More powered-on GPUs with a layout than can have work are never needed: keeping them idle moves no more GPUs over
    any edge of the tree.
    """
    gpus, minimum = arrays.problem.gpus, np.append(arrays.pinned, 0)
    initial_counts = arrays.pinned if arrays.initial is None else np.maximum(arrays.pinned, arrays.initial)
    max_needed = np.where(arrays.is_on, np.maximum(arrays.max_useful_gpus.max(axis=0), initial_counts), gpus)
    widths = np.append(max_needed, gpus).clip(minimum, gpus) - minimum + 1
    weights = mixed_radix_weights(widths)
    if weights is None:
        return None
    levels = [np.zeros(1, dtype=np.int64)]
    for _ in range(arrays.problem.max_gpus_with_layout - int(minimum.sum())):
        has_room = levels[-1][:, None] // weights % widths < widths - 1
        levels.append(np.unique((levels[-1][:, None] + weights)[has_room]))
        if sum(map(len, levels)) > max_states:
            return None
    keys = np.sort(np.concatenate(levels))
    states = keys[:, None] // weights % widths
    crossings: list[EdgeCrossing] = []
    for position, above, edge_prices in _list_tree_edges(arrays):
        key_step = weights[position] - (0 if above is None else weights[above])
        crossings += _list_edge_crossings(keys, states[:, position], edge_prices, key_step)
    return TreeStates(states + minimum, np.flatnonzero(states[:, -1] == 0), crossings)


def mixed_radix_weights(widths: Counts) -> Counts | None:
    """Return the weight of each position in the key of a state: keys are mixed-radix numbers with the given widths.

    None if keys do not fit into 64 bits.

    Examples
    --------
    >>> mixed_radix_weights(np.array([3, 2, 4])).tolist()
    [1, 3, 6]
    """
    weights = [1]
    for width in widths.tolist():
        weights.append(weights[-1] * width)
    return np.array(weights[:-1], dtype=np.int64) if weights[-1] < _MAX_STATE_KEY else None


_EdgePrices = list[tuple[float, float, int]]
"""Edges between the same two GPU states: price of crossing to the far side and back [GPU h], and GPUs that cross
together.
"""


def _list_tree_edges(arrays: PlanArrays) -> Iterator[tuple[int, int | None, _EdgePrices]]:
    """Yield each edge of the tree of GPU states, lowest first: state below, state above (None: the root), prices."""
    layout_of_column = arrays.layout_of_column
    is_on = arrays.is_on
    transitions = arrays.transitions
    prices_of_side: dict[bytes, _EdgePrices] = defaultdict(list)
    for far_side, cost_to_far, cost_to_near, batch_gpus in zip(
        transitions.far_side,
        transitions.cost_to_far,
        transitions.cost_to_near,
        transitions.batch_gpus.tolist(),
        strict=True,
    ):
        prices_of_side[far_side.tobytes()].append((float(cost_to_far), float(cost_to_near), batch_gpus))

    def pop_prices(far_side: NDArray[np.bool_]) -> _EdgePrices:
        return prices_of_side.pop(far_side.astype(np.int64).tobytes(), [])

    columns, partitioned_place = np.arange(len(layout_of_column)), len(layout_of_column)
    idle_columns = {int(layout_of_column[i]): i for i in np.flatnonzero(~is_on).tolist()}
    for column in np.flatnonzero(is_on).tolist():
        yield column, idle_columns.get(column), pop_prices(columns == column)
    for layout, column in idle_columns.items():
        yield column, partitioned_place, pop_prices(layout_of_column == layout)
    yield partitioned_place, None, pop_prices(arrays.is_partitioned)
    assert not prices_of_side, "an edge that is none of the tree"


def _list_edge_crossings(
    keys: Counts, counts: Counts, edge_prices: _EdgePrices, key_step: int
) -> Iterator[EdgeCrossing]:
    """Yield the crossings of an edge by one GPU, by two, and so on: a node reboot has one price for several GPUs.

    Parameters
    ----------
    keys : ndarray of int, shape (n,)
        Sorted keys of all states.
    counts : ndarray of int, shape (n,)
        GPUs below the edge in each state.
    edge_prices : list of (float, float, int)
        Prices to the far side and back [GPU h], and GPUs of a batch.
    key_step : int
        Difference of keys by one GPU that crosses the edge.
    """
    for gpus in range(1, int(counts.max(initial=0)) + 1):
        below = np.flatnonzero(counts >= gpus)
        above = np.searchsorted(keys, keys[below] - gpus * key_step)
        down, up = (sum(prices[direction] * -(-gpus // prices[2]) for prices in edge_prices) for direction in (0, 1))
        yield EdgeCrossing(below, above, down, up)


MAX_DP_STATES = 100_000
"""Default limit on the states of the fleet: a week of hourly intervals then takes seconds and less than 1 GiB of
memory.
"""

_STEPS_PER_TRIED_STATE = 4
"""Elementary steps of the work limit that one state of the fleet counts for in an interval, for each layout."""
_COST_TIE_FRACTION = 1e-12
"""Relative difference up to which two costs count as equal: larger than the rounding error of sums of a few products.
"""


def solve_dynamic_program(
    arrays: PlanArrays, effort: SearchEffort, *, max_states: int = MAX_DP_STATES
) -> tuple[Counts, float] | None:
    r"""Find an optimal plan, or return None if there are too many states or the effort is spent.

    .. math:: V_t(x) = f_t(x) + \min_{x'} \bigl( V_{t-1}(x') + r(x', x) \bigr)

    over the states of :func:`~gpuplanner.planner.dynamic_program.list_undominated_states`. The cost of a transition
    :math:`r` is a sum over layouts of what each grows, or shrinks, by. So the transition from :math:`x'` to :math:`x`
    may lead, one GPU at a time, first down to their common part and then up, at the same cost; and as with a state all
    smaller ones are listed, it never leaves the list. Two passes over the list, a distance transform, find the minimum
    for all :math:`x` at once: the work of an interval grows with states times layouts, not with the square of the
    states.

    Parameters
    ----------
    arrays : PlanArrays
        The problem.
    effort : SearchEffort
        Time and work limits of the search.
    max_states : int
        Most states.

    Returns
    -------
    tuple of (ndarray of int, float) or None
        Counts, shape (n_slots, n_columns), and their cost, which is the optimum. [GPU h]

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
    >>> arrays = PlanArrays.from_problem(problem)
    >>> effort = SearchEffort.begin()
    >>> counts, bound = solve_dynamic_program(arrays, effort)
    >>> counts.ravel().tolist(), bound
    ([2, 2, 2, 2], 8.0)
    """
    if arrays.keeps_idle_layouts:
        parked = plan_with_idle_states(arrays, effort, max_states)
        return None if parked is None else (parked, arrays.total_cost(parked))
    lattice = list_undominated_states(arrays, max_states, effort)
    if lattice is None:
        return None
    values: list[Floats] = []
    for slot, (slot_states, costs) in enumerate(zip(lattice.slot_states, lattice.slot_state_costs, strict=True)):
        if effort.is_spent():
            return None
        effort.count_steps(_STEPS_PER_TRIED_STATE * lattice.states.size)
        if slot:
            earlier_states = lattice.slot_states[slot - 1]
            arrival_costs = _arrival_costs_on_lattice(lattice, earlier_states, values[-1], arrays.transitions)
            values.append(arrival_costs[slot_states] + costs)
        else:
            values.append(arrays.entry_costs(lattice.states[slot_states]) + costs)
    counts = _backtrack_states(arrays, lattice, values)
    return counts, arrays.total_cost(counts)


def _arrival_costs_on_lattice(
    lattice: StateLattice, slot_states: Counts, values: Floats, transitions: StateTransitions
) -> Floats:
    """Return min over x' of V(x') + r(x', x) for each fleet state x of the lattice, by distance transform [GPU h].

    Parameters
    ----------
    lattice : StateLattice
        All states.
    slot_states : ndarray of int
        Rows of the states of the interval before.
    values : ndarray of float
        V(x') of these states. [GPU h]
    transitions : StateTransitions
        Prices of transitions.
    """
    arrival_cost = np.full(len(lattice.states), np.inf)
    arrival_cost[slot_states] = values
    costs_to_add, costs_to_remove = (prices.tolist() for prices in transitions.costs_by_column)
    for level in reversed(lattice.levels):
        for below, price in zip(lattice.below[:, level], costs_to_remove, strict=True):
            has_state = below >= 0
            lower_states = below[has_state]
            arrival_cost[lower_states] = np.minimum(arrival_cost[lower_states], arrival_cost[level][has_state] + price)
    for level in lattice.levels:
        level_costs = arrival_cost[level]
        for below, price in zip(lattice.below[:, level], costs_to_add, strict=True):
            np.minimum(level_costs, np.where(below >= 0, arrival_cost[below], np.inf) + price, out=level_costs)
    return arrival_cost


def _backtrack_states(arrays: PlanArrays, lattice: StateLattice, values: list[Floats]) -> Counts:
    """Trace the fleet states of the optimal path back from the last interval."""
    path = [lattice.states[lattice.slot_states[-1][values[-1].argmin()]]]
    for slot_states, costs_so_far in zip(reversed(lattice.slot_states[:-1]), reversed(values[:-1]), strict=True):
        states = lattice.states[slot_states]
        path.append(states[(costs_so_far + arrays.transitions.pairwise_costs(states, path[-1][None])[:, 0]).argmin()])
    return np.array(path[::-1])


@dataclass(frozen=True, eq=False)
class StateLattice:
    """States of the fleet (GPUs with each layout) over a horizon, closed downwards.

    With a state, every state with fewer GPUs of some layout is listed.

    - ``states``, shape (n, n_columns): Counts, sorted by number of GPUs.
    - ``levels``: Rows of the states with equal numbers of GPUs, fewest first.
    - ``below``, shape (n_columns, n): Row of the state with one GPU less in the column; -1 if it is not a state.
    - ``slot_states``: Rows of the states that each interval may need, ascending.
    - ``slot_state_costs``: f_t of these states. [GPU h]
    """

    states: Counts
    levels: list[slice]
    below: Counts
    slot_states: list[Counts]
    slot_state_costs: list[Floats]


def list_undominated_states(arrays: PlanArrays, max_states: int, effort: SearchEffort) -> StateLattice | None:
    r"""List the states of the fleet, as GPUs with each layout, that some optimal plan keeps to.

    Let :math:`f_t(x)` be the cost of interval :math:`t` in state :math:`x`, :math:`a_l` the cost of one GPU with layout
    :math:`l` for an interval, :math:`c_l` that of taking the layout, and :math:`r(x, y) = \sum_l c_l (y_l - x_l)^+`.
    (If draining costs instead, by :math:`(x_l - y_l)^+`, all of this holds with time reversed; if both cost, with the
    sum of the two as :math:`c_l` and one :math:`u_l` for all intervals.) Take, of the optimal plans, one with the
    fewest powered-on GPUs, summed over intervals. None of its states is in one of three classes, as in each case
    another plan costs no more and has fewer powered-on GPUs:

    1. *A GPU that does not pay for itself*: :math:`f_t(x) \ge f_t(x - e_l) + c_l`. Leave it off in this interval alone.
       Entering the interval costs no more, and leaving it at most :math:`c_l` more.
    2. *More GPUs than could ever serve*: :math:`x_l > u_{lt}`. Let :math:`m_{lt}` GPUs of layout :math:`l` alone serve
       all that the layout can serve in interval :math:`t`, so that more of them reduce no shortage. Put :math:`u_{lt} =
       \max_{s \ge t} m_{ls}`, and, if the state before the first interval is known, no more than :math:`\max(x_{l,-1},
       \max_{s \le t} m_{ls})`; :math:`u_{lt} = m_{lt}` if :math:`c_l = 0`. Cap every interval at :math:`u`. For each
       :math:`k`, the intervals in which at least :math:`k` GPUs have the layout are then those of the plan before that
       lie in one range of time: one that ends early, or that begins late where at first fewer than :math:`k` had it. So
       the number of times that the :math:`k`-th GPU takes the layout, which transitions are priced by, does not grow.
    3. *So many GPUs that a restart is cheaper*: :math:`|x| > |y|` and :math:`\sum_l (a_l - c_l) x_l \ge f_t(y) + \sum_l
       c_l y_l` for some state :math:`y` of the interval. Be in :math:`y` instead: by the triangle inequality, entering
       costs at most :math:`\sum_l c_l y_l` more and leaving :math:`\sum_l c_l x_l`, while :math:`f_t(x) \ge \sum_l a_l
       x_l`. Used if no :math:`a_l` is below :math:`c_l`.

    The value of the served requests is the largest weight of a matching of requests to instances. As a function of the
    instances it is submodular (weighted rank of a transversal matroid), so that with fewer GPUs around, a GPU earns no
    less. Hence the states that remain after all three are closed downwards, and are built level by level from the empty
    fleet: a state is tried only if it remains with each of its GPUs taken away.

    References
    ----------
    Schrijver, Combinatorial Optimization, Springer 2003: chapters 39 (transversal matroids) and 44 (submodular
    functions).
    """
    growth = _LatticeGrowth(arrays, max_states)
    while growth.can_grow():
        tried = growth.tried
        if effort.is_spent() or not growth.add_level():
            return None
        effort.count_steps(_STEPS_PER_TRIED_STATE * (growth.tried - tried))
    return growth.build_lattice()


class _LatticeGrowth:
    """Builds the lattice of fleet states level by level; a level has one GPU more than the one before."""

    def __init__(self, arrays: PlanArrays, max_states: int) -> None:
        self.arrays = arrays
        self.max_states, self.tried = max_states, 0
        self.prices = arrays.transitions.costs_by_column.sum(axis=0)
        self.slots = range(arrays.problem.n_slots)
        self.caps = _max_useful_gpus(arrays)
        self.busiest_first = np.argsort(-self.caps.sum(axis=1), kind="stable").tolist()
        self.weights = arrays.on_cost - self.prices
        self.cheap = np.tile(arrays.pinned.astype(np.int64), (len(self.slots), 1))
        self.descending = [slot for slot in self.slots if (self.weights >= 0).all()]
        self.enough = np.full(len(self.slots), np.inf)
        self.widths = self.caps.max(axis=0) - arrays.pinned + 1
        steps = mixed_radix_weights(self.widths)
        self.fits = steps is not None
        self.radix = np.zeros(len(arrays.layout_of_column), dtype=np.int64) if steps is None else steps
        first = arrays.pinned[None].astype(np.int64)
        costs = np.full((len(self.slots), 1), np.inf)
        for slot in self.slots:
            if arrays.keeps_limits(slot, first)[0]:
                costs[slot] = arrays.slot_costs(slot, first)
        self.states = [first]
        self.keys = [np.zeros(1, dtype=np.int64)]
        self.costs = [costs]
        self.below = [np.full((len(self.radix), 1), -1)]

    def can_grow(self) -> bool:
        """Whether the last level has fleet states to build on."""
        return len(self.keys[-1]) > 0 and len(self.radix) > 0

    def add_level(self) -> bool:
        """Add the fleet states with one GPU more; return whether the number of states is within the limit."""
        if not self.fits:
            return False
        self._lower_restart_cost()
        parents = self.states[-1]
        keys = self.keys[-1]
        costs = self.costs[-1]

        # Children: one GPU more in one column.
        has_room = parents < self.caps.max(axis=0)
        children = np.unique(np.concatenate([keys[has_room[:, i]] + step for i, step in enumerate(self.radix)]))
        states = children[:, None] // self.radix % self.widths + self.arrays.pinned
        has_layout = states > self.arrays.pinned

        # Only children whose lower states are all listed can be undominated: the list is closed downwards.
        rows_below = np.full((len(self.radix), len(children)), -1)
        is_closed = np.ones(len(children), dtype=bool)
        for layout, step in enumerate(self.radix.tolist()):
            lower_keys = children[has_layout[:, layout]] - step
            position = np.searchsorted(keys, lower_keys).clip(max=len(keys) - 1)
            has_lower = keys[position] == lower_keys
            rows_below[layout, has_layout[:, layout]] = np.where(has_lower, position, -1)
            is_closed[np.flatnonzero(has_layout[:, layout])[~has_lower]] = False
        states = states[is_closed]
        rows_below = rows_below[:, is_closed]
        children = children[is_closed]

        # In each interval, price those whose lower states all remain in it.
        state_costs = np.full((len(self.slots), len(children)), np.inf)
        is_open_below = np.ones(state_costs.shape, dtype=bool)
        for lower_rows in rows_below:
            has_lower = lower_rows >= 0
            is_open_below[:, has_lower] &= np.isfinite(costs[:, lower_rows[has_lower]])
        n_states = sum(map(len, self.keys))
        is_kept = np.zeros(len(children), dtype=bool)
        for slot in self.busiest_first:
            candidates = np.flatnonzero(is_open_below[slot])
            self.tried += candidates.size * len(self.radix)
            lower_rows = rows_below[:, candidates]
            state_costs[slot, candidates] = self._price_states(slot, states[candidates], lower_rows, costs[slot])
            is_kept |= np.isfinite(state_costs[slot])
            if n_states + np.count_nonzero(is_kept) > self.max_states:
                return False

        level_start = sum(map(len, self.keys[:-1]))
        self.states.append(states[is_kept])
        self.keys.append(children[is_kept])
        self.costs.append(state_costs[:, is_kept])
        self.below.append(np.where(rows_below >= 0, rows_below + level_start, -1)[:, is_kept])
        return True

    def build_lattice(self) -> StateLattice | None:
        """Join all levels to one lattice; None if some interval has no possible fleet state."""
        ends = np.cumsum([0, *map(len, self.keys)]).tolist()
        slot_states, costs = [], []
        for slot in self.slots:
            rows = [level[slot] for level in self.costs]
            finite_rows = [np.flatnonzero(np.isfinite(row)) for row in rows]
            state_rows = [finite + first for finite, first in zip(finite_rows, ends[:-1], strict=True)]
            slot_states.append(np.concatenate(state_rows))
            costs.append(np.concatenate([row[finite] for row, finite in zip(rows, finite_rows, strict=True)]))
        if not all(map(len, slot_states)):
            return None
        levels = [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]
        below = np.concatenate(self.below, axis=1)
        return StateLattice(np.concatenate(self.states), levels, below, slot_states, costs)

    def _price_states(self, slot: int, states: Counts, rows_below: Counts, before: Floats) -> Floats:
        """Return the cost of an interval in each fleet state [GPU h]; infinite where it is excluded as dominated.

        All states with one GPU less of some layout must be in the lattice. States beyond a limit are excluded too.

        Parameters
        ----------
        slot : int
            Position of the interval.
        states : ndarray of int, shape (n, n_columns)
            Fleet states: GPUs with each layout.
        rows_below : ndarray of int, shape (n_columns, n)
            Row, on the level before, of the state with one GPU less in each column; -1: none.
        before : ndarray of float
            Costs of the interval in the states of the level before, with one GPU less. [GPU h]
        """
        costs = np.full(len(states), np.inf)
        is_allowed = np.ones(len(states), dtype=bool)
        for count, cap in zip(states.T, self.caps[slot].tolist(), strict=True):
            is_allowed &= count <= cap
        is_allowed &= (states @ self.weights < self.enough[slot]) & self.arrays.keeps_limits(slot, states)
        allowed_rows = np.flatnonzero(is_allowed)
        slot_costs = self.arrays.slot_costs(slot, states[allowed_rows])
        tie = _COST_TIE_FRACTION * np.maximum(1.0, slot_costs)
        is_needed = np.ones(len(allowed_rows), dtype=bool)
        for lower_rows, price in zip(rows_below[:, allowed_rows], self.prices.tolist(), strict=True):
            is_needed &= (lower_rows < 0) | (slot_costs < before[lower_rows] + price - tie)
        costs[allowed_rows[is_needed]] = slot_costs[is_needed]
        return costs

    def _lower_restart_cost(self) -> None:
        """Lower the cost from which a restart in a smaller, cheap fleet state is cheaper than a state, by interval.

        One GPU, the one that saves most, is added to the cheap state of each interval, which has fewer GPUs than the
        states of the next level.
        """
        for slot in list(self.descending):
            state = self.cheap[slot]
            neighbours = np.concatenate([state[None], state + np.eye(len(state), dtype=np.int64)])
            neighbours = neighbours[self.arrays.keeps_limits(slot, neighbours)]
            if not len(neighbours):
                self.descending.remove(slot)
                continue
            costs = self.arrays.slot_costs(slot, neighbours)
            self.enough[slot] = min(self.enough[slot], float(costs[0] + self.prices @ state))
            if not costs.argmin():
                self.descending.remove(slot)
            self.cheap[slot] = neighbours[costs.argmin()]


def _max_useful_gpus(arrays: PlanArrays) -> Counts:
    """Return the most GPUs with each layout that an optimal plan may need, shape (n_slots, n_columns)."""
    max_useful = arrays.max_useful_gpus
    max_later, max_so_far = np.maximum.accumulate(max_useful[::-1])[::-1], np.maximum.accumulate(max_useful)
    if arrays.initial is not None:
        max_so_far = np.maximum(max_so_far, arrays.initial)
        max_later = np.minimum(max_later, max_so_far)
    has_cost_to_add, has_cost_to_remove = arrays.transitions.costs_by_column > 0
    caps: Counts = np.where(
        has_cost_to_remove,
        np.where(has_cost_to_add, max_so_far[-1], max_so_far),
        np.where(has_cost_to_add, max_later, max_useful),
    )
    return np.maximum(caps, arrays.pinned)
