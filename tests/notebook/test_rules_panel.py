"""The panel of teams in plain Python: it says what the same rules say by hand, and what is set is what is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.quota_and_placement_comparison import compare_rules, rules_or_equal_shares
from gpuplanner.decision.sharing_rules import StartHours
from gpuplanner.notebook.quota_panel import CHOSEN_RULES_SOURCE, SharingPanel


@pytest.fixture(scope="module")
def panel():
    return SharingPanel(Scenario())


def test_it_begins_at_the_rules_at_hand_and_then_nothing_changes(panel):
    base = rules_or_equal_shares(Scenario())
    assert base.has_quotas
    assert sum(one.gpus for one in base.teams) == pytest.approx(64)
    assert panel.question == replace(base, source=CHOSEN_RULES_SOURCE)
    found = panel.ask().result(timeout=600)
    assert set(found.teams["verdict"]) == {"as before"}


@pytest.mark.long
def test_what_is_set_is_played(panel):
    panel.reclaim.value, panel.restart.value, panel.quotas.value = True, 5.0, 0.5
    asked = panel.question
    assert (asked.stopping.reclaim, asked.stopping.restart_minutes) == (True, 5.0)
    assert sum(one.gpus for one in asked.teams) == pytest.approx(32)
    panel.hours.value = "nights"
    with pytest.raises(ScenarioError, match="Start hours: expected mon-fri"):
        panel.ask().result()
    assert panel.hours.layout.border
    assert "got nights" in panel.status.value
    panel.hours.value, name = "sat-sun", panel.base.teams[0].name
    assert panel.question.start_hours == (StartHours("sat-sun", team=name),)
    panel.hours.value = ""
    found = panel.ask().result(timeout=600)
    by_hand = compare_rules(Scenario(), panel.base, asked)
    assert found.teams.equals(by_hand.teams)
    assert found.teams.row(-1, named=True)["wait_after_min"] > found.teams.row(-1, named=True)["wait_before_min"]
    assert panel.status.value == "Done."
    assert found.verdict_sentence.replace("'", "&#x27;") in panel.answer.value
