"""Queue waits against the number of GPUs."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, heading, in_order, tips
from gpuplanner.units import wait_text

_COLUMNS = ("layout", "gpus", "job_size", "p95_minutes", "low", "high")
_TICKS = [0, 1, 10, 60, 600, 6000]
_WAIT_CHART_HEIGHT = 130
MOST_PANELS = 4
"""Job sizes that are drawn, those that wait longest."""


@drawn("Queue wait against number of GPUs", *_COLUMNS, empty="The record carries no wait curve.")
def plot_wait_curve(frame: pl.DataFrame, *, today: int, recommended: int, limits: pl.DataFrame) -> ChartType:
    """One panel per job size: p95 queue wait of today's layout, and bold with its interval that of the recommendation.

    A ring marks today's number of GPUs, a dot the recommended one, a dashed line the limit.

    Parameters
    ----------
    frame : polars.DataFrame
        ``layout, gpus, job_size, p95_minutes, low, high``; the layout ``"today"`` or ``"recommended"``.
    today, recommended : int
        GPUs today, and under the recommendation.
    limits : polars.DataFrame
        ``job_size, limit_minutes``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> rows = pl.DataFrame({"layout": "today", "gpus": [8, 16], "job_size": "1 GPU", "p95_minutes": [90.0, 2.0],
    ...     "low": [60.0, 0.0], "high": [120.0, 5.0]})
    >>> limits = pl.DataFrame({"job_size": ["1 GPU"], "limit_minutes": [30.0]})
    >>> len(plot_wait_curve(rows, today=8, recommended=16, limits=limits).to_dict()["concat"])
    1
    """
    bold = "recommended" if "recommended" in frame["layout"] else "today"
    y_scale = alt.Scale(type="symlog", constant=1, nice=False)
    x = alt.X("gpus:Q", title="GPUs", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=5))
    axis = alt.Axis(
        values=_TICKS, labelExpr="datum.value >= 120 ? datum.value / 60 + ' h' : datum.value + ' min'"
    )
    y = alt.Y("p95_minutes:Q", title="p95 queue wait", scale=y_scale, axis=axis)
    hover = tips(
        layout="layout",
        gpus="GPUs",
        p95_minutes=("p95 [min]", ",.1f"),
        low=("from", ",.1f"),
        high=("to", ",.1f"),
    )

    def panel(size: str) -> ChartType:
        mine = frame.filter(job_size=size)
        drawn_bold = mine.filter(layout=bold)
        layers: list[ChartType] = [
            chart_of(drawn_bold)
            .mark_area(opacity=0.16, color=theme.BLUE)
            .encode(x=x, y=alt.Y("low:Q", scale=y_scale, axis=axis, title="p95 queue wait"), y2="high:Q"),
            chart_of(limits.filter(job_size=size))
            .mark_rule(color=theme.INK, strokeDash=[4, 3])
            .encode(y=alt.Y("limit_minutes:Q", scale=y_scale)),
        ]
        if bold != "today":
            thin = chart_of(mine.filter(layout="today")).mark_line(color=theme.QUIET, size=1.5)
            layers.append(thin.encode(x=x, y=y, tooltip=hover))
        layers.append(
            chart_of(drawn_bold).mark_line(color=theme.BLUE, size=2.5).encode(x=x, y=y, tooltip=hover)
        )
        ring = chart_of(mine.filter(layout="today", gpus=today)).mark_point(
            color=theme.INK, size=80, strokeWidth=2
        )
        dot = chart_of(drawn_bold.filter(gpus=recommended)).mark_point(
            color=theme.BLUE, size=90, filled=True, opacity=1
        )
        layers += [one.encode(x=x, y=y, tooltip=hover) for one in (ring, dot)]
        return alt.layer(*layers).properties(height=_WAIT_CHART_HEIGHT, title=heading(size))

    sizes = in_order(frame, "job_size")
    waits = {size: float(frame.filter(job_size=size)["p95_minutes"].max() or 0.0) for size in sizes}  # type: ignore[arg-type]
    longest = sorted(sizes, key=lambda size: -waits[size])[:MOST_PANELS]
    chart = alt.concat(*[panel(size) for size in sizes if size in longest], columns=2)
    finding = wait_curve_text(frame, today=today, recommended=recommended)
    return theme.finish(chart, finding=finding, panels={"columns": 2, "minimum": 250, "margin": 24})


def wait_curve_text(frame: pl.DataFrame, *, today: int, recommended: int) -> str:
    """What the curve says of the size that waits longest.

    Examples
    --------
    >>> rows = pl.DataFrame({"layout": "today", "gpus": [8, 16], "job_size": "1 GPU", "p95_minutes": [90.0, 2.0]})
    >>> wait_curve_text(rows, today=8, recommended=16)
    'Jobs on 1 GPU wait 90 min (p95) on 8 GPUs today, and 2 min on 16 as recommended.'
    """
    now = frame.filter(layout="today", gpus=today).sort("p95_minutes", descending=True)
    bold = "recommended" if "recommended" in frame["layout"] else "today"
    if now.is_empty():
        return ""
    size = now["job_size"][0]
    text = f"Jobs on {size} wait {wait_text(now['p95_minutes'][0])} (p95) on {today:,} GPUs today"
    then = frame.filter(layout=bold, gpus=recommended, job_size=size)
    if then.is_empty() or (bold == "today" and today == recommended):
        return f"{text}."
    return f"{text}, and {wait_text(then['p95_minutes'][0])} on {recommended:,} as recommended."
