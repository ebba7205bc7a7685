"""Memory trends of running jobs: growth, time until memory is full, and the next profile."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import FULL_GPU, Samples
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.sizing.learned_memory import find_smallest_slices
from gpuplanner.sizing.training_run_tables import predict_table
from gpuplanner.usage.planning_history import load_dataset
from gpuplanner.usage.requested_demand import slice_profiles
from gpuplanner.usage.rightsizing import requested_and_used

TREND_TIME_BINS = 48
"""Time bins of a run whose peaks are followed, so that spikes of evaluation and checkpoints count."""
MIN_TREND_PEAKS = 8
"""Fewest peaks in the later half of a run for a trend."""
MIN_MANN_KENDALL_Z = 2.33
"""Least z of Mann and Kendall's test for a trend: the one-sided 1 % point, as fleets test many jobs at once."""
MIN_TREND_SAMPLED_H = 1.0
"""Shortest sampled time for a trend, since data loading and compiling look like growth. [h]"""
MIN_PEAK_RISE_FRACTION = 0.01
"""Rise of the peaks over the later half of a run, as a fraction of the highest, below which it is allocator noise."""
MIN_PEAK_RISE_GIB = 0.25
"""Rise of the peaks over the later half of a run below which it is allocator noise [GiB]."""
MAX_LEVELLING_RISE_RATIO = 0.6
"""Rise in the last quarter of a run over that in the quarter before up to which growth counts as levelling off: the
rise is assumed to go on falling by that ratio.
"""
TREND_HEADROOM = 0.05
"""Fraction added to the forecast memory before the next profile is chosen."""

_Floats = NDArray[np.float64]
"""Array of floats."""


@dataclass(frozen=True)
class PeakTrend:
    """Trend of the peaks of a run: GiB per hour with its upper bound, and the remaining rise where it levels off."""

    kind: str
    gib_per_h: float = 0.0
    gib_per_h_high: float = 0.0
    rise_left_gib: float = math.inf


@dataclass(frozen=True)
class _MemoryForecast:
    """Hours until a run fills its memory, at the trend and its upper bound, and its peak at the end [GiB]."""

    full_in_h: float | None
    full_in_h_low: float | None
    at_end_gib: float | None


def classify_trend(hours: _Floats, peaks: _Floats) -> PeakTrend:
    """Distinguish growth from a plateau by the later half of a run.

    Examples
    --------
    >>> hours = np.arange(32.0)
    >>> classify_trend(hours, 10 + 0.5 * hours).kind, classify_trend(hours, np.full(32, 10.0)).kind
    ('grows', 'plateau')
    >>> classify_trend(hours, np.where(hours > 24, 14.0, 10.0)).kind
    'step'
    """
    in_later_half = hours >= (hours[0] + hours[-1]) / 2
    x, y = hours[in_later_half], peaks[in_later_half]
    n = len(x)
    if n < MIN_TREND_PEAKS or hours[-1] - hours[0] < MIN_TREND_SAMPLED_H:
        return PeakTrend("too short")
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    _, ties = np.unique(y, return_counts=True)
    spread = math.sqrt((n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18)
    score = float(np.sign(y[second] - y[first]).sum())
    slope, span = float(np.median(slopes)), float(x[-1] - x[0])
    least_rise = max(MIN_PEAK_RISE_GIB, MIN_PEAK_RISE_FRACTION * float(y.max()))
    if score - 1 <= MIN_MANN_KENDALL_Z * spread or float(y.max() - y[0]) < least_rise:
        return PeakTrend("plateau")
    if _is_single_step(x, y):
        return PeakTrend("step")
    reach = 1.96 * spread
    high = float(slopes[min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))])
    before, last = (float(np.median(part)) for part in _quarter_slopes(x, y, span))
    ratio = max(0.0, last / before) if before > 0 else 1.0
    if ratio < MAX_LEVELLING_RISE_RATIO:
        return PeakTrend("levels off", max(last, 0.0), high, max(last, 0.0) * span / 2 * ratio / (1 - ratio))
    return PeakTrend("grows", slope, high)


def _is_single_step(x: _Floats, y: _Floats) -> bool:
    """Whether two constant levels describe the peaks better than a line: such a step shows no trend for later hours."""
    halves = ((y[:cut], y[cut:]) for cut in range(1, len(y)))
    levels = min(sum(float(((half - half.mean()) ** 2).sum()) for half in both) for both in halves)
    line = np.polynomial.Polynomial.fit(x, y, 1)
    return levels < float(((y - line(x)) ** 2).sum())


