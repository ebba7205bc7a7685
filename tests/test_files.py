"""A folder is the old one or the new one, whenever the run that replaces it is killed."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplanner import files
from gpuplanner.errors import GpuPlannerWarning, OutputError, TraceFormatError
from gpuplanner.files import Mark, aside_of, put_back, replaced_directory
from gpuplanner.inbox import append, open_trace

MARK = Mark("about.txt", "made here")


def replace(path: Path, content: str) -> None:
    with replaced_directory(path, mark=MARK) as new:
        (new / "about.txt").write_text("made here")
        (new / "content.txt").write_text(content)


def content(path: Path) -> str:
    return (path / "content.txt").read_text()


@pytest.fixture(params=["in one step", "in two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to replace a folder."""
    if request.param == "in two steps":
        monkeypatch.setattr(files, "_exchanged", lambda one, other: False)
    return request.param


@pytest.mark.usefixtures("way")
def test_the_new_folder_takes_the_place_and_nothing_else_stays(tmp_path: Path):
    for text in ("old", "new"):
        replace(tmp_path / "out", text)
        assert content(tmp_path / "out") == text
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("way")
def test_a_link_to_a_folder_stays_a_link(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    for text in ("old", "new"):
        replace(tmp_path / "out", text)
        assert (tmp_path / "out").is_symlink()
        assert content(tmp_path / "disk") == text


def test_folders_change_places_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With one step there is no moment without a folder: no rename is left that could be the last one."""
    replace(tmp_path / "out", "old")

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(Path, "rename", refuse)
    replace(tmp_path / "out", "new")
    assert content(tmp_path / "out") == "new"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EACCES])
def test_what_the_system_says_to_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    replace(tmp_path / "out", "old")

    class Library:
        @staticmethod
        def renameat2(*_: object) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library)
    if number == errno.EACCES:
        with pytest.raises(OutputError, match="Permission denied"):
            replace(tmp_path / "out", "new")
        assert content(tmp_path / "out") == "old"
    else:
        replace(tmp_path / "out", "new")
        assert content(tmp_path / "out") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_rename_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace(tmp_path / "out", "old")
    monkeypatch.setattr(files, "_exchanged", lambda one, other: False)
    rename, calls = Path.rename, []

    def failing(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputError, match="No space left"):
        replace(tmp_path / "out", "new")
    assert content(tmp_path / "out") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from gpuplanner import files
from gpuplanner.inbox import append
if sys.argv[3] == "in two steps":
    files._exchanged = lambda one, other: False
exchanged, rename, rmtree = files._exchanged, Path.rename, files.shutil.rmtree
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
def after(change):
    def changed(*given):
        done = change(*given)
        if done and Path(given[1]).name in (".store.previous", "store"):
            die()
        return done
    return changed
if sys.argv[4] == "before":
    files._exchanged = die
elif sys.argv[3] == "in two steps":
    Path.rename = after(rename)
else:
    files._exchanged = after(exchanged)
append("itp", [sys.argv[1]], sys.argv[2])
"""


@pytest.mark.parametrize(
    ("steps", "moment", "jobs"),
    [
        ("in one step", "before", ["a"]),
        ("in one step", "after", ["a", "b"]),
        ("in two steps", "between", None),
    ],
)
def test_a_store_survives_a_kill_at_each_moment(tmp_path: Path, steps: str, moment: str, jobs: list | None):
    """Killed between two renames, nothing stands under the name: it is said where it is, and put back."""
    header, store = "job_id,submission_time,duration,num_gpu\n", tmp_path / "store"
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text(header + "a,0,3600,8\n")
    new.write_text(header + "b,60,3600,8\n")
    append("itp", [old], store)
    done = subprocess.run([sys.executable, "-c", KILLED, str(new), str(store), steps, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    if jobs is None:
        assert not store.exists()
        with pytest.raises(
            TraceFormatError, match=r"a run was stopped; what stood there is .*\.store\.previous"
        ):
            open_trace(store)
        with pytest.warns(GpuPlannerWarning, match="put back as it was before that run"):
            again = append("itp", [old], store)
        assert (again.added, again.unchanged) == ((), ("old.csv",))
        jobs = ["a"]
    assert open_trace(store).jobs["job_id"].to_list() == jobs
    assert append("itp", [new], store).trace.jobs["job_id"].to_list() == ["a", "b"]


def test_only_a_folder_of_ours_is_put_back(tmp_path: Path):
    aside_of(tmp_path / "out").mkdir()
    (aside_of(tmp_path / "out") / "notes.txt").write_text("mine")
    put_back(tmp_path / "out", mark=MARK)
    assert not (tmp_path / "out").exists()
