"""State arrays of the event loops: columns of their tables, nodes, requests, queues, MIG instances and quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
"""Array of whole numbers."""
Floats: TypeAlias = NDArray[np.float64]
"""Array of floats."""
Table: TypeAlias = np.recarray[Any, Any]
"""Record array: columns are attributes, such as ``jobs.team``."""
Row: TypeAlias = Any
"""One row of a :data:`Table`."""

END_EVENT_DTYPE_BY_COLUMN = {"time_s": float, "request": int}
"""Columns of an event heap: when a request ends, and its number."""


def make_table(columns: Mapping[str, type], rows: int) -> Table:
    """Make a record array of zeros with named columns.

    Parameters
    ----------
    columns : mapping of str to type
        Type of each column by its name.
    rows : int
        Number of rows.

    Examples
    --------
    >>> make_table(END_EVENT_DTYPE_BY_COLUMN, 2).request.tolist()
    [0, 0]
    """
    return np.zeros(rows, np.dtype(list(columns.items()), align=True)).view(np.recarray)


NO_INDEX = -1
"""Number in place of a request, node, node pool, profile or row where there is none."""
IMPOSSIBLE_PLACEMENT_LOSS = 1 << 60
"""Instances lost to the queue head where the instances that are to be placed do not fit at all."""
OFFLINE, POWERING_UP, ONLINE = range(3)
"""States of a node. Offline: powered down, or cordoned for a planned change, so that nothing starts on it."""
SCHEDULABLE, CORDONED, PARTITIONING = range(3)
"""Stages of a node in a planned change that drains it: takes requests, takes none, is repartitioned."""
BEST_FIT, MOST_USED, LOWEST_NUMBER, CONSOLIDATE, SPREAD = range(5)
"""Placement rules, by their numbers."""
DEFAULT_BACKFILL_DEPTH_REQUESTS = 500
"""Requests that backfill tries behind the queue head: bf_max_job_test (slurm.conf(5), SchedulerParameters)."""
EVENT_LOOP_STATUS_DTYPE_BY_COLUMN = {
    "now_s": float,
    "has_begun": int,
    "arrived": int,
    "waiting": int,  # requests in the queue
    "queue_first": int,  # rank of the queue's first request; those before it have started
    "waiting_kinds": int,  # kinds of requests in the queue
    "placeable_kinds": int,  # of these, kinds that may still start, or be given a node, in this pass
    "running": int,
    "logged": int,
    "search": int,  # number of the present search: nodes that it has chosen carry it
    "last_power_up_s": float,
    "backfill_tried": int,  # requests behind the queue head that did not start in this pass
    "changes": int,  # passes, starts, ends and reservations so far: searches made before the last one are stale
    "next_power_down_s": float,
    "next_change_s": float,  # next step of a planned change
    "vacated_nodes": int,  # cordoned nodes whose last request has ended in this instant
    "short_start_nodes": int,  # cordoned nodes that take requests which end before the change
}
"""Columns of the status table of the event loop, which has one row: the present time, counters of requests and nodes,
and the times of the next planned change and power-down.
"""
PLANNED_CHANGE_DTYPE_BY_COLUMN = {
    "row": int,  # row of the change in the input
    "planned_s": float,
    "cordon_s": float,
    "deadline_s": float,
    "change_s": float,
    "pool": int,
    "drains_node": int,
    "previous_drain": int,  # draining change of the node before it, or NO_INDEX
    "began_s": float,
    "emptied_s": float,
    "ended_s": float,  # while the node is partitioned: when that will be done
    "outcome": int,  # NO_INDEX until it is over
}
"""Columns of the table of planned layout changes, by node and change: planned times, node pool, progress, outcome.
"""
POWER_LOG_DTYPE_BY_COLUMN = {"node": int, "pool": int, "time_s": float, "is_on": int}
"""Columns of the log of nodes that power up or down, one row a node and change."""


class InstanceSets(NamedTuple):
    """Legal sets of MIG instances on a GPU, numbered: the empty set first, a full GPU (MIG disabled) last.

    - ``after_adding``, ``start_slice``, shape (n_sets, n_profiles): Set with one more instance, and where that begins.
    - ``after_removing``, shape (n_sets, n_slices): Set without the instance that begins at a slice.
    - ``room``, shape (n_sets, n_profiles): Instances that could be added one after the other.
    - ``loss``, shape (n_sets, n_profiles): Compute slices, over all profiles, that one more makes impossible.
    """

    after_adding: Ints  # [set, profile] the set with one more instance where that keeps most possible, or NO_INDEX
    start_slice: Ints  # [set, profile] slice where that instance begins
    after_removing: Ints  # [set, slice] the set without the instance that begins there
    room: Ints  # [set, profile] instances that could be added one after the other
    loss: Ints  # [set, profile] compute slices, over all profiles, that one more instance makes impossible


class DynamicMigState(NamedTuple):
    """GPUs whose MIG instances are made and removed with their jobs: instance set of each GPU, delays, and requests."""

    is_dynamic_pool: Ints  # [pool]
    instance_sets: InstanceSets
    make_s: float  # delay of a job for each instance that is made
    restore_s: float  # delay of a job on full GPUs of which some were partitioned last
    first_gpu: Ints  # [node + 1]
    gpu_set: Ints  # [gpu] instance set
    planned_set: Ints  # [gpu] instance set if the requests that wait had what they claim
    slice_request: Ints  # [gpu, slice] request of the instance that begins there, or NO_INDEX
    was_partitioned: Ints  # [gpu] 1 if its last job ran on an instance


class SimulationState(NamedTuple):
    """All that the event loop reads and writes. Requests are numbered in the order of the queue.

    An allocation is what a request has on one node. Requests of one kind ask for the same. Profile 0 is the full GPU.
    """

    # Rules
    is_strict: bool
    all_may_pass: bool  # every request that fits starts
    is_ranked: bool  # the queue goes by rank
    is_slurm: bool  # waiting requests reserve full nodes, and get powered-down nodes at once
    placement: int
    is_autoscaled: bool
    has_dynamic_mig: bool
    has_changes: bool
    counts_nodes: bool  # nodes_by_unallocated is kept; nodes are neither powered nor partitioned in the simulation
    starts_before_change: bool  # requests start on a cordoned node if they end before its change
    idle_s: float  # until an idle node powers down
    power_up_s: float
    poll_s: float  # interval at which nodes that power up are polled; 0: none
    cooldown_s: float  # after a power-up, until a node may power down
    max_waiting: int  # with more requests in the queue the simulation is given up
    min_idle_nodes: Ints  # [pool]
    # Requests
    ready_s: Floats  # [request]
    run_s: Floats
    rank: Floats  # [request] in a ranked queue the lowest is first
    limit_s: Floats
    profile: Ints
    node_count: Ints
    per_node: Ints  # GPUs or instances on each node but the last
    on_last_node: Ints
    kind: Ints
    first_allocation: Ints  # [request + 1]
    serving_profiles: Ints  # [profile, preference] the profile itself, then larger ones, then NO_INDEX
    gpu_fraction: Floats  # [profile]
    queue_of_profile: Ints  # [profile] queue with a head, or NO_INDEX: first come, first served by profile
    partition_of_profile: Ints  # [profile] partition in Slurm
    # Network and nodes
    slowdown: Floats  # [tier] run time over run time on one node: one node, one domain of each tier, no common domain
    domain: Ints  # [tier, node] narrow tiers first
    gpus: Ints  # [node]
    capacity: Ints  # [node, pool, profile]
    pool: Ints  # [node]
    node_state: Ints  # [node] OFFLINE, POWERING_UP or ONLINE
    online_at_s: Floats  # [node]
    idle_since_s: Floats  # [node]
    used_gpus: Floats  # [node]
    allocation_count: Ints  # [node]
    unallocated: Ints  # [node, profile]
    nodes_by_unallocated: Ints  # [profile, count] nodes with that many unallocated
    node_allocation: Ints  # [node] first in the linked list of its allocations
    # Allocations
    allocated_node: Ints  # [allocation]
    amount: Ints  # [allocation] GPUs or instances
    next_allocation: Ints  # [allocation] on the same node
    previous_allocation: Ints
    allocated_request: Ints
    # Starts and the queue
    start_s: Floats  # [request]
    run_factor: Floats  # [request] run time over run time on what it asked for
    served_profile: Ints
    queue: Ints  # [rank]
    ends: Table  # [heap] end events
    chosen_node: Ints  # [rank] nodes chosen for a start
    chosen_amount: Ints  # [rank] GPUs or instances on each
    chosen_by: Ints  # [node] number of the last search that chose it
    is_blocked: Ints  # [profile] 1 if a request for it waits; in Slurm [partition]
    head: Ints  # [queue] first request that waits in this pass and that others may delay, or NO_INDEX
    head_profile: Ints  # [queue] profile that will serve the head
    shadow_s: Floats  # [queue] latest start of the head (EASY's shadow time); in Slurm [partition]
    is_closed: Ints  # [queue] 1 if no request may pass the head
    is_wanted: Ints  # [profile] 1 if it would serve a request that waits
    waiting_of_kind: Ints  # [kind]
    kind_profile: Ints  # [kind]
    is_unplaceable: Ints  # [kind] 1 if none can start any more in this pass
    # Cached searches
    searched_at: Ints  # [kind, preference] count of changes at the last search for nodes
    infeasible_from_s: Floats  # [kind, preference] requests that end then or later find no nodes; -inf: none does
    found_tier: Ints  # [kind, preference] network tier of the nodes found
    is_unprovisionable: Ints  # [kind] 1 if no node can be given to it in this instant
    room_s: Floats  # [node] when it has room for the head
    node_changes: Ints  # [node] changes of what is allocated on it
    cached_need: Ints  # [queue, node] need of the last search for room, or NO_INDEX
    cached_at: Ints  # [queue, node] count of the node's changes at that search
    cached_room_s: Floats  # [queue, node] its result
    is_shadow_node: Ints  # [node] 1 if the head that was searched for last will start there
    reserved_from_s: Floats  # [node] start of the reservation of a request that waits; infinite: none
    extra: Ints  # [node] what later requests may still have when the head starts (EASY's extra nodes)
    domain_nodes: Ints  # [domain] nodes with room for a part of the request
    domain_last_nodes: Ints  # [domain] nodes with room for the last part of the request
    domain_unallocated: Ints  # [domain]
    unclaimed: Ints  # [node, profile] unallocated, and not claimed by requests that wait
    is_claimed: Ints  # [node]
    idle_nodes: Ints  # [pool]
    mig: DynamicMigState
    # Planned changes
    planned: Table  # [change] by node and time
    first_change: Ints  # [node + 1]
    stage: Ints  # [node] SCHEDULABLE, CORDONED or PARTITIONING
    next_drain: Ints  # [node] its draining change that is under way, or the next one
    next_power_change: Ints  # [node] its next change that drains nothing
    partitioned_for: Ints  # [node] draining change that it was partitioned for last, or NO_INDEX
    power_log: Table
    status: Table  # one row


QUOTA_UNITS_PER_GPU = 5040
"""Parts of a GPU in which quotas are counted: divisible by the slices of every GPU model in the catalogue."""
UNLIMITED_UNITS = 1 << 60
"""Quota units of a group that no quota binds."""
QUOTA_DTYPE_BY_COLUMN = {
    "nominal": int,  # quota units of its own
    "local": int,  # quota units that it does not lend
    "subtree": int,  # its own units and those that the groups below it lend
    "borrow": int,  # units that it may borrow at most
    "parent": int,  # its cohort, or NO_INDEX
    "has_quota": int,  # 1 if quotas bind it
    "usage": int,  # team: units allocated; cohort: units allocated below it beyond what those groups do not lend
    "reserved": int,  # team, within usage: units kept for the queue heads of this pass
    "is_over": int,  # 1 if it had no quota of its own left when this pass began
    "is_closed": int,  # 1 if its requests may not pass one that lacks quota in this pass
    "weight": float,
    "used": float,  # decayed GPU-seconds over its weight
}
"""Columns of the quota table, one row a team, then one row a cohort: quotas, parent and usage in quota units."""
TEAM_REQUEST_DTYPE_BY_COLUMN = {
    "team": int,
    "tier": int,
    "row": int,  # row of the request in the input, which seeds its failures
    "units": int,  # quota units
    "hours": int,  # row of the hours in which it may start, or NO_INDEX: at any time
    "is_victim": int,  # 1 if it is to be preempted for the present request
    "starts": int,
    "will_fail": int,  # 1 if its present run ends in a failure
    "preemptions": int,
    "failures": int,
    "work_left_s": float,
    "restart_s": float,  # time that its next start takes on top
    "checkpoint_s": float,  # work between checkpoints; 0: saved all the time; infinite: never
    "overhead_s": float,  # cost of a preemption
    "mtbf_s": float,  # mean time between failures; infinite: none
    "waiting_since_s": float,
    "allocated_s": float,  # when it last got its nodes
    "first_start_s": float,  # NaN before
    "end_s": float,
    "queued_s": float,
    "lost_s": float,  # time on its nodes without lasting progress
    "slowed_s": float,  # run time beyond that on what it asked for
    "reclaimed_s": float,  # when it lost its nodes to a reclaim: it preempts no other in that instant
}
"""Columns of the table of requests where teams share nodes: team, tier, quota units, and the progress of each request.
"""
STOPPED_RUN_DTYPE_BY_COLUMN = {"request": int, "failed": int, "begun": float, "at": float, "lost": float}
"""Columns of the log of runs that a preemption or a failure ended: request, whether it failed, begin, end and lost
time.
"""
TEAM_STATUS_DTYPE_BY_COLUMN = {
    "is_fair_share": int,
    "tiers_preempt": int,
    "reclaims": int,
    "heads_keep_quota": int,
    "seed": int,
    "decay_per_s": float,  # rate at which past use is forgotten
    "min_run_s": float,  # run time before a request may be preempted
    "write_s": float,  # time to write a checkpoint
    "restart_s": float,  # cost of a failure
    "next_pass_s": float,  # when a request may be preempted, or start, that may not now
    "stuck_request": int,  # request with too many starts, or NO_INDEX
    "stopped_rows": int,
    "victims": int,  # requests just preempted, and not yet in the queue
    "over_quota": int,  # requests that lack quota, which go to the end of the queue
    "heads": int,  # queue heads with quota kept for them
    "roomy_nodes": int,  # nodes with room for a part of the present request
    "roomy_last_nodes": int,  # nodes with room for the last part of the present request
}
"""Columns of the status table of the loop with teams, which has one row: sharing rules, and counters of requests."""


class TeamState(NamedTuple):
    """State of teams, cohorts and their requests, and sharing rules; requests are numbered as in SimulationState."""

    groups: Table  # [team or cohort]
    jobs: Table  # [request]
    victims: Ints  # [rank]
    over_quota: Ints  # [rank] requests that lack quota in this pass
    heads: Ints  # [rank] queue heads
    merge_buffer: Ints  # [rank] room to sort the queue
    hours_s: Floats  # [hours, rank] when start hours begin and end, in turn; infinite in the end
    passed_hours: Ints  # [hours] how many of these instants have passed
    stopped: Table  # [row] runs that were stopped; the loop pauses for it to be emptied
    status: Table  # one row
