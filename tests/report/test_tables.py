"""HTML tables."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pytest

from gpuplanner.core.units_and_number_formats import MISSING_VALUE_TEXT
from gpuplanner.report.html_page import table


def cell(value: object, name: str = "x", **options: object) -> str:
    """Text of the only cell of a table with one row, beside a name."""
    html = table(pl.DataFrame({"name": ["n"], name: [value]}), caption="c", **options)
    return html.split("</th><td", 1)[1].split(">", 1)[1].split("<", 1)[0]


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (1234567, "jobs", "1,234,567"),
        (1234.567, "cost_usd", "1,234.57"),
        (0.2512, "idle_fraction", "25.1 %"),
        (float("nan"), "x", MISSING_VALUE_TEXT),
        (True, "x", "yes"),
        (Decimal("10.10"), "BilledCost", "10.10"),
        (datetime(2026, 10, 1, 6, tzinfo=UTC), "x", "2026-10-01 06:00 UTC"),
        ("<b>", "x", "&lt;b&gt;"),
    ],
)
def test_cells_are_shown_by_type_and_name(value, name, shown):
    assert cell(value, name) == shown


def test_headings_carry_units_and_can_be_given():
    html = table(pl.DataFrame({"wait_s": [1.0], "x": [2]}), caption="c", headings={"x": "the <x>"})
    assert ">wait [s]</th>" in html
    assert ">the &lt;x&gt;</th>" in html


def test_rows_and_columns_have_headers_and_numbers_stand_right():
    html = table(pl.DataFrame({"tenant": ["a"], "jobs": [1]}), caption="c")
    assert html.count('scope="col"') == 2
    assert '<th scope="row">a</th><td class="number">1</td>' in html
    assert 'role="region" aria-label="c"' in html


def test_a_long_table_says_how_much_of_it_is_shown():
    html = table(pl.DataFrame({"x": range(1000)}), caption="c", max_rows=10)
    assert html.count("<tr>") == 11
    assert "First 10 of 1,000 rows." in html


def test_an_empty_table_keeps_its_head():
    html = table(pl.DataFrame(schema={"tenant": pl.String, "jobs": pl.Int64}), caption="c")
    assert "tenant" in html
    assert "<tbody>\n\n</tbody>" in html
