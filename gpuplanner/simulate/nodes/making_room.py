"""Who is stopped so that a request finds quota and room: as few as will do."""

from __future__ import annotations

from gpuplanner.simulate.heap import drop
from gpuplanner.simulate.jit import called
from gpuplanner.simulate.nodes.loop import end, has_head
from gpuplanner.simulate.nodes.node_world import NONE, ON, NodeWorld
from gpuplanner.simulate.nodes.quota_tree import available, give_back, take
from gpuplanner.simulate.nodes.shared_runs import next_victim, note_stop
from gpuplanner.simulate.nodes.tenancy import Tenancy


@called
def make_room(w: NodeWorld, t: Tenancy, request: int) -> None:
    """Stop others until a request has quota and fits, if that can be done at all; nobody if it fits as it is."""
    for stop in range(2):
        for rank in range(w.larger.shape[1]):
            profile = w.larger[w.profile[request], rank]
            if profile != NONE and (w.slurm or not has_head(w, profile)):
                weigh_nodes(w, t, request, profile)
                if enough(w, t, request) or (stop and find_victims(w, t, request, profile)):
                    return


@called
def enough(w: NodeWorld, t: Tenancy, request: int) -> bool:
    """Whether a request has quota, and nodes with room, as those are weighed."""
    s, count, mine = t.status[0], w.nodes[request], t.jobs[request]
    return bool(s.full >= count - 1 and s.last >= count and available(t.groups, mine.team) >= mine.units)


@called
def weigh_nodes(w: NodeWorld, t: Tenancy, request: int, profile: int) -> None:
    """Count the nodes with room for a request."""
    t.status[0].full = t.status[0].last = 0
    for node in range(len(w.gpus)):
        w.virtual[node, profile] = NONE
        weigh(w, t, request, profile, node)


@called
def weigh(w: NodeWorld, t: Tenancy, request: int, profile: int, node: int) -> None:
    """Count a node anew; in Slurm those reserved for others by then have no room."""
    s, before, usable = t.status[0], w.virtual[node, profile], w.state[node] == ON
    if w.slurm:
        usable = usable and w.status[0].now + w.limit[request] <= w.reserved[node]
    room = room_without(w, t, node, profile) if usable else NONE
    w.virtual[node, profile] = room
    s.full += int(room >= w.per[request]) - int(before >= w.per[request])
    s.last += int(room >= w.rest[request]) - int(before >= w.rest[request])


@called
def room_without(w: NodeWorld, t: Tenancy, node: int, profile: int) -> int:
    """Instances for which a node has room once those that are marked are gone."""
    room = w.free[node, profile]
    held = w.first_of[node]
    while held != NONE:
        owner = w.owner[held]
        if t.jobs[owner].marked and w.served[owner] == profile:
            room += w.amount[held]
        held = w.next_of[held]
    return int(room)


@called
def mark(w: NodeWorld, t: Tenancy, request: int, profile: int, victim: int, marked: int) -> None:
    """Count as if one that runs were gone, or were there again."""
    mine = t.jobs[victim]
    mine.marked = marked
    if marked:
        give_back(t.groups, mine.team, mine.units)
    else:
        take(t.groups, mine.team, mine.units)
    for held in range(w.hold[victim], w.hold[victim + 1]):
        if w.on_node[held] != NONE:
            weigh(w, t, request, profile, w.on_node[held])


@called
def find_victims(w: NodeWorld, t: Tenancy, request: int, profile: int) -> bool:
    """Find who has to be stopped, spare those who turn out not to be in the way, and stop the others."""
    s, n, mine, found = w.status[0], t.status[0], t.jobs[request], 0
    group = t.groups[mine.team]
    within = n.reclaim and group.limited and group.usage + mine.units <= group.nominal
    while not enough(w, t, request):
        victim = next_victim(t, w.ends, s.running, request, bool(within), s.now)
        if victim == NONE or n.stopped + found + 1 >= len(t.stopped):
            for rank in range(found):
                mark(w, t, request, profile, t.victims[rank], 0)
            return False
        mark(w, t, request, profile, victim, 1)
        t.victims[found] = victim
        found += 1
    for rank in range(found - 1, -1, -1):
        victim = t.victims[rank]
        mark(w, t, request, profile, victim, 0)
        if not enough(w, t, request):
            mark(w, t, request, profile, victim, 1)
    for rank in range(found):
        victim = t.victims[rank]
        theirs = t.jobs[victim]
        if theirs.marked:
            theirs.marked = 0
            if not (n.by_tier and theirs.tier > mine.tier):
                theirs.barred = s.now
            s.running = drop(w.ends, s.running, victim)
            end(w, victim)
            note_stop(t, victim, s.now, w.start[victim], w.factor[victim], theirs.overhead, 0)
            t.victims[n.victims] = victim
            n.victims += 1
    return True
