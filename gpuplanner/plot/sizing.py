"""Jobs on slices: the memory that they need, what memory outside the board gives, and how fast they run."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, in_order, stacked, tips

_STACK = ("plan", "component", "gib", "predicted_gib", "upper_gib", "board_gib")
_POOLED = ("link", "moved", "moved_gib", "slowdown", "place", "pays")


@drawn(
    "Peak memory of a GPU: components, bound of 95 in 100 (tick), limit of the board (bar)",
    *_STACK,
    empty="No plan was explained.",
)
def plot_memory_stack(frame: pl.DataFrame) -> ChartType:
    """Components of the peak of each plan, with what is expected, the bound, and the board's limit.

    Parameters
    ----------
    frame : polars.DataFrame
        ``plan``, ``component``, ``gib``, ``predicted_gib``, ``upper_gib``, ``board_gib``; plans and components stand in
        the order of their first rows.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"plan": ["1"], "component": ["states"], "gib": [10.0], "predicted_gib": [10.0],
    ...     "upper_gib": [12.0], "board_gib": [16.0]})
    >>> len(plot_memory_stack(frame).to_dict()["layer"])
    3
    """
    parts, plans = in_order(frame, "component"), in_order(frame, "plan")
    bars = stacked(
        frame.select(_STACK),
        alt.X("gib:Q", title="GiB"),
        y="plan",
        order=plans,
        part="component",
        colours=theme.numbered(parts),
        hover=tips(component="component", gib=("gib", ".2f")),
    )
    ends = chart_of(frame.unique("plan", maintain_order=True)).encode(
        y=alt.Y("plan:N", title=None, sort=plans, axis=alt.Axis(labelLimit=220))
    )
    chart = alt.layer(
        bars,
        ends.mark_tick(thickness=2, size=26, color=theme.INK).encode(x="upper_gib:Q"),
        ends.mark_tick(thickness=5, size=34, color=theme.GREY).encode(x="board_gib:Q"),
    )
    return theme.finish(chart, height=48 * len(plans), bands=plans, legend=120)


@drawn("Memory outside the board: time lost of a step (calculated)", *_POOLED, empty="Nothing can move.")
def plot_pooled(frame: pl.DataFrame) -> ChartType:
    """Slow-down against what moves out of the board, by link: a calculation, no measurement.

    Parameters
    ----------
    frame : polars.DataFrame
        ``link``, ``moved``, ``moved_gib``, ``slowdown`` (share of a step), ``place``, ``pays``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"link": ["pcie5"], "moved": ["optimiser"], "moved_gib": [9.0], "slowdown": [0.1],
    ...     "place": ["1g.20gb"], "pays": [True]})
    >>> plot_pooled(frame).to_dict()["layer"][0]["mark"]["type"]
    'bar'
    """
    links, moved = in_order(frame, "link"), in_order(frame, "moved")
    colours = theme.numbered(moved)
    bars = (
        chart_of(frame.select(_POOLED))
        .mark_bar()
        .encode(
            x=alt.X("slowdown:Q", title="time lost, share of a step", axis=alt.Axis(format="%")),
            y=alt.Y("link:N", title=None, sort=links),
            yOffset=alt.YOffset("moved:N", sort=moved),
            color=alt.Color("moved:N", title="moved", scale=theme.scale(colours, moved)),
            tooltip=tips(moved="moved", moved_gib=("moved_gib", ".1f"), place="place", pays="pays"),
        )
    )
    return theme.finish(alt.layer(bars), height=180, legend=160, names=theme.label_width(links))
