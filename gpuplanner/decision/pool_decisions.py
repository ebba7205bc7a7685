"""Decisions and plans of fleets with several GPU models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import GeometryError, ScenarioError, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.core.units import count_text
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_types import DECIMALS, Decision
from gpuplanner.decision.layout_planning import Planned, plan_problem, planned_for
from gpuplanner.decision.sharing_rules import is_gpu_model_name
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model, make_non_mig_model
from gpuplanner.hardware.repartitioning_cost import find_change_cost
from gpuplanner.planner.plan_problem import DEMAND_ROUNDING_INSTANCES, PlanProblem
from gpuplanner.planner.plan_variants import FleetPlan
from gpuplanner.sizing.throughput import find_gpu_spec
from gpuplanner.usage.job_history import FleetPools, history
from gpuplanner.usage.planned_fleet import UNNAMED_GPU_MODEL, is_catalogue_model, nodes_in_service
from gpuplanner.usage.rightsizing import RIGHTSIZING_HEADROOM_FRACTION


def fleet_decision(decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Add up the decisions of pools that share no GPU and no job.

    - ``fleet_gpus``, ``gpus``: GPUs there are, and GPUs on at once at most in each pool, added up.
    - ``saving``: GPU-hours a week that the pools save, with the sum of their intervals' ends, ``low`` and ``high``: as
      wide as if all pools erred the same way. None where none is saved.
    - ``usd_per_week``: Money of those that are paid less for; None where no pool is.

    Examples
    --------
    >>> fleet_decision({})["gpus"]
    0
    """
    saved = [one.saving for one in decisions.values() if one.saving.value is not None]
    paid = [
        one.financial_impact.usd_per_week for one in decisions.values() if one.financial_impact.usd_per_week is not None
    ]
    known = bool(saved) and all(one.low is not None and one.high is not None for one in saved)
    return {
        "fleet_gpus": sum(one.fleet_gpus for one in decisions.values()),
        "gpus": sum(one.gpus for one in decisions.values()),
        "saving": round(sum(one.value or 0.0 for one in saved), DECIMALS) if saved else None,
        "low": round(sum(one.low or 0.0 for one in saved), DECIMALS) if known else None,
        "high": round(sum(one.high or 0.0 for one in saved), DECIMALS) if known else None,
        "usd_per_week": round(sum(paid), DECIMALS) if paid else None,
    }


_ACTION_WORDS = {"none": "no recommendation", "power_down": "power down idle nodes", "raise_limit": "raise limits"}


def fleet_sentence(decisions: Mapping[str, Decision]) -> str:
    """The decision on the whole fleet in words: how many GPUs of how many, what is saved, and which pools do what."""
    fleet = fleet_decision(decisions)
    pools, needed = count_text(len(decisions), "pool"), fleet["gpus"]
    decided = all(decision.action != "none" for decision in decisions.values())
    text = f"{fleet['fleet_gpus']:,} GPUs in {pools}{f': {needed:,} needed' if decided else ''}"
    if fleet["saving"] is not None:
        span = "" if fleet["low"] is None else f" (range {fleet['low']:,.0f} to {fleet['high']:,.0f})"
        text += f"; capacity freed: {fleet['saving']:,.0f} GPU-hours per week{span}"
    by_action: dict[str, list[str]] = {}
    for name, own in decisions.items():
        by_action.setdefault(own.action, []).append(name)
    parts = [f"{', '.join(names)}: {_ACTION_WORDS.get(action, action)}" for action, names in by_action.items()]
    return f"{text}. {'; '.join(parts)}."


