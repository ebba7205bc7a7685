"""Free GPUs of nodes over time, from observed starts and ends of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints

MIN_LATENCY_S, MAX_LATENCY_S = 60.0, 300.0
"""Shortest and longest assumed handover of a scheduler, from the end of a job to the next start on its GPUs [s]."""
MIN_QUEUED_S = 60.0
"""Shortest wait of a job that was in the queue when its GPUs became free [s]."""

OutOfServiceSpell: TypeAlias = tuple[float, float, int, float]
"""Begin and end of a period out of service [s], the node, and how many of its GPUs; infinity: the whole node."""


class OccupancyChanges(NamedTuple):
    """Changes of free GPUs and instances in order of time; at the same instant releases are first.

    Attributes
    ----------
    time_s : array of float, shape (n_changes,)
        Time of each change. [s]
    node, profile : array of int, shape (n_changes,)
        Number of the node, and of the MIG profile.
    change : array of int, shape (n_changes,)
        GPUs or instances that become free; negative if they are allocated.
    capacity : array of int, shape (n_nodes, n_profiles)
        GPUs or instances of each node.
    """

    time_s: Floats
    node: Ints
    profile: Ints
    change: Ints
    capacity: Ints


@dataclass(frozen=True)
class Handover:
    """Time that the scheduler takes from an end on a node to the next start there.

    - ``latency_s``: 95th percentile, from 60 to 300 s; GPUs that are free for longer were not in handover.
    - ``median_s``: Median; each run is longer by it in a simulation.
    """

    latency_s: float
    median_s: float


def observe_occupancy(
    requests: NodeRequests,
    start_s: Floats,
    end_s: Floats,
    nodes: Sequence[Sequence[int] | None],
    capacity: Ints,
    closed: Sequence[OutOfServiceSpell] = (),
) -> OccupancyChanges:
    """List the changes of free GPUs and instances of nodes: starts and ends of jobs, and times out of service.

    Parameters
    ----------
    requests : NodeRequests
        Requests of the jobs.
    start_s, end_s : array of float, shape (n_requests,)
        Observed start and end of each job [s]; NaN if not observed.
    nodes : sequence
        Numbers of the nodes of each job; None if the record does not name them: the fullest nodes with capacity are
        taken.
    capacity : array of int, shape (n_nodes, n_profiles)
        GPUs or instances of each node.
    closed : sequence of (float, float, int, float), optional
        Begin, end, node and GPUs of each period out of service; infinity: the whole node.

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 30], [60, 30], [0, 0], [4, 2], [1, 1])
    >>> found = observe_occupancy(asked, np.array([0.0, 5]), np.array([60.0, 35]), [[0], None], np.array([[8], [2]]))
    >>> found.time_s.tolist(), found.node.tolist(), found.change.tolist()
    ([0.0, 5.0, 35.0, 60.0], [0, 1, 1, 0], [-4, -2, 2, 4])
    """
    started = np.flatnonzero(~np.isnan(start_s))
    rows = started.tolist()
    node_slots = np.array([max(int(requests.nodes[row]), len(nodes[row] or ())) for row in rows], np.int64)
    first = np.concatenate([[0], np.cumsum(node_slots)]).astype(np.int64)
    slot_node, amount = np.full(first[-1], -1, np.int64), np.zeros(first[-1], np.int64)
    count_on_last_node = requests.on_last_node
    for number, row in enumerate(rows):
        named, slot = nodes[row] or (), first[number]
        slot_node[slot : slot + len(named)] = named
        amount[slot : first[number + 1]] = requests.per[row]
        amount[slot + int(requests.nodes[row]) - 1] = count_on_last_node[row]
        # On more nodes than it asked for: as evenly as whole numbers allow.
        if len(named) > requests.nodes[row]:
            total = int(requests.total[row])
            amount[slot : first[number + 1]] = [(total + k) // len(named) for k in range(len(named))][::-1]
    end = np.where(np.isnan(end_s), np.inf, np.fmax(end_s, start_s))[started]
    order = np.argsort(start_s[started], kind="stable")
    assign_nodes(start_s[started], end, requests.profile[started], order, first, slot_node, amount, capacity.copy())
    slot_job = np.repeat(np.arange(len(started)), node_slots)
    is_placed = (slot_node >= 0) & (amount > 0)
    slot_job, node, amount_taken = slot_job[is_placed], slot_node[is_placed], amount[is_placed]
    ended = np.isfinite(end[slot_job])
    profile = requests.profile[started][slot_job]
    closures = np.array(closed, float).reshape(-1, 4)
    closed_by_spell = [count_closed_instances(gpus, capacity[int(node)]) for _, _, node, gpus in closed]
    closed_count = np.array(closed_by_spell, np.int64).reshape(-1, capacity.shape[1])
    spell, closed_profile = np.nonzero(closed_count)
    closed_amount = closed_count[spell, closed_profile]
    closed_node = closures[spell, 2].astype(np.int64)
    time = np.concatenate([start_s[started][slot_job], end[slot_job][ended], closures[spell, 0], closures[spell, 1]])
    change = np.concatenate([-amount_taken, amount_taken[ended], -closed_amount, closed_amount])
    at_node = np.concatenate([node, node[ended], closed_node, closed_node])
    kind = np.concatenate([profile, profile[ended], closed_profile, closed_profile])
    by_time = np.lexsort((-change, time))
    return OccupancyChanges(time[by_time], at_node[by_time], kind[by_time], change[by_time], capacity)


def count_closed_instances(gpus: float, capacity: Ints) -> Ints:
    """Count the GPUs and instances of a node that are out of service, by profile, from its GPUs out of service.

    Infinity: the whole node. How GPUs that are out of service are partitioned is not known: they count as full GPUs, as
    far as the node has any.

    Examples
    --------
    >>> [count_closed_instances(gpus, np.array([2, 14])).tolist() for gpus in (np.inf, 3.0)]
    [[2, 14], [2, 0]]
    """
    if np.isinf(gpus):
        return capacity
    count = np.zeros_like(capacity)
    count[0] = min(gpus, capacity[0])
    return count


@compile_entry
def assign_nodes(
    start: Floats,
    end: Floats,
    profile: Ints,
    jobs_by_start: Ints,
    first: Ints,
    slot_node: Ints,
    amount: Ints,
    free: Ints,
) -> None:
    """Assign jobs of unknown nodes to the fullest nodes with capacity, in order of their starts.

    Parameters
    ----------
    start, end : array of float, shape (n_jobs,)
        Start and end of each job. [s]
    profile : array of int, shape (n_jobs,)
        Number of the MIG profile.
    jobs_by_start : array of int, shape (n_jobs,)
        Jobs in order of their starts.
    first : array of int, shape (n_jobs + 1,)
        First entry of each job in the two arrays below.
    slot_node, amount : array of int, shape (n_entries,)
        Node, -1 if unknown, and instances of each part of a job; nodes are filled in.
    free : array of int, shape (n_nodes, n_profiles)
        Free instances of each node.
    """
    jobs_by_end = np.argsort(end)
    n_released, n_jobs = 0, len(start)
    for job in jobs_by_start:
        while n_released < n_jobs and end[jobs_by_end[n_released]] <= start[job]:
            ended_job = jobs_by_end[n_released]
            for slot in range(first[ended_job], first[ended_job + 1]):
                if slot_node[slot] >= 0 and end[ended_job] > start[ended_job]:
                    free[slot_node[slot], profile[ended_job]] += amount[slot]
            n_released += 1
        for slot in range(first[job], first[job + 1]):
            if slot_node[slot] < 0:
                slot_node[slot] = find_fullest_node(free[:, profile[job]], amount[slot], slot_node[first[job] : slot])
            # A job that ends as it starts is passed by above before it is put anywhere, and keeps nothing from others.
            if slot_node[slot] >= 0 and end[job] > start[job]:
                free[slot_node[slot], profile[job]] -= amount[slot]


@compile_helper
def find_fullest_node(free: Ints, needed: int, excluded_nodes: Ints) -> int:
    """Find the node with the fewest free instances of those with enough; -1 if none has enough.

    Nodes that the job is on already are excluded.
    """
    best_node = -1
    for node in range(len(free)):
        if free[node] >= needed and (best_node < 0 or free[node] < free[best_node]) and node not in excluded_nodes:
            best_node = node
    return best_node


def observe_handover(requests: NodeRequests, start_s: Floats, occupancy: OccupancyChanges) -> Handover:
    """Estimate the time from an end on a node to the next start there by a job that had waited.

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 60], [60, 60], [0, 0], [1, 1], [1, 1])
    >>> start = np.array([0.0, 61])
    >>> seen = observe_occupancy(asked, start, start + 60, [[0], [0]], np.array([[1]]))
    >>> observe_handover(asked, start, seen)
    Handover(latency_s=60.0, median_s=0.0)
    """
    queued_starts_s = start_s[start_s - requests.ready_s > MIN_QUEUED_S]
    is_release = occupancy.change > 0
    is_queued_start = ~is_release & np.isin(occupancy.time_s, queued_starts_s)
    by_node = np.argsort(occupancy.node, kind="stable")
    gaps = []
    for on_node in np.split(by_node, np.searchsorted(occupancy.node[by_node], np.arange(1, len(occupancy.capacity)))):
        ends_s = occupancy.time_s[on_node[is_release[on_node]]]
        starts_s = occupancy.time_s[on_node[is_queued_start[on_node]]]
        before = np.searchsorted(ends_s, starts_s, side="right")
        gaps.append((starts_s - ends_s[np.maximum(before - 1, 0)])[before > 0] if len(ends_s) else np.zeros(0))
    all_gaps = np.concatenate(gaps)
    # Of fewer gaps the latency is not estimated.
    if len(all_gaps) < 20:
        return Handover(MIN_LATENCY_S, 0.0)
    short_gaps_s = all_gaps[all_gaps <= MAX_LATENCY_S]
    latency_s = float(np.clip(np.quantile(all_gaps, 0.95), MIN_LATENCY_S, MAX_LATENCY_S))
    return Handover(latency_s, float(np.median(short_gaps_s)) if len(short_gaps_s) else 0.0)


def close_handover_gaps(occupancy: OccupancyChanges, latency_s: float) -> OccupancyChanges:
    """Remove the handover gaps, in which released GPUs were free only because the scheduler needs its time.

    Instances allocated on the node within the latency of their release count as never free.

    Examples
    --------
    >>> seen = OccupancyChanges(np.array([10.0, 13, 20]), *np.array([[0] * 3, [0] * 3, [4, -2, 2]]), np.array([[4]]))
    >>> closed = close_handover_gaps(seen, 60.0)
    >>> closed.time_s.tolist(), closed.change.tolist()
    ([10.0, 13.0, 13.0, 20.0], [2, 2, -2, 2])
    """
    slot = occupancy.node * occupancy.capacity.shape[1] + occupancy.profile
    by_slot = np.argsort(slot, kind="stable")
    row, time, change = delay_releases_to_next_starts(by_slot, slot, occupancy.time_s, occupancy.change, latency_s)
    order = np.lexsort((-change, time))
    row = row[order]
    return OccupancyChanges(time[order], occupancy.node[row], occupancy.profile[row], change[order], occupancy.capacity)


@compile_entry
def delay_releases_to_next_starts(
    by_slot: Ints, slot: Ints, time: Floats, change: Ints, latency: float
) -> tuple[Ints, Floats, Ints]:
    """Move released instances to the time of the next start on their node that takes them within the latency.

    Parameters
    ----------
    by_slot : array of int, shape (n_changes,)
        Changes in order of node and profile.
    slot : array of int, shape (n_changes,)
        Number of the pair of node and profile of each change.
    time : array of float, shape (n_changes,)
        Time of each change. [s]
    change : array of int, shape (n_changes,)
        Instances that become free; negative if they are allocated.
    latency : float
        Longest handover. [s]

    Returns
    -------
    row, time, change : arrays, shape (n_pieces,)
        Row of the original change, new time [s], and instances; a release is split into pieces, one for each start.
    """
    events = len(by_slot)
    source, moved_s, moved = (np.empty(2 * events, np.int64), np.empty(2 * events), np.empty(2 * events, np.int64))
    written, current_slot = 0, -1
    open_rows, open_left, n_open = np.empty(events, np.int64), np.empty(events, np.int64), 0
    for position in range(events + 1):
        event = by_slot[position] if position < events else -1
        if event < 0 or slot[event] != current_slot:
            for open_row in range(n_open):  # what was not taken in time
                source[written] = open_rows[open_row]
                moved_s[written] = time[open_rows[open_row]]
                moved[written] = open_left[open_row]
                written += 1
            n_open = 0
            if event < 0:
                break
            current_slot = slot[event]
        if change[event] > 0:
            open_rows[n_open], open_left[n_open] = event, change[event]
            n_open += 1
            continue
        needed_amount = -change[event]
        while needed_amount > 0 and n_open > 0 and time[event] - time[open_rows[n_open - 1]] < latency:
            piece = min(needed_amount, open_left[n_open - 1])
            source[written], moved_s[written], moved[written] = (open_rows[n_open - 1], time[event], piece)
            written += 1
            needed_amount -= piece
            open_left[n_open - 1] -= piece
            n_open -= open_left[n_open - 1] == 0
        source[written], moved_s[written], moved[written] = event, time[event], change[event]
        written += 1
    return source[:written], moved_s[:written], moved[:written]
