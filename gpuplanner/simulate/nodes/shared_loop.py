"""The event loop of nodes that tenants share: quotas, tiers, stops and failures around the steps of the plain loop.

Within one instant: ends and failures, nodes that come up, requests that become ready, starts in the order of the queue,
growth, idle nodes that go.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.heap import pop
from gpuplanner.simulate.jit import called, event_loop_entry
from gpuplanner.simulate.nodes.loop import (
    begin_pass,
    end,
    is_behind,
    join,
    let_come,
    let_run,
    next_instant,
    open_nodes,
    try_start,
)
from gpuplanner.simulate.nodes.making_room import make_room
from gpuplanner.simulate.nodes.node_world import NONE, NodeWorld
from gpuplanner.simulate.nodes.quota_tree import available, give_back, take
from gpuplanner.simulate.nodes.shared_order import age, put_in_order, see_hours, see_quotas
from gpuplanner.simulate.nodes.shared_runs import next_run, note_end, note_start, note_stop
from gpuplanner.simulate.nodes.tenancy import Tenancy

STARTED, WAITS, LACKS = range(3)


@event_loop_entry
def advance_shared(w: NodeWorld, t: Tenancy) -> bool:
    """Play until all is done or a request is stuck (True), or until the logs must be emptied (False)."""
    s, n = w.status[0], t.status[0]
    open_nodes(w)
    while len(w.log) - s.logged > 4 * len(w.gpus) and 2 * n.stopped <= len(t.stopped):
        now = min(next_instant(w), n.wake)
        if now == np.inf or n.stuck != NONE:
            return True
        if n.fair:
            age(t.groups, n.decay, now - s.now)
        s.now = now
        while s.running and w.ends[0].at <= now:
            request = w.ends[0].who
            s.running = pop(w.ends, s.running)
            end_run(w, t, request)
        before = s.arrived
        let_come(w)
        for request in range(before, s.arrived):
            t.jobs[request].since = now
        share_out(w, t)
    return False


@called
def end_run(w: NodeWorld, t: Tenancy, request: int) -> None:
    """Take a request off its nodes; one that failed waits again."""
    s, mine = w.status[0], t.jobs[request]
    end(w, request)
    give_back(t.groups, mine.team, mine.units)
    if mine.fails:
        note_stop(t, request, s.now, w.start[request], w.factor[request], t.status[0].restart, 1)
        join(w, request)
    else:
        note_end(t, request, s.now, w.start[request], w.factor[request])


@called
def share_out(w: NodeWorld, t: Tenancy) -> None:
    """Start what can start, in the order of the queue."""
    s, n, kept, place = w.status[0], t.status[0], 0, 0
    n.wake, n.lacking, n.heads = np.inf, 0, 0
    see_quotas(t.groups)
    see_hours(t.hours, t.passed, s.now)
    put_in_order(t.groups, t.jobs, w.queue, t.spare, 0, s.waiting)
    begin_pass(w)
    while place < s.waiting:
        request = w.queue[place]
        what = attempt(w, t, request)
        if what == STARTED:
            w.of_kind[w.kind[request]] -= 1
            s.kinds -= w.of_kind[w.kind[request]] == 0
        elif what == LACKS:
            t.aside[n.lacking] = request
            n.lacking += 1
        else:
            w.queue[kept] = request
            kept += 1
        place += 1
        if n.victims:
            for rest in range(place, s.waiting):
                w.queue[kept + rest - place] = w.queue[rest]
            s.waiting, place = s.waiting - (place - kept), kept
            for rank in range(n.victims):
                join(w, t.victims[rank])
            n.victims = 0
            put_in_order(t.groups, t.jobs, w.queue, t.spare, place, s.waiting)
    s.waiting = kept + n.lacking
    for rank in range(n.lacking):
        w.queue[kept + rank] = t.aside[rank]
    for rank in range(n.heads):
        mine = t.jobs[t.heads[rank]]
        give_back(t.groups, mine.team, mine.units)
        t.groups[mine.team].reserved = 0


@called
def attempt(w: NodeWorld, t: Tenancy, request: int) -> int:
    """Start a request, if it may and can, if need be in place of others; or say whether it waits, or lacks quota."""
    s, n, mine = w.status[0], t.status[0], t.jobs[request]
    group = t.groups[mine.team]
    if mine.hours != NONE and t.passed[mine.hours] % 2 == 0:
        n.wake = min(n.wake, t.hours[mine.hours, t.passed[mine.hours]])
        return LACKS
    if group.shut:
        return LACKS
    behind = is_behind(w, request)
    if (n.by_tier or n.reclaim) and not behind and mine.barred != s.now:
        make_room(w, t, request)
        if n.victims:
            w.dead[:] = 0
    if available(t.groups, mine.team) < mine.units:
        group.shut = w.strict
        return LACKS
    if try_start(w, request):
        let_run(w, request, next_run(mine, n.write, n.seed, w.factor[request]))
        take(t.groups, mine.team, mine.units)
        note_start(t, request, s.now, w.start[request])
        return STARTED
    if n.keep and not behind and not w.passing:
        # Who waits first keeps its quota, as it keeps its nodes; where all may pass, nobody is first.
        take(t.groups, mine.team, mine.units)
        group.reserved += mine.units
        t.heads[n.heads] = request
        n.heads += 1
    return WAITS
