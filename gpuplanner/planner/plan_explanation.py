"""A plan explained: what drives it, who is short, and its cost under other demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import MissingDependencyError, ScenarioError
from gpuplanner.core.schemas import WHOLE_GPU
from gpuplanner.planner.fleet_limits import Limits
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.linear_model import Effort
from gpuplanner.planner.linear_program import window_floors
from gpuplanner.planner.plan_arrays import Fluid
from gpuplanner.planner.plan_problem import ROUNDING, Counts, Floats, PlanProblem


def realised_cost(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None) -> float:
    """Cost of counts under the demand of a problem, whatever demand they were planned for.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["3g.20gb"], demand=[[[2, 2, 4]]],
    ...     change_gpu_hours=0.05,
    ... )
    >>> best = plan(problem)
    >>> realised_cost(problem, best.layouts, best.counts) == best.objective
    True
    >>> round(realised_cost(problem, best.layouts, best.counts[[0, 0, 0]]), 3)  # 2 of 4 missing at the end
    11.571
    """
    known = dict.fromkeys(layouts, 0) | dict(problem.initial or {})
    fluid = Fluid.of(replace(problem, initial=known))
    before = None if problem.initial is None else fluid.initial
    return fluid.cost(counts_in(fluid, layouts, counts, parked), before=before)


def counts_in(fluid: Fluid, layouts: Sequence[str], counts: Counts, parked: Counts | None = None) -> Counts:
    """Counts of GPUs on, and parked, with every column of the arrays, shape (n, n_columns)."""
    spread = np.zeros((len(counts), len(fluid.owner)), dtype=np.int64)
    spread[:, [fluid.layouts.index(layout) for layout in layouts]] = counts
    if parked is not None and fluid.parks:
        kept = {fluid.layouts[i]: place for place, i in enumerate(fluid.owner) if not fluid.used[place]}
        for layout, column in zip(layouts, parked.T, strict=True):
            if layout in kept:
                spread[:, kept[layout]] = column
    return spread


def realised_costs(
    problem: PlanProblem,
    plans: Sequence[Plan],
    demands: Floats,
    *,
    waits: bool = False,
) -> Floats:
    """Cost of several plans under each of many demands, of all tenants together.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     gpu_model="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     interval_hours=1, tenants=["ads"], profiles=["gpu"], demand=[[[1, 1]]],
    ... )
    >>> from gpuplanner.planner.plan_search import plan
    >>> one_gpu = plan(problem)
    >>> paths = np.array([[[1.0, 1.0]], [[2.0, 0.5]]])
    >>> [realised_costs(problem, [one_gpu], paths, waits=waits).tolist() for waits in (False, True)]
    [[[2.0, 12.0]], [[2.0, 17.0]]]
    """
    prices = set(problem.unmet_price)
    if len(prices) > 1:
        expected = "one price of unmet demand for all teams"
        raise ScenarioError("realised cost", expected, f"{sorted(prices)}", "Cost each team by itself.")
    known = {layout: 0 for one in plans for layout in one.layouts} | dict(problem.initial or {})
    highest = demands.max(axis=0)[None]
    everyone = {"tenants": ("all",), "tiers": ("standard",), "unmet_price": prices.pop(), "demand": highest}
    fluid = Fluid.of(replace(problem, initial=known, **everyone))
    held = [counts_in(fluid, one.layouts, one.counts, one.parked) for one in plans]
    counts = np.array(held)
    before = None if problem.initial is None else fluid.initial
    steps = [zip([before, *rows[:-1]], rows, strict=True) for rows in counts]
    changes = np.array([sum(fluid.ways.cost(*step) for step in pairs) for pairs in steps])
    on = fluid.idle_cost * demands.shape[2] + fluid.on_cost * counts[:, :, fluid.used].sum(axis=(1, 2))
    worth = problem.shares * problem.interval_hours * fluid.problem.unmet_price[0]
    short = np.zeros((len(plans), *demands.shape[:2]))
    unmet = np.zeros(short.shape[:2])
    for slot in range(demands.shape[2]):
        wanted = np.broadcast_to(demands[:, :, slot], short.shape) + (short if waits else 0.0)
        short = wanted - _met(fluid, counts[:, slot], wanted, worth)
        unmet += short @ worth
    total: Floats = (on + changes)[:, None] + unmet
    return total


def _met(fluid: Fluid, counts: Counts, wanted: Floats, worth: Floats) -> Floats:
    """Demand met, shape (n_plans, n, n_profiles): instances for the dearest demand first, a broken one at the last.

    An instance serves one profile for the whole slot, so that the broken rest of a demand takes one of its own.
    """
    profiles = wanted.shape[2]
    whole = np.floor(wanted + ROUNDING)
    rest = np.where(wanted - whole > ROUNDING, wanted - whole, 0.0)
    width = np.concatenate([whole, rest > 0], axis=2)
    value = np.concatenate([np.where(whole > 0, worth, 0.0), rest * worth], axis=2)
    each = np.concatenate([np.ones_like(rest), rest], axis=2)
    order = np.argsort(-value, axis=2, kind="stable")
    free = np.repeat((counts @ fluid.cover.T)[:, None].astype(np.float64), wanted.shape[1], axis=1)
    able = fluid.demanded.T > 0
    met = np.zeros_like(wanted)
    for place in np.moveaxis(order, 2, 0)[..., None]:
        mine = able[place[..., 0] % profiles]
        limit = np.where(mine, free, np.inf).min(axis=2, initial=np.inf)
        served = np.minimum(np.take_along_axis(width, place, 2)[..., 0], limit)
        free -= mine * served[..., None]
        gain = served[..., None] * np.take_along_axis(each, place, 2)
        which = place % profiles
        np.put_along_axis(met, which, np.take_along_axis(met, which, 2) + gain, 2)
    return met


def instance_prices(plan: Plan, problem: PlanProblem) -> Floats:
    """Unmet demand, at its price, that one more instance of each profile would serve in each slot.

    The layouts stay as they are; what the instance serves is chosen anew, so that a larger instance which
    serves small requests now may pass its work on. Where the value is above the price of keeping a share of
    a GPU on, a limit binds: more GPUs, or fewer kept whole, would pay.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    ndarray of float, shape (n_profiles, n_slots)
        Value of one instance for one slot, in GPU-hours at the problem's prices; 0 where nothing is short.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 1, 1, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[2, 3]]]
    ... )
    >>> instance_prices(plan(problem), problem).round(3).tolist()
    [[0.0, 4.286]]
    """
    fluid = Fluid.of(problem)
    counts = counts_in(fluid, plan.require().layouts, plan.counts, plan.parked)
    one_more = [fluid.with_instance(profile) for profile in range(len(problem.profiles))]
    prices = np.zeros((len(problem.profiles), problem.n_slots))
    for slot, now in enumerate(counts):
        if not fluid.missing(slot, now).any():
            continue
        short = _shortage_cost(fluid, slot, now)
        for profile, with_one in enumerate(one_more):
            prices[profile, slot] = max(0.0, short - _shortage_cost(with_one, slot, np.append(now, 1)))
    return prices


def _shortage_cost(fluid: Fluid, slot: int, counts: Counts) -> float:
    """Cost of unmet demand alone."""
    on = float(counts[: len(fluid.layouts)].sum())
    return float(fluid.slot_costs(slot, counts[None])[0]) - fluid.on_cost * on


def dearest_instances(plan: Plan, problem: PlanProblem, *, count: int = 10) -> pl.DataFrame:
    """Where one instance more would be worth most.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
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
    instant = pl.Datetime("us", "UTC")
    found = pl.DataFrame(rows, schema_overrides={"profile": pl.String, "slot_start": instant})
    return found.sort("worth_gpu_hours", "slot_start", "profile", descending=[True, False, False]).head(count)


