"""Accounting files of PBS Pro, OpenPBS or Torque as a job table.

Run ``python pbs_to_jobs.py /var/spool/pbs/server_priv/accounting/2026* > jobs.csv``. Times of a record are unix
seconds, so the table is in UTC; only the end of a run that was requeued is in the zone of the server.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = ["job_id", "user", "team", "submit", "start", "end", "gpus", "gpu_model", "nodes", "state", "eligible"]
FIELD = re.compile(r'(\S+?)=("(?:[^"\\]|\\.)*"|\S*)')
KILLED = ("265", "271", "-12")
MODELS = ("gpu_type", "gpu_model", "accelerator_model")


def utc(seconds: str | None) -> str:
    """Unix seconds as ISO 8601; empty where there are none."""
    known = seconds and int(seconds) > 0
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds and known else ""


def sum_of_chunks(text: str, name: str) -> int:
    """Sum of a resource over chunks such as ``2:ncpus=8:ngpus=4+1:ngpus=1``."""
    total = 0
    for chunk in text.strip('"').split("+"):
        number, *words = chunk.strip("()").split(":")
        per_chunk = [word.partition("=")[2] for word in (number, *words) if word.startswith(f"{name}=")]
        if per_chunk and per_chunk[0].isdigit():
            total += int(per_chunk[0]) * (int(number) if number.isdigit() else 1)
    return total


def gpus_of(record: Mapping[str, str]) -> int:
    """GPUs of a job: as used, as asked for, or as its virtual nodes, its chunks or its nodes (Torque) add up to."""
    for name in ("resources_used.ngpus", "Resource_List.ngpus"):
        if record.get(name, "").isdigit() and int(record[name]):
            return int(record[name])
    torque = record.get("Resource_List.neednodes", record.get("Resource_List.nodes", ""))
    return (
        sum_of_chunks(record.get("exec_vnode", ""), "ngpus")
        or sum_of_chunks(record.get("Resource_List.select", ""), "ngpus")
        or sum_of_chunks(torque, "gpus")
    )


def model_of(record: Mapping[str, str]) -> str:
    """GPU model as the site names it."""
    named = [record[f"Resource_List.{name}"] for name in MODELS if record.get(f"Resource_List.{name}")]
    select = record.get("Resource_List.select", "")
    return next(iter(named or re.findall(rf"(?:{'|'.join(MODELS)})=([^:+\s\"]+)", select)), "")


def row_of(line: str) -> list[str] | None:
    """One row for a record of an end (E), a rerun (R) or an abort (A) of a job with GPUs."""
    when, kind, job, text = [*line.split(";", 3), "", "", ""][:4]
    record = dict(FIELD.findall(text))
    gpus = gpus_of(record)
    if kind not in ("E", "R", "A") or not gpus:
        return None
    end, exit_status = record.get("end"), record.get("Exit_status", "")
    if kind == "R" and not end:
        end = str(int(datetime.strptime(when, "%m/%d/%Y %H:%M:%S").astimezone().timestamp()))
    ended = "CANCELLED" if exit_status in KILLED else "COMPLETED" if exit_status == "0" else "FAILED"
    state = {"R": "PREEMPTED", "A": "CANCELLED"}.get(kind, ended)
    hosts = dict.fromkeys(re.split(r"[/:]", host)[0] for host in record.get("exec_host", "").split("+"))
    team = record.get("account") or record.get("project") or record.get("group", "")
    times = [utc(record.get(name)) for name in ("ctime", "start")]
    return [
        *(job, record.get("user", ""), team.strip('"'), *times, utc(end), str(gpus), model_of(record)),
        *("+".join(filter(None, hosts)), state, utc(record.get("etime"))),
    ]


if __name__ == "__main__":
    table = csv.writer(sys.stdout)
    table.writerow(COLUMNS)
    for name in sys.argv[1:]:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            table.writerows(row for line in file if (row := row_of(line.rstrip("\n"))))
