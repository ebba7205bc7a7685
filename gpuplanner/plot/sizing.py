"""Jobs on slices: the memory that they need, and how fast they run."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, in_order, stacked, tips

_STACK = ("plan", "component", "gib", "predicted_gib", "upper_gib", "board_gib")


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
