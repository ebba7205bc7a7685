"""Placement of jobs on nodes, and when the first waiting job can start.

Backfill of Slurm keeps one reservation a partition (``bf_job_part_count_reserve=1``): of the nodes that the first job
which has to wait will start on, all of each, so that on a cut node it holds up jobs of other profiles as well. Whole
GPUs and slices of a board are a partition each. Jobs are given nodes that sleep as they are given others, after those
that are on and those that come; these wake, and the job stays with them.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.core.execution import called, compiled
from gpuplanner.simulator.node_provisioning import due_of, is_flexible, left_at, pool_with, spares
from gpuplanner.simulator.simulation_state import (
    COMING,
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
            if (state != GONE and w.free[node, profile] < need) or (tier != NONE and w.domain[tier, node] != place):
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


@called
def lead(w: NodeWorld, request: int) -> None:
    """Let a request be the first of its line, where none is yet, by the first profile with which it will ever start.

    Where it never will, it holds up nobody.
    """
    mine = w.line[w.profile[request]]
    if w.head[mine] != NONE:
        return
    w.head[mine] = request
    for rank in range(w.larger.shape[1]):
        wants = w.larger[w.profile[request], rank]
        if wants != NONE and w.line[wants] != NONE:
            find_nodes(w, request, wants, mine)
            if w.shadow[mine] < np.inf:
                return


@called
def find_nodes(w: NodeWorld, head: int, wants: int, mine: int) -> None:
    """Find when the head of a line can start by the limits of what runs, where, and what there is to spare then.

    The node for the rest of a head is chosen last, and has to have no more than that.
    """
    count = w.nodes[head]
    w.status[0].changes += 1
    w.wants[mine] = wants
    w.in_shadow[:] = 0
    w.shadow[mine] = np.inf

    start, last, need = -np.inf, NONE, NONE
    for rank in range(count):
        share = w.per[head] if rank < count - 1 else w.rest[head]
        if share != need:
            need = share
            for node in range(len(w.gpus)):
                w.at[node] = room_from(w, mine, node, need, wants)
        best = NONE
        for node in range(len(w.gpus)):
            if not w.in_shadow[node] and w.at[node] < np.inf and (best == NONE or w.at[node] < w.at[best]):
                best = node
        if best == NONE:
            w.in_shadow[:] = 0
            return
        w.in_shadow[best] = 1
        start, last = max(start, w.at[best]), best

    w.shadow[mine] = start
    for node in range(len(w.gpus)):
        if w.in_shadow[node]:
            share = w.rest[head] if node == last else w.per[head]
            # A node that is cut anew for the head has to be empty by then: below 0, nothing may stay on it.
            w.extra[node] = max(free_by(w, node, start, wants) - share, NONE)


@called
def room_from(w: NodeWorld, mine: int, node: int, need: int, wants: int) -> float:
    """When a node has so much of what the head wants, be it on, coming or asleep; infinite if it never has."""
    if w.state[node] == ON or (w.slurm and w.state[node] == COMING):
        return next_room(w, mine, node, need, wants)
    if w.slurm and w.state[node] == GONE:
        if w.switching and pool_with(w, node, wants, need) != NONE:
            return float(w.status[0].now)
    elif w.state[node] == COMING and w.capacity[node, w.pool[node], wants] >= need:
        return float(w.come[node])
    return np.inf


@compiled
def next_room(w: NodeWorld, mine: int, node: int, need: int, wants: int) -> float:
    """When a node has so much of what the head wants: looked for anew only where something changed since.

    What was still to come then comes as it did: whoever is over its limit by now had not given enough.
    """
    asked = need * w.free.shape[1] + wants
    if w.asked[mine, node] != asked or w.moved[mine, node] != w.moves[node] or w.then[mine, node] <= w.status[0].now:
        w.then[mine, node] = room_at(w, node, need, wants)
        w.asked[mine, node] = NONE if is_flexible(w, node) else asked
        w.moved[mine, node] = w.moves[node]
    found: float = w.then[mine, node]
    return found


@called
def room_at(w: NodeWorld, node: int, need: int, wants: int) -> float:
    """When a node has so much of what the head wants, by the limits of what runs; infinite if it never has."""
    s, flexible = w.status[0], is_flexible(w, node)
    room, at = w.free[node, wants], s.now
    anew = w.flexible and w.switching and w.capacity[node, w.pool[node], wants] < need
    if anew:
        if pool_with(w, node, wants, need) == NONE:
            return np.inf
        held = w.first_of[node]
        while held != NONE:
            at = max(at, due_of(w, w.owner[held]))
            held = w.next_of[held]
        return float(at)
    while room < need:
        soonest = np.inf
        held = w.first_of[node]
        while held != NONE:
            due = due_of(w, w.owner[held])
            serves = flexible or w.served[w.owner[held]] == wants
            if serves and (at < due or at == s.now) and due < soonest:
                soonest = due
            held = w.next_of[held]
        if soonest == np.inf:
            return np.inf
        at, room = soonest, free_by(w, node, soonest, wants)
        if at == s.now and room < need:
            # All that is over its limit counts as ending now: go on behind it.
            at = np.nextafter(at, np.inf)
    found: float = max(at, s.now)
    return found


@called
def free_by(w: NodeWorld, node: int, at: float, wants: int) -> int:
    """How much of what the head wants is free on a node at an instant if nothing else starts there."""
    if w.state[node] == COMING and not w.slurm:
        return int(w.capacity[node, w.pool[node], wants])
    room = 0
    if is_flexible(w, node):
        if w.capacity[node, w.pool[node], wants]:
            for gpu in range(w.cuts.first[node], w.cuts.first[node + 1]):
                room += w.cuts.places.room[left_at(w, gpu, w.cuts.state[gpu], at), wants]
        return int(room)
    room, held = w.free[node, wants], w.first_of[node]
    while held != NONE:
        if w.served[w.owner[held]] == wants and due_of(w, w.owner[held]) <= at:
            room += w.amount[held]
        held = w.next_of[held]
    return int(room)


@called
def reserve(w: NodeWorld, request: int, part: int) -> bool:
    """Reserve the nodes on which a request can start first, all of each; False if no nodes will do."""
    for rank in range(w.larger.shape[1]):
        serving = w.larger[w.profile[request], rank]
        if serving == NONE:
            return False
        find_nodes(w, request, serving, part)
        if w.shadow[part] < np.inf:
            for node in range(len(w.gpus)):
                if w.in_shadow[node]:
                    w.reserved[node] = min(w.reserved[node], w.shadow[part])
            return True
    return False
