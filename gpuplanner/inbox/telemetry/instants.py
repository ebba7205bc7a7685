"""Times of telemetry tables: with an offset, in epoch seconds, or naive in a zone that must be stated."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.core.times import AMBIGUOUS, INSTANT, known_zone, to_utc

NAIVE = r"^(\d{4})[-/](\d{2})[-/](\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)$"
OFFSET = r"^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?)(Z|[+-]\d{2}:?\d{2})$"
EPOCH = r"^(\d{9,10}(?:\.\d{1,9})?)$"

SKIPPED = "a local time that the clock skipped"
SHOWN_TWICE = "a local time that the clock showed twice: log in UTC"


def with_instants(rows: Rows, column: str, tz: str | None, where: str) -> Rows:
    """Read a column of time texts into ``time``.

    Parameters
    ----------
    rows : Rows
        With `column` as text: ``2026/07/14 09:00:26.123``, ``2025-09-08T17:26:50+08:00`` or epoch seconds.
    column : str
        Its name.
    tz : str, optional
        Zone of times without an offset.
    where : str
        Name of the source, for messages.

    Returns
    -------
    Rows
        With ``time`` in UTC. Rows without a readable time, and naive times of the hour that a clock shows
        twice, are rejected: nothing tells the two passes apart.

    Raises
    ------
    TraceFormatError
        If times have no offset and no zone is stated.
    """
    text = pl.col(column).str.strip_chars()
    rows = replace(rows, good=rows.good.with_columns(text.alias(column)))
    naive_text = text.str.extract_groups(NAIVE).struct
    naive = pl.concat_str(
        pl.concat_str(*(naive_text[part] for part in range(3)), separator="-"), naive_text[3], separator=" "
    ).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    offset_text = text.str.extract_groups(OFFSET).struct
    offset = pl.concat_str(
        offset_text[0], pl.lit("T"), offset_text[1], offset_text[2].str.replace("Z", "+00:00", literal=True)
    ).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False)
    epoch = text.str.extract(EPOCH).cast(pl.Float64, strict=False) * 1e6
    good = rows.good.with_columns(
        time=pl.coalesce(offset.dt.convert_time_zone("UTC"), epoch.round().cast(pl.Int64).cast(INSTANT)),
        naive=naive,
    )
    if good["naive"].null_count() < good.height:
        if tz is None:
            sample = good.filter(pl.col("naive").is_not_null())[column][0]
            todo = "State their zone with tz, for example tz='UTC'."
            raise TraceFormatError(message(where, "times with their zone", repr(sample), todo))
        good = to_utc(good.with_columns(local="naive"), ["local"], known_zone(tz))
        good = good.with_columns(time=pl.coalesce("time", "local"))
        local = pl.col("naive").is_not_null()
        rows = replace(rows, good=good).reject(
            {SKIPPED: local & pl.col("local").is_null(), SHOWN_TWICE: local & pl.col(AMBIGUOUS)}
        )
        return replace(rows, good=rows.good.drop("naive", "local", AMBIGUOUS))
    return replace(rows, good=good.drop("naive"))
