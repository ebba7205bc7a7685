"""Compiled heuristics of temporal bin packing.

An item without a place is tried in every bin. Where it fits nowhere it takes the place of others that were
seldom homeless so far, and these look for places in turn. Between the steps, members change bins at random, which
keeps the search from going in circles.

References
----------
.. [1] Y. Nagata, O. Braysy, "A powerful route minimization heuristic for the vehicle routing problem with time
   windows", Operations Research Letters 37, 2009, doi:10.1016/j.orl.2009.04.006.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpuplanner.core.execution import compiled_entry, part
from gpuplanner.planner.packing_problem import AnyProblem, Grid, Integers, MigPackingProblem

_BLOCK = 32  # moments tested at once: enough for vector instructions, few enough to stop early


class Items(NamedTuple):
    """Items of a grid, as compiled functions take them; see :class:`gpuplanner.planner.packing_problem.Grid`."""

    low: Any
    high: Any
    first: Any
    words: Any
    guard: int
    fill: int


class Bins(NamedTuple):
    """Bins and who sits in them; the members of a bin are a doubly linked list."""

    load: Any
    """Shape (n_bins, n_moments), int64: the words of a bin at each moment."""
    head: Any
    """Shape (n_bins,), int64: the first member of each bin, or -1."""
    after: Any
    before: Any
    """Shape (n_items,), int64: neighbours in the list of members, or -1."""
    bin_of: Any
    way_of: Any
    """Shape (n_items,), int64: bin and way of each item, or -1."""


def items_of(grid: Grid) -> Items:
    """The items of a grid."""
    return Items(grid.low, grid.high, grid.first, grid.words, grid.guard, grid.fill)


def empty_bins(grid: Grid, n_bins: int) -> Bins:
    """Bins without members."""
    lists = (np.full(grid.n_items, -1, dtype=np.int64) for _ in range(4))
    load = np.full((n_bins, grid.n_moments), grid.bias, dtype=np.int64)
    return Bins(load, np.full(n_bins, -1, dtype=np.int64), *lists)


@part
def fits(items: Items, bins: Bins, chosen: int, low: int, high: int, word: int) -> bool:
    """Whether a bin takes a word at every moment from `low` to `high` - 1."""
    moment = low
    while moment < high:
        stop = min(moment + _BLOCK, high)
        seen = np.int64(0)
        for t in range(moment, stop):
            seen |= bins.load[chosen, t] + word
        if seen & items.guard:
            return False
        moment = stop
    return True


@part
def free_way(items: Items, bins: Bins, chosen: int, item: int) -> int:
    """First way in which an item fits into a bin, or -1."""
    for way in range(items.first[item], items.first[item + 1]):
        if fits(items, bins, chosen, items.low[item], items.high[item], items.words[way]):
            return way
    return -1


@part
def put(items: Items, bins: Bins, item: int, chosen: int, way: int) -> None:
    """Seat an item."""
    for t in range(items.low[item], items.high[item]):
        bins.load[chosen, t] += items.words[way]
    bins.bin_of[item], bins.way_of[item] = chosen, way
    front = bins.head[chosen]
    bins.before[item], bins.after[item] = -1, front
    if front >= 0:
        bins.before[front] = item
    bins.head[chosen] = item


@part
def take(items: Items, bins: Bins, item: int) -> None:
    """Unseat an item."""
    chosen, word = bins.bin_of[item], items.words[bins.way_of[item]]
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


@part
def draw(state: Any, below: int) -> int:  # noqa: ANN401 - an array; numba knows its type
    """Whole number from 0 to `below` - 1 by Marsaglia's xorshift; `state` is one uint64 that is not 0."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    drawn: Any = np.int64((x >> np.uint64(33)) % np.uint64(below))
    return drawn  # type: ignore[no-any-return]


_SHUFFLES = 10  # random changes between two steps
_BINS_TRIED = 64  # bins in which an ejection is looked for
_MOST_EJECTED = 32
_NEVER = 1e300

_HOMELESS, _STEP, _WORK = 0, 1, 2


class _Memory(NamedTuple):
    """What the search remembers between two slices of work."""

    pool: Any  # (n_items,) int64: items without a place, the last one is tried next
    count: Any  # (3,) int64: items in the pool, steps made, moments looked at
    penalty: Any  # (n_items,) float64: 1 + how often an item found no place
    banned: Any  # (n_items,) int64: step before which an item is not ejected again
    room: Any  # (n_moments,) int64: scratch
    out: Any  # (2, _MOST_EJECTED) int64: members to eject, found now and best so far
    random: Any  # (1,) uint64


