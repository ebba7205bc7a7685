"""Which free GPUs are in pieces too small for the jobs that wait, node by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.inbox.core.node_names import known_nodes
from gpuplanner.ledger.slabs import Kinds, Slabs, running_sum
from gpuplanner.ledger.sweep import TOLERANCE_GPUS, Idle, Spans
from gpuplanner.ledger.window import Window


@dataclass(frozen=True, eq=False)
class NodePool:
    """Who holds GPUs of which nodes of a pool, and what the waiting jobs need of a node.

    - ``there``: GPUs installed, one interval for each node.
    - ``held``: GPUs held or out of service, on all nodes of the interval together.
    - ``of_held``, shape (intervals of held,): Number of the node list of each.
    - ``lists``: The node lists.
    - ``waiting``: Waiting jobs.
    - ``asked``, shape (waiting jobs,): Which of the needs each has.
    - ``needs``, shape (needs, 2): GPUs needed on one node, and on how many nodes; largest first, then the fewest
      nodes.
    """

    there: Spans
    held: Spans
    of_held: np.ndarray
    lists: NodeLists
    waiting: Spans
    asked: np.ndarray
    needs: np.ndarray

    def idle(self, slabs: Slabs) -> Idle:
        """GPUs that are free in pieces, and GPUs asked for by jobs that fit, between each edge and the next.

        A job that needs g GPUs on each of k nodes fits by count if k x g GPUs are left, and fits if k nodes have g
        GPUs free; all nodes with g GPUs free are then of use to it. Where a job fits by count and does not fit, what
        is of use to no waiting job is in pieces. While it is not known which node has what free, because
        something is held on a node not known, or more on a node than it has, nothing is said to be in pieces, and
        what fits by count fits.
        """
        return _NodeSweep(self, slabs).idle


class _NodeSweep:
    """Free GPUs of every node, and who waits, carried from slab to slab."""

    def __init__(self, pool: NodePool, slabs: Slabs) -> None:
        self._pool = pool
        self._there = pool.there.steps(slabs)
        self._held = pool.held.steps(slabs)
        waiting = pool.waiting
        self._waiting = Kinds(waiting.begin, waiting.end, pool.asked, len(pool.needs), slabs)
        self._sum = np.zeros(len(pool.there.gpus))
        self._unplaced = 0.0

    def idle(self, slab: int, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """GPUs in pieces, and GPUs asked for by jobs that fit."""
        was_free = _rounded(self._sum)
        node, tick, change = self._changes(slab)
        outside = node < 0
        taken = np.zeros(len(edges))
        np.subtract.at(taken, np.searchsorted(edges, tick[outside]), change[outside])
        unplaced = running_sum(taken, self._unplaced)
        self._unplaced = float(unplaced[-1])
        place, free, before = self._events(
            node[~outside], np.searchsorted(edges, tick[~outside]), change[~outside]
        )

        def running(begin: float, change: np.ndarray) -> np.ndarray:
            return running_sum(np.bincount(place, change, minlength=len(edges)), begin)

        useless, fit, fit_by_count = left, np.zeros_like(left), np.zeros_like(left)
        too_small = np.zeros(len(left), dtype=bool)
        for kind, jobs in self._waiting.counts(slab, edges):
            need, nodes = self._pool.needs[kind]
            fits, fitted, had = (gpus >= need - TOLERANCE_GPUS for gpus in (free, before, was_free))
            able = running(float(had.sum()), fits.astype(float) - fitted)
            unable = running(was_free[~had].sum(), free * ~fits - before * ~fitted)
            asked = jobs * (need * nodes)
            enough = (asked > TOLERANCE_GPUS) & (left >= need * nodes - TOLERANCE_GPUS)
            there = enough & (able >= nodes - 0.5)
            fit += np.where(there, asked, 0.0)
            fit_by_count += np.where(enough, asked, 0.0)
            useless = np.where(there, unable, useless)
            too_small |= enough & ~there
        over, was_over, had_over = (gpus < -TOLERANCE_GPUS for gpus in (free, before, was_free))
        unclear = unplaced > TOLERANCE_GPUS
        unclear |= running(float(had_over.sum()), over.astype(float) - was_over) > 0.5
        in_pieces = np.where(too_small & ~unclear, useless, 0.0)
        return in_pieces, np.where(unclear, fit_by_count, fit)

    def _changes(self, slab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Node (-1: not known), instant and change of what is free there."""
        pool, found = self._pool, []
        installed = ((self._there.begins, pool.there.begin, 1), (self._there.ends, pool.there.end, -1))
        for events, ticks, sign in installed:
            at = events[slab]
            found.append((at.astype(np.int64), ticks[at], sign * pool.there.gpus[at]))
        for events, ticks, sign in (
            (self._held.begins, pool.held.begin, -1),
            (self._held.ends, pool.held.end, 1),
        ):
            at = events[slab]
            row, node, many = pool.lists.spread(pool.of_held[at])
            found.append((node, ticks[at][row], sign * (pool.held.gpus[at][row] / many)))
        node, tick, change = (np.concatenate(part) for part in zip(*found, strict=True))
        return node, tick, change

    def _events(
        self, node: np.ndarray, place: np.ndarray, change: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edge, free GPUs after and before: several things that happen to a node at once are one event."""
        if not len(node):
            return place, change, change
        order = np.lexsort((place, node))  # stable: sums of floats keep their order
        node, place, change = node[order], place[order], change[order]
        first = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(place) != 0)])
        node, place, change = node[first], place[first], np.add.reduceat(change, first)
        begins = np.flatnonzero(np.r_[True, np.diff(node) != 0])
        before_all = self._sum[node[begins]]
        change[begins] += before_all
        events = pl.DataFrame({"node": node, "change": change})
        total = events.select(pl.col("change").cum_sum().over("node")).to_series().to_numpy()
        last = np.append(begins[1:], len(node)) - 1
        self._sum[node[last]] = total[last]
        free = _rounded(total)
        before = np.concatenate([[0.0], free[:-1]])
        before[begins] = _rounded(before_all)
        return place, free, before


def _rounded(gpus: np.ndarray) -> np.ndarray:
    """Rounding of sums must not leave a trace: less than a millionth of a GPU is none."""
    return np.where(np.abs(gpus) < TOLERANCE_GPUS, 0.0, gpus)


def node_pool(
    started: pl.LazyFrame,
    taken: Spans,
    queued: pl.LazyFrame,
    waiting: Spans,
    nodes: pl.DataFrame,
    out: pl.DataFrame,
    window: Window,
) -> NodePool | None:
    """Who holds what on which node, or None where no job names a node or the inventory names one twice."""
    number = {name: place for place, name in enumerate(nodes["node"])}
    if len(number) < nodes.height:
        return None
    gone = out.select("start_time", "end_time", "gpus", node_list="node")
    texts = pl.concat([_texts(started.select("node_list").collect()), _texts(gone)])
    of_held, lists = numbered_lists(texts, number)
    used = np.bincount(of_held, minlength=len(lists.first) - 1) > 0
    if not (lists.node[np.repeat(used, np.diff(lists.first))] >= 0).any():
        return None
    largest = float(nodes["gpus"].max() or 0)  # type: ignore[arg-type]
    # A job that does not say over how many nodes it spreads needs one node, or whole ones if larger.
    many = pl.coalesce("nodes", (pl.col("gpus") / largest).ceil()).clip(lower_bound=1).cast(pl.Int64)
    asking = queued.select(each=pl.col("gpus") / many, many=many).collect()
    needs = asking.unique().sort("each", "many", descending=[True, False])
    asked = asking.join(needs.with_row_index("need"), on=["each", "many"], how="left", maintain_order="left")
    return NodePool(
        there=window.spans(nodes, "installed", "retired", "gpus"),
        held=taken.joined(window.spans(gone, "start_time", "end_time", "gpus")),
        of_held=of_held,
        lists=lists,
        waiting=waiting,
        asked=asked["need"].to_numpy(),
        needs=needs.to_numpy(),
    )


def _texts(table: pl.DataFrame) -> pl.Series:
    return table["node_list"].cast(pl.Categorical)


@dataclass(frozen=True, eq=False)
class NodeLists:
    """Lists of nodes, numbered, as numbers of nodes in an inventory; -1 for a node that is not in it.

    - ``first``, shape (lists + 1,): Where each list begins in ``node``.
    - ``node``: The nodes of all lists, one list after the other.
    """

    first: np.ndarray
    node: np.ndarray

    def spread(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For the given lists: which of them, node, and how many nodes that list has, one row a node."""
        many = self.first[lists + 1] - self.first[lists]
        row = np.repeat(np.arange(len(lists)), many)
        place = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
        return row, self.node[self.first[lists][row] + place], many[row]


def numbered_lists(texts: pl.Series, number: Mapping[str, int]) -> tuple[np.ndarray, NodeLists]:
    """Number the node lists of jobs; one that is missing or cannot be read is a list of one unknown node.

    Examples
    --------
    >>> of_job, lists = numbered_lists(pl.Series(["n[1-2]", None, "n2"]), {"n1": 0, "n2": 1})
    >>> row, node, many = lists.spread(of_job)
    >>> node.tolist(), many.tolist()
    ([0, 1, -1, 1], [2, 2, 1, 1])
    """
    known = texts.drop_nulls().unique().cast(pl.String).sort()
    names = [[-1], *([number.get(name, -1) for name in known_nodes(text) or [""]] for text in known)]
    of_job = texts.replace_strict(known, range(1, len(known) + 1), default=0, return_dtype=pl.Int32)
    first = np.cumsum([0, *map(len, names)])
    return of_job.fill_null(0).to_numpy(), NodeLists(first, np.concatenate(names).astype(np.int64))
