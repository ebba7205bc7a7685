"""The change script for Slurm, run against a controller of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.export import to_mig_parted, to_slurm_files

BOARD = "H100-80GB-SXM5"
MORNING = "20261102T080000Z"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# Each node is a folder with the files "state", "gres" (in force), "next" (after new daemons) and "jobs".
COMMANDS = {
    "scontrol": r"""
case "$1 ${2:-}" in
  "show node") echo "NodeName=$3 CoresPerSocket=1"
    echo "   Gres=$(cat "$CLUSTER/$3/gres")"; echo "   State=$(cat "$CLUSTER/$3/state") Weight=1" ;;
  "create "*) echo "$*" >"$CLUSTER/reservation" ;;
  "show reservation") [[ -e "$CLUSTER/reservation" ]] ;;
  "delete "*) rm "$CLUSTER/reservation" ;;
  "update "*) node=${2#nodename=}; state=${3#state=}; case $state in
    drain) echo IDLE+DRAIN ;; resume) echo IDLE ;; esac >"$CLUSTER/$node/state" ;;
  "reconfigure "*) for node in n1 n2; do
    if [[ -e "$CLUSTER/$node/next" ]]; then cp "$CLUSTER/$node/next" "$CLUSTER/$node/gres"; fi; done ;;
esac
""",
    "squeue": 'node=${2#--nodelist=}; cat "$CLUSTER/$node/jobs"',
    "ssh": "",
    "install-lines": '[[ -s "$1" ]]',
}


class Cluster:
    """Commands and nodes as files."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        for name, body in COMMANDS.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            log = "" if name == "squeue" else f'[[ "$1" == show ]] || echo "{name} $*" >>"$CLUSTER/log"\n'
            path.write_text(f"#!/usr/bin/env bash\nset -eu\n{log}{body}\n")
            path.chmod(0o755)
        for name, text in files.items():
            (folder / name).write_text(text)
        for node in ("n1", "n2"):
            (folder / node).mkdir()
        self.write(
            "n2", state="IDLE", jobs="", gres="gpu:t:2(S:0)", next="gpu:t:1(S:0),gpu:t_1g.10gb:7(S:0-1)"
        )

    def write(self, node: str, **files: str) -> None:
        for name, text in files.items():
            (self.folder / node / name).write_text(text)

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.folder / f"change-{MORNING}.sh"), *words],
            env={
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "CLUSTER": str(self.folder),
                "INSTALL": "install-lines",
                "TIMEOUT_S": "0",
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
    return Cluster(tmp_path, to_slurm_files(plan, BOARD, gres_type="t"))


def test_order_of_a_change(cluster: Cluster, plan: pl.DataFrame) -> None:
    """A controller that hears of the new devices before the cut drains the node for good."""
    done = cluster.run("apply")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "n2: IDLE+DRAIN, gpu:t:1,gpu:t_1g.10gb:7\n"
    config = "1xgpu_7x1g.10gb_2660f7c36d"
    assert config in to_mig_parted(plan, BOARD)
    assert cluster.log() == [
        "scontrol update nodename=n2 state=drain reason=gpuplanner change-20261102T080000Z",
        f"ssh n2 nvidia-mig-parted apply -f /etc/nvidia-mig-manager/config.yaml -c {config}",
        f"install-lines {cluster.folder}/slurm-{MORNING}.conf",
        "scontrol reconfigure",
        "scontrol update nodename=n2 state=resume",
    ]
    assert cluster.run("verify").returncode == 0
    assert len(cluster.log()) == 5


def test_a_reservation_ahead_lasts_until_the_change_is_made(cluster: Cluster) -> None:
    assert cluster.run("reserve", "2026-11-02T08:00:00").returncode == 0
    assert cluster.log() == [
        "scontrol create reservation reservationname=gpuplanner-change-20261102T080000Z "
        "starttime=2026-11-02T08:00:00 duration=infinite users=root flags=maint,ignore_jobs nodes=n2"
    ]
    assert cluster.run("apply").returncode == 0
    assert cluster.log()[-1] == "scontrol delete reservationname=gpuplanner-change-20261102T080000Z"
    assert cluster.run("reserve").returncode == 2


def test_running_jobs_are_waited_for(cluster: Cluster) -> None:
    cluster.write("n2", jobs="17\n18\n")
    done = cluster.run("apply")
    assert done.returncode == 1
    assert "n2: still at work: 17 18. It is drained" in done.stderr
    assert len(cluster.log()) == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"next": "gpu:t:1,gpu:t_1g.10gb:6"}, "gpu:t_1g.10gb:7', Slurm has 'gpu:t:1,gpu:t_1g.10gb:6'"),
        (
            {"next": "gpu:t:1,gpu:t_1g.10gb:7", "state": "IDLE+DRAIN+INVALID_REG"},
            "in state IDLE+DRAIN+INVALID_REG",
        ),
    ],
)
def test_a_node_that_is_not_as_planned_is_not_resumed(
    cluster: Cluster, fault: dict[str, str], told: str
) -> None:
    state = fault.get("state", "IDLE+DRAIN")
    cluster.write("n2", **fault)
    path = cluster.folder / "bin" / "scontrol"
    path.write_text(path.read_text().replace("drain) echo IDLE+DRAIN", f"drain) echo {state}"))
    done = cluster.run("apply")
    assert done.returncode == 1
    assert told in done.stderr
    assert not any("resume" in line for line in cluster.log())


