"""All methods on the same problem, limits of the search, fleets of several pools, and what is worth what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.planner.fleet_limits_and_prices import Limits, Quota
from gpuplanner.planner.fleet_plans_and_comparisons import (
    fleet_from_json,
    fleet_to_json,
    plan_fleet,
    read_problems,
    verify_fleet,
)
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_explanation import instance_prices
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import PLAN_METHODS, plan
from gpuplanner.planner.plan_verification import verify


@pytest.fixture(scope="module")
def two_days(problem_of: Any) -> PlanProblem:
    """Day and night, five GPUs at the peak."""
    hours = np.arange(48)
    day = np.where((hours % 24 >= 8) & (hours % 24 < 18), 1.0, 0.35)
    rng = np.random.default_rng(3)
    demand = np.array([9.0, 4.0, 1.6])[:, None] * day * (1 + 0.15 * rng.standard_normal((3, 48)))
    return problem_of([demand.clip(0)], ["1g.5gb", "3g.20gb", "gpu"], gpus=9, change_gpu_hours=0.4)


def test_methods_stand_in_the_right_order(two_days: PlanProblem) -> None:
    found = {method: plan(two_days, method=method, gap_target=0) for method in PLAN_METHODS}
    for method, one in found.items():
        assert one.method == method
        assert verify(one, two_days, assign(one, two_days)) == []
    best = found["dp"].objective
    assert found["dp"].status == "optimal"
    assert found["auto"].objective == pytest.approx(best)
    for method in ("milp", "greedy", "calendar"):
        assert found[method].bound - 1e-6 <= best <= found[method].objective + 1e-6
    assert found["calendar"].objective <= found["static"].objective + 1e-6
    assert found["static"].changes == 0


def test_a_calendar_has_no_more_vectors_than_asked(two_days: PlanProblem) -> None:
    costs = []
    for calendars in (1, 2, 4):
        found = plan(two_days, method="calendar", calendars=calendars, gap_target=0)
        assert len(np.unique(found.counts, axis=0)) <= calendars
        costs.append(found.objective)
    assert costs[0] >= costs[1] >= costs[2]
    assert costs[0] == pytest.approx(plan(two_days, method="static", gap_target=0).objective)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"calendars": 0}, "calendars"),
        ({"calendars": True}, "calendars"),
        ({"work_limit": 0}, "work_limit must be a whole number of at least 1"),
        ({"work_limit": 2.0}, "work_limit must be"),
        ({"method": "best"}, "one of auto, milp"),
    ],
)
def test_options_that_make_no_sense_are_refused(two_days: PlanProblem, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        plan(two_days, **options)


def test_dp_refuses_a_fleet_too_large_to_list(problem_of: Any) -> None:
    demand = np.full((1, 4, 3), 60.0)
    problem = problem_of(demand, ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb"], gpus=400)
    with pytest.raises(ScenarioError, match="a fleet small enough to try every state"):
        plan(problem, method="dp")
    assert plan(problem).is_feasible


def test_the_same_problem_seed_and_work_limit_give_the_same_bytes(two_days: PlanProblem) -> None:
    texts = []
    for _ in range(2):
        found = plan(two_days, method="milp", gap_target=0, work_limit=8, seed=3)
        assert found.stopped_by == "work_limit"
        assert "stopped at the work limit" in found.explanation
        assert verify(found, two_days) == []
        texts.append(plan_to_json(found, two_days))
    assert texts[0] == texts[1]
    first = plan(two_days, method="milp", work_limit=1)
    assert (first.status, first.stopped_by) == ("feasible", "work_limit")
    assert 0 < first.bound < first.objective < 1.2 * first.bound  # one linear program, rounded
    assert verify(first, two_days) == []


@pytest.fixture(scope="module")
def pools(two_days: PlanProblem, problem_of: Any) -> dict[str, PlanProblem]:
    quotas = {"tenant0": Quota(4)}
    newer = problem_of(
        two_days.demand, ["1g.10gb", "3g.40gb", "gpu"], gpu_model="H100-80GB-SXM5", gpus=9, change_gpu_hours=0.2,
        limits=Limits(quotas=quotas, switches_per_day=2),
    )  # fmt: skip
    return {"old": two_days, "new": newer}


def test_a_fleet_is_the_sum_of_its_pools(pools: dict[str, PlanProblem]) -> None:
    fleet = plan_fleet(pools)
    alone = {name: plan(problem) for name, problem in pools.items()}
    assert fleet.objective == pytest.approx(sum(one.objective for one in alone.values()), rel=0.01)
    assert fleet.bound <= fleet.objective
    assert 0 <= fleet.gap <= 0.01
    assert verify_fleet(fleet, pools) == []
    assert fleet.explanation.startswith("old: ")
    again = fleet_from_json(fleet_to_json(fleet, pools))
    assert {name: verify(*pair) for name, pair in again.items()} == {"old": [], "new": []}
    assert verify_fleet(fleet, {"old": pools["old"]}) != []
    swapped = {"old": pools["new"], "new": pools["old"]}
    assert verify_fleet(fleet, swapped) != []


def test_one_pool_without_a_plan_leaves_the_fleet_without_one(pools: dict[str, PlanProblem]) -> None:
    broken = replace(pools["old"], whole_gpus_kept=9, available=[3] * 48)
    fleet = plan_fleet({"new": pools["new"], "old": broken})
    assert fleet.status == "infeasible"
    assert (fleet.objective, fleet.bound, fleet.gap, fleet.is_feasible) == (None, None, None, False)
    assert "Cheapest fix" in fleet.explanation


def test_pools_must_share_their_slots(pools: dict[str, PlanProblem]) -> None:
    with pytest.raises(ScenarioError, match="pools over the same intervals"):
        plan_fleet({})
    with pytest.raises(ScenarioError, match="2 different ones"):
        plan_fleet({"a": pools["old"], "b": replace(pools["old"], interval_hours=0.5)})


def test_one_instance_more_is_worth_what_it_serves(problem_of: Any) -> None:
    """One GPU, five 3g and one 1g wanted: another 3g serves one more; another 1g serves the small request."""
    problem = problem_of([[[1.0, 1.0], [2.0, 3.0]]], ["1g.5gb", "3g.20gb"], gpus=1)
    found = plan(problem, gap_target=0)
    prices = instance_prices(found, problem)
    assert prices.shape == (2, 2)
    more = replace(problem, gpus=2)
    saved = found.objective - plan(more, gap_target=0).objective
    assert 0 < saved <= prices.sum() * 2
    assert prices[1] == pytest.approx([10 / 7, 30 / 7])
    assert prices[0] == pytest.approx([10 / 7, 10 / 7])
    relaxed = replace(problem, gpus=5)
    assert instance_prices(plan(relaxed, gap_target=0), relaxed).max() == 0


def test_problem_files(two_days: PlanProblem, pools: dict[str, PlanProblem], tmp_path: Any) -> None:
    path = tmp_path / "problem.json"
    small = {
        "gpu_model": "A100-40GB", "gpus": 2, "gpus_per_node": 2, "slot_start": "2026-11-02T00:00:00+00:00",
        "interval_hours": 1, "tenants": ["ads"], "profiles": ["gpu"], "demand": [[[1, 2]]],
        "limits": {"switches_per_day": 1},
    }  # fmt: skip
    path.write_text(json.dumps(small))
    (problem,) = read_problems(path).values()
    assert problem.limits.switches_per_day == 1
    path.write_text(plan_to_json(plan(two_days), two_days))
    assert list(read_problems(path)) == ["A100-40GB"]
    path.write_text(json.dumps({"pools": {name: one.to_dict() for name, one in pools.items()}}))
    assert list(read_problems(path)) == ["old", "new"]
    for text, words in (
        ("[1]", "a JSON object"),
        ("{", "one whole JSON document"),
        ('{"pools": 3}', "'pools' of another kind"),
        (json.dumps(small | {"gpu": 1}), "missing or unknown 'gpu'"),
        (json.dumps({k: v for k, v in small.items() if k != "demand"}), "missing or unknown 'demand'"),
    ):
        path.write_text(text)
        with pytest.raises(ScenarioError, match=words):
            read_problems(path)
    with pytest.raises(ScenarioError, match=r"no-such\.json"):
        read_problems(tmp_path / "no-such.json")
