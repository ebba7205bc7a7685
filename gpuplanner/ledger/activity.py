"""Held GPU-time by tenant: used, held idle with or without a process, or not observed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.inbox.telemetry.holders import TOGETHER, kind_of_device, members_on
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.schemas import USED_FROM, Jobs, Samples, conform, some_columns

PROCESS_FROM_GIB = 0.25
"""Device memory from which a process is taken to be there: a CUDA context alone takes about 0.3 GB [1]_.

References
----------
.. [1] pytorch/pytorch, issues 107667 and 20532; MLSysOps/MIGProfiler, figures of memory by profile.
"""
IDLE = ("idle_with_process", "idle_without_process", "idle_unclear")
"""Parts of ``held_idle``; unclear where memory was not measured."""
STATES = ("used", *IDLE, "unobserved")
BY_ID = ("job_id", "instances", "node_list", "profile_requested")
"""Columns of ``schemas.Jobs`` by which samples find their jobs."""
COLUMNS = (
    "tenant", "submit_time", "start_time", "end_time", "state", "gpus", "sm_activity", "memory_peak_gib",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that are looked at, beside ``job_id`` and ``instances`` where there are samples."""


def held_hours(
    jobs: pl.DataFrame | pl.LazyFrame, samples: pl.DataFrame | None, window: Window
) -> pl.DataFrame:
    """Part the GPU-time that jobs held by what was seen of it.

    A minute of a job with samples is used or held idle as its devices were; the part of its GPUs without a
    sample in that minute, and every minute without any, is as the mean activity of the job's record says; if
    there is none, the time is unobserved.
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
        )
        .join(owners.lazy(), on=keys, how="left", nulls_equal=True, maintain_order="left")
        .drop(keys)
        .collect()
    )
    seen = held.clear()
    if samples is not None and seen_by_id:
        seen = _seen_minutes(held, jobs.lazy().collect(), samples)
    owners = owners.cast({"tenant": pl.String})
    parts = []
    for state in STATES:
        gpu_hours = _sums(held.filter(record=state), "gpus", owners.height, window)
        if seen.height:
            gpu_hours -= _sums(seen.filter(record=state), "gpus_seen", owners.height, window)
        if state in seen.columns:
            gpu_hours += _sums(seen, state, owners.height, window)
        owner, hour = np.nonzero(gpu_hours > 0)
        parts.append(
            owners.select(keys)[owner].with_columns(
                hour=pl.Series(hour), state=pl.lit(state), gpu_hours=pl.Series(gpu_hours[owner, hour])
            )
        )
    return pl.concat(parts)


def held_by_activity(
    jobs: pl.DataFrame, samples: pl.DataFrame | None = None, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """What each tenant held, and how much of the idle part had a process on it.

    GPUs held without any process are the plainest waste: nobody would notice if they were given to others.

    Parameters
    ----------
    jobs, samples, start, end
        As for :func:`gpuplanner.ledger.gpu_time_ledger`.

    Returns
    -------
    polars.DataFrame
        ``tenant`` and the GPU-hours of each of :data:`STATES`, sorted by tenant. ``used``, the sum of the idle
        columns and ``unobserved`` equal the buckets of the ledger.

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
    >>> held_by_activity(jobs, start=nine, end=nine + timedelta(hours=3))["idle_without_process"].to_list()
    [6.0]
    """
    window = Window(start, end)
    ids = [] if samples is None else [*BY_ID]
    table = some_columns(jobs, Jobs, [*ids, *COLUMNS], where="jobs")
    asking = gpu_jobs(table, window).lazy().with_columns(board=pl.lit(None, pl.String))
    found = held_hours(asking.filter(pl.col("start_time").is_not_null()), samples, window)
    hours = pl.col("gpu_hours")
    return (
        found.group_by("tenant")
        .agg(hours.filter(pl.col("state") == state).sum().alias(state) for state in STATES)
        .sort("tenant")
    )


def _state(activity: str, memory_gib: str) -> pl.Expr:
    """State by mean activity and most memory."""
    named = {name: pl.lit(name, pl.Enum(STATES)) for name in STATES}
    return (
        pl.when(pl.col(activity).is_null())
        .then(named["unobserved"])
        .when(pl.col(activity) >= USED_FROM)
        .then(named["used"])
        .when(pl.col(memory_gib) >= PROCESS_FROM_GIB)
        .then(named["idle_with_process"])
        .when(pl.col(memory_gib).is_not_null())
        .then(named["idle_without_process"])
        .otherwise(named["idle_unclear"])
    )


def _seen_minutes(held: pl.DataFrame, jobs: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Minutes of jobs with samples: how many of the job's GPUs were seen, and in which state."""
    table = conform(samples, Samples, where="samples").filter(pl.col("sm_activity").is_not_null())
    states = STATES[:-1]
    devices = (
        _by_minute(table, "job_id", "node", "gpu", "instance")
        .group_by("job_id", "minute")
        .agg(
            pl.len().cast(pl.Float64).alias("devices"),
            *((pl.col("state") == state).sum().cast(pl.Float64).alias(state) for state in states),
        )
    )
    shared = not_told(table)
    if shared.height:
        together = seen_together(jobs, _by_minute(shared, "node", "gpu", "instance", "kind"))
        devices = (
            pl.concat([devices, together.select(devices.columns)])
            .group_by("job_id", "minute", maintain_order=True)
            .agg(pl.col("devices", *states).sum())
        )
    of_gpus = pl.min_horizontal("gpus", "devices")
    of_instances = pl.col("gpus") * (pl.col("devices") / pl.col("instances")).clip(upper_bound=1.0)
    return (
        held.join(devices, on="job_id")
        .with_columns(
            begin=pl.max_horizontal("begin", "minute"),
            until=pl.min_horizontal("until", pl.col("minute") + pl.duration(minutes=1)),
            gpus_seen=pl.when(pl.col("instances").is_not_null()).then(of_instances).otherwise(of_gpus),
        )
        .filter(pl.col("begin") < pl.col("until"))
        .with_columns(pl.col(state) / pl.col("devices") * pl.col("gpus_seen") for state in states)
        .sort("row", "minute")  # floats are added in a fixed order
    )


