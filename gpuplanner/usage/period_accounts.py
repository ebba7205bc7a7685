"""Accounts of GPU-hours in a period: ledger, use by day, queue waits by group, and over-requested slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from gpuplanner.core.errors import GpuPlannerError, require_no_faults
from gpuplanner.core.output_column_headings import column_heading
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.stage_cache_and_data_folders import stage
from gpuplanner.core.step_functions import waiting_since
from gpuplanner.ingest.chunked_tables import LazyJobs
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.node_dump_history import split_nodes_by_layout
from gpuplanner.usage.allocated_hours import (
    ACTIVE_GPU_HOURS_COLUMN,
    FAILED_JOB_STATES,
    allocated_and_active,
    allocated_by_state,
    gpu_hours_by_node,
    requested_allocated_active,
    summarize_by_node,
)
from gpuplanner.usage.fragmentation import slice_hours
from gpuplanner.usage.gpu_hour_ledger import (
    gpu_time_ledger,
    hours_by_bucket,
    hours_by_tenant,
    reconcile_ledger,
    unused_share,
)
from gpuplanner.usage.installed_capacity import find_installed, out_of_service_gpus
from gpuplanner.usage.planning_history import history, observation_begins_at, observation_ends_at
from gpuplanner.usage.pool_occupancy_and_inferred_inventory import (
    LedgerWindow,
    installed_gpu_hours,
    jobs_with_gpus,
    match_gpu_models,
)

WEEKLY_PEAK_QUANTILE = 0.95
"""Quantile of hourly demand that stands for the peak of a week [0-1]."""
MIN_OBSERVED_HOURS_FRACTION_OF_DAY = 0.5
"""Smallest share of a day's allocated GPU-hours with telemetry for which the active GPUs of the day are stated [0-1].
"""
MAX_LEDGER_DIFFERENCE_FRACTION = 1e-6
"""Largest relative difference between the GPU-hours of a ledger and those installed [0-1]; a larger one is an error."""
LEDGER_JOB_COLUMNS = (
    "job_id", "tenant", "partition", "job_class", "tier", "submit_time", "eligible_time", "start_time", "end_time",
    "state", "gpus", "gpu_model", "profile_requested", "instances", "nodes", "node_list", "time_limit_s", "sm_activity",
    "memory_peak_gib", "quarantined", "gpus_by_memory",
)  # fmt: skip
"""Columns of ``schemas.Jobs`` that the accounts of a period read."""
_NULL_GPU_MODEL_EXPR = pl.lit(None, pl.String).alias("gpu_model")
"""Column ``gpu_model`` without values, for jobs and nodes that are one GPU pool."""


@stage
def scenario_ledger(scenario: Scenario) -> pl.DataFrame:
    """Compute the ledger of a scenario's window, over all jobs of the dataset, or of the pool that it names."""
    job_history = history(scenario)
    if scenario.pool is not None:
        # Of the ledger of all pools, so that it is the same in the table of all and in that of one.
        return job_history.fleet.hours_of(scenario_ledger(scenario.but(pool=None)))
    return dataset_ledger(job_history.trace, job_history.begin, job_history.end)


def dataset_ledger(dataset: Dataset, begin: datetime, end: datetime, nodes: pl.DataFrame | None = None) -> pl.DataFrame:
    """Compute the ledger of a dataset between two instants, over the installed GPUs.

    Parameters
    ----------
    dataset : Dataset
        Jobs, nodes and telemetry.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    nodes : polars.DataFrame, optional
        Table ``schemas.Inventory``; None: the installed GPUs of the dataset.
    """
    nodes = find_installed(dataset, begin, end).inventory if nodes is None else nodes
    return pl.concat(span.ledger for span in _ledger_spans(dataset, nodes, begin, end))


@dataclass(frozen=True, eq=False)
class _Span:
    """A part of the accounted period: its jobs, telemetry samples and ledger."""

    begin: datetime
    end: datetime
    jobs: pl.DataFrame
    samples: pl.DataFrame | None
    ledger: pl.DataFrame


