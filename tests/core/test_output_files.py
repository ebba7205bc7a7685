"""Whatever ends the run that writes, a folder is the old one or the new one, and what others put into it stays."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core import output_manifests_and_overwrite_checks as foreign
from gpuplanner.core import output_writing as folder
from gpuplanner.core.errors import GpuPlannerWarning, OutputError, TraceFormatError
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import lock_for_writing, replace_directory, write_atomically
from gpuplanner.core.serialization import sha256
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files
from tests.examples import examples

MARK = FolderMark("about.txt", "made here", names=("content.txt", "deep/*.txt"))


def replace(path: Path, content: str, *, more: dict[str, str] | None = None, **given: object) -> None:
    with replace_directory(path, mark=MARK, **given) as new:
        for name, text in {"about.txt": "made here", "content.txt": content, **(more or {})}.items():
            (new / name).parent.mkdir(exist_ok=True, parents=True)
            (new / name).write_text(text)


def content(path: Path) -> str:
    return (path / "content.txt").read_text()


def tree(path: Path) -> dict[str, bytes | None]:
    """Name of everything below a folder, its manifests apart → its bytes; None for a folder or a dead link."""
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else None
        for each in sorted(path.rglob("*"))
        if each.name != "manifest.json"
    }


@pytest.fixture(params=["in one step", "in two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to replace a folder."""
    if request.param == "in two steps":
        monkeypatch.setattr(folder, "exchange_paths", lambda one, other: False)
    return request.param


def test_the_manifest_lists_what_was_written_and_says_nothing_of_when(tmp_path: Path):
    replace(tmp_path / "a", "x", more={"deep/b.txt": "12"})
    replace(tmp_path / "b", "x", more={"deep/b.txt": "12"})
    told = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert told["format"] == "made here"
    assert list(told["files"]) == ["about.txt", "content.txt", "deep/b.txt"]
    assert told["files"]["deep/b.txt"] == {"bytes": 2, "sha256": sha256(tmp_path / "a" / "deep" / "b.txt")}
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()


