"""MISO: jobs of an experiment with MIG slices, arrivals and run times in a file each (Li et al., SoCC 2022)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.json_items import read_items
from gpuplanner.inbox.core.lines.records import Records
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.times import MAX_SECONDS
from gpuplanner.inbox.public.clocks import Clock
from gpuplanner.inbox.public.job_lists import list_trace

COLUMN_MAP = {
    "job": Field("job_id"),
    "arrival": Field("submit_s", "number", high=MAX_SECONDS),
    "run": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
}
"""Number of the job; seconds from the start of the experiment; seconds of run time."""

ARRIVALS, RUNS = "trace", "exp"
"""Beginnings of the names of the two files: nothing inside tells them apart."""


def looks_like_miso(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like an object of job numbers and seconds."""
    return re.match(r'\{\s*"0"\s*:\s*\d', "".join(lines[:2]).lstrip()) is not None


def read_miso(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    r"""Read the arrivals and the run times of the same jobs.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder) / "trace_1.json", Path(folder) / "exp_1.json"]
    ...     _ = paths[0].write_text('{"0": 120}'), paths[1].write_text('{"0": 346}')
    ...     trace = read_miso(paths)
    >>> (trace.jobs["end_time"] - trace.jobs["start_time"]).item().total_seconds()
    346.0
    """
    parts = {
        role: [Path(path) for path in paths if Path(path).name.startswith(f"{role}_")]
        for role in (ARRIVALS, RUNS)
    }
    if [len(each) for each in parts.values()] != [1, 1] or len(paths) != 2:
        got = examples([str(path) for path in paths]) or "no files"
        text = message("miso", f"one {ARRIVALS}_*.json and one {RUNS}_*.json", got, "Give both together.")
        raise TraceFormatError(text)
    (first, arrivals), (second, runs) = (_seconds(part[0]) for part in parts.values())
    records = Records(COLUMN_MAP)
    for place, job in enumerate(dict.fromkeys([*arrivals, *runs]), 1):
        row = {"job": job, "arrival": arrivals.get(job), "run": runs.get(job)}
        records.add(0 if job in arrivals else 1, place, f"{job}: {row['arrival']}, {row['run']}", row)
    fills = {"tenant": pl.lit("miso"), "gpus": pl.lit(None, pl.Float64)}
    notes = ["the row of a reject is the number of its job in the files"]
    return list_trace(
        records.rows([first, second]), Clock.of(origin), source="miso", fills=fills, notes=notes
    )


def _seconds(path: Path) -> tuple[TextFile, dict[str, str | None]]:
    """Text of the seconds of each job."""
    file, items = read_items(path, ())
    values = [item.value for item in items]
    if len(values) != 1 or not isinstance(values[0], dict):
        text = message(
            str(path), "one object of job numbers and seconds", "something else", "Is it the right file?"
        )
        raise TraceFormatError(text)
    return file, {job: _text(value) for job, value in values[0].items()}


def _text(value: Any) -> str | None:  # noqa: ANN401 - anything that JSON can hold
    return None if value is None else str(value)
