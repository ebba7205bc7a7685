"""Which nodes a request gets: for all queues and placements, over the network."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.nodes.coming import pool_with
from gpuplanner.simulate.nodes.cutting import spares
from gpuplanner.simulate.nodes.node_world import (
    CONSOLIDATE,
    FULLEST,
    GONE,
    LOWEST,
    NONE,
    ON,
    SPREAD,
    NodeWorld,
)


@called
def choose(w: NodeWorld, request: int, profile: int, late: bool, until: float) -> bool:
    """Choose nodes for a request, or find that there are not enough.

    It may be there until an instant by its limit, and leaves alone what is reserved for others before; minus infinity:
    nobody waits. Late: beside what the first of its line will need.
    """
    if w.placement == CONSOLIDATE and w.nodes[request] > 1:
        for tier in range(len(w.domain)):
            if choose_together(w, request, profile, late, until, tier):
                return True
    return gather(w, request, profile, late, until, NONE, NONE)


@called
def choose_together(w: NodeWorld, request: int, profile: int, late: bool, until: float, tier: int) -> bool:
    """Choose nodes of one domain: of those with enough nodes that with the least to spare, the lowest first."""
    w.full[:] = 0
    w.last[:] = 0
    w.spare[:] = 0
    for node in range(len(w.gpus)):
        place = w.domain[tier, node]
        if w.state[node] == ON:
            w.spare[place] += w.free[node, profile]
        w.full[place] += usable(w, node, profile, w.per[request], late, until)
        w.last[place] += usable(w, node, profile, w.rest[request], late, until)
    best = NONE
    for place in range(len(w.spare)):
        enough = w.full[place] >= w.nodes[request] - 1 and w.last[place] >= w.nodes[request]
        if enough and (best == NONE or w.spare[place] < w.spare[best]):
            best = place
    return bool(best != NONE and gather(w, request, profile, late, until, tier, best))


@called
def gather(w: NodeWorld, request: int, profile: int, late: bool, until: float, tier: int, place: int) -> bool:
    """Choose node after node, of one domain or of all."""
    s, count, found = w.status[0], w.nodes[request], 0
    s.stamp += 1
    while found < count:
        need = w.per[request] if found < count - 1 else w.rest[request]
        best, awake, least = NONE, GONE, np.inf
        for node in range(len(w.gpus)):
            state = w.state[node]
            if state < awake or w.taken[node] == s.stamp or (state != ON and not w.slurm):
                continue
            if (state != GONE and w.free[node, profile] < need) or (
                tier != NONE and w.domain[tier, node] != place
            ):
                continue
            if not usable(w, node, profile, need, late, until):
                continue
            key = 0.0
            if state != GONE and w.placement != LOWEST:
                key = -w.used[node] if w.placement == FULLEST else float(w.free[node, profile])
                if w.placement == SPREAD:
                    key = -key
            if best == NONE or state > awake or key < least:
                best, awake, least = node, state, key
        if best == NONE:
            break
        w.taken[best] = s.stamp
        w.chosen[found], w.given[found] = best, need
        found += 1
    return bool(found == count)


@compiled
def usable(w: NodeWorld, node: int, profile: int, need: int, late: bool, until: float) -> bool:
    """Whether a node can give so much; in Slurm those that sleep can."""
    if until > w.reserved[node] or (w.state[node] != ON and not w.slurm):
        return False
    if w.state[node] == GONE:
        if not w.switching or pool_with(w, node, profile, need) == NONE:
            return False
    elif w.free[node, profile] < need:
        return False
    return not (late and w.in_shadow[node] and not spares(w, node, profile, need))


@called
def tier_of(w: NodeWorld, count: int) -> int:
    """How far apart the chosen nodes are: 0 for one node, then by the domains that hold all, then beyond them."""
    tier = 0
    if count > 1:
        tier = len(w.domain) + 1
        for number in range(len(w.domain)):
            together = True
            for rank in range(1, count):
                together &= w.domain[number, w.chosen[rank]] == w.domain[number, w.chosen[0]]
            if together:
                tier = number + 1
                break
    return tier
