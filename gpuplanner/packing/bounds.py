"""Bounds from single moments: weigh the items, and count the weight that any one bin can hold.

If no set of items that fits into a bin weighs more than `limit`, then at each moment at least
``ceil(weight of the active items / limit)`` bins are in use. All bounds here are such weighings, in whole
numbers throughout, so that no rounding can lift one above the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from gpuplanner.hardware.gpu import as_board
from gpuplanner.hardware.enumerate import pareto_counts
from gpuplanner.packing.grid import Grid, as_grid
from gpuplanner.packing.problem import AnyProblem, Integers, MigPackingProblem, PackingProblem
from gpuplanner.schemas.vocabulary import WHOLE_GPU

Weighing: TypeAlias = tuple[Integers, int]
"""Whole weights of the items, and the most that one bin can hold of them."""

_MAX_THRESHOLDS = 1000
_MAX_STEPS = 50
_SCALE = 5040  # divisible by every count up to ten, so that prices such as 1/7 and 3/7 are met exactly
_PRICED_MOMENTS = 20


def moment_bound(problem: AnyProblem, grid: Grid) -> int:
    """Best of all weighings: loads, L2, and the dual feasible functions u(k) of Fekete and Schepers [1]_.

    The last see that only three items of size 33 fit into 100, which L2 does not: it asks for 33 bins.

    References
    ----------
    .. [1] S. P. Fekete, J. Schepers, "New classes of fast lower bounds for bin packing problems", Mathematical
       Programming 91, 2001, doi:10.1007/s101070100243.

    Examples
    --------
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
    >>> problem = PackingProblem([0, 0, 0], [9, 9, 9], [60, 60, 60], 100)
    >>> heaviest(as_grid(problem), loads(problem)), heaviest(as_grid(problem), thresholds(problem))
    (2, 3)
    """
    if isinstance(problem, MigPackingProblem):
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


def resource_weighings(problem: MigPackingProblem) -> Iterator[Weighing]:
    """Memory slices, and every engine of which the board has a known number.

    Examples
    --------
    >>> problem = MigPackingProblem([0, 0], [1, 1], ["3g.20gb", "gpu"], "A100-40GB")
    >>> [(weights.tolist(), limit) for weights, limit in resource_weighings(problem)][0]
    ([4, 8], 8)
    """
    board = problem.board
    amounts = {"memory": (board.memory_slices, {p.name: p.memory_slices for p in board.profiles})}
    for resource, limit in board.budget.items():
        if limit:
            amounts[resource] = (limit, {p.name: p.amount(resource) or 0 for p in board.profiles})
    for limit, taken in amounts.values():
        taken[WHOLE_GPU] = limit
        yield np.array([taken[name] for name in problem.profiles], dtype=np.int64), limit


def layout_weighings(problem: MigPackingProblem) -> Iterator[Weighing]:
    """Prices of the profiles in the fewest GPUs, fractions allowed, that could hold the fullest moments.

    The prices come from a solver and are rounded; what one layout can hold of them is then counted exactly
    over all layouts of the board, so a rounding can only weaken the bound.
    """
    names = sorted(set(problem.profiles) - {WHOLE_GPU})
    layouts = [{WHOLE_GPU: 1}, *(pareto_counts(as_board(problem.board), names) if names else [])]
    columns = [*names, WHOLE_GPU]
    holds = np.array([[layout.get(name, 0) for name in columns] for layout in layouts], dtype=np.int64)
    for weights in _prices(problem, holds, columns):
        by_name = dict(zip(columns, weights.tolist(), strict=True))
        yield np.array([by_name[name] for name in problem.profiles]), int((holds @ weights).max())


def _prices(problem: MigPackingProblem, holds: Integers, columns: list[str]) -> Iterator[Integers]:
    from gpuplanner.solving.column_generation import LinearProgram

    demands = _fullest(problem, columns)
    program = LinearProgram.covering(len(columns))
    for layout in holds:
        program.add_column(np.flatnonzero(layout), layout[layout > 0])
    seen: set[tuple[int, ...]] = set()
    for demand in demands:
        program.set_demand(demand)
        weights = np.rint(program.solve().duals * _SCALE).astype(np.int64).clip(0)
        if weights.any() and tuple(weights.tolist()) not in seen:
            seen.add(tuple(weights.tolist()))
            yield weights


def _fullest(problem: MigPackingProblem, columns: list[str]) -> Integers:
    """Instances of each profile at the moments with most memory slices, shape (at most 20, n_columns)."""
    grid = as_grid(problem)
    kinds = np.array([columns.index(name) for name in problem.profiles])
    counts = np.stack([total(grid, (kinds == kind).astype(np.int64)) for kind in range(len(columns))], axis=1)
    memory = total(grid, next(resource_weighings(problem))[0])
    return counts[np.argsort(-memory, kind="stable")[:_PRICED_MOMENTS]]
