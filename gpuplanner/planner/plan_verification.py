"""Independent check of a plan: geometry, counts, changes and cost.

Nothing is shared with the methods that make plans: requests are matched to instances by augmenting paths, not by the
rows of a model; costs, changes, hours and unmet demand are summed again; layouts are placed on the GPU by
:func:`gpuplanner.hardware.mig_layouts.prove`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, format_layout, parse_layout, prove
from gpuplanner.planner.layout_plan import PLAN_STATUSES, PLAN_STOP_REASONS, Plan
from gpuplanner.planner.limit_verification import (
    count_powered_gpus,
    demand_within_quotas,
    does_pinned_fleet_fit,
    find_count_faults,
    find_layout_plan_faults,
)
from gpuplanner.planner.plan_problem import SERVICE_TIERS, Floats, PlanProblem, can_serve


@dataclass
class StateChanges:
    """Numbers of transitions of GPUs over a horizon; those into the first interval if the counts before are known.

    - ``drained_gpus``: Drained GPUs.
    - ``changes``: GPUs that take a layout; where others are released, also those that lose theirs and stay on.
    - ``cost``: Cost of all transitions, drains and reboots included. [GPU h]
    """

    drained_gpus: int = 0
    changes: int = 0
    cost: float = 0.0


def count_state_changes(plan: Plan, problem: PlanProblem) -> StateChanges:
    """Sum the transitions from interval to interval, layout by layout."""
    rows = zip(plan.counts.tolist(), plan.parked.tolist(), strict=True)
    states = [(_layout_counter(plan, on), _layout_counter(plan, idle)) for on, idle in rows]
    if problem.initial is not None:
        states.insert(0, (Counter(problem.initial), Counter(problem.parked or {})))
    totals = StateChanges()
    for (on, idle), (on_later, idle_later) in itertools.pairwise(states):
        drained, woken = on - on_later, on_later - on
        totals.drained_gpus += drained.total()
        if problem.prices is None:
            n_new_layouts = sum(gpus for layout, gpus in woken.items() if layout != FULL_GPU)
            totals.cost += n_new_layouts * problem.change_gpu_hours
            totals.changes += n_new_layouts
            # A full GPU had no MIG layout before, or has lost it.
            n_without_layout = problem.gpus - sum(gpus for layout, gpus in on.items() if layout != FULL_GPU)
            totals.changes += max(0, on_later[FULL_GPU] - n_without_layout)
            continue
        prices, gpu_model = problem.prices, problem.gpu_model
        layouts, layouts_later = _add_full_gpus(problem, on + idle), _add_full_gpus(problem, on_later + idle_later)
        taken_up, given_up = layouts_later - layouts, layouts - layouts_later
        totals.changes += taken_up.total()
        totals.cost += sum(gpus * prices.drain_cost(gpu_model, layout) for layout, gpus in drained.items())
        totals.cost += woken.total() * prices.wake
        totals.cost += sum(gpus * prices.layout_cost(layout) for layout, gpus in taken_up.items())
        totals.cost += sum(gpus * prices.removal_cost(layout) for layout, gpus in given_up.items())
        n_mode_changes = abs(layouts[FULL_GPU] - layouts_later[FULL_GPU])
        totals.cost += n_mode_changes * prices.mode + math.ceil(n_mode_changes / problem.gpus_per_node) * prices.reboot
    return totals


def find_idle_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of the counts of idle, powered-on GPUs: shape, layouts that cannot idle, and limits."""
    if plan.parked.shape != plan.counts.shape or (plan.parked < 0).any():
        yield f"parked: the shape is {plan.parked.shape}, expected {plan.counts.shape} of at least 0"
        return
    if problem.prices is None:
        if plan.parked.any():
            yield "parked: GPUs that are not needed are released, yet some keep a layout"
        return
    if FULL_GPU in plan.layouts and plan.parked[:, plan.layouts.index(FULL_GPU)].any():
        yield "parked: full GPUs are not counted, they are the rest"
    with_layout = plan.counts + plan.parked
    n_partitioned = with_layout[:, [text != FULL_GPU for text in plan.layouts]].sum(axis=1)
    n_kept_full = max(problem.whole_gpus_kept, problem.limits.whole_nodes_kept * problem.gpus_per_node)
    for verb, gpus, maximum in (
        ("powered on", with_layout.sum(axis=1), count_powered_gpus(problem)),
        ("partitioned", n_partitioned, min(problem.gpus - n_kept_full, count_powered_gpus(problem, partitioned=True))),
    ):
        for slot in np.flatnonzero(gpus > maximum)[:1].tolist():
            yield f"interval {slot}: {gpus[slot]} GPUs are {verb}, at most {maximum} allowed"


