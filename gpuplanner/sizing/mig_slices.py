"""Plans on MIG slices: the smallest slice for a training job or a serving engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.hardware.catalog import find_parameter, mig_model_names
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.sizing.job_plans import (
    CACHE_BYTES_BY_NUMBER_FORMAT,
    DEFAULT_TOKENS_PER_STEP,
    JobMemory,
    JobPlan,
    SizingRequest,
    iterate_shapes,
    predict_peak_and_radius,
    price_plan,
)
from gpuplanner.sizing.learned_memory import PeakModel
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.serving_speed import EngineLayout, ServingEstimate, compute_footprint, make_engine, make_layout
from gpuplanner.sizing.training_job import TrainingJob
from gpuplanner.sizing.training_throughput import GpuSpec, estimate_tokens_per_s, make_slice_spec

MIN_WIDE_SPEED_INTERVAL_RATIO = 10.0
"""Ratio of the ends of a speed interval above which the interval is reported as wide, with the data that would narrow
it.
"""
_UNKNOWN_SPEED = (math.nan, math.nan, math.nan)
"""Speed of slices that do not hold the job on GPU models that were not requested."""


@dataclass(frozen=True)
class SliceFit:
    """A job on one slice: the fastest setting that fits, else the one with the lowest risk.

    For serving, ``recompute`` is empty and ``micro_batch`` is the number of concurrent sequences.
    """

    gpu_model: str
    profile: str
    memory_gib: float
    predicted_gib: float
    upper_gib: float
    p_oom: float
    fits: bool
    share_of_gpu: float
    recompute: str
    micro_batch: int
    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float


def describe_wide_speeds(ends: Iterable[tuple[str, float, float]]) -> str | None:
    """Describe slices whose speed is known only within a factor of ten or more, and the data that narrow it.

    Examples
    --------
    >>> describe_wide_speeds([("1g.10gb", 0.02, 1.0), ("3g.40gb", 0.3, 1.0)])
    'the speed on 1g.10gb is known within a factor of 50 only: more in --speed-table narrows it ...'
    >>> describe_wide_speeds([("3g.40gb", 0.3, 1.0)])
    """
    ratios = {name: high / low for name, low, high in ends if high > MIN_WIDE_SPEED_INTERVAL_RATIO * low}
    if not ratios:
        return None
    max_ratio = max(ratios.values())
    remedy = "more in --speed-table narrows it (power_share, step_s, measured_profile and measured_speed)"
    return f"the speed on {', '.join(ratios)} is known within a factor of {max_ratio:.0f} only: {remedy}"


def require_single_speed_row(speed_jobs: pl.DataFrame | None) -> pl.DataFrame:
    """Return the single row of known speeds of a job without its memory; an empty job if there is no table."""
    if speed_jobs is None:
        return pl.DataFrame({"job_class": ["job"]})
    if speed_jobs.height != 1:
        expected = "one row, for the job of --model"
        raise SchemaError("--speed-table", expected, f"{speed_jobs.height} rows", "Keep the row of this job.")
    return speed_jobs.with_columns(memory_gib=None)


def max_slice_fraction(gpu_model: GpuModel, profile: str) -> float:
    """Return the fraction of a GPU that an instance takes: of compute or memory slices, the larger. [0-1].

    Examples
    --------
    >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
    >>> max_slice_fraction(gpu_model, "1g.20gb"), max_slice_fraction(gpu_model, "3g.40gb")
    (0.25, 0.5)
    """
    mig_profile = gpu_model.profile(profile)
    return max(
        mig_profile.compute_slices / gpu_model.compute_slices, mig_profile.memory_slices / gpu_model.memory_slices
    )


def _list_partial_slices(gpu_model: GpuModel) -> list[tuple[str, float]]:
    """List the slices of a GPU model smaller than the GPU, with their memory [GiB], without media extensions."""
    smaller = [
        mig_profile for mig_profile in gpu_model.profiles if mig_profile.compute_slices < gpu_model.compute_slices
    ]
    return [
        (mig_profile.name, mig_profile.memory_gib)
        for mig_profile in smaller
        if mig_profile.memory_gib and "+" not in mig_profile.name
    ]


@dataclass(frozen=True)
class ServingDevice:
    """GPUs or a slice for one engine: fraction of a GPU, GPUs per engine, and instances per GPU."""

    gpu_model: GpuSpec
    profile: str
    share: float
    gpus: int
    instances: int = 1

    @property
    def words(self) -> str:
        """Name of the device in output, such as GPUs or a MIG slice."""
        return f"{self.gpus} x " * (self.gpus > 1) + f"{self.gpu_model.name} {self.profile}".removesuffix(" gpu")


def iterate_serving_devices(architecture: Architecture, gpu_model: GpuSpec, count: int) -> Iterator[ServingDevice]:
    """Yield the devices for one engine: 1, 2, 4 or 8 GPUs that share its heads, or one slice."""
    for gpus in (1, 2, 4, 8):
        if gpus <= count and architecture.heads % gpus == 0:
            yield ServingDevice(gpu_model, "gpu", 1.0, gpus)
    if gpu_model.name in mig_model_names():
        geometry = load_gpu_model(gpu_model.name)
        for profile, _ in _list_partial_slices(geometry):
            share, max_instances = max_slice_fraction(geometry, profile), geometry.profile(profile).max_instances
            yield ServingDevice(make_slice_spec(gpu_model, profile), profile, share, 1, max_instances)


def make_slice_plans(
    request: SizingRequest,
    architecture: Architecture,
    tool: str,
    boards: Sequence[tuple[GpuSpec, int]],
    peaks: PeakModel,
    speed_jobs: pl.DataFrame,
) -> tuple[list[JobPlan], list[SliceFit]]:
    """Make the plans of a job on one slice, with recompute and micro-batch chosen for it, and the fit of every slice.

    Parameters
    ----------
    request : SizingRequest
        The request.
    architecture : Architecture
        The model.
    tool : str
        Training tool.
    boards : sequence of (GpuSpec, int)
        GPU models with their numbers.
    peaks : PeakModel
        Memory model.
    speed_jobs : polars.DataFrame
        Known speed of the job, a row of :class:`~gpuplanner.sizing.mig_speed_law.SpeedModelJobs`.
    """
    candidates = []
    for shape in iterate_shapes(request, architecture, tool, parallel=False):
        job = replace(shape, accumulation=max(1, round(DEFAULT_TOKENS_PER_STEP / (shape.micro_batch * shape.seq))))
        peak, radius = predict_peak_and_radius(job, tool, peaks)
        candidates.append((job, peak, radius))
    level = "tool measured" if peaks.has_tool(tool) else "tool not measured"
    plans, fits = [], []
    for gpu_spec, _ in boards:
        if gpu_spec.name not in mig_model_names():
            continue
        gpu_model = load_gpu_model(gpu_spec.name)
        memory_by_profile = dict(_list_partial_slices(gpu_model))
        choices = {
            profile: (memory_gib, *_choose_shape(candidates, memory_gib, gpu_spec, request, peaks))
            for profile, memory_gib in memory_by_profile.items()
        }
        is_requested = request.boards or any(fit[-1] for fit in choices.values())
        speeds = _predict_speeds(speed_jobs, gpu_model) if is_requested else dict.fromkeys(choices, _UNKNOWN_SPEED)
        for profile, (memory_gib, out, rates, job, peak, radius, fitting) in choices.items():
            if profile not in speeds:
                continue
            low, rate, high = (whole * share for whole, share in zip(rates, speeds[profile], strict=True))
            share, upper = max_slice_fraction(gpu_model, profile), peak * math.exp(radius)
            fits.append(
                SliceFit(gpu_spec.name, profile, memory_gib, peak, upper, out, fitting, share, job.recompute,
                         job.micro_batch, rate, low, high)
            )  # fmt: skip
            if fitting:
                memory = JobMemory(memory_gib, peak, upper, out, level)
                plan = price_plan(gpu_spec, 1, (low, rate, high), memory, request, share)
                plans.append(replace(plan, profile=profile, job=job))
    return plans, fits


def _predict_speeds(speed_jobs: pl.DataFrame, gpu_model: GpuModel) -> dict[str, tuple[float, float, float]]:
    """Predict low, likely and high speed by slice; empty where they cannot be predicted."""
    from gpuplanner.sizing.mig_speed_model import default_speed_model

    try:
        speeds = default_speed_model().predict(speed_jobs, gpu_model, source="--speed-table")
    except GeometryError:
        return {}
    rows = speeds.select("profile", "speed_low", "speed", "speed_high").iter_rows()
    return {profile: (low, speed, high) for profile, low, speed, high in rows}


def _choose_shape(
    candidates: Sequence[tuple[TrainingJob, float, float]],
    memory_gib: float,
    gpu_spec: GpuSpec,
    request: SizingRequest,
    peaks: PeakModel,
) -> tuple[float, tuple[float, float, float], TrainingJob, float, float, bool]:
    """Choose the fastest setting that fits a memory size, or the one most likely to fit, and whether it does."""
    tried = []
    for job, peak, radius in candidates:
        tried.append((peaks.p_oom(peak, memory_gib, radius), estimate_tokens_per_s(job, gpu_spec), job, peak, radius))
    if fitting := [trial for trial in tried if trial[0] <= request.risk]:
        return *max(fitting, key=lambda trial: trial[1][1]), True
    return *min(tried, key=lambda trial: trial[0]), False


def make_serving_plans(
    request: SizingRequest, architecture: Architecture, boards: Sequence[tuple[GpuSpec, int]], peaks: PeakModel
) -> tuple[list[JobPlan], list[SliceFit]]:
    """Make plans of engines on GPUs and slices, as many as the deadline needs, and the fit of every slice."""
    plans: list[JobPlan] = []
    fits: list[SliceFit] = []
    if architecture.kind == "diffusion":
        return plans, fits
    weights, cache_bytes = request.quantization or "none", CACHE_BYTES_BY_NUMBER_FORMAT[request.cache_dtype]

    def engine_of(device_spec: GpuSpec, layout: EngineLayout, itl_s: float | None = None) -> ServingEstimate | None:
        """Size an engine on a device; None if it does not fit."""
        prompt, adapters = request.prompt, request.adapters
        return make_engine(
            architecture, device_spec, layout, request.seq, prompt=prompt, itl_s=itl_s, adapters=adapters
        )

    memory_share = find_parameter("serving_memory_share").value
    for gpu_model, count in boards:
        # An encoder answers as fast on each of several GPUs: it is split only where one does not hold it.
        single = make_layout(architecture, weights, cache_bytes=cache_bytes)
        is_replicated = architecture.kind == "encoder" and engine_of(gpu_model, single) is not None
        for device in iterate_serving_devices(architecture, gpu_model, count):
            t, replicas = (1, device.gpus) if is_replicated else (device.gpus, 1)
            layout = make_layout(architecture, weights, t, cache_bytes=cache_bytes)
            engine = engine_of(device.gpu_model, layout, request.itl_s)
            # weights are known, the workspace is not
            engine_footprint = compute_footprint(architecture, layout, request.seq, request.adapters)
            least_gib, radius = engine_footprint.least_gib, peaks.unseen / 4
            room_gib = device.gpu_model.memory_gib if engine is None else device.gpu_model.memory_gib - engine.cache_gib
            need_gib = least_gib / memory_share if engine is None else engine.weights_gib + engine.workspace_gib
            p_oom = peaks.p_oom(need_gib, room_gib, radius)
            rate = 0.0 if engine is None else engine.tokens_per_s
            low, high = (0.0, 0.0) if engine is None else engine.tokens_per_s_interval
            if device.profile != "gpu":
                fits.append(
                    SliceFit(
                        gpu_model.name, device.profile, device.gpu_model.memory_gib, least_gib,
                        least_gib * math.exp(radius), p_oom, engine is not None, device.share, "", engine.concurrency if
                        engine else 0, rate, low, high,
                    )
                )  # fmt: skip
            if engine is None:
                continue
            if request.tokens and request.deadline_h:
                needed = math.ceil(request.tokens / (3600 * request.deadline_h) / engine.tokens_per_s)
                replicas = max(replicas, needed)
            if replicas * t * device.share > count:
                continue
            rates = (low * replicas, rate * replicas, high * replicas)
            gpu_gib = device.gpu_model.memory_gib
            memory = JobMemory(gpu_gib, need_gib + engine.cache_gib, gpu_gib, p_oom, "tool not measured")
            parts = {name: getattr(engine, f"{name}_gib") for name in ("weights", "cache", "workspace")}
            plan = price_plan(gpu_model, replicas * t, rates, memory, request, device.share)
            plan = replace(plan, profile=device.profile, engine=engine, replicas=replicas, components=parts)
            plans.append(plan)
    return plans, fits
