"""Nodes and layouts of today's fleet, stated or observed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

import numpy as np
import polars as pl

from gpuplanner.core.errors import GeometryError, examples
from gpuplanner.core.schema_checks import cast_columns
from gpuplanner.core.schemas import FULL_GPU, Inventory, Jobs
from gpuplanner.core.units_and_number_formats import gpu_figure_text, gpus_text
from gpuplanner.hardware.gpu_model_names import find_profile_name
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.layout_enumeration import find_fewest_gpus
from gpuplanner.hardware.mig_layouts import UNUSED_LAYOUT, format_layout, parse_layout, prove
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import spread_gpus_over_nodes
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import (
    HOUR,
    LedgerWindow,
    inferred_inventory,
    jobs_with_gpus,
)

NODE_JOB_COLUMNS = (
    "submit_time", "start_time", "end_time", "state", "gpus", "gpus_by_memory", "gpu_model", "profile_requested",
    "instances", "node_list",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` from which nodes and their GPUs are inferred."""
MAX_UNNAMED_NODE_GPU_HOUR_FRACTION = 0.1
"""Largest share of the GPU-hours on unnamed nodes with which an inventory of nodes is still inferred from jobs [0-1].
"""
ACCOUNTING_CLOCK_RESOLUTION = timedelta(seconds=1)
"""Resolution of the times in accounting: within the same second a GPU may be released by one job and allocated to
another, which is no overlap.
"""
MAX_ROWS_SORTED_AT_ONCE = 1 << 20
"""Largest number of allocations (table rows) that are sorted in memory at once."""
RECENT_NODES_SPAN = timedelta(days=7)
"""Length of the last part of the record from which the MIG layouts of a node are inferred, where the instances of the
whole record do not fit on its GPUs at once, as after a repartitioning.
"""
INFERRED_NODE_NAME = "inferred"
"""Name of the node in an inferred inventory that holds the GPUs of jobs on unknown nodes."""


def observe_nodes(jobs: pl.DataFrame | LazyJobs, begin: datetime, end: datetime) -> pl.DataFrame | None:
    """Infer an inventory from allocations: each node with the peak of GPUs allocated on it at once.

    A node has the peak of instances of each profile, all at the same time, on the fewest GPUs that hold them. How a job
    was spread over several nodes is unknown: where its GPUs cannot be spread evenly, its nodes are taken to be no
    larger than necessary.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 2.0], "node_list": ["n[1-2]", "n1"], "state": "COMPLETED",
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=1)})
    >>> observe_nodes(jobs, nine, nine + timedelta(hours=2)).select("node", "gpus").rows()
    [('n1', 6), ('n2', 4)]
    """
    jobs_on_disk = LazyJobs.from_table(jobs)
    use = _use_by_node_and_model(jobs_on_disk, begin, end)
    total = float(use["gpus"].sum())
    unnamed = float(use.filter(pl.col("node").is_null())["gpus"].sum())
    if use["node"].null_count() == use.height or unnamed > MAX_UNNAMED_NODE_GPU_HOUR_FRACTION * total:
        return None
    boards = _usual_model_by_node(use)
    observed = _infer_nodes_from_parts(
        lambda: (
            rows.filter(pl.col("node").is_not_null())
            for first, last in jobs_on_disk.split_span(begin, end)
            if (
                rows := _tabulate_allocations_by_node(
                    jobs_on_disk.collect_between(first, last, NODE_JOB_COLUMNS), begin, end, boards
                )
            )
            is not None
        )
    )
    models = _models_of_mixed_nodes(use, observed, jobs_on_disk, begin, end)
    table = [
        {
            "node": name,
            "gpu_model": models.get(name, node.gpu_model),
            "gpus": node.gpus,
            "mig_enabled": True if node.cut else None,
            "layouts": ";".join([FULL_GPU] * (node.gpus - len(node.cut)) + node.cut) if node.cut else None,
        }
        for name, node in sorted(observed.items())
        if node.gpus
    ]
    if unnamed:
        peak_gpus = int(inferred_inventory(jobs_on_disk, start=begin, end=end)["gpus"].sum())
        unplaced_gpus = peak_gpus - sum(node.gpus for node in observed.values())
        words = {row["gpu_model"] for row in table}
        single_model = words.pop() if len(words) == 1 else None
        if unplaced_gpus > 0:
            table.append({"node": INFERRED_NODE_NAME, "gpu_model": single_model, "gpus": unplaced_gpus})
    schema = {name: column.dtype for name, column in Inventory.columns().items()}
    return pl.DataFrame(table, schema=schema) if table else None


