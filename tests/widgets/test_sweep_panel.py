"""The sweep panel in plain Python: run, watch the bar, cancel, and keep what is done."""

from __future__ import annotations

import asyncio
import threading

import polars as pl
import pytest

from gpuplanner.simulate import Calendar, Fleet, Rules
from gpuplanner.study.future.sweep import sweep
from gpuplanner.widgets import sweep as panels
from gpuplanner.widgets.sweep import SweepPanel, sweep_html

HOSTILE = "<script>alert(1)</script>"
FLEET = Fleet("H100-80GB-SXM5", 1, 2)
RULES = Rules("strict")
JOBS = pl.DataFrame(
    {
        "job_id": ["a", "b", "c"],
        "tenant": "t",
        "submit_s": 0.0,
        "run_s": 600.0,
        "gpus": 1,
        "profile": "3g.40gb",
    }
)
POLICIES = {
    HOSTILE: Calendar.constant({"3g.40gb:2": 1}),
    "two": Calendar.constant({"3g.40gb:2": 2}),
    "three": Calendar.constant({"3g.40gb:1,2g.20gb:1,1g.10gb:1": 2}),
}


@pytest.fixture
def panel():
    return SweepPanel(JOBS, FLEET, POLICIES, RULES)


def test_it_answers_what_sweep_answers(panel):
    found = panel.ask().result(timeout=1800)
    assert found.table.equals(sweep(JOBS, FLEET, POLICIES, RULES).table)
    assert panel.found is found
    assert (panel.bar.value, panel.bar.max, panel.stop.disabled) == (3, 3, True)
    assert panel.status.value == "Done."


def test_cancel_keeps_what_is_done(panel, monkeypatch):
    shown = panel._show_progress

    def stop_after_one(done, asked, name):
        shown(done, asked, name)
        panel.stop.click()

    monkeypatch.setattr(panel, "_show_progress", stop_after_one)
    found = panel.ask().result(timeout=1800)
    assert (found.done, found.complete, panel.bar.value) == (1, False, 1)
    assert "Cancelled: 1 of 3 policies" in panel.answer.value
    assert panel.stop.disabled  # nothing is left to stop
    monkeypatch.undo()
    assert panel.ask().result(timeout=1800).complete  # cancelling once does not cancel the next run


def test_in_a_notebook_the_bar_moves_on_the_kernels_thread(panel, monkeypatch):
    threads = []
    shown = panel._show_progress
    monkeypatch.setattr(
        panel, "_show_progress", lambda *told: (threads.append(threading.current_thread()), shown(*told))
    )

    async def run():
        panel.start.click()
        while panel.status.value != "Done.":
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert threads == [threading.main_thread()] * 3
    assert panel.bar.value == 3


def test_hostile_names_stay_text(panel):
    found = panel.ask().result(timeout=1800)
    assert "<script" not in panel.answer.value + panel.status.value + sweep_html(found)
    assert panels.escape(HOSTILE) in panel.answer.value


def test_answer_shows_what_ranks_and_names_the_baseline():
    told = sweep_html(sweep(JOBS, FLEET, POLICIES, RULES, rank_by="mean_queueing_delay_s", baseline="two"))
    assert "Ranked by mean wait (min); differences are to two." in told
    # One of three jobs waits ten minutes where there are two instances; two and three have four and two.
    assert "<th scope='row'>two</th><td>0.00</td><td>0.00</td>" in told
    assert "<th scope='row'>three</th><td>3.33</td><td>3.33</td>" in told


def test_a_fault_is_told_and_leaves_nothing_to_stop():
    panel = SweepPanel(JOBS.with_columns(pl.col("run_s") * -1), FLEET, POLICIES, RULES)
    with pytest.raises(ValueError, match="run_s"):
        panel.ask().result(timeout=1800)
    assert "No answer" in panel.status.value
    assert panel.stop.disabled


def test_controls_have_label_and_help(panel):
    for button in (panel.start, panel.stop):
        assert button.description
        assert button.tooltip
