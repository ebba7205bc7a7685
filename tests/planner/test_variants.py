"""What limits cost: worked by hand, and bounds that hold whatever the search finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuplanner.planner.fleet_limits_and_prices import Limits, StatePrices
from gpuplanner.planner.fleet_plans_and_comparisons import BASE_VARIANT_NAME, compare_plans, price_of_limits, with_limit
from gpuplanner.planner.plan_problem import PlanProblem

NAMES = ["1g.5gb", "3g.20gb", "gpu"]
LEVELS = (0.0, 0.4, 1.0, 1.7, 3.0)


@st.composite
def demands(draw: st.DrawFn) -> np.ndarray:
    """Demand of one tenant for all of NAMES over a few slots."""
    slots = draw(st.integers(1, 4))
    size = len(NAMES) * slots
    values = draw(st.lists(st.sampled_from(LEVELS), min_size=size, max_size=size))
    return np.array(values).reshape(1, len(NAMES), slots)


@pytest.fixture(scope="module")
def steps(problem_of: Any) -> PlanProblem:
    """Two 3g in two slots, then four, then six: one GPU serves two of them."""
    return problem_of([[[2, 2, 4, 6]]], ["3g.20gb"], gpus=3, change_gpu_hours=0.25)


def test_methods_are_measured_by_one_bound_worked_by_hand(steps: PlanProblem) -> None:
    # Free: 1 + 1 + 2 + 3 GPU-hours and two cuts of 0.25. Two vectors: {1, 3} costs 8 + 2 x 0.25.
    # Static: three GPUs in every slot; two would leave 2 x 3/7 GPU-hours at price 10 unserved.
    found = compare_plans(steps, calendars=(2, 3), gap_target=0)
    assert found["method"].to_list() == ["static", "calendar (2)", "calendar (3)", "auto"]
    assert found["objective"].to_list() == pytest.approx([12.0, 8.5, 7.5, 7.5])
    assert found["bound"].to_list() == pytest.approx([7.5] * 4)
    assert found["gap"].to_list() == pytest.approx([4.5 / 12, 1 / 8.5, 0, 0])
    assert found["changes"].to_list() == [0, 2, 2, 2]
    assert found["distinct"].to_list() == [1, 2, 3, 3]
    assert found["gpu_hours_on"].to_list() == [12, 8, 7, 7]
    assert found["unmet_gpu_hours"].to_list() == [0, 0, 0, 0]


def test_no_plan_is_a_row_without_numbers(problem_of: Any) -> None:
    contradiction = problem_of([[[1.0]]], ["3g.20gb"], gpus=1, gpus_per_node=1, limits=Limits({"3g.20gb:2": 2}))
    found = compare_plans(contradiction, ["static", "auto"])
    assert found.select("objective", "bound", "distinct").rows() == [(None, None, None)] * 2
    prices = price_of_limits(contradiction, {"more": with_limit(contradiction, gpus=2)})
    assert prices["extra"].to_list() == [None, None]
    assert "contradict each other" in prices["explanation"][0]


def test_price_of_a_gpu_less_worked_by_hand(steps: PlanProblem) -> None:
    # Two GPUs: the last slot leaves two 3g unserved, 2 x 3/7 x 10, and saves one GPU-hour and one cut.
    prices = price_of_limits(steps, {"two GPUs": with_limit(steps, gpus=2)}, gap_target=0)
    assert prices["variant"].to_list() == [BASE_VARIANT_NAME, "two GPUs"]
    expected = 60 / 7 - 1 - 0.25
    assert prices.row(1)[3:6] == pytest.approx((expected, expected, expected))
    assert prices.row(0)[3:6] == (0.0, 0.0, 0.0)
    assert "not met" in prices["explanation"][1]


@settings(max_examples=10, deadline=None)
@given(
    demand=demands(),
    limit=st.sampled_from([{"gpus": 2}, {"whole_nodes_kept": 1}, {"switches_per_day": 1}]),
    prices=st.sampled_from([None, StatePrices(parked_price=0.2, dress=0.1, drain=0.5)]),
)
def test_a_tighter_limit_is_never_said_to_save(
    problem_of: Any, demand: np.ndarray, limit: dict[str, int], prices: StatePrices | None
) -> None:
    problem = problem_of(demand, NAMES, gpus=4, change_gpu_hours=0.25, initial={"gpu": 4}, prices=prices)
    variants = {"tighter": with_limit(problem, **limit)}
    rough = price_of_limits(problem, variants, gap_target=0.2).row(1, named=True)
    exact = price_of_limits(problem, variants, gap_target=0).row(1, named=True)
    assume(rough["extra"] is not None and exact["extra"] is not None)
    assert rough["extra_high"] >= -1e-6
    assert rough["extra_low"] - 1e-6 <= rough["extra"] <= rough["extra_high"] + 1e-6
    assert exact["extra"] >= -1e-6
    assert rough["extra_low"] - 1e-6 <= exact["extra_high"]
    assert exact["extra_low"] <= rough["extra_high"] + 1e-6


@settings(max_examples=10, deadline=None)
@given(demand=demands())
def test_the_range_of_a_rough_search_holds_the_true_price(problem_of: Any, least_cost: Any, demand: np.ndarray) -> None:
    problem = problem_of(demand, NAMES, gpus=2, change_gpu_hours=0.25)
    smaller = with_limit(problem, gpus=1)
    price = least_cost(smaller) - least_cost(problem)
    for gap in (0.3, 0.0):
        row = price_of_limits(problem, {"one": smaller}, gap_target=gap).row(1, named=True)
        assert row["extra_low"] - 1e-6 <= price <= row["extra_high"] + 1e-6
    assert row["extra"] == pytest.approx(price, abs=1e-5)


def test_other_sizes_keep_names_service_and_cut_gpus(problem_of: Any) -> None:
    problem = problem_of(
        [[[1, 1]]], ["3g.20gb"], gpus=4, nodes=["a", "b"], available=[4, 1], initial={"3g.20gb:2": 2, "gpu": 1}
    )
    smaller, larger = with_limit(problem, gpus=2), with_limit(problem, gpus=5)
    assert (smaller.nodes, smaller.available, smaller.initial) == (problem.nodes, (2, 0), problem.initial)
    assert (larger.nodes, larger.available, larger.initial) == (None, (5, 2), problem.initial)
    assert with_limit(problem).to_dict() == problem.to_dict()
