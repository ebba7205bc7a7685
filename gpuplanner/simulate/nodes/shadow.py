"""When the first request that has to wait can start at the latest, and what others may take until then."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.coming import pool_with
from gpuplanner.simulate.nodes.cutting import due_of, is_flexible, left_at
from gpuplanner.simulate.nodes.node_world import COMING, GONE, NONE, ON, NodeWorld


@called
def cast_shadow(w: NodeWorld, head: int) -> None:
    """Find when the head can start by the limits of what runs, on which nodes, and what these have to spare then."""
    s = w.status[0]
    for rank in range(w.larger.shape[1]):
        s.wants = w.larger[w.profile[head], rank]
        if s.wants == NONE:
            return
        find_nodes(w, head)
        if s.shadow < np.inf:
            return


@called
def find_nodes(w: NodeWorld, head: int) -> None:
    """The same with instances of one profile."""
    s, per, count = w.status[0], w.per[head], w.nodes[head]
    w.in_shadow[:] = 0
    for node in range(len(w.gpus)):
        w.at[node] = np.inf
        if w.state[node] == ON or (w.slurm and w.state[node] == COMING):
            w.at[node] = room_at(w, node, per)
        elif w.slurm and w.state[node] == GONE:
            if w.switching and pool_with(w, node, s.wants, per) != NONE:
                w.at[node] = s.now
        elif w.state[node] == COMING and w.capacity[node, w.pool[node], s.wants] >= per:
            w.at[node] = w.come[node]
    s.shadow = np.inf
    last = NONE
    for _ in range(count):
        best = NONE
        for node in range(len(w.gpus)):
            if not w.in_shadow[node] and w.at[node] < np.inf and (best == NONE or w.at[node] < w.at[best]):
                best = node
        if best == NONE:
            w.in_shadow[:] = 0
            return
        w.in_shadow[best] = 1
        last = best
    s.shadow = w.at[last]
    for node in range(len(w.gpus)):
        if w.in_shadow[node]:
            # A node that is cut anew for the head has to be empty by then: below 0, nothing may stay on it.
            w.extra[node] = max(free_by(w, node, s.shadow) - per, NONE)


@called
def room_at(w: NodeWorld, node: int, need: int) -> float:
    """When a node has so much of what the head wants, by the limits of what runs; infinite if it never has."""
    s, flexible = w.status[0], is_flexible(w, node)
    room, at = w.free[node, s.wants], s.now
    anew = w.flexible and w.switching and w.capacity[node, w.pool[node], s.wants] < need
    if anew:
        if pool_with(w, node, s.wants, need) == NONE:
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
            serves = flexible or w.served[w.owner[held]] == s.wants
            if serves and (at < due or at == s.now) and due < soonest:
                soonest = due
            held = w.next_of[held]
        if soonest == np.inf:
            return np.inf
        at, room = soonest, free_by(w, node, soonest)
        if at == s.now and room < need:
            # All that is over its limit counts as ending now: go on behind it.
            at = np.nextafter(at, np.inf)
    found: float = max(at, s.now)
    return found


@called
def free_by(w: NodeWorld, node: int, at: float) -> int:
    """How much of what the head wants is free on a node at an instant if nothing else starts there."""
    wants = w.status[0].wants
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
