"""The event loop of queues in which running jobs are left alone, or stopped for a more urgent tier.

Within one instant: ends and failures, then arrivals, then starts.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.lab.gangs.arrays import EASY, NOBODY, PASS, Gangs
from gpuplanner.lab.gangs.holding import begin_run, end_run, overhead, stop_run, take_nodes
from gpuplanner.lab.gangs.waiting_lines import first_by, join_line, leave_line, let_arrive, next_instant
from gpuplanner.simulate.heap import drop, pop, push
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.whole_gpus import (
    choose_nodes,
    forget_due,
    keep_nodes,
    keep_off,
    look_ahead,
    note_due,
)
from gpuplanner.simulate.slices.world import NONE

CLOSED, SHORT, OPEN = range(3)


@entry
def run_queues(w: Gangs) -> bool:
    """Run until nothing more happens or a job is stuck (True), or until the stops must be emptied (False)."""
    s = w.status[0]
    while s.stuck == NONE:
        if s.stopped and s.stopped + s.running > len(w.stops):
            return False
        now = next_instant(w)
        if now == np.inf:
            return True
        if w.fair:
            age(w, now - s.now)
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            let_go(w, job)
            if not end_run(w, job, 0.0):
                join_line(w, job)
        let_arrive(w)
        start_jobs(w)
    return True


@compiled
def age(w: Gangs, seconds: float) -> None:
    """Let tenants use what they hold, and forget."""
    kept = np.exp(-w.decay * seconds)
    lasting = (1.0 - kept) / w.decay if w.decay > 0.0 else seconds
    for tenant in w.tenants:
        tenant.used = tenant.used * kept + tenant.gpus * lasting / tenant.share


@compiled
def start_jobs(w: Gangs) -> None:
    """Start what can start, the first job of all open lines first."""
    w.status[0].wake = np.inf
    for line in w.lines:
        line.open = OPEN
    while True:
        job = first_job(w, 0.0)
        if job == NOBODY:
            return
        nodes = choose_nodes(w, w.jobs[job].gpus, False)
        if nodes == 0 and w.tiers_preempt:
            nodes = make_room(w, job)
        if nodes:
            leave_line(w, job)
            start(w, job, nodes)
        elif w.queue == PASS:
            w.lines[w.jobs[job].line].open = CLOSED
        else:
            if w.queue == EASY:
                leave_line(w, job)
                backfill(w, job)
                join_line(w, job)
            return


@compiled
def first_job(w: Gangs, shadow: float) -> int:
    """First waiting job of all lines: by tier, then use of the tenant, then number. NOBODY if none may start.

    A line that is SHORT offers jobs that end by the shadow time alone.
    """
    best, best_line = NOBODY, NONE
    for number in range(len(w.lines)):
        line = w.lines[number]
        job = NOBODY
        if line.open == OPEN:
            job = line.head
        elif line.open == SHORT:
            job = first_by(w, number, w.status[0].now, shadow)
        if job != NOBODY and (best == NOBODY or precedes(w, number, job, best_line, best)):
            best, best_line = job, number
    return best


@compiled
def precedes(w: Gangs, line: int, job: int, other_line: int, other: int) -> bool:
    """Whether a job of one line comes before a job of another."""
    mine, theirs = w.lines[line], w.lines[other_line]
    if mine.tier != theirs.tier:
        return bool(mine.tier < theirs.tier)
    used, theirs_used = w.tenants[mine.tenant].used, w.tenants[theirs.tenant].used
    return bool(used < theirs_used or (used == theirs_used and job < other))


@compiled
def backfill(w: Gangs, head: int) -> None:
    """EASY: jobs pass the head if they end by its shadow time, or keep off what it will need."""
    now, shadow = w.status[0].now, reserve(w, w.jobs[head].gpus)
    while True:
        job = first_job(w, shadow)
        if job == NOBODY:
            return
        in_the_way = now + w.jobs[job].limit > shadow
        nodes = choose_nodes(w, w.jobs[job].gpus, in_the_way)
        if nodes:
            if in_the_way:
                keep_off(w, w.jobs[job].gpus, nodes)
            leave_line(w, job)
            start(w, job, nodes)
        else:
            w.lines[w.jobs[job].line].open = SHORT if in_the_way else CLOSED


@compiled
def reserve(w: Gangs, gpus: int) -> float:
    """Return when, by limits, the head can start (the shadow time), and set the ceiling of its nodes."""
    part, count = min(gpus, w.per_node), (gpus + w.per_node - 1) // w.per_node
    enough = look_ahead(w, part)
    rank = 0
    shadow: float = w.status[0].now
    while enough < count or (rank < w.status[0].holding and w.due[rank].at <= shadow):
        shadow = max(shadow, w.due[rank].at)
        enough += foresee(w, w.due[rank].who, part, 1)
        rank += 1
    keep_nodes(w, part, count)
    return shadow


@compiled
def foresee(w: Gangs, job: int, part: int, sign: int) -> int:
    """Add a running job's GPUs to the future of its nodes (or take them away); by how many more hold a part."""
    more, left = 0, w.jobs[job].gpus
    for rank in range(w.jobs[job].held):
        node = w.nodes[w.spots[w.jobs[job].spot + rank]]
        before = node.future
        node.future += sign * min(left, w.per_node)
        left -= w.per_node
        more += int(node.future >= part) - int(before >= part)
    return more


