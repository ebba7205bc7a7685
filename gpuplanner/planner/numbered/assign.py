"""From counts to numbered GPUs, with the fewest and gentlest cuts and whole GPUs together on nodes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.hardware import OFF, ChangeCost, GpuModel
from gpuplanner.planner.contract.plan import Plan
from gpuplanner.planner.contract.problem import Counts, PlanProblem
from gpuplanner.planner.numbered.transport import transport
from gpuplanner.schemas import WHOLE_GPU, LayoutPlan, check
from gpuplanner.units import SECONDS_PER_MINUTE

_OFF = -1

_CHANGES = {
    "before": pl.String,
    "after": pl.String,
    "changes": pl.Int64,
    "minutes": pl.Float64,
    "minutes_low": pl.Float64,
    "minutes_high": pl.Float64,
    "reboot": pl.Boolean,
}

Places = NDArray[np.int16]
"""Layout of every GPU, by position; :data:`_OFF` where it is not on."""


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
        Table :class:`~gpuplanner.schemas.LayoutPlan`: one row for each GPU and range of slots with one
        layout, sorted by node, GPU and start. GPUs that are not on are ``"off"``. ``changed`` marks cuts; in
        the first slot, GPUs are taken to have been cut already unless the problem has initial layouts.

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
    return _ranges(_placed(problem, plan.layouts, plan.counts), problem)


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
        a GPU takes up a layout.

    Raises
    ------
    InfeasiblePlanError
        If no plan was found.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 3, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 3},
    ... )
    >>> layout_changes(plan(problem), problem).select("before", "after", "changes", "minutes", "reboot").rows()
    [('gpu', '3g.20gb:2', 2, 10.0, True)]
    """
    plan.require()
    placed = _placed(problem, plan.layouts, plan.counts)
    texts = np.array([*placed.texts, OFF])
    first = placed.states[:1] if placed.initial is None else placed.initial[None]
    before, after = np.concatenate([first, placed.states[:-1]]), placed.states
    taken_up = (before != after) & (after != _OFF) & (texts[after] != WHOLE_GPU)
    pairs = Counter(zip(texts[before[taken_up]].tolist(), texts[after[taken_up]].tolist(), strict=True))
    rows = []
    for (old, new), times in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        change = problem.change.change(old, new)
        lasting = [second / SECONDS_PER_MINUTE for second in (change.seconds, change.low_s, change.high_s)]
        rows.append((old, new, times, *lasting, change.reboot))
    return pl.DataFrame(rows, schema=_CHANGES, orient="row")


def most_switches(problem: PlanProblem, layouts: Sequence[str], counts: Counts) -> int:
    """Most cuts of one GPU in one day, if GPUs are numbered as :func:`assign` does.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    layouts : sequence of str
        Layout texts.
    counts : ndarray of int, shape (n_slots, n_layouts)
        GPUs that are on with each layout.
    """
    return _placed(problem, layouts, counts).most_switches


@dataclass(frozen=True, eq=False)
class _Placed:
    """Layout of every GPU in every slot, and before the first one if it is known."""

    texts: list[str]
    states: Places
    initial: Places | None
    most_switches: int


def _placed(problem: PlanProblem, layouts: Sequence[str], counts: Counts) -> _Placed:
    texts = list(dict.fromkeys([*layouts, *(problem.initial or {})]))
    place = _Placer(problem, texts)
    now = np.full(problem.gpus, _OFF, dtype=np.int16)
    initial = None
    if problem.initial is not None:
        initial = now = place.next(now, np.array([problem.initial.get(text, 0) for text in texts]))
        place.begin_day()
    states, most = [], 0
    for slot, row in enumerate(counts):
        if slot and problem.day_of(slot) > problem.day_of(slot - 1):
            place.begin_day()
        free = slot == 0 and initial is None
        now = place.next(now, np.pad(row, (0, len(texts) - len(row))), free=free)
        states.append(now)
        most = max(most, int(place.cuts_today.max(initial=0)))
    return _Placed(texts, np.array(states), initial, most)


