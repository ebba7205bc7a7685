"""Workers change nothing but the time: processes and a Dask scheduler, and a worker that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpuplanner.core.errors import WorkerError
from gpuplanner.core.libraries_plugins_and_workers import run_tasks
from gpuplanner.ingest.dataset_import import add_files


def slow_square(number: int, mark: str) -> int:
    """The square; whoever computes that of 3 first is killed, and leaves a mark."""
    place = Path(mark)
    if number == 3 and not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def deadly(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture(scope="module")
def cluster():
    """A Dask scheduler on loopback with two workers that are processes of their own."""
    dask = pytest.importorskip("distributed", reason="the extra 'scale' is not installed")
    with dask.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as local:
        yield local


@pytest.mark.long
def test_a_killed_process_changes_nothing(tmp_path):
    mark = str(tmp_path / "killed")
    told: list[tuple[int, int]] = []
    found = dict(
        run_tasks(
            slow_square, [(number, mark) for number in range(6)], workers=2,
            progress=lambda done, total: told.append((done, total)),
        )
    )  # fmt: skip
    assert Path(mark).exists()
    assert found == {number: number * number for number in range(6)}
    assert told == [(done, 6) for done in range(1, 7)]


@pytest.mark.long
def test_a_task_that_kills_every_process_is_given_up():
    with pytest.raises(WorkerError, match="3 times in a row"):
        list(run_tasks(deadly, [(1,), (2,)], workers=2))


@pytest.mark.long
def test_a_killed_dask_worker_changes_nothing(cluster, tmp_path):
    tasks = [(number, str(tmp_path / "killed")) for number in range(6)]
    found = dict(run_tasks(slow_square, tasks, workers=cluster.scheduler_address))
    assert (tmp_path / "killed").exists()
    assert found == {number: number * number for number in range(6)}


def test_files_that_two_processes_read_are_those_that_one_reads(tmp_path):
    files = []
    for part in range(3):
        path = tmp_path / f"part{part}.csv"
        rows = [f"{part}-{number},{3600 * (9 * part + number)},1800,1" for number in range(9)]
        path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows, "broken,x,1,1"]) + "\n")
        files.append(path)
    one, two = tmp_path / "one", tmp_path / "two"
    add_files("itp", files, one)
    add_files("itp", files, two, workers=2)
    told = [{path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")} for folder in (one, two)]
    assert told[0] == told[1]
    assert len(told[0]) > 5