def _models_of_mixed_nodes(
    use: pl.DataFrame, observed: Mapping[str, _ObservedNode], jobs: LazyJobs, begin: datetime, end: datetime
) -> dict[str, str]:
    """Find nodes with several GPU models, where the nodes by their usual model have too few GPUs for the jobs.

    Parameters
    ----------
    use : polars.DataFrame
        Jobs and GPU-seconds by node and GPU model, from :func:`_use_by_node_and_model`.
    observed : mapping of str to _ObservedNode
        Nodes by name.
    jobs : LazyJobs
        The jobs.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    # Which model of a job with several is on which of its nodes, jobs on a single model show.
    is_of_several = pl.col("gpu_model").str.contains("|", literal=True)
    named = (
        use.drop_nulls(["node", "gpu_model"])
        .filter(~is_of_several | is_of_several.all().over("node"))
        .group_by("node", maintain_order=True)
        .agg(pl.col("gpu_model").str.split("|").list.explode().unique().sort())
    )
    mixed = named.filter(pl.col("gpu_model").list.len() > 1)
    if mixed.is_empty():
        return {}
    listed = Counter[str | None]()
    for node in observed.values():
        listed[node.gpu_model] += node.gpus
    peaks = inferred_inventory(jobs, start=begin, end=end).select("gpu_model", "gpus").iter_rows()
    enough = all(gpus <= listed[model] for model, gpus in peaks)
    return {} if enough else dict(mixed.with_columns(pl.col("gpu_model").list.join("|")).iter_rows())


def add_observed_layouts(
    inventory: pl.DataFrame, jobs: LazyJobs, begin: datetime, end: datetime
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Add layouts to an inventory for nodes without one on which jobs were allocated MIG instances.

    Parameters
    ----------
    inventory : polars.DataFrame
        Table ``schemas.Inventory``.
    jobs : LazyJobs
        The jobs.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    has_no_layouts = pl.col("layouts").is_null() & (pl.col("gpus") > 0)
    if inventory["layouts"].null_count() < inventory.height:
        has_no_layouts &= pl.col("mig_enabled").fill_null(value=False)  # beside stated layouts, none means not cut
    candidates = inventory.filter(has_no_layouts)
    instance_columns = (part["instances"] for part in jobs.iterate_chunks(["instances"]) if "instances" in part)
    any_cut = not candidates.is_empty() and any(instances.drop_nulls().len() for instances in instance_columns)
    rows = _tabulate_allocations_by_node(jobs.collect_rows(NODE_JOB_COLUMNS), begin, end) if any_cut else None
    if rows is None:
        return inventory, ()
    boards = dict(candidates.select("node", "gpu_model").iter_rows())
    rows = rows.filter(pl.col("node").is_in(list(boards)))
    rows = rows.with_columns(board=pl.col("node").replace_strict(boards, return_dtype=pl.String))
    observed = _infer_nodes_from_parts(lambda: [rows])
    last = pl.col("end").filter(pl.col("number") > 0).max().over("node")
    recent_rows = rows.filter(pl.col("start") > last - RECENT_NODES_SPAN)
    observed_lately = _infer_nodes_from_parts(lambda: [recent_rows])
    texts: dict[str, str] = {}
    for name, gpus in candidates.select("node", "gpus").iter_rows():
        # Cut anew in between, what was held at one time does not fit beside what was held at another.
        fits = [
            observed[name].cut if name in observed else [],
            observed_lately[name].cut if name in observed_lately else [],
        ]
        cut = next((layouts_fit for layouts_fit in fits if 0 < len(layouts_fit) <= gpus), None)
        if cut:
            texts[name] = ";".join([FULL_GPU] * (gpus - len(cut)) + cut)
    layouts = pl.col("node").replace_strict(texts, default=None, return_dtype=pl.String)
    table = inventory.with_columns(layouts=pl.coalesce("layouts", layouts))
    mig = pl.when(pl.col("node").is_in(list(texts))).then(pl.lit(value=True)).otherwise("mig_enabled")
    return table.with_columns(mig_enabled=mig), tuple(sorted(texts))


def clip_to_window(jobs: pl.DataFrame, begin: datetime, end: datetime) -> pl.DataFrame:
    """Add columns ``start`` and ``end``: begin and end of each job, clipped to the window."""
    return jobs.with_columns(
        start=pl.max_horizontal(pl.col("start_time"), pl.lit(begin)),
        end=pl.min_horizontal(pl.col("end_time").fill_null(end), pl.lit(end)),
    )


def peak_allocated(rows: pl.DataFrame, amount: str, *by: str) -> pl.DataFrame:
    """Find the peak (column ``level``) of an amount allocated at once, such as GPUs, for each group of `by`.

    `rows` are allocations with ``start``, ``end`` and the columns `amount` and `by`. Within a second, ends count before
    starts.
    """
    groups = -(-rows.height // MAX_ROWS_SORTED_AT_ONCE) if by else 1
    if groups > 1:  # what is put in order takes several times the room of the rows
        number = rows.select(pl.col(by[0]).hash() % groups).to_series()
        return pl.concat(_peak_allocated(rows.filter(number == group), amount, *by) for group in range(groups))
    return _peak_allocated(rows, amount, *by)


def _peak_allocated(rows: pl.DataFrame, amount: str, *by: str) -> pl.DataFrame:
    """Find peaks as :func:`peak_allocated` does, for rows that can be sorted in memory at once."""
    until = (
        pl.when(pl.col("end") - ACCOUNTING_CLOCK_RESOLUTION > pl.col("start"))
        .then(pl.col("end") - ACCOUNTING_CLOCK_RESOLUTION)
        .otherwise("end")
    )
    up = rows.select(*by, at="start", change=pl.col(amount))
    down = rows.select(*by, at=until, change=-pl.col(amount))
    steps = pl.concat([up, down]).group_by(*by, "at").agg(pl.col("change").sum()).sort(*by, "at")
    level = pl.col("change").cum_sum()
    levels = steps.with_columns(level=level.over(*by) if by else level)
    peak = pl.col("level").max()
    return levels.group_by(*by, maintain_order=True).agg(peak) if by else levels.select(peak)


@dataclass(frozen=True)
class _ObservedNode:
    """Node inferred from its peak allocation: GPU model, GPUs, and layouts of its partitioned GPUs."""

    gpu_model: str | None
    gpus: int
    cut: list[str]


def _use_by_node_and_model(jobs: LazyJobs, begin: datetime, end: datetime) -> pl.DataFrame:
    """Sum jobs and GPU-seconds (column ``gpus``) by node and GPU model; a null node is unknown."""
    gpu_seconds = (pl.col("end") - pl.col("start")).dt.total_seconds() * pl.col("gpus")
    texts = pl.col("node_list", "gpu_model").cast(pl.String)
    parts = []
    for part in jobs.iterate_chunks(NODE_JOB_COLUMNS):
        allocated = jobs_with_gpus(cast_columns(part, Jobs, NODE_JOB_COLUMNS, source="jobs"), LedgerWindow(begin, end))
        inside = clip_to_window(allocated.filter(pl.col("start_time") < end), begin, end)
        parts.append(inside.group_by(texts, maintain_order=True).agg(jobs=pl.len(), gpus=gpu_seconds.sum()))
    lists = pl.concat(parts).group_by("node_list", "gpu_model", maintain_order=True).agg(pl.all().sum())
    by_node = spread_gpus_over_nodes(lists).group_by("node", "gpu_model", maintain_order=True)
    return by_node.agg(pl.col("jobs", "gpus").sum())


def _usual_model_by_node(used: pl.DataFrame) -> pl.DataFrame:
    """Find the GPU model of each node: the one that most jobs on it name, those on a single model first."""
    is_of_several = pl.col("gpu_model").str.contains("|", literal=True)
    usual = used.drop_nulls().sort("node", is_of_several, "jobs", "gpu_model", descending=[False, False, True, False])
    return usual.group_by("node", maintain_order=True).agg(board=pl.first("gpu_model"))


def _tabulate_allocations_by_node(
    jobs: pl.DataFrame, begin: datetime, end: datetime, boards: pl.DataFrame | None = None
) -> pl.DataFrame | None:
    """Tabulate the GPUs or MIG instances allocated to each job on each named node.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    boards : polars.DataFrame, optional
        ``node, gpu_model``: the GPU model that most jobs on a node name; None: determined from `jobs`.
    """
    if boards is None:
        boards = _usual_model_by_node(_use_by_node_and_model(LazyJobs.from_table(jobs), begin, end))
    allocated = jobs_with_gpus(cast_columns(jobs, Jobs, NODE_JOB_COLUMNS, source="jobs"), LedgerWindow(begin, end))
    allocated = allocated.filter(pl.col("start_time") < end, pl.col("node_list").is_not_null().any())
    if allocated.is_empty():
        return None
    # Words as categories, and no column more than is needed: these are the most rows of all.
    texts = pl.col("node_list", "gpu_model", "profile_requested").cast(pl.String).cast(pl.Categorical)
    allocations = clip_to_window(allocated, begin, end).select("start", "end", "gpus", "instances", texts)
    allocations = allocations.with_row_index("row")
    spread = spread_gpus_over_nodes(allocations).drop("node_list").with_columns(pl.col("node").cast(pl.Categorical))
    job_nodes, node_number = pl.lit(1, pl.UInt32), pl.lit(0, pl.Int64)
    if spread.height > allocations.height:
        job_nodes, node_number = pl.len().over("row"), pl.int_range(pl.len()).over("row")
    spread = spread.with_columns(job_nodes=job_nodes, node_number=node_number)
    boards = boards.cast(pl.Categorical)
    rows = spread.join(boards, on="node", how="left", maintain_order="left", nulls_equal=True)
    pairs = rows.select("board", "profile_requested").unique().drop_nulls().rows()
    known_profiles = [
        (gpu_model, name, on_it)
        for gpu_model, name in pairs
        if (on_it := find_profile_name(gpu_model, name)) is not None
    ]
    schema = dict.fromkeys(("board", "profile_requested", "profile"), pl.Categorical)
    profiles = pl.DataFrame(known_profiles, schema=schema, orient="row")
    rows = rows.join(profiles, on=["board", "profile_requested"], how="left", maintain_order="left")
    sliced = pl.col("profile").is_not_null() & pl.col("instances").is_not_null()
    total = (pl.col("instances") * pl.col("job_nodes")).round()
    number = total // pl.col("job_nodes") + (pl.col("node_number") < total % pl.col("job_nodes")).cast(pl.Float64)
    # Of a job with whole GPUs and slices the whole ones are sure to be on boards of their own.
    mixed = pl.col("instances").is_not_null() & pl.col("profile_requested").is_null() & (pl.col("gpus") >= 1)
    shared = (pl.col("job_nodes") == 1) & ~mixed
    evenly = pl.when(shared).then("gpus").otherwise((pl.col("gpus") + 1e-9).floor())
    return rows.select(
        "row", "node", "board", "start", "end", "gpus",
        profile=pl.when(sliced).then("profile"),
        number=pl.when(sliced).then(number).otherwise(0.0),
        whole=pl.when(sliced).then(0.0).otherwise(evenly),
        rest=pl.when(sliced | mixed | shared).then(0.0)
        .otherwise(((pl.col("gpus") - evenly) * pl.col("job_nodes")).round()),
    )  # fmt: skip


def _infer_nodes_from_parts(parts: Callable[[], Iterable[pl.DataFrame]]) -> dict[str, _ObservedNode]:
    """Infer nodes, by name, from allocations; `parts` yields them as tables, each with all of one period."""
    boards: dict[str, str | None] = {}
    peaks, of_profiles, spans = [], [], []
    for rows in parts():
        boards |= dict(rows.select("node", "board").unique(maintain_order=True).iter_rows())
        peaks.append(peak_allocated(_add_uneven_parts(rows), "whole", "node"))
        cut = rows.filter(pl.col("number") > 0)
        of_profiles.append(peak_allocated(cut, "number", "node", "profile"))
        spans.append(
            cut.group_by("node", maintain_order=True).agg(first=pl.col("start").min(), last=pl.col("end").max())
        )
    counts_of: dict[str, dict[str, int]] = {}
    for node, profile, number in (
        _max_level_by_group(of_profiles, "node", "profile").sort("node", "profile").iter_rows()
    ):
        counts_of.setdefault(node, {})[profile] = round(number)
    of_cut = pl.concat(spans).group_by("node", maintain_order=True).agg(pl.col("first").min(), pl.col("last").max())
    first, last = pl.max_horizontal("start", "first"), pl.min_horizontal("end", "last")
    peaks_beside, after = [peaks[0].clear()], [peaks[0].clear()]
    for rows in parts() if of_cut.height else ():
        on_partitioned = _add_uneven_parts(rows).join(of_cut, on="node")
        # A node that was cut for a part of the time had its GPUs whole in the rest of it.
        during = on_partitioned.with_columns(start=first, end=last).filter(pl.col("start") < pl.col("end"))
        peaks_beside.append(peak_allocated(during, "whole", "node"))
        after.append(peak_allocated(on_partitioned.filter(pl.col("start") >= pl.col("last")), "whole", "node"))
    peak_of_node, with_cut, later = (
        dict(_max_level_by_group(level, "node").iter_rows()) for level in (peaks, peaks_beside, after)
    )
    fewest: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}
    observed: dict[str, _ObservedNode] = {}
    for node, gpu_model in boards.items():
        counts = counts_of.get(node, {})
        key = (str(gpu_model), tuple(counts.items()))
        if key not in fewest:
            layouts = find_fewest_gpus(str(gpu_model), counts) if counts else []
            fewest[key] = [format_layout(level) for level in layouts or ()]
        texts = fewest[key]
        gpus = max(_round_up_gpus(with_cut.get(node)) + len(texts), _round_up_gpus(peak_of_node.get(node)))
        uncut = _round_up_gpus(later.get(node)) > gpus - len(texts)
        observed[node] = _ObservedNode(gpu_model, gpus, [] if uncut else list(texts))
    return observed


def _max_level_by_group(levels: list[pl.DataFrame], *by: str) -> pl.DataFrame:
    """Find the largest ``level``, such as allocated GPUs, of each group in several tables of peaks."""
    return pl.concat(levels).group_by(*by, maintain_order=True).agg(pl.col("level").max())


def _round_up_gpus(gpus: float | None) -> int:
    """Round a number of GPUs up to whole GPUs, but for rounding errors; None counts as 0."""
    return int(np.ceil((gpus or 0.0) - 1e-6))


def _add_uneven_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the GPUs of jobs that cannot be divided evenly among their nodes, first on nodes with unallocated GPUs."""
    even_parts = rows.filter(pl.col("whole") > 0).select(("node", "start", "end", "whole"))
    uneven = rows.filter(pl.col("rest") > 0)
    if uneven.is_empty():
        return even_parts
    room = dict(peak_allocated(even_parts, "whole", "node").iter_rows())
    names = uneven["node"].unique().to_list()
    on_node = {node: even_parts.filter(node=node) for node in names}
    for (_,), job in uneven.sort("start", "row", maintain_order=True).group_by("row", maintain_order=True):
        start, end, left = job["start"][0], job["end"][0], round(job["rest"][0])
        during = (pl.col("start") < end) & (pl.col("end") > start)
        free = {}
        for node in job["node"]:
            level = dict(peak_allocated(on_node[node].filter(during), "whole", "node").iter_rows()).get(node, 0.0)
            free[node] = max(_round_up_gpus(room.get(node)) - _round_up_gpus(level), 0)
        taken: Counter[str] = Counter()
        for node in sorted(free, key=lambda name: -free[name]):
            taken[node] += min(free[node], left - taken.total())
        for extra in range(left - taken.total()):
            taken[list(free)[extra % len(free)]] += 1
        for node, extra_gpus in taken.items():
            if extra_gpus:
                row = pl.DataFrame([(node, start, end, float(extra_gpus))], schema=even_parts.schema, orient="row")
                on_node[node] = pl.concat([on_node[node], row])
                room[node] = max(dict(peak_allocated(on_node[node], "whole", "node").iter_rows()).values())
    return pl.concat([even_parts.filter(~pl.col("node").is_in(names)), *on_node.values()])


