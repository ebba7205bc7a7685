"""Nodes that are started and powered down, and instances made on demand."""

from __future__ import annotations

import numpy as np

from gpuplanner.core.execution import called, compiled
from gpuplanner.simulator.simulation_state import COMING, GONE, IMPOSSIBLE, NONE, ON, Ints, NodeWorld


@compiled
def is_flexible(w: NodeWorld, node: int) -> bool:
    """Whether the GPUs of a node are cut as jobs come and go."""
    return bool(w.flexible and w.pool[node] != NONE and w.cuts.pools[w.pool[node]])


@called
def recount(w: NodeWorld, node: int, states: Ints, free: Ints) -> None:
    """Count what a node still has room for, of each profile by itself."""
    for profile in range(free.shape[1]):
        count = 0
        if w.capacity[node, w.pool[node], profile]:
            for gpu in range(w.cuts.first[node], w.cuts.first[node + 1]):
                count += w.cuts.places.room[states[gpu], profile]
        free[node, profile] = count


@compiled
def due_of(w: NodeWorld, request: int) -> float:
    """When a request that runs is over by its limit, at the earliest now."""
    due: float = max(w.start[request] + w.limit[request] * w.factor[request], w.status[0].now)
    return due


@called
def left_at(w: NodeWorld, gpu: int, state: int, at: float) -> int:
    """What a GPU still holds at an instant, if all ends by its limit and nothing else starts there."""
    for slot in range(w.cuts.owner.shape[1]):
        owner = w.cuts.owner[gpu, slot]
        if owner != NONE and due_of(w, owner) <= at:
            state = w.cuts.places.take[state, slot]
    return state


@called
def put(w: NodeWorld, node: int, states: Ints, profile: int, need: int, request: int, late: bool) -> int:
    """Put instances where they keep the most possible; return what the head of the queue loses by it.

    For no request they are put on paper only. Those that are late, which is beyond the instant at which the head will
    start, leave it what it needs there; IMPOSSIBLE: they cannot.
    """
    p, lost, mine = w.cuts.places, 0, w.line[profile]
    for _ in range(need):
        best, least, costs = NONE, IMPOSSIBLE, 0
        for gpu in range(w.cuts.first[node], w.cuts.first[node + 1]):
            after, loses = p.add[states[gpu], profile], p.lose[states[gpu], profile]
            if after == NONE or loses >= least:
                continue
            cost = 0
            if late:
                shadow, head = w.shadow[mine], w.wants[mine]
                before = left_at(w, gpu, states[gpu], shadow)
                cost = p.room[before, head] - p.room[left_at(w, gpu, after, shadow), head]
                if lost + cost > w.extra[node]:
                    continue
            best, least, costs = gpu, loses, cost
        if best == NONE:
            return IMPOSSIBLE
        if request != NONE:
            w.cuts.owner[best, p.slot[states[best], profile]] = request
        states[best] = p.add[states[best], profile]
        lost += costs
    return lost


@called
def spares(w: NodeWorld, node: int, profile: int, need: int) -> bool:
    """Whether a late request leaves the head of the queue what it needs on a node."""
    if not is_flexible(w, node):
        return bool(w.extra[node] >= (need if profile == w.wants[w.line[profile]] else 0))
    for gpu in range(w.cuts.first[node], w.cuts.first[node + 1]):
        w.cuts.paper[gpu] = w.cuts.state[gpu]
    return put(w, node, w.cuts.paper, profile, need, NONE, True) < IMPOSSIBLE


@called
def settle(w: NodeWorld, node: int, profile: int, amount: int, request: int, late: bool) -> float:
    """Put a request on the GPUs of a node; return how long that takes before it begins [s]."""
    cuts = w.cuts
    lost = put(w, node, cuts.state, profile, amount, request, late)
    if late:
        w.extra[node] -= lost
    takes = amount * cuts.make_s if profile else 0.0
    for gpu in range(cuts.first[node], cuts.first[node + 1]):
        for slot in range(cuts.owner.shape[1]):
            if cuts.owner[gpu, slot] == request:
                if profile == 0 and cuts.was_cut[gpu]:
                    takes = cuts.whole_s
                cuts.was_cut[gpu] = profile > 0
    recount(w, node, cuts.state, w.free)
    return takes


