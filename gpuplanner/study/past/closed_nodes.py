"""Nodes that took nothing new, or were kept for a tenant, as GPUs: all of a node but for what jobs held there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.inbox.core.node_names import known_nodes

Spell = tuple[datetime, datetime, float]
Times = NDArray[np.datetime64]


def out_of_service(
    out: pl.DataFrame,
    jobs: pl.DataFrame,
    nodes: pl.DataFrame,
    begin: datetime,
    end: datetime,
    *,
    tenants: pl.Series | None = None,
) -> pl.DataFrame:
    """GPUs out of service between two instants, node by node; of what counts none, those that jobs leave of the node.

    The rows have the board of their node where the nodes have one.
    A node that is drained goes on with the jobs that it has. Spells of one node that overlap count once, and of a node
    that is down nothing is reserved. Where jobs and closed nodes together come to more than a board has, jobs are
    believed: accounting may lag behind a node that fell. A part of a node that is kept for a tenant is left to the
    ledger, without its node: which GPUs of it that are is not said. GPUs kept for somebody who is none of the `tenants`
    (default: those of the jobs) are kept for nobody.
    """
    known = nodes.select([name for name in ("node", "gpu_model") if name in nodes.columns])
    boards = [*known["gpu_model"].unique().drop_nulls().sort(), None] if known.width > 1 else [None]
    reserved = pl.col("bucket") == "reserved"
    known_tenants = (jobs["tenant"] if tenants is None else tenants).cast(pl.String).unique().implode()
    out = out.join(nodes.select("node", size="gpus"), on="node").select(
        "node", "start_time", pl.col("end_time").fill_null(end),
        pl.when(~reserved | (pl.col("gpus") < pl.col("size"))).then("gpus"), "bucket",
        pl.when(pl.col("tenant").is_in(known_tenants)).then("tenant"),
    )  # fmt: skip
    kept = out.filter(reserved, pl.col("gpus").is_not_null()).join(known, on="node")
    found, silent = out.filter(~reserved, pl.col("gpus").is_not_null()), out.filter(pl.col("gpus").is_null())
    running = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0).select(
        "start_time",
        pl.col("end_time").fill_null(end),
        "gpus",
        pl.col("node_list", "gpu_model").cast(pl.String),
    )
    held = _by_node(running, set(silent["node"]))
    groups = silent.sort(~(pl.col("bucket") == "down"), "tenant", nulls_last=True, maintain_order=True)
    for (bucket, tenant), rows in groups.group_by("bucket", "tenant", maintain_order=True):
        left = _left_of_nodes(rows, found, held, nodes, begin, end)
        for board in boards:
            left = _on_board(left, board, running, nodes, found, begin, end)
        why = pl.lit(bucket, out.schema["bucket"]), pl.lit(tenant, pl.String)
        found = pl.concat([found, left.with_columns(bucket=why[0], tenant=why[1])])
    nowhere = pl.lit(None, pl.String)
    return pl.concat([found.join(known, on="node"), kept.with_columns(node=nowhere)])


def _left_of_nodes(
    silent: pl.DataFrame,
    other: pl.DataFrame,
    held: Mapping[str, list[Spell]],
    nodes: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """What jobs and other spells leave of nodes, piece by piece."""
    spells_of = other.group_by("node").agg("start_time", "end_time", "gpus")
    logs = {node: list(zip(*spells, strict=True)) for node, *spells in spells_of.iter_rows()}
    there = {row["node"]: row for row in nodes.iter_rows(named=True)}
    found = []
    for node, starts, ends in (
        silent.group_by("node", maintain_order=True).agg("start_time", "end_time").iter_rows()
    ):
        one = there[node]
        first = max(begin, one.get("installed") or begin)
        last = min(end, one.get("retired") or end)
        taken = [*held.get(node, []), *logs.get(node, [])]
        spells = [(max(a, first), min(b, last)) for a, b in zip(starts, ends, strict=True)]
        found += [(node, a, b, left) for a, b, left in _left(spells, taken, float(one["gpus"]))]
    schema = {name: other.schema[name] for name in ("node", "start_time", "end_time", "gpus")}
    return pl.DataFrame(found, schema=schema, orient="row")


def _on_board(
    rows: pl.DataFrame,
    board: str | None,
    running: pl.DataFrame,
    nodes: pl.DataFrame,
    other: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """The same, the rows of one board less where jobs are said to hold what would then be missing; None: of all."""
    here = pl.lit(value=True) if board is None else pl.col("gpu_model").str.to_lowercase() == board.lower()
    mine = nodes.filter(here)
    ours, others = (
        rows.filter(pl.col("node").is_in(mine["node"].to_list()) == side) for side in (True, False)
    )
    # Jobs that name no board may be on any.
    some = running.filter(pl.lit(board is None) | pl.col("gpu_model").is_null() | here)
    gone = other.filter(pl.col("node").is_in(mine["node"].to_list()))
    return pl.concat([_believing_jobs(ours, some, mine, gone, begin, end), others])


def _by_node(running: pl.DataFrame, wanted: set[str]) -> dict[str, list[Spell]]:
    """What jobs hold on each of some nodes: an equal part on each node of the job."""
    lists = {text: known_nodes(text) or [] for text in running["node_list"].drop_nulls().unique().to_list()}
    near = [text for text, names in lists.items() if wanted.intersection(names)]
    found: dict[str, list[Spell]] = {}
    for start, stop, gpus, text in (
        running.filter(pl.col("node_list").is_in(near)).drop("gpu_model").iter_rows()
    ):
        for name in wanted.intersection(lists[text]):
            found.setdefault(name, []).append((start, stop, gpus / len(lists[text])))
    return found


def _left(spells: list[tuple[datetime, datetime]], taken: list[Spell], gpus: float) -> list[Spell]:
    """What is left of a node in the union of some spells, piece by piece."""
    found: list[Spell] = []
    for start, stop in _union(spells):
        inside = [one for one in taken if one[0] < stop and one[1] > start]
        edges = {start, stop, *(edge for one in inside for edge in one[:2] if start < edge < stop)}
        for a, b in pairwise(sorted(edges)):
            left = gpus - sum(some for first, last, some in inside if first <= a and b <= last)
            if left > 0 and found and found[-1][1:] == (a, left):
                found[-1] = (found[-1][0], b, left)
            elif left > 0:
                found.append((a, b, left))
    return found


def _union(spells: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Spells that overlap as one."""
    found: list[tuple[datetime, datetime]] = []
    for start, stop in sorted(spell for spell in spells if spell[0] < spell[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def _believing_jobs(
    rows: pl.DataFrame,
    running: pl.DataFrame,
    nodes: pl.DataFrame,
    stated: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """The same, less where jobs are said to hold what would then be missing."""
    spans = nodes.select(
        (pl.col(name) if name in nodes.columns else pl.lit(None, pl.Datetime("us", "UTC")))
        .fill_null(edge)
        .alias(name)
        for name, edge in (("installed", begin), ("retired", end))
    ).with_columns(nodes["gpus"])
    parts = [_spans(spans, "installed", "retired"), _spans(running), _spans(stated), _spans(rows)]
    at = np.unique(np.concatenate([edge for a, b, _ in parts for edge in (a, b)]))
    there, jobs, logs, down = (_level(at, *one) for one in parts)
    allowed = np.clip(there - jobs - logs, 0.0, None)
    share = np.divide(np.minimum(down, allowed), down, out=np.ones_like(down), where=down > 0)
    if (share >= 1.0).all():
        return rows
    found = []
    for node, a, b, gpus in rows.iter_rows():
        low, high = np.searchsorted(at, [_naive(a), _naive(b)])
        cuts = [low, *(low + 1 + np.flatnonzero(np.diff(share[low:high]))), high]
        found += [(node, at[first], at[last], gpus * share[first]) for first, last in pairwise(cuts)]
    node, first, last, gpus = zip(*found, strict=True)
    times = {"start_time": pl.Series(np.array(first)), "end_time": pl.Series(np.array(last))}
    table = pl.DataFrame({"node": node} | times | {"gpus": gpus})
    zoned = pl.col("start_time", "end_time").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return table.with_columns(zoned)


def _naive(time: datetime) -> np.datetime64:
    return np.datetime64(time.replace(tzinfo=None), "us")


def _spans(
    table: pl.DataFrame, start: str = "start_time", stop: str = "end_time"
) -> tuple[Times, Times, NDArray[np.float64]]:
    times = (
        table[name].dt.replace_time_zone(None).cast(pl.Datetime("us")).to_numpy() for name in (start, stop)
    )
    return (*times, table["gpus"].cast(pl.Float64).to_numpy())  # type: ignore[return-value]


def _level(at: Times, start: Times, stop: Times, gpus: NDArray[np.float64]) -> NDArray[np.float64]:
    """GPUs from each instant to the next."""
    change = np.zeros(len(at))
    np.add.at(change, np.searchsorted(at, start), gpus)
    np.add.at(change, np.searchsorted(at, np.maximum(stop, start)), -gpus)
    return np.cumsum(change)
