"""The power-saving block of a pack on real daemons: in effect, nodes go while they are idle and come for jobs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.report.change_bundle import make_bundle
from gpuplanner.report.change_bundle_parts import PageText
from gpuplanner.simulator.scheduling_rules import Drain
from tests.report.bundle.real import slurm_cluster
from tests.report.bundle.real.slurm_cluster import SlurmCluster, missing, until

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

BOARD, PRODUCT, TYPE = "H100-80GB-SXM5", "NVIDIA H100 80GB HBM3", "nvidia_h100_80gb_hbm3"
NODES = ("n1", "n2", "n3")
WHOLE, CUT = ("gpu", "gpu"), ("3g.40gb:1,1g.10gb:4", "1g.10gb:7")


def rules(*, kept: int, nodes: tuple[str, ...] = NODES) -> FleetRules:
    """Nodes that may be whole or cut, and go when they are idle for five seconds."""
    count = len(nodes)
    pools = (PoolRule("whole", WHOLE, count, nodes, count, kept), PoolRule("cut", CUT, count, nodes, count, 0))
    return FleetRules(
        "autoscaled_pools", "slurm", BOARD, pools, count, (PoolRule("today-1", WHOLE, count, nodes),),
        idle_s=5.0, lead_s=2.0,
        lead_slow_s=40.0, begins="2026-11-02T00:00:00+00:00",
    )  # fmt: skip


def asleep(cluster: SlurmCluster) -> set[str]:
    """Nodes that are powered down, of those that the machines are called."""
    return {node for node, state in cluster.states().items() if state == "idle~" and node in NODES}


def test_nodes_go_and_come_by_the_written_block(tmp_path: Path) -> None:
    """One is kept; the others go when idle, come for a job by the programs of the pack, and go again."""
    cost = ChangeCost.from_catalogue(BOARD, "slurm")
    pack = make_bundle(rules(kept=1), PageText("Power nodes down.", "node pools"), cost, Drain())
    folder = tmp_path / "export"
    for name, text in pack.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # A node of this machine is down at once.
        (folder / name).write_text(text.replace("SuspendTimeout=120", "SuspendTimeout=5"))
    programs = tmp_path / "programs"
    cluster = SlurmCluster(tmp_path / "cluster", list(NODES), PRODUCT, 2, f"Gres=gpu:{TYPE}:2")
    for node in NODES:
        (cluster.folder / node / "gres.conf").write_text("AutoDetect=nvml\n")
        (cluster.folder / node / "gpuplanner.conf").symlink_to(cluster.folder / "gpuplanner.conf")  # shared, as all is
    programs.mkdir()
    # The site's own program: here a machine is its slurmd.
    (programs / "power.sh").write_text(
        f'#!/bin/sh\nexec {sys.executable} {slurm_cluster.__file__} {cluster.folder} power "$@"\n'
    )
    with cluster:
        where = {"PROGRAMS": str(programs)}
        cluster.run("bash", folder / "slurm" / "pools.sh", "apply", **where)
        assert "power saving is set" in cluster.run("bash", folder / "slurm" / "pools.sh", "verify", **where).stdout
        # What a machine is when it is cut otherwise is known; slurmctld shows nobody nodes of the cloud that are away.
        partition = cluster.run("scontrol", "show", "partition", "gpuplanner-cut").stdout
        assert "Nodes=n1-cut,n2-cut,n3-cut" in partition.replace("n[1-3]-cut", "n1-cut,n2-cut,n3-cut")
        until(
            "all nodes heard of", lambda: {cluster.states().get(node) for node in NODES} <= {"idle", "idle%", "idle~"}
        )
        until("two nodes gone", lambda: len(asleep(cluster)) == 2)
        flags = ["--parsable", "--partition=gpuplanner-whole", "--nodes=3", "--gres=gpu:2", "--time=5", "--exclusive"]
        job = cluster.run("sbatch", *flags, "--output=/dev/null", "--wrap=sleep 2").stdout.strip()

        def over() -> bool:
            return "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", job).stdout

        until("the job", over)
        lines = (programs / "power.log").read_text().splitlines()
        assert sum(line.endswith(" on") for line in lines) == 2
        until("two nodes gone again", lambda: len(asleep(cluster)) == 2)
        cluster.run("bash", folder / "slurm" / "pools.sh", "rollback", **where)
        assert "Include" not in cluster.conf.read_text()


def machines(tmp_path: Path, nodes: tuple[str, ...] = NODES) -> tuple[SlurmCluster, Path, Path, dict[str, str]]:
    """A cluster of machines that may be whole or cut, its pack, its programs, and what scripts have to know."""
    cost = ChangeCost.from_catalogue(BOARD, "slurm")
    pack = make_bundle(rules(kept=0, nodes=nodes), PageText("Power nodes down.", "node pools"), cost, Drain())
    folder = tmp_path / "export"
    for name, text in pack.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("SuspendTimeout=120", "SuspendTimeout=5"))
    programs = tmp_path / "programs"
    cluster = SlurmCluster(tmp_path / "cluster", list(nodes), PRODUCT, 2, f"Gres=gpu:{TYPE}:2")
    ports = dict(re.findall(r"NodeName=(\S+) .*?Port=(\d+)", cluster.conf.read_text()))
    for node in nodes:
        cut = f"{node}-cut"
        (cluster.folder / cut / "spool").mkdir(parents=True)
        for number in range(16):
            (cluster.folder / cut / f"device{number}").touch()
        slurm_cluster.write_devices(cluster.facts, cut, list(CUT))
        for name in (node, cut):
            (cluster.folder / name / "gres.conf").write_text("AutoDetect=nvml\n")
            (cluster.folder / name / "gpuplanner.conf").symlink_to(cluster.folder / "gpuplanner.conf")
        (cluster.folder / cut / "slurm.conf").symlink_to(cluster.conf)
    # Machines of other names are all this one.
    loopback = tmp_path / "loopback.py"
    loopback.write_text(
        "import re, sys\nfrom pathlib import Path\n"
        f"ports = {ports!r}\npath = Path(sys.argv[-1])  # the whole file is ours, or has no such line\n"
        "here = lambda m: f'NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[m[1]]}'\n"
        "path.write_text(re.sub(r'NodeHostname=(\\S+) NodeAddr=\\S+', here, path.read_text()))\n"
    )
    programs.mkdir()
    (programs / "power.sh").write_text(
        f'#!/bin/sh\nexec {sys.executable} {slurm_cluster.__file__} {cluster.folder} power "$@"\n'
    )
    return cluster, folder, programs, {"PROGRAMS": str(programs), "COPY": f"{sys.executable} {loopback}"}


def test_who_asks_for_a_machine_that_another_way_has_waits_for_it(tmp_path: Path) -> None:
    """A slice and a whole node are called at once on one machine: the later one is refused once, and comes after."""
    cluster, folder, programs, where = machines(tmp_path, NODES[:1])
    with cluster:
        cluster.run("bash", folder / "slurm" / "pools.sh", "apply", **where)
        until("the machine gone", lambda: len(asleep(cluster)) == 1)
        jobs = [
            cluster.run(
                "sbatch", "--parsable", f"--partition=gpuplanner-{pool}", f"--gres=gpu:{kind}:1", "--time=5",
                "--output=/dev/null", "--wrap=sleep 45",
            ).stdout.strip()
            for pool, kind in (("cut", slice_type("1g.10gb")), ("whole", TYPE))
        ]  # fmt: skip

        def over(job: str) -> bool:
            return "JobState=COMPLETED" in cluster.run("scontrol", "show", "job", job).stdout

        until("both jobs", lambda: all(map(over, jobs)), limit_s=400.0)
        lines = (programs / "power.log").read_text().splitlines()
        assert sum("refused" in line for line in lines) <= 1
        cluster.run("bash", folder / "slurm" / "pools.sh", "rollback", **where)


def test_a_machine_comes_cut_for_a_job_that_asks_for_a_slice(tmp_path: Path) -> None:
    """Nodes of the cloud have GPUs before they were ever up; one comes, serves a slice, and goes again."""
    cluster, folder, programs, where = machines(tmp_path)
    with cluster:
        cluster.run("bash", folder / "slurm" / "pools.sh", "apply", **where)
        until("all nodes gone", lambda: len(asleep(cluster)) == 3)
        flags = ["--parsable", "--partition=gpuplanner-cut", f"--gres=gpu:{slice_type('1g.10gb')}:2", "--time=5"]
        job = cluster.run("sbatch", *flags, "--output=/dev/null", "--wrap=sleep 2").stdout.strip()

        def shown() -> str:
            return cluster.run("scontrol", "show", "job", job).stdout

        until("the job", lambda: "JobState=COMPLETED" in shown())
        assert "Restarts=0" in shown()
        machine = re.search(r"\bNodeList=(n\d)-cut\b", shown())[1]
        until("its machine gone", lambda: not (programs / "up" / machine).exists())
        flags = ["--parsable", "--partition=gpuplanner-whole", "--nodes=3", "--gres=gpu:2", "--time=5", "--exclusive"]
        job = cluster.run("sbatch", *flags, "--output=/dev/null", "--wrap=sleep 2").stdout.strip()
        until("the job on whole nodes", lambda: "JobState=COMPLETED" in shown())
        cluster.run("bash", folder / "slurm" / "pools.sh", "rollback", **where)
        assert not (cluster.folder / "gpuplanner-gres.conf").exists()
        assert not (cluster.folder / "gres.conf").exists()


def slice_type(profile: str) -> str:
    return slurm_cluster.found_by_nvml(PRODUCT, profile)


@pytest.mark.parametrize(
    ("old", "new"), [("SuspendTimeout", "SuspendTime=60 SuspendTimeout"), ("SuspendProgram=", "SuspendProgramme=")]
)
def test_a_block_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """The negative control, and why every key stands on a line of its own."""
    pack = make_bundle(
        rules(kept=1), PageText("Power nodes down.", "node pools"), ChangeCost.from_catalogue(BOARD, "slurm"), Drain()
    )
    block = pack.files["slurm/pools.conf"]
    lines = [line for line in block.splitlines() if not line.startswith(("NodeName", "PartitionName"))]
    cluster = SlurmCluster(tmp_path / "cluster", ["n1", "n2", "n3"], PRODUCT, 2, f"Gres=gpu:{TYPE}:2")
    for text, fine in (("\n".join(lines), True), ("\n".join(lines).replace(old, new), False)):
        conf = tmp_path / "slurm.conf"
        conf.write_text(cluster.conf.read_text() + text + "\n")
        done = cluster.run("scontrol", "show", "hostnames", "n[1-2]", code=None, SLURM_CONF=str(conf))
        assert ("error" not in done.stderr) == fine, done.stderr