def _ledger_spans(dataset: Dataset, nodes: pl.DataFrame, begin: datetime, end: datetime) -> Iterator[_Span]:
    """Yield the parts of a window, each as long as memory allows.

    Parameters
    ----------
    dataset : Dataset
        Jobs, nodes and telemetry.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    jobs_on_disk, out = dataset.lazy_jobs, dataset.tables.get("out_of_service")
    spans = jobs_on_disk.split_span(begin, end)
    tenants = None if out is None else jobs_on_disk.collect_rows(["tenant"])["tenant"].unique()
    if len(spans) > 1:  # boards are told apart in every span, or in none
        started = pl.when(pl.col("start_time").is_not_null()).then(pl.lit(begin))
        words = (
            jobs_on_disk.scan_unquarantined().select(pl.col("gpu_model").cast(pl.String), start_time=started).unique()
        )
        if match_gpu_models(words.collect(engine="streaming"), nodes)[1]["board"].has_nulls():
            jobs_on_disk = replace(jobs_on_disk, table=jobs_on_disk.table.with_columns(_NULL_GPU_MODEL_EXPR))
            nodes = nodes.with_columns(_NULL_GPU_MODEL_EXPR)
    for first, last in spans:
        jobs = jobs_on_disk.collect_between(first, last, LEDGER_JOB_COLUMNS)
        samples = dataset.samples_between(first, last)
        out_gpus = None if out is None else out_of_service_gpus(out, jobs, nodes, first, last, tenants=tenants)
        ledger = gpu_time_ledger(jobs, nodes, start=first, end=last, samples=samples, out_of_service=out_gpus)
        installed = installed_gpu_hours(nodes, first, last)
        balance = reconcile_ledger(ledger, installed, tolerance=MAX_LEDGER_DIFFERENCE_FRACTION)
        if not balance["balanced"]:
            text = "{ledger_gpu_hours:,.2f} GPU-hours booked, {installed_gpu_hours:,.2f} installed"
            require_no_faults("ledger", [text.format(**balance)])
        yield _Span(first, last, jobs, samples, ledger)


def rightsizing_table(known_jobs: pl.DataFrame, sizes: pl.DataFrame) -> pl.DataFrame:
    """Tabulate ``jobs``, ``gpu_hours`` and ``with_evidence`` (jobs whose use is known) by requested and needed profile.

    `sizes` is the table of :func:`gpuplanner.usage.rightsizing.rightsize` for `known_jobs`, in the same order.
    """
    hours = (pl.col("gpus") * pl.col("run_s")).sum() / 3600.0
    return (
        sizes.with_columns(known_jobs["gpus"], known_jobs["run_s"])
        .group_by("profile_requested", "profile_needed")
        .agg(jobs=pl.len(), gpu_hours=hours, with_evidence=pl.col("is_sized").sum())
        .sort("jobs", "profile_requested", "profile_needed", descending=[True, False, False])
    )


@stage
def scenario_use(scenario: Scenario) -> pl.DataFrame:
    """Tabulate mean requested, allocated and active GPUs by local day of the window, see :func:`use_by_day`."""
    job_history = history(scenario)
    return use_by_day(job_history.trace, LedgerWindow(job_history.begin, job_history.end), tz=scenario.tz)


def use_by_day(dataset: Dataset, window: LedgerWindow, *, tz: str) -> pl.DataFrame:
    """Tabulate ``day, requested_gpus, allocated_gpus, active_gpus``: mean GPUs by local day.

    Requested GPUs count from eligibility to the end of each job, allocated GPUs from its start. Active GPUs are
    allocated GPUs times mean SM activity of the job, from its record or from telemetry. GPU-hours without telemetry
    count as those with; a day with telemetry of less than half its allocated GPU-hours has no active GPUs.
    """
    columns = ("job_id", "submit_time", "eligible_time", "start_time", "end_time", "state", "gpus", "sm_activity")
    jobs = jobs_with_gpus(dataset.jobs.select(columns), window)
    if dataset.samples is not None:
        sampled = (
            dataset.samples.drop_nulls("job_id")
            .group_by("job_id", maintain_order=True)
            .agg(seen=pl.col("sm_activity").mean())
        )
        jobs = jobs.join(sampled, on="job_id", how="left", maintain_order="left")
        jobs = jobs.with_columns(pl.col("sm_activity").fill_null(pl.col("seen")))
    allocated = jobs.filter(pl.col("start_time").is_not_null())
    measured = allocated.filter(pl.col("sm_activity").is_not_null())
    working = measured.with_columns(working=pl.col("gpus") * pl.col("sm_activity"))
    parts = {
        "requested_gpus": window.spans(jobs.with_columns(since=waiting_since()), "since", "end_time", "gpus"),
        "allocated_gpus": window.spans(allocated, "start_time", "end_time", "gpus"),
        "seen": window.spans(measured, "start_time", "end_time", "gpus"),
        "working": window.spans(working, "start_time", "end_time", "working"),
    }
    one_group = {name: np.zeros(len(spans.gpus), np.int64) for name, spans in parts.items()}
    hours = pl.DataFrame({name: spans.by_hour(window.hours, one_group[name], 1)[0] for name, spans in parts.items()})
    start = pl.lit(window.origin).dt.convert_time_zone(tz)
    day = (start + pl.duration(hours=pl.int_range(pl.len()))).dt.date()
    days = hours.group_by(day=day, maintain_order=True).agg(pl.all().mean())
    least_seen = MIN_OBSERVED_HOURS_FRACTION_OF_DAY * pl.col("allocated_gpus")
    is_measured_day = (pl.col("seen") > 0) & (pl.col("seen") >= least_seen)
    active = pl.when(is_measured_day).then(pl.col("allocated_gpus") * pl.col("working") / pl.col("seen"))
    return days.select("day", "requested_gpus", "allocated_gpus", active_gpus=active)


@dataclass(frozen=True)
class ExcludedJobs:
    """Number of quarantined jobs, which no figure counts, and their stated GPU-hours [GPU h]."""

    jobs: int
    gpu_hours: float


@dataclass(frozen=True)
class JobFacts:
    """Facts about the jobs of a dataset: numbers of jobs and tenants, and, where run times are known, the fleet.

    ``unsuccessful_gpu_hours`` were allocated to attempts that did not complete [GPU h]; ``unused_share`` is the share
    of the installed GPU-hours that did no work [0-1], None without telemetry.
    """

    jobs: int
    quarantined: ExcludedJobs | None
    tenants: int
    installed_gpu_hours: float | None = None
    unused_share: float | None = None
    installed_gpus: float | None = None
    fleet: str | None = None
    boards: str | None = None
    unsuccessful_gpu_hours: float | None = None


@dataclass(frozen=True, eq=False)
class JobDescription:
    """Description of the jobs of a dataset: facts, tables by title, and the GPU-hour ledger."""

    facts: JobFacts
    tables: Mapping[str, pl.DataFrame]
    hours: pl.DataFrame | None = None


def describe_jobs(dataset: Dataset, *, nodes: bool = False) -> JobDescription:
    """Describe the jobs of a dataset: facts, tables by title (with `nodes` also by node), and the GPU-hour ledger."""
    begin, end = observation_begins_at(dataset), observation_ends_at(dataset)
    jobs, stated = dataset.lazy_jobs, dataset.source_facts
    left_out = ExcludedJobs(stated.rows_quarantined, stated.quarantined_gpu_hours)
    height, tenants = jobs.scan_unquarantined(["tenant"]).select(pl.len(), pl.col("tenant").n_unique()).collect().row(0)
    facts = JobFacts(height, left_out if left_out.jobs else None, tenants)
    classes = _job_class_table(jobs)
    if end <= begin:
        return JobDescription(facts, classes)
    capacity = find_installed(dataset, begin, end)
    ledgers, activity, on_nodes = [], [], []
    for ledger_span in _ledger_spans(dataset, capacity.inventory, begin, end):
        span = {"start": ledger_span.begin, "end": ledger_span.end}
        ledgers.append(ledger_span.ledger)
        activity.append(_activity_by_group(ledger_span.jobs, ledger_span.samples, **span))
        if nodes:
            on_nodes.append(gpu_hours_by_node(ledger_span.jobs, capacity.inventory, **span))
    hours = pl.concat(ledgers)
    activity_sums = pl.concat(activity).group_by(*JOB_COLUMN_BY_GROUPING, maintain_order=True).agg(pl.all().sum())
    by_state = activity_sums.group_by("tenant").agg(pl.selectors.numeric().sum()).sort("tenant")
    requested = requested_allocated_active(jobs, start=begin, end=end)
    by_end_state = allocated_by_state(jobs, start=begin, end=end)
    groups = hours_by_group(jobs, LedgerWindow(begin, end))
    for word, table in groups.items():
        idle = pl.sum_horizontal(pl.selectors.starts_with("idle"))
        measured = activity_sums.group_by(word, maintain_order=True).agg(pl.col("used").sum(), idle=idle.sum())
        used = pl.when(pl.col("used") + pl.col("idle") > 0).then(pl.col("used") / (pl.col("used") + pl.col("idle")))
        groups[word] = table.join(measured.select(word, used_fraction=used), on=word, how="left", maintain_order="left")
    is_measured = hours.filter(pl.col("bucket").is_in(["used", "allocated_idle"]))["gpu_hours"].sum() > 0
    all_facts = replace(
        facts,
        installed_gpu_hours=float(hours["gpu_hours"].sum()),
        unused_share=unused_share(hours)["unused"] if is_measured else None,
        installed_gpus=capacity.gpus,
        fleet=capacity.origin,
        boards=capacity.models_text,
        unsuccessful_gpu_hours=float(by_end_state.filter("lost")["gpu_hours"].sum()),
    )
    tables = {
        "ledger": hours_by_bucket(hours),
        **_slice_table(jobs, split_nodes_by_layout(capacity.inventory, dataset.tables.get("node_dumps")), begin, end),
        **classes,
        **{f"allocated GPU-hours and queue waits by {column_heading(word)}": table for word, table in groups.items()},
        "GPU-hours by team": hours_by_tenant(hours),
        **({"GPU-hours by node": summarize_by_node(pl.concat(on_nodes))} if nodes else {}),
        "GPU-hours by time limit, allocated and active": _replace_active_hours(requested, by_state),
        "GPU-hours by how attempts ended": by_end_state.group_by("state", pl.col("lost").alias("unsuccessful"))
        .agg(pl.col("attempts", "gpu_hours").sum())
        .sort("gpu_hours", "state", descending=[True, False]),
        "allocated GPU-hours by observed activity": by_state.drop(ACTIVE_GPU_HOURS_COLUMN),
    }
    return JobDescription(all_facts, tables, hours)


def _replace_active_hours(requested: pl.DataFrame, by_state: pl.DataFrame) -> pl.DataFrame:
    """Replace active GPU-hours from job records, by tenant, by those from records and telemetry (`by_state`)."""
    observed = pl.sum_horizontal(pl.exclude("tenant", ACTIVE_GPU_HOURS_COLUMN, "no_telemetry"))
    measured = by_state.select("tenant", ACTIVE_GPU_HOURS_COLUMN, observed=observed)
    active = pl.when(pl.col("observed") > 0).then(ACTIVE_GPU_HOURS_COLUMN)
    share = (pl.col("observed") / pl.col("allocated_gpu_hours")).clip(upper_bound=1.0)
    return (
        requested.join(measured, on="tenant", how="left", maintain_order="left")
        .with_columns(sm_active_gpu_hours=active, with_activity_share=share.fill_null(0.0))
        .drop(ACTIVE_GPU_HOURS_COLUMN, "observed")
    )


def _activity_by_group(
    jobs: pl.DataFrame, samples: pl.DataFrame | None, *, start: datetime, end: datetime
) -> pl.DataFrame:
    """Sum the allocated GPU-hours by activity for each combination of :data:`JOB_COLUMN_BY_GROUPING`.

    Parameters
    ----------
    jobs, samples, start, end
        As for :func:`gpuplanner.usage.allocated_hours.allocated_and_active`.
    """
    words = list(JOB_COLUMN_BY_GROUPING)
    named = jobs.select(_group_label(word) for word in words)
    keys = named.unique(maintain_order=True).with_row_index("key").with_columns(pl.col("key").cast(pl.String))
    numbers = named.join(keys, on=words, how="left", maintain_order="left")["key"]
    activity = allocated_and_active(jobs.with_columns(tenant=numbers), samples, start=start, end=end)
    return keys.join(activity.rename({"tenant": "key"}), on="key", maintain_order="left").drop("key")


JOB_COLUMN_BY_GROUPING = {
    "tenant": "tenant",
    "partition": "partition",
    "board": "gpu_model",
    "profile": "profile_requested",
    "job_class": "job_class",
    "tier": "tier",
}
"""Groupings by which jobs are tabulated, and the column of ``schemas.Jobs`` of each."""
FULL_GPU_LABEL = "full GPU"
"""Name of the group of jobs without a MIG profile."""
UNNAMED_GROUP_LABEL = "not named"
"""Name of the group of jobs without a value in the grouping column."""
_WAIT_QUANTILES = (0.5, 0.95, 0.99)
"""Quantiles of the queue wait that are tabulated [0-1]."""
_RUN_S_EXPR = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds()
"""Run time of a job, from start to end [s]; null while it runs."""
_WAIT_S_EXPR = (pl.col("start_time") - waiting_since()).dt.total_seconds()
"""Queue wait of a job, from eligibility to start [s]."""


def _group_label(word: str) -> pl.Expr:
    """Build the name of a job's group in the grouping `word`, a key of :data:`JOB_COLUMN_BY_GROUPING`."""
    return pl.col(JOB_COLUMN_BY_GROUPING[word]).cast(pl.String).fill_null(
        FULL_GPU_LABEL if word == "profile" else UNNAMED_GROUP_LABEL
    ).alias(word)  # fmt: skip


