"""Planned layout changes as events.

Within one instant, node by node: what is partitioned comes back, GPUs are powered down and up, what is empty is
partitioned, what is late is given up, cordons begin; as often as one of these makes another one possible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.execution import called, compiled
from gpuplanner.simulator.node_provisioning import come_up, note, offer
from gpuplanner.simulator.simulated_fleet import OFF, NodeFleet
from gpuplanner.simulator.simulation_state import (
    CORDONED,
    GONE,
    NONE,
    ON,
    OPEN,
    PARTITIONING,
    PLANNED,
    Floats,
    Ints,
    NodeWorld,
    Table,
    table,
)

DONE, GIVEN_UP = range(2)
OUTCOMES = {DONE: "done", GIVEN_UP: "given up"}
"""How a planned change ends, by the number that the loop writes."""


@dataclass(frozen=True, eq=False)
class LayoutChanges:
    """Planned changes of nodes from one pool to another, a row each, in any order.

    A change that drains its node goes through four steps. From the cordon on nothing new starts on the node. Once its
    last request has ended the node is partitioned, which takes a while; then it offers what its new pool has. A node
    that has not emptied by the deadline is given up: it keeps its pool and takes requests again. The changes of a node
    that drain it follow each other by the time that they are planned for: the cordon of the next one begins when the
    one before is over, and one whose deadline has passed by then is given up without a cordon.

    A change that drains nothing powers GPUs of the node down or up. What the node offers changes by the difference at
    the time that is planned, under a cordon as well. Requests that run go on, so that fewer than none may be free; no
    other starts on the node in place of those. Such a change belongs to the draining change that is planned before it
    on the same node: it waits until that is over. Where that was given up, or where the node is already partitioned
    for a later one, it is given up.

    Parameters
    ----------
    node : array of int, shape (n_changes,)
        Number of the node.
    planned_s : array of float, shape (n_changes,)
        When the new pool is wanted [s]; the changes of a node are made in this order, then in the order of the rows.
    cordon_s : array of float, shape (n_changes,)
        When the cordon begins [s], at the latest at `planned_s`.
    deadline_s : array of float, shape (n_changes,)
        When it is given up if requests still run on the node [s], at the earliest at `planned_s`; infinite: never.
    change_s : array of float, shape (n_changes,)
        How long partitioning takes once the node is empty [s].
    pool : array of int, shape (n_changes,)
        Pool of :attr:`NodeFleet.capacity` afterwards.
    drained : array of bool, shape (n_changes,), optional
        Whether the node is drained; None: by all changes. The others need no cordon, no deadline and no time.
    before_change : bool
        Whether requests still start under a cordon if they end by `planned_s` by their limit. The node is then not
        partitioned before `planned_s`. Else it is partitioned as soon as it is empty.

    Raises
    ------
    ScenarioError
        If the arrays differ in length, a time is not a number or below 0, or a cordon begins after the time that is
        planned or a deadline lies before it.

    Examples
    --------
    A node of two GPUs is partitioned at 50 s; the request that runs there holds it up until 100 s.

    >>> from gpuplanner.simulator.simulated_fleet import NodeRequests
    >>> from gpuplanner.simulator.simulation_run import play
    >>> fleet = NodeFleet(("gpu", "1g.10gb"), [2], [[[2, 0], [0, 14]]], [0], [1.0, 1 / 7])
    >>> asked = NodeRequests([0, 60], [0, 60], [100, 5], [100, 5], [0, 1], [1, 1], [1, 1])
    >>> planned = LayoutChanges([0], [50.0], [50.0], [np.inf], [60.0], [1])
    >>> found = play(asked, fleet, changes=planned)
    >>> found.start_s.tolist()
    [0.0, 160.0]
    >>> found.changes.rows()
    [(0, 50.0, 100.0, 160.0, 'done')]
    """

    node: Ints
    planned_s: Floats
    cordon_s: Floats
    deadline_s: Floats
    change_s: Floats
    pool: Ints
    drained: NDArray[np.bool_] | None = None
    before_change: bool = field(default=False)

    def __post_init__(self) -> None:
        """Cast and check the columns."""
        if self.drained is None:
            object.__setattr__(self, "drained", np.ones(np.shape(self.node), bool))
        columns = [one.name for one in fields(self) if one.name != "before_change"]
        for name in columns:
            kind = np.float64 if name.endswith("_s") else np.bool_ if name == "drained" else np.int64
            object.__setattr__(self, name, np.array(getattr(self, name), kind))
        lengths = {getattr(self, name).shape for name in columns}
        finite = (self.planned_s, self.cordon_s, self.change_s)
        sound = (
            len(lengths) == 1
            and self.node.ndim == 1
            and all((column >= 0).all() for column in (self.node, self.pool, self.change_s))
            and all(np.isfinite(column).all() for column in finite)
            and (self.cordon_s <= self.planned_s).all()
            and (self.deadline_s >= self.planned_s).all()
        )
        if not sound:
            expected = (
                "columns of one length, nodes, pools and change_s not below 0, and cordon_s <= planned_s <= deadline_s"
            )
            some = f"{len(self)} rows of which some differ"
            got = f"shapes {sorted(lengths)}" if len(lengths) > 1 else some
            raise ScenarioError("layout changes", expected, got, "Correct these rows.")

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.node)


def planned_table(changes: LayoutChanges | None, fleet: NodeFleet) -> tuple[Table, Ints]:
    """Changes as the loop takes them, by node and time, and the first row of each node.

    Parameters
    ----------
    changes : LayoutChanges or None
        None: nothing changes.
    fleet : NodeFleet
        The nodes that they are planned for.

    Returns
    -------
    tuple of (Table, array of int, shape (n_nodes + 1,))
        The rows of a node are those from its first one to that of the next node.

    Raises
    ------
    ScenarioError
        If a node or a pool is not in the fleet, or a node is off at first.
    """
    nodes = len(fleet.gpus)
    if changes is None:
        return table(PLANNED, 0), np.zeros(nodes + 1, np.int64)
    assert changes.drained is not None
    known = (changes.node < nodes) & (changes.pool < fleet.capacity.shape[1])
    known[known] = fleet.first[changes.node[known]] != OFF
    if not known.all():
        where = f"layout change {int(np.flatnonzero(~known)[0])}"
        expected = f"one of {nodes} nodes that is on at first, and one of {fleet.capacity.shape[1]} pools"
        got = f"node {changes.node[~known][0]}, pool {changes.pool[~known][0]}"
        raise ScenarioError(where, expected, got, "Correct the row.")
    order = np.lexsort((np.arange(len(changes)), changes.planned_s, changes.node))
    planned = table(PLANNED, len(changes))
    planned.row, planned.drained, planned.pool = order, changes.drained[order], changes.pool[order]
    planned.planned, planned.cordon = changes.planned_s[order], changes.cordon_s[order]
    planned.deadline, planned.takes = changes.deadline_s[order], changes.change_s[order]
    planned.began = planned.emptied = planned.ended = np.nan
    planned.outcome = NONE
    node, before, last = changes.node[order].tolist(), NONE, NONE
    for number, (place, drained) in enumerate(zip(node, planned.drained.tolist(), strict=True)):
        last = last if place == before else NONE
        planned[number].follows = last
        last, before = (number if drained else last), place
    return planned, np.searchsorted(node, np.arange(nodes + 1)).astype(np.int64)


def changes_made(planned: Table) -> pl.DataFrame:
    """What became of each change, in the order of the rows of :class:`LayoutChanges`."""
    times = {f"{name}_s": planned[name] for name in ("began", "emptied", "ended")}
    return (
        pl.DataFrame({"row": planned.row, **times, "outcome": planned.outcome})
        .with_columns(
            pl.col(*times).fill_nan(None),
            pl.col("outcome").replace_strict(OUTCOMES, default=None, return_dtype=pl.String),
        )
        .rename({"emptied_s": "drained_s"})
        .sort("row")
    )


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
    return bool(w.before_change and w.stage[node] == CORDONED and w.plan[w.drain[node]].planned > w.status[0].now)


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
