"""The script that changes one GPU at a time, on nodes of files whose nvidia-smi makes and removes instances."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.report.change_bundle import README_FILE, make_bundle
from gpuplanner.report.change_bundle_parts import PageText
from gpuplanner.report.mig_manager_files import to_change_scripts
from gpuplanner.simulator.scheduling_rules import Drain
from tests.report.bundle.stub_cluster import fenced

BOARD = "H100-80GB-SXM5"
MORNING = "change-20261102T080000Z.sh"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# The node n1 is gpus.json: MIG mode and instances (number, profile, start) of each GPU. An instance has the UUID
# MIG-<gpu>-<number>, a GPU GPU-<gpu>; "pods" says who holds which. Removing what somebody holds is noted in "killed".
NODE = r"""
import json, os, re, sys
from pathlib import Path

folder = Path(os.environ["CLUSTER"])
state, pods = json.loads((folder / "gpus.json").read_text()), json.loads((folder / "pods.json").read_text())
program, words = Path(sys.argv[0]).name, sys.argv[1:]

def save():
    (folder / "gpus.json").write_text(json.dumps(state))

def note(text):
    with (folder / "log").open("a") as log:
        log.write(text + "\n")

def devices():
    for gpu, one in enumerate(state):
        if one["mode"]:
            yield from (f"MIG-{gpu}-{number}" for number, _, _ in one["instances"])
        else:
            yield f"GPU-{gpu}"

if program == "ssh":
    assert words.pop(0) == "n1"
    program, words = words[0], words[1:]
if program == "cat" and (folder / "looks").exists():  # all pods end when they have been looked at so often
    left = int((folder / "looks").read_text()) - 1
    (folder / "looks").write_text(str(left))
    if left <= 0:
        pods = {}
        (folder / "pods.json").write_text("{}")
if program == "cat":
    entries = [
        {"PodUID": f"uid-{pod}", "ResourceName": "r", "DeviceIDs": {"-1": held}, "AllocResp": "Q=="}
        for pod, held in pods.items()
    ]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {"r": list(devices())}}
    print(json.dumps({"Data": data, "Checksum": 1}, separators=(",", ":")))
