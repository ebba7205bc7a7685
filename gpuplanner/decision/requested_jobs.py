"""Conversion of jobs to the requests of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.schemas import FULL_GPU, SERVICE_JOB_CLASS
from gpuplanner.decision.sharing_rules import SharingRules, rules_from_queues
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints
from gpuplanner.usage.current_nodes import TodaysNodes
from gpuplanner.usage.grouped_usage import JOB_SIZE_LABELS, MAX_GPUS_OF_JOB_SIZES
from gpuplanner.usage.planning_history import History, nodes_of_todays_fleet

AS_TODAY, REQUESTED, RIGHTSIZED = "today", "requested", "rightsized"
"""Views of the requests of the same jobs: as allocated today, as requested, and rightsized."""
SOURCES_WITHOUT_STARTS = frozenset({"philly", "itp", "simulator"})
"""Sources whose job tables state submission and run time, but no start."""
TIME_LIMIT_FACTOR = 2.0
"""Run-time limit over run time where the source has no limits: users request twice the run time they need."""
MIN_JOBS_PER_SIZE = 20
"""Fewest jobs of a job size; a smaller one is merged with its neighbour, as its p95 wait would be too uncertain."""


@dataclass(frozen=True, eq=False)
class JobReplayInputs:
    """Jobs of the recent past and today's nodes, in the form of the simulator.

    - ``jobs``: The jobs, in the order of all arrays.
    - ``nodes``: Today's nodes.
    - ``fleet``: The same nodes in the form of the simulator.
    - ``gpu_model``: GPU model of the nodes.
    - ``views``: Requests as granted today, as requested, and rightsized with the longest possible run times; of GPU
      models without MIG the first alone.
    - ``start_s``, ``end_s``, shape (n_jobs,): Observed start and end, from ``replay_start`` on [s]; NaN where not
      observed.
    - ``observed_nodes``: Numbers of the nodes of each job; None where unknown.
    - ``starts_assumed``: Whether the source states no starts: all jobs count as started when they arrived.
    - ``replay_start``, ``end``: Begin and end of the simulated period.
    - ``is_service``, shape (n_jobs,): Jobs without an end: they get their GPUs as today, and no job size is evaluated
      by them. Services of the source, and jobs without a time limit that run from before the begin to after the end.
    - ``closed_spells``: Begin, end [s], node and GPUs of what was out of service; infinite GPUs: the entire node.
    - ``tenant_limits``: Maximum GPUs of tenants, as the data state them.
    """

    jobs: pl.DataFrame
    nodes: TodaysNodes
    fleet: NodeFleet
    gpu_model: GpuModel
    views: dict[str, NodeRequests]
    start_s: Floats
    end_s: Floats
    observed_nodes: list[list[int] | None]
    starts_assumed: bool
    replay_start: datetime
    end: datetime
    is_service: NDArray[np.bool_]
    closed_spells: tuple[tuple[float, float, int, float], ...] = ()
    tenant_limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> NodeRequests:
        """Requests as granted today."""
        return self.views[AS_TODAY]

    def gpus_by_job(self, view: str = AS_TODAY) -> Floats:
        """Return the GPUs of each job, a MIG instance as its fraction of one, shape (n_jobs,)."""
        requests = self.views[view]
        return np.asarray(self.fleet.weights[requests.profile] * requests.total)

    @property
    def node_gpus(self) -> int:
        """GPUs of the most common node."""
        sizes = self.nodes.gpus
        return max(set(sizes), key=lambda size: (sizes.count(size), size))

    @property
    def service_gpus(self) -> float:
        """Maximum of the GPUs that services use at once."""
        begin, gpus = np.nan_to_num(self.start_s, nan=np.inf), np.where(self.is_service, self.gpus_by_job(), 0.0)
        end = np.where(np.isnan(self.end_s), np.inf, self.end_s)
        at = begin[self.is_service & np.isfinite(begin)]
        return max((float(gpus[(begin <= now) & (end > now)].sum()) for now in at), default=0.0)

    @property
    def observed_s(self) -> float:
        """Length of the record [s]."""
        return (self.end - self.replay_start).total_seconds()


def read_replay_inputs(job_history: History) -> JobReplayInputs:
    """Read the jobs of the recent past, or of its last days where it has very many, as requests on today's nodes.

    Jobs without a start, where others have one, are kept: they waited to the end of the record. Where no job has one,
    all count as started when they arrived.
    """
    nodes = nodes_of_todays_fleet(job_history)
    gpu_model = job_history.fleet.gpu_model
    replay_start, end = job_history.simulated_since, job_history.plan_start
    is_live = (pl.col("end_time").is_null() | (pl.col("end_time") > replay_start)) & (pl.col("gpus") > 0)
    is_timed = pl.col("run_s").is_not_null() & pl.col("submit_time").is_not_null()
    mask = job_history.jobs.select(is_live & is_timed).to_series()
    jobs = job_history.jobs.filter(mask)
    seconds = {
        name: jobs.select((pl.col(name) - replay_start).dt.total_microseconds() / 1e6).to_series().cast(pl.Float64)
        for name in ("submit_time", "start_time", "end_time", "eligible_time")
    }
    submit_s, start_s, end_s, eligible_s = (time.fill_null(np.nan).to_numpy().copy() for time in seconds.values())
    run_s = jobs["run_s"].to_numpy().astype(float)
    source = job_history.trace.source_facts.source
    silent = not bool((start_s - submit_s > 0).any()) and source in SOURCES_WITHOUT_STARTS
    starts_assumed = silent or bool(np.isnan(start_s).all())
    if starts_assumed:
        start_s = submit_s.copy()
        end_s = np.where(np.isnan(end_s), np.nan, start_s + run_s)
    _end_preempted_attempts(jobs, start_s, end_s)
    observed_s = (end - replay_start).total_seconds()
    not_over = np.where(np.isnan(start_s), run_s, observed_s - start_s)
    run_s = np.where(np.isnan(end_s), np.maximum(not_over, 1.0), end_s - start_s)
    limit_s = np.fmax(jobs["time_limit_s"].cast(pl.Float64).fill_null(np.nan).to_numpy(), run_s)
    limit_s = np.where(jobs["time_limit_s"].is_null().to_numpy(), TIME_LIMIT_FACTOR * run_s, limit_s)
    profiles = _list_profiles(gpu_model, nodes, job_history, mask)
    fleet = build_node_fleet(nodes, gpu_model, profiles)
    eligible_s = np.where(np.isnan(eligible_s), submit_s, np.fmax(np.fmin(eligible_s, start_s), submit_s))
    arrivals = (submit_s, eligible_s)
    build = partial(build_requests, fleet=fleet, gpu_model=gpu_model, arrivals=arrivals, run_s=run_s, limit_s=limit_s)
    views = _build_views(job_history, mask, fleet, build)
    endless = jobs["time_limit_s"].is_null().to_numpy() & np.isnan(end_s) & (start_s < 0)
    is_service = endless | (jobs["job_class"] == SERVICE_JOB_CLASS).fill_null(False).to_numpy()
    return JobReplayInputs(
        jobs, nodes, fleet, gpu_model, views, start_s, end_s, _nodes_of_jobs(jobs, nodes), starts_assumed,
        replay_start, end, is_service,
        find_closed_nodes(job_history, nodes, replay_start, end), limits_of_tenants(rules_from_queues(job_history)),
    )  # fmt: skip


def find_closed_nodes(
    job_history: History, nodes: TodaysNodes, replay_start: datetime, end: datetime
) -> tuple[tuple[float, float, int, float], ...]:
    """List begin and end after ``replay_start`` [s], node and GPUs of what was out of service or reserved.

    Parameters
    ----------
    job_history : History
        Data with the table ``out_of_service``, where there is one.
    nodes : TodaysNodes
        Today's nodes.
    replay_start, end : datetime
        Begin and end of the record.
    """
    table = job_history.trace.tables.get("out_of_service")
    if table is None or not nodes.named:
        return ()
    node_number = {name: number for number, name in enumerate(nodes.names)}
    observed_s = (end - replay_start).total_seconds()
    spells = []
    for node, begin, stop, gpus in table.select("node", "start_time", "end_time", "gpus").iter_rows():
        begin_s = max((begin - replay_start).total_seconds(), 0.0)
        end_s = observed_s if stop is None else min((stop - replay_start).total_seconds(), observed_s)
        if node in node_number and begin_s < end_s:
            spells.append((begin_s, end_s, node_number[node], np.inf if gpus is None else float(gpus)))
    return tuple(spells)


def limits_of_tenants(rules: SharingRules) -> dict[str, float]:
    """Map tenants to the most GPUs that they may use at once, quota and borrowing, where rules state such a limit."""
    return {
        quota.name: quota.gpus + (quota.borrow or 0.0)
        for quota in rules.teams
        if quota.gpus is not None and (quota.cohort is None or quota.borrow is not None)
    }


def build_node_fleet(nodes: TodaysNodes, gpu_model: GpuModel, profiles: tuple[str, ...]) -> NodeFleet:
    """Convert today's nodes to the form of the simulator: one pool, all powered on."""
    capacity = np.array([count_layout_instances(layouts, profiles) for layouts in nodes.layouts], np.int64)
    gpus, weights = np.array(nodes.gpus), np.array([1.0, *(gpu_model.gpu_fraction(name) for name in profiles[1:])])
    return NodeFleet(profiles, gpus, capacity[:, None, :], np.zeros_like(gpus), weights)