@dataclass(frozen=True)
class FleetCompared:
    """What was compared and decided for each pool, by name."""

    pools: Mapping[str, Comparison]

    @property
    def decisions(self) -> dict[str, Decision]:
        """The decision of each pool."""
        return {name: one.decision for name, one in self.pools.items()}

    @property
    def sentence(self) -> str:
        """The decision on the whole fleet in words."""
        return fleet_sentence(self.decisions)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``compare --json`` for several pools: each by its name, and their sum."""
        pools = {name: one.to_dict() for name, one in self.pools.items()}
        return {"fleet": fleet_decision(self.decisions), "pools": pools}


def decision_table(decisions: Mapping[str, Decision]) -> pl.DataFrame:
    """A row for each pool: GPUs there are, GPUs needed, what to do, and what it saves."""
    rows = [
        {
            "pool": name, "gpus": one.fleet_gpus, "needed": one.gpus, "cut_gpus": one.cut_gpus,
            "action": one.action.replace("_", " "), "freed_gpu_hours": one.saving.value,
        }
        for name, one in decisions.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


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
    >>> from gpuplanner.hardware.gpu_models import make_non_mig_model
    >>> hours = {"slot_start": datetime(2026, 11, 2, tzinfo=UTC), "interval_hours": 1, "profiles": ["gpu"]}
    >>> problems = {
    ...     "A100": PlanProblem("A100-40GB", 1, 1, tenants=["ads"], demand=[[[3.0]]], **hours),
    ...     "T4": PlanProblem(make_non_mig_model("T4"), 2, 2, tenants=["ads"], demand=[[[0.5]]], **hours),
    ... }
    >>> substitute = Substitute("T4", "gpu", 3.0, np.ones(1))
    >>> sent = route_demand(problems, [FlexibleDemand("A100", "gpu", np.ones(1), (substitute,))])
    >>> sent[0].amount.tolist()  # one and a half GPUs of room, at three for one
    [[0.5]]
    """
    # GPUs that a pool's own demand leaves, slot by slot; below 0 where it is more than there is.
    room = {name: one.max_gpus_on - one.shares @ one.pooled_demand for name, one in problems.items()}
    found = []
    for flexible in demand:
        home = problems[flexible.pool]
        own = home.admitted_demand[:, home.profiles.index(flexible.profile)]
        own_share = home.gpu_model.gpu_fraction(flexible.profile)
        left = own * flexible.part[:, None]
        for substitute in flexible.substitutes:
            if substitute.pool == flexible.pool:
                # The own pool keeps what it has room for; only what is beyond its GPUs is tried further.
                beyond = (-room[flexible.pool]).clip(0) / own_share
                left = left * _served_part(left, beyond)
                continue

            there_share = problems[substitute.pool].gpu_model.gpu_fraction(substitute.profile)
            gpus_for_one = there_share * substitute.instances_for_one
            fits = np.minimum(left, own * substitute.part[:, None])
            amount = fits * _served_part(fits, room[substitute.pool].clip(0) / gpus_for_one)
            amount[amount < DEMAND_ROUNDING_INSTANCES] = 0.0
            if not amount.any():
                continue

            left = left - amount
            room[substitute.pool] = room[substitute.pool] - amount.sum(axis=0) * gpus_for_one
            room[flexible.pool] = room[flexible.pool] + amount.sum(axis=0) * own_share
            origin, place = (flexible.pool, flexible.profile), (substitute.pool, substitute.profile)
            found.append(Transfer(origin, place, substitute.instances_for_one, amount))
    return found


def _served_part(wanted: Floats, instances: Floats) -> Floats:
    """Share of what all tenants want together that so many instances serve, shape (n_slots,)."""
    total = wanted.sum(axis=0)
    part: Floats = np.divide(instances, total, out=np.zeros_like(total), where=total > 0)
    return part.clip(max=1.0)


def apply_transfers(problems: Mapping[str, PlanProblem], transfers: Sequence[Transfer]) -> dict[str, PlanProblem]:
    """The problems of the pools with the demand that each is given; pools that nothing touches stay as they are.

    A tenant that comes to a pool brings its tier and its price of unmet demand. Quotas are those of the pool that was
    asked: what they refuse goes nowhere.
    """
    found = dict(problems)
    touched = (pool for transfer in transfers for pool, _ in (transfer.origin, transfer.place))
    for name in dict.fromkeys(touched):
        here = found[name]
        found[name] = replace(here, demand=here.admitted_demand, limits=replace(here.limits, quotas={}))

    for transfer in transfers:
        (pool, profile), home = transfer.origin, found[transfer.origin[0]]
        demand = home.demand.copy()
        rows = demand[: len(transfer.amount), home.profiles.index(profile)]
        rows[:] = (rows - transfer.amount).clip(0.0)
        found[pool] = replace(home, demand=demand)
        coming = dict(zip(home.tenants, transfer.amount * transfer.instances_for_one, strict=False))
        found[transfer.place[0]] = _add_demand(found[transfer.place[0]], transfer.place[1], coming, home)
    return found


def _add_demand(here: PlanProblem, profile: str, coming: Mapping[str, Floats], home: PlanProblem) -> PlanProblem:
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


