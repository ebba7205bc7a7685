"""Layout counts assigned to numbered GPUs with few changes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import WHOLE_GPU, LayoutPlan
from gpuplanner.core.units import SECONDS_PER_MINUTE
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import OFF
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_problem import Counts, PlanProblem

OFF_PLACE = -1

Places = NDArray[np.int16]
"""State of every GPU: the position of the layout that it is on with, behind them those of layouts that it is parked
with, and :data:`OFF_PLACE` where it is released."""
_UNREACHED = np.iinfo(np.int64).max // 4


class Placer:
    """Chooses GPUs for counts, slot after slot. Nodes are filled with cut GPUs from the last one on."""

    def __init__(self, problem: PlanProblem, texts: Sequence[str]) -> None:
        limits = problem.limits
        self.node = np.arange(problem.gpus) // problem.gpus_per_node
        self.n_nodes = len(problem.node_names)
        self.kept = self.node < limits.whole_nodes_kept
        self.rack = self.node // limits.nodes_per_rack
        self.most_per_rack = limits.gpus_on_per_rack
        self.most_cuts = limits.switches_per_day
        self.cuts_today = np.zeros(problem.gpus, dtype=np.int64)
        self.whole = texts.index(WHOLE_GPU) if WHOLE_GPU in texts else None
        self.cut = [layout for layout in range(len(texts)) if layout != self.whole]
        self.harm = functools.partial(_harm, problem.gpu_model, (*texts, OFF))

    def begin_day(self) -> None:
        """Forget the cuts of the day before."""
        self.cuts_today[:] = 0

    def next(self, before: Places, wanted: Counts, *, free: bool = False) -> Places:
        """Layout of every GPU, as close to the one before as the wanted counts allow.

        If `free`, cuts do not count: they were made before the first slot.
        """
        now = np.full_like(before, OFF_PLACE)
        for layout in self.cut:
            there = np.flatnonzero(before == layout)[::-1]
            if self.most_cuts is not None:
                there = there[np.argsort(-self.cuts_today[there], kind="stable")]
            now[there[: wanted[layout]]] = layout
        if self.whole is not None:
            self._place_whole(before, now, int(wanted[self.whole]))
        stayed = now.copy()
        self._place_cuts(before, now, wanted)
        if not free:
            self.cuts_today += (now != stayed) | self._uncut(before, now)
        return now

    def _place_whole(self, before: Places, now: Places, wanted: int) -> None:
        """Nodes kept for it come first, then GPUs that were whole before, then any uncut, on nodes with fewest cuts."""
        free = np.flatnonzero(now == OFF_PLACE)
        node = self.node[free]
        cut = self._uncut(before, self.whole)[free]
        worn = self.worn(free) if self.most_cuts is not None else cut
        keys = (free, self.per_node(now != OFF_PLACE)[node], worn, cut, before[free] != self.whole)
        self._take(now, free[np.lexsort((*keys, ~self.kept[free]))], int(self.whole or 0), wanted)

    def _uncut(self, before: Places, now: Places | int | None) -> NDArray[np.bool_]:
        """GPUs that are on and cut in one slot, and on and whole in the next: those that were off come back whole."""
        uncut: NDArray[np.bool_] = (now == self.whole) & (before != OFF_PLACE) & (before != self.whole)
        return uncut

    def _place_cuts(self, before: Places, now: Places, wanted: Counts) -> None:
        """New cuts go where they harm least what is there; among equals, beside other cuts."""
        lacking = {layout: int(wanted[layout] - (now == layout).sum()) for layout in self.cut}
        lacking = {layout: number for layout, number in lacking.items() if number > 0}
        if not lacking:
            return
        free = self._free_beside_cuts(now)
        fresh = free[~self.worn(free)]
        for origin, layout, number in self._least_harm(before[fresh], lacking):
            lacking[layout] -= self._take(now, fresh[before[fresh] == origin], layout, number)
        for layout in lacking:
            # Racks at their power limit, or GPUs that have been cut often enough, were in the way.
            order = free[np.argsort(self.worn(free), kind="stable")]
            self._take(now, order, layout, lacking[layout])

    def _least_harm(self, former: Places, lacking: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """How many GPUs of each former layout take up each layout that lacks some, with the least harm in all."""
        if not lacking:
            return
        origins, supply = (part.tolist() for part in np.unique(former, return_counts=True))
        cost = [[self.harm(origin, layout) for layout in lacking] for origin in origins]
        for origin, row in zip(origins, transport(supply, list(lacking.values()), cost), strict=True):
            for layout, number in zip(lacking, row.tolist(), strict=True):
                yield origin, layout, number

    def _take(self, now: Places, order: NDArray[np.intp], layout: int, wanted: int) -> int:
        """Give a layout to the first free GPUs of an order whose racks have room; say how many."""
        order = order[now[order] == OFF_PLACE]
        if wanted:
            order = order[self.with_power(order, now != OFF_PLACE)]
        chosen = order[:wanted]
        now[chosen] = layout
        return len(chosen)

    def with_power(self, order: NDArray[np.intp], powered: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which GPUs of an order have power in their racks, beside those that have it already."""
        if self.most_per_rack is None:
            return np.ones(len(order), dtype=bool)
        room = self.most_per_rack - np.bincount(self.rack[powered], minlength=self.rack[-1] + 1)
        racks = self.rack[order]
        by_rack = np.argsort(racks, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[by_rack] = np.arange(len(order)) - np.searchsorted(racks[by_rack], racks[by_rack])
        return rank < room[racks]

    def worn(self, gpus: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which GPUs may not be cut again today."""
        most = np.inf if self.most_cuts is None else self.most_cuts
        return self.cuts_today[gpus] >= most

    def _free_beside_cuts(self, now: Places) -> NDArray[np.intp]:
        """Free GPUs that may be cut: least cut today if that is limited, then beside cuts and not whole GPUs."""
        free = np.flatnonzero((now == OFF_PLACE) & ~self.kept)
        node = self.node[free]
        whole = now == (OFF_PLACE - 1 if self.whole is None else self.whole)
        cut = (now != OFF_PLACE) & ~whole
        wear = self.cuts_today[free] if self.most_cuts is not None else np.zeros_like(free)
        order = np.lexsort((-free, -self.per_node(cut)[node], self.per_node(whole)[node], wear))
        return free[order]

    def per_node(self, marked: NDArray[np.bool_]) -> Counts:
        """GPUs of each node that are marked, shape (n_nodes,)."""
        return np.bincount(self.node, weights=marked, minlength=self.n_nodes).astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _harm(gpu_model: GpuModel, texts: tuple[str, ...], before: int, after: int) -> int:
    """How rough a change is: a reboot counts most, then instances destroyed, then instances made."""
    change = ChangeCost.of(gpu_model, "nvidia-smi").change(texts[before], texts[after])
    return 10_000 * change.reboot + 100 * len(change.destroyed) + len(change.created)


class ParkedPlacer(Placer):
    """Chooses GPUs for counts of those on and of those parked, so that nothing moves that need not.

    A position of a layout plus the number of layouts means: parked with that layout. The layout of a GPU that is not
    cut is one as well, so that every GPU has one.
    """

    def next(self, before: Places, wanted: Counts, *, free: bool = False) -> Places:
        """State of every GPU, as close to the one before as the wanted counts allow.

        Layouts are given up by parked GPUs first; they go where they harm least. GPUs on stay on, parked ones with
        the layout come next, then those that have taken it up.
        """
        n = len(self.cut) + 1
        on, held_before = before < n, before % n
        assert self.whole is not None
        target = wanted[:n] + wanted[n:]
        target[self.whole] += len(before) - target.sum()
        held = self._held(held_before, on, target, int(wanted[self.whole]))
        now = (held + n).astype(before.dtype)
        node = self.node
        for layout in range(n):
            here = np.flatnonzero(held == layout)
            beside = self.per_node(held != self.whole)[node[here]] if layout == self.whole else -here
            was_on = on[here] & (held_before[here] == layout)
            fresh = held_before[here] != layout
            order = here[np.lexsort((here, beside, ~self.kept[here], fresh, ~was_on))]
            if layout == self.whole:
                order = self._powered_first(order, held != self.whole)
            now[order[: wanted[layout]]] = layout
        if not free:
            self.cuts_today += held != held_before
        return now

    def _held(self, before: Places, on: NDArray[np.bool_], target: Counts, whole_on: int) -> Places:
        """Layout of every GPU; so many of those that are not cut are to be on."""
        n = len(target)
        gpus = np.bincount(before, minlength=n)
        held = before.copy()
        surplus = (gpus - target).tolist()
        parts = [self._spare(before, on, layout, more, whole_on) for layout, more in enumerate(surplus)]
        spare = np.concatenate(parts)
        lacking = {layout: -more for layout, more in enumerate(surplus) if more < 0}
        for origin, layout, number in self._least_harm(before[spare], lacking):
            held[spare[before[spare] == origin][:number]] = layout
            spare = spare[held[spare] == before[spare]]
        return held

    def _spare(
        self, before: Places, on: NDArray[np.bool_], layout: int, number: int, whole_on: int
    ) -> NDArray[np.intp]:
        """GPUs that give a layout up: parked ones first, then least worn ones, on nodes with few GPUs in use."""
        here = np.flatnonzero((before == layout) & ~self.kept)
        in_use = self.per_node(on)[self.node[here]]
        order = np.lexsort((-here, in_use, self.worn(here), on[here]))
        here = here[order]
        if layout == self.whole and self.most_per_rack is not None:
            # All that is cut stays so then, and of those uncut and on, as many as are to be.
            used = np.flatnonzero((before == layout) & on)
            stay = used[np.argsort(~self.kept[used], kind="stable")[:whole_on]]
            powered = before != layout
            powered[stay] = True
            here = self._powered_first(here[~np.isin(here, stay)], powered)
        return here[: max(0, number)]

    def _powered_first(self, order: NDArray[np.intp], powered: NDArray[np.bool_]) -> NDArray[np.intp]:
        """An order with GPUs first that have power in their racks, beside those that have it already."""
        return order[np.argsort(~self.with_power(order, powered), kind="stable")]


def transport(supply: ArrayLike, demand: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Carry whole units from sources to sinks at the least cost.

    Successive shortest paths: each step sends as much as fits along the cheapest way that is left, rerouting
    earlier units where that helps. The number of steps grows with sources times sinks, not with units [1]_.

    References
    ----------
    .. [1] Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.7.

    Examples
    --------
    Taking the cheapest way first would cost 0 + 9; the best is 1 + 2:

    >>> transport([1, 1], [1, 1], [[0, 1], [2, 9]]).tolist()
    [[0, 1], [1, 0]]
    """
    left, wanted = np.array(supply, dtype=np.int64), np.array(demand, dtype=np.int64)
    price = np.array(cost, dtype=np.int64).reshape(len(left), len(wanted))
    flow = np.zeros_like(price)
    while left.any() and wanted.any():
        to_sink, source_of, sink_of = _distances(left, price, flow)
        reachable = np.where(wanted > 0, to_sink, _UNREACHED)
        if not len(reachable) or reachable.min() >= _UNREACHED:
            break
        sink = int(reachable.argmin())
        path = []
        end = sink
        while True:
            source = int(source_of[end])
            path.append((source, end))
            if sink_of[source] < 0:
                break
            end = int(sink_of[source])
        back = [(source, after) for (source, _), (_, after) in itertools.pairwise(path)]
        on_the_way = [int(flow[source, to]) for source, to in back]
        units = min(int(left[path[-1][0]]), int(wanted[sink]), *on_the_way)
        for source, to in path:
            flow[source, to] += units
        for source, to in back:
            flow[source, to] -= units
        left[path[-1][0]] -= units
        wanted[sink] -= units
    return flow


def _distances(
    left: NDArray[np.int64], price: NDArray[np.int64], flow: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cheapest ways from sources with units left to every sink (Bellman-Ford), and where they come from."""
    to_source = np.where(left > 0, 0, _UNREACHED)
    to_sink = np.full(price.shape[1], _UNREACHED)
    source_of, sink_of = np.full(len(to_sink), -1), np.full(len(to_source), -1)
    for _ in range(len(to_source) + 1):
        ways = to_source[:, None] + price
        best = ways.argmin(axis=0)
        better = ways[best, np.arange(len(to_sink))] < to_sink
        to_sink = np.where(better, ways[best, np.arange(len(to_sink))], to_sink)
        source_of = np.where(better, best, source_of)
        back = np.where(flow > 0, to_sink[None, :] - price, _UNREACHED)
        best = back.argmin(axis=1)
        shorter = back[np.arange(len(to_source)), best] < to_source
        if not shorter.any() and not better.any():
            break
        to_source = np.where(shorter, back[np.arange(len(to_source)), best], to_source)
        sink_of = np.where(shorter, best, sink_of)
    return to_sink, source_of, sink_of


_CHANGES = {
    **dict.fromkeys(("before", "after"), pl.String),
    "changes": pl.Int64,
    **dict.fromkeys(("minutes", "minutes_low", "minutes_high"), pl.Float64),
    "reboot": pl.Boolean,
}


def assign(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which GPU has which layout when.

    A GPU keeps its layout whenever the counts allow it, so that the GPUs cut are as few as the plan says. Which
    GPU takes up which new layout is a transport problem: reboots are avoided first, then the destruction of
    instances that the new layout wants as well. Cut GPUs gather on the last nodes, whole ones on nodes without
    cuts: a job of many whole GPUs finds them side by side. Nodes kept whole are never cut, racks stay within
    their power, and GPUs that were cut as often as a day allows are passed over while there are others.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    polars.DataFrame, shape (n_ranges, 6)
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`: one row for each GPU and range of slots with one
        layout, sorted by node, GPU and start. GPUs that are not on are ``"off"``, and ``parked`` says with
        which layout where they keep one. ``changed`` marks changes; in the first slot, GPUs are taken to have been
        cut already unless the problem has initial layouts.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb", "gpu"],
    ...     [[[2, 2, 4], [1, 1, 1]]],
    ... )
    >>> for row in assign(plan(problem), problem).select("node", "gpu", "layout", "changed").rows():
    ...     print(*row)
    node0 0 gpu False
    node0 1 off False
    node0 1 3g.20gb:2 True
    node1 0 3g.20gb:2 False
    """
    plan.require()
    return _ranges(_placed(problem, plan.layouts, plan.counts, plan.parked), problem)


def layouts_before(plan: Plan, problem: PlanProblem) -> pl.DataFrame | None:
    """How each GPU is cut before the first slot (node, gpu, layout), numbered as :func:`assign` does; None: unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 1, "3g.20gb:2": 1},
    ... )
    >>> layouts_before(plan(problem), problem).rows()
    [('node0', 0, 'gpu'), ('node0', 1, '3g.20gb:2')]
    """
    placed = _placed(problem, plan.layouts, plan.counts, plan.parked)
    if placed.initial is None:
        return None
    held = placed.held(placed.initial)
    number = np.arange(problem.gpus)
    return pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[number // problem.gpus_per_node],
            "gpu": (number % problem.gpus_per_node).astype(np.int32),
            # One that was released comes back whole.
            "layout": [WHOLE_GPU if state == OFF_PLACE else placed.texts[state] for state in held],
        }
    )


def layout_changes(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which changes of layout a plan makes, how often, and how long each takes.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem; its ``change`` says how long.

    Returns
    -------
    polars.DataFrame
        ``before, after`` (layout text), ``changes``, ``minutes``, ``minutes_low``, ``minutes_high`` for which the
        GPU, or with ``reboot`` its node, is out of service; most frequent first. Counted as the plan does: whenever
        a GPU takes up a layout, or gives one up and stays on. One that was released had none.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 3},
    ... )
    >>> layout_changes(plan(problem), problem).select("before", "after", "changes", "minutes", "reboot").rows()
    [('gpu', '3g.20gb:2', 2, 10.0, True)]
    """
    plan.require()
    placed = _placed(problem, plan.layouts, plan.counts, plan.parked)
    texts = np.array([*placed.texts, WHOLE_GPU])
    before, after = placed.cut_before_and_after
    taken_up = before != after
    pairs = Counter(zip(texts[before[taken_up]].tolist(), texts[after[taken_up]].tolist(), strict=True))
    rows = []
    for (old, new), times in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        change = problem.change.change(old, new)
        lasting = [second / SECONDS_PER_MINUTE for second in (change.seconds, change.low_s, change.high_s)]
        rows.append((old, new, times, *lasting, change.reboot))
    return pl.DataFrame(rows, schema=_CHANGES, orient="row")


def changes_when_numbered(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """Most cuts of one GPU in one day, and which nodes are cut anew when, numbered as :func:`assign` does."""
    placed = _placed(problem, layouts, counts, parked)
    before, after = placed.cut_before_and_after
    nodes = _per_node(problem, before != after)
    nodes[0] = False
    return placed.most_switches, nodes


def node_reboots(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts) -> int:
    """Reboots of nodes for changes of MIG mode, if GPUs are numbered as :func:`assign` does."""
    if problem.change.reboot_s is None:
        return 0
    placed = _placed(problem, layouts, counts, parked)
    before, after = placed.cut_before_and_after
    return int(_per_node(problem, (before == placed.whole) != (after == placed.whole)).sum())


@dataclass(frozen=True, eq=False)
class _Placed:
    """State of every GPU in every slot, and before the first one if it is known."""

    texts: list[str]
    states: Places
    initial: Places | None
    most_switches: int
    parks: bool

    def held(self, states: Places) -> Places:
        """Layouts that GPUs have, on or parked."""
        return np.where(states >= len(self.texts), states - len(self.texts), states)

    @property
    def whole(self) -> int:
        """Position of the layout of GPUs that are not cut; that of none where nobody uses such."""
        return self.texts.index(WHOLE_GPU) if WHOLE_GPU in self.texts else OFF_PLACE

    @functools.cached_property
    def cut_before_and_after(self) -> tuple[Places, Places]:
        """How GPUs are cut, and what is made of that as each slot begins, each of shape (n_slots, n_gpus).

        One that was released comes back uncut; to one that is released nothing is done. The first slot is as it was
        if nothing is known of the time before.
        """
        states = self.held(self.states)
        first = states[:1] if self.initial is None else self.held(self.initial[None])
        before = np.concatenate([first, states[:-1]])
        before = np.where(before == OFF_PLACE, self.whole, before)
        return before, np.where(states == OFF_PLACE, before, states)


def _per_node(problem: PlanProblem, gpus: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Nodes with a GPU that is marked, shape (n_slots, n_nodes)."""
    starts = np.arange(0, problem.gpus, problem.gpus_per_node)
    return np.logical_or.reduceat(gpus, starts, axis=1)


def _placed(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None) -> _Placed:
    parks = problem.prices is not None
    known = [*layouts, *(problem.initial or {}), *(problem.parked or {}), *([WHOLE_GPU] if parks else [])]
    texts = list(dict.fromkeys(known))
    place = (ParkedPlacer if parks else Placer)(problem, texts)
    now = np.full(problem.gpus, len(texts) + texts.index(WHOLE_GPU) if parks else OFF_PLACE, dtype=np.int16)
    initial = None
    if parks and parked is not None:
        wider = ((0, 0), (0, len(texts) - len(layouts)))
        counts = np.hstack([np.pad(part, wider) for part in (counts, parked)])
    columns = len(texts) * (2 if parks else 1)
    if problem.initial is not None:
        held = [problem.initial.get(text, 0) for text in texts]
        held += [(problem.parked or {}).get(text, 0) for text in texts] if parks else []
        initial = now = place.next(now, np.array(held))
        place.begin_day()
    states, most = [], 0
    for slot, row in enumerate(counts):
        if slot and problem.day_of(slot) > problem.day_of(slot - 1):
            place.begin_day()
        free = slot == 0 and initial is None
        now = place.next(now, np.pad(row, (0, columns - len(row))), free=free)
        states.append(now)
        most = max(most, int(place.cuts_today.max(initial=0)))
    return _Placed(texts, np.array(states), initial, most, parks)


def _ranges(placed: _Placed, problem: PlanProblem) -> pl.DataFrame:
    """Runs of slots with one layout, as table rows."""
    by_gpu, texts, n = placed.states.T, placed.texts, len(placed.texts)
    fresh = np.ones_like(by_gpu, dtype=bool)
    fresh[:, 1:] = by_gpu[:, 1:] != by_gpu[:, :-1]
    gpu, start = np.nonzero(fresh)
    last = np.append(gpu[1:] != gpu[:-1], True)
    end = np.where(last, problem.n_slots, np.append(start[1:], 0))
    state = by_gpu[gpu, start]
    layout = placed.held(state)
    before, after = placed.cut_before_and_after
    changed = (before != after).T[gpu, start]
    times = pl.Series(problem.slot_times, dtype=pl.Datetime("us", "UTC"))
    labels = pl.Series([*texts, OFF], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[np.where(state < n, state, OFF_PLACE) % len(labels)],
            "changed": changed,
            "parked": pl.Series([*texts, None], dtype=pl.String)[np.where(state < n, OFF_PLACE, layout) % (n + 1)],
        }
    )
    return check(frame.sort("node", "gpu", "slot_start"), LayoutPlan, where="assign")
