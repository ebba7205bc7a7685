"""Requests of jobs as the simulator takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.schemas import SERVICE_JOB_CLASS, WHOLE_GPU
from gpuplanner.decision.sharing_rules import SharingRules, rules_of_queues
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.ingest.gpu_model_resolution import try_expand_node_list
from gpuplanner.simulator.simulated_fleet import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints
from gpuplanner.usage.job_history import History, nodes_of_todays_fleet
from gpuplanner.usage.observed_nodes import TodaysNodes

AS_TODAY, REQUESTED, RIGHTSIZED = "today", "requested", "rightsized"
SUBMISSIONS_ALONE = frozenset({"philly", "itp", "simulator"})
"""Sources whose job tables state when jobs came and how long they ran, and not when they started."""
LIMIT_FACTOR = 2.0
"""Run-time limit over run time where the source has no limits: people request twice the run time they need."""
LARGEST = (1, 4, 8)
"""Most GPUs of each class of whole GPUs but the last."""
FEWEST_JOBS = 20
"""A class of fewer jobs joins its neighbour: its quantile would be a matter of luck."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Jobs on today's nodes.

    - ``jobs``: The jobs, in the order of all arrays.
    - ``nodes``: Today's nodes.
    - ``fleet``: The same as the engine takes them.
    - ``gpu_model``: Board of the nodes.
    - ``views``: Requests as granted today, as asked for, and as needed, where they run as long as they may; of boards
      that cannot be cut the first alone.
    - ``start_s``, ``end_s``, shape (n_jobs,): When each was seen to start and to end, from ``zero`` on [s]; NaN where
      it was not.
    - ``pins``: Numbers of the nodes where each was; None where nobody knows.
    - ``starts_assumed``: The source states no starts: all are taken to have started when they came.
    - ``zero``, ``end``: Begin and end of what is played.
    - ``closed``: Begin, end [s], node and GPUs of what was out of service; infinite GPUs: all of the node.
    - ``limits``: GPUs that tenants may hold at once, as the data state them.
    - ``standing``, shape (n_jobs,): Jobs without an end: they get their GPUs as today, and no size of job is judged
      by them. Those that the source calls a service, and those that were there at the begin, run at the end and have
      no limit. One that began later and has no limit merely still runs.
    """

    jobs: pl.DataFrame
    nodes: TodaysNodes
    fleet: NodeFleet
    gpu_model: GpuModel
    views: dict[str, NodeRequests]
    start_s: Floats
    end_s: Floats
    pins: list[list[int] | None]
    starts_assumed: bool
    zero: datetime
    end: datetime
    standing: NDArray[np.bool_]
    closed: tuple[tuple[float, float, int, float], ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def granted(self) -> NodeRequests:
        """What jobs hold today."""
        return self.views[AS_TODAY]

    def gpus(self, view: str = AS_TODAY) -> Floats:
        """GPUs of each job, a slice as its share of one."""
        requests = self.views[view]
        return np.asarray(self.fleet.weights[requests.profile] * requests.total)

    @property
    def usual_node(self) -> int:
        """GPUs of most nodes."""
        sizes = self.nodes.gpus
        return max(set(sizes), key=lambda size: (sizes.count(size), size))

    @property
    def standing_gpus(self) -> float:
        """GPUs that jobs without an end held at once, at most."""
        begin, gpus = np.nan_to_num(self.start_s, nan=np.inf), np.where(self.standing, self.gpus(), 0.0)
        end = np.where(np.isnan(self.end_s), np.inf, self.end_s)
        at = begin[self.standing & np.isfinite(begin)]
        return max((float(gpus[(begin <= now) & (end > now)].sum()) for now in at), default=0.0)

    @property
    def seen_s(self) -> float:
        """Length of what was observed [s]."""
        return (self.end - self.zero).total_seconds()


def asked_of(known: History) -> Asked:
    """Read the jobs of the recent past, or of its last days where it has very many, as requests on today's nodes.

    Jobs that state no start, where others do, are kept: they waited to the end of the observation. Where none does,
    all are taken to have started when they came.
    """
    nodes = nodes_of_todays_fleet(known)
    gpu_model = known.fleet.gpu_model
    zero, end = known.played_since, known.plan_start
    live = (pl.col("end_time").is_null() | (pl.col("end_time") > zero)) & (pl.col("gpus") > 0)
    timed = pl.col("run_s").is_not_null() & pl.col("submit_time").is_not_null()
    mask = known.jobs.select(live & timed).to_series()
    jobs = known.jobs.filter(mask)
    seconds = {
        name: jobs.select((pl.col(name) - zero).dt.total_microseconds() / 1e6).to_series().cast(pl.Float64)
        for name in ("submit_time", "start_time", "end_time", "eligible_time")
    }
    submit, start, stop, eligible = (time.fill_null(np.nan).to_numpy().copy() for time in seconds.values())
    run = jobs["run_s"].to_numpy().astype(float)
    silent = not bool((start - submit > 0).any()) and known.trace.source_facts.source in SUBMISSIONS_ALONE
    starts_assumed = silent or bool(np.isnan(start).all())
    if starts_assumed:
        start = submit.copy()
        stop = np.where(np.isnan(stop), np.nan, start + run)
    _cut_by_successors(jobs, start, stop)
    seen = (end - zero).total_seconds()
    not_over = np.where(np.isnan(start), run, seen - start)
    run = np.where(np.isnan(stop), np.maximum(not_over, 1.0), stop - start)
    limit = np.fmax(jobs["time_limit_s"].cast(pl.Float64).fill_null(np.nan).to_numpy(), run)
    limit = np.where(jobs["time_limit_s"].is_null().to_numpy(), LIMIT_FACTOR * run, limit)
    profiles = _profiles(gpu_model, nodes, known, mask)
    fleet = fleet_of(nodes, gpu_model, profiles)
    eligible = np.where(np.isnan(eligible), submit, np.fmax(np.fmin(eligible, start), submit))
    came = (submit, eligible)
    requested = partial(requests_of, fleet=fleet, gpu_model=gpu_model, came=came, run=run, limit=limit)
    views = _views(known, mask, fleet, requested)
    endless = jobs["time_limit_s"].is_null().to_numpy() & np.isnan(stop) & (start < 0)
    standing = endless | (jobs["job_class"] == SERVICE_JOB_CLASS).fill_null(False).to_numpy()
    return Asked(
        jobs, nodes, fleet, gpu_model, views, start, stop, _pins(jobs, nodes), starts_assumed, zero, end, standing,
        closed_nodes(known, nodes, zero, end), limits_of(rules_of_queues(known)),
    )  # fmt: skip


def closed_nodes(
    known: History, nodes: TodaysNodes, zero: datetime, end: datetime
) -> tuple[tuple[float, float, int, float], ...]:
    """Begin and end, from ``zero`` on [s], node and GPUs of what the data state was out of service, or reserved."""
    table = known.trace.tables.get("out_of_service")
    if table is None or not nodes.named:
        return ()
    place = {name: number for number, name in enumerate(nodes.names)}
    seen_s = (end - zero).total_seconds()
    found = []
    for node, begin, stop, gpus in table.select("node", "start_time", "end_time", "gpus").iter_rows():
        begin_s = max((begin - zero).total_seconds(), 0.0)
        end_s = seen_s if stop is None else min((stop - zero).total_seconds(), seen_s)
        if node in place and begin_s < end_s:
            found.append((begin_s, end_s, place[node], np.inf if gpus is None else float(gpus)))
    return tuple(found)


def limits_of(rules: SharingRules) -> dict[str, float]:
    """GPUs that tenants may hold at once, their own and what they may borrow, where rules state such a limit."""
    return {
        one.name: one.gpus + (one.borrow or 0.0)
        for one in rules.teams
        if one.gpus is not None and (one.cohort is None or one.borrow is not None)
    }


def fleet_of(nodes: TodaysNodes, gpu_model: GpuModel, profiles: tuple[str, ...]) -> NodeFleet:
    """Today's nodes as the engine takes them: one pool, all on."""
    capacity = np.array([counts_of(layouts, profiles) for layouts in nodes.layouts], np.int64)
    gpus, weights = np.array(nodes.gpus), np.array([1.0, *(gpu_model.gpu_fraction(name) for name in profiles[1:])])
    return NodeFleet(profiles, gpus, capacity[:, None, :], np.zeros_like(gpus), weights)


