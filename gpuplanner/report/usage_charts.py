"""Charts of demand and of GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.forecast.demand_changes import change_points
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    chart_of,
    drawn,
    each,
    folded,
    in_order,
    ranked,
    require,
    stacked,
    tips,
    to_data,
    utc_axis,
    utc_text,
)

OBSERVED, FORECAST = "observed", "forecast"
RUNNING, COMING = "still running", "new jobs"
SIDES = ("before", "after")
INTERVAL = "5 % to 95 % quantile"

# Coarser and coarser means, until the rows of all panels fit into one chart.
_ROWS = 2400
_BIN_HOURS = (1, 2, 3, 4, 6, 12, 24, 168)
_PANELS = {"columns": 2, "minimum": 320, "margin": 40}
_KEYS = {"unique_id": "series", "tenant": "team", "profile": "profile"}
_SCORES = ("unique_id", "model", "mase", "coverage_90")
_FAN = ("ds", "still_running", "to_come", "q05", "q50", "q95")


def plot_demand(
    demand: pl.DataFrame,
    forecast: pl.DataFrame | None = None,
    *,
    by: str = "profile",
    top: int = 6,
    history_days: float = 14.0,
    unit: str = "instances",
) -> ChartType:
    """Instances demanded over time, with the forecast and its band, one panel per profile.

    Series that share a panel are added up. Quantiles are added too: the band is then that of series which
    rise and fall together, which is wider than the band of their sum. History is shown as means over as many
    hours as keep the chart small; the axis says how many. Upright lines mark days on which the level of a panel changed
    (:func:`gpuplanner.forecast.demand_changes.change_points`, over the whole history).

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.
    forecast : polars.DataFrame, optional
        Table ``schemas.Forecast``, one model per series.
    by : {"profile", "tenant", "unique_id"}
        What a panel stands for.
    top : int
        Panels: those with the highest mean demand.
    history_days : float
        How much of the history before its end is shown.
    unit : str
        What ``y`` counts, for the axis.

    Raises
    ------
    SchemaError
        If a column is missing, or a series and slot is forecast more than once.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> slot = datetime(2026, 10, 1, tzinfo=UTC)
    >>> rows = pl.DataFrame(
    ...     {"unique_id": ["a/gpu"], "tenant": ["a"], "profile": ["gpu"], "ds": [slot], "y": [3.0]}
    ... )
    >>> plot_demand(rows).to_dict()["title"]
    'Demand by profile'
    """
    require(demand, ["unique_id", "ds", "y", by], where="plot_demand")
    title = f"Demand by {_KEYS.get(by, by)}"
    if demand.is_empty():
        return theme.saying("There is no demand.", title=title)
    panels = ranked(demand, by, "y")[:top]
    begin = demand["ds"].max() - timedelta(days=history_days)  # type: ignore[operator]
    past = demand.filter(pl.col(by).is_in(panels), pl.col("ds") > begin).group_by(panel=by, ds="ds")
    history = past.agg(y=pl.col("y").sum()).with_columns(kind=pl.lit(OBSERVED))
    future = _future(demand, forecast, by, panels)
    allowed = (_ROWS - future.height) // len(panels)
    slots = history["ds"].n_unique()
    step_h = _slot_hours(history)
    hours = next((h for h in _BIN_HOURS if h >= step_h and slots * step_h / h <= allowed), _BIN_HOURS[-1])
    binned = history.group_by("panel", pl.col("ds").dt.truncate(f"{hours}h"), "kind").agg(pl.col("y").mean())
    changed = _changed(demand, by, panels, begin)  # type: ignore[arg-type]
    rows = pl.concat([binned, future, changed], how="diagonal").sort(
        "panel", "kind", "ds", descending=[False, True, False]
    )
    finding = f"Highest mean first: {', '.join(map(str, panels))}."
    chart = _panels(rows, panels, hours=hours, unit=unit)
    return theme.finish(chart, title=title, finding=finding, legend=170, names=30, panels=_PANELS)


@drawn("Forecast error and interval coverage on past data", *_SCORES, empty="No forecast was tested.")
def plot_backtest_scores(scores: pl.DataFrame) -> ChartType:
    """Error and coverage of each model on past data, one mark per series.

    Left the mean absolute scaled error: below 1 is better than repeating the last season. Right the share of
    values inside the 90 % interval, where the line marks 0.9. Models stand in order of their mean error.

    Parameters
    ----------
    scores : polars.DataFrame
        ``unique_id, model, mase, coverage_90``, one row per series and model.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    means = scores.group_by("model").agg(pl.col("mase").mean())
    models = means.sort("mase", "model", nulls_last=True)["model"].to_list()
    hover = tips(
        unique_id="series", model="model", mase=("MASE", ".3f"), coverage_90=("coverage of the 90 % interval", ".1%")
    )
    rows = chart_of(scores.select(_SCORES).sort("model", "unique_id")).encode(
        y=alt.Y("model:N", title=None, sort=models), tooltip=hover
    )

    def panel(column: str, axis_title: str, mark_at: float) -> ChartType:
        points = rows.mark_point(size=60, filled=False, strokeWidth=1.6, color=theme.BLUE).encode(
            x=alt.X(f"{column}:Q", title=axis_title, scale=alt.Scale(zero=False))
        )
        line = alt.Chart().mark_rule(color=theme.VERMILION, strokeDash=[4, 3], size=1.5)
        rule = line.encode(x=alt.datum(mark_at))
        return alt.layer(points, rule).properties(height=theme.BAND_HEIGHT * len(models))

    chart = alt.concat(
        panel("mase", "MASE (1 = seasonal naive)", 1.0),
        panel("coverage_90", "coverage of the 90 % interval", 0.9),
        columns=2,
    )
    panels = {"columns": 2, "minimum": 340, "margin": 24}
    return theme.finish(chart, names=theme.label_width(models), panels=panels)


