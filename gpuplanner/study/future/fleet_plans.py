"""Plans of a fleet of several boards: one a pool, and what all of them cost, with one bound and one gap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.hardware import any_board, whole_board
from gpuplanner.planner import FleetPlan, PlanProblem
from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.study.future.plans import Planned, plan_problem, plan_view, planned_for
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
    """Plan every pool of a fleet, each as it would be planned by itself.

    Of a fleet whose jobs do not say on which board they ran, any board may serve any job, and the pools are filled
    one after the other.
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
    return FleetPlanned(pools, tuple(remarks))


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
    """

    pools: Mapping[str, Planned]
    remarks: tuple[str, ...] = ()

    @property
    def plan(self) -> FleetPlan:
        """The plans as one: objective and bound are the sums over the pools."""
        plans = {name: one.plan for name, one in self.pools.items()}
        return FleetPlan(plans, sum(found.seconds or 0.0 for found in plans.values()))

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
            pl.col(SUMMED).sum(),
            pl.lit(fleet.gap, pl.Float64).alias("gap"),
        )
        order = ("pool", "status", *SUMMED[:3], "gap", *SUMMED[3:], "most_gpus")
        return pl.concat([parts, total], how="diagonal_relaxed").select(order)


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