def counts_of(layouts: Sequence[str], profiles: tuple[str, ...]) -> list[int]:
    """Instances of each profile on GPUs of these layouts.

    Examples
    --------
    >>> counts_of(["gpu", "3g.40gb:2"], ("gpu", "1g.10gb", "3g.40gb"))
    [1, 0, 2]
    """
    found = dict.fromkeys(profiles, 0)
    for layout in layouts:
        if layout == UNUSED_LAYOUT:
            continue
        for name, count in ({WHOLE_GPU: 1} if layout == WHOLE_GPU else parse_layout(layout)).items():
            if name in found:
                found[name] += count
    return list(found.values())


def _profiles(gpu_model: GpuModel, nodes: TodaysNodes, known: History, mask: pl.Series) -> tuple[str, ...]:
    """The whole GPU and every profile that anybody has, asks for or needs, ascending."""
    texts = {one for layouts in nodes.layouts for one in layouts} - {WHOLE_GPU, UNUSED_LAYOUT}
    names = {name for text in texts for name in parse_layout(text)}
    if gpu_model.profiles:
        for view in ("requested", "rightsized"):
            names |= set(known.views[view].filter(mask)["profile"].drop_nulls().unique())
    return ascending_profiles(gpu_model, names)


def ascending_profiles(gpu_model: GpuModel, names: Iterable[str]) -> tuple[str, ...]:
    """The whole GPU, and profiles of a board by their size.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> ascending_profiles(load_gpu_model("A100-40GB"), ["3g.20gb", "gpu", "1g.5gb"])
    ('gpu', '1g.5gb', '3g.20gb')
    """
    used = [gpu_model.profile(name) for name in names if name != WHOLE_GPU]
    used.sort(key=lambda one: (one.memory_slices, one.compute_slices, one.name))
    return (WHOLE_GPU, *dict.fromkeys(one.name for one in used))


