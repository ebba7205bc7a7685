"""The change script for Slurm, run against a controller of files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.report.mig_manager_files import to_mig_parted
from gpuplanner.report.slurm_files import to_slurm_files

BOARD = "H100-80GB-SXM5"
MORNING = "20261102T080000Z"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# Each node is a folder with the files "state", "reason", "gres" (in force), "cut" (what its GPUs have) and "jobs". New
# daemons take the Gres from slurm.conf; the node is INVALID_REG if its GPUs have something else.
COMMANDS = {
    "scontrol": r"""
if [[ -n "${BROKEN:-}" && "$*" == $BROKEN ]]; then exit 1; fi
case "$1 ${2:-}" in
  "--version "*) echo "slurm ${VERSION:-23.11.4}" ;;
  "show node") [[ -d "$CLUSTER/$3" ]] || exit 1
    echo "NodeName=$3 CoresPerSocket=1"
    echo "   Gres=$(cat "$CLUSTER/$3/gres")"; echo "   State=$(cat "$CLUSTER/$3/state") Weight=1"
    echo "   Reason=$(cat "$CLUSTER/$3/reason") [root@2026-11-02T08:00:00]" ;;
  "create "*) echo "$*" >"$CLUSTER/reservation" ;;
  "show reservation") grep -qs "reservationname=$3 " "$CLUSTER/reservation" ;;
  "delete "*) rm "$CLUSTER/reservation" ;;
  "update "*) node=${3#nodename=}; node=${2#nodename=}
    case ${3#state=} in
      drain) echo "${4#reason=}" >"$CLUSTER/$node/reason"; echo IDLE+DRAIN ;;
      resume) : >"$CLUSTER/$node/reason"; echo IDLE ;;
    esac >"$CLUSTER/$node/state" ;;
  "reconfigure "*) renew ;;
esac
""",
    "renew": r"""
for node in n1 n2; do
  sed -n "s/^NodeName=$node .*Gres=//p" "$SLURM_CONF" >"$CLUSTER/$node/gres"
  if ! cmp -s "$CLUSTER/$node/gres" "$CLUSTER/$node/cut"; then
    echo "$(sed 's/+INVALID_REG//' "$CLUSTER/$node/state")+INVALID_REG" >"$CLUSTER/$node/state.new"
    mv "$CLUSTER/$node/state.new" "$CLUSTER/$node/state"
  fi
done
""",
    "squeue": 'node=${2#--nodelist=}; cat "$CLUSTER/$node/jobs"',
    "systemctl": "if [[ $2 == slurmctld ]]; then renew; fi",
    "ssh": r"""
node=$1; shift
case "$*" in
  "nvidia-mig-parted export"*) cat "$CLUSTER/$node/cut" ;;
  *"-f - -c before") cat >"$CLUSTER/$node/cut" ;;
  "nvidia-mig-parted apply"*) [[ -z "${CUT_FAILS:-}" ]] || exit 1; cp "$CLUSTER/$node/planned" "$CLUSTER/$node/cut" ;;
  *assert*) [[ -z "${NO_CONFIG:-}" ]] ;;
