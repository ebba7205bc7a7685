"""Rightsizing: the smallest MIG profile that has the SMs and the memory that a job used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import polars as pl

from gpuplanner.core.errors import GeometryError, SchemaError
from gpuplanner.core.schema_checks import conform, make_empty_table
from gpuplanner.core.schemas import FULL_GPU, MIN_USED_SM_ACTIVITY, Jobs, Samples
from gpuplanner.hardware.catalog import resolve_mig_model
from gpuplanner.hardware.gpu_models import GpuModel, as_gpu_model
from gpuplanner.usage.requested_demand import (
    canonical_names,
    profile_sizes,
    resolve_requests,
    slice_profiles,
    smallest_profile,
)

GPU_HOURS_NOTE = (
    "Allocated GPU-hours count the GPUs that jobs were allocated, up to the end of the data. Requested GPU-hours "
    "(gpuplanner rightsize) count the part of a GPU that jobs requested, and only of jobs that ended."
)
"""Note for texts whose readers meet both kinds of GPU-hours."""
RIGHTSIZING_ACTIVITY_QUANTILE = 0.95
"""Quantile of the one-minute means of SM activity for which a job is sized [0-1]."""


def first_text(*cases: tuple[pl.Expr, pl.Expr | str]) -> pl.Expr:
    """Build the text that belongs to the first condition that is true; null where none is."""
    texts = ((holds, pl.lit(text) if isinstance(text, str) else text) for holds, text in cases)
    return pl.coalesce(pl.when(holds).then(text) for holds, text in texts)


def samples_of_runs(jobs: pl.DataFrame, samples: pl.DataFrame | None, *, table_name: str) -> pl.DataFrame:
    """Select the samples of jobs while they were allocated GPUs, with the ``row`` of the job.

    Parameters
    ----------
    jobs : polars.DataFrame
        ``row``, ``job_id``, ``start_time`` and ``end_time``, which is null while a job runs.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    table_name : str
        Name of the table in error messages.
    """
    table = conform(samples, Samples, source=table_name) if samples is not None else make_empty_table(Samples)
    spans = (pl.col("time") >= pl.col("start_time")) & (pl.col("time") < pl.col("end_time")).fill_null(True)
    return table.join(jobs.select("row", "job_id", "start_time", "end_time"), on="job_id").filter(spans)


def add_own_needs(
    jobs: pl.DataFrame, samples: pl.DataFrame | None, gpu_model: GpuModel, *, headroom: float, minimum_minutes: int
) -> pl.DataFrame:
    """Add the observed use of jobs, and the SMs and memory that they need, with headroom.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    gpu_model : GpuModel
        GPU model of the jobs.
    headroom : float
        Share added to the observed use.
    minimum_minutes : int
        Fewest sampled minutes that count as evidence.
    """
    observed = pl.col("minutes") >= minimum_minutes
    whole = float(gpu_model.sms_of(FULL_GPU))
    # A job that names a slice may yet hold a whole GPU, if it is not known to have held instances.
    allocated = (
        pl.when("cut")
        .then("asked_sms")
        .when(pl.col("gpus") >= 1)
        .then(whole)
        .when(pl.col("profile_requested").is_null() & pl.col("gpus").is_not_null())
        .then(pl.col("gpus") * whole)
        .otherwise("asked_sms")
    )
    sampled = pl.when(observed).then(pl.coalesce("sampled_sms", allocated) * pl.col("activity"))
    recorded = allocated * pl.col("sm_activity")
    with_headroom = allocated * (pl.col("sm_activity") * (1 + headroom)).clip(upper_bound=1.0)
    peak = pl.max_horizontal("memory_peak_gib", pl.when(observed).then("sampled_memory_gib"))
    needs = {
        "minutes": pl.when(observed).then("minutes"),
        "used_sms": pl.coalesce(sampled, recorded),
        "own_sms": pl.coalesce(sampled, with_headroom),
        "used_memory_gib": peak,
        "own_memory_gib": peak * (1 + headroom),
    }
    return (
        jobs.join(_summarize_telemetry(jobs, samples, gpu_model), on="row", how="left", maintain_order="left")
        .with_columns(pl.when("sizable").then(value).alias(name) for name, value in needs.items())
        .drop("sampled_sms", "activity", "sampled_memory_gib")
    )


def _summarize_telemetry(jobs: pl.DataFrame, samples: pl.DataFrame | None, gpu_model: GpuModel) -> pl.DataFrame:
    """Tabulate sampled minutes, quantile of SM activity, peak memory and SMs of jobs with telemetry."""
    spans = samples_of_runs(jobs, samples, table_name="samples")
    names = canonical_names(spans["profile"], gpu_model)
    sms = {name: float(gpu_model.sms_of(profile)) for name, profile in names.items()}
    minutes = spans.group_by(
        "row", "node", "gpu", "instance", pl.col("time").dt.truncate("1m"), maintain_order=True
    ).agg(
        pl.col("sm_activity").mean(),
        pl.col("memory_used_gib").max(),
        sms=pl.col("profile").replace_strict(sms, default=None, return_dtype=pl.Float64).max(),
    )
    return minutes.group_by("row", maintain_order=True).agg(
        minutes=pl.col("sm_activity").count(),
        activity=pl.col("sm_activity").quantile(RIGHTSIZING_ACTIVITY_QUANTILE, interpolation="equiprobable"),
        sampled_memory_gib=pl.col("memory_used_gib").max(),
        sampled_sms=pl.col("sms").max(),
    )


EVIDENCE_KINDS = ("telemetry", "job statistics", "request")
"""Evidence for the needs of a job, from best to none: its telemetry, its accounting record, its own request."""
RIGHTSIZING_COLUMNS = (
    *("job_id", "attempt", "profile_requested", "profile_needed", "instances", "sms_needed", "memory_needed_gib"),
    *("change", "evidence"),
)
"""Columns of the table that :func:`rightsize` returns."""

RIGHTSIZING_HEADROOM_FRACTION = 0.10
"""Share added to the observed use when a request is rightsized [0-1]."""


def rightsize(
    jobs: pl.DataFrame,
    gpu_model: GpuModel | str,
    *,
    samples: pl.DataFrame | None = None,
    headroom: float = RIGHTSIZING_HEADROOM_FRACTION,
    minimum_evidence: int = 5,
) -> pl.DataFrame:
    """Find the smallest profile that each job needs, with the evidence for it.

    A need has two parts. SMs: activity times the SMs of what the job was *allocated* (a job that names 1g.10gb but had
    an entire H100 at 20 % uses 26 SMs). Memory: the peak. The profile is the smallest, by compute slices and then
    memory, with enough of both. A part that was not observed counts as large as the request, never as zero.

    - telemetry: the 95 % quantile of the minute means of SM activity, over at least `minimum_evidence`
      minutes, and the peak of memory plus headroom;
    - job statistics: mean SM activity and peak memory of the accounting record, plus headroom;
    - request: without either, the request itself.

    Only jobs on one GPU or slice change. A profile larger than the request is recommended only where the use itself,
    without headroom, exceeds it.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    gpu_model : GpuModel or str
        The GPU model to size for; the activity of full GPUs is taken to be that of this GPU model.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    headroom : float
        Share added to a mean SM activity and to peak memory. [0-1]
    minimum_evidence : int
        Fewest minutes of a job that count as evidence.

    Returns
    -------
    polars.DataFrame, shape (n_jobs, 9)
        In the order of `jobs`: ``job_id``, ``attempt``, ``profile_requested`` (on this GPU model),
        ``profile_needed``, ``instances``, ``sms_needed``, ``memory_needed_gib`` [GiB] (of each instance), ``change``
        (smaller, same, larger) and ``evidence`` (one of :data:`EVIDENCE_KINDS`).

    Raises
    ------
    GeometryError
        If no source states the SMs of the GPU model.
    SchemaError
        If `headroom` or `minimum_evidence` is out of range.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"gpus": [1.0, 8.0], "sm_activity": [0.1, 0.1], "memory_peak_gib": [14.0, 14.0]})
    >>> jobs = jobs.with_columns(
    ...     job_id=pl.Series(["1", "2"]),
    ...     attempt=1,
    ...     tenant=pl.lit("a"),
    ...     state=pl.lit("COMPLETED"),
    ...     submit_time=nine,
    ...     start_time=nine,
    ...     end_time=nine + timedelta(hours=7),
    ... )
    >>> profile_sizes = rightsize(jobs, "H100-80GB-SXM5")
    >>> profile_sizes.select("profile_requested", "profile_needed", "change").rows()
    [('gpu', '1g.20gb', 'smaller'), ('gpu', 'gpu', 'same')]
    """
    if not 0 <= headroom < 1 or minimum_evidence < 1:
        expected = "headroom from 0 to below 1 and minimum_evidence of at least 1"
        raise SchemaError("rightsize", expected, f"{headroom!r} and {minimum_evidence!r}", "Use for example 0.1 and 5.")
    model = as_gpu_model(gpu_model)
    table = conform(jobs, Jobs, source="rightsize: jobs").with_columns(cut=pl.col("instances").is_not_null())
    requests = _add_request_sizes(resolve_requests(table, model), model)
    observed = add_own_needs(requests, samples, model, headroom=headroom, minimum_minutes=minimum_evidence)
    is_measured = pl.any_horizontal(pl.col("own_sms", "own_memory_gib").is_not_null())
    needs = observed.with_columns(
        profile_requested="profile",
        sms_needed=pl.coalesce("own_sms", "asked_sms"),
        memory_needed_gib=pl.coalesce("own_memory_gib", "asked_memory_gib"),
        evidence=first_text(
            (pl.col("minutes").is_not_null(), "telemetry"), (is_measured, "job statistics"), (pl.lit(True), "request")
        ),
    )
    return _choose_profiles(needs, model).select(RIGHTSIZING_COLUMNS)


def _add_request_sizes(jobs: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
    """Add requested SMs and memory of one instance, and whether the job can be sized at all."""
    table = profile_sizes(gpu_model)
    whole = table.row(by_predicate=pl.col("profile") == FULL_GPU, named=True)
    fraction = (pl.col("gpus") < 1) & pl.col("profile_requested").is_null()
    return (
        jobs.with_row_index("row")
        .join(table, on="profile", how="left", maintain_order="left")
        .with_columns(
            asked_sms=pl.when(fraction).then(pl.col("gpus") * whole["sms"]).otherwise("sms"),
            asked_memory_gib=pl.when(fraction).then(pl.col("gpus") * whole["memory_gib"]).otherwise("memory_gib"),
            sizable=pl.col("rank").is_not_null() & (pl.col("instances") == 1),
        )
    )


def _choose_profiles(needs: pl.DataFrame, gpu_model: GpuModel) -> pl.DataFrame:
    """Choose the smallest profile that fits each job's needs; a larger one than requested only if its use is larger."""
    ranks = {part.name: rank for rank, part in enumerate(slice_profiles(gpu_model))}
    full, whole = len(ranks), len(ranks) + 1  # ranks of the sizes that take the whole board
    enough = smallest_profile(gpu_model, pl.col("sms_needed"), pl.col("memory_needed_gib"))
    not_cut = pl.when(pl.col("rank") == full).then(full).otherwise(whole)
    fitting = enough.replace_strict(ranks, default=not_cut, return_dtype=pl.Int32)
    sms_fit, memory_fits = (pl.col(f"used_{name}") <= pl.col(name) for name in ("sms", "memory_gib"))
    use_fits = sms_fit.fill_null(True) & memory_fits.fill_null(True)
    has_own_evidence = pl.col("evidence").is_in(EVIDENCE_KINDS[:2])
    larger = pl.col("fitting") > pl.col("rank")
    is_kept = ~pl.col("sizable") | (pl.col("fitting") == pl.col("rank")) | (larger & (use_fits | ~has_own_evidence))
    return needs.with_columns(enough=enough, fitting=fitting).with_columns(
        change=first_text((is_kept, "same"), (larger, "larger"), (pl.lit(True), "smaller")),
        profile_needed=pl.when(is_kept).then("profile").otherwise("enough"),
    )


