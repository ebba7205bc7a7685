"""Packing at least cost: fire-ups and time in use.

A bin fires up when it goes from empty to used [1]_; it is on while an item is in it (busy time [2]_).

References
----------
.. [1] N. Aydin, I. Muter, S. I. Birbil, "Multi-objective temporal bin packing problem: an application in cloud
   computing", Computers & Operations Research 121, 2020, doi:10.1016/j.cor.2020.104959.
.. [2] R. Khandekar, B. Schieber, H. Shachnai, T. Tamir, "Real-time scheduling to minimize machine busy times",
   Journal of Scheduling 18, 2015, doi:10.1007/s10951-014-0411-z.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.execution import compiled_entry, part
from gpuplanner.planner.linear_model import UNIT, Effort
from gpuplanner.planner.packing_bounds import needed, weighings
from gpuplanner.planner.packing_heuristics import (
    Bins,
    Items,
    draw,
    empty_bins,
    free_way,
    items_of,
    put,
    seat_items,
    take,
)
from gpuplanner.planner.packing_problem import (
    AnyProblem,
    CostedPacking,
    Grid,
    Integers,
    Packing,
    PackingProblem,
    as_grid,
)
from gpuplanner.planner.packing_search import pack

_SHARE_OF_PACK = 0.3  # part of the limits that goes into few bins, where every cheap packing begins
_MOST_TORN = 24

_TOLERANCE = 1e-9

_NEVER = 1e300


def pack_for_cost(
    problem: AnyProblem,
    *,
    bin_cost: float = 1.0,
    fire_up_cost: float = 0.0,
    busy_cost: float = 0.0,
    time_limit_s: float = 5.0,
    work_limit: int | None = None,
    seed: int = 0,
) -> CostedPacking:
    """Pack items so that bins, fire-ups and time on cost little together, with a bound on the cost.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    bin_cost, fire_up_cost, busy_cost : float
        Cost of a bin that is used at all, of each change from empty to used, and of a unit of time on.
    time_limit_s, work_limit, seed
        As for :func:`gpuplanner.planner.packing_search.pack`.

    Returns
    -------
    CostedPacking
        The packing, its cost, and a cost that no packing undercuts.

    Raises
    ------
    ScenarioError
        If a cost or a limit makes no sense.

    Examples
    --------
    >>> problem = PackingProblem([0, 4, 2], [2, 6, 4], [50, 50, 50], 100)
    >>> found = pack_for_cost(problem, fire_up_cost=1.0, busy_cost=0.5)
    >>> found.packing.bins, found.fire_ups, found.busy_time, found.cost, found.proven
    (1, 1, 6, 5.0, True)
    """
    costs = {"bin_cost": bin_cost, "fire_up_cost": fire_up_cost, "busy_cost": busy_cost}
    wrong = {name: cost for name, cost in costs.items() if not 0 <= cost < math.inf}
    if wrong:
        raise ScenarioError("packing: costs", "at least 0 and finite", repr(wrong), "Fix these costs.")
    _compile()
    began = time.monotonic()
    effort = Effort.begin(time_limit_s=time_limit_s, seed=seed, work_limit=work_limit, what="packing")
    part = None if work_limit is None else max(1, round(_SHARE_OF_PACK * work_limit))
    first = pack(problem, time_limit_s=_SHARE_OF_PACK * time_limit_s, work_limit=part, seed=seed)
    moments = np.unique(np.concatenate((problem.starts, problem.ends)))
    grid = as_grid(problem, moments)
    lengths = np.append(np.diff(moments), 0).astype(np.float64)
    terms = CostTerms(float(bin_cost), float(fire_up_cost), float(busy_cost), lengths, grid.bias)
    bound = _bound(problem, grid, terms, first.lower_bound)
    attempt = Recreation(grid, first.assignment, _ways(grid, first), terms, seed=seed)
    cost = cost_of(problem, first.assignment, terms)[0]
    stopped_by = first.stopped_by if first.stopped_by == "user" else ""
    try:
        while not stopped_by:
            if cost - attempt.saved <= bound * (1 + 1e-12):
                stopped_by = "proof"
            else:
                effort.spend(attempt.run(UNIT))
                stopped_by = effort.why_spent() or ""
    except KeyboardInterrupt:
        stopped_by = "user"
    _, bin_of = np.unique(attempt.bins.bin_of, return_inverse=True)
    packing = replace(
        first,
        bins=int(bin_of.max()) + 1,
        assignment=bin_of.astype(np.int64),
        places=None if isinstance(problem, PackingProblem) else grid.places[attempt.bins.way_of],
        stopped_by=stopped_by,
        seconds=time.monotonic() - began,
    )
    cost, fire_ups, busy = cost_of(problem, packing.assignment, terms)
    return CostedPacking(packing, cost, min(bound, cost), fire_ups, busy)


def cost_of(problem: AnyProblem, bin_of: Integers, terms: CostTerms) -> tuple[float, int, int]:
    """Cost, fire-ups and time on of a packing."""
    order = np.lexsort((problem.starts, bin_of))
    until: dict[int, int] = {}
    fire_ups = busy = 0
    for item in order.tolist():
        number, start, end = int(bin_of[item]), int(problem.starts[item]), int(problem.ends[item])
        last = until.get(number)
        if last is None or start > last:
            fire_ups += 1
            last = start
        busy += max(end - last, 0)
        until[number] = max(end, last)
    cost = terms.bin_cost * len(until) + terms.fire_up_cost * fire_ups + terms.busy_cost * busy
    return cost, fire_ups, busy


def _bound(problem: AnyProblem, grid: Grid, terms: CostTerms, fewest: int) -> float:
    """Bins as few as proven, on as long as the moments ask for, each fired up anew after every idle time."""
    asked = functools.reduce(np.maximum, (needed(grid, *weighed) for weighed in weighings(problem)))
    # Between idle moments, the most bins that a moment asks for must each fire up.
    runs = np.split(asked, np.flatnonzero(asked == 0))
    fire_ups = max(fewest, sum(int(run.max(initial=0)) for run in runs))
    busy = float(asked @ terms.lengths)
    return terms.bin_cost * fewest + terms.fire_up_cost * fire_ups + terms.busy_cost * busy


def _ways(grid: Grid, packing: Packing) -> Integers:
    """The way of each item, by its place."""
    ways = grid.first[:-1].copy()
    if packing.places is None:
        return ways
    for item, place in enumerate(packing.places.tolist()):
        ways[item] += int(np.flatnonzero(grid.places[ways[item] : grid.first[item + 1]] == place)[0])
    return ways


@functools.cache
def _compile() -> None:
    """Have everything compiled, or loaded from disk, before the clock of the first search starts."""
    problem = PackingProblem(np.array([0, 1]), np.array([2, 3]), np.array([50, 50]), 100)
    grid = as_grid(problem, np.arange(4))
    terms = CostTerms(1.0, 1.0, 1.0, np.ones(4), grid.bias)
    Recreation(grid, np.array([0, 1]), np.arange(2), terms, seed=0).run(1)


class CostTerms(NamedTuple):
    """What a packing costs."""

    bin_cost: float
    fire_up_cost: float
    busy_cost: float
    lengths: Any
    """Shape (n_moments,), float64: time from each moment to the next."""
    empty: int
    """Word of an empty bin."""


class Recreation:
    """A packing that gets cheaper for as long as there is patience.

    - ``grid``: The items over all instants at which one starts or ends.
    - ``bin_of``, ``way_of``, shape (n_items,): A packing to begin with.
    - ``terms``: Costs.
    - ``seed``: Seed of the search.

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import as_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> problem = PackingProblem([0, 4, 2], [2, 6, 4], [50, 50, 50], 100)
    >>> grid = as_grid(problem, np.array([0, 2, 4, 6]))
    >>> terms = CostTerms(1.0, 1.0, 0.0, np.array([2.0, 2.0, 2.0, 0.0]), grid.bias)
    >>> attempt = Recreation(grid, np.array([0, 0, 1]), np.arange(3), terms, seed=0)
    >>> attempt.run(10_000) > 0, attempt.saved  # one bin and two fire-ups less
    (True, 3.0)
    """

    def __init__(self, grid: Grid, bin_of: Integers, way_of: Integers, terms: CostTerms, *, seed: int) -> None:
        self._items, self._terms = items_of(grid), terms
        # One spare bin, in case that opening one is cheaper than what it avoids.
        self.bins = empty_bins(grid, int(bin_of.max()) + 2)
        seat_items(self._items, self.bins, np.arange(len(bin_of)), bin_of, way_of)
        self._random = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
        self._torn = np.zeros((3, _MOST_TORN), dtype=np.int64)
        self.saved = 0.0

    def run(self, work: int) -> int:
        """Go on until about `work` moments have been looked at; returns how many were."""
        saved, spent = _recreate(self._items, self.bins, self._terms, self._torn, self._random, work)
        self.saved += saved
        return int(spent)


@compiled_entry
def _recreate(
    items: Items,
    bins: Bins,
    terms: CostTerms,
    torn: Integers,
    random: Any,  # noqa: ANN401
    limit: int,
) -> tuple[float, int]:
    total, work = 0.0, 0
    while work < limit:
        count = _tear(items, bins, torn, random)
        work += count * (len(bins.head) + 1)
        saved = 0.0
        for index in range(count):
            item = torn[0, index]
            torn[1, index], torn[2, index] = bins.bin_of[item], bins.way_of[item]
            take(items, bins, item)
            saved += _added(items, bins, terms, torn[1, index], item)
        for index in range(count - 1, 0, -1):
            other = draw(random, index + 1)
            for row in range(3):
                torn[row, index], torn[row, other] = torn[row, other], torn[row, index]
        seated = 0
        while seated < count:
            item = torn[0, seated]
            least, found, found_way = _NEVER, -1, -1
            start = draw(random, len(bins.head))
            for turn in range(len(bins.head)):
                chosen = (start + turn) % len(bins.head)
                way = free_way(items, bins, chosen, item)
                if way >= 0:
                    cost = _added(items, bins, terms, chosen, item)
                    work += items.high[item] - items.low[item]
                    if cost < least:
                        least, found, found_way = cost, chosen, way
            if found < 0:
                break
            put(items, bins, item, found, found_way)
            saved -= least
            seated += 1
        if seated == count and saved > -_TOLERANCE:
            total += saved
            continue
        for index in range(seated):
            take(items, bins, torn[0, index])
        for index in range(count):
            put(items, bins, torn[0, index], torn[1, index], torn[2, index])
    return total, work


@part
def _tear(items: Items, bins: Bins, torn: Integers, random: Any) -> int:  # noqa: ANN401
    """Choose members of two bins near a random item, into ``torn[0]``; returns how many."""
    centre = draw(random, len(items.low))
    wanted, count = 2 + draw(random, _MOST_TORN - 1), 0
    reach = 1 + draw(random, 3)
    life = items.high[centre] - items.low[centre]
    for source in range(2):
        chosen = bins.bin_of[centre] if source == 0 else draw(random, len(bins.head))
        if source == 1 and chosen == bins.bin_of[centre]:
            break
        member = bins.head[chosen]
        while member >= 0 and count < wanted:
            near = (
                items.low[member] <= items.high[centre] + reach * life
                and items.low[centre] - reach * life <= items.high[member]
            )
            if near:
                torn[0, count] = member
                count += 1
            member = bins.after[member]
    return count


@part
def _added(items: Items, bins: Bins, terms: CostTerms, chosen: int, item: int) -> float:
    """What an item adds to the cost of a bin that it is not in."""
    low, high, empty = items.low[item], items.high[item], terms.empty
    was_on = low > 0 and bins.load[chosen, low - 1] != empty
    fire_ups = 0 if was_on else 1
    busy = 0.0
    for t in range(low, high):
        on = bins.load[chosen, t] != empty
        if not on:
            busy += terms.lengths[t]
        elif not was_on:
            fire_ups -= 1
        was_on = on
    if high < len(terms.lengths) and not was_on and bins.load[chosen, high] != empty:
        fire_ups -= 1
    opened = terms.bin_cost if bins.head[chosen] < 0 else 0.0
    return opened + terms.fire_up_cost * fire_ups + terms.busy_cost * busy