class _Placer:
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
        now = np.full_like(before, _OFF)
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
            self.cuts_today += (now != stayed) & (now != _OFF)
        return now

    def _place_whole(self, before: Places, now: Places, wanted: int) -> None:
        """Nodes kept for it come first, then GPUs that were whole before, then nodes with fewest cuts."""
        free = np.flatnonzero(now == _OFF)
        node = self.node[free]
        keys = (free, self._per_node(now != _OFF)[node], before[free] != self.whole, ~self.kept[free])
        self._take(now, free[np.lexsort(keys)], int(self.whole or 0), wanted)

    def _place_cuts(self, before: Places, now: Places, wanted: Counts) -> None:
        """New cuts go where they harm least what is there; among equals, beside other cuts."""
        lacking = {layout: int(wanted[layout] - (now == layout).sum()) for layout in self.cut}
        growing = [layout for layout, number in lacking.items() if number > 0]
        if not growing:
            return
        free = self._free_beside_cuts(now)
        former = before[free]
        origins = np.unique(former).tolist()
        fresh = ~self._worn(free)
        supply = [int((fresh & (former == origin)).sum()) for origin in origins]
        cost = [[self.harm(origin, layout) for layout in growing] for origin in origins]
        flow = transport(supply, [lacking[layout] for layout in growing], cost)
        for origin, row in zip(origins, flow, strict=True):
            for layout, number in zip(growing, row.tolist(), strict=True):
                lacking[layout] -= self._take(now, free[fresh & (former == origin)], layout, number)
        for layout in growing:
            # Racks at their power limit, or GPUs that have been cut often enough, were in the way.
            order = free[np.argsort(self._worn(free), kind="stable")]
            self._take(now, order, layout, lacking[layout])

    def _take(self, now: Places, order: NDArray[np.intp], layout: int, wanted: int) -> int:
        """Give a layout to the first free GPUs of an order whose racks have room; say how many."""
        order = order[now[order] == _OFF]
        if self.most_per_rack is not None and wanted:
            room = self.most_per_rack - np.bincount(self.rack[now != _OFF], minlength=self.rack[-1] + 1)
            racks = self.rack[order]
            by_rack = np.argsort(racks, kind="stable")
            first = np.searchsorted(racks[by_rack], racks[by_rack])
            rank = np.empty(len(order), dtype=np.int64)
            rank[by_rack] = np.arange(len(order)) - first
            order = order[rank < room[racks]]
        chosen = order[:wanted]
        now[chosen] = layout
        return len(chosen)

    def _worn(self, gpus: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which GPUs may not be cut again today."""
        most = np.inf if self.most_cuts is None else self.most_cuts
        worn: NDArray[np.bool_] = self.cuts_today[gpus] >= most
        return worn

    def _free_beside_cuts(self, now: Places) -> NDArray[np.intp]:
        """Free GPUs that may be cut: least cut today if that is limited, then beside cuts and not whole GPUs."""
        free = np.flatnonzero((now == _OFF) & ~self.kept)
        node = self.node[free]
        whole = now == (_OFF - 1 if self.whole is None else self.whole)
        cut = (now != _OFF) & ~whole
        wear = self.cuts_today[free] if self.most_cuts is not None else np.zeros_like(free)
        order = np.lexsort((-free, -self._per_node(cut)[node], self._per_node(whole)[node], wear))
        return free[order]

    def _per_node(self, marked: NDArray[np.bool_]) -> Counts:
        return np.bincount(self.node, weights=marked, minlength=self.n_nodes).astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _harm(board: GpuModel, texts: tuple[str, ...], before: int, after: int) -> int:
    """How rough a change is: a reboot counts most, then instances destroyed, then instances made."""
    change = ChangeCost.of(board, "nvml").change(texts[before], texts[after])
    return 10_000 * change.reboot + 100 * len(change.destroyed) + len(change.created)


def _ranges(placed: _Placed, problem: PlanProblem) -> pl.DataFrame:
    """Runs of slots with one layout, as table rows."""
    by_gpu, initial, texts = placed.states.T, placed.initial, placed.texts
    fresh = np.ones_like(by_gpu, dtype=bool)
    fresh[:, 1:] = by_gpu[:, 1:] != by_gpu[:, :-1]
    gpu, start = np.nonzero(fresh)
    last = np.append(gpu[1:] != gpu[:-1], True)
    end = np.where(last, problem.n_slots, np.append(start[1:], 0))
    layout = by_gpu[gpu, start]
    arrived = start > 0
    if initial is not None:
        arrived |= layout != initial[gpu]
    is_cut = np.array([text != WHOLE_GPU for text in texts] + [False])
    times = pl.Series(problem.slot_times, dtype=pl.Datetime("us", "UTC"))
    labels = pl.Series([*texts, OFF], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[layout % len(labels)],
            "changed": arrived & is_cut[layout],
        }
    )
    return check(frame.sort("node", "gpu", "slot_start"), LayoutPlan, where="assign")
