"""The ledger: every installed GPU-hour in exactly one bucket."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples, format_message, resolve_name
from gpuplanner.core.schema_checks import add_absent_columns, cast_columns, check_table, conform
from gpuplanner.core.schemas import GPU_TIME_BUCKETS, Inventory, Jobs, Ledger
from gpuplanner.core.step_functions import ONE_MICROSECOND, has_unknown_end, require_time_zone, waiting_since
from gpuplanner.usage.allocated_hours import (
    ACTIVE_GPU_HOURS_COLUMN,
    ALLOCATED_IDLE_STATES,
    TELEMETRY_JOIN_COLUMNS,
    split_allocated_hours,
)
from gpuplanner.usage.fragmentation import node_pool
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import (
    LedgerWindow,
    PoolHours,
    Reservation,
    inferred_inventory,
    jobs_with_gpus,
    match_gpu_models,
    sweep_pool,
)

JOB_TIME_COLUMNS = ("submit_time", "start_time", "end_time")
"""Columns of ``schemas.Jobs`` with the submission, start and end of a job."""
LEDGER_INPUT_COLUMNS = (
    "tenant", *JOB_TIME_COLUMNS, "eligible_time", "state", "gpus", "gpu_model", "profile_requested", "nodes",
    "node_list", "sm_activity", "memory_peak_gib", "gpus_by_memory", "instances",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that the ledger reads; with telemetry also ``job_id``."""
ONE_POOL_ASSUMPTION_TEXT = "The GPU models of the jobs do not match the inventory: all GPUs are one pool."
"""Sentence of :func:`ledger_assumptions` for jobs and inventory whose GPU models cannot be matched."""
ROUNDING_TOLERANCE_GPU_HOURS = 1e-12
"""Amounts up to this are rounding errors of sums and get no row in the ledger [GPU h]."""
UNALLOCATED_TENANT_LABEL = "-"
"""Value of ``tenant`` in ledger rows of GPU-hours that were not allocated."""
_OUT_OF_SERVICE_BUCKETS = ("reserved", "reconfiguring", "down")
"""Ledger buckets that the table of GPUs out of service may name."""
_OPTIONAL_COLUMN_SCHEMA = dict.fromkeys(("gpu_model", "tenant", "node"), pl.String())
"""Columns that the table of GPUs out of service may lack."""
_TIME_SPAN_SCHEMA = dict.fromkeys(("start_time", "end_time"), pl.Datetime("us", "UTC"))
"""Columns of begin and end in the table of GPUs out of service."""
_OUT_OF_SERVICE_SCHEMA = {
    "bucket": pl.Enum(GPU_TIME_BUCKETS),
    **_TIME_SPAN_SCHEMA,
    "gpus": pl.Float64(),
    **_OPTIONAL_COLUMN_SCHEMA,
}
"""All columns of the table of GPUs out of service."""
_RESERVED_ON_ANY_NODE_EXPR = (pl.col("bucket") == "reserved") & pl.col("node").is_null()
"""Selects GPUs reserved for a tenant on no particular node; which GPUs they are shows only when its jobs are allocated
them.
"""


