"""Files read block by block, sorted span by span and settled GPU by GPU give what reading them whole gives."""

from __future__ import annotations

import gzip
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest.chunked_tables import split_by_month, write_month
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.telemetry.monitor_logs import read_dcgm_csv, read_node_csv
from gpuplanner.ingest.telemetry.nvidia_smi import read_smi_query
from gpuplanner.ingest.telemetry.sample_table_writer import SampleOutput
from gpuplanner.ingest.telemetry.telemetry_row_parsing import TelemetryOptions

READERS: dict[str, Callable[..., Dataset]] = {
    "nvidia-smi": read_smi_query,
    "node-csv": read_node_csv,
    "dcgm-csv": read_dcgm_csv,
}
EXAMPLES = settings(max_examples=5, deadline=None)
START = datetime(2026, 1, 31, 23, 56, tzinfo=UTC)
SMALL = SampleOutput(block_bytes=200, window_rows=7, group_rows=9)
"""A few lines at a time, a minute at a time, a GPU or two at a time."""


def smi(random: random.Random, rows: int) -> list[str]:
    """A log with a gap, a restart, repeated rows and cells without values."""
    lines = ["timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W]"]
    at = START.replace(tzinfo=None)
    for number in range(rows):
        at += timedelta(seconds=random.choice([0, 15, 15, 15, 47, 700, -40])) if number % 2 else timedelta()
        cells = [f"{random.randrange(101)} %", f"{random.randrange(40_000)} MiB", f"{random.randrange(900)}.5 W"]
        cells[random.randrange(3)] = random.choice(["[N/A]", "0", "-1", "7 kW", cells[0], cells[0]])
        lines.append(f"{at:%Y/%m/%d %H:%M:%S.250}, {number % 2}, NVIDIA A100-SXM4-40GB, {', '.join(cells)}")
    return lines


def node(random: random.Random, rows: int) -> list[str]:
    """A log with energy counters and devices that stand on two rungs."""
    names = "power_w,mem_used_mib,mem_total_mib,gpu_util_pct,sm_active,tensor_active,dram_active,pcie_tx_bytes_s"
    lines = [f"timestamp,gpu,gpu_model,{names},pcie_rx_bytes_s,nvlink_tx_bytes_s,nvlink_rx_bytes_s,energy_mj"]
    at, energy = START.timestamp(), 1000
    for number in range(rows):
        at += random.choice([0.0, 1.0, 20.0, 20.5, 900.0, -3.0]) if number % 2 else 0.0
        energy += random.choice([0, 5_000_000, 5_000_000, -energy])
        sm = random.choice(["", f"0.{random.randrange(100):02d}"])
        values = [random.randrange(700), 10, 80_000, random.randrange(101), sm, 0.1, 0.2, 1, 2, 3, 4, energy]
        lines.append(f"{at:.3f},{number % 2},NVIDIA H100 80GB HBM3,{','.join(map(str, values))}")
    return lines


def dcgm(random: random.Random, rows: int) -> list[str]:
    """Readings of rounds that take seconds and cross midnight, of whole GPUs and instances, some twice."""
    lines = ["timestamp,metric_name,gpu_id,Hostname,value,labels_raw"]
    metrics = ["SM_ACTIVE", "DEV_FB_USED", "DEV_POWER_USAGE", "DEV_XID_ERRORS", "DEV_TOTAL_ENERGY_CONSUMPTION", "DEV_X"]
    at = START
    for number in range(rows):
        at += timedelta(seconds=random.choice([0, 0, 1, 2, 3, 29, 61, -1]))
        metric = random.choice(metrics)
        name = f"DCGM_FI_PROF_{metric}" if metric == "SM_ACTIVE" else f"DCGM_FI_{metric}"
        value = random.choice(["0", "1", "0.5", "nan", "-1", "9223372036854775794"])
        labels = f'gpu=""{number % 2}"",Hostname=""n1"",hpc_job=""{random.randrange(2)}""'
        labels += random.choice(["", ',GPU_I_ID=""7"",GPU_I_PROFILE=""1g.10gb""', ',GPU_I_PROFILE=""x""'])
        lines.append(f'"{at:%Y-%m-%dT%H:%M:%SZ}","{name}","{number % 2}","n1","{value}","{labels}"')
    return lines


