"""``gpuplanner simulate --case``."""

from __future__ import annotations

import json

import pytest


def test_twenty_jobs_as_json(command):
    code, out, _ = command("simulate", "--case", "twenty-jobs", "--seeds", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["case"], found["seeds"]) == ("twenty-jobs", 2)
    assert [row["reported"] for row in found["comparison"]] == [114, 0.362, 59, 0.8979]
    times = [row["mean"] for row in found["policies"] if row["measure"] == "completion_min"]
    assert len(times) == 4
    assert times[-1] < 0.6 * times[0]
    assert command("simulate", "--case", "twenty-jobs", "--seeds", "2", "--json")[1] == out


def test_twenty_jobs_says_that_it_is_calibrated(command):
    code, out, talk = command("simulate", "--case", "twenty", "--seeds", "2")
    assert code == 0
    assert "decomposition" in out
    assert "36 configurations were tried" in talk


def test_harder_compares_with_cutting_on_demand(command):
    code, out, _ = command("simulate", "--case", "harder", "--seeds", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert {row["policy"] for row in found["against_greedy"]} == {
        "planned, real forecast",
        "planned, perfect forecast",
        "lower bound: nobody waits",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--case", "forty-jobs"), 3, "twenty-jobs"),
        (("sample", "--case", "harder"), 2, "give one of"),
        (("--case", "harder", "--seeds", "1"), 2, "--seeds"),
        (("--case", "harder", "--board", "A30"), 2, "--board: without meaning with --case"),
        (("sample", "--seeds", "5"), 2, "--seeds: without meaning with SCENARIO"),
    ],
)
def test_what_makes_no_sense_is_refused(command, arguments, code, said):
    ended, _, talk = command("simulate", *arguments)
    assert ended == code
    assert said in talk
