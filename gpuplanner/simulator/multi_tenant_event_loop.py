"""The compiled event loop with quotas, tiers, preemption and failures.

A team or cohort keeps of its quota what it does not lend; the rest is in the cohort above. Usage beyond what a group
keeps counts against the cohort above, and so on to the top, as in Kueue [1]_.

Events of one instant are processed in this order: ends and failures, arrivals, starts in the order of the queue.

Queue order: by tier; within a tier teams with quota of their own left come first, then, with fair share, teams with
less past use, then earlier requests. A request that lacks quota is passed over; in a strict queue it blocks its team.

Invariants, after each scheduling pass: a team's usage is the quota units of its running requests; a request is either
in the queue or in the end events; its restart time, lost time and work left add up to what it still costs.

References
----------
.. [1] Kueue, ``pkg/cache/scheduler/resource_node.go`` (available, addUsage, removeUsage), v0.12.
"""

from __future__ import annotations

import math

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_event_loop_entry, compile_inlined, compile_not_inlined
from gpuplanner.simulator.event_loop import (
    enqueue,
    has_head,
    initialize_nodes,
    is_behind_head,
    next_event_time,
    pop_event,
    process_arrivals,
    release_nodes,
    remove_event,
    reset_pass,
    schedule_end_event,
    try_start,
)
from gpuplanner.simulator.simulation_state import (
    NO_INDEX,
    ONLINE,
    QUOTA_UNITS_PER_GPU,
    UNLIMITED_UNITS,
    Floats,
    Ints,
    Row,
    SimulationState,
    Table,
    TeamState,
)


@compile_not_inlined
def available_quota(groups: Table, team: int) -> int:
    """Compute the quota units that a team may use on top of its usage, its own and borrowed."""
    if not groups[team].has_quota:
        return UNLIMITED_UNITS
    depth, group = 0, team
    while groups[group].parent != NO_INDEX:
        group, depth = groups[group].parent, depth + 1

    # From the top down: a group has the units that it keeps and does not use, and those available in its parent.
    units = groups[group].subtree - groups[group].usage
    for steps in range(depth - 1, -1, -1):
        group = team
        for _ in range(steps):
            group = groups[group].parent
        row = groups[group]
        if row.borrow < UNLIMITED_UNITS:
            lendable, beyond_local = row.subtree - row.local, max(row.usage - row.local, 0)
            units = min(units, lendable - beyond_local + row.borrow)
        units += max(row.local - row.usage, 0)
    return int(units)


@compile_not_inlined
def add_usage(groups: Table, team: int, units: int) -> None:
    """Add quota units to the usage of a team; cohorts count the units beyond what the groups below them keep."""
    group = team
    while group != NO_INDEX and units > 0:
        row = groups[group]
        local_left = max(row.local - row.usage, 0)
        row.usage += units
        units -= local_left
        group = row.parent if row.has_quota else NO_INDEX


@compile_not_inlined
def remove_usage(groups: Table, team: int, units: int) -> None:
    """Remove quota units from the usage of a team, and from its cohorts those that counted there."""
    group = team
    while group != NO_INDEX and units > 0:
        row = groups[group]
        beyond_local = max(row.usage - row.local, 0)
        row.usage -= units
        units = min(units, beyond_local)
        group = row.parent if row.has_quota else NO_INDEX


MAX_STARTS_PER_REQUEST = 10_000
"""Starts of one request after which the simulation stops, because the request fails too often to ever end."""


@compile_not_inlined
def count_checkpoints(work_s: float, checkpoint_s: float) -> float:
    """Count the checkpoints written in `work_s` of work, one every `checkpoint_s`, none at its end [both s]."""
    if 0.0 < checkpoint_s < np.inf:
        return max(math.ceil(work_s / checkpoint_s) - 1.0, 0.0)
    return 0.0


@compile_not_inlined
def run_duration(job_row: Row, write_s: float, seed: int, factor: float) -> float:
    """Compute for how long the present run of a request occupies its nodes, to its end or to a failure [s].

    Parameters
    ----------
    job_row : Row
        Request of a tenant; whether it will fail is written to it.
    write_s : float
        Time to write a checkpoint. [s]
    seed : int
        Seed of the failures.
    factor : float
        Run time on the chosen nodes over that on what it requested.
    """
    work_s = job_row.work_left_s * factor
    duration_s: float = job_row.restart_s + work_s + write_s * count_checkpoints(work_s, job_row.checkpoint_s)
    job_row.will_fail = 0
    if job_row.mtbf_s < np.inf:
        failure_s = time_to_failure(seed, job_row.row, job_row.starts, job_row.mtbf_s)
        job_row.will_fail = failure_s < duration_s
        duration_s = min(duration_s, failure_s)
    return duration_s


