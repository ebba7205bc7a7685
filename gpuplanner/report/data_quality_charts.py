"""Charts of findings on the data, telemetry coverage and rows read."""

from __future__ import annotations

from datetime import date

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.core.schema_checks import require_columns
from gpuplanner.core.units_and_number_formats import count_text, percent_text
from gpuplanner.ingest.telemetry.telemetry_quality import MIN_DAY_COVERAGE
from gpuplanner.report import chart_theme as theme
from gpuplanner.report.chart_theme import (
    AxisLabels,
    fold_names,
    folded_names,
    frame_chart,
    make_chart,
    make_tooltips,
    names_in_order,
    utc_axis,
    wrap_labels,
)

SEVERITY_MARKS = {
    "error": ("square", theme.VERMILION),
    "warning": ("triangle-up", theme.ORANGE),
    "info": ("circle", theme.BLUE),
}
"""Shape and colour of the mark of a finding, by severity."""
MAX_FINDING_ROWS = 20
"""Maximum number of findings with a row of their own."""
MAX_NAMED_ROWS = 16
"""Maximum number of nodes, or of reasons for rejection, with a row of their own."""
MAX_TIME_COLUMNS = 62
"""Maximum number of days, weeks or months side by side."""
ROW_HEIGHT_PX, LINE_HEIGHT_PX = 24, 13
"""Height of a chart row with a label of one line, and of each further line of its label [px]."""
NAME_LINE_CHARACTERS = 24
"""Maximum characters in a line of a label, before it is wrapped."""
FULL_COVERAGE = f"{percent_text(MIN_DAY_COVERAGE)} or more"
"""Legend label of days with enough telemetry."""
PARTIAL_COVERAGE = f"less than {percent_text(MIN_DAY_COVERAGE)}"
"""Legend label of days with too little telemetry."""
NO_ROWS = "nothing (×)"
"""Legend label of days without samples or jobs, drawn as a cross."""
_TIME_CELL_LENGTHS = (("1d", "day"), ("1w", "week"), ("1mo", "month"))
"""Lengths of a time cell as polars writes them, with their names, shortest first."""
_COVERAGE_COLOURS = {FULL_COVERAGE: theme.BLUE, PARTIAL_COVERAGE: theme.ORANGE, NO_ROWS: theme.VERMILION}
"""Colours of telemetry coverage by legend label."""
_INTAKE_COLOURS = {"jobs": theme.BLUE, "rejected": theme.VERMILION, NO_ROWS: theme.VERMILION}
"""Colours of jobs, rejected rows and days without rows, by legend label."""
_FINDING_COLUMNS = ("check", "severity", "rows", "effect", "example", "figure")
"""Columns that :func:`plot_quality` needs."""


