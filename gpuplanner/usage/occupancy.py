"""Occupancy of pools over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import conform, some_columns
from gpuplanner.core.schemas import Inventory, Jobs
from gpuplanner.core.step_functions import EPOCH, HOUR_TICKS, TICK, require_zone, slot_sums, untimed
from gpuplanner.hardware.gpu_model_names import profile_on
from gpuplanner.hardware.gpu_models import load_gpu_model
from gpuplanner.ingest.large_tables import LongJobs

EVENTS = 1 << 17
"""Beginnings and ends that a slab holds at most, unless a single hour has more."""


class Slabs:
    """Whole clock hours, put together to slabs of about :data:`EVENTS` events.

    - ``hours``: Length of the time in hours.
    - ``instants``: Events in ticks, from 0 to the end of the last hour. Those at the very end fall into no slab.

    Examples
    --------
    >>> slabs = Slabs(3, [np.array([0, 2 * HOUR_TICKS])])
    >>> len(slabs), slabs.hours(0)
    (1, (0, 3))
    """

    def __init__(self, hours: int, instants: Iterable[np.ndarray]) -> None:
        counts = np.zeros(hours + 1, dtype=np.int64)
        for ticks in instants:
            counts += np.bincount(ticks // HOUR_TICKS, minlength=hours + 1)
        before = np.cumsum(counts) - counts
        last = np.r_[True, np.diff(before[:hours] // EVENTS) > 0]
        self._borders = np.append(np.flatnonzero(last), hours)
        number = np.append(np.cumsum(last) - 1, len(self._borders) - 1)
        self._slab_of_hour = number.astype(np.min_scalar_type(int(number[-1])))

    def __len__(self) -> int:
        return len(self._borders) - 1

    def hours(self, slab: int) -> tuple[int, int]:
        """First hour of a slab, and the first behind it."""
        return int(self._borders[slab]), int(self._borders[slab + 1])

    def edges(self, slab: int, instants: Iterable[np.ndarray]) -> np.ndarray:
        """Sorted instants of a slab at which something changes, with all its clock hours and its end."""
        first, end = self.hours(slab)
        # Forty times as fast as numpy.unique, which puts whole numbers into a hash table since numpy 2.3.
        ticks = np.sort(np.concatenate([*instants, np.arange(first, end + 1) * HOUR_TICKS]))
        return np.asarray(ticks[np.append(True, np.diff(ticks) > 0)])

    def by_hour(self, slab: int, edges: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Level x time of each hour of a slab, in hours; the level holds from each edge to the next."""
        first, end = self.hours(slab)
        hour, length_h = edges[:-1] // HOUR_TICKS - first, np.diff(edges) / HOUR_TICKS
        return np.bincount(hour, level * length_h, minlength=end - first)

    def parted(self, ticks: np.ndarray) -> list[np.ndarray]:
        """Numbers of the events in each slab, in their own order."""
        # Sorting numbers of 16 bits is linear, and stable: sums of floats keep their order.
        slab = self._slab_of_hour[ticks // HOUR_TICKS]
        order = np.argsort(slab, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(slab, minlength=len(self) + 1))
        return np.split(order, ends)[: len(self)]


class Changes:
    """Beginnings and ends of intervals ``[begin, end)``, in ticks, slab by slab."""

    def __init__(self, begin: np.ndarray, end: np.ndarray, slabs: Slabs) -> None:
        self._begin, self._end = begin, end
        self.begins, self.ends = slabs.parted(begin), slabs.parted(end)

    def instants(self, slab: int) -> tuple[np.ndarray, np.ndarray]:
        """Where intervals begin, and where they end, in a slab."""
        return self._begin[self.begins[slab]], self._end[self.ends[slab]]


class Steps(Changes):
    """Level of a sum of intervals, slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``weight``: Height of each.
    - ``slabs``: Slabs of the time.
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, weight: np.ndarray, slabs: Slabs) -> None:
        super().__init__(begin, end, slabs)
        self._weight, self._level = weight, 0.0

    def level(self, slab: int, edges: np.ndarray) -> np.ndarray:
        """Sum of the weights between each edge of a slab and the next; slabs must be asked for in order."""
        change = np.zeros(len(edges))
        begin, end = self.instants(slab)
        np.add.at(change, np.searchsorted(edges, begin), self._weight[self.begins[slab]])
        np.subtract.at(change, np.searchsorted(edges, end), self._weight[self.ends[slab]])
        level = running_sum(change, self._level)
        self._level = float(level[-1])
        return level


class Kinds(Changes):
    """How many intervals of each of several kinds there are at a time, slab by slab.

    - ``begin``, ``end``: Intervals ``[begin, end)`` in ticks.
    - ``kind``: Kind of each, from 0 to `kinds` - 1.
    - ``kinds``: Number of kinds.
    - ``slabs``: Slabs of the time.
    """

    def __init__(self, begin: np.ndarray, end: np.ndarray, kind: np.ndarray, kinds: int, slabs: Slabs) -> None:
        super().__init__(begin, end, slabs)
        self._kind, self._count = kind, np.zeros(kinds)

    def counts(self, slab: int, edges: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Kinds of which there is any in a slab, in order: number of the kind, intervals between the edges."""
        begins, ends = self.begins[slab], self.ends[slab]
        kind = np.concatenate([self._kind[begins], self._kind[ends]])
        place = np.searchsorted(edges, np.concatenate(self.instants(slab)))
        sign = np.repeat([1.0, -1.0], [len(begins), len(ends)])
        order = np.argsort(kind, kind="stable")
        borders = np.searchsorted(kind[order], np.arange(len(self._count) + 1))
        for number in np.flatnonzero((self._count > 0) | (np.diff(borders) > 0)):
            mine = order[borders[number] : borders[number + 1]]
            change = np.bincount(place[mine], sign[mine], minlength=len(edges))
            count = running_sum(change, self._count[number])
            self._count[number] = count[-1]
            if count.any():  # not where all of them end as they begin
                yield int(number), count


def running_sum(change: np.ndarray, begin: float) -> np.ndarray:
    """Level after each change but the last, from a level before the first.

    Examples
    --------
    >>> running_sum(np.array([1.0, 2.0, 0.0]), 4.0)
    array([5., 7.])
    """
    change[0] += begin
    return np.asarray(np.cumsum(change)[:-1])


TOLERANCE_GPUS = 1e-6
"""Fractions of GPUs are sums of floats; less than this is rounding, not a GPU."""


@dataclass(frozen=True)
class Spans:
    """Intervals ``[begin, end)`` in ticks from the first hour of the ledger, each with a number of GPUs."""

    begin: np.ndarray
    end: np.ndarray
    gpus: np.ndarray

    def steps(self, slabs: Slabs) -> Steps:
        """Sum of the GPUs over time, slab by slab."""
        return Steps(self.begin, self.end, self.gpus, slabs)

    def joined(self, other: Spans) -> Spans:
        """Both sets of intervals."""
        if not len(other.begin):
            return self
        pairs = ((self.begin, other.begin), (self.end, other.end), (self.gpus, other.gpus))
        return Spans(*map(np.concatenate, pairs))

    def by_hour(self, hours: int, group: np.ndarray, groups: int) -> np.ndarray:
        """GPU-hours of each group in each hour, shape (groups, hours)."""
        sums = slot_sums(self.begin, self.end, self.gpus, group, groups=groups, slots=hours, slot_ticks=HOUR_TICKS)
        return np.asarray(sums / HOUR_TICKS)


Idle = Callable[[int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Number of a slab, its edges and the GPUs left between each edge and the next → of these, GPUs that are free in
pieces, and GPUs asked for by jobs that would have fitted. It is asked for slab after slab."""


class Pieces(Protocol):
    """What is known of the nodes: which free GPUs are in pieces, and which waiting jobs would have fitted."""

    def idle(self, slabs: Slabs) -> Idle:
        """Begin a sweep over slabs."""


@dataclass(frozen=True)
class Reservation:
    """GPUs kept for a tenant, and what the tenant holds of the pool."""

    kept: Spans
    held: Spans


@dataclass(frozen=True)
class PoolHours:
    """GPU-hours of one pool that nobody holds, by hour; and by how much it is held beyond what there is."""

    free: np.ndarray
    fragmented: np.ndarray
    idle_pending: np.ndarray
    reserved: dict[str, np.ndarray]
    excess_gpus: float
    excess_tick: int


def sweep_pool(
    *,
    installed: Spans,
    taken: Spans,
    waiting: Spans,
    reservations: Mapping[str, Reservation],
    pieces: Pieces | None,
    hours: int,
) -> PoolHours:
    """Walk through every event of a pool, once."""
    kept = {tenant: each.kept for tenant, each in reservations.items()}
    own = {tenant: each.held for tenant, each in reservations.items()}
    levels = [installed, taken, *kept.values(), *own.values()]
    slabs = Slabs(hours, (instants for each in (*levels, waiting) for instants in (each.begin, each.end)))
    steps, queue = [each.steps(slabs) for each in levels], Changes(waiting.begin, waiting.end, slabs)
    idle = _Fitting(waiting, slabs).idle if pieces is None else pieces.idle(slabs)
    free, fragmented, idle_pending = np.zeros((3, hours))
    reserved = {tenant: np.zeros(hours) for tenant in kept}
    excess_gpus, excess_tick = 0.0, hours * HOUR_TICKS
    for slab in range(len(slabs)):
        edges = slabs.edges(slab, (ticks for each in (*steps, queue) for ticks in each.instants(slab)))
        there, held, *kept_and_own = (each.level(slab, edges) for each in steps)
        left = there - held
        excess = np.maximum(-left - TOLERANCE_GPUS, 0)
        if excess.any():
            excess_tick = min(excess_tick, int(edges[:-1][excess > 0][0]))
            excess_gpus = max(excess_gpus, float(excess.max()))
        left = np.maximum(left, 0)
        most, some = kept_and_own[: len(kept)], kept_and_own[len(kept) :]
        unused = {name: np.maximum(a - b, 0) for name, a, b in zip(kept, most, some, strict=True)}
        asked = np.sum(list(unused.values()), axis=0) if unused else np.zeros_like(left)
        share = np.divide(np.minimum(asked, left), asked, out=np.zeros_like(left), where=asked > 0)
        left_over = left - np.minimum(asked, left)
        in_pieces, asked_for = idle(slab, edges, left_over)
        in_pieces = np.minimum(in_pieces, left_over)
        asked_for = np.minimum(asked_for, left_over - in_pieces)
        here = slice(*slabs.hours(slab))
        free[here] = slabs.by_hour(slab, edges, left_over - in_pieces - asked_for)
        fragmented[here] = slabs.by_hour(slab, edges, in_pieces)
        idle_pending[here] = slabs.by_hour(slab, edges, asked_for)
        for tenant, level in unused.items():
            reserved[tenant][here] = slabs.by_hour(slab, edges, level * share)
    return PoolHours(free, fragmented, idle_pending, reserved, excess_gpus, excess_tick)


class _Fitting:
    """GPUs asked for by those of the waiting jobs that each ask for no more than is left in the pool."""

    def __init__(self, waiting: Spans, slabs: Slabs) -> None:
        self._needs, kind = np.unique(waiting.gpus, return_inverse=True)
        self._queue = Kinds(waiting.begin, waiting.end, kind, len(self._needs), slabs)

    def idle(self, slab: int, edges: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nothing in pieces, and what is asked for, between each edge and the next."""
        total = np.zeros_like(left)
        for kind, jobs in self._queue.counts(slab, edges):
            need = self._needs[kind]
            total += np.where(left >= need - TOLERANCE_GPUS, jobs * need, 0.0)
        return np.zeros_like(left), total


HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Window:
    """The time that a ledger covers, on a grid of clock hours of which the first and last may be cut.

    - ``start``, ``end``: First instant, and first instant behind it, with a time zone.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        require_zone(self.start, self.end, where="ledger")
        if self.end <= self.start:
            got = f"{self.start} and {self.end}"
            raise SchemaError("ledger: start and end", "an end after the start", got, "Swap them.")

    @property
    def origin(self) -> datetime:
        """Start of the first hour, in UTC."""
        return EPOCH + (self.start - EPOCH) // HOUR * HOUR

    @property
    def hours(self) -> int:
        """Hours of the grid."""
        return -((self.origin - self.end) // HOUR)

    def overlap_h(self, begin: str, end: str) -> pl.Expr:
        """Hours of the window between two columns; a null begin lies before it, a null end behind it."""
        first = pl.max_horizontal(pl.col(begin).fill_null(self.start), pl.lit(self.start))
        last = pl.min_horizontal(pl.col(end).fill_null(self.end), pl.lit(self.end))
        return ((last - first).dt.total_microseconds() / 3.6e9).clip(lower_bound=0.0)

    def spans(self, table: pl.DataFrame | pl.LazyFrame, begin: str, end: str, weight: str) -> Spans:
        """Intervals of a table within the window; a null begin lies before it, a null end behind it."""
        first, last = ((instant - self.origin) // TICK for instant in (self.start, self.end))
        zero = (self.origin - EPOCH) // TICK

        def clipped(name: str, missing: datetime) -> pl.Expr:
            return (pl.col(name).fill_null(missing).dt.timestamp("us") - zero).clip(first, last)

        begins = clipped(begin, self.start)
        ends = pl.max_horizontal(clipped(end, self.end), begins)
        found = table.lazy().select(begin=begins, end=ends, gpus=pl.col(weight).cast(pl.Float64)).collect()
        return Spans(*(found[name].to_numpy() for name in ("begin", "end", "gpus")))


Table = TypeVar("Table", pl.DataFrame, pl.LazyFrame)
_OF_HELD = ("start_time", "end_time", "profile_requested", "gpus", "gpus_by_memory", "instances")


def installed_gpu_hours(inventory: pl.DataFrame, start: datetime, end: datetime) -> float:
    """GPU-hours installed from `start` to `end`, with nodes counted from ``installed`` to ``retired``.

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
    nodes = conform(inventory, Inventory, where="inventory")
    spans = Window(start, end).spans(nodes, "installed", "retired", "gpus")
    return float(((spans.end - spans.begin) * spans.gpus).sum() / HOUR_TICKS)


def inferred_inventory(jobs: pl.DataFrame | LongJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """The smallest inventory that could have run the jobs: the peak held, in whole GPUs, of each board.

    MIG instances count as the boards that they need at least, see :func:`boards_at_once`. It
    is a lower bound: GPUs that were never held together with all others do not show, so the free time in
    a ledger over it is a lower bound too.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start, end : datetime
        The time to look at.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Inventory``, one row per board with ``node`` ``"inferred"`` or ``"inferred-<board>"``;
        one row for all if a job does not name its board. Sorted by board.

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
    columns = ["submit_time", "state", "gpu_model", *_OF_HELD]
    known = LongJobs.of(jobs)
    tables = (some_columns(part, Jobs, columns, where="jobs") for part in known.parts(columns))
    words = (gpu_jobs(table, Window(start, end))["gpu_model"] for table in tables)
    named_by_all = not any(each.has_nulls() for each in words)
    most: dict[str | None, int] = {}
    for first, last in known.spans(start, end):
        window = Window(first, last)
        there = some_columns(known.there(first, last, columns), Jobs, columns, where="jobs")
        asking = gpu_jobs(there, window)
        held = asking.lazy().filter(pl.col("start_time").is_not_null())
        for gpu_model in asking["gpu_model"].unique() if named_by_all else [None]:
            here = held if gpu_model is None else held.filter(pl.col("gpu_model") == gpu_model)
            most[gpu_model] = max(most.get(gpu_model, 0), boards_at_once(here, gpu_model, window))
    names = {
        gpu_model: "inferred" if gpu_model is None else f"inferred-{gpu_model}" for gpu_model in sorted(most, key=str)
    }
    rows = [{"node": name, "gpu_model": gpu_model, "gpus": most[gpu_model]} for gpu_model, name in names.items()]
    schema = {name: column.dtype for name, column in Inventory.columns().items()}
    return pl.DataFrame(rows, schema=schema)


def gpu_jobs(jobs: Table, window: Window) -> Table:
    """Jobs that held or asked for GPUs at some time in the window, as far as it is known when."""
    there = (pl.col("submit_time") < window.end) & (pl.col("end_time").fill_null(window.end) > window.start)
    return jobs.filter((pl.col("gpus") > 0) & there & ~untimed())


def with_boards(jobs: pl.DataFrame, inventory: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Give jobs and inventory a column ``board`` by which they meet.

    If every job that started names an installed board (case ignored) and none names another, or one board is all that
    is installed and no job names another, the boards are kept apart; jobs that wait and name none, ``board`` null, may
    take any. Else all of them are one pool, ``board`` null throughout: a ledger over the pool is right where one by
    board would put time under the wrong one.
    """
    nodes = inventory.filter(pl.col("gpus") > 0)
    installed = nodes["gpu_model"].unique().sort()
    by_fold = {name.casefold(): name for name in installed.drop_nulls()}
    named = {name: by_fold.get(name.casefold()) for name in jobs["gpu_model"].drop_nulls().unique()}
    mixed = bool(installed.str.contains("|", literal=True).any())  # of several models on one node
    apart = not installed.has_nulls() and None not in named.values() and not (mixed and len(installed) > 1)
    if apart and len(installed) == 1:
        only = pl.lit(installed[0], pl.String).alias("board")
        return jobs.with_columns(only), nodes.with_columns(only)
    began = jobs.filter(pl.col("start_time").is_not_null()) if "start_time" in jobs.columns else jobs
    if apart and not began["gpu_model"].has_nulls():
        words = pl.col("gpu_model").replace_strict(named, default=None, return_dtype=pl.String)
        return jobs.with_columns(board=words), nodes.with_columns(board="gpu_model")
    pooled = pl.lit(None, pl.String).alias("board")
    return jobs.with_columns(pooled), nodes.with_columns(pooled)


def boards_at_once(held: pl.DataFrame | pl.LazyFrame, gpu_model: str | None, window: Window) -> int:
    """Most boards that jobs needed at one time, at least.

    A board is cut or it is not. Instances need as many boards as their compute slices, their memory slices and the
    most of each profile on a board demand; GPUs that are not cut come on top. How instances lay on the boards is
    not looked at: it may have taken more.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = Window(datetime(2026, 2, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC))
    >>> cut = {"gpus": 4 / 7, "gpus_by_memory": 0.5, "instances": 1, "profile_requested": "4g.20gb"}
    >>> jobs = pl.DataFrame([cut, cut, cut | {"gpus": 2.0, "instances": None}])
    >>> jobs = jobs.with_columns(start_time=day.start, end_time=day.end)
    >>> boards_at_once(jobs, "A100-40GB", day)
    4
    """
    cut = pl.col("instances").is_not_null()
    plain = held.lazy().filter(~cut)
    parts = held.lazy().filter(cut).select(*_OF_HELD).collect()
    needs = [(window.spans(parts, "start_time", "end_time", "gpus"), 1)]
    if not parts["gpus_by_memory"].has_nulls():
        needs.append((window.spans(parts, "start_time", "end_time", "gpus_by_memory"), 1))
    for profile in parts["profile_requested"].drop_nulls().unique().sort():
        if gpu_model is not None and profile_on(gpu_model, profile) is not None:
            mine = parts.filter(profile_requested=profile)
            most = load_gpu_model(gpu_model).profile(profile).max_instances
            needs.append((window.spans(mine, "start_time", "end_time", "instances"), most))
    whole = window.spans(plain, "start_time", "end_time", "gpus")
    return _most(whole, needs, window)


def _most(whole: Spans, needs: list[tuple[Spans, int]], window: Window) -> int:
    """Most of the whole boards and the largest need of cut ones together."""
    every = [whole, *(spans for spans, _ in needs)]
    slabs = Slabs(window.hours, chain.from_iterable((spans.begin, spans.end) for spans in every))
    steps = [spans.steps(slabs) for spans in every]
    most = 0.0
    for slab in range(len(slabs)):
        edges = slabs.edges(slab, chain.from_iterable(each.instants(slab) for each in steps))
        levels = [np.ceil(each.level(slab, edges) / size - TOLERANCE_GPUS)
                  for each, size in zip(steps, (1, *(size for _, size in needs)), strict=True)]  # fmt: skip
        most = max(most, float((levels[0] + np.maximum.reduce(levels[1:])).max()))
    return int(most)
