"""Planned changes of what nodes offer: when each begins, what it waits for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.simulate.nodes.machine import OFF, NodeFleet
from gpuplanner.simulate.nodes.node_world import NONE, PLANNED
from gpuplanner.errors import refuse
from gpuplanner.simulate.tables import Floats, Ints, Table, table

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

    >>> from gpuplanner.simulate.nodes.machine import NodeRequests
    >>> from gpuplanner.simulate.nodes.play import play
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
        sound = (
            len(lengths) == 1
            and self.node.ndim == 1
            and bool(
                (self.node >= 0).all()
                and (self.pool >= 0).all()
                and np.isfinite(self.planned_s).all()
                and np.isfinite(self.cordon_s).all()
                and (self.cordon_s <= self.planned_s).all()
                and (self.deadline_s >= self.planned_s).all()
                and np.isfinite(self.change_s).all()
                and (self.change_s >= 0).all()
            )
        )
        if not sound:
            refuse(
                "layout changes",
                "columns of one length, nodes, pools and change_s not below 0, and cordon_s <= planned_s <= deadline_s",
                f"shapes {sorted(lengths)}" if len(lengths) > 1 else f"{len(self)} rows of which some differ",
                "Correct these rows.",
            )

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
        refuse(
            f"layout change {int(np.flatnonzero(~known)[0])}",
            f"one of {nodes} nodes that is on at first, and one of {fleet.capacity.shape[1]} pools",
            f"node {changes.node[~known][0]}, pool {changes.pool[~known][0]}",
            "Correct the row.",
        )
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
