"""What a saving is worth by who pays: figures counted by hand, and the sentences that state them."""

from __future__ import annotations

import pytest

from gpuplanner.catalog import parameter
from gpuplanner.cost import PowerModel, Price
from gpuplanner.errors import ScenarioError
from gpuplanner.scenario import Scenario
from gpuplanner.study.decision.types import NextPurchase, Saving, Worth
from gpuplanner.study.decision.worth import usd_per_kwh_of, worth_of

LAW = PowerModel("any", idle_w=50.0, base_w=240.0, slope_w=130.0, tdp_w=400.0, source="made up")
LISTED = Price(2.5, 2.0, 3.0, "USD", "own price", "as given")
SAVED = Saving(1000.0, 800.0, 1200.0)


def worth(ownership, saving=SAVED, **more) -> Worth:
    given = {
        "gpus_freed_at_peak": 6,
        "fleet_gpus": 24,
        "power": LAW,
        "usd_per_kwh": 0.2,
        "pue": 1.2,
        "price": LISTED,
    }
    return worth_of(saving, ownership=ownership, **(given | more))


def test_an_owner_saves_the_electricity_of_idle_gpus_and_no_rental_price():
    # 1000 h x 50 W = 50 kWh at the GPU, x 1.2 = 60 at the meter, x 0.2 = 12 USD; 2,500 USD at the list price.
    found = worth("owned", next_purchase=NextPurchase("2027-11-13", "2028-03-02"))
    assert (found.ownership, found.kwh_per_week, found.usd_per_week) == (
        "owned",
        pytest.approx(60),
        pytest.approx(12),
    )
    assert found.basis == (
        "6 of 24 GPUs are free for other work at peak. "
        "Electricity: 60 kWh a week (1,000 GPU-hours off, 50 W idle, PUE 1.2), 12.00 USD at 0.2 USD per kWh. "
        "The next purchase moves from 13 Nov 2027 to 2 Mar 2028."
    )
    assert found == worth("owned", next_purchase=NextPurchase("2027-11-13", "2028-03-02"), price=None)


def test_gpus_that_rest_with_their_power_on_save_no_electricity():
    for law in (LAW, None):
        found = worth("owned", idle_gpu_hours_per_week=0.0, power=law, usd_per_kwh=None)
        assert (found.usd_per_week, found.kwh_per_week) == (0.0, 0.0)
        assert "No electricity is saved: no GPU is off." in found.basis
    # A quarter of the hours really off, a quarter of the energy.
    assert worth("owned", idle_gpu_hours_per_week=250.0).kwh_per_week == pytest.approx(15)


def test_what_is_not_known_is_not_counted():
    priceless = worth("owned", usd_per_kwh=None)
    assert (priceless.usd_per_week, priceless.kwh_per_week) == (None, pytest.approx(60))
    assert "its price is not stated" in priceless.basis
    unrated = worth("owned", power=None)
    assert (unrated.usd_per_week, unrated.kwh_per_week) == (None, None)
    assert "electricity is not known for this board" in unrated.basis
    assert worth("owned", pue=None).kwh_per_week == pytest.approx(50 * parameter("pue").value)


def test_freed_hours_have_a_value_only_if_asked_and_then_no_electricity():
    found = worth("owned", value_freed_at=1.5)
    assert (found.usd_per_week, found.kwh_per_week) == (1500.0, 0.0)
    assert (
        "1,500 USD a week: 1,000 freed GPU-hours at 1.50 USD, as asked; other work runs in them"
        in found.basis
    )
    assert worth("reserved", value_freed_at=1.5).usd_per_week == 1500.0
    # What is given back nobody else uses.
    assert worth("rented", value_freed_at=1.5).usd_per_week == 2500.0


@pytest.mark.parametrize(
    ("step_s", "rentals", "usd", "says"),
    [
        (None, 0, 2500.0, "billed as used: no billing step is stated"),
        (1, 400, 2500.0 - 400 * 0.5 / 3600 * 2.5, "billed by the second"),
        (60, 0, 2500.0, "billed by the minute"),
        # 100 rentals end a week, each half an hour before what is paid for: 50 h of 2.50.
        (
            3600,
            100,
            2375.0,
            "1,000 GPU-hours, less 50 of steps begun, at 2.50 USD (own price), billed by the hour",
        ),
        (600, 120, 2475.0, "less 10 of steps begun, at 2.50 USD (own price), billed in steps of 10 min"),
        (3600, 1e6, 0.0, "0 USD a week"),
    ],
)
def test_who_rents_saves_the_price_to_the_step_that_is_billed(step_s, rentals, usd, says):
    found = worth("on_demand", billing_step_s=step_s, rentals_per_week=rentals)
    assert (found.ownership, found.usd_per_week) == ("rented", pytest.approx(usd))
    assert found.kwh_per_week is None, "the provider pays for it"
    assert says in found.basis


def test_rented_gpus_that_cannot_go_save_nothing():
    assert worth("rented", returnable=False) == Worth(
        "rented", 0.0, "Nothing is paid less: the GPUs cannot be given back."
    )
    assert worth("rented", price=None).usd_per_week is None


def test_a_reservation_is_paid_until_its_term_ends():
    found = worth("reserved")
    assert found.usd_per_week == 0.0
    assert "0 USD until the term ends; then 6 GPUs need not be reserved again." in found.basis
    # What can be given back before: GPUs that are free at every hour, for all 168.
    back = worth("reserved", returnable=True)
    assert back.usd_per_week == 6 * 168 * 2.5 == 2520
    assert "2,520 USD a week: 6 GPUs can be given back for all hours at 2.50 USD (own price)." in back.basis
    assert worth("reserved", returnable=True, price=None).usd_per_week is None
    busy = worth("reserved", returnable=True, gpus_freed_at_peak=0)
    assert busy.usd_per_week == 0.0
    assert "no GPU is free all week" in busy.basis


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"gpus_freed_at_peak": 25}, "25 of 24"), ({"gpus_freed_at_peak": -1}, "-1 of 24"),
     ({"value_freed_at": -1.0}, "value_freed_at -1"), ({"billing_step_s": float("nan")}, "billing_step_s nan"),
     ({"idle_gpu_hours_per_week": -3.0}, "idle_gpu_hours_per_week")],
)  # fmt: skip
def test_figures_that_cannot_be_are_refused(wrong, says):
    with pytest.raises(ScenarioError, match=says):
        worth("owned", **wrong)


def test_electricity_costs_what_the_scenario_says_else_what_the_catalogue_has():
    assert usd_per_kwh_of(Scenario()) == parameter("electricity_usd_per_kwh").value
    assert usd_per_kwh_of(Scenario(price_usd_per_kwh=0)) == 0.0
