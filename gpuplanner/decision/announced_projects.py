"""Announced projects: reading ``projects.yaml``, and whether the fleet has capacity for their jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.serialization import (
    make_file_error,
    read_choice,
    read_day_range,
    read_number,
    read_rows,
    read_yaml,
    require_keys,
)
from gpuplanner.core.units_and_number_formats import (
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    day_text,
    percent_text,
    wait_text,
)
from gpuplanner.decision.capacity_measures import find_reason_against_recommendation
from gpuplanner.decision.explained_waits import append_requests
from gpuplanner.decision.fewest_gpus_and_best_layout import WAIT_TOLERANCE_S, find_smallest_units
from gpuplanner.decision.headroom_and_growth import FittedGrowth
from gpuplanner.decision.policy_comparison import load_policy_simulation
from gpuplanner.decision.recommendation import build_wait_model, fit_submitted_growth, read_wait_target
from gpuplanner.decision.requested_jobs import AS_TODAY
from gpuplanner.decision.sharing_rules import refuse_duplicates
from gpuplanner.decision.wait_curve import CURVE_RUNS, WaitModel, join_pools, split_by_profiles, wait_limits, wait_p95
from gpuplanner.hardware.catalog import read_gpu_model
from gpuplanner.simulator.simulation_inputs import NodeRequests
from gpuplanner.simulator.simulation_state import Floats

PROJECT_KEYS = ("name", "team", "gpus", "jobs", "gpu_model", "from", "to", "chance")
"""Keys of a project in ``projects.yaml``."""
PROJECT_JOBS_KEYS = ("count", "gpus", "hours")
"""Keys of ``jobs`` (jobs a day) of a project in ``projects.yaml``."""
CALENDAR_KEYS = ("kind", "name", "from", "to", "factor")
"""Keys of a release or freeze in the list ``calendar`` of ``projects.yaml``."""


NO_END_DAYS = 36_525
"""Length of a project without an end. [days]"""


@dataclass(frozen=True)
class DailyJobs:
    """Jobs that a project submits each day.

    - ``jobs_per_day``: Jobs submitted a day.
    - ``gpus_per_job``: GPUs of each job.
    - ``hours_per_job``: Run time of each job [h].
    """

    jobs_per_day: float
    gpus_per_job: int
    hours_per_job: float


@dataclass(frozen=True)
class Project:
    """Announced work: GPUs allocated all the time, or jobs a day.

    - ``name``, ``team``: Project and team as the file names them.
    - ``gpus``: GPUs allocated all the time; None where ``jobs`` is given.
    - ``jobs``: Jobs a day; None where ``gpus`` is given.
    - ``gpu_model``: GPU model that the project requires; None: any.
    - ``begin``, ``end``: First and last day, as ISO dates; the last day is included, None: no end.
    - ``chance``: Probability that the project starts. [0-1]
    """

    name: str
    team: str
    gpus: int | None
    jobs: DailyJobs | None
    gpu_model: str | None
    begin: str
    end: str | None
    chance: float

    @property
    def concurrent_gpus(self) -> int:
        """GPUs that the project uses at once: as stated, else the mean of its jobs, rounded up to complete jobs."""
        if self.jobs is None:
            return self.gpus or 0
        return math.ceil(self.jobs.jobs_per_day * self.jobs.hours_per_job / 24 - 1e-9) * self.jobs.gpus_per_job


@dataclass(frozen=True)
class CalendarEntry:
    """Days on which the demand differs from usual, such as a release or a freeze.

    - ``kind``: ``release`` or ``freeze``.
    - ``name``: Name of the event.
    - ``begin``, ``end``: First and last day, as ISO dates; the last day is included.
    - ``factor``: Demand on these days over usual demand.
    """

    kind: str
    name: str
    begin: str
    end: str
    factor: float


@dataclass(frozen=True)
class AnnouncedDemand:
    """Projects and calendar of a ``projects.yaml``."""

    projects: tuple[Project, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()


def read_projects(path: str | Path) -> AnnouncedDemand:
    r"""Read ``projects.yaml``: a list ``projects``, and a list ``calendar`` of releases and freezes.

    A project has ``name``, ``team``, ``from`` (a day, or a month as ``YYYY-MM``), and either ``gpus`` or ``jobs`` (a
    day: ``count``, ``gpus``, ``hours`` of each); it may have ``to``, ``gpu_model`` and ``chance`` (1). An entry of the
    calendar has ``kind`` (release or freeze), ``from``, ``to``, and ``factor`` on demand; it may have ``name``.

    Parameters
    ----------
    path : str or Path
        The YAML file.

    Returns
    -------
    AnnouncedDemand

    Raises
    ------
    ScenarioError
        If a key, a date or a number is wrong, with the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "projects.yaml"
    ...     _ = file.write_text("projects:\n- {name: x, team: nlp, gpus: 64, from: 2026-03, chance: 0.7}\n")
    ...     read_projects(file).projects[0].begin
    '2026-03-01'
    """
    file = Path(path).name
    document = require_keys(read_yaml(path), ("projects", "calendar"), f"{file}, the file", 1)
    keys_by_section = {
        "projects": (PROJECT_KEYS, ("name", "team", "from")),
        "calendar": (CALENDAR_KEYS, ("kind", "from", "to", "factor")),
    }
    entries, days = read_rows(document, keys_by_section, file)
    projects = tuple(_read_project(values, file, line) for values, line in entries)
    refuse_duplicates([project.name for project in projects], file, "projects")
    return AnnouncedDemand(projects, tuple(_read_calendar_entry(values, file) for values, _ in days))


def tabulate_project_jobs(projects: Sequence[Project], tz: str) -> pl.DataFrame:
    """Tabulate projects as announced jobs, with the GPUs that they use on average given their probability.

    Parameters
    ----------
    projects : sequence of Project
        Projects of a ``projects.yaml``.
    tz : str
        Time zone of their days.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``start_time``, ``end_time`` and ``gpus``, as
        :func:`~gpuplanner.forecast.growth_and_announced_demand.read_announced` reads them.

    Examples
    --------
    >>> project = Project("x", "nlp", 64, None, None, "2026-03-01", "2026-03-02", 0.5)
    >>> tabulate_project_jobs([project], "UTC").select("tenant", "gpus").rows()
    [('nlp', 32.0)]
    """
    rows = [
        (project.team, *project_span(project, tz), project.chance * project.concurrent_gpus) for project in projects
    ]
    instant = pl.Datetime("us", "UTC")
    schema = pl.Schema({"tenant": pl.String(), "start_time": instant, "end_time": instant, "gpus": pl.Float64()})
    return pl.DataFrame(rows, schema=schema, orient="row")


def project_span(project: Project, tz: str) -> tuple[datetime, datetime]:
    """Return the first instant of a project and the first one after it; without an end, a century later."""
    begin, end = (
        None if day is None else datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(tz))
        for day in (project.begin, project.end)
    )
    assert begin is not None
    last = begin + timedelta(days=NO_END_DAYS) if end is None else end + timedelta(days=1)
    return begin.astimezone(UTC), last.astimezone(UTC)


def _read_project(values: Any, file: str, line: int) -> Project:  # noqa: ANN401 - of a file
    """Read one project of the file; a wrong value is a ``ScenarioError`` with the line."""
    if ("gpus" in values) == ("jobs" in values):
        got = f"{values['name']!r} with {'both' if 'gpus' in values else 'none'}"
        raise make_file_error(file, line, "either gpus or jobs", got)
    jobs = None
    if "jobs" in values:
        keys = PROJECT_JOBS_KEYS
        job_values = require_keys(values["jobs"], keys, f"{file}, jobs", values.lines["jobs"], required_keys=keys)
        count, gpus, hours = (read_number(job_values, key, file, 1e-9, 1e6, whole=key == "gpus") for key in keys)
        jobs = DailyJobs(count, int(gpus), hours)
    gpu_model = None if values.get("gpu_model") is None else read_gpu_model(values, file)
    begin, end = read_day_range(values, file)
    return Project(
        name=str(values["name"]), team=str(values["team"]), jobs=jobs, gpu_model=gpu_model, begin=begin, end=end,
        gpus=int(read_number(values, "gpus", file, 1, 1e6, whole=True)) if "gpus" in values else None,
        chance=read_number(values, "chance", file, 0, 1) if "chance" in values else 1.0,
    )  # fmt: skip


def _read_calendar_entry(values: Any, file: str) -> CalendarEntry:  # noqa: ANN401 - of a file
    """Read one entry of the calendar; a wrong value is a ``ScenarioError`` with the line."""
    kind = read_choice(values, "kind", file, ("release", "freeze"))
    begin, end = read_day_range(values, file)
    factor = read_number(values, "factor", file, 0, 100)
    return CalendarEntry(kind, str(values.get("name", kind)), begin, end or date.max.isoformat(), factor)


ALL_PROJECTS_TITLE = "all projects"
"""Name of the assessment of all concurrent projects together, beside those of single projects."""


@dataclass(frozen=True)
class DelayedGroup:
    """Job size (``kind`` is ``size``) or team (``kind`` is ``team``) whose p95 queue wait rises when a project starts.

    - ``name``: Name of the job size or of the team.
    - ``jobs``: Jobs of the group in the record.
    - ``added_wait_p95_minutes``: Increase of its p95 queue wait. [min]
    """

    kind: str
    name: str
    jobs: int
    added_wait_p95_minutes: float


@dataclass(frozen=True)
class ProjectAnswer:
    """Whether the fleet has capacity for a project: result of the wait model with the jobs of the project added.

    - ``name``, ``begin``, ``end``: Name of the project, its first and its last day.
    - ``gpus``, ``chance``: GPUs at once, and the probability that the project starts.
    - ``sentence``: The answer as a sentence.
    - ``fits``: Whether today's fleet has capacity: each job size, and the jobs of the project, meet their wait limit in
      80 % of resampled weeks; a size that misses its limit today waits no longer than today. None where the record
      allows no answer; all fields below are then None or empty.
    - ``fits_chance``, ``fits_chance_without``: Share of resampled weeks in which all job sizes meet their limit on
      today's fleet, with the project and without it. [0-1]
    - ``gpus_more``, ``gpus_more_without``: GPUs to buy, in full nodes, with the project and without it; None where four
      times today's nodes are not enough.
    - ``order_by``: Latest order date for delivery before the project begins; None where nothing is to be bought.
    - ``late_days``: Days by which an order on the last day of the record is delivered too late.
    - ``waits``: Job sizes and teams that wait longer on today's fleet, the largest increase first.
    - ``served``: Whether no increase is above the maximum added wait; None where the project does not fit at all.
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
    waits: tuple[DelayedGroup, ...] = ()
    served: bool | None = None


