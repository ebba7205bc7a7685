"""Compiled: loads of bins over moments, who sits in them, and what every method does with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuplanner.jit import part
from gpuplanner.packing.grid import Grid

_BLOCK = 32  # moments tested at once: enough for vector instructions, few enough to stop early


class Items(NamedTuple):
    """Items of a grid, as compiled functions take them; see :class:`gpuplanner.packing.grid.Grid`."""

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
