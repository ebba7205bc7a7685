"""The order in which GPUs change their layouts, and which are drained when."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.errors import ScenarioError, SchemaError
from gpuplanner.core.schema_checks import check
from gpuplanner.core.schemas import WHOLE_GPU, LayoutPlan
from gpuplanner.hardware.gpu_models import GpuModel, as_board
from gpuplanner.hardware.mig_layouts import OFF, parse_layout
from gpuplanner.hardware.repartitioning_cost import ChangeCost, Reconfiguration
from gpuplanner.planner.fleet_limits import is_count
from gpuplanner.planner.plan_problem import Counts, membership, up_sets


@dataclass(frozen=True)
class Move:
    """One GPU at a slot boundary.

    - ``node``: Name of its node.
    - ``gpu``: Index on the node.
    - ``before``, ``after``: Layout text on either side; ``"off"`` where the GPU is not needed.
    - ``held``: Layout that it has when the change begins: that of before, or the one it was left with.
    - ``left``: Layout that it has afterwards.
    - ``change``: How it is cut; None if it is not.
    """

    node: str
    gpu: int
    before: str
    after: str
    held: str
    left: str
    change: Reconfiguration | None

    @property
    def in_use(self) -> bool:
        """Whether work may be on it when the change begins."""
        return self.before != OFF

    @property
    def action(self) -> str:
        """What happens to it, one of :data:`~gpuplanner.planner.drain_order.ACTIONS`."""
        if self.held == self.left:
            if self.after == OFF:
                return "release"
            return "wait" if self.in_use else "return"
        if WHOLE_GPU in (self.held, self.left):
            return "partition" if self.held == WHOLE_GPU else "disable_mig"
        return "repartition"


@dataclass(frozen=True)
class DrainUnit:
    """GPUs that change together: one, or all that a node's reboot takes along.

    - ``moves``: At least one.
    - ``reboot``: Whether the node reboots for it.
    """

    moves: tuple[Move, ...]
    reboot: bool

    @property
    def out(self) -> int:
        """GPUs in use that are out meanwhile."""
        return sum(move.in_use for move in self.moves)

    @property
    def released(self) -> bool:
        """Whether it is one GPU that is given back."""
        return self.moves[0].action == "release"

    def seconds(self, move: Move) -> float:
        """Time that a GPU is busy, without its drain [s]; with a reboot, that of the node."""
        moves = self.moves if self.reboot else (move,)
        return max(0.0 if m.change is None else m.change.seconds for m in moves)

    def drains(self, move: Move) -> bool:
        """Whether work must leave the GPU first: not where no instance goes."""
        undisturbed = move.change is not None and not self.reboot and not move.change.destroyed
        return move.in_use and not undisturbed


class Supply:
    """Instances at work, against those wanted on both sides of a boundary.

    - ``gpu_model``: The board.
    - ``moves``: Every GPU, also those that stay as they are.
    """

    def __init__(self, gpu_model: GpuModel, moves: Sequence[Move]) -> None:
        texts = {text for move in moves for text in (move.before, move.after)} - {OFF}
        self.profiles = tuple(sorted({name for text in texts for name in parse_layout(text)}))
        sets = up_sets(gpu_model, self.profiles, self.profiles)
        self.asked = membership([asked for asked, _ in sets], len(self.profiles))
        self.able = membership([able for _, able in sets], len(self.profiles))
        self.now = self._of([move.before for move in moves])
        self.later = self._of([move.after for move in moves])
        self.needed = np.minimum(self.now, self.later)

    def lost(self, unit: DrainUnit) -> Counts:
        """Instances that are out while a unit changes; those that stay through it go on."""
        total = self._of([move.before for move in unit.moves])
        moves = () if unit.reboot else unit.moves
        changes = [move.change for move in moves if move.in_use and move.change is not None]
        kept = [placement.profile for change in changes for placement in change.kept]
        return total - np.array([kept.count(name) for name in self.profiles], dtype=np.int64)

    def gained(self, unit: DrainUnit) -> Counts:
        """By how many instances the supply has grown once a unit is done."""
        return self._of([m.after for m in unit.moves]) - self._of([m.before for m in unit.moves])

    def short(self, wanted: Counts, there: Counts) -> int:
        """Requests that find no instance, their own or a larger one.

        Serving one profile after another is exact: what can be served together is a polymatroid.
        """
        free = self.able @ there
        missing = 0
        for profile, requests in enumerate(wanted.tolist()):
            if requests:
                sets = self.asked[:, profile] > 0
                served = min(requests, int(free[sets].min()))
                free[sets] -= served
                missing += requests - served
        return missing

    def _of(self, layouts: Sequence[str]) -> Counts:
        """Instances on GPUs with these layouts, by profile."""
        total = dict.fromkeys(self.profiles, 0)
        for layout in layouts:
            for name, count in {} if layout == OFF else parse_layout(layout).items():
                total[name] += count
        return np.array(list(total.values()), dtype=np.int64)


def ordered(units: Sequence[DrainUnit], supply: Supply, at_once: int) -> Iterator[tuple[list[DrainUnit], int]]:
    """Yield the units of each step, with the requests that are short during it."""
    there = supply.now
    idle = [unit for unit in units if not unit.out]
    if idle:
        yield idle, supply.short(supply.needed, there)
        there = there + sum(supply.gained(unit) for unit in idle)
    kinds: dict[tuple[bytes, bytes, int], list[DrainUnit]] = {}
    for unit in reversed(units):
        if unit.out and not unit.released:
            key = (supply.lost(unit).tobytes(), supply.gained(unit).tobytes(), unit.out)
            kinds.setdefault(key, []).append(unit)
    waiting = list(kinds.values())
    while any(waiting):
        step = _next_step(waiting, there, supply, at_once)
        yield step, supply.short(supply.needed, there - sum(supply.lost(unit) for unit in step))
        there = there + sum(supply.gained(unit) for unit in step)
    released = [unit for unit in units if unit.released]
    if released:
        there = there + sum(supply.gained(unit) for unit in released)
        yield released, supply.short(supply.needed, there)


def _next_step(waiting: Sequence[list[DrainUnit]], there: Counts, supply: Supply, at_once: int) -> list[DrainUnit]:
    """Take out the gentlest units, alike ones by kind, to change next."""
    step: list[DrainUnit] = []
    left = at_once
    while True:
        judged = []
        for kind, units in enumerate(waiting):
            if units and units[-1].out <= left:
                meanwhile = supply.short(supply.needed, there - supply.lost(units[-1]))
                afterwards = supply.short(supply.later, there + supply.gained(units[-1]))
                first = units[-1].moves[0]
                judged.append((meanwhile, afterwards, first.node, first.gpu, kind))
        best = min(judged, default=None)
        if best is None or (step and best[0] > 0):
            return step
        step.append(waiting[best[-1]].pop())
        there = there - supply.lost(step[-1])
        left -= step[-1].out


ACTIONS = ("return", "partition", "repartition", "disable_mig", "wait", "release")
"""``return``: comes back as it is: with the layout that it was parked with, or full if it was released.
``partition``: was full. ``repartition``: changes its layout. ``disable_mig``: is a full GPU from now on. ``wait``:
keeps its layout while its node reboots. ``release``: is not needed any more; nothing is done to it. ``"off"`` after
another action means that its layout changes while it is idle."""

_SCHEMA = {
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


def transition(
    layout_plan: pl.DataFrame,
    *,
    at: datetime,
    gpu_model: GpuModel | str,
    change: ChangeCost | None = None,
    at_once: int = 8,
    drain_s: float = 0.0,
) -> pl.DataFrame:
    """Order the changes at one slot boundary into steps.

    GPUs that nobody uses come first: they take nothing away, and give others somewhere to go. GPUs in use
    follow in steps of at most `at_once`; in each, those whose absence leaves the fewest requests without an
    instance, and of these, the ones whose new layout the plan waits for most. A step holds fewer if one more
    would leave requests short. GPUs that are no longer needed are given back last and left as they are:
    parked, or released; one that was released comes back whole. Where MIG mode changes and that takes a reboot, the
    whole node is out for it, once, and all its changes are made then.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table :class:`~gpuplanner.core.schemas.LayoutPlan`, as :func:`~gpuplanner.planner.numbered_gpus` gives it. GPUs
        that are off and not parked are taken to be whole.
    at : datetime
        The boundary, with its zone.
    gpu_model : GpuModel or str
        The board of all GPUs in the table.
    change : ChangeCost, optional
        How the changes are made and how long they take; None: by the operator, as the catalogue has it for the
        board. Through NVML, instances that both layouts have go on working.
    at_once : int
        Most GPUs in use that may be out at a time. A node that reboots counts with all its GPUs in use.
    drain_s : float
        Time to wait for work on a GPU to end [s].

    Returns
    -------
    polars.DataFrame
        One row for each step and GPU, sorted: ``step`` from 1; ``node``, ``gpu``; ``action``, one of
        :data:`ACTIONS`; ``before`` and ``after``, layouts as text; ``drain``, whether work must leave first;
        ``kept``, ``destroyed``, ``created``, instances as profile@slice; ``reboot`` of the node;
        ``start_min``, when the step begins after `at` if all goes as usual; ``minutes``, how long this GPU
        is busy with it (the step lasts as long as its longest); ``short``, instances missing during the step
        of those wanted both before and after. GPUs that are not touched have no row. Reboots are the
        distinct pairs of step and node with ``reboot``.

    Raises
    ------
    SchemaError
        If the table is no layout plan, or says nothing about the time just before or after `at`.
    ScenarioError
        If `at_once` or `drain_s` makes no sense, `change` was made for another board, or a node cannot reboot
        because more GPUs are in use there.
    GeometryError
        If a layout is impossible on the board.

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
    gpu_model = as_board(gpu_model)
    _check_arguments(at, at_once, drain_s)
    cost = ChangeCost.of(gpu_model) if change is None else change.on(gpu_model)
    moves = list(_moves(layout_plan, at, cost))
    units = _units(moves, at_once)
    supply = Supply(gpu_model, moves)
    rows: list[dict[str, Any]] = []
    start_s = 0.0
    for number, (step, short) in enumerate(ordered(units, supply, at_once), 1):
        longest = 0.0
        for unit, move in [(one, move) for one in step for move in one.moves]:
            seconds = unit.seconds(move) + drain_s * unit.drains(move)
            longest = max(longest, seconds)
            times = {"start_min": round(start_s / 60, 3), "minutes": round(seconds / 60, 3)}
            rows.append({"step": number, **_row(unit, move), **times, "short": short})
        start_s += longest
    return pl.DataFrame(rows, schema=_SCHEMA).sort("step", "node", "gpu")


