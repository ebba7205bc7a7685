"""The steps of the event loop. They know only time, GPUs and instances.

Within one instant: ends, then reconfigurations done, then the calendar, then arrivals, then starts. Ties go to the
lowest number of job, node and GPU.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import push
from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.slices.layout_changes import leave, offer
from gpuplanner.simulate.slices.operations import vacated
from gpuplanner.simulate.slices.whole_gpus import (
    change_node,
    choose_nodes,
    forget_due,
    keep_off,
    note_due,
    reserve,
)
from gpuplanner.simulate.slices.world import NONE, WHOLE, Table, World


@compiled
def let_arrive(w: World) -> None:
    """Queue the jobs that have come."""
    s = w.status[0]
    while s.arrived < w.arrivals and w.jobs[s.arrived].submit <= s.now:
        enqueue(w, s.arrived)
        s.arrived += 1


@compiled
def next_instant(w: World) -> float:
    """When something happens next; infinite if nothing ever does."""
    s = w.status[0]
    now = np.inf
    if s.running:
        now = w.ends[0].at
    if s.coming:
        now = min(now, w.coming[0].at)
    if s.slot + 1 < len(w.slot_starts):
        now = min(now, w.slot_starts[s.slot + 1])
    if s.arrived < w.arrivals:
        now = min(now, w.jobs[s.arrived].submit)
    return now


@compiled
def at_rest(w: World) -> bool:
    """Whether no job runs, waits or is still to come."""
    busy = w.status[0].running > 0 or w.status[0].arrived < w.arrivals
    for profile in range(len(w.profiles)):
        busy = busy or w.profiles[profile].head != NONE
    return not busy


@compiled
def enqueue(w: World, job: int) -> None:
    """Put a job at the end of the queue of its profile."""
    queue = w.profiles[w.jobs[job].profile]
    if queue.head == NONE:
        queue.head = job
    else:
        w.jobs[queue.tail].behind = job
    queue.tail = job


@compiled
def earlier(jobs: Table, job: int, other: int) -> bool:
    """Whether a job came to its queue before another one, or there is no other."""
    if other == NONE or jobs[job].submit < jobs[other].submit:
        return True
    return bool(jobs[job].submit == jobs[other].submit and job < other)


@compiled
def take_head(w: World, profile: int) -> int:
    """Remove the first job of a queue and return it."""
    job: int = w.profiles[profile].head
    w.profiles[profile].head = w.jobs[job].behind
    return job


@compiled
def start_jobs(w: World) -> None:
    """Start what can start: each queue in order, then passing jobs, then substitutes for waiting heads.

    A head takes a larger instance only after every queue was served with its own profile, so never one that
    a waiting job asked for by name. Among heads, the first to arrive chooses first.
    """
    whole = w.profiles[WHOLE]
    while whole.head != NONE and whole.available:
        nodes = choose_nodes(w, w.jobs[whole.head].gpus, False)
        if nodes == 0:
            if w.easy and whole.head != whole.tail:
                backfill(w)
            break
        start_whole(w, take_head(w, WHOLE), nodes)
    for profile in range(1, len(w.profiles)):
        while w.profiles[profile].head != NONE and w.profiles[profile].available:
            start_instance(w, take_head(w, profile), profile)
    while True:
        first, profile, larger = NONE, NONE, NONE
        for waiting in range(1, len(w.profiles)):
            head = w.profiles[waiting].head
            if head != NONE and earlier(w.jobs, head, first):
                for other in w.substitutes[waiting]:
                    if other != NONE and w.profiles[other].available:
                        first, profile, larger = head, waiting, other
                        break
        if first == NONE:
            return
        start_instance(w, take_head(w, profile), larger)


@compiled
def backfill(w: World) -> None:
    """EASY: jobs pass the head if they end by its shadow time, or keep off what it will need."""
    before = w.profiles[WHOLE].head
    shadow = reserve(w, w.jobs[before].gpus)
    job = w.jobs[before].behind
    while job != NONE and w.profiles[WHOLE].available:
        behind = w.jobs[job].behind
        in_the_way = w.status[0].now + w.jobs[job].limit > shadow
        nodes = choose_nodes(w, w.jobs[job].gpus, in_the_way)
        if nodes:
            if in_the_way:
                keep_off(w, w.jobs[job].gpus, nodes)
            start_whole(w, job, nodes)
            w.jobs[before].behind = behind
            if behind == NONE:
                w.profiles[WHOLE].tail = before
        else:
            before = job
        job = behind


@compiled
def start_instance(w: World, job: int, profile: int) -> None:
    """Start a job on an instance of the profile, on the lowest GPU that offers one."""
    offered = w.profiles[profile]
    gpu = offered.lowest
    while w.free[gpu, profile] == 0 or w.gpus[gpu].leaving:
        gpu += 1
    offered.lowest = gpu
    offered.available -= 1
    w.free[gpu, profile] -= 1
    w.gpus[gpu].busy += offered.slices
    w.jobs[job].gpu, w.jobs[job].served = gpu, profile
    begin_job(w, job)


@compiled
def start_whole(w: World, job: int, nodes: int) -> None:
    """Start a job on whole GPUs of the chosen nodes, the lowest of each, chained to one another."""
    left, last = w.jobs[job].gpus, NONE
    for rank in range(nodes):
        node = w.chosen[rank]
        take = min(left, w.per_node)
        left -= take
        change_node(w, node, -take)
        w.profiles[WHOLE].available -= take
        gpu = w.nodes[node].lowest
        while take:
            if w.free[gpu, WHOLE] and not w.gpus[gpu].leaving:
                take -= 1
                w.free[gpu, WHOLE] = 0
                w.gpus[gpu].busy, w.gpus[gpu].next = w.profiles[WHOLE].slices, NONE
                if last == NONE:
                    w.jobs[job].gpu = gpu
                else:
                    w.gpus[last].next = gpu
                last = gpu
            gpu += 1
        w.nodes[node].lowest = gpu
    w.jobs[job].served = WHOLE
    begin_job(w, job)


@compiled
def begin_job(w: World, job: int) -> None:
    """Write the start, and the end to come. A phase that begins elsewhere than the last one ended restarts."""
    s, mine = w.status[0], w.jobs[job]
    if mine.before != NONE:
        last = w.jobs[mine.before]
        stays = last.end == s.now and last.gpu == mine.gpu and last.served == mine.served
        mine.lost = 0.0 if stays else w.restart_s
    run_s = mine.run
    if mine.served != WHOLE:
        run_s *= max(1.0, mine.sms_needed / w.profiles[mine.served].sms)
    if mine.evicted:
        mine.lost += w.restart_s
        mine.since, mine.end = s.now, s.now + (w.restart_s + run_s)
    else:
        mine.start = mine.since = s.now
        mine.end = s.now + (mine.lost + run_s)
    s.running = push(w.ends, s.running, mine.end, job)
    if w.easy and mine.served == WHOLE:
        note_due(w, job, s.now + mine.limit)


@compiled
def end_job(w: World, job: int) -> None:
    """End a phase of a job: it goes on where it is if it needs the same, else what it held is given back."""
    then = w.jobs[job].then
    if then == NONE:
        give_back(w, job)
        return
    mine, following = w.jobs[job], w.jobs[then]
    following.submit = w.status[0].now
    if mine.profile == following.profile and mine.gpus == following.gpus:
        if w.easy and mine.served == WHOLE:
            forget_due(w, job)
        following.gpu, following.served = mine.gpu, mine.served
        begin_job(w, then)
    else:
        give_back(w, job)
        enqueue(w, then)


@compiled
def give_back(w: World, job: int) -> None:
    """Give back what a job held; an idle GPU that was to leave its layout goes on to the next."""
    profile, gpu = w.jobs[job].served, w.jobs[job].gpu
    if profile == WHOLE:
        give_whole(w, job)
        return
    w.gpus[gpu].busy -= w.profiles[profile].slices
    w.free[gpu, profile] += 1
    if not w.gpus[gpu].leaving:
        w.profiles[profile].available += 1
        w.profiles[profile].lowest = min(w.profiles[profile].lowest, gpu)
    elif w.gpus[gpu].busy == 0:
        vacate(w, gpu)


@compiled
def give_whole(w: World, job: int) -> None:
    """Give back whole GPUs, one after the other."""
    gpu = w.jobs[job].gpu
    while gpu != NONE:
        w.gpus[gpu].busy, w.free[gpu, WHOLE] = 0, 1
        if w.gpus[gpu].leaving:
            vacate(w, gpu)
        else:
            offer(w, gpu, 1)
        gpu = w.gpus[gpu].next
    if w.easy:
        forget_due(w, job)


@called
def vacate(w: World, gpu: int) -> None:
    """Go on with an idle GPU that was to leave its layout."""
    if len(w.numbered):
        vacated(w, gpu)
    else:
        leave(w, gpu)
