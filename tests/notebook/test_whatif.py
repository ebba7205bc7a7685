"""Controls are tested in plain Python: set a value, look at the scenario and the answer."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import re
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from html import unescape

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.core.setting_rules_and_controls import Slider
from gpuplanner.decision.comparison_record import study_comparison
from gpuplanner.decision.decision_types import NextStep
from gpuplanner.decision.policy_comparison import SHORT_NAMES
from gpuplanner.notebook import views_and_panels as background
from gpuplanner.notebook.what_if import CONTROLLED_SETTINGS, WhatIf, whatif
from gpuplanner.usage.study_history import history

panels = importlib.import_module("gpuplanner.notebook.what_if")  # its function has the name of the module
HOSTILE = "<script>alert(1)</script>"
STALE = "<div class='stale'>"
OTHER = "autoscaled_pools"
"""A way that is not among those compared."""


@pytest.fixture(scope="module")
def few(quick):
    """Ways that were tuned for other tests."""
    return quick


@pytest.fixture
def panel(few):
    """A panel that has answered where it starts."""
    made = whatif(few)
    made.ask().result(timeout=1800)
    return made


@pytest.fixture
def told(monkeypatch, few):
    """Scenarios that the panel compares for; each is answered at once, from one object."""
    asked = []
    found = study_comparison(few)
    other = dataclasses.replace(found.decision, policy=OTHER, sentence="Something else.")

    def canned(scenario, tell):
        asked.append(scenario)
        tell("mig_static", None)
        return dataclasses.replace(found, decision=other) if scenario.max_added_wait_minutes == 1 else found

    monkeypatch.setattr(panels, "compare_policies", canned)
    return asked


def cells(panel, name: str) -> list[str]:
    """A row of the table that is shown."""
    row = re.search(rf"<th scope='row'>{re.escape(name)}</th>(.*?)</tr>", unescape(panel.answer.value))
    return [] if row is None else re.findall("<td>(.*?)</td>", row[1])


def test_controls_start_at_the_values_of_the_answer_shown(panel, few):
    starts = {name: control.value for name, control in panel.controls.items()}
    assert (starts["max_added_wait_minutes"], starts["wait_percentile"]) == (
        few.max_added_wait_minutes,
        few.wait_percentile,
    )
    assert (starts["actuator"], starts["ownership"]) == (few.actuator, "")
    assert starts["price_usd_per_kwh"] == 0.122
    assert panel.scenario == few
    assert f"{history(few).fleet.gpus} H100-80GB-SXM5" in panel.panel.children[0].value
    assert "<th scope='col'>answer</th>" in panel.answer.value


@pytest.mark.parametrize(
    "moved",
    [
        {"max_added_wait_minutes": 60.0},
        {"price_usd_per_kwh": 0.5},
        {"ownership": "rented"},
        {"max_added_wait_minutes": 0.0, "purchase_lead_days": 365},
    ],
)
def test_every_control_is_answered_at_once_and_coarsely_until_the_exact_answer_is_there(panel, few, moved):
    for name, value in moved.items():
        panel.controls[name].value = value
    assert "Coarse" in panel.answer.value
    assert STALE in panel.answer.value
    assert panel.newest.scenario == few  # a coarse answer is none that is kept


def test_undo_goes_back_one_change_and_the_scenario_can_be_kept(panel, few, tmp_path):
    panel.controls["purchase_lead_days"].value = 55
    panel.controls["max_added_wait_minutes"].value = 30.0
    panel._undo()
    assert (panel.scenario.purchase_lead_days, panel.scenario.max_added_wait_minutes) == (
        55,
        few.max_added_wait_minutes,
    )
    kept = panel.save(tmp_path / "kept.yaml")
    assert Scenario.from_yaml(kept) == panel.scenario
    panel._undo()
    panel._undo()  # before the first change there is nothing
    assert panel.scenario == few


def test_every_control_moves_its_own_field(panel, few):
    for row in CONTROLLED_SETTINGS:
        if isinstance(row.control, Slider):
            panel.controls[row.name].value = row.control.low
        else:
            start = getattr(few, row.name)
            options = row.rule.options()
            panel.controls[row.name].value = next(value for value in reversed(options) if value != start)
    changed = set(few.diff(panel.scenario))
    assert changed == {row.name for row in CONTROLLED_SETTINGS}
    assert "wait_percentile=0.5" in panel.code.value
    assert "ownership=&#x27;rented&#x27;" in panel.code.value


def test_controls_have_label_unit_and_help(panel):
    for row in CONTROLLED_SETTINGS:
        assert panel.controls[row.name].tooltip == row.summary
        assert panel.controls[row.name].description == row.label
        if isinstance(row.control, Slider):  # else a browser rounds the start to the step
            assert not panel.controls[row.name].continuous_update


def test_answer_is_the_object_of_the_comparison(panel, few):
    found = study_comparison(few)
    one = found.decision
    assert panel.newest.comparison == found
    row = panel.newest.row
    assert row == found.find_row(one.policy)
    assert one.sentence in unescape(panel.answer.value)
    assert cells(panel, "peak GPUs") == [f"{one.gpus} of {one.fleet_gpus}"]
    assert cells(panel, "provisioned [GPU h a week]") == [f"{row.gpu_hours:,.0f}"]
    wanted = "–" if one.saving.value is None else f"{one.saving.value:,.0f}"
    assert cells(panel, "capacity freed [GPU h a week]")[0].startswith(wanted)
    for part in one.service:
        shown = cells(panel, f"p95 wait on {part.size} [min]")
        assert shown == [f"{part.recommended_p95_minutes:,.1f} (limit {part.limit_minutes:,.1f})"]
    assert panel.status.value == "Done."


def test_the_answer_of_the_start_stays_beside_until_another_is_pinned(told, few):
    panel = whatif(few)
    panel.controls["max_added_wait_minutes"].value = 1
    panel.ask().result(timeout=60)
    assert [scenario.max_added_wait_minutes for scenario in told] == [10.0, 1]
    assert cells(panel, "policy")[1] == f"{SHORT_NAMES[OTHER]} (not compared)"
    assert "Something else." in panel.answer.value
    panel.pin.click()
    panel._pending.result(timeout=60)
    assert cells(panel, "policy") == [f"{SHORT_NAMES[OTHER]} (not compared)"]
    panel.reset.click()
    panel._pending.result(timeout=60)
    assert cells(panel, "policy")[0] == f"{SHORT_NAMES[OTHER]} (not compared)"
    assert panel.scenario == panel.base


def test_tuning_is_told_and_ends_when_another_question_is_put(monkeypatch, few):
    begun, said = threading.Event(), threading.Event()
    found = study_comparison(few)

    def endless(scenario, tell):
        if scenario.max_added_wait_minutes == 1:
            return found
        while True:
            tell("mig_static", None)
            begun.set()
            said.wait(0.01)

    monkeypatch.setattr(panels, "compare_policies", endless)
    monkeypatch.setattr(WhatIf, "_html", lambda *_: "")
    monkeypatch.setattr(panels, "frontier_html", lambda *_: "")
    panel = whatif(few)
    first = panel.ask()
    assert begun.wait(60)
    assert f"Simulating policy 1, {SHORT_NAMES['mig_static']}" in panel.status.value
    panel.base = replace(few, max_added_wait_minutes=1.0)
    panel.controls["max_added_wait_minutes"].value = 1
    panel.ask().result(timeout=60)
    with pytest.raises(CancelledError):
        first.result(timeout=60)


def test_controls_that_follow_each_other_are_answered_once_and_off_the_kernels_thread(monkeypatch, told, few):
    monkeypatch.setattr(background, "DEBOUNCE_S", 0.02)
    panel = whatif(few)

    async def drag():
        for minutes in (2, 3, 1):
            panel.controls["max_added_wait_minutes"].value = minutes
        while panel.newest is None:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(drag(), 60))
    assert [scenario.max_added_wait_minutes for scenario in told] == [10.0, 1]


def test_what_cannot_be_answered_is_said_in_words(few):
    panel = whatif(replace(few, month="2031-01"))
    with pytest.raises(ValueError, match="no observation in it"):
        panel.ask().result(timeout=1800)
    assert "No answer" in panel.status.value
    assert "no observation in it" in panel.status.value


def test_showing_the_panel_asks_the_first_question(told, few):
    panel = whatif(few)
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    assert panel._pending.result(60).comparison.rows


def test_hostile_names_stay_text(panel):
    found = panel.newest.comparison
    evil = dataclasses.replace(
        found.decision,
        sentence=HOSTILE,
        confidence=(HOSTILE,),
        next_steps=(NextStep(HOSTILE, HOSTILE, HOSTILE),),
    )
    panel.newest = replace(panel.newest, comparison=dataclasses.replace(found, decision=evil))
    panel._redraw()
    assert "<script" not in panel.answer.value


def test_the_files_of_what_is_on_the_screen_are_a_button_away(told, few, tmp_path):
    """Two files are linked, and the page is that of the answer shown."""
    made = whatif(few)
    made.write(tmp_path / "none")
    assert "There is no answer yet" in made.written.value
    made.ask().result(timeout=1800)
    made.write(tmp_path / "export")
    links = re.findall(r'href="([^"]*)"', made.written.value)
    assert links == [str(tmp_path / "export" / name) for name in ("README.md", "workbook.xlsx")]
    page = (tmp_path / "export" / "README.md").read_text()
    assert page.startswith(f"# {made.newest.comparison.decision.sentence}\n")
    assert (tmp_path / "export" / made.newest.comparison.decision.actuator).is_dir()
    assert (tmp_path / "export" / "workbook.xlsx").stat().st_size > 5000
