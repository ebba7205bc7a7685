"""Build the ledger: held time by what was seen of it, the rest by whether somebody waited."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.intervals import TICK
from gpuplanner.ledger.activity import held_hours
from gpuplanner.ledger.pools import Window, gpu_jobs, inferred_inventory, with_boards
from gpuplanner.ledger.sweep import PoolHours, sweep_pool
from gpuplanner.schemas import BUCKETS, Inventory, Jobs, Ledger, check, conform

NOBODY = "-"
"""Tenant of GPU-time that nobody held."""
CHANGE_COLUMNS = {
    "start_time": pl.Datetime("us", "UTC"),
    "end_time": pl.Datetime("us", "UTC"),
    "gpus": pl.Float64(),
    "gpu_model": pl.String(),
}
"""Columns of a table of reconfigurations."""
ROUNDING_GPU_HOURS = 1e-12
"""Smaller amounts are rounding of sums and get no row."""


def gpu_time_ledger(
    jobs: pl.DataFrame,
    inventory: pl.DataFrame | None = None,
    *,
    start: datetime,
    end: datetime,
    samples: pl.DataFrame | None = None,
    reconfiguring: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Put every installed GPU-hour into one bucket.

    Held time is ``used`` where the device was seen to work (SM activity of at least 0.05 in the minute),
    ``held_idle`` where it was seen not to, and ``unobserved`` where nothing was measured. A minute without a
    sample is as the mean activity of the job's record says. Time that nobody holds is ``fragmented`` while
    at least one job of the pool waits, else ``free``. Nothing in the arguments says what was ``reserved`` or
    ``down``; such time shows as free.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``. A job that still runs, or waits, does so to `end`.
    inventory : polars.DataFrame, optional
        Table ``schemas.Inventory``. Default: :func:`inferred_inventory`, a lower bound.
    start, end : datetime
        Time covered; the first and the last hour of the ledger may be cut.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``, at least one a minute.
    reconfiguring : polars.DataFrame, optional
        GPUs out of service for a change of layout: ``start_time``, ``end_time``, ``gpus`` and, if boards are
        kept apart, ``gpu_model``.

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
    [('-', 'free', 2.0), ('-', 'fragmented', 1.0), ('vision', 'unobserved', 1.0)]
    """
    window = Window(start, end)
    asking, nodes = with_boards(*_tables(jobs, inventory, window))
    started = asking.filter(pl.col("start_time").is_not_null())
    queued = asking.with_columns(left_queue=pl.coalesce("start_time", "end_time"), one=1.0)
    changing = _changing(reconfiguring, nodes)
    parts = [held_hours(started, samples, window)]
    for board in pl.concat([nodes["board"], started["board"]]).unique().sort():
        here = pl.col("board").eq_missing(board)
        held = window.spans(started.filter(here), "start_time", "end_time", "gpus")
        change = window.spans(changing.filter(here), "start_time", "end_time", "gpus")
        changed = change.by_hour(window.hours, np.zeros(len(change.gpus)), 1)[0]
        pool = sweep_pool(
            installed=window.spans(nodes.filter(here), "installed", "retired", "gpus"),
            taken=held.joined(change),
            waiting=window.spans(queued.filter(here), "submit_time", "left_queue", "one"),
            hours=window.hours,
        )
        if pool.excess_gpus > 0:
            raise SchemaError(_excess(pool, board, window))
        for bucket, gpu_hours in (
            ("free", pool.free),
            ("fragmented", pool.fragmented),
            ("reconfiguring", changed),
        ):
            parts.append(_nobodys(board, bucket, gpu_hours))
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
    _, nodes = with_boards(*_tables(jobs, inventory, window))
    found = []
    if inventory is None:
        found.append(
            f"No inventory was given: {nodes['gpus'].sum()} GPUs are taken to be installed, the most ever "
            "held at once; free time is a lower bound."
        )
    elif nodes.filter(pl.col("board").is_null() & pl.col("gpu_model").is_not_null()).height:
        found.append(
            "The boards that jobs name cannot be matched with the inventory: all boards are one pool."
        )
    table = conform(jobs, Jobs, where="jobs")
    unknown = table.filter(pl.col("gpus").is_null() & pl.col("start_time").is_not_null()).height
    if unknown:
        found.append(
            f"{unknown} of {table.height} jobs ran on a number of GPUs that is not known: "
            "their time shows as free."
        )
    return found


def _tables(
    jobs: pl.DataFrame, inventory: pl.DataFrame | None, window: Window
) -> tuple[pl.DataFrame, pl.DataFrame]:
    asking = gpu_jobs(conform(jobs, Jobs, where="ledger: jobs"), window)
    if inventory is None:
        return asking, inferred_inventory(asking, start=window.start, end=window.end)
    return asking, conform(inventory, Inventory, where="ledger: inventory")


def _changing(reconfiguring: pl.DataFrame | None, nodes: pl.DataFrame) -> pl.DataFrame:
    """Times of reconfiguration, with the board of the pool that misses the GPUs."""
    if reconfiguring is None:
        return pl.DataFrame(schema=CHANGE_COLUMNS | {"board": pl.String})
    boards = nodes["board"].unique().sort()
    needed = [name for name in CHANGE_COLUMNS if name != "gpu_model" or len(boards) > 1]
    missing = [name for name in needed if name not in reconfiguring.columns]
    if missing:
        text = message(
            "ledger: reconfiguring",
            f"columns {', '.join(map(repr, needed))}",
            f"none of {examples(missing)}",
            "Add the columns.",
        )
        raise SchemaError(text)
    table = reconfiguring.cast({name: CHANGE_COLUMNS[name] for name in needed})
    if len(boards) == 1:
        return table.with_columns(board=pl.lit(boards[0], pl.String))
    unknown = table.filter(~pl.col("gpu_model").is_in(boards.to_list()))
    if unknown.height:
        text = message(
            "ledger: reconfiguring, column 'gpu_model'",
            f"one of {examples(boards.to_list())}",
            f"{unknown.height} rows with {examples(unknown['gpu_model'].unique().sort().to_list())}",
            "Name the board as the inventory does.",
        )
        raise SchemaError(text)
    return table.with_columns(board="gpu_model")


def _nobodys(board: str | None, bucket: str, gpu_hours: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "tenant": NOBODY,
            "board": pl.Series([board], dtype=pl.String).new_from_index(0, len(gpu_hours)),
            "hour": np.arange(len(gpu_hours)),
            "bucket": bucket,
            "gpu_hours": gpu_hours,
        }
    )


def _excess(pool: PoolHours, board: str | None, window: Window) -> str:
    when = window.origin + pool.excess_tick * TICK
    return message(
        f"ledger: GPUs of {board if board is not None else 'all boards'} held or out of service",
        "never more than the inventory has installed",
        f"up to {pool.excess_gpus:g} GPUs more, first at {when:%Y-%m-%d %H:%M:%S} UTC",
        "Complete the inventory (installed, retired, gpus), look for attempts of one job that overlap, or "
        "leave the inventory out to have it inferred from the peak.",
    )
