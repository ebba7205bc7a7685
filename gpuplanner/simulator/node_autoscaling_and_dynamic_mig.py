"""Nodes that power up and down (autoscaling), and MIG instances made on demand."""

from __future__ import annotations

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_inlined, compile_not_inlined
from gpuplanner.simulator.simulation_state import (
    IMPOSSIBLE_PLACEMENT_LOSS,
    NO_INDEX,
    OFFLINE,
    ONLINE,
    POWERING_UP,
    Ints,
    SimulationState,
)


@compile_inlined
def is_dynamic_node(state: SimulationState, node: int) -> bool:
    """Whether MIG instances on the GPUs of a node are made and removed with their jobs."""
    return bool(state.has_dynamic_mig and state.pool[node] != NO_INDEX and state.mig.is_dynamic_pool[state.pool[node]])


@compile_not_inlined
def count_room(state: SimulationState, node: int, gpu_sets: Ints, room: Ints) -> None:
    """Count the instances of each profile for which the GPUs of a node with dynamic MIG have room.

    Parameters
    ----------
    state : SimulationState
    node : int
        Number of the node.
    gpu_sets : array of int, shape (n_gpus,)
        Instance set of each GPU.
    room : array of int, shape (n_nodes, n_profiles)
        Where the counts are written; each profile counts as if the others took nothing.
    """
    for profile in range(room.shape[1]):
        count = 0
        if state.capacity[node, state.pool[node], profile]:
            for gpu in range(state.mig.first_gpu[node], state.mig.first_gpu[node + 1]):
                count += state.mig.instance_sets.room[gpu_sets[gpu], profile]
        room[node, profile] = count


@compile_inlined
def latest_end_of_running(state: SimulationState, request: int) -> float:
    """Find when a running request ends at the latest by its time limit, at the earliest now [s]."""
    limit_s = state.limit_s[request] * state.run_factor[request]
    end_s: float = max(state.start_s[request] + limit_s, state.status[0].now_s)
    return end_s


@compile_not_inlined
def set_after_ends(state: SimulationState, gpu: int, gpu_set: int, time_s: float) -> int:
    """Find the MIG instance set of a GPU at a time, if requests end by their time limits and none starts."""
    for start_slice in range(state.mig.slice_request.shape[1]):
        request = state.mig.slice_request[gpu, start_slice]
        if request != NO_INDEX and latest_end_of_running(state, request) <= time_s:
            gpu_set = state.mig.instance_sets.after_removing[gpu_set, start_slice]
    return gpu_set


@compile_not_inlined
def place_instances(
    state: SimulationState, node: int, gpu_sets: Ints, profile: int, need: int, request: int, spares_head: bool
) -> int:
    """Place instances on the GPUs of a node where most others still fit; return what the queue head loses.

    Parameters
    ----------
    state : SimulationState
    node : int
        Number of the node.
    gpu_sets : array of int, shape (n_gpus,)
        Instance set of each GPU, which is updated.
    profile, need : int
        Profile of the instances, and their number.
    request : int
        Request that gets them; NO_INDEX: they are planned only.
    spares_head : bool
        Whether they are still there at the latest start of the queue head, and have to leave it what it needs.

    Returns
    -------
    int
        Instances of the head's profile for which there is less room at its start;
        IMPOSSIBLE_PLACEMENT_LOSS if there is no room.
    """
    sets, queue = state.mig.instance_sets, state.queue_of_profile[profile]
    head_loss = 0
    for _ in range(need):
        best, least_loss, best_head_loss = NO_INDEX, IMPOSSIBLE_PLACEMENT_LOSS, 0
        for gpu in range(state.mig.first_gpu[node], state.mig.first_gpu[node + 1]):
            after, loss = sets.after_adding[gpu_sets[gpu], profile], sets.loss[gpu_sets[gpu], profile]
            if after == NO_INDEX or loss >= least_loss:
                continue

            gpu_head_loss = 0
            if spares_head:
                shadow_s, head_profile = state.shadow_s[queue], state.head_profile[queue]
                set_without = set_after_ends(state, gpu, gpu_sets[gpu], shadow_s)
                set_with = set_after_ends(state, gpu, after, shadow_s)
                gpu_head_loss = sets.room[set_without, head_profile] - sets.room[set_with, head_profile]
                if head_loss + gpu_head_loss > state.extra[node]:
                    continue
            best, least_loss, best_head_loss = gpu, loss, gpu_head_loss
        if best == NO_INDEX:
            return IMPOSSIBLE_PLACEMENT_LOSS

        if request != NO_INDEX:
            state.mig.slice_request[best, sets.start_slice[gpu_sets[best], profile]] = request
        gpu_sets[best] = sets.after_adding[gpu_sets[best], profile]
        head_loss += best_head_loss
    return head_loss


