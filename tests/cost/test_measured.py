"""Measured energy: the counter of a board is neither lost nor made, however its instances are told apart."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import Jobs, Samples
from gpuplanner.cost.energy_and_carbon import FOOTPRINT_AMOUNTS, measured_energy, sum_by_state
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.telemetry_join import find_allocations, find_devices

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
JOBS = pl.DataFrame({"job_id": ["1", "2"], "tenant": ["a", "b"]})


def told(rows: list[tuple[int, str | None, str | None, float | None, float]]) -> pl.DataFrame:
    """Minute, profile, job, activity and counter [J] of one board."""
    kinds = {"minute": pl.Int64, "profile": pl.String, "job_id": pl.String, "sm_activity": pl.Float64}
    table = pl.DataFrame(rows, schema=kinds | {"energy_counter_j": pl.Float64}, orient="row")
    instance = pl.when(pl.col("profile").is_not_null()).then(pl.int_range(pl.len()).over("minute"))
    return table.select(
        pl.exclude("minute"), time=pl.lit(NOON) + pl.duration(minutes="minute"), node=pl.lit("n1"), gpu=pl.lit(0),
        instance=instance, power_w=pl.lit(300.0),
    )  # fmt: skip


STEPS = st.lists(st.floats(0, 30_000), min_size=1, max_size=8)
HELD = st.lists(st.tuples(st.sampled_from(["1", "2", None]), st.floats(0, 1) | st.none()), min_size=3, max_size=3)


@given(STEPS, HELD, st.floats(0, 200))
def test_states_and_tenants_sum_to_the_counter(steps, held, idle_w):
    counter = [sum(steps[:place]) for place in range(len(steps) + 1)]
    profiles = ("1g.10gb", "2g.20gb", "4g.40gb")
    rows = [
        (minute, profile, job, activity, joules)
        for minute, joules in enumerate(counter)
        for profile, (job, activity) in zip(profiles, held, strict=True)
    ]
    found = measured_energy(told(rows), JOBS, idle_w=idle_w)
    assert float(found["energy_kwh"].sum()) == pytest.approx(counter[-1] / 3.6e6, abs=1e-9)
    assert float(found["gpu_hours"].sum()) == pytest.approx(len(steps) / 60)


def test_idle_power_goes_by_slices_and_the_rest_by_work():
    """A minute at 370 W, 70 of them idle: job 1 on 1g does a fifth of the work that is done."""
    rows = [
        (minute, profile, job, 0.8, joules)
        for minute, joules in ((0, 0.0), (1, 370.0 * 60))
        for profile, job in (("1g.10gb", "1"), ("4g.40gb", "2"))
    ]
    found = dict(measured_energy(told(rows), JOBS, idle_w=70.0).select("tenant", "energy_kwh").iter_rows())
    assert found["a"] * 60_000 == pytest.approx(70 / 5 + 300 / 5)
    assert found["b"] * 60_000 == pytest.approx(70 * 4 / 5 + 300 * 4 / 5)


def measured_on_node(
    gpus: list[tuple[float, float]],
    jobs: list[tuple[str, float, int | None, str | None]],
    named: dict[int, str | None] | None = None,
) -> dict[tuple[str, str], tuple[float, float]]:
    """GPU-hours and kWh by tenant and state of an hour of a node.

    `gpus` holds activity and power [W] of each GPU; `jobs` tenant, GPUs, MIG instances and profile of each job; `named`
    the jobs that telemetry names, by GPU.
    """
    hour = {"start_time": NOON, "end_time": NOON + timedelta(hours=1), "submit_time": NOON, "node_list": "n1"}
    table = pl.DataFrame(
        [
            {"job_id": tenant, "tenant": tenant, "gpus": size, "instances": instances, "profile_requested": profile}
            for tenant, size, instances, profile in jobs
        ],
        infer_schema_length=None,
    ).with_columns(pl.lit(value).alias(name) for name, value in hour.items())
    table = conform(table.with_columns(attempt=1, state=pl.lit("COMPLETED")), Jobs, source="test")
    readings = pl.DataFrame(
        [
            {"time": NOON + timedelta(minutes=minute), "gpu": gpu, "sm_activity": activity, "power_w": watts}
            for minute in range(0, 60, 5)
            for gpu, (activity, watts) in enumerate(gpus)
        ]
    ).with_columns(node=pl.lit("n1"), activity_source=pl.lit("none"))
    names = pl.col("gpu").replace_strict(named or {}, default=None, return_dtype=pl.String)
    readings = readings.with_columns(job_id=names)
    readings = conform(readings, Samples, source="test")
    joined = find_allocations(find_devices(readings.lazy()), table).assign_jobs(readings.lazy()).collect()
    found = measured_energy(joined, table, idle_w=60.0).select("tenant", "state", "gpu_hours", "energy_kwh")
    return {(row[0], row[1]): (round(row[2], 6), round(row[3], 6)) for row in found.iter_rows()}


def test_jobs_that_share_a_gpu_have_its_readings_by_their_parts():
    """Two jobs with half a GPU each, then one job with a quarter of it: the rest of the GPU did no work."""
    halves = measured_on_node([(0.4, 200.0)], [("a", 0.5, None, None), ("b", 0.5, None, None)])
    assert halves == {("a", "busy"): (0.5, 0.1), ("b", "busy"): (0.5, 0.1)}
    quarter = measured_on_node([(0.4, 200.0)], [("a", 0.25, None, None)])
    assert quarter == {("a", "busy"): (0.25, 0.155), ("-", "idle"): (0.75, 0.045)}


def test_jobs_on_a_part_of_the_node_have_its_busiest_gpus():
    found = measured_on_node(
        [(0.0, 60.0), (0.9, 600.0), (0.3, 300.0), (0.0, 70.0)], [("a", 1.0, None, None), ("b", 2.0, None, None)]
    )
    hours = {key: value[0] for key, value in found.items()}
    assert hours == {
        ("a", "busy"): 0.666667, ("b", "busy"): 1.333333, ("a", "idle"): 0.333333, ("b", "idle"): 0.666667,
        ("-", "idle"): 1.0,
    }  # fmt: skip
    assert found["a", "busy"][1] == pytest.approx(0.3, abs=1e-5)
    assert found["b", "busy"][1] == pytest.approx(0.6, abs=1e-5)
    assert sum(value[1] for value in found.values()) == pytest.approx(1.03, abs=1e-5)


def test_a_job_that_telemetry_names_has_no_part_of_the_other_gpus():
    found = measured_on_node(
        [(0.1, 100.0), (0.0, 60.0), (0.9, 600.0)], [("a", 1.0, None, None), ("b", 1.0, None, None)], {0: "a"}
    )
    assert {key: value[0] for key, value in found.items()} == {
        ("a", "busy"): 1.0, ("b", "busy"): 1.0, ("-", "idle"): 1.0,
    }  # fmt: skip
    assert found["a", "busy"][1] == pytest.approx(0.1)


def test_readings_of_full_gpus_count_once_for_jobs_on_their_instances():
    """Two of 4 x 3g.20gb in use on two GPUs: 6 of 14 slices, busy as hours without telemetry are in the ledger."""
    found = measured_on_node([(0.4, 220.0), (0.0, 60.0)], [(name, 3 / 7, 1, "3g.20gb") for name in "ab"])
    assert {key: value[0] for key, value in found.items()} == {
        ("a", "busy"): 0.428571, ("b", "busy"): 0.428571, ("-", "idle"): 1.142857,
    }  # fmt: skip
    assert sum(value[1] for value in found.values()) == pytest.approx(0.28, abs=1e-5)


def test_the_full_gpu_beside_its_instances_has_no_part():
    rows = [
        (minute, profile, job, 0.8, joules)
        for minute, joules in ((0, 0.0), (1, 370.0 * 60))
        for profile, job in (("1g.10gb", "1"), ("4g.40gb", "2"), (None, None))
    ]
    found = measured_energy(told(rows).with_columns(pl.col("instance").replace(2, None)), JOBS, idle_w=70.0)
    assert found["tenant"].to_list() == ["a", "b"]


def test_measured_hours_of_a_state_are_at_most_its_hours():
    amounts = {f"{name}{side}": 1.0 for name in FOOTPRINT_AMOUNTS for side in ("", "_low", "_high")}
    rows = pl.DataFrame({"tenant": ["a", "a"], "gpu_model": "x", "state": ["busy", "idle"], "gpu_hours": [2.0, 5.0]})
    measured = pl.DataFrame(
        {"tenant": ["a", "a", "-"], "gpu_model": "x", "state": ["busy", "idle", "idle"], "gpu_hours": [3.0, 1.0, 9.0]}
    ).with_columns(watts=pl.lit(100.0), energy_kwh=pl.col("gpu_hours") / 10)
    found = sum_by_state(rows.with_columns(pl.lit(1.0).alias(name) for name in amounts), measured)
    counted = found.sort("state").select("state", "counted_gpu_hours", "counted_kwh")
    assert sorted(counted.cast({"state": pl.String}).rows()) == [("busy", 2.0, 0.2), ("idle", 1.0, 0.1)]


@pytest.mark.data
@pytest.mark.parametrize("run", ["b1", "t2", "t6", "t13_node0"])
def test_states_sum_to_the_counters_of_real_boards(public_data: Path, run: str):
    """Eight H100 in a run of five minutes: the last reading of each counter less the first [mJ]."""
    path = public_data / "h100_runs" / f"{run}_telemetry.csv.gz"
    boards = pl.read_csv(gzip.decompress(path.read_bytes())).sort("timestamp").partition_by("gpu")
    counted_j = (
        sum(gpu_model["energy_mj"].drop_nulls()[-1] - gpu_model["energy_mj"].drop_nulls()[0] for gpu_model in boards)
        / 1000
    )
    samples = read("node-csv", path).tables["samples"].with_columns(job_id=pl.lit("1"))
    found = measured_energy(samples, JOBS, idle_w=70.0)
    assert float(found["energy_kwh"].sum()) == pytest.approx(counted_j / 3.6e6, abs=1e-9)
    watts = dict(found.select("state", "watts").iter_rows())
    assert set(watts) == {"b1": {"idle"}, "t6": {"busy", "idle"}}.get(run, {"busy"})
    assert run != "t6" or watts["busy"] > watts["idle"] > 100
