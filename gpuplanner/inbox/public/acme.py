"""Acme: jobs of the LLM clusters Seren and Kalos, 2023 (Hu et al., USENIX NSDI 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.text_file import head
from gpuplanner.inbox.core.times import MAX_SECONDS, seconds
from gpuplanner.inbox.public.helios import OTHER_QUEUE, QUEUE_S, RUN_S, with_states
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

REDUCED_COLUMNS = {
    "job_id": Field("job_id"),
    "gpu_num": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "submit_time": Field("submit_time", "instant"),
    "duration": Field("duration_s", "number", nullable=True, high=MAX_SECONDS),
    "queue": Field("queue_s", "number", nullable=True, high=MAX_SECONDS),
}
"""What even the reduced tables have; times carry their offset from UTC."""

COLUMN_MAP = REDUCED_COLUMNS | {
    "user": Field("user", nullable=True),
    "node_num": Field("nodes", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "type": Field("job_class", nullable=True),
    "state": Field("state"),
    "start_time": Field("start_time", "instant", nullable=True),
    "end_time": Field("end_time", "instant", nullable=True),
    "gpu_time": Field("gpu_s", "number", nullable=True, optional=True),
}
"""`gpu_time`: GPUs × duration [GPU s]."""

STATES = {
    name: name
    for name in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "RUNNING", "PENDING", "UNKNOWN")
}

CLASSES = {"Pretrain": "pretraining", "SFT": "fine-tuning", "Evaluation": "evaluation"}
"""Kinds of work of the source → ours; others stay, in lower case."""

IS_SEREN = pl.col("job_id").str.contains(r"^\d+$")
"""Seren numbers its jobs; Kalos names them."""

CHECKS = (
    OTHER_QUEUE,
    Check(
        "duration contains the queue (Kalos)",
        "info",
        "the run time is end - start, else duration - queue",
        ~pl.col("seren"),
    ),
    Check(
        "gpu_time counts the queue as GPU time (Kalos)",
        "warning",
        "GPU-hours follow the run time; gpu_time is not used",
        ~pl.col("seren") & (pl.col("gpu_s") > pl.col("gpus") * RUN_S + 1.0),
    ),
    Check(
        "duration is not what it is elsewhere in its cluster",
        "warning",
        "run times follow the times; duration is not used",
        (RUN_S + pl.when("seren").then(0.0).otherwise(QUEUE_S) - pl.col("duration_s")).abs() > 1.0,
    ),
    Check(
        "start and end not in the source",
        "info",
        "the start is submission + queue, the end follows from duration",
        pl.col("reduced") & pl.col("start_time").is_not_null(),
    ),
)


def read_acme(paths: Sequence[str | Path]) -> Dataset:
    r"""Read the job tables of Seren and Kalos, whole or reduced to five columns.

    The columns mean different things in the two clusters: the duration of Seren is end - start, that of Kalos
    is end - submission, against its documentation. The run time is end - start where both are in the table;
    else, in Kalos, duration - queue.

    References
    ----------
    .. [1] InternLM/AcmeTrace, README: schema of ``trace_seren.csv`` and ``trace_kalos.csv``.

    Examples
    --------
    >>> import tempfile
    >>> row = "dlctk696s0jbvitv,64,2023-05-17 11:00:58+00:00,18,10"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "kalos.csv"
    ...     _ = path.write_text(f"job_id,gpu_num,submit_time,duration,queue\n{row}\n")
    ...     trace = read_acme([path])
    >>> trace.jobs["start_time"][0].time().isoformat(), round(trace.provenance["gpu_hours"] * 3600)
    ('11:01:08', 512)
    """
    reduced = not any("start_time" in line for path in paths for line in head(path)[:1])
    rows = read_rows(paths, REDUCED_COLUMNS if reduced else COLUMN_MAP, source="acme")
    rows = replace(rows, good=rows.good.with_columns(seren=IS_SEREN, reduced=pl.lit(reduced)))
    if reduced:
        run_s = pl.col("duration_s") - pl.when("seren").then(0.0).otherwise(pl.col("queue_s"))
        rows = rows.reject({"duration: below queue, which it contains": run_s < 0})
        start = pl.col("submit_time") + seconds(pl.col("queue_s"))
        derived = {"start_time": start, "end_time": start + seconds(run_s), "state": pl.lit("UNKNOWN")}
        jobs = rows.good.with_columns(**derived)
    else:
        rows = with_states(rows, STATES)
        kind = pl.col("job_class")
        jobs = rows.good.with_columns(job_class=kind.replace_strict(CLASSES, default=kind.str.to_lowercase()))
    jobs = jobs.with_columns(
        attempt=pl.lit(1), tenant=pl.when("seren").then(pl.lit("seren")).otherwise(pl.lit("kalos"))
    )
    return assemble(
        replace(rows, good=jobs),
        source="acme",
        checks=CHECKS if not reduced else [check for check in CHECKS if "gpu_time" not in check.check],
    )
