"""Charts of GPU capacity, shares of teams and queue waits."""

from __future__ import annotations

import math
from datetime import timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.units_and_number_formats import day_text, gpu_figure_text, gpus_text, percent_text, wait_text
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    MAX_CHART_ROWS,
    fold_names,
    folded_names,
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    panel_title,
    rank_names,
    stack_bars,
)

WITHIN_SHARE_LABEL, BORROWED_LABEL, SHORTFALL_LABEL = "within quota or fair share", "borrowed", "shortfall"
"""Legend labels of the parts of a team's GPU-hours."""
NO_PARTY = "-"
"""Borrower of idle GPUs, or lender of unclaimed quota, where no team is involved."""
_FAIR_SHARE_PART_COLUMNS = {
    WITHIN_SHARE_LABEL: "allocated_gpu_hours",
    BORROWED_LABEL: "above_gpu_hours",
    SHORTFALL_LABEL: "deficit_gpu_hours",
}
"""Column of GPU-hours of each part of a team's bar, by legend label."""
_FAIR_SHARE_PART_COLOURS = {WITHIN_SHARE_LABEL: theme.BLUE, BORROWED_LABEL: theme.SKY, SHORTFALL_LABEL: theme.VERMILION}
"""Colour of each part of a team's bar, by legend label."""
_TEAM_ALLOCATION_COLUMNS = ("tenant", "slot_s", "gpus")
"""Columns that :func:`plot_tenant_shares` needs."""
_BORROWING_COLUMNS = ("borrower", "lender", "gpu_hours")
"""Columns that :func:`plot_borrowing` needs."""