esac
""",
}
QUIET = {"squeue", "renew"}
WHOLE, PLANNED = "gpu:t:2", "gpu:t:1,gpu:t_1g.10gb:7"


class Cluster:
    """Commands and nodes as files."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        for name, body in COMMANDS.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            asked = '[[ "$*" =~ ^show|^--version|assert|export|list-units|gres.conf ]]'
            log = "" if name in QUIET else f'{asked} || echo "{name} $*" >>"$CLUSTER/log"\n'
            path.write_text(f"#!/usr/bin/env bash\nset -eu\n{log}{body}\n")
            path.chmod(0o755)
        for name, text in files.items():
            (folder / name).write_text(text)
        (folder / "slurm.conf").write_text(
            f"GresTypes=gpu\nNodeName=n1 CPUs=8 Gres={WHOLE}\nNodeName=n2 CPUs=8 Gres={WHOLE}\n"
        )
        for node in ("n1", "n2"):
            (folder / node).mkdir()
            self.write(node, state="IDLE\n", reason="", jobs="", gres=f"{WHOLE}\n", cut=f"{WHOLE}\n")
        self.write("n2", planned=f"{PLANNED}\n")

    def write(self, node: str, **files: str) -> None:
        for name, text in files.items():
            (self.folder / node / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def snapshot(self) -> dict[str, str]:
        """All that the cluster is."""
        return {
            str(path.relative_to(self.folder)): path.read_text()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name not in ("log", "slurm.conf.before-gpuplanner")
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.folder / f"change-{MORNING}.sh"), *words],
            env={
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "CLUSTER": str(self.folder),
                "XDG_STATE_HOME": str(self.folder.with_suffix(".state")),
                "SLURM_CONF": str(self.folder / "slurm.conf"),
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
    return Cluster(tmp_path, to_slurm_files(plan, BOARD, gres_type="t"))


def test_order_of_a_change(cluster: Cluster, plan: pl.DataFrame) -> None:
    """A controller that hears of the new devices before the cut drains the node for good."""
    done = cluster.run("apply")
    assert done.returncode == 0, done.stderr
    assert "n2: IDLE+DRAIN, gpu:t:1,gpu:t_1g.10gb:7\n" in done.stdout
    config = "1xgpu_7x1g.10gb_2660f7c36d"
    assert config in to_mig_parted(plan, BOARD)
    assert cluster.log() == [
        "scontrol update nodename=n2 state=drain reason=gpuplanner change-20261102T080000Z",
        f"ssh n2 nvidia-mig-parted apply -f /etc/nvidia-mig-manager/config.yaml -c {config}",
        "scontrol reconfigure",
        "scontrol update nodename=n2 state=resume",
    ]
    assert f"NodeName=n1 CPUs=8 Gres={WHOLE}\nNodeName=n2 CPUs=8 Gres={PLANNED}\n" in cluster.read("slurm.conf")
    assert cluster.run("verify").returncode == 0
    again = cluster.run("apply")
    assert (again.returncode, again.stdout) == (0, "nothing to do: n2\n")
    assert len(cluster.log()) == 4


def test_before_slurm_23_11_daemons_are_started_anew(cluster: Cluster) -> None:
    assert cluster.run("apply", VERSION="22.05.8").returncode == 0
    assert cluster.log()[2:4] == ["systemctl restart slurmctld", "ssh n2 systemctl restart slurmd"]


def test_a_change_is_taken_back_whole_and_half_way(cluster: Cluster) -> None:
    before = cluster.snapshot()
    assert cluster.run("apply").returncode == 0
    assert cluster.run("rollback").returncode == 0
    assert cluster.snapshot() == before
    for fault in ({"BROKEN": "reconfigure*"}, {"CUT_FAILS": "1"}, {"BROKEN": "update*state=resume"}):
        assert cluster.run("apply", **fault).returncode == 1, fault
        assert cluster.run("rollback").returncode == 0, fault
        assert cluster.snapshot() == before, fault
    none = cluster.run("rollback")
    assert (none.returncode, none.stdout) == (0, "not repartitioned, nothing to roll back: n2\n")


def test_a_change_that_stopped_half_way_is_gone_on_with(cluster: Cluster) -> None:
    assert cluster.run("apply", BROKEN="reconfigure*").returncode == 1
    assert cluster.run("apply").returncode == 0
    assert cluster.read("n2/gres") == f"{PLANNED}\n"
    assert cluster.read("n2/state") == "IDLE\n"
    assert cluster.run("rollback").returncode == 0
    assert cluster.read("n2/cut") == cluster.read("n2/gres") == f"{WHOLE}\n"


MORE = "gpu:t:1,gpu:t_1g.10gb:7,gpu:t_1g.20gb:1"


def add_by_hand(cluster: Cluster) -> None:
    cluster.write("n2", gres=f"{MORE}\n", cut=f"{MORE}\n")
    conf = cluster.folder / "slurm.conf"
    conf.write_text(conf.read_text().replace(PLANNED, MORE))


def test_instances_that_others_added_are_listed_and_rolled_back(cluster: Cluster) -> None:
    before = cluster.snapshot()
    assert cluster.run("apply").returncode == 0
    add_by_hand(cluster)
    done = cluster.run("verify", NO_CONFIG="1")
    assert done.stdout == f"n2: IDLE, {MORE} (added by others: 1 × gpu:t_1g.20gb)\n", done.stderr
    done = cluster.run("rollback")
    assert (done.returncode, "also deletes what others added: 1 × gpu:t_1g.20gb" in done.stdout) == (0, True)
    assert cluster.snapshot() == before
    assert cluster.run("apply").returncode == 0
    cluster.write("n2", gres="gpu:t:1,gpu:t_1g.10gb:6\n")
    lacking = cluster.run("verify")
    assert (lacking.returncode, "expected 'gpu:t:1,gpu:t_1g.10gb:7'" in lacking.stderr) == (1, True)
    assert "roll that one back first, or undo" in cluster.run("rollback").stderr


def test_instances_that_a_later_change_added_are_rolled_back_with_it(cluster: Cluster) -> None:
    assert cluster.run("apply").returncode == 0
    add_by_hand(cluster)
    with (cluster.folder.with_suffix(".state") / "gpuplanner" / "changes.csv").open("a") as log:
        log.write("2026-11-03T08:00:00Z,change-20261103T080000Z,n2,2,end\n")
    done = cluster.run("rollback")
    assert (done.returncode, "first (change-20261103T080000Z), or" in done.stderr) == (1, True)
    assert cluster.read("n2/gres") == f"{MORE}\n"


def test_a_rollback_without_the_saved_layouts_is_an_error(cluster: Cluster) -> None:
    assert cluster.run("apply").returncode == 0
    [saved] = cluster.folder.glob("*.before")
    moved = saved.rename(cluster.folder / "moved")
    before = cluster.snapshot()
    for environment, message in (({}, "has no saved layouts"), ({"BROKEN": "show*"}, "Node n2 not found")):
        done = cluster.run("rollback", **environment)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
        assert cluster.snapshot() == before
    assert cluster.run("rollback", STATE=str(moved)).returncode == 0
    assert cluster.read("n2/gres") == f"{WHOLE}\n"


FAR = "20991102T080000Z"


@pytest.fixture
def later(make_plan: Callable[..., pl.DataFrame], tmp_path: Path) -> Cluster:
    """A change that lies far ahead."""
    plan = make_plan([("n2", 0, 0, 8, "gpu", True), ("n2", 0, 8, 24, "1g.10gb:7", True)])
    years = pl.col("slot_start", "slot_end").dt.offset_by("73y")
    files = to_slurm_files(plan.with_columns(years), BOARD, gres_type="t")
    return Cluster(tmp_path, {name.replace(FAR, MORNING): text for name, text in files.items()})


def test_a_reservation_ahead_lasts_as_long_as_the_change_may_take(later: Cluster) -> None:
    """It begins when the change is planned, not when somebody asks for it, and ends by itself."""
    for words in ((), ("2099-11-02T08:00:00Z",)):
        assert later.run("reserve", *words, TIMEOUT_S="3600", REPARTITION_S="300", TZ="UTC").returncode == 0
        assert later.log()[-1] == (
            f"scontrol create reservation reservationname=gpuplanner-change-{FAR} nodes=n2 users=root "
            "starttime=2099-11-02T08:00:00 duration=65 flags=maint,ignore_jobs"
        )
        again = later.run("reserve", *words)
        assert (again.returncode, "reserved already" in again.stdout) == (0, True)
        assert later.run("cancel").returncode == 0
    other = later.run("reserve", "2099-10-26T08:00", TZ="UTC")
    assert (other.returncode, " starttime=2099-10-26T08:00:00 " in later.log()[-1]) == (0, True)
    assert f"reservationname=gpuplanner-change-{FAR}-own " in later.log()[-1]
    assert later.run("cancel").returncode == 0
    assert not (later.folder / "reservation").exists()
    assert later.run("reserve").returncode == later.run("cancel").returncode == 0
    soon = later.run("reserve", IF_DUE="yes", AHEAD_S="3600")
    assert (soon.returncode, "not reserved yet" in soon.stdout) == (0, True)
    assert later.log()[-1] == f"scontrol delete reservationname=gpuplanner-change-{FAR}"
    assert not (later.folder / "reservation").exists()


def test_a_reservation_in_the_past_is_refused(cluster: Cluster) -> None:
    late = cluster.run("reserve")
    assert (late.returncode, "this time is over" in late.stderr) == (1, True)
    assert cluster.run("reserve", IF_DUE="yes").returncode == 0
    assert cluster.log() == []


def test_what_is_not_due_is_left_to_its_time(later: Cluster) -> None:
    """Timers that were missed, or came too early, start nothing."""
    done = later.run("apply", IF_DUE="yes")
    assert (done.returncode, "not due: 2099" in done.stdout) == (0, True)
    assert later.log() == []


def test_running_jobs_are_waited_for_and_then_it_is_given_up(cluster: Cluster) -> None:
    before = cluster.snapshot()
    cluster.write("n2", jobs="17\n18\n")
    done = cluster.run("apply")
    assert done.returncode == 75
    assert (
        "Timed out after 0 s: jobs still running: n2: 17 18. All nodes keep their layout and are resumed."
        in done.stderr
    )
    assert [line.split()[-1] for line in cluster.log()] == ["change-20261102T080000Z", "state=resume"]
    cluster.write("n2", jobs="")
    assert cluster.run("rollback").returncode == 0
    assert cluster.snapshot() == before


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"planned": "gpu:t:1,gpu:t_1g.10gb:6\n"}, "in state IDLE+DRAIN+INVALID_REG"),
        ({"planned": f"{WHOLE}\n"}, "expected 'gpu:t:1,gpu:t_1g.10gb:7'"),
    ],
)
def test_a_node_that_is_not_as_planned_is_not_resumed(cluster: Cluster, fault: dict[str, str], told: str) -> None:
    cluster.write("n2", **fault)
    done = cluster.run("apply")
    assert done.returncode == 1
    assert told in done.stderr
    assert not any("resume" in line for line in cluster.log())