@drawn("GPUs expected: still running and new jobs", *_FAN, empty="There is no interval to forecast.")
def plot_fan(frame: pl.DataFrame) -> ChartType:
    """GPUs expected, what runs already below what is to come, with the band of their sum.

    Parameters
    ----------
    frame : polars.DataFrame
        ``ds, still_running, to_come, q05, q50, q95``, one row a slot.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    names = {"still_running": RUNNING, "to_come": COMING}
    parts = frame.unpivot(list(names), index="ds", variable_name="part", value_name="gpus").with_columns(
        pl.col("part").replace(names)
    )
    colours = {RUNNING: theme.BLUE, COMING: theme.GREY}
    x, at = utc_axis(frame, "ds"), utc_text(at="ds")
    areas = (
        chart_of(parts)
        .transform_calculate(**at)
        .mark_area(opacity=0.75)
        .encode(
            x=x,
            y=alt.Y("gpus:Q", title="GPUs, mean", stack="zero"),
            color=alt.Color("part:N", title=None, scale=theme.scale(colours, list(colours))),
            order=alt.Order("part:N"),
            tooltip=tips(at="UTC", part="part", gpus=("GPUs", ",.1f")),
        )
    )
    dashes = {"q05": [2, 3], "q50": [1, 0], "q95": [2, 3]}
    hover = tips(at="UTC", **{name: (name, ",.1f") for name in dashes})
    total = chart_of(frame).transform_calculate(**at).encode(x=x, tooltip=hover)
    lines = [
        total.mark_line(color=theme.INK, strokeDash=dash, strokeWidth=1.4).encode(y=f"{name}:Q")
        for name, dash in dashes.items()
    ]
    finding = "Lines: the 5 %, 50 % and 95 % quantile of the sum."
    return theme.finish(alt.layer(areas, *lines), height=240, finding=finding, legend=110)


def _panels(rows: pl.DataFrame, panels: list[str], *, hours: int, unit: str) -> ChartType:
    kinds = [kind for kind in (OBSERVED, FORECAST) if kind in rows["kind"]]
    colours = theme.scale({OBSERVED: theme.MUTED, FORECAST: theme.BLUE}, kinds)
    dashes = alt.Scale(domain=kinds, range=[[1, 0], [6, 2]])
    legend = alt.Legend() if len(kinds) > 1 else None  # a line alone needs no name
    slots = f"means of {hours} h" if hours > 1 else "time"
    data = alt.Chart().transform_calculate(**utc_text(at="ds")).encode(x=utc_axis(rows, "ds", slot=slots))
    lines = (
        data.transform_filter("isValid(datum.y)")
        .mark_line(strokeWidth=1.6)
        .encode(
            y=alt.Y("y:Q", title=unit),
            color=alt.Color("kind:N", title=None, legend=legend, scale=colours),
            strokeDash=alt.StrokeDash("kind:N", title=None, legend=legend, scale=dashes),
            tooltip=tips(panel="series", at="UTC", kind="kind", y=(unit, ",.2f")),
        )
    )
    layers: list[alt.Chart] = [lines]
    if "low" in rows.columns:
        square = alt.Legend(symbolType="square")
        fill = alt.Fill("band:N", title=None, legend=square, scale=alt.Scale(range=[theme.SKY]))
        band = data.mark_area(opacity=0.3).encode(y=alt.Y("low:Q"), y2="high:Q", fill=fill)
        known = band.transform_filter("isValid(datum.low)").transform_calculate(band=f"'{INTERVAL}'")
        layers.insert(0, known)
    if "change" in rows.columns:
        marks = data.transform_filter("isValid(datum.change)").mark_rule(color=theme.INK, strokeDash=[2, 2])
        layers.append(marks.encode(tooltip=tips(at="UTC", change="new level")))
    layered = alt.layer(*layers, data=to_data(rows)).properties(height=150)
    facets = layered.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=2)
    chart: ChartType = facets.resolve_scale(y="independent")
    return chart


def _future(demand: pl.DataFrame, forecast: pl.DataFrame | None, by: str, panels: list[str]) -> pl.DataFrame:
    """Forecast rows as ``panel, ds, y, low, high, kind``, added up over the series of a panel."""
    if forecast is None or forecast.is_empty():
        return pl.DataFrame()
    require(forecast, ["unique_id", "ds", "mean", "q05", "q95"], where="plot_demand: forecast")
    twice = forecast.filter(forecast.select("unique_id", "ds").is_duplicated())
    if twice.height:
        raise SchemaError(
            "plot_demand: forecast",
            "one model per series",
            f"{twice.height} rows with a series and interval that are already there, series "
            f"{examples(twice['unique_id'].unique().sort().to_list())}",
            "Filter the forecast to the model to be shown.",
        )
    key = demand.select("unique_id", panel=by).unique()
    return (
        forecast.join(key, on="unique_id")
        .filter(pl.col("panel").is_in(panels))
        .group_by("panel", "ds")
        .agg(y=pl.col("mean").sum(), low=pl.col("q05").sum(), high=pl.col("q95").sum())
        .with_columns(kind=pl.lit(FORECAST))
    )


def _changed(demand: pl.DataFrame, by: str, panels: list[str], begin: datetime) -> pl.DataFrame:
    """Rows ``panel, ds, change`` for every change of level that the chart shows."""
    found, levels = [], pl.format("{} to {}", *(pl.col(one).round(1) for one in SIDES))
    for panel in panels:
        total = demand.filter(pl.col(by) == panel).group_by("ds").agg(pl.col("y").sum())
        changes = change_points(total).filter(pl.col("ds") > begin)
        found.append(changes.select(panel=pl.lit(panel), ds="ds", change=levels))
    table = pl.concat(found)
    return table if table.height else pl.DataFrame()


def _slot_hours(history: pl.DataFrame) -> float:
    slots = history["ds"].unique().sort()
    step = slots.diff().min()
    return step.total_seconds() / 3600 if isinstance(step, timedelta) else 1.0


NO_TEAM = "-"
_MAX_BARS = 100
_BINS = (("1h", "hour"), ("1d", "day"), ("1w", "week"), ("1mo", "month"))
_WORDS = alt.Legend(title=None, labelExpr="replace(datum.label, '_', ' ')")
_SEEN = {
    "used": ("used", theme.BLUE), "idle_with_process": ("idle, with a process", theme.ORANGE),
    "idle_without_process": ("idle, no process", theme.VERMILION),
    "idle_unclear": ("idle, process unknown", theme.PINK), "no_telemetry": ("no telemetry", theme.GREY),
}  # fmt: skip
"""Name and colour of each part of held time, in the order in which they stand."""
_FATES = {"completed": theme.BLUE, "failed, may run again": theme.VERMILION}


@drawn("Installed GPU-hours per day by bucket", *("hour", "bucket", "gpu_hours"), empty="The ledger has no rows.")
def plot_ledger(ledger: pl.DataFrame, *, tz: str = "UTC") -> ChartType:
    """GPU-hours per day by bucket, as stacked bars whose tops are the installed GPU-hours.

    Buckets partition the installed time, so that their sum is the installed line. Bars are hours, days, weeks
    or months: the finest that gives at most 100 bars.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``hour, bucket, gpu_hours`` are read.
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
    every, word = next((bin_ for bin_ in _BINS if _bars(local, bin_[0]) <= _MAX_BARS), _BINS[-1])
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
    base = (
        chart_of(binned)
        .transform_calculate(**utc_text(from_="start"), line="'installed'")
        .encode(x=utc_axis(binned, "start", "end", slot=word, tz=tz), x2="end:T")
    )
    hover = tips(
        from_=word, bucket="bucket", gpu_hours=("GPU-hours", ",.1f"), installed=("installed GPU-hours", ",.1f")
    )
    bars = base.mark_bar(orient="vertical", binSpacing=1).encode(
        y=alt.Y("gpu_hours:Q", title=f"GPU-hours per {word}", stack="zero"),
        color=alt.Color("bucket:N", legend=_WORDS, scale=theme.scale(theme.BUCKET_COLOURS, shown)),
        order=alt.Order("order:Q"),
        tooltip=hover,
    )
    # Set off from the legend of the buckets, which may end close before it.
    apart = alt.Legend(title=None, symbolOffset=24)
    line = base.mark_rule(color=theme.INK, size=2).encode(
        y="installed:Q", strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(range=[[1, 0]]), legend=apart)
    )
    title = f"Installed GPU-hours per {word} by bucket"
    return theme.finish(alt.layer(bars, line), title=title, height=300, legend=150)


