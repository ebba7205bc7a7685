"""Where the pattern bound is looked for: short windows around the fullest moments first, then longer ones.

The items that are active in a window are a problem of their own, and its bound holds for the whole. Most of the
difficulty is at the peaks, so a window of a few moments often proves what the whole horizon would, in a
hundredth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpuplanner.packing.bounds import total
from gpuplanner.packing.columns import Goal, PatternBound, as_knapsack, raise_bound
from gpuplanner.packing.grid import Grid
from gpuplanner.packing.problem import Integers, PackingProblem

_SHORTEST = 8
_PEAKS = 3


def windows(load: Integers) -> Iterator[tuple[int, int]]:
    """First moment and end of each window: three fullest of 8 moments, of 16, and so on, at last all.

    Examples
    --------
    >>> list(windows(np.array([1] * 9 + [5] * 8 + [1] * 3)))
    [(9, 17), (5, 13), (0, 8), (1, 17), (0, 20)]
    """
    length = _SHORTEST
    sums = np.concatenate(([0], np.cumsum(load)))
    while length < len(load):
        fullness = sums[length:] - sums[:-length]
        for _ in range(_PEAKS):
            first = int(np.argmax(fullness))
            if fullness[first] < 0:
                break
            yield first, first + length
            # The next one of this length shares at most half of it.
            fullness[max(0, first - length // 2 + 1) : first + length // 2] = -1
        length *= 2
    yield 0, len(load)


def stronger_bounds(
    problem: PackingProblem, grid: Grid, goal: Goal, packing: Callable[[], Integers]
) -> Iterator[int]:
    """Raise ``goal.lower`` by the pattern bounds of windows, as far as they go."""
    for window in windows(total(grid, problem.sizes)):
        program = program_of(problem, grid, window, packing())
        if program is not None:
            yield from raise_bound(program, goal)
        if goal.reached:
            return


def program_of(
    problem: PackingProblem, grid: Grid, window: tuple[int, int], bin_of: Integers
) -> PatternBound | None:
    """The pattern program of the items in a window; None if too many of them are active together."""
    first, last = window
    inside = np.flatnonzero((grid.low < last) & (grid.high > first))
    low = np.maximum(grid.low[inside], first) - first
    high = np.minimum(grid.high[inside], last) - first
    knapsack = as_knapsack(low, high, problem.sizes[inside], problem.capacity)
    if knapsack is None:
        return None
    bins = bin_of[inside]
    return PatternBound(knapsack, bins == np.unique(bins)[:, None])
