"""Options that cannot be right are refused before anything is read, forecast or planned."""

from __future__ import annotations

import pytest

from gpuplanner.core.errors import GpuPlannerError, ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study_pipeline import evaluate
from gpuplanner.report.report_rendering import write_report
from gpuplanner.usage.planning_history import history

FAULTS = [
    ({"currency": "EUR"}, "USD, the currency of the list prices, or one of the price book; got EUR"),
    ({"currency": "EUR", "gpu_model": "A100-80GB"}, "got EUR"),
    ({"carbon_region": "gcp:atlantis"}, "atlantis"),
    ({"interval_hours": 7.0}, "whole minutes that divide a day"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS)
def test_nothing_is_read_for_options_that_cannot_be(tmp_path, change, words):
    scenario = Scenario(data=str(tmp_path / "no such folder"), **change)
    computed = history.computed
    with pytest.raises(ScenarioError, match=words):
        evaluate(scenario)
    with pytest.raises(ScenarioError, match=words):
        write_report(scenario, tmp_path / "out")
    assert history.computed == computed
    assert list(tmp_path.iterdir()) == []


def test_all_faults_are_named_at_once(tmp_path):
    with pytest.raises(ScenarioError, match=r"atlantis.*EUR"):
        evaluate(Scenario(data=str(tmp_path), currency="EUR", carbon_region="gcp:atlantis"))


def test_a_place_that_cannot_be_written_is_refused_before_the_walk(tmp_path):
    (tmp_path / "out").write_text("a file")
    computed = history.computed
    with pytest.raises(GpuPlannerError, match="out"):
        write_report(Scenario(seed=987_654), tmp_path / "out")
    assert history.computed == computed
