"""The compiled event loop over nodes.

Events of one instant are processed in this order: ends of requests, planned changes (ends, then cordons), nodes that
come online, arrivals, starts in the order of the queue, power-ups, power-downs. Ties go to the lowest number of
request, pool, node and planned change.

Queue rules: in a strict queue the first request that does not fit blocks all behind it. With EASY backfill a request
passes the queue head if it ends by the head's shadow time (latest start), or needs only what is left over then. In
Slurm's backfill the head of each partition reserves full nodes, and all others keep off them.

Invariants, after each event: what is unallocated on a node plus its allocations is its capacity; ``queue`` holds the
waiting requests without gaps from ``queue_first`` on; ``ends`` has one event for each running request; a search result
is used only while ``status.changes`` is what it was.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_event_loop_entry, compile_inlined, compile_not_inlined
from gpuplanner.simulator.node_autoscaling_and_dynamic_mig import (
    allocate_on_gpus,
    is_dynamic_node,
    log_power_change,
    power_down_idle_nodes,
    power_up_chosen_nodes,
    power_up_nodes,
    release_instances,
    reset_unallocated,
    set_online,
)
from gpuplanner.simulator.node_placement import (
    add_unallocated,
    choose_nodes,
    network_tier,
    reserve_nodes,
    set_queue_head,
)
from gpuplanner.simulator.planned_layout_changes import (
    advance_planned_changes,
    find_planned_change,
    hide_cordoned_nodes,
    show_cordoned_nodes_only,
)
from gpuplanner.simulator.simulation_state import (
    CORDONED,
    DEFAULT_BACKFILL_DEPTH_REQUESTS,
    NO_INDEX,
    POWERING_UP,
    SimulationState,
    Table,
)


@compile_inlined
def push_event(heap: Table, size: int, time_s: float, request: int) -> int:
    """Add the end event of a request to a binary heap, ordered by time and request; return the heap's new size."""
    slot = size
    while slot > 0:
        parent = (slot - 1) // 2
        if heap[parent].time_s < time_s or (heap[parent].time_s == time_s and heap[parent].request < request):
            break
        heap[slot] = heap[parent]
        slot = parent

    heap[slot].time_s, heap[slot].request = time_s, request
    return size + 1


@compile_inlined
def pop_event(heap: Table, size: int) -> int:
    """Remove the first event of a binary heap, which is to be read before; return the heap's new size."""
    size -= 1
    time_s, request = heap[size].time_s, heap[size].request
    slot = 0
    while True:
        child, right = 2 * slot + 1, 2 * slot + 2
        if child >= size:
            break
        if right < size and (
            heap[right].time_s < heap[child].time_s
            or (heap[right].time_s == heap[child].time_s and heap[right].request < heap[child].request)
        ):
            child = right
        if time_s < heap[child].time_s or (time_s == heap[child].time_s and request < heap[child].request):
            break
        heap[slot] = heap[child]
        slot = child

    heap[slot].time_s, heap[slot].request = time_s, request
    return size


@compile_inlined
def remove_event(heap: Table, size: int, request: int) -> int:
    """Remove the event of a request that has one from a binary heap; return the heap's new size."""
    slot = 0
    while heap[slot].request != request:
        slot += 1
    while slot > 0:
        parent = (slot - 1) // 2
        heap[slot] = heap[parent]
        slot = parent
    return pop_event(heap, size)


@compile_event_loop_entry
def run_events(state: SimulationState) -> bool:
    """Process events until none is left (True), or until the power log must be emptied before going on (False)."""
    status = state.status[0]
    initialize_nodes(state)

    # One instant writes at most four rows of the log a node, and two a planned change.
    while len(state.power_log) - status.logged > 4 * len(state.gpus) + 2 * len(state.planned):
        now_s = next_event_time(state)
        if now_s == np.inf:
            return True
        status.now_s = now_s

        while status.running and state.ends[0].time_s <= now_s:
            request = state.ends[0].request
            status.running = pop_event(state.ends, status.running)
            release_nodes(state, request)

        if state.has_changes and (status.vacated_nodes or status.next_change_s <= now_s):
            advance_planned_changes(state)

        process_arrivals(state)
        if status.waiting:
            schedule_queue(state)
        if status.waiting and status.short_start_nodes:
            schedule_on_cordoned_nodes(state)
        if status.waiting > state.max_waiting:
            return True

        if state.is_autoscaled:
            power_up_nodes(state)
            # A node that has just powered down may power up at once, in another pool, for a request that waits.
            if power_down_idle_nodes(state) and status.waiting:
                if state.is_slurm:
                    schedule_queue(state)
                power_up_nodes(state)
    return False


