"""The wait curve: queue waits by job size against the number of GPUs, with an interval."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuplanner.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from gpuplanner.decision.decision_types import CurvePoint
from gpuplanner.decision.explained_waits import ExplainedWaits
from gpuplanner.decision.policy_simulation import order_statistic
from gpuplanner.decision.queue_model import arrival_jitter_s
from gpuplanner.decision.requests import Asked
from gpuplanner.decision.wait_causes import CAUSES, QUEUED_BEHIND, UNEXPLAINED
from gpuplanner.simulator.simulated_fleet import NodeFleet, NodeRequests
from gpuplanner.simulator.simulation_state import Floats, Ints

REPLAYS = 5
"""Replays of one record with arrivals up to half a minute later: one alone is a draw of something chaotic."""
PERCENTILE = 0.95
INTERVAL = (0.1, 0.9)
DAYS_A_WEEK = 7


def resize_fleet(fleet: NodeFleet, nodes: int) -> NodeFleet:
    """The first of some nodes, or all and further ones like most of them.

    Examples
    --------
    >>> [resize_fleet(NodeFleet.of_full_gpus([8, 8, 4]), nodes).gpus.tolist() for nodes in (2, 4)]
    [[8, 8], [8, 8, 4, 8]]
    """
    today = len(fleet.gpus)
    sizes, first, count = np.unique(fleet.gpus, return_index=True, return_counts=True)
    usual = first[len(sizes) - 1 - np.argmax(count[::-1])]
    added = np.full(max(nodes - today, 0), usual)
    return fleet.only(np.concatenate([np.arange(min(nodes, today)), added]))


def draw_record(
    arrival_s: Floats, fixed: NDArray[np.bool_], seen_s: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Draw another record of the same length: each day takes the jobs of some day of the same weekday.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs that every record has: those that were there at the beginning, and services.
    seen_s : float
        Length of the record [s].
    rng : numpy.random.Generator
        Draws.

    Returns
    -------
    rows : array of int
        Jobs of the record that come, some of them more than once.
    arrival_s : array of float
        When each comes [s].
    """
    days = max(int(np.ceil(seen_s / SECONDS_PER_DAY)), 1)
    day = np.clip(np.floor(arrival_s / SECONDS_PER_DAY).astype(np.int64), 0, days - 1)
    by_day = [np.flatnonzero((day == one) & ~fixed) for one in range(days)]
    rows, arrivals = [np.flatnonzero(fixed)], [arrival_s[fixed]]
    for target in range(days):
        source = int(rng.choice(np.arange(target % DAYS_A_WEEK, days, DAYS_A_WEEK)))
        rows.append(by_day[source])
        arrivals.append(arrival_s[by_day[source]] + (target - source) * SECONDS_PER_DAY)
    return np.concatenate(rows), np.concatenate(arrivals)


def scale_load(arrival_s: Floats, fixed: NDArray[np.bool_], load: float | Floats, seen_s: float) -> tuple[Ints, Floats]:
    """Let jobs come more or less often; what comes once more does so in another week, at about the same hour.

    Parameters
    ----------
    arrival_s : array of float, shape (n_jobs,)
        When each job of the record arrives [s].
    fixed : array of bool, shape (n_jobs,)
        Jobs that come once, whatever the load.
    load : float or array of float, shape (n_jobs,)
        How many times each comes; of more load all jobs of less load are a part.
    seen_s : float
        Length of the record [s].

    Returns
    -------
    rows : array of int
        Jobs of the record that come.
    arrival_s : array of float
        When each comes [s].

    Examples
    --------
    >>> rows, arrival = scale_load(np.array([0.0, 9.0]), np.array([True, False]), 2.0, 14 * 86400.0)
    >>> rows.tolist(), (arrival > 86400).tolist()
    ([0, 1, 1], [False, False, True])
    """
    count = len(arrival_s)
    rng = np.random.default_rng(7)
    copies = np.where(fixed, 1, np.floor(load + rng.random(count))).astype(np.int64)
    # A job that comes once more does so half an hour apart, as a standard deviation.
    weeks, apart = rng.random(count), rng.normal(0, 1800.0, count)
    rows = np.repeat(np.arange(count), copies)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    others = max(int(seen_s / (DAYS_A_WEEK * SECONDS_PER_DAY)) - 1, 1)
    later = DAYS_A_WEEK * SECONDS_PER_DAY * ((np.floor(weeks[rows] * others) + nth - 1) % others + 1)
    moved = (arrival_s[rows] + later + nth * apart[rows]) % np.maximum(seen_s, 1.0)
    return rows, np.where(nth > 0, moved, arrival_s[rows])


