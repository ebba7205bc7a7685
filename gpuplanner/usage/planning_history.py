"""History of a scenario from which it is planned: jobs, requests, rightsized requests, and pools by GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

import polars as pl

from gpuplanner.core.errors import ScenarioError, examples
from gpuplanner.core.output_manifests_and_overwrite_checks import resolve_path
from gpuplanner.core.privacy import merge_small_tenants_expression
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import FULL_GPU, Jobs
from gpuplanner.core.stage_cache_and_data_folders import data_folder, stage
from gpuplanner.hardware.catalog import mig_model_names, non_mig_model_names
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.implausible_jobs_and_past_nodes import drop_quarantined
from gpuplanner.usage.current_nodes import TodaysNodes, make_numbered_nodes
from gpuplanner.usage.installed_capacity import find_installed
from gpuplanner.usage.job_classes import classify_before_run
from gpuplanner.usage.request_recommendations import choose_profiles, number_requests, recommend_sizes
from gpuplanner.usage.requested_demand import resolve_requests
from gpuplanner.usage.rightsizing import (
    RIGHTSIZING_ACTIVITY_QUANTILE,
    RIGHTSIZING_HEADROOM_FRACTION,
    requested_and_used,
)
from gpuplanner.usage.run_time_hazards import impute_run_times
from gpuplanner.usage.study_fleet import PlannedFleet, planned_fleet

REQUEST_VIEWS = ("whole", "requested", "rightsized")
"""Views of the requests of the same jobs: full GPUs only (``whole``), slices as requested, and slices as needed
(``rightsized``).
"""

MAX_JOBS_PER_STUDY = 1 << 20
"""Jobs beyond which a study reads only the latest ones, unless the month or the recent past of the scenario has more.
"""
MAX_JOBS_PER_SIMULATION = 400_000
"""Jobs beyond which policies are simulated only on the latest ones, but on a week at least."""


@dataclass(frozen=True, eq=False)
class History:
    """History that a plan is made from: jobs, their requests, right sizes, and the fleet.

    - ``trace``: The dataset as ingested.
    - ``jobs``: ``schemas.Jobs`` as known at ``plan_start``, with ``run_s`` and ``run_known``.
    - ``views``: For each of :data:`REQUEST_VIEWS` the jobs with ``profile``, ``instances``, ``sms_needed``.
    - ``rightsizing``: Requested and recommended profile of each job, SMs that it needs, whether runs of the same
      request were measured, and whether it needs less than they do.
    - ``begin``, ``end``: Window of ledger and cost: the observed part of the month.
    - ``recent``: Start of the history that forecasts and bootstraps use, a full hour; it ends at ``plan_start``.
    - ``plan_start``: First instant of the plan, the full hour at or after ``end``. Jobs that run at ``end`` are assumed
      to run until then.
    - ``fleet``: GPU model and GPUs that are planned for.
    """

    trace: Dataset
    jobs: pl.DataFrame
    views: dict[str, pl.DataFrame]
    rightsizing: pl.DataFrame
    begin: datetime
    end: datetime
    recent: datetime
    plan_start: datetime
    fleet: PlannedFleet

    @cached_property
    def shared_share(self) -> float:
        """Share of the GPU-hours of jobs on a fraction of a GPU without MIG [0-1]."""
        hours = pl.col("gpus") * pl.col("run_s")
        shared = (pl.col("gpus") % 1 > 0) & pl.col("instances").is_null()
        every, part = self.jobs.select(hours.sum(), hours.filter(shared).sum().alias("shared")).row(0)
        return float(part / every) if every else 0.0

    @cached_property
    def simulated_since(self) -> datetime:
        """Begin of the period on which policies are simulated: the recent past, or its last days.

        Each policy is simulated many times: of more than :data:`MAX_JOBS_PER_SIMULATION` jobs only the latest are used,
        but a week at least.
        """
        came = self.jobs.select("submit_time").filter(pl.col("submit_time") >= self.recent)["submit_time"].sort()
        if len(came) <= MAX_JOBS_PER_SIMULATION:
            return self.recent
        days = (self.plan_start - came[-MAX_JOBS_PER_SIMULATION]) // timedelta(days=1)
        return max(self.recent, self.plan_start - timedelta(days=max(days, 7)))

    def describe_simulated_period(self) -> list[str]:
        """Describe the period on which policies are simulated, as sentences; empty if it is the entire recent past."""
        if self.simulated_since == self.recent:
            return []
        days, came = (self.plan_start - self.simulated_since).days, self.jobs["submit_time"] >= self.simulated_since
        played = f"policies were simulated on its last {days} days, of {came.sum():,} jobs."
        return [f"The recent past has more than {MAX_JOBS_PER_SIMULATION:,} jobs: {played}"]


def load_dataset(data: str, *, columns: Sequence[str] | None = None) -> Dataset:
    """Load the dataset folder of a scenario, or some columns of its jobs; ``"sample"`` is the shipped one.

    Jobs in quarantine are left out: no figure of a study is made of them.
    """
    columns_read = None if columns is None else list(dict.fromkeys([*columns, "quarantined"]))
    dataset = open_dataset(data_folder(data), columns=columns_read)
    return dataset.with_tables(jobs=drop_quarantined(dataset.jobs)) if "jobs" in dataset.tables else dataset


def open_long_dataset(data: str) -> Dataset:
    """Open the dataset folder of a scenario with its jobs on disk, to be read in parts."""
    return open_dataset(data_folder(data), jobs_on_disk=True)


def merge_small_tenants(dataset: Dataset, smallest: int) -> Dataset:
    """Merge tenants of fewer than `smallest` people, for output that is shared; 0: none.

    Examples
    --------
    >>> merge_small_tenants(load_dataset("sample"), 1000).jobs["tenant"].unique().to_list()
    ['(small groups)']
    """
    if not smallest:
        return dataset
    if dataset.stored_jobs is not None:
        return replace(dataset, stored_jobs=dataset.stored_jobs.merge_small_tenants(smallest))
    tenant = merge_small_tenants_expression(dataset.jobs.lazy(), smallest)
    return dataset.with_tables(jobs=dataset.jobs.with_columns(tenant))


def load_study_dataset(
    scenario: Scenario, *, columns: Sequence[str] | None = None, at: datetime | None = None, days: int = 0
) -> Dataset:
    """Load the dataset of a scenario, or some columns of its jobs; of a long job list only the latest jobs.

    Of more than :data:`MAX_JOBS_PER_STUDY` jobs, only those are loaded that waited or ran since the begin of the
    scenario's month, since that of the recent past of its plan (or of the last `days`), or among the last that many
    jobs; the dataset then states so (``shortened``).

    Parameters
    ----------
    scenario : Scenario
        Scenario of the study.
    columns : sequence of str, optional
        Columns of jobs; None: all.
    at : datetime, optional
        Last instant that is needed; None: end of the scenario's month.
    days : int
        Least length of the history before `at`. [d]
    """
    dataset = open_long_dataset(scenario.data)
    jobs_on_disk = dataset.lazy_jobs.merge_small_tenants(scenario.smallest_group) if dataset.has_jobs else None
    if jobs_on_disk is None:
        return dataset
    if jobs_on_disk.height <= MAX_JOBS_PER_STUDY:
        return replace(
            dataset,
            stored_jobs=None,
            tables={"jobs": _categories_to_text(jobs_on_disk.collect_rows(columns)), **dataset.tables},
        )
    month = scenario.month_span()
    begin, end = observation_begins_at(dataset), observation_ends_at(dataset)
    until = min(end, at or (end if month is None else month[1]))
    recent = _next_hour(until) - timedelta(days=max(scenario.history_days, days))
    submissions = jobs_on_disk.scan_unquarantined(["submit_time"]).filter(pl.col("submit_time") < until)
    rows = submissions.select(pl.len()).collect(engine="streaming").item()
    first_of_latest = submissions.slice(max(rows - MAX_JOBS_PER_STUDY, 0), 1).collect(engine="streaming")
    latest = first_of_latest["submit_time"].to_list()
    since = max(begin, _floor_hour(min([recent, *latest, *(month or ())])))
    jobs = _categories_to_text(jobs_on_disk.collect_between(since, until, columns or Jobs.column_names()))
    remark = (
        f"Of {jobs_on_disk.height:,} jobs, the {jobs.height:,} that were there from {since:%Y-%m-%d} to "
        f"{until:%Y-%m-%d} are looked at: figures are of that time. Name a month for another."
    )
    return dataset.restrict_to_span(jobs, since, until, remark)


def _categories_to_text(jobs: pl.DataFrame) -> pl.DataFrame:
    """Convert categorical columns to text."""
    return jobs.cast({name: pl.String for name, dtype in jobs.schema.items() if dtype == pl.Categorical})


@stage
def history(scenario: Scenario) -> History:
    """Build the history of a scenario as a planner sees it at the end of the month."""
    dataset = load_study_dataset(scenario)
    begin, end = _observed_month(scenario, dataset)
    plan_start = _next_hour(end)
    fleet = planned_fleet(scenario, dataset, begin, end)
    if fleet.accounted is not fleet.installed:
        dataset = dataset.restrict_to_nodes(fleet.jobs_of(dataset.jobs), fleet.accounted.inventory)
    known_jobs = fleet.jobs_of(_jobs_as_of(dataset.jobs, plan_start).filter(pl.col("gpus") > 0))
    jobs = impute_run_times(known_jobs, plan_start, seed=scenario.seed)
    if jobs.is_empty():
        location, todo = f"scenario, data {scenario.data!r}", "Choose another month."
        raise ScenarioError(location, f"jobs with GPUs before {end:%Y-%m-%d}", "none", todo)
    sizes = _recommend_profiles(jobs, fleet, dataset.samples)
    views = _tabulate_views(jobs, sizes, fleet.gpu_model)
    recent = max(_floor_hour(observation_begins_at(dataset)), plan_start - timedelta(days=scenario.history_days))
    return History(
        trace=dataset,
        jobs=jobs,
        views=views,
        rightsizing=sizes.select("profile_requested", "profile_needed", "sms_needed", "is_sized", "by_owner"),
        begin=begin,
        end=end,
        recent=recent,
        plan_start=plan_start,
        fleet=fleet,
    )


def observation_begins_at(dataset: Dataset) -> datetime:
    """Return the first instant of the observation."""
    return dataset.source_facts.span[0]


def observation_ends_at(dataset: Dataset) -> datetime:
    """Return the first instant after the observation."""
    return dataset.source_facts.span[1]


def months_from(first: str, last: str) -> list[str]:
    """List the calendar months from one to another, both included; empty where the last is before the first.

    Examples
    --------
    >>> months_from("2026-11", "2027-01")
    ['2026-11', '2026-12', '2027-01']
    """
    begin, end = (12 * int(text[:4]) + int(text[5:]) - 1 for text in (first, last))
    return [f"{number // 12:04d}-{number % 12 + 1:02d}" for number in range(begin, end + 1)]


def _observed_month(scenario: Scenario, dataset: Dataset) -> tuple[datetime, datetime]:
    """Find the observed part of the scenario's month."""
    begin, end = observation_begins_at(dataset), observation_ends_at(dataset)
    span = scenario.month_span()
    if span is None:
        return begin, end
    if span[1] <= begin or span[0] >= end:
        location, todo = f"month {scenario.month} ({scenario.tz})", "Choose a month that the data cover."
        expected = f"a month from {begin:%Y-%m} to {end - timedelta(microseconds=1):%Y-%m}"
        raise ScenarioError(location, expected, "no observation in it", todo)
    return max(begin, span[0]), min(end, span[1])


