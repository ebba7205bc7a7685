"""Simulation of policies on the same jobs."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.decision_types import TODAY
from gpuplanner.decision.explained_waits import ExplainedWaits
from gpuplanner.decision.queue_model import MAX_ARRIVAL_JITTER_S
from gpuplanner.decision.requested_jobs import AS_TODAY, JobReplayInputs, classify_job_sizes, count_layout_instances
from gpuplanner.simulator.simulation_inputs import NodeAutoscaling, NodeFleet, NodeRequests, Outcome
from gpuplanner.simulator.simulation_run import simulate_requests
from gpuplanner.simulator.simulation_state import Floats

N_REPLAYS = 7
"""Replays of a setting: the first as observed, the others with each arrival a little later."""
FEW_REPLAYS, MANY_JOBS = 3, 100_000
"""Number of replays of a setting if more than this number of jobs is evaluated: their waits then hardly differ by
replay.
"""
WARM_UP_S = 7200.0
"""Time before the record with which simulations start, so that nodes power up for the jobs that run at its begin [s].
"""
MIN_WAITING_TO_STOP = 200
"""Fewest waiting jobs at which a simulation of a setting stops."""
MAX_MEMORY_BYTES = 256 << 20
"""Largest total size of the simulation runs kept in memory; beyond it the least recently used ones are dropped [B]."""

Mask = NDArray[np.bool_]
"""Array of bool that selects jobs or days."""
SettingValues = Mapping[str, float | int | str]
"""Settings of a policy by name."""


@dataclass(frozen=True, eq=False)
class PolicySetting:
    """A policy with all its settings.

    - ``policy``, ``view``: Name of the policy, and the requests that jobs make under it.
    - ``fleet``: Nodes by pool.
    - ``layouts``: Layouts of the GPUs of each node in each pool; empty if the node cannot be in the pool.
    - ``node_numbers``: Numbers of the nodes among today's.
    - ``switching``: Rule that powers nodes up and down; None: all stay on.
    - ``placement``: Nodes that are filled first.
    - ``values``: Values of its settings by name, such as idle minutes, to show.
    """

    policy: str
    view: str
    fleet: NodeFleet
    layouts: tuple[tuple[tuple[str, ...], ...], ...]
    node_numbers: tuple[int, ...]
    switching: NodeAutoscaling | None = None
    placement: str = "best"
    values: SettingValues = field(default_factory=dict)

    @property
    def total_gpus(self) -> int:
        """GPUs of all its nodes."""
        return int(self.fleet.gpus.sum())


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """The simulation run of a policy setting.

    - ``setting``: The setting.
    - ``waits_s``, shape (n_replays, n_jobs): Queue wait of each job from its eligibility [s]; infinity: it never
      started; NaN: not evaluated.
    - ``start_delay_s``, shape (n_jobs,): Time from arrival to start of each job in the first replay [s].
    - ``daily_gpu_hours``, shape (n_days,): GPU-hours provisioned on each day in the first replay.
    - ``outcome``: Outcome of the first replay, without starts and allocations of jobs.
    """

    setting: PolicySetting
    waits_s: Floats
    start_delay_s: Floats
    daily_gpu_hours: Floats
    outcome: Outcome


@dataclass(eq=False)
class ReplayedJobs:
    """The simulation in which policies are compared: jobs, their arrivals, and today's fleet as baseline.

    - ``asked_jobs``: Observed jobs as requests on today's nodes.
    - ``waits``: Causes of their queue waits, and their arrivals.
    - ``queue``: Queue rule: which jobs may pass others.
    - ``limit_minutes``: The most that the p95 queue wait of a job size may rise [min].
    - ``larger_profiles``: Larger MIG profiles that may serve each profile, if the actuator allows it.
    - ``seed``: Seed of the random shifts.

    Jobs that today's GPUs cannot run are not evaluated: ``n_unservable`` is their number.
    """

    asked_jobs: JobReplayInputs
    waits: ExplainedWaits
    queue: str
    limit_minutes: float
    larger_profiles: Sequence[Sequence[int]] | None
    seed: int

    def __post_init__(self) -> None:
        """Draw the shifts of arrivals, and select the jobs that are evaluated."""
        inputs = self.asked_jobs
        started = ~np.isnan(inputs.start_s)
        submit = inputs.requests.submit_s
        self.arrival_s, self.eligible_s = self.waits.compute_arrivals_without_limits(), self.waits.eligible_s
        carried = started & (inputs.start_s < 0)
        has_arrived = ~carried & (submit >= 0) & (self.arrival_s < inputs.observed_s)
        servable = find_servable_requests(inputs.requests, inputs.fleet, larger=self.larger_profiles)
        self.n_unservable = int((has_arrived & ~inputs.is_service & ~servable).sum())
        self.is_evaluated: Mask = has_arrived & ~inputs.is_service & servable
        self.standing: Mask = started & inputs.is_service
        self.ran_before = carried
        rng = np.random.default_rng([self.seed, 41])
        self.shifts_s = np.vstack(
            [np.zeros(len(submit)), rng.uniform(0, MAX_ARRIVAL_JITTER_S, (N_REPLAYS - 1, len(submit)))]
        )
        self.shifts_s[:, ~self.is_evaluated] = 0.0
        self.n_replays = FEW_REPLAYS if self.is_evaluated.sum() > MANY_JOBS else N_REPLAYS
        self.size, self.size_names = classify_job_sizes(inputs, self.is_evaluated)
        self.runs: list[PolicyRun] = []
        self._todays_minutes: dict[tuple[bytes, int], Floats] = {}
        self._job_groups_by_day: dict[bytes, list[list[NDArray[np.int64]]]] = {}

    @cached_property
    def today(self) -> PolicyRun:
        """Simulation run of today's fleet."""
        inputs = self.asked_jobs
        layouts = tuple((layouts,) for layouts in inputs.nodes.layouts)
        numbers = tuple(range(len(inputs.nodes.gpus)))
        values: SettingValues = {"gpus": inputs.nodes.total}
        return self.simulate(PolicySetting(TODAY, AS_TODAY, inputs.fleet, layouts, numbers, values=values))

    def simulate(
        self, setting: PolicySetting, n_draws: int = N_REPLAYS, *, max_waiting: float | None = None,
        until_s: float = np.inf,
    ) -> PolicyRun:  # fmt: skip
        """Simulate a setting over the whole record, or the part that decides the results of its first days.

        Parameters
        ----------
        setting : PolicySetting
            Policy with all its settings.
        n_draws : int
            Replays.
        max_waiting : float, optional
            Share of all jobs waiting at once at which the simulation stops. [0-1]
        until_s : float
            Instant from which neither the waits of arriving jobs nor GPU-hours are needed. [s]
        """
        inputs, n_draws = self.asked_jobs, min(n_draws, self.n_replays)
        waited_s = np.full((n_draws, len(self.arrival_s)), np.nan)
        most_waiting = None
        if max_waiting is not None:
            most_waiting = max(int(max_waiting * len(self.arrival_s)), MIN_WAITING_TO_STOP)
        for draw in reversed(range(n_draws)):  # the first replay, whose outcome is kept, comes last
            requests = self.make_requests(setting.view, draw)
            outcome = simulate_until(
                requests, setting.fleet, until_s, queue=self.queue,
                placement=self.choose_placement(setting.placement),
                larger=self.larger_profiles, switching=setting.switching,
                most_waiting=most_waiting,
            )  # fmt: skip
            started = np.where(np.isnan(outcome.start_s), np.inf, outcome.start_s)
            draw_waited_s = np.maximum(started - self.eligible_s, 0.0)
            waited_s[draw] = np.where(self.is_evaluated | self.standing, draw_waited_s, np.nan)
        # Begin of each day that was observed, and the end of the last one, as far as it went.
        days = int(np.ceil(inputs.observed_s / SECONDS_PER_DAY - 1e-9))
        edges_s = [min(day * SECONDS_PER_DAY, inputs.observed_s) for day in range(days + 1)]
        node, since, until = (outcome.power_intervals[name].to_numpy() for name in ("node", "from_s", "until_s"))
        daily_gpu_hours = sum_gpu_hours(since, until, setting.fleet.gpus[node], edges_s)
        # Of a hundred runs of many jobs, the allocations would be most of the memory; what they say is in the waits.
        none = np.empty(0)
        outcome = replace(outcome, start_s=none, factor=none, allocations=outcome.allocations.clear())
        run = PolicyRun(setting, waited_s, started - self.arrival_s, daily_gpu_hours, outcome)
        self.runs.append(run)
        return run

    def choose_placement(self, stated: str = "best") -> str:
        """Return the placement rule to simulate: ``lowest`` under Slurm, else the stated one.

        ``best`` becomes ``spread`` where the queue was observed to spread jobs over nodes.
        """
        if self.queue == "slurm":  # it takes the first of its table, whoever runs the fleet how
            return "lowest"
        return "spread" if stated == "best" and self.waits.queue.spread else stated

    def make_requests(self, view: str, draw: int = 0) -> NodeRequests:
        """Make the requests of the jobs in a replay; each run includes the median handover of the scheduler."""
        requests, handover = self.asked_jobs.views[view], self.waits.queue.handover.median_s
        ready_s = self.arrival_s + self.shifts_s[draw]
        run_s = requests.run_s + handover
        ready_s = np.where(self.ran_before, -WARM_UP_S, np.maximum(ready_s, -WARM_UP_S + 1.0))
        remaining_s = np.where(np.isnan(self.asked_jobs.end_s), self.asked_jobs.observed_s, self.asked_jobs.end_s)
        run_s = np.where(self.ran_before, np.maximum(remaining_s + WARM_UP_S, 1.0), run_s)
        limit_s = requests.limit_s + handover
        limit_s = np.where(self.ran_before, np.maximum(limit_s, run_s), limit_s)
        return replace(requests, ready_s=ready_s, run_s=run_s, limit_s=limit_s)

    def wait_minutes(self, run: PolicyRun, job_mask: Mask) -> Floats:
        """Compute the percentile of the queue wait of each job size, and the mean over all jobs [min].

        Each is the median over the replays; the shape is (n_sizes + 1,), the mean last.
        """
        waits_s = np.zeros((len(run.waits_s), len(self.size_names) + 1))
        job_mask = job_mask & self.is_evaluated
        for draw, waited_s in enumerate(run.waits_s):
            for number in range(len(self.size_names)):
                waits_s[draw, number] = take_order_statistic(waited_s[job_mask & (self.size == number)], WAIT_QUANTILE)
            waits_s[draw, -1] = waited_s[job_mask].mean() if job_mask.any() else 0.0
        return np.median(waits_s, axis=0) / SECONDS_PER_MINUTE

    def todays_minutes(self, job_mask: Mask, n_draws: int = N_REPLAYS) -> Floats:
        """Compute :meth:`wait_minutes` on today's fleet, or of the whole record where that is longer [min]."""
        key = job_mask.tobytes(), n_draws
        if key not in self._todays_minutes:
            today = replace(self.today, waits_s=self.today.waits_s[:n_draws])
            minutes = np.maximum(self.wait_minutes(today, job_mask), self.wait_minutes(today, self.is_evaluated))
            self._todays_minutes[key] = minutes
        return self._todays_minutes[key]

    def worst_excess_minutes(self, run: PolicyRun, job_mask: Mask) -> float:
        """Compute by how much the p95 wait of the worst job size exceeds today's wait and its allowed rise [min].

        The mean wait of all jobs counts as one more size. At most 0: the limit is met.
        """
        todays_minutes = self.todays_minutes(job_mask, len(run.waits_s))
        return float((self.wait_minutes(run, job_mask) - todays_minutes - self.limit_minutes).max())

    def meets_limit(self, run: PolicyRun, job_mask: Mask, *, tolerance_minutes: float = 0.0) -> bool:
        """Whether each job size is within its allowed wait and every job starts.

        Jobs without an end have a limit of their own: they must start within an hour of their start on today's fleet.

        Parameters
        ----------
        run : PolicyRun
            Simulation run to evaluate.
        job_mask : array of bool, shape (n_jobs,)
            Jobs that count.
        tolerance_minutes : float
            Allowance on top of the limit. [min]
        """
        job_mask = job_mask & self.is_evaluated
        todays_standing_s = self.today.waits_s[:, self.standing].max(axis=0)
        # What has no end gets its GPUs within an hour of when today's fleet gives them: it keeps them for days.
        started_in_time = run.waits_s[:, self.standing] <= todays_standing_s + SECONDS_PER_HOUR
        if not started_in_time.all() or np.isinf(run.waits_s[:, job_mask]).any():
            return False
        return self.worst_excess_minutes(run, job_mask) <= tolerance_minutes + 1e-9

    def share_of_days_met(self, run: PolicyRun, job_mask: Mask) -> float:
        """Compute the share of the days on which all jobs, and each job size with enough jobs, meet the limit [0-1]."""
        limit_s, waits_s, todays_s = self.limit_minutes * SECONDS_PER_MINUTE, run.waits_s[0], self.today.waits_s[0]
        days_within_limit = []
        for groups in self._list_job_groups(job_mask & self.is_evaluated):
            waits = (
                (take_order_statistic(all_s[rows], WAIT_QUANTILE) for all_s in (waits_s, todays_s)) for rows in groups
            )
            days_within_limit.append(max(after_s - before_s for after_s, before_s in waits) <= limit_s + 1e-6)
        return float(np.mean(days_within_limit)) if days_within_limit else 1.0

    def _list_job_groups(self, job_mask: Mask) -> list[list[NDArray[np.int64]]]:
        """List for each day the rows of all its jobs, then of those of each size with enough jobs."""
        key = job_mask.tobytes()
        if key not in self._job_groups_by_day:
            day, groups_by_day = np.floor(self.arrival_s / SECONDS_PER_DAY), []
            for number in np.unique(day[job_mask]):
                jobs = np.flatnonzero(job_mask & (day == number))
                groups = [jobs[self.size[jobs] == size_number] for size_number in range(len(self.size_names))]
                # A class of fewer than 40 jobs on one day is not evaluated by itself.
                groups_by_day.append([jobs, *(group for group in groups if len(group) >= 40)])
            self._job_groups_by_day[key] = groups_by_day
        return self._job_groups_by_day[key]

    def peak_gpus(self, run: PolicyRun) -> int:
        """Return the most GPUs that a setting has powered on at once within the record."""
        return run.outcome.peak_gpus(run.setting.fleet.gpus, 0.0, self.asked_jobs.observed_s)


