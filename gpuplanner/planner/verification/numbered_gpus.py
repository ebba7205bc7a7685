"""Check numbered GPUs against the counts of their plan, from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples
from gpuplanner.hardware.layout import OFF
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import PlanProblem
from gpuplanner.planner.verification.limits import gpu_faults
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import LayoutPlan
from gpuplanner.schemas.check import check


def layout_plan_faults(frame: pl.DataFrame, plan: Plan, problem: PlanProblem) -> list[str]:
    """Say what is wrong with a table of numbered GPUs.

    Every GPU of the fleet has one layout in every slot; the counts of each slot are those of the plan; rows
    are marked as changed just where a GPU has not had its layout before; one that was released had none.
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
    known = {*plan.layouts, OFF} | ({WHOLE_GPU} if problem.prices is not None else set())
    held = {*rows["layout"], *rows["parked"].drop_nulls()}
    unknown = sorted(held - known)
    if unknown:
        yield f"layout plan: layouts that the plan does not have: {examples(unknown)}"
    keeps = (pl.col("layout") == OFF) & (problem.prices is not None)
    odd = rows.filter(pl.col("parked").is_not_null() != keeps)
    if odd.height:
        due = "parked says what an off GPU keeps" if problem.prices is not None else "nothing is parked"
        yield f"layout plan: {_place(odd)} is {odd['layout'][0]}, parked {odd['parked'][0]}; expected that {due}"


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
    columns = [("layout", *one) for one in zip(plan.layouts, plan.counts.T, strict=True)]
    columns += [
        ("parked", *one) for one in zip(plan.layouts, plan.parked.T, strict=True) if one[0] != WHOLE_GPU
    ]
    for what, layout, expected in columns:
        held = (rows[what] == layout).fill_null(value=False).to_numpy()
        steps = np.zeros(problem.n_slots + 1, dtype=np.int64)
        np.add.at(steps, starts[held], 1)
        np.add.at(steps, ends[held], -1)
        found = np.cumsum(steps)[:-1]
        for slot in np.flatnonzero(found != expected)[:1].tolist():
            have = "have" if what == "layout" else "are parked with"
            yield f"layout plan: {found[slot]} GPUs {have} {layout} in slot {slot}, the plan says {expected[slot]}"


def _change_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    held = pl.coalesce("parked", "layout")
    earlier = held.shift(1).over("node", "gpu").replace(OFF, WHOLE_GPU)
    later = rows.with_columns(expected=(held != OFF) & (held != earlier), earlier=earlier).filter(
        earlier.is_not_null()
    )
    emptied = rows.filter(
        (pl.col("layout") != OFF) & (pl.col("layout") != pl.col("layout").shift(-1).over("node", "gpu"))
    ).height
    if problem.initial is None and plan.departures != emptied:
        yield f"layout plan: {emptied} GPUs are emptied, the plan says {plan.departures}"
    switched = later.filter("changed", (held == WHOLE_GPU) != (pl.col("earlier") == WHOLE_GPU))
    reboots = 0 if problem.change.reboot_s is None else switched.select("node", "slot_start").n_unique()
    at_first = rows.filter(pl.col("slot_start") == problem.slot_times[0], pl.col("changed"))[
        "node"
    ].n_unique()
    if not reboots <= plan.reboots <= reboots + at_first:
        yield f"layout plan: nodes reboot {reboots} times after the first slot, the plan says {plan.reboots}"
    wrong = later.filter(pl.col("changed") != pl.col("expected"))
    if wrong.height:
        verb = "is" if wrong["changed"][0] else "is not"
        yield f"layout plan: {_place(wrong)} {verb} marked as changed at {wrong['slot_start'][0]}"
    first = rows.filter(pl.col("slot_start") == problem.slot_times[0], pl.col("changed"))
    marked = Counter(first.select(held.alias("held"))["held"])
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
    now = dict(zip(plan.layouts, (plan.counts + plan.parked)[0].tolist(), strict=True))
    before = Counter(problem.initial) + Counter(problem.parked or {})
    # What is released comes back uncut, and what is not cut now may be off.
    before[WHOLE_GPU] += problem.gpus - before.total()
    if problem.prices is not None:
        now[WHOLE_GPU] = problem.gpus - sum(now.values()) + now.get(WHOLE_GPU, 0)
    more = {text: gpus - before[text] for text, gpus in now.items()}
    return {text: number for text, number in more.items() if number > 0}


def _place(rows: pl.DataFrame) -> str:
    return f"GPU {rows['gpu'][0]} on {rows['node'][0]}"