@frame_chart("GPUs allocated over time, by team", *_TEAM_ALLOCATION_COLUMNS, empty="No GPU was allocated.")
def plot_tenant_shares(shares: pl.DataFrame, *, top: int = 8) -> ChartType:
    """Plot the GPUs allocated to each team over time, stacked.

    Parameters
    ----------
    shares : polars.DataFrame
        ``tenant, slot_s, gpus``, from :func:`gpuplanner.usage.fair_share.shares_over_time`. Intervals are averaged
        until the chart is small enough.
    top : int
        Teams with an area of their own: those with most GPUs.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a", "a"], "slot_s": [0.0, 3600.0], "gpus": [4.0, 2.0]})
    >>> plot_tenant_shares(frame).to_dict()["title"]
    'GPUs allocated over time, by team'
    """
    names = fold_names(rank_names(shares, "tenant", "gpus"), top)
    order = folded_names(names)
    starts = shares["slot_s"].unique().sort()
    slots_per_bin = -(-len(starts) * len(order) // MAX_CHART_ROWS)
    bins = pl.DataFrame({"slot_s": starts, "bin": pl.int_range(len(starts), eager=True) // slots_per_bin})
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
        make_chart(rows)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("hour:Q", title="hours from the start of the record", scale=alt.Scale(nice=False)),
            y=alt.Y("gpus:Q", title="GPUs allocated", stack="zero"),
            color=alt.Color("tenant:N", title=None, scale=theme.colour_scale(theme.assign_colours(order), order)),
            order=alt.Order("rank:Q"),
            tooltip=make_tooltips(tenant="team", hour=("from hour", ",.1f"), gpus=("GPUs allocated", ",.1f")),
        )
    )
    return theme.finish(chart, height=260)


@frame_chart(
    "GPU-hours allocated and short, by team", "tenant", *_FAIR_SHARE_PART_COLUMNS.values(), empty="There is no team."
)
def plot_entitlements(accounts: pl.DataFrame, *, top: int = 15) -> ChartType:
    """Plot GPU-hours of each team: within its quota or fair share, borrowed above it, and its shortfall.

    Parameters
    ----------
    accounts : polars.DataFrame
        ``tenant, allocated_gpu_hours, above_gpu_hours, deficit_gpu_hours``, from
        :func:`gpuplanner.usage.fair_share.tenant_accounts`.
    top : int
        Teams shown: those with the largest shortfall, then those that borrow most.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> frame = pl.DataFrame({"tenant": ["a"], "allocated_gpu_hours": [9.0], "above_gpu_hours": [3.0],
    ...     "deficit_gpu_hours": [0.0]})
    >>> plot_entitlements(frame).to_dict()["title"]
    'GPU-hours allocated and short, by team'
    """
    sort_columns = ["deficit_gpu_hours", "above_gpu_hours", "tenant"]
    shown = accounts.sort(sort_columns, descending=[True, True, False]).head(top)
    order = shown["tenant"].to_list()
    within = (pl.col("allocated_gpu_hours") - pl.col("above_gpu_hours")).clip(lower_bound=0.0)
    parts = shown.select(
        "tenant",
        within.alias(WITHIN_SHARE_LABEL),
        *(pl.col(_FAIR_SHARE_PART_COLUMNS[part]).alias(part) for part in (BORROWED_LABEL, SHORTFALL_LABEL)),
    ).unpivot(list(_FAIR_SHARE_PART_COLUMNS), index="tenant", variable_name="part", value_name="gpu_hours")
    x = alt.X("gpu_hours:Q", title="GPU-hours")
    hover = make_tooltips(tenant="team", part="part", gpu_hours=("GPU-hours", ",.1f"))
    chart = stack_bars(parts, x, y="tenant", order=order, part="part", colours=_FAIR_SHARE_PART_COLOURS, hover=hover)
    return theme.finish(chart, bands=order, legend=200)


def entitlements_text(accounts: pl.DataFrame) -> str:
    """Write the text alternative of :func:`plot_entitlements`: the team with the largest shortfall.

    Examples
    --------
    >>> entitlements_text(pl.DataFrame({"tenant": ["a", "b"], "deficit_gpu_hours": [0.0, 4.0]}))
    'The largest shortfall is that of b, 4.0 GPU-hours.'
    """
    lacking = accounts.filter(pl.col("deficit_gpu_hours") > 0)
    if lacking.is_empty():
        return "No team has a shortfall."
    row = lacking.sort("deficit_gpu_hours", "tenant", descending=[True, False]).row(0, named=True)
    return f"The largest shortfall is that of {row['tenant']}, {row['deficit_gpu_hours']:,.1f} GPU-hours."


@frame_chart("GPU-hours borrowed, by borrower and lender", *_BORROWING_COLUMNS,
             empty="No team borrowed GPU-hours, and none has a shortfall.")  # fmt: skip
def plot_borrowing(borrowed: pl.DataFrame, *, top: int = 12) -> ChartType:
    """Plot the GPU-hours that each team (row) borrowed from each other team (column).

    Parameters
    ----------
    borrowed : polars.DataFrame
        ``borrower, lender, gpu_hours``, from :func:`gpuplanner.usage.fair_share.borrowed_hours`; ``-`` is no team: idle
        GPUs as borrower, unclaimed quota as lender.
    top : int
        Borrowers and lenders with a row or column of their own; the others are summed.

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
    for side, word in {"borrower": "(idle GPUs)", "lender": "(no team)"}.items():
        names_by_hours = rank_names(borrowed.filter(pl.col(side) != NO_PARTY), side, "gpu_hours")
        sides[side] = fold_names(names_by_hours, top) | {NO_PARTY: word}
    rows = (
        borrowed.with_columns(pl.col(side).replace_strict(names) for side, names in sides.items())
        .group_by("borrower", "lender")
        .agg(pl.col("gpu_hours").sum())
        .sort("borrower", "lender")
    )
    lenders = [name for name in folded_names(sides["lender"]) if name in rows["lender"]]
    borrowers = [name for name in folded_names(sides["borrower"]) if name in rows["borrower"]]
    half = float(rows["gpu_hours"].max()) / 2  # type: ignore[arg-type]
    base = make_chart(rows).encode(
        x=alt.X("lender:N", title="team short", sort=lenders, axis=alt.Axis(labelAngle=-35, labelLimit=120)),
        y=alt.Y("borrower:N", title="team above its share", sort=borrowers),
    )
    shades = alt.Scale(range=[theme.EMPTY, theme.BLUE], zero=True)
    cells = base.mark_rect().encode(
        color=alt.Color("gpu_hours:Q", legend=None, scale=shades),
        tooltip=make_tooltips(borrower="team above its share", lender="team short", gpu_hours=("GPU-hours", ",.1f")),
    )
    numbers = base.mark_text(fontSize=11).encode(
        text=alt.Text("gpu_hours:Q", format=",.1f"),
        color=alt.condition(f"datum.gpu_hours > {half!r}", alt.value("white"), alt.value(theme.INK)),
    )
    height, names = theme.BAR_ROW_HEIGHT_PX * len(borrowers), theme.label_width(borrowers) + 20
    return theme.finish(alt.layer(cells, numbers), height=height, names=names)


def borrowing_text(borrowed: pl.DataFrame) -> str:
    """Write the text alternative of :func:`plot_borrowing`: GPU-hours borrowed, and the largest pair.

    Examples
    --------
    >>> borrowing_text(pl.DataFrame({"borrower": ["a", "-"], "lender": ["b", "b"], "gpu_hours": [4.0, 1.0]}))
    'Of the shortfall, 4.0 GPU-hours were allocated to teams above their share, most to a; the largest...
    """
    between = borrowed.filter(pl.col("borrower") != NO_PARTY, pl.col("lender") != NO_PARTY)
    idle = float(borrowed.filter(pl.col("borrower") == NO_PARTY)["gpu_hours"].sum())
    idle_text = f" {idle:,.1f} were short while GPUs were idle." if idle else ""
    if between.is_empty():
        return f"No team was short while another was above its share.{idle_text}"
    row = between.sort("gpu_hours", descending=True, maintain_order=True).row(0, named=True)
    sums = between.group_by("borrower", maintain_order=True).agg(pl.col("gpu_hours").sum())
    main_borrower = sums.sort("gpu_hours", "borrower", descending=[True, False])["borrower"][0]
    return (
        f"Of the shortfall, {between['gpu_hours'].sum():,.1f} GPU-hours were allocated to teams above their share, "
        f"most to {main_borrower}; the largest single case: {row['gpu_hours']:,.1f} to {row['borrower']} while "
        f"{row['lender']} was short.{idle_text}"
    )


_USE_CHART_HEIGHT_PX = 172
"""Height of the chart of :func:`plot_use` [px]."""
_LABEL_GAP_PX = 15
"""Minimum vertical distance between the labels at the ends of lines [px]."""
_USE_LABELS = {"requested_gpus": "requested", "allocated_gpus": "allocated", "active_gpus": "active"}
"""Labels of the lines of :func:`plot_use`, by column."""
_MAX_CAPACITY_TO_PEAK_RATIO = 2.5
"""Installed GPUs above this multiple of the highest value are drawn lower, as a dotted line beyond the scale."""
_COST_CURVE_COLUMNS = ("quantile", "planned", "short", "cost")
"""Columns that :func:`plot_cost_curve` needs."""


@frame_chart("GPUs requested, allocated and active", *("day", *_USE_LABELS), empty="There is no day in the record.")
def plot_use(frame: pl.DataFrame, *, gpus: int, is_counted: bool = True) -> ChartType:
    """Plot mean GPUs by day: requested, allocated and active, with installed GPUs.

    Parameters
    ----------
    frame : polars.DataFrame
        ``day, requested_gpus, allocated_gpus, active_gpus``; null where nothing was measured.
    gpus : int
        Installed GPUs.
    is_counted : bool
        Whether installed GPUs come from a node list; otherwise there is no line of capacity.

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
    'On average 30 GPUs were requested and 24 allocated; active GPUs: no telemetry.'
    """
    long = (
        frame.unpivot(list(_USE_LABELS), index="day", variable_name="what", value_name="gpus")
        .drop_nulls("gpus")
        .with_columns(pl.col("day").cast(pl.Datetime("us", "UTC")), word=pl.col("what").replace_strict(_USE_LABELS))
        .sort("what", "day")
    )
    shown = [name for name in _USE_LABELS if name in long["what"]]
    highest = min(long["gpus"].quantile(1.0) or 1.0, 2 * (long["gpus"].quantile(0.98) or 1.0))
    level, word = _place_capacity_line(gpus, f"{gpus:,} installed", highest)
    top = max(highest, level if is_counted else 0.0) * 1.12
    colours = dict(zip(_USE_LABELS, (theme.MUTED, theme.INK, theme.BLUE), strict=True))
    axis = alt.Axis(format="%-d %b", labelAngle=0, tickCount=6, grid=False)
    x = alt.X("day:T", title=None, scale=alt.Scale(type="utc"), axis=axis)
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False, clamp=True))
    colour = alt.Color("what:N", scale=theme.colour_scale(colours, shown), legend=None)
    # Lines end with the last day, not where it begins.
    ends = long.group_by("what", maintain_order=True).tail(1).with_columns(pl.col("day").dt.offset_by("1d"))
    long, ends = pl.concat([long, ends.select(long.columns)]), ends.sort("gpus", descending=True)
    label_positions: list[float] = []
    for value in ends["gpus"]:
        position = min(value, top)
        if label_positions:
            position = min(position, label_positions[-1] - top * _LABEL_GAP_PX / _USE_CHART_HEIGHT_PX)
        label_positions.append(position)
    shift = max(-min([0.0, *label_positions]), 0.0)
    labels = ends.with_columns(gpus=pl.Series([position + shift for position in label_positions], dtype=pl.Float64))
    line = make_chart(long).mark_line(size=1.8, interpolate="step-after")
    parts: list[ChartType] = [
        line.encode(x=x, y=y, color=colour, tooltip=make_tooltips(word="GPUs", day="day", gpus=("on average", ",.1f"))),
        make_chart(labels).mark_text(align="left", dx=5).encode(x=x, y=y, text="word:N", color=colour),
    ]
    if is_counted:
        parts += _draw_capacity_line(level, word, y, solid=level == gpus)
    return theme.finish(alt.layer(*parts), finding=use_text(frame), height=_USE_CHART_HEIGHT_PX, room=80)


def _draw_capacity_line(level: float, word: str, y: alt.Y, *, solid: bool) -> list[alt.Chart]:
    """Draw the horizontal line of installed GPUs with its label; dotted unless `solid`."""
    capacity = make_chart(pl.DataFrame({"gpus": [level], "word": [word]})).encode(y=y)
    return [
        capacity.mark_rule(color=theme.INK, size=1.5, strokeDash=[1, 0] if solid else [2, 4]),
        capacity.mark_text(align="left", dy=-8, fontWeight=600).encode(x=alt.value(4), text="word:N"),
    ]


def _place_capacity_line(gpus: int, word: str, highest: float) -> tuple[float, str]:
    """Return height and label of the line of installed GPUs; far above all values, it is lower, beyond the scale."""
    if gpus <= _MAX_CAPACITY_TO_PEAK_RATIO * highest or highest <= 0:
        return float(gpus), word
    return 1.25 * highest, f"{word} (beyond the scale)"


def use_text(frame: pl.DataFrame) -> str:
    """Describe the mean GPUs requested, allocated and active: the text alternative of :func:`plot_use`."""
    if frame.is_empty():
        return "There is no day in the record."
    requested, allocated, active = frame.select(pl.col(list(_USE_LABELS)).cast(pl.Float64).mean()).row(0)
    text = f"On average {gpus_text(requested)} were requested and {gpu_figure_text(allocated)} allocated; "
    if active is None:
        return text + "active GPUs: no telemetry."
    text += f"{gpu_figure_text(active)} active: allocated GPUs times the SM activity of their jobs, so fewer than used."
    return text


@frame_chart("GPUs allocated in the busiest hour of each day", "day", "gpus", empty="There is no day in the record.")
def plot_peaks(frame: pl.DataFrame, *, gpus: int, is_counted: bool = True) -> ChartType:
    """Plot the GPUs allocated in the busiest hour of each day, with installed GPUs.

    Parameters
    ----------
    frame : polars.DataFrame
        ``day, gpus``: GPUs allocated in the busiest hour of the day.
    gpus : int
        Installed GPUs.
    is_counted : bool
        Whether installed GPUs come from a node list; otherwise the line shows the peak observed.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import date
    >>> rows = pl.DataFrame({"day": [date(2026, 9, 23), date(2026, 9, 24)], "gpus": [9.0, 14.0]})
    >>> peaks_text(rows)
    'Peak: 14 GPUs allocated on average in an hour, on 24 Sep 2026.'
    """
    rows = frame.with_columns(
        day_start=pl.col("day").cast(pl.Datetime("us", "UTC")),
        day_end=(pl.col("day") + timedelta(days=1)).cast(pl.Datetime("us", "UTC")),
    )
    highest = float(rows["gpus"].max())  # type: ignore[arg-type]
    installed = f"{gpus:,} installed" if is_counted else f"{gpus:,}, inferred from the peak observed"
    level, word = _place_capacity_line(gpus, installed, highest)
    top = max(highest, level) * 1.12
    # At days of the data only: the axis ends where the day after the last one begins.
    days = [int(day.timestamp() * 1000) for day in rows["day_start"].sort().gather_every(-(-rows.height // 6))]
    axis = alt.Axis(format="%-d %b", labelAngle=0, values=days, grid=False)
    x = alt.X("day_start:T", title=None, scale=alt.Scale(type="utc"), axis=axis)
    y = alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, top], nice=False))
    hover = make_tooltips(day="day", gpus=("GPUs allocated, busiest hour", ",.0f"))
    chart = alt.layer(
        make_chart(rows)
        .mark_bar(color=theme.BLUE, stroke="white", strokeWidth=1)
        .encode(x=x, x2="day_end:T", y=y, y2=alt.datum(0), tooltip=hover),
        *_draw_capacity_line(level, word, y, solid=is_counted and level == gpus),
    )
    return theme.finish(chart, finding=peaks_text(frame), height=150, room=12)


def peaks_text(frame: pl.DataFrame) -> str:
    """Describe the peak of allocated GPUs and its day in a sentence, the text alternative of :func:`plot_peaks`."""
    if frame.is_empty():
        return "There is no day in the record."
    peak = frame.sort("gpus", descending=True, maintain_order=True).row(0, named=True)
    return f"Peak: {gpus_text(peak['gpus'])} allocated on average in an hour, on {day_text(peak['day'])}."


@frame_chart("Cost of planning at a quantile", *_COST_CURVE_COLUMNS, empty="There is no quantile.")
def plot_cost_curve(frame: pl.DataFrame) -> ChartType:
    """Plot the cost of planning GPUs for each quantile of the demand forecast, with a mark at the cheapest.

    Parameters
    ----------
    frame : polars.DataFrame
        ``quantile, planned, short, cost``: quantile [0-1], GPU-hours planned, GPU-hours missing, and their cost.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    amounts = {name: (name, ",.1f") for name in ("planned", "short", "cost")}
    hover = make_tooltips(quantile=("quantile", ".1%"), **amounts)
    base = make_chart(frame.select(_COST_CURVE_COLUMNS).sort("quantile")).encode(
        x=alt.X("quantile:Q", title="planned quantile [%]", axis=alt.Axis(format="%")),
        y=alt.Y("cost:Q", title="cost [GPU h an hour]", scale=alt.Scale(zero=False)),
        tooltip=hover,
    )
    lowest = base.transform_window(place="rank()", sort=[alt.SortField("cost")]).transform_filter("datum.place == 1")
    chart = alt.layer(
        base.mark_line(color=theme.BLUE, strokeWidth=1.8),
        lowest.mark_point(color=theme.VERMILION, size=110, filled=True),
    )
    cheapest = frame.sort("cost").row(0, named=True)
    return theme.finish(chart, height=200, finding=f"Cheapest quantile: {percent_text(cheapest['quantile'])}.")


_WAIT_CURVE_COLUMNS = ("layout", "gpus", "job_size", "p95_minutes", "low", "high")
"""Columns that :func:`plot_wait_curve` needs."""
_WAIT_TICKS_MIN = [0, 10, 60, 360, 1440, 10080]
"""Ticks of the axis of queue waits [min]."""
_WAIT_TICK_LABEL = """datum.value >= 1440 ? datum.value / 1440 + ' d'
    : datum.value >= 60 ? datum.value / 60 + ' h' : datum.value + ' min'"""
"""Vega expression that labels a tick given in minutes as minutes, hours or days."""
_WAIT_PANEL_HEIGHT_PX = 112
"""Height of the panel of a job size in :func:`plot_wait_curve` [px]."""
MAX_WAIT_PANELS = 3
"""Number of job sizes with a panel: the one that sets the number of GPUs, then those with the longest p95 wait."""


@frame_chart("Queue wait against number of GPUs", *_WAIT_CURVE_COLUMNS, empty="The record carries no wait curve.")
def plot_wait_curve(frame: pl.DataFrame, *, today: int, recommended: int, limits: pl.DataFrame) -> ChartType:
    """Plot p95 queue wait against the number of GPUs, one panel per job size.

    Lines show today's layout (thin) and the recommended one (bold, with interval); triangles at the top edge show jobs
    that never start. A ring marks today's number of GPUs, a dot the recommended one, a dashed line the wait limit. The
    job size that sets the number of GPUs, because it exceeds its limit on the next smaller fleet, is always drawn;
    others only if their p95 wait is above a minute.

    Parameters
    ----------
    frame : polars.DataFrame
        ``layout, gpus, job_size, p95_minutes, low, high``; the layout ``"today"`` or ``"recommended"``; waits of jobs
        that never start are null.
    today, recommended : int
        GPUs today, and as recommended.
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
    x = alt.X("gpus:Q", title="GPUs", stack=None, scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(tickCount=5))
    axis = alt.Axis(values=_WAIT_TICKS_MIN, labelExpr=_WAIT_TICK_LABEL)
    hover = make_tooltips(
        layout="layout",
        gpus="GPUs",
        p95_minutes=("p95 queue wait [min]", ",.1f"),
        low=("80 % interval, low [min]", ",.1f"),
        high=("80 % interval, high [min]", ",.1f"),
    )

    def draw_wait_panel(size: str) -> ChartType:
        size_rows = frame.filter(job_size=size)
        drawn_bold, size_limits = size_rows.filter(layout=bold), limits.filter(job_size=size)
        longest = [size_rows["p95_minutes"].max(), drawn_bold["high"].max(), size_limits["limit_minutes"].max()]
        top = 2 * max(float(value or 1.0) for value in longest)  # type: ignore[arg-type]
        y_scale = alt.Scale(type="symlog", constant=1, nice=False, domain=[0, top])
        title = "p95 [min, h], log" if size == shown[0] else None
        y = alt.Y("p95_minutes:Q", title=title, scale=y_scale, axis=axis)
        layers: list[ChartType] = [
            make_chart(drawn_bold.drop_nulls("low").with_columns(pl.col("high").fill_null(top)))
            .mark_area(opacity=0.16, color=theme.BLUE)
            .encode(x=x, y=alt.Y("low:Q", scale=y_scale, axis=axis, title=title, stack=None), y2="high:Q"),
            make_chart(size_limits)
            .mark_rule(color=theme.INK, strokeDash=[4, 3])
            .encode(y=alt.Y("limit_minutes:Q", scale=y_scale)),
        ]
        lines = {"today": (theme.OTHER_POLICY_COLOUR, 1.5, 12)} | {bold: (theme.BLUE, 2.5, 18)}
        for layout, (colour, width, point_size) in lines.items():
            rows = size_rows.filter(layout=layout)
            line = make_chart(rows.drop_nulls("p95_minutes")).mark_line(
                color=colour, size=width, point={"size": point_size, "color": colour}
            )
            layers.append(line.encode(x=x, y=y, tooltip=hover))
            if (never := rows.filter(pl.col("p95_minutes").is_null())).height:
                triangle = make_chart(never).mark_point(shape="triangle-up", color=colour, filled=True, size=40)
                layers.append(triangle.encode(x=x, y=alt.value(4), tooltip=hover))
        today_point = size_rows.filter(layout="today", gpus=today)
        recommended_point = drawn_bold.filter(gpus=recommended)
        ring = make_chart(today_point).mark_point(color=theme.INK, size=80, strokeWidth=2)
        dot = make_chart(recommended_point).mark_point(color=theme.BLUE, size=90, filled=True, opacity=1)
        layers += [mark.encode(x=x, y=y, tooltip=hover) for mark in (ring, dot)]
        is_unchanged = bold == "today" and today == recommended
        ends = [(today_point, theme.MUTED), (recommended_point, theme.BLUE)][: 1 if is_unchanged else 2]
        for rows, colour in ends:
            words = [wait_text(value) for value in rows["p95_minutes"].drop_nulls()]
            label = make_chart(rows.drop_nulls("p95_minutes").with_columns(word=pl.Series(words, dtype=pl.String)))
            layers.append(label.mark_text(align="left", dx=9, dy=-9, color=colour).encode(x=x, y=y, text="word:N"))
        return alt.layer(*layers).properties(height=_WAIT_PANEL_HEIGHT_PX, title=panel_title(size))

    sizes = names_in_order(frame, "job_size")
    at_ends = frame.with_columns(pl.col("p95_minutes").fill_null(math.inf)).filter(
        ((pl.col("layout") == "today") & (pl.col("gpus") == today))
        | ((pl.col("layout") == bold) & (pl.col("gpus") == recommended))
    )
    waits = dict(at_ends.group_by("job_size", maintain_order=True).agg(pl.col("p95_minutes").max()).iter_rows())
    deciding_size = find_deciding_size(frame.filter(pl.col("gpus") < recommended, layout=bold), limits)
    longest = sorted(sizes, key=lambda size: (size != deciding_size, -waits.get(size, 0.0)))[:MAX_WAIT_PANELS]
    shown = [size for size in sizes if size in longest and (waits.get(size, 0.0) > 1 or size == longest[0])]
    chart = alt.concat(*[draw_wait_panel(size) for size in shown], columns=len(shown))
    finding = wait_curve_text(frame, today=today, recommended=recommended)
    return theme.finish(chart, finding=finding, panels={"columns": len(shown), "minimum": 170, "margin": 44})


def find_deciding_size(smaller: pl.DataFrame, limits: pl.DataFrame) -> str | None:
    """Find the job size whose p95 wait exceeds its limit by the largest factor; None if none does.

    `smaller` has the waits on fleets smaller than the recommended one; the largest of these fleets counts.

    Examples
    --------
    >>> smaller = pl.DataFrame({"gpus": [8, 15, 15], "job_size": ["a", "a", "b"], "p95_minutes": [99.0, 0.0, 60.0]})
    >>> find_deciding_size(smaller, pl.DataFrame({"job_size": ["a", "b"], "limit_minutes": [10.0, 30.0]}))
    'b'
    """
    over = pl.col("p95_minutes") / pl.max_horizontal("limit_minutes", 1.0)
    smaller = smaller.with_columns(pl.col("p95_minutes").fill_null(math.inf))
    missed = smaller.filter(pl.col("gpus") == pl.col("gpus").max()).join(limits, on="job_size")
    missed = missed.filter(pl.col("p95_minutes") > pl.col("limit_minutes")).sort(over, descending=True)
    return None if missed.is_empty() else str(missed["job_size"][0])


def wait_curve_text(frame: pl.DataFrame, *, today: int, recommended: int) -> str:
    """Describe in a sentence the p95 wait of the job size that waits longest, today and as recommended.

    Examples
    --------
    >>> rows = pl.DataFrame({"layout": "today", "gpus": [8, 16], "job_size": "1 GPU", "p95_minutes": [90.0, 2.0]})
    >>> wait_curve_text(rows, today=8, recommended=16)
    'Jobs on 1 GPU: p95 90 min on 8 GPUs today, 2 min on 16 recommended.'
    """
    frame = frame.drop_nulls("p95_minutes")
    today_rows = frame.filter(layout="today", gpus=today).sort("p95_minutes", descending=True)
    bold = "recommended" if "recommended" in frame["layout"] else "today"
    if today_rows.is_empty():
        return ""
    size = today_rows["job_size"][0]
    text = f"Jobs on {size}: p95 {wait_text(today_rows['p95_minutes'][0])} on {today:,} GPUs today"
    recommended_rows = frame.filter(layout=bold, gpus=recommended, job_size=size)
    if recommended_rows.is_empty() or (bold == "today" and today == recommended):
        return f"{text}."
    return f"{text}, {wait_text(recommended_rows['p95_minutes'][0])} on {recommended:,} recommended."
