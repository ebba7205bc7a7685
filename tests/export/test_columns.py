"""Units that column names end in."""

from __future__ import annotations

import pytest

from gpuplanner.export.headings import heading, unit_of


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("wait_s", "s"),
        ("gpu_hours", "GPU h"),
        ("saved_gpu_hours_high", "GPU h"),
        ("price_usd_per_gpu_hour", "USD/GPU h"),
        ("power_w", "W"),
        ("lost_gpu_s", "GPU s"),
        ("nvlink_gb_s", "GB/s"),
        ("idle_fraction", "%"),
        ("x_CarbonKg", "kg"),
        ("saved_cost", ""),
    ],
)
def test_units_are_read_from_the_end_of_the_name(name, symbol):
    assert unit_of(name).symbol == symbol


@pytest.mark.parametrize("name", ["tenant", "s", "h", "jobs", "windows", "news", "_"])
def test_other_names_have_none(name):
    assert unit_of(name) is None


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("gpu", "GPU"),
        ("gpus_per_node", "gpus per node"),
        ("cost_usd", "cost [USD]"),
        ("wait_s_low", "wait low [s]"),
        ("x_EnergyKwh", "x_EnergyKwh"),
        ("BilledCost", "BilledCost"),
        ("queue_mean", "queue mean"),
        ("gpu_hours", "GPU-hours"),
        ("share", "share [%]"),
        ("cost", "cost"),
        ("lost_gpu_s", "lost [GPU s]"),
        ("saved_cost", "saved cost"),
    ],
)
def test_headings_are_words_with_the_unit_in_brackets(name, shown):
    assert heading(name) == shown


def test_number_formats_agree_between_page_and_workbook():
    assert (unit_of("a_usd").excel, format(1234.5, unit_of("a_usd").python)) == ("#,##0.00", "1,234.50")
    assert (unit_of("a_fraction").excel, format(0.5, unit_of("a_fraction").python)) == ("0.0%", "50.0%")
    assert unit_of("power_w").excel == "#,##0"
