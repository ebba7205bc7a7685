"""Search for packings with few bins, exact for small problems.

Take whole values v of the items such that no pattern is worth more than V. In a packing of L bins the values add up to
sum v, and L - 1 of the bins hold at most V each, so every bin holds at least sum v - (L - 1) V [1]_. With the prices
of the pattern program few patterns are worth that much. If no L of them cover the items, L + 1 bins are needed.

References
----------
.. [1] R. Baldacci, N. Christofides, A. Mingozzi, "An exact algorithm for the vehicle routing problem based on the
   set partitioning formulation with additional cuts", Mathematical Programming 115, 2008,
   doi:10.1007/s10107-007-0178-5.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuplanner.planner.linear_programs_and_search_limits import (
    STEPS_PER_WORK_UNIT,
    SearchEffort,
    cover_with_fewest_patterns,
)
from gpuplanner.planner.packing_bounds import (
    BIN_VALUE_UNITS,
    BinBounds,
    PatternBound,
    build_window_bound,
    moment_bound,
    raise_bound_by_windows,
)
from gpuplanner.planner.packing_heuristics import BIN_FIT_RULES, BinElimination, list_item_orders, pack_in_order
from gpuplanner.planner.packing_problem import (
    AnyPackingProblem,
    Integers,
    Packing,
    PackingGrid,
    PackingProblem,
    build_packing_grid,
)
from gpuplanner.planner.temporal_knapsack import price_patterns

_MAX_LISTED_PATTERNS = 30_000
"""Most patterns (sets of items that fit into a bin) listed to decide a number of bins."""
_MAX_LISTING_LABELS = 300_000
"""Most labels (partial item sets) kept while patterns are listed; few labels become patterns."""
_MIN_ITEM_VALUE = BIN_VALUE_UNITS // 10**6
"""Least value of an item in the search for patterns: an item without value would be in none."""


@dataclass(frozen=True)
class BinCountDecision:
    """Answer of :func:`decide_bin_count`.

    - ``bin_of``, shape (n_items,): Bin of each item, if a packing was found.
    - ``impossible``: Whether it is proven that there is none.
    - ``work``: Labels (partial item sets) made.
    """

    bin_of: Integers | None
    impossible: bool
    work: int


def decide_bin_count(pattern_bound: PatternBound, max_bins: int, *, time_limit_s: float, seed: int) -> BinCountDecision:
    """Find a packing of at most `max_bins` bins, or prove that there is none, or give up.

    Parameters
    ----------
    pattern_bound : PatternBound
        Linear program over patterns, solved.
    max_bins : int
        Most bins.
    time_limit_s : float
        Time limit of the set covering. [s]
    seed : int
        Seed of the solver.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuplanner.planner.packing_bounds import build_knapsack
    >>> low, high = np.zeros(4, np.int64), np.ones(4, np.int64)
    >>> program = PatternBound(build_knapsack(low, high, np.array([40, 40, 60, 60]), 100), np.eye(4, dtype=bool))
    >>> while not program.exhausted:
    ...     _ = program.step()
    >>> sorted(decide_bin_count(program, 2, time_limit_s=9, seed=0).bin_of.tolist())
    [0, 0, 1, 1]
    >>> decide_bin_count(program, 1, time_limit_s=9, seed=0).impossible
    True
    """
    values = np.maximum(pattern_bound.values, _MIN_ITEM_VALUE)
    prices, work = pattern_bound.price_moments(values)
    best_answer = price_patterns(pattern_bound.knapsack, values, prices, floor=0, most_labels=_MAX_LISTED_PATTERNS)
    min_pattern_value = max(int(values.sum()) - (max_bins - 1) * best_answer.ceiling, 1)
    limits = {"floor": min_pattern_value - 1, "most_labels": _MAX_LISTING_LABELS, "most_patterns": _MAX_LISTED_PATTERNS}
    listing = price_patterns(pattern_bound.knapsack, values, prices, merge=False, **limits)
    work += best_answer.work + listing.work
    if min_pattern_value > best_answer.ceiling:
        return BinCountDecision(None, True, work)
    is_complete = not listing.truncated and len(listing.patterns) < _MAX_LISTED_PATTERNS
    # If the list is incomplete, the patterns of the program may still cover the items, but prove nothing.
    patterns = listing.patterns if is_complete else np.array(pattern_bound.patterns)
    if not patterns.any(axis=0).all():
        return BinCountDecision(None, is_complete, work)
    chosen, is_decided = cover_with_fewest_patterns(patterns, max_bins, time_limit_s=time_limit_s, seed=seed)
    if chosen is None:
        return BinCountDecision(None, is_complete and is_decided, work)
    _, bin_of = np.unique(np.argmax(patterns[chosen], axis=0), return_inverse=True)
    return BinCountDecision(bin_of.astype(np.int64), False, work)


_MAX_EXACT_ITEMS = 300
"""Most items of a problem for which numbers of bins are decided exactly."""
_EFFORT_STEPS_PER_BOUND_STEP = 4
"""Elementary steps that one step of the bound counts for, as it takes about as long as four of bin elimination."""


@dataclass
class _Incumbent:
    """Best packing so far."""

    bin_of: Integers
    placement_of: Integers

    @property
    def bins(self) -> int:
        """Number of bins in use."""
        return int(self.bin_of.max()) + 1

    def update(self, bin_of: Integers, placement_of: Integers, bounds: BinBounds) -> None:
        """Replace the packing by a better one, and lower the upper bound on the number of bins accordingly."""
        self.bin_of, self.placement_of = bin_of.copy(), placement_of.copy()
        bounds.upper = self.bins


def pack(
    problem: AnyPackingProblem, *, time_limit_s: float = 5.0, work_limit: int | None = None, seed: int = 0
) -> Packing:
    """Pack items into few bins, with a lower bound on the number of bins.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    time_limit_s : float
        Time limit; the search ends earlier when the bound is met. [s]
    work_limit : int, optional
        Most units of a million elementary steps: with it, and time enough, the same problem and seed give the same
        packing on every machine.
    seed : int
        Seed of the search.

    Returns
    -------
    Packing
        Always a feasible packing; Ctrl-C and the limits return the best one so far.

    Raises
    ------
    ScenarioError
        If a limit is invalid.
    MissingDependencyError
        If numba or HiGHS is not installed.

    Examples
    --------
    >>> problem = PackingProblem([0, 0, 2, 2], [4, 2, 4, 6], [60, 40, 40, 60], capacity=100)
    >>> found = pack(problem)
    >>> found.bins, found.proven, found.assignment.tolist()
    (2, True, [0, 0, 0, 1])
    """
    _compile_search_functions()
    started = time.monotonic()
    effort = SearchEffort.begin(time_limit_s=time_limit_s, seed=seed, work_limit=work_limit, error_context="packing")
    grid = build_packing_grid(problem)
    bounds = BinBounds(lower=1, upper=problem.n_items)
    best = _Incumbent(np.arange(problem.n_items), grid.first[:-1].copy())
    try:
        bounds.lower = moment_bound(problem, grid)
        stopped_by = _search_both_sides(problem, grid, bounds, best, effort)
    except KeyboardInterrupt:
        stopped_by = "user"
    places = None if isinstance(problem, PackingProblem) else grid.places[best.placement_of]
    lower = min(bounds.lower, best.bins)
    return Packing(best.bins, lower, best.bin_of, places, stopped_by, time.monotonic() - started)


def _search_both_sides(
    problem: AnyPackingProblem, grid: PackingGrid, bounds: BinBounds, best: _Incumbent, effort: SearchEffort
) -> str:
    """Search for fewer bins and for a higher bound in turn; return the reason for the stop.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    grid : PackingGrid
        Items by moment (numbered instant).
    bounds : BinBounds
        Bounds on the number of bins; changed.
    best : _Incumbent
        Best packing so far; changed.
    effort : SearchEffort
        Time and work limits of the search.
    """
    for work in _try_greedy_orders(problem, grid, bounds, best):
        effort.count_steps(work)
        if (stop_reason := _stop_reason(bounds, effort)) is not None:
            return stop_reason
    bound_steps: Iterator[int] = iter(())
    if isinstance(problem, PackingProblem):
        bound_steps = _raise_lower_bound(problem, grid, bounds, best, effort)
    work_ahead = 0  # work by which the elimination is ahead of the bound
    longest_s = 0.0
    for work in _eliminate_bins(grid, bounds, best, effort.seed):
        effort.count_steps(work)
        work_ahead += work
        # A step of the bound may be long: none is started that might not end in time.
        while work_ahead > 0 and _stop_reason(bounds, effort) is None and effort.remaining_s() > longest_s:
            step_start_s = time.monotonic()
            step = next(bound_steps, None)
            if step is None:
                break
            longest_s = max(longest_s, time.monotonic() - step_start_s)
            effort.count_steps(step * _EFFORT_STEPS_PER_BOUND_STEP)
            work_ahead -= step * _EFFORT_STEPS_PER_BOUND_STEP
        if (stop_reason := _stop_reason(bounds, effort)) is not None:
            return stop_reason
    return "proof"


def _stop_reason(bounds: BinBounds, effort: SearchEffort) -> str | None:
    """Return why the search ends now, or None."""
    return "proof" if bounds.is_closed else effort.reached_limit()


def _try_greedy_orders(
    problem: AnyPackingProblem, grid: PackingGrid, bounds: BinBounds, best: _Incumbent
) -> Iterator[int]:
    """Pack by every item order and placement rule, each with fewer bins than those before; yield the work.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    grid : PackingGrid
        Items by moment (numbered instant).
    bounds : BinBounds
        Bounds on the number of bins; changed.
    best : _Incumbent
        Best packing so far; changed.
    """
    max_bins = bounds.lower + bounds.lower // 4 + 4
    for order in list_item_orders(problem):
        for rule in BIN_FIT_RULES:
            bins = pack_in_order(grid, order, rule=rule, max_bins=max_bins)
            while bins is None and max_bins < best.bins - 1:
                # No order has succeeded yet: the number of bins was too low.
                max_bins = min(2 * max_bins, best.bins - 1)
                bins = pack_in_order(grid, order, rule=rule, max_bins=max_bins)
            if bins is not None:
                best.update(bins.bin_of, bins.placement_of, bounds)
                max_bins = bounds.upper - 1
            yield grid.n_items * max_bins
            if bounds.is_closed:
                return


def _eliminate_bins(grid: PackingGrid, bounds: BinBounds, best: _Incumbent, seed: int) -> Iterator[int]:
    """Eliminate one bin after another until the bounds meet; yield the work of each step [elementary steps].

    Parameters
    ----------
    grid : PackingGrid
        Items by moment (numbered instant).
    bounds : BinBounds
        Bounds on the number of bins; changed.
    best : _Incumbent
        Best packing so far; changed.
    seed : int
        Seed of the search.
    """
    while not bounds.is_closed:
        attempt = BinElimination(grid, best.bin_of, best.placement_of, seed=seed)
        while not attempt.is_done:
            yield attempt.run_search(STEPS_PER_WORK_UNIT)
        best.update(attempt.bins.bin_of, attempt.bins.placement_of, bounds)


def _raise_lower_bound(
    problem: PackingProblem, grid: PackingGrid, bounds: BinBounds, best: _Incumbent, effort: SearchEffort
) -> Iterator[int]:
    """Raise the lower bound by pattern bounds of windows; for a small problem, then decide numbers of bins exactly.

    Yields the work of each step [elementary steps].

    Parameters
    ----------
    problem : PackingProblem
        The problem.
    grid : PackingGrid
        Items by moment (numbered instant).
    bounds : BinBounds
        Bounds on the number of bins; changed.
    best : _Incumbent
        Best packing so far; changed.
    effort : SearchEffort
        Time and work limits of the search.
    """
    yield from raise_bound_by_windows(problem, grid, bounds, lambda: best.bin_of)
    if grid.n_items > _MAX_EXACT_ITEMS or bounds.is_closed:
        return
    pattern_bound = build_window_bound(problem, grid, (0, grid.n_moments), best.bin_of)
    if pattern_bound is None:
        return
    while not pattern_bound.exhausted:
        yield pattern_bound.step()
    while not bounds.is_closed:
        answer = decide_bin_count(
            pattern_bound, bounds.lower, time_limit_s=effort.remaining_s() + 0.01, seed=effort.seed
        )
        if answer.bin_of is not None:
            best.update(answer.bin_of, grid.first[:-1], bounds)
        elif answer.impossible:
            bounds.lower += 1
        else:
            return
        yield answer.work


@functools.cache
def _compile_search_functions() -> None:
    """Compile, or load from disk, all compiled functions before the clock of the first search starts."""
    starts, ends, sizes = np.array([0, 0, 0, 1]), np.array([2, 2, 2, 2]), np.array([50, 30, 70, 50])
    problem = PackingProblem(starts, ends, sizes, 100)
    grid = build_packing_grid(problem)
    bounds, best = BinBounds(1, 4), _Incumbent(np.arange(4), np.arange(4))
    next(_eliminate_bins(grid, bounds, best, 0))
    next(_try_greedy_orders(problem, grid, bounds, best))
    next(raise_bound_by_windows(problem, grid, bounds, lambda: np.arange(4)))
