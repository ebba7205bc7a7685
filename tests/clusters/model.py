"""A first-come cluster in plain Python: nodes, jobs, and when each job starts; shares no code with the package."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WHOLE = "gpu"
"""Kind of device of a GPU that is not cut; the other kinds are profiles."""

UNCUT = "whole"
"""Layout of a GPU that is not cut."""


@dataclass(frozen=True)
class Node:
    """A node: its name, and for each of its GPUs how it is cut: ``whole``, or ``4g.20gb:1,3g.20gb:1``."""

    name: str
    layouts: tuple[str, ...]

    @property
    def gpus(self) -> int:
        return len(self.layouts)

    def devices(self) -> dict[str, int]:
        """Kind → how many of it the node has."""
        found: dict[str, int] = {}
        for layout in self.layouts:
            for kind, number in parse_layout(layout).items():
                found[kind] = found.get(kind, 0) + number
        return found


def parse_layout(layout: str) -> dict[str, int]:
    if layout == UNCUT:
        return {WHOLE: 1}
    return {kind: int(number) for kind, number in (part.split(":") for part in layout.split(","))}


@dataclass(frozen=True)
class Job:
    """A job: `each` devices of one kind on each of `nodes` nodes; times in seconds from the begin of the span.

    `after` is the number of a job that must have ended; `begin` the time before which it may not start. A job that
    still waits `patience` seconds after submission is cancelled. `end` says how it ends once it has run.
    """

    number: int
    submit: int
    run: int
    limit: int
    kind: str = WHOLE
    each: int = 1
    nodes: int = 1
    account: str = "lab"
    user: str = "u1"
    name: str = "job"
    end: str = "COMPLETED"
    after: int | None = None
    begin: int = 0
    patience: int | None = None

    @property
    def devices(self) -> int:
        return self.each * self.nodes


@dataclass
class Played:
    """What came of the jobs, in their order: None where a job has not started or never became eligible."""

    start: list[int | None]
    nodes: list[tuple[int, ...]]
    eligible: list[int | None]
    cancelled: list[int | None]
    by_quota: set[int]
    """Jobs (by position) that a quota kept waiting at some time."""
    whole: bool = True
    """False if the play was given up because too many jobs waited."""


END, ARRIVAL, GIVES_UP = 0, 1, 2


@dataclass
class _Reservation:
    """The first job of a kind that does not fit: from when, on which nodes, and what may be used beside it."""

    time: int
    spare: dict[int, int]


def play(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    until: int | None = None,
    quotas: Mapping[str, int] | None = None,
    most_waiting: int | None = None,
) -> Played:
    """Play jobs first come, first served, with EASY backfill by time limits for each kind of device.

    Parameters
    ----------
    jobs : sequence of Job
        In any order.
    nodes : sequence of Node
        The cluster. A job takes the fullest nodes that hold it.
    until : int, optional
        The last second played; else until nothing is left to happen.
    quotas : mapping of str to int, optional
        Account → devices that it may hold at once; a job beyond it lets others pass.
    most_waiting : int, optional
        Give up once more jobs than this wait.
    """
    return _Play(jobs, nodes, quotas or {}).run(until, most_waiting)


class _Play:
    def __init__(self, jobs: Sequence[Job], nodes: Sequence[Node], quotas: Mapping[str, int]) -> None:
        self.jobs, self.quotas = jobs, quotas
        kinds = {job.kind for job in jobs}
        devices = [node.devices() for node in nodes]
        self.free = {kind: [each.get(kind, 0) for each in devices] for kind in kinds}
        self.size = {kind: list(free) for kind, free in self.free.items()}
        self.running: dict[tuple[str, int], dict[int, int]] = {
            (kind, node): {} for kind in kinds for node in range(len(nodes))
        }
        self.held: dict[str, int] = {}
        self.waiting: list[int] = []
        self.first: dict[str, _Reservation] = {}
        number = len(jobs)
        self.out = Played([None] * number, [()] * number, [None] * number, [None] * number, set())
        places = {job.number: place for place, job in enumerate(jobs)}
        self.followers: dict[int, list[int]] = {}
        self.events: list[tuple[int, int, int]] = []
        for place, job in enumerate(jobs):
            if job.after is not None and job.after in places:
                self.followers.setdefault(places[job.after], []).append(place)
            else:
                self.events.append((max(job.submit, job.begin), ARRIVAL, place))
            if job.patience is not None:
                self.events.append((job.submit + job.patience, GIVES_UP, place))
        heapq.heapify(self.events)

    def run(self, until: int | None, most_waiting: int | None) -> Played:
        events, out = self.events, self.out
        while events and (until is None or events[0][0] <= until):
            now = events[0][0]
            came: list[int] = []
            again = False
            while events and events[0][0] == now:
                _, what, place = heapq.heappop(events)
                if what == END:
                    self._free(place, now)
                    again = True
                elif what == ARRIVAL and out.cancelled[place] is None:
                    out.eligible[place] = now
                    came.append(place)
                elif what == GIVES_UP and out.start[place] is None:
                    out.cancelled[place] = now
                    if place in self.waiting:
                        self.waiting.remove(place)
                        again = True
            came.sort(key=lambda place: self.jobs[place].number)
            if again:
                # What was reserved may come sooner, so all that wait are looked at anew.
                self.waiting += came
                self.first = {}
                self.waiting = self._pass(self.waiting, now)
            else:
                self.waiting += self._pass(came, now)
            if most_waiting is not None and len(self.waiting) > most_waiting:
                out.whole = False
                return out
        return out

    def _pass(self, waiting: Sequence[int], now: int) -> list[int]:
        """Start what may start; the rest, in order."""
        rest = []
        full: set[tuple[str, int, int]] = set()
        for place in waiting:
            job = self.jobs[place]
            quota = self.quotas.get(job.account)
            if quota is not None and self.held.get(job.account, 0) + job.devices > quota:
                self.out.by_quota.add(place)
                rest.append(place)
                continue
            size = (job.kind, job.each, job.nodes)
            found = None if size in full else self._place(job, now)
            if found is not None:
                self._start(place, found, now)
                continue
            rest.append(place)
            if job.kind not in self.first:
                reservation = self._reserve(job, now)
                if reservation is not None:
                    self.first[job.kind] = reservation
            if sum(free >= job.each for free in self.free[job.kind]) < job.nodes:
                full.add(size)
        return rest

    def _place(self, job: Job, now: int) -> list[int] | None:
        first = self.first.get(job.kind)
        if first is not None and now + job.limit <= first.time:
            first = None
        fit = [
            (free, node)
            for node, free in enumerate(self.free[job.kind])
            if free >= job.each and (first is None or first.spare.get(node, free) >= job.each)
        ]
        if len(fit) < job.nodes:
            return None
        return [node for _, node in sorted(fit)[: job.nodes]]

    def _reserve(self, job: Job, now: int) -> _Reservation | None:
        """Where and when a job fits by the limits of those that run; None if it never does."""
        when: list[tuple[int, int]] = []
        for node, free in enumerate(self.free[job.kind]):
            if self.size[job.kind][node] < job.each:
                continue
            at = now
            for place, ends in sorted(self.running[job.kind, node].items(), key=lambda item: item[1]):
                if free >= job.each:
                    break
                free += self.jobs[place].each
                at = ends
            when.append((at, node))
        when.sort()
        if len(when) < job.nodes:
            return None
        time = when[job.nodes - 1][0]
        spare = {}
        for _, node in when[: job.nodes]:
            back = sum(self.jobs[place].each for place, ends in self.running[job.kind, node].items() if ends <= time)
            spare[node] = self.free[job.kind][node] + back - job.each
        return _Reservation(time, spare)

    def _start(self, place: int, found: Sequence[int], now: int) -> None:
        job = self.jobs[place]
        first = self.first.get(job.kind)
        for node in found:
            self.free[job.kind][node] -= job.each
            self.running[job.kind, node][place] = now + job.limit
            if first is not None and node in first.spare and now + job.limit > first.time:
                first.spare[node] -= job.each
        self.held[job.account] = self.held.get(job.account, 0) + job.devices
        self.out.start[place] = now
        self.out.nodes[place] = tuple(sorted(found))
        heapq.heappush(self.events, (now + job.run, END, place))

    def _free(self, place: int, now: int) -> None:
        job = self.jobs[place]
        for node in self.out.nodes[place]:
            self.free[job.kind][node] += job.each
            del self.running[job.kind, node][place]
        self.held[job.account] -= job.devices
        for follower in self.followers.get(place, ()):
            earliest = max(now, self.jobs[follower].submit, self.jobs[follower].begin)
            heapq.heappush(self.events, (earliest, ARRIVAL, follower))