MAKERS: dict[str, Callable[[random.Random, int], list[str]]] = {"nvidia-smi": smi, "node-csv": node, "dcgm-csv": dcgm}


def damaged(random: random.Random, lines: list[str]) -> str:
    """Lines with some cut, doubled, spoiled, moved, blank or the header again."""
    body = lines[1:]
    for _ in range(random.randrange(6)):
        place = random.randrange(len(body))
        spoil: Callable[[str], list[str]] = random.choice(
            [
                lambda line: [line[: len(line) // 2]],
                lambda line: [line, line],
                lambda line: [line.replace("0", "\x07", 1)],
                lambda line: [line + ",1"],
                lambda line: [line.replace("2026", "2126").replace("17699", "17x99")],
                lambda line: ["", "  ", lines[0]],
                lambda line: [line.replace('"', "", 1)],
                lambda line: [line, body[0]],
            ]
        )
        body[place : place + 1] = spoil(body[place])
    return "\n".join([lines[0], *body]) + random.choice(["\n", ""])


def outcome(source: str, paths: list[Path], way: SampleOutput) -> Dataset | None:
    """What reading in a way gives; None where the files are refused."""
    try:
        return READERS[source](paths, TelemetryOptions(tz="UTC"), way)
    except TraceFormatError:
        return None


@pytest.mark.long
@EXAMPLES
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40), files=st.integers(1, 3))
@pytest.mark.parametrize("source", MAKERS)
def test_blocks_give_what_the_whole_gives(source: str, seed: int, rows: int, files: int):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        paths = [folder / f"n{number % 2}" / f"log{number}.csv" for number in range(files)]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            text = damaged(chance, MAKERS[source](chance, rows)).encode()
            path.write_bytes(gzip.compress(text) if chance.random() < 0.2 else text)
        whole, small = (outcome(source, paths, way) for way in (SampleOutput(), SMALL))
        (folder / "months").mkdir()
        stored = outcome(source, paths, replace(SMALL, folder=folder / "months"))
        assert (whole is None) == (small is None) == (stored is None)
        if whole is None or small is None or stored is None:
            return
        assert whole.sample_origins is not None
        assert small.sample_origins is not None
        assert small.samples.equals(whole.samples)
        assert small.sample_origins.equals(whole.sample_origins)
        for telemetry in (small, stored):
            assert telemetry.rejects.equals(whole.rejects)
            assert telemetry.quality.to_dicts() == whole.quality.to_dicts()
            assert telemetry.coverage.equals(whole.coverage)
            assert telemetry.provenance == whole.provenance
        months = split_by_month(whole.samples)
        assert sorted(path.name for path in (folder / "months").iterdir()) == sorted(months)
        for name, samples in months.items():
            write_month(samples, folder / "again" / name / "samples.parquet")
            written = (folder / "months" / name / "samples.parquet").read_bytes()
            assert written == (folder / "again" / name / "samples.parquet").read_bytes()


def test_rows_are_counted_on_from_block_to_block(tmp_path: Path):
    """A log without times: the seventh row of a GPU is six intervals after the first, wherever a block ends."""
    path = tmp_path / "n1.csv"
    path.write_text("index, power.draw [W]\n" + "".join(f"{row % 2}, {row}\n" for row in range(14)))
    hints = TelemetryOptions(origin="2026-01-01T00:00:00Z", interval_s=10)
    telemetry = read_smi_query([path], hints, SMALL)
    last = telemetry.samples.filter(pl.col("power_w") >= 12)
    assert last["time"].to_list() == [datetime(2026, 1, 1, 0, 1, tzinfo=UTC)] * 2
