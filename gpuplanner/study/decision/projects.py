"""Announced projects: whether the fleet can take them, who would wait, and what has to be bought by when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.demand.growth import FEWEST_WEEKS, PATHS, fit_growth
from gpuplanner.demand.peaks import daily_peaks
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.arena import Arena, order_statistic
from gpuplanner.study.decision.compare import opened
from gpuplanner.study.decision.projects_file import Announced, CalendarEntry, Project, read_projects
from gpuplanner.study.decision.types import Decision
from gpuplanner.study.past.history import History, begin_of
from gpuplanner.study.waits.explain import take_jobs as again_later
from gpuplanner.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, day_text

SURE = 0.9
"""A fleet can take a project if it is enough in nine of ten futures."""
EVEN = 0.5
WEEKS_AHEAD = 52
WAITS_MINUTES = 1.0
"""Who starts by less than this later is not said to wait."""
HOURS_FROM_MINUTES = 120.0
ALL = "all projects"


@dataclass(frozen=True)
class Waiter:
    """A size class (``kind`` is ``size``) or a ``team`` that starts later with a project, at the target's quantile."""

    kind: str
    name: str
    jobs: int
    added_minutes: float


@dataclass(frozen=True)
class ProjectAnswer:
    """What a project asks of the fleet.

    - ``name``, ``begin``, ``end``: Which, and its first and last day.
    - ``gpus``, ``chance``: GPUs at once, and how likely it comes.
    - ``fits``: Whether today's fleet is enough with it, in nine of ten futures.
    - ``fits_chance``, ``fits_chance_without``, ``fits_chance_recommended``: In how many futures today's fleet is
      enough with it and without it, and the recommended GPUs with it.
    - ``gpus_more``, ``gpus_more_without``: GPUs to be bought, in whole nodes, with it and without it.
    - ``order_by``: Latest day of an order that comes in time; None where nothing is to be bought.
    - ``late_days``: By how many days even an order on the last day seen comes too late.
    - ``waits``: Who waits longer on today's fleet, the longest first, from a replay of the weeks seen.
    - ``served``: Whether nobody of them would wait longer than the target allows; None where it was not replayed.
    - ``run_out_without``, ``run_out_with``: First week in which today's fleet is as likely as not too small.
    - ``sentence``: The answer in words.
    """

    name: str
    begin: str
    end: str | None
    gpus: int
    chance: float
    fits: bool
    fits_chance: float
    fits_chance_without: float
    fits_chance_recommended: float
    gpus_more: int
    gpus_more_without: int
    order_by: str | None
    late_days: int
    waits: tuple[Waiter, ...]
    served: bool | None
    run_out_without: str | None
    run_out_with: str | None
    sentence: str


def answered(scenario: Scenario, decision: Decision) -> tuple[ProjectAnswer, ...]:
    """Answer each project of a scenario, and all of them together, beside what was decided without them.

    Examples
    --------
    >>> from gpuplanner.study.decision.sentences import no_decision
    >>> answered(Scenario(), no_decision(Scenario(), "no job states when it ran"))
    ()
    """
    if scenario.projects is None:
        return ()
    announced = read_projects(scenario.projects)
    futures = _Futures(scenario, announced)
    every = [[one] for one in announced.projects]
    every += [list(announced.projects)] if len(every) > 1 else []
    return tuple(_answer(futures, decision, projects) for projects in every)


