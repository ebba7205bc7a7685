"""What the quality report, the limits and the coverage say of telemetry that is made to order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.coverage import coverage, summarise_samples
from gpuplanner.ingest.telemetry.metric_definitions import gpu_model_limits
from tests.examples import examples

File = Callable[..., Path]
START = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)


def log(*rows: tuple[float, int, float], model: str = "NVIDIA H100 80GB HBM3") -> str:
    """A query of nvidia-smi: seconds after the start, GPU, watts."""
    lines = [f"{START.timestamp() + at:.3f}, {gpu}, {model}, {watts}" for at, gpu, watts in rows]
    return "\n".join(["timestamp, index, name, power.draw [W]", *lines]) + "\n"


def checks(quality: pl.DataFrame) -> dict[str, tuple[str, int]]:
    """Check → severity and rows."""
    return {check: (severity, rows) for check, severity, rows, *_ in quality.iter_rows()}


def test_a_clean_log_has_no_warning(file: File):
    rows = [(60.0 * minute, gpu, 100.0) for minute in range(10) for gpu in range(2)]
    quality = read("nvidia-smi", file(log(*rows))).quality
    assert quality.filter(severity="error").is_empty()
    # nvidia-smi was not asked for the activity
    assert checks(quality.filter(severity="warning")) == {"no activity": ("warning", 20)}


def test_gaps_are_found_and_not_filled(file: File):
    minutes = [*range(10), *range(40, 50)]
    telemetry = read("nvidia-smi", file(log(*[(60.0 * minute, 0, 100.0) for minute in minutes])))
    found = telemetry.quality.filter(check="gaps between samples").row(0, named=True)
    assert (found["severity"], found["rows"]) == ("warning", 1)
    assert found["example"] == "n1 GPU 0: 1860.0 s from 2026-01-31 23:09:00 UTC, usually 60.0 s"
    assert telemetry.provenance["gpu_hours"] == pytest.approx(20 / 60)
    assert telemetry.coverage["covered"][0] == pytest.approx(20 / 50)
    assert checks(telemetry.quality)["node-days observed for less than 90%"] == ("warning", 1)


def test_coverage_is_by_node_and_day(file: File):
    paths = [
        file(log(*[(600.0 * step, gpu, 100.0) for step in range(13) for gpu in range(gpus)]), f"n{gpus}.csv")
        for gpus in (1, 2)
    ]
    table = read("nvidia-smi", paths).coverage
    assert table.select(
        "node", pl.col("day").cast(pl.String), "gpus", pl.col("observed_gpu_h", "covered").round(12)
    ).rows() == [
        ("n1", "2026-01-31", 1, 1.0, 1.0),
        ("n1", "2026-02-01", 1, round(7 / 6, 12), 1.0),
        ("n2", "2026-01-31", 2, 2.0, 1.0),
        ("n2", "2026-02-01", 2, round(14 / 6, 12), 1.0),
    ]


def test_files_that_overlap_and_repeat(file: File):
    early = log(*[(60.0 * minute, 0, 100.0) for minute in range(20)])
    late = log(*[(60.0 * minute, 0, 100.0) for minute in range(10, 30)])
    telemetry = read("nvidia-smi", [file(early, "a/n1.csv"), file(late, "b/n1.csv")])
    assert telemetry.samples.height == 30
    assert telemetry.rejects["reason"].unique().to_list() == ["the same reading again"]
    found = checks(telemetry.quality)
    assert found["duplicates: the same reading again"] == ("info", 10)
    between = log(*[(60.0 * minute + 30, 0, 100.0) for minute in range(10, 30)])
    telemetry = read("nvidia-smi", [file(early, "a/n1.csv"), file(between, "c/n1.csv")])
    assert checks(telemetry.quality)["files that overlap in time"] == ("warning", 1)


def test_a_clock_that_goes_back(file: File):
    telemetry = read("nvidia-smi", file(log((0, 0, 1), (60, 0, 2), (30, 0, 3), (90, 0, 4))))
    assert checks(telemetry.quality)["clock skew: the clock went back"] == ("warning", 1)
    assert telemetry.samples["power_w"].to_list() == [1.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("model", "watts", "gib"),
    [("NVIDIA H100 80GB HBM3", 700, 80), ("NVIDIA GeForce RTX 2080 SUPER", 1400, 288), (None, 1400, 288)],
)
def test_limits_come_from_the_catalogue(model: str | None, watts: float, gib: float):
    assert gpu_model_limits(model) == (watts, gib)


def node_log(column: str, values: list[float], text: str) -> str:
    """The node log with other values in a column, one row a second."""
    titles, row, *_ = text.splitlines()
    place = titles.split(",").index(column)
    fields = row.split(",")
    rows = []
    for number, value in enumerate(values):
        fields[0], fields[place] = str(1775016266 + number), str(value)
        rows.append(",".join(fields))
    return "\n".join([titles, *rows]) + "\n"


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("sm_active", [45.0, 0.5, 30.0], "percent where ratios were expected: 2 of 3 values"),
        ("gpu_util_pct", [0.45, 0.5, 1.0], "ratios where percent were expected: 3 of 3 values"),
        ("mem_total_mib", [80.0, 80.0], "a unit larger than the one expected: 2 of 2 values"),
    ],
)
def test_mixed_up_units_are_refused(
    file: File, good_text: Callable[[str], str], column: str, values: list[float], words: str
):
    with pytest.raises(TraceFormatError, match=words):
        read("node-csv", file(node_log(column, values, good_text("node-csv"))))


def test_a_single_impossible_share_is_a_rejected_row(file: File, good_text: Callable[[str], str]):
    values = [0.5] * 200 + [1.5]
    telemetry = read("node-csv", file(node_log("sm_active", values, good_text("node-csv"))))
    assert telemetry.rejects["row", "reason"].rows() == [(202, "sm_active: above 1")]
    assert telemetry.samples["sm_activity"].max() == 0.5


def test_whole_percentages_up_to_one_are_percentages(file: File, good_text: Callable[[str], str]):
    telemetry = read("node-csv", file(node_log("gpu_util_pct", [0, 1, 1], good_text("node-csv"))))
    assert telemetry.samples.height == 3


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * 86400), st.integers(0, 2), st.sampled_from(["n1", "n2"])), min_size=1, max_size=40
    )
)
def test_days_sum_to_what_was_observed(seen: list[tuple[int, int, str]]):
    samples = pl.DataFrame(
        {
            "time": [START + timedelta(seconds=at) for at, _, _ in seen],
            "gpu": [gpu for _, gpu, _ in seen],
            "node": [node for *_, node in seen],
        },
        schema_overrides={"time": pl.Datetime("us", "UTC")},
    )
    table = coverage(samples)
    assert table["observed_gpu_h"].sum() == pytest.approx(summarise_samples(samples).observed_gpu_hours(), abs=1e-9)
    assert table["samples"].sum() == len(seen)
    assert (table["observed_gpu_h"] <= table["expected_gpu_h"] + 1e-9).all()


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_observed_hours_by_brute_force(steps: list[int]):
    times = [START]
    for step in steps:
        times.append(times[-1] + timedelta(seconds=step))
    ordered = sorted(steps)
    half = len(ordered) // 2
    usual = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    # Before a gap, and at the end, a reading holds for one usual step.
    expected = (sum(step if step <= 2.5 * usual else usual for step in steps) + usual) / 3600
    samples = pl.DataFrame({"time": times, "node": "n1", "gpu": 0})
    assert summarise_samples(samples).observed_gpu_hours() == pytest.approx(expected)
