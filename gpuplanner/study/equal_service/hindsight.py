"""What a policy would have cost had its knobs been known beforehand: tuned on the very weeks that it is judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import STATIC, TODAY, Contest
from gpuplanner.study.equal_service.target import target_of
from gpuplanner.study.equal_service.tuning import Trial
from gpuplanner.study.equal_service.weeks import weeks


def hindsight(
    scenario: Scenario, found: Mapping[str, Any], tell: Callable[[str, Trial], object] | None = None
) -> dict[str, Any]:
    """Tune the winner, and fleets that never change, on the weeks that the winner was judged on.

    Nothing else is made of it: no setting that is shown anywhere was tuned on weeks that it is judged on.

    Parameters
    ----------
    scenario : Scenario
        What was compared.
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.
    tell : callable, optional
        Told of every setting that was tried.

    Returns
    -------
    dict
        ``policy`` and ``gpu_hours`` of the winner as it was judged, ``gpu_hours_in_hindsight`` and ``knobs`` of its
        best setting, their ``ratio`` (1: nothing was lost for not knowing; None where no setting holds the target),
        ``static_policy`` and ``static_gpu_hours`` of the best fleet that never changes (today's where none holds it).
    """
    drawn = weeks(scenario)
    contest = Contest(scenario, replace(drawn, tuning=drawn.judged), target_of(found, drawn), tell)
    winner = found["winner"]
    best = None if winner == TODAY else contest.tuned(winner)[1]
    static = [trial for name in STATIC if (trial := contest.tuned(name)[1]) is not None]
    hours = next(row for row in (found["today"], *found["policies"]) if row["policy"] == winner)["gpu_hours"]
    fixed = min(static, key=lambda trial: trial.gpu_hours, default=None)
    least = hours if winner == TODAY else None if best is None else best.gpu_hours
    return {
        "policy": winner,
        "gpu_hours": hours,
        "gpu_hours_in_hindsight": least,
        "ratio": None if least is None else hours / least,
        "knobs": {} if best is None else dict(best.setting.knobs),
        "static_policy": TODAY if fixed is None else fixed.setting.policy,
        "static_gpu_hours": found["today"]["gpu_hours"] if fixed is None else fixed.gpu_hours,
    }
