"""Pattern bound: fewest bins with fractions of patterns, by column generation.

A pattern is a set of items that fits into one bin over the whole horizon. The linear program over all patterns
(Gilmore and Gomory's form) is solved with few of them: its prices say what a new pattern must be worth to help,
and :mod:`gpuplanner.packing.pricing` finds the one that is worth most.

The solver's numbers are never believed. Prices are rounded down to whole numbers v; if no pattern is worth more
than V, every bin pays for at most V of the sum of all v, so at least ceil(sum v / V) bins are needed (Farley's
bound [1]_), exactly.

References
----------
.. [1] A. A. Farley, "A note on bounding a class of linear programming problems, including cutting stock
   problems", Operations Research 38, 1990, doi:10.1287/opre.38.5.922.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuplanner.packing.pricing import MOST_ACTIVE, Knapsack, price, seats
from gpuplanner.packing.problem import Integers
from gpuplanner.solving.columns import LinearProgram

Patterns = NDArray[np.bool_]

SCALE = 10**9
"""Whole-number value of one bin."""

_LABELS = 20_000
_QUICK_LABELS = 300
_CALM = 0.3  # share of the best prices so far in those that are tried next; steadies the search
_TOLERANCE = 1e-6


@dataclass
class Goal:
    """What is proven so far, and how many bins the best packing has.

    Parameters
    ----------
    lower, upper : int
        The optimum is between them.
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

    Parameters
    ----------
    knapsack : Knapsack
        The items.
    patterns : ndarray of bool, shape (n_patterns, n_items)
        Patterns to begin with, such as the bins of a packing; they fit and cover every item.

    Attributes
    ----------
    value : float
        Value of the linear program with the patterns so far; not a bound.
    bound : float
        Best proven bound, a fraction.
    whole_bound : int
        The same rounded up, exactly.
    exhausted : bool
        Whether no pattern helps any more.

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