def test_commands_of_the_site_take_the_place_of_ours(cluster: Cluster) -> None:
    site = {"REPARTITION": "ssh root@jump", "INSTALL": "ssh install", "RECONFIGURE": "ssh renew"}
    assert cluster.run("apply", **site).returncode == 1  # these do nothing, so the comparison fails
    lines = f"{cluster.folder}/slurm-{MORNING}.conf"
    assert cluster.log()[1:] == [
        "ssh root@jump n2 1xgpu_7x1g.10gb_2660f7c36d",
        f"ssh install {lines} n2",
        "ssh renew n2",
    ]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"state": "DOWN+DRAIN", "reason": "fan broken"}, "Fix n2: drained by another user or tool: fan broken"),
        ({"state": "IDLE+POWERED_DOWN"}, "run scontrol update nodename=n2 state=power_up"),
        (None, "Node n2 not found"),
        ({"NO_CONFIG": "1"}, "has no configuration 1xgpu_7x1g.10gb_2660f7c36d"),
    ],
)
def test_what_stands_in_the_way_is_said_before_anything_is_done(
    cluster: Cluster, fault: dict[str, str] | None, told: str
) -> None:
    if fault is None:
        shutil.rmtree(cluster.folder / "n2")
    elif "NO_CONFIG" not in fault:
        cluster.write("n2", **fault)
    for verb in ("check", "apply"):
        done = cluster.run(verb, **(fault if fault and "NO_CONFIG" in fault else {}))
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert cluster.log() == []