def _layout_counter(plan: Plan, counts: list[int]) -> Counter[str]:
    """Count GPUs by layout text."""
    return Counter(dict(zip(plan.layouts, counts, strict=True)))


def _add_full_gpus(problem: PlanProblem, counter: Counter[str]) -> Counter[str]:
    """Add the GPUs without a MIG layout as full GPUs."""
    return counter + Counter({FULL_GPU: problem.gpus - counter.total()})


_COST_VERIFICATION_TOLERANCE = 1e-6
"""Absolute and relative tolerance of the check: of costs [GPU h], demand [instances] and gaps."""


def verify(plan: Plan, problem: PlanProblem, layout_plan: pl.DataFrame | None = None) -> list[str]:
    """List everything that is wrong with a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    problem : PlanProblem
        The problem that it claims to solve.
    layout_plan : polars.DataFrame, optional
        Its numbered GPUs, from :func:`~gpuplanner.planner.numbered_gpus.assign`; checked too.

    Returns
    -------
    list of str
        Faults; empty if the plan is right.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 2, 4]]]
    ... )
    >>> best = plan(problem)
    >>> verify(best, problem)
    []
    >>> verify(replace(best, changes=7), problem)
    ['changes: the plan states 7, its counts give 1']
    """
    if not plan.is_feasible:
        faults = list(_find_claim_faults(plan, problem))
    else:
        faults = [*_find_shape_faults(plan, problem), *_find_layout_faults(plan, problem)]
        faults = faults or list(find_idle_faults(plan, problem))
    if faults or not plan.is_feasible:
        return faults
    faults += _find_limit_faults(plan, problem)
    faults += find_count_faults(plan, problem)
    faults += _find_shortage_faults(plan, problem, demand_within_quotas(problem))
    faults += _find_total_faults(plan, problem)
    faults += _find_gap_faults(plan)
    if layout_plan is not None:
        faults += find_layout_plan_faults(layout_plan, plan, problem)
    return faults


def _find_claim_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of a plan without counts: a wrong status, or a cost, total or layout that it cannot have."""
    if plan.status not in PLAN_STATUSES:
        yield f"status: {plan.status!r} is none of {', '.join(PLAN_STATUSES)}"
        return
    figures = (plan.objective, plan.bound, plan.gap)
    totals = (plan.changes, plan.drained_gpus, plan.reboots, plan.gpu_hours_on, plan.unmet_gpu_hours)
    if any(figure is not None for figure in figures) or any(totals) or plan.layouts or plan.counts.size:
        yield f"status: {plan.status}, yet there is a cost, bound, gap or counts"
    if plan.status == "infeasible" and does_pinned_fleet_fit(problem):
        yield "status: infeasible, yet GPUs that are all off, but for those that must stay, keep every limit"


def _find_shape_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of shapes, types and finite values."""
    shape = (problem.n_slots, len(plan.layouts))
    if plan.counts.shape != shape:
        yield f"counts: the shape is {plan.counts.shape}, expected {shape}"
    elif not np.issubdtype(plan.counts.dtype, np.integer):
        yield f"counts: not whole numbers but {plan.counts.dtype}"
    elif (plan.counts < 0).any():
        yield f"counts: below 0 in interval {int(np.argwhere(plan.counts < 0)[0][0])}"
    if plan.unmet.shape != problem.demand.shape:
        yield f"unmet: the shape is {plan.unmet.shape}, expected {problem.demand.shape}"
    elif not np.isfinite(plan.unmet).all():
        yield "unmet: not finite"
    if plan.stopped_by not in (*PLAN_STOP_REASONS, ""):
        yield f"stopped_by: {plan.stopped_by!r} is none of {', '.join(PLAN_STOP_REASONS)}"
    numbers = {"objective": plan.objective, "bound": plan.bound, "gap": plan.gap}
    for name, value in numbers.items():
        if value is None or not math.isfinite(value):
            yield f"{name}: {value!r} is no number"


