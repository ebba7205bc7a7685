"""Energy of boards: by the counter, through restarts, gaps and MIG, against loops by hand and public runs."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.schema_checks import conform
from gpuplanner.core.schemas import OPTIONAL_SAMPLE_COLUMNS, Samples
from gpuplanner.ingest.dataset_folder import open_dataset, scan_samples
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.quality_report import check_text
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.gpu_energy_and_hourly_sums import (
    ENERGY_FROM_BOTH,
    ENERGY_FROM_COUNTER,
    ENERGY_FROM_POWER,
    J_PER_KWH,
    aggregate_hourly,
    sum_gpu_energy,
)
from gpuplanner.ingest.telemetry.telemetry_quality import ENERGY_MISMATCH_CHECK
from tests.examples import examples

File = Callable[..., Path]
Usual = Callable[[list[datetime]], list[float]]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
GAP_S = 60.0


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = {"time": NOON, "node": "n1", "gpu": 0, "instance": None, "activity_source": "none"}
    rows = [columns | row for row in rows]
    return conform(pl.DataFrame(rows, infer_schema_length=None), Samples, source="test")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


STEP = st.tuples(
    st.sampled_from([15.0, 30.0, 45.5, 900.0, 4000.0, 90_000.0]),  # seconds, of which more than 60 are a gap
    st.integers(50, 700),  # watts that are drawn
    st.sampled_from(["both", "both", "both", "no counter", "no power", "restart"]),
)


@pytest.mark.long
@settings(max_examples=examples(60))
@given(steps=st.lists(STEP, min_size=1, max_size=30), start=st.integers(0, 90_000))
def test_the_same_as_a_plain_loop(steps: list[tuple[float, int, str]], start: int, usual_steps: Usual):
    """A board that draws evenly within each step: what the driver counted, or the power between two samples.

    Before a gap a reading holds for one usual step, and at the end too where there is no counter.
    """
    now, counter, rows = float(start), 1e6, []
    for seconds, watts, what in [(0.0, 0, "both"), *steps, (15.0, 100, "both")]:
        now, counter = now + seconds, counter + watts * seconds
        if what == "restart":
            counter = watts * seconds / 4  # loaded anew when three quarters of the step had gone
        told = {"power_w": float(watts), "energy_counter_j": counter}
        told |= {"no counter": {"energy_counter_j": None}, "no power": {"power_w": None}}.get(what, {})
        rows.append({"time": at(now), "job_id": "a", **told})
    by_day = defaultdict(list)
    for row in rows:
        by_day[row["time"].date()].append(row)
    kept = []
    for day in by_day.values():  # the counter counts on through readings that lack it
        with_counter = [n for n, row in enumerate(day) if row["energy_counter_j"] is not None]
        first, last = (with_counter[0], with_counter[-1]) if with_counter else (len(day), -1)
        kept += [row for n, row in enumerate(day) if not first < n < last or row["energy_counter_j"] is not None]
    energy = gap = 0.0
    usual = usual_steps([row["time"] for row in kept])
    for (one, two), hold_s in zip(pairwise(kept), usual, strict=False):
        step_s = (two["time"] - one["time"]).total_seconds()
        hold_s = min(hold_s, GAP_S)
        counters, powers = ([row[name] for row in (one, two)] for name in ("energy_counter_j", "power_w"))
        found = None
        if None not in counters and counters[1] >= counters[0]:
            found = counters[1] - counters[0]
        elif None not in powers and step_s <= GAP_S:
            found = sum(powers) / 2 * step_s
        elif None not in counters:
            found = counters[1]
        if step_s <= GAP_S:
            energy += found or 0.0
            continue
        counted = None not in counters and counters[1] >= counters[0]
        within = (found or 0.0) * hold_s / step_s if counted else 0.0
        gap += (found or 0.0) - within
        energy += within if counted else (one["power_w"] or 0.0) * hold_s
    if kept[-1]["energy_counter_j"] is None:
        energy += (kept[-1]["power_w"] or 0.0) * min(usual[-1], GAP_S)
    hours = aggregate_hourly(table(rows), gap_s=GAP_S)
    assert hours["energy_kwh"].sum() * J_PER_KWH == pytest.approx(energy, rel=1e-9, abs=1e-6)
    assert hours["gap_kwh"].sum() * J_PER_KWH == pytest.approx(gap, rel=1e-9, abs=1e-6)
    assert hours["job_id"].to_list() == ["a"] * hours.height


def test_hours_add_up_to_what_the_board_counted():
    """Through hours, midnight, a gap of a day and a half and blanks: to the joule what the driver counted."""
    seconds = [*range(0, 7200, 30), *range(140_000, 150_000, 30)]
    rows = [{"time": at(s), "energy_counter_j": 5e8 + 400.0 * s + 10.0 * (s % 7)} for s in seconds]
    for row in rows[50:60]:
        row["energy_counter_j"] = None
    hours = aggregate_hourly(table(rows))
    counted = rows[-1]["energy_counter_j"] - rows[0]["energy_counter_j"]
    whole = (hours["energy_kwh"].sum() + hours["gap_kwh"].sum()) * J_PER_KWH
    assert whole == pytest.approx(counted, rel=1e-12)
    assert sum_gpu_energy(table(rows))["energy_kwh"].item() * J_PER_KWH == pytest.approx(counted, rel=1e-12)
    assert hours["energy_source"].drop_nulls().unique().to_list() == [ENERGY_FROM_COUNTER]
    full = hours.filter(pl.col("gap_kwh") == pl.col("gap_kwh").max())
    assert full["gap_kwh"][0] == pytest.approx(0.4, rel=1e-3)  # 400 W over an hour that nobody saw
    assert full["energy_kwh"].is_null().all()


def test_a_gap_belongs_to_a_job_only_if_it_still_runs_after_it():
    rows = [
        {"time": at(s), "energy_counter_j": 100.0 * s, "job_id": job}
        for s, job in ((0, "a"), (30, "a"), (1800, "a"), (1830, "a"), (3500, "b"), (3530, "b"))
    ]
    hours = aggregate_hourly(table(rows), gap_s=60.0)
    joules = {job: round(kwh * J_PER_KWH, 6) for job, kwh in hours["job_id", "gap_kwh"].drop_nulls("gap_kwh").rows()}
    assert joules == {"a": 174_000.0, None: 164_000.0}
    assert hours.filter(job_id="a")["energy_kwh"].item() * J_PER_KWH == pytest.approx(12_000)


def test_four_instances_that_repeat_the_counter_draw_it_once():
    """The counters of one A30 as four instances told them within a round (NVIDIA/dcgm-exporter, issue 317)."""
    told = {3: 126272101025, 4: 126272101025, 5: 126272106318, 6: 126272101025}
    rows = [
        {"time": at(30.0 * turn), "instance": instance, "profile": "1g.6gb", "energy_counter_j": mj / 1e3 + 4950 * turn}
        for instance, mj in told.items()
        for turn in range(3)
    ]
    hours = aggregate_hourly(table(rows))
    whole = hours.filter(pl.col("instance").is_null())
    assert whole.select("samples", "energy_source").row(0) == (0, ENERGY_FROM_COUNTER)
    assert hours["energy_kwh"].sum() * J_PER_KWH == pytest.approx(2 * 4950)  # 165 W, the limit of an A30
    assert hours.filter(pl.col("instance").is_not_null())["covered"].to_list() == [90 / 3600] * 4


@pytest.mark.parametrize("glitch", [0.0, 1e14])
def test_a_reading_that_no_board_can_have_drawn_is_not_believed(glitch: float):
    """One reading off: the counter since the driver was loaded must not be taken for half a minute's energy."""
    rows = [{"time": at(30.0 * n), "power_w": 200.0, "energy_counter_j": 3e8 + 6000.0 * n} for n in range(11)]
    rows[5]["energy_counter_j"] = glitch
    hours = aggregate_hourly(table(rows))
    assert hours["energy_kwh"].item() * J_PER_KWH == pytest.approx(200 * 300)
    assert hours["energy_source"].to_list() == [ENERGY_FROM_BOTH]
    assert sum_gpu_energy(table(rows))["restarts"].to_list() == [2]


