"""Measured energy: the counter of a board is neither lost nor made, however its instances are told apart."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplanner.cost.energy_and_carbon import measured_energy
from gpuplanner.ingest.source_registry import read

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
