"""From a frame to a chart: what every chart asks of its frame, and its rows, tooltips, axes and labels."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, cast

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.plot import theme

MAX_ROWS = 4000
"""Rows that may reach one chart; more make a page slow and show nothing that fewer do not."""

_TIME_LABEL = (
    "utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M')"
    " : utcmonth(datum.value) || utcdate(datum.value) > 1 ? utcFormat(datum.value, '%-d %b')"
    " : utcFormat(datum.value, '%Y')"
)

Arguments = ParamSpec("Arguments")


def drawn(
    title: str, *columns: str, empty: str
) -> Callable[[Callable[Arguments, ChartType]], Callable[Arguments, ChartType]]:
    """Give a function that draws its first argument what all have in common.

    A frame without one of the columns is refused; one without rows is a chart that says why there is nothing to draw;
    a chart without a title gets this one.

    Examples
    --------
    >>> @drawn("Waits", "job_id", empty="Nobody waited.")
    ... def plot_waits(frame: pl.DataFrame) -> ChartType:
    ...     return theme.finish(chart_of(frame).mark_point(), finding="All waited.")
    >>> [plot_waits(pl.DataFrame({"job_id": jobs})).description for jobs in ([], ["a"])]
    ['Waits. Nobody waited.', 'Waits. All waited.']
    """

    def decorate(draw: Callable[Arguments, ChartType]) -> Callable[Arguments, ChartType]:
        @functools.wraps(draw)
        def framed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ChartType:
            frame = cast("pl.DataFrame", args[0] if args else next(iter(kwargs.values())))
            require(frame, columns, where=draw.__name__)
            chart = theme.saying(empty) if frame.is_empty() else draw(*args, **kwargs)
            if chart.title is alt.Undefined:
                return theme.described(chart.properties(title=title), chart.description)
            return chart

        return framed

    return decorate


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


def chart_of(frame: pl.DataFrame, **properties: Any) -> alt.Chart:  # noqa: ANN401 - as Altair takes them
    """A chart of the rows of a frame, yet without a mark."""
    return alt.Chart(to_data(frame), **properties)


def to_data(frame: pl.DataFrame, *, where: str = "chart") -> pl.DataFrame:
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


def tips(**fields: str | tuple[str, str]) -> list[alt.Tooltip]:
    """What is said of a mark under the pointer: the heading of each field, and of a number its format.

    Examples
    --------
    >>> [tip.to_dict()["type"] for tip in tips(tenant="tenant", share=("share of all", ".1%"))]
    ['nominal', 'quantitative']
    """
    return [
        alt.Tooltip(f"{name}:N", title=said)
        if isinstance(said, str)
        else alt.Tooltip(f"{name}:Q", title=said[0], format=said[1])
        for name, said in fields.items()
    ]


def stacked(
    rows: pl.DataFrame,
    x: alt.X,
    *,
    y: str,
    order: Sequence[str],
    part: str,
    colours: Mapping[str, str],
    hover: list[alt.Tooltip],
    legend: alt.Legend | None = None,
) -> alt.Chart:
    """Horizontal bars, one a name of `y` in the given order, in parts that stand in the order of their colours."""
    shown = [name for name in colours if name in rows[part]]
    ranks = {name: rank for rank, name in enumerate(shown)}
    placed = rows.with_columns(order=pl.col(part).replace_strict(ranks, default=len(ranks)))
    chart: alt.Chart = (
        chart_of(placed.sort(y, "order", part))
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=x.stack("zero"),
            y=alt.Y(f"{y}:N", title=None, sort=order),
            color=alt.Color(
                f"{part}:N", legend=legend or alt.Legend(title=None), scale=theme.scale(colours, shown)
            ),
            order=alt.Order("order:Q"),
            tooltip=hover,
        )
    )
    return chart


def in_order(frame: pl.DataFrame, column: str) -> list[str]:
    """Names of a column in the order of their first rows."""
    return frame[column].unique(maintain_order=True).to_list()


def ranked(frame: pl.DataFrame, name: str, weight: str) -> list[str]:
    """Names by the sum of their weights, the heaviest first.

    Examples
    --------
    >>> ranked(pl.DataFrame({"tenant": ["a", "b", "a"], "cost": [1, 5, 2]}), "tenant", "cost")
    ['b', 'a']
    """
    totals = frame.group_by(name).agg(pl.col(weight).sum())
    return totals.sort(weight, name, descending=[True, False])[name].to_list()


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


def each(names: Mapping[str, str]) -> list[str]:
    """Every name that :func:`folded` gives, once, in their order."""
    return list(dict.fromkeys(names.values()))


@dataclass(frozen=True)
class Labels:
    """Names of an axis, broken into lines between words.

    - ``axis``: The axis, with every label shown.
    - ``pixels``: Width of the longest line.
    - ``lines``: Lines of the highest label.
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
        pixels=theme.label_width(line for lines in parts.values() for line in lines),
        lines=max(map(len, parts.values()), default=1),
    )


def utc_axis(rows: pl.DataFrame, start: str, end: str = "", *, slot: str = "time", tz: str = "UTC") -> alt.X:
    """Time axis of a column, with labels in UTC wherever the page is read: the year, the day or the time of day.

    Its title says the days between the least of `start` and the greatest of `end`, which the labels leave out.

    Examples
    --------
    >>> hours = pl.DataFrame({"at": [datetime(2026, 10, 1, 8), datetime(2026, 10, 1, 9)]})
    >>> utc_axis(hours, "at").to_dict()["title"]
    'time, 2026-10-01 (UTC)'
    """
    ends: tuple[datetime, datetime] = (rows[start].min(), rows[end or start].max())  # type: ignore[assignment]
    days = " to ".join(dict.fromkeys(f"{each:%Y-%m-%d}" for each in ends))
    axis = alt.Axis(labelExpr=_TIME_LABEL, labelFlush=True, labelBound=True, grid=False)
    scale = alt.Scale(type="utc", nice=False)
    return alt.X(f"{start}:T", title=f"{slot}, {days} ({tz})", scale=scale, axis=axis)


def heading(text: str) -> alt.TitleParams:
    """Title of one panel of several."""
    return alt.TitleParams(text, fontSize=13, offset=6)


def utc_text(**fields: str) -> dict[str, str]:
    """Arguments of ``transform_calculate`` that print instants in UTC, for tooltips.

    Examples
    --------
    >>> utc_text(at="time")
    {'at': "utcFormat(datum['time'], '%Y-%m-%d %H:%M')"}
    """
    return {name: f"utcFormat(datum['{field}'], '%Y-%m-%d %H:%M')" for name, field in fields.items()}
