"""Assignment of layout counts to numbered GPUs with few changes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import FULL_GPU, LayoutPlan
from gpuplanner.core.units_and_number_formats import SECONDS_PER_MINUTE
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT
from gpuplanner.hardware.repartitioning_cost import ChangeCost
from gpuplanner.planner.layout_plan import Plan
from gpuplanner.planner.plan_problem import Counts, PlanProblem

RELEASED_GPU_STATE = -1
"""Number that stands for a released GPU in :data:`GpuStates`."""

GpuStates = NDArray[np.int16]
"""State of every GPU: position of the layout that it is busy with; behind these, the layout that it is idle with; or
:data:`RELEASED_GPU_STATE` if it is released.
"""
_UNREACHABLE_COST = np.iinfo(np.int64).max // 4
"""Cost of a path that does not exist."""


class GpuPlacer:
    """Assigns layouts to numbered GPUs, interval after interval; MIG layouts go to the last nodes first."""

    def __init__(self, problem: PlanProblem, texts: Sequence[str]) -> None:
        limits = problem.limits
        self.node_of_gpu = np.arange(problem.gpus) // problem.gpus_per_node
        self.n_nodes = len(problem.node_names)
        self.is_kept_full = self.node_of_gpu < limits.whole_nodes_kept
        self.rack_of_gpu = self.node_of_gpu // limits.nodes_per_rack
        self.max_on_per_rack = limits.gpus_on_per_rack
        self.max_changes_per_day = limits.switches_per_day
        self.changes_today = np.zeros(problem.gpus, dtype=np.int64)
        self.full_layout = texts.index(FULL_GPU) if FULL_GPU in texts else None
        self.mig_layouts = [layout for layout in range(len(texts)) if layout != self.full_layout]
        self.change_severity = functools.partial(_change_severity, problem.gpu_model, (*texts, UNUSED_LAYOUT))

    def begin_day(self) -> None:
        """Reset the number of layout changes of each GPU on this day."""
        self.changes_today[:] = 0

    def place_next(self, before: GpuStates, target_counts: Counts, *, is_free_change: bool = False) -> GpuStates:
        """Return the layout of every GPU in the next interval, as close to the one before as the target counts allow.

        Parameters
        ----------
        before : ndarray of int, shape (n_gpus,)
            States in the interval before.
        target_counts : ndarray of int, shape (n_layouts,)
            GPUs with each layout.
        is_free_change : bool
            Whether changes do not count, as they were made before the first interval.
        """
        after = np.full_like(before, RELEASED_GPU_STATE)
        for layout in self.mig_layouts:
            layout_gpus = np.flatnonzero(before == layout)[::-1]
            if self.max_changes_per_day is not None:
                layout_gpus = layout_gpus[np.argsort(-self.changes_today[layout_gpus], kind="stable")]
            after[layout_gpus[: target_counts[layout]]] = layout
        if self.full_layout is not None:
            self._place_full_gpus(before, after, int(target_counts[self.full_layout]))
        kept = after.copy()
        self._place_new_layouts(before, after, target_counts)
        if not is_free_change:
            self.changes_today += (after != kept) | self._loses_layout(before, after)
        return after

    def _place_full_gpus(self, before: GpuStates, after: GpuStates, n_wanted: int) -> None:
        """Choose `n_wanted` full GPUs, written to `after`: nodes kept full first, then GPUs that were full before."""
        free = np.flatnonzero(after == RELEASED_GPU_STATE)
        nodes = self.node_of_gpu[free]
        had_layout = self._loses_layout(before, self.full_layout)[free]
        is_worn = self.is_at_change_limit(free) if self.max_changes_per_day is not None else had_layout
        n_used = self.count_per_node(after != RELEASED_GPU_STATE)[nodes]
        was_other = before[free] != self.full_layout
        # The last key counts most.
        order = np.lexsort((free, n_used, is_worn, had_layout, was_other, ~self.is_kept_full[free]))
        self._assign_layout(after, free[order], int(self.full_layout or 0), n_wanted)

    def _loses_layout(self, before: GpuStates, after: GpuStates | int | None) -> NDArray[np.bool_]:
        """Mark GPUs that lose a MIG layout and stay on as full GPUs; a released GPU returns as a full one."""
        lost: NDArray[np.bool_] = (
            (after == self.full_layout) & (before != RELEASED_GPU_STATE) & (before != self.full_layout)
        )
        return lost

    def _place_new_layouts(self, before: GpuStates, after: GpuStates, target_counts: Counts) -> None:
        """Give GPUs the MIG layouts that `after` lacks of the target counts, by the least severe changes."""
        lacking = {layout: int(target_counts[layout] - (after == layout).sum()) for layout in self.mig_layouts}
        lacking = {layout: number for layout, number in lacking.items() if number > 0}
        if not lacking:
            return
        free = self._rank_unassigned_gpus(after)
        changeable = free[~self.is_at_change_limit(free)]
        for origin, layout, number in self._cheapest_exchanges(before[changeable], lacking):
            lacking[layout] -= self._assign_layout(after, changeable[before[changeable] == origin], layout, number)
        for layout in lacking:
            # Racks at their power limit, or GPUs at their change limit, were in the way.
            order = free[np.argsort(self.is_at_change_limit(free), kind="stable")]
            self._assign_layout(after, order, layout, lacking[layout])

    def _cheapest_exchanges(self, former: GpuStates, lacking: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
        """Yield former layout, new layout and number of GPUs, so that the sum of :func:`_change_severity` is least."""
        if not lacking:
            return
        former_ids, supply = (part.tolist() for part in np.unique(former, return_counts=True))
        cost = [[self.change_severity(former_layout, layout) for layout in lacking] for former_layout in former_ids]
        for former_layout, row in zip(former_ids, solve_transport(supply, list(lacking.values()), cost), strict=True):
            for layout, number in zip(lacking, row.tolist(), strict=True):
                yield former_layout, layout, number

    def _assign_layout(self, after: GpuStates, gpu_order: NDArray[np.intp], layout: int, n_wanted: int) -> int:
        """Assign a layout to the first GPUs in order that have none yet and have rack power; return how many.

        Parameters
        ----------
        after : ndarray of int, shape (n_gpus,)
            States in the interval; changed.
        gpu_order : ndarray of int
            GPUs in order of preference.
        layout : int
            Position of the layout.
        n_wanted : int
            Number of GPUs.
        """
        gpu_order = gpu_order[after[gpu_order] == RELEASED_GPU_STATE]
        if n_wanted:
            gpu_order = gpu_order[self.has_rack_power(gpu_order, after != RELEASED_GPU_STATE)]
        chosen = gpu_order[:n_wanted]
        after[chosen] = layout
        return len(chosen)

    def has_rack_power(self, gpu_order: NDArray[np.intp], is_powered: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the GPUs that their racks have power for, in order of preference, besides those of `is_powered`."""
        if self.max_on_per_rack is None:
            return np.ones(len(gpu_order), dtype=bool)
        n_racks = self.rack_of_gpu[-1] + 1
        n_free = self.max_on_per_rack - np.bincount(self.rack_of_gpu[is_powered], minlength=n_racks)
        racks = self.rack_of_gpu[gpu_order]
        by_rack = np.argsort(racks, kind="stable")
        rank = np.empty(len(gpu_order), dtype=np.int64)
        rank[by_rack] = np.arange(len(gpu_order)) - np.searchsorted(racks[by_rack], racks[by_rack])
        return rank < n_free[racks]

    def is_at_change_limit(self, gpus: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Mark the GPUs that may not change their layout again today."""
        max_changes = np.inf if self.max_changes_per_day is None else self.max_changes_per_day
        return self.changes_today[gpus] >= max_changes

    def _rank_unassigned_gpus(self, after: GpuStates) -> NDArray[np.intp]:
        """Rank unassigned GPUs that may be partitioned: by fewest changes today, then fewest full GPUs on the node."""
        free = np.flatnonzero((after == RELEASED_GPU_STATE) & ~self.is_kept_full)
        nodes = self.node_of_gpu[free]
        is_full = after == (RELEASED_GPU_STATE - 1 if self.full_layout is None else self.full_layout)
        is_partitioned = (after != RELEASED_GPU_STATE) & ~is_full
        changes_today = self.changes_today[free] if self.max_changes_per_day is not None else np.zeros_like(free)
        n_partitioned = self.count_per_node(is_partitioned)[nodes]
        n_full = self.count_per_node(is_full)[nodes]
        return free[np.lexsort((-free, -n_partitioned, n_full, changes_today))]

    def count_per_node(self, is_marked: NDArray[np.bool_]) -> Counts:
        """Count the marked GPUs of each node, shape (n_nodes,)."""
        return np.bincount(self.node_of_gpu, weights=is_marked, minlength=self.n_nodes).astype(np.int64)


@functools.lru_cache(maxsize=4096)
def _change_severity(gpu_model: GpuModel, texts: tuple[str, ...], before: int, after: int) -> int:
    """Weight of a change of layout, for comparison: reboots count 10 000, destroyed instances 100, created ones 1.

    Parameters
    ----------
    gpu_model : GpuModel
        GPU model.
    texts : tuple of str
        Layout texts.
    before : int
        Position of the layout before.
    after : int
        Position of the layout after.
    """
    change = ChangeCost.from_catalogue(gpu_model, "nvidia-smi").change(texts[before], texts[after])
    return 10_000 * change.reboot + 100 * len(change.destroyed) + len(change.created)


class IdleGpuPlacer(GpuPlacer):
    """Assigns a layout, busy or idle, to numbered GPUs if GPUs that are not needed stay idle with their layout.

    The position of a layout plus the number of layouts means: idle with that layout. The full GPU is a layout too, so
    that every GPU has one.
    """

    def place_next(self, before: GpuStates, target_counts: Counts, *, is_free_change: bool = False) -> GpuStates:
        """Return the state of every GPU in the next interval, as close to the one before as the target counts allow.

        Idle GPUs lose their layouts first; new layouts go where they destroy least. Busy GPUs stay busy, idle ones with
        the layout come next, then those that have just taken it.

        Parameters
        ----------
        before : ndarray of int, shape (n_gpus,)
            States in the interval before.
        target_counts : ndarray of int, shape (2 * n_layouts,)
            Busy, then idle GPUs with each layout.
        is_free_change : bool
            Whether changes do not count, as they were made before the first interval.
        """
        n_layouts = len(self.mig_layouts) + 1
        was_on, layouts_before = before < n_layouts, before % n_layouts
        assert self.full_layout is not None
        target = target_counts[:n_layouts] + target_counts[n_layouts:]
        target[self.full_layout] += len(before) - target.sum()
        layouts = self._place_layouts(layouts_before, was_on, target, int(target_counts[self.full_layout]))
        after = (layouts + n_layouts).astype(before.dtype)
        node = self.node_of_gpu
        for layout in range(n_layouts):
            layout_gpus = np.flatnonzero(layouts == layout)
            preference = -layout_gpus
            if layout == self.full_layout:
                preference = self.count_per_node(layouts != self.full_layout)[node[layout_gpus]]
            keeps_layout_on = was_on[layout_gpus] & (layouts_before[layout_gpus] == layout)
            is_new_layout = layouts_before[layout_gpus] != layout
            may_change = ~self.is_kept_full[layout_gpus]
            order = layout_gpus[np.lexsort((layout_gpus, preference, may_change, is_new_layout, ~keeps_layout_on))]
            if layout == self.full_layout:
                order = self._powered_first(order, layouts != self.full_layout)
            after[order[: target_counts[layout]]] = layout
        if not is_free_change:
            self.changes_today += layouts != layouts_before
        return after

    def _place_layouts(self, before: GpuStates, was_on: NDArray[np.bool_], target: Counts, n_full_on: int) -> GpuStates:
        """Return the layout of every GPU; `n_full_on` of the full ones are to be powered on.

        Parameters
        ----------
        before : ndarray of int, shape (n_gpus,)
            Layouts in the interval before.
        was_on : ndarray of bool, shape (n_gpus,)
            Whether each GPU was busy.
        target : ndarray of int, shape (n_layouts,)
            GPUs to have each layout, busy or idle.
        n_full_on : int
            Full GPUs that are to be powered on.
        """
        layouts = before.copy()
        surplus = (np.bincount(before, minlength=len(target)) - target).tolist()
        parts = [self._rank_spare_gpus(before, was_on, layout, n, n_full_on) for layout, n in enumerate(surplus)]
        spare_gpus = np.concatenate(parts)
        lacking = {layout: -n_surplus for layout, n_surplus in enumerate(surplus) if n_surplus < 0}
        for former_layout, layout, number in self._cheapest_exchanges(before[spare_gpus], lacking):
            layouts[spare_gpus[before[spare_gpus] == former_layout][:number]] = layout
            spare_gpus = spare_gpus[layouts[spare_gpus] == before[spare_gpus]]
        return layouts

    def _rank_spare_gpus(
        self, before: GpuStates, was_on: NDArray[np.bool_], layout: int, n_surplus: int, n_full_on: int
    ) -> NDArray[np.intp]:
        """Return the GPUs that lose a layout: idle ones first, then those changed least, on little used nodes.

        Parameters
        ----------
        before : ndarray of int, shape (n_gpus,)
            Layouts in the interval before.
        was_on : ndarray of bool, shape (n_gpus,)
            Whether each GPU was busy.
        layout : int
            Position of the layout.
        n_surplus : int
            GPUs that have the layout beyond the target, and lose it; none below 0.
        n_full_on : int
            Full GPUs that are to be powered on.
        """
        layout_gpus = np.flatnonzero((before == layout) & ~self.is_kept_full)
        n_on_node = self.count_per_node(was_on)[self.node_of_gpu[layout_gpus]]
        order = np.lexsort((-layout_gpus, n_on_node, self.is_at_change_limit(layout_gpus), was_on[layout_gpus]))
        layout_gpus = layout_gpus[order]
        if layout == self.full_layout and self.max_on_per_rack is not None:
            # Partitioned GPUs keep their power then, and as many busy full ones as the target has.
            on_gpus = np.flatnonzero((before == layout) & was_on)
            staying = on_gpus[np.argsort(~self.is_kept_full[on_gpus], kind="stable")[:n_full_on]]
            is_powered = before != layout
            is_powered[staying] = True
            layout_gpus = self._powered_first(layout_gpus[~np.isin(layout_gpus, staying)], is_powered)
        return layout_gpus[: max(0, n_surplus)]

    def _powered_first(self, gpu_order: NDArray[np.intp], is_powered: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Reorder GPUs: first those that their racks have power for, besides those of `is_powered`."""
        return gpu_order[np.argsort(~self.has_rack_power(gpu_order, is_powered), kind="stable")]


def solve_transport(supply: ArrayLike, demand: ArrayLike, cost: ArrayLike) -> NDArray[np.int64]:
    """Solve the transportation problem: move whole units from sources to sinks at the least cost.

    Successive shortest paths: each step sends as many units as fit along the cheapest path of the residual network,
    which may reroute earlier units. The number of steps grows with sources times sinks, not with units [1]_.

    Parameters
    ----------
    supply, demand : sequence of int
        Units at each source, and wanted at each sink.
    cost : array of int, shape (n_sources, n_sinks)
        Cost of a unit.

    Returns
    -------
    ndarray of int, shape (n_sources, n_sinks)
        Units moved.

    References
    ----------
    .. [1] Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.7.

    Examples
    --------
    Taking the cheapest way first would cost 0 + 9; the best is 1 + 2:

    >>> solve_transport([1, 1], [1, 1], [[0, 1], [2, 9]]).tolist()
    [[0, 1], [1, 0]]
    """
    supply_left, demand_left = np.array(supply, dtype=np.int64), np.array(demand, dtype=np.int64)
    unit_cost = np.array(cost, dtype=np.int64).reshape(len(supply_left), len(demand_left))
    flow = np.zeros_like(unit_cost)
    while supply_left.any() and demand_left.any():
        to_sink, source_of, sink_of = _shortest_distances(supply_left, unit_cost, flow)
        reachable = np.where(demand_left > 0, to_sink, _UNREACHABLE_COST)
        if not len(reachable) or reachable.min() >= _UNREACHABLE_COST:
            break
        sink = int(reachable.argmin())
        path = []
        last_sink = sink
        while True:
            source = int(source_of[last_sink])
            path.append((source, last_sink))
            if sink_of[source] < 0:
                break
            last_sink = int(sink_of[source])
        given_up = [(source, after) for (source, _), (_, after) in itertools.pairwise(path)]
        returned_units = [int(flow[source, sink_on_path]) for source, sink_on_path in given_up]
        units = min(int(supply_left[path[-1][0]]), int(demand_left[sink]), *returned_units)
        for source, sink_on_path in path:
            flow[source, sink_on_path] += units
        for source, sink_on_path in given_up:
            flow[source, sink_on_path] -= units
        supply_left[path[-1][0]] -= units
        demand_left[sink] -= units
    return flow


def _shortest_distances(
    supply_left: NDArray[np.int64], unit_cost: NDArray[np.int64], flow: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return distances from sources with supply to sinks in the residual network (Bellman-Ford), and predecessors."""
    to_source = np.where(supply_left > 0, 0, _UNREACHABLE_COST)
    to_sink = np.full(unit_cost.shape[1], _UNREACHABLE_COST)
    source_of, sink_of = np.full(len(to_sink), -1), np.full(len(to_source), -1)
    for _ in range(len(to_source) + 1):
        path_costs = to_source[:, None] + unit_cost
        best = path_costs.argmin(axis=0)
        better = path_costs[best, np.arange(len(to_sink))] < to_sink
        to_sink = np.where(better, path_costs[best, np.arange(len(to_sink))], to_sink)
        source_of = np.where(better, best, source_of)
        return_cost = np.where(flow > 0, to_sink[None, :] - unit_cost, _UNREACHABLE_COST)
        best = return_cost.argmin(axis=1)
        shorter = return_cost[np.arange(len(to_source)), best] < to_source
        if not shorter.any() and not better.any():
            break
        to_source = np.where(shorter, return_cost[np.arange(len(to_source)), best], to_source)
        sink_of = np.where(shorter, best, sink_of)
    return to_sink, source_of, sink_of


_LAYOUT_CHANGE_SCHEMA = {
    **dict.fromkeys(("before", "after"), pl.String),
    "changes": pl.Int64,
    **dict.fromkeys(("minutes", "minutes_low", "minutes_high"), pl.Float64),
    "reboot": pl.Boolean,
}
"""Columns and dtypes of the table of :func:`layout_changes`."""


def assign(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """Assign the layouts of a plan to numbered GPUs.

    A GPU keeps its layout whenever the counts allow it, so that the changes are as few as the plan states. Which GPU
    takes which new layout is a transportation problem: reboots are avoided first, then the destruction of instances
    that the new layout has as well. Partitioned GPUs gather on the last nodes, full ones on nodes without them: a job
    of many full GPUs finds them on few nodes. Nodes kept full are never partitioned, racks stay within their power, and
    GPUs that changed as often as a day allows are skipped while there are others.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem.

    Returns
    -------
    polars.DataFrame, shape (n_ranges, 7)
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`: one row for each GPU and range of intervals with one layout,
        sorted by node, GPU and start. GPUs that are not powered on or idle have the layout ``"off"``, and ``parked`` is
        the layout of idle ones. ``changed`` marks changes; in the first interval, GPUs count as already partitioned
        unless the problem has initial layouts.

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
    return _layout_ranges(_number_gpus(problem, plan.layouts, plan.counts, plan.parked), problem)


def initial_gpu_layouts(plan: Plan, problem: PlanProblem) -> pl.DataFrame | None:
    """Return the layout of each GPU before the first interval (node, gpu, layout), numbered as by :func:`assign`.

    None if the initial layouts are unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from gpuplanner.planner.plan_search import plan
    >>> problem = PlanProblem(
    ...     "A100-40GB", 2, 2, datetime(2026, 11, 2, tzinfo=UTC), 1, ["ads"], ["3g.20gb"], [[[4, 4, 4]]],
    ...     initial={"gpu": 1, "3g.20gb:2": 1},
    ... )
    >>> initial_gpu_layouts(plan(problem), problem).rows()
    [('node0', 0, 'gpu'), ('node0', 1, '3g.20gb:2')]
    """
    numbered = _number_gpus(problem, plan.layouts, plan.counts, plan.parked)
    if numbered.initial is None:
        return None
    layouts = numbered.layouts_of(numbered.initial)
    number = np.arange(problem.gpus)
    return pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[number // problem.gpus_per_node],
            "gpu": (number % problem.gpus_per_node).astype(np.int32),
            # A released GPU returns as a full one.
            "layout": [FULL_GPU if state == RELEASED_GPU_STATE else numbered.texts[state] for state in layouts],
        }
    )


def layout_changes(plan: Plan, problem: PlanProblem) -> pl.DataFrame:
    """List the changes of layout of a plan, how often each is made, and how long it takes.

    Parameters
    ----------
    plan : Plan
        A plan that was found.
    problem : PlanProblem
        Its problem; its ``change`` has the times.

    Returns
    -------
    polars.DataFrame
        ``before, after`` (layout text), ``changes``, and ``minutes``, ``minutes_low``, ``minutes_high`` during which
        the GPU, or with ``reboot`` its node, is out of service [min]; most frequent first. Counted as in the plan:
        whenever a GPU takes a layout, or loses one and stays on. A released GPU had none.

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
    numbered = _number_gpus(problem, plan.layouts, plan.counts, plan.parked)
    texts = np.array([*numbered.texts, FULL_GPU])
    before, after = numbered.layouts_before_and_after
    taken_up = before != after
    pairs = Counter(zip(texts[before[taken_up]].tolist(), texts[after[taken_up]].tolist(), strict=True))
    rows = []
    for (old, new), times in sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])):
        change = problem.change.change(old, new)
        durations_min = [second / SECONDS_PER_MINUTE for second in (change.seconds, change.low_s, change.high_s)]
        rows.append((old, new, times, *durations_min, change.reboot))
    return pl.DataFrame(rows, schema=_LAYOUT_CHANGE_SCHEMA, orient="row")


def count_numbered_changes(
    problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None = None
) -> tuple[int, NDArray[np.bool_]]:
    """Return the most layout changes of any GPU in a day, and a mask of repartitioned nodes, shape (n_slots, n_nodes).

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    layouts : sequence of str
        Layout texts.
    counts, parked : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs, and idle GPUs with each layout.
    """
    numbered = _number_gpus(problem, layouts, counts, parked)
    before, after = numbered.layouts_before_and_after
    nodes = _mark_nodes(problem, before != after)
    nodes[0] = False
    return numbered.max_changes_per_day, nodes


def count_node_reboots(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts) -> int:
    """Count the node reboots for changes of MIG mode, with GPUs numbered as by :func:`assign`.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    layouts : sequence of str
        Layout texts.
    counts : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs with each layout.
    parked : ndarray of int, shape (n_slots, n_layouts)
        Idle GPUs with each layout.
    """
    if problem.change.reboot_s is None:
        return 0
    numbered = _number_gpus(problem, layouts, counts, parked)
    before, after = numbered.layouts_before_and_after
    return int(_mark_nodes(problem, (before == numbered.full_layout) != (after == numbered.full_layout)).sum())


@dataclass(frozen=True, eq=False)
class _NumberedGpus:
    """State of every numbered GPU in every interval, and before the first one if it is known.

    - ``texts``: Layouts, by the positions that the states name.
    - ``states``, shape (n_slots, n_gpus), ``initial``, shape (n_gpus,): See :data:`GpuStates`.
    - ``max_changes_per_day``: Most layout changes that any GPU has within one day.
    """

    texts: list[str]
    states: GpuStates
    initial: GpuStates | None
    max_changes_per_day: int

    def layouts_of(self, states: GpuStates) -> GpuStates:
        """Return the positions of the layouts that busy and idle GPUs have, from their states."""
        return np.where(states >= len(self.texts), states - len(self.texts), states)

    @property
    def full_layout(self) -> int:
        """Position of the full GPU among the layouts; :data:`RELEASED_GPU_STATE` if no GPU is full."""
        return self.texts.index(FULL_GPU) if FULL_GPU in self.texts else RELEASED_GPU_STATE

    @functools.cached_property
    def layouts_before_and_after(self) -> tuple[GpuStates, GpuStates]:
        """Layouts before and after the start of each interval, shape (n_slots, n_gpus) each.

        A released GPU returns as a full one; a GPU that is being released keeps its layout. The first interval has no
        change if the state before is unknown.
        """
        states = self.layouts_of(self.states)
        first = states[:1] if self.initial is None else self.layouts_of(self.initial[None])
        before = np.concatenate([first, states[:-1]])
        before = np.where(before == RELEASED_GPU_STATE, self.full_layout, before)
        return before, np.where(states == RELEASED_GPU_STATE, before, states)


def _mark_nodes(problem: PlanProblem, gpus: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the nodes that have a marked GPU, shape (n_slots, n_nodes); `gpus` is the mask, shape (n_slots, n_gpus)."""
    starts = np.arange(0, problem.gpus, problem.gpus_per_node)
    return np.logical_or.reduceat(gpus, starts, axis=1)


def _number_gpus(problem: PlanProblem, layouts: Sequence[str], counts: Counts, parked: Counts | None) -> _NumberedGpus:
    """Assign the counts of a plan to numbered GPUs, interval after interval.

    Parameters
    ----------
    problem : PlanProblem
        The problem.
    layouts : sequence of str
        Layout texts.
    counts : ndarray of int, shape (n_slots, n_layouts)
        Powered-on GPUs with each layout.
    parked : ndarray of int, shape (n_slots, n_layouts)
        Idle GPUs with each layout.
    """
    parks = problem.prices is not None
    layout_texts = [*layouts, *(problem.initial or {}), *(problem.parked or {}), *([FULL_GPU] if parks else [])]
    texts = list(dict.fromkeys(layout_texts))
    placer = (IdleGpuPlacer if parks else GpuPlacer)(problem, texts)
    states_now = np.full(
        problem.gpus, len(texts) + texts.index(FULL_GPU) if parks else RELEASED_GPU_STATE, dtype=np.int16
    )
    initial = None
    if parks and parked is not None:
        padding = ((0, 0), (0, len(texts) - len(layouts)))
        counts = np.hstack([np.pad(part, padding) for part in (counts, parked)])
    columns = len(texts) * (2 if parks else 1)
    if problem.initial is not None:
        counts_before = [problem.initial.get(text, 0) for text in texts]
        counts_before += [(problem.parked or {}).get(text, 0) for text in texts] if parks else []
        initial = states_now = placer.place_next(states_now, np.array(counts_before))
        placer.begin_day()
    states, max_changes = [], 0
    for slot, row in enumerate(counts):
        if slot and problem.day_of_slot(slot) > problem.day_of_slot(slot - 1):
            placer.begin_day()
        is_free_change = slot == 0 and initial is None
        states_now = placer.place_next(states_now, np.pad(row, (0, columns - len(row))), is_free_change=is_free_change)
        states.append(states_now)
        max_changes = max(max_changes, int(placer.changes_today.max(initial=0)))
    return _NumberedGpus(texts, np.array(states), initial, max_changes)


def _layout_ranges(numbered: _NumberedGpus, problem: PlanProblem) -> pl.DataFrame:
    """Convert the states of GPUs to rows of the layout plan: ranges of intervals with one state."""
    by_gpu = numbered.states.T
    texts = numbered.texts
    n = len(texts)
    is_range_start = np.ones_like(by_gpu, dtype=bool)
    is_range_start[:, 1:] = by_gpu[:, 1:] != by_gpu[:, :-1]
    gpu, start = np.nonzero(is_range_start)
    last = np.append(gpu[1:] != gpu[:-1], True)
    end = np.where(last, problem.n_slots, np.append(start[1:], 0))
    state = by_gpu[gpu, start]
    layout = numbered.layouts_of(state)
    before, after = numbered.layouts_before_and_after
    changed = (before != after).T[gpu, start]
    times = pl.Series(problem.slot_times, dtype=pl.Datetime("us", "UTC"))
    labels = pl.Series([*texts, UNUSED_LAYOUT], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "node": pl.Series(problem.node_names, dtype=pl.String)[gpu // problem.gpus_per_node],
            "gpu": (gpu % problem.gpus_per_node).astype(np.int32),
            "slot_start": times[start],
            "slot_end": times[end],
            "layout": labels[np.where(state < n, state, RELEASED_GPU_STATE) % len(labels)],
            "changed": changed,
            "parked": pl.Series([*texts, None], dtype=pl.String)[
                np.where(state < n, RELEASED_GPU_STATE, layout) % (n + 1)
            ],
        }
    )
    return check_table(frame.sort("node", "gpu", "slot_start"), LayoutPlan, source="assign")
