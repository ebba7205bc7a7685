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
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import count_text, gpus_text
from gpuplanner.decision.comparison_record import Comparison
from gpuplanner.decision.decision_types import RECORD_DECIMALS, Decision
from gpuplanner.decision.layout_planning import PlannedProblem, make_plan_problem, plan_problem_for
from gpuplanner.decision.sharing_rules import is_gpu_model_name
from gpuplanner.hardware.gpu_models import GpuModel, load_any_gpu_model, make_non_mig_model
from gpuplanner.hardware.repartitioning_cost import find_change_cost
from gpuplanner.planner.fleet_plans_and_comparisons import FleetPlan
from gpuplanner.planner.plan_problem import DEMAND_ROUNDING_INSTANCES, PlanProblem
from gpuplanner.sizing.training_throughput import find_gpu_spec
from gpuplanner.usage.installed_capacity import nodes_in_service
from gpuplanner.usage.planning_history import FleetPools, history
from gpuplanner.usage.rightsizing import RIGHTSIZING_HEADROOM_FRACTION
from gpuplanner.usage.study_fleet import UNNAMED_GPU_MODEL, is_catalogue_model


def sum_decisions(decisions: Mapping[str, Decision]) -> dict[str, Any]:
    """Sum the decisions of GPU pools that share no GPU and no job.

    - ``fleet_gpus``, ``gpus``: GPUs installed, and peak GPUs provisioned, summed over pools.
    - ``saving``: GPU-hours saved a week, with the sums of the interval ends, ``low`` and ``high``: as wide as if all
      pools erred the same way. None if nothing is saved.
    - ``usd_per_week``: Spend that ends; None if none of a pool is known.

    Examples
    --------
    >>> sum_decisions({})["gpus"]
    0
    """
    savings = [decision.saving for decision in decisions.values() if decision.saving.value is not None]
    impacts = [decision.financial_impact for decision in decisions.values()]
    usd_amounts = [impact.usd_per_week for impact in impacts if impact.usd_per_week is not None]
    has_intervals = bool(savings) and all(None not in (saving.low, saving.high) for saving in savings)
    return {
        "fleet_gpus": sum(decision.fleet_gpus for decision in decisions.values()),
        "gpus": sum(decision.gpus for decision in decisions.values()),
        "saving": round(sum(decision.value or 0.0 for decision in savings), RECORD_DECIMALS) if savings else None,
        "low": round(sum(decision.low or 0.0 for decision in savings), RECORD_DECIMALS) if has_intervals else None,
        "high": round(sum(decision.high or 0.0 for decision in savings), RECORD_DECIMALS) if has_intervals else None,
        "usd_per_week": round(sum(usd_amounts), RECORD_DECIMALS) if usd_amounts else None,
    }


_ACTION_TEXTS = {"none": "no recommendation", "power_down": "power down idle nodes", "raise_limit": "raise limits"}
"""Texts of actions in sentences, where they differ from the name of the action."""


def format_fleet_decision(decisions: Mapping[str, Decision]) -> str:
    """Format the decision on a fleet of several GPU pools: GPUs needed, capacity freed, and actions by pool."""
    sums = sum_decisions(decisions)
    pools, needed_gpus = count_text(len(decisions), "pool"), sums["gpus"]
    decided = all(decision.action != "none" for decision in decisions.values())
    text = f"{sums['fleet_gpus']:,} GPUs in {pools}{f': {needed_gpus:,} needed' if decided else ''}"
    if sums["saving"] is not None:
        span = "" if sums["low"] is None else f" (range {sums['low']:,.0f} to {sums['high']:,.0f})"
        text += f"; capacity freed: {sums['saving']:,.0f} GPU-hours per week{span}"
    by_action: dict[str, list[str]] = {}
    for name, decision in decisions.items():
        by_action.setdefault(decision.action, []).append(name)
    parts = [f"{', '.join(names)}: {_ACTION_TEXTS.get(action, action)}" for action, names in by_action.items()]
    return f"{text}. {'; '.join(parts)}."


