"""The checker finds every planted fault, and nothing in what is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplanner.planner import Plan, PlanProblem, plan, verify

Planter = Callable[[Plan, PlanProblem, int], tuple[Plan, PlanProblem]]


@pytest.fixture(scope="module")
def problem(problem_of: Any) -> PlanProblem:
    """Two tenants of different tiers, slices and whole GPUs, more demand than fits, limits that bind."""
    hours = np.arange(6)
    demand = np.array(
        [
            [3 + hours % 3, 1.5 + 0 * hours, 0.5 * hours],
            [2 + 0 * hours, 0.4 * hours, 1.3 + 0 * hours],
        ]
    )
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


def bumped(array: np.ndarray, place: int, by: float) -> np.ndarray:
    """A copy with one entry raised."""
    copy = array.copy()
    copy.flat[place % copy.size] += by
    return copy


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


def cut_of(found: Plan) -> int:
    return next(i for i, text in enumerate(found.layouts) if text != "gpu")


PLANTED: dict[str, tuple[Planter, str]] = {
    "count off by one": (lambda p, q, k: (replace(p, counts=bumped(p.counts, k, 1)), q), ""),
    "layout without counts": (lambda p, q, k: (replace(p, layouts=(*p.layouts, "1g.5gb:1")), q), "counts: the shape"),
    "unknown profile": (lambda p, q, k: (renamed(p, "9g.99gb:1", k), q), "unknown"),
    "text that is no layout": (lambda p, q, k: (renamed(p, "all of it", k), q), "layouts:"),
    "layout not in canonical form": (lambda p, q, k: (renamed(p, "1g.5gb:2,3g.20gb:1", k), q), "canonical"),
    "layout of a GPU that is off": (lambda p, q, k: (renamed(p, "off", k), q), "canonical"),
    "fleet exceeded": (lambda p, q, k: (p, replace(q, gpus=5, available=[1] * 6, whole_gpus_kept=0)), "in service"),
    "too few left whole": (lambda p, q, k: (p, replace(q, whole_gpus_kept=4)), "are to be kept so"),
    "unmet of another shape": (lambda p, q, k: (replace(p, unmet=p.unmet[:1]), q), "unmet: the shape"),
    "unmet not a number": (lambda p, q, k: (replace(p, unmet=bumped(p.unmet, k, np.nan)), q), "unmet: not finite"),
    "unmet below zero": (lambda p, q, k: (replace(p, unmet=bumped(p.unmet, k, -20)), q), "unmet: -"),
    "unmet above demand": (lambda p, q, k: (replace(p, unmet=bumped(p.unmet, k, 20)), q), "unmet: 2"),
    "unmet understated": (lambda p, q, k: (replace(p, unmet=p.unmet * 0.5), q), "priced"),
    "unmet overstated": (lambda p, q, k: (replace(p, unmet=q.demand.copy()), q), "priced"),
    "the wrong tenant short": (lambda p, q, k: (replace(p, unmet=shifted_between_tenants(p)), q), "by tier"),
    "bound infinite": (lambda p, q, k: (replace(p, bound=-np.inf), q), "bound: -inf"),
    "optimal without proof": (lambda p, q, k: (replace(p, bound=p.bound * 0.9, gap=0.1), q), "status: optimal"),
    "feasible with proof": (lambda p, q, k: (replace(p, status="feasible"), q), "status: feasible"),
    "static, yet it changes": (lambda p, q, k: (replace(p, method="static"), q), "the method is static"),
    "unknown stop": (lambda p, q, k: (replace(p, stopped_by="luck"), q), "stopped_by"),
    "other demand": (lambda p, q, k: (p, replace(q, demand=q.demand * 1.5)), ""),
    "other initial layouts": (lambda p, q, k: (p, replace(q, initial={})), "changes"),
}  # fmt: skip


def test_a_right_plan_has_no_faults(right: Plan, problem: PlanProblem) -> None:
    assert verify(right, problem) == []


@pytest.mark.parametrize("kind", PLANTED)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 200))
def test_every_planted_fault_is_found(right: Plan, problem: PlanProblem, kind: str, place: int) -> None:
    plant, words = PLANTED[kind]
    wrong, question = plant(right, problem, place)
    faults = verify(wrong, question)
    assert faults
    assert words in " ".join(faults)


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
