"""Seeded job requests and telemetry of a synthetic fleet, for the shipped sample, docs and tests.

The shapes follow published traces, the numbers are ours:

- job mix and failures: pretraining is few jobs and most GPU time, evaluation is the bulk of the jobs, about
  two jobs in five fail, most of them early (Hu et al., NSDI 2024, Acme [1]_);
- run times are lognormal with medians of minutes and means of hours, nine in ten jobs ask for one GPU
  outside the large gangs (Jeon et al., ATC 2019, Philly [2]_);
- people ask for more than they use (Weng et al., ATC 2023, OpenB [3]_).

The generator knows no scheduler: :func:`make_requests` says what was asked for and how long it would run;
whoever calls it lets a simulator place the jobs and passes the result to :func:`as_jobs`.

References
----------
.. [1] https://arxiv.org/abs/2403.07648
.. [2] https://www.usenix.org/conference/atc19/presentation/jeon
.. [3] https://www.usenix.org/conference/atc23/presentation/weng
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.core.schema_checks import check_table
from gpuplanner.core.schemas import Jobs, Samples
from gpuplanner.hardware.catalog import facts, find_data_sheet, find_parameter

SLICES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb")
"""Slice sizes of the H100-80GB in the order in which people step up; after the last comes a whole GPU."""
WHOLE = len(SLICES)
STEPS_TOO_MANY = ((0, 1, 2, WHOLE), (0.40, 0.30, 0.20, 0.10))
"""By how many sizes a request exceeds the need, and how often."""
BOARD = "H100-80GB-SXM5"
JOB_CLASS_FILE = Path(__file__).with_name("synthetic_jobs.csv")
DAY_S = 86_400.0
MEASURED_SHARE = 0.85
"""Share of jobs for which the accounting system kept activity and peak memory."""


@dataclass(frozen=True)
class JobClass:
    """What one kind of job asks for and when.

    ``needs`` are the slices that its one-GPU jobs can fill (``"gpu"``: more than any slice); ``duty`` is the
    range of the share of its run time in which it keeps them busy.
    """

    name: str
    tenants: dict[str, float]
    tier: str
    jobs_per_day: float
    run_median_s: float
    run_sigma: float
    gpus: dict[int, float]
    needs: dict[str, float]
    duty: tuple[float, float]
    peak_hour: float
    day_swing: float
    weekend_factor: float
    failure_rate: float


def _shares(cell: str | None) -> dict[str, float]:
    """Words and their shares, as a cell ``vision=0.2;speech=0.1`` has them."""
    pairs = (item.split("=") for item in (cell or "").split(";") if item)
    return {word: float(share) for word, share in pairs}


def _job_class(row: dict[str, Any]) -> JobClass:
    """A row of the catalogue's ``synthetic_jobs``."""
    known = {name: row[name] for name in JobClass.__dataclass_fields__ if name in row}
    gpus = {int(count): share for count, share in _shares(row["gpus"]).items()}
    shares = {"tenants": _shares(row["tenants"]), "gpus": gpus, "needs": _shares(row["needs"])}
    return JobClass(**(known | shares), duty=(row["duty_low"], row["duty_high"]))


JOB_CLASSES = tuple(_job_class(row) for row in pl.read_csv(JOB_CLASS_FILE).iter_rows(named=True))


def make_requests(*, start: datetime, days: int, seed: int, scale: float = 1.0) -> pl.DataFrame:
    """Draw the jobs that six tenants would submit.

    Examples
    --------
    >>> from datetime import UTC
    >>> jobs = make_requests(start=datetime(2026, 2, 2, tzinfo=UTC), days=7, seed=1)
    >>> jobs["tenant"].n_unique()
    6
    """
    streams = np.random.default_rng(seed).spawn(len(JOB_CLASSES))
    drawn = [_draw_class(kind, start, days, scale, stream) for kind, stream in zip(JOB_CLASSES, streams, strict=True)]
    jobs = pl.concat(drawn).sort("submit_time", "job_class", "tenant", "run_s")
    return jobs.with_columns(
        job_id=pl.format("job-{}", pl.int_range(1, pl.len() + 1).cast(pl.String).str.zfill(6)),
        attempt=pl.lit(1, pl.Int32),
    )


def as_jobs(requests: pl.DataFrame, placed: pl.DataFrame, *, start: datetime, end: datetime) -> pl.DataFrame:
    """Join requests with the times and nodes at which a scheduler placed them."""
    columns = ["job_id", "start_time", "end_time", "node_list", "nodes"]
    joined = requests.join(placed.select(columns), on="job_id", how="left", maintain_order="left")
    begun = pl.col("start_time") < end
    ended = begun & (pl.col("end_time") <= end)
    jobs = (
        joined.filter((pl.col("submit_time") < end) & (pl.col("end_time") > start))
        .with_columns(
            state=pl.when(ended)
            .then("state")
            .otherwise(pl.when(begun).then(pl.lit("RUNNING")).otherwise(pl.lit("PENDING"))),
            sm_activity=pl.when(ended).then("sm_activity"),
            memory_peak_gib=pl.when(ended).then("memory_peak_gib"),
            end_time=pl.when(ended).then("end_time"),
            nodes=pl.when(begun).then("nodes"),
            node_list=pl.when(begun).then("node_list"),
        )
        .with_columns(start_time=pl.when(begun).then("start_time"), gpu_model=pl.lit(BOARD), gpus_by_memory="gpus")
    )
    return check_table(jobs.sort("submit_time", "job_id"), Jobs, source="synthetic jobs")


