"""Plans for a demand that is not known: three plans, each weighed over the sample paths of the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from gpuplanner.planner.program.realised_cost import realised_costs
from gpuplanner.scenario import Scenario
from gpuplanner.study.future.outlook import largest_gang, paths_of
from gpuplanner.study.future.plans import Planned, plan_problem, planned_for, with_room_for_gangs

QUANTILES = (0.5, 0.9)
"""Quantiles of the forecast that are planned for, beside its mean."""
DEAREST_SHARE = 0.1
"""Share of the paths over which the conditional value at risk (CVaR) is the mean cost."""


@dataclass(frozen=True, eq=False)
class RobustPlans:
    """Plans for several demands, and what each costs over sample paths.

    - ``plans``: By name: ``mean``, ``q50``, ``q90``.
    - ``table``: One row for each, cheapest first: ``plan``; ``gpu_hours`` of GPUs on; ``mean_cost`` over the paths,
      where unmet demand waits and is paid for in every slot until it is met; ``cvar_cost``, the mean of the dearest
      tenth.
    - ``n_paths``: Sample paths that all are weighed over.
    """

    plans: Mapping[str, Planned]
    table: pl.DataFrame
    n_paths: int

    @property
    def preferred(self) -> str:
        """Name of the plan of least mean cost."""
        return str(self.table["plan"][0])

    @property
    def sentence(self) -> str:
        """Which plan to prefer, and why."""
        best = self.table.row(0, named=True)
        others = ", ".join(
            f"{row['plan']} {row['mean_cost']:,.0f} ({row['cvar_cost']:,.0f})"
            for row in self.table[1:].iter_rows(named=True)
        )
        return (
            f"Prefer the plan for {best['plan']}: over {self.n_paths} paths it costs {best['mean_cost']:,.0f} "
            f"GPU-hours on average, {best['cvar_cost']:,.0f} in the dearest tenth (CVaR); the others: {others}."
        )

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"preferred": self.preferred, "sentence": self.sentence, "plans": self.table.to_dicts()}


def weigh_plans_over_paths(scenario: Scenario, method: str | None = None) -> RobustPlans:
    """Plan right-sized demand for its mean and two quantiles, and weigh each plan over all sample paths of it.

    The mean is that of the paths; quantiles are those of the forecast, as a plan without paths covers one of them.
    """
    problem = plan_problem(scenario, "rightsized")
    gang = largest_gang(scenario)
    drawn = paths_of(scenario, problem.tenants, problem.profiles) * scenario.arrival_scale
    paths = np.stack([with_room_for_gangs(path, problem.profiles, gang) for path in drawn])
    problems = {"mean": replace(problem, demand=paths.mean(axis=0))}
    for level in QUANTILES:
        problems[f"q{100 * level:g}"] = plan_problem(scenario.but(quantile=level), "rightsized")
    plans = {name: planned_for(one, scenario, method) for name, one in problems.items()}
    for one in plans.values():
        one.plan.require()

    costs = realised_costs(problem, [one.plan for one in plans.values()], paths.sum(axis=1), waits=True)
    dearest = np.sort(costs, axis=1)[:, -max(1, round(DEAREST_SHARE * len(paths))) :]
    table = pl.DataFrame(
        {
            "plan": list(plans),
            "gpu_hours": [one.plan.gpu_hours_on for one in plans.values()],
            "mean_cost": costs.mean(axis=1),
            "cvar_cost": dearest.mean(axis=1),
        }
    )
    return RobustPlans(plans, table.sort("mean_cost", maintain_order=True), len(paths))
