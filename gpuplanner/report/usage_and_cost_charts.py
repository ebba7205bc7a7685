"""Charts of GPU-hours by state, team and group, and of their costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.output_column_headings import TEXT_BY_CODE
from gpuplanner.core.schema_checks import require_columns
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.units_and_number_formats import MIN_MINUTES_SHOWN_AS_HOURS, figure_text, wait_text
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    fold_names,
    folded_names,
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    rank_names,
    stack_bars,
    utc_axis,
    utc_calculations,
)
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL
from gpuplanner.usage.grouped_usage import TIME_GROUPS

_MAX_LEDGER_BARS = 100
"""Maximum number of bars of the ledger over time."""
_LEDGER_BINS = (("1h", "hour"), ("1d", "day"), ("1w", "week"), ("1mo", "month"))
"""Lengths of the bars of the ledger as polars writes them, with their names, shortest first."""
_LEGEND_IN_WORDS = alt.Legend(
    title=None,
    labelLimit=220,
    labelExpr="".join(f"datum.label == '{code}' ? '{text}' : " for code, text in TEXT_BY_CODE.items())
    + "replace(datum.label, '_', ' ')",
)
"""Legend of buckets and other codes, with the words that tables have for them."""
_ACTIVITY_STYLES = {
    "used": ("used", theme.BLUE), "idle_with_process": ("idle, with a process", theme.ORANGE),
    "idle_without_process": ("idle, no process", theme.VERMILION),
    "idle_unclear": ("idle, process unknown", theme.PINK), "no_telemetry": ("no telemetry", theme.GREY),
}  # fmt: skip
"""Label and colour of each part of allocated GPU-hours, by column, in stacking order."""
_END_STATE_COLOURS = {"completed": theme.BLUE, "failed, may run again": theme.VERMILION}
"""Colours of the GPU-hours of completed and of failed jobs, by label."""


@frame_chart("Installed GPU-hours per day by bucket", *("hour", "bucket", "gpu_hours"), empty="The ledger has no rows.")
def plot_ledger(ledger: pl.DataFrame, *, tz: str = "UTC") -> ChartType:
    """Plot GPU-hours by bucket, as stacked bars whose tops are the installed GPU-hours.

    Buckets partition the installed GPU-hours. Bars are hours, days, weeks or months: the finest with at most 100 bars.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``hour, bucket, gpu_hours`` are used.
    tz : str
        Zone in which days begin.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> hour = datetime(2026, 10, 1, tzinfo=UTC)
    >>> rows = pl.DataFrame({"hour": [hour, hour], "bucket": ["used", "unallocated"], "gpu_hours": [5.0, 3.0]})
    >>> plot_ledger(rows).to_dict()["title"]
    'Installed GPU-hours per hour by bucket'
    """
    clock = pl.col("hour").dt.convert_time_zone(tz).dt.replace_time_zone(None)
    local = ledger.select(clock, "gpu_hours", bucket=pl.col("bucket").cast(pl.String))
    hours = local["hour"].dt
    readable_bins = (bin_ for bin_ in _LEDGER_BINS if hours.truncate(bin_[0]).n_unique() <= _MAX_LEDGER_BARS)
    every, word = next(readable_bins, _LEDGER_BINS[-1])
    binned = (
        local.group_by("bucket", start=pl.col("hour").dt.truncate(every))
        .agg(pl.col("gpu_hours").sum())
        .with_columns(
            end=pl.col("start").dt.offset_by(every),
            order=pl.col("bucket").replace_strict({name: rank for rank, name in enumerate(GPU_TIME_BUCKETS)}),
            installed=pl.col("gpu_hours").sum().over("start"),
        )
        .filter(pl.col("gpu_hours") > 0)
        .sort("start", "order")
    )
    shown = [name for name in GPU_TIME_BUCKETS if name in binned["bucket"]]
    # The title names the days of the data: weeks and months may begin before them.
    days = utc_axis(local.rename({"hour": "start"}), "start", slot=word, tz=tz)
    hover = make_tooltips(
        from_=word, bucket="bucket", gpu_hours=("GPU-hours", ",.1f"), installed=("installed GPU-hours", ",.1f")
    )
    chart: alt.Chart = make_chart(binned).transform_calculate(**utc_calculations(from_="start"))
    chart = chart.mark_bar(orient="vertical", binSpacing=1).encode(
        x=days,
        x2="end:T",
        y=alt.Y("gpu_hours:Q", title=f"GPU-hours per {word}", stack="zero"),
        color=alt.Color("bucket:N", legend=_LEGEND_IN_WORDS, scale=theme.colour_scale(theme.BUCKET_COLOURS, shown)),
        order=alt.Order("order:Q"),
        tooltip=hover,
    )
    return theme.finish(chart, title=f"Installed GPU-hours per {word} by bucket", height=300, legend=190)


@frame_chart(
    "Allocated GPU-hours by team and bucket", *("tenant", "bucket", "gpu_hours"), empty="No GPU was allocated."
)
def plot_ledger_tenants(ledger: pl.DataFrame, *, top: int = 12) -> ChartType:
    """Plot allocated GPU-hours of each team by bucket, largest first; teams beyond ``top`` are summed.

    Unallocated GPU-hours are left out.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``tenant, bucket, gpu_hours`` are used.
    top : int
        Teams with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    allocated = ledger.filter(pl.col("tenant") != UNALLOCATED_TENANT_LABEL, pl.col("gpu_hours") > 0)
    rows = allocated.select("tenant", "gpu_hours", part=pl.col("bucket").cast(pl.String))
    return _draw_tenant_bars(rows, theme.BUCKET_COLOURS, top, part="bucket", legend=115)


