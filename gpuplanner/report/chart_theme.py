"""Common look of charts: colours, sizes, fonts and checks of their input frames."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from string import Template
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

import altair as alt
import polars as pl
from altair.typing import ChartType
from altair.utils.schemapi import debug_mode

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import require_columns
from gpuplanner.core.schemas import FULL_GPU
from gpuplanner.core.units_and_number_formats import UNALLOCATED_LABEL
from gpuplanner.report.chart_rendering import INK as INK
from gpuplanner.report.chart_rendering import VEGA_NUMBER_LOCALE

MAX_CHART_ROWS = 4000
"""Maximum rows of data in one chart; more make a page slow without showing more."""

_TIME_LABEL_EXPRESSION = (
    "utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M')"
    " : utcmonth(datum.value) || utcdate(datum.value) > 1 ? utcFormat(datum.value, '%-d %b')"
    " : utcFormat(datum.value, '%Y')"
)
"""Vega expression that labels a tick of a time axis: time of day, day and month, or year."""

ChartArguments = ParamSpec("ChartArguments")
"""Type of the arguments of a function that draws a chart, which :func:`frame_chart` keeps."""


def frame_chart(
    title: str, *columns: str, empty: str
) -> Callable[[Callable[ChartArguments, ChartType]], Callable[ChartArguments, ChartType]]:
    """Decorate a function that draws a chart of the data frame in its first argument.

    A frame that lacks columns is rejected; without rows, the chart explains why there is nothing to draw; a chart
    without a title gets this one.

    Parameters
    ----------
    title : str
        Default title.
    *columns : str
        Columns that the frame must have.
    empty : str
        Message of the chart of a frame without rows.

    Returns
    -------
    callable
        Decorator.

    Raises
    ------
    SchemaError
        If a column is missing, when the decorated function is called.

    Examples
    --------
    >>> @frame_chart("Waits", "job_id", empty="Nobody waited.")
    ... def plot_waits(frame: pl.DataFrame) -> ChartType:
    ...     return finish(make_chart(frame).mark_point(), finding="All waited.")
    >>> [plot_waits(pl.DataFrame({"job_id": jobs})).description for jobs in ([], ["a"])]
    ['Waits. Nobody waited.', 'Waits. All waited.']
    """

    def decorate(draw: Callable[ChartArguments, ChartType]) -> Callable[ChartArguments, ChartType]:
        @functools.wraps(draw)
        def checked_draw(*args: ChartArguments.args, **kwargs: ChartArguments.kwargs) -> ChartType:
            frame = cast("pl.DataFrame", args[0] if args else next(iter(kwargs.values())))
            require_columns(frame.schema, columns, source=draw.__name__)
            with debug_mode(False):  # the tests validate every chart; here it would take most of the time
                chart = make_empty_chart(empty) if frame.is_empty() else draw(*args, **kwargs)
            if chart.title is alt.Undefined:
                return add_description(chart.properties(title=title), chart.description)
            return chart

        return checked_draw

    return decorate


def make_chart(frame: pl.DataFrame, **properties: Any) -> alt.Chart:  # noqa: ANN401 - as Altair takes them
    """Make an Altair chart of the rows of a frame, without a mark."""
    return alt.Chart(prepare_chart_rows(frame), **properties)


def prepare_chart_rows(frame: pl.DataFrame, *, source: str = "chart") -> pl.DataFrame:
    """Convert the rows of a frame to what a chart embeds: times as ISO text in UTC, numbers with six digits."""
    if frame.height > MAX_CHART_ROWS:
        todo = "Show a shorter time or fewer series, or aggregate first."
        raise SchemaError(source, f"at most {MAX_CHART_ROWS} rows for a chart", f"{frame.height} rows", todo)
    instants = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Datetime)]
    return frame.with_columns(
        pl.col(instants).dt.to_string("%Y-%m-%dT%H:%M:%SZ"), pl.selectors.decimal().cast(pl.Float64)
    ).with_columns(pl.selectors.float().round_sig_figs(6))


def make_tooltips(**fields: str | tuple[str, str]) -> list[alt.Tooltip]:
    """Make tooltips: the heading of each field and, for numbers, their format.

    Examples
    --------
    >>> [tip.to_dict()["type"] for tip in make_tooltips(tenant="tenant", share=("share of all", ".1%"))]
    ['nominal', 'quantitative']
    """
    return [
        alt.Tooltip(f"{name}:N", title=heading)
        if isinstance(heading, str)
        else alt.Tooltip(f"{name}:Q", title=heading[0], format=heading[1])
        for name, heading in fields.items()
    ]


def stack_bars(
    rows: pl.DataFrame, x: alt.X, *, y: str, order: Sequence[str], part: str, colours: Mapping[str, str],
    hover: list[alt.Tooltip], legend: alt.Legend | None = None,
) -> alt.Chart:  # fmt: skip
    """Draw horizontal stacked bars, one for each name.

    Parameters
    ----------
    rows : polars.DataFrame
        One row for each part of a bar.
    x : altair.X
        Length of the parts.
    y : str
        Column with the names of the bars.
    order : sequence of str
        Names of the bars, from the top.
    part : str
        Column with the names of the parts.
    colours : mapping of str to str
        Colour of each part, in stacking order.
    hover : list of altair.Tooltip
        Tooltips.
    legend : altair.Legend, optional
        Legend of the parts.

    Returns
    -------
    altair.Chart
    """
    shown = [name for name in colours if name in rows[part]]
    ranks = {name: rank for rank, name in enumerate(shown)}
    ranked_rows = rows.with_columns(order=pl.col(part).replace_strict(ranks, default=len(ranks)))
    chart: alt.Chart = (
        make_chart(ranked_rows.sort(y, "order", part))
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=x.stack("zero"),
            y=alt.Y(f"{y}:N", title=None, sort=order),
            color=alt.Color(f"{part}:N", legend=legend or alt.Legend(title=None), scale=colour_scale(colours, shown)),
            order=alt.Order("order:Q"),
            tooltip=hover,
        )
    )
    return chart


def names_in_order(frame: pl.DataFrame, column: str) -> list[str]:
    """List the distinct names of a column in the order of their first rows."""
    return frame[column].unique(maintain_order=True).to_list()


def rank_names(frame: pl.DataFrame, name: str, weight: str) -> list[str]:
    """List the names in column `name` by the sum of their values in column `weight`, largest first.

    Examples
    --------
    >>> rank_names(pl.DataFrame({"tenant": ["a", "b", "a"], "cost": [1, 5, 2]}), "tenant", "cost")
    ['b', 'a']
    """
    totals = frame.group_by(name, maintain_order=True).agg(pl.col(weight).sum())
    return totals.sort(weight, name, descending=[True, False])[name].to_list()


def fold_names(names: Sequence[str], top: int) -> dict[str, str]:
    """Map each name to itself or, beyond the first ``top``, to one common name such as ``"3 others"``.

    Examples
    --------
    >>> fold_names(["a", "b", "c"], top=1)
    {'a': 'a', 'b': '2 others', 'c': '2 others'}
    >>> fold_names(["a", "b"], top=1)
    {'a': 'a', 'b': 'b'}
    """
    unnamed = len(names) - top
    if unnamed <= 1:
        return {name: name for name in names}
    return {name: name if rank < top else f"{unnamed} others" for rank, name in enumerate(names)}


def folded_names(names: Mapping[str, str]) -> list[str]:
    """List the distinct names that :func:`fold_names` maps to, in order."""
    return list(dict.fromkeys(names.values()))


@dataclass(frozen=True)
class AxisLabels:
    """Axis labels that are broken into lines between words.

    - ``axis``: Axis with every label shown.
    - ``pixels``: Width of the longest line [px].
    - ``lines``: Number of lines of the label with most lines.
    """

    axis: alt.Axis
    pixels: int
    lines: int


def wrap_labels(names: Iterable[str], width: int = 18, *, grid: bool = False) -> AxisLabels:
    """Break axis labels into lines of at most `width` characters, between words.

    Examples
    --------
    >>> labels = wrap_labels(["today", "planned calendar, right-sized"])
    >>> labels.axis.labelExpr
    '({"planned calendar, right-sized": ["planned calendar,", "right-sized"]})[datum.label] || datum.label'
    >>> labels.pixels, labels.lines
    (133, 2)
    """
    lines_by_name = {name: textwrap.wrap(name, width, break_on_hyphens=False, break_long_words=False) for name in names}
    multiline_names = {name: lines for name, lines in lines_by_name.items() if len(lines) > 1}
    lookup = f"({json.dumps(multiline_names)})[datum.label] || datum.label"
    return AxisLabels(
        axis=alt.Axis(labelExpr=lookup, labelOverlap=False, grid=grid),
        pixels=label_width(line for lines in lines_by_name.values() for line in lines),
        lines=max(map(len, lines_by_name.values()), default=1),
    )


def utc_axis(rows: pl.DataFrame, start: str, end: str = "", *, slot: str = "time", tz: str = "UTC") -> alt.X:
    """Make a time axis with labels in UTC: year, day or time of day.

    Parameters
    ----------
    rows : polars.DataFrame
        Rows with the times.
    start : str
        Column of the axis.
    end : str
        Column with the ends of intervals; default: `start`. The title shows the days from the first start to the last
        end.
    slot : str
        Word for an interval in the title, such as ``"day"``.
    tz : str
        Time zone that the title names.

    Examples
    --------
    >>> hours = pl.DataFrame({"at": [datetime(2026, 10, 1, 8), datetime(2026, 10, 1, 9)]})
    >>> utc_axis(hours, "at").to_dict()["title"]
    'time, 2026-10-01 (UTC)'
    """
    first_and_last: tuple[datetime, datetime] = (rows[start].min(), rows[end or start].max())  # type: ignore[assignment]
    # An interval that ends at midnight has nothing of the day that begins there.
    shown = (first_and_last[0], first_and_last[1] - timedelta(microseconds=bool(end)))
    days = " to ".join(dict.fromkeys(f"{instant:%Y-%m-%d}" for instant in shown))
    # More labels than fit would be dropped in turn, and with them those of the days.
    step_ms = (first_and_last[1] - first_and_last[0]).total_seconds() * 100
    axis = alt.Axis(labelExpr=_TIME_LABEL_EXPRESSION, labelFlush=True, labelBound=True, grid=False, tickMinStep=step_ms)
    scale = alt.Scale(type="utc", nice=False)
    return alt.X(f"{start}:T", title=f"{slot}, {days} ({tz})", scale=scale, axis=axis)


def panel_title(text: str) -> alt.TitleParams:
    """Make the title of a panel in a chart of several panels, smaller than that of the chart."""
    return alt.TitleParams(text, fontSize=13, offset=6)


def utc_calculations(**fields: str) -> dict[str, str]:
    """Make arguments of ``transform_calculate`` that format times in UTC, for tooltips.

    Examples
    --------
    >>> utc_calculations(at="time")
    {'at': "utcFormat(datum['time'], '%Y-%m-%d %H:%M')"}
    """
    return {name: f"utcFormat(datum['{field}'], '%Y-%m-%d %H:%M')" for name, field in fields.items()}


MUTED, GREY, GRID = "#52606d", "#c4cbd2", "#e4e7eb"
"""Colours of secondary text (MUTED), names without a colour of their own (GREY), grid lines."""
OTHER_POLICY_COLOUR = "#8a949e"
"""Colour of policies that are neither recommended nor today's."""
ZONE, TINT, EMPTY = "#eff7fb", "#cfe6f5", "#eef1f4"
"""Background colours: ZONE of the area within a wait limit, TINT of a MIG slice, EMPTY of a cell without data."""

