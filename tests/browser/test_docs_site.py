"""The documentation as a site: built strictly, asks nobody, and no serious finding of axe on any page."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]
TOLD = "axe.run().then((told) => told.violations.map((one) => [one.impact, one.id, one.nodes[0].html]))"


def test_no_page_has_a_serious_finding_or_asks_anybody(root, chromium, tmp_path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path], cwd=root, check=True)
    script = resources.files(axe).joinpath("axe.min.js").read_text("utf-8")
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    strangers: list[str] = []
    local = ("file:", "data:", "blob:")
    page.on("request", lambda one: None if one.url.startswith(local) else strangers.append(one.url))
    pages = sorted(path for path in tmp_path.rglob("*.html") if path.name != "404.html")  # it takes a server
    assert len(pages) > 10
    serious = {}
    for path in pages:
        page.goto(path.as_uri())
        page.evaluate(script)
        serious[str(path.relative_to(tmp_path))] = [
            one for one in page.evaluate(TOLD) if one[0] in ("serious", "critical")
        ]
    page.close()
    assert {name: found for name, found in serious.items() if found} == {}
    assert strangers == []
