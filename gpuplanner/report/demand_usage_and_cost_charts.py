"""Charts of demand, forecasts, GPU-hours and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.output_column_headings import TEXT_BY_CODE
from gpuplanner.core.schemas import GPU_TIME_BUCKETS
from gpuplanner.core.units_and_number_formats import MIN_MINUTES_SHOWN_AS_HOURS, figure_text, wait_text
from gpuplanner.forecast.growth_and_announced_demand import change_points, find_anomalies
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    fold_names,
    folded_names,
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    prepare_chart_rows,
    rank_names,
    require_columns,
    stack_bars,
    utc_axis,
    utc_calculations,
)
from gpuplanner.usage.gpu_hour_ledger import UNALLOCATED_TENANT_LABEL
from gpuplanner.usage.grouped_usage import TIME_GROUPS

OBSERVED, FORECAST = "observed", "forecast"
"""Values of the column ``kind`` in the chart of demand."""
STILL_RUNNING, NEW_JOBS = "still running", "new jobs"
"""Legend labels of expected GPUs: of jobs that run at the cutoff, and of jobs to come."""
LEVEL_CHANGE_COLUMNS = ("before", "after")
"""Columns of a change in the level of demand: mean before and after it."""
FORECAST_INTERVAL_LABEL = "5 % to 95 % quantile"
"""Legend label of the forecast interval."""

# Coarser and coarser means, until the rows of all panels fit into one chart.
_MAX_DEMAND_ROWS = 2400
"""Maximum rows of the chart of demand, above which demand is averaged over more hours."""
_DEMAND_BIN_HOURS = (1, 2, 3, 4, 6, 12, 24, 168)
"""Lengths over which demand may be averaged, shortest first [h]."""
_PANEL_LAYOUT = {"columns": 2, "minimum": 320, "margin": 40}
"""Layout of the panels of demand: maximum columns, minimum width and margin [px]."""
_PANEL_COLUMN_LABELS = {"unique_id": "series", "tenant": "team", "profile": "profile"}
"""Words of the title for the column of the panels."""
_SCORE_COLUMNS = ("unique_id", "model", "mase", "coverage_90")
"""Columns that :func:`plot_backtest_scores` needs."""
_FAN_COLUMNS = ("ds", "still_running", "to_come", "q05", "q50", "q95")
"""Columns that :func:`plot_fan` needs."""


def plot_demand(
    demand: pl.DataFrame, forecast: pl.DataFrame | None = None, *, by: str = "profile", top: int = 6,
    history_days: float = 14.0, unit: str = "instances",
) -> ChartType:  # fmt: skip
    """Plot instances demanded over time, with the forecast and its interval, one panel per profile.

    Series of one panel are summed, and so are their quantiles: the interval is wider than that of the sum. History is
    averaged over as many hours as keep the chart small; the axis shows how many. Vertical lines mark days on which the
    level of a panel changed (:func:`gpuplanner.forecast.growth_and_announced_demand.change_points`), rings mark days
    far from those around them (:func:`gpuplanner.forecast.growth_and_announced_demand.find_anomalies`).

    Parameters
    ----------
    demand : polars.DataFrame
        Table ``schemas.Demand``.
    forecast : polars.DataFrame, optional
        Table ``schemas.Forecast``, one model per series.
    by : {"profile", "tenant", "unique_id"}
        Column of the panels.
    top : int
        Panels: those with the highest mean demand.
    history_days : float
        History shown before its end. [days]
    unit : str
        Unit of ``y``, for the axis.

    Raises
    ------
    SchemaError
        If a column is missing, or a series has more than one forecast for an interval.

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
    require_columns(demand, ["unique_id", "ds", "y", by], source="plot_demand")
    title = f"Demand by {_PANEL_COLUMN_LABELS.get(by, by)}"
    if demand.is_empty():
        return theme.make_empty_chart("There is no demand.", title=title)
    panels = rank_names(demand, by, "y")[:top]
    begin = demand["ds"].max() - timedelta(days=history_days)  # type: ignore[operator]
    past = demand.filter(pl.col(by).is_in(panels), pl.col("ds") > begin).group_by(
        panel=by, ds="ds", maintain_order=True
    )
    history = past.agg(y=pl.col("y").sum()).with_columns(kind=pl.lit(OBSERVED))
    future = _forecast_rows(demand, forecast, by, panels)
    allowed = (_MAX_DEMAND_ROWS - future.height) // len(panels)
    slots = history["ds"].n_unique()
    step_h = _slot_hours(history)
    hours = next((h for h in _DEMAND_BIN_HOURS if h >= step_h and slots * step_h / h <= allowed), _DEMAND_BIN_HOURS[-1])
    binned_history = history.group_by("panel", pl.col("ds").dt.truncate(f"{hours}h"), "kind", maintain_order=True).agg(
        pl.col("y").mean()
    )
    marks = _level_and_anomaly_rows(demand, by, panels, begin)  # type: ignore[arg-type]
    rows = pl.concat([binned_history, future, *marks], how="diagonal")
    rows = rows.sort("panel", "kind", "ds", descending=[False, True, False])
    finding = f"Highest mean first: {', '.join(map(str, panels))}."
    notes = (" Dashed upright lines: the level changed.", " Rings: days unlike those around them.")
    finding += "".join(note for table, note in zip(marks, notes, strict=True) if table.height)
    chart = _draw_demand_panels(rows, panels, hours=hours, unit=unit)
    return theme.finish(chart, title=title, finding=finding, legend=170, names=30, panels=_PANEL_LAYOUT)


