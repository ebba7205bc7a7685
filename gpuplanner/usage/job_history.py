"""The history that a plan is made from: jobs, requests, right sizes, pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.core.privacy import merge_small_groups
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import WHOLE_GPU, Jobs
from gpuplanner.core.stage_cache import data_folder, stage
from gpuplanner.hardware.catalog import board_names, whole_board_names
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.quarantine import believed
from gpuplanner.usage.installed_capacity import installed
from gpuplanner.usage.job_classes import class_by_shape, classify
from gpuplanner.usage.observed_nodes import TodaysNodes, numbered_nodes
from gpuplanner.usage.planned_fleet import PlannedFleet, planned_fleet
from gpuplanner.usage.requested_demand import resolve_requests
from gpuplanner.usage.rightsizing import HEADROOM, keep_requests, rightsize
from gpuplanner.usage.run_times import impute_run_times

VIEWS = ("whole", "requested", "rightsized")
"""Three ways to read the same jobs: whole GPUs only; slices as asked for; slices as needed."""

MOST_JOBS = 1 << 20
"""Jobs that a study holds at once, if the month and the recent past that it looks at have no more."""
MOST_PLAYED = 400_000
"""Jobs on which ways to run the fleet are played, if a week has no more."""


@dataclass(frozen=True, eq=False)
class History:
    """Everything that the walk knows of the past.

    - ``trace``: As ingested.
    - ``jobs``: ``schemas.Jobs`` as known at ``plan_start``, with ``key``, ``run_s``, ``run_known``.
    - ``views``: For each of :data:`VIEWS` the jobs with ``profile``, ``instances``, ``sms_needed``.
    - ``rightsizing``: What each job asked for and needs, with the evidence.
    - ``undecided``: Share of the jobs whose class neither source nor rule nor shape gives: of them, requests stand.
    - ``like_others``: How sure the classes are that follow from size, duration and hour alone [0-1]; None where none
      does.
    - ``begin``, ``end``: Window of ledger and cost: what was observed of the month, to the instant.
    - ``recent``: Start of the history that forecasts and bootstraps use, a full hour; it ends at ``plan_start``.
    - ``plan_start``: First instant of the plan, the full hour at or after ``end``. What runs at the end of the
      observation is taken to run until then.
    - ``fleet``: Board and GPUs that are planned for.
    """

    trace: Dataset
    jobs: pl.DataFrame
    views: dict[str, pl.DataFrame]
    rightsizing: pl.DataFrame
    undecided: float
    like_others: float | None
    begin: datetime
    end: datetime
    recent: datetime
    plan_start: datetime
    fleet: PlannedFleet

    @cached_property
    def shared_share(self) -> float:
        """Share of the GPU-hours of jobs that hold a part of a GPU that is no MIG instance [0-1]."""
        hours = pl.col("gpus") * pl.col("run_s")
        shared = (pl.col("gpus") % 1 > 0) & pl.col("instances").is_null()
        every, part = self.jobs.select(hours.sum(), hours.filter(shared).sum().alias("shared")).row(0)
        return float(part / every) if every else 0.0

    @cached_property
    def played_since(self) -> datetime:
        """Begin of the time on which ways to run the fleet are played: the recent past, or the last days of it.

        Each way is played again and again: of more than :data:`MOST_PLAYED` jobs the latest do, and a week at least.
        """
        came = self.jobs.filter(pl.col("submit_time") >= self.recent)["submit_time"].sort()
        if len(came) <= MOST_PLAYED:
            return self.recent
        days = (self.plan_start - came[-MOST_PLAYED]) // timedelta(days=1)
        return max(self.recent, self.plan_start - timedelta(days=max(days, 7)))

    def how_played(self) -> list[str]:
        """A sentence for who reads what was played, where it is less than the recent past."""
        if self.played_since == self.recent:
            return []
        days, came = (self.plan_start - self.played_since).days, self.jobs["submit_time"] >= self.played_since
        played = f"policies were simulated on its last {days} days, of {came.sum():,} jobs."
        return [f"The recent past has more than {MOST_PLAYED:,} jobs: {played}"]


def load_trace(data: str, *, columns: Sequence[str] | None = None) -> Dataset:
    """Open the folder that a scenario names, or some columns of its jobs; ``"sample"`` is the shipped one.

    Jobs in quarantine are left out: no figure of a study is made of them.
    """
    wanted = None if columns is None else list(dict.fromkeys([*columns, "quarantined"]))
    trace = open_dataset(data_folder(data), columns=wanted)
    return trace.with_tables(jobs=believed(trace.jobs)) if "jobs" in trace.tables else trace


def long_trace(data: str) -> Dataset:
    """The same with its jobs on disk, to be read some at a time."""
    return open_dataset(data_folder(data), long=True)


def grouped(trace: Dataset, smallest: int) -> Dataset:
    """A trace as it may be shown to others: tenants of fewer than `smallest` people stand together; 0: as it is.

    Examples
    --------
    >>> grouped(load_trace("sample"), 1000).jobs["tenant"].unique().to_list()
    ['(small groups)']
    """
    if not smallest:
        return trace
    if trace.kept is not None:
        return replace(trace, kept=trace.kept.merged(smallest))
    return trace.with_tables(jobs=merge_small_groups(trace.jobs, "tenant", "user", smallest=smallest))


def study_trace(
    scenario: Scenario, *, columns: Sequence[str] | None = None, at: datetime | None = None, days: int = 0
) -> Dataset:
    """The trace of a scenario, or some columns of its jobs: of a long list the latest, as if no others were there.

    Of more than :data:`MOST_JOBS` jobs those are left that were there since the month of the scenario began, or the
    recent past of its plan (or so many days), or the last so many jobs before its end; the source then states so
    (``shortened``).
    """
    trace = long_trace(scenario.data)
    known = trace.long.merged(scenario.smallest_group) if trace.has_jobs else None
    if known is None:
        return trace
    if known.height <= MOST_JOBS:
        return replace(trace, kept=None, tables={"jobs": _as_text(known.rows(columns)), **trace.tables})
    month = scenario.month_span()
    begin, end = begin_of(trace), end_of(trace)
    until = min(end, at or (end if month is None else month[1]))
    recent = _next_hour(until) - timedelta(days=max(scenario.history_days, days))
    came = known.believed(["submit_time"]).filter(pl.col("submit_time") < until)
    rows = came.select(pl.len()).collect(engine="streaming").item()
    latest = came.slice(max(rows - MOST_JOBS, 0), 1).collect(engine="streaming")["submit_time"].to_list()
    since = max(begin, _floor_hour(min([recent, *latest, *(month or ())])))
    jobs = _as_text(known.there(since, until, columns or Jobs.column_names()))
    told = (
        f"Of {known.height:,} jobs, the {jobs.height:,} that were there from {since:%Y-%m-%d} to {until:%Y-%m-%d} are "
        "looked at: figures are of that time. Name a month for another."
    )
    return trace.shortened(jobs, since, until, told)


def _as_text(jobs: pl.DataFrame) -> pl.DataFrame:
    return jobs.cast({name: pl.String for name, dtype in jobs.schema.items() if dtype == pl.Categorical})


@stage
def history(scenario: Scenario) -> History:
    """Read the trace and take the view of the planner at the end of the month."""
    trace = study_trace(scenario)
    begin, end = _window(scenario, trace)
    plan_start = _next_hour(end)
    fleet = planned_fleet(scenario, trace, begin, end)
    known = fleet.jobs_of(_as_known(trace.jobs, plan_start).filter(pl.col("gpus") > 0))
    jobs = impute_run_times(known, plan_start, seed=scenario.seed)
    if jobs.is_empty():
        where, todo = f"scenario, data {scenario.data!r}", "Choose another month."
        raise ScenarioError(where, f"jobs with GPUs before {end:%Y-%m-%d}", "none", todo)
    classes = classify(jobs, samples=trace.samples, tz=scenario.tz)["job_class"]
    named = class_by_shape(jobs, classes, tz=scenario.tz)
    # Without profiles there is nothing to choose from, and without the SMs of the board nothing to choose by.
    if fleet.can_be_cut and fleet.gpu_model.sms is not None:
        sizes = rightsize(jobs.with_columns(named["job_class"]), fleet.gpu_model, samples=trace.samples)
    else:
        sizes = keep_requests(jobs, fleet.gpu_model)
    views = _views(jobs, sizes, scenario, fleet.gpu_model)
    recent = max(_floor_hour(begin_of(trace)), plan_start - timedelta(days=scenario.history_days))
    like = named["confidence"].drop_nulls()
    return History(
        trace=trace,
        jobs=jobs,
        views=views,
        rightsizing=sizes,
        undecided=named["job_class"].null_count() / jobs.height,
        like_others=None if like.is_empty() else float(np.mean(like.to_numpy())),
        begin=begin,
        end=end,
        recent=recent,
        plan_start=plan_start,
        fleet=fleet,
    )


def begin_of(trace: Dataset) -> datetime:
    """First instant of the observation."""
    return trace.stated.span[0]


def end_of(trace: Dataset) -> datetime:
    """First instant after the observation."""
    return trace.stated.span[1]


def months_from(first: str, last: str) -> list[str]:
    """Calendar months from one to another, both of them included; none where the last is before the first.

    Examples
    --------
    >>> months_from("2026-11", "2027-01")
    ['2026-11', '2026-12', '2027-01']
    """
    begin, end = (12 * int(text[:4]) + int(text[5:]) - 1 for text in (first, last))
    return [f"{number // 12:04d}-{number % 12 + 1:02d}" for number in range(begin, end + 1)]


def _window(scenario: Scenario, trace: Dataset) -> tuple[datetime, datetime]:
    """The month, as far as it was observed."""
    begin, end = begin_of(trace), end_of(trace)
    span = scenario.month_span()
    if span is None:
        return begin, end
    if span[1] <= begin or span[0] >= end:
        where, todo = f"month {scenario.month} ({scenario.tz})", "Choose a month that the data cover."
        expected = f"a month from {begin:%Y-%m} to {end - timedelta(microseconds=1):%Y-%m}"
        raise ScenarioError(where, expected, "no observation in it", todo)
    return max(begin, span[0]), min(end, span[1])


def _as_known(jobs: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Jobs as they stood at ``now``: what happened later is not known yet."""
    ended = pl.col("end_time") <= now
    begun = pl.col("start_time") < now
    later = pl.col("end_time") > now
    return jobs.filter(pl.col("submit_time") < now).with_columns(
        start_time=pl.when(begun).then("start_time"),
        end_time=pl.when(ended).then("end_time"),
        sm_activity=pl.when(~later.fill_null(False)).then("sm_activity"),
        memory_peak_gib=pl.when(~later.fill_null(False)).then("memory_peak_gib"),
        state=pl.when(later & begun)
        .then(pl.lit("RUNNING"))
        .when(pl.col("start_time") >= now)
        .then(pl.lit("PENDING"))
        .otherwise(pl.col("state").cast(pl.String))
        .cast(jobs.schema["state"]),
        key=pl.format("{}/{}", "job_id", "attempt"),
    )


