"""What plans cost, and what none can undercut."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

ABOVE = "above the bound"


def plot_bounds(frame: pl.DataFrame) -> ChartType:
    """Cost of each plan as a bar, with the proven bound of all plans as a rule, and the gap between them.

    Parameters
    ----------
    frame : polars.DataFrame
        ``method, objective, bound, gap``, one row per plan, as ``compare_plans`` makes it: costs in
        GPU-hours, the gap as a share of the cost. A plan that was not found has no objective and no bar;
        without a bound there is no rule.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame(
    ...     {"method": ["static", "auto"], "objective": [120.0, 100.0], "bound": 99.0, "gap": [0.175, 0.01]}
    ... )
    >>> plot_bounds(frame).to_dict()["title"]
    'Cost of each plan, and what no plan undercuts'
    """
    columns = ["method", "objective", "bound", "gap"]
    prepare.require(frame, columns, where="plot_bounds")
    title = "Cost of each plan, and what no plan undercuts"
    rows = frame.select(columns).filter(pl.col("objective").is_not_null())
    if rows.is_empty():
        return theme.saying("No plan was found.", title=title)
    order = rows["method"].to_list()
    colours = {_proven(frame): theme.MUTED, ABOVE: theme.PALETTE[1]}
    parts = _parts(rows, _proven(frame))
    shown = [part for part in colours if part in parts["part"]]
    data = alt.Chart(prepare.to_data(parts, where="plot_bounds"))
    y = alt.Y("method:N", title=None, sort=order)
    hover = [
        alt.Tooltip("method:N", title="plan"),
        alt.Tooltip("objective:Q", title="cost [GPU h]", format=",.1f"),
        alt.Tooltip("bound:Q", title="no plan costs less than [GPU h]", format=",.1f"),
        alt.Tooltip("gap:Q", title="gap", format=".2%"),
    ]
    bars = data.mark_bar().encode(
        x=alt.X("start:Q", title="cost [GPU h]"),
        x2="end:Q",
        y=y,
        color=alt.Color("part:N", title=None, scale=theme.scale(colours, shown)),
        tooltip=hover,
    )
    ends = data.transform_filter("datum.end === datum.objective")
    labels = ends.mark_text(align="left", dx=6).encode(x=alt.X("end:Q"), y=y, text="label:N")
    layers = [bars, labels]
    if rows["bound"].is_not_null().any():
        rule = alt.Chart(prepare.to_data(rows.select(pl.col("bound").max()), where="plot_bounds"))
        layers.insert(1, rule.mark_rule(color=theme.INK, size=2).encode(x=alt.X("bound:Q")))
    chart = alt.layer(*layers).properties(width="container", height=32 * len(order))
    cheapest = rows.sort("objective", maintain_order=True).row(0, named=True)
    finding = f"Cheapest: {cheapest['method']}, {cheapest['objective']:,.0f} GPU-hours; {_proven(frame)}."
    return theme.finish(
        chart, title=title, finding=finding, legend=190, names=prepare.label_width(order), room=40
    )


def _proven(frame: pl.DataFrame) -> str:
    """Name of what every plan costs at least."""
    bounds = frame["bound"].drop_nulls().to_list()
    return f"no plan costs less: {max(bounds):,.0f}" if bounds else "cost"


def _parts(rows: pl.DataFrame, proven: str) -> pl.DataFrame:
    """Each bar in two: up to the bound, and beyond."""
    share = pl.format(", gap {} %", (100 * pl.col("gap")).round(1))
    cost = pl.col("objective").map_elements(lambda value: format(value, ",.0f"), return_dtype=pl.String)
    turn = pl.min_horizontal("bound", "objective")
    named = rows.with_columns(label=cost + share.fill_null(""), rank=pl.int_range(pl.len()))
    low = named.with_columns(part=pl.lit(proven), start=pl.lit(0.0), end=turn)
    high = named.filter(turn < pl.col("objective")).with_columns(
        part=pl.lit(ABOVE), start=turn, end="objective"
    )
    return pl.concat([low, high], how="diagonal_relaxed").sort("rank", "start").drop("rank")