@compile_inlined
def initialize_nodes(state: SimulationState) -> None:
    """Bring the nodes online that are on at first, and find the first planned changes of each node."""
    status = state.status[0]
    if not status.has_begun:
        status.has_begun = 1
        for node in range(len(state.gpus)):
            if state.pool[node] != NO_INDEX:
                reset_unallocated(state, node)
                for profile in range(len(state.nodes_by_unallocated) if state.counts_nodes else 0):
                    state.nodes_by_unallocated[profile, state.unallocated[node, profile]] += 1
                set_online(state, node, -np.inf)
                log_power_change(state, node, -np.inf, 1)
            state.next_drain[node] = find_planned_change(state, node, state.first_change[node], 1)
            state.next_power_change[node] = find_planned_change(state, node, state.first_change[node], 0)


@compile_inlined
def process_arrivals(state: SimulationState) -> None:
    """Bring nodes online that have powered up, and add requests to the queue that are ready."""
    status = state.status[0]
    if state.is_autoscaled:
        for node in range(len(state.gpus)):
            if state.node_state[node] == POWERING_UP and state.online_at_s[node] <= status.now_s:
                set_online(state, node, status.now_s)

    while status.arrived < len(state.ready_s) and state.ready_s[status.arrived] <= status.now_s:
        enqueue(state, status.arrived)
        status.arrived += 1


@compile_inlined
def enqueue(state: SimulationState, request: int) -> None:
    """Add a request to the queue: at its end, or behind the requests whose rank is not higher."""
    status = state.status[0]
    slot = status.queue_first + status.waiting
    if state.is_ranked:
        while slot > status.queue_first and state.rank[state.queue[slot - 1]] > state.rank[request]:
            state.queue[slot] = state.queue[slot - 1]
            slot -= 1
    state.queue[slot] = request

    status.waiting += 1
    status.waiting_kinds += state.waiting_of_kind[state.kind[request]] == 0
    state.waiting_of_kind[state.kind[request]] += 1


@compile_inlined
def next_event_time(state: SimulationState) -> float:
    """Find the time of the next event [s]; infinite where there is none."""
    status = state.status[0]
    next_s = np.inf
    if status.running:
        next_s = state.ends[0].time_s
    if status.arrived < len(state.ready_s):
        next_s = min(next_s, state.ready_s[status.arrived])
    if state.has_changes:
        next_s = min(next_s, status.next_change_s)
    if state.is_autoscaled:
        next_s = min(next_s, status.next_power_down_s)
        for node in range(len(state.gpus)):
            if state.node_state[node] == POWERING_UP:
                next_s = min(next_s, state.online_at_s[node])
    return next_s


@compile_inlined
def release_nodes(state: SimulationState, request: int) -> None:
    """Release all allocations of a request."""
    status = state.status[0]
    profile = state.served_profile[request]
    status.changes += 1
    for allocation in range(state.first_allocation[request], state.first_allocation[request + 1]):
        node = state.allocated_node[allocation]
        if node == NO_INDEX:
            continue
        if is_dynamic_node(state, node):
            release_instances(state, node, request)
        else:
            add_unallocated(state, node, profile, state.amount[allocation])
        state.node_changes[node] += 1
        state.used_gpus[node] -= state.gpu_fraction[profile] * state.amount[allocation]
        state.allocation_count[node] -= 1
        if state.allocation_count[node] == 0:
            state.used_gpus[node], state.idle_since_s[node] = 0.0, status.now_s
            status.vacated_nodes += state.stage[node] == CORDONED

        # Unlink the allocation from the list of its node.
        previous, following = state.previous_allocation[allocation], state.next_allocation[allocation]
        if previous == NO_INDEX:
            state.node_allocation[node] = following
        else:
            state.next_allocation[previous] = following
        if following != NO_INDEX:
            state.previous_allocation[following] = previous


