"""GPU demand by phase, the test of late phases, and slices by phase.

The claim is that demand is highest early and shrinks towards convergence. The literature does not support its
mechanism: work per token does not depend on the learning rate, and published recipes raise the batch, hence the GPUs
that are useful, as training goes on.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import FULL_GPU, Samples
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.ingest.telemetry.telemetry_join import SHARED_JOB
from gpuplanner.usage.job_phases import find_phases
from gpuplanner.usage.requested_demand import smallest_profile

SUPPORTED, NOT_SUPPORTED, CANNOT_TELL = "supported", "not supported", "inconclusive"
"""Verdicts of the test whether jobs need fewer GPUs late in their run than early."""
LATE_DEMAND_VERDICTS = (SUPPORTED, NOT_SUPPORTED, CANNOT_TELL)
"""All verdicts of :func:`judge_late_demand`."""
LATE_DEMAND_SPLITS = ("thirds", "phases")
"""Ways to divide a run into an early and a late part. ``thirds``: the first and the last third of the time after
set-up. ``phases``: up to the end of the longest phase of the highest activity level, and after it.
"""
LATE_DEMAND_MEASURES = ("both", "sm", "memory")
"""Measures of how much of a GPU a job needs: SM activity, memory as a share of the GPU's, or the larger of the two."""
MIN_COMPARED_DEMAND_GPUS = 0.01
"""Smallest demand [GPUs] of the early and the late part of a job for which their ratio is computed."""


@dataclass(frozen=True)
class LateDemandTest:
    """Result of the test whether jobs need fewer GPUs late in their run than early.

    Parameters
    ----------
    verdict : str
        One of :data:`LATE_DEMAND_VERDICTS`.
    ratio, low, high : float or None
        Median over jobs of the ratio of late to early demand, and its 95 % interval.
    jobs : int
        Jobs compared.
    reason : str
        Reason of the verdict, as a sentence.
    """

    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    jobs: int
    reason: str


MEDIAN_RATIO_INTERVAL_ALPHA = 0.05
"""One minus the level of the interval of the median ratio."""


def judge_late_demand(ratios: np.ndarray, *, effect: float = 0.10) -> LateDemandTest:
    """Judge whether late demand is lower than early demand by at least an effect.

    The interval of the median ratio is the exact one from order statistics: it needs neither symmetry nor normality,
    and holds for ties. The claim is supported if the whole interval lies at or below ``1 - effect``, not supported if
    it lies above, and else cannot be told. Where the true median is above ``1 - effect``, "supported" comes
    with probability at most 2.5 %.

    Parameters
    ----------
    ratios : numpy.ndarray, shape (n,)
        Late over early demand of each job.
    effect : float
        Smallest reduction of demand that counts as lower, as a share of early demand. [0-1]

    Raises
    ------
    SchemaError
        If `effect` is out of range.

    References
    ----------
    Conover, "Practical Nonparametric Statistics", 3rd ed., 1999, section 3.2: interval of a quantile.
    Schuirmann, J. Pharmacokinet. Biopharm. 15(6), 1987: deciding by an interval against a smallest effect.

    Examples
    --------
    >>> judge_late_demand(np.full(8, 0.7)).verdict, judge_late_demand(np.full(8, 1.0)).verdict
    ('supported', 'not supported')
    >>> judge_late_demand(np.full(5, 0.7)).reason
    '5 jobs are fewer than the 6 that an interval of 95 % needs'
    """
    if not 0 < effect < 1:
        raise SchemaError("claim", "an effect between 0 and 1", repr(effect), "Use 0.1.")
    n = len(ratios)
    median = float(np.median(ratios)) if n else None
    rank = _median_interval_rank(n)
    level = f"{100 * (1 - MEDIAN_RATIO_INTERVAL_ALPHA):.3g} %"
    if rank is None:
        fewest = next(count for count in range(1, 10_000) if _median_interval_rank(count) is not None)
        text = f"{n} jobs are fewer than the {fewest} that an interval of {level} needs"
        return LateDemandTest(CANNOT_TELL, median, None, None, n, text)
    ordered = np.sort(ratios)
    low, high = float(ordered[rank - 1]), float(ordered[n - rank])
    border = 1 - effect
    span = f"the {level} interval of final over early demand, {low:.2f} to {high:.2f},"
    if high <= border:
        return LateDemandTest(SUPPORTED, median, low, high, n, f"{span} lies at or below {border:g}")
    if low > border:
        return LateDemandTest(NOT_SUPPORTED, median, low, high, n, f"{span} lies above {border:g}")
    return LateDemandTest(CANNOT_TELL, median, low, high, n, f"{span} holds {border:g}: too few jobs, or too unlike")