def _jobs_as_of(jobs: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Select the jobs submitted before ``now``, without starts, ends and measurements after it."""
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
    )


def _recommend_profiles(jobs: pl.DataFrame, fleet: PlannedFleet, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Recommend profile and instances for each job, as its owner can request them."""
    gpu_model = fleet.gpu_model
    # Without profiles there is nothing to choose from, and without the SMs of the board nothing to choose by.
    if not fleet.can_be_cut or gpu_model.sms is None:
        kept = {"chosen_profile": "profile", "chosen_instances": "instances"}
        requests = resolve_requests(jobs, gpu_model).with_columns(**kept, is_sized=False, by_owner=False)
        requests = requests.with_columns(sms_needed=pl.lit(None, pl.Float64), size_from=pl.lit(None, pl.String))
    else:
        named = classify_before_run(jobs).with_columns(gpu_model=pl.lit(gpu_model.name))
        requests = number_requests(requested_and_used(named, {gpu_model.name: gpu_model}, samples=samples))
        requests = choose_profiles(requests, recommend_sizes(requests))
        used = pl.when(pl.col("size_from") != "request").then("sms_needed")
        of_group = used.quantile(RIGHTSIZING_ACTIVITY_QUANTILE, "equiprobable").over("group")
        requests = requests.with_columns(sms_needed=pl.coalesce(used, of_group, "sms_needed"))
    return requests.select(
        pl.col("sms_needed", "size_from", "is_sized", "by_owner"),
        profile_requested="profile",
        profile_needed="chosen_profile",
        instances="chosen_instances",
    )


def _tabulate_views(jobs: pl.DataFrame, sizes: pl.DataFrame, gpu_model: GpuModel) -> dict[str, pl.DataFrame]:
    """Tabulate profile, instances and SMs of each job in each of :data:`REQUEST_VIEWS`."""
    # How fast a job runs on a slice depends on its observed use, so the headroom is taken off again; a need that was
    # inferred from other jobs says which slice fits, not how fast this job would run there.
    used = (
        pl.when(pl.col("size_from") == "telemetry")
        .then("sms_needed")
        .when(pl.col("size_from") == "job statistics")
        .then(pl.col("sms_needed") / (1 + RIGHTSIZING_HEADROOM_FRACTION))
    )
    needed = sizes.select("profile_needed", needed_instances="instances", sms=used)
    requests = pl.concat([resolve_requests(jobs, gpu_model), needed], how="horizontal")
    gpus, whole = pl.col("gpus").ceil().cast(pl.Int32), pl.lit(FULL_GPU)
    with_sms = requests.with_columns(sms_needed="sms")
    return {
        "whole": requests.with_columns(profile=whole, instances=gpus, sms_needed=pl.lit(None, pl.Float64)),
        "requested": with_sms,
        "rightsized": with_sms.with_columns(profile="profile_needed", instances="needed_instances"),
    }


def _floor_hour(time: datetime) -> datetime:
    """Round an instant down to the full hour."""
    return time.replace(minute=0, second=0, microsecond=0)


def _next_hour(time: datetime) -> datetime:
    """Round an instant up to the full hour."""
    floor = _floor_hour(time)
    return floor if floor == time else floor + timedelta(hours=1)


def gpus_by_model(scenario: Scenario) -> dict[str, int | None]:
    """Count the GPUs of a scenario's fleet by GPU model.

    Examples
    --------
    >>> gpus_by_model(Scenario())
    {'H100-80GB-SXM5': 64}
    """
    return gpus_by_model_of_dataset(load_study_dataset(scenario), scenario.gpu_model, source=scenario.data)


def gpus_by_model_of_dataset(
    dataset: Dataset, gpu_model: str | None = None, *, source: str = "the trace"
) -> dict[str, int | None]:
    """Count the installed GPUs of a dataset by GPU model of the catalogue; all as `gpu_model` if that is given."""
    capacity = find_installed(dataset, observation_begins_at(dataset), observation_ends_at(dataset))
    gpus_by_name: dict[str, int | None] = {}
    for part in capacity.pools:
        name = gpu_model or part.gpu_model
        if name is not None and part.gpus and name in (*mig_model_names(), *non_mig_model_names()):
            gpus_by_name[name] = (gpus_by_name.get(name) or 0) + part.gpus
    if not gpus_by_name:
        expected, todo = "data with GPU models of the catalog", "Give them with --gpus MODEL=COUNT."
        raise ScenarioError(f"GPU models of {source}", expected, capacity.models_text, todo)
    return gpus_by_name


@dataclass(frozen=True)
class FleetPools:
    """A fleet as GPU pools (the GPUs of one GPU model) that are planned and evaluated separately.

    - ``pools``: Scenario of each pool with jobs, by pool name, most GPUs first; the scenario itself if there is a
      single pool.
    - ``idle``: Number of GPUs of each GPU model that no job used: they are in the ledger, but not planned.
    """

    pools: Mapping[str, Scenario]
    idle: Mapping[str, int]

    @property
    def several(self) -> bool:
        """Whether there is more than one GPU pool."""
        return len(self.pools) > 1


def split_into_pools(scenario: Scenario) -> FleetPools:
    """Split a scenario's fleet into GPU pools: one for each GPU model by which jobs can be told apart.

    A scenario that names a GPU model, a pool or a number of nodes has a single pool.

    Examples
    --------
    >>> found = split_into_pools(Scenario())
    >>> found.several, list(found.pools), found.idle
    (False, ['H100-80GB-SXM5'], {})
    """
    fleet = history(scenario).fleet
    capacity = fleet.installed
    whole = scenario.gpu_model is not None or scenario.pool is not None or scenario.nodes > 0
    busy = [str(pool.gpu_model) for pool in capacity.pools if pool.gpu_model in capacity.busy]
    if whole or len(capacity.pools) < 2 or not busy:
        return FleetPools({fleet.name or scenario.name: scenario}, {})
    idle = {str(pool.gpu_model): pool.gpus for pool in capacity.pools if pool.gpu_model not in capacity.busy}
    return FleetPools({gpu_model: scenario.but(pool=gpu_model) for gpu_model in busy}, idle)


def combine_clusters(scenarios: Sequence[Scenario]) -> FleetPools:
    """Combine the GPU pools of several clusters, each a dataset of its own, under ``cluster/gpu_model``.

    Two clusters that are the same dataset, or bear one name, are a ``ScenarioError``.
    """
    places = [str(resolve_path(scenario.data)) for scenario in scenarios]
    names = [scenario.name for scenario in scenarios]
    for field, listed in (("dataset", places), ("name", names)):
        twice = sorted({scenario for scenario in listed if listed.count(scenario) > 1})
        if twice:
            todo = "Give each cluster once, in a folder of its own name."
            raise ScenarioError("fleet", f"clusters that differ in their {field}", examples(twice), todo)
    fleets = [(scenario.name, split_into_pools(scenario)) for scenario in scenarios]
    return FleetPools(
        {
            f"{name}/{gpu_model}": pool_scenario
            for name, fleet in fleets
            for gpu_model, pool_scenario in fleet.pools.items()
        },
        {f"{name}/{gpu_model}": gpus for name, fleet in fleets for gpu_model, gpus in fleet.idle.items()},
    )


def tabulate_pools(fleet: FleetPools) -> pl.DataFrame:
    """Tabulate the nodes, GPUs, partitioned GPUs and planned jobs of each GPU pool."""
    rows = []
    for name, pool_scenario in fleet.pools.items():
        job_history = history(pool_scenario)
        planned = job_history.fleet
        numbers = (len(planned.today.names), planned.gpus, planned.cut_gpus, job_history.jobs.height)
        rows.append((name, *numbers, planned.can_be_cut))
    rows += [(name, 0, gpus, 0, 0, False) for name, gpus in fleet.idle.items()]
    counts = dict.fromkeys(("nodes", "gpus", "cut_gpus", "jobs"), pl.Int64)
    schema = {"pool": pl.String, **counts, "can_be_cut": pl.Boolean}
    return pl.DataFrame(rows, orient="row", schema=schema)


def nodes_of_todays_fleet(job_history: History) -> TodaysNodes:
    """Build the nodes on which today's fleet is simulated, with the GPUs of the planned fleet.

    Examples
    --------
    >>> from gpuplanner.core.scenario import Scenario

    >>> nodes = nodes_of_todays_fleet(history(Scenario()))
    >>> len(nodes.names), set(nodes.gpus), nodes.total, nodes.named
    (8, {8}, 64, True)
    """
    fleet = job_history.fleet
    if fleet.today.total == fleet.gpus:
        return fleet.today
    # A study of small jobs plans for as many GPUs as these held, whatever else there is.
    simulated = make_numbered_nodes(fleet.gpus, fleet.node_size, fleet.layouts)
    return replace(simulated, inferred=fleet.today.inferred, snapshot=fleet.today.snapshot)
