"""What is wrong with the data, against the figures that it moves."""

from __future__ import annotations

import altair as alt
import polars as pl
from altair.typing import ChartType

from gpuplanner.plot import prepare, theme

SEVERITIES = {
    "error": ("square", "#d55e00"),
    "warning": ("triangle-up", "#e69f00"),
    "info": ("circle", "#0072b2"),
}
"""Mark and colour of each severity."""
FINDINGS = 20
"""Findings that have a row of their own."""
ROW, LINE = 24, 13
"""Pixels of a row, and of each further line of the names."""
NAME = 24
"""Characters of a line of names: those of findings are sentences."""


def plot_quality(findings: pl.DataFrame, *, top: int = FINDINGS) -> ChartType:
    """Draw what is wrong with the data against the figures that it moves; severity by mark and colour.

    Parameters
    ----------
    findings : polars.DataFrame
        ``check, severity, rows, effect, example, figure``: one row for each figure that a finding moves, gravest
        first, from :func:`gpuplanner.study.past.quality.by_figure`.
    top : int
        Findings with a row of their own; the title says how many there are.

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    prepare.require(
        findings, ["check", "severity", "rows", "effect", "example", "figure"], where="plot_quality"
    )
    title = "What is wrong with the data, and which figures it moves"
    if findings.is_empty():
        return theme.saying("No faults found.", title=title)
    named = findings.with_columns(name=pl.format("{} × {}", _counted(pl.col("rows")), "check"))
    names = named["name"].unique(maintain_order=True).to_list()
    figures = named["figure"].unique(maintain_order=True).to_list()
    shown = named.filter(pl.col("name").is_in(names[:top]))
    if len(names) > top:
        title += f": the {top} gravest of {len(names)}"
    known = [severity for severity in SEVERITIES if severity in shown["severity"]]
    shapes, colours = zip(*(SEVERITIES[severity] for severity in known), strict=True)
    labels = prepare.wrapped(names[:top], NAME, grid=True)
    chart: alt.Chart = (
        alt.Chart(prepare.to_data(shown, where="plot_quality"), width="container")
        .mark_point(filled=True, size=150, opacity=1)
        .encode(
            x=alt.X(
                "figure:N",
                title="moves these figures",
                sort=figures,
                scale=alt.Scale(domain=figures),
                axis=alt.Axis(orient="top", labelAngle=-35, labelAlign="left", labelOverlap=False, grid=True),
            ),
            y=alt.Y("name:N", title=None, sort=names[:top], axis=labels.axis),
            color=alt.Color("severity:N", title=None, scale=alt.Scale(domain=known, range=colours)),
            shape=alt.Shape("severity:N", title=None, scale=alt.Scale(domain=known, range=shapes)),
            tooltip=[
                alt.Tooltip("check:N", title="rows that"),
                alt.Tooltip("rows:Q", title="rows", format=",d"),
                alt.Tooltip("severity:N", title="severity"),
                alt.Tooltip("effect:N", title="effect"),
                alt.Tooltip("example:N", title="example"),
            ],
        )
        .properties(height=row_height(labels) * len(names[:top]))
    )
    return theme.finish(
        chart, title=title, finding=quality_text(findings), legend=90, names=labels.pixels, room=40
    )


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
    said = ", ".join(_many(counts[severity], severity) for severity in SEVERITIES if severity in counts)
    first = findings.row(0, named=True)
    effect = f": {first['effect']}" if first.get("effect") else ""
    return f"{said.capitalize()}. Gravest: {first['rows']:,} × {first['check']}{effect}."


def row_height(labels: prepare.Labels) -> int:
    """Pixels of a row that has room for the highest label."""
    return ROW + LINE * (labels.lines - 1)


def _counted(rows: pl.Expr) -> pl.Expr:
    return rows.map_elements(lambda count: f"{count:,}", return_dtype=pl.String)


def _many(count: int, severity: str) -> str:
    word = {"info": "note"}.get(severity, severity)
    return f"{count} {word}{'s' if count > 1 else ''}"
