"""What a actuator can do is read from one table: nothing is promised that the actuator does not do."""

from __future__ import annotations

import pytest

from gpuplanner.core.setting_rules_and_controls import PARTITIONER_BY_ACTUATOR
from gpuplanner.hardware.actuators import PARTITIONS_ANY_GPUS, PARTITIONS_EMPTY_NODES, PARTITIONS_NEVER, find_abilities
from gpuplanner.hardware.catalog import facts, mig_model_names
from gpuplanner.hardware.gpu_models import load_any_gpu_model, load_gpu_model

AMPERE, HOPPER = load_gpu_model("A100-80GB"), load_gpu_model("H100-80GB-SXM5")


@pytest.mark.parametrize("actuator", PARTITIONER_BY_ACTUATOR)
def test_every_path_states_every_ability_with_a_source(actuator):
    found = find_abilities(actuator)
    assert set(found.facts) == set(facts("actuator_abilities")["ability"]) - {"default_for"}
    assert found.cuts_on_demand in (PARTITIONS_NEVER, PARTITIONS_EMPTY_NODES, PARTITIONS_ANY_GPUS)
    assert all(fact.meaning and fact.source and fact.date for fact in found.facts.values())


def test_a_larger_instance_serves_a_smaller_request_only_where_claims_select():
    assert [actuator for actuator in PARTITIONER_BY_ACTUATOR if find_abilities(actuator).substitutes] == ["dra"]


@pytest.mark.parametrize("gpu_model", mig_model_names())
def test_cutting_for_a_job_by_dra_needs_hopper_or_newer_and_is_not_guessed(gpu_model):
    model = load_gpu_model(gpu_model)
    newer = model.architecture in ("Hopper", "Blackwell", "Blackwell Ultra")
    found = find_abilities("dra", model)
    assert found.cuts_on_demand == ("gpus" if newer else "never")
    assert newer or "before Hopper" in found.facts["cuts_on_demand"].meaning


@pytest.mark.parametrize("actuator", PARTITIONER_BY_ACTUATOR)
def test_a_board_that_cannot_be_cut_is_not_cut_by_anyone(actuator):
    found = find_abilities(actuator, load_any_gpu_model("T4"))
    assert found.cuts_on_demand == "never"
    assert found.lead == found.boot


@pytest.mark.parametrize(
    ("actuator", "cuts"),
    [
        ("mig-manager", "never"),
        ("mig-parted", "never"),
        ("autoscaler", "never"),
        ("slurm", "empty nodes"),
        ("nvidia-smi", "never"),
    ],
)
def test_who_cuts_for_a_job(actuator, cuts):
    assert find_abilities(actuator, AMPERE).cuts_on_demand == cuts


def test_an_operators_nodes_come_and_go_only_with_an_autoscaler_and_its_delays():
    alone, beside = find_abilities("mig-manager"), find_abilities("mig-manager", ownership="rented")
    assert (alone.switches_nodes, alone.cool_s, alone.returns) == (False, 0.0, "idled")
    assert (beside.switches_nodes, beside.returns) == (True, "returned")
    assert (beside.scan_s, beside.cool_s) == (find_abilities("autoscaler").scan_s, find_abilities("autoscaler").cool_s)
    assert "scale-down-delay-after-add" in beside.facts["cool_s"].meaning
    assert not find_abilities("mig-parted", ownership="rented").switches_nodes


@pytest.mark.parametrize(
    ("ownership", "returns"), [("owned", "idled"), ("reserved", "idled"), ("rented", "returned"), ("spot", "returned")]
)
@pytest.mark.parametrize("actuator", PARTITIONER_BY_ACTUATOR)
def test_owned_nodes_rest_and_rented_ones_go(actuator, ownership, returns):
    assert find_abilities(actuator, ownership=ownership).returns == returns


@pytest.mark.parametrize(("stated", "middle", "slow"), [({"lead_s": 120}, 120, 360), ({"lead_s": 0}, 0, 0)])
def test_a_stated_lead_keeps_the_range_of_the_catalogue(stated, middle, slow):
    lead = find_abilities("autoscaler", **stated).lead
    assert (lead.value, lead.high) == (middle, slow)
    assert "as stated" in lead.basis


@pytest.mark.parametrize(
    ("actuator", "gpu_model", "ownership", "cut"),
    [
        ("slurm", HOPPER, "owned", 1.0),  # mig-parted, one second
        ("mig-manager", HOPPER, "owned", 60.0),  # the manager on a node
        ("nvidia-smi", HOPPER, "owned", 7 * 0.3),  # seven instances one after another
        ("slurm", AMPERE, "owned", 1.0),  # MIG mode is kept on the board while the node rests
        ("slurm", AMPERE, "rented", 600.0),  # another board: MIG mode is off and takes a reset
    ],
)
def test_a_node_that_comes_back_is_cut_before_it_takes_jobs(actuator, gpu_model, ownership, cut):
    found = find_abilities(actuator, gpu_model, ownership=ownership)
    assert found.cut.value == pytest.approx(cut)
    assert found.lead.value == pytest.approx(found.boot.value + cut)
    assert found.lead.high == pytest.approx(found.boot.high + found.cut.high)