@frame_chart("What is wrong with the data, and which figures it affects", *_FINDING_COLUMNS, empty="No faults found.")
def plot_quality(findings: pl.DataFrame, *, top: int = MAX_FINDING_ROWS) -> ChartType:
    """Plot findings on the data against the figures that they affect; mark and colour show severity.

    Parameters
    ----------
    findings : polars.DataFrame
        ``check, severity, rows, effect, example, figure``: one row for each figure that a finding affects, most severe
        first, from :func:`gpuplanner.usage.dataset_description_and_data_quality.findings_by_figure`.
    top : int
        Findings with a row of their own; the title shows how many there are.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    rows = pl.col("rows").map_elements(lambda count: f"{count:,}", return_dtype=pl.String)
    named_findings = findings.with_columns(name=pl.format("{} × {}", rows, "check"))
    names, figures = names_in_order(named_findings, "name"), names_in_order(named_findings, "figure")
    shown = named_findings.filter(pl.col("name").is_in(names[:top]))
    severities = [severity for severity in SEVERITY_MARKS if severity in shown["severity"]]
    shapes, colours = zip(*(SEVERITY_MARKS[severity] for severity in severities), strict=True)
    labels = wrap_labels(names[:top], NAME_LINE_CHARACTERS, grid=True)
    figure_axis = alt.Axis(orient="top", labelAngle=-35, labelAlign="left", labelOverlap=False, grid=True)
    scale = alt.Scale(domain=figures)
    x = alt.X("figure:N", title="affects these figures", sort=figures, scale=scale, axis=figure_axis)
    hover = make_tooltips(
        check="rows that", rows=("rows", ",d"), severity="severity", effect="effect", example="example"
    )
    chart: alt.Chart = (
        make_chart(shown)
        .mark_point(filled=True, size=150, opacity=1)
        .encode(
            x=x,
            y=alt.Y("name:N", title=None, sort=names[:top], axis=labels.axis),
            color=alt.Color("severity:N", title=None, scale=alt.Scale(domain=severities, range=colours)),
            shape=alt.Shape("severity:N", title=None, scale=alt.Scale(domain=severities, range=shapes)),
            tooltip=hover,
        )
    )
    title = "What is wrong with the data, and which figures it affects"
    if len(names) > top:
        title += f": the {top} gravest of {len(names)}"
    finding, height = quality_text(findings), _row_height(labels) * len(names[:top])
    return theme.finish(chart, title=title, finding=finding, height=height, legend=90, names=labels.pixels, room=40)


def quality_text(findings: pl.DataFrame) -> str:
    """Describe in a sentence the number of data-quality findings by severity, and the most severe one.

    Examples
    --------
    >>> quality_text(pl.DataFrame(schema={"check": pl.String, "severity": pl.String, "rows": pl.Int64}))
    'No faults found in the rows that were read.'
    """
    if findings.is_empty():
        return "No faults found in the rows that were read."
    counts = dict(findings.unique("check")["severity"].value_counts().iter_rows())
    words = {"info": "note"}
    text = ", ".join(count_text(counts[level], words.get(level, level)) for level in SEVERITY_MARKS if level in counts)
    first = findings.row(0, named=True)
    effect = f": {first['effect']}" if first.get("effect") else ""
    return f"{text.capitalize()}. Gravest: {first['rows']:,} × {first['check']}{effect}."


def plot_coverage(coverage: pl.DataFrame, *, top: int = MAX_NAMED_ROWS) -> ChartType:
    """Plot the observed share of each node's day as height and colour of a bar.

    Many days are drawn as weeks or months. If there are too many nodes, those with the lowest coverage have rows and
    the others are summed. A cross marks a day without samples; before the first and after the last sample of a node,
    cells are blank.

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
    require_columns(coverage.schema, ["node", "day", "observed_gpu_h", "expected_gpu_h"], source="plot_coverage")
    title = "Observed share of the GPU-time, by node and {}"
    expected = coverage.filter(pl.col("expected_gpu_h") > 0)
    if expected.is_empty():
        return theme.make_empty_chart("There is no telemetry to cover the time.", title=title.format("day"))
    every, word = _choose_cell_length(expected["day"])
    nodes = rank_by_coverage(expected)["node"].to_list()
    names = fold_names(nodes, top)
    hours = pl.col("observed_gpu_h", "expected_gpu_h").sum()
    share = pl.col("observed_gpu_h") / pl.col("expected_gpu_h")
    rows = (
        expected.group_by(
            name=pl.col("node").replace_strict(names), start=pl.col("day").dt.truncate(every), maintain_order=True
        )
        .agg(hours)
        .with_columns(
            share=share,
            state=pl.when(share >= MIN_DAY_COVERAGE)
            .then(pl.lit(FULL_COVERAGE))
            .when(pl.col("observed_gpu_h") > 0)
            .then(pl.lit(PARTIAL_COVERAGE))
            .otherwise(pl.lit(NO_ROWS)),
        )
    )
    hover = make_tooltips(
        name="node",
        share=("observed share", ".0%"),
        observed_gpu_h=("observed GPU-hours", ",.1f"),
        expected_gpu_h=("of GPU-hours", ",.1f"),
    )
    shown = [state for state in _COVERAGE_COLOURS if state in rows["state"]]
    order = folded_names(names) if len(nodes) > top else sorted(nodes)
    colour = alt.Color("state:N", title=None, scale=theme.colour_scale(_COVERAGE_COLOURS, shown))
    return _draw_time_strips(rows, order, every=every, title=title.format(word), colour=colour, hover=hover)


