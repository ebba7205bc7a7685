"""The page: self-contained, safe, the same each time, and drawn in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import polars as pl
import pytest

from gpuplanner import report as plots
from gpuplanner.report import html_page as page
from gpuplanner.report.report_messages_and_pdf import print_pdf

BROWSER = shutil.which("chromium")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
CHARTS = "[...document.querySelectorAll('.chart')]"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def costs() -> pl.DataFrame:
    return pl.DataFrame({"tenant": [HOSTILE, "=1+1", "vision"], "cost": [300.0, 200.0, 100.0]})


def ways() -> pl.DataFrame:
    rows = [("today", 9000.0, 0.0, "today"), (HOSTILE, 6500.0, 8.0, "tuned"), (HOSTILE, 6000.0, 33.0, "setting")]
    return pl.DataFrame(rows, schema=["policy", "gpu_hours", "added_wait_p95_minutes", "kind"], orient="row")


def demand() -> pl.DataFrame:
    start = datetime(2026, 10, 1, tzinfo=UTC)
    return pl.DataFrame(
        {"unique_id": f"a/{profile}", "profile": profile, "ds": start + timedelta(hours=hour), "y": hour % 24}
        for profile in ("gpu", "1g.10gb")
        for hour in range(72)
    ).cast({"y": pl.Float64})


def sample_page() -> str:
    charts = {
        "Cost": plots.plot_costs(costs(), unit="USD"),
        "Ways": plots.plot_frontier(ways()),
        "Demand": plots.plot_demand(demand()),
    }
    figures = [
        page.figure(chart, title=title, alt=f"{title}: {HOSTILE}", numbers=costs()) for title, chart in charts.items()
    ]
    summary = page.section(
        f"Summary {HOSTILE}",
        page.value_table({"GPUs needed": "52, 48 to 57", "Saved": HOSTILE}, caption="In short"),
        page.note(HOSTILE),
        page.paragraph(HOSTILE),
    )
    wide = costs().with_columns(pl.lit("a rather long remark").alias(f"column {n}") for n in range(12))
    body = [summary, page.section("Charts", *figures), page.table(wide, caption=HOSTILE)]
    return page.render_page("\n".join(body), title=HOSTILE, subtitle=HOSTILE, provenance={HOSTILE: HOSTILE})


@pytest.fixture(scope="module")
def html() -> str:
    return sample_page()


class Outline(HTMLParser):
    """Tags with their attributes, and the executable scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_page_is_small_and_the_same_each_time(html):
    assert len(html.encode()) < 3_000_000
    assert sample_page() == html


def test_nothing_is_loaded_from_anywhere(html):
    for tag, attributes in Outline(html).tags:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:image/svg+xml;base64,", "#")) or not value, (tag, value)
    assert "@import" not in html
    assert "default-src 'none'" in html
    assert "unsafe-eval" not in html


def test_hostile_text_makes_no_markup(html):
    tags = Outline(html).tags
    assert not [tag for tag, attributes in tags if tag == "img" and attributes.get("src") == "x"]
    scripts = [attributes.get("type") for tag, attributes in tags if tag == "script"]
    assert scripts == ["application/json"] * 3 + [None, None]
    assert not any("onerror" in attributes for _, attributes in tags)