@frame_chart("Forecast error and interval coverage on past data", *_SCORE_COLUMNS, empty="No forecast was tested.")
def plot_backtest_scores(scores: pl.DataFrame) -> ChartType:
    """Plot error and interval coverage of each model on past data, one mark per series.

    Left: the mean absolute scaled error; below 1 is better than repeating the last season. Right: the share of values
    inside the 90 % interval, with a line at 0.9. Models are ordered by their mean error.

    Parameters
    ----------
    scores : polars.DataFrame
        ``unique_id, model, mase, coverage_90``, one row per series and model.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    means = scores.group_by("model", maintain_order=True).agg(pl.col("mase").mean())
    models = means.sort("mase", "model", nulls_last=True)["model"].to_list()
    hover = make_tooltips(
        unique_id="series", model="model", mase=("MASE", ".3f"), coverage_90=("coverage of the 90 % interval", ".1%")
    )
    rows = make_chart(scores.select(_SCORE_COLUMNS).sort("model", "unique_id")).encode(
        y=alt.Y("model:N", title=None, sort=models), tooltip=hover
    )

    def draw_score_panel(column: str, axis_title: str, mark_at: float) -> ChartType:
        points = rows.mark_point(size=60, filled=False, strokeWidth=1.6, color=theme.BLUE).encode(
            x=alt.X(f"{column}:Q", title=axis_title, scale=alt.Scale(zero=False))
        )
        line = alt.Chart().mark_rule(color=theme.VERMILION, strokeDash=[4, 3], size=1.5)
        rule = line.encode(x=alt.datum(mark_at))
        return alt.layer(points, rule).properties(height=theme.BAR_ROW_HEIGHT_PX * len(models))

    chart = alt.concat(
        draw_score_panel("mase", "MASE (error / error of the seasonal naive)", 1.0),
        draw_score_panel("coverage_90", "coverage of the 90 % interval", 0.9),
        columns=2,
    )
    panels = {"columns": 2, "minimum": 340, "margin": 24}
    return theme.finish(chart, names=theme.label_width(models), panels=panels)


@frame_chart("GPUs expected: still running and new jobs", *_FAN_COLUMNS, empty="There is no interval to forecast.")
def plot_fan(frame: pl.DataFrame, past: pl.DataFrame | None = None) -> ChartType:
    """Plot expected GPUs: running jobs below new jobs, with quantiles of their sum, after the observed ones.

    Parameters
    ----------
    frame : polars.DataFrame
        ``ds, still_running, to_come, q05, q50, q95``, one row per interval.
    past : polars.DataFrame, optional
        ``ds, y``: GPUs demanded before the cutoff.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    names = {"still_running": STILL_RUNNING, "to_come": NEW_JOBS}
    parts = frame.unpivot(list(names), index="ds", variable_name="part", value_name="gpus")
    parts = parts.with_columns(pl.col("part").replace(names))
    colours = {STILL_RUNNING: theme.BLUE, NEW_JOBS: theme.GREY}
    past = frame.head(0).select("ds", y="q50") if past is None else past.select("ds", "y")
    x, at = utc_axis(pl.concat([past.select("ds"), frame.select("ds")]), "ds"), utc_calculations(at="ds")
    areas = (
        make_chart(parts)
        .transform_calculate(**at)
        .mark_area(opacity=0.75)
        .encode(
            x=x,
            y=alt.Y("gpus:Q", title="GPUs, mean", stack="zero"),
            color=alt.Color("part:N", title=None, scale=theme.colour_scale(colours, list(colours))),
            order=alt.Order("part:N", sort="descending"),
            tooltip=make_tooltips(at="UTC", part="part", gpus=("GPUs", ",.1f")),
        )
    )
    dashes = {"q05": [2, 3], "q50": [1, 0], "q95": [2, 3]}
    hover = make_tooltips(at="UTC", **{name: (name, ",.1f") for name in dashes})
    total = make_chart(frame).transform_calculate(**at).encode(x=x, tooltip=hover)
    lines = [
        total.mark_line(color=theme.INK, strokeDash=dash, strokeWidth=1.4).encode(y=f"{name}:Q")
        for name, dash in dashes.items()
    ]
    if past.height:
        observed = make_chart(past).transform_calculate(**at).mark_line(color=theme.MUTED, strokeWidth=1.4)
        lines.append(observed.encode(x=x, y="y:Q", tooltip=make_tooltips(at="UTC", y=("GPUs observed", ",.1f"))))
        cutoff = make_chart(frame.head(1).select("ds")).mark_rule(color=theme.INK, strokeDash=[4, 3])
        lines.append(cutoff.encode(x=x))
    finding = "Lines: the 5 %, 50 % and 95 % quantile of the sum."
    return theme.finish(alt.layer(areas, *lines), height=240, finding=finding, legend=110)


