"""The event loop of fleets that are cut on demand."""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import pop
from gpuplanner.simulate.jit import compiled, entry
from gpuplanner.simulate.slices.cutting import first_without
from gpuplanner.simulate.slices.drain import claim, settle_drains
from gpuplanner.simulate.slices.engine import at_rest, end_job, let_arrive, next_instant, start_jobs
from gpuplanner.simulate.slices.instances import arrive, open_placed, take_stock, write_states
from gpuplanner.simulate.slices.reservations import first_unreserved, start_ready
from gpuplanner.simulate.slices.reslice import reslice
from gpuplanner.simulate.slices.world import NONE, WHOLE, World


@entry
def advance_on_demand(w: World) -> bool:
    """Run until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    if s.slot == NONE:
        open_placed(w)
        take_stock(w)
        write_states(w)
    while len(w.log) - s.logged >= len(w.gpus):
        now = next_wish(w)
        if now == np.inf or (now > w.until_s and at_rest(w)):
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end_job(w, job)
            if w.jobs[job].served == WHOLE:
                release_whole(w, job)
        while s.coming and w.coming[0].at <= now:
            arrive(w)
        let_arrive(w)
        if s.ready:
            start_ready(w)
        start_jobs(w)
        while settle_drains(w):
            start_jobs(w)
        reslice(w)
        if s.ready:
            start_ready(w)
        write_states(w)
    return False


@compiled
def next_wish(w: World) -> float:
    """When something happens next, or may be changed that could not be before; infinite if nothing ever does."""
    s, now = w.status[0], next_instant(w)
    new_day = (s.spent + 1.0) * 86400.0
    for profile in range(len(w.profiles)):
        job = (
            first_without(w.profiles, w.jobs, profile)
            if profile
            else first_unreserved(s, w.profiles, w.jobs, w.easy, w.slicing.drain_after_s)
        )
        if job != NONE:
            for wait in (w.slicing.patience_s, w.slicing.drain_after_s):
                if w.jobs[job].submit + wait > s.now:
                    now = min(now, w.jobs[job].submit + wait)
            if new_day > s.now:
                now = min(now, new_day)
    return now


@compiled
def release_whole(w: World, job: int) -> None:
    """Remember the GPUs that a job gave back, if it did, and let jobs have one that need an instance."""
    gpu = w.jobs[job].gpu
    while gpu != NONE and w.free[gpu, WHOLE]:
        claim(w, gpu)
        gpu = w.gpus[gpu].next
