"""The smallest MIG slice for a job or a serving engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.hardware.catalog import board_names, parameter
from gpuplanner.hardware.gpu_models import GpuModel, load_gpu_model
from gpuplanner.sizing.job_plans import (
    CACHES,
    STEP_TOKENS,
    JobMemory,
    JobPlan,
    Wish,
    expected_peak,
    priced,
    shapes,
)
from gpuplanner.sizing.learned_memory import PeakModel
from gpuplanner.sizing.model_architecture import Architecture
from gpuplanner.sizing.serving_speed import EngineLayout, Serving, footprint, layout_of, serve
from gpuplanner.sizing.throughput import Board, slice_board, tokens_per_s
from gpuplanner.sizing.training_job import TrainingJob

WIDE = 10.0
"""Width of an interval of speed, as a ratio, from which it is said that it says little."""
_UNASKED = (math.nan, math.nan, math.nan)
"""Speed of slices that do not hold the job, on boards that nobody named: it takes time and is not shown."""


@dataclass(frozen=True)
class SliceFit:
    """A job on one slice of a board: the fastest way that fits it, else the one least likely to run out of memory.

    An engine that serves has no ``recompute``, and as ``micro_batch`` the sequences that it serves at once.
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


def wide_speeds(ends: Iterable[tuple[str, float, float]]) -> str | None:
    """Words on slices whose speed is known within a factor of ten only or worse, and what would narrow it.

    Examples
    --------
    >>> wide_speeds([("1g.10gb", 0.02, 1.0), ("3g.40gb", 0.3, 1.0)])
    'the speed on 1g.10gb is known within a factor of 50 only: more in --speed-table narrows it ...'
    >>> wide_speeds([("3g.40gb", 0.3, 1.0)])
    """
    wide = {name: high / low for name, low, high in ends if high > WIDE * low}
    if not wide:
        return None
    most = max(wide.values())
    narrows = "more in --speed-table narrows it (power_share, step_s, measured_profile and measured_speed)"
    return f"the speed on {', '.join(wide)} is known within a factor of {most:.0f} only: {narrows}"


def one_job(known: pl.DataFrame | None) -> pl.DataFrame:
    """What is known of one job's speed; its memory is left to the prediction."""
    if known is None:
        return pl.DataFrame({"job_class": ["job"]})
    if known.height != 1:
        expected = "one row, for the job of --model"
        raise SchemaError("--speed-table", expected, f"{known.height} rows", "Keep the row of this job.")
    return known.with_columns(memory_gib=None)


def share_of(gpu_model: GpuModel, profile: str) -> float:
    """What an instance takes of its board: its compute slices or its memory slices, whichever is the larger share.

    Examples
    --------
    >>> gpu_model = load_gpu_model("H100-80GB-SXM5")
    >>> share_of(gpu_model, "1g.20gb"), share_of(gpu_model, "3g.40gb")
    (0.25, 0.5)
    """
    one = gpu_model.profile(profile)
    return max(one.compute_slices / gpu_model.compute_slices, one.memory_slices / gpu_model.memory_slices)


def _slices(gpu_model: GpuModel) -> list[tuple[str, float]]:
    """Slices of a board that are less than all of it, with their memory; media extensions change nothing here."""
    smaller = [one for one in gpu_model.profiles if one.compute_slices < gpu_model.compute_slices]
    return [(one.name, one.memory_gib) for one in smaller if one.memory_gib and "+" not in one.name]


@dataclass(frozen=True)
class ServingPlace:
    """A GPU or a slice of one, its share of that GPU, how many one engine takes, and how many one GPU has."""

    gpu_model: Board
    profile: str
    share: float
    gpus: int
    instances: int = 1

    @property
    def words(self) -> str:
        """The place as people call it."""
        return f"{self.gpus} x " * (self.gpus > 1) + f"{self.gpu_model.name} {self.profile}".removesuffix(" gpu")


def serving_places(model: Architecture, gpu_model: Board, count: int) -> Iterator[ServingPlace]:
    """Places for one engine on a number of GPUs: 1, 2, 4 or 8 that share its heads, or one slice."""
    for gpus in (1, 2, 4, 8):
        if gpus <= count and model.heads % gpus == 0:
            yield ServingPlace(gpu_model, "gpu", 1.0, gpus)
    if gpu_model.name in board_names():
        geometry = load_gpu_model(gpu_model.name)
        for profile, _ in _slices(geometry):
            share, most = share_of(geometry, profile), geometry.profile(profile).max_instances
            yield ServingPlace(slice_board(gpu_model, profile), profile, share, 1, most)


