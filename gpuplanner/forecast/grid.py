"""Demand series as a matrix: one row per series, one column per slot, every gap found and filled."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import polars as pl

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.schemas.domain import Demand
from gpuplanner.schemas.check import conform

DAY = timedelta(days=1)
WEEK = timedelta(days=7)
FINEST_SEASON = 24
"""Longest season that exponential smoothing is fitted with; finer grids use the cheaper models only."""


@dataclass(frozen=True)
class SeriesGrid:
    """All series on one time axis.

    - ``ids``: Names of the series, sorted as text.
    - ``start``: First slot.
    - ``slot``: Length of a slot.
    - ``values``, shape (n_series, n_slots): Instances. NaN before a series begins; gaps after that carry the last
      value on.
    - ``filled``: Number of slots filled in each series.
    """

    ids: tuple[str, ...]
    start: datetime
    slot: timedelta
    values: np.ndarray
    filled: tuple[int, ...]

    @property
    def week(self) -> int:
        """Slots in a week, at least 1."""
        return max(WEEK // self.slot, 1)

    @property
    def season(self) -> int:
        """Slots after which the pattern repeats: a day, or a week where a slot is a day or longer."""
        day = DAY // self.slot
        return day if day > 1 else self.week

    def time(self, index: int) -> datetime:
        """Start of the slot with this number; the first slot behind the history is ``values.shape[1]``."""
        return self.start + index * self.slot


def as_grid(demand: pl.DataFrame) -> SeriesGrid:
    """Lay series out on their common time axis.

    A slot without a row is not a zero: within and behind a series it carries the last value on and is
    counted, before the first row of a series it stays unknown.

    Examples
    --------
    >>> from datetime import UTC
    >>> hours = [datetime(2026, 2, 2, hour, tzinfo=UTC) for hour in (0, 1, 3)]
    >>> demand = pl.DataFrame({"unique_id": "a/gpu", "tenant": "a", "profile": "gpu", "ds": hours})
    >>> grid = as_grid(demand.with_columns(y=pl.Series([1, 2, 5])))
    >>> grid.values.tolist(), grid.filled, grid.season
    ([[1.0, 2.0, 2.0, 5.0]], (1,), 24)
    """
    table = conform(demand, Demand, where="forecast: demand").select("unique_id", "ds", "y")
    odd = table.filter(~pl.col("y").is_finite() | (pl.col("y") < 0))
    if odd.height:
        first = odd.sort("unique_id", "ds").row(0, named=True)
        got = f"{odd.height} others, first {first['y']} in {first['unique_id']!r} at {first['ds']}"
        todo = "Mend or leave out these slots; a slot without a row carries the last value on."
        raise SchemaError(message("forecast: demand", "finite values of at least 0", got, todo))
    times = table["ds"].unique().sort()
    if len(times) < 2:
        text = message(
            "forecast: demand", "at least two slots", f"{len(times)}", "Give a longer history of demand."
        )
        raise SchemaError(text)
    microseconds = (times - times[0]).dt.total_microseconds().to_numpy()
    step = int(np.diff(microseconds).min())
    slot = timedelta(microseconds=step)
    slots = int(microseconds[-1]) // step + 1
    place = (table["ds"] - times[0]).dt.total_microseconds()
    off = table.filter(place % step != 0)
    twice = table.filter(table.select("unique_id", "ds").is_duplicated())
    if off.height or twice.height:
        fault, rows = ("off the grid", off) if off.height else ("that stand twice", twice)
        expected = f"one row per series and slot of {slot}"
        got = f"{rows.height} rows {fault}, first {examples(rows['ds'].cast(pl.String).to_list())}"
        raise SchemaError(message("forecast: demand", expected, got, "Make the series with demand_series."))
    ids = table["unique_id"].unique().sort()
    values = np.full((len(ids), slots), np.nan)
    values[table["unique_id"].cast(pl.Enum(ids)).to_physical().to_numpy(), (place // step).to_numpy()] = (
        table["y"]
    )
    missing = np.isnan(values)
    # The column of the last known value at or before each slot; -1 before a series begins.
    last_known = np.maximum.accumulate(np.where(missing, -1, np.arange(slots)), axis=1)
    carried = np.take_along_axis(values, np.maximum(last_known, 0), axis=1)
    return SeriesGrid(
        ids=tuple(ids),
        start=times[0],
        slot=slot,
        values=carried,
        filled=tuple((missing & (last_known >= 0)).sum(axis=1).tolist()),
    )