class Elimination:
    """An attempt to do with one bin less; it can be continued for as long as there is patience.

    - ``grid``: The items.
    - ``bin_of``, ``way_of``, shape (n_items,): A packing; bins are numbered from 0.
    - ``seed``: Seed of the search.

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import as_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> grid = as_grid(PackingProblem([0] * 4, [9] * 4, [50, 30, 50, 70], 100))
    >>> attempt = Elimination(grid, np.array([0, 0, 1, 2]), np.arange(4), seed=0)
    >>> attempt.run(1000) > 0, attempt.done, sorted(attempt.bins.bin_of.tolist())
    (True, True, [0, 0, 1, 1])
    """

    def __init__(self, grid: Grid, bin_of: Integers, way_of: Integers, *, seed: int) -> None:
        n_bins = int(bin_of.max()) + 1
        area = np.bincount(bin_of, weights=grid.lives * (grid.words[way_of] & grid.fill), minlength=n_bins)
        gone = int(np.argmin(area))
        self._items = items_of(grid)
        self.bins = empty_bins(grid, n_bins - 1)
        stays = np.flatnonzero(bin_of != gone)
        seat_items(self._items, self.bins, stays, bin_of[stays] - (bin_of[stays] > gone), way_of[stays])
        homeless = np.flatnonzero(bin_of == gone)
        pool = np.zeros(grid.n_items, dtype=np.int64)
        pool[: len(homeless)] = homeless
        self._memory = _Memory(
            pool=pool,
            count=np.array([len(homeless), 0, 0], dtype=np.int64),
            penalty=np.ones(grid.n_items),
            banned=np.zeros(grid.n_items, dtype=np.int64),
            room=np.zeros(grid.n_moments, dtype=np.int64),
            out=np.zeros((2, _MOST_EJECTED), dtype=np.int64),
            random=np.random.SeedSequence([seed, n_bins]).generate_state(1, np.uint64) | np.uint64(1),
        )

    @property
    def done(self) -> bool:
        """Whether every item has a place."""
        return bool(self._memory.count[_HOMELESS] == 0)

    def run(self, work: int) -> int:
        """Go on until done, or until about `work` moments have been looked at; returns how many were."""
        before = int(self._memory.count[_WORK])
        if len(self.bins.head):
            _rehouse(self._items, self.bins, self._memory, before + work)
            return int(self._memory.count[_WORK]) - before
        return work


@compiled_entry
def seat_items(items: Items, bins: Bins, who: Integers, where: Integers, how: Integers) -> None:
    """Seat items in bins, each in one of its ways."""
    for index in range(len(who)):
        put(items, bins, who[index], where[index], how[index])


@compiled_entry
def _rehouse(items: Items, bins: Bins, memory: _Memory, limit: int) -> None:
    n_bins, count = len(bins.head), memory.count
    while count[_HOMELESS] > 0 and count[_WORK] < limit:
        count[_STEP] += 1
        count[_HOMELESS] -= 1
        item = memory.pool[count[_HOMELESS]]
        if not _house(items, bins, memory, item):
            memory.penalty[item] += 1.0
            least, found, found_way, n_out = _NEVER, -1, -1, 0
            start = draw(memory.random, n_bins)
            for turn in range(min(n_bins, _BINS_TRIED)):
                chosen = (start + turn) % n_bins
                for way in range(items.first[item], items.first[item + 1]):
                    cost, size = _cheapest(items, bins, memory, item, chosen, items.words[way], least)
                    if cost < least:
                        least, found, found_way, n_out = cost, chosen, way, size
                        memory.out[1, :size] = memory.out[0, :size]
            if found < 0:
                # Everybody in its way may not be ejected yet: let the others go first.
                for index in range(count[_HOMELESS], 0, -1):
                    memory.pool[index] = memory.pool[index - 1]
                memory.pool[0] = item
                count[_HOMELESS] += 1
            else:
                for index in range(n_out):
                    take(items, bins, memory.out[1, index])
                put(items, bins, item, found, found_way)
                memory.banned[item] = count[_STEP] + 1 + draw(memory.random, 4)
                for index in range(n_out):
                    member = memory.out[1, index]
                    if not _house(items, bins, memory, member):
                        memory.pool[count[_HOMELESS]] = member
                        count[_HOMELESS] += 1
        for _ in range(_SHUFFLES):
            _shuffle(items, bins, memory)


@part
def _house(items: Items, bins: Bins, memory: _Memory, item: int) -> bool:
    """Seat an item in the first bin with room, from a random one on."""
    n_bins = len(bins.head)
    start = draw(memory.random, n_bins)
    memory.count[_WORK] += n_bins
    for turn in range(n_bins):
        chosen = (start + turn) % n_bins
        way = free_way(items, bins, chosen, item)
        if way >= 0:
            put(items, bins, item, chosen, way)
            return True
    return False


