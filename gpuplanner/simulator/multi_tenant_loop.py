"""The compiled event loop with quotas, tiers, preemption and failures.

A team or cohort keeps of its quota what it does not lend, and the cohort above has the rest of it. What is used beyond
what is kept counts against the cohort above, and so on to the top. This is how Kueue counts.

References
----------
Kueue, ``pkg/cache/scheduler/resource_node.go`` (available, addUsage, removeUsage), v0.12.

Within one instant: ends and failures, nodes that come up, requests that become ready, starts in the order of the queue,
growth, idle nodes that go.
"""

from __future__ import annotations

import math

import numpy as np

from gpuplanner.core.execution import called, event_loop_entry
from gpuplanner.simulator.event_loop import (
    begin_pass,
    drop,
    end,
    has_head,
    is_behind,
    join,
    let_come,
    let_run,
    next_instant,
    open_nodes,
    pop,
    try_start,
)
from gpuplanner.simulator.simulation_state import (
    NONE,
    ON,
    UNITS,
    UNLIMITED,
    Floats,
    Ints,
    NodeWorld,
    Row,
    Table,
    Tenancy,
)


@called
def available(groups: Table, team: int) -> int:
    """Units that a team may take on top of what it holds."""
    if not groups[team].limited:
        return UNLIMITED
    # From the top down: what a group has is what it keeps and does not use, and what it may have of the one above.
    depth, group = 0, team
    while groups[group].parent != NONE:
        group, depth = groups[group].parent, depth + 1
    found = groups[group].subtree - groups[group].usage
    for steps in range(depth - 1, -1, -1):
        group = team
        for _ in range(steps):
            group = groups[group].parent
        mine = groups[group]
        if mine.borrow < UNLIMITED:
            lent, beyond = mine.subtree - mine.local, max(mine.usage - mine.local, 0)
            found = min(found, lent - beyond + mine.borrow)
        found += max(mine.local - mine.usage, 0)
    return int(found)


@called
def take(groups: Table, team: int, units: int) -> None:
    """Let a team hold so many units more."""
    group = team
    while group != NONE and units > 0:
        mine = groups[group]
        kept = max(mine.local - mine.usage, 0)
        mine.usage += units
        units -= kept
        group = mine.parent if mine.limited else NONE


@called
def give_back(groups: Table, team: int, units: int) -> None:
    """Let a team hold so many units less."""
    group = team
    while group != NONE and units > 0:
        mine = groups[group]
        beyond = max(mine.usage - mine.local, 0)
        mine.usage -= units
        units = min(units, beyond)
        group = mine.parent if mine.limited else NONE


MOST_STARTS = 10_000
"""A request that was started so often will never end."""


@called
def checkpoints(work: float, every: float) -> float:
    """How many are written on the way, none at the end."""
    return max(math.ceil(work / every) - 1.0, 0.0) if 0.0 < every < np.inf else 0.0


@called
def next_run(mine: Row, write: float, seed: int, factor: float) -> float:
    """How long a request will hold its nodes once it works: to its end, or to a failure.

    Its work takes there so many times as long as on what it asked for.
    """
    takes = mine.left * factor
    needs: float = mine.charge + takes + write * checkpoints(takes, mine.every)
    mine.fails = 0
    if mine.mtbf < np.inf:
        fails = time_to_failure(seed, mine.row, mine.starts, mine.mtbf)
        mine.fails = fails < needs
        needs = min(needs, fails)
    return needs


