"""However a run ends: what stood there is whole, what others put there stays, and the terminal gets plain text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplanner.ingest.dataset_folder import open_dataset

MAIN = "from gpuplanner.cli import main; main()"
SLOW = f"""
import sys, time
import polars as pl
write = pl.LazyFrame.sink_parquet
def slow(*given, **named):
    write(*given, **named)
    print("writing", flush=True)
    time.sleep(60)
pl.LazyFrame.sink_parquet = slow
{MAIN}
"""
HEADER = "job_id,submission_time,duration,num_gpu\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def lists(tmp_path: Path) -> tuple[str, str]:
    """Two lists of jobs."""
    for name, job in (("one.csv", "a"), ("two.csv", "b")):
        (tmp_path / name).write_text(f"{HEADER}{job},0,3600,8\n")
    return str(tmp_path / "one.csv"), str(tmp_path / "two.csv")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        pytest.param(
            signal.SIGINT, 130, "gpuplanner: interrupted; results written before are intact", marks=pytest.mark.long
        ),
        (signal.SIGTERM, 143, "gpuplanner: ended by SIGTERM; results written before are intact"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
@pytest.mark.parametrize("old", [False, True])
def test_a_run_that_is_ended_leaves_the_old_and_the_next_one_no_trace_of_it(
    command, lists: tuple[str, str], tmp_path: Path, number: int, code: int, said: str, old: bool
):
    """While it writes, a second run on the same folder is refused by name."""
    one, two = lists
    store = tmp_path / "store"
    if old:
        assert command("ingest", "itp", one, "-o", str(store))[0] == 0
        (store / "notes.md").write_text("mine")
    before, there = contents(store), sorted(path.name for path in tmp_path.iterdir())
    ingest = [sys.executable, "-c", SLOW, "ingest", "itp", two, "-o", str(store)]
    with subprocess.Popen(ingest, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "writing\n"
        refused, _, err = command("ingest", "itp", one, "-o", str(store))
        assert refused == 3
        assert f"cannot write {store}: expected to be the only run that writes it; got another run at it" in err
        run.send_signal(number)
        assert run.wait() == code
        assert run.stderr.read().strip() == said
    assert contents(store) == before
    if number != signal.SIGKILL:
        assert sorted(path.name for path in tmp_path.iterdir()) == there
    assert command("ingest", "itp", one, "-o", str(store))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*there, "store"})
    assert open_dataset(store).provenance["files"][0]["name"] == "one.csv"
    assert (store / "notes.md").exists() == old


ENDLESS = f"""
import time
import polars as pl
from polars.io.plugins import register_io_source
def rows(*_):
    print("reading", flush=True)
    while True:
        time.sleep(0.01)
        yield pl.DataFrame({{"a": [1]}})
write = pl.LazyFrame.sink_parquet
def endless(table, path, **named):
    write(register_io_source(rows, schema=pl.Schema({{"a": pl.Int64()}})), path, engine="streaming")
pl.LazyFrame.sink_parquet = endless
{MAIN}
"""


def test_sigterm_ends_a_step_of_polars_that_never_would(lists, tmp_path: Path):
    """Python handles signals between its own steps only: without more, this run would have to be killed."""
    ingest = [sys.executable, "-c", ENDLESS, "ingest", "itp", lists[0], "-o", str(tmp_path / "store")]
    with subprocess.Popen(ingest, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "reading\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 143
        assert run.stderr.read().strip() == "gpuplanner: ended by SIGTERM; results written before are intact"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "two.csv"]


def test_a_second_ingest_keeps_what_is_not_ours(command, lists, tmp_path: Path):
    """Notes, a plan and the raw source beside the tables: all three were lost once."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "src.csv").write_text(Path(lists[0]).read_text())
    for _ in range(2):
        code, _, err = command("ingest", "itp", str(source / "src.csv"), "-o", str(source))
        assert code == 0, err
        (source / "notes.txt").write_text("mine")
        (source / "plan.json").write_text("{}")
    assert (source / "src.csv").read_text() == Path(lists[0]).read_text()
    assert {"src.csv", "notes.txt", "plan.json", "jobs.parquet", "manifest.json"} <= set(contents(source))


