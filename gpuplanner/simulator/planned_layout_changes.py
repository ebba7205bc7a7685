"""Planned layout changes as events of the simulation.

Within one instant, node by node, these steps repeat until none is possible: partitioned nodes return to service, GPUs
are powered down and up, empty nodes are partitioned, changes past their deadline are given up, cordons begin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.libraries_plugins_and_workers import compile_inlined, compile_not_inlined
from gpuplanner.simulator.node_autoscaling_and_dynamic_mig import log_power_change, reset_unallocated, set_online
from gpuplanner.simulator.simulation_inputs import POWERED_DOWN_POOL, NodeFleet
from gpuplanner.simulator.simulation_state import (
    CORDONED,
    NO_INDEX,
    OFFLINE,
    ONLINE,
    PARTITIONING,
    PLANNED_CHANGE_DTYPE_BY_COLUMN,
    SCHEDULABLE,
    Floats,
    Ints,
    SimulationState,
    Table,
    make_table,
)

DONE, GIVEN_UP = range(2)
"""Numbers by which the event loop writes the outcome of a planned layout change."""
TEXT_BY_CHANGE_OUTCOME = {DONE: "done", GIVEN_UP: "given up"}
"""Outcome of a planned layout change as text in tables, by its number."""


@dataclass(frozen=True, eq=False)
class LayoutChanges:
    """Planned changes of nodes from one node pool to another, one row each, in any order.

    A change that drains its node has four steps. From the cordon on no request starts on the node. Once its last
    request has ended the node is partitioned, for ``change_s``; then it offers the capacity of its new pool. A node
    that has not emptied by the deadline is given up: it keeps its pool and takes requests again. The draining changes
    of a node follow each other by the times that they are planned for: the next cordon begins when the change before
    is over, and a change whose deadline has passed by then is given up without a cordon.

    A change that drains nothing powers GPUs of the node down or up. The capacity of the node changes by the difference
    at the planned time, under a cordon as well. Running requests go on, so that the unallocated count may fall below
    0; no request starts in their place. Such a change belongs to the draining change that is planned before it on the
    same node, and waits until that is over. Where that was given up, or where the node is already partitioned for a
    later one, it is given up.

    Parameters
    ----------
    node : array of int, shape (n_changes,)
        Number of the node.
    planned_s : array of float, shape (n_changes,)
        When the node is to be in its new pool; changes of a node go in this order, then in the order of the rows. [s]
    cordon_s : array of float, shape (n_changes,)
        When the cordon begins, at the latest at `planned_s`. [s]
    deadline_s : array of float, shape (n_changes,)
        When it is given up if requests still run on the node, at the earliest at `planned_s`; infinite: never. [s]
    change_s : array of float, shape (n_changes,)
        Duration of partitioning once the node is empty. [s]
    pool : array of int, shape (n_changes,)
        Pool of :attr:`NodeFleet.capacity` after the change.
    drained : array of bool, shape (n_changes,), optional
        Whether the node is drained; None: by all changes. Other changes need no cordon, no deadline and no duration.
    before_change : bool
        Whether requests may start on a cordoned node if by their time limits they end by `planned_s`. The node is then
        not partitioned before `planned_s`; else it is as soon as it is empty.

    Raises
    ------
    ScenarioError
        If the arrays differ in length, a time is missing or below 0, a cordon begins after the planned time, or a
        deadline lies before it.

    Examples
    --------
    A node of two GPUs is partitioned at 50 s; the request that runs there holds it up until 100 s.

    >>> from gpuplanner.simulator.simulation_inputs import NodeRequests
    >>> from gpuplanner.simulator.simulation_run import simulate_requests
    >>> fleet = NodeFleet(("gpu", "1g.10gb"), [2], [[[2, 0], [0, 14]]], [0], [1.0, 1 / 7])
    >>> requests = NodeRequests([0, 60], [0, 60], [100, 5], [100, 5], [0, 1], [1, 1], [1, 1])
    >>> planned = LayoutChanges([0], [50.0], [50.0], [np.inf], [60.0], [1])
    >>> outcome = simulate_requests(requests, fleet, changes=planned)
    >>> outcome.start_s.tolist()
    [0.0, 160.0]
    >>> outcome.changes.rows()
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
        columns = [column.name for column in fields(self) if column.name != "before_change"]
        for name in columns:
            dtype: type[np.generic] = np.float64 if name.endswith("_s") else np.int64
            if name == "drained":
                dtype = np.bool_
            object.__setattr__(self, name, np.array(getattr(self, name), dtype))

        lengths = {getattr(self, name).shape for name in columns}
        finite = (self.planned_s, self.cordon_s, self.change_s)
        is_valid = (
            len(lengths) == 1
            and self.node.ndim == 1
            and all((column >= 0).all() for column in (self.node, self.pool, self.change_s))
            and all(np.isfinite(column).all() for column in finite)
            and (self.cordon_s <= self.planned_s).all()
            and (self.deadline_s >= self.planned_s).all()
        )
        if not is_valid:
            expected = (
                "columns of one length, nodes, pools and change_s not below 0, and cordon_s <= planned_s <= deadline_s"
            )
            got = f"{len(self)} rows of which some differ"
            if len(lengths) > 1:
                got = f"shapes {sorted(lengths)}"
            raise ScenarioError("layout changes", expected, got, "Correct these rows.")

    def __len__(self) -> int:
        """Number of changes."""
        return len(self.node)


