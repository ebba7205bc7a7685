"""A day of jobs through a real Slurm controller under the power-saving block of a pack, beside what the engine says.

``python benchmarks/replay_slurm/replay_slurm.py`` plays one day in about a quarter of an hour and prints a line of its
figures; see ``--help``. One slurmctld and a slurmd a machine run under the one clock that
libfaketime gives them, 120 times as fast as it is, so that every setting of Slurm keeps its real value; jobs sleep,
and machines come and go by the pack's own programs. Needs Debian's slurm-wlm, munge and faketime.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.report.bundle.real import slurm_cluster
from tests.report.bundle.real.slurm_cluster import SlurmCluster, clock, found_by_nvml, missing, until

BOARD, PRODUCT, TYPE = "H100-80GB-SXM5", "NVIDIA H100 80GB HBM3", "nvidia_h100_80gb_hbm3"
GPUS = 8
CUT = ("3g.40gb:1,1g.10gb:4",) * 5 + ("2g.20gb:3,1g.10gb:1",) * 2 + ("1g.10gb:7",)
PROFILES = ("gpu", "1g.10gb", "2g.20gb", "3g.40gb")
CLASSES = ("slice", "1 GPU", "2 to 4", "5 to 8", "gang")
LEAD_S, HOUR_S = 300.0, 3600.0
EASY = """\
SchedulerParameters=bf_job_part_count_reserve=1,bf_continue,bf_interval=10,bf_resolution=10,bf_window=43200,\
sched_interval=10,batch_sched_delay=0
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
MessageTimeout=100
TCPTimeout=100
SlurmdTimeout=0
InactiveLimit=0"""
"""One reservation a partition is EASY; the other keys are patience: a second here is minutes there."""
POWER = """\
#!/bin/bash
# The site's own program: a machine is its slurmd, and is there so long after it was called.
. {folder}/env.sh
verb=$1 machine=$2 node=$3
echo "$(date +%s.%N) $machine $node $verb" >> {folder}/machines.log
if [[ $verb == on ]]; then
  setsid bash -c 'sleep {lead}
    slurmd -D -b -N "$0" -f "{folder}/$0/slurm.conf" < /dev/null >> "{folder}/$0.out" 2>&1 &
    echo $! > "{folder}/$0.number"' "$node" < /dev/null > /dev/null 2>&1 &
elif [[ -s {folder}/$node.number ]]; then
  kill -9 "$(cat {folder}/$node.number)"
  rm {folder}/$node.number