def count_layout_instances(layouts: Sequence[str], profiles: tuple[str, ...]) -> list[int]:
    """Count the instances of each profile on GPUs of these layouts.

    Examples
    --------
    >>> count_layout_instances(["gpu", "3g.40gb:2"], ("gpu", "1g.10gb", "3g.40gb"))
    [1, 0, 2]
    """
    counts = dict.fromkeys(profiles, 0)
    for layout in layouts:
        if layout == UNUSED_LAYOUT:
            continue
        for name, count in ({FULL_GPU: 1} if layout == FULL_GPU else parse_layout(layout)).items():
            if name in counts:
                counts[name] += count
    return list(counts.values())


def _list_profiles(gpu_model: GpuModel, nodes: TodaysNodes, job_history: History, mask: pl.Series) -> tuple[str, ...]:
    """List the full GPU and every profile that layouts have or jobs request or need, ascending.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model of the nodes.
    nodes : TodaysNodes
        Today's nodes.
    job_history : History
        Jobs and their views.
    mask : polars.Series of bool
        Jobs to include.
    """
    texts = {layout for layouts in nodes.layouts for layout in layouts} - {FULL_GPU, UNUSED_LAYOUT}
    names = {name for text in texts for name in parse_layout(text)}
    if gpu_model.profiles:
        for view in ("requested", "rightsized"):
            names |= set(job_history.views[view]["profile"].filter(mask).drop_nulls().unique())
    return sort_profiles(gpu_model, names)


