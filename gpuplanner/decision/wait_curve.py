"""The wait curve: queue waits by job size against the number of GPUs, with an interval."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.libraries_plugins_and_workers import report_step
from gpuplanner.core.units_and_number_formats import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.decision_types import CurvePoint
from gpuplanner.decision.explained_waits import ExplainedWaits
from gpuplanner.decision.policy_simulation import MANY_JOBS, WAIT_QUANTILE, take_order_statistic
from gpuplanner.decision.queue_model import ObservedWaits, arrival_jitter_s
from gpuplanner.decision.requested_jobs import JobReplayInputs
from gpuplanner.decision.wait_causes import CAUSES, QUEUED_BEHIND, UNEXPLAINED
from gpuplanner.simulator.simulation_inputs import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints

CURVE_RUNS = 5
"""Number of replays of the record, with arrivals delayed by up to half a minute: a single replay is a random draw."""
CURVE_INTERVAL = (0.1, 0.9)
"""Quantiles that bound the 80 % interval of the wait curve [0-1]."""
DAYS_PER_WEEK = 7
"""Days of a week."""


def resize_node_fleet(fleet: NodeFleet, nodes: int) -> NodeFleet:
    """Take the first nodes of a fleet, or all nodes and copies of the most common one.

    Examples
    --------
    >>> [resize_node_fleet(NodeFleet.of_full_gpus([8, 8, 4]), nodes).gpus.tolist() for nodes in (2, 4)]
    [[8, 8], [8, 8, 4, 8]]
    """
    today = len(fleet.gpus)
    added = np.full(max(nodes - today, 0), find_usual_node(fleet))
    return fleet.only(np.concatenate([np.arange(min(nodes, today)), added]))


def find_usual_node(fleet: NodeFleet) -> int:
    """Find the number of the first node of the most common size; of equally common sizes, the largest.

    Examples
    --------
    >>> find_usual_node(NodeFleet.of_full_gpus([4, 8, 8])), find_usual_node(NodeFleet.of_full_gpus([4, 8]))
    (1, 1)
    """
    sizes, first, count = np.unique(fleet.gpus, return_index=True, return_counts=True)
    return int(first[len(sizes) - 1 - np.argmax(count[::-1])])


def draw_record(
    arrival_s: Floats, fixed: NDArray[np.bool_], seen_s: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Resample the record, at the same length: each day takes the jobs of a random day with the same weekday.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs of every record: those running at the beginning, and services.
    seen_s : float
        Length of the record [s].
    rng : numpy.random.Generator
        Draws.

    Returns
    -------
    rows : array of int
        Jobs of the record that arrive, some of them more than once.
    arrival_s : array of float
        When each arrives [s].
    """
    days = max(int(np.ceil(seen_s / SECONDS_PER_DAY)), 1)
    day = np.clip(np.floor(arrival_s / SECONDS_PER_DAY).astype(np.int64), 0, days - 1)
    by_day = [np.flatnonzero((day == number) & ~fixed) for number in range(days)]
    rows, arrivals = [np.flatnonzero(fixed)], [arrival_s[fixed]]
    for target in range(days):
        source = int(rng.choice(np.arange(target % DAYS_PER_WEEK, days, DAYS_PER_WEEK)))
        rows.append(by_day[source])
        arrivals.append(arrival_s[by_day[source]] + (target - source) * SECONDS_PER_DAY)
    return np.concatenate(rows), np.concatenate(arrivals)


