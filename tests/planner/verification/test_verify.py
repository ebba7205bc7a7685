"""The checker finds every planted fault, and nothing in what is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify


@pytest.fixture(scope="module")
def problem(problem_of: Any) -> PlanProblem:
    """Two tenants of different tiers, slices and whole GPUs, more demand than fits, limits that bind."""
    hours = np.arange(6)
    demand = np.array([[3 + hours % 3, 1.5 + 0 * hours, 0.5 * hours], [2 + 0 * hours, 0.4 * hours, 1.3 + 0 * hours]])
    return problem_of(
        demand,
        ["1g.5gb", "3g.20gb", "gpu"],
        gpus=5,
        tiers=["guaranteed", "best_effort"],
        unmet_price=[12.0, 6.0],
        whole_gpus_kept=1,
        available=[5, 5, 4, 4, 5, 5],
        initial={"1g.5gb:7": 1},
        change_gpu_hours=0.25,
    )


@pytest.fixture(scope="module")
def right(problem: PlanProblem) -> Plan:
    found = plan(problem, gap_target=0)
    assert found.unmet_gpu_hours > 0
    assert found.changes > 0
    return found


def renamed(found: Plan, text: str, place: int) -> Plan:
    layouts = list(found.layouts)
    layouts[place % len(layouts)] = text
    return replace(found, layouts=tuple(layouts))


def shifted_between_tenants(found: Plan) -> np.ndarray:
    """Unmet demand of the low tier moved to the high one, where there is room."""
    unmet = found.unmet.copy()
    low, slot = np.argwhere(unmet[1] > 0.2)[0]
    unmet[1, low, slot] -= 0.2
    unmet[0, low, slot] += 0.2
    return unmet


def test_a_right_plan_has_no_faults(right: Plan, problem: PlanProblem) -> None:
    assert verify(right, problem) == []


def test_who_goes_short_out_of_turn_is_named(right: Plan, problem: PlanProblem) -> None:
    """The first place where it is so: the guaranteed tenant, who lacks what the other one should."""
    wrong = replace(right, unmet=shifted_between_tenants(right))
    [fault] = [text for text in verify(wrong, problem) if "by tier" in text]
    assert fault.startswith(f"unmet: {problem.tenants[0]} lacks 0.2 of ")
    assert fault.endswith("by tier it is 0")


def test_a_more_costly_service_of_the_same_instances_is_found(problem_of: Any) -> None:
    """One 3g instance can serve the dear 3g request or the cheap 1g one; serving the cheap one is a fault."""
    question = problem_of([[[1.0], [1.0]]], ["1g.5gb", "3g.20gb"], gpus=1, on_price=1.0)
    found = plan(question, gap_target=0)
    one_left = replace(
        found,
        layouts=("3g.20gb:1",),
        counts=np.array([[1]]),
        unmet=np.array([[[0.0], [1.0]]]),
        objective=1 + 30 / 7,
        unmet_gpu_hours=3 / 7,
        gap=1.0,
        bound=0.0,
        status="feasible",
    )
    assert any("these counts leave 1.42857 at the least" in fault for fault in verify(one_left, question))
    better = replace(one_left, unmet=np.array([[[1.0], [0.0]]]), objective=1 + 10 / 7, unmet_gpu_hours=1 / 7)
    assert verify(better, question) == []


def test_a_claim_of_infeasibility_is_checked(problem_of: Any) -> None:
    impossible = problem_of([[[1, 1]]], ["gpu"], whole_gpus_kept=2, available=[3, 1])
    claim = plan(impossible)
    assert claim.status == "infeasible"
    assert verify(claim, impossible) == []
    assert verify(claim, replace(impossible, whole_gpus_kept=1)) != []
    assert verify(replace(claim, bound=3.0), impossible) != []


def test_less_than_one_instance_may_go_short_too(problem_of: Any) -> None:
    """Nobody serves either tenant, and what each lacks is all that it wants, however little that is."""
    question = problem_of(np.array([[[0.3, 0.2]], [[0.1, 0.4]]]), ["gpu"], gpus=1, available=[0, 0])
    found = plan(question)
    assert found.unmet.tolist() == question.demand.tolist()
    assert not verify(found, question)
