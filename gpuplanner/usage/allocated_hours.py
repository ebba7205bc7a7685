"""Allocated GPU-hours by tenant, activity and job outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import conform, some_columns
from gpuplanner.core.schemas import USED_FROM, Inventory, Jobs, Samples
from gpuplanner.ingest.gpu_model_resolution import on_nodes
from gpuplanner.ingest.large_tables import LongJobs
from gpuplanner.ingest.telemetry.sample_buffer import with_until
from gpuplanner.ingest.telemetry.telemetry_join import TOGETHER, each_holder, kind_of_device, members_on
from gpuplanner.usage.occupancy import Window, gpu_jobs

PROCESS_FROM_GIB = 0.25
"""Device memory from which a process is taken to be there: a CUDA context alone takes about 0.3 GB [1]_.

References
----------
.. [1] pytorch/pytorch, issues 107667 and 20532; MLSysOps/MIGProfiler, figures of memory by profile.
"""
IDLE = ("idle_with_process", "idle_without_process", "idle_unclear")
"""Parts of ``allocated_idle``; unclear where memory was not measured."""
STATES = ("used", *IDLE, "no_telemetry")
ACTIVE = "active"
"""GPU-hours times mean activity, of the time of which it is known; no state of its own."""
ROUNDING = 1e-9
"""Sums of devices below this are rounding."""
BY_ID = ("job_id", "instances", "node_list", "profile_requested")
"""Columns of ``schemas.Jobs`` by which samples find their jobs."""
COLUMNS = (
    "tenant", "submit_time", "start_time", "end_time", "state", "gpus", "sm_activity", "memory_peak_gib",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that are looked at, beside ``job_id`` and ``instances`` where there are samples."""


def held_hours(jobs: pl.DataFrame | pl.LazyFrame, samples: pl.DataFrame | None, window: Window) -> pl.DataFrame:
    """Part the GPU-time that jobs held by what was seen of it.

    While samples of a job hold, its time is used or held idle as its devices were; the part of its GPUs without a
    sample, and the time for which none holds, is as the mean activity of the job's record says; if there is none,
    the time is unobserved. ``active`` is the part of the time seen that SMs were at work: GPU-hours times activity.
    """
    keys = ["tenant", "board"]
    owners = jobs.lazy().select(keys).unique().sort(keys).with_row_index("owner").collect()
    seen_by_id = samples is not None and samples.height > 0
    held = (
        jobs.lazy()
        .with_row_index("row")
        .select(
            *(["row", "job_id", "instances"] if seen_by_id else []),
            "gpus",
            *keys,
            begin="start_time",
            until=pl.col("end_time").fill_null(window.end),
            record=_state("sm_activity", "memory_peak_gib"),
            record_activity=pl.col("sm_activity").fill_null(0.0),
        )
        .join(owners.lazy(), on=keys, how="left", nulls_equal=True, maintain_order="left")
        .drop(keys)
        .collect()
    )
    seen = held.clear()
    if samples is not None and seen_by_id:
        seen = _seen_spans(held, jobs.lazy().collect(), samples)
    owners = owners.cast({"tenant": pl.String})
    parts = []
    for state in (*STATES, ACTIVE):
        # What the record says of all GPUs, less what it says of those seen, and what was seen of these.
        stated, told = (one if state == ACTIVE else one.filter(record=state) for one in (held, seen))
        weight = pl.col("record_activity") if state == ACTIVE else pl.lit(1.0)
        gpu_hours = _sums(stated.with_columns(size=pl.col("gpus") * weight), "size", owners.height, window)
        if seen.height:
            gone = told.with_columns(size=pl.col("gpus_seen") * weight)
            gpu_hours -= _sums(gone, "size", owners.height, window)
        if state in seen.columns:
            gpu_hours += _sums(seen, state, owners.height, window)
        owner, hour = np.nonzero(gpu_hours > 0)
        named = owners.select(keys)[owner].with_columns(hour=pl.Series(hour), state=pl.lit(state))
        parts.append(named.with_columns(gpu_hours=pl.Series(gpu_hours[owner, hour])))
    return pl.concat(parts)