@compile_not_inlined
def can_spare(state: SimulationState, node: int, profile: int, need: int) -> bool:
    """Whether the queue head has what it needs on a node if `need` instances stay there beyond its latest start."""
    if not is_dynamic_node(state, node):
        is_head_profile = profile == state.head_profile[state.queue_of_profile[profile]]
        return bool(state.extra[node] >= (need if is_head_profile else 0))
    for gpu in range(state.mig.first_gpu[node], state.mig.first_gpu[node + 1]):
        state.mig.planned_set[gpu] = state.mig.gpu_set[gpu]
    return (
        place_instances(state, node, state.mig.planned_set, profile, need, NO_INDEX, True) < IMPOSSIBLE_PLACEMENT_LOSS
    )


@compile_not_inlined
def allocate_on_gpus(
    state: SimulationState, node: int, profile: int, amount: int, request: int, spares_head: bool
) -> float:
    """Make instances, or restore full GPUs, for a request on a node with dynamic MIG.

    Parameters as of :func:`place_instances`.

    Returns
    -------
    float
        Delay before the request begins. [s]
    """
    mig = state.mig
    head_loss = place_instances(state, node, mig.gpu_set, profile, amount, request, spares_head)
    if spares_head:
        state.extra[node] -= head_loss

    setup_s = amount * mig.make_s if profile else 0.0
    for gpu in range(mig.first_gpu[node], mig.first_gpu[node + 1]):
        for start_slice in range(mig.slice_request.shape[1]):
            if mig.slice_request[gpu, start_slice] == request:
                if profile == 0 and mig.was_partitioned[gpu]:
                    setup_s = mig.restore_s
                mig.was_partitioned[gpu] = profile > 0
    count_room(state, node, mig.gpu_set, state.unallocated)
    return setup_s


@compile_not_inlined
def release_instances(state: SimulationState, node: int, request: int) -> None:
    """Remove the instances, or full GPUs, of a request from a node with dynamic MIG."""
    mig = state.mig
    for gpu in range(mig.first_gpu[node], mig.first_gpu[node + 1]):
        for start_slice in range(mig.slice_request.shape[1]):
            if mig.slice_request[gpu, start_slice] == request:
                mig.slice_request[gpu, start_slice] = NO_INDEX
                mig.gpu_set[gpu] = mig.instance_sets.after_removing[mig.gpu_set[gpu], start_slice]
    count_room(state, node, mig.gpu_set, state.unallocated)


@compile_inlined
def log_power_change(state: SimulationState, node: int, time_s: float, is_on: int) -> None:
    """Write to the power log that a node powers up in its node pool (`is_on` 1), or down (0)."""
    row = state.power_log[state.status[0].logged]
    row.node, row.pool = node, state.pool[node]
    row.time_s, row.is_on = time_s, is_on
    state.status[0].logged += 1


@compile_not_inlined
def reset_unallocated(state: SimulationState, node: int) -> None:
    """Set the unallocated GPUs and instances of an empty node to all that it has in its node pool."""
    state.node_changes[node] += 1
    for profile in range(state.unallocated.shape[1]):
        capacity = state.capacity[node, state.pool[node], profile]
        state.unallocated[node, profile] = state.unclaimed[node, profile] = capacity


@compile_inlined
def set_online(state: SimulationState, node: int, now_s: float) -> None:
    """Set a node online and idle since now."""
    state.node_state[node], state.idle_since_s[node] = ONLINE, now_s


