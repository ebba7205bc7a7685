"""The event loop of nodes.

Within one instant: ends, nodes that come up, requests that become ready, starts in the order of the queue, growth,
idle nodes that go. Ties go to the lowest number of request, pool and node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import called, compiled, entry
from gpuplanner.simulate.nodes.machine import Floats, Ints
from gpuplanner.simulate.slices.world import Table

NONE = -1
GONE, COMING, ON = range(3)
BEST, FULLEST, LOWEST = range(3)
DEPTH = 500
"""Requests behind the head that a backfill looks at: bf_max_job_test of Slurm (slurm.conf(5), SchedulerParameters)."""
STATUS = {
    "now": float,
    "begun": int,
    "arrived": int,
    "waiting": int,  # requests in the queue
    "kinds": int,  # kinds of requests in the queue
    "hopeful": int,  # of these, such that may still start in this pass, or that room may still come for
    "running": int,
    "logged": int,
    "stamp": int,  # of the search under way: nodes already used by a request bear it
    "on_gpus": int,
    "last_add": float,
    "behind": int,  # requests that were looked at behind the head in this pass, and could not start
    "head": int,  # first request on whole GPUs that has to wait in this pass; NONE: none has
    "shadow": float,  # when it can start at the latest
    "timer": float,  # next instant at which an idle node may go
}
CHANGE = {"node": int, "pool": int, "at": float, "on": int}


class NodeWorld(NamedTuple):
    """Everything that the loop reads and writes; requests are numbered in the order of the queue."""

    strict: bool
    pinned: bool
    placement: int
    switching: bool
    idle_s: float
    lead_s: float
    cool_s: float
    always: int
    most_gpus: int
    most_waiting: int  # with more in the queue the play is given up
    kept: Ints  # [pool]
    ready: Floats  # [request]
    run: Floats
    limit: Floats
    profile: Ints
    nodes: Ints
    per: Ints
    rest: Ints
    total: Ints
    kind: Ints  # requests of one kind ask for the same
    hold: Ints  # [request + 1] first of its holdings
    pins: Ints  # [request + 1] first of its nodes in pin
    pin: Ints  # nodes that requests are pinned to
    larger: Ints  # [profile, rank] profiles that serve it: itself, then larger ones, then NONE
    weight: Floats  # [profile]
    gpus: Ints  # [node]
    capacity: Ints  # [node, pool, profile]
    pool: Ints  # [node]
    state: Ints  # [node]
    come: Floats  # [node]
    since: Floats  # [node] idle since
    used: Floats  # [node] GPUs in use, by their weight
    busy: Ints  # [node] holdings on it
    free: Ints  # [node, profile]
    first_of: Ints  # [node] first of the holdings on it
    on_node: Ints  # [holding]
    amount: Ints
    next_of: Ints
    before: Ints
    owner: Ints
    start: Floats  # [request]
    served: Ints
    queue: Ints  # [rank]
    ends: Table  # [heap]
    chosen: Ints  # [rank] nodes chosen for a start
    given: Ints  # [rank] how much of each
    taken: Ints  # [node] stamp of the last search that used it
    blocked: Ints  # [profile] 1 if a request for it waits
    wanted: Ints  # [profile] 1 if it would serve one that waits
    of_kind: Ints  # [kind] how many of them wait
    asks: Ints  # [kind] its profile
    dead: Ints  # [kind] 1 if none of them can start any more in this pass
    lost: Ints  # [kind] 1 if nothing can come for them any more in this instant
    at: Floats  # [node] when it has room for the head
    in_shadow: Ints  # [node]
    extra: Ints  # [node] what others may still hold when the head starts
    virtual: Ints  # [node, profile] what is not claimed by requests that wait
    claimed: Ints  # [node]
    idle: Ints  # [pool] idle nodes
    log: Table
    status: Table  # one row


@entry
def advance(w: NodeWorld) -> bool:
    """Play until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    if not s.begun:
        s.begun = 1
        for node in range(len(w.gpus)):
            if w.pool[node] != NONE:
                come_up(w, node, -np.inf)
                note(w, node, -np.inf, 1)
                s.on_gpus += w.gpus[node]
    while len(w.log) - s.logged > 4 * len(w.gpus):
        now = next_instant(w)
        if now == np.inf:
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            request = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end(w, request)
        if w.switching:
            for node in range(len(w.gpus)):
                if w.state[node] == COMING and w.come[node] <= now:
                    come_up(w, node, now)
        while s.arrived < len(w.ready) and w.ready[s.arrived] <= now:
            w.queue[s.waiting] = s.arrived
            s.waiting += 1
            s.kinds += w.of_kind[w.kind[s.arrived]] == 0
            w.of_kind[w.kind[s.arrived]] += 1
            s.arrived += 1
        if s.waiting:
            start_some(w)
        if s.waiting > w.most_waiting:
            return True
        if w.switching:
            grow(w)
            # What went may have made room, under the most that may be on, for what waits.
            if shrink(w) and s.waiting:
                grow(w)
    return False