def sort_profiles(gpu_model: GpuModel, names: Iterable[str]) -> tuple[str, ...]:
    """Sort the MIG profiles of a GPU model by size, after the full GPU.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> sort_profiles(load_gpu_model("A100-40GB"), ["3g.20gb", "gpu", "1g.5gb"])
    ('gpu', '1g.5gb', '3g.20gb')
    """
    used = [gpu_model.profile(name) for name in names if name != FULL_GPU]
    used.sort(key=lambda profile: (profile.memory_slices, profile.compute_slices, profile.name))
    return (FULL_GPU, *dict.fromkeys(profile.name for profile in used))


def list_larger_profiles(gpu_model: GpuModel, profiles: Sequence[str]) -> list[list[int]]:
    """List for each profile the larger ones that may serve it, by memory and slices; full GPUs serve no other profile.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> list_larger_profiles(load_gpu_model("A100-40GB"), ["gpu", "1g.5gb", "2g.10gb", "3g.20gb"])
    [[], [2, 3], [3], []]
    """
    sliced = [(number, gpu_model.profile(name)) for number, name in enumerate(profiles) if number]
    larger: list[list[int]] = [[]]
    for profile_number, profile in sliced:
        memory, compute = profile.memory_slices, profile.compute_slices
        enough = (n for n, wider in sliced if wider.memory_slices >= memory and wider.compute_slices >= compute)
        larger.append([number for number in enough if number != profile_number])
    return larger


