"""The two-state power law against published figures, and its limits."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.period_costs import estimate_energy, money
from gpuplanner.hardware.power_carbon_and_prices import compute_facility_kwh, compute_gpu_kwh, make_power_model
from gpuplanner.usage.gpu_hour_ledger import ALLOCATED_BUCKETS
from gpuplanner.usage.period_accounts import scenario_ledger

H100 = "H100-80GB-SXM5"


@pytest.mark.parametrize(
    ("throughput_share", "watts"),
    # Llama-3.1-8B decode on one H100: W at output tokens/s, share of the 9,806 tokens/s at saturation
    # (ml-energy/leaderboard, February 2026).
    [(1070 / 9806, 486), (1954 / 9806, 513), (3391 / 9806, 560), (5147 / 9806, 610), (7037 / 9806, 669)],
)
def test_busy_power_is_near_measured_decoding(throughput_share, watts):
    assert make_power_model(H100).busy_w(throughput_share) == pytest.approx(watts, rel=0.15)


def test_straight_line_law_would_be_far_off():
    # Kalos, A100 with a rating of 400 W: mean power 191 W at a mean utilisation of two thirds (Acme, NSDI 24).
    # With 30 % of the GPUs idle and a median SM activity of 40 %, the law lands within a quarter of it.
    law = make_power_model("A100-80GB")
    fleet_w = 1000 * compute_gpu_kwh(law, powered_gpu_hours=1, resident_gpu_hours=0.5, active_gpu_hours=0.2)
    straight_w = law.idle_w + (law.tdp_w - law.idle_w) * 0.66
    assert abs(fleet_w - 191) < 0.25 * 191 < abs(straight_w - 191)


@given(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1))
def test_energy_lies_between_idle_and_rating(powered, resident_share, activity):
    law = make_power_model(H100)
    resident = powered * resident_share
    kwh = compute_gpu_kwh(
        law, powered_gpu_hours=powered, resident_gpu_hours=resident, active_gpu_hours=resident * activity
    )
    assert law.idle_w * powered / 1000 - 1e-6 <= kwh <= law.tdp_w * powered / 1000 + 1e-6


def test_figures_that_do_not_nest_are_refused():
    with pytest.raises(ScenarioError, match="active <= resident <= powered"):
        compute_gpu_kwh(make_power_model(H100), powered_gpu_hours=1, resident_gpu_hours=2, active_gpu_hours=0)


def test_board_without_a_rating_is_refused():
    with pytest.raises(ScenarioError, match="tdp_w"):
        make_power_model("GH200-144GB")


def test_facility_energy_multiplies_host_and_building():
    assert compute_facility_kwh(10, host_factor=1.5, pue=1.1) == pytest.approx(16.5)


def test_policies_and_the_period_state_one_energy_for_the_same_hours():
    scenario = Scenario(month="2026-02")
    ledger = scenario_ledger(scenario)
    is_allocated = pl.col("bucket").cast(pl.String).is_in(ALLOCATED_BUCKETS)
    busy, idle = (float(ledger.filter(side)["gpu_hours"].sum()) for side in (is_allocated, ~is_allocated))
    energy = estimate_energy(scenario, busy_gpu_hours=busy, idle_gpu_hours=idle)
    assert energy is not None
    assert energy.value == pytest.approx(money(scenario).energy.value, abs=1e-5)
    assert energy.low < energy.value < energy.high
