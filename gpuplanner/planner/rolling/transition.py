"""From one slot to the next on numbered GPUs: which are drained and cut, in what order, for how long."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.hardware.layout import OFF
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.reconfigure import Reconfiguration
from gpuplanner.planner.contract.plain_values import is_count, refuse
from gpuplanner.planner.rolling.drain_order import DrainUnit, Move, Supply, ordered
from gpuplanner.schemas.vocabulary import WHOLE_GPU
from gpuplanner.schemas.domain import LayoutPlan
from gpuplanner.schemas.check import check

ACTIONS = ("return", "cut", "recut", "uncut", "wait", "release")
"""``return``: comes back as it is: with the layout that it was parked with, or whole if it was released. ``cut``: was
whole. ``recut``: was cut otherwise. ``uncut``: is whole from now on. ``wait``: keeps its layout while its node reboots.
``release``: is not needed any more; nothing is done to it. ``"off"`` after another action means that the GPU is cut so
while nobody needs it."""

_SCHEMA = {
    "step": pl.Int64,
    "node": pl.String,
    "gpu": pl.Int32,
    "action": pl.String,
    "before": pl.String,
    "after": pl.String,
    "drain": pl.Boolean,
    "kept": pl.String,
    "destroyed": pl.String,
    "created": pl.String,
    "reboot": pl.Boolean,
    "start_min": pl.Float64,
    "minutes": pl.Float64,
    "short": pl.Int64,
}


def transition(
    layout_plan: pl.DataFrame,
    *,
    at: datetime,
    board: GpuModel | str,
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
        Table :class:`~gpuplanner.schemas.LayoutPlan`, as :func:`~gpuplanner.planner.numbered.assign` gives it. GPUs
        that are off and not parked are taken to be whole.
    at : datetime
        The boundary, with its zone.
    board : GpuModel or str
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
    >>> steps = transition(table, at=noon, board="H100-80GB-SXM5", drain_s=600)
    >>> for row in steps.select("step", "gpu", "action", "drain", "start_min", "minutes", "short").rows():
    ...     print(*row)
    1 2 cut False 0.0 1.0 0
    2 0 recut True 1.0 11.0 0
    3 1 release True 12.0 10.0 0
    """
    board = as_board(board)
    _check_arguments(at, at_once, drain_s)
    cost = ChangeCost.of(board) if change is None else change.on(board)
    moves = list(_moves(layout_plan, at, cost))
    units = _units(moves, at_once)
    supply = Supply(board, moves)
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
        text = message("transition", times, at.isoformat(), "Choose a slot boundary inside the plan.")
        raise SchemaError(text)
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
                refuse(
                    f"transition: reboot of node {node}",
                    f"at most {at_once} GPUs in use to be out at once",
                    f"{units[-1].out} in use there",
                    f"Allow at_once={units[-1].out}, or plan without switching MIG mode on this node.",
                )
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
        refuse("transition", "arguments that make sense", "; ".join(faults), "Mend them.")
