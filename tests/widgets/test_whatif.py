"""Controls are tested in plain Python: set a value, look at the scenario and the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.study import evaluate
from gpuplanner.widgets import WhatIf, whatif
from gpuplanner.widgets.answer import answer_html
from gpuplanner.widgets.controls import CONTROLS


@pytest.fixture
def panel(quick):
    """A panel on the quick scenario."""
    return whatif(quick)


def test_untouched_panel_is_the_scenario(panel, quick):
    assert panel.scenario == quick


def test_every_control_moves_its_own_field(panel, quick):
    for control in CONTROLS:
        panel.sliders[control.field].value = control.low
    changed = quick.diff(panel.scenario)
    assert {name for name, _ in changed.items()} == {control.field for control in CONTROLS}
    assert "quantile=0.5" in panel.code.value


def test_controls_have_label_unit_and_help(panel):
    for control in CONTROLS:
        slider = panel.sliders[control.field]
        assert slider.description == control.label
        assert slider.tooltip == control.help
        assert not slider.continuous_update


def test_answer_is_that_of_evaluate(panel, quick):
    panel.sliders["price_usd_per_gpu_hour"].value = 2.0
    study = panel.ask().result(timeout=1800)
    assert study.to_json() == evaluate(replace(quick, price_usd_per_gpu_hour=2.0)).to_json()
    assert panel.status.value == "Done."
    assert "<svg" in panel.answer.value
    claimed = "No saving is claimed" not in panel.answer.value
    assert (
        ("2.00 USD a GPU-hour" in panel.answer.value)
        == claimed
        == (study.headline["saved_gpu_hours_per_week"] is not None)
    )


def test_only_the_newest_question_is_answered(quick):
    shown = []
    panel = WhatIf(quick, lambda study: shown.append(study.scenario.price_usd_per_gpu_hour) or "")
    for price in (1.0, 2.0, 3.0):
        panel.sliders["price_usd_per_gpu_hour"].value = price
        last = panel.ask()
    last.result(timeout=1800)
    assert shown[-1] == 3.0
    assert panel.study.scenario.price_usd_per_gpu_hour == 3.0


def test_fault_is_shown_as_text(quick):
    def broken(_: object) -> str:
        return ""

    panel = WhatIf(replace(quick, month="2031-01"), broken)
    with pytest.raises(ValueError, match="no observation"):
        panel.ask().result(timeout=1800)
    assert "No answer" in panel.status.value
    assert "no observation in it" in panel.status.value


def test_reset_goes_back_to_the_start(panel, quick):
    panel.sliders["quantile"].value = 0.6
    panel.reset.click()
    assert panel.scenario == quick
    assert panel.sliders["quantile"].value == quick.quantile


def test_hostile_names_stay_text(study):
    evil = replace(study, findings=(*study.findings[:2], "<script>alert(1)</script>"))
    assert "<script>" not in answer_html(evil)
