"""What was held on which node: hour by hour, and in all."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.inbox.core.node_names import on_nodes
from gpuplanner.ledger.pools import gpu_jobs
from gpuplanner.ledger.window import Window
from gpuplanner.schemas import Inventory, Jobs, conform, some_columns

COLUMNS = ("submit_time", "start_time", "end_time", "state", "gpus", "node_list")
"""Columns of ``schemas.Jobs`` that are looked at."""


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
    asked = some_columns(jobs, Jobs, COLUMNS, where="jobs").with_columns(pl.col("node_list").cast(pl.String))
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


def by_node(jobs: pl.DataFrame, inventory: pl.DataFrame, *, start: datetime, end: datetime) -> pl.DataFrame:
    """GPU-hours held and left on every node, the emptiest first.

    Parameters
    ----------
    jobs, inventory, start, end
        As for :func:`gpu_hours_by_node`.

    Returns
    -------
    polars.DataFrame
        ``node`` (null last: what is held where nobody knows), ``installed_gpu_hours``, ``held_gpu_hours``,
        ``held_share`` [0-1] and ``fullest_hour``, the largest such share of an hour; null where nothing is
        installed. ``held_gpu_hours`` sums to what all jobs held.

    Raises
    ------
    SchemaError
        If a table or the time is not as declared.

    Examples
    --------
    >>> from datetime import UTC, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "RUNNING", "gpus": 4.0,
    ...     "submit_time": nine, "start_time": nine + timedelta(hours=1), "node_list": "n1"})
    >>> nodes = pl.DataFrame({"node": ["n1", "n2"], "gpus": [4, 4]})
    >>> by_node(jobs, nodes, start=nine, end=nine + timedelta(hours=2)).rows()
    [('n2', 8.0, 0.0, 0.0, 0.0), ('n1', 8.0, 4.0, 0.5, 1.0)]
    """
    hours = gpu_hours_by_node(jobs, inventory, start=start, end=end)
    held, there = pl.col("held_gpu_hours"), pl.col("installed_gpu_hours")
    return (
        hours.with_columns(fullest_hour=pl.when(there > 0).then(held / there))
        .group_by("node")
        .agg(there.sum(), held.sum(), pl.col("fullest_hour").max())
        .with_columns(held_share=pl.when(there > 0).then(held / there))
        .select("node", "installed_gpu_hours", "held_gpu_hours", "held_share", "fullest_hour")
        .sort("held_share", "node", nulls_last=True)
    )