@compile_not_inlined
def schedule_queue(state: SimulationState) -> None:
    """Start the requests that can start, in the order of the queue (one scheduling pass).

    Requests that keep waiting move up in the array, so that one sweep removes the started ones. The pass stops as soon
    as no waiting request of any profile and size can start any more.
    """
    status = state.status[0]
    kept = slot = status.queue_first
    end = status.queue_first + status.waiting
    reset_pass(state)
    while slot < end and status.placeable_kinds:
        request = state.queue[slot]
        if is_passed_over(state, request):
            state.queue[kept] = request
            kept += 1
            slot += 1
            continue

        kind = state.kind[request]
        was_unplaceable = state.is_unplaceable[kind]
        if try_start(state, request):
            schedule_end_event(state, request, state.run_s[request] * state.run_factor[request])
            state.waiting_of_kind[kind] -= 1
            if state.waiting_of_kind[kind] == 0:
                status.waiting_kinds -= 1
                status.placeable_kinds -= 1
        else:
            status.placeable_kinds -= state.is_unplaceable[kind] and not was_unplaceable
            state.queue[kept] = request
            kept += 1
        slot += 1
    close_queue_gap(state, kept, slot, end)


@compile_not_inlined
def schedule_on_cordoned_nodes(state: SimulationState) -> None:
    """Start requests, in queue order, on cordoned nodes if by their time limits they end before the planned change.

    No request has a reservation on these nodes, so none waits there for those before it in the queue.
    """
    status = state.status[0]
    kept, end = status.queue_first, status.queue_first + status.waiting
    latest_s = show_cordoned_nodes_only(state)
    state.infeasible_from_s[:] = np.inf
    for slot in range(status.queue_first, end):
        request = state.queue[slot]
        serving = choose_cordoned_nodes(state, request, latest_s)
        if serving == NO_INDEX:
            state.queue[kept] = request
            kept += 1
            continue

        start_request(state, request, serving, False)
        schedule_end_event(state, request, state.run_s[request] * state.run_factor[request])
        for rank in range(state.node_count[request]):
            state.planned[state.next_drain[state.chosen_node[rank]]].emptied_s = np.nan
        state.waiting_of_kind[state.kind[request]] -= 1
        status.waiting_kinds -= state.waiting_of_kind[state.kind[request]] == 0
    close_queue_gap(state, kept, end, end)
    hide_cordoned_nodes(state)


@compile_inlined
def choose_cordoned_nodes(state: SimulationState, request: int, latest_s: float) -> int:
    """Choose cordoned nodes for a request if it ends by `latest_s` by its time limit; return the serving profile.

    Its time limit is stretched as on nodes that share no network domain. NO_INDEX where there is no room.
    """
    kind, chosen = state.kind[request], NO_INDEX
    tier = 0 if state.node_count[request] == 1 else len(state.domain) + 1
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[state.profile[request], preference]
        if serving == NO_INDEX or chosen != NO_INDEX:
            continue
        end_s = latest_end(state, request, serving, tier)
        # A request that ends later than one of its kind that found no room finds none either.
        if end_s <= latest_s and end_s < state.infeasible_from_s[kind, preference]:
            if choose_nodes(state, request, serving, False, end_s):
                chosen = serving
            else:
                state.infeasible_from_s[kind, preference] = end_s
    return chosen


@compile_inlined
def close_queue_gap(state: SimulationState, kept: int, slot: int, end: int) -> None:
    """Close the gap that started requests left in the queue, from `kept` to `slot`, by moving the shorter part."""
    status = state.status[0]
    started = slot - kept
    if kept - status.queue_first <= end - slot:
        for rank in range(kept - 1, status.queue_first - 1, -1):
            state.queue[rank + started] = state.queue[rank]
        status.queue_first += started
    elif started:
        for rank in range(slot, end):
            state.queue[rank - started] = state.queue[rank]
    status.waiting -= started


@compile_inlined
def reset_pass(state: SimulationState) -> None:
    """Forget queue heads, blocked profiles and reservations before a scheduling pass."""
    status = state.status[0]
    status.placeable_kinds, status.backfill_tried = status.waiting_kinds, 0
    status.changes += 1
    state.head[:] = NO_INDEX
    state.is_closed[:] = 0
    state.is_blocked[:] = 0
    state.is_unplaceable[:] = 0
    if state.is_slurm:
        state.reserved_from_s[:] = np.inf


@compile_inlined
def is_passed_over(state: SimulationState, request: int) -> bool:
    """Whether a request cannot start in this pass, and blocks no further requests.

    :func:`try_start` would find the same; this saves its call for each request of a long queue.
    """
    profile = state.profile[request]
    if not state.is_slurm and state.queue_of_profile[profile] == NO_INDEX:
        return bool(state.is_blocked[profile])
    passed = bool(state.is_unplaceable[state.kind[request]])
    if passed and not state.is_slurm and not state.is_strict and not state.all_may_pass:
        # With EASY the first request that waits becomes the head, which only try_start does.
        passed = bool(state.head[state.queue_of_profile[profile]] != NO_INDEX)
    return passed