@dataclass(frozen=True)
class ComparedFleet:
    """Policy comparisons of a fleet, by GPU pool."""

    pools: Mapping[str, Comparison]

    @property
    def decisions(self) -> dict[str, Decision]:
        """Decision of each GPU pool."""
        return {name: comparison.decision for name, comparison in self.pools.items()}

    @property
    def decision_text(self) -> str:
        """The decision on the whole fleet in one sentence."""
        return format_fleet_decision(self.decisions)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of ``compare --json`` for several GPU pools: each by its name, and their sum."""
        pools = {name: comparison.to_dict() for name, comparison in self.pools.items()}
        return {"fleet": sum_decisions(self.decisions), "pools": pools}


def make_decision_table(decisions: Mapping[str, Decision]) -> pl.DataFrame:
    """Make a table with a row for each GPU pool: GPUs installed, GPUs needed, action, and saving."""
    rows = [
        {
            "pool": name, "gpus": decision.fleet_gpus, "needed": decision.gpus, "cut_gpus": decision.partitioned_gpus,
            "action": decision.action.replace("_", " "), "freed_gpu_hours": decision.saving.value,
        }
        for name, decision in decisions.items()
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


Floats = NDArray[np.float64]
"""Array of float."""


@dataclass(frozen=True, eq=False)
class Substitute:
    """A GPU pool that may serve demand of another pool.

    - ``pool``, ``profile``: Pool and profile that serve the demand.
    - ``instances_for_one``: Instances there that do the work of one instance of the demand.
    - ``fitting_share``, shape (n_tenants,): Share of each tenant's demand that fits there [0-1].
    """

    pool: str
    profile: str
    instances_for_one: float
    fitting_share: Floats


@dataclass(frozen=True, eq=False)
class FlexibleDemand:
    """Demand for one profile of a GPU pool that other pools may serve as well.

    - ``pool``, ``profile``: Pool and profile that the jobs ran on.
    - ``movable_share``, shape (n_tenants,): Share of each tenant's demand that may move to another pool [0-1].
    - ``substitutes``: Pools that may serve it, in order of preference; an entry with the name of the own pool marks the
      turn of that pool.
    """

    pool: str
    profile: str
    movable_share: Floats
    substitutes: tuple[Substitute, ...]


@dataclass(frozen=True, eq=False)
class Transfer:
    """Demand that another GPU pool serves.

    - ``origin``, ``destination``: Pool and profile that the demand is for, and that serve it.
    - ``instances_for_one``: Instances at the destination that do the work of one of the origin.
    - ``amount``, shape (n_tenants, n_intervals): Mean concurrent instances of the origin, by tenant of the origin.
    """

    origin: tuple[str, str]
    destination: tuple[str, str]
    instances_for_one: float
    amount: Floats


def route_demand(problems: Mapping[str, PlanProblem], demand: Sequence[FlexibleDemand]) -> list[Transfer]:
    """Send demand in each interval to the first GPU pool, in order of preference, with free GPUs for it.

    A pool has capacity as long as its GPUs in service exceed its own demand and the demand sent to it. As in Kueue,
    whose queues try the flavors of a resource group in their order, the order of preference alone decides. Demand that
    no pool has capacity for stays in its own pool.

    Parameters
    ----------
    problems : mapping of str to PlanProblem
        Planning problem of each pool.
    demand : sequence of FlexibleDemand
        Demand that may move, each pool and profile at most once; the first has the first choice.

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
    free = {name: problem.max_gpus_on - problem.shares @ problem.pooled_demand for name, problem in problems.items()}
    transfers = []
    for flexible in demand:
        origin_problem = problems[flexible.pool]
        own_demand = origin_problem.admitted_demand[:, origin_problem.profiles.index(flexible.profile)]
        own_share = origin_problem.gpu_model.gpu_fraction(flexible.profile)
        remaining = own_demand * flexible.movable_share[:, None]
        for substitute in flexible.substitutes:
            if substitute.pool == flexible.pool:
                # The own pool keeps what it has room for; only what is beyond its GPUs is tried further.
                excess_instances = (-free[flexible.pool]).clip(0) / own_share
                remaining = remaining * _find_served_share(remaining, excess_instances)
                continue

            substitute_share = problems[substitute.pool].gpu_model.gpu_fraction(substitute.profile)
            gpus_for_one = substitute_share * substitute.instances_for_one
            movable = np.minimum(remaining, own_demand * substitute.fitting_share[:, None])
            amount = movable * _find_served_share(movable, free[substitute.pool].clip(0) / gpus_for_one)
            amount[amount < DEMAND_ROUNDING_INSTANCES] = 0.0
            if not amount.any():
                continue

            remaining = remaining - amount
            free[substitute.pool] = free[substitute.pool] - amount.sum(axis=0) * gpus_for_one
            free[flexible.pool] = free[flexible.pool] + amount.sum(axis=0) * own_share
            origin, destination = (flexible.pool, flexible.profile), (substitute.pool, substitute.profile)
            transfers.append(Transfer(origin, destination, substitute.instances_for_one, amount))
    return transfers