def answer_projects(scenario: Scenario) -> tuple[ProjectAnswer, ...]:
    """Assess each project of a scenario, and the projects with the highest concurrent GPUs together.

    Parameters
    ----------
    scenario : Scenario
        Data, fleet and the file of projects.

    Returns
    -------
    tuple of ProjectAnswer
        Projects in the order of the file, then the combination of concurrent projects, where there are several.

    Examples
    --------
    >>> answer_projects(Scenario())
    ()
    """
    if scenario.projects is None:
        return ()
    announced = read_projects(scenario.projects)
    job_history, inputs, replayed_jobs, _ = load_policy_simulation(scenario)
    model = build_wait_model(inputs, replayed_jobs.waits)
    groups = [[project] for project in announced.projects]
    concurrent = find_concurrent_projects(announced.projects)
    if len(concurrent) > 1:
        groups.append(concurrent)
    answers = [_describe_concurrent_projects(projects, len(announced.projects)) for projects in groups]
    if (reason := find_reason_against_recommendation(model)) is not None:
        return tuple(replace(answer, sentence=f"{_format_project(answer)}: no answer, {reason}.") for answer in answers)
    # The recommendation covers a size that misses its limit today: with a project it must not wait longer.
    limit_s = np.maximum(*wait_limits(model, read_wait_target(scenario)))
    assessment = _FleetAssessment(scenario, model, fit_submitted_growth(job_history), announced.calendar, limit_s)
    return tuple(assessment.answer(answer, projects) for answer, projects in zip(answers, groups, strict=True))