def _draw_class(kind: JobClass, start: datetime, days: int, scale: float, rng: np.random.Generator) -> pl.DataFrame:
    submit_s = _arrivals(kind, start, days, scale, rng)
    n = len(submit_s)
    tenant = rng.choice(list(kind.tenants), n, p=list(kind.tenants.values()))
    gpus = rng.choice(list(kind.gpus), n, p=list(kind.gpus.values()))
    run_s = np.minimum(rng.lognormal(np.log(kind.run_median_s), kind.run_sigma, n), 14 * DAY_S)
    state = rng.choice(["COMPLETED", "FAILED", "CANCELLED"], n, p=_endings(kind.failure_rate))
    # A failed or cancelled job stops part of the way, mostly early: the square of a uniform share.
    run_s = np.where(state == "COMPLETED", run_s, run_s * rng.random(n) ** 2)
    run_s = np.maximum(np.round(run_s), 5.0)
    limit_s = 1800 * np.ceil(np.maximum(run_s, kind.run_median_s) * rng.uniform(1.3, 4.0, n) / 1800)
    sizes = np.array([*kind.needs] or ["gpu"])
    need = rng.choice(sizes, n, p=[*kind.needs.values()] or [1.0])
    need = np.where(gpus > 1, "gpu", need)
    fill = rng.uniform(0.60, 0.95, n)
    duty = rng.uniform(*kind.duty, n)
    memory_fill = rng.uniform(0.55, 0.95, n)
    measured = rng.random(n) < MEASURED_SHARE
    share_of_sms, memory_gib = _slice_facts()
    sm_activity = np.array([share_of_sms[size] for size in need]) * fill * duty
    return pl.DataFrame(
        {
            "tenant": tenant.astype(str),
            "user": np.char.add(np.char.add(tenant.astype(str), "-u"), rng.integers(1, 9, n).astype(str)),
            "job_class": [kind.name] * n,
            "tier": [kind.tier] * n,
            "submit_time": [start + timedelta(seconds=int(second)) for second in submit_s],
            "gpus": gpus.astype(np.float64),
            "profile_requested": _requests(need, gpus, rng),
            "state": state.astype(str),
            "run_s": run_s,
            "time_limit_s": limit_s,
            "sm_activity": np.round(sm_activity, 4),
            "memory_peak_gib": np.round(np.array([memory_gib[size] for size in need]) * memory_fill, 2),
        },
        schema_overrides={"submit_time": pl.Datetime("us", "UTC"), "profile_requested": pl.String},
    ).with_columns(pl.when(pl.lit(measured)).then(name).alias(name) for name in ("sm_activity", "memory_peak_gib"))


