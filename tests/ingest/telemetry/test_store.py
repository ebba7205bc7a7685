"""Telemetry as a folder, and what is refused as such."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.core.errors import SchemaError
from gpuplanner.ingest.dataset_folder import open_dataset, scan_samples
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read

File = Callable[..., Path]
Good = tuple[str, str, dict[str, Any], int]


def test_what_was_written_comes_back(good: Good, file: File, tmp_path: Path):
    name, text, hints, _ = good
    telemetry = read(name, file(text), **hints)
    again = open_dataset(write_dataset(telemetry, tmp_path / "out"))
    assert again.samples.equals(telemetry.samples)
    assert again.rejects.equals(telemetry.rejects)
    assert again.quality.equals(telemetry.quality)
    assert again.coverage.equals(telemetry.coverage)
    assert again.provenance == telemetry.provenance
    assert (again.processes is None) == (telemetry.processes is None)


def test_months_are_opened_one_by_one(file: File, tmp_path: Path):
    """Two months with a step across their border; of a span in the second, the first file is not touched."""
    clocks = {"01/31 23:58": 100, "01/31 23:59": 200, "02/01 00:00": 300, "02/01 00:01": 400}
    lines = [f"2026/{clock}:00.000, 0, {watt}" for clock, watt in clocks.items()]
    text = "\n".join(["timestamp, index, power.draw [W]", *lines, ""])
    folder = write_dataset(read("nvidia-smi", file(text), tz="UTC"), tmp_path / "out")
    assert sorted(path.name for path in (folder / "samples").iterdir()) == ["month=2026-01", "month=2026-02"]
    assert open_dataset(folder).samples["power_w"].to_list() == [100, 200, 300, 400]

    midnight, minute = datetime(2026, 2, 1, tzinfo=UTC), timedelta(minutes=1)
    watts = [
        scan_samples(folder, start=start, end=end).select("power_w").collect().to_series().to_list()
        for start, end in ((None, None), (midnight - minute, midnight + minute), (None, midnight))
    ]
    assert watts == [[100, 200, 300, 400], [200, 300], [100, 200]]
    (folder / "samples" / "month=2026-01" / "nvidia-smi.parquet").write_bytes(b"torn")
    assert scan_samples(folder, start=midnight).select(pl.len()).collect().item() == 2
    with pytest.raises(SchemaError, match="instants with a time zone"):
        scan_samples(folder, start=datetime(2026, 2, 1))
