"""Counts priced under another demand, against the brute-force price of every slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_explanation import realised_cost
from gpuplanner.planner.plan_search import plan
from tests.seeds import seeds

from .conftest import best_service
from .exact import exact_cost
from .test_parked import random_problem


@pytest.mark.parametrize("seed", seeds(10, 20))
def test_cost_is_added_up_anew(problem_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    profiles = ["1g.5gb", "2g.10gb", "3g.20gb"]
    believed, true = rng.choice([0, 0.5, 1, 2.2], size=(2, 1, 3, 3))
    initial = {"7g.40gb:1": 1} if rng.random() < 0.5 else None
    values = {"change_gpu_hours": 0.4, "initial": initial, "gpus": 2}
    made = plan(problem_of(believed, profiles, **values), gap_target=0)
    problem = problem_of(true, profiles, **values)
    expected, before = 0.0, initial
    for slot, row in enumerate(made.counts.tolist()):
        now = dict(zip(made.layouts, row, strict=True))
        held = dict.fromkeys([*profiles, "4g.20gb", "7g.40gb", "1g.10gb"], 0)
        for layout, gpus in now.items():
            for name, n in parse_layout(layout).items():
                held[name] += n * gpus
        expected += sum(row) + best_service(problem, slot, held)
        if before is not None:
            expected += 0.4 * sum(max(0, gpus - before.get(layout, 0)) for layout, gpus in now.items())
        before = now
    assert realised_cost(problem, made.layouts, made.counts) == pytest.approx(expected)


@pytest.mark.parametrize("seed", seeds(5, 10))
def test_parked_gpus_cost_what_numbered_ones_cost(problem_of: Any, seed: int) -> None:
    """Under the demand that a plan was made for, its counts cost what dynamic programming over numbered GPUs says."""
    while (best := exact_cost(problem := random_problem(problem_of, 3000 + seed), most=1400)) is None:
        seed += 100
    made = plan(problem, gap_target=0, method="dp")
    assert realised_cost(problem, made.layouts, made.counts, made.parked) == pytest.approx(best, abs=1e-6)
    other = replace(problem, demand=problem.demand[:, :, ::-1])
    cost = realised_cost(other, made.layouts, made.counts, made.parked)
    least = exact_cost(other, most=1400)
    assert least is not None
    assert cost >= least - 1e-6
    assert cost - made.objective == pytest.approx(shortage(other, made) - shortage(problem, made), abs=1e-6)


def shortage(problem: Any, made: Any) -> float:
    """Price of what the counts of a plan leave unserved, by trying everything."""
    total = 0.0
    for slot, row in enumerate(made.counts.tolist()):
        held = dict.fromkeys([*problem.profiles, *(name for text in made.layouts for name in parse_layout(text))], 0)
        for layout, gpus in zip(made.layouts, row, strict=True):
            for name, n in parse_layout(layout).items():
                held[name] += n * gpus
        total += best_service(problem, slot, held)
    return total


def test_layouts_that_the_true_demand_would_not_use_are_priced(problem_of: Any) -> None:
    problem = problem_of(np.ones((1, 1, 2)), ["3g.20gb"])
    assert "7g.40gb:1" not in PlanArrays.from_problem(problem).layouts
    assert realised_cost(problem, ["7g.40gb:1"], np.array([[1], [1]])) == pytest.approx(2.0)
