"""What the wait curve says: sizes that are late, why, and on how few GPUs each size meets its limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuplanner.simulate.nodes import NodeFleet
from gpuplanner.simulate.slices.world import Floats, Ints
from gpuplanner.study.decision.asked import Asked
from gpuplanner.study.waits.causes import CAUSES, QUEUED_BEHIND, UNEXPLAINED
from gpuplanner.study.waits.curve import (
    JITTER_S,
    PERCENTILE,
    draw_record,
    percentile,
    resize_fleet,
    simulate_waits,
)
from gpuplanner.study.waits.explain import ExplainedWaits
from gpuplanner.units import SECONDS_PER_DAY

SURE = 0.8
"""Share of drawn records in which something must hold."""
PAIRED_DRAWS = 10
DAY_DRAWS = 200
MOST_TIMES = 4
"""How many times as many nodes as today are looked at, at most."""
CAPACITY = CAUSES[:QUEUED_BEHIND]
"""Causes that more, other or better placed GPUs end."""


@dataclass(frozen=True)
class WaitTarget:
    """What waits are held to.

    - ``target_s``: 95th percentile of the wait of each size that can meet it [s].
    - ``added_s``: How much longer a size that meets it today may wait [s].
    """

    target_s: float = 1800.0
    added_s: float = 600.0


@dataclass(frozen=True, eq=False)
class WaitModel:
    """The record, how its jobs start, and the size of each: what all answers are read from."""

    asked: Asked
    waits: ExplainedWaits
    size: Ints

    @property
    def sizes(self) -> list[int]:
        """Numbers of the size classes of judged jobs."""
        found: list[int] = np.unique(self.size[self.waits.judged]).tolist()
        return found

    def without_limits(self) -> WaitModel:
        """The same where no tenant is limited, and what its limit explained is no delay."""
        queue = replace(self.waits.queue, limits=())
        known = self.waits.arrival_s - self.waits.delay_s
        free = replace(self.waits, queue=queue, arrival_s=known, delay_s=np.zeros_like(known))
        return replace(self, waits=free)

    def packed(self) -> WaitModel:
        """The same where the fullest nodes with room are taken first."""
        return replace(self, waits=replace(self.waits, queue=replace(self.waits.queue, spread=False)))

    def draw(self, fleet: NodeFleet, number: int) -> Floats:
        """95th percentile of the wait of each size in one drawn record [s]; the same records for every fleet."""
        rng = np.random.default_rng(100 + number)
        rows, arrival = draw_record(self.waits.arrival_s, ~self.waits.judged, self.asked.seen_s, rng)
        found = simulate_waits(self.asked, self.waits, fleet, rows, arrival)
        judged, size = self.waits.judged[rows], self.size[rows]
        return np.array([percentile(found[judged & (size == one)]) for one in self.sizes])

    def replay(self, fleet: NodeFleet, number: int = 0) -> Floats:
        """95th percentile of the wait of each size in a replay of the record [s]."""
        late = np.random.default_rng(1 + number).uniform(0, JITTER_S, len(self.waits.arrival_s))
        every = np.arange(len(late))
        found = simulate_waits(self.asked, self.waits, fleet, every, self.waits.arrival_s + late)
        return np.array([percentile(found[self.waits.judged & (self.size == one)]) for one in self.sizes])


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


def fewest_nodes(
    model: WaitModel, target: WaitTarget, *, reachable: NDArray[np.bool_] | None = None, relative: bool
) -> int | None:
    """Fewest nodes on which each size meets its limit in 80 % of drawn records; None if no number is enough.

    Parameters
    ----------
    model : WaitModel
        What is simulated.
    target : WaitTarget
        What waits are held to.
    reachable : array of bool, shape (n_sizes,), optional
        Sizes that are held to the target; others must not wait longer than today.
    relative : bool
        Whether a size that meets the target today may wait only so much longer than today.
    """
    today = resize_fleet(model.asked.fleet, len(model.asked.nodes.gpus))
    held = np.ones(len(model.sizes), bool) if reachable is None else reachable
    base = [model.draw(today, number) for number in range(PAIRED_DRAWS)]

    def meets(nodes: int) -> bool:
        fleet, missed = resize_fleet(model.asked.fleet, nodes), 0
        for number in range(PAIRED_DRAWS):
            limit = np.where(held, target.target_s, base[number])
            if relative:
                meets_today = base[number] <= target.target_s
                limit = np.where(meets_today, np.minimum(limit, base[number] + target.added_s), limit)
            missed += bool((model.draw(fleet, number) > limit + 1.0).any())
            if missed > (1 - SURE) * PAIRED_DRAWS + 1e-9:
                return False
        return True

    return first_that_holds(meets, MOST_TIMES * len(model.asked.nodes.gpus))


def first_that_holds(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the least number from 1 to ``most`` from which on it holds; None if it does not hold at the most.

    Examples
    --------
    >>> first_that_holds(lambda number: number >= 7, 20), first_that_holds(lambda number: False, 20)
    (7, None)
    """
    if not holds(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
