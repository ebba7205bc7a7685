"""Demand that other boards of the fleet may serve: which jobs are not bound to theirs, where they fit, how fast."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from gpuplanner.errors import GeometryError
from gpuplanner.hardware import GpuModel
from gpuplanner.planner import Movable, PlanProblem
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.sizing.predict.throughput import board_facts
from gpuplanner.study.past.history import history
from gpuplanner.study.past.pools import FleetPools
from gpuplanner.study.tenants.quotas import is_board

MOST_OF_THE_WORK = 0.9
"""A board is no place for demand of which less than this fits it."""


def movable_demand(fleet: FleetPools, problems: Mapping[str, PlanProblem]) -> tuple[Movable, ...]:
    """Demand of each pool that others may serve, by profile; none where the scenarios say that jobs stay.

    A job that named no board may run on any that jobs of its partition ran on and that a flavor of its queue has, if
    the memory that it was seen to use, with headroom, is there; by ``all``, one that named its board too, where memory
    is no less. Whole GPUs are served by whole GPUs, slices by the smallest slice with as many SMs and as much memory.
    """
    jobs = {name: _free_jobs(own) for name, own in fleet.pools.items()}
    reached = boards_of_partitions(fleet)
    found = []
    for name, free in jobs.items():
        problem = problems[name]
        for profile in problem.profiles:
            work = free.filter(profile=profile)
            places = {}
            for other, there in problems.items():
                place = None if other == name else place_there(problem.board, profile, there.board)
                if place is None or cluster_of(other) != cluster_of(name):
                    continue
                fits = fits_there(fleet.pools[name], other, there.board, there.gpus_per_node, reached[name])
                if _share(work, fits) >= MOST_OF_THE_WORK:
                    places[other, place[0]] = place[1]
                    work = work.with_columns(free=pl.col("free") & fits)
            if places:
                part = _part(work, problem)
                if part.any():
                    order = sorted(places.items(), key=lambda one: one[1])
                    found.append(Movable(name, profile, part, dict(order)))
    return tuple(found)


def cluster_of(pool: str) -> str:
    """Jobs of one cluster cannot be sent to another: each has a queue of its own."""
    return pool.rpartition("/")[0]


def _free_jobs(own: Scenario) -> pl.DataFrame:
    """Jobs of the recent past with their work, whether they are bound to their board, and the memory that they need."""
    known = history(own)
    return known.views["rightsized"].filter(pl.col("submit_time") >= known.recent).select(
        "tenant", "profile", "gpus", *bound(own),
        work=(pl.col("instances") * pl.col("run_s")).fill_null(0.0),
    )  # fmt: skip


def bound(own: Scenario) -> tuple[pl.Expr, ...]:
    """Of jobs: ``partition``, whether they are ``free`` to leave their board, and the memory that they need."""
    named = pl.col("board_named").fill_null(value=True)
    home = history(own).fleet.board.memory_gib
    free = {"none": pl.lit(value=False), "unnamed": ~named, "all": pl.lit(value=True)}[own.other_boards]
    needs = pl.coalesce(pl.col("memory_peak_gib") * (1 + own.headroom), pl.when(named).then(home), 0.0)
    return pl.col("partition").cast(pl.String), free.alias("free"), needs.alias("needs_gib")


def boards_of_partitions(fleet: FleetPools) -> dict[str, dict[str, set[str]]]:
    """Of each pool, the boards that jobs of each of its partitions ran on, in its cluster."""
    boards: dict[tuple[str, str], set[str]] = {}
    for name, own in fleet.pools.items():
        for partition in history(own).jobs["partition"].cast(pl.String).drop_nulls().unique():
            boards.setdefault((cluster_of(name), partition), set()).add(name)
    return {
        name: {
            partition: there for (cluster, partition), there in boards.items() if cluster == cluster_of(name)
        }
        for name in fleet.pools
    }


def fits_there(
    own: Scenario, other: str, board: GpuModel, gpus_per_node: int, reached: Mapping[str, set[str]]
) -> pl.Expr:
    """Whether a job may run on another board: partition and queue reach it, a node is wide enough, memory suffices."""
    out_of_reach = [partition for partition, boards in reached.items() if other not in boards]
    in_reach = ~pl.col("partition").is_in(out_of_reach).fill_null(value=False)
    barred = without_flavor(history(own).trace.quotas, board.name)
    in_reach &= ~pl.col("tenant").cast(pl.String).is_in(barred).fill_null(value=False)
    return in_reach & (pl.col("gpus") <= gpus_per_node) & (pl.col("needs_gib") <= board.memory_gib)


def without_flavor(quotas: pl.DataFrame | None, board: str) -> list[str]:
    """Queues all of whose flavors are of other boards.

    Examples
    --------
    >>> rows = {"tenant": ["a", "b"], "gpu_model": ["NVIDIA-L40S", None]}
    >>> without_flavor(pl.DataFrame(rows), "T4"), without_flavor(pl.DataFrame(rows), "L40S")
    (['a'], [])
    """
    if quotas is None:
        return []
    rows = quotas.group_by("tenant").agg("gpu_model").sort("tenant").iter_rows()
    return [name for name, words in rows if not any(word is None or is_board(word, board) for word in words)]


def _share(work: pl.DataFrame, fits: pl.Expr) -> float:
    """Share of the work that is not bound that fits."""
    free = work.filter("free").select(all=pl.col("work").sum(), fits=pl.col("work").filter(fits).sum()).row(0)
    return float(free[1]) / float(free[0]) if free[0] else 0.0


def _part(work: pl.DataFrame, problem: PlanProblem) -> np.ndarray:
    """Share of each tenant's demand that may move, shape (n_tenants, n_slots)."""
    by = work.group_by("tenant").agg(all=pl.col("work").sum(), free=pl.col("work").filter("free").sum())
    shares = {tenant: free / whole for tenant, whole, free in by.iter_rows() if whole}
    part = np.array([min(1.0, shares.get(tenant, 0.0)) for tenant in problem.tenants])
    return np.repeat(part[:, None], problem.n_slots, axis=1)


