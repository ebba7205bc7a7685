"""Who wins: the cheapest policy that holds the target, if it is surely cheaper than what never changes."""

from __future__ import annotations

from collections.abc import Sequence

from gpuplanner.metrics import mean_interval
from gpuplanner.study.equal_service.contenders import STATIC
from gpuplanner.study.equal_service.judging import LEVEL, JudgedPolicy
from gpuplanner.study.equal_service.target import ServiceTarget


def winner_of(today: JudgedPolicy, able: Sequence[JudgedPolicy], target: ServiceTarget) -> tuple[str, str]:
    """The cheapest fleet that never changes, and the cheapest of all, if it is cheaper by more than the interval."""
    holding = [one for one in able if target.met(one.weeks)]
    baseline = _cheaper([today, *(one for one in holding if one.policy in STATIC)])
    return baseline.policy, _cheaper([baseline, *(one for one in holding if one.policy not in STATIC)]).policy


def _cheaper(choices: Sequence[JudgedPolicy]) -> JudgedPolicy:
    """The first, unless another is cheaper and surely so."""
    best = min(choices, key=lambda one: float(one.gpu_hours.mean()))
    saved = mean_interval(choices[0].gpu_hours - best.gpu_hours, level=LEVEL)
    return best if saved.mean > 0 and (saved.low is None or saved.low > 0) else choices[0]
