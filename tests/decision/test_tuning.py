"""How settings are tried and chosen, and what the table says of policies that nobody can perform."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import (
    Comparison,
    compare_policies,
    count_power_ups,
    format_policies_within_limit,
    make_policy_table,
    reprice_comparison,
    study_comparison,
)
from gpuplanner.decision.decision_types import AUTOSCALED_POOLS, MIG_DYNAMIC, POWER_DOWN_IDLE
from gpuplanner.decision.policy_comparison import MAX_WAITING_SHARE, TuningJobs, load_policy_simulation
from gpuplanner.decision.policy_layouts import assign_layouts
from gpuplanner.decision.policy_simulation import PolicyRun, PolicySetting
from gpuplanner.decision.recommendation import decide
from gpuplanner.report.policy_and_team_sections import render_policy_section
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet
from tests.clusters import planted

HOLDS = SimpleNamespace(
    simulate=lambda setting: PolicyRun(setting, None, None, None, None), meets_limit=lambda *_: True
)


def chosen(*candidates: tuple[PolicySetting, float]) -> PolicySetting:
    """The setting that is chosen of some that are all within the limit, by GPU-hours a day."""
    tuning = TuningJobs(HOLDS, np.ones(1, bool), np.ones(1, bool), None)
    tried = [PolicyRun(setting, np.zeros((1, 1)), None, np.array([hours]), None) for setting, hours in candidates]
    tuning.good_runs.update(tried)
    return tuning.choose_cheapest("p", tried).setting


def setting(idle: int = 10, layouts: Sequence[str] = ("1g.10gb:7", "1g.10gb:7")) -> PolicySetting:
    return PolicySetting(
        "p", "", NodeFleet.of_full_gpus([2]), ((tuple(layouts),),), (0,), values={"idle_minutes": idle}
    )


@pytest.mark.parametrize(("hours", "idle"), [(990.0, 10), (969.0, 1), (950.0, 1)])
def test_a_short_idle_time_is_chosen_where_it_gains_over_three_percent(hours, idle):
    found = chosen((setting(10), 1000.0), (setting(30), 1040.0), (setting(1), hours))
    assert found.values["idle_minutes"] == idle


@pytest.mark.parametrize(("hours", "is_mixed"), [(985.0, False), (975.0, True)])
def test_a_node_is_mixed_where_that_saves_over_two_percent(hours, is_mixed):
    mixed = setting(layouts=("1g.10gb:7", "3g.40gb:2"))
    assert (chosen((setting(), 1000.0), (mixed, hours)) is mixed) == is_mixed


def test_nodes_that_one_layout_fills_are_not_mixed():
    found = assign_layouts([("gpu",) * 4] * 3, range(3), ["1g.5gb:7"] * 3 + ["3g.20gb:2"] * 5)
    assert sorted(len(set(layouts)) for layouts in found.values()) == [1, 2]


def sizes_tried(runs: Sequence[PolicyRun], policy: str) -> dict[int, set[tuple]]:
    """Settings that were tried, by GPUs."""
    found = defaultdict(set)
    for run in runs:
        if run.setting.policy == policy:
            found[run.setting.total_gpus].add(tuple(sorted(run.setting.values.items())))
    return found


def test_power_down_is_tried_with_several_settings_on_every_number_of_nodes(large):
    """And more nodes are kept than are needed without it, if that saves more."""
    answer = decide(Scenario(data=large, actuator="slurm", policies=POWER_DOWN_IDLE))
    sizes = sizes_tried(answer.policy_results.replayed_jobs.runs, POWER_DOWN_IDLE)
    assert len(sizes) > 2
    assert all(len(settings) >= 2 for settings in sizes.values()), sizes
    assert answer.decision.policy == POWER_DOWN_IDLE
    assert answer.decision.gpus == answer.recommendation.gpus


@pytest.mark.long
@pytest.mark.parametrize(("policy", "path"), [(MIG_DYNAMIC, "dra"), (AUTOSCALED_POOLS, "autoscaler")])
def test_other_policies_are_tried_with_several_settings(policy, path):
    _, asked, replayed_jobs, able = load_policy_simulation(Scenario(actuator=path))
    tuning = TuningJobs(
        replayed_jobs, replayed_jobs.is_evaluated, np.arange(len(replayed_jobs.today.daily_gpu_hours)) < 28, able
    )
    found = sizes_tried(
        {MIG_DYNAMIC: tuning.try_dynamic_mig, AUTOSCALED_POOLS: tuning.try_node_pools}[policy](), policy
    )
    assert all(len(settings) >= 2 for settings in found.values()), found
    assert max(found) <= asked.nodes.total


def test_power_ups_are_those_of_nodes_that_were_called_in_the_evaluation_window():
    day = 86_400.0
    on = pl.DataFrame({"from_s": [-7200.0, 0.5 * day, 1.0 * day, 1.5 * day, 3.2 * day]})
    run = PolicyRun(setting(), None, None, None, SimpleNamespace(power_intervals=on))
    assert count_power_ups(run, np.array([False, True, True, False])) == 2


def test_a_setting_has_the_same_results_in_the_training_window_alone(large):
    """Later jobs are left out of the simulation, and change nothing before they come."""
    *_, replayed_jobs, able = load_policy_simulation(Scenario(data=large, actuator="slurm"))
    days = np.arange(len(replayed_jobs.today.daily_gpu_hours)) < 21
    early = replayed_jobs.is_evaluated & (replayed_jobs.arrival_s < 21 * 86_400)
    tuning = TuningJobs(replayed_jobs, early, days, able)
    runs = tuning.try_power_down()
    assert any(np.isinf(run.waits_s[:, replayed_jobs.is_evaluated & ~early]).any() for run in runs)
    for run in runs:
        whole = replayed_jobs.simulate(run.setting, 1, max_waiting=MAX_WAITING_SHARE)
        assert np.array_equal(
            run.waits_s[:, early | replayed_jobs.standing], whole.waits_s[:, early | replayed_jobs.standing]
        )
        assert run.daily_gpu_hours[days] == pytest.approx(whole.daily_gpu_hours[days], rel=1e-12)


@pytest.fixture(scope="module")
def large(handed_over) -> str:
    """A cluster that is too large."""
    return handed_over(planted.planted("too_large-1").cluster)


@pytest.fixture(scope="module")
def operated(large) -> Comparison:
    """A cluster whose operator powers no node and makes no instance for a job."""
    return study_comparison(Scenario(data=large, actuator="mig-manager"))


def test_policies_that_the_actuator_cannot_perform_stay_with_the_reason(operated):
    rows = {row["policy"]: row for row in operated.to_dict()["policies"]}
    out = {name for name, row in rows.items() if not row["performable"]}
    assert out == {POWER_DOWN_IDLE, AUTOSCALED_POOLS, MIG_DYNAMIC}
    for name in out:
        assert rows[name]["reason"].startswith("not with mig-manager: ")
        assert rows[name]["gpu_hours"] is None
        assert not rows[name]["meets_target"]
    assert format_policies_within_limit(operated).startswith("1 of 2 ")


def test_they_are_grey_on_the_page_and_in_the_workbook_s_table(operated):
    page = str(render_policy_section(operated))
    muted = [row for row in page.split("<tr") if row.startswith(' class="muted"')]
    assert len(muted) == 3
    assert all("not with mig-manager" in row for row in muted)
    assert {"power_ups_per_week", "performable"} <= set(make_policy_table(operated).columns)
    assert "power-ups a week" not in page  # no policy that can be performed has any


def test_power_ups_stand_where_a_policy_powers_nodes(large):
    found = study_comparison(Scenario(data=large, actuator="slurm"))
    assert found.find_row(POWER_DOWN_IDLE).power_ups_per_week > 0
    assert {found.find_row(name).power_ups_per_week for name in ("today", "mig_static")} == {None}


def test_a_price_changes_no_simulation(large):
    """Nothing that is simulated reads a price, so that a price is a multiplication."""
    known = Scenario(data=large, actuator="slurm", ownership="owned")
    asked = known.but(price_usd_per_kwh=0.5)
    found, exact = reprice_comparison(asked, compare_policies(known)), compare_policies(asked)
    assert (
        found.decision.financial_impact
        == exact.decision.financial_impact
        != compare_policies(known).decision.financial_impact
    )
    assert found.policies == exact.policies


@pytest.mark.parametrize(("excess_min", "is_good"), [(9.0, True), (11.0, False)])
def test_where_nodes_are_slow_jobs_may_be_later_by_as_much(excess_min, is_good):
    """Nodes take 5 minutes to come, and 15 where they are slow."""
    powered = PolicySetting("p", "", NodeFleet.of_full_gpus([2]), (), (0,), NodeAutoscaling(600.0, 300.0))
    replayed_jobs = SimpleNamespace(
        simulate=lambda setting, *_, **__: PolicyRun(setting, None, None, None, None),
        meets_limit=lambda run, _, tolerance_minutes=0.0: (
            run.setting.switching.lead_s < 900 or excess_min <= tolerance_minutes
        ),
        share_of_days_met=lambda *_: 1.0, today=PolicyRun(powered, np.zeros((2, 1)), None, None, None),
        arrival_s=np.zeros(1), standing=np.zeros(1, bool),
    )  # fmt: skip
    able = SimpleNamespace(lead=SimpleNamespace(value=300.0, high=900.0))
    tuning = TuningJobs(replayed_jobs, np.ones(1, bool), np.ones(1, bool), able)
    assert tuning.meets_training_limit(PolicyRun(powered, None, None, None, None)) == is_good
