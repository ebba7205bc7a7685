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
from gpuplanner.core.libraries_plugins_and_workers import compile_entry, compile_helper
from gpuplanner.planner.linear_programs_and_search_limits import STEPS_PER_WORK_UNIT, SearchEffort
from gpuplanner.planner.packing_bounds import bins_needed, list_weighings
from gpuplanner.planner.packing_heuristics import (
    Bins,
    ItemArrays,
    add_item,
    draw_integer,
    empty_bins,
    find_placement,
    items_of_grid,
    place_items,
    remove_item,
)
from gpuplanner.planner.packing_problem import (
    AnyPackingProblem,
    CostedPacking,
    Integers,
    Packing,
    PackingGrid,
    PackingProblem,
    build_packing_grid,
)
from gpuplanner.planner.packing_search import pack

_PACKING_WORK_LIMIT_FRACTION = 0.3
"""Fraction of time and work limits for the packing with few bins from which the search for low cost starts."""
_MAX_REMOVED_ITEMS = 24
"""Most items that one step of ruin and recreate removes."""

_COST_SAVING_TOLERANCE = 1e-9
"""Rise of the cost up to which a recreated packing counts as no worse."""

_INFINITE_COST = 1e300
"""Cost of an impossible placement; finite, for compiled code."""


def pack_for_cost(
    problem: AnyPackingProblem,
    *,
    bin_cost: float = 1.0,
    fire_up_cost: float = 0.0,
    busy_cost: float = 0.0,
    time_limit_s: float = 5.0,
    work_limit: int | None = None,
    seed: int = 0,
) -> CostedPacking:
    """Pack items at a low cost of bins, fire-ups and time on, with a lower bound on the cost.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    bin_cost, fire_up_cost, busy_cost : float
        Cost of a bin that is used at all, of each change from empty to used, and of a unit of time on.
    time_limit_s : float
        Time limit. [s]
    work_limit : int, optional
        Units of work, see :func:`gpuplanner.planner.packing_search.pack`.
    seed : int
        Seed of the search.

    Returns
    -------
    CostedPacking
        The packing, its cost, and a lower bound on the cost of all packings.

    Raises
    ------
    ScenarioError
        If a cost or a limit is invalid.

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
    _compile_ruin_and_recreate()
    started = time.monotonic()
    effort = SearchEffort.begin(time_limit_s=time_limit_s, seed=seed, work_limit=work_limit, error_context="packing")
    pack_work_limit = None if work_limit is None else max(1, round(_PACKING_WORK_LIMIT_FRACTION * work_limit))
    first = pack(
        problem, time_limit_s=_PACKING_WORK_LIMIT_FRACTION * time_limit_s, work_limit=pack_work_limit, seed=seed
    )
    moments = np.unique(np.concatenate((problem.starts, problem.ends)))
    grid = build_packing_grid(problem, moments)
    lengths = np.append(np.diff(moments), 0).astype(np.float64)
    terms = CostTerms(float(bin_cost), float(fire_up_cost), float(busy_cost), lengths, grid.bias)
    bound = _cost_lower_bound(problem, grid, terms, first.lower_bound)
    attempt = RuinAndRecreate(grid, first.assignment, _placements_of_packing(grid, first), terms, seed=seed)
    cost = measure_cost(problem, first.assignment, terms)[0]
    stopped_by = first.stopped_by if first.stopped_by == "user" else ""
    try:
        while not stopped_by:
            if cost - attempt.saved <= bound * (1 + 1e-12):
                stopped_by = "proof"
            else:
                effort.count_steps(attempt.run_search(STEPS_PER_WORK_UNIT))
                stopped_by = effort.reached_limit() or ""
    except KeyboardInterrupt:
        stopped_by = "user"
    _, bin_of = np.unique(attempt.bins.bin_of, return_inverse=True)
    packing = replace(
        first,
        bins=int(bin_of.max()) + 1,
        assignment=bin_of.astype(np.int64),
        places=None if isinstance(problem, PackingProblem) else grid.places[attempt.bins.placement_of],
        stopped_by=stopped_by,
        seconds=time.monotonic() - started,
    )
    cost, fire_ups, busy = measure_cost(problem, packing.assignment, terms)
    return CostedPacking(packing, cost, min(bound, cost), fire_ups, busy)


def measure_cost(problem: AnyPackingProblem, bin_of: Integers, terms: CostTerms) -> tuple[float, int, int]:
    """Return the cost of a packing, its fire-ups (bins that go from empty to used) and the total time bins are in use.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    bin_of : ndarray of int, shape (n_items,)
        Bin of each item.
    terms : CostTerms
        Costs of a used bin, of a fire-up and of time in use.
    """
    order = np.lexsort((problem.starts, bin_of))
    until: dict[int, int] = {}
    fire_ups = busy = 0
    for item in order.tolist():
        number = int(bin_of[item])
        start = int(problem.starts[item])
        end = int(problem.ends[item])
        last = until.get(number)
        if last is None or start > last:
            fire_ups += 1
            last = start
        busy += max(end - last, 0)
        until[number] = max(end, last)
    cost = terms.bin_cost * len(until) + terms.fire_up_cost * fire_ups + terms.busy_cost * busy
    return cost, fire_ups, busy


def _cost_lower_bound(problem: AnyPackingProblem, grid: PackingGrid, terms: CostTerms, fewest: int) -> float:
    """Return a lower bound on the cost of any packing, from lower bounds on bins, on time in use and on fire-ups.

    Bins are in use for at least the time that the loads at all moments need; after a moment without items as many bins
    fire up as the next full moments need.

    Parameters
    ----------
    problem : PackingProblem or MigPackingProblem
        The problem.
    grid : PackingGrid
        Items by moment (numbered instant).
    terms : CostTerms
        Costs of a used bin, of a fire-up and of time in use.
    fewest : int
        Proven lower bound on the number of bins.
    """
    n_bins_needed = functools.reduce(np.maximum, (bins_needed(grid, *weighed) for weighed in list_weighings(problem)))
    # Between idle moments, as many bins fire up as the fullest moment needs.
    busy_runs = np.split(n_bins_needed, np.flatnonzero(n_bins_needed == 0))
    fire_ups = max(fewest, sum(int(run.max(initial=0)) for run in busy_runs))
    busy = float(n_bins_needed @ terms.lengths)
    return terms.bin_cost * fewest + terms.fire_up_cost * fire_ups + terms.busy_cost * busy


def _placements_of_packing(grid: PackingGrid, packing: Packing) -> Integers:
    """Return the number of each item's placement in the grid, from its start slice, shape (n_items,)."""
    placements = grid.first[:-1].copy()
    if packing.places is None:
        return placements
    for item, start_slice in enumerate(packing.places.tolist()):
        placements[item] += int(np.flatnonzero(grid.places[placements[item] : grid.first[item + 1]] == start_slice)[0])
    return placements


