"""What the nodes look like at each time of a layout plan: the common ground of all exports."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from gpuplanner.errors import GeometryError, SchemaError, examples, message
from gpuplanner.hardware.feasibility import prove
from gpuplanner.hardware.gpu import GpuModel, as_board
from gpuplanner.hardware.layout import OFF, format_layout, parse_layout
from gpuplanner.schemas.check import check
from gpuplanner.schemas.domain import LayoutPlan
from gpuplanner.schemas.vocabulary import WHOLE_GPU

MAX_LABEL = 63
"""Longest value of a Kubernetes label."""

_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DIGEST = 10


@dataclass(frozen=True, slots=True)
class NodeState:
    """Layouts of the GPUs of one node.

    Parameters
    ----------
    gpus : tuple of (int, str)
        Index on the node and canonical layout text, ascending by index.
    released : frozenset of int
        Those that are handed back or powered down; they come back whole.
    """

    gpus: tuple[tuple[int, str], ...]
    released: frozenset[int] = frozenset()

    def without_layout(self, gpus: Collection[int]) -> NodeState:
        """The same with some GPUs whole."""
        return NodeState(tuple((gpu, WHOLE_GPU if gpu in gpus else layout) for gpu, layout in self.gpus))

    @property
    def totals(self) -> dict[str, int]:
        """Instances (and whole GPUs) on the node, whole GPUs first, then largest first."""
        return dict(_totals(self))

    @property
    def by_layout(self) -> dict[str, list[int]]:
        """GPU indices that share a layout, in the order of the first of each."""
        groups: dict[str, list[int]] = {}
        for gpu, layout in self.gpus:
            groups.setdefault(layout, []).append(gpu)
        return groups

    @property
    def config_name(self) -> str:
        """Name for the state: what is on the node, and a digest of which GPU has what.

        The same state has the same name in every plan. The name is a legal Kubernetes label value; ``+``
        becomes ``.``.

        Examples
        --------
        >>> NodeState(((0, "3g.40gb:1,1g.10gb+me:1"), (1, "gpu"))).config_name
        '1xgpu_1x3g.40gb_1x1g.10gb.me_802db64e3e'
        """
        digest = hashlib.sha256(";".join(f"{g}={layout}" for g, layout in self.gpus).encode()).hexdigest()
        name = ""
        for profile, count in self.totals.items():
            part = f"{count}x{profile.replace('+', '.')}_"
            if len(name) + len(part) + _DIGEST <= MAX_LABEL:
                name += part
        return name + digest[:_DIGEST]


def checked_plan(plan: pl.DataFrame, board: GpuModel | str) -> pl.DataFrame:
    """Return the plan sorted, with canonical layouts, once everything in it is known to be possible.

    A GPU that is off has the layout that it is parked with. Else it is released, as the column ``released`` says: it
    comes back whole.
    """
    frame = check(plan, LayoutPlan, where="layout plan").sort("node", "gpu", "slot_start")
    _check_ranges(frame)
    board = as_board(board)
    texts = pl.concat([frame["layout"], frame["parked"].drop_nulls()])
    canonical = {text: _proved(board, text) for text in texts.unique().sort()}
    _check_nodes(frame["node"].unique().sort().to_list())
    layout, parked = (
        pl.col(name).replace_strict(canonical, default=None, return_dtype=pl.String)
        for name in ("layout", "parked")
    )
    held = pl.coalesce(parked, layout)
    return frame.with_columns(layout=held.replace(OFF, WHOLE_GPU), released=held == OFF)


def states_at(plan: pl.DataFrame, at: datetime) -> dict[str, NodeState]:
    """State of each node at one time, by node name; GPUs for which the plan says nothing then are left out."""
    if at.tzinfo is None:
        text = message("time of export", "a time with its zone", at.isoformat(), "Give it in UTC.")
        raise SchemaError(text)
    rows = plan.filter(pl.col("slot_start") <= at, pl.col("slot_end") > at)
    if rows.is_empty():
        span = f"{stamp(plan['slot_start'].min())} to {stamp(plan['slot_end'].max())}"  # type: ignore[arg-type]
        text = message(
            "time of export", f"a time within {span}", at.isoformat(), "Choose a time of the plan."
        )
        raise SchemaError(text)
    return {str(node[0]): _state(group.iter_rows(named=True)) for node, group in _by_node(rows)}


def node_states(plan: pl.DataFrame, at: datetime | None = None) -> dict[str, dict[datetime, NodeState]]:
    """Each node's states by the time at which they begin; with `at`, only the one in force then."""
    if at is not None:
        return {node: {at: state} for node, state in states_at(plan, at).items()}
    found: dict[str, dict[datetime, NodeState]] = {}
    for (node,), group in _by_node(plan.sort("node", "slot_start", "gpu")):
        in_force: dict[int, dict[str, Any]] = {}
        states = found.setdefault(str(node), {})
        for row in group.iter_rows(named=True):
            in_force[row["gpu"]] = row
            start = row["slot_start"]
            states[start] = _state(held for held in in_force.values() if held["slot_end"] > start)
    return found


