"""Ledgers by days, weeks and months as clocks on the wall count them."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.names import resolve
from gpuplanner.schemas import BUCKETS, Ledger, conform

PERIODS = {"day": "1d", "week": "1w", "month": "1mo"}
QUARTERS = 4
"""Parts of an hour that zones differ by: all offsets in use are whole quarters of an hour."""


def by_period(ledger: pl.DataFrame, *, every: str, tz: str) -> pl.DataFrame:
    """Sum a ledger over local days, weeks (from Monday) or months.

    Days on which clocks change have 23 or 25 hours. Where a zone's offset is not a whole hour, the hours of
    the ledger that straddle a border are parted by quarters.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``.
    every : {"day", "week", "month"}
        Length of a period.
    tz : str
        IANA zone, such as ``"Europe/Berlin"``.

    Returns
    -------
    polars.DataFrame
        ``period`` (its first day), ``tenant``, ``gpu_model``, ``bucket``, ``gpu_hours``, sorted. The
        GPU-hours sum to those of the ledger.

    Raises
    ------
    SchemaError
        If the zone or the period is unknown.

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
    quarters = pl.DataFrame({"quarter": range(QUARTERS)})
    instant = pl.col("hour") + pl.duration(minutes=pl.col("quarter") * (60 // QUARTERS))
    # Truncated on the wall clock: the first instant of a day need not exist in the zone.
    wall = instant.dt.convert_time_zone(tz).dt.replace_time_zone(None)
    return (
        conform(ledger, Ledger, where="ledger")
        .join(quarters, how="cross")
        .group_by(wall.dt.truncate(length).dt.date().alias("period"), "tenant", "gpu_model", "bucket")
        .agg(pl.col("gpu_hours").sum() / QUARTERS)
        .sort("period", "gpu_model", "tenant", pl.col("bucket").cast(pl.Enum(BUCKETS)))
    )
