"""Bounds hold: none is above the cost of a plan, nor far below it; branch and bound finds what a solver does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner import interval_milp as bound
from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.interval_milp import solve_relaxation, solve_window_bounds
from gpuplanner.planner.linear_programs_and_search_limits import LinearModel, SearchEffort
from gpuplanner.planner.milp_solvers import branch_and_bound, solve
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "gpu")
PRICES = StatePrices(parked_price=0.2, wake=0.05, dress=0.1, instance=0.02, mode=0.1, reboot=0.4, drain=0.2)


def some_problem(problem_of: Any, rng: np.random.Generator, **more: Any) -> PlanProblem:
    """A few slots, two tenants of two tiers; some GPUs kept whole, some pinned, some on before."""
    slots, gpus = int(rng.integers(3, 9)), int(rng.integers(8, 40))
    demand = rng.uniform(0, gpus / 3, (2, len(PROFILES), slots))
    values = {
        "gpus": gpus,
        "gpus_per_node": 4,
        "tiers": ["guaranteed", "best_effort"],
        "unmet_price": [10.0, 3.0],
        "whole_gpus_kept": int(rng.integers(0, 4)),
        "limits": Limits(pinned={"3g.20gb:2": int(rng.integers(0, 2))}),
        "initial": {"1g.5gb:7": 1, "gpu": 1} if rng.random() < 0.5 else None,
        "change_gpu_hours": float(rng.choice([0.05, 0.5])),
    }
    return problem_of(demand, PROFILES, **(values | more))


@pytest.mark.parametrize("prices", [None, PRICES])
def test_every_bound_is_below_the_cost_of_a_plan_and_floors_raise_it(
    problem_of: Any, prices: StatePrices | None
) -> None:
    rng = np.random.default_rng(1)
    for _ in range(4):
        problem = some_problem(problem_of, rng, prices=prices)
        arrays, effort = PlanArrays.from_problem(problem), SearchEffort.begin(gap_target=0.0)
        relaxed = solve_relaxation(arrays, (), effort).bound
        floors = solve_window_bounds(arrays, 1, (), effort).bounds
        with_floors = solve_relaxation(arrays, floors, effort).bound
        cost = plan(problem, method="milp", gap_target=0.02).objective
        assert relaxed <= with_floors + 1e-6 <= cost + 2e-6
        assert sum(floor.cost for floor in floors) <= with_floors + 1e-6
        assert with_floors >= 0.9 * cost


@pytest.mark.parametrize("prices", [None, PRICES])
def test_a_bound_taken_in_parts_is_a_little_below_that_of_the_whole_horizon(
    problem_of: Any, prices: StatePrices | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes from one part to the next are free."""
    problem = some_problem(problem_of, np.random.default_rng(5), prices=prices)
    arrays = PlanArrays.from_problem(replace(problem, demand=np.tile(problem.demand, (1, 1, 6)), available=None))
    effort = SearchEffort.begin(gap_target=0, seed=0, solver="highs")
    whole = solve_relaxation(arrays, (), effort).bound
    monkeypatch.setattr(bound, "_MAX_INTERVALS_PER_PROGRAM", 7)
    assert 0.97 * whole <= solve_relaxation(arrays, (), effort).bound <= whole + 1e-6


def test_branch_and_bound_costs_what_a_solver_finds() -> None:
    """Random covering models, some of which no whole numbers answer."""
    rng, answered = np.random.default_rng(2), 0
    for _ in range(60):
        n, m = int(rng.integers(2, 6)), int(rng.integers(1, 5))
        model = LinearModel()
        names = [f"x{place}" for place in range(n)]
        x = model.add_columns(names, cost=rng.uniform(0.5, 2.0, n), high=rng.integers(1, 4, n))
        for row in range(m):
            model.add_row(f"r{row}", x, rng.integers(0, 4, n), ">=", float(rng.integers(0, 8)))
        model.add_row("most", x, np.ones(n), "<=", float(rng.integers(2, 8)))
        effort = SearchEffort.begin()
        found, known = branch_and_bound(model, {"all": x, "some": x[:2]}, x, effort), solve(model, effort)
        if known.values is None:
            assert found is None or found.values is None
            continue
        answered += 1
        assert model.value(found.values) == pytest.approx(known.objective)
        assert known.objective - 1e-5 <= found.bound <= known.objective
        assert np.rint(found.values) == pytest.approx(found.values, abs=1e-6)
    assert 20 <= answered < 60
