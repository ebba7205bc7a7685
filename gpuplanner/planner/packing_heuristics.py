"""Compiled heuristics of temporal bin packing: greedy orders, and elimination of bins by ejection.

An item without a bin is tried in every bin. If it fits nowhere it takes the place of others that were seldom without a
bin so far, and these are placed in turn (ejection search [1]_). Between the steps, items change bins at random, which
keeps the search from cycling.

References
----------
.. [1] Y. Nagata, O. Braysy, "A powerful route minimization heuristic for the vehicle routing problem with time
   windows", Operations Research Letters 37, 2009, doi:10.1016/j.orl.2009.04.006.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper
from gpuplanner.planner.packing_problem import AnyPackingProblem, Integers, MigPackingProblem, PackingGrid

_MOMENTS_PER_FIT_TEST_STEP = 32
"""Instants tested at once for room in a bin: enough for vector instructions, few enough to stop early."""


class ItemArrays(NamedTuple):
    """Items of a grid as compiled functions take them; see :class:`gpuplanner.planner.packing_problem.PackingGrid`."""

    low: Any
    high: Any
    first: Any
    words: Any
    guard: int
    fill: int


class Bins(NamedTuple):
    """Loads and items of bins; the items of a bin are a doubly linked list."""

    load: Any
    """Shape (n_bins, n_moments), int64: load of each bin at each moment, packed into one word of bit fields."""
    head: Any
    """Shape (n_bins,), int64: the first item in the list of each bin, or -1."""
    after: Any
    before: Any
    """Shape (n_items,), int64: next and previous item in the list of the same bin, or -1."""
    bin_of: Any
    placement_of: Any
    """Shape (n_items,), int64: bin and placement of each item, or -1."""


def items_of_grid(grid: PackingGrid) -> ItemArrays:
    """Convert the items of a packing grid to arrays for compiled functions."""
    return ItemArrays(grid.low, grid.high, grid.first, grid.words, grid.guard, grid.fill)


def empty_bins(grid: PackingGrid, n_bins: int) -> Bins:
    """Create bins without items."""
    lists = (np.full(grid.n_items, -1, dtype=np.int64) for _ in range(4))
    load = np.full((n_bins, grid.n_moments), grid.bias, dtype=np.int64)
    return Bins(load, np.full(n_bins, -1, dtype=np.int64), *lists)


@compile_helper
def fits_in_bin(items: ItemArrays, bins: Bins, chosen: int, low: int, high: int, word: int) -> bool:
    """Whether a bin has room for an item's load at every moment from `low` to `high` - 1.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    chosen : int
        Index of the bin.
    low : int
        First moment, by its number in the packing grid.
    high : int
        First moment after the last one.
    word : int
        Load of the placement, packed into one word.
    """
    moment = low
    while moment < high:
        stop = min(moment + _MOMENTS_PER_FIT_TEST_STEP, high)
        loads = np.int64(0)
        for t in range(moment, stop):
            loads |= bins.load[chosen, t] + word
        if loads & items.guard:
            return False
        moment = stop
    return True


@compile_helper
def find_placement(items: ItemArrays, bins: Bins, chosen: int, item: int) -> int:
    """Return the number of the first placement in which an item fits into a bin, or -1.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    chosen : int
        Index of the bin.
    item : int
        Index of the item.
    """
    for placement in range(items.first[item], items.first[item + 1]):
        if fits_in_bin(items, bins, chosen, items.low[item], items.high[item], items.words[placement]):
            return placement
    return -1


@compile_helper
def add_item(items: ItemArrays, bins: Bins, item: int, chosen: int, placement: int) -> None:
    """Put an item into a bin.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    item : int
        Index of the item.
    chosen : int
        Index of the bin.
    placement : int
        Placement of the item.
    """
    for t in range(items.low[item], items.high[item]):
        bins.load[chosen, t] += items.words[placement]
    bins.bin_of[item], bins.placement_of[item] = chosen, placement
    front = bins.head[chosen]
    bins.before[item], bins.after[item] = -1, front
    if front >= 0:
        bins.before[front] = item
    bins.head[chosen] = item


@compile_helper
def remove_item(items: ItemArrays, bins: Bins, item: int) -> None:
    """Take an item out of its bin."""
    chosen, word = bins.bin_of[item], items.words[bins.placement_of[item]]
    for t in range(items.low[item], items.high[item]):
        bins.load[chosen, t] -= word
    left, right = bins.before[item], bins.after[item]
    if left >= 0:
        bins.after[left] = right
    else:
        bins.head[chosen] = right
    if right >= 0:
        bins.before[right] = left
    bins.bin_of[item] = -1


@compile_helper
def draw_integer(state: Any, below: int) -> int:  # noqa: ANN401 - an array; numba knows its type
    """Draw a whole number from 0 to `below` - 1 by Marsaglia's xorshift; its `state` is one uint64, not 0; changed."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    drawn: Any = np.int64((x >> np.uint64(33)) % np.uint64(below))
    return drawn  # type: ignore[no-any-return]


