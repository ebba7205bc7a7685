"""Placement of requests on nodes, and the reservation of the queue head for backfill.

Slurm's backfill keeps one reservation a partition (``bf_job_part_count_reserve=1``): all of each node on which the
first waiting job will start, so that on a partitioned node it blocks jobs of other profiles as well. Full GPUs and MIG
slices of a GPU model are a partition each. Jobs may be given nodes that are powered down, after those that are online
and those that power up; these nodes then power up, and the job stays with them.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_inlined, compile_not_inlined
from gpuplanner.simulator.node_autoscaling_and_dynamic_mig import (
    can_spare,
    first_pool_with_capacity,
    is_dynamic_node,
    latest_end_of_running,
    set_after_ends,
)
from gpuplanner.simulator.simulation_state import (
    CONSOLIDATE,
    LOWEST_NUMBER,
    MOST_USED,
    NO_INDEX,
    OFFLINE,
    ONLINE,
    POWERING_UP,
    SPREAD,
    SimulationState,
)


@compile_not_inlined
def choose_nodes(state: SimulationState, request: int, profile: int, past_shadow: bool, end_s: float) -> bool:
    """Choose nodes for a request by the placement rule; return whether there are enough.

    Parameters
    ----------
    state : SimulationState
    request : int
        Number of the request.
    profile : int
        Profile that serves it.
    past_shadow : bool
        Whether it ends after the latest start of the queue head: it then takes only what the head leaves.
    end_s : float
        Latest end by its time limit, before which no reservation may begin; minus infinity: reservations do not
        count. [s]
    """
    if state.placement == CONSOLIDATE and state.node_count[request] > 1:
        for tier in range(len(state.domain)):
            if choose_in_one_domain(state, request, profile, past_shadow, end_s, tier):
                return True
    return choose_one_by_one(state, request, profile, past_shadow, end_s, NO_INDEX, NO_INDEX)


@compile_not_inlined
def choose_in_one_domain(
    state: SimulationState, request: int, profile: int, past_shadow: bool, end_s: float, tier: int
) -> bool:
    """Choose nodes of one network domain: of those with enough nodes the one with the fewest unallocated instances.

    Parameters as of :func:`choose_nodes`, and `tier`, the network tier of the domains.
    """
    state.domain_nodes[:] = 0
    state.domain_last_nodes[:] = 0
    state.domain_unallocated[:] = 0
    for node in range(len(state.gpus)):
        domain = state.domain[tier, node]
        if state.node_state[node] == ONLINE:
            state.domain_unallocated[domain] += state.unallocated[node, profile]
        state.domain_nodes[domain] += is_usable(state, node, profile, state.per_node[request], past_shadow, end_s)
        is_last_usable = is_usable(state, node, profile, state.on_last_node[request], past_shadow, end_s)
        state.domain_last_nodes[domain] += is_last_usable

    best, count = NO_INDEX, state.node_count[request]
    for domain in range(len(state.domain_unallocated)):
        is_enough = state.domain_nodes[domain] >= count - 1 and state.domain_last_nodes[domain] >= count
        if is_enough and (best == NO_INDEX or state.domain_unallocated[domain] < state.domain_unallocated[best]):
            best = domain
    return bool(best != NO_INDEX and choose_one_by_one(state, request, profile, past_shadow, end_s, tier, best))


@compile_inlined
def choose_one_by_one(
    state: SimulationState, request: int, profile: int, past_shadow: bool, end_s: float, tier: int, domain: int
) -> bool:
    """Choose node after node, of one network domain or of all.

    Parameters as of :func:`choose_nodes`, and `tier` and `domain`; NO_INDEX: nodes of all domains. In Slurm a node
    that is online goes before one that powers up, and that before one that is powered down.
    """
    status = state.status[0]
    count, chosen = state.node_count[request], 0
    if state.counts_nodes and not may_have_room(state, request, profile):
        return False
    status.search += 1
    while chosen < count:
        need = state.per_node[request] if chosen < count - 1 else state.on_last_node[request]
        best, best_state, least = NO_INDEX, OFFLINE, np.inf
        # The first node with the least key possible is chosen without a look at those after it.
        least_possible = 0.0 if state.placement == LOWEST_NUMBER else float(need)
        if state.placement in (MOST_USED, SPREAD):
            least_possible = -np.inf
        for node in range(len(state.gpus)):
            node_state = state.node_state[node]
            if node_state < best_state or state.chosen_by[node] == status.search:
                continue
            # Cheap reasons first, before the reservation and the head are looked at.
            if node_state != ONLINE and not state.is_slurm:
                continue
            if node_state != OFFLINE and state.unallocated[node, profile] < need:
                continue
            if tier != NO_INDEX and state.domain[tier, node] != domain:
                continue
            if not is_usable(state, node, profile, need, past_shadow, end_s):
                continue

            key = 0.0
            if node_state != OFFLINE and state.placement != LOWEST_NUMBER:
                if state.placement == MOST_USED:
                    key = -state.used_gpus[node]
                else:
                    key = float(state.unallocated[node, profile])
                if state.placement == SPREAD:
                    key = -key
            if best == NO_INDEX or node_state > best_state or key < least:
                best, best_state, least = node, node_state, key
                if node_state == ONLINE and key <= least_possible:
                    break
        if best == NO_INDEX:
            break
        state.chosen_by[best] = status.search
        state.chosen_node[chosen], state.chosen_amount[chosen] = best, need
        chosen += 1
    return bool(chosen == count)


@compile_inlined
def add_unallocated(state: SimulationState, node: int, profile: int, amount: int) -> None:
    """Add GPUs or instances, or remove them where `amount` is negative, to what is unallocated on a node."""
    if state.counts_nodes:
        state.nodes_by_unallocated[profile, state.unallocated[node, profile]] -= 1
        state.nodes_by_unallocated[profile, state.unallocated[node, profile] + amount] += 1
    state.unallocated[node, profile] += amount


@compile_inlined
def may_have_room(state: SimulationState, request: int, profile: int) -> bool:
    """Whether enough nodes have room for each part of a request, before reservations and domains are looked at."""
    nodes, last_nodes, counts = 0, 0, state.nodes_by_unallocated[profile]
    for room in range(state.on_last_node[request], len(counts)):
        last_nodes += counts[room]
        nodes += counts[room] if room >= state.per_node[request] else 0
    return bool(nodes >= state.node_count[request] - 1 and last_nodes >= state.node_count[request])


@compile_inlined
def is_usable(state: SimulationState, node: int, profile: int, need: int, past_shadow: bool, end_s: float) -> bool:
    """Whether a node has room for `need` GPUs or instances of a profile; in Slurm powered-down nodes may.

    `past_shadow` and `end_s` as of :func:`choose_nodes`.
    """
    if end_s > state.reserved_from_s[node] or (state.node_state[node] != ONLINE and not state.is_slurm):
        return False
    if state.node_state[node] == OFFLINE:
        if not state.is_autoscaled or first_pool_with_capacity(state, node, profile, need) == NO_INDEX:
            return False
    elif state.unallocated[node, profile] < need:
        return False
    return not (past_shadow and state.is_shadow_node[node] and not can_spare(state, node, profile, need))


@compile_inlined
def network_tier(state: SimulationState, count: int) -> int:
    """Find the network tier of the first `count` chosen nodes.

    0 for one node; then 1 and so on for the narrowest tier with a domain of all; else the number of tiers + 1.
    """
    tier = 0
    if count > 1:
        tier = len(state.domain) + 1
        for number in range(len(state.domain)):
            is_one_domain = True
            for rank in range(1, count):
                first, node = state.chosen_node[0], state.chosen_node[rank]
                is_one_domain &= state.domain[number, node] == state.domain[number, first]
            if is_one_domain:
                tier = number + 1
                break
    return tier


@compile_inlined
def set_queue_head(state: SimulationState, request: int) -> None:
    """Set a request as the head of its queue if that has none, and reserve nodes for the first profile that serves it.

    Where no profile ever will, the head has no reservation and delays no request.
    """
    queue = state.queue_of_profile[state.profile[request]]
    if state.head[queue] != NO_INDEX:
        return
    state.head[queue] = request
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[state.profile[request], preference]
        if serving != NO_INDEX and state.queue_of_profile[serving] != NO_INDEX:
            find_head_start(state, request, serving, queue)
            if state.shadow_s[queue] < np.inf:
                return


@compile_not_inlined
def find_head_start(state: SimulationState, head: int, profile: int, queue: int) -> None:
    """Find when and where a queue head will start if all end by their time limits, and what is left over there then.

    Writes the shadow time, the shadow nodes and their extra room (EASY backfill). The node for the last part of the
    request is chosen last, and may have only that much room.

    Parameters
    ----------
    state : SimulationState
    head : int
        Number of the request.
    profile : int
        Profile that serves it.
    queue : int
        Number of its queue; in Slurm of its partition.
    """
    count = state.node_count[head]
    state.status[0].changes += 1
    state.head_profile[queue] = profile
    state.is_shadow_node[:] = 0
    state.shadow_s[queue] = np.inf

    # Take the nodes that have room soonest, one by one: the last of them sets the start.
    start_s, last, need = -np.inf, NO_INDEX, NO_INDEX
    for rank in range(count):
        part = state.per_node[head] if rank < count - 1 else state.on_last_node[head]
        if part != need:
            need = part
            for node in range(len(state.gpus)):
                state.room_s[node] = find_room_time(state, queue, node, need, profile)
        best = NO_INDEX
        for node in range(len(state.gpus)):
            if state.is_shadow_node[node] or state.room_s[node] == np.inf:
                continue
            if best == NO_INDEX or state.room_s[node] < state.room_s[best]:
                best = node
        if best == NO_INDEX:
            state.is_shadow_node[:] = 0
            return
        state.is_shadow_node[best] = 1
        start_s, last = max(start_s, state.room_s[best]), best

    state.shadow_s[queue] = start_s
    for node in range(len(state.gpus)):
        if state.is_shadow_node[node]:
            part = state.on_last_node[head] if node == last else state.per_node[head]
            # Below 0 where the node is repartitioned for the head: it has to be empty by then.
            state.extra[node] = max(room_at(state, node, start_s, profile) - part, NO_INDEX)


@compile_inlined
def find_room_time(state: SimulationState, queue: int, node: int, need: int, profile: int) -> float:
    """Find when a node, in any state, has room for `need` instances for the head of a queue [s]; infinite: never."""
    if state.node_state[node] == ONLINE or (state.is_slurm and state.node_state[node] == POWERING_UP):
        return cached_room_time(state, queue, node, need, profile)
    if state.is_slurm and state.node_state[node] == OFFLINE:
        if state.is_autoscaled and first_pool_with_capacity(state, node, profile, need) != NO_INDEX:
            return float(state.status[0].now_s)
    elif state.node_state[node] == POWERING_UP and state.capacity[node, state.pool[node], profile] >= need:
        return float(state.online_at_s[node])
    return np.inf


@compile_inlined
def cached_room_time(state: SimulationState, queue: int, node: int, need: int, profile: int) -> float:
    """Return :func:`next_room_time`, computed only where the node has changed since the last call for the queue.

    A cached time that lies ahead stays right: requests that are over their limits by now had not left enough room.
    """
    cache_key = need * state.unallocated.shape[1] + profile
    if (
        state.cached_need[queue, node] != cache_key
        or state.cached_at[queue, node] != state.node_changes[node]
        or state.cached_room_s[queue, node] <= state.status[0].now_s
    ):
        state.cached_room_s[queue, node] = next_room_time(state, node, need, profile)
        state.cached_need[queue, node] = NO_INDEX if is_dynamic_node(state, node) else cache_key
        state.cached_at[queue, node] = state.node_changes[node]
    room_s: float = state.cached_room_s[queue, node]
    return room_s


@compile_inlined
def next_room_time(state: SimulationState, node: int, need: int, profile: int) -> float:
    """Find when a node has room for `need` instances if requests end by their time limits [s]; infinite: never."""
    status = state.status[0]
    is_dynamic = is_dynamic_node(state, node)
    room, time_s = state.unallocated[node, profile], status.now_s

    # The pool of the node never has that much: it has to be empty to be brought up in another one.
    if state.has_dynamic_mig and state.is_autoscaled and state.capacity[node, state.pool[node], profile] < need:
        if first_pool_with_capacity(state, node, profile, need) == NO_INDEX:
            return np.inf
        allocation = state.node_allocation[node]
        while allocation != NO_INDEX:
            time_s = max(time_s, latest_end_of_running(state, state.allocated_request[allocation]))
            allocation = state.next_allocation[allocation]
        return float(time_s)

    # Go from end to end of the allocations until there is room.
    while room < need:
        soonest_s = np.inf
        allocation = state.node_allocation[node]
        while allocation != NO_INDEX:
            request = state.allocated_request[allocation]
            end_s = latest_end_of_running(state, request)
            frees_profile = is_dynamic or state.served_profile[request] == profile
            if frees_profile and (time_s < end_s or time_s == status.now_s) and end_s < soonest_s:
                soonest_s = end_s
            allocation = state.next_allocation[allocation]
        if soonest_s == np.inf:
            return np.inf
        time_s, room = soonest_s, room_at(state, node, soonest_s, profile)
        if time_s == status.now_s and room < need:
            # All requests over their limits count as ending now: go on with the ends after that.
            time_s = np.nextafter(time_s, np.inf)
    room_s: float = max(time_s, status.now_s)
    return room_s


@compile_inlined
def room_at(state: SimulationState, node: int, time_s: float, profile: int) -> int:
    """Count the instances of a profile that fit on a node at a time, if all end by their time limits, none starts."""
    if state.node_state[node] == POWERING_UP and not state.is_slurm:
        return int(state.capacity[node, state.pool[node], profile])

    room = 0
    if is_dynamic_node(state, node):
        if state.capacity[node, state.pool[node], profile]:
            for gpu in range(state.mig.first_gpu[node], state.mig.first_gpu[node + 1]):
                gpu_set = set_after_ends(state, gpu, state.mig.gpu_set[gpu], time_s)
                room += state.mig.instance_sets.room[gpu_set, profile]
        return int(room)

    room, allocation = state.unallocated[node, profile], state.node_allocation[node]
    while allocation != NO_INDEX:
        request = state.allocated_request[allocation]
        if state.served_profile[request] == profile and latest_end_of_running(state, request) <= time_s:
            room += state.amount[allocation]
        allocation = state.next_allocation[allocation]
    return int(room)


@compile_not_inlined
def reserve_nodes(state: SimulationState, request: int, partition: int) -> bool:
    """Reserve all of each node on which a request can start first (Slurm's backfill); return whether there are any."""
    for preference in range(state.serving_profiles.shape[1]):
        serving = state.serving_profiles[state.profile[request], preference]
        if serving == NO_INDEX:
            return False
        find_head_start(state, request, serving, partition)
        if state.shadow_s[partition] < np.inf:
            for node in range(len(state.gpus)):
                if state.is_shadow_node[node]:
                    state.reserved_from_s[node] = min(state.reserved_from_s[node], state.shadow_s[partition])
            return True
    return False
