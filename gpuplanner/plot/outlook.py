"""Pictures of a first screen: when a fleet is no longer enough, and the most that was held on each day."""

from __future__ import annotations

from datetime import timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

_HEIGHT = 176
_APART = 0.17
"""Chances that lie nearer to each other than this have their words on either side."""
_WAYS = {"today": "today's way", "recommended": "as recommended"}
_EVEN = 0.5


def plot_full(frame: pl.DataFrame, *, gpus: int) -> ChartType:
    """Chance that a fleet is no longer enough, week by week, under today's way and under the recommended one.

    Rings mark the first week in which that is more likely than not.

    Parameters
    ----------
    frame : polars.DataFrame
        ``way, week, chance``: the way ``"today"`` or ``"recommended"``, the week as a date, the chance by then.
    gpus : int
        GPUs that there are.

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
    prepare.require(frame, ["way", "week", "chance"], where="plot_full")
    title = f"When {gpus:,} GPUs are no longer enough"
    if frame.is_empty():
        return theme.saying("There is no week ahead.", title=title)
    words = _words(frame)
    frame = frame.filter(pl.col("way").is_in(list(words)))
    rows = frame.with_columns(
        word=pl.col("way").replace(words), day=pl.col("week").cast(pl.Datetime("us", "UTC"))
    )
    looks = {"today": theme.WARN, "recommended": theme.PALETTE[0]}
    ways = [way for way in looks if way in frame["way"]]
    colour = alt.Color("way:N", scale=theme.scale(looks, ways), legend=None)
    dash = alt.StrokeDash(
        "way:N",
        scale=alt.Scale(domain=ways, range=[[5, 3] if way == "today" else [1, 0] for way in ways]),
        legend=None,
    )
    x = alt.X("day:T", title=None, axis=alt.Axis(format="%b %Y", labelAngle=0, tickCount=6, grid=False))
    y = alt.Y(
        "chance:Q",
        title="chance by then",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", tickCount=5),
    )
    hover = [
        alt.Tooltip("word:N", title="way"),
        alt.Tooltip("week:N", title="week of"),
        alt.Tooltip("chance:Q", title="chance by then", format=".0%"),
    ]
    base = alt.Chart(prepare.to_data(rows, where="plot_full"))
    even = _even(rows)
    ends = rows.group_by("way", maintain_order=True).tail(1)
    last = prepare.to_data(ends, where="plot_full")
    # The chance only grows, so that above the end of a line there is room, unless another line is there.
    apart = float(ends["chance"].max() - ends["chance"].min())  # type: ignore[operator, arg-type]
    below = 18 if len(ways) > 1 and apart < _APART else -10
    parts: list[ChartType] = [
        base.mark_line(size=2).encode(x=x, y=y, color=colour, strokeDash=dash, tooltip=hover),
        # A layer without rows has no extent, and Vega warns of it.
        *(
            [alt.Chart(prepare.to_data(even, where="plot_full")).mark_point(
                size=110, filled=True, fill="white", strokeWidth=2.5, opacity=1
            ).encode(x=x, y=y, stroke=colour, tooltip=hover)]
            if even.height else []
        ),
        *(
            alt.Chart(last).transform_filter(f"datum.way == '{way}'").mark_text(align="right", dy=dy, dx=-4).encode(
                x=x, y=y, text="word:N", color=colour
            )
            for way, dy in (("today", -10), ("recommended", below)) if way in ways
        ),
    ]  # fmt: skip
    chart = alt.layer(*parts).properties(width="container", height=_HEIGHT)
    return theme.finish(chart, title=title, finding=full_text(frame, gpus=gpus), room=12)


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
    prepare.require(frame, ["day", "gpus"], where="plot_peaks")
    title = "GPUs held in the busiest hour of each day"
    if frame.is_empty():
        return theme.saying("There is no day in the record.", title=title)
    rows = frame.with_columns(
        day_start=pl.col("day").cast(pl.Datetime("us", "UTC")),
        day_end=(pl.col("day") + timedelta(days=1)).cast(pl.Datetime("us", "UTC")),
    )
    most = rows.sort("gpus", descending=True, maintain_order=True).head(1)
    top = max(float(gpus), float(most["gpus"][0])) * 1.12
    x = alt.X(
        "day_start:T", title=None, axis=alt.Axis(format="%-d %b", labelAngle=0, tickCount=6, grid=False)
    )
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False))
    hover = [
        alt.Tooltip("day:N", title="day"),
        alt.Tooltip("gpus:Q", title="GPUs, busiest hour", format=",.0f"),
    ]
    word = f"{gpus:,} installed" if known else f"{gpus:,}, inferred from the jobs"
    there = alt.Chart(
        prepare.to_data(pl.DataFrame({"gpus": [float(gpus)], "word": [word]}), where="plot_peaks")
    )
    parts: list[ChartType] = [
        alt.Chart(prepare.to_data(rows, where="plot_peaks"))
        .mark_bar(color=theme.PALETTE[0], stroke="white", strokeWidth=1)
        .encode(x=x, x2="day_end:T", y=y, y2=alt.datum(0), tooltip=hover),
        there.mark_rule(color=theme.INK, size=1.5, strokeDash=[1, 0] if known else [2, 4]).encode(y=y),
        there.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), y=y, text="word:N"),
    ]
    chart = alt.layer(*parts).properties(width="container", height=_HEIGHT)
    return theme.finish(chart, title=title, finding=peaks_text(frame), room=12)


def peaks_text(frame: pl.DataFrame) -> str:
    """Say when most GPUs were held."""
    if frame.is_empty():
        return "There is no day in the record."
    most = frame.sort("gpus", descending=True, maintain_order=True).row(0, named=True)
    return f"The most in one hour was {most['gpus']:,.0f} GPUs, on {_day(most['day'])}."


def _even(rows: pl.DataFrame) -> pl.DataFrame:
    """The first week of each way in which the fleet is more likely than not too small."""
    return rows.filter(pl.col("chance") > _EVEN).group_by("way", maintain_order=True).head(1)


def _day(when: object) -> str:
    return f"{when:%-d %b %Y}" if hasattr(when, "strftime") else str(when)
