"""Check numbered GPUs against the counts of their plan, from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples
from gpuplanner.hardware import OFF
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.verification.limits import gpu_faults
from gpuplanner.schemas import WHOLE_GPU, LayoutPlan, check


def layout_plan_faults(frame: pl.DataFrame, plan: Plan, problem: PlanProblem) -> list[str]:
    """Say what is wrong with a table of numbered GPUs.

    Every GPU of the fleet has one layout in every slot; the counts of each slot are those of the plan; rows
    are marked as changed just where a cut GPU has not had its layout before.

    Parameters
    ----------
    frame : polars.DataFrame
        Table :class:`~gpuplanner.schemas.LayoutPlan`.
    plan : Plan
        The plan.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    list of str
        Faults; empty if it is right.
    """
    try:
        rows = check(frame, LayoutPlan, where="layout plan").sort("node", "gpu", "slot_start", "slot_end")
    except SchemaError as error:
        return [str(error)]
    faults = [*_name_faults(rows, plan, problem), *_time_faults(rows, problem)]
    return faults or [
        *_count_faults(rows, plan, problem),
        *_change_faults(rows, plan, problem),
        *gpu_faults(rows, problem),
    ]


def _name_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    per_node = Counter(node for node, _ in rows.select("node", "gpu").unique().iter_rows())
    sizes = Counter(per_node.values())
    full, rest = divmod(problem.gpus, problem.gpus_per_node)
    expected = Counter({problem.gpus_per_node: full}) + Counter({rest: 1} if rest else {})
    if sizes != expected:
        yield (
            f"layout plan: {per_node.total()} GPUs on {len(per_node)} nodes, expected {problem.gpus} on "
            f"{expected.total()} nodes of {problem.gpus_per_node}"
        )
    strangers = sorted(set(per_node) - set(problem.node_names))
    if strangers:
        yield f"layout plan: nodes that the fleet does not have: {examples(strangers)}"
    beyond = rows.filter(pl.col("gpu") >= problem.gpus_per_node)
    if beyond.height:
        yield f"layout plan: GPU {beyond['gpu'][0]} on {beyond['node'][0]}, which has {problem.gpus_per_node}"
    unknown = sorted(set(rows["layout"]) - {*plan.layouts, OFF})
    if unknown:
        yield f"layout plan: layouts that the plan does not have: {examples(unknown)}"


def _time_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Rows of one GPU must follow on each other from the first slot to the end of the horizon."""
    times = problem.slot_times
    known = pl.Series(times, dtype=pl.Datetime("us", "UTC")).implode()
    odd = rows.filter(~pl.col("slot_start").is_in(known) | ~pl.col("slot_end").is_in(known))
    if odd.height:
        yield f"layout plan: {_place(odd)} begins or ends within a slot or beyond the horizon"
        return
    empty = rows.filter(pl.col("slot_start") >= pl.col("slot_end"))
    if empty.height:
        yield f"layout plan: {_place(empty)} has a row that ends before it begins"
        return
    due = pl.col("slot_end").shift(1).over("node", "gpu").fill_null(times[0])
    last = rows.group_by("node", "gpu", maintain_order=True).agg(pl.col("slot_end").last())
    for what, wrong in (
        ("two layouts at once", rows.filter(pl.col("slot_start") < due)),
        ("no layout for a time", rows.filter(pl.col("slot_start") > due)),
        ("no layout at the end", last.filter(pl.col("slot_end") < times[-1])),
    ):
        if wrong.height:
            yield f"layout plan: {_place(wrong)} has {what}"


def _count_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    slot_of = {time: slot for slot, time in enumerate(problem.slot_times)}
    starts = np.array([slot_of[time] for time in rows["slot_start"]])
    ends = np.array([slot_of[time] for time in rows["slot_end"]])
    for layout, expected in zip(plan.layouts, plan.counts.T, strict=True):
        held = (rows["layout"] == layout).to_numpy()
        steps = np.zeros(problem.n_slots + 1, dtype=np.int64)
        np.add.at(steps, starts[held], 1)
        np.add.at(steps, ends[held], -1)
        found = np.cumsum(steps)[:-1]
        for slot in np.flatnonzero(found != expected)[:1].tolist():
            yield f"layout plan: {found[slot]} GPUs have {layout} in slot {slot}, the plan says {expected[slot]}"


def _change_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    earlier = pl.col("layout").shift(1).over("node", "gpu")
    is_cut = ~pl.col("layout").is_in([WHOLE_GPU, OFF])
    later = rows.with_columns(expected=is_cut & (pl.col("layout") != earlier)).filter(earlier.is_not_null())
    wrong = later.filter(pl.col("changed") != pl.col("expected"))
    if wrong.height:
        verb = "is" if wrong["changed"][0] else "is not"
        yield f"layout plan: {_place(wrong)} {verb} marked as changed at {wrong['slot_start'][0]}"
    first = rows.filter(pl.col("slot_start") == problem.slot_times[0], pl.col("changed"))
    marked = Counter(first["layout"])
    arrived = Counter(_first_cuts(plan, problem))
    if marked != arrived:
        yield (
            f"layout plan: {marked.total()} GPUs are marked as changed in the first slot, expected "
            f"{arrived.total()} by the initial layouts"
        )


def _first_cuts(plan: Plan, problem: PlanProblem) -> dict[str, int]:
    """GPUs that take up each layout in the first slot; zeros are left out."""
    if problem.initial is None:
        return {}
    more = {
        text: now - problem.initial.get(text, 0)
        for text, now in zip(plan.layouts, plan.counts[0].tolist(), strict=True)
        if text != WHOLE_GPU
    }
    return {text: number for text, number in more.items() if number > 0}


def _place(rows: pl.DataFrame) -> str:
    return f"GPU {rows['gpu'][0]} on {rows['node'][0]}"
