"""What given counts cost under demands that they were not made for, and what one instance more would be worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from gpuplanner.planner.contract.plain_values import refuse
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import ROUNDING, Counts, Floats, PlanProblem
from gpuplanner.planner.program.fluid import Fluid


def realised_cost(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> float:
    """Cost of counts under the demand of a problem, whatever demand they were planned for.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["3g.20gb"], demand=[[[2, 2, 4]]],
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
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["gpu"], demand=[[[1, 1]]],
    ... )
    >>> from gpuplanner.planner.methods.search import plan
    >>> one_gpu = plan(problem)
    >>> paths = np.array([[[1.0, 1.0]], [[2.0, 0.5]]])
    >>> [realised_costs(problem, [one_gpu], paths, waits=waits).tolist() for waits in (False, True)]
    [[[2.0, 12.0]], [[2.0, 17.0]]]
    """
    prices = set(problem.unmet_price)
    if len(prices) > 1:
        expected = "one price of unmet demand for all tenants"
        refuse("realised cost", expected, f"{sorted(prices)}", "Cost tenants one by one.")
    known = {layout: 0 for one in plans for layout in one.layouts} | dict(problem.initial or {})
    highest = demands.max(axis=0)[None]
    everyone = {"tenants": ("all",), "tiers": ("standard",), "unmet_price": prices.pop(), "demand": highest}
    fluid = Fluid.of(replace(problem, initial=known, **everyone))
    parks = problem.prices is not None
    counts = np.array(
        [counts_in(fluid, one.layouts, one.counts, one.parked if parks else None) for one in plans]
    )
    before = None if problem.initial is None else fluid.initial
    steps = [zip([before, *rows[:-1]], rows, strict=True) for rows in counts]
    changes = np.array([sum(fluid.ways.cost(*step) for step in pairs) for pairs in steps])
    on = fluid.idle_cost * demands.shape[2] + fluid.on_cost * counts[:, :, fluid.used].sum(axis=(1, 2))
    worth = problem.shares * problem.slot_hours * fluid.problem.unmet_price[0]
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
    >>> from gpuplanner.planner.methods.search import plan
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
    >>> from gpuplanner.planner.methods.search import plan
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
