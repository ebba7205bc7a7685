"""Which GPUs take which layouts, slot after slot, in pools that release what they do not need or park it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuplanner.hardware.layout import OFF
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel
from gpuplanner.planner.contract.problem import Counts, PlanProblem
from gpuplanner.schemas.vocabulary import WHOLE_GPU

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
        self.harm = functools.partial(_harm, problem.board, (*texts, OFF))

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
        growing = [layout for layout, number in lacking.items() if number > 0]
        if not growing:
            return
        free = self._free_beside_cuts(now)
        former = before[free]
        origins = np.unique(former).tolist()
        fresh = ~self.worn(free)
        supply = [int((fresh & (former == origin)).sum()) for origin in origins]
        cost = [[self.harm(origin, layout) for layout in growing] for origin in origins]
        flow = transport(supply, [lacking[layout] for layout in growing], cost)
        for origin, row in zip(origins, flow, strict=True):
            for layout, number in zip(growing, row.tolist(), strict=True):
                lacking[layout] -= self._take(now, free[fresh & (former == origin)], layout, number)
        for layout in growing:
            # Racks at their power limit, or GPUs that have been cut often enough, were in the way.
            order = free[np.argsort(self.worn(free), kind="stable")]
            self._take(now, order, layout, lacking[layout])

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
def _harm(board: GpuModel, texts: tuple[str, ...], before: int, after: int) -> int:
    """How rough a change is: a reboot counts most, then instances destroyed, then instances made."""
    change = ChangeCost.of(board, "nvml").change(texts[before], texts[after])
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
        spare = np.concatenate(
            [self._spare(before, on, layout, more, whole_on) for layout, more in enumerate(surplus)]
        )
        growing = [layout for layout in range(n) if target[layout] > gpus[layout]]
        if not growing:
            return held
        lacking = [int(target[layout] - gpus[layout]) for layout in growing]
        origins = np.unique(before[spare]).tolist()
        supply = [int((before[spare] == origin).sum()) for origin in origins]
        cost = [[self.harm(origin, layout) for layout in growing] for origin in origins]
        for origin, row in zip(origins, transport(supply, lacking, cost), strict=True):
            mine = spare[before[spare] == origin]
            for layout, number in zip(growing, row.tolist(), strict=True):
                held[mine[:number]] = layout
                mine = mine[number:]
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
        units = min(
            int(left[path[-1][0]]), int(wanted[sink]), *(int(flow[source, to]) for source, to in back)
        )
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
