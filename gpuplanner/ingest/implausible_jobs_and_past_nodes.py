"""Quarantine of jobs that contradict the others, and nodes of the past that only jobs prove.

A row that is a valid job can still distort every sum: a submission in another century stretches the observation,
100,000 GPUs raise the inferred fleet, two jobs on the same GPUs exceed what was installed. Such a job gets the rule
that it broke in column ``quarantined``, is left out of all figures, and the quality report lists it with its GPU-hours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import TraceFormatError, examples
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.step_functions import has_unknown_end
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR, count_text
from gpuplanner.hardware.catalog import MAX_CATALOG_GPUS_PER_NODE
from gpuplanner.ingest.chunked_tables import ChunkedTable
from gpuplanner.ingest.dataset import gpu_hours
from gpuplanner.ingest.gpu_model_resolution_and_node_lists import expand_unique_node_lists, possible_models
from gpuplanner.ingest.quality_report import RUN_S_EXPR, Finding, source_finding

MIN_ISOLATION_TIME = timedelta(days=365)
"""Distance in time to all other jobs from which a few jobs are quarantined."""
MAX_OUTLIER_JOBS = 3
"""Largest number of isolated jobs that are quarantined; a larger group is separated by a gap of the record."""
MAX_OUTLIER_JOB_FRACTION = 0.01
"""Largest share of the jobs that are quarantined as isolated, if that is more than :data:`MAX_OUTLIER_JOBS` [0-1]."""
MIN_OTHER_JOBS = 10
"""Smallest number of other jobs from which it is inferred whether the time or size of a job is plausible."""
MIN_HUGE_JOB_GPUS = 1000.0
"""Number of GPUs from which the size of a job is compared with the peak of all others [GPUs]."""
MAX_GPUS_PER_OTHERS_PEAK = 10.0
"""Largest plausible request, as a multiple of the peak of GPUs allocated to all other jobs."""
GPU_COUNT_TOLERANCE_GPUS = 1e-6
"""Rounding tolerance of GPU counts [GPUs]."""
CLOCK_TOLERANCE_US = 60_000_000
"""Overlap of jobs on one node that differing clocks explain: one minute [us]."""

FAR_AWAY_TIME_REASON = "more than a year away from all other jobs"
"""Quarantine reason of a job whose times are :data:`MIN_ISOLATION_TIME` or more from those of all others."""
IMPLAUSIBLE_GPUS_REASON = f"more than {MAX_GPUS_PER_OTHERS_PEAK:g} times the peak of GPUs allocated to all other jobs"
"""Quarantine reason of a job with implausibly many GPUs."""
EXCEEDS_INVENTORY_REASON = "requests more GPUs than the inventory has"
"""Quarantine reason of a job that requests more GPUs than the inventory has."""
FULL_NODE_REASON = "started on a node whose GPUs were allocated to other jobs"
"""Quarantine reason of a job that started on a node whose GPUs were allocated to other jobs."""
FULL_POOL_REASON = "started when other jobs were allocated all GPUs of the inventory"
"""Quarantine reason of a job that started when all GPUs of its model, or of the inventory, were allocated."""
QUARANTINE_REASONS = (
    FAR_AWAY_TIME_REASON,
    IMPLAUSIBLE_GPUS_REASON,
    EXCEEDS_INVENTORY_REASON,
    FULL_NODE_REASON,
    FULL_POOL_REASON,
)
"""Reasons for quarantine; the first rule that a job breaks is named. Of several jobs that were allocated the same
GPUs,
those that started last break the rule.
"""

QUARANTINE_PREFIX = "quarantined: "
"""Prefix of the findings on quarantined jobs in the quality report."""

_NO_END_US = np.iinfo(np.int64).max
"""Time that stands for the missing end of a running job, later than any other [us]."""


def mark_quarantine(jobs: pl.DataFrame, inventory: pl.DataFrame | None = None) -> pl.DataFrame:
    """Mark jobs that are implausible next to the others in column ``quarantined``.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 8.0], "submit_time": day, "start_time": [day, day + timedelta(hours=1)],
    ...     "end_time": day + timedelta(hours=2), "state": "COMPLETED", "gpu_model": None, "node_list": "n1"})
    >>> nodes = {"node": ["n1"], "gpus": [8], "gpu_model": None, "installed": None, "retired": None}
    >>> mark_quarantine(jobs, pl.DataFrame(nodes))["quarantined"].to_list()
    [None, 'started on a node whose GPUs were allocated to other jobs']
    """
    rule = pl.Series("quarantined", [None], pl.String).new_from_index(0, jobs.height)
    for rule_name, broken_rows in _find_rule_breakers(jobs.drop("row", strict=False).with_row_index("row"), inventory):
        rule = rule.scatter(broken_rows, rule_name) if len(broken_rows) else rule
    return jobs.with_columns(rule)


JOB_COLUMNS_READ_BY_RULES = ("gpus", "submit_time", "start_time", "end_time", "state", "gpu_model", "node_list")
"""Columns of jobs that the quarantine rules read."""


def find_quarantined_jobs(job_table: ChunkedTable, inventory: pl.DataFrame | None) -> pl.DataFrame:
    """Find the quarantined jobs of a chunked table: columns ``place`` (row number) and ``quarantined`` (reason)."""
    days, has_huge_jobs = set[int](), False
    for chunk in job_table.tables(JOB_COLUMNS_READ_BY_RULES[:4]):
        instants = pl.max_horizontal("submit_time", "start_time", "end_time")
        for instant in (pl.col("submit_time"), instants):
            days.update(chunk.select(instant.dt.epoch("d").unique()).to_series().drop_nulls())
        has_huge_jobs |= bool((chunk["gpus"] > MIN_HUGE_JOB_GPUS).any())
    longest_gap_days = max(
        (later_day - earlier_day for earlier_day, later_day in itertools.pairwise(sorted(days))), default=0
    )
    if inventory is None and not has_huge_jobs and longest_gap_days < MIN_ISOLATION_TIME.days:
        return pl.DataFrame(schema={"place": pl.UInt32, "quarantined": pl.String})
    all_jobs = pl.concat(job_table.tables(["place", *JOB_COLUMNS_READ_BY_RULES]))
    return mark_quarantine(all_jobs, inventory).select("place", "quarantined").drop_nulls()


NODE_INFERENCE_COLUMNS = (
    "gpus", "node_list", "gpu_model", "profile_requested", "instances", "start_time", "end_time", "state",
    "quarantined",
)  # fmt: skip
"""Columns of jobs from which past nodes are inferred."""
OTHER_MIG_LAYOUT_PATTERN = "; no GPU (?:has MIG disabled|has such an instance) today$"
"""End of the findings on jobs whose MIG instances or full GPUs no GPU of their model offers today."""


def infer_node_sizes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> dict[str, int]:
    """Infer the GPUs of nodes on which jobs were allocated more GPUs than the node list has.

    A GPU that fell off the bus, or a node that was replaced, is missing in today's list but not in its past. The size
    of a server is that of a node with a similar name, or the next power of two.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [8.0, 9.0], "node_list": ["n1", "n2"], "state": "COMPLETED",
    ...     "start_time": day, "end_time": day + timedelta(hours=1)})
    >>> infer_node_sizes(jobs, pl.DataFrame({"node": ["n1", "n2"], "gpus": [7, 8]}))
    {'n1': 8}
    """
    name = pl.col("node").str.replace_all(r"\d+", "#")
    powers = {i: 1 << (i - 1).bit_length() for i in range(1, MAX_CATALOG_GPUS_PER_NODE)}
    next_power = pl.col("gpus").cast(pl.Int64).replace_strict(powers, default=0)
    max_gpus = pl.max_horizontal(pl.col("gpus").max().over(name), next_power)
    small_nodes = inventory.select("node", room="gpus", most=max_gpus).filter(pl.col("most") > pl.col("room"))
    started_jobs = _select_started_jobs(jobs).rename({"node_list": "node"})
    allocations = started_jobs.join(small_nodes, on="node")
    allocations = allocations.filter(pl.col("gpus") <= pl.col("most") + GPU_COUNT_TOLERANCE_GPUS)
    peaks = _peak_gpus_by_node(allocations.with_columns(least="gpus")).filter(pl.col("peak") > pl.col("room"))
    return dict(peaks.join(small_nodes, on="node").select("node", pl.min_horizontal("peak", "most")).iter_rows())


def _peak_gpus_by_node(allocations: pl.DataFrame) -> pl.DataFrame:
    """Compute the peak of allocated GPUs of each node: ``node``, ``room`` (its listed GPUs) and ``peak`` [GPUs]."""
    begin = _to_microseconds("start_time")
    until = pl.max_horizontal(_to_microseconds("end_time") - CLOCK_TOLERANCE_US, begin + 1)
    levels = _allocated_levels(allocations.with_columns(begin=begin, until=until))
    peak_gpus = (pl.col("level").max() - GPU_COUNT_TOLERANCE_GPUS).ceil().cast(pl.Int64)
    return levels.group_by("node", "room").agg(peak=peak_gpus).sort("node")


def _select_started_jobs(jobs: pl.DataFrame, gpus: pl.Expr | None = None) -> pl.DataFrame:
    """Select the jobs that were allocated GPUs from a known start to a known end, or still run, numbered by ``row``.

    `gpus` is the expression for the GPUs of a job; by default column ``gpus``.
    """
    rows = jobs if "row" in jobs.columns else jobs.with_row_index("row")
    gpus = pl.col("gpus") if gpus is None else gpus
    return rows.filter(gpus > 0, pl.col("start_time").is_not_null(), ~has_unknown_end())


def _spread_jobs_over_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """List each started job once for every node that it names.

    ``room`` is the number of GPUs that the inventory lists for the node, ``all`` that of all nodes of the job,
    ``absent`` the number of its nodes that the inventory lacks. ``own`` is the number of GPUs of the job on these
    unlisted nodes together: an even share, or all that the listed nodes cannot hold; 0 where no server has that many.
    """
    nodes = inventory.group_by("node").agg(room=pl.col("gpus").sum().cast(pl.Float64))
    # Lists that cannot be read say no place.
    jobs_by_node = expand_unique_node_lists(jobs).explode("node", empty_as_null=False).drop_nulls("node")
    listed_gpus = jobs_by_node.join(nodes, on="node", how="left", maintain_order="left").with_columns(
        all=pl.col("room").sum().over("node_list"),
        absent=pl.col("room").is_null().sum().over("node_list").cast(pl.Int64),
        many=pl.len().over("node_list"),
    )
    even_share, absent = pl.col("gpus") * pl.col("absent") / pl.col("many"), pl.col("absent")
    unlisted_gpus = pl.max_horizontal(even_share, pl.col("gpus") - pl.col("all"))
    is_server = (absent > 0) & (unlisted_gpus <= absent * MAX_CATALOG_GPUS_PER_NODE)
    # A job of which the number of GPUs is not known was on its nodes, too.
    jobs_on_nodes = _select_started_jobs(jobs, pl.col("gpus").fill_null(1)).join(
        listed_gpus, on="node_list", maintain_order="left"
    )
    return jobs_on_nodes.with_columns(own=pl.when(is_server).then(unlisted_gpus).otherwise(0.0))


def find_unlisted_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Find nodes that jobs name and the inventory lacks, with their peak GPUs and first and last use.

    Empty where jobs name no node of the inventory: then it uses other names, or is of another cluster.
    """
    jobs_on_nodes = _spread_jobs_over_nodes(jobs, inventory)
    if jobs_on_nodes["room"].null_count() == jobs_on_nodes.height:
        jobs_on_nodes = jobs_on_nodes.clear()
    on_unlisted = jobs_on_nodes.filter(pl.col("room").is_null(), pl.col("own") > 0)
    on_unlisted = on_unlisted.with_columns(room=0.0, least=pl.col("own") / pl.col("absent"))
    model = pl.col("gpu_model").drop_nulls().unique()
    node_spans = on_unlisted.group_by("node").agg(
        gpu_model=pl.when(model.len() == 1).then(model.first()),
        installed=pl.col("start_time").min(),
        # A node of a job that runs is there.
        retired=pl.when(pl.col("end_time").is_not_null().all()).then(pl.col("end_time").max()),
    )
    return _peak_gpus_by_node(on_unlisted).join(node_spans, on="node").sort("node")


