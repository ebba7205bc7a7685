"""Which islands a gang gets, by rule, and which tier it then spans."""

from __future__ import annotations

from gpuplanner.simulate.gangs.islands import BEST_FIT, CONSOLIDATE, FIRST_FIT, Places
from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.slices.world import NONE, Ints


@compiled
def choose_places(p: Places, gpus: int, node_gpus: int) -> int:
    """Choose islands into ``chosen`` and ``taken``; return the tier that they span, NONE if it does not fit."""
    p.number[0] = 0
    if p.rule in (CONSOLIDATE, BEST_FIT):
        for tier in range(len(p.span)):
            first = tightest(p, gpus, node_gpus, p.span[tier], tier)
            if first != NONE:
                fill(p, gpus, node_gpus, first, min(first + p.span[tier], len(p.idle)))
                return tier
        return NONE
    idle = 0
    for node in range(len(p.node_idle)):
        idle += p.node_idle[node]
    if idle < gpus:
        return NONE
    if p.rule == FIRST_FIT:
        take_first(p, gpus)
    else:
        take_spread(p, gpus)
    return spanned(p)


@compiled
def tightest(p: Places, gpus: int, node_gpus: int, span: int, tier: int) -> int:
    """First island of the domain with the fewest idle GPUs of those that have room; NONE if there is none."""
    best, least = NONE, 0
    count = (gpus + node_gpus - 1) // node_gpus
    for first in range(0, len(p.idle), span):
        last = min(first + span, len(p.idle))
        idle, empty = 0, 0
        if tier < 2:
            for island in range(first, last):
                idle += p.idle[island]
        else:
            for node in range(first // p.per_node, last // p.per_node):
                idle += p.node_idle[node]
                empty += p.node_idle[node] == node_gpus
        if idle < gpus or (best != NONE and idle >= least):
            continue
        if tier < 2 or p.rule == BEST_FIT or empty >= count:
            best, least = first, idle
    return best


@compiled
def fill(p: Places, gpus: int, node_gpus: int, first: int, last: int) -> None:
    """Take GPUs of a domain that has room: of one node, of wholly idle ones, or of those with the most idle."""
    if last - first <= p.per_node:
        cover(p, gpus, first, last)
        return
    low, high = first // p.per_node, last // p.per_node
    if p.rule == CONSOLIDATE:
        node = low
        while gpus > 0:
            if p.node_idle[node] == node_gpus:
                cover(p, min(gpus, node_gpus), node * p.per_node, (node + 1) * p.per_node)
                gpus -= node_gpus
            node += 1
        return
    while gpus > 0:
        best, most = pick(p.node_idle, gpus, low, high)
        part = min(gpus, most)
        cover(p, part, best * p.per_node, (best + 1) * p.per_node)
        p.node_idle[best] = -most  # taken; put right below
        gpus -= part
    for node in range(low, high):
        p.node_idle[node] = abs(p.node_idle[node])


@compiled
def pick(idle: Ints, gpus: int, first: int, last: int) -> tuple[int, int]:
    """Who holds the GPUs with the fewest idle ones, else who has the most; lowest number first, and its idle ones."""
    best = first
    for other in range(first + 1, last):
        mine, theirs = idle[best], idle[other]
        better = theirs > mine if mine < gpus else gpus <= theirs < mine
        if better:
            best = other
    return best, idle[best]


@compiled
def cover(p: Places, gpus: int, first: int, last: int) -> None:
    """Take GPUs of the islands of one node, likewise."""
    while gpus > 0:
        best, most = pick(p.idle, gpus, first, last)
        part = min(gpus, most)
        take(p, best, part)
        p.idle[best] = -most
        gpus -= part
    for island in range(first, last):
        p.idle[island] = abs(p.idle[island])


@compiled
def take(p: Places, island: int, gpus: int) -> None:
    """Write down GPUs of an island."""
    p.chosen[p.number[0]] = island
    p.taken[p.number[0]] = gpus
    p.number[0] += 1


@compiled
def take_first(p: Places, gpus: int) -> None:
    """Take GPUs in order from the first node that holds them all, else from the first node on."""
    island = 0
    for node in range(len(p.node_idle)):
        if p.node_idle[node] >= gpus:
            island = node * p.per_node
            break
    while gpus > 0:
        part = min(gpus, p.idle[island])
        if part > 0:
            take(p, island, part)
        gpus -= part
        island += 1


@compiled
def take_spread(p: Places, gpus: int) -> None:
    """Take GPU by GPU from the node, and there from the island, with the most idle ones."""
    for island in range(len(p.idle)):
        p.taken[island] = 0
    for _ in range(gpus):
        node = widest(p.node_idle, 0, len(p.node_idle))
        island = widest(p.idle, node * p.per_node, (node + 1) * p.per_node)
        p.node_idle[node] -= 1
        p.idle[island] -= 1
        p.taken[island] += 1
    for island in range(len(p.idle)):
        part = p.taken[island]
        if part > 0:
            p.node_idle[island // p.per_node] += part
            p.idle[island] += part
            take(p, island, part)


@compiled
def widest(idle: Ints, first: int, last: int) -> int:
    """Who has the most idle GPUs, lowest number first."""
    best = first
    for other in range(first + 1, last):
        if idle[other] > idle[best]:
            best = other
    return best


@compiled
def spanned(p: Places) -> int:
    """Lowest tier of which one domain has all chosen islands."""
    low, high = p.chosen[0], p.chosen[0]
    for rank in range(1, p.number[0]):
        low, high = min(low, p.chosen[rank]), max(high, p.chosen[rank])
    for tier in range(len(p.span)):
        if low // p.span[tier] == high // p.span[tier]:
            return tier
    return NONE