def _quarter_slopes(x: _Floats, y: _Floats, span: float) -> tuple[_Floats, _Floats]:
    """Return the slopes between all pairs of peaks in the last quarter but one of a run, and in the last quarter."""
    parts = []
    for in_quarter in (x <= x[0] + span / 2, x >= x[0] + span / 2):
        hours, value = x[in_quarter], y[in_quarter]
        first, second = np.triu_indices(len(hours), 1)
        parts.append((value[second] - value[first]) / (hours[second] - hours[first]))
    return parts[0], parts[1]


def peak_trends(
    history: pl.DataFrame, samples: pl.DataFrame, now: datetime, *, checkpoint_h: float | None = None
) -> pl.DataFrame:
    """Follow the memory of every sampled job and recommend an action.

    Parameters
    ----------
    history : polars.DataFrame
        Of :func:`~gpuplanner.usage.rightsizing.requested_and_used`; ``run_s`` is null where a job still runs.
    samples : polars.DataFrame
        Table ``schemas.Samples``; those that name a job and its memory count.
    now : datetime
        End of what is known: a running job ran until then.
    checkpoint_h : float, optional
        Hours between checkpoints; None: a restart repeats the whole run.

    Returns
    -------
    polars.DataFrame
        One row a job, the most urgent first: ``job_id``, ``tenant``, ``running``, ``profile``, ``room_gib``,
        ``peak_gib``, ``trend`` (``grows``, ``levels off``, ``step``, ``plateau``, ``too short``), ``gib_per_h``,
        ``hours_left`` (of its time limit; null if unknown), ``full_in_h`` and ``full_in_h_low`` (at the upper
        bound of the slope), ``at_end_gib`` (upper bound), ``next_profile`` (null: stay), ``restart_gpu_hours``
        that a restart now repeats, ``lost_gpu_hours`` when the slice is full first, and ``advice``.

    Raises
    ------
    SchemaError
        If samples are not what they should be.
    GeometryError
        If a GPU model of `history` is unknown.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> times = [nine + timedelta(minutes=10 * step) for step in range(60)]
    >>> samples = pl.DataFrame({"time": times, "node": "n", "gpu": 0, "job_id": "1", "activity_source": "none",
    ...     "memory_used_gib": [5 + 0.07 * step for step in range(60)]}, schema_overrides={"gpu": pl.Int32})
    >>> job = {"job_id": ["1"], "tenant": "a", "board": "H100-80GB-SXM5", "profile": "1g.10gb", "instances": 1.0,
    ...     "memory_asked_gib": 9.75, "start_time": nine, "run_s": None, "time_limit_s": 86400.0,
    ...     "share_asked": 1 / 7}
    >>> print(peak_trends(pl.DataFrame(job), samples, times[-1])["advice"][0])
    grows by 0.42 GiB an hour; full in 1.5 h (1.5 at the earliest) of 14.2 left: move to 1g.20gb now; ...
    """
    table = conform(samples, Samples, source="peak trend: samples")
    is_reliable = pl.col("job_evidence").is_null() | ~pl.col("job_evidence").is_in(["together", "none"])
    known_samples = table.drop_nulls(["job_id", "memory_used_gib"]).filter(is_reliable)
    runs = {
        name: (rows["time"].dt.epoch("us").to_numpy() / 3.6e9, rows["memory_used_gib"].to_numpy())
        for (name,), rows in known_samples.sort("time").group_by(["job_id"], maintain_order=True)
    }
    jobs = history.filter(pl.col("job_id").is_in(list(runs)) & pl.col("memory_asked_gib").is_not_null())
    rows = jobs.iter_rows(named=True)
    trend_rows = [_make_trend_row(row, *_bin_peaks(*runs[row["job_id"]]), now, checkpoint_h) for row in rows]
    return pl.DataFrame(trend_rows, schema=DTYPE_BY_TREND_COLUMN, infer_schema_length=None).sort(
        pl.col("next_profile").is_null() | ~pl.col("running"), "full_in_h", "job_id", nulls_last=True
    )


DTYPE_BY_TREND_COLUMN = {
    "job_id": pl.String, "tenant": pl.String, "running": pl.Boolean, "profile": pl.String, "room_gib": pl.Float64,
    "peak_gib": pl.Float64, "trend": pl.String, "gib_per_h": pl.Float64, "hours_left": pl.Float64,
    "full_in_h": pl.Float64, "full_in_h_low": pl.Float64, "at_end_gib": pl.Float64, "next_profile": pl.String,
    "restart_gpu_hours": pl.Float64, "lost_gpu_hours": pl.Float64, "advice": pl.String,
}  # fmt: skip
"""Columns of the table of :func:`peak_trends`, with dtypes."""


