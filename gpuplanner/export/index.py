"""The index of a pack: every change of layout with its time, its node, and what to expect of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from gpuplanner.export.bundle_files import filled_template
from gpuplanner.export.changes import held_by, layout_changes_of
from gpuplanner.export.states import REHEARSED, checked_plan, stamp
from gpuplanner.hardware.change_cost import ChangeCost
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.simulate.rules import (Drain)

INDEX: dict[str, Any] = {
    "change": pl.String,
    "planned": pl.Datetime("us", "UTC"),
    "node": pl.String,
    "gpu": pl.Int32,
    "gpus": pl.Int32,
    "before": pl.String,
    "after": pl.String,
    "untouched": pl.String,
    "reserve_from": pl.Datetime("us", "UTC"),
    "give_up_at": pl.Datetime("us", "UTC"),
    "instances_removed": pl.Int32,
    "if_not_empty": pl.String,
}
"""Columns of the index, before what was rehearsed. ``untouched``: GPUs of the node that its configuration names too and
leaves as they are; where nodes are emptied, their jobs have to end as well."""


def change_index(
    plan: pl.DataFrame,
    board: GpuModel | str,
    *,
    change: ChangeCost | None = None,
    drain: Drain | None = None,
    expected: pl.DataFrame | None = None,
    initial: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """List the changes of a plan, one row for each node, or each GPU where these are emptied one by one.

    Parameters
    ----------
    plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.
    board : GpuModel or str
        The board of all nodes.
    change : ChangeCost, optional
        How changes are made; None: by the operator, as the catalogue has it.
    drain : Drain, optional
        What is emptied, how long ahead, and what happens at the limit; None: whole nodes, as long as `change` waits.
    expected : polars.DataFrame, optional
        ``planned``, ``node``, ``gpu`` and the columns of :data:`REHEARSED`.
    initial : polars.DataFrame, optional
        How GPUs are cut before the plan begins: ``node``, ``gpu``, ``layout``.

    Returns
    -------
    polars.DataFrame
        The columns of :data:`INDEX` and :data:`REHEARSED`, by time, node and GPU. ``change`` names the files.
        ``before`` is empty, and ``instances_removed`` null, where nothing is known of the time before; null
        ``give_up_at``: never.

    Raises
    ------
    SchemaError, GeometryError
        If the table is not a layout plan, or a layout cannot be placed on the board.
    """
    board = as_board(board)
    frame = checked_plan(plan, board)
    cost = ChangeCost.of(board) if change is None else change.on(board)
    drain = Drain(limit_s=cost.drain_s.high) if drain is None else drain
    flagged = set(frame.filter("changed").select("node", "slot_start", "gpu").iter_rows())
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for one in layout_changes_of(frame, drain.limit_s, held_by(initial)):
        for node, (before, after) in one.nodes.items():
            was = dict(before.gpus) if before else {}
            for time in one.times:
                recut = [
                    (gpu, was.get(gpu), layout)
                    for gpu, layout in after.gpus
                    if (was.get(gpu) != layout if before else (node, time, gpu) in flagged)
                ]
                left = [pair for pair in after.gpus if pair[0] not in {gpu for gpu, *_ in recut}]
                whole_node = drain.scope == "node"
                for unit in [None] if whole_node else [gpu for gpu, _, _ in recut]:
                    gpus = recut if unit is None else [row for row in recut if row[0] == unit]
                    row = {"change": one.name, "planned": time, "node": node, "gpu": unit}
                    row |= {"untouched": _words(left) if whole_node else "", "limit_s": one.limit_s}
                    found.setdefault((node, unit), []).append(row | _content(gpus, cost))
    rows = [row for mine in found.values() for row in _timed(sorted(mine, key=_planned), drain)]
    index = pl.DataFrame(rows, schema=INDEX).sort("planned", "node", "gpu")
    if expected is None:
        return index.with_columns(pl.lit(None, kind).alias(name) for name, kind in REHEARSED.items())
    known = expected.select("planned", "node", "gpu", *REHEARSED)
    return index.join(
        known, on=["planned", "node", "gpu"], how="left", nulls_equal=True, maintain_order="left"
    )


def to_index_text(index: pl.DataFrame, board: GpuModel | str, change: ChangeCost) -> str:
    """Print an index for people: a line for each change of a node or GPU, in Markdown."""
    first = index.row(0, named=True) if index.height else {"if_not_empty": "nothing changes"}
    values = {
        "BOARD": as_board(board).name, "COUNT": str(index.height), "FILES": str(index["change"].n_unique()),
        "DURATION": change.words(), "ROWS": "\n".join(map(index_line, index.iter_rows(named=True))),
        "IF_NOT_EMPTY": first["if_not_empty"],
    }  # fmt: skip
    return filled_template("templates/changes.md", values)


def index_line(row: dict[str, Any]) -> str:
    """Print a row of the index as a line of its table."""
    unknown = row["drain_median_minutes"] is None
    drain = (
        "not rehearsed"
        if unknown
        else f"{row['drain_median_minutes']:.0f} ({row['drain_p95_minutes']:.0f}) min"
    )
    cells = [
        stamp(row["planned"]),
        row["node"] if row["gpu"] is None else f"{row['node']} GPU {row['gpu']}",
        f"{_grouped(row['before']) or 'as it is'} → {_grouped(row['after'])}",
        _grouped(row["untouched"]),
        "not known" if row["instances_removed"] is None else str(row["instances_removed"]),
        stamp(row["reserve_from"]),
        "never" if row["give_up_at"] is None else stamp(row["give_up_at"]),
        drain,
        "" if unknown else f"{row['in_the_way']:.1f}",
        "" if unknown else f"{row['in_time']:.0%}",
        row["change"],
    ]
    return f"| {' | '.join(cells)} |"


def _grouped(layouts: str) -> str:
    """Name GPUs of one layout together."""
    by_layout: dict[str, list[str]] = {}
    for word in layouts.split():
        gpu, _, layout = word.partition("=")
        by_layout.setdefault(layout, []).append(gpu)
    return "; ".join(f"{','.join(gpus)}: {layout}" for layout, gpus in by_layout.items())


def _content(gpus: list[tuple[int, str | None, str]], cost: ChangeCost) -> dict[str, Any]:
    known = [(gpu, old, new) for gpu, old, new in gpus if old is not None]
    return {
        "gpus": len(gpus),
        "before": _words((gpu, old) for gpu, old, _ in known),
        "after": _words((gpu, new) for gpu, _, new in gpus),
        "instances_removed": sum(cost.change(old, new).emptied for _, old, new in known)
        if len(known) == len(gpus)
        else None,
    }


def _words(layouts: Iterable[tuple[int, str]]) -> str:
    return " ".join(f"{gpu}={layout}" for gpu, layout in layouts)


def _timed(mine: list[dict[str, Any]], drain: Drain) -> Iterator[dict[str, Any]]:
    """Give the changes of one node or GPU their times; they are sorted."""
    ahead = timedelta(seconds=drain.ahead_s)
    for last, row in zip([None, *mine], mine, strict=False):
        planned, limit_s = row["planned"], row.pop("limit_s")
        yield row | {
            "reserve_from": max([planned - ahead, *([last["planned"]] if last else [])]),
            "give_up_at": None if limit_s is None else planned + timedelta(seconds=limit_s),
            "if_not_empty": _GIVE_UP,
        }


def _planned(row: dict[str, Any]) -> datetime:
    planned: datetime = row["planned"]
    return planned


_GIVE_UP = (
    "it is given up: nothing is cut; cordon, drain and reservation come off, "
    "and the layout stays until the next change"
)
