"""The explore panel in plain Python: choose, and look at the section."""

from __future__ import annotations

import threading
from html import unescape

import pytest

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.notebook.dataset_and_quota_panels import make_explore_panel
from gpuplanner.usage.dataset_explorer import ALL_TENANTS_LABEL, explore_dataset


class Said:
    """A section that says what it was asked for."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def _repr_html_(self) -> str:
        return "|".join(self.words)


@pytest.fixture(scope="module")
def inbox():
    return explore_dataset("sample")


@pytest.fixture
def drawn():
    """What was drawn, in order."""
    return []


@pytest.fixture
def panel(inbox, drawn):
    def view(name):
        def draw(box, tenant, job):
            drawn.append((name, tenant, job, threading.current_thread() is threading.main_thread()))
            return Said(name, tenant, job)

        return draw

    return make_explore_panel(
        inbox, {name: view(name) for name in ("quality", "ledger", "phases")}, traces=["no/such/folder"]
    )


def test_it_begins_with_everybody_and_the_job_with_most_telemetry(panel, inbox):
    assert panel.tenant.value == ALL_TENANTS_LABEL
    assert panel.tenant.options == (ALL_TENANTS_LABEL, *inbox.tenants)
    assert panel.ask().result(60).html == f"quality|{ALL_TENANTS_LABEL}|{inbox.jobs_of()[0]}"
    assert (panel.status.value, panel.answer.value) == ("", panel.newest.html)


def test_what_was_seen_once_is_shown_again_without_drawing(panel, drawn):
    for view in ("ledger", "quality", "ledger", "quality"):
        panel.view.value = view
        panel.ask().result(60)
    assert [name for name, *_ in drawn] == ["ledger", "quality"]


def test_the_code_line_asks_for_the_same(panel):
    panel.tenant.value = "search"
    panel.view.value = "ledger"
    opened = "gp.open('sample', tz='UTC')"
    assert unescape(panel.code.value) == f"<code>{opened}.ledger(team='search')</code>"
    panel.view.value = "quality"
    assert unescape(panel.code.value) == f"<code>{opened}.quality()</code>"


def test_a_trace_that_cannot_be_read_is_said_and_the_last_answer_stays(panel):
    kept = panel.ask().result(60).html
    panel.trace.value = "no/such/folder"
    with pytest.raises(GpuPlannerError):
        panel.ask().result(60)
    assert "No answer" in panel.status.value
    assert panel.answer.value == kept
    panel.trace.value = "sample"
    panel.ask().result(60)
    assert panel.status.value == ""
