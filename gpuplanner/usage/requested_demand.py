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

from gpuplanner.core.errors import GeometryError, GpuPlannerWarning, SchemaError, examples, resolve
from gpuplanner.core.schema_checks import conform, empty
from gpuplanner.core.schemas import WHOLE_GPU, Demand, Jobs
from gpuplanner.core.step_functions import (
    EPOCH,
    require_zone,
    slot_count,
    slot_sums,
    slot_ticks,
    ticks,
    untimed,
)
from gpuplanner.hardware.gpu_models import GpuModel, MigProfile, as_board

CLOCKS = ("held", "wanted")
REQUEST_COLUMNS = ("profile", "instances")
DAY = timedelta(days=1)
POOL = "all"
"""Name of the tenant that stands for all of them."""
DAY_H = 24.0


def demand_series(
    jobs: pl.DataFrame,
    *,
    interval_hours: float = 1.0,
    start: datetime | None = None,
    end: datetime | None = None,
    clock: str = "held",
) -> pl.DataFrame:
    """Mean number of concurrent instances per slot, one series per tenant and profile.

    The value of a slot is the integral of the number of instances over the slot, divided by its length. The
    integral is summed in whole microseconds, so ``sum(y) * interval_hours`` equals instances x hours within the
    grid but for the rounding of that one division. Jobs whose request is not known are left out;
    :func:`excluded` counts them. So are those that are over and have no end: until when they counted is not
    known, and the quality report says how many there are.

    Parameters
    ----------
    jobs : polars.DataFrame, shape (n_jobs, ...)
        Table ``schemas.Jobs`` with ``profile`` and ``instances`` (see ``sizing.resolve_requests``).
    interval_hours : float
        Length of a slot [h]: whole minutes that divide a day, or whole days.
    start, end : datetime, optional
        First instant of the grid, and first instant behind it. Default: the first event rounded down to a
        multiple of the slot in UTC (slots of whole days: to midnight), and the last event rounded up to a
        whole slot from `start`.
    clock : {"held", "wanted"}
        "held": a job counts while it held its GPUs, ``[start_time, end_time)``; one that still runs counts to
        `end`. "wanted": it counts as if it had never queued, ``[submit_time, submit_time + run time)``; one
        that never started counts from its submission until it was withdrawn, else to `end`.

    Returns
    -------
    polars.DataFrame, shape (n_series * n_slots, 7)
        Table ``schemas.Demand``: every series has every slot, zeros included; sorted by ``unique_id`` (which
        is ``tenant/profile``) and ``ds``. ``gpu_model`` and ``tier`` are null.

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
    known = resolve(clock, CLOCKS, what="clock", error=SchemaError)
    begin = "start_time" if known == "held" else "submit_time"
    countable = pl.col("profile").is_not_null() & (pl.col("instances") > 0) & ~untimed()
    asked = _requests(jobs).filter(countable)
    begun = asked.filter(pl.col(begin).is_not_null())
    if begun.is_empty():
        return empty(Demand)
    step = slot_ticks(interval_hours, where="demand")
    slot = timedelta(microseconds=step)
    first, last = _grid(asked, begin, slot, start, end)
    slots = slot_count(first, last, interval_hours, where="demand")
    spans = begun.with_columns(unique_id=pl.format("{}/{}", "tenant", "profile"), until=_until(known, last))
    series = spans.select("unique_id", "tenant", "profile").unique().sort("unique_id")
    row = spans["unique_id"].cast(pl.Enum(series["unique_id"])).to_physical().to_numpy().astype(np.int64)
    begins, ends = ticks(spans[begin], first), ticks(spans["until"], first)
    instances = spans["instances"].to_numpy()
    sums = slot_sums(begins, ends, instances, row, groups=series.height, slots=slots, slot_ticks=step)
    starts = pl.datetime_range(first, last, slot, closed="left", time_zone="UTC", eager=True)
    table = series[np.repeat(np.arange(series.height), slots)].with_columns(
        ds=starts[np.tile(np.arange(slots), series.height)], y=pl.Series((sums / step).ravel())
    )
    return conform(table, Demand, where="demand")


def excluded(jobs: pl.DataFrame) -> dict[str, int]:
    """Count the jobs that a demand series leaves out, by reason.

    Returns
    -------
    dict
        ``"request unknown"``: the source does not say how many GPUs; ``"no GPU"``: none was asked for.

    Examples
    --------
    >>> excluded(pl.DataFrame({"profile": ["gpu", None, None], "instances": [1, 0, None]}))
    {'request unknown': 1, 'no GPU': 1}
    """
    unknown = jobs["instances"].is_null() | (jobs["profile"].is_null() & (jobs["instances"] != 0))
    return {"request unknown": int(unknown.sum()), "no GPU": int((jobs["instances"] == 0).sum())}


def _requests(jobs: pl.DataFrame) -> pl.DataFrame:
    """The jobs table with the two columns of the resolved request."""
    missing = [name for name in REQUEST_COLUMNS if name not in jobs.columns]
    if missing:
        expected = f"columns {', '.join(map(repr, REQUEST_COLUMNS))}"
        todo = "Add them with sizing.resolve_requests(jobs, gpu_model)."
        raise SchemaError("demand: jobs", expected, f"none of {examples(missing)}", todo)
    requests = jobs["profile"].cast(pl.String), jobs["instances"].cast(pl.Int64)
    return conform(jobs, Jobs, where="demand: jobs").with_columns(*requests)


def _grid(
    asked: pl.DataFrame, begin: str, slot: timedelta, start: datetime | None, end: datetime | None
) -> tuple[datetime, datetime]:
    """The grid that was asked for, or the smallest that holds every event."""
    require_zone(start, end, where="demand")
    if start is None:
        unit = min(slot, DAY)
        earliest = asked.select(pl.col(begin).min()).item()
        start = EPOCH + (earliest - EPOCH) // unit * unit
    if end is None:
        latest = asked.select(pl.max_horizontal(pl.col("submit_time", "start_time", "end_time").max())).item()
        end = start + max(-((start - latest) // slot), 1) * slot
    return start, end


def _until(clock: str, last: datetime) -> pl.Expr:
    """When a job stops counting on this clock; open ends last to the end of the grid."""
    released = pl.col("end_time").fill_null(pl.lit(last))
    if clock == "held":
        return released
    run = released - pl.col("start_time")
    return pl.coalesce(pl.col("submit_time") + run, released)


def pool(demand: pl.DataFrame) -> pl.DataFrame:
    """Add up the tenants: one series per profile, of tenant ``"all"``.

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
    >>> pool(demand).select("unique_id", "y").rows()
    [('all/gpu', 3.0)]
    """
    total = (
        conform(demand, Demand, where="demand")
        .sort("profile", "ds", "unique_id")  # the order in which floats are added is part of the result
        .group_by("profile", "ds", maintain_order=True)
        .agg(pl.col("y").sum())
        .with_columns(unique_id=pl.format(POOL + "/{}", "profile"), tenant=pl.lit(POOL))
    )
    return conform(total.sort("unique_id", "ds"), Demand, where="demand")


def weekly(demand: pl.DataFrame, *, quantile: float = 0.95) -> pl.DataFrame:
    """Mean, peak and quantile of the slots of each week, for each profile over all tenants.

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.
    quantile : float
        Share of the slots of a week that lie at or below the column ``quantile``, between 0 and 1.

    Returns
    -------
    polars.DataFrame, shape (n_weeks * n_profiles, 6)
        ``week`` (Monday 00:00 UTC), ``profile``, ``slots`` (number of slots seen: fewer in a week that the
        grid cuts), ``mean``, ``peak``, ``quantile`` [instances]; sorted by week and profile.

    Raises
    ------
    SchemaError
        If `quantile` is not between 0 and 1.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> monday = datetime(2026, 2, 2, tzinfo=UTC)
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "y": [1.0, 3.0]})
    >>> weekly(demand.with_columns(ds=pl.Series([monday, monday.replace(hour=1)])))["mean"].to_list()
    [2.0]
    """
    if not 0 <= quantile <= 1:
        raise SchemaError("weekly: quantile", "a number from 0 to 1", repr(quantile), "Use for example 0.95.")
    y = pl.col("y")
    upper = y.quantile(quantile, interpolation="equiprobable")
    return (
        pool(demand)
        .group_by(pl.col("ds").dt.truncate("1w").alias("week"), "profile", maintain_order=True)
        .agg(slots=pl.len(), mean=y.mean(), peak=y.max(), quantile=upper)
        .sort("week", "profile")
    )


def occupancy(
    begin: np.ndarray, end: np.ndarray, size: np.ndarray, row: np.ndarray, rows: int, slots: int
) -> np.ndarray:
    """Mean size that is held in every slot, by row.

    Parameters
    ----------
    begin, end : numpy.ndarray, shape (n,)
        In slots; what lies outside of the grid is cut off, and an end before its begin counts nothing.
    size : numpy.ndarray, shape (n,)
    row : numpy.ndarray of int, shape (n,)
    rows, slots : int

    Returns
    -------
    numpy.ndarray, shape (rows, slots)

    Examples
    --------
    >>> occupancy(np.array([0.5]), np.array([2.25]), np.array([4.0]), np.array([0]), 1, 3).tolist()
    [[2.0, 4.0, 1.0]]
    """
    width = slots + 2
    first = np.clip(begin, 0.0, slots)
    last = np.maximum(np.clip(end, 0.0, slots), first)
    cells, total = row * width, rows * width
    change = np.zeros(total)
    inside = np.zeros(total)
    for edge, sign in ((first, 1.0), (last, -1.0)):
        slot = edge.astype(np.int64)
        change += np.bincount(cells + slot, weights=sign * size, minlength=total)
        inside += np.bincount(cells + slot, weights=-sign * size * (edge - slot), minlength=total)
    held = (change.reshape(rows, width).cumsum(axis=1) + inside.reshape(rows, width))[:, :slots]
    return np.where(held > 1e-9, held, 0.0)


def day_shares(spans: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Share of each day, given by its first hour, that lies in one of the spans.

    Examples
    --------
    >>> day_shares(np.array([[6.0, 12.0], [30.0, 99.0]]), np.array([0.0, 24.0])).tolist()
    [0.25, 0.75]
    """
    inside = (np.minimum(days + DAY_H, end) - np.maximum(days, begin) for begin, end in spans)
    held = sum(np.clip(hours, 0.0, None) for hours in inside)
    return np.minimum(np.asarray(held) / DAY_H, 1.0)