_memory: dict[bytes, tuple[Outcome, int]] = {}
"""Cache of simulation runs with their sizes [B], by the digest of their arguments, least recently used first."""
_memory_lock = threading.Lock()
"""Lock of the cache of simulation runs."""


def simulate_once(requests: NodeRequests, fleet: NodeFleet, **rules: Any) -> Outcome:  # noqa: ANN401 - as simulate_requests takes them
    """Simulate as :func:`~gpuplanner.simulator.simulation_run.simulate_requests`, once for the same arguments.

    Examples
    --------
    >>> requests = NodeRequests([0, 1], [0, 1], [9, 9], [9, 9], [0, 0], [8, 8], [1, 1])
    >>> simulate_once(requests, NodeFleet.of_full_gpus([8])) is simulate_once(requests, NodeFleet.of_full_gpus([8]))
    True
    """
    key = hashlib.blake2b(pickle.dumps((requests, fleet, rules)), digest_size=20).digest()
    with _memory_lock:
        outcome, size_bytes = _memory.pop(key, (None, 0))
    if outcome is None:
        outcome = simulate_requests(requests, fleet, **rules)
        outcome.start_s.flags.writeable = False
        table_bytes = outcome.power_intervals.estimated_size() + outcome.allocations.estimated_size()
        size_bytes = outcome.start_s.nbytes + int(table_bytes)
    with _memory_lock:
        _memory[key] = outcome, size_bytes
        excess = sum(size_bytes for _, size_bytes in _memory.values()) - MAX_MEMORY_BYTES
        while excess > 0 and len(_memory) > 1:
            excess -= _memory.pop(next(iter(_memory)))[1]
    return outcome


