"""Telemetry as a folder, and what is refused as such."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.errors import OutputError, SchemaError, TraceFormatError
from gpuplanner.inbox import open_dataset, read, scan_samples, write_dataset

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


def test_the_same_input_gives_the_same_bytes(file: File, good_text: Callable[[str], str], tmp_path: Path):
    folders = [
        write_dataset(
            read("smi-dmon", file(good_text("smi-dmon")), origin="2026-01-01T00:00:00Z"), tmp_path / name
        )
        for name in ("a", "b")
    ]
    first, second = (
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in folders
    )
    assert sorted(first) == [
        *("coverage.parquet", "manifest.json", "provenance.json", "quality.json", "rejects.parquet"),
        "samples/month=2026-01/smi-dmon.parquet",
        *(f"sources/smi-dmon/{name}" for name in ("coverage.parquet", "quality.json", "rejects.parquet")),
    ]
    assert first == second


def test_other_things_in_the_folder_are_left_alone(
    file: File, good_text: Callable[[str], str], tmp_path: Path
):
    telemetry = read("node-csv", file(good_text("node-csv")))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    write_dataset(telemetry, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"
    (tmp_path / "mine" / "coverage.parquet").write_text("mine now")
    with pytest.raises(OutputError, match=r"'coverage\.parquet', changed since"):
        write_dataset(telemetry, tmp_path / "mine")


def test_damaged_folders_are_refused(file: File, good_text: Callable[[str], str], tmp_path: Path):
    telemetry = read("node-csv", file(good_text("node-csv")))

    def damage(spoil: Callable[[Path], object], words: str) -> None:
        folder = write_dataset(telemetry, tmp_path / "out")
        spoil(folder)
        with pytest.raises(TraceFormatError, match=words):
            open_dataset(folder)
        shutil.rmtree(folder)

    def other_format(folder: Path) -> None:
        facts = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(facts | {"note": facts["format"], "format": "x"}))

    def month(folder: Path) -> Path:
        return next(folder.glob("samples/month=*/node-csv.parquet"))

    def fewer_rows(folder: Path) -> None:
        pl.read_parquet(month(folder)).head(1).write_parquet(month(folder))

    damage(lambda folder: month(folder).unlink(), "'samples': 0")
    damage(lambda folder: month(folder).write_bytes(b"PAR1"), "tables written by this program")
    damage(lambda folder: (folder / "coverage.parquet").unlink(), "coverage.parquet")
    damage(lambda folder: (folder / "quality.json").write_text("[1]"), "a list of findings")
    damage(lambda folder: (folder / "quality.json").write_text("{"), "a JSON file")
    damage(other_format, "expected a 'gpuplanner dataset 1'")
    damage(fewer_rows, "the rows its provenance.json states")
    with pytest.raises(TraceFormatError, match="a folder that holds a dataset"):
        open_dataset(tmp_path / "nothing")


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
