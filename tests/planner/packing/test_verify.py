"""Planted faults are found, and right packings pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuplanner.planner.least_cost_packing import pack_for_cost
from gpuplanner.planner.packing_files_and_verification import verify_cost, verify_packing
from gpuplanner.planner.packing_problem import MigPackingProblem, Packing, PackingProblem
from gpuplanner.planner.packing_search import pack


def holds(problem: PackingProblem, bins: np.ndarray) -> bool:
    """Load of every bin at every instant, by a table."""
    first, last = int(problem.starts.min()), int(problem.ends.max())
    load = np.zeros((int(bins.max()) + 1, last - first), dtype=int)
    for item, number in enumerate(bins):
        load[number, problem.starts[item] - first : problem.ends[item] - first] += problem.sizes[item]
    return bool((load <= problem.capacity).all())


def test_random_assignments_are_judged_as_a_table_of_loads_judges_them(draw):
    rng = np.random.default_rng(0)
    judged = []
    for seed in range(300):
        problem = draw(seed)
        _, bins = np.unique(rng.integers(0, 4, problem.n_items), return_inverse=True)
        found = Packing(int(bins.max()) + 1, 1, bins, None, "time_limit", 0.0)
        judged.append(holds(problem, bins))
        assert (verify_packing(found, problem) == []) == judged[-1]
    assert 20 < sum(judged) < 280


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: replace(p, bins=p.bins + 1), "bins in use are"),
        (lambda p: replace(p, bins=p.bins - 1), "bins in use are"),
        (lambda p: replace(p, assignment=p.assignment[1:]), "assignments for"),
        (lambda p: replace(p, assignment=p.assignment - 1), "has no bin"),
        (lambda p: replace(p, assignment=p.assignment * 2), "bins in use are"),
        (lambda p: replace(p, assignment=np.zeros_like(p.assignment), bins=1, lower_bound=1), "holds"),
        (lambda p: replace(p, assignment=np.zeros_like(p.assignment), bins=1, lower_bound=1), "peak load"),
        (lambda p: replace(p, lower_bound=p.bins + 1), "lower bound"),
        (lambda p: replace(p, lower_bound=0), "lower bound"),
        (lambda p: replace(p, stopped_by="luck"), "stopped by"),
    ],
)
def test_planted_faults(change, said):
    problem = PackingProblem([0, 0, 1, 1, 5], [4, 4, 6, 6, 9], [60, 50, 40, 30, 90], 100)
    found = pack(problem)
    assert verify_packing(found, problem) == []
    assert any(said in fault for fault in verify_packing(change(found), problem))


def test_every_move_that_overfills_is_found(draw):
    moved = 0
    for seed in range(60):
        problem = draw(seed, most_items=12)
        found = pack(problem, work_limit=20)
        for item in range(problem.n_items):
            for number in range(found.bins):
                bins = found.assignment.copy()
                bins[item] = number
                if len(set(bins)) == found.bins:
                    faults = verify_packing(replace(found, assignment=bins), problem)
                    assert (faults == []) == holds(problem, bins)
                    moved += faults != []
    assert moved > 100


def test_claims_of_subclasses_are_checked_too():
    class Boasting(Packing):
        proven = True
        gap = 0.0

    faults = verify_packing(
        Boasting(2, 1, np.array([0, 1]), None, "proof", 0.0), PackingProblem([0, 0], [1, 1], [1, 1], 2)
    )
    assert any("proven is True" in fault for fault in faults)
    assert any("gap is 0.0" in fault for fault in faults)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (np.array([0, 2, 6]), "no legal start"),
        (np.array([0, 0, 6]), "overlap"),
        (None, "no start slices"),
        (np.array([0, 4]), "no start slices"),
    ],
)
def test_wrong_places_on_a_gpu(places, said):
    problem = MigPackingProblem([0, 1, 1], [3, 3, 2], ["4g.40gb", "2g.20gb", "1g.10gb"], "H100-80GB-SXM5")
    found = pack(problem)
    assert (found.bins, verify_packing(found, problem)) == (1, [])
    wrong = replace(found, places=places)
    if said == "no legal start":
        wrong = replace(found, places=np.array([4, 0, 6]))
    assert any(said in fault for fault in verify_packing(wrong, problem))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: replace(c, fire_ups=c.fire_ups + 1), "fire-ups"),
        (lambda c: replace(c, busy_time=c.busy_time - 1), "busy time"),
        (lambda c: replace(c, cost=c.cost - 0.5), "cost"),
        (lambda c: replace(c, bound=c.cost + 1), "above the cost"),
        (lambda c: replace(c, packing=replace(c.packing, bins=9)), "bins in use"),
    ],
)
def test_wrong_costs(change, said):
    problem = PackingProblem([0, 4, 2], [2, 6, 3], [60, 60, 60], 100)
    costs = {"bin_cost": 1.0, "fire_up_cost": 2.0, "busy_cost": 0.5}
    found = pack_for_cost(problem, **costs, work_limit=5)
    assert verify_cost(found, problem, **costs) == []
    assert any(said in fault for fault in verify_cost(change(found), problem, **costs))
