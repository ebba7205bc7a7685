"""The same question under growth: how many GPUs hold the target, and when today's fleet no longer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuplanner.scenario import Scenario
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, Fleet, OnDemand, Rules
from gpuplanner.study.equal_service.contenders import TODAY, Contest
from gpuplanner.study.equal_service.play import PolicySetting, play
from gpuplanner.study.equal_service.target import ServiceTarget
from gpuplanner.study.equal_service.tuning import Trial
from gpuplanner.study.equal_service.weeks import Week, grown_weeks, weeks

FACTORS = (0.8, 1.0, 1.25, 1.5, 2.0)
"""Arrivals over those of today."""
LIMITS = tuple(round(1.05**step, 3) for step in range(-14, 29))
"""Growths among which the last that today's fleet bears is looked for: half to four times as many jobs."""
GROWN_WEEKS = 4
"""Judged weeks that are drawn with more jobs; today's waits on these are the target."""
MOST_TIMES = 4
"""Fleets up to so many times today's are tried."""


def growth(
    scenario: Scenario, found: Mapping[str, Any], tell: Callable[[str, Trial], object] | None = None
) -> list[dict[str, Any]]:
    """GPUs that hold the target at several growths of arrivals, run as today and as the winner runs them.

    For every drawn week on its own the least fleet that holds the target is looked for, so that weeks give a range;
    nodes are added whole. The winner keeps the knobs that were tuned at today's arrivals.

    Parameters
    ----------
    scenario : Scenario
        What was compared.
    found : mapping
        :meth:`gpuplanner.study.equal_service.comparison.EqualService.to_dict`.
    tell : callable, optional
        Told of every setting that was tried while the winner is found again.

    Returns
    -------
    list of dict
        For today's way and the winner's: ``policy``, ``board``, ``todays_fleet_until`` (the last growth at which
        today's GPUs hold the target; None below half of today's arrivals), ``gpus_for_stated_wait`` (in the hardest
        week at today's arrivals, every class within the stated minutes, however long it waits today) and ``gpus``
        with a row for each of :data:`FACTORS`: ``factor``, ``gpus_low``, ``gpus``, ``gpus_high`` (fewest, middle
        and most over the weeks; None where four times today's fleet is too small).
    """
    drawn = weeks(scenario)
    contest = Contest.opened(scenario, drawn, tell)
    judged = contest.played(contest.as_it_is, drawn.judged[:GROWN_WEEKS])
    target = ServiceTarget.against_today(
        judged, contest.target.groups, scenario.wait_quantile, scenario.wait_minutes, drawn.classes
    )
    settings = [contest.as_it_is]
    if found["winner"] != TODAY:
        arena, best = contest.tuned(found["winner"])
        settings.append((best or arena.closest()).setting)
    rows = []
    for setting in settings:
        fleets = _Fleets(contest.fleet, contest.rules, target, setting)
        sizes = [
            {"factor": factor}
            | fleets.range_of(grown_weeks(scenario, contest.known, drawn, factor, GROWN_WEEKS))
            for factor in FACTORS
        ]
        last = fleets.last(lambda factor: grown_weeks(scenario, contest.known, drawn, factor, GROWN_WEEKS))
        stated = replace(target, minutes=(scenario.wait_minutes,) * len(target.minutes))
        strict = _Fleets(contest.fleet, contest.rules, stated, setting).range_of(drawn.judged[:GROWN_WEEKS])
        rows.append({
            "policy": setting.policy, "board": contest.fleet.model.name, "todays_fleet_until": last,
            "gpus_for_stated_wait": strict["gpus_high"], "gpus": sizes,
        })  # fmt: skip
    return rows


@dataclass(frozen=True)
class _Fleets:
    """A policy on fleets of other sizes."""

    fleet: Fleet
    rules: Rules
    target: ServiceTarget
    setting: PolicySetting

    def range_of(self, drawn: Sequence[Week]) -> dict[str, int | None]:
        """Fewest, middle and most GPUs that single weeks need."""
        least: list[int | None] = []
        for week in drawn:
            least.append(self._least(week, least[-1] if least else None))
        if None in least:
            return dict.fromkeys(("gpus_low", "gpus", "gpus_high"))
        nodes = sorted(count for count in least if count is not None)
        picked = (nodes[0], nodes[len(nodes) // 2], nodes[-1])
        return {
            name: count * self.fleet.gpus_per_node
            for name, count in zip(("gpus_low", "gpus", "gpus_high"), picked, strict=True)
        }

    def last(self, grown: Callable[[float], Sequence[Week]]) -> float | None:
        """The last of :data:`LIMITS` at which today's fleet holds the target: from today's arrivals on, by halving."""
        best, low, high = None, 0, len(LIMITS) - 1
        middle = LIMITS.index(1.0)
        while low <= high:
            if self._held(grown(LIMITS[middle]), self.fleet.nodes):
                best, low = LIMITS[middle], middle + 1
            else:
                high = middle - 1
            middle = (low + high) // 2
        return best

    def _least(self, week: Week, near: int | None) -> int | None:
        """Fewest nodes for one week: bounds by growing steps from those of the week before, then by halving."""
        most, step = MOST_TIMES * self.fleet.nodes, 1
        low, high = 0, most + 1  # too few, enough
        tried = near or self.fleet.nodes
        while low < tried < high:
            if self._held([week], tried):
                high, tried = tried, max(tried - step, low + 1)
            else:
                low, tried = tried, min(tried + step, most)
            step *= 2
            if low and high <= most:
                tried = (low + high) // 2
        return high if high <= most else None

    def _held(self, drawn: Sequence[Week], nodes: int) -> bool:
        setting, fleet = self._of_size(nodes)
        return self.target.met([play(setting, week, fleet, self.rules) for week in drawn])

    def _of_size(self, nodes: int) -> tuple[PolicySetting, Fleet]:
        """The setting on so many nodes: a fixed fleet keeps the share of its layouts, the rest are whole GPUs."""
        fleet = Fleet(self.fleet.board, nodes, self.fleet.gpus_per_node)
        control = self.setting.control
        if isinstance(control, OnDemand):
            kept = min(control.keep_whole, fleet.gpus)
            return replace(self.setting, control=replace(control, keep_whole=kept), nodes=nodes), fleet
        if isinstance(control, Calendar):
            counts = np.floor(control.counts * (nodes / self.fleet.nodes)).astype(np.int64)
            if WHOLE_GPU in control.layouts and self.setting.policy == TODAY:
                place = control.layouts.index(WHOLE_GPU)
                counts[:, place] += fleet.gpus - counts.sum(axis=1)
            return replace(self.setting, control=replace(control, counts=counts), nodes=nodes), fleet
        return replace(self.setting, nodes=nodes), fleet
