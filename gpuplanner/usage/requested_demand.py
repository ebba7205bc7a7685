"""Demand series of requested profiles.

All that choose a profile choose it here: by SMs and memory, by a share of a GPU, by compute slices, or by the
profiles that it stands in for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.core.errors import GeometryError, GpuPlannerWarning, SchemaError, examples, resolve_name
from gpuplanner.core.schema_checks import cast_columns, conform, make_empty_table
from gpuplanner.core.schemas import FULL_GPU, Demand, Jobs
from gpuplanner.core.step_functions import (
    UNIX_EPOCH,
    count_intervals,
    has_unknown_end,
    interval_ticks,
    require_time_zone,
    sum_overlap_by_interval,
    ticks_since,
)
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile, as_gpu_model

DEMAND_CLOCKS = ("held", "wanted")
"""Clocks of a demand series: ``held`` counts a job while it was allocated GPUs, ``wanted`` from its submission as if it
had not queued.
"""
RESOLVED_REQUEST_COLUMNS = ("profile", "instances")
"""Columns that :func:`resolve_requests` adds to jobs: profile, and number of instances."""
DEMAND_COLUMNS = ("submit_time", "start_time", "end_time", "state", "tenant", *RESOLVED_REQUEST_COLUMNS)
"""Columns of jobs that a demand series uses."""
DAY = timedelta(days=1)
"""One day."""
ALL_TENANTS_POOL_NAME = "all"
"""Value of ``tenant`` in demand series that sum all tenants."""
DAY_H = 24.0
"""Length of a day [h]."""


def demand_series(
    jobs: pl.DataFrame,
    *,
    interval_hours: float = 1.0,
    start: datetime | None = None,
    end: datetime | None = None,
    clock: str = "held",
) -> pl.DataFrame:
    """Compute the mean number of concurrent instances per interval, one series per tenant and profile.

    The value of an interval is the integral of the number of instances over it, divided by its length. The integral is
    summed in whole microseconds, so ``sum(y) * interval_hours`` equals instances x hours within the grid but for the
    rounding of that one division. Jobs with an unknown request are left out; :func:`count_excluded_jobs` counts them.
    So are ended jobs without an end time; the quality report counts these.

    Parameters
    ----------
    jobs : polars.DataFrame, shape (n_jobs, ...)
        Table ``schemas.Jobs`` with ``profile`` and ``instances``, see :func:`resolve_requests`.
    interval_hours : float
        Length of an interval [h]: whole minutes that divide a day, or whole days.
    start, end : datetime, optional
        First instant of the grid, and first instant behind it. Default: the first event rounded down to a
        multiple of the interval in UTC (intervals of whole days: to midnight), and the last event rounded up to a whole
        interval from `start`.
    clock : {"held", "wanted"}
        "held": a job counts while it was allocated its GPUs, ``[start_time, end_time)``; one that still runs counts to
        `end`. "wanted": it counts as if it had never queued, ``[submit_time, submit_time + run time)``; one that never
        started counts from its submission until it was withdrawn, else to `end`.

    Returns
    -------
    polars.DataFrame, shape (n_series * n_slots, 7)
        Table ``schemas.Demand``: every series has every interval, zeros included; sorted by ``unique_id`` (which is
        ``tenant/profile``) and ``ds``. ``gpu_model`` and ``tier`` are null.

    Raises
    ------
    SchemaError
        If columns are missing, or `start`, `end` and `interval_hours` do not form a grid.

    Examples
    --------
    >>> from datetime import UTC
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame(
    ...     {
    ...         "job_id": ["1"],
    ...         "attempt": [1],
    ...         "tenant": ["vision"],
    ...         "submit_time": [nine],
    ...         "start_time": [nine.replace(minute=30)],
    ...         "end_time": [nine.replace(hour=10, minute=45)],
    ...         "state": ["COMPLETED"],
    ...         "profile": ["3g.40gb"],
    ...         "instances": [2],
    ...     }
    ... )
    >>> demand_series(jobs)["y"].to_list()
    [1.0, 1.5]
    """
    known_clock = resolve_name(clock, DEMAND_CLOCKS, subject="clock", error=SchemaError)
    begin = "start_time" if known_clock == "held" else "submit_time"
    countable = pl.col("profile").is_not_null() & (pl.col("instances") > 0) & ~has_unknown_end()
    requests = _resolved_jobs(jobs).filter(countable)
    begun = requests.filter(pl.col(begin).is_not_null())
    if begun.is_empty():
        return make_empty_table(Demand)
    step = interval_ticks(interval_hours, source="demand")
    slot = timedelta(microseconds=step)
    first, last = _demand_grid(requests, begin, slot, start, end)
    slots = count_intervals(first, last, interval_hours, source="demand")
    until = _counted_until(known_clock, last)
    spans = begun.with_columns(unique_id=pl.format("{}/{}", "tenant", "profile"), until=until)
    series = spans.select("unique_id", "tenant", "profile").unique().sort("unique_id")
    row = spans["unique_id"].cast(pl.Enum(series["unique_id"])).to_physical().to_numpy().astype(np.int64)
    begins, ends = ticks_since(spans[begin], first), ticks_since(spans["until"], first)
    instances = spans["instances"].to_numpy()
    sums = sum_overlap_by_interval(
        begins, ends, instances, row, n_groups=series.height, n_intervals=slots, interval_ticks=step
    )
    starts = pl.datetime_range(first, last, slot, closed="left", time_zone="UTC", eager=True)
    table = series[np.repeat(np.arange(series.height), slots)].with_columns(
        ds=starts[np.tile(np.arange(slots), series.height)], y=pl.Series((sums / step).ravel())
    )
    return conform(table, Demand, source="demand")


def count_excluded_jobs(jobs: pl.DataFrame) -> dict[str, int]:
    """Count the jobs that a demand series leaves out, by reason.

    Returns
    -------
    dict
        ``"request unknown"``: the source does not say how many GPUs; ``"no GPU"``: none was requested.

    Examples
    --------
    >>> count_excluded_jobs(pl.DataFrame({"profile": ["gpu", None, None], "instances": [1, 0, None]}))
    {'request unknown': 1, 'no GPU': 1}
    """
    unknown = jobs["instances"].is_null() | (jobs["profile"].is_null() & (jobs["instances"] != 0))
    return {"request unknown": int(unknown.sum()), "no GPU": int((jobs["instances"] == 0).sum())}


def _resolved_jobs(jobs: pl.DataFrame) -> pl.DataFrame:
    """Check a table of jobs with resolved requests, and select the columns that count."""
    missing = [name for name in RESOLVED_REQUEST_COLUMNS if name not in jobs.columns]
    if missing:
        expected = f"columns {', '.join(map(repr, RESOLVED_REQUEST_COLUMNS))}"
        todo = "Add them with sizing.resolve_requests(jobs, gpu_model)."
        raise SchemaError("demand: jobs", expected, f"none of {examples(missing)}", todo)
    requests = jobs["profile"].cast(pl.String), jobs["instances"].cast(pl.Int64)
    columns = [name for name in DEMAND_COLUMNS if name not in RESOLVED_REQUEST_COLUMNS]
    return cast_columns(jobs, Jobs, columns, source="demand: jobs").with_columns(*requests)


def _demand_grid(
    requests: pl.DataFrame, begin: str, slot: timedelta, start: datetime | None, end: datetime | None
) -> tuple[datetime, datetime]:
    """Return begin and end of the interval grid: as given, else the smallest that covers all jobs.

    Parameters
    ----------
    requests : polars.DataFrame
        Jobs that are counted.
    begin : str
        Column with the instant from which a job counts.
    slot : timedelta
        Length of an interval.
    start, end : datetime, optional
        Bounds of the grid, where they are given.
    """
    require_time_zone(start, end, source="demand")
    if start is None:
        unit = min(slot, DAY)
        earliest = requests.select(pl.col(begin).min()).item()
        start = UNIX_EPOCH + (earliest - UNIX_EPOCH) // unit * unit
    if end is None:
        latest = requests.select(pl.max_horizontal(pl.col("submit_time", "start_time", "end_time").max())).item()
        end = start + max(-((start - latest) // slot), 1) * slot
    return start, end


def _counted_until(clock: str, last: datetime) -> pl.Expr:
    """Build the instant until which a job counts on a clock; a job without an end counts to the end of the grid."""
    released = pl.col("end_time").fill_null(pl.lit(last))
    if clock == "held":
        return released
    run = released - pl.col("start_time")
    return pl.coalesce(pl.col("submit_time") + run, released)


def pool_demand(demand: pl.DataFrame) -> pl.DataFrame:
    """Sum the demand of all tenants: one series per profile, of tenant ``"all"``.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.

    Returns
    -------
    polars.DataFrame
        Table ``schemas.Demand``, sorted by ``unique_id`` (``all/profile``) and ``ds``.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> ds = datetime(2026, 2, 2, tzinfo=UTC)
    >>> tenants = pl.DataFrame({"unique_id": ["a/gpu", "b/gpu"], "tenant": ["a", "b"]})
    >>> demand = tenants.with_columns(ds=pl.lit(ds), y=pl.lit(1.5), profile=pl.lit("gpu"))
    >>> pool_demand(demand).select("unique_id", "y").rows()
    [('all/gpu', 3.0)]
    """
    total = (
        conform(demand, Demand, source="demand")
        .sort("profile", "ds", "unique_id")  # the order in which floats are added is part of the result
        .group_by("profile", "ds", maintain_order=True)
        .agg(pl.col("y").sum())
        .with_columns(
            unique_id=pl.format(ALL_TENANTS_POOL_NAME + "/{}", "profile"), tenant=pl.lit(ALL_TENANTS_POOL_NAME)
        )
    )
    return conform(total.sort("unique_id", "ds"), Demand, source="demand")


def weekly_demand(demand: pl.DataFrame, *, quantile: float = 0.95) -> pl.DataFrame:
    """Compute mean, peak and quantile of demand by week and profile, over all tenants.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.
    quantile : float
        Share of the intervals of a week whose demand is at or below the column ``quantile``. [0-1]

    Returns
    -------
    polars.DataFrame, shape (n_weeks * n_profiles, 6)
        ``week`` (Monday 00:00 UTC), ``profile``, ``slots`` (number of intervals: fewer in a week that is not covered as
        a whole), ``mean``, ``peak``, ``quantile`` [instances]; sorted by week and profile.

    Raises
    ------
    SchemaError
        If `quantile` is not between 0 and 1.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> monday = datetime(2026, 2, 2, tzinfo=UTC)
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "y": [1.0, 3.0]})
    >>> weekly_demand(demand.with_columns(ds=pl.Series([monday, monday.replace(hour=1)])))["mean"].to_list()
    [2.0]
    """
    if not 0 <= quantile <= 1:
        raise SchemaError("weekly: quantile", "a number from 0 to 1", repr(quantile), "Use for example 0.95.")
    y = pl.col("y")
    upper = y.quantile(quantile, interpolation="equiprobable")
    return (
        pool_demand(demand)
        .group_by(pl.col("ds").dt.truncate("1w").alias("week"), "profile", maintain_order=True)
        .agg(slots=pl.len(), mean=y.mean(), peak=y.max(), quantile=upper)
        .sort("week", "profile")
    )


def mean_occupancy(
    begin: np.ndarray, end: np.ndarray, size: np.ndarray, row: np.ndarray, rows: int, slots: int
) -> np.ndarray:
    """Compute the mean amount occupied at once, such as instances, in every interval of a grid, by row of the result.

    Parameters
    ----------
    begin, end : numpy.ndarray, shape (n,)
        Begin and end of each occupation [intervals from the begin of the grid]; what lies outside of the grid is left
        out, and an end before its begin counts nothing.
    size : numpy.ndarray, shape (n,)
        Amount that each occupies, such as instances.
    row : numpy.ndarray of int, shape (n,)
        Row of the result in which each counts.
    rows, slots : int
        Number of rows and of intervals of the result.

    Returns
    -------
    numpy.ndarray, shape (rows, slots)

    Examples
    --------
    >>> mean_occupancy(np.array([0.5]), np.array([2.25]), np.array([4.0]), np.array([0]), 1, 3).tolist()
    [[2.0, 4.0, 1.0]]
    """
    width = slots + 2
    first = np.clip(begin, 0.0, slots)
    last = np.maximum(np.clip(end, 0.0, slots), first)
    cells, total = row * np.int64(width), rows * width
    change = np.zeros(total)
    inside = np.zeros(total)
    for edge, sign in ((first, 1.0), (last, -1.0)):
        slot = edge.astype(np.int64)
        change += np.bincount(cells + slot, weights=sign * size, minlength=total)
        inside += np.bincount(cells + slot, weights=-sign * size * (edge - slot), minlength=total)
    occupied = (change.reshape(rows, width).cumsum(axis=1) + inside.reshape(rows, width))[:, :slots]
    return np.where(occupied > 1e-9, occupied, 0.0)


def covered_day_shares(spans: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Compute the share of each day [0-1] that lies in spans of time.

    `spans` are begins and ends [h], shape (n, 2), which do not overlap; `days` are the begins of days [h].

    Examples
    --------
    >>> covered_day_shares(np.array([[6.0, 12.0], [30.0, 99.0]]), np.array([0.0, 24.0])).tolist()
    [0.25, 0.75]
    """
    inside = (np.minimum(days + DAY_H, end) - np.maximum(days, begin) for begin, end in spans)
    covered_h = sum(np.clip(hours, 0.0, None) for hours in inside)
    return np.minimum(np.asarray(covered_h) / DAY_H, 1.0)