def simulate_waits(asked: Asked, waits: ExplainedWaits, fleet: NodeFleet, rows: Ints, arrival_s: Floats) -> Floats:
    """Simulate jobs of the record on a fleet, and return what each waits from its eligibility on [s]."""
    requests: NodeRequests = asked.granted.select(rows).with_ready_times(arrival_s)
    start = waits.queue.start(requests, fleet, rows)
    return np.asarray(start - arrival_s + waits.delay_s[rows])


def percentile(waits_s: Floats) -> float:
    """Return the wait that 95 % of jobs do not pass."""
    return order_statistic(waits_s, PERCENTILE)


SURE = 0.8
"""Share of drawn records in which something must hold."""
MOST_TIMES = 4
"""How many times as many nodes as today are looked at, at most."""
TOLERANCE_S = 1.0
"""Waits that differ by less are the same [s]."""
Bools: TypeAlias = NDArray[np.bool_]
CAPACITY = CAUSES[:QUEUED_BEHIND]
"""Causes that more, other or better placed GPUs end."""


@dataclass(frozen=True)
class WaitTarget:
    """What waits are held to.

    - ``target_s``: 95th percentile of the wait of each size that can meet it [s].
    - ``added_s``: How much longer a size that meets it today may wait [s].
    - ``stated``: Whether the planner stated the target; a purchase is then not weighed against what it ends.
    """

    target_s: float = 1800.0
    added_s: float = 600.0
    stated: bool = False


