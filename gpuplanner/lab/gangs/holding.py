"""Jobs that take nodes, run, are stopped and end: what all queues do alike."""

from __future__ import annotations

import math

import numpy as np

from gpuplanner.lab.gangs.arrays import MOST_STARTS, Gangs
from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.slices.whole_gpus import change_node


@compiled
def take_nodes(w: Gangs, job: int, nodes: int) -> None:
    """Give a job the chosen nodes: all GPUs of each but the last, of the last what remains."""
    left, spot = w.jobs[job].gpus, w.jobs[job].spot
    for rank in range(nodes):
        w.spots[spot + rank] = w.chosen[rank]
        change_node(w, w.chosen[rank], -min(left, w.per_node))
        left -= w.per_node
    w.jobs[job].held = nodes


@compiled
def give_nodes(w: Gangs, job: int) -> None:
    """Give the GPUs of a job back."""
    left, spot = w.jobs[job].gpus, w.jobs[job].spot
    for rank in range(w.jobs[job].held):
        change_node(w, w.spots[spot + rank], min(left, w.per_node))
        left -= w.per_node
    w.jobs[job].held = 0


@compiled
def begin_run(w: Gangs, job: int, lag: float) -> None:
    """Start a job that has its nodes, and write when this run ends: in its end, or in a failure."""
    s, mine = w.status[0], w.jobs[job]
    mine.queued += s.now - mine.since
    mine.begun = s.now
    if mine.starts == 0:
        mine.start = s.now
    if mine.starts == MOST_STARTS:
        s.stuck = job
    every = checkpoint_interval(w, job)
    mine.until = s.now + (lag + mine.charge + mine.left + w.write * checkpoints(mine.left, every))
    failure = s.now + (time_to_failure(w, job) if w.mtbf != np.inf else np.inf)
    mine.fails = 1 if failure < mine.until else 0
    mine.until = min(mine.until, failure)
    mine.starts += 1


@compiled
def end_run(w: Gangs, job: int, lag: float) -> bool:
    """Take a job off its nodes at the end of a run; return False if it failed and has work left."""
    mine = w.jobs[job]
    if mine.fails:
        stop_run(w, job, w.restart)
        return False
    mine.end = w.status[0].now
    mine.lost += lag + mine.charge + w.write * checkpoints(mine.left, checkpoint_interval(w, job))
    mine.left = 0.0
    give_nodes(w, job)
    return True


@compiled
def stop_run(w: Gangs, job: int, charge: float) -> None:
    """Stop a running job: it keeps what its last checkpoint saved, and pays at its next start."""
    s, mine, every = w.status[0], w.jobs[job], checkpoint_interval(w, job)
    wall = s.now - mine.begun
    saved = max(wall - mine.charge, 0.0)
    if every > 0.0:
        saved = 0.0 if every == np.inf else every * math.floor(saved / (every + w.write))
    saved = min(saved, mine.left)
    mine.left -= saved
    mine.lost += wall - saved
    mine.charge = charge
    mine.since = s.now
    stop = w.stops[s.stopped]
    s.stopped += 1
    stop.job, stop.node, stop.failed = job, w.spots[mine.spot], mine.until <= s.now
    stop.begun, stop.at, stop.lost = mine.begun, s.now, wall - saved
    give_nodes(w, job)


@compiled
def checkpoint_interval(w: Gangs, job: int) -> float:
    """Work between two checkpoints."""
    if math.isnan(w.interval):
        return math.sqrt(2.0 * w.write * w.mtbf / w.jobs[job].gpus)
    return w.interval


@compiled
def checkpoints(work: float, every: float) -> float:
    """How many are written on the way, none at the end."""
    return max(math.ceil(work / every) - 1.0, 0.0) if 0.0 < every < np.inf else 0.0


@compiled
def time_to_failure(w: Gangs, job: int) -> float:
    """Exponential, by a number that depends on the seed, the job and the start alone (splitmix64)."""
    mixed = np.uint64(w.seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (w.jobs[job].row, w.jobs[job].starts):
        mixed += (np.uint64(part) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (float(mixed >> np.uint64(11)) + 0.5) * 2.0**-53
    seconds: float = -math.log(uniform) * w.mtbf / w.jobs[job].gpus
    return seconds


@compiled
def overhead(w: Gangs, job: int) -> float:
    """What a stop costs a job of that size."""
    rank = 0
    while rank + 1 < len(w.overhead) and w.jobs[job].gpus > w.overhead[rank, 0]:
        rank += 1
    seconds: float = w.overhead[rank, 1]
    return seconds