@called
def next_instant(w: NodeWorld) -> float:
    """When something happens next; infinite if nothing ever does."""
    s, now = w.status[0], np.inf
    if s.running:
        now = w.ends[0].at
    if s.arrived < len(w.ready):
        now = min(now, w.ready[s.arrived])
    if w.switching:
        now = min(now, s.timer)
        for node in range(len(w.gpus)):
            if w.state[node] == COMING:
                now = min(now, w.come[node])
    return now


@compiled
def note(w: NodeWorld, node: int, at: float, on: int) -> None:
    """Write that a node comes, or goes."""
    row = w.log[w.status[0].logged]
    row.node, row.pool, row.at, row.on = node, w.pool[node], at, on
    w.status[0].logged += 1


@called
def come_up(w: NodeWorld, node: int, now: float) -> None:
    """Offer all that a node has in its pool."""
    w.state[node], w.since[node] = ON, now
    for profile in range(w.free.shape[1]):
        w.free[node, profile] = w.capacity[node, w.pool[node], profile]


@called
def end(w: NodeWorld, request: int) -> None:
    """Give back what a request held."""
    profile = w.served[request]
    for held in range(w.hold[request], w.hold[request + 1]):
        node = w.on_node[held]
        if node == NONE:
            continue
        w.free[node, profile] += w.amount[held]
        w.used[node] -= w.weight[profile] * w.amount[held]
        w.busy[node] -= 1
        if w.busy[node] == 0:
            w.used[node], w.since[node] = 0.0, w.status[0].now
        if w.before[held] == NONE:
            w.first_of[node] = w.next_of[held]
        else:
            w.next_of[w.before[held]] = w.next_of[held]
        if w.next_of[held] != NONE:
            w.before[w.next_of[held]] = w.before[held]


@called
def start_some(w: NodeWorld) -> None:
    """Start what can start, in the order of the queue."""
    s, kept, place = w.status[0], 0, 0
    s.head, s.hopeful, s.behind = NONE, s.kinds, 0
    w.blocked[:] = 0
    w.dead[:] = 0
    while place < s.waiting and (s.hopeful or w.pinned):
        request = w.queue[place]
        kind = w.kind[request]
        was_dead = w.dead[kind]
        if try_start(w, request):
            w.of_kind[kind] -= 1
            if w.of_kind[kind] == 0:
                s.kinds -= 1
                s.hopeful -= 1
        else:
            s.hopeful -= w.dead[kind] and not was_dead
            w.queue[kept] = request
            kept += 1
        place += 1
    if kept < place:
        for rest in range(place, s.waiting):
            w.queue[kept + rest - place] = w.queue[rest]
    s.waiting -= place - kept


@called
def try_start(w: NodeWorld, request: int) -> bool:
    """Start a request, if it may and can."""
    s, profile, kind = w.status[0], w.profile[request], w.kind[request]
    if w.pinned and w.pins[request] < w.pins[request + 1]:
        return start_pinned(w, request)
    if w.dead[kind] or w.blocked[profile]:
        return False
    if profile == 0 and s.head != NONE:
        # Without the head's claim first: what finds no room so finds none at all.
        if not choose(w, request, 0, False):
            w.dead[kind] = 1
            return False
        if s.behind >= DEPTH or not choose(w, request, 0, True):
            s.behind += 1
            w.dead[kind] = s.behind >= DEPTH
            return False
        if s.now + w.limit[request] > s.shadow:
            for rank in range(w.nodes[request]):
                w.extra[w.chosen[rank]] -= w.given[rank]
        begin(w, request, 0, w.nodes[request])
        return True
    for rank in range(w.larger.shape[1]):
        serving = w.larger[profile, rank]
        if serving != NONE and choose(w, request, serving, False):
            begin(w, request, serving, w.nodes[request])
            return True
    w.dead[kind] = 1
    if w.pinned:
        return False
    if profile or w.strict:
        w.blocked[profile] = 1
    else:
        s.head = request
        cast_shadow(w, request)
    return False


