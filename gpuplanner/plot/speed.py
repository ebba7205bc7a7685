"""Speeds on slices: predicted against measured, and from slice to slice with their intervals."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme


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
    columns = ["panel", "series", "name", "speed", "predicted"]
    prepare.require(frame, columns, where="plot_speed_accuracy")
    title = "Speed on a slice relative to the whole GPU: predicted and measured"
    if frame.is_empty():
        return theme.saying("No speed was measured.", title=title)
    rows = prepare.to_data(frame.select(columns), where="plot_speed_accuracy")
    series = frame["series"].unique(maintain_order=True).to_list()
    colours = dict(zip(series, theme.PALETTE, strict=False))
    end = max(1.0, frame.select(pl.max_horizontal(pl.col("speed", "predicted").max())).item())
    scale = alt.Scale(domain=[0, end], nice=False)
    line = alt.Chart(pl.DataFrame({"at": [0.0, end]})).mark_line(color=theme.GREY)

    def panel(name: str) -> ChartType:
        points = (
            alt.Chart(rows.filter(panel=name))
            .mark_point(filled=True, size=36, opacity=0.75)
            .encode(
                x=alt.X("speed:Q", title="measured", scale=scale),
                y=alt.Y("predicted:Q", title="predicted", scale=scale),
                color=alt.Color("series:N", title=None, scale=theme.scale(colours, series)),
                tooltip=[
                    alt.Tooltip("name:N", title="job"),
                    alt.Tooltip("series:N", title="from"),
                    alt.Tooltip("speed:Q", title="measured", format=".3f"),
                    alt.Tooltip("predicted:Q", title="predicted", format=".3f"),
                ],
            )
        )
        right = line.encode(x=alt.X("at:Q", scale=scale), y=alt.Y("at:Q", scale=scale))
        heading = alt.TitleParams(name, fontSize=13, offset=6)
        return alt.layer(right, points).properties(height=240, title=heading)

    panels = frame["panel"].unique(maintain_order=True).to_list()
    chart = alt.concat(*(panel(name) for name in panels), columns=2)
    return theme.finish(chart, title=title, legend=170, panels={"columns": 2, "minimum": 300, "margin": 24})


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
    columns = ["job_class", "profile", "speed", "speed_low", "speed_high"]
    prepare.require(frame, columns, where="plot_speeds")
    title = "Speed on each profile relative to the whole GPU, with interval"
    if frame.is_empty():
        return theme.saying("No job fits a profile.", title=title)
    rows = prepare.to_data(frame.select(columns), where="plot_speeds")
    profiles = _small_to_large(frame)
    hover = [
        alt.Tooltip("profile:N", title="profile"),
        alt.Tooltip("speed:Q", title="speed", format=".2f"),
        alt.Tooltip("speed_low:Q", title="low", format=".2f"),
        alt.Tooltip("speed_high:Q", title="high", format=".2f"),
    ]

    def panel(name: str) -> ChartType:
        base = alt.Chart(rows.filter(job_class=name))
        x = alt.X(
            "profile:O",
            title=None,
            sort=profiles,
            scale=alt.Scale(domain=profiles),
            axis=alt.Axis(labelAngle=-45),
        )
        y = alt.Y("speed:Q", title="speed", scale=alt.Scale(domain=[0, 1]))
        band = base.mark_area(opacity=0.2, color=theme.PALETTE[0]).encode(
            x=x, y=alt.Y("speed_low:Q"), y2="speed_high:Q"
        )
        curve = base.mark_line(
            point={"size": 50, "filled": True, "color": theme.PALETTE[0]}, color=theme.PALETTE[0]
        ).encode(x=x, y=y, tooltip=hover)
        return alt.layer(band, curve).properties(
            height=200, title=alt.TitleParams(name, fontSize=13, offset=6)
        )

    classes = frame["job_class"].unique(maintain_order=True).to_list()
    chart = alt.concat(*(panel(name) for name in classes), columns=2)
    return theme.finish(chart, title=title, panels={"columns": 2, "minimum": 300, "margin": 24})


def _small_to_large(frame: pl.DataFrame) -> list[str]:
    """Profiles of all classes in one order: that of the class that fits most of them."""
    most = (
        frame.group_by("job_class", maintain_order=True)
        .agg("profile")
        .sort(pl.col("profile").list.len(), descending=True, maintain_order=True)
    )
    return list(dict.fromkeys(most["profile"].explode().to_list()))