def stamp(time: datetime) -> str:
    """Print a time in UTC.

    Examples
    --------
    >>> stamp(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '2026-11-01T08:00:00Z'
    """
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def file_stamp(time: datetime) -> str:
    """Print a time in UTC for a file name.

    Examples
    --------
    >>> file_stamp(datetime(2026, 11, 1, 8, tzinfo=UTC))
    '20261101T080000Z'
    """
    return time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


@functools.lru_cache(maxsize=4096)
def _totals(state: NodeState) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for _, layout in state.gpus:
        found.update(parse_layout(layout))
    whole = found.pop(WHOLE_GPU, 0)
    cut = parse_layout(format_layout(found))
    return (*(((WHOLE_GPU, whole),) if whole else ()), *cut.items())


def _by_node(frame: pl.DataFrame) -> Iterable[tuple[tuple[object, ...], pl.DataFrame]]:
    return frame.group_by("node", maintain_order=True)


def _state(rows: Iterable[Mapping[str, Any]]) -> NodeState:
    there = sorted((row["gpu"], row["layout"], row["released"]) for row in rows)
    return NodeState(
        tuple((gpu, layout) for gpu, layout, _ in there), frozenset(gpu for gpu, _, away in there if away)
    )


def _proved(board: GpuModel, text: str) -> str:
    counts = parse_layout(text)
    proof = prove(board, counts)
    if proof.layout is None:
        text_out = message(
            f"layout plan: layout {text!r}",
            f"one that a {board.name} can hold",
            proof.reason,
            "Nothing is exported; make the plan for this board.",
        )
        raise GeometryError(text_out)
    return proof.layout.text if proof.layout.placements else text.strip()


def _check_nodes(names: list[str]) -> None:
    bad = [name for name in names if not _NODE.fullmatch(name)]
    if bad:
        text = message(
            "layout plan: node names",
            "letters, digits, '-', '_' and '.' only, as names go into configuration lines",
            f"{len(bad)} of {len(names)} others: {examples(bad)}",
            "Mend the names in the inventory.",
        )
        raise GeometryError(text)


def _check_ranges(frame: pl.DataFrame) -> None:
    wrong = frame.filter(
        (pl.col("slot_start") >= pl.col("slot_end"))
        | (pl.col("slot_start") < pl.col("slot_end").shift().over("node", "gpu")).fill_null(value=False)
    )
    if wrong.height or frame.is_empty():
        rows = [f"{row['node']} gpu {row['gpu']} {stamp(row['slot_start'])}" for row in wrong.to_dicts()]
        text = message(
            "layout plan",
            "at least one row, and for each GPU ranges that end after they start and do not overlap",
            f"{wrong.height} of {frame.height} rows that do not: {examples(rows)}" if rows else "no row",
            "Make the plan anew.",
        )
        raise SchemaError(text)


REHEARSED = {
    "drain_median_minutes": pl.Float64,
    "drain_p95_minutes": pl.Float64,
    "in_the_way": pl.Float64,
    "in_time": pl.Float64,
}
"""What weeks that were played say of a change: minutes from its time until the last job has ended, instances and GPUs
in use then, share of the weeks in which it was made within its limit."""
