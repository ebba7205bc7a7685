"""Held GPU-hours, attempt by attempt: how attempts ended, what of them was asked for and active, and on which nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.inbox.core.long_jobs import LongJobs
from gpuplanner.inbox.core.node_names import on_nodes
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.schemas.domain import Inventory, Jobs
from gpuplanner.schemas.check import conform, some_columns

LOST_STATES = ("FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "CANCELLED")
"""States whose GPU-time may have to be spent again. How much of it was saved by checkpoints is not known."""
_OF_NODES = ("submit_time", "start_time", "end_time", "state", "gpus", "node_list")
"""Columns of ``schemas.Jobs`` that are looked at."""


def held_by_state(jobs: pl.DataFrame | LongJobs, *, start: datetime, end: datetime) -> pl.DataFrame:
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
    >>> held_by_state(jobs, **day).select("state", "gpu_hours", "lost").rows()
    [('COMPLETED', 16.0, False), ('FAILED', 4.0, True)]
    """
    window = Window(start, end)
    # In order: else threads add up parts of a group as they come, and the last digit is now this, now that.
    each = [
        part.group_by("tenant", "state", maintain_order=True).agg(
            attempts=pl.len().cast(pl.Int64), gpu_hours=(pl.col("gpus") * pl.col("hours")).sum()
        )
        for part in _held(jobs, window)
    ]
    return (
        pl.concat(each)
        .group_by("tenant", "state", maintain_order=True)
        .agg(pl.all().sum())
        .with_columns(pl.col("tenant", "state").cast(pl.String))
        .with_columns(lost=pl.col("state").is_in(LOST_STATES))
        .sort("gpu_hours", "tenant", "state", descending=[True, False, False])
    )


def requested_allocated_active(
    jobs: pl.DataFrame | LongJobs, *, start: datetime, end: datetime
) -> pl.DataFrame:
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
        held = table.filter(pl.col("start_time").is_not_null()).select(
            "tenant", "state", "gpus", "start_time", *more, hours=hours
        )
        yield held.filter(pl.col("hours") > 0).collect()


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
    asked = some_columns(jobs, Jobs, _OF_NODES, where="jobs").with_columns(
        pl.col("node_list").cast(pl.String)
    )
    table = gpu_jobs(asked, window).filter(pl.col("start_time").is_not_null())
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


def by_node(hours: pl.DataFrame) -> pl.DataFrame:
    """GPU-hours held and left on every node, the emptiest first.

    Parameters
    ----------
    hours : polars.DataFrame
        From :func:`gpu_hours_by_node`.

    Returns
    -------
    polars.DataFrame
        ``node`` (null last: what is held where nobody knows), ``installed_gpu_hours``, ``held_gpu_hours``,
        ``held_share`` [0-1] and ``fullest_hour``, the largest such share of an hour; null where nothing is
        installed. ``held_gpu_hours`` sums to what all jobs held.

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
    held, there = pl.col("held_gpu_hours"), pl.col("installed_gpu_hours")
    return (
        hours.with_columns(fullest_hour=pl.when(there > 0).then(held / there))
        .group_by("node")
        .agg(there.sum(), held.sum(), pl.col("fullest_hour").max())
        .with_columns(held_share=pl.when(there > 0).then(held / there))
        .select("node", "installed_gpu_hours", "held_gpu_hours", "held_share", "fullest_hour")
        .sort("held_share", "node", nulls_last=True)
    )
