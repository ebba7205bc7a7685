"""The price book: dated rows by hand, owning against an annuity counted here, and files that are wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.core.units_and_number_formats import DECIMALS_BY_CURRENCY
from gpuplanner.cost.price_book import PriceBook, read_price_book
from gpuplanner.hardware.catalog import facts

BEGIN, END = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
PRICE = "gpu_model: T4, kind: on_demand, price: 2.0, unit: USD per GPU h, from: 2026-01, source: quote"
LOT = "gpu_model: T4, gpus: 8, capex: 8766, unit: EUR per GPU, bought: 2025-01-01, life_years: 4, source: invoice"


@pytest.fixture
def book(tmp_path: Path):
    def make(text: str) -> PriceBook:
        (tmp_path / "prices.yaml").write_text(text)
        return read_price_book(tmp_path / "prices.yaml")

    return make


def test_a_price_that_changes_is_the_mean_by_time(book):
    """Seven days of February at 2, the other 21 at 3."""
    rows = f"- {{{PRICE}, to: 2026-02-07}}\n- {{{PRICE.replace('2026-01', '2026-02-08').replace('2.0', '3.0')}}}\n"
    rate = book(f"prices:\n{rows}").find_rate("T4", "on_demand", "USD", BEGIN, END)
    assert rate.price.value == pytest.approx((7 * 2 + 21 * 3) / 28)
    assert (rate.price.low, rate.price.high, rate.price.date) == (2.0, 3.0, "2026-02-08")


def test_an_instance_is_parted_over_its_gpus_and_converted_at_the_dated_rate(book):
    text = (
        f"prices:\n- {{{PRICE.replace('GPU h', 'instance h').replace('USD', 'EUR')}, gpus: 4}}\n"
        "rates:\n- {from: EUR, to: USD, rate: 9, date: 2026-03-05, source: later}\n"
        "- {from: EUR, to: USD, rate: 1.2, date: 2026-02-02, source: ECB}\n"
    )
    assert book(text).find_rate("T4", "on_demand", "USD", BEGIN, END).price.value == pytest.approx(2.0 / 4 * 1.2)


def test_owning_is_written_off_evenly_and_electricity_comes_on_top(book):
    text = f"owned:\n- {{{LOT}, residual: 0.2, support: 87.66}}\nelectricity:\n" + (
        "- {price: 0.1, unit: EUR per kWh, from: 2026-01, source: contract, market_g_per_kwh: 12}\n"
    )
    found = book(text)
    rate = found.find_rate("T4", "owned", "EUR", BEGIN, END)
    assert rate.parts["depreciation"] == pytest.approx(0.2)
    assert rate.price.value == pytest.approx(0.2 + 0.01)
    assert rate.per_kwh == pytest.approx(0.1)
    assert found.mean_market_g(BEGIN, END) == 12
    late = datetime(2029, 2, 1, tzinfo=UTC), datetime(2029, 3, 1, tzinfo=UTC)
    assert found.find_rate("T4", "owned", "EUR", *late).price.value == pytest.approx(0.01)


def test_rentals_are_billed_in_steps_and_for_a_minimum_term(book):
    terms = "billing_step_s: 3600, minimum_term_h: 2"
    text = f"prices:\n- {{{PRICE}, {terms}}}\n- {{{PRICE.replace('on_demand', 'spot')}, to: 2026-01}}\n"
    found = book(text)
    billed = found.find_billing_terms("T4", "on_demand", BEGIN, END)
    hours = pl.DataFrame({"h": [0.25, 2.0, 2.01, 7.0]})
    assert hours.select(billed.bill_hours(pl.col("h")))["h"].to_list() == [2.0, 2.0, 3.0, 7.0]
    assert billed.text == "in steps of 1 h and at least 2 h"
    unstated = found.find_billing_terms("T4", "spot", BEGIN, END)
    assert hours.select(unstated.bill_hours(pl.col("h")))["h"].to_list() == hours["h"].to_list()
    assert unstated.text == ""


def test_lots_are_weighed_by_their_gpus(book):
    two = f"owned:\n- {{{LOT}}}\n- {{{LOT.replace('gpus: 8', 'gpus: 24').replace('8766', '17532')}}}\n"
    rate = book(two).find_rate("T4", "owned", "EUR", BEGIN, END)
    assert rate.price.value == pytest.approx(0.25 * 0.25 + 0.75 * 0.5)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (PRICE.replace(", unit: USD per GPU h", ""), "key unit"),
        (PRICE.replace("USD", "USX"), "'USX' (did you mean"),
        (PRICE.replace("2.0", "-2.0"), "price, a number from 0"),
        (PRICE.replace("on_demand", "on demand"), "did you mean 'on_demand'?"),
        (PRICE.replace("GPU h", "instance h"), "gpus of an instance"),
        (PRICE + ", cost: 3", "unknown 'cost'"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(book, row: str, told: str):
    with pytest.raises(ScenarioError) as error:
        book(f"prices:\n- {{{row}}}\n")
    assert told in str(error.value)
    assert "line 2" in str(error.value)


@pytest.mark.parametrize("end", ["9999-12", "9999-12-31", "2999-12-31", "null"])
def test_an_end_beyond_the_calendar_is_no_end(book, end: str):
    rows = book(f"prices:\n- {{{PRICE}, to: {end}}}\n").prices
    assert [row.end for row in rows] == [None]
    assert book(f"prices:\n- {{{PRICE}, to: {end}}}\n").find_rate("T4", "on_demand", "USD", BEGIN, END)


@pytest.mark.parametrize("begin", ["9999-12", "9999-12-31", "2200-01", "0001-01", "1969-12-31"])
def test_a_begin_beyond_the_calendar_is_refused(book, begin: str):
    for row in (
        f"prices:\n- {{{PRICE.replace('2026-01', begin)}}}\n",
        f"owned:\n- {{{LOT.replace('2025-01-01', begin)}}}\n",
    ):
        with pytest.raises(ScenarioError, match=r"line 2: expected (from|bought) in the years 1970 to 2199; got"):
            book(row)


def test_keys_of_all_faulty_rows_are_named_at_once(book):
    rows = "prices:\n- {gpu_model: T4, price: 2}\n- {kindd: spot}\nowned:\n- {gpu_model: T4, gpus: 64}\nrates:\n- 7\n"
    with pytest.raises(ScenarioError) as error:
        book(rows)
    for part in (
        "prices.yaml, prices, line 2; prices, line 3; owned, line 5; rates, line 1: expected",
        "expected keys kind, unit, from, source; keys gpu_model, kind",
        "; keys capex, unit, bought, life_years, source; keys from, to",
        "got only gpu_model, price; unknown 'kindd': 'spot' (did you mean 'kind'?); only gpu_model, gpus; 7.",
    ):
        assert part in str(error.value)


def test_overlapping_terms_and_gaps_are_refused(book):
    overlap = f"prices:\n- {{{PRICE}, to: 2026-02-10}}\n- {{{PRICE.replace('2026-01', '2026-02-10')}}}\n"
    with pytest.raises(ScenarioError, match="one price at a time"):
        book(overlap)
    ended = book(f"prices:\n- {{{PRICE}, to: 2026-02-14}}\n")
    with pytest.raises(ScenarioError, match="rows for 50 %"):
        ended.find_rate("T4", "on_demand", "USD", BEGIN, END)
    with pytest.raises(ScenarioError, match="one dated 2026-03-01 or before"):
        book(f"prices:\n- {{{PRICE}}}\n").find_rate("T4", "on_demand", "EUR", BEGIN, END)


def test_the_catalogue_and_the_smallest_units_of_currencies_agree():
    rows = dict(facts("currencies").select("code", "minor_units").iter_rows())
    assert {code: units for code, units in rows.items() if units != 2} == DECIMALS_BY_CURRENCY


@pytest.mark.parametrize(
    ("kind", "days", "price"),
    [
        ("on_demand", "from: 2020-01, to: 2020-12", 2.0),  # the last one before the period
        ("on_demand", "from: 2030-01", 2.0),  # the first one after it
        ("reserved_1y", "from: 2020-01, to: 2020-12", None),
        ("reserved_1y", "from: 2030-01", None),
    ],
)
def test_a_price_that_no_gpu_is_charged_at_needs_no_row_in_the_period(book, kind, days, price):
    row = f"gpu_model: T4, kind: {kind}, price: 2, unit: USD per GPU h, {days}, source: offer"
    found = book(f"prices:\n- {{{row}}}\n")
    with pytest.raises(ScenarioError, match="whole period"):
        found.find_rate("T4", kind, "USD", BEGIN, END)
    rate = replace(found, bridges_gaps=True).find_rate("T4", kind, "USD", BEGIN, END)
    assert (None if rate is None else rate.price.value) == price


def test_gaps_are_left_out_of_the_mean(book):
    half = BEGIN + (END - BEGIN) / 2
    row = f"gpu_model: T4, kind: reserved_1y, price: 2, unit: USD per GPU h, from: {half:%Y-%m-%d}, source: offer"
    found = replace(book(f"prices:\n- {{{row}}}\n"), bridges_gaps=True)
    assert found.find_rate("T4", "reserved", "USD", BEGIN, END).price.value == pytest.approx(2.0)