def test_without_a_counter_energy_is_that_of_the_power():
    rows = [{"time": at(60.0 * n), "power_w": 300.0} for n in range(11)]
    hours = aggregate_hourly(table(rows))
    assert hours.select("energy_kwh", "energy_source", "gap_kwh").row(0) == (
        pytest.approx(0.055),
        ENERGY_FROM_POWER,
        None,
    )


PAGE = """\
DCGM_FI_PROF_SM_OCCUPANCY{{gpu="0",hostname="n1"}} 0.375 {at}
DCGM_FI_DEV_POWER_USAGE{{gpu="0",hostname="n1"}} 400 {at}
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",hostname="n1"}} {mj} {at}
"""


def test_the_counters_of_dcgm_are_read_and_compared(file: File):
    """The 32-bit number by which DCGM says that there is no value is an energy like any other: 2.1 MJ."""
    blank = 0x7FFFFFF0
    told = [(0, blank), (60, blank + 30_000_000), (120, 1_000_000)]
    text = "".join(PAGE.format(at=1769860800000 + 1000 * s, mj=mj) for s, mj in told)
    telemetry = read("dcgm-exporter", file(text))
    assert telemetry.samples["sm_occupancy"].to_list() == [0.375] * 3
    assert telemetry.samples["energy_counter_j"].to_list() == [2147483.632, 2177483.632, 1000.0]
    found = {row["check"]: row for row in telemetry.quality.to_dicts()}
    assert found[ENERGY_MISMATCH_CHECK]["severity"] == "warning"  # 500 W on average, where 400 W were read
    assert "+25.00 %" in found[ENERGY_MISMATCH_CHECK]["effect"]
    assert found[check_text("samples: counter restarts")]["rows"] == 1
    assert not [note for note in telemetry.provenance["notes"] if "ENERGY" in note or "OCCUPANCY" in note]