_MOVES_PER_STEP = 10
"""Random moves or swaps of items between two steps of the ejection search."""
_MAX_BINS_TRIED_PER_ITEM = 64
"""Most bins in which an ejection is tried for one item without a bin."""
_MAX_EJECTED_ITEMS = 32
"""Most items that one ejection removes from a bin."""
_INFINITE_COST = 1e300
"""Cost of an impossible placement; finite, for compiled code."""

_N_UNPLACED, _N_STEPS, _N_MOMENTS = 0, 1, 2
"""Positions in ``count`` of the search state: items without a bin, steps made, instants tested for room."""


class _EjectionState(NamedTuple):
    """State of the ejection search: items without a bin, penalties, tabu steps, scratch arrays and random number."""

    pool: Any  # (n_items,) int64: items without a bin, the last one is tried next
    count: Any  # (3,) int64: items in the pool, steps made, moments tested
    penalty: Any  # (n_items,) float64: 1 + how often an item found no bin
    banned: Any  # (n_items,) int64: step before which an item is not ejected again
    room: Any  # (n_moments,) int64: scratch
    out: Any  # (2, _MAX_EJECTED_ITEMS) int64: items to eject, of this bin and of the best one
    random: Any  # (1,) uint64


class BinElimination:
    """Search for a packing with one bin less; it can be continued at will.

    - ``grid``: The items.
    - ``bin_of``, ``placement_of``, shape (n_items,): Bin, numbered from 0, and placement of each item.
    - ``seed``: Seed of the search.

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import build_packing_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> grid = build_packing_grid(PackingProblem([0] * 4, [9] * 4, [50, 30, 50, 70], 100))
    >>> attempt = BinElimination(grid, np.array([0, 0, 1, 2]), np.arange(4), seed=0)
    >>> attempt.run_search(1000) > 0, attempt.is_done, sorted(attempt.bins.bin_of.tolist())
    (True, True, [0, 0, 1, 1])
    """

    def __init__(self, grid: PackingGrid, bin_of: Integers, placement_of: Integers, *, seed: int) -> None:
        n_bins = int(bin_of.max()) + 1
        area = np.bincount(bin_of, weights=grid.durations * (grid.words[placement_of] & grid.fill), minlength=n_bins)
        removed_bin = int(np.argmin(area))
        self._items = items_of_grid(grid)
        self.bins = empty_bins(grid, n_bins - 1)
        kept_items = np.flatnonzero(bin_of != removed_bin)
        new_bins = bin_of[kept_items] - (bin_of[kept_items] > removed_bin)
        place_items(self._items, self.bins, kept_items, new_bins, placement_of[kept_items])
        unplaced = np.flatnonzero(bin_of == removed_bin)
        pool = np.zeros(grid.n_items, dtype=np.int64)
        pool[: len(unplaced)] = unplaced
        self._memory = _EjectionState(
            pool=pool,
            count=np.array([len(unplaced), 0, 0], dtype=np.int64),
            penalty=np.ones(grid.n_items),
            banned=np.zeros(grid.n_items, dtype=np.int64),
            room=np.zeros(grid.n_moments, dtype=np.int64),
            out=np.zeros((2, _MAX_EJECTED_ITEMS), dtype=np.int64),
            random=np.random.SeedSequence([seed, n_bins]).generate_state(1, np.uint64) | np.uint64(1),
        )

    @property
    def is_done(self) -> bool:
        """Whether every item has a bin."""
        return bool(self._memory.count[_N_UNPLACED] == 0)

    def run_search(self, work: int) -> int:
        """Search until done, or until a bin was tested for room at a moment about `work` times; return how often."""
        before = int(self._memory.count[_N_MOMENTS])
        if len(self.bins.head):
            _place_unplaced_items(self._items, self.bins, self._memory, before + work)
            return int(self._memory.count[_N_MOMENTS]) - before
        return work