def place_there(home: GpuModel, profile: str, board: GpuModel) -> tuple[str, float] | None:
    """Profile of another board that serves one, and how many do the work of one; None where none does.

    A gain in speed that nobody measured is none; a loss is that of bandwidth or of arithmetic, whichever is worse.
    """
    found = place_with_range(home, profile, board)
    return None if found is None else (found[0], max(1.0, found[2]))


def place_with_range(home: GpuModel, profile: str, board: GpuModel) -> tuple[str, float, float] | None:
    """The same with how many times as long work takes there, by bandwidth or by arithmetic, the better and the worse.

    Examples
    --------
    >>> from gpuplanner.hardware import load_gpu_model
    >>> place_with_range(load_gpu_model("H100-80GB-SXM5"), "gpu", load_gpu_model("A100-80GB"))
    ('gpu', 1.67..., 3.16...)
    """
    there = WHOLE_GPU if profile == WHOLE_GPU else _smallest(home, profile, board)
    sheets = [speeds_of(home, profile), None if there is None else speeds_of(board, there)]
    if there is None or sheets[0] is None or sheets[1] is None:
        return None
    times = [own / other for own, other in zip(*sheets, strict=True)]
    return there, min(times), max(times)


def _smallest(home: GpuModel, profile: str, board: GpuModel) -> str | None:
    """Smallest plain profile with as much memory and as many SMs."""
    own = home.profile(profile)
    enough = [
        one
        for one in board.profiles
        if one.attribute == own.attribute
        and None not in (one.memory_gib, own.memory_gib, one.sms, own.sms)
        and (one.memory_gib or 0) >= (own.memory_gib or 0) * 0.95
        and (one.sms or 0) >= (own.sms or 0)
    ]
    return min(enough, key=lambda one: one.size_order).name if enough else None


def speeds_of(board: GpuModel, profile: str) -> tuple[float, float] | None:
    """Bandwidth and arithmetic of an instance; None where no source states them for the board."""
    try:
        sheet = board_facts(board.name)
    except GeometryError:
        return None
    if sheet is None or profile == WHOLE_GPU:
        return None if sheet is None else (sheet.memory_bandwidth, sheet.flops)
    one = board.profile(profile)
    return (
        sheet.memory_bandwidth * one.memory_slices / board.memory_slices,
        sheet.flops * one.compute_slices / board.compute_slices,
    )