def _find_served_share(wanted_instances: Floats, instances: Floats) -> Floats:
    """Return the share of demand that instances serve, shape (n_intervals,) [0-1].

    Parameters
    ----------
    wanted_instances : array of float, shape (n_tenants, n_intervals)
        Demanded instances.
    instances : array of float, shape (n_intervals,)
        Available instances.
    """
    total_wanted = wanted_instances.sum(axis=0)
    served_share: Floats = np.divide(instances, total_wanted, out=np.zeros_like(total_wanted), where=total_wanted > 0)
    return served_share.clip(max=1.0)


def apply_transfers(problems: Mapping[str, PlanProblem], transfers: Sequence[Transfer]) -> dict[str, PlanProblem]:
    """Return the problems of all GPU pools with the demand that each serves after the transfers.

    A tenant that moves to a pool brings its tier and its price of unmet demand. Quotas are those of the pool of origin:
    demand that they reject moves nowhere.
    """
    changed = dict(problems)
    touched_pools = (pool for transfer in transfers for pool, _ in (transfer.origin, transfer.destination))
    for name in dict.fromkeys(touched_pools):
        problem = changed[name]
        changed[name] = replace(problem, demand=problem.admitted_demand, limits=replace(problem.limits, quotas={}))

    for transfer in transfers:
        (pool, profile), origin_problem = transfer.origin, changed[transfer.origin[0]]
        demand = origin_problem.demand.copy()
        demand_rows = demand[: len(transfer.amount), origin_problem.profiles.index(profile)]
        demand_rows[:] = (demand_rows - transfer.amount).clip(0.0)
        changed[pool] = replace(origin_problem, demand=demand)
        arriving = dict(zip(origin_problem.tenants, transfer.amount * transfer.instances_for_one, strict=False))
        target, profile = transfer.destination
        changed[target] = _add_demand(changed[target], profile, arriving, origin_problem)
    return changed


def _add_demand(
    problem: PlanProblem, profile: str, arriving: Mapping[str, Floats], origin_problem: PlanProblem
) -> PlanProblem:
    """Add demand of the tenants of another GPU pool for a profile to a problem.

    Parameters
    ----------
    problem : PlanProblem
        Problem of the pool that serves the demand.
    profile : str
        Profile that serves it.
    arriving : mapping of str to array of float, shape (n_intervals,)
        Mean concurrent instances, by tenant.
    origin_problem : PlanProblem
        Problem of the pool of origin.
    """
    profiles = (*problem.profiles, *([] if profile in problem.profiles else [profile]))
    new_tenants = [name for name in arriving if name not in problem.tenants and arriving[name].any()]
    numbers = [origin_problem.tenants.index(name) for name in new_tenants]
    tenants = (*problem.tenants, *new_tenants)
    demand = np.zeros((len(tenants), len(profiles), problem.n_slots))
    demand[: len(problem.tenants), : len(problem.profiles)] = problem.demand
    for name in arriving.keys() & set(tenants):
        demand[tenants.index(name), profiles.index(profile)] += arriving[name]
    return replace(
        problem, tenants=tenants, profiles=profiles, demand=demand,
        tiers=(*problem.tiers, *(origin_problem.tiers[number] for number in numbers)),
        unmet_price=(*problem.unmet_price, *(origin_problem.unmet_price[number] for number in numbers)),
    )  # fmt: skip


