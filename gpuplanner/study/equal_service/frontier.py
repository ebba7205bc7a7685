"""Settings of each policy that no other of its own beats in both cost and wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuplanner.study.equal_service.contenders import TODAY
from gpuplanner.study.equal_service.judging import JudgedPolicy
from gpuplanner.study.equal_service.play import Played, PolicySetting
from gpuplanner.study.equal_service.target import ServiceTarget, wait_quantile
from gpuplanner.study.equal_service.tuning import Arena, Trial
from gpuplanner.study.equal_service.weeks import Week
from gpuplanner.units import SECONDS_PER_MINUTE

FRONTIER_POINTS = 5
FRONTIER_WEEKS = 4
"""Judged weeks that the points of a frontier are played on; the policies themselves are played on all."""


class FrontierPoint(NamedTuple):
    """A setting of a policy: its cost [GPU h a week], its wait, and that of the worst class over its target."""

    policy: str
    gpu_hours: float
    wait_quantile_min: float
    wait_over_target: float


def frontier(
    arenas: Mapping[str, Arena],
    today: JudgedPolicy,
    target: ServiceTarget,
    played: Callable[[PolicySetting, Sequence[Week]], tuple[Played, ...]],
    judged: Sequence[Week],
) -> tuple[FrontierPoint, ...]:
    """Settings of each policy that no other of its own beats in both cost and wait, on weeks kept back."""

    def point(policy: str, runs: Sequence[Played]) -> FrontierPoint:
        hours = float(np.mean([run.gpu_hours for run in runs]))
        wait = wait_quantile(runs, None, target.quantile) / SECONDS_PER_MINUTE
        return FrontierPoint(policy, hours, wait, target.strain(runs))

    points = [point(TODAY, today.weeks[:FRONTIER_WEEKS])]
    some = judged[:FRONTIER_WEEKS]
    for policy, arena in arenas.items():
        points += [point(policy, played(one.setting, some)) for one in _spread(_undominated(arena))]
    return tuple(points)


def _undominated(arena: Arena) -> list[Trial]:
    """Settings that were tried, cheapest first, each with a shorter wait than all before it."""
    best, kept = np.inf, []
    strains = [(trial.gpu_hours, arena.target.strain(trial.weeks), trial) for trial in arena.tried]
    for _, strain, trial in sorted(strains, key=lambda one: one[:2]):
        if strain < best:
            kept.append(trial)
            best = strain
    return kept


def _spread(trials: Sequence[Trial]) -> list[Trial]:
    """At most :data:`FRONTIER_POINTS` of them, evenly."""
    places = np.unique(np.linspace(0, len(trials) - 1, min(FRONTIER_POINTS, len(trials))).round().astype(int))
    return [trials[place] for place in places]
