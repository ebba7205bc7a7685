"""Facts about a dataset, and how findings affect figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from gpuplanner.core.errors import ScenarioError, TraceFormatError, resolve_name
from gpuplanner.core.schema_checks import add_absent_columns
from gpuplanner.core.schemas import MIN_USED_SM_ACTIVITY
from gpuplanner.core.serialization import to_plain
from gpuplanner.core.stage_cache_and_data_folders import data_folder
from gpuplanner.ingest.bills.bill_summary import find_unknown_types, sum_costs, summarise_bill
from gpuplanner.ingest.dataset import Dataset, SourceFacts
from gpuplanner.ingest.dataset_folder import scan_samples
from gpuplanner.ingest.node_dump_history import layouts_over_time
from gpuplanner.ingest.telemetry.coverage import coverage
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import aggregate_hourly
from gpuplanner.ingest.telemetry.sample_buffer_and_reading_spans import add_sample_ends
from gpuplanner.ingest.telemetry.telemetry_join import NO_JOB, device_kind_expr, split_shared_samples
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.grouped_usage import group_ledger, require_groups
from gpuplanner.usage.job_classes import JOB_CLASSES, classify_jobs
from gpuplanner.usage.period_accounts import JobFacts, describe_jobs
from gpuplanner.usage.planning_history import load_dataset, merge_small_tenants, open_long_dataset

ALL_CLASSES_LABEL = "all"
"""Value of ``job_class`` that selects the jobs of all classes, those without a class included."""
Tables = dict[str, pl.DataFrame]
"""Tables by title, in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class Description:
    """Description of a dataset folder: its sources, facts of its jobs, and summary tables.

    - ``read``: Facts about its sources by name, such as the source, row counts and files.
    - ``jobs``: Facts of its jobs, or None without any.
    - ``tables``: The quality report and whatever the folder holds, by title, in the order in which they are shown.
    - ``hours``: GPU-hour ledger of its jobs, row by row; None without any.
    """

    read: Mapping[str, object]
    jobs: JobFacts | None
    tables: Mapping[str, pl.DataFrame]
    hours: pl.DataFrame | None

    @property
    def all_facts(self) -> dict[str, object]:
        """All facts about sources and jobs by name; facts that need the run times of jobs are absent without these."""
        if self.jobs is None:
            return dict(self.read)
        facts = {**self.read, "gpu_hours": self.gpu_hours}
        shown = ("jobs", "quarantined", "tenants") if self.hours is None else tuple(vars(self.jobs))
        return facts | {name: to_plain(getattr(self.jobs, name)) for name in shown}

    @property
    def gpu_hours(self) -> object:
        """GPU-hours allocated to jobs: within the span, as in all tables; without a ledger, as they were read."""
        if self.hours is None:
            return self.read.get("gpu_hours")
        return float(self.hours.filter(pl.col("bucket").is_in(ALLOCATED_BUCKETS))["gpu_hours"].sum())

    @property
    def figures(self) -> dict[str, object]:
        """Figures by fixed names, for scripts: GPUs, GPU-hours, share of matched telemetry, and all warnings."""
        join = self.read.get("telemetry by job")
        ledger, nodes = self.tables.get("ledger"), self.tables.get("nodes by GPU model")
        used = None
        observed = None if ledger is None else ledger.filter(pl.col("bucket").is_in(["used", "allocated_idle"]))
        if observed is not None and (observed["gpu_hours"].sum() > 0 or isinstance(join, Mapping)):
            used = float(observed.filter(bucket="used")["gpu_hours"].sum())
        if used is not None and isinstance(join, Mapping):
            used += join.get("unmatched_used_gpu_hours", 0.0)
        installed = self.all_facts.get("installed_gpus")
        if installed is None and nodes is not None:
            installed = int(nodes["gpus"].sum())
        quality = self.tables["quality"].filter(pl.col("severity").is_in(["error", "warning"]))
        warnings = []
        for row in quality.iter_rows(named=True):
            example = f" ({row['example']})" if row["example"] else ""
            text = f"{row['check']}{example}: {row['effect']}"
            warnings.append({"what": text, "count": row["rows"], "gpu_hours": row["gpu_hours"]})
        return {
            "gpu_hours": self.gpu_hours,
            "installed_gpus": installed,
            "used_gpu_hours": used,
            "telemetry": dict(join) if isinstance(join, Mapping) else {"matched_gpu_hours": None},
            "warnings": warnings,
        }

    def to_dict(self) -> dict[str, object]:
        """Convert figures, facts and tables to plain values for JSON."""
        return {**self.figures, "facts": self.all_facts, **self.tables}


