"""The baseline that does not look ahead."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_improvement import plan_greedily
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify


def effort() -> SearchEffort:
    return SearchEffort.begin()


def test_gives_back_what_it_needs_again(problem_of: Any) -> None:
    # Keeping the GPU through the empty slot costs 0.1, cutting it anew 0.3.
    demand = np.array([[[1, 0, 1]]])
    problem = problem_of(demand, ["7g.40gb"], interval_hours=0.1, change_gpu_hours=0.3, initial={"7g.40gb:1": 1})
    arrays = PlanArrays.from_problem(problem)
    counts = plan_greedily(arrays, effort())
    assert counts.ravel().tolist() == [1, 0, 1]
    assert arrays.total_cost(counts) == pytest.approx(0.2 + 0.3)


def test_leaves_small_needs_unmet_that_would_last(problem_of: Any) -> None:
    # Each slot alone is not worth a cut, so greedy never makes it; three slots together are.
    demand = np.full((1, 1, 3), 1.0)
    problem = problem_of(demand, ["7g.40gb"], change_gpu_hours=1.5, unmet_price=2.0, initial={"7g.40gb:1": 0})
    arrays = PlanArrays.from_problem(problem)
    assert plan_greedily(arrays, effort()).sum() == 0


def test_is_myopically_optimal(problem_of: Any) -> None:
    rng = np.random.default_rng(3)
    problem = problem_of(rng.uniform(0, 3, size=(1, 2, 6)), ["1g.5gb", "3g.20gb"], gpus=2)
    arrays = PlanArrays.from_problem(problem)
    counts = plan_greedily(arrays, effort())
    grid = np.stack(np.meshgrid(*[np.arange(3)] * len(arrays.layouts)), axis=-1).reshape(-1, len(arrays.layouts))
    for slot, now in enumerate(counts):
        states = grid[arrays.keeps_limits(slot, grid)]
        before = arrays.counts_before(counts, slot)
        costs = [arrays.plan_cost(state[None], start=slot, before=before) for state in states]
        assert arrays.plan_cost(now[None], start=slot, before=before) == pytest.approx(min(costs))


@pytest.mark.parametrize("prices", [None, StatePrices(parked_price=0.1, dress=0.2, drain=0.1, instance=0.01)])
def test_without_time_or_a_solver_exchanges_decide(
    problem_of: Any, prices: StatePrices | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    demand = rng.uniform(0, 9, size=(1, 3, 8))
    problem = problem_of(demand, ["1g.5gb", "3g.20gb", "gpu"], gpus=14, prices=prices)
    arrays = PlanArrays.from_problem(problem)
    solved = arrays.plan_cost(plan_greedily(arrays, effort()))
    late = plan_greedily(arrays, SearchEffort(gap_target=0, deadline=0.0))
    assert arrays.plan_cost(late) <= 1.1 * solved
    for name in ("pulp", "highspy"):
        monkeypatch.setitem(sys.modules, name, None)
    bare = plan(problem, method="greedy")
    assert (bare.objective, bare.stopped_by) == (pytest.approx(arrays.plan_cost(late)), "passes")
    assert 0 < bare.bound <= solved
    assert verify(bare, problem, assign(bare, problem)) == []