def simulate_until(requests: NodeRequests, fleet: NodeFleet, until_s: float, **rules: Any) -> Outcome:  # noqa: ANN401 - as simulate_once
    """Simulate requests so that all results before an instant, and the starts of requests ready by then, are exact.

    A request changes nothing before it is ready, so that later ones are left out if all that count start before them.

    Parameters
    ----------
    requests : NodeRequests
        All requests.
    fleet : NodeFleet
        Nodes.
    until_s : float
        Instant from which results are not needed. [s]
    **rules
        As of :func:`simulate_once`.

    Returns
    -------
    Outcome
        Requests that are left out never start.

    Examples
    --------
    >>> requests = NodeRequests([0, 1, 2e5, 3e5], [0, 1, 2, 3], [9] * 4, [9] * 4, [0] * 4, [8] * 4, [1] * 4)
    >>> simulate_until(requests, NodeFleet.of_full_gpus([8]), 5.0).start_s.tolist()
    [0.0, 9.0, 200000.0, nan]
    """
    ready_s = requests.ready_s
    # The first request that is left in marks the end: nodes power down before it as with all requests.
    last_s = ready_s[ready_s >= until_s + SECONDS_PER_DAY].min(initial=np.inf)
    rows = np.flatnonzero(ready_s <= last_s)
    if len(rows) < len(requests):
        outcome = simulate_once(requests.select(rows), fleet, **rules)
        if not (outcome.start_s[ready_s[rows] < until_s] > last_s).any():
            start_s, factor = np.full((2, len(requests)), np.nan)
            start_s[rows], factor[rows] = outcome.start_s, outcome.factor
            allocations = outcome.allocations.with_columns(request=rows[outcome.allocations["request"]])
            return replace(outcome, start_s=start_s, factor=factor, allocations=allocations)
    return simulate_once(requests, fleet, **rules)