def _views(jobs: pl.DataFrame, sizes: pl.DataFrame, scenario: Scenario, gpu_model: GpuModel) -> dict[str, pl.DataFrame]:
    # How fast a job runs on a slice depends on what it was seen to use, so the headroom is taken off again;
    # a need that was judged by other jobs says which slice to give, not how fast this job would run there.
    used = (
        pl.when(pl.col("evidence") == "telemetry")
        .then("sms_needed")
        .when(pl.col("evidence") == "job statistics")
        .then(pl.col("sms_needed") / (1 + HEADROOM))
    )
    needed = sizes.select("profile_needed", needed_instances="instances", sms=used)
    asked = pl.concat([resolve_requests(jobs, gpu_model), needed], how="horizontal")
    gpus, whole = pl.col("gpus").ceil().cast(pl.Int32), pl.lit(WHOLE_GPU)
    sized = asked.with_columns(sms_needed="sms")
    return {
        "whole": asked.with_columns(profile=whole, instances=gpus, sms_needed=pl.lit(None, pl.Float64)),
        "requested": sized,
        "rightsized": sized.with_columns(profile="profile_needed", instances="needed_instances"),
    }


def _floor_hour(time: datetime) -> datetime:
    return time.replace(minute=0, second=0, microsecond=0)


def _next_hour(time: datetime) -> datetime:
    floor = _floor_hour(time)
    return floor if floor == time else floor + timedelta(hours=1)