@compile_not_inlined
def power_up_nodes(state: SimulationState) -> None:
    """Power up nodes for requests that find no room on powered-up ones, then up to the minimum of idle nodes by pool.

    Requests claim room in the order of the queue; in Slurm a request powers up the nodes allocated to it at its start.
    """
    status = state.status[0]
    idle_nodes_kept = 0
    for pool in range(len(state.min_idle_nodes)):
        idle_nodes_kept += state.min_idle_nodes[pool]
    if state.is_slurm:
        if idle_nodes_kept:
            power_up_idle_nodes(state)
        return
    if status.waiting == 0 and idle_nodes_kept == 0:
        return
    state.is_claimed[:] = 0
    if status.waiting == 0:
        power_up_idle_nodes(state)
        return

    # What is not claimed yet: all that is unallocated now, or will be once a node is online.
    state.is_unprovisionable[:] = 0
    for node in range(len(state.gpus)):
        for profile in range(state.unallocated.shape[1]):
            state.unclaimed[node, profile] = 0
            if state.node_state[node] == ONLINE:
                state.unclaimed[node, profile] = state.unallocated[node, profile]
            elif state.node_state[node] == POWERING_UP:
                state.unclaimed[node, profile] = state.capacity[node, state.pool[node], profile]
    for gpu in range(len(state.mig.gpu_set)):
        state.mig.planned_set[gpu] = state.mig.gpu_set[gpu]

    rank, status.placeable_kinds = 0, status.waiting_kinds
    while rank < status.waiting and status.placeable_kinds:
        request = state.queue[status.queue_first + rank]
        rank += 1
        if state.is_unprovisionable[state.kind[request]]:
            continue
        has_claim = False
        for preference in range(state.serving_profiles.shape[1]):
            serving = state.serving_profiles[state.profile[request], preference]
            if serving != NO_INDEX and not has_claim:
                has_claim = claim_nodes(state, request, serving)
        if not has_claim:
            state.is_unprovisionable[state.kind[request]] = 1
            status.placeable_kinds -= 1
    if idle_nodes_kept:
        power_up_idle_nodes(state)


@compile_not_inlined
def claim_nodes(state: SimulationState, request: int, profile: int) -> bool:
    """Set room aside (claim it) for a waiting request, on nodes that are or get powered up; False if there is none."""
    status = state.status[0]
    count, has_claim = state.node_count[request], False
    status.search += 1
    for rank in range(count):
        need = state.per_node[request] if rank < count - 1 else state.on_last_node[request]
        node = provision_node(state, profile, need)
        if node == NO_INDEX:
            continue
        has_claim = True
        state.chosen_by[node], state.is_claimed[node] = status.search, 1
        if is_dynamic_node(state, node):
            place_instances(state, node, state.mig.planned_set, profile, need, NO_INDEX, False)
            count_room(state, node, state.mig.planned_set, state.unclaimed)
        else:
            state.unclaimed[node, profile] -= need
    return has_claim


@compile_not_inlined
def provision_node(state: SimulationState, profile: int, need: int) -> int:
    """Find a node with room that no waiting request has claimed; power up or repartition one where none has.

    Returns the number of the node, NO_INDEX if there is none.
    """
    status = state.status[0]
    for node_state in (ONLINE, POWERING_UP):
        for node in range(len(state.gpus)):
            has_unclaimed = state.node_state[node] == node_state and state.unclaimed[node, profile] >= need
            if has_unclaimed and state.chosen_by[node] != status.search:
                return node

    for node in range(len(state.gpus)):
        if state.node_state[node] == OFFLINE:
            pool = first_pool_with_capacity(state, node, profile, need)
            if pool != NO_INDEX:
                power_up_node(state, node, pool)
                return node

    for node in range(len(state.gpus)):
        is_idle = state.node_state[node] == ONLINE and state.allocation_count[node] == 0
        if is_idle and not state.is_claimed[node]:
            pool = first_pool_with_capacity(state, node, profile, need)
            if state.capacity[node, state.pool[node], profile] < need and pool != NO_INDEX:
                log_power_change(state, node, status.now_s, 0)
                power_up_node(state, node, pool)
                return node
    return NO_INDEX


@compile_inlined
def first_pool_with_capacity(state: SimulationState, node: int, profile: int, need: int) -> int:
    """Find the first node pool in which the empty node would offer at least `need` instances of a profile.

    A node pool is the set of nodes with the same layouts. Without one, NO_INDEX is returned.
    """
    for pool in range(state.capacity.shape[1]):
        if state.capacity[node, pool, profile] >= need:
            return pool
    return NO_INDEX


