"""The page of the claims in a browser: charts drawn, nothing asked for, nothing wider than a phone."""

from __future__ import annotations

import pytest

from gpuplanner.lab.claims import Conditions, Measured
from gpuplanner.lab.claims.page import write_page
from gpuplanner.lab.claims.published import every_claim
from gpuplanner.lab.claims.verdict import figure, figures_of

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """Address of a page on which every claim has figures of two units, some of them open or not measured."""
    rows = [
        figure(
            "a mean that was measured, with a rather long name",
            "min",
            3.0,
            claimed=(None, 4.0),
            interval=(2.5, 3.5),
        ),
        figure("another", "min", 9.0, claimed=(None, 4.0), interval=(8.0, 10.0)),
        figure("a share", "%", 92.86, claimed=(92.855, 92.865)),
        figure("not measured", "%", None, claimed=(50.0, None), interval=(None, None)),
    ]
    tested = [
        (
            claim,
            Measured.by(
                figures_of(rows), "It was measured.", tables={"rows": figures_of(rows)}, remarks=("So.",)
            ),
        )
        for claim in every_claim().values()
    ]
    out = tmp_path_factory.mktemp("claims") / "page"
    write_page(out, tested, Conditions())
    return (out / "index.html").as_uri()


@pytest.mark.parametrize("width", [1280, 400])
def test_page_draws_every_chart_and_asks_for_nothing(chromium, page_path, width):
    page = chromium.new_page(viewport={"width": width, "height": 900})
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(page_path)
    charts = len(every_claim())
    page.wait_for_function(
        f"document.querySelectorAll('figure .chart svg').length >= {charts}", timeout=60_000
    )
    assert requests == [page_path]
    assert messages == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
