"""Free GPUs of nodes over time, from observed starts and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from gpuplanner.core.execution import compile_entry, compile_helper
from gpuplanner.simulator.simulated_fleet import NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints

SHORTEST_LATENCY_S, LONGEST_LATENCY_S = 60.0, 300.0
"""Least and most time that a scheduler is taken to need from an end to the next start."""
WAITED_S = 60.0
"""A job that waited longer was in the queue when the GPUs that it got became free."""

ClosedSpell: TypeAlias = tuple[float, float, int, float]
"""Begin and end of a spell out of service [s], the node, and how many of its GPUs; infinite: all of the node."""


class OccupancyChanges(NamedTuple):
    """Changes of free GPUs and instances, in order of time; of one instant, what is released comes first.

    Attributes
    ----------
    time_s : array of float, shape (n_changes,)
        When [s].
    node, profile : array of int, shape (n_changes,)
        Where, and of which profile.
    change : array of int, shape (n_changes,)
        GPUs or instances that become free; negative where they are taken.
    capacity : array of int, shape (n_nodes, n_profiles)
        What each node has.
    """

    time_s: Floats
    node: Ints
    profile: Ints
    change: Ints
    capacity: Ints


@dataclass(frozen=True)
class Handover:
    """How long the scheduler takes from an end on a node to the next start there.

    - ``latency_s``: 95th percentile, from 60 to 300 s: what fits for no longer was not kept by anything else.
    - ``median_s``: What each run is lengthened by in a simulation.
    """

    latency_s: float
    median_s: float


def observe_occupancy(
    requests: NodeRequests,
    start_s: Floats,
    end_s: Floats,
    nodes: Sequence[Sequence[int] | None],
    capacity: Ints,
    closed: Sequence[ClosedSpell] = (),
) -> OccupancyChanges:
    """List what jobs took and released, and what was out of service.

    Parameters
    ----------
    requests : NodeRequests
        What jobs held.
    start_s, end_s : array of float, shape (n_requests,)
        When each started and ended [s]; NaN where it was not observed.
    nodes : sequence
        Numbers of the nodes of each; None where the record does not name them: the fullest with room are taken.
    capacity : array of int, shape (n_nodes, n_profiles)
        What each node has.
    closed : sequence of (float, float, int, float), optional
        Begin, end, node and GPUs of what was out of service; infinite: all of the node.

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 30], [60, 30], [0, 0], [4, 2], [1, 1])
    >>> found = observe_occupancy(asked, np.array([0.0, 5]), np.array([60.0, 35]), [[0], None], np.array([[8], [2]]))
    >>> found.time_s.tolist(), found.node.tolist(), found.change.tolist()
    ([0.0, 5.0, 35.0, 60.0], [0, 1, 1, 0], [-4, -2, 2, 4])
    """
    began = np.flatnonzero(~np.isnan(start_s))
    rows = began.tolist()
    places = np.array([max(int(requests.nodes[row]), len(nodes[row] or ())) for row in rows], np.int64)
    first = np.concatenate([[0], np.cumsum(places)]).astype(np.int64)
    on_node, amount = np.full(first[-1], -1, np.int64), np.zeros(first[-1], np.int64)
    rest = requests.on_last_node
    for number, row in enumerate(rows):
        named, begin = nodes[row] or (), first[number]
        on_node[begin : begin + len(named)] = named
        amount[begin : first[number + 1]] = requests.per[row]
        amount[begin + int(requests.nodes[row]) - 1] = rest[row]
        # On more nodes than it asked for: as evenly as whole numbers allow.
        if len(named) > requests.nodes[row]:
            total = int(requests.total[row])
            amount[begin : first[number + 1]] = [(total + k) // len(named) for k in range(len(named))][::-1]
    end = np.where(np.isnan(end_s), np.inf, np.fmax(end_s, start_s))[began]
    order = np.argsort(start_s[began], kind="stable")
    find_nodes(start_s[began], end, requests.profile[began], order, first, on_node, amount, capacity.copy())
    owner = np.repeat(np.arange(len(began)), places)
    held = (on_node >= 0) & (amount > 0)
    owner, node, taken = owner[held], on_node[held], amount[held]
    over = np.isfinite(end[owner])
    profile = requests.profile[began][owner]
    shut = np.array(closed, float).reshape(-1, 4)
    of_spell = [closed_instances(gpus, capacity[int(node)]) for _, _, node, gpus in closed]
    closed_count = np.array(of_spell, np.int64).reshape(-1, capacity.shape[1])
    spell, what = np.nonzero(closed_count)
    out = closed_count[spell, what]
    there = shut[spell, 2].astype(np.int64)
    time = np.concatenate([start_s[began][owner], end[owner][over], shut[spell, 0], shut[spell, 1]])
    change = np.concatenate([-taken, taken[over], -out, out])
    place = np.concatenate([node, node[over], there, there])
    kind = np.concatenate([profile, profile[over], what, what])
    by_time = np.lexsort((-change, time))
    return OccupancyChanges(time[by_time], place[by_time], kind[by_time], change[by_time], capacity)


def closed_instances(gpus: float, capacity: Ints) -> Ints:
    """GPUs and instances of a node that are out of service, by profile, where so many of its GPUs are.

    Infinite: all of the node. Of a number of GPUs nobody knows how they are cut: they are whole ones, as far as the
    node has such.

    Examples
    --------
    >>> closed_instances(np.inf, np.array([2, 14])).tolist(), closed_instances(3.0, np.array([2, 14])).tolist()
    ([2, 14], [2, 0])
    """
    if np.isinf(gpus):
        return capacity
    count = np.zeros_like(capacity)
    count[0] = min(gpus, capacity[0])
    return count


@compile_entry
def find_nodes(
    start: Floats,
    end: Floats,
    profile: Ints,
    order: Ints,
    first: Ints,
    on_node: Ints,
    amount: Ints,
    free: Ints,
) -> None:
    """Put jobs of unknown nodes on the fullest nodes with room, as the others came and went."""
    released = np.argsort(end)
    gone, jobs = 0, len(start)
    for job in order:
        while gone < jobs and end[released[gone]] <= start[job]:
            over = released[gone]
            for place in range(first[over], first[over + 1]):
                if on_node[place] >= 0 and end[over] > start[over]:
                    free[on_node[place], profile[over]] += amount[place]
            gone += 1
        for place in range(first[job], first[job + 1]):
            if on_node[place] < 0:
                on_node[place] = fullest(free[:, profile[job]], amount[place], on_node[first[job] : place])
            # A job that ends as it starts is passed by above before it is put anywhere, and keeps nothing from others.
            if on_node[place] >= 0 and end[job] > start[job]:
                free[on_node[place], profile[job]] -= amount[place]


@compile_helper
def fullest(free: Ints, needed: int, taken: Ints) -> int:
    """The node with least to spare of those that have enough and are not taken; -1 if none has."""
    best = -1
    for node in range(len(free)):
        if free[node] >= needed and (best < 0 or free[node] < free[best]) and node not in taken:
            best = node
    return best


def observe_handover(requests: NodeRequests, start_s: Floats, seen: OccupancyChanges) -> Handover:
    """Estimate the gap from an end on a node to the next start there by a job that had waited.

    Examples
    --------
    >>> asked = NodeRequests([0, 0], [0, 0], [60, 60], [60, 60], [0, 0], [1, 1], [1, 1])
    >>> start = np.array([0.0, 61])
    >>> seen = observe_occupancy(asked, start, start + 60, [[0], [0]], np.array([[1]]))
    >>> observe_handover(asked, start, seen)
    Handover(latency_s=60.0, median_s=0.0)
    """
    waited = start_s[start_s - requests.ready_s > WAITED_S]
    released = seen.change > 0
    gaps = []
    for node in range(len(seen.capacity)):
        here = seen.node == node
        ends = seen.time_s[here & released]
        starts = seen.time_s[here & ~released]
        starts = starts[np.isin(starts, waited)]
        before = np.searchsorted(ends, starts, side="right")
        gaps.append((starts - ends[np.maximum(before - 1, 0)])[before > 0] if len(ends) else np.zeros(0))
    found = np.concatenate(gaps)
    # Of fewer gaps the latency is not estimated.
    if len(found) < 20:
        return Handover(SHORTEST_LATENCY_S, 0.0)
    quick = found[found <= LONGEST_LATENCY_S]
    latency = float(np.clip(np.quantile(found, 0.95), SHORTEST_LATENCY_S, LONGEST_LATENCY_S))
    return Handover(latency, float(np.median(quick)) if len(quick) else 0.0)


def close_gaps(seen: OccupancyChanges, latency_s: float) -> OccupancyChanges:
    """The same without the gaps in which the scheduler had not yet given on what was released.

    What is taken on the node within the latency of its release was never free.

    Examples
    --------
    >>> seen = OccupancyChanges(np.array([10.0, 13, 20]), *np.array([[0] * 3, [0] * 3, [4, -2, 2]]), np.array([[4]]))
    >>> closed = close_gaps(seen, 60.0)
    >>> closed.time_s.tolist(), closed.change.tolist()
    ([10.0, 13.0, 13.0, 20.0], [2, 2, -2, 2])
    """
    slot = seen.node * seen.capacity.shape[1] + seen.profile
    by_slot = np.argsort(slot, kind="stable")
    row, time, change = move_releases(by_slot, slot, seen.time_s, seen.change, latency_s)
    order = np.lexsort((-change, time))
    row = row[order]
    return OccupancyChanges(time[order], seen.node[row], seen.profile[row], change[order], seen.capacity)


@compile_entry
def move_releases(by_slot: Ints, slot: Ints, time: Floats, change: Ints, latency: float) -> tuple[Ints, Floats, Ints]:
    """Put each release, piece by piece, at the next start on its node that takes it within the latency."""
    events = len(by_slot)
    row, at, amount = np.empty(2 * events, np.int64), np.empty(2 * events), np.empty(2 * events, np.int64)
    written, here = 0, -1
    open_rows, left, opened = np.empty(events, np.int64), np.empty(events, np.int64), 0
    for place in range(events + 1):
        event = by_slot[place] if place < events else -1
        if event < 0 or slot[event] != here:
            for one in range(opened):  # what was not taken in time
                row[written], at[written], amount[written] = open_rows[one], time[open_rows[one]], left[one]
                written += 1
            opened = 0
            if event < 0:
                break
            here = slot[event]
        if change[event] > 0:
            open_rows[opened], left[opened] = event, change[event]
            opened += 1
            continue
        need = -change[event]
        while need > 0 and opened > 0 and time[event] - time[open_rows[opened - 1]] < latency:
            piece = min(need, left[opened - 1])
            row[written], at[written], amount[written] = open_rows[opened - 1], time[event], piece
            written += 1
            need -= piece
            left[opened - 1] -= piece
            opened -= left[opened - 1] == 0
        row[written], at[written], amount[written] = event, time[event], change[event]
        written += 1
    return row[:written], at[:written], amount[:written]
