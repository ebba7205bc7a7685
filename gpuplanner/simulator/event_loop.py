"""The compiled event loop over nodes.

Within one instant: ends, planned changes that are done, those that begin, nodes that come up, requests that become
ready, starts in the order of the queue, growth, idle nodes that go. Ties go to the lowest number of request, pool, node
and planned change.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.core.execution import called, compiled, event_loop_entry
from gpuplanner.simulator.node_placement import choose, lead, reserve, tier_of
from gpuplanner.simulator.node_provisioning import (
    clear,
    come_up,
    grow,
    is_flexible,
    note,
    offer,
    settle,
    shrink,
    wake,
)
from gpuplanner.simulator.planned_changes import close_cordons, find_change, make_changes, open_cordons
from gpuplanner.simulator.simulation_state import COMING, CORDONED, DEPTH, NONE, NodeWorld, Table


@compiled
def push(heap: Table, size: int, at: float, who: int) -> int:
    """Add an event; return the new size."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if heap[parent].at < at or (heap[parent].at == at and heap[parent].who < who):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place].at, heap[place].who = at, who
    return size + 1


@compiled
def pop(heap: Table, size: int) -> int:
    """Remove the first event (read it before); return the new size."""
    size -= 1
    at, who, place = heap[size].at, heap[size].who, 0
    while True:
        child, other = 2 * place + 1, 2 * place + 2
        if child >= size:
            break
        if other < size and (
            heap[other].at < heap[child].at or (heap[other].at == heap[child].at and heap[other].who < heap[child].who)
        ):
            child = other
        if at < heap[child].at or (at == heap[child].at and who < heap[child].who):
            break
        heap[place] = heap[child]
        place = child
    heap[place].at, heap[place].who = at, who
    return size


@compiled
def drop(heap: Table, size: int, who: int) -> int:
    """Remove the event of somebody who has one; return the new size."""
    place = 0
    while heap[place].who != who:
        place += 1
    while place > 0:
        parent = (place - 1) // 2
        heap[place] = heap[parent]
        place = parent
    return pop(heap, size)


