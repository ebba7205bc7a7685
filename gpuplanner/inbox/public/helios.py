"""Helios: jobs of SenseTime clusters, 2020 (Hu et al., SC 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.lines.rows import Rows
from gpuplanner.inbox.core.times import MAX_SECONDS, known_zone
from gpuplanner.inbox.public.clocks import localized
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

TIME_ZONE = "Asia/Shanghai"
"""Zone of the naive times: the clusters stood in China, whose clocks are never changed."""

ZONE_NOTE = "the source names no zone: times were read as {}"

COLUMN_MAP = {
    "job_id": Field("job_id"),
    "user": Field("user", nullable=True),
    "vc": Field("tenant"),
    "gpu_num": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "node_num": Field("nodes", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "state": Field("state"),
    "submit_time": Field("submit_time", "time"),
    "start_time": Field("start_time", "time", nullable=True),
    "end_time": Field("end_time", "time", nullable=True),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "queue": Field("queue_s", "number", nullable=True, high=MAX_SECONDS),
}
"""Columns of ``cluster_log.csv``; `vc`: virtual cluster; `duration`: end - start [s]; `queue`: start - submission
[s]."""

STATES = {
    **{name: name for name in ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")},
    "RUNNING": "RUNNING",
    "PENDING": "PENDING",
    "SUSPENDED": "UNKNOWN",
}
"""States of the source (its README names one suspended job) → ours."""

RUN_S = (pl.col("end_time") - pl.col("start_time")).dt.total_microseconds() / 1e6
QUEUE_S = (pl.col("start_time") - pl.col("submit_time")).dt.total_microseconds() / 1e6

OTHER_QUEUE = Check(
    "queue is not start - submission",
    "warning",
    "queueing delays follow the times; queue is not used",
    (QUEUE_S - pl.col("queue_s")).abs() > 1.0,
)
"""On rows with `queue_s`."""

CHECKS = (
    AMBIGUOUS_TIME,
    OTHER_QUEUE,
    Check(
        "duration is not end - start",
        "warning",
        "run times follow the times; duration is not used",
        (RUN_S - pl.col("run_s")).abs() > 1.0,
    ),
)


def read_helios(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read Helios job tables, ``cluster_log.csv``.

    References
    ----------
    .. [1] S-Lab-System-Group/HeliosData, README: schema of ``cluster_log.csv``.

    Examples
    --------
    >>> import tempfile
    >>> lines = (
    ...     "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
    ...     "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,"
    ...     "2020-06-09 18:45:36,249,0",
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cluster_log.csv"
    ...     _ = path.write_text("\n".join(lines) + "\n")
    ...     read_helios([path]).summary()["span_start"]
    '2020-06-09T10:41:27Z'
    """
    zone = known_zone(tz or TIME_ZONE)
    rows = with_states(read_rows(paths, COLUMN_MAP, source="helios"), STATES)
    rows = localized(rows, ["submit_time", "start_time", "end_time"], zone)
    return assemble(
        replace(rows, good=rows.good.with_columns(attempt=pl.lit(1))),
        source="helios",
        time_zone=zone,
        checks=CHECKS,
        notes=[] if tz else [ZONE_NOTE.format(zone)],
    )


def with_states(rows: Rows, words: dict[str, str]) -> Rows:
    """Put our states for the source's; rows with a state that is none of its words are rejected."""
    state = pl.col("state")
    rows = rows.reject({f"state: not one of {', '.join(words)}": ~state.is_in(list(words))})
    return replace(rows, good=rows.good.with_columns(state.replace_strict(words, default="UNKNOWN")))
