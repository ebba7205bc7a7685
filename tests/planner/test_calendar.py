"""Few vectors of counts, used again and again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.alternating_layout_plans import solve_calendar
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from tests.seeds import seeds


def effort() -> SearchEffort:
    return SearchEffort.begin()


def daily(problem_of: Any, seed: int, slots: int = 24, **changes: Any) -> PlanProblem:
    rng = np.random.default_rng(seed)
    hours = np.arange(slots)
    level = np.where(hours % 24 // 12 == 0, 1.0, 2.2) * rng.uniform(0.5, 1.2, size=(2, 1))
    demand = (level * rng.uniform(0.9, 1.1, size=(2, slots)))[None]
    problem: PlanProblem = problem_of(demand, ["1g.5gb", "3g.20gb"], **({"gpus": 4} | changes))
    return problem


def cost(arrays: PlanArrays, counts: np.ndarray) -> float:
    return arrays.total_cost(counts)


def best_of_all(arrays: PlanArrays, distinct: int) -> float:
    """Least cost over every set of so many states, each with its cheapest path."""
    n = len(arrays.layouts)
    states = np.array([s for s in itertools.product(range(3), repeat=n) if sum(s) <= 2])
    slots = range(arrays.problem.n_slots)
    costs = np.array([np.where(arrays.keeps_limits(t, states), arrays.slot_costs(t, states), np.inf) for t in slots])
    changes = arrays.transitions.pairwise_costs(states, states)
    least = np.inf
    for chosen in itertools.combinations(range(len(states)), distinct):
        rows = list(chosen)
        value = costs[0, rows]
        for t in list(slots)[1:]:
            value = (value[:, None] + changes[np.ix_(rows, rows)]).min(axis=0) + costs[t, rows]
        least = min(least, float(value.min()))
    return least


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_more_vectors_never_cost_more(problem_of: Any, seed: int) -> None:
    problem = daily(problem_of, seed, change_gpu_hours=0.4, available=[4] * 10 + [2] * 3 + [4] * 11)
    arrays = PlanArrays.from_problem(problem)
    best = plan(problem, method="milp", gap_target=0.01)
    assert best.bound is not None
    before = np.inf
    for distinct in (1, 2, 3):
        counts = solve_calendar(arrays, distinct, effort())
        assert counts is not None
        assert len(np.unique(counts, axis=0)) <= distinct
        assert all(arrays.keeps_limits(slot, row[None])[0] for slot, row in enumerate(counts))
        now = cost(arrays, counts)
        assert best.bound - 1e-6 <= now <= before + 1e-6
        before = now


def test_day_and_night_are_found(problem_of: Any) -> None:
    hours = np.arange(72)
    demand = np.where(hours % 24 // 12 == 0, 1.0, 3.0)[None, None]
    problem = problem_of(demand, ["7g.40gb"], gpus=4, change_gpu_hours=0.5)
    arrays = PlanArrays.from_problem(problem)
    counts = solve_calendar(arrays, 2, effort())
    assert counts is not None
    assert counts.ravel().tolist() == demand.ravel().astype(int).tolist()


@pytest.mark.parametrize("seed", seeds(4, 8))
def test_close_to_the_best_calendar_of_all(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = problem_of(rng.uniform(0, 4, size=(1, 2, 6)), ["2g.10gb", "3g.20gb"], gpus=2, change_gpu_hours=0.3)
    arrays = PlanArrays.from_problem(problem)
    for distinct in (1, 2):
        counts = solve_calendar(arrays, distinct, effort())
        assert counts is not None
        best = best_of_all(arrays, distinct)
        # A local search; the bound on how far it may stray was chosen before it was measured.
        assert best - 1e-6 <= cost(arrays, counts) <= best * (1.0 if distinct == 1 else 1.05) + 1e-6


def test_as_many_vectors_as_slots_are_a_free_plan_at_best(problem_of: Any, least_cost: Any) -> None:
    rng = np.random.default_rng(11)
    problem = problem_of(rng.uniform(0, 3, size=(1, 1, 5)), ["7g.40gb"], change_gpu_hours=0.2)
    counts = solve_calendar(PlanArrays.from_problem(problem), 5, effort())
    assert counts is not None
    assert cost(PlanArrays.from_problem(problem), counts) == pytest.approx(least_cost(problem))
