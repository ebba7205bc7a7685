"""The steps of planned changes: cordon, drain, partitioning and return of a node.

Within one instant, node by node: what is partitioned comes back, GPUs are powered down and up, what is empty is
partitioned, what is late is given up, cordons begin; as often as one of these makes another one possible.
"""

from __future__ import annotations

import numpy as np

from gpuplanner.simulate.jit import called, compiled
from gpuplanner.simulate.nodes.coming import come_up, note, offer
from gpuplanner.simulate.nodes.layout_changes import DONE, GIVEN_UP
from gpuplanner.simulate.nodes.node_world import CORDONED, GONE, NONE, ON, OPEN, PARTITIONING, NodeWorld


@called
def make_changes(w: NodeWorld) -> None:
    """Go on with the changes of all nodes as far as they come in this instant."""
    s = w.status[0]
    s.vacated, s.closing, s.due = 0, 0, np.inf
    for node in range(len(w.gpus)):
        if w.plan_of[node] == w.plan_of[node + 1]:
            continue
        while power_gpus(w, node) or go_on(w, node):
            pass
        s.due = min(s.due, next_step(w, node))
        s.closing += takes_short(w, node)


@compiled
def find_change(w: NodeWorld, node: int, number: int, drained: int) -> int:
    """Find the first change of a node from a row on that drains it, or that does not."""
    while number < w.plan_of[node + 1] and w.plan[number].drained != drained:
        number += 1
    return number


@called
def go_on(w: NodeWorld, node: int) -> bool:
    """Make one step of the change that drains a node; False if there is none to make yet."""
    s, number = w.status[0], w.drain[node]
    if number == w.plan_of[node + 1]:
        return False
    mine, empty = w.plan[number], w.busy[node] == 0
    if w.stage[node] == PARTITIONING:
        if mine.ended > s.now:
            return False
        if w.pool[node] != mine.pool:
            note(w, node, s.now, 0)
            w.pool[node] = mine.pool
            note(w, node, s.now, 1)
        offer(w, node)
        come_up(w, node, s.now)
        close_change(w, node, DONE)
        return True
    if w.stage[node] == CORDONED and empty:
        if np.isnan(mine.emptied):
            mine.emptied = s.now
        if not w.before_change or mine.planned <= s.now:
            w.stage[node], w.made_for[node] = PARTITIONING, number
            mine.ended = s.now + mine.takes
            return True
    if mine.deadline <= s.now:
        w.state[node] = ON
        mine.ended = s.now
        close_change(w, node, GIVEN_UP)
        return True
    if w.stage[node] == OPEN and mine.cordon <= s.now:
        w.stage[node], w.state[node] = CORDONED, GONE
        mine.began = s.now
        return True
    return False


@compiled
def close_change(w: NodeWorld, node: int, outcome: int) -> None:
    """Write how a change of a node ended, and turn to the next one."""
    w.plan[w.drain[node]].outcome = outcome
    w.stage[node] = OPEN
    w.moves[node] += 1
    w.drain[node] = find_change(w, node, w.drain[node] + 1, 1)


@called
def power_gpus(w: NodeWorld, node: int) -> bool:
    """Make the next change of a node that drains nothing, if its time has come; False if not."""
    s, number = w.status[0], w.power[node]
    if number == w.plan_of[node + 1]:
        return False
    mine = w.plan[number]
    if mine.planned > s.now or w.drain[node] < number:
        return False
    mine.began = mine.ended = s.now
    mine.outcome = GIVEN_UP
    if mine.follows == w.made_for[node]:
        mine.outcome = DONE
        for profile in range(w.free.shape[1]):
            more = w.capacity[node, mine.pool, profile] - w.capacity[node, w.pool[node], profile]
            w.free[node, profile] += more
        if w.pool[node] != mine.pool:
            note(w, node, s.now, 0)
            w.pool[node] = mine.pool
            note(w, node, s.now, 1)
        w.moves[node] += 1
    w.power[node] = find_change(w, node, number + 1, 0)
    return True


@compiled
def next_step(w: NodeWorld, node: int) -> float:
    """When the next step of a node is due, if it does not empty before; infinite if none is."""
    s, at, number = w.status[0], np.inf, w.drain[node]
    if number < w.plan_of[node + 1]:
        mine = w.plan[number]
        if w.stage[node] == OPEN:
            at = mine.cordon
        elif w.stage[node] == PARTITIONING:
            at = mine.ended
        else:
            at = mine.planned if w.before_change and mine.planned > s.now else mine.deadline
    if w.power[node] < w.plan_of[node + 1] and w.plan[w.power[node]].planned > s.now:
        at = min(at, w.plan[w.power[node]].planned)
    return at


@compiled
def takes_short(w: NodeWorld, node: int) -> bool:
    """Whether requests that end before the change of a node by their limits still start there."""
    return bool(
        w.before_change and w.stage[node] == CORDONED and w.plan[w.drain[node]].planned > w.status[0].now
    )


@compiled
def open_cordons(w: NodeWorld) -> float:
    """Let requests see nodes under a cordon alone, each until its change; return the latest of these instants."""
    latest = -np.inf
    for node in range(len(w.gpus)):
        w.state[node] = GONE
        if takes_short(w, node):
            w.state[node], w.reserved[node] = ON, w.plan[w.drain[node]].planned
            latest = max(latest, w.reserved[node])
    return latest


@compiled
def close_cordons(w: NodeWorld) -> None:
    """Let requests see the other nodes again."""
    for node in range(len(w.gpus)):
        w.state[node] = ON if w.stage[node] == OPEN and w.pool[node] != NONE else GONE
        w.reserved[node] = np.inf
