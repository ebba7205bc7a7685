"""The report page in a browser: charts drawn, nothing asked for, nothing wider than a phone."""

from __future__ import annotations

import re
from importlib import resources

import pytest

DRAWN = "[...document.querySelectorAll('.chart')].every((one) => one.dataset.width || !one.clientWidth)"
SMALLEST = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let found = [99, ''];
  while (texts.nextNode()) {
    const one = texts.currentNode, parent = one.parentElement, box = parent.getBoundingClientRect();
    if (!one.nodeValue.trim() || !box.width || !parent.checkVisibility()) continue;
    const size = parseFloat(getComputedStyle(parent).fontSize)
      * (parent.ownerSVGElement ? parent.getScreenCTM().a : 1);
    if (size > 0 && size < found[0]) found = [size, one.nodeValue.trim()];
  }
  return found;
}"""
"""Size [px] of the smallest text that is seen, and that text."""
pytestmark = [pytest.mark.browser, pytest.mark.notebook]


@pytest.fixture(scope="module")
def page_path(report):
    """Address of its page."""
    return (report / "index.html").as_uri()


@pytest.mark.parametrize("width", [1280, pytest.param(400, marks=pytest.mark.long)])
def test_page_draws_every_chart_and_asks_for_nothing(chromium, page_path, width):
    page = chromium.new_page(viewport={"width": width, "height": 900})
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(page_path)
    page.evaluate("document.querySelectorAll('details').forEach((folded) => { folded.open = true; })")
    page.wait_for_function("document.querySelectorAll('figure .chart svg').length >= 8", timeout=600_000)
    assert page.locator("figure .chart svg").count() == page.locator("figure .chart").count()
    assert requests == [page_path]
    assert messages == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heights = "[...document.querySelectorAll('figure')].map(e => e.getBoundingClientRect().height)"
    assert max(page.evaluate(heights)) < 5000
    page.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["index.html", "appendix.html"])
def test_nobody_is_shut_out(chromium, report, name):
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed")
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto((report / name).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((folded) => { folded.open = true; })")
    page.wait_for_function(DRAWN, timeout=600_000)
    page.evaluate(resources.files(axe).joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run().then((told) => told.violations.map((one) => [one.impact, one.id]))")
    assert [one for one in found if one[0] in ("serious", "critical")] == []
    context.close()


@pytest.mark.long
def test_the_way_in_is_by_keyboard(chromium, page_path):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_path)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    folded = page.locator("section.folded > details").first
    folded.locator("summary").first.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.keyboard.press("Enter")
    assert folded.evaluate("(one) => one.open")
    page.close()


@pytest.mark.long
def test_print_is_short_and_large_enough_to_read(chromium, page_path):
    page = chromium.new_page(viewport={"width": 1069, "height": 900})
    page.goto(page_path)
    page.wait_for_function(DRAWN, timeout=600_000)
    sheets = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) <= 6
    page.emulate_media(media="print")
    smallest, text = page.evaluate(SMALLEST)
    assert smallest >= 8 * 96 / 72 - 0.01, text
    assert page.evaluate("document.documentElement.scrollWidth") <= 1069
    page.close()
