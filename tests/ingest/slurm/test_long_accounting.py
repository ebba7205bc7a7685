"""Accounting text of any length: read block by block, the same jobs, rejects and findings as in one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuplanner.core.errors import TraceFormatError
from gpuplanner.ingest import table_assembly as job_rows
from gpuplanner.ingest.dataset_import import add_files
from gpuplanner.ingest.source_registry import read
from gpuplanner.ingest.text_files import FileBlocks

HEAD = "JobID|JobIDRaw|State|Submit|Start|End|AllocTRES|Account|NodeList|ElapsedRaw|JobName"


def text_of(jobs: int, seed: int) -> str:
    """Jobs with steps, requeues, rows seen twice, tasks of arrays, MIG, faults, and the night when clocks go back."""
    rng = np.random.default_rng(seed)
    lines = [HEAD]
    for number in range(jobs):
        minute = int(rng.integers(0, 50 * 24 * 60))
        clock = np.datetime64("2025-09-20T00:00") + np.timedelta64(minute, "m")
        submit, start, end = (str(clock + np.timedelta64(m, "m")) + ":00" for m in (0, 7, 7 + number % 90))
        name = f"{number // 3}_{number % 3}" if number % 5 == 0 else str(number)
        gpus = ("gres/gpu=1", "gres/gpu:a100=2,gres/gpu=2", "gres/gpu:a100_1g.5gb=3", "cpu=4", "cpu")[number % 5]
        state = ("COMPLETED", "FAILED", "RUNNING", "CANCELLED by 7")[number % 4]
        end = "Unknown" if state == "RUNNING" else end
        start, end = (end, start) if number % 41 == 40 and end != "Unknown" else (start, end)
        row = f"{name}|{number}|{state}|{submit}|{start}|{end}|{gpus}|team{number % 4}|n{number % 9}|300|x|y"
        lines.append(row)
        if number % 3 == 0:
            lines.append(row.replace(f"{name}|", f"{name}.batch|", 1))
        if number % 17 == 0:
            lines.append(row)
        if number % 19 == 0:
            lines.append(row.replace("2025-", "2026-").replace("COMPLETED", "REQUEUED"))
        if number % 23 == 0:
            lines += ["", "7|7|COMPLETED", row.replace(state, "LOST"), row.replace(submit, "never")]
    return "\n".join(lines) + "\n"


def test_blocks_and_parts_change_nothing(monkeypatch, tmp_path: Path):
    path = tmp_path / "sacct.txt"
    path.write_text(text_of(300, 1))
    whole = read("slurm", path, tz="Europe/Oslo")
    monkeypatch.setattr(FileBlocks, "__init__", _of_small_blocks(FileBlocks.__init__))
    monkeypatch.setattr(job_rows, "ORDERED_CHUNK_ROWS", 100)
    found = add_files("slurm", [path], tmp_path / "data", tz="Europe/Oslo").dataset
    assert whole.rejects["reason"].n_unique() == 7
    assert whole.jobs["attempt"].max() == 2
    assert found.jobs.equals(whole.jobs)
    assert found.rejects.equals(whole.rejects)
    assert found.quality.equals(whole.quality)
    assert found.tables["job_names"].equals(whole.tables["job_names"])
    told = {**whole.provenance, "read_with": {"tz": "Europe/Oslo"}}
    assert {name: found.provenance[name] for name in told} == told | {"gpu_hours": found.provenance["gpu_hours"]}
    assert found.provenance["gpu_hours"] == pytest.approx(told["gpu_hours"], rel=1e-12)


def test_nothing_stays_of_a_list_that_cannot_be_read(monkeypatch, tmp_path: Path):
    path = tmp_path / "sacct.txt"
    path.write_text(f"{HEAD}\n" + "1.batch|1|COMPLETED|x|x|x|cpu|a|n1|1|x\n" * 50)
    monkeypatch.setattr(FileBlocks, "__init__", _of_small_blocks(FileBlocks.__init__))
    with pytest.raises(TraceFormatError, match=r"step of a job.* in 50 row"):
        add_files("slurm", [path], tmp_path / "data", tz="UTC")
    assert [each.name for each in tmp_path.iterdir() if each.name != ".data.lock"] == ["sacct.txt"]


def _of_small_blocks(made):
    return lambda self, *given, **named: made(self, *given, **(named | {"block_bytes": 9000}))
