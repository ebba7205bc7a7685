"""Controls are tested in plain Python: set a value, look at the scenario and the answer."""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from html import unescape

import pytest

from gpuplanner.study.equal_service.promise import promise_of
from gpuplanner.study.future.money import money
from gpuplanner.study.past.history import history
from gpuplanner.widgets import WhatIf, background, whatif
from gpuplanner.widgets.controls import CONTROLS, PRICE

panels = importlib.import_module("gpuplanner.widgets.whatif")  # its function has the name of the module
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def few(quick):
    """Few weeks, and policies that are tuned at once."""
    return replace(quick, replications=2, policies="static_whole,static_mig")


@pytest.fixture
def panel(few):
    """A panel that has answered where it starts."""
    made = whatif(few)
    made.ask().result(timeout=1800)
    return made


@pytest.fixture
def told(monkeypatch, few):
    """Scenarios that the panel tunes for; each is answered at once, by the same object."""
    asked = []

    def canned(scenario, tell):
        asked.append(scenario)
        tell("static_whole", None)
        return found | {"winner": "today"} if scenario.wait_minutes == 1 else found

    found = promise_of(few)
    monkeypatch.setattr(panels, "promise_of", canned)
    return asked


def cells(panel, name: str) -> list[str]:
    """A row of the table that is shown."""
    row = re.search(rf"<th scope='row'>{re.escape(name)}</th>(.*?)</tr>", unescape(panel.answer.value))
    return [] if row is None else re.findall("<td>(.*?)</td>", row[1])


def test_controls_start_at_the_values_of_the_answer_shown(panel, few):
    fleet, price = history(few).fleet, money(few).price
    starts = {name: slider.value for name, slider in panel.sliders.items()}
    assert starts["nodes"] * fleet.node_size == fleet.gpus == panel.newest.found["today"]["knobs"]["gpus"]
    assert starts[PRICE] == price.value
    assert (starts["wait_minutes"], starts["wait_quantile"]) == (few.wait_minutes, few.wait_quantile)
    assert panel.scenario == few
    assert cells(panel, "price of a GPU-hour [USD]") == [f"{price.value:.2f}"]
    assert "<th scope='col'>as it stands</th>" in panel.answer.value


def test_a_start_outside_of_the_usual_range_is_no_other_start(few):
    far = whatif(replace(few, arrival_scale=7.5, price_usd_per_gpu_hour=40.0))
    assert (far.sliders["arrival_scale"].value, far.sliders[PRICE].value) == (7.5, 40.0)
    assert far.scenario == far.base


def test_every_control_moves_its_own_field(panel, few):
    for control in CONTROLS:
        panel.sliders[control.field].value = control.low or 1.0
    changed = set(few.diff(panel.scenario))
    assert changed - {"gpus_per_node"} == {control.field for control in CONTROLS}
    assert "wait_quantile=0.5" in panel.code.value


def test_controls_have_label_unit_and_help(panel):
    for control in CONTROLS:
        assert panel.sliders[control.field].tooltip == control.help
        assert panel.sliders[control.field].description
        assert not panel.sliders[
            control.field
        ].continuous_update  # else a browser rounds the start to the step
    assert panel.sliders["nodes"].description == "Nodes of 8 GPUs"
    assert panel.sliders[PRICE].description == "Price (USD per GPU-hour)"


def test_answer_is_the_object_of_the_comparison(panel, few):
    found = promise_of(few)
    assert panel.newest.found == found
    row = panel.newest.row
    assert row["policy"] == found["winner"]
    assert cells(panel, "GPUs on [GPU h a week]")[0].startswith(f"{row['gpu_hours']:,.0f}")
    saved = found["saving_gpu_hours_per_week"]
    assert saved == pytest.approx(found["today"]["gpu_hours"] - row["gpu_hours"])
    assert cells(panel, "saved against today [GPU h a week]")[0].startswith(f"{saved:,.0f}")
    assert cells(panel, "saved a week [USD]")[0].startswith(f"{saved * panel.newest.price:,.0f}")
    assert panel.status.value == "Done."