@functools.cache
def _compile_ruin_and_recreate() -> None:
    """Compile, or load from disk, all compiled functions before the clock of the first search starts."""
    problem = PackingProblem(np.array([0, 1]), np.array([2, 3]), np.array([50, 50]), 100)
    grid = build_packing_grid(problem, np.arange(4))
    terms = CostTerms(1.0, 1.0, 1.0, np.ones(4), grid.bias)
    RuinAndRecreate(grid, np.array([0, 1]), np.arange(2), terms, seed=0).run_search(1)


class CostTerms(NamedTuple):
    """Costs of a packing, as compiled functions take them."""

    bin_cost: float
    fire_up_cost: float
    busy_cost: float
    lengths: Any
    """Shape (n_moments,), float64: time from each moment to the next."""
    empty: int
    """Load word of an empty bin; see :class:`gpuplanner.planner.packing_problem.PackingGrid`."""


class RuinAndRecreate:
    """Ruin-and-recreate search for a cheaper packing; it can be continued at will.

    - ``grid``: The items over all instants at which one starts or ends.
    - ``bin_of``, ``placement_of``, shape (n_items,): Bin and placement of each item at the start.
    - ``terms``: Costs.
    - ``seed``: Seed of the search.

    References
    ----------
    Schrimpf et al., Record breaking optimization results using the ruin and recreate principle, Journal of
    Computational Physics 159 (2000).

    Examples
    --------
    >>> from gpuplanner.planner.packing_problem import build_packing_grid
    >>> from gpuplanner.planner.packing_problem import PackingProblem
    >>> problem = PackingProblem([0, 4, 2], [2, 6, 4], [50, 50, 50], 100)
    >>> grid = build_packing_grid(problem, np.array([0, 2, 4, 6]))
    >>> terms = CostTerms(1.0, 1.0, 0.0, np.array([2.0, 2.0, 2.0, 0.0]), grid.bias)
    >>> attempt = RuinAndRecreate(grid, np.array([0, 0, 1]), np.arange(3), terms, seed=0)
    >>> attempt.run_search(10_000) > 0, attempt.saved  # one bin and two fire-ups less
    (True, 3.0)
    """

    def __init__(
        self, grid: PackingGrid, bin_of: Integers, placement_of: Integers, terms: CostTerms, *, seed: int
    ) -> None:
        self._items, self._terms = items_of_grid(grid), terms
        # One spare bin: opening one may be cheaper than keeping others on.
        self.bins = empty_bins(grid, int(bin_of.max()) + 2)
        place_items(self._items, self.bins, np.arange(len(bin_of)), bin_of, placement_of)
        self._random = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
        self._removed = np.zeros((3, _MAX_REMOVED_ITEMS), dtype=np.int64)
        self.saved = 0.0

    def run_search(self, work: int) -> int:
        """Search until a bin was tested for room at a moment about `work` times; return how often."""
        saved, spent = _ruin_and_recreate(self._items, self.bins, self._terms, self._removed, self._random, work)
        self.saved += saved
        return int(spent)


