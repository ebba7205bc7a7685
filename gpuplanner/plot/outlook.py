"""What is ahead: when a fleet is no longer enough, what was held, and the quantile to plan at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Literal

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import theme
from gpuplanner.plot.prepare import chart_of, drawn, require, tips

_HEIGHT = 172
_LABEL, _ROOM = 15, 112
"""Pixels between words at the ends of lines, and beside them."""
_UNLIKELY = 0.1
"""Chance from which a run-out is within its range."""
_WEEKS_BACK = 52
_MONTHS = "utcFormat(datum.value, utcmonth(datum.value) ? '%b' : '%Y')"
"""Labels of months: January is the year."""
_NEED = ("way", "week", "low", "need", "high", "chance")
_USE = {"requested_gpus": "asked for", "allocated_gpus": "held", "active_gpus": "at work"}
_SEEN = "seen"
_WAYS = {"today": "today's way", "recommended": "as recommended"}
_EVEN = 0.5
_FAR = 2.5
"""A line so many times above all else is not drawn to scale, and broken."""
_CURVE = ("quantile", "planned", "short", "cost")
_RUN_OUT = ("week", "over", "run_out_by", "q50")


def plot_need(frame: pl.DataFrame, *, gpus: int, best: str = "today") -> ChartType:
    """GPUs needed week by week, as it was and as it comes, beside those that there are.

    The line of capacity bears a ring where the fleet is more likely than not too small, and a thick bar over the weeks
    in which that becomes likely; the need does not begin at zero.

    Parameters
    ----------
    frame : polars.DataFrame
        ``way, week, low, need, high, chance``: the way ``"seen"``, ``"today"`` or ``"recommended"``, the first day of
        the week, GPUs needed with their range, and the chance that they were too few by its end; of what was seen range
        and chance are null.
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
    >>> rows = pl.DataFrame({"way": "today", "week": [date(2027, 3, 1), date(2027, 3, 8)], "low": [50.0, 52.0],
    ...     "need": [60.0, 66.0], "high": [70.0, 80.0], "chance": [0.4, 0.6]})
    >>> need_text(rows, gpus=64)
    "64 GPUs, more likely than not: today's way no longer enough by 8 Mar 2027."
    """
    require(frame, _NEED, where="plot_need")
    title = f"When {gpus:,} GPUs are no longer enough"
    words = _words(frame)
    if not words:
        return theme.saying("There is no week ahead.", title=title)
    rows = frame.filter(pl.col("way").is_in([_SEEN, *words])).with_columns(
        day=pl.col("week").cast(pl.Datetime("us", "UTC")),
        word=pl.col("way").replace(words | {_SEEN: "as it was"}),
    )
    seen, ahead = rows.filter(way=_SEEN).tail(_WEEKS_BACK), rows.filter(pl.col("way") != _SEEN)
    level, there_are = float(gpus), f"{gpus:,} there are"
    if all(_even(ahead.filter(way=way)).is_empty() for way in words):
        level, there_are = _level(
            gpus, there_are, float(rows.select(pl.max_horizontal("need", "high").max()).item())
        )
    low, high = _reach(pl.concat([seen, ahead]), level)
    both = theme.policy_colours(["today", best])
    colours = {"today": both["today"], "recommended": both[best]}
    full = {"today": theme.ALARM, "recommended": colours["recommended"]}
    x = alt.X("day:T", title=None, axis=alt.Axis(labelExpr=_MONTHS, labelAngle=0, tickCount=5, grid=False))
    scale = alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True)
    y = alt.Y("need:Q", title="GPUs needed", scale=scale, axis=alt.Axis(tickCount=5))
    hover = tips(
        word="need", week="week of", need=("GPUs", ",.1f"), low=("at least", ",.1f"), high=("at most", ",.1f"),
        chance=("too few by then", ".0%"),
    )  # fmt: skip
    there = chart_of(pl.DataFrame({"gpus": [level]})).encode(y=alt.Y("gpus:Q", scale=scale))
    parts: list[ChartType] = [there.mark_rule(color=theme.INK, size=1.5, strokeDash=_dash(level == gpus))]
    if seen.height:
        parts.append(chart_of(seen).mark_line(color=theme.INK, size=1.5).encode(x=x, y=y, tooltip=hover))
    looks = theme.scale(colours, [way for way in colours if way in words])
    colour = alt.Color("way:N", scale=looks, legend=None)
    dashes = alt.Scale(domain=["today", "recommended"], range=[[5, 3] if len(words) > 1 else [1, 0], [1, 0]])
    band = chart_of(ahead.filter(pl.col("way").is_in(list(words)))).mark_area(opacity=0.16)
    line = chart_of(ahead.filter(pl.col("way").is_in(list(words)))).mark_line(size=2)
    parts += [
        band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        line.encode(
            x=x,
            y=y,
            color=colour,
            strokeDash=alt.StrokeDash("way:N", scale=dashes, legend=None),
            tooltip=hover,
        ),
    ]
    last = ahead["day"].max()
    labels = [
        (f"need,\n{word}", min(float(ahead.filter(way=way)["need"][-1]), high), way)
        for way, word in words.items()
    ]
    for word, at, way in _apart(
        [*labels, (there_are.replace(", not", ",\nnot"), level, "there")], (high - low) / _HEIGHT, low
    ):
        end = chart_of(pl.DataFrame({"day": [last], "need": [at], "word": [word]}))
        colour_of_word = theme.INK if way == "there" else colours[way]
        parts.append(
            end.mark_text(
                align="left",
                dx=5,
                lineBreak="\n",
                color=colour_of_word,
                fontWeight=600 if way == "there" else 400,
            ).encode(x=x, y=y, text="word:N")
        )
    for number, (way, word) in enumerate(words.items()):
        parts += _full_marks(ahead.filter(way=way), word, gpus, full[way], x, scale, above=number == 0)
    finding = need_text(frame, gpus=gpus)
    return theme.finish(alt.layer(*parts), title=title, finding=finding, height=_HEIGHT, room=_ROOM)


def _apart(
    labels: Sequence[tuple[str, float, str]], pixel: float, low: float
) -> list[tuple[str, float, str]]:
    """Words at the ends of lines, from the top down, moved apart where two would touch."""
    found: list[tuple[str, float, str]] = []
    for word, at, way in sorted(labels, key=lambda label: -label[1]):
        room = pixel * _LABEL * (1 + word.count("\n"))
        at = at if not found else min(at, found[-1][1] - pixel * _LABEL * (1 + found[-1][0].count("\n")))
        found.append((word, max(at, low + room / 2), way))
    return found


def _full_marks(
    rows: pl.DataFrame, word: str, gpus: int, colour: str, x: alt.X, scale: alt.Scale, *, above: bool
) -> Iterator[ChartType]:
    """The ring of a run-out on the line of capacity, the bar of its range, and its date."""
    even = _even(rows)
    if even.is_empty():
        return
    likely = rows.filter(pl.col("chance") >= _UNLIKELY)
    last = rows.filter(pl.col("chance") >= 1 - _UNLIKELY).head(1)
    until = (last if last.height else rows.tail(1))["day"][0]
    spread = pl.DataFrame({"day": [likely["day"][0]], "until": [until], "gpus": [float(gpus)]})
    y = alt.Y("gpus:Q", scale=scale)
    yield (chart_of(spread).mark_rule(color=colour, size=5, opacity=0.5).encode(x=x, x2="until:T", y=y))
    said = f"{word}: full by {_day(even['week'][0])}"
    ring = chart_of(even.with_columns(gpus=pl.lit(float(gpus)), word=pl.lit(said))).encode(x=x, y=y)
    yield ring.mark_point(size=110, filled=True, fill="white", stroke=colour, strokeWidth=2.5, opacity=1)
    side: Literal["left", "right"] = "right" if even["day"][0] > rows["day"][len(rows) // 2] else "left"
    yield ring.mark_text(color=colour, fontWeight=600, align=side, dy=-20 if above else 20).encode(
        text="word:N"
    )


def _reach(rows: pl.DataFrame, gpus: float) -> tuple[float, float]:
    """Ends of the axis: all that was seen and what is most likely, as far as it can be read beside the capacity."""
    known = [float(one) for one in [*rows["need"].drop_nulls(), *rows["low"].drop_nulls(), gpus]]
    top = max([float(gpus), *rows["need"].drop_nulls(), *rows["high"].drop_nulls()])
    high = min(1.06 * top, max(1.6 * gpus, 1.1 * float(rows.filter(way=_SEEN)["need"].max() or 0.0)))  # type: ignore[arg-type]
    return max(0.94 * min(known), 0.0), max(high, 1.15 * gpus)


def need_text(frame: pl.DataFrame, *, gpus: int) -> str:
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
    needs = [frame.filter(way=way)["need", "chance"].rows() for way in there]
    return {"today": "either way"} if len(there) > 1 and needs[0] == needs[1] else there


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
