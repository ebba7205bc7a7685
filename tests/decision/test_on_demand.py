"""Cutting on demand as a way to run the fleet: who can do it, and what an operator is told."""

from __future__ import annotations

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.decision.decision_types import LAYOUT_PER_JOB, MIG_DYNAMIC
from gpuplanner.decision.policy_comparison import POLICIES, load_policy_simulation
from gpuplanner.decision.policy_layouts import make_mig_fleet
from gpuplanner.decision.recommendation import decide


@pytest.mark.long
@pytest.mark.parametrize(("gpu_model", "able"), [("H100-80GB-SXM5", {"dra"}), ("A100-80GB", set())])
def test_who_makes_an_instance_for_each_job(gpu_model, able):
    found = set()
    for actuator in PARTITIONER_BY_ACTUATOR:
        scenario = Scenario(actuator=actuator, gpu_model=gpu_model)
        known, _, _, can = load_policy_simulation(scenario)
        if POLICIES[MIG_DYNAMIC].find_obstacle(can, known.fleet) is None:
            found.add(actuator)
    assert found == able


@pytest.mark.parametrize(("gpu_model", "reboots"), [("H100-80GB-SXM5", False), ("A100-80GB", True)])
def test_a_gpu_is_whole_or_cut_as_its_board_can_change(gpu_model, reboots):
    _, asked, _, can = load_policy_simulation(Scenario(actuator="nvidia-smi", gpu_model=gpu_model))
    fleet, layouts, switching = make_mig_fleet(asked, [0, 1], can)
    cut = fleet.flexible.pools.index(True)
    whole = fleet.gpus if not reboots else [0, 0]
    assert fleet.capacity[:, cut, 0].tolist() == list(whole)
    assert [node[cut] for node in layouts] == [(LAYOUT_PER_JOB,) * gpus for gpus in fleet.gpus.tolist()]
    assert (switching is not None) == reboots
    if reboots:
        assert switching.lead_s >= 60.0
        assert fleet.capacity[:, 0, 0].tolist() == fleet.gpus.tolist()


@pytest.mark.long
def test_the_decision_says_how_many_gpus_are_cut_by_whom():
    answer = decide(Scenario(actuator="dra", gpu_model="H100-80GB-SXM5", policies=MIG_DYNAMIC))
    one = answer.decision
    [way] = answer.policy_results.evaluated_policies
    assert way.meets_limit
    assert one.policy == MIG_DYNAMIC
    assert sum(part.gpus for part in one.layouts) == one.gpus < one.fleet_gpus
    assert {part.layout for part in one.layouts} == {LAYOUT_PER_JOB}
    assert any("DRA driver" in step.what and "as jobs ask" in step.what for step in one.next_steps)
    assert "as jobs come and go" in one.sentence
