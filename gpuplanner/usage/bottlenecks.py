"""Bottlenecks of jobs (compute, memory bandwidth, interconnect, …) classified from GPU profiling counters."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import polars as pl

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples
from gpuplanner.core.serialization import read_packaged_rows
from gpuplanner.core.units_and_number_formats import percent_text
from gpuplanner.hardware.catalog import find_data_sheet
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model


@functools.cache
def load_thresholds() -> dict[str, float]:
    """Load the thresholds of the bottleneck rules: name → value, whose unit and source the table of the package has.

    Examples
    --------
    >>> load_thresholds()["effective_sm"]
    0.8
    """
    rows = read_packaged_rows("gpuplanner.usage", "bottleneck_thresholds.csv")
    return {row["name"]: float(row["value"]) for row in rows}


@functools.cache
def advice() -> pl.DataFrame:
    """Load the table of advice for each kind of bottleneck: which MIG slice or GPU model to choose.

    Returns
    -------
    polars.DataFrame
        One row for each of :data:`BOTTLENECK_NAMES` (column ``bound``), all text: its ``meaning``, the advice on a MIG
        slice (``slice``) and on a GPU model (``board``), and the ``source`` of the advice.

    Examples
    --------
    >>> advice().filter(bound="interconnect")["slice"][0]
    'do not partition: instances have no peer-to-peer between GPUs'
    """
    return pl.DataFrame(read_packaged_rows("gpuplanner.usage", "bottleneck_advice.csv"))


BOTTLENECK_NAMES = ("compute", "memory-bandwidth", "interconnect", "input", "launch", "mixed", "idle", "unclear")
"""Kinds of bottleneck that a job can have: what limits its speed."""
PROFILING_COUNTER_COLUMNS = ("sm_activity", "tensor_activity", "dram_activity", "pcie_gb_s", "nvlink_gb_s")
"""Columns of GPU profiling counters that the rules read; null means not measured, never 0."""


@dataclass(frozen=True)
class Signature:
    """Bottleneck of a job, with its evidence.

    - ``bound``: One of :data:`BOTTLENECK_NAMES`.
    - ``evidence``: Counter values that decided, beside their thresholds, as text.
    """

    bound: str
    evidence: str


@dataclass(frozen=True)
class Counters:
    """Mean profiling counters of a job over its telemetry readings; None: not measured, never 0.

    Parameters
    ----------
    sm_activity, tensor_activity, dram_activity : float, optional
        Shares of time [0-1].
    pcie_gb_s, nvlink_gb_s : float, optional
        Traffic of both directions [GB/s].
    sm_occupancy : float, optional
        Resident warps over the maximum that multiprocessors can hold [0-1].
    idle_share : float, optional
        Share of the readings with less SM activity than ``idle_sm``.
    power_share : float, optional
        Mean power over the power limit of the GPU [0-1].
    activity_source : str, optional
        Kind of activity counter: ``profiling``, or a coarser one such as ``engine`` or ``legacy``.

    Examples
    --------
    >>> Counters(sm_activity=0.9, activity_source="profiling").tensor_activity is None
    True
    """

    sm_activity: float | None = None
    tensor_activity: float | None = None
    dram_activity: float | None = None
    pcie_gb_s: float | None = None
    nvlink_gb_s: float | None = None
    sm_occupancy: float | None = None
    idle_share: float | None = None
    power_share: float | None = None
    activity_source: str | None = None


def signature(counters: Counters, *, gpus: int = 1, nvlink_peak_gb_s: float | None = None) -> Signature:
    """Classify the bottleneck of a job from the means of its profiling counters.

    The first rule that holds wins: idle; memory-bandwidth, where memory is nearer to its reachable peak than
    the tensor cores; compute, where tensor cores or multiprocessors are busy; input, where the GPU is quiet
    and the host link is not, or it works in bursts with waits between; interconnect, where multiprocessors
    are used ineffectively and the links between GPUs carry much; launch, where they are used ineffectively
    and nothing else is busy; else mixed, as where the links carry some traffic but are far from their limit.
    A rule whose fields were not read does not hold, and what comes after it then cannot be told either, since
    it rests on that rule having failed.

    Parameters
    ----------
    counters : Counters
        Over the readings of a job.
    gpus : int
        GPUs of the job: a single GPU exchanges with no other.
    nvlink_peak_gb_s : float, optional
        NVLink bandwidth of the GPU model, both directions together. [GB/s]

    Returns
    -------
    Signature
        The bound and its evidence.

    References
    ----------
    NVIDIA, DCGM User Guide, Feature Overview, Profiling Metrics. Williams, Waterman, Patterson, "Roofline", CACM
    52(4), 2009, doi 10.1145/1498765.1498785: the resource nearest to its peak bounds.

    Examples
    --------
    >>> signature(Counters(0.9, tensor_activity=0.6, dram_activity=0.3, activity_source="profiling")).bound
    'compute'
    >>> signature(Counters(0.99, activity_source="legacy"))
    Signature(bound='unclear', evidence='only the legacy counter was read: 0.99 of the time some kernel ran,
    on however few multiprocessors')
    """
    limit = load_thresholds()
    activity_source, sm = counters.activity_source, counters.sm_activity
    tensor, dram = counters.tensor_activity, counters.dram_activity
    pcie = counters.pcie_gb_s
    if activity_source != "profiling" or sm is None:
        return Signature("unclear", _describe_missing_profiling(activity_source, sm))
    text = f"SM activity {sm:.2g}"
    if sm < limit["idle_sm"] and (pcie is None or pcie < limit["heavy_pcie_gb_s"]):
        return Signature("idle", f"{text} < {limit['idle_sm']:g}")
    if tensor is None or dram is None:
        absent = [name for name, value in (("tensor", tensor), ("DRAM", dram)) if value is None]
        return Signature("unclear", f"{text}; {' and '.join(absent)} activity not read")
    text += f", tensor {tensor:.2g}, DRAM {dram:.2g}" + _format_occupancy_and_power(counters, limit)
    near_tensor, near_dram = tensor / limit["tensor_peak"], dram / limit["dram_peak"]
    if dram >= limit["bound_dram"] and near_dram >= near_tensor:
        text += f"; {percent_text(near_dram)} of the DRAM activity that can be reached"
        return Signature("memory-bandwidth", f"{text}, {percent_text(near_tensor)} of the tensor")
    busy = sm >= limit["ineffective_sm"] and tensor >= limit["some_tensor"]
    if tensor >= limit["heavy_tensor"] or sm >= limit["effective_sm"] or busy:
        text += f"; {percent_text(near_tensor)} of the tensor activity that can be reached"
        return Signature("compute", text)
    return _classify_quiet_gpus(text, sm, counters, gpus, nvlink_peak_gb_s, limit)


def _classify_quiet_gpus(
    text: str, sm: float, counters: Counters, gpus: int, nvlink_peak_gb_s: float | None, limit: Mapping[str, float]
) -> Signature:
    """Classify the bottleneck of a job whose GPUs are mostly waiting: input, interconnect, launch or mixed.

    Parameters
    ----------
    text : str
        Evidence that the earlier rules collected.
    sm : float
        SM activity. [0-1]
    counters : Counters
        Means of the profiling counters.
    gpus : int
        GPUs of the job.
    nvlink_peak_gb_s : float or None
        NVLink bandwidth of the GPU model. [GB/s]
    limit : mapping of str to float
        Thresholds by name.
    """
    pcie, nvlink, idle_share = counters.pcie_gb_s, counters.nvlink_gb_s, counters.idle_share
    quiet = sm < limit["waiting_sm"]
    if quiet and idle_share is not None and idle_share >= limit["waiting_share"]:
        host = "not read" if pcie is None else f"{pcie:.2g} GB/s"
        return Signature("input", f"{text}; idle in {percent_text(idle_share)} of the readings; PCIe {host}")
    if quiet and pcie is not None and pcie >= limit["heavy_pcie_gb_s"]:
        heavy = limit["heavy_pcie_gb_s"]
        return Signature("input", f"{text}; PCIe {pcie:.2g} GB/s >= {heavy:g} while the GPU is quiet")
    if quiet and pcie is None:
        return Signature("unclear", f"{text}; PCIe traffic not read")
    if sm >= limit["ineffective_sm"]:
        return Signature("mixed", f"{text}; no resource is near its limit")
    low = f"{text}; SM activity < {limit['ineffective_sm']:g} is likely ineffective"
    if gpus > 1:
        if nvlink is None or nvlink_peak_gb_s is None:
            resource = "NVLink traffic not read" if nvlink is None else "NVLink bandwidth of the GPU not known"
            return Signature("unclear", f"{low}; {resource}")
        share = nvlink / nvlink_peak_gb_s
        low += f"; NVLink {nvlink:.3g} GB/s = {percent_text(share)} of {nvlink_peak_gb_s:g}"
        if share >= limit["heavy_nvlink_share"]:
            return Signature("interconnect", low)
        if share > limit["light_nvlink_share"]:
            return Signature("mixed", f"{low}, which is neither its limit nor nothing")
    return Signature("launch", f"{low}; no other resource is busy")


def _describe_missing_profiling(activity_source: object, activity: float | None) -> str:
    """Explain why a job is not classified: only a coarser activity counter than profiling was read, or none."""
    if activity_source == "legacy" and activity is not None:
        ran = f"{activity:.2g} of the time some kernel ran, on however few multiprocessors"
        return f"only the legacy counter was read: {ran}"
    if activity_source == "engine" and activity is not None:
        return f"only engine activity {activity:.2g} was read, which one small kernel raises"
    return "SM activity not read"


def _format_occupancy_and_power(counters: Counters, limit: Mapping[str, float]) -> str:
    """Format SM occupancy and power as additional evidence; no rule depends on them."""
    occupancy, power = counters.sm_occupancy, counters.power_share
    text = "" if occupancy is None else f", occupancy {occupancy:.2g}"
    if power is None:
        return text
    low = " (too little for a busy GPU)" if power < limit["low_power_share"] else ""
    return f"{text}, power {percent_text(power)} of the limit{low}"


DEVICE_KEY_COLUMNS = ("node", "gpu", "instance")
"""Columns that identify a device in telemetry samples: node, GPU number and MIG instance."""


def classify_bottlenecks(
    samples: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    jobs: pl.DataFrame | None = None,
    by: Sequence[str] = ("job_id",),
) -> pl.DataFrame:
    """Classify the bottleneck of each job, or of each phase of a job.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``, and beside it the columns of `by`.
    gpu_model : GpuModel or str
        The GPU model that was sampled: its power limit and NVLink bandwidth.
    jobs : polars.DataFrame, optional
        ``job_id`` and ``gpus``: GPUs of jobs of which only some were sampled; the share of those with ``instances``.
        Otherwise the sampled devices count.
    by : sequence of str
        Columns that identify a group; ``("job_id", "phase")`` classifies each phase.

    Returns
    -------
    polars.DataFrame
        The columns of `by`, ``bound``, ``evidence``, ``hours`` that were sampled (readings of a device times
        their usual distance), ``gpus``, and the means of the counters; sorted by `by`.

    Raises
    ------
    SchemaError
        If the samples lack columns.
    GeometryError
        If the GPU model is unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> row = {"time": datetime(2026, 2, 2, tzinfo=UTC), "node": "n1", "gpu": 0, "job_id": "7"}
    >>> row |= {"sm_activity": 0.9, "tensor_activity": 0.6, "dram_activity": 0.2, "activity_source": "profiling"}
    >>> classify_bottlenecks(pl.DataFrame([row]), "H100-80GB-SXM5").select("job_id", "bound").row(0)
    ('7', 'compute')
    """
    spec = find_data_sheet(as_gpu_model(gpu_model).name)
    means = _mean_counters(samples, by, load_thresholds()["idle_sm"], spec.tdp_w)
    gpus, share = means["devices"], means["devices"].cast(pl.Float64)
    if jobs is not None and "job_id" in by:
        # A job on instances holds its share of GPUs, however many devices were sampled.
        cut = pl.col("instances").is_not_null() if "instances" in jobs.columns else pl.lit(value=False)
        requested = jobs.select("job_id", asked="gpus", share=pl.when(cut).then("gpus")).unique("job_id")
        allocated = means.select("job_id", "devices").join(requested, on="job_id", how="left", maintain_order="left")
        whole = pl.when(pl.col("share").is_null()).then(pl.col("asked").ceil().cast(pl.Int64))
        gpus = allocated.select(pl.max_horizontal("devices", whole)).to_series()
        share = allocated.select(pl.coalesce("share", gpus.cast(pl.Float64))).to_series()
    counters = means.select(field.name for field in fields(Counters))
    named = [
        signature(Counters(*row), gpus=count, nvlink_peak_gb_s=spec.nvlink_or_fabric_total_gb_s)
        for row, count in zip(counters.iter_rows(), gpus, strict=True)
    ]
    bounds = pl.Series("bound", [job_counters.bound for job_counters in named], dtype=pl.String)
    evidence = pl.Series("evidence", [job_counters.evidence for job_counters in named], dtype=pl.String)
    shares = (*PROFILING_COUNTER_COLUMNS, "idle_share", "power_share")
    return means.select(*by, bounds, evidence, "hours", share.alias("gpus"), *shares).sort(by)


def bottlenecks_by_class(signatures: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Tabulate the share of each bottleneck among the jobs of a class, with advice.

    Parameters
    ----------
    signatures : polars.DataFrame
        From :func:`classify_bottlenecks`, by job.
    jobs : polars.DataFrame
        ``job_id`` and ``job_class``.

    Returns
    -------
    polars.DataFrame
        ``job_class``, ``bound`` (the bottleneck), ``jobs``, ``gpu_hours`` (sampled hours of a job times its GPUs),
        ``share`` of the class's GPU-hours [0-1], and the advice of :func:`advice` on a MIG slice (``slice``) and a GPU
        model (``board``). Most GPU-hours of a class first.

    Examples
    --------
    >>> signatures = pl.DataFrame({"job_id": ["1", "2"], "bound": ["idle", "compute"], "hours": 1.0, "gpus": [1, 3]})
    >>> jobs = pl.DataFrame({"job_id": ["1", "2"], "job_class": "tuning"})
    >>> bottlenecks_by_class(signatures, jobs).select("bound", "jobs", "share").rows()
    [('compute', 1, 0.75), ('idle', 1, 0.25)]
    """
    classes = jobs.select("job_id", "job_class").unique("job_id")
    return (
        signatures.join(classes, on="job_id", how="left")
        .with_columns(pl.col("job_class").fill_null("not known"))
        .group_by("job_class", "bound")
        .agg(jobs=pl.len(), gpu_hours=(pl.col("hours") * pl.col("gpus")).sum())
        .with_columns(share=pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("job_class"))
        .join(advice().select("bound", "slice", "board"), on="bound", how="left")
        .sort("job_class", "gpu_hours", "bound", descending=[False, True, False])
    )


def _mean_counters(samples: pl.DataFrame, by: Sequence[str], idle: float, limit_w: float | None) -> pl.DataFrame:
    """Compute the mean of each profiling counter by group, over the readings that have a value.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    by : sequence of str
        Columns of a group.
    idle : float
        SM activity below which a telemetry reading counts as idle. [0-1]
    limit_w : float or None
        Power limit of the GPU model. [W]
    """
    table = conform(samples, Samples, source="signatures: samples")
    joined = [name for name in by if name not in table.columns]
    table = table.with_columns(samples.select(joined)) if joined else table
    apart_h = pl.col("time").sort().diff().over(*by, *DEVICE_KEY_COLUMNS).dt.total_microseconds() / 3.6e9
    usual_source = pl.col("activity_source").mode().sort().last()
    return (
        table.sort("time")
        .with_columns(apart_h=apart_h)
        .group_by(by, maintain_order=True)
        .agg(
            *(pl.col(name).mean() for name in PROFILING_COUNTER_COLUMNS),
            pl.col("sm_occupancy").mean(),
            idle_share=(pl.col("sm_activity") < idle).mean(),
            power_share=pl.col("power_w").mean() / limit_w if limit_w else pl.lit(None, pl.Float64),
            activity_source=usual_source,
            devices=pl.struct(DEVICE_KEY_COLUMNS).n_unique().cast(pl.Int64),
            hours=pl.len() * pl.col("apart_h").median().fill_null(0.0) / pl.struct(DEVICE_KEY_COLUMNS).n_unique(),
        )
    )