def tabulate_planned_changes(changes: LayoutChanges | None, fleet: NodeFleet) -> tuple[Table, Ints]:
    """Tabulate planned changes for the event loop, by node and time.

    Parameters
    ----------
    changes : LayoutChanges or None
        None: nothing changes.
    fleet : NodeFleet
        The nodes that they are planned for.

    Returns
    -------
    tuple of (Table, array of int, shape (n_nodes + 1,))
        The changes, with ``PLANNED_CHANGE_DTYPE_BY_COLUMN``; and the first row of each node. The rows of a node end at
        the first row of the next node.

    Raises
    ------
    ScenarioError
        If a node or a pool is not in the fleet, or a node is off at first.
    """
    nodes = len(fleet.gpus)
    if changes is None:
        return make_table(PLANNED_CHANGE_DTYPE_BY_COLUMN, 0), np.zeros(nodes + 1, np.int64)
    assert changes.drained is not None

    is_valid = (changes.node < nodes) & (changes.pool < fleet.capacity.shape[1])
    is_valid[is_valid] = fleet.first[changes.node[is_valid]] != POWERED_DOWN_POOL
    if not is_valid.all():
        location = f"layout change {int(np.flatnonzero(~is_valid)[0])}"
        expected = f"one of {nodes} nodes that is on at first, and one of {fleet.capacity.shape[1]} pools"
        got = f"node {changes.node[~is_valid][0]}, pool {changes.pool[~is_valid][0]}"
        raise ScenarioError(location, expected, got, "Correct the row.")

    order = np.lexsort((np.arange(len(changes)), changes.planned_s, changes.node))
    planned = make_table(PLANNED_CHANGE_DTYPE_BY_COLUMN, len(changes))
    planned.row = order
    planned.drains_node = changes.drained[order]
    planned.pool = changes.pool[order]
    planned.planned_s = changes.planned_s[order]
    planned.cordon_s = changes.cordon_s[order]
    planned.deadline_s = changes.deadline_s[order]
    planned.change_s = changes.change_s[order]
    planned.began_s = planned.emptied_s = planned.ended_s = np.nan
    planned.outcome = NO_INDEX

    nodes_of_rows = changes.node[order].tolist()
    previous_node, previous_drain = NO_INDEX, NO_INDEX
    for row, (node, drains_node) in enumerate(zip(nodes_of_rows, planned.drains_node.tolist(), strict=True)):
        if node != previous_node:
            previous_drain = NO_INDEX
        planned[row].previous_drain = previous_drain
        if drains_node:
            previous_drain = row
        previous_node = node
    return planned, np.searchsorted(nodes_of_rows, np.arange(nodes + 1)).astype(np.int64)


def tabulate_change_outcomes(planned: Table) -> pl.DataFrame:
    """Tabulate the times and outcomes of planned changes, in the order of the rows of :class:`LayoutChanges`."""
    times = {"began_s": planned.began_s, "drained_s": planned.emptied_s, "ended_s": planned.ended_s}
    if not len(planned):  # in most simulations, of which a decision runs thousands
        return pl.DataFrame(schema={"row": pl.Int64} | dict.fromkeys(times, pl.Float64) | {"outcome": pl.String})
    return (
        pl.DataFrame({"row": planned.row, **times, "outcome": planned.outcome})
        .with_columns(
            pl.col(*times).fill_nan(None),
            pl.col("outcome").replace_strict(TEXT_BY_CHANGE_OUTCOME, default=None, return_dtype=pl.String),
        )
        .sort("row")
    )


@compile_not_inlined
def advance_planned_changes(state: SimulationState) -> None:
    """Make all steps of planned changes that are due in this instant, and write when the next one is."""
    status = state.status[0]
    status.vacated_nodes, status.short_start_nodes = 0, 0
    status.next_change_s = np.inf
    for node in range(len(state.gpus)):
        if state.first_change[node] == state.first_change[node + 1]:
            continue
        while apply_power_change(state, node) or advance_drain(state, node):
            pass
        status.next_change_s = min(status.next_change_s, next_step_time(state, node))
        status.short_start_nodes += takes_short_requests(state, node)


@compile_inlined
def find_planned_change(state: SimulationState, node: int, row: int, drains_node: int) -> int:
    """Find a node's first planned change from `row` on, with a drain (`drains_node` 1) or not; else last row + 1."""
    while row < state.first_change[node + 1] and state.planned[row].drains_node != drains_node:
        row += 1
    return row