_NAMED = 3
_WORK_FOR_WAY_OUT = 200


def explain_limits(problem: PlanProblem) -> str | None:
    """Why no plan keeps the limits, the smallest conflict and the cheapest way out; None if some plan does.

    Unmet demand is always allowed, at its price. What can contradict each other are GPUs that must stay cut
    or on, GPUs kept whole, and GPUs in service or with power.
    """
    pinned, service, allowed = problem.limits.pinned, problem.gpus_in_service, problem.gpus_allowed_on
    stay = sum(pinned.values())
    cut = stay - pinned.get(WHOLE_GPU, 0)
    kept = f"{problem.kept_whole} to be kept full"
    conflicts = (
        (problem.kept_whole - service, service, kept, "keep at most {have} full"),
        (cut - problem.gpus_cuttable, service, f"{cut} that must stay partitioned and {kept}",
         "keep {short} fewer full, or release {short} of those that must stay"),
        (stay - allowed, allowed, f"{stay} that must stay on", "release {short} of those that must stay"),
    )  # fmt: skip
    for short, have, what, way_out in conflicts:
        slots = np.flatnonzero(short > 0)
        if not len(slots):
            continue
        worst = int(short.argmax())
        place = "in service" if have is service else "in service and within the power of the racks"
        figures = {"have": int(have[worst]), "short": int(short[worst])}
        return (
            f"In {len(slots)} of {problem.n_slots} intervals, first at {_at(problem, int(slots[0]))}, the limits "
            f"contradict each other: in the worst interval, at {_at(problem, worst)}, {figures['have']} GPUs are "
            f"{place} against {what}. Cheapest fix: "
            f"{way_out.format(**figures)}, or have {figures['short']} more {place}."
        )
    return _frozen(problem)


