"""Every method against dynamic programming over numbered GPUs and every layout that a board allows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gpuplanner.hardware.layout_enumeration import list_profile_counts
from gpuplanner.hardware.mig_layouts import format_layout
from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from tests.planner.exact import every_layout, exact_cost

BOARDS = {
    "A100-40GB": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "gpu"),
    "H100-80GB-SXM5": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "gpu"),
    "A30-24GB": ("1g.6gb", "2g.12gb", "4g.24gb", "gpu"),
}


def random_problem(problem_of: Any, seed: int) -> PlanProblem:
    """One to three GPUs, few slots, any prices and run times, first layouts that need not be full."""
    rng = np.random.default_rng([seed, 24])
    gpu_model = str(rng.choice(list(BOARDS)))
    gpus, slots, tenants = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 3))
    profiles = rng.choice(BOARDS[gpu_model], size=rng.integers(1, 4), replace=False).tolist()
    every = [format_layout(one) for one in every_layout(gpu_model)]
    names = sorted({name for one in every_layout(gpu_model) for name in one} | {"gpu"})
    known = {name: rng.choice([0, 0.2, 1, 5], size=3).tolist() for name in names if rng.random() < 0.7}
    prices = StatePrices(
        parked_price=float(rng.choice([0, 0.1, 1])),
        wake=float(rng.choice([0, 0.02, 0.1])),
        dress=float(rng.choice([0, 0.02, 0.3])),
        instance=float(rng.choice([0, 0.01, 0.1, 0.3])),
        mode=float(rng.choice([0, 0.2, 1])),
        reboot=float(rng.choice([0, 0.5])) if gpu_model.startswith("A") else 0.0,
        drain=float(rng.choice([0, 0.1, 0.5, 2])),
        remaining_h=known,
        limit_h=None if rng.random() < 0.5 else 2.0,
        evicted_h=float(rng.choice([0, 0.3])),
    )
    parks = rng.random() < 0.8
    initial = parked = None
    if rng.random() < 0.6:
        first = rng.choice([*every, "gpu"], size=2)
        initial = {str(first[0]): int(rng.integers(2))}
        parked = {str(first[1]): int(rng.integers(gpus))} if parks and first[1] != "gpu" else None
    kept = int(parked is None and (initial is None or "gpu" in initial) and rng.random() < 0.1)
    tiers = ["guaranteed", "best_effort"][:tenants]
    return problem_of(
        rng.choice([0, 0, 0.5, 1, 1.3, 2, 3.7], size=(tenants, len(profiles), slots)),
        profiles,
        gpu_model=gpu_model,
        gpus=gpus,
        gpus_per_node=int(rng.choice([1, 4])),
        tiers=tiers,
        unmet_price=[float(rng.choice([3, 10])), 0.5][:tenants],
        interval_hours=float(rng.choice([0.25, 1])),
        change_gpu_hours=float(rng.choice([0, 0.05, 0.5])),
        available=rng.integers(kept, gpus + 1, slots).tolist() if rng.random() < 0.2 else None,
        whole_gpus_kept=kept,
        initial=initial,
        parked=parked,
        prices=prices if parks else None,
    )


def some_problems(problem_of: Any, first: int, count: int) -> Any:
    """So many problems that are small enough, with their least costs."""
    tried = (random_problem(problem_of, seed) for seed in itertools.count(1000 * first))
    known = ((problem, exact_cost(problem)) for problem in tried)
    return itertools.islice(((problem, best) for problem, best in known if best is not None), count)


@pytest.mark.parametrize("gpu_model", BOARDS)
def test_every_layout_is_known(gpu_model: str) -> None:
    own, theirs = (
        sorted(map(format_layout, some)) for some in (every_layout(gpu_model), list_profile_counts(gpu_model))
    )
    assert own == theirs


@pytest.mark.parametrize("first", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 33))])
def test_plans_cost_the_least_of_all_layouts(problem_of: Any, first: int) -> None:
    for number, (problem, best) in enumerate(some_problems(problem_of, first, 10)):
        for method in ("dp", "milp") if number % 3 == 0 else ("dp",):
            found = plan(problem, gap_target=0, method=method)
            assert found.objective == pytest.approx(best, abs=1e-6), (method, problem.to_dict())
            assert found.status == "optimal"
            assert verify(found, problem, assign(found, problem)) == []
        for method in ("greedy", "calendar", "static"):
            found = plan(problem, method=method)
            assert found.objective >= best - 1e-6, (method, problem.to_dict())
            assert method == "static" or found.bound <= best + 1e-6, (method, problem.to_dict())