@dataclass(frozen=True, eq=False)
class WaitModel:
    """The record, how its jobs start, and the size of each: what all answers are read from."""

    asked: Asked
    waits: ExplainedWaits
    size: Ints
    names: tuple[str, ...] = ()

    @property
    def sizes(self) -> list[int]:
        """Numbers of the size classes of judged jobs."""
        found: list[int] = np.unique(self.size[self.waits.judged]).tolist()
        return found

    @property
    def pools(self) -> list[SizedPool]:
        """Today's nodes; those whose GPUs jobs share without MIG stay."""
        nodes = self.asked.nodes
        shared = [number for number, name in enumerate(nodes.names) if name in nodes.shared]
        return pools_of(self.asked.fleet, shared)

    def without_limits(self) -> WaitModel:
        """The same where no tenant is limited, and what its limit explained is no delay."""
        queue = replace(self.waits.queue, limits=())
        known = self.waits.arrival_s - self.waits.delay_s
        free = replace(self.waits, queue=queue, arrival_s=known, delay_s=np.zeros_like(known))
        return replace(self, waits=free)

    def draw(self, fleet: NodeFleet, number: int, *, load: float | Floats = 1.0, jobs: Bools | None = None) -> Floats:
        """95th percentile of the wait of each size in one drawn record [s]; the same records for every fleet.

        Parameters
        ----------
        fleet : NodeFleet
            Where jobs run.
        number : int
            Number of the draw.
        load : float or array of float, shape (n_jobs,)
            How many times each job comes: less than once leaves some out, more repeats some in another week.
        jobs : array of bool, shape (n_jobs,), optional
            Jobs that are simulated; None: all.
        """
        waits, seen_s = self.waits, self.asked.seen_s
        rng = np.random.default_rng(100 + number)
        rows, arrival = scale_load(waits.arrival_s, ~waits.judged, load, seen_s)
        drawn, arrival = draw_record(arrival, ~waits.judged[rows], seen_s, rng)
        return self._by_size(fleet, rows[drawn], arrival, jobs)

    def percentiles(
        self, fleet: NodeFleet, row: int, *, load: float | Floats = 1.0, jobs: Bools | None = None
    ) -> Floats:
        """95th percentile of the wait of each size: of the record itself, row 0, then of drawn ones [s].

        Arguments as of :meth:`draw`. That of the record is the median of its replays.
        """
        if row:
            return self.draw(fleet, row - 1, load=load, jobs=jobs)
        waits = self.waits
        rows, arrival = scale_load(waits.arrival_s, ~waits.judged, load, self.asked.seen_s)
        replays = (arrival + self.shift_s(number)[rows] for number in range(REPLAYS))
        return np.median([self._by_size(fleet, rows, shifted, jobs) for shifted in replays], axis=0)

    def _by_size(self, fleet: NodeFleet, rows: Ints, arrival_s: Floats, jobs: Bools | None) -> Floats:
        """95th percentile of the wait of each size where such jobs arrive [s]."""
        if jobs is not None:
            rows, arrival_s = rows[jobs[rows]], arrival_s[jobs[rows]]
        found = simulate_waits(self.asked, self.waits, fleet, rows, arrival_s)
        judged, size = self.waits.judged[rows], self.size[rows]
        return np.array([percentile(found[judged & (size == one)]) for one in self.sizes])

    def shift_s(self, number: int) -> Floats:
        """How much later each job of the record arrives in a replay [s]."""
        return arrival_jitter_s(len(self.waits.arrival_s), number)

    def replay_waits(self, fleet: NodeFleet, number: int = 0) -> Floats:
        """What each job waits in a replay of the record, each up to 30 s later [s]."""
        every = np.arange(len(self.waits.arrival_s))
        arrival_s = self.waits.arrival_s + self.shift_s(number)
        return simulate_waits(self.asked, self.waits, fleet, every, arrival_s)


def late_sizes(model: WaitModel, target: WaitTarget) -> list[int]:
    """Sizes whose observed 95th percentile is over the target in 80 % of draws of the days of the record."""
    waits, rng = model.waits, np.random.default_rng(5)
    day = np.floor(np.maximum(waits.arrival_s - waits.delay_s, 0) / SECONDS_PER_DAY).astype(np.int64)
    days = int(day.max()) + 1
    drawn = [np.bincount(rng.integers(0, days, days), minlength=days) for _ in range(200)]
    found = []
    for number in model.sizes:
        mine = np.flatnonzero(waits.judged & (model.size == number))
        order = mine[np.argsort(waits.waited_s[mine])]
        over = []
        for times in drawn:
            total = np.cumsum(times[day[order]])
            row = np.searchsorted(total, PERCENTILE * total[-1])
            over.append(total[-1] > 0 and waits.waited_s[order[min(row, len(order) - 1)]] > target.target_s)
        if np.mean(over) >= SURE:
            found.append(number)
    return found


def cause_hours(model: WaitModel, sizes: list[int]) -> dict[str, float]:
    """Hours that jobs of these sizes waited, by cause; what was behind others goes to what those waited for."""
    mine = model.waits.judged & np.isin(model.size, sizes)
    hours = dict(zip(CAUSES, (model.waits.seconds[mine].sum(axis=0) / 3600).tolist(), strict=True))
    behind, held = hours.pop(CAUSES[QUEUED_BEHIND]), sum(hours[cause] for cause in CAPACITY)
    for cause in CAPACITY:
        hours[cause] += behind * hours[cause] / held if held else 0.0
    if not held:
        hours[CAUSES[UNEXPLAINED]] += behind
    return hours


