"""The portfolio: every mix tried on small cases, the load-duration rule for one term, and months it has not seen."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.capacity_portfolio import (
    HOURS_PER_MONTH,
    Offer,
    Rent,
    choose_portfolio,
    compare_payments,
    spot_overhead,
)
from gpuplanner.decision.purchase_and_refresh_plans import _list_spot_notes, compare_ways_to_pay
from tests.examples import examples

PRICES = st.floats(50, 900)


def cost_of(demand, offers, rent, mix) -> np.ndarray:
    """Cost of every path of a mix, hour by hour, without any table: the definition."""
    months = len(demand)
    paths = np.zeros(len(demand[0]))
    held = np.zeros(months)
    for (offer, month), count in mix.items():
        active = [m for m in range(months) if 0 <= m - month - offer.lead_months < offer.term_months]
        held[active] += count
        paths += count * offer.per_gpu_month * (len(active) + offer.lost_share * (offer.term_months - len(active)))
    for month, hours in enumerate(demand):
        weight = HOURS_PER_MONTH / hours.shape[1]
        for path, row in enumerate(hours):
            for wanted in row:
                beyond = max(wanted - held[month], 0.0)
                spot = min(beyond, rent.spot_share * wanted) if rent.spot is not None else 0.0
                paths[path] += weight * ((beyond - spot) * rent.on_demand + spot * rent.spot_price)
    return paths


def brute(demand, offers, rent, risk, most) -> float:
    """The least objective over all mixes of at most `most` of each offer in each month."""
    months = len(demand)
    places = [(o, m) for o in offers for m in range(months) if m >= o.first_month and m + o.lead_months < months]
    found = np.inf
    for counts in itertools.product(range(most + 1), repeat=len(places)):
        paths = cost_of(demand, offers, rent, dict(zip(places, counts, strict=True)))
        worst = np.sort(paths)[::-1]
        share = np.clip(0.1 * len(paths) - np.arange(len(paths)), 0, 1) / (0.1 * len(paths))
        found = min(found, (1 - risk) * paths.mean() + risk * float(worst @ share))
    return found


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=3, max_size=3),
    PRICES, PRICES,
    st.floats(0.2, 1.2),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_no_mix_of_a_small_case_is_cheaper(wanted, short, long, on_demand, lost, risk):
    demand = [np.array(hours, dtype=float).reshape(2, 3) for hours in wanted]
    offers = [Offer("short", short, 1), Offer("long", long, 3, lost_share=lost)]
    rent = Rent(on_demand, spot=on_demand / 2, spot_share=0.4)
    found = choose_portfolio(demand, offers, rent, risk=risk, gap_target=1e-4)
    assert found.objective == pytest.approx(brute(demand, offers, rent, risk, 2), rel=2e-4, abs=0.5)
    assert found.bound <= found.objective + 1e-6
    mix = {(next(o for o in offers if o.name == name), month): count for (name, month), count in found.begun.items()}
    assert cost_of(demand, offers, rent, mix).mean() == pytest.approx(found.cost, rel=1e-9, abs=1e-6)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.05, 0.95))
def test_one_term_follows_the_load_duration_rule(hours, price):
    """Also the critical fractile: no more than a share u of the hours want less than what is committed."""
    load = np.array(hours, dtype=float)
    # One more GPU is committed while the hours that need it would cost more rented.
    level = next(gpus for gpus in range(11) if (load > gpus).mean() <= price + 1e-12)
    found = choose_portfolio([load[None, :]], [Offer("term", price * HOURS_PER_MONTH, 1)], Rent(1.0))
    best = [price * q + np.maximum(load - q, 0).mean() for q in range(11)]
    assert best[level] == pytest.approx(min(best))
    assert found.cost / HOURS_PER_MONTH == pytest.approx(min(best), abs=1e-6)
    assert (load < level).mean() <= 1 - price + 1e-9


def test_an_offer_is_not_taken_before_its_first_month_and_units_are_whole():
    demand = [np.full((1, 2), 5.0)] * 3
    found = choose_portfolio(demand, [Offer("block", 10.0, 1, first_month=1)], Rent(1.0), unit=4)
    assert found.committed.tolist() in ([0.0, 4.0, 4.0], [0.0, 8.0, 8.0])
    payments = compare_payments([Offer("block", 1.0, 1, first_month=1)], Rent(1.0), gpus=1, used_fraction=1.0, months=3)
    assert dict(payments.select("option", "cost").rows())["block"] == pytest.approx(2.0 + HOURS_PER_MONTH)


def test_what_is_held_anyway_is_not_bought_again():
    demand = [np.full((1, 2), 5.0)] * 3
    found = choose_portfolio(demand, [Offer("year", 10.0, 3)], Rent(1.0), existing_gpus=[5.0, 5.0, 3.0])
    assert found.committed.max() <= 2


def test_boards_that_come_late_are_rented_until_then():
    demand = [np.full((1, 2), 4.0)] * 6
    found = choose_portfolio(demand, [Offer("owned", 10.0, 4, lead_months=2)], Rent(1.0))
    assert found.begun == {("owned", 0): 4.0}
    assert found.committed.tolist() == [0, 0, 4, 4, 4, 4]


def test_spot_with_interruptions_is_never_dearer_than_on_demand():
    assert Rent(2.0, spot=1.9, spot_share=1, spot_overhead=0.2).spot_price == 2.0
    assert Rent(2.0, spot=1.0, spot_overhead=spot_overhead(0.2, checkpoint_s=3600, restart_s=0)).spot_price == (
        pytest.approx(1 / 0.9)
    )


def test_risk_buys_more_where_paths_differ():
    rng = np.random.default_rng(1)
    demand = [rng.choice([2.0, 20.0], p=[0.85, 0.15], size=(40, 1)) * np.ones(4) for _ in range(1)]
    offers = [Offer("term", 400.0, 1)]
    careful, usual = (choose_portfolio(demand, offers, Rent(1.0), risk=risk) for risk in (1.0, 0.0))
    assert careful.risk < usual.risk
    assert careful.cost >= usual.cost - 1e-6


def generated(seed: int, months: int, paths: int) -> list[np.ndarray]:
    """Days and nights, growth of a third a year that differs by path, and a month's own noise."""
    rng = np.random.default_rng(seed)
    growth, level = rng.normal(0.3, 0.15, (paths, 1)), rng.uniform(30, 60)
    found = []
    for month in range(months):
        day = 1 + 0.4 * np.sin(2 * np.pi * np.arange(96) / 24)
        mean = level * np.exp(growth * month / 12 + rng.normal(0, 0.05, (paths, 1)))
        found.append(np.round(mean * np.maximum(day + rng.normal(0, 0.15, (paths, 96)), 0)))
    return found


