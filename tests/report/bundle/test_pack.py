"""The pack: the commands of its page, run on a cluster that knows only what the files say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.decision_types import LAYOUT_PER_JOB
from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.decision.requested_jobs import RIGHTSIZED
from gpuplanner.hardware.catalog import facts
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.ingest.dataset import SourceFacts
from gpuplanner.report import bundle_export
from gpuplanner.report.change_bundle import README_FILE, make_bundle
from gpuplanner.report.change_bundle_parts import Bundle, MeasureText, PageText
from gpuplanner.report.export_verification import looks_like_layout_file, verify_file
from gpuplanner.report.slurm_files import GresTypes
from gpuplanner.simulator.scheduling_rules import Drain
from tests.report.bundle.stub_cluster import Stub, _counts, fenced
from tests.report.bundle.stub_cluster import _cut as layouts_cut

BOARD = "H100-80GB-SXM5"
TYPE = "nvidia_h100_80gb_hbm3"
TODAY = ("gpu", "gpu")
CUT = ("gpu", "3g.40gb:1,1g.10gb:4")
TOLD = PageText("Keep 6 of 8 GPUs and release 2.", "some nodes MIG-partitioned once")

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def fixed(actuator: str, nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4")) -> FleetRules:
    """Four nodes of two GPUs: one is cut, one is not needed."""
    pools = (PoolRule("whole", TODAY, 2, nodes[:2], 2), PoolRule("cut", CUT, 1, nodes[2:3], 1))
    return FleetRules(
        "mig_static", actuator, BOARD, pools, 3, (PoolRule("today-1", TODAY, 4, nodes),), released=nodes[3:],
        begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def packed(rules: FleetRules, **how: Any) -> Bundle:
    return make_bundle(rules, TOLD, ChangeCost.from_catalogue(rules.gpu_model, rules.actuator), Drain(), **how)


def commands(page: str) -> str:
    """Preflight, if the actuator has a check, and the commands that change the cluster."""
    return "\n".join(
        line for name in ("Preflight", "Apply") for line in fenced(page, name).splitlines() if "sum " not in line
    )


def written(pack: Bundle, folder: Path) -> Path:
    for name, text in pack.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("actuator", ["mig-manager", "nvidia-smi", "slurm", "mig-parted"])
def test_what_changes_is_listed_beside_the_files(actuator: str) -> None:
    rules = fixed(actuator)
    names = {node for pool in rules.pools for node in pool.nodes}
    text = packed(rules).files[f"{actuator}/changes.md"]
    assert any(name in text for name in names)


@needs_bash
@pytest.mark.parametrize("actuator", ["mig-manager", "dra", "slurm", "mig-parted"])
def test_the_commands_of_the_page_lead_to_what_was_decided_and_back(actuator: str, tmp_path: Path) -> None:
    rules = fixed(actuator)
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts, gres_type=TYPE, published=actuator == "dra")
    before = cluster.snapshot()
    page = pack.files[README_FILE]
    done = cluster.run(commands(page), folder)
    assert done.returncode == 0, done.stderr
    for pool in rules.pools:
        for node in pool.nodes:
            assert cluster.offers(node) == pool.offers, node
    if actuator != "mig-parted":  # no scheduler is asked there
        gone = cluster.state["nodes"]["n4"]
        assert gone["unschedulable"] or "DRAIN" in gone["state"]
    checked = cluster.run(fenced(page, "Verify"), folder)
    assert checked.returncode == 0, checked.stderr
    again = cluster.snapshot()
    assert cluster.run(fenced(page, "Apply"), folder).returncode == 0
    assert cluster.snapshot() == again
    undone = cluster.run(fenced(page, "Roll back"), folder)
    assert undone.returncode == 0, undone.stderr
    nodes, objects, lines = cluster.snapshot()
    for name, node in nodes.items():
        was = before[0][name]
        assert (node["layouts"], node["unschedulable"]) == (was["layouts"], was["unschedulable"])
        assert node["state"] == "IDLE"
        assert not any(note.startswith("gpuplanner") for note in node["annotations"])
    assert objects.keys() == before[1].keys()
    assert re.findall(r"Gres=(\S+)", lines) == re.findall(r"Gres=(\S+)", before[2])


def test_the_page_leads_from_agreement_to_requests_and_back_in_order() -> None:
    """Nodes are verified before a job requests a profile; what is evicted and out of service is stated."""
    page = packed(replace(fixed("mig-manager"), requests="rightsized")).files[README_FILE]
    heads = re.findall(r"^## (.*)", page, re.M)
    steps = ["1. Agree", "2. Preflight", "3. Apply", "4. Verify", "5. Switch requests", "Roll back"]
    assert heads == ["Files", *steps]
    agree, apply = (page.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in (steps[0], steps[2]))
    assert "no new jobs start on n3 (2 of 8 GPUs)" in agree
    mig = "`nvidia.com/mig-3g.40gb` 0 → 1, `nvidia.com/mig-1g.10gb` 0 → 4"
    assert f"| n3 | `nvidia.com/gpu` 8 → 7 | {mig} |\n| n4 | `nvidia.com/gpu` 7 → 5 |  |" in agree
    for part in ("Cluster-wide", "evicts all its other pods", "emptyDir", "EVICT=yes", "cordon-ahead"):
        assert part in apply
    assert "change.sh apply n3" not in apply  # one node cannot be divided
    assert "powered on" not in page


@needs_bash
def test_the_preflight_passes_before_the_operator_is_set_up(tmp_path: Path) -> None:
    """What the next step creates does not fail it; the site's own configurations are taken over."""
    rules = fixed("mig-manager")
    pack = packed(rules)
    pack.write(tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    state = cluster.state
    for node in ("n1", "n3"):
        state["nodes"][node]["labels"]["nvidia.com/mig.config"] = "site-whole"
    site = "version: v1\nmig-configs:\n  other:\n  - devices: all\n    mig-enabled: false\n  'site-whole':\n"
    site += "  # of the site\n  - devices: [0, 1]\n    mig-enabled: false\n"
    cluster.write(state)
    unknown = cluster.run(fenced(pack.files[README_FILE], "Preflight"), tmp_path / "export")
    assert (unknown.returncode, "Fix n3: 'site-whole' is not in" in unknown.stderr) == (1, True)
    state["objects"]["configmap/theirs"] = {"metadata": {"name": "theirs"}, "data": {"config.yaml": site}}
    cluster.write(state)
    before = cluster.snapshot()
    done = cluster.run(fenced(pack.files[README_FILE], "Preflight"), tmp_path / "export")
    assert (done.returncode, cluster.snapshot()) == (0, before), done.stderr
    assert done.stdout.splitlines()[-1] == "ready to change: n3"
    assert "ConfigMap gpu-operator/gpuplanner-mig-config does not exist yet" in done.stdout
    applied = cluster.run(commands(pack.files[README_FILE]), tmp_path / "export")
    assert applied.returncode == 0, applied.stderr
    configs = yaml.safe_load(cluster.state["objects"]["configmap/gpuplanner-mig-config"]["data"]["config.yaml"])
    assert configs["mig-configs"]["site-whole"] == [{"devices": [0, 1], "mig-enabled": False}]
    assert "other" not in configs["mig-configs"]
    assert cluster.run(fenced(pack.files[README_FILE], "Roll back"), tmp_path / "export").returncode == 0
    assert cluster.state["nodes"]["n3"]["labels"]["nvidia.com/mig.config"] == "site-whole"


SITE = GresTypes.from_inventory(as_gpu_model(BOARD), {"n1": "gpu=h100", "n2": "gpu=h100"})


@needs_bash
def test_the_preflight_of_slurm_shows_the_difference_and_ends_ready(tmp_path: Path) -> None:
    rules = fixed("slurm")
    pack = packed(rules, gres_type=SITE)
    pack.write(tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts, gres_type="h100")
    lines = cluster.snapshot()[2]
    done = cluster.run(fenced(pack.files[README_FILE], "Preflight"), tmp_path / "export")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ready to change: n3"
    assert "+NodeName=n3 CPUs=8 Gres=gpu:h100:1,gpu:h100_3g.40gb:1,gpu:h100_1g.10gb:4" in done.stdout
    assert cluster.snapshot()[2] == lines
    assert cluster.run(commands(pack.files[README_FILE]), tmp_path / "export").returncode == 0


@needs_bash
def test_types_of_the_site_stay_and_others_stop_the_preflight(tmp_path: Path) -> None:
    """A job requests the type that its nodes have: with another, it would be rejected."""
    rules = fixed("slurm")
    kept = packed(rules, gres_type=SITE)
    [lines] = [text for name, text in kept.files.items() if name.startswith("slurm/slurm-")]
    assert "\nNodeName=n1 Gres=gpu:h100:2\n" in lines
    assert "\nNodeName=n3 Gres=gpu:h100:1,gpu:h100_3g.40gb:1,gpu:h100_1g.10gb:4\n" in lines
    assert "nvidia_h100" not in "".join(kept.files.values())
    assert "stay as the nodes have them today (`h100`)" in kept.files[README_FILE]
    other = packed(rules)
    folder = written(other, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts, gres_type="h100")
    done = cluster.run(commands(other.files[README_FILE]), folder)
    assert (done.returncode, f"Fix n3: its GRES type is 'h100', and '{TYPE}' in this bundle" in done.stderr) == (
        1,
        True,
    )
    assert "**GRES types: the data show none" in other.files[README_FILE]


@needs_bash
@pytest.mark.parametrize("actuator", ["mig-manager", "slurm"])
def test_a_node_at_work_is_waited_for_and_nothing_is_ended(actuator: str, tmp_path: Path) -> None:
    rules = fixed(actuator)
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts, gres_type=TYPE)
    state = cluster.state
    state["nodes"]["n3"] |= {"pods": ["a/job"], "jobs": ["17"]}
    cluster.write(state)
    done = cluster.run(commands(pack.files[README_FILE]), folder)
    assert done.returncode == 75
    assert "still running:" in done.stderr
    assert cluster.offers("n3") == {"gpu": 2}
    assert cluster.state["nodes"]["n3"]["pods"] == ["a/job"]