def describe(folder: str, *, smallest_group: int = 0, nodes: bool = False, job_class: str | None = None) -> Description:
    """Describe a dataset folder, without planning anything.

    Parameters
    ----------
    folder : str
        Folder written by ``ingest``, or ``"sample"``.
    smallest_group : int
        Fewest people of a tenant that is shown by itself, for output that is shared; smaller ones are merged; 0: none.
    nodes : bool
        Also tabulate the GPU-hours allocated on each node.
    job_class : str, optional
        Also list the jobs of this class; :data:`ALL_CLASSES_LABEL` for all jobs with their classes.

    Returns
    -------
    Description
        Facts; tables of the quality report and of whatever the folder holds: of jobs the ledger by bucket, and all
        of its rows (``hours``), job classes, tenants; of telemetry the coverage and use by node; of every other table a
        summary of its rows.

    Raises
    ------
    TraceFormatError
        If the folder is no dataset, or damaged.
    ScenarioError
        If no job is of the class.

    Examples
    --------
    >>> found = describe("sample")
    >>> found.jobs.jobs, list(found.tables)[:2]
    (11521, ['quality', 'ledger'])
    """
    dataset = open_long_dataset(folder)
    tables: Tables = {"quality": dataset.quality}
    facts, hours = None, None
    if dataset.has_jobs:
        description = describe_jobs(merge_small_tenants(dataset, smallest_group), nodes=nodes)
        facts, hours = description.facts, description.hours
        tables |= description.tables
    if job_class is not None and dataset.has_jobs:
        tables |= jobs_of_class(load_dataset(folder), job_class)
    for name, table in dataset.tables.items():
        if name in SUMMARY_FUNCTION_BY_TABLE and not table.is_empty():
            tables |= SUMMARY_FUNCTION_BY_TABLE[name](table)
    return Description(dataset.summary(), facts, tables, hours)


def jobs_of_class(dataset: Dataset, job_class: str) -> Tables:
    """List the jobs of a class with the rule that named it, and count the jobs of each class."""
    named = classify_jobs(dataset.jobs, samples=dataset.samples)
    known_classes = [*JOB_CLASSES, *named["job_class"].drop_nulls().unique().sort().to_list(), ALL_CLASSES_LABEL]
    chosen = resolve_name(job_class, list(dict.fromkeys(known_classes)), subject="job class", error=ScenarioError)
    run_h = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / 3600
    jobs = dataset.jobs.select("tenant", "gpus", pl.col("state").cast(pl.String), "submit_time", run_h=run_h)
    listed = pl.concat([named, jobs], how="horizontal")
    counts = named.group_by("job_class", "class_source", maintain_order=True).agg(jobs=pl.len())
    return {
        "classes": counts.sort("job_class", "class_source", nulls_last=True),
        "jobs": listed if chosen == ALL_CLASSES_LABEL else listed.filter(job_class=chosen),
    }


def telemetry_by_hour(folder: str) -> pl.DataFrame:
    """Aggregate the telemetry of a folder by hour, device and job, with one day in memory at a time.

    Examples
    --------
    >>> telemetry_by_hour("sample").select("node", "gpu", "samples").head(1).rows()
    [('n03', 1, 16)]
    """
    return aggregate_hourly(scan_samples(data_folder(folder)))


