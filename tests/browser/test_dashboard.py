"""Notebooks served without code: outputs and live controls, a key changes the answer, and nobody else is asked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.browser.layout import check_decision, decision_boxes
from tests.browser.test_notebook import DECISION, write_decision_notebook

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture
def served(tmp_path):
    pytest.importorskip("voila", reason="the extra dashboard is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["notebook", str(tmp_path / "nb"), "--dashboard", "--no-browser", f"--port={port}", "--token=local"]
    homes = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    server = subprocess.Popen(
        [sys.executable, "-m", "gpuplanner", *words],
        env={**os.environ, **homes}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield port
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.mark.parametrize("width", [1280, 1600])
def test_decision_keeps_its_layout(served, chromium, tmp_path, quick, width):
    wait_for(served)
    write_decision_notebook(tmp_path / "nb", quick)
    page = chromium.new_page(viewport={"width": width, "height": 1400})
    page.goto(f"http://127.0.0.1:{served}/voila/render/{DECISION}?token=local", wait_until="commit")
    check_decision(decision_boxes(page), gpus_per_node=8)
    page.close()


def wait_for(port: int) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/?token=local").close()
        except urllib.error.HTTPError:
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    pytest.fail("the server did not start within a minute")


def test_a_notebook_is_served_without_code_and_its_controls_answer_to_keys(served, chromium):
    wait_for(served)
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    strangers: list[str] = []
    local = ("data:", "blob:", f"http://127.0.0.1:{served}/", f"ws://127.0.0.1:{served}/")
    page.on("request", lambda one: None if one.url.startswith(local) else strangers.append(one.url))
    page.goto(f"http://127.0.0.1:{served}/voila/render/01_demand_and_phases.ipynb?token=local", wait_until="commit")
    page.wait_for_selector(".widget-dropdown select", timeout=400_000)
    panel = page.locator(".widget-vbox:has(.widget-dropdown)").first
    page.wait_for_function("e => e.innerText.length > 100", arg=panel.element_handle(), timeout=60_000)
    before = panel.inner_text()
    page.locator(".widget-dropdown select").first.focus()
    page.keyboard.press("ArrowDown")  # the next team
    page.wait_for_function("([e, text]) => e.innerText !== text", arg=[panel.element_handle(), before], timeout=60_000)
    assert "import gpuplanner" not in page.content()
    assert page.locator("text=Traceback").count() == 0
    assert strangers == []
    page.close()