@pytest.mark.parametrize("name", ["GPU_01", "DGX1"])
def test_a_name_that_kubernetes_cannot_have_is_left_out_there_and_works_on_slurm(name: str) -> None:
    nodes = ("n1", "n2", name, "n4")
    there = packed(fixed("slurm", nodes))
    assert not there.warnings
    assert any(f"config[{name}]=" in text for text in there.files.values())
    left = packed(fixed("mig-manager", nodes))
    assert "mig-manager/configmap.yaml" in left.files
    assert not any("change.sh" in place for place in left.files)
    first, *_ = left.files[README_FILE].splitlines()
    assert first.startswith("# Incomplete change bundle: files for mig-manager are incomplete")
    assert name in first


def test_a_static_layout_on_a_dra_site_comes_with_device_classes_and_extended_resources() -> None:
    pack = packed(fixed("dra"))
    objects = [one for one in yaml.safe_load_all(pack.files["dra/device-classes.yaml"]) if one]
    classes = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "DeviceClass"}
    slice_class = classes["gpuplanner-3g-40gb"]
    assert slice_class["extendedResourceName"] == "nvidia.com/mig-3g.40gb"
    assert "profile == '3g.40gb'" in slice_class["selectors"][0]["cel"]["expression"]
    # The driver's own class of full GPUs has that resource; of two, the scheduler takes the later one.
    assert "extendedResourceName" not in classes["gpuplanner-gpu"]
    assert not [name for name in packed(fixed("mig-manager")).files if "device-classes" in name]