def _summarize_nodes(table: pl.DataFrame) -> Tables:
    """Tabulate nodes and GPUs by GPU model, from a table ``schemas.Inventory``."""
    in_mig = pl.col("mig_enabled").fill_null(value=False)
    by_board = table.group_by("gpu_model", gpus_a_node="gpus", maintain_order=True).agg(
        nodes=pl.len(),
        gpus=pl.col("gpus").sum(),
        nodes_in_mig_mode=in_mig.sum(),
        nodes_retired=pl.col("retired").is_not_null().sum(),
    )
    ordered = by_board.sort("gpus", "gpu_model", "gpus_a_node", descending=[True, False, False])
    tables = {"nodes by GPU model": ordered}
    partitioned = table.filter(pl.col("layouts").is_not_null())
    if partitioned.height:
        layouts = partitioned.group_by("layouts", maintain_order=True).agg(
            nodes=pl.len(), gpus=pl.col("gpus").sum(), first_node=pl.col("node").min()
        )
        tables["MIG layouts of nodes"] = layouts.sort("first_node", "layouts")
    return tables


def _summarize_layout_history(table: pl.DataFrame) -> Tables:
    """Tabulate each node's layouts with the dump that shows them first; full GPUs differ from an unknown layout.

    Examples
    --------
    >>> from datetime import datetime
    >>> rows = pl.DataFrame({"node": ["n1", "n2", "n3"], "mig_enabled": [None, False, True]})
    >>> dumps = rows.with_columns(time=datetime(2026, 2, 2), layouts=pl.lit(None, pl.String))
    >>> _summarize_layout_history(dumps)["MIG layouts of nodes over time"]["layouts"].to_list()
    ['full GPUs', 'full GPUs', 'not known']
    """
    missing = pl.when("mig_enabled").then(pl.lit("not known")).otherwise(pl.lit("full GPUs"))
    return {"MIG layouts of nodes over time": layouts_over_time(table).with_columns(pl.coalesce("layouts", missing))}


def _summarize_out_of_service(table: pl.DataFrame) -> Tables:
    """Tabulate nodes whose GPUs jobs could not use: down, drained, reserved or repartitioned, and since when."""
    gpus = pl.col("gpus").cast(pl.Int64).cast(pl.String).fill_null("all of the node")
    spans = table.select("node", pl.col("bucket").cast(pl.String), "start_time", "end_time", gpus, "tenant")
    return {"nodes out of service": spans.sort("start_time", "node", "bucket")}


def _summarize_coverage(table: pl.DataFrame) -> Tables:
    """Tabulate the share of the expected GPU-hours of each node that telemetry covers."""
    share = pl.col("observed_gpu_h") / pl.col("expected_gpu_h")
    sums = pl.col("samples", "observed_gpu_h", "expected_gpu_h").sum()
    nodes = table.group_by("node", maintain_order=True).agg(pl.col("gpus").max(), sums)
    covered = nodes.with_columns(covered=pl.when(pl.col("expected_gpu_h") > 0).then(share))
    return {"coverage by node": covered.sort("covered", "node")}


def _summarize_processes(table: pl.DataFrame) -> Tables:
    """Tabulate the programs observed on GPUs: how often, on how many nodes, and their peak memory [GiB]."""
    by_program = table.group_by("command", maintain_order=True).agg(
        seen=pl.len(), nodes=pl.col("node").n_unique(), most_memory_gib=pl.col("memory_gib").max()
    )
    return {"processes by program": by_program.sort("seen", "command", descending=[True, False])}


def _summarize_charges(table: pl.DataFrame) -> Tables:
    """Tabulate a cloud bill by currency, and by month, tenant and instance type."""
    return {
        "bill by currency": sum_costs(table),
        "bill by month, tenant and instance type": summarise_bill(table),
        "instance types that are not known": find_unknown_types(table),
    }


def _summarize_occupancy(table: pl.DataFrame) -> Tables:
    """Tabulate total, allocated and pending resources of each pool (virtual cluster) over its readings."""
    by_pool = table.group_by("pool", "resource", maintain_order=True).agg(
        readings=pl.len(),
        first=pl.col("time").min(),
        last=pl.col("time").max(),
        mean_total=pl.col("total").mean(),
        mean_allocated=pl.col("allocated").mean(),
        most_allocated=pl.col("allocated").max(),
        most_pending=pl.col("pending").max(),
        readings_with_pending=(pl.col("pending") > 0).sum(),
    )
    share = pl.when(pl.col("mean_total") > 0).then(pl.col("mean_allocated") / pl.col("mean_total"))
    shared = by_pool.with_columns(allocated_share=share)
    return {"occupancy by pool": shared.sort("mean_total", "pool", "resource", descending=[True, False, False])}


