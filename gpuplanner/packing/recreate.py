"""Compiled: tear a few items out and seat them where they cost least, again and again.

The cost of a seat is what it adds: a bin that was not in use, changes from empty to used, and time on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuplanner.jit import entry, part
from gpuplanner.packing.bins import Bins, Items, draw, empty_bins, free_way, items_of, put, take
from gpuplanner.packing.grid import Grid
from gpuplanner.packing.problem import Integers

_MOST_TORN = 24
_TOLERANCE = 1e-9
_NEVER = 1e300


class CostTerms(NamedTuple):
    """What a packing costs."""

    bin_cost: float
    fire_up_cost: float
    busy_cost: float
    lengths: Any
    """Shape (n_moments,), float64: time from each moment to the next."""
    empty: int
    """Word of an empty bin."""


class Recreation:
    """A packing that gets cheaper for as long as there is patience.

    Parameters
    ----------
    grid : Grid
        The items over all instants at which one starts or ends.
    bin_of, way_of : ndarray of int, shape (n_items,)
        A packing to begin with.
    terms : CostTerms
        Costs.
    seed : int
        Seed of the search.

    Examples
    --------
    >>> from gpuplanner.packing.grid import as_grid
    >>> from gpuplanner.packing.problem import PackingProblem
    >>> problem = PackingProblem([0, 4, 2], [2, 6, 4], [50, 50, 50], 100)
    >>> grid = as_grid(problem, np.array([0, 2, 4, 6]))
    >>> terms = CostTerms(1.0, 1.0, 0.0, np.array([2.0, 2.0, 2.0, 0.0]), grid.bias)
    >>> attempt = Recreation(grid, np.array([0, 0, 1]), np.arange(3), terms, seed=0)
    >>> attempt.run(10_000) > 0, attempt.saved  # one bin and two fire-ups less
    (True, 3.0)
    """

    def __init__(
        self, grid: Grid, bin_of: Integers, way_of: Integers, terms: CostTerms, *, seed: int
    ) -> None:
        self._items, self._terms = items_of(grid), terms
        # One spare bin, in case that opening one is cheaper than what it avoids.
        self.bins = empty_bins(grid, int(bin_of.max()) + 2)
        _seat(self._items, self.bins, bin_of, way_of)
        self._random = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
        self._torn = np.zeros((3, _MOST_TORN), dtype=np.int64)
        self.saved = 0.0

    def run(self, work: int) -> int:
        """Go on until about `work` moments have been looked at; returns how many were."""
        saved, spent = _recreate(self._items, self.bins, self._terms, self._torn, self._random, work)
        self.saved += saved
        return int(spent)


@entry
def _seat(items: Items, bins: Bins, bin_of: Integers, way_of: Integers) -> None:
    for item in range(len(bin_of)):
        put(items, bins, item, bin_of[item], way_of[item])


@entry
def _recreate(
    items: Items,
    bins: Bins,
    terms: CostTerms,
    torn: Integers,
    random: Any,  # noqa: ANN401
    limit: int,
) -> tuple[float, int]:
    total, work = 0.0, 0
    while work < limit:
        count = _tear(items, bins, torn, random)
        work += count * (len(bins.head) + 1)
        saved = 0.0
        for index in range(count):
            item = torn[0, index]
            torn[1, index], torn[2, index] = bins.bin_of[item], bins.way_of[item]
            take(items, bins, item)
            saved += _added(items, bins, terms, torn[1, index], item)
        for index in range(count - 1, 0, -1):
            other = draw(random, index + 1)
            for row in range(3):
                torn[row, index], torn[row, other] = torn[row, other], torn[row, index]
        seated = 0
        while seated < count:
            item = torn[0, seated]
            least, found, found_way = _NEVER, -1, -1
            start = draw(random, len(bins.head))
            for turn in range(len(bins.head)):
                chosen = (start + turn) % len(bins.head)
                way = free_way(items, bins, chosen, item)
                if way >= 0:
                    cost = _added(items, bins, terms, chosen, item)
                    work += items.high[item] - items.low[item]
                    if cost < least:
                        least, found, found_way = cost, chosen, way
            if found < 0:
                break
            put(items, bins, item, found, found_way)
            saved -= least
            seated += 1
        if seated == count and saved > -_TOLERANCE:
            total += saved
            continue
        for index in range(seated):
            take(items, bins, torn[0, index])
        for index in range(count):
            put(items, bins, torn[0, index], torn[1, index], torn[2, index])
    return total, work


@part
def _tear(items: Items, bins: Bins, torn: Integers, random: Any) -> int:  # noqa: ANN401
    """Choose members of two bins near a random item, into ``torn[0]``; returns how many."""
    centre = draw(random, len(items.low))
    wanted, count = 2 + draw(random, _MOST_TORN - 1), 0
    reach = 1 + draw(random, 3)
    life = items.high[centre] - items.low[centre]
    for source in range(2):
        chosen = bins.bin_of[centre] if source == 0 else draw(random, len(bins.head))
        if source == 1 and chosen == bins.bin_of[centre]:
            break
        member = bins.head[chosen]
        while member >= 0 and count < wanted:
            near = (
                items.low[member] <= items.high[centre] + reach * life
                and items.low[centre] - reach * life <= items.high[member]
            )
            if near:
                torn[0, count] = member
                count += 1
            member = bins.after[member]
    return count


@part
def _added(items: Items, bins: Bins, terms: CostTerms, chosen: int, item: int) -> float:
    """What an item adds to the cost of a bin that it is not in."""
    low, high, empty = items.low[item], items.high[item], terms.empty
    was_on = low > 0 and bins.load[chosen, low - 1] != empty
    fire_ups = 0 if was_on else 1
    busy = 0.0
    for t in range(low, high):
        on = bins.load[chosen, t] != empty
        if not on:
            busy += terms.lengths[t]
        elif not was_on:
            fire_ups -= 1
        was_on = on
    if high < len(terms.lengths) and not was_on and bins.load[chosen, high] != empty:
        fire_ups -= 1
    opened = terms.bin_cost if bins.head[chosen] < 0 else 0.0
    return opened + terms.fire_up_cost * fire_ups + terms.busy_cost * busy
