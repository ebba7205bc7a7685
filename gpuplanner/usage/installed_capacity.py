"""Installed GPUs over time: inventory, GPUs out of service, and nodes that changed between two evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import escape_controls, examples
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import try_expand_node_list
from gpuplanner.ingest.node_dump_history import describe_layout_changes
from gpuplanner.usage.current_nodes import add_observed_layouts, observe_nodes
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import (
    LedgerWindow,
    inferred_inventory,
    jobs_with_gpus,
    match_gpu_models,
)

Spell = tuple[datetime, datetime, float]
"""Begin, end and GPUs of a period in which GPUs of a node are allocated or out of service."""
Times = NDArray[np.datetime64]
"""Array of instants."""


def out_of_service_gpus(
    out: pl.DataFrame,
    jobs: pl.DataFrame,
    nodes: pl.DataFrame,
    begin: datetime,
    end: datetime,
    *,
    tenants: pl.Series | None = None,
) -> pl.DataFrame:
    """Tabulate GPUs out of service between two instants, node by node.

    The rows have the GPU model of their node where the nodes have one.
    GPUs of a drained node that are still allocated to jobs are not out of service. Periods of one node that overlap
    count once, and a node that is down is not reserved as well. Where allocated GPUs and those out of service exceed
    those installed, the allocations count: accounting may record late that a node failed. Where a part of a node is
    reserved for a tenant, the row names no node, since which of its GPUs are meant is not known. GPUs reserved for none
    of the `tenants` count as reserved for no tenant.

    Parameters
    ----------
    out : polars.DataFrame
        Table ``out_of_service``: periods in which nodes are out of service, with ``gpus`` where they are stated.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    tenants : polars.Series, optional
        Known tenants; None: those of the jobs.
    """
    models_of_nodes = nodes.select([name for name in ("node", "gpu_model") if name in nodes.columns])
    boards = [*models_of_nodes["gpu_model"].unique().drop_nulls().sort(), None] if models_of_nodes.width > 1 else [None]
    reserved = pl.col("bucket") == "reserved"
    known_tenants = (jobs["tenant"] if tenants is None else tenants).cast(pl.String).unique().implode()
    out = out.join(nodes.select("node", size="gpus"), on="node").select(
        "node", "start_time", pl.col("end_time").fill_null(end),
        pl.when(~reserved | (pl.col("gpus") < pl.col("size"))).then("gpus"), "bucket",
        pl.when(pl.col("tenant").is_in(known_tenants)).then("tenant"),
    )  # fmt: skip
    kept = out.filter(reserved, pl.col("gpus").is_not_null()).join(models_of_nodes, on="node")
    stated, unstated = out.filter(~reserved, pl.col("gpus").is_not_null()), out.filter(pl.col("gpus").is_null())
    texts = pl.col("node_list", "gpu_model").cast(pl.String)
    began = jobs.filter(pl.col("start_time").is_not_null(), pl.col("gpus") > 0)
    running = began.select("start_time", pl.col("end_time").fill_null(end), "gpus", texts)
    allocations = _allocations_by_node(running, set(unstated["node"]))
    groups = unstated.sort(~(pl.col("bucket") == "down"), "tenant", nulls_last=True, maintain_order=True)
    for (bucket, tenant), rows in groups.group_by("bucket", "tenant", maintain_order=True):
        left = _unallocated_of_nodes(rows, stated, allocations, nodes, begin, end)
        for gpu_model in boards:
            left = _cap_spells_of_model(left, gpu_model, running, nodes, stated, begin, end)
        labels = pl.lit(bucket, out.schema["bucket"]), pl.lit(tenant, pl.String)
        stated = pl.concat([stated, left.with_columns(bucket=labels[0], tenant=labels[1])])
    return pl.concat([stated.join(models_of_nodes, on="node"), kept.with_columns(node=pl.lit(None, pl.String))])


def _unallocated_of_nodes(
    unstated: pl.DataFrame,
    stated: pl.DataFrame,
    allocations: Mapping[str, list[Spell]],
    nodes: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """Tabulate the unallocated GPUs of nodes out of service whose number is not stated, by interval.

    Parameters
    ----------
    unstated : polars.DataFrame
        Periods of nodes out of service without a number of GPUs.
    stated : polars.DataFrame
        Periods with a number of GPUs out of service.
    allocations : mapping of str to list
        Allocations by node, see :func:`_allocations_by_node`.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    spells_of = stated.group_by("node", maintain_order=True).agg("start_time", "end_time", "gpus")
    logs = {node: list(zip(*spells, strict=True)) for node, *spells in spells_of.iter_rows()}
    node_rows = {row["node"]: row for row in nodes.iter_rows(named=True)}
    pieces = []
    of_nodes = unstated.group_by("node", maintain_order=True).agg("start_time", "end_time")
    for node, starts, ends in of_nodes.iter_rows():
        node_row = node_rows[node]
        first = max(begin, node_row.get("installed") or begin)
        last = min(end, node_row.get("retired") or end)
        taken = [*allocations.get(node, []), *logs.get(node, [])]
        spells = [(max(a, first), min(b, last)) for a, b in zip(starts, ends, strict=True)]
        pieces += [(node, a, b, left) for a, b, left in _unallocated_spells(spells, taken, float(node_row["gpus"]))]
    schema = {name: stated.schema[name] for name in ("node", "start_time", "end_time", "gpus")}
    return pl.DataFrame(pieces, schema=schema, orient="row")


