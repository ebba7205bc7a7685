"""What people say ahead of time: jobs that will come, and days on which demand is another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from gpuplanner.demand.series import occupancy
from gpuplanner.errors import ScenarioError, examples, first_line, message
from gpuplanner.units import SECONDS_PER_HOUR

JOBS = {"tenant": pl.String, "start_time": pl.Datetime, "end_time": pl.Datetime, "gpus": pl.Float64}
CALENDAR = {"kind": pl.String, "start_time": pl.Datetime, "end_time": pl.Datetime}


def read_announced(path: str | Path) -> pl.DataFrame:
    """Jobs that are known to come, as CSV or Parquet with ``tenant, start_time, end_time, gpus``."""
    table = _read(Path(path), JOBS)
    odd = table.filter(~((pl.col("gpus") > 0) & pl.col("gpus").is_finite()))
    return _sound(table, odd, Path(path), "gpus above 0")


def read_calendar(path: str | Path) -> pl.DataFrame:
    """Releases, holidays, maintenance, as CSV or Parquet with ``kind, start_time, end_time``."""
    table = _read(Path(path), CALENDAR)
    return _sound(table, table.clear(), Path(path), "")


def hours_of(calendar: pl.DataFrame, start: datetime) -> tuple[np.ndarray, ...]:
    """Spans of each kind in hours since `start`, each of shape (n, 2), in the order of the kinds' names.

    Examples
    --------
    >>> from datetime import UTC
    >>> day = datetime(2026, 2, 2, tzinfo=UTC)
    >>> six, next_day = day.replace(hour=6), day.replace(day=3)
    >>> table = pl.DataFrame({"kind": ["release"], "start_time": [six], "end_time": [next_day]})
    >>> hours_of(table, day)[0].tolist()
    [[6.0, 24.0]]
    """
    spans = calendar.sort("kind", "start_time", "end_time").select(
        "kind", (pl.col("start_time", "end_time") - start).dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR)
    )
    return tuple(
        part.select("start_time", "end_time").to_numpy()
        for part in spans.partition_by("kind", maintain_order=True)
    )


def gpus_announced(
    jobs: pl.DataFrame, ids: Sequence[str], whole: str, start: datetime, slot_hours: float, slots: int
) -> np.ndarray:
    """Mean GPUs of announced jobs in every slot from `start` on.

    A tenant that no series is of counts in the whole alone.

    Examples
    --------
    >>> from datetime import UTC
    >>> nine = datetime(2026, 2, 2, 9, tzinfo=UTC)
    >>> jobs = pl.DataFrame({"tenant": ["a"], "start_time": [nine], "end_time": [nine.replace(hour=11)], "gpus": [4.0]})
    >>> gpus_announced(jobs, ["a/gpu", "all/gpu"], "all/gpu", nine.replace(hour=8), 1.0, 4).tolist()
    [[0.0, 4.0, 4.0, 0.0], [0.0, 4.0, 4.0, 0.0]]
    """
    begin, end = (
        ((jobs[name] - start).dt.total_microseconds() / (1e6 * SECONDS_PER_HOUR * slot_hours)).to_numpy()
        for name in ("start_time", "end_time")
    )
    named = [uid.rpartition("/")[0] for uid in ids]
    place = list(ids).index(whole)
    rows = np.array([named.index(one) if one in named else place for one in jobs["tenant"]], dtype=np.int64)
    found = occupancy(begin, end, jobs["gpus"].to_numpy(), rows, len(ids), slots)
    if whole.startswith("all/"):
        found[place] = found.sum(axis=0)
    return found


def _read(path: Path, columns: Mapping[str, Any]) -> pl.DataFrame:
    try:
        parquet = path.suffix == ".parquet"
        table = pl.read_parquet(path) if parquet else pl.read_csv(path, try_parse_dates=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        text = message(str(path), f"a table with {', '.join(columns)}", first_line(error), "Mend it.")
        raise ScenarioError(text) from None
    faults = [name for name in columns if name not in table.columns]
    faults += [
        name
        for name in ("start_time", "end_time")
        if name in table.columns and getattr(table.schema[name], "time_zone", None) is None
    ]
    if faults or not table.height:
        expected = (
            f"columns {', '.join(columns)}, times with a zone such as 2026-02-14T09:00Z, one row or more"
        )
        got = f"{table.height} rows; missing or without a zone: {examples(faults)}"
        raise ScenarioError(message(str(path), expected, got, "Mend the file."))
    times = pl.col("start_time", "end_time").dt.convert_time_zone("UTC").dt.cast_time_unit("us")
    rest = [pl.col(name).cast(kind) for name, kind in columns.items() if kind is not pl.Datetime]
    return table.select(*rest, times).select(list(columns))


def _sound(table: pl.DataFrame, odd: pl.DataFrame, path: Path, rule: str) -> pl.DataFrame:
    bad = table.filter(~(pl.col("end_time") > pl.col("start_time")).fill_null(False)).vstack(odd)
    if bad.height:
        expected = " and ".join(filter(None, (rule, "an end after its start")))
        got = f"{bad.height} other rows, first {bad.row(0)}"
        raise ScenarioError(message(str(path), expected, got, "Mend the file."))
    return table