def _find_layout_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of layout texts: duplicates, texts that are not canonical, and impossible layouts."""
    if len(set(plan.layouts)) < len(plan.layouts):
        yield f"layouts: one is named twice in {plan.layouts}"
    for text in plan.layouts:
        try:
            instances = parse_layout(text)
            proof = prove(problem.gpu_model, instances)
        except GpuPlannerError as error:
            yield f"layouts: {error}"
            continue
        if format_layout(instances) != text or text == UNUSED_LAYOUT:
            yield f"layouts: {text!r} is not the canonical text of a layout that is on"
        if not proof:
            yield f"layouts: {text!r} is impossible: {proof.reason}"


def _find_limit_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of GPUs in service and GPUs kept full."""
    on = plan.counts.sum(axis=1)
    is_cut = [text != FULL_GPU for text in plan.layouts]
    whole = problem.gpus_in_service - plan.counts[:, is_cut].sum(axis=1)
    for slot in np.flatnonzero(on > problem.gpus_in_service).tolist():
        yield f"interval {slot}: {on[slot]} GPUs are on, {problem.gpus_in_service[slot]} are in service"
    for slot in np.flatnonzero(whole < problem.whole_gpus_kept).tolist():
        yield f"interval {slot}: {whole[slot]} GPUs are full, {problem.whole_gpus_kept} must stay full"
    if plan.method == "static" and len(plan.counts) and (plan.counts != plan.counts[0]).any():
        yield "counts: they change, yet the method is static"


def _find_shortage_faults(plan: Plan, problem: PlanProblem, demand: Floats) -> Iterator[str]:
    """Yield faults of unmet demand: it must have the least cost that the counts allow, and fall on tenants in order."""
    below, above = plan.unmet < -_COST_VERIFICATION_TOLERANCE, plan.unmet > demand + _COST_VERIFICATION_TOLERANCE
    if (below | above).any():
        tenant, profile, slot = np.argwhere(below | above)[0]
        yield (
            f"unmet: {plan.unmet[tenant, profile, slot]:.6g} of {demand[tenant, profile, slot]:.6g} "
            f"for {problem.tenants[tenant]}, {problem.profiles[profile]}, interval {slot}"
        )
        return
    instances_by_layout = [parse_layout(text) for text in plan.layouts]
    supply = sorted({name for counts in instances_by_layout for name in counts})
    servers = [[i for i in supply if can_serve(problem.gpu_model, i, request)] for request in problem.profiles]
    pooled, unmet = demand.sum(axis=0), plan.unmet.sum(axis=0)
    prices = np.array(problem.unmet_price)
    for slot, steps in enumerate(_price_missing_instances(problem)):
        instances = dict.fromkeys(supply, 0)
        for counts, gpus in zip(instances_by_layout, plan.counts[slot].tolist(), strict=True):
            for name, number in counts.items():
                instances[name] += number * gpus
        served = np.ceil(pooled[:, slot] - unmet[:, slot] - _COST_VERIFICATION_TOLERANCE).astype(int)
        matching = InstanceMatching(servers, instances)
        for request in range(len(problem.profiles)):
            if matching.serve(request, int(served[request])) < served[request]:
                yield f"interval {slot}: the plan serves more than the instances can"
                break
        hourly_cost = float((plan.unmet[:, :, slot] * prices[:, None] * problem.shares).sum())
        stated_cost = hourly_cost * problem.interval_hours
        least_cost = _least_shortage_cost(steps, InstanceMatching(servers, instances))
        if not _is_close(stated_cost, least_cost):
            costs = f"priced {stated_cost:.6g}, these counts leave {least_cost:.6g} at the least"
            yield f"interval {slot}: unmet demand is {costs}"
    yield from _find_order_faults(plan, problem, demand)


