"""Search for packings with fewer bins, exact for small problems.

Take whole values v of the items such that no pattern is worth more than V. In a packing of L bins the values add
up to sum v, and L - 1 of the bins hold at most V each, so every bin holds at least sum v - (L - 1) V [1]_. With the
prices of the pattern program few patterns are worth that much. If no L of them cover the items, L + 1 bins are
needed.

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

from gpuplanner.planner.linear_model import UNIT, Effort, fewest_columns
from gpuplanner.planner.packing_bounds import (
    SCALE,
    Goal,
    PatternBound,
    moment_bound,
    program_of,
    stronger_bounds,
)
from gpuplanner.planner.packing_heuristics import RULES, Elimination, fit, orders
from gpuplanner.planner.packing_problem import AnyProblem, Grid, Integers, Packing, PackingProblem, as_grid
from gpuplanner.planner.temporal_knapsack import price

_MOST_PATTERNS = 30_000
_MOST_LABELS = 300_000  # few of the labels that are made on the way end as patterns
_LEAST_VALUE = SCALE // 10**6  # an item worth nothing would be in no pattern


@dataclass(frozen=True)
class Settled:
    """Answer of :func:`settle`.

    - ``bin_of``, shape (n_items,): A packing, if one was found.
    - ``impossible``: Whether it is proven that there is none.
    - ``work``: Labels made.
    """

    bin_of: Integers | None
    impossible: bool
    work: int


def settle(program: PatternBound, most: int, *, time_limit_s: float, seed: int) -> Settled:
    """Find a packing of at most `most` bins, or prove that there is none, or give up.

    Examples
    --------
    >>> import numpy as np
    >>> from gpuplanner.planner.packing_bounds import as_knapsack
    >>> low, high = np.zeros(4, np.int64), np.ones(4, np.int64)
    >>> program = PatternBound(as_knapsack(low, high, np.array([40, 40, 60, 60]), 100), np.eye(4, dtype=bool))
    >>> while not program.exhausted:
    ...     _ = program.step()
    >>> sorted(settle(program, 2, time_limit_s=9, seed=0).bin_of.tolist())
    [0, 0, 1, 1]
    >>> settle(program, 1, time_limit_s=9, seed=0).impossible
    True
    """
    values = np.maximum(program.values, _LEAST_VALUE)
    prices, work = program.moment_prices(values)
    top = price(program.knapsack, values, prices, floor=0, most_labels=_MOST_PATTERNS)
    least = max(int(values.sum()) - (most - 1) * top.ceiling, 1)
    limits = {"floor": least - 1, "most_labels": _MOST_LABELS, "most_patterns": _MOST_PATTERNS}
    listed = price(program.knapsack, values, prices, merge=False, **limits)
    work += top.work + listed.work
    if least > top.ceiling:
        return Settled(None, True, work)
    whole = not listed.truncated and len(listed.patterns) < _MOST_PATTERNS
    # Without the whole list the patterns of the program may still make a packing, but prove nothing.
    patterns = listed.patterns if whole else np.array(program.patterns)
    if not patterns.any(axis=0).all():
        return Settled(None, whole, work)
    chosen, decided = fewest_columns(patterns, most, time_limit_s=time_limit_s, seed=seed)
    if chosen is None:
        return Settled(None, whole and decided, work)
    _, bin_of = np.unique(np.argmax(patterns[chosen], axis=0), return_inverse=True)
    return Settled(bin_of.astype(np.int64), False, work)


_SMALL = 300  # items up to which an exact answer is tried
_STEPS_PER_LABEL = 4  # a step of the bound takes about as long as four of the search for fewer bins


@dataclass
class _Incumbent:
    """The best packing so far."""

    bin_of: Integers
    way_of: Integers

    @property
    def bins(self) -> int:
        return int(self.bin_of.max()) + 1

    def take(self, bin_of: Integers, way_of: Integers, goal: Goal) -> None:
        self.bin_of, self.way_of = bin_of.copy(), way_of.copy()
        goal.upper = self.bins


def pack(problem: AnyProblem, *, time_limit_s: float = 5.0, work_limit: int | None = None, seed: int = 0) -> Packing:
    """Pack items into few bins, with a bound on how few there could be.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    time_limit_s : float
        Most seconds; the search ends earlier when the bound is met.
    work_limit : int, optional
        Most units of a million elementary steps: with it, and time enough, the same problem and seed give the
        same packing on every machine.
    seed : int
        Seed of everything random.

    Returns
    -------
    Packing
        Always a packing that holds; Ctrl-C and the limits return the best one so far.

    Raises
    ------
    ScenarioError
        If a limit makes no sense.
    MissingDependencyError
        If numba or HiGHS is not installed.

    Examples
    --------
    >>> problem = PackingProblem([0, 0, 2, 2], [4, 2, 4, 6], [60, 40, 40, 60], capacity=100)
    >>> found = pack(problem)
    >>> found.bins, found.proven, found.assignment.tolist()
    (2, True, [0, 0, 0, 1])
    """
    _compile()
    began = time.monotonic()
    effort = Effort.begin(time_limit_s=time_limit_s, seed=seed, work_limit=work_limit, what="packing")
    grid = as_grid(problem)
    goal = Goal(lower=1, upper=problem.n_items)
    best = _Incumbent(np.arange(problem.n_items), grid.first[:-1].copy())
    try:
        goal.lower = moment_bound(problem, grid)
        stopped_by = _search(problem, grid, goal, best, effort)
    except KeyboardInterrupt:
        stopped_by = "user"
    places = None if isinstance(problem, PackingProblem) else grid.places[best.way_of]
    lower = min(goal.lower, best.bins)
    return Packing(best.bins, lower, best.bin_of, places, stopped_by, time.monotonic() - began)


def _search(problem: AnyProblem, grid: Grid, goal: Goal, best: _Incumbent, effort: Effort) -> str:
    for work in _greedy(problem, grid, goal, best):
        effort.spend(work)
        if (why := _why_over(goal, effort)) is not None:
            return why
    higher: Iterator[int] = iter(())
    if isinstance(problem, PackingProblem):
        higher = _higher_bound(problem, grid, goal, best, effort)
    behind = 0  # work that the search for a higher bound may do until it is the other's turn
    longest_s = 0.0
    for work in _fewer_bins(grid, goal, best, effort.seed):
        effort.spend(work)
        behind += work
        # A step of the bound may be long: none is begun that might not end in time.
        while behind > 0 and _why_over(goal, effort) is None and effort.remaining_s() > longest_s:
            begun_s = time.monotonic()
            step = next(higher, None)
            if step is None:
                break
            longest_s = max(longest_s, time.monotonic() - begun_s)
            effort.spend(step * _STEPS_PER_LABEL)
            behind -= step * _STEPS_PER_LABEL
        if (why := _why_over(goal, effort)) is not None:
            return why
    return "proof"


def _why_over(goal: Goal, effort: Effort) -> str | None:
    return "proof" if goal.reached else effort.why_spent()


def _greedy(problem: AnyProblem, grid: Grid, goal: Goal, best: _Incumbent) -> Iterator[int]:
    """Every order with every rule, each with the bins that would make it better than those before."""
    most = goal.lower + goal.lower // 4 + 4
    for order in orders(problem):
        for rule in RULES:
            bins = fit(grid, order, rule=rule, most=most)
            while bins is None and most < best.bins - 1:
                # The first order has not succeeded yet: the guess was too low.
                most = min(2 * most, best.bins - 1)
                bins = fit(grid, order, rule=rule, most=most)
            if bins is not None:
                best.take(bins.bin_of, bins.way_of, goal)
                most = goal.upper - 1
            yield grid.n_items * most
            if goal.reached:
                return


def _fewer_bins(grid: Grid, goal: Goal, best: _Incumbent, seed: int) -> Iterator[int]:
    """Take away one bin after another, for as long as it is wanted."""
    while not goal.reached:
        attempt = Elimination(grid, best.bin_of, best.way_of, seed=seed)
        while not attempt.done:
            yield attempt.run(UNIT)
        best.take(attempt.bins.bin_of, attempt.bins.way_of, goal)


def _higher_bound(problem: PackingProblem, grid: Grid, goal: Goal, best: _Incumbent, effort: Effort) -> Iterator[int]:
    """Pattern bounds of windows; then, if the problem is small, an exact answer for one number after another."""
    yield from stronger_bounds(problem, grid, goal, lambda: best.bin_of)
    if grid.n_items > _SMALL or goal.reached:
        return
    program = program_of(problem, grid, (0, grid.n_moments), best.bin_of)
    if program is None:
        return
    while not program.exhausted:
        yield program.step()
    while not goal.reached:
        answer = settle(program, goal.lower, time_limit_s=effort.remaining_s() + 0.01, seed=effort.seed)
        if answer.bin_of is not None:
            best.take(answer.bin_of, grid.first[:-1], goal)
        elif answer.impossible:
            goal.lower += 1
        else:
            return
        yield answer.work


@functools.cache
def _compile() -> None:
    """Have everything compiled, or loaded from disk, before the clock of the first search starts."""
    starts, ends, sizes = np.array([0, 0, 0, 1]), np.array([2, 2, 2, 2]), np.array([50, 30, 70, 50])
    problem = PackingProblem(starts, ends, sizes, 100)
    grid = as_grid(problem)
    goal, best = Goal(1, 4), _Incumbent(np.arange(4), np.arange(4))
    next(_fewer_bins(grid, goal, best, 0))
    next(_greedy(problem, grid, goal, best))
    next(stronger_bounds(problem, grid, goal, lambda: np.arange(4)))
