"""Free GPUs in pieces too small for waiting jobs, and lost MIG slices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import conform, some_columns
from gpuplanner.core.schemas import WHOLE_GPU, Inventory, Jobs
from gpuplanner.hardware.gpu_models import GpuModel, any_board
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.gpu_model_resolution import known_nodes
from gpuplanner.ingest.large_tables import LongJobs
from gpuplanner.usage.occupancy import (
    TOLERANCE_GPUS,
    Idle,
    Kinds,
    Slabs,
    Spans,
    Window,
    gpu_jobs,
    running_sum,
)


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
        edge = np.searchsorted(edges, tick[~outside])
        place, free, before = self._events(node[~outside], edge, change[~outside])

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
        held = ((self._held.begins, pool.held.begin, -1), (self._held.ends, pool.held.end, 1))
        for events, ticks, sign in held:
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


PARTS = ("held", "cut_idle", "lost_to_layout", "whole")
"""What a slice-hour was.

held
    In an instance that a job held.
cut_idle
    In an instance that nobody held.
lost_to_layout
    On a cut GPU and in no instance: the layout leaves it over.
whole
    On a GPU that was not cut.
"""
TOLERANCE = 1e-9
_OF_SLICES = (
    "submit_time", "start_time", "end_time", "state", "gpus", "gpu_model", "profile_requested", "instances",
)  # fmt: skip


def slice_hours(
    jobs: pl.DataFrame | LongJobs, inventory: pl.DataFrame, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Account for every compute slice and memory slice installed, by the layouts that the inventory states.

    A slice is a seventh of the compute and an eighth of the memory of most boards; 3g + 3g takes all memory
    and leaves one compute slice that nothing can use.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; those with ``instances`` hold so many of ``profile_requested``. Where a job holds
        several profiles, the table does not say how many of each: its slices are under ``cut_idle``.
    inventory : polars.DataFrame
        Table ``schemas.Inventory`` with ``gpu_model`` and ``layouts`` (null: not cut).
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``gpu_model``, ``part`` (one of :data:`PARTS`), ``compute_slice_hours``, ``memory_slice_hours``. The
        parts of a board sum to all its slices.

    Raises
    ------
    SchemaError
        If more instances of a profile are held than the layouts have, or a table is not as declared.
    CatalogError, GeometryError
        If a board or a profile is unknown.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpus": [1], "gpu_model": "H100-80GB-SXM5", "layouts": "3g.40gb:2"})
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 3 / 7,
    ...     "instances": 1, "submit_time": nine, "start_time": nine, "profile_requested": "3g.40gb"})
    >>> slice_hours(jobs, nodes, start=nine, end=nine + timedelta(hours=1)).drop("gpu_model").rows()
    [('held', 3.0, 4.0), ('cut_idle', 3.0, 4.0), ('lost_to_layout', 1.0, 0.0), ('whole', 0.0, 0.0)]
    """
    window = Window(start, end)
    nodes = conform(inventory, Inventory, where="inventory")
    nodes = nodes.with_columns(hours=window.overlap_h("installed", "retired"))
    each = []
    for part in LongJobs.of(jobs).parts(_OF_SLICES):
        asked = gpu_jobs(some_columns(part, Jobs, _OF_SLICES, where="jobs"), window)
        cut = asked.drop_nulls(["instances", "profile_requested", "start_time"])
        hours = window.overlap_h("start_time", "end_time") * pl.col("instances")
        words = pl.col("gpu_model", "profile_requested").cast(pl.String)
        each.append(cut.group_by(words, maintain_order=True).agg(instance_hours=hours.sum()))
    held = pl.concat(each)
    names = nodes["gpu_model"].drop_nulls().unique().sort()
    rows: list[tuple[str, str, float, float]] = []
    for name in names:
        # Jobs that name no board can only be on the one board there is.
        here = pl.col("gpu_model") == name if len(names) > 1 else pl.lit(value=True)
        rows += _gpu_model(any_board(name), nodes.filter(gpu_model=name), held.filter(here), name)
    hours_of = dict.fromkeys(("compute_slice_hours", "memory_slice_hours"), pl.Float64)
    schema = {"gpu_model": pl.String, "part": pl.String, **hours_of}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _gpu_model(
    gpu_model: GpuModel, nodes: pl.DataFrame, held: pl.DataFrame, name: str
) -> list[tuple[str, str, float, float]]:
    """Name of the board, part, and hours of its compute and of its memory slices."""
    cut: dict[str, float] = defaultdict(float)
    cut_gpu_hours = whole_gpu_hours = 0.0
    for layouts, gpus, hours in nodes.select("layouts", "gpus", "hours").iter_rows():
        texts = (layouts or "").split(";") if layouts else []
        stated = [text for text in texts if text.strip() not in ("", WHOLE_GPU, "off")]
        cut_gpu_hours += hours * len(stated)
        whole_gpu_hours += hours * (gpus - len(stated))
        for text in stated:
            for profile, count in parse_layout(text.strip()).items():
                cut[gpu_model.profile(profile).name] += count * hours
    used: dict[str, float] = defaultdict(float)
    for profile, hours in held.select("profile_requested", "instance_hours").iter_rows():
        used[gpu_model.profile(profile).name] += hours
    for profile, hours in used.items():
        if hours > cut[profile] * (1 + TOLERANCE):
            expected = f"at most the {cut[profile]:g} instance-hours that the layouts of the inventory have"
            got, todo = f"{hours:g} allocated to jobs", "State the layouts in force during this time."
            raise SchemaError(f"slices of {name}, profile {profile}", expected, got, todo)

    def slices(instances: dict[str, float]) -> tuple[float, float]:
        sizes = [(gpu_model.profile(profile), hours) for profile, hours in instances.items()]
        compute = sum(size.compute_slices * hours for size, hours in sizes)
        return compute, sum(size.memory_slices * hours for size, hours in sizes)

    all_cut, all_held = slices(cut), slices(used)
    of_board = (gpu_model.compute_slices, gpu_model.memory_slices)
    kinds = [
        [all_held[kind], all_cut[kind] - all_held[kind], cut_gpu_hours * each - all_cut[kind],
         whole_gpu_hours * each]
        for kind, each in enumerate(of_board)
    ]  # fmt: skip
    return [(name, *row) for row in zip(PARTS, *kinds, strict=True)]