def scale_load(arrival_s: Floats, fixed: NDArray[np.bool_], load: float | Floats, seen_s: float) -> tuple[Ints, Floats]:
    """Repeat or leave out jobs at random to scale the load; a repeated job arrives in another week.

    It arrives at about the same hour of the same weekday.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs that arrive once at any load.
    load : float or array of float, shape (n_jobs,)
        How many times each arrives; jobs of a smaller load are a subset of those of a larger one.
    seen_s : float
        Length of the record [s].

    Returns
    -------
    rows : array of int
        Jobs of the record that arrive.
    arrival_s : array of float
        When each arrives [s].

    Examples
    --------
    >>> rows, arrival = scale_load(np.array([0.0, 9.0]), np.array([True, False]), 2.0, 14 * 86400.0)
    >>> rows.tolist(), (arrival > 86400).tolist()
    ([0, 1, 1], [False, False, True])
    """
    count = len(arrival_s)
    if np.ndim(load) == 0 and load == 1.0:
        return np.arange(count), arrival_s
    rng = np.random.default_rng(7)
    copies = np.where(fixed, 1, np.floor(load + rng.random(count))).astype(np.int64)
    # Repeated jobs arrive with a standard deviation of half an hour.
    weeks, offset_s = rng.random(count), rng.normal(0, 1800.0, count)
    rows = np.repeat(np.arange(count), copies)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    other_weeks = max(int(seen_s / (DAYS_PER_WEEK * SECONDS_PER_DAY)) - 1, 1)
    later = DAYS_PER_WEEK * SECONDS_PER_DAY * ((np.floor(weeks[rows] * other_weeks) + nth - 1) % other_weeks + 1)
    moved = (arrival_s[rows] + later + nth * offset_s[rows]) % np.maximum(seen_s, 1.0)
    return rows, np.where(nth > 0, moved, arrival_s[rows])


def simulate_waits(
    inputs: JobReplayInputs, waits: ExplainedWaits, fleet: NodeFleet, rows: Ints, arrival_s: Floats
) -> Floats:
    """Simulate jobs of the record on a fleet, and return the wait of each from its eligibility [s].

    Parameters
    ----------
    inputs : JobReplayInputs
        Jobs and requests of the record.
    waits : ExplainedWaits
        Queue model, and delays that it does not explain.
    fleet : NodeFleet
        Nodes to run on.
    rows : array of int, shape (n,)
        Jobs to simulate.
    arrival_s : array of float, shape (n,)
        When each arrives [s].

    Returns
    -------
    array of float, shape (n,)
        Waits [s]; infinite for jobs that never start.
    """
    requests: NodeRequests = inputs.requests.select(rows).with_ready_times(arrival_s)
    start = waits.queue.start(requests, fleet, rows)
    return np.asarray(start - arrival_s + waits.delay_s[rows])


def wait_p95(waits_s: Floats) -> float:
    """Return the 95th percentile of waits [s]."""
    return take_order_statistic(waits_s, WAIT_QUANTILE)


MIN_SHARE_WITHIN_LIMIT = 0.8
"""Smallest share of resampled weeks in which a wait limit must be met [0-1]."""
Bools: TypeAlias = NDArray[np.bool_]
"""Array of bool."""
CAPACITY_CAUSES = CAUSES[:QUEUED_BEHIND]
"""Causes of waiting that more GPUs, other MIG layouts or better placement end."""


@dataclass(frozen=True)
class WaitTarget:
    """Target of queue waits.

    - ``target_s``: Limit of the 95th percentile of the wait of each size that can meet it [s].
    - ``added_s``: Maximum added wait of a size that meets the target today [s].
    - ``stated``: Whether the planner stated the target; a purchase is then not weighed against the waiting that it
      ends.
    """

    target_s: float = 1800.0
    added_s: float = 600.0
    stated: bool = False