def find_servable_requests(requests: NodeRequests, fleet: NodeFleet, *, larger: Sequence[Sequence[int]] | None) -> Mask:
    """Whether each request can start on an empty fleet as its GPUs are partitioned: an array of shape (n_requests,).

    Parameters
    ----------
    requests : NodeRequests
        Requests of the jobs.
    fleet : NodeFleet
        Nodes, in their first pool.
    larger : sequence of sequence of int, or None
        Numbers of the larger profiles that may serve each profile.
    """
    request_kinds = np.column_stack([requests.profile, requests.total, requests.nodes])
    _, first, kind = np.unique(request_kinds, axis=0, return_index=True, return_inverse=True)
    begin_s = 2.0 * np.arange(len(first), dtype=np.float64)
    second = np.ones(len(first), np.float64)
    # One after another: each finds the fleet empty.
    separate = replace(requests.select(first), ready_s=begin_s, submit_s=begin_s, run_s=second, limit_s=second)
    started = simulate_once(separate, fleet, larger=larger).start_s
    return np.asarray(~np.isnan(started)[kind.reshape(-1)])


WAIT_QUANTILE = 0.95
"""Quantile of queue waits that is reported and limited, p95 [0-1]."""


def take_order_statistic(values: Floats, quantile: float) -> float:
    """Return the smallest value that a share of all does not exceed, without interpolation; 0 without values.

    Examples
    --------
    >>> take_order_statistic(np.arange(1.0, 21.0), 0.95)
    19.0
    """
    if not len(values):
        return 0.0
    index = max(int(np.ceil(quantile * len(values) - 1e-9)) - 1, 0)
    return float(np.partition(values, index)[index])