def find_flexible_demand(fleet: FleetPools, problems: Mapping[str, PlanProblem]) -> tuple[FlexibleDemand, ...]:
    """Demand of jobs that named no GPU model, with the models of the scenario's ``substitute_models`` that can hold it.

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
                elif (place := find_substitute_profile(home.gpu_model, profile, there.gpu_model)) is not None:
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
    words = filter(None, (word.strip() for word in (own.substitute_models or "").split(",")))
    named = (resolve_name(word, there, subject="GPU model of substitute_models", error=ScenarioError) for word in words)
    return [there[model] for model in dict.fromkeys(named)]


def _work_of_jobs(own: Scenario) -> pl.DataFrame:
    """Jobs of the recent past: their work, whether they named no GPU model, and the memory that they need [GiB]."""
    known = history(own)
    recent = known.views["rightsized"].filter(pl.col("submit_time") >= known.recent)
    partition, unnamed = (
        pl.col("partition").cast(pl.String),
        ~pl.col("gpu_model_requested").fill_null(value=True),
    )
    needs_gib = (pl.col("memory_peak_gib") * (1 + RIGHTSIZING_HEADROOM_FRACTION)).fill_null(0.0)
    work = (pl.col("instances") * pl.col("run_s")).fill_null(0.0)
    return recent.select("tenant", "profile", "gpus", partition, unnamed=unnamed, needs_gib=needs_gib, work=work)


def _models_of_partitions(fleet: FleetPools) -> dict[tuple[str, str], set[str]]:
    """Pools that jobs of each partition ran on, by cluster and partition."""
    found: dict[tuple[str, str], set[str]] = {}
    for name, own in fleet.pools.items():
        for partition in history(own).jobs["partition"].cast(pl.String).drop_nulls().unique():
            found.setdefault((name.rpartition("/")[0], partition), set()).add(name)
    return found


def _fits(own: Scenario, other: str, there: PlanProblem, reached: Mapping[tuple[str, str], set[str]]) -> pl.Expr:
    """Whether a job may run on another pool: partition and queue reach it, a node is wide enough, memory suffices."""
    cluster = other.rpartition("/")[0]
    barred = [place for (where, place), pools in reached.items() if where == cluster and other not in pools]
    in_reach = ~pl.col("partition").is_in(barred).fill_null(value=False)
    barred = queues_without_flavor(history(own).trace.quotas, there.gpu_model.name)
    in_reach &= ~pl.col("tenant").cast(pl.String).is_in(barred).fill_null(value=False)
    holds = (pl.col("gpus") <= there.gpus_per_node) & (pl.col("needs_gib") <= there.gpu_model.memory_gib)
    return in_reach & holds


def queues_without_flavor(quotas: pl.DataFrame | None, gpu_model: str) -> list[str]:
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
    return [
        name for name, words in rows if not any(word is None or is_gpu_model_name(word, gpu_model) for word in words)
    ]


def _part_of_work(work: pl.DataFrame, fits: pl.Expr, problem: PlanProblem) -> Floats:
    """Share of each tenant's work that named no GPU model and fits, shape (n_tenants,)."""
    movable = pl.col("work").filter(pl.col("unnamed") & fits.fill_null(value=False)).sum()
    by = work.group_by("tenant").agg(all=pl.col("work").sum(), movable=movable)
    shares = {tenant: part / whole for tenant, whole, part in by.iter_rows() if whole}
    return np.array([min(1.0, shares.get(tenant, 0.0)) for tenant in problem.tenants])


def find_substitute_profile(home: GpuModel, profile: str, gpu_model: GpuModel) -> tuple[str, float] | None:
    """Profile of another GPU model that serves one, and how many do the work of one; None where none does.

    A gain in speed that nobody measured is none; a loss is that of bandwidth or of arithmetic, whichever is worse.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> a100, h100 = load_gpu_model("A100-80GB"), load_gpu_model("H100-80GB-SXM5")
    >>> find_substitute_profile(h100, "gpu", a100), find_substitute_profile(a100, "gpu", h100)
    (('gpu', 3.16...), ('gpu', 1.0))
    """
    there = WHOLE_GPU if profile == WHOLE_GPU else _smallest_profile(home, profile, gpu_model)
    if there is None:
        return None
    own, other = _speeds(home, profile), _speeds(gpu_model, there)
    if own is None or other is None:
        return None
    return there, max(1.0, own[0] / other[0], own[1] / other[1])


