"""All policies at the same service on weeks that none was tuned on: what each costs, who wins, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpuplanner.errors import ScenarioError
from gpuplanner.metrics import mean_interval
from gpuplanner.names import resolve
from gpuplanner.scenario import Scenario
from gpuplanner.simulate import Calendar
from gpuplanner.study.equal_service.contenders import (
    PERFORMED_BY,
    POLICY_NAMES,
    STATIC,
    TODAY,
    UNCUT,
    Contest,
    fleet_in_units,
)
from gpuplanner.study.equal_service.play import Played, PolicySetting, play
from gpuplanner.study.equal_service.size_classes import pooled_classes
from gpuplanner.study.equal_service.target import ServiceTarget, wait_quantile
from gpuplanner.study.equal_service.tuning import Arena, Trial
from gpuplanner.study.equal_service.weeks import Week, Weeks, weeks
from gpuplanner.study.future.calibration import CONTRADICTED, EXPLAINED
from gpuplanner.study.future.saving import waits_check
from gpuplanner.study.past.history import history
from gpuplanner.units import SECONDS_PER_MINUTE

DECIMALS = 6
LEVEL = 0.95
FRONTIER_POINTS = 5
FRONTIER_WEEKS = 4
"""Judged weeks that the points of a frontier are played on; the policies themselves are played on all."""


@dataclass(frozen=True, eq=False)
class JudgedPolicy:
    """A tuned policy on the weeks that it was not tuned on.

    Attributes
    ----------
    setting : PolicySetting
        Its knobs.
    weeks : tuple of Played
        The drawn weeks.
    held_back : tuple of Played
        The weeks as they were.
    """

    setting: PolicySetting
    weeks: tuple[Played, ...]
    held_back: tuple[Played, ...]

    @property
    def policy(self) -> str:
        """Its name."""
        return self.setting.policy

    @property
    def gpu_hours(self) -> np.ndarray:
        """GPU-hours of each drawn week."""
        return np.array([week.gpu_hours for week in self.weeks])


class FrontierPoint(NamedTuple):
    """A setting of a policy: its cost [GPU h a week], its wait, and that of the worst class over its target."""

    policy: str
    gpu_hours: float
    wait_quantile_min: float
    wait_over_target: float


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

    def judged(self, policy: str) -> JudgedPolicy:
        """A policy by its name, or ``"today"``."""
        return next(one for one in (self.today, *self.policies) if one.policy == policy)

    def saving_over(self, policy: str) -> tuple[float, float | None, float | None]:
        """What the winner saves against a policy, week by week [GPU h a week], with its interval."""
        found = mean_interval(self.judged(policy).gpu_hours - self.judged(self.winner).gpu_hours, level=LEVEL)
        return found.mean, found.low, found.high

    def to_dict(self) -> dict[str, Any]:
        """The object that report, notebook and ``compare --json`` show."""
        saving = self.saving_over(TODAY) if self.reason is None else (None, None, None)
        shown: dict[str, Any] = _rounded({
            "target": {"minutes": self.asked_minutes, "quantile": self.target.quantile, "by_class": [
                {"size_class": name, "minutes": minutes, "todays_wait_min": self._wait(self.today, group)}
                for name, minutes, group in zip(
                    self.target.names(), self.target.minutes, self.target.groups, strict=True
                )
            ]},
            "today": self._row(self.today),
            "policies": [self._row(one) for one in self.policies],
            "release_unit": self.release_unit,
            "frontier": [point._asdict() for point in self.frontier],
            "winner": self.winner,
            "baseline": self.baseline,
            "saving_gpu_hours_per_week": saving[0],
            "saving_low": saving[1],
            "saving_high": saving[2],
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

    def _row(self, one: JudgedPolicy) -> dict[str, Any]:
        hours = mean_interval(one.gpu_hours, level=LEVEL)
        waits = np.concatenate([week.waits_s for week in one.weeks])
        ends = np.concatenate([week.completion_s for week in one.weeks])
        return {
            "policy": one.policy,
            "gpu_hours": hours.mean,
            "gpu_hours_low": hours.low,
            "gpu_hours_high": hours.high,
            "wait_mean_min": float(waits.mean()) / SECONDS_PER_MINUTE,
            "wait_quantile_min": wait_quantile(one.weeks, None, self.target.quantile) / SECONDS_PER_MINUTE,
            "wait_longest_min": float(waits.max()) / SECONDS_PER_MINUTE,
            "completion_mean_min": float(np.nanmean(ends)) / SECONDS_PER_MINUTE,
            "busy_gpu_hours": float(np.mean([week.busy_gpu_hours for week in one.weeks])),
            "by_class": [self._class_row(one, *group) for group in enumerate(self.target.groups)],
            "wait_over_target": self.target.strain(one.weeks),
            "never_started": sum(week.never_started for week in one.weeks),
            "changes": float(np.mean([week.changes for week in one.weeks])),
            "changes_given_up": float(np.mean([week.given_up for week in one.weeks])),
            "meets_target": self.target.met(one.weeks),
            "knobs": dict(one.setting.knobs),
        }

    def _class_row(self, one: JudgedPolicy, place: int, group: tuple[int, ...]) -> dict[str, Any]:
        waits = np.concatenate([week.waits_of(group) for week in one.weeks])
        held = self.target.weeks_held(one.held_back)[place] if one.held_back else None
        p50, p99 = (wait_quantile(one.weeks, group, level) / SECONDS_PER_MINUTE for level in (0.5, 0.99))
        return {
            "size_class": self.target.names()[place],
            "jobs": len(waits),
            "wait_mean_min": float(waits.mean()) / SECONDS_PER_MINUTE,
            "wait_p50_min": p50,
            "wait_quantile_min": self._wait(one, group),
            "wait_p99_min": p99,
            "target_min": self.target.minutes[place],
            "held_back_weeks_held": held,
        }

    def _wait(self, one: JudgedPolicy, group: tuple[int, ...]) -> float:
        return wait_quantile(one.weeks, group, self.target.quantile) / SECONDS_PER_MINUTE


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
    fleet, rules, layouts = fleet_in_units(scenario, known)
    view = "requested" if known.fleet.cut_gpus else "whole"
    as_it_is = PolicySetting(TODAY, view, Calendar.constant(layouts), {"gpus": fleet.gpus})
    groups = pooled_classes(drawn.jobs_by_class())

    def played(setting: PolicySetting, which: Sequence[Week]) -> tuple[Played, ...]:
        return tuple(play(setting, week, fleet, rules) for week in which)

    def judge(setting: PolicySetting) -> JudgedPolicy:
        return JudgedPolicy(setting, played(setting, drawn.judged), played(setting, drawn.held_back))

    usual = played(as_it_is, drawn.usual)
    today = judge(as_it_is)
    to_tune, to_judge = (
        ServiceTarget.against_today(side, groups, scenario.wait_quantile, scenario.wait_minutes)
        for side in (usual, today.weeks)
    )
    contest = Contest(scenario, drawn, to_tune, tell)
    arenas: dict[str, Arena] = {}
    found = []
    for policy in asked:
        arena, best = contest.tuned(policy)
        arenas[policy] = arena
        if best is None and not arena.tried:
            continue
        found.append(judge((best or arena.closest()).setting))
    able = [one for one in found if one.policy in PERFORMED_BY[scenario.path]]
    baseline, winner = _winner(today, able, to_judge)
    check = waits_check(scenario)
    return EqualService(
        target=to_judge,
        asked_minutes=scenario.wait_minutes,
        today=today,
        policies=tuple(found),
        frontier=_frontier(arenas, today, to_judge, played, drawn),
        winner=winner,
        baseline=baseline,
        at_todays_wait=_at_todays_wait(contest, today, usual, winner, judge),
        reason=check.sentence if check.outcome == CONTRADICTED else None,
        note=check.sentence if check.outcome == EXPLAINED else f"simulated only: {check.sentence}",
        weeks=drawn,
        release_unit=scenario.release_unit,
    )


def _policies(asked: Sequence[str] | None, scenario: Scenario, *, can_be_cut: bool) -> list[str]:
    able = POLICY_NAMES if can_be_cut else UNCUT
    if asked is None and scenario.policies is not None:
        asked = [name.strip() for name in scenario.policies.split(",")]
    if asked is None:
        return [name for name in able if name in PERFORMED_BY[scenario.path]]
    names = {resolve(name, able, what="policy", error=ScenarioError) for name in asked}
    return [name for name in able if name in names]


def _winner(today: JudgedPolicy, able: Sequence[JudgedPolicy], target: ServiceTarget) -> tuple[str, str]:
    """The cheapest fleet that never changes, and the cheapest of all, if it is cheaper by more than the interval."""
    holding = [one for one in able if target.met(one.weeks)]
    baseline = _cheaper([today, *(one for one in holding if one.policy in STATIC)])
    return baseline.policy, _cheaper([baseline, *(one for one in holding if one.policy not in STATIC)]).policy


def _cheaper(choices: Sequence[JudgedPolicy]) -> JudgedPolicy:
    """The first, unless another is cheaper and surely so."""
    best = min(choices, key=lambda one: float(one.gpu_hours.mean()))
    saved = mean_interval(choices[0].gpu_hours - best.gpu_hours, level=LEVEL)
    return best if saved.mean > 0 and (saved.low is None or saved.low > 0) else choices[0]


def _frontier(
    arenas: Mapping[str, Arena],
    today: JudgedPolicy,
    target: ServiceTarget,
    played: Callable[[PolicySetting, Sequence[Week]], tuple[Played, ...]],
    drawn: Weeks,
) -> tuple[FrontierPoint, ...]:
    """Settings of each policy that no other of its own beats in both cost and wait, on weeks kept back."""

    def point(policy: str, runs: Sequence[Played]) -> FrontierPoint:
        hours = float(np.mean([run.gpu_hours for run in runs]))
        wait = wait_quantile(runs, None, target.quantile) / SECONDS_PER_MINUTE
        return FrontierPoint(policy, hours, wait, target.strain(runs))

    points = [point(TODAY, today.weeks[:FRONTIER_WEEKS])]
    some = drawn.judged[:FRONTIER_WEEKS]
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


def _at_todays_wait(
    contest: Contest,
    today: JudgedPolicy,
    usual: Sequence[Played],
    winner: str,
    judge: Callable[[PolicySetting], JudgedPolicy],
) -> float | None:
    """What the winner saves where no class may wait longer than today, slack or not [GPU h a week]."""
    if winner == TODAY:
        return 0.0
    strict, judged = (
        ServiceTarget.against_today(side, contest.target.groups, contest.target.quantile, 0.0)
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