@called
def clear(w: NodeWorld, node: int, request: int) -> None:
    """Remove what a request held on a node."""
    cuts = w.cuts
    for gpu in range(cuts.first[node], cuts.first[node + 1]):
        for slot in range(cuts.owner.shape[1]):
            if cuts.owner[gpu, slot] == request:
                cuts.owner[gpu, slot] = NONE
                cuts.state[gpu] = cuts.places.take[cuts.state[gpu], slot]
    recount(w, node, cuts.state, w.free)


@compiled
def note(w: NodeWorld, node: int, at: float, on: int) -> None:
    """Write that a node comes, or goes."""
    row = w.log[w.status[0].logged]
    row.node, row.pool, row.at, row.on = node, w.pool[node], at, on
    w.status[0].logged += 1


@called
def offer(w: NodeWorld, node: int) -> None:
    """Let a node have all that it has in its pool."""
    w.moves[node] += 1
    for profile in range(w.free.shape[1]):
        w.free[node, profile] = w.virtual[node, profile] = w.capacity[node, w.pool[node], profile]


@compiled
def come_up(w: NodeWorld, node: int, now: float) -> None:
    """A node is there."""
    w.state[node], w.since[node] = ON, now


@called
def grow(w: NodeWorld) -> None:
    """Bring nodes for requests that wait for more than what is on or coming, then those that pools keep idle."""
    s = w.status[0]
    keeps = 0
    for pool in range(len(w.kept)):
        keeps += w.kept[pool]
    if w.slurm:
        if keeps:
            keep_idle(w)
        return
    if s.waiting == 0 and keeps == 0:
        return
    w.claimed[:] = 0
    if s.waiting == 0:
        keep_idle(w)
        return
    w.lost[:] = 0
    for node in range(len(w.gpus)):
        for profile in range(w.free.shape[1]):
            w.virtual[node, profile] = 0
            if w.state[node] == ON:
                w.virtual[node, profile] = w.free[node, profile]
            elif w.state[node] == COMING:
                w.virtual[node, profile] = w.capacity[node, w.pool[node], profile]
    for gpu in range(len(w.cuts.state)):
        w.cuts.paper[gpu] = w.cuts.state[gpu]
    place, s.hopeful = 0, s.kinds
    while place < s.waiting and s.hopeful:
        request = w.queue[s.first + place]
        place += 1
        if w.lost[w.kind[request]]:
            continue
        found = False
        for rank in range(w.larger.shape[1]):
            serving = w.larger[w.profile[request], rank]
            if serving != NONE and not found:
                found = claim(w, request, serving)
        if not found:
            w.lost[w.kind[request]] = 1
            s.hopeful -= 1
    if keeps:
        keep_idle(w)


@called
def claim(w: NodeWorld, request: int, profile: int) -> bool:
    """Claim room for a request on nodes that are on or coming, or bring nodes for it; False if there is none at all."""
    s, count, found = w.status[0], w.nodes[request], False
    s.stamp += 1
    for rank in range(count):
        need = w.per[request] if rank < count - 1 else w.rest[request]
        node = room_for(w, profile, need)
        if node == NONE:
            continue
        found = True
        w.taken[node], w.claimed[node] = s.stamp, 1
        if is_flexible(w, node):
            put(w, node, w.cuts.paper, profile, need, NONE, False)
            recount(w, node, w.cuts.paper, w.virtual)
        else:
            w.virtual[node, profile] -= need
    return found


