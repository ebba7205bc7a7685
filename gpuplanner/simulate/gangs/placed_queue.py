"""The event loop over gangs that are placed by tiers of the network, and may wait for a better tier.

Within one instant: ends, then arrivals, then starts, as in the plain loop. Where jobs may pass, the first job
of each size asks; if it waits, for room or for a better tier, so do those of its size behind it.

Under EASY backfill the head of the queue has room reserved, not places: wholly idle nodes, or the part of one, where
the rule consolidates, else GPUs. Others are placed by the rule as ever. They pass if they end by the shadow time, or
if there is room for the head then nevertheless. Limits are those of runs that are not slowed down, and longer where
runs are. If the first job of a size is in the way, the first that without a slow-down would end by then is asked.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.gangs.arrays import EASY, NOBODY, PASS, Gangs
from gpuplanner.simulate.gangs.choice_of_islands import choose_places
from gpuplanner.simulate.gangs.holding import begin_run, end_run
from gpuplanner.simulate.gangs.islands import CONSOLIDATE, Places
from gpuplanner.simulate.gangs.queues import CLOSED, OPEN, SHORT, age, first_job, hold, let_go
from gpuplanner.simulate.gangs.waiting_lines import join_line, leave_line, let_arrive, next_instant
from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.world import NONE


@entry
def run_placed(w: Gangs, p: Places) -> None:
    """Run until nothing more happens."""
    s = w.status[0]
    while True:
        now = next_instant(w)
        if now == np.inf:
            return
        if w.fair:
            age(w, now - s.now)
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            let_go(w, job)
            move(p, job, 1)
            end_run(w, job, 0.0)
        let_arrive(w)
        start_jobs(w, p)


@compiled
def start_jobs(w: Gangs, p: Places) -> None:
    """Start what can start and does not wait for a better tier; note when patience ends."""
    w.status[0].wake = np.inf
    for line in w.lines:
        line.open = OPEN
    while True:
        job = first_job(w, 0.0)
        if job == NOBODY:
            return
        tier = choose_places(p, w.jobs[job].gpus, w.per_node)
        if tier != NONE and accepts(w, p, job, tier):
            leave_line(w, job)
            start(w, p, job, tier)
        elif w.queue == PASS:
            w.lines[w.jobs[job].line].open = CLOSED
        else:
            if w.queue == EASY:
                leave_line(w, job)
                backfill(w, p, job)
                join_line(w, job)
            return


@compiled
def backfill(w: Gangs, p: Places, head: int) -> None:
    """EASY: jobs pass the head if they end by its shadow time, or leave the room that it will need."""
    s, gpus = w.status[0], w.jobs[head].gpus
    part = min(gpus, w.per_node) if p.rule == CONSOLIDATE else 0
    spare = -((gpus + w.per_node - 1) // w.per_node) if part else -gpus
    for node in range(len(w.nodes)):
        w.nodes[node].future = 0
        spare += free(w, node, p.node_idle[node], part)
    shadow, rank = s.now, 0
    while spare < 0 or (rank < s.holding and w.due[rank].at <= shadow):
        shadow, job = max(shadow, w.due[rank].at), w.due[rank].who
        for place in range(p.spot[job], p.spot[job] + p.pieces[job]):
            spare += free(w, p.held[place] // p.per_node, p.gpus[place], part)
        rank += 1
    while True:
        job = first_job(w, shadow)
        if job == NOBODY:
            return
        line, limit = w.lines[w.jobs[job].line], w.jobs[job].limit
        tier = choose_places(p, w.jobs[job].gpus, w.per_node)
        if tier == NONE:
            line.open = CLOSED
            continue
        if s.now + limit * slowdown(p, job, tier) > shadow:
            left = spare
            for place in range(p.number[0]):
                left += free(w, p.chosen[place] // p.per_node, -p.taken[place], part)
            if left < 0:
                for place in range(p.number[0]):
                    free(w, p.chosen[place] // p.per_node, p.taken[place], part)
                line.open = SHORT if s.now + limit > shadow else CLOSED
                continue
            spare = left
        leave_line(w, job)
        start(w, p, job, tier)


@compiled
def free(w: Gangs, number: int, gpus: int, part: int) -> int:
    """Add GPUs to the future of a node; by how many more nodes hold a part, or how many GPUs if there is none."""
    node = w.nodes[number]
    before = node.future
    node.future += gpus
    return int(node.future >= part) - int(before >= part) if part else gpus


@compiled
def slowdown(p: Places, job: int, tier: int) -> float:
    """By how much longer a job runs on a tier."""
    factor: float = 1.0 + p.sensitivity[job] * (p.slowdowns[tier] - 1.0)
    return factor


@compiled
def accepts(w: Gangs, p: Places, job: int, tier: int) -> bool:
    """Whether a job has waited long enough to take a tier."""
    s, mine = w.status[0], w.jobs[job]
    steps = p.step[tier] - p.step[p.best[job]]
    if steps <= 0 or mine.since + steps * p.patience <= s.now:
        return True
    s.wake = min(s.wake, mine.since + steps * p.patience)
    return False


@compiled
def start(w: Gangs, p: Places, job: int, tier: int) -> None:
    """Start a job on the chosen islands; its run is longer by the slow-down of the tier."""
    s, mine = w.status[0], w.jobs[job]
    p.pieces[job] = p.number[0]
    for rank in range(p.number[0]):
        p.held[p.spot[job] + rank] = p.chosen[rank]
        p.gpus[p.spot[job] + rank] = p.taken[rank]
    move(p, job, -1)
    work = mine.left
    mine.left = work * slowdown(p, job, tier)
    mine.lost += mine.left - work
    begin_run(w, job, 0.0)
    s.running = push(w.ends, s.running, mine.until, job)
    hold(w, job, mine.limit * slowdown(p, job, tier))


@compiled
def move(p: Places, job: int, sign: int) -> None:
    """Give the GPUs of a job back, or take them."""
    for rank in range(p.spot[job], p.spot[job] + p.pieces[job]):
        p.idle[p.held[rank]] += sign * p.gpus[rank]
        p.node_idle[p.held[rank] // p.per_node] += sign * p.gpus[rank]