@dataclass(frozen=True, eq=False)
class WaitModel:
    """Wait model: source of all answers on queue waits.

    - ``inputs``: Jobs and nodes of the record.
    - ``waits``: Queue model and explained waits.
    - ``size_of_job``, shape (n_jobs,): Number of the job size of each job, in ``size_names``.
    - ``size_names``: Names of the job sizes.
    - ``may_partition``: Whether measures may change MIG layouts.
    - ``kept``: Arrivals of records, and results on fleets, that are used again.
    """

    inputs: JobReplayInputs
    waits: ExplainedWaits
    size_of_job: Ints
    size_names: tuple[str, ...] = ()
    may_partition: bool = True
    kept: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of the job sizes with evaluated jobs."""
        numbers: list[int] = np.unique(self.size_of_job[self.waits.is_evaluated]).tolist()
        return numbers

    @property
    def pools(self) -> list[SizedPool]:
        """Today's nodes by the profiles that they offer; nodes whose GPUs are shared without MIG are always kept."""
        nodes = self.inputs.nodes
        shared = [number for number, name in enumerate(nodes.names) if name in nodes.shared]
        return split_by_profiles(self.inputs.fleet, shared)

    def without_limits(self) -> WaitModel:
        """Return the model without limits of tenants; delays that they explained are removed."""
        queue = replace(self.waits.queue, limits=())
        undelayed_s = self.waits.arrival_s - self.waits.delay_s
        waits = replace(self.waits, queue=queue, arrival_s=undelayed_s, delay_s=np.zeros_like(undelayed_s))
        return replace(self, waits=waits)

    def percentiles(self, fleet: NodeFleet, row: int, *, load: float | Floats = 1.0) -> Floats:
        """95th percentile of the wait of each size, the first row of :meth:`measures`, shape (n_sizes,) [s]."""
        waits_s: Floats = self.measures(fleet, row, load=load)[0]
        return waits_s

    def measures(self, fleet: NodeFleet, row: int, *, load: float | Floats = 1.0) -> Floats:
        """Statistics by size [s] as of :meth:`summarize_waits`: of the record in row 0, of resampled weeks after it.

        The record's is the median of its replays.

        Parameters
        ----------
        fleet : NodeFleet
            Nodes to run on.
        row : int
            0, or one more than the number of the draw, which is the same for every fleet.
        load : float or array of float, shape (n_jobs,)
            How many times each job arrives: less than once leaves some out, more repeats some in another week.

        Returns
        -------
        array of float, shape (4, n_sizes)
        """
        replays = range(1 if row else CURVE_RUNS)
        return np.median([self.measure_replay(fleet, row, replay, load, None) for replay in replays], axis=0)

    def draw_intervals(self, fleet: NodeFleet, draws: int) -> Floats:
        """Bounds of the 80 % interval of waits and completion times, of resampled weeks, shape (2, 2, n_sizes) [min].

        The first axis is the measure of :meth:`measures`, the second the low and the high end; infinite where jobs
        do not start within the length of the record.
        """
        drawn_s = np.array([self.measures(fleet, 1 + number)[:2] for number in range(draws)])
        drawn_s[:, 0][drawn_s[:, 0] >= self.inputs.observed_s] = np.inf

        def find_ends(values_s: Floats) -> Floats:
            """Find the ends over the records that have jobs of the size; NaN where none has."""
            known_s = values_s[~np.isnan(values_s)]
            with np.errstate(invalid="ignore"):  # between infinite waits there is no number
                ends_s = np.quantile(known_s, CURVE_INTERVAL) if len(known_s) else np.full(2, np.nan)
            return np.where(np.isnan(ends_s) & (len(known_s) > 0), np.inf, ends_s)

        ends_s: Floats = np.apply_along_axis(find_ends, 0, drawn_s)
        return ends_s.swapaxes(0, 1) / SECONDS_PER_MINUTE

    def measure_replay(
        self, fleet: NodeFleet, row: int, replay: int, load: float | Floats, jobs: Bools | None
    ) -> Floats:
        """Return :meth:`measures` of one replay of a record; those of all jobs at one load are kept."""
        key = (row, replay, load, *_fleet_key(fleet)) if jobs is None and np.ndim(load) == 0 else None
        if key is not None and key in self.kept:
            return self.kept[key]  # type: ignore[no-any-return]
        rows, arrival_s = self.draw_arrivals(row, load)
        if not row:
            arrival_s = arrival_s + self.arrival_shift_s(replay)[rows]
        if jobs is not None:
            rows, arrival_s = rows[jobs[rows]], arrival_s[jobs[rows]]
        if key is not None and not row and load == 1.0:
            waits_s = self.replay_waits(fleet, replay, keep=fleet is self.inputs.fleet)
        else:
            waits_s = simulate_waits(self.inputs, self.waits, fleet, rows, arrival_s)
        measured_s = self.summarize_waits(rows, arrival_s, waits_s)
        if key is not None:
            self.kept[key] = measured_s
        return measured_s

    def summarize_waits(self, rows: Ints, arrival_s: Floats, waits_s: Floats) -> Floats:
        """Summarize the waits of jobs by size; NaN where there are none, but for the wait p95.

        Parameters
        ----------
        rows : array of int, shape (n,)
            Jobs of the record.
        arrival_s, waits_s : array of float, shape (n,)
            When each arrives, and how long it waits [s].

        Returns
        -------
        array of float, shape (4, n_sizes)
            95th percentile of the wait, mean time from eligibility to end, end of the last job from the begin of the
            record, and mean wait [s]. In the times to the end a job that never starts waits to the end of the record.
        """
        size = np.where(self.waits.is_evaluated, self.size_of_job, -1)[rows]
        columns = []
        for number in self.sizes:
            of_size = np.flatnonzero(size == number)
            arrival, waited = arrival_s[of_size], waits_s[of_size]
            completion = np.minimum(waited, self.inputs.observed_s) + self.inputs.requests.run_s[rows[of_size]]
            # A resampled record may lack the jobs of a size.
            means = (completion.mean(), (arrival + completion).max(), waited.mean()) if len(of_size) else (np.nan,) * 3
            columns.append((wait_p95(waited), *means))
        return np.array(columns).reshape(-1, 4).T

    def summarize_replays(self, replays_s: Sequence[Floats]) -> Floats:
        """Summarize the waits of all jobs in replays of the record as :meth:`summarize_waits`, by their medians."""
        every, arrival_s = np.arange(len(self.size_of_job)), self.waits.arrival_s
        return np.median([self.summarize_waits(every, arrival_s, waits_s) for waits_s in replays_s], axis=0)

    def draw_arrivals(self, row: int, load: float | Floats) -> tuple[Ints, Floats]:
        """Jobs that arrive at a load in the record (row 0) or a resampled one, and when [s]."""
        key, waits, seen_s = (row, load), self.waits, self.inputs.observed_s
        if np.ndim(load) == 0 and key in self.kept:
            return self.kept[key]  # type: ignore[no-any-return]
        rows, arrival_s = scale_load(waits.arrival_s, ~waits.is_evaluated, load, seen_s)
        if row:
            rng = np.random.default_rng(99 + row)
            drawn, arrival_s = draw_record(arrival_s, ~waits.is_evaluated[rows], seen_s, rng)
            rows = rows[drawn]
        if np.ndim(load) == 0 and len(rows) <= MANY_JOBS:
            self.kept[key] = rows, arrival_s
        return rows, arrival_s

    def arrival_shift_s(self, number: int) -> Floats:
        """Draw the random arrival delay of each job of the record in a replay, shape (n_jobs,) [s]."""
        return arrival_jitter_s(len(self.waits.arrival_s), number)

    def replay_waits(self, fleet: NodeFleet, number: int = 0, *, keep: bool = False) -> Floats:
        """Simulate the wait of each job [s], shape (n_jobs,), in a replay with arrivals up to 30 s later.

        With `keep` it is kept for the same fleet.
        """
        key = (number, *_fleet_key(fleet))
        if key in self.kept:
            return self.kept[key]  # type: ignore[no-any-return]
        every = np.arange(len(self.waits.arrival_s))
        arrival_s = self.waits.arrival_s + self.arrival_shift_s(number)
        waits_s = simulate_waits(self.inputs, self.waits, fleet, every, arrival_s)
        if keep:
            self.kept[key] = waits_s
        return waits_s

    def mean_replay_error(self) -> float:
        """Sum over teams and job sizes of |mean of the replays of today - observed waiting|, per second observed."""
        waits, team_and_size = self.waits, self.waits.queue.tenant * len(self.size_names) + self.size_of_job
        replays = [self.replay_waits(self.inputs.fleet, number) for number in range(CURVE_RUNS)]
        simulated_s = np.minimum(np.mean(replays, axis=0), self.inputs.observed_s)
        return ObservedWaits(waits.waited_s, team_and_size, waits.is_evaluated).error(simulated_s)


