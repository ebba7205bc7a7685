"""MIG layouts of the fleet over time."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.errors import SchemaError, message
from gpuplanner.plot import prepare, theme

MAX_GPUS = 128
"""Rows of the calendar; larger fleets are shown as counts by :func:`plot_layout_counts`."""

TOP_LAYOUTS = 10
"""Layouts with a colour of their own; the others share grey."""


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
    columns = ["node", "gpu", "slot_start", "slot_end", "layout", "changed"]
    prepare.require(layout_plan, columns, where="plot_layout_calendar")
    title = "MIG layout of each GPU over time"
    if layout_plan.is_empty():
        return theme.saying("The plan has no rows.", title=title)
    plan = layout_plan.select(columns).sort("node", "gpu", "slot_start")
    names = pl.format("{} · {}", "node", "gpu")
    gpus = plan.select(names.alias("name")).unique(maintain_order=True)["name"].to_list()
    if len(gpus) > MAX_GPUS:
        text = message(
            "plot_layout_calendar",
            f"at most {MAX_GPUS} GPUs",
            f"{len(gpus)}",
            "Filter the plan to some nodes, or show the fleet with plot_layout_counts.",
        )
        raise SchemaError(text)
    hours = (pl.col("slot_end") - pl.col("slot_start")).dt.total_seconds() / 3600
    plan = plan.with_columns(name=names, hours=hours)
    ranked = _ranked(plan.group_by("layout").agg(pl.col("hours").sum()), "hours")
    rows = plan.with_columns(shown=pl.col("layout").replace_strict(ranked))
    return _calendar(
        prepare.to_data(rows, where="plot_layout_calendar"), plan, gpus, _order(ranked), title=title
    )


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
    prepare.require(counts, ["slot_start", "layout", "gpus"], where="plot_layout_counts")
    title = "GPUs with each MIG layout over time"
    held = counts.filter(pl.col("gpus") > 0)
    if held.is_empty():
        return theme.saying("No GPU has a layout.", title=title)
    ranked = _ranked(held.group_by("layout").agg(pl.col("gpus").sum()), "gpus")
    order = _order(ranked)
    rows = _merged(counts, held.with_columns(shown=pl.col("layout").replace_strict(ranked)), order)
    first, last = rows["start"].min(), rows["end"].max()
    colours = theme.scale(theme.layout_colours(order), order)
    chart: alt.Chart = (
        alt.Chart(prepare.to_data(rows, where="plot_layout_counts"), width="container", height=280)
        .mark_bar(orient="vertical", binSpacing=0, strokeWidth=0.7)
        .transform_calculate(**prepare.utc_text(from_="start", to="end"))
        .encode(
            x=prepare.utc_axis("start", prepare.span(first, last)),  # type: ignore[arg-type]
            x2="end:T",
            y=alt.Y("gpus:Q", title="GPUs", stack="zero"),
            # Without a stroke of the same colour, thin white seams show between neighbours.
            fill=alt.Fill("shown:N", title="layout", scale=colours),
            stroke=alt.Stroke("shown:N", title="layout", scale=colours),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("shown:N", title="layout"),
                alt.Tooltip("gpus:Q", title="GPUs"),
                alt.Tooltip("from_:N", title="from (UTC)"),
                alt.Tooltip("to:N", title="to (UTC)"),
            ],
        )
    )
    return theme.finish(chart, title=title, legend=270)


def _calendar(
    rows: pl.DataFrame, plan: pl.DataFrame, gpus: Sequence[str], order: Sequence[str], *, title: str
) -> ChartType:
    first, last = plan["slot_start"].min(), plan["slot_end"].max()
    x = prepare.utc_axis("slot_start", prepare.span(first, last))  # type: ignore[arg-type]
    y = alt.Y(
        "name:N", title="node · GPU", sort=list(gpus), axis=alt.Axis(labelFontSize=10, labelOverlap=False)
    )
    data = alt.Chart(rows).transform_calculate(
        **prepare.utc_text(from_="slot_start", to="slot_end"), mark="'GPU cut anew'"
    )
    hover = [
        alt.Tooltip("node:N", title="node"),
        alt.Tooltip("gpu:Q", title="GPU"),
        alt.Tooltip("layout:N", title="layout"),
        alt.Tooltip("from_:N", title="from (UTC)"),
        alt.Tooltip("to:N", title="to (UTC)"),
    ]
    bars = data.mark_bar().encode(
        x=x,
        x2="slot_end:T",
        y=y,
        color=alt.Color("shown:N", title="layout", scale=theme.scale(theme.layout_colours(order), order)),
        tooltip=hover,
    )
    cuts = (
        data.transform_filter("datum.changed")
        .mark_point(filled=True, size=34, color=theme.INK, stroke="white", strokeWidth=0.8, opacity=1)
        .encode(
            x=x,
            y=y,
            shape=alt.Shape(
                "mark:N",
                legend=alt.Legend(title=None, orient="bottom"),
                scale=alt.Scale(range=["triangle-right"]),
            ),
            tooltip=hover,
        )
    )
    step = 14 if len(gpus) <= 64 else 12
    # Vega lays out the legend of an empty layer without end.
    layers = [bars, cuts] if plan["changed"].any() else [bars]
    chart = alt.layer(*layers).properties(width="container", height=step * len(gpus))
    finding = f"{len(gpus)} GPUs, cut anew {plan['changed'].sum()} times. Most time: {order[0]}."
    return theme.finish(chart, title=title, finding=finding, legend=270, names=prepare.label_width(gpus))


def _ranked(weights: pl.DataFrame, weight: str) -> dict[str, str]:
    """Layouts by weight, the rare ones folded into one name."""
    ranked = weights.sort(weight, "layout", descending=[True, False])["layout"].to_list()
    return prepare.folded(ranked, TOP_LAYOUTS)


def _order(ranked: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(ranked.values()))


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
