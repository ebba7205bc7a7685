"""Fragmentation: unallocated GPUs on nodes with too few for waiting jobs, and MIG slices that layouts lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import cast_columns, conform
from gpuplanner.core.schemas import FULL_GPU, Inventory, Jobs
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model
from gpuplanner.hardware.mig_layouts import parse_layout
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import (
    GPU_FRACTION_TOLERANCE_GPUS,
    HourSlabs,
    Idle,
    KindCounts,
    LedgerWindow,
    TickSpans,
    jobs_with_gpus,
    running_sum,
)


@dataclass(frozen=True, eq=False)
class NodePool:
    """Allocations on the nodes of a GPU pool over time, and the GPUs per node that waiting jobs need.

    - ``installed``: GPUs installed, one interval for each node.
    - ``allocated``: GPUs allocated or out of service, on all nodes of the interval together.
    - ``list_of_allocation``, shape (n_allocated,): Number of the node list, in ``lists``, of each allocation.
    - ``lists``: Numbered node lists of the allocations.
    - ``waiting``: Waits of jobs over time, with the GPUs that they request.
    - ``need_of_job``, shape (waiting jobs,): Row in ``needs`` of each waiting job.
    - ``needs``, shape (needs, 2): GPUs needed on one node, and on how many nodes; largest first, then the fewest
      nodes.
    """

    installed: TickSpans
    allocated: TickSpans
    list_of_allocation: np.ndarray
    lists: NodeLists
    waiting: TickSpans
    need_of_job: np.ndarray
    needs: np.ndarray

    def idle(self, slabs: HourSlabs) -> Idle:
        """Start a sweep in time that computes fragmented GPUs, and GPUs requested by waiting jobs that fit.

        A job that needs g GPUs on each of k nodes fits by count if k x g GPUs are unallocated, and fits if k nodes have
        g unallocated GPUs each. While a job fits by count but does not fit, the unallocated GPUs that no waiting job
        can use are fragmented. While the unallocated GPUs of each node are unknown, because a job runs on an unknown
        node or a node has more GPUs allocated than installed, no GPU counts as fragmented, and jobs that fit by count
        fit.
        """
        return _NodeSweep(self, slabs).idle


class _NodeSweep:
    """Sweep in time over the unallocated GPUs of every node and the waiting jobs, slab (group of hours) by slab."""

    def __init__(self, pool: NodePool, slabs: HourSlabs) -> None:
        self._pool = pool
        self._there = pool.installed.steps(slabs)
        self._held = pool.allocated.steps(slabs)
        waiting = pool.waiting
        self._waiting = KindCounts(waiting.begin, waiting.end, pool.need_of_job, len(pool.needs), slabs)
        self._sum = np.zeros(len(pool.installed.gpus))
        self._unplaced = 0.0

    def idle(self, slab: int, edges: np.ndarray, unallocated: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute fragmented GPUs, and GPUs requested by jobs that fit, from each edge of a slab to the next."""
        was_free = _drop_rounding(self._sum)
        node, tick, change = self._changes(slab)
        outside = node < 0
        taken = np.zeros(len(edges))
        np.subtract.at(taken, np.searchsorted(edges, tick[outside]), change[outside])
        unplaced = running_sum(taken, self._unplaced)
        self._unplaced = float(unplaced[-1])
        edge = np.searchsorted(edges, tick[~outside])
        event_edge, free, before = self._events(node[~outside], edge, change[~outside])

        def running(begin: float, change: np.ndarray) -> np.ndarray:
            return running_sum(np.bincount(event_edge, change, minlength=len(edges)), begin)

        unusable, fit, fit_by_count = unallocated, np.zeros_like(unallocated), np.zeros_like(unallocated)
        too_small = np.zeros(len(unallocated), dtype=bool)
        for kind, jobs in self._waiting.counts(slab, edges):
            need, nodes = self._pool.needs[kind]
            fits, fitted, had = (gpus >= need - GPU_FRACTION_TOLERANCE_GPUS for gpus in (free, before, was_free))
            able = running(float(had.sum()), fits.astype(float) - fitted)
            unable = running(was_free[~had].sum(), free * ~fits - before * ~fitted)
            requested = jobs * (need * nodes)
            has_room = unallocated >= need * nodes - GPU_FRACTION_TOLERANCE_GPUS
            fits_by_count = (requested > GPU_FRACTION_TOLERANCE_GPUS) & has_room
            fits_on_nodes = fits_by_count & (able >= nodes - 0.5)
            fit += np.where(fits_on_nodes, requested, 0.0)
            fit_by_count += np.where(fits_by_count, requested, 0.0)
            unusable = np.where(fits_on_nodes, unable, unusable)
            too_small |= fits_by_count & ~fits_on_nodes
        over, was_over, had_over = (gpus < -GPU_FRACTION_TOLERANCE_GPUS for gpus in (free, before, was_free))
        unclear = unplaced > GPU_FRACTION_TOLERANCE_GPUS
        unclear |= running(float(had_over.sum()), over.astype(float) - was_over) > 0.5
        fragmented = np.where(too_small & ~unclear, unusable, 0.0)
        return fragmented, np.where(unclear, fit_by_count, fit)

    def _changes(self, slab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """List the changes of unallocated GPUs in a slab: node number (-1: unknown), instant [µs] and change [GPUs]."""
        pool, changes = self._pool, []
        installed = ((self._there.begins, pool.installed.begin, 1), (self._there.ends, pool.installed.end, -1))
        for events, ticks, sign in installed:
            at = events[slab]
            changes.append((at.astype(np.int64), ticks[at], sign * pool.installed.gpus[at]))
        allocated = ((self._held.begins, pool.allocated.begin, -1), (self._held.ends, pool.allocated.end, 1))
        for events, ticks, sign in allocated:
            at = events[slab]
            row, node, many = pool.lists.spread(pool.list_of_allocation[at])
            changes.append((node, ticks[at][row], sign * (pool.allocated.gpus[at][row] / many)))
        node, tick, change = (np.concatenate(part) for part in zip(*changes, strict=True))
        return node, tick, change

    def _events(
        self, node: np.ndarray, edge: np.ndarray, change: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sum the changes of each node at one instant; return its edge, and unallocated GPUs after and before it."""
        if not len(node):
            return edge, change, change
        order = np.lexsort((edge, node))  # stable: sums of floats keep their order
        node, edge, change = node[order], edge[order], change[order]
        first = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(edge) != 0)])
        node, edge, change = node[first], edge[first], np.add.reduceat(change, first)
        begins = np.flatnonzero(np.r_[True, np.diff(node) != 0])
        before_all = self._sum[node[begins]]
        change[begins] += before_all
        events = pl.DataFrame({"node": node, "change": change})
        total = events.select(pl.col("change").cum_sum().over("node")).to_series().to_numpy()
        last = np.append(begins[1:], len(node)) - 1
        self._sum[node[last]] = total[last]
        free = _drop_rounding(total)
        before = np.concatenate([[0.0], free[:-1]])
        before[begins] = _drop_rounding(before_all)
        return edge, free, before


def _drop_rounding(gpus: np.ndarray) -> np.ndarray:
    """Set GPU counts below a millionth of a GPU, which are rounding of sums, to 0."""
    return np.where(np.abs(gpus) < GPU_FRACTION_TOLERANCE_GPUS, 0.0, gpus)


def node_pool(
    started: pl.LazyFrame,
    allocated_spans: TickSpans,
    queued: pl.LazyFrame,
    waiting_spans: TickSpans,
    nodes: pl.DataFrame,
    out: pl.DataFrame,
    window: LedgerWindow,
) -> NodePool | None:
    """Collect allocations by node; None where no job names a node, or the inventory names one twice.

    Parameters
    ----------
    started : polars.LazyFrame
        Started jobs of the pool.
    allocated_spans : TickSpans
        Their allocations.
    queued : polars.LazyFrame
        Waiting jobs of the pool.
    waiting_spans : TickSpans
        Their waits.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    out : polars.DataFrame
        GPUs out of service, see :func:`gpuplanner.usage.gpu_hour_ledger.check_out_of_service`.
    window : LedgerWindow
        Window of the ledger.
    """
    number = {name: position for position, name in enumerate(nodes["node"])}
    if len(number) < nodes.height:
        return None
    out_nodes = out.select("start_time", "end_time", "gpus", node_list="node")
    texts = pl.concat(
        part["node_list"].cast(pl.Categorical) for part in (started.select("node_list").collect(), out_nodes)
    )
    of_held, lists = number_node_lists(texts, number)
    used = np.bincount(of_held, minlength=len(lists.first) - 1) > 0
    if not (lists.node[np.repeat(used, np.diff(lists.first))] >= 0).any():
        return None
    largest = float(nodes["gpus"].max() or 0)  # type: ignore[arg-type]
    # A job that does not say over how many nodes it spreads needs one node, or whole ones if larger.
    many = pl.coalesce("nodes", (pl.col("gpus") / largest).ceil()).clip(lower_bound=1).cast(pl.Int64)
    requests = queued.select(each=pl.col("gpus") / many, many=many).collect()
    needs = requests.unique().sort("each", "many", descending=[True, False])
    needs_of_jobs = requests.join(needs.with_row_index("need"), on=["each", "many"], how="left", maintain_order="left")
    return NodePool(
        installed=window.spans(nodes, "installed", "retired", "gpus"),
        allocated=allocated_spans.concatenate(window.spans(out_nodes, "start_time", "end_time", "gpus")),
        list_of_allocation=of_held,
        lists=lists,
        waiting=waiting_spans,
        need_of_job=needs_of_jobs["need"].to_numpy(),
        needs=needs.to_numpy(),
    )


@dataclass(frozen=True, eq=False)
class NodeLists:
    """Node lists of jobs in compressed form, as node numbers of an inventory; -1: a node that is not in it.

    - ``first``, shape (lists + 1,): Where each list begins in ``node``.
    - ``node``: The nodes of all lists, one list after the other.
    """

    first: np.ndarray
    node: np.ndarray

    def spread(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expand node lists to one row for each node: row in ``lists``, node number, and nodes in that list."""
        many = self.first[lists + 1] - self.first[lists]
        row = np.repeat(np.arange(len(lists)), many)
        position = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
        return row, self.node[self.first[lists][row] + position], many[row]


def number_node_lists(texts: pl.Series, number: Mapping[str, int]) -> tuple[np.ndarray, NodeLists]:
    """Number the distinct node lists of jobs; a missing or unreadable one is a list of one unknown node.

    Examples
    --------
    >>> of_job, lists = number_node_lists(pl.Series(["n[1-2]", None, "n2"]), {"n1": 0, "n2": 1})
    >>> row, node, many = lists.spread(of_job)
    >>> node.tolist(), many.tolist()
    ([0, 1, -1, 1], [2, 2, 1, 1])
    """
    names_of_lists = texts.drop_nulls().unique().cast(pl.String).sort()
    names = [[-1], *([number.get(name, -1) for name in try_expand_node_list(text) or [""]] for text in names_of_lists)]
    of_job = texts.replace_strict(names_of_lists, range(1, len(names_of_lists) + 1), default=0, return_dtype=pl.Int32)
    first = np.cumsum([0, *map(len, names)])
    return of_job.fill_null(0).to_numpy(), NodeLists(first, np.concatenate(names).astype(np.int64))


SLICE_STATES = ("allocated", "not_allocated", "lost_to_layout", "full_gpu")
"""States of the installed slice-hours of MIG-capable GPUs.

allocated
    In a MIG instance that is allocated to a job.
not_allocated
    In a MIG instance that is not allocated.
lost_to_layout
    On a partitioned GPU, but in no instance of its layout.
full_gpu
    On a full GPU (MIG disabled).
"""
MAX_ALLOCATION_EXCESS_FRACTION = 1e-9
"""Share by which allocated instance-hours may exceed those of the layouts by rounding; more is an error."""
_SLICE_HOURS_JOB_COLUMNS = (
    "submit_time", "start_time", "end_time", "state", "gpus", "gpu_model", "profile_requested", "instances",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that :func:`slice_hours` reads."""


def slice_hours(
    jobs: pl.DataFrame | LazyJobs, inventory: pl.DataFrame, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Account for the hours of every installed compute and memory slice, by the layouts of the inventory.

    A slice is a seventh of the compute and an eighth of the memory of most GPU models; 3g + 3g takes all memory
    and leaves one compute slice that nothing can use.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; jobs with ``instances`` were allocated so many of ``profile_requested``. Where a job has
        several profiles, the table does not state how many of each: its slices are under ``not_allocated``.
    inventory : polars.DataFrame
        Table ``schemas.Inventory`` with ``gpu_model`` and ``layouts`` (null: MIG disabled).
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``gpu_model``, ``part`` (one of :data:`SLICE_STATES`), ``compute_slice_hours``, ``memory_slice_hours``. The
        parts of a GPU model sum to all its slices.

    Raises
    ------
    SchemaError
        If more instances of a profile are allocated than the layouts have, or a table is not as declared.
    CatalogError, GeometryError
        If a GPU model or a profile is unknown.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpus": [1], "gpu_model": "H100-80GB-SXM5", "layouts": "3g.40gb:2"})
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 3 / 7,
    ...     "instances": 1, "submit_time": nine, "start_time": nine, "profile_requested": "3g.40gb"})
    >>> slice_hours(jobs, nodes, start=nine, end=nine + timedelta(hours=1)).drop("gpu_model").rows()
    [('allocated', 3.0, 4.0), ('not_allocated', 3.0, 4.0), ('lost_to_layout', 1.0, 0.0), ('full_gpu', 0.0, 0.0)]
    """
    window = LedgerWindow(start, end)
    nodes = conform(inventory, Inventory, source="inventory")
    nodes = nodes.with_columns(hours=window.overlap_h("installed", "retired"))
    instance_hours = []
    for part in LazyJobs.from_table(jobs).iterate_chunks(_SLICE_HOURS_JOB_COLUMNS):
        requests = jobs_with_gpus(cast_columns(part, Jobs, _SLICE_HOURS_JOB_COLUMNS, source="jobs"), window)
        cut = requests.drop_nulls(["instances", "profile_requested", "start_time"])
        hours = window.overlap_h("start_time", "end_time") * pl.col("instances")
        words = pl.col("gpu_model", "profile_requested").cast(pl.String)
        instance_hours.append(cut.group_by(words, maintain_order=True).agg(instance_hours=hours.sum()))
    allocated = pl.concat(instance_hours)
    names = nodes["gpu_model"].drop_nulls().unique().sort()
    rows: list[tuple[str, str, float, float]] = []
    for name in names:
        # Jobs that name no board can only be on the one board there is.
        is_model = pl.col("gpu_model") == name if len(names) > 1 else pl.lit(value=True)
        rows += _slice_hours_of_model(
            load_any_gpu_model(name), nodes.filter(gpu_model=name), allocated.filter(is_model), name
        )
    hours_of = dict.fromkeys(("compute_slice_hours", "memory_slice_hours"), pl.Float64)
    schema = {"gpu_model": pl.String, "part": pl.String, **hours_of}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _slice_hours_of_model(
    gpu_model: GpuModel, nodes: pl.DataFrame, allocated: pl.DataFrame, name: str
) -> list[tuple[str, str, float, float]]:
    """List GPU model, slice state, and hours of compute and of memory slices, for the nodes of one GPU model.

    Parameters
    ----------
    gpu_model : GpuModel
        The GPU model.
    nodes : polars.DataFrame
        Its nodes, with ``hours`` in the window.
    allocated : polars.DataFrame
        ``profile_requested`` and ``instance_hours``.
    name : str
        Name of the model in the inventory.
    """
    cut: dict[str, float] = defaultdict(float)
    cut_gpu_hours = whole_gpu_hours = 0.0
    for layouts, gpus, hours in nodes.select("layouts", "gpus", "hours").iter_rows():
        texts = (layouts or "").split(";") if layouts else []
        stated = [text for text in texts if text.strip() not in ("", FULL_GPU, "off")]
        cut_gpu_hours += hours * len(stated)
        whole_gpu_hours += hours * (gpus - len(stated))
        for text in stated:
            for profile, count in parse_layout(text.strip()).items():
                cut[gpu_model.profile(profile).name] += count * hours
    used: dict[str, float] = defaultdict(float)
    for profile, hours in allocated.select("profile_requested", "instance_hours").iter_rows():
        used[gpu_model.profile(profile).name] += hours
    for profile, hours in used.items():
        if hours > cut[profile] * (1 + MAX_ALLOCATION_EXCESS_FRACTION):
            expected = f"at most the {cut[profile]:g} instance-hours that the layouts of the inventory have"
            got, todo = f"{hours:g} allocated to jobs", "State the layouts in force during this time."
            raise SchemaError(f"slices of {name}, profile {profile}", expected, got, todo)

    def slice_hours_of(instances: dict[str, float]) -> tuple[float, float]:
        sizes = [(gpu_model.profile(profile), hours) for profile, hours in instances.items()]
        compute_hours = sum(size.compute_slices * hours for size, hours in sizes)
        return compute_hours, sum(size.memory_slices * hours for size, hours in sizes)

    all_cut, all_held = slice_hours_of(cut), slice_hours_of(used)
    of_board = (gpu_model.compute_slices, gpu_model.memory_slices)
    kinds = [
        [all_held[kind], all_cut[kind] - all_held[kind], cut_gpu_hours * slices_per_gpu - all_cut[kind],
         whole_gpu_hours * slices_per_gpu]
        for kind, slices_per_gpu in enumerate(of_board)
    ]  # fmt: skip
    return [(name, *row) for row in zip(SLICE_STATES, *kinds, strict=True)]