def test_a_price_redraws_at_once_and_asks_nothing(panel):
    before, picture = panel._pending, panel.newest.picture
    panel.sliders[PRICE].value = 2.0
    assert cells(panel, "price of a GPU-hour [USD]") == ["12.29", "2.00"]
    dear, cheap = (float(cell.split()[0].replace(",", "")) for cell in cells(panel, "cost a week [USD]"))
    assert cheap / dear == pytest.approx(2.0 / panel.pinned.price, rel=1e-4)
    assert panel._pending is before
    assert panel.newest.picture is picture
    panel.sliders[PRICE].value = 0.0
    assert cells(panel, "cost a week [USD]")[1] == "–"


def test_the_answer_of_the_start_stays_beside_until_another_is_pinned(told, few):
    panel = whatif(few)
    panel.sliders["wait_minutes"].value = 1
    panel.ask().result(timeout=60)
    assert [scenario.wait_minutes for scenario in told] == [10.0, 1]
    assert cells(panel, "policy") == ["static_mig", "today"]
    assert "Change nothing" in panel.answer.value
    panel.pin.click()
    panel._pending.result(timeout=60)
    assert cells(panel, "policy") == ["today"]
    panel.reset.click()
    panel._pending.result(timeout=60)
    assert cells(panel, "policy") == ["today", "static_mig"]
    assert panel.scenario == panel.base


def test_a_policy_that_was_tuned_is_shown_at_once_and_another_is_tuned_first(told, few):
    panel = whatif(few)
    panel.ask().result(timeout=60)
    panel.policy.value = "static_whole"
    assert cells(panel, "policy") == ["static_mig", "static_whole"]
    assert (
        cells(panel, "saved against today [GPU h a week]")[1] == "–"
    )  # a saving is stated of the winner alone
    assert panel.question == panel.base
    panel.policy.value = "calendar"
    assert panel.question.policies == f"{panel.base.policies},calendar"


@pytest.mark.long
def test_fewer_nodes_are_a_smaller_fleet(panel, few):
    panel.sliders["nodes"].value = 7
    found = panel.ask().result(timeout=1800).found
    assert found["today"]["knobs"]["gpus"] == 56
    assert found["today"]["gpu_hours"] == 56 * 168
    assert found["today"]["wait_mean_min"] > promise_of(few)["today"]["wait_mean_min"]


def test_tuning_is_told_and_ends_when_another_question_is_put(monkeypatch, few):
    begun, said = threading.Event(), threading.Event()

    def endless(scenario, tell):
        if scenario.wait_minutes == 1:
            return {"nothing": True}
        while True:
            tell("static_whole", None)
            begun.set()
            said.wait(0.01)

    monkeypatch.setattr(panels, "promise_of", endless)
    monkeypatch.setattr(WhatIf, "_html", lambda *_: "")
    monkeypatch.setattr(panels, "frontier_html", lambda *_: "")
    panel = whatif(few)
    first = panel.ask()
    assert begun.wait(60)
    assert "Tuning static_whole" in panel.status.value
    panel.base = replace(few, wait_minutes=1.0)
    panel.sliders["wait_minutes"].value = 1
    panel.ask().result(timeout=60)
    with pytest.raises(CancelledError):
        first.result(timeout=60)


def test_controls_that_follow_each_other_are_answered_once_and_off_the_kernels_thread(monkeypatch, told, few):
    monkeypatch.setattr(background, "DEBOUNCE_S", 0.02)
    panel = whatif(few)

    async def drag():
        for minutes in (2, 3, 1):
            panel.sliders["wait_minutes"].value = minutes
        while panel.newest is None:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(drag(), 60))
    assert [scenario.wait_minutes for scenario in told] == [10.0, 1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"month": "2031-01"}, "no observation in it"), ({"history_days": 3}, "tuned on the earlier one")],
)
def test_what_cannot_be_answered_is_said_in_words(few, fault, words):
    panel = whatif(replace(few, **fault))
    with pytest.raises(ValueError, match=words):
        panel.ask().result(timeout=1800)
    assert "No answer" in panel.status.value
    assert words in panel.status.value


def test_showing_the_panel_asks_the_first_question(told, few):
    panel = whatif(few)
    assert "application/vnd.jupyter.widget-view+json" in panel._repr_mimebundle_()
    assert panel._pending.result(60).found["winner"] == "static_mig"


def test_hostile_names_stay_text(panel):
    found = panel.newest.found | {"note": HOSTILE, "reason": HOSTILE}
    panel.newest = replace(panel.newest, found=found)
    panel._redraw()
    assert "<script" not in panel.answer.value