@compile_not_inlined
def advance_drain(state: SimulationState, node: int) -> bool:
    """Make one step of the change that drains a node; False if none is due."""
    status, row = state.status[0], state.next_drain[node]
    if row == state.first_change[node + 1]:
        return False
    change = state.planned[row]

    # Partitioning is over: return the node to service in its new pool.
    if state.stage[node] == PARTITIONING:
        if change.ended_s > status.now_s:
            return False
        if state.pool[node] != change.pool:
            move_to_pool(state, node, change.pool)
        reset_unallocated(state, node)
        set_online(state, node, status.now_s)
        close_change(state, node, DONE)
        return True

    # The node is empty: partition it.
    if state.stage[node] == CORDONED and state.allocation_count[node] == 0:
        if np.isnan(change.emptied_s):
            change.emptied_s = status.now_s
        if not state.starts_before_change or change.planned_s <= status.now_s:
            state.stage[node], state.partitioned_for[node] = PARTITIONING, row
            change.ended_s = status.now_s + change.change_s
            return True

    # The deadline has passed: give up.
    if change.deadline_s <= status.now_s:
        state.node_state[node] = ONLINE
        change.ended_s = status.now_s
        close_change(state, node, GIVEN_UP)
        return True

    if state.stage[node] == SCHEDULABLE and change.cordon_s <= status.now_s:
        state.stage[node], state.node_state[node] = CORDONED, OFFLINE
        change.began_s = status.now_s
        return True
    return False


@compile_inlined
def move_to_pool(state: SimulationState, node: int, pool: int) -> None:
    """Move a node from its node pool to another one, and log both."""
    log_power_change(state, node, state.status[0].now_s, 0)
    state.pool[node] = pool
    log_power_change(state, node, state.status[0].now_s, 1)


@compile_inlined
def close_change(state: SimulationState, node: int, outcome: int) -> None:
    """Write the outcome of the draining change of a node that is over, and go on to its next one."""
    state.planned[state.next_drain[node]].outcome = outcome
    state.stage[node] = SCHEDULABLE
    state.node_changes[node] += 1
    state.next_drain[node] = find_planned_change(state, node, state.next_drain[node] + 1, 1)


@compile_inlined
def apply_power_change(state: SimulationState, node: int) -> bool:
    """Make the next change of a node that powers GPUs down or up without a drain; False if none is due."""
    status, row = state.status[0], state.next_power_change[node]
    if row == state.first_change[node + 1]:
        return False
    change = state.planned[row]
    # It waits for the draining changes that are planned before it.
    if change.planned_s > status.now_s or state.next_drain[node] < row:
        return False

    change.began_s = change.ended_s = status.now_s
    change.outcome = GIVEN_UP
    if change.previous_drain == state.partitioned_for[node]:
        change.outcome = DONE
        for profile in range(state.unallocated.shape[1]):
            before = state.capacity[node, state.pool[node], profile]
            state.unallocated[node, profile] += state.capacity[node, change.pool, profile] - before
        if state.pool[node] != change.pool:
            move_to_pool(state, node, change.pool)
        state.node_changes[node] += 1
    state.next_power_change[node] = find_planned_change(state, node, row + 1, 0)
    return True


@compile_inlined
def next_step_time(state: SimulationState, node: int) -> float:
    """Find when the next step of a node's changes is due if it does not empty before [s]; infinite: none is."""
    status, step_s = state.status[0], np.inf
    drain = state.next_drain[node]
    if drain < state.first_change[node + 1]:
        change = state.planned[drain]
        if state.stage[node] == SCHEDULABLE:
            step_s = change.cordon_s
        elif state.stage[node] == PARTITIONING:
            step_s = change.ended_s
        elif state.starts_before_change and change.planned_s > status.now_s:
            step_s = change.planned_s
        else:
            step_s = change.deadline_s

    power_change = state.next_power_change[node]
    if power_change < state.first_change[node + 1] and state.planned[power_change].planned_s > status.now_s:
        step_s = min(step_s, state.planned[power_change].planned_s)
    return step_s


@compile_inlined
def takes_short_requests(state: SimulationState, node: int) -> bool:
    """Whether a cordoned node takes requests that by their time limits end before its planned change."""
    if not state.starts_before_change or state.stage[node] != CORDONED:
        return False
    return bool(state.planned[state.next_drain[node]].planned_s > state.status[0].now_s)


@compile_inlined
def show_cordoned_nodes_only(state: SimulationState) -> float:
    """Offer cordoned nodes alone to requests, each until its change; return the latest of these times [s]."""
    latest_s = -np.inf
    for node in range(len(state.gpus)):
        state.node_state[node] = OFFLINE
        if takes_short_requests(state, node):
            state.node_state[node] = ONLINE
            state.reserved_from_s[node] = state.planned[state.next_drain[node]].planned_s
            latest_s = max(latest_s, state.reserved_from_s[node])
    return latest_s


@compile_inlined
def hide_cordoned_nodes(state: SimulationState) -> None:
    """Offer the nodes that are not cordoned to requests again."""
    for node in range(len(state.gpus)):
        is_in_service = state.stage[node] == SCHEDULABLE and state.pool[node] != NO_INDEX
        state.node_state[node] = ONLINE if is_in_service else OFFLINE
        state.reserved_from_s[node] = np.inf
