"""The event loop of orders that share out all GPUs anew whenever something changes: SRTF and LAS.

At each such instant ended jobs are released and arrivals queued. Then all jobs, waiting and running, are gone
through in order with a quota of all GPUs: who fits the rest of the quota takes it, others do not, and smaller
ones may pass. Running jobs that got none are stopped and go to the end of the queue; waiting jobs that got some
are placed, in order, and wait on if no nodes hold them.

References
----------
The rules of SRTF are those of HeliosArtifact, ``framework/QSSF Service``, commit bdaae109c21f.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.gangs.arrays import Gangs
from gpuplanner.simulate.gangs.holding import begin_run, end_run, overhead, stop_run, take_nodes
from gpuplanner.simulate.gangs.nodes import choose_nodes
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.world import NONE, Ints


@entry
def run_quota(w: Gangs) -> bool:
    """Run until nothing more happens or a job is stuck (True), or until the stops must be emptied (False)."""
    s = w.status[0]
    while s.stuck == NONE:
        if s.stopped and s.stopped + s.running > len(w.stops):
            return False
        now = np.inf
        if s.arrived < len(w.jobs):
            now = w.jobs[s.arrived].submit
        for rank in range(s.running):
            job = w.jobs[w.running[rank]]
            now = min(now, job.until, job.step)
        if now == np.inf:
            return True
        s.now = now
        end_jobs(w)
        while s.arrived < len(w.jobs) and w.jobs[s.arrived].submit <= now:
            w.jobs[s.arrived].since = now
            w.waiting[s.waiting] = s.arrived
            s.waiting += 1
            s.arrived += 1
        sort(w, w.waiting, s.waiting)
        sort(w, w.running, s.running)
        share_out(w)
        stop_jobs(w)
        place_jobs(w)
    return True


@compiled
def end_jobs(w: Gangs) -> None:
    """Release what has ended; let the others sink that have attained enough."""
    s, kept = w.status[0], 0
    for rank in range(s.running):
        number = w.running[rank]
        job = w.jobs[number]
        if job.until <= s.now:
            end_run(w, number, w.lag)
            continue
        while job.step <= s.now:
            job.level += 1
            job.step = next_step(w, number)
        w.running[kept] = number
        kept += 1
    s.running = kept


@compiled
def next_step(w: Gangs, job: int) -> float:
    """When a running job sinks to the next step of LAS."""
    if not w.las:
        return np.inf
    mine = w.jobs[job]
    instant: float = mine.begun + (w.thresholds[mine.level] - mine.attained) / mine.gpus
    return instant


@compiled
def precedes(w: Gangs, job: int, other: int) -> bool:
    """Whether a job is strictly before another in order."""
    mine, theirs = w.jobs[job], w.jobs[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier < theirs.tier)
    if w.las:
        return bool(mine.level < theirs.level or (mine.level == theirs.level and job < other))
    return remaining(w, job) < remaining(w, other)


@compiled
def remaining(w: Gangs, job: int) -> float:
    """Work still to do, with the overhead of stops."""
    mine = w.jobs[job]
    seconds: float = mine.until - w.lag - w.status[0].now if mine.held else mine.charge + mine.left
    return seconds


@compiled
def sort(w: Gangs, jobs: Ints, count: int) -> None:
    """Insertion sort: stable, and quick on a list that was sorted but for a few."""
    for rank in range(1, count):
        job, place = jobs[rank], rank
        while place and precedes(w, job, jobs[place - 1]):
            jobs[place] = jobs[place - 1]
            place -= 1
        jobs[place] = job


@compiled
def share_out(w: Gangs) -> None:
    """Choose who may hold GPUs; of equals those waiting come first."""
    s = w.status[0]
    quota, waiting, running = len(w.nodes) * w.per_node, 0, 0
    while waiting < s.waiting or running < s.running:
        if running == s.running or (
            waiting < s.waiting and not precedes(w, w.running[running], w.waiting[waiting])
        ):
            job = w.jobs[w.waiting[waiting]]
            waiting += 1
        else:
            job = w.jobs[w.running[running]]
            running += 1
        job.chosen = 1 if job.gpus <= quota else 0
        quota -= job.gpus * job.chosen


@compiled
def stop_jobs(w: Gangs) -> None:
    """Stop running jobs that were not chosen; they go to the end of the queue."""
    s, kept = w.status[0], 0
    for rank in range(s.running):
        number = w.running[rank]
        job = w.jobs[number]
        if job.chosen:
            w.running[kept] = number
            kept += 1
            continue
        wall = s.now - job.begun
        job.attained += job.gpus * wall
        stop_run(w, number, max(job.charge - wall, 0.0) + overhead(w, number))
        w.waiting[s.waiting] = number
        s.waiting += 1
    s.running = kept


@compiled
def place_jobs(w: Gangs) -> None:
    """Start the waiting jobs that were chosen, in order, as far as nodes hold them."""
    s, kept = w.status[0], 0
    for rank in range(s.waiting):
        job = w.waiting[rank]
        nodes = choose_nodes(w, w.jobs[job].gpus, False) if w.jobs[job].chosen else 0
        if nodes:
            take_nodes(w, job, nodes)
            begin_run(w, job, w.lag)
            w.jobs[job].step = next_step(w, job)
            w.running[s.running] = job
            s.running += 1
        else:
            w.waiting[kept] = job
            kept += 1
    s.waiting = kept
