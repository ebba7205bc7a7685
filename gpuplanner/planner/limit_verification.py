"""Independent checks of quotas, limits and numbered GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import WHOLE_GPU, LayoutPlan
from gpuplanner.hardware.mig_layouts import OFF
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_problem import TIERS, Floats, PlanProblem


def within_quotas(problem: PlanProblem) -> Floats:
    """Demand that quotas admit, worked out tenant by tenant and slot by slot."""
    demand = np.array(problem.demand)
    quotas = problem.limits.quotas
    shares = [problem.gpu_model.share(name) for name in problem.profiles]
    for slot in range(problem.n_slots if quotas else 0):
        wanted = {
            tenant: sum(float(of_one) * share for of_one, share in zip(own, shares, strict=True))
            for tenant, own in zip(problem.tenants, demand[:, :, slot], strict=True)
        }
        may_have = {tenant: min(wanted[tenant], quota.gpus) for tenant, quota in quotas.items()}
        for cohort in {quota.cohort for quota in quotas.values()} - {None}:
            members = [tenant for tenant, quota in quotas.items() if quota.cohort == cohort]
            spare = 0.0
            for tenant in members:
                rest, lend = quotas[tenant].gpus - may_have[tenant], quotas[tenant].lend
                spare += rest if lend is None else min(rest, lend)
            for tier in TIERS:
                lacks = {}
                for tenant in members:
                    if problem.tiers[problem.tenants.index(tenant)] == tier:
                        lack, borrow = wanted[tenant] - may_have[tenant], quotas[tenant].borrow
                        lacks[tenant] = lack if borrow is None else min(lack, borrow)
                total = sum(lacks.values())
                part = min(1.0, spare / total) if total > 0 else 0.0
                for tenant, lack in lacks.items():
                    may_have[tenant] += part * lack
                spare -= part * total
        for tenant, gpus in may_have.items():
            if wanted[tenant] > 0:
                demand[problem.tenants.index(tenant), :, slot] *= min(1.0, gpus / wanted[tenant])
    return demand


def pinned_alone_fits(problem: PlanProblem) -> bool:
    """Whether GPUs that are all off, but for those that must stay, keep every limit."""
    limits = problem.limits
    kept = max(problem.whole_gpus_kept, limits.whole_nodes_kept * problem.gpus_per_node)
    pinned = sum(limits.pinned.values())
    cut = pinned - limits.pinned.get(WHOLE_GPU, 0)
    if limits.switches_per_day == 0 and problem.initial is not None:
        missing = Counter(limits.pinned) - Counter(problem.initial)
        if set(missing) - {WHOLE_GPU}:
            return False
    rooms = (power_for(problem), *problem.gpus_in_service.tolist())
    cut_rooms = (power_for(problem, cut=True), *(problem.gpus_in_service - kept).tolist())
    return bool(pinned <= min(rooms) and cut <= min(cut_rooms))


def power_for(problem: PlanProblem, *, cut: bool = False) -> int:
    """GPUs for which the racks have power; those that may be cut only, if asked."""
    limits = problem.limits
    size = limits.nodes_per_rack * problem.gpus_per_node
    kept = limits.whole_nodes_kept * problem.gpus_per_node if cut else 0
    room = 0
    for first in range(0, problem.gpus, size):
        gpus = range(max(first, kept), min(first + size, problem.gpus))
        room += len(gpus) if limits.gpus_on_per_rack is None else min(len(gpus), limits.gpus_on_per_rack)
    return room


def count_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Faults that counts alone show."""
    limits = problem.limits
    position = {text: place for place, text in enumerate(plan.layouts)}
    for slot in range(1, problem.n_slots):
        still = limits.change_slots is not None and slot not in limits.change_slots
        if still and (plan.counts[slot] != plan.counts[slot - 1]).any():
            yield f"interval {slot}: counts change, though no change is allowed then"
            break
    for text, gpus in limits.pinned.items():
        held = plan.counts[:, position[text]] if text in position else np.zeros(problem.n_slots, dtype=int)
        for slot in np.flatnonzero(held < gpus)[:1].tolist():
            yield f"interval {slot}: {held[slot]} GPUs have {text}, {gpus} must keep it"
    kept = limits.whole_nodes_kept * problem.gpus_per_node
    cut = plan.counts[:, [text != WHOLE_GPU for text in plan.layouts]].sum(axis=1)
    for slot in np.flatnonzero(cut > problem.gpus_in_service - kept)[:1].tolist():
        yield f"interval {slot}: {cut[slot]} GPUs are partitioned, {limits.whole_nodes_kept} nodes must stay full"
    for what, gpus in (("powered on", plan.counts.sum(axis=1)), ("partitioned", cut)):
        most = power_for(problem, cut=what == "partitioned")
        for slot in np.flatnonzero((gpus > most) & (gpus <= problem.gpus_in_service))[:1].tolist():
            yield f"interval {slot}: {gpus[slot]} GPUs are {what}, the racks have power for {most}"