SAME_REQUEST_KEY_COLUMNS = ("tenant", "user", "job_class", "gpu_model", "profile_requested", "gpus")
"""Columns that are equal for jobs with the same request."""


def models_of_jobs(
    jobs: pl.DataFrame, boards: Mapping[str | None, GpuModel | str] | None = None
) -> dict[str | None, GpuModel | None]:
    """Map the GPU model names of jobs to GPU models of the catalogue.

    Parameters
    ----------
    jobs : polars.DataFrame
        With ``gpu_model``.
    boards : mapping, optional
        Name in the catalogue by GPU model name of the source; under None, the GPU model of jobs that name none. Other
        names are looked up in the catalogue, where a unique prefix is enough.

    Returns
    -------
    dict
        GPU model by word, None where none is known: a GPU model is never guessed.

    Raises
    ------
    GeometryError
        If a name of `boards` is not in the catalogue.

    Examples
    --------
    >>> words = pl.DataFrame({"gpu_model": ["a100", "B200", None]})
    >>> {word: gpu_model and gpu_model.name for word, gpu_model in models_of_jobs(words, {"a100": "A100-80GB"}).items()}
    {None: None, 'B200': 'B200-180GB', 'a100': 'A100-80GB'}
    """
    stated = dict(boards or {})
    model_by_word: dict[str | None, GpuModel | None] = {}
    for word in jobs["gpu_model"].cast(pl.String).unique().sort().to_list():
        model_by_word[word] = as_gpu_model(stated[word]) if word in stated else None
        if word is not None and word not in stated:
            with suppress(GeometryError):
                model_by_word[word] = as_gpu_model(resolve_mig_model(word))
    return model_by_word