def plain_profiles(gpu_model: GpuModel) -> tuple[MigProfile, ...]:
    """Profiles from small to large; variants with media or graphics engines compute like the one they vary.

    Examples
    --------
    >>> [profile.name for profile in plain_profiles(as_board("A30-24GB"))]
    ['1g.6gb', '2g.12gb', '4g.24gb']
    """
    plain = (profile for profile in gpu_model.profiles if not profile.attribute)
    return tuple(sorted(plain, key=lambda profile: profile.compute_order))


def slices(gpu_model: GpuModel | str) -> tuple[MigProfile, ...]:
    """Profiles that a request can be mapped to, small to large: by compute slices, then memory.

    Full-size profiles are left out, since the whole GPU serves as well without being cut; so are variants
    with media or graphics engines, which only a request that names them should get, and profiles whose SMs or
    memory no source states.

    Examples
    --------
    >>> [profile.name for profile in slices("H100-80GB-SXM5")]
    ['1g.10gb', '1g.20gb', '2g.20gb', '3g.40gb', '4g.40gb']
    """
    known = as_board(gpu_model)
    return tuple(
        profile
        for profile in plain_profiles(known)
        if profile.memory_slices < known.memory_slices and profile.sms is not None and profile.memory_gib is not None
    )


def smallest_profile(gpu_model: GpuModel | str, sms: pl.Expr, memory_gib: pl.Expr) -> pl.Expr:
    """Smallest of the :func:`slices` of a board that holds a need, else the whole GPU.

    A need that was not observed (null) is as large as the board, never zero. Room to spare is added by who asks.

    Parameters
    ----------
    gpu_model : GpuModel or str
        The board.
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
    return _first(gpu_model, lambda part: (sms <= part.sms) & (memory_gib <= part.memory_gib))


def smallest_of_share(gpu_model: GpuModel | str, share: pl.Expr) -> pl.Expr:
    """Smallest slice whose share of the board's SMs and of its memory slices both reach a share of a GPU.

    The whole GPU where none does; null where the share is.

    Examples
    --------
    >>> shares = pl.DataFrame({"gpus": [0.1, 0.2, 0.5, None]})
    >>> shares.select(smallest_of_share("H100-80GB-SXM5", pl.col("gpus"))).to_series().to_list()
    ['1g.10gb', '2g.20gb', 'gpu', None]
    """
    known = as_board(gpu_model)

    def reaches(part: MigProfile) -> pl.Expr:
        of_sms = (part.sms or 0) / known.sms if known.sms is not None else 0.0
        return share <= min(of_sms, part.memory_slices / known.memory_slices)

    return pl.when(share.is_not_null()).then(_first(known, reaches))


def smallest_of_compute(gpu_model: GpuModel) -> dict[int, MigProfile]:
    """For each number of compute slices the profile with the least memory.

    Examples
    --------
    >>> {slices: p.name for slices, p in smallest_of_compute(as_board("A100-80GB")).items()}
    {1: '1g.10gb', 2: '2g.20gb', 3: '3g.40gb', 4: '4g.40gb', 7: '7g.80gb'}
    """
    found: dict[int, MigProfile] = {}
    for profile in plain_profiles(gpu_model):
        found.setdefault(profile.compute_slices, profile)
    return found


def _first(gpu_model: GpuModel | str, fits: Callable[[MigProfile], pl.Expr]) -> pl.Expr:
    found = [pl.when(fits(part)).then(pl.lit(part.name)) for part in slices(gpu_model)]
    return pl.coalesce(*found, pl.lit(WHOLE_GPU))


_FIGURES = dict.fromkeys(("sms", "memory_gib", "share"), pl.Float64)
SIZES = {"profile": pl.String, "rank": pl.Int32, **_FIGURES}
"""Columns of :func:`sizes`."""


def sizes(gpu_model: GpuModel) -> pl.DataFrame:
    """All profiles of a board as a table, with the rank by which requests are compared."""
    names = [part.name for part in slices(gpu_model)]
    full = [part for part in gpu_model.profiles if part.memory_slices == gpu_model.memory_slices and not part.attribute]
    ranks = {name: rank for rank, name in enumerate(names)} | {part.name: len(names) for part in full}
    rows = [
        (part.name, ranks.get(part.name), part.sms, part.memory_gib, gpu_model.share(part.name))
        for part in gpu_model.profiles
    ]
    memory_gib = next((part.memory_gib for part in full if part.memory_gib is not None), gpu_model.memory_gib)
    whole = (WHOLE_GPU, len(names) + 1, gpu_model.sms_of(WHOLE_GPU), memory_gib, 1.0)
    return pl.DataFrame([*rows, whole], schema=SIZES, orient="row")


def resolve_requests(jobs: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Add what each job asks for in terms of one board.

    - A profile that is named and on the board is taken, under the name of this board; as many instances as
      the job holds, and where it holds whole GPUs as many as these, at least one.
    - A profile that the board does not have is sized by the share of a GPU that each instance is.
    - A fraction of a GPU is the smallest slice whose share of the board's SMs and of its memory slices both
      reach the fraction. Instances do not add up to a whole board (three 2g of an H100 hold 96 of 132 SMs),
      so half a GPU can need a whole one; above what any slice reaches, it is one GPU.
    - One GPU or more are whole GPUs, rounded up.
    - No GPU: no profile and 0 instances. Not known: neither profile nor instances.

    Parameters
    ----------
    jobs : polars.DataFrame
        Table ``schemas.Jobs``; other columns are kept.
    gpu_model : GpuModel or str
        The board to size for.

    Returns
    -------
    polars.DataFrame
        `jobs` with ``profile`` (String) and ``instances`` (Int32).

    Warns
    -----
    GpuPlannerWarning
        If profiles are named that the board does not have; those jobs are mapped by their share of a GPU.
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
    known = as_board(gpu_model)
    unknown = unknown_profiles(jobs, known)
    if unknown.height:
        text = (
            f"{unknown['jobs'].sum()} jobs name a profile that {known.name} does not have "
            f"({examples(unknown['profile_requested'].to_list())}); they are sized by their share of a GPU"
        )
        warnings.warn(text, GpuPlannerWarning, stacklevel=2)
    table = conform(jobs, Jobs, where="jobs")
    names = canonical_names(table["profile_requested"], known)
    gpus, named = pl.col("gpus"), pl.col("profile_requested").replace_strict(names, default=None)
    number = pl.coalesce("instances", pl.max_horizontal(gpus.ceil(), 1).cast(pl.Int32))
    each = gpus / pl.coalesce("instances", 1)
    requests = table.select(
        profile=pl.when(gpus == 0).then(None).otherwise(pl.coalesce(named, smallest_of_share(known, each))),
        instances=pl.when(gpus == 0)
        .then(0)
        .when(named.is_not_null())
        .then(number.fill_null(1))
        .when(gpus.is_not_null())
        .then(number),
    )
    return jobs.with_columns(requests["profile"].cast(pl.String), requests["instances"].cast(pl.Int32))


def unknown_profiles(jobs: pl.DataFrame, gpu_model: GpuModel | str) -> pl.DataFrame:
    """Profiles that jobs name but the board does not have.

    Returns
    -------
    polars.DataFrame
        ``profile_requested`` and ``jobs`` (how many name it), sorted by name.
    """
    table = conform(jobs, Jobs, where="jobs")
    known = canonical_names(table["profile_requested"], as_board(gpu_model))
    unknown = table.filter(~pl.col("profile_requested").is_in(list(known)))
    return unknown.group_by("profile_requested").agg(jobs=pl.len()).sort("profile_requested")


def canonical_names(names: pl.Series, gpu_model: GpuModel) -> dict[str, str]:
    """Names that are profiles of the board, with the name under which the board lists them."""
    found = {}
    for name in names.drop_nulls().unique().sort():
        with suppress(GeometryError):
            found[name] = WHOLE_GPU if name == WHOLE_GPU else gpu_model.profile(name).name
    return found
