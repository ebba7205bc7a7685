"""Charts of demand over time, its forecast, and the scores of past forecasts."""

from __future__ import annotations

from datetime import datetime, timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.errors import SchemaError, examples
from gpuplanner.core.schema_checks import require_columns
from gpuplanner.forecast.growth_and_announced_demand import change_points, find_anomalies
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    frame_chart,
    make_chart,
    make_tooltips,
    prepare_chart_rows,
    rank_names,
    utc_axis,
    utc_calculations,
)

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
    require_columns(demand.schema, ["unique_id", "ds", "y", by], source="plot_demand")
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
    require_columns(forecast.schema, ["unique_id", "ds", "mean", "q05", "q95"], source="plot_demand: forecast")
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
