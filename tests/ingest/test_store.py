"""A trace as a folder: what goes in comes out, and nothing else is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.core.schema_checks import make_empty_table
from gpuplanner.core.schemas import Inventory, Samples
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_writer import write_dataset

Good = tuple[str, Callable[[Sequence[str | Path]], Dataset]]
File = Callable[..., Path]


@pytest.fixture
def trace(good: Good, file: File) -> Dataset:
    return good[1]([file(good[0])])


def same(first: Dataset, second: Dataset) -> bool:
    def tables(trace: Dataset) -> list[pl.DataFrame | None]:
        return [trace.jobs, trace.rejects, trace.quality, trace.inventory, trace.samples]

    pairs = zip(tables(first), tables(second), strict=True)
    equal = all(a.equals(b) if a is not None and b is not None else a is b for a, b in pairs)
    return equal and first.provenance == second.provenance


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_is_opened(trace: Dataset, tmp_path: Path):
    assert same(open_dataset(write_dataset(trace, tmp_path / "a")), trace)


def test_inventory_and_samples_go_with_it(trace: Dataset, tmp_path: Path):
    nodes = pl.DataFrame({"node": ["n1"], "gpus": [512]})  # room for every job
    inventory = pl.concat([make_empty_table(Inventory), nodes.cast({"gpus": pl.Int32})], how="diagonal")
    jobs = trace.jobs.with_columns(node_list=pl.lit(None, pl.String))  # no node that the list lacks
    whole = trace.with_tables(jobs=jobs, inventory=inventory, samples=make_empty_table(Samples))
    opened = open_dataset(write_dataset(whole, tmp_path / "a"))
    assert same(opened, whole)
    assert opened.inventory is not None


def test_the_same_trace_gives_the_same_bytes(trace: Dataset, good: Good, file: File, tmp_path: Path):
    first = contents(write_dataset(trace, tmp_path / "a"))
    again = contents(write_dataset(good[1]([file(good[0])]), tmp_path / "b"))
    assert first == again
    source = trace.provenance["source"]
    assert sorted(first) == [
        "jobs.parquet",
        "manifest.json",
        "provenance.json",
        "quality.json",
        "rejects.parquet",
        f"sources/{source}/quality.json",
        f"sources/{source}/rejects.parquet",
    ]


def test_an_older_trace_is_replaced_whole(trace: Dataset, tmp_path: Path):
    folder = write_dataset(trace.with_tables(samples=make_empty_table(Samples)), tmp_path / "a")
    write_dataset(trace, folder)
    assert not (folder / "samples").exists()
    assert same(open_dataset(folder), trace)


def _forget(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "got nothing there"),
        (_forget("provenance.json"), "got a folder without a provenance.json"),
        (_write("provenance.json", b"\xff"), "provenance.json: expected a JSON file"),
        (_write("provenance.json", b"[" * 100_000), "provenance.json: expected a JSON file"),
        (_write("provenance.json", b'{"format": "gpuplanner trace 1"}'), "of another format"),
        (_write("provenance.json", b'{"format": "gpuplanner dataset 2"}'), "expected the facts of each source"),
        (_forget("jobs.parquet"), "jobs.parquet: expected a table"),
        (_write("jobs.parquet", b"PAR1PAR1"), "jobs.parquet: expected a table"),
        (lambda folder: shutil.copy(folder / "rejects.parquet", folder / "jobs.parquet"), "jobs.parquet"),
        (_forget("quality.json"), "quality.json: expected a JSON file"),
        (_write("quality.json", b'[{"check": 5, "rows": "x"}]'), "quality.json: expected a list of findings"),
    ],
)
def test_what_is_missing_or_damaged_is_named(trace: Dataset, tmp_path: Path, damage, message: str):
    folder = write_dataset(trace, tmp_path / "a")
    damage(folder)
    with pytest.raises(TraceFormatError, match=message):
        open_dataset(folder)


def test_rows_that_went_missing_are_noticed(trace: Dataset, tmp_path: Path):
    folder = write_dataset(trace, tmp_path / "a")
    trace.jobs.head(1).write_parquet(folder / "jobs.parquet")
    with pytest.raises(TraceFormatError, match=r"expected the rows its provenance\.json states"):
        open_dataset(folder)
