"""From a frame to the rows, axes and labels of a chart."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    """Refuse a frame that lacks columns the chart needs."""
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
    """Make rows small and portable: instants as ISO text in UTC, numbers with six digits."""
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


@dataclass(frozen=True)
class Labels:
    """Names of an axis, broken into lines between words.

    Attributes
    ----------
    axis : altair.Axis
        The axis, with every label shown.
    pixels : int
        Width of the longest line.
    lines : int
        Lines of the highest label.
    """

    axis: alt.Axis
    pixels: int
    lines: int


def wrapped(names: Iterable[str], width: int = 18, *, grid: bool = False) -> Labels:
    """Break the names of an axis into lines between words.

    Examples
    --------
    >>> labels = wrapped(["today", "planned calendar, right-sized"])
    >>> labels.axis.labelExpr
    '({"planned calendar, right-sized": ["planned calendar,", "right-sized"]})[datum.label] || datum.label'
    >>> labels.pixels, labels.lines
    (133, 2)
    """
    parts = {
        name: textwrap.wrap(name, width, break_on_hyphens=False, break_long_words=False) for name in names
    }
    broken = {name: lines for name, lines in parts.items() if len(lines) > 1}
    lookup = f"({json.dumps(broken)})[datum.label] || datum.label"
    return Labels(
        axis=alt.Axis(labelExpr=lookup, labelOverlap=False, grid=grid),
        pixels=label_width(line for lines in parts.values() for line in lines),
        lines=max(map(len, parts.values()), default=1),
    )


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