@compile_inlined
def is_behind_head(state: SimulationState, request: int) -> bool:
    """Whether each queue that a request may wait in has a head: another request that waits first in this pass."""
    profile = state.profile[request]
    if state.is_slurm or state.queue_of_profile[profile] == NO_INDEX:
        return bool(state.is_blocked[state.partition_of_profile[profile] if state.is_slurm else profile])
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[profile, preference]
        if serving != NO_INDEX and not has_head(state, serving):
            return False
    return True


@compile_inlined
def has_head(state: SimulationState, profile: int) -> bool:
    """Whether a request at the head of the queue of a profile waits in this pass, or has closed that queue."""
    queue = state.queue_of_profile[profile]
    return bool(queue != NO_INDEX and (state.is_closed[queue] or state.head[queue] != NO_INDEX))


@compile_inlined
def try_start(state: SimulationState, request: int) -> bool:
    """Start a request if the queue rule and the nodes allow it; else let it block those behind it.

    The profiles that serve the request are tried in order of preference. One is skipped where its queue is closed or
    no nodes have room. With a head before it, the request starts only as backfill, within the depth of backfill.
    """
    status = state.status[0]
    profile, kind = state.profile[request], state.kind[request]
    if state.is_slurm:
        return try_start_in_slurm(state, request)
    is_fifo = state.queue_of_profile[profile] == NO_INDEX
    if state.is_unplaceable[kind] or (is_fifo and state.is_blocked[profile]):
        block_later_requests(state, request)
        return False

    waits_for_head = False
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[profile, preference]
        if serving == NO_INDEX:
            continue
        queue = state.queue_of_profile[serving]
        if queue != NO_INDEX and state.is_closed[queue]:
            continue
        # First without the heads' reservations: a request that finds no room so finds none at all.
        if not has_room(state, request, serving, preference):
            continue
        is_backfill = has_head(state, serving)
        end_s = latest_end(state, request, serving, state.found_tier[kind, preference])
        past_shadow = is_backfill and end_s > state.shadow_s[queue]
        waits_for_head |= is_backfill
        if not is_backfill or (
            status.backfill_tried < DEFAULT_BACKFILL_DEPTH_REQUESTS
            and can_backfill(state, request, serving, preference, past_shadow, end_s)
        ):
            start_request(state, request, serving, past_shadow)
            return True

    status.backfill_tried += waits_for_head
    state.is_unplaceable[kind] = not waits_for_head or status.backfill_tried >= DEFAULT_BACKFILL_DEPTH_REQUESTS
    block_later_requests(state, request)
    return False


@compile_inlined
def block_later_requests(state: SimulationState, request: int) -> None:
    """Apply the queue rule behind a request that waits: block the others, or set it as the head that they backfill."""
    profile = state.profile[request]
    if state.all_may_pass:
        return
    if state.queue_of_profile[profile] == NO_INDEX:
        state.is_blocked[profile] = 1
    elif not state.is_strict:
        set_queue_head(state, request)
    else:
        state.is_closed[state.queue_of_profile[profile]] = 1


@compile_not_inlined
def try_start_in_slurm(state: SimulationState, request: int) -> bool:
    """Start a request on nodes that are not reserved, some powered up for it; the first that waits reserves nodes."""
    status = state.status[0]
    kind = state.kind[request]
    partition = state.partition_of_profile[state.profile[request]]
    if state.is_unplaceable[kind]:
        return False

    found_room = False
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[state.profile[request], preference]
        if serving == NO_INDEX or not has_room(state, request, serving, preference):
            continue
        found_room = True
        end_s = latest_end(state, request, serving, state.found_tier[kind, preference])
        if status.backfill_tried < DEFAULT_BACKFILL_DEPTH_REQUESTS and can_backfill(
            state, request, serving, preference, False, end_s
        ):
            power_up_chosen_nodes(state, request, serving)
            start_request(state, request, serving, False)
            return True

    status.backfill_tried += found_room
    state.is_unplaceable[kind] = not found_room or status.backfill_tried >= DEFAULT_BACKFILL_DEPTH_REQUESTS
    if not state.is_blocked[partition] and reserve_nodes(state, request, partition):
        state.is_blocked[partition] = 1
    return False


