"""Independent checks of quotas, limits and numbered GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import FULL_GPU, LayoutPlan
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_problem import SERVICE_TIERS, Floats, PlanProblem


def demand_within_quotas(problem: PlanProblem) -> Floats:
    """Return the demand that quotas admit [instances], shape (n_tenants, n_profiles, n_slots)."""
    demand = np.array(problem.demand)
    quotas = problem.limits.quotas
    shares = [problem.gpu_model.gpu_fraction(name) for name in problem.profiles]
    for slot in range(problem.n_slots if quotas else 0):
        wanted = {
            tenant: sum(float(n_instances) * share for n_instances, share in zip(tenant_demand, shares, strict=True))
            for tenant, tenant_demand in zip(problem.tenants, demand[:, :, slot], strict=True)
        }
        granted = {tenant: min(wanted[tenant], quota.gpus) for tenant, quota in quotas.items()}
        for cohort in {quota.cohort for quota in quotas.values()} - {None}:
            members = [tenant for tenant, quota in quotas.items() if quota.cohort == cohort]
            lendable = 0.0
            for tenant in members:
                unused, lend = quotas[tenant].gpus - granted[tenant], quotas[tenant].lend
                lendable += unused if lend is None else min(unused, lend)
            for tier in SERVICE_TIERS:
                shortfalls = {}
                for tenant in members:
                    if problem.tiers[problem.tenants.index(tenant)] == tier:
                        shortfall, borrow = wanted[tenant] - granted[tenant], quotas[tenant].borrow
                        shortfalls[tenant] = shortfall if borrow is None else min(shortfall, borrow)
                total = sum(shortfalls.values())
                fraction = min(1.0, lendable / total) if total > 0 else 0.0
                for tenant, shortfall in shortfalls.items():
                    granted[tenant] += fraction * shortfall
                lendable -= fraction * total
        for tenant, gpus in granted.items():
            if wanted[tenant] > 0:
                demand[problem.tenants.index(tenant), :, slot] *= min(1.0, gpus / wanted[tenant])
    return demand


def does_pinned_fleet_fit(problem: PlanProblem) -> bool:
    """Whether the GPUs with pinned layouts alone, all others powered down, meet every limit of the problem."""
    limits = problem.limits
    n_kept_full = max(problem.whole_gpus_kept, limits.whole_nodes_kept * problem.gpus_per_node)
    pinned = sum(limits.pinned.values())
    n_partitioned = pinned - limits.pinned.get(FULL_GPU, 0)
    if limits.switches_per_day == 0 and problem.initial is not None:
        missing = Counter(limits.pinned) - Counter(problem.initial)
        if set(missing) - {FULL_GPU}:
            return False
    capacities = (count_powered_gpus(problem), *problem.gpus_in_service.tolist())
    partitioned_capacities = (
        count_powered_gpus(problem, partitioned=True),
        *(problem.gpus_in_service - n_kept_full).tolist(),
    )
    return bool(pinned <= min(capacities) and n_partitioned <= min(partitioned_capacities))


def count_powered_gpus(problem: PlanProblem, *, partitioned: bool = False) -> int:
    """Count the GPUs for which the racks have power; with `partitioned`, only those that may be MIG-partitioned."""
    limits = problem.limits
    rack_gpus = limits.nodes_per_rack * problem.gpus_per_node
    n_kept_full = limits.whole_nodes_kept * problem.gpus_per_node if partitioned else 0
    n_powered = 0
    for first in range(0, problem.gpus, rack_gpus):
        gpus = range(max(first, n_kept_full), min(first + rack_gpus, problem.gpus))
        n_powered += len(gpus) if limits.gpus_on_per_rack is None else min(len(gpus), limits.gpus_on_per_rack)
    return n_powered


def find_count_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield a message for each limit that the counts of GPUs by layout break, whichever GPUs they are assigned to."""
    limits = problem.limits
    column_of_layout = {text: index for index, text in enumerate(plan.layouts)}
    for slot in range(1, problem.n_slots):
        must_stay = limits.change_slots is not None and slot not in limits.change_slots
        if must_stay and (plan.counts[slot] != plan.counts[slot - 1]).any():
            yield f"interval {slot}: counts change, though no change is allowed then"
            break
    for text, gpus in limits.pinned.items():
        layout_gpus = (
            plan.counts[:, column_of_layout[text]] if text in column_of_layout else np.zeros(problem.n_slots, dtype=int)
        )
        for slot in np.flatnonzero(layout_gpus < gpus)[:1].tolist():
            yield f"interval {slot}: {layout_gpus[slot]} GPUs have {text}, {gpus} must keep it"
    n_kept_full = limits.whole_nodes_kept * problem.gpus_per_node
    n_partitioned = plan.counts[:, [text != FULL_GPU for text in plan.layouts]].sum(axis=1)
    for slot in np.flatnonzero(n_partitioned > problem.gpus_in_service - n_kept_full)[:1].tolist():
        n_nodes = limits.whole_nodes_kept
        yield f"interval {slot}: {n_partitioned[slot]} GPUs are partitioned, {n_nodes} nodes must stay full"
    for verb, gpus in (("powered on", plan.counts.sum(axis=1)), ("partitioned", n_partitioned)):
        maximum = count_powered_gpus(problem, partitioned=verb == "partitioned")
        for slot in np.flatnonzero((gpus > maximum) & (gpus <= problem.gpus_in_service))[:1].tolist():
            yield f"interval {slot}: {gpus[slot]} GPUs are {verb}, the racks have power for {maximum}"


