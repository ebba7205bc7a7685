"""The page and the workbook in another way of writing: the same numbers, the same names."""

from __future__ import annotations

import re
import zipfile
from datetime import date

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.core.units_and_number_formats import LOCALE_BY_NAME, localize_text
from gpuplanner.report import html_page as page
from gpuplanner.report.focus_files_and_workbooks import write_workbook
from gpuplanner.report.number_formats_and_glossary import localize_page

PEAKS = pl.DataFrame({"day": [date(2026, 3, day) for day in (1, 2)], "gpus": [1012.0, 1344.5]})
TEAMS = pl.DataFrame({"team": ["llama 3.1", "v2,500"], "allocated_gpu_hours": [10752.25, 0.838]})


def body() -> str:
    chart = page.figure(plots.plot_peaks(PEAKS, gpus=1500), title="Held", alt=plots.peaks_text(PEAKS), numbers=PEAKS)
    said = page.paragraph("1,344.5 GPU-hours from 2026-03-01 on, −0.5 h, 95.5 % of 1g.10gb; full by 29 Mar 2026")
    return page.section("All", said, page.table(TEAMS, caption="By team"), chart)


def numbers(html: str, name: str) -> list[float]:
    """Numbers of the cells, read as the locale writes them."""
    to = LOCALE_BY_NAME[name]
    cells = re.findall(r'<td class="number">([^<]*)</td>', html)
    return [float(cell.replace(to.thousands, "").replace(to.decimal, ".").replace("−", "-")) for cell in cells]


@pytest.mark.parametrize("name", LOCALE_BY_NAME)
def test_a_page_has_the_same_numbers_in_every_locale(name):
    html = page.render_page(body(), title="T", subtitle="", provenance={"python": "3.11"})
    found = localize_page(html, name)
    assert numbers(found, name) == numbers(html, "en")
    assert ">llama 3.1<" in found
    assert ">v2,500<" in found
    assert "<dd>3.11</dd>" in found
    assert (found == html) == (name == "en")


def test_text_charts_and_pictures_are_written_alike():
    found = localize_page(body(), "de")
    assert "1.344,5 GPU-hours from 01.03.2026 on, −0,5 h, 95,5 % of 1g.10gb; full by 29.03.2026" in found
    assert '"locale":{"number":{"decimal":",","thousands":"."' in found
    assert '"word":"1.500 installed"' in found
    assert '"gpus":1344.5' in found  # data are numbers


def test_versions_addresses_and_lists_stay():
    kept = "gpuplanner 0.1.0, 10.0.0.1, llama-3.1-8b, n[1,2], a=0.5, nodes 1,2, 2026-03-01T00:00:00"
    assert localize_text(kept, "fr") == kept


def test_a_workbook_has_the_same_cells_and_other_days(tmp_path):
    cells, styles = [], []
    for name in ("en", "de"):
        path = write_workbook(tmp_path / f"{name}.xlsx", {"Peaks": PEAKS}, title="T", notes={}, locale=name)
        with zipfile.ZipFile(path) as book:
            cells.append(book.read("xl/worksheets/sheet2.xml"))
            styles.append(book.read("xl/styles.xml").decode())
    assert cells[0] == cells[1]
    assert "yyyy-mm-dd" in styles[0]
    assert "dd.mm.yyyy" in styles[1]
