"""Accounting of single days, as ``sacct --truncate`` writes it: the parts of a run are one job."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.ingest.chunked_tables import JOINED_PIECE_REASON
from gpuplanner.ingest.dataset import Dataset
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.source_registry import read

DAYS = Path(__file__).parent.parent / "cluster_dumps" / "slurm" / "50-sacct-truncate"
HEADER = "JobID|State|Submit|Start|End|ElapsedRaw|AllocTRES|NodeList|TRESUsageInTot\n"


def part(start: str, end: str, *, submit: str = "01T08:00:00", gpus: int = 2, state: str = "COMPLETED") -> str:
    day = "2026-04-"
    return f"7|{state}|{day}{submit}|{day}{start}|{day}{end}||gres/gpu={gpus}|n1|\n"


def read_files(folder: Path, *texts: str) -> tuple[Dataset, Dataset]:
    """The dataset of one file with all texts, and that of a file for each, added one after the other."""
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(HEADER + text)
        add_files("slurm", [path], folder / "data", tz="UTC")
    whole = folder / "all.txt"
    whole.write_text("".join(path.read_text() for path in paths))
    return read("slurm", whole, tz="UTC"), open_dataset(folder / "data")


def spans(found: Dataset) -> list[tuple[object, ...]]:
    return found.jobs.select("job_id", "attempt", "state", "start_time", "end_time").sort("start_time").rows()


def joined(found: Dataset) -> int:
    return int(found.quality.filter(check=f"rejected: {JOINED_PIECE_REASON}")["rows"].sum())


def test_daily_files_together_and_as_one_file_count_each_run_once(tmp_path: Path):
    paths = sorted(DAYS.iterdir())
    add_files("slurm", paths, tmp_path / "data", tz="UTC")
    whole = tmp_path / "all.txt"
    whole.write_text("".join(path.read_text() for path in paths))
    for found in (open_dataset(tmp_path / "data"), read("slurm", whole, tz="UTC")):
        assert (found.jobs.height, found.provenance["gpu_hours"], joined(found)) == (3, 90.0, 2)


@pytest.mark.parametrize(
    ("parts", "gpu_hours", "count"),
    [
        # Windows that end a second or a minute before midnight.
        ([("01T12:00:00", "01T23:59:59"), ("02T00:00:00", "02T06:00:00")], 36.0, 1),
        ([("01T12:00:00", "01T23:59:00"), ("02T00:00:00", "02T06:00:00")], 36.0, 1),
        # The same day twice, and windows that overlap.
        ([("01T12:00:00", "02T00:00:00"), ("01T12:00:00", "02T00:00:00"), ("02T00:00:00", "02T06:00:00")], 36.0, 2),
        ([("01T12:00:00", "02T01:00:00"), ("02T00:00:00", "02T06:00:00")], 36.0, 1),
        # A part within the whole run, whichever was exported first.
        ([("01T12:00:00", "02T06:00:00"), ("02T00:00:00", "02T06:00:00")], 36.0, 1),
        # One row twice is no part.
        ([("01T12:00:00", "02T00:00:00"), ("01T12:00:00", "02T00:00:00")], 24.0, 0),
    ],
)
def test_parts_that_adjoin_or_overlap_are_one_job(
    parts: list[tuple[str, str]], gpu_hours: float, count: int, tmp_path: Path
):
    for order in (parts, parts[::-1]):
        folder = tmp_path / str(order is parts)
        folder.mkdir()
        # Spaces at the end of a row make files of different bytes, as equal files are refused.
        texts = [part(*span).replace("|n1|", f"|n1|{' ' * number}") for number, span in enumerate(order)]
        for found in read_files(folder, *texts):
            assert (found.jobs.height, found.provenance["gpu_hours"], joined(found)) == (1, gpu_hours, count)


def test_a_requeued_job_keeps_its_attempts(tmp_path: Path):
    first = part("01T12:00:00", "02T00:00:00", state="NODE_FAIL")
    whole, _ = read_files(tmp_path, first + part("02T00:00:10", "02T06:00:00", submit="02T00:00:05"))
    assert [(row[1], row[2]) for row in spans(whole)] == [(1, "NODE_FAIL"), (2, "COMPLETED")]
    assert joined(whole) == 0


def test_another_number_of_gpus_is_another_run(tmp_path: Path):
    whole, added = read_files(tmp_path, part("01T12:00:00", "02T00:00:00"), part("02T00:00:00", "02T06:00:00", gpus=4))
    assert joined(whole) == joined(added) == 0


def test_the_measured_use_of_a_run_is_that_of_all_its_parts(tmp_path: Path):
    # Nine tenths of two GPUs during twelve hours, and a tenth during six: 114 of 18 x 10 tenths.
    texts = []
    for (start, end), percent in zip(pairwise(("01T12:00:00", "02T00:00:00", "02T06:00:00")), (180, 20), strict=True):
        hours = 12 if percent == 180 else 6
        step = part(start, end).replace("7|", "7.0|", 1).replace("||", f"|{hours * 3600}|", 1)
        texts.append(part(start, end) + step.replace("|n1|", f"|n1|gres/gpuutil={percent}"))
    for found in read_files(tmp_path, *texts):
        assert found.jobs["sm_activity"].to_list() == [pytest.approx((0.9 * 12 + 0.1 * 6) / 18)]


def test_a_run_that_goes_on_is_not_taken_for_a_part(tmp_path: Path):
    running = part("01T12:00:00", "02T00:00:00", state="RUNNING").replace("|2026-04-02T00:00:00||", "|Unknown|43200|")
    whole, added = read_files(tmp_path, running, part("01T12:00:00", "02T06:00:00"))
    assert spans(whole) == spans(added)
    assert added.jobs.select(pl.col("end_time").dt.day()).item() == 2
    assert joined(whole) == joined(added) == 0
