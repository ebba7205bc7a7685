"""The event loop of conservative backfill: every waiting job has nodes and an instant reserved.

A job that arrives reserves the earliest place that delays nobody: of the nodes that have room for all of its
time limit the one with the least room, lowest number first. One larger than a node reserves wholly idle nodes,
and for what remains one more node by the same rule. When a job ends before its limit, the reservations are
brought forward one by one in the order of the queue; none is ever put back.

Time to come is cut into pieces, each with the room of every node; the last piece has no end. That says all, so
idle GPUs are not counted besides. A job without duration holds nothing, so that others may reserve over it; it
starts when promised all the same.

References
----------
A. Mu'alem and D. Feitelson, Utilization, predictability, workloads, and user runtime estimates in scheduling the
IBM SP2 with backfilling, IEEE TPDS 12 (2001).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuplanner.lab.gangs.arrays import Gangs
from gpuplanner.lab.gangs.holding import begin_run, end_run
from gpuplanner.lab.gangs.waiting_lines import next_instant
from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.world import NONE, Floats, Ints

FEW = 64
"""Reserved of time to begin with; more are made when they are needed."""


class Reserved(NamedTuple):
    """The time to come, in pieces: what the loop reads and writes besides the gangs."""

    at: Floats  # [piece] when it begins
    room: NDArray[np.int32]  # [piece, node] GPUs that nobody runs on or has reserved
    sequence: Ints  # [rank] pieces in order of time, then unused ones
    clear: Ints  # [node] from which piece on it has room for what remains of a job beside whole nodes
    empty: Ints  # [node] from which piece on it is wholly idle
    due: Floats  # [job] when it is to start
    number: Ints  # [0] pieces in use; [1] jobs that wait


def to_reserved(gangs: Gangs) -> Reserved:
    """Begin with one piece, in which all nodes are idle."""
    nodes = len(gangs.nodes)
    return Reserved(
        at=np.zeros(FEW),
        room=np.full((FEW, nodes), gangs.per_node, np.int32),
        sequence=np.arange(FEW),
        clear=np.zeros(nodes, np.int64),
        empty=np.zeros(nodes, np.int64),
        due=np.zeros(len(gangs.jobs)),
        number=np.array([1, 0]),
    )


def with_more(p: Reserved) -> Reserved:
    """The same with room for twice as many pieces."""
    count = len(p.at)
    return p._replace(
        at=np.concatenate([p.at, np.zeros(count)]),
        room=np.concatenate([p.room, np.zeros_like(p.room)]),
        sequence=np.concatenate([p.sequence, np.arange(count, 2 * count)]),
    )


@entry
def run_reserved(w: Gangs, p: Reserved) -> bool:
    """Run until nothing more happens (True), or until more pieces of time are needed (False)."""
    s = w.status[0]
    while True:
        now, coming = next_instant(w), s.arrived
        if now == np.inf:
            return True
        while coming < len(w.jobs) and w.jobs[w.arrivals[coming]].submit <= now:
            coming += 1
        if p.number[0] + s.running + 3 * (p.number[1] + coming - s.arrived) + 4 > len(p.at):
            return False
        s.now = now
        let_time_pass(w, p)
        if end_jobs(w, p):
            bring_forward(w, p)
        while s.arrived < coming:
            job = w.arrivals[s.arrived]
            s.arrived += 1
            w.jobs[job].since = now
            reserve(w, p, job)
            queue(w, p, job)
        start_jobs(w, p)


@compiled
def let_time_pass(w: Gangs, p: Reserved) -> None:
    """Forget the pieces that are over; the first begins now."""
    s = w.status[0]
    while p.number[0] > 1 and p.at[p.sequence[1]] <= s.now:
        remove_slice(w, p, 0)
    p.at[p.sequence[0]] = s.now


@compiled
def end_jobs(w: Gangs, p: Reserved) -> bool:
    """Release what has ended; whether anything did before its limit."""
    s, early = w.status[0], False
    while s.running and w.ends[0].at <= s.now:
        job = w.ends[0].who
        s.running = pop(w.ends, s.running)
        due = w.jobs[job].begun + w.jobs[job].limit
        if due > s.now:
            early = True
            change_room(w, p, job, s.now, due, 1)
        end_run(w, job, 0.0)
    return early


@compiled
def bring_forward(w: Gangs, p: Reserved) -> None:
    """Give up every reservation in turn, and reserve again; the old place is still there.

    Save for a job without duration, over which others may have reserved: it keeps its instant.
    """
    for rank in range(p.number[1]):
        job = w.waiting[rank]
        begin = p.due[job]
        change_room(w, p, job, begin, begin + w.jobs[job].limit, 1)
        reserve(w, p, job)
        p.due[job] = min(p.due[job], begin)


@compiled
def reserve(w: Gangs, p: Reserved, job: int) -> None:
    """Reserve the earliest place, and its nodes."""
    mine = w.jobs[job]
    whole = (mine.gpus - 1) // w.per_node
    rest = mine.gpus - whole * w.per_node
    p.clear[:] = 0
    p.empty[:] = 0
    reach, rank, found = 0, -1, False
    while not found:
        rank += 1
        begin = p.at[p.sequence[rank]]
        while reach <= rank or (reach < p.number[0] and p.at[p.sequence[reach]] < begin + mine.limit):
            piece = p.sequence[reach]
            reach += 1
            for node in range(len(w.nodes)):
                if p.room[piece, node] < rest:
                    p.clear[node] = reach
            if whole:
                for node in range(len(w.nodes)):
                    if p.room[piece, node] < w.per_node:
                        p.empty[node] = reach
        found = count_from(p.clear, rank) > whole and (whole == 0 or count_from(p.empty, rank) >= whole)
    p.due[job] = p.at[p.sequence[rank]]
    reserve_nodes(w, p, job, rank, reach)
    change_room(w, p, job, p.due[job], p.due[job] + mine.limit, -1)


@compiled
def count_from(since: Ints, rank: int) -> int:
    """Count nodes with room from a piece on."""
    count = 0
    for node in range(len(since)):
        count += since[node] <= rank
    return count


@compiled
def reserve_nodes(w: Gangs, p: Reserved, job: int, first: int, last: int) -> None:
    """Write down nodes with room in some pieces, lowest number first: wholly idle ones, then that with least room."""
    spot, left, node = w.jobs[job].spot, w.jobs[job].gpus, 0
    while left > w.per_node:
        if p.empty[node] <= first:
            w.spots[spot] = node
            p.clear[node] = last + 1
            spot += 1
            left -= w.per_node
        node += 1
    best, least = NONE, w.per_node + 1
    for other in range(len(w.nodes)):
        if p.clear[other] <= first:
            room = w.per_node
            for rank in range(first, last):
                room = min(room, p.room[p.sequence[rank], other])
            if room < least:
                best, least = other, room
                if room == left:
                    break
    w.spots[spot] = best


@compiled
def change_room(w: Gangs, p: Reserved, job: int, begin: float, end: float, sign: int) -> None:
    """Add the GPUs of a job to the room of its nodes for a time, or take them away."""
    mine = w.jobs[job]
    first, last = cut(w, p, begin), cut(w, p, end)
    for rank in range(first, last):
        left = mine.gpus
        for place in range((mine.gpus + w.per_node - 1) // w.per_node):
            p.room[p.sequence[rank], w.spots[mine.spot + place]] += sign * min(left, w.per_node)
            left -= w.per_node
    join(w, p, last)
    if first < last:
        join(w, p, first)


@compiled
def cut(w: Gangs, p: Reserved, instant: float) -> int:
    """Let a piece begin at an instant; return its rank."""
    low, high = 0, p.number[0]
    while low < high:
        middle = (low + high) // 2
        if p.at[p.sequence[middle]] < instant:
            low = middle + 1
        else:
            high = middle
    if low < p.number[0] and p.at[p.sequence[low]] == instant:
        return low
    unused = p.sequence[p.number[0]]
    for rank in range(p.number[0], low, -1):
        p.sequence[rank] = p.sequence[rank - 1]
    p.sequence[low] = unused
    p.number[0] += 1
    p.at[unused] = instant
    for node in range(len(w.nodes)):
        p.room[unused, node] = p.room[p.sequence[low - 1], node]
    return low


@compiled
def join(w: Gangs, p: Reserved, rank: int) -> None:
    """Join a piece to the one before if they have the same room."""
    if rank == 0:
        return
    for node in range(len(w.nodes)):
        if p.room[p.sequence[rank], node] != p.room[p.sequence[rank - 1], node]:
            return
    remove_slice(w, p, rank)


@compiled
def remove_slice(w: Gangs, p: Reserved, rank: int) -> None:
    """Take a piece out of the sequence, and keep it for later use."""
    p.number[0] -= 1
    unused = p.sequence[rank]
    for later in range(rank, p.number[0]):
        p.sequence[later] = p.sequence[later + 1]
    p.sequence[p.number[0]] = unused


@compiled
def queue(w: Gangs, p: Reserved, job: int) -> None:
    """Let a job wait, lowest number first."""
    place = p.number[1]
    while place and w.waiting[place - 1] > job:
        w.waiting[place] = w.waiting[place - 1]
        place -= 1
    w.waiting[place] = job
    p.number[1] += 1


@compiled
def start_jobs(w: Gangs, p: Reserved) -> None:
    """Start the jobs whose time has come; note when the next one is due."""
    s, kept = w.status[0], 0
    s.wake = np.inf
    for rank in range(p.number[1]):
        job = w.waiting[rank]
        if p.due[job] > s.now:
            s.wake = min(s.wake, p.due[job])
            w.waiting[kept] = job
            kept += 1
            continue
        begin_run(w, job, 0.0)
        s.running = push(w.ends, s.running, w.jobs[job].until, job)
    p.number[1] = kept
