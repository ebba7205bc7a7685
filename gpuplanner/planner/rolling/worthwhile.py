"""Whether a new plan is worth its changes: what it gains over the one in force, on every path that demand may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.program.realised_cost import realised_costs


@dataclass(frozen=True)
class Verdict:
    """What a new plan gains over the one in force, changes paid for, at the prices of the problem [GPU h].

    - ``gain``, ``low``, ``high``: Mean over the paths of demand, and the 5 % and 95 % quantiles.
    - ``chance``: Share of the paths on which the new plan is the cheaper one.
    """

    gain: float
    low: float
    high: float
    chance: float

    def worth(self, chance: float) -> bool:
        """Whether it gains on average, and surely enough."""
        return self.gain > 0 and self.chance >= chance


def weigh(problem: PlanProblem, standing: Plan, new: Plan, paths: Floats) -> Verdict:
    """Hold a new plan against the one in force on paths of demand.

    Parameters
    ----------
    problem : PlanProblem
        Prices, limits and the layouts before its first slot; its demand is not looked at.
    standing, new : Plan
        Two plans for its slots; changes of either are paid for as they come.
    paths : ndarray of float, shape (n_paths, n_profiles, n_slots)
        Demand of all tenants together.

    Returns
    -------
    Verdict

    Raises
    ------
    ScenarioError
        If tenants have different prices of unmet demand.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC), slot_hours=1,
    ...     tenants=["ads"], profiles=["gpu"], demand=[[[1, 1, 1]]], initial={"gpu": 3}, change_gpu_hours=0.0,
    ... )
    >>> fewer = plan(problem)
    >>> paths = np.array([[[1.0, 1.0, 1.0]], [[3.0, 3.0, 3.0]]])
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths)  # 6 GPU-hours less; or 6 short, at 10 each
    Verdict(gain=-24.0, low=-51.0, high=3.0, chance=0.5)
    """
    costs = realised_costs(problem, [standing, new], paths)
    gains = costs[0] - costs[1]
    low, high = (round(float(one), 9) for one in np.quantile(gains, (0.05, 0.95)))
    return Verdict(round(float(gains.mean()), 9), low, high, float((gains > 0).mean()))


def standing_plan(
    plan: Plan, problem: PlanProblem, course: Sequence[Mapping[str, int]] | None = None
) -> Plan:
    """A plan that keeps the layouts before the first slot, or goes on with a course of them and stays at its last."""
    rows: list[Mapping[str, int]] = list(course) if course else [problem.initial or {}]
    rows = (rows + rows[-1:] * problem.n_slots)[: problem.n_slots]
    layouts = tuple(dict.fromkeys(text for row in rows for text, gpus in row.items() if gpus))
    counts: Counts = np.array([[row.get(text, 0) for text in layouts] for row in rows], dtype=np.int64)
    counts = counts.reshape(problem.n_slots, len(layouts))
    return replace(
        plan, layouts=layouts, counts=counts, parked=np.zeros_like(counts), certificate=None, bound=None, gap=None
    )  # fmt: skip
