"""Pattern bound: fewest bins with fractions of patterns, by column generation.

A pattern is a set of items that fits into one bin over the whole horizon. The linear program over all patterns
(Gilmore and Gomory's form) is solved with few of them: its prices say what a new pattern must be worth to help,
and :mod:`gpuplanner.packing.pricing` finds the one that is worth most.

The solver's numbers are never believed. Prices are rounded down to whole numbers v; if no pattern is worth more
than V, every bin pays for at most V of the sum of all v, so at least ceil(sum v / V) bins are needed (Farley's
bound [1]_), exactly.

It is looked for in short windows around the fullest moments first, then in longer ones: the items that are active in a
window are a problem of their own, and its bound holds for the whole. Most of the difficulty is at the peaks, so a
window of a few moments often proves what the whole horizon would, in a hundredth of the time.

References
----------
.. [1] A. A. Farley, "A note on bounding a class of linear programming problems, including cutting stock
   problems", Operations Research 38, 1990, doi:10.1287/opre.38.5.922.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.packing.bounds import total
from gpuplanner.packing.grid import Grid
from gpuplanner.packing.pricing import MOST_ACTIVE, Knapsack, price, seats
from gpuplanner.packing.problem import Integers, PackingProblem
from gpuplanner.solving.column_generation import LinearProgram

Patterns = NDArray[np.bool_]

SCALE = 10**9
"""Whole-number value of one bin."""

_LABELS = 20_000
_QUICK_LABELS = 300
_CALM = 0.3  # share of the best prices so far in those that are tried next; steadies the search
_TOLERANCE = 1e-6
_SHORTEST = 8

_PEAKS = 3


@dataclass
class Goal:
    """What is proven so far, and how many bins the best packing has.

    - ``lower``, ``upper``: The optimum is between them.
    """

    lower: int
    upper: int

    @property
    def reached(self) -> bool:
        """Whether the two meet."""
        return self.lower >= self.upper


def as_knapsack(low: Integers, high: Integers, sizes: Integers, capacity: int) -> Knapsack | None:
    """Items as pricing takes them; None if too many are active together.

    Examples
    --------
    >>> ones = np.ones(200, dtype=np.int64)
    >>> as_knapsack(0 * ones, ones, ones, 10) is None
    True
    """
    n_moments = int(high.max())
    started, ended = (np.bincount(times, minlength=n_moments + 1).cumsum() for times in (low, high))
    if (started - ended).max() > MOST_ACTIVE:
        return None
    return Knapsack(low, high, sizes, seats(low, high), capacity, n_moments)


class PatternBound:
    """The linear program over patterns, solved step by step.

    It begins with some patterns, such as the bins of a packing, which fit and cover every item.

    - ``value``: Value of the linear program with the patterns so far; not a bound.
    - ``bound``: Best proven bound, a fraction.
    - ``whole_bound``: The same rounded up, exactly.
    - ``exhausted``: Whether no pattern helps any more.

    Examples
    --------
    >>> low, high = np.zeros(3, np.int64), np.ones(3, np.int64)
    >>> knapsack = as_knapsack(low, high, np.array([50, 50, 50]), 100)
    >>> program = PatternBound(knapsack, np.eye(3, dtype=bool))
    >>> while not program.exhausted:
    ...     _ = program.step()
    >>> round(program.bound, 6), program.whole_bound
    (1.5, 2)
    """

    def __init__(self, knapsack: Knapsack, patterns: Patterns) -> None:
        n_items = len(knapsack.low)
        self.knapsack = knapsack
        self.patterns: list[NDArray[np.bool_]] = []
        self.value, self.bound, self.whole_bound = float(n_items), 0.0, 0
        self.exhausted = False
        self.values = np.zeros(n_items, dtype=np.int64)  # the prices that proved the best bound
        self._calm: NDArray[np.float64] | None = None
        self._master = LinearProgram.covering(n_items)
        limits = np.full(knapsack.n_moments, knapsack.capacity, dtype=np.int64)
        self._relaxed = LinearProgram.packing(knapsack.low, knapsack.high, knapsack.sizes, limits)
        self._add(patterns)

    def step(self) -> int:
        """Solve, price, add patterns; returns the work done."""
        answer = self._master.solve()
        self.value = answer.value
        duals, work = answer.duals, answer.work
        trial = duals if self._calm is None else _CALM * self._calm + (1 - _CALM) * duals
        found, spent = self._try(trial, duals)
        work += spent
        if not found and self._calm is not None:
            # Steadied prices may find nothing that the true ones would find.
            found, spent = self._try(duals, duals)
            work += spent
        self.exhausted = not found
        return work

    @property
    def settled(self) -> bool:
        """Whether no better whole bound can come."""
        return self.exhausted or math.ceil(self.value - _TOLERANCE) <= self.whole_bound

    def _try(self, trial: NDArray[np.float64], duals: NDArray[np.float64]) -> tuple[int, int]:
        """Price with trial prices, note the bound, add what helps under the true ones: patterns added, work."""
        values = np.floor(trial * SCALE).astype(np.int64)
        prices, work = self.moment_prices(values)
        best = price(self.knapsack, values, prices, floor=SCALE, most_labels=_LABELS, most_patterns=8)
        work += best.work
        total = int(values.sum())
        self.whole_bound = max(self.whole_bound, -(-total // best.ceiling))
        if total / best.ceiling > self.bound:
            self.bound, self.values, self._calm = total / best.ceiling, values, trial
        found = self._add_helpful(best.patterns, duals)
        # More patterns from what the first ones leave over, found quickly and not exactly.
        left = values.copy()
        fresh = best.patterns[:1]
        while len(fresh):
            left[fresh[0]] = 0
            quick = price(self.knapsack, left, prices, floor=SCALE, most_labels=_QUICK_LABELS)
            work += quick.work
            fresh = quick.patterns
            found += self._add_helpful(fresh, duals)
        return found, work

    def moment_prices(self, values: Integers) -> tuple[Integers, int]:
        """Whole prices of capacity that steer pricing, and the work of finding them."""
        self._relaxed.set_value(values / SCALE)
        answer = self._relaxed.solve()
        return np.floor(answer.duals * SCALE).astype(np.int64), answer.work

    def _add_helpful(self, patterns: Patterns, duals: NDArray[np.float64]) -> int:
        helpful = patterns[patterns @ duals > 1 + _TOLERANCE]
        self._add(helpful)
        return len(helpful)

    def _add(self, patterns: Patterns) -> None:
        for pattern in patterns:
            self.patterns.append(pattern)
            self._master.add_column(np.flatnonzero(pattern), np.ones(int(pattern.sum())))


def raise_bound(program: PatternBound, goal: Goal) -> Iterator[int]:
    """Step until the bound is proven, or no better whole bound can come; yields the work of each step."""
    while not goal.reached and not program.settled:
        yield program.step()
        goal.lower = max(goal.lower, program.whole_bound)
        if program.value <= goal.lower + _TOLERANCE:
            return


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
