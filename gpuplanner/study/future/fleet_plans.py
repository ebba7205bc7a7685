"""Plans of a fleet of several boards: one a pool, and what all of them cost, with one bound and one gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.errors import require_sound
from gpuplanner.hardware import any_board, whole_board
from gpuplanner.planner import FleetPlan, Movable, PlanProblem, certified, certified_together, verify_fleet
from gpuplanner.planner.contract.movable import Transfer, after_moves
from gpuplanner.planner.several_pools import best_routed
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.future.plans import Planned, plan_problem, plan_view, planned_for
from gpuplanner.study.other_boards import movable_demand
from gpuplanner.study.past.fleet import UNNAMED, in_service, known_board
from gpuplanner.study.past.history import history
from gpuplanner.study.past.pools import FleetPools


def fleet_planned(
    fleet: FleetPools,
    method: str | None = None,
    *,
    calendars: int | None = None,
    tell: Callable[[str], object] | None = None,
) -> FleetPlanned:
    """Plan every pool of a fleet, each as it would be planned by itself; then with demand sent to other boards.

    Of a fleet whose jobs do not say on which board they ran, any board may serve any job, and the pools are filled
    one after the other. Else the scenario says which jobs are not bound to their board: where their demand costs less
    on another one, plans are of what is sent there.
    """
    pools: dict[str, Planned] = {}
    remarks: list[str] = []
    for name, own in fleet.pools.items():
        if tell is not None:
            tell(name)
        if not history(own).fleet.untold:
            pools[name] = plan_view(own, "rightsized", method, calendars=calendars)
            continue
        prefix = name.rpartition("/")[0]
        problems = filled_in_turn(own)
        named = {f"{prefix}/{board}" if prefix else board: one for board, one in problems.items()}
        pools |= {board: planned_for(one, own, method, calendars=calendars) for board, one in named.items()}
        remarks.append(
            f"Jobs do not say on which board they ran, so any may serve them: {', '.join(named)} are filled in this "
            "order, most GPUs first. What a job needs of memory or architecture is not known."
        )
    apart = FleetPlanned(pools, tuple(remarks))
    return apart if remarks else with_moves(fleet, apart, method, calendars=calendars, tell=tell)


def with_moves(
    fleet: FleetPools,
    apart: FleetPlanned,
    method: str | None = None,
    *,
    calendars: int | None = None,
    tell: Callable[[str], object] | None = None,
) -> FleetPlanned:
    """The plans with demand that is not bound to its board sent where all boards together cost least; checked."""
    movable = movable_demand(fleet, apart.problems)
    if not movable or not apart.plan.found:
        return apart
    if tell is not None:
        tell("all boards together")

    def again(given: Mapping[str, PlanProblem]) -> FleetPlan:
        plans = {}
        for name, problem in given.items():
            same = problem is apart.problems[name]  # what nothing was sent from or to is planned already
            made = (
                apart.pools[name]
                if same
                else planned_for(problem, fleet.pools[name], method, calendars=calendars)
            )
            plans[name] = made.plan
        return FleetPlan(plans, 0.0)

    first = next(iter(fleet.pools.values()))
    found = best_routed(apart.problems, movable, again, apart.plan, **first.effort)
    require_sound("plan of all boards", verify_fleet(found, apart.problems, movable))
    given = after_moves(apart.problems, found.moves)
    routed = {name: Planned(given[name], plan) for name, plan in found.plans.items()}
    return FleetPlanned(routed, (), found.moves, found.least, apart, movable)


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
            change=scenario.change(model), nodes=None, **kept,
        )  # fmt: skip
        before += gpus
    return found


@dataclass(frozen=True, eq=False)
class FleetPlanned:
    """The plans of all pools.

    - ``pools``: Problem and plan of each, by name.
    - ``remarks``: What a reader must know of how demand was parted, in sentences.
    - ``moves``: Demand that was sent to another board than its own.
    - ``least``: What no plans undercut, however demand is parted; None where it stays.
    - ``apart``: The plans without a move, where some were tried.
    - ``movable``: Demand that other boards than its own may serve.
    """

    pools: Mapping[str, Planned]
    remarks: tuple[str, ...] = ()
    moves: tuple[Transfer, ...] = ()
    least: float | None = None
    apart: FleetPlanned | None = None
    movable: tuple[Movable, ...] = ()

    @property
    def plan(self) -> FleetPlan:
        """The plans as one: objective and bound are the sums over the pools."""
        plans = {name: one.plan for name, one in self.pools.items()}
        seconds = sum(found.seconds or 0.0 for found in plans.values())
        return FleetPlan(plans, seconds, self.moves, self.least)

    @property
    def proven(self) -> FleetPlan:
        """The plans as a file has them: each with its certificate, and all with that of their bound."""
        plans = {name: certified(one.plan, one.problem) for name, one in self.pools.items()}
        proof = None
        if self.least is not None and self.apart is not None:
            proof = certified_together(self.apart.problems, self.movable, self.moves, self.least)
        return replace(self.plan, plans=plans, proof=proof)

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
        for move in self.moves:
            asked = float(move.amount.sum(axis=0).mean())
            names = ("/".join(move.origin), "/".join(move.place))
            rows.append((*names, move.each, asked, asked * move.each))
        return pl.DataFrame(rows, schema=MOVED, orient="row").sort("instances", descending=True)

    @property
    def sentence(self) -> str | None:
        """What sending demand to other boards saves; None where every job is bound to its own."""
        if self.apart is None:
            return None
        alone, both = self.apart.plan.objective or 0.0, self.plan.objective or 0.0
        if not self.moves:
            return (
                "Demand that named no board was tried on the others too: no plan that was found costs less than each "
                f"board by itself, {alone:,.0f} GPU-hours."
            )
        gpus = sum(
            float(move.amount.sum(axis=0).mean()) * self.problems[move.origin[0]].board.share(move.origin[1])
            for move in self.moves
        )
        listed = ", ".join(
            f"{one} to {other}" for one, other in self.moved.select("of", "to").head(3).iter_rows()
        )
        others = " and others" if len(self.moves) > 3 else ""
        return (
            f"A mean of {gpus:,.1f} GPUs of demand goes to another board than its own ({listed}{others}): "
            f"{alone - both:,.0f} GPU-hours, {(alone - both) / alone:.1%}, less than the {alone:,.0f} of each board by "
            "itself. A GPU-hour counts alike on every board; a board that is faster by its data sheet alone gets no "
            "credit, one that is slower takes more instances."
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
