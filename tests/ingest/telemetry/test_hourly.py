"""Hours of telemetry against sums by hand, by a plain loop, and by the coverage report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import SchemaError
from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Samples
from gpuplanner.ingest.dataset_folder import scan_samples
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.coverage import summarise_samples
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import (
    HOURLY_INPUT_COLUMNS,
    aggregate_hourly,
    sum_gpu_energy,
)
from tests.examples import examples

START = datetime(2026, 1, 31, 22, tzinfo=UTC)


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = {"time": START, "node": "n1", "gpu": 0, "instance": None, "activity_source": "none"}
    return conform(pl.DataFrame([columns | row for row in rows], infer_schema_length=None), Samples, source="test")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_step_across_the_hour_is_cut_where_the_hour_ends():
    """From 0 W at 22:45 to 360 W at 23:15: 180 W at 23:00, so 90 W and 270 W for a quarter of an hour each.

    The last reading holds for a step of half an hour at 360 W.
    """
    rows = [{"time": at(2700), "power_w": 0.0, "job_id": "a"}, {"time": at(4500), "power_w": 360.0, "job_id": "b"}]
    got = aggregate_hourly(table(rows)).select("hour", "job_id", "samples", pl.col("energy_kwh").round(9), "covered")
    assert got.rows() == [
        (at(0), "a", 1, 0.0225, 0.25),
        (at(3600), "a", 0, 0.0675, 0.25),
        (at(3600), "b", 1, 0.18, 0.5),
    ]


def test_missing_is_neither_zero_nor_covered():
    rows = [
        {"time": at(s), "power_w": power, "sm_activity": activity, "memory_used_gib": memory}
        for s, power, activity, memory in (
            (0, 100.0, None, None), (60, None, 0.5, 2.0), (120, 100.0, 0.7, 8.0), (180, 100.0, None, 4.0),
            (3000, 100.0, None, None),
        )
    ]  # fmt: skip
    (row,) = aggregate_hourly(table(rows)).to_dicts()
    assert row["samples"] == 5
    assert row["sm_activity"] == pytest.approx(0.6)
    assert row["tensor_activity"] is None
    assert row["memory_peak_gib"] == 8
    # The one step of which both ends were read, and a step each before the gap and at the end.
    assert row["energy_kwh"] == pytest.approx(100 * 180 / 3.6e6)
    assert row["covered"] == 300 / 3600  # the step of 47 minutes is a gap
    assert aggregate_hourly(table(rows), gap_s=3000.0)["covered"].to_list() == [3060 / 3600]


STEPS = st.lists(st.sampled_from([15.0, 15.5, 30.0, 45.0, 900.0, 4000.0, 90_000.0]), min_size=0, max_size=25)
DEVICES = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.floats(0, 9000), STEPS), min_size=1, max_size=3)


@settings(max_examples=examples(40), deadline=None)
@given(devices=DEVICES, seed=st.integers(0, 99))
def test_the_same_as_a_plain_loop(
    devices: list[tuple[int | None, float, list[float]]],
    seed: int,
    usual_steps: Callable[[list[datetime]], list[float]],
):
    """Any order of the rows, steps over hours, days and months."""
    rng = np.random.default_rng(seed)
    rows, energy, covered = [], defaultdict(float), defaultdict(float)
    for gpu, (instance, begin, steps) in enumerate(devices):
        seconds = np.round(np.cumsum([begin, *steps]), 3)
        watts = rng.integers(50, 700, len(seconds)).astype(float)
        rows += [
            {"time": at(float(s)), "gpu": gpu, "instance": instance, "power_w": float(w)}
            for s, w in zip(seconds, watts, strict=True)
        ]
        usual = usual_steps([at(float(s)) for s in seconds])
        for n, a in enumerate(seconds):
            b = seconds[n + 1] if n + 1 < len(seconds) else math.inf
            ends = watts[n : n + 2]
            if b - a > 60.0:  # the reading holds for a usual step, at its own power
                b, ends = a + min(usual[n], 60.0), [watts[n], watts[n]]
            cuts = [a, b] if a // 3600 == b // 3600 or b % 3600 == 0 else [a, b // 3600 * 3600, b]
            power = np.interp(cuts, [a, b], ends)
            for low, high, p, q in zip(cuts[:-1], cuts[1:], power[:-1], power[1:], strict=True):
                energy[gpu, low // 3600] += (p + q) / 2 * (high - low)
                covered[gpu, low // 3600] += high - low
    samples = table(rows)[rng.permutation(len(rows))]
    got = aggregate_hourly(samples.lazy(), gap_s=60.0)
    assert got.filter(pl.col("instance").is_not_null())["energy_kwh"].is_null().all()  # energy is the board's
    sums = got.group_by("gpu", "hour").agg(pl.col("energy_kwh", "covered").sum())
    for gpu, hour, kwh, share in sums.iter_rows():
        key = gpu, (hour - START).total_seconds() // 3600
        assert (kwh or 0.0) * 3.6e6 == pytest.approx(energy.pop(key, 0.0), rel=1e-9, abs=1e-6)
        assert (share or 0.0) * 3600 == pytest.approx(covered.pop(key, 0.0), abs=1e-6)
    assert not {key: value for key, value in energy.items() if value}
    assert got["samples"].sum() == len(rows)


def test_covered_time_is_that_of_the_coverage_report(
    file: Callable[..., Path], good_text: Callable[[str], str], tmp_path: Path
):
    """Five nodes with jitter and holes, read through the store: the GPU-hours of both accounts agree."""
    rng = np.random.default_rng(1)
    rows = []
    for node in range(5):
        seconds = np.cumsum(rng.uniform(25, 35, 700)) + np.where(np.arange(700) > 350, 2000.0, 0.0)
        rows += [{"time": at(float(s)), "node": f"n{node}", "power_w": 300.0} for s in np.round(seconds, 1)]
    samples = table(rows).sort("time", "node")
    telemetry = read("node-csv", file(good_text("node-csv")))
    folder = write_dataset(telemetry.with_tables(samples=samples), tmp_path / "out")
    hours = aggregate_hourly(scan_samples(folder))
    assert hours["covered"].sum() == pytest.approx(summarise_samples(samples).observed_gpu_hours(), rel=1e-12)
    assert hours["energy_kwh"].sum() == pytest.approx(0.3 * summarise_samples(samples).observed_gpu_hours(), rel=1e-12)


@pytest.mark.parametrize(
    "absent", [["energy_counter_j"], sorted(set(HOURLY_INPUT_COLUMNS) - {"time", "node", "gpu", "power_w"})]
)
def test_what_was_not_measured_may_be_absent(absent: list[str], tmp_path: Path):
    """An older file without the later counters, and a table of nothing but power: as with columns of nulls."""
    rows = [{"time": at(60.0 * minute), "power_w": 300.0 + minute} for minute in range(90)]
    whole = table(rows)
    part = whole.drop(absent).with_columns(pl.col("gpu").cast(pl.Int64))
    part.write_parquet(tmp_path / "older.parquet")
    for older in (part, pl.scan_parquet(tmp_path / "older.parquet")):
        assert aggregate_hourly(older).equals(aggregate_hourly(whole))
    assert sum_gpu_energy(part).equals(sum_gpu_energy(whole))
    with pytest.raises(SchemaError, match=r"samples: expected columns 'node'.*Add the columns"):
        aggregate_hourly(part.drop("node"))


def test_hours_of_instances_and_of_whole_gpus_in_turn():
    """A GPU that is cut on the second day: what each day says alone, and the night between them."""
    first = [{"time": at(600.0 * n), "power_w": 100.0, "job_id": "a"} for n in range(13)]
    second = [
        {"time": at(600.0 * n), "instance": instance, "profile": "1g.10gb", "power_w": 200.0}
        for n in range(13, 40)
        for instance in (1, 2)
    ]
    got = aggregate_hourly(table(first + second))
    boards = got.filter(pl.col("instance").is_null())
    assert boards["covered"].sum() == pytest.approx(13 * 600 / 3600)
    assert boards["energy_kwh"].sum() == pytest.approx((12 * 100 + 150 + 27 * 200) * 600 / 3.6e6)
    for instance in (1, 2):
        assert got.filter(instance=instance)["covered"].sum() == pytest.approx(27 * 600 / 3600)
