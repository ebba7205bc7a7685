"""Announced projects: the file, and whether the fleet can take their jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import (
    make_file_error,
    read_choice,
    read_day_range,
    read_list,
    read_number,
    read_yaml,
    require_keys,
)
from gpuplanner.core.units import (
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    day_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.capacity_answers import why_none
from gpuplanner.decision.explained_waits import take_jobs
from gpuplanner.decision.headroom_and_growth import FittedGrowth
from gpuplanner.decision.policy_comparison import opened
from gpuplanner.decision.queue_model import joined_requests
from gpuplanner.decision.recommendation import growth_of, wait_model, wait_target
from gpuplanner.decision.requests import AS_TODAY
from gpuplanner.decision.sharing_rules import refuse_twice
from gpuplanner.decision.wait_curve import (
    REPLAYS,
    TOLERANCE_S,
    WaitModel,
    fleet_of_pools,
    percentile,
    pools_of,
    smallest_units,
    wait_limits,
)
from gpuplanner.hardware.catalog import resolve_gpu_model
from gpuplanner.simulator.simulated_fleet import NodeRequests
from gpuplanner.simulator.simulation_state import Floats

PROJECT = ("name", "team", "gpus", "jobs", "gpu_model", "from", "to", "chance")
JOBS = ("count", "gpus", "hours")
CALENDAR = ("kind", "name", "from", "to", "factor")


@dataclass(frozen=True)
class JobsADay:
    """So many jobs a day, each with so many GPUs for so many hours."""

    count: float
    gpus: int
    hours: float


@dataclass(frozen=True)
class Project:
    """Work that will come: GPUs that it holds all the time, or jobs a day; ISO dates, the last day included."""

    name: str
    team: str
    gpus: int | None
    jobs: JobsADay | None
    gpu_model: str | None
    begin: str
    end: str | None
    chance: float

    @property
    def at_once(self) -> int:
        """GPUs that it holds at once: as stated, else what its jobs hold on average, in whole jobs."""
        if self.jobs is None:
            return self.gpus or 0
        return math.ceil(self.jobs.count * self.jobs.hours / 24 - 1e-9) * self.jobs.gpus


@dataclass(frozen=True)
class CalendarEntry:
    """Days on which demand is so many times what it is on others."""

    kind: str
    name: str
    begin: str
    end: str
    factor: float


@dataclass(frozen=True)
class Announced:
    """All that a file of projects says."""

    projects: tuple[Project, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()


def read_projects(path: str | Path) -> Announced:
    r"""Read ``projects.yaml``: a list ``projects``, and a list ``calendar`` of releases and freezes.

    A project has ``name``, ``team``, ``from`` (a day, or a month as ``YYYY-MM``), and either ``gpus`` or ``jobs`` (a
    day: ``count``, ``gpus``, ``hours`` of each); it may have ``to``, ``gpu_model`` and ``chance`` (1). An entry of the
    calendar has ``kind`` (release or freeze), ``from``, ``to``, and ``factor`` on demand; it may have ``name``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "projects.yaml"
    ...     _ = file.write_text("projects:\n- {name: x, team: nlp, gpus: 64, from: 2026-03, chance: 0.7}\n")
    ...     read_projects(file).projects[0].begin
    '2026-03-01'
    """
    text = Path(path).name
    top = require_keys(read_yaml(path), ("projects", "calendar"), f"{text}, the file", 1)
    rows, days = (read_list(top, key, text) for key in ("projects", "calendar"))
    projects = tuple(_project(one, text, at) for one, at in rows)
    refuse_twice([one.name for one in projects], text, "projects")
    return Announced(projects, tuple(_entry(one, text, at) for one, at in days))


def _project(given: Any, file: str, line: int) -> Project:  # noqa: ANN401 - of a file
    values = require_keys(given, PROJECT, f"{file}, project", line, required_keys=("name", "team", "from"))
    lines = values.lines
    if ("gpus" in values) == ("jobs" in values):
        got = f"{values['name']!r} with {'both' if 'gpus' in values else 'none'}"
        raise make_file_error(file, line, "either gpus or jobs", got)
    jobs = None
    if "jobs" in values:
        inner = require_keys(values["jobs"], JOBS, f"{file}, jobs", lines["jobs"], required_keys=JOBS)
        count, gpus, hours = (read_number(inner, key, file, 1e-9, 1e6, whole=key == "gpus") for key in JOBS)
        jobs = JobsADay(count, int(gpus), hours)
    if (gpu_model := values.get("gpu_model")) is not None:
        try:
            gpu_model = resolve_gpu_model(str(gpu_model))
        except GpuPlannerError as error:
            raise make_file_error(
                file, lines["gpu_model"], "a GPU model of the catalog", f"{gpu_model!r}: {error}"
            ) from None
    begin, end = read_day_range(values, file)
    return Project(
        name=str(values["name"]), team=str(values["team"]), jobs=jobs, gpu_model=gpu_model, begin=begin, end=end,
        gpus=int(read_number(values, "gpus", file, 1, 1e6, whole=True)) if "gpus" in values else None,
        chance=read_number(values, "chance", file, 0, 1) if "chance" in values else 1.0,
    )  # fmt: skip


def _entry(given: Any, file: str, line: int) -> CalendarEntry:  # noqa: ANN401 - of a file
    values = require_keys(given, CALENDAR, f"{file}, calendar", line, required_keys=("kind", "from", "to", "factor"))
    kind = read_choice(values, "kind", file, ("release", "freeze"))
    begin, end = read_day_range(values, file)
    assert end is not None
    factor = read_number(values, "factor", file, 0, 100)
    return CalendarEntry(kind, str(values.get("name", kind)), begin, end, factor)


ALL = "all projects"


@dataclass(frozen=True)
class Waiter:
    """A job size (``kind`` is ``size``) or a ``team`` whose p95 queue wait rises with a project [min]."""

    kind: str
    name: str
    jobs: int
    added_wait_p95_minutes: float


@dataclass(frozen=True)
class ProjectAnswer:
    """What a project asks of the fleet: the wait model with the jobs of the project added.

    - ``name``, ``begin``, ``end``: Which, and its first and last day.
    - ``gpus``, ``chance``: GPUs at once, and how likely it comes.
    - ``sentence``: The answer in words.
    - ``fits``: Whether today's fleet takes it: each job size, and its own jobs, meet their wait limit in 80 % of drawn
      records; a size that is late today waits no longer than today. None where the record carries no answer; all that
      follows is then None or empty.
    - ``fits_chance``, ``fits_chance_without``: Share of drawn records in which all meet their limit on today's fleet,
      with it and without it.
    - ``gpus_more``, ``gpus_more_without``: GPUs to buy, in whole nodes, with it and without it; None where many times
      today's nodes are not enough.
    - ``order_by``: Latest day of an order that comes in time; None where nothing is to be bought.
    - ``late_days``: By how many days even an order on the last day of the record comes too late.
    - ``waits``: Who waits longer on today's fleet, the longest first.
    - ``served``: Whether nobody waits longer by more than the maximum added wait; None where it has no room at all.
    """

    name: str
    begin: str
    end: str | None
    gpus: int
    chance: float
    sentence: str
    fits: bool | None = None
    fits_chance: float | None = None
    fits_chance_without: float | None = None
    gpus_more: int | None = None
    gpus_more_without: int | None = None
    order_by: str | None = None
    late_days: int = 0
    waits: tuple[Waiter, ...] = ()
    served: bool | None = None


def answered(scenario: Scenario) -> tuple[ProjectAnswer, ...]:
    """Answer each project of a scenario, and together those that hold most GPUs at the same time.

    Examples
    --------
    >>> answered(Scenario())
    ()
    """
    if scenario.projects is None:
        return ()
    announced = read_projects(scenario.projects)
    known, asked, arena, _ = opened(scenario)
    model = wait_model(asked, arena.waits)
    groups = [[one] for one in announced.projects]
    together = overlapping(announced.projects)
    if len(together) > 1:
        groups.append(together)
    plain = [_describe(projects, len(announced.projects)) for projects in groups]
    if (reason := why_none(model)) is not None:
        return tuple(replace(one, sentence=f"{_name(one)}: no answer, {reason}.") for one in plain)
    # A size that is late today is the concern of the recommendation: with a project it must not wait longer.
    limit_s = np.maximum(*wait_limits(model, wait_target(scenario)))
    case = _Case(scenario, model, growth_of(known), announced.calendar, limit_s)
    return tuple(case.answer(one, projects) for one, projects in zip(plain, groups, strict=True))


def overlapping(projects: Sequence[Project]) -> list[Project]:
    """Those of some projects that hold most GPUs at the same time."""
    there = [
        [one for one in projects if one.begin <= other.begin and (one.end is None or other.begin <= one.end)]
        for other in projects
    ]
    return max(there, key=lambda group: sum(one.at_once for one in group), default=[])


def add_projects(model: WaitModel, projects: Sequence[Project], seed: int) -> WaitModel:
    """The model with the jobs of projects: they are a tenant and a job size of their own.

    GPUs that a project holds throughout are services of a node each, there from the begin of the record on; jobs a day
    come at random times.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    projects : sequence of Project
        At least one.
    seed : int
        Seed of the times at which jobs come.
    """
    asked, before, rng = model.asked, len(model.size), np.random.default_rng([seed, 53])
    node, seen_s = asked.usual_node, asked.seen_s
    added: list[tuple[float, float, int, bool]] = []
    for one in projects:
        if one.jobs is None:
            nodes, rest = divmod(one.at_once, node)
            added += [(-1.0, seen_s + 1, gpus, True) for gpus in [node] * nodes + [rest] * (rest > 0)]
        else:
            times = rng.uniform(0, seen_s, round(one.jobs.count * seen_s / SECONDS_PER_DAY))
            length_s = one.jobs.hours * SECONDS_PER_HOUR
            added += [(at_s, length_s, one.jobs.gpus, False) for at_s in times.tolist()]
    ready_s, run_s, gpus, services = (np.array(column) for column in zip(*added, strict=True))
    requests = NodeRequests(ready_s, ready_s, run_s, run_s, np.zeros_like(gpus), gpus, -(-gpus // node))
    joined = joined_requests(asked.granted, requests)

    rows = np.concatenate([np.arange(before), np.zeros(len(added), np.int64)])
    wider, waits = take_jobs(asked, model.waits, rows, np.zeros(len(rows)))
    wider = replace(wider, views={AS_TODAY: joined})
    wider.start_s[before:], wider.end_s[before:], wider.standing[before:] = ready_s, ready_s + run_s, services
    waits.arrival_s[before:], waits.judged[before:] = ready_s, ~services
    waits.delay_s[before:] = waits.seconds[before:] = 0.0
    waits.queue.tenant[before:] = model.waits.queue.tenant.max() + 1
    if waits.queue.rule.head_start_s is not None:
        waits.queue.rule.head_start_s[before:] = 0.0
    size = np.concatenate([model.size, np.full(len(added), len(model.names))])
    return WaitModel(wider, waits, size, (*model.names, "project"))


@dataclass(frozen=True, eq=False)
class _Case:
    """What projects are added to.

    - ``limit_s``, shape (n_draws, n_sizes): What each job size may wait in each drawn record [s].
    """

    scenario: Scenario
    model: WaitModel
    growth: FittedGrowth
    calendar: Sequence[CalendarEntry]
    limit_s: Floats

    def answer(self, plain: ProjectAnswer, projects: Sequence[Project]) -> ProjectAnswer:
        """Answer some projects as if all of them came at once."""
        model, asked, lead = self.model, self.model.asked, timedelta(days=self.scenario.purchase_lead_days)
        whole = asked.fleet.gpus[asked.fleet.capacity[:, 0, 0] > 0].sum()
        own = [one for one in projects if one.gpu_model in (None, asked.gpu_model.name) and whole]
        elsewhere = sum(one.at_once for one in projects if one not in own)
        load = self.load_during(plain)

        limit_s = self.limit_s
        without, bare = gpus_more(model, limit_s, load), share_within(model, limit_s, load)
        more, fits = without, bare
        waits: tuple[Waiter, ...] = ()
        served: bool | None = None
        if own:
            wider = add_projects(model, own, self.scenario.seed)
            loads = np.where(np.arange(len(wider.size)) < len(model.size), load, 1.0)
            target_s = wait_target(self.scenario).target_s
            own_s = np.full((len(limit_s), len(wider.sizes) - len(model.sizes)), target_s)
            limits = np.hstack([limit_s, own_s])
            more, fits = gpus_more(wider, limits, loads), share_within(wider, limits, loads)
            if sum(one.at_once for one in own) <= whole:
                waits = who_waits(model, wider)
                served = all(row.added_wait_p95_minutes <= self.scenario.max_added_wait_minutes for row in waits)

        gpus = None if more is None else more + elsewhere
        order = date.fromisoformat(plain.begin) - lead
        buys = bool(gpus)
        told = replace(
            plain, fits=gpus == 0, fits_chance=0.0 if elsewhere else fits, fits_chance_without=bare, gpus_more=gpus,
            gpus_more_without=without, order_by=order.isoformat() if buys else None,
            late_days=max((asked.end.date() - order).days, 0) if buys else 0, waits=waits, served=served,
        )  # fmt: skip
        return replace(told, sentence=_sentence(told, asked.nodes.total))

    def load_during(self, plain: ProjectAnswer) -> float:
        """Load when projects come, in times that of the record: growth that is shown, and the busiest day ahead.

        Days are looked at as long as an order takes: what a later order still brings need not be ordered now.
        """
        asked, begin = self.model.asked, date.fromisoformat(plain.begin)
        days = max((begin - asked.end.date()).days, 0) + asked.seen_s / SECONDS_PER_DAY / 2
        ahead = [begin + timedelta(days=day) for day in range(self.scenario.purchase_lead_days + 1)]
        factors = [
            math.prod(one.factor for one in self.calendar if one.begin <= day.isoformat() <= one.end)
            for day in ahead
            if plain.end is None or day.isoformat() <= plain.end
        ]
        return self.growth.load_after(days) * max(factors)


def gpus_more(model: WaitModel, limit_s: Floats, load: float | Floats) -> int | None:
    """GPUs to buy, in whole nodes, so that each job size meets its limit in 80 % of drawn records.

    None where four times the nodes that load and services ask for are not enough. Arguments as of ``smallest_units``.
    """
    asked = model.asked
    pools, services = pools_of(asked.fleet), asked.standing_gpus
    times, own = max(float(np.max(load)), 1.0), math.ceil(services / asked.usual_node)
    wide = [replace(pool, today=math.ceil(times * pool.today) + own, movable=True) for pool in pools]
    if (units := smallest_units(model, wide, limit_s, load=load)) is None:
        return None
    kept = [max(count, pool.today) for count, pool in zip(units, pools, strict=True)]
    return int(fleet_of_pools(pools, kept).gpus.sum() - asked.fleet.gpus.sum())


def share_within(model: WaitModel, limit_s: Floats, load: float | Floats) -> float:
    """Share of records, drawn ones and their own, in which each job size meets its limit on today's fleet."""
    asked = model.asked
    if asked.standing_gpus > asked.fleet.gpus.sum():
        return 0.0
    met = [
        (model.percentiles(asked.fleet, row, load=load) <= limit + TOLERANCE_S).all()
        for row, limit in enumerate(limit_s)
    ]
    return round(float(np.mean(met)), 4)


