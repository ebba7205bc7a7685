"""Which time was seen, and what came in, by day: gaps stand out without colour."""

from __future__ import annotations

from datetime import date

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.inbox.telemetry.sample_findings import LOW_COVERAGE
from gpuplanner.plot import prepare, theme
from gpuplanner.plot.quality import NAME, row_height

ROWS = 16
"""Nodes and reasons that have a row of their own."""
COLUMNS = 62
"""Days, weeks or months side by side: two months of days."""
_BINS = (("1d", "day"), ("1w", "week"), ("1mo", "month"))
FULL, PARTLY, NOTHING = f"{LOW_COVERAGE:.0%} or more", f"less than {LOW_COVERAGE:.0%}", "nothing (×)"
_STATES = {FULL: "#0072b2", PARTLY: "#e69f00", NOTHING: "#d55e00"}


def plot_coverage(coverage: pl.DataFrame, *, top: int = ROWS) -> ChartType:
    """Draw the share of each node's day that was observed, as the height and colour of a bar in each cell.

    Days become weeks or months where there are many. Where nodes do not all fit, the least observed stand alone
    and the others are added up. A cross marks a day without any reading; a blank lies before the first or after
    the last reading of a node, where nothing was to be expected.

    Parameters
    ----------
    coverage : polars.DataFrame
        ``node, day, observed_gpu_h, expected_gpu_h``, from :func:`gpuplanner.inbox.telemetry.coverage.coverage`.
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
    prepare.require(coverage, ["node", "day", "observed_gpu_h", "expected_gpu_h"], where="plot_coverage")
    title = "Observed share of the GPU-time, by node and {}"
    known = coverage.filter(pl.col("expected_gpu_h") > 0)
    if known.is_empty():
        return theme.saying("There is no telemetry to cover the time.", title=title.format("day"))
    every, word = _bin(known["day"])
    ranked = least_observed(known)["node"].to_list()
    names = prepare.folded(ranked, top)
    rows = (
        known.group_by(name=pl.col("node").replace_strict(names), start=pl.col("day").dt.truncate(every))
        .agg(pl.col("observed_gpu_h", "expected_gpu_h").sum(), nodes=pl.col("node").n_unique())
        .with_columns(share=pl.col("observed_gpu_h") / pl.col("expected_gpu_h"))
        .with_columns(
            state=pl.when(pl.col("share") >= LOW_COVERAGE)
            .then(pl.lit(FULL))
            .when(pl.col("observed_gpu_h") > 0)
            .then(pl.lit(PARTLY))
            .otherwise(pl.lit(NOTHING))
        )
    )
    order = list(dict.fromkeys(names.values())) if len(ranked) > top else sorted(ranked)
    hover = [
        alt.Tooltip("name:N", title="node"),
        alt.Tooltip("share:Q", title="observed share", format=".0%"),
        alt.Tooltip("observed_gpu_h:Q", title="observed GPU-hours", format=",.1f"),
        alt.Tooltip("expected_gpu_h:Q", title="of GPU-hours", format=",.1f"),
    ]
    words = [state for state in _STATES if state in rows["state"]]
    colour = alt.Color("state:N", title=None, scale=theme.scale(_STATES, words))
    chart = _strips(rows, order, every=every, word=word, colour=colour, hover=hover)
    return theme.finish(
        chart, title=title.format(word), legend=130, names=prepare.wrapped(order, NAME).pixels
    )


def plot_intake(rows: pl.DataFrame, *, top: int = ROWS) -> ChartType:
    """Draw the jobs submitted and the rows rejected on each day, each line scaled to its own greatest day.

    Rejected rows that state no date, or one before the first or after the last job, are counted beside their
    name only. A cross marks a day without a job.

    Parameters
    ----------
    rows : polars.DataFrame
        ``what, day, rows``, from :func:`gpuplanner.study.past.quality.intake`.
    top : int
        Lines; less frequent reasons are added up.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(rows, ["what", "day", "rows"], where="plot_intake")
    title = "Jobs submitted and rows rejected, by {}"
    if rows.is_empty():
        return theme.saying("There are no jobs and no rejected rows.", title=title.format("day"))
    names = prepare.folded(rows["what"].unique(maintain_order=True).to_list(), top)
    folded = rows.with_columns(name=pl.col("what").replace_strict(names))
    jobs = rows.filter(~pl.col("what").str.starts_with("rejected: "))
    span = jobs if jobs.height else rows
    within = pl.col("day").is_between(pl.lit(span["day"].min()), pl.lit(span["day"].max())).fill_null(False)
    totals = folded.group_by("name", maintain_order=True).agg(
        pl.col("rows").sum(), unplaced=pl.col("rows").filter(~within).sum()
    )
    labels = {name: _counts(name, total, unplaced) for name, total, unplaced in totals.iter_rows()}
    placed = folded.filter(within)
    if placed.is_empty():
        said = "; ".join(labels.values())
        return theme.saying(f"No row states a date: {said}.", title=title.format("day"))
    every, word = _bin(placed["day"])
    shown = (
        placed.group_by(name=pl.col("name").replace_strict(labels), start=pl.col("day").dt.truncate(every))
        .agg(pl.col("rows").sum())
        .with_columns(share=pl.col("rows") / pl.col("rows").max().clip(1).over("name"))
        .with_columns(
            state=pl.when(pl.col("rows") == 0)
            .then(pl.lit(NOTHING))
            .when(pl.col("name").str.contains("rejected: "))
            .then(pl.lit("rejected"))
            .otherwise(pl.lit("jobs"))
        )
    )
    hover = [alt.Tooltip("name:N", title="rows"), alt.Tooltip("rows:Q", title="on that " + word, format=",d")]
    colours = {"jobs": theme.PALETTE[0], "rejected": theme.PALETTE[5], NOTHING: theme.PALETTE[5]}
    colour = alt.Color("state:N", legend=None, scale=theme.scale(colours, list(colours)))
    order = list(labels.values())
    chart = _strips(shown, order, every=every, word=word, colour=colour, hover=hover)
    return theme.finish(chart, title=title.format(word), names=prepare.wrapped(order, NAME).pixels)


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
    """Say how much of the time was observed, and where least."""
    ranked = None if coverage is None else least_observed(coverage)
    if coverage is None or ranked is None or ranked.is_empty():
        return "There is no telemetry: what GPUs did while they were held is not known."
    expected = coverage.filter(pl.col("expected_gpu_h") > 0)
    share = float(expected["observed_gpu_h"].sum()) / float(expected["expected_gpu_h"].sum())
    empty = expected.filter(pl.col("observed_gpu_h") == 0).height
    node, least = ranked.row(0)
    return (
        f"{share:.0%} of the GPU-time between the first and the last reading of each node was observed; "
        f"{empty:,} of {expected.height:,} node-days have no reading. Least observed: {node}, {least:.0%}."
    )


