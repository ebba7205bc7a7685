"""Quotas as queue managers take them: sums that agree with what is decided, and a way back to what was there."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.decision_types import Measure
from gpuplanner.decision.policy_layouts import TenantQuota
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.kubernetes.cluster_reader import read_kubernetes
from gpuplanner.report.bundle_export import _read_quotas
from gpuplanner.report.change_bundle import README_FILE
from gpuplanner.report.change_bundle_parts import FleetBundle
from gpuplanner.report.kubernetes_files import divide_instances
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.usage.planning_history import history
from tests.clusters import cut_clusters
from tests.report.bundle.stub_cluster import Stub, fenced
from tests.report.bundle.test_crds import QUOTAS
from tests.report.bundle.test_pack import BOARD, fixed, needs_bash, packed, pools, resources, written


def fleet_pack(rules) -> FleetBundle:
    return FleetBundle(
        rules=rules,
        gpu_model=as_gpu_model(BOARD),
        change=ChangeCost.from_catalogue(BOARD, rules.actuator),
        drain=Drain(),
    )


tenants = st.lists(st.floats(0.0, 8.0), min_size=1, max_size=5)


@given(tenants, st.booleans())
def test_what_tenants_have_of_each_resource_sums_to_their_part_of_it(amounts, come_and_go):
    rules = pools("autoscaler") if come_and_go else fixed("mig-manager")
    quotas = [TenantQuota(f"t{number}", gpus, "all") for number, gpus in enumerate(amounts)]
    today = sum(pool.count * len(pool.layouts) for pool in rules.today)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for (pool, resource, tenant), mine in divide_instances(fleet_pack(rules), quotas).items():
        sums[pool, resource] += mine.nominal
        [quota] = [one for one in quotas if one.tenant == tenant]
        offered = _offered(rules, pool, resource)
        assert abs(mine.nominal - min(quota.gpus / today, 1.0) * offered) < 1.0
        assert (mine.borrow, mine.lend) == (None, None)
    for (pool, resource), count in sums.items():
        part = sum(min(gpus / today, 1.0) for gpus in amounts) * _offered(rules, pool, resource)
        assert abs(count - part) <= 0.5 + 1e-6


def _offered(rules, pool, resource):
    [mine] = [one for one in rules.pools if one.name == pool]
    nodes = max(mine.max_nodes_on, mine.kept, 1) if rules.powers_nodes_down else mine.count
    name = "gpu" if resource == "nvidia.com/gpu" else resource.removeprefix("nvidia.com/mig-")
    return mine.offers[name] * nodes


@needs_bash
@pytest.mark.parametrize("actuator", ["mig-manager", pytest.param("autoscaler", marks=pytest.mark.long)])
def test_quotas_are_put_in_place_and_what_was_there_comes_back(actuator: str, tmp_path: Path) -> None:
    rules = replace(fixed(actuator) if actuator == "mig-manager" else pools(actuator), quotas=QUOTAS)
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    theirs = {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "ads"},
        "spec": {"cohortName": "web", "queueingStrategy": "StrictFIFO"},
    }  # fmt: skip
    state = cluster.state
    state["objects"]["clusterqueue/ads"] = theirs
    cluster.write(state)
    before = cluster.snapshot()
    page = pack.files[README_FILE]
    for _ in range(2):
        done = cluster.run(fenced(page, "Apply"), folder)
        assert done.returncode == 0, done.stderr
    objects = cluster.state["objects"]
    queues = {
        "clusterqueue/ads",
        "localqueue/ads-dev/ads",
        "queues.scheduling.run.ai/bio",
        "queues.scheduling.volcano.sh/web",
    }
    assert queues <= objects.keys()
    assert objects["clusterqueue/ads"] != theirs
    assert cluster.run(fenced(page, "Verify"), folder).returncode == 0
    other = shutil.copytree(folder, tmp_path / "other") / actuator
    (other / "kueue.yaml").write_text((other / "kueue.yaml").read_text() + "# of another bundle\n")
    refused = cluster.run("bash queues.sh rollback", other)
    assert (refused.returncode, "another change bundle set the quotas" in refused.stderr) == (1, True)
    assert cluster.state["objects"] == objects
    undone = cluster.run(fenced(page, "Roll back"), folder)
    assert undone.returncode == 0, undone.stderr
    objects = cluster.state["objects"]
    assert objects.keys() == before[1].keys()
    assert objects["clusterqueue/ads"] == theirs
    assert not any("gpuplanner.io/pool" in node["labels"] for node in cluster.state["nodes"].values())


def test_a_name_that_is_no_label_is_left_out_and_said() -> None:
    odd = TenantQuota("Team A\n  evil: true", 1.0)
    pack = packed(replace(fixed("mig-manager"), quotas=(*QUOTAS, odd)))
    kueue = pack.files["mig-manager/kueue.yaml"]
    assert "Left out, because Kubernetes does not allow these names: Team A\\n  evil: true." in kueue
    assert not any("evil" in json.dumps(one) for one in resources(pack))
    assert "mig-manager/kueue.yaml" not in packed(fixed("mig-manager")).files, "none is invented"


def test_children_of_a_queue_deserve_no_more_than_it() -> None:
    text = packed(replace(pools("autoscaler"), quotas=QUOTAS)).files["autoscaler/volcano.yaml"]
    queues = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(text)}
    for spec in queues.values():
        most = spec.get("capability", spec["deserved"])
        assert all(int(count) <= int(most[name]) for name, count in spec["deserved"].items())
    children = [spec["deserved"] for spec in queues.values() if spec.get("parent") == "web"]
    assert len(children) == 2
    for name, count in queues["web"]["deserved"].items():
        assert sum(int(child[name]) for child in children) <= int(count)


@pytest.mark.long
def test_quotas_are_those_of_the_cluster_that_was_read(tmp_path: Path) -> None:
    """A dump with Kueue beside its jobs: each queue's own, in GPUs, an instance by its share of one."""
    cluster = cut_clusters.kubernetes_cut(1)
    actuators = [tmp_path / name for name in cluster.files()]
    for actuator, text in zip(actuators, cluster.files().values(), strict=True):
        actuator.write_text(text)
    resource = [
        {"name": "nvidia.com/gpu", "nominalQuota": 6, "borrowingLimit": 2},
        {"name": "nvidia.com/mig-1g.10gb", "nominalQuota": 7, "borrowingLimit": 7},
    ]
    group = {"coveredResources": [one["name"] for one in resource], "flavors": [{"name": "any", "resources": resource}]}
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "ads", "uid": "q-1"},
        "spec": {"cohort": "web", "resourceGroups": [group]},
    }  # fmt: skip
    (tmp_path / "queues.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [queue]}))
    write_dataset(read_kubernetes([*actuators, tmp_path / "queues.json"]), tmp_path / "data")
    scenario = Scenario(data=str(tmp_path / "data"), actuator="mig-manager")
    gpu_model = history(scenario).fleet.gpu_model
    [quota] = _read_quotas(scenario, gpu_model, [Measure("release", "Release 2 of 8 GPUs", 6)])
    share = gpu_model.gpu_fraction("1g.10gb")
    assert (quota.tenant, quota.cohort, quota.lend) == ("ads", "web", None)
    assert quota.gpus == pytest.approx(6 + 7 * share)
    assert quota.borrow == pytest.approx(2 + 7 * share)
    raised = Measure("raise_limit", "Raise the limit of ads from 6 to 8 GPUs", 8)
    assert not list(_read_quotas(scenario, gpu_model, [raised]))
