"""Two change bundles of one cluster, one after the other: what the first made stays, and both are rolled back."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.report.change_bundle import README_FILE
from tests.report.bundle.stub_cluster import Stub, fenced
from tests.report.bundle.test_pack import CUT, TODAY, TYPE, commands, fixed, packed, written

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

OTHER = ("gpu", "1g.10gb:7")
CONFIG_MAP = "configmap/gpuplanner-mig-config"
POLICY = "clusterpolicies.nvidia.com/cluster-policy"


def first_rules(actuator: str) -> FleetRules:
    """One of four nodes is partitioned."""
    pools = (PoolRule("full", TODAY, 3, ("n1", "n2", "n4"), 3), PoolRule("mig", CUT, 1, ("n3",), 1))
    return replace(fixed(actuator), pools=pools, released=())


def second_rules(actuator: str, *, again: bool) -> FleetRules:
    """A month later, another node is partitioned, and the first one again."""
    kept = () if again else (PoolRule("mig", CUT, 1, ("n3",), 1),)
    changed = ("n2", "n3") if again else ("n2",)
    pools = (PoolRule("full", TODAY, 2, ("n1", "n4"), 2), *kept, PoolRule("mig-2", OTHER, len(changed), changed, 1))
    today = (PoolRule("today-1", TODAY, 3, ("n1", "n2", "n4")), PoolRule("today-2", CUT, 1, ("n3",)))
    return replace(fixed(actuator), pools=pools, today=today, released=(), begins="2026-12-02T00:00:00+00:00")


class Bundles:
    """A cluster, and the pages and folders of two change bundles."""

    def __init__(self, folder: Path, actuator: str, *, again: bool = False) -> None:
        rules = first_rules(actuator), second_rules(actuator, again=again)
        packs = [packed(one) for one in rules]
        self.pages = [pack.files[README_FILE] for pack in packs]
        self.folders = [written(pack, folder / f"export-{number}") for number, pack in enumerate(packs)]
        self.cluster = Stub(folder / "cluster", rules[0].todays_layouts, gres_type=TYPE)

    def run(self, number: int, text: str) -> Any:
        return self.cluster.run(text, self.folders[number])

    def apply(self, number: int) -> None:
        done = self.run(number, commands(self.pages[number]) + "\n" + fenced(self.pages[number], "Verify"))
        assert done.returncode == 0, done.stderr

    def roll_back(self, number: int) -> Any:
        return self.run(number, fenced(self.pages[number], "Roll back"))

    def offers(self) -> dict[str, dict[str, int]]:
        return {node: self.cluster.offers(node) for node in ("n1", "n2", "n3", "n4")}


@pytest.mark.parametrize("actuator", ["mig-manager", "slurm", "mig-parted"])
def test_two_bundles_that_change_one_node_are_applied_and_rolled_back_in_order(actuator: str, tmp_path: Path) -> None:
    bundles = Bundles(tmp_path, actuator, again=True)
    before = bundles.offers()
    bundles.apply(0)
    first = bundles.offers()
    bundles.apply(1)
    second = bundles.offers()
    assert second["n3"] == {"gpu": 1, "1g.10gb": 7}
    if actuator != "mig-parted":  # there no state of a node tells whose layout it is
        early = bundles.roll_back(0)
        assert (early.returncode, "by a later change; roll that one back first" in early.stderr) == (1, True)
        assert bundles.offers() == second
    last = bundles.roll_back(1)
    assert bundles.offers() == first
    if actuator == "mig-manager":
        assert (last.returncode, "gpuplanner-mig-config stays: nodes are labelled" in last.stderr) == (1, True)
        assert bundles.run(0, fenced(bundles.pages[0], "Verify")).returncode == 0
    else:
        assert last.returncode == 0, last.stderr
    done = bundles.roll_back(0)
    assert done.returncode == 0, done.stderr
    assert bundles.offers() == before
    objects = bundles.cluster.state["objects"]
    assert CONFIG_MAP not in objects
    assert objects[POLICY]["spec"]["mig"]["strategy"] == "single"


def test_the_second_bundle_keeps_the_configurations_of_the_first(tmp_path: Path) -> None:
    """Its preflight passes, and nodes of the first keep a configuration that the MIG manager knows."""
    bundles = Bundles(tmp_path, "mig-manager")
    bundles.apply(0)
    label = bundles.cluster.state["nodes"]["n3"]["labels"]["nvidia.com/mig.config"]
    # As for nodes of another GPU model: the second bundle does not know the nodes of the first.
    file = bundles.folders[1] / "mig-manager/configmap.yaml"
    text, found = re.subn(rf'      "{label}":\n(?:        .*\n)+', "", file.read_text())
    assert found == 1
    file.write_text(text)
    ready = bundles.run(1, "bash mig-manager/change.sh check")
    assert ready.returncode == 0, ready.stderr
    assert "lacks configurations yet: " in ready.stdout
    bundles.apply(1)
    assert label in bundles.cluster.state["objects"][CONFIG_MAP]["data"]["config.yaml"]
    assert bundles.run(0, fenced(bundles.pages[0], "Verify")).returncode == 0


def test_the_rollback_of_a_bundle_that_was_never_applied_changes_nothing(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path, "mig-manager")
    bundles.apply(0)
    before = bundles.cluster.snapshot()
    done = bundles.roll_back(1)
    assert (done.returncode, "Nothing was changed." in done.stderr) == (1, True)
    assert bundles.cluster.snapshot() == before


def test_a_cluster_policy_that_helm_sets_is_set_back_there_first(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path, "mig-manager")
    state = bundles.cluster.state
    spec = state["objects"][POLICY]["spec"]
    theirs, spec["mig"], spec["migManager"] = dict(spec), {"strategy": "mixed"}, {"config": {"name": CONFIG_MAP[10:]}}
    bundles.cluster.write(state)
    assert bundles.run(0, "bash mig-manager/policy.sh configmap; bash mig-manager/change.sh apply").returncode == 0
    done = bundles.roll_back(0)
    assert (done.returncode, "Helm, Argo CD, Flux" in done.stderr) == (1, True)
    assert CONFIG_MAP in bundles.cluster.state["objects"]
    state = bundles.cluster.state
    state["objects"][POLICY]["spec"] = theirs
    bundles.cluster.write(state)
    assert bundles.roll_back(0).returncode == 0
    assert CONFIG_MAP not in bundles.cluster.state["objects"]
