"""A folder that grows: the order of the files changes nothing, and no run leaves half a folder."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplanner.core.errors import OutputError, TraceFormatError
from gpuplanner.ingest.dataset_folder import open_dataset
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.dataset_writer import write_dataset
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.table_assembly import SUPERSEDED_REASON

HEADER = "JobIDRaw|Account|Submit|Start|End|State|AllocTRES"
JANUARY = (
    "1|bio|2026-01-05T08:00:00|2026-01-05T08:00:00|2026-01-05T10:00:00|COMPLETED|gres/gpu=4",
    "2|bio|2026-01-31T23:00:00|2026-01-31T23:00:00|Unknown|RUNNING|gres/gpu=8",
)
FEBRUARY = (
    "2|bio|2026-01-31T23:00:00|2026-01-31T23:00:00|2026-02-01T01:00:00|COMPLETED|gres/gpu=8",
    "3|ads|2026-02-02T08:00:00|2026-02-02T08:00:00|2026-02-02T09:00:00|COMPLETED|gres/gpu=1",
    "4|ads|never|2026-02-02T08:00:00|2026-02-02T09:00:00|COMPLETED|gres/gpu=1",
)


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., Path]:
    """Write a dump of sacct."""

    def write(name: str, *lines: str) -> Path:
        path = tmp_path / name
        path.write_text("\n".join([HEADER, *lines, ""]))
        return path

    return write


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_later_export_wins_and_every_row_is_accounted_for(dump: Callable[..., Path], tmp_path: Path):
    months = dump("jan.txt", *JANUARY), dump("feb.txt", *FEBRUARY)
    done = add_files("slurm", months, tmp_path / "store", tz="UTC")
    assert done.added == ("jan.txt", "feb.txt")
    jobs, facts = done.dataset.jobs, done.dataset.summary()
    assert jobs["job_id", "state"].rows() == [("1", "COMPLETED"), ("2", "COMPLETED"), ("3", "COMPLETED")]
    assert (facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == (5, 3, 2)
    assert facts["gpu_hours"] == 4 * 2 + 8 * 2 + 1
    rejects = done.dataset.rejects["file", "row", "reason", "raw"].rows()
    assert ("jan.txt", None, SUPERSEDED_REASON, "job 2, attempt 1") in rejects
    checks = dict(done.dataset.quality["check", "rows"].iter_rows())
    assert checks[f"rejected: {SUPERSEDED_REASON}"] == 1
    assert "running when the observation ended" not in checks  # true of January alone
    opened = open_dataset(tmp_path / "store")
    assert opened.jobs.equals(jobs)
    assert opened.quality.equals(done.dataset.quality)
    assert opened.provenance == done.dataset.provenance


def test_an_export_that_ends_half_a_second_later_is_later(tmp_path: Path):
    for name, seconds, gpus in (("z.csv", "100", 1), ("a.csv", "100.5", 2)):
        (tmp_path / name).write_text(f"job_id,submission_time,duration,num_gpu\nj,0,{seconds},{gpus}\n")
    done = add_files("itp", [tmp_path / "a.csv", tmp_path / "z.csv"], tmp_path / "store")
    assert done.dataset.jobs["gpus"].to_list() == [2]
    assert done.dataset.provenance["span_end"] == "2021-03-04T00:01:40.500000Z"


def test_the_order_of_the_files_changes_no_byte(dump: Callable[..., Path], tmp_path: Path):
    files = dump("jan.txt", *JANUARY), dump("feb.txt", *FEBRUARY), dump("march.txt", FEBRUARY[1])
    found = []
    for number, order in enumerate(itertools.permutations(files)):
        folder = tmp_path / f"store{number}"
        for path in order:
            add_files("slurm", [path], folder, tz="UTC")
        found.append(contents(folder))
    add_files("slurm", files, tmp_path / "at once", tz="UTC")
    assert all(each == contents(tmp_path / "at once") for each in found)


def test_nothing_new_is_said_and_nothing_is_written(dump: Callable[..., Path], tmp_path: Path):
    january = dump("jan.txt", *JANUARY)
    add_files("slurm", [january], tmp_path / "store", tz="UTC")
    inode, before = (tmp_path / "store").stat().st_ino, contents(tmp_path / "store")
    renamed = january.rename(tmp_path / "january.txt")
    again = add_files("auto", [renamed], tmp_path / "store", tz="UTC")
    assert (again.added, again.replaced, again.unchanged) == ((), (), ("january.txt",))
    assert again.describe_import() == "nothing to do: 1 file(s) read before, none new or changed"
    assert ((tmp_path / "store").stat().st_ino, contents(tmp_path / "store")) == (inode, before)


def test_a_file_that_changed_takes_back_what_it_said(dump: Callable[..., Path], tmp_path: Path):
    """Job 2 was told by both; once February has it no more, January's word counts again."""
    files = dump("jan.txt", *JANUARY), dump("feb.txt", *FEBRUARY)
    add_files("slurm", files, tmp_path / "store", tz="UTC")
    dump("feb.txt", FEBRUARY[1])
    done = add_files("slurm", files, tmp_path / "store", tz="UTC")
    assert (done.added, done.replaced, done.unchanged) == ((), ("feb.txt",), ("jan.txt",))
    assert done.dataset.jobs["job_id", "state"].rows() == [("1", "COMPLETED"), ("2", "RUNNING"), ("3", "COMPLETED")]
    add_files("slurm", files, tmp_path / "anew", tz="UTC")
    assert contents(tmp_path / "anew") == contents(tmp_path / "store")