def count_layouts(nodes: pl.DataFrame, gpu_model: GpuModel) -> dict[str, int]:
    """Count GPUs by layout, with the profile names of the GPU model.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> nodes = pl.DataFrame({"gpus": [4, 2], "layouts": ["1g.5gb:7;1g.5gb:7;gpu", None]})
    >>> count_layouts(nodes, load_gpu_model("A100-40GB"))
    {'1g.5gb:7': 2, 'gpu': 4}
    """
    counts: Counter[str] = Counter()
    if "layouts" not in nodes.columns:
        nodes = nodes.with_columns(layouts=pl.lit(None, pl.String))
    for gpus, stated in nodes.select("gpus", "layouts").iter_rows():
        counts.update(layouts_of_node(gpus, stated, gpu_model))
    return {layout: count for layout, count in sorted(counts.items()) if count and layout != UNUSED_LAYOUT}


def layouts_of_node(gpus: int, stated: str | None, gpu_model: GpuModel) -> tuple[str, ...]:
    """List the layout of each GPU of a node, full GPUs first; GPUs without a stated layout are full.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> layouts_of_node(3, "1g.5gb:7;gpu", load_gpu_model("A100-40GB"))
    ('gpu', 'gpu', '1g.5gb:7')
    """
    texts = [text.strip() for text in (stated or "").split(";") if text.strip()][:gpus]
    layouts = [_canonical_layout(text, gpu_model) for text in texts] + [FULL_GPU] * (gpus - len(texts))
    return tuple(sorted(layouts, key=lambda text: (text != FULL_GPU, text == UNUSED_LAYOUT, text)))