def hours_by_group(jobs: LazyJobs, window: LedgerWindow) -> dict[str, pl.DataFrame]:
    """Sum GPU-hours, run times and waits by tenant, partition, GPU model, profile, class and tier.

    Each table has one row for each group, most GPU-hours first: ``jobs``, ``gpu_hours``, ``unsuccessful_gpu_hours`` of
    attempts that did not complete, ``median_run_h`` and ``p95_run_h`` of ended attempts in the window, and the 50 %,
    95 % and 99 % quantiles of the wait that was observed [min], null where the source records no waits. The GPU-hours
    of every table sum to the allocation of all jobs.
    """
    has_started, gpu_hours = pl.col("start_time").is_not_null(), window.overlap_h("start_time", "end_time")
    lost = pl.col("state").cast(pl.String).is_in(FAILED_JOB_STATES)
    gpu_hours = pl.when(has_started).then(gpu_hours * pl.col("gpus")).otherwise(0.0)
    sums = {"jobs": pl.len(), "gpu_hours": gpu_hours.sum(), "unsuccessful_gpu_hours": gpu_hours.filter(lost).sum()}
    columns = jobs.table.collect_schema()
    words = {word: _group_label(word) for word, column in JOB_COLUMN_BY_GROUPING.items() if column in columns}
    parts = (jobs_with_gpus(part, window) for part in jobs.iterate_chunks(LEDGER_JOB_COLUMNS))
    sums_by_word = _sum_by_group(parts, words, sums, {"wait_s": _WAIT_S_EXPR, "run_s": _RUN_S_EXPR})
    tables = {}
    for word, (table, values) in sums_by_word.items():
        if table[word].to_list() == [FULL_GPU_LABEL if word == "profile" else UNNAMED_GROUP_LABEL]:
            continue
        groups = _drop_unrecorded_waits(values["wait_s"]).group_by(word, maintain_order=True)
        waits = groups.agg(
            (_order_statistic(quantile) / 60.0).alias(f"wait_minutes_p{100 * quantile:.0f}")
            for quantile in _WAIT_QUANTILES
        )
        runs = (
            values["run_s"]
            .group_by(word, maintain_order=True)
            .agg(median_run_h=_weighted_quantile(0.5) / 3600, p95_run_h=_weighted_quantile(0.95) / 3600)
        )
        table = table.join(runs, on=word, how="left")
        tables[word] = table.join(waits, on=word, how="left").sort("gpu_hours", word, descending=[True, False])
    return tables


