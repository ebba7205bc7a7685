"""An independent check of a plan: geometry, counts, changes and cost.

Nothing here is shared with the methods that make plans: requests are matched to instances by augmenting paths,
not by the rows of a model; costs, changes, hours and shortages are added up anew; layouts are placed on the
board by :func:`gpuplanner.hardware.mig_layouts.prove`.
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
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.hardware.mig_layouts import OFF, format_layout, parse_layout, prove
from gpuplanner.planner.layout_plan import STATUSES, STOPS, Plan
from gpuplanner.planner.limit_verification import (
    count_faults,
    layout_plan_faults,
    pinned_alone_fits,
    power_for,
    within_quotas,
)
from gpuplanner.planner.plan_problem import TIERS, Floats, PlanProblem, serves


@dataclass
class StateChanges:
    """Totals over the horizon, those into the first slot included where it is known what was before.

    - ``departures``: GPUs emptied.
    - ``changes``: GPUs that take up a layout; where others are released, those too that give theirs up and stay on.
    - ``cost``: What all of it costs, emptying and reboots included.
    """

    departures: int = 0
    changes: int = 0
    cost: float = 0.0


def state_changes(plan: Plan, problem: PlanProblem) -> StateChanges:
    """Add up what happens from slot to slot, layout by layout."""
    rows = zip(plan.counts.tolist(), plan.parked.tolist(), strict=True)
    states = [(_by_layout(plan, on), _by_layout(plan, kept)) for on, kept in rows]
    if problem.initial is not None:
        states.insert(0, (Counter(problem.initial), Counter(problem.parked or {})))
    found = StateChanges()
    for (on, kept), (on_later, kept_later) in itertools.pairwise(states):
        emptied, woken = on - on_later, on_later - on
        found.departures += emptied.total()
        if problem.prices is None:
            cuts = sum(gpus for layout, gpus in woken.items() if layout != WHOLE_GPU)
            found.cost += cuts * problem.change_gpu_hours
            found.changes += cuts
            # Whoever takes up no layout had none, or has given it up.
            never_cut = problem.gpus - sum(gpus for layout, gpus in on.items() if layout != WHOLE_GPU)
            found.changes += max(0, on_later[WHOLE_GPU] - never_cut)
            continue
        prices, gpu_model = problem.prices, problem.gpu_model
        held, held_later = _with_uncut(problem, on + kept), _with_uncut(problem, on_later + kept_later)
        taken, given = held_later - held, held - held_later
        found.changes += taken.total()
        found.cost += sum(gpus * prices.drain_of(gpu_model, layout) for layout, gpus in emptied.items())
        found.cost += woken.total() * prices.wake
        found.cost += sum(gpus * prices.dress_of(layout) for layout, gpus in taken.items())
        found.cost += sum(gpus * prices.strip_of(layout) for layout, gpus in given.items())
        modes = abs(held[WHOLE_GPU] - held_later[WHOLE_GPU])
        found.cost += modes * prices.mode + math.ceil(modes / problem.gpus_per_node) * prices.reboot
    return found


def parked_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Faults of the GPUs that are said to be parked; the counts of those on have none."""
    if plan.parked.shape != plan.counts.shape or (plan.parked < 0).any():
        yield f"parked: the shape is {plan.parked.shape}, expected {plan.counts.shape} of at least 0"
        return
    if problem.prices is None:
        if plan.parked.any():
            yield "parked: GPUs that are not needed are released, yet some keep a layout"
        return
    if WHOLE_GPU in plan.layouts and plan.parked[:, plan.layouts.index(WHOLE_GPU)].any():
        yield "parked: full GPUs are not counted, they are the rest"
    held = plan.counts + plan.parked
    cut = held[:, [text != WHOLE_GPU for text in plan.layouts]].sum(axis=1)
    kept = max(problem.whole_gpus_kept, problem.limits.whole_nodes_kept * problem.gpus_per_node)
    for what, gpus, most in (
        ("powered on", held.sum(axis=1), power_for(problem)),
        ("partitioned", cut, min(problem.gpus - kept, power_for(problem, cut=True))),
    ):
        for slot in np.flatnonzero(gpus > most)[:1].tolist():
            yield f"interval {slot}: {gpus[slot]} GPUs are {what}, at most {most} allowed"