def boards_at_hand(scenario: Scenario) -> dict[str, int | None]:
    """Boards and GPUs of a scenario's fleet: of its data, and of its own board where it plans for another.

    Examples
    --------
    >>> boards_at_hand(Scenario())
    {'H100-80GB-SXM5': 64}
    """
    return boards_of_trace(study_trace(scenario), scenario.gpu_model, where=scenario.data)


def boards_of_trace(trace: Dataset, gpu_model: str | None = None, *, where: str = "the trace") -> dict[str, int | None]:
    """Boards and GPUs that are installed in a trace, all of them as ``board`` where one is named."""
    there = installed(trace, begin_of(trace), end_of(trace))
    found: dict[str, int | None] = {}
    for part in there.pools:
        name = gpu_model or part.gpu_model
        if name is not None and part.gpus and name in (*board_names(), *whole_board_names()):
            found[name] = (found.get(name) or 0) + part.gpus
    if not found:
        expected, todo = "data with GPU models of the catalog", "Give them with --gpus MODEL=COUNT."
        raise ScenarioError(f"GPU models of {where}", expected, there.listed, todo)
    return found


@dataclass(frozen=True)
class FleetPools:
    """A fleet as pools that are planned and judged each by itself.

    - ``pools``: By name, the scenario of each pool that jobs held, most GPUs first; the one scenario itself where
      there is nothing to tell apart.
    - ``idle``: GPUs of the boards that no job held, by name: installed, in the ledger, and not planned.
    """

    pools: Mapping[str, Scenario]
    idle: Mapping[str, int]

    @property
    def several(self) -> bool:
        """Whether there is more than one pool."""
        return len(self.pools) > 1