def test_commands_of_the_site_take_the_place_of_ours(cluster: Cluster) -> None:
    assert cluster.run("apply", CUT="ssh root@jump", RECONFIGURE="scontrol reconfigure now").returncode == 0
    assert cluster.log()[1] == "ssh root@jump n2 1xgpu_7x1g.10gb_2660f7c36d"
    assert cluster.log()[3] == "scontrol reconfigure now"


def test_nothing_begins_without_a_way_to_install_the_lines(cluster: Cluster) -> None:
    done = cluster.run("apply", INSTALL="")
    assert (done.returncode, "INSTALL must name" in done.stderr) == (1, True)
    assert cluster.run().returncode == cluster.run("undo").returncode == 2
    assert cluster.log() == []


def test_a_script_for_each_time_with_a_cut(
    plan: pl.DataFrame, make_plan: Callable[..., pl.DataFrame]
) -> None:
    files = to_slurm_files(plan, BOARD)
    assert [name for name in files if name.startswith("change")] == [
        "change-20261102T000000Z.sh",
        f"change-{MORNING}.sh",
    ]
    assert "readonly nodes=(n1 n2)" in files["change-20261102T000000Z.sh"]
    assert "readonly nodes=(n2)" in files[f"change-{MORNING}.sh"]
    types = "gpu:nvidia_h100_80gb_hbm3:1,gpu:nvidia_h100_80gb_hbm3_1g.10gb:7"
    assert f"gres[n2]={types}" in files[f"change-{MORNING}.sh"]


def test_changes_that_are_alike_have_one_script(make_plan: Callable[..., pl.DataFrame]) -> None:
    """Cut by day and whole by night: one script for all mornings, one for all evenings."""
    hours = [(0, 8, "gpu"), (8, 20, "1g.10gb:7"), (20, 32, "gpu"), (32, 44, "1g.10gb:7"), (44, 56, "gpu")]
    rows = [("n1", 0, start, end, layout, layout != "gpu") for start, end, layout in hours]
    scripts = {
        name: text
        for name, text in to_slurm_files(make_plan(rows), BOARD).items()
        if name.startswith("change")
    }
    assert list(scripts) == [f"change-{MORNING}.sh", "change-20261102T200000Z.sh"]
    assert "for 2026-11-02T20:00:00Z, 2026-11-03T20:00:00Z," in scripts["change-20261102T200000Z.sh"]
    assert "gres[n1]=gpu:nvidia_h100_80gb_hbm3:1\n" in scripts["change-20261102T200000Z.sh"]
