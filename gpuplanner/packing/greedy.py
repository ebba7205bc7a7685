"""Compiled: first fit and best fit, one item after another in a given order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuplanner.jit import compiled_entry
from gpuplanner.packing.bins import Bins, Items, empty_bins, fits, items_of, put
from gpuplanner.packing.grid import Grid
from gpuplanner.packing.problem import AnyProblem, Integers, MigPackingProblem

RULES = ("first", "best")


def orders(problem: AnyProblem) -> Iterator[Integers]:
    """Orders of the items; none wins everywhere: on some sets size rules, on others time."""
    life = problem.ends - problem.starts
    if isinstance(problem, MigPackingProblem):
        slices = {profile.name: profile.memory_slices for profile in problem.board.profiles}
        size = np.array([slices.get(name, problem.board.memory_slices) for name in problem.profiles])
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
    >>> from gpuplanner.packing.grid import as_grid
    >>> from gpuplanner.packing.problem import PackingProblem
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
