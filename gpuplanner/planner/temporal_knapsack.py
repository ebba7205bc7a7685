"""Compiled: the most valuable items that fit into one bin over time.

A label is a choice among the items seen so far; two labels with the same active members have the same future, so
only the better one is kept. Labels carry what they can still be worth at most: with a price on capacity at every
moment, any choice is worth

    sum of capacity x price  +  sum over members (value - size x price over life)  -  sum of idle capacity x price,

so an upper bound starts with all good members in and nothing idle, and falls by every good member left out, every
bad one taken in, and every idle moment. Labels that fall to the floor are dropped. Any prices are valid; those
of the linear relaxation are best. If labels are too many, the worst are dropped and the best of those is
reported, so that the answer comes with a bound that holds in every case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.execution import compiled_entry, part
from gpuplanner.planner.packing_problem import Integers

MOST_ACTIVE = 128
"""Most items that may be active at one moment."""

_ONE = np.uint64(1)


class Knapsack(NamedTuple):
    """Items over moments, without regard to their value."""

    low: Any
    high: Any
    sizes: Any
    seat: Any
    """Shape (n_items,), int64: items that are active together have different seats, below 128."""
    capacity: int
    n_moments: int


@dataclass(frozen=True)
class Priced:
    """Answer of :func:`price`.

    - ``best``: Value of the best set found, or the floor if none exceeds it.
    - ``ceiling``: No set is worth more; equals `best` unless labels were dropped for their number.
    - ``patterns``, shape (n_patterns, n_items): Sets worth more than the floor, the best first.
    - ``work``: Labels made.
    - ``truncated``: Whether labels were dropped for their number.
    """

    best: int
    ceiling: int
    patterns: NDArray[np.bool_]
    work: int
    truncated: bool


class _Labels(NamedTuple):
    members: Any  # (n, 2) uint64: seats of the active members
    load: Any  # (n,) int64
    worth: Any  # (n,) int64: upper bound of the final value
    node: Any  # (n,) int64: last member in the tree of choices


def seats(low: Integers, high: Integers) -> Integers:
    """Give items that are active together different numbers, as few as possible.

    Examples
    --------
    >>> seats(np.array([0, 0, 2]), np.array([2, 3, 4])).tolist()
    [0, 1, 0]
    """
    found = np.zeros(len(low), dtype=np.int64)
    free: list[int] = []
    seats_used = 0
    for moment in range(int(high.max())):
        free.extend(found[high == moment].tolist())
        for item in np.flatnonzero(low == moment):
            if not free:
                free.append(seats_used)
                seats_used += 1
            found[item] = free.pop()
    return found


def price(
    knapsack: Knapsack,
    values: Integers,
    prices: Integers,
    *,
    floor: int,
    most_labels: int,
    merge: bool = True,
    most_patterns: int = 1,
) -> Priced:
    """Find the sets of items worth more than a floor that fit into one bin.

    Examples
    --------
    >>> low, high = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> knapsack = Knapsack(low, high, np.array([6, 5, 4]), seats(low, high), 10, 2)
    >>> found = price(knapsack, np.array([5, 4, 3]), np.zeros(2, np.int64), floor=0, most_labels=99)
    >>> found.best, found.ceiling, found.patterns.tolist()
    (8, 8, [[True, False, True]])
    """
    chosen = np.flatnonzero(values > 0)
    order = chosen[np.argsort(knapsack.low[chosen], kind="stable")]
    leaving = order[np.argsort(knapsack.high[order], kind="stable")]
    worth, nodes, tree_item, tree_back, ceiling, work = _search(
        knapsack, order, leaving, values, prices, floor, most_labels, merge
    )
    best = np.argsort(-worth, kind="stable")[:most_patterns]
    patterns = np.zeros((len(best), len(values)), dtype=np.bool_)
    _trace(nodes[best], tree_item, tree_back, patterns)
    top = int(worth[best[0]]) if len(best) else floor
    return Priced(top, max(top, int(ceiling)), patterns, int(work), bool(ceiling > floor))


@compiled_entry
def _trace(nodes: Integers, tree_item: Integers, tree_back: Integers, patterns: NDArray[np.bool_]) -> None:
    for row in range(len(nodes)):
        node = nodes[row]
        while node >= 0:
            patterns[row, tree_item[node]] = True
            node = tree_back[node]


@compiled_entry
def _search(
    knapsack: Knapsack, order: Integers, leaving: Integers, values: Integers, prices: Integers,
    floor: int, most_labels: int, merge: bool,
) -> tuple[Integers, Integers, Integers, Integers, int, int]:  # fmt: skip
    n_items, capacity = len(order), knapsack.capacity
    labels = _Labels(
        np.zeros((2 * most_labels, 2), np.uint64),
        np.zeros(2 * most_labels, np.int64),
        np.zeros(2 * most_labels, np.int64),
        np.full(2 * most_labels, -1, np.int64),
    )
    n_slots = 1
    while n_slots < 4 * most_labels:
        n_slots *= 2
    table = np.full(n_slots, -1, np.int64)
    tree_item, tree_back, n_nodes = np.empty(1024, np.int64), np.empty(1024, np.int64), 0
    reduced = np.zeros(len(values), np.int64)
    labels.worth[0] = capacity * prices.sum()
    for index in range(n_items):
        item = order[index]
        paid = prices[knapsack.low[item] : knapsack.high[item]].sum()
        reduced[item] = values[item] - knapsack.sizes[item] * paid
        labels.worth[0] += max(reduced[item], 0)
    count, ceiling, work = 1, floor, 0
    entered, left = 0, 0
    for moment in range(knapsack.n_moments):
        first = left
        while left < n_items and knapsack.high[leaving[left]] <= moment:
            left += 1
        if left > first:
            count = _leave(knapsack, labels, count, leaving[first:left], table, merge)
        while entered < n_items and knapsack.low[order[entered]] == moment:
            item = order[entered]
            entered += 1
            if n_nodes + count > len(tree_item):
                grown = 2 * (n_nodes + count)
                tree_item, tree_back = _grown(tree_item, grown), _grown(tree_back, grown)
            count, n_nodes = _enter(knapsack, labels, count, item, reduced[item], floor, tree_item, tree_back, n_nodes)
            work += count
            if count > most_labels:
                ceiling = max(ceiling, _keep_best(labels, count, most_labels))
                count = most_labels
        count = _idle(labels, count, capacity, prices[moment], floor)
    return labels.worth[:count], labels.node[:count], tree_item, tree_back, ceiling, work


@part
def _grown(values: Any, size: int) -> Any:  # noqa: ANN401 - an array; numba knows its type
    grown = np.empty(size, np.int64)
    grown[: len(values)] = values
    return grown


@part
def _copy(labels: _Labels, source: int, target: int) -> None:
    labels.members[target, 0] = labels.members[source, 0]
    labels.members[target, 1] = labels.members[source, 1]
    labels.load[target] = labels.load[source]
    labels.worth[target] = labels.worth[source]
    labels.node[target] = labels.node[source]


@part
def _leave(knapsack: Knapsack, labels: _Labels, count: int, items: Any, table: Any, merge: bool) -> int:  # noqa: ANN401
    """Unseat items that end, and keep the best of the labels that are then alike."""
    keep = np.full(2, ~np.uint64(0), np.uint64)
    for item in items:
        seat = knapsack.seat[item]
        keep[seat >> 6] &= ~(_ONE << np.uint64(seat & 63))
    used, kept = np.empty(count, np.int64), 0
    for label in range(count):
        for item in items:
            seat = knapsack.seat[item]
            if labels.members[label, seat >> 6] >> np.uint64(seat & 63) & _ONE:
                labels.load[label] -= knapsack.sizes[item]
        labels.members[label, 0] &= keep[0]
        labels.members[label, 1] &= keep[1]
        if not merge:
            continue
        slot = _slot(labels, label, table)
        twin = table[slot]
        if twin < 0:
            table[slot], used[kept] = kept, slot
            _copy(labels, label, kept)
            kept += 1
        elif labels.worth[label] > labels.worth[twin]:
            labels.worth[twin], labels.node[twin] = labels.worth[label], labels.node[label]
    for index in range(kept):
        table[used[index]] = -1
    return kept if merge else count


@part
def _slot(labels: _Labels, label: int, table: Any) -> int:  # noqa: ANN401 - an array
    """Slot of a hash table for the members of a label: that of their first label, or a free one."""
    one, two = labels.members[label, 0], labels.members[label, 1]
    mixed = one * np.uint64(0x9E3779B97F4A7C15) ^ (two + _ONE) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    last = len(table) - 1
    slot: Any = np.int64((mixed ^ mixed >> np.uint64(32)) & np.uint64(last))
    while True:
        twin = table[slot]
        if twin < 0 or (labels.members[twin, 0] == one and labels.members[twin, 1] == two):
            return slot  # type: ignore[no-any-return]
        slot = (slot + 1) & last


@part
def _enter(
    knapsack: Knapsack, labels: _Labels, count: int, item: int, reduced: int, floor: int,
    tree_item: Any, tree_back: Any, n_nodes: int,  # noqa: ANN401
) -> tuple[int, int]:  # fmt: skip
    """Split every label: with the item, if it fits, and without it."""
    size, seat = knapsack.sizes[item], knapsack.seat[item]
    last, kept = count, 0
    for label in range(count):
        if labels.load[label] + size <= knapsack.capacity and labels.worth[label] + min(reduced, 0) > floor:
            _copy(labels, label, last)
            labels.members[last, seat >> 6] |= _ONE << np.uint64(seat & 63)
            labels.load[last] += size
            labels.worth[last] += min(reduced, 0)
            labels.node[last] = n_nodes
            tree_item[n_nodes], tree_back[n_nodes] = item, labels.node[label]
            n_nodes += 1
            last += 1
        labels.worth[label] -= max(reduced, 0)
    for label in range(last):
        if labels.worth[label] > floor:
            _copy(labels, label, kept)
            kept += 1
    return kept, n_nodes


@part
def _keep_best(labels: _Labels, count: int, most: int) -> int:
    """Keep the labels of most worth, in their order; the worth of the best one dropped."""
    ranked = np.argsort(-labels.worth[:count], kind="mergesort")
    dropped: int = labels.worth[ranked[most]]
    for kept, label in enumerate(np.sort(ranked[:most])):
        _copy(labels, label, kept)
    return dropped


@part
def _idle(labels: _Labels, count: int, capacity: int, moment_price: int, floor: int) -> int:
    """Take off what is lost by idle capacity at a moment."""
    kept = 0
    for label in range(count):
        labels.worth[label] -= moment_price * (capacity - labels.load[label])
        if labels.worth[label] > floor:
            _copy(labels, label, kept)
            kept += 1
    return kept
