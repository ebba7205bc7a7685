"""Order of layout changes at an interval boundary: which GPUs are drained and repartitioned in which step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, SchemaError
from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import FULL_GPU, LayoutPlan
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, GpuLayoutChange
from gpuplanner.planner.fleet_limits_and_prices import is_count
from gpuplanner.planner.plan_problem import Counts, find_up_sets, incidence_rows


@dataclass(frozen=True)
class GpuMove:
    """Change of one GPU at an interval boundary.

    - ``node``: Name of its node.
    - ``gpu``: Index on the node.
    - ``before``, ``after``: Layout text on either side; ``"off"`` where the GPU is not needed.
    - ``layout_at_start``: Layout when the change begins: ``before``, or the one with which the GPU is idle.
    - ``layout_at_end``: Layout after the change.
    - ``change``: Instances created and destroyed; None if the layout does not change.
    """

    node: str
    gpu: int
    before: str
    after: str
    layout_at_start: str
    layout_at_end: str
    change: GpuLayoutChange | None

    @property
    def in_use(self) -> bool:
        """Whether work may run on the GPU when the change begins."""
        return self.before != UNUSED_LAYOUT

    @property
    def action(self) -> str:
        """Action on the GPU, one of :data:`~gpuplanner.planner.drain_order.DRAIN_ACTIONS`."""
        if self.layout_at_start == self.layout_at_end:
            if self.after == UNUSED_LAYOUT:
                return "release"
            return "wait" if self.in_use else "return"
        if FULL_GPU in (self.layout_at_start, self.layout_at_end):
            return "partition" if self.layout_at_start == FULL_GPU else "disable_mig"
        return "repartition"


@dataclass(frozen=True)
class DrainGroup:
    """GPUs that change together: one, or all GPUs of a node that reboots.

    - ``moves``: At least one.
    - ``reboot``: Whether the node reboots.
    """

    moves: tuple[GpuMove, ...]
    reboot: bool

    @property
    def gpus_in_use(self) -> int:
        """Number of GPUs in use that are out of service while the group changes."""
        return sum(move.in_use for move in self.moves)

    @property
    def is_release(self) -> bool:
        """Whether the group is one GPU that is released."""
        return self.moves[0].action == "release"

    def downtime_s(self, move: GpuMove) -> float:
        """Return the time that a GPU is out of service, without its drain; with a reboot, that of the node [s]."""
        moves = self.moves if self.reboot else (move,)
        return max(0.0 if group_move.change is None else group_move.change.seconds for group_move in moves)

    def must_drain(self, move: GpuMove) -> bool:
        """Whether work must leave the GPU first: not if no instance is destroyed."""
        undisturbed = move.change is not None and not self.reboot and not move.change.destroyed
        return move.in_use and not undisturbed


class InstanceSupply:
    """Instances in service during the changes at an interval boundary, and those needed before and after it.

    - ``gpu_model``: GPU model of all GPUs.
    - ``moves``: All GPUs, also those that do not change.
    """

    def __init__(self, gpu_model: GpuModel, moves: Sequence[GpuMove]) -> None:
        texts = {text for move in moves for text in (move.before, move.after)} - {UNUSED_LAYOUT}
        self.profiles = tuple(sorted({name for text in texts for name in parse_layout(text)}))
        sets = find_up_sets(gpu_model, self.profiles, self.profiles)
        self.request_sets = incidence_rows([requests for requests, _ in sets], len(self.profiles))
        self.serving_sets = incidence_rows([servers for _, servers in sets], len(self.profiles))
        self.instances_before = self._count_instances([move.before for move in moves])
        self.instances_after = self._count_instances([move.after for move in moves])
        self.instances_needed = np.minimum(self.instances_before, self.instances_after)

    def instances_lost(self, group: DrainGroup) -> Counts:
        """Return the instances out of service while a group of GPUs changes, by profile; kept instances continue."""
        total = self._count_instances([move.before for move in group.moves])
        moves = () if group.reboot else group.moves
        changes = [move.change for move in moves if move.in_use and move.change is not None]
        kept = [placement.profile for change in changes for placement in change.kept]
        return total - np.array([kept.count(name) for name in self.profiles], dtype=np.int64)

    def instances_gained(self, group: DrainGroup) -> Counts:
        """Return how many instances of each profile are added once a group of GPUs has changed; negative: fewer."""
        return self._count_instances([move.after for move in group.moves]) - self._count_instances(
            [move.before for move in group.moves]
        )

    def count_unserved(self, requested: Counts, available: Counts) -> int:
        """Count the requests that get no instance of their profile or a larger one; both arrays are by profile.

        Serving one profile after another is exact: the vectors that can be served together form a polymatroid.
        """
        n_free = self.serving_sets @ available
        n_unserved = 0
        for profile, requests in enumerate(requested.tolist()):
            if requests:
                in_sets = self.request_sets[:, profile] > 0
                served = min(requests, int(n_free[in_sets].min()))
                n_free[in_sets] -= served
                n_unserved += requests - served
        return n_unserved

    def _count_instances(self, layouts: Sequence[str]) -> Counts:
        """Count the instances of layouts, by profile."""
        total = dict.fromkeys(self.profiles, 0)
        for layout in layouts:
            for name, count in {} if layout == UNUSED_LAYOUT else parse_layout(layout).items():
                total[name] += count
        return np.array(list(total.values()), dtype=np.int64)


def order_drain_steps(
    groups: Sequence[DrainGroup], supply: InstanceSupply, at_once: int
) -> Iterator[tuple[list[DrainGroup], int]]:
    """Yield the groups of each step, with the number of requests without an instance during it.

    Parameters
    ----------
    groups : sequence of DrainGroup
        All GPUs that change, in groups that change together.
    supply : InstanceSupply
        Instances in service and needed.
    at_once : int
        Most GPUs in use that may be out of service at a time.
    """
    available = supply.instances_before
    idle_groups = [group for group in groups if not group.gpus_in_use]
    if idle_groups:
        yield idle_groups, supply.count_unserved(supply.instances_needed, available)
        available = available + sum(supply.instances_gained(group) for group in idle_groups)
    groups_by_key: dict[tuple[bytes, bytes, int], list[DrainGroup]] = {}
    for group in reversed(groups):
        if group.gpus_in_use and not group.is_release:
            key = (supply.instances_lost(group).tobytes(), supply.instances_gained(group).tobytes(), group.gpus_in_use)
            groups_by_key.setdefault(key, []).append(group)
    groups_by_effect = list(groups_by_key.values())
    while any(groups_by_effect):
        step = _choose_next_step(groups_by_effect, available, supply, at_once)
        lost = sum(supply.instances_lost(group) for group in step)
        yield step, supply.count_unserved(supply.instances_needed, available - lost)
        available = available + sum(supply.instances_gained(group) for group in step)
    releases = [group for group in groups if group.is_release]
    if releases:
        available = available + sum(supply.instances_gained(group) for group in releases)
        yield releases, supply.count_unserved(supply.instances_needed, available)


def _choose_next_step(
    groups_by_effect: Sequence[list[DrainGroup]], available: Counts, supply: InstanceSupply, at_once: int
) -> list[DrainGroup]:
    """Remove from `groups_by_effect` the groups to change next: those that leave the fewest requests unserved.

    Parameters
    ----------
    groups_by_effect : sequence of list of DrainGroup
        Remaining groups, in lists of those that cost and add the same instances; changed.
    available : ndarray of int, shape (n_profiles,)
        Instances in service.
    supply : InstanceSupply
        Instances needed.
    at_once : int
        Most GPUs in use that may be out of service at a time.
    """
    step: list[DrainGroup] = []
    gpus_left = at_once
    while True:
        ranking = []
        for position, groups in enumerate(groups_by_effect):
            if groups and groups[-1].gpus_in_use <= gpus_left:
                n_during = supply.count_unserved(supply.instances_needed, available - supply.instances_lost(groups[-1]))
                n_after = supply.count_unserved(supply.instances_after, available + supply.instances_gained(groups[-1]))
                first = groups[-1].moves[0]
                ranking.append((n_during, n_after, first.node, first.gpu, position))
        best = min(ranking, default=None)
        if best is None or (step and best[0] > 0):
            return step
        step.append(groups_by_effect[best[-1]].pop())
        available = available - supply.instances_lost(step[-1])
        gpus_left -= step[-1].gpus_in_use


DRAIN_ACTIONS = ("return", "partition", "repartition", "disable_mig", "wait", "release")
"""``return``: comes back as it is: with its layout if it was idle, or full if it was released. ``partition``: was
full. ``repartition``: changes its layout. ``disable_mig``: is a full GPU from now on. ``wait``: keeps its layout while
its node reboots. ``release``: is not needed any more and left as it is. ``"off"`` after another action: the layout
changes while the GPU is idle.
"""

_DRAIN_STEP_SCHEMA = {
    "step": pl.Int64,
    "node": pl.String,
    "gpu": pl.Int32,
    **dict.fromkeys(("action", "before", "after"), pl.String),
    "drain": pl.Boolean,
    **dict.fromkeys(("kept", "destroyed", "created"), pl.String),
    "reboot": pl.Boolean,
    **dict.fromkeys(("start_min", "minutes"), pl.Float64),
    "short": pl.Int64,
}
"""Columns and dtypes of the table of :func:`transition`."""


def transition(
    layout_plan: pl.DataFrame,
    *,
    at: datetime,
    gpu_model: GpuModel | str,
    change: ChangeCost | None = None,
    at_once: int = 8,
    drain_s: float = 0.0,
) -> pl.DataFrame:
    """Order the layout changes at one interval boundary into steps.

    Idle GPUs come first: they take nothing away, and give work somewhere to go. GPUs in use follow in steps of at most
    `at_once`; in each, those whose absence leaves the fewest requests without an instance, and of these, the ones whose
    new layout the plan needs most. A step has fewer if one more would leave requests without an instance. GPUs that are
    no longer needed are released last and left as they are; a released GPU returns as a full GPU. Where a change of MIG
    mode needs a reboot, the whole node is out of service for it, once, and all its changes are made then.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`, from :func:`~gpuplanner.planner.numbered_gpus.assign`. GPUs
        that are off and have no layout are full.
    at : datetime
        The boundary, with time zone.
    gpu_model : GpuModel or str
        GPU model of all GPUs in the table.
    change : ChangeCost, optional
        How layouts are changed and how long that takes; None: ``mig-manager``, with the times of the catalogue. Through
        NVML, instances that both layouts have continue to run.
    at_once : int
        Most GPUs in use that may be out of service at a time. A node that reboots counts with all its GPUs in use.
    drain_s : float
        Time to wait for work on a GPU to end. [s]

    Returns
    -------
    polars.DataFrame
        One row for each step and GPU, sorted: ``step`` from 1; ``node``, ``gpu``; ``action``, one of
        :data:`DRAIN_ACTIONS`; ``before`` and ``after``, layouts as text; ``drain``, whether work must leave first;
        ``kept``, ``destroyed``, ``created``, instances as profile@slice; ``reboot`` of the node; ``start_min``,
        expected start of the step after `at` [min]; ``minutes``, time that this GPU is out of service [min] (the step
        lasts as long as its longest); ``short``, instances missing during the step of those needed both before and
        after. GPUs that do not change have no row. Reboots are the distinct pairs of step and node with ``reboot``.

    Raises
    ------
    SchemaError
        If the table is no layout plan, or has no rows just before or after `at`.
    ScenarioError
        If `at_once` or `drain_s` is invalid, `change` is for another GPU model, or a node cannot reboot because more
        GPUs are in use there.
    GeometryError
        If the GPU model cannot have a layout.

    Examples
    --------
    >>> from datetime import UTC
    >>> noon = datetime(2026, 11, 2, 12, tzinfo=UTC)
    >>> hours = [(noon.replace(hour=hour), noon.replace(hour=hour + 1)) for hour in (11, 12)]
    >>> layouts = {0: ("7g.80gb:1", "3g.40gb:2"), 1: ("3g.40gb:2", "off"), 2: ("off", "7g.80gb:1")}
    >>> rows = [
    ...     {"node": "n", "gpu": gpu, "slot_start": start, "slot_end": end, "layout": text, "changed": False}
    ...     for gpu, texts in layouts.items() for (start, end), text in zip(hours, texts)
    ... ]
    >>> table = pl.DataFrame(rows, schema_overrides={"gpu": pl.Int32})
    >>> steps = transition(table, at=noon, gpu_model="H100-80GB-SXM5", drain_s=600)
    >>> for row in steps.select("step", "gpu", "action", "drain", "start_min", "minutes", "short").rows():
    ...     print(*row)
    1 2 partition False 0.0 1.0 0
    2 0 repartition True 1.0 11.0 0
    3 1 release True 12.0 10.0 0
    """
    gpu_model = as_gpu_model(gpu_model)
    _check_arguments(at, at_once, drain_s)
    cost = ChangeCost.from_catalogue(gpu_model) if change is None else change.require_model(gpu_model)
    moves = list(_list_gpu_moves(layout_plan, at, cost))
    groups = _group_moves_that_drain_together(moves, at_once)
    supply = InstanceSupply(gpu_model, moves)
    rows: list[dict[str, Any]] = []
    start_s = 0.0
    for number, (step, short) in enumerate(order_drain_steps(groups, supply, at_once), 1):
        longest = 0.0
        for group, move in [(drain_group, move) for drain_group in step for move in drain_group.moves]:
            seconds = group.downtime_s(move) + drain_s * group.must_drain(move)
            longest = max(longest, seconds)
            times = {"start_min": round(start_s / 60, 3), "minutes": round(seconds / 60, 3)}
            rows.append({"step": number, **_drain_step_row(group, move), **times, "short": short})
        start_s += longest
    return pl.DataFrame(rows, schema=_DRAIN_STEP_SCHEMA).sort("step", "node", "gpu")


def _list_gpu_moves(layout_plan: pl.DataFrame, at: datetime, cost: ChangeCost) -> Iterator[GpuMove]:
    """Yield the change of every GPU, also of those that keep their layout: a reboot may interrupt them."""
    frame = check_table(layout_plan, LayoutPlan, source="layout plan").sort("node", "gpu", "slot_start")
    before = frame.filter(pl.col("slot_start") < at, pl.col("slot_end") >= at)
    after = frame.filter(pl.col("slot_start") <= at, pl.col("slot_end") > at)
    if before.is_empty() or after.is_empty():
        times = "a time with rows of the plan just before and after it"
        raise SchemaError("transition", times, at.isoformat(), "Choose the start of an interval.")
    layouts_kept_before = _layouts_by_gpu(before.filter(pl.col("parked").is_not_null()), "parked")
    layouts_kept_after = _layouts_by_gpu(after.filter(pl.col("parked").is_not_null()), "parked")
    layouts_before = _layouts_by_gpu(before)
    for key, layout_after in _layouts_by_gpu(after).items():
        layout_before = layouts_before.get(key, UNUSED_LAYOUT)
        layout_at_start = layouts_kept_before.get(key, FULL_GPU) if layout_before == UNUSED_LAYOUT else layout_before
        layout_at_end = layouts_kept_after.get(key, layout_at_start) if layout_after == UNUSED_LAYOUT else layout_after
        change = (
            None if layout_at_end == layout_at_start else _build_gpu_layout_change(cost, layout_at_start, layout_at_end)
        )
        yield GpuMove(
            *key,
            before=layout_before,
            after=layout_after,
            layout_at_start=layout_at_start,
            layout_at_end=layout_at_end,
            change=change,
        )


def _layouts_by_gpu(frame: pl.DataFrame, column: str = "layout") -> dict[tuple[str, int], str]:
    """Return a layout column by node and GPU."""
    return {(node, gpu): layout for node, gpu, layout in frame.select("node", "gpu", column).iter_rows()}


@functools.lru_cache(maxsize=1024)
def _build_gpu_layout_change(cost: ChangeCost, before: str, after: str) -> GpuLayoutChange:
    """Return the instances that a change of layout creates and destroys."""
    return cost.change(before, after)


def _group_moves_that_drain_together(moves: Sequence[GpuMove], at_once: int) -> list[DrainGroup]:
    """Group the GPUs that change together, in the order of nodes and GPUs; GPUs without a change are left out.

    Raises a ScenarioError if a node has to reboot with more than `at_once` GPUs in use.
    """
    rebooting = {move.node for move in moves if move.change is not None and move.change.reboot}
    groups = []
    for node in dict.fromkeys(move.node for move in moves):
        node_moves = [move for move in moves if move.node == node]
        waiting = [move for move in node_moves if move.action == "wait"]
        releases = [move for move in node_moves if move.action == "release" and move.in_use]
        changing = [move for move in node_moves if move.action not in ("wait", "release")]
        if node in rebooting:
            groups.append(DrainGroup((*changing, *waiting), reboot=True))
            if groups[-1].gpus_in_use > at_once:
                context = f"transition: reboot of node {node}"
                expected = f"at most {at_once} GPUs in use to be out at once"
                todo = f"Allow at_once={groups[-1].gpus_in_use}, or plan without switching MIG mode on this node."
                raise ScenarioError(context, expected, f"{groups[-1].gpus_in_use} in use there", todo)
        else:
            groups += [DrainGroup((move,), reboot=False) for move in changing]
        groups += [DrainGroup((move,), reboot=False) for move in releases]
    return groups


def _drain_step_row(group: DrainGroup, move: GpuMove) -> dict[str, Any]:
    """Return the columns of one GPU in the table of :func:`transition`, without step, start and duration."""
    change = move.change
    placements = ((), (), ()) if change is None else (change.kept, change.destroyed, change.created)
    kept, destroyed, created = (" ".join(map(str, placements)) for placements in placements)
    move_columns = {name: getattr(move, name) for name in ("node", "gpu", "action", "before", "after")}
    instance_columns = {"kept": kept, "destroyed": destroyed, "created": created}
    return move_columns | instance_columns | {"drain": group.must_drain(move), "reboot": group.reboot}


def _check_arguments(at: datetime, at_once: int, drain_s: float) -> None:
    """Raise a ScenarioError if an argument of :func:`transition` is invalid."""
    faults = []
    if at.tzinfo is None:
        faults.append("a time without zone")
    if not is_count(at_once, 1):
        faults.append(f"at_once {at_once!r}, not a whole number of at least 1")
    if not 0 <= drain_s < float("inf"):
        faults.append(f"drain_s {drain_s!r}, not a number of at least 0")
    if faults:
        raise ScenarioError("transition", "valid arguments", "; ".join(faults), "Fix these arguments.")