def _bin_peaks(hours: _Floats, gib: _Floats) -> tuple[_Floats, _Floats]:
    """Return the peak of each time bin over all devices, with its time."""
    span = hours[-1] - hours[0]
    piece = np.minimum(((hours - hours[0]) / (span or 1.0) * TREND_TIME_BINS).astype(np.int64), TREND_TIME_BINS - 1)
    order = np.lexsort((-gib, piece))
    first = order[np.unique(piece[order], return_index=True)[1]]
    return hours[first], gib[first]


def _make_trend_row(
    job: dict[str, object], hours: _Floats, peaks: _Floats, now: datetime, checkpoint_h: float | None
) -> dict[str, object]:
    """Return the row of :func:`peak_trends` for one job: its trend, forecast of memory and advice."""
    start_time, limit, has_ended = job["start_time"], job["time_limit_s"], job["run_s"] is not None
    room_gib, share = float(job["memory_asked_gib"]), float(job["share_asked"] or 1.0)  # type: ignore[arg-type]
    run_h = (job["run_s"] if has_ended else (now - start_time).total_seconds()) / 3600  # type: ignore[operator]
    hours_left = None if limit is None else max(0.0, float(limit) / 3600 - run_h)  # type: ignore[arg-type]
    trend, peak = classify_trend(hours, peaks), float(peaks.max())
    memory_forecast = _forecast_memory(trend, peak, room_gib, hours_left)
    width = share * float(job["instances"])  # type: ignore[arg-type]
    repeated = width * (run_h if checkpoint_h is None else min(run_h, checkpoint_h))
    need_gib = None if memory_forecast.at_end_gib is None else memory_forecast.at_end_gib * (1 + TREND_HEADROOM)
    becomes_full = memory_forecast.full_in_h_low is not None and (
        hours_left is None or memory_forecast.full_in_h_low < hours_left
    )
    has_outgrown = trend.kind == "step" and peak * (1 + TREND_HEADROOM) > room_gib
    wanted_gib = max(need_gib or 0.0, peak * (1 + TREND_HEADROOM), room_gib * (1 + TREND_HEADROOM))
    next_profile = _find_next_profile(job, wanted_gib) if becomes_full or has_outgrown else None
    lost = None
    if becomes_full and memory_forecast.full_in_h is not None:
        lost = repeated if checkpoint_h is not None else repeated + width * memory_forecast.full_in_h
    trend_row = {
        "job_id": job["job_id"], "tenant": job["tenant"], "running": not has_ended, "profile": job["profile"],
        "room_gib": room_gib, "peak_gib": peak, "trend": trend.kind, "gib_per_h": trend.gib_per_h,
        "hours_left": hours_left, **asdict(memory_forecast),
        "next_profile": next_profile, "restart_gpu_hours": repeated, "lost_gpu_hours": lost,
    }  # fmt: skip
    return trend_row | {"advice": _format_advice(trend, memory_forecast, trend_row, full=becomes_full)}


def _forecast_memory(trend: PeakTrend, peak: float, room: float, hours_left: float | None) -> _MemoryForecast:
    """Forecast when memory is full, at the slope and its upper bound, and the memory needed by the end."""
    if trend.kind not in ("grows", "levels off"):
        return _MemoryForecast(None, None, peak if trend.kind == "plateau" else None)
    lacking = max(0.0, room - peak)
    if lacking > trend.rise_left_gib:
        return _MemoryForecast(None, None, peak + trend.rise_left_gib)
    rates = (trend.gib_per_h, trend.gib_per_h_high)
    full_in_h, full_in_h_low = (lacking / rate if rate > 0 else None for rate in rates)
    at_end_gib = None if hours_left is None else peak + min(trend.gib_per_h_high * hours_left, trend.rise_left_gib)
    return _MemoryForecast(full_in_h, full_in_h_low, at_end_gib)