OFFERS = [
    Offer("owned", 700.0, 48, lead_months=3, lost_share=0.5),
    Offer("reserved_3y", 1000.0, 36),
    Offer("reserved_1y", 1250.0, 12),
]
RENT = Rent(2.5, spot=1.2, spot_share=0.2, spot_overhead=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_months_that_were_held_back_cost_little_more_than_in_hindsight(seed: int):
    """Chosen on 20 paths, paid on one that was not among them."""
    paths = generated(seed, 24, 21)
    seen, came = [one[:20] for one in paths], [one[20:] for one in paths]
    offers = OFFERS[2:]
    chosen = choose_portfolio(seen, offers, RENT)
    mix = {(offers[0], month): count for (_, month), count in chosen.begun.items()}
    paid = float(cost_of(came, offers, RENT, mix)[0])
    hindsight = choose_portfolio(came, offers, RENT)
    assert paid <= 1.10 * hindsight.cost
    assert paid <= 1.02 * min(hindsight.all_rented, hindsight.all_reserved)


def test_the_cheapest_mix_is_no_dearer_than_the_mean_reserved_in_the_same_nodes():
    """A mean of 50.5 GPUs: 50 alone would be cheaper than 48, but GPUs come in nodes of eight."""
    demand = [np.tile([51.0, 51.0, 51.0, 49.75, 49.75], (1, 146))] * 12
    found = choose_portfolio(demand, [Offer("reserved_1y", 5.1 * HOURS_PER_MONTH, 12)], Rent(8.9), unit=8)
    assert found.begun == {("reserved_1y", 0): 48.0}
    assert found.cost <= found.all_reserved


@pytest.mark.parametrize(
    ("changes", "option", "cost", "words"),
    [
        # Of a day 4 x (30 min / 2 + 30 s) are wasted: a useful hour costs 6.326 / (1 - 0.0431) = 6.611.
        ({"spot_share": 0.5, "spot_interruptions_per_day": 4}, "on_demand_and_spot", 0.5 * 12.29 + 0.5 * 6.611,
         ("50 % of the load", "spot 6.326, on demand 12.290 USD", "4 interruptions", "waste 4.3 %", "costs 6.611")),
        ({"spot_share": 0.2, "spot_interruptions_per_day": 90}, "on_demand", 12.29,
         ("not counted for 20 % of the load", "not cheaper", "90 interruptions", "waste 96.9 %")),
        ({"spot_share": 0.2, "price_per_gpu_hour": 2}, "on_demand", 2,
         ("not counted for 20 % of the load", "not cheaper", "spot 2.000, on demand 2.000")),
        ({}, "on_demand", 12.29, ()),
    ],
)  # fmt: skip
def test_a_mix_with_spot_names_share_price_and_interruptions(changes, option, cost, words):
    table, notes = compare_ways_to_pay(Scenario(**changes), 12, 8, used_fraction=1.0)
    (rented,) = table.filter(~pl.col("option").is_in(["owned", "reserved_1y", "reserved_3y"])).rows(named=True)
    assert rented["option"] == option
    assert rented["cost"] == pytest.approx(8 * 12 * HOURS_PER_MONTH * cost, rel=1e-3)
    about_spot = [note for note in notes if "spot_share" in note]
    assert len(about_spot) == bool(words)
    assert all(word in about_spot[0] for word in words)
    assert any(note.endswith(f"{option.replace('_', ' ')} only these are paid.") for note in notes)


def test_spot_without_a_price_is_named():
    (note,) = _list_spot_notes(Scenario(spot_share=0.3), Rent(2.0))
    assert note.startswith("Spot is not counted for 30 % of the load (spot_share): no spot price is known.")


H100 = "gpu_model: H100-80GB-SXM5, unit: EUR per GPU h, source: offer"
BOOK = f"""prices:
- {{{H100}, kind: on_demand, price: 5, from: 2026-01, to: 2026-02}}
- {{{H100}, kind: on_demand, price: 6, from: 2026-03}}
"""


def pay_by_book(folder, rows: str, **settings):
    """Compare payments for one of eight H100 over twelve months from March 2026, with more rows in the price book."""
    (folder / "prices.yaml").write_text(BOOK + rows)
    scenario = Scenario(price_book=str(folder / "prices.yaml"), currency="EUR", ownership="rented", **settings)
    table, notes = compare_ways_to_pay(scenario, 12, 8, used_fraction=1.0)
    costs = table.select("option", pl.col("cost") / HOURS_PER_MONTH / 8)
    return dict(costs.rows()), " ".join(notes)


def test_months_ahead_have_the_prices_of_their_days(tmp_path):
    costs, notes = pay_by_book(tmp_path, "")
    assert costs["on_demand"] == pytest.approx(12 * 6)
    assert "Month 1 begins on 2026-03-01." in notes
    assert "on demand 6.00 EUR (6 EUR from 2026-03-01)" in notes
    changed, _ = pay_by_book(tmp_path, f"- {{{H100}, kind: on_demand, price: 8, from: 2026-08-30}}\n")
    assert changed["on_demand"] == pytest.approx(12 * 7, rel=5e-3)  # half of the year at 6, half at 8


def test_an_offer_is_one_on_its_days(tmp_path):
    """A reservation from June on pays nine of the twelve months, rented until then, and the rest of its term."""
    costs, _ = pay_by_book(tmp_path, f"- {{{H100}, kind: reserved_1y, price: 4, from: 2026-06}}\n")
    assert costs["reserved_1y"] == pytest.approx(3 * 6 + 12 * 4)
    costs, notes = pay_by_book(tmp_path, f"- {{{H100}, kind: reserved_1y, price: 4, from: 2025-01, to: 2026-02}}\n")
    assert "The row reserved 1y of the price book is no offer" in notes
    assert costs["reserved_1y"] == pytest.approx(12 * 6 * (1 - 0.375))  # the assumed discount


def test_a_list_price_is_stated_with_its_date():
    _, notes = compare_ways_to_pay(Scenario(), 12, 8, used_fraction=1.0)
    assert any("on demand 12.29 USD (median of 19 on-demand list prices, 2026-06-18)" in note for note in notes)
