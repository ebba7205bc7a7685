"""A real Prometheus server, filled with the sample's telemetry, gives what the file gives, to the last bit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.prometheus import read_live

pytestmark = pytest.mark.prometheus

METRICS = {
    "DCGM_FI_PROF_SM_ACTIVE": pl.col("sm_activity"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": pl.col("tensor_activity"),
    "DCGM_FI_PROF_DRAM_ACTIVE": pl.col("dram_activity"),
    "DCGM_FI_DEV_FB_USED": pl.col("memory_used_gib") * 1024,
    "DCGM_FI_DEV_POWER_USAGE": pl.col("power_w"),
    "DCGM_FI_PROF_PCIE_TX_BYTES": pl.col("pcie_gb_s") * 0.3e9,
    "DCGM_FI_PROF_PCIE_RX_BYTES": pl.col("pcie_gb_s") * 0.7e9,
}
"""What the exporter would have said of a sample."""

START_S = 60


def program(name: str) -> str:
    """Path of a program of Prometheus; the test is skipped, with a reason, where it is absent."""
    folder = os.environ.get("GPUPLANNER_PROMETHEUS_BIN")
    found = shutil.which(name, path=folder)
    if found is None:
        pytest.skip(f"{name} not found; 'make test-prometheus' fetches it, or set GPUPLANNER_PROMETHEUS_BIN")
    return found


@pytest.fixture(scope="module")
def exposition(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's telemetry as an OpenMetrics file, without any conversion that rounds on the way back."""
    samples = open_dataset(root / "data" / "sample").samples.sort("time", "node", "gpu")
    lines = []
    for metric, value in METRICS.items():
        lines.append(f"# TYPE {metric} gauge")
        seconds = pl.col("time").dt.timestamp("ms") / 1e3
        table = samples.select("gpu", "node", pl.col("job_id").fill_null(""), seconds, value=value)
        lines += [
            f'{metric}{{gpu="{gpu}",Hostname="{node}",hpc_job="{job}",job="dcgm"}} {number!r} {at:.3f}'
            for gpu, node, job, at, number in table.iter_rows()
        ]
    path = tmp_path_factory.mktemp("prometheus") / "sample.prom"
    path.write_text("\n".join([*lines, "# EOF"]) + "\n")
    return path


@pytest.fixture(scope="module")
def from_file(exposition: Path) -> Dataset:
    """The same file, read by us."""
    return read("dcgm-exporter", exposition)


@pytest.fixture(scope="module")
def server(exposition: Path) -> Iterator[str]:
    """Address of a Prometheus on loopback whose database was made from the file."""
    database = exposition.parent / "data"
    make = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(exposition), str(database)]
    subprocess.run(make, check=True, capture_output=True, timeout=300)
    config = exposition.parent / "prometheus.yml"
    config.write_text("global: {}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={database}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(address, process)
            yield address
        finally:
            process.terminate()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(START_S * 10):
        assert process.poll() is None, "Prometheus ended at once"
        try:
            with urllib.request.urlopen(f"{address}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"Prometheus was not ready within {START_S} s")


def test_the_scrapes_are_those_of_the_file_to_the_last_bit(server: str, from_file: Dataset):
    span = from_file.provenance["span_start"], from_file.provenance["span_end"]
    live = read_live(server, *span, interval_s=60)
    assert live.samples.equals(from_file.samples)
    assert live.coverage.equals(from_file.coverage)
    for key in ("rows_in", "rows_kept", "rows_rejected", "gpu_hours", "span_start", "span_end"):
        assert live.provenance[key] == from_file.provenance[key]
    assert from_file.provenance["rows_in"] == len(METRICS) * from_file.samples.height


def test_a_grid_holds_no_value_beyond_its_step(server: str, from_file: Dataset):
    device = from_file.samples.filter(pl.struct("node", "gpu") == pl.struct("node", "gpu").first())
    until = device["time"].dt.offset_by("1d")[0]
    device = device.filter(pl.col("time") <= until)
    chosen = {"Hostname": device["node"][0], "gpu": str(device["gpu"][0])}
    grid = read_live(server, device["time"][0], until, step_s=60, matchers=chosen).samples
    # Every scrape is on the grid once; one that lies between two instants of it is carried to the next.
    carried = grid.sort("time").join_asof(device.select("time", "power_w", seen="time"), on="time")
    assert (carried["power_w"] == carried["power_w_right"]).all()
    late = carried["time"] - carried["seen"]
    # An untouched range query would repeat the last value for five minutes.
    assert late.max() <= timedelta(seconds=60)
    assert grid.height >= device.height
