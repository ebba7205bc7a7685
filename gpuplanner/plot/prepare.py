"""From a frame to the rows, axes and labels of a chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import altair as alt
import polars as pl

from gpuplanner.errors import SchemaError, examples, message

MAX_ROWS = 4000
"""Rows that may reach one chart; more make a page slow and show nothing that fewer do not."""

_TIME_LABEL = (
    "utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M')"
    " : utcmonth(datum.value) || utcdate(datum.value) > 1 ? utcFormat(datum.value, '%-d %b')"
    " : utcFormat(datum.value, '%Y')"
)


def require(frame: pl.DataFrame, columns: Sequence[str], *, where: str) -> None:
    """Refuse a frame that lacks columns the chart needs.

    Raises
    ------
    SchemaError
        Naming every missing column.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        text = message(
            where,
            f"columns {', '.join(map(repr, missing))}",
            f"columns {examples(frame.columns)}",
            "Add the columns.",
        )
        raise SchemaError(text)


def to_data(frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    """Make rows small and portable: instants as ISO text in UTC, numbers with six digits.

    Raises
    ------
    SchemaError
        If there are more than :data:`MAX_ROWS` rows.
    """
    if frame.height > MAX_ROWS:
        text = message(
            where,
            f"at most {MAX_ROWS} rows for a chart",
            f"{frame.height} rows",
            "Show a shorter time or fewer series, or aggregate first.",
        )
        raise SchemaError(text)
    instants = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    return frame.with_columns(
        pl.col(instants).dt.to_string("%Y-%m-%dT%H:%M:%SZ"),
        pl.selectors.decimal().cast(pl.Float64),
    ).with_columns(pl.selectors.float().round_sig_figs(6))


def folded(names: Sequence[str], top: int) -> dict[str, str]:
    """Map the names beyond the first ``top`` to one common name that says how many they are.

    Examples
    --------
    >>> folded(["a", "b", "c"], top=1)
    {'a': 'a', 'b': '2 others', 'c': '2 others'}
    >>> folded(["a", "b"], top=1)
    {'a': 'a', 'b': 'b'}
    """
    rest = len(names) - top
    if rest <= 1:
        return {name: name for name in names}
    return {name: name if rank < top else f"{rest} others" for rank, name in enumerate(names)}


def label_width(names: Iterable[str]) -> int:
    """Pixels that the longest of some labels takes, at most 200.

    Examples
    --------
    >>> label_width(["a", "static"])
    56
    """
    return min(200, 14 + 7 * max(map(len, names), default=0))


def utc_axis(field: str, title: str) -> alt.X:
    """Time axis with labels in UTC wherever the page is read: the year, the day or the time of day."""
    axis = alt.Axis(labelExpr=_TIME_LABEL, labelFlush=True, labelBound=True, grid=False)
    return alt.X(f"{field}:T", title=title, scale=alt.Scale(type="utc", nice=False), axis=axis)


def span(start: datetime, end: datetime, *, slot: str = "time", tz: str = "UTC") -> str:
    """Title of a time axis, with the year that its labels leave out.

    Examples
    --------
    >>> span(datetime(2026, 10, 1), datetime(2026, 11, 1), slot="day")
    'day, 2026-10-01 to 2026-11-01 (UTC)'
    >>> span(datetime(2026, 10, 1, 8), datetime(2026, 10, 1, 9))
    'time, 2026-10-01 (UTC)'
    """
    days = list(dict.fromkeys([f"{start:%Y-%m-%d}", f"{end:%Y-%m-%d}"]))
    return f"{slot}, {' to '.join(days)} ({tz})"


def utc_text(**fields: str) -> dict[str, str]:
    """Arguments of ``transform_calculate`` that print instants in UTC, for tooltips.

    Examples
    --------
    >>> utc_text(at="time")
    {'at': "utcFormat(datum['time'], '%Y-%m-%d %H:%M')"}
    """
    return {name: f"utcFormat(datum['{field}'], '%Y-%m-%d %H:%M')" for name, field in fields.items()}
