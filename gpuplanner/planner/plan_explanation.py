"""Explanation of a plan: its drivers, its unmet demand, and its cost under other demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import MissingDependencyError, ScenarioError
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import gpu_figure_text, gpus_text
from gpuplanner.planner.fleet_limits_and_prices import Limits
from gpuplanner.planner.interval_milp import solve_window_bounds
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.linear_programs_and_search_limits import SearchEffort
from gpuplanner.planner.plan_arrays import PlanArrays
from gpuplanner.planner.plan_problem import DEMAND_ROUNDING_INSTANCES, Counts, Floats, PlanProblem


def realised_cost(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None) -> float:
    """Return the cost of counts under the demand of a problem, whatever demand they were planned for [GPU h].

    Parameters
    ----------
    problem : PlanProblem
        Demand and prices.
    layouts : sequence of str
        Layout texts.
    counts, parked : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs, and idle GPUs with each layout.

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
    initial_layouts = dict.fromkeys(layouts, 0) | dict(problem.initial or {})
    arrays = PlanArrays.from_problem(replace(problem, initial=initial_layouts))
    before = None if problem.initial is None else arrays.initial
    return arrays.plan_cost(arrange_counts_in_columns(arrays, layouts, counts, parked), before=before)


def arrange_counts_in_columns(
    arrays: PlanArrays, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> Counts:
    """Arrange powered-on and idle GPUs by layout in the columns of the arrays, shape (n_slots, n_columns).

    Parameters
    ----------
    arrays : PlanArrays
        Their columns.
    layouts : sequence of str
        Layout texts.
    counts, parked : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs, and idle GPUs with each layout.
    """
    counts_by_column = np.zeros((len(counts), len(arrays.layout_of_column)), dtype=np.int64)
    counts_by_column[:, [arrays.layouts.index(layout) for layout in layouts]] = counts
    if parked is not None and arrays.keeps_idle_layouts:
        idle_column_of = {
            arrays.layouts[layout]: column
            for column, layout in enumerate(arrays.layout_of_column)
            if not arrays.is_on[column]
        }
        for layout, column in zip(layouts, parked.T, strict=True):
            if layout in idle_column_of:
                counts_by_column[:, idle_column_of[layout]] = column
    return counts_by_column


def realised_costs(problem: PlanProblem, plans: Sequence[Plan], demands: Floats, *, carry_over: bool = False) -> Floats:
    """Return the cost of several plans under each of many demand paths of all tenants together.

    Parameters
    ----------
    problem : PlanProblem
        Prices and initial layouts; its demand is not used.
    plans : sequence of Plan
        Plans for the intervals of the paths.
    demands : ndarray of float, shape (n_paths, n_profiles, n_slots)
        Mean concurrent instances.
    carry_over : bool
        Whether unmet demand waits for the next interval.

    Returns
    -------
    ndarray of float, shape (n_plans, n_paths)
        Costs. [GPU h]

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
    >>> [realised_costs(problem, [one_gpu], paths, carry_over=waits).tolist() for waits in (False, True)]
    [[[2.0, 12.0]], [[2.0, 17.0]]]
    """
    prices = set(problem.unmet_price)
    if len(prices) > 1:
        expected = "one price of unmet demand for all teams"
        raise ScenarioError("realised cost", expected, f"{sorted(prices)}", "Cost each team by itself.")
    initial_layouts = {layout: 0 for plan in plans for layout in plan.layouts} | dict(problem.initial or {})
    highest = demands.max(axis=0)[None]
    one_team = {"tenants": ("all",), "tiers": ("standard",), "unmet_price": prices.pop(), "demand": highest}
    arrays = PlanArrays.from_problem(replace(problem, initial=initial_layouts, **one_team))
    plan_counts = [arrange_counts_in_columns(arrays, plan.layouts, plan.counts, plan.parked) for plan in plans]
    counts = np.array(plan_counts)
    before = None if problem.initial is None else arrays.initial
    steps = [zip([before, *rows[:-1]], rows, strict=True) for rows in counts]
    changes = np.array([sum(arrays.transitions.transition_cost(*step) for step in pairs) for pairs in steps])
    on = arrays.idle_cost * demands.shape[2] + arrays.on_cost * counts[:, :, arrays.is_on].sum(axis=(1, 2))
    instance_price = problem.shares * problem.interval_hours * arrays.problem.unmet_price[0]
    n_short = np.zeros((len(plans), *demands.shape[:2]))
    unmet = np.zeros(n_short.shape[:2])
    for slot in range(demands.shape[2]):
        wanted = np.broadcast_to(demands[:, :, slot], n_short.shape) + (n_short if carry_over else 0.0)
        n_short = wanted - _demand_met(arrays, counts[:, slot], wanted, instance_price)
        unmet += n_short @ instance_price
    total: Floats = (on + changes)[:, None] + unmet
    return total


def _demand_met(arrays: PlanArrays, counts: Counts, wanted: Floats, instance_price: Floats) -> Floats:
    """Return the demand met, shape (n_plans, n_paths, n_profiles), with instances for the highest price first.

    An instance serves one profile for the whole interval, so that the fraction of an instance takes one of its own.

    Parameters
    ----------
    arrays : PlanArrays
        Arrays of the problem.
    counts : ndarray of int, shape (n_plans, n_columns)
        Counts of each plan in the interval.
    wanted : ndarray of float, shape (n_plans, n_paths, n_profiles)
        Demand. [instances]
    instance_price : ndarray of float, shape (n_profiles,)
        Price of one unmet instance. [GPU h]
    """
    profiles = wanted.shape[2]
    full_instances = np.floor(wanted + DEMAND_ROUNDING_INSTANCES)
    remainder = np.where(wanted - full_instances > DEMAND_ROUNDING_INSTANCES, wanted - full_instances, 0.0)
    n_wanted = np.concatenate([full_instances, remainder > 0], axis=2)
    step_value = np.concatenate([np.where(full_instances > 0, instance_price, 0.0), remainder * instance_price], axis=2)
    demand_per_instance = np.concatenate([np.ones_like(remainder), remainder], axis=2)
    order = np.argsort(-step_value, axis=2, kind="stable")
    n_free = np.repeat((counts @ arrays.coverage.T)[:, None].astype(np.float64), wanted.shape[1], axis=1)
    is_member = arrays.request_sets.T > 0
    met = np.zeros_like(wanted)
    for step in np.moveaxis(order, 2, 0)[..., None]:
        in_sets = is_member[step[..., 0] % profiles]
        limit = np.where(in_sets, n_free, np.inf).min(axis=2, initial=np.inf)
        served = np.minimum(np.take_along_axis(n_wanted, step, 2)[..., 0], limit)
        n_free -= in_sets * served[..., None]
        gained = served[..., None] * np.take_along_axis(demand_per_instance, step, 2)
        profile = step % profiles
        np.put_along_axis(met, profile, np.take_along_axis(met, profile, 2) + gained, 2)
    return met


def instance_prices(plan: Plan, problem: PlanProblem) -> Floats:
    """Return the saving by one more instance of each profile in each interval.

    The layouts stay as they are; requests are matched again, so that a larger instance which serves small requests now
    may pass its work on. Where the value is above the price of keeping a fraction of a GPU on, a limit binds: more
    GPUs, or fewer kept full, would pay.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    ndarray of float, shape (n_profiles, n_slots)
        Value of one instance for one interval, at the prices of the problem; 0 where no demand is unmet. [GPU h]

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
    arrays = PlanArrays.from_problem(problem)
    counts = arrange_counts_in_columns(arrays, plan.require().layouts, plan.counts, plan.parked)
    with_instance = [arrays.with_single_instance(profile) for profile in range(len(problem.profiles))]
    prices = np.zeros((len(problem.profiles), problem.n_slots))
    for slot, slot_counts in enumerate(counts):
        if not arrays.count_missing_instances(slot, slot_counts).any():
            continue
        cost_now = _shortage_cost(arrays, slot, slot_counts)
        for profile, with_one_more in enumerate(with_instance):
            prices[profile, slot] = max(0.0, cost_now - _shortage_cost(with_one_more, slot, np.append(slot_counts, 1)))
    return prices


def _shortage_cost(arrays: PlanArrays, slot: int, counts: Counts) -> float:
    """Return the cost of unmet demand alone in an interval [GPU h]."""
    on = float(counts[: len(arrays.layouts)].sum())
    return float(arrays.slot_costs(slot, counts[None])[0]) - arrays.on_cost * on


def dearest_instances(plan: Plan, problem: PlanProblem, *, count: int = 10) -> pl.DataFrame:
    """Rank the intervals and profiles in which one more instance would save most [GPU h], the first `count` of them.

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
    ranked = pl.DataFrame(rows, schema_overrides={"profile": pl.String, "slot_start": instant})
    return ranked.sort("worth_gpu_hours", "slot_start", "profile", descending=[True, False, False]).head(count)


_MAX_LISTED_SHORTAGES = 3
"""Most pairs of team and profile that the explanation lists with their unmet demand."""
SHORTAGE_SEARCH_WORK_LIMIT_UNITS = 200
"""Work limit of the search for the GPUs that serve all demand in the worst interval [units of STEPS_PER_WORK_UNIT]."""


def explain_conflict(problem: PlanProblem) -> str | None:
    """Explain why no plan meets the limits: the smallest conflict and the cheapest fix; None if some plan does.

    Unmet demand is always allowed, at its price. Only pinned layouts, GPUs kept full, and GPUs in service or with power
    can contradict each other.
    """
    pinned = problem.limits.pinned
    service = problem.gpus_in_service
    allowed = problem.max_gpus_on
    stay = sum(pinned.values())
    cut = stay - pinned.get(FULL_GPU, 0)
    kept = f"{problem.full_gpus_kept} to be kept full"
    checks = (
        (problem.full_gpus_kept - service, service, kept, "keep at most {have} full"),
        (cut - problem.max_partitioned_gpus, service, f"{cut} that must stay partitioned and {kept}",
         "keep {short} fewer full, or release {short} of those that must stay"),
        (stay - allowed, allowed, f"{stay} that must stay on", "release {short} of those that must stay"),
    )  # fmt: skip
    for n_short, n_available, demand_text, way_out in checks:
        slots = np.flatnonzero(n_short > 0)
        if not len(slots):
            continue
        worst_slot = int(n_short.argmax())
        place_text = "in service" if n_available is service else "in service and within the power of the racks"
        figures = {"have": int(n_available[worst_slot]), "short": int(n_short[worst_slot])}
        return (
            f"In {len(slots)} of {problem.n_slots} intervals, first at {_slot_start_text(problem, int(slots[0]))}, the "
            f"limits contradict each other: in the worst interval, at {_slot_start_text(problem, worst_slot)}, "
            f"{figures['have']} GPUs are "
            f"{place_text} against {demand_text}. Cheapest fix: "
            f"{way_out.format(**figures)}, or have {figures['short']} more {place_text}."
        )
    return _explain_frozen_layouts(problem)


def _explain_frozen_layouts(problem: PlanProblem) -> str | None:
    """Explain a conflict of pinned layouts that no GPU has yet with a limit of no change."""
    if problem.limits.switches_per_day != 0 or problem.initial is None:
        return None
    for text, gpus in problem.limits.pinned.items():
        missing = gpus - problem.initial.get(text, 0)
        if text != FULL_GPU and missing > 0:
            return (
                f"{gpus} GPUs must keep {text}, {missing} of them do not have it yet, and no GPU may be partitioned. "
                f"Cheapest fix: allow one layout change a day, or release {missing} of those that must stay."
            )
    return None


def explain_plan(plan: Plan, problem: PlanProblem, effort: SearchEffort) -> str:
    """Describe a plan that was found: rejected demand, gap, GPUs in use, reboots, and unmet demand with its fix."""
    parts = [_explain_gap(plan), *_explain_use(plan, problem), *_explain_reboots(plan, problem)]
    return " ".join([*parts, *_explain_shortage(plan, problem, effort), *_explain_quota_rejections(problem)])


def _explain_quota_rejections(problem: PlanProblem) -> Iterator[str]:
    """Explain the demand beyond quotas, which no plan may serve."""
    hours = (problem.demand - problem.admitted_demand) * problem.shares[None, :, None] * problem.interval_hours
    total = float(hours.sum())
    if total > DEMAND_ROUNDING_INSTANCES:
        top_tenant = int(hours.sum(axis=(1, 2)).argmax())
        yield (
            f"Quotas reject {total:.1f} GPU-hours, most of them of {problem.tenants[top_tenant]} "
            f"({float(hours[top_tenant].sum()):.1f}); they are not counted as unmet."
        )


def _explain_gap(plan: Plan) -> str:
    """State the optimality gap, and why the search stopped."""
    if plan.status == "optimal":
        return "The plan is optimal (proven)."
    stops = {
        "proof": "the requested gap is reached",
        "passes": "all passes of the search are made, more time gives the same plan",
        "time_limit": "stopped at the time limit",
        "work_limit": "stopped at the work limit",
        "user": "stopped by the user",
    }
    gap = f"{100 * (plan.gap or 0.0):.2f} %"
    return f"Optimality gap at most {gap} (proven); {stops[plan.stopped_by]}."


def _explain_use(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """State powered-on GPUs, the peak and its driver, and the number of changes."""
    on = plan.counts.sum(axis=1)
    if not on.any():
        yield "No GPU is needed." if not problem.required_instances.any() else "No GPU pays for being powered on."
        return
    peak = int(on.argmax())
    load = problem.required_instances[:, peak] * problem.shares
    driver = int(load.argmax())
    cuts = "once" if plan.changes == 1 else f"{plan.changes} times"
    yield (
        f"The plan powers on {gpu_figure_text(on.mean())} of {problem.gpus} GPUs on average, {on[peak]} at the peak, "
        f"{_slot_start_text(problem, peak)}, driven by {_profile_text(problem.profiles[driver])} "
        f"({problem.required_instances[driver, peak]} instances, equal to {gpus_text(load[driver])}). "
        f"GPUs are repartitioned {cuts}"
        + (f", and drained {plan.drained_gpus} times." if problem.prices is not None else ".")
    )


def _explain_reboots(plan: Plan, problem: PlanProblem) -> Iterator[str]:
    """State the reboots that the cost does not include.

    Counts do not show on which nodes MIG mode changes, so the cost includes the fewest reboots that could do.
    """
    if problem.prices is None or not problem.prices.reboot:
        return
    n_partitioned = (plan.counts + plan.parked)[:, [text != FULL_GPU for text in plan.layouts]].sum(axis=1).tolist()
    if problem.initial is not None:
        layout_counts = [*problem.initial.items(), *(problem.parked or {}).items()]
        n_partitioned.insert(0, sum(gpus for text, gpus in layout_counts if text != FULL_GPU))
    paid_reboots = int(np.ceil(np.abs(np.diff(n_partitioned)) / problem.gpus_per_node).sum())
    if paid_reboots < plan.reboots:
        extra_cost = (plan.reboots - paid_reboots) * problem.prices.reboot
        yield (
            f"With numbered GPUs nodes reboot {plan.reboots} times; the cost includes {paid_reboots}, the lower bound "
            f"of these counts, and the others cost {extra_cost:.3g} GPU-hours more."
        )


def _explain_shortage(plan: Plan, problem: PlanProblem, effort: SearchEffort) -> Iterator[str]:
    """Explain the unmet demand: teams, intervals, the value of one more instance, and the cheapest fix."""
    hours = (
        plan.unmet * problem.shares[None, :, None] * problem.interval_hours
    )  # shape (n_tenants, n_profiles, n_slots)
    total = float(hours.sum())
    if total == 0:
        yield "All demand is met."
        return
    yield f"{total:.1f} GPU-hours of demand are not met: {_list_shortages(hours, problem)}."
    cut = plan.counts[:, [layout != FULL_GPU for layout in plan.layouts]].sum(axis=1)
    # Intervals in which no further GPU may be powered on or partitioned.
    full = (plan.counts.sum(axis=1) >= problem.max_gpus_on) | (cut >= problem.max_partitioned_gpus)
    by_slot = hours.sum(axis=(0, 1))
    dropped = float(by_slot[~full].sum())
    if dropped > 0:
        yield (
            f"{dropped:.1f} of them fall in intervals with unallocated GPUs: demand too short for another "
            "powered-on GPU."
        )
    if full.any() and by_slot[full].any():
        worst = int(np.where(full, by_slot, -1.0).argmax())
        yield _explain_instance_price(plan, problem, worst)
        yield from _explain_remedy(problem, worst, effort)


def _explain_instance_price(plan: Plan, problem: PlanProblem, slot: int) -> str:
    """State the value of one more instance in an interval."""
    prices = instance_prices(plan, problem)[:, slot]
    dearest = int(prices.argmax())
    profile = problem.profiles[dearest]
    instance_text = "full GPU" if profile == FULL_GPU else f"instance of {profile}"
    saving = f"{prices[dearest]:.2f} GPU-hours, the most of any profile"
    return f"At {_slot_start_text(problem, slot)} one more {instance_text} would save {saving}."


def _list_shortages(hours: Floats, problem: PlanProblem) -> str:
    """List the teams with most unmet demand [GPU h], given by (tenant, profile, interval), as text."""
    pairs = hours.sum(axis=2)
    order = [divmod(int(i), pairs.shape[1]) for i in np.argsort(-pairs, axis=None, kind="stable")]
    short_pairs = [(i, j) for i, j in order if pairs[i, j] > 0]
    parts = []
    for i, j in short_pairs[:_MAX_LISTED_SHORTAGES]:
        slot = int(hours[i, j].argmax())
        amount_text = f"{pairs[i, j]:.1f} GPU-hours of {_profile_text(problem.profiles[j])}"
        parts.append(f"{problem.tenants[i]} lacks {amount_text}, most at {_slot_start_text(problem, slot)}")
    n_more = len(short_pairs) - _MAX_LISTED_SHORTAGES
    return "; ".join(parts) + (f"; and {n_more} more" if n_more > 0 else "")


def _explain_remedy(problem: PlanProblem, slot: int, effort: SearchEffort) -> Iterator[str]:
    """State how many GPUs would serve the demand that pays for them in one interval, and their cheapest source."""
    demand, gpus = problem.demand[:, :, slot : slot + 1], problem.gpus + int(problem.required_instances[:, slot].sum())
    limits = Limits(quotas=problem.limits.quotas)
    unstated: dict[str, Any] = dict.fromkeys(("available", "initial", "prices", "parked", "nodes"))
    slot_problem = replace(problem, demand=demand, gpus=gpus, whole_gpus_kept=0, limits=limits, **unstated)
    remedy_effort = SearchEffort.begin(
        seed=effort.seed, solver=effort.solver, work_limit=SHORTAGE_SEARCH_WORK_LIMIT_UNITS
    )
    try:
        solved = solve_window_bounds(PlanArrays.from_problem(slot_problem), 1, (), remedy_effort)
    except MissingDependencyError:
        return  # without a solver the text has no remedy
    if not solved.complete:
        return
    service, powered = int(problem.gpus_in_service[slot]), int(problem.max_gpus_on[slot])
    n_wanted = int(solved.states.sum())
    n_lacking = n_wanted - service + problem.full_gpus_kept
    parts = []
    if problem.full_gpus_kept and n_lacking > 0:
        n_freed = min(n_lacking, problem.full_gpus_kept)
        parts.append(f"partition {n_freed} of the GPUs kept full")
        n_lacking -= n_freed
    if powered < service and n_wanted > powered:
        parts.append(f"provide rack power for {_gpu_count_text(min(n_wanted, service) - powered)} more")
    if problem.gpus > service and n_lacking > 0:
        n_restored = min(n_lacking, problem.gpus - service)
        parts.append(f"postpone the maintenance of {_gpu_count_text(n_restored)}")
        n_lacking -= n_restored
    if n_lacking > 0:
        parts.append(f"add {_gpu_count_text(n_lacking)}, or move the demand to intervals with unallocated GPUs")
    yield (
        f"The worst interval is {_slot_start_text(problem, slot)}: {_gpu_count_text(n_wanted)} would serve all "
        "demand that pays off. "
        f"Cheapest fix: {'; '.join(parts) or 'wait for the neighbouring intervals, where changes cost less'}."
    )


def _gpu_count_text(count: int) -> str:
    """Format a number of GPUs."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def _profile_text(profile: str) -> str:
    """Name a profile, or full GPUs."""
    return "full GPUs" if profile == FULL_GPU else profile


def _slot_start_text(problem: PlanProblem, slot: int) -> str:
    """Format the start of an interval."""
    return f"{problem.slot_times[slot]:%Y-%m-%d %H:%M} UTC"