@compile_entry
def place_items(items: ItemArrays, bins: Bins, item_ids: Integers, bin_ids: Integers, placements: Integers) -> None:
    """Put items into bins, each in a given placement.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    item_ids : ndarray of int
        Items.
    bin_ids : ndarray of int
        Bin of each.
    placements : ndarray of int
        Placement of each.
    """
    for index in range(len(item_ids)):
        add_item(items, bins, item_ids[index], bin_ids[index], placements[index])


@compile_entry
def _place_unplaced_items(items: ItemArrays, bins: Bins, search_state: _EjectionState, limit: int) -> None:
    """Place items without a bin, with ejections, until all are placed or the work limit is reached.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    search_state : _EjectionState
        State of the search.
    limit : int
        Most room tests of a bin at one instant, over the whole search.
    """
    n_bins, count = len(bins.head), search_state.count
    while count[_N_UNPLACED] > 0 and count[_N_MOMENTS] < limit:
        count[_N_STEPS] += 1
        count[_N_UNPLACED] -= 1
        item = search_state.pool[count[_N_UNPLACED]]
        if not _place_in_any_bin(items, bins, search_state, item):
            search_state.penalty[item] += 1.0
            least, best_bin, best_placement, n_ejected = _INFINITE_COST, -1, -1, 0
            start = draw_integer(search_state.random, n_bins)
            for turn in range(min(n_bins, _MAX_BINS_TRIED_PER_ITEM)):
                chosen = (start + turn) % n_bins
                for placement in range(items.first[item], items.first[item + 1]):
                    cost, size = _find_cheapest_ejection(
                        items, bins, search_state, item, chosen, items.words[placement], least
                    )
                    if cost < least:
                        least, best_bin, best_placement, n_ejected = cost, chosen, placement, size
                        search_state.out[1, :size] = search_state.out[0, :size]
            if best_bin < 0:
                # All items in the way are tabu: try the other unplaced items first.
                for index in range(count[_N_UNPLACED], 0, -1):
                    search_state.pool[index] = search_state.pool[index - 1]
                search_state.pool[0] = item
                count[_N_UNPLACED] += 1
            else:
                for index in range(n_ejected):
                    remove_item(items, bins, search_state.out[1, index])
                add_item(items, bins, item, best_bin, best_placement)
                search_state.banned[item] = count[_N_STEPS] + 1 + draw_integer(search_state.random, 4)
                for index in range(n_ejected):
                    member = search_state.out[1, index]
                    if not _place_in_any_bin(items, bins, search_state, member):
                        search_state.pool[count[_N_UNPLACED]] = member
                        count[_N_UNPLACED] += 1
        for _ in range(_MOVES_PER_STEP):
            _move_or_swap(items, bins, search_state)


@compile_helper
def _place_in_any_bin(items: ItemArrays, bins: Bins, search_state: _EjectionState, item: int) -> bool:
    """Put an item into the first bin with room, from a random one on.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    search_state : _EjectionState
        State of the search.
    item : int
        Index of the item.
    """
    n_bins = len(bins.head)
    start = draw_integer(search_state.random, n_bins)
    search_state.count[_N_MOMENTS] += n_bins
    for turn in range(n_bins):
        chosen = (start + turn) % n_bins
        placement = find_placement(items, bins, chosen, item)
        if placement >= 0:
            add_item(items, bins, item, chosen, placement)
            return True
    return False


