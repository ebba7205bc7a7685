"""The timer of a calendar: what it starts, what it leaves alone, and how it is put in place and taken away."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import yaml

from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.planner.plan_search import plan
from gpuplanner.report.layout_schedule_files import make_calendar_bundle
from tests.report.bundle.stub_cluster import Stub, fenced

BOARD = "H100-80GB-SXM5"
TYPE = "nvidia_h100_80gb_hbm3"
HOUR = timedelta(hours=1)
pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("flock") is None, reason="bash and flock are not installed"
)


def calendar(folder: Path, first_change: datetime, path: str = "mig-manager") -> Mapping[str, str]:
    """A node of two GPUs: whole, a day later cut into fourteen, another day later whole again."""
    demand = np.array([[[2.0, 0.0, 2.0], [0.0, 14.0, 0.0]]])
    problem = PlanProblem(
        BOARD, 2, 2, first_change - 24 * HOUR, 24.0, ["t"], ["gpu", "1g.10gb"], demand, nodes=["n1"],
        initial={"gpu": 2}, change=ChangeCost.from_catalogue(BOARD, path),
    )  # fmt: skip
    files = make_calendar_bundle(plan(problem, gap_target=0), problem).files
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return files


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def cluster(tmp_path: Path) -> Stub:
    return Stub(tmp_path / "cluster", {"n1": ["gpu", "gpu"]}, gres_type=TYPE)


def look(cluster: Stub, folder: Path, verb: str = "run", path: str = "mig-manager") -> subprocess.CompletedProcess[str]:
    return cluster.run(f"bash {path}/timer.sh {verb}", folder, TIMEOUT_S="3600", REPARTITION_S="5")


@pytest.mark.long
@pytest.mark.parametrize("path", ["mig-manager", "slurm"])
def test_a_look_makes_what_is_due_once_and_says_what_it_leaves(tmp_path: Path, cluster: Stub, path: str) -> None:
    """Ten minutes late is caught up; the change of the next day is left to its time."""
    files = calendar(tmp_path / "pack", now() - timedelta(minutes=10))
    ready = [line for line in fenced(files["README.md"], "Apply").splitlines() if "timer" not in line]
    scp = "scp mig-parted/mig-parted.yaml n1:/etc/nvidia-mig-manager/config.yaml"
    assert cluster.run("\n".join([*ready, scp]), tmp_path / "pack").returncode == 0
    done = look(cluster, tmp_path / "pack", path=path)
    assert done.returncode == 0, done.stderr
    assert cluster.offers("n1") == {"1g.10gb": 14}
    assert re.search(r"not due: \S+Z is ahead", done.stdout)
    reserved = [name for name in cluster.state["objects"] if name.startswith("reservation/")]
    assert len(reserved) == (path == "slurm")  # of the next change
    before = cluster.snapshot()
    assert look(cluster, tmp_path / "pack", path=path).returncode == 0
    assert cluster.snapshot() == before


def test_a_date_that_was_missed_for_too_long_is_skipped_in_words(tmp_path: Path, cluster: Stub) -> None:
    calendar(tmp_path / "pack", now() - 3 * HOUR)
    before = cluster.snapshot()
    done = look(cluster, tmp_path / "pack")
    assert done.returncode == 0, done.stderr
    assert "is over by more than 3600 s: skipped if the change was not made" in done.stdout
    assert cluster.snapshot() == before


def test_a_change_that_fails_fails_the_look_and_others_are_made(tmp_path: Path, cluster: Stub) -> None:
    calendar(tmp_path / "pack", now() - timedelta(minutes=10))
    assert look(cluster, tmp_path / "pack").returncode == 1  # the ConfigMap is not there
    (tmp_path / "pack/mig-manager/change-1.sh").write_text("echo made; exit 75")
    done = look(cluster, tmp_path / "pack")
    assert (done.returncode, "made" in done.stdout) == (1, True)


def test_a_change_that_is_being_made_is_not_started_again(tmp_path: Path, cluster: Stub) -> None:
    calendar(tmp_path / "pack", now() - timedelta(minutes=10))
    for script in (tmp_path / "pack/mig-manager").glob("change-*.sh"):
        script.unlink()
    script = tmp_path / "pack/mig-manager/change-1.sh"
    script.write_text("echo made")
    assert "made" in look(cluster, tmp_path / "pack").stdout
    with subprocess.Popen(["flock", str(script), "sleep", "60"]) as held:
        while subprocess.run(["flock", "--nonblock", str(script), "true"], check=False).returncode == 0:
            pass
        done = look(cluster, tmp_path / "pack")
        held.terminate()
    assert (done.returncode, done.stdout) == (0, "")


class Keepers:
    """A folder of commands that keep the time, and what they were told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "units").mkdir(parents=True)
        table = folder / "crontab.txt"
        table.write_text("0 3 * * * backup\n")
        self.commands = {
            "systemctl": 'echo "systemctl $*" >>"$LOG"',
            "crontab": f'if [[ "$1" == -l ]]; then cat {table}; else cat >{table}.new; mv {table}.new {table}; fi',
            "kubectl": 'echo "kubectl $*" >>"$LOG"; if [[ "$*" == "apply -f -" ]]; then cat >>"$LOG"; else cat; fi',
            "scontrol": 'echo "scontrol $*" >>"$LOG"; [[ "$1" != --oneliner ]] || cat "$SAID"',
        }
        for name, text in self.commands.items():
            (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (folder / name).chmod(0o755)
        (folder / "log").write_text("")
        (folder / "said").write_text("No reservations in the system\n")

    def run(self, timer: Path, verb: str, **more: str) -> subprocess.CompletedProcess[str]:
        known = {"PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}", "LOG": f"{self.folder}/log",
                 "SAID": f"{self.folder}/said", "UNITS": f"{self.folder}/units"}  # fmt: skip
        return subprocess.run(["bash", str(timer), verb], env={**os.environ, **known, **more}, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, check=False)  # fmt: skip

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def keepers(tmp_path: Path) -> Keepers:
    return Keepers(tmp_path / "keepers")


def test_units_are_put_in_place_with_what_changes_need_and_taken_away(tmp_path: Path, keepers: Keepers) -> None:
    calendar(tmp_path / "pack", now() + HOUR)
    timer = tmp_path / "pack/slurm/timer.sh"
    (keepers.folder / "said").write_text(
        "ReservationName=gpuplanner-change-20261103T000000Z StartTime=x\nReservationName=theirs StartTime=x\n"
    )
    done = keepers.run(timer, "apply", PARTED="/etc/a b.yaml")
    assert done.returncode == 0, done.stderr
    assert "export PARTED='/etc/a b.yaml'\n" in timer.with_name("timer.env").read_text()
    assert keepers.log().endswith("systemctl enable --now gpuplanner-calendar.timer\n")
    units = list((keepers.folder / "units").iterdir())
    assert f"ExecStart=/bin/bash {timer} run\n" in (keepers.folder / "units/gpuplanner-calendar.service").read_text()
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
    said = keepers.run(timer, "verify")
    assert said.returncode == 0, said.stderr
    assert len(re.findall(r"change-\S+\.sh: \S+Z is ahead", said.stdout)) == 2
    assert keepers.run(timer, "rollback").returncode == 0
    assert "scontrol delete reservationname=gpuplanner-change-20261103T000000Z\n" in keepers.log()
    assert "theirs" not in keepers.log()
    assert not list((keepers.folder / "units").iterdir())
    assert not timer.with_name("timer.env").exists()
    assert keepers.run(timer, "verify").returncode == 1


def test_the_crontab_of_others_stays(tmp_path: Path, keepers: Keepers) -> None:
    calendar(tmp_path / "pack", now() + HOUR, "nvidia-smi")
    timer, table = tmp_path / "pack/nvidia-smi/timer.sh", keepers.folder / "crontab.txt"
    for _ in range(2):
        assert keepers.run(timer, "apply", TIMER="cron").returncode == 0
    line = f"*/5 * * * * /bin/bash {timer} run # gpuplanner-calendar\n"
    assert table.read_text() == "0 3 * * * backup\n" + line
    assert keepers.run(timer, "verify", TIMER="cron").returncode == 0
    assert keepers.run(timer, "rollback", TIMER="cron").returncode == 0
    assert table.read_text() == "0 3 * * * backup\n"


def test_a_cron_job_runs_the_scripts_where_no_gpu_is(tmp_path: Path, keepers: Keepers) -> None:
    calendar(tmp_path / "pack", now() + HOUR)
    timer = tmp_path / "pack/mig-manager/timer.sh"
    nameless = keepers.run(timer, "apply", TIMER="cluster")
    assert (nameless.returncode, "Fix IMAGE: set IMAGE=NAME" in nameless.stderr) == (1, True)
    assert keepers.run(timer, "apply", TIMER="cluster", IMAGE="here/debian:13").returncode == 0
    assert f"--from-file={timer.parent} --dry-run=client" in keepers.log()
    job = list(yaml.safe_load_all(keepers.log().partition("apply -f -\n")[2]))[-1]
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["containers"][0]["image"], job["spec"]["concurrencyPolicy"]) == ("here/debian:13", "Forbid")
    assert keepers.run(timer, "rollback", TIMER="cluster").returncode == 0
    assert f"kubectl delete --ignore-not-found -f {timer.with_name('timer.yaml')}\n" in keepers.log()
    other = keepers.run(tmp_path / "pack/slurm/timer.sh", "apply", TIMER="cluster", IMAGE="x")
    assert (other.returncode, "need ssh to the nodes" in other.stderr) == (1, True)


def test_objects_of_the_timer_are_what_kubernetes_takes(tmp_path: Path) -> None:
    """Strictly: a key that Kubernetes does not know is a fault."""
    validate = pytest.importorskip("kubernetes_validate")
    files = calendar(tmp_path / "pack", now() + HOUR)
    for one in yaml.safe_load_all(files["mig-manager/timer.yaml"]):
        validate.validate(one, "1.34", strict=True)


def test_a_folder_that_no_unit_can_name_is_refused(tmp_path: Path, keepers: Keepers) -> None:
    calendar(tmp_path / "a pack", now() + HOUR)
    done = keepers.run(tmp_path / "a pack/mig-manager/timer.sh", "apply")
    assert (done.returncode, "may have only letters, digits" in done.stderr) == (1, True)
    assert keepers.log() == ""