def _frozen(problem: PlanProblem) -> str | None:
    """What must stay is not there yet, and nothing may be cut."""
    if problem.limits.switches_per_day != 0 or problem.initial is None:
        return None
    for text, gpus in problem.limits.pinned.items():
        missing = gpus - problem.initial.get(text, 0)
        if text != WHOLE_GPU and missing > 0:
            return (
                f"{gpus} GPUs must keep {text}, {missing} of them do not have it yet, and no GPU may be partitioned. "
                f"Cheapest fix: allow one layout change a day, or release {missing} of those that must stay."
            )
    return None


def explain(plan: Plan, problem: PlanProblem, effort: Effort) -> str:
    """Describe a plan that was found."""
    parts = [_proof(plan), *_use(plan, problem), *_reboots(plan, problem)]
    return " ".join([*parts, *_explain_shortage(plan, problem, effort), *_refused(problem)])


def _refused(problem: PlanProblem) -> Iterator[str]:
    """Demand beyond quotas, which no plan may serve."""
    hours = (problem.demand - problem.admitted) * problem.shares[None, :, None] * problem.interval_hours
    total = float(hours.sum())
    if total > ROUNDING:
        most = int(hours.sum(axis=(1, 2)).argmax())
        yield (
            f"Quotas reject {total:.1f} GPU-hours, most of them of {problem.tenants[most]} "
            f"({float(hours[most].sum()):.1f}); they are not counted as unmet."
        )


def _proof(plan: Plan) -> str:
    if plan.status == "optimal":
        return "The plan is optimal (proven)."
    stops = {
        "proof": "the requested gap is reached",
        "passes": "the search is complete",
        "time_limit": "stopped at the time limit",
        "work_limit": "stopped at the work limit",
        "user": "stopped by the user",
    }
    gap = f"{100 * (plan.gap or 0.0):.2f} %"
    return f"Optimality gap at most {gap} (proven); {stops[plan.stopped_by]}."