def _by_layout(plan: Plan, counts: list[int]) -> Counter[str]:
    return Counter(dict(zip(plan.layouts, counts, strict=True)))


def _with_uncut(problem: PlanProblem, held: Counter[str]) -> Counter[str]:
    """All GPUs by layout: those that nothing is said of are not cut."""
    return held + Counter({WHOLE_GPU: problem.gpus - held.total()})


_TOLERANCE = 1e-6


def verify(plan: Plan, problem: PlanProblem, layout_plan: pl.DataFrame | None = None) -> list[str]:
    """Say everything that is wrong with a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    problem : PlanProblem
        The problem that it claims to solve.
    layout_plan : polars.DataFrame, optional
        Its numbered GPUs, as :func:`~gpuplanner.planner.numbered_gpus` gives them; checked too.

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
    if not plan.found:
        faults = list(_claim_faults(plan, problem))
    else:
        faults = [*_shape_faults(plan, problem), *_layout_faults(plan, problem)]
        faults = faults or list(parked_faults(plan, problem))
    if faults or not plan.found:
        return faults
    faults += _limit_faults(plan, problem)
    faults += count_faults(plan, problem)
    faults += _shortage_faults(plan, problem, within_quotas(problem))
    faults += _total_faults(plan, problem)
    faults += _gap_faults(plan)
    if layout_plan is not None:
        faults += layout_plan_faults(layout_plan, plan, problem)
    return faults


def _claim_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """A plan that says that there is none."""
    if plan.status not in STATUSES:
        yield f"status: {plan.status!r} is none of {', '.join(STATUSES)}"
        return
    held = (plan.objective, plan.bound, plan.gap)
    totals = (plan.changes, plan.departures, plan.reboots, plan.gpu_hours_on, plan.unmet_gpu_hours)
    if any(one is not None for one in held) or any(totals) or plan.layouts or plan.counts.size:
        yield f"status: {plan.status}, yet there is a cost, bound, gap or counts"
    if plan.status == "infeasible" and pinned_alone_fits(problem):
        yield "status: infeasible, yet GPUs that are all off, but for those that must stay, keep every limit"


def _shape_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
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
    if plan.stopped_by not in (*STOPS, ""):
        yield f"stopped_by: {plan.stopped_by!r} is none of {', '.join(STOPS)}"
    numbers = {"objective": plan.objective, "bound": plan.bound, "gap": plan.gap}
    for name, value in numbers.items():
        if value is None or not math.isfinite(value):
            yield f"{name}: {value!r} is no number"


def _layout_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    if len(set(plan.layouts)) < len(plan.layouts):
        yield f"layouts: one is named twice in {plan.layouts}"
    for text in plan.layouts:
        try:
            held = parse_layout(text)
            proof = prove(problem.gpu_model, held)
        except GpuPlannerError as error:
            yield f"layouts: {error}"
            continue
        if format_layout(held) != text or text == OFF:
            yield f"layouts: {text!r} is not the canonical text of a layout that is on"
        if not proof:
            yield f"layouts: {text!r} is impossible: {proof.reason}"


def _limit_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    on = plan.counts.sum(axis=1)
    is_cut = [text != WHOLE_GPU for text in plan.layouts]
    whole = problem.gpus_in_service - plan.counts[:, is_cut].sum(axis=1)
    for slot in np.flatnonzero(on > problem.gpus_in_service).tolist():
        yield f"interval {slot}: {on[slot]} GPUs are on, {problem.gpus_in_service[slot]} are in service"
    for slot in np.flatnonzero(whole < problem.whole_gpus_kept).tolist():
        yield f"interval {slot}: {whole[slot]} GPUs are full, {problem.whole_gpus_kept} must stay full"
    if plan.method == "static" and len(plan.counts) and (plan.counts != plan.counts[0]).any():
        yield "counts: they change, yet the method is static"


def _shortage_faults(plan: Plan, problem: PlanProblem, demand: Floats) -> Iterator[str]:
    """Unmet demand must be just what the counts leave at the least cost, taken from tenants in order."""
    below, above = plan.unmet < -_TOLERANCE, plan.unmet > demand + _TOLERANCE
    if (below | above).any():
        tenant, profile, slot = np.argwhere(below | above)[0]
        yield (
            f"unmet: {plan.unmet[tenant, profile, slot]:.6g} of {demand[tenant, profile, slot]:.6g} "
            f"for {problem.tenants[tenant]}, {problem.profiles[profile]}, interval {slot}"
        )
        return
    held = [parse_layout(text) for text in plan.layouts]
    supply = sorted({name for counts in held for name in counts})
    able = [[i for i in supply if serves(problem.gpu_model, i, request)] for request in problem.profiles]
    pooled, left = demand.sum(axis=0), plan.unmet.sum(axis=0)
    prices = np.array(problem.unmet_price)
    for slot, steps in enumerate(_missing_steps(problem)):
        instances = dict.fromkeys(supply, 0)
        for counts, gpus in zip(held, plan.counts[slot].tolist(), strict=True):
            for name, number in counts.items():
                instances[name] += number * gpus
        served = np.ceil(pooled[:, slot] - left[:, slot] - _TOLERANCE).astype(int)
        matching = Matching(able, instances)
        for request in range(len(problem.profiles)):
            if matching.serve(request, int(served[request])) < served[request]:
                yield f"interval {slot}: the plan serves more than the instances can"
                break
        hourly = float((plan.unmet[:, :, slot] * prices[:, None] * problem.shares).sum())
        stated, least = hourly * problem.interval_hours, _least_shortage(steps, Matching(able, instances))
        if not _near(stated, least):
            yield f"interval {slot}: unmet demand is priced {stated:.6g}, these counts leave {least:.6g} at the least"
    yield from _order_faults(plan, problem, demand)


def _missing_steps(problem: PlanProblem) -> list[list[list[tuple[int, float]]]]:
    """Instances and their price if missing, dearest first, by slot and profile.

    Whoever pays most is served first, so that the last instance is worth least; what instances are worth changes
    only where the demand of one tenant ends and that of the next begins.
    """
    demand = within_quotas(problem)
    dearest = sorted(range(len(problem.tenants)), key=lambda i: -problem.unmet_price[i])
    slots = []
    for slot in range(problem.n_slots):
        by_profile = []
        for profile, share in enumerate(problem.shares.tolist()):
            wanted = demand[dearest, profile, slot]
            ends = np.append(0.0, np.cumsum(wanted))
            price = [problem.unmet_price[i] * share * problem.interval_hours for i in dearest]
            worth = np.append(0.0, np.cumsum(np.array(price) * wanted))
            needed = math.ceil(float(ends[-1]) - 1e-9)
            near = np.concatenate([np.floor(ends), np.ceil(ends), [0, needed]]).clip(0, needed)
            places = np.unique(near)
            gained = np.diff(np.interp(places, ends, worth))
            widths = np.diff(places)
            pairs = zip(widths.astype(int).tolist(), (gained / widths).tolist(), strict=True)
            by_profile.append(list(pairs))
        slots.append(by_profile)
    return slots


def _least_shortage(steps: Sequence[Sequence[tuple[int, float]]], matching: Matching) -> float:
    """Price of what is missing in a slot if instances serve the dearest requests first."""
    offers = [(price, request, width) for request, one in enumerate(steps) for width, price in one]
    ranked = sorted(offers, reverse=True)
    return sum(price * (width - matching.serve(request, width)) for price, request, width in ranked)


def _order_faults(plan: Plan, problem: PlanProblem, demand: Floats) -> Iterator[str]:
    """Lower tiers go short first; within a tier cheaper tenants; among equals in proportion."""
    rank = [(-TIERS.index(t), p) for t, p in zip(problem.tiers, problem.unmet_price, strict=True)]
    left = plan.unmet.sum(axis=0)
    expected = np.zeros_like(plan.unmet)
    for key in sorted(set(rank)):
        group = [i for i, other in enumerate(rank) if other == key]
        total = demand[group].sum(axis=0)
        part = np.minimum(left, total) / np.where(total > 0, total, 1.0)
        expected[group] = demand[group] * part
        left = left - np.minimum(left, total)
    wrong = np.argwhere(~np.isclose(plan.unmet, expected, rtol=_TOLERANCE, atol=_TOLERANCE))
    if len(wrong):
        tenant, profile, slot = wrong[0]
        yield (
            f"unmet: {problem.tenants[tenant]} lacks {plan.unmet[tenant, profile, slot]:.6g} of "
            f"{problem.profiles[profile]} in interval {slot}; by tier it is {expected[tenant, profile, slot]:.6g}"
        )


def _total_faults(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    found = state_changes(plan, problem)
    for name in ("changes", "departures"):
        if getattr(plan, name) != getattr(found, name):
            yield f"{name}: the plan states {getattr(plan, name)}, its counts give {getattr(found, name)}"
    on_hours = float(plan.counts.sum()) * problem.interval_hours
    unmet_hours: Floats = (plan.unmet * problem.shares[:, None]).sum(axis=(1, 2)) * problem.interval_hours
    objective = problem.on_price * on_hours + float(unmet_hours @ np.array(problem.unmet_price)) + found.cost
    if problem.prices is not None:
        idle_hours = problem.gpus * problem.n_slots * problem.interval_hours - on_hours
        objective += problem.prices.parked_price * idle_hours
    for name, said, counted in (
        ("gpu_hours_on", plan.gpu_hours_on, on_hours),
        ("unmet_gpu_hours", plan.unmet_gpu_hours, float(unmet_hours.sum())),
        ("objective", plan.objective, objective),
    ):
        if not _near(said, counted):
            yield f"{name}: the plan states {said}, its counts give {counted:.9g}"


def _gap_faults(plan: Plan) -> Iterator[str]:
    assert plan.objective is not None
    assert plan.bound is not None
    assert plan.gap is not None
    distance = plan.objective - plan.bound
    if distance < -_TOLERANCE * max(1.0, plan.objective):
        yield f"bound: {plan.bound} is above the objective, {plan.objective}"
    proven = distance <= _TOLERANCE * max(1.0, plan.objective)
    gap = 0.0 if proven else distance / max(1e-12, plan.objective)
    if not math.isclose(plan.gap, gap, abs_tol=_TOLERANCE):
        yield f"gap: the plan states {plan.gap}, objective and bound give {gap}"
    if proven != (plan.status == "optimal"):
        yield f"status: {plan.status}, while the bound {'is' if proven else 'is not'} reached"


def _near(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


class Matching:
    """A growing assignment of requests to instances, by profile and count.

    - ``able``: For each request profile, the instance profiles that can serve it.
    - ``instances``: Instances there are of each profile.

    Examples
    --------
    >>> matching = Matching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 3), matching.serve(0, 1)
    (3, 0)
    >>> matching = Matching([["3g"], ["3g", "1g"]], {"3g": 1, "1g": 2})
    >>> matching.serve(1, 2), matching.serve(0, 1)
    (2, 1)
    """

    def __init__(self, able: Sequence[Sequence[str]], instances: Mapping[str, int]) -> None:
        self.able = able
        self.free = dict(instances)
        self.used: list[dict[str, int]] = [dict.fromkeys(names, 0) for names in able]

    def serve(self, request: int, wanted: int) -> int:
        """Serve more requests of one profile, moving others aside where that helps; say how many."""
        served = 0
        while served < wanted:
            path = self._path(request)
            if path is None:
                break
            amount = min(wanted - served, self.free[path[-1][1]])
            # Along the path, each request profile but the first gives up the instances of the step before.
            for (_, name), (mover, _) in itertools.pairwise(path):
                amount = min(amount, self.used[mover][name])
            self.free[path[-1][1]] -= amount
            for step, (taker, name) in enumerate(path):
                self.used[taker][name] += amount
                if step + 1 < len(path):
                    self.used[path[step + 1][0]][name] -= amount
            served += amount
        return served

    def _path(self, request: int) -> list[tuple[int, str]] | None:
        """Shortest chain of (request profile, instance profile it takes) that ends at a free instance."""
        came: dict[str, tuple[int, str | None]] = {}
        queue: deque[tuple[int, str | None]] = deque([(request, None)])
        asked = {request}
        while queue:
            taker, via = queue.popleft()
            for name in self.able[taker]:
                if name in came or name not in self.free:
                    continue
                came[name] = (taker, via)
                if self.free[name]:
                    return self._trace(name, came)
                for other, used in enumerate(self.used):
                    if other not in asked and used.get(name):
                        asked.add(other)
                        queue.append((other, name))
        return None

    @staticmethod
    def _trace(name: str, came: Mapping[str, tuple[int, str | None]]) -> list[tuple[int, str]]:
        path = []
        at: str | None = name
        while at is not None:
            taker, via = came[at]
            path.append((taker, at))
            at = via
        return path[::-1]