class _Futures:
    """GPUs needed in each week to come, many times drawn, with what the calendar says."""

    def __init__(self, scenario: Scenario, announced: Announced) -> None:
        self.known, self.asked, self.arena, _ = opened(scenario)
        self.fleet, self.node = self.asked.nodes.total, self.asked.usual_node
        self.lead_days, self.first = scenario.purchase_lead_days, self.asked.end.date()
        needs, seed = weekly_needs(self.known), scenario.seed
        if len(needs) >= FEWEST_WEEKS and needs.any():
            paths = fit_growth(needs).paths(WEEKS_AHEAD, seed=seed)
        else:  # too few weeks to tell growth from noise: as much as was held at most
            most = float(needs.max(initial=0.0)) if len(needs) else decision_peak(self.known)
            paths = np.full((PATHS, WEEKS_AHEAD), most)
        self.paths = paths * self._factors(announced.calendar)
        self.comes = np.random.default_rng([seed, 47]).random((PATHS, max(len(announced.projects), 1)))
        self.places = {one.name: place for place, one in enumerate(announced.projects)}

    def _factors(self, calendar: Sequence[CalendarEntry]) -> NDArray[np.float64]:
        """Factor on the peak of each week: that of its busiest day."""
        days = np.ones(7 * WEEKS_AHEAD)
        for one in calendar:
            low, high = (self.day(text) for text in (one.begin, one.end))
            days[max(low, 0) : max(high + 1, 0)] *= one.factor
        return np.asarray(days.reshape(WEEKS_AHEAD, 7).max(axis=1))

    def day(self, text: str) -> int:
        """Days from the first one ahead."""
        return (date.fromisoformat(text) - self.first).days

    def span(self, one: Project, most_days: int | None = None) -> tuple[int, int]:
        """First week of a project and the first after it, as far as is looked ahead."""
        begin = min(max(self.day(one.begin) // 7, 0), WEEKS_AHEAD - 1)
        last = 7 * WEEKS_AHEAD if one.end is None else self.day(one.end)
        if most_days is not None:
            last = min(last, 7 * begin + most_days)
        return begin, min(max(last // 7 + 1, begin + 1), WEEKS_AHEAD)

    def extra(self, projects: Sequence[Project], *, surely: bool) -> NDArray[np.float64]:
        """GPUs of projects in each future and week: surely, or as often as they come."""
        found = np.zeros((len(self.paths), WEEKS_AHEAD))
        for one in projects:
            low, high = self.span(one)
            there = 1.0 if surely else self.comes[:, self.places[one.name], None] < one.chance
            found[:, low:high] += one.at_once * there
        return found

    def run_out(self, needs: NDArray[np.float64]) -> str | None:
        """First week by which a fleet is as likely as not too small."""
        over = np.maximum.accumulate(needs > self.fleet + 1e-6, axis=1).mean(axis=0)
        week = int(np.argmax(over >= EVEN))
        return (self.first + timedelta(weeks=week)).isoformat() if over[week] >= EVEN else None


def decision_peak(known: History) -> float:
    """The most GPUs that were held at once in the whole record."""
    return float(_peaks(known, 1, (known.plan_start - begin_of(known.trace)).total_seconds())[0])


def weekly_needs(known: History) -> NDArray[np.float64]:
    """Most GPUs that jobs held at once in each whole week of the record, the last one last."""
    weeks = int((known.plan_start - begin_of(known.trace)).days // 7)
    return _peaks(known, weeks, 7 * SECONDS_PER_DAY)


def _peaks(known: History, count: int, length_s: float) -> NDArray[np.float64]:
    jobs = known.jobs.filter(pl.col("start_time").is_not_null() & (pl.col("gpus") > 0))
    times = jobs.select(pl.col("start_time", "end_time").fill_null(known.plan_start) - known.plan_start)
    begin, end = ((one.dt.total_microseconds() / 1e6 / length_s).to_numpy() + count for one in times)
    return daily_peaks(begin, np.maximum(end, begin), jobs["gpus"].to_numpy().astype(float), count)


def _answer(futures: _Futures, decision: Decision, projects: list[Project]) -> ProjectAnswer:
    fleet = futures.fleet
    alone = len(projects) == 1
    own = [one for one in projects if one.board in (None, futures.known.fleet.name)]
    # What a later order can still bring need not be ordered now.
    spans = [futures.span(one, futures.lead_days) for one in projects]
    weeks = slice(min(low for low, _ in spans), max(high for _, high in spans))
    need = futures.paths + futures.extra(own, surely=alone)
    elsewhere = sum(one.at_once for one in projects if one not in own)
    most, without = need[:, weeks].max(axis=1), futures.paths[:, weeks].max(axis=1)
    fits, bare, less = (
        float(np.mean(values <= level + 1e-6))
        for values, level in ((most, fleet), (without, fleet), (most, decision.gpus or fleet))
    )
    more, before = (_nodes_more(futures, values) for values in (most, without))
    begin = min(one.begin for one in projects)
    ends = [one.end for one in projects]
    order = date.fromisoformat(begin) - timedelta(days=futures.lead_days)
    buys = more + elsewhere > 0
    with_likely = futures.paths + futures.extra(own, surely=False)
    waits = _waits(futures.arena, own)
    told = ProjectAnswer(
        name=projects[0].name if alone else ALL,
        begin=begin,
        end=None if None in ends else max(one for one in ends if one is not None),
        gpus=sum(one.at_once for one in projects),
        chance=projects[0].chance if alone else round(float(np.prod([one.chance for one in projects])), 6),
        fits=fits >= SURE and not elsewhere,
        fits_chance=0.0 if elsewhere and alone else round(fits, 4),
        fits_chance_without=round(bare, 4),
        fits_chance_recommended=0.0 if elsewhere and alone else round(less, 4),
        gpus_more=more + elsewhere,
        gpus_more_without=before,
        order_by=order.isoformat() if buys else None,
        late_days=max((futures.first - order).days, 0) if buys else 0,
        waits=waits or (),
        served=None if waits is None else all(row.added_minutes <= futures.arena.minutes for row in waits),
        run_out_without=futures.run_out(futures.paths),
        run_out_with=futures.run_out(with_likely),
        sentence="",
    )
    return replace(told, sentence=_sentence(told, fleet))


def _nodes_more(futures: _Futures, most: NDArray[np.float64]) -> int:
    """GPUs, in whole nodes, with which the fleet is enough in nine of ten futures."""
    short = order_statistic(most, SURE) - futures.fleet
    return math.ceil(max(short, 0.0) / futures.node - 1e-9) * futures.node


def _waits(arena: Arena, projects: Sequence[Project]) -> tuple[Waiter, ...] | None:
    """Who starts later on today's fleet when the projects' jobs come too; None where they fit on it in no way."""
    if not projects or sum(one.at_once for one in projects) > arena.asked.nodes.total:
        return None
    late = _with_jobs(arena, projects).play(arena.today.setting, draws=1).late_s[0, : len(arena.ready_s)]
    before = arena.today.late_s[0]
    teams = arena.asked.jobs["tenant"].cast(pl.String).fill_null("").to_numpy()
    groups = [("size", name, arena.size == number) for number, name in enumerate(arena.classes)]
    groups += [("team", str(name), teams == name) for name in np.unique(teams)]
    rows = []
    for kind, name, mine in groups:
        which = mine & arena.judged
        was, now = (order_statistic(values[which], arena.quantile) for values in (before, late))
        now = min(now, arena.asked.seen_s)  # never started: until the end of what was seen
        added = (now - was) / SECONDS_PER_MINUTE
        if added >= WAITS_MINUTES:
            rows.append(Waiter(kind, name, int(which.sum()), round(added, 1)))
    return tuple(sorted(rows, key=lambda row: (-row.added_minutes, row.kind, row.name)))


def _with_jobs(arena: Arena, projects: Sequence[Project]) -> Arena:
    """The same weeks with the jobs of projects: GPUs held throughout as jobs of a node each."""
    asked = arena.asked
    rng = np.random.default_rng([arena.seed, 53])
    node, days = int(asked.fleet.gpus.max()), asked.seen_s / SECONDS_PER_DAY
    ready: list[float] = []
    run: list[float] = []
    gpus: list[int] = []
    for one in projects:
        if one.jobs is None:
            sizes = [node] * (one.at_once // node) + ([one.at_once % node] if one.at_once % node else [])
            ready += [-1.0] * len(sizes)
            run += [asked.seen_s + 1] * len(sizes)
            gpus += sizes
        else:
            count = round(one.jobs.count * days)
            ready += sorted(rng.uniform(0, asked.seen_s, count).tolist())
            run += [one.jobs.hours * SECONDS_PER_HOUR] * count
            gpus += [one.jobs.gpus] * count
    seen = len(asked.start_s)
    order = np.concatenate([np.arange(seen), np.zeros(len(ready), np.int64)])
    begin, hours, total = np.array(ready), np.array(run), np.array(gpus)

    wider, waits = again_later(arena, order, np.zeros(len(order)))
    for view in wider.views.values():
        asks = view.requests
        asks.ready_s[seen:] = asks.submit_s[seen:] = begin
        asks.run_s[seen:] = asks.limit_s[seen:] = hours
        asks.profile[seen:], asks.total[seen:], asks.nodes[seen:] = 0, total, -(-total // node)
        view.slowdown[seen:] = 1.0
    wider.start_s[seen:], wider.end_s[seen:], wider.standing[seen:] = begin, begin + hours, False
    wider.pins[seen:] = [None] * len(ready)
    waits.arrival_s[seen:], waits.judged[seen:] = begin, False
    waits.delay_s[seen:] = waits.seconds[seen:] = 0.0
    return replace(arena, asked=wider, waits=waits)


def _sentence(one: ProjectAnswer, fleet: int) -> str:
    who = f"{one.name} ({one.gpus:,} GPUs from {day_text(one.begin)}, {one.chance:.0%} likely)"
    can = "can be taken" if one.fits else "cannot be taken as it is"
    text = f"{who} {can}: at peaks {fleet:,} GPUs are enough in {one.fits_chance:.0%} of the futures"
    text += f", without it in {one.fits_chance_without:.0%}."
    if one.order_by is not None:
        when = (
            f"at once, they come {one.late_days:,} days late"
            if one.late_days
            else f"by {day_text(one.order_by)}"
        )
        even = f" ({one.gpus_more_without:,} of them even without it)" if one.gpus_more_without else ""
        text += f" Order {one.gpus_more:,} GPUs {when}{even}."
    if one.served is None:
        return text
    if not one.waits:
        return f"{text} In the weeks seen nobody would have waited longer."
    names = ", ".join(f"{row.name} {_minutes(row.added_minutes)}" for row in one.waits[:3])
    within = ", within the target" if one.served else ""
    return f"{text} In the weeks seen these would have waited longer{within}: {names}."


def _minutes(minutes: float) -> str:
    return f"{minutes:,.0f} min" if minutes < HOURS_FROM_MINUTES else f"{minutes / 60:,.0f} h"
