"""The ConfigMap, and change scripts run against a cluster of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
import yaml

from gpuplanner.core.errors import GeometryError
from gpuplanner.ingest.source_registry import read
from gpuplanner.report.mig_manager_files import to_change_scripts, to_config_map, to_mig_parted

BOARD = "H100-80GB-SXM5"
MORNING = "change-20261102T080000Z.sh"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# Each node is a folder: labels and annotations are files, "offers" lists resources, "pods" lists work. Labelling a node
# sets the state that the file "outcome" says, and puts "offers.<label>" in place, as the MIG manager would.
KUBECTL = r"""#!/usr/bin/env bash
set -eu
echo "$*" >>"$CLUSTER/log"
[[ ! -e "$CLUSTER/broken" ]] || ! grep -qE "$(cat "$CLUSTER/broken")" <<<"$*" || exit 1
case "$1 $2" in
  "get configmap") cat "$CLUSTER/configmap" ;;
  "get clusterpolicies.nvidia.com") cat "$CLUSTER/policy" ;;
  "get pods") node=${7#spec.nodeName=}; cat "$CLUSTER/${node%%,*}/pods" ;;
  "get node")
    [[ "$*" != *"-o name" ]] || { [[ ! -d "$CLUSTER/$3" ]] || echo "node/$3"; exit; }
    case "$5" in
      *annotations*) key=${5#*annotations.}; cat "$CLUSTER/$3/note.${key%?}" 2>/dev/null || true ;;
      *unschedulable*) cat "$CLUSTER/$3/cordoned" 2>/dev/null || true ;;
      *state*) cat "$CLUSTER/$3/state" ;;
      *config*) cat "$CLUSTER/$3/config" ;;
      *) cat "$CLUSTER/$3/offers" ;;
    esac ;;
  "annotate node")
    case "$5" in
      *-) rm "$CLUSTER/$3/note.${5%-}" ;;
      *) echo -n "${5#*=}" >"$CLUSTER/$3/note.${5%%=*}" ;;
    esac ;;
  "label node") [[ "$5" == nvidia.com/mig.config.state- ]]
    label=${6#*=}
    echo -n "$label" >"$CLUSTER/$3/config"; cp "$CLUSTER/$3/outcome" "$CLUSTER/$3/state"
    cp "$CLUSTER/$3/offers.$label" "$CLUSTER/$3/offers" ;;
esac
case "$1" in
  cordon) echo -n true >"$CLUSTER/$2/cordoned" ;;
  uncordon) rm -f "$CLUSTER/$2/cordoned" ;;
  drain) if [[ "$*" == *dry-run* ]]; then cat "$CLUSTER/dry-run" >&2; else : >"$CLUSTER/$2/pods"; fi ;;