def _price_missing_instances(problem: PlanProblem) -> list[list[list[tuple[int, float]]]]:
    """Return, by interval and profile, steps of (instances, price of each if missing [GPU h]), highest price first.

    The tenant with the highest price is served first, so that the last instance has the lowest value; the value of an
    instance changes only where the demand of one tenant ends and that of the next begins.
    """
    demand = demand_within_quotas(problem)
    dearest = sorted(range(len(problem.tenants)), key=lambda i: -problem.unmet_price[i])
    slots = []
    for slot in range(problem.n_slots):
        by_profile = []
        for profile, share in enumerate(problem.shares.tolist()):
            wanted = demand[dearest, profile, slot]
            cumulative = np.append(0.0, np.cumsum(wanted))
            price = [problem.unmet_price[i] * share * problem.interval_hours for i in dearest]
            served_value = np.append(0.0, np.cumsum(np.array(price) * wanted))
            n_required = math.ceil(float(cumulative[-1]) - 1e-9)
            candidates = np.concatenate([np.floor(cumulative), np.ceil(cumulative), [0, n_required]]).clip(
                0, n_required
            )
            breaks = np.unique(candidates)
            step_values = np.diff(np.interp(breaks, cumulative, served_value))
            widths = np.diff(breaks)
            pairs = zip(widths.astype(int).tolist(), (step_values / widths).tolist(), strict=True)
            by_profile.append(list(pairs))
        slots.append(by_profile)
    return slots


def _least_shortage_cost(steps: Sequence[Sequence[tuple[int, float]]], matching: InstanceMatching) -> float:
    """Return the cost of missing instances if the requests of the highest price are served first [GPU h]."""
    offers = [(price, request, width) for request, profile_steps in enumerate(steps) for width, price in profile_steps]
    ranked = sorted(offers, reverse=True)
    return sum(price * (width - matching.serve(request, width)) for price, request, width in ranked)


def _find_order_faults(plan: Plan, problem: PlanProblem, demand: Floats) -> Iterator[str]:
    """Yield faults of the order of shortage: lower tiers first, then lower prices; among equals in proportion."""
    tenant_keys = [(-SERVICE_TIERS.index(t), p) for t, p in zip(problem.tiers, problem.unmet_price, strict=True)]
    unmet = plan.unmet.sum(axis=0)
    expected = np.zeros_like(plan.unmet)
    for key in sorted(set(tenant_keys)):
        group = [i for i, tenant_key in enumerate(tenant_keys) if tenant_key == key]
        total = demand[group].sum(axis=0)
        fraction = np.minimum(unmet, total) / np.where(total > 0, total, 1.0)
        expected[group] = demand[group] * fraction
        unmet = unmet - np.minimum(unmet, total)
    wrong = np.argwhere(
        ~np.isclose(plan.unmet, expected, rtol=_COST_VERIFICATION_TOLERANCE, atol=_COST_VERIFICATION_TOLERANCE)
    )
    if len(wrong):
        tenant, profile, slot = wrong[0]
        yield (
            f"unmet: {problem.tenants[tenant]} lacks {plan.unmet[tenant, profile, slot]:.6g} of "
            f"{problem.profiles[profile]} in interval {slot}; by tier it is {expected[tenant, profile, slot]:.6g}"
        )


