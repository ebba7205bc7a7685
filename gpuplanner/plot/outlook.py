"""What is ahead: when a fleet is no longer enough, what was held, and the quantile to plan at."""

from __future__ import annotations

from datetime import timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, require, tips

_HEIGHT = 176
_APART = 0.17
"""Chances that lie nearer to each other than this have their words on either side."""
_WAYS = {"today": "today's way", "recommended": "as recommended"}
_EVEN = 0.5
_CURVE = ("quantile", "planned", "short", "cost")
_RUN_OUT = ("week", "over", "run_out_by", "q50")


def plot_full(frame: pl.DataFrame, *, gpus: int, best: str = "today") -> ChartType:
    """Chance that a fleet is no longer enough, week by week, under today's way and under the recommended one.

    Rings mark the first week in which that is more likely than not.

    Parameters
    ----------
    frame : polars.DataFrame
        ``way, week, chance``: the way ``"today"`` or ``"recommended"``, the week as a date, the chance by then.
    gpus : int
        GPUs that there are.
    best : str, optional
        The recommended way: its line has the colour that this way has everywhere.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import date
    >>> rows = pl.DataFrame({"way": "today", "week": [date(2027, 3, 1), date(2027, 3, 8)], "chance": [0.4, 0.6]})
    >>> full_text(rows, gpus=64)
    "64 GPUs, more likely than not: today's way no longer enough by 8 Mar 2027."
    """
    require(frame, ["way", "week", "chance"], where="plot_full")
    title = f"When {gpus:,} GPUs are no longer enough"
    if frame.is_empty():
        return theme.saying("There is no week ahead.", title=title)
    words = _words(frame)
    rows = frame.filter(pl.col("way").is_in(list(words))).with_columns(
        word=pl.col("way").replace(words), day=pl.col("week").cast(pl.Datetime("us", "UTC"))
    )
    ways = [way for way in _WAYS if way in rows["way"]]
    colours = theme.policy_colours(["today", best])
    looks = theme.scale({"today": colours["today"], "recommended": colours[best]}, ways)
    colour = alt.Color("way:N", scale=looks, legend=None)
    dashes = alt.Scale(domain=ways, range=[[5, 3] if way == "today" else [1, 0] for way in ways])
    x = alt.X("day:T", title=None, axis=alt.Axis(format="%b %Y", labelAngle=0, tickCount=6, grid=False))
    y = alt.Y(
        "chance:Q",
        title="chance by then",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=5),
    )
    hover = tips(word="way", week="week of", chance=("chance by then", ".0%"))
    line = chart_of(rows).mark_line(size=2)
    parts: list[ChartType] = [
        line.encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=alt.StrokeDash("way:N", scale=dashes, legend=None),
            tooltip=hover,
        )
    ]
    even = _even(rows)
    if even.height:  # a layer without rows has no extent, and Vega warns of it
        ring = chart_of(even).mark_point(size=110, filled=True, fill="white", strokeWidth=2.5, opacity=1)
        parts.append(ring.encode(x=x, y=y, stroke=colour, tooltip=hover))
    # The chance only grows, so that above the end of a line there is room, unless another line is there.
    ends = rows.group_by("way", maintain_order=True).tail(1)
    apart = float(ends["chance"].max() - ends["chance"].min())  # type: ignore[operator, arg-type]
    below = 18 if len(ways) > 1 and apart < _APART else -10
    for way in ways:
        word = chart_of(ends.filter(way=way)).mark_text(
            align="right", dy=below if way == "recommended" else -10, dx=-4
        )
        parts.append(word.encode(x=x, y=y, text="word:N", color=colour))
    finding = full_text(frame, gpus=gpus)
    return theme.finish(alt.layer(*parts), title=title, finding=finding, height=_HEIGHT, room=12)


def full_text(frame: pl.DataFrame, *, gpus: int) -> str:
    """Say from when a fleet is more likely than not too small, for each way."""
    said = []
    for way, word in _words(frame).items():
        mine = frame.filter(way=way)
        found = _even(mine)
        if found.is_empty():
            said.append(f"{word} enough until {_day(mine['week'].max())}")
        else:
            said.append(f"{word} no longer enough by {_day(found['week'][0])}")
    return f"{gpus:,} GPUs, more likely than not: {'; '.join(said)}." if said else "There is no week ahead."


def _words(frame: pl.DataFrame) -> dict[str, str]:
    """What each line is called; lines that are the same are drawn once."""
    there = {way: word for way, word in _WAYS.items() if way in frame["way"]}
    chances = [frame.filter(way=way)["chance"].to_list() for way in there]
    return {"today": "either way"} if len(there) > 1 and chances[0] == chances[1] else there


