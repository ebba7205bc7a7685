"""Plans for a demand that is not known: what each costs if another scenario comes true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from gpuplanner.errors import ScenarioError, message
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Floats, PlanProblem
from gpuplanner.planner.methods.search import SearchArguments, plan
from gpuplanner.planner.program.realised_cost import realised_cost

_WHERE = "robust plan"


@dataclass(frozen=True, eq=False)
class RobustPlans:
    """Plans, and what each costs under each scenario.

    Parameters
    ----------
    plans : dict of str to Plan
        By name: each scenario's own, ``"mean"``, and ``"q90"`` and the like for quantiles.
    table : polars.DataFrame
        One row for each plan and scenario: ``plan``, ``scenario``, ``cost``; ``best_known``, the least cost
        of any of the plans under the scenario; ``bound``, which no plan at all undercuts under it;
        ``regret``, cost above the best known, and ``regret_fraction``, the same as a share of it.
    summary : polars.DataFrame
        One row for each plan: ``plan``, ``expected_cost``, ``worst_cost``, ``worst_regret``, ``method`` by which it
        was made.
    problems : dict of str to PlanProblem
        What each plan was made for.
    """

    plans: dict[str, Plan]
    table: pl.DataFrame
    summary: pl.DataFrame
    problems: dict[str, PlanProblem]


def robust(
    problem: PlanProblem,
    scenarios: Mapping[str, ArrayLike],
    *,
    weights: Mapping[str, float] | None = None,
    quantiles: Sequence[float] = (0.5, 0.9),
    **how: Unpack[SearchArguments],
) -> RobustPlans:
    """Plan for each scenario, for their mean and for quantiles, and weigh every plan under every scenario.

    The best of these plans need not be the best plan there is for the criterion; how far any plan could be
    better under one scenario, the bound says.

    Parameters
    ----------
    problem : PlanProblem
        Prices and limits; its own demand is not used.
    scenarios : mapping of str to array of float, shape (n_tenants, n_profiles, n_slots)
        Demands that may come true, by name.
    weights : mapping of str to float, optional
        How likely each scenario is, up to a common factor; all alike if None.
    quantiles : sequence of float
        Levels at which to plan for the quantile of each tenant's and profile's demand in each slot, over
        scenarios; the smallest demand that is not exceeded with that probability.
    **how
        Arguments of :func:`~gpuplanner.planner.plan`, for each plan.

    Returns
    -------
    RobustPlans

    Raises
    ------
    ScenarioError
        If there is no scenario, or a name, weight, level or shape makes no sense.
    InfeasiblePlanError
        If no plan keeps the limits.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=4, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC),
    ...     slot_hours=1, tenants=["ads"], profiles=["7g.40gb"], demand=[[[1]]],
    ... )
    >>> found = robust(problem, {"calm": [[[1]]], "rush": [[[3]]]}, quantiles=[])
    >>> for row in found.table.select("plan", "scenario", "cost", "regret").rows():
    ...     print(*row)
    calm calm 1.0 0.0
    calm rush 21.0 18.0
    rush calm 3.0 2.0
    rush rush 3.0 0.0
    mean calm 2.0 1.0
    mean rush 12.0 9.0
    >>> found.summary.select("plan", "expected_cost", "worst_regret").rows()
    [('calm', 11.0, 18.0), ('rush', 3.0, 2.0), ('mean', 7.0, 9.0)]
    """
    names, demands, shares = _checked(problem, scenarios, weights, quantiles)
    wanted = dict(zip(names, demands, strict=True))
    wanted["mean"] = np.tensordot(shares, demands, axes=1)
    for level in quantiles:
        wanted[f"q{100 * level:g}"] = np.quantile(
            demands, level, axis=0, weights=shares, method="inverted_cdf"
        )
    problems = {name: replace(problem, demand=demand) for name, demand in wanted.items()}
    plans = {name: plan(given, **how).require() for name, given in problems.items()}
    table = _table(plans, {name: problems[name] for name in names})
    methods = pl.DataFrame({"plan": list(plans), "method": [made.method for made in plans.values()]})
    odds = pl.DataFrame({"scenario": names, "share": shares})
    summary = (
        table.join(odds, on="scenario", how="left", maintain_order="left")
        .group_by("plan", maintain_order=True)
        .agg(
            expected_cost=(pl.col("cost") * pl.col("share")).sum(),
            worst_cost=pl.col("cost").max(),
            worst_regret=pl.col("regret").max(),
        )
        .join(methods, on="plan", how="left", maintain_order="left")
    )
    return RobustPlans(plans, table, summary, problems)


def _table(plans: Mapping[str, Plan], problems: Mapping[str, PlanProblem]) -> pl.DataFrame:
    """Cost of every plan under every scenario, in the order given."""
    rows = [
        {
            "plan": name,
            "scenario": scenario,
            "cost": realised_cost(problem, made.layouts, made.counts, made.parked),
        }
        for name, made in plans.items()
        for scenario, problem in problems.items()
    ]
    bounds = {scenario: plans[scenario].bound for scenario in problems}
    best = pl.col("cost").min().over("scenario")
    regret = pl.col("cost") - best
    return pl.DataFrame(rows).with_columns(
        best_known=best,
        bound=pl.col("scenario").replace_strict(bounds, return_dtype=pl.Float64),
        regret=regret,
        regret_fraction=pl.when(regret == 0).then(0.0).otherwise(regret / best),
    )


def _checked(
    problem: PlanProblem,
    scenarios: Mapping[str, ArrayLike],
    weights: Mapping[str, float] | None,
    quantiles: Sequence[float],
) -> tuple[list[str], Floats, Floats]:
    """Names, demands in one array with the scenario first, and shares that add up to 1."""
    names = list(scenarios)
    demands = [np.asarray(demand, dtype=np.float64) for demand in scenarios.values()]
    reserved = {"mean", *(f"q{100 * level:g}" for level in quantiles)}
    given = dict.fromkeys(names, 1.0) if weights is None else dict(weights)
    faults = []
    if not names:
        faults.append("no scenario")
    faults += [f"a scenario named {name!r}, which is a plan's name" for name in names if name in reserved]
    faults += [
        f"demand of shape {demand.shape} in {name!r}, not {problem.demand.shape}"
        for name, demand in zip(names, demands, strict=True)
        if demand.shape != problem.demand.shape
    ]
    if set(given) != set(names):
        faults.append(f"weights for {sorted(given)}")
    elif not all(0 <= weight < np.inf for weight in given.values()) or not sum(given.values()) > 0:
        faults.append(f"weights {given}, not numbers of at least 0 with one above")
    faults += [f"quantile {level!r}, not between 0 and 1" for level in quantiles if not 0 < level < 1]
    if faults:
        expected = "scenarios with the shape of the demand, a weight for each, and levels between 0 and 1"
        raise ScenarioError(message(_WHERE, expected, "; ".join(faults), "Mend it."))
    shares = np.array([given[name] for name in names], dtype=np.float64)
    return names, np.array(demands), shares / shares.sum()