@pytest.mark.usefixtures("way")
def test_what_others_put_into_the_folder_stays(tmp_path: Path):
    """Files, folders, links and what lies beside ours in a folder of ours, with their rights."""
    out = tmp_path / "out"
    replace(out, "old", more={"deep/ours.txt": "1"})
    (out / "notes.md").write_text("mine")
    (out / "deep" / "mine.csv").write_text("mine too")
    (out / "mine" / "empty").mkdir(parents=True)
    (out / "mine" / "run.sh").write_text("#!/bin/sh\n")
    (out / "mine" / "run.sh").chmod(0o750)
    (out / "link").symlink_to("mine/run.sh")
    (out / "nowhere").symlink_to("no/such/file")
    out.chmod(0o2775)
    inode = (out / "mine").stat().st_ino
    replace(out, "new")
    assert tree(out) == {
        "about.txt": b"made here", "content.txt": b"new", "notes.md": b"mine", "deep": None,
        "deep/mine.csv": b"mine too", "mine": None, "mine/empty": None, "mine/run.sh": b"#!/bin/sh\n",
        "link": b"#!/bin/sh\n", "nowhere": None,
    }  # fmt: skip
    assert (out / "nowhere").is_symlink()
    assert (out / "mine").stat().st_ino == inode
    assert (out / "mine" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert out.stat().st_mode & 0o7777 == 0o2775
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


NAMES = st.sampled_from(["a.txt", "b.txt", "deep/a.txt", "deep/c.txt", "deep/er/a.txt", "other/a.txt"])


@settings(max_examples=examples(60), deadline=None)
@given(old=st.sets(NAMES), theirs=st.sets(NAMES), new=st.sets(NAMES), two_steps=st.booleans())
def test_of_any_files_only_stale_ones_of_ours_go(tmp_path_factory, old, theirs, new, two_steps: bool):
    """After the run: what the new one wrote and what others wrote; or a refusal, and nothing is changed."""
    theirs = {name for name in theirs if name not in old}
    out = tmp_path_factory.mktemp("place") / "out"
    replace(out, "old", more=dict.fromkeys(old, "ours"))
    for name in theirs:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("theirs")
    before = tree(out)
    with pytest.MonkeyPatch.context() as patch:
        if two_steps:
            patch.setattr(folder, "exchange_paths", lambda one, other: False)
        if {"about.txt", "content.txt", *new} & theirs or "deep/a.txt" in theirs or "deep/c.txt" in theirs:
            with pytest.raises(OutputError, match="names that it writes"):
                replace(out, "new", more=dict.fromkeys(new, "new"))
            assert tree(out) == before
        else:
            replace(out, "new", more=dict.fromkeys(new, "new"))
            found = {name: text for name, text in tree(out).items() if text is not None}
            kept = dict.fromkeys(theirs, b"theirs") | dict.fromkeys(new, b"new")
            assert found == {"about.txt": b"made here", "content.txt": b"new"} | kept
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_file_of_ours_that_somebody_changed_is_theirs(tmp_path: Path):
    """Refused where its name is needed, kept where it is not."""
    out = tmp_path / "out"
    replace(out, "old", more={"stale.txt": "old"})
    (out / "content.txt").write_text("my")
    with pytest.raises(OutputError, match=r"'content\.txt', changed since"):
        replace(out, "new")
    (out / "content.txt").write_text("my") and (out / "content.txt").write_text("old")
    replace(out, "new")
    assert content(out) == "new"


def test_an_input_that_would_be_replaced_is_refused(tmp_path: Path):
    out = tmp_path / "out"
    replace(out, "old", more={"deep/a.txt": "1"})
    (out / "mine.csv").write_text("a,b\n")
    (tmp_path / "alias.txt").symlink_to(out / "content.txt")
    for each in ("out/content.txt", "alias.txt", "out/deep"):
        with pytest.raises(OutputError, match=f"{each}, which it would replace"):
            replace(out, "new", inputs=[tmp_path / each])
    assert content(out) == "old"
    replace(out, "new", inputs=[out / "mine.csv"])
    assert (out / "mine.csv").read_text() == "a,b\n"
    with pytest.raises(OutputError, match="an input of this run"):
        write_atomically(out / "mine.csv", lambda path: path.write_text(""), inputs=[tmp_path / "out/mine.csv"])


@pytest.mark.parametrize("listed", ["../keep.txt", "/etc/hostname", "link/keep.txt", "deep/../../keep.txt"])
def test_a_manifest_never_leads_out_of_its_folder(tmp_path: Path, listed: str):
    """Whoever wrote that line: what it points to stays."""
    out = tmp_path / "out"
    replace(out, "old")
    (tmp_path / "keep.txt").write_text("mine")
    (out / "link").symlink_to("..")
    told = json.loads((out / "manifest.json").read_text())
    told["files"][listed] = {"bytes": 4, "sha256": sha256(tmp_path / "keep.txt")}
    (out / "manifest.json").write_text(json.dumps(told))
    replace(out, "new")
    assert (tmp_path / "keep.txt").read_text() == "mine"
    assert (out / "link").is_symlink()


def test_an_older_kind_is_replaced_and_another_one_is_not(tmp_path: Path):
    replace(tmp_path / "out", "old")
    other = FolderMark("about.txt", "made there")
    refused = pytest.raises(OutputError, match="expected a 'made there' or another folder; got a 'made here'")
    with refused, replace_directory(tmp_path / "out", mark=other):
        raise AssertionError
    with replace_directory(tmp_path / "out", mark=FolderMark("about.txt", "made there", older=(MARK,))) as new:
        (new / "b.txt").write_text("")
    assert set(tree(tmp_path / "out")) == {"b.txt"}


@pytest.mark.parametrize("given", ["", ".", "..", "/", "./sub/..", "{home}", "{file}", "{loop}", "\udcff", "{file}/t"])
def test_places_that_no_folder_can_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str):
    for name in ("work", "house", "work/sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "house"))
    given = given.format(home=tmp_path / "house", file=tmp_path / "file", loop=tmp_path / "loop")
    before = tree(tmp_path / "work")
    with pytest.raises(OutputError, match="cannot write"):
        replace(Path(given), "new")
    assert tree(tmp_path / "work") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "house", "loop", "work"]


