"""Which nodes a job on whole GPUs gets, now or later."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from gpuplanner.simulate.jit import compiled
from gpuplanner.simulate.slices.world import NONE

Machine: TypeAlias = Any
"""A world of GPUs: nodes, idle counts, and what is chosen and due."""


@compiled
def change_node(w: Machine, node: int, change: int) -> None:
    """Count the idle whole GPUs of a node up or down."""
    idle = w.nodes[node].idle
    w.idle[idle].nodes -= 1
    idle += change
    w.idle[idle].nodes += 1
    w.idle[idle].lowest = min(w.idle[idle].lowest, node)
    w.nodes[node].idle = idle


@compiled
def choose_nodes(w: Machine, gpus: int, passing: bool) -> int:
    """Choose nodes for a job on whole GPUs into ``chosen``; return how many, 0 if it does not fit.

    Up to one node: the node with the fewest idle GPUs that still holds it. More: wholly idle nodes. Lowest
    numbers first. A job that passes the head in its way keeps to the ceiling of each node.
    """
    found, part, count = 0, min(gpus, w.per_node), (gpus + w.per_node - 1) // w.per_node
    if count > 1 and count > w.idle[w.per_node].nodes:
        return 0
    if len(w.nodes) == 1:  # a pool, of perhaps thousands of GPUs: no need to look for a node
        w.chosen[0] = 0
        return 1 if w.nodes[0].idle >= part and (not passing or w.nodes[0].ceiling >= part) else 0
    for idle in range(part, w.per_node + 1):
        unseen, node = w.idle[idle].nodes, w.idle[idle].lowest
        while unseen:
            if w.nodes[node].idle == idle:
                if unseen == w.idle[idle].nodes:
                    w.idle[idle].lowest = node
                unseen -= 1
                if not passing or w.nodes[node].ceiling >= part:
                    w.chosen[found] = node
                    found += 1
                    if found == count:
                        return int(count)
            node += 1
    return 0


@compiled
def reserve(w: Machine, gpus: int) -> float:
    """Return when, by limits, the head can start (the shadow time), and set the ceiling of its nodes.

    Infinite, and nothing is kept, if the ends of running jobs do not make room: GPUs may come with a later
    slot, whose drains nobody can foretell.
    """
    part, count = min(gpus, w.per_node), (gpus + w.per_node - 1) // w.per_node
    enough = look_ahead(w, part)
    rank, holding = 0, w.status[0].holding
    shadow: float = w.status[0].now
    while enough < count or (rank < holding and w.due[rank].at <= shadow):
        if rank == holding:
            return np.inf
        job = w.due[rank].who
        shadow = max(shadow, w.due[rank].at)
        rank += 1
        gpu = w.jobs[job].gpu
        while gpu != NONE:
            if not w.gpus[gpu].leaving:
                node = gpu // w.per_node
                w.nodes[node].future += 1
                enough += w.nodes[node].future == part
            gpu = w.gpus[gpu].next
    keep_nodes(w, part, count)
    return shadow


@compiled
def look_ahead(w: Machine, part: int) -> int:
    """Begin to reserve, with the idle GPUs of every node and no ceilings; return how many nodes hold a part now."""
    enough = 0
    for node in range(len(w.nodes)):
        w.nodes[node].ceiling, w.nodes[node].future = w.per_node, w.nodes[node].idle
        enough += w.nodes[node].idle >= part
    return enough


@compiled
def keep_off(w: Machine, gpus: int, nodes: int) -> None:
    """Lower the ceilings of the chosen nodes by what a job takes there that is in the way of the head."""
    for rank in range(nodes):
        w.nodes[w.chosen[rank]].ceiling -= min(gpus - rank * w.per_node, w.per_node)


@compiled
def keep_nodes(w: Machine, part: int, count: int) -> None:
    """Lower the ceiling of the nodes that the head will get, by what they will have idle."""
    for idle in range(part, w.per_node + 1):
        for node in range(len(w.nodes)):
            if w.nodes[node].future == idle:
                w.nodes[node].ceiling = idle - part
                count -= 1
                if count == 0:
                    return


@compiled
def note_due(w: Machine, job: int, due: float) -> None:
    """Keep when a running job is over by its limit, in order of time."""
    s = w.status[0]
    place = s.holding
    while place and w.due[place - 1].at > due:
        w.due[place] = w.due[place - 1]
        place -= 1
    w.due[place].at, w.due[place].who = due, job
    s.holding += 1


@compiled
def forget_due(w: Machine, job: int) -> None:
    """Take a job off the list of those to end by their limits."""
    place = 0
    while w.due[place].who != job:
        place += 1
    w.status[0].holding -= 1
    for rank in range(place, w.status[0].holding):
        w.due[rank] = w.due[rank + 1]
