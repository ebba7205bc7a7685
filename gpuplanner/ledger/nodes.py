"""Which node held what, and which free GPUs none of the waiting jobs could use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.inbox.core.node_names import known_nodes
from gpuplanner.ledger.pools import Window, gpu_jobs
from gpuplanner.ledger.sweep import TOLERANCE_GPUS, Spans, fitting
from gpuplanner.schemas import Inventory, Jobs, conform


def on_nodes(jobs: pl.DataFrame) -> pl.DataFrame:
    """One row for each job and node, the GPUs of a job spread evenly over its nodes.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.

    Returns
    -------
    polars.DataFrame
        The jobs with ``node`` (null where the source does not name the nodes, or the list cannot be read) and
        ``gpus`` on that node.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "gpus": [8.0, 1.0], "node_list": ["n[1-2]", None]})
    >>> on_nodes(jobs).select("job_id", "node", "gpus").rows()
    [('1', 'n1', 4.0), ('1', 'n2', 4.0), ('2', None, 1.0)]
    """
    lists = jobs["node_list"].drop_nulls().unique()
    names = pl.DataFrame(
        {"node_list": lists, "node": [known_nodes(text) for text in lists]},
        schema={"node_list": pl.String, "node": pl.List(pl.String)},
    )
    spread = jobs.join(names, on="node_list", how="left", maintain_order="left")
    many = pl.col("node").list.len().fill_null(1)
    return spread.with_columns(pl.col("gpus") / many).explode("node")


@dataclass(frozen=True)
class NodePool:
    """Free GPUs of each node of a pool over time, and what the waiting jobs need of a node.

    Parameters
    ----------
    tick, free, before : numpy.ndarray, shape (events,)
        When the free GPUs of some node change, to what, and from what.
    waiting : Spans
        Waiting jobs, each with the GPUs that it needs on one node.
    nodes : numpy.ndarray of int, shape (waiting jobs,)
        On how many nodes it needs them.
    unplaced : Spans
        GPUs held or out of service on nodes that are not known.
    """

    tick: np.ndarray
    free: np.ndarray
    before: np.ndarray
    waiting: Spans
    nodes: np.ndarray
    unplaced: Spans

    def idle(self, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """GPUs that are free in pieces, and GPUs asked for by jobs that fit, between each edge and the next.

        A job that needs g GPUs on each of k nodes fits by count if k x g GPUs are left, and fits if k nodes have g
        GPUs free; all nodes with g GPUs free are then of use to it. Where a job fits by count and does not fit, what
        is of use to no waiting job is in pieces. While it is not known which node has what free, because
        something is held on a node not known, or more on a node than it has, nothing is said to be in pieces, and
        what fits by count fits.

        Parameters
        ----------
        edges, left : numpy.ndarray
            GPUs left in the pool between each edge and the next.
        """
        place = np.searchsorted(edges, self.tick)
        asked = Spans(self.waiting.begin, self.waiting.end, self.waiting.gpus * self.nodes)
        queued = self.waiting.end > self.waiting.begin
        useless, wanted = left, np.zeros_like(left)
        too_small = np.zeros(len(left), dtype=bool)
        for need in np.unique(self.waiting.gpus[queued])[::-1]:
            fits, fitted = (free >= need - TOLERANCE_GPUS for free in (self.free, self.before))
            able = _running_sum(place, fits.astype(float) - fitted, edges)
            unable = _running_sum(place, self.free * ~fits - self.before * ~fitted, edges)
            for nodes in np.unique(self.nodes[queued & (self.waiting.gpus == need)]):
                same = queued & (self.waiting.gpus == need) & (self.nodes == nodes)
                level = asked.where(same).level(edges)
                enough = (level > TOLERANCE_GPUS) & (left >= need * nodes - TOLERANCE_GPUS)
                there = enough & (able >= nodes - 0.5)
                wanted += np.where(there, level, 0.0)
                useless = np.where(there, unable, useless)
                too_small |= enough & ~there
        in_pieces = np.where(too_small, useless, 0.0)
        over, was_over = (free < -TOLERANCE_GPUS for free in (self.free, self.before))
        unclear = self.unplaced.level(edges) > TOLERANCE_GPUS
        unclear |= _running_sum(place, over.astype(float) - was_over, edges) > 0.5
        return np.where(unclear, 0.0, in_pieces), np.where(unclear, fitting(asked, edges, left), wanted)


def node_pool(
    started: pl.DataFrame, waiting: pl.DataFrame, nodes: pl.DataFrame, out: pl.DataFrame, window: Window
) -> NodePool | None:
    """Free GPUs by node, or None where no job names a node or the inventory names one twice.

    Parameters
    ----------
    started, waiting : polars.DataFrame
        Jobs of one pool that held GPUs, and that waited from ``submit_time`` to ``left_queue``.
    nodes : polars.DataFrame
        Table ``schemas.Inventory`` of the pool.
    out : polars.DataFrame
        GPUs of the pool out of service, see :func:`gpuplanner.ledger.withheld.withheld`.
    window : Window
        Time of the ledger.
    """
    number = {name: place for place, name in enumerate(nodes["node"])}
    kept = pl.col("bucket") == "reserved"  # for a tenant, on whichever node: known only as it takes them
    gone = out.with_columns(node=pl.when(~kept).then("node"))
    both = [table.select("node", "start_time", "end_time", "gpus") for table in (on_nodes(started), gone)]
    taken = pl.concat(both)
    known = pl.col("node").is_in(list(number)).fill_null(value=False)
    placed, unplaced = taken.filter(known), taken.filter(~known)
    if placed.is_empty() or len(number) < nodes.height:
        return None
    there, held = (
        window.spans(nodes, "installed", "retired", "gpus"),
        window.spans(placed, "start_time", "end_time", "gpus"),
    )
    at = placed["node"].replace_strict(number, return_dtype=pl.Int64).to_numpy().astype(np.int64)
    node = np.concatenate([np.arange(nodes.height, dtype=np.int64)] * 2 + [at] * 2)
    tick = np.concatenate([there.begin, there.end, held.begin, held.end])
    change = np.concatenate([there.gpus, -there.gpus, -held.gpus, held.gpus])
    # Instants at which several things happen to a node are one event: ends and starts do not overlap.
    table = pl.DataFrame({"node": node, "tick": tick, "change": change})
    events = table.group_by("node", "tick").agg(pl.col("change").sum()).sort("node", "tick")
    free = events.select(pl.col("change").cum_sum().over("node")).to_series().to_numpy()
    # Rounding of sums must not leave a trace: less than a millionth of a GPU is none.
    free = np.where(np.abs(free) < TOLERANCE_GPUS, 0.0, free)
    first = events["node"].to_numpy() != np.concatenate([[-1], events["node"].to_numpy()[:-1]])
    before = np.where(first, 0.0, np.concatenate([[0.0], free[:-1]]))
    largest = float(nodes["gpus"].max() or 0)  # type: ignore[arg-type]
    # A job that does not say over how many nodes it spreads needs one node, or whole ones if larger.
    many = pl.coalesce("nodes", (pl.col("gpus") / largest).ceil()).clip(lower_bound=1)
    asking = waiting.with_columns(many=many.cast(pl.Int64)).with_columns(each=pl.col("gpus") / pl.col("many"))
    return NodePool(
        events["tick"].to_numpy(), free, before,
        window.spans(asking, "submit_time", "left_queue", "each"), asking["many"].to_numpy(),
        window.spans(unplaced, "start_time", "end_time", "gpus"),
    )  # fmt: skip


def gpu_hours_by_node(
    jobs: pl.DataFrame, inventory: pl.DataFrame, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """GPU-hours held and left on every node, hour by hour.

    Jobs over several nodes are taken to hold as many GPUs on each. Jobs whose node is not known, or not in the
    inventory, are summed under a null node, where nothing is installed.

    Parameters
    ----------
    jobs, inventory : polars.DataFrame
        Tables ``schemas.Jobs`` and ``schemas.Inventory``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``node``, ``hour`` (UTC), ``installed_gpu_hours``, ``held_gpu_hours``, sorted by node and hour; nodes
        and hours without either are left out. ``held_gpu_hours`` sums to what all jobs held.

    Raises
    ------
    SchemaError
        If a table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 4.0,
    ...     "submit_time": nine, "start_time": nine, "node_list": "n[1-2]"})
    >>> nodes = pl.DataFrame({"node": ["n1", "n2"], "gpus": [4, 4]})
    >>> gpu_hours_by_node(jobs, nodes, start=nine, end=nine + timedelta(minutes=30)).drop("hour").rows()
    [('n1', 2.0, 1.0), ('n2', 2.0, 1.0)]
    """
    window = Window(start, end)
    there = conform(inventory, Inventory, where="inventory")
    table = gpu_jobs(conform(jobs, Jobs, where="jobs"), window).filter(pl.col("start_time").is_not_null())
    known = pl.when(pl.col("node").is_in(there["node"].to_list())).then("node")
    held = on_nodes(table).with_columns(node=known)
    names = pl.concat([there["node"], held["node"]]).unique().sort(nulls_last=True)
    number = {name: place for place, name in enumerate(names)}

    def by_hour(rows: pl.DataFrame, begin: str, until: str) -> np.ndarray:
        row = np.array([number[name] for name in rows["node"]], dtype=np.int64)
        return window.spans(rows, begin, until, "gpus").by_hour(window.hours, row, len(names))

    installed, used = by_hour(there, "installed", "retired"), by_hour(held, "start_time", "end_time")
    row, hour = np.nonzero((installed > 0) | (used > 0))
    table = pl.DataFrame(
        {
            "node": names[row],
            "hour": hour,
            "installed_gpu_hours": installed[row, hour],
            "held_gpu_hours": used[row, hour],
        }
    )
    return table.with_columns(hour=pl.lit(window.origin) + pl.duration(hours="hour"))


def _running_sum(place: np.ndarray, change: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sum of the changes up to each edge but the last."""
    return np.cumsum(np.bincount(place, change, minlength=len(edges)))[:-1]
