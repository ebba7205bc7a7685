"""The ledger: every installed GPU-hour in exactly one bucket."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples, message, resolve
from gpuplanner.core.schema_checks import check, conform, some_columns
from gpuplanner.core.schemas import BUCKETS, Inventory, Jobs, Ledger
from gpuplanner.core.step_functions import TICK, require_zone, untimed, waiting_since
from gpuplanner.usage.allocated_hours import ACTIVE, BY_ID, IDLE, held_hours
from gpuplanner.usage.fragmentation import node_pool
from gpuplanner.usage.occupancy import (
    PoolHours,
    Reservation,
    Window,
    gpu_jobs,
    inferred_inventory,
    sweep_pool,
    with_boards,
)

TIMES = ("submit_time", "start_time", "end_time")
COLUMNS = (
    "tenant", *TIMES, "eligible_time", "state", "gpus", "gpu_model", "profile_requested", "nodes", "node_list",
    "sm_activity", "memory_peak_gib", "gpus_by_memory", "instances",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that a ledger looks at, beside ``job_id`` where there are samples."""
ONE_POOL = "The GPU models of the jobs do not match the inventory: all GPUs are one pool."
"""What :func:`assumptions` says where boards are not told apart."""
ROUNDING_GPU_HOURS = 1e-12
"""Smaller amounts are rounding of sums and get no row."""
NOBODY = "-"
"""Tenant of GPU-time that nobody held."""
_KINDS = ("reserved", "reconfiguring", "down")
_OPTIONAL = dict.fromkeys(("gpu_model", "tenant", "node"), pl.String())
_SPAN = dict.fromkeys(("start_time", "end_time"), pl.Datetime("us", "UTC"))
_OUT = {"bucket": pl.Enum(BUCKETS), **_SPAN, "gpus": pl.Float64(), **_OPTIONAL}
_KEPT_ANYWHERE = (pl.col("bucket") == "reserved") & pl.col("node").is_null()
"""GPUs kept for a tenant on whichever node: it is known only as it takes them."""


