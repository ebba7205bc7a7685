"""No bound is above the optimum, and each is what its paper says."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner.packing_bounds import (
    BinBounds,
    build_knapsack,
    build_window_bound,
    capacity_weighings,
    list_weighings,
    martello_toth_weighings,
    moment_bound,
    raise_bound_by_windows,
    strongest_bound,
)
from gpuplanner.planner.packing_problem import PackingProblem, build_packing_grid, list_relevant_moments
from gpuplanner.planner.temporal_knapsack import price_patterns
from tests.examples import examples
from tests.seeds import seeds


def static(sizes: list[int], capacity: int) -> PackingProblem:
    return PackingProblem([0] * len(sizes), [1] * len(sizes), sizes, capacity)


def martello_toth(sizes: list[int], capacity: int) -> int:
    """L2 as the paper writes it."""
    best = 0
    for threshold in range(capacity // 2 + 1):
        one = [size for size in sizes if size > capacity - threshold]
        two = [size for size in sizes if capacity - threshold >= size > capacity / 2]
        three = [size for size in sizes if capacity / 2 >= size >= threshold]
        rest = sum(three) - (len(two) * capacity - sum(two))
        best = max(best, len(one) + len(two) + max(0, math.ceil(rest / capacity)))
    return best


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_heaviest_of_the_thresholds_is_the_l2_of_the_paper(data):
    capacity = data.draw(st.integers(1, 40))
    sizes = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=15))
    problem = static(sizes, capacity)
    assert strongest_bound(build_packing_grid(problem), martello_toth_weighings(problem)) == martello_toth(
        sizes, capacity
    )


@given(st.integers(2, 40), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_no_bin_weighs_more_than_the_limit(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=6))
    for weights, limit in list_weighings(static(sizes, capacity)):
        for chosen in itertools.product((False, True), repeat=len(sizes)):
            if np.dot(chosen, sizes) <= capacity:
                assert np.dot(chosen, weights) <= limit


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(40, 80))
def test_bounds_grow_and_stay_below_the_optimum(draw, fewest, seed):
    problem = draw(seed)
    grid = build_packing_grid(problem)
    goal = BinBounds(moment_bound(problem, grid), problem.n_items)
    ladder = [
        strongest_bound(grid, capacity_weighings(problem)),
        strongest_bound(grid, martello_toth_weighings(problem)),
        goal.lower,
    ]
    for _ in raise_bound_by_windows(problem, grid, goal, lambda: np.arange(problem.n_items)):
        pass
    ladder += [goal.lower, fewest(problem)]
    assert ladder == sorted(ladder)


def test_patterns_see_what_no_single_moment_shows(fewest):
    """Two bins are enough at each moment, but not for all of them together."""
    problem = PackingProblem([3, 3, 0, 2, 4], [4, 7, 4, 5, 6], [64, 46, 44, 34, 69], 100)
    grid = build_packing_grid(problem)
    program = build_window_bound(problem, grid, (0, grid.n_moments), np.arange(5))
    while not program.exhausted:
        program.step()
    assert (moment_bound(problem, grid), program.whole_bound, fewest(problem)) == (2, 3, 3)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(30, 60))
def test_pricing_finds_the_best_set(draw, seed):
    problem = draw(seed, most_items=8)
    rng = np.random.default_rng(seed)
    grid = build_packing_grid(problem)
    knapsack = build_knapsack(grid.low, grid.high, problem.sizes, problem.capacity)
    values = rng.integers(0, 50, problem.n_items)
    worth = {}
    for chosen in itertools.product((False, True), repeat=problem.n_items):
        held = np.array(chosen)
        loads = [problem.sizes[held & (grid.low <= t) & (t < grid.high)].sum() for t in range(grid.n_moments)]
        if max(loads) <= problem.capacity:
            worth[chosen] = int(values @ held)
    best = max(worth.values())
    for prices in (np.zeros(grid.n_moments, np.int64), rng.integers(0, 9, grid.n_moments)):
        found = price_patterns(knapsack, values, prices, floor=0, most_labels=1000)
        assert (found.best, found.ceiling) == (best, best)
        if best:
            assert worth[tuple(found.patterns[0].tolist())] == best
        cut = price_patterns(knapsack, values, prices, floor=0, most_labels=2)
        assert cut.best <= best <= cut.ceiling
        listed = price_patterns(knapsack, values, prices, floor=0, most_labels=1000, merge=False, most_patterns=1000)
        wanted = {chosen for chosen, value in worth.items() if value > 0 and not np.any(~(values > 0) & chosen)}
        assert {tuple(row) for row in listed.patterns.tolist()} == wanted


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=12))
@settings(max_examples=examples(50), deadline=None)
def test_every_set_active_at_once_is_active_at_a_moment_that_matters(lives):
    starts = np.array([start for start, _ in lives])
    ends = starts + [life for _, life in lives]
    active = [frozenset(np.flatnonzero((starts <= t) & (t < ends))) for t in list_relevant_moments(starts, ends)]
    for t in range(30):
        now = frozenset(np.flatnonzero((starts <= t) & (t < ends)))
        assert any(now <= kept for kept in active)