@drawn("GPUs held in the busiest hour of each day", "day", "gpus", empty="There is no day in the record.")
def plot_peaks(frame: pl.DataFrame, *, gpus: int, known: bool = True) -> ChartType:
    """Most GPUs held on each day, beside those that there are.

    Parameters
    ----------
    frame : polars.DataFrame
        ``day, gpus``.
    gpus : int
        GPUs that there are.
    known : bool
        Whether they were counted; if not, they are inferred from the jobs, and no line of capacity is drawn.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import date
    >>> rows = pl.DataFrame({"day": [date(2026, 9, 23), date(2026, 9, 24)], "gpus": [9.0, 14.0]})
    >>> peaks_text(rows)
    'The most in one hour was 14 GPUs, on 24 Sep 2026.'
    """
    rows = frame.with_columns(
        day_start=pl.col("day").cast(pl.Datetime("us", "UTC")),
        day_end=(pl.col("day") + timedelta(days=1)).cast(pl.Datetime("us", "UTC")),
    )
    top = max(float(gpus), float(rows["gpus"].max())) * 1.12  # type: ignore[arg-type]
    x = alt.X(
        "day_start:T", title=None, axis=alt.Axis(format="%-d %b", labelAngle=0, tickCount=6, grid=False)
    )
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False))
    word = f"{gpus:,} installed" if known else f"{gpus:,}, inferred from the jobs"
    there = chart_of(pl.DataFrame({"gpus": [float(gpus)], "word": [word]})).encode(y=y)
    chart = alt.layer(
        chart_of(rows)
        .mark_bar(color=theme.BLUE, stroke="white", strokeWidth=1)
        .encode(
            x=x,
            x2="day_end:T",
            y=y,
            y2=alt.datum(0),
            tooltip=tips(day="day", gpus=("GPUs, busiest hour", ",.0f")),
        ),
        there.mark_rule(color=theme.INK, size=1.5, strokeDash=[1, 0] if known else [2, 4]),
        there.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), text="word:N"),
    )
    return theme.finish(chart, finding=peaks_text(frame), height=_HEIGHT, room=12)


def peaks_text(frame: pl.DataFrame) -> str:
    """Say when most GPUs were held."""
    if frame.is_empty():
        return "There is no day in the record."
    most = frame.sort("gpus", descending=True, maintain_order=True).row(0, named=True)
    return f"The most in one hour was {most['gpus']:,.0f} GPUs, on {_day(most['day'])}."


@drawn("Cost of planning at a quantile", *_CURVE, empty="There is no quantile to plan at.")
def plot_cost_curve(frame: pl.DataFrame) -> ChartType:
    """What planning at each quantile costs; the mark is the cheapest.

    Parameters
    ----------
    frame : polars.DataFrame
        ``quantile, planned, short, cost``.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    hover = tips(
        quantile=("quantile", ".1%"), **{name: (name, ",.1f") for name in ("planned", "short", "cost")}
    )
    base = chart_of(frame.select(_CURVE).sort("quantile")).encode(
        x=alt.X("quantile:Q", title="quantile planned at", axis=alt.Axis(format="%")),
        y=alt.Y("cost:Q", title="cost, in GPU-hours an hour", scale=alt.Scale(zero=False)),
        tooltip=hover,
    )
    least = base.transform_window(place="rank()", sort=[alt.SortField("cost")]).transform_filter(
        "datum.place == 1"
    )
    chart = alt.layer(
        base.mark_line(color=theme.BLUE, strokeWidth=1.8),
        least.mark_point(color=theme.VERMILION, size=110, filled=True),
    )
    cheapest = frame.sort("cost").row(0, named=True)
    return theme.finish(chart, height=200, finding=f"Cheapest at {cheapest['quantile']:.0%}.")


@drawn("Probability that demand has passed what there is", *_RUN_OUT, empty="There is no week ahead.")
def plot_run_out(frame: pl.DataFrame) -> ChartType:
    """Probability that the fleet has run out by each week.

    Parameters
    ----------
    frame : polars.DataFrame
        ``week, over, run_out_by, q50``.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    names = {"run_out_by": "by then", "over": "in that week"}
    rows = frame.unpivot(list(names), index=["week", "q50"], variable_name="when", value_name="share")
    colours = {"by then": theme.VERMILION, "in that week": theme.MUTED}
    chart: alt.Chart = (
        chart_of(rows.with_columns(pl.col("when").replace(names)))
        .mark_line(point=True, strokeWidth=1.6)
        .encode(
            x=alt.X("week:Q", title="weeks ahead"),
            y=alt.Y(
                "share:Q", title="probability", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("when:N", title=None, scale=theme.scale(colours, list(colours))),
            tooltip=tips(
                week="week", when="when", share=("probability", ".1%"), q50=("median peak [GPUs]", ",.0f")
            ),
        )
    )
    last = frame.row(-1, named=True)
    finding = f"{last['run_out_by']:.0%} within {last['week']} weeks."
    return theme.finish(chart, height=200, finding=finding, legend=110)


def _even(rows: pl.DataFrame) -> pl.DataFrame:
    """The first week of each way in which the fleet is more likely than not too small."""
    return rows.filter(pl.col("chance") > _EVEN).group_by("way", maintain_order=True).head(1)


def _day(when: object) -> str:
    return f"{when:%-d %b %Y}" if hasattr(when, "strftime") else str(when)
