"""A made-up Slurm cluster with cut boards, as its tools print it; what was held is known from the drawing.

Jobs are drawn lane by lane: a lane is a set of devices on one node that one job after another holds. So no device is
ever held twice, and the truth needs no reader: GPUs x hours, an instance counting its slices of seven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

OSLO = ZoneInfo("Europe/Oslo")


@dataclass(frozen=True)
class Held:
    """Devices of one kind that a job held: how many, and of which profile (None: whole GPUs)."""

    number: int
    profile: str | None = None

    @property
    def gpus(self) -> float:
        """Share of a board, all together."""
        size = 7 if self.profile is None else int(self.profile.split("g.")[0])
        return self.number * size / 7


@dataclass(frozen=True)
class Job:
    """One attempt: who, where, when, and what it held."""

    name: str
    tenant: str
    node: str
    submit: datetime
    start: datetime
    end: datetime
    runs: bool
    held: tuple[Held, ...]

    @property
    def gpus(self) -> float:
        """Share of boards."""
        return sum(each.gpus for each in self.held)


@dataclass(frozen=True)
class Cluster:
    """Files of a cluster, and the truth."""

    jobs: list[Job]
    begin: datetime
    end: datetime
    gpus: int
    text: str
    nodes: dict[str, str]
    """Name of a form of the node list → its text."""

    def gpu_hours(self) -> float:
        """GPU-hours held."""
        return sum(job.gpus * (job.end - job.start).total_seconds() for job in self.jobs) / 3600

    def most_boards(self) -> int:
        """Boards that were needed at once, at least: whole ones, and the compute slices of cut ones in sevenths."""
        most = 0
        for at in sorted({job.start for job in self.jobs}):
            held = [each for job in self.jobs if job.start <= at < job.end for each in job.held]
            whole = sum(each.gpus for each in held if each.profile is None)
            cut = sum(each.gpus for each in held if each.profile is not None)
            most = max(most, math.ceil(whole - 1e-9) + math.ceil(cut - 1e-9))
        return most


def lanes_of(
    lanes: list[tuple[str, tuple[Held, ...]]], begin: datetime, end: datetime, rng: np.random.Generator
) -> list[Job]:
    """Jobs of all lanes: one after another with pauses, the last of some lanes still running at the end."""
    jobs = []
    for number, (node, held) in enumerate(lanes):
        clock, count = begin + timedelta(minutes=int(rng.integers(0, 600))), 0
        while True:
            submit = clock
            start = submit + timedelta(seconds=int(rng.exponential(900)))
            stop = start + timedelta(seconds=int(60 + rng.exponential(30_000)))
            if start >= end - timedelta(minutes=5):
                break
            runs = stop >= end
            name, tenant = f"{number}-{count}", f"group{number % 3}"
            jobs.append(Job(name, tenant, node, submit, start, min(stop, end), runs, held))
            clock, count = stop + timedelta(seconds=int(rng.exponential(6_000))), count + 1
    return jobs


def made_up_cluster(seed: int = 1) -> Cluster:
    """Six nodes of four A100-40GB, eight GPUs of them cut into seven 1g, through an October of Oslo."""
    rng = np.random.default_rng(seed)
    one = (Held(1),)
    small = (Held(1, "1g.5gb"),)
    lanes = [("g1", small)] * 24 + [("g1", (Held(4, "1g.5gb"),))]
    for node in ("g2", "g3"):
        lanes += [(node, small)] * 11 + [(node, (Held(2), Held(3, "1g.5gb")))]
    lanes += [("g4", (Held(4),)), ("g5", (Held(2),)), ("g5", one), ("g5", one), *[("g6", one)] * 4]
    begin = datetime(2025, 10, 1, tzinfo=OSLO).astimezone(UTC)
    end = datetime(2025, 11, 1, tzinfo=OSLO).astimezone(UTC)
    jobs = [_out_of_the_second_hour(job) for job in lanes_of(lanes, begin, end, rng)]
    cut = ["1g.5gb:7"] * 4
    layouts = {"g1": cut, **{name: ["gpu", "gpu", *cut[:2]] for name in ("g2", "g3")}}
    names = [f"g{number}" for number in range(1, 7)]
    header = "node,gpus,gpu_model,rack,mig_enabled,layouts,installed,retired\n"
    rows = [
        f"{name},4,A100,r1,{'true' if name in layouts else 'false'},{';'.join(layouts.get(name, []))},2025-01-01,\n"
        for name in names
    ]
    gres = {"g1": "gpu:a100_1g.5gb:28(S:0-1)", **dict.fromkeys(("g2", "g3"), "gpu:a100:2(S:0),gpu:a100_1g.5gb:14(S:1)")}
    scontrol = [
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32\n   Gres={gres.get(name, 'gpu:a100:4(S:0-1)')}\n"
        "   State=MIXED ThreadsPerCore=1\n"
        for name in names
    ]
    sinfo = "NODELIST GRES\n" + "".join(f"{name} {gres.get(name, 'gpu:a100:4')}\n" for name in names)
    nodes = {"csv": header + "".join(rows), "scontrol": "\n".join(scontrol), "sinfo": sinfo}
    return Cluster(jobs, min(job.submit for job in jobs), end, 24, _sacct(jobs, end), nodes)


def _out_of_the_second_hour(job: Job) -> Job:
    """Leave the repeated hour of the night of 26 October to the clock that strikes it first.

    A local time in it may be either; that the reader takes the first one that fits is another test's matter.
    """
    first = datetime(2025, 10, 26, 1, tzinfo=UTC)

    def moved(at: datetime) -> datetime:
        return first + timedelta(hours=1) if first <= at < first + timedelta(hours=1) else at

    return Job(job.name, job.tenant, job.node, moved(job.submit), moved(job.start), moved(job.end), job.runs, job.held)


def _sacct(jobs: list[Job], end: datetime) -> str:
    """Text of sacct --duplicates --parsable2: arrays, steps, requeued and waiting jobs too."""
    lines = ["JobID|JobIDRaw|Account|State|Submit|Start|End|ElapsedRaw|NodeList|ReqTRES|AllocTRES"]

    def local(at: datetime) -> str:
        return at.astimezone(OSLO).strftime("%Y-%m-%dT%H:%M:%S")

    for job in sorted(jobs, key=lambda job: (job.submit, job.name)):
        lane, count = job.name.split("-")
        number = 1000 * (int(lane) + 1) + int(count) // 2
        # Every other job of a lane is the second try of the one before it: requeued, so under the same id.
        again = int(lane) % 5 == 0
        whole_id = f"{1000 * (int(lane) + 1)}_{count}" if not again else str(number)
        state = "RUNNING" if job.runs else "NODE_FAIL" if again and int(count) % 2 == 0 else "COMPLETED"
        counts = {f"a100{'_' + each.profile if each.profile else ''}": each.number for each in job.held}
        tres = ["billing=8", "cpu=8", f"gres/gpu={sum(counts.values())}"]
        tres += [f"gres/gpu:{word}={number}" for word, number in counts.items()] + ["node=1"]
        elapsed = int((job.end - job.start).total_seconds())
        shown = "Unknown" if job.runs else local(job.end)
        row = [whole_id, str(number), job.tenant, state, local(job.submit), local(job.start), shown]
        lines.append("|".join([*row, str(elapsed), job.node, "", ",".join(tres)]))
        lines.append(lines[-1].replace(f"{whole_id}|{number}", f"{whole_id}.batch|{number}.batch"))
    waits = local(end - timedelta(hours=2))
    lines.append(f"9000000_[1-4]|9000000|group0|PENDING|{waits}|Unknown|Unknown|0|None assigned|gres/gpu:a100=1|")
    return "\n".join(lines) + "\n"