def _fleet_key(fleet: NodeFleet) -> tuple[bytes, bytes]:
    """Return GPUs and capacity of all nodes, by which results on a fleet are found again."""
    return fleet.gpus.tobytes(), fleet.capacity.tobytes()


def find_late_sizes(model: WaitModel, target: WaitTarget) -> list[int]:
    """Find the job sizes whose observed p95 wait is above the target in 80 % of random draws of the record's days."""
    waits, rng = model.waits, np.random.default_rng(5)
    day = np.floor(np.maximum(waits.arrival_s - waits.delay_s, 0) / SECONDS_PER_DAY).astype(np.int64)
    days = int(day.max()) + 1
    drawn = [np.bincount(rng.integers(0, days, days), minlength=days) for _ in range(200)]
    late = []
    for number in model.sizes:
        rows_of_size = np.flatnonzero(waits.is_evaluated & (model.size_of_job == number))
        order = rows_of_size[np.argsort(waits.waited_s[rows_of_size])]
        over = []
        for times in drawn:
            total = np.cumsum(times[day[order]])
            row = np.searchsorted(total, WAIT_QUANTILE * total[-1])
            over.append(total[-1] > 0 and waits.waited_s[order[min(row, len(order) - 1)]] > target.target_s)
        if np.mean(over) >= MIN_SHARE_WITHIN_LIMIT:
            late.append(number)
    return late


