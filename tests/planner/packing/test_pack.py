"""Packings against everything tried, properties, and how a search ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner import packing_search as search
from gpuplanner.planner.packing_files_and_verification import verify_packing
from gpuplanner.planner.packing_heuristics import BIN_FIT_RULES, list_item_orders, pack_in_order
from gpuplanner.planner.packing_problem import PackingProblem, build_packing_grid
from gpuplanner.planner.packing_search import pack
from tests.examples import examples
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(75, 150))
def test_small_problems_are_solved_to_proof(draw, fewest, seed):
    problem = draw(seed)
    found = pack(problem, work_limit=100)
    assert verify_packing(found, problem) == []
    assert found.proven
    assert found.bins == fewest(problem)


problems = st.builds(
    lambda items, capacity: PackingProblem(
        [start for start, _, _ in items],
        [start + life for start, life, _ in items],
        [1 + size % capacity for _, _, size in items],
        capacity,
    ),
    st.lists(st.tuples(st.integers(-5, 20), st.integers(1, 9), st.integers(0, 999)), min_size=1, max_size=25),
    st.integers(1, 100),
)


@given(problems, st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_order_of_items_and_origin_of_time_change_nothing(problem, random):
    order = list(range(problem.n_items))
    random.shuffle(order)
    moved = PackingProblem(problem.starts[order] + 7, problem.ends[order] + 7, problem.sizes[order], problem.capacity)
    one, two = pack(problem, work_limit=30), pack(moved, work_limit=30)
    assert verify_packing(one, problem) == verify_packing(two, moved) == []
    assert max(one.lower_bound, two.lower_bound) <= min(one.bins, two.bins)


@given(problems)
@settings(max_examples=examples(40), deadline=None)
def test_an_item_less_or_a_larger_bin_never_needs_more(problem):
    whole = pack(problem, work_limit=30)
    larger = PackingProblem(problem.starts, problem.ends, problem.sizes, problem.capacity + 10)
    assert pack(larger, work_limit=30).lower_bound <= whole.bins
    if problem.n_items > 1:
        fewer = PackingProblem(problem.starts[1:], problem.ends[1:], problem.sizes[1:], problem.capacity)
        found = pack(fewer, work_limit=30)
        assert found.lower_bound <= whole.bins
        assert whole.lower_bound <= found.bins + 1


def test_mirrored_time_is_the_same_problem(draw):
    for seed in range(20):
        problem = draw(seed, most_items=20)
        mirrored = PackingProblem(-problem.ends, -problem.starts, problem.sizes, problem.capacity)
        one, two = pack(problem, work_limit=50), pack(mirrored, work_limit=50)
        assert max(one.lower_bound, two.lower_bound) <= min(one.bins, two.bins)


def hard(seed: int = 0, n_items: int = 120) -> PackingProblem:
    """Triples of a third each, slightly too large to be seen by the bounds of single moments."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 120, n_items)
    return PackingProblem(starts, starts + rng.integers(20, 60, n_items), rng.integers(25, 50, n_items), 100)


def test_same_work_and_seed_same_bytes():
    problem = hard()
    texts = {pack(problem, time_limit_s=600, work_limit=20, seed=3).to_frame().write_csv() for _ in range(2)}
    assert len(texts) == 1


def test_limits_end_the_search_with_a_packing_that_holds():
    problem = hard(n_items=400)
    for limits, ends in (
        ({"time_limit_s": 1e-6}, {"time_limit", "proof"}),
        ({"time_limit_s": 600, "work_limit": 1}, {"work_limit", "proof"}),
    ):
        found = pack(problem, **limits)
        assert found.stopped_by in ends
        assert verify_packing(found, problem) == []


@pytest.mark.parametrize(
    "limits",
    [
        {"time_limit_s": 0}, {"time_limit_s": float("inf")}, {"seed": 0.5}, {"work_limit": True},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense(limits):
    with pytest.raises(ScenarioError, match=next(iter(limits))):
        pack(hard(), **limits)


def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    pack(hard())  # compiles

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.BinElimination, "run_search", interrupt)
    problem = hard()
    found = pack(problem)
    assert found.stopped_by in ("user", "proof")
    assert verify_packing(found, problem) == []
    monkeypatch.setattr(search, "moment_bound", interrupt)
    found = pack(problem)
    assert (found.stopped_by, found.bins, found.lower_bound) == ("user", problem.n_items, 1)


def test_greedy_is_what_its_name_says(draw):
    """First fit and best fit, done again by hand over all instants."""
    for seed in range(30):
        problem = draw(seed, most_items=12)
        grid = build_packing_grid(problem)
        for order in list_item_orders(problem):
            for rule in BIN_FIT_RULES:
                bins: list[list[int]] = []
                for item in order:
                    fills = [
                        sum(problem.sizes[j] * len(set(range(grid.low[j], grid.high[j])) & life) for j in members)
                        if all(
                            problem.sizes[item]
                            + sum(problem.sizes[j] for j in members if grid.low[j] <= t < grid.high[j])
                            <= problem.capacity
                            for t in life
                        )
                        else -1
                        for members in bins
                        for life in [set(range(grid.low[item], grid.high[item]))]
                    ]
                    fitting = [number for number, fill in enumerate(fills) if fill >= 0]
                    if not fitting:
                        bins.append([item])
                    elif rule == "first":
                        bins[fitting[0]].append(item)
                    else:
                        bins[max(fitting, key=lambda number: (fills[number], -number))].append(item)
                found = pack_in_order(grid, order, rule=rule, max_bins=problem.n_items).bin_of
                assert [sorted(np.flatnonzero(found == b)) for b in range(len(bins))] == [sorted(b) for b in bins]
                if len(bins) > 1:
                    assert pack_in_order(grid, order, rule=rule, max_bins=len(bins) - 1) is None