def gpu_time_ledger(
    jobs: pl.DataFrame,
    inventory: pl.DataFrame | None = None,
    *,
    start: datetime,
    end: datetime,
    samples: pl.DataFrame | None = None,
    out_of_service: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Assign every installed GPU-hour to exactly one bucket.

    Allocated GPU-hours are ``used`` where the device was active (mean SM activity of a minute of at least 0.05),
    ``allocated_idle`` where it was not, and ``no_telemetry`` where nothing was measured. A sample is valid until the
    next one of its device; before a gap, for one usual sampling interval. Times without a valid sample take the mean
    activity of the job record. GPU-hours that no job is allocated are ``fragmented`` while a waiting job requests no
    more than is unallocated, but nodes have too few GPUs each; ``idle_pending`` as far as eligible jobs that would fit
    wait (by count, while the nodes of allocations are unknown); else ``unallocated``. The part of a reservation that
    its tenant does not use is ``reserved``. A MIG instance counts as its share of the compute slices of a GPU.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``. A job that is ``RUNNING`` or ``PENDING`` and has no end is taken to be so until `end`;
        another job without an end is not counted, see :func:`ledger_assumptions`.
    inventory : polars.DataFrame, optional
        Table ``schemas.Inventory``. Default: :func:`inferred_inventory`, a lower bound.
    start, end : datetime
        Time covered; the first and the last hour of the ledger may be partial.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``, in steps of at most an hour.
    out_of_service : polars.DataFrame, optional
        GPUs ``reserved``, ``reconfiguring`` or ``down`` (column ``bucket``): ``start_time``, ``end_time``,
        ``gpus``; ``gpu_model`` if GPU models are kept apart; ``tenant``, for whom they are reserved; ``node``, if
        known: GPUs that are allocated to jobs on it are not among them. Without the table, such time counts as
        unallocated.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Ledger``, sorted by hour, GPU model, tenant and bucket; rows of nothing are left out. It
        sums to :func:`installed_gpu_hours`. ``gpu_model`` is null if the GPU models of jobs and inventory cannot
        be matched, see :func:`ledger_assumptions`.

    Raises
    ------
    SchemaError
        If more GPUs are allocated than installed; or a table or the time is not as declared.

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
    window = LedgerWindow(start, end)
    ids = [] if samples is None else [name for name in TELEMETRY_JOIN_COLUMNS if name not in LEDGER_INPUT_COLUMNS]
    gpu_attempts, nodes = match_gpu_models(*_ledger_inputs(jobs, inventory, window, [*ids, *LEDGER_INPUT_COLUMNS]))
    started = gpu_attempts.lazy().filter(pl.col("start_time").is_not_null())
    left_queue = pl.coalesce("start_time", "end_time")
    queued = gpu_attempts.lazy().with_columns(waiting_since=waiting_since(), left_queue=left_queue)
    out = check_out_of_service(out_of_service, nodes["board"])
    bucket = pl.col("state").replace(dict.fromkeys(ALLOCATED_IDLE_STATES, "allocated_idle")).alias("bucket")
    keys = ["tenant", "board", "hour", bucket]
    allocated = split_allocated_hours(started, samples, window).filter(pl.col("state") != ACTIVE_GPU_HOURS_COLUMN)
    parts = [allocated.group_by(keys, maintain_order=True).agg(pl.col("gpu_hours").sum())]
    boards = started.select("board").unique().collect()["board"]
    for gpu_model in pl.concat([nodes["board"], boards]).unique().sort():
        is_model = pl.col("board").eq_missing(gpu_model)
        waits = queued.filter(is_model | pl.col("board").is_null())
        pool = _sweep_ledger_pool(started.filter(is_model), waits, nodes.filter(is_model), out.filter(is_model), window)
        if pool.excess_gpus > 0:
            raise SchemaError(_describe_excess(pool, gpu_model, window))
        unallocated = {"unallocated": pool.free, "fragmented": pool.fragmented, "idle_pending": pool.idle_pending}
        parts += [_bucket_rows(UNALLOCATED_TENANT_LABEL, gpu_model, kind, hours) for kind, hours in unallocated.items()]
        parts += [_bucket_rows(tenant, gpu_model, "reserved", hours) for tenant, hours in pool.reserved.items()]
        out_rows = out.filter(is_model, ~_RESERVED_ON_ANY_NODE_EXPR).group_by("bucket", "tenant", maintain_order=True)
        for (kind, tenant), rows in out_rows:
            spans = window.spans(rows, "start_time", "end_time", "gpus")
            hours = spans.by_hour(window.hours, np.zeros(len(spans.gpus)), 1)[0]
            parts.append(_bucket_rows(str(tenant), gpu_model, str(kind), hours))
    ledger = (
        pl.concat(parts)
        .filter(pl.col("gpu_hours") > ROUNDING_TOLERANCE_GPU_HOURS)
        .with_columns(hour=pl.lit(window.origin) + pl.duration(hours="hour"), gpu_model="board")
        .sort("hour", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(GPU_TIME_BUCKETS)))
    )
    return check_table(ledger, Ledger, source="ledger")


