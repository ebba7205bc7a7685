"""``gpuplanner binpack`` as scripts use it."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from gpuplanner.cli.application import main

ITEMS = "4\t100\t0\t0\n0\t0\t4\t60\n1\t0\t2\t40\n2\t2\t4\t40\n3\t2\t6\t60\n"


def run(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["gpuplanner", "binpack", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text(ITEMS)
    return path


@pytest.mark.long
def test_json_and_assignment(capsys, monkeypatch, tmp_path, file):
    out = tmp_path / "new" / "bins.csv"
    code, text, err = run(capsys, monkeypatch, str(file), "--json", "-o", str(out), "--seed", "1")
    told = json.loads(text)
    assert code == 0
    assert set(told) == {"bins", "lower_bound", "gap", "proven", "seconds"}
    assert (told["bins"], told["lower_bound"], told["gap"], told["proven"]) == (2, 2, 0.0, True)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [int(row["item"]) for row in rows] == [0, 1, 2, 3]
    assert {int(row["bin"]) for row in rows} == {0, 1}
    assert "written" in err


def test_costs_are_those_of_a_count(capsys, monkeypatch, tmp_path, file):
    """Two bins of 100: which, how often fired up and how long on, counted from the written assignment."""
    out = tmp_path / "bins.csv"
    costs = ("--bin-cost", "2", "--fire-up-cost", "3", "--busy-cost", "0.5")
    code, text, _ = run(capsys, monkeypatch, str(file), *costs, "--json", "-o", str(out))
    told = json.loads(text)
    bins = [int(row["bin"]) for row in csv.DictReader(out.read_text().splitlines())]
    lives = [(0, 4), (0, 2), (2, 4), (2, 6)]
    on = {(number, t) for number, life in zip(bins, lives, strict=True) for t in range(*life)}
    fire_ups = sum((number, t - 1) not in on for number, t in on)
    assert code == 0
    assert (told["bins"], told["fire_ups"], told["busy_time"]) == (len(set(bins)), fire_ups, len(on))
    assert told["cost"] == 2 * len(set(bins)) + 3 * fire_ups + 0.5 * len(on)
    assert told["bound"] <= told["cost"]
    assert (told["gap"], told["proven"]) == (pytest.approx(1 - told["bound"] / told["cost"]), told["gap"] < 1e-12)


@pytest.fixture
def instances(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("start,end,profile,who\n0,4,3g.40gb,a\n0,4,4g.40gb,b\n2,6,gpu,c\n4,6,1g.10gb,d\n")
    return path


def test_instances_of_a_board(capsys, monkeypatch, tmp_path, instances):
    out = tmp_path / "places.csv"
    arguments = (str(instances), "--gpu-model", "A100-80GB", "--json", "-o", str(out))
    code, text, _ = run(capsys, monkeypatch, *arguments)
    assert code == 0
    assert json.loads(text)["bins"] == 2
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["start_slice"] for row in rows[:2]] == ["4", "0"]  # the only places of 3g and 4g on one GPU
    assert rows[0]["bin"] == rows[1]["bin"] != rows[2]["bin"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start,end\n0,1\n", "columns 'profile'"),
        ("start,end,profile\n0,1.5,1g.10gb\n", "end is not a whole number"),
        ("start,end,profile\n0,1,9g.10gb\n", "9g.10gb"),
    ],
)
def test_faulty_lists_of_instances(capsys, monkeypatch, instances, text, said):
    instances.write_text(text)
    code, out, err = run(capsys, monkeypatch, str(instances), "--gpu-model", "A100-80GB")
    assert (code, out) == (3, "")
    assert said in err


@pytest.mark.parametrize("costs", [(), ("--busy-cost", "1")])
def test_nothing_is_written_that_does_not_hold(capsys, monkeypatch, tmp_path, file, costs):
    """All items in one bin, which holds 160 of 100 at once."""
    from gpuplanner.planner import least_cost_packing, packing_search
    from gpuplanner.planner.packing_problem import CostedPacking, Packing

    wrong = Packing(1, 1, np.zeros(4, dtype=np.int64), None, "proof", 0.1)
    monkeypatch.setattr(packing_search, "pack", lambda *_, **__: wrong)
    costed = CostedPacking(wrong, 7, 7, 1, 6)
    monkeypatch.setattr(least_cost_packing, "pack_for_cost", lambda *_, **__: costed)
    out = tmp_path / "bins.csv"
    code, text, err = run(capsys, monkeypatch, str(file), "-o", str(out), *costs)
    assert (code, text, out.exists()) == (1, "", False)
    assert "bin 0 holds 160 of 100" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("none.txt",), 3, "readable"),
        (("/dev/null",), 3, "line 1"),
        (("items.txt", "--time-limit", "0"), 2, "time-limit"),
        (("items.txt", "--busy-cost", "-1"), 3, "busy_cost"),
        (("items.txt", "--gpu-model", "A100-80GB"), 3, "columns 'start'"),
    ],
)
def test_bad_input(capsys, monkeypatch, tmp_path, file, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    ended, out, err = run(capsys, monkeypatch, *arguments)
    assert (ended, out) == (code, "")
    assert said in err
