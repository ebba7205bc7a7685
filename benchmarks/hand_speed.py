"""How long a control of the what-if panel takes from key press to redraw, in JupyterLab in Chromium.

Every slider is moved by the keyboard, a key at a time: the time to the first change of the answer (coarse, or exact
where that is as quick), and the time to the exact answer. With ``--busy`` a second process keeps a core at work.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import polars as pl
from playwright.sync_api import Page, sync_playwright

NOTEBOOK = Path(__file__).parent.parent / "notebooks" / "03_static_vs_dynamic.ipynb"
WATCH = """
() => {
  const panel = document.querySelector('.widget-vbox:has(.noUi-handle)');
  window.answers = [];
  const answer = [...panel.querySelectorAll('.widget-html-content')].at(-1);
  const status = [...panel.querySelectorAll('.widget-html-content')].at(-2);
  new MutationObserver(() => requestAnimationFrame(() =>
    window.answers.push([performance.now(), answer.innerText.length > 50, status.innerText]))
  ).observe(panel, {subtree: true, childList: true, characterData: true});
  window.seen = () => answer.innerHTML;
  document.addEventListener('keydown', () => { window.pressed = performance.now(); }, true);
}
"""
STEP = """
async (patience) => {
  const before = window.before, began = window.pressed;
  let first = null;
  while (performance.now() - began < patience) {
    const now = window.seen();
    if (first === null && now !== before) first = performance.now() - began;
    const done = document.querySelector('.widget-vbox:has(.noUi-handle)').innerText.includes('Done.');
    if (first !== null && done && performance.now() - began > 400) return [first, performance.now() - began];
    await new Promise(requestAnimationFrame);
  }
  return [first, null];
}
"""
"""Looks at every frame that is drawn: what a hand waits for is a change that can be seen."""


def lab(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """JupyterLab on a copy of the notebook up to its panel, and the address of that."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    last = next(i for i, cell in enumerate(notebook.cells) if cell.source == "found.whatif()")
    notebook.cells = notebook.cells[: last + 1]
    nbformat.write(notebook, folder / "panel.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [
        "--no-browser",
        f"--port={port}",
        "--IdentityProvider.token=local",
        "--allow-root",
        f"--notebook-dir={folder}",
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=local").close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            break
    return server, f"http://127.0.0.1:{port}/lab/tree/panel.ipynb?token=local&reset"


def measured(page: Page, presses: int) -> pl.DataFrame:
    """A row a key press: which control, milliseconds to the first change and to the exact answer."""
    names = page.locator(".widget-vbox:has(.noUi-handle) .widget-label").all_inner_texts()
    sliders = page.locator(".widget-hslider:has(.noUi-handle)")
    rows = []
    for number in range(sliders.count()):
        one = sliders.nth(number)
        name = one.locator(".widget-label").inner_text()
        for press in range(presses):
            one.locator(".noUi-handle").focus()
            page.evaluate("() => { window.before = window.seen(); }")
            page.keyboard.press("ArrowRight" if press % 4 < 3 else "ArrowLeft")
            first, exact = page.evaluate(STEP, 60_000)
            rows.append((name, first, exact))
            page.wait_for_timeout(300)
    assert names
    return pl.DataFrame(rows, schema=["control", "first_ms", "exact_ms"], orient="row")


def main() -> None:
    """Print a table: p50 and p95 by control."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--presses", type=int, default=12)
    given.add_argument("--busy", action="store_true")
    asked = given.parse_args()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if asked.busy else None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server, address = lab(Path(folder))
        try:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 1400})
            page.goto(address, wait_until="commit")
            page.wait_for_selector("text=| Idle", timeout=300_000)
            page.click("text=Run >> nth=0")
            page.click("text=Run All Cells")
            page.wait_for_selector(".noUi-handle", timeout=600_000)
            page.wait_for_selector(".widget-html-content:has-text('Done.')", timeout=600_000)
            page.evaluate(WATCH)
            rows = measured(page, asked.presses)
        finally:
            server.terminate()
            server.wait(20)
            if busy is not None:
                busy.kill()
    found = rows.group_by("control", maintain_order=True).agg(
        pl.len().alias("presses"),
        pl.col("first_ms").median().round(0).alias("first p50"),
        pl.col("first_ms").quantile(0.95).round(0).alias("first p95"),
        pl.col("exact_ms").median().round(0).alias("exact p50"),
        pl.col("exact_ms").quantile(0.95).round(0).alias("exact p95"),
        pl.col("exact_ms").is_null().sum().alias("no answer"),
    )
    with pl.Config(tbl_rows=-1, tbl_formatting="MARKDOWN", tbl_hide_dataframe_shape=True, fmt_str_lengths=60):
        print(found)


if __name__ == "__main__":
    main()
