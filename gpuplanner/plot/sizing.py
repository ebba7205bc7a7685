"""Jobs on slices: the memory that they need, what memory outside the board gives, and how fast they run."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, heading, in_order, stacked, tips

_STACK = ("plan", "component", "gib", "predicted_gib", "upper_gib", "board_gib")
_POOLED = ("link", "moved", "moved_gib", "slowdown", "place", "pays")
_MEASURED = ("panel", "series", "name", "speed", "predicted")
_SPEEDS = ("job_class", "profile", "speed", "speed_low", "speed_high")
_PANELS = {"columns": 2, "minimum": 300, "margin": 24}


@drawn(
    "Peak memory of a GPU: components, bound of 95 in 100 (tick), limit of the board (bar)",
    *_STACK,
    empty="No plan was explained.",
)
def plot_memory_stack(frame: pl.DataFrame) -> ChartType:
    """Components of the peak of each plan, with what is expected, the bound, and the board's limit.

    Parameters
    ----------
    frame : polars.DataFrame
        ``plan``, ``component``, ``gib``, ``predicted_gib``, ``upper_gib``, ``board_gib``; plans and components stand in
        the order of their first rows.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"plan": ["1"], "component": ["states"], "gib": [10.0], "predicted_gib": [10.0],
    ...     "upper_gib": [12.0], "board_gib": [16.0]})
    >>> len(plot_memory_stack(frame).to_dict()["layer"])
    3
    """
    parts, plans = in_order(frame, "component"), in_order(frame, "plan")
    bars = stacked(
        frame.select(_STACK),
        alt.X("gib:Q", title="GiB"),
        y="plan",
        order=plans,
        part="component",
        colours=theme.numbered(parts),
        hover=tips(component="component", gib=("gib", ".2f")),
    )
    ends = chart_of(frame.unique("plan", maintain_order=True)).encode(
        y=alt.Y("plan:N", title=None, sort=plans, axis=alt.Axis(labelLimit=220))
    )
    chart = alt.layer(
        bars,
        ends.mark_tick(thickness=2, size=26, color=theme.INK).encode(x="upper_gib:Q"),
        ends.mark_tick(thickness=5, size=34, color=theme.GREY).encode(x="board_gib:Q"),
    )
    return theme.finish(chart, height=48 * len(plans), bands=plans, legend=120)


@drawn("Memory outside the board: time lost of a step (calculated)", *_POOLED, empty="Nothing can move.")
def plot_pooled(frame: pl.DataFrame) -> ChartType:
    """Slow-down against what moves out of the board, by link: a calculation, no measurement.

    Parameters
    ----------
    frame : polars.DataFrame
        ``link``, ``moved``, ``moved_gib``, ``slowdown`` (share of a step), ``place``, ``pays``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"link": ["pcie5"], "moved": ["optimiser"], "moved_gib": [9.0], "slowdown": [0.1],
    ...     "place": ["1g.20gb"], "pays": [True]})
    >>> plot_pooled(frame).to_dict()["layer"][0]["mark"]["type"]
    'bar'
    """
    links, moved = in_order(frame, "link"), in_order(frame, "moved")
    colours = theme.numbered(moved)
    bars = (
        chart_of(frame.select(_POOLED))
        .mark_bar()
        .encode(
            x=alt.X("slowdown:Q", title="time lost, share of a step", axis=alt.Axis(format="%")),
            y=alt.Y("link:N", title=None, sort=links),
            yOffset=alt.YOffset("moved:N", sort=moved),
            color=alt.Color("moved:N", title="moved", scale=theme.scale(colours, moved)),
            tooltip=tips(moved="moved", moved_gib=("moved_gib", ".1f"), place="place", pays="pays"),
        )
    )
    return theme.finish(alt.layer(bars), height=180, legend=160, names=theme.label_width(links))


@drawn(
    "Speed on a slice relative to the whole GPU: predicted and measured",
    *_MEASURED,
    empty="No speed was measured.",
)
def plot_speed_accuracy(frame: pl.DataFrame) -> ChartType:
    """Predicted against measured speed, one panel a profile; on the diagonal a prediction is right.

    Parameters
    ----------
    frame : polars.DataFrame
        ``panel`` (profile), ``series`` (evidence), ``name`` (job), ``speed`` and ``predicted``, both relative
        to the whole GPU. Panels and series stand in the order of their first rows.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"panel": ["1g", "2g"], "series": "telemetry", "name": ["a", "b"],
    ...     "speed": [0.2, 0.4], "predicted": [0.21, 0.38]})
    >>> len(plot_speed_accuracy(frame).to_dict()["concat"])
    2
    """
    series = in_order(frame, "series")
    colours = theme.scale(theme.numbered(series), series)
    end = max(1.0, frame.select(pl.max_horizontal(pl.col("speed", "predicted").max())).item())
    scale = alt.Scale(domain=[0, end], nice=False)
    right = (
        chart_of(pl.DataFrame({"at": [0.0, end]}))
        .mark_line(color=theme.GREY)
        .encode(x=alt.X("at:Q", scale=scale), y=alt.Y("at:Q", scale=scale))
    )
    hover = tips(name="job", series="from", speed=("measured", ".3f"), predicted=("predicted", ".3f"))

    def panel(name: str) -> ChartType:
        points = (
            chart_of(frame.filter(panel=name).select(_MEASURED))
            .mark_point(filled=True, size=36, opacity=0.75)
            .encode(
                x=alt.X("speed:Q", title="measured", scale=scale),
                y=alt.Y("predicted:Q", title="predicted", scale=scale),
                color=alt.Color("series:N", title=None, scale=colours),
                tooltip=hover,
            )
        )
        return alt.layer(right, points).properties(height=240, title=heading(name))

    chart = alt.concat(*(panel(name) for name in in_order(frame, "panel")), columns=2)
    return theme.finish(chart, legend=170, panels=_PANELS)


@drawn(
    "Speed on each profile relative to the whole GPU, with interval",
    *_SPEEDS,
    empty="No job fits a profile.",
)
def plot_speeds(frame: pl.DataFrame) -> ChartType:
    """Predicted speed on each profile with its interval, one panel a class of jobs.

    Parameters
    ----------
    frame : polars.DataFrame
        ``job_class, profile, speed, speed_low, speed_high``, as a speed model predicts them, profiles from
        small to large. A profile that a class does not fit has no row and no mark.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"job_class": "tuning", "profile": ["1g.10gb", "gpu"], "speed": [0.4, 1.0],
    ...     "speed_low": [0.3, 1.0], "speed_high": [0.5, 1.0]})
    >>> len(plot_speeds(frame).to_dict()["concat"])
    1
    """
    profiles = _small_to_large(frame)
    x = alt.X(
        "profile:O",
        title=None,
        sort=profiles,
        scale=alt.Scale(domain=profiles),
        axis=alt.Axis(labelAngle=-45),
    )
    y = alt.Y("speed:Q", title="speed", scale=alt.Scale(domain=[0, 1]))
    hover = tips(
        profile="profile", speed=("speed", ".2f"), speed_low=("low", ".2f"), speed_high=("high", ".2f")
    )
    point = {"size": 50, "filled": True, "color": theme.BLUE}

    def panel(name: str) -> ChartType:
        base = chart_of(frame.filter(job_class=name).select(_SPEEDS)).encode(x=x)
        band = base.mark_area(opacity=0.2, color=theme.BLUE).encode(y=alt.Y("speed_low:Q"), y2="speed_high:Q")
        curve = base.mark_line(point=point, color=theme.BLUE).encode(y=y, tooltip=hover)
        return alt.layer(band, curve).properties(height=200, title=heading(name))

    chart = alt.concat(*(panel(name) for name in in_order(frame, "job_class")), columns=2)
    return theme.finish(chart, panels=_PANELS)


def _small_to_large(frame: pl.DataFrame) -> list[str]:
    """Profiles of all classes in one order: that of the class that fits most of them."""
    most = (
        frame.group_by("job_class", maintain_order=True)
        .agg("profile")
        .sort(pl.col("profile").list.len(), descending=True, maintain_order=True)
    )
    return list(dict.fromkeys(most["profile"].explode().to_list()))
