"""Charts of single jobs, phases and slice sizes."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    chart_of,
    drawn,
    in_order,
    ranked,
    require,
    stacked,
    tips,
    utc_axis,
    utc_text,
)

_MEASURES = (
    ("sm_activity", "SM activity [0-1]"),
    ("memory_used_gib", "memory used [GiB]"),
    ("power_w", "power [W]"),
)
_POINTS = 400
_SPIKE_COLOURS = (theme.VERMILION, theme.PURPLE, theme.BROWN, theme.INK)
_APART = alt.Legend(symbolOffset=28)  # from the legend of the phases, which may end close before it
_WIDE = 0.12  # share of the time that a phase needs to carry its name
_BOUNDS = {
    "compute": theme.BLUE, "memory-bandwidth": theme.GREEN, "interconnect": theme.PINK, "input": theme.ORANGE,
    "launch": theme.SKY, "mixed": theme.YELLOW, "idle": theme.MUTED, "unclear": theme.GREY,
}  # fmt: skip
_CLASSES = ("job_class", "bound", "jobs", "gpu_hours", "share", "slice")


@drawn("SM activity, memory and power of the job, per GPU", "time", empty="The job has no samples.")
def plot_phases(
    samples: pl.DataFrame, phases: pl.DataFrame | None = None, spikes: pl.DataFrame | None = None
) -> ChartType:
    """SM activity, memory and power of one job's GPUs over time, with its phases behind them.

    Values are means over the job's GPUs. A long job is cut into at most 400 equal bins: the line is the mean
    of a bin, the band its least and greatest value, so that short spikes stay visible.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job: ``time`` and any of ``sm_activity, memory_used_gib, power_w``.
    phases : polars.DataFrame, optional
        ``start, end, label``: one row per phase.
    spikes : polars.DataFrame, optional
        ``time``, and optionally ``label`` and ``evidence``: one row per spike; marked above the first panel, in a
        colour for each label.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    measures = [(name, label) for name, label in _MEASURES if name in samples.columns and samples[name].count()]
    if not measures:
        return theme.saying("The job has no samples.")
    rows = chart_of(_binned(samples, [name for name, _ in measures])).transform_calculate(**utc_text(at="time"))
    bands, names = _bands(phases)
    x = utc_axis(samples, "time")

    def panel(name: str, label: str, rank: int) -> ChartType:
        hover = tips(at="UTC", **{name: (label, ".3~r"), f"{name}_high": ("greatest", ".3~r")})
        area = rows.mark_area(opacity=0.25, color=theme.BLUE).encode(
            x=x, y=alt.Y(f"{name}_low:Q", title=label), y2=f"{name}_high:Q"
        )
        line = rows.mark_line(color=theme.BLUE, strokeWidth=1.4).encode(
            x=x, y=alt.Y(f"{name}:Q", title=label), tooltip=hover
        )
        above = [*names, *_spikes(spikes)] if rank == 0 else []
        return alt.layer(*bands, area, line, *above).properties(height=130)

    parts = [panel(name, label, rank) for rank, (name, label) in enumerate(measures)]
    panels = {"columns": 1, "minimum": 1, "margin": 32}
    return theme.finish(alt.concat(*parts, columns=1), legend=190, names=40, panels=panels)