def _summarize_requests(table: pl.DataFrame) -> Tables:
    """Tabulate inference requests by service: rate [1/s] and tokens."""
    span_s = (pl.col("time").max() - pl.col("time").min()).dt.total_microseconds() / 1e6
    by_service = table.group_by("service", maintain_order=True).agg(
        requests=pl.len(),
        first=pl.col("time").min(),
        last=pl.col("time").max(),
        requests_per_s=pl.when(span_s > 0).then(pl.len() / span_s),
        **{
            f"{name}_{kind}": getattr(pl.col(kind), how)(*arguments)
            for kind in ("prompt_tokens", "generated_tokens")
            for name, how, arguments in (("mean", "mean", ()), ("p95", "quantile", (0.95,)))
        },
    )
    return {"requests by service": by_service.sort("requests", "service", descending=[True, False])}


def _summarize_quotas(table: pl.DataFrame) -> Tables:
    """Tabulate days and the range of quotas [GPUs] of each pool (virtual cluster)."""
    by_pool = table.group_by("pool", maintain_order=True).agg(
        days=pl.len(),
        first=pl.col("day").min(),
        last=pl.col("day").max(),
        least_gpus=pl.col("gpus").min(),
        peak_gpus=pl.col("gpus").max(),
    )
    return {"quotas by pool": by_pool.sort("peak_gpus", "pool", descending=[True, False])}


def _summarize_gauges(table: pl.DataFrame) -> Tables:
    """Tabulate readings of container metrics by metric: number of readings, minimum, mean, p95 and maximum."""
    value = pl.col("value")
    by_metric = table.group_by("metric", "kind", "unit", maintain_order=True).agg(
        readings=pl.len(), subjects=pl.col("subject").n_unique(),
        least=value.min(), mean=value.mean(), p95=value.quantile(0.95), most=value.max(),
    )  # fmt: skip
    return {"readings by metric": by_metric.sort("metric", "kind", "unit", nulls_last=True)}


def _summarize_distributions(table: pl.DataFrame) -> Tables:
    """Tabulate median, p95 and maximum of each cumulative distribution that a source publishes instead of jobs."""

    def at(percent: float) -> pl.Expr:
        return pl.col("value").filter(pl.col("percent") >= percent).min()

    figures = {"points": pl.len(), "p50": at(50), "p95": at(95), "most": pl.col("value").max()}
    return {"distributions": table.group_by("series", maintain_order=True).agg(**figures).sort("series")}


SUMMARY_FUNCTION_BY_TABLE: Mapping[str, Callable[[pl.DataFrame], Tables]] = {
    "inventory": _summarize_nodes,
    "out_of_service": _summarize_out_of_service,
    "node_dumps": _summarize_layout_history,
    "coverage": _summarize_coverage,
    "processes": _summarize_processes,
    "charges": _summarize_charges,
    "occupancy": _summarize_occupancy,
    "requests": _summarize_requests,
    "quotas": _summarize_quotas,
    "queue_quotas": lambda table: {"quotas of queues": table},
    "gauges": _summarize_gauges,
    "distributions": _summarize_distributions,
}
"""Function that summarizes each table of a dataset beside jobs and samples, by table name in ``schemas.TABLES``."""


