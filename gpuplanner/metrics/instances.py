"""MIG instances that stand idle while jobs wait for other profiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from gpuplanner.hardware import OFF, GpuModel, as_board, parse_layout
from gpuplanner.metrics.accounts import SERVING, Simulated, Window, covered, slices_of
from gpuplanner.metrics.spells import spells_of, steps
from gpuplanner.units import SECONDS_PER_HOUR

CHANGES = ("idle", "waiting")


def instance_fragmentation(run: Simulated, board: GpuModel | str) -> pl.DataFrame:
    """Idle instances over time, and those of profiles that none of the waiting jobs asked for.

    Parameters
    ----------
    run : Run
        Anything with ``outcomes`` and ``states``, and ``spells`` if jobs were stopped or have phases.
    board : GpuModel or str
        The board of the fleet.

    Returns
    -------
    polars.DataFrame
        Pieces of time, sorted, over the whole run, in GPUs, where an instance counts its compute slices over
        those of the board:

        start_s, end_s
            Of the piece [s].
        idle
            Instances that exist and are not held; also while their GPU drains.
        waiting
            What the waiting jobs asked for.
        stranded
            Of ``idle``, the instances of profiles that nobody waits for, while somebody waits: the layout does
            not fit the queue.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> outcomes = pl.DataFrame({"submit": [0.0, 0.0], "first_start": [0.0, 60.0], "end": [60.0, 90.0],
    ...     "gpus": 1, "profile": "gpu", "served_on": "gpu"})
    >>> states = pl.DataFrame({"node": 0, "gpu": [0, 1], "start_s": 0.0, "end_s": 90.0,
    ...     "layout": ["gpu", "1g.10gb:7"], "state": "on"})
    >>> instance_fragmentation(SimpleNamespace(outcomes=outcomes, states=states), "H100-80GB-SXM5").rows()
    [(0.0, 60.0, 1.0, 1.0, 1.0), (60.0, 90.0, 1.0, 0.0, 0.0)]
    """
    board = as_board(board)
    begin, end = covered(run, None)
    events = pl.concat([*_supply(run.states), *_use(spells_of(run), end)]).filter(pl.col("profile") != OFF)
    pieces = steps(events.with_columns(pl.col("at_s").clip(begin, end)), "profile", CHANGES, until_s=end)
    edges = np.unique(np.append(pieces["start_s"].to_numpy(), [begin, end]))
    idle, waiting, wanted_idle = (np.zeros(len(edges) - 1) for _ in range(3))
    for (profile,), mine in pieces.partition_by("profile", as_dict=True, maintain_order=True).items():
        share = slices_of(board, str(profile)) / board.compute_slices
        first = int(np.searchsorted(edges, mine["start_s"][0]))
        widths = np.diff(np.searchsorted(edges, [*mine["start_s"], end]))
        mine_idle, mine_waiting = (np.repeat(mine[name].to_numpy(), widths) for name in CHANGES)
        idle[first:] += share * mine_idle
        waiting[first:] += share * mine_waiting
        wanted_idle[first:] += share * mine_idle * (mine_waiting > 0)
    stranded = np.where(waiting > 0, idle - wanted_idle, 0.0)
    return pl.DataFrame(
        {"start_s": edges[:-1], "end_s": edges[1:], "idle": idle, "waiting": waiting, "stranded": stranded}
    )


def instance_totals(pieces: pl.DataFrame, *, window: Window | None = None) -> dict[str, float]:
    """Sum up pieces of :func:`instance_fragmentation`.

    Parameters
    ----------
    pieces : polars.DataFrame
        From there.
    window : tuple of float, optional
        Start and end [s]; all of them if None.

    Returns
    -------
    dict
        ``idle_gpu_hours``; ``idle_while_waiting_gpu_hours``, while some job waited; ``stranded_gpu_hours``.

    Examples
    --------
    >>> pieces = pl.DataFrame({"start_s": [0.0], "end_s": [7200.0], "idle": [2.0], "waiting": [1.0], "stranded": [1.5]})
    >>> instance_totals(pieces, window=(0.0, 3600.0))
    {'idle_gpu_hours': 2.0, 'idle_while_waiting_gpu_hours': 2.0, 'stranded_gpu_hours': 1.5}
    """
    begin, end = (
        pl.col(name) if window is None else pl.col(name).clip(*window) for name in ("start_s", "end_s")
    )
    hours = (end - begin) / SECONDS_PER_HOUR
    found = pieces.select(
        idle_gpu_hours=(pl.col("idle") * hours).sum(),
        idle_while_waiting_gpu_hours=(pl.col("idle") * hours).filter(pl.col("waiting") > 0).sum(),
        stranded_gpu_hours=(pl.col("stranded") * hours).sum(),
    )
    return found.row(0, named=True)


def _supply(states: pl.DataFrame) -> Sequence[pl.DataFrame]:
    """Instances that begin and cease to exist."""
    serving = states.filter(pl.col("state").is_in(SERVING))
    counts = [
        (layout, profile, count)
        for layout in serving["layout"].unique().sort()
        for profile, count in parse_layout(layout).items()
    ]
    schema = {"layout": pl.String, "profile": pl.String, "count": pl.Int64}
    contents = serving.join(pl.DataFrame(counts, schema=schema, orient="row"), on="layout")
    return [
        contents.select("profile", at_s=at, idle=sign * pl.col("count"), waiting=pl.lit(0, pl.Int64))
        for at, sign in (("start_s", 1), ("end_s", -1))
    ]


def _use(spells: pl.DataFrame, until_s: float) -> Sequence[pl.DataFrame]:
    """Jobs that begin and cease to wait, and to hold instances."""
    gpus, nothing = pl.col("gpus").cast(pl.Int64), pl.lit(0, pl.Int64)
    start, end = (pl.col(name).fill_null(until_s) for name in ("start_s", "end_s"))
    started = spells.filter(pl.col("start_s").is_not_null())
    return [
        spells.select("profile", at_s="since_s", idle=nothing, waiting=gpus),
        spells.select("profile", at_s=start, idle=nothing, waiting=-gpus),
        started.select(profile="served_on", at_s="start_s", idle=-gpus, waiting=nothing),
        started.select(profile="served_on", at_s=end, idle=gpus, waiting=nothing),
    ]