@pytest.mark.parametrize("n_parts", [1, 2])
def test_device_classes_come_before_the_requests_that_name_their_resources(n_parts: int) -> None:
    rules = replace(fixed("dra"), requests=RIGHTSIZED)
    whole, cut = (PoolRule(name, layouts, 1, (), 1) for name, layouts in (("whole", TODAY), ("cut", CUT)))
    nodes = ("n1", "n2", "n3")
    pools = (
        replace(whole, count=3 - n_parts, nodes=nodes[n_parts:]),
        replace(cut, count=n_parts, nodes=nodes[:n_parts]),
    )
    readme = packed(replace(rules, pools=pools)).files["README.md"]
    apply, undo = readme.index("kubectl apply -f dra/device-classes.yaml"), readme.index("kubectl delete -f dra/device")
    assert apply < readme.index("bash dra/change.sh apply") < readme.index("bash dra/change.sh rollback") < undo
    assert ("Now switch requests for" in readme) == (n_parts > 1)
    assert apply < readme.find("Now switch requests for") or n_parts == 1
    since = facts("controllers").filter(controller="dra", fact="extended")["value"].item()
    assert f"From Kubernetes {since} on" in readme
    assert "resourceClaimTemplateName" in readme


def test_files_grow_with_changes_and_never_with_nodes() -> None:
    few, many = (packed(fixed("slurm", tuple(f"n{number}" for number in range(count)))) for count in (4, 400))
    assert few.files.keys() == many.files.keys()
    assert len(few.files) <= 40
    assert packed(fixed("slurm")).files == packed(fixed("slurm")).files


