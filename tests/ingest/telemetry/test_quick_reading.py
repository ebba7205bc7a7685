"""What is read quickly, since a column's cells look alike, is what each cell by itself would give."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.ingest.delimited_rows import (
    FIELD_SEPARATOR_CHARACTER,
    REJECT_TABLE_SCHEMA,
    Rows,
    split_quoted_lines,
    split_with_numbers,
    unquote_lines,
)
from gpuplanner.ingest.telemetry.metric_definitions import Metric
from gpuplanner.ingest.telemetry.telemetry_row_parsing import parse_cells, parse_times
from gpuplanner.ingest.text_files import TextFile
from tests.examples import examples

EXAMPLES = settings(max_examples=examples(60), deadline=None)
NUMBER = st.sampled_from(
    ["400", "400.5", "-3", "+1e3", "1.", ".5", "1e999", "nan", "inf", "٣", "1_0", "", "N/A", "7FF"]
)
UNIT = st.sampled_from(["", " W", "W", "  W", " mW", " kW", " %", "\tW", " [W]"])
METRICS = [Metric("power", "W"), Metric("power", "mW"), Metric("energy_counter", "mJ")]


@EXAMPLES
@given(
    cells=st.lists(st.none() | st.builds("".join, st.tuples(NUMBER, UNIT)), max_size=6), metric=st.sampled_from(METRICS)
)
def test_cells_are_read_as_if_alone(cells: list[str | None], metric: Metric):
    value, fault = parse_cells(pl.Series(cells, dtype=pl.String), metric)
    alone = [parse_cells(pl.Series([None, cell], dtype=pl.String), metric) for cell in cells]
    assert value.to_list() == [one[1] for one, _ in alone]
    assert fault.to_list() == [one[1] for _, one in alone]


def instants_of(texts: list[str]) -> dict[int, datetime]:
    """Line → instant, of the rows that are kept."""
    good = pl.DataFrame(
        {"file": pl.Series([0] * len(texts), dtype=pl.UInt32), "line": range(len(texts)), "raw": texts, "at": texts},
        schema_overrides={"line": pl.UInt32, "raw": pl.String, "at": pl.String},
    )
    file = TextFile(Path("n1.csv"), "", 0, pl.DataFrame(), False, False, False)
    rows = parse_times(
        Rows((file,), len(texts), good, pl.DataFrame(schema=REJECT_TABLE_SCHEMA)), "at", "Europe/Oslo", "test"
    )
    return dict(rows.good.select("line", "time").iter_rows())


DAY = st.sampled_from(["2026/10/25", "2026-10-25", "2026/3/29", "2026/03/29", "2026-13-01", "1775016266", "x", ""])
CLOCK = st.sampled_from(
    [" 02:30:00", "T02:30:00.5", " 12:00:00.123456789", " 12:00:00.", " 24:00:00", " 23:59:60", "", "\u0663"]
)
ZONE = st.sampled_from(["", "Z", "+08:00", "+0800", " "])


@EXAMPLES
@given(texts=st.lists(st.builds("".join, st.tuples(DAY, CLOCK, ZONE)), max_size=6))
def test_times_are_read_as_if_alone(texts: list[str]):
    alone = {line: instants_of([text]) for line, text in enumerate(texts)}
    assert instants_of(texts) == {line: found[0] for line, found in alone.items() if found}


@EXAMPLES
@given(
    lines=st.lists(st.lists(st.sampled_from(['"', '""', ",", "a", '","', "é"]), max_size=8).map("".join), max_size=6)
)
def test_quoted_lines_are_cut_as_the_csv_module_cuts_them(lines: list[str]):
    def one(line: str) -> str | None:
        if '"' not in line:
            return line.replace(",", FIELD_SEPARATOR_CHARACTER)
        try:
            return FIELD_SEPARATOR_CHARACTER.join(next(csv.reader([line], strict=True)))
        except csv.Error:
            return None

    assert unquote_lines(pl.Series(lines, dtype=pl.String), ",").to_list() == [one(line) for line in lines]


@settings(max_examples=examples(200), deadline=None)
@given(
    lines=st.lists(
        st.lists(st.sampled_from(['"', '""', ",", "a", '","', "é"]), min_size=1, max_size=9).map("".join),
        min_size=1,
        max_size=6,
    ),
    count=st.integers(2, 4),
)
def test_lines_all_of_whose_fields_are_quoted_are_cut_as_the_csv_module_cuts_them(lines: list[str], count: int):
    cells, sound = split_quoted_lines(pl.Series(lines), ",", count)
    cut = cells.filter(sound).rows()
    assert cut == [tuple(next(csv.reader([line], strict=True))) for line in pl.Series(lines).filter(sound)]
    written = [",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in cut]
    again, all_sound = split_quoted_lines(pl.Series(written, dtype=pl.String), ",", count)
    assert all_sound.all()
    assert again.rows() == cut


@settings(max_examples=examples(200), deadline=None)
@given(
    lines=st.lists(
        st.lists(NUMBER | st.sampled_from(["400.123456789012345", "75951218841234567", " 4"]), min_size=1, max_size=4)
        .map(",".join)
        .filter(bool),
        min_size=1,
        max_size=5,
    )
)
def test_numbers_that_are_read_with_their_lines_are_those_of_each_cell_by_itself(lines: list[str]):
    read = split_with_numbers(pl.Series(lines), ",", ["x", "y", "z"], [0, 1, 2])
    if read is None:
        return
    cells, short = read
    for line, row, is_short in zip(lines, cells.rows(), short, strict=True):
        fields = line.split(",")
        assert len(fields) <= 3
        assert is_short == (len(fields) < 3)
        for text, cell in zip(fields, row, strict=False):
            value, fault = parse_cells(pl.Series([text]), Metric("power", "W"))
            mine = pl.Series([cell], dtype=pl.Float64 if isinstance(cell, float) or cell is None else pl.String)
            again, wrong = parse_cells(mine, Metric("power", "W"))
            assert (again[0], wrong[0]) == (value[0], fault[0])
