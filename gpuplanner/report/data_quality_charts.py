"""Charts of data quality and coverage."""

from __future__ import annotations

from datetime import date

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.units import count_text, percent_text
from gpuplanner.ingest.telemetry.telemetry_quality import MIN_DAY_COVERAGE
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    Labels,
    chart_of,
    drawn,
    each,
    folded,
    in_order,
    require,
    tips,
    utc_axis,
    wrapped,
)

SEVERITIES = {
    "error": ("square", theme.VERMILION),
    "warning": ("triangle-up", theme.ORANGE),
    "info": ("circle", theme.BLUE),
}
"""Mark and colour of each severity."""
FINDINGS = 20
"""Findings that have a row of their own."""
ROWS = 16
"""Nodes and reasons that have a row of their own."""
COLUMNS = 62
"""Days, weeks or months side by side: two months of days."""
ROW, LINE = 24, 13
"""Pixels of a row, and of each further line of the names."""
NAME = 24
"""Characters of a line of names: those of findings are sentences."""
FULL, PARTLY, NOTHING = f"{MIN_DAY_COVERAGE:.0%} or more", f"less than {MIN_DAY_COVERAGE:.0%}", "nothing (×)"
_BINS = (("1d", "day"), ("1w", "week"), ("1mo", "month"))
_STATES = {FULL: theme.BLUE, PARTLY: theme.ORANGE, NOTHING: theme.VERMILION}
_ROWS = {"jobs": theme.BLUE, "rejected": theme.VERMILION, NOTHING: theme.VERMILION}
_FAULTS = ("check", "severity", "rows", "effect", "example", "figure")