def larger_profiles(gpu_model: GpuModel, profiles: Sequence[str]) -> list[list[int]]:
    """For each profile the larger ones that may serve it, by memory and slices; whole GPUs serve nobody else.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> larger_profiles(load_gpu_model("A100-40GB"), ["gpu", "1g.5gb", "2g.10gb", "3g.20gb"])
    [[], [2, 3], [3], []]
    """
    sliced = [(number, gpu_model.profile(name)) for number, name in enumerate(profiles) if number]
    larger: list[list[int]] = [[]]
    for own, profile in sliced:
        memory, compute = profile.memory_slices, profile.compute_slices
        enough = (n for n, one in sliced if one.memory_slices >= memory and one.compute_slices >= compute)
        larger.append([number for number in enough if number != own])
    return larger


def _views(
    known: History, mask: pl.Series, fleet: NodeFleet, requested: Callable[[pl.DataFrame], NodeRequests]
) -> dict[str, NodeRequests]:
    gpu_model = known.fleet.gpu_model
    whole = known.views["whole"].filter(mask)
    offered = [name for n, name in enumerate(fleet.profiles) if n and fleet.capacity[:, 0, n].any()]
    asked = known.views["requested"].filter(mask)
    sliced = known.jobs.filter(mask)["instances"].is_not_null() & asked["profile"].is_in(offered)
    granted = asked.select(
        profile=pl.when(sliced).then("profile").otherwise(pl.lit(WHOLE_GPU)),
        instances=pl.when(sliced).then("instances").otherwise(whole["instances"]),
        sms_needed=pl.lit(None, pl.Float64),
        nodes="nodes",
    )
    tables: dict[str, Any] = {AS_TODAY: granted}
    if gpu_model.profiles:
        tables |= {REQUESTED: asked, RIGHTSIZED: known.views["rightsized"].filter(mask)}
    views = {name: requested(table) for name, table in tables.items()}
    if gpu_model.profiles and gpu_model.sms:
        by_class = pl.when(evidence="class").then("sms_needed")
        sizes = known.rightsizing.filter(mask).select(pl.coalesce(tables[RIGHTSIZED]["sms_needed"], by_class))
        used = sizes.to_series().fill_null(0.0).to_numpy() / gpu_model.sms
        views[RIGHTSIZED] = _moved(views[REQUESTED], views[RIGHTSIZED], used, fleet, gpu_model)
    return views


