"""Charts of capacity, sharing and queue waits."""

from __future__ import annotations

from datetime import timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.units import wait_text
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    MAX_ROWS,
    chart_of,
    drawn,
    each,
    folded,
    heading,
    in_order,
    ranked,
    stacked,
    tips,
)

WITHIN, ABOVE, MISSING = "held, within entitlement", "held, above entitlement", "due, but not given"
NOBODY = "-"
_PARTS = {WITHIN: "held_gpu_hours", ABOVE: "above_gpu_hours", MISSING: "deficit_gpu_hours"}
_COLOURS = {WITHIN: theme.BLUE, ABOVE: theme.SKY, MISSING: theme.VERMILION}
_SHARES = ("tenant", "slot_s", "gpus")
_PAIRS = ("borrower", "lender", "gpu_hours")


@drawn("GPUs held over time, by tenant", *_SHARES, empty="No tenant held a GPU.")
def plot_tenant_shares(shares: pl.DataFrame, *, top: int = 8) -> ChartType:
    """GPUs that tenants held over time, stacked.

    Parameters
    ----------
    shares : polars.DataFrame
        ``tenant, slot_s, gpus``, as :func:`gpuplanner.usage.fair_share.shares_over_time` makes it. Slots are averaged
        until the chart is small enough.
    top : int
        Tenants with an area of their own: those that held most.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a", "a"], "slot_s": [0.0, 3600.0], "gpus": [4.0, 2.0]})
    >>> plot_tenant_shares(frame).to_dict()["title"]
    'GPUs held over time, by tenant'
    """
    names = folded(ranked(shares, "tenant", "gpus"), top)
    order = each(names)
    starts = shares["slot_s"].unique().sort()
    together = -(-len(starts) * len(order) // MAX_ROWS)
    bins = pl.DataFrame({"slot_s": starts, "bin": pl.int_range(len(starts), eager=True) // together})
    ranks = {name: rank for rank, name in enumerate(order)}
    rows = (
        shares.join(bins, on="slot_s")
        .group_by("bin", "slot_s", tenant=pl.col("tenant").replace_strict(names))
        .agg(pl.col("gpus").sum())
        .group_by("bin", "tenant")
        .agg(pl.col("gpus").mean(), hour=pl.col("slot_s").min() / 3600.0)
        .sort("bin", "tenant")
        .select("tenant", "gpus", "hour", rank=pl.col("tenant").replace_strict(ranks))
    )
    chart: alt.Chart = (
        chart_of(rows)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("hour:Q", title="hours from the start", scale=alt.Scale(nice=False)),
            y=alt.Y("gpus:Q", title="GPUs held", stack="zero"),
            color=alt.Color("tenant:N", title=None, scale=theme.scale(theme.numbered(order), order)),
            order=alt.Order("rank:Q"),
            tooltip=tips(tenant="tenant", hour=("from hour", ",.1f"), gpus=("GPUs held", ",.1f")),
        )
    )
    return theme.finish(chart, height=260)


@drawn("GPU-hours held and missing, by tenant", "tenant", *_PARTS.values(), empty="There is no tenant.")
def plot_entitlements(accounts: pl.DataFrame, *, top: int = 15) -> ChartType:
    """GPU-hours of each tenant: held within its entitlement, above it, and due but not given.

    Parameters
    ----------
    accounts : polars.DataFrame
        ``tenant, held_gpu_hours, above_gpu_hours, deficit_gpu_hours``, as
        :func:`gpuplanner.usage.fair_share.tenant_accounts` makes it.
    top : int
        Tenants shown: those that lack most, then those that hold most above.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a"], "held_gpu_hours": [9.0], "above_gpu_hours": [3.0],
    ...     "deficit_gpu_hours": [0.0]})
    >>> plot_entitlements(frame).to_dict()["title"]
    'GPU-hours held and missing, by tenant'
    """
    most = ["deficit_gpu_hours", "above_gpu_hours", "tenant"]
    shown = accounts.sort(most, descending=[True, True, False]).head(top)
    order = shown["tenant"].to_list()
    within = (pl.col("held_gpu_hours") - pl.col("above_gpu_hours")).clip(lower_bound=0.0)
    parts = shown.select(
        "tenant", within.alias(WITHIN), *(pl.col(_PARTS[part]).alias(part) for part in (ABOVE, MISSING))
    ).unpivot(list(_PARTS), index="tenant", variable_name="part", value_name="gpu_hours")
    x = alt.X("gpu_hours:Q", title="GPU-hours")
    hover = tips(tenant="tenant", part="part", gpu_hours=("GPU-hours", ",.1f"))
    chart = stacked(parts, x, y="tenant", order=order, part="part", colours=_COLOURS, hover=hover)
    return theme.finish(chart, bands=order, legend=200)


def entitlements_text(accounts: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_entitlements`: who lacks most.

    Examples
    --------
    >>> entitlements_text(pl.DataFrame({"tenant": ["a", "b"], "deficit_gpu_hours": [0.0, 4.0]}))
    '1 of 2 tenants lack GPU-hours that are due to them; b lacks most, 4.0.'
    """
    lacking = accounts.filter(pl.col("deficit_gpu_hours") > 0)
    if lacking.is_empty():
        return "No tenant lacks GPU-hours that are due to it."
    row = lacking.sort("deficit_gpu_hours", "tenant", descending=[True, False]).row(0, named=True)
    return (
        f"{lacking.height} of {accounts.height} tenants lack GPU-hours that are due to them; "
        f"{row['tenant']} lacks most, {row['deficit_gpu_hours']:,.1f}."
    )


@drawn(
    "GPU-hours borrowed, by borrower and lender",
    *_PAIRS,
    empty="No tenant held more than its entitlement, and none lacked any.",
)
def plot_borrowing(borrowed: pl.DataFrame, *, top: int = 12) -> ChartType:
    """GPU-hours that each tenant (row) held above its entitlement at the cost of each other one (column).

    Parameters
    ----------
    borrowed : polars.DataFrame
        ``borrower, lender, gpu_hours``, as :func:`gpuplanner.usage.fair_share` makes it, where ``-`` is nobody:
        as borrower GPUs that stood idle, as lender entitlement that nobody claimed.
    top : int
        Borrowers and lenders with a row or column of their own; the others are added up.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"borrower": ["a", "-"], "lender": ["b", "b"], "gpu_hours": [4.0, 1.0]})
    >>> plot_borrowing(frame).to_dict()["title"]
    'GPU-hours borrowed, by borrower and lender'
    """
    sides = {}
    for side, nobody in {"borrower": "idle GPUs", "lender": "unclaimed"}.items():
        known = ranked(borrowed.filter(pl.col(side) != NOBODY), side, "gpu_hours")
        sides[side] = folded(known, top) | {NOBODY: nobody}
    rows = (
        borrowed.with_columns(pl.col(side).replace_strict(names) for side, names in sides.items())
        .group_by("borrower", "lender")
        .agg(pl.col("gpu_hours").sum())
        .sort("borrower", "lender")
    )
    lenders, borrowers = (
        [name for name in each(sides[side]) if name in rows[side]] for side in ("lender", "borrower")
    )
    half = float(rows["gpu_hours"].max()) / 2  # type: ignore[arg-type]
    base = chart_of(rows).encode(
        x=alt.X("lender:N", title="from", sort=lenders, axis=alt.Axis(labelAngle=-35, labelLimit=120)),
        y=alt.Y("borrower:N", title="borrower", sort=borrowers),
    )
    shades = alt.Scale(range=[theme.EMPTY, theme.BLUE], zero=True)
    cells = base.mark_rect().encode(
        color=alt.Color("gpu_hours:Q", legend=None, scale=shades),
        tooltip=tips(borrower="borrower", lender="from", gpu_hours=("GPU-hours", ",.1f")),
    )
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("gpu_hours:Q", format=",.1f"),
        color=alt.condition(f"datum.gpu_hours > {half!r}", alt.value("white"), alt.value(theme.INK)),
    )
    height, names = theme.BAND_HEIGHT * len(borrowers), theme.label_width(borrowers) + 20
    return theme.finish(alt.layer(cells, numbers), height=height, names=names)


def borrowing_text(borrowed: pl.DataFrame) -> str:
    """Text alternative of :func:`plot_borrowing`: how much was borrowed, and the largest pair.

    Examples
    --------
    >>> borrowing_text(pl.DataFrame({"borrower": ["a", "-"], "lender": ["b", "b"], "gpu_hours": [4.0, 1.0]}))
    'Tenants borrowed 4.0 GPU-hours that were due to others; most a from b, 4.0. 1.0 more ... GPUs were idle.'
    """
    between = borrowed.filter(pl.col("borrower") != NOBODY, pl.col("lender") != NOBODY)
    idle = float(borrowed.filter(pl.col("borrower") == NOBODY)["gpu_hours"].sum())
    rest = f" {idle:,.1f} more were due while GPUs were idle." if idle else ""
    if between.is_empty():
        return f"No tenant held GPUs that were due to another.{rest}"
    row = between.sort("gpu_hours", descending=True, maintain_order=True).row(0, named=True)
    return (
        f"Tenants borrowed {between['gpu_hours'].sum():,.1f} GPU-hours that were due to others; most "
        f"{row['borrower']} from {row['lender']}, {row['gpu_hours']:,.1f}.{rest}"
    )


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
        parts += _capacity_line(level, word, y, solid=level == gpus)
    return theme.finish(alt.layer(*parts), finding=use_text(frame), height=_HEIGHT, room=80)


def _capacity_line(level: float, word: str, y: alt.Y, *, solid: bool) -> list[alt.Chart]:
    """The line of what there is with its word, broken where it is not to scale or not known."""
    there = chart_of(pl.DataFrame({"gpus": [level], "word": [word]})).encode(y=y)
    return [
        there.mark_rule(color=theme.INK, size=1.5, strokeDash=[1, 0] if solid else [2, 4]),
        there.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), text="word:N"),
    ]


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
    hover = tips(day="day", gpus=("GPUs, busiest hour", ",.0f"))
    chart = alt.layer(
        chart_of(rows)
        .mark_bar(color=theme.BLUE, stroke="white", strokeWidth=1)
        .encode(x=x, x2="day_end:T", y=y, y2=alt.datum(0), tooltip=hover),
        *_capacity_line(level, word, y, solid=known and level == gpus),
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


_COLUMNS = ("layout", "gpus", "job_size", "p95_minutes", "low", "high")
_TICKS = [0, 1, 10, 60, 600, 6000]
_WAIT_CHART_HEIGHT = 130
MOST_PANELS = 4
"""Job sizes that are drawn, those that wait longest."""


@drawn("Queue wait against number of GPUs", *_COLUMNS, empty="The record carries no wait curve.")
def plot_wait_curve(frame: pl.DataFrame, *, today: int, recommended: int, limits: pl.DataFrame) -> ChartType:
    """One panel per job size: p95 queue wait of today's layout, and bold with its interval that of the recommendation.

    A ring marks today's number of GPUs, a dot the recommended one, a dashed line the limit.

    Parameters
    ----------
    frame : polars.DataFrame
        ``layout, gpus, job_size, p95_minutes, low, high``; the layout ``"today"`` or ``"recommended"``.
    today, recommended : int
        GPUs today, and under the recommendation.
    limits : polars.DataFrame
        ``job_size, limit_minutes``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> rows = pl.DataFrame({"layout": "today", "gpus": [8, 16], "job_size": "1 GPU", "p95_minutes": [90.0, 2.0],
    ...     "low": [60.0, 0.0], "high": [120.0, 5.0]})
    >>> limits = pl.DataFrame({"job_size": ["1 GPU"], "limit_minutes": [30.0]})
    >>> len(plot_wait_curve(rows, today=8, recommended=16, limits=limits).to_dict()["concat"])
    1
    """
    bold = "recommended" if "recommended" in frame["layout"] else "today"
    y_scale = alt.Scale(type="symlog", constant=1, nice=False)
    x = alt.X("gpus:Q", title="GPUs", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=5))
    axis = alt.Axis(
        values=_TICKS, labelExpr="datum.value >= 120 ? datum.value / 60 + ' h' : datum.value + ' min'"
    )
    y = alt.Y("p95_minutes:Q", title="p95 queue wait", scale=y_scale, axis=axis)
    hover = tips(
        layout="layout",
        gpus="GPUs",
        p95_minutes=("p95 [min]", ",.1f"),
        low=("from", ",.1f"),
        high=("to", ",.1f"),
    )

    def panel(size: str) -> ChartType:
        mine = frame.filter(job_size=size)
        drawn_bold = mine.filter(layout=bold)
        layers: list[ChartType] = [
            chart_of(drawn_bold)
            .mark_area(opacity=0.16, color=theme.BLUE)
            .encode(x=x, y=alt.Y("low:Q", scale=y_scale, axis=axis, title="p95 queue wait"), y2="high:Q"),
            chart_of(limits.filter(job_size=size))
            .mark_rule(color=theme.INK, strokeDash=[4, 3])
            .encode(y=alt.Y("limit_minutes:Q", scale=y_scale)),
        ]
        if bold != "today":
            thin = chart_of(mine.filter(layout="today")).mark_line(color=theme.QUIET, size=1.5)
            layers.append(thin.encode(x=x, y=y, tooltip=hover))
        layers.append(
            chart_of(drawn_bold).mark_line(color=theme.BLUE, size=2.5).encode(x=x, y=y, tooltip=hover)
        )
        ring = chart_of(mine.filter(layout="today", gpus=today)).mark_point(
            color=theme.INK, size=80, strokeWidth=2
        )
        dot = chart_of(drawn_bold.filter(gpus=recommended)).mark_point(
            color=theme.BLUE, size=90, filled=True, opacity=1
        )
        layers += [one.encode(x=x, y=y, tooltip=hover) for one in (ring, dot)]
        return alt.layer(*layers).properties(height=_WAIT_CHART_HEIGHT, title=heading(size))

    sizes = in_order(frame, "job_size")
    waits = {size: float(frame.filter(job_size=size)["p95_minutes"].max() or 0.0) for size in sizes}  # type: ignore[arg-type]
    longest = sorted(sizes, key=lambda size: -waits[size])[:MOST_PANELS]
    chart = alt.concat(*[panel(size) for size in sizes if size in longest], columns=2)
    finding = wait_curve_text(frame, today=today, recommended=recommended)
    return theme.finish(chart, finding=finding, panels={"columns": 2, "minimum": 250, "margin": 24})


def wait_curve_text(frame: pl.DataFrame, *, today: int, recommended: int) -> str:
    """What the curve says of the size that waits longest.

    Examples
    --------
    >>> rows = pl.DataFrame({"layout": "today", "gpus": [8, 16], "job_size": "1 GPU", "p95_minutes": [90.0, 2.0]})
    >>> wait_curve_text(rows, today=8, recommended=16)
    'Jobs on 1 GPU wait 90 min (p95) on 8 GPUs today, and 2 min on 16 as recommended.'
    """
    now = frame.filter(layout="today", gpus=today).sort("p95_minutes", descending=True)
    bold = "recommended" if "recommended" in frame["layout"] else "today"
    if now.is_empty():
        return ""
    size = now["job_size"][0]
    text = f"Jobs on {size} wait {wait_text(now['p95_minutes'][0])} (p95) on {today:,} GPUs today"
    then = frame.filter(layout=bold, gpus=recommended, job_size=size)
    if then.is_empty() or (bold == "today" and today == recommended):
        return f"{text}."
    return f"{text}, and {wait_text(then['p95_minutes'][0])} on {recommended:,} as recommended."