@compiled
def make_room(w: Gangs, job: int) -> int:
    """Stop jobs of less urgent tiers until a job fits, and choose its nodes; 0 and nobody if it never does.

    Stopped first: the least urgent tier, then the latest start, then the highest number. Who turns out not to
    stand in the way is spared, in the opposite order.
    """
    s, mine = w.status[0], w.jobs[job]
    part, count = min(mine.gpus, w.per_node), (mine.gpus + w.per_node - 1) // w.per_node
    enough, victims = look_ahead(w, part), 0
    while enough < count:
        victim = next_victim(w, mine.tier, victims)
        if victim == NONE:
            return 0
        w.waiting[victims] = victim
        victims += 1
        enough += foresee(w, victim, part, 1)
    for rank in range(victims - 1, -1, -1):
        victim = w.waiting[rank]
        enough += foresee(w, victim, part, -1)
        if enough >= count:
            continue
        enough += foresee(w, victim, part, 1)
        s.running = drop(w.ends, s.running, victim)
        let_go(w, victim)
        stop_run(w, victim, overhead(w, victim))
        join_line(w, victim)
    return choose_nodes(w, mine.gpus, False)


@compiled
def next_victim(w: Gangs, tier: int, victims: int) -> int:
    """Next job to stop after those already found; NONE if there is none. Notes when protected ones are free."""
    best = NONE
    for rank in range(w.status[0].running):
        job = w.ends[rank].who
        if w.jobs[job].tier <= tier:
            continue
        free = w.jobs[job].begun + w.min_run
        if free > w.status[0].now:
            w.status[0].wake = min(w.status[0].wake, free)
            continue
        if victims and not stopped_before(w, w.waiting[victims - 1], job):
            continue
        if best == NONE or stopped_before(w, job, best):
            best = job
    return best


@compiled
def stopped_before(w: Gangs, job: int, other: int) -> bool:
    """Whether of two running jobs one is stopped before the other."""
    mine, theirs = w.jobs[job], w.jobs[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier > theirs.tier)
    return bool(mine.begun > theirs.begun or (mine.begun == theirs.begun and job > other))


@compiled
def start(w: Gangs, job: int, nodes: int) -> None:
    """Start a job on the chosen nodes."""
    s = w.status[0]
    take_nodes(w, job, nodes)
    begin_run(w, job, 0.0)
    s.running = push(w.ends, s.running, w.jobs[job].until, job)
    hold(w, job, w.jobs[job].limit)


@compiled
def hold(w: Gangs, job: int, limit: float) -> None:
    """Note of a running job what its tenant uses, and when it is over by its limit."""
    s = w.status[0]
    if w.fair:
        w.tenants[w.lines[w.jobs[job].line].tenant].gpus += w.jobs[job].gpus
    if w.queue == EASY:
        note_due(w, job, s.now + limit)


@compiled
def let_go(w: Gangs, job: int) -> None:
    """Forget what was noted of a running job."""
    if w.fair:
        w.tenants[w.lines[w.jobs[job].line].tenant].gpus -= w.jobs[job].gpus
    if w.queue == EASY:
        forget_due(w, job)
