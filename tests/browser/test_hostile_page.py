"""Names that break pages, two thousand teams or one, and a browser without scripts: the page holds its shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.decision.decision_types import LayoutOnNodes, TeamRow
from gpuplanner.report.first_screen import list_badges, render_first_screen
from gpuplanner.report.html_page import render_page, section
from tests.report.test_first_screen import planted

pytestmark = [pytest.mark.browser, pytest.mark.long]
LONG, UNBROKEN, TURNED = "team " * 60, "x" * 300, "abc\u202egnp.exe"
ONE = (TeamRow("all of us", 900.0, 12.0, 44), TeamRow("__unallocated__", 45.0, 45.0, 0))
MANY = (
    TeamRow(UNBROKEN, 9000.0, None, 7), TeamRow(LONG, 8000.0, 3.0, 5), TeamRow(TURNED, 7000.0, None, 3),
    *(TeamRow(f"team-{number:04d}", 2000.0 - number, None, 1) for number in range(2000)),
    TeamRow("__unallocated__", 45.0, 45.0, 0),
)  # fmt: skip


def page_of(teams) -> str:
    nodes = tuple(f"{UNBROKEN}-{number}" for number in range(3))
    comparison = planted()
    one = replace(comparison.decision, teams=teams, layouts=(LayoutOnNodes("full", 12, nodes),), gpu_model=UNBROKEN)
    screen = section(
        "Recommendation", render_first_screen(replace(comparison, decision=one), period=LONG, doubts=[UNBROKEN])
    )
    return render_page(
        screen, title=LONG, subtitle=UNBROKEN, provenance={"data": TURNED}, decision=one.sentence,
        badges=list_badges(one),
    )  # fmt: skip


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("teams", [ONE, MANY], ids=["one", "many"])
def test_the_page_holds_its_shape(chromium, tmp_path, teams, width, scripts):
    path = tmp_path / "index.html"
    path.write_text(page_of(teams), encoding="utf-8")
    context = chromium.new_context(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda one: messages.append(one.text))
    page.on("pageerror", lambda one: messages.append(str(one)))
    page.goto(path.as_uri())
    table = page.locator("table.teams")
    assert table.locator("tbody tr").count() == (3 if teams is ONE else 9)  # with nobody and the sum
    screen = page.locator("#recommendation").bounding_box()
    assert screen["x"] >= 0
    assert screen["x"] + screen["width"] <= width
    assert screen["y"] + screen["height"] < 4000
    if scripts:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".facts").wait_for()
    assert page.locator(".cards dd.value").count() == 4
    assert messages == []
    context.close()


def test_a_name_cannot_turn_the_line_around():
    assert "\u202e" not in page_of(MANY)
