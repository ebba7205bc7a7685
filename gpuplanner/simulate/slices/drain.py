"""What is drained for a job that has waited long, where no instance can be made for it.

These are the slices of a legal start in which the fewest are in use, then with the least fragmentation, then on
the lowest GPU; through the operator they are all slices of a GPU. Where no cut GPU comes into question, the next
whole GPU that a job gives back is taken. Only GPUs that may be changed on that day come into question.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.cutting import IMPOSSIBLE, cut, in_the_way
from gpuplanner.simulate.slices.engine import earlier
from gpuplanner.simulate.slices.gather import make_whole
from gpuplanner.simulate.slices.instances import drain, give_up, may_switch, touch, withhold
from gpuplanner.simulate.slices.layout_changes import offer
from gpuplanner.simulate.slices.world import NONE, WHOLE, World


@called
def drain_for(w: World, profile: int) -> bool:
    """Begin to drain slices for an instance of a profile; False if there is nothing to drain."""
    slicing, s = w.slicing, w.status[0]
    best, least, loss, at, in_use = NONE, IMPOSSIBLE, np.inf, NONE, False
    for gpu in range(slicing.keep_whole, len(w.gpus)):
        placed = slicing.gpus[gpu]
        if placed.drain or placed.making or placed.rebooting or placed.owner != NONE:
            continue
        if not may_switch(placed, s.now, slicing.switches_per_day):
            continue
        if placed.cut == 0:
            in_use = in_use or not w.free[gpu, WHOLE]
            continue
        for number in range(slicing.starts.shape[1]):
            start = slicing.starts[profile, number]
            if start == NONE:
                break
            span = slicing.spans[profile] << start
            bits, held = placed.held if not slicing.one_by_one else placed.held & span, 0
            while bits:
                bits &= bits - 1
                held += 1
            more = slicing.loss[placed.held | span]
            better = held < least or (held == least and more < loss)
            if better and in_the_way(slicing, gpu, profile, span) != IMPOSSIBLE:
                best, least, loss, at = gpu, held, more, start
    if best != NONE:
        span = -1 if not slicing.one_by_one else slicing.spans[profile] << at
        slicing.gpus[best].drained_for, slicing.gpus[best].drained_at = profile, at
        drain(slicing, w.free, w.profiles, s, best, span, -1)
    elif in_use and s.claim == NONE and slicing.reboot_s == 0.0:
        s.claim = profile
    else:
        return False
    w.profiles[profile].coming += 1
    w.profiles[profile].draining += 1
    return True


@compiled
def claim(w: World, gpu: int) -> None:
    """Keep a whole GPU that a job has given back from others, if it is reserved, or is to be cut for a job."""
    placed, s = w.slicing.gpus[gpu], w.status[0]
    able = gpu >= w.slicing.keep_whole and may_switch(placed, s.now, w.slicing.switches_per_day)
    first = w.profiles[s.claim].head if s.claim != NONE and able else NONE
    if placed.owner != NONE and (first == NONE or earlier(w.jobs, placed.owner, first)):
        withhold(w, gpu)
    elif s.claim != NONE and able:
        if placed.owner != NONE:
            give_up(w, placed.owner)
            s.unreserved = NONE
        offer(w, gpu, -1)
        w.gpus[gpu].leaving = 1
        placed.drain = len(w.slicing.loss) - 1
        placed.drained_for, placed.drained_at = s.claim, w.slicing.starts[s.claim, 0]
        s.claim = NONE
    touch(w.slicing, s, gpu)


@called
def settle_drains(w: World) -> bool:
    """Go on where slices have drained; True if some are offered again, so that jobs may start on them."""
    offered = False
    for rank in range(w.status[0].touched):
        gpu = w.slicing.touched[rank]
        placed = w.slicing.gpus[gpu]
        if placed.drain and not placed.drain & (placed.held | placed.kept):
            offered = not use_drained(w, gpu) or offered
    return offered


@compiled
def use_drained(w: World, gpu: int) -> bool:
    """Cut what has drained on a GPU, or make it whole, as it was meant; False if it is offered again instead.

    That is where nobody waits for an instance any more, or the GPU has had all its changes of the day meanwhile.
    """
    placed, slicing = w.slicing.gpus[gpu], w.slicing
    profile, mask = placed.drained_for, placed.drain
    if profile == WHOLE:
        if may_switch(placed, w.status[0].now, slicing.switches_per_day):
            make_whole(w, gpu)
            return True
        give_up(w, placed.owner)
        w.status[0].unreserved = NONE
        return False
    w.profiles[profile].draining -= 1
    if w.gpus[gpu].leaving:
        w.gpus[gpu].leaving = 0
        offer(w, gpu, 1)
    able = may_switch(placed, w.status[0].now, slicing.switches_per_day)
    wanted = able and w.profiles[profile].head != NONE
    w.profiles[profile].coming -= 1
    if wanted:
        placed.drain = 0
        wanted = in_the_way(slicing, gpu, profile, slicing.spans[profile] << placed.drained_at) != IMPOSSIBLE
        placed.drain = mask
    if wanted:
        cut(w, gpu, profile, placed.drained_at)
        placed.drain = 0
    else:
        drain(slicing, w.free, w.profiles, w.status[0], gpu, mask, 1)
        w.profiles[WHOLE].hopeless = 0
    return bool(wanted)
