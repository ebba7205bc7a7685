"""Exact dynamic programming against trying everything and against the integer programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.dynamic_program import solve_dynamic_program
from gpuplanner.planner.fleet_limits_and_prices import Limits
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from tests.seeds import seeds

PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "gpu", "1g.5gb+me")
PRICES = {"guaranteed": 20.0, "standard": 10.0, "best_effort": 0.5}


def effort() -> SearchEffort:
    return SearchEffort.begin()


def random_problem(problem_of: Any, seed: int, **changes: Any) -> PlanProblem:
    """Few GPUs, slots and profiles; any prices and limits; cheap and dear changes; known and unknown starts."""
    rng = np.random.default_rng([seed, 7])
    gpus, slots, tenants = int(rng.integers(1, 4)), int(rng.integers(1, 7)), int(rng.integers(1, 3))
    profiles = rng.choice(PROFILES, size=rng.integers(1, 4), replace=False).tolist()
    tiers = rng.choice(list(PRICES), size=tenants).tolist()
    values: dict[str, Any] = {
        "gpus": gpus,
        "tiers": tiers,
        "unmet_price": [PRICES[tier] for tier in tiers],
        "interval_hours": float(rng.choice([0.1, 1, 6])),
        "change_gpu_hours": float(rng.choice([0, 0.05, 0.25, 2])),
        "on_price": float(rng.choice([0, 1, 1, 1])),
        "available": rng.integers(0, gpus + 1, slots).tolist() if rng.random() < 0.3 else None,
    }
    demand = rng.choice([0, 0, 0.05, 0.5, 1, 1.3, 2, 3.7], size=(tenants, len(profiles), slots))
    problem: PlanProblem = problem_of(demand, profiles, **(values | changes))
    layouts = PlanArrays.from_problem(problem).layouts
    if layouts and rng.random() < 0.6:
        start = dict(
            zip(layouts, rng.multinomial(int(rng.integers(gpus + 1)), [1 / len(layouts)] * len(layouts)), strict=True)
        )
        problem = problem_of(
            demand, profiles, **(values | {"initial": {k: int(n) for k, n in start.items()}} | changes)
        )
    return problem


@pytest.mark.parametrize("first", seeds(120, 300, 30))
def test_cost_is_the_least_of_all(problem_of: Any, least_cost: Any, first: int) -> None:
    for seed in range(first, first + 30):
        problem = random_problem(problem_of, seed)
        arrays = PlanArrays.from_problem(problem)
        found = solve_dynamic_program(arrays, effort())
        assert found is not None
        counts, bound = found
        assert bound == pytest.approx(least_cost(problem), abs=1e-9), seed
        assert arrays.total_cost(counts) == bound
        assert all(arrays.keeps_limits(slot, row[None])[0] for slot, row in enumerate(counts))


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_agrees_with_the_integer_programs(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    hours = np.arange(12)
    level = rng.uniform(0.3, 1.2, size=(1, 4, 1)) * (1.5 + np.sin(hours / 12 * 2 * np.pi))
    demand = level * rng.uniform(0.8, 1.2, size=(1, 4, len(hours)))
    profiles = ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]
    problem = problem_of(demand, profiles, gpus=6, change_gpu_hours=[0.05, 0.25, 3.0][seed % 3])
    found = solve_dynamic_program(PlanArrays.from_problem(problem), effort())
    assert found is not None
    other = plan(problem, method="milp", gap_target=0)
    assert other.status == "optimal"
    assert found[1] == pytest.approx(other.objective, abs=1e-6)


@pytest.mark.parametrize("seed", seeds(10, 20))
def test_pinned_layouts_stay(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng([seed, 2])
    demand = rng.choice([0, 0.5, 1, 2.5], size=(1, 2, 4))
    problem = problem_of(
        demand, ["1g.5gb", "3g.20gb"], gpus=3, limits=Limits(pinned={"7g.40gb:1": 1}), change_gpu_hours=0.5
    )
    arrays = PlanArrays.from_problem(problem)
    found = solve_dynamic_program(arrays, effort())
    assert found is not None
    assert (found[0][:, arrays.layouts.index("7g.40gb:1")] >= 1).all()
    other = plan(problem, method="milp", gap_target=0)
    assert found[1] == pytest.approx(other.objective, abs=1e-6)


def test_a_dear_change_is_bridged(problem_of: Any) -> None:
    demand = np.array([[[1, 0, 0, 1, 0, 0, 0, 0, 1]]])
    problem = problem_of(demand, ["7g.40gb"], change_gpu_hours=3.0, initial={"7g.40gb:1": 0})
    found = solve_dynamic_program(PlanArrays.from_problem(problem), effort())
    assert found is not None
    # Two idle slots cost less than a cut, four cost more.
    assert found[0].ravel().tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 1]
    assert found[1] == pytest.approx(5 + 2 * 3.0)


def test_gives_up_beyond_the_limits(problem_of: Any) -> None:
    arrays = PlanArrays.from_problem(problem_of(np.full((1, 3, 3), 6.0), ["1g.5gb", "2g.10gb", "3g.20gb"], gpus=12))
    assert solve_dynamic_program(arrays, effort(), max_states=10) is None
    assert solve_dynamic_program(arrays, SearchEffort(gap_target=0, deadline=0.0)) is None