def _find_total_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Yield faults of changes, hours and cost."""
    totals = count_state_changes(plan, problem)
    for name in ("changes", "drained_gpus"):
        if getattr(plan, name) != getattr(totals, name):
            yield f"{name}: the plan states {getattr(plan, name)}, its counts give {getattr(totals, name)}"
    on_hours = float(plan.counts.sum()) * problem.interval_hours
    unmet_hours: Floats = (plan.unmet * problem.shares[:, None]).sum(axis=(1, 2)) * problem.interval_hours
    objective = problem.on_price * on_hours + float(unmet_hours @ np.array(problem.unmet_price)) + totals.cost
    if problem.prices is not None:
        idle_hours = problem.gpus * problem.n_slots * problem.interval_hours - on_hours
        objective += problem.prices.parked_price * idle_hours
    for name, stated, counted in (
        ("gpu_hours_on", plan.gpu_hours_on, on_hours),
        ("unmet_gpu_hours", plan.unmet_gpu_hours, float(unmet_hours.sum())),
        ("objective", plan.objective, objective),
    ):
        if not _is_close(stated, counted):
            yield f"{name}: the plan states {stated}, its counts give {counted:.9g}"


def _find_gap_faults(plan: Plan) -> Iterator[str]:
    """Yield faults of bound, gap and status."""
    assert plan.objective is not None
    assert plan.bound is not None
    assert plan.gap is not None
    distance = plan.objective - plan.bound
    if distance < -_COST_VERIFICATION_TOLERANCE * max(1.0, plan.objective):
        yield f"bound: {plan.bound} is above the objective, {plan.objective}"
    proven = distance <= _COST_VERIFICATION_TOLERANCE * max(1.0, plan.objective)
    gap = 0.0 if proven else distance / max(1e-12, plan.objective)
    if not math.isclose(plan.gap, gap, abs_tol=_COST_VERIFICATION_TOLERANCE):
        yield f"gap: the plan states {plan.gap}, objective and bound give {gap}"
    if proven != (plan.status == "optimal"):
        yield f"status: {plan.status}, while the bound {'is' if proven else 'is not'} reached"


def _is_close(stated: float | None, expected: float) -> bool:
    """Whether a stated value is equal to the expected one within tolerance."""
    return stated is not None and math.isclose(
        stated, expected, rel_tol=_COST_VERIFICATION_TOLERANCE, abs_tol=_COST_VERIFICATION_TOLERANCE
    )


class InstanceMatching:
    """Matching of requests to instances, by profile and count, that grows along augmenting paths.

    - ``servers_by_request``: For each requested profile, the instance profiles that can serve it.
    - ``instances``: Number of instances of each profile.

    Examples
    --------
    >>> matching = InstanceMatching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 3), matching.serve(0, 1)
    (3, 0)
    >>> matching = InstanceMatching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 2), matching.serve(0, 1)
    (2, 1)
    """

    def __init__(self, able: Sequence[Sequence[str]], instances: Mapping[str, int]) -> None:
        self.servers_by_request = able
        self.free = dict(instances)
        self.used: list[dict[str, int]] = [dict.fromkeys(names, 0) for names in able]

    def serve(self, request: int, n_requests: int) -> int:
        """Serve up to `n_requests` more requests of a profile, reassigning others where that helps; return how many."""
        served = 0
        while served < n_requests:
            path = self._find_augmenting_path(request)
            if path is None:
                break
            amount = min(n_requests - served, self.free[path[-1][1]])
            # Along the path, each requested profile but the first releases the instances of the step before.
            for (_, name), (mover, _) in itertools.pairwise(path):
                amount = min(amount, self.used[mover][name])
            self.free[path[-1][1]] -= amount
            for step, (taker, name) in enumerate(path):
                self.used[taker][name] += amount
                if step + 1 < len(path):
                    self.used[path[step + 1][0]][name] -= amount
            served += amount
        return served

    def _find_augmenting_path(self, request: int) -> list[tuple[int, str]] | None:
        """Find the shortest chain of (requested profile, instance it takes) that ends at a free instance (BFS)."""
        reached_by: dict[str, tuple[int, str | None]] = {}
        queue: deque[tuple[int, str | None]] = deque([(request, None)])
        visited = {request}
        while queue:
            taker, taken_from = queue.popleft()
            for name in self.servers_by_request[taker]:
                if name in reached_by or name not in self.free:
                    continue
                reached_by[name] = (taker, taken_from)
                if self.free[name]:
                    return self._trace_path(name, reached_by)
                for holder, used in enumerate(self.used):
                    if holder not in visited and used.get(name):
                        visited.add(holder)
                        queue.append((holder, name))
        return None

    @staticmethod
    def _trace_path(name: str, reached_by: Mapping[str, tuple[int, str | None]]) -> list[tuple[int, str]]:
        """Trace an augmenting path back from its last instance profile, `name`."""
        path = []
        instance: str | None = name
        while instance is not None:
            taker, taken_from = reached_by[instance]
            path.append((taker, instance))
            instance = taken_from
        return path[::-1]