@called
def room_for(w: NodeWorld, profile: int, need: int) -> int:
    """A node with room that nobody claims: one that is on, one that comes, else one that is brought or cut anew."""
    s = w.status[0]
    for state in (ON, COMING):
        for node in range(len(w.gpus)):
            if w.state[node] == state and w.virtual[node, profile] >= need and w.taken[node] != s.stamp:
                return node
    for node in range(len(w.gpus)):
        if w.state[node] == GONE:
            pool = pool_with(w, node, profile, need)
            if pool != NONE:
                bring(w, node, pool)
                return node
    for node in range(len(w.gpus)):
        if w.state[node] == ON and w.busy[node] == 0 and not w.claimed[node]:
            pool = pool_with(w, node, profile, need)
            if w.capacity[node, w.pool[node], profile] < need and pool != NONE:
                note(w, node, s.now, 0)
                bring(w, node, pool)
                return node
    return NONE


@compiled
def pool_with(w: NodeWorld, node: int, profile: int, need: int) -> int:
    """The first pool in which a node would have that much."""
    for pool in range(w.capacity.shape[1]):
        if w.capacity[node, pool, profile] >= need:
            return pool
    return NONE


@called
def bring(w: NodeWorld, node: int, pool: int) -> None:
    """Let a node come in a pool."""
    s = w.status[0]
    w.state[node], w.pool[node] = COMING, pool
    w.come[node], s.last_add = s.now + w.lead_s, s.now
    if w.look_s > 0:
        w.come[node] = np.ceil(w.come[node] / w.look_s) * w.look_s
    offer(w, node)
    note(w, node, s.now, 1)


@called
def keep_idle(w: NodeWorld) -> None:
    """Bring nodes until every pool has as many idle ones, that nobody claims, as it keeps."""
    for pool in range(len(w.kept)):
        idle = 0
        for node in range(len(w.gpus)):
            resting = w.state[node] != GONE and w.busy[node] == 0
            idle += resting and not w.claimed[node] and w.pool[node] == pool
        for node in range(len(w.gpus)):
            able = w.state[node] == GONE
            if idle < w.kept[pool] and able and w.capacity[node, pool].any():
                bring(w, node, pool)
                idle += 1


@called
def shrink(w: NodeWorld) -> bool:
    """Let nodes go that have been idle for long enough, the highest first; and see when the next one may.

    Idle nodes that somebody who waits has a claim on are none of those that pools keep, here as where they grow.
    """
    s, gone = w.status[0], False
    s.timer = np.inf
    w.wanted[:] = 0
    w.idle[:] = 0
    for kind in range(len(w.of_kind)):
        for rank in range(w.larger.shape[1]):
            serving = w.larger[w.asks[kind], rank]
            if w.of_kind[kind] and serving != NONE:
                w.wanted[serving] = 1
    for node in range(len(w.gpus)):
        if w.state[node] == ON and w.busy[node] == 0 and not (s.waiting and w.claimed[node]):
            w.idle[w.pool[node]] += 1
    for back in range(len(w.gpus)):
        node = len(w.gpus) - 1 - back
        if w.state[node] != ON or w.busy[node]:
            continue
        may = w.since[node] + w.idle_s
        cool = s.last_add + w.cool_s
        if s.now < may or s.now < cool:
            s.timer = min(s.timer, may if s.now < may else cool)
            continue
        pool, useful = w.pool[node], False
        # Slurm looks at nodes alone, and who waits may have those that sleep.
        for profile in range(0 if w.slurm else len(w.wanted)):
            useful |= w.wanted[profile] and w.capacity[node, pool, profile] > 0
        if useful or w.idle[pool] <= w.kept[pool]:
            continue
        w.idle[pool] -= 1
        w.state[node], gone = GONE, True
        note(w, node, s.now, 0)
    return gone


@called
def wake(w: NodeWorld, request: int, profile: int) -> None:
    """Wake those of the chosen nodes that sleep."""
    for rank in range(w.nodes[request]):
        node = w.chosen[rank]
        if w.state[node] == GONE:
            bring(w, node, pool_with(w, node, profile, w.given[rank]))
