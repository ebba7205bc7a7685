"""Bounds from single moments: weigh the items, and count the weight that any one bin can hold.

If no set of items that fits into a bin weighs more than `limit`, then at each moment at least
``ceil(weight of the active items / limit)`` bins are in use. All bounds here are such weighings, in whole
numbers throughout, so that no rounding can lift one above the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from gpuplanner.packing.grid import Grid
from gpuplanner.packing.problem import AnyProblem, Integers, MigPackingProblem, PackingProblem

Weighing: TypeAlias = tuple[Integers, int]
"""Whole weights of the items, and the most that one bin can hold of them."""

_MAX_THRESHOLDS = 1000
_MAX_STEPS = 50


def moment_bound(problem: AnyProblem, grid: Grid) -> int:
    """Best of all weighings: loads, L2, and the dual feasible functions u(k) of Fekete and Schepers [1]_.

    The last see that only three items of size 33 fit into 100, which L2 does not: it asks for 33 bins.

    References
    ----------
    .. [1] S. P. Fekete, J. Schepers, "New classes of fast lower bounds for bin packing problems", Mathematical
       Programming 91, 2001, doi:10.1007/s101070100243.

    Examples
    --------
    >>> from gpuplanner.packing.grid import as_grid
    >>> problem = PackingProblem([0] * 100, [9] * 100, [33] * 100, 100)
    >>> heaviest(as_grid(problem), thresholds(problem)), moment_bound(problem, as_grid(problem))
    (33, 34)
    """
    return heaviest(grid, weighings(problem))


def weighings(problem: AnyProblem) -> Iterator[Weighing]:
    """Every weighing that is cheap to state."""
    yield from loads(problem)
    if isinstance(problem, PackingProblem):
        yield from thresholds(problem)
        yield from _steps(problem)
    else:
        from gpuplanner.packing.layouts import layout_weighings

        yield from layout_weighings(problem)


def heaviest(grid: Grid, weighed: Iterable[Weighing]) -> int:
    """Most bins that any weighing asks for at any moment."""
    return max(int(needed(grid, weights, limit).max()) for weights, limit in weighed)


def needed(grid: Grid, weights: Integers, limit: int) -> Integers:
    """Bins that one weighing asks for, shape (n_moments,)."""
    return -(-total(grid, weights) // limit)


def total(grid: Grid, weights: Integers) -> Integers:
    """Weight of what is active, shape (n_moments,).

    Examples
    --------
    >>> from gpuplanner.packing.grid import as_grid
    >>> problem = PackingProblem([0, 1, 6], [5, 9, 9], [60, 50, 40], 100)
    >>> total(as_grid(problem), problem.sizes).tolist()
    [110, 90]
    """
    change = np.zeros(grid.n_moments + 1, dtype=np.int64)
    np.add.at(change, grid.low, weights)
    np.subtract.at(change, grid.high, weights)
    return np.cumsum(change[:-1])


def loads(problem: AnyProblem) -> Iterator[Weighing]:
    """Sizes against the capacity: the peak load (L1); on MIG boards memory slices and engines.

    Examples
    --------
    >>> from gpuplanner.packing.grid import as_grid
    >>> problem = PackingProblem([0, 0, 0], [9, 9, 9], [60, 60, 60], 100)
    >>> heaviest(as_grid(problem), loads(problem)), heaviest(as_grid(problem), thresholds(problem))
    (2, 3)
    """
    if isinstance(problem, MigPackingProblem):
        from gpuplanner.packing.layouts import resource_weighings

        yield from resource_weighings(problem)
    else:
        yield problem.sizes, problem.capacity


def thresholds(problem: PackingProblem) -> Iterator[Weighing]:
    """Weighings whose heaviest is the largest L2 of Martello and Toth over all moments [1]_.

    For a threshold K let an item count as a whole bin if it is larger than C - K, by its size if it is at
    least K, else not at all; and for itself, count the items larger than C/2. L2 is the best over all K; beyond
    1000 distinct sizes up to C/2, over 1000 of them.

    References
    ----------
    .. [1] S. Martello, P. Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete
       Applied Mathematics 28, 1990, doi:10.1016/0166-218X(90)90094-S.
    """
    sizes, capacity = problem.sizes, problem.capacity
    yield (2 * sizes > capacity).astype(np.int64), 1
    distinct = np.unique(sizes)
    candidates = np.unique(np.concatenate((distinct, capacity + 1 - distinct)))
    candidates = candidates[2 * candidates <= capacity]
    step = -(-max(len(candidates), 1) // _MAX_THRESHOLDS)
    for threshold in [0, *candidates[::step].tolist()]:
        whole, small = sizes > capacity - threshold, sizes < threshold
        yield np.where(whole, capacity, np.where(small, 0, sizes)), capacity


def _steps(problem: PackingProblem) -> Iterator[Weighing]:
    """u(k) times k C: with x = size / C it is x if (k + 1) x is whole, else floor((k + 1) x) / k."""
    sizes, capacity = problem.sizes, problem.capacity
    for k in range(1, min(capacity, _MAX_STEPS) + 1):
        below, rest = np.divmod((k + 1) * sizes, capacity)
        yield np.where(rest == 0, k * sizes, below * capacity), k * capacity
