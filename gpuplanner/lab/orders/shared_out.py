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

from typing import NamedTuple

import numpy as np

from gpuplanner.lab.gangs.arrays import Gangs
from gpuplanner.lab.gangs.holding import begin_run, end_run, overhead, stop_run, take_nodes
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.whole_gpus import choose_nodes
from gpuplanner.simulate.slices.world import NONE, Floats, Ints


class Shares(NamedTuple):
    """What the loop reads and writes besides the gangs."""

    las: bool
    lag: float  # time that every start takes before work begins
    thresholds: Floats  # [step] GPU-seconds at which a job sinks
    attained: Floats  # [job] GPU-seconds it held before its present run
    sinks: Floats  # [job] when it sinks to the next step
    level: Ints  # [job] its step
    chosen: Ints  # [job] 1 if the quota of this instant reaches it
    running: Ints  # [rank] running jobs
    waits: Ints  # [0] how many wait


def to_shares(gangs: Gangs, *, las: bool, lag_s: float, thresholds_gpu_s: tuple[float, ...]) -> Shares:
    """Arrays for the jobs of ``gangs``; times in s."""
    jobs = len(gangs.jobs)
    return Shares(
        las=las,
        lag=float(lag_s),
        thresholds=np.array([*thresholds_gpu_s, np.inf]),
        attained=np.zeros(jobs),
        sinks=np.zeros(jobs),
        level=np.zeros(jobs, np.int64),
        chosen=np.zeros(jobs, np.int64),
        running=np.zeros(len(gangs.ends), np.int64),
        waits=np.zeros(1, np.int64),
    )


@entry
def run_quota(w: Gangs, q: Shares) -> bool:
    """Run until nothing more happens or a job is stuck (True), or until the stops must be emptied (False)."""
    s = w.status[0]
    while s.stuck == NONE:
        if s.stopped and s.stopped + s.running > len(w.stops):
            return False
        now = np.inf
        if s.arrived < len(w.jobs):
            now = w.jobs[s.arrived].submit
        for rank in range(s.running):
            now = min(now, w.jobs[q.running[rank]].until, q.sinks[q.running[rank]])
        if now == np.inf:
            return True
        s.now = now
        end_jobs(w, q)
        while s.arrived < len(w.jobs) and w.jobs[s.arrived].submit <= now:
            w.jobs[s.arrived].since = now
            w.waiting[q.waits[0]] = s.arrived
            q.waits[0] += 1
            s.arrived += 1
        sort(w, q, w.waiting, q.waits[0])
        sort(w, q, q.running, s.running)
        share_out(w, q)
        stop_jobs(w, q)
        place_jobs(w, q)
    return True


@compiled
def end_jobs(w: Gangs, q: Shares) -> None:
    """Release what has ended; let the others sink that have attained enough."""
    s, kept = w.status[0], 0
    for rank in range(s.running):
        job = q.running[rank]
        if w.jobs[job].until <= s.now:
            end_run(w, job, q.lag)
            continue
        while q.sinks[job] <= s.now:
            q.level[job] += 1
            q.sinks[job] = next_step(w, q, job)
        q.running[kept] = job
        kept += 1
    s.running = kept


@compiled
def next_step(w: Gangs, q: Shares, job: int) -> float:
    """When a running job sinks to the next step of LAS."""
    if not q.las:
        return np.inf
    mine = w.jobs[job]
    instant: float = mine.begun + (q.thresholds[q.level[job]] - q.attained[job]) / mine.gpus
    return instant


@compiled
def precedes(w: Gangs, q: Shares, job: int, other: int) -> bool:
    """Whether a job is strictly before another in order."""
    mine, theirs = w.jobs[job], w.jobs[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier < theirs.tier)
    if q.las:
        return bool(q.level[job] < q.level[other] or (q.level[job] == q.level[other] and job < other))
    return remaining(w, q, job) < remaining(w, q, other)


@compiled
def remaining(w: Gangs, q: Shares, job: int) -> float:
    """Work still to do, with the overhead of stops."""
    mine = w.jobs[job]
    seconds: float = mine.until - q.lag - w.status[0].now if mine.held else mine.charge + mine.left
    return seconds


@compiled
def sort(w: Gangs, q: Shares, jobs: Ints, count: int) -> None:
    """Insertion sort: stable, and quick on a list that was sorted but for a few."""
    for rank in range(1, count):
        job, place = jobs[rank], rank
        while place and precedes(w, q, job, jobs[place - 1]):
            jobs[place] = jobs[place - 1]
            place -= 1
        jobs[place] = job


@compiled
def share_out(w: Gangs, q: Shares) -> None:
    """Choose who may hold GPUs; of equals those waiting come first."""
    s = w.status[0]
    quota, waiting, running = len(w.nodes) * w.per_node, 0, 0
    while waiting < q.waits[0] or running < s.running:
        if running == s.running or (
            waiting < q.waits[0] and not precedes(w, q, q.running[running], w.waiting[waiting])
        ):
            job = w.waiting[waiting]
            waiting += 1
        else:
            job = q.running[running]
            running += 1
        q.chosen[job] = 1 if w.jobs[job].gpus <= quota else 0
        quota -= w.jobs[job].gpus * q.chosen[job]


@compiled
def stop_jobs(w: Gangs, q: Shares) -> None:
    """Stop running jobs that were not chosen; they go to the end of the queue."""
    s, kept = w.status[0], 0
    for rank in range(s.running):
        number = q.running[rank]
        job = w.jobs[number]
        if q.chosen[number]:
            q.running[kept] = number
            kept += 1
            continue
        wall = s.now - job.begun
        q.attained[number] += job.gpus * wall
        stop_run(w, number, max(job.charge - wall, 0.0) + overhead(w, number))
        w.waiting[q.waits[0]] = number
        q.waits[0] += 1
    s.running = kept


@compiled
def place_jobs(w: Gangs, q: Shares) -> None:
    """Start the waiting jobs that were chosen, in order, as far as nodes hold them."""
    s, kept = w.status[0], 0
    for rank in range(q.waits[0]):
        job = w.waiting[rank]
        nodes = choose_nodes(w, w.jobs[job].gpus, False) if q.chosen[job] else 0
        if nodes:
            take_nodes(w, job, nodes)
            begin_run(w, job, q.lag)
            q.sinks[job] = next_step(w, q, job)
            q.running[s.running] = job
            s.running += 1
        else:
            w.waiting[kept] = job
            kept += 1
    q.waits[0] = kept