fi
"""


@dataclass(frozen=True)
class Job:
    """What one job asks for, in seconds of the day."""

    name: str
    submit_s: float
    run_s: float
    limit_s: float
    profile: str
    total: int

    @property
    def nodes(self) -> int:
        """Machines that it needs."""
        return -(-self.total // GPUS) if self.profile == "gpu" else 1

    @property
    def size(self) -> int:
        """Its place in the classes."""
        if self.profile != "gpu":
            return 0
        return 1 + int(np.searchsorted([1, 4, GPUS], self.total))


def a_day(seed: int) -> list[Job]:
    """About 240 jobs of a day: slices mostly, whole GPUs by office hours, three gangs of two machines."""
    rng = np.random.default_rng([seed, 25])
    found = []

    def add(count: int, profiles: list[str], totals: list[int], odds: list[float], mean_s: float) -> None:
        for _ in range(count):
            office = rng.random() < 0.75
            submit = rng.normal(13.0, 3.0) if office else rng.uniform(0.5, 23.5)
            submit = float(np.clip(submit, 0.2, 23.5)) * HOUR_S
            run = float(np.clip(rng.lognormal(np.log(mean_s), 0.8), 60.0, 4 * HOUR_S))
            limit = 60.0 * np.ceil(run * rng.choice([1.2, 1.5, 2.0, 4.0]) / 60.0 + 1)
            total = int(rng.choice(totals, p=odds))
            found.append((round(submit), round(run), float(limit), str(rng.choice(profiles)), total))

    add(170, ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"], [1, 2], [0.9, 0.1], 1800.0)
    add(62, ["gpu"], [1, 2, 4, 8], [0.5, 0.25, 0.15, 0.1], 2400.0)
    add(3, ["gpu"], [2 * GPUS], [1.0], 2400.0)
    return [Job(f"j{number}", *row) for number, row in enumerate(sorted(found))]


def plays(folder: Path) -> None:
    """Play what a folder says, under the clock that this program has been given."""
    told = json.loads((folder / "day.json").read_text())
    jobs = [Job(**one) for one in told["jobs"]]
    nodes = [f"n{number + 1}" for number in range(told["machines"])]
    place = folder / "cluster"
    cluster = SlurmCluster(place, nodes, PRODUCT, GPUS, f"Gres=gpu:{TYPE}:{GPUS}", EASY.format(folder=place))
    ports = dict(re.findall(r"NodeName=(\S+) .*?Port=(\d+)", cluster.conf.read_text()))
    for node in nodes:
        cut = f"{node}-cut"
        (place / cut / "spool").mkdir(parents=True)
        for number in range(GPUS * 8):
            (place / cut / f"device{number}").touch()
        slurm_cluster.write_devices(cluster.facts, cut, list(CUT))
        for name in (node, cut):
            (place / name / "gres.conf").write_text("AutoDetect=nvml\n")
            (place / name / "gpuplanner.conf").symlink_to(place / "gpuplanner.conf")
        (place / cut / "slurm.conf").symlink_to(cluster.conf)
    # Machines of other names are all this one.
    loopback = folder / "loopback.py"
    loopback.write_text(
        "import re, sys\nfrom pathlib import Path\n"
        f"ports = {ports!r}\npath = Path(sys.argv[-1])\n"
        "here = lambda m: f'NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[m[1]]}'\n"
        "path.write_text(re.sub(r'NodeHostname=(\\S+) NodeAddr=\\S+', here, path.read_text()))\n"
    )
    programs = folder / "programs"
    programs.mkdir()
    known = {**clock(), "SLURM_CONF": str(cluster.conf), "TZ": "UTC", "PATH": cluster.environment["PATH"]}
    (place / "env.sh").write_text("".join(f"export {name}={value!r}\n" for name, value in known.items()))
    (programs / "power.sh").write_text(POWER.format(folder=place, lead=LEAD_S))
    (place / "machines.log").touch()
    (folder / "ran").mkdir()
    with cluster:
        where = {"PROGRAMS": str(programs), "COPY": f"{sys.executable} {loopback}"}
        cluster.run("bash", folder / "export" / "slurm" / "pools.sh", "apply", **where)

        def asleep() -> bool:
            # A machine is written down as up while it is.
            states = cluster.states()
            off = [node for node in nodes if states.get(node, "").endswith("~")]
            return len(off) == len(nodes) and not any((programs / "up").iterdir())

        until("all machines gone", asleep)
        begin = time.time()
        try:
            sent: list[tuple[Job, subprocess.Popen[bytes]]] = []

            def again() -> None:
                """Send those once more whose sbatch died, as one in a hundred does under a fake clock on busy cores."""
                lost = [job for job, one in sent if one.poll()]
                sent[:] = [pair for pair in sent if pair[1].poll() is None]
                sent.extend((job, _submit(cluster, job, folder)) for job in lost)

            def over() -> bool:
                again()
                return len(list((folder / "ran").glob("*.end"))) >= len(jobs)

            for job in jobs:
                time.sleep(max(0.0, job.submit_s - (time.time() - begin)))
                again()
                sent.append((job, _submit(cluster, job, folder)))
            until("all jobs", over, limit_s=900.0)
            until("all machines gone at the end", asleep)
        finally:
            (folder / "begin").write_text(repr(begin))
            for path in place.glob("*-cut.number"):  # what came as something else
                slurm_cluster.stop(cluster.facts, path.stem)


def _submit(cluster: SlurmCluster, job: Job, folder: Path) -> subprocess.Popen[bytes]:
    kind = TYPE if job.profile == "gpu" else found_by_nvml(PRODUCT, job.profile)
    partition = "whole" if job.profile == "gpu" else "cut"
    ran = folder / "ran" / job.name
    program = f"date +%s.%N > {ran}.begin; sleep {job.run_s}; date +%s.%N > {ran}.end"
    words = [
        "sbatch", "--quiet", f"--job-name={job.name}", f"--partition=gpuplanner-{partition}", f"--nodes={job.nodes}",
        f"--ntasks={job.nodes}", f"--gres=gpu:{kind}:{job.total // job.nodes}", f"--time={int(job.limit_s // 60)}",
        "--output=/dev/null", "--chdir=/", "--wait-all-nodes=1", f"--wrap={program}",
    ]  # fmt: skip
    with (folder / "sbatch.log").open("ab") as log:
        return subprocess.Popen(words, env=cluster.environment, stdout=log, stderr=log)


def measured(folder: Path) -> tuple[dict[str, float], list[tuple[str, float, float]]]:
    """How long each job waited by its name, and (machine, from, until) of each time on [s of the day].

    From submission to start as slurmctld noted them: what sbatch and slurmd take here is real time, made longer.
    """
    begin = float((folder / "begin").read_text())
    noted = {}
    for line in (folder / "cluster" / "jobcomp.log").read_text().splitlines():
        of = dict(word.split("=", 1) for word in line.split() if "=" in word)
        assert of["JobState"] in ("COMPLETED", "REQUEUED", "NODE_FAIL"), line
        submit, start = (datetime.fromisoformat(of[name]) for name in ("SubmitTime", "StartTime"))
        noted[of["Name"]] = (start - submit).total_seconds()
    on: dict[str, float] = {}
    spells = []
    for line in (folder / "cluster" / "machines.log").read_text().splitlines():
        when, machine, _, verb = line.split()
        if verb == "on":
            on[machine] = float(when) - begin
        elif machine in on:
            spells.append((machine, on.pop(machine), float(when) - begin))
    return noted, spells


def as_played(jobs: list[Job], machines: int, idle_s: float, *, queue: str, look_s: float, placement: str):
    """The same day in the engine: start of each job, and what was on."""
    from gpuplanner.hardware.actuators import find_abilities
    from gpuplanner.hardware.gpu_models import load_gpu_model
    from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeRequests
    from gpuplanner.simulator.simulation_run import simulate_requests

    gpu_model = load_gpu_model(BOARD)
    able = find_abilities("slurm", gpu_model)
    cut = [0] * len(PROFILES)
    for layout in CUT:
        for part in layout.split(","):
            profile, count = part.split(":")
            cut[PROFILES.index(profile)] += int(count)
    whole = [GPUS] + [0] * (len(PROFILES) - 1)
    weights = [1.0, *(gpu_model.gpu_fraction(name) for name in PROFILES[1:])]
    fleet = NodeFleet(PROFILES, [GPUS] * machines, [[whole, cut]] * machines, [-1] * machines, weights)
    columns = [[getattr(job, name) for job in jobs] for name in ("submit_s", "submit_s", "run_s", "limit_s")]
    requests = NodeRequests(
        *columns,
        [PROFILES.index(job.profile) for job in jobs],
        [job.total for job in jobs],
        [job.nodes for job in jobs],
    )
    switching = NodeAutoscaling(idle_s, LEAD_S + able.scan_s, (0, 0), 0.0, look_s)
    return simulate_requests(requests, fleet, queue=queue, placement=placement, switching=switching)


def compare(folder: Path, jobs: list[Job], machines: int, idle_s: float) -> list[str]:
    """Lines of a table: what Slurm did, and what the engine says of it by its rules for Slurm and without them."""
    waits, spells = measured(folder)
    jobs = [job for job in jobs if job.name in waits]
    ready = np.array([job.submit_s for job in jobs])
    size = np.array([job.size for job in jobs])
    hours = sum(until_s - from_s for _, from_s, until_s in spells) / HOUR_S
    late = np.array([waits[job.name] for job in jobs]) / 60.0
    lines = [_line(f"Slurm, {len(jobs)} jobs", hours, None, len(spells), late, size, None)]
    for name, queue, look_s, placement in (
        ("engine", "slurm", 30.0, "lowest"),
        ("engine, as elsewhere", "easy", 0.0, "fullest"),
    ):
        outcome = as_played(jobs, machines, idle_s, queue=queue, look_s=look_s, placement=placement)
        end = max(until_s for _, _, until_s in spells)
        since, gone = (outcome.power_intervals[column].to_numpy() for column in ("from_s", "until_s"))
        mine = float((np.minimum(gone, end) - np.maximum(since, 0.0)).sum()) / HOUR_S
        wait = (outcome.start_s - ready) / 60.0
        lines.append(_line(name, mine, hours, len(since), wait, size, late))
    return lines


def _line(name, hours, real_hours, wakes, late, size, real_late) -> str:
    by_class = []
    for number in range(len(CLASSES)):
        mine = late[size == number]
        by_class.append(f"{mine.mean():.1f}, {np.quantile(mine, 0.95, method='inverted_cdf'):.1f}")
    off = "" if real_hours is None else f" ({100 * (hours - real_hours) / real_hours:+.1f} %)"
    other = "–" if real_late is None else str(int((np.abs(late - real_late) > 1.0).sum()))
    return f"| {name} | {hours:.1f}{off} | {wakes} | {' | '.join(by_class)} | {other} |"


def main() -> int:
    """Make a day and its pack, play it, and say how far the engine is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the day")
    parser.add_argument("--idle", type=float, default=600.0, help="s without a job until a machine goes")
    parser.add_argument("--machines", type=int, default=8, help="8 have room, 4 do not")
    parser.add_argument("--speed", type=float, default=120.0, help="times as fast as the clock")
    parser.add_argument("--folder", type=Path, help="where all is kept; a new one that is removed, unless it is named")
    parser.add_argument("--again", action="store_true", help="compare what a folder holds, without playing it again")
    given = parser.parse_args()
    if (why := missing()) or not shutil.which("faketime"):
        sys.stderr.write(f"{why or 'not installed: faketime'}\n")
        return 7
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="replay-"))).resolve()
    jobs = a_day(given.seed)
    if not given.again:
        _prepare(folder, jobs, given.machines, given.idle)
        environment = os.environ | {"FAKETIME_DONT_RESET": "1", "REPLAY_SPEED": str(given.speed), "TZ": "UTC"}
        words = ["faketime", "-f", f"@2026-03-02 00:00:00 x{given.speed:g}", sys.executable, __file__]
        with (folder / "play.log").open("wb") as log:
            done = subprocess.run([*words, "--play", folder], env=environment, stdout=log, stderr=log, check=False)
        if done.returncode:
            sys.stderr.write((folder / "play.log").read_text())
            return 1
    head = f"seed {given.seed}, idle {given.idle:.0f} s, {given.machines} machines, {len(jobs)} jobs"
    sys.stdout.write("\n".join([f"## {head}", *compare(folder, jobs, given.machines, given.idle)]) + "\n")
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


