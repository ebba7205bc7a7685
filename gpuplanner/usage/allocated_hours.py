"""Allocated GPU-hours by tenant, activity and job outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import cast_columns, conform
from gpuplanner.core.schemas import MIN_USED_SM_ACTIVITY, Inventory, Jobs, Samples
from gpuplanner.core.step_functions import US_PER_HOUR
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import spread_gpus_over_nodes
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import add_sample_ends
from gpuplanner.ingest.telemetry.telemetry_join import (
    TOGETHER_JOB,
    count_devices_on_nodes,
    count_named_devices,
    device_kind_expr,
    split_shared_samples,
)
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import LedgerWindow, jobs_with_gpus

MIN_PROCESS_MEMORY_GIB = 0.25
"""Device memory from which a GPU counts as having a process [GiB]: a CUDA context alone takes about 0.3 GB [1]_.

References
----------
.. [1] pytorch/pytorch, issues 107667 and 20532; MLSysOps/MIGProfiler, figures of memory by profile.
"""
ALLOCATED_IDLE_STATES = ("idle_with_process", "idle_without_process", "idle_unclear")
"""Activity states that add up to the ledger bucket ``allocated_idle``; ``idle_unclear`` is idle GPU time for which no
GPU memory was measured, so that a process can be neither seen nor ruled out.
"""
ACTIVITY_STATES = ("used", *ALLOCATED_IDLE_STATES, "no_telemetry")
"""States into which allocated GPU-hours are split by measured SM activity: used, idle (three states), no telemetry."""
ACTIVE_GPU_HOURS_COLUMN = "active"
"""Column of active GPU-hours: GPU-hours times mean SM activity [0-1], where activity is known. It is no activity state;
its hours are part of those of the states.
"""
ROUNDING_TOLERANCE_DEVICES = 1e-9
"""Sums of device counts below this are rounding errors and count as 0 [devices]."""
TELEMETRY_JOIN_COLUMNS = ("job_id", "instances", "node_list", "profile_requested")
"""Columns of ``schemas.Jobs`` by which telemetry samples are joined to jobs."""
ALLOCATION_JOB_COLUMNS = (
    "tenant", "submit_time", "start_time", "end_time", "state", "gpus", "sm_activity", "memory_peak_gib",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that the split of allocated GPU-hours reads; with telemetry also ``job_id`` and
``instances``.
"""


def split_allocated_hours(
    jobs: pl.DataFrame | pl.LazyFrame, samples: pl.DataFrame | None, window: LedgerWindow, *, hourly: bool = True
) -> pl.DataFrame:
    """Split the allocated GPU-hours of jobs by tenant, GPU model, hour and the observed activity of their GPUs.

    Where telemetry samples of a job exist, its GPU-hours are used or idle as its devices were. GPUs and times without
    samples take the mean SM activity of the job record; without that, they count as ``no_telemetry``. The state
    ``active`` holds GPU-hours times mean SM activity, where activity is known. Columns of the result: ``tenant``,
    ``board`` (GPU model), ``hour`` (number from the begin of the window; 0 unless `hourly`), ``state`` and
    ``gpu_hours``.
    """
    keys = ["tenant", "board"]
    owners = jobs.lazy().select(keys).unique().sort(keys).with_row_index("owner").collect()
    has_samples = samples is not None and samples.height > 0
    allocated = (
        jobs.lazy()
        .with_row_index("row")
        .select(
            *(["row", "job_id", "instances"] if has_samples else []),
            "gpus",
            *keys,
            begin="start_time",
            until=pl.col("end_time").fill_null(window.end),
            record=_activity_state("sm_activity", "memory_peak_gib"),
            record_activity=pl.col("sm_activity").fill_null(0.0),
        )
        .join(owners.lazy(), on=keys, how="left", nulls_equal=True, maintain_order="left")
        .drop(keys)
        .collect()
    )
    observed = allocated.clear()
    if samples is not None and has_samples:
        observed = _observed_spans(allocated, jobs.lazy().collect(), samples)
    owners = owners.cast({"tenant": pl.String})
    parts = []
    for state in (*ACTIVITY_STATES, ACTIVE_GPU_HOURS_COLUMN):
        # The state in the record for all GPUs, less that for the observed GPUs, plus the observed state of these.
        recorded, replaced = allocated, observed
        if state != ACTIVE_GPU_HOURS_COLUMN:
            recorded, replaced = allocated.filter(record=state), observed.filter(record=state)
        weight = pl.col("record_activity") if state == ACTIVE_GPU_HOURS_COLUMN else pl.lit(1.0)
        recorded = recorded.with_columns(size=pl.col("gpus") * weight)
        gpu_hours = _hours_by_owner(recorded, "size", owners.height, window, hourly)
        if observed.height:
            replaced = replaced.with_columns(size=pl.col("gpus_seen") * weight)
            gpu_hours -= _hours_by_owner(replaced, "size", owners.height, window, hourly)
        if state in observed.columns:
            gpu_hours += _hours_by_owner(observed, state, owners.height, window, hourly)
        owner, hour = np.nonzero(gpu_hours > 0)
        named = owners.select(keys)[owner].with_columns(hour=pl.Series(hour), state=pl.lit(state))
        parts.append(named.with_columns(gpu_hours=pl.Series(gpu_hours[owner, hour])))
    return pl.concat(parts)