elif program == "nvidia-smi" and words == ["-L"]:
    for gpu, one in enumerate(state):
        print(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        for device, (number, profile, _) in enumerate(one["instances"]):
            print(f"  MIG {profile:<12}  Device  {device}: (UUID: MIG-{gpu}-{number})")
elif program == "nvidia-smi" and words[0] == "-i" and len(words) == 2:
    gpu = int(words[1])
    print(f"|   {gpu}  NVIDIA H100 80GB HBM3          On  |\n| MIG devices:   |")
    for device, (number, _, _) in enumerate(state[gpu]["instances"]):
        print(f"|  {gpu}   {number:2}   0  {device:2}  |      16MiB / 9856MiB    | 16      0 |")
elif program == "nvidia-smi" and "--format=csv,noheader" in words:
    print("Enabled" if state[int(words[1])]["mode"] else "Disabled")
elif program == "nvidia-smi" and "-mig" in words:
    gpu, on = int(words[1]), words[3] == "1"
    assert not state[gpu]["instances"]
    note(f"mode {gpu} {words[3]}")
    if (folder / "needs-reboot").exists():
        sys.exit(print("Warning: MIG mode is in pending enable state"))
    state[gpu]["mode"] = on
    save()
elif program == "nvidia-smi" and "-lgi" in words:
    one = state[int(words[words.index("-i") + 1])]
    if not one["mode"] or not one["instances"]:
        sys.exit(print("No GPU instances found: Not Found") or 6)
    for number, profile, start in one["instances"]:
        print(f"|   {words[-1]}  MIG {profile:<12}   19   {number:6}          {start}:1     |")
elif program == "nvidia-smi" and "-dci" in words:
    pass
elif program == "nvidia-smi" and "-dgi" in words:
    gpu, number = int(words[2]), int(words[4])
    if any(f"MIG-{gpu}-{number}" in held for held in pods.values()):
        note(f"killed MIG-{gpu}-{number}")
    state[gpu]["instances"] = [one for one in state[gpu]["instances"] if one[0] != number]
    note(f"remove {gpu} {number}")
    save()
elif program == "nvidia-smi" and "-cgi" in words:
    gpu = int(words[2])
    for part in words[4].split(","):
        profile, start = part.split(":")
        number = max([one[0] for one in state[gpu]["instances"]], default=0) + 1
        state[gpu]["instances"].append((number, profile, int(start)))
        note(f"make {gpu} {part}")
    state[gpu]["instances"].sort(key=lambda one: one[2])
    save()
elif program == "kubectl":
    line = " ".join(words)
    if "jsonpath={range .items[*]}{.metadata.uid}" in line:
        print("\n".join(f"uid-{pod} a/{pod}" for pod in pods))
    elif "-o name" in line:
        print("node/n1")
    elif "go-template" in line and "resourceslices" not in line:
        offered = (folder / "offered").read_text().split()
        print("\n".join(offered))
    elif line.startswith("get node"):
        found = re.search(r"\.(labels|annotations|unschedulable)\.?([^}]*)", line)
        kind, key = found[1], found[2].replace("\\", "")
        if kind == "annotations" and not key:
            sys.exit(print(json.dumps({one.name[5:]: one.read_text() for one in folder.glob("note.*")})))
        path = folder / (kind if kind == "unschedulable" else f"note.{key.replace('/', '_')}")
        print(path.read_text() if path.exists() else "", end="")
    elif words[0] == "annotate":
        key, _, value = words[4].partition("=")
        (folder / f"note.{key.removesuffix('-')}").unlink(missing_ok=True)
        if value:
            (folder / f"note.{key}").write_text(value)
    elif words[0] in ("cordon", "uncordon"):
        note(words[0])
        (folder / "unschedulable").unlink(missing_ok=True)
        if words[0] == "cordon":
            (folder / "unschedulable").write_text("true")
    elif words[0] == "delete":
        counts = {}
        for one in state:
            cut = [f"mig-{profile.replace('+', '.')}" for _, profile, _ in one["instances"]]
            for name in cut if one["mode"] else ["gpu"]:
                counts[f"nvidia.com/{name}"] = counts.get(f"nvidia.com/{name}", 0) + 1
        (folder / "offered").write_text(" ".join(f"{k}={v}" for k, v in counts.items()))
"""


class Node:
    """A node of two GPUs: the first cut into 3g.40gb and four 1g.10gb, the second whole."""

    def __init__(self, folder: Path, scripts: dict[str, str]) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("ssh", "kubectl"):
            (folder / "bin" / name).write_text(f"#!{sys.executable}\n{NODE}")
            (folder / "bin" / name).chmod(0o755)
        (folder / MORNING).write_text(scripts[MORNING])
        first = [[1, "1g.10gb", 0], [2, "1g.10gb", 1], [3, "1g.10gb", 2], [4, "1g.10gb", 3], [5, "3g.40gb", 4]]
        self.write("gpus.json", [{"mode": True, "instances": first}, {"mode": False, "instances": []}])
        self.write("pods.json", {})
        (folder / "offered").write_text("nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=4 nvidia.com/mig-3g.40gb=1")

    def write(self, name: str, value: object) -> None:
        (self.folder / name).write_text(json.dumps(value))

    def places(self, gpu: int) -> list[str] | None:
        one = json.loads((self.folder / "gpus.json").read_text())[gpu]
        return [f"{profile}@{start}" for _, profile, start in one["instances"]] if one["mode"] else None

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def notes(self) -> list[str]:
        return [path.name for path in self.folder.glob("note.*")]

    def run(self, verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
        known = {"PATH": f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}", "CLUSTER": str(self.folder)}
        limits = {"TIMEOUT_S": "0", "REPARTITION_S": "0", "POLL_S": "0.01"}
        return subprocess.run(
            ["bash", str(self.folder / MORNING), verb],
            env=known | limits | environment,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip


OLD, NEW = "3g.40gb:1,1g.10gb:4", "3g.40gb:1,2g.20gb:2"


@pytest.fixture
def make_node(make_plan: Callable[..., pl.DataFrame], tmp_path: Path) -> Callable[[str, str], Node]:
    """Make the node, and the script that changes its first and its second GPU to some layouts."""

    def made(first: str, second: str) -> Node:
        rows = [("n1", 0, 0, 8, OLD, True), ("n1", 0, 8, 9, first, first != OLD)]
        rows += [("n1", 1, 0, 8, "gpu", True), ("n1", 1, 8, 9, second, second != "gpu")]
        cost, drain = ChangeCost.from_catalogue(BOARD, "nvidia-smi"), Drain(scope="gpu")
        return Node(tmp_path, to_change_scripts(make_plan(rows), BOARD, change=cost, drain=drain))

    return made


Make = Callable[[str, str], Node]


def test_instances_that_others_added_are_listed(make_node: Make) -> None:
    node = make_node("2g.20gb:1", "gpu")
    assert node.run("apply").returncode == 0
    gpus = json.loads((node.folder / "gpus.json").read_text())
    gpus[0]["instances"].append([9, "1g.10gb", 6])
    node.write("gpus.json", gpus)
    done = node.run("verify")
    assert (done.returncode, "(added by others: 1 × 1g.10gb@6)" in done.stdout) == (0, True), done.stderr
    gpus[0]["instances"] = gpus[0]["instances"][1:]
    node.write("gpus.json", gpus)
    assert node.run("verify").returncode == 1


def test_only_what_goes_is_touched(make_node: Make) -> None:
    """Who is on an instance that stays, and on the other GPU, goes on, and the node takes jobs again."""
    node = make_node(NEW, "gpu")
    node.write("pods.json", {"half": ["MIG-0-5"], "whole": ["GPU-1"]})
    done = node.run("apply")
    assert done.returncode == 0, done.stderr
    assert node.places(0) == ["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"]
    assert node.places(1) is None
    assert not any(line.startswith("killed") for line in node.log())
    assert node.log()[0], node.log()[-1] == ("cordon", "uncordon")
    assert node.run("verify").returncode == 0
    before = node.log()
    assert node.run("apply").returncode == 0
    assert node.log() == before


def test_what_is_at_work_is_waited_for_while_what_is_free_is_kept_from_others(make_node: Make) -> None:
    node = make_node(NEW, "gpu")
    node.write("pods.json", {"busy": ["MIG-0-2"]})
    node.write("looks", 4)
    done = node.run("apply", TIMEOUT_S="600")
    assert done.returncode == 0, done.stderr
    removed = [line for line in node.log() if line.startswith("remove")]
    assert removed[-1] == "remove 0 2"
    assert node.places(0) == ["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"]
    assert not any(line.startswith("killed") for line in node.log())
    # Between its steps the node takes other jobs.
    assert node.log().count("uncordon") > 1


def test_a_gpu_that_does_not_empty_is_given_up_and_gets_back_what_it_had(make_node: Make) -> None:
    node = make_node(NEW, "gpu")
    before = node.places(0)
    node.write("pods.json", {"busy": ["MIG-0-2"]})
    done = node.run("apply")
    assert (done.returncode, "n1/0: timed out after 0 s: pods still running: a/busy." in done.stderr) == (75, True)
    assert node.places(0) == before
    assert not (node.folder / "unschedulable").exists()
    assert not any(line.startswith("killed") for line in node.log())


@pytest.mark.long
def test_a_whole_gpu_is_cut_and_made_whole_again(make_node: Make) -> None:
    node = make_node(OLD, "1g.10gb:7")
    node.write("pods.json", {"whole": ["GPU-1"], "half": ["MIG-0-5"]})
    done = node.run("apply")
    assert (done.returncode, "n1/1: timed out after 0 s: pods still running: a/whole." in done.stderr) == (75, True)
    assert not (node.folder / "unschedulable").exists()
    node.write("pods.json", {"half": ["MIG-0-5"]})
    assert node.run("apply").returncode == 0
    assert node.places(1) == [f"1g.10gb@{start}" for start in range(7)]
    (node.folder / "note.gpuplanner-change-20261202T080000Z-gpu-1").write_text("full")
    late = node.run("rollback")
    assert (late.returncode, "records a later change; roll that one back first" in late.stderr) == (1, True)
    (node.folder / "note.gpuplanner-change-20261202T080000Z-gpu-1").unlink()
    assert node.run("rollback").returncode == 0
    assert (node.places(1), node.notes()) == (None, [])


def test_what_needs_a_reboot_says_so(make_node: Make) -> None:
    node = make_node(OLD, "1g.10gb:7")
    (node.folder / "needs-reboot").touch()
    done = node.run("apply")
    assert (done.returncode, "Fix n1/1: MIG mode is still off; reboot the node" in done.stderr) == (1, True)
    (node.folder / "needs-reboot").unlink()
    assert node.run("apply").returncode == 0
    assert node.places(1) == [f"1g.10gb@{start}" for start in range(7)]


def test_a_manager_that_would_undo_it_is_named_before_anything_is_done(make_node: Make) -> None:
    node = make_node(NEW, "gpu")
    (node.folder / "note.nvidia.com_mig.config").write_text("all-disabled")
    for verb in ("check", "apply"):
        done = node.run(verb)
        assert (done.returncode, "nvidia.com/gpu.deploy.mig-manager=false" in done.stderr) == (1, True)
    assert node.log() == []
    (node.folder / "note.nvidia.com_gpu.deploy.mig-manager").write_text("false")
    done = node.run("check")
    assert done.returncode == 0
    assert "n1/0: 1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 3g.40gb@4 -> 2g.20gb@0 2g.20gb@2 3g.40gb@4\n" in done.stdout
    assert node.log() == []


def test_the_commands_of_the_page_change_one_gpu_and_give_it_back(tmp_path: Path) -> None:
    """Path nvml: no ConfigMap, no node that has to be empty."""
    pools = (PoolRule("cut", (NEW, "gpu"), 1, ("n1",), 1),)
    rules = FleetRules(
        "mig_static", "nvidia-smi", BOARD, pools, 1, (PoolRule("today-1", (OLD, "gpu"), 1, ("n1",)),),
        begins="2026-11-02T08:00:00+00:00",
    )  # fmt: skip
    pack = make_bundle(
        rules, PageText("Cut one GPU.", "cut once"), ChangeCost.from_catalogue(BOARD, "nvidia-smi"), Drain(scope="gpu")
    )
    assert not any("configmap" in name for name in pack.files)
    node = Node(tmp_path, {MORNING: pack.files["nvidia-smi/change.sh"]})
    (tmp_path / "nvidia-smi").mkdir()
    (tmp_path / MORNING).rename(tmp_path / "nvidia-smi" / "change.sh")
    node.write("pods.json", {"half": ["MIG-0-5"], "whole": ["GPU-1"]})

    def run(section: str) -> None:
        known = {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}", "CLUSTER": str(tmp_path)}
        limits = {"TIMEOUT_S": "0", "REPARTITION_S": "0", "POLL_S": "0.01"}
        subprocess.run(
            ["bash", "-euc", fenced(pack.files[README_FILE], section)], env=known | limits, cwd=tmp_path, check=True
        )

    before = node.places(0)
    run("Apply")
    assert (node.places(0), node.places(1)) == (["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"], None)
    run("Verify")
    run("Roll back")
    assert (node.places(0), node.places(1)) == (before, None)
    assert not any(line.startswith("killed") for line in node.log())
