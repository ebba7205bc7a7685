"""Lower bounds of temporal bin packing.

If no set of items that fits into a bin weighs more than `limit`, then at each moment at least
``ceil(weight of the active items / limit)`` bins are in use. All bounds here are such weighings, in whole
numbers throughout, so that no rounding can lift one above the truth.

A pattern is a set of items that fits into one bin over the whole horizon. The linear program over all patterns
(Gilmore and Gomory's form) is solved with few of them: its prices say what a new pattern must be worth to help,
and :mod:`gpuplanner.planner.temporal_knapsack` finds the one that is worth most.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.gpu_models import as_board
from gpuplanner.hardware.layout_enumeration import pareto_counts
from gpuplanner.planner.linear_model import LinearProgram
from gpuplanner.planner.packing_problem import (
    AnyProblem,
    Grid,
    Integers,
    MigPackingProblem,
    PackingProblem,
    as_grid,
)
from gpuplanner.planner.temporal_knapsack import MOST_ACTIVE, Knapsack, price, seats

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
    gpu_model = problem.gpu_model
    amounts = {"memory": (gpu_model.memory_slices, {p.name: p.memory_slices for p in gpu_model.profiles})}
    for resource, limit in gpu_model.budget.items():
        if limit:
            amounts[resource] = (limit, {p.name: p.amount(resource) or 0 for p in gpu_model.profiles})
    for limit, taken in amounts.values():
        taken[WHOLE_GPU] = limit
        yield np.array([taken[name] for name in problem.profiles], dtype=np.int64), limit


def layout_weighings(problem: MigPackingProblem) -> Iterator[Weighing]:
    """Prices of the profiles in the fewest GPUs, fractions allowed, that could hold the fullest moments.

    The prices come from a solver and are rounded; what one layout can hold of them is then counted exactly
    over all layouts of the board, so a rounding can only weaken the bound.
    """
    names = sorted(set(problem.profiles) - {WHOLE_GPU})
    layouts = [{WHOLE_GPU: 1}, *(pareto_counts(as_board(problem.gpu_model), names) if names else [])]
    columns = [*names, WHOLE_GPU]
    holds = np.array([[layout.get(name, 0) for name in columns] for layout in layouts], dtype=np.int64)
    for weights in _prices(problem, holds, columns):
        by_name = dict(zip(columns, weights.tolist(), strict=True))
        yield np.array([by_name[name] for name in problem.profiles]), int((holds @ weights).max())


def _prices(problem: MigPackingProblem, holds: Integers, columns: list[str]) -> Iterator[Integers]:
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


def stronger_bounds(problem: PackingProblem, grid: Grid, goal: Goal, packing: Callable[[], Integers]) -> Iterator[int]:
    """Raise ``goal.lower`` by the pattern bounds of windows, as far as they go."""
    for window in windows(total(grid, problem.sizes)):
        program = program_of(problem, grid, window, packing())
        if program is not None:
            yield from raise_bound(program, goal)
        if goal.reached:
            return


def program_of(problem: PackingProblem, grid: Grid, window: tuple[int, int], bin_of: Integers) -> PatternBound | None:
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
