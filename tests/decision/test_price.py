"""Prices move what a saving is worth, and nothing is simulated again for them; electricity is one figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.comparison_record import load_comparison, make_policy_table, study_comparison
from tests.clusters import planted


def test_a_dearer_kilowatt_hour_plays_nothing_again(handed_over):
    asked = Scenario(data=handed_over(planted.planted("too_large-1").cluster), actuator="slurm", ownership="owned")
    first = study_comparison(asked)
    before = load_comparison.computed
    dearer = study_comparison(replace(asked, price_usd_per_kwh=0.5))
    assert load_comparison.computed == before
    assert dearer.decision.saving == first.decision.saving
    assert dearer.decision.financial_impact.usd_per_week > first.decision.financial_impact.usd_per_week > 0


@pytest.mark.parametrize("actuator", ["slurm", "mig-manager"])  # one powers nodes down, the other cannot
def test_electricity_is_one_figure(handed_over, actuator):
    found = study_comparison(
        Scenario(data=handed_over(planted.planted("too_large-1").cluster), actuator=actuator, ownership="owned")
    )
    rows = {row["policy"]: row for row in make_policy_table(found).to_dicts()}
    today, best, kwh = rows["today"], rows[found.winner], found.decision.financial_impact.kwh_per_week
    assert (kwh > 0) == (actuator == "slurm")
    assert found.decision.saving.value > 0
    assert (today["saved_kwh"], best["saved_kwh"]) == (0.0, pytest.approx(kwh, abs=1e-5))
    assert today["energy_kwh"] - best["energy_kwh"] == pytest.approx(kwh, abs=1e-5)
    assert best["off_gpu_hours"] == (found.decision.saving.value if kwh else 0.0)
    promised = today["gpu_hours_promised"] - best["gpu_hours_promised"]
    assert promised == pytest.approx(found.decision.saving.value, abs=0.01)