def plain_profiles(gpu_model: GpuModel) -> tuple[MigProfile, ...]:
    """List MIG profiles from small to large, without variants with media or graphics engines.

    Examples
    --------
    >>> [profile.name for profile in plain_profiles(as_gpu_model("A30-24GB"))]
    ['1g.6gb', '2g.12gb', '4g.24gb']
    """
    plain = (profile for profile in gpu_model.profiles if not profile.attribute)
    return tuple(sorted(plain, key=lambda profile: profile.compute_order))


def slice_profiles(gpu_model: GpuModel | str) -> tuple[MigProfile, ...]:
    """List the MIG profiles that a request may be mapped to, small to large by compute slices, then memory.

    Full-size profiles are left out, since the full GPU serves as well without MIG; so are variants with media or
    graphics engines, which only a request that names them should get, and profiles whose SMs or memory no source
    states.

    Examples
    --------
    >>> [profile.name for profile in slice_profiles("H100-80GB-SXM5")]
    ['1g.10gb', '1g.20gb', '2g.20gb', '3g.40gb', '4g.40gb']
    """
    model = as_gpu_model(gpu_model)
    return tuple(
        profile
        for profile in plain_profiles(model)
        if profile.memory_slices < model.memory_slices and profile.sms is not None and profile.memory_gib is not None
    )


