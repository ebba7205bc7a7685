"""Demand that several GPU models may serve: which jobs it is of, where they fit, and the model that they go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.errors import GeometryError, ScenarioError
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.names import resolve
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.contract.problem import ROUNDING
from gpuplanner.scenario import Scenario
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.sizing.predict.throughput import board_facts
from gpuplanner.sizing.right_profiles import HEADROOM
from gpuplanner.study.past.history import history
from gpuplanner.study.past.pools import FleetPools
from gpuplanner.study.tenants.quotas import is_board

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Substitute:
    """A pool that may serve demand of another one.

    - ``pool``, ``profile``: Where the demand is served.
    - ``instances_for_one``: Instances there that do the work of one of the demand.
    - ``part``, shape (n_tenants,): Share of each tenant's demand that fits there [0-1].
    """

    pool: str
    profile: str
    instances_for_one: float
    part: Floats


@dataclass(frozen=True, eq=False)
class FlexibleDemand:
    """Demand for one profile of a pool that other pools may serve too.

    - ``pool``, ``profile``: Where the jobs ran.
    - ``part``, shape (n_tenants,): Share of each tenant's demand that may go elsewhere [0-1].
    - ``substitutes``: Pools that may serve it, in order of preference; one with the name of the own pool says when
      it is the own pool's turn.
    """

    pool: str
    profile: str
    part: Floats
    substitutes: tuple[Substitute, ...]


@dataclass(frozen=True, eq=False)
class Transfer:
    """Demand that is served by another pool than its own.

    - ``origin``, ``place``: Pool and profile that it was asked of, and that serve it.
    - ``instances_for_one``: Instances there that do the work of one of the origin.
    - ``amount``, shape (n_tenants, n_slots): Mean concurrent instances of the origin, by tenant of the origin.
    """

    origin: tuple[str, str]
    place: tuple[str, str]
    instances_for_one: float
    amount: Floats


def route_demand(problems: Mapping[str, PlanProblem], demand: Sequence[FlexibleDemand]) -> list[Transfer]:
    """Send demand to the first pool, in order of preference, that can hold it and has room; slot by slot.

    A pool has room as long as its GPUs in service are more than its own demand and what was sent to it take.
    As in Kueue, whose queues try the flavors of a resource group in their order, nothing is weighed: the order of
    preference alone decides. Demand that no pool has room for stays where it is.

    `demand` names each pool and profile at most once, and the first of them finds the most room.

    Examples
    --------
    One A100 for three instances of demand, and two idle T4, on which work takes three times as long:

    >>> from datetime import UTC, datetime
    >>> from gpuplanner.hardware.whole_boards import whole_board
    >>> hours = {"slot_start": datetime(2026, 11, 2, tzinfo=UTC), "slot_hours": 1, "profiles": ["gpu"]}
    >>> problems = {
    ...     "A100": PlanProblem("A100-40GB", 1, 1, tenants=["ads"], demand=[[[3.0]]], **hours),
    ...     "T4": PlanProblem(whole_board("T4"), 2, 2, tenants=["ads"], demand=[[[0.5]]], **hours),
    ... }
    >>> substitute = Substitute("T4", "gpu", 3.0, np.ones(1))
    >>> sent = route_demand(problems, [FlexibleDemand("A100", "gpu", np.ones(1), (substitute,))])
    >>> sent[0].amount.tolist()  # one and a half GPUs of room, at three for one
    [[0.5]]
    """
    room = {name: _gpus_beyond_demand(problem) for name, problem in problems.items()}
    found = []
    for flexible in demand:
        home = problems[flexible.pool]
        own = home.admitted[:, home.profiles.index(flexible.profile)]
        own_share = home.board.share(flexible.profile)
        left = own * flexible.part[:, None]
        for substitute in flexible.substitutes:
            if substitute.pool == flexible.pool:
                # The own pool keeps what it has room for; only what is beyond its GPUs is tried further.
                beyond = (-room[flexible.pool]).clip(0) / own_share
                left = left * _served_part(left, beyond)
                continue

            gpus_for_one = (
                problems[substitute.pool].board.share(substitute.profile) * substitute.instances_for_one
            )
            fits = np.minimum(left, own * substitute.part[:, None])
            amount = fits * _served_part(fits, room[substitute.pool].clip(0) / gpus_for_one)
            amount[amount < ROUNDING] = 0.0
            if not amount.any():
                continue

            left = left - amount
            room[substitute.pool] = room[substitute.pool] - amount.sum(axis=0) * gpus_for_one
            room[flexible.pool] = room[flexible.pool] + amount.sum(axis=0) * own_share
            place = (substitute.pool, substitute.profile)
            found.append(
                Transfer((flexible.pool, flexible.profile), place, substitute.instances_for_one, amount)
            )
    return found


def _gpus_beyond_demand(problem: PlanProblem) -> Floats:
    """GPUs of a pool that its own demand leaves, shape (n_slots,); below 0 where it is more than there is."""
    return np.asarray(problem.gpus_allowed_on - problem.shares @ problem.pooled, dtype=np.float64)


def _served_part(wanted: Floats, instances: Floats) -> Floats:
    """Share of what all tenants want together that so many instances serve, shape (n_slots,)."""
    total = wanted.sum(axis=0)
    part: Floats = np.divide(instances, total, out=np.zeros_like(total), where=total > 0)
    return part.clip(max=1.0)


def apply_transfers(
    problems: Mapping[str, PlanProblem], transfers: Sequence[Transfer]
) -> dict[str, PlanProblem]:
    """The problems of the pools with the demand that each is given; pools that nothing touches stay as they are.

    A tenant that comes to a pool brings its tier and its price of unmet demand. Quotas are those of the pool that was
    asked: what they refuse goes nowhere.
    """
    found = dict(problems)
    for name in dict.fromkeys(
        pool for transfer in transfers for pool, _ in (transfer.origin, transfer.place)
    ):
        here = found[name]
        found[name] = replace(here, demand=here.admitted, limits=replace(here.limits, quotas={}))

    for transfer in transfers:
        (pool, profile), home = transfer.origin, found[transfer.origin[0]]
        demand = home.demand.copy()
        rows = demand[: len(transfer.amount), home.profiles.index(profile)]
        rows[:] = (rows - transfer.amount).clip(0.0)
        found[pool] = replace(home, demand=demand)
        coming = dict(zip(home.tenants, transfer.amount * transfer.instances_for_one, strict=False))
        found[transfer.place[0]] = _add_demand(found[transfer.place[0]], transfer.place[1], coming, home)
    return found


def _add_demand(
    here: PlanProblem, profile: str, coming: Mapping[str, Floats], home: PlanProblem
) -> PlanProblem:
    """A problem with more demand for a profile, by tenant of another pool."""
    profiles = (*here.profiles, *([] if profile in here.profiles else [profile]))
    new = [name for name in coming if name not in here.tenants and coming[name].any()]
    places = [home.tenants.index(name) for name in new]
    tenants = (*here.tenants, *new)
    demand = np.zeros((len(tenants), len(profiles), here.n_slots))
    demand[: len(here.tenants), : len(here.profiles)] = here.demand
    for name in coming.keys() & set(tenants):
        demand[tenants.index(name), profiles.index(profile)] += coming[name]
    return replace(
        here, tenants=tenants, profiles=profiles, demand=demand,
        tiers=(*here.tiers, *(home.tiers[place] for place in places)),
        unmet_price=(*here.unmet_price, *(home.unmet_price[place] for place in places)),
    )  # fmt: skip


def find_flexible_demand(
    fleet: FleetPools, problems: Mapping[str, PlanProblem]
) -> tuple[FlexibleDemand, ...]:
    """Demand of jobs that named no GPU model, with the models of the scenario's ``other_boards`` that can hold it.

    A job may run on a model that jobs of its partition ran on and that a flavor of its queue has, if a node is wide
    enough and the memory that the job was seen to use, with headroom, is there. Full GPUs are served by full GPUs,
    slices by the smallest slice with as many SMs and as much memory.
    """
    reached = _models_of_partitions(fleet)
    found = []
    for name, own in fleet.pools.items():
        home, order = problems[name], list_preferred_pools(own, name, problems)
        if not set(order) - {name}:
            continue
        jobs = _work_of_jobs(own)
        for profile in home.profiles:
            work = jobs.filter(profile=profile)
            part = _part_of_work(work, pl.lit(value=True), home)
            if not part.any():
                continue
            substitutes = []
            for other in order:
                there = problems[other]
                if other == name:
                    substitutes.append(Substitute(name, profile, 1.0, part))
                elif (place := find_substitute_profile(home.board, profile, there.board)) is not None:
                    fits = _fits(own, other, there, reached)
                    substitutes.append(Substitute(other, *place, _part_of_work(work, fits, home)))
            found.append(FlexibleDemand(name, profile, part, tuple(substitutes)))
    return tuple(found)


def list_preferred_pools(own: Scenario, pool: str, pools: Mapping[str, PlanProblem]) -> list[str]:
    """Pools of the GPU models that the scenario of a pool names, in its order; of its own cluster alone.

    Each cluster has a queue of its own, so no job goes to another one.
    """
    cluster = pool.rpartition("/")[0]
    there = {name.rpartition("/")[2]: name for name in pools if name.rpartition("/")[0] == cluster}
    words = (word.strip() for word in (own.other_boards or "").split(","))
    named = [
        resolve(word, there, what="GPU model of other_boards", error=ScenarioError) for word in words if word
    ]
    return [there[model] for model in dict.fromkeys(named)]


def _work_of_jobs(own: Scenario) -> pl.DataFrame:
    """Jobs of the recent past: their work, whether they named no GPU model, and the memory that they need [GiB]."""
    known = history(own)
    recent = known.views["rightsized"].filter(pl.col("submit_time") >= known.recent)
    return recent.select(
        "tenant",
        "profile",
        "gpus",
        pl.col("partition").cast(pl.String),
        unnamed=~pl.col("board_named").fill_null(value=True),
        needs_gib=(pl.col("memory_peak_gib") * (1 + HEADROOM)).fill_null(0.0),
        work=(pl.col("instances") * pl.col("run_s")).fill_null(0.0),
    )


def _models_of_partitions(fleet: FleetPools) -> dict[tuple[str, str], set[str]]:
    """Pools that jobs of each partition ran on, by cluster and partition."""
    found: dict[tuple[str, str], set[str]] = {}
    for name, own in fleet.pools.items():
        for partition in history(own).jobs["partition"].cast(pl.String).drop_nulls().unique():
            found.setdefault((name.rpartition("/")[0], partition), set()).add(name)
    return found


def _fits(
    own: Scenario, other: str, there: PlanProblem, reached: Mapping[tuple[str, str], set[str]]
) -> pl.Expr:
    """Whether a job may run on another pool: partition and queue reach it, a node is wide enough, memory suffices."""
    cluster = other.rpartition("/")[0]
    out_of_reach = [
        place for (where, place), pools in reached.items() if where == cluster and other not in pools
    ]
    in_reach = ~pl.col("partition").is_in(out_of_reach).fill_null(value=False)
    barred = queues_without_flavor(history(own).trace.quotas, there.board.name)
    in_reach &= ~pl.col("tenant").cast(pl.String).is_in(barred).fill_null(value=False)
    holds = (pl.col("gpus") <= there.gpus_per_node) & (pl.col("needs_gib") <= there.board.memory_gib)
    return in_reach & holds


def queues_without_flavor(quotas: pl.DataFrame | None, board: str) -> list[str]:
    """Queues all of whose flavors are of other GPU models.

    Examples
    --------
    >>> rows = {"tenant": ["a", "b"], "gpu_model": ["NVIDIA-L40S", None]}
    >>> queues_without_flavor(pl.DataFrame(rows), "T4"), queues_without_flavor(pl.DataFrame(rows), "L40S")
    (['a'], [])
    """
    if quotas is None:
        return []
    rows = quotas.group_by("tenant").agg("gpu_model").sort("tenant").iter_rows()
    return [name for name, words in rows if not any(word is None or is_board(word, board) for word in words)]


def _part_of_work(work: pl.DataFrame, fits: pl.Expr, problem: PlanProblem) -> Floats:
    """Share of each tenant's work that named no GPU model and fits, shape (n_tenants,)."""
    movable = pl.col("work").filter(pl.col("unnamed") & fits.fill_null(value=False)).sum()
    by = work.group_by("tenant").agg(all=pl.col("work").sum(), movable=movable)
    shares = {tenant: part / whole for tenant, whole, part in by.iter_rows() if whole}
    return np.array([min(1.0, shares.get(tenant, 0.0)) for tenant in problem.tenants])


