"""The event loop over gangs that are placed by tiers of the network, and may wait for a better tier.

Within one instant: ends, then arrivals, then starts, as in the plain loop. Where jobs may pass, the first job
of each size asks; if it waits, for room or for a better tier, so do those of its size behind it.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.gangs import NOBODY, PASS, Gangs
from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.holding import begin_run, end_run
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.lines import join_line, leave_line
from gpuplanner.simulate.places import Places
from gpuplanner.simulate.placing import choose_places
from gpuplanner.simulate.queues import CLOSED, OPEN, first_job
from gpuplanner.simulate.world import NONE


@entry
def run_placed(w: Gangs, p: Places) -> None:
    """Run until nothing more happens."""
    s = w.status[0]
    while True:
        now = s.wake
        if s.running:
            now = min(now, w.ends[0].at)
        if s.arrived < len(w.jobs):
            now = min(now, w.jobs[w.arrivals[s.arrived]].submit)
        if now == np.inf:
            return
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            move(p, job, 1)
            end_run(w, job, 0.0)
        while s.arrived < len(w.jobs) and w.jobs[w.arrivals[s.arrived]].submit <= now:
            job = w.arrivals[s.arrived]
            s.arrived += 1
            w.jobs[job].since = now
            join_line(w, job)
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
            return


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
    mine.left = work * (1.0 + p.sensitivity[job] * (p.slowdowns[tier] - 1.0))
    mine.lost += mine.left - work
    begin_run(w, job, 0.0)
    s.running = push(w.ends, s.running, mine.until, job)


@compiled
def move(p: Places, job: int, sign: int) -> None:
    """Give the GPUs of a job back, or take them."""
    for rank in range(p.spot[job], p.spot[job] + p.pieces[job]):
        p.idle[p.held[rank]] += sign * p.gpus[rank]
        p.node_idle[p.held[rank] // p.per_node] += sign * p.gpus[rank]
