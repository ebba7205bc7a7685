"""Paths through few vectors of counts, against trying every plan."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.methods.calendar import VectorPool
from gpuplanner.planner.program.fluid import Fluid


@pytest.fixture(scope="module", params=range(3))
def pool(problem_of: Any, request: pytest.FixtureRequest) -> tuple[Fluid, VectorPool]:
    rng = np.random.default_rng(request.param)
    demand = rng.uniform(0, 3, size=(1, 2, 5))
    initial = {"4g.20gb:1,3g.20gb:1": 1} if request.param else None
    problem = problem_of(
        demand, ["1g.5gb", "3g.20gb"], change_gpu_hours=0.6, available=[3, 3, 2, 3, 3], initial=initial
    )
    fluid = Fluid.of(problem)
    return fluid, VectorPool.of(fluid, rng.integers(0, 2, size=(6, len(fluid.layouts))))


def cost(fluid: Fluid, pool: VectorPool, plan: Any) -> float:
    counts = pool.vectors[np.array(plan)]
    kept = all(fluid.allowed(slot, row[None])[0] for slot, row in enumerate(counts))
    return fluid.cost(counts, before=fluid.initial) if kept else np.inf


def least(fluid: Fluid, pool: VectorPool, subset: Any) -> float:
    return min(cost(fluid, pool, plan) for plan in itertools.product(subset, repeat=len(pool.costs)))


def test_cheapest_plan_of_a_subset(pool: tuple[Fluid, VectorPool]) -> None:
    fluid, held = pool
    subsets = np.array(list(itertools.combinations(range(len(held.vectors)), 2)))
    expected = [least(fluid, held, subset) for subset in subsets.tolist()]
    assert held.least_costs(subsets) == pytest.approx(np.array(expected))
    for subset, best in zip(subsets, expected, strict=True):
        path = held.path(subset)
        assert held.cost(path) == pytest.approx(best)
        assert cost(fluid, held, path) == pytest.approx(best)
        assert set(path.tolist()) <= set(subset.tolist())


def test_wider_and_exchanged_never_cost_more(pool: tuple[Fluid, VectorPool]) -> None:
    fluid, held = pool
    plan = held.path(np.arange(1))
    assert (held.vectors[plan] == held.vectors[0]).all()
    for size in (2, 3):
        wider = held.wider(plan)
        assert len(np.unique(wider)) <= size
        assert cost(fluid, held, wider) <= cost(fluid, held, plan) + 1e-9
        plan = held.exchanged(wider)
        assert len(np.unique(plan)) <= size
        assert cost(fluid, held, plan) <= cost(fluid, held, wider) + 1e-9
    assert (held.places(held.vectors[plan]) == plan).all()


def test_each_group_gets_the_vector_that_serves_it_best(pool: tuple[Fluid, VectorPool]) -> None:
    _, held = pool
    group = np.array([0, 0, 1, 1, 0])
    best = {int(held.costs[group == one].sum(axis=0).argmin()) for one in (0, 1)}
    plan = held.grouped(group)
    assert set(plan.tolist()) <= best
    assert held.cost(plan) == pytest.approx(held.least_costs(np.array([sorted(best)]))[0])
