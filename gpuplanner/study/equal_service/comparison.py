"""All policies at the same service on weeks that none was tuned on: what each costs, who wins, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplanner.errors import ScenarioError
from gpuplanner.metrics import mean_interval
from gpuplanner.names import resolve
from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.contenders import (
    PERFORMED_BY,
    POLICY_NAMES,
    TODAY,
    UNCUT,
    Contest,
)
from gpuplanner.study.equal_service.frontier import FrontierPoint, frontier
from gpuplanner.study.equal_service.judging import LEVEL, JudgedPolicy, policy_row, told_apart, wait_minutes
from gpuplanner.study.equal_service.levers import Lever, levers
from gpuplanner.study.equal_service.plan_error import PlanError, plan_error
from gpuplanner.study.equal_service.play import PolicySetting
from gpuplanner.study.equal_service.target import ServiceTarget
from gpuplanner.study.equal_service.tuning import Arena, Trial
from gpuplanner.study.equal_service.weeks import Weeks, weeks
from gpuplanner.study.equal_service.winner import winner_of
from gpuplanner.study.future.calibration import CONTRADICTED, EXPLAINED
from gpuplanner.study.future.waits_check import waits_check
from gpuplanner.study.past.history import history

DECIMALS = 6


@dataclass(frozen=True, eq=False)
class EqualService:
    """Policies at equal service.

    Attributes
    ----------
    target : ServiceTarget
        What every group of classes must get, by today's waits on the judged weeks.
    asked_minutes : float
        The minutes that were stated.
    today : JudgedPolicy
        The fleet as it is.
    policies : tuple of JudgedPolicy
        The others, in a stated order.
    frontier : tuple of FrontierPoint
        Some settings of every policy.
    winner, baseline : str
        The cheapest policy that holds the target and that the path can perform; the cheapest of those that never
        change.
    reason : str or None
        Why no saving may be headlined; None where one may.
    note : str
        What is known of the simulator's waits.
    weeks : Weeks
        What was tuned and judged on.
    release_unit : str
        What goes and comes as one.
    error : PlanError
        What the past promised of the winner, and what came of it.
    able : tuple of str
        Policies that the path can perform.
    by : str
        What classes of jobs differ in.
    """

    target: ServiceTarget
    asked_minutes: float
    today: JudgedPolicy
    policies: tuple[JudgedPolicy, ...]
    frontier: tuple[FrontierPoint, ...]
    winner: str
    baseline: str
    at_todays_wait: float | None
    reason: str | None
    note: str
    weeks: Weeks
    release_unit: str
    error: PlanError
    able: tuple[str, ...]
    by: str = "size"

    def judged(self, policy: str) -> JudgedPolicy:
        """A policy by its name, or ``"today"``."""
        return next(one for one in (self.today, *self.policies) if one.policy == policy)

    def saving_over(self, policy: str) -> tuple[float, float | None, float | None]:
        """What the winner saves against a policy, week by week [GPU h a week], with its interval."""
        found = mean_interval(self.judged(policy).gpu_hours - self.judged(self.winner).gpu_hours, level=LEVEL)
        return found.mean, found.low, found.high

    def levers(self) -> list[Lever]:
        """What each lever of the winner saves."""
        holding = [one for one in self.policies if one.policy in self.able and self.target.met(one.weeks)]
        return levers(self.today, holding, self.judged(self.winner))

    def to_dict(self) -> dict[str, Any]:
        """The object that report, notebook and ``compare --json`` show."""
        saving = self.saving_over(TODAY) if self.reason is None else (None, None, None)
        shown: dict[str, Any] = _rounded({
            "target": {"minutes": self.asked_minutes, "quantile": self.target.quantile, "by": self.by, "by_class": [
                {"size_class": name, "minutes": minutes,
                 "todays_wait_min": wait_minutes(self.today, group, self.target.quantile)}
                for name, minutes, group in zip(
                    self.target.names(), self.target.minutes, self.target.groups, strict=True
                )
            ]},
            "today": policy_row(self.today, self.target),
            "policies": [policy_row(one, self.target) for one in self.policies],
            "release_unit": self.release_unit,
            "frontier": [point._asdict() for point in self.frontier],
            "winner": self.winner,
            "told_apart": told_apart((self.today, *self.policies), self.winner),
            "baseline": self.baseline,
            "saving_gpu_hours_per_week": saving[0],
            "saving_low": saving[1],
            "saving_high": saving[2],
            "levers": [lever._asdict() for lever in self.levers()],
            **self.error.to_dict(),
            "saving_over_static": None if self.reason else self.saving_over(self.baseline)[0],
            "saving_at_todays_wait": None if self.reason else self.at_todays_wait,
            "reason": self.reason,
            "note": self.note,
            "tuned_from": self.weeks.begin.isoformat(),
            "judged_from": self.weeks.split.isoformat(),
            "judged_to": self.weeks.end.isoformat(),
            "tuned_for_times_the_jobs": self.weeks.heavier,
        })  # fmt: skip
        return shown


def equal_service(
    scenario: Scenario,
    policies: Sequence[str] | None = None,
    tell: Callable[[str, Trial], object] | None = None,
) -> EqualService:
    """Tune every policy to the target on earlier weeks, and judge all of them on the same later ones.

    Parameters
    ----------
    scenario : Scenario
        Fleet, path, release unit, and the service in ``wait_minutes`` and ``wait_quantile``.
    policies : sequence of str, optional
        Which ones, of :data:`~gpuplanner.study.equal_service.contenders.POLICY_NAMES`; None: those of the
        scenario, else those that the path can perform. Others are played and judged, and cannot win.
    tell : callable, optional
        Told of every setting that was tried, with the name of its policy.

    Raises
    ------
    ScenarioError
        If the history is too short to keep weeks back, or a policy is unknown.
    """
    known, drawn = history(scenario), weeks(scenario)
    asked = _policies(policies, scenario, can_be_cut=known.fleet.can_be_cut)
    contest = Contest.opened(scenario, drawn, tell)
    played = contest.played

    def judge(setting: PolicySetting) -> JudgedPolicy:
        return JudgedPolicy(setting, played(setting, drawn.judged), played(setting, drawn.held_back))

    today = judge(contest.as_it_is)
    to_judge = ServiceTarget.against_today(
        today.weeks, contest.target.groups, scenario.wait_quantile, scenario.wait_minutes, drawn.classes
    )
    arenas: dict[str, Arena] = {}
    found = []
    for policy in asked:
        arena, best = contest.tuned(policy)
        arenas[policy] = arena
        if best is None and not arena.tried:
            continue
        found.append(judge((best or arena.closest()).setting))
    able = [one for one in found if one.policy in PERFORMED_BY[scenario.path]]
    baseline, winner = winner_of(today, able, to_judge)
    won = next(one for one in (today, *found) if one.policy == winner)
    check = waits_check(scenario)
    return EqualService(
        target=to_judge,
        asked_minutes=scenario.wait_minutes,
        today=today,
        policies=tuple(found),
        frontier=frontier(arenas, today, to_judge, played, drawn.judged),
        winner=winner,
        baseline=baseline,
        at_todays_wait=_at_todays_wait(contest, today, winner, judge),
        reason=check.sentence if check.outcome == CONTRADICTED else None,
        note=check.sentence if check.outcome == EXPLAINED else f"simulated only: {check.sentence}",
        weeks=drawn,
        release_unit=scenario.release_unit,
        error=plan_error(contest, today, won),
        able=PERFORMED_BY[scenario.path],
        by=scenario.wait_by,
    )


def _policies(asked: Sequence[str] | None, scenario: Scenario, *, can_be_cut: bool) -> list[str]:
    able = POLICY_NAMES if can_be_cut else UNCUT
    if asked is None and scenario.policies is not None:
        asked = [name.strip() for name in scenario.policies.split(",")]
    if asked is None:
        return [name for name in able if name in PERFORMED_BY[scenario.path]]
    names = {resolve(name, POLICY_NAMES, what="policy", error=ScenarioError) for name in asked}
    return [name for name in able if name in names]


def _at_todays_wait(
    contest: Contest,
    today: JudgedPolicy,
    winner: str,
    judge: Callable[[PolicySetting], JudgedPolicy],
) -> float | None:
    """What the winner saves where no class may wait longer than today, slack or not [GPU h a week]."""
    if winner == TODAY:
        return 0.0
    usual = contest.played(contest.as_it_is, contest.weeks.usual)
    strict, judged = (
        ServiceTarget.against_today(
            side, contest.target.groups, contest.target.quantile, 0.0, contest.target.classes
        )
        for side in (usual, today.weeks)
    )
    best = Contest(contest.scenario, contest.weeks, strict).tuned(winner)[1]
    if best is None:
        return None
    found = judge(best.setting)
    return float((today.gpu_hours - found.gpu_hours).mean()) if judged.met(found.weeks) else None


def _rounded(value: Any) -> Any:  # noqa: ANN401 - anything JSON holds
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, DECIMALS) if isinstance(value, float) else value
