"""Problems: what is refused, and that a problem survives JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.planner.fleet_limits_and_prices import MAX_PRICE, StatePrices
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import PLAN_METHODS, plan
from gpuplanner.report.plan_and_bundle_verification import verify_any

ONE = [[[1.0, 2.0]]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 0}, "gpus must be a whole number from 1 to 1000000, not 0"),
        ({"on_price": float("nan")}, "on_price must be a number"),
        ({"slot_start": datetime(2026, 1, 1)}, "slot_start must be a datetime with time zone"),
        ({"profiles": ["1g.5gb", "1g.5gb"]}, "profiles must differ"),
        ({"demand": [[["x"]]]}, "numbers in three dimensions"),
        ({"demand": [[[1.0, float("nan")]]]}, "demand is not finite 1 times, first for tenant0, 1g.5gb, interval 1"),
        ({"demand": [[[-1.0, -2.0]]]}, "demand is below 0 2 times"),
        ({"unmet_price": [1.0, 2.0]}, "unmet_price must have one entry"),
        ({"available": [1]}, "available must have one entry for each of 2 intervals, not 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(problem_of: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        problem_of(**{"demand": ONE, "profiles": ["1g.5gb"], **changes})


def test_all_faults_are_named_at_once(problem_of: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        problem_of(ONE, ["1g.5gb"], gpus=0, interval_hours=-1, on_price="dear")
    assert all(name in str(caught.value) for name in ("gpus", "interval_hours", "on_price"))


def test_a_lower_tier_may_not_be_dearer_than_a_higher_one(problem_of: Any) -> None:
    demand = [[[1.0]]] * 3
    tiers = ["guaranteed", "best_effort", "standard"]
    with pytest.raises(ScenarioError, match="best_effort must not be above that of a higher tier"):
        problem_of(demand, ["gpu"], tiers=tiers, unmet_price=[9, 8, 7])
    assert problem_of(demand, ["gpu"], tiers=tiers, unmet_price=[9, 7, 7]).unmet_price == (9, 7, 7)


def test_demand_cannot_be_changed_behind_the_back_of_the_problem(problem_of: Any) -> None:
    mine = np.ones((1, 1, 2))
    problem = problem_of(mine, ["gpu"])
    mine[:] = 5
    assert problem.demand.max() == 1
    with pytest.raises(ValueError, match="read-only"):
        problem.demand[0, 0, 0] = 7


def test_required_rounds_up_but_not_for_dust(problem_of: Any) -> None:
    problem = problem_of([[[0.3, 2.0 + 1e-12, 0.0]], [[0.3, 0.0, 1e-12]]], ["gpu"])
    assert problem.required_instances.tolist() == [[1, 2, 0]]


def test_slot_times_are_utc_and_end_with_the_horizon(problem_of: Any) -> None:
    from zoneinfo import ZoneInfo

    start = datetime(2026, 3, 29, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    problem = problem_of(ONE, ["gpu"], slot_start=start, interval_hours=1.5)
    assert problem.slot_times == [datetime(2026, 3, 29, tzinfo=UTC) + n * timedelta(hours=1.5) for n in range(3)]


def test_problem_survives_json(problem_of: Any) -> None:
    problem = problem_of(
        [[[0.1, 2]], [[1 / 3, 0]]],
        ["1g.5gb"],
        gpus=np.int64(3),
        tiers=["guaranteed", "standard"],
        unmet_price=[20, 10.5],
        available=np.array([3, 2]),
        initial={"1g.5gb:7": 1},
        whole_gpus_kept=1,
    )
    again = PlanProblem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.to_dict() == problem.to_dict()
    assert again.demand.tobytes() == problem.demand.tobytes()
    assert replace(again, gpus=9).gpus == 9


def test_a_board_of_the_user_travels_with_the_problem(problem_of: Any) -> None:
    rows = facts("mig_profiles").filter(gpu_model="A100-40GB").to_dicts()
    own = [row | {"gpu_model": "House-board", "placement_starts": "0"} for row in rows if row["profile"] == "3g.20gb"]
    own += [row | {"gpu_model": "House-board"} for row in rows if row["profile"] == "7g.40gb"]
    own[0]["max_instances"] = 1
    problem = problem_of([[[2.0]]], ["3g.20gb"], gpu_model=load_gpu_model("House-board", rows=own), unmet_price=100)
    found = plan(problem)
    assert found.objective == pytest.approx(2.0)  # one 3g a GPU: the right half cannot be reached
    read, again = plan_from_json(plan_to_json(found, problem))
    assert again.gpu_model == problem.gpu_model
    assert plan_to_json(read, again) == plan_to_json(found, problem)


def priced(price: Any, state: Any) -> PlanProblem:
    """A small problem in which every price is one of two numbers."""
    names = ("parked_price", "wake", "dress", "instance", "mode", "reboot", "drain", "evicted_h")
    prices = StatePrices(**dict.fromkeys(names, state))
    return PlanProblem(
        "A100-40GB", 4, 2, datetime(2026, 11, 2, tzinfo=UTC), 1.0, ["ads"], ["3g.20gb", "gpu"],
        [[[1.0, 3.0, 5.0], [1.0, 1.0, 0.0]]], on_price=price, unmet_price=[price], change_gpu_hours=state,
        prices=prices,
    )  # fmt: skip


def test_whole_numbers_as_prices_give_the_same_plan_to_the_byte():
    whole, decimal = priced(2, 1), priced(2.0, 1.0)
    assert plan_to_json(plan(whole, gap_target=0), whole) == plan_to_json(plan(decimal, gap_target=0), decimal)


@pytest.mark.parametrize("method", PLAN_METHODS)
@pytest.mark.parametrize(("price", "state"), [(MAX_PRICE, MAX_PRICE), (MAX_PRICE, 1e-3), (1.0, 0.5)])
def test_the_highest_prices_that_are_accepted_pass_the_own_check(tmp_path, method, price, state):
    problem = priced(price, state)
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(plan(problem, method=method, gap_target=0, work_limit=5), problem))
    report = verify_any(path, None)
    assert report.ok, report.problems


@pytest.mark.parametrize("name", ["on_price", "unmet_price", "change_gpu_hours"])
def test_prices_above_the_limit_are_refused(problem_of, name):
    with pytest.raises(ScenarioError, match=rf"{name} must be .*from 0 to 1,000,000"):
        problem_of(ONE, ["1g.5gb"], **{name: 2 * MAX_PRICE})


def test_state_prices_above_the_limit_are_refused():
    with pytest.raises(ScenarioError, match="amounts from 0 to 1,000,000"):
        StatePrices(wake=1e15)
