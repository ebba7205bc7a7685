"""Occupancy of GPU pools over time: unallocated GPU-hours by hour and cause, and inferred inventories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import cast_columns, conform
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.core.step_functions import (
    ONE_MICROSECOND,
    UNIX_EPOCH,
    US_PER_HOUR,
    has_unknown_end,
    require_time_zone,
    sum_overlap_by_interval,
)
from gpuplanner.hardware.gpu_model_names import find_profile_name
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.ingest.chunked_tables import LazyJobs

MAX_EVENTS_PER_SLAB = 1 << 17
"""Most begins and ends of intervals in a slab (group of whole hours), unless a single hour has more."""


class HourSlabs:
    """Whole clock hours grouped into slabs that are swept one by one, of about :data:`MAX_EVENTS_PER_SLAB` events.

    - ``hours``: Number of clock hours.
    - ``instants``: Arrays of the events [ticks of a microsecond], from 0 to the end of the last hour. Events at the
      very end fall into no slab.

    Examples
    --------
    >>> slabs = HourSlabs(3, [np.array([0, 2 * US_PER_HOUR])])
    >>> len(slabs), slabs.hours(0)
    (1, (0, 3))
    """

    def __init__(self, hours: int, instants: Iterable[np.ndarray]) -> None:
        counts = np.zeros(hours + 1, dtype=np.int64)
        for ticks in instants:
            counts += np.bincount(ticks // US_PER_HOUR, minlength=hours + 1)
        before = np.cumsum(counts) - counts
        last = np.r_[True, np.diff(before[:hours] // MAX_EVENTS_PER_SLAB) > 0]
        self._borders = np.append(np.flatnonzero(last), hours)
        number = np.append(np.cumsum(last) - 1, len(self._borders) - 1)
        self._slab_of_hour = number.astype(np.min_scalar_type(int(number[-1])))

    def __len__(self) -> int:
        return len(self._borders) - 1

    def hours(self, slab: int) -> tuple[int, int]:
        """Return the first hour of a slab, and the first hour after it."""
        return int(self._borders[slab]), int(self._borders[slab + 1])

    def edges(self, slab: int, instants: Iterable[np.ndarray]) -> np.ndarray:
        """List the edges of a slab [µs], sorted: the instants of changes in it, all its clock hours and its end."""
        first, end = self.hours(slab)
        # Forty times as fast as numpy.unique, which puts whole numbers into a hash table since numpy 2.3.
        ticks = np.sort(np.concatenate([*instants, np.arange(first, end + 1) * US_PER_HOUR]))
        return np.asarray(ticks[np.append(True, np.diff(ticks) > 0)])

    def by_hour(self, slab: int, edges: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Integrate a level over each hour of a slab [h]; the level is constant from each edge to the next."""
        first, end = self.hours(slab)
        hour, length_h = edges[:-1] // US_PER_HOUR - first, np.diff(edges) / US_PER_HOUR
        return np.bincount(hour, level * length_h, minlength=end - first)

    def events_by_slab(self, ticks: np.ndarray) -> list[np.ndarray]:
        """List the row numbers of the events in each slab, in their order."""
        # Sorting numbers of 16 bits is linear, and stable: sums of floats keep their order.
        slab = self._slab_of_hour[ticks // US_PER_HOUR]
        order = np.argsort(slab, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(slab, minlength=len(self) + 1))
        return np.split(order, ends)[: len(self)]


class IntervalChanges:
    """Begins and ends of intervals ``[begin, end)`` by slab, in ticks (microseconds)."""

    def __init__(self, begin: np.ndarray, end: np.ndarray, slabs: HourSlabs) -> None:
        self._begin, self._end = begin, end
        self.begins, self.ends = slabs.events_by_slab(begin), slabs.events_by_slab(end)

    def instants(self, slab: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ticks of begins, and of ends, in a slab."""
        return self._begin[self.begins[slab]], self._end[self.ends[slab]]


class LevelSteps(IntervalChanges):
    """Sum of weighted intervals over time, such as allocated GPUs, computed slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``weight``: Height of each.
    - ``slabs``: Slabs of the time.
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, weight: np.ndarray, slabs: HourSlabs) -> None:
        super().__init__(begin, end, slabs)
        self._weight, self._level = weight, 0.0

    def level(self, slab: int, edges: np.ndarray) -> np.ndarray:
        """Sum the weights of intervals between each edge of a slab and the next; call it slab after slab, in order."""
        change = np.zeros(len(edges))
        begin, end = self.instants(slab)
        np.add.at(change, np.searchsorted(edges, begin), self._weight[self.begins[slab]])
        np.subtract.at(change, np.searchsorted(edges, end), self._weight[self.ends[slab]])
        level = running_sum(change, self._level)
        self._level = float(level[-1])
        return level


class KindCounts(IntervalChanges):
    """Number of intervals of each kind over time, such as waiting jobs by request, computed slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``kind``: Kind of each, from 0 to `kinds` - 1.
    - ``kinds``: Number of kinds.
    - ``slabs``: Slabs of the time.
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, kinds: int, slabs: HourSlabs) -> None:
        super().__init__(begin, end, slabs)
        self._kind, self._count = kind, np.zeros(kinds)

    def counts(self, slab: int, edges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each kind that occurs in a slab: its number, and the count of intervals between the edges."""
        begins, ends = self.begins[slab], self.ends[slab]
        kind = np.concatenate([self._kind[begins], self._kind[ends]])
        edge = np.searchsorted(edges, np.concatenate(self.instants(slab)))
        sign = np.repeat([1.0, -1.0], [len(begins), len(ends)])
        order = np.argsort(kind, kind="stable")
        borders = np.searchsorted(kind[order], np.arange(len(self._count) + 1))
        for number in np.flatnonzero((self._count > 0) | (np.diff(borders) > 0)):
            events = order[borders[number] : borders[number + 1]]
            change = np.bincount(edge[events], sign[events], minlength=len(edges))
            count = running_sum(change, self._count[number])
            self._count[number] = count[-1]
            if count.any():  # not where all of them end as they begin
                yield int(number), count


def running_sum(change: np.ndarray, begin: float) -> np.ndarray:
    """Compute the level after each change but the last, from a level before the first.

    Examples
    --------
    >>> running_sum(np.array([1.0, 2.0, 0.0]), 4.0)
    array([5., 7.])
    """
    change[0] += begin
    return np.asarray(np.cumsum(change)[:-1])


GPU_FRACTION_TOLERANCE_GPUS = 1e-6
"""Amounts below this are rounding errors of summed GPU fractions, not GPUs [GPUs]."""


@dataclass(frozen=True)
class TickSpans:
    """Intervals ``[begin, end)`` in ticks (microseconds) from the first hour of the ledger, with the GPUs of each."""

    begin: np.ndarray
    end: np.ndarray
    gpus: np.ndarray

    def steps(self, slabs: HourSlabs) -> LevelSteps:
        """Prepare the sum of the GPUs over time, slab by slab."""
        return LevelSteps(self.begin, self.end, self.gpus, slabs)

    def concatenate(self, other_spans: TickSpans) -> TickSpans:
        """Concatenate two sets of intervals."""
        if not len(other_spans.begin):
            return self
        pairs = ((self.begin, other_spans.begin), (self.end, other_spans.end), (self.gpus, other_spans.gpus))
        return TickSpans(*map(np.concatenate, pairs))

    def by_hour(self, hours: int, group: np.ndarray, groups: int) -> np.ndarray:
        """Sum GPU-hours by group and hour, shape (n_groups, n_hours)."""
        sums = sum_overlap_by_interval(
            self.begin, self.end, self.gpus, group, n_groups=groups, n_intervals=hours, interval_ticks=US_PER_HOUR
        )
        return np.asarray(sums / US_PER_HOUR)


Idle = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function that splits unallocated GPUs, called slab after slab. Arguments: number of the slab, its edges (instants of
change), and unallocated GPUs from each edge to the next. Result: fragmented GPUs, and GPUs requested by waiting jobs
that fit.
"""


class NodeFragments(Protocol):
    """Interface for allocations by node: computes fragmented GPUs, and requests of waiting jobs that fit."""

    def idle(self, slabs: HourSlabs) -> Idle:
        """Start a sweep over slabs; returns the function that splits the unallocated GPUs of each."""


@dataclass(frozen=True)
class Reservation:
    """GPUs reserved for a tenant over time (``kept``), and GPUs allocated to the tenant."""

    kept: TickSpans
    allocated: TickSpans


@dataclass(frozen=True)
class PoolHours:
    """Unallocated GPU-hours of a pool by hour and cause; peak of GPUs allocated beyond those installed and its tick."""

    free: np.ndarray
    fragmented: np.ndarray
    idle_pending: np.ndarray
    reserved: dict[str, np.ndarray]
    excess_gpus: float
    excess_tick: int


def sweep_pool(
    *,
    installed_spans: TickSpans,
    allocated_spans: TickSpans,
    waiting_spans: TickSpans,
    reservations: Mapping[str, Reservation],
    pieces: NodeFragments | None,
    hours: int,
) -> PoolHours:
    """Sweep once over all events of a GPU pool, and split its unallocated GPU-hours by cause.

    Parameters
    ----------
    installed_spans, allocated_spans, waiting_spans : TickSpans
        Installed GPUs; allocated GPUs and those out of service; GPUs requested by waiting jobs.
    reservations : mapping of str to Reservation
        Reservations by tenant.
    pieces : NodeFragments or None
        Allocations by node; None: unknown, and every job that fits by count fits.
    hours : int
        Hours of the window.
    """
    reserved_by_tenant = {tenant: reservation.kept for tenant, reservation in reservations.items()}
    allocated_by_tenant = {tenant: reservation.allocated for tenant, reservation in reservations.items()}
    levels = [installed_spans, allocated_spans, *reserved_by_tenant.values(), *allocated_by_tenant.values()]
    slabs = HourSlabs(hours, (instants for spans in (*levels, waiting_spans) for instants in (spans.begin, spans.end)))
    steps = [spans.steps(slabs) for spans in levels]
    queue = IntervalChanges(waiting_spans.begin, waiting_spans.end, slabs)
    idle = _FittingJobs(waiting_spans, slabs).idle if pieces is None else pieces.idle(slabs)
    free, fragmented, idle_pending = np.zeros((3, hours))
    reserved = {tenant: np.zeros(hours) for tenant in reserved_by_tenant}
    excess_gpus, excess_tick = 0.0, hours * US_PER_HOUR
    for slab in range(len(slabs)):
        edges = slabs.edges(slab, (ticks for spans in (*steps, queue) for ticks in spans.instants(slab)))
        installed, allocated, *kept_and_own = (spans.level(slab, edges) for spans in steps)
        left = installed - allocated
        excess = np.maximum(-left - GPU_FRACTION_TOLERANCE_GPUS, 0)
        if excess.any():
            excess_tick = min(excess_tick, int(edges[:-1][excess > 0][0]))
            excess_gpus = max(excess_gpus, float(excess.max()))
        left = np.maximum(left, 0)
        reserved_levels = kept_and_own[: len(reserved_by_tenant)]
        allocated_levels = kept_and_own[len(reserved_by_tenant) :]
        unused = {
            name: np.maximum(a - b, 0)
            for name, a, b in zip(reserved_by_tenant, reserved_levels, allocated_levels, strict=True)
        }
        unused_total = np.sum(list(unused.values()), axis=0) if unused else np.zeros_like(left)
        share = np.divide(np.minimum(unused_total, left), unused_total, out=np.zeros_like(left), where=unused_total > 0)
        left_over = left - np.minimum(unused_total, left)
        fragmented_level, pending_level = idle(slab, edges, left_over)
        fragmented_level = np.minimum(fragmented_level, left_over)
        pending_level = np.minimum(pending_level, left_over - fragmented_level)
        hour_slice = slice(*slabs.hours(slab))
        free[hour_slice] = slabs.by_hour(slab, edges, left_over - fragmented_level - pending_level)
        fragmented[hour_slice] = slabs.by_hour(slab, edges, fragmented_level)
        idle_pending[hour_slice] = slabs.by_hour(slab, edges, pending_level)
        for tenant, level in unused.items():
            reserved[tenant][hour_slice] = slabs.by_hour(slab, edges, level * share)
    return PoolHours(free, fragmented, idle_pending, reserved, excess_gpus, excess_tick)


class _FittingJobs:
    """Sweep over GPUs requested by waiting jobs, each of which fits into the unallocated GPUs of the GPU pool."""

    def __init__(self, waiting_spans: TickSpans, slabs: HourSlabs) -> None:
        self._needs, kind = np.unique(waiting_spans.gpus, return_inverse=True)
        self._queue = KindCounts(waiting_spans.begin, waiting_spans.end, kind, len(self._needs), slabs)

    def idle(self, slab: int, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute fragmented GPUs (none), and requested GPUs, between each edge and the next."""
        total = np.zeros_like(left)
        for kind, jobs in self._queue.counts(slab, edges):
            need = self._needs[kind]
            total += np.where(left >= need - GPU_FRACTION_TOLERANCE_GPUS, jobs * need, 0.0)
        return np.zeros_like(left), total


HOUR = timedelta(hours=1)
"""One hour, the grid step of the ledger."""


@dataclass(frozen=True)
class LedgerWindow:
    """Time span of a ledger, on a grid of clock hours; the first and the last hour may be partial.

    - ``start``, ``end``: First instant, and first instant after the window, with a time zone.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        require_time_zone(self.start, self.end, source="ledger")
        if self.end <= self.start:
            got = f"{self.start} and {self.end}"
            raise SchemaError("ledger: start and end", "an end after the start", got, "Swap them.")

    @property
    def origin(self) -> datetime:
        """Start of the first hour, in UTC."""
        return UNIX_EPOCH + (self.start - UNIX_EPOCH) // HOUR * HOUR

    @property
    def hours(self) -> int:
        """Number of hours of the grid."""
        return -((self.origin - self.end) // HOUR)

    def overlap_h(self, begin: str, end: str) -> pl.Expr:
        """Build the hours between two time columns in the window; null begins are before it, null ends after it."""
        first = pl.max_horizontal(pl.col(begin).fill_null(self.start), pl.lit(self.start))
        last = pl.min_horizontal(pl.col(end).fill_null(self.end), pl.lit(self.end))
        return ((last - first).dt.total_microseconds() / 3.6e9).clip(lower_bound=0.0)

    def spans(self, table: pl.DataFrame | pl.LazyFrame, begin: str, end: str, weight: str) -> TickSpans:
        """Convert rows to intervals within the window; a null begin is before it, a null end after it.

        Parameters
        ----------
        table : polars.DataFrame or LazyFrame
            Rows to convert.
        begin, end : str
            Columns with begin and end.
        weight : str
            Column with the GPUs.
        """
        first, last = ((instant - self.origin) // ONE_MICROSECOND for instant in (self.start, self.end))
        zero = (self.origin - UNIX_EPOCH) // ONE_MICROSECOND

        def clip_ticks(name: str, missing: datetime) -> pl.Expr:
            return (pl.col(name).fill_null(missing).dt.timestamp("us") - zero).clip(first, last)

        begins = clip_ticks(begin, self.start)
        ends = pl.max_horizontal(clip_ticks(end, self.end), begins)
        columns = table.lazy().select(begin=begins, end=ends, gpus=pl.col(weight).cast(pl.Float64)).collect()
        return TickSpans(*(columns[name].to_numpy() for name in ("begin", "end", "gpus")))


Table = TypeVar("Table", pl.DataFrame, pl.LazyFrame)
"""Type of a polars table, in memory or lazy."""
_OCCUPANCY_JOB_COLUMNS = ("start_time", "end_time", "profile_requested", "gpus", "gpus_by_memory", "instances")
"""Columns of ``schemas.Jobs`` from which an inventory is inferred."""


def installed_gpu_hours(inventory: pl.DataFrame, start: datetime, end: datetime) -> float:
    """Sum the installed GPU-hours from `start` to `end`, of nodes from ``installed`` to ``retired``.

    Raises
    ------
    SchemaError
        If `start` and `end` are no window, or the table is not an inventory.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> nodes = {"node": ["n1", "n2"], "gpus": [8, 8], "installed": [None, day + timedelta(hours=18)]}
    >>> installed_gpu_hours(pl.DataFrame(nodes), day, day + timedelta(days=1))
    240.0
    """
    nodes = conform(inventory, Inventory, source="inventory")
    spans = LedgerWindow(start, end).spans(nodes, "installed", "retired", "gpus")
    return float(((spans.end - spans.begin) * spans.gpus).sum() / US_PER_HOUR)


def inferred_inventory(jobs: pl.DataFrame | LazyJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """Infer the smallest inventory that could have run the jobs: the allocated peak of each GPU model.

    MIG instances count as the GPUs that they need at least, see :func:`peak_gpus_needed`. The inventory is a lower
    bound: GPUs that were never allocated together with all others do not show, so the unallocated time in a ledger over
    it is a lower bound too.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Inventory``, one row per GPU model with ``node`` ``"inferred"`` or ``"inferred-<board>"``;
        one row for all if a job does not name its GPU model. Sorted by GPU model.

    Examples
    --------
    >>> from datetime import UTC
    >>> jobs = pl.DataFrame(
    ...     {
    ...         "job_id": ["1", "2"],
    ...         "attempt": 1,
    ...         "tenant": "a",
    ...         "state": "RUNNING",
    ...         "gpus": [0.5, 2.0],
    ...         "submit_time": datetime(2026, 2, 2, tzinfo=UTC),
    ...         "start_time": datetime(2026, 2, 2, tzinfo=UTC),
    ...     }
    ... )
    >>> day = {"start": datetime(2026, 2, 2, tzinfo=UTC), "end": datetime(2026, 2, 3, tzinfo=UTC)}
    >>> inferred_inventory(jobs, **day).select("node", "gpus").rows()
    [('inferred', 3)]
    """
    columns = ["submit_time", "state", "gpu_model", *_OCCUPANCY_JOB_COLUMNS]
    jobs_on_disk = LazyJobs.from_table(jobs)
    tables = (cast_columns(part, Jobs, columns, source="jobs") for part in jobs_on_disk.iterate_chunks(columns))
    words = (jobs_with_gpus(table, LedgerWindow(start, end))["gpu_model"] for table in tables)
    named_by_all = not any(models.has_nulls() for models in words)
    peaks: dict[str | None, int] = {}
    for first, last in jobs_on_disk.split_span(start, end):
        window = LedgerWindow(first, last)
        jobs_of_span = cast_columns(jobs_on_disk.collect_between(first, last, columns), Jobs, columns, source="jobs")
        asking = jobs_with_gpus(jobs_of_span, window)
        allocated = asking.lazy().filter(pl.col("start_time").is_not_null())
        for gpu_model in asking["gpu_model"].unique() if named_by_all else [None]:
            model_jobs = allocated if gpu_model is None else allocated.filter(pl.col("gpu_model") == gpu_model)
            peaks[gpu_model] = max(peaks.get(gpu_model, 0), peak_gpus_needed(model_jobs, gpu_model, window))
    names = {
        gpu_model: "inferred" if gpu_model is None else f"inferred-{gpu_model}" for gpu_model in sorted(peaks, key=str)
    }
    rows = [{"node": name, "gpu_model": gpu_model, "gpus": peaks[gpu_model]} for gpu_model, name in names.items()]
    schema = {name: column.dtype for name, column in Inventory.columns().items()}
    return pl.DataFrame(rows, schema=schema)


def jobs_with_gpus(jobs: Table, window: LedgerWindow) -> Table:
    """Select the jobs that were allocated or requested GPUs at some time in the window."""
    is_in_window = (pl.col("submit_time") < window.end) & (pl.col("end_time").fill_null(window.end) > window.start)
    return jobs.filter((pl.col("gpus") > 0) & is_in_window & ~has_unknown_end())


def match_gpu_models(jobs: pl.DataFrame, inventory: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Match jobs and inventory by GPU model, in a column ``board``.

    GPU models are kept apart if every job that started names an installed one (case ignored), or if only one is
    installed and no job names another. Waiting jobs that name none (``board`` null) may then take any. Else all are one
    pool, ``board`` null throughout: its ledger is right where one by GPU model would assign time to the wrong model.
    """
    nodes = inventory.filter(pl.col("gpus") > 0)
    installed = nodes["gpu_model"].unique().sort()
    by_fold = {name.casefold(): name for name in installed.drop_nulls()}
    named = {name: by_fold.get(name.casefold()) for name in jobs["gpu_model"].drop_nulls().unique()}
    mixed = bool(installed.str.contains("|", literal=True).any())  # of several models on one node
    is_separable = not installed.has_nulls() and None not in named.values() and not (mixed and len(installed) > 1)
    if is_separable and len(installed) == 1:
        only = pl.lit(installed[0], pl.String).alias("board")
        return jobs.with_columns(only), nodes.with_columns(only)
    began = jobs.filter(pl.col("start_time").is_not_null()) if "start_time" in jobs.columns else jobs
    if is_separable and not began["gpu_model"].has_nulls():
        words = pl.col("gpu_model").replace_strict(named, default=None, return_dtype=pl.String)
        return jobs.with_columns(board=words), nodes.with_columns(board="gpu_model")
    pooled = pl.lit(None, pl.String).alias("board")
    return jobs.with_columns(pooled), nodes.with_columns(pooled)


def peak_gpus_needed(allocated: pl.DataFrame | pl.LazyFrame, gpu_model: str | None, window: LedgerWindow) -> int:
    """Find the peak of physical GPUs that jobs needed at once, at least.

    A GPU is partitioned or full. Instances need as many GPUs as their compute slices, their memory slices and the
    largest number of each profile on a GPU demand; full GPUs come on top. The placement of instances is not considered:
    it may have taken more GPUs.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = LedgerWindow(datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC))
    >>> cut = {"gpus": 4 / 7, "gpus_by_memory": 0.5, "instances": 1, "profile_requested": "4g.20gb"}
    >>> jobs = pl.DataFrame([cut, cut, cut | {"gpus": 2.0, "instances": None}])
    >>> jobs = jobs.with_columns(start_time=day.start, end_time=day.end)
    >>> peak_gpus_needed(jobs, "A100-40GB", day)
    4
    """
    cut = pl.col("instances").is_not_null()
    plain = allocated.lazy().filter(~cut)
    parts = allocated.lazy().filter(cut).select(*_OCCUPANCY_JOB_COLUMNS).collect()
    # what MIG instances take over time, each with the amount that one GPU has
    needs = [(window.spans(parts, "start_time", "end_time", "gpus"), 1)]
    if not parts["gpus_by_memory"].has_nulls():
        needs.append((window.spans(parts, "start_time", "end_time", "gpus_by_memory"), 1))
    for profile in parts["profile_requested"].drop_nulls().unique().sort():
        if gpu_model is not None and find_profile_name(gpu_model, profile) is not None:
            profile_jobs = parts.filter(profile_requested=profile)
            max_instances = load_gpu_model(gpu_model).profile(profile).max_instances
            needs.append((window.spans(profile_jobs, "start_time", "end_time", "instances"), max_instances))
    every = [window.spans(plain, "start_time", "end_time", "gpus"), *(spans for spans, _ in needs)]
    slabs = HourSlabs(window.hours, chain.from_iterable((spans.begin, spans.end) for spans in every))
    steps = [spans.steps(slabs) for spans in every]
    peak = 0.0
    for slab in range(len(slabs)):
        edges = slabs.edges(slab, chain.from_iterable(step.instants(slab) for step in steps))
        levels = [np.ceil(step.level(slab, edges) / size - GPU_FRACTION_TOLERANCE_GPUS)
                  for step, size in zip(steps, (1, *(size for _, size in needs)), strict=True)]  # fmt: skip
        peak = max(peak, float((levels[0] + np.maximum.reduce(levels[1:])).max()))
    return int(peak)