def _prepare(folder: Path, jobs: list[Job], machines: int, idle_s: float) -> None:
    """Write the day, and the pack of its machines."""
    from gpuplanner.decision.policy_layouts import FleetRules, PoolRule
    from gpuplanner.hardware.repartitioning_cost import ChangeCost
    from gpuplanner.report.change_bundle import make_bundle
    from gpuplanner.report.change_bundle_parts import PageText
    from gpuplanner.simulator.scheduling_rules import Drain

    nodes = tuple(f"n{number + 1}" for number in range(machines))
    whole = ("gpu",) * GPUS
    pools = tuple(PoolRule(name, how, machines, nodes, machines) for name, how in (("whole", whole), ("cut", CUT)))
    rules = FleetRules(
        "autoscaled_pools", "slurm", BOARD, pools, machines, (PoolRule("today-1", whole, machines, nodes),),
        idle_s=idle_s,
        lead_s=LEAD_S, lead_slow_s=3 * LEAD_S, placement="lowest", begins="2026-03-02T00:00:00+00:00",
    )  # fmt: skip
    pack = make_bundle(
        rules, PageText("Power nodes down.", "node pools"), ChangeCost.from_catalogue(BOARD, "slurm"), Drain()
    )
    for name, text in pack.files.items():
        (folder / "export" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "export" / name).write_text(text)
    told = {"machines": machines, "jobs": [asdict(job) for job in jobs]}
    (folder / "day.json").write_text(json.dumps(told))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    if sys.argv[1:2] == ["--play"]:
        plays(Path(sys.argv[2]))
        sys.exit(0)
    sys.exit(main())
