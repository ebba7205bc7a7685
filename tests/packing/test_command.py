"""``gpuplanner pack`` as scripts use it."""

from __future__ import annotations

import csv
import json

import pytest

from gpuplanner.cli.app import main

ITEMS = "4\t100\t0\t0\n0\t0\t4\t60\n1\t0\t2\t40\n2\t2\t4\t40\n3\t2\t6\t60\n"


def run(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["gpuplanner", "pack", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text(ITEMS)
    return path


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


def test_text(capsys, monkeypatch, file):
    code, text, _ = run(capsys, monkeypatch, str(file), "--work-limit", "3")
    assert code == 0
    assert text.startswith("bins         2\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("none.txt",), 3, "readable UTF-8"),
        (("/dev/null",), 3, "line 1"),
        ((), 2, "FILE"),
        (("items.txt", "--time-limit", "0"), 2, "time-limit"),
        (("items.txt", "--seed", "-1"), 2, "seed"),
        (("items.txt", "--seed", "9" * 12), 3, "seed"),
    ],
)
def test_bad_input(capsys, monkeypatch, tmp_path, file, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    ended, out, err = run(capsys, monkeypatch, *arguments)
    assert (ended, out) == (code, "")
    assert said in err


def test_unwritable_output_leaves_nothing(capsys, monkeypatch, tmp_path, file):
    code, out, err = run(capsys, monkeypatch, str(file), "-o", str(file / "bins.csv"))
    assert (code, out) == (3, "")
    assert "writable place" in err
    assert file.read_text() == ITEMS


def test_missing_library_is_named(capsys, monkeypatch, file):
    import gpuplanner._optional as optional

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(optional.importlib, "import_module", missing)
    from gpuplanner.jit import entry

    with pytest.raises(ImportError, match=r"gpuplanner\[simulate\]"):
        entry(lambda: None)
