"""Prices move what a saving is worth, and nothing is played again for them."""

from __future__ import annotations

from dataclasses import replace

from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.record import comparison, played
from tests.clusters import planted


def test_a_dearer_kilowatt_hour_plays_nothing_again(handed_over):
    asked = Scenario(
        data=handed_over(planted.planted("too_large-1").cluster), path="slurm", ownership="owned"
    )
    first = comparison(asked)
    before = played.computed
    dearer = comparison(replace(asked, price_usd_per_kwh=0.5))
    assert played.computed == before
    assert dearer.decision.saving == first.decision.saving
    assert dearer.decision.worth.usd_per_week > first.decision.worth.usd_per_week > 0