def sum_cause_hours(model: WaitModel, sizes: list[int]) -> dict[str, float]:
    """Sum the waiting of jobs of these sizes by cause [h]; waiting behind others counts to their causes."""
    is_counted = model.waits.is_evaluated & np.isin(model.size_of_job, sizes)
    hours = dict(zip(CAUSES, (model.waits.seconds[is_counted].sum(axis=0) / 3600).tolist(), strict=True))
    behind, capacity_hours = hours.pop(CAUSES[QUEUED_BEHIND]), sum(hours[cause] for cause in CAPACITY_CAUSES)
    for cause in CAPACITY_CAUSES:
        hours[cause] += behind * hours[cause] / capacity_hours if capacity_hours else 0.0
    if not capacity_hours:
        hours[CAUSES[UNEXPLAINED]] += behind
    return hours


def wait_limits(model: WaitModel, target: WaitTarget) -> tuple[Floats, Floats]:
    """Compute the wait of each job size today, and its limit, in the record and in resampled weeks.

    A size that meets the target today may wait longer by the maximum added wait; the limit of any other is the target.

    Parameters
    ----------
    model : WaitModel
        The model to simulate.
    target : WaitTarget
        Target of queue waits.

    Returns
    -------
    today, limit : array of float, shape (1 + n_draws, n_sizes)
        95th percentiles today, and limits [s].
    """
    # The record and twenty drawn records.
    today = np.array([model.percentiles(model.inputs.fleet, row) for row in range(21)])
    limit = np.minimum(target.target_s, today + target.added_s)
    return today, np.where(today <= target.target_s, limit, target.target_s)


@dataclass(frozen=True, eq=False)
class SizedPool:
    """Nodes that the same jobs run on, whose number is varied to find how many are needed.

    - ``profiles``: Numbers of the profiles that only these nodes offer.
    - ``today``: Number of units (nodes) today.
    - ``resize``: Returns the nodes for a number of units.
    - ``movable``: Whether its GPUs may be moved to another pool.
    - ``nodes``: Numbers of today's nodes, those to keep longest first.
    - ``added_node``: Number of the one among them that nodes beyond today's are copies of.
    - ``min_units``: Units that are always kept.
    - ``expected``: Units around which the fewest are looked for; 0: those of today.
    - ``layouts``: Where units are GPUs, the layouts that they get in order, each with its number of GPUs.
    """

    profiles: tuple[int, ...]
    today: int
    resize: Callable[[int], NodeFleet]
    movable: bool = False
    nodes: tuple[int, ...] = ()
    added_node: int = 0
    min_units: int = 1
    expected: int = 0
    layouts: tuple[tuple[str, int], ...] = ()