def smallest_profile(gpu_model: GpuModel | str, sms: pl.Expr, memory_gib: pl.Expr) -> pl.Expr:
    """Build the smallest of the :func:`slice_profiles` that holds a need, else the full GPU.

    A need that was not observed (null) counts as a full GPU, never as zero. Headroom is added by the caller.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The GPU model.
    sms : polars.Expr
        Streaming multiprocessors needed.
    memory_gib : polars.Expr
        Memory needed [GiB].

    Returns
    -------
    polars.Expr
        Name of the profile, or ``"gpu"``.

    Examples
    --------
    >>> needs = pl.DataFrame({"sms": [14.0, 14.0, None], "memory_gib": [8.8, 10.5, 1.0]})
    >>> found = smallest_profile("H100-80GB-SXM5", pl.col("sms"), pl.col("memory_gib"))
    >>> needs.select(found.alias("profile"))["profile"].to_list()
    ['1g.10gb', '1g.20gb', 'gpu']
    """
    return _first_fitting(gpu_model, lambda profile: (sms <= profile.sms) & (memory_gib <= profile.memory_gib))


def smallest_for_share(gpu_model: GpuModel | str, share: pl.Expr) -> pl.Expr:
    """Build the smallest MIG slice whose shares of SMs and memory slices both reach a share of a GPU.

    The full GPU where none does; null where the share is.

    Examples
    --------
    >>> shares = pl.DataFrame({"gpus": [0.1, 0.2, 0.5, None]})
    >>> shares.select(smallest_for_share("H100-80GB-SXM5", pl.col("gpus"))).to_series().to_list()
    ['1g.10gb', '2g.20gb', 'gpu', None]
    """
    model = as_gpu_model(gpu_model)

    def reaches(profile: MigProfile) -> pl.Expr:
        of_sms = (profile.sms or 0) / model.sms if model.sms is not None else 0.0
        return share <= min(of_sms, profile.memory_slices / model.memory_slices)

    return pl.when(share.is_not_null()).then(_first_fitting(model, reaches))