@drawn("What the GPUs of each class of jobs wait for", *_CLASSES, empty="No job was sampled.")
def plot_signatures(frame: pl.DataFrame) -> ChartType:
    """One bar a class of jobs, parted by what the jobs' GPUs wait for.

    Parameters
    ----------
    frame : polars.DataFrame
        ``job_class, bound, jobs, gpu_hours, share, slice``, as :func:`gpuplanner.usage.bottlenecks.signatures_by_class`
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
    order = ranked(frame, "job_class", "gpu_hours")
    scale = alt.Scale(domain=[0, 1])
    share = alt.X("share:Q", title="share of the GPU-hours sampled", axis=alt.Axis(format=".0%"), scale=scale)
    hover = tips(
        job_class="class",
        bound="bound by",
        jobs="jobs",
        gpu_hours=("GPU-hours", ",.1f"),
        share=("share", ".0%"),
        slice="slice",
    )
    rows, legend = frame.select(_CLASSES), alt.Legend(title="bound by")
    chart = stacked(rows, share, y="job_class", order=order, part="bound", colours=_BOUNDS, hover=hover, legend=legend)
    return theme.finish(chart, bands=order, legend=150, room=24)


def _binned(samples: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Means over GPUs, then mean, least and greatest of each time bin."""
    moments = samples.group_by("time").agg(pl.col(names).mean()).sort("time")
    seconds = (moments["time"].max() - moments["time"].min()).total_seconds()  # type: ignore[operator, union-attr]
    width, values = max(1, int(-(-seconds // _POINTS))), pl.col(names)
    return (
        moments.group_by(pl.col("time").dt.truncate(f"{width}s"))
        .agg(values.mean(), values.min().name.suffix("_low"), values.max().name.suffix("_high"))
        .sort("time")
    )


def _bands(phases: pl.DataFrame | None) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Coloured bands, and the names of those wide enough to carry one."""
    if phases is None or phases.is_empty():
        return [], []
    require(phases, ["start", "end", "label"], where="plot_phases: phases")
    labels = in_order(phases.sort("start"), "label")
    colours = dict(zip(labels, theme.PALETTE[1:], strict=False))
    band = (
        chart_of(phases.select("start", "end", "label").sort("start"))
        .mark_rect(opacity=0.22)
        .transform_calculate(**utc_text(from_="start", to="end"))
        .encode(
            x=alt.X("start:T"),
            x2="end:T",
            fill=alt.Fill("label:N", title="phase", scale=theme.scale(colours, labels)),
            tooltip=tips(label="phase", from_="from (UTC)", to="to (UTC)"),
        )
    )
    length = pl.col("end") - pl.col("start")
    whole = (pl.col("end").max() - pl.col("start").min()).dt.total_seconds()
    wide = phases.filter(length.dt.total_seconds() >= _WIDE * whole).select("label", mid=pl.col("start") + length / 2)
    name = (
        chart_of(wide.sort("mid"))
        .mark_text(baseline="bottom", fontSize=11, color=theme.MUTED)
        .encode(x=alt.X("mid:T"), y=alt.value(-4), text="label:N")
    )
    return [band], [name]


def _spikes(spikes: pl.DataFrame | None) -> list[alt.Chart]:
    if spikes is None or spikes.is_empty():
        return []
    require(spikes, ["time"], where="plot_phases: spikes")
    told = {"label": "looks like", "evidence": "evidence"}
    words = {name: word for name, word in told.items() if name in spikes.columns}
    marked = spikes.select("time", *words)
    if "label" not in words:
        marked = marked.with_columns(label=pl.lit("spike"))
    labels = marked["label"].unique().sort().to_list()
    colours = theme.scale(dict(zip(labels, _SPIKE_COLOURS, strict=False)), labels)
    marks = (
        chart_of(marked.sort("time", "label"))
        .mark_point(filled=True, size=40, opacity=1, shape="triangle-down")
        .transform_calculate(**utc_text(at="time"))
        .encode(
            x=alt.X("time:T"),
            y=alt.value(4),
            color=alt.Color("label:N", title="dip", legend=_APART, scale=colours),
            tooltip=tips(at="dip (UTC)", **words),
        )
    )
    return [marks]


_STACK = ("plan", "component", "gib", "predicted_gib", "upper_gib", "gpu_gib")


@drawn(
    "Peak memory of a GPU: components, p95 upper bound (tick), memory of the GPU (bar)",
    *_STACK,
    empty="No plan was explained.",
)
def plot_memory_stack(frame: pl.DataFrame) -> ChartType:
    """Components of the peak of each plan, with the expected peak, its upper bound, and the memory of the GPU.

    Parameters
    ----------
    frame : polars.DataFrame
        ``plan``, ``component``, ``gib``, ``predicted_gib``, ``upper_gib``, ``gpu_gib``; plans and components stand in
        the order of their first rows.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"plan": ["1"], "component": ["states"], "gib": [10.0], "predicted_gib": [10.0],
    ...     "upper_gib": [12.0], "gpu_gib": [16.0]})
    >>> len(plot_memory_stack(frame).to_dict()["layer"])
    3
    """
    parts, plans = in_order(frame, "component"), in_order(frame, "plan")
    rows, x = frame.select(_STACK), alt.X("gib:Q", title="GiB")
    colours = theme.numbered(parts)
    hover = tips(component="component", gib=("gib", ".2f"))
    bars = stacked(rows, x, y="plan", order=plans, part="component", colours=colours, hover=hover)
    ends = chart_of(frame.unique("plan", maintain_order=True)).encode(
        y=alt.Y("plan:N", title=None, sort=plans, axis=alt.Axis(labelLimit=220))
    )
    chart = alt.layer(
        bars,
        ends.mark_tick(thickness=2, size=26, color=theme.INK).encode(x="upper_gib:Q"),
        ends.mark_tick(thickness=5, size=34, color=theme.GREY).encode(x="gpu_gib:Q"),
    )
    return theme.finish(chart, height=48 * len(plans), bands=plans, legend=120)