def _canonical_layout(text: str, gpu_model: GpuModel) -> str:
    """Rewrite a MIG layout with the profile names of the GPU model; ``gpu`` (MIG disabled) if it is not valid."""
    try:
        counts = parse_layout(text)
        if FULL_GPU in counts:
            return FULL_GPU
        counts_by_name = {gpu_model.profile(name).name: count for name, count in counts.items()}
        return format_layout(counts_by_name) if not counts_by_name or prove(gpu_model, counts_by_name) else FULL_GPU
    except GeometryError:
        return FULL_GPU


SNAPSHOT_RUNNING_SHARE, SNAPSHOT_PEAK_RATIO = 1 / 3, 2.0
"""Thresholds above which a job list counts as a snapshot of one moment instead of a record over time: share of its jobs
that ran in the last hour [0-1], and ratio of their GPUs to those of the median hour before.
"""
DIGITS_PATTERN = re.compile(r"\d+")
"""Pattern of the digits in node names, by which names such as ``gpu-01`` and ``gpu-17`` are recognized as alike."""


@dataclass(frozen=True)
class TodaysNodes:
    """Nodes of today's fleet, with the layout of each GPU.

    - ``names``: Names of the nodes, those with most full GPUs first: plans partition the last ones first.
    - ``gpus``: Number of GPUs of each node.
    - ``layouts``: Layout of each GPU of each node: ``"gpu"`` with MIG disabled, its MIG instances as
      :func:`gpuplanner.hardware.mig_layouts.parse_layout` reads them, or ``"off"`` if it is in MIG mode without
      instances.
    - ``inferred``: Whether the numbers of GPUs are inferred from the peak of allocations; nodes may have more.
    - ``named``: Whether nodes of these names exist; otherwise the names are synthetic, for the simulation alone, and
      never exported.
    - ``remarks``: Notes on the nodes for the reader, as sentences.
    - ``snapshot``: Whether the job list is a snapshot of one moment instead of a record over time.
    - ``shared``: Names of the nodes whose GPUs several jobs share without MIG; they are never changed.

    Examples
    --------
    >>> nodes = TodaysNodes(("n1", "n2"), (2, 1), (("gpu", "gpu"), ("1g.5gb:7",)), inferred=False, named=True)
    >>> nodes.total
    3
    """

    names: tuple[str, ...]
    gpus: tuple[int, ...]
    layouts: tuple[tuple[str, ...], ...]
    inferred: bool
    named: bool
    remarks: tuple[str, ...] = ()
    snapshot: bool = False
    shared: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return sum(self.gpus)