def _smallest_profile(home: GpuModel, profile: str, gpu_model: GpuModel) -> str | None:
    """Smallest plain profile with as much memory and as many SMs."""
    own = home.profile(profile)
    enough = [
        one
        for one in gpu_model.profiles
        if one.attribute == own.attribute
        and None not in (one.memory_gib, own.memory_gib, one.sms, own.sms)
        and (one.memory_gib or 0) >= (own.memory_gib or 0) * 0.95
        and (one.sms or 0) >= (own.sms or 0)
    ]
    return min(enough, key=lambda one: one.size_order).name if enough else None


def _speeds(gpu_model: GpuModel, profile: str) -> tuple[float, float] | None:
    """Bandwidth and arithmetic of an instance; None where no source states them for the GPU model."""
    try:
        sheet = find_gpu_spec(gpu_model.name)
    except GeometryError:
        return None
    if sheet is None:
        return None
    if profile == WHOLE_GPU:
        return sheet.memory_bandwidth, sheet.flops
    one = gpu_model.profile(profile)
    return (
        sheet.memory_bandwidth * one.memory_slices / gpu_model.memory_slices,
        sheet.flops * one.compute_slices / gpu_model.compute_slices,
    )


def fleet_planned(
    fleet: FleetPools,
    method: str | None = None,
    *,
    calendars: int | None = None,
    known_plans: Mapping[str, Planned] | None = None,
    tell: Callable[[str], object] | None = None,
) -> FleetPlanned:
    """Plan every pool of a fleet, one by one.

    Of a fleet whose jobs do not say on which GPU model they ran, any may serve any job, and the pools are filled one
    after the other. Else demand is that of the pool's own jobs; where the scenario names substitute models, demand
    that named none first goes to them, in their order.

    Plans of pools' own demand that are at hand, in `known_plans`, are taken where no demand was sent from or to the
    pool; `tell` is called with the name of each pool that is planned.
    """
    plans_at_hand = known_plans or {}
    problems: dict[str, PlanProblem] = {}
    owners: dict[str, Scenario] = {}
    remarks: list[str] = []
    for name, own in fleet.pools.items():
        if history(own).fleet.untold:
            prefix = name.removesuffix(name.rpartition("/")[2])
            filled = {f"{prefix}{model}": one for model, one in filled_in_turn(own).items()}
            remarks.append(
                f"Jobs do not name their GPU model, so any model may serve them: {', '.join(filled)} are filled in "
                "this order, most GPUs first. Their needs of memory or architecture are not known."
            )
        else:
            made = plans_at_hand.get(name)
            filled = {name: made.problem if made is not None else plan_problem(own, "rightsized")}
        problems |= filled
        owners |= dict.fromkeys(filled, own)

    demand = () if remarks else find_flexible_demand(fleet, problems)
    transfers = route_demand(problems, demand)
    pools: dict[str, Planned] = {}
    for name, problem in apply_transfers(problems, transfers).items():
        if name in plans_at_hand and problem is problems[name]:
            pools[name] = plans_at_hand[name]
            continue
        if tell is not None:
            tell(name)
        pools[name] = planned_for(problem, owners[name], method, calendars=calendars)
    return FleetPlanned(pools, tuple(remarks), tuple(transfers), flexible=bool(demand))


def filled_in_turn(scenario: Scenario) -> dict[str, PlanProblem]:
    """One problem of whole GPUs for each board, where any of them may serve any job.

    A pool gets what the pools before it cannot hold. Its part of the demand never falls where the whole rises, so
    that GPUs on, GPUs emptied and demand not met add up to those of one pool of all GPUs, slot by slot.
    """
    whole = plan_problem(scenario, "rightsized")
    known = history(scenario)
    gpu_model = pl.col("gpu_model").fill_null(UNNAMED_GPU_MODEL)
    nodes = nodes_in_service(known.fleet.installed.inventory, known.end).group_by(gpu_model=gpu_model).agg("gpus")
    boards = nodes.sort(pl.col("gpus").list.sum(), "gpu_model", descending=[True, False])
    wanted = whole.demand.sum(axis=1, keepdims=True)
    total = wanted.sum(axis=(0, 1))
    share = np.divide(wanted, total, out=np.zeros_like(wanted), where=total > 0)
    found: dict[str, PlanProblem] = {}
    before = 0
    for name, sizes in boards.iter_rows():
        gpus, last = sum(sizes), len(found) + 1 == boards.height
        part = np.clip(total - before, 0.0, None if last else gpus)
        kept = {"whole_gpus_kept": min(whole.whole_gpus_kept, gpus), "initial": {WHOLE_GPU: gpus}}
        model = load_any_gpu_model(name) if is_catalogue_model(name) else make_non_mig_model(name)
        found[name] = replace(
            whole, gpu_model=model, gpus=gpus, gpus_per_node=max(sizes), profiles=(WHOLE_GPU,), demand=share * part,
            change=find_change_cost(scenario, model), nodes=None, **kept,
        )  # fmt: skip
        before += gpus
    return found