def _find_next_profile(job: dict[str, object], need_gib: float) -> str | None:
    """Find the smallest profile that holds the need and is not slower, else the full GPU if it does."""
    if job["board"] is None:
        return None
    gpu_model = as_gpu_model(str(job["board"]))
    compute_slices = 0 if job["profile"] == FULL_GPU else gpu_model.profile(str(job["profile"])).compute_slices
    for profile in slice_profiles(gpu_model) if compute_slices else ():
        if (
            profile.memory_gib is not None
            and profile.memory_gib >= need_gib
            and profile.compute_slices >= compute_slices
        ):
            return profile.name
    return FULL_GPU if compute_slices and gpu_model.memory_gib >= min(need_gib, gpu_model.memory_gib) else None


def _format_advice(
    trend: PeakTrend, memory_forecast: _MemoryForecast, trend_row: dict[str, object], *, full: bool
) -> str:
    """Return a sentence on what the memory trend of a run means for its user."""
    peak, room = trend_row["peak_gib"], trend_row["room_gib"]
    if trend.kind == "too short":
        return f"sampled for less than {MIN_TREND_SAMPLED_H:g} h, or too rarely, for a trend"
    if trend.kind == "plateau":
        return f"stays at {peak:.1f} of {room:.1f} GiB"
    if trend.kind == "step":
        return f"rose in one step to {peak:.1f} of {room:.1f} GiB: no trend can be derived from one step"
    rise = f"{trend.kind} by {trend.gib_per_h:.2g} GiB an hour"
    if not full:
        why = "its time limit ends it first" if memory_forecast.full_in_h_low is not None else "it will not be full"
        return f"{rise}: {why}"
    soon = "" if memory_forecast.full_in_h is None else f"full in {memory_forecast.full_in_h:.1f} h "
    left = "" if trend_row["hours_left"] is None else f" of {trend_row['hours_left']:.1f} left"
    forecast_text = f"{rise}; {soon}({memory_forecast.full_in_h_low:.1f} at the earliest){left}"
    if trend_row["next_profile"] is None:
        return f"{forecast_text}: no larger profile on this GPU model; make the job smaller, or use more GPUs"
    restart_h, lost = trend_row["restart_gpu_hours"], trend_row["lost_gpu_hours"]
    against = "" if lost is None else f", against {lost:.1f} when it is full"
    return f"{forecast_text}: move to {trend_row['next_profile']} now; a restart repeats {restart_h:.1f} GPU-h{against}"


def read_dataset_peaks(folder: str, gpu_model: str) -> pl.DataFrame:
    """Read the peaks of the jobs of a dataset, with the profile that telemetry shows to be enough."""
    trace = load_dataset(folder)
    jobs = requested_and_used(trace.jobs, {None: gpu_model}, samples=trace.samples).drop_nulls("memory_peak_gib")
    program = pl.col("job_class").fill_null("-")
    peaks = jobs.select("profile_needed", job="job_id", program=program, peak_gib="memory_peak_gib")
    return peaks.unique("job", maintain_order=True)


def compare_measured_and_predicted_slices(table: pl.DataFrame, gpu_model: str) -> pl.DataFrame:
    """Compare the smallest slices by measured peaks with the predicted peaks of the same jobs."""
    lacking = [name for name in ("job", "peak_gib") if name not in table.columns]
    if lacking:
        expected = "columns job and peak_gib"
        raise TraceFormatError("measured peaks", expected, f"no {', '.join(lacking)}", "Add them.")
    if "program" not in table.columns:
        table = table.with_columns(program=pl.lit("-"))
    measured = table.with_columns(pl.col("peak_gib").cast(pl.Float64, strict=False))
    if "ran" in table.columns:
        ran = pl.col("ran").cast(pl.String).str.to_lowercase().is_in(["true", "yes", "1"])
        measured = measured.with_columns(ran)
    columns = ("program", "job", "peak_gib", "ran_profile", "ran", "profile_needed")
    slices = find_smallest_slices(measured.select([name for name in columns if name in measured.columns]), gpu_model)
    if "model" not in table.columns:
        return slices
    predicted = predict_table(table).select("job", "predicted_gib", "upper_gib", "level", "missing")
    both = slices.join(predicted, on="job", how="left")
    lower_bound = pl.col("predicted_gib") ** 2 / pl.col("upper_gib")
    close = pl.col("peak_gib").is_between(lower_bound, pl.col("upper_gib"))
    below = (pl.col("peak_is") == "upper bound") & (pl.col("predicted_gib") <= pl.col("peak_gib"))
    right = pl.when(pl.col("predicted_gib").is_null()).then(None).when(close).then(pl.lit("both"))
    right = right.when(below).then(pl.lit("prediction"))
    return both.with_columns(right=right.otherwise(pl.lit("seen")))