def find_flexible_demand(fleet: FleetPools, problems: Mapping[str, PlanProblem]) -> tuple[FlexibleDemand, ...]:
    """Find the demand of jobs that requested no GPU model, with the models of ``substitute_models`` that can serve it.

    A job may run on a model that jobs of its partition ran on and that its queue has a flavor of, if a node is large
    enough and its measured memory, with headroom, fits. Full GPUs replace full GPUs; MIG instances are replaced by the
    smallest instance with as many SMs and as much memory.
    """
    reachable = _list_pools_of_partitions(fleet)
    flexible_demand = []
    for name, scenario in fleet.pools.items():
        problem, order = problems[name], list_preferred_pools(scenario, name, problems)
        if not set(order) - {name}:
            continue
        jobs = _list_recent_work(scenario)
        for profile in problem.profiles:
            work = jobs.filter(profile=profile)
            movable_share = _find_movable_share(work, pl.lit(value=True), problem)
            if not movable_share.any():
                continue
            substitutes = []
            for other_pool in order:
                other_problem = problems[other_pool]
                if other_pool == name:
                    substitutes.append(Substitute(name, profile, 1.0, movable_share))
                elif (fit := find_substitute_profile(problem.gpu_model, profile, other_problem.gpu_model)) is not None:
                    can_run = _can_run_elsewhere(scenario, other_pool, other_problem, reachable)
                    substitutes.append(Substitute(other_pool, *fit, _find_movable_share(work, can_run, problem)))
            flexible_demand.append(FlexibleDemand(name, profile, movable_share, tuple(substitutes)))
    return tuple(flexible_demand)


def list_preferred_pools(scenario: Scenario, pool: str, pools: Mapping[str, PlanProblem]) -> list[str]:
    """List the GPU pools of the GPU models that the scenario of a pool prefers, in order, within its own cluster.

    Each cluster has a queue of its own, so no job moves to another one.
    """
    cluster = pool.rpartition("/")[0]
    by_model = {name.rpartition("/")[2]: name for name in pools if name.rpartition("/")[0] == cluster}
    words = filter(None, (word.strip() for word in (scenario.substitute_models or "").split(",")))
    names = (resolve_name(x, by_model, subject="GPU model of substitute_models", error=ScenarioError) for x in words)
    return [by_model[model] for model in dict.fromkeys(names)]


def _list_recent_work(scenario: Scenario) -> pl.DataFrame:
    """List recent jobs: ``work`` [instance-seconds], ``unnamed`` (no GPU model requested) and ``needs_gib`` [GiB]."""
    job_history = history(scenario)
    recent = job_history.views["rightsized"].filter(pl.col("submit_time") >= job_history.recent)
    partition, unnamed = (pl.col("partition").cast(pl.String), ~pl.col("gpu_model_requested").fill_null(value=True))
    needs_gib = (pl.col("memory_peak_gib") * (1 + RIGHTSIZING_HEADROOM_FRACTION)).fill_null(0.0)
    work = (pl.col("instances") * pl.col("run_s")).fill_null(0.0)
    return recent.select("tenant", "profile", "gpus", partition, unnamed=unnamed, needs_gib=needs_gib, work=work)


def _list_pools_of_partitions(fleet: FleetPools) -> dict[tuple[str, str], set[str]]:
    """List the GPU pools that jobs of each partition ran on, by cluster and partition."""
    reachable: dict[tuple[str, str], set[str]] = {}
    for name, scenario in fleet.pools.items():
        for partition in history(scenario).jobs["partition"].cast(pl.String).drop_nulls().unique():
            reachable.setdefault((name.rpartition("/")[0], partition), set()).add(name)
    return reachable


def _can_run_elsewhere(
    scenario: Scenario, other_pool: str, other_problem: PlanProblem, reachable: Mapping[tuple[str, str], set[str]]
) -> pl.Expr:
    """Whether a job may run on another GPU pool, by partition, queue, node size and memory.

    Parameters
    ----------
    scenario : Scenario
        Scenario of the pool of origin.
    other_pool : str
        Name of the other pool.
    other_problem : PlanProblem
        Its planning problem.
    reachable : mapping of (cluster, partition) to set of str
        Pools that jobs of each partition ran on.
    """
    cluster = other_pool.rpartition("/")[0]
    barred = [key[1] for key, pools in reachable.items() if key[0] == cluster and other_pool not in pools]
    in_reach = ~pl.col("partition").is_in(barred).fill_null(value=False)
    barred = list_queues_without_flavor(history(scenario).trace.quotas, other_problem.gpu_model.name)
    in_reach &= ~pl.col("tenant").cast(pl.String).is_in(barred).fill_null(value=False)
    fits = (pl.col("gpus") <= other_problem.gpus_per_node) & (pl.col("needs_gib") <= other_problem.gpu_model.memory_gib)
    return in_reach & fits


