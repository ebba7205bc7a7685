"""Installed GPUs over time: inventory, closed nodes, changes between looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import examples, printable
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution import known_nodes
from gpuplanner.usage.observed_nodes import seen_nodes, with_seen_layouts
from gpuplanner.usage.occupancy import Window, gpu_jobs, inferred_inventory, with_boards

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
    texts = pl.col("node_list", "gpu_model").cast(pl.String)
    began = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0)
    running = began.select("start_time", pl.col("end_time").fill_null(end), "gpus", texts)
    held = _by_node(running, set(silent["node"]))
    groups = silent.sort(~(pl.col("bucket") == "down"), "tenant", nulls_last=True, maintain_order=True)
    for (bucket, tenant), rows in groups.group_by("bucket", "tenant", maintain_order=True):
        left = _left_of_nodes(rows, found, held, nodes, begin, end)
        for gpu_model in boards:
            left = _on_board(left, gpu_model, running, nodes, found, begin, end)
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
    of_nodes = silent.group_by("node", maintain_order=True).agg("start_time", "end_time")
    for node, starts, ends in of_nodes.iter_rows():
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
    gpu_model: str | None,
    running: pl.DataFrame,
    nodes: pl.DataFrame,
    other: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """The same, the rows of one board less where jobs are said to hold what would then be missing; None: of all."""
    here = pl.lit(value=True) if gpu_model is None else pl.col("gpu_model").str.to_lowercase() == gpu_model.lower()
    mine = nodes.filter(here)
    on_mine = pl.col("node").is_in(mine["node"].to_list())
    ours, others = rows.filter(on_mine), rows.filter(~on_mine)
    # Jobs that name no board may be on any.
    some = running.filter(pl.lit(gpu_model is None) | pl.col("gpu_model").is_null() | here)
    gone = other.filter(on_mine)
    unknown = pl.lit(None, pl.Datetime("us", "UTC"))
    absent = {"installed", "retired"}.difference(mine.columns)
    spans = mine.with_columns(unknown.alias(name) for name in absent)
    spans = spans.with_columns(pl.col("installed").fill_null(begin), pl.col("retired").fill_null(end))
    parts = [_spans(spans, "installed", "retired"), _spans(some), _spans(gone), _spans(ours)]
    at = np.unique(np.concatenate([edge for a, b, _ in parts for edge in (a, b)]))
    there, jobs, logs, down = (_level(at, *one) for one in parts)
    allowed = np.clip(there - jobs - logs, 0.0, None)
    share = np.divide(np.minimum(down, allowed), down, out=np.ones_like(down), where=down > 0)
    if (share >= 1.0).all():
        return pl.concat([ours, others])
    found = []
    for node, a, b, gpus in ours.iter_rows():
        edges = np.array([edge.replace(tzinfo=None) for edge in (a, b)], dtype="datetime64[us]")
        low, high = np.searchsorted(at, edges)
        cuts = [low, *(low + 1 + np.flatnonzero(np.diff(share[low:high]))), high]
        found += [(node, at[first], at[last], gpus * share[first]) for first, last in pairwise(cuts)]
    node, first, last, gpus = zip(*found, strict=True)
    times = {"start_time": pl.Series(np.array(first)), "end_time": pl.Series(np.array(last))}
    table = pl.DataFrame({"node": node} | times | {"gpus": gpus})
    zoned = pl.col("start_time", "end_time").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return pl.concat([table.with_columns(zoned), others])


def _by_node(running: pl.DataFrame, wanted: set[str]) -> dict[str, list[Spell]]:
    """What jobs hold on each of some nodes: an equal part on each node of the job."""
    lists = {text: known_nodes(text) or [] for text in running["node_list"].drop_nulls().unique().to_list()}
    near = [text for text, names in lists.items() if wanted.intersection(names)]
    found: dict[str, list[Spell]] = {}
    held = running.filter(pl.col("node_list").is_in(near)).drop("gpu_model")
    for start, stop, gpus, text in held.iter_rows():
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


def _spans(
    table: pl.DataFrame, start: str = "start_time", stop: str = "end_time"
) -> tuple[Times, Times, NDArray[np.float64]]:
    times = table.select(pl.col(start, stop).dt.replace_time_zone(None).cast(pl.Datetime("us")))
    return times[start].to_numpy(), times[stop].to_numpy(), table["gpus"].cast(pl.Float64).to_numpy()


def _level(at: Times, start: Times, stop: Times, gpus: NDArray[np.float64]) -> NDArray[np.float64]:
    """GPUs from each instant to the next."""
    change = np.zeros(len(at))
    np.add.at(change, np.searchsorted(at, start), gpus)
    np.add.at(change, np.searchsorted(at, np.maximum(stop, start)), -gpus)
    return np.cumsum(change)


@dataclass(frozen=True)
class Pool:
    """GPUs of one board that are in service; ``board`` is None where all boards are one pool."""

    gpu_model: str | None
    gpus: int


@dataclass(frozen=True, eq=False)
class Installed:
    """What is installed in a window: the number that ledger, plan, simulation and page share.

    - ``inventory``: Table ``schemas.Inventory``: as given, or inferred from what was held at once.
    - ``inferred``: Which of the two.
    - ``pools``: GPUs in service at the end of the window by board, those that jobs held first, then most first; a
      single pool of no board if jobs cannot be told apart by it.
    - ``words``: Boards that the data name, most GPUs first, or most jobs first where no inventory names any.
    - ``instances``: Whether jobs held MIG instances.
    - ``busy``: Boards of the pools that jobs held.
    - ``by_node``: Nodes are known by their names: from the inventory, or inferred from where jobs ran.
    - ``remarks``: How it was inferred, in sentences.
    """

    inventory: pl.DataFrame
    inferred: bool
    pools: tuple[Pool, ...]
    words: tuple[str, ...]
    instances: bool = False
    busy: frozenset[str] = frozenset()
    by_node: bool = True
    remarks: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs in service at the end of the window."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def listed(self) -> str:
        """GPUs by board in words.

        Examples
        --------
        >>> Installed(pl.DataFrame(), False, (Pool("T4", 8), Pool("L4", 2)), ()).listed
        '8 × T4, 2 × L4'
        """
        if self.pools[0].gpu_model is not None:
            return ", ".join(f"{pool.gpus} × {pool.gpu_model}" for pool in self.pools)
        if not self.words:
            return "not named"
        rest = "" if len(self.words) == 1 else "; not all jobs name theirs"
        return ", ".join(self.words) + rest

    @property
    def origin(self) -> str:
        """Where the number comes from, in words.

        Examples
        --------
        >>> Installed(pl.DataFrame(), True, (Pool(None, 3),), (), by_node=False).origin
        'inferred from the peak of allocated GPUs; there may be more'
        """
        if not self.inferred:
            return "from the inventory"
        of_each = " of each node" if self.by_node else ""
        return f"inferred from the peak of allocated GPUs{of_each}; there may be more"


def installed(trace: Dataset, begin: datetime, end: datetime) -> Installed:
    """What is installed according to the inventory, else as few GPUs as could have run the jobs of the window.

    Examples
    --------
    >>> from gpuplanner.usage.job_history import begin_of, end_of, load_trace
    >>> sample = load_trace("sample")
    >>> installed(sample, begin_of(sample), end_of(sample)).pools
    (Pool(gpu_model='H100-80GB-SXM5', gpus=64),)
    """
    seen: pl.DataFrame | None = None
    remarks: tuple[str, ...] = ()
    if trace.inventory is None or not int(trace.inventory["gpus"].sum() or 0):
        seen = seen_nodes(trace.long, begin, end)
        inferred = True
        inventory = inferred_inventory(trace.long, start=begin, end=end) if seen is None else seen
    else:
        inferred = False
        inventory, cut = with_seen_layouts(trace.inventory, trace.long, begin, end)
        if cut:
            remarks = (
                f"The inventory has no MIG layouts of {examples(cut)}: assumed are the fewest GPUs that hold the "
                "instances allocated there at once.",
            )
    held = (
        gpu_jobs(trace.long.believed(), Window(begin, end))
        .filter(pl.col("start_time").is_not_null())
        .group_by(pl.col("gpu_model").cast(pl.String))
        .agg(jobs=pl.len(), cut=pl.col("instances").is_not_null().sum())
        .collect(engine="streaming")
    )
    by_word, nodes = with_boards(held, in_service(inventory, end))
    busy = frozenset(by_word["board"].drop_nulls())
    by_board = nodes.group_by("board").agg(pl.col("gpus").sum())
    was_held = pl.col("board").is_in(list(busy))
    by_board = by_board.sort(was_held, "gpus", "board", descending=[True, True, False])
    pools = tuple(Pool(gpu_model, int(gpus)) for gpu_model, gpus in by_board.iter_rows())
    return Installed(
        inventory=inventory,
        inferred=inferred,
        pools=pools or (Pool(None, 0),),
        words=_words(nodes, held),
        instances=bool(held["cut"].sum()),
        busy=busy,
        by_node=not inferred or seen is not None,
        remarks=remarks,
    )


def in_service(inventory: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Nodes with GPUs that are in service after `end`; all of them if none is left."""
    there = inventory.filter(pl.col("gpus") > 0)
    for name, kept in (("installed", pl.col("installed") < end), ("retired", pl.col("retired") > end)):
        if name in there.columns:
            there = there.filter(kept.fill_null(value=True))
    return there if there.height else inventory.filter(pl.col("gpus") > 0)


