"""What is ahead: when a fleet is no longer enough, what was held, and the quantile to plan at."""

from __future__ import annotations

from datetime import timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, tips

_HEIGHT = 172
_LABEL, _ROOM = 15, 112
"""Pixels between words at the ends of lines, and beside them."""
_USE = {"requested_gpus": "asked for", "allocated_gpus": "held", "active_gpus": "at work"}
_FAR = 2.5
"""A line so many times above all else is not drawn to scale, and broken."""
_CURVE = ("quantile", "planned", "short", "cost")


@drawn("GPUs asked for, held and at work", *("day", *_USE), empty="There is no day in the record.")
def plot_use(frame: pl.DataFrame, *, gpus: int, known: bool = True) -> ChartType:
    """GPUs on average by day: requested, allocated and active, each line with its word, beside those that there are.

    Parameters
    ----------
    frame : polars.DataFrame
        ``day, requested_gpus, allocated_gpus, active_gpus``; null where nobody measured.
    gpus : int
        GPUs that there are.
    known : bool
        Whether they were counted; if not, no line of capacity is drawn.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import date
    >>> rows = pl.DataFrame({"day": [date(2026, 9, 23)], "requested_gpus": [30.0], "allocated_gpus": [24.0],
    ...     "active_gpus": [None]}, schema_overrides={"active_gpus": pl.Float64})
    >>> use_text(rows)
    'On average 30 GPUs were asked for and 24 held; how many worked was not measured.'
    """
    long = (
        frame.unpivot(list(_USE), index="day", variable_name="what", value_name="gpus")
        .drop_nulls("gpus")
        .with_columns(pl.col("day").cast(pl.Datetime("us", "UTC")), word=pl.col("what").replace_strict(_USE))
        .sort("what", "day")
    )
    shown = [name for name in _USE if name in long["what"]]
    most = float(long["gpus"].quantile(0.98) or 1.0)
    level, word = _level(gpus, f"{gpus:,} installed", most)
    top = max(most, level if known else 0.0) * 1.12
    colours = dict(zip(_USE, (theme.MUTED, theme.INK, theme.BLUE), strict=True))
    x = alt.X("day:T", title=None, axis=alt.Axis(format="%-d %b", labelAngle=0, tickCount=6, grid=False))
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False, clamp=True))
    colour = alt.Color("what:N", scale=theme.scale(colours, shown), legend=None)
    ends = long.group_by("what", maintain_order=True).tail(1).sort("gpus", descending=True)
    places: list[float] = []
    for value in ends["gpus"]:
        place = min(value, top)
        places.append(min(place, places[-1] - top * _LABEL / _HEIGHT) if places else place)
    short = max(-min([0.0, *places]), 0.0)
    labels = ends.with_columns(gpus=pl.Series([place + short for place in places], dtype=pl.Float64))
    line = chart_of(long).mark_line(size=1.8, interpolate="step-after")
    parts: list[ChartType] = [
        line.encode(
            x=x, y=y, color=colour, tooltip=tips(word="GPUs", day="day", gpus=("on average", ",.1f"))
        ),
        chart_of(labels).mark_text(align="left", dx=5).encode(x=x, y=y, text="word:N", color=colour),
    ]
    if known:
        there = chart_of(pl.DataFrame({"gpus": [level], "word": [word]})).encode(y=y)
        parts += [
            there.mark_rule(color=theme.INK, size=1.5, strokeDash=_dash(level == gpus)),
            there.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), text="word:N"),
        ]
    return theme.finish(alt.layer(*parts), finding=use_text(frame), height=_HEIGHT, room=80)


def _dash(to_scale: bool) -> list[float]:
    return [1, 0] if to_scale else [2, 4]


def _level(gpus: int, word: str, most: float) -> tuple[float, str]:
    """Where the line of what there is stands, and its word: far above all else it would flatten the picture."""
    if gpus <= _FAR * most or most <= 0:
        return float(gpus), word
    return 1.25 * most, f"{word}, not to scale"


def use_text(frame: pl.DataFrame) -> str:
    """Say how many GPUs were asked for, held and at work."""
    if frame.is_empty():
        return "There is no day in the record."
    asked, held, active = frame.select(pl.col(list(_USE)).cast(pl.Float64).mean()).row(0)
    text = f"On average {asked or 0:,.0f} GPUs were asked for and {held or 0:,.0f} held; "
    if active is None:
        return text + "how many worked was not measured."
    return f"{text}of the days that were measured, {active:,.0f} were at work."


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
    most = float(rows["gpus"].max())  # type: ignore[arg-type]
    level, word = _level(gpus, f"{gpus:,} installed" if known else f"{gpus:,}, inferred from the jobs", most)
    top = max(most, level) * 1.12
    x = alt.X(
        "day_start:T", title=None, axis=alt.Axis(format="%-d %b", labelAngle=0, tickCount=6, grid=False)
    )
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False))
    there = chart_of(pl.DataFrame({"gpus": [level], "word": [word]})).encode(y=y)
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
        there.mark_rule(color=theme.INK, size=1.5, strokeDash=_dash(known and level == gpus)),
        there.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), text="word:N"),
    )
    return theme.finish(chart, finding=peaks_text(frame), height=150, room=12)


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


def _day(when: object) -> str:
    return f"{when:%-d %b %Y}" if hasattr(when, "strftime") else str(when)
