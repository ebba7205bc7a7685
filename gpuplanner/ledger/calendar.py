"""Ledgers by days, weeks and months as clocks on the wall count them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.intervals import require_zone
from gpuplanner.names import resolve
from gpuplanner.schemas import BUCKETS, Ledger, conform

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
