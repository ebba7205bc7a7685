"""Lower bounds of temporal bin packing.

If no set of items that fits into a bin weighs more than `limit`, then at each moment at least
``ceil(weight of the active items / limit)`` bins are in use. All bounds here are such weighings, in whole numbers
throughout, so that no rounding can raise one above the truth.

A pattern is a set of items that fits into one bin over the whole horizon. The linear program over all patterns
(Gilmore and Gomory's form, solved by column generation),

    minimize  sum of z_p   subject to   sum over patterns p with item j of z_p >= 1  for each item j,   z >= 0,

starts with few patterns: its dual prices state what a new pattern must be worth to help, and the pricing problem, a
temporal knapsack (:mod:`gpuplanner.planner.temporal_knapsack`), finds the pattern of most value.

The solver's numbers are not trusted. Prices are rounded down to whole numbers v; if no pattern is worth more than V,
every bin pays for at most V of the sum of all v, so at least ceil(sum v / V) bins are needed (Farley's bound [1]_),
exactly.

Short windows around the fullest moments are tried first, then longer ones: the items that are active in a window are a
problem of their own, and its bound is a bound of the whole. Most of the difficulty is at the peaks, so a window of a
few moments often proves what the whole horizon would, in a hundredth of the time.

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

from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.layout_enumeration import list_pareto_counts
from gpuplanner.planner.linear_programs_and_search_limits import LinearProgram
from gpuplanner.planner.packing_problem import (
    AnyPackingProblem,
    Integers,
    MigPackingProblem,
    PackingGrid,
    PackingProblem,
    build_packing_grid,
)
from gpuplanner.planner.temporal_knapsack import MAX_ITEMS_ACTIVE_AT_ONCE, Knapsack, assign_label_bits, price_patterns

Weighing: TypeAlias = tuple[Integers, int]
"""Whole-number weights of the items, shape (n_items,), and the most weight that one bin can hold at a moment."""

_MAX_THRESHOLDS = 1000
"""Most thresholds K of :func:`martello_toth_weighings`."""
_MAX_STEP_FUNCTIONS = 50
"""Most step functions u(k) of :func:`_fekete_schepers_weighings`."""
_PROFILE_PRICE_DENOMINATOR = 5040
"""Denominator of whole-number prices of profiles: divisible by every count up to ten, so that prices such as 1/7 and
3/7 are met exactly.
"""
_MAX_PRICED_MOMENTS = 20
"""Most instants, those with most memory slices in use, for which :func:`layout_weighings` computes prices."""


def moment_bound(problem: AnyPackingProblem, grid: PackingGrid) -> int:
    """Return the best lower bound on bins from item weights: loads, L2, and functions u(k) of Fekete and Schepers [1]_.

    The last prove that only three items of size 33 fit into 100, which L2 does not: its bound is 33 bins for 100 items.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    grid : PackingGrid
        Its items by moment (numbered instant).

    References
    ----------
    .. [1] S. P. Fekete, J. Schepers, "New classes of fast lower bounds for bin packing problems", Mathematical
       Programming 91, 2001, doi:10.1007/s101070100243.

    Examples
    --------
    >>> problem = PackingProblem([0] * 100, [9] * 100, [33] * 100, 100)
    >>> grid = build_packing_grid(problem)
    >>> strongest_bound(grid, martello_toth_weighings(problem)), moment_bound(problem, grid)
    (33, 34)
    """
    return strongest_bound(grid, list_weighings(problem))


def list_weighings(problem: AnyPackingProblem) -> Iterator[Weighing]:
    """Yield all weighings that are cheap to compute."""
    yield from capacity_weighings(problem)
    if isinstance(problem, PackingProblem):
        yield from martello_toth_weighings(problem)
        yield from _fekete_schepers_weighings(problem)
    else:
        yield from layout_weighings(problem)


def strongest_bound(grid: PackingGrid, weighings: Iterable[Weighing]) -> int:
    """Return the best lower bound on the number of bins: the most that any weighing needs at any moment."""
    return max(int(bins_needed(grid, weights, limit).max()) for weights, limit in weighings)


def bins_needed(grid: PackingGrid, weights: Integers, limit: int) -> Integers:
    """Return a lower bound on the bins at each moment: ceil(active weight / `limit`, the most weight of a bin)."""
    return -(-active_weight(grid, weights) // limit)


def active_weight(grid: PackingGrid, weights: Integers) -> Integers:
    """Return the total weight of the items that are active at each moment, shape (n_moments,).

    Examples
    --------
    >>> problem = PackingProblem([0, 1, 6], [5, 9, 9], [60, 50, 40], 100)
    >>> active_weight(build_packing_grid(problem), problem.sizes).tolist()
    [110, 90]
    """
    change = np.zeros(grid.n_moments + 1, dtype=np.int64)
    np.add.at(change, grid.low, weights)
    np.subtract.at(change, grid.high, weights)
    return np.cumsum(change[:-1])


def capacity_weighings(problem: AnyPackingProblem) -> Iterator[Weighing]:
    """Yield sizes against the capacity: the peak load (L1); on MIG GPUs memory slices and engines.

    Examples
    --------
    >>> problem = PackingProblem([0, 0, 0], [9, 9, 9], [60, 60, 60], 100)
    >>> grid = build_packing_grid(problem)
    >>> strongest_bound(grid, capacity_weighings(problem)), strongest_bound(grid, martello_toth_weighings(problem))
    (2, 3)
    """
    if isinstance(problem, MigPackingProblem):
        yield from resource_weighings(problem)
    else:
        yield problem.sizes, problem.capacity


def martello_toth_weighings(problem: PackingProblem) -> Iterator[Weighing]:
    """Yield weighings whose strongest bound is the largest L2 of Martello and Toth over all moments [1]_.

    For a threshold K an item counts as a whole bin if it is larger than C - K, by its size if it is at least K, else
    not at all; and for itself, count the items larger than C/2. L2 is the best over all K; beyond 1000 distinct sizes
    up to C/2, over 1000 of them.

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


