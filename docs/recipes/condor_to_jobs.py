"""The history of HTCondor as a job table.

Ask each schedd (``-name SCHEDD``), the second line for runs of jobs that were evicted::

    condor_history -json -constraint 'RequestGPUs > 0' > history.json
    condor_history -epochs -json -constraint 'RequestGPUs > 0' > epochs.json
    python condor_to_jobs.py history.json > jobs.csv

Give the one or the other: the last run of a job is in both. Times are unix seconds, so the table is in UTC.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COLUMNS = ["job_id", "user", "team", "submit", "start", "end", "gpus", "gpu_model", "nodes", "state", "eligible"]
STATES = {2: "RUNNING", 3: "CANCELLED", 4: "COMPLETED", 6: "RUNNING", 7: "RUNNING"}
"""JobStatus → state; 1 waits and 5 is held."""

Ad = Mapping[str, Any]


def utc(seconds: float | None) -> str:
    """Unix seconds as ISO 8601; empty where there are none."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else ""


def gpus_of(ad: Ad) -> int:
    """GPUs of a job: as provisioned, as asked for, or as many as were assigned."""
    for name in ("GPUsProvisioned", "RequestGPUs"):
        if isinstance(ad.get(name), int | float) and ad[name] > 0:
            return int(ad[name])
    return len([word for word in str(ad.get("AssignedGPUs", "")).split(",") if word.strip()])


def model_of(ad: Ad) -> str:
    """GPU model as NVML names it, of the job or of the first GPU that was assigned."""
    for name in ("MachineAttrGPUs_DeviceName0", "GPUs_DeviceName", "GPUDeviceName"):
        if isinstance(ad.get(name), str):
            return str(ad[name])
    first = str(ad.get("AssignedGPUs", "")).split(",")[0].strip().replace("-", "_")
    facts = ad.get(f"GPUs_{first}") or ad.get("AvailableGPUs")
    facts = facts[0] if isinstance(facts, list) and facts else facts
    return str(facts.get("DeviceName", "")) if isinstance(facts, dict) else ""


def row_of(ad: Ad) -> list[str] | None:
    """One row for a job with GPUs, or for a run of one (an ad of ``-epochs``)."""
    gpus = gpus_of(ad)
    if not gpus:
        return None
    start = ad.get("JobCurrentStartDate") or ad.get("JobStartDate")
    of_a_run, seconds = "EpochWriteDate" in ad, ad.get("LastRemoteWallClockTime")
    over = ad.get("JobStatus") in (3, 4)
    end = ad.get("CompletionDate") or (ad.get("EnteredCurrentStatus") if over else None)
    if start and seconds and (of_a_run or (over and not end)):
        end = start + seconds
    state = "PREEMPTED" if of_a_run else STATES.get(ad.get("JobStatus", 1), "PENDING")
    failed = state == "COMPLETED" and ad.get("ExitCode", 0) not in (0, None)
    host = str(ad.get("LastRemoteHost") or ad.get("RemoteHost") or "").rpartition("@")[2]
    team = ad.get("AcctGroup") or ad.get("AccountingGroup", "")
    return [
        *(f"{ad['ClusterId']}.{ad['ProcId']}", str(ad.get("Owner", "")), str(team)),
        *(utc(ad.get("QDate")), utc(start), utc(end), str(gpus), model_of(ad), host),
        *("FAILED" if failed else state, ""),
    ]


if __name__ == "__main__":
    table = csv.writer(sys.stdout)
    table.writerow(COLUMNS)
    for name in sys.argv[1:]:
        text = Path(name).read_text("utf-8").strip()
        ads = json.loads(text) if text.startswith("[") else map(json.loads, filter(None, text.splitlines()))
        table.writerows(row for ad in ads if (row := row_of(ad)))
