"""Lines of waiting jobs: first come by number, and the first among those with a short limit, in logarithmic time.

The first job of a line, its head, stands for itself; the others stand in a tree over all jobs that will ever be
in the line, lowest number first. A knot holds the least limit of the waiting jobs below it, infinite if none
waits. So a line that is mostly empty costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.lab.gangs.arrays import NOBODY, Gangs
from gpuplanner.simulate.jit import compiled

FOR_EVER = np.finfo(np.float64).max


@compiled
def next_instant(w: Gangs) -> float:
    """When a job ends or comes, or a wait is over; infinite if nothing more happens."""
    s = w.status[0]
    now: float = s.wake
    if s.running:
        now = min(now, w.ends[0].at)
    if s.arrived < len(w.jobs):
        now = min(now, w.jobs[w.arrivals[s.arrived]].submit)
    return now


@compiled
def let_arrive(w: Gangs) -> None:
    """Let the jobs wait that have come."""
    s = w.status[0]
    while s.arrived < len(w.jobs) and w.jobs[w.arrivals[s.arrived]].submit <= s.now:
        job = w.arrivals[s.arrived]
        s.arrived += 1
        w.jobs[job].since = s.now
        join_line(w, job)


@compiled
def join_line(w: Gangs, job: int) -> None:
    """Let a job wait at its place in its line."""
    line = w.lines[w.jobs[job].line]
    if job < line.head:
        line.head, job = job, line.head
    if job == NOBODY:
        return
    limit, knot = w.jobs[job].limit, line.leaves + w.jobs[job].place
    while knot and w.shortest[line.tree + knot] > limit:
        w.shortest[line.tree + knot] = limit
        knot //= 2


@compiled
def leave_line(w: Gangs, job: int) -> None:
    """Take a waiting job out of its line."""
    line = w.lines[w.jobs[job].line]
    if job == line.head:
        job = first_behind(w, w.jobs[job].line, 0.0, FOR_EVER)
        line.head = job
        if job == NOBODY:
            return
    knot = line.leaves + w.jobs[job].place
    w.shortest[line.tree + knot] = np.inf
    while knot > 1:
        knot //= 2
        least = min(w.shortest[line.tree + 2 * knot], w.shortest[line.tree + 2 * knot + 1])
        if least == w.shortest[line.tree + knot]:
            return
        w.shortest[line.tree + knot] = least


@compiled
def first_by(w: Gangs, number: int, start: float, latest: float) -> int:
    """First waiting job of a line that, started then, is by its limit over at the latest; NOBODY if none."""
    head: int = w.lines[number].head
    if head != NOBODY and start + w.jobs[head].limit <= latest:
        return head
    return first_behind(w, number, start, latest)


@compiled
def first_behind(w: Gangs, number: int, start: float, latest: float) -> int:
    """The same, of the jobs behind the head."""
    line = w.lines[number]
    if start + w.shortest[line.tree + 1] > latest:
        return NOBODY
    knot = 1
    while knot < line.leaves:
        knot *= 2
        if start + w.shortest[line.tree + knot] > latest:
            knot += 1
    job: int = w.members[line.first + knot - line.leaves]
    return job
