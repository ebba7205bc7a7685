"""A full disk: every writer says so in the words of the house, the old result stays whole, and nothing lies about."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from gpuplanner.core.errors import GpuPlannerError, OutputError
from gpuplanner.core.output_manifests_and_overwrite_checks import translate_write_errors
from gpuplanner.core.output_writing import write_atomically
from gpuplanner.core.scenario import Scenario
from gpuplanner.decision.study import Study
from gpuplanner.report import monthly_report_chain as room
from gpuplanner.usage.dataset_description_and_data_quality import DataQuality, data_quality
from tests.decision.recurring.small_fleets import SmallFleet
from tests.report.test_months import Works

HEADER = "job_id,submission_time,duration,num_gpu\n"
SMALL_DISK = 4_000_000
LEFT = 40_000
"""Bytes left on the disk: the first small files of a folder still find room, its tables do not."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own in memory; tests are skipped where nobody may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root")
    command = [mount, "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk in memory can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def filled(disk: Path, left: int) -> Path:
    """Fill a disk but for some bytes."""
    path, chunk = disk / "filler", b"\0" * 4096
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(chunk)
    assert shutil.disk_usage(disk).free == 0
    os.truncate(path, max(path.stat().st_size - left, 0))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def jobs(place: Path, rows: int) -> Path:
    """A list of jobs that no compression makes small."""
    path = place / "cluster.csv"
    path.write_text(
        HEADER + "".join(f"{row * 11400714819323198485 % 2**64:x},{row * row % 9973},{row},8\n" for row in range(rows))
    )
    return path


def trace(out: Path, place: Path, rows: int, study: Study) -> None:
    from gpuplanner.ingest.dataset_writer import write_dataset
    from gpuplanner.ingest.public.job_lists import ITP_TRACE

    write_dataset(ITP_TRACE([jobs(place, rows)]), out)


def added(out: Path, place: Path, rows: int, study: Study) -> None:
    from gpuplanner.ingest.dataset_import import add_files

    add_files("itp", [jobs(place, rows)], out)


def telemetry(out: Path, place: Path, rows: int, study: Study) -> None:
    from gpuplanner.ingest.dataset_writer import write_dataset
    from gpuplanner.ingest.source_registry import read

    head, log = "timestamp, index, power.draw [W]\n", place / "n1.csv"
    lines = (
        f"2026/01/31 {row // 3600:02}:{row // 60 % 60:02}:{row % 60:02}, 0, {row % 397} W\n" for row in range(rows)
    )
    log.write_text(head + "".join(lines))
    write_dataset(read("nvidia-smi", [log], tz="UTC"), out)


def saved(out: Path, place: Path, rows: int, study: Study) -> None:
    study.save(out)


def workbook(out: Path, place: Path, rows: int, study: Study) -> None:
    from gpuplanner.report.focus_files_and_workbooks import write_study_workbook

    write_study_workbook(out, study)


def exported(out: Path, place: Path, rows: int, study: Study) -> None:
    from gpuplanner.planner.layout_plan import plan_to_json
    from gpuplanner.report.layout_schedule_files import export_plan

    (place / "plan.json").write_text(plan_to_json(study.plan, study.problem))
    export_plan(place / "plan.json", out)


@functools.cache
def sample_quality() -> DataQuality:
    return data_quality("sample")


def chart(ending: str) -> Callable[[Path, Path, int, Study], None]:
    def write(out: Path, place: Path, rows: int, study: Study) -> None:
        from gpuplanner.report.dataset_sections import render_quality_page, render_quality_svg
        from gpuplanner.report.html_page import write_page_or_picture

        write_page_or_picture(
            out.with_suffix(ending),
            page=lambda: render_quality_page(sample_quality(), title="Quality"),
            picture=lambda: render_quality_svg(sample_quality()),
        )

    return write


def table(method: str) -> Callable[[Path, Path, int, Study], None]:
    def write(out: Path, place: Path, rows: int, study: Study) -> None:
        frame = pl.DataFrame({"a": [row * 11400714819323198485 % 2**63 for row in range(rows)]})
        write_atomically(out, getattr(frame, method))

    return write


WRITERS = {
    "a trace": trace, "a trace that grows": added, "telemetry": telemetry, "a study": saved, "a workbook": workbook,
    "exports": exported, "a page": chart(".html"), "a picture": chart(".svg"),
    "a table as CSV": table("write_csv"), "a table as Parquet": table("write_parquet"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_said_and_changes_nothing(small_disk: Path, tmp_path: Path, study: Study, name: str):
    write, rows = WRITERS[name], 40_000
    left = 0 if name in ("a picture", "exports") else LEFT
    filler = filled(small_disk, left)
    with pytest.raises(OutputError, match="expected a writable place with free space; got No space left on device"):
        write(small_disk / "out", tmp_path, rows, study)
    assert set(contents(small_disk)) == {"filler"}
    filler.unlink()
    write(small_disk / "out", tmp_path, 10, study)
    before = contents(small_disk)
    filler = filled(small_disk, left)
    with pytest.raises(OutputError, match="No space left on device"):
        write(small_disk / "out", tmp_path, rows, study)
    filler.unlink()
    assert contents(small_disk) == before
    write(small_disk / "out", tmp_path, rows, study)
    assert all("gpuplanner-" not in file for file in contents(small_disk))


def test_a_key_that_finds_no_room_is_no_key(small_disk: Path):
    from gpuplanner.core.privacy import write_new_key

    filled(small_disk, 0)
    with pytest.raises(GpuPlannerError, match="a place with free space; got No space left on device"):
        write_new_key(small_disk / "key")
    assert not (small_disk / "key").exists()


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_stdout_on_a_full_disk_is_said(options: tuple[str, ...]):
    command = [sys.executable, "-c", "from gpuplanner.cli import main; main()", "catalog", "gpu-models", *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "gpuplanner: cannot write to stdout: expected space to write the output; got No space left on device. "
        "Redirect the output to another disk."
    ]


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("No space left on device (os error 28)"),
        pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)"),
    ],
)
def test_what_each_library_says_of_a_full_disk(tmp_path: Path, fault: Exception):
    """Python gives a number; polars writes it into the text, as an OSError for CSV and as its own for Parquet."""

    def full(path: Path) -> None:
        path.write_text("half")
        raise fault

    with pytest.raises(OutputError, match=r"a\.txt: expected a writable place .* got No space left on device"):
        write_atomically(tmp_path / "a.txt", full)
    assert not list(tmp_path.iterdir())


