"""Facts are shipped with their sources, and only those whose licence is known."""

from __future__ import annotations

import polars as pl
import pytest

from gpuplanner.core.errors import ScenarioError
from gpuplanner.hardware.catalog import FACT_TABLE_NAMES, facts
from gpuplanner.hardware.power_carbon_and_prices import find_carbon_factor


@pytest.mark.parametrize("name", FACT_TABLE_NAMES)
def test_every_row_names_its_source(name):
    assert facts(name)["source"].str.len_chars().min() > 3


def test_rows_of_unconfirmed_licence_are_not_shipped():
    prices = facts("gpu_prices")
    assert set(prices["licence"]) == {"Apache-2.0"}
    assert not set(prices["cloud"]) & {"nebius", "lambda"}
    assert "capacity_block" not in set(prices["term"])


def test_prices_per_gpu_are_those_of_the_instance_shared_out():
    prices = facts("gpu_prices").drop_nulls(["price_per_instance_hour", "gpu_count"])
    off = (prices["price_per_instance_hour"] / prices["gpu_count"] - prices["price_per_gpu_hour"]).abs()
    assert off.max() < 0.01


def test_parameters_lie_within_their_range():
    table = facts("parameters")
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()


def test_region_of_several_scopes_must_name_one():
    table = facts("carbon_intensity")
    doubled = table.group_by("region").agg(pl.col("scope").n_unique()).filter(pl.col("scope") > 1)
    for region in doubled["region"]:
        with pytest.raises(ScenarioError):
            find_carbon_factor(region)
    assert find_carbon_factor("europe-west4") == find_carbon_factor("gcp:europe-west4")
    with pytest.raises(ScenarioError, match="carbon region"):
        find_carbon_factor("atlantis")


def test_partitions_of_a_mode_have_all_of_a_board_between_them():
    modes, sheets = facts("partition_modes"), facts("gpu_specs").filter(vendor="AMD")
    both = modes.join(sheets.select("gpu_model", "memory_gb", "sm_or_cu_count"), on="gpu_model", suffix="_all")
    assert both.height == modes.height > 0
    compute, memory = both.filter(kind="compute"), both.filter(kind="memory")
    assert (compute["partitions"] * compute["compute_units"] == compute["sm_or_cu_count"]).all()
    assert (memory["partitions"] * memory["memory_gb"] == memory["memory_gb_all"]).all()
    assert both.group_by("gpu_model", "kind", "mode").len()["len"].max() == 1
