"""Prices, showback and savings: what must add up adds up to the cent."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.errors import ScenarioError
from gpuplanner.cost.showback import Rate, showback
from gpuplanner.hardware.power_carbon_and_prices import GpuHourPrice, find_gpu_hour_price

DAY, AFTER = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)
PRICE = GpuHourPrice(2.5, 2.0, 3.0, "USD", "own price", "as given")


def charge(hours: dict[str, float], rate: Rate | None = None, kwh: list[float | None] | None = None) -> pl.DataFrame:
    rows = pl.DataFrame(
        {
            "tenant": list(hours),
            "gpu_model": "X",
            "bucket": ["unallocated" if name == "-" else "used" for name in hours],
            "ownership": "owned",
            "gpu_hours": list(hours.values()),
            "energy_kwh": kwh or [1.0] * len(hours),
        },
        schema_overrides={"energy_kwh": pl.Float64},
    )
    return showback(rows, {("X", "owned"): rate or Rate(PRICE)}, start=DAY, end=AFTER)


HOURS = st.just(0.0) | st.floats(1e-6, 1e5)


@given(st.dictionaries(st.sampled_from("abcdefg-"), HOURS, min_size=1), st.floats(0.01, 99), st.floats(0, 2), st.data())
def test_lines_sum_to_the_bill(hours, price, per_kwh, data):
    kwh = data.draw(st.lists(st.floats(0, 1e5), min_size=len(hours), max_size=len(hours)))
    rate = Rate(GpuHourPrice(price, price, price, "USD", "own price", "as given"), per_kwh=per_kwh)
    lines = charge(hours, rate, kwh)
    bill = sum(hours.values()) * price + sum(kwh) * per_kwh
    # A cent of the sum, and what the sixth decimal of hours may be worth.
    assert abs(float(lines["EffectiveCost"].sum()) - bill) <= 0.0051 + 1e-6 * price
    assert lines["PricingQuantity"].sum() == pytest.approx(sum(hours.values()), abs=1e-6)
    assert lines["x_EnergyKwh"].sum() == pytest.approx(round(sum(kwh), 6), abs=1e-9)
    for row in lines.iter_rows(named=True):
        dearest = Decimal(repr(row["PricingQuantity"])) * Decimal(repr(price))
        dearest += Decimal(repr(row["x_EnergyKwh"])) * Decimal(repr(per_kwh))
        assert abs(row["EffectiveCost"] - dearest) <= Decimal("0.02")


def test_a_tenant_called_nobody_is_not_nobody():
    """The account of that name is on every Unix machine."""
    lines = charge({"-": 6.0, "__unallocated__": 1.0})
    assert lines["SubAccountName"].to_list() == ["__unallocated__ (tenant)", "__unallocated__"]


def test_owned_gpus_are_never_billed_and_name_their_basis():
    for basis in ("own rate", "list price"):
        lines = charge({"a": 1.0, "-": 3.0}, Rate(PRICE, basis=basis))
        assert lines["BilledCost"].sum() == 0
        assert lines["EffectiveCost"].sum() == lines["ContractedCost"].sum() == 10
        assert set(lines["x_PriceBasis"]) == {basis}


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e7), st.booleans())
def test_list_cost_is_the_exact_product_at_any_exchange_rate(rate, hours, is_inverse):
    listed = 12.29 / rate if is_inverse else 12.29 * rate
    row = charge({"a": hours}, Rate(PRICE, listed=listed)).row(0, named=True)
    price, quantity = (Fraction(repr(row[name])) for name in ("ListUnitPrice", "PricingQuantity"))
    assert Fraction(row["ListCost"]) == price * quantity
    assert float(price) == pytest.approx(listed, rel=1e-6, abs=1e-12)


def test_list_cost_is_list_price_times_quantity_to_the_last_digit():
    lines = charge({"a": 1 / 3, "-": 2 / 3}, Rate(PRICE, listed=12.29))
    for row in lines.iter_rows(named=True):
        assert row["ListCost"] == Decimal("12.29") * Decimal(repr(row["PricingQuantity"]))
    assert charge({"a": 1.0})["ListCost"].item() == Decimal("2.5")  # no list has it


def test_catalogue_price_is_the_median_of_dated_rows_without_unconfirmed_licences():
    price = find_gpu_hour_price("H100-80GB-SXM5")
    assert price.low <= price.value <= price.high
    assert price.date == "2026-06-18"  # of the offers at the median, not of the newest
    assert "skypilot" not in price.source
    assert find_gpu_hour_price("H100-80GB-SXM5", term="spot").value < price.value


def test_no_currency_is_converted_without_a_rate():
    with pytest.raises(ScenarioError, match="currency"):
        find_gpu_hour_price("H100-80GB-SXM5", currency="EUR")
    assert find_gpu_hour_price("H100-80GB-SXM5", own_price=2.0, currency="EUR").currency == "EUR"
