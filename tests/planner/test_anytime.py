"""A plan and a bound at any moment: whatever work is allowed, both are there, and greedy is never cheaper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.planner import Limits, PlanProblem, StatePrices, plan, verify
from gpuplanner.planner.methods import stages
from gpuplanner.planner.program.bound import instant_bound, lower_bound
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.solving.effort import Effort

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb", "gpu")


def some_problem(problem_of: Any, rng: np.random.Generator) -> PlanProblem:
    """A few slots on 20 to 300 GPUs: too many states to try them all."""
    profiles = sorted(rng.choice(PROFILES, size=rng.integers(2, 6), replace=False).tolist())
    gpus, slots = int(rng.integers(20, 300)), int(rng.integers(3, 8))
    level = gpus * rng.dirichlet(np.ones(len(profiles))) * rng.uniform(0.5, 3)
    demand = level[:, None] * rng.uniform(0.3, 1.3, (len(profiles), slots))
    price = float(rng.choice([0.02, 0.25, 1.0]))
    parked = StatePrices(
        parked_price=0.1, dress=price / 2, instance=0.01, mode=0.1, reboot=price, drain=price
    )
    prices = parked if rng.random() < 0.5 else None
    return problem_of(
        demand[None], profiles, gpus=gpus, gpus_per_node=8, change_gpu_hours=price, prices=prices
    )


def test_auto_is_never_dearer_than_greedy_and_has_a_bound_at_any_work_limit(
    problem_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_FEW_STATES", 100)  # the shortest way to what happens to large fleets
    rng = np.random.default_rng(3)
    for _ in range(200):
        problem = some_problem(problem_of, rng)
        how = {"work_limit": int(rng.integers(1, 4 * problem.n_slots)), "time_limit_s": 600}
        best, greedy = (plan(problem, method=method, **how) for method in ("auto", "greedy"))
        assert best.objective <= greedy.objective + 1e-9
        for found in (best, greedy):
            assert 0 < found.bound <= found.objective + 1e-6
            assert "100.00 %" not in found.explanation
            assert verify(found, problem) == []


def test_bounds_without_work_are_below_those_with_work_and_above_nothing(problem_of: Any) -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        fluid = Fluid.of(some_problem(problem_of, rng))
        effort = Effort.begin(gap_target=0, time_limit_s=600, seed=0, solver="highs")
        assert 0 < instant_bound(fluid).bound <= lower_bound(fluid, (), effort).bound + 1e-9


def test_floors_that_came_in_time_count(problem_of: Any) -> None:
    """Work that ends among the floors: each of those found makes the bound higher than without any."""
    hours = np.arange(24)
    problem = problem_of([[1.3 + hours % 5, 0.7 + hours % 3]], ["1g.5gb", "3g.20gb"], gpus=9)
    bare, some, all_of_them = (
        plan(problem, method="milp", gap_target=0, work_limit=limit).bound for limit in (40, 62, 90)
    )
    assert bare < some < all_of_them


def test_a_bound_without_a_plan_ends_as_unknown_where_changes_are_limited(
    problem_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine may find a bound and no plan before half of the time is over."""
    monkeypatch.setitem(stages.METHOD_STAGES, "milp", lambda *_: iter([stages.State(bound=1.0)]))
    monkeypatch.setattr(Effort, "past_half", lambda _: True)
    problem = problem_of([[[2.0, 4.0]]], ["3g.20gb"], limits=Limits(switches_per_day=1))
    found = plan(problem, method="milp")
    assert (found.status, found.objective) == ("unknown", None)
    assert verify(found, problem) == []
