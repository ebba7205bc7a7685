"""Faults planted in a plan for the last week of the shipped sample, hour by hour, are all found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.planner import Plan, PlanProblem, plan, verify
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.outlook import demands
from gpuplanner.study.future.plans import Planned, plan_problem

WEEK = 168
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def planned(quick: Scenario) -> Planned:
    """A calendar for the demand of the last 168 hours, as it was."""
    problem = plan_problem(quick, "rightsized")
    past = demands(quick)["rightsized"].sort("ds")
    y = [
        [
            past.filter(tenant=tenant, profile=profile)["y"].tail(WEEK).to_numpy()
            for profile in problem.profiles
        ]
        for tenant in problem.tenants
    ]
    demand = np.array([[row if len(row) else np.zeros(WEEK) for row in rows] for rows in y])
    week = replace(problem, demand=demand)
    return Planned(week, plan(week, gap_target=0.005, seed=1))


def test_a_week_is_planned_to_one_percent_and_holds(planned):
    assert planned.problem.n_slots == WEEK
    assert planned.problem.demand.sum() > 1000
    assert planned.plan.gap <= 0.01
    assert planned.plan.bound <= planned.plan.objective
    assert verify(planned.plan, planned.problem) == []


def moved(found: Plan, slot: int, layout: int, other: int, gpus: int) -> Plan:
    """GPUs moved from one layout to another in one slot."""
    counts = found.counts.copy()
    counts[slot, layout] -= gpus
    counts[slot, other] += gpus
    return replace(found, counts=counts)


def nudged(array: np.ndarray, cell: tuple[int, ...], by: float) -> np.ndarray:
    changed = array.copy()
    changed[cell] += by
    return changed


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_moved_gpu_is_found(planned, data):
    """In the middle of a calm stretch a GPU that leaves its layout for a slot changes twice, unaccounted for."""
    found, problem = planned.plan, planned.problem
    calm = [
        slot
        for slot in range(1, problem.n_slots - 1)
        if (found.counts[slot - 1 : slot + 2] == found.counts[slot]).all()
    ]
    slot = data.draw(st.sampled_from(calm))
    held = np.flatnonzero(found.counts[slot])
    layout = int(data.draw(st.sampled_from(held.tolist())))
    others = [i for i in range(len(found.layouts)) if i != layout]
    other = data.draw(st.sampled_from(others))
    gpus = data.draw(st.integers(1, int(found.counts[slot, layout])))
    wrong = moved(found, slot, layout, other, gpus)
    assert verify(wrong, problem)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_gpu_added_or_taken_is_found(planned, data):
    found, problem = planned.plan, planned.problem
    cell = data.draw(st.tuples(st.integers(0, problem.n_slots - 1), st.integers(0, len(found.layouts) - 1)))
    by = data.draw(st.sampled_from([-1, 1, 64]))
    assert verify(replace(found, counts=nudged(found.counts, cell, by)), problem)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), by=st.floats(0.01, 50).flatmap(lambda x: st.sampled_from([x, -x])))
def test_any_unmet_demand_hidden_or_invented_is_found(planned, data, by):
    found, problem = planned.plan, planned.problem
    tenants, profiles, slots = problem.demand.shape
    cell = data.draw(
        st.tuples(st.integers(0, tenants - 1), st.integers(0, profiles - 1), st.integers(0, slots - 1))
    )
    assert verify(replace(found, unmet=nudged(found.unmet, cell, by)), problem)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["objective", "bound", "gap", "gpu_hours_on", "unmet_gpu_hours", "changes"]),
    factor=st.floats(1.001, 3),
)
def test_any_better_or_worse_figure_is_found(planned, name, factor):
    found: Plan = planned.plan
    problem: PlanProblem = planned.problem
    value = getattr(found, name)
    wrong = value + max(1, int(factor)) if name == "changes" else value * factor + 0.01
    assert verify(replace(found, **{name: wrong}), problem)
