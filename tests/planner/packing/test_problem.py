"""Hostile files and values: one clear error, with file and line."""

from __future__ import annotations

import pytest

from gpuplanner.core.errors import GeometryError, ScenarioError, TraceFormatError
from gpuplanner.planner.packing_files_and_verification import read_packing
from gpuplanner.planner.packing_problem import MigPackingProblem, PackingProblem

GOOD = "2\t100\t0\t0\n0\t2\t25\t64\n1\t2\t48\t74\n"


def write(tmp_path, text: str):
    path = tmp_path / "items.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("text", [GOOD, GOOD.replace("\t", "  "), GOOD.replace("\n", "\r\n"), GOOD + "\n\n"])
def test_good_files(tmp_path, text):
    problem = read_packing(write(tmp_path, text))
    assert problem.capacity == 100
    assert problem.starts.tolist() == [2, 2]
    assert problem.ends.tolist() == [25, 48]
    assert problem.sizes.tolist() == [64, 74]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "an empty file"),
        ("2\t100\t0\t0\n0\t2\t25\t64\n", 2, "2 lines of items"),
        (GOOD.replace("64", "x"), 2, "four whole numbers"),
        (GOOD.replace("64", "nan"), 2, "four whole numbers"),
        (GOOD.replace("64", "-64"), 2, "a size from 1 to the capacity 100"),
        (GOOD.replace("74", "101"), 3, "a size from 1 to the capacity 100"),
        (GOOD.replace("25", "2"), 2, "an end after the start"),
        (GOOD.replace("1\t2\t48", "0\t2\t48"), 3, "as in line 2"),
        (GOOD.replace("48", "99999999999"), 3, "instants of at most"),
        (GOOD.replace("100", "1" * 30), 1, "a capacity from 1"),
        (GOOD.replace("2\t100", "9999999\t100"), 1, "from 1 to 50000 items"),
    ],
)
def test_hostile_files(tmp_path, text, line, said):
    path = write(tmp_path, text)
    with pytest.raises(TraceFormatError) as caught:
        read_packing(path)
    assert str(caught.value).startswith(f"{path}, line {line}: expected ")
    assert said in str(caught.value)


def test_what_is_no_text_file(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none.txt", tmp_path / "bytes"):
        with pytest.raises(TraceFormatError, match="a readable text file"):
            read_packing(path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"starts": [], "ends": [], "sizes": []}, "from 1 to"),
        ({"sizes": [1]}, "one for each of 2 starts"),
        ({"sizes": [1, float("nan")]}, "whole numbers"),
        ({"sizes": [-1, 1]}, "from 1 to the capacity 10"),
        ({"ends": [1, 2**40]}, "end > start"),
        ({"capacity": 0}, "from 1"),
    ],
)
def test_impossible_problems(values, said):
    with pytest.raises(ScenarioError, match=said):
        PackingProblem(**{"starts": [0, 0], "ends": [1, 1], "sizes": [1, 2], "capacity": 10} | values)


def test_unknown_profiles_and_boards():
    with pytest.raises(GeometryError, match="5g"):
        MigPackingProblem([0], [1], ["5g.50gb"], "H100-80GB-SXM5")
    with pytest.raises(GeometryError):
        MigPackingProblem([0], [1], ["1g.10gb"], "H1000")
    with pytest.raises(ScenarioError, match="one for each"):
        MigPackingProblem([0], [1], ["1g.10gb", "1g.10gb"], "H100-80GB-SXM5")