GroupSums = dict[str, tuple[pl.DataFrame, dict[str, pl.DataFrame]]]
"""Result of :func:`_sum_by_group` by grouping: the table of sums, and for each counted value its table of counts."""


def _sum_by_group(
    parts: Iterable[pl.DataFrame],
    words: Mapping[str, pl.Expr],
    sums: Mapping[str, pl.Expr],
    values: Mapping[str, pl.Expr],
) -> GroupSums:
    """Sum job columns by each grouping, and count how often each value occurs in a group, in ascending order.

    Parameters
    ----------
    parts : iterable of polars.DataFrame
        Parts of the jobs.
    words : mapping of str to polars.Expr
        Groupings by name.
    sums : mapping of str to polars.Expr
        Sums by name.
    values : mapping of str to polars.Expr
        Values that are counted, by name.
    """
    summed: dict[str, list[pl.DataFrame]] = {word: [] for word in words}
    counted: dict[tuple[str, str], pl.DataFrame] = {}
    for part in parts:
        for word, group in words.items():
            summed[word].append(part.group_by(group.alias(word), maintain_order=True).agg(**sums))
            for name, value in values.items():
                both = part.select(group.alias(word), value=value).drop_nulls("value")
                counts = both.group_by(word, "value", maintain_order=True).agg(n=pl.len())
                before = counted.get((word, name), counts.clear())
                by_value = pl.concat([before, counts]).group_by(word, "value", maintain_order=True)
                counted[word, name] = by_value.agg(pl.col("n").sum())
    return {
        word: (
            pl.concat(parts_of_word).group_by(word, maintain_order=True).agg(pl.all().sum()),
            {name: counted[word, name].sort("value") for name in values},
        )
        for word, parts_of_word in summed.items()
    }