def make_numbered_nodes(gpus: int, size: int, layouts: Mapping[str, int]) -> TodaysNodes:
    """Make nodes of `size` GPUs each for GPUs whose nodes are unknown, and one smaller node for the remainder.

    Examples
    --------
    >>> nodes = make_numbered_nodes(21, 8, {"1g.5gb:7": 1, "gpu": 20})
    >>> nodes.gpus, nodes.layouts[2]
    ((8, 8, 5), ('gpu', 'gpu', 'gpu', 'gpu', '1g.5gb:7'))
    """
    full, last_size = divmod(gpus, size)
    sizes = [size] * full + ([last_size] if last_size else [])
    cut = [text for text in sorted(layouts) if text != FULL_GPU for _ in range(layouts[text])]
    texts = [FULL_GPU] * layouts.get(FULL_GPU, 0) + cut
    texts += [UNUSED_LAYOUT] * (gpus - len(texts))
    names = tuple(f"node{number:0{len(str(len(sizes) - 1))}d}" for number in range(len(sizes)))
    return TodaysNodes(names, tuple(sizes), _split_by_node(texts, sizes), inferred=False, named=False)


def nodes_from_inventory(inventory: pl.DataFrame, gpu_model: GpuModel, *, inferred: bool) -> TodaysNodes:
    """Build the nodes of an inventory in the order of plans: larger and less partitioned nodes first.

    Examples
    --------
    >>> from gpuplanner.hardware.gpu_models import load_gpu_model
    >>> table = pl.DataFrame({"node": ["a", "b"], "gpus": [1, 2], "layouts": ["1g.5gb:7", None]})
    >>> found = nodes_from_inventory(table, load_gpu_model("A100-40GB"), inferred=False)
    >>> found.names, found.layouts
    (('b', 'a'), (('gpu', 'gpu'), ('1g.5gb:7',)))
    """
    stated = inventory["layouts"] if "layouts" in inventory.columns else [None] * inventory.height
    nodes = [
        (str(name), int(gpus), layouts_of_node(int(gpus), text, gpu_model))
        for name, gpus, text in zip(inventory["node"], inventory["gpus"], stated, strict=True)
    ]
    nodes.sort(key=lambda node: (-node[1], -node[2].count(FULL_GPU), node[0]))
    names, gpus, layouts = (tuple(part) for part in zip(*nodes, strict=True)) if nodes else ((), (), ())
    shared = inventory.filter(pl.col("shares").is_not_null())["node"] if "shares" in inventory.columns else ()
    remark = f"{examples(sorted(shared))}: jobs share its GPUs, so no GPU of it is released."
    remarks = (remark,) if len(shared) else ()
    return TodaysNodes(
        names, gpus, layouts, inferred, INFERRED_NODE_NAME not in names, remarks, shared=frozenset(shared)
    )