@dataclass(frozen=True, eq=False)
class FleetPlanned:
    """The plans of all pools.

    - ``pools``: Problem and plan of each, by name.
    - ``remarks``: What a reader must know of how demand was parted, in sentences.
    - ``transfers``: Demand that is served by another GPU model than the one that it ran on.
    - ``flexible``: Whether the scenario names models that may serve demand of others.
    """

    pools: Mapping[str, Planned]
    remarks: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    flexible: bool = False

    @property
    def plan(self) -> FleetPlan:
        """The plans as one: objective and bound are the sums over the pools."""
        plans = {name: one.plan for name, one in self.pools.items()}
        return FleetPlan(plans, sum(plan.seconds or 0.0 for plan in plans.values()))

    @property
    def problems(self) -> dict[str, PlanProblem]:
        """The problems by pool, as a plan file has them."""
        return {name: one.problem for name, one in self.pools.items()}

    @property
    def table(self) -> pl.DataFrame:
        """A row for each pool, and one for all: what it costs, what no plan undercuts, and how many GPUs are on."""
        fleet = self.plan
        parts = pl.DataFrame([_row(name, one) for name, one in self.pools.items()], infer_schema_length=None)
        total = parts.select(
            pl.lit("all").alias("pool"),
            pl.lit(fleet.status).alias("status"),
            pl.col(SUMMED).exclude("bound").sum(),
            pl.lit(fleet.bound, pl.Float64).alias("bound"),
            pl.lit(fleet.gap, pl.Float64).alias("gap"),
        )
        order = ("pool", "status", *SUMMED[:3], "gap", *SUMMED[3:], "peak_gpus")
        return pl.concat([parts, total], how="diagonal_relaxed").select(order)

    @property
    def moved(self) -> pl.DataFrame:
        """What was sent where: a row for each pool and profile, and where it went, with mean instances of both."""
        rows = []
        for transfer in self.transfers:
            instances = float(transfer.amount.sum(axis=0).mean())
            names = ("/".join(transfer.origin), "/".join(transfer.place))
            there = instances * transfer.instances_for_one
            rows.append((*names, transfer.instances_for_one, instances, there))
        return pl.DataFrame(rows, schema=MOVED, orient="row").sort("instances", descending=True)

    @property
    def sentence(self) -> str | None:
        """How much demand goes to another GPU model; None where every job stays with the model that it ran on."""
        if not self.flexible:
            return None
        if not self.transfers:
            return "Demand without a requested GPU model stays where it ran: no preferred model has capacity for it."
        gpus = 0.0
        for transfer in self.transfers:
            pool, profile = transfer.origin
            gpus += float(transfer.amount.sum(axis=0).mean()) * self.problems[pool].gpu_model.gpu_fraction(profile)
        most_moved = self.moved.select("of", "to").head(3).iter_rows()
        listed = ", ".join(f"{one} to {other}" for one, other in most_moved)
        others = " and others" if len(self.transfers) > 3 else ""
        return (
            f"A mean of {gpus:,.1f} GPUs of demand goes to another GPU model than it ran on, in the order of "
            f"substitute_models ({listed}{others}). A model that is faster by data sheet alone gets no credit; one "
            "that is slower takes more instances."
        )


_INSTANCES = dict.fromkeys(("instances_for_one", "instances", "instances_there"), pl.Float64)
MOVED = {"of": pl.String, "to": pl.String, **_INSTANCES}
SUMMED = ("gpus", "objective", "bound", "mean_gpus", "unmet_gpu_hours", "changes")
"""Columns of the table that are added up over the pools."""


def _row(name: str, one: Planned) -> dict[str, float | int | str | None]:
    plan, problem = one.plan, one.problem
    on = plan.counts.sum(axis=1) if plan.is_feasible else np.zeros(1, dtype=np.int64)
    return {
        "pool": name, "status": plan.status, "gpus": problem.gpus, "objective": plan.objective, "bound": plan.bound,
        "gap": plan.gap, "mean_gpus": float(on.mean()), "unmet_gpu_hours": plan.unmet_gpu_hours,
        "changes": plan.changes, "peak_gpus": int(on.max()),
    }  # fmt: skip
