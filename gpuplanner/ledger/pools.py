"""Pools of GPUs: what is installed, which jobs belong to which board, and how many boards they needed at least."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import TypeVar

import numpy as np
import polars as pl

from gpuplanner.hardware.gpu import load_gpu_model
from gpuplanner.hardware.names import profile_on
from gpuplanner.inbox.core.long_jobs import LongJobs
from gpuplanner.intervals import HOUR_TICKS, untimed
from gpuplanner.ledger.slabs import Slabs
from gpuplanner.ledger.sweep import TOLERANCE_GPUS, Spans
from gpuplanner.ledger.window import Window
from gpuplanner.schemas.domain import Inventory, Jobs
from gpuplanner.schemas.check import conform, some_columns

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
    words = (
        gpu_jobs(some_columns(part, Jobs, columns, where="jobs"), Window(start, end))["gpu_model"]
        for part in known.parts(columns)
    )
    named_by_all = not any(each.has_nulls() for each in words)
    most: dict[str | None, int] = {}
    for first, last in known.spans(start, end):
        window = Window(first, last)
        asking = gpu_jobs(
            some_columns(known.there(first, last, columns), Jobs, columns, where="jobs"), window
        )
        held = asking.lazy().filter(pl.col("start_time").is_not_null())
        for board in asking["gpu_model"].unique() if named_by_all else [None]:
            here = held if board is None else held.filter(pl.col("gpu_model") == board)
            most[board] = max(most.get(board, 0), boards_at_once(here, board, window))
    rows = [
        {
            "node": f"inferred-{board}" if board is not None else "inferred",
            "gpu_model": board,
            "gpus": most[board],
        }
        for board in sorted(most, key=str)
    ]
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


def boards_at_once(held: pl.DataFrame | pl.LazyFrame, board: str | None, window: Window) -> int:
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
        if board is not None and profile_on(board, profile) is not None:
            mine = parts.filter(profile_requested=profile)
            most = load_gpu_model(board).profile(profile).max_instances
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