@compile_helper
def _find_cheapest_ejection(
    items: ItemArrays, bins: Bins, search_state: _EjectionState, item: int, chosen: int, word: int, limit: float
) -> tuple[float, int]:
    """Choose items of a bin to eject for another item, greedily; return the sum of their penalties, and their number.

    The items are written to ``ejected``, row 0 of ``search_state.out``.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    search_state : _EjectionState
        State of the search.
    item : int
        Item to place.
    chosen : int
        Bin to place it in.
    word : int
        Load of its placement, packed into one word of bit fields.
    limit : float
        Sum of penalties from which the ejection is given up.
    """
    low, high, guard = items.low[item], items.high[item], items.guard
    scratch_load, ejected, step = search_state.room, search_state.out[0], search_state.count[_N_STEPS]
    for t in range(low, high):
        scratch_load[t] = bins.load[chosen, t] + word
    search_state.count[_N_MOMENTS] += high - low
    size, cost, moment = 0, 0.0, low
    while moment < high:
        if not scratch_load[moment] & guard:
            moment += 1
            continue
        victim, least = -1, _INFINITE_COST
        member = bins.head[chosen]
        while member >= 0:
            search_state.count[_N_MOMENTS] += 1
            if (
                items.low[member] <= moment < items.high[member]
                and search_state.banned[member] <= step
                and cost + search_state.penalty[member] < limit
            ):
                is_listed = False
                for index in range(size):
                    is_listed |= ejected[index] == member
                if not is_listed:
                    n_freed, item_word = 0, items.words[bins.placement_of[member]]
                    for t in range(moment, min(high, items.high[member])):
                        n_freed += scratch_load[t] & guard != 0 and (scratch_load[t] - item_word) & guard == 0
                    search_state.count[_N_MOMENTS] += min(high, items.high[member]) - moment
                    # Penalty for each moment that it frees; the noise breaks ties at random.
                    score = (
                        search_state.penalty[member]
                        / (n_freed + 0.1)
                        * (1 + draw_integer(search_state.random, 64) / 256)
                    )
                    if score < least:
                        victim, least = member, score
            member = bins.after[member]
        if victim < 0 or size == _MAX_EJECTED_ITEMS:
            return _INFINITE_COST, 0
        ejected[size] = victim
        size += 1
        cost += search_state.penalty[victim]
        item_word = items.words[bins.placement_of[victim]]
        for t in range(max(low, items.low[victim]), min(high, items.high[victim])):
            scratch_load[t] -= item_word
    return _drop_needless_ejections(items, bins, search_state, low, high, size, cost)


@compile_helper
def _drop_needless_ejections(
    items: ItemArrays, bins: Bins, search_state: _EjectionState, low: int, high: int, size: int, cost: float
) -> tuple[float, int]:
    """Remove from the items to eject those that can stay; return sum of penalties and number of the others.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    search_state : _EjectionState
        State of the search.
    low : int
        First moment, by its number in the packing grid.
    high : int
        First moment after the end.
    size : int
        Number of items to eject.
    cost : float
        Sum of their penalties.
    """
    scratch_load, ejected = search_state.room, search_state.out[0]
    for index in range(size - 2, -1, -1):
        member = ejected[index]
        item_word = items.words[bins.placement_of[member]]
        first, last = max(low, items.low[member]), min(high, items.high[member])
        loads = np.int64(0)
        for t in range(first, last):
            loads |= scratch_load[t] + item_word
        if loads & items.guard:
            continue
        for t in range(first, last):
            scratch_load[t] += item_word
        cost -= search_state.penalty[member]
        size -= 1
        for later in range(index, size):
            ejected[later] = ejected[later + 1]
    return cost, size


