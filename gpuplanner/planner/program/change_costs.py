"""What it costs to come from one state of the fleet to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.schemas.vocabulary import WHOLE_GPU


@dataclass(frozen=True, eq=False)
class Ways:
    """Edges of the tree of states, and what it costs to send GPUs over them.

    Each edge parts the states in two. Over it goes, one way or the other, what the side beyond it has too much:
    the change of the number of GPUs there. The costs of all edges add up to a distance: over a third state it is
    never less than straight.

    - ``beyond``, shape (n_ways, n_columns): Whether GPUs of a column are beyond the edge.
    - ``come``, ``go``, shape (n_ways,): Cost of one batch that goes beyond the edge, and of one that comes back.
    - ``batch``, shape (n_ways,): GPUs of a batch: those of a node, where it is nodes that reboot; else 1.
    - ``recut``, shape (n_ways, 2): Whether a GPU that goes beyond the edge takes up a layout, and whether one that
      comes back does.
    - ``names``: What going over each is called in models, out and back.
    """

    beyond: Counts
    come: Floats
    go: Floats
    batch: Counts
    recut: NDArray[np.bool_]
    names: tuple[tuple[str, str], ...]

    def costs(self, before: Counts, after: Counts) -> Floats:
        """Cost of changing from each state to each other."""
        costs = np.zeros((len(before), len(after)))
        for way, (come, go, batch) in enumerate(zip(self.come, self.go, self.batch.tolist(), strict=True)):
            more = (after @ self.beyond[way])[None, :] - (before @ self.beyond[way])[:, None]
            for price, gpus in ((come, more), (go, -more)):
                if price:
                    costs += price * (gpus.clip(0) if batch == 1 else -(-gpus.clip(0) // batch))
        return costs

    def cost(self, before: Counts | None, after: Counts) -> float:
        """Cost between two slots; none if nothing is known of the first."""
        if before is None:
            return 0.0
        more = self.beyond @ (after - before)
        batches = -(-np.abs(more) // self.batch)
        return float(np.where(more > 0, self.come, self.go) @ batches)

    def recuts(self, before: Counts | None, after: Counts) -> int:
        """GPUs that take up a layout between two slots; none if nothing is known of the first."""
        if before is None:
            return 0
        more = self.beyond @ (after - before)
        return int(np.stack([more, -more], axis=1).clip(0)[self.recut].sum())

    @property
    def taking_up(self) -> Floats:
        """Cost of one more GPU that takes up a layout, by column; 0 for a GPU that is not cut."""
        return np.where(self.recut[:, 0], self.come, 0.0) @ self.beyond

    @property
    def of_columns(self) -> Floats:
        """Cost of one GPU more and of one less, by column, shape (2, n_columns), where each edge is of one column."""
        return np.stack([self.come, self.go]) @ self.beyond

    def some(self, kept: NDArray[np.bool_]) -> Self:
        """Some of the edges alone."""
        names = tuple(name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep)
        arrays = {name: getattr(self, name)[kept] for name in ("beyond", "come", "go", "batch", "recut")}
        return replace(self, names=names, **arrays)

    def dearer(self, price: float) -> Self:
        """The same if taking up a layout cost at least so much."""
        come, go = (
            np.where(recut, np.maximum(cost, price), cost)
            for recut, cost in zip(self.recut.T, (self.come, self.go), strict=True)
        )
        return replace(self, come=come, go=go)


def ways_of(problem: PlanProblem, layouts: Sequence[str], owner: Counts) -> Ways:
    """Edges of the tree of states of a problem."""
    prices, board = problem.prices, problem.board
    columns = np.arange(len(owner))
    cut = np.array([layouts[i] != WHOLE_GPU for i in owner], dtype=bool)
    takes_up, gives_up, neither = (True, False), (False, True), (False, False)
    rows: list[tuple[NDArray[np.bool_], float, float, int, tuple[bool, bool], tuple[str, str]]] = []
    if prices is None:
        price = problem.change_gpu_hours
        rows = [(columns == i, price, 0.0, 1, takes_up, ("cut", "")) for i in columns[cut].tolist()]
    else:
        for i, text in enumerate(layouts):
            emptied = prices.drain_of(board, text)
            rows.append((columns == i, prices.wake, emptied, 1, neither, ("wake", "drain")))
        for i in columns[: len(layouts)][cut[: len(layouts)]].tolist():
            come, go = prices.dress_of(layouts[i]), prices.strip_of(layouts[i])
            rows.append((owner == i, come, go, 1, takes_up, ("dress", "strip")))
        whole = prices.mode + prices.dress_of(WHOLE_GPU)
        rows.append((cut, prices.mode, whole, 1, gives_up, ("mode_on", "mode_off")))
        node = problem.gpus_per_node
        rows.append((cut, prices.reboot, prices.reboot, node, neither, ("reboot_on", "reboot_off")))
    rows = [row for row in rows if (row[1] or row[2] or any(row[4])) and row[0].any()]
    return Ways(
        beyond=np.array([row[0] for row in rows], dtype=np.int64).reshape(len(rows), len(owner)),
        come=np.array([row[1] for row in rows]),
        go=np.array([row[2] for row in rows]),
        batch=np.array([row[3] for row in rows], dtype=np.int64),
        recut=np.array([row[4] for row in rows], dtype=bool).reshape(len(rows), 2),
        names=tuple(row[5] for row in rows),
    )
