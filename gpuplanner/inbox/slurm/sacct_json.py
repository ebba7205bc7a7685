"""Slurm's jobs as JSON: of ``sacct --json`` (21.08 and later), of Sonar, and of ``squeue --json`` (22.05 and later)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuplanner.errors import OTHER_FILE, TraceFormatError, message
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.json_items import read_items
from gpuplanner.inbox.core.lines.rows import Record, Records, Rows, refuse
from gpuplanner.inbox.slurm.fields import UNSET

LISTS = ("jobs", "data", "attributes", "slurm_jobs")
REPAIRED = "start repaired"
"""Column that marks jobs whose stated start is the time at which they became eligible."""

LIVE = "shown by squeue"
"""Column that marks jobs of ``squeue --json``, which shows what waits and runs at one moment."""

SACCT_TEXTS = {
    **{"Account": "account", "User": "user", "QOS": "qos", "JobName": "name"},
    **{"Partition": "partition", "NodeList": "nodes", "Cluster": "cluster"},
}
SONAR_TEXTS = {
    **{"Submit": "submit_time", "Start": "start_time", "End": "end_time", "ReqTRES": "requested_resources"},
    **{"Account": "account", "User": "user_name", "JobName": "job_name", "Partition": "partition"},
}
SQUEUE_TEXTS = {
    **{"Account": "account", "User": "user_name", "QOS": "qos", "JobName": "name", "Partition": "partition"},
    **{"NodeList": "nodes", "AllocTRES": "tres_alloc_str", "ReqTRES": "tres_req_str", "Cluster": "cluster"},
}
SQUEUE_TIMES = {
    "Submit": "submit_time",
    "Eligible": "eligible_time",
    "Start": "start_time",
    "End": "end_time",
}
"""Column of sacct → where its text, or its time, stands."""
HAS_NO_END = ("RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "RESIZING")
"""States in which squeue shows as the end the time at which the limit of the job is reached."""

SPAN = ("time.start", "time.eligible", "time.end", "time.elapsed", "time.suspended")

NOT_A_JOB = "not a job: no object with a job_id"


def read_slurm_json(paths: Sequence[str | Path], columns: Mapping[str, Field]) -> Rows:
    """Read JSON into the fields that the text form of sacct has."""
    records, files = Records(columns), []
    for number, path in enumerate(paths):
        file, items = read_items(path, LISTS)
        files.append(file)
        listed = 0
        for item in items:
            listed += 1
            job = item.value
            if item.fault or not isinstance(job, dict) or "job_id" not in job:
                records.reject(number, item.place, item.raw, item.fault or NOT_A_JOB)
                continue
            try:
                live = "tres_req_str" in job
                record = _squeue(job) if live else _sonar(job) if "job_state" in job else _sacct(job)
            except ValueError as error:
                records.reject(number, item.place, item.raw, str(error))
            else:
                records.add(number, item.place, item.raw, record)
        if not listed:
            raise TraceFormatError(message(str(path), "a list of jobs", "none", OTHER_FILE))
    return records.rows(files)


def _sacct(job: Mapping[str, Any]) -> Record:
    """Fields of a job as data_parser and the older openapi plugins of slurmdbd print it.

    The plugins up to dbv0.0.39 print the time at which a job became eligible as its start. Where the two
    are equal and the elapsed time tells otherwise, the elapsed time is right: it leaves out only the time
    suspended. For a job that still runs, its running steps tell when sacct was run.

    References
    ----------
    SchedMD/slurm: src/plugins/openapi/dbv0.0.37/parse.c (``parse_job``) and src/plugins/data_parser.
    """
    start, eligible, end, elapsed, suspended = (_number(job, where) for where in SPAN)
    told = None
    if start is not None and start == eligible and elapsed is not None:
        seen = end or _seen(job)
        told = None if seen is None else seen - elapsed - (suspended or 0)
    repaired = told is not None and start is not None and told > start + 1
    return {
        "JobID": _job_id(job),
        "State": _state(
            _at(job, "state.current") if isinstance(job.get("state"), dict) else job.get("state")
        ),
        "Submit": _plain(_number(job, "time.submission") or None),
        "Eligible": _plain(eligible or None),
        "Start": _plain(told if repaired else start or None),
        "End": _plain(end or None),
        "AllocTRES": _tres(job, "tres.allocated"),
        "ReqTRES": _tres(job, "tres.requested"),
        **{column: _text(job.get(name)) for column, name in SACCT_TEXTS.items()},
        "ElapsedRaw": _plain(elapsed),
        "TimelimitRaw": _plain(_number(job, "time.limit")),
        REPAIRED: "yes" if repaired else None,
    }


def _sonar(job: Mapping[str, Any]) -> Record:
    """Fields of a job as NordicHPC Sonar writes it: limits in s, plus 2 (0: not set, 1: without limit)."""
    limit, elapsed = _number(job, "time_limit"), _number(job, "sacct.ElapsedRaw")
    nodes = job.get("nodes") or []
    if not (isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)):
        refuse("nodes: not a list of names")
    step = _text(job.get("job_step"))
    return {
        "JobID": _job_id(job) + (f".{step}" if step else ""),
        "State": _state(job.get("job_state")),
        **{column: _text(job.get(name)) for column, name in SONAR_TEXTS.items()},
        "AllocTRES": _text(_at(job, "sacct.AllocTRES")) or _text(job.get("allocated_resources")),
        "NodeList": ",".join(nodes),
        "ElapsedRaw": _plain(elapsed),
        "TimelimitRaw": None if limit is None or limit < 2 else repr((limit - 2) / 60),
    }


def _squeue(job: Mapping[str, Any]) -> Record:
    """Fields of a job as ``squeue --json`` or ``scontrol show jobs --json`` shows it, from Slurm 22.05 on.

    References
    ----------
    SchedMD/slurm: src/plugins/data_parser/v0.0.40/parsers.c, JOB_INFO.
    """
    if not isinstance(job.get("job_state"), list):
        refuse("squeue of Slurm before 22.05")
    state = _state(job["job_state"])
    times = {column: _number(job, name) or None for column, name in SQUEUE_TIMES.items()}
    times |= {"End": None} if state in HAS_NO_END else {}
    return {
        "JobID": _job_id(job),
        "State": state,
        **{column: _plain(time) for column, time in times.items()},
        **{column: _text(job.get(name)) for column, name in SQUEUE_TEXTS.items()},
        "TimelimitRaw": _plain(_number(job, "time_limit")),
        LIVE: "yes",
    }


def _job_id(job: Mapping[str, Any]) -> str:
    """The id that sacct prints as text: 7, 7_3 for a task of an array, 7_[3-9] for waiting ones, 7+1."""
    own = _number(job, "job_id")
    if own is None:
        refuse("job_id: missing")
    group = _number(job, "array.job_id", "array_job_id")
    task = _number(job, "array.task_id", "array_task_id")
    waiting = _text(_at(job, "array.task", job.get("array_task_string")))
    if group and task is not None:
        return f"{group}_{task}"
    if waiting:
        return f"{group or own}_[{waiting}]"
    leader = _number(job, "het.job_id", "het_job_id")
    offset = _number(job, "het.job_offset", "het_job_offset")
    return f"{leader}+{offset or 0}" if leader else str(own)


def _seen(job: Mapping[str, Any]) -> int | None:
    """When a job that still runs was observed, from its first running step."""
    steps = job.get("steps")
    for step in steps if isinstance(steps, list) else ():
        told = {"steps.time": step.get("time") if isinstance(step, dict) else None}
        start, _, end, elapsed, suspended = (_number(told, f"steps.{where}") for where in SPAN)
        if start and elapsed is not None and not end:
            return start + elapsed + (suspended or 0)
    return None


def _tres(job: Mapping[str, Any], where: str) -> str | None:
    """GPUs and nodes of a TRES list as sacct's text: ``gres/gpu:a100=2,node=1``; None if there is no list."""
    listed = _at(job, where)
    if listed is None or listed == []:
        return None
    if not (isinstance(listed, list) and all(isinstance(item, dict) for item in listed)):
        refuse(f"{where}: not a list of objects")
    items = []
    for item in listed:
        kind, name = _text(item.get("type")), _text(item.get("name"))
        count = _whole(item.get("count"), f"{where}.count")
        if kind is None or count is None or "," in (name or ""):
            continue
        items.append(f"{kind}/{name}={count}" if name else f"{kind}={count}")
    return ",".join(items) or None


def _state(stated: object) -> str | None:
    """The base state: newer versions print a list of it and its flags."""
    if isinstance(stated, list):
        stated = stated[0] if stated else None
    return _text(stated)


def _number(job: Mapping[str, Any], where: str, else_at: str = "") -> int | None:
    """A whole number of a job, which older versions have elsewhere."""
    return _whole(_at(job, where, job.get(else_at) if else_at else None), where)


def _whole(value: object, where: str) -> int | None:
    """A whole number, plain or as ``{"set": true, "infinite": false, "number": 5}``; None if it is not set."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        refuse(f"{where}: not a whole number")
    return None if value in UNSET else value


def _plain(number: int | None) -> str | None:
    return None if number is None else str(number)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _at(job: Mapping[str, Any], path: str, default: object = None) -> Any:  # noqa: ANN401 - what JSON can hold
    """What stands in a job at a path such as ``time.start``; the default where it has no such place."""
    above, _, name = path.rpartition(".")
    place = job.get(above) if above else job
    return place.get(name, default) if isinstance(place, dict) else default