def _moves(layout_plan: pl.DataFrame, at: datetime, cost: ChangeCost) -> Iterator[Move]:
    """Every GPU of the table, also those that stay as they are: a reboot may take them along."""
    frame = check(layout_plan, LayoutPlan, where="layout plan").sort("node", "gpu", "slot_start")
    before = frame.filter(pl.col("slot_start") < at, pl.col("slot_end") >= at)
    after = frame.filter(pl.col("slot_start") <= at, pl.col("slot_end") > at)
    if before.is_empty() or after.is_empty():
        times = "a time with rows of the plan just before and after it"
        raise SchemaError("transition", times, at.isoformat(), "Choose the start of an interval.")
    held = _by_gpu(before.filter(pl.col("parked").is_not_null()), "parked")
    left = _by_gpu(after.filter(pl.col("parked").is_not_null()), "parked")
    was = _by_gpu(before)
    for key, wanted in _by_gpu(after).items():
        layout = was.get(key, OFF)
        physical = held.get(key, WHOLE_GPU) if layout == OFF else layout
        cut = left.get(key, physical) if wanted == OFF else wanted
        change = None if cut == physical else _change(cost, physical, cut)
        yield Move(*key, before=layout, after=wanted, held=physical, left=cut, change=change)


def _by_gpu(frame: pl.DataFrame, column: str = "layout") -> dict[tuple[str, int], str]:
    return {(node, gpu): layout for node, gpu, layout in frame.select("node", "gpu", column).iter_rows()}


