"""The report page in a browser: charts drawn, nothing asked for, nothing wider than a phone."""

from __future__ import annotations

import pytest

from gpuplanner.report.render import write_report

pytestmark = [pytest.mark.browser, pytest.mark.notebook]


@pytest.fixture(scope="module")
def page_path(quick, tmp_path_factory):
    """Address of a report page."""
    out = tmp_path_factory.mktemp("page") / "demo"
    write_report(quick, out)
    return (out / "index.html").as_uri()


@pytest.mark.parametrize("width", [1280, 400])
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