@drawn("Allocated GPU-hours by team and bucket", *("tenant", "bucket", "gpu_hours"), empty="No GPU was allocated.")
def plot_ledger_tenants(ledger: pl.DataFrame, *, top: int = 12) -> ChartType:
    """Allocated GPU-hours of each team by bucket, largest first; teams beyond ``top`` are added up.

    Unallocated GPU-hours are left out.

    Parameters
    ----------
    ledger : polars.DataFrame
        Table ``schemas.Ledger``: ``tenant, bucket, gpu_hours`` are read.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    held = ledger.filter(pl.col("tenant") != NO_TEAM, pl.col("gpu_hours") > 0)
    rows = held.select("tenant", "gpu_hours", part=pl.col("bucket").cast(pl.String))
    return _held_by_tenant(rows, theme.BUCKET_COLOURS, top, part="bucket", legend=115)


@drawn("Allocated GPU-hours by team and observed activity", "tenant", *_SEEN, empty="No GPU was allocated.")
def plot_held_activity(held: pl.DataFrame, *, top: int = 12) -> ChartType:
    """Allocated GPU-hours of each team by observed activity; teams beyond `top` are added up.

    Parameters
    ----------
    held : polars.DataFrame
        ``tenant`` and the GPU-hours ``used, idle_with_process, idle_without_process, idle_unclear, unobserved``, from
        :func:`gpuplanner.usage.allocated_hours.allocated_by_activity`.
    top : int
        Tenants with a bar of their own.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    words = {part: word for part, (word, _) in _SEEN.items()}
    seen = held.unpivot(list(_SEEN), index="tenant", variable_name="part", value_name="gpu_hours")
    rows = seen.filter(pl.col("gpu_hours") > 0).with_columns(pl.col("part").replace_strict(words))
    return _held_by_tenant(rows, dict(_SEEN.values()), top, part="activity", legend=165)


