"""Compiled labelling algorithm for the temporal knapsack: the most valuable items that fit into one bin over time.

A label is a choice among the items that started so far; two labels with the same active items have the same future, so
only the better one is kept. Labels carry an upper bound of their final value. With a price p_t on capacity at every
moment, any choice S is worth

    sum over t of C p_t  +  sum over j in S of (v_j - s_j * sum of p_t over its life)  -  sum over t of idle_t * p_t,

so an upper bound starts with all items of positive reduced value in and nothing idle, and falls by each such item left
out, each item of negative reduced value taken in, and all idle capacity. Labels that fall to the floor are dropped.
Any prices are valid; those of the linear relaxation are best. If labels are too many, the worst are dropped and the
best bound of those is reported, so that the answer always comes with a valid upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper
from gpuplanner.planner.packing_problem import Integers

MAX_ITEMS_ACTIVE_AT_ONCE = 128
"""Most items that may be active at one moment."""

_SINGLE_BIT = np.uint64(1)
"""The number 1 as an unsigned 64-bit integer, to shift to the bit of an item."""


class Knapsack(NamedTuple):
    """Items over moments, without their values.

    - ``low``, ``high``, shape (n_items,): First moment of each item, and the first one after it.
    - ``sizes``, shape (n_items,): Sizes.
    - ``label_bit``, shape (n_items,): Bit of each item in a label, see :func:`assign_label_bits`.
    - ``capacity``, ``n_moments``: Capacity of the bin, and number of moments.
    """

    low: Any
    high: Any
    sizes: Any
    label_bit: Any
    """Shape (n_items,), int64: items that are active together have different bits, below 128."""
    capacity: int
    n_moments: int


@dataclass(frozen=True)
class PricingAnswer:
    """Answer of :func:`price_patterns`.

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
    """Labels (partial item sets) as parallel arrays: active items, load, upper bound of the value, last item."""

    members: Any  # (n, 2) uint64: bits of the active items
    load: Any  # (n,) int64
    worth: Any  # (n,) int64: upper bound of the final value
    node: Any  # (n,) int64: last item, as a node of the tree of choices


def assign_label_bits(low: Integers, high: Integers) -> Integers:
    """Assign a bit to each item so that items active together have different bits, as few as possible.

    Examples
    --------
    >>> assign_label_bits(np.array([0, 0, 2]), np.array([2, 3, 4])).tolist()
    [0, 1, 0]
    """
    bit_of_item = np.zeros(len(low), dtype=np.int64)
    free: list[int] = []
    bits_used = 0
    for moment in range(int(high.max())):
        free.extend(bit_of_item[high == moment].tolist())
        for item in np.flatnonzero(low == moment):
            if not free:
                free.append(bits_used)
                bits_used += 1
            bit_of_item[item] = free.pop()
    return bit_of_item


def price_patterns(
    knapsack: Knapsack,
    values: Integers,
    prices: Integers,
    *,
    floor: int,
    most_labels: int,
    merge: bool = True,
    most_patterns: int = 1,
) -> PricingAnswer:
    """Find the sets of items worth more than a floor that fit into one bin (pricing problem of column generation).

    Parameters
    ----------
    knapsack : Knapsack
        Items, capacity and moments.
    values : ndarray of int, shape (n_items,)
        Value of each item.
    prices : ndarray of int, shape (n_moments,)
        Price of capacity at each moment, for the upper bounds.
    floor : int
        Sets must be worth more than this.
    most_labels : int
        Labels that are kept at most.
    merge : bool
        Keep only the best of labels with the same active items; else all sets above the floor are listed.
    most_patterns : int
        Sets returned at most.

    Examples
    --------
    >>> low, high = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> knapsack = Knapsack(low, high, np.array([6, 5, 4]), assign_label_bits(low, high), 10, 2)
    >>> found = price_patterns(knapsack, np.array([5, 4, 3]), np.zeros(2, np.int64), floor=0, most_labels=99)
    >>> found.best, found.ceiling, found.patterns.tolist()
    (8, 8, [[True, False, True]])
    """
    chosen = np.flatnonzero(values > 0)
    order = chosen[np.argsort(knapsack.low[chosen], kind="stable")]
    leaving = order[np.argsort(knapsack.high[order], kind="stable")]
    worth, nodes, tree_item, tree_back, ceiling, work = _run_labelling(
        knapsack, order, leaving, values, prices, floor, most_labels, merge
    )
    best = np.argsort(-worth, kind="stable")[:most_patterns]
    patterns = np.zeros((len(best), len(values)), dtype=np.bool_)
    _trace_patterns(nodes[best], tree_item, tree_back, patterns)
    top = int(worth[best[0]]) if len(best) else floor
    return PricingAnswer(top, max(top, int(ceiling)), patterns, int(work), bool(ceiling > floor))


