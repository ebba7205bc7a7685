"""Find the cheapest setting of a policy that holds the target, by playing it on the weeks kept for tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuplanner.simulate import Fleet, Rules
from gpuplanner.study.equal_service.play import Played, PolicySetting, play
from gpuplanner.study.equal_service.target import TIE, ServiceTarget
from gpuplanner.study.equal_service.weeks import Week

HOPELESS = 3.0
"""A setting is not played further when a week has so many times the late jobs that there may be."""
LOOK = 2
"""Weeks after which a setting may be given up."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A setting, played on tuning weeks.

    Attributes
    ----------
    setting : PolicySetting
        The setting.
    weeks : tuple of Played
        The weeks; fewer than there are if it was given up.
    excess : float
        How far it is from the target; at or below 0 it is held.
    """

    setting: PolicySetting
    weeks: tuple[Played, ...]
    excess: float

    @property
    def holds(self) -> bool:
        """Whether the target is held."""
        return self.excess <= TIE

    @property
    def gpu_hours(self) -> float:
        """Mean GPU-hours a week."""
        return float(np.mean([week.gpu_hours for week in self.weeks]))


@dataclass(eq=False)
class Arena:
    """Where settings are tried: a fleet, its weeks and the target.

    Attributes
    ----------
    fleet, rules, weeks, target
        What is played.
    tried : list of Trial
        All that was played, in order.
    tell : callable, optional
        Told of every trial, with the name of its policy.
    """

    fleet: Fleet
    rules: Rules
    weeks: Sequence[Week]
    target: ServiceTarget
    tried: list[Trial] = field(default_factory=list)
    tell: Callable[[str, Trial], object] | None = None

    def trial(self, setting: PolicySetting) -> Trial:
        """Play a setting, no longer than there is hope."""
        played: list[Played] = []
        for week in self.weeks:
            played.append(play(setting, week, self.fleet, self.rules))
            if len(played) == LOOK and self.target.excess(played) > HOPELESS * (1.0 - self.target.quantile):
                break
        found = Trial(setting, tuple(played), self.target.excess(played))
        self.tried.append(found)
        if self.tell is not None:
            self.tell(setting.policy, found)
        return found

    def closest(self) -> Trial:
        """Of all that was tried the setting nearest to the target, where none holds it."""
        whole = [trial for trial in self.tried if len(trial.weeks) == len(self.weeks)]
        return min(whole or self.tried, key=lambda trial: (trial.excess, trial.gpu_hours))

    def least(self, setting_of: Callable[[int], PolicySetting | None], low: int, high: int) -> Trial | None:
        """The smallest number from `low` to `high` whose setting holds the target, by halving.

        More is taken to be better; where it is not, what is found holds the target all the same.
        """
        best = None
        while low <= high:
            middle = (low + high) // 2
            setting = setting_of(middle)
            found = None if setting is None else self.trial(setting)
            if found is not None and found.holds:
                best, high = found, middle - 1
            else:
                low = middle + 1
        return best


def cheaper_of(trials: Iterable[Trial | None]) -> Trial | None:
    """Of those that hold the target the one with the fewest GPU-hours, the first of equals."""
    holding = [trial for trial in trials if trial is not None and trial.holds]
    return min(holding, key=lambda trial: trial.gpu_hours, default=None)