esac
"""
CUT = "1xgpu_7x1g.10gb_2660f7c36d"
PATCH = "does not point at gpuplanner-mig-config with strategy mixed yet: run 'bash "


@dataclass
class Cluster:
    """One node, n2, and the script that changes it."""

    folder: Path
    script: Path

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / "n2" / name.replace("__", ".")).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / "n2" / name).read_text()

    def snapshot(self) -> dict[str, str]:
        """All that the node is."""
        return {path.name: path.read_text() for path in (self.folder / "n2").iterdir()}

    def changes(self) -> list[str]:
        return [line for line in self.log() if not line.startswith("get")]

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.script), *words],
            env={
                "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
                "CLUSTER": str(self.folder),
                "XDG_STATE_HOME": str(self.folder.with_suffix(".state")),
                "TIMEOUT_S": "0",
                "REPARTITION_S": "0",
                "POLL_S": "0.01",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture
def cluster(plan: pl.DataFrame, tmp_path: Path) -> Cluster:
    (tmp_path / "n2").mkdir()
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    script = tmp_path / MORNING
    script.write_text(to_change_scripts(plan, BOARD)[MORNING])
    made = Cluster(tmp_path, script)
    planned = "cpu=8\nnvidia.com/gpu=1\nnvidia.com/mig-1g.10gb=7\nnvidia.com/mig-3g.40gb=0\n"
    made.write(config="all-disabled", state="success", outcome="success", pods="", offers=WHOLE)
    (tmp_path / "n2" / "offers.all-disabled").write_text(WHOLE)
    (tmp_path / "n2" / f"offers.{CUT}").write_text(planned)
    (tmp_path / "configmap").write_text(to_mig_parted(plan, BOARD))
    (tmp_path / "dry-run").write_text("")
    (tmp_path / "policy").write_text("cluster-policy gpuplanner-mig-config mixed")
    return made


WHOLE = "cpu=8\nnvidia.com/gpu=2\n"


def test_config_map_holds_the_mig_parted_file(plan: pl.DataFrame) -> None:
    found = yaml.safe_load(to_config_map(plan, BOARD))
    assert found["apiVersion"] == "v1"
    assert found["kind"] == "ConfigMap"
    assert found["metadata"] == {"name": "gpuplanner-mig-config", "namespace": "gpu-operator"}
    assert found["data"] == {"config.yaml": to_mig_parted(plan, BOARD)}


def test_config_that_nodes_have_before_any_plan_is_always_there(
    plan: pl.DataFrame, make_plan: Callable[..., pl.DataFrame]
) -> None:
    """The operator labels nodes all-disabled; rollback to a config that is not there leaves them cordoned."""
    for some in (plan, make_plan([("n1", 0, 0, 1, "1g.10gb:7", True)])):
        parted = yaml.safe_load(yaml.safe_load(to_config_map(some, BOARD))["data"]["config.yaml"])
        assert parted["mig-configs"]["all-disabled"] == [{"devices": "all", "mig-enabled": False}]


@pytest.mark.parametrize("name", ["Node_1", "a_b", "a..b", "a" * 254])
def test_node_names_that_kubernetes_does_not_have_are_refused(make_plan: Callable[..., pl.DataFrame], name) -> None:
    with pytest.raises(GeometryError, match=r"node names: expected DNS-1123 names.*1 of 1 others"):
        to_change_scripts(make_plan([(name, 0, 0, 1, "gpu", True)]), BOARD)


def test_only_nodes_that_are_cut_anew_are_in_a_script(plan: pl.DataFrame) -> None:
    """At the start n1 changes one GPU and n2 is set up; at eight only n2, whose other GPU just falls idle."""
    first, second = to_change_scripts(plan, BOARD).items()
    assert first[0] == "change-20261102T000000Z.sh"
    assert "\nconfig[n1]=" in first[1]
    assert "\nconfig[n2]=" in first[1]
    assert second[0] == MORNING
    assert second[1].count("\nconfig[") == 1
    assert f"config[n2]={CUT} offers[n2]='nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=7' size[n2]=2\n" in second[1]
    assert "# n2: 2xgpu_6c7ce06274 -> 1xgpu_7x1g.10gb_2660f7c36d\n#   GPU 0: gpu -> 1g.10gb:7\n" in second[1]
    assert (
        "#   0 instances deleted, 7 created, MIG mode changed on 1 GPU; "
        "about 1 min (0.5 to 5) by mig-manager, without the drain\n" in second[1]
    )


@needs_bash
def test_apply(cluster: Cluster) -> None:
    done = cluster.run("apply")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"n2: {CUT}, advertises nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=7\n")
    assert cluster.changes() == [
        "annotate node n2 --overwrite gpuplanner-cordoned=change-20261102T080000Z",
        "cordon n2",
        "drain n2 --ignore-daemonsets --delete-emptydir-data --timeout=0s",
        "annotate node n2 --overwrite gpuplanner-change-20261102T080000Z-offers=nvidia.com/gpu=2",
        "annotate node n2 --overwrite gpuplanner-change-20261102T080000Z-mig-config=all-disabled",
        f"label node n2 --overwrite nvidia.com/mig.config.state- nvidia.com/mig.config={CUT}",
        "uncordon n2",
        "annotate node n2 --overwrite gpuplanner-cordoned-",
    ]


@needs_bash
def test_applying_again_changes_nothing(cluster: Cluster) -> None:
    assert cluster.run("apply").returncode == 0
    (cluster.folder / "log").unlink()
    assert cluster.run("apply").returncode == 0
    assert cluster.changes() == []


@needs_bash
def test_instances_that_others_added_are_listed_and_do_not_stop_a_second_apply(cluster: Cluster) -> None:
    before = cluster.snapshot() | {"config": "all-disabled"}
    assert cluster.run("apply").returncode == 0
    planned = cluster.read("offers").strip()
    cluster.write(offers=planned.replace("mig-1g.10gb=7", "mig-1g.10gb=6"))
    assert cluster.run("verify").returncode == 1
    cluster.write(offers=f"{planned} nvidia.com/mig-1g.20gb=1".replace(" ", "\n" if "\n" in planned else " "))
    done = cluster.run("verify")
    assert (done.returncode, "(added by others: 1 × nvidia.com/mig-1g.20gb)" in done.stdout) == (0, True), done.stderr
    (cluster.folder / "log").unlink()
    assert cluster.run("apply").returncode == 0
    assert cluster.changes() == []
    assert cluster.run("rollback").returncode == 0
    assert cluster.snapshot() == before


@needs_bash
def test_running_work_is_not_evicted_unless_allowed(cluster: Cluster) -> None:
    """What the index says of a node that has not emptied: given up, the cordon comes off."""
    pods = "a/train nvidia.com/gpu\na/train cpu\nb/web cpu\nc/notebook nvidia.com/mig-1g.10gb\nd/claimed claim\n"
    cluster.write(pods=pods)
    before = cluster.snapshot()
    done = cluster.run("apply")
    assert done.returncode == 75
    assert "n2: timed out after 0 s: GPU pods still running: a/train c/notebook d/claimed." in done.stderr
    assert cluster.snapshot() == before
    assert cluster.run("apply", EVICT="yes").returncode == 0
    assert any(line.startswith("drain") for line in cluster.log())


@needs_bash
@pytest.mark.parametrize("label", ["all-disabled", ""])
def test_rollback_makes_it_as_it_was(cluster: Cluster, label: str) -> None:
    """A node that had no label has that of one that is not cut, which the MIG manager knows."""
    cluster.write(config=label)
    before = cluster.snapshot() | {"config": "all-disabled"}
    assert cluster.run("apply").returncode == 0
    assert cluster.read("config") == CUT
    assert cluster.run("rollback").returncode == 0
    assert cluster.snapshot() == before
    none = cluster.run("rollback")
    assert (none.returncode, none.stdout) == (0, "n2: not repartitioned, nothing to roll back\n")


@needs_bash
@pytest.mark.parametrize("step", ["^cordon", "^drain", "Z-offers=", "Z-mig-config=", "^label", "^uncordon"])
def test_an_api_that_dies_half_way_can_be_gone_on_with_and_taken_back(cluster: Cluster, step: str) -> None:
    before = cluster.snapshot()
    for verb, end in (("rollback", "all-disabled"), ("apply", CUT)):
        (cluster.folder / "broken").write_text(step)
        died = cluster.run("apply")
        assert died.returncode == 1
        assert "Run the same command again, or rollback" in died.stderr
        (cluster.folder / "broken").unlink()
        assert cluster.run(verb).returncode == 0
        assert (cluster.read("config"), (cluster.folder / "n2" / "cordoned").exists()) == (end, False)
        if verb == "rollback":
            mine = ("note.gpuplanner-change-20261102T080000Z-offers",)
            assert {k: v for k, v in cluster.snapshot().items() if k not in mine} == before


@needs_bash
def test_failure_of_the_manager_leaves_the_node_cordoned_and_can_be_rolled_back(cluster: Cluster) -> None:
    cluster.write(outcome="failed")
    done = cluster.run("apply")
    assert done.returncode == 1
    assert "the MIG manager reports failed" in done.stderr
    assert "then run 'bash " in done.stderr
    assert " rollback n2' and 'bash " in done.stderr
    assert "uncordon n2" not in cluster.log()
    assert cluster.run("apply").returncode == 1, "the MIG manager does not retry a label"
    cluster.write(outcome="success")
    assert cluster.run("rollback").returncode == 0
    assert cluster.read("config") == "all-disabled"
    assert not (cluster.folder / "n2" / "cordoned").exists()


@needs_bash
def test_success_without_the_resources_is_no_success(cluster: Cluster) -> None:
    (cluster.folder / "n2" / f"offers.{CUT}").write_text("nvidia.com/gpu=1\nnvidia.com/mig-1g.10gb=6\n")
    done = cluster.run("apply")
    assert done.returncode == 1
    assert "it advertises 'nvidia.com/gpu=1 nvidia.com/mig-1g.10gb=6'" in done.stderr


@needs_bash
def test_a_cordon_of_somebody_else_stays(cluster: Cluster) -> None:
    cluster.write(cordoned="true")
    assert cluster.run("apply").returncode == 0
    assert cluster.read("config") == CUT
    assert cluster.read("cordoned") == "true"


@needs_bash
def test_a_cordon_of_another_change_bundle_stays(cluster: Cluster) -> None:
    cluster.write(cordoned="true", **{"note__gpuplanner-cordoned": "mig_static"})
    assert cluster.run("cancel").returncode == cluster.run("apply").returncode == 0
    assert (cluster.read("config"), cluster.read("cordoned")) == (CUT, "true")


@needs_bash
def test_a_node_is_kept_free_ahead_and_let_go_again(cluster: Cluster) -> None:
    before = cluster.snapshot()
    assert cluster.run("cordon-ahead").returncode == 0
    assert cluster.read("cordoned") == "true"
    assert cluster.run("cancel").returncode == 0
    assert cluster.snapshot() == before
    assert cluster.run("cordon-ahead").returncode == cluster.run("apply").returncode == 0
    assert not (cluster.folder / "n2" / "cordoned").exists()


@needs_bash
@pytest.mark.parametrize(
    ("files", "told"),
    [
        (
            {"n2/config": "all-2g.20gb"},
            "Fix n2: 'all-2g.20gb' is not in gpuplanner-mig-config, nor in the ConfigMap of the ClusterPolicy",
        ),
        ({"policy": "cluster-policy default-mig-parted-config mixed", "n2/config": "all-2g.20gb"}, "Fix n2: 'all-2g"),
        (None, "Node n2 not found"),
    ],
)
def test_what_stands_in_the_way_is_said_before_anything_is_done(
    cluster: Cluster, files: dict[str, str] | None, told: str
) -> None:
    for name, text in (files or {}).items():
        (cluster.folder / name).write_text(text)
    if files is None:
        shutil.rmtree(cluster.folder / "n2")
    for verb in ("check", "apply", "cordon-ahead"):
        done = cluster.run(verb)
        assert (done.returncode, told in done.stderr, "Nothing was changed." in done.stderr) == (1, True, True)
    assert [line for line in cluster.changes() if "--dry-run=server" not in line] == []


@needs_bash
@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"configmap": ""}, "ConfigMap gpu-operator/gpuplanner-mig-config does not exist yet"),
        ({"policy": "cluster-policy default-mig-parted-config mixed"}, PATCH),
    ],
)
def test_what_the_next_step_creates_does_not_fail_the_check(
    cluster: Cluster, files: dict[str, str], told: str, plan: pl.DataFrame
) -> None:
    for name, text in files.items():
        (cluster.folder / name).write_text(text)
    (cluster.folder / "configmap.yaml").write_text(to_config_map(plan, BOARD))
    (cluster.folder / "dry-run").write_text("evicting\nerror: cannot delete Pods that declare no controller: a/b\n")
    done = cluster.run("check")
    assert (done.returncode, told in done.stdout, "ready to change: n2" in done.stdout) == (0, True, True)
    assert "note: kubectl drain of n2 would now stop: error: cannot delete Pods" in done.stdout
    done = cluster.run("apply")
    assert (done.returncode, told in done.stderr, "Nothing was changed." in done.stderr) == (1, True, True)
    assert [line for line in cluster.changes() if "dry-run" not in line] == []


@needs_bash
def test_a_later_change_is_taken_back_first(cluster: Cluster) -> None:
    assert cluster.run("apply").returncode == 0
    cluster.write(config="other")
    done = cluster.run("rollback")
    assert (done.returncode, "by a later change; roll that one back first" in done.stderr) == (1, True)


@needs_bash
def test_a_change_that_is_not_due_is_left_to_its_time(cluster: Cluster) -> None:
    cluster.script.write_text(cluster.script.read_text().replace("times='2026-", "times='2099-"))
    done = cluster.run("apply", IF_DUE="yes")
    assert (done.returncode, "not due: 2099-11-02" in done.stdout) == (0, True)
    assert cluster.log() == []


@needs_bash
def test_a_cluster_that_does_not_answer_stops_everything(cluster: Cluster) -> None:
    """No answer about running work is not the answer that there is none."""
    (cluster.folder / "broken").write_text(".")
    assert cluster.run("apply").returncode != 0
    assert cluster.changes() == []


@needs_bash
def test_nodes_change_side_by_side(
    cluster: Cluster, make_plan: Callable[..., pl.DataFrame], plan: pl.DataFrame
) -> None:
    """One that is at work does not hold up the others, nor make them wait again for as long."""
    two = pl.concat([plan.filter(node="n2"), plan.filter(node="n2").with_columns(node=pl.lit("n1"))])
    cluster.script.write_text(to_change_scripts(two, BOARD)[MORNING])
    shutil.copytree(cluster.folder / "n2", cluster.folder / "n1")
    (cluster.folder / "n1" / "pods").write_text("a/train nvidia.com/gpu\n")
    done = cluster.run("apply")
    assert (done.returncode, "n1: timed out" in done.stderr) == (75, True)
    assert cluster.read("config") == CUT
    assert not (cluster.folder / "n1" / "cordoned").exists()
    (cluster.folder / "n1" / "pods").write_text("")
    assert cluster.run("apply").returncode == 0
    assert (cluster.folder / "n1" / "config").read_text() == CUT
    assert cluster.run("rollback", "n1").returncode == 0
    assert (cluster.folder / "n1" / "config").read_text() == "all-disabled"
    assert cluster.read("config") == CUT


@needs_bash
def test_verify_changes_nothing(cluster: Cluster) -> None:
    assert cluster.run("verify").returncode == 1
    assert cluster.run("apply").returncode == 0
    (cluster.folder / "log").unlink()
    assert cluster.run("verify", "n2").returncode == 0
    assert all(line.startswith("get") for line in cluster.log())


@needs_bash
def test_the_time_out_of_service_is_written_down_and_read_back(cluster: Cluster) -> None:
    """What the ledger calls reconfiguring; a run that changes nothing is no such time."""
    log = cluster.folder / "log.csv"
    known = {"CHANGE_LOG": str(log)}
    (cluster.folder / "broken").write_text("^uncordon")
    assert cluster.run("apply", **known).returncode == 1
    (cluster.folder / "broken").unlink()
    assert cluster.run("apply", **known).returncode == cluster.run("apply", **known).returncode == 0
    assert cluster.run("rollback", **known).returncode == 0
    found = read("auto", log).tables["out_of_service"]
    assert found.select("node", "gpus", "bucket").rows() == [("n2", 2.0, "reconfiguring")] * 2
    assert (found["end_time"] >= found["start_time"]).all()