def pools_of(scenario: Scenario) -> FleetPools:
    """The pools of a scenario's fleet: one for each board that jobs can be told apart by.

    A scenario that names a board, a pool or a number of nodes asks for one pool, and gets it.

    Examples
    --------
    >>> found = pools_of(Scenario())
    >>> found.several, list(found.pools), found.idle
    (False, ['H100-80GB-SXM5'], {})
    """
    fleet = history(scenario).fleet
    there = fleet.installed
    whole = scenario.gpu_model is not None or scenario.pool is not None or scenario.nodes > 0
    busy = [str(pool.gpu_model) for pool in there.pools if pool.gpu_model in there.busy]
    if whole or len(there.pools) < 2 or not busy:
        return FleetPools({fleet.name or scenario.name: scenario}, {})
    idle = {str(pool.gpu_model): pool.gpus for pool in there.pools if pool.gpu_model not in there.busy}
    # The largest pool is the one that the scenario has by itself: nothing is read or computed twice for it.
    pools = {gpu_model: scenario if gpu_model == fleet.pool else scenario.but(pool=gpu_model) for gpu_model in busy}
    return FleetPools(pools, idle)


def clusters_of(scenarios: Sequence[Scenario]) -> FleetPools:
    """The pools of several clusters, each a dataset of its own: named ``cluster/board``, whatever boards they share.

    Two clusters that are the same dataset, or bear one name, are a ``ScenarioError``.
    """
    places = [str(Path(one.data).resolve()) for one in scenarios]
    names = [one.name for one in scenarios]
    for what, listed in (("dataset", places), ("name", names)):
        twice = sorted({one for one in listed if listed.count(one) > 1})
        if twice:
            todo = "Give each cluster once, in a folder of its own name."
            raise ScenarioError("fleet", f"clusters that differ in their {what}", examples(twice), todo)
    found = [(one.name, pools_of(one)) for one in scenarios]
    return FleetPools(
        {f"{name}/{gpu_model}": own for name, fleet in found for gpu_model, own in fleet.pools.items()},
        {f"{name}/{gpu_model}": gpus for name, fleet in found for gpu_model, gpus in fleet.idle.items()},
    )


def pool_table(fleet: FleetPools) -> pl.DataFrame:
    """What there is, pool by pool: nodes and GPUs, how many are cut, and the jobs that are planned for."""
    rows = []
    for name, own in fleet.pools.items():
        known = history(own)
        one = known.fleet
        rows.append((name, len(one.today.names), one.gpus, one.cut_gpus, known.jobs.height, one.can_be_cut))
    rows += [(name, 0, gpus, 0, 0, False) for name, gpus in fleet.idle.items()]
    counts = dict.fromkeys(("nodes", "gpus", "cut_gpus", "jobs"), pl.Int64)
    schema = {"pool": pl.String, **counts, "can_be_cut": pl.Boolean}
    return pl.DataFrame(rows, orient="row", schema=schema)


def todays_nodes(known: History) -> TodaysNodes:
    """Nodes that a study plays today's fleet on; their GPUs are those of the fleet that is planned.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario

    >>> nodes = todays_nodes(history(Scenario()))
    >>> len(nodes.names), set(nodes.gpus), nodes.total, nodes.named
    (8, {8}, 64, True)
    """
    fleet = known.fleet
    if fleet.today.total == fleet.gpus:
        return fleet.today
    # A study of small jobs plans for as many GPUs as these held, whatever else there is.
    played = numbered_nodes(fleet.gpus, fleet.node_size, fleet.layouts)
    return replace(played, inferred=fleet.today.inferred, snapshot=fleet.today.snapshot)
