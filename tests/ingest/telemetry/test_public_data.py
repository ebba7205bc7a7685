"""Every public telemetry file, by one call: rows in = kept + rejected, and figures counted apart from us."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.source_registry import read

pytestmark = pytest.mark.data

ORIGIN = {"origin": "2026-01-01T00:00:00Z"}
LOOP = ("power.draw", "temperature.gpu", "temperature.memory", "utilization.gpu", "utilization.memory")


def counted(telemetry: Dataset, rows: int) -> Dataset:
    """The telemetry, if no row of so many is lost, and none was rejected."""
    facts = telemetry.provenance
    assert (facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == (rows, rows, 0)
    assert telemetry.rejects.is_empty()
    return telemetry


def table(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a packed CSV, read by the standard library."""
    with gzip.open(path, "rt", newline="") as stream:
        yield from csv.DictReader(stream)


RUNS = {"b1": 2648, "t2": 2496, "t6": 2736, "t13_node0": 2568}


@pytest.mark.parametrize("run", RUNS)
def test_h100_runs(public_data: Path, run: str):
    path = public_data / "h100_runs" / f"{run}_telemetry.csv.gz"
    rows = list(table(path))
    telemetry = counted(read("auto", path), len(rows))
    assert len(rows) == RUNS[run]
    samples = telemetry.samples
    assert samples["activity_source"].is_in(["profiling", "none"]).all()
    for column, name, divisor in (
        ("sm_active", "sm_activity", 1),
        ("tensor_active", "tensor_activity", 1),
        ("mem_used_mib", "memory_used_gib", 1024),
        ("power_w", "power_w", 1),
    ):
        given = [float(row[column]) / divisor for row in rows if row[column]]
        assert samples[name].drop_nulls().mean() == pytest.approx(fmean(given), rel=1e-12)
        assert samples[name].null_count() == len(rows) - len(given)
    # Eight GPUs seen from the first row until the last one, read every second, holds no more; but for gaps.
    seconds = float(rows[-1]["timestamp"]) - float(rows[0]["timestamp"]) + 1
    gaps = telemetry.coverage["expected_gpu_h"].sum() - telemetry.provenance["gpu_hours"]
    assert telemetry.coverage["expected_gpu_h"].sum() == pytest.approx(8 * seconds / 3600, rel=1e-3)
    assert 0 <= gaps <= 0.02


def test_busy_by_the_legacy_counter_and_not_by_the_others(public_data: Path):
    path = public_data / "h100_runs" / "t13_node0_telemetry.csv.gz"
    steady = [row for row in table(path) if row["phase"] == "steady"]
    assert fmean(float(row["gpu_util_pct"]) for row in steady) == pytest.approx(99, abs=1)
    begin, end = (float(steady[place]["timestamp"]) for place in (0, -1))
    samples = read("node-csv", path).samples.filter((pl.col("time").dt.epoch("us") / 1e6).is_between(begin, end))
    assert samples["sm_activity"].mean() == pytest.approx(0.45, abs=0.005)
    assert samples["tensor_activity"].mean() == pytest.approx(0.11, abs=0.005)
    assert "legacy" not in samples["activity_source"]


def test_an_exporter_page_with_mig(public_data: Path):
    path = public_data / "dcgm" / "dcgm_exporter_a100_mig.prom"
    telemetry = counted(read("auto", path, **ORIGIN), 21)
    whole, instance = telemetry.samples.to_dicts()
    assert (whole["node"], whole["instance"], whole["power_w"]) == ("ub20-a100-k8s", None, 409.692)
    assert (whole["sm_activity"], whole["tensor_activity"]) == (0.99563, 0.92926)
    assert whole["memory_used_gib"] == 4845 / 1024
    assert whole["pcie_gb_s"] == pytest.approx((33011804 + 97863601) / 1e9)
    assert (instance["instance"], instance["profile"], instance["power_w"]) == (13, "1g.5gb", None)
    assert (instance["sm_activity"], instance["dram_activity"]) == (0.995687, 0.800339)
    assert telemetry.samples["activity_source"].to_list() == ["engine", "engine"]


def test_an_exporter_page_of_blanks_and_clocks(public_data: Path):
    path = public_data / "dcgm" / "dcgm_exporter_readme.prom"
    telemetry = counted(read("auto", path, **ORIGIN), 3)
    (sample,) = telemetry.samples.to_dicts()
    assert (sample["node"], sample["gpu"], sample["activity_source"]) == ("dcgm_exporter_readme", 0, "none")
    assert all(sample[name] is None for name in ("sm_activity", "memory_used_gib", "power_w"))
    assert "DCGM_FI_DEV_MEMORY_TEMP" in telemetry.provenance["notes"][0]


def test_the_dcgm_csv(public_data: Path):
    path = public_data / "dcgm" / "dcgm_metrics_20250718_134233.csv.gz"
    rows = list(table(path))
    telemetry = counted(read("auto", path), 1270)
    samples = telemetry.samples
    assert samples.height == len({(row["Hostname"], row["gpu_id"]) for row in rows}) == 127
    sizes = samples.group_by("node").len()["len"]
    assert sorted(sizes.unique()) == [7, 8]
    for metric, column, divisor in (
        ("DCGM_FI_DEV_GPU_UTIL", "sm_activity", 100),
        ("DCGM_FI_DEV_FB_USED", "memory_used_gib", 1024),
        ("DCGM_FI_DEV_POWER_USAGE", "power_w", 1),
    ):
        given = sorted(float(row["value"]) / divisor for row in rows if row["metric_name"] == metric)
        assert samples[column].sort().to_list() == given
    assert samples["activity_source"].unique().to_list() == ["legacy"]