@compile_entry
def _ruin_and_recreate(
    items: ItemArrays,
    bins: Bins,
    terms: CostTerms,
    removed: Integers,
    random: Any,  # noqa: ANN401
    limit: int,
) -> tuple[float, int]:
    """Remove items near a random one, put them back at the least cost, keep improvements; return saving and work.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    terms : CostTerms
        Costs of a used bin, of a fire-up and of time in use.
    removed : ndarray of int, shape (3, n)
        Removed items with bin and placement; changed.
    random : ndarray of uint64, shape (1,)
        State of the random number generator; changed.
    limit : int
        Most room tests of a bin at one instant, over the whole search.
    """
    total, work = 0.0, 0
    while work < limit:
        count = _choose_removed_items(items, bins, removed, random)
        work += count * (len(bins.head) + 1)
        saved = 0.0
        for index in range(count):
            item = removed[0, index]
            removed[1, index], removed[2, index] = bins.bin_of[item], bins.placement_of[item]
            remove_item(items, bins, item)
            saved += _added_cost(items, bins, terms, removed[1, index], item)
        for index in range(count - 1, 0, -1):
            swapped = draw_integer(random, index + 1)
            for row in range(3):
                removed[row, index], removed[row, swapped] = removed[row, swapped], removed[row, index]
        n_placed = 0
        while n_placed < count:
            item = removed[0, n_placed]
            least, best_bin, best_placement = _INFINITE_COST, -1, -1
            start = draw_integer(random, len(bins.head))
            for turn in range(len(bins.head)):
                chosen = (start + turn) % len(bins.head)
                placement = find_placement(items, bins, chosen, item)
                if placement >= 0:
                    cost = _added_cost(items, bins, terms, chosen, item)
                    work += items.high[item] - items.low[item]
                    if cost < least:
                        least, best_bin, best_placement = cost, chosen, placement
            if best_bin < 0:
                break
            add_item(items, bins, item, best_bin, best_placement)
            saved -= least
            n_placed += 1
        if n_placed == count and saved > -_COST_SAVING_TOLERANCE:
            total += saved
            continue
        for index in range(n_placed):
            remove_item(items, bins, removed[0, index])
        for index in range(count):
            add_item(items, bins, removed[0, index], removed[1, index], removed[2, index])
    return total, work


@compile_helper
def _choose_removed_items(items: ItemArrays, bins: Bins, removed: Integers, random: Any) -> int:  # noqa: ANN401
    """Choose items of two bins near a random item, into ``removed[0]``; return how many.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    removed : ndarray of int, shape (3, n)
        Removed items with bin and placement; changed.
    random : ndarray of uint64, shape (1,)
        State of the random number generator; changed.
    """
    centre = draw_integer(random, len(items.low))
    wanted, count = 2 + draw_integer(random, _MAX_REMOVED_ITEMS - 1), 0
    reach = 1 + draw_integer(random, 3)
    life = items.high[centre] - items.low[centre]
    for source in range(2):
        chosen = bins.bin_of[centre] if source == 0 else draw_integer(random, len(bins.head))
        if source == 1 and chosen == bins.bin_of[centre]:
            break
        member = bins.head[chosen]
        while member >= 0 and count < wanted:
            near = (
                items.low[member] <= items.high[centre] + reach * life
                and items.low[centre] - reach * life <= items.high[member]
            )
            if near:
                removed[0, count] = member
                count += 1
            member = bins.after[member]
    return count


@compile_helper
def _added_cost(items: ItemArrays, bins: Bins, terms: CostTerms, chosen: int, item: int) -> float:
    """Return by how much an item would raise the cost of a bin that it fits into: of the bin, fire-ups and time in use.

    Parameters
    ----------
    items : ItemArrays
        All items.
    bins : Bins
        Bins with their loads and items.
    terms : CostTerms
        Costs of a used bin, of a fire-up and of time in use.
    chosen : int
        Index of the bin.
    item : int
        Index of the item.
    """
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