def find_gpu_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Yield a message for each limit that a plan's numbered GPUs break; its rows must be free of other faults."""
    limits = problem.limits
    node_number = {node: number for number, node in enumerate(problem.node_names)}
    full_nodes = [node for node, number in node_number.items() if number < limits.whole_nodes_kept]
    wrong = rows.filter(pl.col("node").is_in(full_nodes), ~pl.col("layout").is_in([FULL_GPU, UNUSED_LAYOUT]))
    if wrong.height:
        yield f"layout plan: GPU {wrong['gpu'][0]} on {wrong['node'][0]} is partitioned, on a node to be kept full"
    if limits.switches_per_day is not None:
        per_day: Counter[tuple[str, int, int]] = Counter()
        for node, gpu, start in rows.filter("changed").select("node", "gpu", "slot_start").iter_rows():
            per_day[node, gpu, (start - problem.slot_times[0]).days] += 1
        for (node, gpu, day), n_changes in per_day.items():
            if n_changes > limits.switches_per_day:
                most_changes = limits.switches_per_day
                times = f"{n_changes} times on day {day}, at most {most_changes}"
                yield f"layout plan: GPU {gpu} on {node} changes layout {times}"
                break
    yield from _find_node_change_faults(rows, problem)
    if limits.gpus_on_per_rack is not None:
        steps: Counter[tuple[int, datetime]] = Counter()
        running = rows.filter(pl.col("layout") != UNUSED_LAYOUT).select("node", "slot_start", "slot_end")
        for node, start, end in running.iter_rows():
            steps[node_number[node] // limits.nodes_per_rack, start] += 1
            steps[node_number[node] // limits.nodes_per_rack, end] -= 1
        on: Counter[int] = Counter()
        for (rack, time), step in sorted(steps.items(), key=lambda item: item[0][1]):
            on[rack] += step
            if on[rack] > limits.gpus_on_per_rack:
                yield (
                    f"layout plan: {on[rack]} GPUs are on in rack {rack} at {time}, at most "
                    f"{limits.gpus_on_per_rack} allowed"
                )
                break


def _find_node_change_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Yield a message for each limit that node repartitionings break: of a node in a day, and of all in the plan."""
    limits, begin = problem.limits, problem.slot_times[0]
    if limits.node_changes_per_day is None and limits.most_changes is None:
        return
    layout_of_gpu: dict[tuple[str, int], str] = {}
    times: set[tuple[str, datetime]] = set()
    for row in rows.sort("slot_start").iter_rows(named=True):
        layout = row["parked"] if row["layout"] == UNUSED_LAYOUT else row["layout"]
        gpu_key = (row["node"], row["gpu"])
        if layout is not None and layout != layout_of_gpu.get(gpu_key, FULL_GPU) and row["slot_start"] > begin:
            times.add((row["node"], row["slot_start"]))
        if layout is not None:
            layout_of_gpu[gpu_key] = layout
    if limits.most_changes is not None and len(times) > limits.most_changes:
        yield f"layout plan: nodes are repartitioned {len(times)} times, at most {limits.most_changes} allowed"
    per_day = Counter((node, (time - begin).days) for node, time in times)
    for (node, day), changes in sorted(per_day.items()):
        if limits.node_changes_per_day is not None and changes > limits.node_changes_per_day:
            maximum = limits.node_changes_per_day
            yield f"layout plan: {node} is repartitioned {changes} times on day {day}, at most {maximum} allowed"
            break


def find_layout_plan_faults(frame: pl.DataFrame, plan: Plan, problem: PlanProblem) -> list[str]:
    """List the faults of a table of numbered GPUs.

    Every GPU of the fleet has one layout in every interval; the counts of each interval are those of the plan; rows are
    marked as changed exactly where a GPU takes a layout; a released GPU had none.

    Parameters
    ----------
    frame : polars.DataFrame
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`.
    plan : Plan
        The plan.
    problem : PlanProblem
        Its problem.
    """
    try:
        rows = check_table(frame, LayoutPlan, source="layout plan").sort("node", "gpu", "slot_start", "slot_end")
    except SchemaError as error:
        return [str(error)]
    faults = [*_find_name_faults(rows, plan, problem), *_find_time_faults(rows, problem)]
    return faults or [
        *_find_row_count_faults(rows, plan, problem),
        *_find_change_faults(rows, plan, problem),
        *find_gpu_faults(rows, problem),
    ]


def _find_name_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of nodes, GPU indices and layouts."""
    per_node = Counter(node for node, _ in rows.select("node", "gpu").unique().iter_rows())
    sizes = Counter(per_node.values())
    n_full_nodes, n_in_last = divmod(problem.gpus, problem.gpus_per_node)
    expected = Counter({problem.gpus_per_node: n_full_nodes}) + Counter({n_in_last: 1} if n_in_last else {})
    if sizes != expected:
        yield (
            f"layout plan: {per_node.total()} GPUs on {len(per_node)} nodes, expected {problem.gpus} on "
            f"{expected.total()} nodes of {problem.gpus_per_node}"
        )
    unknown_nodes = sorted(set(per_node) - set(problem.node_names))
    if unknown_nodes:
        yield f"layout plan: nodes that the fleet does not have: {examples(unknown_nodes)}"
    beyond = rows.filter(pl.col("gpu") >= problem.gpus_per_node)
    if beyond.height:
        yield f"layout plan: GPU {beyond['gpu'][0]} on {beyond['node'][0]}, which has {problem.gpus_per_node}"
    known_layouts = {*plan.layouts, UNUSED_LAYOUT} | ({FULL_GPU} if problem.prices is not None else set())
    layouts = {*rows["layout"], *rows["parked"].drop_nulls()}
    unknown = sorted(layouts - known_layouts)
    if unknown:
        yield f"layout plan: layouts that the plan does not have: {examples(unknown)}"
    keeps = (pl.col("layout") == UNUSED_LAYOUT) & (problem.prices is not None)
    wrong_rows = rows.filter(pl.col("parked").is_not_null() != keeps)
    if wrong_rows.height:
        expectation = "off GPUs keep a layout" if problem.prices is not None else "none is kept"
        layout, idle_layout = wrong_rows["layout"][0], wrong_rows["parked"][0]
        gpu_text = _first_gpu_text(wrong_rows)
        yield f"layout plan: {gpu_text} is {layout} and keeps {idle_layout}; expected that {expectation}"


def _find_time_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of time ranges: the rows of a GPU must cover the horizon without gap or overlap."""
    times = problem.slot_times
    known_times = pl.Series(times, dtype=pl.Datetime("us", "UTC")).implode()
    wrong_rows = rows.filter(~pl.col("slot_start").is_in(known_times) | ~pl.col("slot_end").is_in(known_times))
    if wrong_rows.height:
        yield f"layout plan: {_first_gpu_text(wrong_rows)} begins or ends within an interval or beyond the horizon"
        return
    empty = rows.filter(pl.col("slot_start") >= pl.col("slot_end"))
    if empty.height:
        yield f"layout plan: {_first_gpu_text(empty)} has a row that ends before it begins"
        return
    previous_end = pl.col("slot_end").shift(1).over("node", "gpu").fill_null(times[0])
    last = rows.group_by("node", "gpu", maintain_order=True).agg(pl.col("slot_end").last())
    for fault, wrong in (
        ("two layouts at once", rows.filter(pl.col("slot_start") < previous_end)),
        ("no layout for a time", rows.filter(pl.col("slot_start") > previous_end)),
        ("no layout at the end", last.filter(pl.col("slot_end") < times[-1])),
    ):
        if wrong.height:
            yield f"layout plan: {_first_gpu_text(wrong)} has {fault}"


def _find_row_count_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of the number of GPUs with each layout."""
    slot_of = {time: slot for slot, time in enumerate(problem.slot_times)}
    starts = np.array([slot_of[time] for time in rows["slot_start"]])
    ends = np.array([slot_of[time] for time in rows["slot_end"]])
    columns = [("layout", *column) for column in zip(plan.layouts, plan.counts.T, strict=True)]
    parked = zip(plan.layouts, plan.parked.T, strict=True)
    columns += [("parked", *column) for column in parked if column[0] != FULL_GPU]
    for column_name, layout, expected in columns:
        has_layout = (rows[column_name] == layout).fill_null(value=False).to_numpy()
        steps = np.zeros(problem.n_slots + 1, dtype=np.int64)
        np.add.at(steps, starts[has_layout], 1)
        np.add.at(steps, ends[has_layout], -1)
        n_gpus = np.cumsum(steps)[:-1]
        for slot in np.flatnonzero(n_gpus != expected)[:1].tolist():
            verb = "have" if column_name == "layout" else "are idle with"
            yield f"layout plan: {n_gpus[slot]} GPUs {verb} {layout} in interval {slot}, the plan has {expected[slot]}"


def _find_change_faults(rows: pl.DataFrame, plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of the column ``changed`` of a layout plan, and of its numbers of drains and reboots."""
    layout_kept = pl.coalesce("parked", "layout")
    earlier = layout_kept.shift(1).over("node", "gpu").replace(UNUSED_LAYOUT, FULL_GPU)
    is_new_layout = (layout_kept != UNUSED_LAYOUT) & (layout_kept != earlier)
    later = rows.with_columns(expected=is_new_layout, earlier=earlier).filter(earlier.is_not_null())
    following = pl.col("layout").shift(-1).over("node", "gpu")
    emptied = rows.filter(pl.col("layout") != UNUSED_LAYOUT, pl.col("layout") != following).height
    if problem.initial is None and plan.drained_gpus != emptied:
        yield f"layout plan: {emptied} GPUs are drained, the plan has {plan.drained_gpus}"
    switched = later.filter("changed", (layout_kept == FULL_GPU) != (pl.col("earlier") == FULL_GPU))
    reboots = 0 if problem.change.reboot_s is None else switched.select("node", "slot_start").n_unique()
    first = rows.filter(pl.col("slot_start") == problem.slot_times[0], pl.col("changed"))
    if not reboots <= plan.reboots <= reboots + first["node"].n_unique():
        yield f"layout plan: nodes reboot {reboots} times after the first interval, the plan has {plan.reboots}"
    wrong = later.filter(pl.col("changed") != pl.col("expected"))
    if wrong.height:
        verb = "is" if wrong["changed"][0] else "is not"
        yield f"layout plan: {_first_gpu_text(wrong)} {verb} marked as changed at {wrong['slot_start'][0]}"
    marked_new = Counter(first.select(layout_kept.alias("held"))["held"])
    expected_new = Counter(_count_first_changes(plan, problem))
    if marked_new != expected_new:
        yield (
            f"layout plan: {marked_new.total()} GPUs are marked as changed in the first interval, expected "
            f"{expected_new.total()} by the initial layouts"
        )


def _count_first_changes(plan: Plan, problem: PlanProblem) -> dict[str, int]:
    """Count the GPUs that take each layout in the first interval; zeros are left out."""
    if problem.initial is None:
        return {}
    counts_after = dict(zip(plan.layouts, (plan.counts + plan.parked)[0].tolist(), strict=True))
    before = Counter(problem.initial) + Counter(problem.parked or {})
    # Released GPUs return as full ones, and GPUs without a MIG layout may be off.
    before[FULL_GPU] += problem.gpus - before.total()
    if problem.prices is not None:
        counts_after[FULL_GPU] = problem.gpus - sum(counts_after.values()) + counts_after.get(FULL_GPU, 0)
    n_new = {text: gpus - before[text] for text, gpus in counts_after.items()}
    return {text: number for text, number in n_new.items() if number > 0}


def _first_gpu_text(rows: pl.DataFrame) -> str:
    """Name the GPU of the first row, such as ``GPU 3 on node-1``."""
    return f"GPU {rows['gpu'][0]} on {rows['node'][0]}"
