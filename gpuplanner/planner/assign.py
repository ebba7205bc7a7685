"""From counts to numbered GPUs, with the fewest and gentlest changes and whole GPUs together on nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.hardware import OFF, GpuModel, reconfiguration_cost
from gpuplanner.planner.flow import transport
from gpuplanner.planner.plan import Plan
from gpuplanner.planner.problem import Counts, PlanProblem
from gpuplanner.schemas import WHOLE_GPU, LayoutPlan, check

_OFF = -1

Places = NDArray[np.int16]
"""Layout of every GPU, by position; :data:`_OFF` where it is not on."""


def assign(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which GPU has which layout when.

    A GPU keeps its layout while it is not needed, and whenever the counts allow it, so that as few GPUs change as
    the plan says. (Racks at their power limit may need more: counts do not say which rack a GPU is in.) Which
    GPU takes up which new layout is a transport problem: reboots are avoided first, then the destruction of
    instances that the new layout wants as well. Cut GPUs gather on the last nodes, whole ones on nodes without
    cuts: a job of many whole GPUs finds them side by side. Nodes kept whole are never cut, racks stay within
    their power, and GPUs that changed as often as a day allows are passed over while there are others.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    polars.DataFrame, shape (n_ranges, 6)
        Table :class:`~gpuplanner.schemas.LayoutPlan`: one row for each GPU and range of slots with one
        layout, sorted by node, GPU and start. GPUs that are not on are ``"off"``. ``changed`` marks GPUs that
        take up another layout than they had when they were last on; in the first slot, GPUs are taken to have
        been cut already unless the problem has initial layouts.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
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
    return _ranges(_placed(problem, plan.layouts, plan.counts, plan.held), problem)


def most_switches(problem: PlanProblem, layouts: Sequence[str], counts: Counts, held: Counts) -> int:
    """Most changes of one GPU in one day, if GPUs are numbered as :func:`assign` does.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    layouts : sequence of str
        Layout texts.
    counts, held : ndarray of int, shape (n_slots, n_layouts)
        GPUs that are on with each layout, and those that have it.
    """
    return _placed(problem, layouts, counts, held).most_switches


@dataclass(frozen=True, eq=False)
class _Placed:
    """Layout with which every GPU is on in every slot, and whether it took it up then."""

    texts: list[str]
    on: Places
    changed: NDArray[np.bool_]
    most_switches: int


def _placed(problem: PlanProblem, layouts: Sequence[str], counts: Counts, held: Counts) -> _Placed:
    texts = list(dict.fromkeys([*layouts, *(problem.initial or {}), WHOLE_GPU]))
    place = _Placer(problem, texts)
    if problem.initial is not None:
        first = np.array([0 if text == WHOLE_GPU else problem.initial.get(text, 0) for text in texts])
        place.next(first, first)
        place.all_off()
    wanted, aims = (np.pad(rows, ((0, 0), (0, len(texts) - len(layouts)))) for rows in (counts, held))
    on, changed, most = [], [], 0
    for slot, (now, aim) in enumerate(zip(wanted, aims, strict=True)):
        if slot == 0 or problem.day_of(slot) > problem.day_of(slot - 1):
            place.begin_day()
        had = place.has.copy()
        place.next(now, aim)
        on.append(place.on.copy())
        known = slot > 0 or problem.initial is not None
        changed.append((place.has != had) & known)
        place.changes_today += changed[-1]
        most = max(most, int(place.changes_today.max(initial=0)))
    return _Placed(texts, np.array(on), np.array(changed), most)


class _Placer:
    """Chooses GPUs for counts, slot after slot. Nodes are filled with cut GPUs from the last one on."""

    def __init__(self, problem: PlanProblem, texts: Sequence[str]) -> None:
        limits = problem.limits
        self.node = np.arange(problem.gpus) // problem.gpus_per_node
        self.n_nodes = len(problem.node_names)
        self.kept = self.node < limits.whole_nodes_kept
        self.rack = self.node // limits.nodes_per_rack
        self.most_per_rack = limits.gpus_on_per_rack
        self.most_changes = limits.switches_per_day
        self.changes_today = np.zeros(problem.gpus, dtype=np.int64)
        self.whole = texts.index(WHOLE_GPU)
        self.cut = [layout for layout in range(len(texts)) if layout != self.whole]
        self.harm = functools.partial(_harm, problem.board, tuple(texts))
        self.has = np.full(problem.gpus, self.whole, dtype=np.int16)
        self.on = np.full(problem.gpus, _OFF, dtype=np.int16)

    def begin_day(self) -> None:
        """Forget the changes of the day before."""
        self.changes_today[:] = 0

    def all_off(self) -> None:
        """Need no GPU any more; they keep their layouts."""
        self.on[:] = _OFF

    def next(self, wanted: Counts, aim: Counts) -> None:
        """Choose which GPUs are on with which layout, so many of each, and how many should have it."""
        before = self.on
        self.on = np.full_like(before, _OFF)
        lacking = np.zeros_like(wanted)
        for layout in self.cut:
            there = np.flatnonzero(self.has == layout)[::-1]
            order = np.lexsort((-self._wear(there), before[there] != layout))
            lacking[layout] = wanted[layout] - self._take(there[order], layout, int(wanted[layout]))
        lacking[self.whole] = wanted[self.whole] - self._place_whole(before, int(wanted[self.whole]))
        if lacking.any():
            self._change(wanted, aim, lacking)

    def _place_whole(self, before: Places, wanted: int) -> int:
        """Nodes kept for it come first, then GPUs that were on whole before, then nodes with fewest cuts."""
        free = np.flatnonzero((self.on == _OFF) & (self.has == self.whole))
        cut = self._per_node(self.on != _OFF)[self.node[free]]
        order = np.lexsort((free, cut, before[free] != self.whole, ~self.kept[free]))
        return self._take(free[order], self.whole, wanted)

    def _change(self, wanted: Counts, aim: Counts, lacking: Counts) -> None:
        """What is missing goes where it harms least what is there; among equals, beside other cuts."""
        growing = np.flatnonzero(lacking).tolist()
        free = self._free_beside_cuts()
        fresh = ~self._worn(free)
        former = self.has[free]
        origins = np.unique(former).tolist()
        there = np.bincount(self.has, minlength=len(wanted))
        aim = aim.copy()
        aim[self.whole] = len(self.has) - aim[self.cut].sum()
        # First what the plan gives up, then anything that is not on.
        spare = np.minimum(
            there - np.maximum(aim, wanted), [int((fresh & (former == o)).sum()) for o in range(len(aim))]
        )
        for supply in (spare.clip(0)[origins], [int((fresh & (former == o)).sum()) for o in origins]):
            cost = [[self.harm(origin, layout) for layout in growing] for origin in origins]
            flow = transport(supply, lacking[growing], cost)
            for origin, row in zip(origins, flow, strict=True):
                for layout, number in zip(growing, row.tolist(), strict=True):
                    lacking[layout] -= self._take(free[fresh & (former == origin)], layout, number)
        for layout in growing:
            # Racks at their power limit, or GPUs that have changed often enough, were in the way.
            order = free[np.argsort(self._worn(free), kind="stable")]
            self._take(order, layout, int(lacking[layout]))

    def _take(self, order: NDArray[np.intp], layout: int, wanted: int) -> int:
        """Have on with a layout the first free GPUs of an order whose racks have room; say how many."""
        order = order[self.on[order] == _OFF]
        if self.most_per_rack is not None and wanted:
            room = self.most_per_rack - np.bincount(self.rack[self.on != _OFF], minlength=self.rack[-1] + 1)
            racks = self.rack[order]
            by_rack = np.argsort(racks, kind="stable")
            first = np.searchsorted(racks[by_rack], racks[by_rack])
            rank = np.empty(len(order), dtype=np.int64)
            rank[by_rack] = np.arange(len(order)) - first
            order = order[rank < room[racks]]
        chosen = order[:wanted]
        self.on[chosen] = self.has[chosen] = layout
        return len(chosen)

    def _wear(self, gpus: NDArray[np.intp]) -> Counts:
        """Changes today, if they are limited."""
        wear: Counts = self.changes_today[gpus] if self.most_changes is not None else np.zeros_like(gpus)
        return wear

    def _worn(self, gpus: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which GPUs may not change again today."""
        most = np.inf if self.most_changes is None else self.most_changes
        worn: NDArray[np.bool_] = self.changes_today[gpus] >= most
        return worn

    def _free_beside_cuts(self) -> NDArray[np.intp]:
        """Free GPUs that may be cut: least worn if that is limited, then beside cuts and not whole GPUs."""
        free = np.flatnonzero((self.on == _OFF) & ~self.kept)
        node = self.node[free]
        whole = self.on == self.whole
        cut = (self.on != _OFF) & ~whole
        order = np.lexsort((-free, -self._per_node(cut)[node], self._per_node(whole)[node], self._wear(free)))
        return free[order]

    def _per_node(self, marked: NDArray[np.bool_]) -> Counts:
        return np.bincount(self.node, weights=marked, minlength=self.n_nodes).astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _harm(board: GpuModel, texts: tuple[str, ...], before: int, after: int) -> int:
    """How rough a change is: a reboot counts most, then instances destroyed, then instances made."""
    change = reconfiguration_cost(board, texts[before], texts[after], path="nvml")
    return 10_000 * change.reboot + 100 * len(change.destroyed) + len(change.created)


def _ranges(placed: _Placed, problem: PlanProblem) -> pl.DataFrame:
    """Runs of slots with one layout, as table rows."""
    by_gpu, texts = placed.on.T, placed.texts
    fresh = np.ones_like(by_gpu, dtype=bool)
    fresh[:, 1:] = by_gpu[:, 1:] != by_gpu[:, :-1]
    gpu, start = np.nonzero(fresh)
    last = np.append(gpu[1:] != gpu[:-1], True)
    end = np.where(last, problem.n_slots, np.append(start[1:], 0))
    layout = by_gpu[gpu, start]
    times = pl.Series(problem.slot_times, dtype=pl.Datetime("us", "UTC"))
    labels = pl.Series([*texts, OFF], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[layout % len(labels)],
            "changed": placed.changed.T[gpu, start],
        }
    )
    return check(frame.sort("node", "gpu", "slot_start"), LayoutPlan, where="assign")