def _build_views(
    job_history: History, mask: pl.Series, fleet: NodeFleet, build: Callable[[pl.DataFrame], NodeRequests]
) -> dict[str, NodeRequests]:
    """Build the requests as granted today, as requested, and rightsized.

    Parameters
    ----------
    job_history : History
        Jobs and their views.
    mask : polars.Series of bool
        Jobs to convert.
    fleet : NodeFleet
        Today's nodes.
    build : callable
        Converts a table of jobs to requests.
    """
    gpu_model = job_history.fleet.gpu_model
    full_gpus = job_history.views["whole"]["instances"].filter(mask)
    offered_profiles = [name for n, name in enumerate(fleet.profiles) if n and fleet.capacity[:, 0, n].any()]
    columns = ("profile", "instances", "sms_needed", "nodes")
    requested_jobs = job_history.views["requested"].select(columns).filter(mask)
    has_instance = job_history.jobs["instances"].filter(mask).is_not_null()
    on_instance = has_instance & requested_jobs["profile"].is_in(offered_profiles)
    granted_jobs = requested_jobs.select(
        profile=pl.when(on_instance).then("profile").otherwise(pl.lit(FULL_GPU)),
        instances=pl.when(on_instance).then("instances").otherwise(full_gpus),
        sms_needed=pl.lit(None, pl.Float64),
        nodes="nodes",
    )
    tables: dict[str, Any] = {AS_TODAY: granted_jobs}
    if gpu_model.profiles:
        tables |= {REQUESTED: requested_jobs, RIGHTSIZED: job_history.views["rightsized"].select(columns).filter(mask)}
    views = {name: build(table) for name, table in tables.items()}
    if gpu_model.profiles and gpu_model.sms:
        sizes = job_history.rightsizing.filter(mask).select(pl.coalesce(tables[RIGHTSIZED]["sms_needed"], "sms_needed"))
        used = sizes.to_series().fill_null(0.0).to_numpy() / gpu_model.sms
        views[RIGHTSIZED] = _slow_down_moved_jobs(views[REQUESTED], views[RIGHTSIZED], used, fleet, gpu_model)
    return views


def _slow_down_moved_jobs(
    requests_before: NodeRequests, requests_after: NodeRequests, used: Floats, fleet: NodeFleet, gpu_model: GpuModel
) -> NodeRequests:
    """Lengthen run time and time limit of jobs on another profile than requested to the longest possible run time.

    Parameters
    ----------
    requests_before, requests_after : NodeRequests
        As requested, and rightsized.
    used : array of float, shape (n_jobs,)
        Fraction of the SMs of a GPU that each job used. [0-1]
    fleet : NodeFleet
        The nodes, with the names of the profiles.
    gpu_model : GpuModel
        GPU model of the nodes.
    """
    sizes = [gpu_model.profile(name) for name in fleet.profiles[1:]]
    sms, memory = gpu_model.sms or 1, gpu_model.memory_slices
    shares = np.array([(1.0, 1.0), *(((size.sms or 0) / sms, size.memory_slices / memory) for size in sizes)])
    share_before = shares[requests_before.profile] * requests_before.total[:, None]
    share_after = shares[requests_after.profile] * requests_after.total[:, None]
    size_ratio = (share_before / share_after).max(axis=1)
    longest_run_s = requests_before.run_s * longest_slowdown(used / share_before[:, 0], size_ratio)
    factor = np.maximum(longest_run_s / requests_after.run_s, 1.0)
    return replace(requests_after, run_s=requests_after.run_s * factor, limit_s=requests_after.limit_s * factor)


def longest_slowdown(busy_fraction: Floats, size_ratio: Floats) -> Floats:
    """Upper bound of the slowdown of a job on a smaller instance.

    SMs count as busy while a warp is resident, also one that waits for memory. If all activity comes in bursts on all
    SMs, a burst takes as many times as long as the instance is smaller, and the remaining time passes as before.

    Parameters
    ----------
    busy_fraction : array of float, shape (n_jobs,)
        Fraction of the SMs of the larger instance that were busy. [0-1]
    size_ratio : array of float, shape (n_jobs,)
        Larger over smaller instance.

    Returns
    -------
    array of float, shape (n_jobs,)
        Run time over observed run time.

    Examples
    --------
    >>> longest_slowdown(np.array([0.0, 0.5, 1.0]), np.array([7.0, 2.0, 2.0])).tolist()
    [1.0, 1.5, 2.0]
    """
    return np.asarray(1.0 + np.clip(busy_fraction, 0.0, 1.0) * (np.maximum(size_ratio, 1.0) - 1.0))


