"""Memory growth of running jobs, and observed against predicted peaks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import datetime

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import WHOLE_GPU, Samples
from gpuplanner.hardware.gpu_models import as_board
from gpuplanner.sizing.learned_memory import smallest_that_fits
from gpuplanner.sizing.run_tables import predict_table
from gpuplanner.usage.job_history import load_trace
from gpuplanner.usage.requested_demand import slices
from gpuplanner.usage.rightsizing import asked_and_used

BINS = 48
"""Pieces of a run whose peaks are followed: spikes of evaluation and checkpoints count as what they need."""
FEWEST = 8
"""Peaks of the later half of a run below which nothing is said."""
CERTAIN_Z = 2.33
"""One-sided 1 % of Mann and Kendall's test: fleets watch many jobs at once."""
LEAST_H = 1.0
"""Hours of samples below which data loading and compiling look like growth."""
LEAST_RISE = 0.01
LEAST_RISE_GIB = 0.25
"""A rise over the later half below both is the noise of an allocator [share of the peak; GiB]."""
LEVELLING = 0.6
"""A last quarter that rose by less than this share of the quarter before goes on falling by the same ratio."""
HEADROOM = 0.05

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
    """How the peaks of a run go, GiB an hour with its upper bound, and the rise still to come where it levels off."""

    kind: str
    gib_per_h: float = 0.0
    gib_per_h_high: float = 0.0
    rise_left_gib: float = math.inf


@dataclass(frozen=True)
class _Ahead:
    full_in_h: float | None
    full_in_h_low: float | None
    at_end_gib: float | None


def trend_of(hours: _Floats, peaks: _Floats) -> Trend:
    """Tell growth from a plateau by the later half of a run.

    Mann and Kendall's test says whether it rises, Theil and Sen's slope how fast, its ranks how sure (P. K. Sen,
    Estimates of the regression coefficient based on Kendall's tau, JASA 63, 1968).

    Examples
    --------
    >>> hours = np.arange(32.0)
    >>> trend_of(hours, 10 + 0.5 * hours).kind, trend_of(hours, np.full(32, 10.0)).kind
    ('grows', 'plateau')
    >>> trend_of(hours, np.where(hours > 24, 14.0, 10.0)).kind
    'step'
    """
    late = hours >= (hours[0] + hours[-1]) / 2
    x, y = hours[late], peaks[late]
    n = len(x)
    if n < FEWEST or hours[-1] - hours[0] < LEAST_H:
        return Trend("too short")
    one, other = np.triu_indices(n, 1)
    slopes = np.sort((y[other] - y[one]) / (x[other] - x[one]))
    _, ties = np.unique(y, return_counts=True)
    spread = math.sqrt((n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18)
    score = float(np.sign(y[other] - y[one]).sum())
    slope, span = float(np.median(slopes)), float(x[-1] - x[0])
    least_rise = max(LEAST_RISE_GIB, LEAST_RISE * float(y.max()))
    if score - 1 <= CERTAIN_Z * spread or float(y.max() - y[0]) < least_rise:
        return Trend("plateau")
    if _is_step(x, y):
        return Trend("step")
    reach = 1.96 * spread
    high = float(slopes[min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))])
    before, last = (float(np.median(part)) for part in _quarter_slopes(x, y, span))
    ratio = max(0.0, last / before) if before > 0 else 1.0
    if ratio < LEVELLING:
        return Trend("levels off", max(last, 0.0), high, max(last, 0.0) * span / 2 * ratio / (1 - ratio))
    return Trend("grows", slope, high)


def _is_step(x: _Floats, y: _Floats) -> bool:
    """Whether two levels describe the peaks better than a line: then they say nothing of the hours ahead."""
    halves = ((y[:cut], y[cut:]) for cut in range(1, len(y)))
    levels = min(sum(float(((half - half.mean()) ** 2).sum()) for half in both) for both in halves)
    line = np.polynomial.Polynomial.fit(x, y, 1)
    return levels < float(((y - line(x)) ** 2).sum())


def _quarter_slopes(x: _Floats, y: _Floats, span: float) -> tuple[_Floats, _Floats]:
    """Slopes between all pairs of peaks of the last quarter but one, and of the last."""
    parts = []
    for inside in (x <= x[0] + span / 2, x >= x[0] + span / 2):
        at, value = x[inside], y[inside]
        one, other = np.triu_indices(len(at), 1)
        parts.append((value[other] - value[one]) / (at[other] - at[one]))
    return parts[0], parts[1]


