"""The one saving of a study: remembered by what it depends on, the same object behind every door."""

from __future__ import annotations

from dataclasses import replace

from gpuplanner.scenario import Scenario
from gpuplanner.study.equal_service.promise import promise

FEW = Scenario(month="2026-02", replications=2, policies="static_whole,whole_on_off")


def test_prices_and_regions_do_not_tune_again_and_a_service_does() -> None:
    found, before = promise(FEW), promise.computed
    assert promise(replace(FEW, price_usd_per_gpu_hour=9.0, carbon_region="gcp:us-central1")) is found
    assert promise.computed == before
    assert promise(replace(FEW, wait_minutes=60.0))["target"]["minutes"] == 60.0
    assert promise.computed == before + 1


def test_a_past_too_short_to_keep_weeks_back_promises_nothing_and_says_why() -> None:
    found = promise(replace(FEW, history_days=10))
    assert found.keys() == promise(FEW).keys()
    assert found["winner"] is None
    assert found["saving_gpu_hours_per_week"] is None
    assert "at least 14 whole days" in found["reason"]