EFFECT_WORDS_BY_FIGURE = {
    "GPU-hours": ("gpu-hour", "every figure", "capacity", "hold no gpu", "same job twice", "number of gpus"),
    "demand": ("demand", "every figure", "request no gpu", "tenant", "same job twice", "number of gpus"),
    "queueing delays": ("queue", "every figure"),
    "run times": ("run time", "every figure"),
    "failures": ("failure", "how they ended", "state is", "every figure"),
    "activity": ("activity", "reading", "sample", "means of the worker", "these days", "observed"),
    "forecasts": ("forecast", "days of the week", "calendar"),
    "cost": ("cost", "charge", "price", "bill"),
}
"""Kinds of figures that a finding of the quality report can affect, with the words in the text of its effect that show
it.
"""
OTHER_FIGURES, NO_FIGURES = "other", "none"
"""Names for findings that affect a figure of another kind, and that affect none."""
INTAKE_SCHEMA = pl.Schema({"what": pl.String, "day": pl.Date, "rows": pl.Int64})
"""Columns of :func:`intake`: kind of row (``what``), UTC day, and number of rows."""
SUBMITTED_JOBS_LABEL = "jobs submitted"
"""Value of ``what`` in :func:`intake` for submitted jobs; others are reasons of rejection."""
_DATE_PATTERN = r"(?:19|20)\d\d-[01]\d-[0-3]\d"
"""Pattern of an ISO date from 1900 to 2099, such as ``2026-02-02``."""


@dataclass(frozen=True, eq=False)
class DataQuality:
    """Quality report of a dataset, with the tables of its charts.

    - ``read``: Source of the data, row counts, period and files.
    - ``findings``: Findings as in the quality report, most serious first: ``check, severity, rows, effect, example``.
    - ``coverage``: Observed share of each node and day, see :func:`gpuplanner.ingest.telemetry.coverage.coverage`;
      None without telemetry.
    - ``intake``: Jobs and rejected rows by day, see :func:`intake`.
    """

    read: SourceFacts
    findings: pl.DataFrame
    coverage: pl.DataFrame | None
    intake: pl.DataFrame


def data_quality(data: str | Dataset) -> DataQuality:
    """Collect the quality report of jobs or telemetry.

    Examples
    --------
    >>> found = data_quality("sample")
    >>> found.findings["check"].to_list(), found.coverage["node"].n_unique()
    (['running when the observation ended'], 8)
    """
    read = load_dataset(data, columns=["submit_time"]) if isinstance(data, str) else data
    observed = read.coverage
    if observed is None and read.samples is not None:  # of an earlier version
        observed = coverage(read.samples)
    jobs = read.tables.get("jobs", pl.DataFrame(schema={"submit_time": pl.Datetime("us", "UTC")}))
    return DataQuality(read.source_facts, read.quality, observed, intake(jobs, read.rejects))


def figures_affected(effect: str) -> tuple[str, ...]:
    """Find the kinds of figures, such as demand or cost, that a quality finding affects, from its effect text.

    Examples
    --------
    >>> figures_affected("demand and GPU-hours leave them out and are too low")
    ('GPU-hours', 'demand')
    >>> figures_affected("none: the rows were sorted"), figures_affected("kept")
    (('none',), ('other',))
    """
    text = effect.lower()
    if text.startswith("none"):
        return (NO_FIGURES,)
    named = tuple(figure for figure, words in EFFECT_WORDS_BY_FIGURE.items() if any(word in text for word in words))
    return named or (OTHER_FIGURES,)


def findings_by_figure(findings: pl.DataFrame) -> pl.DataFrame:
    """Repeat each finding of the quality report for each kind of figure that it affects.

    Examples
    --------
    >>> findings_by_figure(data_quality("sample").findings).select("severity", "figure").rows()
    [('info', 'GPU-hours'), ('info', 'run times')]
    """
    figures = pl.Series("figure", map(figures_affected, findings["effect"]), dtype=pl.List(pl.String))
    return findings.with_columns(figures).explode("figure")