def wait_limits(model: WaitModel, target: WaitTarget) -> tuple[Floats, Floats]:
    """Return what each size waits today, and may wait, in the record and in drawn ones [s].

    Both have shape (1 + n_draws, n_sizes).

    A size that meets the target today may wait only so much longer than today; any other is held to the target.
    """
    # The record and twenty drawn ones.
    today = np.array([model.percentiles(model.asked.fleet, row) for row in range(21)])
    limit = np.minimum(target.target_s, today + target.added_s)
    return today, np.where(today <= target.target_s, limit, target.target_s)


@dataclass(frozen=True, eq=False)
class SizedPool:
    """Nodes that the same jobs run on, and how they are more or fewer.

    - ``profiles``: Numbers of the profiles that they offer, and no other node.
    - ``today``: How many units there are today.
    - ``resize``: The nodes for a number of units.
    - ``movable``: Whether its GPUs may become those of another pool.
    - ``nodes``: Numbers of today's nodes that are its units, those that stay longest first.
    - ``least``: Units that stay in any case.
    """

    profiles: tuple[int, ...]
    today: int
    resize: Callable[[int], NodeFleet]
    movable: bool = False
    nodes: tuple[int, ...] = ()
    least: int = 1


def pools_of(fleet: NodeFleet, stay: Collection[int] = ()) -> list[SizedPool]:
    """Return the nodes of a fleet by the profiles that they offer; the unit is a node. Some nodes ``stay``.

    Examples
    --------
    >>> capacity = np.array([[[8, 0]], [[0, 56]], [[8, 0]]])
    >>> fleet = NodeFleet(("gpu", "1g"), np.array([8, 8, 8]), capacity, np.zeros(3, int), np.array([1.0, 1 / 7]))
    >>> [(pool.profiles, pool.today, pool.resize(3).gpus.sum().item()) for pool in pools_of(fleet)]
    [((0,), 2, 24), ((1,), 1, 24)]
    """
    offers = fleet.capacity[:, 0, :] > 0
    group = np.arange(len(offers))
    for profile in range(offers.shape[1]):
        joined = np.unique(group[offers[:, profile]])
        group[np.isin(group, joined)] = joined.min(initial=len(group))
    pools = []
    for number in np.unique(group).tolist():
        rows = np.flatnonzero(group == number)
        rows = rows[np.lexsort((-fleet.gpus[rows], ~np.isin(rows, list(stay))))]
        profiles = tuple(np.flatnonzero(offers[rows].any(axis=0)).tolist())
        units, kept = tuple(rows.tolist()), len(set(stay) & set(rows.tolist()))
        resized = partial(resize_fleet, fleet.only(rows))
        pools.append(SizedPool(profiles, len(units), resized, nodes=units, least=max(kept, 1)))
    return pools


def fleet_of_pools(pools: Sequence[SizedPool], units: Sequence[int]) -> NodeFleet:
    """Return all nodes of so many units of each pool."""
    fleets = [pool.resize(count) for pool, count in zip(pools, units, strict=True)]
    joined: dict[str, Any] = {}
    for name in ("gpus", "capacity", "first"):
        joined[name] = np.concatenate([getattr(one, name) for one in fleets])
    return replace(fleets[0], **joined)


