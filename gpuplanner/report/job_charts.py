"""Charts of single jobs: phases, bottlenecks and GPU memory."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.schema_checks import require_columns
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    rank_names,
    stack_bars,
    utc_axis,
    utc_calculations,
)

_TELEMETRY_PANELS = (
    ("sm_activity", "SM activity [0-1]"),
    ("memory_used_gib", "memory used [GiB]"),
    ("power_w", "power [W]"),
)
"""Columns of telemetry with the titles of their panels in :func:`plot_phases`."""
_MAX_SAMPLE_BINS = 400
"""Maximum number of time bins in the chart of a job."""
_SPIKE_COLOURS = (theme.VERMILION, theme.PURPLE, theme.BROWN, theme.INK)
"""Colours of spikes by kind, in alphabetical order of the kinds."""
_SPIKE_LEGEND = alt.Legend(symbolOffset=28)
"""Legend of spikes, moved away from the legend of phases beside it."""
_MIN_NAMED_PHASE_SHARE = 0.12
"""Minimum share of the job's run time for a phase to be named in the chart [0-1]."""
_BOTTLENECK_COLOURS = {
    "compute": theme.BLUE, "memory-bandwidth": theme.GREEN, "interconnect": theme.PINK, "input": theme.ORANGE,
    "launch": theme.SKY, "mixed": theme.YELLOW, "idle": theme.MUTED, "unclear": theme.GREY,
}  # fmt: skip
"""Colour of each bottleneck of a job."""
_BOTTLENECK_SHARE_COLUMNS = ("job_class", "bound", "jobs", "gpu_hours", "share", "slice")
"""Columns that :func:`plot_signatures` needs."""


@frame_chart("SM activity, memory and power of the job, per GPU", "time", empty="The job has no samples.")
def plot_phases(
    samples: pl.DataFrame, phases: pl.DataFrame | None = None, spikes: pl.DataFrame | None = None
) -> ChartType:
    """Plot SM activity, memory and power of the GPUs of one job over time, with its phases behind.

    Values are means over the GPUs of the job. A long job is averaged in at most 400 equal bins: the line is the mean of
    a bin, the band its minimum and maximum, so that short spikes stay visible.

    Parameters
    ----------
    samples : polars.DataFrame
        Table ``schemas.Samples`` of one job: ``time`` and any of ``sm_activity, memory_used_gib, power_w``.
    phases : polars.DataFrame, optional
        ``start, end, label``: one row per phase.
    spikes : polars.DataFrame, optional
        ``time``, and optionally ``label`` and ``evidence``: one row per spike, marked above the first panel.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    measures = [(name, label) for name, label in _TELEMETRY_PANELS if name in samples.columns and samples[name].count()]
    if not measures:
        return theme.make_empty_chart("The job has no samples.")
    binned = _bin_samples(samples, [name for name, _ in measures])
    rows = make_chart(binned).transform_calculate(**utc_calculations(at="time"))
    bands, names = _draw_phase_bands(phases)
    x = utc_axis(samples, "time")

    def draw_measure_panel(name: str, label: str, rank: int) -> ChartType:
        hover = make_tooltips(at="UTC", **{name: (label, ".3~r"), f"{name}_high": ("greatest", ".3~r")})
        mean, low = alt.Y(f"{name}:Q", title=label), alt.Y(f"{name}_low:Q", title=label)
        area = rows.mark_area(opacity=0.25, color=theme.BLUE).encode(x=x, y=low, y2=f"{name}_high:Q")
        line = rows.mark_line(color=theme.BLUE, strokeWidth=1.4).encode(x=x, y=mean, tooltip=hover)
        marks_above = [*names, *_draw_spikes(spikes)] if rank == 0 else []
        return alt.layer(*bands, area, line, *marks_above).properties(height=130)

    parts = [draw_measure_panel(name, label, rank) for rank, (name, label) in enumerate(measures)]
    panels = {"columns": 1, "minimum": 1, "margin": 32}
    return theme.finish(alt.concat(*parts, columns=1), legend=190, names=40, panels=panels)


@frame_chart("What the GPUs of each class of jobs wait for", *_BOTTLENECK_SHARE_COLUMNS, empty="No job was sampled.")
def plot_signatures(frame: pl.DataFrame) -> ChartType:
    """Plot the GPU-hours of each job class as a bar, divided by bottleneck, such as compute or input.

    Parameters
    ----------
    frame : polars.DataFrame
        ``job_class, bound, jobs, gpu_hours, share, slice``, from
        :func:`gpuplanner.usage.bottlenecks.bottlenecks_by_class`. Classes with most GPU-hours come first.

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
    order = rank_names(frame, "job_class", "gpu_hours")
    scale = alt.Scale(domain=[0, 1])
    share = alt.X("share:Q", title="share of the GPU-hours sampled", axis=alt.Axis(format=".0%"), scale=scale)
    hover = make_tooltips(
        job_class="class",
        bound="bound by",
        jobs="jobs",
        gpu_hours=("GPU-hours", ",.1f"),
        share=("share", ".0%"),
        slice="slice",
    )
    rows, legend = frame.select(_BOTTLENECK_SHARE_COLUMNS), alt.Legend(title="bound by")
    chart = stack_bars(
        rows, share, y="job_class", order=order, part="bound", colours=_BOTTLENECK_COLOURS, hover=hover, legend=legend
    )
    return theme.finish(chart, bands=order, legend=150, room=24)