def pools(actuator: str, nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> FleetRules:
    """Three nodes of two GPUs that come whole or cut, and go after five minutes."""
    cut = ("3g.40gb:1,1g.10gb:4", "1g.10gb:7")
    listed = (PoolRule("whole", TODAY, 3, nodes, 2, 1), PoolRule("cut", cut, 3, nodes, 2, 1))
    return FleetRules(
        "autoscaled_pools", actuator, BOARD, listed, 3, (PoolRule("today-1", TODAY, 3, nodes),),
        idle_s=300.0, lead_s=360.0,
        lead_slow_s=900.0, cool_s=600.0, returned=actuator != "slurm", begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def jobs_cut(nodes: tuple[str, ...] = ("n1", "n2")) -> FleetRules:
    """Two nodes that the DRA driver cuts."""
    return FleetRules(
        "mig_dynamic", "dra", BOARD, (PoolRule("jobs", (LAYOUT_PER_JOB,) * 2, 2, nodes, 2),), 2,
        (PoolRule("today-1", TODAY, 2, nodes),), begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def resources(pack: Bundle) -> Iterator[dict[str, Any]]:
    for name, text in pack.files.items():
        if name.endswith(".yaml") and not name.endswith(("mig-parted.yaml", "values.yaml")):
            yield from filter(None, yaml.safe_load_all(text))


class Karpenter:
    """Brings nodes for pods that wait, and knows nothing but the resources that were applied."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self.pools = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "NodePool"}
        self.capacity = {
            one["spec"]["requirements"][0]["values"][0]: one["spec"]["capacity"]
            for one in objects if one["kind"] == "NodeOverlay"
        }  # fmt: skip

    def groups(self) -> dict[str, tuple[int, dict[str, int], str]]:
        return {
            name: (
                int(pool["limits"]["nodes"]),
                {key: int(count) for key, count in self.capacity[name].items()},
                pool["template"]["metadata"]["labels"]["nvidia.com/mig.config"],
            )
            for name, pool in self.pools.items()
        }


class ClusterAutoscaler:
    """The same from the tags of node groups, in the words of one cloud."""

    def __init__(self, groups: dict[str, Any], cloud: str) -> None:
        self.found = groups
        self.cloud = cloud

    def groups(self) -> dict[str, tuple[int, dict[str, int], str]]:
        return {name: (group["max"], *self.told(group)) for name, group in self.found.items()}

    def told(self, group: dict[str, Any]) -> tuple[dict[str, int], str]:
        if self.cloud == "gce":
            [text] = group["gce_env"].values()
            parts = dict(part.split("=", 1) for part in text.split(";"))
            offers, labels = (dict(pair.split("=") for pair in parts[key].split(",")) for key in
                              ("extended_resources", "node_labels"))  # fmt: skip
            return {key: int(count) for key, count in offers.items()}, labels["nvidia.com/mig.config"]
        tags = group[f"{self.cloud}_tags"]
        sign = "/" if self.cloud == "aws" else "_"
        head = "k8s.io/cluster-autoscaler/node-template" if self.cloud == "aws" else (
            "k8s.io_cluster-autoscaler_node-template")  # fmt: skip
        offers = {key.removeprefix(f"{head}{sign}resources{sign}"): int(count) for key, count in tags.items()
                  if key.startswith(f"{head}{sign}resources{sign}")}  # fmt: skip
        offers = {key.replace("nvidia.com_", "nvidia.com/"): count for key, count in offers.items()}
        [label] = [value for key, value in tags.items() if key.endswith("mig.config")]
        return offers, label


@pytest.mark.parametrize("controller", ["karpenter", "aws", "azure", "gce"])
def test_pools_come_from_nothing_for_pods_that_wait(controller: str) -> None:
    """No node is there. A pod for a slice brings a node that really has it once mig-parted has cut it."""
    rules = pools("autoscaler")
    pack = packed(rules)
    objects = list(resources(pack))
    told = json.loads(pack.files["autoscaler/node-groups.json"])
    found = Karpenter(objects) if controller == "karpenter" else ClusterAutoscaler(told, controller)
    [config_map] = [one for one in objects if one["kind"] == "ConfigMap"]
    for pod in ("nvidia.com/gpu", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"):
        able = {name: group for name, group in found.groups().items() if group[1].get(pod, 0) >= 1}
        assert len(able) == 1, pod
        [(name, (most, offers, config))] = able.items()
        pool = next(pool for pool in rules.pools if name.endswith(pool.name))
        assert most == pool.max_nodes_on
        cut = layouts_cut(len(pool.layouts), config, config_map["data"]["config.yaml"])
        there = {"nvidia.com/gpu" if key == "gpu" else f"nvidia.com/mig-{key}": n for key, n in _counts(cut).items()}
        assert {key: count for key, count in offers.items() if count} == there


@needs_bash
def test_nothing_is_emptied_where_nothing_makes_nodes_come(tmp_path: Path) -> None:
    rules = pools("autoscaler")
    pack = packed(rules)
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    without = fenced(pack.files[README_FILE], "Apply").replace(
        "kubectl get crd nodepools.karpenter.sh -o name", "false"
    )
    done = cluster.run(without, written(pack, tmp_path / "export"))
    assert done.returncode != 0
    assert "so no node is emptied" in done.stderr
    assert not any(node["unschedulable"] for node in cluster.state["nodes"].values())


@pytest.mark.long
@needs_bash
@pytest.mark.parametrize(
    "rules", [pools("autoscaler"), pools("mig-manager"), pools("slurm"), jobs_cut()], ids=lambda one: one.actuator
)
def test_the_commands_for_pools_put_everything_there_and_take_it_away(rules: FleetRules, tmp_path: Path) -> None:
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    before = cluster.snapshot()
    done = cluster.run(fenced(pack.files[README_FILE], "Apply"), folder)
    assert done.returncode == 0, done.stderr
    objects = cluster.state["objects"]
    if rules.actuator == "dra":
        assert {"helm/dra-driver-nvidia-gpu", "deviceclass/gpuplanner-3g-40gb"} <= objects.keys()
        assert all(node["labels"]["gpuplanner.io/pool"] == "jobs" for node in cluster.state["nodes"].values())
    elif rules.actuator == "slurm":
        lines = (cluster.folder / "gpuplanner.conf").read_text()
        assert re.findall(r"NodeName=(n1-cut) .* (CoresPerSocket=1)", lines) == [("n1-cut", "CoresPerSocket=1")]
        assert "@" not in lines
        with (cluster.folder / "slurm.conf").open("a") as conf:
            conf.write("# edited since\n")
    else:
        kinds = ("nodepool", "nodeoverlay", "capacitybuffer")
        assert {f"{kind}/gpuplanner-cut" for kind in kinds} <= objects.keys()
        assert all(node["unschedulable"] for node in cluster.state["nodes"].values())
    checked = cluster.run(fenced(pack.files[README_FILE], "Verify"), folder)
    assert checked.returncode == 0, checked.stderr
    undone = cluster.run(fenced(pack.files[README_FILE], "Roll back"), folder)
    assert undone.returncode == 0, undone.stderr
    nodes, objects, lines = cluster.snapshot()
    edits = "# edited since\n" if rules.actuator == "slurm" else ""
    assert (objects.keys(), lines) == (before[1].keys(), before[2] + edits)
    for name, node in nodes.items():
        assert (node["labels"], node["unschedulable"]) == (before[0][name]["labels"], before[0][name]["unschedulable"])


def test_every_key_of_power_saving_stands_on_a_line_of_its_own() -> None:
    """`SuspendTime=60 ResumeTimeout=300` on one line is a fault that slurmctld does not start with."""
    rules = pools("slurm")
    text = packed(rules).files["slurm/pools.conf"]
    keys = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"(Suspend|Resume)\w+=", line))
    assert all(" " not in value for value in keys.values())
    assert float(keys["ResumeTimeout"]) >= 2 * rules.lead_slow_s
    assert keys["SuspendExcNodes"] == "n[1-3]:1,n[1-3]-cut:1"
    assert re.findall(r"PartitionName=(\S+) .*SuspendTime=(\d+)", text) == [
        ("gpuplanner-whole", "300"), ("gpuplanner-cut", "300"),
    ]  # fmt: skip
    assert not set(re.findall(r"NodeName=(\S+)", text)) & {"n1", "n2", "n3"}


@needs_bash
def test_a_machine_is_up_as_one_node_at_a_time(tmp_path: Path) -> None:
    folder = written(packed(pools("slurm")), tmp_path) / "slurm"
    log = tmp_path / "log"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/bash\n[[ $1 == show ]] && tr "," "\\n" <<<"$3" || echo "$*" >>{log}\n')
    scontrol.chmod(0o755)

    def run(program: str, nodes: str) -> list[str]:
        log.write_text("")
        actuator = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["bash", str(folder / f"{program}.sh"), nodes], env=actuator, check=True)
        return log.read_text().splitlines()

    drain = "state=drain reason=gpuplanner: n1 is up as n1-cut"
    assert run("resume", "n1-cut") == [f"update nodename=n1 {drain}"]
    assert run("resume", "n1") == [f"update nodename=n1 {drain}", "update nodename=n1 state=power_down_force"]
    # Powering down took the drain away.
    assert run("suspend", "n1") == [f"update nodename=n1 {drain}"]
    assert run("suspend", "n1-cut") == ["update nodename=n1 state=resume"]
    assert run("resume", "n1,n2") == [
        f"update nodename={name}-cut state=drain reason=gpuplanner: {name} is up as {name}" for name in ("n1", "n2")
    ]
    switched = [line.split()[2:5] for line in (folder / "power.log").read_text().splitlines() if " power " in line]
    assert switched == [["on", "n1", "n1-cut"], ["off", "n1", "n1-cut"], ["on", "n1", "n1"], ["on", "n2", "n2"]]


def test_a_path_on_which_nobody_cuts_for_jobs_gets_no_files_that_say_so() -> None:
    pack = packed(replace(jobs_cut(), actuator="nvidia-smi"))
    assert list(pack.files) == [README_FILE]
    assert pack.files[README_FILE].startswith(
        "# Incomplete change bundle: actuator nvidia-smi cannot partition GPUs on request"
    )


@pytest.mark.parametrize(
    ("actuator", "expected"),
    [
        ("mig-manager", {"mig-manager/configmap.yaml"}),
        ("mig-parted", {"mig-parted/mig-parted.yaml"}),
        ("slurm", {"slurm/gres.conf", "slurm/mig-parted.yaml", "slurm/slurm-20261102T000000Z.conf"}),
    ],
)
def test_layouts_of_written_files_are_checked(actuator: str, expected: set[str], tmp_path: Path) -> None:
    pack = packed(fixed(actuator))
    folder = written(pack, tmp_path)
    checked = {name for name, text in pack.files.items() if name != README_FILE and looks_like_layout_file(text)}
    assert checked == expected
    for name in checked:
        report = verify_file(folder / name, BOARD, gpus_per_node=2)
        assert report.ok, report.problems


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("slurm/controller-gres.conf", "[0-", "[0-9"), ("slurm/pools.conf", "_1g.10gb:11", "_1g.10gb:15")],
)
def test_edited_lines_for_slurm_that_do_not_fit_are_found(file: str, old: str, new: str, tmp_path: Path) -> None:
    text = packed(pools("slurm")).files[file]
    place = tmp_path / "edited.conf"
    for lines, fits in ((text, True), (text.replace(old, new, 1), False)):
        place.write_text(lines)
        report = verify_file(place, BOARD, gpus_per_node=2)
        assert report.ok == fits
    assert "do not fit" in report.problems[0]


PACKED_FIRST = (
    MeasureText("pack", "Let jobs fill nodes one by one", "", [("edit slurm.conf", "scontrol reconfigure")]),
    MeasureText("release", "Release 2 GPUs", "Only once action 1 is in effect.", [("drain n4", "scontrol update")]),
)


def released_alone(gpu_model: str = BOARD) -> FleetRules:
    """Four nodes that stay as they are; one is not needed."""
    pools = (PoolRule("whole", TODAY, 3, ("n1", "n2", "n3"), 3),)
    return replace(fixed("slurm"), gpu_model=gpu_model, pools=pools)


def page_of(rules: FleetRules, *measures: MeasureText, **how: str) -> str:
    told = replace(TOLD, measures=measures)
    return make_bundle(rules, told, ChangeCost.from_catalogue(BOARD, rules.actuator), Drain(), **how).files[README_FILE]


def test_every_measure_stands_under_apply_in_its_order():
    page = page_of(released_alone(), *PACKED_FIRST)
    do = page.partition("\n## 3. Apply\n")[2].partition("\n## ")[0]
    first, condition, second = (
        do.index(text) for text in ("scontrol reconfigure", "Only once action 1", "bash slurm/release.sh apply")
    )
    assert first < condition < second
    undo = page.partition("\n## Roll back\n")[2]
    assert undo.index("release.sh rollback") < undo.index("Restore the lines of slurm.conf")
    assert "LLN=YES" in page.partition("\n## 4. Verify\n")[2]


def test_a_purchase_has_a_page_of_its_own_without_commands():
    whole = PoolRule("full", TODAY, 4, ("n1", "n2", "n3", "n4"), 4)
    rules = replace(fixed("slurm"), pools=(whole,), today=(replace(whole, name="today-1"),), released=())
    buy = MeasureText("buy", "Buy 4 GPUs", "", [("order 4 GPUs now", None)])
    told = replace(TOLD, measures=(buy,), new_pools=(PoolRule("to buy", ("3g.40gb:2", "gpu"), 2),))
    page = make_bundle(rules, told, ChangeCost.from_catalogue(BOARD, "slurm"), Drain()).files[README_FILE]
    assert "| to buy | 2 new nodes | 1 × full GPU, 2 × 3g.40gb |" in page
    assert "- Order 4 GPUs now\n- After delivery: add NodeName lines" in page
    assert "`scontrol show node NODE` shows the Gres" in page
    for useless in ("```", "as root", "no file needed", "Nothing to do", "Preflight"):
        assert useless not in page
    both = page_of(fixed("mig-manager"), MeasureText("repartition", "Repartition GPUs"), buy)
    assert "- After delivery: join the new nodes" in both


def test_the_page_states_the_mode_change_the_reboot_and_the_gap():
    """A100: MIG mode changes; an instance does not outlive a boot; requests are switched later."""
    rules = replace(fixed("slurm"), gpu_model="A100-80GB", requests="rightsized")
    cost = ChangeCost.from_catalogue("A100-80GB", "slurm")
    pack = make_bundle(rules, TOLD, cost, Drain())
    page, script = pack.files[README_FILE], pack.files["slurm/change.sh"]
    assert "(about 10 min (5 to 20) on n3, where MIG mode changes)" in page
    assert "**MIG mode changes on n3:** `nvidia-mig-parted apply` resets" in page
    assert "WITH_REBOOT" not in page + script
    assert "MIG_PARTED_CONFIG_FILE=/etc/gpuplanner-mig-parted-20261102T000000Z.yaml" in page
    [config] = re.findall(r"config\[n3\]=(\S+)", script)
    assert f"CONFIG is `{config}` on n3." in page
    assert "or the next reboot makes the change again" in page
    assert "share the 7, then 5 full GPUs that\n  stay" in page
    assert "Nodes are repartitioned one after the other" in pack.files["slurm/changes.md"]
    other = packed(fixed("mig-manager"))
    assert "MIG mode changes on" not in other.files[README_FILE]
    assert "survive a reboot" not in other.files[README_FILE]
    assert "Until the requests are switched" not in other.files[README_FILE]
    assert "1 node changes with 1 script." in other.files["mig-manager/changes.md"]


@pytest.mark.parametrize("actuator", ["mig-manager", "slurm"])
def test_instances_before_and_after_are_stated_by_profile(actuator: str):
    page = packed(fixed(actuator)).files[README_FILE]
    table = "| instances of the fleet | today | after the change |\n| --- | --- | --- |\n| full GPU | 8 | 5 |\n"
    assert f"{table}| 3g.40gb | 0 | 1 |\n| 1g.10gb | 0 | 4 |\n\n" in page
    assert "per node, all its GPUs together" in page or "where MIG mode changes" in page
    assert ("rollback` needs this folder" in page) == (actuator == "slurm")


def test_slices_that_no_instance_uses_are_stated():
    odd = replace(fixed("mig-manager"), pools=(PoolRule("mig", ("gpu", "4g.40gb:1"), 4, ("n1", "n2", "n3", "n4"), 4),))
    page = packed(replace(odd, released=())).files[README_FILE]
    assert "1 × 4g.40gb leaves slices for 3g.40gb" in page
    assert "Slices without an instance" not in packed(fixed("mig-manager")).files[README_FILE]


def test_nodes_are_released_without_the_type_of_their_gpus():
    found = make_bundle(
        released_alone(), TOLD, ChangeCost.from_catalogue(BOARD, "slurm"), Drain(), gres_type="not a type"
    )
    assert set(found.files) == {README_FILE, "slurm/release.sh", "slurm/released.txt"}
    assert not found.warnings


def test_a_measure_without_its_files_names_the_reason_and_the_command():
    cut = MeasureText("repartition", "Repartition GPUs")
    page = page_of(fixed("slurm"), cut, PACKED_FIRST[1], gres_type="not a type")
    do = page.partition("\n## 3. Apply\n")[2].partition("\n## ")[0]
    assert (
        "Action 1: **Repartition GPUs.** No file here carries it out (files for slurm are incomplete: Slurm GRES type"
        in do
    )
    assert "fix this, then run `gpuplanner export`" in do


def test_idle_nodes_of_their_own_name_are_powered_down_without_the_type_of_their_gpus():
    rules = pools("slurm")
    whole = replace(rules, pools=rules.pools[:1])
    found = packed(whole, gres_type="not a type")
    named = set(re.findall(r"\b(?:pools|resume|suspend|reserve|power)\.sh", "".join(found.files.values())))
    assert named <= {name.removeprefix("slurm/") for name in found.files}
    assert not found.warnings


def test_pools_are_written_whole_or_not_at_all():
    found = packed(pools("slurm"), gres_type="not a type")
    assert set(found.files) == {README_FILE}
    assert "not a type" in found.files[README_FILE].splitlines()[0]


@pytest.mark.parametrize("actuator", ["mig-manager", "nvidia-smi", "slurm", "mig-parted", "autoscaler"])
def test_a_release_without_layout_changes_has_nothing_that_changes_layouts(actuator: str) -> None:
    rules = replace(released_alone(), actuator=actuator)
    pack = packed(pools(actuator) if actuator == "autoscaler" else rules)
    if actuator == "autoscaler":
        full = replace(pools(actuator), pools=pools(actuator).pools[:1])
        pack = packed(full)
        assert 'nvidia.com/mig.config: "all-disabled"' in pack.files["autoscaler/karpenter.yaml"].replace("'", '"') or (
            "nvidia.com/mig.config: all-disabled" in pack.files["autoscaler/karpenter.yaml"]
        )
    for name in ("policy.sh", "configmap.yaml", "mig-parted.yaml", "change.sh", "Cluster-wide"):
        assert not any(name in text for text in (*pack.files, pack.files[README_FILE])), name


RELEASE = MeasureText("release", "Release 2 GPUs")


@pytest.mark.parametrize("actuator", ["mig-manager", "nvidia-smi", "slurm", "mig-parted", "autoscaler", "dra"])
@pytest.mark.parametrize("measures", [(), (RELEASE,), (MeasureText("rightsize", "Partition GPUs"), RELEASE)])
def test_every_script_that_is_applied_is_verified_and_rolled_back(
    actuator: str, measures: tuple[MeasureText, ...]
) -> None:
    rules = {"autoscaler": pools("autoscaler"), "dra": jobs_cut()}.get(actuator, fixed(actuator))
    if measures and actuator in ("autoscaler", "dra"):
        measures = (MeasureText("autoscale", "Autoscale"),)
    page = page_of(rules, *measures)
    applied = set(re.findall(r"bash (\S+\.sh) apply", fenced(page, "Apply")))
    assert applied or actuator == "mig-parted"
    for section, verb in (("Verify", "verify"), ("Roll back", "rollback")):
        assert set(re.findall(rf"bash (\S+\.sh) {verb}", fenced(page, section))) == applied
    assert "keep settings as they are today" not in page


@needs_bash
@pytest.mark.parametrize("actuator", ["mig-manager", "mig-parted"])
def test_requests_are_switched_after_each_node(actuator: str, tmp_path: Path) -> None:
    cut = PoolRule("cut", CUT, 2, ("n3", "n4"), 2)
    rules = replace(fixed(actuator), requests="rightsized", released=())
    rules = replace(rules, pools=(rules.pools[0], cut), nodes=4)
    pack = packed(rules)
    page = pack.files[README_FILE]
    apply = page.partition("## 3. Apply")[2].partition("## 4.")[0]
    script = f"bash {actuator}/change.sh"
    order = [
        "apply n3",
        "verify n3",
        "switch requests for 1 of 2 × 3g.40gb, 4 of 8 × 1g.10gb (section 5)",
        "apply n4",
        "verify n4",
        "switch requests for 2 × 3g.40gb, 8 × 1g.10gb (section 5).",
    ]
    places = [apply.rindex(word if word.startswith("switch") else f"{script} {word}") for word in order]
    assert ("then lower the quotas of n4, then go on:" in apply) == (actuator == "mig-manager")
    assert "share the 7, then 6 full GPUs" in " ".join(page.split())
    assert places == sorted(places)
    assert f"{script} apply\n" not in apply
    assert "n3, n4 change in 2 parts" in page
    assert "at most 2 of 8 GPUs" in page
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    before = cluster.snapshot()
    first = "\n".join(fenced(page, "Apply").partition(f"{script} apply n4")[:1])
    assert cluster.run(first, folder).returncode == 0
    assert (cluster.offers("n3"), cluster.offers("n4")) == (cut.offers, {"gpu": 2})
    done = cluster.run(fenced(page, "Apply"), folder)
    assert done.returncode == 0, done.stderr
    assert cluster.offers("n4") == cut.offers
    assert cluster.run(f"{script} apply n9", folder).returncode == 1
    assert cluster.run(fenced(page, "Roll back"), folder).returncode == 0
    assert cluster.snapshot()[0]["n4"]["layouts"] == before[0]["n4"]["layouts"]


def quotas_stated(page: str) -> list[tuple[str, dict[str, tuple[int, int]], dict[str, tuple[int, int]]]]:
    """Nodes, quotas lowered before and raised after, of each row of section 1."""
    agree = page.partition("## 1. Agree\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in agree.splitlines() if line.startswith("| n")][1:]
    amounts = r"`nvidia.com/(?:mig-)?(\S+)` (\d+) → (\d+)"
    return [
        (row[0].strip(), *({name: (int(a), int(b)) for name, a, b in re.findall(amounts, cell)} for cell in row[1:]))
        for row in rows
    ]


@needs_bash
def test_after_each_part_the_quotas_are_the_instances_of_the_cluster(tmp_path: Path) -> None:
    """Two nodes are cut, one is cut otherwise, one is released; nothing is lowered that a later part takes away."""
    today = (PoolRule("today-1", TODAY, 3, ("n1", "n2", "n4")), PoolRule("today-2", ("3g.40gb:2", "gpu"), 1, ("n3",)))
    pools = (PoolRule("full", TODAY, 1, ("n1",), 1), PoolRule("a", CUT, 1, ("n2",), 1))
    pools = (*pools, PoolRule("b", ("1g.10gb:7", "gpu"), 1, ("n3",), 1))
    rules = replace(fixed("mig-manager"), pools=pools, today=today, requests="rightsized", released=("n4",))
    pack = packed(rules)
    page, folder = pack.files[README_FILE], written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.todays_layouts)
    state = cluster.state
    state["nodes"]["n3"]["labels"]["nvidia.com/mig.config"] = "site"
    site = (
        "version: v1\nmig-configs:\n  site:\n  - devices: [0]\n    mig-enabled: true\n    mig-devices: {3g.40gb: 2}\n"
    )
    state["objects"]["configmap/theirs"] = {"metadata": {"name": "theirs"}, "data": {"config.yaml": site}}
    cluster.write(state)
    assert cluster.run("bash mig-manager/policy.sh apply", folder).returncode == 0
    in_service = ["n1", "n2", "n3", "n4"]

    def instances() -> dict[str, int]:
        counts = sum((_counts(cluster.state["nodes"][node]["layouts"]) for node in in_service), Counter())
        return dict(counts)

    quotas = instances()
    rows = quotas_stated(page)
    assert [nodes for nodes, *_ in rows] == ["n2", "n3", "n4"]
    for nodes, lowered, raised in rows:
        before = instances()
        for name, (old, new) in lowered.items():
            assert new < old == quotas[name]
            quotas[name] = new
        assert all(quotas.get(name, 0) <= count for name, count in before.items())
        script = "release.sh apply" if nodes == "n4" else f"change.sh apply {nodes}"
        done = cluster.run(f"bash mig-manager/{script}", folder)
        assert done.returncode == 0, done.stderr
        in_service = [node for node in in_service if not cluster.state["nodes"][node]["unschedulable"]]
        after = instances()
        # While the part changes, quotas keep what both states have.
        assert {name: count for name, count in quotas.items() if count} == dict(Counter(before) & Counter(after))
        for name, (old, new) in raised.items():
            assert new > old == quotas.get(name, 0)
            quotas[name] = new
        assert {name: count for name, count in quotas.items() if count} == after


def test_many_nodes_change_in_few_parts() -> None:
    names = tuple(f"n{number:03}" for number in range(100))
    rules = FleetRules(
        "mig_static", "mig-manager", BOARD, (PoolRule("cut", CUT, 100, names, 100),), 100,
        (PoolRule("today-1", TODAY, 100, names),), requests="rightsized", begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip
    assert packed(rules).files[README_FILE].count("change.sh apply n") == 6


@needs_bash
def test_mig_parted_refuses_a_rollback_in_the_wrong_order(tmp_path: Path) -> None:
    first, second = fixed("mig-parted"), replace(fixed("mig-parted"), begins="2026-12-02T00:00:00+00:00")
    second = replace(second, pools=(first.pools[0], PoolRule("cut", ("gpu", "1g.10gb:7"), 1, ("n3",), 1)))
    folders = [written(packed(rules), tmp_path / f"b{number}") for number, rules in enumerate((first, second))]
    cluster = Stub(tmp_path / "cluster", first.todays_layouts)
    for folder in folders:
        assert cluster.run("bash mig-parted/change.sh apply", folder).returncode == 0
    lost = cluster.run("bash mig-parted/change.sh rollback", folders[1], STATE=str(tmp_path / "none"))
    assert (lost.returncode, "with saved layouts" in lost.stderr) == (1, True)
    refused = cluster.run("bash mig-parted/change.sh rollback", folders[0])
    assert (refused.returncode, "of a later change; roll that one back first" in refused.stderr) == (1, True)
    assert cluster.offers("n3") == {"gpu": 1, "1g.10gb": 7}
    for folder in folders[::-1]:
        assert cluster.run("bash mig-parted/change.sh rollback", folder).returncode == 0
    assert cluster.offers("n3") == {"gpu": 2}


@needs_bash
def test_slurm_verifies_the_layout_that_mig_parted_finds(tmp_path: Path) -> None:
    pack = packed(fixed("slurm"))
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", fixed("slurm").todays_layouts, gres_type=TYPE)
    page = pack.files[README_FILE]
    assert cluster.run(commands(page), folder).returncode == 0
    state = cluster.state
    state["nodes"]["n3"]["layouts"] = ["gpu", "7g.80gb:1"]
    cluster.write(state)
    found = cluster.run(fenced(page, "Verify"), folder)
    assert (found.returncode, "Fix n3: Slurm has the planned Gres" in found.stderr) == (1, True)


def test_an_actuator_of_another_scheduler_is_warned_of_on_the_first_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"rows_in": 1, "rows_kept": 1, "rows_rejected": 0, "span_start": None, "span_end": None}
    metadata = SimpleNamespace(source_facts=SourceFacts(source="slurm", **counts))
    monkeypatch.setattr(bundle_export, "read_metadata", lambda _: metadata)
    assert bundle_export.find_actuator_mismatch(Scenario(actuator="slurm")) == ""
    caution = bundle_export.find_actuator_mismatch(Scenario(actuator="mig-manager"))
    assert "mig-manager is a part of Kubernetes" in caution
    rules, cost = fixed("mig-manager"), ChangeCost.from_catalogue(BOARD, "mig-manager")
    words = replace(TOLD, caution=caution, risk="Risk: in resampled weeks, p95 queue wait on 3g.40gb 9 to 22 h.")
    page = make_bundle(rules, words, cost, Drain()).files[README_FILE]
    assert page.splitlines()[2] == f"> **Warning:** {caution}"
    assert "## 1. Agree\n\n- Risk: in resampled weeks, p95 queue wait on 3g.40gb 9 to 22 h. Agree with the" in page
    assert "Warning" not in packed(rules).files[README_FILE]


def test_rented_nodes_are_returned_and_not_powered_down() -> None:
    rented = page_of(replace(released_alone(), returned=True), RELEASE)
    assert "return them (delete the node or instance): the saving depends on it" in rented
    assert "power them down" not in rented
    assert "power them down or use them for other work" in page_of(released_alone(), RELEASE)


@pytest.mark.parametrize("actuator", ["mig-manager", "dra"])
def test_a_bundle_with_the_mig_manager_notes_what_undoes_and_stops_it(actuator: str) -> None:
    preflight = packed(fixed(actuator)).files[README_FILE].partition("\n## 2. Preflight\n")[2].partition("\n## ")[0]
    assert f"its next sync undoes `policy.sh apply`. Instead of\n  `policy.sh apply` run `bash {actuator}/" in preflight
    for words in ("Site configurations: ", "Other GPU clients: ", "ready to change"):
        assert words in preflight
    assert "Notes:" not in packed(fixed("nvidia-smi")).files[README_FILE]


def test_slurm_jobs_without_a_type_and_accounting_are_stated_where_there_are_instances() -> None:
    agree = packed(fixed("slurm")).files[README_FILE].partition("\n## 1. Agree\n")[2].partition("\n## ")[0]
    for words in ("`--gres=gpu:1` takes any GPU type", "job_submit.lua", "`AccountingStorageTRES` lists the type"):
        assert words in agree
    kept, on_kubernetes = (packed(rules).files[README_FILE] for rules in (released_alone(), fixed("mig-manager")))
    assert not any(words in page for page in (kept, on_kubernetes) for words in ("--gres", "AccountingStorageTRES"))


def prerequisites_of(rules: FleetRules) -> str:
    """The prerequisites, which stand first in the preflight."""
    preflight = packed(rules).files[README_FILE].partition("\n## 2. Preflight\n\n")[2].partition("\n## ")[0]
    assert preflight.startswith("Prerequisites:\n\n- ")
    assert not re.search(r"@[A-Za-z_.]+@", preflight)
    return preflight.partition("\n\n- ")[2].partition("\n\n")[0]


@pytest.mark.parametrize("rules", [fixed("dra"), jobs_cut()], ids=["fixed layout", "partitioned on request"])
def test_a_dra_bundle_names_release_driver_settings_and_rights(rules: FleetRules) -> None:
    known = dict(facts("controllers").filter(controller="dra").select("fact", "value").iter_rows())
    text = prerequisites_of(rules)
    assert f"Kubernetes {known['kubernetes']} or later, which serves `{known['api']}`" in text
    assert re.search(rf"need\s+Kubernetes {known['extended']} or later, or `DRAExtendedResource` enabled", text)
    assert known["chart"] in text
    assert known["dynamic_mig"] in text
    assert "RBAC" in text
    assert "device plugin is off on these nodes" in text
    # With dynamic MIG the driver would remove the instances of a fixed layout.
    assert ("is not set for these nodes" in text) == (rules.policy == "mig_static")
    assert (f"{known['version']} or later" in text) == (rules.policy == "mig_dynamic")


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        (fixed("mig-manager"), ("GPU Operator", "MIG manager", "RBAC")),
        (fixed("mig-parted"), ("ssh as root", "`nvidia-mig-parted`")),
        (fixed("nvidia-smi"), ("ssh as root", "RBAC", "device plugin")),
        (fixed("slurm"), ("Root on the controller", "`nvidia-mig-parted`")),
        (
            pools("autoscaler"),
            ("karpenter.sh/v1", "NodeOverlay=true", "Cluster Autoscaler", "nodepools and nodeoverlays"),
        ),
    ],
    ids=lambda value: getattr(value, "actuator", ""),
)
def test_every_bundle_that_changes_nodes_names_its_prerequisites(rules: FleetRules, needed: tuple[str, ...]) -> None:
    text = prerequisites_of(rules)
    assert [words for words in needed if words not in text] == []