def smallest_units(
    model: WaitModel, pools: Sequence[SizedPool], limit_s: Floats, *, load: float | Floats = 1.0
) -> list[int] | None:
    """Find the fewest units of each pool with which each size meets its limit, in the record and in 80 % of drawn ones.

    It has room for all jobs without an end. Where one pool needs more nodes no other has fewer: to move GPUs from one
    to the other is to repartition them.

    Parameters
    ----------
    model : WaitModel
        What is simulated.
    pools : list of SizedPool
        Nodes whose number is varied, each for itself.
    limit_s : array of float, shape (1 + n_draws, n_sizes)
        What each size may wait in the record and in each drawn one [s].
    load : float or array of float, shape (n_jobs,)
        How many times each job comes.
    """
    known, most = [], (1 - SURE) * (len(limit_s) - 1) + 1e-9
    for pool in pools:
        jobs = np.isin(model.asked.granted.profile, pool.profiles)
        services = replace(model.asked, standing=model.asked.standing & jobs).standing_gpus

        def meets(count: int, pool: SizedPool = pool, jobs: Bools = jobs, services: float = services) -> bool:
            fleet, missed = pool.resize(count), np.zeros(len(model.sizes))
            for row, limit in enumerate(limit_s):
                missed += model.percentiles(fleet, row, load=load, jobs=jobs) > limit + TOLERANCE_S
                if (missed > (most if row else 0)).any():
                    return False
            return bool(fleet.gpus.sum() >= services)

        most_units = MOST_TIMES * pool.today
        if not meets(most_units):
            return None
        known.append(pool.least + bisect_left(range(pool.least, most_units), True, key=meets))
    if any(count > pool.today for count, pool in zip(known, pools, strict=True)):
        fixed = [0 if pool.movable else pool.today for pool in pools]
        known = [max(pair) for pair in zip(known, fixed, strict=True)]
    return known


DRAWS = 10
SATURATED_S, SATURATED_DRAWS = 4 * SECONDS_PER_HOUR, 3
"""Where 5 % of the jobs wait longer, the queue hardly empties: replays are alike, and take long."""
FACTORS = tuple(np.linspace(0.5, 2.0, 12).tolist())
"""Fleets of the curve, in times the one that it is drawn around."""


def curve_points(model: WaitModel, layout: str, fleets: Sequence[NodeFleet]) -> list[CurvePoint]:
    """Waits of each job size on some fleets, with what these cost.

    Parameters
    ----------
    model : WaitModel
        The record, and how its jobs start.
    layout : str
        What the layout of the fleets is called.
    fleets : sequence of NodeFleet
        Fleets; of two with as many GPUs the first counts.
    """
    points, seen_s = [], model.asked.seen_s
    for gpus, fleet in sorted({int(one.gpus.sum()): one for one in reversed(fleets)}.items()):
        middle = [model.replay_waits(fleet)]
        saturated = percentile(middle[0][model.waits.judged]) > SATURATED_S
        middle += [model.replay_waits(fleet, number) for number in range(1, 1 if saturated else REPLAYS)]
        draws = SATURATED_DRAWS if saturated else DRAWS
        drawn = np.array([model.draw(fleet, number) for number in range(draws)])
        allocated = np.median([allocated_gpu_hours(model, waits) for waits in middle])
        hours = gpus * seen_s / SECONDS_PER_HOUR
        for place, number in enumerate(model.sizes):
            mine = model.waits.judged & (model.size == number)
            p95 = [percentile(waits[mine]) for waits in middle]
            low, high = np.quantile(np.minimum(drawn[:, place], seen_s), INTERVAL) / SECONDS_PER_MINUTE
            mean = [float(np.minimum(waits[mine], seen_s).mean()) for waits in middle]
            points.append(
                CurvePoint(
                    layout, gpus, model.names[number], minutes_within(float(np.median(p95)), seen_s), float(low),
                    float(high), float(np.median(mean)) / SECONDS_PER_MINUTE, float(allocated / hours),
                    hours * DAYS_A_WEEK * SECONDS_PER_DAY / seen_s,
                )
            )  # fmt: skip
    return points


def minutes_within(waits_s: float, seen_s: float) -> float:
    """A wait in minutes; who never starts waits to the end of the record."""
    return min(waits_s, seen_s) / SECONDS_PER_MINUTE


def allocated_gpu_hours(model: WaitModel, waits_s: Floats) -> float:
    """GPU-hours that jobs hold within the record if they wait so long."""
    asked, waits = model.asked, model.waits
    begin = waits.eligible_s + waits_s
    run_s = np.minimum(begin + asked.granted.run_s, asked.seen_s) - np.maximum(begin, 0.0)
    return float(np.where(np.isfinite(begin), np.maximum(run_s, 0.0), 0.0) @ asked.gpus() / SECONDS_PER_HOUR)


