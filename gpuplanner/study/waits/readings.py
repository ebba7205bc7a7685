"""What the wait curve says: sizes that are late, why, and on how few GPUs each size meets its limit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuplanner.simulate.nodes.machine import NodeFleet
from gpuplanner.simulate.tables import Floats, Ints
from gpuplanner.study.decision.asked import Asked
from gpuplanner.study.waits.causes import CAUSES, QUEUED_BEHIND, UNEXPLAINED
from gpuplanner.study.waits.draws import (
    PERCENTILE,
    REPLAYS,
    draw_record,
    percentile,
    resize_fleet,
    scale_load,
    simulate_waits,
)
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.study.waits.queue_rule import arrival_jitter_s
from gpuplanner.units import SECONDS_PER_DAY

SURE = 0.8
"""Share of drawn records in which something must hold."""
PAIRED_DRAWS = 20
DAY_DRAWS = 200
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

    def draw(
        self, fleet: NodeFleet, number: int, *, load: float | Floats = 1.0, jobs: Bools | None = None
    ) -> Floats:
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
    drawn = [np.bincount(rng.integers(0, days, days), minlength=days) for _ in range(DAY_DRAWS)]
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
    today = np.array([model.percentiles(model.asked.fleet, row) for row in range(1 + PAIRED_DRAWS)])
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
    columns = ("gpus", "capacity", "first")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in fleets]) for name in columns
    }
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
