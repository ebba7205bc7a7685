"""A notebook as a page: everything that its cells show, nothing that runs or asks a network."""

from __future__ import annotations

import json
import re

import pytest

from gpuplanner.notebook.notebook_pages import WIDGET_MIME_TYPE, notebook_page, write_notebook_page

HOSTILE = "<script>fetch('https://example.org')</script>"


def cell(source: str, *outputs: dict[str, str]) -> dict[str, object]:
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [{"data": one} for one in outputs]}


def strangers(page, event: str = "request") -> list[str]:
    """Addresses beyond the file itself that a page asks for, as it goes on."""
    asked: list[str] = []
    page.on(event, lambda one: None if one.url.startswith(("file:", "data:")) else asked.append(one.url))
    return asked


def test_cells_stand_under_their_headings_and_controls_are_said():
    cells = [
        {"cell_type": "markdown", "source": ["# Which way?\n", "\n", "A lead."]},
        {"cell_type": "markdown", "source": "## First\n\n| a | b |\n|---|---|\n| 1 | 2 |"},
        cell("x = 1\nx", {"text/plain": "1"}),
        cell("panel", {WIDGET_MIME_TYPE: "{}", "text/plain": "VBox()"}),
        {"cell_type": "markdown", "source": "## Second"},
        cell("view", {"text/html": "<style>p { }</style><p>seen</p>", "text/plain": "View"}),
    ]
    html = notebook_page(json.dumps({"cells": cells}), "way.ipynb", {"cutoffs": 6})
    first, second = re.findall(r'<section id="\w+"><h2>.*?</section>', html, re.DOTALL)
    assert "<h1>Which way?</h1>" in html
    assert "<td>1</td>" in first
    assert "x = 1\nx" in first
    assert "<pre>1</pre>" in first
    assert "Controls need a kernel" in first
    assert "VBox" not in first
    assert "<p>seen</p>" in second
    assert "p { }" not in second
    assert "<dt>cutoffs</dt><dd>6</dd>" in html


@pytest.mark.browser
def test_a_notebook_of_anybody_runs_nothing_and_asks_nobody(chromium, tmp_path):
    cells = [
        {"cell_type": "markdown", "source": f"# T {HOSTILE}\n\n{HOSTILE}\n\n![p](https://example.org/a.png)"},
        cell(HOSTILE, {"text/html": f'{HOSTILE}<img src="https://example.org/b.png" alt="b">'}),
    ]
    path = tmp_path / "n.html"
    path.write_text(notebook_page(json.dumps({"cells": cells}), "n.ipynb"), encoding="utf-8")
    page = chromium.new_page()
    asked = strangers(page, "requestfinished")
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    assert asked == []
    assert page.locator("h1").inner_text() == f"T {HOSTILE}"
    page.close()


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.notebook
def test_a_shipped_notebook_fits_both_widths_and_asks_nobody(chromium, tmp_path):
    path = write_notebook_page("05", tmp_path / "05.html", {"boards": "H100-80GB-SXM5=8"})
    for width in (1280, 400):
        page = chromium.new_page(viewport={"width": width, "height": 900})
        asked = strangers(page)
        page.goto(path.as_uri())
        assert asked == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("img[alt*='GiB']").count() >= 1
        assert page.locator("td:has-text('B200')").count() == 0
        page.close()
