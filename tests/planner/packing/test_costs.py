"""Fire-ups and busy time against everything tried."""

from __future__ import annotations

import pytest

from gpuplanner.planner.least_cost_packing import pack_for_cost
from gpuplanner.planner.packing_files_and_verification import verify_cost
from gpuplanner.planner.packing_problem import MigPackingProblem, PackingProblem

COSTS = [
    {"bin_cost": 1.0, "fire_up_cost": 1.0, "busy_cost": 0.0},
    {"bin_cost": 0.0, "fire_up_cost": 0.0, "busy_cost": 1.0},
    {"bin_cost": 3.0, "fire_up_cost": 0.5, "busy_cost": 0.25},
]


def cost_by_hand(problem: PackingProblem, bins, *, bin_cost, fire_up_cost, busy_cost) -> float:
    fire_ups = busy = 0
    for members in bins:
        on = {t for item in members for t in range(problem.starts[item], problem.ends[item])}
        busy += len(on)
        fire_ups += sum(t - 1 not in on for t in on)
    return bin_cost * len(bins) + fire_up_cost * fire_ups + busy_cost * busy


@pytest.mark.parametrize("costs", COSTS)
def test_bound_and_optimum_and_cost_found(draw, every_packing, costs):
    for seed in range(25):
        problem = draw(seed, most_items=6)
        best = min(cost_by_hand(problem, bins, **costs) for bins in every_packing(problem))
        found = pack_for_cost(problem, **costs, work_limit=3)
        assert verify_cost(found, problem, **costs) == []
        assert found.bound <= best + 1e-9
        assert found.cost == pytest.approx(best)
        assert found.proven == (found.gap < 1e-12)


def test_a_bin_more_can_be_cheaper():
    """The long items fill one bin; a short one beside them would keep a second bin on only briefly."""
    problem = PackingProblem([0, 5, 3], [5, 10, 7], [50, 50, 60], 100)
    found = pack_for_cost(problem, bin_cost=0.0, busy_cost=1.0, work_limit=3)
    assert (found.busy_time, found.packing.bins, found.proven) == (14, 2, True)


def test_gpus_have_costs_too():
    problem = MigPackingProblem([0, 0, 4], [2, 6, 6], ["3g.40gb", "4g.40gb", "3g.40gb"], "H100-80GB-SXM5")
    costs = {"bin_cost": 1.0, "fire_up_cost": 1.0, "busy_cost": 1.0}
    found = pack_for_cost(problem, **costs, work_limit=3)
    assert (found.cost, found.proven, verify_cost(found, problem, **costs)) == (8.0, True, [])
