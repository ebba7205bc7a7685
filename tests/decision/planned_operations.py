"""The changes of a plan as they are made on a fleet that nobody uses."""

from __future__ import annotations

import polars as pl

from gpuplanner.decision.plan_rehearsal import GpuCalendar, PlannedNodes
from gpuplanner.planner.plan_problem import PlanProblem
from gpuplanner.simulator.scheduling_rules import Drain
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_run import simulate_requests


def operations_on_an_idle_fleet(calendar: GpuCalendar, problem: PlanProblem, drain: Drain) -> pl.DataFrame:
    """``node, gpu, gpus, before, after, wanted_s, began_s, ended_s, outcome`` of every change that drains GPUs."""
    planned = PlannedNodes.from_calendar(calendar, problem, drain)
    nobody = NodeRequests(*([[]] * 7))
    made = simulate_requests(nobody, planned.node_fleet(problem, ()), changes=planned.changes).changes
    per_node, size = problem.gpus_per_node, planned.layouts_by_pool.shape[1]
    slots = (planned.changes.planned_s / (3600.0 * problem.interval_hours)).round().astype(int)
    rows = []
    for (row, began, _, ended, outcome), slot in zip(made.iter_rows(), slots, strict=True):
        first = planned.changes.node[row] * size
        changed = [gpu for gpu in range(first, first + size) if calendar.is_repartitioned[slot, gpu]]
        texts = [
            " ".join(f"{gpu % per_node}={calendar.layouts[side[slot, gpu]]}" for gpu in changed)
            for side in (calendar.assigned_before, calendar.assigned_layouts)
        ]
        place = {"node": first // per_node, "gpu": first % per_node if drain.scope == "gpu" else None}
        times = {"wanted_s": planned.changes.planned_s[row], "began_s": began, "ended_s": ended}
        if changed:
            rows.append(
                place | {"gpus": len(changed), "before": texts[0], "after": texts[1]} | times | {"outcome": outcome}
            )
    kinds = {"node": pl.Int64, "gpu": pl.Int64, "gpus": pl.Int64, "before": pl.String, "after": pl.String}
    return pl.DataFrame(
        rows, schema=kinds | {"outcome": pl.String} | dict.fromkeys(("wanted_s", "began_s", "ended_s"), pl.Float64)
    )
