"""Check the further limits of a problem, from scratch: quotas, what must stay, racks, switches a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.hardware.layout import OFF
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Floats, PlanProblem
from gpuplanner.planner.contract.problem_check import TIERS
from gpuplanner.schemas.vocabulary import WHOLE_GPU


def within_quotas(problem: PlanProblem) -> Floats:
    """Demand that quotas admit, worked out tenant by tenant and slot by slot."""
    demand = np.array(problem.demand)
    quotas = problem.limits.quotas
    for slot in range(problem.n_slots if quotas else 0):
        wanted = {
            tenant: sum(
                float(demand[i, p, slot]) * problem.board.share(name)
                for p, name in enumerate(problem.profiles)
            )
            for i, tenant in enumerate(problem.tenants)
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
        there = (
            problem.initial.get(text, 0) >= gpus for text, gpus in limits.pinned.items() if text != WHOLE_GPU
        )
        if not all(there):
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
            yield f"slot {slot}: counts change, though nothing may change then"
            break
    for text, gpus in limits.pinned.items():
        held = plan.counts[:, position[text]] if text in position else np.zeros(problem.n_slots, dtype=int)
        for slot in np.flatnonzero(held < gpus)[:1].tolist():
            yield f"slot {slot}: {held[slot]} GPUs have {text}, {gpus} must keep it"
    kept = limits.whole_nodes_kept * problem.gpus_per_node
    cut = plan.counts[:, [text != WHOLE_GPU for text in plan.layouts]].sum(axis=1)
    for slot in np.flatnonzero(cut > problem.gpus_in_service - kept)[:1].tolist():
        yield f"slot {slot}: {cut[slot]} GPUs are cut, too many to leave {limits.whole_nodes_kept} nodes whole"
    for what, gpus in (("on", plan.counts.sum(axis=1)), ("cut", cut)):
        most = power_for(problem, cut=what == "cut")
        for slot in np.flatnonzero((gpus > most) & (gpus <= problem.gpus_in_service))[:1].tolist():
            yield f"slot {slot}: {gpus[slot]} GPUs are {what}, the racks have power for {most}"


def gpu_faults(rows: pl.DataFrame, problem: PlanProblem) -> Iterator[str]:
    """Faults that only numbered GPUs show; the rows are those of a layout plan without other faults."""
    limits = problem.limits
    place = {node: number for number, node in enumerate(problem.node_names)}
    kept = [node for node, number in place.items() if number < limits.whole_nodes_kept]
    wrong = rows.filter(pl.col("node").is_in(kept), ~pl.col("layout").is_in([WHOLE_GPU, OFF]))
    if wrong.height:
        yield f"layout plan: GPU {wrong['gpu'][0]} on {wrong['node'][0]} is cut, on a node to be kept whole"
    if limits.switches_per_day is not None:
        per_day: Counter[tuple[str, int, int]] = Counter()
        for node, gpu, start in rows.filter("changed").select("node", "gpu", "slot_start").iter_rows():
            per_day[node, gpu, (start - problem.slot_times[0]).days] += 1
        for (node, gpu, day), cuts in per_day.items():
            if cuts > limits.switches_per_day:
                most = limits.switches_per_day
                yield f"layout plan: GPU {gpu} on {node} is cut {cuts} times on day {day}, at most {most} allowed"
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
        yield f"layout plan: nodes are cut anew {len(times)} times, at most {limits.most_changes} allowed"
    per_day = Counter((node, (time - begin).days) for node, time in times)
    for (node, day), changes in sorted(per_day.items()):
        if limits.node_changes_per_day is not None and changes > limits.node_changes_per_day:
            most = limits.node_changes_per_day
            yield f"layout plan: {node} is cut anew {changes} times on day {day}, at most {most} allowed"
            break
