"""Frames as HTML tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from html import escape

import polars as pl

from gpuplanner.export.headings import heading, unit_of

MAX_ROWS = 200
"""Rows of a table that reach the page; longer ones stall it. The workbook has them all."""

LONG = 40
"""Characters from which a column of text is wrapped."""

MISSING = "–"
"""What stands for a missing value: missing is not zero."""


def table(
    frame: pl.DataFrame,
    *,
    caption: str,
    formats: Mapping[str, str] | None = None,
    headings: Mapping[str, str] | None = None,
    max_rows: int = MAX_ROWS,
) -> str:
    """An HTML table: numbers to the right with thousands separators, text escaped, missing values as a dash.

    Examples
    --------
    >>> html = table(pl.DataFrame({"tenant": ["a"], "cost_usd": [1234.5]}), caption="Cost")
    >>> '<th scope="row">a</th><td class="number">1,234.50</td>' in html
    True
    """
    specs, names = formats or {}, headings or {}
    side = [_class(series) for series in frame.get_columns()]
    head = "".join(
        f'<th scope="col"{css}>{escape(names.get(name) or heading(name))}</th>'
        for name, css in zip(frame.columns, side, strict=True)
    )
    columns = [_texts(series.head(max_rows), specs.get(series.name)) for series in frame.get_columns()]
    named = bool(frame.width) and not frame.dtypes[0].is_numeric()
    body = []
    for row in zip(*columns, strict=True):
        cells = [f"<td{css}>{text}</td>" for text, css in zip(row, side, strict=True)]
        if named:
            cells[0] = f'<th scope="row"{side[0]}>{row[0]}</th>'
        body.append(f"<tr>{''.join(cells)}</tr>")
    rest = frame.height - max_rows
    more = f'<p class="more">{max_rows:,} of {frame.height:,} rows are shown.</p>\n' if rest > 0 else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">\n'
        f"<table><caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table>\n{more}</div>"
    )


def _class(series: pl.Series) -> str:
    if series.dtype.is_numeric():
        return ' class="number"'
    long = series.dtype == pl.String and (series.str.len_chars().max() or 0) > LONG  # type: ignore[operator]
    return ' class="long"' if long else ""


def _texts(series: pl.Series, spec: str | None) -> list[str]:
    """Cells of a column as escaped text."""
    if spec is None:
        unit = unit_of(series.name)
        if isinstance(series.dtype, pl.Decimal):
            spec = f",.{series.dtype.scale}f"
        elif series.dtype.is_integer():
            spec = ",d"
        else:
            spec = unit.python if unit else ",.2f"
    return [escape(_text(value, spec)) for value in series.to_list()]


def _text(value: object, spec: str) -> str:
    match value:
        case None:
            return MISSING
        case bool():
            return "yes" if value else "no"
        case int() | float() | Decimal():
            return MISSING if value != value else format(value, spec).replace("-", "−")
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}" + (f" {value:%Z}" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case _:
            return str(value)