def gpu_time_ledger(
    jobs: pl.DataFrame,
    inventory: pl.DataFrame | None = None,
    *,
    start: datetime,
    end: datetime,
    samples: pl.DataFrame | None = None,
    out_of_service: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Put every installed GPU-hour into one bucket.

    Held time is ``used`` where the device was seen to work (SM activity of at least 0.05 in the minute),
    ``allocated_idle`` where it was seen not to, and ``unobserved`` where nothing was measured. A sample holds until the
    next one of its device, before a gap for one usual step; time for which none holds is as the mean activity of the
    job's record says. Time that no job holds is ``fragmented`` while a job waits that asks for no more than is left,
    and nodes have it only in pieces too small; ``idle_pending`` as far as eligible jobs wait that ask for no more, on
    the nodes or, while it is not known on which nodes GPUs are held, by count; else ``free``. Of a
    reservation, what its tenant does not hold is ``reserved``. A MIG instance counts its share of the compute slices
    of a board.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``. A job that is ``RUNNING`` or ``PENDING`` and has no end is so to `end`; of one
        that ended nobody knows when nothing is counted, see :func:`assumptions`.
    inventory : polars.DataFrame, optional
        Table ``schemas.Inventory``. Default: :func:`inferred_inventory`, a lower bound.
    start, end : datetime
        Time covered; the first and the last hour of the ledger may be cut.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``, in steps of at most an hour.
    out_of_service : polars.DataFrame, optional
        GPUs ``reserved``, ``reconfiguring`` or ``down`` (column ``bucket``): ``start_time``, ``end_time``,
        ``gpus``; ``gpu_model`` if boards are kept apart; ``tenant``, for whom they are reserved; ``node``, if
        known: GPUs that jobs hold on it are not among them. Without the table, such time shows as free.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Ledger``, sorted by hour, board, tenant and bucket; rows of nothing are left out. It
        sums to :func:`installed_gpu_hours`. ``gpu_model`` is null if the boards of jobs and inventory cannot
        be matched, see :func:`assumptions`.

    Raises
    ------
    SchemaError
        If more GPUs are held than installed; or a table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame(
    ...     {
    ...         "job_id": ["1"],
    ...         "attempt": 1,
    ...         "tenant": "vision",
    ...         "state": "COMPLETED",
    ...         "gpus": 2.0,
    ...         "submit_time": nine,
    ...         "start_time": nine + timedelta(minutes=15),
    ...         "end_time": nine + timedelta(minutes=45),
    ...     }
    ... )
    >>> nodes = pl.DataFrame({"node": ["n1"], "gpus": [4]})
    >>> ledger = gpu_time_ledger(jobs, nodes, start=nine, end=nine + timedelta(hours=1))
    >>> ledger.select("tenant", "bucket", "gpu_hours").rows()
    [('-', 'unallocated', 2.5), ('-', 'idle_pending', 0.5), ('vision', 'no_telemetry', 1.0)]
    """
    window = Window(start, end)
    ids = [] if samples is None else [name for name in BY_ID if name not in COLUMNS]
    asking, nodes = with_boards(*_tables(jobs, inventory, window, [*ids, *COLUMNS]))
    started = asking.lazy().filter(pl.col("start_time").is_not_null())
    left = pl.coalesce("start_time", "end_time")
    queued = asking.lazy().with_columns(waiting_since=waiting_since(), left_queue=left)
    out = withheld(out_of_service, nodes["board"])
    bucket = pl.col("state").replace(dict.fromkeys(IDLE, "allocated_idle")).alias("bucket")
    keys = ["tenant", "board", "hour", bucket]
    held = held_hours(started, samples, window).filter(pl.col("state") != ACTIVE)
    parts = [held.group_by(keys, maintain_order=True).agg(pl.col("gpu_hours").sum())]
    boards = started.select("board").unique().collect()["board"]
    for gpu_model in pl.concat([nodes["board"], boards]).unique().sort():
        here = pl.col("board").eq_missing(gpu_model)
        waits = queued.filter(here | pl.col("board").is_null())
        pool = _pool(started.filter(here), waits, nodes.filter(here), out.filter(here), window)
        if pool.excess_gpus > 0:
            raise SchemaError(_excess(pool, gpu_model, window))
        nobody = {"unallocated": pool.free, "fragmented": pool.fragmented, "idle_pending": pool.idle_pending}
        parts += [_row(NOBODY, gpu_model, kind, hours) for kind, hours in nobody.items()]
        parts += [_row(tenant, gpu_model, "reserved", hours) for tenant, hours in pool.reserved.items()]
        shut = out.filter(here, ~_KEPT_ANYWHERE).group_by("bucket", "tenant", maintain_order=True)
        for (kind, tenant), rows in shut:
            spans = window.spans(rows, "start_time", "end_time", "gpus")
            hours = spans.by_hour(window.hours, np.zeros(len(spans.gpus)), 1)[0]
            parts.append(_row(str(tenant), gpu_model, str(kind), hours))
    ledger = (
        pl.concat(parts)
        .filter(pl.col("gpu_hours") > ROUNDING_GPU_HOURS)
        .with_columns(hour=pl.lit(window.origin) + pl.duration(hours="hour"), gpu_model="board")
        .sort("hour", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(BUCKETS)))
    )
    return check(ledger, Ledger, where="ledger")


def assumptions(
    jobs: pl.DataFrame, inventory: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> list[str]:
    """What a ledger over these tables takes for granted, in sentences for the reader of a report.

    Parameters
    ----------
    jobs, inventory, start, end
        As for :func:`gpu_time_ledger`.

    Returns
    -------
    list of str
        Empty if inventory, boards and GPU counts are all known.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 3.0})
    >>> jobs = jobs.with_columns(submit_time=day, start_time=day)
    >>> assumptions(jobs, start=day, end=day + timedelta(days=1))[0].partition(":")[0]
    'No inventory was given'
    """
    window = Window(start, end)
    _, nodes = with_boards(*_tables(jobs, inventory, window, COLUMNS))
    found = []
    if inventory is None:
        told = "GPUs are assumed, the peak of allocated GPUs; unallocated time is a lower bound."
        found.append(f"No inventory was given: {nodes['gpus'].sum()} {told}")
    elif nodes.filter(pl.col("board").is_null() & pl.col("gpu_model").is_not_null()).height:
        found.append(ONE_POOL)
    table = some_columns(jobs, Jobs, [*TIMES, "eligible_time", "state", "gpus", "node_list"], where="jobs")
    unknown = table.filter(pl.col("gpus").is_null() & pl.col("start_time").is_not_null()).height
    if unknown:
        told = "jobs ran on an unknown number of GPUs: their time counts as unallocated."
        found.append(f"{unknown} of {table.height} {told}")
    endless = table.filter((pl.col("gpus") > 0) & untimed()).height
    if endless:
        told = "jobs with GPUs have no start or end: their time counts as unallocated."
        found.append(f"{endless} of {table.height} {told}")
    waited = table.filter(pl.col("start_time") > waiting_since()).height
    unplaced = table.filter(pl.col("start_time").is_not_null() & pl.col("node_list").is_null()).height
    if waited and unplaced:
        found.append(
            f"{unplaced} jobs do not name their nodes: while they run, no GPU counts as fragmented, and "
            "unallocated GPUs that pending jobs request count as idle with eligible jobs pending."
        )
    return found


def _tables(
    jobs: pl.DataFrame, inventory: pl.DataFrame | None, window: Window, columns: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    asking = gpu_jobs(some_columns(jobs, Jobs, columns, where="ledger: jobs"), window)
    if inventory is None:
        return asking, inferred_inventory(asking, start=window.start, end=window.end)
    return asking, conform(inventory, Inventory, where="ledger: inventory")


def _pool(
    started: pl.LazyFrame, queued: pl.LazyFrame, nodes: pl.DataFrame, out: pl.DataFrame, window: Window
) -> PoolHours:
    """What is left of one pool."""
    kept = out.filter(_KEPT_ANYWHERE)
    gone = window.spans(out.filter(~_KEPT_ANYWHERE), "start_time", "end_time", "gpus")
    taken = window.spans(started, "start_time", "end_time", "gpus")
    waiting = window.spans(queued, "waiting_since", "left_queue", "gpus")
    return sweep_pool(
        installed=window.spans(nodes, "installed", "retired", "gpus"),
        taken=taken.joined(gone),
        waiting=waiting,
        reservations={
            tenant: Reservation(
                window.spans(kept.filter(tenant=tenant), "start_time", "end_time", "gpus"),
                window.spans(started.filter(tenant=tenant), "start_time", "end_time", "gpus"),
            )
            for tenant in kept["tenant"].unique().sort()
        },
        pieces=node_pool(started, taken, queued, waiting, nodes, out, window),
        hours=window.hours,
    )


def _row(tenant: str, gpu_model: str | None, bucket: str, gpu_hours: np.ndarray) -> pl.DataFrame:
    hours = pl.DataFrame({"hour": np.arange(len(gpu_hours)), "gpu_hours": gpu_hours})
    names = {"tenant": pl.lit(tenant), "board": pl.lit(gpu_model, pl.String), "bucket": pl.lit(bucket)}
    return hours.with_columns(**names).select("tenant", "board", "hour", "bucket", "gpu_hours")


def _excess(pool: PoolHours, gpu_model: str | None, window: Window) -> str:
    when = window.origin + pool.excess_tick * TICK
    return message(
        f"ledger: GPUs of {gpu_model if gpu_model is not None else 'all models'} allocated or out of service",
        "never more than the inventory has installed",
        f"up to {pool.excess_gpus:g} GPUs more, first at {when:%Y-%m-%d %H:%M:%S} UTC",
        "Complete the inventory (installed, retired, gpus), look for attempts of one job that overlap, or "
        "leave the inventory out to have it inferred from the peak.",
    )


def withheld(table: pl.DataFrame | None, boards: pl.Series) -> pl.DataFrame:
    """Check a table of GPUs out of service, and give each row the board of the pool that misses them.

    Examples
    --------
    >>> withheld(None, pl.Series(["A100"])).height
    0
    """
    if table is None:
        return pl.DataFrame(schema=_OUT | {"board": pl.String})
    known = boards.unique().sort()
    needed = [name for name in _OUT if name not in _OPTIONAL or (name == "gpu_model" and len(known) > 1)]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        _refuse("", f"columns {', '.join(map(repr, needed))}", f"none of {examples(missing)}", "Add them.")
    _only(table, "bucket", list(_KINDS), "Fix the column bucket.")
    absent = [pl.lit(None, _OUT[name]).alias(name) for name in _OPTIONAL if name not in table.columns]
    rows = table.with_columns(absent).select(*_OUT).cast(_OUT)  # type: ignore[arg-type]
    if rows.filter(pl.col("start_time").is_null() | ~(pl.col("gpus") >= 0)).height:
        _refuse("", "a start_time and a number of gpus in every row", "none or a negative one", "Fill it in.")
    rows = rows.with_columns(tenant=pl.col("tenant").fill_null(NOBODY))
    if len(known) == 1:
        return rows.with_columns(board=pl.lit(known[0], pl.String))
    _only(rows, "gpu_model", known.to_list(), "Use the GPU model as written in the inventory.")
    return rows.with_columns(board="gpu_model")


def _only(table: pl.DataFrame, column: str, words: list[str], todo: str) -> None:
    unknown = table.filter(~pl.col(column).cast(pl.String).is_in(words).fill_null(False))
    if unknown.height:
        found = unknown[column].cast(pl.String).fill_null("nothing").unique().sort().to_list()
        got = f"{unknown.height} rows with {examples(found)}"
        _refuse(f", column {column!r}", f"one of {examples(words)}", got, todo)


def _refuse(place: str, expected: str, got: str, todo: str) -> None:
    raise SchemaError(f"ledger: out_of_service{place}", expected, got, todo)


UNUSED_BUCKETS = (
    "allocated_idle",
    "unallocated",
    "fragmented",
    "idle_pending",
    "reserved",
    "reconfiguring",
    "down",
)
"""Paid for, no work done. Unobserved time is not among them: nothing may be claimed of it."""
ALLOCATED_BUCKETS = ("used", "no_telemetry", "allocated_idle")


def reconcile(ledger: pl.DataFrame, installed: float, *, tolerance: float = 1e-9) -> dict[str, float | bool]:
    """Compare a ledger with the GPU-hours installed.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    installed : float
        GPU-hours installed, from :func:`installed_gpu_hours` or the bill.
    tolerance : float
        Largest difference that counts as rounding, as a share of `installed`.

    Returns
    -------
    dict
        ``ledger_gpu_hours``, ``installed_gpu_hours``, ``difference_gpu_hours`` (ledger - installed),
        ``relative`` (of installed; 0 if both are 0) and ``balanced``.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import empty
    >>> reconcile(empty(Ledger), 24.0)["difference_gpu_hours"]
    -24.0
    """
    total = float(conform(ledger, Ledger, where="ledger")["gpu_hours"].sum())
    difference = total - installed
    scale = max(abs(installed), abs(total))
    relative = difference / scale if scale > 0 else 0.0
    return {
        "ledger_gpu_hours": total,
        "installed_gpu_hours": installed,
        "difference_gpu_hours": difference,
        "relative": relative,
        "balanced": abs(relative) <= tolerance,
    }


def by_bucket(ledger: pl.DataFrame) -> pl.DataFrame:
    """GPU-hours and share of each bucket, all buckets listed in their fixed order.

    Returns
    -------
    polars.DataFrame, shape (9, 3)
        ``bucket``, ``gpu_hours`` [GPU h], ``share`` [0-1] (0 for an empty ledger).

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import empty
    >>> by_bucket(empty(Ledger))["bucket"].to_list()[:3]
    ['used', 'no_telemetry', 'allocated_idle']
    """
    table = conform(ledger, Ledger, where="ledger")
    buckets = table.group_by(pl.col("bucket").cast(pl.String), maintain_order=True)
    sums = dict(buckets.agg(pl.col("gpu_hours").sum()).iter_rows())
    hours = [float(sums.get(bucket, 0.0)) for bucket in BUCKETS]
    total = sum(hours)
    shares = [part / total if total > 0 else 0.0 for part in hours]
    names = pl.Series(BUCKETS, dtype=pl.Enum(BUCKETS))
    return pl.DataFrame({"bucket": names, "gpu_hours": hours, "share": shares})


def by_tenant(ledger: pl.DataFrame) -> pl.DataFrame:
    """What each tenant held, and what of it was seen to work.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``allocated_gpu_hours`` and its parts ``used``, ``unobserved``, ``allocated_idle`` [GPU h], and
        ``idle_share`` [0-1] (held idle, of what was observed; null if nothing was); most held first. Time
        that nobody held is not in it.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import empty
    >>> by_tenant(empty(Ledger)).columns
    ['tenant', 'allocated_gpu_hours', 'used', 'no_telemetry', 'allocated_idle', 'idle_share']
    """
    hours = pl.col("gpu_hours")
    observed = pl.col("used") + pl.col("allocated_idle")
    parts = {bucket: hours.filter(pl.col("bucket") == bucket).sum() for bucket in ALLOCATED_BUCKETS}
    return (
        conform(ledger, Ledger, where="ledger")
        .filter(pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS))
        .group_by("tenant", maintain_order=True)
        .agg(allocated_gpu_hours=hours.sum(), **parts)
        .with_columns(idle_share=pl.when(observed > 0).then(pl.col("allocated_idle") / observed))
        .sort("allocated_gpu_hours", "tenant", descending=[True, False])
    )


def unused_share(ledger: pl.DataFrame) -> dict[str, float]:
    """Share of the installed GPU-time that was paid for and did no work, by part.

    Returns
    -------
    dict
        One share [0-1] for each of :data:`UNUSED_BUCKETS`, and ``dark``, their sum. Where time is unobserved,
        this is a lower bound.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import empty
    >>> unused_share(empty(Ledger))["unused"]
    0.0
    """
    shares = dict(by_bucket(ledger).select(pl.col("bucket").cast(pl.String), "share").iter_rows())
    parts = {bucket: shares[bucket] for bucket in UNUSED_BUCKETS}
    return parts | {"unused": sum(parts.values())}


PERIODS = {"day": "1d", "week": "1w", "month": "1mo"}
QUARTERS = 4
"""Parts of an hour that zones differ by: all offsets in use are whole quarters of an hour."""


def by_period(
    ledger: pl.DataFrame, *, every: str, tz: str, start: datetime | None = None, end: datetime | None = None
) -> pl.DataFrame:
    """Sum a ledger over local days, weeks (from Monday) or months.

    Days on which clocks change have 23 or 25 hours. Where a zone's offset is not a whole hour, the hours of
    the ledger that straddle a border are parted by quarters; what the ledger does not cover of its first and
    last hour gets no part.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    every : {"day", "week", "month"}
        Length of a period.
    tz : str
        IANA zone, such as ``"Europe/Berlin"``.
    start, end : datetime, optional
        Time that the ledger covers. Default: all of its hours.

    Returns
    -------
    polars.DataFrame
        ``period`` (its first day), ``tenant``, ``gpu_model``, ``bucket``, ``gpu_hours``, sorted. The
        GPU-hours sum to those of the ledger.

    Raises
    ------
    SchemaError
        If the zone or the period is unknown, or an instant has no time zone.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> begin = datetime(2026, 3, 28, 23, tzinfo=UTC)
    >>> hours = [begin + timedelta(hours=hour) for hour in range(23)]
    >>> rows = pl.DataFrame({"tenant": "a", "gpu_model": None, "hour": hours, "bucket": "used", "gpu_hours": 1.0})
    >>> by_period(rows, every="day", tz="Europe/Berlin").select("period", "gpu_hours").rows()
    [(datetime.date(2026, 3, 29), 23.0)]
    """
    length = PERIODS[resolve(every, tuple(PERIODS), what="ledger: period", error=SchemaError)]
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError):
        todo = "Give it like 'Europe/Berlin'."
        raise SchemaError("ledger: zone", "a name of the IANA database", repr(tz), todo) from None
    require_zone(start, end, where="ledger: periods")
    table = conform(ledger, Ledger, where="ledger")
    parts = _parts(table["hour"].unique(), length, tz, start, end)
    if parts["hour"].n_unique() < table["hour"].n_unique():
        got, todo = "rows of other hours", "Give the start and end that the ledger was made with."
        raise SchemaError("ledger: periods", f"hours from {start} to {end}", got, todo)
    return (
        table.join(parts, on="hour")
        .group_by("period", "tenant", "gpu_model", "bucket")
        .agg((pl.col("gpu_hours") * pl.col("part")).sum())
        .sort("period", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(BUCKETS)))
    )


def _parts(hours: pl.Series, length: str, tz: str, start: datetime | None, end: datetime | None) -> pl.DataFrame:
    """Periods that each hour falls into, with the part of its covered time in each."""
    begin = pl.col("hour") + pl.duration(minutes=pl.col("quarter") * (60 // QUARTERS))
    first = pl.max_horizontal(begin, pl.lit(start))
    last = pl.min_horizontal(begin + pl.duration(minutes=60 // QUARTERS), pl.lit(end))
    # Truncated on the wall clock: the first instant of a day need not exist in the zone.
    wall = begin.dt.convert_time_zone(tz).dt.replace_time_zone(None)
    day = wall.dt.truncate(length).dt.date()
    return (
        pl.DataFrame({"hour": hours})
        .join(pl.DataFrame({"quarter": range(QUARTERS)}), how="cross")
        .select("hour", period=day, part=(last - first).dt.total_microseconds())
        .filter(pl.col("part") > 0)
        .group_by("hour", "period")
        .agg(pl.col("part").sum())
        .with_columns(pl.col("part") / pl.col("part").sum().over("hour"))
        .sort("hour", "period")
    )