def _by_minute(samples: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """State of each device in each minute."""
    return (
        samples.group_by(*keys, pl.col("time").dt.truncate("1m").alias("minute"))
        .agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max())
        .with_columns(state=_state("sm_activity", "memory_used_gib"))
    )


def _sums(table: pl.DataFrame, weight: str, owners: int, window: Window) -> np.ndarray:
    """GPU-hours by owner and hour."""
    return window.spans(table, "begin", "until", weight).by_hour(
        window.hours, group=table["owner"].to_numpy(), groups=owners
    )


BUSIEST_FIRST = ("used", "idle_with_process", "idle_unclear", "idle_without_process")
"""A device that works is held by somebody, and one with a process on it too; one without may be nobody's."""


def seen_together(
    jobs: pl.DataFrame, devices: pl.DataFrame, states: Sequence[str] = BUSIEST_FIRST
) -> pl.DataFrame:
    """Share out what was seen of devices among the jobs that held some of them.

    Jobs that together hold h of the D devices seen on a node are taken to hold the h busiest: a free device does
    nothing. What these did is given to the jobs in proportion to what each holds, so the tenants of a node can be
    told apart only by how much they held.

    Examples
    --------
    Of four GPUs three are held, and two work: the job that holds two of the three has two thirds of that.

    >>> from datetime import UTC, datetime, timedelta
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "start_time": noon, "end_time": noon + timedelta(hours=1),
    ...     "gpus": [2.0, 1.0], "instances": None, "node_list": "n1", "profile_requested": None},
    ...     schema_overrides={"instances": pl.Int32, "profile_requested": pl.String})
    >>> seen = pl.DataFrame({"node": "n1", "kind": "", "minute": [noon] * 4,
    ...     "state": ["used", "used", "idle_without_process", "idle_without_process"]})
    >>> seen_together(jobs, seen).select("job_id", "devices", pl.col("used").round(3)).sort("job_id").rows()
    [('a', 2.0, 1.333), ('b', 1.0, 0.667)]
    """
    key = ["node", "kind"]
    seen = devices.group_by(*key, "minute").agg(
        (pl.col("state") == state).sum().alias(state) for state in states
    )
    members = members_on(jobs, devices.select(key).unique())
    changes = members.select(*key, "at").unique().sort("at")
    placed = (
        seen.sort("minute")
        .join_asof(changes, left_on="minute", right_on="at", by=key, check_sortedness=False)
        .join(members.drop_nulls("job_id"), on=[*key, "at"])
        .with_columns(
            held=pl.min_horizontal(
                pl.col("count").sum().over(*key, "minute"),
                pl.sum_horizontal(pl.col(state) for state in states),
            ),
            part=pl.col("count") / pl.col("count").sum().over(*key, "minute"),
        )
    )
    left, shares = pl.col("held"), {}
    for state in states:
        shares[state] = pl.min_horizontal(pl.col(state).cast(pl.Float64), left)
        left = left - shares[state]
    return (
        placed.with_columns(
            devices=pl.col("held") * pl.col("part"),
            **{state: share * pl.col("part") for state, share in shares.items()},
        )
        .group_by("job_id", "minute")
        .agg(pl.col("devices", *states).sum())
        .sort("job_id", "minute")
    )


def not_told(samples: pl.DataFrame) -> pl.DataFrame:
    """Samples of devices that several may have held, with their ``kind``; of a cut GPU only its instances."""
    return samples.with_columns(kind=kind_of_device()).filter(
        pl.col("job_evidence") == TOGETHER, pl.col("kind").is_not_null()
    )