@part
def _cheapest(
    items: Items, bins: Bins, memory: _Memory, item: int, chosen: int, word: int, limit: float
) -> tuple[float, int]:
    """Members of a bin to eject for an item, greedily: their penalties and their number, in ``out[0]``."""
    low, high, guard = items.low[item], items.high[item], items.guard
    room, out, now = memory.room, memory.out[0], memory.count[_STEP]
    for t in range(low, high):
        room[t] = bins.load[chosen, t] + word
    memory.count[_WORK] += high - low
    size, cost, moment = 0, 0.0, low
    while moment < high:
        if not room[moment] & guard:
            moment += 1
            continue
        victim, least = -1, _NEVER
        member = bins.head[chosen]
        while member >= 0:
            memory.count[_WORK] += 1
            if (
                items.low[member] <= moment < items.high[member]
                and memory.banned[member] <= now
                and cost + memory.penalty[member] < limit
            ):
                listed = False
                for index in range(size):
                    listed |= out[index] == member
                if not listed:
                    freed, taken = 0, items.words[bins.way_of[member]]
                    for t in range(moment, min(high, items.high[member])):
                        freed += room[t] & guard != 0 and (room[t] - taken) & guard == 0
                    memory.count[_WORK] += min(high, items.high[member]) - moment
                    # Cheap for the moments that it frees; the noise breaks ties differently each time.
                    score = memory.penalty[member] / (freed + 0.1) * (1 + draw(memory.random, 64) / 256)
                    if score < least:
                        victim, least = member, score
            member = bins.after[member]
        if victim < 0 or size == _MOST_EJECTED:
            return _NEVER, 0
        out[size] = victim
        size += 1
        cost += memory.penalty[victim]
        taken = items.words[bins.way_of[victim]]
        for t in range(max(low, items.low[victim]), min(high, items.high[victim])):
            room[t] -= taken
    return _spare(items, bins, memory, low, high, size, cost)


@part
def _spare(items: Items, bins: Bins, memory: _Memory, low: int, high: int, size: int, cost: float) -> tuple[float, int]:
    """Leave out of the ejection who turns out to be in nobody's way."""
    room, out = memory.room, memory.out[0]
    for index in range(size - 2, -1, -1):
        member = out[index]
        taken = items.words[bins.way_of[member]]
        first, last = max(low, items.low[member]), min(high, items.high[member])
        seen = np.int64(0)
        for t in range(first, last):
            seen |= room[t] + taken
        if seen & items.guard:
            continue
        for t in range(first, last):
            room[t] += taken
        cost -= memory.penalty[member]
        size -= 1
        for later in range(index, size):
            out[later] = out[later + 1]
    return cost, size


@part
def _shuffle(items: Items, bins: Bins, memory: _Memory) -> None:
    """Move a random member to a random bin, or exchange it with one that it would meet there, if they fit."""
    item = draw(memory.random, len(items.low))
    chosen = draw(memory.random, len(bins.head))
    home = bins.bin_of[item]
    memory.count[_WORK] += 1
    if home < 0 or home == chosen:
        return
    way = free_way(items, bins, chosen, item)
    if way >= 0:
        take(items, bins, item)
        put(items, bins, item, chosen, way)
        return
    partner, met = -1, 0
    member = bins.head[chosen]
    while member >= 0:
        if items.low[member] < items.high[item] and items.low[item] < items.high[member]:
            met += 1
            if draw(memory.random, met) == 0:
                partner = member
        member = bins.after[member]
    if partner < 0:
        return
    item_way, partner_way = bins.way_of[item], bins.way_of[partner]
    take(items, bins, item)
    take(items, bins, partner)
    there = free_way(items, bins, chosen, item)
    here = free_way(items, bins, home, partner)
    if there >= 0 and here >= 0:
        put(items, bins, item, chosen, there)
        put(items, bins, partner, home, here)
    else:
        put(items, bins, item, home, item_way)
        put(items, bins, partner, chosen, partner_way)


RULES = ("first", "best")


def orders(problem: AnyProblem) -> Iterator[Integers]:
    """Orders of the items; none wins everywhere: on some sets size rules, on others time."""
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


def fit(grid: Grid, order: Integers, *, rule: str, most: int) -> Bins | None:
    """Seat items in an order, opening a bin when none has room.

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import as_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> problem = PackingProblem([0, 0, 0], [9, 9, 9], [60, 60, 40], 100)
    >>> fit(as_grid(problem), np.arange(3), rule="first", most=2).bin_of.tolist()
    [0, 1, 0]
    >>> fit(as_grid(problem), np.arange(3), rule="first", most=1) is None
    True
    """
    bins = empty_bins(grid, most)
    used = _fit(items_of(grid), bins, order, rule == "best")
    return None if used < 0 else bins


@compiled_entry
def _fit(items: Items, bins: Bins, order: Integers, best: bool) -> int:
    used = 0
    for item in order:
        low, high = items.low[item], items.high[item]
        found, found_way, found_fill = -1, -1, np.int64(-1)
        for chosen in range(used):
            for way in range(items.first[item], items.first[item + 1]):
                if not fits(items, bins, chosen, low, high, items.words[way]):
                    continue
                fill = np.int64(0)
                if best:
                    for t in range(low, high):
                        fill += bins.load[chosen, t] & items.fill
                if fill > found_fill:
                    found, found_way, found_fill = chosen, way, fill
                break
            if found >= 0 and not best:
                break
        if found < 0:
            if used == len(bins.head):
                return -1
            found, found_way = used, items.first[item]
            used += 1
        put(items, bins, item, found, found_way)
    return used
