"""Philly: deep learning training jobs of a Microsoft cluster, 2017 (Jeon et al., USENIX ATC 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from gpuplanner.inbox.core.dataset import Dataset
from gpuplanner.inbox.core.findings import AMBIGUOUS_TIME, NO_QUEUE, Check
from gpuplanner.inbox.core.job_rows import assemble
from gpuplanner.inbox.core.lines.fields import Field
from gpuplanner.inbox.core.lines.reading import read_rows
from gpuplanner.inbox.core.times import MAX_SECONDS, known_zone, seconds
from gpuplanner.inbox.public.clocks import localized
from gpuplanner.inbox.public.derived_ids import plain, told_apart
from gpuplanner.schemas.tables import MAX_GPUS_PER_JOB

TIME_ZONE = "America/Los_Angeles"
"""Zone of the naive times: the trace's utilisation files carry PDT and PST."""

COLUMN_MAP = {
    "timestamp": Field("submit_time", "time"),
    "duration": Field("run_s", "number", nullable=True, high=MAX_SECONDS),
    "num_gpus": Field("gpus", "number", nullable=True, high=MAX_GPUS_PER_JOB),
    "gpu_time": Field("gpu_s", "number", nullable=True, optional=True),
    "cluster": Field("tenant"),
}
"""`timestamp`: submission, local; `duration`: run time [s]; `gpu_time`: GPUs × duration [GPU s]; `cluster`:
virtual cluster. The table has no user, state or start."""

CHECKS = (
    NO_QUEUE,
    AMBIGUOUS_TIME,
    Check(
        "gpu_time is not duration × num_gpus",
        "warning",
        "GPU-hours follow duration and num_gpus; gpu_time is not used",
        (pl.col("gpu_s") - pl.col("run_s") * pl.col("gpus")).abs() > 1.0,
    ),
    Check(
        "equal to an earlier row in every field",
        "info",
        "kept, since the source has no job ids: some may be the same job twice",
        ~pl.col("raw").is_first_distinct(),
    ),
)


def read_philly(paths: Sequence[str | Path], *, tz: str | None = None) -> Dataset:
    r"""Read the Philly job table.

    Columns `timestamp`, `duration`, `num_gpus`, `gpu_time`, `cluster`; see :data:`COLUMN_MAP`. Queueing is
    not in the source: the start is set to the submission. Nor are job ids: a job is named after its submission
    [epoch s], virtual cluster, GPUs and run time [s], so that it keeps its name in every export that has it.

    Parameters
    ----------
    paths : sequence of str or Path
        CSV files, plain or gzip.
    tz : str, optional
        Zone of the times; :data:`TIME_ZONE` if not given.

    Returns
    -------
    Dataset
        One row per job.

    Raises
    ------
    TraceFormatError
        If a file cannot be read as this source, or no row is left.

    Examples
    --------
    >>> import tempfile
    >>> lines = "timestamp,duration,num_gpus,gpu_time,cluster", "2017-10-09 06:13:03,1800.0,4,7200.0,6214e9"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "philly.csv"
    ...     _ = path.write_text("\n".join(lines) + "\n")
    ...     read_philly([path]).summary()["gpu_hours"]
    2.0
    """
    zone = known_zone(TIME_ZONE if tz is None else tz)
    rows = read_rows(paths, COLUMN_MAP, source="philly")
    rows = localized(rows, ["submit_time"], zone, called={"submit_time": "timestamp"})
    submitted = pl.col("submit_time").dt.epoch("s").cast(pl.String)
    name = pl.concat_str(pl.lit("philly"), submitted, "tenant", plain("gpus"), plain("run_s"), separator="-")
    jobs = told_apart(rows.good.with_columns(job_id=name)).with_columns(
        attempt=pl.lit(1),
        start_time=pl.col("submit_time"),
        end_time=pl.col("submit_time") + seconds(pl.col("run_s")),
        state=pl.lit("UNKNOWN"),
    )
    return assemble(replace(rows, good=jobs), source="philly", time_zone=zone, checks=CHECKS)