def list_queues_without_flavor(quotas: pl.DataFrame | None, gpu_model: str) -> list[str]:
    """List the queues all of whose flavors are of other GPU models.

    Examples
    --------
    >>> rows = {"tenant": ["a", "b"], "gpu_model": ["NVIDIA-L40S", None]}
    >>> list_queues_without_flavor(pl.DataFrame(rows), "T4"), list_queues_without_flavor(pl.DataFrame(rows), "L40S")
    (['a'], [])
    """
    if quotas is None:
        return []
    rows = quotas.group_by("tenant").agg("gpu_model").sort("tenant").iter_rows()
    return [
        name for name, words in rows if not any(word is None or is_gpu_model_name(word, gpu_model) for word in words)
    ]


def _find_movable_share(work: pl.DataFrame, can_run: pl.Expr, problem: PlanProblem) -> Floats:
    """Return the share of each tenant's work that requested no GPU model and can run, shape (n_tenants,) [0-1]."""
    movable = pl.col("work").filter(pl.col("unnamed") & can_run.fill_null(value=False)).sum()
    by_tenant = work.group_by("tenant", maintain_order=True).agg(all=pl.col("work").sum(), movable=movable)
    shares = {tenant: movable / total for tenant, total, movable in by_tenant.iter_rows() if total}
    return np.array([min(1.0, shares.get(tenant, 0.0)) for tenant in problem.tenants])


def find_substitute_profile(home_gpu_model: GpuModel, profile: str, gpu_model: GpuModel) -> tuple[str, float] | None:
    """Find the profile of another GPU model that can serve a profile, and how many do the work of one.

    None if no profile can serve it. An unmeasured gain in speed does not count; a loss is that of bandwidth or of
    arithmetic, whichever is larger.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> a100, h100 = load_gpu_model("A100-80GB"), load_gpu_model("H100-80GB-SXM5")
    >>> find_substitute_profile(h100, "gpu", a100), find_substitute_profile(a100, "gpu", h100)
    (('gpu', 3.16...), ('gpu', 1.0))
    """
    substitute = FULL_GPU if profile == FULL_GPU else _find_smallest_profile(home_gpu_model, profile, gpu_model)
    if substitute is None:
        return None
    own_speeds, other_speeds = _find_speeds(home_gpu_model, profile), _find_speeds(gpu_model, substitute)
    if own_speeds is None or other_speeds is None:
        return None
    return substitute, max(1.0, own_speeds[0] / other_speeds[0], own_speeds[1] / other_speeds[1])


def _find_smallest_profile(home_gpu_model: GpuModel, profile: str, gpu_model: GpuModel) -> str | None:
    """Find the smallest plain profile with as much memory and as many SMs."""
    own_profile = home_gpu_model.profile(profile)
    large_enough = [
        candidate
        for candidate in gpu_model.profiles
        if candidate.attribute == own_profile.attribute
        and None not in (candidate.memory_gib, own_profile.memory_gib, candidate.sms, own_profile.sms)
        and (candidate.memory_gib or 0) >= (own_profile.memory_gib or 0) * 0.95
        and (candidate.sms or 0) >= (own_profile.sms or 0)
    ]
    return min(large_enough, key=lambda candidate: candidate.size_order).name if large_enough else None


def _find_speeds(gpu_model: GpuModel, profile: str) -> tuple[float, float] | None:
    """Find memory bandwidth [B/s] and arithmetic speed [FLOP/s] of an instance; None if no source states them."""
    try:
        gpu_spec = find_gpu_spec(gpu_model.name)
    except GeometryError:
        return None
    if gpu_spec is None:
        return None
    if profile == FULL_GPU:
        return gpu_spec.memory_bandwidth, gpu_spec.flops
    mig_profile = gpu_model.profile(profile)
    return (
        gpu_spec.memory_bandwidth * mig_profile.memory_slices / gpu_model.memory_slices,
        gpu_spec.flops * mig_profile.compute_slices / gpu_model.compute_slices,
    )