def who_waits(model: WaitModel, wider: WaitModel) -> tuple[Waiter, ...]:
    """Job sizes and teams whose p95 queue wait rises on today's fleet from one model to a wider one."""
    asked, judged = model.asked, model.waits.judged
    numbers, fleet = range(REPLAYS), asked.fleet
    before, after = ([one.replay_waits(fleet, number) for number in numbers] for one in (model, wider))
    teams = asked.jobs["tenant"].cast(pl.String).fill_null("").to_numpy()
    groups = [("size", name, model.size == number) for number, name in enumerate(model.names)]
    groups += [("team", str(name), teams == name) for name in np.unique(teams)]
    rows = []
    for kind, name, mine in groups:
        jobs = np.flatnonzero(mine & judged)
        was_s, is_s = (
            np.median([min(percentile(one[jobs]), asked.seen_s) for one in waits]) for waits in (before, after)
        )
        added = float(is_s - was_s) / SECONDS_PER_MINUTE
        # A wait that rises by less than a minute is not listed.
        if added >= 1.0:
            rows.append(Waiter(kind, name, len(jobs), round(added, 1)))
    return tuple(sorted(rows, key=lambda row: (-row.added_wait_p95_minutes, row.kind, row.name)))


def _describe(projects: Sequence[Project], announced: int) -> ProjectAnswer:
    """Name, days and GPUs of some projects, without an answer."""
    ends = [one.end for one in projects]
    names = ", ".join(one.name for one in projects)
    return ProjectAnswer(
        name=ALL if len(projects) == announced > 1 else names,
        begin=max(one.begin for one in projects),
        end=None if None in ends else min(one for one in ends if one is not None),
        gpus=sum(one.at_once for one in projects),
        chance=round(math.prod(one.chance for one in projects), 6),
        sentence="",
    )