def smallest_by_compute(gpu_model: GpuModel) -> dict[int, MigProfile]:
    """Find the profile with the least memory for each number of compute slices.

    Examples
    --------
    >>> {slice_profiles: p.name for slice_profiles, p in smallest_by_compute(as_gpu_model("A100-80GB")).items()}
    {1: '1g.10gb', 2: '2g.20gb', 3: '3g.40gb', 4: '4g.40gb', 7: '7g.80gb'}
    """
    profile_by_slices: dict[int, MigProfile] = {}
    for profile in plain_profiles(gpu_model):
        profile_by_slices.setdefault(profile.compute_slices, profile)
    return profile_by_slices


def _first_fitting(gpu_model: GpuModel | str, fits: Callable[[MigProfile], pl.Expr]) -> pl.Expr:
    """Build the name of the smallest MIG profile that meets a condition; the full GPU if none does."""
    choices = [pl.when(fits(part)).then(pl.lit(part.name)) for part in slice_profiles(gpu_model)]
    return pl.coalesce(*choices, pl.lit(FULL_GPU))


_PROFILE_SIZE_NUMBER_SCHEMA = dict.fromkeys(("sms", "memory_gib", "share"), pl.Float64)
"""Numeric columns of :func:`profile_sizes`: SMs, memory [GiB] and share of a GPU [0-1]."""
PROFILE_SIZE_SCHEMA = {"profile": pl.String, "rank": pl.Int32, **_PROFILE_SIZE_NUMBER_SCHEMA}
"""Columns of :func:`profile_sizes`."""


