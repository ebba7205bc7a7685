"""What became of the GPU-time that was held: what was seen of it, and how the attempts ended."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

SEEN = {
    "used": ("used", "#0072b2"),
    "idle_with_process": ("idle, with a process", "#e69f00"),
    "idle_without_process": ("idle, no process", "#d55e00"),
    "idle_unclear": ("idle, process not known", "#cc79a7"),
    "unobserved": ("not observed", "#c4cbd2"),
}
"""Name and colour of each part of held time, in the order in which they stand."""
_FATE = {"not lost": "#0072b2", "may have to be spent again": "#d55e00"}


def plot_held_activity(held: pl.DataFrame, *, top: int = 12) -> ChartType:
    """GPU-hours that each tenant held, by what was seen of them; tenants beyond `top` are added up.

    Parameters
    ----------
    held : polars.DataFrame
        ``tenant`` and the GPU-hours of each part of :data:`SEEN`, from :func:`gpuplanner.ledger.held_by_activity`.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(held, ["tenant", *SEEN], where="plot_held_activity")
    title = "Held GPU-hours by tenant, and what was seen of them"
    total = pl.sum_horizontal(*SEEN)
    ranked = held.filter(total > 0).sort(total, "tenant", descending=[True, False])["tenant"].to_list()
    if not ranked:
        return theme.saying("No tenant held a GPU.", title=title)
    names = prepare.folded(ranked, top)
    words = {part: word for part, (word, _) in SEEN.items()}
    rows = (
        held.filter(pl.col("tenant").is_in(ranked))
        .unpivot(index="tenant", on=list(SEEN), variable_name="part", value_name="gpu_hours")
        .group_by(name=pl.col("tenant").replace_strict(names), part=pl.col("part").replace_strict(words))
        .agg(pl.col("gpu_hours").sum())
    )
    order = list(dict.fromkeys(names.values()))
    chart = _bars(rows, order, dict(SEEN.values()), row="tenant", part="seen as")
    return theme.finish(chart, title=title, legend=165, names=prepare.label_width(order))


def plot_held_states(ended: pl.DataFrame) -> ChartType:
    """GPU-hours held by attempts, by how they ended; those that may have to be spent again stand out.

    Parameters
    ----------
    ended : polars.DataFrame
        ``state, lost, gpu_hours``, from :func:`gpuplanner.ledger.held_by_state`; rows of one state are added up.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(ended, ["state", "lost", "gpu_hours"], where="plot_held_states")
    title = "Held GPU-hours by how attempts ended"
    if ended.is_empty():
        return theme.saying("No attempt held a GPU.", title=title)
    kept, again = _FATE
    rows = (
        ended.group_by(name="state", part=pl.when("lost").then(pl.lit(again)).otherwise(pl.lit(kept)))
        .agg(pl.col("gpu_hours").sum())
        .sort("gpu_hours", "name", descending=[True, False])
    )
    order = rows["name"].unique(maintain_order=True).to_list()
    chart = _bars(rows, order, _FATE, row="ended", part="time")
    return theme.finish(chart, title=title, legend=190, names=prepare.label_width(order))


def _bars(rows: pl.DataFrame, order: list[str], colours: dict[str, str], *, row: str, part: str) -> alt.Chart:
    there = rows.filter(pl.col("gpu_hours") > 0)["part"].unique()
    shown = [name for name in colours if name in there]
    ranks = {name: rank for rank, name in enumerate(colours)}
    parted = (
        rows.filter(pl.col("gpu_hours") > 0)
        .with_columns(
            order=pl.col("part").replace_strict(ranks, return_dtype=pl.Int64),
            share=pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("name"),
        )
        .sort("name", "order")
    )
    chart: alt.Chart = (
        alt.Chart(prepare.to_data(parted, where="chart of held time"), width="container")
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=alt.X("gpu_hours:Q", title="GPU-hours", stack="zero"),
            y=alt.Y("name:N", title=None, sort=order),
            color=alt.Color("part:N", title=None, scale=theme.scale(colours, shown)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("name:N", title=row),
                alt.Tooltip("part:N", title=part),
                alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
                alt.Tooltip("share:Q", title="share of the bar", format=".1%"),
            ],
        )
        .properties(height=theme.BAND_HEIGHT * len(order))
    )
    return chart