def _name(one: ProjectAnswer) -> str:
    return f"{one.name} ({one.gpus:,} GPUs from {day_text(one.begin)}, {percent_text(one.chance)} likely)"


def _sentence(one: ProjectAnswer, fleet: int) -> str:
    text = f"{_name(one)} {'fits' if one.fits else 'does not fit'}: on {fleet:,} GPUs all job sizes meet their wait"
    without = percent_text(one.fits_chance_without or 0.0)
    text += f" limit in {percent_text(one.fits_chance or 0.0)} of drawn records, without it in {without}."
    if one.gpus_more is None:
        text += " Many times today's nodes would not be enough."
    elif one.order_by is not None:
        late = f"now, which is {one.late_days:,} days after the order date"
        when = late if one.late_days else f"by {day_text(one.order_by)}"
        even = f" ({one.gpus_more_without:,} of them even without it)" if one.gpus_more_without else ""
        text += f" Order {one.gpus_more:,} GPUs {when}{even}."
    if one.served is None:
        return text
    if not one.waits:
        return f"{text} On today's fleet no other job would wait longer."
    names = ", ".join(f"{row.name} {wait_text(row.added_wait_p95_minutes)}" for row in one.waits[:3])
    within = ", within the maximum added wait" if one.served else ""
    return f"{text} On today's fleet p95 queue waits rise{within}: {names}."
