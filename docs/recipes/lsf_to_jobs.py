"""The answer of ``bjobs -json`` of LSF as a job table.

Ask as administrator, before CLEAN_PERIOD takes finished jobs away (an hour, unless lsb.params says otherwise)::

    LSB_BJOBS_DISPLAY_YEAR=Y bjobs -a -u all -json -o "jobid jobindex stat user proj_name exec_host gpu_num gpu_alloc
        submit_time start_time finish_time exit_code" > bjobs.json
    python lsf_to_jobs.py --zone Europe/Berlin bjobs.json > jobs.csv

Times are in the zone of the cluster. Without LSB_BJOBS_DISPLAY_YEAR they have no year: give ``--year 2026``.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

COLUMNS = ["job_id", "user", "team", "submit", "start", "end", "gpus", "gpu_model", "nodes", "state", "eligible"]
FORMS = ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
ENDED = ("DONE", "EXIT")
STATES = {"DONE": "COMPLETED", "EXIT": "FAILED", "RUN": "RUNNING", "USUSP": "RUNNING", "SSUSP": "RUNNING"}


def utc(text: str | None, zone: str, year: int | None) -> str:
    """A time of LSF as ISO 8601; what stands behind it marks an estimate."""
    words = re.sub(r"\s+[LEX*]$", "", (text or "").strip())
    if words in ("", "-"):
        return ""
    if not re.search(r"\d{4}$", words) and year is None:
        sys.exit(f"{words!r} has no year: set LSB_BJOBS_DISPLAY_YEAR=Y, or give --year")
    for form in FORMS:
        for dated in (words, f"{words} {year}"):
            try:
                local = datetime.strptime(dated, form).replace(tzinfo=ZoneInfo(zone))
            except ValueError:
                continue
            return local.astimezone(ZoneInfo("UTC")).strftime("%Y-%m-%dT%H:%M:%SZ")
    sys.exit(f"{words!r} is no time of LSF")


def gpus_of(record: Mapping[str, str]) -> int:
    """GPUs of a job as stated, else as many as are listed for its hosts: ``n1{0,1} n2{0,1}``."""
    stated = record.get("GPU_NUM", "")
    listed = re.findall(r"[:{]([\d,\s-]+)", record.get("GPU_ALLOC", ""))
    return int(stated) if stated.isdigit() else len(re.findall(r"\d+", " ".join(listed)))


def row_of(record: Mapping[str, str], zone: str, year: int | None) -> list[str] | None:
    """One row for a job with GPUs."""
    gpus = gpus_of(record)
    if "ERROR" in record or not gpus:
        return None
    hosts = dict.fromkeys(re.sub(r"^\d+\*", "", host) for host in record.get("EXEC_HOST", "").split(":"))
    index = record.get("JOBINDEX") or "0"
    job = record["JOBID"] + (f"[{index}]" if index not in ("0", "-") else "")
    status = record.get("STAT", "")
    killed = status == "EXIT" and record.get("EXIT_CODE") in ("130", "143")
    end = record.get("FINISH_TIME") if status in ENDED else ""
    times = [utc(text, zone, year) for text in (record.get("SUBMIT_TIME"), record.get("START_TIME"), end)]
    state = "CANCELLED" if killed else STATES.get(status, "PENDING")
    who = [record.get("USER", ""), record.get("PROJ_NAME", "")]
    return [job, *who, *times, str(gpus), "", "+".join(filter(None, hosts)), state, ""]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--zone", required=True)
    parser.add_argument("--year", type=int)
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    table = csv.writer(sys.stdout)
    table.writerow(COLUMNS)
    for path in given.files:
        for record in json.loads(path.read_text("utf-8"))["RECORDS"]:
            row = row_of(record, given.zone, given.year)
            if row:
                table.writerow(row)
