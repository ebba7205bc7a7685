"""On the actuator of the GPU operator planned changes are made in time, and the pack of a week is small."""

from __future__ import annotations

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision import plan_rehearsal as drains
from gpuplanner.decision.layout_planning import count_layout_sets, list_change_slots, make_plan_problem, plan_view
from gpuplanner.decision.plan_rehearsal import make_drain_rule, rehearse_layout_changes


@pytest.fixture(scope="module")
def planned():
    return plan_view(Scenario(), "rightsized")


@pytest.mark.parametrize(("actuator", "sets"), [("mig-manager", 3), ("slurm", 3), ("nvidia-smi", 0), ("dra", 0)])
def test_few_sets_of_layouts_take_turns_where_nodes_are_emptied(quick, actuator, sets):
    scenario = quick.but(actuator=actuator)
    gpu_model = make_plan_problem(scenario, "rightsized").gpu_model
    assert count_layout_sets(scenario, gpu_model) == sets
    assert count_layout_sets(scenario.but(calendars=4), gpu_model) == 4


@pytest.mark.long
def test_changes_of_the_default_are_made_in_time(planned, monkeypatch):
    """Also those of a plan that pays nothing for changes, and makes many; without a reservation they are not."""
    found = rehearse_layout_changes(Scenario(), planned.layout_plan, planned.problem)
    assert found.height
    assert found["in_time"].mean() >= 0.95
    often = Scenario(change_gpu_hours=0.0)
    plan = plan_view(often, "rightsized")
    made = rehearse_layout_changes(often, plan.layout_plan, plan.problem)
    assert made.height >= 8
    assert made["in_time"].mean() >= 0.95
    monkeypatch.setattr(drains, "MAX_RESERVATION_HOURS", 1.0)
    hasty = rehearse_layout_changes(often, plan.layout_plan, plan.problem)
    assert hasty["in_time"].mean() < 0.5


@pytest.mark.long
def test_windows_are_slots_in_their_zone(quick):
    scenario = quick.but(actuator=Scenario().actuator, tz="America/New_York", change_windows="06:00-08:00")
    problem = make_plan_problem(scenario, "rightsized")
    slots = list_change_slots(scenario, problem.gpu_model, problem.slot_start)
    # New York is five hours behind until 8 March at seven; the plan ends before.
    assert [problem.slot_times[slot].hour for slot in slots] == [11] * 2
    assert make_drain_rule(scenario, problem.change).limit_s == 3600.0
    assert make_drain_rule(Scenario(change_windows="06:00-06:31"), problem.change).limit_s == 1800.0
