"""Parts of a dataset by tenant, class or time, and public traces by name."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from gpuplanner.core.errors import GpuPlannerError, ScenarioError, resolve
from gpuplanner.core.scenario import Scenario
from gpuplanner.core.schemas import BUCKETS
from gpuplanner.core.units import SECONDS_PER_HOUR
from gpuplanner.hardware.gpu_models import GpuModel
from gpuplanner.hardware.power_and_carbon import Price, gpu_hour_price
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.quarantine import believed
from gpuplanner.ingest.source_registry import read
from gpuplanner.usage.allocated_hours import allocated_by_state, held_by_activity
from gpuplanner.usage.bottlenecks import signatures_by_class, signatures_of
from gpuplanner.usage.dataset_description import DataQuality, data_quality
from gpuplanner.usage.gpu_hour_ledger import by_bucket, by_period, by_tenant
from gpuplanner.usage.job_history import begin_of, end_of, grouped, load_trace
from gpuplanner.usage.period_accounts import trace_ledger
from gpuplanner.usage.phase_demand import claim_table, fit_phases, phases_of_jobs
from gpuplanner.usage.planned_fleet import PlannedFleet, planned_fleet
from gpuplanner.usage.requested_demand import demand_series, resolve_requests
from gpuplanner.usage.utilization_dips import Spikes, find_spikes


@dataclass(frozen=True)
class PublicTrace:
    """A public trace in the folder that ``GPUPLANNER_DATA`` names."""

    source: str
    jobs: str
    tz: str | None = None
    nodes: str | None = None


PUBLIC = {
    "fox": PublicTrace("slurm", "slurm/sacct_fox_2025.txt", tz="Europe/Oslo"),
    "openb": PublicTrace(
        "openb",
        "alibaba_gpu_v2023/openb_pod_list_default.csv.gz",
        nodes="alibaba_gpu_v2023/openb_node_list_gpu_node.csv",
    ),
    "philly": PublicTrace("philly", "philly/philly.csv.gz", tz="America/Los_Angeles"),
}
"""Public traces that :func:`gpuplanner.usage.dataset_explorer.open_inbox` opens by name."""


def public_traces() -> list[str]:
    """Names of :data:`PUBLIC` whose files lie in the folder that ``GPUPLANNER_DATA`` names."""
    folder = os.environ.get("GPUPLANNER_DATA")
    if not folder:
        return []
    return [name for name, each in PUBLIC.items() if (Path(folder) / each.jobs).is_file()]


def read_public(name: str) -> Dataset:
    """Read a public trace by name."""
    known, folder = PUBLIC[name], Path(os.environ["GPUPLANNER_DATA"])
    nodes = None if known.nodes is None else folder / known.nodes
    found = read(known.source, folder / known.jobs, tz=known.tz, nodes=nodes)
    if found.kind != "jobs":
        raise ScenarioError(f"public trace {known.jobs}", "a list of jobs", found.kind, "Check the files.")
    return found.with_tables(jobs=believed(found.jobs))


EVERYBODY = "everybody"
"""Stands for all tenants together."""


@dataclass(frozen=True, eq=False)
class JobView:
    """What one job did.

    - ``samples``: Table ``schemas.Samples`` of the job.
    - ``phases``: From :func:`gpuplanner.usage.phase_demand.fit_phases`, with ``bound`` and ``evidence`` of each
    phase, the
      ``gpu_hours`` that it held and their ``cost`` at ``price``; null where the job's GPUs or the price are not known.
    - ``spikes``: Short dips, their labels and pace.
    - ``bound``, ``evidence``: Signature of the whole job.
    - ``price``: List price of a GPU-hour of the board, None where there is none.
    """

    samples: pl.DataFrame
    phases: pl.DataFrame
    spikes: Spikes
    bound: str
    evidence: str
    price: Price | None = None


@dataclass(frozen=True, eq=False)
class Inbox:
    """A trace, the board that requests are read for, and the zone of days and months.

    Tables of the whole trace are computed when they are first asked for, and kept.

    - ``trace``: As ingested.
    - ``board``: Board that requests are read for; None: the data's own, see :attr:`model`.
    - ``tz``: IANA zone.
    - ``smallest_group``: Tenants of fewer people stand together, see
    :func:`gpuplanner.core.privacy.merge_small_groups`;
      0: none do.
    """

    trace: Dataset
    gpu_model: str | None = None
    tz: str = "UTC"
    smallest_group: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", grouped(self.trace, self.smallest_group))

    @cached_property
    def fleet(self) -> PlannedFleet:
        """The GPUs of the data, and which board requests are read for."""
        asked = Scenario(gpu_model=self.gpu_model)
        return planned_fleet(asked, self.trace, begin_of(self.trace), end_of(self.trace))

    @property
    def model(self) -> GpuModel:
        """Board that requests are read for; one without profiles where the data do not name it."""
        return self.fleet.gpu_model

    @cached_property
    def quality(self) -> DataQuality:
        """What is wrong with the data."""
        return data_quality(self.trace)

    @cached_property
    def ledger(self) -> pl.DataFrame:
        """Table ``schemas.Ledger`` of the whole trace."""
        return trace_ledger(self.trace, begin_of(self.trace), end_of(self.trace))

    @cached_property
    def demand(self) -> pl.DataFrame:
        """Table ``schemas.Demand``: instances wanted by tenant and profile, as if nobody had queued."""
        return demand_series(resolve_requests(self.trace.jobs, self.model), clock="wanted")

    @cached_property
    def demand_gpus(self) -> pl.DataFrame:
        """The demand with each instance counted as its share of the board, so that unlike ones can be added."""
        names = self.demand["profile"].unique().to_list()
        shares = {name: self.model.share(name) for name in names}
        share = pl.col("profile").replace_strict(shares, return_dtype=pl.Float64)
        return self.demand.with_columns(pl.col("y") * share)

    @cached_property
    def activity(self) -> pl.DataFrame:
        """Held GPU-hours by tenant: used, idle with and without a process, unobserved."""
        begin, end = begin_of(self.trace), end_of(self.trace)
        return held_by_activity(self.trace.jobs, self.trace.samples, start=begin, end=end)

    @cached_property
    def ended(self) -> pl.DataFrame:
        """Held GPU-hours by tenant and by how attempts ended."""
        return allocated_by_state(self.trace.jobs, start=begin_of(self.trace), end=end_of(self.trace))

    @cached_property
    def sampled(self) -> pl.DataFrame:
        """Jobs with telemetry: ``job_id, tenant, job_class, gpus, readings``, most readings first."""
        known = self.trace.jobs.select("job_id", "tenant", "job_class", "gpus").unique("job_id", keep="last")
        if self.trace.samples is None:
            return known.clear().with_columns(readings=pl.lit(0, pl.UInt32))
        counts = self.trace.samples.drop_nulls("job_id").group_by("job_id").agg(readings=pl.len())
        return known.join(counts, on="job_id").sort("readings", "job_id", descending=[True, False])

    @cached_property
    def phases(self) -> pl.DataFrame | None:
        """Phases of all jobs with telemetry, or None without any."""
        if self.trace.samples is None or self.sampled.is_empty():
            return None
        return phases_of_jobs(self.trace.samples, self.trace.jobs)

    @cached_property
    def signatures(self) -> pl.DataFrame | None:
        """What the jobs of each class wait for, or None without telemetry or where the board is not known."""
        if self.trace.samples is None or self.sampled.is_empty() or not self.fleet.in_catalogue:
            return None
        mine = self.trace.samples.drop_nulls("job_id")
        return signatures_by_class(signatures_of(mine, self.model, jobs=self.trace.jobs), self.trace.jobs)

    @cached_property
    def claim(self) -> pl.DataFrame | None:
        """Verdicts on the claim that late phases need fewer GPUs; None without telemetry, or a board's memory."""
        if self.phases is None or self.trace.samples is None or not self.model.memory_gib:
            return None
        return claim_table(self.trace.samples, self.phases, self.model)

    @property
    def tenants(self) -> list[str]:
        """Names of the tenants, most GPU-hours first."""
        return by_tenant(self.ledger)["tenant"].to_list()

    def of(self, table: pl.DataFrame, tenant: str) -> pl.DataFrame:
        """Rows of one tenant, or all rows for :data:`EVERYBODY`."""
        if tenant == EVERYBODY:
            return table
        known = self.trace.jobs["tenant"].unique().sort().to_list()
        return table.filter(tenant=resolve(tenant, known, what="tenant", error=ScenarioError))

    def buckets(self) -> pl.DataFrame:
        """GPU-hours and share of each bucket of the ledger."""
        return by_bucket(self.ledger)

    def months(self, tenant: str = EVERYBODY) -> pl.DataFrame:
        """GPU-hours by local month, one column for each bucket that occurs.

        Examples
        --------
        >>> open_inbox("sample", tz="Europe/Berlin").months("search").select("period", "used").rows()
        [(datetime.date(2026, 2, 1), 3123.83...), (datetime.date(2026, 3, 1), 0.0)]
        """
        span = {"start": begin_of(self.trace), "end": end_of(self.trace)}
        rows = by_period(self.of(self.ledger, tenant), every="month", tz=self.tz, **span)
        wide = rows.pivot("bucket", index="period", values="gpu_hours", aggregate_function="sum")
        there = [bucket for bucket in BUCKETS if bucket in wide.columns]
        return wide.sort("period").select("period", *there, gpu_hours=pl.sum_horizontal(there))

    def jobs_of(self, tenant: str = EVERYBODY) -> list[str]:
        """Jobs of a tenant that have telemetry, most readings first."""
        return self.of(self.sampled, tenant)["job_id"].to_list()

    def job(self, job_id: str) -> JobView:
        """Look at one job.

        Examples
        --------
        >>> view = open_inbox("sample").job("job-002875")
        >>> view.bound, view.phases["label"].to_list()
        ('compute', ['setup', 'ramp', 'steady', 'decay'])
        """
        known = self.sampled["job_id"].to_list()
        if self.trace.samples is None or not known:
            todo = "Ingest telemetry with the jobs."
            raise ScenarioError("jobs with telemetry", "at least one", "none", todo)
        name = resolve(job_id, known, what="job with telemetry", error=ScenarioError)
        self.fleet.require_mig("phases of a job")
        mine = self.trace.samples.filter(job_id=name)
        phases = fit_phases(phases_of_jobs(mine, self.trace.jobs), self.model)
        begins = phases.select("phase", "start")
        parted = mine.sort("time").join_asof(begins, left_on="time", right_on="start")
        parted = parted.with_columns(pl.col("phase").fill_null(1)).drop("start")
        each = signatures_of(parted, self.model, jobs=self.trace.jobs, by=("job_id", "phase"))
        whole = signatures_of(mine, self.model, jobs=self.trace.jobs).row(0, named=True)
        held = self.sampled.filter(job_id=name)["gpus"][0]
        price = None
        with suppress(GpuPlannerError):
            price = gpu_hour_price(self.model.name)
        hours = pl.lit(held, pl.Float64) * pl.col("run_s") / SECONDS_PER_HOUR
        cost = hours * pl.lit(None if price is None else price.value, pl.Float64)
        told = each.select("phase", "bound", "evidence")
        priced = phases.with_columns(gpu_hours=hours, cost=cost).join(told, on="phase", how="left")
        spikes = find_spikes(mine)
        return JobView(mine, priced.sort("phase"), spikes, whole["bound"], whole["evidence"], price)


def open_inbox(data: str | Dataset, *, gpu_model: str | None = None, tz: str = "UTC", smallest_group: int = 0) -> Inbox:
    """Open a trace to look into it.

    Examples
    --------
    >>> open_inbox("sample").tenants[:2]
    ['assistants', 'llm-core']
    """
    if not isinstance(data, Dataset):
        data = read_public(data) if data in public_traces() else load_trace(data)
    return Inbox(data, gpu_model, tz, smallest_group)