@drawn("What is wrong with the data, and which figures it moves", *_FAULTS, empty="No faults found.")
def plot_quality(findings: pl.DataFrame, *, top: int = FINDINGS) -> ChartType:
    """Draw what is wrong with the data against the figures that it moves; severity by mark and colour.

    Parameters
    ----------
    findings : polars.DataFrame
        ``check, severity, rows, effect, example, figure``: one row for each figure that a finding moves, gravest
        first, from :func:`gpuplanner.usage.dataset_description.by_figure`.
    top : int
        Findings with a row of their own; the title says how many there are.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    named = findings.with_columns(name=pl.format("{} × {}", _counted(pl.col("rows")), "check"))
    names, figures = in_order(named, "name"), in_order(named, "figure")
    shown = named.filter(pl.col("name").is_in(names[:top]))
    known = [severity for severity in SEVERITIES if severity in shown["severity"]]
    shapes, colours = zip(*(SEVERITIES[severity] for severity in known), strict=True)
    labels = wrapped(names[:top], NAME, grid=True)
    above = alt.Axis(orient="top", labelAngle=-35, labelAlign="left", labelOverlap=False, grid=True)
    scale = alt.Scale(domain=figures)
    x = alt.X("figure:N", title="moves these figures", sort=figures, scale=scale, axis=above)
    hover = tips(check="rows that", rows=("rows", ",d"), severity="severity", effect="effect", example="example")
    chart: alt.Chart = (
        chart_of(shown)
        .mark_point(filled=True, size=150, opacity=1)
        .encode(
            x=x,
            y=alt.Y("name:N", title=None, sort=names[:top], axis=labels.axis),
            color=alt.Color("severity:N", title=None, scale=alt.Scale(domain=known, range=colours)),
            shape=alt.Shape("severity:N", title=None, scale=alt.Scale(domain=known, range=shapes)),
            tooltip=hover,
        )
    )
    title = "What is wrong with the data, and which figures it moves"
    if len(names) > top:
        title += f": the {top} gravest of {len(names)}"
    finding, height = quality_text(findings), _row_height(labels) * len(names[:top])
    return theme.finish(chart, title=title, finding=finding, height=height, legend=90, names=labels.pixels, room=40)


def quality_text(findings: pl.DataFrame) -> str:
    """Say in a sentence or two what the chart of the findings shows.

    Examples
    --------
    >>> quality_text(pl.DataFrame(schema={"check": pl.String, "severity": pl.String, "rows": pl.Int64}))
    'No faults found in the rows that were read.'
    """
    if findings.is_empty():
        return "No faults found in the rows that were read."
    counts = dict(findings.unique("check")["severity"].value_counts().iter_rows())
    words = {"info": "note"}
    said = ", ".join(count_text(counts[one], words.get(one, one)) for one in SEVERITIES if one in counts)
    first = findings.row(0, named=True)
    effect = f": {first['effect']}" if first.get("effect") else ""
    return f"{said.capitalize()}. Gravest: {first['rows']:,} × {first['check']}{effect}."


def plot_coverage(coverage: pl.DataFrame, *, top: int = ROWS) -> ChartType:
    """Draw the share of each node's day that was observed, as the height and colour of a bar in each cell.

    Days become weeks or months where there are many. Where nodes do not all fit, the least observed stand alone
    and the others are added up. A cross marks a day without any reading; a blank lies before the first or after
    the last reading of a node, where nothing was to be expected.

    Parameters
    ----------
    coverage : polars.DataFrame
        ``node, day, observed_gpu_h, expected_gpu_h``, from :func:`gpuplanner.ingest.telemetry.coverage.coverage`.
    top : int
        Nodes with a row of their own.

    Raises
    ------
    SchemaError
        If a column is missing.

    Examples
    --------
    >>> rows = {"node": "n1", "day": [date(2026, 2, 1)], "observed_gpu_h": 12.0, "expected_gpu_h": 24.0}
    >>> plot_coverage(pl.DataFrame(rows)).to_dict()["title"]
    'Observed share of the GPU-time, by node and day'
    """
    require(coverage, ["node", "day", "observed_gpu_h", "expected_gpu_h"], where="plot_coverage")
    title = "Observed share of the GPU-time, by node and {}"
    known = coverage.filter(pl.col("expected_gpu_h") > 0)
    if known.is_empty():
        return theme.saying("There is no telemetry to cover the time.", title=title.format("day"))
    every, word = _bin(known["day"])
    nodes = least_observed(known)["node"].to_list()
    names = folded(nodes, top)
    hours = pl.col("observed_gpu_h", "expected_gpu_h").sum()
    share = pl.col("observed_gpu_h") / pl.col("expected_gpu_h")
    rows = (
        known.group_by(name=pl.col("node").replace_strict(names), start=pl.col("day").dt.truncate(every))
        .agg(hours)
        .with_columns(
            share=share,
            state=pl.when(share >= MIN_DAY_COVERAGE)
            .then(pl.lit(FULL))
            .when(pl.col("observed_gpu_h") > 0)
            .then(pl.lit(PARTLY))
            .otherwise(pl.lit(NOTHING)),
        )
    )
    hover = tips(
        name="node",
        share=("observed share", ".0%"),
        observed_gpu_h=("observed GPU-hours", ",.1f"),
        expected_gpu_h=("of GPU-hours", ",.1f"),
    )
    shown = [state for state in _STATES if state in rows["state"]]
    order = each(names) if len(nodes) > top else sorted(nodes)
    colour = alt.Color("state:N", title=None, scale=theme.scale(_STATES, shown))
    return _strips(rows, order, every=every, title=title.format(word), colour=colour, hover=hover)


@drawn(
    "Jobs submitted and rows rejected, by day",
    *("what", "day", "rows"),
    empty="There are no jobs and no rejected rows.",
)
def plot_intake(rows: pl.DataFrame, *, top: int = ROWS) -> ChartType:
    """Draw the jobs submitted and the rows rejected on each day, each line scaled to its own greatest day.

    Rejected rows that state no date, or one before the first or after the last job, are counted beside their
    name only. A cross marks a day without a job.

    Parameters
    ----------
    rows : polars.DataFrame
        ``what, day, rows``, from :func:`gpuplanner.usage.dataset_description.intake`.
    top : int
        Lines; less frequent reasons are added up.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    names = folded(in_order(rows, "what"), top)
    named = rows.with_columns(name=pl.col("what").replace_strict(names))
    jobs = rows.filter(~pl.col("what").str.starts_with("rejected: "))
    span = (jobs if jobs.height else rows)["day"]
    within = pl.col("day").is_between(pl.lit(span.min()), pl.lit(span.max())).fill_null(False)
    totals = named.group_by("name", maintain_order=True).agg(
        pl.col("rows").sum(), unplaced=pl.col("rows").filter(~within).sum()
    )
    labels = {}
    for name, total, unplaced in totals.iter_rows():
        labels[name] = f"{name} ({total:,}{f'; {unplaced:,} not in time' if unplaced else ''})"
    placed = named.filter(within)
    if placed.is_empty():
        said = "; ".join(labels.values())
        return theme.saying(f"No row states a date: {said}.")
    every, word = _bin(placed["day"])
    shown = (
        placed.group_by(name=pl.col("name").replace_strict(labels), start=pl.col("day").dt.truncate(every))
        .agg(pl.col("rows").sum())
        .with_columns(
            share=pl.col("rows") / pl.col("rows").max().clip(1).over("name"),
            state=pl.when(pl.col("rows") == 0)
            .then(pl.lit(NOTHING))
            .when(pl.col("name").str.contains("rejected: "))
            .then(pl.lit("rejected"))
            .otherwise(pl.lit("jobs")),
        )
    )
    title = f"Jobs submitted and rows rejected, by {word}"
    colour = alt.Color("state:N", legend=None, scale=theme.scale(_ROWS, list(_ROWS)))
    hover = tips(name="rows", rows=("on that " + word, ",d"))
    return _strips(shown, list(labels.values()), every=every, title=title, colour=colour, hover=hover)