@compile_not_inlined
def power_up_node(state: SimulationState, node: int, pool: int) -> None:
    """Power up a node in a node pool; it is online after the power-up time, at the next poll."""
    status = state.status[0]
    state.node_state[node], state.pool[node] = POWERING_UP, pool
    state.online_at_s[node] = status.now_s + state.power_up_s
    status.last_power_up_s = status.now_s
    if state.poll_s > 0:
        state.online_at_s[node] = np.ceil(state.online_at_s[node] / state.poll_s) * state.poll_s
    reset_unallocated(state, node)
    log_power_change(state, node, status.now_s, 1)


@compile_not_inlined
def power_up_idle_nodes(state: SimulationState) -> None:
    """Power up nodes until every node pool has its minimum of idle nodes that no waiting request has claimed."""
    for pool in range(len(state.min_idle_nodes)):
        idle = 0
        for node in range(len(state.gpus)):
            is_idle = state.node_state[node] != OFFLINE and state.allocation_count[node] == 0
            idle += is_idle and not state.is_claimed[node] and state.pool[node] == pool
        for node in range(len(state.gpus)):
            is_offline = state.node_state[node] == OFFLINE
            if idle < state.min_idle_nodes[pool] and is_offline and state.capacity[node, pool].any():
                power_up_node(state, node, pool)
                idle += 1


@compile_not_inlined
def power_down_idle_nodes(state: SimulationState) -> bool:
    """Power down nodes that have been idle for long enough, the highest number first; return whether any did.

    Writes when the next node may power down. Idle nodes that a waiting request has claimed do not count as nodes that
    pools keep idle, neither here nor in :func:`power_up_idle_nodes`.
    """
    status = state.status[0]
    has_powered_down = False
    status.next_power_down_s = np.inf

    # Profiles that would serve requests that wait, and idle nodes by pool.
    state.is_wanted[:] = 0
    state.idle_nodes[:] = 0
    for kind in range(len(state.waiting_of_kind)):
        for preference in range(state.serving_profiles.shape[1]):
            serving = state.serving_profiles[state.kind_profile[kind], preference]
            if state.waiting_of_kind[kind] and serving != NO_INDEX:
                state.is_wanted[serving] = 1
    for node in range(len(state.gpus)):
        is_idle = state.node_state[node] == ONLINE and state.allocation_count[node] == 0
        if is_idle and not (status.waiting and state.is_claimed[node]):
            state.idle_nodes[state.pool[node]] += 1

    for node in range(len(state.gpus) - 1, -1, -1):
        if state.node_state[node] != ONLINE or state.allocation_count[node]:
            continue
        idle_until_s = state.idle_since_s[node] + state.idle_s
        cooldown_end_s = status.last_power_up_s + state.cooldown_s
        if status.now_s < idle_until_s or status.now_s < cooldown_end_s:
            may_power_down_s = idle_until_s if status.now_s < idle_until_s else cooldown_end_s
            status.next_power_down_s = min(status.next_power_down_s, may_power_down_s)
            continue

        # Slurm does not ask what waits: those requests may be given nodes that are powered down.
        pool, is_useful = state.pool[node], False
        for profile in range(0 if state.is_slurm else len(state.is_wanted)):
            is_useful |= state.is_wanted[profile] and state.capacity[node, pool, profile] > 0
        if is_useful or state.idle_nodes[pool] <= state.min_idle_nodes[pool]:
            continue
        state.idle_nodes[pool] -= 1
        state.node_state[node] = OFFLINE
        has_powered_down = True
        log_power_change(state, node, status.now_s, 0)
    return has_powered_down


@compile_not_inlined
def power_up_chosen_nodes(state: SimulationState, request: int, profile: int) -> None:
    """Power up those of the nodes chosen for a request that are powered down."""
    for rank in range(state.node_count[request]):
        node = state.chosen_node[rank]
        if state.node_state[node] == OFFLINE:
            pool = first_pool_with_capacity(state, node, profile, state.chosen_amount[rank])
            power_up_node(state, node, pool)