def build_requests(
    table: pl.DataFrame,
    fleet: NodeFleet,
    gpu_model: GpuModel,
    arrivals: tuple[Floats, Floats],
    run_s: Floats,
    limit_s: Floats,
) -> NodeRequests:
    """Convert jobs to requests on the nodes of a fleet.

    Jobs on more full GPUs than the largest node has are spread over as many nodes as they need. A job that can use more
    SMs than it requests runs proportionally longer.

    Parameters
    ----------
    table : polars.DataFrame
        ``profile, instances, nodes`` of each job, and ``sms_needed`` where that is known.
    fleet : NodeFleet
        The nodes, with the names of the profiles.
    gpu_model : GpuModel
        GPU model of the nodes.
    arrivals : tuple of two arrays of float, shape (n_jobs,)
        When each job was submitted, and when it became eligible [s].
    run_s, limit_s : array of float, shape (n_jobs,)
        Run time on as many SMs as it needs, and run-time limit [s].

    Returns
    -------
    NodeRequests
    """
    submit, eligible = arrivals
    profile_number = {name: position for position, name in enumerate(fleet.profiles)}
    names = table["profile"].fill_null(FULL_GPU)
    profile = names.replace_strict(profile_number, default=0, return_dtype=pl.Int64).to_numpy()
    total = np.maximum(table["instances"].fill_null(1).to_numpy().astype(np.int64), 1)
    stated = table["nodes"].cast(pl.Int64).fill_null(1).to_numpy()
    largest = int(fleet.gpus.max())
    # MIG instances of a gang are requested on one node.
    nodes = np.where(profile == 0, np.clip(stated, 1, total), 1)
    nodes = np.where((profile == 0) & (-(-total // nodes) > largest), -(-total // largest), nodes)
    nodes = np.where(total - (-(-total // nodes)) * (nodes - 1) < 1, -(-total // (-(-total // nodes))), nodes)
    slowdown = np.ones(len(run_s))
    if "sms_needed" in table.columns and gpu_model.profiles:
        sliced = (gpu_model.profile(name).sms or 0 for name in fleet.profiles[1:])
        sms = np.array([gpu_model.sms or 0, *sliced], float)
        needed_sms = table["sms_needed"].cast(pl.Float64).fill_null(0.0).to_numpy()
        allocated_sms = sms[profile] * total
        slower = np.maximum(needed_sms / np.maximum(allocated_sms, 1e-9), 1.0)
        slowdown = np.where((profile > 0) & (allocated_sms > 0), slower, 1.0)
    return NodeRequests(eligible, submit, run_s * slowdown, limit_s * slowdown, profile, total, nodes)


def _nodes_of_jobs(jobs: pl.DataFrame, nodes: TodaysNodes) -> list[list[int] | None]:
    """List the numbers of the nodes of each job that are in today's fleet; None where unknown."""
    if not nodes.named:
        return [None] * jobs.height
    node_number = {name: number for number, name in enumerate(nodes.names)}
    nodes_by_text: dict[str | None, list[int] | None] = {None: None}
    for text in jobs["node_list"].unique():
        if text is not None:
            names = try_expand_node_list(text) or ()
            nodes_by_text[text] = [node_number[name] for name in names if name in node_number] or None
    return [nodes_by_text[text] for text in jobs["node_list"]]


def _end_preempted_attempts(jobs: pl.DataFrame, start: Floats, stop: Floats) -> None:
    """End preempted attempts of a job when its next attempt starts: changes ``stop`` in place, times in seconds."""
    if not (jobs["attempt"] > 1).any():
        return
    rows = jobs.select("job_id", "attempt").with_row_index("row").sort("job_id", "attempt")
    row, name = rows["row"].to_numpy(), rows["job_id"].to_numpy()
    is_same_job = name[1:] == name[:-1]
    before, after = row[:-1][is_same_job], row[1:][is_same_job]
    next_start = np.maximum(start[after], start[before])
    stop[before] = np.where(stop[before] > start[after], next_start, stop[before])


def classify_job_sizes(
    inputs: JobReplayInputs, is_evaluated: NDArray[np.bool_], min_jobs: int = MIN_JOBS_PER_SIZE
) -> tuple[Ints, tuple[str, ...]]:
    """Classify jobs by requested size: MIG profiles by memory, then full GPUs.

    A class with few evaluated jobs is merged with its larger neighbour, the largest with its smaller; profiles merge
    only with profiles.

    Parameters
    ----------
    inputs : JobReplayInputs
        The jobs.
    is_evaluated : array of bool, shape (n_jobs,)
        Jobs that are evaluated.
    min_jobs : int
        Fewest evaluated jobs of a class.

    Returns
    -------
    number : array of int, shape (n_jobs,)
        Class of each job.
    names : tuple of str
        Names of the classes.
    """
    requests = inputs.requests
    if REQUESTED in inputs.views:
        requested = inputs.views[REQUESTED]
        requests = replace(requests, profile=requested.profile, total=requested.total, nodes=requested.nodes)
    profiles = inputs.fleet.profiles
    on_instance = requests.profile > 0
    whole = len(profiles) - 1 + np.digitize(requests.total, [max_gpus + 1 for max_gpus in MAX_GPUS_OF_JOB_SIZES])
    number = np.where(on_instance, requests.profile - 1, whole)
    names = [*profiles[1:], *JOB_SIZE_LABELS]
    return merge_small_classes(number, names, len(profiles) - 1, is_evaluated, min_jobs)


def merge_small_classes(
    number: Ints, names: Sequence[str], n_profiles: int, is_evaluated: NDArray[np.bool_], min_jobs: int
) -> tuple[Ints, tuple[str, ...]]:
    """Merge classes of few jobs with their neighbours of the same kind.

    Parameters
    ----------
    number : array of int, shape (n_jobs,)
        Class of each job.
    names : sequence of str
        Names of the classes, profiles first.
    n_profiles : int
        How many of them are profiles.
    is_evaluated : array of bool, shape (n_jobs,)
        Jobs that are evaluated.
    min_jobs : int
        Fewest evaluated jobs of a class.

    Returns
    -------
    number, names
        The same for the merged classes.

    Examples
    --------
    >>> number = np.array([0] * 30 + [1] * 5 + [2] * 25)
    >>> of, names = merge_small_classes(number, ["1 GPU", "2-4 GPUs", "5-8 GPUs"], 0, np.ones(60, bool), 20)
    >>> names, np.bincount(of).tolist()
    (('1 GPU', '2-8 GPUs'), [30, 30])
    """
    counts = np.bincount(number[is_evaluated], minlength=len(names))
    is_present = np.bincount(number, minlength=len(names)) > 0
    groups: list[list[int]] = []
    for first, last in ((0, n_profiles), (n_profiles, len(names))):
        kind_groups = [[position] for position in range(first, last) if is_present[position]]
        while len(kind_groups) > 1:
            small = [position for position, group in enumerate(kind_groups) if counts[group].sum() < min_jobs]
            if not small:
                break
            position = small[0]
            first_of_two = min(position, len(kind_groups) - 2)
            kind_groups[first_of_two : first_of_two + 2] = [kind_groups[first_of_two] + kind_groups[first_of_two + 1]]
        groups += kind_groups
    group_of_class = np.zeros(len(names), np.int64)
    for group, members in enumerate(groups):
        group_of_class[members] = group
    return group_of_class[number], tuple(merge_class_names([names[position] for position in group]) for group in groups)


def merge_class_names(names: Sequence[str]) -> str:
    """Name of several merged classes: from the fewest GPUs to the most, of profiles all names.

    Examples
    --------
    >>> merge_class_names(["1 GPU", "2-4 GPUs"]), merge_class_names(["5-8 GPUs", "9+ GPUs"])
    ('1-4 GPUs', '5+ GPUs')
    >>> merge_class_names(["1g.5gb", "2g.10gb"])
    '1g.5gb, 2g.10gb'
    """
    first, last = names[0], names[-1]
    if len(names) == 1 or not last.endswith(" GPUs"):
        return ", ".join(names)
    smallest, largest = first.partition("-")[0].split()[0], last.removesuffix(" GPUs")
    return f"{smallest}+ GPUs" if largest.endswith("+") else f"{smallest}-{largest.rpartition('-')[2]} GPUs"
