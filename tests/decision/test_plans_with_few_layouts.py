"""The plan with few sets of layouts beside the free one: both hold, neither flatters, and every door says the same."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from gpuplanner.decision import layout_planning
from gpuplanner.decision.layout_planning import (
    PlannedProblem,
    SimulatedPlan,
    compare_plan_choices,
    compare_study_plan_with_fixed,
    make_plan_problem,
    plan_choices,
    plan_study_layouts,
    simulate_plan,
)
from gpuplanner.planner.numbered_gpus import assign
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report.layout_schedule_files import make_calendar_bundle
from tests.planner.conftest import brute_force
from tests.seeds import seeds


def small(seed: int) -> PlanProblem:
    """Two profiles of unsteady demand, on few GPUs."""
    rng = np.random.default_rng(seed)
    demand = rng.choice([0, 0.5, 1, 2, 3], size=(1, 2, 4))
    return PlanProblem(
        "A100-40GB", int(rng.integers(1, 4)), 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb", "gpu"],
        demand, change_gpu_hours=float(rng.choice([0, 0.05, 0.5])),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(20, 40))
def test_the_free_plan_is_the_best_of_all_and_never_dearer(seed):
    """Equal where few sets are all that the best plan has; both are verified by code that plans nothing."""
    problem = small(seed)
    sets = 1 + seed % 2
    calm = plan(problem, method="calendar", calendars=sets, gap_target=0)
    free = plan(problem, gap_target=0)
    for found in (calm, free):
        assert verify(found, problem, assign(found, problem)) == []
    first, second = compare_plan_choices(PlannedProblem(problem, calm), PlannedProblem(problem, free), "auto")
    assert second.objective == pytest.approx(brute_force(problem), abs=1e-6)
    assert second.objective <= first.objective + 1e-9
    assert len(np.unique(calm.counts, axis=0)) <= sets
    if len(np.unique(free.counts, axis=0)) == 1:
        assert first.objective == pytest.approx(second.objective, abs=1e-6)
    assert (first.taken, second.taken) == (True, False)


def test_files_are_those_that_are_written(study):
    calm = study.plan_choices[0]
    pack = make_calendar_bundle(study.plan, study.problem, formats="runbook")
    scripts = [name for name in pack.files if "/change-" in name]
    assert calm.files == len(scripts)
    index = pack.files["changes.csv"].splitlines()[1:]
    assert calm.change_times == len({line.split(",")[1] for line in index})


def test_played_hours_are_those_of_the_plan_where_all_gpus_are_on(quick):
    """All GPUs whole for two days: what is on is known, and only waiting is added, at its price."""
    scenario = quick.but(replications=2)
    problem = replace(make_plan_problem(scenario, "rightsized"), unmet_price=1e6)
    everything = replace(problem, demand=np.full_like(problem.demand, problem.gpus), profiles=problem.profiles)
    found = PlannedProblem(everything, plan(everything, method="static", work_limit=200))
    assert (found.plan.counts.sum(axis=1) == problem.gpus).all()
    played = SimulatedPlan.from_weeks(simulate_plan(scenario, found), everything)
    assert played.weeks == 2
    assert played.gpu_hours == pytest.approx(scenario.horizon_intervals * problem.gpus)
    assert played.cost == pytest.approx(played.gpu_hours + 10 * played.waited_gpu_hours)


def test_the_plan_of_a_study_is_simulated_once_for_all_comparisons(quick, monkeypatch):
    scenario, simulated = quick.but(replications=3, seed=4711), []  # no other test has made its plan
    simulate_weeks = layout_planning.simulate_weeks

    def counted(scenario, layouts, problem):
        simulated.append(layouts)
        return simulate_weeks(scenario, layouts, problem)

    monkeypatch.setattr(layout_planning, "simulate_weeks", counted)
    choices, over_fixed = plan_choices(scenario), compare_study_plan_with_fixed(scenario)
    assert choices[0].simulated.weeks == over_fixed.weeks == 3
    own = plan_study_layouts(scenario).layout_plan
    assert [layouts.equals(own) for layouts in simulated].count(True) == 1


def test_page_and_json_and_study_say_the_same(study):
    calm, free = study.plan_choices
    assert (calm.objective, calm.gap) == (study.headline.plan_objective_gpu_hours, study.headline.plan_gap_fraction)
    assert free.objective <= calm.objective
    assert calm.simulated is not None
    told = json.loads(study.to_json())["plan_choices"]
    assert [one["objective"] for one in told] == [calm.objective, free.objective]
    assert told[1]["simulated"]["cost"] == free.simulated.cost


def test_a_problem_file_has_both_plans_and_nothing_played(command, tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(small(3).to_dict()))
    code, text, _ = command("plan", str(path), "--method", "calendar", "--calendars", "1", "--json")
    told = json.loads(text)["plan_choices"]
    assert code == 0
    assert [(one["name"], one["method"], one["simulated"]) for one in told] == [
        ("few_changes", "calendar", None),
        ("unrestricted", "auto", None),
    ]
    assert told[0]["objective"] == json.loads(text)["objective"] > told[1]["objective"]
    code, text, _ = command("plan", str(path), "--method", "calendar", "--calendars", "1", "--quiet")
    assert code == 0
    assert "the unrestricted plan costs" in text
    assert "simulated" not in text
