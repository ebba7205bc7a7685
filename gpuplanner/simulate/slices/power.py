"""GPUs that are released when they are idle, and come back when somebody needs them.

A unit is one GPU or all GPUs of a node. It goes off once all of it has been idle for ``idle_s``, unless the reserve or
the floor needs it. Units of the nodes with the fewest GPUs in use go first, then those with the highest number. What
goes off forgets its layout.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.instances import BOOTED, come, is_whole, remove_idle, taken, touch
from gpuplanner.simulate.slices.layout_changes import offer
from gpuplanner.simulate.slices.world import (
    IDLE_BOOTING,
    IDLE_ON,
    IS_BOOTING,
    IS_OFF,
    NONE,
    WHOLE,
    Slicing,
    World,
)


@called
def take_stock(w: World) -> None:
    """Count anew the GPUs that changed in this instant: which are idle, and what those in use have room for."""
    s = w.status[0]
    for rank in range(s.touched):
        gpu = w.slicing.touched[rank]
        placed, idle = w.slicing.gpus[gpu], 0
        free = placed.owner == NONE and not placed.making and not placed.rebooting
        if placed.off:
            idle = IDLE_BOOTING if free and placed.off == IS_BOOTING else 0
        elif (
            free
            and not taken(w.slicing.gpus[gpu])
            and (placed.cut or is_whole(w.free, w.slicing.gpus[gpu], gpu))
        ):
            idle = IDLE_ON
            placed.until = 0.0
        if w.power.unit:
            count_unit(w, gpu, idle)
            if len(w.power.room):
                find_room(w, gpu, idle)
        s.idle += int(idle == IDLE_ON) - int(placed.idle == IDLE_ON)
        s.spare += int(idle == IDLE_BOOTING) - int(placed.idle == IDLE_BOOTING)
        placed.idle = idle


@compiled
def count_unit(w: World, gpu: int, idle: int) -> None:
    """Count a GPU that becomes idle, or no longer is; a unit that is idle as a whole gets a timer."""
    s, placed = w.status[0], w.slicing.gpus[gpu]
    unit, node = w.power.units[gpu // w.power.unit], w.nodes[gpu // w.per_node]
    in_use = int(placed.off == 0 and idle != IDLE_ON)
    node.in_use += in_use - placed.in_use
    placed.in_use = in_use
    if (idle == IDLE_ON) == (placed.idle == IDLE_ON):
        return
    if idle == IDLE_ON:
        unit.idle += 1
        if unit.idle == w.power.unit:
            unit.since = s.now
            if not unit.timed:
                unit.timed = 1
                s.timed = push(w.power.timers, s.timed, s.now + w.power.idle_s, gpu // w.power.unit)
    else:
        unit.idle -= 1
        s.ripe -= unit.ripe
        unit.ripe = 0


@compiled
def find_room(w: World, gpu: int, idle: int) -> None:
    """Count what a GPU in use has room for, of the reserve: the largest first, each where it leaves most room."""
    placed, slicing = w.slicing.gpus[gpu], w.slicing
    taken_slices = taken(w.slicing.gpus[gpu])
    cuttable = placed.cut and slicing.one_by_one and gpu >= slicing.keep_whole
    for profile in range(len(w.profiles) - 1, 0, -1):
        found = 0
        if not idle and not placed.off and placed.owner == NONE and w.power.reserve[profile]:
            if cuttable:
                while found < w.power.reserve[profile] and slicing.open[profile, taken_slices]:
                    taken_slices |= slicing.spans[profile] << best_start(slicing, profile, taken_slices)
                    found += 1
            else:
                found = w.free[gpu, profile]
        w.power.room[profile] += found - w.power.rooms[gpu, profile]
        w.power.rooms[gpu, profile] = found


@called
def best_start(slicing: Slicing, profile: int, mask: int) -> int:
    """Where an instance adds least fragmentation beside slices that are taken, if it fits at all."""
    best, loss = NONE, np.inf
    for number in range(slicing.starts.shape[1]):
        start = slicing.starts[profile, number]
        if start == NONE:
            break
        span = slicing.spans[profile] << start
        if not span & mask and slicing.loss[mask | span] < loss:
            best, loss = start, slicing.loss[mask | span]
    return best


@compiled
def idle_needed(w: World) -> int:
    """Idle GPUs that the reserve needs beside the room on those in use; that for a larger profile serves a smaller."""
    reserve, slicing, over = w.power.reserve, w.slicing, 0
    if len(w.power.room) == 0:
        return 0
    gpus, mask = int(reserve[WHOLE]), len(slicing.loss) - 1
    for profile in range(len(w.profiles) - 1, 0, -1):
        short = reserve[profile] - w.power.room[profile]
        helped = min(max(short, 0), over)
        over += max(-short, 0) - helped
        for _ in range(short - helped):
            if not slicing.open[profile, mask]:
                gpus += 1
                mask = 0
            mask |= slicing.spans[profile] << best_start(slicing, profile, mask)
    return gpus


@called
def balance(w: World) -> None:
    """Switch on what reserve and floor are short of, and release what neither needs."""
    s, power = w.status[0], w.power
    take_stock(w)
    while s.timed and power.timers[0].at <= s.now:
        number = power.timers[0].who
        unit = power.units[number]
        s.timed = pop(power.timers, s.timed)
        unit.timed = 0
        if unit.idle == power.unit:
            if unit.since + power.idle_s > s.now:
                unit.timed = 1
                s.timed = push(power.timers, s.timed, unit.since + power.idle_s, number)
            else:
                unit.ripe = 1
                s.ripe += 1
    while s.floor + 1 < len(power.floor_at) and power.floor_at[s.floor + 1] <= s.now:
        s.floor += 1
    floor, needed = power.floor_gpus[s.floor], idle_needed(w)
    while s.idle + s.spare < needed or s.on < min(floor, len(w.gpus)):
        number = first_off(w)
        if number == NONE:
            break
        switch_on(w, number)
        take_stock(w)
    while s.ripe and s.idle + s.spare - power.unit >= needed and s.on - power.unit >= floor:
        switch_off(w, emptiest(w))
        take_stock(w)


@compiled
def first_off(w: World) -> int:
    """The unit that is off with the lowest number; NONE if all are on."""
    for number in range(len(w.power.units)):
        if w.slicing.gpus[number * w.power.unit].off == IS_OFF:
            return number
    return NONE


@compiled
def emptiest(w: World) -> int:
    """The unit that goes first of those that have been idle for long enough."""
    best, least = NONE, w.per_node + 1
    for number in range(len(w.power.units) - 1, -1, -1):
        in_use = w.nodes[number * w.power.unit // w.per_node].in_use
        if w.power.units[number].ripe and in_use < least:
            best, least = number, in_use
    return best


@called
def switch_on(w: World, number: int) -> None:
    """Begin to switch on a unit that is off."""
    for gpu in range(number * w.power.unit, (number + 1) * w.power.unit):
        w.slicing.gpus[gpu].off = IS_BOOTING
        w.status[0].on += 1
        at = w.status[0].now + w.power.lead_s
        come(w.slicing, w.coming, w.status[0], gpu, w.slicing.cuts.shape[1] + BOOTED, at)


@compiled
def switch_off(w: World, number: int) -> None:
    """Switch off a unit that is idle."""
    for gpu in range(number * w.power.unit, (number + 1) * w.power.unit):
        if w.free[gpu, WHOLE]:
            offer(w, gpu, -1)
            w.free[gpu, WHOLE] = 0
        else:
            remove_idle(w.slicing, w.free, w.profiles, gpu, -1)
        w.slicing.gpus[gpu].off = IS_OFF
        w.status[0].on -= 1
        touch(w.slicing, w.status[0], gpu)
    for profile in range(len(w.profiles)):
        w.profiles[profile].hopeless = 0