def _moved(
    asked: NodeRequests, needed: NodeRequests, used: Floats, fleet: NodeFleet, gpu_model: GpuModel
) -> NodeRequests:
    """Jobs on another size than they asked for, that run as long as they may, by the share of SMs that they used."""
    sizes = [gpu_model.profile(name) for name in fleet.profiles[1:]]
    slices = [((one.sms or 0) / (gpu_model.sms or 1), one.memory_slices / gpu_model.memory_slices) for one in sizes]
    parts = np.array([(1.0, 1.0), *slices])
    held, given = (parts[one.profile] * one.total[:, None] for one in (asked, needed))
    longest = asked.run_s * slow_end(used / held[:, 0], (held / given).max(axis=1))
    times = np.maximum(longest / needed.run_s, 1.0)
    return replace(needed, run_s=needed.run_s * times, limit_s=needed.limit_s * times)


def slow_end(busy: Floats, times: Floats) -> Floats:
    """How many times as long a job runs at most, if it was busy for such a share on so many times what it gets.

    Busy are SMs on which a warp is resident, one that waits for memory as well. Where all of that comes in bursts of
    the whole, a burst takes so many times as long, and the rest of the time passes as before.

    Examples
    --------
    >>> slow_end(np.array([0.0, 0.5, 1.0]), np.array([7.0, 2.0, 2.0])).tolist()
    [1.0, 1.5, 2.0]
    """
    return np.asarray(1.0 + np.clip(busy, 0.0, 1.0) * (np.maximum(times, 1.0) - 1.0))


