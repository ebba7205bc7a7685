"""Simulated beside observed waits, and what the waits are made of."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

OBSERVED, SIMULATED = "observed", "simulated"
_TICKS_MIN = (0, 1, 10, 60, 360, 1440, 10080)
_SECONDS = ("observed_s", "simulated_s")


def plot_wait_quantiles(quantiles: pl.DataFrame) -> ChartType:
    """Quantiles of simulated against those of observed waits; on the line the distributions are equal.

    Parameters
    ----------
    quantiles : polars.DataFrame
        ``level, observed_s, simulated_s``, as :func:`gpuplanner.metrics.wait_quantiles` makes it.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"level": [0.5, 1.0], "observed_s": [60.0, 600.0], "simulated_s": [0.0, 900.0]})
    >>> plot_wait_quantiles(frame).to_dict()["title"]
    'Waits, quantile by quantile'
    """
    prepare.require(quantiles, ["level", *_SECONDS], where="plot_wait_quantiles")
    title = "Waits, quantile by quantile"
    if quantiles.is_empty():
        return theme.saying("No wait was compared.", title=title)
    rows = quantiles.select("level", *(pl.col(name) / 60.0 for name in _SECONDS)).sort("level")
    longest = max(rows.select(pl.max_horizontal(pl.col(_SECONDS).max())).item(), 1.0)
    minutes = _minutes(longest)
    x = alt.X("observed_s:Q", title="observed wait [min], logarithmic above 1", **minutes)
    y = alt.Y("simulated_s:Q", title="simulated wait [min]", **minutes)
    ends = pl.DataFrame({"observed_s": [0.0, longest], "simulated_s": [0.0, longest]})
    line = alt.Chart(prepare.to_data(ends, where="plot_wait_quantiles"))
    points = alt.Chart(prepare.to_data(rows, where="plot_wait_quantiles"))
    chart = alt.layer(
        line.mark_line(color=theme.MUTED, strokeDash=[4, 4]).encode(x=x, y=y),
        points.mark_point(filled=True, size=45, opacity=0.8, color=theme.PALETTE[0]).encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("level:Q", title="share of jobs that wait less", format=".0%"),
                alt.Tooltip("observed_s:Q", title="observed [min]", format=",.1f"),
                alt.Tooltip("simulated_s:Q", title="simulated [min]", format=",.1f"),
            ],
        ),
    )
    return theme.finish(chart.properties(width="container", height=300), title=title)


def wait_quantiles_text(quantiles: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_wait_quantiles`.

    Examples
    --------
    >>> frame = pl.DataFrame({"level": [0.5, 0.95], "observed_s": [60.0, 600.0], "simulated_s": [0.0, 900.0]})
    >>> wait_quantiles_text(frame)
    'Half of the jobs wait at most 0.0 min simulated and 1.0 min observed; 95 %, 15.0 and 10.0 min; all, 15.0 and
    10.0 min.'
    """
    minutes = {
        level: [quantiles.filter((pl.col("level") - level).abs() < 1e-9)[name][0] / 60 for name in _SECONDS]
        for level in (0.5, 0.95)
    }
    (seen, ours), (late_seen, late_ours) = minutes[0.5], minutes[0.95]
    most_seen, most_ours = quantiles.select(pl.col(_SECONDS).max() / 60).row(0)
    return (
        f"Half of the jobs wait at most {ours:,.1f} min simulated and {seen:,.1f} min observed; "
        f"95 %, {late_ours:,.1f} and {late_seen:,.1f} min; all, {most_ours:,.1f} and {most_seen:,.1f} min."
    )


def plot_wait_groups(groups: pl.DataFrame, by: str, *, top: int = 24) -> ChartType:
    """Mean observed and simulated wait of each group, joined by a line.

    Parameters
    ----------
    groups : polars.DataFrame
        `by`, ``jobs``, ``observed_mean_s``, ``simulated_mean_s``, as :func:`gpuplanner.metrics.agreement`
        makes it.
    by : str
        Column that names the group, such as ``"tenant"``, ``"size"`` or ``"hour"``.
    top : int
        Groups shown: those with the most jobs, in the order of their names.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a"], "jobs": [9], "observed_mean_s": [60.0], "simulated_mean_s": [0.0]})
    >>> plot_wait_groups(frame, "tenant").to_dict()["title"]
    'Mean wait by tenant, observed and simulated'
    """
    means = {OBSERVED: "observed_mean_s", SIMULATED: "simulated_mean_s"}
    prepare.require(groups, [by, "jobs", *means.values()], where="plot_wait_groups")
    title = f"Mean wait by {by}, observed and simulated"
    if groups.is_empty():
        return theme.saying("No wait was compared.", title=title)
    shown = groups.sort("jobs", by, descending=[True, False]).head(top).sort(by)
    wide = shown.select(
        "jobs", group=pl.col(by).cast(pl.String), **{k: pl.col(v) / 60 for k, v in means.items()}
    )
    order = wide["group"].to_list()
    long = wide.unpivot(list(means), index=["group", "jobs"], variable_name="kind", value_name="minutes")
    colours = {OBSERVED: theme.INK, SIMULATED: theme.PALETTE[0]}
    y = alt.Y("group:N", title=by if by == "hour" else None, sort=order)
    lines = alt.Chart(prepare.to_data(wide, where="plot_wait_groups"))
    marks = alt.Chart(prepare.to_data(long, where="plot_wait_groups"))
    longest = max(1.0, *long["minutes"])
    x = alt.X("minutes:Q", title="mean wait [min], logarithmic above 1", **_minutes(longest))
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=list(means), range=["circle", "diamond"]))
    chart = alt.layer(
        lines.mark_rule(color=theme.GREY, size=2).encode(x=alt.X(f"{OBSERVED}:Q"), x2=SIMULATED, y=y),
        marks.mark_point(filled=True, size=90, opacity=1).encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", title=None, scale=theme.scale(colours, list(means))),
            shape=shape,
            tooltip=[
                alt.Tooltip("group:N", title=by),
                alt.Tooltip("kind:N", title="wait"),
                alt.Tooltip("minutes:Q", title="mean [min]", format=",.1f"),
                alt.Tooltip("jobs:Q", title="jobs", format=",d"),
            ],
        ),
    ).properties(width="container", height=theme.BAND_HEIGHT * len(order))
    return theme.finish(chart, title=title, names=prepare.label_width(order))


