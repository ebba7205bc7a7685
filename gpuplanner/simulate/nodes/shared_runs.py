"""Runs that end in a failure or are stopped: how long the next one takes, and what a stop leaves of the work."""

from __future__ import annotations

import math

import numpy as np

from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.node_world import NONE
from gpuplanner.simulate.nodes.tenancy import Tenancy
from gpuplanner.simulate.tables import Row

MOST_STARTS = 10_000
"""A request that was started so often will never end."""


@called
def checkpoints(work: float, every: float) -> float:
    """How many are written on the way, none at the end."""
    return max(math.ceil(work / every) - 1.0, 0.0) if 0.0 < every < np.inf else 0.0


@called
def next_run(mine: Row, write: float, seed: int, factor: float) -> float:
    """How long a request will hold its nodes once it works: to its end, or to a failure.

    Its work takes there so many times as long as on what it asked for.
    """
    takes = mine.left * factor
    needs: float = mine.charge + takes + write * checkpoints(takes, mine.every)
    mine.fails = 0
    if mine.mtbf < np.inf:
        fails = time_to_failure(seed, mine.row, mine.starts, mine.mtbf)
        mine.fails = fails < needs
        needs = min(needs, fails)
    return needs


@called
def time_to_failure(seed: int, row: int, starts: int, mtbf: float) -> float:
    """Exponential, by a number that depends on the seed, the request and the start alone (splitmix64)."""
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (row, starts):
        mixed += (np.uint64(part) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (float(mixed >> np.uint64(11)) + 0.5) * 2.0**-53
    return -math.log(uniform) * mtbf


@called
def note_start(t: Tenancy, request: int, now: float, works: float) -> None:
    """Write that a request got its nodes, and works from an instant on."""
    mine = t.jobs[request]
    mine.queued += now - mine.since
    mine.begun = now
    if mine.starts == 0:
        mine.first = works
    if mine.starts == MOST_STARTS:
        t.status[0].stuck = request
    mine.starts += 1


@called
def note_end(t: Tenancy, request: int, now: float, works: float, factor: float) -> None:
    """Write that all work of a request is done."""
    mine = t.jobs[request]
    takes = mine.left * factor
    mine.end = now
    mine.lost += works - mine.begun + mine.charge + t.status[0].write * checkpoints(takes, mine.every)
    mine.slowed += takes - mine.left
    mine.left = 0.0


@called
def note_stop(
    t: Tenancy, request: int, now: float, works: float, factor: float, charge: float, failed: int
) -> None:
    """Write that a run was stopped: what its last checkpoint saved is kept, and the next start pays."""
    s, mine = t.status[0], t.jobs[request]
    wall, every = now - mine.begun, mine.every
    saved = max(now - works - mine.charge, 0.0)
    if every > 0.0:
        saved = 0.0 if every == np.inf else every * math.floor(saved / (every + s.write))
    saved = min(saved, mine.left * factor)
    mine.left -= saved / factor
    mine.slowed += saved - saved / factor
    mine.lost += wall - saved
    mine.charge, mine.since = charge, now
    mine.stops += 1 - failed
    mine.failures += failed
    row = t.stopped[s.stopped]
    row.request, row.failed, row.begun, row.at, row.lost = request, failed, mine.begun, now, wall - saved
    s.stopped += 1


@called
def next_victim(t: Tenancy, ends: Row, running: int, request: int, within: bool, now: float) -> int:
    """Who is to be stopped next for a request; NONE if nobody may be. Notes when one that is spared may be.

    First the least urgent tier, then the latest start, then the highest number. Tiers stop their own team's requests,
    and of others what these hold beyond their own quota; a team within its own takes that back from anybody.
    """
    s, mine, best = t.status[0], t.jobs[request], NONE
    for rank in range(running):
        one = ends[rank].who
        theirs = t.jobs[one]
        by_tier = s.by_tier and theirs.tier > mine.tier
        if theirs.marked or not (by_tier or (within and theirs.team != mine.team)):
            continue
        if theirs.team != mine.team:
            group = t.groups[theirs.team]
            if group.usage - group.reserved <= (group.nominal if group.limited else 0):
                continue
        free = theirs.begun + s.min_run
        if free > now:
            s.wake = min(s.wake, free)
        elif best == NONE or stopped_before(theirs, t.jobs[best], one > best):
            best = one
    return best


@called
def stopped_before(mine: Row, theirs: Row, later: bool) -> bool:
    """Whether of two that run one is stopped before the other; `later`: its number is higher."""
    if mine.tier != theirs.tier:
        return bool(mine.tier > theirs.tier)
    return bool(mine.begun > theirs.begun or (mine.begun == theirs.begun and later))
