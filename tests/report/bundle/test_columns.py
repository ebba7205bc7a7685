"""Units that column names end in."""

from __future__ import annotations

import pytest

from gpuplanner.core.output_column_headings import column_heading, unit_of


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("wait_s", "s"),
        ("saved_gpu_hours_high", "GPU h"),
        ("price_usd_per_gpu_hour", "USD/GPU h"),
        ("lost_gpu_s", "GPU s"),
        ("idle_fraction", "%"),
        ("x_CarbonKg", "kg"),
    ],
)
def test_units_are_read_from_the_end_of_the_name(name, symbol):
    assert unit_of(name).symbol == symbol


@pytest.mark.parametrize("name", ["tenant", "s", "windows"])
def test_other_names_have_none(name):
    assert unit_of(name) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("gpus_per_node", "GPUs per node"),
        ("cost_usd", "cost [USD]"),
        ("wait_s_low", "wait low [s]"),
        ("x_EnergyKwh", "x_EnergyKwh"),
        ("share", "share [%]"),
    ],
)
def test_headings_are_words_with_the_unit_in_brackets(name, shown):
    assert column_heading(name) == shown


def test_number_formats_agree_between_page_and_workbook():
    assert (unit_of("a_usd").excel, format(1234.5, unit_of("a_usd").python)) == ("#,##0.00", "1,234.50")
    assert (unit_of("a_fraction").excel, format(0.5, unit_of("a_fraction").python)) == ("0.0 %", "50.0%")
    assert unit_of("power_w").excel == "#,##0"
