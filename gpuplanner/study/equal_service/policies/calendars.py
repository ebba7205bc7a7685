"""Policies that follow a weekly calendar: a few sets of layouts, each in force at its hours of the week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from gpuplanner.hardware import ChangeCost
from gpuplanner.planner import Plan, PlanProblem, plan
from gpuplanner.schemas import WHOLE_GPU
from gpuplanner.simulate import Calendar, Fleet
from gpuplanner.study.equal_service.play import PolicySetting
from gpuplanner.study.equal_service.tuning import Arena, Trial, cheaper_of
from gpuplanner.study.equal_service.weeks import WARM_UP_DAYS, WEEK_DAYS, Week
from gpuplanner.units import SECONDS_PER_HOUR

CALENDAR, CALENDAR_RESERVE = "calendar", "calendar_reserve"
CALENDARS = 3
"""Sets of layouts that a week has: people must be able to tell which one is in force."""
MARGINS = tuple(0.5 * step for step in range(9))
"""Margins that are tried: how many deviations above its mean the peak of an hour may be."""
RESERVES = (1, 2, 4, 8)
"""Whole GPUs that are tried on top of a calendar of less margin."""
SHORT_NOTICE = 1.0
"""Hours ahead that are tried before the scenario's: more changes are given up, and fewer jobs kept away before them."""
HOURS = 24
WEEKEND = 6
WORK_LIMIT = 400
"""Models that one calendar may take the solver."""


@dataclass(frozen=True, eq=False)
class HourlyPeaks:
    """The most instances wanted at once in each hour, over weeks.

    Attributes
    ----------
    profiles : tuple of str
        What is wanted.
    mean : array of float, shape (n_profiles, 168)
        Mean of the peaks of an hour, over all days of its kind (working days or weekends), by hour of the week.
    dispersion : array of float, shape (n_profiles,)
        Variance of the peaks around that mean, over the mean: 1 for a Poisson count, more where jobs come in
        bursts or are gangs.
    """

    profiles: tuple[str, ...]
    mean: NDArray[np.float64]
    dispersion: NDArray[np.float64]

    def covered(self, margin: float) -> NDArray[np.float64]:
        """Instances that cover the mean and so many deviations, rounded up: ``m + z * sqrt(k * m)``."""
        spread = margin * np.sqrt(self.dispersion[:, None] * self.mean)
        return np.asarray(np.ceil(self.mean + spread - 1e-9))


def hourly_peaks(weeks: Sequence[Week], view: str, first_weekday: int) -> HourlyPeaks:
    """Count what jobs would hold at once if nobody waited.

    Parameters
    ----------
    weeks : sequence of Week
        Weeks that begin on the same day.
    view : str
        What jobs ask for.
    first_weekday : int
        ISO weekday of the first measured day.
    """
    names = sorted({name for week in weeks for name in week.asked[view]["profile"].unique()})
    peaks = np.array([[_peaks(week, view, name) for name in names] for week in weeks])
    days = (np.arange(WEEK_DAYS) + first_weekday - 1) % WEEK_DAYS + 1 >= WEEKEND
    weekend = np.repeat(days, HOURS)
    by_hour = peaks.reshape(len(weeks), len(names), WEEK_DAYS, HOURS)
    mean = np.zeros((len(names), WEEK_DAYS * HOURS))
    for kind in (False, True):
        of_kind = by_hour[:, :, days == kind].mean(axis=(0, 2))
        mean[:, weekend == kind] = np.tile(of_kind, int((days == kind).sum()))
    variance = ((peaks - mean) ** 2).mean(axis=(0, 2))
    level = mean.mean(axis=1)
    return HourlyPeaks(
        tuple(names), mean, np.divide(variance, level, out=np.ones(len(names)), where=level > 0)
    )


