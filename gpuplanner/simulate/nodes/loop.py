"""The event loop of nodes.

Within one instant: ends, nodes that come up, requests that become ready, starts in the order of the queue, growth,
idle nodes that go. Ties go to the lowest number of request, pool and node.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import called, compiled, entry
from gpuplanner.simulate.nodes.coming import come_up, grow, note, offer, shrink
from gpuplanner.simulate.nodes.cutting import clear, is_flexible, settle, spares
from gpuplanner.simulate.nodes.node_world import BEST, COMING, DEPTH, FULLEST, NONE, ON, NodeWorld
from gpuplanner.simulate.nodes.shadow import cast_shadow
from gpuplanner.simulate.nodes.slurm import choose_nodes, reserve, wake


@entry
def advance(w: NodeWorld) -> bool:
    """Play until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    open_nodes(w)
    while len(w.log) - s.logged > 4 * len(w.gpus):
        now = next_instant(w)
        if now == np.inf:
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            request = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end(w, request)
        let_come(w)
        if s.waiting:
            start_some(w)
        if s.waiting > w.most_waiting:
            return True
        if w.switching:
            grow(w)
            # What went may come at once for what waits.
            if shrink(w) and s.waiting:
                if w.slurm:
                    start_some(w)
                grow(w)
    return False


@compiled
def open_nodes(w: NodeWorld) -> None:
    """Begin with the nodes that are on."""
    s = w.status[0]
    if not s.begun:
        s.begun = 1
        for node in range(len(w.gpus)):
            if w.pool[node] != NONE:
                offer(w, node)
                come_up(w, node, -np.inf)
                note(w, node, -np.inf, 1)


@compiled
def let_come(w: NodeWorld) -> None:
    """Let the nodes come up, and the requests wait, whose time it is."""
    s = w.status[0]
    if w.switching:
        for node in range(len(w.gpus)):
            if w.state[node] == COMING and w.come[node] <= s.now:
                come_up(w, node, s.now)
    while s.arrived < len(w.ready) and w.ready[s.arrived] <= s.now:
        join(w, s.arrived)
        s.arrived += 1


@compiled
def join(w: NodeWorld, request: int) -> None:
    """Put a request at the end of the queue."""
    s = w.status[0]
    w.queue[s.waiting] = request
    s.waiting += 1
    s.kinds += w.of_kind[w.kind[request]] == 0
    w.of_kind[w.kind[request]] += 1


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


@called
def end(w: NodeWorld, request: int) -> None:
    """Give back what a request held."""
    profile = w.served[request]
    for held in range(w.hold[request], w.hold[request + 1]):
        node = w.on_node[held]
        if node == NONE:
            continue
        if is_flexible(w, node):
            clear(w, node, request)
        else:
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
    w.reserved[:] = np.inf
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
    if w.slurm:
        return try_in_slurm(w, request)
    if w.dead[kind] or w.blocked[profile]:
        return False
    behind, room = s.head != NONE and (profile == 0 or w.flexible), False
    for rank in range(w.larger.shape[1]):
        serving = w.larger[profile, rank]
        # Without the head's claim first: what finds no room so finds none at all.
        if serving == NONE or not choose(w, request, serving, False):
            continue
        room = True
        late = behind and is_late(w, request, serving)
        if not behind or (s.behind < DEPTH and choose(w, request, serving, late)):
            begin(w, request, serving, w.nodes[request], late)
            return True
    if behind and room:
        s.behind += 1
        w.dead[kind] = s.behind >= DEPTH
        return False
    w.dead[kind] = 1
    if behind or w.pinned:
        return False
    if w.strict and w.flexible:
        w.blocked[:] = 1
    elif w.strict or (profile and not w.flexible):
        w.blocked[profile] = 1
    else:
        s.head = request
        cast_shadow(w, request)
    return False


@called
def try_in_slurm(w: NodeWorld, request: int) -> bool:
    """Start a request beside nodes that others wait for, if need be on some that sleep; the first to wait reserves."""
    s, kind, part, room = w.status[0], w.kind[request], min(w.profile[request], 1), False
    if w.dead[kind]:
        return False
    for rank in range(w.larger.shape[1]):
        serving = w.larger[w.profile[request], rank]
        if serving == NONE or not choose_nodes(w, request, serving, np.inf):
            continue
        room = True
        if s.behind < DEPTH and choose_nodes(w, request, serving, s.now + w.limit[request]):
            wake(w, request, serving)
            begin(w, request, serving, w.nodes[request], False)
            return True
    s.behind += room
    w.dead[kind] = not room or s.behind >= DEPTH
    if not w.blocked[part] and reserve(w, request):
        w.blocked[part] = 1
    return False


@compiled
def is_late(w: NodeWorld, request: int, profile: int) -> bool:
    """Whether a request may by its limit still be there when the head of the queue can start."""
    over = w.status[0].now + longest_made(w, request, profile) + w.limit[request]
    return bool(over > w.status[0].shadow)


@compiled
def longest_made(w: NodeWorld, request: int, profile: int) -> float:
    """How long it takes at most until what a request gets is made [s]."""
    made: float = w.per[request] * w.cuts.make_s if profile else w.cuts.whole_s
    return made


@called
def choose(w: NodeWorld, request: int, profile: int, late: bool) -> bool:
    """Choose nodes for a request, or find that there are not enough; `late`: beside what the head will need."""
    s, count = w.status[0], w.nodes[request]
    s.stamp += 1
    for rank in range(count):
        need = w.per[request] if rank < count - 1 else w.rest[request]
        best, least = NONE, np.inf
        for node in range(len(w.gpus)):
            if w.state[node] != ON or w.free[node, profile] < need or w.taken[node] == s.stamp:
                continue
            if late and w.in_shadow[node] and not spares(w, node, profile, need):
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
    begin(w, request, profile, last - first, False)
    return True


@called
def begin(w: NodeWorld, request: int, profile: int, count: int, late: bool) -> None:
    """Start a request on the chosen nodes, once instances are made."""
    s, made = w.status[0], 0.0
    w.start[request], w.served[request] = s.now + longest_made(w, request, profile), profile
    for rank in range(count):
        node, held = w.chosen[rank], w.hold[request] + rank
        w.on_node[held], w.amount[held], w.owner[held] = node, w.given[rank], request
        if is_flexible(w, node):
            made = max(made, settle(w, node, profile, w.given[rank], request, late and w.in_shadow[node] > 0))
        else:
            w.free[node, profile] -= w.given[rank]
            w.extra[node] -= w.given[rank] if late and profile == s.wants else 0
        if w.state[node] == COMING:
            made = max(made, w.come[node] - s.now)
        w.used[node] += w.weight[profile] * w.given[rank]
        w.busy[node] += 1
        w.before[held], w.next_of[held] = NONE, w.first_of[node]
        if w.first_of[node] != NONE:
            w.before[w.first_of[node]] = held
        w.first_of[node] = held
    w.start[request] = s.now + made
    s.running = push(w.ends, s.running, w.start[request] + w.run[request], request)