@called
def time_to_failure(seed: int, row: int, starts: int, mtbf: float) -> float:
    """Exponential, by a number that depends on the seed, the request and the start alone (splitmix64)."""
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (row, starts):
        mixed += (np.uint64(part) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (float(mixed >> np.uint64(11)) + 0.5) * 2.0**-53
    return -math.log(uniform) * mtbf


@called
def note_start(t: Tenancy, request: int, now: float, works: float) -> None:
    """Write that a request got its nodes, and works from an instant on."""
    mine = t.jobs[request]
    mine.queued += now - mine.since
    mine.begun = now
    if mine.starts == 0:
        mine.first = works
    if mine.starts == MOST_STARTS:
        t.status[0].stuck = request
    mine.starts += 1


@called
def note_end(t: Tenancy, request: int, now: float, works: float, factor: float) -> None:
    """Write that all work of a request is done."""
    mine = t.jobs[request]
    takes = mine.left * factor
    mine.end = now
    mine.lost += works - mine.begun + mine.charge + t.status[0].write * checkpoints(takes, mine.every)
    mine.slowed += takes - mine.left
    mine.left = 0.0


@called
def note_stop(t: Tenancy, request: int, now: float, works: float, factor: float, charge: float, failed: int) -> None:
    """Write that a run was stopped: what its last checkpoint saved is kept, and the next start pays."""
    s, mine = t.status[0], t.jobs[request]
    wall, every = now - mine.begun, mine.every
    saved = max(now - works - mine.charge, 0.0)
    if every > 0.0:
        saved = 0.0 if every == np.inf else every * math.floor(saved / (every + s.write))
    saved = min(saved, mine.left * factor)
    mine.left -= saved / factor
    mine.slowed += saved - saved / factor
    mine.lost += wall - saved
    mine.charge, mine.since = charge, now
    mine.stops += 1 - failed
    mine.failures += failed
    row = t.stopped[s.stopped]
    row.request, row.failed, row.begun, row.at, row.lost = request, failed, mine.begun, now, wall - saved
    s.stopped += 1


@called
def next_victim(t: Tenancy, ends: Row, running: int, request: int, within: bool, now: float) -> int:
    """Who is to be stopped next for a request; NONE if nobody may be. Notes when one that is spared may be.

    First the least urgent tier, then the latest start, then the highest number. Tiers stop their own team's requests,
    and of others what these hold beyond their own quota; a team within its own takes that back from anybody.
    """
    s, mine, best = t.status[0], t.jobs[request], NONE
    for rank in range(running):
        one = ends[rank].who
        theirs = t.jobs[one]
        by_tier = s.by_tier and theirs.tier > mine.tier
        if theirs.marked or not (by_tier or (within and theirs.team != mine.team)):
            continue
        if theirs.team != mine.team:
            group = t.groups[theirs.team]
            if group.usage - group.reserved <= (group.nominal if group.limited else 0):
                continue
        free = theirs.begun + s.min_run
        if free > now:
            s.wake = min(s.wake, free)
        elif best == NONE or stopped_before(theirs, t.jobs[best], one > best):
            best = one
    return best


@called
def stopped_before(mine: Row, theirs: Row, later: bool) -> bool:
    """Whether of two that run one is stopped before the other; `later`: its number is higher."""
    if mine.tier != theirs.tier:
        return bool(mine.tier > theirs.tier)
    return bool(mine.begun > theirs.begun or (mine.begun == theirs.begun and later))


@called
def make_room(w: NodeWorld, t: Tenancy, request: int) -> None:
    """Stop others until a request has quota and fits, if that can be done at all; nobody if it fits as it is."""
    for stop in range(2):
        for rank in range(w.larger.shape[1]):
            profile = w.larger[w.profile[request], rank]
            if profile != NONE and (w.slurm or not has_head(w, profile)):
                weigh_nodes(w, t, request, profile)
                if enough(w, t, request) or (stop and find_victims(w, t, request, profile)):
                    return


@called
def enough(w: NodeWorld, t: Tenancy, request: int) -> bool:
    """Whether a request has quota, and nodes with room, as those are weighed."""
    s, count, mine = t.status[0], w.nodes[request], t.jobs[request]
    return bool(s.full >= count - 1 and s.last >= count and available(t.groups, mine.team) >= mine.units)


@called
def weigh_nodes(w: NodeWorld, t: Tenancy, request: int, profile: int) -> None:
    """Count the nodes with room for a request."""
    t.status[0].full = t.status[0].last = 0
    for node in range(len(w.gpus)):
        w.virtual[node, profile] = NONE
        weigh(w, t, request, profile, node)


@called
def weigh(w: NodeWorld, t: Tenancy, request: int, profile: int, node: int) -> None:
    """Count a node anew; in Slurm those reserved for others by then have no room."""
    s, before, usable = t.status[0], w.virtual[node, profile], w.state[node] == ON
    if w.slurm:
        usable = usable and w.status[0].now + w.limit[request] <= w.reserved[node]
    room = room_without(w, t, node, profile) if usable else NONE
    w.virtual[node, profile] = room
    s.full += int(room >= w.per[request]) - int(before >= w.per[request])
    s.last += int(room >= w.rest[request]) - int(before >= w.rest[request])


@called
def room_without(w: NodeWorld, t: Tenancy, node: int, profile: int) -> int:
    """Instances for which a node has room once those that are marked are gone."""
    room = w.free[node, profile]
    held = w.first_of[node]
    while held != NONE:
        owner = w.owner[held]
        if t.jobs[owner].marked and w.served[owner] == profile:
            room += w.amount[held]
        held = w.next_of[held]
    return int(room)


@called
def mark(w: NodeWorld, t: Tenancy, request: int, profile: int, victim: int, marked: int) -> None:
    """Count as if one that runs were gone, or were there again."""
    mine = t.jobs[victim]
    mine.marked = marked
    if marked:
        give_back(t.groups, mine.team, mine.units)
    else:
        take(t.groups, mine.team, mine.units)
    for held in range(w.hold[victim], w.hold[victim + 1]):
        if w.on_node[held] != NONE:
            weigh(w, t, request, profile, w.on_node[held])


@called
def find_victims(w: NodeWorld, t: Tenancy, request: int, profile: int) -> bool:
    """Find who has to be stopped, spare those who turn out not to be in the way, and stop the others."""
    s, n, mine, found = w.status[0], t.status[0], t.jobs[request], 0
    group = t.groups[mine.team]
    within = n.reclaim and group.limited and group.usage + mine.units <= group.nominal
    while not enough(w, t, request):
        victim = next_victim(t, w.ends, s.running, request, bool(within), s.now)
        if victim == NONE or n.stopped + found + 1 >= len(t.stopped):
            for rank in range(found):
                mark(w, t, request, profile, t.victims[rank], 0)
            return False
        mark(w, t, request, profile, victim, 1)
        t.victims[found] = victim
        found += 1
    for rank in range(found - 1, -1, -1):
        victim = t.victims[rank]
        mark(w, t, request, profile, victim, 0)
        if not enough(w, t, request):
            mark(w, t, request, profile, victim, 1)
    for rank in range(found):
        victim = t.victims[rank]
        theirs = t.jobs[victim]
        if theirs.marked:
            theirs.marked = 0
            if not (n.by_tier and theirs.tier > mine.tier):
                theirs.barred = s.now
            s.running = drop(w.ends, s.running, victim)
            end(w, victim)
            note_stop(t, victim, s.now, w.start[victim], w.factor[victim], theirs.overhead, 0)
            t.victims[n.victims] = victim
            n.victims += 1
    return True


@called
def age(groups: Table, decay: float, seconds: float) -> None:
    """Let teams use what they hold, and forget."""
    kept = np.exp(-decay * seconds)
    lasting = (1.0 - kept) / decay if decay > 0.0 else seconds
    for group in groups:
        group.used = group.used * kept + group.usage / UNITS * lasting / group.weight


@called
def see_quotas(groups: Table) -> None:
    """See who has quota of its own left; where any team has a quota, those without one have none left."""
    stated = 0
    for group in groups:
        stated |= group.limited
    for group in groups:
        group.shut = 0
        group.over = stated and (group.usage >= group.nominal or not group.limited)


@called
def see_hours(hours: Floats, passed: Ints, now: float) -> None:
    """See which hours have begun and ended."""
    for row in range(len(passed)):
        while hours[row, passed[row]] <= now:
            passed[row] += 1


@called
def precedes(groups: Table, jobs: Table, one: int, other: int) -> bool:
    """Whether a request comes before another."""
    mine, theirs = jobs[one], jobs[other]
    if mine.tier != theirs.tier:
        return bool(mine.tier < theirs.tier)
    if mine.team != theirs.team:
        ours, others = groups[mine.team], groups[theirs.team]
        if ours.over != others.over:
            return bool(ours.over < others.over)
        if ours.used != others.used:
            return bool(ours.used < others.used)
    return one < other


@called
def put_in_order(groups: Table, jobs: Table, queue: Ints, spare: Ints, first: int, count: int) -> None:
    """Sort the queue from a place on by merging; it costs next to nothing where it is in order."""
    width = 1
    for place in range(first + 1, count):
        if precedes(groups, jobs, queue[place], queue[place - 1]):
            width = 0
            break
    if width:
        return
    width = 1
    while width < count - first:
        for low in range(first, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            left, right = low, middle
            for place in range(low, high):
                if left < middle and (right == high or not precedes(groups, jobs, queue[right], queue[left])):
                    spare[place] = queue[left]
                    left += 1
                else:
                    spare[place] = queue[right]
                    right += 1
        for place in range(first, count):
            queue[place] = spare[place]
        width *= 2


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
