"""What jobs wait for, by class: the share of GPU-hours of each signature."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

COLOURS = {
    "compute": theme.PALETTE[0],
    "memory-bandwidth": theme.PALETTE[2],
    "interconnect": theme.PALETTE[3],
    "input": theme.PALETTE[1],
    "launch": theme.PALETTE[4],
    "mixed": theme.PALETTE[6],
    "idle": theme.MUTED,
    "cannot tell": theme.GREY,
}


def plot_signatures(frame: pl.DataFrame) -> ChartType:
    """One bar a class of jobs, parted by what the jobs' GPUs wait for.

    Parameters
    ----------
    frame : polars.DataFrame
        ``job_class, bound, jobs, gpu_hours, share, slice``, as :func:`gpuplanner.phases.signatures.signatures_by_class`
        makes it. Classes with most GPU-hours stand first.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"job_class": "tuning", "bound": ["compute", "idle"], "jobs": [3, 1],
    ...     "gpu_hours": [9.0, 1.0], "share": [0.9, 0.1], "slice": ["keep", "give back"]})
    >>> plot_signatures(frame).to_dict()["encoding"]["x"]["title"]
    'share of the GPU-hours sampled'
    """
    columns = ["job_class", "bound", "jobs", "gpu_hours", "share", "slice"]
    prepare.require(frame, columns, where="plot_signatures")
    title = "What the GPUs of each class of jobs wait for"
    if frame.is_empty():
        return theme.saying("No job was sampled.", title=title)
    hours = frame.group_by("job_class").agg(pl.col("gpu_hours").sum())
    order = hours.sort("gpu_hours", "job_class", descending=[True, False])["job_class"].to_list()
    bounds = [name for name in COLOURS if name in frame["bound"].unique()]
    ranks = {name: rank for rank, name in enumerate(bounds)}
    rows = (
        frame.select(columns)
        .with_columns(rank=pl.col("bound").replace_strict(ranks, default=len(ranks)))
        .sort("job_class", "rank", "bound")
    )
    bars = (
        alt.Chart(prepare.to_data(rows, where="plot_signatures"))
        .mark_bar()
        .encode(
            x=alt.X(
                "share:Q",
                title="share of the GPU-hours sampled",
                axis=alt.Axis(format=".0%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            y=alt.Y("job_class:N", title=None, sort=order),
            color=alt.Color("bound:N", title="bound by", scale=theme.scale(COLOURS, bounds)),
            order=alt.Order("rank:Q"),
            tooltip=[
                alt.Tooltip("job_class:N", title="class"),
                alt.Tooltip("bound:N", title="bound by"),
                alt.Tooltip("jobs:Q", title="jobs"),
                alt.Tooltip("gpu_hours:Q", title="GPU-hours", format=",.1f"),
                alt.Tooltip("share:Q", title="share", format=".0%"),
                alt.Tooltip("slice:N", title="slice"),
            ],
        )
    )
    chart: alt.Chart = bars.properties(width="container", height=theme.BAND_HEIGHT * len(order))
    return theme.finish(chart, title=title, names=prepare.label_width(order), legend=150, room=24)