def intake_text(rows: pl.DataFrame) -> str:
    """Say how many jobs came a day, on how many days none, and how many rows were rejected."""
    refused = pl.col("what").str.starts_with("rejected: ")
    jobs, rejected = rows.filter(~refused), int(rows.filter(refused)["rows"].sum())
    end = f"{rejected:,} rows were rejected." if rejected else "No row was rejected."
    if jobs.is_empty():
        return f"No job was read. {end}"
    blank = jobs.filter(rows=0).height
    none = f"none on {blank:,} of {jobs.height:,} days" if blank else "some on every day"
    return f"{jobs['rows'].sum() / jobs.height:,.1f} jobs a day, {none}. {end}"


def _strips(
    rows: pl.DataFrame,
    order: list[str],
    *,
    every: str,
    word: str,
    colour: alt.Color,
    hover: list[alt.Tooltip],
) -> alt.LayerChart:
    """One line of cells for each name; the height of the bar in a cell is ``share``, a cross is nothing."""
    rank = pl.col("name").replace_strict({name: len(order) - place - 1 for place, name in enumerate(order)})
    placed = (
        rows.with_columns(pl.col("start").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))
        .with_columns(
            end=pl.col("start").dt.offset_by(every),
            low=rank + 0.08,
            centre=rank + 0.5,
            # The least that was seen shows as a line.
            high=rank
            + 0.08
            + 0.84 * pl.when(pl.col("share") > 0).then(pl.col("share").clip(0.09, 1)).otherwise(0),
        )
        .with_columns(middle=pl.col("start") + (pl.col("end") - pl.col("start")) / 2)
        .sort("name", "start")
    )
    first, last = placed["start"].min(), placed["end"].max()
    x = prepare.utc_axis("start", prepare.span(first, last, slot=word))  # type: ignore[arg-type]
    data = alt.Chart(prepare.to_data(placed, where=f"chart by {word}"), width="container")
    when = alt.Tooltip("from_:N", title=f"{word} (UTC)")
    scale = alt.Scale(domain=[0, len(order)], nice=False)
    labels = prepare.wrapped(order, NAME)
    names = alt.Y(
        "name:N", title=None, sort=order, scale=alt.Scale(domain=order, padding=0), axis=labels.axis
    )
    cells = (
        data.mark_rect(color="#eef1f4", stroke="white", strokeWidth=1)
        .transform_calculate(from_="utcFormat(datum['start'], '%Y-%m-%d')")
        .encode(x=x, x2="end:T", y=names, tooltip=[when, *hover])
    )
    bars = (
        data.mark_rect()
        .transform_calculate(from_="utcFormat(datum['start'], '%Y-%m-%d')")
        .encode(
            x=x,
            x2="end:T",
            y=alt.Y("low:Q", scale=scale, axis=None),
            y2="high:Q",
            color=colour,
            tooltip=[when, *hover],
        )
    )
    crosses = (
        data.transform_filter(f"datum.state == '{NOTHING}'")
        .mark_text(text="×", fontSize=13, fontWeight="bold", color=_STATES[NOTHING])
        .encode(x=alt.X("middle:T"), y=alt.Y("centre:Q", scale=scale, axis=None))
    )
    # Without a row to draw, a browser warns that the axis has no extent.
    layers = [cells, bars, crosses] if NOTHING in placed["state"] else [cells, bars]
    chart: alt.LayerChart = alt.layer(*layers).resolve_scale(y="independent")
    sized: alt.LayerChart = chart.properties(width="container", height=row_height(labels) * len(order))
    return sized


def _bin(days: pl.Series) -> tuple[str, str]:
    """Finest bin in which the days fit."""
    span: date = days.max() - days.min()  # type: ignore[operator, assignment]
    counts = {"1d": span.days + 1, "1w": span.days // 7 + 2}  # type: ignore[attr-defined]
    return next((each for each in _BINS if counts.get(each[0], 0) <= COLUMNS), _BINS[-1])


def _counts(name: str, total: int, unplaced: int) -> str:
    return f"{name} ({total:,}; {unplaced:,} not in time)" if unplaced else f"{name} ({total:,})"