def find_substitute_profile(home: GpuModel, profile: str, board: GpuModel) -> tuple[str, float] | None:
    """Profile of another GPU model that serves one, and how many do the work of one; None where none does.

    A gain in speed that nobody measured is none; a loss is that of bandwidth or of arithmetic, whichever is worse.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu import load_gpu_model
    >>> a100, h100 = load_gpu_model("A100-80GB"), load_gpu_model("H100-80GB-SXM5")
    >>> find_substitute_profile(h100, "gpu", a100), find_substitute_profile(a100, "gpu", h100)
    (('gpu', 3.16...), ('gpu', 1.0))
    """
    there = WHOLE_GPU if profile == WHOLE_GPU else _smallest_profile(home, profile, board)
    if there is None:
        return None
    own, other = _speeds(home, profile), _speeds(board, there)
    if own is None or other is None:
        return None
    return there, max(1.0, own[0] / other[0], own[1] / other[1])


def _smallest_profile(home: GpuModel, profile: str, board: GpuModel) -> str | None:
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


def _speeds(board: GpuModel, profile: str) -> tuple[float, float] | None:
    """Bandwidth and arithmetic of an instance; None where no source states them for the GPU model."""
    try:
        sheet = board_facts(board.name)
    except GeometryError:
        return None
    if sheet is None:
        return None
    if profile == WHOLE_GPU:
        return sheet.memory_bandwidth, sheet.flops
    one = board.profile(profile)
    return (
        sheet.memory_bandwidth * one.memory_slices / board.memory_slices,
        sheet.flops * one.compute_slices / board.compute_slices,
    )