# Okabe & Ito, "Color Universal Design" (2008), without black, which is kept for totals and text.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
"""First colours of the palette, distinguishable for colour-blind readers."""
SKY, VERMILION, YELLOW = "#56b4e9", "#d55e00", "#f0e442"
"""Further colours of the palette, distinguishable for colour-blind readers."""
# Chosen one by one to lie farthest from all before, as seen with and without each kind of colour blindness.
BROWN, PURPLE = "#662200", "#9900ff"
"""Further colours of the palette, for the eighth and ninth name."""
PALETTE = (*(BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW), *(BROWN, PURPLE, "#aaff88", "#440066", "#9977ff"))
"""Colours assigned to names in this order."""

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
"""Colour of each bucket of the GPU-hour ledger."""
POLICY_COLOURS = {
    "today": MUTED,
    "fewer_nodes": BROWN,
    "mig_static": PURPLE,
    "power_down_idle": "#7a6000",
    "autoscaled_pools": BLUE,
    "mig_dynamic": "#440066",
}
"""Colour of each policy, on every page; text in these colours is readable on white."""

BAR_ROW_HEIGHT_PX = 26
"""Height of one row of a horizontal bar chart [px]."""

_CONFIG_TEMPLATE = Template((resources.files(__package__) / "chart_config.json").read_text("utf-8"))
"""Text of the configuration with the names of colours. Its legend leaves room for browsers, which draw letters wider
than the renderer; ``aria`` is off, since the page gives each chart one text alternative and a table."""
VEGA_CONFIG: dict[str, Any] = {
    **json.loads(_CONFIG_TEMPLATE.substitute(INK=INK, MUTED=MUTED, GRID=GRID, GREY=GREY)),
    "locale": {"number": VEGA_NUMBER_LOCALE},
}
"""Vega-Lite configuration of all charts: font, axes, legends and marks."""

