"""What a policy would have cost had its knobs been known beforehand: tuned on the very weeks that it is judged on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import STATIC, TODAY, Contest
from gpuplanner.study.equal_service.target import target_of
from gpuplanner.study.equal_service.tuning import Trial
from gpuplanner.study.equal_service.weeks import weeks


@dataclass(frozen=True, eq=False)
class Hindsight:
    """The winner and the best fleet that never changes, both tuned on the judged weeks.

    Attributes
    ----------
    policy : str
        The winner.
    gpu_hours : float
        What it needed, tuned on earlier weeks [GPU h a week].
    best : Trial or None
        The same policy with its knobs tuned in hindsight; None where no setting holds the target, or the winner is
        today's fleet, which has no knobs.
    static : Trial or None
        The best fleet that never changes, tuned in hindsight; None where it takes today's.
    """

    policy: str
    gpu_hours: float
    best: Trial | None
    static: Trial | None

    def to_dict(self) -> dict[str, Any]:
        """What ``compare --hindsight`` shows; ``ratio`` is 1 where nothing was lost for not knowing."""
        best = self.gpu_hours if self.best is None else self.best.gpu_hours
        return {
            "policy": self.policy,
            "gpu_hours": self.gpu_hours,
            "gpu_hours_in_hindsight": best,
            "ratio": self.gpu_hours / best,
            "knobs": {} if self.best is None else dict(self.best.setting.knobs),
            "static_policy": TODAY if self.static is None else self.static.setting.policy,
            "static_gpu_hours": None if self.static is None else self.static.gpu_hours,
        }


def hindsight(
    scenario: Scenario, found: Mapping[str, Any], tell: Callable[[str, Trial], object] | None = None
) -> Hindsight:
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
    """
    drawn = weeks(scenario)
    contest = Contest(scenario, replace(drawn, tuning=drawn.judged), target_of(found, drawn), tell)
    winner = found["winner"]
    best = None if winner == TODAY else contest.tuned(winner)[1]
    static = [trial for name in STATIC if (trial := contest.tuned(name)[1]) is not None]
    hours = next(row for row in (found["today"], *found["policies"]) if row["policy"] == winner)["gpu_hours"]
    return Hindsight(winner, hours, best, min(static, key=lambda trial: trial.gpu_hours, default=None))
