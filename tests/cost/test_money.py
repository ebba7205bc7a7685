"""Prices, showback and savings: what must add up adds up to the cent."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.cost import STEPS, Price, gpu_hour_price, savings_table, showback
from gpuplanner.errors import ScenarioError, SchemaError
from gpuplanner.metrics import mean_interval

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


def interval(values):
    found = mean_interval(values)
    return found.mean, found.low, found.high


def runs(hours: dict[str, list[float]]) -> pl.DataFrame:
    rows = [
        {"policy": policy, "replication": k, "gpu_hours": h, "energy_kwh": 2 * h, "carbon_kg": h / 10}
        for policy, values in hours.items()
        for k, h in enumerate(values)
    ]
    return pl.DataFrame(rows)


def test_steps_add_up_to_the_total():
    policies = [policy for policy, _, _ in STEPS]
    hours = {policy: [100.0 - 7 * n, 104.0 - 9 * n] for n, policy in enumerate(policies)}
    table = savings_table(runs(hours), PRICE, interval=interval, weeks=2.0)
    assert table["policy"].to_list() == policies
    assert table["saved_gpu_hours"].sum() == pytest.approx(table["saved_total_gpu_hours"][-1])
    assert table["saved_total_gpu_hours"][-1] == pytest.approx((28 + 36) / 2 / 2)
    assert table["saved_cost"][-1] == pytest.approx(16 * 2.5)
    assert table["saved_energy_kwh"][-1] == pytest.approx(32)
    assert table["saved_carbon_kg"][-1] == pytest.approx(1.6)
    assert table["saved_total_gpu_hours_low"][-1] < 16 < table["saved_total_gpu_hours_high"][-1]
    for row, (before, after) in zip(table.rows(named=True)[1:], pairwise(policies), strict=True):
        weekly = [(old - new) / 2 for old, new in zip(hours[before], hours[after], strict=True)]
        told = [row["saved_gpu_hours"], row["saved_gpu_hours_low"], row["saved_gpu_hours_high"]]
        assert told == pytest.approx(interval(weekly))


def test_paired_differences_are_tighter_than_the_weeks_themselves():
    # Busy and quiet weeks differ a lot, the saving is the same in each: pairing must see that.
    hours = {policy: [50.0 - n, 150.0 - n, 250.0 - n] for n, (policy, _, _) in enumerate(STEPS)}
    table = savings_table(runs(hours), PRICE, interval=interval, weeks=1.0)
    assert table["saved_total_gpu_hours_low"][-1] == pytest.approx(table["saved_total_gpu_hours_high"][-1])


def test_nothing_installed_saves_nothing():
    table = savings_table(
        runs({policy: [0.0] for policy, _, _ in STEPS}), PRICE, interval=lambda v: (v[0],) * 3, weeks=1
    )
    assert table["saved_total_fraction"].to_list() == [0.0] * 5


def test_missing_policy_is_named():
    with pytest.raises(SchemaError, match="static_requested"):
        savings_table(runs({"installed": [1.0], "whole_sized": [1.0]}), PRICE, interval=interval, weeks=1)
