"""Clocks of public traces: seconds from an instant that may not be told, and local times without their zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.times import FIRST_INSTANT, INSTANT, iso, known_origin, seconds, to_utc


@dataclass(frozen=True)
class Clock:
    """Seconds from second 0.

    Attributes
    ----------
    zero : datetime
        Instant of second 0.
    relative : bool
        Nobody told which instant that is: dates mean nothing.
    """

    zero: datetime
    relative: bool

    @classmethod
    def of(cls, origin: datetime | str | None, known: datetime | None = None) -> Clock:
        """The clock that starts at `origin`, else at the instant that the source tells, else at 1970-01-01.

        Examples
        --------
        >>> Clock.of(None).relative, Clock.of("2023-01-01T00:00:00Z").relative
        (True, False)
        """
        first = origin or known
        return cls(known_origin(first or FIRST_INSTANT), relative=first is None)

    def at(self, column: str) -> pl.Expr:
        """Instants of a column of seconds."""
        return pl.lit(self.zero, INSTANT) + seconds(pl.col(column))

    @property
    def notes(self) -> list[str]:
        """What the provenance must say."""
        text = f"times are seconds from the start of the trace; second 0 was set to {iso(self.zero)}"
        return [text] if self.relative else []

    @property
    def checks(self) -> list[Check]:
        """What the quality report must say."""
        return [
            Check(
                "dates relative to an origin that was not given",
                "info",
                "days of the week and calendar dates mean nothing",
                pl.lit(self.relative),
            )
        ]


def localized(
    rows: Rows, columns: Sequence[str], zone: str, *, called: Mapping[str, str] | None = None
) -> Rows:
    """Turn naive times into UTC instants."""
    was = [pl.col(name).is_not_null().alias(f"was:{name}") for name in columns]
    good = to_utc(rows.good.with_columns(was), columns, zone)
    skipped = {
        f"{(called or {}).get(name, name)}: the clocks of {zone} skip it": pl.col(f"was:{name}")
        & pl.col(name).is_null()
        for name in columns
    }
    read = replace(rows, good=good).reject(skipped)
    return replace(read, good=read.good.drop(f"was:{name}" for name in columns))
