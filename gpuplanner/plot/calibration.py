"""Simulated beside observed waits, and what the waits are made of."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, require, tips

OBSERVED, SIMULATED = "observed", "simulated"
_TICKS_MIN = (0, 1, 10, 60, 360, 1440, 10080)
_SECONDS = ("observed_s", "simulated_s")
_CAUSE = ("cause", "share", "hours", "jobs")


@drawn("Waits, quantile by quantile", "level", *_SECONDS, empty="No wait was compared.")
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
    rows = quantiles.select("level", *(pl.col(name) / 60.0 for name in _SECONDS)).sort("level")
    longest = max(rows.select(pl.max_horizontal(pl.col(_SECONDS).max())).item(), 1.0)
    minutes = _minutes(longest)
    x = alt.X("observed_s:Q", title="observed wait [min], logarithmic above 1", **minutes)
    y = alt.Y("simulated_s:Q", title="simulated wait [min]", **minutes)
    line = chart_of(pl.DataFrame({name: [0.0, longest] for name in _SECONDS}))
    hover = tips(
        level=("share of jobs that wait less", ".0%"),
        observed_s=("observed [min]", ",.1f"),
        simulated_s=("simulated [min]", ",.1f"),
    )
    chart = alt.layer(
        line.mark_line(color=theme.MUTED, strokeDash=[4, 4]).encode(x=x, y=y),
        chart_of(rows)
        .mark_point(filled=True, size=45, opacity=0.8, color=theme.BLUE)
        .encode(x=x, y=y, tooltip=hover),
    )
    return theme.finish(chart, height=300)


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
    require(groups, [by, "jobs", *means.values()], where="plot_wait_groups")
    title = f"Mean wait by {by}, observed and simulated"
    if groups.is_empty():
        return theme.saying("No wait was compared.", title=title)
    shown = groups.sort("jobs", by, descending=[True, False]).head(top).sort(by)
    wide = shown.select(
        "jobs", group=pl.col(by).cast(pl.String), **{k: pl.col(v) / 60 for k, v in means.items()}
    )
    order = wide["group"].to_list()
    long = wide.unpivot(list(means), index=["group", "jobs"], variable_name="kind", value_name="minutes")
    colours = {OBSERVED: theme.INK, SIMULATED: theme.BLUE}
    y = alt.Y("group:N", title=by if by == "hour" else None, sort=order)
    x = alt.X(
        "minutes:Q", title="mean wait [min], logarithmic above 1", **_minutes(max(1.0, *long["minutes"]))
    )
    chart = alt.layer(
        chart_of(wide)
        .mark_rule(color=theme.GREY, size=2)
        .encode(x=alt.X(f"{OBSERVED}:Q"), x2=SIMULATED, y=y),
        chart_of(long)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", title=None, scale=theme.scale(colours, list(means))),
            shape=alt.Shape(
                "kind:N", title=None, scale=alt.Scale(domain=list(means), range=["circle", "diamond"])
            ),
            tooltip=tips(group=by, kind="wait", minutes=("mean [min]", ",.1f"), jobs=("jobs", ",d")),
        ),
    )
    return theme.finish(chart, title=title, bands=order)


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


@drawn("What the waits are made of", *_CAUSE, empty="No wait was compared.")
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
    rows = causes.select(_CAUSE)
    order = rows["cause"].to_list()
    axis = alt.Axis(format=".0%")
    base = chart_of(rows).encode(
        x=alt.X("share:Q", title="share of all waiting", scale=alt.Scale(domain=[0, 1]), axis=axis),
        y=alt.Y("cause:N", title=None, sort=order),
    )
    hover = tips(
        cause="cause",
        share=("share of all waiting", ".1%"),
        hours=("hours of waiting", ",.0f"),
        jobs=("jobs kept over the limit", ",d"),
    )
    chart = alt.layer(
        base.mark_bar(color=theme.BLUE).encode(tooltip=hover),
        base.mark_text(align="left", dx=4).encode(text=alt.Text("share:Q", format=".0%")),
    )
    return theme.finish(chart, bands=order, room=30)


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
