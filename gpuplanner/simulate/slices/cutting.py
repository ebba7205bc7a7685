"""How a GPU is cut anew for waiting jobs.

Instances that jobs hold, that are being made, or whose slices are drained stay where they are. Through the driver
one instance is made beside what is there. Through the operator all instances of a GPU without jobs are made anew:
for the job at hand, then for those that wait behind it as far as they fit, then full.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.engine import earlier
from gpuplanner.simulate.slices.instances import (
    IS_BACK,
    come,
    count_switch,
    place,
    remove_idle,
    taken,
)
from gpuplanner.simulate.slices.layout_changes import offer
from gpuplanner.simulate.slices.world import NONE, WHOLE, Slicing, Table, World

IMPOSSIBLE = 1 << 60


@called
def first_without(profiles: Table, jobs: Table, profile: int) -> int:
    """First job waiting for an instance for which none is being made; NONE if there is none."""
    job: int = profiles[profile].head
    coming = profiles[profile].coming
    while job != NONE and coming:
        job = jobs[job].behind if job != profiles[profile].tail else NONE
        coming -= 1
    return job


@called
def in_the_way(slicing: Slicing, gpu: int, profile: int, span: int) -> int:
    """Slices whose idle instances have to go if one is made in some slices; IMPOSSIBLE if engines do not suffice.

    These are the slices themselves, and those of all idle instances that take of an engine which runs short.
    """
    resources, slices = len(slicing.budget), slicing.cuts.shape[1]
    if resources == 0:
        return span
    fixed = slicing.gpus[gpu].held | slicing.gpus[gpu].kept | slicing.gpus[gpu].drain
    for resource in range(resources):
        slicing.room[resource] = slicing.budget[resource] - slicing.takes[profile, resource]
    for idle in range(2):
        for start in range(slices):
            other = slicing.cuts[gpu, start]
            if other != NONE and idle != fixed >> start & 1 and not slicing.spans[other] << start & span:
                for resource in range(resources):
                    slicing.room[resource] -= slicing.takes[other, resource]
        if idle == 0:
            for resource in range(resources):
                if slicing.room[resource] < 0:
                    return IMPOSSIBLE
    for resource in range(resources):
        if slicing.room[resource] < 0:
            for start in range(slices):
                other = slicing.cuts[gpu, start]
                if other != NONE and not fixed >> start & 1 and slicing.takes[other, resource]:
                    span |= slicing.spans[other] << start
    return span


@called
def cut(w: World, gpu: int, profile: int, start: int) -> None:
    """Begin to make an instance on a GPU."""
    slicing, was_whole = w.slicing, w.free[gpu, WHOLE]
    placed = slicing.gpus[gpu]
    count_switch(w.slicing.gpus[gpu], w.status[0], w.slicing.switches_per_day)
    if was_whole:
        if slicing.reboot_s == 0.0:
            offer(w, gpu, -1)
        elif not placed.rebooting:
            reboot(w, gpu // w.per_node)
        placed.rebooting, w.gpus[gpu].leaving, w.free[gpu, WHOLE] = 0, 0, 0
    mask = -1
    if slicing.one_by_one:
        mask = in_the_way(slicing, gpu, profile, slicing.spans[profile] << start)
    changed = remove_idle(w.slicing, w.free, w.profiles, gpu, mask) + 1
    place(w.slicing, w.profiles, gpu, profile, start)
    if not slicing.one_by_one:
        changed += fill(w, gpu, profile)
    at = max(w.status[0].now, placed.ready)
    if not was_whole or slicing.reboot_s == 0.0:  # else it is made while the node reboots
        at += slicing.change_s + changed * slicing.instance_s
    for slot in range(slicing.cuts.shape[1]):
        if slot == start or (not slicing.one_by_one and slicing.cuts[gpu, slot] != NONE):
            come(w.slicing, w.coming, w.status[0], gpu, slot, at)


@called
def fill(w: World, gpu: int, profile: int) -> int:
    """Make more on a GPU: what jobs wait for, in their order; then the profile at hand; then the largest that fit."""
    made, job_waits, number = 0, True, 0
    while number < len(w.profiles):
        first, chosen = NONE, NONE
        if job_waits:
            for other in range(1, len(w.profiles)):
                job = first_without(w.profiles, w.jobs, other)
                if job != NONE and earlier(w.jobs, job, first) and free_start(w.slicing, gpu, other) != NONE:
                    first, chosen = job, other
            job_waits = first != NONE
        if not job_waits:
            chosen = profile if number == 0 else len(w.profiles) - number
        at = free_start(w.slicing, gpu, chosen)
        if at == NONE:
            number += 1
        else:
            place(w.slicing, w.profiles, gpu, chosen, at)
            made += 1
    return made


@called
def free_start(slicing: Slicing, gpu: int, profile: int) -> int:
    """Where one more instance would add least fragmentation on a GPU; NONE if it does not fit."""
    at, loss, cut_slices = NONE, np.inf, slicing.gpus[gpu].cut
    for number in range(slicing.starts.shape[1]):
        start = slicing.starts[profile, number]
        if start == NONE:
            break
        span = slicing.spans[profile] << start
        better = not span & cut_slices and slicing.loss[cut_slices | span] < loss
        if better and in_the_way(slicing, gpu, profile, span) == span:
            at, loss = start, slicing.loss[cut_slices | span]
    return at


@called
def reboot(w: World, node: int) -> None:
    """Take all GPUs of a node that rests out of service, for as long as a change of MIG mode takes."""
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        placed = w.slicing.gpus[gpu]
        if not placed.making:
            if not w.gpus[gpu].leaving:
                offer(w, gpu, -1)
            if placed.owner != NONE:
                w.status[0].ready -= w.jobs[placed.owner].reserved > 0 and w.jobs[placed.owner].pending == 0
                w.jobs[placed.owner].pending += 1
            placed.rebooting, w.gpus[gpu].leaving = 1, 1
            come(
                w.slicing,
                w.coming,
                w.status[0],
                gpu,
                w.slicing.cuts.shape[1] + IS_BACK,
                w.status[0].now + w.slicing.reboot_s,
            )


@compiled
def node_rests(w: World, node: int) -> bool:
    """Whether nothing runs or changes on a node."""
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        placed = w.slicing.gpus[gpu]
        if (
            taken(w.slicing.gpus[gpu])
            or placed.making
            or placed.rebooting
            or (placed.cut == 0 and not w.free[gpu, WHOLE])
        ):
            return False
    return True