def uniform_fleet(fleet: NodeFleet, profile: int, gpus: int, instances: int, per_node: int) -> NodeFleet:
    """So many GPUs, all partitioned into instances of one profile, on nodes of the usual size.

    Examples
    --------
    >>> uniform_fleet(NodeFleet.of_full_gpus([8]), 0, 12, 1, 8).capacity[:, 0, 0].tolist()
    [8, 4]
    """
    nodes, rest = divmod(gpus, per_node)
    sizes = np.array([per_node] * nodes + [rest] * (rest > 0), np.int64)
    capacity = np.zeros((len(sizes), 1, len(fleet.profiles)), np.int64)
    capacity[:, 0, profile] = sizes * instances
    return replace(fleet, gpus=sizes, capacity=capacity, first=np.zeros(len(sizes), np.int64))


def best_layout(model: WaitModel) -> dict[str, int] | None:
    """Share out today's GPUs among profiles, so that jobs wait least; None for one profile, or if a job never fits.

    Profile → GPUs partitioned into it.

    Requests for different profiles do not wait for each other, so each profile is simulated by itself on every
    number of GPUs, and the shares are found by dynamic programming.
    """
    asked, waits = model.asked, model.waits
    gpu_model, fleet, per_node = asked.gpu_model, asked.fleet, asked.usual_node
    total = int(asked.nodes.total)
    used = np.unique(asked.granted.profile[waits.judged]).tolist()
    if len(set(used) | set(np.flatnonzero(fleet.capacity.any(axis=(0, 1))).tolist())) < 2:
        return None
    costs: list[Floats] = []
    for profile in used:
        instances = 1 if profile == 0 else gpu_model.profile(fleet.profiles[profile]).max_instances
        costs.append(hours_by_gpus(model, profile, total, instances, per_node))
    shares, _ = share_out(costs, total)
    names = (fleet.profiles[profile] for profile in used)
    return dict(zip(names, shares, strict=True)) if shares else None


def hours_by_gpus(model: WaitModel, profile: int, most: int, instances: int, per_node: int) -> Floats:
    """Hours that jobs of one profile wait on 0 to ``most`` GPUs of it; once nobody waits, more end nothing."""
    asked, waits = model.asked, model.waits
    rows: Ints = np.flatnonzero(asked.granted.profile == profile)
    judged = waits.judged[rows]
    found = np.full(most + 1, np.inf)
    for gpus in range(1, most + 1):
        fleet = uniform_fleet(asked.fleet, profile, gpus, instances, per_node)
        waited = simulate_waits(asked, waits, fleet, rows, waits.arrival_s[rows])
        if np.isinf(waited[judged]).any():
            continue  # somebody never starts
        found[gpus] = waited[judged].sum() / 3600
        # Where hardly anybody waits, more GPUs of that profile are not looked at.
        if found[gpus] < 0.01:
            found[gpus:] = found[gpus]
            break
    return found


def share_out(costs: list[Floats], total: int) -> tuple[list[int], float]:
    """Share a number of GPUs among kinds at least cost, and of equal costs with fewest GPUs.

    Examples
    --------
    >>> share_out([np.array([9.0, 3, 0, 0]), np.array([9.0, 1, 1, 1])], 3)
    ([2, 1], 1.0)
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for cost in costs:
        longer: dict[int, tuple[float, list[int]]] = {}
        for used, (value, how) in best.items():
            for gpus in range(total - used + 1):
                if np.isfinite(cost[gpus]) and value + cost[gpus] < longer.get(used + gpus, (np.inf, []))[0]:
                    longer[used + gpus] = (value + float(cost[gpus]), [*how, gpus])
        best = longer
    value, how = min(best.values(), key=lambda one: (round(one[0], 2), sum(one[1])), default=(np.inf, []))
    return how, value