def test_errors_of_the_driver_are_told_by_board(file: File):
    """79, fallen off the bus, on one board in two samples; 0 is no error, and a blank is not known."""
    told = [(0, 0, 79), (0, 60, 79), (1, 0, 0), (1, 60, 0x7FFFFFF0), (2, 0, 13.5)]
    lines = [
        f'DCGM_FI_DEV_XID_ERRORS{{gpu="{gpu}",hostname="n1"}} {xid} {1769860800000 + 1000 * s}' for gpu, s, xid in told
    ]
    telemetry = read("dcgm-exporter", file("\n".join([*lines, ""])))
    assert telemetry.samples["gpu", "xid"].rows() == [(0, 79), (1, 0), (0, 79), (1, None)]
    assert telemetry.rejects["reason"].to_list() == ["xid: not the number of an error"]
    found = telemetry.quality.filter(check=check_text("samples: XID")).row(0, named=True)
    assert (found["severity"], found["rows"]) == ("warning", 1)
    assert found["example"] == "XID 79: n1 GPU 0 at 2026-01-31 12:00:00 UTC"


def test_a_folder_without_the_later_counters_opens(file: File, tmp_path: Path):
    """Months of an older folder have no such columns, and neither have those in which nobody read them."""
    texts = [PAGE.format(at=1769900000000 + 86400000 * day, mj=1) for day in (0, 1)]
    telemetry = read("dcgm-exporter", file(texts[0].splitlines()[1] + "\n" + texts[1]))
    folder = write_dataset(telemetry, tmp_path / "out")
    older, newer = (pl.read_parquet(path) for path in sorted(folder.glob("samples/*/dcgm-exporter.parquet")))
    assert set(OPTIONAL_SAMPLE_COLUMNS) & {*older.columns} == set()
    assert [name for name in OPTIONAL_SAMPLE_COLUMNS if name in newer.columns] == ["sm_occupancy", "energy_counter_j"]
    assert open_dataset(folder).samples.equals(telemetry.samples)
    assert scan_samples(folder).select(OPTIONAL_SAMPLE_COLUMNS).collect().rows() == [
        (None, None, None),
        (0.375, 0.001, None),
    ]


COUNTED_J = {"b1": 315844.321, "t2": 1319721.734, "t6": 484306.009, "t13_node0": 1016308.599}
"""Last less first ``energy_mj`` of each GPU of the public runs, summed by hand."""


@pytest.mark.data
@pytest.mark.parametrize("run", COUNTED_J)
def test_public_runs(public_data: Path, run: str):
    path = public_data / "h100_runs" / f"{run}_telemetry.csv.gz"
    with gzip.open(path, "rt", newline="") as stream:
        rows = list(csv.DictReader(stream))
    ends: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        ends[row["gpu"]].append(float(row["energy_mj"]) / 1e3)
    telemetry = read("node-csv", path)
    boards = sum_gpu_energy(telemetry.samples)
    assert boards["energy_kwh"].to_list() == pytest.approx(
        [(ends[str(gpu)][-1] - ends[str(gpu)][0]) / J_PER_KWH for gpu in range(8)], rel=1e-9
    )
    hours = aggregate_hourly(telemetry.samples)
    assert (hours["energy_kwh"].sum() + hours["gap_kwh"].sum()) * J_PER_KWH == pytest.approx(COUNTED_J[run], rel=1e-9)
    assert hours["energy_source"].drop_nulls().unique().to_list() == [ENERGY_FROM_COUNTER]
    off = abs(boards["counted_kwh"].sum() / boards["integrated_kwh"].sum() - 1)
    assert off < {"b1": 0.01, "t2": 2e-4, "t6": 0.005, "t13_node0": 5e-4}[run]
    found = {row["check"]: row["severity"] for row in telemetry.quality.to_dicts()}
    assert found[ENERGY_MISMATCH_CHECK] == "info"


@pytest.mark.data
def test_the_counter_on_a_public_page(public_data: Path):
    path = public_data / "dcgm" / "dcgm_exporter_a100_mig.prom"
    samples = read("auto", path, origin="2026-01-01T00:00:00Z").samples
    assert samples["energy_counter_j"].to_list() == [319159.391, None]
