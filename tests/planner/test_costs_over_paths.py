"""Plans under many demands: as each costs alone, and with demand that waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.plan_explanation import realised_cost, realised_costs
from gpuplanner.planner.plan_search import plan
from tests.seeds import seeds

PROFILES = ["1g.5gb", "2g.10gb", "3g.20gb", "gpu"]


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize("seed", seeds(3, 6))
def test_many_demands_cost_what_each_costs_alone(problem_of: Any, seed: int, parks: bool) -> None:
    rng = np.random.default_rng(seed)
    believed, *paths = rng.choice([0, 0.5, 1, 2.2, 0.3], size=(7, 4, 3))
    problem = problem_of(believed[None], PROFILES, gpus=4, initial={"7g.40gb:1": 1})
    if parks:
        prices = StatePrices.from_change_cost(problem.change, problem.gpus_per_node, parked_price=0.2)
        problem = replace(problem, prices=prices)
    plans = [plan(problem, method=method) for method in ("greedy", "static")]
    lost = realised_costs(problem, plans, np.array(paths))
    for row, one in zip(lost, plans, strict=True):
        alone = [
            realised_cost(replace(problem, demand=path[None]), one.layouts, one.counts, one.parked if parks else None)
            for path in paths
        ]
        assert row == pytest.approx(alone)
    assert (realised_costs(problem, plans, np.array(paths), carry_over=True) >= lost - 1e-9).all()


def test_waiting_demand_is_served_later_and_paid_for_until_then(problem_of: Any) -> None:
    problem = problem_of(np.ones((1, 1, 4)), ["gpu"], gpus=4)
    made = replace(plan(problem), layouts=("gpu",), counts=np.array([[1], [1], [2], [0]]))
    # Of 3 GPUs wanted at first two wait; one waits in the second slot; the third has room for it.
    path = np.array([[[3.0, 0.0, 0.0, 0.0]]])
    assert realised_costs(problem, [made], path, carry_over=True).item() == pytest.approx(4 + 10 * (2 + 1))


def test_hours_in_which_nothing_is_wanted_cost_what_is_on(problem_of: Any) -> None:
    problem = problem_of(np.ones((1, 1, 4)), ["gpu"], gpus=4)
    made = replace(plan(problem), layouts=("gpu",), counts=np.array([[1], [1], [2], [0]]))
    assert realised_costs(problem, [made], np.zeros((1, 1, 4))).item() == pytest.approx(4)
