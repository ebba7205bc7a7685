"""Slurm's job completion log (jobcomp/filetxt) as a job table, for clusters without slurmdbd.

Run ``python jobcomp_to_jobs.py /var/log/slurm_jobcomp.log > jobs.csv``. Times are in the zone of slurmctld: say it to
gpuplanner with --tz. Type and number of the GPUs are those of Tres, which Slurm has written since 19.05.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

COLUMNS = ["job_id", "user", "team", "submit", "start", "end", "gpus", "gpu_model", "nodes", "state", "eligible"]
FIELD = re.compile(r"(\w+)=(.*?)(?= \w+=|\s*$)")


def row_of(line: str) -> list[str] | None:
    """One row for a job with GPUs; those of several types are of the one that most are of."""
    record = dict(FIELD.findall(line))
    counts = dict(re.findall(r"gres/gpu(:[^=,]+)?=(\d+)", record.get("Tres", "")))
    typed = {name[1:]: int(count) for name, count in counts.items() if name}
    gpus = int(counts.get("", 0)) or sum(typed.values())
    if not gpus:
        return None
    times = ["" if record.get(name) == "Unknown" else record.get(name, "")
             for name in ("SubmitTime", "StartTime", "EndTime", "EligibleTime")]  # fmt: skip
    job = record["JobId"]
    if "ArrayTaskId" in record:
        job = f"{record['ArrayJobId']}_{record['ArrayTaskId']}"
    user = record.get("UserId", "").partition("(")[0]
    return [
        *(job, user, record.get("Account", ""), *times[:3], str(gpus), max(typed, key=typed.__getitem__, default="")),
        *(record.get("NodeList", "").replace("(null)", ""), record.get("JobState", ""), times[3]),
    ]


if __name__ == "__main__":
    table = csv.writer(sys.stdout)
    table.writerow(COLUMNS)
    for name in sys.argv[1:]:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            table.writerows(row for line in file if (row := row_of(line)))