def late_over_early(
    samples: pl.DataFrame, phases: pl.DataFrame, gpu_model: GpuModel | str, *, part: str = "thirds", need: str = "both"
) -> pl.DataFrame:
    """Compare late with early demand of each job: allocated GPUs times the fraction that is needed.

    Demand is taken from the readings themselves, minute by minute, so that a slow decline counts that is no phase.
    Set-up is left out.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``.
    phases : polars.DataFrame
        From :func:`phases_of_jobs`, which has the set-up, the allocated GPUs, and where the late part begins.
    gpu_model : GpuModel or str
        The GPU model that was sampled, for its memory.
    part, need : str
        One of :data:`LATE_DEMAND_SPLITS`, one of :data:`LATE_DEMAND_MEASURES`.

    Returns
    -------
    polars.DataFrame
        ``job_id, job_class, early, late`` [GPU] and ``ratio``; jobs without a late part, without readings, or with
        an early demand below :data:`MIN_COMPARED_DEMAND_GPUS` have no row.

    Raises
    ------
    SchemaError
        If the part or need is unknown.

    Examples
    --------
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> found = late_over_early(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5", part="phases", need="sm")
    >>> found.select(pl.col("ratio").round(1)).item()
    0.6
    """
    memory = pl.col("memory_used_gib") / as_gpu_model(gpu_model).memory_gib
    fractions = {
        "both": pl.max_horizontal("sm_activity", memory) + 0 * (pl.col("sm_activity") + memory),
        "sm": pl.col("sm_activity"),
        "memory": memory,
    }
    end_s = (pl.col("end") - pl.col("start").min().over("job_id")).dt.total_microseconds() / 1e6
    top = pl.col("label").is_in(["steady", "long-context"])
    ends = phases.filter(pl.col("label").is_null() | (pl.col("label") != "setup")).with_columns(end_s=end_s)
    borders = ends.group_by("job_id", "job_class", maintain_order=True).agg(
        pl.col("gpus").max(),
        begin=pl.col("start").min(),
        third_s=pl.col("end_s").max() / 3,
        top_s=pl.col("end_s").filter(top).sort_by(pl.col("run_s").filter(top)).last(),
    )
    third, top_s = pl.col("third_s"), pl.col("top_s")
    try:
        fraction = fractions[need]
        early_until, late_from = {"thirds": (third, 2 * third), "phases": (top_s, top_s)}[part]
    except KeyError as error:
        expected, got = f"a part of {LATE_DEMAND_SPLITS} and a need of {LATE_DEMAND_MEASURES}", f"{part!r} and {need!r}"
        raise SchemaError("claim", expected, got, "Use one of these.") from error
    at_s = (pl.col("time") - pl.col("begin")).dt.total_microseconds() / 1e6
    demand = pl.col("gpus") * fraction
    return (
        samples.select("job_id", "time", "sm_activity", "memory_used_gib")
        .join(borders, on="job_id")
        .with_columns(at_s=at_s, demand=demand)
        .filter(pl.col("at_s") >= 0)
        .group_by("job_id", "job_class")
        .agg(
            early=pl.col("demand").filter(pl.col("at_s") < early_until).mean(),
            late=pl.col("demand").filter(pl.col("at_s") >= late_from).mean(),
        )
        .filter((pl.col("early") >= MIN_COMPARED_DEMAND_GPUS) & pl.col("late").is_not_null())
        .with_columns(ratio=pl.col("late") / pl.col("early"))
        .sort("job_id")
    )


def late_demand_table(
    samples: pl.DataFrame, phases: pl.DataFrame, gpu_model: GpuModel | str, *, effect: float = 0.10
) -> pl.DataFrame:
    """Test for lower late demand by every definition of late and of need, to show which verdicts depend on it.

    Parameters
    ----------
    samples, phases, gpu_model
        As in :func:`late_over_early`; filter the phases for the classes that the claim is about.
    effect : float
        As in :func:`judge_late_demand`, for each row alone. The first row is the test; the others only show how its
        verdict depends on the definition of late and of need.

    Returns
    -------
    polars.DataFrame
        ``part, need, jobs, ratio, low, high, verdict, reason``; the first row is thirds and both needs.

    Examples
    --------
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> table = late_demand_table(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5")
    >>> table.height, table["verdict"].unique().to_list()
    (6, ['inconclusive'])
    """
    rows = []
    for part in LATE_DEMAND_SPLITS:
        for need in LATE_DEMAND_MEASURES:
            ratios = late_over_early(samples, phases, gpu_model, part=part, need=need)["ratio"].to_numpy()
            rows.append({"part": part, "need": need} | asdict(judge_late_demand(ratios, effect=effect)))
    figures = dict.fromkeys(("ratio", "low", "high"), pl.Float64)
    order = ("part", "need", "jobs", "ratio", "low", "high", "verdict", "reason")
    return pl.DataFrame(rows, schema_overrides=figures).select(order)


