"""Notebooks in JupyterLab: a control is set, the answer changes, nothing fails on either side."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import fastexcel
import nbformat
import pytest

from gpuplanner.core.scenario import Scenario
from tests.browser.layout import check_decision, decision_boxes, same_picture, show_alone

pytestmark = [pytest.mark.browser, pytest.mark.slow]
WHAT_IF, COSTS = "03_static_vs_dynamic.ipynb", "06_cost_review.ipynb"
DECISION, REPORT = "decision.ipynb", "monthly_report.ipynb"
TOKEN = "local"
DEMAND = 1
"""Place of the number of the demand in the what-if panel."""
TEAM, PRICE, TERM = 1, 0, 1
"""Places of drop-downs and sliders in the panel of money."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory):
    """Folder of the notebooks that are opened."""
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def lab(root, lab_folder, quick):
    """Address of a notebook in JupyterLab, by name; its settings and workspaces are thrown away."""
    home, folder = lab_folder.parent, lab_folder
    shutil.copy(root / "notebooks" / REPORT, folder)
    write_decision_notebook(folder, quick)
    for name in (WHAT_IF, COSTS):
        notebook = nbformat.read(root / "notebooks" / name, as_version=4)
        source = notebook.cells[1].source
        notebook.cells[1].source = source.replace('policies: str = ""', 'policies: str = "fewer_nodes"')
        nbformat.write(notebook, folder / name)
    port = free_port()
    dirs = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    arguments = [
        "--no-browser", "--ip=127.0.0.1", f"--port={port}", f"--IdentityProvider.token={TOKEN}", "--allow-root",
        f"--notebook-dir={folder}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *arguments],
        env={**os.environ, **{name: str(home / name) for name in dirs}},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}")
        yield lambda name: f"http://127.0.0.1:{port}/lab/tree/{name}?token={TOKEN}&reset"
    finally:
        server.terminate()
        server.wait(timeout=20)
        shutil.rmtree(home, ignore_errors=True)


def write_decision_notebook(folder: Path, scenario: Scenario) -> None:
    """A notebook of one cell that displays the decision of a scenario."""
    (folder / "quick.yaml").write_text(scenario.to_yaml(), encoding="utf-8")
    source = "import gpuplanner as gp\n\ngp.decide(gp.Scenario.from_yaml('quick.yaml')).decision"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / DECISION)


def wait_for(address: str) -> None:
    for _ in range(120):
        try:
            with urllib.request.urlopen(address):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    pytest.fail("JupyterLab did not start within a minute")


@pytest.fixture
def opened(chromium, lab):
    """Open a notebook, run all its cells, and see at the end that nothing failed or was fetched from elsewhere."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1400})
    faults, strangers = [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: _note(request.url, strangers))

    def run_all(name: str, width: int = 1280, height: int = 1400):
        page.set_viewport_size({"width": width, "height": height})
        page.goto(lab(name), wait_until="commit")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=600_000)
        page.wait_for_selector("text=| Idle", timeout=600_000)  # run before the kernel is there, and it asks for one
        page.click("text=Run >> nth=0")
        page.click("text=Run All Cells")
        return page

    yield run_all
    tracebacks = page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
    assert tracebacks.count() == 0
    assert faults == []
    assert strangers == []
    page.close()


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 1600])
@pytest.mark.parametrize("name", [DECISION, WHAT_IF, REPORT])
def test_decision_looks_as_on_a_page_without_jupyterlab(opened, chromium, name, width):
    page = opened(name, width=width, height=2400)
    here = decision_boxes(page)
    check_decision(here, gpus_per_node=8)
    alone = show_alone(page, chromium)
    there = decision_boxes(alone)
    assert len(here["parts"]) == len(there["parts"])
    for box, other in zip(here["parts"], there["parts"], strict=True):
        assert box == pytest.approx(other, abs=1)
    page.add_style_tag(content=".Toastify { display: none; }")
    assert same_picture(page, alone)
    alone.close()


@pytest.mark.long
def test_the_panel_is_on_the_first_screen_and_a_demand_can_be_typed(opened):
    page = opened(WHAT_IF, height=900)
    page.wait_for_selector(".gw-answer .gw-status:has-text('Exact')", state="attached", timeout=900_000)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=900_000)
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.wait_for_timeout(2000)
    bottom = page.locator(".jp-WindowedPanel-outer").evaluate("element => element.getBoundingClientRect().bottom")
    boxes = [button.bounding_box() for button in page.locator(".gw-answer .jupyter-button").all()]
    assert len({box["y"] for box in boxes}) == 1  # no button wraps
    assert boxes[0]["y"] + boxes[0]["height"] < bottom
    number = page.locator(".widget-readout").nth(DEMAND)
    number.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("1.25")
    page.keyboard.press("Enter")
    page.wait_for_selector(".gpuplanner-what-if code:has-text('arrival_scale=1.25')", timeout=60_000)


@pytest.mark.long
def test_team_price_and_term_are_set_by_keyboard_and_the_workbook_is_written(opened, lab_folder):
    page = opened(COSTS)
    numbers = page.locator(".widget-text input[type='number']")
    numbers.first.wait_for(state="attached", timeout=900_000)
    panel = ".widget-vbox:has(.widget-dropdown)"
    first = changed(page, "", mark="Cost of all teams", panel=panel)
    page.locator(".widget-dropdown select").nth(TEAM).focus()
    page.keyboard.type("sea")  # a name is found by its first letters; an arrow would open the list
    second = changed(page, first, mark="Cost of search", panel=panel)
    numbers.nth(PRICE).fill("2.5")
    numbers.nth(PRICE).press("Enter")
    third = changed(page, second, mark="Cost of search", panel=panel)
    numbers.nth(TERM).fill("15")
    numbers.nth(TERM).press("Enter")
    assert "over 15 months" in changed(page, third, mark="over 15 months", panel=panel)
    page.locator("button:has-text('Write the workbook')").focus()
    page.keyboard.press("Enter")
    book = lab_folder / "costs.xlsx"
    for _ in range(120):
        page.wait_for_timeout(500)
        if book.exists():
            break
    tenants = fastexcel.read_excel(book).load_sheet("Cost by team").to_polars()
    assert "search" in tenants["team"].to_list()


def answer(page, panel: str) -> str:
    """What the first panel of a kind shows, in all its parts."""
    parts = page.locator(panel).first.locator(".widget-html-content")
    return "".join(parts.evaluate_all("all => all.map(part => part.innerHTML)"))


def changed(page, before: str, *, mark: str, panel: str) -> str:
    """Wait until the panel shows something else, with a certain text in it."""
    now = ""
    for _ in range(1200):
        now = answer(page, panel)
        if now != before and mark in now:
            return now
        page.wait_for_timeout(500)
    pytest.fail(f"the answer did not change to {mark!r} within ten minutes: {now[:200]}")


def _note(url: str, strangers: list[str]) -> None:
    if "127.0.0.1" not in url and not url.startswith(("data:", "blob:")):
        strangers.append(url)