@frame_chart(
    "Jobs submitted and rows rejected, by day",
    *("what", "day", "rows"),
    empty="There are no jobs and no rejected rows.",
)
def plot_intake(rows: pl.DataFrame, *, top: int = MAX_NAMED_ROWS) -> ChartType:
    """Plot jobs submitted and rows rejected on each day, each row scaled to its own maximum.

    Rejected rows without a date, or before the first or after the last job, are only counted beside their name. A cross
    marks a day without a job.

    Parameters
    ----------
    rows : polars.DataFrame
        ``what, day, rows``, from :func:`gpuplanner.usage.dataset_description_and_data_quality.intake`.
    top : int
        Rows of the chart; less frequent reasons are summed.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    names = fold_names(names_in_order(rows, "what"), top)
    named = rows.with_columns(name=pl.col("what").replace_strict(names))
    jobs = rows.filter(~pl.col("what").str.starts_with("rejected: "))
    span = (jobs if jobs.height else rows)["day"]
    within = pl.col("day").is_between(pl.lit(span.min()), pl.lit(span.max())).fill_null(False)
    unplaced_rows = pl.col("rows").filter(~within).sum()
    totals = named.group_by("name", maintain_order=True).agg(pl.col("rows").sum(), unplaced=unplaced_rows)
    labels = {}
    for name, total, unplaced in totals.iter_rows():
        labels[name] = f"{name} ({total:,}{f'; {unplaced:,} not in time' if unplaced else ''})"
    placed = named.filter(within)
    if placed.is_empty():
        totals_text = "; ".join(labels.values())
        return theme.make_empty_chart(f"No row states a date: {totals_text}.")
    every, word = _choose_cell_length(placed["day"])
    shown = (
        placed.group_by(
            name=pl.col("name").replace_strict(labels), start=pl.col("day").dt.truncate(every), maintain_order=True
        )
        .agg(pl.col("rows").sum())
        .with_columns(
            share=pl.col("rows") / pl.col("rows").max().clip(1).over("name"),
            state=pl.when(pl.col("rows") == 0)
            .then(pl.lit(NO_ROWS))
            .when(pl.col("name").str.contains("rejected: "))
            .then(pl.lit("rejected"))
            .otherwise(pl.lit("jobs")),
        )
    )
    title = f"Jobs submitted and rows rejected, by {word}"
    colour = alt.Color("state:N", legend=None, scale=theme.colour_scale(_INTAKE_COLOURS, list(_INTAKE_COLOURS)))
    hover = make_tooltips(name="rows", rows=("on that " + word, ",d"))
    return _draw_time_strips(shown, list(labels.values()), every=every, title=title, colour=colour, hover=hover)


def rank_by_coverage(coverage: pl.DataFrame) -> pl.DataFrame:
    """Rank nodes by their observed share of the whole time, lowest first.

    Examples
    --------
    >>> rows = {"node": ["a", "b"], "observed_gpu_h": [24.0, 12.0], "expected_gpu_h": 24.0}
    >>> rank_by_coverage(pl.DataFrame(rows)).rows()
    [('b', 0.5), ('a', 1.0)]
    """
    sums = coverage.group_by("node", maintain_order=True).agg(pl.col("observed_gpu_h", "expected_gpu_h").sum())
    share = pl.col("observed_gpu_h") / pl.col("expected_gpu_h")
    return sums.filter(pl.col("expected_gpu_h") > 0).select("node", share=share).sort("share", "node")


def coverage_text(coverage: pl.DataFrame | None) -> str:
    """Describe in a sentence the telemetry coverage of the GPU-hours, and the node with the lowest coverage."""
    ranked = None if coverage is None else rank_by_coverage(coverage)
    if coverage is None or ranked is None or ranked.is_empty():
        return "No telemetry: activity of allocated GPUs is not known."
    expected = coverage.filter(pl.col("expected_gpu_h") > 0)
    share = float(expected["observed_gpu_h"].sum()) / float(expected["expected_gpu_h"].sum())
    empty = expected.filter(pl.col("observed_gpu_h") == 0).height
    node, least = ranked.row(0)
    return (
        f"Samples cover {percent_text(share)} of the GPU-hours between first and last sample of each node; "
        f"{empty:,} of {expected.height:,} node-days have no sample. Lowest: {node}, {percent_text(least)}."
    )


def intake_text(rows: pl.DataFrame) -> str:
    """Describe in a sentence the jobs submitted a day, the days without jobs, and the rejected rows."""
    is_rejected = pl.col("what").str.starts_with("rejected: ")
    jobs, rejected = rows.filter(~is_rejected), int(rows.filter(is_rejected)["rows"].sum())
    rejected_text = f"{rejected:,} rows were rejected." if rejected else "No row was rejected."
    if jobs.is_empty():
        return f"No jobs. {rejected_text}"
    blank = jobs.filter(rows=0).height
    blank_text = f"none on {blank:,} of {jobs.height:,} days" if blank else "jobs on every day"
    return f"{jobs['rows'].sum() / jobs.height:,.1f} jobs submitted a day, {blank_text}. {rejected_text}"


def _draw_time_strips(
    rows: pl.DataFrame, order: list[str], *, every: str, title: str, colour: alt.Color, hover: list[alt.Tooltip]
) -> alt.LayerChart:
    """Draw a row of time cells for each name; a bar in each cell is as high as the cell's share.

    Parameters
    ----------
    rows : polars.DataFrame
        ``name, start, share, state``; a state of no rows is drawn as a cross.
    order : list of str
        Names, from the top.
    every : str
        Length of a cell, a key of ``_TIME_CELL_LENGTHS``.
    title : str
        Title.
    colour : altair.Color
        Colour of the bars.
    hover : list of altair.Tooltip
        Tooltips.

    Returns
    -------
    altair.LayerChart
    """
    word = dict(_TIME_CELL_LENGTHS)[every]
    rank = pl.col("name").replace_strict({name: len(order) - position - 1 for position, name in enumerate(order)})
    # The smallest share shows as a line.
    high = pl.when(pl.col("share") > 0).then(pl.col("share").clip(0.09, 1)).otherwise(0)
    cells_in_time = (
        rows.with_columns(pl.col("start").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))
        .with_columns(
            end=pl.col("start").dt.offset_by(every), low=rank + 0.08, centre=rank + 0.5, high=rank + 0.08 + 0.84 * high
        )
        .with_columns(middle=pl.col("start") + (pl.col("end") - pl.col("start")) / 2)
        .sort("name", "start")
    )
    labels = wrap_labels(order, NAME_LINE_CHARACTERS)
    names = alt.Y("name:N", title=None, sort=order, scale=alt.Scale(domain=order, padding=0), axis=labels.axis)
    scale = alt.Scale(domain=[0, len(order)], nice=False)
    data = make_chart(cells_in_time)
    base = data.transform_calculate(from_="utcFormat(datum['start'], '%Y-%m-%d')").encode(
        x=utc_axis(cells_in_time, "start", "end", slot=word),
        x2="end:T",
        tooltip=[*make_tooltips(from_=f"{word} (UTC)"), *hover],
    )
    cells = base.mark_rect(color=theme.EMPTY, stroke="white", strokeWidth=1).encode(y=names)
    bars = base.mark_rect().encode(y=alt.Y("low:Q", scale=scale, axis=None), y2="high:Q", color=colour)
    crosses = (
        data.transform_filter(f"datum.state == '{NO_ROWS}'")
        .mark_text(text="×", fontSize=13, fontWeight="bold", color=_COVERAGE_COLOURS[NO_ROWS])
        .encode(x=alt.X("middle:T"), y=alt.Y("centre:Q", scale=scale, axis=None))
    )
    # Without a row to draw, a browser warns that the axis has no extent.
    layers = [cells, bars, crosses] if NO_ROWS in cells_in_time["state"] else [cells, bars]
    chart: alt.LayerChart = alt.layer(*layers).resolve_scale(y="independent")
    return theme.finish(chart, title=title, height=_row_height(labels) * len(order), legend=130, names=labels.pixels)


def _choose_cell_length(days: pl.Series) -> tuple[str, str]:
    """Choose the shortest cell (day, week or month) with which the days fit into the chart: its length and name."""
    span: date = days.max() - days.min()  # type: ignore[operator, assignment]
    counts = {"1d": span.days + 1, "1w": span.days // 7 + 2}  # type: ignore[attr-defined]
    return next(
        (choice for choice in _TIME_CELL_LENGTHS if counts.get(choice[0], 0) <= MAX_TIME_COLUMNS),
        _TIME_CELL_LENGTHS[-1],
    )


def _row_height(labels: AxisLabels) -> int:
    """Compute the height of a chart row [px] with room for the label with most lines."""
    return ROW_HEIGHT_PX + LINE_HEIGHT_PX * (labels.lines - 1)
