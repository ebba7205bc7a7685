"""The event loop of pools of nodes that come in a fixed layout and go when they are idle.

Within one instant: jobs end, nodes come, jobs arrive, jobs start, pools grow, idle nodes go.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import called, compiled, entry
from gpuplanner.simulate.slices.engine import at_rest, earlier, end_job, let_arrive, next_instant, start_jobs
from gpuplanner.simulate.slices.layout_changes import come_up, note, offer, open_fleet
from gpuplanner.simulate.slices.world import BOOTING, NONE, OFF, ON, WHOLE, World


@entry
def advance_pools(w: World) -> bool:
    """Run until all is done (True), or until the log must be emptied before going on (False)."""
    s = w.status[0]
    if s.slot == NONE:
        open_fleet(w)
        for layout in range(len(w.layouts)):
            w.layouts[layout].present = 0
        for node in range(len(w.nodes)):
            note_idle(w, node)
    while len(w.log) - s.logged >= 8 * len(w.gpus):
        now = next_instant(w)
        if s.timed:
            now = min(now, w.power.timers[0].at)
        if now == np.inf or (now > w.until_s and at_rest(w)):
            return True
        s.now = now
        while s.running and w.ends[0].at <= now:
            job = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end_job(w, job)
            left_by(w, job)
        while s.coming and w.coming[0].at <= now:
            node = w.coming[0].who
            s.coming = pop(w.coming, s.coming)
            w.layouts[w.gpus[node * w.per_node].layout].present -= 1
            for gpu in range(node * w.per_node, (node + 1) * w.per_node):
                come_up(w, gpu, w.gpus[gpu].layout)
            note_idle(w, node)
        let_arrive(w)
        start_jobs(w)
        grow(w)
        shrink(w)
    return False


@compiled
def left_by(w: World, job: int) -> None:
    """See which of the nodes that a job was on are idle now."""
    gpu, last = w.jobs[job].gpu, NONE
    while gpu != NONE:
        if gpu // w.per_node != last:
            last = gpu // w.per_node
            note_idle(w, last)
        gpu = w.gpus[gpu].next if w.jobs[job].served == WHOLE else NONE


@called
def is_idle(w: World, node: int) -> bool:
    """Whether a node is on and nothing runs there."""
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        if w.gpus[gpu].state != ON or w.gpus[gpu].busy:
            return False
    return True


@called
def note_idle(w: World, node: int) -> None:
    """Set a timer for a node if it is idle."""
    s, unit = w.status[0], w.power.units[node]
    if is_idle(w, node):
        unit.since = s.now
        if not unit.timed:
            unit.timed = 1
            s.timed = push(w.power.timers, s.timed, s.now + w.power.idle_s, node)


@called
def grow(w: World) -> None:
    """Bring nodes for jobs that wait, the oldest first, and for reserve and floor, as long as there are any."""
    while True:
        layout = most_urgent(w)
        if layout == NONE:
            return
        node = free_node(w, layout)
        if node == NONE:
            return
        s = w.status[0]
        w.layouts[layout].present += 1
        for gpu in range(node * w.per_node, (node + 1) * w.per_node):
            w.gpus[gpu].layout, w.gpus[gpu].state = layout, BOOTING
            note(w, gpu, BOOTING)
        s.coming = push(w.coming, s.coming, s.now + w.power.lead_s, node)


@compiled
def most_urgent(w: World) -> int:
    """The pool that is short of nodes for the oldest job, or else for its reserve or floor; NONE if none is."""
    count_needed(w)
    first, chosen = NONE, NONE
    for profile in range(len(w.profiles)):
        job, layout = w.profiles[profile].head, w.power.pool[profile]
        short = job != NONE and layout != NONE and w.layouts[layout].surplus > w.layouts[layout].present
        if short and earlier(w.jobs, job, first):
            first, chosen = job, layout
    if chosen != NONE:
        return int(chosen)
    for layout in range(len(w.layouts)):
        kept = w.power.reserve[layout]
        if kept or w.power.floor_gpus[layout]:
            on, idle = 0, 0
            for node in range(len(w.nodes)):
                if w.gpus[node * w.per_node].layout == layout:
                    on += 1
                    idle += is_idle(w, node)
            coming = w.layouts[layout].present - w.layouts[layout].surplus
            if idle + coming < kept or on < w.power.floor_gpus[layout]:
                return layout
    return NONE


@compiled
def count_needed(w: World) -> None:
    """Count the nodes that the jobs that wait for each pool fill (as ``surplus`` of its layout)."""
    for layout in range(len(w.layouts)):
        w.layouts[layout].surplus = 0
    for profile in range(len(w.profiles)):
        w.profiles[profile].tried = 0
    for profile in range(1, len(w.profiles)):
        job, serving = w.profiles[profile].head, w.power.serving[profile]
        while job != NONE and serving != NONE and w.profiles[serving].tried < w.per_node * len(w.nodes) * 8:
            w.profiles[serving].tried += 1
            job = w.jobs[job].behind if job != w.profiles[profile].tail else NONE
    for profile in range(1, len(w.profiles)):
        layout = w.power.pool[profile]
        if layout != NONE and w.profiles[profile].tried:
            each = w.per_node * w.instances[layout, profile]
            nodes = (w.profiles[profile].tried + each - 1) // each
            w.layouts[layout].surplus = max(w.layouts[layout].surplus, nodes)
    job, layout, nodes, left = w.profiles[WHOLE].head, w.power.pool[WHOLE], 0, 0
    while job != NONE and layout != NONE and nodes <= len(w.nodes):
        gpus = w.jobs[job].gpus
        if gpus > left:
            nodes += (gpus + w.per_node - 1) // w.per_node
            left = (w.per_node - gpus % w.per_node) % w.per_node
        else:
            left -= gpus
        job = w.jobs[job].behind if job != w.profiles[WHOLE].tail else NONE
    if nodes:
        w.layouts[layout].surplus = nodes


@compiled
def free_node(w: World, layout: int) -> int:
    """The lowest node that is off, else an idle one that another pool does not need; NONE if there is none."""
    for node in range(len(w.nodes)):
        if w.gpus[node * w.per_node].state == OFF:
            return node
    for node in range(len(w.nodes) - 1, -1, -1):
        other = w.gpus[node * w.per_node].layout
        if other != layout and is_idle(w, node) and may_go(w, other):
            switch_off_node(w, node)
            return node
    return NONE


@compiled
def may_go(w: World, layout: int) -> bool:
    """Whether a pool keeps its reserve and its floor without one of its idle nodes."""
    on, idle = 0, 0
    for node in range(len(w.nodes)):
        if w.gpus[node * w.per_node].layout == layout:
            on += 1
            idle += is_idle(w, node)
    return bool(idle > w.power.reserve[layout] and on > w.power.floor_gpus[layout])


@compiled
def waited_for(w: World, node: int) -> bool:
    """Whether jobs wait for the pool of a node: perhaps for more nodes than there are yet."""
    return bool(w.layouts[w.gpus[node * w.per_node].layout].surplus)


@called
def switch_off_node(w: World, node: int) -> None:
    """Let an idle node go; it forgets its layout."""
    s = w.status[0]
    s.ripe -= w.power.units[node].ripe
    w.power.units[node].ripe = 0
    for gpu in range(node * w.per_node, (node + 1) * w.per_node):
        offer(w, gpu, -1)
        for profile in range(len(w.profiles)):
            w.free[gpu, profile] = 0
        w.gpus[gpu].layout, w.gpus[gpu].state = NONE, OFF
        note(w, gpu, OFF)


@called
def shrink(w: World) -> None:
    """Let nodes go that have been idle for long enough, the highest first."""
    s, units = w.status[0], w.power.units
    while s.timed and w.power.timers[0].at <= s.now:
        node = w.power.timers[0].who
        s.timed = pop(w.power.timers, s.timed)
        units[node].timed = 0
        if is_idle(w, node):
            if units[node].since + w.power.idle_s > s.now:
                units[node].timed = 1
                s.timed = push(w.power.timers, s.timed, units[node].since + w.power.idle_s, node)
            elif not units[node].ripe:
                units[node].ripe = 1
                s.ripe += 1
    if s.ripe:
        for node in range(len(w.nodes) - 1, -1, -1):
            if units[node].ripe:
                if not is_idle(w, node):
                    units[node].ripe = 0
                    s.ripe -= 1
                elif may_go(w, w.gpus[node * w.per_node].layout) and not waited_for(w, node):
                    switch_off_node(w, node)
