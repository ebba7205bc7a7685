"""Which GPUs are reserved for a job on whole GPUs, as EASY does it: they take no new work until it starts.

GPUs on offer come first, then idle cut ones, which are made whole. GPUs in use come into question only for a job that
has waited long, and as long as they take to empty by the limits of their jobs, where these are known; cut ones are
drained then, whole ones are withheld when they are given back. Nodes that empty soonest are taken first, or where no
limits are known those with the fewest slices in use; then the ones with the fewest GPUs to make whole; then the lowest.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.cutting import IMPOSSIBLE, node_rests, reboot
from gpuplanner.simulate.slices.instances import (
    BECOMES_WHOLE,
    come,
    count_switch,
    drain,
    may_switch,
    remove_idle,
    touch,
    withhold,
)
from gpuplanner.simulate.slices.world import NONE, WHOLE, World

ON_OFFER, IDLE_CUT, BY_LIMIT, BY_SLICES, EFFORTS = 0, 1, 2, 14, 24
"""How far a GPU is from being whole and idle: in use, by doublings of the minutes to the end of its limits."""


@called
def gather(w: World, job: int, long: bool) -> bool:
    """Reserve GPUs for a job, if there are enough; False if there are not."""
    s = w.status[0]
    part, count = min(w.jobs[job].gpus, w.per_node), (w.jobs[job].gpus + w.per_node - 1) // w.per_node
    too_few = s.idle < part * count
    if too_few and (not long or (w.profiles[WHOLE].hopeless == 1 + job and s.now < s.retry)):
        return False
    s.retry = np.inf
    # EASY keeps what is on offer for the first in the queue, unless that one has GPUs of its own.
    head = w.profiles[WHOLE].head
    offered = long or job == head or w.jobs[head].reserved > 0
    for node in range(len(w.nodes)):
        w.nodes[node].future = cost_of(w, node, part, s.now - w.jobs[job].submit if long else -1.0, offered)
    for rank in range(count):
        best = 0
        for node in range(len(w.nodes)):
            if w.nodes[node].future < w.nodes[best].future:
                best = node
        if w.nodes[best].future >= IMPOSSIBLE:
            return False
        w.nodes[best].future = IMPOSSIBLE
        w.chosen[rank] = best
    first = len(w.gpus)
    w.jobs[job].drains = 0
    for rank in range(count):
        first = min(first, w.chosen[rank] * w.per_node)
        take_node(w, w.chosen[rank], part, job)
    w.jobs[job].reserved = 1 + first
    s.ready += w.jobs[job].pending == 0
    s.drains += w.jobs[job].drains
    return True


@compiled
def cost_of(w: World, node: int, part: int, waited: float, offered: bool) -> int:
    """What it costs to have some whole GPUs on a node; writes the effort of each GPU."""
    first, able, missing, cost, top, made = node * w.per_node, 0, part, 0, 0, 0
    for gpu in range(first, first + w.per_node):
        w.slicing.gpus[gpu].effort = effort_of(w, gpu, waited, offered)
        able += w.slicing.gpus[gpu].effort < EFFORTS
    if able < part:
        return IMPOSSIBLE
    effort = NONE
    while missing:
        effort = next_effort(w, node, effort)
        for gpu in range(first, first + w.per_node):
            if missing and w.slicing.gpus[gpu].effort == effort:
                missing -= 1
                made += effort == IDLE_CUT
                if effort >= BY_LIMIT:
                    top = effort
                    cost += effort << 32
                elif effort > ON_OFFER:
                    cost += 1 << 16 * (effort - 1)
    if made and w.slicing.reboot_s > 0.0 and not node_rests(w, node):
        return IMPOSSIBLE
    return cost + (top << 52)


@compiled
def next_effort(w: World, node: int, effort: int) -> int:
    """The least effort on a node above another one."""
    least = IMPOSSIBLE
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        if effort < w.slicing.gpus[gpu].effort < least:
            least = w.slicing.gpus[gpu].effort
    return least


@compiled
def effort_of(w: World, gpu: int, waited: float, offered: bool) -> int:
    """How far a GPU is from being whole and idle; IMPOSSIBLE if it cannot be had."""
    placed = w.slicing.gpus[gpu]
    if placed.owner != NONE or placed.rebooting or placed.drain or placed.making:
        return IMPOSSIBLE
    if placed.cut == 0 and w.free[gpu, WHOLE]:
        return ON_OFFER if offered else IMPOSSIBLE
    if placed.cut and not may_switch(placed, w.status[0].now, w.slicing.switches_per_day):
        return IMPOSSIBLE
    if placed.cut and not placed.held:
        return IDLE_CUT
    left, effort = placed.until - w.status[0].now, BY_LIMIT
    if waited < 0.0 or (placed.cut and w.slicing.reboot_s > 0.0):
        return IMPOSSIBLE
    if waited < left < np.inf:
        w.status[0].retry = min(w.status[0].retry, w.status[0].now + (left - waited) / 2.0)
        return IMPOSSIBLE
    left /= 60.0
    if left < 2048.0:
        while left >= 1.0:
            left /= 2.0
            effort += 1
        return effort
    used, held = 0, placed.held if placed.cut else len(w.slicing.loss) - 1
    while held:
        held &= held - 1
        used += 1
    return BY_SLICES + used


@compiled
def take_node(w: World, node: int, part: int, job: int) -> None:
    """Reserve the GPUs of a node that take least effort, and begin to make them whole or to drain them."""
    made, missing, effort = 0, part, NONE
    while missing:
        effort = next_effort(w, node, effort)
        for gpu in range(node * w.per_node, (node + 1) * w.per_node):
            placed = w.slicing.gpus[gpu]
            if not missing or placed.effort != effort:
                continue
            missing -= 1
            placed.owner = job
            w.jobs[job].pending += 1
            touch(w.slicing, w.status[0], gpu)
            if effort == ON_OFFER:
                withhold(w, gpu)
            elif effort == IDLE_CUT:
                made += 1
                make_whole(w, gpu)
            else:
                w.jobs[job].drains = 1
                if placed.cut:
                    placed.drained_for = WHOLE
                    drain(w.slicing, w.free, w.profiles, w.status[0], gpu, -1, -1)
    if made and w.slicing.reboot_s > 0.0:
        reboot(w, node)


@compiled
def make_whole(w: World, gpu: int) -> None:
    """Begin to make a GPU without jobs whole."""
    slicing, s = w.slicing, w.status[0]
    placed = slicing.gpus[gpu]
    count_switch(placed, s, slicing.switches_per_day)
    removed = remove_idle(slicing, w.free, w.profiles, gpu, -1)
    at = max(s.now, placed.ready)
    if slicing.reboot_s > 0.0:
        at += slicing.reboot_s
    else:
        at += slicing.change_s + removed * slicing.instance_s
    placed.drain, placed.making = 0, 1
    come(slicing, w.coming, s, gpu, slicing.cuts.shape[1] + BECOMES_WHOLE, at)
