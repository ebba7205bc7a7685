"""``gpuplanner allocate`` as scripts use it."""

from __future__ import annotations

import csv
import json

import pytest

from gpuplanner.cli.app import main

PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "a,1000,10,1,500,\nb,1000,10,2,1000,T4\nc,1000,10,0,0,\nd,1000,10,1,600,A10\n"
)
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,100,2,T4\nn2,8000,100,1,T4\n"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES)
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        given = ["gpuplanner", "allocate", "pods.csv", "--nodes", "nodes.csv", *arguments]
        monkeypatch.setattr("sys.argv", given)
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return command


def test_lists_as_they_are(run, tmp_path):
    code, text, err = run("--policy", "best-fit", "--orders", "0", "--json", "-o", "new/all.csv")
    told = json.loads(text)
    assert code == 0
    assert told["runs"] == [
        {
            "seed": 0,
            "policy": "best-fit",
            "arrivals": 4,
            "placed": 3,
            "arrived_share": pytest.approx(3.1 / 3),
            "allocated_share": pytest.approx(2.5 / 3),
            "fragmented_gpus": pytest.approx(3 / 4 * 0.5),  # all but pod a cannot use the half
        }
    ]
    assert told["unplaced_in_first_run"] == [
        {"reason": "no node has the model", "pods": 1, "gpus": 0.6, "arrived_share": pytest.approx(0.6 / 3.1)}
    ]
    rows = list(csv.DictReader((tmp_path / "new" / "all.csv").read_text().splitlines()))
    assert [(row["pod"], row["node"], row["gpus"]) for row in rows] == [
        ("a", "n2", "0"),
        ("b", "n1", "0-1"),
        ("c", "n1", ""),
        ("d", "", ""),
    ]
    assert "written" in err


def test_orders_repeat_with_their_seed(run):
    first = run("--orders", "3", "--seed", "5", "--up-to", "2", "--policy", "random", "--json")
    assert first == run("--orders", "3", "--seed", "5", "--up-to", "2", "--policy", "random", "--json")
    told = json.loads(first[1])
    assert [row["seed"] for row in told["runs"]] == [5, 6, 7]
    assert [row["orders"] for row in told["curve"]] == [3] * 11


def test_text(run):
    code, text, err = run("--quiet")
    assert (code, err) == (0, "")
    assert text.startswith("Orders of arrival\n")
    assert "Left out, seed 0" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--policy", "tetris"), 3, "policy"),
        (("--up-to", "0"), 3, "up_to"),
        (("--orders", "-1"), 2, "orders"),
        (("--nodes", "pods.csv"), 3, "sn"),
        (("--nodes", "none.csv"), 3, "none.csv"),
    ],
)
def test_bad_input(run, arguments, code, said):
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, "")
    assert said in err
