"""A generated cluster: what was planned, what came of it, and the files that tell of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.clusters.demand import HOUR, WEEK
from tests.clusters.dumps import A100_40, A100_80, H100_80, Board, nodes_json, pods, sacct, scontrol
from tests.clusters.model import WHOLE, Job, Node, Played, play

BOARDS: Mapping[str, Board] = {"A100-40GB": A100_40, "A100-80GB": A100_80, "H100-80GB": H100_80}

WAITED_S = 600
"""Seconds after which a job counts as one that waited."""


@dataclass(frozen=True)
class Cluster:
    """Nodes, jobs of a span, and the instant of the dump, in seconds from a Monday, 00:00 UTC.

    Attributes
    ----------
    name : str
        Also of its folder.
    source : str
        ``slurm`` or ``kubernetes``.
    gpu_model : str
        As in the catalogue, without the form factor.
    nodes : tuple of Node
        Today's fleet.
    jobs : tuple of Job
        Those submitted before the dump.
    dump : int
        When the files were written.
    quotas : mapping of str to int
        Account → devices that it may hold at once.
    with_nodes : bool
        If there is a list of nodes beside the jobs.
    later : tuple of Job
        What the same demand submits after the dump, where that is planted too.
    arrays : mapping of int to str
        Number of a job → its id as a task of an array.
    """

    name: str
    source: str
    gpu_model: str
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    dump: int
    quotas: Mapping[str, int] = field(default_factory=dict)
    with_nodes: bool = True
    later: tuple[Job, ...] = ()
    arrays: Mapping[int, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def played(self) -> Played:
        """Today's fleet up to the dump."""
        return play(self.jobs, self.nodes, until=self.dump, quotas=self.quotas)

    @cached_property
    def to_the_end(self) -> Played:
        """Today's fleet until all jobs are done, without new ones."""
        return play(self.jobs, self.nodes, quotas=self.quotas)

    @property
    def judged(self) -> tuple[int, int]:
        """The second half of the span."""
        return self.dump // 2, self.dump

    def files(self) -> dict[str, str]:
        """Name → text of each file."""
        gpu_model = BOARDS[self.gpu_model]
        if self.source == "slurm":
            text = sacct(self.jobs, self.played, self.nodes, gpu_model, self.dump, array_of=self.arrays)
            listed = {"nodes.txt": scontrol(self.nodes, gpu_model, self.dump)}
            return {"sacct.txt": text, **(listed if self.with_nodes else {})}
        text = pods(self.jobs, self.played, self.nodes, self.dump)
        listed = {"nodes.json": nodes_json(self.nodes, gpu_model, self.dump)}
        return {"pods.json": text, **(listed if self.with_nodes else {})}

    def planted(self) -> dict[str, Any]:
        """Counts that whoever reads the files must find again."""
        ran = [(job, at) for job, at in zip(self.jobs, self.played.start, strict=True) if at is not None]
        shown = [
            job
            for job, over in zip(self.jobs, self.played.cancelled, strict=True)
            if over is None or self.source == "slurm"
        ]
        return {
            "jobs": len(shown),
            "started": len(ran),
            "running": sum(at + job.run > self.dump for job, at in ran),
            "pending": sum(
                at is None and over is None for at, over in zip(self.played.start, self.played.cancelled, strict=True)
            ),
            "device_hours": round(
                sum(min(at + job.run, self.dump) - at for job, at in ran for _ in range(job.devices)) / HOUR, 3
            ),
            "nodes": len(self.nodes),
            "gpus": self.gpus,
            "weeks": round(self.dump / WEEK, 2),
        }

    def waits(self) -> dict[str, float]:
        """Shares of all jobs that waited, and that waited so long while fewer devices were free than they asked for."""
        waited = short = quota = 0
        free = self._free()
        for place, job in enumerate(self.jobs):
            at = self.played.start[place]
            since = self.played.eligible[place]
            until = self.dump if at is None else at
            if since is None or until - since <= WAITED_S:
                continue
            waited += 1
            times, left = free[job.kind]
            first = max(0, bisect_left(times, since + 1) - 1)
            seconds = 0
            for step in range(first, len(times)):
                if times[step] >= until:
                    break
                after = times[step + 1] if step + 1 < len(times) else until
                if left[step] < job.devices:
                    seconds += min(after, until) - max(times[step], since)
            short += seconds > WAITED_S
            quota += place in self.played.by_quota
        number = len(self.jobs)
        return {"waited": waited / number, "short_by_count": short / number, "held_by_quota": quota / number}

    def ready_as_seen(self) -> list[int | None]:
        """When the request of each started job last began to fit nowhere in what was held, on the nodes there are.

        Only the spell that ends at the real start counts, a fit of up to a minute before it being the scheduler's; else
        the real start. None for jobs that have not started.
        """
        changes: list[tuple[int, int, int, str, int]] = []
        for job, at, places in zip(self.jobs, self.played.start, self.played.nodes, strict=True):
            for node in places if at is not None else ():
                changes.append((at or 0, 1, node, job.kind, -job.each))
                changes.append(((at or 0) + job.run, 0, node, job.kind, job.each))
        changes.sort()
        free = [node.devices() for node in self.nodes]
        sizes = {(job.kind, job.each, job.nodes) for job in self.jobs}
        times, fits = [-1], {size: [True] for size in sizes}
        for place, (at, _, node, kind, number) in enumerate(changes):
            free[node][kind] += number
            if place + 1 == len(changes) or changes[place + 1][0] != at:
                times.append(at)
                for (what, each, nodes), seen in fits.items():
                    seen.append(sum(have.get(what, 0) >= each for have in free) >= nodes)
        found: list[int | None] = []
        for job, at in zip(self.jobs, self.played.start, strict=True):
            if at is None or at <= job.submit:
                found.append(at)
                continue
            seen = fits[job.kind, job.each, job.nodes]
            step = bisect_left(times, at) - 1
            while seen[step] and times[step] >= at - 60 and times[step] > job.submit:
                step -= 1
            if seen[step]:
                found.append(at)
                continue
            while not seen[step] and times[step] > job.submit:
                step -= 1
            found.append(max(job.submit, times[step + 1] if seen[step] else times[step]))
        return found

    def busy(self, kind: str = WHOLE) -> tuple[float, int]:
        """Devices of a kind that are held: mean and most, over the judged span."""
        begin, end = self.judged
        total = sum(node.devices().get(kind, 0) for node in self.nodes)
        times, left = self._free()[kind]
        area = most = 0
        for step, at in enumerate(times):
            after = times[step + 1] if step + 1 < len(times) else end
            width = min(after, end) - max(at, begin)
            if width > 0:
                area += width * (total - left[step])
                most = max(most, total - left[step])
        return area / (end - begin), most

    def _free(self) -> dict[str, tuple[list[int], list[int]]]:
        """Kind → times, and free devices from each of them on."""
        changes: dict[str, dict[int, int]] = {}
        for node in self.nodes:
            for kind, number in node.devices().items():
                steps = changes.setdefault(kind, {0: 0})
                steps[0] += number
        for job, at in zip(self.jobs, self.played.start, strict=True):
            if at is not None:
                steps = changes.setdefault(job.kind, {0: 0})
                steps[at] = steps.get(at, 0) - job.devices
                steps[at + job.run] = steps.get(at + job.run, 0) + job.devices
        found = {}
        for kind, steps in changes.items():
            times, left, now = sorted(steps), [], 0
            for at in times:
                now += steps[at]
                left.append(now)
            found[kind] = times, left
        return found