def _arrivals(kind: JobClass, start: datetime, days: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Poisson arrivals by thinning: a cosine over the day, a factor at the weekend, whole seconds."""
    highest = kind.jobs_per_day * scale * (1 + kind.day_swing) / DAY_S
    n = rng.poisson(highest * days * DAY_S)
    second = np.sort(rng.uniform(0, days * DAY_S, n))
    hour = (second / 3600 + start.hour) % 24
    weekday = (start.weekday() + (second / 3600 + start.hour) // 24) % 7
    shape = 1 + kind.day_swing * np.cos((hour - kind.peak_hour) * 2 * np.pi / 24)
    shape = shape * np.where(weekday >= 5, kind.weekend_factor, 1.0)
    return np.floor(second[rng.random(n) * (1 + kind.day_swing) < shape])


def _endings(failure_rate: float) -> list[float]:
    cancelled = 0.08 if failure_rate > 0.05 else 0.02
    return [1 - failure_rate - cancelled, failure_rate, cancelled]


def _requests(need: np.ndarray, gpus: np.ndarray, rng: np.random.Generator) -> list[str | None]:
    """What people name on the submission form: the need or some sizes more; a whole GPU has no name."""
    steps = rng.choice(STEPS_TOO_MANY[0], len(need), p=STEPS_TOO_MANY[1])
    index = np.array([SLICES.index(size) if size in SLICES else WHOLE for size in need]) + steps
    return [SLICES[i] if i < WHOLE and count == 1 else None for i, count in zip(index, gpus, strict=True)]


def _slice_facts() -> tuple[dict[str, float], dict[str, float]]:
    rows = facts("mig_profiles").filter(gpu_model=BOARD)
    whole = rows.filter(pl.col("memory_slices") == pl.col("memory_slices_total")).row(0, named=True)
    sms = {row["profile"]: row["sms"] / whole["sms"] for row in rows.iter_rows(named=True)}
    memory = {row["profile"]: row["memory_gib"] for row in rows.iter_rows(named=True)}
    return sms | {"gpu": 1.0}, memory | {"gpu": whole["memory_gib"]}


MINUTE_S = 60
MEMORY_GIB = 79.25


@dataclass(frozen=True)
class Course:
    """Activity and memory of one job minute by minute, as shares of their level in steady state."""

    activity: np.ndarray
    memory: np.ndarray


def make_samples(jobs: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Draw one sample a minute for one GPU of each job.

    Examples
    --------
    >>> make_samples(pl.DataFrame(schema={"job_id": pl.String}), seed=1).height
    0
    """
    streams = np.random.default_rng(seed).spawn(jobs.height)
    drawn = [_draw_job(row, rng) for row, rng in zip(jobs.iter_rows(named=True), streams, strict=True)]
    if not drawn:
        return pl.DataFrame(schema={name: column.dtype for name, column in Samples.columns().items()})
    samples = pl.concat(drawn).sort("node", "gpu", "time")
    return check_table(samples, Samples, source="synthetic telemetry")


def _draw_job(row: dict[str, Any], rng: np.random.Generator) -> pl.DataFrame:
    begin, end = row["start_time"], row["end_time"]
    times = pl.datetime_range(begin, end, interval="1m", closed="left", eager=True, time_unit="us")
    n = len(times)
    first_hour = begin.hour + begin.minute / 60
    course = COURSES[row["job_class"]](n, first_hour, rng)
    level = row["sm_activity"] / max(float(course.activity.mean()), 0.05)
    activity = np.clip(course.activity * level * rng.normal(1, 0.03, n), 0, 1)
    memory = np.minimum(course.memory * row["memory_peak_gib"], MEMORY_GIB)
    return pl.DataFrame(
        {
            "time": times,
            "node": [row["node"]] * n,
            "gpu": np.full(n, row["gpu"], dtype=np.int32),
            "job_id": [row["job_id"]] * n,
            "sm_activity": np.round(activity, 3),
            "tensor_activity": np.round(activity * 0.55, 3),
            "dram_activity": np.round(np.clip(activity * 0.6 + 0.02, 0, 0.8), 3),
            "pcie_gb_s": np.round(0.2 + 2.0 * activity, 2),
            "nvlink_gb_s": np.round((120.0 if row["gpus"] > 1 else 0.0) * activity, 1),
            "memory_used_gib": np.round(memory, 2),
            "power_w": np.round(_power(activity, rng), 0),
            "activity_source": ["profiling"] * n,
        },
        schema_overrides={"time": pl.Datetime("us", "UTC")},
    )


def _power(activity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two-state law: idle power without work, a base and a slope with it."""
    tdp_w = find_data_sheet(BOARD).tdp_w or 0.0
    base, slope = find_parameter("active_base_fraction").value, find_parameter("active_slope_fraction").value
    busy_w = tdp_w * (base + slope * activity)
    idle_w = tdp_w * find_parameter("idle_fraction").value
    return np.clip(np.where(activity < 0.02, idle_w, busy_w) + rng.normal(0, 6, len(activity)), 40, tdp_w)


def _training(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    setup = min(int(rng.integers(4, 16)), n // 4)
    ramp = n // 8
    anneal = n // 12
    activity = np.ones(n)
    activity[:setup] = 0.0
    activity[setup : setup + ramp] = 0.62
    activity[n - anneal :] = 0.85
    memory = np.ones(n)
    memory[:setup] = np.linspace(0.05, 0.7, setup) if setup else 0.0
    memory[setup : setup + ramp] = 0.8
    every = int(rng.integers(45, 90))
    for number, minute in enumerate(range(setup + every, n - 8, every), start=1):
        activity[minute : minute + 2] = 0.05  # checkpoint: the GPUs wait for the write
        if number % 3 == 0:
            activity[minute + 2 : minute + 6] *= 0.55  # evaluation after every third checkpoint
            memory[minute + 2 : minute + 6] *= 0.75
    return Course(activity, memory)


def _evaluation(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    load, metric = round(0.295 * n), round(0.19 * n)
    activity = np.ones(n)
    activity[:load] = 0.0
    activity[n - metric :] = 0.0
    memory = np.ones(n)
    memory[:load] = np.linspace(0.1, 1.0, load) if load else 1.0
    return Course(activity, memory)


def _inference(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    hour = first_hour + np.arange(n) / 60
    activity = 0.65 + 0.35 * np.cos((hour - 15) * 2 * np.pi / 24) + rng.normal(0, 0.05, n)
    return Course(np.clip(activity, 0.05, None), np.full(n, 0.97) + rng.uniform(-0.03, 0.03, n))


def _interactive(n: int, first_hour: float, rng: np.random.Generator) -> Course:
    activity = np.zeros(n)
    minute = int(rng.integers(2, 15))
    while minute < n:
        burst = int(rng.integers(2, 12))
        activity[minute : minute + burst] = 1.0
        minute += burst + int(rng.integers(5, 40))
    return Course(activity, np.linspace(0.3, 1.0, n))


COURSES: dict[str, Callable[[int, float, np.random.Generator], Course]] = {
    "pretraining": _training,
    "fine-tuning": _training,
    "evaluation": _evaluation,
    "inference": _inference,
    "interactive": _interactive,
}