def slice_plans(
    wish: Wish,
    model: Architecture,
    tool: str,
    boards: Sequence[tuple[Board, int]],
    peaks: PeakModel,
    known: pl.DataFrame,
) -> tuple[list[JobPlan], list[SliceFit]]:
    """Plans of one slice, recompute and micro-batch chosen for it, at its speed; and how each slice would do.

    ``known`` is what the user knows of the job's speed, a row of :class:`~gpuplanner.sizing.mig_speed_law.SpeedJobs`.
    """
    ways = []
    for shape in shapes(wish, model, tool, parallel=False):
        job = replace(shape, accumulation=max(1, round(STEP_TOKENS / (shape.micro_batch * shape.seq))))
        peak, radius = expected_peak(job, tool, peaks)
        ways.append((job, peak, radius))
    level = "tool measured" if peaks.seen(tool) else "tool not measured"
    plans, fits = [], []
    for facts, _ in boards:
        if facts.name not in board_names():
            continue
        gpu_model = load_gpu_model(facts.name)
        rooms = dict(_slices(gpu_model))
        of_slice = {profile: (room, *_way(ways, room, facts, wish, peaks)) for profile, room in rooms.items()}
        asked = wish.boards or any(one[-1] for one in of_slice.values())
        told = _speeds(known, gpu_model) if asked else dict.fromkeys(of_slice, _UNASKED)
        for profile, (room, out, rates, job, peak, radius, fitting) in of_slice.items():
            if profile not in told:
                continue
            low, rate, high = (whole * share for whole, share in zip(rates, told[profile], strict=True))
            share, upper = share_of(gpu_model, profile), peak * math.exp(radius)
            fits.append(
                SliceFit(facts.name, profile, room, peak, upper, out, fitting, share, job.recompute,
                         job.micro_batch, rate, low, high)
            )  # fmt: skip
            if fitting:
                memory = JobMemory(room, peak, upper, out, level)
                plan = priced(facts, 1, (low, rate, high), memory, wish, share)
                plans.append(replace(plan, profile=profile, job=job))
    return plans, fits


def _speeds(known: pl.DataFrame, gpu_model: GpuModel) -> dict[str, tuple[float, float, float]]:
    """Least, likely and largest speed by slice; none where no source states SMs, or another board's was measured."""
    from gpuplanner.sizing.mig_speed_model import default_model

    try:
        speeds = default_model().predict(known, gpu_model, where="--speed-table")
    except GeometryError:
        return {}
    rows = speeds.select("profile", "speed_low", "speed", "speed_high").iter_rows()
    return {profile: (low, speed, high) for profile, low, speed, high in rows}


def _way(
    ways: Sequence[tuple[TrainingJob, float, float]], room: float, facts: Board, wish: Wish, peaks: PeakModel
) -> tuple[float, tuple[float, float, float], TrainingJob, float, float, bool]:
    """The fastest way that a room holds, or the one likeliest to fit, and whether it does."""
    tried = []
    for job, peak, radius in ways:
        tried.append((peaks.p_oom(peak, room, radius), tokens_per_s(job, facts), job, peak, radius))
    if fitting := [one for one in tried if one[0] <= wish.risk]:
        return *max(fitting, key=lambda one: one[1][1]), True
    return *min(tried, key=lambda one: one[0]), False


def serving_plans(
    wish: Wish, model: Architecture, boards: Sequence[tuple[Board, int]], peaks: PeakModel
) -> tuple[list[JobPlan], list[SliceFit]]:
    """Engines on boards and their slices, as many as the deadline asks for; and how each slice would do."""
    plans: list[JobPlan] = []
    fits: list[SliceFit] = []
    if model.kind == "diffusion":
        return plans, fits
    weights, cache_bytes = wish.quantization or "none", CACHES[wish.cache_dtype]

    def engine_of(place: Board, layout: EngineLayout, itl_s: float | None = None) -> Serving | None:
        prompt, adapters = wish.prompt, wish.adapters
        return serve(model, place, layout, wish.seq, prompt=prompt, itl_s=itl_s, adapters=adapters)

    kept = parameter("serving_memory_share").value
    for gpu_model, count in boards:
        # An encoder answers as fast on each of several GPUs: it is split only where one does not hold it.
        single = layout_of(model, weights, cache_bytes=cache_bytes)
        alone = model.kind == "encoder" and engine_of(gpu_model, single) is not None
        for place in serving_places(model, gpu_model, count):
            t, replicas = (1, place.gpus) if alone else (place.gpus, 1)
            layout = layout_of(model, weights, t, cache_bytes=cache_bytes)
            engine = engine_of(place.gpu_model, layout, wish.itl_s)
            # weights are known, the workspace is not
            taken = footprint(model, layout, wish.seq, wish.adapters)
            least, radius = taken.least_gib, peaks.unseen / 4
            room = place.gpu_model.memory_gib if engine is None else place.gpu_model.memory_gib - engine.cache_gib
            need = least / kept if engine is None else engine.weights_gib + engine.workspace_gib
            out = peaks.p_oom(need, room, radius)
            rate = 0.0 if engine is None else engine.tokens_per_s
            low, high = (0.0, 0.0) if engine is None else engine.tokens_per_s_interval
            if place.profile != "gpu":
                fits.append(
                    SliceFit(
                        gpu_model.name, place.profile, place.gpu_model.memory_gib, least, least * math.exp(radius), out,
                        engine is not None, place.share, "", engine.concurrency if engine else 0, rate, low, high,
                    )
                )  # fmt: skip
            if engine is None:
                continue
            if wish.tokens and wish.deadline_h:
                asked = math.ceil(wish.tokens / (3600 * wish.deadline_h) / engine.tokens_per_s)
                replicas = max(replicas, asked)
            if replicas * t * place.share > count:
                continue
            rates = (low * replicas, rate * replicas, high * replicas)
            whole = place.gpu_model.memory_gib
            memory = JobMemory(whole, need + engine.cache_gib, whole, out, "tool not measured")
            parts = {name: getattr(engine, f"{name}_gib") for name in ("weights", "cache", "workspace")}
            plan = priced(gpu_model, replicas * t, rates, memory, wish, place.share)
            plan = replace(plan, profile=place.profile, engine=engine, replicas=replicas, components=parts)
            plans.append(plan)
    return plans, fits
