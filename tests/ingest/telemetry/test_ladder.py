"""The rungs of the metric ladder, and what each can and cannot say."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from gpuplanner.ingest.telemetry.metric_definitions import (
    ACTIVITY_SOURCES,
    DIMENSION_BY_QUANTITY,
    SAMPLE_KEY_COLUMNS,
    choose_activity_source,
    find_device_counters,
    keep_best_counter,
    replace_blank_values,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEVICE = {"time": NOON, "node": "n1", "gpu": 0, "instance": None, "profile": None, "job_id": None}


def samples(*rows: dict[str, Any]) -> pl.DataFrame:
    """Samples of rows that are GPU 0, GPU 1, ... of one node unless they say otherwise."""
    numbered = [
        DEVICE | {"gpu": number} | dict.fromkeys(DIMENSION_BY_QUANTITY) | row for number, row in enumerate(rows)
    ]
    ordered = choose_activity_source(
        pl.DataFrame(numbered, infer_schema_length=None).sort(SAMPLE_KEY_COLUMNS, maintain_order=True)
    )
    return keep_best_counter(ordered, find_device_counters(ordered))


def test_every_combination_stands_on_the_best_rung_it_has():
    counters = ("sm_active", "tensor_active", "engine_active", "gpu_util")
    for present in itertools.product([False, True], repeat=len(counters)):
        has = dict(zip(counters, present, strict=True))
        values = {"sm_active": 0.4, "tensor_active": 0.1, "engine_active": 0.7, "gpu_util": 0.99}
        (sample,) = samples({name: values[name] for name in counters if has[name]}).to_dicts()
        if has["sm_active"]:
            expected = ("profiling", 0.4)
        elif has["engine_active"]:
            expected = ("engine", 0.7)
        elif has["tensor_active"]:
            expected = ("profiling", None)
        elif has["gpu_util"]:
            expected = ("legacy", 0.99)
        else:
            expected = ("none", None)
        assert (sample["activity_source"], sample["sm_activity"]) == expected
        assert sample["activity_source"] in ACTIVITY_SOURCES


@pytest.mark.parametrize("how", ["instances", "mode"])
def test_the_legacy_counter_of_a_cut_gpu_is_not_believed(how: str):
    whole = {"gpu": 0, "gpu_util": 0.0}
    if how == "instances":
        table = samples(whole, {"gpu": 0, "instance": 7, "profile": "1g.10gb", "engine_active": 0.9})
    else:
        table = samples(whole | {"mig_enabled": True})
    assert table["activity_source"][0] == "none"
    assert table["sm_activity"][0] is None


def test_a_momentary_failure_of_the_better_counter_puts_no_spike():
    later = NOON.replace(minute=1)
    table = samples(
        {"gpu": 0, "sm_active": 0.2, "engine_active": 0.9, "gpu_util": 0.99},
        {"gpu": 0, "time": later, "engine_active": 0.9, "gpu_util": 0.99},
    )
    assert table["sm_activity"].to_list() == [0.2, None]
    assert table["activity_source"].to_list() == ["profiling", "none"]


def test_traffic_needs_both_directions():
    table = samples({"pcie_tx": 1.0, "pcie_rx": 2.0}, {"pcie_tx": 1.0}, {"nvlink_tx": 3.0, "nvlink_rx": 0.0})
    assert table["pcie_gb_s"].to_list() == [3.0, None, None]
    assert table["nvlink_gb_s"].to_list() == [None, None, 3.0]


BLANKS = {
    "INT64_BLANK and kin": [float(2**63 - 16 + kind) for kind in range(4)],
    "DCGM_FP64_BLANK and kin": [140737488355328.0 + kind for kind in range(4)],
    "DCGM_INT32_BLANK and kin": [2147483632.0 + kind for kind in range(4)],
    "NaN": [float("nan")],
}
"""dcgm_structs.h: BLANK, NOT_FOUND, NOT_SUPPORTED, NOT_PERMISSIONED."""


@pytest.mark.parametrize("name", BLANKS)
def test_the_blanks_of_dcgm_are_missing(name: str):
    values = pl.Series(BLANKS[name])
    assert pl.select(replace_blank_values(pl.lit(values), wide=False)).to_series().null_count() == len(values)


def test_two_gigabytes_a_second_are_no_blank():
    assert pl.select(replace_blank_values(pl.lit(2147483640.0), wide=True)).item() == 2147483640.0
