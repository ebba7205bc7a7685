"""Plans for sample paths of demand: candidates of several kinds, each weighed over all paths, the cheapest taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import polars as pl

from gpuplanner.forecast import representatives
from gpuplanner.planner import PlanProblem, robust
from gpuplanner.planner.program.realised_cost import realised_costs
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.outlook import largest_gang, paths_of
from gpuplanner.study.future.plans import (
    Planned,
    plan_problem,
    planned_for,
    sets_of_layouts,
    with_room_for_gangs,
)

LEVELS = (0.9, 0.95, 0.975, 0.99)
"""Quantiles over all paths that are planned for."""
WAITS = (1, 3, 10)
"""Slots that unmet demand is taken to wait for, so that it is paid for as often."""
OF_BANDS = "bands of paths, waiting"
"""How plans are called whose demand is bands; the slots of :data:`WAITS` follow."""
BANDS = (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 1.0)
"""Quantiles between which demand is priced by the share of paths that reach it."""


@dataclass(frozen=True, eq=False)
class PathPlans:
    """Candidates, and what each costs over sample paths.

    - ``candidates``: By name.
    - ``table``: One row for each, cheapest first: ``plan``, ``gpu_hours`` (of GPUs on), ``cost`` (mean over the
      paths, where unmet demand waits and is paid for in every slot until it is met), ``cost_q95`` (the same in a bad
      path), and ``cost_if_lost`` (mean where it is lost after its slot).
    - ``fixed``: Name of the plan for the scenario's quantile of the forecast.
    - ``paths``: Paths that all are weighed over.
    """

    candidates: Mapping[str, Planned]
    table: pl.DataFrame
    fixed: str
    paths: int

    @property
    def best(self) -> str:
        """Name of the plan of least cost."""
        return str(self.table["plan"][0])

    @property
    def sentence(self) -> str:
        """Which candidate won, and by how much."""
        cost, hours = (dict(self.table.select("plan", name).iter_rows()) for name in ("cost", "gpu_hours"))
        mine, other = cost[self.best], cost[self.fixed]
        told = f"{self.best!r} costs least over {self.paths} paths: {mine:,.0f}, with {hours[self.best]:,.0f} GPU-h on"
        if self.best == self.fixed:
            return f"{told}; no plan from paths is cheaper than that for the fixed quantile"
        return f"{told}; {1 - mine / other:.0%} less than {self.fixed!r}: {other:,.0f}, with {hours[self.fixed]:,.0f}"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"chosen": self.best, "sentence": self.sentence, "candidates": self.table.to_dicts()}


def path_plans(scenario: Scenario, *, most: int = 20, method: str | None = None) -> PathPlans:
    """Plan right-sized demand in several ways, and weigh every plan over all sample paths of it.

    Candidates are the plan for the scenario's quantile of the forecast; for quantiles over all paths; for a few
    paths that stand for all, their mean and quantiles (:func:`gpuplanner.planner.robust`); and those where every band
    of demand has the price of being unmet times the share of paths that reach it. The last solve the
    stochastic program itself, but for profiles that stand in for others; it is the newsvendor's rule with the
    costs of cutting GPUs in it.

    References
    ----------
    Birge, Louveaux, "Introduction to Stochastic Programming", 2011, chapter 5 (simple recourse), doi
    10.1007/978-1-4614-0237-4.
    """
    problem = plan_problem(scenario, "rightsized")
    gang = largest_gang(scenario)
    paths = _with_room(paths_of(scenario, problem.tenants, problem.profiles), scenario, problem, gang)
    together = paths.sum(axis=1)
    fixed = f"forecast q{100 * scenario.quantile:g}"
    asked = {fixed: problem}
    for level in LEVELS:
        asked[f"all paths q{100 * level:g}"] = replace(problem, demand=_shared_out(paths, together, level))
    for slots in WAITS:
        asked[f"{OF_BANDS} {slots}"] = in_bands(problem, together, slots)
    made = {name: planned_for(one, scenario, method) for name, one in asked.items()}
    numbers, weights = representatives(paths, most)
    names = [f"path {number}" for number in numbers.tolist()]
    few = robust(
        problem,
        dict(zip(names, paths[numbers], strict=True)),
        weights=dict(zip(names, weights.tolist(), strict=True)),
        quantiles=(0.9, 0.95),
        method=method or ("calendar" if sets_of_layouts(scenario, problem.board) else "milp"),
        **scenario.effort,
    )
    of_few = {name: name if name in names else f"{most} paths {name}" for name in few.plans}
    made |= {of_few[name]: Planned(few.problems[name], one) for name, one in few.plans.items()}
    made = {name: one for name, one in made.items() if one.plan.found}
    return PathPlans(made, _weighed(problem, made, together), fixed, len(paths))


def in_bands(problem: PlanProblem, paths: np.ndarray, waits: float = 1.0) -> PlanProblem:
    """Price every band of demand by the share of paths that reach it, in place of tenants.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> start = datetime(2026, 11, 2, tzinfo=UTC)
    >>> problem = PlanProblem("A30", 4, 4, start, 1, ["ads"], ["gpu"], [[[1]]], unmet_price=10)
    >>> found = in_bands(problem, np.arange(100.0)[:, None, None] / 25)
    >>> found.tenants[:2], [round(price, 2) for price in found.unmet_price[:2]]
    (('up to q30', 'q30 to q50'), [8.5, 6.0])
    """
    ends = [0.0, *BANDS]
    marks = np.quantile(paths, BANDS, axis=0)
    heights = np.diff(marks, axis=0, prepend=np.zeros_like(marks[:1]))
    names = [f"q{100 * low:g} to q{100 * high:g}" for low, high in pairwise(ends)]
    names[0] = f"up to q{100 * BANDS[0]:g}"
    reached = [1 - (low + high) / 2 for low, high in pairwise(ends)]
    return replace(
        problem,
        tenants=tuple(names),
        tiers=("standard",) * len(names),
        unmet_price=tuple(waits * problem.unmet_price[0] * share for share in reached),
        demand=heights,
    )


def _with_room(paths: np.ndarray, scenario: Scenario, problem: PlanProblem, gang: int) -> np.ndarray:
    """Paths at the scenario's arrivals, with room for the largest job in each."""
    return np.stack(
        [with_room_for_gangs(path * scenario.arrival_scale, problem.profiles, gang) for path in paths]
    )


def _shared_out(paths: np.ndarray, together: np.ndarray, level: float) -> np.ndarray:
    """A quantile of what all tenants want together, shared out by what each wants on average."""
    share = paths.mean(axis=0)
    whole = share.sum(axis=0)
    even = np.full_like(share, 1 / len(share))
    each: np.ndarray = np.divide(share, whole, out=even, where=whole > 0)
    each *= np.quantile(together, level, axis=0)
    return each


def _weighed(problem: PlanProblem, made: Mapping[str, Planned], paths: np.ndarray) -> pl.DataFrame:
    plans = [one.plan for one in made.values()]
    waiting, lost = (realised_costs(problem, plans, paths, waits=waits) for waits in (True, False))
    return pl.DataFrame(
        {
            "plan": list(made),
            "gpu_hours": [float(one.counts.sum()) * problem.slot_hours for one in plans],
            "cost": waiting.mean(axis=1),
            "cost_q95": np.quantile(waiting, 0.95, axis=1),
            "cost_if_lost": lost.mean(axis=1),
        }
    ).sort("cost", maintain_order=True)