def allocated_and_active(
    jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Tabulate allocated GPU-hours of each tenant by activity state, and its active GPU-hours.

    The states are used, idle with and without a process, and no telemetry. GPUs that are allocated without any process
    are certainly idle: no program would notice their loss.

    Parameters
    ----------
    jobs, samples, start, end
        As for :func:`gpuplanner.usage.gpu_hour_ledger.gpu_time_ledger`.

    Returns
    -------
    polars.DataFrame
        ``tenant``, the GPU-hours of each of :data:`ACTIVITY_STATES` and :data:`ACTIVE_GPU_HOURS_COLUMN`, sorted by
        tenant. ``used``, the sum of the idle columns, and ``no_telemetry`` equal the buckets of the ledger.

    Raises
    ------
    SchemaError
        If a table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 2.0,
    ...     "submit_time": nine, "start_time": nine, "sm_activity": 0.0, "memory_peak_gib": 0.0})
    >>> allocated_and_active(jobs, start=nine, end=nine + timedelta(hours=3))["idle_without_process"].to_list()
    [6.0]
    """
    window = LedgerWindow(start, end)
    ids = [] if samples is None else [*TELEMETRY_JOIN_COLUMNS]
    table = cast_columns(jobs, Jobs, [*ids, *ALLOCATION_JOB_COLUMNS], source="jobs")
    attempts = jobs_with_gpus(table, window).lazy().with_columns(board=pl.lit(None, pl.String))
    started = attempts.filter(pl.col("start_time").is_not_null())
    gpu_hours = split_allocated_hours(started, samples, window, hourly=False)
    hours = pl.col("gpu_hours")
    sums = {
        state: hours.filter(pl.col("state") == state).sum() for state in (*ACTIVITY_STATES, ACTIVE_GPU_HOURS_COLUMN)
    }
    return gpu_hours.group_by("tenant", maintain_order=True).agg(**sums).sort("tenant")


def _activity_state(activity: str, memory_gib: str) -> pl.Expr:
    """Build the expression of the activity state, from mean SM activity [0-1] and peak memory [GiB]."""
    named = {name: pl.lit(name, pl.Enum(ACTIVITY_STATES)) for name in ACTIVITY_STATES}
    return (
        pl.when(pl.col(activity).is_null())
        .then(named["no_telemetry"])
        .when(pl.col(activity) >= MIN_USED_SM_ACTIVITY)
        .then(named["used"])
        .when(pl.col(memory_gib) >= MIN_PROCESS_MEMORY_GIB)
        .then(named["idle_with_process"])
        .when(pl.col(memory_gib).is_not_null())
        .then(named["idle_without_process"])
        .otherwise(named["idle_unclear"])
    )


SUMMED_DEVICE_COLUMNS = ("devices", *ACTIVITY_STATES[:-1], ACTIVE_GPU_HOURS_COLUMN)
"""Columns of time spans that are summed over devices: devices, devices in each activity state, and SM activity
[0-1]."""


def _observed_spans(allocated: pl.DataFrame, jobs: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Tabulate the time spans of jobs with samples: the observed GPUs of the job, by activity state."""
    table = add_sample_ends(conform(samples, Samples, source="samples").filter(pl.col("sm_activity").is_not_null()))
    spans = [_device_spans(split_shared_samples(table.drop_nulls("job_id")), "job_id", "node", "gpu", "instance")]
    # Devices that several may have held; of a cut GPU only its instances.
    with_kind = table.with_columns(kind=device_kind_expr()).drop_nulls("kind")
    shared = with_kind.filter(pl.col("job_evidence") == TOGETHER_JOB)
    if shared.height:
        devices = _device_spans(shared.with_columns(part=1.0), "node", "gpu", "instance", "kind")
        spans.append(divide_device_activity_among_jobs(jobs, devices, count_named_devices(with_kind.lazy())))
    observed = sum_device_spans(
        pl.concat([part.select("job_id", "begin", "end", *SUMMED_DEVICE_COLUMNS) for part in spans]), ["job_id"]
    )
    of_gpus = pl.min_horizontal("gpus", "devices")
    of_instances = pl.col("gpus") * (pl.col("devices") / pl.col("instances")).clip(upper_bound=1.0)
    return (
        allocated.join(observed.rename({"begin": "first"}), on="job_id")
        .with_columns(
            begin=pl.max_horizontal("begin", "first"),
            until=pl.min_horizontal("until", "end"),
            gpus_seen=pl.when(pl.col("instances").is_not_null()).then(of_instances).otherwise(of_gpus),
        )
        .filter(pl.col("begin") < pl.col("until"))
        .with_columns(pl.col(name) / pl.col("devices") * pl.col("gpus_seen") for name in SUMMED_DEVICE_COLUMNS[1:])
        .sort("row", "begin")  # floats are added in a fixed order
    )