def test_a_saved_answer_of_prometheus(public_data: Path):
    path = public_data / "dcgm" / "query_range_t2.json.gz"
    with gzip.open(path, "rt") as stream:
        result: list[Any] = json.load(stream)["data"]["result"]
    telemetry = counted(read("auto", path), sum(len(series["values"]) for series in result))
    assert telemetry.provenance["rows_in"] == 3024
    assert telemetry.samples.height == 3024 / 6
    watts = [
        float(value)
        for series in result
        if series["metric"]["__name__"] == "DCGM_FI_DEV_POWER_USAGE"
        for _, value in series["values"]
    ]
    assert telemetry.samples["power_w"].sum() == pytest.approx(sum(watts), rel=1e-12)
    # 62 steps of 5 s on each of 8 GPUs
    assert telemetry.provenance["gpu_hours"] == pytest.approx(8 * 63 * 5 / 3600)


def test_a_query_with_its_own_header(public_data: Path):
    telemetry = counted(read("auto", public_data / "nvidia_smi" / "query_gpu_h100.csv"), 43)
    samples = telemetry.samples
    assert sorted(samples["gpu"].unique()) == list(range(8))
    assert samples["power_w"][0] == 74.01
    assert samples["memory_used_gib"].unique().to_list() == [4 / 1024]
    assert str(samples["time"][0]) == "2025-09-08 09:26:50+00:00"


@pytest.mark.parametrize("name", ["tch_aae_aae_t3", "tch_resnet_cifar10_g3"])
def test_loops_without_header_and_time(public_data: Path, name: str):
    path = public_data / "nvidia_smi" / "looped" / f"{name}_nvidia_smi1.log.gz"
    with gzip.open(path, "rt") as stream:
        lines = stream.read().splitlines()
    telemetry = counted(read("nvidia-smi", path, columns=LOOP, gpu=0, interval_s=1, **ORIGIN), len(lines))
    watts = [float(line.split(" W")[0]) for line in lines]
    busy = [float(line.split(",")[3].strip(" %")) / 100 for line in lines]
    assert len(lines) == {"tch_aae_aae_t3": 7991, "tch_resnet_cifar10_g3": 8304}[name]
    assert telemetry.samples["power_w"].to_list() == watts
    assert telemetry.samples["sm_activity"].to_list() == busy
    assert telemetry.provenance["gpu_hours"] == pytest.approx(len(lines) / 3600)


EXTRACTED_HINTS = {
    "query-gpu": {"tz": "UTC"},
    "query-compute-apps": {"tz": "UTC", "gpu": 0},
    "dmon": ORIGIN,
    "pmon": ORIGIN,
}


def test_all_extracted_sections(public_data: Path):
    paths = sorted((public_data / "nvidia_smi" / "extracted").iterdir())
    kinds = [path.stem.rpartition("__")[2] for path in paths]
    assert len(paths) == 38
    for path, kind in zip(paths, kinds, strict=True):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        header = 1 if kind.startswith("query") else sum(line.startswith("#") for line in lines)
        telemetry = counted(read("auto", path, **EXTRACTED_HINTS[kind]), len(lines) - header)
        if "h100-mig" in path.name:
            assert telemetry.samples["activity_source"].is_in(["none"]).all()
        if kind == "dmon":
            watts = [float(line.split()[1]) for line in lines[header:]]
            assert telemetry.samples["power_w"].to_list() == watts
        if kind == "pmon":
            assert telemetry.processes is not None
            pids = [line.split()[1] for line in lines[header:] if line.split()[1] != "-"]
            assert telemetry.processes.height == len(pids)
        if kind == "query-gpu":
            titles, values = (line.split(", ") for line in lines)
            fields = dict(zip(titles, values, strict=True))
            used = float(fields["memory.used [MiB]"].removesuffix(" MiB"))
            assert telemetry.samples["memory_used_gib"].to_list() == [used / 1024]
            assert telemetry.samples["power_w"].to_list() == [
                pytest.approx(float(fields["power.draw [W]"].removesuffix(" W")))
            ]


def test_transcripts(public_data: Path):
    """Two of the five were taken on summer time of central Europe, as the instant in their heading shows."""
    for path in sorted((public_data / "nvidia_smi" / "captures").iterdir()):
        telemetry = counted(read("auto", path), 2)
        ahead = "2080-super" in path.name
        assert telemetry.provenance["time_zone"] == ("+02:00" if ahead else "UTC")
        assert "zone taken from the heading" in telemetry.quality["check"].to_list()
        named = read("auto", path, tz="Europe/Berlin" if ahead else "Africa/Abidjan")
        assert named.samples.equals(telemetry.samples)
        with pytest.raises(TraceFormatError, match=rf"show the offset \{'+02:00' if ahead else '+00:00'}"):
            read("auto", path, tz="UTC" if ahead else "Europe/Berlin")
        with gzip.open(path, "rt") as stream:
            text = stream.read()
        driver = re.search(r"__([\d.]+)\.txt", path.name)
        assert driver is not None
        rows = re.findall(rf"^(\d{{4}}/\d\d/\d\d [\d:.]+), {re.escape(driver[1])}, .*$", text, re.M)
        local = telemetry.samples["time"].dt.offset_by("2h" if ahead else "0h")
        assert local.dt.strftime("%Y/%m/%d %H:%M:%S%.3f").to_list() == sorted(rows)
        legacy = telemetry.samples["activity_source"] == "legacy"
        assert legacy.all() or ("h100-mig" in path.name and not legacy.any())
