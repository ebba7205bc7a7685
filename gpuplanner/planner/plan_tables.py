"""What problems and plans hold, as tables for charts and readers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from gpuplanner.errors import GeometryError, message
from gpuplanner.hardware import GpuModel, as_board, parse_layout, prove
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.program.instance_prices import instance_prices


def placement_table(board: GpuModel | str, layouts: Iterable[str]) -> pl.DataFrame:
    """Where the instances of layouts lie on their board; GPUs that are not cut have none.

    Examples
    --------
    >>> placement_table("A100-40GB", ["3g.20gb:1,2g.10gb:1", "gpu"]).rows()
    [('3g.20gb:1,2g.10gb:1', '2g.10gb', 0, 2), ('3g.20gb:1,2g.10gb:1', '3g.20gb', 4, 4)]
    """
    model = as_board(board)
    rows = []
    for text in layouts:
        proof = prove(model, parse_layout(text))
        if proof.layout is None:
            fault = message(f"layout {text!r}", f"a layout of {model.name}", proof.reason, "Mend it.")
            raise GeometryError(fault)
        rows += [(text, place.profile, place.start, place.size) for place in proof.layout.placements]
    names = {"layout": pl.String, "profile": pl.String, "start": pl.Int64, "size": pl.Int64}
    return pl.DataFrame(rows, schema=names, orient="row")


def dearest_instances(plan: Plan, problem: PlanProblem, *, count: int = 10) -> pl.DataFrame:
    """Where one instance more would be worth most.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 1, 1, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 3]]]
    ... )
    >>> dearest_instances(plan(problem), problem)["worth_gpu_hours"].round(3).to_list()
    [4.286]
    """
    prices = instance_prices(plan, problem)
    profile, slot = np.nonzero(prices > 0)
    slots = problem.slot_times
    rows = {
        "profile": [problem.profiles[row] for row in profile],
        "slot_start": [slots[t] for t in slot],
        "worth_gpu_hours": prices[profile, slot],
    }
    found = pl.DataFrame(
        rows, schema_overrides={"profile": pl.String, "slot_start": pl.Datetime("us", "UTC")}
    )
    return found.sort("worth_gpu_hours", "slot_start", "profile", descending=[True, False, False]).head(count)