def describe_smaller_nodes(nodes: TodaysNodes) -> tuple[str, ...]:
    """Describe nodes with fewer observed GPUs than most nodes with names like theirs.

    Examples
    --------
    >>> sizes = (8, 8, 8, 5)
    >>> nodes = TodaysNodes(("g1", "g2", "g3", "g4"), sizes, tuple(("gpu",) * n for n in sizes), True, True)
    >>> describe_smaller_nodes(nodes)
    ("Jobs were allocated at most 5 GPUs of 'g4', and 8 of most nodes with names like it: there may be more.",)
    """
    nodes_by_pattern: dict[str, list[int]] = {}
    for position, name in enumerate(nodes.names):
        nodes_by_pattern.setdefault(DIGITS_PATTERN.sub("#", name), []).append(position)
    remarks = []
    for positions in nodes_by_pattern.values():
        size, node_count = Counter(nodes.gpus[position] for position in positions).most_common(1)[0]
        small = [position for position in positions if nodes.gpus[position] < size]
        if small and 2 * node_count > len(positions):
            named = examples(sorted(nodes.names[position] for position in small))
            peak_gpus, pronoun = max(nodes.gpus[position] for position in small), "it" if len(small) == 1 else "them"
            remarks.append(
                f"Jobs were allocated at most {peak_gpus} GPU{'s' * (peak_gpus > 1)} of {named}, and {size} of most "
                f"nodes with names like {pronoun}: there may be more."
            )
    return tuple(remarks)