@settings(max_examples=15, deadline=None)
@given(
    exports=st.lists(
        st.dictionaries(st.integers(0, 5), st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=4
    )
)
def test_merged_is_what_a_dictionary_would_hold(exports: list[dict[int, int]]):
    """Each export ends a day after the one before; the oracle updates a dictionary in that order."""
    expected: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for day, export in enumerate(exports):
            path = Path(folder) / f"export{9 - day}.csv"
            rows = [f"{job},{job},{86400 * (day + 1)},{gpus}" for job, gpus in export.items()]
            path.write_text(
                "\n".join(
                    ["job_id,submission_time,duration,num_gpu", *rows, f"mark{day},{86400 * day + 100},{86400},0", ""]
                )
            )
            expected |= {str(job): float(gpus) for job, gpus in export.items()} | {f"mark{day}": 0.0}
            found = add_files("itp", [path], Path(folder) / "store").dataset
    assert dict(found.jobs["job_id", "gpus"].iter_rows()) == expected
    facts = found.summary()
    assert facts["rows_in"] == sum(len(export) + 1 for export in exports)
    assert facts["rows_in"] == facts["rows_kept"] + facts["rows_rejected"]


PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
SUPERCLOUD = "id_job,id_array_task,id_user,state,time_submit,time_start,time_end,tres_alloc"
FIRST = 1609535912


def philly_row(day: int, cluster: str, gpus: int, seconds: int) -> str:
    return f"2017-10-{day + 1:02} 06:13:03,{seconds}.0,{gpus},{gpus * seconds}.0,{cluster}"


def supercloud_row(number: int, user: int, second: int, seconds: int) -> str:
    times = f"{FIRST + second},{FIRST + second + 60},{FIRST + second + 60 + seconds}"
    return f'{number}e12,4294967294,{user}e13,{3 if seconds else 1},{times},"1=4,4=1,1002=2"'


ROWS = {
    "philly": (
        PHILLY,
        st.builds(philly_row, st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 2)),
    ),
    "supercloud": (
        SUPERCLOUD,
        st.builds(supercloud_row, st.integers(5, 6), st.integers(4, 5), st.integers(0, 1), st.integers(0, 2)),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "source", [pytest.param(one, marks=[] if one == "philly" else pytest.mark.long) for one in ROWS]
)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_files_without_job_ids_read_at_once_are_those_added_one_by_one(source: str, data: st.DataObject):
    """Rows come twice within a file and again in the next one; the same file in another form adds nothing."""
    header, row = ROWS[source]
    parts = data.draw(st.lists(st.lists(row, min_size=1, max_size=6), min_size=2, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.csv" for number in range(len(parts))]
        for path, lines in zip(paths, parts, strict=True):
            path.write_text("\n".join([header, *lines, ""]))
        if len({path.read_bytes() for path in paths}) < len(paths):
            return  # equal files are refused in both ways
        at_once = read(source, paths)
        for path in paths:
            done = add_files(source, [path], Path(folder) / "store").dataset
        again = Path(folder) / "again.csv"
        again.write_text("\r\n".join([header, *parts[-1], ""]))
        twice = add_files(source, [again], Path(folder) / "store").dataset
    facts = ("rows_in", "rows_kept", "rows_rejected", "span_start", "span_end", "gpu_hours")
    order = ["submit_time", "job_id"]
    assert done.jobs.sort(order).equals(at_once.jobs.sort(order))  # type: ignore[union-attr]
    assert [done.summary()[name] for name in facts] == [at_once.summary()[name] for name in facts]
    assert twice.jobs.equals(done.jobs)


def test_a_month_of_philly_by_hand(tmp_path: Path):
    """January's last row is February's first; two equal rows of February are two jobs."""
    shared, other = philly_row(1, "a", 2, 3600), philly_row(2, "b", 4, 1800)
    for name, lines in (("one.csv", [philly_row(0, "a", 1, 7200), shared]), ("two.csv", [shared, other, other])):
        (tmp_path / name).write_text("\n".join([PHILLY, *lines, ""]))
    add_files("philly", [tmp_path / "one.csv"], tmp_path / "store")
    done = add_files("auto", [tmp_path / "two.csv"], tmp_path / "store")
    facts = done.dataset.summary()
    assert (facts["rows_in"], facts["rows_kept"], facts["rows_rejected"]) == (5, 4, 1)
    assert facts["gpu_hours"] == 1 * 2 + 2 * 1 + 2 * (4 * 0.5)


def test_two_kinds_of_files_that_tell_of_the_same_jobs_are_not_put_together(tmp_path: Path):
    """The job log of Philly has ids of its own, its table none: together they would count each job twice."""
    table, log, store = tmp_path / "table.csv", tmp_path / "log.json", tmp_path / "store"
    table.write_text("\n".join([PHILLY, philly_row(0, "a", 1, 7200), ""]))
    attempt = {"start_time": "2017-10-01 06:13:03", "end_time": "2017-10-01 08:13:03", "detail": []}
    job = {"jobid": "application_1", "status": "Pass", "vc": "a", "user": "u", "attempts": [attempt]}
    log.write_text(json.dumps([job | {"submitted_time": "2017-10-01 06:13:03"}]))
    with pytest.raises(TraceFormatError, match="files of one kind"):
        add_files("philly", [table, log], store)
    add_files("philly", [table], store)
    before = contents(store)
    with pytest.raises(TraceFormatError, match=r"the options that it was read with, .*'kind': 'job table'"):
        add_files("philly", [log], store)
    assert add_files("auto", [table], store).unchanged == ("table.csv",)
    assert contents(store) == before


def test_what_cannot_be_added_leaves_the_folder_as_it_was(dump: Callable[..., Path], tmp_path: Path):
    january = dump("jan.txt", *JANUARY)
    store = tmp_path / "store"
    add_files("slurm", [january], store, tz="UTC")
    before = contents(store)
    february, bad = dump("feb.txt", *FEBRUARY), dump("bad.txt", "1|bio|x|x|x|x|x")
    rival, twin = tmp_path / "rival.csv", tmp_path / "twin.txt"
    rival.write_text("job_id,submission_time,duration,num_gpu\na,0,7200,8\n")
    twin.write_bytes(february.read_bytes())
    other = tmp_path / "other" / "mar.txt"
    other.parent.mkdir()
    other.write_text("\n".join([HEADER, *FEBRUARY, ""]))
    for fault, source, paths, zone in (
        ("at least one readable job", "slurm", [february, bad], "UTC"),
        ("the options that it was read with", "slurm", [february], "Europe/Oslo"),
        ("no other source of jobs", "itp", [rival], None),
        ("different files", "slurm", [february, twin], "UTC"),
        ("files of different names", "slurm", [dump("mar.txt", *FEBRUARY[1:]), other], "UTC"),
        ("No such file", "slurm", [tmp_path / "none.txt"], "UTC"),
        ("a regular file; got a folder", "slurm", [tmp_path], "UTC"),
    ):
        with pytest.raises(TraceFormatError, match=fault):
            add_files(source, paths, store, tz=zone)
        assert contents(store) == before
    plain = write_dataset(read("slurm", january, tz="UTC"), tmp_path / "plain")  # type: ignore[arg-type]
    with pytest.raises(TraceFormatError, match="a source that can grow; got one that an earlier version read at once"):
        add_files("slurm", [january], plain, tz="UTC")
    facts = json.loads((store / "provenance.json").read_text())
    facts["sources"][0]["files"] = [{"name": "jan.txt"}]
    (store / "provenance.json").write_text(json.dumps(facts))
    with pytest.raises(TraceFormatError, match="the facts of each source"):
        open_dataset(store)
    with pytest.raises(OutputError, match=r"'provenance\.json', changed since"):
        add_files("slurm", [january], store, tz="UTC")


SLOW = """
import sys, time
from gpuplanner.ingest import dataset_writer as draft
from gpuplanner.ingest.dataset_import import add_files
write = draft.write_table
def slow(*given, **named):
    write(*given, **named)
    print("writing", flush=True)
    time.sleep(60)
draft.write_table = slow
add_files("slurm", [sys.argv[1]], sys.argv[2], tz="UTC")
"""


def test_two_runs_cannot_collide_and_one_that_is_killed_leaves_the_old_state(dump: Callable[..., Path], tmp_path: Path):
    january, february, store = dump("jan.txt", *JANUARY), dump("feb.txt", *FEBRUARY), tmp_path / "store"
    add_files("slurm", [january], store, tz="UTC")
    before = contents(store)
    command = [sys.executable, "-c", SLOW, str(february), str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        with pytest.raises(OutputError, match="the only run that writes it; got another run at it"):
            add_files("slurm", [february], store, tz="UTC")
        with pytest.raises(OutputError, match="another run"):
            write_dataset(open_dataset(store), store)
        assert contents(store) == before
        other.send_signal(signal.SIGKILL)
    assert contents(store) == before
    assert add_files("slurm", [february], store, tz="UTC").added == ("feb.txt",)


def test_the_command_says_what_it_did(dump: Callable[..., Path], tmp_path: Path, capsys, monkeypatch):
    from gpuplanner.cli.application import main

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["gpuplanner", "ingest", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().err

    january, february = str(dump("jan.txt", *JANUARY)), str(dump("feb.txt", *FEBRUARY))
    more = ("-o", str(tmp_path / "store"), "--append", "--tz", "UTC")
    assert "1 file(s) added, 0 replaced, 0 read before" in run("slurm", january, *more)[1]
    assert "1 file(s) added, 0 replaced, 1 read before; 1 row(s)" in run("sacct", january, february, *more)[1]
    assert "nothing to do: 2 file(s) read before" in run("auto", january, february, *more)[1]
    assert run("slurm", january, *more, "--replace")[0] == 2
