"""The workbook: totals equal, nothing runs, the same bytes each time."""

from __future__ import annotations

import io
import re
import zipfile
from datetime import date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import fastexcel
import polars as pl
import pytest

from gpuplanner.core.errors import OutputError
from gpuplanner.report.focus_files_and_workbooks import MAX_SHEET_ROWS, write_workbook

HOSTILE = [
    '=HYPERLINK("http://example.org")',
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1",
    "＝1",
    "{=1}",
    "<b>",
    "0012",
    "http://example.org",
]


@pytest.fixture
def tables() -> dict[str, pl.DataFrame]:
    cents = [Decimal(n * 7 + 1) / 100 for n in range(len(HOSTILE))]
    when = datetime(2026, 10, 25, 3, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    costs = pl.DataFrame(
        {
            "tenant": HOSTILE,
            "EffectiveCost": pl.Series(cents, dtype=pl.Decimal(18, 2)),
            "used_gpu_hours": [0.1 * n for n in range(len(HOSTILE))],
            "idle_fraction": [0.25] * len(HOSTILE),
            "start": pl.Series([when] * len(HOSTILE), dtype=pl.Datetime("us", "Europe/Berlin")),
        }
    )
    odd = pl.DataFrame(
        {
            "day": [date(2026, 10, 1), None],
            "x": [float("nan"), float("inf")],
            "big": [2**60, 1],
            "ok": [True, None],
            "length": [timedelta(seconds=90), None],
            "nodes": [["a", "b"], None],
        }
    )
    return {"Costs: a/b [1]": costs, "odd": odd}


@pytest.fixture
def workbook(tables, tmp_path):
    return write_workbook(
        tmp_path / "x.xlsx",
        tables,
        title="=October",
        notes={"Currency": "USD", "=Baseline": "=1+1"},
        totals={"Costs: a/b [1]": ["EffectiveCost", "used_gpu_hours"]},
    )


def part(path, name: str) -> str:
    with zipfile.ZipFile(path) as book:
        return book.read(name).decode()


def test_totals_equal_the_table_to_the_cent(workbook, tables):
    costs = tables["Costs: a/b [1]"]
    sheet = fastexcel.read_excel(workbook).load_sheet(1).to_polars()
    total = sheet.row(-1, named=True)
    assert total["team"] == "Total"
    assert Decimal(repr(total["EffectiveCost"])) == costs["EffectiveCost"].sum()
    assert total["used GPU-hours"] == pytest.approx(costs["used_gpu_hours"].sum())
    amounts = [Decimal(repr(amount)) for amount in sheet["EffectiveCost"].to_list()[:-1]]
    assert amounts == costs["EffectiveCost"].to_list()


def test_hostile_cells_stay_text(workbook):
    sheet = fastexcel.read_excel(workbook).load_sheet(1).to_polars()
    assert sheet["team"].to_list()[:-1] == HOSTILE


def test_the_only_formulas_are_our_sums_and_there_are_no_links_or_macros(workbook, tables):
    formulas = []
    with zipfile.ZipFile(workbook) as book:
        assert not [name for name in book.namelist() if "vba" in name.lower() or "externalLink" in name]
        for name in book.namelist():
            if name.startswith("xl/worksheets/"):
                xml = book.read(name).decode()
                formulas += re.findall(r"<f>(.*?)</f>", xml)
                assert "hyperlink" not in xml.lower()
    last = len(HOSTILE) + 1
    assert formulas == [f"SUM(B2:B{last})", f"SUM(C2:C{last})"]


def test_sheets_have_legal_names_and_say_what_they_are(workbook):
    book = fastexcel.read_excel(workbook)
    assert book.sheet_names == ["Read me", "Costs- a-b -1-", "odd"]
    text = " ".join(str(cell) for row in book.load_sheet(0, header_row=None).to_polars().rows() for cell in row if cell)
    assert text.startswith("=October")
    assert "used GPU-hours" in text
    assert "=1+1" in text
    assert "Times are UTC" in text
    beside = dict(row[:2] for row in book.load_sheet(0, header_row=None).to_polars().rows())
    assert beside["Sheet"] == "Columns and units"
    assert beside["Costs- a-b -1-"].startswith(f"{len(HOSTILE)} rows: ")
    assert beside["odd"].startswith("2 rows: ")


def test_names_are_cut_to_31_characters_and_kept_apart(tmp_path):
    names = ["n" * 40, "N" * 40, "", "History", "'q'"]
    path = write_workbook(tmp_path / "x.xlsx", dict.fromkeys(names, pl.DataFrame({"x": [1]})), title="t", notes={})
    got = fastexcel.read_excel(path).sheet_names[1:]
    assert got == ["n" * 31, "N" * 27 + " (2)", "Sheet", "History (2)", "q"]


def test_instants_are_utc_and_say_so(workbook):
    sheet = fastexcel.read_excel(workbook).load_sheet(1).to_polars()
    assert sheet["start"][0] == datetime(2026, 10, 25, 2, 30)
    assert "UTC" in part(workbook, "xl/styles.xml")


def test_odd_values_are_kept_or_left_empty(workbook):
    sheet = fastexcel.read_excel(workbook).load_sheet("odd").to_polars()
    assert sheet["x"].to_list() == ["nan", "inf"]
    assert str(sheet["big"][0]) == str(2**60)
    assert sheet["ok"].to_list() == [True, None]
    assert sheet["length"].to_list() == [90.0, None]
    assert sheet["nodes"].to_list() == ["a; b", None]


def test_same_tables_give_the_same_bytes(tables, tmp_path):
    paths = [write_workbook(tmp_path / f"{n}.xlsx", tables, title="t", notes={"a": "b"}, totals={}) for n in (1, 2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_too_many_rows_are_refused_before_anything_is_written(tmp_path):
    frame = pl.DataFrame({"x": pl.zeros(MAX_SHEET_ROWS, eager=True, dtype=pl.Int8)})
    with pytest.raises(OutputError, match="CSV or Parquet"):
        write_workbook(tmp_path / "x.xlsx", {"s": frame}, title="t", notes={})
    assert not list(tmp_path.iterdir())


def test_control_characters_do_not_break_the_file(tmp_path):
    frame = pl.DataFrame({"x": ["a\x00b\x1b[31m", "c"]})
    path = write_workbook(tmp_path / "x.xlsx", {"s": frame}, title="t", notes={})
    assert fastexcel.read_excel(io.BytesIO(path.read_bytes()).getvalue()).load_sheet(1).to_polars()["x"][1] == "c"
