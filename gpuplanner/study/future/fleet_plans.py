"""Plans of a fleet of several GPU models: one a pool, and what all of them cost, with one bound and one gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.hardware.whole_boards import any_board, whole_board
from gpuplanner.hardware.change_cost import cost_of_change
from gpuplanner.planner.several_pools import FleetPlan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.scenario import Scenario
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.study.future.plans import Planned, plan_problem, planned_for
from gpuplanner.study.past.fleet import UNNAMED, in_service, known_board
from gpuplanner.study.past.history import history
from gpuplanner.study.past.pools import FleetPools
from gpuplanner.study.substitute_models import Transfer, apply_transfers, find_flexible_demand, route_demand


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
                f"Jobs do not say on which GPU model they ran, so any may serve them: {', '.join(filled)} are filled "
                "in this order, most GPUs first. What a job needs of memory or architecture is not known."
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
    board = pl.col("gpu_model").fill_null(UNNAMED)
    nodes = in_service(known.fleet.installed.inventory, known.end).group_by(board=board).agg("gpus")
    boards = nodes.sort(pl.col("gpus").list.sum(), "board", descending=[True, False])
    wanted = whole.demand.sum(axis=1, keepdims=True)
    total = wanted.sum(axis=(0, 1))
    share = np.divide(wanted, total, out=np.zeros_like(wanted), where=total > 0)
    found: dict[str, PlanProblem] = {}
    before = 0
    for name, sizes in boards.iter_rows():
        gpus, last = sum(sizes), len(found) + 1 == boards.height
        part = np.clip(total - before, 0.0, None if last else gpus)
        kept = {"whole_gpus_kept": min(whole.whole_gpus_kept, gpus), "initial": {WHOLE_GPU: gpus}}
        model = any_board(name) if known_board(name) else whole_board(name)
        found[name] = replace(
            whole, board=model, gpus=gpus, gpus_per_node=max(sizes), profiles=(WHOLE_GPU,), demand=share * part,
            change=cost_of_change(scenario, model), nodes=None, **kept,
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
        rows = [_row(name, one) for name, one in self.pools.items()]
        fleet = self.plan
        parts = pl.DataFrame(rows, infer_schema_length=None)
        total = parts.select(
            pl.lit("all").alias("pool"),
            pl.lit(fleet.status).alias("status"),
            pl.col(SUMMED).exclude("bound").sum(),
            pl.lit(fleet.bound, pl.Float64).alias("bound"),
            pl.lit(fleet.gap, pl.Float64).alias("gap"),
        )
        order = ("pool", "status", *SUMMED[:3], "gap", *SUMMED[3:], "most_gpus")
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
            return "Demand that named no GPU model stays where it ran: no model that comes before has room for it."
        gpus = sum(
            float(transfer.amount.sum(axis=0).mean())
            * self.problems[transfer.origin[0]].board.share(transfer.origin[1])
            for transfer in self.transfers
        )
        most_moved = self.moved.select("of", "to").head(3).iter_rows()
        listed = ", ".join(f"{one} to {other}" for one, other in most_moved)
        others = " and others" if len(self.transfers) > 3 else ""
        return (
            f"A mean of {gpus:,.1f} GPUs of demand goes to another GPU model than it ran on, in the order of "
            f"other_boards ({listed}{others}). A model that is faster by its data sheet alone gets no credit, one that "
            "is slower takes more instances."
        )


MOVED = {
    "of": pl.String, "to": pl.String, "instances_for_one": pl.Float64, "instances": pl.Float64,
    "instances_there": pl.Float64,
}  # fmt: skip
SUMMED = ("gpus", "objective", "bound", "mean_gpus", "unmet_gpu_hours", "changes")
"""Columns of the table that are added up over the pools."""


def _row(name: str, one: Planned) -> dict[str, float | int | str | None]:
    plan, problem = one.plan, one.problem
    on = plan.counts.sum(axis=1) if plan.found else np.zeros(1, dtype=np.int64)
    return {
        "pool": name, "status": plan.status, "gpus": problem.gpus, "objective": plan.objective, "bound": plan.bound,
        "gap": plan.gap, "mean_gpus": float(on.mean()), "unmet_gpu_hours": plan.unmet_gpu_hours,
        "changes": plan.changes, "most_gpus": int(on.max()),
    }  # fmt: skip