def ledger_assumptions(
    jobs: pl.DataFrame, inventory: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> list[str]:
    """List the assumptions behind a ledger over these tables, as sentences for a report.

    Parameters
    ----------
    jobs, inventory, start, end
        As for :func:`gpu_time_ledger`.

    Returns
    -------
    list of str
        Empty if inventory, GPU models and GPU counts are all known.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 3.0})
    >>> jobs = jobs.with_columns(submit_time=day, start_time=day)
    >>> ledger_assumptions(jobs, start=day, end=day + timedelta(days=1))[0].partition(":")[0]
    'No inventory was given'
    """
    window = LedgerWindow(start, end)
    _, nodes = match_gpu_models(*_ledger_inputs(jobs, inventory, window, LEDGER_INPUT_COLUMNS))
    sentences = []
    if inventory is None:
        sentences.append("No inventory was given: the number of GPUs is inferred from the jobs, and may be too low.")
    elif nodes.filter(pl.col("board").is_null() & pl.col("gpu_model").is_not_null()).height:
        sentences.append(ONE_POOL_ASSUMPTION_TEXT)
    table = cast_columns(jobs, Jobs, [*JOB_TIME_COLUMNS, "eligible_time", "state", "gpus", "node_list"], source="jobs")
    unknown = table.filter(pl.col("gpus").is_null() & pl.col("start_time").is_not_null()).height
    if unknown:
        text = "jobs ran on an unknown number of GPUs: their time counts as unallocated."
        sentences.append(f"{unknown:,} of {table.height:,} {text}")
    endless = table.filter((pl.col("gpus") > 0) & has_unknown_end()).height
    if endless:
        text = "jobs with GPUs have no start or end: their time counts as unallocated."
        sentences.append(f"{endless:,} of {table.height:,} {text}")
    waited = table.filter(pl.col("start_time") > waiting_since()).height
    unplaced = table.filter(pl.col("start_time").is_not_null() & pl.col("node_list").is_null()).height
    if waited and unplaced:
        sentences.append(
            f"{unplaced:,} jobs do not name their nodes: while they run, no GPU counts as fragmented, and "
            "unallocated GPUs that pending jobs request count as idle with eligible jobs pending."
        )
    return sentences


def _ledger_inputs(
    jobs: pl.DataFrame, inventory: pl.DataFrame | None, window: LedgerWindow, columns: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Select the jobs with GPUs in the window, and the inventory: as given, else inferred from them."""
    asking = jobs_with_gpus(cast_columns(jobs, Jobs, columns, source="ledger: jobs"), window)
    if inventory is None:
        return asking, inferred_inventory(asking, start=window.start, end=window.end)
    return asking, conform(inventory, Inventory, source="ledger: inventory")


def _sweep_ledger_pool(
    started: pl.LazyFrame, queued: pl.LazyFrame, nodes: pl.DataFrame, out: pl.DataFrame, window: LedgerWindow
) -> PoolHours:
    """Compute the unallocated GPU-hours of one GPU pool.

    Parameters
    ----------
    started : polars.LazyFrame
        Started jobs of the pool.
    queued : polars.LazyFrame
        Jobs that may wait for the pool.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    out : polars.DataFrame
        GPUs out of service.
    window : LedgerWindow
        Window of the ledger.
    """
    kept = out.filter(_RESERVED_ON_ANY_NODE_EXPR)
    out_spans = window.spans(out.filter(~_RESERVED_ON_ANY_NODE_EXPR), "start_time", "end_time", "gpus")
    allocated = window.spans(started, "start_time", "end_time", "gpus")
    waiting = window.spans(queued, "waiting_since", "left_queue", "gpus")
    return sweep_pool(
        installed_spans=window.spans(nodes, "installed", "retired", "gpus"),
        allocated_spans=allocated.concatenate(out_spans),
        waiting_spans=waiting,
        reservations={
            tenant: Reservation(
                window.spans(kept.filter(tenant=tenant), "start_time", "end_time", "gpus"),
                window.spans(started.filter(tenant=tenant), "start_time", "end_time", "gpus"),
            )
            for tenant in kept["tenant"].unique().sort()
        },
        pieces=node_pool(started, allocated, queued, waiting, nodes, out, window),
        hours=window.hours,
    )


def _bucket_rows(tenant: str, gpu_model: str | None, bucket: str, gpu_hours: np.ndarray) -> pl.DataFrame:
    """Make the ledger rows of one tenant, GPU model and bucket from GPU-hours by hour."""
    hours = pl.DataFrame({"hour": np.arange(len(gpu_hours)), "gpu_hours": gpu_hours})
    names = {"tenant": pl.lit(tenant), "board": pl.lit(gpu_model, pl.String), "bucket": pl.lit(bucket)}
    return hours.with_columns(**names).select("tenant", "board", "hour", "bucket", "gpu_hours")


def _describe_excess(pool: PoolHours, gpu_model: str | None, window: LedgerWindow) -> str:
    """Format the error for more GPUs allocated or out of service than the inventory has: how many, and when first."""
    first_time = window.origin + pool.excess_tick * ONE_MICROSECOND
    return format_message(
        f"ledger: GPUs of {gpu_model if gpu_model is not None else 'all models'} allocated or out of service",
        "never more than the inventory has installed",
        f"up to {pool.excess_gpus:g} GPUs more, first at {first_time:%Y-%m-%d %H:%M:%S} UTC",
        "Complete the inventory (installed, retired, gpus), look for attempts of one job that overlap, or "
        "leave the inventory out to have it inferred from the peak.",
    )


def check_out_of_service(table: pl.DataFrame | None, boards: pl.Series) -> pl.DataFrame:
    """Check a table of GPUs out of service, and add to each row the GPU model of its pool (column ``board``).

    `boards` are the GPU models of all pools; null where all GPUs are one pool.

    Examples
    --------
    >>> check_out_of_service(None, pl.Series(["A100"])).height
    0
    """
    if table is None:
        return pl.DataFrame(schema=_OUT_OF_SERVICE_SCHEMA | {"board": pl.String})
    models = boards.unique().sort()
    needed = [
        name
        for name in _OUT_OF_SERVICE_SCHEMA
        if name not in _OPTIONAL_COLUMN_SCHEMA or (name == "gpu_model" and len(models) > 1)
    ]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        _raise_out_of_service_error(
            "", f"columns {', '.join(map(repr, needed))}", f"none of {examples(missing)}", "Add them."
        )
    _require_values(table, "bucket", list(_OUT_OF_SERVICE_BUCKETS), "Fix the column bucket.")
    complete = add_absent_columns(table, _OPTIONAL_COLUMN_SCHEMA)
    rows = complete.select(*_OUT_OF_SERVICE_SCHEMA).cast(_OUT_OF_SERVICE_SCHEMA)  # type: ignore[arg-type]
    if rows.filter(pl.col("start_time").is_null() | ~(pl.col("gpus") >= 0)).height:
        _raise_out_of_service_error(
            "", "a start_time and a number of gpus in every row", "none or a negative one", "Fill it in."
        )
    rows = rows.with_columns(tenant=pl.col("tenant").fill_null(UNALLOCATED_TENANT_LABEL))
    if len(models) == 1:
        return rows.with_columns(board=pl.lit(models[0], pl.String))
    _require_values(rows, "gpu_model", models.to_list(), "Use the GPU model as written in the inventory.")
    return rows.with_columns(board="gpu_model")


def _require_values(table: pl.DataFrame, column: str, words: list[str], todo: str) -> None:
    """Raise an error if a column of the table of GPUs out of service has values other than the given words."""
    unknown = table.filter(~pl.col(column).cast(pl.String).is_in(words).fill_null(False))
    if unknown.height:
        values = unknown[column].cast(pl.String).fill_null("nothing").unique().sort().to_list()
        got = f"{unknown.height} rows with {examples(values)}"
        _raise_out_of_service_error(f", column {column!r}", f"one of {examples(words)}", got, todo)


def _raise_out_of_service_error(location: str, expected: str, got: str, todo: str) -> None:
    """Raise an error about the table of GPUs out of service; `location` is the row or column, empty for all of it."""
    raise SchemaError(f"ledger: out_of_service{location}", expected, got, todo)


UNUSED_BUCKETS = ("allocated_idle", "unallocated", "fragmented", "idle_pending", "reserved", "reconfiguring", "down")
"""Ledger buckets of GPU-hours that are paid for but did no work. ``no_telemetry`` is not among them, as its use is
unknown.
"""
ALLOCATED_BUCKETS = ("used", "no_telemetry", "allocated_idle")
"""Ledger buckets of GPU-hours that were allocated to jobs."""


def reconcile_ledger(ledger: pl.DataFrame, installed: float, *, tolerance: float = 1e-9) -> dict[str, float | bool]:
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
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> reconcile_ledger(make_empty_table(Ledger), 24.0)["difference_gpu_hours"]
    -24.0
    """
    total = float(conform(ledger, Ledger, source="ledger")["gpu_hours"].sum())
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


def hours_by_bucket(ledger: pl.DataFrame) -> pl.DataFrame:
    """Sum GPU-hours and shares of each bucket, all buckets in their fixed order.

    Returns
    -------
    polars.DataFrame, shape (9, 3)
        ``bucket``, ``gpu_hours`` [GPU h], ``share`` [0-1] (0 for an empty ledger); null for used and idle hours where
        no use of allocated GPUs was measured.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> hours_by_bucket(make_empty_table(Ledger))["bucket"].to_list()[:3]
    ['used', 'no_telemetry', 'allocated_idle']
    """
    table = conform(ledger, Ledger, source="ledger")
    buckets = table.group_by(pl.col("bucket").cast(pl.String), maintain_order=True)
    sums = dict(buckets.agg(pl.col("gpu_hours").sum()).iter_rows())
    hours = [float(sums.get(bucket, 0.0)) for bucket in GPU_TIME_BUCKETS]
    total = sum(hours)
    shares = [part / total if total > 0 else 0.0 for part in hours]
    names = pl.Series(GPU_TIME_BUCKETS, dtype=pl.Enum(GPU_TIME_BUCKETS))
    table = pl.DataFrame({"bucket": names, "gpu_hours": hours, "share": shares})
    if sums.get("used") or sums.get("allocated_idle") or not sums.get("no_telemetry"):
        return table
    measured = pl.col("bucket").cast(pl.String).is_in(["used", "allocated_idle"])
    return table.with_columns(pl.when(~measured).then(pl.col("gpu_hours", "share")))


def hours_by_tenant(ledger: pl.DataFrame) -> pl.DataFrame:
    """Sum the allocated GPU-hours of each tenant: used, allocated but idle, and without telemetry.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``allocated_gpu_hours`` and its parts ``used``, ``no_telemetry``, ``allocated_idle`` [GPU h], and
        ``idle_share`` [0-1] (``allocated_idle`` over the GPU-hours with telemetry); used and idle are null for a tenant
        without telemetry. Most allocated GPU-hours first; unallocated GPU-hours are left out.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> hours_by_tenant(make_empty_table(Ledger)).columns
    ['tenant', 'allocated_gpu_hours', 'used', 'no_telemetry', 'allocated_idle', 'idle_share']
    """
    hours = pl.col("gpu_hours")
    observed = pl.col("used") + pl.col("allocated_idle")
    # Rounded, as the last digits of a sum depend on the number of threads.
    parts = {bucket: hours.filter(pl.col("bucket") == bucket).sum().round(9) for bucket in ALLOCATED_BUCKETS}
    return (
        conform(ledger, Ledger, source="ledger")
        .filter(pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS))
        .group_by("tenant", maintain_order=True)
        .agg(allocated_gpu_hours=hours.sum().round(9), **parts)
        .with_columns(idle_share=pl.when(observed > 0).then(pl.col("allocated_idle") / observed))
        .with_columns(pl.when((observed > 0) | (pl.col("no_telemetry") == 0)).then(pl.col("used", "allocated_idle")))
        .sort("allocated_gpu_hours", "tenant", descending=[True, False])
    )


def unused_share(ledger: pl.DataFrame) -> dict[str, float]:
    """Compute the share of the installed GPU-hours that did no work, by bucket.

    Returns
    -------
    dict
        One share [0-1] for each of :data:`UNUSED_BUCKETS`, and ``unused``, their sum. It is a lower bound where
        GPU-hours have no telemetry.

    Examples
    --------
    >>> from gpuplanner.core.schema_checks import make_empty_table
    >>> unused_share(make_empty_table(Ledger))["unused"]
    0.0
    """
    shares = dict(hours_by_bucket(ledger).select(pl.col("bucket").cast(pl.String), "share").iter_rows())
    parts = {bucket: shares[bucket] or 0.0 for bucket in UNUSED_BUCKETS}
    return parts | {"unused": sum(parts.values())}


POLARS_DURATION_BY_PERIOD = {"day": "1d", "week": "1w", "month": "1mo"}
"""Duration text of polars for each period over which a ledger is summed."""
QUARTERS_PER_HOUR = 4
"""Parts into which hours of a ledger are divided at local midnights: offsets of all time zones are multiples of a
quarter of an hour.
"""


def hours_by_period(
    ledger: pl.DataFrame, *, every: str, tz: str, start: datetime | None = None, end: datetime | None = None
) -> pl.DataFrame:
    """Sum a ledger over local days, weeks (from Monday) or months.

    Days on which clocks change have 23 or 25 hours. Where a zone's offset is not a whole hour, the hours of
    the ledger that straddle a border are divided into quarters of an hour; what the ledger does not cover of its first
    and last hour gets no part.

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
    >>> hours_by_period(rows, every="day", tz="Europe/Berlin").select("period", "gpu_hours").rows()
    [(datetime.date(2026, 3, 29), 23.0)]
    """
    length = POLARS_DURATION_BY_PERIOD[
        resolve_name(every, tuple(POLARS_DURATION_BY_PERIOD), subject="ledger: period", error=SchemaError)
    ]
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError):
        todo = "Give it like 'Europe/Berlin'."
        raise SchemaError("ledger: zone", "a name of the IANA database", repr(tz), todo) from None
    require_time_zone(start, end, source="ledger: periods")
    table = conform(ledger, Ledger, source="ledger")
    parts = _split_hours(table["hour"].unique(), length, tz, start, end)
    if parts["hour"].n_unique() < table["hour"].n_unique():
        got, todo = "rows of other hours", "Give the start and end that the ledger was made with."
        raise SchemaError("ledger: periods", f"hours from {start} to {end}", got, todo)
    return (
        table.join(parts, on="hour")
        .group_by("period", "tenant", "gpu_model", "bucket")
        .agg((pl.col("gpu_hours") * pl.col("part")).sum())
        .sort("period", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(GPU_TIME_BUCKETS)))
    )