@frame_chart(
    "Allocated GPU-hours by team and observed activity", "tenant", *_ACTIVITY_STYLES, empty="No GPU was allocated."
)
def plot_allocated_activity(allocated: pl.DataFrame, *, top: int = 12) -> ChartType:
    """Plot allocated GPU-hours of each team by observed activity; teams beyond `top` are summed.

    Parameters
    ----------
    allocated : polars.DataFrame
        ``tenant`` and the GPU-hours ``used, idle_with_process, idle_without_process, idle_unclear, no_telemetry``, from
        :func:`gpuplanner.usage.allocated_hours.allocated_and_active`.
    top : int
        Teams with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    words = {part: word for part, (word, _) in _ACTIVITY_STYLES.items()}
    activity = allocated.unpivot(list(_ACTIVITY_STYLES), index="tenant", variable_name="part", value_name="gpu_hours")
    rows = activity.filter(pl.col("gpu_hours") > 0).with_columns(pl.col("part").replace_strict(words))
    return _draw_tenant_bars(rows, dict(_ACTIVITY_STYLES.values()), top, part="activity", legend=165)


@frame_chart("Allocated GPU-hours by end state", "state", "lost", "gpu_hours", empty="No GPU was allocated.")
def plot_allocated_end_states(ended: pl.DataFrame) -> ChartType:
    """Plot allocated GPU-hours by end state of the job; those of failed jobs are highlighted.

    Parameters
    ----------
    ended : polars.DataFrame
        ``state, lost, gpu_hours``, from :func:`gpuplanner.usage.allocated_hours.allocated_by_state`; rows of one state
        are summed.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    completed, failed = _END_STATE_COLOURS
    rows = ended.group_by(
        name="state", part=pl.when("lost").then(pl.lit(failed)).otherwise(pl.lit(completed)), maintain_order=True
    ).agg(pl.col("gpu_hours").sum())
    order = names_in_order(rows.sort("gpu_hours", "name", descending=[True, False]), "name")
    return _draw_allocated_bars(rows, order, _END_STATE_COLOURS, row="end state", part="GPU-hours of", legend=190)


@frame_chart("Cost by team", "tenant", "cost", empty="There are no charges.")
def plot_costs(frame: pl.DataFrame, *, unit: str, title: str = "", top: int = 15) -> ChartType:
    """Plot an amount by team as bars, largest first; teams beyond ``top`` are summed.

    Parameters
    ----------
    frame : polars.DataFrame
        ``tenant, cost``; rows of one team are summed.
    unit : str
        Unit of the amount: a currency code, ``"kWh"``, ``"kg CO2e"``.
    title : str
        Title; default: cost by team.
    top : int
        Teams with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> bars = plot_costs(pl.DataFrame({"tenant": ["a"], "cost": [12.5]}), unit="USD")
    >>> bars.to_dict()["layer"][0]["encoding"]["x"]["title"]
    'USD'
    """
    tenants = rank_names(frame, "tenant", "cost")
    names = fold_names(tenants, top)
    order = folded_names(names)
    rows = (
        frame.group_by(pl.col("tenant").replace_strict(names))
        .agg(amount=pl.col("cost").sum().cast(pl.Float64))
        .with_columns(share=pl.col("amount") / pl.col("amount").sum())
        .sort("tenant")
    )
    digits = ",.0f" if rows["amount"].max() >= 1000 else ",.2f"  # type: ignore[operator]
    base = make_chart(rows).encode(x=alt.X("amount:Q", title=unit), y=alt.Y("tenant:N", title=None, sort=order))
    bars = base.mark_bar().encode(
        color=alt.Color("tenant:N", scale=theme.colour_scale(theme.tenant_colours(tenants), order), legend=None),
        tooltip=make_tooltips(tenant="team", amount=(unit, ",.2f"), share=("share", ".1%")),
    )
    labels = base.mark_text(align="left", dx=5).encode(text=alt.Text("amount:Q", format=digits))
    return theme.finish(alt.layer(bars, labels), title=title, bands=order, room=48)


