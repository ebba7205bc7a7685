"""Which GPU is cut anew for a waiting job.

An instance is put where the change disturbs least: without a reboot before with one, without a change of MIG mode
before with one, then with the fewest idle instances removed. Of such places it takes the one that adds least
fragmentation, then the lowest GPU, then the first start that the driver would try.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.cutting import IMPOSSIBLE, cut, first_without, in_the_way, node_rests
from gpuplanner.simulate.slices.drain import drain_for
from gpuplanner.simulate.slices.engine import earlier
from gpuplanner.simulate.slices.gather import gather
from gpuplanner.simulate.slices.instances import is_whole, may_switch, take_stock, taken
from gpuplanner.simulate.slices.reservations import first_unreserved
from gpuplanner.simulate.slices.world import NONE, WHOLE, Slicing, World

MODE_CHANGE, REBOOT = 1 << 10, 1 << 20
"""How these disturb, in idle instances removed: more than any number of those."""


@called
def reslice(w: World) -> None:
    """Begin the changes that waiting jobs ask for, the job that came first first."""
    s, changed = w.status[0], w.status[0].touched
    if s.day != s.now // 86400.0:
        s.day = s.now // 86400.0
        forget_hopeless(w)
    take_stock(w)
    for profile in range(len(w.profiles)):
        w.profiles[profile].tried = 0
    while True:
        first, chosen = NONE, NONE
        for profile in range(len(w.profiles)):
            if not w.profiles[profile].tried:
                job = (
                    first_without(w.profiles, w.jobs, profile)
                    if profile
                    else first_unreserved(s, w.profiles, w.jobs, w.easy, w.slicing.drain_after_s)
                )
                if job == NONE or w.jobs[job].submit + w.slicing.patience_s > s.now:
                    # Who is not looked at now has to look at all GPUs later.
                    if changed:
                        w.profiles[profile].hopeless = 0
                elif earlier(w.jobs, job, first):
                    first, chosen = job, profile
        if first == NONE:
            return
        long = w.jobs[first].submit + w.slicing.drain_after_s <= s.now
        if chosen == WHOLE:
            if not gather(w, first, long):
                w.profiles[WHOLE].tried = 1
                w.profiles[WHOLE].hopeless = 1 + first if long else 0
            continue
        place = best_place(w, chosen)
        if place != NONE:
            cut(w, place // w.slicing.cuts.shape[1], chosen, place % w.slicing.cuts.shape[1])
            continue
        w.profiles[chosen].hopeless = 1
        if not long or w.profiles[chosen].draining or not drain_for(w, chosen):
            w.profiles[chosen].tried = 1


@compiled
def forget_hopeless(w: World) -> None:
    """Let all GPUs be looked at again."""
    for profile in range(len(w.profiles)):
        w.profiles[profile].hopeless = 0


@called
def best_place(w: World, profile: int) -> int:
    """Where an instance disturbs least: GPU times slices of a GPU, plus start; NONE if it cannot be made now."""
    # Where MIG mode needs a reboot, a GPU may be cut because another one of its node came to rest.
    slicing, only_changed = w.slicing, w.profiles[profile].hopeless and w.slicing.reboot_s == 0.0
    best, least, loss, at = NONE, IMPOSSIBLE, np.inf, NONE
    for rank in range(w.status[0].touched if only_changed else len(w.gpus)):
        gpu = slicing.touched[rank] if only_changed else rank
        fixed = taken(w.slicing.gpus[gpu])
        if (
            gpu < slicing.keep_whole
            or not slicing.open[profile, fixed]
            or not may_switch(w.slicing.gpus[gpu], w.status[0].now, w.slicing.switches_per_day)
        ):
            continue
        mode = mode_change(w, gpu, fixed)
        if mode == IMPOSSIBLE or mode > least:
            continue
        for number in range(slicing.starts.shape[1]):
            start = slicing.starts[profile, number]
            if start == NONE:
                break
            span = slicing.spans[profile] << start
            mask = IMPOSSIBLE if span & fixed else in_the_way(slicing, gpu, profile, span)
            if mask == IMPOSSIBLE:
                continue
            removed = mode + reached(slicing, gpu, mask)
            more = slicing.loss[fixed | span] - slicing.loss[fixed]
            if removed < least or (removed == least and (more < loss or (more == loss and gpu < best))):
                best, least, loss, at = gpu, removed, more, start
    return NONE if best == NONE else best * slicing.cuts.shape[1] + at


@compiled
def mode_change(w: World, gpu: int, fixed: int) -> int:
    """How much a GPU is disturbed before any instance is; IMPOSSIBLE if it cannot change now."""
    placed = w.slicing.gpus[gpu]
    if placed.owner != NONE:
        return IMPOSSIBLE
    if placed.cut == 0:
        if not is_whole(w.free, w.slicing.gpus[gpu], gpu):
            return IMPOSSIBLE
        joins = placed.rebooting and placed.ready == w.status[0].now + w.slicing.reboot_s
        if w.slicing.reboot_s == 0.0 or joins:
            return MODE_CHANGE
        return REBOOT if node_rests(w, gpu // w.per_node) else IMPOSSIBLE
    if placed.rebooting or (not w.slicing.one_by_one and fixed):
        return IMPOSSIBLE
    return 0


@compiled
def reached(slicing: Slicing, gpu: int, mask: int) -> int:
    """How many instances lie in some slices or reach into them."""
    found = 0
    if slicing.gpus[gpu].cut & mask:
        for start in range(slicing.cuts.shape[1]):
            profile = slicing.cuts[gpu, start]
            if profile != NONE and slicing.spans[profile] << start & mask:
                found += 1
    return found