def find_concurrent_projects(projects: Sequence[Project]) -> list[Project]:
    """Find the projects that run at the same time and have the most GPUs in total."""

    def runs_on(project: Project, day: str) -> bool:
        return project.begin <= day and (project.end is None or day <= project.end)

    groups = [[project for project in projects if runs_on(project, first.begin)] for first in projects]
    return max(groups, key=lambda group: sum(project.concurrent_gpus for project in group), default=[])


def add_projects(model: WaitModel, projects: Sequence[Project], seed: int) -> WaitModel:
    """Add the jobs of projects to a wait model, as a tenant and a job size of their own.

    GPUs that a project has all the time become services that run through the record, each on one node; jobs a day
    arrive at random times.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    projects : sequence of Project
        At least one.
    seed : int
        Seed of the arrival times.

    Returns
    -------
    WaitModel
        Record and projects.
    """
    inputs, rng = model.inputs, np.random.default_rng([seed, 53])
    gpus_per_node, observed_s = inputs.node_gpus, inputs.observed_s
    added_jobs: list[tuple[float, float, int, bool]] = []
    for project in projects:
        if project.jobs is None:
            full_nodes, remaining_gpus = divmod(project.concurrent_gpus, gpus_per_node)
            services = [gpus_per_node] * full_nodes + [remaining_gpus] * (remaining_gpus > 0)
            added_jobs += [(-1.0, observed_s + 1, gpus, True) for gpus in services]
        else:
            times = rng.uniform(0, observed_s, round(project.jobs.jobs_per_day * observed_s / SECONDS_PER_DAY))
            length_s = project.jobs.hours_per_job * SECONDS_PER_HOUR
            added_jobs += [(at_s, length_s, project.jobs.gpus_per_job, False) for at_s in times.tolist()]
    ready_s, run_s, gpus, is_service = (np.array(column) for column in zip(*added_jobs, strict=True))
    requests = NodeRequests(ready_s, ready_s, run_s, run_s, np.zeros_like(gpus), gpus, -(-gpus // gpus_per_node))
    extended_inputs, waits = append_requests(inputs, model.waits, requests, is_service)
    extended_inputs = replace(extended_inputs, views={AS_TODAY: extended_inputs.requests})
    size = np.concatenate([model.size_of_job, np.full(len(added_jobs), len(model.size_names))])
    return WaitModel(extended_inputs, waits, size, (*model.size_names, "project"))


@dataclass(frozen=True, eq=False)
class _FleetAssessment:
    """Wait model of a fleet to which projects are added.

    - ``scenario``: Maximum added wait, purchase lead time and seed.
    - ``model``: Wait model of the record.
    - ``growth``: Fitted growth of the load.
    - ``calendar``: Releases and freezes.
    - ``limit_s``, shape (n_draws, n_sizes): Maximum wait of each job size in each resampled record [s].
    """

    scenario: Scenario
    model: WaitModel
    growth: FittedGrowth
    calendar: Sequence[CalendarEntry]
    limit_s: Floats

    def answer(self, answer: ProjectAnswer, projects: Sequence[Project]) -> ProjectAnswer:
        """Assess projects that all start at once.

        Parameters
        ----------
        answer : ProjectAnswer
            Name, days and GPUs of the projects.
        projects : sequence of Project
            The projects.

        Returns
        -------
        ProjectAnswer
            The same with fit, GPUs to buy, order date and delayed groups.
        """
        model, inputs, lead = self.model, self.model.inputs, timedelta(days=self.scenario.purchase_lead_days)
        full_gpus = inputs.fleet.gpus[inputs.fleet.capacity[:, 0, 0] > 0].sum()
        hosted = [project for project in projects if project.gpu_model in (None, inputs.gpu_model.name) and full_gpus]
        elsewhere = sum(project.concurrent_gpus for project in projects if project not in hosted)
        load = self.load_during(answer)

        limit_s = self.limit_s
        needed_without, fits_without = count_gpus_to_buy(model, limit_s, load), measure_fit_share(model, limit_s, load)
        needed, fits = needed_without, fits_without
        waits: tuple[DelayedGroup, ...] = ()
        served: bool | None = None
        if hosted:
            wider_model = add_projects(model, hosted, self.scenario.seed)
            load_by_job = np.where(np.arange(len(wider_model.size_of_job)) < len(model.size_of_job), load, 1.0)
            target_s = read_wait_target(self.scenario).target_s
            project_limit_s = np.full((len(limit_s), len(wider_model.sizes) - len(model.sizes)), target_s)
            all_limits_s = np.hstack([limit_s, project_limit_s])
            needed = count_gpus_to_buy(wider_model, all_limits_s, load_by_job)
            fits = measure_fit_share(wider_model, all_limits_s, load_by_job)
            if sum(project.concurrent_gpus for project in hosted) <= full_gpus:
                waits = find_delayed_groups(model, wider_model)
                served = all(row.added_wait_p95_minutes <= self.scenario.max_added_wait_minutes for row in waits)

        to_buy = None if needed is None else needed + elsewhere
        order_date = date.fromisoformat(answer.begin) - lead

        result = replace(
            answer, fits=to_buy == 0, fits_chance=0.0 if elsewhere else fits, fits_chance_without=fits_without,
            gpus_more=to_buy, gpus_more_without=needed_without, order_by=order_date.isoformat() if to_buy else None,
            late_days=max((inputs.end.date() - order_date).days, 0) if to_buy else 0, waits=waits, served=served,
        )  # fmt: skip
        return replace(result, sentence=_format_answer(result, inputs.nodes.total))

    def load_during(self, answer: ProjectAnswer) -> float:
        """Expected load when the projects start, over the load of the record: growth times the calendar factor.

        The calendar factor is the highest within the purchase lead time from the first day on: a later order covers
        demand after it.
        """
        inputs, begin = self.model.inputs, date.fromisoformat(answer.begin)
        days = max((begin - inputs.end.date()).days, 0) + inputs.observed_s / SECONDS_PER_DAY / 2
        dates = [begin + timedelta(days=day) for day in range(self.scenario.purchase_lead_days + 1)]
        factors = [
            math.prod(entry.factor for entry in self.calendar if entry.begin <= day.isoformat() <= entry.end)
            for day in dates
            if answer.end is None or day.isoformat() <= answer.end
        ]
        return self.growth.load_factor_after(days) * max(factors)


def count_gpus_to_buy(model: WaitModel, limit_s: Floats, load: float | Floats) -> int | None:
    """Count the GPUs to buy, in full nodes, so that each job size meets its limit in 80 % of resampled weeks.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    limit_s : array of float, shape (1 + n_draws, n_sizes)
        Maximum wait of each job size in the record and in each resampled record [s].
    load : float or array of float, shape (n_jobs,)
        How many times each job arrives; 1: as observed.

    Returns
    -------
    int or None
        GPUs; None where four times the nodes that load and services require are not enough.
    """
    inputs = model.inputs
    pools, service_gpus = split_by_profiles(inputs.fleet), inputs.service_gpus
    load_factor, service_nodes = max(float(np.max(load)), 1.0), math.ceil(service_gpus / inputs.node_gpus)
    larger = [replace(pool, today=math.ceil(load_factor * pool.today) + service_nodes, movable=True) for pool in pools]
    if (units := find_smallest_units(model, larger, limit_s, load=load)) is None:
        return None
    final_units = [max(count, pool.today) for count, pool in zip(units, pools, strict=True)]
    return int(join_pools(pools, final_units).gpus.sum() - inputs.fleet.gpus.sum())


def measure_fit_share(model: WaitModel, limit_s: Floats, load: float | Floats) -> float:
    """Compute the share of observed and resampled weeks in which each job size meets its limit on today's fleet."""
    inputs = model.inputs
    if inputs.service_gpus > inputs.fleet.gpus.sum():
        return 0.0
    record_fits = [
        (model.percentiles(inputs.fleet, row, load=load) <= limit + WAIT_TOLERANCE_S).all()
        for row, limit in enumerate(limit_s)
    ]
    return round(float(np.mean(record_fits)), 4)


def find_delayed_groups(model: WaitModel, wider_model: WaitModel) -> tuple[DelayedGroup, ...]:
    """List job sizes and teams whose p95 queue wait rises on today's fleet when projects are added to the model."""
    inputs, is_evaluated = model.inputs, model.waits.is_evaluated
    fleet, observed_s = inputs.fleet, inputs.observed_s
    before = [model.replay_waits(fleet, number) for number in range(CURVE_RUNS)]
    after = [wider_model.replay_waits(fleet, number) for number in range(CURVE_RUNS)]
    teams = inputs.jobs["tenant"].cast(pl.String).fill_null("").to_numpy()
    groups = [("size", name, model.size_of_job == number) for number, name in enumerate(model.size_names)]
    groups += [("team", str(name), teams == name) for name in np.unique(teams)]
    delayed = []
    for kind, name, in_group in groups:
        jobs = np.flatnonzero(in_group & is_evaluated)
        p95_s = [np.median([min(wait_p95(replay[jobs]), observed_s) for replay in waits]) for waits in (before, after)]
        added_minutes = float(p95_s[1] - p95_s[0]) / SECONDS_PER_MINUTE
        # A wait that rises by less than a minute is not listed.
        if added_minutes >= 1.0:
            delayed.append(DelayedGroup(kind, name, len(jobs), round(added_minutes, 1)))
    return tuple(sorted(delayed, key=lambda row: (-row.added_wait_p95_minutes, row.kind, row.name)))


def _describe_concurrent_projects(projects: Sequence[Project], n_announced: int) -> ProjectAnswer:
    """Make the answer, not assessed yet, for the days on which all these projects run.

    Their GPUs are summed and their probabilities multiplied.
    """
    ends = [project.end for project in projects]
    names = ", ".join(project.name for project in projects)
    return ProjectAnswer(
        name=ALL_PROJECTS_TITLE if len(projects) == n_announced > 1 else names,
        begin=max(project.begin for project in projects),
        end=None if None in ends else min(project for project in ends if project is not None),
        gpus=sum(project.concurrent_gpus for project in projects),
        chance=round(math.prod(project.chance for project in projects), 6),
        sentence="",
    )


def _format_project(answer: ProjectAnswer) -> str:
    """Format a project as its name, GPUs, first day and probability."""
    return f"{answer.name} ({answer.gpus:,} GPUs from {day_text(answer.begin)}, {percent_text(answer.chance)} likely)"


def _format_answer(answer: ProjectAnswer, fleet_gpus: int) -> str:
    """Format the assessment of a project as sentences."""
    fits = "fits" if answer.fits else "does not fit"
    text = f"{_format_project(answer)} {fits}: on {fleet_gpus:,} GPUs all job sizes meet their wait"
    without = percent_text(answer.fits_chance_without or 0.0)
    text += f" limit in {percent_text(answer.fits_chance or 0.0)} of resampled weeks, without it in {without}."
    if answer.gpus_more is None:
        text += " Many times today's nodes would not be enough."
    elif answer.order_by is not None:
        late = f"now, which is {answer.late_days:,} days after the order date"
        order_time = late if answer.late_days else f"by {day_text(answer.order_by)}"
        without_it = f" ({answer.gpus_more_without:,} of them even without it)" if answer.gpus_more_without else ""
        text += f" Order {answer.gpus_more:,} GPUs {order_time}{without_it}."
    if answer.served is None:
        return text
    if not answer.waits:
        return f"{text} On today's fleet no other job would wait longer."
    names = ", ".join(f"{row.name} {wait_text(row.added_wait_p95_minutes)}" for row in answer.waits[:3])
    within = ", within the maximum added wait" if answer.served else ""
    return f"{text} On today's fleet p95 queue waits rise{within}: {names}."
