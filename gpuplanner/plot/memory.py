"""Memory of jobs: the stack of components under the board's limit, and what memory outside the board would give."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme


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
    columns = ["plan", "component", "gib", "predicted_gib", "upper_gib", "board_gib"]
    prepare.require(frame, columns, where="plot_memory_stack")
    title = "Peak memory of a GPU: components, bound of 95 in 100 (tick), limit of the board (bar)"
    if frame.is_empty():
        return theme.saying("No plan was explained.", title=title)
    rows = prepare.to_data(frame.select(columns), where="plot_memory_stack")
    parts = frame["component"].unique(maintain_order=True).to_list()
    plans = frame["plan"].unique(maintain_order=True).to_list()
    colours = dict(zip(parts, theme.PALETTE * 2, strict=False))
    ordered = rows.with_columns(place=pl.Series([parts.index(part) for part in frame["component"]]))
    y = alt.Y("plan:N", title=None, sort=plans, axis=alt.Axis(labelLimit=220))
    bars = (
        alt.Chart(ordered)
        .mark_bar()
        .encode(
            x=alt.X("gib:Q", title="GiB", stack="zero"),
            y=y,
            color=alt.Color("component:N", title=None, scale=theme.scale(colours, parts)),
            order=alt.Order("place:Q"),
            tooltip=[alt.Tooltip("component:N"), alt.Tooltip("gib:Q", format=".2f")],
        )
    )
    ends = rows.unique("plan", maintain_order=True)
    bound = alt.Chart(ends).mark_tick(thickness=2, size=26, color="black").encode(x="upper_gib:Q", y=y)
    limit = alt.Chart(ends).mark_tick(thickness=5, size=34, color=theme.GREY).encode(x="board_gib:Q", y=y)
    chart = alt.layer(bars, bound, limit).properties(width="container", height=48 * len(plans))
    return theme.finish(chart, title=title, legend=120, names=prepare.label_width(plans))


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
    columns = ["link", "moved", "moved_gib", "slowdown", "place", "pays"]
    prepare.require(frame, columns, where="plot_pooled")
    title = "Memory outside the board: time lost of a step (calculated)"
    if frame.is_empty():
        return theme.saying("Nothing can move.", title=title)
    rows = prepare.to_data(frame.select(columns), where="plot_pooled")
    moved = frame["moved"].unique(maintain_order=True).to_list()
    colours = dict(zip(moved, theme.PALETTE, strict=False))
    bars = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("slowdown:Q", title="time lost, share of a step", axis=alt.Axis(format="%")),
            y=alt.Y("link:N", title=None, sort=frame["link"].unique(maintain_order=True).to_list()),
            yOffset=alt.YOffset("moved:N", sort=moved),
            color=alt.Color("moved:N", title="moved", scale=theme.scale(colours, moved)),
            tooltip=[
                alt.Tooltip("moved:N"),
                alt.Tooltip("moved_gib:Q", format=".1f"),
                alt.Tooltip("place:N"),
                alt.Tooltip("pays:N"),
            ],
        )
    )
    links = frame["link"].unique(maintain_order=True).to_list()
    chart = alt.layer(bars).properties(width="container", height=180)
    return theme.finish(chart, title=title, legend=160, names=prepare.label_width(links))
