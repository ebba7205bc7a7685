"""What will be wanted in two parts, what planning at each quantile costs, and when the fleet runs out."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

RUNNING, COMING = "still running", "to come"


def plot_fan(frame: pl.DataFrame) -> ChartType:
    """GPUs expected, what runs already below what is to come, with the band of their sum.

    Parameters
    ----------
    frame : polars.DataFrame
        ``ds, still_running, to_come, q05, q50, q95``, one row a slot.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(frame, ["ds", "still_running", "to_come", "q05", "q50", "q95"], where="plot_fan")
    title = "GPUs expected: still running and to come"
    if frame.is_empty():
        return theme.saying("There is no slot to forecast.", title=title)
    names = {"still_running": RUNNING, "to_come": COMING}
    parts = frame.unpivot(list(names), index="ds", variable_name="part", value_name="gpus").with_columns(
        pl.col("part").replace(names)
    )
    colours = {RUNNING: theme.PALETTE[0], COMING: theme.GREY}
    start, end = frame["ds"].min(), frame["ds"].max()
    x = prepare.utc_axis("ds", prepare.span(start, end))  # type: ignore[arg-type]
    at = prepare.utc_text(at="ds")
    areas = (
        alt.Chart(prepare.to_data(parts, where="plot_fan"))
        .transform_calculate(**at)
        .mark_area(opacity=0.75)
        .encode(
            x=x,
            y=alt.Y("gpus:Q", title="GPUs, mean", stack="zero"),
            color=alt.Color("part:N", title=None, scale=theme.scale(colours, [RUNNING, COMING])),
            order=alt.Order("part:N"),
            tooltip=[
                alt.Tooltip("at:N", title="UTC"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("gpus:Q", title="GPUs", format=",.1f"),
            ],
        )
    )
    total = alt.Chart(prepare.to_data(frame, where="plot_fan")).transform_calculate(**at)
    hover = [
        alt.Tooltip("at:N", title="UTC"),
        *(alt.Tooltip(f"{name}:Q", title=name, format=",.1f") for name in ("q05", "q50", "q95")),
    ]
    lines = [
        total.mark_line(color=theme.INK, strokeDash=dash, strokeWidth=1.4).encode(
            x=x, y=f"{name}:Q", tooltip=hover
        )
        for name, dash in (("q05", [2, 3]), ("q50", [1, 0]), ("q95", [2, 3]))
    ]
    chart = alt.layer(areas, *lines).properties(width="container", height=240)
    return theme.described(
        theme.finish(chart, title=title, legend=110), "Lines: the 5 %, 50 % and 95 % quantile of the sum."
    )


def plot_cost_curve(frame: pl.DataFrame) -> ChartType:
    """What planning at each quantile costs; the mark is the cheapest.

    Parameters
    ----------
    frame : polars.DataFrame
        ``quantile, planned, short, cost``.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    columns = ["quantile", "planned", "short", "cost"]
    prepare.require(frame, columns, where="plot_cost_curve")
    title = "Cost of planning at a quantile"
    if frame.is_empty():
        return theme.saying("There is no quantile to plan at.", title=title)
    base = alt.Chart(prepare.to_data(frame.select(columns).sort("quantile"), where="plot_cost_curve"))
    encoded = base.encode(
        x=alt.X("quantile:Q", title="quantile planned at", axis=alt.Axis(format="%")),
        y=alt.Y("cost:Q", title="cost, in GPU-hours an hour", scale=alt.Scale(zero=False)),
        tooltip=[
            alt.Tooltip("quantile:Q", format=".1%"),
            *(alt.Tooltip(f"{name}:Q", format=",.1f") for name in columns[1:]),
        ],
    )
    least = encoded.transform_window(place="rank()", sort=[alt.SortField("cost")]).transform_filter(
        "datum.place == 1"
    )
    chart = alt.layer(
        encoded.mark_line(color=theme.PALETTE[0], strokeWidth=1.8),
        least.mark_point(color=theme.PALETTE[5], size=110, filled=True),
    ).properties(width="container", height=200)
    cheapest = frame.sort("cost").row(0, named=True)
    return theme.described(theme.finish(chart, title=title), f"Cheapest at {cheapest['quantile']:.0%}.")


def plot_run_out(frame: pl.DataFrame) -> ChartType:
    """Probability that the fleet has run out by each week.

    Parameters
    ----------
    frame : polars.DataFrame
        ``week, over, run_out_by, q50``.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(frame, ["week", "over", "run_out_by", "q50"], where="plot_run_out")
    title = "Probability that demand has passed what there is"
    if frame.is_empty():
        return theme.saying("There is no week ahead.", title=title)
    names = {"run_out_by": "by then", "over": "in that week"}
    rows = frame.unpivot(list(names), index=["week", "q50"], variable_name="when", value_name="share")
    rows = rows.with_columns(pl.col("when").replace(names))
    colours = {"by then": theme.PALETTE[5], "in that week": theme.MUTED}
    chart = (
        alt.Chart(prepare.to_data(rows, where="plot_run_out"))
        .mark_line(point=True, strokeWidth=1.6)
        .encode(
            x=alt.X("week:Q", title="weeks ahead"),
            y=alt.Y(
                "share:Q", title="probability", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("when:N", title=None, scale=theme.scale(colours, list(colours))),
            tooltip=[
                alt.Tooltip("week:Q"),
                alt.Tooltip("when:N"),
                alt.Tooltip("share:Q", title="probability", format=".1%"),
                alt.Tooltip("q50:Q", title="median peak [GPUs]", format=",.0f"),
            ],
        )
        .properties(width="container", height=200)
    )
    last = frame.row(-1, named=True)
    return theme.described(
        theme.finish(chart, title=title, legend=110), f"{last['run_out_by']:.0%} within {last['week']} weeks."
    )
