"""The search as a whole: properties that every plan has, stop rules, words and files."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import InfeasiblePlanError
from gpuplanner.planner import plan_search as stages
from gpuplanner.planner.layout_plan import plan_from_json, plan_to_json
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify

NAMES = ["1g.5gb", "2g.10gb", "3g.20gb", "gpu"]
LEVELS = (0.0, 0.2, 1.0, 1.7, 3.0, 5.0)


@st.composite
def demands(draw: st.DrawFn, tenants: int = 2) -> np.ndarray:
    """Demand of some tenants for all of NAMES over a few slots."""
    slots = draw(st.integers(1, 5))
    size = tenants * len(NAMES) * slots
    values = draw(st.lists(st.sampled_from(LEVELS), min_size=size, max_size=size))
    return np.array(values).reshape(tenants, len(NAMES), slots)


@pytest.fixture(scope="module")
def day(problem_of: Any) -> PlanProblem:
    """Large enough for rounds with floors of several slots, small enough to be quick."""
    hours = np.arange(72)
    rng = np.random.default_rng(5)
    level = np.array([[6.0], [2.5], [2.0], [1.0]]) * (1.2 + np.cos(hours / 24 * 2 * np.pi))
    demand = level * rng.uniform(0.8, 1.2, size=level.shape)
    return problem_of(
        [demand * 0.6, demand * 0.4], [*NAMES[:3], "4g.20gb"], gpus=12, gpus_per_node=4, change_gpu_hours=0.25
    )


@settings(max_examples=10, deadline=None)
@given(demand=demands())
def test_one_gpu_more_never_raises_the_cost(problem_of: Any, demand: np.ndarray) -> None:
    costs = []
    for gpus in (1, 2, 3, 4):
        found = plan(problem_of(demand, NAMES, gpus=gpus, change_gpu_hours=0.25), gap_target=0)
        assert found.status == "optimal"
        costs.append(found.objective)
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(costs))


@settings(max_examples=10, deadline=None)
@given(demand=demands(tenants=3), order=st.permutations(range(3)))
def test_the_order_of_tenants_changes_nothing(problem_of: Any, demand: np.ndarray, order: list[int]) -> None:
    tiers, prices = ["guaranteed", "standard", "standard"], [20.0, 10.0, 5.0]
    one = plan(problem_of(demand, NAMES, tiers=tiers, unmet_price=prices), gap_target=0)
    other = plan(
        problem_of(demand[order], NAMES, tiers=[tiers[i] for i in order], unmet_price=[prices[i] for i in order]),
        gap_target=0,
    )
    assert one.objective == pytest.approx(other.objective)
    np.testing.assert_allclose(one.unmet[order].sum(axis=1), other.unmet.sum(axis=1), atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(demand=demands())
def test_never_changing_is_never_cheaper(problem_of: Any, demand: np.ndarray) -> None:
    problem = problem_of(demand, NAMES, change_gpu_hours=0.25)
    free, constant = plan(problem, gap_target=0), plan(problem, gap_target=0, method="static")
    assert free.objective is not None
    assert constant.objective is not None
    assert free.objective <= constant.objective + 1e-6
    assert constant.changes == 0


def test_rounds_reach_the_gap_and_say_so(day: PlanProblem) -> None:
    found = plan(day, gap_target=0.006)
    assert found.gap is not None
    assert found.gap <= 0.006
    assert (found.stopped_by, found.hit_time_limit) == ("proof", False)
    assert verify(found, day) == []


def test_a_limit_that_is_too_short_leaves_the_greedy_plan_and_is_said_to_be(day: PlanProblem) -> None:
    found = plan(day, gap_target=0, time_limit_s=1e-9)
    assert found.status == "feasible"
    assert found.hit_time_limit
    assert found.objective <= plan(day, method="greedy", time_limit_s=1e-9).objective
    assert verify(found, day) == []


def test_a_plan_cut_short_is_feasible_and_says_that_the_time_was_up(
    monkeypatch: pytest.MonkeyPatch, day: PlanProblem
) -> None:
    """The clock jumps to the deadline once a first plan is there."""
    late = [0.0]
    clock, path = time.monotonic, stages.cheapest_path_with_idle_gpus

    def then_the_time_is_up(*arguments: Any, **options: Any) -> Any:
        late[0] = 1e9
        return path(*arguments, **options)

    jumping = SimpleNamespace(monotonic=lambda: clock() + late[0])
    monkeypatch.setattr("gpuplanner.planner.linear_programs_and_search_limits.time", jumping)
    monkeypatch.setattr(stages, "cheapest_path_with_idle_gpus", then_the_time_is_up)
    found = plan(day, method="milp", gap_target=0, time_limit_s=3600)
    assert found.status == "feasible"
    assert found.hit_time_limit
    assert "stopped at the time limit" in found.explanation
    assert verify(found, day) == []


def test_interrupt_returns_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch, day: PlanProblem) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "cheapest_path_with_idle_gpus", interrupt)
    found = plan(day, method="milp", gap_target=0)
    assert (found.status, found.stopped_by) == ("feasible", "user")
    assert "stopped by the user" in found.explanation
    assert verify(found, day) == []
    monkeypatch.setattr(stages, "solve_relaxation", interrupt)
    with pytest.raises(KeyboardInterrupt):
        plan(day, method="milp")


def test_words_name_who_goes_short_when_and_the_way_out(problem_of: Any) -> None:
    problem = problem_of(
        [[[1.0, 3.0]], [[0.5, 1.0]]],
        ["gpu"],
        gpus=2,
        tenants=["ads", "research"],
        tiers=["guaranteed", "best_effort"],
        available=[2, 1],
        unmet_price=[10, 5],
    )
    words = plan(problem, gap_target=0).explanation
    assert "The plan is optimal (proven)" in words
    assert "ads lacks 2.0 GPU-hours of full GPUs, most at 2026-11-02 01:00 UTC" in words
    assert "research lacks 1.0 GPU-hours of full GPUs" in words
    assert "4 GPUs would serve all demand that pays off" in words
    assert "postpone the maintenance of 1 GPU; add 2 GPUs" in words


def test_infeasible_plans_say_why_and_what_to_do(problem_of: Any) -> None:
    problem = problem_of([[[1, 1, 1]]], ["gpu"], whole_gpus_kept=2, available=[3, 1, 0])
    for method in ("milp", "static"):
        found = plan(problem, method=method)
        assert (found.status, found.stopped_by) == ("infeasible", "proof")
        assert "In 2 of 3 intervals, first at 2026-11-02 01:00 UTC" in found.explanation
        assert "keep at most 0 full, or have 2 more in service" in found.explanation
        with pytest.raises(InfeasiblePlanError, match="infeasible"):
            found.require()


def test_plan_and_problem_survive_a_file(problem_of: Any) -> None:
    problem = problem_of([[[3.3, 9.0]], [[0.0, 1.0]]], ["3g.20gb"], initial={"3g.20gb:2": 1}, whole_gpus_kept=1)
    for candidate in (problem, replace(problem, whole_gpus_kept=3, available=(2, 2))):
        found = plan(candidate)
        text = plan_to_json(found, candidate)
        read, again = plan_from_json(text)
        assert plan_to_json(read, again) == text
        assert (read.method, read.stopped_by, read.explanation, read.seconds) == ("", "", "", None)
        assert verify(read, again) == []


def test_the_room_loads_no_solver() -> None:
    code = "import sys, gpuplanner.planner; print(sorted({'pulp', 'highspy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.long
def test_a_week_of_64_gpus_is_planned_within_one_percent(root: Any) -> None:
    sys.path.insert(0, str(root / "benchmarks"))
    try:
        from planner import week
    finally:
        sys.path.pop(0)
    problem = week(26, 0.25, 0, whole=1 / 3, fleet=64)
    found = plan(problem, gap_target=0.01)
    assert found.gap is not None
    assert found.gap <= 0.01
    assert not found.hit_time_limit
    assert verify(found, problem) == []
