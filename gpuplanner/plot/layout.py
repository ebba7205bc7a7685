"""MIG layouts: on a board, and of the fleet over time."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.errors import SchemaError, message
from gpuplanner.plot import theme
from gpuplanner.plot.prepare import (
    chart_of,
    drawn,
    each,
    folded,
    in_order,
    ranked,
    tips,
    utc_axis,
    utc_text,
)

MAX_GPUS = 128
"""Rows of the calendar; larger fleets are shown as counts by :func:`plot_layout_counts`."""

TOP_LAYOUTS = 10
"""Layouts with a colour of their own; the others share grey."""

_PLACES = ("layout", "profile", "start", "size")
_PLAN = ("node", "gpu", "slot_start", "slot_end", "layout", "changed")


@drawn("MIG instances on the memory slices of the board", *_PLACES, empty="The board is not cut.")
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
    layouts = in_order(placements, "layout")
    end = pl.col("start") + pl.col("size")
    # Only the compute part of a name fits on a box that is one slice wide.
    compute = pl.col("profile").str.split(".").list.first()
    rows = placements.select(
        *_PLACES,
        end=end,
        mid=(pl.col("start") + end) / 2,
        label=pl.when(pl.col("size") > 1).then("profile").otherwise(compute),
    ).sort("layout", "start")
    x = alt.X(
        "start:Q",
        title="memory slice",
        scale=alt.Scale(domain=[0, memory_slices], nice=False),
        axis=alt.Axis(values=list(range(memory_slices + 1)), format="d", gridColor=theme.GREY),
    )
    y = alt.Y("layout:N", axis=None, sort=layouts, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.5))
    base = chart_of(rows).encode(y=y)
    hover = tips(layout="layout", profile="profile", start="first memory slice", size="memory slices")
    chart = alt.layer(
        base.mark_bar(fill=theme.TINT, stroke=theme.BLUE, strokeWidth=1.5, cornerRadius=3).encode(
            x=x, x2="end:Q", tooltip=hover
        ),
        base.mark_text(fontSize=11).encode(x=alt.X("mid:Q"), text="label:N"),
        chart_of(pl.DataFrame({"layout": layouts}))
        .mark_text(align="left", dy=-21, fontWeight=600)
        .encode(x=alt.value(0), y=y, text="layout:N"),
    )
    return theme.finish(chart, finding=f"Layouts: {'; '.join(layouts)}.", height=52 * len(layouts))


@drawn("MIG layout of each GPU over time", *_PLAN, empty="The plan has no rows.")
def plot_layout_calendar(layout_plan: pl.DataFrame) -> ChartType:
    """Layout of each numbered GPU over time, one row per GPU, with a mark where it is cut anew.

    Parameters
    ----------
    layout_plan : polars.DataFrame
        Table ``schemas.LayoutPlan``.

    Raises
    ------
    SchemaError
        If a column is missing, or there are more than :data:`MAX_GPUS` GPUs.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> day = [datetime(2026, 10, number, tzinfo=UTC) for number in (1, 2)]
    >>> row = {"node": "n1", "gpu": 0, "slot_start": day[0], "slot_end": day[1], "layout": "gpu"}
    >>> plot_layout_calendar(pl.DataFrame([row | {"changed": False}])).to_dict()["title"]
    'MIG layout of each GPU over time'
    """
    name = pl.format("{} · {}", "node", "gpu")
    hours = (pl.col("slot_end") - pl.col("slot_start")).dt.total_seconds() / 3600
    plan = layout_plan.sort("node", "gpu", "slot_start").select(*_PLAN, name=name, hours=hours)
    gpus = in_order(plan, "name")
    if len(gpus) > MAX_GPUS:
        text = message(
            "plot_layout_calendar",
            f"at most {MAX_GPUS} GPUs",
            f"{len(gpus)}",
            "Filter the plan to some nodes, or show the fleet with plot_layout_counts.",
        )
        raise SchemaError(text)
    names = folded(ranked(plan, "layout", "hours"), TOP_LAYOUTS)
    order = each(names)
    base = (
        chart_of(plan.with_columns(shown=pl.col("layout").replace_strict(names)))
        .transform_calculate(**utc_text(from_="slot_start", to="slot_end"), mark="'GPU cut anew'")
        .encode(
            x=utc_axis(plan, "slot_start", "slot_end"),
            y=alt.Y(
                "name:N", title="node · GPU", sort=gpus, axis=alt.Axis(labelFontSize=10, labelOverlap=False)
            ),
            tooltip=tips(node="node", gpu="GPU", layout="layout", from_="from (UTC)", to="to (UTC)"),
        )
    )
    colours = theme.scale(theme.layout_colours(order), order)
    bars = base.mark_bar().encode(x2="slot_end:T", color=alt.Color("shown:N", title="layout", scale=colours))
    shape = alt.Shape(
        "mark:N", legend=alt.Legend(title=None, orient="bottom"), scale=alt.Scale(range=["triangle-right"])
    )
    cuts = (
        base.transform_filter("datum.changed")
        .mark_point(filled=True, size=34, color=theme.INK, stroke="white", strokeWidth=0.8, opacity=1)
        .encode(shape=shape)
    )
    # Vega lays out the legend of an empty layer without end.
    layers = [bars, cuts] if plan["changed"].any() else [bars]
    return theme.finish(
        alt.layer(*layers),
        finding=f"{len(gpus)} GPUs, cut anew {plan['changed'].sum()} times. Most time: {order[0]}.",
        height=(14 if len(gpus) <= 64 else 12) * len(gpus),
        legend=270,
        names=theme.label_width(gpus),
    )


@drawn("GPUs with each MIG layout over time", "slot_start", "layout", "gpus", empty="No GPU has a layout.")
def plot_layout_counts(counts: pl.DataFrame) -> ChartType:
    """GPUs with each layout over time, as stacked steps; it costs the same for any number of GPUs.

    Parameters
    ----------
    counts : polars.DataFrame
        ``slot_start, layout, gpus``: one row per slot and layout, slots of one length; a layout that a slot
        does not have may be left out.

    Raises
    ------
    SchemaError
        If a column is missing, or the layouts change too often for one chart.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> slots = [datetime(2026, 10, 1, hour, tzinfo=UTC) for hour in (0, 1)]
    >>> counts = pl.DataFrame({"slot_start": slots, "layout": ["gpu", "gpu"], "gpus": [2, 3]})
    >>> plot_layout_counts(counts).to_dict()["encoding"]["y"]["title"]
    'GPUs'
    """
    held = counts.filter(pl.col("gpus") > 0)
    if held.is_empty():
        return theme.saying("No GPU has a layout.")
    names = folded(ranked(held, "layout", "gpus"), TOP_LAYOUTS)
    order = each(names)
    rows = _merged(counts, held.with_columns(shown=pl.col("layout").replace_strict(names)), order)
    colours = theme.scale(theme.layout_colours(order), order)
    chart: alt.Chart = (
        chart_of(rows)
        .mark_bar(orient="vertical", binSpacing=0, strokeWidth=0.7)
        .transform_calculate(**utc_text(from_="start", to="end"))
        .encode(
            x=utc_axis(rows, "start", "end"),
            x2="end:T",
            y=alt.Y("gpus:Q", title="GPUs", stack="zero"),
            # Without a stroke of the same colour, thin white seams show between neighbours.
            fill=alt.Fill("shown:N", title="layout", scale=colours),
            stroke=alt.Stroke("shown:N", title="layout", scale=colours),
            order=alt.Order("order:Q"),
            tooltip=tips(shown="layout", gpus="GPUs", from_="from (UTC)", to="to (UTC)"),
        )
    )
    return theme.finish(chart, height=280, legend=270)


def _merged(counts: pl.DataFrame, held: pl.DataFrame, order: Sequence[str]) -> pl.DataFrame:
    """Runs of slots with the same counts, as ``start, end, shown, gpus, order``."""
    slots = counts.select("slot_start").unique().sort("slot_start")
    length = slots["slot_start"].diff().min() or pl.duration(hours=1)
    wide = (
        slots.join(
            held.group_by("slot_start", "shown").agg(pl.col("gpus").sum()), on="slot_start", how="left"
        )
        .pivot(on="shown", on_columns=[*order], index="slot_start", values="gpus")
        .sort("slot_start")
        .fill_null(0)
    )
    new_run = pl.any_horizontal(pl.col(name) != pl.col(name).shift() for name in order).fill_null(True)
    runs = (
        wide.with_columns(run=new_run.cum_sum())
        .group_by("run", maintain_order=True)
        .agg(
            pl.col(*order).first(),
            start=pl.col("slot_start").first(),
            end=pl.col("slot_start").last() + length,
        )
    )
    return (
        runs.unpivot(on=order, index=["start", "end"], variable_name="shown", value_name="gpus")
        .filter(pl.col("gpus") > 0)
        .with_columns(order=pl.col("shown").replace_strict({name: rank for rank, name in enumerate(order)}))
        .sort("start", "order")
    )