def intake(jobs: pl.DataFrame, rejects: pl.DataFrame) -> pl.DataFrame:
    """Count jobs by the UTC day of submission, and rejected rows by reason and the first date in the row.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> jobs = pl.DataFrame({"submit_time": [datetime(2026, 1, day, 9, tzinfo=UTC) for day in (1, 1, 3)]})
    >>> rejects = pl.DataFrame({"reason": ["end before start"], "raw": ["7,2026-01-02T10:00:00,-"]})
    >>> [(what[:8], day.day, rows) for what, day, rows in intake(jobs, rejects).rows()]
    [('jobs sub', 1, 2), ('jobs sub', 2, 0), ('jobs sub', 3, 1), ('rejected', 2, 1)]
    """
    counted = (
        jobs.drop_nulls("submit_time")
        .group_by(day=pl.col("submit_time").dt.date(), maintain_order=True)
        .agg(rows=pl.len())
    )
    if counted.height:
        days = counted.select(pl.date_range(pl.col("day").min(), pl.col("day").max()).alias("day"))
        counted = days.join(counted, on="day", how="left").with_columns(pl.col("rows").fill_null(0))
    refused = (
        rejects.group_by("reason", day=pl.col("raw").str.extract(f"({_DATE_PATTERN})").str.to_date(strict=False))
        .agg(rows=pl.len())
        .with_columns(all=pl.col("rows").sum().over("reason"))
        .sort("all", "reason", "day", descending=[True, False, False], nulls_last=True)
        .select(pl.format("rejected: {}", "reason").alias("what"), "day", "rows")
    )
    submitted = counted.sort("day").select(pl.lit(SUBMITTED_JOBS_LABEL).alias("what"), "day", "rows")
    return pl.concat([submitted.cast(INTAKE_SCHEMA), refused.cast(INTAKE_SCHEMA)])


DISAGREEMENT_GROUPS = ("check", "source", "team")
"""Groups of the table of disagreements between sources."""


def tabulate_disagreements(
    dataset: Dataset, by: str | Sequence[str] = DISAGREEMENT_GROUPS, *, other_dataset: Dataset | None = None
) -> pl.DataFrame:
    """Tabulate where the list of jobs disagrees with telemetry, or with another list of the same jobs.

    Parameters
    ----------
    dataset : Dataset
        Jobs, and telemetry of the same time where there is any.
    by : str or sequence of str
        Groups, of :data:`DISAGREEMENT_GROUPS`. ``source`` is the one that states the GPU-hours.
    other_dataset : Dataset, optional
        Another list of the same jobs, such as the pods that ran them; jobs are the same by their ids.

    Returns
    -------
    polars.DataFrame
        The groups; ``rows``, jobs or samples; ``gpu_hours`` that they affect [GPU h], null where they are not known.
        ``team`` is null where no job is known. A GPU-hour may be affected by several checks.

    Raises
    ------
    ScenarioError
        If a group is unknown.
    TraceFormatError
        If there is nothing to compare the jobs with.

    Examples
    --------
    >>> table = tabulate_disagreements(load_dataset("sample"), ["check", "source"])
    >>> table.select("check", "source").rows()
    [('allocated without telemetry', 'synthetic')]
    """
    names = require_groups(by, DISAGREEMENT_GROUPS)
    if dataset.samples is None and other_dataset is None:
        todo = "Import telemetry into the same folder, or give against=, another list of the jobs."
        raise TraceFormatError("by", "two sources of the same jobs", f"{dataset.source_facts.source} alone", todo)
    parts = [] if dataset.samples is None else [_compare_with_telemetry(dataset, dataset.samples)]
    parts += [] if other_dataset is None else [_compare_job_lists(dataset, other_dataset)]
    hours = pl.when(pl.col("gpu_hours").count() > 0).then(pl.col("gpu_hours").sum())
    table = pl.concat(parts).group_by(names, maintain_order=True).agg(pl.col("rows").sum(), gpu_hours=hours)
    return table.sort("gpu_hours", *names, descending=[True, *[False] * len(names)], nulls_last=True)


