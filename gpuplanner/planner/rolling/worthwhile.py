"""Whether a new plan is worth its changes: what it gains over the one in force, on every path that demand may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Counts, Floats, PlanProblem
from gpuplanner.planner.program.realised_cost import realised_costs

DRAWS = 1000


@dataclass(frozen=True)
class Verdict:
    """What a new plan gains over the one in force, changes paid for, at the prices of the problem [GPU h].

    - ``gain``, ``low``, ``high``: Mean over the paths of demand, and the 5 % and 95 % quantiles.
    - ``chance``: That it gains on average: share of draws of the evidence anew on which the mean is above nothing.
    """

    gain: float
    low: float
    high: float
    chance: float

    def worth(self, chance: float) -> bool:
        """Whether it gains on average, and surely enough."""
        return self.gain > 0 and self.chance >= chance


def weigh(
    problem: PlanProblem,
    standing: Plan,
    new: Plan,
    paths: Floats,
    *,
    until: int | None = None,
    days: int | None = None,
) -> Verdict:
    """Hold a new plan against the one in force on paths of demand.

    Parameters
    ----------
    problem : PlanProblem
        Prices, limits and the layouts before its first slot; its demand is not looked at.
    standing, new : Plan
        Two plans for its slots; changes of either are paid for as they come.
    paths : ndarray of float, shape (n_paths, n_profiles, n_slots)
        Demand of all tenants together.
    until : int, optional
        Slots to the next decision, at which the new plan may be gone over to just as well: what is weighed is to wait
        as long. None: the plan in force is kept to the end.
    days : int, optional
        Days of the past that the paths are made of: they are as much evidence, however many paths there are. None:
        each path is evidence of its own.

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
    >>> from gpuplanner.planner.methods.search import plan
    >>> problem = PlanProblem(
    ...     board="A100-40GB", gpus=3, gpus_per_node=2, slot_start=datetime(2026, 11, 2, tzinfo=UTC), slot_hours=1,
    ...     tenants=["ads"], profiles=["gpu"], demand=[[[1, 1, 1]]], initial={"gpu": 3}, change_gpu_hours=0.0,
    ... )
    >>> fewer = plan(problem)
    >>> paths = np.array([[[1.0, 1.0, 1.0]], [[3.0, 3.0, 3.0]]])
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths)  # 6 GPU-hours less; or 6 short, at 10 each
    Verdict(gain=-24.0, low=-51.0, high=3.0, chance=0.217)
    >>> weigh(problem, standing_plan(fewer, problem), fewer, paths[:1], until=1)  # the other two could be saved later
    Verdict(gain=2.0, low=2.0, high=2.0, chance=1.0)
    """
    if until is not None and until < problem.n_slots:
        stays, goes = (rows_of(one.layouts, one.counts) for one in (standing, new))
        problem, paths = replace(problem, demand=problem.demand[:, :, : until + 1]), paths[:, :, : until + 1]
        standing = standing_plan(new, problem, [*stays[:until], goes[until]])
        new = replace(new, counts=new.counts[: until + 1], parked=new.parked[: until + 1])
    costs = realised_costs(problem, [standing, new], paths)
    gains = costs[0] - costs[1]
    low, high = (round(float(one), 9) for one in np.quantile(gains, (0.05, 0.95)))
    drawn = np.random.default_rng(0).integers(0, len(gains), (DRAWS, min(days or len(gains), len(gains))))
    chance = float((gains[drawn].mean(axis=1) > 0).mean())
    return Verdict(round(float(gains.mean()), 9), low, high, chance)


def rows_of(layouts: Sequence[str], counts: Counts) -> list[Mapping[str, int]]:
    """Slot by slot, GPUs by layout."""
    return [dict(zip(layouts, row, strict=True)) for row in counts.tolist()]


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
        plan, layouts=layouts, counts=counts, parked=np.zeros_like(counts), bound=None, gap=None
    )  # fmt: skip