@compile_helper
def _move_or_swap(items: ItemArrays, bins: Bins, search_state: _EjectionState) -> None:
    """Move a random item to a random bin, or swap it with an item that it overlaps there, if they fit."""
    item = draw_integer(search_state.random, len(items.low))
    chosen = draw_integer(search_state.random, len(bins.head))
    current_bin = bins.bin_of[item]
    search_state.count[_N_MOMENTS] += 1
    if current_bin < 0 or current_bin == chosen:
        return
    placement = find_placement(items, bins, chosen, item)
    if placement >= 0:
        remove_item(items, bins, item)
        add_item(items, bins, item, chosen, placement)
        return
    partner, n_met = -1, 0
    member = bins.head[chosen]
    while member >= 0:
        if items.low[member] < items.high[item] and items.low[item] < items.high[member]:
            n_met += 1
            if draw_integer(search_state.random, n_met) == 0:
                partner = member
        member = bins.after[member]
    if partner < 0:
        return
    old_placement, old_partner_placement = bins.placement_of[item], bins.placement_of[partner]
    remove_item(items, bins, item)
    remove_item(items, bins, partner)
    new_placement = find_placement(items, bins, chosen, item)
    partner_placement = find_placement(items, bins, current_bin, partner)
    if new_placement >= 0 and partner_placement >= 0:
        add_item(items, bins, item, chosen, new_placement)
        add_item(items, bins, partner, current_bin, partner_placement)
    else:
        add_item(items, bins, item, current_bin, old_placement)
        add_item(items, bins, partner, chosen, old_partner_placement)


BIN_FIT_RULES = ("first", "best")
"""Rules by which :func:`pack_in_order` chooses a bin: the first with room, or the fullest with room."""


def list_item_orders(problem: AnyPackingProblem) -> Iterator[Integers]:
    """Yield orders of the items for greedy packing: by start, by size, and by size times life."""
    life = problem.ends - problem.starts
    if isinstance(problem, MigPackingProblem):
        slices = {profile.name: profile.memory_slices for profile in problem.gpu_model.profiles}
        size = np.array([slices.get(name, problem.gpu_model.memory_slices) for name in problem.profiles])
    else:
        size = problem.sizes
    yield np.argsort(problem.starts, kind="stable")
    yield np.lexsort((-size, problem.starts))
    yield np.argsort(-size, kind="stable")
    yield np.lexsort((problem.starts, -size))
    yield np.argsort(-size * life, kind="stable")
    yield np.lexsort((-size, -life))


def pack_in_order(grid: PackingGrid, order: Integers, *, rule: str, max_bins: int) -> Bins | None:
    """Put items into bins in an order, opening a bin when none has room; None if that needs more than `max_bins`.

    Parameters
    ----------
    grid : PackingGrid
        The items.
    order : ndarray of int, shape (n_items,)
        Items in the order of packing.
    rule : {"first", "best"}
        First bin with room, or the fullest one.
    max_bins : int
        Most bins.

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import build_packing_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> problem = PackingProblem([0, 0, 0], [9, 9, 9], [60, 60, 40], 100)
    >>> pack_in_order(build_packing_grid(problem), np.arange(3), rule="first", max_bins=2).bin_of.tolist()
    [0, 1, 0]
    >>> pack_in_order(build_packing_grid(problem), np.arange(3), rule="first", max_bins=1) is None
    True
    """
    bins = empty_bins(grid, max_bins)
    used = _pack_items_in_order(items_of_grid(grid), bins, order, rule == "best")
    return None if used < 0 else bins


@compile_entry
def _pack_items_in_order(items: ItemArrays, bins: Bins, order: Integers, use_best_fit: bool) -> int:
    """Pack items by first fit or best fit; return the bins used, or -1 if there are too few.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    order : ndarray of int, shape (n_items,)
        Items in order.
    use_best_fit : bool
        Best fit instead of first fit.
    """
    n_bins_used = 0
    for item in order:
        low, high = items.low[item], items.high[item]
        best_bin, best_placement, best_fill = -1, -1, np.int64(-1)
        for chosen in range(n_bins_used):
            for placement in range(items.first[item], items.first[item + 1]):
                if not fits_in_bin(items, bins, chosen, low, high, items.words[placement]):
                    continue
                fill = np.int64(0)
                if use_best_fit:
                    for t in range(low, high):
                        fill += bins.load[chosen, t] & items.fill
                if fill > best_fill:
                    best_bin, best_placement, best_fill = chosen, placement, fill
                break
            if best_bin >= 0 and not use_best_fit:
                break
        if best_bin < 0:
            if n_bins_used == len(bins.head):
                return -1
            best_bin, best_placement = n_bins_used, items.first[item]
            n_bins_used += 1
        add_item(items, bins, item, best_bin, best_placement)
    return n_bins_used
