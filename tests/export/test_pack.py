"""The pack: the commands of its page, run on a cluster that knows only what the files say."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplanner.export import FleetRules, PoolRule
from gpuplanner.export.pack import PAGE, Pack, PageWords, to_pack
from gpuplanner.hardware import ChangeCost
from gpuplanner.simulate import Drain
from tests.export.stub_cluster import Stub, fenced

BOARD = "H100-80GB-SXM5"
TYPE = "nvidia_h100_80gb_hbm3"
TODAY = ("gpu", "gpu")
CUT = ("gpu", "3g.40gb:1,1g.10gb:4")
TOLD = PageWords("Keep 6 of your 8 and give 2 back.", "some nodes cut once")

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def fixed(path: str, nodes: tuple[str, ...] = ("n1", "n2", "n3", "n4")) -> FleetRules:
    """Four nodes of two GPUs: one is cut, one is not needed."""
    pools = (PoolRule("whole", TODAY, 2, nodes[:2], 2), PoolRule("cut", CUT, 1, nodes[2:3], 1))
    return FleetRules(
        "static_mig", path, BOARD, pools, 3, (PoolRule("today-1", TODAY, 4, nodes),), released=nodes[3:],
        begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def packed(rules: FleetRules, **how: str) -> Pack:
    return to_pack(rules, TOLD, ChangeCost.of(rules.board, rules.path), Drain(), **how)


def written(pack: Pack, folder: Path) -> Path:
    for name, text in pack.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@needs_bash
@pytest.mark.parametrize("path", ["operator", "dra", "slurm", "parted"])
def test_the_commands_of_the_page_lead_to_what_was_decided_and_back(path: str, tmp_path: Path) -> None:
    rules = fixed(path)
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.before, gres_type=TYPE)
    before = cluster.snapshot()
    page = pack.files[PAGE]
    done = cluster.run(fenced(page, "Do"), folder)
    assert done.returncode == 0, done.stderr
    for pool in rules.pools:
        for node in pool.nodes:
            assert cluster.offers(node) == pool.offers, node
    if path != "parted":  # no scheduler is asked there
        gone = cluster.state["nodes"]["n4"]
        assert gone["unschedulable"] or "DRAIN" in gone["state"]
    checked = cluster.run(fenced(page, "Check"), folder)
    assert checked.returncode == 0, checked.stderr
    again = cluster.snapshot()
    assert cluster.run(fenced(page, "Do"), folder).returncode == 0
    assert cluster.snapshot() == again
    undone = cluster.run(fenced(page, "Undo"), folder)
    assert undone.returncode == 0, undone.stderr
    nodes, objects, lines = cluster.snapshot()
    for name, node in nodes.items():
        was = before[0][name]
        assert (node["layouts"], node["unschedulable"]) == (was["layouts"], was["unschedulable"])
        assert node["state"] == "IDLE"
        assert not any(note.startswith("gpuplanner") for note in node["annotations"])
    assert objects.keys() == before[1].keys()
    assert re.findall(r"Gres=(\S+)", lines) == re.findall(r"Gres=(\S+)", before[2])


@needs_bash
@pytest.mark.parametrize("path", ["operator", "slurm"])
def test_a_node_at_work_is_waited_for_and_nothing_is_ended(path: str, tmp_path: Path) -> None:
    rules = fixed(path)
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.before, gres_type=TYPE)
    state = cluster.state
    state["nodes"]["n3"] |= {"pods": ["a/job"], "jobs": ["17"]}
    cluster.write(state)
    done = cluster.run(fenced(pack.files[PAGE], "Do"), folder)
    assert done.returncode == 75
    assert "still at work" in done.stderr
    assert cluster.offers("n3") == {"gpu": 2}
    assert cluster.state["nodes"]["n3"]["pods"] == ["a/job"]


@needs_bash
def test_a_label_that_our_config_map_lacks_stops_everything(tmp_path: Path) -> None:
    """Another node is cut by a configuration of the site: our ConfigMap would take it away."""
    rules = fixed("operator")
    pack = packed(rules)
    folder = written(pack, tmp_path / "export")
    cluster = Stub(tmp_path / "cluster", rules.before)
    state = cluster.state
    state["nodes"]["n1"]["labels"]["nvidia.com/mig.config"] = "our-own"
    cluster.write(state)
    done = cluster.run(fenced(pack.files[PAGE], "Do"), folder)
    assert done.returncode == 1
    assert "lacks: our-own. Nothing was changed." in done.stderr
    assert (
        cluster.state["objects"]["clusterpolicies.nvidia.com/cluster-policy"]["spec"]["mig"]["strategy"]
        == "single"
    )


@pytest.mark.parametrize("name", ["GPU_01", "DGX1"])
def test_a_name_that_kubernetes_cannot_have_is_left_out_there_and_works_on_slurm(name: str) -> None:
    nodes = ("n1", "n2", name, "n4")
    there = packed(fixed("slurm", nodes))
    assert not there.warnings
    assert any(f"config[{name}]=" in text for text in there.files.values())
    left = packed(fixed("operator", nodes))
    assert "operator/configmap.yaml" in left.files
    assert not any("change-" in place for place in left.files)
    first, *_ = left.files[PAGE].splitlines()
    assert first.startswith("# These are not the files of the decision: left out of operator")
    assert name in first


def test_the_page_says_first_whether_it_is_the_decision() -> None:
    assert packed(fixed("slurm")).files[PAGE].startswith("# Keep 6 of your 8 and give 2 back.\n")
    other = to_pack(
        fixed("slurm"), replace(TOLD, not_winner="another way was asked for"), ChangeCost.of(BOARD), Drain()
    )
    assert other.files[PAGE].startswith(
        "# These are not the files of the decision: another way was asked for\n"
    )


def test_files_grow_with_changes_and_never_with_nodes() -> None:
    few, many = (packed(fixed("slurm", tuple(f"n{number}" for number in range(count)))) for count in (4, 400))
    assert few.files.keys() == many.files.keys()
    assert len(few.files) <= 40
    assert packed(fixed("slurm")).files == packed(fixed("slurm")).files