def _minutes(longest: float) -> dict[str, Any]:
    """Scale and axis for waits of seconds to weeks, with room for 0."""
    scale = alt.Scale(type="symlog", constant=1, domain=[0, longest * 1.1], nice=False)
    ticks = [tick for tick in _TICKS_MIN if tick <= longest * 1.1]
    return {"scale": scale, "axis": alt.Axis(values=ticks, format=",d")}


def wait_groups_text(groups: pl.DataFrame, by: str) -> str:
    """Text alternative of :func:`plot_wait_groups`: where the means lie farthest apart.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a"], "jobs": [9], "observed_mean_s": [60.0], "simulated_mean_s": [0.0]})
    >>> wait_groups_text(frame, "tenant")
    'Farthest apart: a, 0.0 min simulated and 1.0 min observed on average, over 9 jobs.'
    """
    apart = (pl.col("simulated_mean_s") - pl.col("observed_mean_s")).abs()
    row = groups.sort(apart, by, descending=[True, False]).row(0, named=True)
    return (
        f"Farthest apart: {row[by]}, {row['simulated_mean_s'] / 60:,.1f} min simulated and "
        f"{row['observed_mean_s'] / 60:,.1f} min observed on average, over {row['jobs']:,} jobs."
    )


def plot_wait_causes(causes: pl.DataFrame) -> ChartType:
    """What waits are made of: the share of all waiting by its cause.

    Parameters
    ----------
    causes : polars.DataFrame
        ``cause, share, hours, jobs``, as the calibration makes it.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"cause": ["too few free"], "share": [1.0], "hours": [9.0], "jobs": [3]})
    >>> plot_wait_causes(frame).to_dict()["title"]
    'What the waits are made of'
    """
    prepare.require(causes, ["cause", "share", "hours", "jobs"], where="plot_wait_causes")
    title = "What the waits are made of"
    if causes.is_empty():
        return theme.saying("No wait was compared.", title=title)
    rows = causes.select("cause", "share", "hours", "jobs")
    order = rows["cause"].to_list()
    base = alt.Chart(prepare.to_data(rows, where="plot_wait_causes"))
    y = alt.Y("cause:N", title=None, sort=order)
    x = alt.X(
        "share:Q", title="share of all waiting", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")
    )
    chart = alt.layer(
        base.mark_bar(color=theme.PALETTE[0]).encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("cause:N", title="cause"),
                alt.Tooltip("share:Q", title="share of all waiting", format=".1%"),
                alt.Tooltip("hours:Q", title="hours of waiting", format=",.0f"),
                alt.Tooltip("jobs:Q", title="jobs kept over the limit", format=",d"),
            ],
        ),
        base.mark_text(align="left", dx=4).encode(x=x, y=y, text=alt.Text("share:Q", format=".0%")),
    ).properties(width="container", height=theme.BAND_HEIGHT * len(order))
    return theme.finish(chart, title=title, names=prepare.label_width(order), room=30)


def wait_causes_text(causes: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_wait_causes`: the causes, the largest first.

    Examples
    --------
    >>> frame = pl.DataFrame({"cause": ["latency", "too few free"], "share": [0.1, 0.9]})
    >>> wait_causes_text(frame)
    'Of all waiting 90% is: too few free; 10%: latency.'
    """
    rows = causes.filter(pl.col("share") >= 0.005).sort("share", descending=True, maintain_order=True)
    said = [f"{share:.0%}: {cause}" for cause, share in rows.select("cause", "share").iter_rows()]
    return f"Of all waiting {'; '.join(said)}.".replace("%: ", "% is: ", 1) if said else "Nobody waited."