@frame_chart("Savings by source", "step", "amount", "low", "high", empty="There are no savings.")
def plot_waterfall(frame: pl.DataFrame, *, unit: str) -> ChartType:
    """Plot steps that add up to a sum, each from the end of the previous one.

    Parameters
    ----------
    frame : polars.DataFrame
        ``step, amount, low, high`` in order; the last row is the sum, whose range is drawn as a line.
    unit : str
        Unit of the amounts: a currency code, ``"GPU-hours per week"``.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> steps = {"step": ["off", "all"], "amount": [2.0, 2.0], "low": [None, 1.0], "high": [None, 3.0]}
    >>> plot_waterfall(pl.DataFrame(steps), unit="USD").to_dict()["layer"][0]["encoding"]["x"]["title"]
    'USD'
    """
    amounts = frame["amount"].to_list()
    ends = [sum(amounts[: step + 1]) for step in range(len(amounts) - 1)] + [amounts[-1]]
    starts = [end - amount for end, amount in zip(ends, amounts, strict=True)]
    rows = frame.with_columns(
        begin=pl.Series(starts, dtype=pl.Float64), end=pl.Series(ends, dtype=pl.Float64),
        kind=pl.Series(["step"] * (len(amounts) - 1) + ["sum"]),
    )  # fmt: skip
    order = frame["step"].to_list()
    base = make_chart(rows).encode(y=alt.Y("step:N", title=None, sort=order))
    colours = theme.colour_scale({"step": theme.GREEN, "sum": theme.BLUE}, ["step", "sum"])
    bars = base.mark_bar().encode(
        x=alt.X("begin:Q", title=unit),
        x2="end:Q",
        color=alt.Color("kind:N", scale=colours, legend=None),
        tooltip=make_tooltips(step="step", amount=(unit, ",.1f"), low=("low", ",.1f"), high=("high", ",.1f")),
    )
    layers = [bars]
    if rows["low"].is_not_null().any():
        ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        layers.append(ranges.encode(x="low:Q", x2="high:Q"))
    return theme.finish(alt.layer(*layers), bands=order, room=48)


def _draw_tenant_bars(rows: pl.DataFrame, colours: Mapping[str, str], top: int, *, part: str, legend: int) -> ChartType:
    """Draw allocated GPU-hours of ``tenant, part, gpu_hours`` with a bar for each of the largest teams.

    Parameters
    ----------
    rows : polars.DataFrame
        ``tenant, part, gpu_hours``.
    colours : mapping of str to str
        Colour of each part, in stacking order.
    top : int
        Teams with a bar of their own.
    part : str
        What a part is, for the tooltip.
    legend : int
        Width of a legend entry. [px]

    Returns
    -------
    altair chart
    """
    if rows.is_empty():
        return theme.make_empty_chart("No GPU was allocated.")
    names = fold_names(rank_names(rows, "tenant", "gpu_hours"), top)
    sums = rows.group_by("part", name=pl.col("tenant").replace_strict(names), maintain_order=True).agg(
        pl.col("gpu_hours").sum()
    )
    return _draw_allocated_bars(sums, folded_names(names), colours, row="team", part=part, legend=legend)


def _draw_allocated_bars(
    rows: pl.DataFrame, order: list[str], colours: Mapping[str, str], *, row: str, part: str, legend: int
) -> ChartType:
    """Draw allocated GPU-hours of ``name, part, gpu_hours`` as one stacked bar per name.

    Parameters
    ----------
    rows : polars.DataFrame
        ``name, part, gpu_hours``.
    order : list of str
        Names, from the top.
    colours : mapping of str to str
        Colour of each part, in stacking order.
    row, part : str
        What a bar and a part are, for the tooltip.
    legend : int
        Width of a legend entry. [px]

    Returns
    -------
    altair chart
    """
    share = pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("name")
    shown = rows.filter(pl.col("gpu_hours") > 0).with_columns(share=share)
    x = alt.X("gpu_hours:Q", title="GPU-hours")
    hover = make_tooltips(name=row, part=part, gpu_hours=("GPU-hours", ",.1f"), share=("share of the bar", ".1%"))
    chart = stack_bars(
        shown, x, y="name", order=order, part="part", colours=colours, hover=hover, legend=_LEGEND_IN_WORDS
    )
    return theme.finish(chart, bands=order, legend=legend)


