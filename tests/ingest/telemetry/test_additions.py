"""A telemetry folder that grows: file by file it comes to hold what one reading of all files gives."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import OutputError
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import READ_OPTIONS_FACT_KEY, add_files
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.telemetry.sample_windows import REPEATED_READING_REASON

File = Callable[..., Path]
HEAD = "timestamp, index, power.draw [W], utilization.gpu [%]"
EDGE = 1769903700  # 2026-01-31T23:55:00Z
JANUARY, FEBRUARY, MARCH = (
    [f"{first + 60 * minute}.0, 0, {400 + minute}, {90 + minute}" for minute in range(3)]
    for first in (EDGE, EDGE + 300, EDGE + 30 * 86400)
)


def log(*lines: str) -> str:
    return "\n".join([HEAD, *lines, ""])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_alike(folder: Path, at_once: Path) -> None:
    """Samples and coverage to the byte, rejects to the row, the accounts to the number.

    Of three rows of an instant, the third is compared with the first of its own run, so it may repeat that one
    where it contradicts the first of all; it is rejected either way.
    """
    one, other = contents(folder), contents(at_once)
    assert one.keys() == other.keys()
    tables = [name for name in one if name.startswith(("samples", "coverage"))]
    assert [name for name in tables if one[name] != other[name]] == []
    grown, whole = open_dataset(folder), open_dataset(at_once)
    assert grown.rejects.drop("reason").equals(whole.rejects.drop("reason"))
    assert {**grown.provenance, READ_OPTIONS_FACT_KEY: None} == {**whole.provenance, READ_OPTIONS_FACT_KEY: None}


def test_month_by_month_is_as_all_at_once_and_other_months_keep_their_file(file: File, tmp_path: Path):
    files = [file(log(*lines), f"n1.{place}.csv") for place, lines in enumerate([JANUARY, FEBRUARY, MARCH])]
    store = tmp_path / "store"
    inodes, written = {}, []
    for path in files:
        done = add_files("nvidia-smi", [path], store, tz="UTC")
        written.append(done.months)
        now = {month.name: next(month.iterdir()).stat().st_ino for month in (store / "samples").iterdir()}
        assert all(now[month] == inode for month, inode in inodes.items())
        inodes = now
    assert written == [("2026-01",), ("2026-02",), ("2026-03",)]
    assert_alike(store, write_dataset(read("nvidia-smi", files, tz="UTC"), tmp_path / "once"))
    assert contents(store)["quality.json"] == contents(tmp_path / "once")["quality.json"]


def test_a_log_that_has_grown_counts_each_reading_once(file: File, tmp_path: Path):
    store = tmp_path / "store"
    add_files("nvidia-smi", [file(log(*JANUARY), "n1.csv")], store, tz="UTC")
    done = add_files("nvidia-smi", [file(log(*JANUARY, *FEBRUARY), "n1.csv")], store, tz="UTC")
    assert (done.added, done.months) == (("n1.csv",), ("2026-02",))
    whole = open_dataset(store)
    assert whole.samples["power_w"].to_list() == [400, 401, 402, 400, 401, 402]
    assert whole.rejects["row", "reason"].rows() == [
        (2, REPEATED_READING_REASON),
        (3, REPEATED_READING_REASON),
        (4, REPEATED_READING_REASON),
    ]
    assert (whole.provenance["rows_in"], whole.provenance["rows_kept"]) == (9, 6)
    found = dict(whole.quality["check", "severity"].iter_rows())
    assert found[f"duplicates: {REPEATED_READING_REASON}"] == "info"


READING = st.tuples(st.integers(0, 5), st.integers(0, 1), st.sampled_from([100, 200]), st.sampled_from([None, 50, 60]))


@pytest.mark.long
@settings(max_examples=12)
@given(
    logs=st.lists(st.lists(READING, min_size=1, max_size=6), min_size=1, max_size=4), cuts=st.sets(st.integers(1, 3))
)
def test_any_rows_in_any_runs_are_as_all_files_at_once(logs: list[list[tuple[Any, ...]]], cuts: set[int]):
    """Rows of overlapping logs, some the same, some in contradiction, in two months: rows of tables, to the byte."""
    with tempfile.TemporaryDirectory() as place:
        files = []
        for number, rows in enumerate(logs):
            texts = [
                f"{EDGE + 60 * at}.0, {gpu}, {watts}, {'[N/A]' if busy is None else busy}"
                for at, gpu, watts, busy in rows
            ]
            files.append(Path(place) / f"n1.{number}.csv")
            files[-1].write_text(log(*texts, f"{EDGE + 7200}.0, {number + 2}, 1, 1"))
        bounds = [0, *sorted(cut for cut in cuts if cut < len(files)), len(files)]
        for first, last in pairwise(bounds):
            add_files("nvidia-smi", files[first:last], Path(place) / "store", tz="UTC")
        once = write_dataset(read("nvidia-smi", files, tz="UTC"), Path(place) / "once")
        assert_alike(Path(place) / "store", once)


METRICS = {
    "DCGM_FI_PROF_SM_ACTIVE": ["0.25", "0.5"],
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ["0.75", "1"],
    "DCGM_FI_DEV_GPU_UTIL": ["98", "99"],
    "DCGM_FI_PROF_DRAM_ACTIVE": ["0.1", "0.2"],
    "DCGM_FI_DEV_POWER_USAGE": ["300", "301"],
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ["5000", "6000"],
}
POINT = st.tuples(st.sampled_from(sorted(METRICS)), st.sampled_from(["", "3"]), st.integers(0, 3), st.integers(0, 1))


@settings(max_examples=12)
@given(
    answers=st.lists(st.lists(POINT, min_size=1, max_size=8), min_size=1, max_size=4), cuts=st.sets(st.integers(1, 3))
)
def test_metrics_that_come_in_different_files_make_one_sample(
    answers: list[list[tuple[str, str, int, int]]], cuts: set[int]
):
    """Any metrics of any instants in any file: the same samples, with the same rung throughout, as at once."""
    with tempfile.TemporaryDirectory() as place:
        files = []
        for number, points in enumerate(answers):
            lines = [
                f'{name}{{gpu="0",GPU_I_ID="{instance}",hostname="n1"}} {METRICS[name][which]} {EDGE + 60 * at}000'
                for name, instance, at, which in points
            ]
            files.append(Path(place) / f"{number}.prom")
            mark = f'DCGM_FI_DEV_FB_USED{{gpu="1",hostname="n1"}} {number} {(EDGE + number) * 1000}'
            files[-1].write_text("\n".join([*lines, mark, ""]))
        bounds = [0, *sorted(cut for cut in cuts if cut < len(files)), len(files)]
        for first, last in pairwise(bounds):
            add_files("dcgm-exporter", files[first:last], Path(place) / "store")
        grown, once = open_dataset(Path(place) / "store"), read("dcgm-exporter", files)
        assert grown.samples.equals(once.samples)
    assert grown.coverage.equals(once.coverage)
    facts = grown.provenance
    assert facts["rows_in"] == once.provenance["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]


def test_processes_are_added_once(file: File, tmp_path: Path):
    head = "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    rows = [f"2026/06/24 10:26:4{second}.0, GPU-0, {second}, a.py, 1024 MiB" for second in range(4)]
    one, two = (file("\n".join([head, *part, ""]), name) for name, part in (("n1.a", rows[:3]), ("n1.b", rows[2:])))
    for path in (one, two):
        add_files("smi-apps", [path], tmp_path / "store", tz="UTC", gpu=0)
    whole, once = open_dataset(tmp_path / "store"), read("smi-apps", [one, two], tz="UTC", gpu=0)
    assert whole.processes is not None
    assert once.processes is not None
    assert whole.processes.equals(once.processes)
    assert whole.processes["pid"].to_list() == [0, 1, 2, 3]
    assert whole.samples.equals(once.samples)


def test_logs_without_times_start_at_the_origin_of_their_run(
    file: File, good_text: Callable[[str], str], tmp_path: Path
):
    text = good_text("dcgmi-dmon")
    for day, name in enumerate(("n1", "n2"), start=1):
        origin = f"2026-01-0{day}T00:00:00Z"
        add_files("dcgmi-dmon", [file(f"{text}# {day}\n", f"{name}.txt")], tmp_path / "store", origin=origin)
    samples = open_dataset(tmp_path / "store").samples
    assert samples.group_by("node").agg(pl.col("time").min().dt.day()).sort("node").rows() == [("n1", 1), ("n2", 2)]


@pytest.mark.data
def test_public_runs_one_by_one(public_data: Path, tmp_path: Path):
    """Four logs of H100 nodes in two months, added one by one, against one reading of all: to the byte."""
    files = sorted((public_data / "h100_runs").glob("*_telemetry.csv.gz"))
    for path in files:
        add_files("node-csv", [path], tmp_path / "store")
    assert add_files("auto", files, tmp_path / "store").unchanged == tuple(path.name for path in files)
    assert_alike(tmp_path / "store", write_dataset(read("node-csv", files), tmp_path / "once"))


SLOW = """
import sys, time
from gpuplanner.ingest import dataset_writer as draft
from gpuplanner.ingest.dataset_import import add_files
link = draft.link_or_copy
def slow(*given):
    link(*given)
    print("writing", flush=True)
    time.sleep(60)
draft.link_or_copy = slow
add_files("nvidia-smi", [sys.argv[1]], sys.argv[2], tz="UTC")
"""


def test_a_run_that_is_killed_leaves_the_old_state(file: File, tmp_path: Path):
    january, february, store = (file(log(*JANUARY), "n1.csv"), file(log(*FEBRUARY), "n1.b.csv"), tmp_path / "store")
    add_files("nvidia-smi", [january], store, tz="UTC")
    before = contents(store)
    command = [sys.executable, "-c", SLOW, str(february), str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(OutputError, match="another run"):
            add_files("nvidia-smi", [february], store, tz="UTC")
        other.send_signal(signal.SIGKILL)
    assert contents(store) == before
    assert add_files("nvidia-smi", [february], store, tz="UTC").months == ("2026-02",)