def count_gpus_by_layout(layouts: Sequence[tuple[str, int]], gpus: int) -> dict[str, int]:
    """Count the GPUs of each layout among a number of GPUs: each has at most its own, the last one all further ones.

    Examples
    --------
    >>> count_gpus_by_layout([("4g.40gb:1,3g.40gb:1", 2), ("3g.40gb:2", 4)], 9)
    {'4g.40gb:1,3g.40gb:1': 2, '3g.40gb:2': 7}
    """
    counts: dict[str, int] = {}
    for layout, max_gpus in layouts[:-1]:
        counts[layout] = min(max_gpus, gpus - sum(counts.values()))
    return counts | {layout: gpus - sum(counts.values()) for layout, _ in layouts[-1:]}


def split_by_profiles(fleet: NodeFleet, kept_nodes: Collection[int] = ()) -> list[SizedPool]:
    """Split the nodes of a fleet into pools by the profiles that they offer; the unit is a node.

    Parameters
    ----------
    fleet : NodeFleet
        The nodes.
    kept_nodes : collection of int
        Nodes that are always kept.

    Returns
    -------
    list of SizedPool

    Examples
    --------
    >>> capacity = np.array([[[8, 0]], [[0, 56]], [[8, 0]]])
    >>> fleet = NodeFleet(("gpu", "1g"), np.array([8, 8, 8]), capacity, np.zeros(3, int), np.array([1.0, 1 / 7]))
    >>> [(pool.profiles, pool.today, pool.resize(3).gpus.sum().item()) for pool in split_by_profiles(fleet)]
    [((0,), 2, 24), ((1,), 1, 24)]
    """
    offers = fleet.capacity[:, 0, :] > 0
    group = np.arange(len(offers))
    for profile in range(offers.shape[1]):
        merged = np.unique(group[offers[:, profile]])
        group[np.isin(group, merged)] = merged.min(initial=len(group))
    pools = []
    for number in np.unique(group).tolist():
        rows = np.flatnonzero(group == number)
        rows = rows[np.lexsort((-fleet.gpus[rows], ~np.isin(rows, list(kept_nodes))))]
        profiles = tuple(np.flatnonzero(offers[rows].any(axis=0)).tolist())
        units, n_kept = tuple(rows.tolist()), len(set(kept_nodes) & set(rows.tolist()))
        fleet_of_pool = fleet.only(rows)
        resized, added_node = partial(resize_node_fleet, fleet_of_pool), units[find_usual_node(fleet_of_pool)]
        pools.append(SizedPool(profiles, len(units), resized, False, units, added_node, max(n_kept, 1)))
    return pools


def join_pools(pools: Sequence[SizedPool], units: Sequence[int]) -> NodeFleet:
    """Combine a number of units (nodes or GPUs) of each pool into a fleet."""
    fleets = [pool.resize(count) for pool, count in zip(pools, units, strict=True)]
    names = ("gpus", "capacity", "first")
    joined: dict[str, Any] = {name: np.concatenate([getattr(fleet, name) for fleet in fleets]) for name in names}
    return replace(fleets[0], **joined)


CURVE_DRAWS = 10
"""Number of resampled weeks at each point of the wait curve."""
SATURATED_S, SATURATED_DRAWS = 4 * SECONDS_PER_HOUR, 3
"""Wait [s] that 5 % of the jobs exceed where the queue hardly empties, and number of resampled weeks there: such
replays are slow and hardly differ.
"""
CURVE_FLEET_FACTORS = tuple(np.linspace(0.5, 2.0, 12).tolist())
"""Sizes of the simulated fleets of the wait curve, as multiples of the GPUs of today."""