def sum_gpu_hours(begin_s: Floats, end_s: Floats, gpus: NDArray[Any], edges_s: Sequence[float]) -> Floats:
    """Sum the GPU-hours of allocations between each instant and the next.

    Parameters
    ----------
    begin_s, end_s : array of float, shape (n_allocations,)
        Begin and end of each allocation. [s]
    gpus : array of float, shape (n_allocations,)
        GPUs of each.
    edges_s : sequence of float
        Instants in order. [s]

    Returns
    -------
    array of float, shape (n_edges - 1,)
        GPU-hours.

    Examples
    --------
    >>> sum_gpu_hours(np.array([-3600.0, 1800.0]), np.array([7200.0, np.inf]), np.array([8, 2]), [0.0, 3600.0, 7200.0])
    array([ 9., 10.])
    """
    seconds_by_interval = (np.minimum(end_s, high) - np.maximum(begin_s, low) for low, high in pairwise(edges_s))
    return np.array([(gpus * np.clip(seconds, 0.0, None)).sum() for seconds in seconds_by_interval]) / SECONDS_PER_HOUR


def sum_allocated_gpu_hours(inputs: JobReplayInputs, job_mask: Mask) -> float:
    """Sum the GPU-hours that the selected jobs were allocated within the record, as observed."""
    started = job_mask & ~np.isnan(inputs.start_s)
    end_s = np.where(np.isnan(inputs.end_s), inputs.observed_s, inputs.end_s)[started]
    return float(
        sum_gpu_hours(inputs.start_s[started], end_s, inputs.gpus_by_job()[started], [0.0, inputs.observed_s])[0]
    )


def find_smallest(is_enough: Callable[[int], bool], lower_bound: int, upper_bound: int) -> int | None:
    """Find the smallest number that is enough by doubling and halving; None if none is.

    Numbers above it must be enough as well.

    Examples
    --------
    >>> find_smallest(lambda count: count >= 11, 0, 64), find_smallest(lambda count: False, 0, 8)
    (11, None)
    """
    low, high, step = lower_bound - 1, lower_bound, 1
    while not is_enough(high):
        if high >= upper_bound:
            return None
        low, high, step = high, min(high + step, upper_bound), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def partition_nodes(
    inputs: JobReplayInputs, numbers: Sequence[int], layouts: Sequence[Sequence[Sequence[str]]]
) -> tuple[NodeFleet, tuple[tuple[tuple[str, ...], ...], ...]]:
    """Partition today's nodes of these numbers: layouts of GPUs by node and node pool; nodes begin in the first."""
    fleet = inputs.fleet
    capacity = np.array([[count_layout_instances(pool, fleet.profiles) for pool in node] for node in layouts], np.int64)
    begin = np.zeros(len(numbers), np.int64)
    partitioned_fleet = NodeFleet(fleet.profiles, fleet.gpus[list(numbers)], capacity, begin, fleet.weights)
    return partitioned_fleet, tuple(tuple(tuple(pool) for pool in node) for node in layouts)
