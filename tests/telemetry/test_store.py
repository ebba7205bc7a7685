"""Telemetry as a folder, and what is refused as such."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpuplanner.errors import OutputError, TraceFormatError
from gpuplanner.telemetry import open_telemetry, read, write_telemetry

File = Callable[..., Path]
Good = tuple[str, str, dict[str, Any], int]


def test_what_was_written_comes_back(good: Good, file: File, tmp_path: Path):
    name, text, hints, _ = good
    telemetry = read(name, file(text), **hints)
    again = open_telemetry(write_telemetry(telemetry, tmp_path / "out"))
    assert again.samples.equals(telemetry.samples)
    assert again.rejects.equals(telemetry.rejects)
    assert again.quality.equals(telemetry.quality)
    assert again.coverage.equals(telemetry.coverage)
    assert again.provenance == telemetry.provenance
    assert (again.processes is None) == (telemetry.processes is None)


def test_the_same_input_gives_the_same_bytes(file: File, good_text: Callable[[str], str], tmp_path: Path):
    folders = [
        write_telemetry(
            read("smi-dmon", file(good_text("smi-dmon")), origin="2026-01-01T00:00:00Z"), tmp_path / name
        )
        for name in ("a", "b")
    ]
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == [
        *("coverage.parquet", "provenance.json", "quality.json", "rejects.parquet", "samples.parquet")
    ]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_a_folder_with_other_things_is_left_alone(
    file: File, good_text: Callable[[str], str], tmp_path: Path
):
    telemetry = read("node-csv", file(good_text("node-csv")))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(OutputError, match="a folder with other things in it"):
        write_telemetry(telemetry, tmp_path / "mine")


def test_damaged_folders_are_refused(file: File, good_text: Callable[[str], str], tmp_path: Path):
    telemetry = read("node-csv", file(good_text("node-csv")))

    def damage(spoil: Callable[[Path], object], words: str) -> None:
        folder = write_telemetry(telemetry, tmp_path / "out")
        spoil(folder)
        with pytest.raises(TraceFormatError, match=words):
            open_telemetry(folder)
        shutil.rmtree(folder)

    def other_format(folder: Path) -> None:
        facts = json.loads((folder / "provenance.json").read_text())
        (folder / "provenance.json").write_text(json.dumps(facts | {"note": facts["format"], "format": "x"}))

    def fewer_rows(folder: Path) -> None:
        pl.read_parquet(folder / "samples.parquet").head(1).write_parquet(folder / "samples.parquet")

    damage(lambda folder: (folder / "samples.parquet").unlink(), "samples")
    damage(lambda folder: (folder / "samples.parquet").write_bytes(b"PAR1"), "a folder of telemetry")
    damage(lambda folder: (folder / "quality.json").write_text("[1]"), "a folder of telemetry")
    damage(lambda folder: (folder / "quality.json").write_text("{"), "a folder of telemetry")
    damage(other_format, "not 'gpuplanner telemetry 1'")
    damage(fewer_rows, "1 samples and 0 rejected rows")
    with pytest.raises(TraceFormatError, match="a folder of telemetry"):
        open_telemetry(tmp_path / "nothing")
