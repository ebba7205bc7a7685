"""From counts to numbered GPUs, with the fewest cuts and whole GPUs together on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.hardware import OFF
from gpuplanner.planner.plan import Plan
from gpuplanner.planner.problem import Counts, PlanProblem
from gpuplanner.schemas import WHOLE_GPU, LayoutPlan, check

_OFF = -1

Places = NDArray[np.int16]
"""Layout of every GPU, by position; :data:`_OFF` where it is not on."""


def assign(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Say which GPU has which layout when.

    A GPU keeps its layout whenever the counts allow it, so that the GPUs cut are as few as the plan says. Cut
    GPUs gather on the last nodes, whole ones on nodes without cuts: a job of many whole GPUs finds them side
    by side.

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
    texts = list(dict.fromkeys([*plan.layouts, *(problem.initial or {})]))
    whole = texts.index(WHOLE_GPU) if WHOLE_GPU in texts else None
    names = problem.node_names
    place = _Placer(np.arange(problem.gpus) // problem.gpus_per_node, len(names), whole)
    nothing = np.full(problem.gpus, _OFF, dtype=np.int16)
    initial = None
    if problem.initial is not None:
        initial = place.next(nothing, np.array([problem.initial.get(text, 0) for text in texts]))
    states = []
    now = nothing if initial is None else initial
    for row in plan.counts:
        now = place.next(now, np.pad(row, (0, len(texts) - len(row))))
        states.append(now)
    return _ranges(np.array(states), initial, texts, problem, names)


class _Placer:
    """Chooses GPUs for counts, slot after slot. Nodes are filled with cut GPUs from the last one on."""

    def __init__(self, node: Counts, n_nodes: int, whole: int | None) -> None:
        self.node = node
        self.n_nodes = n_nodes
        self.whole = whole

    def next(self, before: Places, wanted: Counts) -> Places:
        """Layout of every GPU, as close to the one before as the wanted counts allow."""
        now = np.full_like(before, _OFF)
        cut = [layout for layout in range(len(wanted)) if layout != self.whole]
        for layout in cut:
            now[np.flatnonzero(before == layout)[::-1][: wanted[layout]]] = layout
        if self.whole is not None:
            self._place_whole(before, now, self.whole, int(wanted[self.whole]))
        for layout in cut:
            lacking = int(wanted[layout] - (now == layout).sum())
            if lacking:
                now[self._free_beside_cuts(now)[:lacking]] = layout
        return now

    def _place_whole(self, before: Places, now: Places, whole: int, wanted: int) -> None:
        """GPUs that were whole before come first, then those on nodes with fewest cuts."""
        free = np.flatnonzero(now == _OFF)
        node = self.node[free]
        order = np.lexsort((free, self._per_node(now != _OFF)[node], before[free] != whole))
        now[free[order[:wanted]]] = whole

    def _free_beside_cuts(self, now: Places) -> NDArray[np.intp]:
        """Free GPUs, those on nodes with fewest whole GPUs, then most cut ones, first."""
        free = np.flatnonzero(now == _OFF)
        node = self.node[free]
        whole = now == (_OFF - 1 if self.whole is None else self.whole)
        cut = (now != _OFF) & ~whole
        order = np.lexsort((-free, -self._per_node(cut)[node], self._per_node(whole)[node]))
        return free[order]

    def _per_node(self, marked: NDArray[np.bool_]) -> Counts:
        return np.bincount(self.node, weights=marked, minlength=self.n_nodes).astype(np.int64)


def _ranges(
    states: Places, initial: Places | None, texts: list[str], problem: PlanProblem, names: Sequence[str]
) -> pl.DataFrame:
    """Runs of slots with one layout, as table rows."""
    by_gpu = states.T
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
            "node": pl.Series(names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[layout % len(labels)],
            "changed": arrived & is_cut[layout],
        }
    )
    return check(frame.sort("node", "gpu", "slot_start"), LayoutPlan, where="assign")
