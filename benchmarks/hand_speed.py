"""How long controls take from key press to redraw: JupyterLab in Chromium, every control moved by the keyboard.

The page itself holds the watch: it notes when a key goes down or a list changes, and looks at every frame for a new
answer. A new answer is a new node, so that one with the same words counts as well. Coarse answers and pictures that
are still those of the answer before say so. ``--busy`` keeps one core at work beside it; the load of the machine is
printed with the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
from playwright.sync_api import Page, sync_playwright

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
PATIENCE_MS = 60_000
PANEL = ".widget-vbox:has(.gpuplanner-answer)"


class Panel(NamedTuple):
    """A notebook, and the end of the last cell that is run of it."""

    notebook: str
    ends_with: str


PANELS = {
    "what-if": Panel("03_static_vs_dynamic.ipynb", "found.whatif()"),
    "money": Panel("06_cost_review.ipynb", "found.controls(workbook)"),
}
WATCH = """
() => {
  const answer = () => document.querySelector('.widget-vbox .gpuplanner-answer');
  for (const moved of ['keydown', 'change'])
    document.addEventListener(moved, (event) => { window.pressed = event.timeStamp; }, true);
  window.step = async (patience) => {
    const old = window.old, found = { first: null, picture: null, exact: null };
    let node = old;
    while (performance.now() - window.pressed < patience && found.exact === null) {
      await new Promise(requestAnimationFrame);
      const now = performance.now() - window.pressed, seen = answer();
      if (!seen || seen === node) continue;
      node = seen;
      const coarse = seen.innerText.includes('Coarse');
      if (found.first === null) found.first = now;
      if (found.picture === null && !seen.querySelector('.stale')) found.picture = now;
      if (!coarse) found.exact = now;
    }
    return [found.first, found.picture, found.exact];
  };
  window.now = () => { window.old = answer(); window.pressed = performance.now(); };
}
"""


@contextlib.contextmanager
def lab(folder: Path, panel: Panel) -> Iterator[str]:
    """JupyterLab on a copy of the notebook up to its panel; yields the address of that."""
    notebook = json.loads((NOTEBOOKS / panel.notebook).read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    last = next(number for number, text in enumerate(sources) if text.endswith(panel.ends_with))
    notebook["cells"] = notebook["cells"][: last + 1]
    (folder / "panel.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--no-browser", f"--port={port}", "--IdentityProvider.token=local", "--allow-root",
             f"--notebook-dir={folder}", "--LabApp.news_url=None",
             "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]  # fmt: skip
    homes = {name: str(folder / name) for name in ("JUPYTERLAB_WORKSPACES_DIR", "JUPYTERLAB_SETTINGS_DIR")}
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *words],
        env={**os.environ, **homes}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=local").close()
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
            else:
                break
        yield f"http://127.0.0.1:{port}/lab/tree/panel.ipynb?token=local&reset"
    finally:
        server.terminate()
        server.wait(60)


def opened(page: Page, address: str) -> None:
    """Run all cells, and wait for the first exact answer of the panel."""
    page.goto(address, wait_until="commit")
    page.wait_for_selector("text=| Idle", timeout=600_000)
    page.click("text=Run >> nth=0")
    page.click("text=Run All Cells")
    page.wait_for_selector(".widget-html-content .gpuplanner-answer", timeout=1_200_000)
    page.wait_for_timeout(2000)
    page.evaluate(WATCH)


def moved(page: Page, presses: int) -> Iterator[tuple[str, float | None, float | None, float | None]]:
    """Press keys on every control: its name, and ms to the first redraw, to its picture, and to the exact answer."""
    sliders = page.locator(f"{PANEL} .widget-hslider:has(.noUi-handle)")
    for number in range(sliders.count()):
        one = sliders.nth(number)
        name = one.locator(".widget-label").inner_text()
        handle = one.locator(".noUi-handle")
        for press in range(presses):
            handle.focus()
            up = press % 4 < 3
            if float(handle.get_attribute("aria-valuenow")) >= float(handle.get_attribute("aria-valuemax")):
                up = False
            page.evaluate("() => window.now()")
            page.keyboard.press("ArrowRight" if up else "ArrowLeft")
            yield (name, *page.evaluate("(patience) => window.step(patience)", PATIENCE_MS))
            page.wait_for_timeout(200)
    lists = page.locator(f"{PANEL} .widget-dropdown:has(select)")
    for number in range(lists.count()):
        one = lists.nth(number)
        name = one.locator(".widget-label").inner_text()
        options = one.locator("option").count()
        for press in range(min(presses, options - 1)):
            # Letters are commands of JupyterLab, which hears the keys of a list as well: it is set as a mouse sets it.
            page.evaluate("() => window.now()")
            one.locator("select").select_option(index=(press + 1) % options)
            yield (name, *page.evaluate("(patience) => window.step(patience)", PATIENCE_MS))


def main() -> None:
    """Print a table: median and 95th percentile by control."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--panel", choices=PANELS, default="what-if")
    given.add_argument("--presses", type=int, default=12)
    given.add_argument("--busy", action="store_true", help="with a core kept at work")
    asked = given.parse_args()
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        print("No browser is installed: nothing was measured.")
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        lab(Path(folder), PANELS[asked.panel]) as address,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        opened(page, address)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])] if asked.busy else []
        rows = []
        try:
            for row in moved(page, asked.presses):
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
        finally:
            for one in busy:
                one.kill()
        load = os.getloadavg()[0]
    report(pl.DataFrame(rows, schema=["control", "first", "picture", "exact"], orient="row"), load)


def report(rows: pl.DataFrame, load: float) -> None:
    """Print the figures as a table of Markdown."""
    columns = [
        each(pl.col(name)).round(0).cast(pl.Int64).alias(f"{name}, {word} [ms]")
        for name in ("first", "picture", "exact")
        for word, each in (("median", pl.Expr.median), ("p95", lambda one: one.quantile(0.95)))
    ]
    table = pl.concat([
        rows.group_by("control", maintain_order=True).agg(pl.len().alias("keys"), *columns, _silent()),
        rows.group_by(pl.lit("all").alias("control")).agg(pl.len().alias("keys"), *columns, _silent()),
    ])  # fmt: skip
    print(f"{os.cpu_count()} cores, load {load:.1f}")
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, tbl_formatting="MARKDOWN",
                   tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, fmt_str_lengths=60):  # fmt: skip
        print(table)


def _silent() -> pl.Expr:
    return pl.col("exact").is_null().sum().alias("no answer")


if __name__ == "__main__":
    main()