def _use(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    on = plan.counts.sum(axis=1)
    if not on.any():
        yield "No GPU is needed." if not problem.required.any() else "No GPU pays for being powered on."
        return
    peak = int(on.argmax())
    load = problem.required[:, peak] * problem.shares
    driver = int(load.argmax())
    cuts = "once" if plan.changes == 1 else f"{plan.changes} times"
    yield (
        f"The plan powers on {on.mean():.1f} of {problem.gpus} GPUs on average, and {on[peak]} at the peak, "
        f"{_at(problem, peak)}, driven by {_named(problem.profiles[driver])} "
        f"({problem.required[driver, peak]} instances, equal to {load[driver]:.1f} GPUs). GPUs are repartitioned {cuts}"
        + (f", and drained {plan.departures} times." if problem.prices is not None else ".")
    )


def _reboots(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """Counts do not say on which nodes MIG mode changes, so that the plan pays for the fewest reboots that could do."""
    if problem.prices is None or not problem.prices.reboot:
        return
    cut = (plan.counts + plan.parked)[:, [text != WHOLE_GPU for text in plan.layouts]].sum(axis=1).tolist()
    if problem.initial is not None:
        held = [*problem.initial.items(), *(problem.parked or {}).items()]
        cut.insert(0, sum(gpus for text, gpus in held if text != WHOLE_GPU))
    paid = int(np.ceil(np.abs(np.diff(cut)) / problem.gpus_per_node).sum())
    if paid < plan.reboots:
        more = (plan.reboots - paid) * problem.prices.reboot
        yield (
            f"With numbered GPUs nodes reboot {plan.reboots} times; the cost includes {paid}, the lower bound of these "
            f"counts, and the others cost {more:.3g} GPU-hours more."
        )


def _explain_shortage(plan: Plan, problem: PlanProblem, effort: Effort) -> Iterator[str]:
    hours = plan.unmet * problem.shares[None, :, None] * problem.interval_hours  # by tenant, profile and slot
    total = float(hours.sum())
    if total == 0:
        yield "All demand is met."
        return
    yield f"{total:.1f} GPU-hours of demand are not met: {_who(hours, problem)}."
    cut = plan.counts[:, [layout != WHOLE_GPU for layout in plan.layouts]].sum(axis=1)
    # Slots in which no further GPU may be on, or none may be cut.
    full = (plan.counts.sum(axis=1) >= problem.gpus_allowed_on) | (cut >= problem.gpus_cuttable)
    by_slot = hours.sum(axis=(0, 1))
    dropped = float(by_slot[~full].sum())
    if dropped > 0:
        yield (
            f"{dropped:.1f} of them fall in intervals with unallocated GPUs: instances needed for so short a part "
            "of an interval that their price does not cover a GPU."
        )
    if full.any() and by_slot[full].any():
        worst = int(np.where(full, by_slot, -1.0).argmax())
        yield _price(plan, problem, worst)
        yield from _way_out(problem, worst, effort)


def _price(plan: Plan, problem: PlanProblem, slot: int) -> str:
    """What one more instance would be worth in a slot."""
    prices = instance_prices(plan, problem)[:, slot]
    dearest = int(prices.argmax())
    profile = problem.profiles[dearest]
    more = "full GPU" if profile == WHOLE_GPU else f"instance of {profile}"
    return (
        f"At {_at(problem, slot)} one more {more} would save {prices[dearest]:.2f} GPU-hours, the most of any profile."
    )


def _who(hours: Floats, problem: PlanProblem) -> str:
    pairs = hours.sum(axis=2)
    order = [divmod(int(i), pairs.shape[1]) for i in np.argsort(-pairs, axis=None, kind="stable")]
    named = [(i, j) for i, j in order if pairs[i, j] > 0]
    parts = []
    for i, j in named[:_NAMED]:
        slot = int(hours[i, j].argmax())
        what = f"{pairs[i, j]:.1f} GPU-hours of {_named(problem.profiles[j])}"
        parts.append(f"{problem.tenants[i]} lacks {what}, most at {_at(problem, slot)}")
    rest = len(named) - _NAMED
    return "; ".join(parts) + (f"; and {rest} more" if rest > 0 else "")


def _way_out(problem: PlanProblem, slot: int, effort: Effort) -> Iterator[str]:
    """GPUs that would serve all that is worth serving in the worst slot, cheapest source first."""
    demand, gpus = problem.demand[:, :, slot : slot + 1], problem.gpus + int(problem.required[:, slot].sum())
    limits = Limits(quotas=problem.limits.quotas)
    unstated: dict[str, Any] = dict.fromkeys(("available", "initial", "prices", "parked", "nodes"))
    alone = replace(problem, demand=demand, gpus=gpus, whole_gpus_kept=0, limits=limits, **unstated)
    own = Effort.begin(seed=effort.seed, solver=effort.solver, work_limit=_WORK_FOR_WAY_OUT)
    try:
        found = window_floors(Fluid.of(alone), 1, (), own)
    except MissingDependencyError:
        return  # a greedy plan needs no solver, and its way out is then left out
    if not found.complete:
        return
    service, powered = int(problem.gpus_in_service[slot]), int(problem.gpus_allowed_on[slot])
    wanted = int(found.states.sum())
    lacking = wanted - service + problem.kept_whole
    parts = []
    if problem.kept_whole and lacking > 0:
        freed = min(lacking, problem.kept_whole)
        parts.append(f"partition {freed} of the GPUs kept full")
        lacking -= freed
    if powered < service and wanted > powered:
        parts.append(f"provide rack power for {_gpus(min(wanted, service) - powered)} more")
    if problem.gpus > service and lacking > 0:
        back = min(lacking, problem.gpus - service)
        parts.append(f"postpone the maintenance of {_gpus(back)}")
        lacking -= back
    if lacking > 0:
        parts.append(f"add {_gpus(lacking)}, or move the demand to intervals with unallocated GPUs")
    yield (
        f"The worst interval is {_at(problem, slot)}: {_gpus(wanted)} would serve all demand that pays off. "
        f"Cheapest fix: {'; '.join(parts) or 'wait for the neighbouring intervals, where changes cost less'}."
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _named(profile: str) -> str:
    return "full GPUs" if profile == WHOLE_GPU else profile


def _at(problem: PlanProblem, slot: int) -> str:
    return f"{problem.slot_times[slot]:%Y-%m-%d %H:%M} UTC"