def add_past_nodes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Extend the inventory by what jobs prove of the past: unlisted nodes, more GPUs on a node, longer times of use."""
    sizes, unlisted = infer_node_sizes(jobs, inventory), find_unlisted_nodes(jobs, inventory)
    has_dates = inventory["installed"].null_count() + inventory["retired"].null_count() < 2 * inventory.height
    if has_dates:
        inventory = _extend_node_spans(jobs, inventory)
    if sizes:
        gpus = pl.col("node").replace_strict(sizes, default=None, return_dtype=inventory["gpus"].dtype)
        inventory = inventory.with_columns(gpus=pl.coalesce(gpus, "gpus"))
    if unlisted.is_empty():
        return inventory
    rows = unlisted.select("node", "gpu_model", "installed", "retired", gpus=pl.col("peak"))
    rows = rows.cast({name: inventory.schema[name] for name in rows.columns})
    return pl.concat([inventory, rows], how="diagonal").sort("node", maintain_order=True)


def _extend_node_spans(jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.DataFrame:
    """Extend the installed and retired times of nodes to their first and last job."""
    jobs_by_node = _spread_jobs_over_nodes(jobs, inventory).group_by("node")
    end = pl.col("end_time")
    observed_spans = jobs_by_node.agg(first=pl.col("start_time").min(), last=end.max(), still=end.is_null().any())
    spans = inventory.join(observed_spans, on="node", how="left", maintain_order="left")
    first = pl.min_horizontal("installed", "first")
    last = pl.max_horizontal("retired", "last")
    return spans.with_columns(
        installed=pl.when(pl.col("installed").is_not_null()).then(first),
        retired=pl.when(pl.col("retired").is_not_null() & ~pl.col("still").fill_null(value=False)).then(last),
    ).drop("first", "last", "still")


def find_past_fleet_changes(jobs: pl.DataFrame, inventory: pl.DataFrame) -> list[Finding]:
    """Report past nodes, sizes and MIG layouts that today's node list does not show.

    Jobs in quarantine are ignored, except for where they ran.
    """
    trusted_jobs = drop_quarantined(jobs)
    findings = _find_other_layouts(trusted_jobs, inventory)
    sizes = infer_node_sizes(trusted_jobs, inventory)
    if sizes:
        listed = dict(inventory.select("node", "gpus").iter_rows())
        nodes_text = examples([f"{node}: lists {listed[node]}, ran jobs on {size}" for node, size in sizes.items()])
        findings.append(source_finding("nodes: outgrown", len(sizes), nodes_text))
    jobs_on_nodes = _spread_jobs_over_nodes(jobs, inventory)
    check = "nodes: other cluster"
    if jobs_on_nodes["room"].null_count() < jobs_on_nodes.height:
        check, jobs_on_nodes = "nodes: unlisted", drop_quarantined(jobs_on_nodes)
    unlisted_jobs = jobs_on_nodes.filter(pl.col("room").is_null())
    if unlisted_jobs.is_empty():
        return findings
    names, unlisted_jobs = sorted(unlisted_jobs["node"].unique()), unlisted_jobs.unique("row")
    hours = unlisted_jobs.select((pl.col("gpus") * (RUN_S_EXPR / SECONDS_PER_HOUR)).sum()).item()
    return [*findings, source_finding(check, unlisted_jobs.height, examples(names), hours)]


def _find_other_layouts(jobs: pl.DataFrame, inventory: pl.DataFrame) -> list[Finding]:
    """Report jobs on MIG instances or full GPUs that no GPU of their model offers today."""
    full_gpu_models, layouts_by_model = set[str](), dict[str, str]()
    unknown = pl.col("mig_enabled").fill_null(value=False) & pl.col("layouts").is_null()
    known_nodes = inventory.filter(pl.col("gpus") > 0, ~unknown.any().over("gpu_model"))
    for model, layouts in known_nodes.select("gpu_model", "layouts").iter_rows():
        layout_names = str(layouts or FULL_GPU).split(";")
        full_gpu_models |= {str(model)} if FULL_GPU in layout_names else set()
        layouts_by_model[str(model)] = f"{layouts_by_model.get(str(model), '')};{layouts or ''}"
    run_gpu_hours = pl.col("gpus") * (RUN_S_EXPR / SECONDS_PER_HOUR)
    group_columns = ("gpu_model", "whole", "profile_requested")
    allocated_jobs = jobs.filter(pl.col("gpus") > 0, pl.col("gpu_model").is_in(list(layouts_by_model)))
    allocated_jobs = allocated_jobs.with_columns(whole=pl.col("instances").is_null() & (pl.col("gpus") % 1 == 0))
    allocated_jobs = (
        allocated_jobs.group_by(group_columns).agg(rows=pl.len(), hours=run_gpu_hours.sum()).sort(group_columns)
    )
    findings = []
    for model, is_full_gpu, profile, rows, hours in allocated_jobs.iter_rows():
        jobs_ask = f"{count_text(rows, 'job')} ask{'s' * (rows == 1)} for"
        if is_full_gpu and model not in full_gpu_models:
            text = f"{jobs_ask} a whole {model}; no GPU is whole today"
        elif not is_full_gpu and profile is not None and f"{profile}:" not in layouts_by_model[model]:
            text = f"{jobs_ask} {profile} of {model}; no GPU has such an instance today"
        else:
            continue
        effect = "counted in the past as it ran, and not used for today's nodes"
        findings.append(Finding(text, "warning", rows, effect, "", hours))
    return findings


def drop_quarantined(jobs: pl.DataFrame) -> pl.DataFrame:
    """Drop the jobs in quarantine; all figures are computed from the others.

    Examples
    --------
    >>> jobs = pl.DataFrame({"job_id": ["a", "b"], "quarantined": [None, FAR_AWAY_TIME_REASON]})
    >>> drop_quarantined(jobs)["job_id"].to_list()
    ['a']
    """
    if "quarantined" not in jobs.columns or jobs["quarantined"].null_count() == jobs.height:
        return jobs  # as they are, and not another table of all of them
    return jobs.filter(pl.col("quarantined").is_null())


def require_unquarantined(rules: pl.Series, n_jobs: int, source: str) -> None:
    """Refuse a list of jobs that are all in quarantine, and name the rules they broke."""
    if len(rules) < n_jobs:
        return
    got = f"{count_text(n_jobs, 'job')}, all in quarantine: {'; '.join(sorted(rules.unique()))}"
    todo = "Give the node list of the same cluster, or ingest the jobs without one into a new folder."
    raise TraceFormatError(source, "jobs that the nodes of the list can have run", got, todo)


def quarantine_findings(jobs: pl.DataFrame, until: datetime) -> list[Finding]:
    """Report the jobs in quarantine by rule, with the GPU-hours that they state."""
    quarantined = jobs.filter(pl.col("quarantined").is_not_null())
    findings = []
    for rule_name in QUARANTINE_REASONS:
        rule_jobs = quarantined.filter(quarantined=rule_name)
        if rule_jobs.is_empty():
            continue
        hours, first_job = gpu_hours(rule_jobs, until), f"job {rule_jobs['job_id'][0]}"
        effect = f"kept in the table and left out of every figure, with the {hours:,.1f} GPU-hours they state"
        findings.append(Finding(QUARANTINE_PREFIX + rule_name, "error", rule_jobs.height, effect, first_job, hours))
    return findings


def quarantine_facts(jobs: pl.DataFrame, until: datetime) -> dict[str, float]:
    """Count the jobs in quarantine and the GPU-hours that they state, for the provenance."""
    quarantined = jobs.filter(pl.col("quarantined").is_not_null())
    return {"rows_quarantined": quarantined.height, "quarantined_gpu_hours": gpu_hours(quarantined, until)}


def _find_rule_breakers(jobs: pl.DataFrame, inventory: pl.DataFrame | None) -> Iterator[tuple[str, pl.Series]]:
    """Yield each quarantine rule with the rows that break it; a row is tested only until it breaks a rule."""
    isolated = _find_isolated_jobs(jobs)
    yield FAR_AWAY_TIME_REASON, isolated
    jobs = _drop_rows(jobs, isolated)
    oversized = _find_oversized_jobs(jobs)
    yield IMPLAUSIBLE_GPUS_REASON, oversized
    jobs = _drop_rows(jobs, oversized)
    if inventory is None or not int(inventory["gpus"].sum()):
        return
    unlisted_gpus = _spread_jobs_over_nodes(jobs, inventory).group_by("row").agg(pl.col("own").first())
    if find_unlisted_nodes(jobs, inventory).is_empty():
        unlisted_gpus = unlisted_gpus.clear()
    listed = pl.col("gpus") - pl.col("own").fill_null(0.0)
    jobs = jobs.join(unlisted_gpus, on="row", how="left", maintain_order="left").with_columns(least=listed).drop("own")
    past_inventory = add_past_nodes(jobs, inventory)
    is_listed = pl.col("node").is_in(inventory["node"].implode())
    listed_nodes = past_inventory.filter(is_listed)
    fits = pl.col("least") <= int(listed_nodes["gpus"].sum()) + GPU_COUNT_TOLERANCE_GPUS
    yield EXCEEDS_INVENTORY_REASON, jobs.filter(~fits)["row"]
    started_jobs = _select_started_jobs(jobs).filter(fits).sort("start_time", "row")
    largest = pl.when(is_listed).then("gpus").otherwise(MAX_CATALOG_GPUS_PER_NODE)
    on_full_nodes = _find_jobs_on_full_nodes(
        started_jobs, past_inventory.with_columns(gpus=pl.min_horizontal("gpus", largest))
    )
    yield FULL_NODE_REASON, on_full_nodes
    yield FULL_POOL_REASON, _find_jobs_beyond_pools(_drop_rows(started_jobs, on_full_nodes), listed_nodes)


def _drop_rows(jobs: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """Drop jobs by their row numbers."""
    return jobs.filter(~pl.col("row").is_in(rows.implode())) if len(rows) else jobs


def _find_isolated_jobs(jobs: pl.DataFrame) -> pl.Series:
    """Find few jobs whose submission or last instant is a year or more from those of all others."""
    rows = jobs["row"].clear()
    for instant in (pl.col("submit_time"), pl.max_horizontal("submit_time", "start_time", "end_time")):
        ordered_instants = _drop_rows(jobs, rows).select("row", at=instant).sort("at")
        group = (ordered_instants["at"].diff() > MIN_ISOLATION_TIME).fill_null(value=False).cum_sum()
        if group.is_empty() or group[-1] == 0:
            continue
        sizes = ordered_instants.with_columns(group=group).with_columns(size=pl.len().over("group"))
        largest_group = int(sizes["size"].max())  # type: ignore[arg-type]
        max_outliers = max(MAX_OUTLIER_JOBS, int(MAX_OUTLIER_JOB_FRACTION * jobs.height))
        if largest_group >= MIN_OTHER_JOBS:
            outliers = sizes.filter(pl.col("size") <= max_outliers, pl.col("size") < largest_group)
            rows = pl.concat([rows, outliers["row"]])
    return rows


def _find_oversized_jobs(jobs: pl.DataFrame) -> pl.Series:
    """Find jobs that request many times the peak of GPUs of all others; smaller jobs are tested first."""
    huge_jobs = jobs.filter(pl.col("gpus") > MIN_HUGE_JOB_GPUS).sort("gpus", "row")
    if huge_jobs.is_empty():
        return huge_jobs["row"]
    started_jobs = _select_started_jobs(jobs).filter(pl.col("gpus") <= MIN_HUGE_JOB_GPUS)
    if started_jobs.height < MIN_OTHER_JOBS:
        return huge_jobs["row"].clear()
    peak_gpus, broken_rows = _peak_gpus(started_jobs), []
    for row, gpus in huge_jobs.select("row", "gpus").iter_rows():
        if gpus > MAX_GPUS_PER_OTHERS_PEAK * peak_gpus:
            broken_rows.append(row)
        else:
            started_jobs = pl.concat([started_jobs, _select_started_jobs(huge_jobs.filter(row=row))])
            peak_gpus = max(peak_gpus, _peak_gpus(started_jobs))
    return pl.Series("row", broken_rows, huge_jobs.schema["row"])


def _find_jobs_on_full_nodes(started_jobs: pl.DataFrame, inventory: pl.DataFrame) -> pl.Series:
    """Find jobs that started on a node whose GPUs were allocated to others; the job that started first is believed.

    A job on several nodes counts on each with the GPUs that must be there if its other nodes are full; a job that has
    more GPUs than its nodes proves nothing about them. The result has the row numbers.
    """
    jobs_on_nodes = (
        _spread_jobs_over_nodes(started_jobs, inventory)
        .with_columns(least=pl.col("gpus") - pl.col("all") + pl.col("room"))
        .filter(pl.col("absent") == 0, pl.col("gpus") <= pl.col("all") + GPU_COUNT_TOLERANCE_GPUS, pl.col("least") > 0)
        .with_columns(until=_to_microseconds("end_time") - CLOCK_TOLERANCE_US, begin=_to_microseconds("start_time"))
        .filter(pl.col("until") > pl.col("begin"))
    )
    levels = _allocated_levels(jobs_on_nodes)
    full_nodes = levels.filter(pl.col("level") > pl.col("room") + GPU_COUNT_TOLERANCE_GPUS)["node"].unique()
    jobs_on_full_nodes = jobs_on_nodes.filter(pl.col("node").is_in(full_nodes.implode()))
    broken_rows: set[int] = set()
    for node_jobs in jobs_on_full_nodes.partition_by("node", maintain_order=True):
        node_jobs = node_jobs.filter(~pl.col("row").is_in(list(broken_rows)))
        broken_rows |= set(_select_excess_rows(node_jobs, pl.Series([0]), node_jobs["room"].head(1)))
    return pl.Series("row", sorted(broken_rows), started_jobs.schema["row"])


def _find_jobs_beyond_pools(started: pl.DataFrame, inventory: pl.DataFrame) -> pl.Series:
    """Find jobs that started when all GPUs of their model, or all GPUs of the inventory, were allocated.

    GPUs are compared by pool: names that may mean the same model, and models on one node, are one pool. The result has
    the row numbers.
    """
    started = started.filter(pl.col("least") > 0)
    started = started.with_columns(begin=_to_microseconds("start_time"), until=_to_microseconds("end_time"))
    nodes = inventory.with_columns(begin=_to_microseconds("installed", 0), until=_to_microseconds("retired"))
    pools = [(started, nodes)]
    if not nodes["gpu_model"].has_nulls():
        named_models = started["gpu_model"].drop_nulls().cast(pl.String)
        pool_of = _number_model_pools([*nodes["gpu_model"].unique().sort(), *named_models.unique().sort()])
        model = pl.col("gpu_model").cast(pl.String)
        pool = model.replace_strict(pool_of, default=None, return_dtype=pl.Int64)
        all_nodes = nodes.with_columns(pool=pool)
        model_pools = [(started.filter(pool == i), all_nodes.filter(pool=i)) for i in all_nodes["pool"].unique().sort()]
        pools = [*model_pools, *pools]
    broken_rows: list[int] = []
    for pool_jobs, pool_nodes in pools:
        pool_jobs = pool_jobs.filter(~pl.col("row").is_in(broken_rows))
        gpus = pl.col("gpus").cast(pl.Float64)
        steps = pl.concat([pool_nodes.select(at="begin", change=gpus), pool_nodes.select(at="until", change=-gpus)])
        steps = steps.group_by("at").agg(pl.col("change").sum()).sort("at")
        broken_rows += _select_excess_rows(pool_jobs, steps["at"], steps["change"].cum_sum())
    return pl.Series("row", sorted(broken_rows), started.schema["row"])


def _number_model_pools(models: Iterable[str]) -> dict[str, int]:
    """Number the pools of GPU models: model → pool.

    Examples
    --------
    >>> _number_model_pools(["A100-40GB", "T4", "a100", "T4|V100", "h100"])
    {'A100-40GB': 0, 'T4': 1, 'a100': 0, 'T4|V100': 1, 'h100': 2}
    """
    pools: list[set[str]] = []
    models_by_name_pool = {model: set(possible_models(model)) for model in models}
    for models in models_by_name_pool.values():
        joined = models.union(*(pool for pool in pools if pool & models))
        pools = [*(pool for pool in pools if not pool & models), joined]
    number = {gpu_model: i for i, pool in enumerate(pools) for gpu_model in pool}
    return {model: number[min(models)] for model, models in models_by_name_pool.items()}


def _select_excess_rows(allocations: pl.DataFrame, limit_times: pl.Series, gpu_limits: pl.Series) -> list[int]:
    """Select allocations to remove, the last to start first, so that allocated GPUs never exceed those installed.

    At one instant, ends are processed first, then changes of the installed GPUs (the limit), then starts.

    Parameters
    ----------
    allocations : polars.DataFrame
        ``row``, ``begin`` and ``until`` [us], and ``least``, the GPUs that are allocated at least [GPUs].
    limit_times : polars.Series
        Instants at which the limit changes [us].
    gpu_limits : polars.Series
        Installed GPUs from each of these instants on [GPUs].

    Returns
    -------
    list of int
        Row numbers.
    """
    begin_us, end_us, gpus = (allocations[name].to_numpy() for name in ("begin", "until", "least"))
    times_us = np.concatenate([end_us, limit_times.to_numpy(), begin_us])
    kinds = np.repeat([0, 1, 2], [len(end_us), len(limit_times), len(begin_us)])
    changes = np.concatenate([-gpus, np.diff(gpu_limits.to_numpy(), prepend=0.0), gpus])
    order = np.lexsort((kinds, times_us))
    is_over = np.cumsum(np.where(kinds == 1, -changes, changes)[order]) > GPU_COUNT_TOLERANCE_GPUS
    if not is_over[times_us[order] < _NO_END_US].any():
        return []
    job_numbers = np.concatenate([np.arange(len(end_us)), np.zeros(len(limit_times), int), np.arange(len(begin_us))])
    running: list[int] = []
    ended = np.zeros(allocations.height, dtype=bool)
    removed = []
    allocated_now = 0.0
    limit_now = 0.0
    for event in order:
        job = job_numbers[event]
        if times_us[event] == _NO_END_US:
            break
        if kinds[event] == 0:
            if not ended[job]:
                allocated_now, ended[job] = allocated_now - gpus[job], True
            continue
        if kinds[event] == 1:
            limit_now += changes[event]
        else:
            allocated_now += gpus[job]
            running.append(job)
        while running and allocated_now > limit_now + GPU_COUNT_TOLERANCE_GPUS:
            last_job = running.pop()
            if not ended[last_job]:
                allocated_now, ended[last_job] = allocated_now - gpus[last_job], True
                removed.append(last_job)
    return allocations["row"].gather(removed).to_list()


def _peak_gpus(allocations: pl.DataFrame) -> float:
    """Compute the peak over time of the GPUs allocated to all jobs together [GPUs]."""
    on_one_node = allocations.with_columns(
        node=pl.lit(0), room=0.0, least="gpus", begin=_to_microseconds("start_time"), until=_to_microseconds("end_time")
    )
    return float(_allocated_levels(on_one_node)["level"].max() or 0.0)  # type: ignore[arg-type]


def _allocated_levels(allocations: pl.DataFrame) -> pl.DataFrame:
    """Compute the GPUs allocated on each node after each start and end of a job: ``node``, ``room``, ``level`` [GPUs].

    ``room`` is the number of GPUs that the inventory lists for the node, ``level`` that of the allocated ones.
    """
    instants = [
        allocations.select("node", "room", at="begin", change="least"),
        allocations.select("node", "room", at="until", change=-pl.col("least")),
    ]
    changes = pl.concat(instants).group_by("node", "room", "at").agg(pl.col("change").sum())
    return changes.sort("node", "at").select("node", "room", level=pl.col("change").cum_sum().over("node"))


def _to_microseconds(column: str, missing: int = _NO_END_US) -> pl.Expr:
    """Expression for a time column in microseconds since 1970; a missing time becomes `missing`."""
    return pl.col(column).cast(pl.Datetime("us", "UTC")).dt.timestamp("us").fill_null(missing)