def plan_fleet(
    fleet: FleetPools,
    method: str | None = None,
    *,
    calendars: int | None = None,
    known_plans: Mapping[str, PlannedProblem] | None = None,
    report_pool: Callable[[str], object] | None = None,
) -> FleetPlans:
    """Plan every GPU pool of a fleet, one by one.

    If jobs do not name their GPU model, any model may serve any job, and the pools are filled one after the other. Else
    demand is that of the pool's own jobs; if the scenario names substitute models, demand that requested no model goes
    to them first, in their order.

    Parameters
    ----------
    fleet : FleetPools
        Scenarios of the pools.
    method : str, optional
        Planning method.
    calendars : int, optional
        Most sets of layouts that take turns.
    known_plans : mapping of str to PlannedProblem, optional
        Plans of pools' own demand, used for pools without transfers.
    report_pool : callable, optional
        Called with the name of each pool before it is planned.
    """
    plans_at_hand = known_plans or {}
    problems: dict[str, PlanProblem] = {}
    scenario_of_pool: dict[str, Scenario] = {}
    remarks: list[str] = []
    for name, scenario in fleet.pools.items():
        if history(scenario).fleet.has_jobs_without_gpu_model:
            prefix = name.removesuffix(name.rpartition("/")[2])
            own_problems = {f"{prefix}{model}": problem for model, problem in fill_models_in_turn(scenario).items()}
            remarks.append(
                f"Jobs do not name their GPU model, so any model may serve them: {', '.join(own_problems)} are filled "
                "in this order, most GPUs first. Their needs of memory or architecture are not known."
            )
        else:
            plan = plans_at_hand.get(name)
            own_problems = {name: plan.problem if plan is not None else make_plan_problem(scenario, "rightsized")}
        problems |= own_problems
        scenario_of_pool |= dict.fromkeys(own_problems, scenario)

    flexible_demand = () if remarks else find_flexible_demand(fleet, problems)
    transfers = route_demand(problems, flexible_demand)
    pools: dict[str, PlannedProblem] = {}
    for name, problem in apply_transfers(problems, transfers).items():
        if name in plans_at_hand and problem is problems[name]:
            pools[name] = plans_at_hand[name]
            continue
        if report_pool is not None:
            report_pool(name)
        pools[name] = plan_problem_for(problem, scenario_of_pool[name], method, calendars=calendars)
    return FleetPlans(pools, tuple(remarks), tuple(transfers), has_flexible_demand=bool(flexible_demand))


def fill_models_in_turn(scenario: Scenario) -> dict[str, PlanProblem]:
    """Make a planning problem of full GPUs for each GPU model, where any model may serve any job.

    A pool gets the demand that the pools before it cannot serve. Its demand never falls where the total rises, so that
    GPUs provisioned, GPUs drained and unmet demand add up to those of one pool of all GPUs in each interval.
    """
    problem = make_plan_problem(scenario, "rightsized")
    past = history(scenario)
    gpu_model = pl.col("gpu_model").fill_null(UNNAMED_GPU_MODEL)
    nodes = (
        nodes_in_service(past.fleet.installed.inventory, past.end)
        .group_by(gpu_model=gpu_model, maintain_order=True)
        .agg("gpus")
    )
    models_by_gpus = nodes.sort(pl.col("gpus").list.sum(), "gpu_model", descending=[True, False])
    wanted_gpus = problem.demand.sum(axis=1, keepdims=True)
    total_wanted = wanted_gpus.sum(axis=(0, 1))
    share = np.divide(wanted_gpus, total_wanted, out=np.zeros_like(wanted_gpus), where=total_wanted > 0)
    problems: dict[str, PlanProblem] = {}
    gpus_filled = 0
    for name, sizes in models_by_gpus.iter_rows():
        gpus, is_last = sum(sizes), len(problems) + 1 == models_by_gpus.height
        part = np.clip(total_wanted - gpus_filled, 0.0, None if is_last else gpus)
        own_limits = {"whole_gpus_kept": min(problem.whole_gpus_kept, gpus), "initial": {FULL_GPU: gpus}}
        model = load_any_gpu_model(name) if is_catalogue_model(name) else make_non_mig_model(name)
        problems[name] = replace(
            problem, gpu_model=model, gpus=gpus, gpus_per_node=max(sizes), profiles=(FULL_GPU,), demand=share * part,
            change=find_change_cost(scenario, model), nodes=None, **own_limits,
        )  # fmt: skip
        gpus_filled += gpus
    return problems


