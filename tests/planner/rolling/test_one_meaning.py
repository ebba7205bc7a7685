"""The steps at slot boundaries count drained GPUs, changes and reboots as the plan does, and take its minutes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpuplanner.planner.drain_order import transition
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_search import plan
from tests.planner.test_one_change_cost import MONDAY, WORKED_BY_HAND, problem_of
from tests.planner.test_one_meaning import random_plan
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(5, 10))
def test_random_plans_are_counted_alike(seed):
    found, problem = random_plan(seed, released=seed % 2 == 0)
    frame = assign(found, problem)
    steps = [
        transition(frame, at=at, gpu_model=problem.gpu_model, change=problem.change, at_once=problem.gpus)
        for at in problem.slot_times[1:-1]
    ]
    rows = [row for step in steps for row in step.iter_rows(named=True)]
    assert sum(row["before"] not in ("off", row["after"]) for row in rows) == found.drained_gpus
    assert sum(bool(row["destroyed"] or row["created"]) for row in rows) == found.changes
    reboots = sum(step.filter("reboot").select("step", "node").n_unique() for step in steps)
    assert reboots == found.reboots


@pytest.mark.parametrize(("gpu_model", "path", "before", "after", "minutes", "reboot"), WORKED_BY_HAND)
def test_a_step_takes_the_minutes_of_the_catalogue(gpu_model, path, before, after, minutes, reboot):
    problem = problem_of(gpu_model, path, before, after)
    layouts = assign(plan(problem, gap_target=0), problem)
    step = transition(layouts, at=MONDAY + timedelta(hours=1), gpu_model=gpu_model, change=problem.change)
    assert step.select("minutes", "reboot").row(0) == (pytest.approx(minutes, abs=5e-4), reboot)