def test_check_shows_the_jobs_and_the_difference(cluster: Cluster) -> None:
    cluster.write("n2", jobs="17\n")
    done = cluster.run("check")
    assert done.returncode == 0
    assert "n2: running jobs: 17\n" in done.stdout
    assert f"-NodeName=n2 CPUs=8 Gres={WHOLE}\n+NodeName=n2 CPUs=8 Gres={PLANNED}\n" in done.stdout
    assert "File= lines" not in done.stdout
    (cluster.folder / "gres.conf").write_text("# File=/dev/nvidia0\nName=gpu MultipleFiles=/dev/nvidia0\n")
    assert "note: " in cluster.run("check").stdout
    assert "File= lines" not in cluster.run("check", STATIC_GRES="/etc/slurm/gres.conf").stdout
    assert cluster.run().returncode == cluster.run("undo").returncode == 2
    assert cluster.log() == []


CONF = """\
GresTypes=gpu
NodeName=DEFAULT CPUs=8
  NodeName=n1 RealMemory=10 \\
   Gres=gpu:t:2,shard:4 State=UNKNOWN # mine
nodename = n2 gres=gpu:t:2
PartitionName=p Nodes=n[1-2] Default=YES
"""


def install(folder: Path, conf: str, lines: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.conf").write_text(conf)
    (folder / "lines").write_text(lines)
    script = folder / "install-gres.sh"
    script.write_text((resources.files("gpuplanner.report") / "bundle" / script.name).read_text())
    command = ["bash", str(script), *words, str(folder / "lines")]
    environment = {"PATH": os.environ["PATH"], "FILE": str(folder / "mine.conf")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_lines_are_put_into_those_that_are_there(tmp_path: Path) -> None:
    """Appended, they would stand there twice, which ends slurmctld; what is no GPU stays."""
    lines = "NodeName=n1 Gres=gpu:t_1g.10gb:14\nNodeName=n2 Gres=gpu:t:1,gpu:t_3g.40gb:2\n"
    done = install(tmp_path, CONF, lines, "--dry-run")
    assert "+NodeName=n1 RealMemory=10     Gres=gpu:t_1g.10gb:14,shard:4 State=UNKNOWN # mine\n" in done.stdout
    assert (tmp_path / "mine.conf").read_text() == CONF
    assert install(tmp_path, CONF, lines).returncode == 0
    found = (tmp_path / "mine.conf").read_text()
    assert found.splitlines()[3:] == [
        "NodeName=n2 Gres=gpu:t:1,gpu:t_3g.40gb:2",
        "PartitionName=p Nodes=n[1-2] Default=YES",
    ]
    assert install(tmp_path, found, lines).stdout == ""


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ("GresTypes=gpu\nNodeName=n1 Gres=gpu:2\n", "Fix n2: it has no NodeName line here"),
        ("NodeName=n1,n2;reboot Gres=gpu:2\n", "Fix NodeName=n1,n2;reboot: cannot read this expression"),
    ],
)
def test_lines_that_cannot_be_put_anywhere_change_nothing(tmp_path: Path, conf: str, told: str) -> None:
    done = install(tmp_path, conf, "NodeName=n2 Gres=gpu:t_1g.10gb:14\n")
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert (tmp_path / "mine.conf").read_text() == conf


def test_changes_that_are_alike_have_one_script(make_plan: Callable[..., pl.DataFrame]) -> None:
    """Cut by day and whole by night: one script for all mornings, one for all evenings."""
    hours = [(0, 8, "gpu"), (8, 20, "1g.10gb:7"), (20, 32, "gpu"), (32, 44, "1g.10gb:7"), (44, 56, "gpu")]
    rows = [("n1", 0, start, end, layout, layout != "gpu") for start, end, layout in hours]
    scripts = {name: text for name, text in to_slurm_files(make_plan(rows), BOARD).items() if name.startswith("change")}
    assert list(scripts) == [f"change-{MORNING}.sh", "change-20261102T200000Z.sh"]
    assert "for 2026-11-02T20:00:00Z, 2026-11-03T20:00:00Z," in scripts["change-20261102T200000Z.sh"]
    assert "gres[n1]=gpu:nvidia_h100_80gb_hbm3:1\n" in scripts["change-20261102T200000Z.sh"]
