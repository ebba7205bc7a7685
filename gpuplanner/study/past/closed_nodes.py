"""Nodes that took nothing new, as GPUs that nobody could have: all of a node but for what jobs still held there."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.inbox.core.node_names import known_nodes

Spell = tuple[datetime, datetime, float]
Times = NDArray[np.datetime64]


def out_of_service(
    out: pl.DataFrame, jobs: pl.DataFrame, nodes: pl.DataFrame, begin: datetime, end: datetime
) -> pl.DataFrame:
    """GPUs out of service between two instants, node by node; of what counts none, those that jobs leave of the node.

    A node that is drained goes on with the jobs that it has. Spells of one node that overlap count once. Where jobs and
    closed nodes together come to more than a board has, jobs are believed: accounting may lag behind a node that fell.
    """
    columns = ["node", "start_time", "end_time", "gpus", "bucket"]
    out = out.select(columns).with_columns(pl.col("end_time").fill_null(end))
    stated, silent = out.filter(pl.col("gpus").is_not_null()), out.filter(pl.col("gpus").is_null())
    silent = silent.join(nodes.select("node"), on="node", how="semi")
    if silent.is_empty():
        return stated
    running = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0).select(
        "start_time",
        pl.col("end_time").fill_null(end),
        "gpus",
        pl.col("node_list", "gpu_model").cast(pl.String),
    )
    held = _by_node(running, set(silent["node"]))
    other = stated.group_by("node").agg("start_time", "end_time", "gpus")
    logs = {node: list(zip(*spells, strict=True)) for node, *spells in other.iter_rows()}
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
    rows = pl.DataFrame(found, schema={name: out.schema[name] for name in columns[:4]}, orient="row")
    for board in (
        [*nodes["gpu_model"].unique().drop_nulls().sort(), None] if "gpu_model" in nodes.columns else [None]
    ):
        here = (
            pl.lit(value=True) if board is None else pl.col("gpu_model").str.to_lowercase() == board.lower()
        )
        mine = nodes.filter(here)
        ours, others = (
            rows.filter(pl.col("node").is_in(mine["node"].to_list()) == side) for side in (True, False)
        )
        # Jobs that name no board may be on any.
        some = running.filter(pl.lit(board is None) | pl.col("gpu_model").is_null() | here)
        gone = stated.filter(pl.col("node").is_in(mine["node"].to_list()))
        rows = pl.concat([_believing_jobs(ours, some, mine, gone, begin, end), others])
    return pl.concat([stated, rows.with_columns(bucket=pl.lit("down", out.schema["bucket"]))])


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