def gpu_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Faults that only numbered GPUs show; the rows are those of a layout plan without other faults."""
    limits = problem.limits
    place = {node: number for number, node in enumerate(problem.node_names)}
    kept = [node for node, number in place.items() if number < limits.whole_nodes_kept]
    wrong = rows.filter(pl.col("node").is_in(kept), ~pl.col("layout").is_in([WHOLE_GPU, OFF]))
    if wrong.height:
        yield f"layout plan: GPU {wrong['gpu'][0]} on {wrong['node'][0]} is partitioned, on a node to be kept full"
    if limits.switches_per_day is not None:
        per_day: Counter[tuple[str, int, int]] = Counter()
        for node, gpu, start in rows.filter("changed").select("node", "gpu", "slot_start").iter_rows():
            per_day[node, gpu, (start - problem.slot_times[0]).days] += 1
        for (node, gpu, day), cuts in per_day.items():
            if cuts > limits.switches_per_day:
                most = limits.switches_per_day
                yield f"layout plan: GPU {gpu} on {node} changes layout {cuts} times on day {day}, at most {most}"
                break
    yield from _node_change_faults(rows, problem)
    if limits.gpus_on_per_rack is not None:
        steps: Counter[tuple[int, datetime]] = Counter()
        running = rows.filter(pl.col("layout") != OFF).select("node", "slot_start", "slot_end")
        for node, start, end in running.iter_rows():
            steps[place[node] // limits.nodes_per_rack, start] += 1
            steps[place[node] // limits.nodes_per_rack, end] -= 1
        on: Counter[int] = Counter()
        for (rack, time), step in sorted(steps.items(), key=lambda item: item[0][1]):
            on[rack] += step
            if on[rack] > limits.gpus_on_per_rack:
                yield (
                    f"layout plan: {on[rack]} GPUs are on in rack {rack} at {time}, at most "
                    f"{limits.gpus_on_per_rack} allowed"
                )
                break


def _node_change_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Nodes that are cut anew too often, in a day or in all."""
    limits, begin = problem.limits, problem.slot_times[0]
    if limits.node_changes_per_day is None and limits.most_changes is None:
        return
    is_cut: dict[tuple[str, int], str] = {}
    times: set[tuple[str, datetime]] = set()
    for row in rows.sort("slot_start").iter_rows(named=True):
        layout = row["parked"] if row["layout"] == OFF else row["layout"]
        place = (row["node"], row["gpu"])
        if layout is not None and layout != is_cut.get(place, WHOLE_GPU) and row["slot_start"] > begin:
            times.add((row["node"], row["slot_start"]))
        if layout is not None:
            is_cut[place] = layout
    if limits.most_changes is not None and len(times) > limits.most_changes:
        yield f"layout plan: nodes are repartitioned {len(times)} times, at most {limits.most_changes} allowed"
    per_day = Counter((node, (time - begin).days) for node, time in times)
    for (node, day), changes in sorted(per_day.items()):
        if limits.node_changes_per_day is not None and changes > limits.node_changes_per_day:
            most = limits.node_changes_per_day
            yield f"layout plan: {node} is repartitioned {changes} times on day {day}, at most {most} allowed"
            break


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
        due = "off GPUs keep a layout" if problem.prices is not None else "none is kept"
        yield f"layout plan: {_place(odd)} is {odd['layout'][0]} and keeps {odd['parked'][0]}; expected that {due}"


def _time_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Rows of one GPU must follow on each other from the first slot to the end of the horizon."""
    times = problem.slot_times
    known = pl.Series(times, dtype=pl.Datetime("us", "UTC")).implode()
    odd = rows.filter(~pl.col("slot_start").is_in(known) | ~pl.col("slot_end").is_in(known))
    if odd.height:
        yield f"layout plan: {_place(odd)} begins or ends within an interval or beyond the horizon"
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
    parked = zip(plan.layouts, plan.parked.T, strict=True)
    columns += [("parked", *one) for one in parked if one[0] != WHOLE_GPU]
    for what, layout, expected in columns:
        held = (rows[what] == layout).fill_null(value=False).to_numpy()
        steps = np.zeros(problem.n_slots + 1, dtype=np.int64)
        np.add.at(steps, starts[held], 1)
        np.add.at(steps, ends[held], -1)
        found = np.cumsum(steps)[:-1]
        for slot in np.flatnonzero(found != expected)[:1].tolist():
            have = "have" if what == "layout" else "are idle with"
            yield f"layout plan: {found[slot]} GPUs {have} {layout} in interval {slot}, the plan has {expected[slot]}"


def _change_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    held = pl.coalesce("parked", "layout")
    earlier = held.shift(1).over("node", "gpu").replace(OFF, WHOLE_GPU)
    cut_anew = (held != OFF) & (held != earlier)
    later = rows.with_columns(expected=cut_anew, earlier=earlier).filter(earlier.is_not_null())
    following = pl.col("layout").shift(-1).over("node", "gpu")
    emptied = rows.filter(pl.col("layout") != OFF, pl.col("layout") != following).height
    if problem.initial is None and plan.departures != emptied:
        yield f"layout plan: {emptied} GPUs are drained, the plan has {plan.departures}"
    switched = later.filter("changed", (held == WHOLE_GPU) != (pl.col("earlier") == WHOLE_GPU))
    reboots = 0 if problem.change.reboot_s is None else switched.select("node", "slot_start").n_unique()
    first = rows.filter(pl.col("slot_start") == problem.slot_times[0], pl.col("changed"))
    if not reboots <= plan.reboots <= reboots + first["node"].n_unique():
        yield f"layout plan: nodes reboot {reboots} times after the first interval, the plan has {plan.reboots}"
    wrong = later.filter(pl.col("changed") != pl.col("expected"))
    if wrong.height:
        verb = "is" if wrong["changed"][0] else "is not"
        yield f"layout plan: {_place(wrong)} {verb} marked as changed at {wrong['slot_start'][0]}"
    marked = Counter(first.select(held.alias("held"))["held"])
    arrived = Counter(_first_cuts(plan, problem))
    if marked != arrived:
        yield (
            f"layout plan: {marked.total()} GPUs are marked as changed in the first interval, expected "
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
