"""Gangs of full GPUs on nodes of equal size: the fast path for job lists, equal to the loop over nodes.

Nodes of equal size differ in their number of free GPUs alone. A set of nodes is kept for each such number, so that a
job finds its node without a look at all of them; a million jobs on a thousand nodes take seconds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuplanner.simulate.heap import pop, push
from gpuplanner.simulate.jit import compiled, event_loop_entry
from gpuplanner.simulate.tables import EVENT, Floats, Ints, Table, table

Words = NDArray[np.uint64]
NO_NODE = -1
ONE_BIT, TOP_BITS = np.uint64(1), np.uint64(58)
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
BIT_NUMBER = np.zeros(64, np.int64)
"""Number of the bit that is set in a power of two: found by the top six bits of its product with a de Bruijn number
(C. E. Leiserson, H. Prokop, K. H. Randall, "Using de Bruijn sequences to index a 1 in a computer word", 1998)."""
BIT_NUMBER[[((int(DE_BRUIJN) << bit) % 2**64) >> 58 for bit in range(64)]] = np.arange(64)


def start_jobs_on_equal_nodes(
    submit_s: Floats,
    run_s: Floats,
    gpus: Ints,
    *,
    nodes: int,
    gpus_per_node: int,
    passing: bool = False,
    shortest_first: bool = False,
) -> Floats:
    """Find when each job starts on nodes of equal size, where a job takes full nodes and a part of one more.

    Parameters
    ----------
    submit_s : array of float, shape (n_jobs,)
        When each job is submitted, in ascending order. [s]
    run_s : array of float, shape (n_jobs,)
        How long it runs. [s]
    gpus : array of int, shape (n_jobs,)
        GPUs that it needs at once, at most those of all nodes.
    nodes : int
        Number of nodes.
    gpus_per_node : int
        GPUs of each node.
    passing : bool
        Whether jobs that fit may start before one that has to wait; if not, nobody passes it.
    shortest_first : bool
        Whether the queue goes by run time instead of the time of submission.

    Returns
    -------
    array of float, shape (n_jobs,)
        Start times. [s]

    Examples
    --------
    >>> submit_s, run_s = np.array([0.0, 1.0, 2.0]), np.array([100.0, 50.0, 10.0])
    >>> start_jobs_on_equal_nodes(submit_s, run_s, np.array([6, 4, 2]), nodes=1, gpus_per_node=8).tolist()
    [0.0, 100.0, 100.0]
    >>> start_jobs_on_equal_nodes(
    ...     submit_s, run_s, np.array([6, 4, 2]), nodes=1, gpus_per_node=8, passing=True
    ... ).tolist()
    [0.0, 100.0, 2.0]
    """
    count = len(submit_s)
    start_s = np.zeros(count)
    words_with_free = np.zeros((gpus_per_node + 1, nodes // 64 + 1), np.uint64)
    first_spot = np.concatenate([[0], np.cumsum(-(-gpus // gpus_per_node))]).astype(np.int64)
    run_until_done(
        np.ascontiguousarray(submit_s, np.float64),
        np.ascontiguousarray(run_s, np.float64),
        np.ascontiguousarray(gpus, np.int64),
        passing,
        shortest_first,
        start_s,
        np.full(nodes, gpus_per_node, np.int64),
        words_with_free,
        np.zeros(gpus_per_node + 1, np.int64),
        np.zeros(count, np.int64),
        table(EVENT, count),
        first_spot,
        np.zeros(first_spot[-1], np.int64),
    )
    return start_s


@event_loop_entry
def run_until_done(
    submit_s: Floats,
    run_s: Floats,
    gpus: Ints,
    passing: bool,
    shortest_first: bool,
    start_s: Floats,
    free: Ints,
    words_with_free: Words,
    nodes_with_free: Ints,
    queue: Ints,
    ends: Table,
    first_spot: Ints,
    spots: Ints,
) -> None:
    """Run the events: within one instant ends, then submissions, then starts in the order of the queue."""
    per_node = len(nodes_with_free) - 1
    for node in range(len(free)):
        words_with_free[per_node, node // 64] |= ONE_BIT << np.uint64(node % 64)
    nodes_with_free[per_node] = len(free)
    running, submitted, first, last = 0, 0, 0, 0

    while running or submitted < len(submit_s):
        now = np.inf
        if running:
            now = ends[0].at
        if submitted < len(submit_s) and submit_s[submitted] < now:
            now = submit_s[submitted]

        while running and ends[0].at <= now:
            job = ends[0].who
            running = pop(ends, running)
            left = gpus[job]
            for spot in range(first_spot[job], first_spot[job + 1]):
                change_free(free, words_with_free, nodes_with_free, spots[spot], min(left, per_node))
                left -= per_node

        while submitted < len(submit_s) and submit_s[submitted] <= now:
            place = last
            if shortest_first:
                while place > first and run_s[queue[place - 1]] > run_s[submitted]:
                    queue[place] = queue[place - 1]
                    place -= 1
            queue[place] = submitted
            last += 1
            submitted += 1

        # A job that needs no less than one that did not fit does not fit either.
        kept, place, too_many = first, first, len(free) * per_node + 1
        while place < last and too_many > 1:
            job = queue[place]
            if gpus[job] < too_many and has_room(free, nodes_with_free, gpus[job]):
                left = gpus[job]
                for spot in range(first_spot[job], first_spot[job + 1]):
                    part = min(left, per_node)
                    node = find_tightest(free, words_with_free, nodes_with_free, part)
                    change_free(free, words_with_free, nodes_with_free, node, -part)
                    spots[spot] = node
                    left -= part
                start_s[job] = now
                running = push(ends, running, now + run_s[job], job)
            else:
                too_many = min(too_many, gpus[job])
                queue[kept] = job
                kept += 1
                if not passing:
                    place += 1
                    break
            place += 1
        started = place - kept
        for rank in range(kept - 1, first - 1, -1):
            queue[rank + started] = queue[rank]
        first += started


@compiled
def has_room(free: Ints, nodes_with_free: Ints, gpus: int) -> bool:
    """Whether there are enough empty nodes for the full nodes of a job, and one more for the rest."""
    if len(free) == 1:
        return bool(free[0] >= gpus)
    per_node = len(nodes_with_free) - 1
    full, rest = gpus // per_node, gpus % per_node
    if nodes_with_free[per_node] < full:
        return False
    if rest == 0 or nodes_with_free[per_node] > full:
        return True
    with_rest = 0
    for most in range(rest, per_node):
        with_rest += nodes_with_free[most]
    return with_rest > 0


@compiled
def find_tightest(free: Ints, words_with_free: Words, nodes_with_free: Ints, gpus: int) -> int:
    """Find the node with the fewest free GPUs that are enough; of several the first."""
    if len(free) == 1:
        return 0
    for most in range(gpus, len(nodes_with_free)):
        if nodes_with_free[most]:
            for word in range(words_with_free.shape[1]):
                bits = words_with_free[most, word]
                if bits:
                    lowest = bits & (~bits + ONE_BIT)
                    return int(64 * word + BIT_NUMBER[(lowest * DE_BRUIJN) >> TOP_BITS])
    return NO_NODE


@compiled
def change_free(free: Ints, words_with_free: Words, nodes_with_free: Ints, node: int, more: int) -> None:
    """Move a node to the set of those with as many free GPUs as it has from now on."""
    bit = ONE_BIT << np.uint64(node % 64)
    words_with_free[free[node], node // 64] &= ~bit
    nodes_with_free[free[node]] -= 1
    free[node] += more
    words_with_free[free[node], node // 64] |= bit
    nodes_with_free[free[node]] += 1
