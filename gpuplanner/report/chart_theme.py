"""Colours, sizes and fonts of charts, and their input frames."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schemas import FULL_GPU

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
    ...     return finish(chart_of(frame).mark_point(), finding="All waited.")
    >>> [plot_waits(pl.DataFrame({"job_id": jobs})).description for jobs in ([], ["a"])]
    ['Waits. Nobody waited.', 'Waits. All waited.']
    """

    def decorate(draw: Callable[Arguments, ChartType]) -> Callable[Arguments, ChartType]:
        @functools.wraps(draw)
        def framed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ChartType:
            frame = cast("pl.DataFrame", args[0] if args else next(iter(kwargs.values())))
            require(frame, columns, where=draw.__name__)
            chart = saying(empty) if frame.is_empty() else draw(*args, **kwargs)
            if chart.title is alt.Undefined:
                return described(chart.properties(title=title), chart.description)
            return chart

        return framed

    return decorate


def require(frame: pl.DataFrame, columns: Sequence[str], *, where: str) -> None:
    """Refuse a frame that lacks columns the chart needs."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        expected = f"columns {', '.join(map(repr, missing))}"
        todo = "Add the columns."
        raise SchemaError(where, expected, f"columns {examples(frame.columns)}", todo)


def chart_of(frame: pl.DataFrame, **properties: Any) -> alt.Chart:  # noqa: ANN401 - as Altair takes them
    """A chart of the rows of a frame, yet without a mark."""
    return alt.Chart(to_data(frame), **properties)


def to_data(frame: pl.DataFrame, *, where: str = "chart") -> pl.DataFrame:
    """Make rows small and portable: instants as ISO text in UTC, numbers with six digits."""
    if frame.height > MAX_ROWS:
        todo = "Show a shorter time or fewer series, or aggregate first."
        raise SchemaError(where, f"at most {MAX_ROWS} rows for a chart", f"{frame.height} rows", todo)
    instants = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    return frame.with_columns(
        pl.col(instants).dt.to_string("%Y-%m-%dT%H:%M:%SZ"), pl.selectors.decimal().cast(pl.Float64)
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
            color=alt.Color(f"{part}:N", legend=legend or alt.Legend(title=None), scale=scale(colours, shown)),
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
    parts = {name: textwrap.wrap(name, width, break_on_hyphens=False, break_long_words=False) for name in names}
    broken = {name: lines for name, lines in parts.items() if len(lines) > 1}
    lookup = f"({json.dumps(broken)})[datum.label] || datum.label"
    return Labels(
        axis=alt.Axis(labelExpr=lookup, labelOverlap=False, grid=grid),
        pixels=label_width(line for lines in parts.values() for line in lines),
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


INK, MUTED, GREY, GRID = "#1f2933", "#52606d", "#c4cbd2", "#e4e7eb"
QUIET = "#8a949e"
"""Marks of what is neither recommended nor today's."""
"""What asks for attention: vermilion that can be read on white."""
ZONE, TINT, EMPTY = "#eff7fb", "#cfe6f5", "#eef1f4"
"""Grounds: of what lies within a limit, of a slice, and of a cell in which nothing stands yet."""

# Okabe & Ito, "Color Universal Design" (2008), without black, which is kept for totals and text.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, VERMILION, YELLOW = "#56b4e9", "#d55e00", "#f0e442"
# Chosen one by one to lie farthest from all before, as seen with and without each kind of colour blindness.
BROWN, PURPLE = "#662200", "#9900ff"
PALETTE = (
    *(BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW),
    *(BROWN, PURPLE, "#aaff88", "#440066", "#9977ff"),
)

BUCKET_COLOURS = {
    "used": BLUE,
    "no_telemetry": "#8ecbf0",
    "allocated_idle": ORANGE,
    "unallocated": "#d5dbe1",
    "fragmented": VERMILION,
    "idle_pending": "#663311",
    "reserved": PINK,
    "reconfiguring": YELLOW,
    "down": "#3e4c59",
}
"""Of each bucket of the ledger."""
POLICY_COLOURS = {
    "today": MUTED,
    "fewer_nodes": BROWN,
    "mig_static": PURPLE,
    "power_down_idle": "#7a6000",
    "autoscaled_pools": BLUE,
    "mig_dynamic": "#440066",
}
"""Of each way to run the fleet, on every page; words in these colours can be read on white."""

BAND_HEIGHT = 26
"""Pixels of one row of a horizontal bar chart."""

NUMBERS = {"decimal": ".", "thousands": ",", "grouping": [3], "currency": ["", ""], "percent": " %"}
"""Marks in the numbers of charts, as Vega has them."""
CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "white",
    "locale": {"number": NUMBERS},
    # The page gives each chart one text alternative and a table; a label on every mark would repeat it.
    "aria": False,
    "view": {"stroke": None, "continuousWidth": 640, "continuousHeight": 260, "discreteWidth": 640},
    "title": {"anchor": "start", "fontSize": 15, "fontWeight": 600, "color": INK, "offset": 12},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelColor": INK,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "gridColor": GRID,
        "domainColor": GREY,
        "tickColor": GREY,
        "labelOverlap": True,
        "labelSeparation": 8,
        "labelLimit": 200,
    },
    "legend": {
        # Browsers draw letters wider than the renderer that lays the legend out thinks.
        "columnPadding": 26,
        "orient": "top",
        "direction": "horizontal",
        "columns": 4,
        "labelFontSize": 12,
        "labelColor": INK,
        "labelLimit": 260,
        "titleFontSize": 12,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 2,
        "offset": 10,
    },
    "header": {"labelFontSize": 13, "labelFontWeight": 600, "labelColor": INK, "labelAnchor": "start"},
    "text": {"fontSize": 12, "color": INK},
}

