"""Demand over time with its forecast, how good forecasts were, and what runs and will come."""

from __future__ import annotations

from datetime import datetime, timedelta

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.demand.record import change_points
from gpuplanner.errors import SchemaError, examples, message
from gpuplanner.plot import theme
from gpuplanner.plot.prepare import (
    chart_of,
    drawn,
    ranked,
    require,
    tips,
    to_data,
    utc_axis,
    utc_text,
)

OBSERVED, FORECAST = "observed", "forecast"
RUNNING, COMING = "still running", "to come"
SIDES = ("before", "after")
INTERVAL = "5 % to 95 % quantile"

# Coarser and coarser means, until the rows of all panels fit into one chart.
_ROWS = 2400
_BIN_HOURS = (1, 2, 3, 4, 6, 12, 24, 168)
_PANELS = {"columns": 2, "minimum": 320, "margin": 40}
_KEYS = {"unique_id": "series", "tenant": "tenant", "profile": "profile"}
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
    (:func:`gpuplanner.demand.change_points`, over the whole history).

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
    'Instances demanded, by profile'
    """
    require(demand, ["unique_id", "ds", "y", by], where="plot_demand")
    title = f"Instances demanded, by {_KEYS.get(by, by)}"
    if demand.is_empty():
        return theme.saying("The demand table has no rows.", title=title)
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
        unique_id="series",
        model="model",
        mase=("MASE", ".3f"),
        coverage_90=("coverage of the 90 % interval", ".1%"),
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


@drawn("GPUs expected: still running and to come", *_FAN, empty="There is no slot to forecast.")
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
        text = message(
            "plot_demand: forecast",
            "one model per series",
            f"{twice.height} rows of a series and slot that come again, series "
            f"{examples(twice['unique_id'].unique().sort().to_list())}",
            "Filter the forecast to the model to be shown.",
        )
        raise SchemaError(text)
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
    found = []
    for panel in panels:
        total = demand.filter(pl.col(by) == panel).group_by("ds").agg(pl.col("y").sum())
        found.append(
            change_points(total)
            .filter(pl.col("ds") > begin)
            .select(
                panel=pl.lit(panel),
                ds="ds",
                change=pl.format("{} to {}", *(pl.col(one).round(1) for one in SIDES)),
            )
        )
    table = pl.concat(found)
    return table if table.height else pl.DataFrame()


def _slot_hours(history: pl.DataFrame) -> float:
    slots = history["ds"].unique().sort()
    step = slots.diff().min()
    return step.total_seconds() / 3600 if isinstance(step, timedelta) else 1.0
