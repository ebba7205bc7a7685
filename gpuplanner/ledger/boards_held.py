"""The fewest boards that could hold what jobs held at once."""

from __future__ import annotations

from itertools import chain

import numpy as np
import polars as pl

from gpuplanner.hardware import load_gpu_model, profile_on
from gpuplanner.ledger.slabs import Slabs
from gpuplanner.ledger.sweep import TOLERANCE_GPUS, Spans
from gpuplanner.ledger.window import Window

COLUMNS = ("start_time", "end_time", "profile_requested", "gpus", "gpus_by_memory", "instances")


def boards_at_once(held: pl.DataFrame | pl.LazyFrame, board: str | None, window: Window) -> int:
    """Most boards that jobs needed at one time, at least.

    A board is cut or it is not. Instances need as many boards as their compute slices, their memory slices and the
    most of each profile on a board demand; GPUs that are not cut come on top. How instances lay on the boards is
    not looked at: it may have taken more.

    Parameters
    ----------
    held : polars.DataFrame or polars.LazyFrame
        Table ``schemas.Jobs``; jobs of one pool that started.
    board : str or None
        Board of the pool in the catalogue, if it is known.
    window : Window
        The time to look at.

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
    parts = held.lazy().filter(cut).select(*COLUMNS).collect()
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