def _words(nodes: pl.DataFrame, held: pl.DataFrame) -> tuple[str, ...]:
    named = nodes.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("gpus").sum())
    if named.is_empty():
        named = held.drop_nulls("gpu_model").group_by("gpu_model").agg(weight=pl.col("jobs").sum())
    return tuple(named.sort("weight", "gpu_model", descending=[True, False])["gpu_model"])


NAMED = 3
"""Nodes that a sentence names; of more it says how many there are."""


def nodes_seen(inventory: pl.DataFrame | None, at: datetime) -> Mapping[str, int]:
    """GPUs of each node that was in service at an instant; none where there is no list of nodes."""
    if inventory is None:
        return {}
    there = in_service(inventory, at).sort("node")
    return dict(zip(there["node"].to_list(), there["gpus"].to_list(), strict=True))


def nodes_changed(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What became of the fleet, in words; nothing where it stayed as it was, or one of the two is not known.

    Examples
    --------
    >>> nodes_changed({"n0": 8, "n1": 8}, {"n1": 4, "n2": 8, "n3": 8})
    'The fleet changed: n2, n3 came (+16 GPUs); n0 went (-8 GPUs); n1 changed size (-4 GPUs): 20 GPUs, 16 before.'
    """
    if not before or not after:
        return ""
    parts = [
        (sorted(after.keys() - before.keys()), "came"),
        (sorted(before.keys() - after.keys()), "went"),
        (sorted(one for one in before.keys() & after.keys() if before[one] != after[one]), "changed size"),
    ]
    told = [
        f"{_named(names)} {words} ({sum(after.get(one, 0) - before.get(one, 0) for one in names):+,} GPUs)"
        for names, words in parts
        if names
    ]
    gpus, then = sum(after.values()), sum(before.values())
    return f"The fleet changed: {'; '.join(told)}: {gpus:,} GPUs, {then:,} before." if told else ""


def _named(names: list[str]) -> str:
    rest = len(names) - NAMED
    told = ", ".join(printable(one) for one in names[:NAMED])
    return f"{told} and {rest:,} more" if rest > 0 else told