@called
def choose(w: NodeWorld, request: int, profile: int, behind: bool) -> bool:
    """Choose nodes for a request, or find that there are not enough; `behind`: beside what the head will need."""
    s, count = w.status[0], w.nodes[request]
    s.stamp += 1
    late = behind and s.now + w.limit[request] > s.shadow
    for rank in range(count):
        need = w.per[request] if rank < count - 1 else w.rest[request]
        best, least = NONE, np.inf
        for node in range(len(w.gpus)):
            if w.state[node] != ON or w.free[node, profile] < need or w.taken[node] == s.stamp:
                continue
            if late and w.in_shadow[node] and need > w.extra[node]:
                continue
            key = 0.0
            if w.placement == BEST:
                key = float(w.free[node, profile])
            elif w.placement == FULLEST:
                key = -w.used[node]
            if best == NONE or key < least:
                best, least = node, key
        if best == NONE:
            return False
        w.taken[best] = s.stamp
        w.chosen[rank], w.given[rank] = best, need
    return True


@called
def start_pinned(w: NodeWorld, request: int) -> bool:
    """Start a request on the very nodes that it is pinned to, if there is room: no node of them may hold nothing."""
    first, last, room = w.pins[request], w.pins[request + 1], 0
    profile, left = w.profile[request], w.total[request]
    for place in range(first, last):
        if w.state[w.pin[place]] != ON or w.free[w.pin[place], profile] < 1:
            return False
        room += w.free[w.pin[place], profile]
    if room < left:
        return False
    for place in range(first, last):
        amount = min(w.free[w.pin[place], profile], left - (last - 1 - place))
        w.chosen[place - first], w.given[place - first] = w.pin[place], amount
        left -= amount
    begin(w, request, profile, last - first)
    return True


@called
def begin(w: NodeWorld, request: int, profile: int, count: int) -> None:
    """Start a request on the chosen nodes."""
    s = w.status[0]
    w.start[request], w.served[request] = s.now, profile
    for rank in range(count):
        node, held = w.chosen[rank], w.hold[request] + rank
        w.on_node[held], w.amount[held], w.owner[held] = node, w.given[rank], request
        w.free[node, profile] -= w.given[rank]
        w.used[node] += w.weight[profile] * w.given[rank]
        w.busy[node] += 1
        w.before[held], w.next_of[held] = NONE, w.first_of[node]
        if w.first_of[node] != NONE:
            w.before[w.first_of[node]] = held
        w.first_of[node] = held
    s.running = push(w.ends, s.running, s.now + w.run[request], request)


@called
def cast_shadow(w: NodeWorld, head: int) -> None:
    """Find when the head can start by the limits of what runs, on which nodes, and what these have to spare then."""
    s, per, count = w.status[0], w.per[head], w.nodes[head]
    w.in_shadow[:] = 0
    for node in range(len(w.gpus)):
        w.at[node] = np.inf
        if w.state[node] == ON:
            w.at[node] = room_at(w, node, per)
        elif w.state[node] == COMING and w.capacity[node, w.pool[node], 0] >= per:
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
            w.extra[node] = free_by(w, node, s.shadow) - per


@called
def room_at(w: NodeWorld, node: int, need: int) -> float:
    """When a node has so many whole GPUs free, by the limits of what runs; infinite if it never has."""
    room, at = w.free[node, 0], w.status[0].now
    while room < need:
        soonest = np.inf
        held = w.first_of[node]
        while held != NONE:
            due = due_of(w, held)
            if w.served[w.owner[held]] == 0 and (at < due or at == w.status[0].now) and due < soonest:
                soonest = due
            held = w.next_of[held]
        if soonest == np.inf:
            return np.inf
        at, room = soonest, free_by(w, node, soonest)
        if at == w.status[0].now and room < need:
            # All that is over its limit counts as ending now: go on behind it.
            at = np.nextafter(at, np.inf)
    found: float = max(at, w.status[0].now)
    return found