def _device_spans(samples: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Tabulate time spans of sampled devices, identified by the columns `keys`, with their activity state.

    The state follows from the mean SM activity of a minute, so that a job that works in bursts is not idle between
    them.
    """
    minute = [*keys, pl.col("time").dt.truncate("1m")]
    active, state = pl.col("part") * pl.col("sm_activity"), _activity_state("sm_activity", "memory_used_gib")
    spans = (
        samples.filter(pl.col("time") < pl.col("until"))
        .with_columns(pl.col("sm_activity").mean().over(minute), pl.col("memory_used_gib").max().over(minute))
        .select(*keys, begin="time", end="until", devices="part", active=active, state=state)
    )
    devices_by_state = {
        name: pl.when(pl.col("state") == name).then("devices").otherwise(0.0) for name in ACTIVITY_STATES[:-1]
    }
    return spans.with_columns(**devices_by_state)


def sum_device_spans(spans: pl.DataFrame, by: Sequence[str], borders: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sum device counts by activity state over the overlapping time spans of each group, from each change to the next.

    Parameters
    ----------
    spans : polars.DataFrame
        ``begin``, ``end``, :data:`SUMMED_DEVICE_COLUMNS` and the columns `by`.
    by : sequence of str
        Columns of a group.
    borders : polars.DataFrame, optional
        Instants ``at`` of groups at which a span of the result ends and the next begins, even if the sum stays the
        same.

    Returns
    -------
    polars.DataFrame
        The columns of `spans`, one row a span with constant sums; times without any observed device are left out.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon, hour = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(hours=1)
    >>> spans = pl.DataFrame({"job_id": "a", "begin": [noon, noon + hour], "end": [noon + 2 * hour, noon + 3 * hour]})
    >>> spans = spans.with_columns(pl.lit(1.0).alias(name) for name in SUMMED_DEVICE_COLUMNS)
    >>> sum_device_spans(spans, ["job_id"]).select(pl.col("begin", "end").dt.hour(), "devices").rows()
    [(12, 13, 1.0), (13, 14, 2.0), (14, 15, 1.0)]
    """
    groups = spans.select(by).unique(maintain_order=True).with_row_index("group")
    numbered = spans.join(groups, on=by, nulls_equal=True, maintain_order="left")
    changes_of_all = [
        numbered.select("group", pl.col(SUMMED_DEVICE_COLUMNS), at="begin", cut=pl.lit(value=False)),
        numbered.select("group", -pl.col(SUMMED_DEVICE_COLUMNS), at="end", cut=pl.lit(value=False)),
    ]
    if borders is not None:
        nothing = [pl.lit(0.0).alias(name) for name in SUMMED_DEVICE_COLUMNS]
        changes_of_all.append(borders.join(groups, on=by).select("group", *nothing, at="at", cut=pl.lit(value=True)))
    is_change = pl.any_horizontal(pl.col(SUMMED_DEVICE_COLUMNS).abs() > ROUNDING_TOLERANCE_DEVICES)
    following = pl.col("at").shift(-1).over("group")
    return (
        pl.concat(changes_of_all)
        .sort("group", "at")
        .group_by("group", "at", maintain_order=True)
        .agg(pl.col("cut").any(), pl.col(SUMMED_DEVICE_COLUMNS).sum())
        .filter(pl.col("cut") | is_change)
        .select("group", pl.col(SUMMED_DEVICE_COLUMNS).cum_sum().over("group"), begin="at", end=following)
        .filter(pl.col("end").is_not_null(), pl.col("devices") > ROUNDING_TOLERANCE_DEVICES)
        .join(groups, on="group", maintain_order="left")
        .drop("group")
    )


def _hours_by_owner(table: pl.DataFrame, weight: str, owners: int, window: LedgerWindow, hourly: bool) -> np.ndarray:
    """Sum GPU-hours by owner (a pair of tenant and GPU model) and hour, shape (n_owners, n_hours).

    Parameters
    ----------
    table : polars.DataFrame
        ``begin``, ``until``, ``owner`` and the column `weight`.
    weight : str
        Column with the GPUs of each span.
    owners : int
        Number of owners.
    window : LedgerWindow
        Window of the ledger.
    hourly : bool
        Whether hours are told apart; else the shape is (n_owners, 1).
    """
    spans = window.spans(table, "begin", "until", weight)
    if not hourly:
        hours = spans.gpus * ((spans.end - spans.begin) / US_PER_HOUR)
        return np.bincount(table["owner"].to_numpy(), hours, owners).astype(np.float64)[:, None]
    return spans.by_hour(window.hours, table["owner"].to_numpy(), owners)


STATES_BUSIEST_FIRST = ("used", "idle_with_process", "idle_unclear", "idle_without_process")
"""Activity states in the order in which devices of a node are assumed to be allocated: active ones, then idle ones with
a process.
"""


def divide_device_activity_among_jobs(
    jobs: pl.DataFrame, devices: pl.DataFrame, named: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Divide the observed activity of the devices of a node among the jobs that were allocated GPUs there.

    Telemetry does not name the job of a device. Jobs that are together allocated h of the D sampled devices of a node
    are assumed to have the h busiest, as an unallocated device shows no activity. The activity of these is divided in
    proportion to the GPUs of each job, so tenants of one node differ only by how much they were allocated.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    devices : polars.DataFrame
        ``node``, ``kind`` (MIG profile of the device; empty for a full GPU), ``begin``, ``end`` and
        :data:`SUMMED_DEVICE_COLUMNS`: one row for each device and time span.
    named : polars.DataFrame, optional
        Other devices, on which telemetry names the job: result of
        :func:`~gpuplanner.ingest.telemetry.telemetry_join.count_named_devices`.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``begin``, ``end`` and :data:`SUMMED_DEVICE_COLUMNS`.

    Examples
    --------
    Of four GPUs three are allocated, and two are active: the job with two of the three gets two thirds of the activity.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "start_time": noon, "end_time": noon + timedelta(hours=1),
    ...     "gpus": [2.0, 1.0], "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"instances": pl.Int32, "profile_requested": pl.String})
    >>> seen = pl.DataFrame({"node": "n1", "kind": "", "begin": [noon] * 4, "end": noon + timedelta(minutes=1),
    ...     "devices": 1.0, "used": [1.0, 1.0, 0.0, 0.0], "idle_without_process": [0.0, 0.0, 1.0, 1.0],
    ...     "idle_with_process": 0.0, "idle_unclear": 0.0, "active": [0.9, 0.6, 0.0, 0.0]})
    >>> together = divide_device_activity_among_jobs(jobs, seen).sort("job_id")
    >>> together.select("job_id", "devices", pl.col("used", "active").round(3)).rows()
    [('a', 2.0, 1.333, 1.0), ('b', 1.0, 0.667, 0.5)]
    """
    key = ["node", "kind"]
    members = count_devices_on_nodes(jobs, devices.select(key).unique(), named)
    # Activity of a full GPU is no evidence of a job on one of its MIG instances.
    members = members.with_columns(job_id=pl.when(~pl.col("on_instances")).then("job_id"))
    changes = members.select(*key, "at").unique().sort("at")
    levels_of_jobs = (
        sum_device_spans(devices, key, changes)
        .sort("begin")
        .join_asof(changes, left_on="begin", right_on="at", by=key, check_sortedness=False)
        .join(members.drop_nulls("job_id"), on=[*key, "at"])
        .with_columns(
            held=pl.min_horizontal(pl.col("count").sum().over(*key, "begin"), "devices"),
            part=pl.col("count") / pl.col("count").sum().over(*key, "begin"),
        )
    )
    left, shares = pl.col("held"), {}
    for state in STATES_BUSIEST_FIRST:
        shares[state] = pl.min_horizontal(state, left)
        left = left - shares[state]
    return levels_of_jobs.select(
        pl.col("job_id", "begin", "end"),
        devices=pl.col("held") * pl.col("part"),
        **{state: share * pl.col("part") for state, share in shares.items()},
        active=pl.min_horizontal("active", "held") * pl.col("part"),
    ).sort("job_id", "begin")


FAILED_JOB_STATES = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "CANCELLED")
"""Final job states whose GPU-hours may have to be repeated; how much of them checkpoints saved is not known."""
_NODE_HOURS_JOB_COLUMNS = ("submit_time", "start_time", "end_time", "state", "gpus", "node_list")
"""Columns of ``schemas.Jobs`` that :func:`gpu_hours_by_node` reads."""


def allocated_by_state(jobs: pl.DataFrame | LazyJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """Sum allocated GPU-hours of job attempts by tenant and final state, and mark states whose work may be repeated.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``state``, ``attempts``, ``gpu_hours`` and ``lost`` (the state is one of
        :data:`FAILED_JOB_STATES`); most GPU-hours first.

    Raises
    ------
    SchemaError
        If the table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "attempt": 1, "tenant": "a", "gpus": 8.0,
    ...     "state": ["FAILED", "COMPLETED"], "submit_time": nine, "start_time": nine,
    ...     "end_time": [nine + timedelta(minutes=30), nine + timedelta(hours=2)]})
    >>> day = {"start": nine, "end": nine + timedelta(hours=24)}
    >>> allocated_by_state(jobs, **day).select("state", "gpu_hours", "lost").rows()
    [('COMPLETED', 16.0, False), ('FAILED', 4.0, True)]
    """
    window = LedgerWindow(start, end)
    # In order: else threads add up parts of a group as they come, and the last digit is now this, now that.
    sums = {"attempts": pl.len().cast(pl.Int64), "gpu_hours": (pl.col("gpus") * pl.col("hours")).sum()}
    sums_of_parts = [
        part.group_by("tenant", "state", maintain_order=True).agg(**sums)
        for part in _allocations_in_window(jobs, window)
    ]
    return (
        pl.concat(sums_of_parts)
        .group_by("tenant", "state", maintain_order=True)
        .agg(pl.all().sum())
        .with_columns(pl.col("tenant", "state").cast(pl.String))
        .with_columns(lost=pl.col("state").is_in(FAILED_JOB_STATES))
        .sort("gpu_hours", "tenant", "state", descending=[True, False, False])
    )


def requested_allocated_active(jobs: pl.DataFrame | LazyJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """Sum GPU-hours by time limit, allocated and active GPU-hours by tenant.

    Those by time limit are GPUs times the run-time limit of the attempts that started in the window. Allocated
    GPU-hours are GPUs times run time in the window. Active GPU-hours are these times mean SM activity: fewer than the
    ledger bucket ``used``, which counts a GPU with any activity in full. A sum is null where no attempt of the tenant
    states it; each share states which part of the allocation the sum covers.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``time_limit_gpu_hours``, ``allocated_gpu_hours``, ``sm_active_gpu_hours``,
        ``with_time_limit_share`` and ``with_activity_share`` (of the allocated GPU-hours, those with a limit and those
        with a measured activity), sorted by tenant.

    Raises
    ------
    SchemaError
        If the table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "gpus": 8.0, "state": "COMPLETED",
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=2),
    ...     "time_limit_s": 86400.0, "sm_activity": 0.25})
    >>> requested_allocated_active(jobs, start=nine, end=nine + timedelta(hours=24)).rows()
    [('a', 192.0, 16.0, 4.0, 1.0, 1.0)]
    """
    window = LedgerWindow(start, end)
    allocated = pl.col("gpus") * pl.col("hours")
    is_counted_request = (pl.col("start_time") >= window.start) & pl.col("time_limit_s").is_not_null()
    limited, observed = pl.col("time_limit_s").is_not_null(), pl.col("sm_activity").is_not_null()

    def total(value: pl.Expr, is_measured: pl.Expr) -> pl.Expr:
        return pl.when(is_measured.any()).then(value.filter(is_measured).sum())

    sums_of_parts = [
        part.group_by("tenant", maintain_order=True).agg(
            time_limit_gpu_hours=total(pl.col("gpus") * pl.col("time_limit_s") / 3600, is_counted_request),
            allocated_gpu_hours=allocated.sum(),
            sm_active_gpu_hours=total(allocated * pl.col("sm_activity"), observed),
            with_time_limit_share=allocated.filter(limited).sum(),
            with_activity_share=allocated.filter(observed).sum(),
        )
        for part in _allocations_in_window(jobs, window, "time_limit_s", "sm_activity")
    ]
    return (
        pl.concat(sums_of_parts)
        .group_by("tenant", maintain_order=True)
        .agg(total(pl.all(), pl.all().is_not_null()))
        .with_columns(pl.col("with_time_limit_share", "with_activity_share") / pl.col("allocated_gpu_hours"))
        .with_columns(pl.col("tenant").cast(pl.String))
        .sort("tenant")
    )


def _allocations_in_window(
    jobs: pl.DataFrame | LazyJobs, window: LedgerWindow, *extra_columns: str
) -> Iterator[pl.DataFrame]:
    """Yield, in chunks, the job attempts that were allocated GPUs in the window, with their hours in it."""
    names = ["tenant", "state", "gpus", "submit_time", "start_time", "end_time", *extra_columns]
    hours = window.overlap_h("start_time", "end_time")
    for part in LazyJobs.from_table(jobs).iterate_chunks(names):
        table = jobs_with_gpus(cast_columns(part, Jobs, names, source="jobs").lazy(), window)
        started = table.filter(pl.col("start_time").is_not_null())
        allocations = started.select("tenant", "state", "gpus", "start_time", *extra_columns, hours=hours)
        yield allocations.filter(pl.col("hours") > 0).collect()


def gpu_hours_by_node(jobs: pl.DataFrame, inventory: pl.DataFrame, *, start: datetime, end: datetime) -> pl.DataFrame:
    """Sum installed and allocated GPU-hours by node and hour.

    Jobs on several nodes are assumed to be allocated equally many GPUs on each. Jobs whose node is not known, or not in
    the inventory, are summed under a null node, where nothing is installed.

    Parameters
    ----------
    jobs, inventory : polars.DataFrame
        Tables ``schemas.Jobs`` and ``schemas.Inventory``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``node``, ``hour`` (UTC), ``installed_gpu_hours``, ``allocated_gpu_hours``, sorted by node and hour; nodes
        and hours without either are left out. ``allocated_gpu_hours`` sums to the GPU-hours allocated to all jobs.

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
    window = LedgerWindow(start, end)
    nodes = conform(inventory, Inventory, source="inventory")
    started = cast_columns(jobs, Jobs, _NODE_HOURS_JOB_COLUMNS, source="jobs").drop_nulls("start_time")
    table = jobs_with_gpus(started.with_columns(pl.col("node_list").cast(pl.String)), window)
    inventory_node = pl.when(pl.col("node").is_in(nodes["node"].to_list())).then("node")
    allocated = spread_gpus_over_nodes(table).with_columns(node=inventory_node)
    names = pl.concat([nodes["node"], allocated["node"]]).unique().sort(nulls_last=True)
    number = {name: position for position, name in enumerate(names)}

    def by_hour(rows: pl.DataFrame, begin: str, until: str) -> np.ndarray:
        row = np.array([number[name] for name in rows["node"]], dtype=np.int64)
        return window.spans(rows, begin, until, "gpus").by_hour(window.hours, row, len(names))

    installed, used = by_hour(nodes, "installed", "retired"), by_hour(allocated, "start_time", "end_time")
    row, hour = np.nonzero((installed > 0) | (used > 0))
    hours = {"installed_gpu_hours": installed[row, hour], "allocated_gpu_hours": used[row, hour]}
    table = pl.DataFrame({"node": names[row], "hour": hour, **hours})
    return table.with_columns(hour=pl.lit(window.origin) + pl.duration(hours="hour"))