def test_policy_names_the_two_scripts_by_hash(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.count("'sha256-") == 2
    script_src = policy.split("script-src")[1].split(";")[0]
    assert "unsafe-inline" not in script_src


def test_navigation_links_to_every_section(html):
    tags = Outline(html).tags
    sections = [attributes["id"] for tag, attributes in tags if tag == "section"]
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert links == ["#main", *(f"#{anchor}" for anchor in sections)]
    assert len(sections) == 2


def test_a_chart_has_a_message_a_picture_and_its_numbers():
    shown = page.figure(plots.plot_costs(costs(), unit="USD"), title="Cost", alt="Half is idle.", numbers=costs())
    html = page.add_pictures(shown)
    tags = Outline(html).tags
    assert ("div", {"class": "chart", "role": "img", "aria-label": "Half is idle."}) in tags
    assert [attributes["alt"] for tag, attributes in tags if tag == "img"] == ["Half is idle."]
    assert "details" in [tag for tag, _ in tags]
    spec = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    assert "title" not in spec
    assert HOSTILE in {row["tenant"] for rows in spec["datasets"].values() for row in rows}


def test_a_page_without_charts_has_no_script():
    html = page.render_page(page.note("n"), title="T", subtitle="S", provenance={})
    assert "<script" not in html
    assert "script-src 'none'" in html
    assert len(html) < 20_000


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if not BROWSER:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield chromium
        chromium.close()


def wait_until(tab, expression: str) -> None:
    """Wait for a condition; the page's policy forbids the browser's own way, which evaluates text."""
    for _ in range(12_000):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    pytest.fail(f"never came true: {expression}")


@pytest.fixture(params=[1280, 400])
def opened(request, browser, html, tmp_path):
    """The page in a window of that width, everything but files blocked, with what it complained about."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    tab = browser.new_page(viewport={"width": request.param, "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
    tab.on("request", lambda sent: sent.url == path.as_uri() or complaints.append(sent.url[:80]))
    tab.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    tab.goto(path.as_uri())
    wait_until(tab, "document.querySelectorAll('.chart[data-width]').length === 3")
    yield tab, complaints
    tab.close()


@pytest.mark.browser
def test_charts_draw_with_the_network_blocked(opened):
    tab, complaints = opened
    assert tab.locator(".chart svg").count() == 3
    assert tab.locator(".chart svg path").count() > 20
    assert complaints == []


@pytest.mark.browser
def test_nothing_overflows_the_page(opened):
    tab, _ = opened
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    right = "c.querySelector('svg').getBoundingClientRect().right"
    assert tab.evaluate(f"{CHARTS}.every(c => {right} <= innerWidth)")


@pytest.mark.browser
@pytest.mark.long
def test_charts_follow_the_width_of_the_window(opened):
    tab, complaints = opened
    tab.set_viewport_size({"width": 700, "height": 900})
    wait_until(tab, f"{CHARTS}.every(c => c.dataset.width == c.clientWidth)")
    assert tab.locator(".chart svg").count() == 3
    assert tab.evaluate("document.documentElement.scrollWidth") == 700
    assert complaints == []


@pytest.mark.browser
def test_tooltips_show_hostile_names_as_text(opened):
    tab, complaints = opened
    bar = tab.locator(".chart").first.locator(".mark-rect path").first
    bar.hover(force=True)
    tip = tab.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert HOSTILE in tip.inner_text()
    assert tip.locator("img").count() == 0
    assert complaints == []


@pytest.mark.browser
def test_without_scripts_pictures_take_the_place_of_charts(browser, html, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(path.as_uri())
    boxes = [picture.bounding_box() for picture in tab.locator("noscript img").all()]
    assert len(boxes) == 3
    assert all(box["width"] > 300 and box["height"] > 60 for box in boxes)
    tab.context.close()


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize("width", [1200, 640, 333])
def test_page_and_python_lay_charts_out_alike(opened, width):
    tab, _ = opened
    for chart in (plots.plot_costs(costs(), unit="USD"), plots.plot_frontier(ways()), plots.plot_demand(demand())):
        spec = plots.chart_spec(chart)
        assert tab.evaluate("([spec, width]) => fitted(spec, width)", [spec, width]) == plots.fitted(spec, width)


def test_a_printed_page_links_to_what_lies_beside_it_and_is_the_same_anywhere(tmp_path):
    if not BROWSER:
        pytest.skip("no chromium on the path: install it to print")
    printed = []
    for name in ("here", "another place"):
        index = tmp_path / name / "index.html"
        index.parent.mkdir()
        index.write_text(
            "<title>A</title><h1 id=a>A</h1><a href='tables/README.md'>T</a> <a href='#a'>A</a>"
            "<table><tr><th>B<tr><td>1</table>"
        )
        print_pdf(index, index.with_suffix(".pdf"), BROWSER)
        printed.append(index.with_suffix(".pdf").read_bytes())
    assert printed[0] == printed[1]
    assert b"(node00000000)" in printed[0]
    assert re.findall(rb"/URI \(([^)]*)\)", printed[0]) == [b"tables/README.md"]
    table = int(re.findall(rb"startxref\s+(\d+)", printed[0])[-1])
    assert printed[0][table:].startswith(b"xref")
