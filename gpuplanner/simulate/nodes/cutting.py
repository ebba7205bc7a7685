"""Where instances go on GPUs that are cut as jobs come and go."""

from __future__ import annotations

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.nodes.node_world import IMPOSSIBLE, NONE, NodeWorld
from gpuplanner.simulate.tables import Ints


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
