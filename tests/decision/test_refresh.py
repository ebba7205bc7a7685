"""When a newer board pays: what an owner can still save against dated prices, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import GpuPlannerError
from gpuplanner.core.scenario import Scenario
from gpuplanner.cost.capacity_portfolio import HOURS_PER_MONTH
from gpuplanner.decision import purchase_and_refresh_plans
from gpuplanner.decision.purchase_and_refresh_plans import plan_refresh
from gpuplanner.usage.planning_history import history

BOOK = """\
owned:
- {gpu_model: H100-80GB-SXM5, gpus: 64, capex: 30000, unit: USD per GPU, bought: 2023-01-01, life_years: 5,
   space: 876.6, support: 876.6, staff: 876.6, source: invoice 7}
prices:
- {gpu_model: H200-141GB, kind: on_demand, price: 3.8, unit: USD per GPU h, from: 2026-01, to: 2026-06-30,
   source: quote 1}
- {gpu_model: H200-141GB, kind: on_demand, price: 0.42, unit: USD per GPU h, from: 2026-07, source: quote 2}
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.yaml"
    path.write_text(BOOK)
    return path


def test_what_an_owner_spent_is_spent_and_a_newer_board_pays_once_it_is_cheap(book: Path):
    asked = Scenario(month="2026-02", ownership="owned", price_book=str(book), price_usd_per_kwh=0.0)
    found = plan_refresh(asked, 12, "H200", 1.4)
    assert [one.today for one in found.months] == pytest.approx([0.3] * 12)  # space, support and staff alone
    assert found.months[0].newer == pytest.approx(3.8 / 1.4)
    assert found.months[-1].newer == pytest.approx(0.3)
    assert plan_refresh(asked, 12, "H200", 1.39).pays_from is None
    faster = plan_refresh(asked, 12, "H200", 1.45)
    # Month 5 begins on 30 June at 18:00, so that six of its hours are at the old price.
    assert faster.months[4].newer == pytest.approx((6 * 3.8 + (HOURS_PER_MONTH - 6) * 0.42) / HOURS_PER_MONTH / 1.45)
    assert faster.pays_from == 6
    assert faster.saves == pytest.approx(7 * (0.3 - 0.42 / 1.45) * 64 * HOURS_PER_MONTH)
    dearer = plan_refresh(asked.but(price_usd_per_kwh=0.5), 12, "H200", 1.4)
    assert dearer.pays_from == 5
    assert dearer.months[0].today > 0.5


def test_who_rents_compares_prices_and_one_that_is_not_known_is_asked_for(book: Path):
    asked = Scenario(month="2026-02", ownership="rented", price_per_gpu_hour=3.0)
    found = plan_refresh(asked.but(price_book=str(book)), 3, "H200", 2.0)
    assert found.pays_from == 1
    assert found.months[0].today - found.months[0].newer == pytest.approx(3.0 - 1.9)
    with pytest.raises(GpuPlannerError, match="known names"):
        plan_refresh(asked, 3, "B9000", 2.0)


def test_the_loss_on_resale_is_on_what_is_written_off(tmp_path):
    book = tmp_path / "prices.yaml"
    book.write_text(
        "owned:\n- {gpu_model: H100-80GB-SXM5, gpus: 64, capex: 28000, unit: USD per GPU, bought: 2025-01-01, "
        "life_years: 4, residual: 0.15, space: 900, support: 1000, staff: 850, source: invoice}\n"
    )
    scenario = Scenario(month="2026-02", price_book=str(book))
    offers, _, notes = purchase_and_refresh_plans._list_offers_and_rent(scenario, history(scenario), 12)
    owned = next(offer for offer in offers if offer.name == "owned")
    assert owned.upfront == pytest.approx(28000 * 0.85)
    assert f"rented for the {owned.lead_months} months until delivery" in " ".join(notes)
