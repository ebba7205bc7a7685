"""The time that a ledger covers, and intervals within it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from gpuplanner.errors import SchemaError, message
from gpuplanner.intervals import EPOCH, TICK, require_zone
from gpuplanner.ledger.sweep import Spans

HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Window:
    """The time that a ledger covers, on a grid of clock hours of which the first and last may be cut.

    - ``start``, ``end``: First instant, and first instant behind it, with a time zone.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        require_zone(self.start, self.end, where="ledger")
        if self.end <= self.start:
            text = message(
                "ledger: start and end",
                "an end after the start",
                f"{self.start} and {self.end}",
                "Swap them.",
            )
            raise SchemaError(text)

    @property
    def origin(self) -> datetime:
        """Start of the first hour, in UTC."""
        return EPOCH + (self.start - EPOCH) // HOUR * HOUR

    @property
    def hours(self) -> int:
        """Hours of the grid."""
        return -((self.origin - self.end) // HOUR)

    def overlap_h(self, begin: str, end: str) -> pl.Expr:
        """Hours of the window between two columns; a null begin lies before it, a null end behind it."""
        first = pl.max_horizontal(pl.col(begin).fill_null(self.start), pl.lit(self.start))
        last = pl.min_horizontal(pl.col(end).fill_null(self.end), pl.lit(self.end))
        return ((last - first).dt.total_microseconds() / 3.6e9).clip(lower_bound=0.0)

    def spans(self, table: pl.DataFrame | pl.LazyFrame, begin: str, end: str, weight: str) -> Spans:
        """Intervals of a table within the window; a null begin lies before it, a null end behind it."""
        first, last = ((instant - self.origin) // TICK for instant in (self.start, self.end))
        zero = (self.origin - EPOCH) // TICK

        def clipped(name: str, missing: datetime) -> pl.Expr:
            return (pl.col(name).fill_null(missing).dt.timestamp("us") - zero).clip(first, last)

        begins = clipped(begin, self.start)
        ends = pl.max_horizontal(clipped(end, self.end), begins)
        found = table.lazy().select(begin=begins, end=ends, gpus=pl.col(weight).cast(pl.Float64)).collect()
        return Spans(*(found[name].to_numpy() for name in ("begin", "end", "gpus")))
