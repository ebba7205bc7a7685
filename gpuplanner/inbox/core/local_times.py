"""Naive local times of rows to instants; what the clocks never showed is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from gpuplanner.inbox.core.rows import Rows
from gpuplanner.inbox.core.times import to_utc


def localized(
    rows: Rows, columns: Sequence[str], zone: str, *, called: Mapping[str, str] | None = None
) -> Rows:
    """Turn naive times into UTC instants.

    Parameters
    ----------
    rows : Rows
        Good rows have `columns` as naive times, which may be null.
    columns : sequence of str
        In the order in which the events must follow each other.
    zone : str
        Time zone, see :func:`gpuplanner.inbox.core.times.known_zone`.
    called : mapping of str to str, optional
        What the source calls a column, where that is another name.

    Returns
    -------
    Rows
        With instants and the Boolean column ``ambiguous``, without rows that have a time the clocks skipped.
    """
    was = [pl.col(name).is_not_null().alias(f"was:{name}") for name in columns]
    good = to_utc(rows.good.with_columns(was), columns, zone)
    skipped = {
        f"{(called or {}).get(name, name)}: the clocks of {zone} skip it": pl.col(f"was:{name}")
        & pl.col(name).is_null()
        for name in columns
    }
    read = replace(rows, good=good).reject(skipped)
    return replace(read, good=read.good.drop(f"was:{name}" for name in columns))