def requested_and_used(
    jobs: pl.DataFrame,
    boards: Mapping[str | None, GpuModel | str] | None = None,
    *,
    samples: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Tabulate the GPUs and memory that each GPU job requested beside those that it used.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``. Jobs without a GPU, or of which the number of GPUs is not known, are left out.
    boards : mapping, optional
        As for :func:`models_of_jobs`.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.

    Returns
    -------
    polars.DataFrame
        In the order of `jobs`: ``job_id``, ``attempt``, the columns :data:`SAME_REQUEST_KEY_COLUMNS`, ``nodes``,
        ``state``, ``board`` (of the catalogue), ``profile`` (on it), ``instances``, ``is_cut`` (whether the job is
        known to have held MIG instances), ``memory_asked_gib`` [GiB, of one GPU or instance],
        ``memory_peak_gib`` [GiB, of the record or the samples], ``sm_activity`` [0-1, of the record,
        else of the samples], ``start_time``, ``run_s``, ``time_limit_s``, ``wait_s`` [s], ``gpus_active`` (that worked
        in some minute; null unless all were sampled), ``profile_needed``, ``sms_needed``, ``size_from`` (the evidence),
        ``share_asked`` (of the GPU model, per instance), ``rank_asked``, ``rank_needed`` (sizes of the GPU model in
        order; null where the job cannot be sized), and ``gpu_hours`` [GPU h, of what was asked for].

    Raises
    ------
    SchemaError, GeometryError
        As :func:`~gpuplanner.usage.rightsizing.rightsize` and :func:`models_of_jobs`.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"job_id": ["1"], "attempt": 1, "tenant": "a", "state": "COMPLETED", "gpus": 1.0,
    ...     "submit_time": nine, "start_time": nine, "end_time": nine + timedelta(hours=2),
    ...     "sm_activity": 0.1, "memory_peak_gib": 8.0})
    >>> seen = requested_and_used(jobs, {None: "H100-80GB-SXM5"})
    >>> seen.select("memory_asked_gib", "memory_peak_gib", "profile_needed", "gpu_hours").row(0)
    (79.25, 8.0, '1g.10gb', 2.0)
    """
    table = conform(jobs, Jobs, source="hints: jobs").filter(pl.col("gpus") > 0).with_row_index("row")
    table = table.with_columns(devices=pl.coalesce("instances", "gpus"), is_cut=pl.col("instances").is_not_null())
    sized = [
        _size_jobs_of_model(table.filter(pl.col("gpu_model").eq_missing(pl.lit(word))), gpu_model, samples)
        for word, gpu_model in models_of_jobs(table, boards).items()
    ]
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 3.6e9
    wait_s = (pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6
    return (
        pl.concat([*sized, _size_jobs_of_model(table.clear(), None, None)])
        .sort("row")
        .join(_sampled_use(table, samples), on="row", how="left", maintain_order="left")
        .select(
            pl.col("job_id", "attempt", *SAME_REQUEST_KEY_COLUMNS),
            pl.col("nodes", "state", "board", "profile", "instances", "is_cut", "memory_asked_gib"),
            pl.max_horizontal("memory_peak_gib", "sampled_memory_gib"),
            pl.coalesce("sm_activity", "sampled_activity"),
            "start_time",
            hours.mul(3600).alias("run_s"),
            "time_limit_s",
            wait_s.alias("wait_s"),
            pl.when(pl.col("gpus_seen") >= pl.col("devices")).then("gpus_active"),
            pl.col("profile_needed", "sms_needed", "size_from", "share_asked", "rank_asked", "rank_needed"),
            gpu_hours=pl.col("share_asked") * pl.col("instances") * hours,
        )
    )


def _size_jobs_of_model(jobs: pl.DataFrame, gpu_model: GpuModel | None, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Resolve and rightsize the jobs of one GPU model.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``.
    gpu_model : GpuModel or None
        Their GPU model; None: unknown.
    samples : polars.DataFrame, optional
        Table ``schemas.Samples``.
    """
    if gpu_model is None:
        named = pl.col("profile_requested").is_not_null()
        # Without a board a slice has no known memory; a whole GPU is one GPU anywhere.
        share = pl.when(~named).then(pl.lit(1.0))
        of_each = pl.col("gpus") / pl.col("instances")
        return jobs.with_columns(
            board=pl.lit(None, pl.String),
            profile=pl.coalesce("profile_requested", pl.lit(FULL_GPU)),
            instances=pl.coalesce("instances", pl.col("gpus").ceil().cast(pl.Int32)),
            memory_asked_gib=pl.lit(None, pl.Float64),
            share_asked=pl.coalesce(of_each, pl.when(pl.col("gpus") < 1).then("gpus").otherwise(share)),
            rank_asked=pl.lit(None, pl.Int32),
            profile_needed=pl.lit(None, pl.String),
            sms_needed=pl.lit(None, pl.Float64),
            size_from=pl.lit(None, pl.String),
            rank_needed=pl.lit(None, pl.Int32),
        )
    table = profile_sizes(gpu_model)
    request_columns = table.select("profile", memory_asked_gib="memory_gib", share_asked="share", rank_asked="rank")
    needed = rightsize(jobs, gpu_model, samples=samples)
    ranks = dict(table.select("profile", "rank").iter_rows())
    has_own_evidence = pl.col("size_from").is_in(EVIDENCE_KINDS[:2])
    rank = pl.col("profile_needed").replace_strict(ranks, default=None, return_dtype=pl.Int32)
    return (
        resolve_requests(jobs, gpu_model)
        .join(request_columns, on="profile", how="left", maintain_order="left")
        .with_columns(
            needed["profile_needed", "sms_needed"], board=pl.lit(gpu_model.name), size_from=needed["evidence"]
        )
        .with_columns(rank_needed=pl.when(has_own_evidence & (pl.col("instances") == 1)).then(rank))
        .select(_size_jobs_of_model(jobs.clear(), None, None).columns)
    )


def _sampled_use(jobs: pl.DataFrame, samples: pl.DataFrame | None) -> pl.DataFrame:
    """Compute, by job, sampled and active devices, mean SM activity [0-1] and peak memory [GiB] from telemetry."""
    return (
        samples_of_runs(jobs, samples, table_name="hints: samples")
        .group_by("row", "node", "gpu", "instance", pl.col("time").dt.truncate("1m"), maintain_order=True)
        .agg(pl.col("sm_activity").mean(), pl.col("memory_used_gib").max())
        .group_by("row", "node", "gpu", "instance", maintain_order=True)
        .agg(
            mean=pl.col("sm_activity").sort().mean(),  # floats are added in a fixed order
            highest=pl.col("sm_activity").max(),
            memory=pl.col("memory_used_gib").max(),
        )
        .group_by("row", maintain_order=True)
        .agg(
            gpus_seen=pl.col("highest").count(),
            gpus_active=(pl.col("highest") >= MIN_USED_SM_ACTIVITY).sum().cast(pl.Int32),
            sampled_activity=pl.col("mean").sort().mean(),
            sampled_memory_gib=pl.col("memory").max(),
        )
    )