def test_faults_of_inputs_and_of_the_program_pass_unchanged(tmp_path: Path):
    within = (tmp_path / "out",)
    for fault in (
        FileNotFoundError(errno.ENOENT, "No such file", "in.csv"),
        PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "in.csv")),
        pl.exceptions.ComputeError("no such column"),
        ValueError("os error 28"),
    ):
        with pytest.raises(type(fault)) as found, translate_write_errors(tmp_path / "out", own_paths=within):
            raise fault
        assert found.value is fault


@pytest.mark.parametrize("left", [0, 4096, 16_384, LEFT])
def test_a_chain_of_months_goes_on_when_there_is_room_again(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
):
    works, months = Works(), ["2026-01", "2026-02"]
    works.more = "x" * 12_000
    monkeypatch.setattr(room, "evaluate", works.evaluate)
    monkeypatch.setattr(room, "write_report", works.write_report)
    fleet = SmallFleet(1, weeks=9, nodes=1, gpus_per_node=4, begin=datetime(2026, 1, 1, tzinfo=UTC))
    asked = Scenario(data=str(fleet.write(tmp_path / "trace")))
    room.report_months(asked, months, tmp_path / "out", report_progress=lambda _: None)
    filler = filled(small_disk, left)
    with pytest.raises(OutputError, match="No space left on device"):
        room.report_months(asked, months, small_disk / "out", report_progress=lambda _: None)
    filler.unlink()
    assert all("gpuplanner-" not in file for file in contents(small_disk))
    room.report_months(asked, months, small_disk / "out", report_progress=lambda _: None)
    assert contents(small_disk / "out") == contents(tmp_path / "out")
