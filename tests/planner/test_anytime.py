"""A plan and a bound at any moment: whatever work is allowed, both are there, and greedy is never cheaper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.hardware.layout_enumeration import list_profile_counts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.planner import plan_search as stages
from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import PLAN_METHODS, plan
from gpuplanner.planner.plan_verification import verify

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb", "gpu")


def some_problem(problem_of: Any, rng: np.random.Generator) -> PlanProblem:
    """A few slots on 20 to 300 GPUs: too many states to try them all."""
    profiles = sorted(rng.choice(PROFILES, size=rng.integers(2, 6), replace=False).tolist())
    gpus, slots = int(rng.integers(20, 300)), int(rng.integers(3, 8))
    level = gpus * rng.dirichlet(np.ones(len(profiles))) * rng.uniform(0.5, 3)
    demand = level[:, None] * rng.uniform(0.3, 1.3, (len(profiles), slots))
    price = float(rng.choice([0.02, 0.25, 1.0]))
    parked = StatePrices(parked_price=0.1, dress=price / 2, instance=0.01, mode=0.1, reboot=price, drain=price)
    prices = parked if rng.random() < 0.5 else None
    return problem_of(demand[None], profiles, gpus=gpus, gpus_per_node=8, change_gpu_hours=price, prices=prices)


def test_auto_is_never_dearer_than_greedy_and_has_a_bound_at_any_work_limit(
    problem_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_MAX_EXACT_STATES", 100)  # the shortest way to what happens to large fleets
    rng = np.random.default_rng(3)
    for _ in range(15):
        problem = some_problem(problem_of, rng)
        how = {"work_limit": int(rng.integers(1, 8))}
        best, greedy = (plan(problem, method=method, **how) for method in ("auto", "greedy"))
        assert best.objective <= greedy.objective + 1e-9
        for found in (best, greedy):
            assert 0 < found.bound <= found.objective + 1e-6
            assert "100.00 %" not in found.explanation
            assert verify(found, problem) == []


PRICES = StatePrices(parked_price=0.1, dress=0.1, drain=0.2, instance=0.01, mode=0.1, reboot=0.2)
EDGES: dict[str, dict[str, Any]] = {
    "nothing wanted": {"demand": 0.0},
    "nothing wanted of what is there": {"demand": 0.0, "initial": {"3g.20gb:2": 1, "gpu": 1}},
    "no GPU in service": {"available": 0},
    "no power": {"limits": Limits(gpus_on_per_rack=0)},
    "no time": {"initial": {"1g.5gb:3": 2}, "time_limit_s": 1e-9},
    "one slot": {"slots": 1},
    "no change": {"initial": {"7g.40gb:1": 1}, "limits": Limits(switches_per_day=0), "time_limit_s": 1e-9},
    "windows": {"limits": Limits(change_slots=(2,)), "time_limit_s": 1e-9},
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("prices", [None, PRICES], ids=["released", "parked"])
def test_every_method_has_a_plan_that_is_verified_from_its_file(
    problem_of: Any, prices: StatePrices | None, edge: str
) -> None:
    how = dict(EDGES[edge])
    slots, limit = how.pop("slots", 3), how.pop("time_limit_s", 600)
    demand = np.full((1, 2, slots), how.pop("demand", 1.3))
    how |= {"available": [0] * slots} if "available" in how else {}
    problem = problem_of(demand, ["3g.20gb", "gpu"], gpus=2, prices=prices, **how)
    for method in PLAN_METHODS:
        found = plan(problem, method=method, time_limit_s=limit)
        read, question = plan_from_json(plan_to_json(found, problem))
        assert read.is_feasible
        assert verify(read, question, assign(read, question)) == []


@pytest.mark.parametrize("method", ["auto", "milp", "greedy", "calendar", "static"])
def test_many_layouts_that_are_named_and_no_time_leave_a_plan(problem_of: Any, method: str) -> None:
    named = {format_layout(one): 0 for one in list_profile_counts("H100-80GB-SXM5")[:77]}
    rng = np.random.default_rng(0)
    demand = rng.uniform(0, 20, size=(1, 3, 12))
    problem = problem_of(
        demand,
        ["1g.10gb", "2g.20gb", "4g.40gb"],
        gpu_model="H100-80GB-SXM5",
        gpus=20,
        gpus_per_node=8,
        initial=named,
        prices=PRICES,
    )
    found = plan(problem, method=method, time_limit_s=1e-9)
    assert found.is_feasible
    assert verify(found, problem) == []
