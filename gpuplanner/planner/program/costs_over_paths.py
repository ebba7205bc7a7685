"""What plans cost under each of many demands, met at once or waiting until they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import ROUNDING, Counts, Floats, PlanProblem
from gpuplanner.planner.program.fluid import Fluid
from gpuplanner.planner.program.realised_cost import counts_in


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
    >>> from gpuplanner.planner import plan
    >>> one_gpu = plan(problem)
    >>> paths = np.array([[[1.0, 1.0]], [[2.0, 0.5]]])
    >>> [realised_costs(problem, [one_gpu], paths, waits=waits).tolist() for waits in (False, True)]
    [[[2.0, 12.0]], [[2.0, 17.0]]]
    """
    prices = set(problem.unmet_price)
    if len(prices) > 1:
        expected = "one price of unmet demand for all tenants"
        raise ScenarioError(
            message("realised cost", expected, f"{sorted(prices)}", "Cost tenants one by one.")
        )
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
        served = np.minimum(
            np.take_along_axis(width, place, 2)[..., 0], np.where(mine, free, np.inf).min(axis=2)
        )
        free -= mine * served[..., None]
        gain = served[..., None] * np.take_along_axis(each, place, 2)
        which = place % profiles
        np.put_along_axis(met, which, np.take_along_axis(met, which, 2) + gain, 2)
    return met