@drawn("Allocated GPU-hours by end state", "state", "lost", "gpu_hours", empty="No GPU was allocated.")
def plot_held_states(ended: pl.DataFrame) -> ChartType:
    """Allocated GPU-hours by end state; those of failed jobs stand out.

    Parameters
    ----------
    ended : polars.DataFrame
        ``state, lost, gpu_hours``, from :func:`gpuplanner.usage.allocated_hours.allocated_by_state`; rows of one are
        added up.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    kept, again = _FATES
    rows = ended.group_by(name="state", part=pl.when("lost").then(pl.lit(again)).otherwise(pl.lit(kept))).agg(
        pl.col("gpu_hours").sum()
    )
    order = in_order(rows.sort("gpu_hours", "name", descending=[True, False]), "name")
    return _held(rows, order, _FATES, row="end state", part="GPU-hours of", legend=190)


def plot_costs(
    frame: pl.DataFrame,
    *,
    unit: str,
    value: str = "cost",
    title: str = "Cost by team",
    colours: Mapping[str, str] | None = None,
    top: int = 15,
) -> ChartType:
    """Bars of an amount by tenant, largest first; tenants beyond ``top`` are added up.

    Parameters
    ----------
    frame : polars.DataFrame
        ``tenant`` and the column ``value``; rows of one tenant are added.
    unit : str
        Unit of the amount: a currency code, ``"kWh"``, ``"kg CO2e"``.
    value : str
        Column with the amount.
    title : str
        The quantity.
    colours : mapping, optional
        From :func:`tenant_colours` of all tenants, so that each keeps its colour in every chart.
    top : int
        Tenants with a bar of their own.

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
    require(frame, ["tenant", value], where="plot_costs")
    if frame.is_empty():
        return theme.saying("There are no charges.", title=title)
    tenants = ranked(frame, "tenant", value)
    names = folded(tenants, top)
    order = each(names)
    rows = (
        frame.group_by(pl.col("tenant").replace_strict(names))
        .agg(amount=pl.col(value).sum().cast(pl.Float64))
        .with_columns(share=pl.col("amount") / pl.col("amount").sum())
        .sort("tenant")
    )
    palette = theme.tenant_colours(tenants) if colours is None else colours
    digits = ",.0f" if rows["amount"].max() >= 1000 else ",.2f"  # type: ignore[operator]
    base = chart_of(rows).encode(x=alt.X("amount:Q", title=unit), y=alt.Y("tenant:N", title=None, sort=order))
    bars = base.mark_bar().encode(
        color=alt.Color("tenant:N", scale=theme.scale(palette, order), legend=None),
        tooltip=tips(tenant="team", amount=(unit, ",.2f"), share=("share", ".1%")),
    )
    labels = base.mark_text(align="left", dx=5).encode(text=alt.Text("amount:Q", format=digits))
    return theme.finish(alt.layer(bars, labels), title=title, bands=order, room=48)


