"""Plans against trying everything, on problems small enough for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from tests.seeds import seeds

PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "gpu", "1g.5gb+me")
PRICES = {"guaranteed": 20.0, "standard": 10.0, "best_effort": 0.5}
INITIAL = ("7g.40gb:1", "gpu")


def random_problem(problem_of: Any, seed: int) -> PlanProblem:
    """Few GPUs, slots and profiles; any prices and limits."""
    rng = np.random.default_rng(seed)
    gpus, slots, tenants = (int(n) for n in rng.integers(1, (4, 5, 4)))
    profiles = rng.choice(PROFILES, size=rng.integers(1, 4), replace=False).tolist()
    tiers = rng.choice(list(PRICES), size=tenants).tolist()
    limited = rng.random() < 0.4
    initial = {INITIAL[int(rng.integers(2))]: int(rng.integers(gpus + 1))}
    return problem_of(
        rng.choice([0, 0.05, 0.5, 1, 1.3, 2, 3.7], size=(tenants, len(profiles), slots)),
        profiles,
        gpus=gpus,
        tiers=tiers,
        unmet_price=[PRICES[tier] for tier in tiers],
        interval_hours=float(rng.choice([0.5, 1, 6])),
        change_gpu_hours=float(rng.choice([0, 0.05, 0.25, 2])),
        available=rng.integers(0, gpus + 1, slots).tolist() if limited else None,
        whole_gpus_kept=0 if limited else int(rng.integers(2)),
        initial=initial if "7g.40gb" in profiles and rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize("method", ["milp", "dp"])
@pytest.mark.parametrize("seed", seeds(40, 100))
def test_plan_is_the_best_of_all(problem_of: Any, least_cost: Any, seed: int, method: str) -> None:
    problem = random_problem(problem_of, seed)
    best = least_cost(problem)
    found = plan(problem, gap_target=0, method=method)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(best, abs=1e-6)
    assert verify(found, problem, assign(found, problem)) == []


@pytest.mark.parametrize("seed", seeds(15, 30))
def test_bound_and_plan_enclose_the_best(problem_of: Any, least_cost: Any, seed: int) -> None:
    problem = random_problem(problem_of, seed)
    best = least_cost(problem)
    rough = plan(problem, gap_target=0.3)
    constant = plan(problem, gap_target=0, method="static")
    assert rough.bound is not None
    assert rough.objective is not None
    assert constant.objective is not None
    assert rough.bound - 1e-6 <= best <= rough.objective + 1e-6
    assert rough.gap is not None
    assert rough.gap <= 0.3
    assert constant.status == "optimal"
    assert constant.objective >= best - 1e-6
    assert verify(rough, problem) == verify(constant, problem, assign(constant, problem)) == []


def test_rounds_and_windows_enclose_the_best_of_a_long_horizon(problem_of: Any, least_cost: Any) -> None:
    hours = np.arange(80)
    rng = np.random.default_rng(1)
    demand = (2 + np.sin(hours / 24 * 2 * np.pi)) * rng.uniform(0.5, 1.5, size=(3, len(hours)))
    profiles = ["1g.5gb", "2g.10gb", "3g.20gb"]
    problem = problem_of([demand], profiles, gpus=2, change_gpu_hours=0.25, unmet_price=3.0)
    best = least_cost(problem)
    found = plan(problem, gap_target=0.002)
    assert found.stopped_by == "proof"
    assert found.bound is not None
    assert found.objective is not None
    assert found.bound <= best + 1e-6 <= found.objective + 2e-6
    assert verify(found, problem, assign(found, problem)) == []