@pytest.mark.parametrize("place", ["", ".", "/", "..", "file", "file/t"])
@pytest.mark.parametrize(
    "words",
    [("ingest", "itp", "{one}"), ("demo",), ("report", "2026-02"), ("export", "{one}")],
    ids=lambda words: words[0],
)
def test_places_that_cannot_be_written_are_refused_in_a_line(
    command, lists, tmp_path: Path, monkeypatch, place: str, words: tuple[str, ...]
):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    code, out, err = command(*(word.format(one=lists[0]) for word in words), "-o", place, "--quiet")
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert contents(tmp_path / "here") == {"file": b"mine"}


@pytest.mark.parametrize(
    "words",
    [
        ("describe", "sample", "--chart", "{place}.html"),
        ("plan", "sample", "-o", "{place}"),
        ("binpack", "{one}", "-o", "{place}"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_where_a_file_should_be_is_refused_in_a_line(command, lists, tmp_path: Path, words):
    for name in ("place", "place.html"):
        (tmp_path / name).mkdir()
    code, out, err = command(*(word.format(one=lists[0], place=tmp_path / "place") for word in words))
    assert (code, out) == (3, "")
    assert "expected the name of a file; got a folder" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [("binpack", "{one}", "-o", "{one}"), ("plan", "{one}", "-o", "{one}")])
def test_a_result_never_takes_the_place_of_its_input(command, tmp_path: Path, words):
    one = tmp_path / "one.json"
    one.write_text("{}")
    code, _, err = command(*(word.format(one=one) for word in words))
    assert code == 3
    assert "an input of this run" in err
    assert one.read_text() == "{}"


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnp"


def plain(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


def test_names_of_files_never_reach_the_terminal_as_commands(command, tmp_path: Path):
    bad = tmp_path / f"{HOSTILE}.csv"
    bad.write_text("no,jobs\n1,2\n")
    good = tmp_path / f"good{HOSTILE}.csv"
    good.write_text(f"{HEADER}a,0,3600,8\nb,x,3600,8\n")
    for words in (
        ("ingest", "itp", str(bad), "-o", str(tmp_path / "t")),
        ("ingest", HOSTILE, str(bad), "-o", str(tmp_path / "t")),
        ("ingest", "itp", str(good), "-o", str(tmp_path / f"t{HOSTILE}")),
        ("describe", str(tmp_path / f"t{HOSTILE}")),
        ("describe", str(tmp_path / f"t{HOSTILE}"), "--json"),
        ("describe", str(bad)),
        ("plan", str(bad)),
        ("plan", "sample", "--set", f"{HOSTILE}=1"),
        ("catalog", "layouts", HOSTILE),
        ("verify", str(bad), "--gpu-model", HOSTILE),
        ("export", str(bad), "-o", str(tmp_path / HOSTILE)),
        ("binpack", str(bad)),
        (HOSTILE,),
    ):
        _, out, err = command(*words)
        assert plain(out), words
        assert plain(err), words
        assert out or err


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_names_of_files_that_are_no_text(tmp_path: Path):
    """Read as any other; what is printed and kept names them in letters that anyone can read."""
    folder = os.fsencode(tmp_path)
    source, out = folder + b"/jobs-\xff\xe9.csv", folder + b"/out"
    Path(os.fsdecode(source)).write_text(f"{HEADER}a,0,3600,8\nb,x,3600,8\n")
    ingest = [sys.executable, "-c", MAIN, "ingest", "itp", source, "-o", out, "--json"]
    done = subprocess.run(ingest, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = open_dataset(tmp_path / "out").provenance
    assert told["files"][0]["name"] == r"jobs-\xff\xe9.csv"
    described = [sys.executable, "-c", MAIN, "describe", out]
    assert subprocess.run(described, capture_output=True, check=False).returncode == 0


def test_a_chart_without_its_library_ends_with_the_command_that_installs_it(lists, tmp_path):
    data, hidden = tmp_path / "data", f"import sys; sys.modules['altair'] = None; {MAIN}"
    subprocess.run([sys.executable, "-c", MAIN, "ingest", "auto", lists[0], "-o", data], check=True)
    command = [sys.executable, "-c", hidden, "describe", data, "--chart", tmp_path / "a.html"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 7
    assert "pip install 'gpuplanner[plot]'" in ended.stderr
    assert "Traceback" not in ended.stderr