AnyChart = TypeVar("AnyChart", bound=ChartType)


def tenant_colours(names: Iterable[str]) -> dict[str, str]:
    """One colour per tenant, by alphabet; grey for nobody (``-``, ``nobody``) and beyond the palette.

    Make it once from all tenants and hand it to every chart, so that a tenant keeps its colour.

    Examples
    --------
    >>> tenant_colours(["b", "a", "-"])
    {'-': '#c4cbd2', 'a': '#0072b2', 'b': '#e69f00'}
    """
    return numbered(sorted(set(names)), fixed={"-": GREY, "__unallocated__": GREY})


def layout_colours(layouts: Iterable[str]) -> dict[str, str]:
    """One colour per layout, in the given order; grey for whole GPUs, light grey for GPUs that are off.

    Examples
    --------
    >>> layout_colours(["gpu", "7g.80gb:1", "off"])
    {'gpu': '#52606d', '7g.80gb:1': '#0072b2', 'off': '#e4e7eb'}
    """
    return numbered(layouts, fixed={FULL_GPU: MUTED, "off": GRID})


def policy_colours(policies: Iterable[str]) -> dict[str, str]:
    """One colour per way to run a fleet, the same whichever ways stand beside it.

    Ways that have none in :data:`POLICY_COLOURS` take the colours that those leave, in the given order.

    Examples
    --------
    >>> policy_colours(["today", "autoscaled_pools", "mine"])
    {'today': '#52606d', 'autoscaled_pools': '#0072b2', 'mine': '#e69f00'}
    """
    return numbered(policies, fixed=POLICY_COLOURS)


def scale(colours: Mapping[str, str], domain: Sequence[str]) -> alt.Scale:
    """Colour scale over the given names, in their order."""
    return alt.Scale(domain=list(domain), range=[colours.get(name, GREY) for name in domain])


def label_width(names: Iterable[str]) -> int:
    """Pixels that the longest of some labels takes, at most 200.

    Examples
    --------
    >>> label_width(["a", "static"])
    56
    """
    return min(200, 14 + 7 * max(map(len, names), default=0))


def finish(
    chart: AnyChart,
    *,
    title: str = "",
    finding: str = "",
    height: int | None = None,
    bands: Sequence[str] = (),
    legend: int = 140,
    names: int = 60,
    room: int = 5,
    panels: Mapping[str, int] | None = None,
) -> AnyChart:
    """Give a chart the common look, its words, and the numbers [px] by which it is laid out for a width.

    With a height, or the names of its bands, it is one panel as wide as the page; without a title it gets that of
    :func:`prepare.drawn`.
    """
    if bands:
        height, names = height or BAND_HEIGHT * len(bands), label_width(bands)
    facts: dict[str, Any] = {"legend": legend, "names": names}
    if panels:
        facts["panels"] = dict(panels)
    own: dict[str, Any] = {"width": "container", "height": height} if height else {}
    own |= {"title": title} if title else {}
    padding = {"left": 5, "top": 5, "right": room, "bottom": 5}
    finished: AnyChart = chart.properties(
        description=_told(title, finding), usermeta=facts, padding=padding, **own
    ).configure(**CONFIG)
    return finished


def described(chart: ChartType, finding: str) -> ChartType:
    """Say what a chart shows to those who cannot see it.

    Parameters
    ----------
    chart : altair chart
        Of this package.
    finding : str
        A sentence; with the title it is the text alternative of the chart.

    Examples
    --------
    >>> described(saying("No job.", title="Waits"), "Nobody waited.").description
    'Waits. Nobody waited.'
    """
    return chart.properties(description=_told(str(chart.title), finding))


def saying(text: str, *, title: str = "") -> alt.Chart:
    """A chart that says why there is nothing to draw."""
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame({"text": [text]}), width="container", height=60)
        .mark_text(align="center", color=MUTED, fontSize=13)
        .encode(text="text:N")
    )
    return finish(chart, title=title, finding=text)


def _told(title: str, finding: str) -> str:
    return ". ".join(filter(None, (title, finding)))


def numbered(names: Iterable[str], fixed: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """One colour a name: its fixed one, or the next of the palette that no fixed one takes; grey beyond."""
    names = list(dict.fromkeys(names))
    left = [colour for colour in PALETTE if colour not in fixed.values()]
    colours = dict(zip((name for name in names if name not in fixed), left, strict=False))
    return {name: fixed.get(name) or colours.get(name, GREY) for name in names}