def summarize_by_node(hours: pl.DataFrame) -> pl.DataFrame:
    """Summarize allocation by node, the least allocated node first.

    Parameters
    ----------
    hours : polars.DataFrame
        From :func:`gpu_hours_by_node`.

    Returns
    -------
    polars.DataFrame
        ``node`` (null last: GPUs allocated on an unknown node), ``installed_gpu_hours``, ``allocated_gpu_hours``,
        ``allocated_share`` of the installed GPU-hours [0-1] and ``fullest_hour``, the largest such share of an hour;
        null where nothing is installed. ``allocated_gpu_hours`` sums to the GPU-hours allocated to all jobs.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 4.0,
    ...     "submit_time": nine, "start_time": nine + timedelta(hours=1), "node_list": "n1"})
    >>> nodes = pl.DataFrame({"node": ["n1", "n2"], "gpus": [4, 4]})
    >>> summarize_by_node(gpu_hours_by_node(jobs, nodes, start=nine, end=nine + timedelta(hours=2))).rows()
    [('n2', 8.0, 0.0, 0.0, 0.0), ('n1', 8.0, 4.0, 0.5, 1.0)]
    """
    allocated, installed = pl.col("allocated_gpu_hours"), pl.col("installed_gpu_hours")
    return (
        hours.with_columns(fullest_hour=pl.when(installed > 0).then(allocated / installed))
        .group_by("node")
        .agg(installed.sum(), allocated.sum(), pl.col("fullest_hour").max())
        .with_columns(allocated_share=pl.when(installed > 0).then(allocated / installed))
        .select("node", "installed_gpu_hours", "allocated_gpu_hours", "allocated_share", "fullest_hour")
        .sort("allocated_share", "node", nulls_last=True)
    )
