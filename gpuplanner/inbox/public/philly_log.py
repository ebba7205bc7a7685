"""Philly: the log of scheduling attempts with their servers and GPUs, 2017 (Jeon et al., USENIX ATC 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from gpuplanner.errors import TraceFormatError, message
from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.json_items import is_json, read_items
from gpuplanner.inbox.core.lines.records import Records
from gpuplanner.inbox.core.times import known_zone
from gpuplanner.inbox.public.clocks import localized
from gpuplanner.inbox.public.helios import with_states
from gpuplanner.inbox.public.philly import TIME_ZONE
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

COLUMN_MAP = {
    "jobid": Field("job_id"),
    "attempt": Field("attempt", "number"),
    "vc": Field("tenant"),
    "user": Field("user", nullable=True),
    "status": Field("state"),
    "submitted_time": Field("submit_time", "time"),
    "start_time": Field("start_time", "time", nullable=True),
    "end_time": Field("end_time", "time", nullable=True),
    "gpus": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "nodes": Field("nodes", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "ip": Field("node_list", nullable=True),
    "again": Field("again", nullable=True),
}
"""`vc`: virtual cluster; `ip`: servers; `again`: not empty for an attempt that was followed by another."""

CALLED = {"submit_time": "submitted_time"}

STATES = {"Pass": "COMPLETED", "Killed": "CANCELLED", "Failed": "FAILED"}

ODD = "not a job as the source documents it"

CHECKS = (
    AMBIGUOUS_TIME,
    Check(
        "attempt followed by another",
        "info",
        "its state is FAILED; the next one is taken to be submitted when this one ended",
        pl.col("again").is_not_null(),
    ),
    Check(
        "never scheduled",
        "info",
        "the number of GPUs asked for is not in the source",
        pl.col("gpus").is_null(),
    ),
)


def looks_like_log(lines: Sequence[str]) -> bool:
    """True if the first lines of a file look like ``cluster_job_log``."""
    text = "\n".join(lines)
    return is_json(lines) and all(f'"{name}"' in text for name in ("jobid", "vc", "attempts"))


def read_philly_log(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the Philly job log, ``cluster_job_log``: a row of the trace is one scheduling attempt.

    The status is that of the job, so it is given to the last attempt; those before it failed. A last attempt
    without an end still ran when the snapshot was taken. A job without attempts was never scheduled.

    References
    ----------
    .. [1] msr-fiddle/philly-traces, README: schema of ``cluster_job_log``.

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
    zone = known_zone(tz or TIME_ZONE)
    if not paths:
        raise TraceFormatError(message("philly", "at least one file", "none", "Give the path of a file."))
    records, files = Records(COLUMN_MAP), []
    for number, path in enumerate(paths):
        file, items = read_items(path, ())
        files.append(file)
        for item in items:
            attempts = None if item.fault else _attempts(item.value)
            if attempts is None:
                records.reject(number, item.place, item.raw, item.fault or ODD)
            for attempt in attempts or ():
                records.add(number, item.place, item.raw, attempt)
    rows = with_states(records.rows(files), STATES)
    rows = localized(rows, ["submit_time", "start_time", "end_time"], zone, called=CALLED)
    earlier, ran = pl.col("again").is_not_null(), pl.col("start_time").is_not_null()
    jobs = rows.good.with_columns(
        state=pl.when(earlier)
        .then(pl.lit("FAILED"))
        .when(ran & pl.col("end_time").is_null())
        .then(pl.lit("RUNNING"))
        .otherwise("state"),
    )
    return assemble(replace(rows, good=jobs), source="philly", time_zone=zone, checks=CHECKS)


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
