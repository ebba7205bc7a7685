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

import numpy as np

from gpuplanner.simulate.gangs.arrays import Gangs
from gpuplanner.simulate.gangs.holding import begin_run, end_run
from gpuplanner.simulate.gangs.waiting_lines import next_instant
from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.world import NONE, Ints


@entry
def run_reserved(w: Gangs) -> bool:
    """Run until nothing more happens (True), or until more pieces of time are needed (False)."""
    s = w.status[0]
    while True:
        now, coming = next_instant(w), s.arrived
        if now == np.inf:
            return True
        while coming < len(w.jobs) and w.jobs[w.arrivals[coming]].submit <= now:
            coming += 1
        if s.slices + s.running + 3 * (s.waiting + coming - s.arrived) + 4 > len(w.at):
            return False
        s.now = now
        let_time_pass(w)
        if end_jobs(w):
            bring_forward(w)
        while s.arrived < coming:
            job = w.arrivals[s.arrived]
            s.arrived += 1
            w.jobs[job].since = now
            reserve(w, job)
            queue(w, job)
        start_jobs(w)


@compiled
def let_time_pass(w: Gangs) -> None:
    """Forget the pieces that are over; the first begins now."""
    s = w.status[0]
    while s.slices > 1 and w.at[w.sequence[1]] <= s.now:
        remove_slice(w, 0)
    w.at[w.sequence[0]] = s.now


@compiled
def end_jobs(w: Gangs) -> bool:
    """Release what has ended; whether anything did before its limit."""
    s, early = w.status[0], False
    while s.running and w.ends[0].at <= s.now:
        job = w.ends[0].who
        s.running = pop(w.ends, s.running)
        due = w.jobs[job].begun + w.jobs[job].limit
        if due > s.now:
            early = True
            change_room(w, job, s.now, due, 1)
        end_run(w, job, 0.0)
    return early


@compiled
def bring_forward(w: Gangs) -> None:
    """Give up every reservation in turn, and reserve again; the old place is still there.

    Save for a job without duration, over which others may have reserved: it keeps its instant.
    """
    for rank in range(w.status[0].waiting):
        job = w.jobs[w.waiting[rank]]
        begin = job.step
        change_room(w, w.waiting[rank], begin, begin + job.limit, 1)
        reserve(w, w.waiting[rank])
        job.step = min(job.step, begin)


@compiled
def reserve(w: Gangs, job: int) -> None:
    """Reserve the earliest place, and its nodes."""
    s, mine = w.status[0], w.jobs[job]
    whole = (mine.gpus - 1) // w.per_node
    rest = mine.gpus - whole * w.per_node
    w.clear[:] = 0
    w.empty[:] = 0
    reach, rank, found = 0, -1, False
    while not found:
        rank += 1
        begin = w.at[w.sequence[rank]]
        while reach <= rank or (reach < s.slices and w.at[w.sequence[reach]] < begin + mine.limit):
            piece = w.sequence[reach]
            reach += 1
            for node in range(len(w.nodes)):
                if w.room[piece, node] < rest:
                    w.clear[node] = reach
            if whole:
                for node in range(len(w.nodes)):
                    if w.room[piece, node] < w.per_node:
                        w.empty[node] = reach
        found = count_from(w.clear, rank) > whole and (whole == 0 or count_from(w.empty, rank) >= whole)
    mine.step = w.at[w.sequence[rank]]
    reserve_nodes(w, job, rank, reach)
    change_room(w, job, mine.step, mine.step + mine.limit, -1)


@compiled
def count_from(since: Ints, rank: int) -> int:
    """Count nodes with room from a piece on."""
    count = 0
    for node in range(len(since)):
        count += since[node] <= rank
    return count


@compiled
def reserve_nodes(w: Gangs, job: int, first: int, last: int) -> None:
    """Write down nodes with room in some pieces, lowest number first: wholly idle ones, then that with least room."""
    spot, left, node = w.jobs[job].spot, w.jobs[job].gpus, 0
    while left > w.per_node:
        if w.empty[node] <= first:
            w.spots[spot] = node
            w.clear[node] = last + 1
            spot += 1
            left -= w.per_node
        node += 1
    best, least = NONE, w.per_node + 1
    for other in range(len(w.nodes)):
        if w.clear[other] <= first:
            room = w.per_node
            for rank in range(first, last):
                room = min(room, w.room[w.sequence[rank], other])
            if room < least:
                best, least = other, room
                if room == left:
                    break
    w.spots[spot] = best


@compiled
def change_room(w: Gangs, job: int, begin: float, end: float, sign: int) -> None:
    """Add the GPUs of a job to the room of its nodes for a time, or take them away."""
    mine = w.jobs[job]
    first, last = cut(w, begin), cut(w, end)
    for rank in range(first, last):
        left = mine.gpus
        for place in range((mine.gpus + w.per_node - 1) // w.per_node):
            w.room[w.sequence[rank], w.spots[mine.spot + place]] += sign * min(left, w.per_node)
            left -= w.per_node
    join(w, last)
    if first < last:
        join(w, first)


@compiled
def cut(w: Gangs, instant: float) -> int:
    """Let a piece begin at an instant; return its rank."""
    s = w.status[0]
    low, high = 0, s.slices
    while low < high:
        middle = (low + high) // 2
        if w.at[w.sequence[middle]] < instant:
            low = middle + 1
        else:
            high = middle
    if low < s.slices and w.at[w.sequence[low]] == instant:
        return low
    unused = w.sequence[s.slices]
    for rank in range(s.slices, low, -1):
        w.sequence[rank] = w.sequence[rank - 1]
    w.sequence[low] = unused
    s.slices += 1
    w.at[unused] = instant
    for node in range(len(w.nodes)):
        w.room[unused, node] = w.room[w.sequence[low - 1], node]
    return low


@compiled
def join(w: Gangs, rank: int) -> None:
    """Join a piece to the one before if they have the same room."""
    if rank == 0:
        return
    for node in range(len(w.nodes)):
        if w.room[w.sequence[rank], node] != w.room[w.sequence[rank - 1], node]:
            return
    remove_slice(w, rank)


@compiled
def remove_slice(w: Gangs, rank: int) -> None:
    """Take a piece out of the sequence, and keep it for later use."""
    s = w.status[0]
    s.slices -= 1
    unused = w.sequence[rank]
    for later in range(rank, s.slices):
        w.sequence[later] = w.sequence[later + 1]
    w.sequence[s.slices] = unused


@compiled
def queue(w: Gangs, job: int) -> None:
    """Let a job wait, lowest number first."""
    place = w.status[0].waiting
    while place and w.waiting[place - 1] > job:
        w.waiting[place] = w.waiting[place - 1]
        place -= 1
    w.waiting[place] = job
    w.status[0].waiting += 1


@compiled
def start_jobs(w: Gangs) -> None:
    """Start the jobs whose time has come; note when the next one is due."""
    s, kept = w.status[0], 0
    s.wake = np.inf
    for rank in range(s.waiting):
        job = w.waiting[rank]
        mine = w.jobs[job]
        if mine.step > s.now:
            s.wake = min(s.wake, mine.step)
            w.waiting[kept] = job
            kept += 1
            continue
        begin_run(w, job, 0.0)
        s.running = push(w.ends, s.running, mine.until, job)
    s.waiting = kept