@compile_entry
def _trace_patterns(nodes: Integers, tree_item: Integers, tree_back: Integers, patterns: NDArray[np.bool_]) -> None:
    """Mark the items of each complete item set (label) in a row of `patterns`, along the tree of choices.

    Parameters
    ----------
    nodes : ndarray of int
        Last node of each label.
    tree_item : ndarray of int
        Item of each node of the tree of choices.
    tree_back : ndarray of int
        Parent of each node, or -1.
    patterns : ndarray of bool, shape (n_patterns, n_items)
        Sets of items; changed.
    """
    for row in range(len(nodes)):
        node = nodes[row]
        while node >= 0:
            patterns[row, tree_item[node]] = True
            node = tree_back[node]


@compile_entry
def _run_labelling(
    knapsack: Knapsack, order: Integers, leaving: Integers, values: Integers, prices: Integers,
    floor: int, most_labels: int, merge: bool,
) -> tuple[Integers, Integers, Integers, Integers, int, int]:  # fmt: skip
    """Run the labelling algorithm over all moments.

    Returns value and last node of each complete label (item set), item and parent of each node of the tree of choices,
    the best upper bound of the labels dropped for their number (at least the floor), and the number of labels made.

    Parameters
    ----------
    knapsack : Knapsack
        Items, capacity and moments.
    order : ndarray of int, shape (n_items,)
        Items by their start.
    leaving : ndarray of int
        Items by their end.
    values : ndarray of int, shape (n_items,)
        Value of each item.
    prices : ndarray of int, shape (n_moments,)
        Price of capacity at each moment.
    floor : int
        Labels with this upper bound or less are dropped.
    most_labels : int
        Labels kept at most.
    merge : bool
        Keep only the best of labels with the same active items.
    """
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
            count = _remove_ended_items(knapsack, labels, count, leaving[first:left], table, merge)
        while entered < n_items and knapsack.low[order[entered]] == moment:
            item = order[entered]
            entered += 1
            if n_nodes + count > len(tree_item):
                grown = 2 * (n_nodes + count)
                tree_item, tree_back = _enlarge(tree_item, grown), _enlarge(tree_back, grown)
            count, n_nodes = _branch_on_item(
                knapsack, labels, count, item, reduced[item], floor, tree_item, tree_back, n_nodes
            )
            work += count
            if count > most_labels:
                ceiling = max(ceiling, _keep_best_labels(labels, count, most_labels))
                count = most_labels
        count = _charge_idle_capacity(labels, count, capacity, prices[moment], floor)
    return labels.worth[:count], labels.node[:count], tree_item, tree_back, ceiling, work


@compile_helper
def _enlarge(values: Any, size: int) -> Any:  # noqa: ANN401 - an array; numba knows its type
    """Copy an array of whole numbers to a larger one of `size` elements."""
    grown = np.empty(size, np.int64)
    grown[: len(values)] = values
    return grown


@compile_helper
def _copy_label(labels: _Labels, source: int, target: int) -> None:
    """Copy a label to another position."""
    labels.members[target, 0] = labels.members[source, 0]
    labels.members[target, 1] = labels.members[source, 1]
    labels.load[target] = labels.load[source]
    labels.worth[target] = labels.worth[source]
    labels.node[target] = labels.node[source]


@compile_helper
def _remove_ended_items(knapsack: Knapsack, labels: _Labels, count: int, items: Any, table: Any, merge: bool) -> int:  # noqa: ANN401
    """Remove ended items from all labels, merge labels that are then equal, and return how many are left.

    Parameters
    ----------
    knapsack : Knapsack
        Items, capacity and moments.
    labels : _Labels
        Labels; changed.
    count : int
        Number of labels.
    items : ndarray of int
        Items that end.
    table : ndarray of int
        Hash table of labels.
    merge : bool
        Keep only the best of labels with the same active items.
    """
    keep = np.full(2, ~np.uint64(0), np.uint64)
    for item in items:
        label_bit = knapsack.label_bit[item]
        keep[label_bit >> 6] &= ~(_SINGLE_BIT << np.uint64(label_bit & 63))
    used, kept = np.empty(count, np.int64), 0
    for label in range(count):
        for item in items:
            label_bit = knapsack.label_bit[item]
            if labels.members[label, label_bit >> 6] >> np.uint64(label_bit & 63) & _SINGLE_BIT:
                labels.load[label] -= knapsack.sizes[item]
        labels.members[label, 0] &= keep[0]
        labels.members[label, 1] &= keep[1]
        if not merge:
            continue
        slot = _hash_slot(labels, label, table)
        twin = table[slot]
        if twin < 0:
            table[slot], used[kept] = kept, slot
            _copy_label(labels, label, kept)
            kept += 1
        elif labels.worth[label] > labels.worth[twin]:
            labels.worth[twin], labels.node[twin] = labels.worth[label], labels.node[label]
    for index in range(kept):
        table[used[index]] = -1
    return kept if merge else count


