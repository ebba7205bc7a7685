"""Prices, showback and savings: what must add up adds up to the cent."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.cost import Price, gpu_hour_price, showback
from gpuplanner.errors import ScenarioError

DAY = datetime(2026, 2, 1, tzinfo=UTC)
PRICE = Price(2.5, 2.0, 3.0, "USD", "own price", "as given")


def ledger(hours: dict[str, float]) -> pl.DataFrame:
    return pl.DataFrame({"tenant": list(hours), "gpu_hours": list(hours.values()), "hour": DAY})


def charge(hours: dict[str, float], price: Price = PRICE) -> pl.DataFrame:
    return showback(ledger(hours), price, start=DAY, end=DAY, energy_kwh=10.0, carbon_kg=2.0)


HOURS = st.just(0.0) | st.floats(1e-6, 1e5)


@given(st.dictionaries(st.sampled_from("abcdefg-"), HOURS, min_size=1), st.floats(0.01, 99))
def test_lines_sum_to_the_bill(hours, price):
    lines = charge(hours, Price(price, price, price, "USD", "own price", "as given"))
    bill = sum(hours.values()) * price
    assert abs(float(lines["EffectiveCost"].sum()) - bill) <= 0.0051
    assert lines["PricingQuantity"].sum() == pytest.approx(sum(hours.values()))
    if sum(hours.values()) > 0:
        assert lines["x_EnergyKwh"].sum() == pytest.approx(10)


def test_nobody_is_a_line_of_its_own_and_last():
    lines = charge({"-": 6.0, "b": 1.0, "a": 3.0})
    assert lines["SubAccountName"].to_list() == ["a", "b", "Unallocated"]
    assert lines["EffectiveCost"].to_list() == [Decimal("7.50"), Decimal("2.50"), Decimal("15.00")]


def test_catalogue_price_is_the_median_of_dated_rows_without_unconfirmed_licences():
    price = gpu_hour_price("H100-80GB-SXM5")
    assert price.low <= price.value <= price.high
    assert price.date == "2026-08-03"
    assert "skypilot" not in price.source


def test_no_currency_is_converted_without_a_rate():
    with pytest.raises(ScenarioError, match="currency"):
        gpu_hour_price("H100-80GB-SXM5", currency="EUR")
    assert gpu_hour_price("H100-80GB-SXM5", own=2.0, currency="EUR").currency == "EUR"


def test_board_without_prices_asks_for_one():
    with pytest.raises(ScenarioError, match="price_usd_per_gpu_hour"):
        gpu_hour_price("H20-96GB")