def held_by_activity(
    jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """What each tenant held, and how much of the idle part had a process on it, see :func:`held_and_active`."""
    return held_and_active(jobs, samples, start=start, end=end).drop(ACTIVE)


def held_and_active(
    jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """What each tenant held, how much of the idle part had a process on it, and how active it was.

    GPUs held without any process are the plainest waste: nobody would notice if they were given to others.

    Parameters
    ----------
    jobs, samples, start, end
        As for :func:`gpuplanner.usage.gpu_hour_ledger.gpu_time_ledger`.

    Returns
    -------
    polars.DataFrame
        ``tenant``, the GPU-hours of each of :data:`STATES` and :data:`ACTIVE`, sorted by tenant. ``used``, the sum of
        the idle columns and ``unobserved`` equal the buckets of the ledger.

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
    >>> held_and_active(jobs, start=nine, end=nine + timedelta(hours=3))["idle_without_process"].to_list()
    [6.0]
    """
    window = Window(start, end)
    ids = [] if samples is None else [*BY_ID]
    table = some_columns(jobs, Jobs, [*ids, *COLUMNS], where="jobs")
    asking = gpu_jobs(table, window).lazy().with_columns(board=pl.lit(None, pl.String))
    found = held_hours(asking.filter(pl.col("start_time").is_not_null()), samples, window)
    hours = pl.col("gpu_hours")
    sums = {state: hours.filter(pl.col("state") == state).sum() for state in (*STATES, ACTIVE)}
    return found.group_by("tenant").agg(**sums).sort("tenant")


def _state(activity: str, memory_gib: str) -> pl.Expr:
    """State by mean activity and most memory."""
    named = {name: pl.lit(name, pl.Enum(STATES)) for name in STATES}
    return (
        pl.when(pl.col(activity).is_null())
        .then(named["no_telemetry"])
        .when(pl.col(activity) >= USED_FROM)
        .then(named["used"])
        .when(pl.col(memory_gib) >= PROCESS_FROM_GIB)
        .then(named["idle_with_process"])
        .when(pl.col(memory_gib).is_not_null())
        .then(named["idle_without_process"])
        .otherwise(named["idle_unclear"])
    )


MEASURES = ("devices", *STATES[:-1], ACTIVE)
"""What is added up over devices: how many there are, in which state, and their activity."""


def _seen_spans(held: pl.DataFrame, jobs: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Spans of jobs for which samples hold: how many of the job's GPUs were seen, and in which state."""
    table = with_until(conform(samples, Samples, where="samples").filter(pl.col("sm_activity").is_not_null()))
    spans = [_device_spans(each_holder(table.drop_nulls("job_id")), "job_id", "node", "gpu", "instance")]
    # Devices that several may have held; of a cut GPU only its instances.
    shared = table.with_columns(kind=kind_of_device()).drop_nulls("kind")
    shared = shared.filter(pl.col("job_evidence") == TOGETHER)
    if shared.height:
        devices = _device_spans(shared.with_columns(part=1.0), "node", "gpu", "instance", "kind")
        spans.append(seen_together(jobs, devices))
    seen = levels(pl.concat([each.select("job_id", "begin", "end", *MEASURES) for each in spans]), ["job_id"])
    of_gpus = pl.min_horizontal("gpus", "devices")
    of_instances = pl.col("gpus") * (pl.col("devices") / pl.col("instances")).clip(upper_bound=1.0)
    return (
        held.join(seen.rename({"begin": "first"}), on="job_id")
        .with_columns(
            begin=pl.max_horizontal("begin", "first"),
            until=pl.min_horizontal("until", "end"),
            gpus_seen=pl.when(pl.col("instances").is_not_null()).then(of_instances).otherwise(of_gpus),
        )
        .filter(pl.col("begin") < pl.col("until"))
        .with_columns(pl.col(name) / pl.col("devices") * pl.col("gpus_seen") for name in MEASURES[1:])
        .sort("row", "begin")  # floats are added in a fixed order
    )


def _device_spans(samples: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Spans for which samples of devices hold; those of one minute are in one state, that of their mean activity.

    A job that works in bursts does not rest between them.
    """
    minute = [*keys, pl.col("time").dt.truncate("1m")]
    active, state = pl.col("part") * pl.col("sm_activity"), _state("sm_activity", "memory_used_gib")
    spans = (
        samples.filter(pl.col("time") < pl.col("until"))
        .with_columns(pl.col("sm_activity").mean().over(minute), pl.col("memory_used_gib").max().over(minute))
        .select(*keys, begin="time", end="until", devices="part", active=active, state=state)
    )
    seen = {name: pl.when(pl.col("state") == name).then("devices").otherwise(0.0) for name in STATES[:-1]}
    return spans.with_columns(**seen)


def levels(spans: pl.DataFrame, by: Sequence[str], cuts: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sum of :data:`MEASURES` over the spans of each group, from each instant at which it changes to the next.

    Parameters
    ----------
    spans : polars.DataFrame
        ``begin``, ``end``, :data:`MEASURES` and the columns `by`.
    by : sequence of str
        Columns of a group.
    cuts : polars.DataFrame, optional
        Instants ``at`` of groups at which the sum is cut in two, whether it changes or not.

    Returns
    -------
    polars.DataFrame
        The columns of `spans`; instants of which no device was seen are left out.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> noon, hour = datetime(2026, 1, 1, 12, tzinfo=UTC), timedelta(hours=1)
    >>> spans = pl.DataFrame({"job_id": "a", "begin": [noon, noon + hour], "end": [noon + 2 * hour, noon + 3 * hour]})
    >>> spans = spans.with_columns(pl.lit(1.0).alias(name) for name in MEASURES)
    >>> levels(spans, ["job_id"]).select(pl.col("begin", "end").dt.hour(), "devices").rows()
    [(12, 13, 1.0), (13, 14, 2.0), (14, 15, 1.0)]
    """
    groups = spans.select(by).unique(maintain_order=True).with_row_index("group")
    numbered = spans.join(groups, on=by, nulls_equal=True, maintain_order="left")
    each = [
        numbered.select("group", pl.col(MEASURES), at="begin", cut=pl.lit(value=False)),
        numbered.select("group", -pl.col(MEASURES), at="end", cut=pl.lit(value=False)),
    ]
    if cuts is not None:
        nothing = [pl.lit(0.0).alias(name) for name in MEASURES]
        each.append(cuts.join(groups, on=by).select("group", *nothing, at="at", cut=pl.lit(value=True)))
    changes = pl.any_horizontal(pl.col(MEASURES).abs() > ROUNDING)
    following = pl.col("at").shift(-1).over("group")
    return (
        pl.concat(each)
        .sort("group", "at")
        .group_by("group", "at", maintain_order=True)
        .agg(pl.col("cut").any(), pl.col(MEASURES).sum())
        .filter(pl.col("cut") | changes)
        .select("group", pl.col(MEASURES).cum_sum().over("group"), begin="at", end=following)
        .filter(pl.col("end").is_not_null(), pl.col("devices") > ROUNDING)
        .join(groups, on="group", maintain_order="left")
        .drop("group")
    )


def _sums(table: pl.DataFrame, weight: str, owners: int, window: Window) -> np.ndarray:
    """GPU-hours by owner and hour."""
    spans = window.spans(table, "begin", "until", weight)
    return spans.by_hour(window.hours, table["owner"].to_numpy(), owners)


BUSIEST_FIRST = ("used", "idle_with_process", "idle_unclear", "idle_without_process")
"""A device that works is held by somebody, and one with a process on it too; one without may be nobody's."""


def seen_together(jobs: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Share out what was seen of devices among the jobs that held some of them.

    Jobs that together hold h of the D devices seen on a node are taken to hold the h busiest: a free device does
    nothing. What these did is given to the jobs in proportion to what each holds, so the tenants of a node can be
    told apart only by how much they held.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    devices : polars.DataFrame
        ``node``, ``kind``, ``begin``, ``end`` and :data:`MEASURES`: a row a device and span.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``begin``, ``end`` and :data:`MEASURES`.

    Examples
    --------
    Of four GPUs three are held, and two work: the job that holds two of the three has two thirds of that.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "start_time": noon, "end_time": noon + timedelta(hours=1),
    ...     "gpus": [2.0, 1.0], "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"instances": pl.Int32, "profile_requested": pl.String})
    >>> seen = pl.DataFrame({"node": "n1", "kind": "", "begin": [noon] * 4, "end": noon + timedelta(minutes=1),
    ...     "devices": 1.0, "used": [1.0, 1.0, 0.0, 0.0], "idle_without_process": [0.0, 0.0, 1.0, 1.0],
    ...     "idle_with_process": 0.0, "idle_unclear": 0.0, "active": [0.9, 0.6, 0.0, 0.0]})
    >>> together = seen_together(jobs, seen).sort("job_id")
    >>> together.select("job_id", "devices", pl.col("used", "active").round(3)).rows()
    [('a', 2.0, 1.333, 1.0), ('b', 1.0, 0.667, 0.5)]
    """
    key = ["node", "kind"]
    members = members_on(jobs, devices.select(key).unique())
    changes = members.select(*key, "at").unique().sort("at")
    placed = (
        levels(devices, key, changes)
        .sort("begin")
        .join_asof(changes, left_on="begin", right_on="at", by=key, check_sortedness=False)
        .join(members.drop_nulls("job_id"), on=[*key, "at"])
        .with_columns(
            held=pl.min_horizontal(pl.col("count").sum().over(*key, "begin"), "devices"),
            part=pl.col("count") / pl.col("count").sum().over(*key, "begin"),
        )
    )
    left, shares = pl.col("held"), {}
    for state in BUSIEST_FIRST:
        shares[state] = pl.min_horizontal(state, left)
        left = left - shares[state]
    return placed.select(
        pl.col("job_id", "begin", "end"),
        devices=pl.col("held") * pl.col("part"),
        **{state: share * pl.col("part") for state, share in shares.items()},
        active=pl.min_horizontal("active", "held") * pl.col("part"),
    ).sort("job_id", "begin")


LOST_STATES = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "CANCELLED")
"""States whose GPU-time may have to be spent again. How much of it was saved by checkpoints is not known."""
_OF_NODES = ("submit_time", "start_time", "end_time", "state", "gpus", "node_list")
"""Columns of ``schemas.Jobs`` that are looked at."""


def allocated_by_state(jobs: pl.DataFrame | LongJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """GPU-hours held by attempts, by how the attempt ended, and what they cost.

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
        :data:`LOST_STATES`); most GPU-hours first.

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
    window = Window(start, end)
    # In order: else threads add up parts of a group as they come, and the last digit is now this, now that.
    sums = {"attempts": pl.len().cast(pl.Int64), "gpu_hours": (pl.col("gpus") * pl.col("hours")).sum()}
    each = [part.group_by("tenant", "state", maintain_order=True).agg(**sums) for part in _held(jobs, window)]
    return (
        pl.concat(each)
        .group_by("tenant", "state", maintain_order=True)
        .agg(pl.all().sum())
        .with_columns(pl.col("tenant", "state").cast(pl.String))
        .with_columns(lost=pl.col("state").is_in(LOST_STATES))
        .sort("gpu_hours", "tenant", "state", descending=[True, False, False])
    )


def requested_allocated_active(jobs: pl.DataFrame | LongJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
    """GPU-hours that tenants asked for, were given, and kept active: three measures that are not the same.

    Requested is GPUs times the run-time limit of the attempts that started in the window, allocated is GPUs
    times the time they were held in it, active is that times the mean SM activity: less than the ``used`` of
    the ledger, where a GPU that works at all is used. Each is null where no attempt of the tenant says it, and
    each share says what part of the allocation it speaks of.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    start, end : datetime
        Time covered.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``requested_gpu_hours``, ``allocated_gpu_hours``, ``sm_active_gpu_hours``, ``limit_share`` and
        ``observed_share`` (of the allocated GPU-hours, those with a limit and those with a measured
        activity), sorted by tenant.

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
    window = Window(start, end)
    allocated = pl.col("gpus") * pl.col("hours")
    within = (pl.col("start_time") >= window.start) & pl.col("time_limit_s").is_not_null()
    limited, observed = pl.col("time_limit_s").is_not_null(), pl.col("sm_activity").is_not_null()

    def total(value: pl.Expr, known: pl.Expr) -> pl.Expr:
        return pl.when(known.any()).then(value.filter(known).sum())

    each = [
        part.group_by("tenant", maintain_order=True).agg(
            requested_gpu_hours=total(pl.col("gpus") * pl.col("time_limit_s") / 3600, within),
            allocated_gpu_hours=allocated.sum(),
            sm_active_gpu_hours=total(allocated * pl.col("sm_activity"), observed),
            limit_share=allocated.filter(limited).sum(),
            observed_share=allocated.filter(observed).sum(),
        )
        for part in _held(jobs, window, "time_limit_s", "sm_activity")
    ]
    return (
        pl.concat(each)
        .group_by("tenant", maintain_order=True)
        .agg(total(pl.all(), pl.all().is_not_null()))
        .with_columns(pl.col("limit_share", "observed_share") / pl.col("allocated_gpu_hours"))
        .with_columns(pl.col("tenant").cast(pl.String))
        .sort("tenant")
    )


def _held(jobs: pl.DataFrame | LongJobs, window: Window, *more: str) -> Iterator[pl.DataFrame]:
    """Attempts that held GPUs in the window, and for how many hours of it."""
    names = ["tenant", "state", "gpus", "submit_time", "start_time", "end_time", *more]
    hours = window.overlap_h("start_time", "end_time")
    for part in LongJobs.of(jobs).parts(names):
        table = gpu_jobs(some_columns(part, Jobs, names, where="jobs").lazy(), window)
        began = table.filter(pl.col("start_time").is_not_null())
        held = began.select("tenant", "state", "gpus", "start_time", *more, hours=hours)
        yield held.filter(pl.col("hours") > 0).collect()


def gpu_hours_by_node(jobs: pl.DataFrame, inventory: pl.DataFrame, *, start: datetime, end: datetime) -> pl.DataFrame:
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
        ``node``, ``hour`` (UTC), ``installed_gpu_hours``, ``allocated_gpu_hours``, sorted by node and hour; nodes
        and hours without either are left out. ``allocated_gpu_hours`` sums to what all jobs held.

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
    asked = some_columns(jobs, Jobs, _OF_NODES, where="jobs").drop_nulls("start_time")
    table = gpu_jobs(asked.with_columns(pl.col("node_list").cast(pl.String)), window)
    known = pl.when(pl.col("node").is_in(there["node"].to_list())).then("node")
    held = on_nodes(table).with_columns(node=known)
    names = pl.concat([there["node"], held["node"]]).unique().sort(nulls_last=True)
    number = {name: place for place, name in enumerate(names)}

    def by_hour(rows: pl.DataFrame, begin: str, until: str) -> np.ndarray:
        row = np.array([number[name] for name in rows["node"]], dtype=np.int64)
        return window.spans(rows, begin, until, "gpus").by_hour(window.hours, row, len(names))

    installed, used = by_hour(there, "installed", "retired"), by_hour(held, "start_time", "end_time")
    row, hour = np.nonzero((installed > 0) | (used > 0))
    hours = {"installed_gpu_hours": installed[row, hour], "allocated_gpu_hours": used[row, hour]}
    table = pl.DataFrame({"node": names[row], "hour": hour, **hours})
    return table.with_columns(hour=pl.lit(window.origin) + pl.duration(hours="hour"))


def by_node(hours: pl.DataFrame) -> pl.DataFrame:
    """GPU-hours held and left on every node, the emptiest first.

    Parameters
    ----------
    hours : polars.DataFrame
        From :func:`gpu_hours_by_node`.

    Returns
    -------
    polars.DataFrame
        ``node`` (null last: what is held where nobody knows), ``installed_gpu_hours``, ``allocated_gpu_hours``,
        ``allocated_share`` [0-1] and ``fullest_hour``, the largest such share of an hour; null where nothing is
        installed. ``allocated_gpu_hours`` sums to what all jobs held.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 4.0,
    ...     "submit_time": nine, "start_time": nine + timedelta(hours=1), "node_list": "n1"})
    >>> nodes = pl.DataFrame({"node": ["n1", "n2"], "gpus": [4, 4]})
    >>> by_node(gpu_hours_by_node(jobs, nodes, start=nine, end=nine + timedelta(hours=2))).rows()
    [('n2', 8.0, 0.0, 0.0, 0.0), ('n1', 8.0, 4.0, 0.5, 1.0)]
    """
    held, there = pl.col("allocated_gpu_hours"), pl.col("installed_gpu_hours")
    return (
        hours.with_columns(fullest_hour=pl.when(there > 0).then(held / there))
        .group_by("node")
        .agg(there.sum(), held.sum(), pl.col("fullest_hour").max())
        .with_columns(allocated_share=pl.when(there > 0).then(held / there))
        .select("node", "installed_gpu_hours", "allocated_gpu_hours", "allocated_share", "fullest_hour")
        .sort("allocated_share", "node", nulls_last=True)
    )