def peak_trends(
    history: pl.DataFrame, samples: pl.DataFrame, now: datetime, *, checkpoint_h: float | None = None
) -> pl.DataFrame:
    """Follow the memory of every job that was sampled, and say what to do about it.

    Parameters
    ----------
    history : polars.DataFrame
        Of :func:`~gpuplanner.usage.rightsizing.asked_and_used`; ``run_s`` is null where a job still runs.
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
        If a board of `history` is unknown.

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
    table = conform(samples, Samples, where="peak trend: samples")
    told = pl.col("job_evidence").is_null() | ~pl.col("job_evidence").is_in(["together", "none"])
    known = table.drop_nulls(["job_id", "memory_used_gib"]).filter(told)
    runs = {
        name: (rows["time"].dt.epoch("us").to_numpy() / 3.6e9, rows["memory_used_gib"].to_numpy())
        for (name,), rows in known.sort("time").group_by(["job_id"], maintain_order=True)
    }
    jobs = history.filter(pl.col("job_id").is_in(list(runs)) & pl.col("memory_asked_gib").is_not_null())
    rows = jobs.iter_rows(named=True)
    found = [_row(row, *_peaks(*runs[row["job_id"]]), now, checkpoint_h) for row in rows]
    return pl.DataFrame(found, schema=COLUMNS, infer_schema_length=None).sort(
        pl.col("next_profile").is_null() | ~pl.col("running"), "full_in_h", "job_id", nulls_last=True
    )


COLUMNS = {
    "job_id": pl.String, "tenant": pl.String, "running": pl.Boolean, "profile": pl.String, "room_gib": pl.Float64,
    "peak_gib": pl.Float64, "trend": pl.String, "gib_per_h": pl.Float64, "hours_left": pl.Float64,
    "full_in_h": pl.Float64, "full_in_h_low": pl.Float64, "at_end_gib": pl.Float64, "next_profile": pl.String,
    "restart_gpu_hours": pl.Float64, "lost_gpu_hours": pl.Float64, "advice": pl.String,
}  # fmt: skip
"""Columns of :func:`peak_trends`."""


def _peaks(hours: _Floats, gib: _Floats) -> tuple[_Floats, _Floats]:
    """The highest of each piece of the run, over all its devices, and when it was seen."""
    span = hours[-1] - hours[0]
    piece = np.minimum(((hours - hours[0]) / (span or 1.0) * BINS).astype(np.int64), BINS - 1)
    order = np.lexsort((-gib, piece))
    first = order[np.unique(piece[order], return_index=True)[1]]
    return hours[first], gib[first]


def _row(
    job: dict[str, object], hours: _Floats, peaks: _Floats, now: datetime, checkpoint_h: float | None
) -> dict[str, object]:
    began, limit, ended = job["start_time"], job["time_limit_s"], job["run_s"] is not None
    room, share = float(job["memory_asked_gib"]), float(job["share_asked"] or 1.0)  # type: ignore[arg-type]
    ran = (job["run_s"] if ended else (now - began).total_seconds()) / 3600  # type: ignore[operator]
    left = None if limit is None else max(0.0, float(limit) / 3600 - ran)  # type: ignore[arg-type]
    trend, peak = trend_of(hours, peaks), float(peaks.max())
    ahead = _ahead(trend, peak, room, left)
    width = share * float(job["instances"])  # type: ignore[arg-type]
    repeated = width * (ran if checkpoint_h is None else min(ran, checkpoint_h))
    need = None if ahead.at_end_gib is None else ahead.at_end_gib * (1 + HEADROOM)
    full = ahead.full_in_h_low is not None and (left is None or ahead.full_in_h_low < left)
    step = trend.kind == "step" and peak * (1 + HEADROOM) > room
    wanted = max(need or 0.0, peak * (1 + HEADROOM), room * (1 + HEADROOM))
    move = _next(job, wanted) if full or step else None
    lost = None
    if full and ahead.full_in_h is not None:
        lost = repeated if checkpoint_h is not None else repeated + width * ahead.full_in_h
    told = {
        "job_id": job["job_id"], "tenant": job["tenant"], "running": not ended, "profile": job["profile"],
        "room_gib": room, "peak_gib": peak, "trend": trend.kind, "gib_per_h": trend.gib_per_h, "hours_left": left,
        **asdict(ahead), "next_profile": move, "restart_gpu_hours": repeated, "lost_gpu_hours": lost,
    }  # fmt: skip
    return told | {"advice": _advice(trend, ahead, told, full=full)}


def _ahead(trend: Trend, peak: float, room: float, left: float | None) -> _Ahead:
    """When the slice is full, at the slope and at its upper bound, and the most that is needed by the end."""
    if trend.kind not in ("grows", "levels off"):
        return _Ahead(None, None, peak if trend.kind == "plateau" else None)
    lacking = max(0.0, room - peak)
    if lacking > trend.rise_left_gib:
        return _Ahead(None, None, peak + trend.rise_left_gib)
    rates = (trend.gib_per_h, trend.gib_per_h_high)
    until, soonest = (lacking / rate if rate > 0 else None for rate in rates)
    most = None if left is None else peak + min(trend.gib_per_h_high * left, trend.rise_left_gib)
    return _Ahead(until, soonest, most)


def _next(job: dict[str, object], need_gib: float) -> str | None:
    """The smallest slice that holds the need and computes no slower, else the whole GPU if it holds it."""
    if job["board"] is None:
        return None
    gpu_model = as_board(str(job["board"]))
    computes = 0 if job["profile"] == WHOLE_GPU else gpu_model.profile(str(job["profile"])).compute_slices
    for one in slices(gpu_model) if computes else ():
        if one.memory_gib is not None and one.memory_gib >= need_gib and one.compute_slices >= computes:
            return one.name
    return WHOLE_GPU if computes and gpu_model.memory_gib >= min(need_gib, gpu_model.memory_gib) else None


def _advice(trend: Trend, ahead: _Ahead, told: dict[str, object], *, full: bool) -> str:
    peak, room = told["peak_gib"], told["room_gib"]
    if trend.kind == "too short":
        return f"sampled for less than {LEAST_H:g} h, or too rarely, for a trend"
    if trend.kind == "plateau":
        return f"stays at {peak:.1f} of {room:.1f} GiB"
    if trend.kind == "step":
        return f"rose in one step to {peak:.1f} of {room:.1f} GiB: no trend can be derived from one step"
    rise = f"{trend.kind} by {trend.gib_per_h:.2g} GiB an hour"
    if not full:
        why = "its time limit ends it first" if ahead.full_in_h_low is not None else "it will not be full"
        return f"{rise}: {why}"
    soon = "" if ahead.full_in_h is None else f"full in {ahead.full_in_h:.1f} h "
    left = "" if told["hours_left"] is None else f" of {told['hours_left']:.1f} left"
    when = f"{rise}; {soon}({ahead.full_in_h_low:.1f} at the earliest){left}"
    if told["next_profile"] is None:
        return f"{when}: no larger profile on this GPU model; make the job smaller, or use more GPUs"
    again, lost = told["restart_gpu_hours"], told["lost_gpu_hours"]
    against = "" if lost is None else f", against {lost:.1f} when it is full"
    return f"{when}: move to {told['next_profile']} now; a restart repeats {again:.1f} GPU-h{against}"


def peaks_of_folder(folder: str, gpu_model: str) -> pl.DataFrame:
    """Peaks of the jobs of a dataset, with the profile that its telemetry says is enough."""
    trace = load_trace(folder)
    jobs = asked_and_used(trace.jobs, {None: gpu_model}, samples=trace.samples).drop_nulls("memory_peak_gib")
    program = pl.col("job_class").fill_null("-")
    found = jobs.select("profile_needed", job="job_id", program=program, peak_gib="memory_peak_gib")
    return found.unique("job", maintain_order=True)


def seen_and_predicted(table: pl.DataFrame, gpu_model: str) -> pl.DataFrame:
    """Slices by what was seen, with what is predicted of the same rows where they describe a model."""
    lacking = [name for name in ("job", "peak_gib") if name not in table.columns]
    if lacking:
        expected = "columns job and peak_gib"
        raise TraceFormatError("measured peaks", expected, f"no {', '.join(lacking)}", "Add them.")
    if "program" not in table.columns:
        table = table.with_columns(program=pl.lit("-"))
    seen = table.with_columns(pl.col("peak_gib").cast(pl.Float64, strict=False))
    if "ran" in table.columns:
        ran = pl.col("ran").cast(pl.String).str.to_lowercase().is_in(["true", "yes", "1"])
        seen = seen.with_columns(ran)
    read = ("program", "job", "peak_gib", "ran_profile", "ran", "profile_needed")
    found = smallest_that_fits(seen.select([name for name in read if name in seen.columns]), gpu_model)
    if "model" not in table.columns:
        return found
    predicted = predict_table(table).select("job", "predicted_gib", "upper_gib", "level", "missing")
    both = found.join(predicted, on="job", how="left")
    least = pl.col("predicted_gib") ** 2 / pl.col("upper_gib")
    close = pl.col("peak_gib").is_between(least, pl.col("upper_gib"))
    below = (pl.col("peak_is") == "upper bound") & (pl.col("predicted_gib") <= pl.col("peak_gib"))
    right = pl.when(pl.col("predicted_gib").is_null()).then(None).when(close).then(pl.lit("both"))
    right = right.when(below).then(pl.lit("prediction"))
    return both.with_columns(right=right.otherwise(pl.lit("seen")))