def requests_of(
    table: pl.DataFrame,
    fleet: NodeFleet,
    gpu_model: GpuModel,
    came: tuple[Floats, Floats],
    run: Floats,
    limit: Floats,
) -> NodeRequests:
    """Requests of jobs on the nodes of a fleet.

    Jobs on whole GPUs that are more than the largest node has are spread over as many nodes as they need. A job that
    can use more SMs than it asks for runs as much longer.

    Parameters
    ----------
    table : polars.DataFrame
        ``profile, instances, nodes`` of each job, and ``sms_needed`` where that is known.
    fleet : NodeFleet
        The nodes, with the names of the profiles.
    gpu_model : GpuModel
        Board of the nodes.
    came : tuple of two arrays of float, shape (n_jobs,)
        When each job was submitted, and when it became eligible [s].
    run, limit : array of float, shape (n_jobs,)
        Run time on as many SMs as it needs, and run-time limit [s].

    Returns
    -------
    NodeRequests
    """
    submit, eligible = came
    number = {name: place for place, name in enumerate(fleet.profiles)}
    names = table["profile"].fill_null(WHOLE_GPU)
    profile = names.replace_strict(number, default=0, return_dtype=pl.Int64).to_numpy()
    total = np.maximum(table["instances"].fill_null(1).to_numpy().astype(np.int64), 1)
    stated = table["nodes"].cast(pl.Int64).fill_null(1).to_numpy()
    largest = int(fleet.gpus.max())
    # An instance of a gang stays with its kind: what is small enough for a GPU is asked for on one node.
    nodes = np.where(profile == 0, np.clip(stated, 1, total), 1)
    nodes = np.where((profile == 0) & (-(-total // nodes) > largest), -(-total // largest), nodes)
    nodes = np.where(total - (-(-total // nodes)) * (nodes - 1) < 1, -(-total // (-(-total // nodes))), nodes)
    slowdown = np.ones(len(run))
    if "sms_needed" in table.columns and gpu_model.profiles:
        sliced = (gpu_model.profile(name).sms or 0 for name in fleet.profiles[1:])
        sms = np.array([gpu_model.sms or 0, *sliced], float)
        needed = table["sms_needed"].cast(pl.Float64).fill_null(0.0).to_numpy()
        given = sms[profile] * total
        slower = np.maximum(needed / np.maximum(given, 1e-9), 1.0)
        slowdown = np.where((profile > 0) & (given > 0), slower, 1.0)
    return NodeRequests(eligible, submit, run * slowdown, limit * slowdown, profile, total, nodes)


def _pins(jobs: pl.DataFrame, nodes: TodaysNodes) -> list[list[int] | None]:
    """Numbers of the nodes of each job, of those that are there."""
    if not nodes.named:
        return [None] * jobs.height
    place = {name: number for number, name in enumerate(nodes.names)}
    lists: dict[str | None, list[int] | None] = {None: None}
    for text in jobs["node_list"].unique():
        if text is not None:
            lists[text] = [place[name] for name in try_expand_node_list(text) or () if name in place] or None
    return [lists[text] for text in jobs["node_list"]]


def _cut_by_successors(jobs: pl.DataFrame, start: Floats, stop: Floats) -> None:
    """A job that was preempted ends when its successor starts, at the latest."""
    if not (jobs["attempt"] > 1).any():
        return
    rows = jobs.select("job_id", "attempt").with_row_index("row").sort("job_id", "attempt")
    row, name = rows["row"].to_numpy(), rows["job_id"].to_numpy()
    same = name[1:] == name[:-1]
    before, after = row[:-1][same], row[1:][same]
    next_start = np.maximum(start[after], start[before])
    stop[before] = np.where(stop[before] > start[after], next_start, stop[before])


def size_classes(asked: Asked, judged: NDArray[np.bool_], fewest: int = FEWEST_JOBS) -> tuple[Ints, tuple[str, ...]]:
    """Number of the class of each job by what it asked for, and the names: profiles by memory, then whole GPUs.

    One with few judged jobs joins its larger neighbour, the largest its smaller; profiles join only profiles.
    """
    requests = asked.granted
    if REQUESTED in asked.views:
        wished = asked.views[REQUESTED]
        requests = replace(requests, profile=wished.profile, total=wished.total, nodes=wished.nodes)
    profiles = asked.fleet.profiles
    sliced = requests.profile > 0
    whole = len(profiles) - 1 + np.digitize(requests.total, [most + 1 for most in LARGEST])
    number = np.where(sliced, requests.profile - 1, whole)
    names = [*profiles[1:], "1 GPU", "2-4 GPUs", "5-8 GPUs", "9+ GPUs"]
    return joined(number, names, len(profiles) - 1, judged, fewest)


def joined(
    number: Ints, names: Sequence[str], sliced: int, judged: NDArray[np.bool_], fewest: int
) -> tuple[Ints, tuple[str, ...]]:
    """Put small classes to their neighbours of the same kind.

    Examples
    --------
    >>> number = np.array([0] * 30 + [1] * 5 + [2] * 25)
    >>> of, names = joined(number, ["1 GPU", "2-4 GPUs", "5-8 GPUs"], 0, np.ones(60, bool), 20)
    >>> names, np.bincount(of).tolist()
    (('1 GPU', '2-8 GPUs'), [30, 30])
    """
    counts = np.bincount(number[judged], minlength=len(names))
    there = np.bincount(number, minlength=len(names)) > 0
    groups: list[list[int]] = []
    for first, last in ((0, sliced), (sliced, len(names))):
        mine = [[place] for place in range(first, last) if there[place]]
        while len(mine) > 1:
            small = [place for place, group in enumerate(mine) if counts[group].sum() < fewest]
            if not small:
                break
            place = small[0]
            first_of_two = min(place, len(mine) - 2)
            mine[first_of_two : first_of_two + 2] = [mine[first_of_two] + mine[first_of_two + 1]]
        groups += mine
    of = np.zeros(len(names), np.int64)
    for group, members in enumerate(groups):
        of[members] = group
    return of[number], tuple(joined_name([names[place] for place in group]) for group in groups)


def joined_name(names: Sequence[str]) -> str:
    """Name of several classes that are one: from the least GPUs to the most, of profiles all.

    Examples
    --------
    >>> joined_name(["1 GPU", "2-4 GPUs"]), joined_name(["5-8 GPUs", "9+ GPUs"]), joined_name(["1g.5gb", "2g.10gb"])
    ('1-4 GPUs', '5+ GPUs', '1g.5gb, 2g.10gb')
    """
    first, last = names[0], names[-1]
    if len(names) == 1 or not last.endswith(" GPUs"):
        return ", ".join(names)
    least, most = first.partition("-")[0].split()[0], last.removesuffix(" GPUs")
    return f"{least}+ GPUs" if most.endswith("+") else f"{least}-{most.rpartition('-')[2]} GPUs"
