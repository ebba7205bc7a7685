"""One change of one GPU: every door states the minutes that the catalogue has for the board and the actuator."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.plan_rehearsal import GpuCalendar, make_drain_rule
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model, make_non_mig_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost, find_change_cost, find_drain_time
from gpuplanner.planner.fleet_limits_and_prices import StatePrices
from gpuplanner.planner.layout_plan import plan_to_json
from gpuplanner.planner.numbered_gpus import assign, layout_changes
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.planner.plan_verification import verify
from gpuplanner.report import monthly_sections as appendix
from gpuplanner.report.change_bundle_parts import change_index
from gpuplanner.report.layout_schedule_files import export_plan
from gpuplanner.report.mig_manager_files import to_change_scripts
from gpuplanner.report.plan_and_bundle_verification import verify_any
from gpuplanner.report.slurm_files import to_slurm_files
from gpuplanner.simulator.scheduling_rules import Drain
from tests.decision.planned_operations import operations_on_an_idle_fleet

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
AMPERE, HOPPER = "A100-80GB", "H100-80GB-SXM5"
HALVES, SEVENTHS = "3g.40gb:2", "1g.10gb:7"
ASKED = {"gpu": ("gpu", 1), HALVES: ("3g.40gb", 2), SEVENTHS: ("1g.10gb", 7)}
WORKED_BY_HAND = [
    # Whole to halves is a change of MIG mode: on Ampere a reboot of the node, by any actuator.
    (AMPERE, "mig-manager", "gpu", HALVES, 10.0, True),
    (AMPERE, "nvidia-smi", "gpu", HALVES, 10.0, True),
    (AMPERE, "mig-parted", HALVES, "gpu", 10.0, True),
    (AMPERE, "mig-manager", HALVES, SEVENTHS, 1.0, False),
    (AMPERE, "nvidia-smi", HALVES, SEVENTHS, 9 * 0.3 / 60, False),  # two instances go, seven come
    (HOPPER, "mig-manager", "gpu", HALVES, 1.0, False),
    (HOPPER, "mig-manager", HALVES, SEVENTHS, 1.0, False),
    (HOPPER, "mig-parted", "gpu", HALVES, 1 / 60, False),
    (HOPPER, "nvidia-smi", "gpu", HALVES, 2 * 0.3 / 60, False),
]


def problem_of(gpu_model, actuator, before, after, change=None):
    """One GPU that is asked for as it is for an hour, and then otherwise."""
    profiles = list(dict.fromkeys([ASKED[before][0], ASKED[after][0]]))
    demand = [[ASKED[text][1] * (profile == ASKED[text][0]) for text in (before, after)] for profile in profiles]
    change = change or find_change_cost(Scenario(actuator=actuator), gpu_model)
    return PlanProblem(
        gpu_model, 1, 1, MONDAY, 1, ["ads"], profiles, [demand], initial={before: 1}, change=change, nodes=["n1"]
    )


def simulated_minutes(problem, before, after):
    """Time out of service of an idle GPU whose layout changes."""
    layouts = tuple(dict.fromkeys(("gpu", before, after)))
    states = np.array([[layouts.index(before)], [layouts.index(after)]])
    (made,) = operations_on_an_idle_fleet(GpuCalendar(layouts, states, states), problem, Drain()).to_dicts()
    assert (made["began_s"], made["outcome"]) == (3600.0, "done")
    return (made["ended_s"] - made["wanted_s"]) / 60


@pytest.mark.parametrize(("gpu_model", "actuator", "before", "after", "minutes", "reboot"), WORKED_BY_HAND)
def test_every_door_states_the_same_minutes(tmp_path, study, gpu_model, actuator, before, after, minutes, reboot):
    problem = problem_of(gpu_model, actuator, before, after)
    found = plan(problem, gap_target=0)
    layouts = assign(found, problem)
    assert verify(found, problem, layouts) == []
    assert simulated_minutes(problem, before, after) == pytest.approx(minutes)
    if after == "gpu":  # a plan does not count that as a change, and nothing is to be applied
        return
    assert layout_changes(found, problem).select("before", "after", "changes", "reboot", "minutes").rows() == [
        (before, after, 1, reboot, pytest.approx(minutes))
    ]
    kept = tmp_path / "plan.json"
    kept.write_text(plan_to_json(found, problem), encoding="utf-8")
    for formats, folder in (("runbook", "runbook"), ("slurm", "slurm")):
        export_plan(kept, tmp_path / folder, formats=formats)
        (script,) = (tmp_path / folder).rglob("change-*.sh")
        stated = re.search(rf"about ([\d.]+) (min|s) \(.*\) by {actuator}, without the drain(.*)", script.read_text())
        in_minutes = float(stated[1]) / (60 if stated[2] == "s" else 1)
        assert in_minutes == pytest.approx(minutes, rel=1e-3)  # four digits are printed
        assert ("reboot" in stated[3]) == reboot
    shown = replace(study, problem=problem, tables={**study.tables, "layout_changes": layout_changes(found, problem)})
    assert f">{minutes:.4g}<" in appendix.layouts(shown)
    words = problem.change.describe_time()
    assert words in appendix.layouts(shown)
    assert words in verify_any(kept, None).findings[0]
    if reboot or actuator != "nvidia-smi":
        assert (f"{minutes:.4g} min" if minutes >= 1 else f"{60 * minutes:.4g} s") in words


@pytest.mark.parametrize("gpu_model", [AMPERE, HOPPER])
def test_what_a_scenario_states_holds_instead_of_the_catalogue(gpu_model):
    assert find_change_cost(Scenario(change_gpu_hours=0.7), gpu_model).plan_gpu_hours(8) == 0.7


def test_what_a_plan_pays_by_hand():
    """A minute and a quarter of an hour less a minute of emptying; a reboot stops the eight GPUs of a node."""
    drain_s = find_drain_time().value
    assert ChangeCost.from_catalogue(HOPPER).plan_gpu_hours(8) == (60 + drain_s) / 3600 == 0.25
    assert ChangeCost.from_catalogue(AMPERE).plan_gpu_hours(8) == (8 * 600 + drain_s) / 3600
    assert ChangeCost.from_catalogue(HOPPER, "nvidia-smi").plan_gpu_hours(8) == pytest.approx(
        (7 * 0.3 + drain_s) / 3600
    )
    assert (
        ChangeCost.from_catalogue(make_non_mig_model("T4")).plan_gpu_hours(8) == 0.25
    )  # never paid: there is nothing to cut
    demand = [[[2, 3]]]
    pool = {"gpus_per_node": 8, "slot_start": MONDAY, "interval_hours": 1, "tenants": ["t"], "profiles": ["3g.40gb"]}
    assert PlanProblem(AMPERE, 8, demand=demand, **pool).change == ChangeCost.from_catalogue(AMPERE)
    assert PlanProblem(HOPPER, 8, demand=demand, **pool).change_gpu_hours == 0.25


def test_times_that_do_not_exist_are_refused():
    with pytest.raises(ScenarioError, match="got mode_s"):
        ChangeCost.from_catalogue(HOPPER, mode_s=1.0)
    problem = problem_of(HOPPER, "mig-manager", "gpu", HALVES)
    for change, words in (
        ({"minutes": 1}, "got minutes"),
        ({"drain_s": 3}, "times as"),
        ({"drain_s": [1]}, "times as"),
        ({"change_s": None}, "null for reboot_s alone"),
        ([], "got \\[\\]"),
        ({"actuator": 3}, "got 3"),
    ):
        with pytest.raises(ScenarioError, match=words):
            PlanProblem.from_dict(problem.to_dict() | {"change": change})


def _of_own_rows(**stated: float) -> GpuModel:
    """A board of rows of the user: one profile, on all of it or a half."""
    row = {
        "gpu_model": "H99", "architecture": "Hopper", "memory_gib_total": 80, "memory_slices_total": 8,
        "compute_slices_total": 7, "profile": "3g.40gb", "compute_slices": 3, "memory_slices": 4, "memory_gib": 40,
        "max_instances": 2, "placement_starts": "0;4",
    }  # fmt: skip
    return load_gpu_model("H99", rows=[row | stated])


def test_a_drain_is_stated_once_by_the_gpu_model_and_holds_everywhere():
    """Twice the catalogue's time to empty is twice its limit."""
    by_row = ChangeCost.from_catalogue(_of_own_rows(drain_s=1680))
    slow = replace(ChangeCost.from_catalogue(HOPPER), drain_s=by_row.drain_s)
    assert (slow.drain_s.value, slow.drain_s.high) == (1680.0, 7200.0)
    assert slow.plan_gpu_hours(8) == (60 + 1680) / 3600
    assert ChangeCost.from_catalogue(_of_own_rows()).drain_s == find_drain_time()

    problem = problem_of(HOPPER, "mig-manager", "gpu", HALVES, slow)
    assert problem.change_gpu_hours == slow.plan_gpu_hours(8)
    assert PlanProblem.from_dict(json.loads(json.dumps(problem.to_dict()))).change == slow
    own = problem_of(_of_own_rows(drain_s=1680), "mig-manager", "gpu", HALVES, by_row)
    assert PlanProblem.from_dict(own.to_dict()).gpu_model.drain_s == 1680
    prices = StatePrices.from_change_cost(slow, 8)
    assert (prices.drain, prices.limit_h) == (1680 / 3600, 2.0)
    assert Drain().limit_s == find_drain_time().high
    assert make_drain_rule(Scenario(actuator="slurm"), slow).limit_s == 7200.0
    table = assign(plan(problem), problem)
    index = change_index(table, HOPPER, change=slow, drain=make_drain_rule(Scenario(), slow))
    assert (index["give_up_at"] - index["planned"]).to_list() == [timedelta(hours=2)] * index.height != []
    for scripts in (to_change_scripts(table, HOPPER, change=slow), to_slurm_files(table, HOPPER, change=slow)):
        text = "".join(script for name, script in scripts.items() if name.startswith("change-"))
        assert 'timeout_s="${TIMEOUT_S:-7200}"' in text