@functools.lru_cache(maxsize=1024)
def _change(cost: ChangeCost, before: str, after: str) -> Reconfiguration:
    return cost.change(before, after)


def _units(moves: Sequence[Move], at_once: int) -> list[DrainUnit]:
    """What changes together, in the order of nodes and GPUs; GPUs that nothing happens to are left out."""
    rebooting = {move.node for move in moves if move.change is not None and move.change.reboot}
    units = []
    for node in dict.fromkeys(move.node for move in moves):
        own = [move for move in moves if move.node == node]
        stays = [move for move in own if move.action == "wait"]
        released = [move for move in own if move.action == "release" and move.in_use]
        changed = [move for move in own if move.action not in ("wait", "release")]
        if node in rebooting:
            units.append(DrainUnit((*changed, *stays), reboot=True))
            if units[-1].out > at_once:
                where = f"transition: reboot of node {node}"
                expected = f"at most {at_once} GPUs in use to be out at once"
                todo = f"Allow at_once={units[-1].out}, or plan without switching MIG mode on this node."
                raise ScenarioError(where, expected, f"{units[-1].out} in use there", todo)
        else:
            units += [DrainUnit((move,), reboot=False) for move in changed]
        units += [DrainUnit((move,), reboot=False) for move in released]
    return units


def _row(unit: DrainUnit, move: Move) -> dict[str, Any]:
    change = move.change
    parts = ((), (), ()) if change is None else (change.kept, change.destroyed, change.created)
    kept, destroyed, created = (" ".join(map(str, placements)) for placements in parts)
    same = {name: getattr(move, name) for name in ("node", "gpu", "action", "before", "after")}
    what = {"kept": kept, "destroyed": destroyed, "created": created}
    return same | what | {"drain": unit.drains(move), "reboot": unit.reboot}


def _check_arguments(at: datetime, at_once: int, drain_s: float) -> None:
    faults = []
    if at.tzinfo is None:
        faults.append("a time without zone")
    if not is_count(at_once, 1):
        faults.append(f"at_once {at_once!r}, not a whole number of at least 1")
    if not 0 <= drain_s < float("inf"):
        faults.append(f"drain_s {drain_s!r}, not a number of at least 0")
    if faults:
        raise ScenarioError("transition", "valid arguments", "; ".join(faults), "Fix these arguments.")
