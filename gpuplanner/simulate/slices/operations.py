"""Changes of layout as operators make them: cordon, drain, a time limit, cut, return.

An operation changes the GPUs of one node together, or one GPU. From its cordon on nothing new starts there; when the
last job has ended all GPUs that change are cut, and come back together with the others. Where the scheduler reserves
ahead, jobs that end before the change by their limits start until then, and nothing is cut before. Where jobs run
longer than the time limit the operation is given up, and the GPUs keep their layout until the next one; or these jobs
are evicted. The cordon of the next operation on the same GPUs comes when this one is over.
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
    """Cordon what is due; where an operation is under way, the next one follows it."""
    s = w.status[0]
    while s.operation < len(w.operations) and w.operations[s.operation].cordon <= s.now:
        number = s.operation
        s.operation += 1
        before = w.gpus[w.operations[number].first].operation
        if before == NONE:
            begin_operation(w, number)
        else:
            if w.operations[before].then != NONE:
                finish(w, w.operations[before].then, GIVEN_UP)
            w.operations[before].then = number


@called
def begin_operation(w: World, number: int) -> None:
    """Cordon the GPUs of an operation."""
    mine = w.operations[number]
    mine.began, mine.stage = w.status[0].now, CORDONED
    for gpu in range(mine.first, mine.first + mine.gpus):
        w.gpus[gpu].operation = number
        if w.gpus[gpu].state == ON and not w.gpus[gpu].leaving:
            cordon(w, gpu)
    cut_if_empty(w, number)


@called
def follow(w: World, number: int) -> None:
    """Go on with the next operation on the same GPUs if it is due."""
    then = w.operations[number].then
    if then != NONE and w.operations[then].deadline <= w.status[0].now:
        finish(w, then, GIVEN_UP)
    elif then != NONE:
        begin_operation(w, then)


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
    """Cut the GPUs of an operation if no job is left on them, and not before the change is planned if they serve on."""
    s, mine, seconds = w.status[0], w.operations[number], 0.0
    for gpu in range(mine.first, mine.first + mine.gpus):
        if w.gpus[gpu].busy:
            return
    if np.isnan(mine.drained):
        mine.drained = s.now
    if w.before_change and s.now < mine.planned:
        return
    mine.stage = CUTTING
    for gpu in range(mine.first, mine.first + mine.gpus):
        layout, before = w.cut[mine.slot, gpu], w.gpus[gpu].layout
        if before == NONE:
            before = w.gpus[gpu].held
        if layout != NONE and layout != before:
            seconds = max(seconds, w.change_s[before, layout])
            w.gpus[gpu].layout, w.gpus[gpu].state = layout, RECONFIGURING
            note(w, gpu, RECONFIGURING)
    s.coming = push(w.coming, s.coming, s.now + seconds, len(w.gpus) + number)


@called
def return_node(w: World, number: int) -> None:
    """Bring back the GPUs of an operation that has been carried out."""
    mine = w.operations[number]
    finish(w, number, DONE)
    for gpu in range(mine.first, mine.first + mine.gpus):
        w.gpus[gpu].operation = NONE
        w.gpus[gpu].leaving = 0
        if w.numbered[w.status[0].slot, gpu] == NONE and w.gpus[gpu].layout != NONE:
            made = w.gpus[gpu].layout
            switch_gpu_off(w, gpu)
            if w.cut[mine.slot, gpu] != NONE:
                w.gpus[gpu].held = made  # for the slot that it was made for
        elif w.gpus[gpu].layout != NONE:
            come_up(w, gpu, w.gpus[gpu].layout)
    keep_to_plan(w)
    follow(w, number)


@compiled
def switch_gpu_off(w: World, gpu: int) -> None:
    """Switch off a GPU that nothing runs on and that is not on offer; it stays cut as it is, or is released."""
    for profile in range(len(w.profiles)):
        w.free[gpu, profile] = 0
    released = w.cut[w.status[0].slot, gpu] == NONE
    w.gpus[gpu].held = WHOLE if released else w.gpus[gpu].layout
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
        release_meanwhile(w, gpu)


@called
def give_up_operation(w: World, number: int) -> None:
    """Take the cordon off again; what the plan has off goes off when it is idle."""
    mine = w.operations[number]
    finish(w, number, GIVEN_UP)
    for gpu in range(mine.first, mine.first + mine.gpus):
        w.gpus[gpu].operation = NONE
        if w.gpus[gpu].state == ON and w.gpus[gpu].leaving:
            uncordon(w, gpu)
    keep_to_plan(w)
    follow(w, number)


@called
def keep_to_plan(w: World) -> None:
    """Switch GPUs on and off as the slot in force has them, cut as they are, where no operation is under way."""
    for gpu in range(len(w.gpus)):
        mine, layout = w.gpus[gpu], w.numbered[w.status[0].slot, gpu]
        if mine.operation != NONE:
            release_meanwhile(w, gpu)
        elif layout == NONE and mine.state == ON and not mine.leaving:
            cordon(w, gpu)
            if mine.busy == 0:
                switch_gpu_off(w, gpu)
        elif layout != NONE and mine.state == ON and mine.leaving:
            uncordon(w, gpu)
        elif layout != NONE and mine.state == OFF:
            come_up(w, gpu, mine.held)


@compiled
def release_meanwhile(w: World, gpu: int) -> None:
    """Release a GPU that waits for an operation, and take it back, as the slot in force has it."""
    mine, slot = w.gpus[gpu], w.status[0].slot
    if w.operations[mine.operation].stage != CORDONED:
        return
    if w.cut[slot, gpu] == NONE and mine.state == ON and mine.busy == 0:
        switch_gpu_off(w, gpu)
    elif w.cut[slot, gpu] == WHOLE and w.numbered[slot, gpu] != NONE and mine.state == OFF:
        come_up(w, gpu, mine.held)
        cordon(w, gpu)


@compiled
def next_deadline(w: World) -> float:
    """When the next cordon, planned change or time limit is due; infinite if none is."""
    s, at = w.status[0], np.inf
    if s.operation < len(w.operations):
        at = w.operations[s.operation].cordon
    while s.settled < s.operation and w.operations[s.settled].stage == OVER:
        s.settled += 1
    for number in range(s.settled, s.operation):
        mine = w.operations[number]
        if mine.stage == CORDONED:
            at = min(at, mine.planned if w.before_change and mine.planned > s.now else mine.deadline)
    return at