AnyChart = TypeVar("AnyChart", bound=ChartType)
"""Kind of Altair chart, the same before and after :func:`finish`."""


def tenant_colours(names: Iterable[str]) -> dict[str, str]:
    """Assign one colour to each tenant, alphabetically; grey for unallocated GPUs and beyond the palette.

    Make it once for all tenants and pass it to every chart, so that a tenant keeps its colour.

    Examples
    --------
    >>> tenant_colours(["b", "a", "-"])
    {'-': '#c4cbd2', 'a': '#0072b2', 'b': '#e69f00'}
    """
    return assign_colours(sorted(set(names)), fixed={"-": GREY, "__unallocated__": GREY, UNALLOCATED_LABEL: GREY})


def layout_colours(layouts: Iterable[str]) -> dict[str, str]:
    """Assign one colour to each layout in order; grey for full GPUs, light grey for GPUs that are powered off.

    Examples
    --------
    >>> layout_colours(["gpu", "7g.80gb:1", "off"])
    {'gpu': '#52606d', '7g.80gb:1': '#0072b2', 'off': '#e4e7eb'}
    """
    return assign_colours(layouts, fixed={FULL_GPU: MUTED, "off": GRID})


def policy_colours(policies: Iterable[str]) -> dict[str, str]:
    """Assign one colour to each policy, the same in every chart.

    Policies without an entry in :data:`POLICY_COLOURS` take the remaining colours, in order.

    Examples
    --------
    >>> policy_colours(["today", "autoscaled_pools", "mine"])
    {'today': '#52606d', 'autoscaled_pools': '#0072b2', 'mine': '#e69f00'}
    """
    return assign_colours(policies, fixed=POLICY_COLOURS)