def _peaks(week: Week, view: str, profile: str) -> NDArray[np.float64]:
    """Most instances of a profile held at once in each measured hour."""
    jobs = week.asked[view].filter(profile=profile)
    start, gpus = jobs["submit_s"].to_numpy(), jobs["gpus"].to_numpy().astype(np.float64)
    at = np.concatenate([start, start + jobs["run_s"].to_numpy()])
    change = np.concatenate([gpus, -gpus])
    order = np.lexsort((change, at))
    at, held = at[order], np.cumsum(change[order])
    edges = week.begin_s + SECONDS_PER_HOUR * np.arange(WEEK_DAYS * HOURS)
    before = np.searchsorted(at, edges, "right") - 1
    peaks = np.where(before >= 0, held[before], 0.0)
    inside = (at >= week.begin_s) & (at < week.end_s)
    np.maximum.at(peaks, ((at[inside] - week.begin_s) // SECONDS_PER_HOUR).astype(np.int64), held[inside])
    return peaks


@dataclass(frozen=True, eq=False)
class CalendarMaker:
    """Makes a calendar of the week from what it must cover.

    Attributes
    ----------
    fleet : Fleet
        What is installed.
    change : ChangeCost
        What changes cost.
    peaks : HourlyPeaks
        Demand.
    gang : int
        Whole GPUs that the largest job asks for at once; so many are always there.
    begin : datetime
        Start of the week.
    reserve_hours : float
        How long ahead the scenario reserves what is to change [h].
    """

    fleet: Fleet
    change: ChangeCost
    peaks: HourlyPeaks
    gang: int
    begin: datetime
    reserve_hours: float
    planned: dict[tuple[float, int], Plan] = field(default_factory=dict)

    @property
    def notices(self) -> list[float]:
        """Hours ahead that are tried, the shortest first."""
        return sorted({SHORT_NOTICE, self.reserve_hours})

    def make(self, margin: float, notice: float, reserve: int = 0) -> PolicySetting | None:
        """Plan a week that covers the peaks with a margin, and so many whole GPUs on top; None if none is found."""
        if (margin, reserve) not in self.planned:
            self.planned[margin, reserve] = self._plan(margin, reserve)
        found = self.planned[margin, reserve]
        if not found.found or not found.layouts:
            return None
        name = CALENDAR_RESERVE if reserve else CALENDAR
        sets = len(np.unique(found.counts, axis=0))
        knobs = {"margin": margin, "calendars": sets, "reserve_hours": notice}
        return PolicySetting(
            name,
            "rightsized",
            repeated(found.layouts, found.counts),
            knobs | ({"reserve": reserve} if reserve else {}),
            reserve_hours=notice,
        )

    def _plan(self, margin: float, reserve: int) -> Plan:
        wanted = self.peaks.covered(margin)
        if WHOLE_GPU in self.peaks.profiles:
            whole = self.peaks.profiles.index(WHOLE_GPU)
            wanted[whole] = np.minimum(np.maximum(wanted[whole] + reserve, self.gang), self.fleet.gpus)
        problem = PlanProblem(
            self.fleet.model, self.fleet.gpus, self.fleet.gpus_per_node, self.begin, 1.0, ["all"],
            self.peaks.profiles, wanted[None], change=self.change,
        )  # fmt: skip
        return plan(
            problem, method="calendar", calendars=CALENDARS, time_limit_s=600.0, work_limit=WORK_LIMIT
        )


def repeated(layouts: tuple[str, ...], counts: NDArray[np.int64]) -> Calendar:
    """A week of hourly counts as the simulator's calendar, with the same days before it; equal hours are one slot."""
    warm_up = WARM_UP_DAYS * HOURS
    every = np.concatenate([counts[-warm_up:], counts])
    changes = np.flatnonzero(np.r_[True, (np.diff(every, axis=0) != 0).any(axis=1)])
    return Calendar(changes.astype(np.float64) * SECONDS_PER_HOUR, layouts, every[changes])


def tune_calendar(arena: Arena, maker: CalendarMaker) -> Trial | None:
    """The least margin that holds the target, with the scenario's notice only where the short one holds it nowhere."""

    def least_margin(notice: float) -> Trial | None:
        return arena.least(lambda step: maker.make(MARGINS[step], notice), 0, len(MARGINS) - 1)

    return next((found for notice in maker.notices if (found := least_margin(notice)) is not None), None)


def tune_calendar_reserve(arena: Arena, maker: CalendarMaker, calendar: Trial | None) -> Trial | None:
    """Less margin, and whole GPUs on top, where that is cheaper than the calendar alone."""
    most = MARGINS.index(float(calendar.setting.knobs["margin"])) if calendar else len(MARGINS) - 1
    notice = float(calendar.setting.knobs["reserve_hours"]) if calendar else SHORT_NOTICE

    def least_reserve(margin: float) -> Trial | None:
        return arena.least(lambda place: maker.make(margin, notice, RESERVES[place]), 0, len(RESERVES) - 1)

    return cheaper_of(least_reserve(margin) for margin in MARGINS[max(most - 3, 0) : most])


def largest_job(weeks: Sequence[Week], view: str) -> int:
    """Whole GPUs that the largest job asks for at once."""
    return max((int(week.asked[view]["gpus"].to_numpy().max(initial=1)) for week in weeks), default=1)