def partition_as_allocated(
    nodes: TodaysNodes, jobs: pl.DataFrame, gpu_model: GpuModel, begin: datetime, end: datetime
) -> TodaysNodes:
    """Partition the fewest GPUs that hold the instances allocated at once, where layouts are unknown.

    The last GPUs are partitioned, as in plans. Where the instances would need more GPUs than there are, all GPUs stay
    full.

    Parameters
    ----------
    nodes : TodaysNodes
        Nodes of today's fleet.
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    gpu_model : GpuModel
        Their GPU model.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    everywhere = jobs.with_columns(node_list=pl.lit("all"), gpu_model=pl.lit(gpu_model.name))
    rows = _tabulate_allocations_by_node(everywhere, begin, end)
    cut = [] if rows is None else _infer_nodes_from_parts(lambda: [rows])["all"].cut
    if not cut or len(cut) > nodes.total:
        return nodes
    texts = [FULL_GPU] * (nodes.total - len(cut)) + cut
    return replace(nodes, layouts=_split_by_node(texts, nodes.gpus))


def largest_single_node_job(jobs: pl.DataFrame) -> int:
    """Find the GPUs of the largest job on a single node; 0 where no job states its nodes."""
    if "nodes" not in jobs.columns:
        return 0
    return int(np.ceil(jobs.filter(pl.col("nodes") == 1)["gpus"].max() or 0.0))  # type: ignore[arg-type]


def describe_snapshot(jobs: pl.DataFrame, begin: datetime, end: datetime) -> str | None:
    """Describe a job list that was taken at one moment rather than recorded over time; else None."""
    last = end - HOUR
    if last <= begin:
        return None
    window = LedgerWindow(begin, end)
    allocated = jobs_with_gpus(cast_columns(jobs, Jobs, NODE_JOB_COLUMNS, source="jobs"), window)
    allocated = allocated.filter(pl.col("start_time") < end)
    running = allocated.filter(pl.col("end_time").fill_null(end) > last)
    if running.height <= SNAPSHOT_RUNNING_SHARE * allocated.height:
        return None
    spans = window.spans(allocated, "start_time", "end_time", "gpus")
    by_hour = spans.by_hour(window.hours, np.zeros(allocated.height, dtype=np.int64), 1)[0]
    usual = float(np.median(by_hour[: max((last - window.origin) // HOUR, 1)]))
    now = clip_to_window(running, last, end)
    peak_gpus = float(peak_allocated(now, "gpus")["level"].max() or 0.0)  # type: ignore[arg-type]
    if peak_gpus <= SNAPSHOT_PEAK_RATIO * usual:
        return None
    return (
        f"The job list looks like a snapshot of one moment, not a record of what ran: {running.height:,} of "
        f"{allocated.height:,} ran in the last hour, with {gpus_text(peak_gpus)} allocated, against "
        f"{gpu_figure_text(usual)} in the median hour before."
    )


def _split_by_node(texts: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Split the layouts of all GPUs (`texts`) among nodes that have `sizes` GPUs each, in order."""
    dealt = iter(texts)
    return tuple(tuple(islice(dealt, size)) for size in sizes)