@compiled
def due_of(w: NodeWorld, held: int) -> float:
    """When a holding is over by its limit, at the earliest now."""
    request = w.owner[held]
    due: float = max(w.start[request] + w.limit[request], w.status[0].now)
    return due


@called
def free_by(w: NodeWorld, node: int, at: float) -> int:
    """Whole GPUs of a node that are free at an instant if nothing else starts there."""
    if w.state[node] == COMING:
        return int(w.capacity[node, w.pool[node], 0])
    room, held = w.free[node, 0], w.first_of[node]
    while held != NONE:
        if w.served[w.owner[held]] == 0 and due_of(w, held) <= at:
            room += w.amount[held]
        held = w.next_of[held]
    return int(room)


@called
def grow(w: NodeWorld) -> None:
    """Bring nodes for requests that wait for more than what is on or coming, then those that pools keep idle."""
    s = w.status[0]
    keeps = 0
    for pool in range(len(w.kept)):
        keeps += w.kept[pool]
    if s.waiting == 0 and keeps == 0:
        return
    w.claimed[:] = 0
    w.lost[:] = 0
    for node in range(len(w.gpus)):
        for profile in range(w.free.shape[1]):
            w.virtual[node, profile] = 0
            if w.state[node] == ON:
                w.virtual[node, profile] = w.free[node, profile]
            elif w.state[node] == COMING:
                w.virtual[node, profile] = w.capacity[node, w.pool[node], profile]
    place, s.hopeful = 0, s.kinds
    while place < s.waiting and s.hopeful:
        request = w.queue[place]
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
        if w.state[node] == GONE and s.on_gpus + w.gpus[node] <= w.most_gpus:
            pool = pool_with(w, node, profile, need)
            if pool != NONE:
                s.on_gpus += w.gpus[node]
                bring(w, node, pool)
                note(w, node, s.now, 1)
                return node
    for node in range(w.always, len(w.gpus)):
        if w.state[node] == ON and w.busy[node] == 0 and not w.claimed[node]:
            pool = pool_with(w, node, profile, need)
            if w.capacity[node, w.pool[node], profile] < need and pool != NONE:
                note(w, node, s.now, 0)
                bring(w, node, pool)
                note(w, node, s.now, 1)
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
    for profile in range(w.free.shape[1]):
        w.virtual[node, profile] = w.capacity[node, pool, profile]


@called
def keep_idle(w: NodeWorld) -> None:
    """Bring nodes until every pool has as many idle ones, that nobody claims, as it keeps."""
    s = w.status[0]
    for pool in range(len(w.kept)):
        idle = 0
        for node in range(len(w.gpus)):
            resting = w.state[node] == COMING or (w.state[node] == ON and w.busy[node] == 0)
            idle += resting and not w.claimed[node] and w.pool[node] == pool
        for node in range(len(w.gpus)):
            able = w.state[node] == GONE and s.on_gpus + w.gpus[node] <= w.most_gpus
            if idle < w.kept[pool] and able and w.capacity[node, pool].any():
                s.on_gpus += w.gpus[node]
                bring(w, node, pool)
                note(w, node, s.now, 1)
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
    for back in range(len(w.gpus) - w.always):
        node = len(w.gpus) - 1 - back
        if w.state[node] != ON or w.busy[node]:
            continue
        may = w.since[node] + w.idle_s
        cool = s.last_add + w.cool_s
        if s.now < may or s.now < cool:
            s.timer = min(s.timer, may if s.now < may else cool)
            continue
        pool, useful = w.pool[node], False
        for profile in range(len(w.wanted)):
            useful |= w.wanted[profile] and w.capacity[node, pool, profile] > 0
        if useful or w.idle[pool] <= w.kept[pool]:
            continue
        w.idle[pool] -= 1
        w.state[node], gone = GONE, True
        s.on_gpus -= w.gpus[node]
        note(w, node, s.now, 0)
    return gone