MAX_GROUP_SERIES = 8
"""Maximum number of lines in the chart of a table by group; the largest are drawn, the table has all."""
MAX_GROUP_BARS = 30
"""Maximum number of bars in the chart of a table by group; the largest are drawn, the table has all."""


def plot_groups(table: pl.DataFrame, groups: Sequence[str], value: str, *, label: str) -> ChartType:
    """Plot a column of a table by group: lines over a part of the time, else bars, the largest first.

    Parameters
    ----------
    table : polars.DataFrame
        The groups and the value.
    groups : sequence of str
        Columns of the groups, of which one may be a part of the time (``hour_of_day``, ``weekday``, ``day``, ``week``,
        ``month``).
    value : str
        Column to plot.
    label : str
        What it is, with its unit.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> table = pl.DataFrame({"team": ["nlp", "vision"], "week": ["2026-02-02"] * 2, "gpu_hours": [120.0, 80.0]})
    >>> plot_groups(table, ["team", "week"], "gpu_hours", label="GPU-hours").to_dict()["mark"]["type"]
    'line'
    """
    require_columns(table.schema, [*groups, value], source="plot_groups")
    time = next((group for group in groups if group in TIME_GROUPS), None)
    table = table if time is None else table.sort(time, maintain_order=True)
    if time == "month":
        table = table.with_columns(pl.col("month").dt.strftime("%b %Y"))
    rows = table.drop_nulls([value]).select(
        pl.col(groups).cast(pl.String).fill_null("-"), pl.col(value).cast(pl.Float64)
    )
    if rows.is_empty():
        return theme.make_empty_chart("There are no values.")
    other_groups = [group for group in groups if group != time]
    rows = rows.with_columns(name=pl.concat_str(other_groups, separator=" · ") if other_groups else pl.lit(""))
    is_ordered = len(groups) == 1 and isinstance(table.schema[groups[0]], pl.Enum)
    names = rows["name"].to_list() if is_ordered else rank_names(rows, "name", value)
    headings: dict[str, str | tuple[str, str]] = {group: group.replace("_", " ") for group in groups}
    hover = make_tooltips(**headings, **{value: (label, ",.4~g")})
    if time is None:
        # A value of 0 has no bar; the table has its row.
        drawn = set(rows.filter(pl.col(value) != 0)["name"]) or set(names)
        order = [name for name in names if name in drawn][:MAX_GROUP_BARS]
        is_wait = label.endswith("[min]")
        texts = [wait_text(amount) if is_wait else figure_text(amount) for amount in rows[value]]
        bars = rows.with_columns(text=pl.Series(texts, dtype=pl.String)).filter(pl.col("name").is_in(order))
        if is_wait and bars[value].max() >= MIN_MINUTES_SHOWN_AS_HOURS:  # type: ignore[operator]
            bars, label = bars.with_columns(pl.col(value) / 60), label.replace("[min]", "[h]")
            hover = make_tooltips(**headings, text=label.partition(" [")[0])
        y = alt.Y("name:N", title=None, sort=order, axis=alt.Axis(labelLimit=320))
        base = make_chart(bars).encode(x=alt.X(f"{value}:Q", title=label), y=y, tooltip=hover)
        labels = base.mark_text(align="left", dx=5).encode(text="text:N")
        return theme.finish(alt.layer(base.mark_bar(color=theme.BLUE), labels), bands=order, room=48)
    lines = rows.filter(pl.col("name").is_in(names[:MAX_GROUP_SERIES]))
    times = table[time].drop_nulls().unique(maintain_order=True).cast(pl.String).to_list()
    colours = theme.tenant_colours(names[:MAX_GROUP_SERIES])
    chart: alt.Chart = (
        make_chart(lines)
        .mark_line(point=True, color=theme.BLUE)
        .encode(
            x=alt.X(
                f"{time}:O", title=time.replace("_", " "), sort=times, axis=alt.Axis(labelAngle=0, labelOverlap=True)
            ),
            y=alt.Y(f"{value}:Q", title=label),
            tooltip=hover,
        )
    )
    if other_groups:
        scale = theme.colour_scale(colours, names[:MAX_GROUP_SERIES])
        chart = chart.encode(color=alt.Color("name:N", scale=scale, legend=alt.Legend(title=None)))
    return theme.finish(chart, height=240)
