"""Public job lists in JSON: the scheduling attempts of Philly, and the experiment of MISO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, examples, message
from gpuplanner.inbox.core.dataset import (Dataset)
from gpuplanner.inbox.core.lines.column_tables import source_columns
from gpuplanner.inbox.core.lines.json_items import is_json, read_items
from gpuplanner.inbox.core.lines.rows import Records
from gpuplanner.inbox.core.lines.text_file import TextFile
from gpuplanner.inbox.core.source import looks, matches
from gpuplanner.inbox.core.source_checks import source_check
from gpuplanner.inbox.public.job_tables import PHILLY_ZONE
from gpuplanner.inbox.public.trace import JobTrace

ODD = "not a job as the source documents it"
EARLIER, RAN = pl.col("again").is_not_null(), pl.col("start_time").is_not_null()

PHILLY_LOG = JobTrace(
    "philly",
    source_columns("philly_log"),
    zone=PHILLY_ZONE,
    states={"Pass": "COMPLETED", "Killed": "CANCELLED", "Failed": "FAILED"},
    steps=[
        {
            "state": pl.when(EARLIER)
            .then(pl.lit("FAILED"))
            .when(RAN & pl.col("end_time").is_null())
            .then(pl.lit("RUNNING"))
            .otherwise("state")
        }
    ],
    checks=[
        source_check("philly: another attempt", EARLIER),
        source_check("philly: never scheduled", pl.col("gpus").is_null()),
    ],
)
"""`vc`: virtual cluster; `ip`: servers; `again`: not empty for an attempt that was followed by another."""

ARRIVALS, RUNS = "trace", "exp"
"""Beginnings of the names of the two files of MISO: nothing inside tells them apart."""

MISO = JobTrace(
    "miso",
    source_columns("miso"),
    steps=[{"tenant": pl.lit("miso"), "gpus": pl.lit(None, pl.Float64)}],
    notes=["the row of a reject is the number of its job in the files"],
)
"""Number of the job; seconds from the start of the experiment; seconds of run time (Li et al., SoCC 2022)."""


def is_philly_log(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like ``cluster_job_log``."""
    text = "\n".join(lines)
    return is_json(lines) and all(f'"{name}"' in text for name in ("jobid", "vc", "attempts"))


@looks(is_philly_log)
def read_philly_log(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    """Read the Philly job log, ``cluster_job_log``: a row of the trace is one scheduling attempt.

    The status is that of the job, so it is given to the last attempt; those before it failed. A last attempt
    without an end still ran when the snapshot was taken. A job without attempts was never scheduled.

    References
    ----------
    .. [1] Jeon et al., USENIX ATC 2019; msr-fiddle/philly-traces, README: schema of ``cluster_job_log``.

    Examples
    --------
    >>> import json, tempfile
    >>> place = [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]
    >>> tries = [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 02:12:09", "detail": place}]
    >>> job = {"status": "Pass", "vc": "ee9e8c", "jobid": "application_1", "attempts": tries}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster_job_log"
    ...     _ = path.write_text(json.dumps([job | {"submitted_time": "2017-10-07 01:11:39", "user": "ce2f4c"}]))
    ...     read_philly_log([path]).jobs["gpus", "state", "node_list"].row(0)
    (2.0, 'COMPLETED', 'm47')
    """
    if not paths:
        raise TraceFormatError(message("philly", "at least one file", "none", "Give the path of a file."))
    records, files = Records(PHILLY_LOG.columns), []
    for number, path in enumerate(paths):
        file, items = read_items(path, ())
        files.append(file)
        for item in items:
            attempts = None if item.fault else _attempts(item.value)
            if attempts is None:
                records.reject(number, item.place, item.raw, item.fault or ODD)
            for attempt in attempts or ():
                records.add(number, item.place, item.raw, attempt)
    return PHILLY_LOG.of(records.rows(files), tz=tz)


def _attempts(job: Any) -> list[dict[str, str | None]] | None:  # noqa: ANN401 - anything that JSON can hold
    """Text of each column for each attempt of a job; None if it is not built as documented."""
    try:
        shared = {name: _text(job[name]) for name in ("jobid", "vc", "user", "status")}
        submitted, tries = _text(job["submitted_time"]), list(_tries(job["attempts"]))
    except (KeyError, TypeError, AttributeError):
        return None
    if not tries:
        return [shared | {"attempt": "1", "submitted_time": submitted}]
    ends = [submitted, *(attempt["end_time"] for attempt in tries)]
    last = len(tries)
    return [
        shared
        | attempt
        | {
            "attempt": str(number),
            "submitted_time": ends[number - 1] or submitted,
            "again": "yes" if number < last else None,
        }
        for number, attempt in enumerate(tries, 1)
    ]


def _tries(attempts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str | None]]:
    for attempt in attempts:
        places = [(place["ip"], place["gpus"]) for place in attempt["detail"]]
        if not all(isinstance(ip, str) and isinstance(gpus, list) for ip, gpus in places):
            raise TypeError
        yield {
            "start_time": _text(attempt["start_time"]),
            "end_time": _text(attempt["end_time"]),
            "gpus": str(sum(len(gpus) for _, gpus in places)) if places else None,
            "nodes": str(len({ip for ip, _ in places})) if places else None,
            "ip": ",".join(dict.fromkeys(ip for ip, _ in places)) or None,
        }


def _text(value: Any) -> str | None:  # noqa: ANN401 - anything that JSON can hold
    """A text; the source writes what is missing as null or "None"."""
    if value is None or value == "None":
        return None
    if not isinstance(value, str):
        raise TypeError
    return value


@looks(matches(r'\A\s*\{\s*"0"\s*:\s*\d'))
def read_miso(paths: Sequence[str | Path], *, origin: datetime | str | None = None) -> Dataset:
    """Read the arrivals and the run times of the same jobs, a file each.

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
    records = Records(MISO.columns)
    for place, job in enumerate(dict.fromkeys([*arrivals, *runs]), 1):
        row = {"job": job, "arrival": arrivals.get(job), "run": runs.get(job)}
        records.add(0 if job in arrivals else 1, place, f"{job}: {row['arrival']}, {row['run']}", row)
    return MISO.of(records.rows([first, second]), origin=origin)


def _seconds(path: Path) -> tuple[TextFile, dict[str, str | None]]:
    """Text of the seconds of each job."""
    file, items = read_items(path, ())
    values = [item.value for item in items]
    if len(values) != 1 or not isinstance(values[0], dict):
        expected, todo = "one object of job numbers and seconds", "Is it the right file?"
        raise TraceFormatError(message(str(path), expected, "something else", todo))
    return file, {job: None if value is None else str(value) for job, value in values[0].items()}