def profile_sizes(gpu_model: GpuModel) -> pl.DataFrame:
    """Tabulate the sizes of all profiles of a GPU model, with the rank by which requests are compared."""
    names = [part.name for part in slice_profiles(gpu_model)]
    full = [part for part in gpu_model.profiles if part.memory_slices == gpu_model.memory_slices and not part.attribute]
    ranks = {name: rank for rank, name in enumerate(names)} | {part.name: len(names) for part in full}
    rows = [
        (part.name, ranks.get(part.name), part.sms, part.memory_gib, gpu_model.gpu_fraction(part.name))
        for part in gpu_model.profiles
    ]
    whole = (FULL_GPU, len(names) + 1, gpu_model.sms_of(FULL_GPU), gpu_model.memory_gib, 1.0)
    return pl.DataFrame([*rows, whole], schema=PROFILE_SIZE_SCHEMA, orient="row")


def resolve_requests(jobs: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Resolve the request of each job to a profile and a number of instances of one GPU model.

    - A named profile of the GPU model is taken, under the catalogue's name; with the job's number of instances, else
      its number of full GPUs, at least one.
    - A profile that the GPU model does not have is sized by the share of a GPU that each instance is.
    - A fraction of a GPU is the smallest slice whose share of the GPU's SMs and of its memory slices both reach the
      fraction. Instances do not add up to a full GPU (three 2g of an H100 hold 96 of 132 SMs), so half a GPU can need a
      whole one; above what any slice reaches, it is one GPU.
    - One GPU or more are full GPUs, rounded up.
    - No GPU: no profile and 0 instances. Not known: neither profile nor instances.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; other columns are kept.
    gpu_model : GpuModel or str
        The GPU model to size for.

    Returns
    -------
    polars.DataFrame
        `jobs` with ``profile`` (String) and ``instances`` (Int32).

    Warns
    -----
    GpuPlannerWarning
        If profiles are named that the GPU model does not have; those jobs are mapped by their share of a GPU.
        :func:`unknown_profiles` lists them.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> named = [None, None, "3g.39gb", None, None]
    >>> jobs = pl.DataFrame({"gpus": [0.2, 1.0, 1.0, 8.0, 0.0], "profile_requested": named}).with_columns(
    ...     job_id=pl.lit("1"),
    ...     attempt=1,
    ...     tenant=pl.lit("a"),
    ...     state=pl.lit("COMPLETED"),
    ...     submit_time=datetime(2026, 2, 2, tzinfo=UTC),
    ... )
    >>> resolve_requests(jobs, "H100-80GB-SXM5").select("profile", "instances").rows()
    [('2g.20gb', 1), ('gpu', 1), ('3g.40gb', 1), ('gpu', 8), (None, 0)]
    """
    model = as_gpu_model(gpu_model)
    unknown = unknown_profiles(jobs, model)
    if unknown.height:
        text = (
            f"{unknown['jobs'].sum()} jobs name a profile that {model.name} does not have "
            f"({examples(unknown['profile_requested'].to_list())}); they are sized by their share of a GPU"
        )
        warnings.warn(text, GpuPlannerWarning, stacklevel=2)
    table = conform(jobs, Jobs, source="jobs")
    names = canonical_names(table["profile_requested"], model)
    gpus, named = pl.col("gpus"), pl.col("profile_requested").replace_strict(names, default=None)
    number = pl.coalesce("instances", pl.max_horizontal(gpus.ceil(), 1).cast(pl.Int32))
    gpus_per_instance = gpus / pl.coalesce("instances", 1)
    requests = table.select(
        profile=pl.when(gpus == 0)
        .then(None)
        .otherwise(pl.coalesce(named, smallest_for_share(model, gpus_per_instance))),
        instances=pl.when(gpus == 0)
        .then(0)
        .when(named.is_not_null())
        .then(number.fill_null(1))
        .when(gpus.is_not_null())
        .then(number),
    )
    return jobs.with_columns(requests["profile"].cast(pl.String), requests["instances"].cast(pl.Int32))


def unknown_profiles(jobs: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Tabulate the profiles that jobs name and the GPU model does not have.

    Returns
    -------
    polars.DataFrame
        ``profile_requested`` and ``jobs`` (how many name it), sorted by name.
    """
    table = conform(jobs, Jobs, source="jobs")
    known_names = canonical_names(table["profile_requested"], as_gpu_model(gpu_model))
    unknown = table.filter(~pl.col("profile_requested").is_in(list(known_names)))
    return unknown.group_by("profile_requested").agg(jobs=pl.len()).sort("profile_requested")


def canonical_names(names: pl.Series, gpu_model: GpuModel) -> dict[str, str]:
    """Map requested names that are profiles of the GPU model to the catalogue's names."""
    name_by_request = {}
    for name in names.drop_nulls().unique().sort():
        with suppress(GeometryError):
            name_by_request[name] = FULL_GPU if name == FULL_GPU else gpu_model.profile(name).name
    return name_by_request