def colour_scale(colours: Mapping[str, str], domain: Sequence[str]) -> alt.Scale:
    """Make a colour scale of the names in `domain`, in their order; names without a colour are grey."""
    return alt.Scale(domain=list(domain), range=[colours.get(name, GREY) for name in domain])


def label_width(names: Iterable[str]) -> int:
    """Estimate the width of the longest label [px], at most 200.

    Examples
    --------
    >>> label_width(["a", "static"])
    56
    """
    return min(200, 14 + 7 * max(map(len, names), default=0))


def finish(
    chart: AnyChart, *, title: str = "", finding: str = "", height: int | None = None, bands: Sequence[str] = (),
    legend: int = 140, names: int = 60, room: int = 5, panels: Mapping[str, int] | None = None,
) -> AnyChart:  # fmt: skip
    """Apply the common look, title and text alternative to a chart.

    Parameters
    ----------
    chart : altair chart
        Chart to finish.
    title : str
        Title; default: that of :func:`frame_chart`.
    finding : str
        Message of the chart as a sentence, for the text alternative.
    height : int, optional
        Height of a chart of one panel that is as wide as the page. [px]
    bands : sequence of str
        Names of the rows of a bar chart, which set its height and the width of their labels.
    legend : int
        Width of a legend entry. [px]
    names : int
        Width of the names on the vertical axis. [px]
    room : int
        Padding on the right. [px]
    panels : mapping of str to int, optional
        ``columns``, ``minimum`` width and ``margin`` [px] of charts with several panels.

    Returns
    -------
    altair chart
    """
    if bands:
        height, names = height or BAR_ROW_HEIGHT_PX * len(bands), label_width(bands)
    facts: dict[str, Any] = {"legend": legend, "names": names}
    if panels:
        facts["panels"] = dict(panels)
    properties: dict[str, Any] = {"width": "container", "height": height} if height else {}
    properties |= {"title": title} if title else {}
    padding = {"left": 5, "top": 5, "right": room, "bottom": 5}
    finished: AnyChart = chart.properties(
        description=_join_sentences(title, finding), usermeta=facts, padding=padding, **properties
    ).configure(**VEGA_CONFIG)
    return finished


def add_description(chart: ChartType, finding: str) -> ChartType:
    """Set the text alternative of a chart: its title and a message.

    Parameters
    ----------
    chart : altair chart
        Chart of this package.
    finding : str
        Message as a sentence.

    Examples
    --------
    >>> add_description(make_empty_chart("No job.", title="Waits"), "Nobody waited.").description
    'Waits. Nobody waited.'
    """
    return chart.properties(description=_join_sentences(str(chart.title), finding))


def make_empty_chart(text: str, *, title: str = "") -> alt.Chart:
    """Make a chart that shows a message because there is nothing to draw."""
    chart: alt.Chart = (
        alt.Chart(pl.DataFrame({"text": [text]}), width="container", height=60)
        .mark_text(align="center", color=MUTED, fontSize=13)
        .encode(text="text:N")
    )
    return finish(chart, title=title, finding=text)


def _join_sentences(title: str, finding: str) -> str:
    """Join the title and the message of a chart as sentences, without an empty one."""
    return ". ".join(filter(None, (title, finding)))


def assign_colours(names: Iterable[str], fixed: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Assign each name its colour in `fixed`, or the next unused one of the palette; grey once all are used."""
    names = list(dict.fromkeys(names))
    free_colours = [colour for colour in PALETTE if colour not in fixed.values()]
    colours = dict(zip((name for name in names if name not in fixed), free_colours, strict=False))
    return {name: fixed.get(name) or colours.get(name, GREY) for name in names}
