"""The event loop of fleets whose layouts follow a calendar."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import drop, pop
from gpuplanner.simulate.jit import called, compiled, entry
from gpuplanner.simulate.slices.engine import (
    at_rest,
    begin_job,
    earlier,
    end_job,
    give_back,
    let_arrive,
    next_instant,
    start_jobs,
)
from gpuplanner.simulate.slices.layout_changes import begin_slot, finish_reconfiguration, open_fleet
from gpuplanner.simulate.slices.operations import (
    CORDONED,
    begin_operations,
    cut_if_empty,
    give_up_operation,
    keep_to_plan,
    next_deadline,
    return_node,
)
from gpuplanner.simulate.slices.world import EVICTED, NONE, ON, WHOLE, World


@entry
def advance(w: World) -> bool:
    """Run until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    if s.slot == NONE:
        open_fleet(w)
    while len(w.log) - s.logged >= 8 * len(w.gpus):
        now = next_instant(w)
        if len(w.operations):
            now = min(now, next_deadline(w))
        if now == np.inf or (now > w.until_s and at_rest(w)):
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end_job(w, job)
        while s.coming and w.coming[0].at <= now:
            if w.coming[0].who < len(w.gpus):
                finish_reconfiguration(w)
            else:
                number = w.coming[0].who - len(w.gpus)
                s.coming = pop(w.coming, s.coming)
                return_node(w, number)
        if s.slot + 1 < len(w.slot_starts) and w.slot_starts[s.slot + 1] <= now:
            if len(w.numbered):
                s.slot += 1
                keep_to_plan(w)
            else:
                begin_slot(w)
        let_arrive(w)
        if len(w.operations):
            settle_operations(w)
            begin_operations(w)
        start_jobs(w)
        if w.before_change:
            start_before_changes(w)
    return False


@compiled
def settle_operations(w: World) -> None:
    """Cut what is empty and due; give up, or clear by force, what has not emptied within its time limit."""
    for number in range(w.status[0].settled, w.status[0].operation):
        mine = w.operations[number]
        if mine.stage == CORDONED and w.before_change and mine.planned <= w.status[0].now:
            cut_if_empty(w, number)
        if mine.stage == CORDONED and mine.deadline <= w.status[0].now:
            if w.evict:
                evict(w, number)
            else:
                give_up_operation(w, number)


@called
def evict(w: World, number: int) -> None:
    """Stop all jobs on the GPUs of an operation; they wait again, by their age, with what their checkpoints kept."""
    s, mine = w.status[0], w.operations[number]
    mine.outcome, mine.deadline = EVICTED, np.inf
    rank = 0
    while rank < s.running:
        job = w.ends[rank].who
        if holds(w, job, mine.first, mine.first + mine.gpus):
            s.running = drop(w.ends, s.running, job)
            stop(w, job)
            rank = 0
        else:
            rank += 1


@compiled
def holds(w: World, job: int, first: int, end: int) -> bool:
    """Whether a running job holds something on some GPUs."""
    gpu = w.jobs[job].gpu
    if w.jobs[job].served != WHOLE:
        return bool(first <= gpu < end)
    while gpu != NONE:
        if first <= gpu < end:
            return True
        gpu = w.gpus[gpu].next
    return False


@compiled
def stop(w: World, job: int) -> None:
    """Stop a running job, and let it wait again."""
    mine, queue = w.jobs[job], w.profiles[w.jobs[job].profile]
    ran, kept = w.status[0].now - mine.since, 0.0
    restart = w.restart_s if mine.evicted else mine.lost
    worked, needed = max(ran - restart, 0.0), mine.end - mine.since - restart
    if w.checkpoint_s == 0.0:
        kept = worked
    elif w.checkpoint_s < np.inf:
        kept = worked // w.checkpoint_s * w.checkpoint_s
    if needed > 0.0:
        mine.run *= 1.0 - kept / needed
    mine.lost += ran - kept - restart
    mine.evicted += 1
    mine.end = np.nan
    give_back(w, job)
    if queue.head == NONE or earlier(w.jobs, job, queue.head):
        mine.behind = queue.head
        if queue.head == NONE:
            queue.tail = job
        queue.head = job
        return
    before = queue.head
    while before != queue.tail and earlier(w.jobs, w.jobs[before].behind, job):
        before = w.jobs[before].behind
    mine.behind = NONE if before == queue.tail else w.jobs[before].behind
    if before == queue.tail:
        queue.tail = job
    w.jobs[before].behind = job


@called
def start_before_changes(w: World) -> None:
    """Start waiting jobs on cordoned GPUs if by their limits they end before the change is planned."""
    s = w.status[0]
    for number in range(s.settled, s.operation):
        mine = w.operations[number]
        if mine.stage != CORDONED or mine.planned <= s.now:
            continue
        for profile in range(len(w.profiles)):
            before, job = NONE, w.profiles[profile].head
            while job != NONE:
                behind = w.jobs[job].behind if job != w.profiles[profile].tail else NONE
                fits = s.now + w.jobs[job].limit <= mine.planned
                if fits and start_cordoned(w, job, profile, mine.first, mine.first + mine.gpus):
                    mine.drained = np.nan
                    if before == NONE:
                        w.profiles[profile].head = behind
                    else:
                        w.jobs[before].behind = behind
                    if behind == NONE:
                        w.profiles[profile].tail = before
                else:
                    before = job
                job = behind


@compiled
def open_until_change(w: World, gpu: int) -> bool:
    """Whether a GPU is cordoned, and not to be released before."""
    return bool(w.gpus[gpu].leaving and w.gpus[gpu].state == ON and w.cut[w.status[0].slot, gpu] != NONE)


@compiled
def start_cordoned(w: World, job: int, profile: int, first: int, end: int) -> bool:
    """Start a job on cordoned GPUs if they have what it asks for."""
    found, wanted, last = 0, w.jobs[job].gpus, NONE
    for gpu in range(first, end):
        found += w.free[gpu, profile] > 0 and open_until_change(w, gpu)
    if found < wanted:
        return False
    for gpu in range(first, end):
        if wanted and w.free[gpu, profile] and open_until_change(w, gpu):
            wanted -= 1
            w.free[gpu, profile] -= 1
            w.gpus[gpu].busy += w.profiles[profile].slices
            w.gpus[gpu].next = NONE
            if last == NONE:
                w.jobs[job].gpu = gpu
            else:
                w.gpus[last].next = gpu
            last = gpu
    w.jobs[job].served = profile
    begin_job(w, job)
    return True