@pytest.mark.parametrize(
    ("given", "what"),
    [("", "a folder"), (".", "a folder"), ("/", "a folder"), ("sub", "a folder"), ("/dev/null", "a device")],
)
def test_places_that_no_file_can_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, what: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with pytest.raises(OutputError, match=f"the name of a file; got {what}"):
        write_atomically(Path(given), lambda path: path.write_text(""))
    assert Path("/dev/null").is_char_device()


@pytest.mark.usefixtures("way")
def test_a_link_to_a_folder_stays_a_link(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    for text in ("old", "new"):
        replace(tmp_path / "out", text)
        assert (tmp_path / "out").is_symlink()
        assert content(tmp_path / "disk") == text


def test_a_link_to_a_file_stays_a_link_and_rights_stay(tmp_path: Path):
    write_atomically(tmp_path / "real.txt", lambda path: path.write_text("old"))
    (tmp_path / "real.txt").chmod(0o640)
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_atomically(tmp_path / "link.txt", lambda path: path.write_text("new"))
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o640


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
    (tmp_path / "out" / "notes.md").write_text("mine")

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
    assert (tmp_path / "out" / "notes.md").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_second_rename_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    replace(tmp_path / "out", "old")
    monkeypatch.setattr(folder, "exchange_paths", lambda one, other: False)
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


def test_a_fault_after_the_exchange_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What could not be moved over waits beside the folder, and the next run moves it."""
    replace(tmp_path / "out", "old")
    (tmp_path / "out" / "notes.md").write_text("mine")

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreign, "move_without_overwriting", refuse)
        with pytest.raises(OutputError, match="Permission denied"):
            replace(tmp_path / "out", "new")
    assert content(tmp_path / "out") == "new"
    with pytest.warns(GpuPlannerWarning, match=r"'notes\.md' put back"):
        replace(tmp_path / "out", "newer")
    assert tree(tmp_path / "out") == {"about.txt": b"made here", "content.txt": b"newer", "notes.md": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


KILLED = """
import json, os, shutil, signal, sys, warnings
from pathlib import Path
from gpuplanner.core import output_manifests_and_overwrite_checks as foreign
from gpuplanner.core.output_manifests_and_overwrite_checks import FolderMark
from gpuplanner.core.output_writing import replace_directory

above, steps, known = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out, mark = above / "out", FolderMark("about.txt", "made here", names=("content.txt", "deep/ours.txt"))
WATCHED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.scandir"}
left = None
warnings.simplefilter("ignore")

def one_less(event, given):
    global left
    if left is not None and event in WATCHED:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

renamed = foreign._rename_with_flag

def counted(one, other, how):
    one_less("os.rename", ())
    done = steps == "in one step" and renamed(one, other, how)
    one_less("os.rename", ())
    return done

def replace(content):
    with replace_directory(out, mark=mark) as new:
        (new / "about.txt").write_text("made here")
        (new / "content.txt").write_text(content)
        (new / "deep").mkdir()
        (new / "deep" / "ours.txt").write_text(content)

def tree():
    found = {str(each.relative_to(out)): each for each in out.rglob("*") if each.is_file()}
    return {name: each.read_text() for name, each in found.items() if name != "manifest.json"}

sys.addaudithook(one_less)
foreign._rename_with_flag = counted
countdown, status, told = 0, None, []
while status != 0:
    for each in above.iterdir():
        shutil.rmtree(each)
    replace("old")
    for name in ("notes.md", "deep/mine.csv", "theirs/a/b.txt"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    if known == "no manifest":
        (out / "manifest.json").unlink()
    child = os.fork()
    if child == 0:
        left = countdown
        replace("new")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    after = tree()
    replace("newer")
    told.append([status, after, tree(), [each.name for each in above.iterdir()]])
    countdown += 1
print(json.dumps(told))
"""


@pytest.mark.parametrize("steps", ["in one step", "in two steps"])
@pytest.mark.parametrize("known", ["a manifest", "no manifest"])
def test_a_run_killed_at_any_call_loses_nothing_and_the_next_one_clears_up(tmp_path: Path, steps: str, known: str):
    """Killed before each call to the system in turn: ours is old or new, never a mixture; theirs is there after."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), steps, known]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert len(told) > 30
    ours = ("about.txt", "content.txt", "deep/ours.txt")
    mine = {"notes.md": "mine", "deep/mine.csv": "mine", "theirs/a/b.txt": "mine"}
    for status, after, later, beside in told:
        assert status in (0, signal.SIGKILL)
        assert [after.get(name) for name in ours[1:]] in (
            [["old"] * 2, ["new"] * 2] + ([[None] * 2] if steps == "in two steps" else [])
        )
        assert later == {"about.txt": "made here", "content.txt": "newer", "deep/ours.txt": "newer"} | mine
        assert beside == ["out"]
    assert {after.get("content.txt") for _, after, _, _ in told} >= {"old", "new"}


STOPPED = """
import os, signal, sys
from pathlib import Path
from gpuplanner.core import output_writing as folder
from gpuplanner.ingest.dataset_import import add_files
folder.exchange_paths = lambda one, other: False
rename = Path.rename
def die(one, other):
    rename(one, other)
    if other.name == "previous":
        os.kill(os.getpid(), signal.SIGKILL)
Path.rename = die
add_files("itp", [sys.argv[1]], sys.argv[2])
"""


def test_a_folder_that_stands_aside_is_named_and_put_back(tmp_path: Path):
    """Killed between two renames, nothing stands under the name."""
    header, store = "job_id,submission_time,duration,num_gpu\n", tmp_path / "store"
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text(header + "a,0,3600,8\n")
    new.write_text(header + "b,60,3600,8\n")
    add_files("itp", [old], store)
    done = subprocess.run([sys.executable, "-c", STOPPED, str(new), str(store)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not store.exists()
    with pytest.raises(TraceFormatError, match=r"a run was stopped; what stood there is .*/previous"):
        open_dataset(store)
    with pytest.warns(GpuPlannerWarning, match="put back as it was before that run"):
        again = add_files("itp", [old], store)
    assert (again.added, again.unchanged) == ((), ("old.csv",))
    assert add_files("itp", [new], store).dataset.jobs["job_id"].to_list() == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "old.csv", "store"]


def test_only_what_a_run_of_ours_left_is_swept(tmp_path: Path):
    """A name that only looks like ours, or a folder under such a name with other things in it, stays."""
    for name in (".out.gpuplanner-abcdefgh", ".out.gpuplanner-ABCDEFGH", ".out.notes", ".other.gpuplanner-abcdefgh"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("mine")
    (tmp_path / ".out.gpuplanner-empty000").mkdir()
    (tmp_path / ".a.txt.gpuplanner-half0000.txt").write_text("half")
    replace(tmp_path / "out", "new")
    write_atomically(tmp_path / "a.txt", lambda path: path.write_text("whole"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a.txt.gpuplanner", ".other.gpuplanner-abcdefgh", ".out.gpuplanner-ABCDEFGH", ".out.gpuplanner-abcdefgh",
        ".out.notes", "a.txt", "out",
    ]  # fmt: skip


def test_nobody_else_writes_while_a_run_reads_and_its_own_writers_may(tmp_path: Path):
    refused = []

    def other() -> None:
        for write in (
            lambda: replace(tmp_path / "out", "other"),
            lambda: lock_for_writing(tmp_path / "out").__enter__(),
        ):
            with pytest.raises(OutputError, match="the only run that writes it; got another run at it"):
                write()
            refused.append(True)

    with lock_for_writing(tmp_path / "out"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        replace(tmp_path / "out", "mine")
    assert refused == [True, True]
    assert content(tmp_path / "out") == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