@compile_not_inlined
def time_to_failure(seed: int, row: int, starts: int, mtbf_s: float) -> float:
    """Draw an exponential time to failure [s].

    The draw depends on the seed, the request's row and its number of starts alone (splitmix64), so that each policy
    sees the same failures.
    """
    mixed = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (row, starts):
        mixed += (np.uint64(part) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    uniform = (float(mixed >> np.uint64(11)) + 0.5) * 2.0**-53
    return -math.log(uniform) * mtbf_s


@compile_not_inlined
def record_start(team_state: TeamState, request: int, now_s: float, start_s: float) -> None:
    """Record that a request is allocated its nodes now, and starts to work at `start_s`, once they are set up."""
    job_row = team_state.jobs[request]
    job_row.queued_s += now_s - job_row.waiting_since_s
    job_row.allocated_s = now_s
    if job_row.starts == 0:
        job_row.first_start_s = start_s
    if job_row.starts == MAX_STARTS_PER_REQUEST:
        team_state.status[0].stuck_request = request
    job_row.starts += 1


@compile_not_inlined
def record_end(team_state: TeamState, request: int, now_s: float, start_s: float, factor: float) -> None:
    """Record that all work of a request is done; set-up, restart and checkpoints count as lost time."""
    job_row = team_state.jobs[request]
    work_s = job_row.work_left_s * factor
    checkpoints_s = team_state.status[0].write_s * count_checkpoints(work_s, job_row.checkpoint_s)
    job_row.end_s = now_s
    job_row.lost_s += start_s - job_row.allocated_s + job_row.restart_s + checkpoints_s
    job_row.slowed_s += work_s - job_row.work_left_s
    job_row.work_left_s = 0.0


@compile_not_inlined
def record_stop(
    team_state: TeamState, request: int, now_s: float, start_s: float, factor: float, restart_s: float, has_failed: int
) -> None:
    """Record that a preemption or a failure ended a run: work since the last checkpoint is lost.

    Parameters
    ----------
    team_state : TeamState
    request : int
        Number of the request.
    now_s, start_s : float
        Now, and when the run started to work. [s]
    factor : float
        Run time on its nodes over that on what it requested.
    restart_s : float
        Time that the next start takes on top. [s]
    has_failed : int
        1 for a failure, 0 for a preemption.
    """
    status, job_row = team_state.status[0], team_state.jobs[request]
    allocated_s, checkpoint_s = now_s - job_row.allocated_s, job_row.checkpoint_s
    saved_s = max(now_s - start_s - job_row.restart_s, 0.0)
    if checkpoint_s == np.inf:
        saved_s = 0.0
    elif checkpoint_s > 0.0:
        saved_s = checkpoint_s * math.floor(saved_s / (checkpoint_s + status.write_s))
    saved_s = min(saved_s, job_row.work_left_s * factor)

    job_row.work_left_s -= saved_s / factor
    job_row.slowed_s += saved_s - saved_s / factor
    job_row.lost_s += allocated_s - saved_s
    job_row.restart_s, job_row.waiting_since_s = restart_s, now_s
    job_row.preemptions += 1 - has_failed
    job_row.failures += has_failed

    row = team_state.stopped[status.stopped_rows]
    row.request, row.failed = request, has_failed
    row.begun, row.at, row.lost = job_row.allocated_s, now_s, allocated_s - saved_s
    status.stopped_rows += 1


@compile_not_inlined
def next_victim(
    team_state: TeamState, end_rows: Row, running: int, request: int, within_quota: bool, now_s: float
) -> int:
    """Choose the next request to preempt for another one, or NO_INDEX.

    The least urgent tier goes first, then the latest start, then the highest number. With preemption by tier a request
    preempts its own team's requests of less urgent tiers, and other teams' only while they use more than their own
    quota; a team within its own quota reclaims that from any of these. Where a request is still in its protected run
    time, the next scheduling pass is set to when that ends.

    Parameters
    ----------
    team_state : TeamState
    end_rows : table of END_EVENT_DTYPE_BY_COLUMN
        End events, which are the running requests.
    running : int
        Number of running requests.
    request : int
        Request to make room for.
    within_quota : bool
        Whether its team may reclaim, being within its own quota.
    now_s : float
        Now. [s]
    """
    status, job_row, best = team_state.status[0], team_state.jobs[request], NO_INDEX
    for rank in range(running):
        candidate = end_rows[rank].request
        victim_row = team_state.jobs[candidate]
        is_less_urgent = status.tiers_preempt and victim_row.tier > job_row.tier
        is_reclaimable = within_quota and victim_row.team != job_row.team
        if victim_row.is_victim or not (is_less_urgent or is_reclaimable):
            continue
        if victim_row.team != job_row.team:
            group = team_state.groups[victim_row.team]
            if group.usage - group.reserved <= (group.nominal if group.has_quota else 0):
                continue

        protected_until_s = victim_row.allocated_s + status.min_run_s
        if protected_until_s > now_s:
            status.next_pass_s = min(status.next_pass_s, protected_until_s)
        elif best == NO_INDEX or is_preempted_before(victim_row, team_state.jobs[best], candidate > best):
            best = candidate
    return best


@compile_not_inlined
def is_preempted_before(job_row: Row, other_row: Row, has_higher_number: bool) -> bool:
    """Whether one running request is preempted before another; `has_higher_number` breaks ties."""
    if job_row.tier != other_row.tier:
        return bool(job_row.tier > other_row.tier)
    if job_row.allocated_s != other_row.allocated_s:
        return bool(job_row.allocated_s > other_row.allocated_s)
    return has_higher_number


@compile_not_inlined
def preempt_for(state: SimulationState, team_state: TeamState, request: int) -> None:
    """Preempt others until a request has quota and fits; none if it fits without, or cannot be made to fit.

    All profiles that serve the request are tried without preemption first.
    """
    for may_preempt in range(2):
        for preference in range(state.serving_profiles.shape[1]):
            profile = state.serving_profiles[state.profile[request], preference]
            if profile == NO_INDEX or not (state.is_slurm or not has_head(state, profile)):
                continue
            count_roomy_nodes(state, team_state, request, profile)
            if has_quota_and_room(state, team_state, request):
                return
            if may_preempt and preempt_victims(state, team_state, request, profile):
                return


@compile_not_inlined
def has_quota_and_room(state: SimulationState, team_state: TeamState, request: int) -> bool:
    """Whether a request has quota, and enough nodes have room by the present counts of the team state."""
    status, job_row = team_state.status[0], team_state.jobs[request]
    count = state.node_count[request]
    has_nodes = status.roomy_nodes >= count - 1 and status.roomy_last_nodes >= count
    return bool(has_nodes and available_quota(team_state.groups, job_row.team) >= job_row.units)


@compile_not_inlined
def count_roomy_nodes(state: SimulationState, team_state: TeamState, request: int, profile: int) -> None:
    """Count again, in the team state, the nodes with room for a request that is served by a profile.

    One number is of nodes with room for its instances per node, the other with room for those on its last node.
    """
    team_state.status[0].roomy_nodes = team_state.status[0].roomy_last_nodes = 0
    for node in range(len(state.gpus)):
        state.unclaimed[node, profile] = NO_INDEX
        recount_node(state, team_state, request, profile, node)


@compile_not_inlined
def recount_node(state: SimulationState, team_state: TeamState, request: int, profile: int, node: int) -> None:
    """Update the count of nodes with room by one node; in Slurm a node reserved before the request ends has none."""
    status, room_before = team_state.status[0], state.unclaimed[node, profile]
    is_usable = state.node_state[node] == ONLINE
    if state.is_slurm:
        end_s = state.status[0].now_s + state.limit_s[request]
        is_usable = is_usable and end_s <= state.reserved_from_s[node]
    room = room_without_victims(state, team_state, node, profile) if is_usable else NO_INDEX
    state.unclaimed[node, profile] = room

    per_node, on_last_node = state.per_node[request], state.on_last_node[request]
    status.roomy_nodes += int(room >= per_node) - int(room_before >= per_node)
    status.roomy_last_nodes += int(room >= on_last_node) - int(room_before >= on_last_node)


@compile_not_inlined
def room_without_victims(state: SimulationState, team_state: TeamState, node: int, profile: int) -> int:
    """Count the instances of a profile for which a node has room once the chosen victims are preempted."""
    room = state.unallocated[node, profile]
    allocation = state.node_allocation[node]
    while allocation != NO_INDEX:
        owner = state.allocated_request[allocation]
        if team_state.jobs[owner].is_victim and state.served_profile[owner] == profile:
            room += state.amount[allocation]
        allocation = state.next_allocation[allocation]
    return int(room)


@compile_not_inlined
def set_victim(
    state: SimulationState, team_state: TeamState, request: int, profile: int, victim: int, is_victim: int
) -> None:
    """Choose a running request as a victim, or spare it; count quota and room accordingly.

    Parameters
    ----------
    state : SimulationState
    team_state : TeamState
    request : int
        Request to make room for.
    profile : int
        Profile that serves it.
    victim : int
        Running request.
    is_victim : int
        1: choose it; 0: spare it.
    """
    victim_row = team_state.jobs[victim]
    victim_row.is_victim = is_victim
    if is_victim:
        remove_usage(team_state.groups, victim_row.team, victim_row.units)
    else:
        add_usage(team_state.groups, victim_row.team, victim_row.units)
    for allocation in range(state.first_allocation[victim], state.first_allocation[victim + 1]):
        if state.allocated_node[allocation] != NO_INDEX:
            recount_node(state, team_state, request, profile, state.allocated_node[allocation])


@compile_not_inlined
def preempt_victims(state: SimulationState, team_state: TeamState, request: int, profile: int) -> bool:
    """Choose victims until a request fits, spare those that are not needed, and preempt the others.

    Returns whether it fits; if not, no request is preempted.
    """
    status, rules = state.status[0], team_state.status[0]
    job_row, chosen = team_state.jobs[request], 0
    group = team_state.groups[job_row.team]
    within_quota = rules.reclaims and group.has_quota and group.usage + job_row.units <= group.nominal

    # 1. Choose victims, one by one.
    while not has_quota_and_room(state, team_state, request):
        victim = next_victim(team_state, state.ends, status.running, request, bool(within_quota), status.now_s)
        is_log_full = rules.stopped_rows + chosen + 1 >= len(team_state.stopped)
        if victim == NO_INDEX or is_log_full:
            for rank in range(chosen):
                set_victim(state, team_state, request, profile, team_state.victims[rank], 0)
            return False
        set_victim(state, team_state, request, profile, victim, 1)
        team_state.victims[chosen] = victim
        chosen += 1

    # 2. Spare those without which it fits as well, the last chosen first.
    for rank in range(chosen - 1, -1, -1):
        victim = team_state.victims[rank]
        set_victim(state, team_state, request, profile, victim, 0)
        if not has_quota_and_room(state, team_state, request):
            set_victim(state, team_state, request, profile, victim, 1)

    # 3. Preempt the others.
    for rank in range(chosen):
        victim = team_state.victims[rank]
        victim_row = team_state.jobs[victim]
        if victim_row.is_victim:
            victim_row.is_victim = 0
            # A request that loses its nodes to a reclaim must not preempt for them in the same instant.
            if not (rules.tiers_preempt and victim_row.tier > job_row.tier):
                victim_row.reclaimed_s = status.now_s
            status.running = remove_event(state.ends, status.running, victim)
            release_nodes(state, victim)
            start_s, factor = state.start_s[victim], state.run_factor[victim]
            record_stop(team_state, victim, status.now_s, start_s, factor, victim_row.overhead_s, 0)
            team_state.victims[rules.victims] = victim
            rules.victims += 1
    return True


@compile_not_inlined
def decay_use(groups: Table, decay_per_s: float, seconds: float) -> None:
    """Add the use of teams in the `seconds` since the last event, and let past use decay (Slurm's fair share)."""
    kept_fraction = np.exp(-decay_per_s * seconds)
    effective_s = (1.0 - kept_fraction) / decay_per_s if decay_per_s > 0.0 else seconds
    for group in groups:
        use = group.usage / QUOTA_UNITS_PER_GPU * effective_s / group.weight
        group.used = group.used * kept_fraction + use


@compile_not_inlined
def mark_teams_over_quota(groups: Table) -> None:
    """Reopen all teams and mark those with no quota of their own left; where any has one, also those without."""
    has_any_quota = 0
    for group in groups:
        has_any_quota |= group.has_quota
    for group in groups:
        group.is_closed = 0
        group.is_over = has_any_quota and (group.usage >= group.nominal or not group.has_quota)


@compile_not_inlined
def advance_start_hours(hours_s: Floats, passed_hours: Ints, now_s: float) -> None:
    """Count the begins and ends of start hours (in which requests may start) that have passed, by row of `hours_s`."""
    for row in range(len(passed_hours)):
        while hours_s[row, passed_hours[row]] <= now_s:
            passed_hours[row] += 1


@compile_not_inlined
def is_queued_before(groups: Table, jobs: Table, request: int, other_request: int) -> bool:
    """Whether a request goes before another one in the queue: by tier, own quota left, past use, then number."""
    job_row, other_row = jobs[request], jobs[other_request]
    if job_row.tier != other_row.tier:
        return bool(job_row.tier < other_row.tier)
    if job_row.team != other_row.team:
        group, other_group = groups[job_row.team], groups[other_row.team]
        if group.is_over != other_group.is_over:
            return bool(group.is_over < other_group.is_over)
        if group.used != other_group.used:
            return bool(group.used < other_group.used)
    return request < other_request


@compile_not_inlined
def sort_queue(groups: Table, jobs: Table, queue: Ints, merge_buffer: Ints, first: int, count: int) -> None:
    """Sort the queue from slot `first` up to `count` by merging; it costs next to nothing where it is in order.

    Parameters
    ----------
    groups, jobs : Table
        Quota table, and requests of tenants.
    queue : array of int, shape (n_requests,)
        Requests by slot, which is sorted.
    merge_buffer : array of int, shape (n_requests,)
        Room to merge in.
    first, count : int
        First slot, and slot behind the last one.
    """
    is_sorted = True
    for slot in range(first + 1, count):
        if is_queued_before(groups, jobs, queue[slot], queue[slot - 1]):
            is_sorted = False
            break
    if is_sorted:
        return

    width = 1
    while width < count - first:
        for low in range(first, count, 2 * width):
            middle, high = min(low + width, count), min(low + 2 * width, count)
            left, right = low, middle
            for slot in range(low, high):
                takes_left = left < middle and (
                    right == high or not is_queued_before(groups, jobs, queue[right], queue[left])
                )
                if takes_left:
                    merge_buffer[slot] = queue[left]
                    left += 1
                else:
                    merge_buffer[slot] = queue[right]
                    right += 1
        for slot in range(first, count):
            queue[slot] = merge_buffer[slot]
        width *= 2


STARTED, WAITS, LACKS_QUOTA = range(3)
"""Results of an attempt to start a request."""


@compile_event_loop_entry
def run_shared_events(state: SimulationState, team_state: TeamState) -> bool:
    """Process events until none is left or a request has started too often (True), or until logs are full (False)."""
    status, rules = state.status[0], team_state.status[0]
    initialize_nodes(state)
    while len(state.power_log) - status.logged > 4 * len(state.gpus) and 2 * rules.stopped_rows <= len(
        team_state.stopped
    ):
        now_s = min(next_event_time(state), rules.next_pass_s)
        if now_s == np.inf or rules.stuck_request != NO_INDEX:
            return True
        if rules.is_fair_share:
            decay_use(team_state.groups, rules.decay_per_s, now_s - status.now_s)
        status.now_s = now_s

        while status.running and state.ends[0].time_s <= now_s:
            request = state.ends[0].request
            status.running = pop_event(state.ends, status.running)
            end_run(state, team_state, request)

        arrived_before = status.arrived
        process_arrivals(state)
        for request in range(arrived_before, status.arrived):
            team_state.jobs[request].waiting_since_s = now_s
        schedule_shared_queue(state, team_state)
    return False


@compile_inlined
def end_run(state: SimulationState, team_state: TeamState, request: int) -> None:
    """End the present run of a request, which leaves, or goes back to the queue if it failed."""
    status, job_row = state.status[0], team_state.jobs[request]
    start_s, factor = state.start_s[request], state.run_factor[request]
    release_nodes(state, request)
    remove_usage(team_state.groups, job_row.team, job_row.units)
    if job_row.will_fail:
        record_stop(team_state, request, status.now_s, start_s, factor, team_state.status[0].restart_s, 1)
        enqueue(state, request)
    else:
        record_end(team_state, request, status.now_s, start_s, factor)


@compile_inlined
def schedule_shared_queue(state: SimulationState, team_state: TeamState) -> None:
    """Start the requests that can start, in the order of the queue (one scheduling pass).

    Requests that wait are kept in front; those that lack quota follow them at the end. Preempted requests join the part
    of the queue that is still to be tried.
    """
    status, rules = state.status[0], team_state.status[0]
    rules.next_pass_s, rules.over_quota, rules.heads = np.inf, 0, 0
    mark_teams_over_quota(team_state.groups)
    advance_start_hours(team_state.hours_s, team_state.passed_hours, status.now_s)
    sort_queue(team_state.groups, team_state.jobs, state.queue, team_state.merge_buffer, 0, status.waiting)
    reset_pass(state)

    kept, slot = 0, 0
    while slot < status.waiting:
        request = state.queue[slot]
        result = attempt_start(state, team_state, request)
        if result == STARTED:
            state.waiting_of_kind[state.kind[request]] -= 1
            status.waiting_kinds -= state.waiting_of_kind[state.kind[request]] == 0
        elif result == LACKS_QUOTA:
            team_state.over_quota[rules.over_quota] = request
            rules.over_quota += 1
        else:
            state.queue[kept] = request
            kept += 1
        slot += 1

        if rules.victims:
            # Close the gap in front of the requests still to be tried, and merge the victims into these.
            for untried in range(slot, status.waiting):
                state.queue[kept + untried - slot] = state.queue[untried]
            status.waiting -= slot - kept
            slot = kept
            for rank in range(rules.victims):
                enqueue(state, team_state.victims[rank])
            rules.victims = 0
            sort_queue(team_state.groups, team_state.jobs, state.queue, team_state.merge_buffer, slot, status.waiting)

    status.waiting = kept + rules.over_quota
    for rank in range(rules.over_quota):
        state.queue[kept + rank] = team_state.over_quota[rank]
    # Quota kept for queue heads counts for this pass alone.
    for rank in range(rules.heads):
        head_row = team_state.jobs[team_state.heads[rank]]
        remove_usage(team_state.groups, head_row.team, head_row.units)
        team_state.groups[head_row.team].reserved = 0


@compile_inlined
def attempt_start(state: SimulationState, team_state: TeamState, request: int) -> int:
    """Start a request if start hours, quota and nodes allow it, preempting others if the sharing rules do.

    Returns STARTED, WAITS (for nodes) or LACKS_QUOTA (lacks quota, or is outside its start hours).
    """
    status, rules = state.status[0], team_state.status[0]
    job_row = team_state.jobs[request]
    group = team_state.groups[job_row.team]
    # An even number of passed begins and ends: outside its start hours.
    if job_row.hours != NO_INDEX and team_state.passed_hours[job_row.hours] % 2 == 0:
        opens_s = team_state.hours_s[job_row.hours, team_state.passed_hours[job_row.hours]]
        rules.next_pass_s = min(rules.next_pass_s, opens_s)
        return LACKS_QUOTA
    if group.is_closed:
        return LACKS_QUOTA

    is_behind = is_behind_head(state, request)
    if (rules.tiers_preempt or rules.reclaims) and not is_behind and job_row.reclaimed_s != status.now_s:
        preempt_for(state, team_state, request)
        if rules.victims:
            state.is_unplaceable[:] = 0
    if available_quota(team_state.groups, job_row.team) < job_row.units:
        group.is_closed = state.is_strict
        return LACKS_QUOTA

    if try_start(state, request):
        duration_s = run_duration(job_row, rules.write_s, rules.seed, state.run_factor[request])
        schedule_end_event(state, request, duration_s)
        add_usage(team_state.groups, job_row.team, job_row.units)
        record_start(team_state, request, status.now_s, state.start_s[request])
        return STARTED

    if rules.heads_keep_quota and not is_behind and not state.all_may_pass:
        # A queue head keeps its quota as it keeps its nodes; where all may pass there is no head.
        add_usage(team_state.groups, job_row.team, job_row.units)
        group.reserved += job_row.units
        team_state.heads[rules.heads] = request
        rules.heads += 1
    return WAITS
