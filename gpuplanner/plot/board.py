"""What a MIG layout looks like on its board."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_FILL = "#cfe6f5"


def plot_board(placements: pl.DataFrame, *, memory_slices: int) -> ChartType:
    """Draw layouts on the memory slices of their board, one row per layout.

    Parameters
    ----------
    placements : polars.DataFrame
        ``layout, profile, start, size``: an instance of ``profile`` on ``size`` memory slices from ``start``.
    memory_slices : int
        Memory slices of the board.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> one = pl.DataFrame({"layout": ["3g.40gb:1"], "profile": ["3g.40gb"], "start": [0], "size": [4]})
    >>> plot_board(one, memory_slices=8).to_dict()["title"]
    'MIG instances on the memory slices of the board'
    """
    prepare.require(placements, ["layout", "profile", "start", "size"], where="plot_board")
    title = "MIG instances on the memory slices of the board"
    if placements.is_empty():
        return theme.saying("The board is not cut.", title=title)
    layouts = placements["layout"].unique(maintain_order=True).to_list()
    end = pl.col("start") + pl.col("size")
    rows = placements.select(
        "layout", "profile", "start", "size", end=end, mid=(pl.col("start") + end) / 2, label=_short_name()
    ).sort("layout", "start")
    x = alt.X(
        "start:Q",
        title="memory slice",
        scale=alt.Scale(domain=[0, memory_slices], nice=False),
        axis=alt.Axis(values=list(range(memory_slices + 1)), format="d", gridColor=theme.GREY),
    )
    y = alt.Y("layout:N", axis=None, sort=layouts, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5))
    data = alt.Chart(prepare.to_data(rows, where="plot_board"))
    boxes = data.mark_bar(fill=_FILL, stroke=theme.PALETTE[0], strokeWidth=1.5, cornerRadius=3).encode(
        x=x,
        x2="end:Q",
        y=y,
        tooltip=[
            alt.Tooltip("layout:N", title="layout"),
            alt.Tooltip("profile:N", title="profile"),
            alt.Tooltip("start:Q", title="first memory slice"),
            alt.Tooltip("size:Q", title="memory slices"),
        ],
    )
    names = data.mark_text(fontSize=11).encode(x=alt.X("mid:Q"), y=y, text="label:N")
    headings = (
        alt.Chart(pl.DataFrame({"layout": layouts}))
        .mark_text(align="left", dy=-21, fontWeight=600)
        .encode(x=alt.value(0), y=y, text="layout:N")
    )
    chart = alt.layer(boxes, names, headings).properties(width="container", height=52 * len(layouts))
    return theme.finish(chart, title=title, finding=f"Layouts: {'; '.join(layouts)}.")


def _short_name() -> pl.Expr:
    """Profile name, or only its compute part where the box is one slice wide."""
    compute = pl.col("profile").str.split(".").list.first()
    return pl.when(pl.col("size") > 1).then("profile").otherwise(compute)
