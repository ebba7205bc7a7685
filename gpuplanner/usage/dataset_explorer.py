"""Explorer of a dataset: its usage by tenant, job class or month, and public traces opened by name."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, ScenarioError, resolve_name
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.serialization import sha256_of_all
from gpuplanner.core.stage_cache_and_data_folders import cache_folder, code_hash
from gpuplanner.core.units_and_number_formats import SECONDS_PER_HOUR
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice, find_gpu_hour_price
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import DATASET_MARK
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.allocated_hours import ACTIVE_GPU_HOURS_COLUMN, allocated_and_active, allocated_by_state
from gpuplanner.usage.bottlenecks import bottlenecks_by_class, classify_bottlenecks
from gpuplanner.usage.dataset_description_and_data_quality import DataQuality, data_quality
from gpuplanner.usage.demand_by_phase_and_late_demand_test import fit_phases, late_demand_table, phases_of_jobs
from gpuplanner.usage.gpu_hour_ledger import hours_by_bucket, hours_by_period, hours_by_tenant
from gpuplanner.usage.period_accounts import dataset_ledger
from gpuplanner.usage.planning_history import (
    load_dataset,
    merge_small_tenants,
    observation_begins_at,
    observation_ends_at,
)
from gpuplanner.usage.requested_demand import demand_series, resolve_requests
from gpuplanner.usage.study_fleet import PlannedFleet, planned_fleet
from gpuplanner.usage.utilization_dips import ActivityDips, find_dips


@dataclass(frozen=True)
class PublicTrace:
    """A public trace: its source format, files of jobs and nodes (below ``GPUPLANNER_DATA``), and time zone."""

    source: str
    jobs: str
    tz: str | None = None
    nodes: str | None = None


PUBLIC_TRACE_BY_NAME = {
    "fox": PublicTrace("slurm", "slurm/sacct_fox_2025.txt", tz="Europe/Oslo"),
    "openb": PublicTrace(
        "openb",
        "alibaba_gpu_v2023/openb_pod_list_default.csv.gz",
        nodes="alibaba_gpu_v2023/openb_node_list_gpu_node.csv",
    ),
    "philly": PublicTrace("philly", "philly/philly.csv.gz", tz="America/Los_Angeles"),
}
"""Public traces by the name under which :func:`gpuplanner.usage.dataset_explorer.explore_dataset` opens them."""


def public_traces() -> list[str]:
    """List the names of :data:`PUBLIC_TRACE_BY_NAME` whose files are in the folder of ``GPUPLANNER_DATA``."""
    folder = os.environ.get("GPUPLANNER_DATA")
    if not folder:
        return []
    return [name for name, trace in PUBLIC_TRACE_BY_NAME.items() if (Path(folder) / trace.jobs).is_file()]


def find_dataset_folder(data: str) -> str:
    """Return the folder of a dataset; a public trace, given by name, is imported into the cache at first use.

    Examples
    --------
    >>> find_dataset_folder("sample")
    'sample'
    """
    if data not in public_traces() or (Path(data) / DATASET_MARK.file).is_file():
        return data
    trace, source_folder = PUBLIC_TRACE_BY_NAME[data], Path(os.environ["GPUPLANNER_DATA"])
    jobs, nodes = source_folder / trace.jobs, None if trace.nodes is None else source_folder / trace.nodes
    content = sha256_of_all(filter(None, (jobs, nodes))) + code_hash()
    folder = cache_folder() / "traces" / hashlib.sha256(content.encode()).hexdigest()[:32] / data
    if not (folder / DATASET_MARK.file).is_file():
        write_dataset(read(trace.source, jobs, tz=trace.tz, nodes=nodes), folder)
    return str(folder)


ALL_TENANTS_LABEL = "everybody"
"""Value of ``tenant`` that selects all tenants together."""


@dataclass(frozen=True, eq=False)
class JobView:
    """View of one job: samples, phases, dips and bottleneck.

    - ``samples``: Table ``schemas.Samples`` of the job.
    - ``phases``: One row a phase, from ``fit_phases``, with its bottleneck (``bound``), the ``evidence`` for it, the
      ``gpu_hours`` allocated in it and their ``cost`` at ``price``; null where the job's GPUs or the price are not
      known.
    - ``spikes``: Short dips of SM activity, their labels and period.
    - ``bound``, ``evidence``: Bottleneck of the whole job, and the counter values that decided.
    - ``price``: List price of a GPU-hour of the GPU model, None where there is none.
    """

    samples: pl.DataFrame
    phases: pl.DataFrame
    spikes: ActivityDips
    bound: str
    evidence: str
    price: GpuHourPrice | None = None


@dataclass(frozen=True, eq=False)
class ExploredDataset:
    """A dataset with its usage tables, the GPU model whose profiles requests are mapped to, and the time zone.

    Tables of the whole dataset are computed at first use and cached.

    - ``trace``: The dataset as ingested.
    - ``gpu_model``: GPU model whose profiles requests are mapped to; None: that of the data, see :attr:`model`.
    - ``tz``: IANA zone.
    - ``smallest_group``: Tenants of fewer people are merged into one by
      :func:`gpuplanner.core.privacy.merge_small_tenants_expression`; 0: no tenant is.
    """

    trace: Dataset
    gpu_model: str | None = None
    tz: str = "UTC"
    smallest_group: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", merge_small_tenants(self.trace, self.smallest_group))

    @cached_property
    def fleet(self) -> PlannedFleet:
        """Fleet of the dataset: its GPUs, and the GPU model whose profiles requests are mapped to."""
        scenario = Scenario(gpu_model=self.gpu_model)
        return planned_fleet(scenario, self.trace, observation_begins_at(self.trace), observation_ends_at(self.trace))

    @property
    def model(self) -> GpuModel:
        """GPU model whose profiles requests are mapped to; one without profiles where the data do not name it."""
        return self.fleet.gpu_model

    @cached_property
    def quality_report(self) -> DataQuality:
        """Quality report of the dataset."""
        return data_quality(self.trace)

    @cached_property
    def gpu_hour_ledger(self) -> pl.DataFrame:
        """Table ``schemas.Ledger`` of the whole dataset."""
        return dataset_ledger(self.trace, observation_begins_at(self.trace), observation_ends_at(self.trace))

    @cached_property
    def demand_series(self) -> pl.DataFrame:
        """Table ``schemas.Demand``: requested instances by tenant and profile, as if no job had queued."""
        return demand_series(resolve_requests(self.trace.jobs, self.model), clock="wanted")

    @cached_property
    def demand_gpus(self) -> pl.DataFrame:
        """Demand in GPUs: each instance counts as its share of a GPU, so that profiles can be added."""
        names = self.demand_series["profile"].unique().to_list()
        shares = {name: self.model.gpu_fraction(name) for name in names}
        share = pl.col("profile").replace_strict(shares, return_dtype=pl.Float64)
        return self.demand_series.with_columns(pl.col("y") * share)

    @cached_property
    def activity(self) -> pl.DataFrame:
        """Allocated GPU-hours by tenant: used, idle with and without a process, no telemetry."""
        begin, end = observation_begins_at(self.trace), observation_ends_at(self.trace)
        hours = allocated_and_active(self.trace.jobs, self.trace.samples, start=begin, end=end)
        return hours.drop(ACTIVE_GPU_HOURS_COLUMN)

    @cached_property
    def allocated_by_end_state(self) -> pl.DataFrame:
        """Allocated GPU-hours by tenant and final state of the attempts."""
        begin, end = observation_begins_at(self.trace), observation_ends_at(self.trace)
        return allocated_by_state(self.trace.jobs, start=begin, end=end)

    @cached_property
    def jobs_with_telemetry(self) -> pl.DataFrame:
        """Jobs with telemetry: ``job_id, tenant, job_class, gpus, readings``, most readings first."""
        jobs = self.trace.jobs.select("job_id", "tenant", "job_class", "gpus").unique("job_id", keep="last")
        if self.trace.samples is None:
            return jobs.clear().with_columns(readings=pl.lit(0, pl.UInt32))
        counts = self.trace.samples.drop_nulls("job_id").group_by("job_id", maintain_order=True).agg(readings=pl.len())
        return jobs.join(counts, on="job_id").sort("readings", "job_id", descending=[True, False])

    @cached_property
    def job_phases(self) -> pl.DataFrame | None:
        """Phases of all jobs with telemetry, or None without any."""
        if self.trace.samples is None or self.jobs_with_telemetry.is_empty():
            return None
        return phases_of_jobs(self.trace.samples, self.trace.jobs)

    @cached_property
    def signatures(self) -> pl.DataFrame | None:
        """Bottlenecks of the jobs of each class; None without telemetry or without a known GPU model."""
        if self.trace.samples is None or self.jobs_with_telemetry.is_empty() or not self.fleet.in_catalogue:
            return None
        samples = self.trace.samples.drop_nulls("job_id")
        return bottlenecks_by_class(classify_bottlenecks(samples, self.model, jobs=self.trace.jobs), self.trace.jobs)

    @cached_property
    def claim(self) -> pl.DataFrame | None:
        """Verdicts on whether late phases of jobs need fewer GPUs than early ones.

        None without telemetry, or if the memory of the GPU model is unknown.
        """
        if self.job_phases is None or self.trace.samples is None or not self.model.memory_gib:
            return None
        return late_demand_table(self.trace.samples, self.job_phases, self.model)

    @property
    def tenants(self) -> list[str]:
        """Names of the tenants, most GPU-hours first."""
        return hours_by_tenant(self.gpu_hour_ledger)["tenant"].to_list()

    def rows_of(self, table: pl.DataFrame, tenant: str) -> pl.DataFrame:
        """Select the rows of one tenant, or all rows for :data:`ALL_TENANTS_LABEL`."""
        if tenant == ALL_TENANTS_LABEL:
            return table
        tenants = self.trace.jobs["tenant"].unique().sort().to_list()
        return table.filter(tenant=resolve_name(tenant, tenants, subject="tenant", error=ScenarioError))

    def buckets(self) -> pl.DataFrame:
        """Sum GPU-hours and shares of each bucket of the ledger."""
        return hours_by_bucket(self.gpu_hour_ledger)

    def months(self, tenant: str = ALL_TENANTS_LABEL) -> pl.DataFrame:
        """Sum GPU-hours by local month, with a column for each bucket of the ledger that occurs.

        Examples
        --------
        >>> explore_dataset("sample", tz="Europe/Berlin").months("search").select("period", "used").rows()
        [(datetime.date(2026, 2, 1), 3123.83...), (datetime.date(2026, 3, 1), 0.0)]
        """
        span = {"start": observation_begins_at(self.trace), "end": observation_ends_at(self.trace)}
        rows = hours_by_period(self.rows_of(self.gpu_hour_ledger, tenant), every="month", tz=self.tz, **span)
        wide = rows.pivot("bucket", index="period", values="gpu_hours", aggregate_function="sum")
        buckets = [bucket for bucket in GPU_TIME_BUCKETS if bucket in wide.columns]
        return wide.sort("period").select("period", *buckets, gpu_hours=pl.sum_horizontal(buckets))

    def jobs_of(self, tenant: str = ALL_TENANTS_LABEL) -> list[str]:
        """List the jobs of a tenant that have telemetry, most readings first."""
        return self.rows_of(self.jobs_with_telemetry, tenant)["job_id"].to_list()

    def job(self, job_id: str) -> JobView:
        """Analyze one job: its phases, dips and bottleneck.

        Examples
        --------
        >>> view = explore_dataset("sample").job("job-002875")
        >>> view.bound, view.phases["label"].to_list()
        ('compute', ['setup', 'ramp', 'steady', 'decay'])
        """
        job_ids = self.jobs_with_telemetry["job_id"].to_list()
        if self.trace.samples is None or not job_ids:
            raise ScenarioError("jobs with telemetry", "at least one", "none", "Ingest telemetry with the jobs.")
        name = resolve_name(job_id, job_ids, subject="job with telemetry", error=ScenarioError)
        self.fleet.require_mig("phases of a job")
        samples = self.trace.samples.filter(job_id=name)
        phases = fit_phases(phases_of_jobs(samples, self.trace.jobs), self.model)
        begins = phases.select("phase", "start")
        parted = samples.sort("time").join_asof(begins, left_on="time", right_on="start")
        parted = parted.with_columns(pl.col("phase").fill_null(1)).drop("start")
        signatures = classify_bottlenecks(parted, self.model, jobs=self.trace.jobs, by=("job_id", "phase"))
        whole = classify_bottlenecks(samples, self.model, jobs=self.trace.jobs).row(0, named=True)
        gpus = self.jobs_with_telemetry.filter(job_id=name)["gpus"][0]
        price = None
        with suppress(GpuPlannerError):
            price = find_gpu_hour_price(self.model.name)
        hours = pl.lit(gpus, pl.Float64) * pl.col("run_s") / SECONDS_PER_HOUR
        cost = hours * pl.lit(None if price is None else price.value, pl.Float64)
        phase_signatures = signatures.select("phase", "bound", "evidence")
        priced = phases.with_columns(gpu_hours=hours, cost=cost).join(phase_signatures, on="phase", how="left")
        return JobView(samples, priced.sort("phase"), find_dips(samples), whole["bound"], whole["evidence"], price)


def explore_dataset(
    data: str | Dataset, *, gpu_model: str | None = None, tz: str = "UTC", smallest_group: int = 0
) -> ExploredDataset:
    """Open a dataset, by folder or by the name of a public trace, to explore it.

    Parameters
    ----------
    data : str or Dataset
        Folder, name of a public trace, or dataset.
    gpu_model : str, optional
        GPU model whose profiles requests are mapped to; None: that of the data.
    tz : str
        IANA zone of days and months.
    smallest_group : int
        Tenants of fewer people are merged; 0: none.

    Examples
    --------
    >>> explore_dataset("sample").tenants[:2]
    ['assistants', 'llm-core']
    """
    if not isinstance(data, Dataset):
        data = load_dataset(find_dataset_folder(data))
    return ExploredDataset(data, gpu_model, tz, smallest_group)