def _weighted_quantile(share: float, rounding: str = "round") -> pl.Expr:
    """Build the quantile `share` [0-1] of the ascending column ``value``, weighted by the counts ``n``.

    `rounding` of the position of the quantile is ``"round"``, ``"floor"`` or ``"ceil"``.
    """
    position = share * (pl.col("n").sum() - 1)
    position = (position + 0.5).floor() if rounding == "round" else getattr(position, rounding)()
    return pl.col("value").filter(pl.col("n").cum_sum() > position).first()


def _order_statistic(share: float) -> pl.Expr:
    """Build the smallest of the ascending column ``value``, weighted by ``n``, that a share of all does not exceed."""
    return pl.col("value").filter(pl.col("n").cum_sum() >= share * pl.col("n").sum() - 1e-9).first()


def _drop_unrecorded_waits(waits: pl.DataFrame) -> pl.DataFrame:
    """Drop groups whose waits are all zero: sources without start times repeat the submission as start."""
    return waits.filter((pl.col("value") > 0).any())


def _slice_table(jobs: LazyJobs, nodes: pl.DataFrame, begin: datetime, end: datetime) -> dict[str, pl.DataFrame]:
    """Tabulate hours of installed MIG slices by state, as a table by title; empty unless nodes state layouts.

    Parameters
    ----------
    jobs : LazyJobs
        Jobs on disk.
    nodes : polars.DataFrame
        Table ``schemas.Inventory``.
    begin : datetime
        Begin of the window.
    end : datetime
        End of the window.
    """
    if "layouts" not in nodes.columns or nodes["layouts"].null_count() == nodes.height:
        return {}
    try:
        title = "slices of MIG instances by state, and of all GPUs with MIG disabled"
        return {title: slice_hours(jobs, nodes, start=begin, end=end)}
    except GpuPlannerError as error:  # the layouts, as they are stated, do not hold what jobs held
        return {"slices, not reconciled": pl.DataFrame({"why": [str(error)]})}