def late_demand_by_class(
    samples: pl.DataFrame, phases: pl.DataFrame, gpu_model: GpuModel | str, *, effect: float = 0.10
) -> pl.DataFrame:
    """Test for lower late demand in each job class: :func:`late_demand_table`, with a first column ``job_class``.

    Parameters
    ----------
    samples, phases, gpu_model, effect
        As of :func:`late_demand_table`.

    Examples
    --------
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> late_demand_by_class(samples, phases_of_jobs(samples, jobs), "H100-80GB-SXM5")["job_class"].unique().to_list()
    ['pretraining']
    """
    parts = []
    for (name,), class_phases in phases.sort("job_class").group_by("job_class", maintain_order=True):
        table = late_demand_table(samples, class_phases, gpu_model, effect=effect)
        parts.append(table.select(pl.lit(name, pl.String).alias("job_class"), pl.all()))
    return pl.concat(parts)


def _median_interval_rank(n: int) -> int | None:
    """Find the rank of the order statistics that bound a 95 % interval of the median of n values.

    The interval goes from the r-th smallest to the r-th largest value; None if there are too few values.
    """
    below, rank = 0.0, 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if 2 * below > MEDIAN_RATIO_INTERVAL_ALPHA:
            break
        rank += 1
    return rank or None


PHASE_DEVICE_KEY_COLUMNS = ("node", "gpu", "instance")
"""Columns that identify a device in telemetry samples: node, GPU number and MIG instance."""
PHASE_ACTIVITY_QUANTILE = 0.95
"""Quantile of the one-minute means of SM activity for which a phase is sized [0-1], as whole jobs are."""
PHASE_COLUMNS_WITH_QUARTILES = ("share", "sm_activity", "memory_peak_gib", "power_w", "gpus")
"""Columns of :func:`phases_of_jobs` whose median and quartiles :func:`demand_by_class` gives."""