@compile_inlined
def has_room(state: SimulationState, request: int, serving: int, preference: int) -> bool:
    """Whether nodes have room for a request if no other waited before it; these nodes are chosen in the state.

    The result for another request of the same profile and size is used until something changes. Nodes are then not
    chosen again, which is safe: that other request found room and waits, so this one has a head before it and goes
    through backfill.
    """
    status = state.status[0]
    kind = state.kind[request]
    if state.searched_at[kind, preference] != status.changes:
        has_nodes = choose_nodes(state, request, serving, False, -np.inf)
        state.infeasible_from_s[kind, preference] = np.inf if has_nodes else -np.inf
        state.found_tier[kind, preference] = network_tier(state, state.node_count[request]) if has_nodes else 0
        state.searched_at[kind, preference] = status.changes
    return bool(state.infeasible_from_s[kind, preference] > -np.inf)


@compile_inlined
def can_backfill(
    state: SimulationState, request: int, serving: int, preference: int, past_shadow: bool, end_s: float
) -> bool:
    """Whether a request fits until its end beside those that wait before it; the nodes are chosen.

    Parameters
    ----------
    state : SimulationState
    request : int
        Number of the request.
    serving : int
        Profile that serves it.
    preference : int
        Rank of that profile among those that may serve it.
    past_shadow : bool
        Whether it ends after the latest start of the queue head, so that it may use only what the head leaves.
    end_s : float
        Latest end by its time limit. [s]
    """
    kind = state.kind[request]
    # Reservations only grow within a pass: a request that ends later than one without room has no room.
    if state.infeasible_from_s[kind, preference] <= end_s < np.inf:
        return False
    if choose_nodes(state, request, serving, past_shadow, end_s):
        return True
    state.infeasible_from_s[kind, preference] = end_s
    return False


@compile_inlined
def latest_end(state: SimulationState, request: int, profile: int, tier: int) -> float:
    """Find when a request that starts now, on nodes of a network tier, ends at the latest by its time limit [s]."""
    limit_s = state.limit_s[request] * state.slowdown[tier]
    end_s: float = state.status[0].now_s + max_setup_time(state, request, profile) + limit_s
    return end_s


@compile_inlined
def max_setup_time(state: SimulationState, request: int, profile: int) -> float:
    """Return the longest time in which the MIG instances or full GPUs of a request are made ready on a node [s]."""
    setup_s: float = state.per_node[request] * state.mig.make_s if profile else state.mig.restore_s
    return setup_s


@compile_inlined
def start_request(state: SimulationState, request: int, profile: int, past_shadow: bool) -> None:
    """Allocate the chosen nodes to a request; it starts once its instances are made and its nodes are online."""
    status = state.status[0]
    status.changes += 1
    state.served_profile[request] = profile
    # The limit runs from the latest start until the real one is known: instances that are placed look at it.
    state.start_s[request] = status.now_s + max_setup_time(state, request, profile)
    state.run_factor[request] = state.slowdown[network_tier(state, state.node_count[request])]

    setup_s = 0.0
    for rank in range(state.node_count[request]):
        node, amount = state.chosen_node[rank], state.chosen_amount[rank]
        allocation = state.first_allocation[request] + rank
        state.allocated_node[allocation] = node
        state.amount[allocation] = amount
        state.allocated_request[allocation] = request
        if is_dynamic_node(state, node):
            spares_head = past_shadow and state.is_shadow_node[node] > 0
            setup_s = max(setup_s, allocate_on_gpus(state, node, profile, amount, request, spares_head))
        else:
            add_unallocated(state, node, profile, -amount)
            if past_shadow and profile == state.head_profile[state.queue_of_profile[profile]]:
                state.extra[node] -= amount
        if state.node_state[node] == POWERING_UP:
            setup_s = max(setup_s, state.online_at_s[node] - status.now_s)
        state.node_changes[node] += 1
        state.used_gpus[node] += state.gpu_fraction[profile] * amount
        state.allocation_count[node] += 1

        # Link the allocation in front of the list of its node.
        following = state.node_allocation[node]
        state.previous_allocation[allocation], state.next_allocation[allocation] = NO_INDEX, following
        if following != NO_INDEX:
            state.previous_allocation[following] = allocation
        state.node_allocation[node] = allocation
    state.start_s[request] = status.now_s + setup_s


@compile_inlined
def schedule_end_event(state: SimulationState, request: int, duration_s: float) -> None:
    """Add the end event of a request that was started and runs for a duration [s]."""
    status = state.status[0]
    status.running = push_event(state.ends, status.running, state.start_s[request] + duration_s, request)
