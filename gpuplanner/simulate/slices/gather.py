"""Which GPUs are made whole for the head of the queue of jobs on whole GPUs.

A node costs the slices in use that have to be given back before, and then the GPUs that have to be made whole. The
cheapest nodes are chosen, lowest number first. GPUs in use count only once the job has waited long: cut ones are
drained, whole ones given back by themselves. What is chosen is spared: it is not cut for others before the job
starts.
"""

from __future__ import annotations

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.cutting import IMPOSSIBLE, node_rests, reboot
from gpuplanner.simulate.slices.instances import (
    BECOMES_WHOLE,
    come,
    count_switch,
    drain,
    may_switch,
    remove_idle,
)
from gpuplanner.simulate.slices.world import WHOLE, World

IS_WHOLE, IS_IDLE = 0, 1
"""Efforts; those of GPUs in use are one more than the slices in use."""

IN_USE = 1 << 12
"""What a slice in use counts, against 1 for a GPU to be made whole."""


@called
def gather(w: World, job: int, long: bool) -> None:
    """Begin to make GPUs whole for a job, if there are enough."""
    part, count = min(w.jobs[job].gpus, w.per_node), (w.jobs[job].gpus + w.per_node - 1) // w.per_node
    for node in range(len(w.nodes)):
        w.nodes[node].future = cost_of(w, node, part, long and w.slicing.reboot_s == 0.0)
    for rank in range(count):
        best = 0
        for node in range(len(w.nodes)):
            if w.nodes[node].future < w.nodes[best].future:
                best = node
        if w.nodes[best].future >= IMPOSSIBLE:
            return
        w.nodes[best].future = IMPOSSIBLE
        w.chosen[rank] = best
    w.status[0].gathered = job
    for rank in range(count):
        take_node(w, w.chosen[rank], part)


@compiled
def cost_of(w: World, node: int, part: int, long: bool) -> int:
    """What it costs to have some whole GPUs on a node; writes the effort of each GPU."""
    first = node * w.per_node
    for gpu in range(first, first + w.per_node):
        w.slicing.gpus[gpu].effort = effort_of(w, gpu, long)
    missing, cost = part, 0
    for effort in range(w.slicing.cuts.shape[1] + 2):
        for gpu in range(first, first + w.per_node):
            if missing and w.slicing.gpus[gpu].effort == effort:
                missing -= 1
                cost += min(effort, 1) + max(effort - 1, 0) * IN_USE
    if missing or (cost and w.slicing.reboot_s > 0.0 and not node_rests(w, node)):
        return IMPOSSIBLE
    return cost


@compiled
def effort_of(w: World, gpu: int, long: bool) -> int:
    """How far a GPU is from being whole and idle; IMPOSSIBLE if it cannot be had."""
    placed = w.slicing.gpus[gpu]
    if placed.making or placed.rebooting or placed.drain:
        return IMPOSSIBLE
    if placed.cut == 0:
        if w.free[gpu, WHOLE] or (long and placed.spared):
            return IS_WHOLE
        return 1 + w.slicing.cuts.shape[1] if long else IMPOSSIBLE
    used, held = IS_IDLE, placed.held
    while held:
        held &= held - 1
        used += 1
    possible = may_switch(placed, w.status[0].now, w.slicing.switches_per_day) and (long or used == IS_IDLE)
    return used if possible else IMPOSSIBLE


@compiled
def take_node(w: World, node: int, part: int) -> None:
    """Spare the GPUs of a node that take least effort, and begin to make them whole or to drain them."""
    made, missing = 0, part
    for effort in range(w.slicing.cuts.shape[1] + 2):
        for gpu in range(node * w.per_node, (node + 1) * w.per_node):
            placed = w.slicing.gpus[gpu]
            if missing and placed.effort == effort:
                missing -= 1
                placed.spared = 1
                if placed.cut:
                    made += 1
                    w.profiles[WHOLE].coming += 1
                    if effort == IS_IDLE:
                        make_whole(w, gpu)
                    else:
                        placed.drained_for = WHOLE
                        w.profiles[WHOLE].draining += 1
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