def phases_of_jobs(samples: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Find the phases of each job with telemetry, and its use of SMs, memory and power in each.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples``; rows without a job, or with several that share the device, are left out.
    jobs : polars.DataFrame
        ``job_id``, ``job_class`` and ``gpus`` (allocated), one attempt a job; ``instances`` where jobs were allocated
        MIG instances.

    Returns
    -------
    polars.DataFrame
        ``job_id``, ``job_class`` (null if the job is not in `jobs`), ``phase`` (from 1), ``label``, ``start``,
        ``end``, ``run_s`` [s], ``share`` of the job's time [0-1], ``gpus`` (allocated to the job, of full GPUs at least
        those that were sampled), ``devices`` (sampled), ``profile`` of the allocated instance (null for full GPUs),
        means ``sm_activity`` [0-1], ``memory_used_gib`` [GiB] and ``power_w`` [W], ``sm_need`` (95 % quantile of the
        minute means of a device) and ``memory_peak_gib`` (of the fullest device). Sorted by job and phase.

    Raises
    ------
    SchemaError
        If no sample belongs to a job.
    MissingDependencyError
        If ruptures is not installed.

    Examples
    --------
    >>> readings = {"sm_activity": [0.0] * 30 + [0.8] * 200 + [0.48] * 100, "memory_used_gib": 30.0}
    >>> samples = pl.DataFrame(readings).with_columns(
    ...     time=pl.datetime(2026, 2, 2, time_zone="UTC") + pl.duration(minutes=pl.int_range(pl.len())),
    ...     node=pl.lit("n1"), gpu=pl.lit(0), job_id=pl.lit("1"), activity_source=pl.lit("profiling"),
    ... )
    >>> jobs = pl.DataFrame({"job_id": ["1"], "job_class": ["pretraining"], "gpus": [8.0]})
    >>> phases_of_jobs(samples, jobs)["label"].to_list()
    ['setup', 'steady', 'decay']
    """
    # The activity of a device that jobs share is of no one of them.
    shared = (pl.col("job_evidence") == SHARED_JOB).fill_null(value=False)
    table = conform(samples, Samples, source="phases: samples").filter(pl.col("job_id").is_not_null(), ~shared)
    if table.is_empty():
        todo = "Add telemetry and jobs to one dataset: gpuplanner ingest joins them."
        raise SchemaError("phases: samples", "samples with a job_id", "none", todo)
    phases = [
        _add_use_by_phase(job_samples, find_phases(job_samples)).with_columns(job_id=pl.lit(job))
        for (job,), job_samples in table.sort("job_id", "time").group_by("job_id", maintain_order=True)
        if any(job_samples[name].count() for name in ("sm_activity", "memory_used_gib", "power_w"))
    ]
    cut = pl.col("instances").is_not_null() if "instances" in jobs.columns else pl.lit(value=False)
    job_columns = jobs.select("job_id", "job_class", held=pl.col("gpus").cast(pl.Float64), cut=cut).unique("job_id")
    sampled = pl.max_horizontal("held", pl.col("devices").cast(pl.Float64))
    gpus = pl.when("cut").then("held").otherwise(sampled)
    return (
        pl.concat(phases)
        .join(job_columns, on="job_id", how="left")
        .with_columns(gpus=gpus, share=pl.col("run_s") / pl.col("run_s").sum().over("job_id"))
        .select(
            pl.col("job_id", "job_class", "phase", "label", "start", "end", "run_s", "share"),
            pl.col("gpus", "devices", "profile"),
            pl.col("sm_activity", "memory_used_gib", "power_w", "sm_need", "memory_peak_gib"),
        )
        .sort("job_id", "phase")
    )


def demand_by_class(phases: pl.DataFrame) -> pl.DataFrame:
    """Tabulate the demand of each job class by phase label: median and quartiles over jobs, and number of jobs.

    Phases of one label in one job count once: shares are added, the rest is weighted by time.

    Parameters
    ----------
    phases : polars.DataFrame
        From :func:`phases_of_jobs`.

    Returns
    -------
    polars.DataFrame
        ``job_class``, ``label``, ``jobs`` (that have such a phase), ``jobs_of_class``, and of each of
        :data:`PHASE_COLUMNS_WITH_QUARTILES` the median over these jobs and the quartiles (suffixes ``_q25``, ``_q75``).
        Sorted by class name, then by the median over jobs of the instant at which phases of the label begin.

    Examples
    --------
    >>> rows = {"job_id": ["1", "1", "2"], "job_class": "tuning", "label": ["setup", "steady", "steady"]}
    >>> rows |= {"run_s": [60.0, 180.0, 300.0], "share": [0.25, 0.75, 1.0], "gpus": 1.0}
    >>> rows |= {"sm_activity": [0.0, 0.8, 0.6], "memory_peak_gib": 40.0, "power_w": 500.0, "phase": [1, 2, 1]}
    >>> demand_by_class(pl.DataFrame(rows)).select("label", "jobs", "jobs_of_class", "share").rows()
    [('setup', 1, 2, 0.25), ('steady', 2, 2, 0.875)]
    """
    weight = pl.col("run_s") / pl.col("run_s").sum()
    begins = pl.col("share").cum_sum().over("job_id", order_by="phase") - pl.col("share")
    per_job = (
        phases.with_columns(begins=begins)
        .group_by("job_class", "label", "job_id", maintain_order=True)
        .agg(
            pl.col("share").sum(),
            *((pl.col(name) * weight).sum().alias(name) for name in ("sm_activity", "power_w")),
            *(pl.col(name).max() for name in ("memory_peak_gib", "gpus")),
            pl.col("begins").min(),
        )
    )
    of_class = phases.group_by("job_class", maintain_order=True).agg(jobs_of_class=pl.col("job_id").n_unique())
    figures = [
        pl.col(name).quantile(level, interpolation="linear").alias(f"{name}{suffix}")
        for name in PHASE_COLUMNS_WITH_QUARTILES
        for level, suffix in ((0.5, ""), (0.25, "_q25"), (0.75, "_q75"))
    ]
    return (
        per_job.group_by("job_class", "label")
        .agg(*figures, jobs=pl.len(), begins=pl.col("begins").median())
        .join(of_class, on="job_class", nulls_equal=True)
        .sort("job_class", "begins", "label")
        .select("job_class", "label", "jobs", "jobs_of_class", *(expr.meta.output_name() for expr in figures))
    )


def _add_use_by_phase(samples: pl.DataFrame, phases: pl.DataFrame) -> pl.DataFrame:
    """Add the use of SMs, memory and power by the devices of one job in each of its phases."""
    minutes = (
        samples.with_columns(at=pl.col("time"))
        .sort("at")
        .join_asof(phases.select("phase", "start"), left_on="at", right_on="start")
        .with_columns(pl.col("phase").fill_null(1))
        .group_by("phase", *PHASE_DEVICE_KEY_COLUMNS, pl.col("time").dt.truncate("1m"), maintain_order=True)
        .agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max(), pl.col("profile").first())
    )
    needs = minutes.group_by("phase", maintain_order=True).agg(
        sm_need=pl.col("sm_activity").quantile(PHASE_ACTIVITY_QUANTILE, interpolation="equiprobable"),
        memory_peak_gib=pl.col("memory_used_gib").max(),
        profile=pl.col("profile").drop_nulls().first(),
        devices=pl.struct(PHASE_DEVICE_KEY_COLUMNS).n_unique().cast(pl.Int64),
    )
    run_s = (pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6
    return phases.with_columns(run_s=run_s).join(needs, on="phase", how="left", maintain_order="left")


PEAK_MEMORY_MARGIN_FRACTION = 0.10
"""Share added to the peak of memory when a slice is chosen for a phase [0-1]. SM activity is a p95 already and gets no
margin.
"""


def fit_phases(phases: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Find the smallest MIG slice for each phase, and for each job as a whole.

    Only jobs on one GPU or slice are fitted; others keep full GPUs. A phase without readings of activity or memory
    keeps a full GPU.

    Parameters
    ----------
    phases : polars.DataFrame
        From :func:`gpuplanner.usage.demand_by_phase_and_late_demand_test.phases_of_jobs`.
    gpu_model : GpuModel or str
        The GPU model to fit to, taken to be the one that was sampled.

    Returns
    -------
    polars.DataFrame
        `phases` with ``sms_needed``, ``profile_phase``, ``profile_job``, and ``saved_gpu_hours``: GPU-hours
        that a slice for each phase could save at most against one slice for the whole job, since moving between slices
        costs time and needs an unallocated slice [GPU h].

    Raises
    ------
    GeometryError
        If the GPU model is unknown or no source states its SMs.

    Examples
    --------
    >>> phases = pl.DataFrame({"job_id": "1", "gpus": 1.0, "profile": None, "run_s": 3600.0,
    ...     "sm_need": [0.1, 0.4], "memory_peak_gib": [8.0, 30.0]}, schema_overrides={"profile": pl.String})
    >>> fit_phases(phases, "H100-80GB-SXM5").select("profile_phase", "profile_job", "saved_gpu_hours").rows()
    [('1g.10gb', '3g.40gb', 0.2857142857142857), ('3g.40gb', '3g.40gb', 0.0)]
    """
    model = as_gpu_model(gpu_model)
    single = pl.col("gpus") <= 1
    slice_sms = pl.col("profile").map_elements(lambda name: float(model.sms_of(name)), return_dtype=pl.Float64)
    of_whole = pl.lit(float(model.sms_of(FULL_GPU)))
    sms = pl.when(pl.col("profile").is_null()).then(of_whole).otherwise(slice_sms)
    table = phases.with_columns(sms_needed=pl.col("sm_need") * sms)
    needs = {"job_sms": "sms_needed", "job_memory": "memory_peak_gib"}
    table = table.with_columns(_largest_need(need).over("job_id").alias(name) for name, need in needs.items())

    def fitting_profile(sms: str, memory_gib: str) -> pl.Expr:
        enough = smallest_profile(model, pl.col(sms), pl.col(memory_gib) * (1 + PEAK_MEMORY_MARGIN_FRACTION))
        return pl.when(single).then(enough).otherwise(pl.lit(FULL_GPU))

    shares = {name: model.gpu_fraction(name) for name in (FULL_GPU, *(profile.name for profile in model.profiles))}
    of_phase, of_job = fitting_profile("sms_needed", "memory_peak_gib"), fitting_profile("job_sms", "job_memory")
    whole = table.with_columns(profile_phase=of_phase, profile_job=of_job)
    share = pl.col("profile_job", "profile_phase").replace_strict(shares, return_dtype=pl.Float64)
    less = whole.select(share).select(pl.col("profile_job") - pl.col("profile_phase")).to_series()
    saved = less.clip(lower_bound=0.0) * whole["run_s"] / 3600.0
    return whole.with_columns(saved_gpu_hours=saved).drop("job_sms", "job_memory")


def _largest_need(name: str) -> pl.Expr:
    """Build the expression of the largest need of a job over its phases; null if the need of any phase is unknown."""
    return pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).max())