def _bin_samples(samples: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Average telemetry samples over the GPUs of a job, then take mean, minimum and maximum of each time bin."""
    moments = samples.group_by("time").agg(pl.col(names).mean()).sort("time")
    seconds = (moments["time"].max() - moments["time"].min()).total_seconds()  # type: ignore[operator, union-attr]
    width, values = max(1, int(-(-seconds // _MAX_SAMPLE_BINS))), pl.col(names)
    return (
        moments.group_by(pl.col("time").dt.truncate(f"{width}s"))
        .agg(values.mean(), values.min().name.suffix("_low"), values.max().name.suffix("_high"))
        .sort("time")
    )


def _draw_phase_bands(phases: pl.DataFrame | None) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Draw the phases of a job as coloured bands: two lists of layers, the bands and the names of the wide ones."""
    if phases is None or phases.is_empty():
        return [], []
    require_columns(phases.schema, ["start", "end", "label"], source="plot_phases: phases")
    labels = names_in_order(phases.sort("start"), "label")
    colours = dict(zip(labels, theme.PALETTE[1:], strict=False))
    band = (
        make_chart(phases.select("start", "end", "label").sort("start"))
        .mark_rect(opacity=0.22)
        .transform_calculate(**utc_calculations(from_="start", to="end"))
        .encode(
            x=alt.X("start:T"),
            x2="end:T",
            fill=alt.Fill("label:N", title="phase", scale=theme.colour_scale(colours, labels)),
            tooltip=make_tooltips(label="phase", from_="from (UTC)", to="to (UTC)"),
        )
    )
    length = pl.col("end") - pl.col("start")
    total_s = (pl.col("end").max() - pl.col("start").min()).dt.total_seconds()
    named_phases = phases.filter(length.dt.total_seconds() >= _MIN_NAMED_PHASE_SHARE * total_s).select(
        "label", mid=pl.col("start") + length / 2
    )
    name = (
        make_chart(named_phases.sort("mid"))
        .mark_text(baseline="bottom", fontSize=11, color=theme.MUTED)
        .encode(x=alt.X("mid:T"), y=alt.value(-4), text="label:N")
    )
    return [band], [name]


def _draw_spikes(spikes: pl.DataFrame | None) -> list[alt.Chart]:
    """Draw short dips or spikes of activity as triangles above the first panel; no layer without any."""
    if spikes is None or spikes.is_empty():
        return []
    require_columns(spikes.schema, ["time"], source="plot_phases: spikes")
    tooltip_headings = {"label": "looks like", "evidence": "evidence"}
    present_headings = {name: word for name, word in tooltip_headings.items() if name in spikes.columns}
    marked = spikes.select("time", *present_headings)
    if "label" not in present_headings:
        marked = marked.with_columns(label=pl.lit("spike"))
    labels = marked["label"].unique().sort().to_list()
    colours = theme.colour_scale(dict(zip(labels, _SPIKE_COLOURS, strict=False)), labels)
    marks = (
        make_chart(marked.sort("time", "label"))
        .mark_point(filled=True, size=40, opacity=1, shape="triangle-down")
        .transform_calculate(**utc_calculations(at="time"))
        .encode(
            x=alt.X("time:T"),
            y=alt.value(4),
            color=alt.Color("label:N", title="dip", legend=_SPIKE_LEGEND, scale=colours),
            tooltip=make_tooltips(at="dip (UTC)", **present_headings),
        )
    )
    return [marks]


_MEMORY_COLUMNS = ("plan", "component", "gib", "predicted_gib", "upper_gib", "gpu_gib")
"""Columns that :func:`plot_memory_stack` needs."""


@frame_chart(
    "Peak memory of a GPU: components, p95 upper bound (tick), memory of the GPU (bar)",
    *_MEMORY_COLUMNS,
    empty="No plan was explained.",
)
def plot_memory_stack(frame: pl.DataFrame) -> ChartType:
    """Plot the components of the peak memory of each plan, with its upper bound and the memory of the GPU.

    Parameters
    ----------
    frame : polars.DataFrame
        ``plan``, ``component``, ``gib``, ``predicted_gib``, ``upper_gib``, ``gpu_gib``; plans and components are in the
        order of their first rows.

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
    parts, plans = names_in_order(frame, "component"), names_in_order(frame, "plan")
    rows, x = frame.select(_MEMORY_COLUMNS), alt.X("gib:Q", title="GiB")
    colours = theme.assign_colours(parts)
    hover = make_tooltips(component="component", gib=("gib", ".2f"))
    bars = stack_bars(rows, x, y="plan", order=plans, part="component", colours=colours, hover=hover)
    ends = make_chart(frame.unique("plan", maintain_order=True)).encode(
        y=alt.Y("plan:N", title=None, sort=plans, axis=alt.Axis(labelLimit=220))
    )
    chart = alt.layer(
        bars,
        ends.mark_tick(thickness=2, size=26, color=theme.INK).encode(x="upper_gib:Q"),
        ends.mark_tick(thickness=5, size=34, color=theme.GREY).encode(x="gpu_gib:Q"),
    )
    return theme.finish(chart, height=48 * len(plans), bands=plans, legend=120)


@frame_chart("Cost against run time", "plan", "gpu_model", "cost", "speed", "pareto", empty="No plan has a price.")
def plot_cost_against_time(frame: pl.DataFrame, *, label: str, unit: str, deadline: float | None = None) -> ChartType:
    """Plot the cost of each plan against its run time or speed, with a line through the plans of the Pareto front.

    Parameters
    ----------
    frame : polars.DataFrame
        ``plan, gpu_model, cost, speed, pareto``: `speed` is the value of the horizontal axis.
    label : str
        What ``speed`` is, with its unit.
    unit : str
        Unit of the cost.
    deadline : float, optional
        Value of ``speed`` at which a line is drawn.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    models = names_in_order(frame.sort("gpu_model"), "gpu_model")
    fixed = {name: theme.GREY for name in models if name.startswith("several")}
    colours = theme.colour_scale(theme.assign_colours(models, fixed), models)
    hover = make_tooltips(plan="plan", cost=(unit, ",.2f"), speed=(label, ",.4~g"))
    rows = frame.select("plan", "gpu_model", "cost", "speed", "pareto").sort("speed", "plan")
    scale = alt.Scale(type="log", nice=False, padding=12)
    axis = alt.Axis(format="~s", labelOverlap=True)
    x, y = alt.X("speed:Q", title=label, scale=scale, axis=axis), alt.Y("cost:Q", title=unit, scale=scale, axis=axis)
    base = make_chart(rows).encode(x=x, y=y, tooltip=hover)
    colour = alt.Color("gpu_model:N", title=None, scale=colours)
    front = base.transform_filter("datum.pareto")
    layers = [
        front.mark_line(color=theme.INK, strokeWidth=1.2),
        base.mark_point(filled=True, size=60, opacity=0.8).encode(color=colour),
        front.mark_point(filled=False, size=150, color=theme.INK, strokeWidth=1.4),
    ]
    if deadline is not None:
        line = make_chart(pl.DataFrame({"speed": [deadline], "word": ["deadline"]})).encode(x=x)
        layers += [
            line.mark_rule(color=theme.VERMILION, strokeDash=[4, 3]),
            line.mark_text(align="right", dx=-4, color=theme.VERMILION).encode(y=alt.value(8), text="word:N"),
        ]
    fastest = rows.filter("pareto")["plan"].to_list()
    finding = f"Pareto front, ringed: {', '.join(fastest)}."
    return theme.finish(alt.layer(*layers), height=300, finding=finding, legend=160)
