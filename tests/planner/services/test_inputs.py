"""Profile and demand files of services: what is read, and what is refused, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplanner.core.errors import GeometryError, TraceFormatError
from gpuplanner.hardware.gpu_models import as_gpu_model
from gpuplanner.planner.inference_service_measurements import read_service_demands, read_service_profiles
from gpuplanner.usage.requested_demand import smallest_by_compute

HEADER = "Mig instance,Batch size,Workload Number,Throughput,Latency"


def write(folder: Path, *rows: str, name: str = "bert.csv", header: str = HEADER) -> Path:
    (folder / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return folder


def test_throughput_is_that_of_all_processes(tmp_path: Path) -> None:
    write(tmp_path, "1,8,1,100,0.08", "1,8,2,60,0.13", "7,8,5,0,0")
    write(tmp_path, "2,1,3,10,0.1", name="vgg16.csv")
    table = read_service_profiles(tmp_path)
    assert table.rows() == [
        ("bert", 1, 8, 1, 100.0, 0.08),
        ("bert", 1, 8, 2, 120.0, 0.13),
        ("bert", 7, 8, 5, 0.0, 0.0),
        ("vgg16", 2, 1, 3, 30.0, 0.1),
    ]
    whole = read_service_profiles(tmp_path, throughput_of="instance")
    assert whole["throughput_per_s"].to_list() == [100.0, 60.0, 0.0, 10.0]


def test_throughput_that_is_a_sum_already_is_not_multiplied(tmp_path: Path) -> None:
    """8 requests in each of 2 processes for 0.1 s are 160 a second together: Little's law."""
    write(tmp_path, "1,8,2,160,0.1", "2,8,4,320,0.1")
    with pytest.raises(TraceFormatError, match="throughput_of='instance'"):
        read_service_profiles(tmp_path)
    assert read_service_profiles(tmp_path, throughput_of="instance")["throughput_per_s"].to_list() == [160, 320]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,8,1,-5,0.08", r"line 3: Throughput: below 0"),
        ("1,8,1,many,0.08", r"line 3: Throughput: not a number"),
        ("1,8,1,nan,0.08", r"line 3: Throughput: not a number"),
        ("5,8,1,100,0.08", r"line 3: Mig instance: A100-80GB has instances of 1, 2, 3, 4, 7 compute slices"),
        ("1,0,1,100,0.08", r"line 3: Batch size: not a whole number above 0"),
        ("1,8,1,100,0", r"line 3: Throughput and Latency: one is 0 and the other is not"),
        ("1,8,1,100", r"line 3: fewer fields than columns"),
        ("7,1,1,1,1", r"2 unusable row\(s\): 'line 2: .* measured more than once"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_place(tmp_path: Path, row: str, words: str) -> None:
    write(tmp_path, "7,1,1,1,1", row)
    with pytest.raises(ValueError, match=words) as caught:
        read_service_profiles(tmp_path)
    assert "bert.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (HEADER.encode() + b"\n", "a header alone"),
        (b"\xff\xfe1\x00", "UTF-16"),
        (HEADER.encode() + b"\n1,8,1,\xe9,0.1\n", "line 2: expected UTF-8"),
        (b"PK\x03\x04rest", "a ZIP archive"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "bert.csv").write_bytes(content)
    with pytest.raises(TraceFormatError, match=words):
        read_service_profiles(tmp_path)


def test_the_board_says_which_sizes_there_are(tmp_path: Path) -> None:
    write(tmp_path, "3,8,1,100,0.08")
    with pytest.raises(TraceFormatError, match="A30-24GB has instances of 1, 2, 4 compute slices"):
        read_service_profiles(tmp_path, "A30")
    with pytest.raises(GeometryError, match="unknown"):
        read_service_profiles(tmp_path, "Voodoo2")


@pytest.mark.parametrize("gpu_model", ["A100-40GB", "A100-80GB", "H100-80GB-SXM5", "H200-141GB", "A30", "B200"])
def test_a_size_is_planned_on_its_least_memory(gpu_model: str) -> None:
    found = smallest_by_compute(as_gpu_model(gpu_model))
    for profile in as_gpu_model(gpu_model).profiles:
        assert found[profile.compute_slices].memory_slices <= profile.memory_slices
    assert all(profile.attribute == "" for profile in found.values())


def test_a_scenario_is_a_row_of_both_files(tmp_path: Path) -> None:
    rates, limits = tmp_path / "rates.csv", tmp_path / "limits.csv"
    rates.write_bytes(b"1,N/A,3\r\n\r\n4,5,n/a\r\n")
    limits.write_text("10,N/A,30\n40,50.5, N/A", encoding="utf-8")
    assert read_service_demands(rates, limits, ["a", "b", "c"]) == ({"a": 1, "c": 3}, {"a": 10, "c": 30})
    assert read_service_demands(rates, limits, ["a", "b", "c"], row=2) == ({"a": 4, "b": 5}, {"a": 40, "b": 50.5})


@pytest.mark.parametrize(
    ("rates", "row", "words"),
    [
        ("1,2\n3,4", 3, r"rates\.csv, row 3: expected a row from 1 to 2"),
        ("1", 1, r"row 1: expected 2 columns, one for each of 'a', 'b'; got 1 columns"),
        ("1,two", 1, r"row 1, column b: expected a number of at least 0, or N/A; got 'two'"),
        ("1,nan", 1, "column b: .* got 'nan'"),
        ("1,", 1, "column b: .* got ''"),
    ],
)
def test_a_scenario_that_cannot_be_read_is_refused(tmp_path: Path, rates: str, row: int, words: str) -> None:
    (tmp_path / "rates.csv").write_text(rates, encoding="utf-8")
    (tmp_path / "limits.csv").write_text("10,20\n30,40\n50,60", encoding="utf-8")
    with pytest.raises(TraceFormatError, match=words):
        read_service_demands(tmp_path / "rates.csv", tmp_path / "limits.csv", ["a", "b"], row=row)