@drawn("Savings by source", "step", "amount", "low", "high", empty="There are no savings.")
def plot_waterfall(frame: pl.DataFrame, *, unit: str) -> ChartType:
    """Steps that add up to a sum, each from where the last one ended; a range of the sum as a line across its bar.

    Parameters
    ----------
    frame : polars.DataFrame
        ``step, amount, low, high`` in order; the last row is the sum, the only one that needs a range.
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
    ends = [sum(amounts[: place + 1]) for place in range(len(amounts) - 1)] + [amounts[-1]]
    begins = [end - amount for end, amount in zip(ends, amounts, strict=True)]
    rows = frame.with_columns(
        begin=pl.Series(begins, dtype=pl.Float64), end=pl.Series(ends, dtype=pl.Float64),
        kind=pl.Series(["step"] * (len(amounts) - 1) + ["sum"]),
    )  # fmt: skip
    order = frame["step"].to_list()
    base = chart_of(rows).encode(y=alt.Y("step:N", title=None, sort=order))
    colours = theme.scale({"step": theme.GREEN, "sum": theme.BLUE}, ["step", "sum"])
    bars = base.mark_bar().encode(
        x=alt.X("begin:Q", title=unit),
        x2="end:Q",
        color=alt.Color("kind:N", scale=colours, legend=None),
        tooltip=tips(step="step", amount=(unit, ",.1f"), low=("low", ",.1f"), high=("high", ",.1f")),
    )
    layers = [bars]
    if rows["low"].is_not_null().any():
        ranged = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        layers.append(ranged.encode(x="low:Q", x2="high:Q"))
    return theme.finish(alt.layer(*layers), bands=order, room=48)


def _held_by_tenant(rows: pl.DataFrame, colours: Mapping[str, str], top: int, *, part: str, legend: int) -> ChartType:
    """Held GPU-hours of ``tenant, part, gpu_hours``, the tenants that held most by name."""
    if rows.is_empty():
        return theme.saying("No GPU was allocated.")
    names = folded(ranked(rows, "tenant", "gpu_hours"), top)
    sums = rows.group_by("part", name=pl.col("tenant").replace_strict(names)).agg(pl.col("gpu_hours").sum())
    return _held(sums, each(names), colours, row="team", part=part, legend=legend)


def _held(
    rows: pl.DataFrame, order: list[str], colours: Mapping[str, str], *, row: str, part: str, legend: int
) -> ChartType:
    """Held GPU-hours of ``name, part, gpu_hours``: one bar a name."""
    share = pl.col("gpu_hours") / pl.col("gpu_hours").sum().over("name")
    shown = rows.filter(pl.col("gpu_hours") > 0).with_columns(share=share)
    x = alt.X("gpu_hours:Q", title="GPU-hours")
    hover = tips(name=row, part=part, gpu_hours=("GPU-hours", ",.1f"), share=("share of the bar", ".1%"))
    chart = stacked(shown, x, y="name", order=order, part="part", colours=colours, hover=hover, legend=_WORDS)
    return theme.finish(chart, bands=order, legend=legend)


def _bars(local: pl.DataFrame, every: str) -> int:
    return local["hour"].dt.truncate(every).n_unique()
