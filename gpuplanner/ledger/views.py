"""Sums of a ledger: by bucket, tenant, and days as clocks on the wall count them; and whether it is complete."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.intervals import require_zone
from gpuplanner.names import resolve
from gpuplanner.schemas.vocabulary import BUCKETS
from gpuplanner.schemas.domain import Ledger
from gpuplanner.schemas.check import conform

DARK_BUCKETS = ("held_idle", "free", "fragmented", "idle_pending", "reserved", "reconfiguring", "down")
"""Paid for, no work done. Unobserved time is not among them: nothing may be claimed of it."""
HELD_BUCKETS = ("used", "unobserved", "held_idle")


def reconcile(ledger: pl.DataFrame, installed: float, *, tolerance: float = 1e-9) -> dict[str, float | bool]:
    """Compare a ledger with the GPU-hours installed.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    installed : float
        GPU-hours installed, from :func:`installed_gpu_hours` or the bill.
    tolerance : float
        Largest difference that counts as rounding, as a share of `installed`.

    Returns
    -------
    dict
        ``ledger_gpu_hours``, ``installed_gpu_hours``, ``difference_gpu_hours`` (ledger - installed),
        ``relative`` (of installed; 0 if both are 0) and ``balanced``.

    Examples
    --------
    >>> from gpuplanner.schemas.check import empty
    >>> reconcile(empty(Ledger), 24.0)["difference_gpu_hours"]
    -24.0
    """
    total = float(conform(ledger, Ledger, where="ledger")["gpu_hours"].sum())
    difference = total - installed
    scale = max(abs(installed), abs(total))
    relative = difference / scale if scale > 0 else 0.0
    return {
        "ledger_gpu_hours": total,
        "installed_gpu_hours": installed,
        "difference_gpu_hours": difference,
        "relative": relative,
        "balanced": abs(relative) <= tolerance,
    }


def by_bucket(ledger: pl.DataFrame) -> pl.DataFrame:
    """GPU-hours and share of each bucket, all buckets listed in their fixed order.

    Returns
    -------
    polars.DataFrame, shape (9, 3)
        ``bucket``, ``gpu_hours`` [GPU h], ``share`` [0-1] (0 for an empty ledger).

    Examples
    --------
    >>> from gpuplanner.schemas.check import empty
    >>> by_bucket(empty(Ledger))["bucket"].to_list()[:3]
    ['used', 'unobserved', 'held_idle']
    """
    table = conform(ledger, Ledger, where="ledger")
    buckets = table.group_by(pl.col("bucket").cast(pl.String), maintain_order=True)
    sums = dict(buckets.agg(pl.col("gpu_hours").sum()).iter_rows())
    hours = [float(sums.get(bucket, 0.0)) for bucket in BUCKETS]
    total = sum(hours)
    return pl.DataFrame(
        {
            "bucket": pl.Series(BUCKETS, dtype=pl.Enum(BUCKETS)),
            "gpu_hours": hours,
            "share": [part / total if total > 0 else 0.0 for part in hours],
        }
    )


def by_tenant(ledger: pl.DataFrame) -> pl.DataFrame:
    """What each tenant held, and what of it was seen to work.

    Returns
    -------
    polars.DataFrame
        ``tenant``, ``held_gpu_hours`` and its parts ``used``, ``unobserved``, ``held_idle`` [GPU h], and
        ``idle_share`` [0-1] (held idle, of what was observed; null if nothing was); most held first. Time
        that nobody held is not in it.

    Examples
    --------
    >>> from gpuplanner.schemas.check import empty
    >>> by_tenant(empty(Ledger)).columns
    ['tenant', 'held_gpu_hours', 'used', 'unobserved', 'held_idle', 'idle_share']
    """
    hours = pl.col("gpu_hours")
    observed = pl.col("used") + pl.col("held_idle")
    return (
        conform(ledger, Ledger, where="ledger")
        .filter(pl.col("bucket").cast(pl.String).is_in(HELD_BUCKETS))
        .group_by("tenant", maintain_order=True)
        .agg(
            hours.sum().alias("held_gpu_hours"),
            *(hours.filter(pl.col("bucket") == bucket).sum().alias(bucket) for bucket in HELD_BUCKETS),
        )
        .with_columns(idle_share=pl.when(observed > 0).then(pl.col("held_idle") / observed))
        .sort("held_gpu_hours", "tenant", descending=[True, False])
    )


def dark_share(ledger: pl.DataFrame) -> dict[str, float]:
    """Share of the installed GPU-time that was paid for and did no work, by part.

    Returns
    -------
    dict
        One share [0-1] for each of :data:`DARK_BUCKETS`, and ``dark``, their sum. Where time is unobserved,
        this is a lower bound.

    Examples
    --------
    >>> from gpuplanner.schemas.check import empty
    >>> dark_share(empty(Ledger))["dark"]
    0.0
    """
    shares = dict(by_bucket(ledger).select(pl.col("bucket").cast(pl.String), "share").iter_rows())
    parts = {bucket: shares[bucket] for bucket in DARK_BUCKETS}
    return parts | {"dark": sum(parts.values())}


PERIODS = {"day": "1d", "week": "1w", "month": "1mo"}
QUARTERS = 4
"""Parts of an hour that zones differ by: all offsets in use are whole quarters of an hour."""


def by_period(
    ledger: pl.DataFrame,
    *,
    every: str,
    tz: str,
    start: datetime | None = None,
    end: datetime | None = None,
) -> pl.DataFrame:
    """Sum a ledger over local days, weeks (from Monday) or months.

    Days on which clocks change have 23 or 25 hours. Where a zone's offset is not a whole hour, the hours of
    the ledger that straddle a border are parted by quarters; what the ledger does not cover of its first and
    last hour gets no part.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    every : {"day", "week", "month"}
        Length of a period.
    tz : str
        IANA zone, such as ``"Europe/Berlin"``.
    start, end : datetime, optional
        Time that the ledger covers. Default: all of its hours.

    Returns
    -------
    polars.DataFrame
        ``period`` (its first day), ``tenant``, ``gpu_model``, ``bucket``, ``gpu_hours``, sorted. The
        GPU-hours sum to those of the ledger.

    Raises
    ------
    SchemaError
        If the zone or the period is unknown, or an instant has no time zone.

    Examples
    --------
    >>> from datetime import UTC, datetime, timedelta
    >>> begin = datetime(2026, 3, 28, 23, tzinfo=UTC)
    >>> hours = [begin + timedelta(hours=hour) for hour in range(23)]
    >>> rows = pl.DataFrame({"tenant": "a", "gpu_model": None, "hour": hours, "bucket": "used", "gpu_hours": 1.0})
    >>> by_period(rows, every="day", tz="Europe/Berlin").select("period", "gpu_hours").rows()
    [(datetime.date(2026, 3, 29), 23.0)]
    """
    length = PERIODS[resolve(every, tuple(PERIODS), what="ledger: period", error=SchemaError)]
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError):
        todo = "Give it like 'Europe/Berlin'."
        raise SchemaError(message("ledger: zone", "a name of the IANA database", repr(tz), todo)) from None
    require_zone(start, end, where="ledger: periods")
    table = conform(ledger, Ledger, where="ledger")
    parts = _parts(table["hour"].unique(), length, tz, start, end)
    if parts["hour"].n_unique() < table["hour"].n_unique():
        got, todo = "rows of other hours", "Give the start and end that the ledger was made with."
        raise SchemaError(message("ledger: periods", f"hours from {start} to {end}", got, todo))
    return (
        table.join(parts, on="hour")
        .group_by("period", "tenant", "gpu_model", "bucket")
        .agg((pl.col("gpu_hours") * pl.col("part")).sum())
        .sort("period", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(BUCKETS)))
    )


def _parts(
    hours: pl.Series, length: str, tz: str, start: datetime | None, end: datetime | None
) -> pl.DataFrame:
    """Periods that each hour falls into, with the part of its covered time in each."""
    begin = pl.col("hour") + pl.duration(minutes=pl.col("quarter") * (60 // QUARTERS))
    first = pl.max_horizontal(begin, pl.lit(start))
    last = pl.min_horizontal(begin + pl.duration(minutes=60 // QUARTERS), pl.lit(end))
    # Truncated on the wall clock: the first instant of a day need not exist in the zone.
    wall = begin.dt.convert_time_zone(tz).dt.replace_time_zone(None)
    return (
        pl.DataFrame({"hour": hours})
        .join(pl.DataFrame({"quarter": range(QUARTERS)}), how="cross")
        .select(
            "hour", period=wall.dt.truncate(length).dt.date(), part=(last - first).dt.total_microseconds()
        )
        .filter(pl.col("part") > 0)
        .group_by("hour", "period")
        .agg(pl.col("part").sum())
        .with_columns(pl.col("part") / pl.col("part").sum().over("hour"))
        .sort("hour", "period")
    )