def _split_hours(hours: pl.Series, length: str, tz: str, start: datetime | None, end: datetime | None) -> pl.DataFrame:
    """Split hours among the periods that they fall into, with the part of the covered time in each.

    Parameters
    ----------
    hours : polars.Series
        Begins of hours.
    length : str
        Length of a period, for polars.
    tz : str
        IANA zone.
    start, end : datetime, optional
        Time that the ledger covers.
    """
    begin = pl.col("hour") + pl.duration(minutes=pl.col("quarter") * (60 // QUARTERS_PER_HOUR))
    first = pl.max_horizontal(begin, pl.lit(start))
    last = pl.min_horizontal(begin + pl.duration(minutes=60 // QUARTERS_PER_HOUR), pl.lit(end))
    # Truncated on the wall clock: the first instant of a day need not exist in the zone.
    wall = begin.dt.convert_time_zone(tz).dt.replace_time_zone(None)
    day = wall.dt.truncate(length).dt.date()
    return (
        pl.DataFrame({"hour": hours})
        .join(pl.DataFrame({"quarter": range(QUARTERS_PER_HOUR)}), how="cross")
        .select("hour", period=day, part=(last - first).dt.total_microseconds())
        .filter(pl.col("part") > 0)
        .group_by("hour", "period")
        .agg(pl.col("part").sum())
        .with_columns(pl.col("part") / pl.col("part").sum().over("hour"))
        .sort("hour", "period")
    )