def _compare_with_telemetry(dataset: Dataset, samples: pl.DataFrame) -> pl.DataFrame:
    """Tabulate disagreements of jobs and telemetry: ``check, source, team, rows, gpu_hours``."""
    jobs = dataset.jobs.group_by("job_id", maintain_order=True).agg(
        team=pl.col("tenant").cast(pl.String).last(),
        start=pl.col("start_time").min(),
        end=pl.when(pl.col("end_time").null_count() == 0).then(pl.col("end_time").max()),
        devices=pl.coalesce("instances", pl.col("gpus").ceil()).max(),
    )
    hours = (pl.col("until") - pl.col("time")).dt.total_microseconds() / 3.6e9
    instances = pl.col("instance").n_unique().over("node", "gpu")
    devices = add_sample_ends(samples).with_columns(kind=device_kind_expr()).drop_nulls("kind")
    rows = split_shared_samples(devices.with_columns(gpu_hours=hours / instances))
    rows = rows.with_columns(pl.col("gpu_hours") * pl.col("part"))
    rows = rows.join(jobs.with_columns(is_listed=True), on="job_id", how="left", maintain_order="left")
    is_outside = (pl.col("time") < pl.col("start")) | (pl.col("time") >= pl.col("end"))
    sampled = pl.struct("node", "gpu", "instance").n_unique().over("job_id")
    check = (
        pl.when(pl.col("job_id").is_not_null() & pl.col("is_listed").is_null())
        .then(pl.lit("telemetry of a job that is not in the list of jobs"))
        .when(pl.col("job_id").is_null() & (pl.col("job_evidence") == NO_JOB))
        .then(pl.when(pl.col("sm_activity") >= MIN_USED_SM_ACTIVITY).then(pl.lit("active without a job")))
        .when(is_outside)
        .then(pl.lit("telemetry outside the time of its job"))
        .when(sampled > pl.col("devices"))
        .then(pl.lit("telemetry of more GPUs than allocated"))
    )
    is_excess = pl.col("check") == "telemetry of more GPUs than allocated"
    excess = pl.when(is_excess).then(1 - pl.col("devices") / pl.col("sampled")).otherwise(1.0)
    conflicts = rows.with_columns(check=check, sampled=sampled).drop_nulls("check")
    conflicts = conflicts.select("check", "team", source=pl.lit("telemetry"), gpu_hours=pl.col("gpu_hours") * excess)
    hours_of_jobs = add_absent_columns(group_ledger(dataset, ["team", "job"]), {"no_telemetry": pl.Float64()})
    unseen = hours_of_jobs.filter(pl.col("no_telemetry") > 0)
    missing = {"check": pl.lit("allocated without telemetry"), "source": pl.lit(dataset.source_facts.source)}
    return _count_rows(conflicts, unseen.select("team", **missing, gpu_hours="no_telemetry"))


def _compare_job_lists(dataset: Dataset, other_dataset: Dataset) -> pl.DataFrame:
    """Tabulate disagreements of two lists of jobs: ``check, source, team, rows, gpu_hours``."""
    run_h = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    sides = []
    for side in (dataset, other_dataset):
        attempts = side.jobs.group_by("job_id", maintain_order=True)
        sides.append(attempts.agg(team=pl.col("tenant").cast(pl.String).last(), gpus=pl.col("gpus").max(),
                                  gpu_hours=(pl.col("gpus") * run_h).sum(), run_h=run_h.sum()))  # fmt: skip
    names = [side.source_facts.source for side in (dataset, other_dataset)]
    parts = []
    for number, job_hours in enumerate(sides):
        only = job_hours.join(sides[1 - number], on="job_id", how="anti", maintain_order="left")
        only = only.filter(pl.col("gpu_hours") > 0)
        check = pl.lit(f"job not in {names[1 - number]}")
        parts.append(only.select("team", "gpu_hours", check=check, source=pl.lit(names[number])))
    both = sides[0].join(sides[1], on="job_id", suffix="_other", maintain_order="left")
    gpus_differ = pl.col("gpus") != pl.col("gpus_other")
    difference = (pl.col("gpu_hours") - pl.col("gpu_hours_other")).abs()
    differs = both.filter(gpus_differ | (difference > 1 / 3600))
    check = pl.when(gpus_differ).then(pl.lit("other number of GPUs")).otherwise(pl.lit("other run time"))
    parts.append(differs.select("team", check=check, source=pl.lit(names[0]), gpu_hours=difference))
    return _count_rows(*parts)


def _count_rows(*parts: pl.DataFrame) -> pl.DataFrame:
    """Count rows and sum the GPU-hours of disagreements by check, source and team."""
    columns = (*DISAGREEMENT_GROUPS, "gpu_hours")
    rows = pl.concat([part.select(pl.col(DISAGREEMENT_GROUPS).cast(pl.String), "gpu_hours") for part in parts])
    groups = rows.select(columns).group_by(DISAGREEMENT_GROUPS, maintain_order=True)
    return groups.agg(rows=pl.len(), gpu_hours=pl.col("gpu_hours").sum())
