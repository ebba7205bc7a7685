"""Changes of layout as operators make them: cordon, drain, a time limit, cut, return.

An operation changes the GPUs of one node together, or one GPU. From its cordon on nothing new starts there, but for
jobs that end before the change by their limits where the scheduler keeps to that. When the last job has ended all GPUs
that change are cut, and come back together with the others. Where jobs run longer than the time limit the operation is
given up, and the GPUs keep their layout until the next one; or these jobs are evicted.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import push
from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.layout_changes import come_up, note, offer
from gpuplanner.simulate.slices.world import (
    DONE,
    DRAINING,
    GIVEN_UP,
    NONE,
    OFF,
    ON,
    RECONFIGURING,
    WHOLE,
    World,
)

PLANNED, CORDONED, CUTTING, OVER = range(4)


@called
def begin_operations(w: World) -> None:
    """Cordon what is due."""
    s = w.status[0]
    while s.operation < len(w.operations) and w.operations[s.operation].cordon <= s.now:
        number = s.operation
        s.operation += 1
        mine = w.operations[number]
        mine.began, mine.stage = s.now, CORDONED
        for gpu in range(mine.first, mine.first + mine.gpus):
            before = w.gpus[gpu].operation
            if before != NONE:
                if w.operations[before].stage == CORDONED:
                    finish(w, before, GIVEN_UP)
                mine.behind = before if w.operations[before].stage == CUTTING else w.operations[before].behind
            w.gpus[gpu].operation = number
            if w.gpus[gpu].state == ON and not w.gpus[gpu].leaving:
                cordon(w, gpu)
        cut_if_empty(w, number)


@compiled
def cordon(w: World, gpu: int) -> None:
    """Let nothing new start on a GPU."""
    w.gpus[gpu].leaving = 1
    offer(w, gpu, -1)
    note(w, gpu, DRAINING)


@compiled
def uncordon(w: World, gpu: int) -> None:
    """Offer a GPU again."""
    w.gpus[gpu].leaving = 0
    offer(w, gpu, 1)
    note(w, gpu, ON)


@compiled
def finish(w: World, number: int, outcome: int) -> None:
    """Write how an operation ended."""
    mine = w.operations[number]
    mine.stage, mine.ended = OVER, w.status[0].now
    if mine.outcome == NONE:
        mine.outcome = outcome


@called
def cut_if_empty(w: World, number: int) -> None:
    """Cut the GPUs of an operation if no job is left on them and none is still being cut."""
    s, mine, seconds = w.status[0], w.operations[number], 0.0
    if mine.behind != NONE and w.operations[mine.behind].stage == CUTTING:
        return
    for gpu in range(mine.first, mine.first + mine.gpus):
        if w.gpus[gpu].busy:
            return
    mine.drained, mine.stage = s.now, CUTTING
    for gpu in range(mine.first, mine.first + mine.gpus):
        layout, before = w.numbered[mine.slot, gpu], w.gpus[gpu].layout
        if layout != NONE and layout != before:
            seconds = max(seconds, w.change_s[WHOLE if before == NONE else before, layout])
            w.gpus[gpu].layout, w.gpus[gpu].state = layout, RECONFIGURING
            note(w, gpu, RECONFIGURING)
    s.coming = push(w.coming, s.coming, s.now + seconds, len(w.gpus) + number)


@called
def return_node(w: World, number: int) -> None:
    """Bring back the GPUs of an operation that has been carried out."""
    mine = w.operations[number]
    finish(w, number, DONE)
    following = w.gpus[mine.first].operation
    for gpu in range(mine.first, mine.first + mine.gpus):
        planned_off = w.numbered[w.status[0].slot, gpu] == NONE and w.numbered[mine.slot, gpu] == NONE
        w.gpus[gpu].leaving = 0
        if planned_off and w.gpus[gpu].layout != NONE:
            switch_gpu_off(w, gpu)
        elif w.gpus[gpu].layout != NONE:
            come_up(w, gpu, w.gpus[gpu].layout)
        if following == number:
            w.gpus[gpu].operation = NONE
        elif w.gpus[gpu].state == ON:
            cordon(w, gpu)
    if following != number:  # it began meanwhile
        cut_if_empty(w, following)


@compiled
def switch_gpu_off(w: World, gpu: int) -> None:
    """Switch off a GPU that nothing runs on and that is not on offer."""
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = 0
    w.gpus[gpu].leaving, w.gpus[gpu].layout, w.gpus[gpu].state = 0, NONE, OFF
    note(w, gpu, OFF)


@called
def vacated(w: World, gpu: int) -> None:
    """Go on with a cordoned GPU that the last job has left, or switch off one that is not planned any more."""
    number = w.gpus[gpu].operation
    if number == NONE:
        switch_gpu_off(w, gpu)
    elif w.operations[number].stage == CORDONED:
        cut_if_empty(w, number)


@called
def give_up_operation(w: World, number: int) -> None:
    """Take the cordon off again; what the plan has off goes off when it is idle."""
    mine = w.operations[number]
    finish(w, number, GIVEN_UP)
    cutting = mine.behind != NONE and w.operations[mine.behind].stage == CUTTING
    for gpu in range(mine.first, mine.first + mine.gpus):
        w.gpus[gpu].operation = mine.behind if cutting else NONE
        if not cutting and w.gpus[gpu].state == ON and w.gpus[gpu].leaving:
            uncordon(w, gpu)
    keep_to_plan(w)


@called
def keep_to_plan(w: World) -> None:
    """Switch GPUs on and off as the slot in force has them, where no operation is under way."""
    for gpu in range(len(w.gpus)):
        mine, layout = w.gpus[gpu], w.numbered[w.status[0].slot, gpu]
        if mine.operation != NONE:
            continue
        if layout == NONE and mine.state == ON and not mine.leaving:
            cordon(w, gpu)
            if mine.busy == 0:
                switch_gpu_off(w, gpu)
        elif layout != NONE and mine.state == ON and mine.leaving:
            uncordon(w, gpu)
        elif layout == WHOLE and mine.state == OFF:
            come_up(w, gpu, WHOLE)


@compiled
def next_deadline(w: World) -> float:
    """When the next cordon or time limit is due; infinite if none is."""
    s, at = w.status[0], np.inf
    if s.operation < len(w.operations):
        at = w.operations[s.operation].cordon
    while s.settled < s.operation and w.operations[s.settled].stage == OVER:
        s.settled += 1
    for number in range(s.settled, s.operation):
        if w.operations[number].stage == CORDONED:
            at = min(at, w.operations[number].deadline)
    return at