@dataclass(frozen=True, eq=False)
class FleetPlans:
    """Plans of all GPU pools of a fleet.

    - ``pools``: Plan and problem of each pool, by name.
    - ``remarks``: Notes on how demand was divided.
    - ``transfers``: Demand that another GPU model serves.
    - ``has_flexible_demand``: Whether the scenario names models that may serve demand of others.
    """

    pools: Mapping[str, PlannedProblem]
    remarks: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    has_flexible_demand: bool = False

    @property
    def combined_plan(self) -> FleetPlan:
        """The plans as one: objective and bound are the sums over the GPU pools."""
        plans = {name: planned.plan for name, planned in self.pools.items()}
        return FleetPlan(plans, sum(plan.seconds or 0.0 for plan in plans.values()))

    @property
    def problems(self) -> dict[str, PlanProblem]:
        """Problems by GPU pool, as in a plan file."""
        return {name: planned.problem for name, planned in self.pools.items()}

    @property
    def summary_table(self) -> pl.DataFrame:
        """Table with a row for each GPU pool and one for all: cost, lower bound, gap and GPUs powered on."""
        fleet = self.combined_plan
        parts = pl.DataFrame([_make_pool_row(*item) for item in self.pools.items()], infer_schema_length=None)
        total = parts.select(
            pl.lit("all").alias("pool"),
            pl.lit(fleet.status).alias("status"),
            pl.col(SUMMED_COLUMNS).exclude("bound").sum(),
            pl.lit(fleet.bound, pl.Float64).alias("bound"),
            pl.lit(fleet.gap, pl.Float64).alias("gap"),
        )
        order = ("pool", "status", *SUMMED_COLUMNS[:3], "gap", *SUMMED_COLUMNS[3:], "peak_gpus")
        return pl.concat([parts, total], how="diagonal_relaxed").select(order)

    @property
    def transfer_table(self) -> pl.DataFrame:
        """Table with a row for each transfer: origin, destination, and mean instances of both."""
        rows = []
        for transfer in self.transfers:
            instances = float(transfer.amount.sum(axis=0).mean())
            names = ("/".join(transfer.origin), "/".join(transfer.destination))
            instances_there = instances * transfer.instances_for_one
            rows.append((*names, transfer.instances_for_one, instances, instances_there))
        return pl.DataFrame(rows, schema=TRANSFER_SCHEMA, orient="row").sort("instances", descending=True)

    @property
    def transfer_text(self) -> str | None:
        """State how much demand another GPU model serves; None if every job stays with the model that it ran on."""
        if not self.has_flexible_demand:
            return None
        if not self.transfers:
            return "Demand without a requested GPU model stays where it ran: no preferred model has capacity for it."
        mean_gpus = 0.0
        for transfer in self.transfers:
            pool, profile = transfer.origin
            mean_gpus += float(transfer.amount.sum(axis=0).mean()) * self.problems[pool].gpu_model.gpu_fraction(profile)
        most_moved = self.transfer_table.select("of", "to").head(3).iter_rows()
        listed = ", ".join(f"{origin} to {destination}" for origin, destination in most_moved)
        others_text = " and others" if len(self.transfers) > 3 else ""
        return (
            f"A mean of {gpus_text(mean_gpus)} of demand goes to another GPU model than it ran on, in the order of "
            f"substitute_models ({listed}{others_text}). A model that is faster by data sheet alone gets no credit; "
            "one that is slower takes more instances."
        )


_INSTANCE_COLUMNS = dict.fromkeys(("instances_for_one", "instances", "instances_there"), pl.Float64)
"""Columns of the table of transfers that count MIG instances at origin and destination."""
TRANSFER_SCHEMA = {"of": pl.String, "to": pl.String, **_INSTANCE_COLUMNS}
"""Columns of the table of transfers."""
SUMMED_COLUMNS = ("gpus", "objective", "bound", "mean_gpus", "unmet_gpu_hours", "changes")
"""Columns of the summary table that are summed over GPU pools."""


def _make_pool_row(name: str, planned: PlannedProblem) -> dict[str, float | int | str | None]:
    """Make the row of a GPU pool in the summary table."""
    plan, problem = planned.plan, planned.problem
    gpus_on = plan.counts.sum(axis=1) if plan.is_feasible else np.zeros(1, dtype=np.int64)
    return {
        "pool": name, "status": plan.status, "gpus": problem.gpus, "objective": plan.objective, "bound": plan.bound,
        "gap": plan.gap, "mean_gpus": float(gpus_on.mean()), "unmet_gpu_hours": plan.unmet_gpu_hours,
        "changes": plan.changes, "peak_gpus": int(gpus_on.max()),
    }  # fmt: skip