def replay_fleet(model: WaitModel, fleet: NodeFleet) -> list[Floats]:
    """Simulate the wait of each job [s] in the replays of the record; in only one where the queue hardly empties."""
    first_s = model.replay_waits(fleet)
    saturated = wait_p95(first_s[model.waits.is_evaluated]) > SATURATED_S
    return [first_s, *(model.replay_waits(fleet, number) for number in range(1, 1 if saturated else CURVE_RUNS))]


def simulate_curve_points(model: WaitModel, layout: str, fleets: Sequence[NodeFleet]) -> list[CurvePoint]:
    """Simulate the waits of each job size on each of several fleets.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    layout : str
        Name of the layout of the fleets.
    fleets : sequence of NodeFleet
        Fleets; of two with the same number of GPUs the first counts.

    Returns
    -------
    list of CurvePoint
        By GPUs and job size.
    """
    by_gpus = {int(fleet.gpus.sum()): fleet for fleet in reversed(fleets)}
    points: list[CurvePoint] = []
    # The event loop lets other threads run; results do not depend on their number.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        simulated = threads.map(partial(_simulate_fleet, model, layout), [by_gpus[gpus] for gpus in sorted(by_gpus)])
        for done, points_of_fleet in enumerate(simulated, start=1):
            report_step(f"wait curve, fleet {done} of {len(by_gpus)}")
            points += points_of_fleet
    return points


def _simulate_fleet(model: WaitModel, layout: str, fleet: NodeFleet) -> list[CurvePoint]:
    """Simulate the waits of each job size on a fleet."""
    points, gpus, seen_s = [], int(fleet.gpus.sum()), model.inputs.observed_s
    replays = replay_fleet(model, fleet)
    draws = CURVE_DRAWS if len(replays) > 1 else SATURATED_DRAWS
    waits_drawn, completions_drawn = model.draw_intervals(fleet, draws)
    replays = [np.where(waits < seen_s, waits, np.inf) for waits in replays]  # longer ones are no start
    allocated = np.median([allocated_gpu_hours_after_waits(model, waits) for waits in replays])
    hours = gpus * seen_s / SECONDS_PER_HOUR
    medians = model.summarize_replays(replays) / SECONDS_PER_MINUTE
    for position, number in enumerate(model.sizes):
        p95_min, completion_min, _, mean_min = (
            float(value) if np.isfinite(value) else None for value in medians[:, position]
        )
        low, high = (value if np.isfinite(value) else None for value in waits_drawn[:, position].tolist())
        completion = (completion_min, *completions_drawn[:, position].tolist())
        points.append(
            CurvePoint(
                layout, gpus, model.size_names[number], p95_min, low, high, mean_min, float(allocated / hours),
                hours * DAYS_PER_WEEK * SECONDS_PER_DAY / seen_s,
                *((None,) * 3 if mean_min is None else completion),
            )
        )  # fmt: skip
    return points


def limit_to_record(minutes: float | None, seen_s: float) -> float:
    """Limit a wait [min] to the length of the record [s]: that of a job that never starts, None."""
    return min(np.inf if minutes is None else minutes, seen_s / SECONDS_PER_MINUTE)


def allocated_gpu_hours_after_waits(model: WaitModel, waits_s: Floats) -> float:
    """Sum the GPU-hours allocated within the record, if jobs start after these waits [s]."""
    inputs, waits = model.inputs, model.waits
    begin = waits.eligible_s + waits_s
    run_s = np.minimum(begin + inputs.requests.run_s, inputs.observed_s) - np.maximum(begin, 0.0)
    gpu_s = np.where(np.isfinite(begin), np.maximum(run_s, 0.0), 0.0) * inputs.gpus_by_job()
    return float(gpu_s.sum() / SECONDS_PER_HOUR)
