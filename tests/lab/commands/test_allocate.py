"""``gpuplanner allocate`` as scripts use it."""

from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
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
        where = () if "--board" in arguments else ("--nodes", "nodes.csv")
        given = ["gpuplanner", "allocate", "pods.csv", *where, *arguments]
        monkeypatch.setattr("sys.argv", given)
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out, out.err

    return command


@pytest.mark.long
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
    # Pod b has one GPU pair, pod a half of the last: all but pod a cannot use the other half.
    assert told["left_in_first_run"] == [
        {
            "model": "T4",
            "nodes": 2,
            "gpus": 3,
            "idle_gpus": 0.5,
            "fragmented_gpus": pytest.approx(3 / 4 * 0.5),
        }
    ]
    rows = list(csv.DictReader((tmp_path / "new" / "all.csv").read_text().splitlines()))
    assert [(row["pod"], row["node"], row["gpus"]) for row in rows] == [
        ("a", "n2", "0"),
        ("b", "n1", "0-1"),
        ("c", "n1", ""),
        ("d", "", ""),
    ]
    assert "written" in err


@pytest.mark.long
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


def test_names_never_run_in_a_spreadsheet(run, tmp_path):
    (tmp_path / "pods.csv").write_text(PODS.replace("a,1000", "=1+1,1000"))
    run("--orders", "0", "-o", "all.csv")
    assert "\r\n0,'=1+1,n" in (tmp_path / "all.csv").read_bytes().decode()


def test_nothing_is_written_that_does_not_hold(run, monkeypatch, tmp_path):
    import gpuplanner.lab.placement as placement

    true_allocate = placement.allocate

    def nowhere(*given, **options):
        found = true_allocate(*given, **options)
        return dataclasses.replace(found, node=np.full(4, -1), reason=np.ones(4, dtype=np.int64))

    monkeypatch.setattr(placement, "allocate", nowhere, raising=False)
    code, text, err = run("--orders", "0", "-o", "all.csv")
    assert (code, text, (tmp_path / "all.csv").exists()) == (1, "", False)
    assert "left out, but node" in err


LISTED = "name,profile\na,4g.20gb\nb,3g.20gb\nc,4g.20gb\nd,7g.40gb\n"


def test_instances_on_gpus(run, tmp_path):
    """4g and 3g fill the first GPU, 4g half of the second: 3g fits beside it, a quarter of what came."""
    (tmp_path / "pods.csv").write_text(LISTED)
    code, text, _ = run(
        "--board", "A100-40", "--gpus", "2", "--policy", "first-fit", "--json", "-o", "all.csv"
    )
    told = json.loads(text)
    assert code == 0
    assert (told["placed"], told["allocated_slices"], told["slices"]) == (3, 12, 16)
    assert told["fragmented_slices"] == pytest.approx(3 / 4 * 4)
    assert told["profiles"][-1] == {"profile": "7g.40gb", "asked": 1, "placed": 0, "left_out": 1}
    assert sum(row["gpus"] * row["fragmented_slices"] for row in told["layouts"]) == told["fragmented_slices"]
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert [(row["name"], row["gpu"], row["start_slice"]) for row in rows] == [
        ("a", "0", "0"),
        ("b", "0", "4"),
        ("c", "1", "0"),
        ("d", "", ""),
    ]


def test_instances_in_words(run, tmp_path):
    (tmp_path / "pods.csv").write_text(LISTED)
    code, text, err = run("--board", "A100-40", "--gpus", "2", "--quiet")
    assert (code, err) == (0, "")
    assert "4g.20gb@0 3g.20gb@4" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--board", "A100-40"), 2, "go together"),
        (("--board", "A100-40", "--gpus", "2", "--seed", "1"), 2, "mean nothing"),
        (("--board", "A100-40", "--gpus", "2", "--nodes", "nodes.csv"), 2, "--nodes"),
        (("--board", "A100-40", "--gpus", "2"), 3, "columns 'profile'"),
    ],
)
def test_bad_use_of_boards(run, arguments, code, said):
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, "")
    assert said in err


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


def test_a_folder_where_a_file_should_be_is_refused_in_a_line(command, tmp_path):
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES)
    words = (str(tmp_path / "pods.csv"), "--nodes", str(tmp_path / "nodes.csv"), "-o", str(tmp_path))
    code, out, err = command("allocate", *words)
    assert (code, out) == (3, "")
    assert "expected the name of a file; got a folder" in err
    assert len(err.splitlines()) == 1