@frame_chart("Past forecasts and what came", "ds", "y", "q05", "q50", "q95", "cutoff", empty="No forecast was tested.")
def plot_past_forecasts(frame: pl.DataFrame) -> ChartType:
    """Plot forecasts of past cutoffs with their 90 % interval over the values that came.

    Parameters
    ----------
    frame : polars.DataFrame
        ``cutoff, ds, y, q05, q50, q95``, one row per cutoff and interval; intervals of cutoffs do not overlap.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    hover = make_tooltips(
        at="UTC", made="forecast from", y=("GPUs observed", ",.1f"), q50=("median", ",.1f"), q05=("5 %", ",.1f"),
        q95=("95 %", ",.1f"),
    )  # fmt: skip
    base = (
        make_chart(frame)
        .transform_calculate(**utc_calculations(at="ds", made="cutoff"))
        .encode(x=utc_axis(frame, "ds"), detail="cutoff:N", tooltip=hover)
    )
    words = {"observed": theme.INK, "median forecast": theme.BLUE}
    colours = theme.colour_scale(words, list(words))
    band = base.mark_area(opacity=0.3, color=theme.SKY).encode(y=alt.Y("q05:Q", title="GPUs"), y2="q95:Q")
    lines = [
        base.transform_calculate(line=f"'{word}'")
        .mark_line(strokeWidth=1.5)
        .encode(y=f"{column}:Q", color=alt.Color("line:N", title=None, scale=colours))
        for word, column in zip(words, ("y", "q50"), strict=True)
    ]
    return theme.finish(alt.layer(band, *lines), height=220, legend=150)


def _draw_demand_panels(rows: pl.DataFrame, panels: list[str], *, hours: int, unit: str) -> ChartType:
    """Draw the panels of demand with history, forecast, interval and level changes.

    Parameters
    ----------
    rows : polars.DataFrame
        ``panel, ds, y, kind``, and optionally ``low, high`` and ``change``.
    panels : list of str
        Panels in order.
    hours : int
        Hours over which the history is averaged. [h]
    unit : str
        Unit of ``y``.

    Returns
    -------
    altair chart
    """
    kinds = [kind for kind in (OBSERVED, FORECAST) if kind in rows["kind"]]
    colours = theme.colour_scale({OBSERVED: theme.MUTED, FORECAST: theme.BLUE}, kinds)
    dashes = alt.Scale(domain=kinds, range=[[1, 0], [6, 2]])
    legend = alt.Legend() if len(kinds) > 1 else None  # a line alone needs no name
    slots = f"means of {hours} h" if hours > 1 else "time"
    data = alt.Chart().transform_calculate(**utc_calculations(at="ds")).encode(x=utc_axis(rows, "ds", slot=slots))
    lines = (
        data.transform_filter("isValid(datum.y)")
        .mark_line(strokeWidth=1.6)
        .encode(
            y=alt.Y("y:Q", title=unit),
            color=alt.Color("kind:N", title=None, legend=legend, scale=colours),
            strokeDash=alt.StrokeDash("kind:N", title=None, legend=legend, scale=dashes),
            tooltip=make_tooltips(panel="series", at="UTC", kind="kind", y=(unit, ",.2f")),
        )
    )
    layers: list[alt.Chart] = [lines]
    if "low" in rows.columns:
        square = alt.Legend(symbolType="square")
        fill = alt.Fill("band:N", title=None, legend=square, scale=alt.Scale(range=[theme.SKY]))
        band = data.mark_area(opacity=0.3).encode(y=alt.Y("low:Q"), y2="high:Q", fill=fill)
        interval_band = band.transform_filter("isValid(datum.low)").transform_calculate(
            band=f"'{FORECAST_INTERVAL_LABEL}'"
        )
        layers.insert(0, interval_band)
    if "change" in rows.columns:
        marks = data.transform_filter("isValid(datum.change)").mark_rule(color=theme.INK, strokeDash=[2, 2])
        layers.append(marks.encode(tooltip=make_tooltips(at="UTC", change="new level")))
    if "unusual" in rows.columns:
        rings = data.transform_filter("isValid(datum.unusual)").mark_point(color=theme.VERMILION, size=70)
        hover = make_tooltips(at="UTC", unusual=("mean of the day", ",.2f"), usual=("days around it", ",.2f"))
        layers.append(rings.encode(y=alt.Y("unusual:Q"), tooltip=hover))
    layered = alt.layer(*layers, data=prepare_chart_rows(rows)).properties(height=150)
    facets = layered.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=2)
    chart: ChartType = facets.resolve_scale(y="independent")
    return chart


def _forecast_rows(demand: pl.DataFrame, forecast: pl.DataFrame | None, by: str, panels: list[str]) -> pl.DataFrame:
    """Sum the forecast over the series of each panel.

    Parameters
    ----------
    demand : polars.DataFrame
        Demand, which assigns series to panels.
    forecast : polars.DataFrame or None
        Forecast by series.
    by : str
        Column of the panels.
    panels : list of str
        Panels that are drawn.

    Returns
    -------
    polars.DataFrame
        ``panel, ds, y, low, high, kind``; empty without a forecast.
    """
    if forecast is None or forecast.is_empty():
        return pl.DataFrame()
    require_columns(forecast, ["unique_id", "ds", "mean", "q05", "q95"], source="plot_demand: forecast")
    repeated = forecast.filter(forecast.select("unique_id", "ds").is_duplicated())
    if repeated.height:
        raise SchemaError(
            "plot_demand: forecast",
            "one model per series",
            f"{repeated.height} rows with a series and interval that are already there, series "
            f"{examples(repeated['unique_id'].unique().sort().to_list())}",
            "Filter the forecast to the model to be shown.",
        )
    key = demand.select("unique_id", panel=by).unique()
    return (
        forecast.join(key, on="unique_id")
        .filter(pl.col("panel").is_in(panels))
        .group_by("panel", "ds", maintain_order=True)
        .agg(y=pl.col("mean").sum(), low=pl.col("q05").sum(), high=pl.col("q95").sum())
        .with_columns(kind=pl.lit(FORECAST))
    )


def _level_and_anomaly_rows(
    demand: pl.DataFrame, by: str, panels: list[str], begin: datetime
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Find the changes of level and the anomalies that the chart shows.

    Parameters
    ----------
    demand : polars.DataFrame
        Demand over the whole history.
    by : str
        Column of the panels.
    panels : list of str
        Panels that are drawn.
    begin : datetime
        First time of the chart.

    Returns
    -------
    tuple of polars.DataFrame
        Changes of level ``panel, ds, change``, and anomalies ``panel, ds, unusual, usual``; empty without any.
    """
    changes = []
    anomalies = []
    levels = pl.format("{} to {}", *(pl.col(side).round(1) for side in LEVEL_CHANGE_COLUMNS))
    for panel in panels:
        total = demand.filter(pl.col(by) == panel).group_by("ds", maintain_order=True).agg(pl.col("y").sum())
        is_shown, name = pl.col("ds") > begin, pl.lit(panel).alias("panel")
        unusual_days = find_anomalies(total)
        anomalies.append(unusual_days.filter(is_shown).select(name, "ds", "usual", unusual="y"))
        # A single day is no new level.
        total = total.with_columns(day=pl.col("ds").dt.truncate("1d")).join(
            unusual_days.select("usual", day="ds"), on="day", how="left"
        )
        lasting = change_points(total.with_columns(y=pl.coalesce("usual", "y")))
        changes.append(lasting.filter(is_shown).select(name, "ds", change=levels))
    tables = (pl.concat(changes), pl.concat(anomalies))
    return tuple(table if table.height else pl.DataFrame() for table in tables)  # type: ignore[return-value]


def _slot_hours(history: pl.DataFrame) -> float:
    """Return the length of the intervals in a table of demand, from its times in ``ds`` [h]."""
    slots = history["ds"].unique().sort()
    step = slots.diff().min()
    return step.total_seconds() / 3600 if isinstance(step, timedelta) else 1.0


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
        :func:`gpuplanner.usage.allocated_hours.allocated_by_activity`.
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
    require_columns(table, [*groups, value], source="plot_groups")
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