def _fekete_schepers_weighings(problem: PackingProblem) -> Iterator[Weighing]:
    """Yield weighings by the step functions u(k) of Fekete and Schepers, times k C so that weights are whole.

    With x = size / C, C being the capacity, u(k) is x if (k + 1) x is whole, else floor((k + 1) x) / k.
    """
    sizes, capacity = problem.sizes, problem.capacity
    for k in range(1, min(capacity, _MAX_STEP_FUNCTIONS) + 1):
        below, remainder = np.divmod((k + 1) * sizes, capacity)
        yield np.where(remainder == 0, k * sizes, below * capacity), k * capacity


def resource_weighings(problem: MigPackingProblem) -> Iterator[Weighing]:
    """Yield weighings by resource: memory slices, and every engine of which the GPU model has a known number.

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
        taken[FULL_GPU] = limit
        yield np.array([taken[name] for name in problem.profiles], dtype=np.int64), limit


def layout_weighings(problem: MigPackingProblem) -> Iterator[Weighing]:
    """Yield weighings by dual prices of the profiles, from covering the fullest moments with fractions of GPUs.

    The prices come from a solver and are rounded; what one layout can hold of them is then computed exactly over all
    layouts of the GPU model, so that rounding can only weaken the bound.
    """
    names = sorted(set(problem.profiles) - {FULL_GPU})
    layouts = [{FULL_GPU: 1}, *(list_pareto_counts(as_gpu_model(problem.gpu_model), names) if names else [])]
    columns = [*names, FULL_GPU]
    holds = np.array([[layout.get(name, 0) for name in columns] for layout in layouts], dtype=np.int64)
    for weights in _profile_prices(problem, holds, columns):
        by_name = dict(zip(columns, weights.tolist(), strict=True))
        yield np.array([by_name[name] for name in problem.profiles]), int((holds @ weights).max())


def _profile_prices(problem: MigPackingProblem, holds: Integers, columns: list[str]) -> Iterator[Integers]:
    """Yield whole-number dual prices of the profiles in `columns`, one array for each of the fullest moments.

    `holds`, shape (n_layouts, n_columns), are the instances of each profile on a GPU with each layout.
    """
    demands = _fullest_moment_counts(problem, columns)
    program = LinearProgram.start_covering(len(columns))
    for layout in holds:
        program.add_column(np.flatnonzero(layout), layout[layout > 0])
    known_prices: set[tuple[int, ...]] = set()
    for demand in demands:
        program.set_cover_demand(demand)
        weights = np.rint(program.solve().duals * _PROFILE_PRICE_DENOMINATOR).astype(np.int64).clip(0)
        if weights.any() and tuple(weights.tolist()) not in known_prices:
            known_prices.add(tuple(weights.tolist()))
            yield weights


def _fullest_moment_counts(problem: MigPackingProblem, columns: list[str]) -> Integers:
    """Return the active instances of the profiles in `columns`, at up to 20 moments with most memory slices in use."""
    grid = build_packing_grid(problem)
    kinds = np.array([columns.index(name) for name in problem.profiles])
    counts = np.stack([active_weight(grid, (kinds == kind).astype(np.int64)) for kind in range(len(columns))], axis=1)
    memory = active_weight(grid, next(resource_weighings(problem))[0])
    return counts[np.argsort(-memory, kind="stable")[:_MAX_PRICED_MOMENTS]]


Patterns = NDArray[np.bool_]
"""Sets of items that fit into one bin: rows of booleans by item."""

BIN_VALUE_UNITS = 10**9
"""Value of one bin in whole numbers: item values and prices are rounded to this fraction of a bin, so that bounds are
exact.
"""

_MAX_EXACT_PRICING_LABELS = 20_000
"""Most labels (partial item sets) kept when the best pattern is searched, which gives the bound."""
_MAX_QUICK_PRICING_LABELS = 300
"""Most labels (partial item sets) kept when further patterns are searched heuristically."""
_STABILIZED_DUAL_WEIGHT = 0.3
"""Weight of the best dual prices so far in the prices that are tried next (stabilized column generation) [0-1]."""
_PATTERN_VALUE_TOLERANCE = 1e-6
"""Tolerance of the optimum of the pattern program and of reduced costs [bins]."""
_MIN_WINDOW_MOMENTS = 8
"""Length of the shortest window for a pattern bound [instants at which items start]."""

_WINDOWS_PER_LENGTH = 3
"""Windows of each length that are tried for a pattern bound, the fullest ones."""


@dataclass
class BinBounds:
    """Bounds on the number of bins.

    - ``lower``, ``upper``: The optimum is between them.
    """

    lower: int
    upper: int

    @property
    def is_closed(self) -> bool:
        """Whether lower and upper bound are equal."""
        return self.lower >= self.upper


def build_knapsack(low: Integers, high: Integers, sizes: Integers, capacity: int) -> Knapsack | None:
    """Build the pricing problem of items; None if too many are active together.

    Parameters
    ----------
    low, high : ndarray of int, shape (n_items,)
        First moment of each item, and the first one after it.
    sizes : ndarray of int, shape (n_items,)
        Sizes.
    capacity : int
        Capacity of the bin.

    Examples
    --------
    >>> ones = np.ones(200, dtype=np.int64)
    >>> build_knapsack(0 * ones, ones, ones, 10) is None
    True
    """
    n_moments = int(high.max())
    started, ended = (np.bincount(times, minlength=n_moments + 1).cumsum() for times in (low, high))
    if (started - ended).max() > MAX_ITEMS_ACTIVE_AT_ONCE:
        return None
    return Knapsack(low, high, sizes, assign_label_bits(low, high), capacity, n_moments)


class PatternBound:
    """The linear program over patterns, solved step by step by column generation.

    It starts with some patterns, such as the bins of a packing, which fit and cover every item.

    - ``value``: Optimum of the linear program with the patterns so far; not a bound.
    - ``bound``: Best proven lower bound, a fraction. [bins]
    - ``whole_bound``: The same rounded up, exactly. [bins]
    - ``exhausted``: Whether no pattern can improve the program.

    Examples
    --------
    >>> low, high = np.zeros(3, np.int64), np.ones(3, np.int64)
    >>> knapsack = build_knapsack(low, high, np.array([50, 50, 50]), 100)
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
        self.value = float(n_items)
        self.bound = 0.0
        self.whole_bound = 0
        self.exhausted = False
        self.values = np.zeros(n_items, dtype=np.int64)  # prices that proved the best bound
        self._steady_prices: NDArray[np.float64] | None = None
        self._master = LinearProgram.start_covering(n_items)
        limits = np.full(knapsack.n_moments, knapsack.capacity, dtype=np.int64)
        self._relaxed = LinearProgram.start_packing(knapsack.low, knapsack.high, knapsack.sizes, limits)
        self._add_patterns(patterns)

    def step(self) -> int:
        """Do one step of column generation (solve, price, add patterns); return the work done [elementary steps]."""
        answer = self._master.solve()
        self.value = answer.value
        duals, work = answer.duals, answer.work
        trial = (
            duals
            if self._steady_prices is None
            else _STABILIZED_DUAL_WEIGHT * self._steady_prices + (1 - _STABILIZED_DUAL_WEIGHT) * duals
        )
        n_added, pricing_work = self._price_patterns(trial, duals)
        work += pricing_work
        if not n_added and self._steady_prices is not None:
            # Stabilized prices may find no pattern where the duals do.
            n_added, pricing_work = self._price_patterns(duals, duals)
            work += pricing_work
        self.exhausted = not n_added
        return work

    @property
    def has_converged(self) -> bool:
        """Whether further steps cannot raise the lower bound by a whole bin."""
        return self.exhausted or math.ceil(self.value - _PATTERN_VALUE_TOLERANCE) <= self.whole_bound

    def _price_patterns(self, trial: NDArray[np.float64], duals: NDArray[np.float64]) -> tuple[int, int]:
        """Search patterns at trial prices, update the bound, add those that improve; return patterns added and work."""
        values = np.floor(trial * BIN_VALUE_UNITS).astype(np.int64)
        prices, work = self.price_moments(values)
        best = price_patterns(
            self.knapsack, values, prices, floor=BIN_VALUE_UNITS, most_labels=_MAX_EXACT_PRICING_LABELS, most_patterns=8
        )
        work += best.work
        total = int(values.sum())
        self.whole_bound = max(self.whole_bound, -(-total // best.ceiling))
        if total / best.ceiling > self.bound:
            self.bound = total / best.ceiling
            self.values = values
            self._steady_prices = trial
        n_added = self._add_improving_patterns(best.patterns, duals)
        # Further patterns of the remaining items, found quickly and not exactly.
        values_left = values.copy()
        new_patterns = best.patterns[:1]
        while len(new_patterns):
            values_left[new_patterns[0]] = 0
            quick = price_patterns(
                self.knapsack, values_left, prices, floor=BIN_VALUE_UNITS, most_labels=_MAX_QUICK_PRICING_LABELS
            )
            work += quick.work
            new_patterns = quick.patterns
            n_added += self._add_improving_patterns(new_patterns, duals)
        return n_added, work

    def price_moments(self, values: Integers) -> tuple[Integers, int]:
        """Return integer prices of the capacity at each moment, which guide pricing, and the work to find them."""
        self._relaxed.set_item_values(values / BIN_VALUE_UNITS)
        answer = self._relaxed.solve()
        return np.floor(answer.duals * BIN_VALUE_UNITS).astype(np.int64), answer.work

    def _add_improving_patterns(self, patterns: Patterns, duals: NDArray[np.float64]) -> int:
        """Add the patterns of negative reduced cost to the linear program; return how many."""
        helpful = patterns[patterns @ duals > 1 + _PATTERN_VALUE_TOLERANCE]
        self._add_patterns(helpful)
        return len(helpful)

    def _add_patterns(self, patterns: Patterns) -> None:
        """Add patterns as columns of the linear program."""
        for pattern in patterns:
            self.patterns.append(pattern)
            self._master.add_column(np.flatnonzero(pattern), np.ones(int(pattern.sum())))


def raise_bound(pattern_bound: PatternBound, bounds: BinBounds) -> Iterator[int]:
    """Generate columns until the lower bound meets the upper one or cannot rise; yield work [elementary steps]."""
    while not bounds.is_closed and not pattern_bound.has_converged:
        yield pattern_bound.step()
        bounds.lower = max(bounds.lower, pattern_bound.whole_bound)
        if pattern_bound.value <= bounds.lower + _PATTERN_VALUE_TOLERANCE:
            return


def peak_windows(active_load: Integers) -> Iterator[tuple[int, int]]:
    """Yield windows (first moment, end): the three fullest of 8 moments, then of 16, and so on, at last all.

    Examples
    --------
    >>> list(peak_windows(np.array([1] * 9 + [5] * 8 + [1] * 3)))
    [(9, 17), (5, 13), (0, 8), (1, 17), (0, 20)]
    """
    length = _MIN_WINDOW_MOMENTS
    sums = np.concatenate(([0], np.cumsum(active_load)))
    while length < len(active_load):
        fullness = sums[length:] - sums[:-length]
        for _ in range(_WINDOWS_PER_LENGTH):
            first = int(np.argmax(fullness))
            if fullness[first] < 0:
                break
            yield first, first + length
            # The next window of this length shares at most half of it.
            fullness[max(0, first - length // 2 + 1) : first + length // 2] = -1
        length *= 2
    yield 0, len(active_load)


def raise_bound_by_windows(
    problem: PackingProblem, grid: PackingGrid, bounds: BinBounds, current_bins: Callable[[], Integers]
) -> Iterator[int]:
    """Raise the lower bound by the pattern bounds of windows; yield the work of each step [elementary steps].

    Parameters
    ----------
    problem : PackingProblem
        The problem.
    grid : PackingGrid
        Its items by moment (numbered instant).
    bounds : BinBounds
        Bounds; the lower one is raised.
    current_bins : callable
        Returns the bin of each item in the best packing.
    """
    for window in peak_windows(active_weight(grid, problem.sizes)):
        pattern_bound = build_window_bound(problem, grid, window, current_bins())
        if pattern_bound is not None:
            yield from raise_bound(pattern_bound, bounds)
        if bounds.is_closed:
            return


def build_window_bound(
    problem: PackingProblem, grid: PackingGrid, window: tuple[int, int], bin_of_item: Integers
) -> PatternBound | None:
    """Build the pattern program of the items in a window; None if too many of them are active together.

    Parameters
    ----------
    problem : PackingProblem
        The problem.
    grid : PackingGrid
        Its items by moment (numbered instant).
    window : tuple of (int, int)
        First moment, and the first one after the window.
    bin_of_item : ndarray of int, shape (n_items,)
        Bins of a packing, as first patterns.
    """
    first, last = window
    items_inside = np.flatnonzero((grid.low < last) & (grid.high > first))
    low = np.maximum(grid.low[items_inside], first) - first
    high = np.minimum(grid.high[items_inside], last) - first
    knapsack = build_knapsack(low, high, problem.sizes[items_inside], problem.capacity)
    if knapsack is None:
        return None
    bins = bin_of_item[items_inside]
    return PatternBound(knapsack, bins == np.unique(bins)[:, None])
