"""Weighings of MIG profiles: by what they take, and by the prices of a program over layouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuplanner.hardware import as_board, pareto_counts
from gpuplanner.packing.problem import Integers, MigPackingProblem
from gpuplanner.schemas import WHOLE_GPU

_SCALE = 5040  # divisible by every count up to ten, so that prices such as 1/7 and 3/7 are met exactly
_PRICED_MOMENTS = 20


def resource_weighings(problem: MigPackingProblem) -> Iterator[tuple[Integers, int]]:
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


def layout_weighings(problem: MigPackingProblem) -> Iterator[tuple[Integers, int]]:
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
    from gpuplanner.solving.columns import LinearProgram

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
    from gpuplanner.packing.bounds import total
    from gpuplanner.packing.grid import as_grid

    grid = as_grid(problem)
    kinds = np.array([columns.index(name) for name in problem.profiles])
    counts = np.stack([total(grid, (kinds == kind).astype(np.int64)) for kind in range(len(columns))], axis=1)
    memory = total(grid, next(resource_weighings(problem))[0])
    return counts[np.argsort(-memory, kind="stable")[:_PRICED_MOMENTS]]