def _job_class_table(jobs: LazyJobs) -> dict[str, pl.DataFrame]:
    """Tabulate jobs by class, or by tenant where the source names no classes."""
    sums = {"jobs": pl.len(), "failed": (pl.col("state") == "FAILED").sum()}
    values = {"gpus": pl.col("gpus"), "run_s": _RUN_S_EXPR, "wait_s": _WAIT_S_EXPR}
    classed = jobs.scan_unquarantined(["job_class"]).select(pl.col("job_class").is_not_null().any()).collect().item()
    by = "job_class" if classed else "tenant"
    table, values_by_name = _sum_by_group(
        jobs.iterate_chunks(LEDGER_JOB_COLUMNS), {by: pl.col(by).cast(pl.String)}, sums, values
    )[by]
    middle = (_weighted_quantile(0.5, "floor") + _weighted_quantile(0.5, "ceil")) / 2
    mean = (pl.col("value") * pl.col("n")).sum() / pl.col("n").sum() / 3600
    statistics = (
        values_by_name["gpus"].group_by(by, maintain_order=True).agg(median_gpus=middle),
        values_by_name["run_s"]
        .group_by(by, maintain_order=True)
        .agg(median_run_h=middle / 3600, p95_run_h=_weighted_quantile(0.95) / 3600),
        _drop_unrecorded_waits(values_by_name["wait_s"]).group_by(by, maintain_order=True).agg(mean_wait_h=mean),
    )
    for statistic in statistics:
        table = table.join(statistic, on=by, how="left", nulls_equal=True)
    failed = pl.col("failed") / pl.col("jobs")
    classes = table.drop("failed").with_columns(table.select(failed_fraction=failed))
    return {f"jobs by {column_heading(by)}": classes.sort("jobs", by, descending=[True, False])}