def _cap_spells_of_model(
    rows: pl.DataFrame,
    gpu_model: str | None,
    running: pl.DataFrame,
    nodes: pl.DataFrame,
    stated: pl.DataFrame,
    begin: datetime,
    end: datetime,
) -> pl.DataFrame:
    """Reduce the GPUs out of service of a GPU model where, with those allocated, they exceed the installed ones.

    Parameters
    ----------
    rows : polars.DataFrame
        Periods with GPUs out of service.
    gpu_model : str or None
        The GPU model; None: all models.
    running : polars.DataFrame
        Allocations of jobs.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    stated : polars.DataFrame
        Periods with a stated number of GPUs out of service.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    is_model = pl.lit(value=True) if gpu_model is None else pl.col("gpu_model").str.to_lowercase() == gpu_model.lower()
    model_nodes = nodes.filter(is_model)
    is_on_model = pl.col("node").is_in(model_nodes["node"].to_list())
    model_rows, other_rows = rows.filter(is_on_model), rows.filter(~is_on_model)
    # Jobs that name no board may be on any.
    some = running.filter(pl.lit(gpu_model is None) | pl.col("gpu_model").is_null() | is_model)
    model_stated = stated.filter(is_on_model)
    unknown = pl.lit(None, pl.Datetime("us", "UTC"))
    absent = {"installed", "retired"}.difference(model_nodes.columns)
    spans = model_nodes.with_columns(unknown.alias(name) for name in absent)
    spans = spans.with_columns(pl.col("installed").fill_null(begin), pl.col("retired").fill_null(end))
    parts = [
        _span_arrays(spans, "installed", "retired"),
        _span_arrays(some),
        _span_arrays(model_stated),
        _span_arrays(model_rows),
    ]
    at = np.unique(np.concatenate([edge for a, b, _ in parts for edge in (a, b)]))
    installed_gpus, jobs, logs, down = (_gpu_levels(at, *part) for part in parts)
    allowed = np.clip(installed_gpus - jobs - logs, 0.0, None)
    share = np.divide(np.minimum(down, allowed), down, out=np.ones_like(down), where=down > 0)
    if (share >= 1.0).all():
        return pl.concat([model_rows, other_rows])
    pieces = []
    for node, a, b, gpus in model_rows.iter_rows():
        edges = np.array([edge.replace(tzinfo=None) for edge in (a, b)], dtype="datetime64[us]")
        low, high = np.searchsorted(at, edges)
        cuts = [low, *(low + 1 + np.flatnonzero(np.diff(share[low:high]))), high]
        pieces += [(node, at[first], at[last], gpus * share[first]) for first, last in pairwise(cuts)]
    node, first, last, gpus = zip(*pieces, strict=True)
    times = {"start_time": pl.Series(np.array(first)), "end_time": pl.Series(np.array(last))}
    table = pl.DataFrame({"node": node} | times | {"gpus": gpus})
    zoned = pl.col("start_time", "end_time").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return pl.concat([table.with_columns(zoned), other_rows])


def _allocations_by_node(running: pl.DataFrame, node_names: set[str]) -> dict[str, list[Spell]]:
    """List the allocations of jobs by node, for the named nodes; a job has equally many GPUs on each of its nodes."""
    lists = {text: try_expand_node_list(text) or [] for text in running["node_list"].drop_nulls().unique().to_list()}
    near = [text for text, names in lists.items() if node_names.intersection(names)]
    allocations: dict[str, list[Spell]] = {}
    relevant = running.filter(pl.col("node_list").is_in(near)).drop("gpu_model")
    for start, stop, gpus, text in relevant.iter_rows():
        for name in node_names.intersection(lists[text]):
            allocations.setdefault(name, []).append((start, stop, gpus / len(lists[text])))
    return allocations


def _unallocated_spells(spells: list[tuple[datetime, datetime]], allocations: list[Spell], gpus: float) -> list[Spell]:
    """List the unallocated GPUs of a node within the union of periods (`spells`), interval by interval."""
    pieces: list[Spell] = []
    for start, stop in _merge_spells(spells):
        inside = [spell for spell in allocations if spell[0] < stop and spell[1] > start]
        edges = {start, stop, *(edge for spell in inside for edge in spell[:2] if start < edge < stop)}
        for a, b in pairwise(sorted(edges)):
            left = gpus - sum(some for first, last, some in inside if first <= a and b <= last)
            if left > 0 and pieces and pieces[-1][1:] == (a, left):
                pieces[-1] = (pieces[-1][0], b, left)
            elif left > 0:
                pieces.append((a, b, left))
    return pieces


def _merge_spells(spells: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Merge periods (begin, end) that overlap; the result is sorted."""
    merged: list[tuple[datetime, datetime]] = []
    for start, stop in sorted(spell for spell in spells if spell[0] < spell[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _span_arrays(
    table: pl.DataFrame, start: str = "start_time", stop: str = "end_time"
) -> tuple[Times, Times, NDArray[np.float64]]:
    """Convert a table of spans to arrays of begins, ends and GPUs."""
    times = table.select(pl.col(start, stop).dt.replace_time_zone(None).cast(pl.Datetime("us")))
    return times[start].to_numpy(), times[stop].to_numpy(), table["gpus"].cast(pl.Float64).to_numpy()


def _gpu_levels(at: Times, start: Times, stop: Times, gpus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the sum of GPUs of all spans from each instant to the next.

    Parameters
    ----------
    at : numpy.ndarray of datetime64
        Sorted instants.
    start, stop : numpy.ndarray of datetime64, shape (n,)
        Begins and ends of spans.
    gpus : numpy.ndarray, shape (n,)
        GPUs of each span.
    """
    change = np.zeros(len(at))
    np.add.at(change, np.searchsorted(at, start), gpus)
    np.add.at(change, np.searchsorted(at, np.maximum(stop, start)), -gpus)
    return np.cumsum(change)


@dataclass(frozen=True)
class Pool:
    """GPUs of one GPU model that are in service; ``gpu_model`` is None where all models are one pool."""

    gpu_model: str | None
    gpus: int


@dataclass(frozen=True, eq=False)
class InstalledGpus:
    """Installed GPUs in a window, shared by ledger, plan, simulation and report.

    - ``inventory``: Table ``schemas.Inventory``: as given, or inferred from the peak of allocations.
    - ``inferred``: Whether the inventory is inferred.
    - ``pools``: GPUs in service at the end of the window by GPU model: first models that jobs used, then by number of
      GPUs; a single pool without GPU model if jobs cannot be matched to models.
    - ``words``: GPU models that the data name, most GPUs first, or most jobs first where no inventory names any.
    - ``instances``: Whether jobs were allocated MIG instances.
    - ``busy``: GPU models that jobs were allocated.
    - ``by_node``: Whether nodes are known by name, from the inventory or from the nodes of jobs.
    - ``remarks``: How the inventory was inferred, as sentences.
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

    def of_model(self, gpu_model: str) -> InstalledGpus:
        """Return the installed GPUs of one GPU model."""
        nodes = self.inventory.filter(pl.col("gpu_model").str.to_lowercase() == gpu_model.lower())
        pools = tuple(pool for pool in self.pools if pool.gpu_model == gpu_model)
        return replace(self, inventory=nodes, pools=pools, words=(gpu_model,))

    @property
    def models_text(self) -> str:
        """GPUs by GPU model, as text.

        Examples
        --------
        >>> InstalledGpus(pl.DataFrame(), False, (Pool("T4", 8), Pool("L4", 2)), ()).models_text
        '8 × T4, 2 × L4'
        """
        if self.pools[0].gpu_model is not None:
            return ", ".join(f"{pool.gpus} × {pool.gpu_model}" for pool in self.pools)
        if not self.words:
            return "not named"
        remark = "" if len(self.words) == 1 else "; not all jobs name a single one"
        return ", ".join(self.words) + remark

    @property
    def origin(self) -> str:
        """Source of the number of GPUs, as text.

        Examples
        --------
        >>> InstalledGpus(pl.DataFrame(), True, (Pool(None, 3),), (), by_node=False).origin
        'inferred from the peak of allocated GPUs; there may be more'
        """
        if not self.inferred:
            return "from the inventory"
        of_each = " of each node" if self.by_node else ""
        return f"inferred from the peak of allocated GPUs{of_each}; there may be more"


def find_installed(dataset: Dataset, begin: datetime, end: datetime) -> InstalledGpus:
    """Find the installed GPUs: from the inventory, else the fewest that could have run the jobs of the window.

    Examples
    --------
    >>> from gpuplanner.usage.planning_history import observation_begins_at, observation_ends_at, load_dataset
    >>> sample = load_dataset("sample")
    >>> find_installed(sample, observation_begins_at(sample), observation_ends_at(sample)).pools
    (Pool(gpu_model='H100-80GB-SXM5', gpus=64),)
    """
    observed: pl.DataFrame | None = None
    remarks = describe_layout_changes(dataset.tables.get("node_dumps"))
    if dataset.inventory is None or not int(dataset.inventory["gpus"].sum() or 0):
        observed = observe_nodes(dataset.lazy_jobs, begin, end)
        inferred = True
        inventory = inferred_inventory(dataset.lazy_jobs, start=begin, end=end) if observed is None else observed
    else:
        inferred = False
        inventory, cut = add_observed_layouts(dataset.inventory, dataset.lazy_jobs, begin, end)
        if cut:
            remarks += (
                f"The inventory has no MIG layouts of {examples(cut)}: assumed are the fewest GPUs that hold the "
                "instances allocated there at once.",
            )
    allocated = (
        jobs_with_gpus(dataset.lazy_jobs.scan_unquarantined(), LedgerWindow(begin, end))
        .filter(pl.col("start_time").is_not_null())
        .group_by(pl.col("gpu_model").cast(pl.String))
        .agg(jobs=pl.len(), cut=pl.col("instances").is_not_null().sum())
        .collect(engine="streaming")
    )
    by_word, nodes = match_gpu_models(allocated, nodes_in_service(inventory, end))
    busy = frozenset(by_word["board"].drop_nulls())
    by_board = nodes.group_by("board", maintain_order=True).agg(pl.col("gpus").sum())
    was_held = pl.col("board").is_in(list(busy))
    by_board = by_board.sort(was_held, "gpus", "board", descending=[True, True, False])
    pools = tuple(Pool(gpu_model, int(gpus)) for gpu_model, gpus in by_board.iter_rows())
    return InstalledGpus(
        inventory=inventory,
        inferred=inferred,
        pools=pools or (Pool(None, 0),),
        words=_rank_gpu_model_names(nodes, allocated),
        instances=bool(allocated["cut"].sum()),
        busy=busy,
        by_node=not inferred or observed is not None,
        remarks=remarks,
    )


def nodes_in_service(inventory: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Select the nodes with GPUs that are in service after `end`; all of them if none is left."""
    nodes = inventory.filter(pl.col("gpus") > 0)
    for name, kept in (("installed", pl.col("installed") < end), ("retired", pl.col("retired") > end)):
        if name in nodes.columns:
            nodes = nodes.filter(kept.fill_null(value=True))
    return nodes if nodes.height else inventory.filter(pl.col("gpus") > 0)


def _rank_gpu_model_names(nodes: pl.DataFrame, allocated: pl.DataFrame) -> tuple[str, ...]:
    """List the GPU models of nodes, most GPUs first; without any, those of jobs, most jobs first."""
    named = nodes.drop_nulls("gpu_model").group_by("gpu_model", maintain_order=True).agg(weight=pl.col("gpus").sum())
    if named.is_empty():
        named = (
            allocated.drop_nulls("gpu_model")
            .group_by("gpu_model", maintain_order=True)
            .agg(weight=pl.col("jobs").sum())
        )
    return tuple(named.sort("weight", "gpu_model", descending=[True, False])["gpu_model"])


MAX_NODES_NAMED_IN_TEXT = 3
"""Most nodes that a sentence names; of others it states the number."""


def gpus_of_nodes(inventory: pl.DataFrame | None, at: datetime) -> Mapping[str, int]:
    """Map each node in service at an instant to its GPUs; empty without an inventory."""
    if inventory is None:
        return {}
    nodes = nodes_in_service(inventory, at).sort("node")
    return dict(zip(nodes["node"].to_list(), nodes["gpus"].to_list(), strict=True))


def describe_node_changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Describe nodes (name → GPUs) added, removed or resized, as text; empty if none is or a fleet is unknown.

    Examples
    --------
    >>> describe_node_changes({"n0": 8, "n1": 8}, {"n1": 4, "n2": 8, "n3": 8})
    'The fleet changed: n2, n3 came (+16 GPUs); n0 went (-8 GPUs); n1 changed size (-4 GPUs): 20 GPUs, 16 before.'
    """
    if not before or not after:
        return ""
    parts = [
        (sorted(after.keys() - before.keys()), "came"),
        (sorted(before.keys() - after.keys()), "went"),
        (sorted(name for name in before.keys() & after.keys() if before[name] != after[name]), "changed size"),
    ]
    changes = [
        f"{_format_node_names(names)} {words} "
        f"({sum(after.get(name, 0) - before.get(name, 0) for name in names):+,} GPUs)"
        for names, words in parts
        if names
    ]
    gpus, gpus_before = sum(after.values()), sum(before.values())
    return f"The fleet changed: {'; '.join(changes)}: {gpus:,} GPUs, {gpus_before:,} before." if changes else ""


def _format_node_names(names: list[str]) -> str:
    """Join the first names of nodes with commas, and state how many more there are."""
    unnamed = len(names) - MAX_NODES_NAMED_IN_TEXT
    text = ", ".join(escape_controls(name) for name in names[:MAX_NODES_NAMED_IN_TEXT])
    return f"{text} and {unnamed:,} more" if unnamed > 0 else text