def least_observed(coverage: pl.DataFrame) -> pl.DataFrame:
    """Nodes by their observed share over the whole time, the least observed first.

    Examples
    --------
    >>> rows = {"node": ["a", "b"], "observed_gpu_h": [24.0, 12.0], "expected_gpu_h": 24.0}
    >>> least_observed(pl.DataFrame(rows)).rows()
    [('b', 0.5), ('a', 1.0)]
    """
    sums = coverage.group_by("node").agg(pl.col("observed_gpu_h", "expected_gpu_h").sum())
    share = pl.col("observed_gpu_h") / pl.col("expected_gpu_h")
    return sums.filter(pl.col("expected_gpu_h") > 0).select("node", share=share).sort("share", "node")


def coverage_text(coverage: pl.DataFrame | None) -> str:
    """Coverage of telemetry, and the node with the lowest."""
    ranked = None if coverage is None else least_observed(coverage)
    if coverage is None or ranked is None or ranked.is_empty():
        return "No telemetry: activity of allocated GPUs is not known."
    expected = coverage.filter(pl.col("expected_gpu_h") > 0)
    share = float(expected["observed_gpu_h"].sum()) / float(expected["expected_gpu_h"].sum())
    empty = expected.filter(pl.col("observed_gpu_h") == 0).height
    node, least = ranked.row(0)
    return (
        f"Telemetry covers {percent_text(share)} of the GPU-hours between first and last sample of each node; "
        f"{empty:,} of {expected.height:,} node-days have no sample. Lowest: {node}, {percent_text(least)}."
    )


def intake_text(rows: pl.DataFrame) -> str:
    """Jobs submitted a day, days without jobs, and rejected rows."""
    refused = pl.col("what").str.starts_with("rejected: ")
    jobs, rejected = rows.filter(~refused), int(rows.filter(refused)["rows"].sum())
    end = f"{rejected:,} rows were rejected." if rejected else "No row was rejected."
    if jobs.is_empty():
        return f"No jobs. {end}"
    blank = jobs.filter(rows=0).height
    none = f"none on {blank:,} of {jobs.height:,} days" if blank else "jobs on every day"
    return f"{jobs['rows'].sum() / jobs.height:,.1f} jobs submitted a day, {none}. {end}"


def _strips(
    rows: pl.DataFrame,
    order: list[str],
    *,
    every: str,
    title: str,
    colour: alt.Color,
    hover: list[alt.Tooltip],
) -> alt.LayerChart:
    """One line of cells for each name; the height of the bar in a cell is ``share``, a cross is nothing."""
    word = dict(_BINS)[every]
    rank = pl.col("name").replace_strict({name: len(order) - place - 1 for place, name in enumerate(order)})
    # The smallest share shows as a line.
    high = pl.when(pl.col("share") > 0).then(pl.col("share").clip(0.09, 1)).otherwise(0)
    placed = (
        rows.with_columns(pl.col("start").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))
        .with_columns(
            end=pl.col("start").dt.offset_by(every),
            low=rank + 0.08,
            centre=rank + 0.5,
            high=rank + 0.08 + 0.84 * high,
        )
        .with_columns(middle=pl.col("start") + (pl.col("end") - pl.col("start")) / 2)
        .sort("name", "start")
    )
    labels = wrapped(order, NAME)
    names = alt.Y("name:N", title=None, sort=order, scale=alt.Scale(domain=order, padding=0), axis=labels.axis)
    scale = alt.Scale(domain=[0, len(order)], nice=False)
    data = chart_of(placed)
    base = data.transform_calculate(from_="utcFormat(datum['start'], '%Y-%m-%d')").encode(
        x=utc_axis(placed, "start", "end", slot=word),
        x2="end:T",
        tooltip=[*tips(from_=f"{word} (UTC)"), *hover],
    )
    cells = base.mark_rect(color=theme.EMPTY, stroke="white", strokeWidth=1).encode(y=names)
    bars = base.mark_rect().encode(y=alt.Y("low:Q", scale=scale, axis=None), y2="high:Q", color=colour)
    crosses = (
        data.transform_filter(f"datum.state == '{NOTHING}'")
        .mark_text(text="×", fontSize=13, fontWeight="bold", color=_STATES[NOTHING])
        .encode(x=alt.X("middle:T"), y=alt.Y("centre:Q", scale=scale, axis=None))
    )
    # Without a row to draw, a browser warns that the axis has no extent.
    layers = [cells, bars, crosses] if NOTHING in placed["state"] else [cells, bars]
    chart: alt.LayerChart = alt.layer(*layers).resolve_scale(y="independent")
    return theme.finish(chart, title=title, height=_row_height(labels) * len(order), legend=130, names=labels.pixels)


def _bin(days: pl.Series) -> tuple[str, str]:
    """Finest bin in which the days fit."""
    span: date = days.max() - days.min()  # type: ignore[operator, assignment]
    counts = {"1d": span.days + 1, "1w": span.days // 7 + 2}  # type: ignore[attr-defined]
    return next((each for each in _BINS if counts.get(each[0], 0) <= COLUMNS), _BINS[-1])


def _row_height(labels: Labels) -> int:
    """Pixels of a row that has room for the highest label."""
    return ROW + LINE * (labels.lines - 1)


def _counted(rows: pl.Expr) -> pl.Expr:
    return rows.map_elements(lambda count: f"{count:,}", return_dtype=pl.String)