@event_loop_entry
def advance(w: NodeWorld) -> bool:
    """Play until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    open_nodes(w)
    while len(w.log) - s.logged > 4 * len(w.gpus) + 2 * len(w.plan):
        now = next_instant(w)
        if now == np.inf:
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            request = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end(w, request)
        if w.changing and (s.vacated or s.due <= now):
            make_changes(w)
        let_come(w)
        if s.waiting:
            start_some(w)
        if s.waiting and s.closing:
            start_before_changes(w)
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
            w.drain[node] = find_change(w, node, w.plan_of[node], 1)
            w.power[node] = find_change(w, node, w.plan_of[node], 0)


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
    """Put a request into the queue: at its end, or behind those of no higher rank."""
    s = w.status[0]
    place = s.first + s.waiting
    if w.ranked:
        while place > s.first and w.turn[w.queue[place - 1]] > w.turn[request]:
            w.queue[place] = w.queue[place - 1]
            place -= 1
    w.queue[place] = request
    s.waiting += 1
    s.kinds += w.of_kind[w.kind[request]] == 0
    w.of_kind[w.kind[request]] += 1


@compiled
def next_instant(w: NodeWorld) -> float:
    """When something happens next; infinite if nothing ever does."""
    s, now = w.status[0], np.inf
    if s.running:
        now = w.ends[0].at
    if s.arrived < len(w.ready):
        now = min(now, w.ready[s.arrived])
    if w.changing:
        now = min(now, s.due)
    if w.switching:
        now = min(now, s.timer)
        for node in range(len(w.gpus)):
            if w.state[node] == COMING:
                now = min(now, w.come[node])
    return now


@compiled
def end(w: NodeWorld, request: int) -> None:
    """Give back what a request held."""
    profile = w.served[request]
    w.status[0].changes += 1
    for held in range(w.hold[request], w.hold[request + 1]):
        node = w.on_node[held]
        if node == NONE:
            continue
        if is_flexible(w, node):
            clear(w, node, request)
        else:
            w.free[node, profile] += w.amount[held]
        w.moves[node] += 1
        w.used[node] -= w.weight[profile] * w.amount[held]
        w.busy[node] -= 1
        if w.busy[node] == 0:
            w.used[node], w.since[node] = 0.0, w.status[0].now
            w.status[0].vacated += w.stage[node] == CORDONED
        if w.before[held] == NONE:
            w.first_of[node] = w.next_of[held]
        else:
            w.next_of[w.before[held]] = w.next_of[held]
        if w.next_of[held] != NONE:
            w.before[w.next_of[held]] = w.before[held]


@called
def start_some(w: NodeWorld) -> None:
    """Start what can start, in the order of the queue."""
    s = w.status[0]
    kept, place, last = s.first, s.first, s.first + s.waiting
    begin_pass(w)
    while place < last and s.hopeful:
        request = w.queue[place]
        if is_passed_over(w, request):
            w.queue[kept] = request
            kept, place = kept + 1, place + 1
            continue
        kind = w.kind[request]
        was_dead = w.dead[kind]
        if try_start(w, request):
            let_run(w, request, w.run[request] * w.factor[request])
            w.of_kind[kind] -= 1
            if w.of_kind[kind] == 0:
                s.kinds -= 1
                s.hopeful -= 1
        else:
            s.hopeful -= w.dead[kind] and not was_dead
            w.queue[kept] = request
            kept += 1
        place += 1
    close_gap(w, kept, place, last)


@called
def start_before_changes(w: NodeWorld) -> None:
    """Start requests on nodes under a cordon if they end before the change by their limits, in the order of the queue.

    Nobody has a claim on these nodes, so nobody waits for those before.
    """
    s = w.status[0]
    kept, last = s.first, s.first + s.waiting
    latest = open_cordons(w)
    w.tight[:] = np.inf
    for place in range(s.first, last):
        request = w.queue[place]
        serving = choose_before_change(w, request, latest)
        if serving == NONE:
            w.queue[kept] = request
            kept += 1
            continue
        begin(w, request, serving, False)
        let_run(w, request, w.run[request] * w.factor[request])
        for rank in range(w.nodes[request]):
            w.plan[w.drain[w.chosen[rank]]].emptied = np.nan
        w.of_kind[w.kind[request]] -= 1
        s.kinds -= w.of_kind[w.kind[request]] == 0
    close_gap(w, kept, last, last)
    close_cordons(w)


@compiled
def choose_before_change(w: NodeWorld, request: int, latest: float) -> int:
    """Choose nodes under a cordon for a request, over at an instant at the latest; return the profile that serves it.

    NONE if there is no room until it is over by its limit, on nodes as far apart as any are.
    """
    kind, found = w.kind[request], NONE
    tier = 0 if w.nodes[request] == 1 else len(w.domain) + 1
    for rank in range(w.larger.shape[1]):
        serving = w.larger[w.profile[request], rank]
        if serving == NONE or found != NONE:
            continue
        over = over_at(w, request, serving, tier)
        # What is over later than one that found no room finds none either.
        if over <= latest and over < w.tight[kind, rank]:
            if choose(w, request, serving, False, over):
                found = serving
            else:
                w.tight[kind, rank] = over
    return found


@compiled
def close_gap(w: NodeWorld, kept: int, place: int, last: int) -> None:
    """Join what is left of the queue before a place and from it on, by moving the shorter part."""
    s, started = w.status[0], place - kept
    if kept - s.first <= last - place:
        for rank in range(kept - 1, s.first - 1, -1):
            w.queue[rank + started] = w.queue[rank]
        s.first += started
    elif started:
        for rank in range(place, last):
            w.queue[rank - started] = w.queue[rank]
    s.waiting -= started


@compiled
def begin_pass(w: NodeWorld) -> None:
    """Nobody waits yet, of those that are looked at."""
    s = w.status[0]
    s.hopeful, s.behind = s.kinds, 0
    s.changes += 1
    w.head[:] = NONE
    w.shut[:] = 0
    w.blocked[:] = 0
    w.dead[:] = 0
    if w.slurm:
        w.reserved[:] = np.inf


@compiled
def is_passed_over(w: NodeWorld, request: int) -> bool:
    """Whether a request cannot start in this pass, and holds up nobody whom others do not hold up already.

    What :func:`try_start` would find as well, without a call for each of a long queue.
    """
    profile = w.profile[request]
    if not w.slurm and w.line[profile] == NONE:
        return bool(w.blocked[profile])
    passed = bool(w.dead[w.kind[request]])
    if passed and not w.slurm and not w.strict and not w.passing:
        passed = bool(w.head[w.line[profile]] != NONE)
    return passed


@called
def is_behind(w: NodeWorld, request: int) -> bool:
    """Whether somebody waits before a request wherever it may wait."""
    asked = w.profile[request]
    if w.slurm or w.line[asked] == NONE:
        return bool(w.blocked[w.part[asked] if w.slurm else asked])
    for rank in range(w.larger.shape[1]):
        serving = w.larger[asked, rank]
        if serving != NONE and not has_head(w, serving):
            return False
    return True


@compiled
def has_head(w: NodeWorld, profile: int) -> bool:
    """Whether somebody waits first in the line of a profile."""
    mine = w.line[profile]
    return bool(mine != NONE and (w.shut[mine] or w.head[mine] != NONE))


@called
def try_start(w: NodeWorld, request: int) -> bool:
    """Start a request, if it may and can."""
    s, profile, kind, waits = w.status[0], w.profile[request], w.kind[request], False
    if w.slurm:
        return try_in_slurm(w, request)
    if w.dead[kind] or (w.line[profile] == NONE and w.blocked[profile]):
        hold_others(w, request)
        return False
    for rank in range(w.larger.shape[1]):
        serving = w.larger[profile, rank]
        # Without the heads' claims first: what finds no room so finds none at all.
        if serving == NONE or (w.line[serving] != NONE and w.shut[w.line[serving]]):
            continue
        if not has_room(w, request, serving, rank):
            continue
        behind = has_head(w, serving)
        over = over_at(w, request, serving, w.tier[kind, rank])
        late = behind and over > w.shadow[w.line[serving]]
        waits |= behind
        if not behind or (s.behind < DEPTH and is_beside(w, request, serving, rank, late, over)):
            begin(w, request, serving, late)
            return True
    s.behind += waits
    w.dead[kind] = not waits or s.behind >= DEPTH
    hold_others(w, request)
    return False


@called
def hold_others(w: NodeWorld, request: int) -> None:
    """Let those behind who may not pass wait as well, or see what they may take."""
    asked = w.profile[request]
    if w.passing:
        return
    if w.line[asked] == NONE:
        w.blocked[asked] = 1
    elif not w.strict:
        lead(w, request)
    else:
        w.shut[w.line[asked]] = 1


@called
def try_in_slurm(w: NodeWorld, request: int) -> bool:
    """Start a request beside nodes that others wait for, if need be on some that sleep; the first to wait reserves."""
    s, kind, part, room = w.status[0], w.kind[request], w.part[w.profile[request]], False
    if w.dead[kind]:
        return False
    for rank in range(w.larger.shape[1]):
        serving = w.larger[w.profile[request], rank]
        if serving == NONE or not has_room(w, request, serving, rank):
            continue
        room = True
        over = over_at(w, request, serving, w.tier[kind, rank])
        if s.behind < DEPTH and is_beside(w, request, serving, rank, False, over):
            wake(w, request, serving)
            begin(w, request, serving, False)
            return True
    s.behind += room
    w.dead[kind] = not room or s.behind >= DEPTH
    if not w.blocked[part] and reserve(w, request, part):
        w.blocked[part] = 1
    return False


@compiled
def has_room(w: NodeWorld, request: int, serving: int, rank: int) -> bool:
    """Whether there is room if nobody waited before, on nodes that are chosen.

    What was found for another one of its kind holds until something changes; they are then not chosen anew, and both
    wait.
    """
    s, kind = w.status[0], w.kind[request]
    if w.tried[kind, rank] != s.changes:
        found = choose(w, request, serving, False, -np.inf)
        w.tight[kind, rank] = np.inf if found else -np.inf
        w.tier[kind, rank] = tier_of(w, w.nodes[request]) if found else 0
        w.tried[kind, rank] = s.changes
    return bool(w.tight[kind, rank] > -np.inf)


@compiled
def is_beside(w: NodeWorld, request: int, serving: int, rank: int, late: bool, over: float) -> bool:
    """Whether a request has room beside those that wait before, until it is over: what is over later has no more."""
    kind = w.kind[request]
    if w.tight[kind, rank] <= over < np.inf:
        return False
    if choose(w, request, serving, late, over):
        return True
    w.tight[kind, rank] = over
    return False


@compiled
def over_at(w: NodeWorld, request: int, profile: int, tier: int) -> float:
    """When a request that starts now on nodes so far apart is over at the latest, by its limit."""
    lasts = w.limit[request] * w.apart[tier]
    over: float = w.status[0].now + longest_made(w, request, profile) + lasts
    return over


@compiled
def longest_made(w: NodeWorld, request: int, profile: int) -> float:
    """How long it takes at most until what a request gets is made [s]."""
    made: float = w.per[request] * w.cuts.make_s if profile else w.cuts.whole_s
    return made


@called
def begin(w: NodeWorld, request: int, profile: int, late: bool) -> None:
    """Start a request on the chosen nodes, once instances are made."""
    s, made = w.status[0], 0.0
    s.changes += 1
    w.start[request], w.served[request] = s.now + longest_made(w, request, profile), profile
    w.factor[request] = w.apart[tier_of(w, w.nodes[request])]
    for rank in range(w.nodes[request]):
        node, held = w.chosen[rank], w.hold[request] + rank
        w.on_node[held], w.amount[held], w.owner[held] = node, w.given[rank], request
        if is_flexible(w, node):
            made = max(made, settle(w, node, profile, w.given[rank], request, late and w.in_shadow[node] > 0))
        else:
            w.free[node, profile] -= w.given[rank]
            w.extra[node] -= w.given[rank] if late and profile == w.wants[w.line[profile]] else 0
        if w.state[node] == COMING:
            made = max(made, w.come[node] - s.now)
        w.moves[node] += 1
        w.used[node] += w.weight[profile] * w.given[rank]
        w.busy[node] += 1
        w.before[held], w.next_of[held] = NONE, w.first_of[node]
        if w.first_of[node] != NONE:
            w.before[w.first_of[node]] = held
        w.first_of[node] = held
    w.start[request] = s.now + made


@compiled
def let_run(w: NodeWorld, request: int, lasts: float) -> None:
    """Note when a request that was started will end."""
    w.status[0].running = push(w.ends, w.status[0].running, w.start[request] + lasts, request)
