"""What a saving is worth by who pays: figures counted by hand, and the sentences that state them."""

from __future__ import annotations

import pytest

from gpuplanner.decision.decision_types import FinancialImpact, NextPurchase, Saving, compute_financial_impact
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice, GpuPowerModel

LAW = GpuPowerModel("any", idle_w=50.0, base_w=240.0, slope_w=130.0, tdp_w=400.0, source="made up")
LISTED = GpuHourPrice(2.5, 2.0, 3.0, "USD", "own price", "as given")
SAVED = Saving(1000.0, 800.0, 1200.0)


def worth(ownership, saving=SAVED, **more) -> FinancialImpact:
    given = {
        "gpus_freed_at_peak": 6,
        "fleet_gpus": 24,
        "power": LAW,
        "price_per_kwh": 0.2,
        "currency": "USD",
        "pue": 1.2,
        "price": LISTED,
        "purchase": None,
        "off_gpu_hours": saving.value or 0.0,
    }
    return compute_financial_impact(saving, ownership=ownership, **(given | more))


def test_an_owner_saves_the_electricity_of_idle_gpus_and_no_rental_price():
    # 1000 h x 50 W = 50 kWh at the GPU, x 1.2 = 60 at the meter, x 0.2 = 12 USD; 2,500 USD at the list price.
    found = worth("owned", purchase=NextPurchase("2027-11-13", "2027-08-15", 8))
    assert (found.ownership, found.kwh_per_week, found.usd_per_week) == ("owned", pytest.approx(60), pytest.approx(12))
    assert found.basis == (
        "6 of 24 GPUs are released, counted here as powered down; other work may use them instead. "
        "Electricity: 60 kWh per week (1,000 GPU-hours powered down, 50 W idle, PUE 1.2), 12.00 USD "
        "at 0.2 USD per kWh. "
        "The next purchase, of 8 GPUs or more, is due on 13 Nov 2027: order by 15 Aug 2027."
    )
    assert found == worth("owned", purchase=NextPurchase("2027-11-13", "2027-08-15", 8), price=None)


def test_gpus_that_rest_with_their_power_on_save_no_electricity():
    for law in (LAW, None):
        found = worth("owned", off_gpu_hours=0.0, power=law)
        assert (found.usd_per_week, found.kwh_per_week) == (0.0, 0.0)
        assert "6 of 24 GPUs are released for other work. Spend unchanged while they stay powered on." in found.basis
    # A quarter of the hours really off, a quarter of the energy.
    assert worth("owned", off_gpu_hours=250.0).kwh_per_week == pytest.approx(15)


def test_what_is_not_known_is_not_counted():
    unrated = worth("owned", power=None)
    assert (unrated.usd_per_week, unrated.kwh_per_week) == (None, None)
    assert "the power of this GPU model is not known" in unrated.basis


def test_who_rents_saves_the_price_of_the_hours():
    found = worth("on_demand")
    assert (found.ownership, found.usd_per_week) == ("rented", 2500.0)
    assert found.kwh_per_week is None, "the provider pays for it"
    assert "2,500 USD less per week, if billed as used: 1,000 GPU-hours at 2.50 USD (own price)" in found.basis
    assert worth("rented", price=None).usd_per_week is None


def test_a_reservation_is_paid_until_its_term_ends():
    found = worth("reserved")
    assert found.usd_per_week == 0.0
    assert "Spend unchanged until the term ends; then 6 GPUs need not be reserved again." in found.basis
    busy = worth("reserved", gpus_freed_at_peak=0)
    assert busy.usd_per_week == 0.0
    assert "no GPU is released" in busy.basis