@compile_helper
def _hash_slot(labels: _Labels, label: int, table: Any) -> int:  # noqa: ANN401 - an array
    """Return the slot of a hash table for the active items of a label: that of an equal label, or a free one."""
    low_word, high_word = labels.members[label, 0], labels.members[label, 1]
    mixed = low_word * np.uint64(0x9E3779B97F4A7C15) ^ (high_word + _SINGLE_BIT) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    last = len(table) - 1
    slot: Any = np.int64((mixed ^ mixed >> np.uint64(32)) & np.uint64(last))
    while True:
        other_label = table[slot]
        if other_label < 0 or (
            labels.members[other_label, 0] == low_word and labels.members[other_label, 1] == high_word
        ):
            return slot  # type: ignore[no-any-return]
        slot = (slot + 1) & last


@compile_helper
def _branch_on_item(
    knapsack: Knapsack, labels: _Labels, count: int, item: int, reduced: int, floor: int,
    tree_item: Any, tree_back: Any, n_nodes: int,  # noqa: ANN401
) -> tuple[int, int]:  # fmt: skip
    """Branch every label: with the item, if it fits, and without it; return the numbers of labels and of tree nodes.

    Parameters
    ----------
    knapsack : Knapsack
        Items, capacity and moments.
    labels : _Labels
        Labels; changed.
    count : int
        Number of labels.
    item : int
        Index of the item that starts.
    reduced : int
        Value of the item less the price of the capacity that it takes over its life.
    floor : int
        Labels with this upper bound or less are dropped.
    tree_item : ndarray of int
        Item of each node of the tree of choices.
    tree_back : ndarray of int
        Parent of each node, or -1.
    n_nodes : int
        Nodes in the tree.
    """
    size, label_bit = knapsack.sizes[item], knapsack.label_bit[item]
    n_labels, kept = count, 0
    for label in range(count):
        if labels.load[label] + size <= knapsack.capacity and labels.worth[label] + min(reduced, 0) > floor:
            _copy_label(labels, label, n_labels)
            labels.members[n_labels, label_bit >> 6] |= _SINGLE_BIT << np.uint64(label_bit & 63)
            labels.load[n_labels] += size
            labels.worth[n_labels] += min(reduced, 0)
            labels.node[n_labels] = n_nodes
            tree_item[n_nodes], tree_back[n_nodes] = item, labels.node[label]
            n_nodes += 1
            n_labels += 1
        labels.worth[label] -= max(reduced, 0)
    for label in range(n_labels):
        if labels.worth[label] > floor:
            _copy_label(labels, label, kept)
            kept += 1
    return kept, n_nodes


@compile_helper
def _keep_best_labels(labels: _Labels, count: int, max_labels: int) -> int:
    """Keep the `max_labels` labels of highest upper bound, in their order; return the bound of the best one dropped."""
    ranked = np.argsort(-labels.worth[:count], kind="mergesort")
    dropped: int = labels.worth[ranked[max_labels]]
    for kept, label in enumerate(np.sort(ranked[:max_labels])):
        _copy_label(labels, label, kept)
    return dropped


@compile_helper
def _charge_idle_capacity(labels: _Labels, count: int, capacity: int, moment_price: int, floor: int) -> int:
    """Subtract the price of idle capacity at a moment from the upper bound of every label; return how many are left.

    Parameters
    ----------
    labels : _Labels
        Labels; changed.
    count : int
        Number of labels.
    capacity : int
        Capacity of the bin.
    moment_price : int
        Price of capacity at the moment.
    floor : int
        Labels with this upper bound or less are dropped.
    """
    kept = 0
    for label in range(count):
        labels.worth[label] -= moment_price * (capacity - labels.load[label])
        if labels.worth[label] > floor:
            _copy_label(labels, label, kept)
            kept += 1
    return kept
